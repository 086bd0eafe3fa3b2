"""Peak memory of a fit above its input, against what docstrings say.

Every case runs in a separate process: the input is made, then the peak of resident memory during
``fit`` is compared with the resident memory before it. Compiled code is loaded beforehand, by a
small fit of the same kind. The last column is the measured peak divided by the docstring's.

    python benchmarks/robustness/memory.py # 1 million rows, 10 million entries: 2 GB
    python benchmarks/robustness/memory.py --scale 5 --case fm_classifier
    python benchmarks/robustness/memory.py --out results
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _measure import peak, resident

from freqfm import (
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    MFRecommender,
    RaFMClassifier,
    RaFMRegressor,
)
from freqfm.samplers import MIDX

MB = 1e6
N_JOBS = 2
PER_ROW = 10
D = 16
BATCH = 512


def one_hot(n_rows, n_columns, per_row=PER_ROW):
    """Return rows of distinct ones, one in each of ``per_row`` equal groups of columns."""
    rng = np.random.default_rng(0)
    indices = rng.integers(n_columns // per_row, size=(n_rows, per_row), dtype=np.int32)
    indices += np.arange(per_row, dtype=np.int32) * (n_columns // per_row)
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int32)
    data = np.ones(n_rows * per_row, dtype=np.float32)
    return sparse.csr_array((data, indices.ravel(), indptr), shape=(n_rows, n_columns))


def machine(kind, **params):
    """Return a case of a factorization machine: how to make model and input, and the formula."""

    def make(scale):
        X = one_hot(int(1e6 * scale), int(2e5 * scale))
        y = np.arange(X.shape[0]) % (3 if params.get("n_classes") == 3 else 2)
        given = {name: value for name, value in params.items() if name != "n_classes"}
        ranks = {"ranks": (4, 16)} if kind in (RaFMClassifier, RaFMRegressor) else {}
        fixed = {"max_iter": 2, "n_iter_no_change": None, "n_jobs": N_JOBS, "random_state": 0}
        return kind(**ranks, **fixed, **given), (X, y)

    def said(model, X):
        n_outputs = len(model.intercept_)
        factors = getattr(model, "_factors", None)
        factors = model.factors_ if factors is None else factors
        weights = factors.nbytes + model.coef_.nbytes + model.optimizer_state_nbytes_
        stops = len(model.validation_scores_) > 0
        per_row = 40 if stops else 32
        if n_outputs > 1:
            per_row += (10 if stops else 4) * n_outputs
        ranked = kind in (RaFMClassifier, RaFMRegressor)
        per_feature = 20 + 4 * N_JOBS if ranked else 12
        batch = 0 if ranked else int(model.batch_size) * PER_ROW * (12 + 60 * N_JOBS)
        rows = 8 * X.nnz + per_row * X.shape[0]
        return (3 if stops else 2) * weights + rows + per_feature * X.shape[1] + batch

    return make, said


def factorization(**params):
    """Return a case of matrix factorization, see ``machine``."""

    def make(scale):
        X = one_hot(int(2e5 * scale), int(1e5 * scale))
        fixed = {"n_iter_no_change": 99, "n_jobs": N_JOBS, "random_state": 0}
        fixed |= {"optimizer": "adam", "batch_size": BATCH}
        return MFRecommender(D, max_iter=7, **fixed, **params), (X,)

    def said(model, X):
        stops = params.get("early_stopping", False)
        n_rows = sum(X.shape)
        table = 4 * D * n_rows
        copies = 3 * (3 if stops else 2)
        in_epoch = (36 if model.loss in ("directau", "mawu") else 28) * X.nnz
        total = (8 * X.nnz if stops else 0) + 30 * X.shape[0] + 40 * X.shape[1]
        if model.loss == "softmax":
            # Between epochs the default temperature looks at unit vectors.
            in_epoch = max(in_epoch, 8 * X.nnz + table)
            total += 30 * X.shape[0] + 4 * 64 * BATCH
        total += in_epoch
        return total + copies * table

    return make, said


def autoencoder(**params):
    """Return a case of a variational autoencoder, see ``machine``."""
    batch_size, n_draws = 1024, 20

    def make(scale):
        n_users = 2e4 if params["negative_sampler"] == "full" else 1e5
        X = one_hot(int(n_users * scale), int(3e5 * scale))
        fixed = {"n_iter_no_change": 99, "n_jobs": N_JOBS, "random_state": 0}
        if params["negative_sampler"] != "full":
            fixed["n_negatives"] = n_draws
        model = FastVAERecommender(
            D, hidden_layer_sizes=(32,), max_iter=2, batch_size=batch_size, **fixed, **params
        )
        return model, (X,)

    def said(model, X):
        stops = params.get("early_stopping", False)
        copies = 3 * (3 if stops else 2)
        total = copies * 4 * (32 + D + 1) * X.shape[1] + 40 * X.shape[1]
        total += (4 + (8 if stops else 0)) * X.nnz + 16 * X.shape[0]
        if params["negative_sampler"] == "full":
            return total + 4 * 512 * batch_size * N_JOBS
        total += (20 + 8 * N_JOBS) * n_draws * batch_size
        return total + (2 * 4 * D + 100) * X.shape[1]

    return make, said


CASES = {
    "fm_classifier": machine(FMClassifier, early_stopping=False),
    "fm_classifier_stops": machine(FMClassifier, early_stopping=True),
    "fm_three_classes": machine(FMClassifier, early_stopping=False, n_classes=3),
    "fm_three_classes_stops": machine(FMClassifier, early_stopping=True, n_classes=3),
    "fm_regressor": machine(FMRegressor, early_stopping=False),
    "fm_regressor_adam": machine(FMRegressor, early_stopping=False, optimizer="adam"),
    "rafm_classifier": machine(RaFMClassifier, early_stopping=False),
    "rafm_regressor_stops": machine(RaFMRegressor, early_stopping=True),
    "mf_softmax": factorization(loss="softmax", n_negatives=64, early_stopping=False),
    "mf_softmax_stops": factorization(loss="softmax", n_negatives=64, early_stopping=True),
    "mf_bpr": factorization(loss="bpr", early_stopping=False),
    "mf_directau": factorization(loss="directau", early_stopping=False),
    "mf_mawu": factorization(loss="mawu", early_stopping=False),
    "vae_full": autoencoder(negative_sampler="full", early_stopping=False),
    "vae_midx": autoencoder(negative_sampler=MIDX("uniform", n_codewords=16), early_stopping=False),
    "vae_midx_stops": autoencoder(
        negative_sampler=MIDX("uniform", n_codewords=16), early_stopping=True
    ),
}


# One of each kind.
QUICK = ["fm_classifier", "rafm_regressor_stops", "mf_softmax_stops", "mf_mawu", "vae_midx_stops"]


def run(name, scale):
    """Fit a case in this process and print a line of JSON."""
    warnings.simplefilter("ignore")  # two epochs are not meant to converge
    make, said = CASES[name]
    small, arguments = make(0.005)
    small.fit(*arguments)
    model, arguments = make(scale)
    before, start = resident(), time.perf_counter()
    model.fit(*arguments)
    seconds, above = time.perf_counter() - start, peak() - before
    print(json.dumps({"above": above, "said": said(model, arguments[0]), "seconds": seconds}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    parser.add_argument("--out", type=Path, help="folder for results")
    parser.add_argument("--quick", action="store_true", help="few cases, tiny sizes: that it runs")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    scale = 0.01 if args.quick else args.scale
    if args.here:
        run(args.case[0], scale)
        return
    results = {}
    # Freed arrays go back to the system at once, and the next ones count again.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    print(f"{'case':22} {'above the input':>16} {'docstring':>12} {'ratio':>6} {'seconds':>8}")
    for name in args.case or (QUICK if args.quick else CASES):
        command = [sys.executable, __file__, "--here", "--case", name, "--scale", str(scale)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
        result = results[name] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:22} {result['above'] / MB:13.1f} MB {result['said'] / MB:9.1f} MB "
            f"{result['above'] / result['said']:6.2f} {result['seconds']:8.1f}",
            flush=True,
        )
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "memory.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
