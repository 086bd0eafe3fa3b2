"""Malformed sparse rows: a clear error, or the same model as from the equivalent dense matrix."""

import contextlib
import copy
import warnings

import numpy as np
import pytest
from helpers import (
    BOTH,
    CLASSES,
    assert_same_model,
    classes_of,
    each,
    fitted,
    labels,
    model_of,
    outputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import FMClassifier, FMRegressor

CONTAINERS = [sparse.csr_array, sparse.csr_matrix]
# Sums of these are exact in float32, so that the order of duplicates does not matter.
VALUES = [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]

# scikit-learn's words for a matrix without rows or columns name no argument.
NAMES_X = r"\bX\b|Found array with 0 (sample|feature)\(s\)"


def with_last(array, value, dtype):
    array = array.astype(dtype)
    array[-1:] = value
    return array


# What a fault makes of values, indices and indptr of a well-formed matrix of n columns.
FAULTS = {
    "nan": lambda v, i, p, n: (with_last(v, np.nan, np.float64), i, p),
    "infinity": lambda v, i, p, n: (with_last(v, -np.inf, np.float64), i, p),
    "too large for float32": lambda v, i, p, n: (with_last(v, 1e39, np.float64), i, p),
    "negative index": lambda v, i, p, n: (v, with_last(i, -1, np.int64), p),
    "index too large": lambda v, i, p, n: (v, with_last(i, n, np.int64), p),
    "index too large for int32": lambda v, i, p, n: (v, with_last(i, 2**32, np.int64), p),
    "indptr falls": lambda v, i, p, n: (v, i, np.r_[p[:1], p[1:-1] + 99, p[-1:]][: len(p)]),
    "indptr falls at the end": lambda v, i, p, n: (v, i, np.r_[p[:-1], p[-2:-1] - 1]),
    "indptr starts late": lambda v, i, p, n: (v, i, np.r_[p[:1] + 1, p[1:]]),
    "indptr starts below zero": lambda v, i, p, n: (v, i, p - 1),
    "indptr ends late": lambda v, i, p, n: (v, i, np.r_[p[:-1], p[-1] + 1]),
    "indptr too short": lambda v, i, p, n: (v, i, p[:-1]),
    "indptr too long": lambda v, i, p, n: (v, i, np.r_[p, p[-1]]),
    "indptr empty": lambda v, i, p, n: (v, i, p[:0]),
    "entries missing": lambda v, i, p, n: (v[:-1], i[:-1], p),
    # Not wrong: scipy looks at no more entries than indptr ends at.
    "entries to spare": lambda v, i, p, n: (np.append(v, 7.0), np.append(i, -9), p),
}


def dense_reference(X):
    """What X means, or None if it means nothing: read entry by entry."""
    n_rows, n_columns = X.shape
    indptr, indices = X.indptr.tolist(), X.indices.tolist()
    if not n_rows or not n_columns or len(indptr) != n_rows + 1 or indptr[0] != 0:
        return None
    if indptr != sorted(indptr) or indptr[-1] > len(indices):
        return None
    dense = np.zeros(X.shape)
    for i in range(n_rows):
        for p in range(indptr[i], indptr[i + 1]):
            if not 0 <= indices[p] < n_columns or not abs(X.data[p]) < 3.4e38:
                return None
            dense[i, indices[p]] += X.data[p]
    return dense


@st.composite
def csr_matrices(draw, min_rows=0, columns=None):
    """CSR arrays and matrices, often malformed, put together behind the constructor's back."""
    n_rows = draw(st.integers(min_rows, 6))
    n_columns = draw(st.integers(0, 5)) if columns is None else columns
    longest = 4 if n_columns else 0
    lengths = draw(st.lists(st.integers(0, longest), min_size=n_rows, max_size=n_rows))
    n = sum(lengths)
    data = np.array(draw(st.lists(st.sampled_from(VALUES), min_size=n, max_size=n)))
    index = st.integers(0, max(n_columns - 1, 0))
    integers = st.sampled_from([np.int32, np.int64])
    indices = np.array(draw(st.lists(index, min_size=n, max_size=n)), dtype=draw(integers))
    indptr = np.cumsum([0, *lengths], dtype=draw(integers))
    data = data.astype(draw(st.sampled_from([np.float32, np.float64, np.int64])))
    for fault in draw(st.lists(st.sampled_from(sorted(FAULTS)), max_size=2, unique=True)):
        if len(indptr):
            data, indices, indptr = FAULTS[fault](data, indices, indptr, n_columns)
    X = draw(st.sampled_from(CONTAINERS))((n_rows, n_columns), dtype=data.dtype)
    X.data, X.indices, X.indptr = data, indices, indptr
    for flag in ("has_sorted_indices", "has_canonical_format"):
        if draw(st.booleans()):
            setattr(X, flag, True)
    return X


@contextlib.contextmanager
def unchanged(X):
    """The matrix's arrays must stay the same ones and hold the same numbers."""
    arrays = X.data, X.indices, X.indptr
    copies = copy.deepcopy(arrays)
    yield
    assert X.data is arrays[0] and X.indices is arrays[1] and X.indptr is arrays[2]
    for array, before in zip(arrays, copies, strict=True):
        assert_array_equal(array, before)


def check(X, use):
    """``use(X)`` must complain about X, or return what ``use`` of the dense matrix returns."""
    dense = dense_reference(X)
    with unchanged(X), warnings.catch_warnings():
        # A cast to float32 may overflow on the way to the error.
        warnings.simplefilter("ignore", RuntimeWarning)
        if dense is None:
            with pytest.raises((ValueError, TypeError), match=NAMES_X):
                use(X)
            return
        result = use(X)
    for value, expected in zip(result, use(dense), strict=True):
        assert_array_equal(value, expected)
        if value.dtype.kind == "f":
            assert np.isfinite(value).all()


def learned(cls, X, first=None):
    """What a model learns from rows, after ``first`` if given, and what it says of them."""
    model = model_of(cls)
    if first is None:
        model.fit(X, labels(X.shape[0]))
    else:
        model.fit(first, labels(len(first)))
        before = copy.deepcopy(model)
        try:
            model.partial_fit(X, labels(X.shape[0]))
        except (ValueError, TypeError):
            assert_same_model(model, before)
            raise
    return [*outputs(model, X), *fitted(model).values()]


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(X=csr_matrices())
def test_regressor_rejects_rows_or_treats_them_as_dense(X):
    check(X, lambda X: learned(FMRegressor, X))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(X=csr_matrices(min_rows=2))
def test_classifier_rejects_rows_or_treats_them_as_dense(X):
    check(X, lambda X: learned(FMClassifier, X))


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(X=csr_matrices(columns=4), cls=st.sampled_from(CLASSES))
def test_partial_fit_and_predict_reject_rows_or_treat_them_as_dense(X, cls):
    first = np.random.default_rng(0).random((10, 4))
    model = model_of(cls).fit(first, labels(10))
    check(X, lambda X: outputs(model, X))
    check(X, lambda X: learned(cls, X, first))


@BOTH
@each("container", CONTAINERS)
@each("fault", [name for name in FAULTS if name != "entries to spare"])
def test_every_fault_is_an_error(cls, container, fault):
    X = container(np.array([[1, 0, 2], [0, 3, 0], [0, 0, 0], [1, 1, 1.0]]))
    model = model_of(cls).fit(X, labels(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        X.data, X.indices, X.indptr = FAULTS[fault](X.data, X.indices, X.indptr, 3)
        for use in (
            lambda: model_of(cls).fit(X, labels(4)),
            lambda: model_of(cls).partial_fit(X, labels(4), **classes_of(cls)),
            lambda: model.predict(X),
        ):
            with unchanged(X), pytest.raises(ValueError, match=r"\bX\b"):
                use()


@pytest.mark.parametrize("index", [-3, 11])
def test_bad_indices_in_csc_and_coo(index):
    csc = sparse.csc_array(np.eye(4))
    csc.indices = np.array([0, 1, 2, index], dtype=np.int32)
    falling = sparse.csc_array(np.eye(4))
    falling.indptr = np.array([0, 3, 2, 3, 4], dtype=np.int32)
    coo, other_coo = sparse.coo_array(np.eye(4)), sparse.coo_array(np.eye(4))
    coo.row[2] = other_coo.col[2] = index
    for X in (csc, falling, coo, other_coo):
        with pytest.raises(ValueError, match="X "):
            model_of(FMRegressor).fit(X, labels(4))


def test_errors_tell_what_was_found():
    X = sparse.csr_array(np.eye(4))
    X.indices = np.array([0, 1, 2, 11], dtype=np.int32)
    with pytest.raises(ValueError, match="X holds the column index 11, but .* room for 4"):
        model_of(FMClassifier).fit(X, labels(4))
    with pytest.raises(ValueError, match="X has 2147483653 features; at most 2147483647"):
        model_of(FMRegressor).fit(sparse.csr_array((4, 2**31 + 5)), labels(4))


@pytest.mark.parametrize(
    "indptr",
    [
        np.array([0, 2, 2**30, 3, 6], np.uint32),
        np.array([0, 2**31 - 1, -(2**31), -1, 3], np.int32),
        np.array([0, 2, 5, 3, 6], np.uint8),
        np.array([0.0, 2, 3, 3, 6]),
    ],
    ids=repr,
)
def test_indptr_that_would_overflow_a_difference(indptr):
    X = sparse.csr_array(np.array([[1, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1.0]]))
    X.indptr = indptr
    with pytest.raises(ValueError, match="X is not a well-formed csr matrix"):
        FMRegressor(2).fit(X, np.arange(4.0))


def test_malformed_lil_bsr_dia_and_float_indices():
    X = sparse.csr_array(np.array([[1, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1.0]]))
    lil, bsr, float_csr = X.tolil(), sparse.bsr_array(X, blocksize=(2, 2)), X.copy()
    lil.rows[0] = [0, 77]
    bsr.indptr = np.array([0, 10**8, 2], np.int32)
    float_csr.indices = X.indices + 0.5
    dia, odd = sparse.dia_array(np.eye(4)), X.tobsr(blocksize=(2, 2))
    dia.offsets, odd._shape = np.array([9], np.int32), (4, 5)
    for bad in (lil, bsr, float_csr, dia, odd):
        with pytest.raises(ValueError, match="X (is|holds)"):
            FMRegressor(2).fit(bad, np.arange(4.0))
