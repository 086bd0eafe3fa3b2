"""InteractionRecommender: dislikes by a column, by the values, and in histories."""

import pickle

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from freqfm import ALSRecommender, InteractionRecommender, ItemKNNRecommender, MFRecommender
from freqfm.metrics import dislike_rate_at_k
from freqfm.model_selection import WarmStartKFold, make_ranking_scorer

rng = np.random.default_rng(0)
N_ITEMS = 12
_PAIRS = np.argwhere(rng.random((20, N_ITEMS)) < 0.4)
USERS, ITEMS = (of.astype(object) for of in _PAIRS.T)
USERS, ITEMS = np.char.add("u", USERS.astype(str)), np.char.add("i", ITEMS.astype(str))
RATINGS = rng.integers(1, 6, len(USERS))
SIGNS = np.where(RATINGS <= 2, -1.0, 1.0)
ROWS = list(zip(USERS.tolist(), ITEMS.tolist(), RATINGS.tolist(), strict=True))
BY_USER = {u: {i for v, i, r in ROWS if v == u and r <= 2} for u in USERS}


def made(estimator=None, **options):
    return InteractionRecommender(estimator or ItemKNNRecommender(), **options)


def als():
    return ALSRecommender(
        2, max_iter=1, unobserved_weight=0.1, regularization=0.1, random_state=0, n_jobs=1
    )


def parts_of(model):
    """Return the matrices of likes and of dislikes that a model knows."""
    shape = len(model.user_ids_), len(model.item_ids_)
    known = model.estimator_
    return [of.matrix(shape).toarray() for of in (known._history, known._dislikes)]


def frames():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"userId": USERS, "movieId": ITEMS, "rating": RATINGS, "bad": RATINGS <= 2}
    columns["weight_of_bad"] = (SIGNS < 0) * 1.0
    return {
        "pandas": pandas.DataFrame(columns),
        "polars": polars.DataFrame(columns),
        "lazy": polars.LazyFrame(columns),
        "arrow": pyarrow.table(columns),
    }


def test_all_ways_to_say_what_is_disliked_give_one_model():
    signed = list(zip(USERS.tolist(), ITEMS.tolist(), SIGNS.tolist(), strict=True))
    flagged = [(u, i, r <= 2) for u, i, r in ROWS]
    expected = parts_of(made().fit(signed))
    given = {
        "list": made(dislikes_up_to=2).fit(ROWS),
        "array": made(dislikes_up_to=2.5).fit(np.array(ROWS, dtype=object)),
        "position": made(value=None, dislikes=2).fit(flagged),
    }
    for kind, table in frames().items():
        given[kind] = made(dislikes_up_to=2).fit(table)
        for column in ("bad", "weight_of_bad"):
            given[kind, column] = made(value=None, dislikes=column).fit(table)
    for kind, model in given.items():
        for found, of in zip(parts_of(model), expected, strict=True):
            assert_array_equal(found, of, err_msg=str(kind))


def test_weights_and_pairs_that_occur_twice():
    table = [("a", "x", 3, 0), ("a", "y", 5, 2), ("a", "x", 2, 0), ("b", "x", 4, 0.5),
             ("b", "x", 7, 0), ("b", "y", -6, 0), ("b", "z", 1, 0)]  # fmt: skip
    likes, dislikes = parts_of(made(dislikes=3).fit(table))
    assert_array_equal(likes, [[5, 0, 0], [0, 0, 1]])
    assert_array_equal(dislikes, [[0, 2, 0], [0.5, 6, 0]])
    # By values, each row counts as 1.
    likes, dislikes = parts_of(made(dislikes_up_to=2).fit([row[:3] for row in table]))
    assert_array_equal(likes, [[0, 1, 0], [2, 0, 0]])
    assert_array_equal(dislikes, [[1, 0, 0], [0, 1, 1]])


