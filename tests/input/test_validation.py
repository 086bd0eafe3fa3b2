"""Bad labels, weights and parameters: a clear error. Good rows of any format: one model."""

import joblib
import numpy as np
import pytest
from helpers import BOTH, CLASSES, assert_same_model, classes_of, each, labels, model_of, outputs
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from freqfm import FMClassifier, FMRegressor
from freqfm._input.rows import is_canonical
from freqfm.datasets import RowStream
from freqfm.initializers import Normal
from freqfm.losses import Huber
from freqfm.optimizers import CFSGD, FASGD, SGD

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


# NumPy's strings of any length, which NumPy 1 does not have.
STRINGS = getattr(np.dtypes, "StringDType", None)


def _missing(kind, values):
    """Return targets of some library's type of which one is missing."""
    if kind == "numpy strings":
        return np.array([*values, np.nan], dtype=STRINGS(na_object=np.nan))
    library, kind = kind.split(" ", 1)
    module = pytest.importorskip(library)
    if library == "polars":
        return module.Series([*values, None], dtype=getattr(module, kind, None))
    if library == "pyarrow":
        return module.array([*values, None])
    return module.Series([*values, module.NA if kind == "NA" else None]).astype(
        object if kind == "NA" else kind
    )


@each(
    "kind, values",
    [
        *([("numpy strings", "abb")] if STRINGS else []),
        *[
            (f"pandas {k}", "abb")
            for k in ("string", "string[pyarrow]", "category", "object", "NA")
        ],
        *[(f"pandas {kind}", [0, 1, 1]) for kind in ("Int64", "float", "object", "NA", "category")],
        ("pandas boolean", [True, False, True]),
        ("pandas datetime64[ns]", ["2024-01-01", "2024-01-02", "2024-01-02"]),
        ("polars String", "abb"),
        ("polars Categorical", "abb"),
        ("polars Int64", [0, 1, 1]),
        ("polars Boolean", [True, False, True]),
        ("pyarrow array", "abb"),
        ("pyarrow array", [0, 1, 1]),
    ],
)
@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_missing_targets(cls, kind, values):
    y = _missing(kind, values)
    for use in (
        lambda: model_of(cls).fit(np.eye(4), y),
        lambda: model_of(cls).fit(np.eye(4), [0, 1, 0, 1], X_val=np.eye(4), y_val=y),
    ):
        with pytest.raises(ValueError, match=r"y holds .* at row 3; None, NaN|y contains NaN"):
            use()


@each("y", [object(), np.datetime64("NaT"), np.array(None), {1, 2}, [[1, None], [2, 3]]])
@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_targets_that_are_no_vector(cls, y):
    with pytest.raises((TypeError, ValueError), match="^y (should be a 1d array|must hold|holds)"):
        model_of(cls).fit(np.eye(2), y)


@BOTH
@each("name", FORMATS)
def test_every_format_gives_the_same_model(clicks, cls, name):
    X, y = clicks
    model = model_of(cls).fit(X, y)
    converted = FORMATS[name](X)
    other = model_of(cls).fit(converted, y.tolist())
    assert_same_model(other, model)
    for got, expected in zip(outputs(other, converted), outputs(model, X), strict=True):
        assert_array_equal(got, expected)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_of_large_matrices_are_checked_in_chunks(index):
    # 2,600 rows of 0, 500 and 500 entries: more than a chunk, which ends within a row.
    indptr = np.repeat(np.arange(0, 1_300_001, 500, dtype=index), 2)[1:-1][: 2601 * 2]
    indices = np.tile(np.arange(500, dtype=index), 2600)
    X = sparse.csr_array((len(indptr) - 1, 500), dtype=np.float32)
    X.data, X.indices, X.indptr = np.ones(len(indices), np.float32), indices, indptr
    assert is_canonical(X)
    for place in (1, 1 << 20, len(indices) - 1):
        indices[place] -= 1
        assert not is_canonical(X)
        indices[place] += 1
        X.data[place] = 0
        assert not is_canonical(X)
        X.data[place] = 1


@BOTH
def test_numbers_that_vanish_in_float32_are_zeros(clicks, cls):
    X, y = clicks
    model = model_of(cls).fit(X, y)
    tiny = sparse.csr_array(np.where(X.toarray() == 0, 1e-60, X.toarray()))
    assert_same_model(model_of(cls).fit(tiny, y), model)
    assert_array_equal(model.predict(tiny), model.predict(X))


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


