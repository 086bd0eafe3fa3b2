"""InteractionRecommender with users and items that fit has not seen: what ``unknown`` is about."""

import pickle
import warnings

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_array_equal
from purchases import ITEMS, ROWS
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.model_selection import WarmStartKFold

#: Calls that ask about one unknown user each, the argument that the message names, and the outcome.
POPULAR = "get popular items, scored by the shares of users that have them"
OF_USERS = {
    "users": (lambda m: m.recommend(["ann", "typo"], n_recommendations=2), "users", POPULAR),
    "a user": (lambda m: m.recommend("typo", n_recommendations=2), "users", POPULAR),
    "and items": (
        lambda m: m.recommend("typo", candidates=["new", "tea"], exclude=["old"]),
        "users",
        POPULAR,
    ),
    "history": (lambda m: m.recommend(history=["typo"], n_recommendations=2), "history", POPULAR),
    "histories": (lambda m: m.recommend(history=[["typo"], ["jam", "new"]]), "history", POPULAR),
    "similar": (lambda m: m.similar_users("typo"), "users", "are similar to none"),
    "pairs": (lambda m: m.predict_pairs(["typo", "ann"], ["tea", "tea"]), "users", POPULAR),
    "interactions": (lambda m: m.predict([("typo", "tea", 1.0)]), "users", POPULAR),
    "explained": (lambda m: m.explain("typo", "tea"), "user", POPULAR),
    "embeddings": (
        lambda m: m.transform([("typo", "tea", 1.0)]),
        "X's column of users",
        "have embeddings of zeros",
    ),
    "folded in": (
        lambda m: m.transform(history=["typo"]),
        "history",
        "have embeddings of zeros",
    ),
}
#: Calls that ask about an unknown item each: no answer, which is plain to see.
OF_ITEMS = {
    "similar": (lambda m: m.similar_items(["tea", "typo"])[1][1], "items"),
    "pairs": (lambda m: m.predict_pairs(["ann"], ["typo"]), "items"),
    "interactions": (lambda m: m.predict([("ann", "typo", 1.0)]), "items"),
    "explained": (lambda m: [m.explain("ann", "typo").score], "item"),
}
#: Calls with lists that hold unknown ids, and without these.
LISTS = {
    "candidates": [
        lambda m, more=more: m.recommend(["ann", "eve"], candidates=["gin", "tea", "jam", *more])
        for more in (["typo", "new"], [])
    ],
    "own candidates": [
        lambda m, more=more: m.recommend(["ann", "joe"], candidates=[["gin", *more], more])
        for more in (["typo"], [])
    ],
    "exclude": [
        lambda m, more=more: m.recommend(history=["tea"], exclude=["gin", *more])
        for more in (["typo"], [])
    ],
    "own exclusions": [
        lambda m, more=more: m.recommend(["ann", "joe"], exclude=[["gin", *more], more])
        for more in (["typo"], [])
    ],
    "history": [
        lambda m, more=more: m.recommend(history=[["tea", *more], []]) for more in (["typo"], [])
    ],
    "dislikes": [
        lambda m, more=more: m.recommend(history=["tea"], dislikes=["gin", *more])
        for more in (["typo"], [])
    ],
    "folded in": [
        lambda m, more=more: [m.transform(history=["tea", *more])] for more in (["typo"], [])
    ],
    "similar items": [
        lambda m, more=more: m.similar_items("tea", 3, candidates=["jam", *more], exclude=more)
        for more in (["typo"], [])
    ],
    "similar users": [
        lambda m, more=more: m.similar_users("ann", 3, candidates=["joe", *more], exclude=more)
        for more in (["typo"], [])
    ],
}


def fitted(estimator=None, unknown="popular"):
    return InteractionRecommender(estimator or Counting(), unknown=unknown).fit(ROWS)


@pytest.fixture(scope="module")
def models():
    """Models of each answer that recommend the same."""
    model = fitted(MFRecommender(4, max_iter=2, random_state=0))
    return {
        answer: pickle.loads(pickle.dumps(model)).set_params(unknown=answer)
        for answer in ("popular", "error", "none")
    }


