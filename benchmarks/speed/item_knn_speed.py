"""Neighbors by BM25 against implicit: CPU seconds to fit and to recommend, and NDCG.

Both take turns in one process, on one thread, with the same number of neighbors, k1 and b; medians
of the repetitions. implicit counts an item among its own neighbors, so it gets one more. NDCG@20 is
that of the test part, trained on training and validation parts, without known items.

    python benchmarks/speed/item_knn_speed.py --data DIR --out results

Without data, interactions of MovieLens-1M's size are made.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser
from implicit.nearest_neighbours import BM25Recommender
from scipy import sparse

from freqfm import ItemKNNRecommender
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

N_NEIGHBORS, K1, B, K = 100, 1.2, 0.75, 20


def of_freqfm(X, users):
    """Return the seconds to fit and to recommend, and the items."""
    start = time.process_time()
    params = {"weighting": "bm25", "bm25_k1": K1, "bm25_b": B}
    model = ItemKNNRecommender(N_NEIGHBORS, **params, n_jobs=1).fit(X)
    fitted = time.process_time()
    found, _ = model.recommend(users=users, n_recommendations=K)
    return fitted - start, time.process_time() - fitted, found


def of_implicit(X, users):
    """Return the same of implicit's model."""
    X = sparse.csr_matrix(X)
    start = time.process_time()
    model = BM25Recommender(N_NEIGHBORS + 1, K1=K1, B=B, num_threads=1)
    model.fit(X, show_progress=False)
    fitted = time.process_time()
    found, scores = model.recommend(users, X[users], N=K)
    seconds = time.process_time() - fitted
    return fitted - start, seconds, np.where(scores > -1e30, found, -1)


def compare(X, test, repeats):
    """Print and return the medians of seconds, and NDCG."""
    users = np.flatnonzero(np.diff(test.indptr))
    contenders = {"freqfm": of_freqfm, "implicit": of_implicit}
    runs = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            *seconds, found = run(X, users)
            if turn:  # the first one compiles
                runs[name].append([*seconds, ndcg_at_k(test[users], found)])
    results = {}
    for name, of_turns in runs.items():
        fit, recommend, ndcg = map(float, np.median(of_turns, axis=0))
        results[name] = {"fit": fit, "recommend": recommend, "ndcg": ndcg}
        print(f"{name:9} fit {fit:6.2f} s, recommend {recommend:6.2f} s, NDCG {ndcg:.4f}")
    return results


def data_sets(args):
    """Yield names, interactions to train on and those to be found."""
    if args.data is None:
        X = make_interactions(6000, 3600, 800_000, random_state=0)
        yield "made", *holdout_interactions(X, 0.2, random_state=0)
        return
    for name in ("ml100k", "ml1m-implicit", "gowalla"):
        train, valid, test = click_parts(args.data, name)
        yield name, sparse.csr_array(train + valid), sparse.csr_array(test)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, X, test in data_sets(args):
        print(name)
        results[name] = compare(X, test, args.repeats)
        (args.out / "item_knn_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
