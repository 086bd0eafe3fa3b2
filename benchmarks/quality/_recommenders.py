"""Recommenders of this package and of others, each made, fitted and ranked in one way.

Each class is made from interactions, a seed, a number of threads and parameters, and ``rank``
returns ``K`` items for users without those of their training rows. ``GRIDS`` holds what the tuned
peers are chosen from.
"""

import importlib
import os
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).parents[1]))
from _measure import installed
from scipy import sparse

from freqfm import (
    ALSRecommender,
    BlendRecommender,
    EASERecommender,
    FastVAERecommender,
    GraphFilterRecommender,
    MFRecommender,
)
from freqfm.metrics._hits import top_k

__all__ = ["GRIDS", "K", "contenders", "points"]

K = 20


class Freqfm:
    """A recommender of this package."""

    def __init__(self, make, X, seed, n_threads, **params):
        if hasattr(make, "random_state"):
            params = {"random_state": seed, **params}
        self.model = make(n_jobs=n_threads, **params).fit(X)

    def rank(self, X, users):
        return self.model.recommend(users=users, n_recommendations=K)[0]


class Implicit:
    """A recommender of implicit."""

    def __init__(self, make, X, seed, n_threads, **params):
        module, name = make
        make = getattr(importlib.import_module(f"implicit.{module}"), name)
        if module != "nearest_neighbours":
            params = {**params, "random_state": seed, "use_gpu": False}
        with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
            self.model = make(num_threads=n_threads, **params)
            self.model.fit(sparse.csr_matrix(X), show_progress=False)

    def rank(self, X, users):
        found, scores = self.model.recommend(users, sparse.csr_matrix(X)[users], N=K)
        return np.where(scores > -1e30, found, -1)  # what is below was left out


class LightFM:
    """LightFM without features; its default of one epoch is no model, so 20 are trained."""

    def __init__(self, loss, X, seed, n_threads, epochs=20, **params):
        from lightfm import LightFM

        self.model = LightFM(loss=loss, random_state=seed, **params)
        self.model.fit(sparse.coo_matrix(X), epochs=epochs, num_threads=n_threads)

    def rank(self, X, users):
        _, vectors = self.model.get_user_representations()
        biases, items = self.model.get_item_representations()
        ones = np.ones((len(users), 1), np.float32)
        vectors = np.hstack([vectors[users], ones])
        return top_k(vectors, np.hstack([items, biases[:, None]]), K, exclude=X[users])[0]


class Cornac:
    """A recommender of Cornac."""

    def __init__(self, name, X, seed, n_threads, **params):
        import cornac

        X = sparse.coo_matrix(X)
        rows = zip(X.row.tolist(), X.col.tolist(), X.data.tolist(), strict=True)
        self.data = cornac.data.Dataset.from_uir(rows, seed=seed)
        self.model = getattr(cornac.models, name)(verbose=False, seed=seed, **params)
        with threadpoolctl.threadpool_limits(n_threads):
            self.model.fit(self.data)

    def rank(self, X, users):
        items = np.fromiter(self.data.item_ids, dtype=np.int64)
        found = np.full((len(users), K), -1)
        for row, user in enumerate(users):
            scores = np.full(X.shape[1], -np.inf)
            scores[items] = self.model.score(self.data.uid_map[user])[: len(items)]
            scores[X.indices[X.indptr[user] : X.indptr[user + 1]]] = -np.inf
            found[row] = np.argsort(-scores, kind="stable")[:K]
        return found


class RecBole:
    """A recommender of RecBole with vectors of users and items; all of its epochs are trained.

    RecBole 1.2.1 needs NumPy below 2 and pandas below 3.
    """

    def __init__(self, name, X, seed, n_threads, **params):
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            self._write(X, Path(folder) / "clicks")
            try:
                os.chdir(folder)  # where RecBole leaves its logs
                self._train(name, folder, seed, n_threads, params)
            finally:
                os.chdir(before)
        tables = (self.model.user_embedding, self.model.item_embedding)
        self.vectors = [table.weight.detach().numpy() for table in tables]

    def _write(self, X, folder):
        X = sparse.coo_array(X)
        folder.mkdir()
        columns = np.column_stack([X.row, X.col])
        names = "user_id:token\titem_id:token"
        np.savetxt(folder / "clicks.inter", columns, "%d", "\t", header=names, comments="")

    def _train(self, name, folder, seed, n_threads, params):
        import torch
        from recbole.config import Config
        from recbole.data import create_dataset, data_preparation
        from recbole.utils import get_model, get_trainer, init_seed

        torch.set_num_threads(n_threads)
        # All interactions are for training.
        split = {"split": {"RS": [1, 0, 0]}, "order": "RO", "group_by": "none", "mode": "full"}
        settings = {
            "data_path": folder,
            "checkpoint_dir": folder,
            "load_col": {"inter": ["user_id", "item_id"]},
            "eval_args": split,
            "use_gpu": False,
            "state": "ERROR",
            "seed": seed,
            **params,
        }
        with mock.patch.object(sys, "argv", sys.argv[:1]):  # RecBole reads it
            config = Config(model=name, dataset="clicks", config_dict=settings)
        init_seed(seed, True)
        self.data = create_dataset(config)
        train = data_preparation(config, self.data)[0]
        self.model = get_model(name)(config, train.dataset)
        trainer = get_trainer(config["MODEL_TYPE"], name)(config, self.model)
        trainer.fit(train, saved=False, show_progress=False)

    def rank(self, X, users):
        ours = [self.data.field2id_token[name][1:].astype(int) for name in ("user_id", "item_id")]
        aligned = []
        for ids, vectors, n_rows in zip(ours, self.vectors, X.shape, strict=True):
            rows = np.zeros((n_rows, vectors.shape[1]), np.float32)
            rows[ids] = vectors[1:]
            aligned.append(rows)
        return top_k(aligned[0][users], aligned[1], K, exclude=X[users])[0]


