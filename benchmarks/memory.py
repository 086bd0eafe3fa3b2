"""Peak memory of a fit above its input, against what docstrings say.

Every case runs in a separate process: the input is made, then the peak of resident memory after
``fit`` is compared with the resident memory before it. Compiled code is loaded beforehand, by a
small fit of the same kind.

    python benchmarks/memory.py            # 5 million rows, 50 million entries; needs 3 GB
    python benchmarks/memory.py --scale 0.1
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

from freqfm import FastVAERecommender, FMClassifier, MFRecommender

MB = 1e6
N_JOBS = 2


def one_hot(n_rows, n_columns, per_row):
    """Return rows of distinct ones, one in each of ``per_row`` equal groups of columns."""
    rng = np.random.default_rng(0)
    indices = rng.integers(n_columns // per_row, size=(n_rows, per_row), dtype=np.int32)
    indices += np.arange(per_row, dtype=np.int32) * (n_columns // per_row)
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int32)
    data = np.ones(n_rows * per_row, dtype=np.float32)
    return sparse.csr_array((data, indices.ravel(), indptr), shape=(n_rows, n_columns))


def fm(scale, early_stopping):
    """Return estimator, input, and the bytes of the docstring."""
    n, m, per_row = int(5e6 * scale), int(1e6 * scale), 10
    X, y = one_hot(n, m, per_row), np.arange(n) % 2
    model = FMClassifier(max_iter=1, early_stopping=early_stopping, n_jobs=N_JOBS, random_state=0)
    weights = 4 * (16 + 1) * m + 4 * m
    copies, bytes_per_row = (3, 50) if early_stopping else (2, 40)
    return model, (X, y), copies * weights + 8 * X.nnz + bytes_per_row * n + (12 + 4 * N_JOBS) * m


def mf(scale):
    """Return estimator, input, and the bytes of the docstring."""
    n, m = int(1e6 * scale), int(2e5 * scale)
    X = one_hot(n, m, 10)
    model = MFRecommender(16, max_iter=1, n_jobs=N_JOBS, random_state=0)
    return model, (X,), 6 * 4 * 16 * (n + m) + 40 * X.nnz + 100 * n


def vae(scale):
    """Return estimator, input, and the bytes of the docstring."""
    n, m = int(1e6 * scale), int(2e5 * scale)
    X = one_hot(n, m, 10)
    model = FastVAERecommender(
        16, hidden_layer_sizes=(16,), max_iter=1, early_stopping=False, batch_size=4096,
        n_negatives=50, n_jobs=N_JOBS, random_state=0,
    )  # fmt: skip
    return model, (X,), 6 * 4 * 33 * m + 24 * X.nnz


CASES = {
    "fm": lambda scale: fm(scale, False),
    "fm_early_stopping": lambda scale: fm(scale, True),
    "mf": mf,
    "vae": vae,
}


def peak():
    """Return the peak of this process's resident memory in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident():
    """Return this process's resident memory in bytes, or its peak if the system only has that."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak()
    return pages * resource.getpagesize()


def run(name, scale):
    """Fit a case in this process and print a line of JSON."""
    warnings.simplefilter("ignore")  # an epoch is not meant to converge
    small, arguments, _ = CASES[name](2e-4)
    small.fit(*arguments)
    model, arguments, said = CASES[name](scale)
    before, start = resident(), time.perf_counter()
    model.fit(*arguments)
    seconds = time.perf_counter() - start
    print(json.dumps({"above": peak() - before, "said": said, "seconds": seconds}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--case", choices=CASES, help="run this one, in this process")
    args = parser.parse_args()
    if args.case:
        run(args.case, args.scale)
        return
    print(f"{'case':20} {'above the input':>16} {'docstring':>12} {'seconds':>8}")
    for name in CASES:
        command = [sys.executable, __file__, "--case", name, "--scale", str(args.scale)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:20} {result['above'] / MB:13.0f} MB {result['said'] / MB:9.0f} MB "
            f"{result['seconds']:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
