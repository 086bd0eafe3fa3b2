"""Machines as they are, against linear models, on noisy targets and on small and large clicks.

The noisy targets are made: three one-hot fields with additive effects, of which each row tells
little. "spend" is log(1 + the amount) of the few rows that buy, "amounts" the amount itself and a
twentieth of it, "counts" are Poisson counts of mean 2, "clicks" tell who buys, and of "rare clicks"
there are a hundredth; a quarter of the rows is the test. Linear models have their defaults, another
penalty that is often taken, and the best of several on the test, which no user knows. "at full
rates" is the same machine whose last epochs do not settle. Means over seeds, with the standard
deviation of the difference to the linear model that is named, and the CPU seconds of the fits.

    python benchmarks/quality/settling.py --data DIR
    python benchmarks/quality/settling.py --data DIR --quick
"""

import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, one_hot_pairs, require_data
from fm_defaults import criteo, frappe, movielens
from scipy import sparse
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder

from freqfm import FMClassifier, FMRegressor
from freqfm.estimators.fm import base

ALPHAS = {
    Ridge: (1, 10, 30, 100, 300, 1000),
    PoissonRegressor: (1e-4, 1e-3, 1e-2, 0.1, 1),
    LogisticRegression: (0.01, 0.03, 0.1, 0.3, 1),
}
CS = {"C=1": {}, "C=.1": {"C": 0.1}}
WEIGHTS = {None: "", "balanced": ", balanced"}


def noisy(n, kind, seed):
    """Return training and test rows of three fields, and their targets."""
    rng = np.random.default_rng(seed)
    ids = [rng.zipf(1.3, n) % 2000, rng.zipf(1.3, n) % 300, rng.integers(24, size=n)]
    score = sum(0.4 * rng.normal(size=of.max() + 1)[of] for of in ids)
    buys = rng.random(n) < 1 / (1 + np.exp((5 if kind == "rare clicks" else 3.2) - score))
    amount = np.where(buys, rng.gamma(2, 10, n), 0.0)
    y = {
        "clicks": lambda: buys.astype(int),
        "rare clicks": lambda: buys.astype(int),
        "spend": lambda: np.log1p(amount),
        "amounts": lambda: amount,
        "amounts / 20": lambda: amount / 20,
        "counts": lambda: rng.poisson(2 * np.exp(score - score.mean())),
    }[kind]()
    X = sparse.csr_array(OneHotEncoder().fit_transform(np.column_stack(ids)))
    cut = n * 3 // 4
    return (X[:cut], y[:cut]), (X[cut:], y[cut:])


def ratings(data, seed):
    """Return four fifths of the ratings of MovieLens-100K, and the others."""
    users, movies, stars, *_ = movielens_100k(data)
    X, y = sparse.csr_array(one_hot_pairs(users, movies)), np.asarray(stars, dtype=np.float64)
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed)
    return (X[train], y[train]), (X[test], y[test])


def sets(data, quick):
    """Yield name, function of a seed, machine, linear model and its penalties."""
    for n in (20_000,) if quick else (20_000, 120_000):
        for kind in ("spend", "counts"):
            made = partial(noisy, n, kind)
            yield f"{kind} {n:,}", made, FMRegressor, {}, Ridge, {"Ridge(10)": {"alpha": 10}}
        for kind in ("amounts", "amounts / 20", "counts"):
            linear = {"alpha=1": {}, "alpha=.001": {"alpha": 1e-3}}
            poisson = {"loss": "poisson"}
            made = partial(noisy, n, kind)
            yield f"{kind} {n:,}, poisson", made, FMRegressor, poisson, PoissonRegressor, linear
        for weight, balanced in WEIGHTS.items():
            of_classes = FMClassifier, {"class_weight": weight}, LogisticRegression, CS
            for kind in ("clicks", "rare clicks"):
                yield f"{kind} {n:,}{balanced}", partial(noisy, n, kind), *of_classes
    for weight, balanced in WEIGHTS.items():
        of_classes = FMClassifier, {"class_weight": weight}, LogisticRegression, CS
        yield f"Criteo sample{balanced}", lambda seed: criteo(data), *of_classes
    ridge = {"Ridge(10)": {"alpha": 10}}
    yield "MovieLens-100K", partial(ratings, data), FMRegressor, {}, Ridge, ridge
    if not quick:
        yield "Frappe", lambda seed: frappe(data), FMClassifier, {}, None, {}
        yield "MovieLens-1M clicks", lambda seed: movielens(data), FMClassifier, {}, None, {}


def judge(model, train, test):
    """Return the R^2 or the AUC of a model, and the CPU seconds of its fit."""
    start = time.process_time()
    model.fit(*train)
    seconds = time.process_time() - start
    if hasattr(model, "decision_function"):
        return roc_auc_score(test[1], model.decision_function(test[0])), seconds
    return r2_score(test[1], model.predict(test[0])), seconds


def run(load, cls, options, linear, named, seed):
    """Return the figures of a seed: both machines, the named linear models, the best of them."""
    train, test = load(seed)
    found, most = {}, base._MOST_SETTLING
    for name, n_settling in (("default", most), ("at full rates", 0)):
        base._MOST_SETTLING = n_settling
        found[name] = judge(cls(random_state=seed, n_jobs=1, **options), train, test)
    base._MOST_SETTLING = most
    if linear is None:
        return found
    same = {"class_weight": options["class_weight"]} if "class_weight" in options else {}
    more = {} if linear is Ridge else {"max_iter": 1000}
    key = "C" if linear is LogisticRegression else "alpha"
    for name, penalty in named.items():
        found[name] = judge(linear(**penalty, **same, **more), train, test)
    every = [judge(linear(**{key: a}, **same, **more), train, test) for a in ALPHAS[linear]]
    found["best of all"] = max(every)
    return found


def show(name, runs):
    """Print the means of one data set."""
    print(name)
    ours = np.array([run["default"][0] for run in runs])
    for model in runs[0]:
        values, seconds = np.array([run[model] for run in runs]).T
        gain = ours - values
        spread = gain.std(ddof=1) if len(gain) > 1 else 0.0
        more = "" if model == "default" and not gain.any() else f"{gain.mean():+.4f} ±{spread:.4f}"
        print(f"    {model:16}{values.mean():8.4f}{more:>18}{seconds.mean():8.2f} s", flush=True)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--only", default="", help="data sets whose names begin with this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small data, one seed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    judge(FMRegressor(max_iter=1), *noisy(1000, "spend", 0))  # compiles
    for name, *of_set in sets(require_data(args), args.quick):
        if name.startswith(args.only):
            show(name, [run(*of_set, seed) for seed in range(1 if args.quick else args.seeds)])


if __name__ == "__main__":
    main()
