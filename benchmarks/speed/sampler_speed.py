"""Microseconds of a draw, seconds of a fit, and distance from the softmax, of every sampler.

Items are unit vectors in clusters, as trained ones are, with counts of a power law; queries have
the length of the inverse temperature. One thread. The cost of MIDX's draws should hardly depend on
the number of items, and its fit should be small against an epoch.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from freqfm._machine import single_threaded_blas
from freqfm.samplers import (
    AOBPR,
    DNS,
    MIDX,
    PRIS,
    Kernel,
    Popularity,
    Sampler,
    SelfAdversarial,
    Uniform,
)

N_CLUSTERS, INVERSE_TEMPERATURE, N_QUERIES = 200, 9, 200

# Bound on the work of a query, for samplers whose cost grows with the items.
_WORK = 20_000_000


def contenders():
    """Return the samplers by the names they are printed under."""
    return {
        "uniform": Uniform(),
        "popularity": Popularity(),
        "midx_uniform": MIDX("uniform"),
        "midx_popularity": MIDX("popularity"),
        "midx_uniform, K=64": MIDX("uniform", n_codewords=64),
        "midx_popularity, K=64": MIDX("popularity", n_codewords=64),
        "midx_exact": MIDX("exact"),
        "kernel, alpha=1": Kernel(1),
        "dns": DNS(),
        "self_adversarial": SelfAdversarial(),
        "aobpr": AOBPR(),
        "pris": PRIS(),
    }


def make_problem(n_items, d, rng):
    """Return item vectors, their counts, and queries."""
    centres = rng.normal(size=(N_CLUSTERS, d)).astype(np.float32)
    items = centres[rng.integers(0, N_CLUSTERS, n_items)]
    items += 0.7 * rng.standard_normal((n_items, d), dtype=np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = centres[rng.integers(0, N_CLUSTERS, N_QUERIES)]
    queries += rng.standard_normal(queries.shape, dtype=np.float32)
    queries *= INVERSE_TEMPERATURE / np.linalg.norm(queries, axis=1, keepdims=True)
    return items, rng.zipf(1.8, n_items), queries


def timed(function, *args, **options):
    """Return the seconds of processor time, of which one thread is all, and the result."""
    start = time.process_time()
    result = function(*args, **options)
    return time.process_time() - start, result


def draw_seconds(sampler, queries, n, repeats):
    """Return the least seconds of a draw. DNS leaves out its log_q, which kernels do not need."""
    rows = queries
    if isinstance(sampler, MIDX) and sampler.variant == "exact":
        rows = queries[: max(1, _WORK // len(sampler.item_vectors_))]
    taken = [timed(Sampler.sample, sampler, rows, n, random_state=1)[0] for _ in range(repeats)]
    return min(taken) / (len(rows) * n)


def kl_divergence(sampler, queries, items):
    """Return the mean KL divergence of the sampler's distribution from the softmax."""
    log_q = sampler.log_proba(queries)
    softmax = log_softmax(queries.astype(float) @ items.T.astype(float), axis=1)
    return float((np.exp(log_q) * (log_q - softmax)).sum(axis=1).mean())


def measure(n_items, d, n, repeats):
    """Print and return the figures of all samplers for one number of items."""
    items, counts, queries = make_problem(n_items, d, np.random.default_rng(0))
    few = queries[: max(1, min(50, _WORK // n_items))]
    print(f"\n{n_items} items, d = {d}, {n} draws for each of {N_QUERIES} queries")
    print(f"  {'':24}{'us/draw':>10}{'fit, s':>9}{'refresh, s':>12}{'KL':>8}")
    results = {}
    for name, sampler in contenders().items():
        fit, _ = timed(sampler.fit, items, counts, random_state=0)
        refresh = fit
        if isinstance(sampler, MIDX):
            with single_threaded_blas():
                refresh, _ = timed(sampler.proposal, counts, items, 1, sampler.proposal_)
        draw = draw_seconds(sampler, queries, n, repeats) * 1e6
        distance = kl_divergence(sampler, few, items)
        results[name] = {"draw": draw, "fit": fit, "refresh": refresh, "divergence": distance}
        print(f"  {name:24}{draw:10.4f}{fit:9.3f}{refresh:12.3f}{distance:8.3f}", flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    parser.add_argument("--draws", type=int, default=1000, help="draws for each query")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few items, one repetition: a test")
    args = parser.parse_args()
    sizes = [(20_000, 32), (100_000, 32), (1_000_000, 32), (1_500_000, 32), (41_000, 200)]
    if args.quick:
        sizes = [(1000, 8), (2000, 8)]
    for sampler in contenders().values():
        sampler.fit(np.ones((2, 2)), random_state=0).sample(np.ones((1, 2)), 1)  # compiles
    results = {
        f"{n_items} x {d}": measure(n_items, d, args.draws, 1 if args.quick else args.repeats)
        for n_items, d in sizes
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "sampler_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
