"""Seconds an epoch against rows, columns, vectors' length, negatives and items.

Each sweep changes one size and leaves the others as they are. The table has the median seconds of a
few epochs, and the slope between neighbours in a plot whose axes are logarithmic: 1 where time is
proportional to the size, less where other work prevails. Rows and histories are synthetic, with
popularities by a power law.

    python benchmarks/robustness/growth.py --out results --figure docs/images/growth.svg
    python benchmarks/robustness/growth.py --largest 1e7          # entries; 10^8 take 6 GB
    python benchmarks/robustness/growth.py --from results/growth.json --figure growth.svg

It takes about ten minutes on two free cores.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _epochs import Epochs, power_law_rows

from freqfm import FastVAERecommender, FMClassifier, MFRecommender
from freqfm.samplers import MIDX


def fm(n_jobs, rows, columns, d, tokens):
    """Return epochs of a factorization machine."""
    X = power_law_rows(rows, columns, tokens)
    y = np.random.default_rng(1).integers(2, size=rows)
    return Epochs(FMClassifier(d, early_stopping=False, random_state=0, n_jobs=n_jobs), X, y)


def softmax(n_jobs, users, items, interactions, d, negatives):
    """Return epochs of matrix factorization by a sampled softmax of cosines."""
    X = power_law_rows(users, items, interactions // users)
    model = MFRecommender(
        d, loss="softmax", temperature=0.1, n_negatives=negatives, batch_size=2048,
        random_state=0, n_jobs=n_jobs,
    )  # fmt: skip
    return Epochs(model, X)


def bpr(n_jobs, users, items, interactions, d):
    """Return epochs of matrix factorization by BPR, users in proportion to interactions."""
    X = power_law_rows(min(users, interactions // 10), items, interactions // users or 10)
    return Epochs(MFRecommender(d, loss="bpr", random_state=0, n_jobs=n_jobs), X)


def vae(n_jobs, users, items, per_user, negatives, d=32):
    """Return epochs of a variational autoencoder that draws negatives from codebooks."""
    X = power_law_rows(users, items, per_user)
    model = FastVAERecommender(
        d, hidden_layer_sizes=(64,), negative_sampler=MIDX("uniform", n_codewords=16),
        n_negatives=negatives, batch_size=256, random_state=0, n_jobs=n_jobs,
    )  # fmt: skip
    return Epochs(model, X)


def powers(first, last):
    """Return the powers of ten from ``10 ** first`` to ``10 ** last``."""
    return [10**k for k in range(first, last + 1)]


#: By title: how to make epochs, the sizes that stay, and for each size the values that it takes.
SWEEPS = {
    "factorization machine": (
        fm,
        {"rows": 100_000, "columns": 100_000, "d": 16, "tokens": 10},
        {
            "rows": powers(3, 7),
            "columns": powers(2, 7),
            "d": [4, 8, 16, 32, 64, 128, 256],
            "tokens": [2, 5, 10, 20, 50, 100, 200],
        },
    ),
    "softmax": (
        softmax,
        {"users": 10_000, "items": 10_000, "interactions": 100_000, "d": 32, "negatives": 256},
        {
            "interactions": powers(5, 6),
            "users": powers(2, 5),
            "items": powers(3, 6),
            "d": [8, 16, 32, 64, 128, 256],
            "negatives": [16, 64, 256, 1024, 4096],
        },
    ),
    "BPR": (
        bpr,
        {"users": 100_000, "items": 100_000, "interactions": 1_000_000, "d": 32},
        {
            "interactions": powers(4, 8),
            "users": powers(4, 5),
            "items": powers(2, 6),
            "d": [8, 16, 32, 64, 128, 256],
        },
    ),
    "variational autoencoder": (
        vae,
        {"users": 5_000, "items": 10_000, "per_user": 20, "negatives": 100},
        {
            "users": powers(3, 5),
            "items": powers(3, 6),
            "negatives": [10, 30, 100, 300, 1000, 3000],
        },
    ),
}


def seconds_of(epochs, n_epochs, most):
    """Return the median seconds of a few epochs, fewer if they take longer than ``most``."""
    epochs()  # compiles, and touches all memory for the first time
    taken = []
    while len(taken) < n_epochs and sum(taken) < most:
        taken.append(epochs())
    return float(np.median(taken))


def sweep(make, fixed, name, values, args):
    """Print and return the values of a size and the seconds of an epoch."""
    points = []
    for value in values:
        sizes = {**fixed, name: value}
        seconds = seconds_of(make(args.n_jobs, **sizes), args.epochs, args.most)
        slope = ""
        if points:
            before, earlier = points[-1]
            slope = f"{np.log(seconds / earlier) / np.log(value / before):8.2f}"
        points.append((value, seconds))
        print(f"  {name:14}{value:12,}{seconds:11.4f} s{slope}", flush=True)
    return points


def n_entries(sizes):
    """Return how many entries the rows or histories have."""
    if "interactions" in sizes:
        return sizes["interactions"]
    return sizes.get("rows", sizes.get("users")) * sizes.get("tokens", sizes.get("per_user"))


def draw(results, path):
    """Draw the sweeps with logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "growth", "svg.fonttype": "none"}
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for ax, (title, sweeps) in zip(axes.flat, results.items(), strict=True):
        for name, points in sweeps.items():
            ax.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        limits = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}
        # Lines of slope 1, for comparison; NaN ends a line.
        ends = np.array([*limits["xlim"], np.nan])
        guides = np.ravel([ends * 10.0**k for k in range(-10, 2)])
        ax.loglog(np.tile(ends, 12), guides, color="0.85", linewidth=0.7, zorder=0)
        ax.minorticks_off()
        ax.set(title=title, ylabel="seconds an epoch", **limits)
        ax.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--most", type=float, default=4.0, help="seconds for the epochs of a point")
    parser.add_argument("--largest", type=float, default=1e8, help="entries of the largest input")
    parser.add_argument("--quick", action="store_true", help="two tiny values each: that it runs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    parser.add_argument("--figure", type=Path, help="file for the figure")
    parser.add_argument("--from", dest="source", type=Path, help="draw these results again")
    args = parser.parse_args()
    if args.source:
        draw(json.loads(args.source.read_text()), args.figure)
        return
    if args.quick:
        args.epochs, args.largest = 1, 2e4
    results, start = {}, time.perf_counter()
    for title, (make, fixed, sizes) in SWEEPS.items():
        if args.quick:
            fixed = {name: min(value, 1000 if name != "interactions" else 10_000)
                     for name, value in fixed.items()}  # fmt: skip
        print(f"\n{title}: {', '.join(f'{k}={v:,}' for k, v in fixed.items())}")
        results[title] = {}
        for name, values in sizes.items():
            fit = [v for v in values if n_entries({**fixed, name: v}) <= args.largest]
            fit = fit[:2] if args.quick else fit
            results[title][name] = sweep(make, fixed, name, fit, args)
    print(f"\n{time.perf_counter() - start:.0f} seconds in all")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "growth.json").write_text(json.dumps(results))
    if args.figure:
        draw(results, args.figure)


if __name__ == "__main__":
    main()
