"""PopularityRecommender against sums of columns, and its public interface."""

import pickle

import numpy as np
import pytest
from helpers import check_matrix_recommender, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV, KFold

from freqfm import (
    BlendRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    PopularityRecommender,
)


@pytest.fixture(scope="module")
def X():
    """Return histories of which row 3 and column 7 are empty."""
    return weighted_interactions(60, 25, values=[0.5, 1, 3])


def by_popularity(X, hidden, n):
    """Return the best n items that each user does not have, and their scores."""
    scores = X.toarray().astype(np.float64).sum(axis=0) / X.shape[0]
    scores = np.where(hidden | (scores == 0), -np.inf, scores)
    items = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    scores = np.take_along_axis(scores, items, axis=1)
    return np.where(np.isfinite(scores), items, -1), scores


def test_every_user_gets_the_same_order(X):
    model, dense = PopularityRecommender().fit(X), X.toarray()
    for seen, hidden in [(True, dense > 0), (False, np.zeros(dense.shape, dtype=bool))]:
        expected = by_popularity(X, hidden, 25)
        for query in ({"users": np.arange(60)}, {"X": X}):
            items, scores = model.recommend(**query, n_recommendations=25, exclude_seen=seen)
            assert_array_equal(items, expected[0])
            assert_allclose(scores, expected[1], rtol=1e-6)
    of_all = by_popularity(X, np.zeros((1, 25), dtype=bool), 25)[0][0]
    # Users without history too, seen in fit or not.
    assert_array_equal(model.recommend(users=3, n_recommendations=25)[0], of_all)
    assert_array_equal(model.recommend(X[[3]] * 0, n_recommendations=25)[0][0], of_all)
    assert 7 not in of_all
    items, _ = model.recommend(users=[3], candidates=[1, 2, 7], exclude=[2])
    assert items[0, :2].tolist() == [1, -1]


def test_pairs_and_vectors_have_the_scores_of_recommend(X):
    model = PopularityRecommender().fit(X)
    users, items = np.repeat(np.arange(60), 25), np.tile(np.arange(25), 60)
    scores = model.predict_pairs(users, items).reshape(60, 25)
    expected = X.toarray().sum(axis=0) / 60
    expected[7] = -np.inf
    assert_allclose(scores, np.tile(expected, (60, 1)), rtol=1e-6)
    of_users, of_items = model.export_vectors()
    assert_allclose((of_users @ of_items.T)[3], np.maximum(expected, 0), rtol=1e-6)


def test_dislikes_are_neither_counted_nor_recommended(X):
    disliked = X.copy()
    disliked.data[::3] *= -1
    model = PopularityRecommender().fit(disliked)
    likes = disliked.multiply(disliked > 0).toarray()
    assert_allclose(model.item_factors_.ravel(), likes.sum(axis=0) / 60, rtol=1e-6)
    items, _ = model.recommend(users=np.arange(60), n_recommendations=25)
    assert not (disliked.toarray()[np.arange(60)[:, None], items] != 0)[items >= 0].any()


def test_partial_fit_adds(X):
    whole = PopularityRecommender().fit(X)
    model = PopularityRecommender().partial_fit(X[:40, :20])
    more = X.tolil()
    more[:40, :20] = 0
    model.partial_fit(more.tocsr())
    assert_array_equal(model.item_factors_, whole.item_factors_)
    assert_array_equal(model.recommend(users=[0, 59])[0], whole.recommend(users=[0, 59])[0])


def test_what_one_number_cannot_say_is_refused(X):
    model = PopularityRecommender().fit(X)
    for name in ("similar_items", "similar_users"):
        assert not hasattr(model, name)
        with pytest.raises(AttributeError, match="does not say what is similar"):
            getattr(model, name)
    with pytest.raises(ValueError, match="give item_vectors"):
        model.recommend(users=[0], diversity=0.3)
    genres = np.eye(2)[np.arange(25) % 2]
    items, _ = model.recommend(users=[3], n_recommendations=4, diversity=1.0, item_vectors=genres)
    assert len(set(items[0, :2] % 2)) == 2
    with pytest.raises(ValueError, match="nothing to learn from"):
        model.fit(X * 0)
    assert_array_equal(pickle.loads(pickle.dumps(model)).recommend(X)[0], model.recommend(X)[0])


def test_in_tables_searches_and_blends(X):
    users, items = X.nonzero()
    log = [(f"u{u}", f"i{i}", X[u, i]) for u, i in zip(users, items, strict=True)]
    model = InteractionRecommender(PopularityRecommender()).fit(log)
    best = by_popularity(X, np.zeros((1, 25), dtype=bool), 2)[0][0]
    assert model.recommend(history=[], n_recommendations=2)[0].tolist() == [f"i{i}" for i in best]
    model.partial_fit([("new", "i7", 1000.0)])
    assert model.recommend(["u1"], n_recommendations=1)[0].tolist() == [["i7"]]
    search = GridSearchCV(PopularityRecommender(), {"n_recommendations": [5]}, cv=KFold(2))
    assert search.fit(X).best_score_ > 0
    members = [("knn", ItemKNNRecommender()), ("popular", PopularityRecommender())]
    blend = BlendRecommender(members, weights=[1e-9, 1]).fit(X)
    single = PopularityRecommender().fit(X)
    some = np.flatnonzero(np.diff(X.indptr))
    assert_array_equal(blend.recommend(users=some)[0][:, 0], single.recommend(users=some)[0][:, 0])


def test_scikit_learn_checks():
    check_matrix_recommender(PopularityRecommender())
