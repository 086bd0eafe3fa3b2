"""InteractionRecommender: tables of any kind go in."""

import builtins

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_array_equal
from purchases import COLUMNS, FRAMES, ITEMS, MATRIX, ROWS, USERS, frame
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from freqfm import InteractionRecommender


def as_lists():
    return [list(row) for row in ROWS]


def as_objects():
    return np.array(ROWS, dtype=object)


def as_strings():
    return np.array(ROWS)


def as_batch():
    return frame("pyarrow").to_batches()[0]


@pytest.mark.parametrize(
    "make", [lambda: ROWS, lambda: tuple(ROWS), as_lists, as_objects, as_strings, as_batch, *FRAMES]
)
def test_every_table_gives_the_same_model(make):
    X = frame(make) if isinstance(make, str) else make()
    model = InteractionRecommender(Counting()).fit(X)
    assert model.user_ids_.tolist() == USERS
    assert model.item_ids_.tolist() == ITEMS
    assert_array_equal(model.estimator_.seen_, MATRIX)
    assert model.n_features_in_ == 3
    assert model.predict(X).shape == (9,)
    assert model.score(X) == 0  # all seen


def test_integers_stay_integers():
    X = np.array([[3, 10], [3, 20], [7, 10]], dtype=np.int32)
    model = InteractionRecommender(Counting()).fit(X)
    items, scores = model.recommend([7])
    assert model.user_ids_.dtype == np.int32
    assert items[0, 0] == 20 and items[0, 1:].tolist() == [None] * 9
    assert np.isneginf(scores[0, 1:]).all()
    items, _ = model.recommend([3, 7], n_recommendations=1, exclude_seen=False)
    assert items.dtype == np.int32


@pytest.mark.parametrize("make", [list, lambda rows: np.array(rows, dtype=object)])
def test_objects_that_are_numbers_become_numbers(make):
    model = InteractionRecommender(Counting()).fit(make([("ann", 5), ("bob", 7)]))
    assert model.item_ids_.dtype == np.int64 and model.user_ids_.dtype == object
    huge = InteractionRecommender(Counting()).fit(make([(2**70, 5.5), (1, 7)]))
    assert huge.user_ids_.tolist() == [1, 2**70]
    assert huge.item_ids_.dtype == np.float64
    assert huge.predict_pairs([2**70], [7]).shape == (1,)


def test_columns_by_name_and_place():
    pandas = pytest.importorskip("pandas")
    renamed = pandas.DataFrame(
        {"when": 1, "what": COLUMNS["item"], "who": COLUMNS["user"], "much": COLUMNS["value"]}
    )
    for columns in (
        {"user": "who", "item": "what", "value": "much"},
        {"user": 2, "item": 1, "value": 3},
        {"user": -2, "item": "what", "value": -1},
    ):
        model = InteractionRecommender(Counting(), **columns).fit(renamed)
        assert_array_equal(model.estimator_.seen_, MATRIX)
    model = InteractionRecommender(Counting(), user="who", item="what", value=None).fit(renamed)
    assert_array_equal(model.estimator_.seen_, np.where(MATRIX == 2.5, 2, MATRIX != 0))


def test_arrays_have_values_third_and_may_have_more():
    X = np.array([[1, 5, 2, 1000], [1, 6, 3, 1001]])
    assert_array_equal(InteractionRecommender(Counting()).fit(X).estimator_.seen_, [[2, 3]])
    plain = InteractionRecommender(Counting(), value=None).fit(X)
    assert_array_equal(plain.estimator_.seen_, [[1, 1]])
    swapped = InteractionRecommender(Counting(), user=1, item=0, value=None).fit(X)
    assert_array_equal(swapped.estimator_.seen_, [[1], [1]])


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_of_categories_and_dates(library):
    pandas = pytest.importorskip("pandas")
    users = pandas.Series(COLUMNS["user"], dtype="category")
    if library == "polars":
        users = (
            pytest.importorskip("polars")
            .Series(COLUMNS["user"])
            .cast(pytest.importorskip("polars").Categorical)
        )
    elif library == "pyarrow":
        users = pytest.importorskip("pyarrow").array(COLUMNS["user"]).dictionary_encode()
    X = frame(library, {"user": users, "item": COLUMNS["item"]})
    model = InteractionRecommender(Counting()).fit(X)
    assert model.user_ids_.tolist() == USERS
    dates = np.arange(9).astype("datetime64[D]").astype("datetime64[us]")
    X = frame(library, {"user": dates, "item": COLUMNS["item"]})
    with pytest.raises(TypeError, match="datetime64.*; ids are numbers, strings"):
        InteractionRecommender(Counting()).fit(X)
    X = frame(library, {"user": COLUMNS["user"], "item": COLUMNS["item"], "value": dates})
    with pytest.raises(ValueError, match=r"column of values \(2\) must hold numbers"):
        InteractionRecommender(Counting()).fit(X)


