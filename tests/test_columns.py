"""Which columns of a table hold users, items, values and times, and what is said about it."""

import warnings

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_array_equal
from purchases import COLUMNS, FRAMES, MATRIX, frame
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from freqfm import ALSRecommender, InteractionRecommender, MFRecommender
from freqfm._warnings import warn_once
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    make_ranking_scorer,
)

USERS, ITEMS, VALUES = COLUMNS["user"], COLUMNS["item"], COLUMNS["value"]
TIMES = [881250949 + 7 * row for row in range(9)]
ONES = np.where(MATRIX == 2.5, 2, MATRIX != 0)


@pytest.fixture(autouse=True)
def nothing_warned():
    warn_once.cache_clear()


def fit(X, **columns):
    return InteractionRecommender(Counting(), **columns).fit(X)


def fit_silently(X, **columns):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fit(X, **columns)


@pytest.mark.parametrize("library", FRAMES)
@each(
    "user, item, value, time",
    [
        ("user", "item", "value", "time"),
        ("user_id", "item_id", "weight", "timestamp"),
        ("userId", "movieId", "count", "date"),
        ("UserID", "MovieID", "Play Count", "Unix Time"),
        ("User Id", "Track-ID", "WEIGHT", "created_at"),
        ("uid", "iid", "plays", "Date"),
        ("CUSTOMER_ID", "product_id", "quantity", "TIME"),
        ("customer", "asin", "Value", "event_time"),
        ("CustomerID", "StockCode", "Quantity", "InvoiceDate"),
        ("customer_id", "article_id", "count", "t_dat"),
        ("user_id", "product_id", "plays", "event_timestamp"),
        ("member", "book", "weight", "order_date"),
        ("visitor", "sku", "value", "ts"),
    ],
)
def test_usual_names_in_any_order(library, user, item, value, time):
    X = frame(library, {time: TIMES, value: VALUES, "Title": ITEMS, item: ITEMS, user: USERS})
    assert_array_equal(fit_silently(X).estimator_.seen_, MATRIX)
    assert_array_equal(fit_silently(X, value=None).estimator_.seen_, ONES)
    for splitter in (
        WarmStartKFold(2, random_state=0),
        LeaveLastOut(drop_repeated=False),
        GlobalTimeSplit(drop_cold=False, drop_repeated=False),
    ):
        columns = frame(library, {"user": USERS, "item": ITEMS, "time": TIMES})
        for one, other in zip(splitter.split(X), splitter.split(columns), strict=True):
            assert_array_equal(one[1], other[1])


def test_of_two_usual_names_the_one_that_is_given_to_another_role_is_left_out():
    pytest.importorskip("pandas")
    X = frame("pandas", {"track_id": USERS, "artist_id": ITEMS})
    assert_array_equal(fit(X, user="track_id").estimator_.seen_ != 0, MATRIX != 0)


@pytest.mark.parametrize("library", FRAMES)
@each(
    "columns, match",
    [
        (
            {"a": USERS, "b": ITEMS},
            r"user='auto' finds no column of users in X, whose columns are \['a', 'b'\]. Pass "
            r"user=..., item=...",
        ),
        (
            {"user": USERS, "thing": ITEMS},
            r"no column of items .* \['user', 'thing'\].*item=\.\.\.",
        ),
        (
            {"user": USERS, "artist_id": ITEMS, "track_id": ITEMS},
            r"several columns of items, \['artist_id', 'track_id'\], in X",
        ),
        ({"user": USERS, "user_id": USERS, "item": ITEMS}, "several columns of users"),
        # A file without a header that was read as if it had one.
        ({"196": USERS, "242": ITEMS, "3": VALUES}, r"whose columns are \['196', '242', '3'\]"),
        (
            {"user": USERS, "item": ITEMS, "rating": VALUES, "count": VALUES},
            r"several columns of values, \['rating', 'count'\].*value=None to count",
        ),
    ],
)
def test_ambiguous_names(library, columns, match):
    X = frame(library, columns)
    with pytest.raises(ValueError, match=match):
        fit(X)
    if "value=None" not in match:
        for splitter in (WarmStartKFold(2), LeaveLastOut(time=None)):
            with pytest.raises(ValueError, match=match):
                list(splitter.split(X))


