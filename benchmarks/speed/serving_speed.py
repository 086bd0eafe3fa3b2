"""Latency for a single user, against NumPy's matrix product and argpartition in the same run.

500,000 items with random vectors of length 64 stand for a trained model: time depends on shapes
only. ``--cold`` is the share of items without interactions, which are never recommended; NumPy
ranks them, too. It ranks unit vectors, whose normalisation is not counted. For each call the table
has the median over runs of its time over NumPy's in the same round, and the quartiles of that
ratio. The calls take turns, so that all of them see the machine in the same state.

    python benchmarks/speed/serving_speed.py [--quick] [--rounds 31] [--n-jobs 2] [--cold 0.3]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from freqfm import FastVAERecommender, MFRecommender

K = 10


def histories(rng, n_users, n_items, cold, length=50):
    """Return a matrix of users with about ``length`` items each; a share of items has nobody."""
    warm = rng.permutation(n_items)[round(cold * n_items) :]
    # Each of the others once, and more by chance.
    items = np.concatenate([warm, rng.choice(warm, max(0, n_users * length - len(warm)))])
    users = rng.integers(n_users, size=len(items))
    ones = np.ones(len(users), dtype=np.float32)
    X = sparse.csr_array((ones, (users, items)), shape=(n_users, n_items))
    X.data[:] = 1
    return X


def fitted(model, X, rng, names):
    """Return a model after an epoch, with random numbers for tables that one epoch leaves small."""
    model.fit(X)
    for name in names:
        table = getattr(model, name)
        setattr(model, name, rng.standard_normal(table.shape, dtype=np.float32))
    return model


def calls(rng, n_items, n_users, d, n_jobs, cold=0.0):
    """Return functions to be timed, by name; the first is NumPy's."""
    X = histories(rng, n_users, n_items, cold)
    common = {"max_iter": 1, "random_state": 0, "n_jobs": n_jobs}
    cosine = fitted(MFRecommender(d, **common), X, rng, ["user_factors_", "item_factors_"])
    dot = fitted(MFRecommender(d, loss="bpr", **common), X, rng, ["user_factors_", "item_factors_"])
    vae = FastVAERecommender(d, hidden_layer_sizes=(d,), early_stopping=False, **common)
    vae = fitted(vae, X, rng, ["item_factors_"])
    unit = cosine._item_index().vectors()
    few = rng.choice(np.unique(X.indices), 100, replace=False)
    banned = rng.choice(n_items, 100, replace=False)
    state = {"user": 0}

    def user():
        state["user"] = (state["user"] + 1) % n_users
        return state["user"]

    def numpy_product():
        scores = unit @ cosine.user_factors_[user()]
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    functions = {"NumPy: product and argpartition": numpy_product}
    for name, model in {"MF, cosine": cosine, "MF, dot": dot, "VAE, cosine": vae}.items():
        functions |= {
            f"{name}: one user": lambda model=model: model.recommend(users=user()),
            f"{name}: one history": lambda model=model: model.recommend(X[[user()]]),
            f"{name}: 100 excluded": lambda model=model: model.recommend(
                users=user(), exclude=banned
            ),
            f"{name}: 100 candidates": lambda model=model: model.recommend(
                users=user(), candidates=few
            ),
            f"{name}: similar items": lambda model=model: model.similar_items(int(few[0])),
        }
        if hasattr(model, "explain"):
            functions[f"{name}: explain"] = lambda model=model: model.explain(user(), int(few[0]))
    return functions


def measure(functions, rounds, n_calls):
    """Return seconds of a call in each round, the mean of several in a row, by name."""
    seconds = {name: [] for name in functions}
    for round_ in range(rounds + 2):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(n_calls):
                function()
            # The first rounds load and compile.
            if round_ >= 2:
                seconds[name].append((time.perf_counter() - started) / n_calls)
    return {name: np.array(times) for name, times in seconds.items()}


def main():
    """Measure, print and write ``serving_speed.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small table, to see that it runs")
    parser.add_argument("--rounds", type=int, default=31)
    help_of_calls = "in a row; with 1, caches hold the data of another function"
    parser.add_argument("--calls", type=int, default=10, help=help_of_calls)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--cold", type=float, default=0.0, help="share of items that nobody has")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    args = parser.parse_args()
    n_items, n_users = (5_000, 50) if args.quick else (args.items, 2_000)
    rounds = 3 if args.quick else args.rounds
    rng = np.random.default_rng(0)
    d = args.components
    functions = calls(rng, n_items, n_users, d, args.n_jobs, args.cold)
    seconds = measure(functions, rounds, args.calls)
    first, *_ = seconds
    print(f"{n_items:,} items, {args.cold:.0%} of them cold, d = {d}, n_jobs={args.n_jobs}")
    print(f"{rounds} rounds of {args.calls} calls")
    print(f"{'':34}{'ms':>9}{'ratio':>9}   quartiles")
    report = {}
    for name, times in seconds.items():
        low, ratio, high = np.percentile(times / seconds[first], [25, 50, 75])
        report[name] = {"ms": 1000 * np.median(times), "ratio": ratio, "quartiles": [low, high]}
        print(f"{name:34}{1000 * np.median(times):9.2f}{ratio:9.3f}   {low:.3f} - {high:.3f}")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "serving_speed.json"
    path.write_text(json.dumps({"items": n_items, "cold": args.cold, "calls": report}, indent=1))


if __name__ == "__main__":
    main()
