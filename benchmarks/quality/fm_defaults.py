"""Factorization machines with default parameters, against linear models on the same columns.

Untuned ``FMClassifier()`` and ``RaFMClassifier()`` beside ``LogisticRegression()``, and the
regressors beside ``Ridge()``, on small and large data: test AUC and log loss, or R^2. Each seed
draws other training rows; the test rows are the same for all.

    python benchmarks/quality/fm_defaults.py --data DIR
    python benchmarks/quality/fm_defaults.py --data DIR --quick
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import criteo_rows, data_parser, movielens_split, require_data
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from freqfm import FMClassifier, FMRegressor, RaFMClassifier, RaFMRegressor
from freqfm.datasets import load_libfm, make_clicks


def criteo(data):
    """Return the 7,200 training rows, and the development and test rows together."""
    train = criteo_rows(data, ["train"])
    test = criteo_rows(data, ["dev", "test"], train.encoder)
    return (train.data, train.target), (test.data, test.target)


def frappe(data):
    """Return the rows of Frappe's validation file and those of its test file."""
    files = [data / "frappe" / f"frappe.{part}.libfm.gz" for part in ("validation", "test")]
    X, y, X_test, y_test = load_libfm(files)
    return (X, (y > 0).astype(int)), (X_test, (y_test > 0).astype(int))


def movielens(data, **label):
    """Return the training and the test part of the MovieLens-1M ratings."""
    train, _, test = movielens_split(data, 0, **label)
    return train, test


def clicks(data):
    """Return synthetic clicks."""
    X, y = make_clicks(60_000, (300, 200, 50, 20), random_state=5)
    return (X[:40_000], y[:40_000]), (X[40_000:], y[40_000:])


def dense(data):
    """Return ten numbers per row: two have an effect by themselves, two by their product."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((30_000, 10)).astype(np.float32)
    y = X[:, 0] - 0.5 * X[:, 1] + X[:, 2] * X[:, 3] + rng.standard_normal(30_000)
    return (X[:10_000], y[:10_000]), (X[10_000:], y[10_000:])


def dense_classes(data):
    """Return the same rows, and whether their targets are positive."""
    return tuple((X, (y > 0).astype(int)) for X, y in dense(data))


def ratings(data):
    """Return MovieLens with the centred ratings as targets."""
    return movielens(data, label=lambda ratings: ratings - 3.0)


# Which data, and how many rows to train on; None is all of them.
CLASSES = [
    (criteo, [None]),
    (frappe, [1000, 3000, 10_000, None]),
    (movielens, [1000, 3000, 10_000, None]),
    (clicks, [1000, 5000, None]),
    (dense_classes, [1000, None]),
]
TARGETS = [(dense, [1000, None]), (ratings, [3000, 10_000, None])]


def score(model, train, test):
    """Return AUC and log loss, or R^2, and the seconds of the fit."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*train)
    seconds = time.perf_counter() - started
    X, y = test
    if not hasattr(model, "predict_proba"):
        return r2_score(y, model.predict(X)), seconds
    p = model.predict_proba(X)[:, 1]
    return roc_auc_score(y, p), log_loss(y, p), seconds


def compare(sets, models, measures, args):
    """Print the means over the seeds, and the standard deviation of differences from the first."""
    print(f"{'':24}" + "".join(f"{type(m(0)).__name__:>34}" for m in models))
    print(f"{'':24}" + f"{measures + '  seconds':>34}" * len(models))
    for load, sizes in sets:
        train, test = load(require_data(args))
        for n in sizes:
            n_rows = len(train[1]) if n is None else n
            if args.quick and n_rows > 10_000:
                continue
            found = []
            for seed in range(args.seeds):
                rows = np.arange(len(train[1]))
                if n is not None:
                    rows = np.random.default_rng(seed).choice(rows, n, replace=False)
                part = train[0][rows], train[1][rows]
                found.append([score(model(seed), part, test) for model in models])
            found = np.array(found)
            means = found.mean(axis=0)
            spread = (found - found[:, :1]).std(axis=0)
            cells = [
                "  ".join(
                    f"{m:.4f}" + (f"±{s:.4f}" if k else "")
                    for m, s in zip(mean[:-1], sd[:-1], strict=True)
                )
                + f"{mean[-1]:7.1f}"
                for k, (mean, sd) in enumerate(zip(means, spread, strict=True))
            ]
            name = f"{load.__name__} {n_rows:,}"
            print(f"{name:24}" + "".join(f"{cell:>34}" for cell in cells), flush=True)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 10,000 rows, two seeds")
    parser.add_argument("--seeds", type=int, help="how many (default: 5)")
    args = parser.parse_args()
    args.seeds = args.seeds or (2 if args.quick else 5)
    linear = LogisticRegression(max_iter=1000)
    models = [
        lambda seed: linear,
        lambda seed: FMClassifier(random_state=seed),
        lambda seed: RaFMClassifier(random_state=seed),
    ]
    compare(CLASSES, models, "test AUC, log loss", args)
    print()
    models = [
        lambda seed: Ridge(),
        lambda seed: FMRegressor(random_state=seed),
        lambda seed: RaFMRegressor(random_state=seed),
    ]
    compare(TARGETS, models, "test R^2", args)


if __name__ == "__main__":
    main()