def test_users_have_one_rule(models):
    assert InteractionRecommender().unknown == "popular"
    for call, argument, outcome in OF_USERS.values():
        message = rf"^{argument} holds 1 id\(s\) that fit has not seen: \['typo'\]"
        with pytest.warns(
            UserWarning, match=rf"{message}\. Users of whom .* {outcome}\."
        ) as record:
            call(models["popular"])
        assert len(record) == 1
        with pytest.raises(ValueError, match=message):
            call(models["error"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(models["none"])


@pytest.mark.filterwarnings("error")
def test_items_have_one_rule(models):
    for name, (call, argument) in OF_ITEMS.items():
        for answer in ("popular", "none"):
            assert (np.array(call(models[answer])) == -np.inf).all(), name
        message = rf"{argument} holds 1 id\(s\) that fit has not seen: \['typo'\]"
        with pytest.raises(ValueError, match=message):
            call(models["error"])


@pytest.mark.filterwarnings("error")
def test_lists_may_hold_what_was_never_sold(models):
    for name, (call, without) in LISTS.items():
        for model in models.values():
            for found, expected in zip(call(model), without(model), strict=True):
                assert_array_equal(found, expected, err_msg=name)
    nothing, scores = models["error"].recommend("ann", candidates=["typo"])
    assert set(nothing) == {None} and (scores == -np.inf).all()


def test_one_warning_names_a_few_users(models):
    strange = [f"typo {k}" for k in range(9)]
    with pytest.warns(UserWarning) as record:
        models["popular"].recommend([*strange, "ann"], candidates=["tea", "fig"], exclude=["oat"])
    (warning,) = record
    assert "users holds 9 id(s) that fit has not seen: ['typo 0'," in str(warning.message)
    assert "fig" not in str(warning.message) and "oat" not in str(warning.message)
    assert "typo 8" not in str(warning.message) and warning.filename == __file__


def test_known_ids_are_answered_alike_and_without_warnings(models):
    calls = [
        lambda m: m.recommend(["ann", "eve"], n_recommendations=3, candidates=ITEMS[:4]),
        lambda m: m.recommend(history=[["tea"], []], n_recommendations=3, exclude=["gin"]),
        lambda m: m.similar_items(["tea", "gin"], 3),
        lambda m: [m.predict(ROWS)],
        lambda m: [m.transform(ROWS), m.transform(history=["tea"])],
        lambda m: [m.explain("ann", "gin").contributions],
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in calls:
            expected = call(models["popular"])
            for answer in ("error", "none"):
                for found, one in zip(call(models[answer]), expected, strict=True):
                    assert_array_equal(found, one)


@pytest.mark.filterwarnings("ignore:.*that fit has not seen")
@pytest.mark.parametrize(
    "estimator",
    [
        Counting(),
        MFRecommender(4, max_iter=2, random_state=0),
        ALSRecommender(4, max_iter=2, random_state=0),
        FastVAERecommender(4, max_iter=2, random_state=0),
        EASERecommender(),
        ItemKNNRecommender(),
    ],
)
def test_answers_for_unknown_users_and_items(estimator):
    model = fitted(estimator)
    popular, shares = model.recommend(history=[], n_recommendations=5)
    for found, scores in (
        model.recommend("typo", n_recommendations=5),
        model.recommend(history=["typo"], n_recommendations=5),
    ):
        assert_array_equal(found, popular)
        assert_array_equal(scores, shares)
    pairs = model.predict_pairs(["typo"] * 5 + ["ann", "typo"], [*popular, "typo", "typo"])
    assert_array_equal(pairs, [*shares, -np.inf, -np.inf])
    known = model.predict_pairs(["ann", "joe"], ["gin", "tea"])
    mixed = model.predict_pairs(["ann", "typo", "joe"], ["gin", "tea", "tea"])
    assert_array_equal(mixed[[0, 2]], known)
    if hasattr(estimator, "explain"):
        explanation = model.explain("typo", popular[1])
        assert explanation.score == explanation.rest == shares[1]
        assert not len(explanation.history) and not len(explanation.contributions)
        assert model.explain("ann", "typo").score == -np.inf
    similar, scores = model.similar_items(["gin", "typo"], 3)
    assert_array_equal(similar[0], model.similar_items("gin", 3)[0])
    assert set(similar[1]) == {None} and (scores[1] == -np.inf).all()

    model.set_params(unknown="none")
    items, scores = model.recommend(["ann", "typo"], n_recommendations=5)
    assert_array_equal(items[0], model.recommend("ann", n_recommendations=5)[0])
    assert set(items[1]) == {None} and (scores[1] == -np.inf).all()
    items, scores = model.recommend(history=[["typo"], ["typo", "tea"], []], n_recommendations=5)
    assert set(items[0]) == {None} and (scores[0] == -np.inf).all()
    assert_array_equal(items[1], model.recommend(history=["tea"], n_recommendations=5)[0])
    assert_array_equal(items[2], popular)
    assert set(model.recommend(history=["typo"])[0]) == {None}
    assert (model.predict_pairs(["typo", "ann"], ["tea", "typo"]) == -np.inf).all()
    assert not hasattr(model, "explain") or model.explain("typo", "tea").score == -np.inf


def test_features_of_new_users_follow_the_rule():
    pd = pytest.importorskip("pandas")
    likes = pd.DataFrame({"user": ["ann", "bob", "eve", "joe"], "likes": ["a", "a", "b", "b"]})
    model = MFRecommender(4, max_iter=2, random_state=0)
    model = InteractionRecommender(model, user_features=likes).fit(ROWS)
    popular = model.recommend(history=[], n_recommendations=2)[0]
    new = pd.DataFrame({"user": ["zoe", "zed"], "likes": ["typo", "a"]})
    with pytest.warns(UserWarning, match=r"1 feature\(s\) that fit has not seen: \['likes=typo'"):
        found, _ = model.recommend(user_features=new, n_recommendations=2)
    assert_array_equal(found[0], popular)
    nothing, scores = model.set_params(unknown="none").recommend(user_features=new[:1])
    assert set(nothing[0]) == {None} and (scores == -np.inf).all()
    assert_array_equal(model.recommend(user_features=new, n_recommendations=2)[0][1], found[1])
    with pytest.raises(ValueError, match="user_features holds 1 feature.*likes=typo"):
        model.set_params(unknown="error").recommend(user_features=new)


def test_parameter_is_checked_stored_and_searched():
    for wrong in ("popluar", None, True):
        with pytest.raises(ValueError, match="'unknown' parameter of InteractionRecommender"):
            fitted(unknown=wrong)
    model = fitted(unknown="none")
    with pytest.raises(ValueError, match="unknown='popluar' is not known; did you mean 'popular'"):
        model.set_params(unknown="popluar").recommend("ann")
    assert clone(fitted(unknown="error")).unknown == "error"
    # Held-out interactions of unknown users are left out of scores, whatever the answer.
    grid = GridSearchCV(
        InteractionRecommender(Counting()), {"unknown": ["error", "none"]}, cv=WarmStartKFold(2)
    )
    assert np.isfinite(grid.fit(ROWS).cv_results_["mean_test_score"]).all()
    assert fitted(unknown="error").score([*ROWS, ("typo", "tea", 1.0)]) >= 0
    old = fitted()
    del old.__dict__["unknown"]
    assert pickle.loads(pickle.dumps(old)).recommend("ann")[0][0] == "egg"


@pytest.mark.filterwarnings("ignore:.*columns are ignored")
def test_tables_need_the_columns_of_fit_by_name_in_any_order():
    frames = [pytest.importorskip("pandas").DataFrame]
    frames.append(pytest.importorskip("polars").DataFrame)
    frames.append(pytest.importorskip("pyarrow").table)
    users, items, values = (list(column) for column in zip(*ROWS, strict=True))
    log = {"user": users, "item": items, "value": values}
    more = {"time": range(len(ROWS)), "item": items, "value": values, "note": items, "user": users}
    more = {name: list(column) for name, column in more.items()}
    for frame in frames:
        for fields in (["user", "item", "value"], ["user", "item"]):
            model = InteractionRecommender(Counting()).fit(
                frame({name: log[name] for name in fields})
            )
            expected = [model.score(frame(log)), *model.predict(frame(log))]
            for other in frames:
                found = [model.score(other(more)), *model.predict(other(more))]
                assert found == expected
                pairs = other({"item": items, "user": users})
                assert [*model.predict(pairs)] == expected[1:]
                grown = pickle.loads(pickle.dumps(model)).partial_fit(other(more))
                weights = np.array(values) if len(fields) == 3 else 1.0
                assert grown.estimator_.seen_.sum() == 2 * np.sum(weights * np.ones(len(ROWS)))
                if len(fields) == 3:
                    with pytest.raises(ValueError, match="value='value' is not a column"):
                        model.partial_fit(pairs)
                else:
                    again = pickle.loads(pickle.dumps(model)).partial_fit(pairs)
                    assert_array_equal(again.estimator_.seen_, grown.estimator_.seen_)
