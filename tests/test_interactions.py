"""InteractionRecommender: tables of any kind in, ids out; and freqfm.recommend."""

import builtins
import pickle
import warnings

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from freqfm import InteractionRecommender, recommend
from freqfm.exceptions import DivergenceError
from freqfm.model_selection import WarmStartKFold

ROWS = [
    ("ann", "tea", 1.0),
    ("ann", "jam", 2.0),
    ("bob", "tea", 1.0),
    ("bob", "jam", 1.0),
    ("bob", "egg", 3.0),
    ("eve", "rum", 1.0),
    ("joe", "rum", 0.5),
    ("joe", "gin", 1.0),
    ("ann", "jam", 0.5),
]
USERS, ITEMS = ["ann", "bob", "eve", "joe"], ["egg", "gin", "jam", "rum", "tea"]
MATRIX = np.array(
    [[0, 0, 2.5, 0, 1], [3, 0, 1, 0, 1], [0, 0, 0, 1, 0], [0, 1, 0, 0.5, 0]], dtype=np.float32
)
COLUMNS = dict(zip(["user", "item", "value"], map(list, zip(*ROWS, strict=True)), strict=True))


@pytest.fixture
def model():
    return InteractionRecommender(Counting()).fit(ROWS)


def frame(library, columns=COLUMNS):
    module = pytest.importorskip(library)
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


FRAMES = ["pandas", "polars", "pyarrow"]


@parametrize_with_checks([InteractionRecommender(Counting())])
def test_sklearn_compatible(estimator, check):
    check(estimator)
    assert estimator is not None


# What goes in


def as_lists():
    return [list(row) for row in ROWS]


def as_objects():
    return np.array(ROWS, dtype=object)


def as_strings():
    return np.array(ROWS)


@pytest.mark.parametrize(
    "make", [lambda: ROWS, lambda: tuple(ROWS), as_lists, as_objects, as_strings, *FRAMES]
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
    model = InteractionRecommender(Counting(), user="who", item="what").fit(renamed)
    assert_array_equal(model.estimator_.seen_, np.where(MATRIX == 2.5, 2, MATRIX != 0))


@pytest.mark.parametrize("library", FRAMES)
def test_columns_that_suggest_themselves(library):
    def seen(**columns):
        return InteractionRecommender(Counting()).fit(frame(library, columns)).estimator_.seen_

    users, items, values = COLUMNS["user"], COLUMNS["item"], COLUMNS["value"]
    ones = np.where(MATRIX == 2.5, 2, MATRIX != 0)
    assert_array_equal(seen(item=items, value=values, user=users), MATRIX)
    assert_array_equal(seen(userId=users, movieId=items, rating=values, timestamp=values), MATRIX)
    assert_array_equal(seen(userId=users, movieId=items, timestamp=values), ones)
    assert_array_equal(seen(user=users, item=items, rating=values), ones)
    assert_array_equal(seen(a=users, item=items, value=values), MATRIX)


def test_arrays_have_values_third_and_may_have_more():
    X = np.array([[1, 5, 2, 1000], [1, 6, 3, 1001]])
    assert_array_equal(InteractionRecommender(Counting()).fit(X).estimator_.seen_, [[2, 3]])
    plain = InteractionRecommender(Counting(), value=None).fit(X)
    assert_array_equal(plain.estimator_.seen_, [[1, 1]])
    swapped = InteractionRecommender(Counting(), user=1, item=0).fit(X)
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
    X = frame(library, {"a": COLUMNS["user"], "b": COLUMNS["item"], "c": dates})
    with pytest.raises(ValueError, match=r"column of values \(2\) must hold numbers"):
        InteractionRecommender(Counting()).fit(X)


def test_pandas_without_narwhals(monkeypatch):
    original = builtins.__import__

    def without(name, namespace=None, *args):
        # scikit-learn needs narwhals itself, from 1.9 on.
        if name == "narwhals" and namespace and namespace["__name__"].startswith("freqfm"):
            raise ImportError(name)
        return original(name, namespace, *args)

    X = {library: frame(library) for library in ("pandas", "polars")}
    monkeypatch.setattr(builtins, "__import__", without)
    model = InteractionRecommender(Counting())
    assert_array_equal(model.fit(X["pandas"]).estimator_.seen_, MATRIX)
    with pytest.raises(ImportError, match=r"X is a polars DataFrame.*'freqfm\[frames\]'"):
        model.fit(X["polars"])


def test_lazy_frames_are_an_error():
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match="X of type LazyFrame is not a frame in memory"):
        InteractionRecommender(Counting()).fit(polars.LazyFrame(COLUMNS))


