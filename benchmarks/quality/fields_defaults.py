"""How the defaults of machines with fields were chosen, and what they reach.

On validation rows, one setting at a time is changed; ``FMClassifier()`` stands beside. Data:
Frappe, ten fields, a fifth of the rows to validate; the sample of Criteo, 39 fields, five folds of
its rows to train on; MovieLens-100K ratings with attributes of users and genres of movies, six
fields, one with several entries in a row, five folds; and MovieLens-1M ratings, two fields. With
``--test`` untuned models are trained on all rows that Frappe has for it, and judged by its test
rows. Figures are means over seeds, and how far seeds are apart.

    python benchmarks/quality/fields_defaults.py --data DIR
    python benchmarks/quality/fields_defaults.py --data DIR --sets Frappe --seeds 3
    python benchmarks/quality/fields_defaults.py --data DIR --test --seeds 5
"""

import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import criteo_rows, data_parser, movielens_100k, movielens_split, require_data
from deepfm_defaults import frappe
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import OneHotEncoder

from freqfm import FFMClassifier, FMClassifier, FwFMClassifier, column_fields
from freqfm.datasets import load_libfm
from freqfm.optimizers import Adam

CHANGES = [
    {},
    {"alpha_fields": 30.0},
    {"alpha_fields": 300.0},
    {"alpha_fields": 1000.0},
    {"field_optimizer": Adam(0.001)},
    {"field_optimizer": Adam(0.01)},
]


def by_place(*rows):
    """Return the field of each column, of rows of one entry for each field, in their order."""
    fields = np.zeros(rows[0].shape[1], dtype=np.int64)
    for X in rows:
        X.sort_indices()
        fields[X.indices] = np.tile(np.arange(np.diff(X.indptr)[0]), X.shape[0])
    return fields


def of_frappe(data):
    """Return pairs of parts, to train on and to validate on, and the field of each column."""
    parts = frappe(data)
    return [parts], by_place(*(X for X, _ in parts))


def of_movielens(data):
    """Return the same of MovieLens-1M ratings."""
    parts = movielens_split(data, 0)[:2]
    return [parts], by_place(*(X for X, _ in parts))


def folds(X, y):
    """Return pairs of parts: five folds."""
    splitter = StratifiedKFold(5, shuffle=True, random_state=0)
    return [[(X[rows], y[rows]) for rows in parts] for parts in splitter.split(y, y)]


def of_criteo(data):
    """Return the same of the sample of Criteo."""
    rows = criteo_rows(data, ["train"])
    return folds(rows.data, rows.target), column_fields(rows.encoder)


def of_attributes(data):
    """Return the same of MovieLens-100K: user, movie, age, gender, occupation and genres."""
    users, movies, ratings = movielens_100k(data)[:3]
    lines = (data / "ml100k" / "u.user").read_text(encoding="latin-1").splitlines()
    people = np.array([line.split("|")[1:4] for line in lines], dtype=object)
    people[:, 0] = people[:, 0].astype(int) // 10
    lines = (data / "ml100k" / "u.item").read_text(encoding="latin-1").splitlines()
    genres = np.array([line.split("|")[5:] for line in lines], dtype=np.float32)
    genres /= np.sqrt(np.maximum(genres.sum(axis=1, keepdims=True), 1))
    encoder = OneHotEncoder(dtype=np.float32)
    X = encoder.fit_transform(np.column_stack([users, movies, people[users]]))
    X = sparse.csr_array(sparse.hstack([X, sparse.csr_array(genres[movies])]))
    fields = column_fields(encoder)
    fields = np.append(fields, np.full(genres.shape[1], fields.max() + 1))
    return folds(X, (np.asarray(ratings) > 3).astype(int)), fields


SETS = {
    "Frappe": of_frappe,
    "Criteo sample": of_criteo,
    "MovieLens-100K with attributes": of_attributes,
    "MovieLens-1M": of_movielens,
}


def judge(model, pairs, n_seeds):
    """Return AUC and log loss, means over seeds and pairs of parts, and their spread over seeds."""
    found = []
    for seed in range(n_seeds):
        of_seed = []
        for (X, y), (X_valid, y_valid) in pairs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.set_params(random_state=seed).fit(X, y)
            p = model.predict_proba(X_valid)[:, 1]
            of_seed.append((roc_auc_score(y_valid, p), log_loss(y_valid, p)))
        found.append(np.mean(of_seed, axis=0))
    return (*np.mean(found, axis=0), *np.ptp(found, axis=0))


def show(name, models, pairs, n_seeds):
    """Print a table of models."""
    print(f"\n{name:52}{'AUC':>8}{'spread':>8}{'log loss':>10}{'spread':>8}")
    for setting, model in models.items():
        auc, loss, auc_spread, loss_spread = judge(model, pairs, n_seeds)
        print(f"{setting:52}{auc:8.4f}{auc_spread:8.4f}{loss:10.4f}{loss_spread:8.4f}", flush=True)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test", action="store_true")
    args = parser.parse_args()
    data = require_data(args)
    if args.test:
        files = [data / "frappe" / f"frappe.{part}.libfm.gz" for part in ("validation", "test")]
        X, y, X_test, y_test = load_libfm(files)
        parts = (X, (y > 0).astype(int)), (X_test, (y_test > 0).astype(int))
        models = {"FMClassifier()": FMClassifier()}
        for cls in (FwFMClassifier, FFMClassifier):
            models[f"{cls.__name__}(fields=...)"] = cls(fields=by_place(X, X_test))
        show("Frappe, test", models, [parts], args.seeds)
        return
    for name in args.sets:
        pairs, fields = SETS[name](data)
        models = {"FMClassifier()": FMClassifier(), "FFMClassifier()": FFMClassifier(fields=fields)}
        models |= {
            str(change or "FwFMClassifier()"): FwFMClassifier(fields=fields, **change)
            for change in CHANGES
        }
        show(f"{name}, validation", models, pairs, args.seeds)


if __name__ == "__main__":
    main()
