"""Which columns of a table hold users, items, values and times, and what is said about it."""

import warnings

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_array_equal
from purchases import COLUMNS, FRAMES, MATRIX, ROWS, frame
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from freqfm import ALSRecommender, InteractionRecommender, MFRecommender
from freqfm._messages import warn_once
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    holdout_by_content,
    holdout_interactions,
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
        ("user_id:token", "item_id:token", "weight:float", "timestamp:float"),
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


def test_truth_values_are_no_places():
    for columns in ({"user": False}, {"item": True}, {"value": True}):
        with pytest.raises(TypeError, match=r"=(True|False) must be a column's position or name"):
            fit(ROWS, **columns)
    with pytest.raises(TypeError, match="time=True must be a column's position or name"):
        list(LeaveLastOut(time=True).split(ROWS))


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
    model = fit([row[:2] for row in (X if isinstance(X, list) else X.tolist())])
    with pytest.warns(UserWarning, match=r"columns are ignored, \[2"):
        model.partial_fit(X)
    for use in (fit([(*row[:2], 1) for row in np.array(X, dtype=object)]).partial_fit, model.fit):
        with pytest.raises(ValueError, match="what looks like times in column 2 of X.*value=None"):
            use(X)
    if len(X[0]) > 3:
        with pytest.raises(ValueError, match="time='auto' finds what looks like times in column 2"):
            list(LeaveLastOut().split(X))


def test_arrays_have_the_columns_of_the_frame_that_was_fitted():
    X = frame("pandas", {"timestamp": TIMES, "item": ITEMS, "user": USERS})
    model = fit(X)
    with pytest.warns(UserWarning, match="valid feature names"):
        assert_array_equal(model.predict(X.to_numpy()), model.predict(X))


LOG = {"user": USERS, "item": ITEMS, "weight": VALUES, "timestamp": TIMES}


def as_array(frame):
    return frame.to_numpy(dtype=object)


def as_tuples(frame):
    return list(frame.itertuples(index=False, name=None))


def as_numbered(frame):
    return frame.set_axis(range(frame.shape[1]), axis=1)


@each("convert", [*FRAMES, as_array, as_tuples, as_numbered])
@each(
    "columns",
    [["user", "item"], ["item", "user"], ["user", "item", "weight"], [*reversed(LOG)], [*LOG, "x"]],
)
def test_only_columns_that_are_used_are_needed(convert, columns):
    log = frame("pandas", LOG)
    names = isinstance(convert, str)
    if not names and columns[:2] != ["user", "item"]:
        return

    def converted(frame):
        if not names:
            return convert(frame)
        module = pytest.importorskip(convert)
        if convert == "pyarrow":
            return module.table(frame)
        return frame if convert == "pandas" else module.DataFrame(frame.to_dict("list"))

    X, some = converted(log), converted(log.assign(x=1)[columns])
    model, equal = fit(X), fit(X, value=None)
    assert_array_equal(model.predict(some), model.predict(X))
    assert model.score(some) == model.score(X)
    assert_array_equal(equal.partial_fit(some).estimator_.seen_, 2 * ONES)
    if "weight" in columns:
        assert_array_equal(model.partial_fit(some).estimator_.seen_, 2 * MATRIX)
        return
    with pytest.raises(ValueError, match="(value='weight' is not|X has 2 features).* value=None"):
        model.partial_fit(some)
    grown = model.set_params(value=None).partial_fit(some)
    assert_array_equal(grown.estimator_.seen_, MATRIX + ONES)


def test_columns_of_arrays_have_the_places_of_fit():
    log = frame("pandas", LOG)
    X = log[["timestamp", "user", "item", "weight"]]
    model = fit(as_array(X), user=1, item=2, value=3)
    assert len(model.predict(as_array(X))) == 9
    # The same number of columns could be users, items and weights.
    for some in (as_array(X)[:, 1:], as_array(X)[:, :3], as_array(X)[:, [1]]):
        with pytest.raises(ValueError, match=r"X has \d features, but .* is expecting 4 features"):
            model.predict(some)
    # Names tell the places, whatever was fitted.
    assert_array_equal(fit(as_array(log)).predict(X), fit(log).predict(log))
    assert_array_equal(fit(log, user=0, item=1).predict(X), fit(log).predict(log))
    users = fit_embedding(log)
    assert_array_equal(users.transform(log[["user"]]), users.transform(log))


def fit_embedding(X):
    return InteractionRecommender(MFRecommender(2, max_iter=1)).fit(X)


def test_values_that_fit_did_not_use_are_reported():
    log = frame("pandas", LOG)
    model = fit(log[["user", "item"]])
    with pytest.warns(UserWarning, match=r"counts as 1, and columns are ignored, \['weight'\]"):
        model.partial_fit(log)
    assert_array_equal(model.estimator_.seen_, 2 * ONES)


