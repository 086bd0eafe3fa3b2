"""Sparse matrices that hold a pair several times are their sums, in any format and type."""

import functools

import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import ALSRecommender, FMRegressor, MFRecommender
from freqfm._input.validation import summed_csr
from freqfm.backbones import Features
from freqfm.callbacks._storage import load, save
from freqfm.datasets import RowStream, load_csr, save_csr
from freqfm.metrics import diversity_at_k, recall_at_k
from freqfm.model_selection import (
    holdout_by_content,
    holdout_interactions,
    make_ranking_scorer,
)

# 300 is 44 in 8 bits, 256 is nothing, 200 is negative with a sign, and all are 1 as bool.
SUMS = np.array(
    [[300, 0, 1, 0, 2], [0, 256, 0, 1, 1], [200, 0, 0, 1, 0], [0, 1, 128, 0, 0], [1, 0, 0, 0, 512]]
)
TYPES = [bool, np.int8, np.uint8, np.int16, np.float32, np.longdouble]


def entries():
    """Return the rows and the columns of as many entries as the sums, in no order."""
    rows, columns = np.nonzero(SUMS)
    numbers = np.random.default_rng(0).permutation(np.repeat(np.arange(len(rows)), SUMS[SUMS > 0]))
    return rows[numbers], columns[numbers]


def compressed(cls, dtype):
    """Return a matrix compressed by rows or columns, in which pairs repeat."""
    lines, others = entries() if "csr" in cls.__name__ else entries()[::-1]
    order = np.argsort(lines, kind="stable")
    indptr = np.r_[0, np.cumsum(np.bincount(lines, minlength=5))]
    return cls((np.ones(len(lines), dtype), others[order], indptr), shape=SUMS.shape)


def blocks(cls, dtype):
    """Return a matrix of blocks of one number, in which pairs repeat."""
    X = compressed(sparse.csr_array, dtype)
    return cls((X.data[:, None, None], X.indices, X.indptr), shape=X.shape, blocksize=(1, 1))


def coordinates(cls, dtype):
    return cls((np.ones(SUMS.sum(), dtype), entries()), shape=SUMS.shape)


FORMATS = {
    sparse.coo_array: coordinates,
    sparse.coo_matrix: coordinates,
    sparse.csr_array: compressed,
    sparse.csc_array: compressed,
    sparse.bsr_array: blocks,
}


def factors(model, X, **options):
    return model.fit(X, **options).item_factors_


def als(**params):
    return ALSRecommender(2, max_iter=1, random_state=0, early_stopping=False, **params)


def mf(**params):
    return MFRecommender(2, **{"max_iter": 2, **params}, random_state=0, early_stopping=False)


def fm(**params):
    return FMRegressor(2, max_iter=1, random_state=0, **params)


def saved(X, folder):
    save_csr(folder, X)
    return fm().fit(load_csr(folder).data, np.arange(5.0)).factors_


def of_checkpoint(X, folder):
    save(folder / "file", {"X": X})
    return load(folder / "file")["X"].astype(float).toarray()


def of_partitions(X, folder):
    pytest.importorskip("dask.array")
    from freqfm.dask._shards import stack

    # Not by ``astype``, which older scipy begins by adding up in the given type.
    return summed_csr(stack([X, X], "X")).toarray()


@functools.cache
def known():
    return als().fit(SUMS)


RANKED = [[0, 1, 2, 3]] * 5

USES = {
    "fit": lambda X, folder: factors(als(), X),
    "fit of MF": lambda X, folder: factors(mf(), X),
    "early stopping": lambda X, folder: factors(mf().set_params(early_stopping=True), X),
    "X_val": lambda X, folder: (
        mf(max_iter=1)
        .set_params(early_stopping=True)
        .fit(np.roll(np.eye(5), 1, axis=1), X_val=X)
        .validation_scores_
    ),
    "partial_fit": lambda X, folder: als().fit(SUMS).partial_fit(X).item_factors_,
    "folding in": lambda X, folder: known().transform(X),
    "recommend": lambda X, folder: known().recommend(X, n_recommendations=2)[1],
    "exclude": lambda X, folder: known().recommend(users=range(5), exclude=X, exclude_seen=False)[
        0
    ],
    "candidates": lambda X, folder: known().recommend(
        users=range(5), candidates=X, exclude_seen=False
    )[0],
    "score": lambda X, folder: known().score(np.eye(5), X),
    "scorer": lambda X, folder: make_ranking_scorer(k=2)(known(), X),
    "scorer with y": lambda X, folder: make_ranking_scorer(k=2)(known(), np.eye(5), X),
    "recall": lambda X, folder: recall_at_k(X, RANKED, 1),
    "diversity": lambda X, folder: diversity_at_k(RANKED, X),
    "holdout_by_content": lambda X, folder: holdout_by_content(X, 0.3)[1].toarray(),
    "holdout_interactions": lambda X, folder: holdout_interactions(X, 0.3, random_state=0)[
        0
    ].toarray(),
    "features": lambda X, folder: factors(mf(backbone=Features(item_features=X)), np.eye(5)),
    "FM": lambda X, folder: fm().fit(X, np.arange(5.0)).factors_,
    "predict of FM": lambda X, folder: fm().fit(SUMS, np.arange(5.0)).predict(X),
    "partial_fit of FM": lambda X, folder: (
        fm().partial_fit(X, np.arange(5.0), n_features=9).factors_
    ),
    "save_csr": saved,
    "stream": lambda X, folder: fm().fit(RowStream.from_csr(X, np.arange(5.0))).factors_,
    "a checkpoint": of_checkpoint,
    "partitions": of_partitions,
}


SLOW = ["early stopping", "X_val", "features"]


@pytest.mark.parametrize("use", [*(use for use in USES if use not in SLOW), *slow_params(SLOW)])
def test_pairs_that_repeat_are_added_up(use, tmp_path):
    """What each use makes of float64, as if nothing repeated, is what it makes of all others."""
    expected = np.asarray(USES[use](sparse.csr_array(SUMS.astype(float)), tmp_path))

    @each("cls, dtype", [(cls, dtype) for cls in FORMATS for dtype in TYPES])
    def check(cls, dtype):
        X = FORMATS[cls](cls, dtype)
        assert_array_equal(USES[use](X, tmp_path), expected)
        assert X.dtype == dtype and X.data.size == SUMS.sum()  # it belongs to the user

    check()


@each("dtype", TYPES)
def test_held_out_parts_keep_their_type_if_it_holds_their_sums(dtype):
    for X, sums in (
        (sparse.coo_array(SUMS > 0).astype(dtype), SUMS > 0),
        (coordinates(sparse.coo_array, dtype), SUMS),
    ):
        for part in holdout_by_content(X):
            kept = part.toarray()
            assert ((kept == sums) | (kept == 0)).all()
            fits = (sums.astype(dtype) == sums).all()
            assert part.dtype == (dtype if fits else np.float64)


def test_more_ones_than_float32_can_count():
    n = 2**24 + 2
    X = sparse.csr_array((2, 2), dtype=np.float32)
    indices = np.zeros(n + 1, np.int32)
    X.data, X.indices, X.indptr = np.ones(n + 1, np.float32), indices, np.array([0, n, n + 1])
    assert als().fit(X)._history.weights.tolist() == [n, 1]
