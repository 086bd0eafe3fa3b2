"""Bad input: a clear error, or the same model as from the equivalent dense matrix."""

import contextlib
import copy
import warnings

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from freqfm import FMClassifier, FMRegressor
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD

CLASSES = [FMClassifier, FMRegressor]
BOTH = pytest.mark.parametrize("cls", CLASSES)
CONTAINERS = [sparse.csr_array, sparse.csr_matrix]
LEARNED = ("intercept_", "coef_", "factors_", "loss_curve_", "token_counts_")

# Sums of these are exact in float32, so that the order of duplicates does not matter.
VALUES = [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]

# scikit-learn's words for a matrix without rows or columns name no argument.
NAMES_X = r"\bX\b|Found array with 0 (sample|feature)\(s\)"


def model_of(cls, **params):
    return cls(**{"n_components": 3, "max_iter": 2, "random_state": 0, **params})


def labels(n):
    return np.arange(n) % 2


def classes_of(cls):
    return {"classes": [0, 1]} if cls is FMClassifier else {}


def assert_same_model(model, other):
    for name in LEARNED:
        assert_array_equal(getattr(model, name), getattr(other, name), err_msg=name)


def outputs(model, X):
    names = ("decision_function", "predict_proba", "predict")
    return [getattr(model, name)(X) for name in names if hasattr(model, name)]


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


def dense_twin(X):
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
    """``use(X)`` must complain about X, or return what ``use`` of the dense twin returns."""
    dense = dense_twin(X)
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
    return [*outputs(model, X), *(getattr(model, name) for name in LEARNED)]


@settings(deadline=None, max_examples=100)
@given(X=csr_matrices())
def test_regressor_rejects_rows_or_treats_them_as_dense(X):
    check(X, lambda X: learned(FMRegressor, X))


@settings(deadline=None, max_examples=60)
@given(X=csr_matrices(min_rows=2))
def test_classifier_rejects_rows_or_treats_them_as_dense(X):
    check(X, lambda X: learned(FMClassifier, X))


@settings(deadline=None, max_examples=80)
@given(X=csr_matrices(columns=4), cls=st.sampled_from(CLASSES))
def test_partial_fit_and_predict_reject_rows_or_treat_them_as_dense(X, cls):
    first = np.random.default_rng(0).random((10, 4))
    model = model_of(cls).fit(first, labels(10))
    check(X, lambda X: outputs(model, X))
    check(X, lambda X: learned(cls, X, first))


@BOTH
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "entries to spare"])
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


FORMATS = {
    "csr_matrix": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "csc_matrix": sparse.csc_matrix,
    "coo": sparse.coo_array,
    "bsr": lambda X: sparse.bsr_array(X, blocksize=(4, 3)),
    "lil": sparse.lil_array,
    "dok": sparse.dok_array,
    "dia": sparse.dia_array,
    "float64": lambda X: X.astype(np.float64),
    "dense": lambda X: X.toarray(),
    "fortran": lambda X: np.asfortranarray(X.toarray()),
    "list of lists": lambda X: X.toarray().tolist(),
    "duplicates": lambda X: sparse.coo_array(
        (np.tile(X.data / 2, 2), np.tile(np.stack(X.nonzero()), 2)), shape=X.shape
    ),
}


@BOTH
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_model(clicks, cls, name):
    X, y = clicks
    model = model_of(cls).fit(X, y)
    converted = FORMATS[name](X)
    other = model_of(cls).fit(converted, y.tolist())
    assert_same_model(other, model)
    for got, expected in zip(outputs(other, converted), outputs(model, X), strict=True):
        assert_array_equal(got, expected)


@BOTH
@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_matrix, sparse.csr_array.toarray])
def test_memory_mapped_rows(clicks, cls, form, tmp_path):
    X, y = clicks
    joblib.dump((form(X), y, np.ones(60)), tmp_path / "rows")
    readonly, *rest = joblib.load(tmp_path / "rows", mmap_mode="r")
    assert not (readonly.data if sparse.issparse(readonly) else readonly).flags.writeable
    model = model_of(cls).fit(X, y)
    other = model_of(cls).fit(readonly, *rest)
    assert_same_model(other, model)
    assert_array_equal(other.predict(readonly), model.predict(X))