@each(
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


@pytest.mark.parametrize("known, others", [("ab", [0, 1]), ([0, 1], "ab")])
def test_labels_of_another_type_are_not_among_the_classes(clicks, known, others):
    # Objects are what pandas makes of a column of strings.
    X, y = clicks
    known, others = (
        np.array(list(labels), dtype=object if labels == "ab" else None)
        for labels in (known, others)
    )
    model = model_of(FMClassifier).partial_fit(X, known[y], classes=known)
    with pytest.raises(ValueError, match=r"y holds .* not among the classes"):
        model.partial_fit(X, others[y])


def test_partial_fit_needs_known_classes(clicks):
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
@each(
    "weight",
    [np.r_[-1.0, np.ones(59)], np.r_[np.nan, np.ones(59)], np.ones(59), np.ones((60, 1)), [0] * 60],
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
    "alpha_per": ["sample", None],
    "learning_rate": [0, -1.0, np.nan, np.inf, "fast"],
    "validation_fraction": [0, 1, -0.1, np.nan, None],
    "n_iter_no_change": [0, 1.5],
    "scoring": ["auc", 3, None],
    "verbose": [-1, "loud"],
    "n_jobs": [0, 1.5, "all"],
    "random_state": [-1, 1.5, "seed"],
    "class_weight": ["even", 3],
    "optimizer": ["nope", 3, None, SGD],
    "init": ["nope", 3, None, Normal],
    "loss": ["nope", 3, None, Huber],
    "ranks": [(), (8, 4), (2.5,), 8, "all"],
    "rank_assignment": ["closest", [1, 2, 3], 8, None],
    "counts": [[1, 2], "all", 8],
    "rank_sharing": ["both", None],
    "form": ["code", None],
    "dependent_weight": [-1e-9, np.nan, np.inf, None],
    "device": ["gpu", "cuda:first", 3, None],
    "hidden_layer_sizes": [(0,), (2.5,), 8, "small", None],
    "alpha_layers": [-1e-9, np.nan, np.inf, None],
    "dropout": [1, -0.1, np.nan, None],
    "layer_optimizer": ["nope", "cf_sgd", 3, None, SGD],
    "alpha_fields": [-1e-9, np.nan, np.inf, None],
    "field_optimizer": ["nope", "cf_sgd", 3, None, SGD],
    "fields": [[1, 2], "all", 8],
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
        ({"optimizer": SGD(1), "learning_rate": 0.1}, "learning_rate=0.1 .* optimizer=SGD"),
        ({"init": Normal("wide")}, "'scale' parameter of Normal"),
        ({"init": Normal(-1.0)}, "'scale' parameter of Normal"),
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
    with pytest.raises(ValueError, match="n_jobs=0 is not a number of threads"):
        model.predict(clicks[0])


def test_vector_instead_of_a_matrix():
    vector = sparse.coo_array(np.arange(4.0))  # scipy before 1.13 makes one row of it
    with pytest.raises(ValueError, match="X is a sparse array of 1 dim|inconsistent numbers"):
        FMRegressor(2).fit(vector, np.arange(4.0))


def test_rows_that_overflow_scores_are_an_error():
    model = FMRegressor(2, alpha_factors=0, init=Normal(0.1)).fit(np.eye(4), np.arange(4.0))
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


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_dates_are_no_numbers(library):
    module = pytest.importorskip(library)
    dates = np.arange(4).astype("datetime64[D]").astype("datetime64[us]")
    columns = {"a": np.arange(4.0), "since": dates}
    X = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    with pytest.raises(TypeError, match="X holds .*; give numbers: convert dates"):
        FMRegressor().fit(X, np.arange(4.0))


@each(
    "X, error, message",
    [
        ([["ann"], ["bob"]], ValueError, "X holds text: could not convert string to float: 'ann'"),
        ([[{}], [{}]], TypeError, "X holds what is not a number: float.. argument must be"),
        (RowStream(lambda: iter([])), TypeError, "X is a stream, which only fit of factor"),
    ],
)
def test_rows_that_are_no_numbers(X, error, message):
    model = FMRegressor(1, max_iter=1).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(error, match=message):
        model.predict(X)


def test_queries_are_refused(clicks):
    polars = pytest.importorskip("polars")
    query = polars.DataFrame(np.eye(4)).lazy()
    for use in (
        lambda: FMClassifier().fit(query, [0, 1, 0, 1]),
        lambda: FMClassifier(2, max_iter=1).fit(*clicks).predict(query),
    ):
        with pytest.raises(TypeError, match=r"X is a LazyFrame; pass the rows, X\.collect\(\)"):
            use()


@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_too_few_rows_for_early_stopping(cls):
    rows = "two rows of every class on" if cls is FMClassifier else "two rows on"
    with pytest.raises(ValueError, match=f"validation_fraction=0.2 needs {rows} both sides"):
        cls(early_stopping=True).fit(np.eye(3), [0, 1, 0])