class EASE:
    """EASE (Steck 2019) in float32, of the items that occur.

    The inverse of the items' Gram matrix is computed in place: 4 bytes for each pair of items,
    where Cornac's EASE takes 24.
    """

    def __init__(self, X, seed, n_threads, lamb=500.0):
        self.items = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]))
        X = sparse.csc_array(X)[:, self.items]
        gram = np.empty((X.shape[1], X.shape[1]), np.float32)
        for first in range(0, len(gram), 1024):
            part = slice(first, first + 1024)
            gram[part] = (X[:, part].T @ X).toarray()
        np.fill_diagonal(gram, gram.diagonal() + lamb)
        with threadpoolctl.threadpool_limits(n_threads, user_api="blas"):
            invert(gram)
        self.inverse = gram

    def rank(self, X, users):
        found, scale = np.full((len(users), K), -1), -1 / self.inverse.diagonal()
        X = sparse.csr_array(X)[:, self.items]
        for first in range(0, len(users), 1024):
            rows = X[users[first : first + 1024]]
            scores = (rows @ self.inverse) * scale
            scores[rows.nonzero()] = -np.inf
            best = np.argpartition(-scores, K, axis=1)[:, :K]
            order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
            found[first : first + 1024] = self.items[np.take_along_axis(best, order, axis=1)]
        return found


def invert(matrix, size=2048):
    """Invert a symmetric positive definite matrix in place, by sweeping one block after another.

    Only the lower triangle is computed, in half the operations of an inverse in general.
    """
    blocks = [slice(first, first + size) for first in range(0, len(matrix), size)]
    for pivot in blocks:
        inverse = np.linalg.inv(matrix[pivot, pivot].astype(np.float64)).astype(matrix.dtype)
        columns = np.concatenate([matrix[pivot, : pivot.start].T, matrix[pivot.start :, pivot]])
        swept = columns @ inverse
        columns[pivot] = swept[pivot] = 0
        for rows in blocks:
            matrix[rows, : rows.stop] -= swept[rows] @ columns[: rows.stop].T
        matrix[pivot, : pivot.start] = swept[: pivot.start].T
        matrix[pivot.stop :, pivot] = swept[pivot.stop :]
        matrix[pivot, pivot] = -inverse
    for rows in blocks:
        matrix[rows, : rows.stop] *= -1
        matrix[: rows.start, rows] = matrix[rows, : rows.start].T


class Popular:
    """The most popular items for all users."""

    def __init__(self, X, seed, n_threads):
        self.counts = np.bincount(X.indices, minlength=X.shape[1])[:, None]

    def rank(self, X, users):
        return top_k(np.ones((len(users), 1)), self.counts, K, exclude=X[users])[0]


PEERS = {
    "implicit": {
        "implicit's AlternatingLeastSquares": (Implicit, ("als", "AlternatingLeastSquares")),
        "implicit's LogisticMatrixFactorization": (
            Implicit,
            ("lmf", "LogisticMatrixFactorization"),
        ),
        "implicit's BayesianPersonalizedRanking": (
            Implicit,
            ("bpr", "BayesianPersonalizedRanking"),
        ),
        "implicit's BM25Recommender": (Implicit, ("nearest_neighbours", "BM25Recommender")),
    },
    "lightfm": {"LightFM's WARP": (LightFM, "warp")},
    "cornac": {"Cornac's EASE": (Cornac, "EASE"), "Cornac's BPR": (Cornac, "BPR")},
    "recbole": {"RecBole's BPR": (RecBole, "BPR")},
}
# What a tuned peer is chosen from: all combinations, by NDCG on validation, one seed.
GRIDS = {
    "implicit's AlternatingLeastSquares": {
        "factors": (64, 128),
        "regularization": (0.01, 1.0, 10.0, 100.0),
        "alpha": (1.0, 5.0, 20.0),
    },
    "implicit's LogisticMatrixFactorization": {
        "factors": (30, 64),
        "learning_rate": (0.1, 1.0),
        "regularization": (0.06, 0.6, 6.0),
    },
    "implicit's BayesianPersonalizedRanking": {
        "factors": (64, 128),
        "learning_rate": (0.01, 0.05),
        "regularization": (0.001, 0.01, 0.1),
    },
    "implicit's BM25Recommender": {
        "K": (20, 50, 100, 200, 400),
        "K1": (0.1, 1.2),
        "B": (0.25, 0.75),
    },
    "LightFM's WARP": {"no_components": (32, 128), "item_alpha": (0.0, 1e-5), "epochs": (30,)},
    "Cornac's EASE": {"lamb": (100, 250, 500, 1000, 2000)},
    "EASE": {"lamb": (100, 250, 500, 1000, 2000)},
    "Cornac's BPR": {"k": (64,), "learning_rate": (0.01, 0.05), "lambda_reg": (0.001, 0.01)},
}


def contenders():
    """Return what makes a fitted model of (X, seed, n_threads, **params), by name."""
    ours = (
        BlendRecommender,
        MFRecommender,
        FastVAERecommender,
        ALSRecommender,
        EASERecommender,
        GraphFilterRecommender,
    )
    makers = {make.__name__: partial(Freqfm, make) for make in ours}
    for package, models in PEERS.items():
        if installed(package):
            makers |= {name: partial(kind, make) for name, (kind, make) in models.items()}
        else:
            print(f"{package} is not installed.")
    return makers | {"EASE": EASE, "the most popular items": Popular}


def points(name):
    """Return the parameters of each point of a grid."""
    grid = GRIDS[name]
    return [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]