@pytest.mark.parametrize(
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
        ([("ann", "tea", None)], r"column of values \(2\) holds nan in row 0"),
        ([("ann", "tea", -np.inf)], r"column of values \(2\) holds -inf in row 0"),
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
    for users in (["ann", None], [1, None]):
        with pytest.raises(ValueError, match="column of users holds None at row 1"):
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
        ({"user": "item"}, "item and user would both be column 1"),
        ({"value": 0}, "value and user would both be column 0"),
    ],
)
def test_wrong_columns(columns, match):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=match):
        InteractionRecommender(Counting(), **columns).fit(pandas.DataFrame(COLUMNS))
    with pytest.raises(ValueError, match="array, whose columns have no names"):
        InteractionRecommender(Counting(), value="value").fit(ROWS)


@pytest.mark.parametrize(
    "params", [{"k": 0}, {"k": 1.5}, {"user": None}, {"item": 1.0}, {"value": 1.0}]
)
def test_every_parameter_is_checked(params):
    (name,) = params
    with pytest.raises(ValueError, match=rf"'{name}' parameter of InteractionRecommender"):
        InteractionRecommender(Counting(), **params).fit(ROWS)
    with pytest.raises(ValueError, match="'estimator' parameter of InteractionRecommender"):
        InteractionRecommender(TfidfTransformer()).fit(ROWS)


# What comes out


def test_recommend(model):
    items, scores = model.recommend(["eve", "ann"], n_recommendations=2)
    assert items.tolist() == [["gin", "jam"], ["egg", "rum"]]
    assert scores.shape == (2, 2) and (np.diff(scores, axis=1) < 0).all()
    every, _ = model.recommend(n_recommendations=2)
    assert_array_equal(every[[2, 0]], items)
    single, its_scores = model.recommend("eve", n_recommendations=2)
    assert_array_equal(single, items[0])
    assert_array_equal(its_scores, scores[0])
    assert model.recommend(np.array("zoe"))[0].shape == (10,)
    assert model.recommend([])[0].shape == (0, 10)


def test_unknown_users_get_what_an_empty_history_gets(model):
    items, scores = model.recommend(["zoe", "ann", "zed"], n_recommendations=5)
    assert items[0].tolist() == items[2].tolist() == ["jam", "egg", "tea", "rum", "gin"]
    assert items[1].tolist() == ["egg", "rum", "gin", None, None]
    empty = model.estimator_.recommend(sparse.csr_array((1, 5)), n_recommendations=5)
    assert_array_equal(scores[[0]], empty[1])


def test_candidates_and_exclude(model):
    items, _ = model.recommend(
        ["ann", "zoe"], n_recommendations=2, candidates=["gin", "egg", "fig"], exclude=["egg"]
    )
    assert items.tolist() == [["gin", None]] * 2
    items, _ = model.recommend(["ann"], n_recommendations=5, exclude_seen=False, exclude=["fig"])
    assert sorted(items[0]) == ITEMS
    with pytest.raises(ValueError, match="candidates holds no item that fit has seen"):
        model.recommend(["ann"], candidates=["fig"])


def test_pairs(model):
    codes = [USERS.index(user) for user, *_ in ROWS], [ITEMS.index(item) for _, item, _ in ROWS]
    expected = model.estimator_.predict_pairs(*codes)
    assert_array_equal(model.predict(ROWS), expected)
    pairs = [row[0] for row in ROWS], [row[1] for row in ROWS]
    assert_array_equal(model.predict_pairs(*pairs), expected)
    with pytest.raises(ValueError, match="users has 1 ids and items has 2"):
        model.predict_pairs(["ann"], ["tea", "jam"])