def test_frames_without_narwhals(monkeypatch):
    original = builtins.__import__

    def without(name, namespace=None, *args):
        # scikit-learn needs narwhals itself, from 1.9 on.
        if name == "narwhals" and namespace and namespace["__name__"].startswith("freqfm"):
            raise ImportError(name)
        return original(name, namespace, *args)

    frames = list(map(frame, FRAMES))
    monkeypatch.setattr(builtins, "__import__", without)
    for X in frames:
        model = InteractionRecommender(Counting()).fit(X)
        assert_array_equal(model.estimator_.seen_, MATRIX)


def test_lazy_frames_are_an_error_outside_of_fit():
    polars = pytest.importorskip("polars")
    model = InteractionRecommender(Counting()).fit(polars.DataFrame(COLUMNS))
    with pytest.raises(TypeError, match="X of type LazyFrame is not a DataFrame in memory"):
        model.score(polars.LazyFrame(COLUMNS))


@each(
    "X, match",
    [
        ([("ann",), ("bob",)], r"X has 1 feature\(s\).* column of users and a column of items"),
        ([], "X has 0|Expected 2D array"),
        (["ann", "bob"], "Expected 2D array, got 1D"),
        ([("ann", "tea"), ("bob",)], "inhomogeneous|Expected 2D array"),
        ([("ann", "tea"), (None, "tea")], r"column of users holds None at row 1"),
        ([("ann", "tea"), ("bob", np.nan)], r"column of items holds nan at row 1"),
        (np.array([[1, np.inf]]), "column of items holds inf at row 0; None, NaN and infinity"),
        ([("ann", 1), ("bob", "1")], "column of items holds values of the types int, str"),
        ([("ann", {"a": 1})], "column of items holds values of the types dict"),
        ([("ann", "tea", "much")], r"column of values \(2\) must hold numbers"),
        ([("ann", "tea", None)], r"column of values \(2\) holds nan at row 0"),
        ([("ann", "tea", -np.inf)], r"column of values \(2\) holds -inf at row 0"),
        ([("ann", "tea", 3e38), ("ann", "tea", 3e38)], "values holds .* overflow float32"),
        (sparse.csr_array(np.eye(3)), "(?i)sparse"),
        (np.ones((2, 2), dtype=complex), "Complex data not supported"),
        (np.array([["2020-01-01", "2020-01-02"]], dtype="datetime64[D]"), "ids are numbers"),
    ],
)
def test_wrong_tables(X, match):
    with pytest.raises((ValueError, TypeError), match=match):
        InteractionRecommender(Counting()).fit(X)


@pytest.mark.parametrize("library", FRAMES)
def test_missing_ids_of_frames(library):
    # pandas keeps no None in columns of strings and numbers.
    missing = "nan" if library == "pandas" else "None"
    for users in (["ann", None], [1, None]):
        with pytest.raises(ValueError, match=f"column of users holds {missing} at row 1"):
            InteractionRecommender(Counting()).fit(
                frame(library, {"user": users, "item": ["tea", "jam"]})
            )


def test_missing_marks_of_pandas():
    pandas = pytest.importorskip("pandas")
    for missing in (pandas.NA, pandas.NaT):
        with pytest.raises(ValueError, match="column of items holds .* at row 1"):
            InteractionRecommender(Counting()).fit([("ann", "tea"), ("bob", missing)])


@pytest.mark.parametrize(
    "columns, match",
    [
        ({"user": "who"}, r"user='who' is not a column of X, which has \['user'"),
        ({"item": 3}, "item=3 is not a column of X, which has 3 columns"),
        ({"item": -4}, "item=-4 is not a column"),
        ({"user": "item"}, "user and item would both be column 1"),
        ({"item": -3}, "item and user would both be column 0"),
        ({"value": 0}, "value and user would both be column 0"),
    ],
)
def test_wrong_columns(columns, match):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=match):
        InteractionRecommender(Counting(), **columns).fit(pandas.DataFrame(COLUMNS))
    with pytest.raises(ValueError, match="column of X, whose columns have no names"):
        InteractionRecommender(Counting(), value="value").fit(ROWS)


@pytest.mark.parametrize(
    "params",
    [
        {"n_recommendations": 0},
        {"n_recommendations": 1.5},
        {"user": None},
        {"item": 1.0},
        {"value": 1.0},
    ],
)
def test_every_parameter_is_checked(params):
    (name,) = params
    with pytest.raises(ValueError, match=rf"'{name}' parameter of InteractionRecommender"):
        InteractionRecommender(Counting(), **params).fit(ROWS)
    with pytest.raises(ValueError, match="'estimator' parameter of InteractionRecommender"):
        InteractionRecommender(TfidfTransformer()).fit(ROWS)
