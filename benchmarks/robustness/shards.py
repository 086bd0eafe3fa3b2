"""Quality of models that four shards train on a Dask cluster, and how the merging was chosen.

    python benchmarks/robustness/shards.py --data DIR --part choose
    python benchmarks/robustness/shards.py --data DIR --part test

``choose`` compares factors by which the steps of merges grow, on the validation parts of Frappe and
of the MovieLens-1M ratings, and on those of its clicks the part of the epochs after which merges
are means; three seeds each. ``test`` prints the test figures of the package's own values. One
machine trains factorization machines as by default, and the best epoch is kept; shards train for at
most twice that epoch. Recommenders train for ``--epochs`` on one machine, and for twice as many
with shards. Finished fits are kept in ``shards.jsonl`` in ``--out``, and one that is there is
skipped.
"""

import sys
import warnings
from itertools import pairwise
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, frappe_split, movielens_split, require_data
from _runs import Results

import freqfm
import freqfm.dask as fdask
from freqfm.dask import _mf
from freqfm.metrics import ndcg_at_k

N_SHARDS, K = 4, 20
DATA_SETS = {"Frappe": "AUC", "MovieLens ratings": "AUC", "MovieLens clicks": "NDCG@20"}

# For each metric: the trainer, its attribute that is chosen, and the values compared.
CHOICES = {
    "AUC": (fdask.FMClassifier._trainer, "_growth", (1.05, 1.1, 1.2, 1.0, 1.4)),
    "NDCG@20": (_mf.ShardedMFTrainer, "_long_part", (0.75, 0.8, 0.85, 1.0, 0.5, 0.0)),
}
CHOSEN = {metric: getattr(trainer, name) for metric, (trainer, name, _) in CHOICES.items()}

# Fewer components and negatives than the defaults, for short fits.
MF = {"n_components": 32, "n_negatives": 128}


def in_blocks(X, n_blocks):
    """Return an array as a Dask array of so many blocks of rows."""
    bounds = np.linspace(0, X.shape[0], n_blocks + 1).astype(int)
    parts = [
        da.from_delayed(dask.delayed(X[a:b]), (b - a, *X.shape[1:]), meta=X[:0])
        for a, b in pairwise(bounds)
    ]
    return da.concatenate(parts)


def load(name, data):
    """Return the training, validation and test parts of a data set."""
    if name == "MovieLens clicks":
        return click_parts(data, "ml1m-implicit")
    parts = frappe_split(data) if name == "Frappe" else movielens_split(data, 0)
    return [(sparse.csr_array(X), y) for X, y in parts]


def fit_fm(parts, seed, value, n_epochs):
    """Return AUC on validation and test rows, and the best epoch; no value is one machine.

    ``n_epochs`` is for shards: one machine has the default.
    """
    (X, y), (X_val, y_val), (X_test, y_test) = parts
    params = {"random_state": seed, "n_jobs": 1}
    if value is None:
        model = freqfm.FMClassifier(**params).fit(X, y, X_val=X_val, y_val=y_val)
    else:
        params |= {"max_iter": n_epochs, "n_iter_no_change": None}
        X, y, val, y_of_val = (in_blocks(of, N_SHARDS) for of in (X, y, X_val, y_val))
        model = fdask.FMClassifier(n_shards=N_SHARDS, **params).fit(X, y, X_val=val, y_val=y_of_val)
        model = model.to_local()
    valid = roc_auc_score(y_val, model.decision_function(X_val))
    test = roc_auc_score(y_test, model.decision_function(X_test))
    return {"valid": valid, "test": test, "epoch": int(model.best_iter_)}


def fit_mf(parts, seed, value, n_epochs):
    """Return NDCG@20 on validation and test items; no value is one machine."""
    X, valid, test = parts
    params = {**MF, "random_state": seed, "n_jobs": 1, "max_iter": n_epochs}
    if value is None:
        model = freqfm.MFRecommender(**params).fit(X)
    else:
        rows = in_blocks(X, N_SHARDS)
        model = fdask.MFRecommender(n_shards=N_SHARDS, **params).fit(rows).to_local()
    users = np.arange(X.shape[0])
    found = {"epoch": n_epochs}
    for name, relevant, exclude in (("valid", valid, None), ("test", test, valid)):
        items, _ = model.recommend(users=users, n_recommendations=K, exclude=exclude)
        found[name] = float(ndcg_at_k(relevant, items))
    return found


def fit(name, parts, seed, value, n_epochs):
    """Return the quality of one fit; ``value`` is None on one machine."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    work = fit_mf if DATA_SETS[name] == "NDCG@20" else fit_fm
    if value is None:
        return work(parts, seed, None, n_epochs)
    trainer, attribute, _ = CHOICES[DATA_SETS[name]]
    setattr(trainer, attribute, value)
    # The worker is of this process, whose attribute was set.
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"):
        return work(parts, seed, value, n_epochs)


def compare(results, data, name, args):
    """Print the quality of one machine, and how that of shards differs, for each value."""
    parts, metric, seeds = load(name, data), DATA_SETS[name], range(args.seeds)
    _, attribute, values = CHOICES[metric]
    part = "valid"
    if args.part == "test":
        part, values = "test", (CHOSEN[metric],)
    keys = [{"data": name, "seed": seed} for seed in seeds]
    if metric == "NDCG@20":
        keys = [{**key, "epochs": args.epochs} for key in keys]
    alone = [results.run(key, fit, name, parts, key["seed"], None, args.epochs) for key in keys]
    qualities, epochs = [of[part] for of in alone], [of["epoch"] for of in alone]
    print(f"{name}, {part} {metric}: one machine {np.mean(qualities):.4f} {epochs}")
    for value in values:
        found = [
            results.run(
                {**key, attribute: value},
                fit, name, parts, key["seed"], value, 2 * of["epoch"],
            )
            for key, of in zip(keys, alone, strict=True)
        ]  # fmt: skip
        changes = np.array([of[part] for of in found]) - qualities
        print(
            f"  {N_SHARDS} shards, {attribute} {value}: {np.mean(changes):+.4f} "
            f"({', '.join(f'{change:+.4f}' for change in changes)}), "
            f"{100 * np.mean(changes) / np.mean(qualities):+.2f} %, epochs "
            f"{[of['epoch'] for of in found]}",
            flush=True,
        )


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--part", choices=["choose", "test"], default="test")
    parser.add_argument("--sets", nargs="+", choices=list(DATA_SETS), default=list(DATA_SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="of a recommender on one machine")
    args = parser.parse_args()
    data, results = require_data(args), Results(args.out / "shards.jsonl")
    for name in args.sets:
        compare(results, data, name, args)


if __name__ == "__main__":
    main()