@each("estimator", [als(), MFRecommender(2, max_iter=1, random_state=0, n_jobs=1)])
def test_dislikes_are_not_recommended_whatever_is_called(estimator):
    model = made(estimator, dislikes_up_to=2).fit(ROWS[::2])
    model = pickle.loads(pickle.dumps(clone(model).fit(ROWS[::2]).partial_fit(ROWS[1::2])))
    items, _ = model.recommend(n_recommendations=N_ITEMS)
    everything, _ = model.recommend(n_recommendations=N_ITEMS, exclude_seen=False)
    for u, row, every in zip(model.user_ids_, items, everything, strict=True):
        assert not BY_USER[u] & {i for i in row if i is not None}
        assert BY_USER[u] <= set(every)
    # The last call counts.
    user, item = next((u, i) for u, i, r in ROWS if r > 2)
    model.partial_fit([(user, item, 1)])
    codes = model.user_ids_.tolist().index(user), model.item_ids_.tolist().index(item)
    assert [bool(of[codes]) for of in parts_of(model)] == [False, True]
    model.partial_fit([(user, item, 5)])
    assert [bool(of[codes]) for of in parts_of(model)] == [True, False]


def test_scorers_and_splitters():
    model = made(als(), dislikes_up_to=2)
    scores = cross_val_score(
        model, np.array(ROWS, dtype=object), cv=WarmStartKFold(2, random_state=0)
    )
    assert (scores > 0).all()
    train, test = next(WarmStartKFold(2, random_state=0).split(ROWS))
    model.fit([ROWS[row] for row in train])
    held_out = [ROWS[row] for row in test]
    relevant, ranked, _ = model._rank_held_out(held_out, 5)
    n_disliked = sum(r <= 2 for _, _, r in held_out)
    assert (relevant.data < 0).sum() == n_disliked > 0
    score = make_ranking_scorer("neg_dislike_rate@5")(model, held_out)
    assert score == -dislike_rate_at_k(relevant, ranked, 5) < 0
    # Without a column of values all are likes.
    relevant, *_ = model._rank_held_out([row[:2] for row in held_out], 5)
    assert (relevant.data > 0).all()


def test_early_stopping_by_dislikes():
    train, test = next(WarmStartKFold(2, random_state=0).split(ROWS))
    train, test = ([ROWS[row] for row in rows] for rows in (train, test))
    # Early stopping looks at users who like something.
    liking = {user for user, _, rating in train if rating > 2}
    test = [row for row in test if row[0] in liking]
    estimator = als().set_params(early_stopping=True, scoring="neg_dislike_rate@5")
    model = made(estimator, dislikes_up_to=2).fit(train, X_val=test)
    last = made(als(), dislikes_up_to=2).fit(train)
    expected = make_ranking_scorer("neg_dislike_rate@5")(last, test)
    assert model.estimator_.validation_scores_ == [expected] and expected < 0


@each("estimator", [als(), MFRecommender(2, max_iter=1, random_state=0, n_jobs=1), None])
def test_histories_with_dislikes(estimator):
    model = made(estimator, dislikes_up_to=2).fit(ROWS)
    items, _ = model.recommend(history=["i1"], dislikes=["i2", "i3"], n_recommendations=N_ITEMS)
    assert not {"i1", "i2", "i3"} & set(items)
    assert len(set(items)) > 2
    if estimator is not None:
        every, _ = model.recommend(
            history=["i1"], dislikes=["i2"], n_recommendations=N_ITEMS, exclude_seen=False
        )
        assert {"i1", "i2"} <= set(every)
    # Several users; one who likes nothing yet, and an item in both lists.
    many, _ = model.recommend(
        history=[["i1"], [], ["i4"]], dislikes=[["i2", "i3"], ["i5"], ["i4"]],
        n_recommendations=N_ITEMS,
    )  # fmt: skip
    assert_array_equal(many[0], items)
    assert "i5" not in many[1] and "i4" not in many[2]
    alone, _ = model.recommend(history=[], dislikes=["i4"], n_recommendations=N_ITEMS)
    assert_array_equal(alone, many[2])
    if isinstance(estimator, ALSRecommender):
        away = model.transform(history=["i1"], dislikes=["i2", "i3"])
        assert abs(away - model.transform(history=["i1"])).max() > 1e-3
        assert_array_equal(away, model.transform(history=[["i1"]], dislikes=[["i2", "i3"]])[0])


