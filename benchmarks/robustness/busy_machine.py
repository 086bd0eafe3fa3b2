"""Fits with one thread and with several, on a machine that other processes keep busy.

Starts processes that do nothing but compute (as many as threads, by default), and beside them fits
each model in turn with one thread and with several. What counts is the ratio of the two times: the
median over the rounds, with the quartiles. On a quiet machine (``--busy 0``) it shows the speed-up
by threads.

    python benchmarks/robustness/busy_machine.py --data DIR
    python benchmarks/robustness/busy_machine.py --data DIR --busy 0

Without data, synthetic interactions of the sizes of MovieLens-100K and -1M are used. It takes some
minutes; ``--quick`` only checks that it runs.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, movielens_ratings, one_hot_pairs
from scipy import sparse

from freqfm import FastVAERecommender, FMClassifier, MFRecommender
from freqfm.datasets import make_interactions


def synthetic_ratings(n_users, n_items, n):
    """Return users, items and ratings."""
    X = make_interactions(n_users, n_items, n, random_state=0).tocoo()
    return X.row, X.col, np.random.default_rng(0).integers(1, 6, X.nnz)


def load(args):
    """Return users, items and ratings by the name of the data set."""
    if args.quick:
        return {"synthetic": synthetic_ratings(300, 200, 6_000)}
    if args.data is None:
        return {
            "size of MovieLens-100K": synthetic_ratings(943, 1682, 100_000),
            "size of MovieLens-1M": synthetic_ratings(6040, 3706, 1_000_000),
        }
    return {
        "MovieLens-100K": movielens_100k(args.data)[:3],
        "MovieLens-1M": movielens_ratings(args.data),
    }


def fits(ratings, n_epochs):
    """Return functions of the number of threads that fit, by the name of the model."""
    users, items, values = ratings
    rows, y = one_hot_pairs(users, items), values > 3
    clicks = sparse.csr_array((np.ones(y.sum(), np.float32), (users[y], items[y])))
    common = {"max_iter": n_epochs, "early_stopping": False, "random_state": 0}
    return {
        "FM": lambda n: FMClassifier(n_jobs=n, n_iter_no_change=None, **common).fit(rows, y),
        "MF": lambda n: MFRecommender(n_jobs=n, **common).fit(clicks),
        "VAE": lambda n: FastVAERecommender(n_jobs=n, **common).fit(clicks),
    }


def spin():
    """Keep a core busy until the process is ended."""
    while True:
        sum(range(100_000))


def seconds(fit, n_threads):
    """Return how long a fit takes."""
    start = time.perf_counter()
    fit(n_threads)
    return time.perf_counter() - start


def measure(args):
    """Fit with one thread and with several, in turn; return and print the times."""
    results = []
    print(f"{args.busy} busy processes, {args.epochs} epochs, {args.rounds} rounds; seconds")
    print(f"{'':34}  1 thread  {args.threads} threads  ratio (quartiles)")
    for name, ratings in load(args).items():
        for model, fit in fits(ratings, args.epochs).items():
            times = np.array(
                [[seconds(fit, n) for n in (1, args.threads)] for _ in range(args.rounds)]
            )
            ratios = times[:, 1] / times[:, 0]
            one, several = np.median(times, axis=0)
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            print(
                f"{name + ', ' + model:34}{one:10.3f}{several:11.3f}  "
                f"{middle:5.2f} ({low:.2f} to {high:.2f})",
                flush=True,
            )
            results.append({"data": name, "model": model, "seconds": times.tolist()})
    return results


def main():
    """Read the arguments, keep the machine busy, measure."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads to compare with one")
    parser.add_argument("--busy", type=int, help="busy processes (default: as many as threads)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only try whether it runs")
    args = parser.parse_args()
    args.busy = args.threads if args.busy is None else args.busy
    if args.quick:
        args.rounds = args.epochs = 1
    for fit in fits(synthetic_ratings(100, 50, 1_000), 1).values():
        fit(1)  # Compilation is not counted.
    spinners = [multiprocessing.Process(target=spin, daemon=True) for _ in range(args.busy)]
    for spinner in spinners:
        spinner.start()
    try:
        results = measure(args)
    finally:
        for spinner in spinners:
            spinner.terminate()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"busy": args.busy, "threads": args.threads, "epochs": args.epochs}
    (args.out / "busy_machine.json").write_text(json.dumps({**settings, "results": results}))


if __name__ == "__main__":
    main()