def test_similar_and_explain(model):
    items, scores = model.similar_items(["tea", "gin"], n=5)
    assert items.tolist() == [
        ["jam", "egg", "gin", "rum", None],
        ["rum", "egg", "jam", "tea", None],
    ]
    assert scores[0, 0] == 2
    users, _ = model.similar_users(["eve"], n=1)
    assert users.tolist() == [["joe"]]
    assert model.similar_users("eve", n=1)[0].tolist() == ["joe"]
    assert model.similar_items("tea", n=1)[1].tolist() == [2]
    explanation = model.explain("ann", "egg")
    assert explanation.history.tolist() == ["jam", "tea"]
    assert explanation.contributions.tolist() == [1, 1] and explanation.score == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.predict([("ann", "tea", 1), ("zoe", "tea", 1)]),
        lambda model: model.predict_pairs(["ann", "zoe"], ["tea", "tea"]),
        lambda model: model.similar_users(["zoe"]),
        lambda model: model.similar_items(["zoe"]),
        lambda model: model.explain("zoe", "tea"),
        lambda model: model.explain("ann", "zoe"),
    ],
)
def test_unknown_ids(model, use):
    with pytest.raises(ValueError, match=r"1 id\(s\) that fit has not seen: zoe"):
        use(model)


@pytest.mark.parametrize("ids", [[3], [3.5], [None], [["ann"]], [b"ann"], np.array(["NaT"], "M8")])
def test_ids_of_another_kind(model, ids):
    for use in (
        lambda: model.recommend(ids),
        lambda: model.recommend(["ann"], candidates=ids),
        lambda: model.recommend(["ann"], exclude=ids),
        lambda: model.similar_items(ids),
    ):
        with pytest.raises((TypeError, ValueError), match="users|candidates|exclude|items"):
            use()


@pytest.mark.parametrize(
    "known, asked, found",
    [
        (np.array([1, 2]), [2.0, 1, 300], [1, 0, -1]),
        (np.array([1, 2], dtype=np.int8), np.array([300, 2]), [-1, 1]),
        (np.array([1, 2], dtype=np.uint64), [1, 2], [0, 1]),
        (np.array([1, 2**63], dtype=np.uint64), np.array([2**63], dtype=np.uint64), [1]),
        (np.array([1.0, 2.5]), [1, 2.5], [0, 1]),
        (np.array(["a", "b"]), ["b", "abc"], [1, -1]),
        (np.array(["a", "b"], dtype=object), np.array(["b", "abc"]), [1, -1]),
        (np.array(["a", "b"], dtype=object), np.str_("a"), [0]),
        (np.array([False, True]), [True], [1]),
    ],
)
def test_ids_of_comparable_types(known, asked, found):
    X = np.empty((2, 2), dtype=known.dtype)
    X[:, 0] = X[:, 1] = known
    model = InteractionRecommender(Counting()).fit(X)
    assert model._find("user", asked, "users", unknown="-1").tolist() == found


@pytest.mark.parametrize("known, asked", [([1, 2], [1.5]), ([1, 2], ["1"]), ([1.5], ["1"])])
def test_ids_that_cannot_be_compared(known, asked):
    model = InteractionRecommender(Counting()).fit([(i, i) for i in known])
    with pytest.raises(TypeError, match=r"users holds ids such as .*, of another kind than"):
        model.recommend(asked)


@pytest.mark.parametrize("n", [0, -1, 2.5, "ten", None])
def test_wrong_number_of_recommendations(model, n):
    with pytest.raises(ValueError, match="n_recommendations="):
        model.recommend(["ann"], n_recommendations=n)
    for similar in (model.similar_items, model.similar_users):
        with pytest.raises(ValueError, match="n=.* must be an integer of at least 1"):
            similar(["tea"], n=n)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("predict", [ROWS]),
        ("score", [ROWS]),
        ("recommend", []),
        ("predict_pairs", [["ann"], ["tea"]]),
        ("similar_items", [["tea"]]),
        ("similar_users", [["ann"]]),
        ("explain", ["ann", "tea"]),
    ],
)
def test_before_fit(name, arguments):
    with pytest.raises(NotFittedError, match="InteractionRecommender instance is not fitted"):
        getattr(InteractionRecommender(Counting()), name)(*arguments)


# Scores


def test_score_is_of_known_users_and_new_items(model):
    # ann is recommended egg first and gin third; bob has nothing new that is known.
    held_out = [("ann", "gin", 1), ("zoe", "tea", 1), ("bob", "fig", 1)]
    assert model.score(held_out) == pytest.approx(1 / np.log2(4))
    assert model.score([("ann", "egg", 1)]) == 1
    assert clone(model).set_params(k=2).fit(ROWS).score(held_out) == 0
    with pytest.raises(ValueError, match="X holds 2 interaction.* none of a user and an item"):
        model.score(held_out[1:])


# Further training


