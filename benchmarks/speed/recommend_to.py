"""Lists of all users to Parquet, against the products and the choice of the best in NumPy.

Random vectors of 500,000 users and 100,000 items stand for a trained model: times depend on shapes
only. NumPy multiplies blocks of users with all items and takes the best by ``argpartition``; it
hides nothing and writes nothing. ``recommend_to`` leaves out the 34 items that each user has, and
writes Parquet files. Both take turns on the same part of the users; the times of all users are in
proportion. CPU seconds are those of all threads, and do not depend on what else the machine does.

    python benchmarks/speed/recommend_to.py [--quick] [--users 16384] [--n-jobs 2]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from freqfm import ALSRecommender

K, ROWS_OF_BLOCK = 10, 256


def model_of(n_users, n_items, d, n_jobs, rng):
    """Return a model with random vectors, of users with 34 items each."""
    indices = rng.integers(n_items, size=34 * n_users).astype(np.int32)
    indptr = np.arange(0, len(indices) + 1, 34)
    X = sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), (n_users, n_items))
    X.sum_duplicates()
    X.data[:] = 1
    model = ALSRecommender(d, max_iter=1, random_state=0, n_jobs=n_jobs).fit(X)
    for name in ("user_factors_", "item_factors_"):
        shape = getattr(model, name).shape
        setattr(model, name, rng.standard_normal(shape, dtype=np.float32))
    return model


def in_numpy(model, users, n_threads):
    """Return the best items of users, whether they have them or not."""
    best = np.empty((len(users), K), dtype=np.int64)
    with threadpool_limits(n_threads):
        for begin in range(0, len(users), ROWS_OF_BLOCK):
            some = users[begin : begin + ROWS_OF_BLOCK]
            scores = model.user_factors_[some] @ model.item_factors_.T
            found = np.argpartition(scores, -K, axis=1)[:, -K:]
            order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1)
            best[begin : begin + ROWS_OF_BLOCK] = np.take_along_axis(found, order, axis=1)
    return best


def products_alone(model, users, n_threads):
    """Multiply blocks of users with all items."""
    with threadpool_limits(n_threads):
        for begin in range(0, len(users), ROWS_OF_BLOCK):
            model.user_factors_[users[begin : begin + ROWS_OF_BLOCK]] @ model.item_factors_.T


def to_folder(model, users, n_threads):
    """Write the lists of users to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.recommend_to(folder, users, n_recommendations=K)


def main():
    """Measure, print and write ``recommend_to.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small table, to see that it runs")
    parser.add_argument("--users", type=int, default=16_384, help="how many are measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    args = parser.parse_args()
    n_users, n_items = (2_000, 1_000) if args.quick else (500_000, 100_000)
    rng = np.random.default_rng(0)
    model = model_of(n_users, n_items, args.components, args.n_jobs, rng)
    users = rng.permutation(n_users)[: args.users]
    ways = {"recommend_to": to_folder, "NumPy": in_numpy, "products alone": products_alone}
    to_folder(model, users[:100], args.n_jobs)  # loads and compiles
    times = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            started = time.perf_counter(), time.process_time()
            way(model, users, args.n_jobs)
            ended = time.perf_counter(), time.process_time()
            times[name].append(np.subtract(ended, started))
    seconds = {name: np.median(rounds, axis=0) for name, rounds in times.items()}
    print(f"{n_users:,} users, {n_items:,} items, d = {args.components}, K = {K}")
    print(f"measured on {len(users):,} users, the rest in proportion; ratios are to recommend_to")
    print(f"{'':20}{'s, all':>10}{'CPU s, all':>12}{'ratio':>8}{'of CPU s':>10}")
    for name, found in seconds.items():
        wall, cpu = found * n_users / len(users)
        ratio, ratio_of_cpu = seconds["recommend_to"] / found
        print(f"{name:20}{wall:10.1f}{cpu:12.1f}{ratio:8.2f}{ratio_of_cpu:10.2f}")
    args.out.mkdir(parents=True, exist_ok=True)
    report = {name: found.tolist() for name, found in seconds.items()}
    report |= {"users": len(users), "all users": n_users, "items": n_items}
    (args.out / "recommend_to.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
