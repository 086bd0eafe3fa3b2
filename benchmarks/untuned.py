"""How good recommenders are with default parameters: ours and implicit's.

Every model is trained on training and validation parts together, as nothing is chosen, and
evaluated once: recall and NDCG at 20 of the test part, items of the training rows left out. Only
the number of threads and the seed are set. Beside it the seconds to fit and to rank for all users,
in one run on one machine. implicit takes part if it is installed.

    python benchmarks/untuned.py --data DIR --out results
    python benchmarks/untuned.py --data DIR --out results --seeds 3

Reads Gowalla (the usual split) and MovieLens-1M clicks; ``--quick`` draws small data instead.
"""

import importlib
import json
import time

import numpy as np
import threadpoolctl
from _data import click_parts, data_parser, require_data
from mf_speed import installed
from scipy import sparse

from freqfm import ALSRecommender, FastVAERecommender, MFRecommender
from freqfm._validation import count_threads
from freqfm.datasets import make_interactions
from freqfm.metrics import ranking_report
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_interactions

K = 20
DATA_SETS = {"Gowalla": "gowalla", "MovieLens-1M": "ml1m-implicit"}


class Freqfm:
    """A recommender of this package."""

    def __init__(self, make, X, seed, n_threads):
        self.model = make(random_state=seed, n_jobs=n_threads).fit(X)

    def rank(self, X, users):
        return self.model.recommend(users=users, n_recommendations=K)[0]


class Implicit:
    """A recommender of implicit."""

    def __init__(self, module, name, X, seed, n_threads):
        make = getattr(importlib.import_module(f"implicit.{module}"), name)
        seeded = {} if module == "nearest_neighbours" else {"random_state": seed, "use_gpu": False}
        self.X = sparse.csr_matrix(X)
        with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
            self.model = make(num_threads=n_threads, **seeded)
            self.model.fit(self.X, show_progress=False)

    def rank(self, X, users):
        found, scores = self.model.recommend(users, self.X[users], N=K)
        return np.where(scores > -1e30, found, -1)  # what is below was left out


class Popular:
    """The most popular items for all users."""

    def __init__(self, X, seed, n_threads):
        self.counts = np.bincount(X.indices, minlength=X.shape[1])[:, None]

    def rank(self, X, users):
        return top_k(np.ones((len(users), 1)), self.counts, K, exclude=X[users])[0]


def contenders():
    """Return what makes a fitted model of (X, seed, n_threads), by name."""
    makers = {
        "MFRecommender()": lambda *given: Freqfm(MFRecommender, *given),
        "FastVAERecommender()": lambda *given: Freqfm(FastVAERecommender, *given),
        "ALSRecommender()": lambda *given: Freqfm(ALSRecommender, *given),
    }
    if installed("implicit"):
        for module, name in {
            "als": "AlternatingLeastSquares",
            "bpr": "BayesianPersonalizedRanking",
            "lmf": "LogisticMatrixFactorization",
            "nearest_neighbours": "BM25Recommender",
        }.items():
            makers[f"implicit's {name}()"] = lambda *given, m=module, n=name: Implicit(m, n, *given)
    else:
        print("implicit is not installed.")
    return makers | {"the most popular items": Popular}


def data_sets(args):
    """Yield the name of every data set, what to train on, and the test part."""
    if args.quick:
        X = make_interactions(300, 200, 9000, random_state=0)
        yield "drawn", *holdout_interactions(X, 0.2, random_state=0)
        return
    for name in args.data_set:
        train, valid, test = click_parts(require_data(args), DATA_SETS[name])
        yield name, train + valid, test


def judge(make, X, test, seed, n_threads):
    """Return the quality of one model and its seconds."""
    users = np.flatnonzero(np.diff(test.indptr))
    start = time.perf_counter()
    model = make(X, seed, n_threads)
    fitted = time.perf_counter()
    found = model.rank(X, users)
    ranked = time.perf_counter()
    report = ranking_report(test[users], found)
    return {
        "recall": report[f"recall@{K}"],
        "ndcg": report[f"ndcg@{K}"],
        "fit": fitted - start,
        "rank": ranked - fitted,
    }


def show(name, runs):
    """Print the means over seeds of one data set, and by how much NDCG differs."""
    print(f"\n{name}, test, without a parameter")
    print(f"{'':42}{'recall@20':>10}{'NDCG@20':>9}{'spread':>8}{'fit, s':>8}{'rank, s':>9}")
    for model, of_seeds in runs.items():
        mean = {key: float(np.mean([run[key] for run in of_seeds])) for key in of_seeds[0]}
        spread = float(np.ptp([run["ndcg"] for run in of_seeds]))
        print(
            f"{model:42}{mean['recall']:10.4f}{mean['ndcg']:9.4f}{spread:8.4f}"
            f"{mean['fit']:8.1f}{mean['rank']:9.2f}"
        )


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="300 users, drawn: a test")
    args = parser.parse_args()
    n_threads = count_threads(args.n_jobs)
    results = {"n_threads": n_threads}
    makers = contenders()
    for name, X, test in data_sets(args):
        runs = {}
        for model, make in makers.items():
            make(X[:50], 0, n_threads)  # compiles, or reads what was compiled
            runs[model] = [judge(make, X, test, seed, n_threads) for seed in range(args.seeds)]
            print(f"{name}, {model}: done", flush=True)
        show(name, runs)
        results[name] = runs
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "untuned.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
