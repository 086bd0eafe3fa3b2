"""What popular items and those of the long tail add to the NDCG of recommenders.

Models with default parameters, and few that differ by what favours unpopular items, are trained on
training and validation parts together and ranked against the test part, as by ``untuned.py``. NDCG
at 20 is the sum of three parts, of the 5 % of items with the most training interactions, of the
next 15 % and of all others; see ``freqfm.metrics.stratified_ndcg_at_k``. Beside it the share of all
items that are recommended to anybody.

    python benchmarks/popularity.py --data DIR [--models 'MFRecommender*' --seeds 3]

Reads MovieLens-1M clicks; ``--quick`` draws small data.
"""

import json
import sys
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "reproduce"))
from _data import click_parts, data_parser, require_data
from _recommenders import Freqfm, K, contenders

from freqfm import MFRecommender
from freqfm._validation import count_threads
from freqfm.datasets import make_interactions
from freqfm.metrics import ranking_report
from freqfm.model_selection import holdout_interactions
from freqfm.samplers import InBatch

VARIANTS = {
    'MFRecommender(loss="bpr")': {"loss": "bpr"},
    "MFRecommender(negative_sampler=InBatch(corrected=False))": {
        "negative_sampler": InBatch(corrected=False)
    },
}
COLUMNS = {
    "NDCG": f"ndcg@{K}",
    "popular": f"ndcg_popular@{K}",
    "neutral": f"ndcg_neutral@{K}",
    "unpopular": f"ndcg_unpopular@{K}",
    "coverage": f"coverage@{K}",
}


def parts(args):
    """Return the interactions to train on, and those to find."""
    if args.quick:
        X = make_interactions(300, 200, 9000, random_state=0)
        return holdout_interactions(X, 0.2, random_state=0)
    train, valid, test = click_parts(require_data(args), "ml1m-implicit")
    return train + valid, test


def measure(make, X, test, seed, n_threads):
    """Return the figures of a model, by the names of ``COLUMNS``."""
    users = np.flatnonzero(np.diff(test.indptr))
    counts = np.bincount(X.indices, minlength=X.shape[1])
    report = ranking_report(
        test[users], make(X, seed, n_threads).rank(X, users), item_counts=counts
    )
    return {name: float(report[key]) for name, key in COLUMNS.items()}


def main():
    """Measure, print and write ``popularity.json``."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="300 users, drawn: a test")
    args = parser.parse_args()
    X, test = parts(args)
    makers = contenders()
    makers |= {name: partial(Freqfm, MFRecommender, **params) for name, params in VARIANTS.items()}
    results = {}
    print(f"{'means, and the spread of NDCG':58}", *(f"{name:>9}" for name in COLUMNS))
    for name, make in makers.items():
        if not any(fnmatch(name, pattern) for pattern in args.models):
            continue
        n_threads = count_threads(args.n_jobs)
        runs = [measure(make, X, test, seed, n_threads) for seed in range(args.seeds)]
        results[name] = runs
        mean = [np.mean([run[column] for run in runs]) for column in COLUMNS]
        spread = np.ptp([run["NDCG"] for run in runs])
        print(f"{name:58}", *(f"{value:9.4f}" for value in mean), f"  {spread:.4f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "popularity.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
