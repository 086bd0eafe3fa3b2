"""Apps ranked for users in a context: the positive rows of Frappe, split by row.

A row is a user, an app and eight fields of context: daytime, weekday, weekend or not, home or work,
cost, weather, country and city. Of the rows 70 % are for training, 15 % for validation, on which
each model's settings are chosen, and 15 % for testing; every test row is a query, for which all
apps are ranked, also those that the user has had before. Rows of users or apps without training
rows are left out.

LightFM is optional: ``pip install --target FOLDER lightfm-next``, and PYTHONPATH=FOLDER.

Run it with ``python benchmarks/quality/context.py --data DATA``; DATA/frappe holds
``frappe.validation.libfm.gz`` and ``frappe.test.libfm.gz`` of the NFM repository.
"""

import gzip
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, require_data

from freqfm import MFRecommender
from freqfm.backbones import Context

FILES = "frappe.validation.libfm.gz", "frappe.test.libfm.gz"
SETTINGS = [
    {"loss": "softmax", "temperature": temperature, "n_components": 32}
    for temperature in (0.05, 0.08, 0.12)
] + [{"loss": "bpr", "n_components": 128}]


def load(folder):
    """Return the positive rows: user, app, and eight values of the context, as numbers."""
    rows = []
    for name in FILES:
        with gzip.open(folder / "frappe" / name, "rt") as lines:
            for line in lines:
                label, *tokens = line.split()
                if label == "1":
                    rows.append([int(token.split(":")[0]) for token in tokens])
    return np.array(rows)


class Part:
    """Rows whose users and apps are numbered as in training, and their context."""

    def __init__(self, rows, train):
        ids = [np.unique(train[:, k]) for k in (0, 1)]
        codes = [np.searchsorted(of, rows[:, k]) for k, of in enumerate(ids)]
        known = np.all([np.isin(rows[:, k], of) for k, of in enumerate(ids)], axis=0)
        self.users, self.items = (of[known] for of in codes)
        values = np.unique(train[:, 2:])
        one_hot = rows[known][:, 2:, None] == values
        self.context = sparse.csr_array(one_hot.any(axis=1).astype(np.float32))
        self.shape = len(ids[0]), len(ids[1])

    def matrix(self, rows, n_rows):
        values = np.ones(len(self.items), dtype=np.float32)
        return sparse.csr_array((values, (rows, self.items)), shape=(n_rows, self.shape[1]))

    def ndcg(self, ranked):
        """Return the NDCG at 10 of the rows: each has one relevant app."""
        return float(np.mean((ranked == self.items[:, None]) @ (1 / np.log2(np.arange(2, 12)))))


def ours(train, seed, settings, with_context):
    """Return a function that ranks the rows of a part."""
    n = len(train.users)
    model = MFRecommender(random_state=seed, n_jobs=1, **settings)
    if with_context:
        model.set_params(backbone=Context(context=train.context, users=train.users))
        model.fit(train.matrix(np.arange(n), n))
    else:
        model.fit(train.matrix(train.users, train.shape[0]))

    def rank(part):
        context = {"context": part.context} if with_context else {}
        return model.recommend(users=part.users, exclude_seen=False, **context)[0]

    return rank


def with_short_indices(X):
    """Return a matrix with indices of 32 bits, as LightFM takes them."""
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X


def lightfm(train, seed, settings):
    """Return a function that ranks by LightFM, whose users are rows: a user and a context."""
    from lightfm import LightFM

    def features(part):
        identity = sparse.csr_array(np.eye(train.shape[0], dtype=np.float32))[part.users]
        return with_short_indices(sparse.csr_matrix(sparse.hstack([identity, part.context])))

    n = len(train.users)
    model = LightFM(loss="warp", random_state=seed, no_components=settings["n_components"])
    X = with_short_indices(sparse.csr_matrix(train.matrix(np.arange(n), n))).tocoo()
    model.fit(X, user_features=features(train), epochs=settings["epochs"], num_threads=1)

    def rank(part):
        _, users = model.get_user_representations(features(part))
        item_bias, items = model.get_item_representations()
        return np.argsort(-(users @ items.T + item_bias), axis=1, kind="stable")[:, :10]

    return rank


def main():
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = load(require_data(options))
    models = {
        "without context": (lambda *given: ours(*given, False), SETTINGS),
        "with context": (lambda *given: ours(*given, True), SETTINGS),
    }
    try:
        import lightfm as _  # noqa: F401

        grid = [{"n_components": d, "epochs": e} for d in (32, 128) for e in (30, 100)]
        models["LightFM, users and contexts"] = lightfm, grid
    except ImportError:
        print("lightfm is not installed")
    for name, (fit, settings) in models.items():
        chosen, scores, seconds = None, [], time.process_time()
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(len(rows))
            parts = np.split(rows[order], [int(0.7 * len(rows)), int(0.85 * len(rows))])
            train, valid, test = (Part(part, parts[0]) for part in parts)
            if chosen is None:
                found = [valid.ndcg(fit(train, seed, of)(valid)) for of in settings]
                chosen = settings[int(np.argmax(found))]
                print(f"{name}: validation {np.round(found, 4).tolist()}, chosen {chosen}")
            scores.append(test.ndcg(fit(train, seed, chosen)(test)))
        print(
            f"{name}: NDCG@10 {np.mean(scores):.4f}, from {min(scores):.4f} to {max(scores):.4f}, "
            f"{time.process_time() - seconds:.0f} s of CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