@each(
    "count",
    [
        lambda log: log.groupby(["user", "item"]).size(),
        lambda log: log.groupby(["user", "item"]).size().reset_index(),
        lambda log: log.groupby(["user", "item"]).size().reset_index(name="n"),
        lambda log: log.groupby(["user", "item"], as_index=False).size(),
        lambda log: log[["user", "item"]].value_counts(),
        lambda log: log.groupby(["item", "user"])["weight"].count(),
        lambda log: log.groupby(["item", "user"])[["weight"]].count(),
        lambda log: pytest.importorskip("polars").DataFrame(log).group_by("user", "item").len(),
        lambda log: (
            pytest.importorskip("pyarrow")
            .table(log)
            .group_by(["user", "item"])
            .aggregate([([], "count_all")])
        ),
    ],
)
def test_counts_of_groups_are_values(count):
    X = count(frame("pandas", {"user": USERS, "item": ITEMS, "weight": VALUES}))
    model = fit_silently(X)
    assert_array_equal(model.estimator_.seen_, ONES)
    assert len(model.predict(X)) == 8
    assert {len(test) for _, test in WarmStartKFold(2, random_state=0).split(X)} <= {1, 2, 3}
    parts = holdout_interactions(X, random_state=0)
    assert sum(len(model.predict(part)) for part in parts) == 8


def test_names_of_counts_mean_nothing_beside_other_columns():
    X = frame("pandas", {"user": USERS, "item": ITEMS, "size": VALUES, "colour": ITEMS})
    with pytest.warns(UserWarning, match=r"columns are ignored, \['size', 'colour'\]"):
        assert_array_equal(fit(X).estimator_.seen_, ONES)
    groups = X.groupby(["user", "item"])["size"].sum().rename_axis(["who", "what"])
    assert_array_equal(fit(groups, user="who", item="what").estimator_.seen_, MATRIX)


rng = np.random.default_rng(0)
RATINGS = (rng.random((60, 40)) < 0.1) * rng.integers(1, 6, (60, 40))


@each(
    "make",
    [
        np.asarray,
        np.ndarray.tolist,
        lambda X: list(map(tuple, X.tolist())),
        lambda X: X > 0,
        lambda X: X.astype(object),
        lambda X: X.astype(np.float32),
        lambda X: frame("pandas", X),
        lambda X: frame("pandas", X).replace(0, np.nan),
        lambda X: frame("pandas", X).set_axis(rng.permutation(999)[: X.shape[1]], axis=1),
        lambda X: frame("pandas", X).add_prefix("c"),
        lambda X: frame("pandas", X).add_prefix("item_"),
        lambda X: frame("polars", X),
        lambda X: frame("pyarrow", {f"c{place}": column for place, column in enumerate(X.T)}),
    ],
)
@pytest.mark.parametrize("n_items", [40, 12, 6])
def test_matrices_are_no_tables(make, n_items):
    X = make(RATINGS[:, :n_items])
    model = fit(ROWS)
    uses = [
        lambda: fit(X),
        lambda: model.partial_fit(X),
        lambda: model.predict(X),
        *(
            lambda cv=cv: list(cv.split(X))
            for cv in (WarmStartKFold(2), LeaveLastOut(time=None), GlobalTimeSplit(time=None))
        ),
    ]
    if hasattr(X, "columns"):
        uses += [lambda: holdout_interactions(X), lambda: holdout_by_content(X)]
    for use in uses:
        with pytest.raises(ValueError, match="a recommender that takes matrices|is not a column"):
            use()


@each("item", [ITEMS, [ITEMS.index(item) for item in ITEMS]])
@each(
    "pivot",
    [
        lambda log: log.pivot_table(index="user", columns="item", values="value"),
        lambda log: log.pivot_table(index="user", columns="item", values="value", fill_value=1),
        lambda log: log.groupby(["user", "item"]).size().unstack(fill_value=0),
        lambda log: pytest.importorskip("pandas").crosstab(log["user"], log["item"]),
    ],
)
def test_pivots_are_no_tables(item, pivot):
    X = pivot(frame("pandas", {"user": USERS, "item": item, "value": VALUES}))
    for use in (lambda: fit(X), lambda: holdout_interactions(X), lambda: fit(ROWS).predict(X)):
        with pytest.raises(ValueError, match="a recommender that takes matrices|is not a column"):
            use()
    fit(X.fillna(0), user=0, item=1, value=None)


def test_what_may_be_a_matrix_is_reported():
    pairs = np.column_stack([np.arange(60) % 9, np.arange(60) % 7])
    for X in (
        RATINGS[:, :4],
        RATINGS[:, :2],
        RATINGS[:, :3] + 0.5,
        rng.integers(1, 6, (60, 6)),
        np.column_stack([pairs, pairs, pairs]),
    ):
        warn_once.cache_clear()
        with pytest.warns(UserWarning, match=r"X of shape .* is read as a table .* user=0, item=1"):
            fit(X)
        fit_silently(X, user=0, item=1, value=None)
    wide = np.tile(pairs, 20)
    for X in (
        pairs,
        np.char.add("u", wide.astype(str)),
        np.zeros((2, 2)),
        np.insert(pairs, 2, 0, axis=1),
    ):
        fit_silently(X, value=None)
    fit_silently(wide, user=0, item=1, value=None)
    fit_silently(frame("pandas", wide).rename(columns={0: "user", 1: "item"}), value=None)


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


@each("n", [None, [4], "4", 0])
def test_numbers_of_columns_that_no_fit_has_left(n):
    model = InteractionRecommender(MFRecommender(2, max_iter=1)).fit([("a", 1), ("b", 2)])
    model.n_features_in_ = n
    with pytest.raises(ValueError, match="n_features_in_ of InteractionRecommender is"):
        model.score([("a", 1)])
