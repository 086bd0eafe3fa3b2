"""FMClassifier as it is, on small click data, against LogisticRegression with the best of four C.

Test AUC and log loss, on parts of the Criteo sample, Frappe, MovieLens-100K and MovieLens-1M
(ratings above 3 as clicks). Each fold draws its training rows, stratified by class, and tests on
others, 20,000 at most; the Criteo sample as a whole is cross-validated. Beside the default, which
chooses its penalties, are the penalties that it has without a choice. Of LogisticRegression the
table has the best AUC and the best log loss of all C, which its user would have to find. The
difference from them has the standard error of paired differences over the folds, and a star where
it is worse by more than that. Seconds are of the CPU, by one thread.

    python benchmarks/quality/small_clicks.py --data DIR
    python benchmarks/quality/small_clicks.py --data DIR --quick

``--model`` takes the name of another classifier, such as RaFMClassifier.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, movielens_ratings, one_hot_pairs, require_data
from fm_defaults import criteo, frappe
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

import freqfm

CS = (0.01, 0.1, 1, 10)
MOST_TESTED = 20_000
# How many rows to train on; None cross-validates all of them.
SIZES = {
    "Criteo sample": (500, 2000, None),
    "Frappe": (500, 2000, 8000, 30_000, 60_000),
    "MovieLens-100K": (500, 2000, 8000, 30_000),
    "MovieLens-1M": (100_000,),
}


def whole(data, name):
    """Return all rows of a data set, and their classes."""
    if name in ("Criteo sample", "Frappe"):
        parts = (criteo if name == "Criteo sample" else frappe)(data)
        X, y = zip(*parts, strict=True)
        return sparse.csr_array(sparse.vstack(X)), np.concatenate(y)
    load = movielens_100k if name == "MovieLens-100K" else movielens_ratings
    users, movies, ratings, *_ = load(data)
    return one_hot_pairs(users, movies), (ratings > 3).astype(int)


def splits(X, y, n, n_folds):
    """Return the training and test rows of each fold."""
    if n is None:
        return StratifiedKFold(n_folds, shuffle=True, random_state=0).split(X, y)
    n_test = min(MOST_TESTED, len(y) - n)
    options = {"train_size": n, "test_size": n_test, "random_state": 0}
    return StratifiedShuffleSplit(n_folds, **options).split(X, y)


def judge(model, X, y, train, test):
    """Return the AUC, the log loss and the CPU seconds of the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.process_time()
        model.fit(X[train], y[train])
        seconds = time.process_time() - start
    p = model.predict_proba(X[test])[:, 1]
    return roc_auc_score(y[test], p), log_loss(y[test], p), seconds


def compare(cls, X, y, n, n_folds):
    """Return (n_models, n_folds, 3) figures, and the penalties that were chosen."""
    found, chosen = [], []
    for fold, rows in enumerate(splits(X, y, n, n_folds)):
        model = cls(random_state=fold, n_jobs=1)
        linear, factors = cls._usual_penalties
        fixed = cls(alpha_linear=linear, alpha_factors=factors, random_state=fold, n_jobs=1)
        rivals = [LogisticRegression(C=C, max_iter=1000) for C in CS]
        found.append([judge(each, X, y, *rows) for each in (model, fixed, *rivals)])
        chosen.append((model.alpha_linear_, model.alpha_factors_))
    return np.array(found).swapaxes(0, 1), chosen


def difference(ours, rivals, sign):
    """Return the best rival's mean, and the difference with its standard error, as text."""
    best = rivals[np.argmax(sign * rivals.mean(axis=1))]
    gain = sign * (ours - best)
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    star = "*" if gain.mean() < -error else " "
    return best.mean(), f"{gain.mean():+.4f} ±{error:.4f}{star}"


def show(name, found, chosen):
    """Print a row of the table."""
    (auc, loss, seconds), (_, _, before) = (of.T for of in found[:2])
    fixed = found[1].mean(axis=0)
    best_auc, more = difference(auc, found[2:, :, 0], 1)
    best_loss, less = difference(loss, found[2:, :, 1], -1)
    pairs = ", ".join(
        f"{linear:g}/{factors:g} x{chosen.count((linear, factors))}"
        for linear, factors in sorted(set(chosen))
    )
    print(
        f"{name:24}{auc.mean():.4f} / {loss.mean():.4f}   {fixed[0]:.4f} / {fixed[1]:.4f}   "
        f"{best_auc:.4f} / {best_loss:.4f}  {more:>17}  {less:>17}  "
        f"{seconds.mean():6.2f} {before.mean():6.2f}  {pairs}",
        flush=True,
    )


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--model", default="FMClassifier", help="a classifier without fields")
    parser.add_argument("--folds", type=int, help="how many (default: 5)")
    parser.add_argument("--quick", action="store_true", help="at most 2,000 rows, two folds")
    args = parser.parse_args()
    cls, n_folds = getattr(freqfm, args.model), args.folds or (2 if args.quick else 5)
    print(
        f"{'AUC / log loss':24}{'chosen':>15}   {'fixed':>15}   {'logistic, best':>15}"
        f"  {'AUC':>17}  {'log loss':>17}  seconds, fixed  penalties"
    )
    for name in args.sets:
        X, y = whole(require_data(args), name)
        judge(cls(max_iter=2, n_jobs=1), X, y, np.arange(600), np.arange(600))  # compiles
        for n in SIZES[name]:
            if not args.quick or (n is not None and n <= 2000):
                size = "all" if n is None else f"{n:,}"
                show(f"{name} {size}", *compare(cls, X, y, n, n_folds))


if __name__ == "__main__":
    main()