@pytest.mark.parametrize(
    "cls, y, match",
    [
        *[(cls, np.where(labels(60), np.nan, 1.0), "y contains NaN") for cls in CLASSES],
        *[(cls, labels(59), r"inconsistent numbers of samples: \[60, 59\]") for cls in CLASSES],
        *[(cls, np.tile([0, 1], (60, 1)), "y should be a 1d array") for cls in CLASSES],
        *[(cls, None, r"requires y|y cannot be None") for cls in CLASSES],
        (FMClassifier, labels(60) + 0.5, "Unknown label type: continuous"),
        (FMClassifier, np.full(60, "yes"), r"y holds one class only, \['yes'\]"),
        (FMRegressor, np.where(labels(60), np.inf, 1.0), "y contains infinity"),
        (FMRegressor, np.full(60, "yes"), "could not convert string"),
        (FMRegressor, np.full(60, 1e39), r"y holds 1e\+39, which is too large for float32"),
    ],
)
def test_wrong_labels_and_targets(clicks, cls, y, match):
    with pytest.raises(ValueError, match=match):
        model_of(cls).fit(clicks[0], y)


def test_partial_fit_wants_known_classes(clicks):
    X, y = clicks
    with pytest.raises(ValueError, match="classes=None in the first call"):
        model_of(FMClassifier).partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y holds \[1\], .* not among the classes \[0, 2\]"):
        model_of(FMClassifier).partial_fit(X, y, classes=[0, 2])
    with pytest.raises(ValueError, match="one class only"):
        model_of(FMClassifier).partial_fit(X, y * 0, classes=[0])
    model = model_of(FMClassifier).partial_fit(X, y, classes=[0, 1])
    before = clone(model).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"y holds \[7\]"):
        model.partial_fit(X, np.where(y, 7, 0))
    with pytest.raises(ValueError, match=r"classes=\[0, 1, 2\] differs"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    assert_same_model(model, before)


@BOTH
@pytest.mark.parametrize(
    "weight",
    [np.r_[-1.0, np.ones(59)], np.r_[np.nan, np.ones(59)], np.ones(59), np.ones((60, 1)), [0] * 60],
    ids=["negative", "NaN", "wrong length", "2-D", "all zero"],
)
def test_wrong_sample_weight(clicks, cls, weight):
    X, y = clicks
    for use in (
        lambda: model_of(cls).fit(X, y, sample_weight=weight),
        lambda: model_of(cls).partial_fit(X, y, sample_weight=weight, **classes_of(cls)),
    ):
        with pytest.raises(ValueError, match=r"(?i)sample.weight"):
            use()


@BOTH
def test_another_number_of_columns(clicks, cls):
    X, y = clicks
    model = model_of(cls).partial_fit(X, y, **classes_of(cls))
    before = model_of(cls).partial_fit(X, y, **classes_of(cls))
    words = f"X has 11 features, but {cls.__name__} is expecting 12 features"
    for use in (lambda Z: model.partial_fit(Z, y), model.predict):
        with pytest.raises(ValueError, match=words):
            use(X[:, :11])
    assert_same_model(model, before)


@BOTH
def test_predict_before_fit(clicks, cls):
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        if hasattr(cls, name):
            with pytest.raises(NotFittedError, match=f"{cls.__name__} instance is not fitted"):
                getattr(model_of(cls), name)(clicks[0])


FLAGS = ["fit_intercept", "fit_linear", "early_stopping", "shuffle", "warm_start"]
OUT_OF_RANGE = {
    **dict.fromkeys(["n_components", "max_iter", "batch_size"], (0, -1, 2.5, None)),
    **dict.fromkeys(["alpha_linear", "alpha_factors", "tol"], (-1e-9, np.nan, np.inf, None)),
    **dict.fromkeys(FLAGS, (2, "yes", None)),
    "learning_rate": [0, -1.0, np.nan, np.inf, "fast"],
    "init_scale": [-1.0, np.nan, np.inf, "wide"],
    "validation_fraction": [0, 1, -0.1, np.nan, None],
    "n_iter_no_change": [0, 1.5],
    "verbose": [-1, "loud"],
    "n_jobs": [0, 1.5, "all"],
    "random_state": [-1, 1.5, "seed"],
    "class_weight": ["even", 3],
    "optimizer": ["nope", 3, None, SGD],
    "init": ["nope", 3, None, Normal],
}


@BOTH
def test_every_parameter_is_checked(clicks, cls):
    X, y = clicks
    params = cls().get_params(deep=False)
    assert set(params) <= set(OUT_OF_RANGE)
    for name in params:
        for value in OUT_OF_RANGE[name]:
            with pytest.raises((ValueError, TypeError), match=rf"\b{name}\b"):
                model_of(cls, **{name: value}).fit(X, y)


def test_components(clicks):
    X, y = clicks
    for params, match in (
        ({"optimizer": "cfsgd"}, "optimizer='cfsgd' is not known; did you mean 'cf_sgd'"),
        ({"optimizer": "Adam"}, "did you mean 'adam'"),
        ({"init": "norm"}, "init='norm' is not known; did you mean 'normal'"),
        ({"optimizer": SGD(), "learning_rate": 0.1}, "learning_rate=0.1 .* optimizer=SGD"),
        ({"init": Normal(), "init_scale": 0.1}, "scale=0.1 .* init=Normal"),
        ({"optimizer": SGD(-1)}, "'learning_rate' parameter of SGD"),
        ({"optimizer": CFSGD(count="row")}, "'count' parameter of CFSGD"),
        ({"optimizer": FASGD(counts=[1, 2])}, r"counts of FASGD .*\(2,\).* 12 features"),
        ({"optimizer": FASGD(counts=[-1] * 12)}, "counts of FASGD .* non-negative"),
        ({"optimizer": FASGD(counts=[0] * 12)}, "counts of FASGD .* not all zero"),
    ):
        with pytest.raises(ValueError, match=match):
            model_of(FMClassifier, **params).fit(X, y)


def test_predict_without_threads(clicks):
    model = model_of(FMRegressor).fit(*clicks).set_params(n_jobs=0)
    with pytest.raises(ValueError, match="n_jobs=0 has no meaning"):
        model.predict(clicks[0])


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


def test_malformed_lil_bsr_and_float_indices():
    X = sparse.csr_array(np.array([[1, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1.0]]))
    lil, bsr, float_csr = X.tolil(), sparse.bsr_array(X, blocksize=(2, 2)), X.copy()
    lil.rows[0] = [0, 77]
    bsr.indptr = np.array([0, 10**8, 2], np.int32)
    float_csr.indices = X.indices + 0.5
    for bad in (lil, bsr, float_csr):
        with pytest.raises(ValueError, match="X (is|holds)"):
            FMRegressor(2).fit(bad, np.arange(4.0))


def test_vector_instead_of_a_matrix():
    vector = sparse.coo_array(np.arange(4.0))  # scipy before 1.13 makes one row of it
    with pytest.raises(ValueError, match="X is a sparse array of 1 dim|inconsistent numbers"):
        FMRegressor(2).fit(vector, np.arange(4.0))


def test_rows_that_overflow_scores_are_an_error():
    model = FMRegressor(2, init_scale=0.1).fit(np.eye(4), np.arange(4.0))
    with pytest.raises(ValueError, match="X holds values up to 1e\\+25.*overflow"):
        model.predict(np.full((1, 4), 1e25))


@pytest.mark.parametrize("weights", [{0: 0, 1: 0}, {0: -1, 1: 1}, {0: np.nan, 1: 1}], ids=repr)
def test_wrong_class_weights(weights):
    with pytest.raises(ValueError, match="class_weight leads to row weights"):
        FMClassifier(class_weight=weights).fit(np.eye(4), [0, 1, 0, 1])


def test_rows_of_weight_zero_are_no_rows():
    X, y = np.eye(40), np.arange(40) % 2
    weight = np.r_[np.ones(20), np.zeros(20)]
    weighted = FMClassifier(early_stopping=True, validation_fraction=0.3, random_state=0).fit(
        X, y, weight
    )
    shorter = FMClassifier(early_stopping=True, validation_fraction=0.3, random_state=0).fit(
        X[:20], y[:20]
    )
    np.testing.assert_array_equal(weighted.factors_, shorter.factors_)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8])
def test_integers_of_numpy_are_integers(dtype):
    model = FMRegressor(dtype(60), batch_size=dtype(3), max_iter=dtype(2), random_state=0)
    X, y = np.random.default_rng(0).random((60, 5)), np.arange(60.0)
    expected = FMRegressor(60, batch_size=3, max_iter=2, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.fit(X, y).factors_, expected.factors_)
