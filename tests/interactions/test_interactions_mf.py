"""InteractionRecommender, scorers and splitters with matrix factorization."""

import pickle

import numpy as np
import pytest
from helpers import failing_checks, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from freqfm import InteractionRecommender, MFRecommender, recommend
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    make_ranking_scorer,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*that fit has not seen")

# One thread: other tests may be running, and these are about ids.
SMALL = MFRecommender(4, max_iter=5, n_jobs=1, random_state=0)
LEARNING = MFRecommender(8, max_iter=60, batch_size=64, n_jobs=1, random_state=0)


def names(prefix, numbers):
    return np.array([f"{prefix}{number}" for number in numbers], dtype=object)


@pytest.fixture(scope="module")
def log():
    """Two groups of users with separate items, and times."""
    rng = np.random.default_rng(0)
    users = rng.integers(60, size=1500)
    items = 20 * (users % 2) + rng.integers(20, size=1500)
    return np.column_stack(
        [names("u", users), names("i", items), np.ones(1500), rng.permutation(1500)]
    )


@pytest.fixture(scope="module")
def model(log):
    return InteractionRecommender(SMALL).fit(log)


# Values are ignored: matrix factorization needs non-negative ones, while ids may be anything.
@pytest.mark.slow
def test_sklearn_compatible():
    model = InteractionRecommender(SMALL, value=None)
    check_estimator(model, on_skip=None, expected_failed_checks=failing_checks())


def test_default_is_matrix_factorization(log):
    model = InteractionRecommender().fit(log[:50])
    assert type(model.estimator_) is MFRecommender
    assert model.recommend()[0].shape == (len(model.user_ids_), 10)


def test_answers_are_those_of_the_matrix(log, model):
    users = np.searchsorted(model.user_ids_, log[:, 0].astype(object))
    items = np.searchsorted(model.item_ids_, log[:, 1].astype(object))
    X = sparse.csr_array((np.ones(len(log)), (users, items)))
    plain = clone(model.estimator).fit(X)
    for options in ({}, {"exclude_seen": False}, {"candidates": [3, 30, 7]}, {"exclude": [1]}):
        in_ids = {
            name: value if name == "exclude_seen" else model.item_ids_[value]
            for name, value in options.items()
        }
        found, scores = model.recommend(model.user_ids_[[5, 2]], n_recommendations=4, **in_ids)
        expected, expected_scores = plain.recommend(users=[5, 2], n_recommendations=4, **options)
        known = expected >= 0
        assert_array_equal(found[known], model.item_ids_[expected[known]])
        assert set(found[~known]) <= {None}
        assert_array_equal(scores, expected_scores)
    assert_array_equal(model.predict(log), plain.predict_pairs(users, items))
    assert_array_equal(
        model.similar_items("i3", n_recommendations=3)[0],
        model.item_ids_[
            plain.similar_items(np.flatnonzero(model.item_ids_ == "i3"), n_recommendations=3)[0][0]
        ],
    )
    explanation = model.explain("u7", "i3")
    user, item = (np.flatnonzero(ids == name) for ids, name in (
        (model.user_ids_, "u7"), (model.item_ids_, "i3")))  # fmt: skip
    expected = plain.explain(int(user[0]), int(item[0]))
    assert_array_equal(explanation.history, model.item_ids_[expected.history])
    assert_array_equal(explanation.contributions, expected.contributions)
    assert explanation.rest == expected.rest
    assert_allclose(explanation.score, model.predict_pairs(["u7"], ["i3"]), rtol=1e-5)


def test_unknown_users_get_popular_items(log, model):
    (items,), (scores,) = model.recommend(["nobody"], n_recommendations=40)
    counts = {item: len(set(log[log[:, 1] == item, 0])) for item in model.item_ids_}
    popular = [counts[item] for item in items]
    assert popular == sorted(popular, reverse=True)
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("first", ["fit", "partial_fit"])
def test_growing(log, first):
    model = getattr(InteractionRecommender(SMALL), first)(log[:700])
    new = [("zoe", "i1", 1.0, 0), ("zoe", "zzz", 1.0, 0), ("u1", "aaa", 1.0, 0)]
    model.partial_fit(new)
    assert model.user_ids_[-1] == "zoe" and model.item_ids_[-2:].tolist() == ["aaa", "zzz"]
    items, _ = model.recommend(["zoe", "u1"], n_recommendations=42)
    assert "zzz" not in items[0] and "i1" not in items[0] and "aaa" in items[0]
    assert "aaa" not in items[1] and "zzz" in items[1]
    seen = set(log[:700][log[:700, 0] == "u1", 1])
    assert not seen & set(items[1])


@pytest.mark.parametrize(
    "cv",
    [LeaveLastOut(3), *slow_params([WarmStartKFold(3, random_state=0), GlobalTimeSplit(2)])],
    ids=repr,
)
def test_searching_on_interactions(log, cv):
    search = GridSearchCV(
        InteractionRecommender(LEARNING),
        {"estimator__n_components": [2, 8]},
        cv=cv,
        scoring=make_ranking_scorer("recall", k=10),
    ).fit(log)
    # By chance a third of the items that a user has not seen would be found.
    assert search.best_score_ > 0.6
    items, _ = recommend(search, ["u0", "u1"], n_recommendations=3)
    assert items.shape == (2, 3)
    scores = cross_val_score(search.best_estimator_, log, cv=cv)
    assert (scores > 0.2).all()


@pytest.mark.slow
def test_searching_on_a_matrix(log):
    X = sparse.csr_array(
        (
            np.ones(len(log)),
            tuple(np.unique(log[:, axis].astype(str), return_inverse=True)[1] for axis in (0, 1)),
        )
    )
    search = GridSearchCV(
        make_pipeline(TfidfTransformer(), LEARNING),
        {"mfrecommender__n_components": [2, 8]},
        scoring=make_ranking_scorer("hit_rate", k=5),
        cv=3,
    ).fit(X)
    assert search.best_score_ > 0.7
    items, scores = recommend(search, X[:4], n_recommendations=5)
    assert items.shape == scores.shape == (4, 5)
    assert not X[:4].toarray()[np.arange(4)[:, None], items].any()


def test_pickle(model):
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.recommend()[0], model.recommend()[0])