def test_partial_fit_keeps_codes_and_appends_new_ids(model):
    more = [("cat", "tea", 1.0), ("ann", "fig", 2.0), ("abe", "fig", 1.0), ("cat", "abc", 1.0)]
    model.partial_fit(more)
    assert model.user_ids_.tolist() == [*USERS, "abe", "cat"]
    assert model.item_ids_.tolist() == [*ITEMS, "abc", "fig"]
    grown = np.zeros((6, 7))
    grown[:4, :5] = MATRIX
    grown[5, 4] = grown[4, 6] = grown[5, 5] = 1
    grown[0, 6] = 2
    assert_array_equal(model.estimator_.seen_, grown)
    whole = InteractionRecommender(Counting()).fit(ROWS + more)
    one, other = model.recommend(whole.user_ids_), whole.recommend()
    assert_allclose(one[1], other[1])
    assert_array_equal(model.predict(more), whole.predict(more))


def test_partial_fit_first_and_without_news():
    model = InteractionRecommender(Counting()).partial_fit(ROWS).partial_fit(ROWS[:2])
    assert model.user_ids_.tolist() == USERS
    assert model.estimator_.seen_[0].tolist() == [0, 0, 4.5, 0, 2]


@pytest.mark.parametrize(
    "first, second, dtype",
    [
        (np.int32([[1, 5], [2, 6]]), np.int64([[2**40, 5]]), np.int64),
        (np.array([["a", "b"]]), np.array([["long", "b"]]), "<U4"),
        (np.array([["a", "b"]]), [("long", "b")], "<U4"),
        (np.array([["a", "b"]], dtype=object), np.array([["long", "b"]]), object),
        (np.array([[1.5, 2]]), np.array([[3, 2]]), np.float64),
        (np.array([[1, 2]]), np.array([[3.0, 2.0]]), np.int64),
    ],
)
def test_types_of_appended_ids(first, second, dtype):
    model = InteractionRecommender(Counting()).fit(first).partial_fit(second)
    assert model.user_ids_.dtype == np.dtype(dtype)
    assert len(model.user_ids_) == len(first) + 1
    new = model.user_ids_[-1]
    assert model.recommend([new])[0].shape == (1, 10)
    assert new == np.asarray(second, dtype=object)[0, 0]


class Refusing(Counting):
    """Raises in further training, after or before the tables have grown."""

    def __init__(self, error=ValueError):
        self.error = error

    def partial_fit(self, X, y=None, new=False):
        self.weight = 1
        if self.error is DivergenceError or new:
            super().partial_fit(X, new=new)
        if not new:
            raise self.error("no")
        return self


@pytest.mark.parametrize("error, grows", [(ValueError, False), (DivergenceError, True)])
def test_refused_further_training(error, grows):
    model = InteractionRecommender(Refusing(error)).fit(ROWS)
    with pytest.raises(error, match="no"):
        model.partial_fit([("zoe", "fig", 1)])
    assert ("zoe" in model.user_ids_) == grows
    assert model.recommend(n_recommendations=9)[0].shape == (4 + grows, 9)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit([("zed", None, 1)])
    assert "zed" not in model.user_ids_


def test_refused_fit_leaves_the_model_as_it_was(model):
    before = {name: id(value) for name, value in model.__dict__.items()}
    with pytest.raises(ValueError, match="NaN"):
        model.fit([("ann", "tea"), ("bob", None)])
    assert {name: id(value) for name, value in model.__dict__.items()} == before


class Batch(BaseEstimator):
    """A recommender that cannot be trained further."""

    def fit(self, X, y=None):
        return self

    def recommend(self, X=None, **options):
        return None


def test_partial_fit_only_where_the_recommender_has_it():
    assert hasattr(InteractionRecommender(Counting()), "partial_fit")
    assert hasattr(InteractionRecommender(), "partial_fit")
    assert not hasattr(InteractionRecommender(Batch()), "partial_fit")


# Living in scikit-learn


def block_log(seed=0):
    """Two groups of users, each with items of its own."""
    rng = np.random.default_rng(seed)
    users = rng.integers(40, size=600)
    items = rng.integers(15, size=600) + 15 * (users % 2)
    return np.column_stack([users, items])