def test_histories_weigh_dislikes_as_fit_does():
    table = [(u, i, v) for (u, i, _), v in zip(ROWS, np.where(SIGNS < 0, -3, 2), strict=True)]
    model = made(als()).fit(table)
    row = np.zeros((1, N_ITEMS))
    row[0, [model.item_ids_.tolist().index(i) for i in ("i1", "i2")]] = 2, -3
    expected = model.estimator_.transform(row)[0]
    assert_array_equal(model.transform(history=["i1"], dislikes=["i2"]), expected)
    assert made().fit([row[:2] for row in ROWS])._usual_dislike == 1


def test_new_items_in_histories_are_left_out():
    pandas = pytest.importorskip("pandas")
    features = pandas.DataFrame({"kind": ["a", "b"] * 6}, index=[f"i{k}" for k in range(N_ITEMS)])
    model = made(
        MFRecommender(2, max_iter=1, random_state=0), dislikes_up_to=2, item_features=features
    ).fit(ROWS)
    new = pandas.DataFrame({"kind": ["a", "a"]}, index=["n1", "n2"])
    items, _ = model.recommend(
        history=["i1"], dislikes=["n1"], exclude=["n2"], item_features=new, n_recommendations=14
    )
    assert not {"n1", "n2"} & set(items)


def test_what_cannot_be_used_is_refused():
    frame = frames()["pandas"]
    import pandas

    cases = [
        (dict(dislikes=2), frame, ValueError, "both be column 2 .* dislikes_up_to="),
        (dict(dislikes="worse"), frame, ValueError, "dislikes='worse' is not a column of X"),
        (dict(dislikes="auto"), frame, ValueError, "dislikes='auto' is not a column of X"),
        (dict(dislikes="userId"), frame, ValueError, "dislikes and user|user and dislikes"),
        (dict(dislikes=True), frame, TypeError, "dislikes=True must be a column's"),
        (dict(dislikes_up_to=-1), frame, ValueError, "dislikes_up_to"),
        (dict(dislikes_up_to=2), frame.drop(columns="rating"), ValueError, "no column of values"),
        (dict(dislikes_up_to=2, value=None), frame, ValueError, "no column of values"),
        (dict(dislikes_up_to=5), frame, ValueError, "holds no positive value"),
        (
            dict(dislikes="bad"),
            frame.assign(bad=pandas.array([None] * len(frame), dtype="boolean")),
            ValueError,
            "X's column of dislikes",
        ),
        (dict(dislikes="bad"), frame.assign(bad="no"), ValueError, "column of dislikes .3."),
    ]
    for options, table, error, message in cases:
        with pytest.raises(error, match=message):
            made(**options).fit(table)
    model = made(dislikes_up_to=2).fit(frame)
    with pytest.raises(ValueError, match="dislikes belong to new users"):
        model.recommend(["u1"], dislikes=["i1"])
    with pytest.raises(ValueError, match="dislikes belong to new users"):
        model.transform(frame, dislikes=["i1"])
    for history, dislikes in (([["i1"]], ["i2"]), ([["i1"]], [["i2"], []]), (["i1"], [["i2"]])):
        with pytest.raises(ValueError, match="history holds .* but dislikes "):
            model.recommend(history=history, dislikes=dislikes)
    strict = made(dislikes_up_to=2, unknown="error").fit(frame)
    with pytest.raises(ValueError, match="history holds 1 .*strange"):
        strict.recommend(history=["strange"], dislikes=["other"])


@pytest.mark.filterwarnings("error")
def test_ratings_are_no_weights_if_some_are_dislikes():
    likes, dislikes = parts_of(made(dislikes_up_to=2).fit(frames()["pandas"]))
    assert set(likes.ravel()) == set(abs(dislikes).ravel()) == {0, 1}
