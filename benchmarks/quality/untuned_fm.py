"""FMClassifier as it is, beside linear models, gradient boosting and myFM, untuned and tuned.

Test AUC, log loss and the seconds of the fit, on the Criteo sample, Frappe and the ratings of
MovieLens-1M. Linear models and factorization machines have one column for every value of a field.
Gradient boosting has one column a field: numbers as they are, and categories as their target
encoding, which scikit-learn fits across folds. "Tuned" means the best of ``GRIDS`` by the log loss
of one held-out tenth of the training rows, then fitted with all of them; the seconds are those of
that fit. myFM (MCMC, 100 samples, rank 16) takes part if it is installed, and xLearn if its
programs are on the PATH, see ``_xlearn.py``.

    python benchmarks/quality/untuned_fm.py --data DIR --out results --tuned
    python benchmarks/quality/untuned_fm.py --data DIR --sets Frappe --models 'FM*' --seeds 3

Runs are kept in ``untuned_fm.json`` and what was chosen in ``untuned_fm_search.jsonl``, both in
``--out``. A model that is there with as many seeds is not run again; ``--again`` does so.
"""

import contextlib
import csv
import gzip
import io
import json
import sys
import time
import warnings
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import movielens_ratings, require_data, table_parser
from _measure import installed
from _runs import Results
from _xlearn import XLearn, has_xlearn
from fm_defaults import criteo, frappe, movielens
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, ShuffleSplit, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, TargetEncoder

from freqfm import FMClassifier
from freqfm._input.validation import count_threads

GRIDS = {
    "FMClassifier": {"alpha_linear": [1.0, 3.0, 10.0, 30.0], "alpha_factors": [1.0, 5.0, 25.0]},
    "LogisticRegression": {"C": [0.01, 0.1, 1.0, 10.0]},
    "HistGradientBoostingClassifier": {
        "histgradientboostingclassifier__learning_rate": [0.05, 0.1, 0.2],
        "histgradientboostingclassifier__max_leaf_nodes": [15, 31, 127],
        "histgradientboostingclassifier__max_iter": [100, 400],
    },
}


def criteo_fields(data):
    """Return 13 numbers and 26 categories of each row, of training and test rows."""
    parts = []
    for files in (["train"], ["dev", "test"]):
        rows = []
        for file in files:
            with gzip.open(data / "criteo-sample" / f"{file}.tsv.gz", "rt", newline="") as lines:
                rows += list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
        numbers = [[float(cell or "nan") for cell in row[1:14]] for row in rows]
        parts.append((np.array(numbers), np.array([row[14:] for row in rows])))
    encoder = OrdinalEncoder(
        min_frequency=10, handle_unknown="use_encoded_value", unknown_value=-1
    ).fit(parts[0][1])
    return [np.hstack([numbers, encoder.transform(words)]) for numbers, words in parts], 13


def frappe_fields(data):
    """Return the ten ids of each row."""
    parts = []
    for part in ("validation", "test"):
        with gzip.open(data / "frappe" / f"frappe.{part}.libfm.gz", "rt") as lines:
            rows = [[int(cell.split(":")[0]) for cell in line.split()[1:]] for line in lines]
        parts.append(np.array(rows, dtype=np.float64))
    return parts, 0


def movielens_fields(data):
    """Return the user and the movie of each row, split as ``movielens_split`` does."""
    users, movies, ratings = movielens_ratings(data)
    train, rest = train_test_split(np.arange(len(ratings)), test_size=0.2, random_state=0)
    _, test = train_test_split(rest, test_size=0.5, random_state=0)
    pairs = np.column_stack([users, movies]).astype(np.float64)
    return [pairs[train], pairs[test]], 0


SETS = {
    "Criteo sample": (criteo, criteo_fields),
    "Frappe": (frappe, frappe_fields),
    "MovieLens-1M ratings": (movielens, movielens_fields),
}


class MyFM:
    """myFM's classifier, as far as this script needs it."""

    def __init__(self, rank, seed):
        from myfm import MyFMClassifier

        self.model = MyFMClassifier(rank=rank, random_seed=seed)

    def fit(self, X, y):
        X = sparse.csr_matrix(X.astype(np.float64))
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            self.model.fit(X, y, n_iter=100, n_kept_samples=80)

    def predict_proba(self, X):
        p = self.model.predict_proba(sparse.csr_matrix(X.astype(np.float64)))
        return np.column_stack([1 - p, p])


