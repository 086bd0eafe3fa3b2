"""Estimators of matrices tell tables of ids from matrices, whatever the container."""

import warnings

import numpy as np
import pytest
from helpers import each
from scipy import sparse

from freqfm import ALSRecommender, FastVAERecommender, FMRegressor, MFRecommender
from freqfm._input.item_tables import refuse_table
from freqfm._messages import warn_once
from freqfm.model_selection import make_ranking_scorer

RNG = np.random.default_rng(0)
N = 60
USERS, ITEMS = RNG.integers(101, 130, N), RNG.integers(1001, 1040, N)
PRICES, RATINGS = RNG.random(N), RNG.integers(1, 6, N)
TIMES = RNG.integers(1_600_000_000, 1_700_000_000, N)


def rows(columns):
    return list(zip(*(values.tolist() for values in columns.values()), strict=True))


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


FRAMES = {
    "pandas": pandas,
    "pandas with nullable types": lambda columns: pandas(columns).convert_dtypes(),
    "pandas with types of arrow": lambda columns: pandas(columns).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "polars": polars,
    "pyarrow": arrow,
    "a record batch": lambda columns: arrow(columns).to_batches()[0],
}
PLAIN = {
    "tuples": rows,
    "a tuple of tuples": lambda columns: tuple(rows(columns)),
    "lists": lambda columns: [list(row) for row in rows(columns)],
    "an array": lambda columns: np.array(rows(columns)),
    "an array of objects": lambda columns: np.array(rows(columns), dtype=object),
    "a numbered frame": lambda columns: pandas(columns).set_axis(range(len(columns)), axis=1),
}

# Whether a frame and whether a plain container with these columns is surely a table.
TABLES = {
    "ids": ({"visitor_code": USERS, "sku": ITEMS}, True, False),
    "other names": ({"a": USERS, "b": ITEMS}, True, False),
    "ratings": ({"visitor_code": USERS, "product_nr": ITEMS, "x": RATINGS}, False, False),
    "a known name": ({"visitor_code": USERS, "sku": ITEMS, "x": RATINGS}, True, False),
    "prices": ({"a": USERS, "b": ITEMS, "x": PRICES}, False, False),
    "as floats": ({"a": USERS * 1.0, "b": ITEMS * 1.0, "x": RATINGS}, False, False),
    "times": ({"a": USERS, "b": ITEMS, "c": TIMES}, True, True),
    "milliseconds": ({"a": USERS, "b": ITEMS, "x": PRICES, "c": TIMES * 1000}, True, True),
    "dates": ({"a": USERS, "b": ITEMS, "c": TIMES.astype("M8[s]").astype("M8[us]")}, True, True),
    "five columns": (
        {"a": USERS, "b": ITEMS, "x": RATINGS, "y": PRICES, "z": RATINGS},
        False,
        False,
    ),
    "five columns with times": (
        {"a": USERS, "b": ITEMS, "x": RATINGS, "c": TIMES, "z": RATINGS},
        True,
        True,
    ),
    "codes from zero": ({"a": 8 * (USERS - 101), "b": 8 * (ITEMS - 1001)}, True, False),
    "text of numbers": ({"a": USERS.astype(str), "b": ITEMS.astype(str)}, True, True),
}


def is_refused(X):
    """Return whether X is an error, or else warned of."""
    warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            refuse_table(X)
        except ValueError as error:
            assert "InteractionRecommender" in str(error)
            return True
    assert len(caught) == 1, "silent"
    assert "InteractionRecommender" in str(caught[0].message)
    return False


@each("name, table", [(name, table) for name in [*FRAMES, *PLAIN] for table in TABLES])
def test_tables_are_no_matrices(name, table):
    columns, in_frame, plain = TABLES[table]
    if table == "dates" and name == "an array":
        return  # NumPy has no array of numbers and dates
    X = {**FRAMES, **PLAIN}[name](columns)
    surely = in_frame if name in FRAMES else plain or "tuple" in name
    assert is_refused(X) == surely


COUNTS = RNG.poisson(np.r_[90, 60, 30, np.ones(37)], (N, 40))
# Matrices that are no tables: with names of their columns if they have some.
MATRICES = {
    "ratings": RNG.integers(1, 6, (60, 40)) * (RNG.random((60, 40)) < 0.3),
    "all rated": RNG.integers(1, 11, (N, 4)),
    "percentages": np.r_[RNG.integers(1, 101, (N, 5)), [[100, 100, 99, 99, 99]]],
    "counts": RNG.poisson(200, (N, 8)),
    "counts of few items": RNG.poisson(300, (N, 4)) * (RNG.random((N, 4)) < 0.5),
    "popular items first": COUNTS,
    "amounts of money": np.round(1e9 * RNG.random((N, 3)), 2),
    "large amounts of money": np.round(1e9 * RNG.random((N, 30))),
    "binary": RNG.integers(0, 2, (N, 2)),
    "an example": np.arange(24).reshape(8, 3),
    "triangle": np.tril(np.ones((8, 8))),
    "identity": np.eye(8),
}