def test_grid_search_reaches_into_the_recommender():
    X = block_log()
    search = GridSearchCV(
        InteractionRecommender(Counting()),
        {"estimator__weight": [1e-3, -1e6]},
        cv=WarmStartKFold(3, random_state=0),
    ).fit(X)
    assert search.best_params_ == {"estimator__weight": 1e-3}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    items, _ = recommend(search, [0, 1], n_recommendations=3)
    assert (items[0] < 15).all() and (items[1] >= 15).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_cross_validation_of_frames(library):
    X = block_log()
    model = InteractionRecommender(Counting())
    cv = WarmStartKFold(3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cross_val_score(model, frame(library, {"user": X[:, 0], "item": X[:, 1]}), cv=cv)
    assert_array_equal(scores, cross_val_score(model, X, cv=cv))
    assert_array_equal(scores, cross_val_score(model, X.tolist(), cv=cv))
    assert (scores > 0.1).all()


def test_clone_pickle_and_repr(model):
    copies = pickle.loads(pickle.dumps(model)), clone(model).fit(ROWS)
    for copy in copies:
        assert_array_equal(copy.recommend()[0], model.recommend()[0])
    model.set_params(estimator__weight=5, k=3)
    assert model.estimator.weight == 5 and model.get_params()["estimator__weight"] == 5
    assert repr(model) == "InteractionRecommender(estimator=Counting(weight=5), k=3)"


# freqfm.recommend


@pytest.fixture
def matrix():
    X = block_log()
    X = sparse.csr_array((np.ones(len(X)), (X[:, 0], X[:, 1])))
    X.data[:] = 1
    return X


def test_recommend_through_pipelines_and_searches(matrix):
    plain = Counting().fit(matrix)
    expected = plain.recommend(matrix, n_recommendations=3)[0]
    pipeline = make_pipeline(TfidfTransformer(), "passthrough", Counting())
    grid = {"counting__weight": [1e-3]}
    scoring = score_zero
    for estimator in (
        plain,
        pipeline.fit(matrix),
        make_pipeline(Counting()).fit(matrix),
        GridSearchCV(pipeline, grid, scoring=scoring).fit(matrix),
        RandomizedSearchCV(pipeline, grid, n_iter=1, scoring=scoring).fit(matrix),
        make_pipeline(
            TfidfTransformer(), GridSearchCV(Counting(), {"weight": [1e-3]}, scoring=scoring)
        ).fit(matrix),
    ):
        items, scores = recommend(estimator, matrix, n_recommendations=3)
        assert items.shape == scores.shape == (40, 3)
        if estimator is plain:
            assert_array_equal(items, expected)
        assert_array_equal(items // 15, expected // 15)
        seen = recommend(estimator, users=[4, 2], n_recommendations=3, exclude=[0])[0]
        assert seen.shape == (2, 3) and (seen != 0).all()


def score_zero(estimator, X, y=None):
    return 0.0


def test_recommend_passes_transformed_rows(matrix):
    pipeline = make_pipeline(TfidfTransformer(), Counting()).fit(matrix)
    items, scores = recommend(pipeline, matrix[:3], n_recommendations=4)
    expected = pipeline[-1].recommend(pipeline[0].transform(matrix[:3]), n_recommendations=4)
    assert_array_equal(items, expected[0])
    assert_array_equal(scores, expected[1])


def test_recommend_ids(model):
    pipeline = make_pipeline(clone(model)).fit(ROWS)
    assert_array_equal(recommend(pipeline, ["ann"])[0], model.recommend(["ann"])[0])
    assert_array_equal(recommend(pipeline)[0], model.recommend()[0])


def test_recommend_wants_a_fitted_recommender(matrix):
    grid = {"weight": [1.0, 2.0]}
    for estimator in (
        Counting(),
        make_pipeline(TfidfTransformer(), Counting()),
        GridSearchCV(Counting(), grid),
        InteractionRecommender(Counting()),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            recommend(estimator, matrix)
    for estimator, match in (
        (TfidfTransformer().fit(matrix), "^TfidfTransformer has no method recommend"),
        (
            make_pipeline(TfidfTransformer()).fit(matrix),
            "TfidfTransformer, the last step of Pipeline, has no method recommend",
        ),
        (make_pipeline(TfidfTransformer(), "passthrough"), "'passthrough', the last step"),
        ("model", "'model' has no method recommend"),
    ):
        with pytest.raises(TypeError, match=match):
            recommend(estimator, matrix)
    search = GridSearchCV(Counting(), grid, scoring=score_zero, refit=False).fit(matrix)
    with pytest.raises(ValueError, match="refit=False and kept no best estimator"):
        recommend(search, matrix)