def boosting(n_numbers, n_fields, seed):
    """Return gradient boosting of numbers and encoded categories."""
    categories = list(range(n_numbers, n_fields))
    encoder = make_column_transformer(
        (TargetEncoder(random_state=seed), categories), remainder="passthrough"
    )
    return make_pipeline(encoder, HistGradientBoostingClassifier(random_state=seed))


def contenders(n_numbers, n_fields):
    """Return what makes an unfitted model of a seed, by name, and whether it takes fields."""
    makers = {
        "FMClassifier": (lambda seed: FMClassifier(random_state=seed), False),
        "LogisticRegression": (lambda seed: LogisticRegression(max_iter=1000), False),
        "HistGradientBoostingClassifier": (
            lambda seed: boosting(n_numbers, n_fields, seed),
            True,
        ),
    }
    if installed("myfm"):
        makers["myFM's MyFMClassifier"] = (lambda seed: MyFM(16, seed), False)
    if has_xlearn():
        makers["xLearn's FM"] = (lambda seed: XLearn(count_threads(None), seed + 1), False)
    return makers


def choose(model, grid, X, y):
    """Return the best parameters of a grid by the log loss of a held-out tenth of the rows."""
    split = ShuffleSplit(1, test_size=0.1, random_state=0)
    search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=split, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    return {"params": search.best_params_, "n_points": len(search.cv_results_["params"])}


def judge(model, train, test):
    """Return the figures of one fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        model.fit(*train)
        seconds = time.perf_counter() - start
    p = model.predict_proba(test[0])[:, 1]
    return {
        "auc": roc_auc_score(test[1], p),
        "log_loss": log_loss(test[1], p),
        "fit": getattr(model, "seconds", seconds),
    }


def candidates(makers, name, rows, searched, args):
    """Yield what is asked for: name, maker, parameters, training and test rows."""
    wanted = [model for model in makers if any(fnmatch(model, given) for given in args.models)]
    for model in wanted:
        make, takes_fields = makers[model]
        yield f"{model}()", make, {}, *rows[takes_fields]
    for model in wanted:
        if args.tuned and model in GRIDS:
            make, takes_fields = makers[model]
            train, test = rows[takes_fields]
            key = {"data": name, "model": model}
            chosen = searched.run(key, choose, make(0), GRIDS[model], *train)
            more = {key: chosen[key] for key in ("params", "n_points")}
            yield f"{model}, tuned", make, more, train, test


def show(name, runs):
    """Print the means over seeds of one data set."""
    print(f"\n{name}, test")
    print(f"{'':42}{'AUC':>9}{'log loss':>10}{'fit, s':>8}")
    for model, of_seeds in runs.items():
        auc, loss, fit = (np.mean([run[k] for run in of_seeds]) for k in ("auc", "log_loss", "fit"))
        print(f"{model:42}{auc:9.4f}{loss:10.4f}{fit:8.1f}", flush=True)


def main():
    parser = table_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    args = parser.parse_args()
    path = args.out / "untuned_fm.json"
    searched = Results(args.out / "untuned_fm_search.jsonl")
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in args.sets:
        load, load_fields = SETS[name]
        (X, y), (X_test, y_test) = load(require_data(args))
        (F, F_test), n_numbers = load_fields(require_data(args))
        rows = {False: ((X, y), (X_test, y_test)), True: ((F, y), (F_test, y_test))}
        makers = contenders(n_numbers, F.shape[1])
        runs = results.setdefault(name, {})
        for model, make, more, train, test in candidates(makers, name, rows, searched, args):
            if args.search_only or (len(runs.get(model, [])) >= args.seeds and not args.again):
                continue
            judge(make(0), (train[0][:400], train[1][:400]), test)  # compiles
            params = more.get("params", {})
            runs[model] = [
                {
                    **judge(make(seed).set_params(**params) if params else make(seed), train, test),
                    **more,
                }
                for seed in range(args.seeds)
            ]
            path.write_text(json.dumps(results, indent=1))
        show(name, runs)


if __name__ == "__main__":
    main()
