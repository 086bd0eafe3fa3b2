"""Alternating least squares against implicit: seconds per epoch, and NDCG after the same search.

- Seconds: both take turns in one process, with the same factors, threads and solver (three steps of
  conjugate gradients, or Cholesky), the second of two epochs each; medians of the repetitions.
- NDCG@20: both are searched over the same grid, on the validation part: the weight of an unobserved
  pair relative to an observed one, and the mean penalty of users relative to the same weight.
  implicit's ``alpha`` is the inverse of the first and its ``regularization`` the second times
  ``alpha``; ours is the second divided by the mean total weight of users' pairs. The search has one
  seed. The best of either is then measured on the test part with several, as are both with their
  defaults: trained on the training part, and on training and validation parts together. All have
  ``--epochs``.

    python benchmarks/speed/als_speed.py --data DIR --out results

Without data, interactions of MovieLens-1M's size are made.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser
from _epochs import task_of
from implicit.als import AlternatingLeastSquares
from scipy import sparse

from freqfm import ALSRecommender
from freqfm._input.validation import count_threads
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

D, K = 64, 20
# Multiples of the square root of the density, and penalties.
WEIGHTS = (0.3, 0.55, 1.0, 1.7, 3.0)
PENALTIES = (1.0, 1.6, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0)


class Freqfm:
    """What ``ALSRecommender.fit`` does in an epoch: its training task."""

    def __init__(self, X, n_threads, solver):
        model = ALSRecommender(D, solver=solver, n_jobs=n_threads, random_state=0)
        self.task = task_of(model, X)

    def epoch(self):
        """Train one epoch; return its seconds."""
        start = time.perf_counter()
        self.task.run_epoch(0)
        return time.perf_counter() - start


class Implicit:
    """implicit's model; it says itself how long an epoch took."""

    def __init__(self, X, n_threads, solver):
        self.X = sparse.csr_matrix(X)
        self.model = AlternatingLeastSquares(
            D, use_cg=solver == "cg", iterations=1, num_threads=n_threads, random_state=0
        )

    def epoch(self):
        """Train one epoch; return its seconds."""
        seconds = []
        self.model.fit(self.X, show_progress=False, callback=lambda *told: seconds.append(told[1]))
        return seconds[0]


def compare_speed(X, n_threads, repeats):
    """Print and return seconds per epoch."""
    results = {}
    for solver in ("cg", "cholesky"):
        contenders = {"freqfm": Freqfm(X, n_threads, solver)}
        contenders["implicit"] = Implicit(X, n_threads, solver)
        seconds = {name: [] for name in contenders}
        for turn in range(repeats + 1):
            for name, contender in contenders.items():
                contender.epoch()  # while the other's threads may still be waiting for work
                taken = contender.epoch()
                if turn:  # the first one compiles, and starts threads
                    seconds[name].append(taken)
        ours, theirs = (np.median(taken) for taken in seconds.values())
        print(
            f"{solver:9}{ours:8.3f} s, implicit{theirs:8.3f} s, {theirs / ours:.2f} times",
            flush=True,
        )
        results[solver] = seconds
    return results


def fit_freqfm(X, weight, penalty, n_threads, seed, n_epochs):
    """Return the fitted model; None are the defaults."""
    given = {}
    if weight is not None:
        total = (X.sum() + weight * X.shape[0] * X.shape[1]) / X.shape[0]
        given = {"unobserved_weight": weight, "regularization": penalty / total}
    model = ALSRecommender(D, max_iter=n_epochs, n_jobs=n_threads, random_state=seed, **given)
    return model.fit(X)


def fit_implicit(X, weight, penalty, n_threads, seed, n_epochs):
    """Return implicit's model of the same objective, but for penalties by frequency."""
    given = {}
    if weight is not None:
        given = {"alpha": 1 / weight, "regularization": penalty / weight}
    model = AlternatingLeastSquares(
        D, iterations=n_epochs, num_threads=n_threads, random_state=seed, **given
    )
    model.fit(sparse.csr_matrix(X), show_progress=False)
    return model


def ndcg(model, history, held_out):
    """Return the NDCG of held-out items, without those of the history."""
    users = np.flatnonzero(np.diff(held_out.indptr))
    history = sparse.csr_matrix(history)[users]
    if isinstance(model, ALSRecommender):
        items, _ = model.recommend(
            users=users, n_recommendations=K, exclude_seen=False, exclude=sparse.csr_array(history)
        )
    else:
        items, _ = model.recommend(users, history, K)
    return float(ndcg_at_k(held_out[users], items, K))


def search(parts, args, n_threads):
    """Print and return the NDCG of either model over the grid, and of the best on the test part."""
    train, valid, test = parts
    both = sparse.csr_array(train + valid)
    start = np.sqrt(train.nnz / train.shape[0] / train.shape[1])
    grid = [(start * w, p) for w in WEIGHTS for p in PENALTIES][:: 15 if args.quick else 1]

    def judge(name, fit, point):
        found = []
        for seed in range(args.seeds):
            model, of_both = (fit(X, *point, n_threads, seed, args.epochs) for X in (train, both))
            found.append(
                (ndcg(model, train, valid), ndcg(model, both, test), ndcg(of_both, both, test))
            )
        means, spreads = np.mean(found, axis=0), np.ptp(found, axis=0)
        parts = ("valid", "test", "test after training on both")
        shown = (f"{p} {m:.4f} ({s:.4f})" for p, m, s in zip(parts, means, spreads, strict=True))
        print(f"{name:18} {', '.join(shown)} {point}", flush=True)
        return {"point": point, "valid, test, test of both": found}

    results = {"grid": grid}
    for name, fit in (("freqfm", fit_freqfm), ("implicit", fit_implicit)):
        untuned = judge(f"{name}, defaults", fit, (None, None))
        fitted = (fit(train, *point, n_threads, 0, args.epochs) for point in grid)
        scores = [ndcg(model, train, valid) for model in fitted]
        best = judge(name, fit, grid[int(np.argmax(scores))])
        results[name] = {"untuned": untuned, "valid": scores, **best}
    return results


def load(args, name):
    """Return training, validation and test interactions."""
    if args.data:
        parts = click_parts(args.data, name)
    else:
        X = make_interactions(6000, 3600, 800_000, random_state=0)
        history, test = holdout_interactions(X, 0.2, random_state=0)
        parts = *holdout_interactions(history, 0.1, random_state=1), test
    return [part[:500] for part in parts] if args.quick else parts


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--sets", nargs="+", default=["ml1m-implicit", "gowalla"])
    parser.add_argument("--only", choices=["speed", "search"], default=None)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="of the figures on the test part")
    parser.add_argument("--epochs", type=int, default=16, help="of the models that are ranked")
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="500 users, one repetition: a test")
    args = parser.parse_args()
    n_threads = count_threads(args.n_jobs)
    results = {}
    for name in args.sets if args.data else ["made"]:
        parts = load(args, name)
        print(f"{name}, {parts[0].nnz} interactions, d = {D}, {n_threads} threads")
        results[name] = {}
        with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
            if args.only != "search":
                repeats = 1 if args.quick else args.repeats
                results[name]["seconds"] = compare_speed(parts[0], n_threads, repeats)
            if args.only != "speed":
                results[name]["ndcg"] = search(parts, args, n_threads)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "als_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