@pytest.mark.parametrize("library", FRAMES)
def test_given_columns_take_precedence(library):
    X = frame(library, {"user": ITEMS, "user_id": USERS, "item": ITEMS, "much": VALUES})
    assert_array_equal(fit_silently(X, user="user_id", value="much").estimator_.seen_, MATRIX)
    assert_array_equal(fit_silently(X, user=1, value=3).estimator_.seen_, MATRIX)
    # Of two candidates, the one that is used as another column is excluded.
    assert fit_silently(X, user=1, item="user", value=None).item_ids_.tolist() == sorted({*ITEMS})
    X = frame(library, {"who": USERS, "user": ITEMS})
    assert_array_equal(fit_silently(X, user="who", item="user").estimator_.seen_, ONES)
    X = frame(library, {"user": USERS, "item": ITEMS, "date": TIMES, "time": TIMES})
    with pytest.raises(ValueError, match=r"several columns of times, \['date', 'time'\]"):
        list(LeaveLastOut().split(X))


def test_names_that_occur_twice():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    X = pandas.DataFrame([[1, 2, 3]], columns=["user", "item", "user"])
    for table in (X, pyarrow.table([[1], [2], [3]], names=["user", "item", "user"])):
        with pytest.raises(ValueError, match=r"several columns of the name \['user'\]; rename"):
            fit(table)


def test_numbered_names_are_none():
    pandas = pytest.importorskip("pandas")
    for names in (
        range(4),
        [0, 1, 2, 3],
        ["col_0", "col_1", "col_2", "col_3"],
        ["x1", "x2", "x3", "x4"],
    ):
        X = pandas.DataFrame(dict(zip(names, [USERS, ITEMS, VALUES, TIMES], strict=True)))
        assert_array_equal(fit_silently(X).estimator_.seen_, MATRIX)
        assert len(list(LeaveLastOut().split(X))) == 1
    for names in ("abcd", ["a1", "b2", "a3", "b4"], ["x2", "x1", "x3", "x4"], ["x1", "x01"]):
        X = pandas.DataFrame(dict(zip(names, [USERS, ITEMS, VALUES, TIMES], strict=False)))
        with pytest.raises(ValueError, match="no column of users"):
            fit(X)


def test_ratings_used_as_weights_are_reported_once():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"userId": USERS, "movieId": ITEMS, "rating": VALUES, "timestamp": TIMES})
    with pytest.warns(UserWarning, match="user='userId', item='movieId', value='rating'") as told:
        model = fit(X)
    assert_array_equal(model.estimator_.seen_, MATRIX)
    assert len(told) == 1 and told[0].filename == __file__
    assert "value=None to count every interaction as 1" in str(told[0].message)
    assert_array_equal(fit_silently(X).estimator_.seen_, MATRIX)
    with pytest.warns(UserWarning, match="value='overall'"):
        fit(X.rename(columns={"rating": "overall"}))


def test_ignored_columns_are_reported_once():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"user": USERS, "item": ITEMS, "price": VALUES, "time": TIMES})
    with pytest.warns(UserWarning, match=r"every interaction counts as 1, .* \['price'\]. Pass"):
        model = fit(X)
    assert_array_equal(model.estimator_.seen_, ONES)
    fit_silently(X)
    fit_silently(X.drop(columns="price"))
    swapped = np.column_stack([np.arange(3), np.arange(3), np.ones(3)])
    with pytest.warns(UserWarning, match=r"user=1, item=0: .* ignored, \[2\]"):
        fit(swapped, user=1, item=0)