@each("name, matrix", [(name, matrix) for name in [*FRAMES, *PLAIN] for matrix in MATRICES])
def test_matrices_are_no_tables(name, matrix):
    X = MATRICES[matrix]
    columns = {f"tea {place}": values for place, values in enumerate(X.T)}
    warn_once.cache_clear()
    with warnings.catch_warnings():
        # Tuples are a hint.
        warnings.simplefilter("ignore" if "tuple" in name else "error")
        refuse_table({**FRAMES, **PLAIN}[name](columns))


def test_a_sparse_matrix_is_no_table():
    X = sparse.csr_array(np.column_stack([USERS, ITEMS]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MFRecommender(2, max_iter=1).fit(X)


@each(
    "words", ["book movie music", "user a b", "member card", "score a", "stars plays x", "tea jam"]
)
def test_columns_of_a_matrix_may_have_any_name(words):
    names = words.split()
    X = RNG.integers(0, 3, (N, len(names)))
    warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_table(pandas(dict(zip(names, X.T, strict=True))))


PIVOT = {"visitor_id": np.arange(3, 63), **dict(zip("abcd", COUNTS.T[5:], strict=False))}


@each("name", FRAMES)
def test_ids_of_users_beside_a_matrix_are_refused(name):
    shuffled = {key: values[::-1] for key, values in PIVOT.items()}
    named = {**PIVOT, "visitor_id": [f"v{number}" for number in PIVOT["visitor_id"]]}
    for columns in (PIVOT, shuffled, named):
        with pytest.raises(ValueError, match="column 'visitor_id' of X holds ids, one for each"):
            refuse_table(FRAMES[name](columns))


@each("name", [*FRAMES, *PLAIN])
def test_a_first_column_that_counts_the_rows_is_warned_of(name):
    columns = {"Unnamed: 0" if key == "visitor_id" else key: PIVOT[key] for key in PIVOT}
    order = RNG.permutation(N)
    # In the order in which users appear, as Polars pivots.
    shuffled = {key: values[order] for key, values in columns.items()}
    for given in (columns, shuffled):
        warn_once.cache_clear()
        with pytest.warns(UserWarning, match="its first column looks like ids of the rows"):
            refuse_table({**FRAMES, **PLAIN}[name](given))


@each("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_every_method_refuses_a_table(cls):
    ids = rows({"visitor_code": USERS, "sku": ITEMS})
    model = cls(2, max_iter=1, random_state=0).fit(np.eye(4, 2))
    for use in (
        cls().fit,
        cls().partial_fit,
        model.partial_fit,
        model.predict,
        model.transform,
        model.recommend,
        model.score,
        lambda X: cls(early_stopping=True).fit(np.eye(N, 2) + 1, X_val=X),
        lambda X: make_ranking_scorer()(model, X),
    ):
        with pytest.raises(ValueError, match="X is a table of interactions.*InteractionRecomm"):
            use(ids)


# A pivot that leaves missing what did not happen.
COUNTED = {"tea": [1.0, None, 2.0], "jam": [None, 3.0, 1.0]}
PIVOTS = {
    "array": lambda: np.array([COUNTED["tea"], COUNTED["jam"]], dtype=float).T,
    "objects": lambda: np.array([COUNTED["tea"], COUNTED["jam"]], dtype=object).T,
    "lists": lambda: [list(row) for row in zip(*COUNTED.values(), strict=True)],
    "sparse": lambda: sparse.csc_array(np.array(list(COUNTED.values()), dtype=float)),
    "objects with pandas' NA": lambda: pandas(COUNTED).convert_dtypes().astype(object).to_numpy(),
    **{name: lambda make=make: make(COUNTED) for name, make in FRAMES.items()},
}


@pytest.mark.filterwarnings("ignore:X has feature names")
@each("name, cls", [(name, cls) for name in PIVOTS for cls in (MFRecommender, ALSRecommender)])
def test_missing_values_mean_no_interaction(name, cls):
    X = PIVOTS[name]()
    model = cls(2, max_iter=1, random_state=0).fit(
        np.ones((3, X.shape[1] if name == "sparse" else 2))
    )
    early = cls(early_stopping=True)
    for use in (
        cls().fit,
        cls().partial_fit,
        model.predict,
        model.transform,
        lambda X: early.fit(np.ones(np.shape(X)), X_val=X),
    ):
        with pytest.raises(ValueError, match=r"X contains NaN\. .* no interaction: fill it with 0"):
            use(X)


@each("cls", [MFRecommender, ALSRecommender, FMRegressor])
def test_what_a_mask_hides_is_not_used(cls):
    values = np.eye(3)
    X = np.ma.masked_array(values, mask=values == 1)
    model = cls(2, max_iter=1).fit(values, [0.0, 1.0, 2.0])
    for use in (lambda: cls(2).fit(X, [0.0, 1.0, 2.0]), lambda: model.predict(X)):
        with pytest.raises(ValueError, match=r"X is an array of which values are masked; fill"):
            use()
    # A mask that hides nothing.
    model.predict(np.ma.masked_array(values))
