"""What popular items and those of the long tail add to the NDCG of recommenders.

Models with default parameters, and few that differ by what favours unpopular items, are trained on
training and validation parts together and ranked against the test part, as by ``untuned.py``. NDCG
at 20 is the sum of three parts, of the 5 % of items with the most training interactions, of the
next 15 % and of all others; see ``freqfm.metrics.stratified_ndcg_at_k``. Beside it the share of all
items that are recommended to anybody.

    python benchmarks/quality/popularity.py --data DIR [--models 'MFRecommender*' --seeds 3]

Reads the data sets of ``untuned.py``, by default MovieLens-1M clicks; ``--quick`` draws small data.
"""

import json
import sys
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser
from _recommenders import Freqfm, K, contenders
from untuned import DATA_SETS, data_sets

from freqfm import MFRecommender
from freqfm._input.validation import count_threads
from freqfm.auxiliary import IPL, ReSN
from freqfm.initializers import PRISM
from freqfm.losses import MACR
from freqfm.metrics import ranking_report
from freqfm.samplers import InBatch

VARIANTS = {
    'MFRecommender(loss="bpr")': {"loss": "bpr"},
    'MFRecommender(loss="bpr", weight_decay=0)': {"loss": "bpr", "weight_decay": 0.0},
    "MFRecommender(negative_sampler=InBatch(corrected=False))": {
        "negative_sampler": InBatch(corrected=False)
    },
    "MFRecommender(init=PRISM(0))": {"init": PRISM(0.0)},
    "MFRecommender(init=PRISM(1))": {"init": PRISM(1.0)},
}
# Terms against the popularity bias, beside the same model without: weights chosen on validation.
_LARGE_BATCHES = {"loss": "bpr", "batch_size": 1024, "max_iter": 30}
VARIANTS |= {
    f"BPR in large batches, auxiliary={term}": {**_LARGE_BATCHES, "auxiliary": term}
    for term in (None, IPL(1.0), ReSN(0.1))
}
VARIANTS |= {f"BPR in large batches, or loss=MACR({c:g})": {"loss": MACR(c)} for c in (0, 1, 2)}
COLUMNS = {
    "NDCG": f"ndcg@{K}",
    "popular": f"ndcg_popular@{K}",
    "neutral": f"ndcg_neutral@{K}",
    "unpopular": f"ndcg_unpopular@{K}",
    "coverage": f"coverage@{K}",
}


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
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=["MovieLens-1M"])
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="200 users, drawn: a test")
    args = parser.parse_args()
    makers = contenders()
    makers |= {name: partial(Freqfm, MFRecommender, **params) for name, params in VARIANTS.items()}
    makers = {n: m for n, m in makers.items() if any(fnmatch(n, given) for given in args.models)}
    n_threads, results = count_threads(args.n_jobs), {}
    for data, (train, valid, test) in data_sets(args):
        print(f"{data + ', means, and the spread of NDCG':58}", *(f"{name:>9}" for name in COLUMNS))
        X, results[data] = train + valid, {}
        for name, make in makers.items():
            runs = [measure(make, X, test, seed, n_threads) for seed in range(args.seeds)]
            results[data][name] = runs
            mean = [np.mean([run[column] for run in runs]) for column in COLUMNS]
            spread = np.ptp([run["NDCG"] for run in runs])
            print(f"{name:58}", *(f"{of:9.4f}" for of in mean), f"  {spread:.4f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "popularity.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