def test_what_is_silent():
    pairs = [("ann", "jam"), ("bob", "tea")]
    for columns in ({"value": None}, {}):
        assert_array_equal(fit_silently(pairs, **columns).estimator_.seen_, np.eye(2))
    weighed = fit_silently([("ann", "jam", 2.0), ("bob", "tea", 3)])
    assert_array_equal(weighed.estimator_.seen_, np.diag([2, 3]))
    assert_array_equal(fit_silently(np.array([[1, 2, 3, 881250949]])).estimator_.seen_, [[3]])
    X = frame("pandas", {"user": USERS, "item": ITEMS, "rating": VALUES})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(WarmStartKFold(2).split(X))) == 2
        assert len(fit(X, value="rating").predict(X)) == len(USERS)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_search_reports_once(n_jobs):
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(9, size=200), "item": rng.integers(9, size=200)}
    X = frame("pandas", {**columns, "rating": rng.integers(1, 6, size=200)})
    search = GridSearchCV(
        InteractionRecommender(Counting()),
        {"n_recommendations": [1, 2, 3, 4]},
        cv=WarmStartKFold(3, random_state=0),
        scoring=make_ranking_scorer("map"),
    )
    if n_jobs:
        import joblib

        with joblib.parallel_config("threading", n_jobs=n_jobs), pytest.warns() as told:
            search.fit(X)
    else:
        with pytest.warns() as told:
            search.fit(X)
    assert len([warning for warning in told if "value='rating'" in str(warning.message)]) == 1


TIMES_THIRD = [
    [(1, 2, 881250949), (1, 3, 881250950)],
    [("ann", "tea", "978300760")],
    np.array([[1, 2, 20240131, 5], [1, 3, 20240201, 4]]),
    np.array([[1, 2, 1.7e12]]),
    [("ann", "tea", 1.7e9 + 0.5), ("ann", "jam", 1.6e9 + 0.25), ("bob", "jam", 0.0)],
]


@pytest.mark.parametrize("X", TIMES_THIRD)
def test_times_where_values_are_expected(X):
    with pytest.raises(ValueError, match="what looks like times in column 2 of X.*value=None"):
        fit(X)
    assert fit(X, value=None).estimator_.seen_.max() == 1
    assert fit(X, value=2).estimator_.seen_.max() > 1e7
    if len(X[0]) > 3:
        with pytest.raises(ValueError, match="time='auto' finds what looks like times in column 2"):
            list(LeaveLastOut().split(X))


def test_arrays_have_the_columns_of_the_frame_that_was_fitted():
    X = frame("pandas", {"timestamp": TIMES, "item": ITEMS, "user": USERS})
    model = fit(X)
    with pytest.warns(UserWarning, match="valid feature names"):
        assert_array_equal(model.predict(X.to_numpy()), model.predict(X))


def test_tables_are_no_matrices():
    X = frame("pandas", {"userId": [1, 1, 2, 2], "movieId": [1, 2, 1, 2], "rating": [5, 3, 4, 1]})
    scorer = make_ranking_scorer()
    matrix = MFRecommender(2, max_iter=1).fit(np.eye(4))
    for use in (lambda: MFRecommender(2).fit(X), lambda: scorer(matrix, X)):
        with pytest.raises(ValueError, match="X is a table of interactions, with the columns"):
            use()
    # A matrix in a DataFrame, whose columns are items.
    assert MFRecommender(2, max_iter=1).fit(X.rename(columns=str.upper).set_axis([*"abc"], axis=1))


def test_an_array_of_ids_is_no_matrix():
    ids = np.random.default_rng(0).integers(500, size=(90, 2))
    with pytest.warns(UserWarning, match=r"X of shape \(90, 2\) is read as a matrix of 90 users"):
        MFRecommender(2, max_iter=1).fit(ids)
    for matrix in (ids % 100, ids + 0.5, np.tile(ids, 3), ids % [500, 100], ids % [100, 500]):
        warn_once.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            MFRecommender(2, max_iter=1).fit(matrix)


@pytest.mark.parametrize("model", [MFRecommender(2, max_iter=1), ALSRecommender(2, max_iter=1)])
def test_a_transposed_matrix_is_refused(model):
    X = sparse.random(30, 20, 0.2, format="csr", dtype=np.float32, random_state=0)
    model.fit(X)
    for use in (model.partial_fit, model.recommend, model.transform, model.predict):
        for given in (X.T, X.T.toarray()):
            with pytest.raises(ValueError, match=r"X of shape \(20, 30\) looks transposed"):
                use(given)
    # Of a model with fewer users than items.
    wide = MFRecommender(2, max_iter=1).fit(X.T)
    with pytest.raises(ValueError, match=r"X of shape \(30, 20\) looks transposed"):
        wide.partial_fit(X)
