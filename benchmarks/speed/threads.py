"""Seconds an epoch with one thread, two, four, and so on up to all cores.

Nothing but freqfm is needed; all data are synthetic. Numbers of threads take turns, epoch by epoch,
so that a disturbance meets all of them. Printed are the machine, and for each number of threads the
median seconds, the quartiles in per cent of it, and how many times faster the median is than that
of one thread.

    python benchmarks/speed/threads.py --out results

It takes about five minutes on eight cores.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _epochs import Epochs, power_law_rows

import freqfm
from freqfm import FastVAERecommender, FMClassifier, MFRecommender
from freqfm._machine import cores


def fm(n_threads, scale, tokens):
    """Return epochs of a factorization machine on rows of so many tokens."""
    X = power_law_rows(int(2e6 * scale) // tokens, 100_000, tokens)
    y = np.random.default_rng(1).integers(2, size=X.shape[0])
    return Epochs(FMClassifier(early_stopping=False, random_state=0, n_jobs=n_threads), X, y)


def mf(n_threads, scale, **params):
    """Return epochs of matrix factorization."""
    X = power_law_rows(int(1e4 * scale), 20_000, 20)
    return Epochs(MFRecommender(random_state=0, n_jobs=n_threads, **params), X)


def vae(n_threads, scale, **params):
    """Return epochs of a variational autoencoder."""
    X = power_law_rows(int(5e3 * scale), 20_000, 20)
    model = FastVAERecommender(batch_size=256, random_state=0, n_jobs=n_threads, **params)
    return Epochs(model, X)


def recommend(n_threads, scale):
    """Return calls that rank all items for some users."""
    X = power_law_rows(int(2e3 * scale), 50_000, 20)
    model = MFRecommender(loss="bpr", max_iter=1, early_stopping=False, random_state=0)
    model.set_params(n_jobs=n_threads).fit(X)

    def call():
        start = time.perf_counter()
        model.recommend(users=np.arange(X.shape[0]), n_recommendations=20)
        return time.perf_counter() - start

    return call


CASES = {
    "FM, rows of 2 tokens": lambda n, scale: fm(n, scale, 2),
    "FM, rows of 10 tokens": lambda n, scale: fm(n, scale, 10),
    "FM, rows of 39 tokens": lambda n, scale: fm(n, scale, 39),
    "BSL": lambda n, scale: mf(n, 2 * scale),
    "softmax": lambda n, scale: mf(n, 2 * scale, loss="softmax"),
    "softmax, 256 negatives": lambda n, scale: mf(
        n, scale, loss="softmax", n_negatives=256, batch_size=2048
    ),
    "BPR": lambda n, scale: mf(n, 5 * scale, loss="bpr"),
    "VAE, full softmax": lambda n, scale: vae(n, scale, negative_sampler="full"),
    "VAE, 200 negatives": lambda n, scale: vae(
        n, scale, negative_sampler="midx_uniform", n_negatives=200
    ),
    "recommend()": recommend,
}


def machine():
    """Return what describes this machine."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "processor": model,
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "freqfm": freqfm.__version__,
        "load": load,
    }


def measure(make, counts, rounds, scale):
    """Return the seconds of each round, by the number of threads."""
    calls = {n: make(n, scale) for n in counts}
    for call in calls.values():
        call()
    seconds = {n: [] for n in counts}
    for _ in range(rounds):
        for n, call in calls.items():
            seconds[n].append(call())
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--quick", action="store_true", help="little data: that it runs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    args = parser.parse_args()
    rounds, scale = (2, 0.02) if args.quick else (args.rounds, 1)
    counts = sorted({2**k for k in range(10) if 2**k <= cores()} | {cores()})
    results = {"machine": machine(), "seconds": {}}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    print(f"\n{'':24}{'threads':>8}{'median':>11}{'quartiles':>16}{'faster':>9}")
    for name in args.case or CASES:
        seconds = results["seconds"][name] = measure(CASES[name], counts, rounds, scale)
        for n, taken in seconds.items():
            low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75])
            spread = f"{100 * (low / middle - 1):+.0f} {100 * (high / middle - 1):+.0f} %"
            faster = np.median(seconds[1]) / middle
            print(f"{name if n == 1 else '':24}{n:8}{middle:9.4f} s{spread:>16}{faster:8.2f}x",
                  flush=True)  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "threads.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
