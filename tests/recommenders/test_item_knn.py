"""ItemKNNRecommender against dense products, and its public interface."""

import numpy as np
import pytest
from helpers import check_matrix_recommender, each, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import InteractionRecommender, ItemKNNRecommender
from freqfm.datasets import make_interactions
from freqfm.model_selection import holdout_interactions

WEIGHTINGS = ["conditional", "cosine", "tfidf", "bm25"]


@pytest.fixture(scope="module")
def X():
    return weighted_interactions(60, 25, values=[0.5, 1, 3])


def similarities(X, weighting, k1=1.2, b=0.75):
    """Return the similarities of all pairs of items, from the definitions."""
    X = X.toarray().astype(np.float64)
    n_items = X.shape[1]
    idf = np.maximum(0, np.log(n_items / (1 + (X > 0).sum(axis=1))))[:, None]
    if weighting == "bm25":
        lengths = 1 - b + b * X.sum(axis=0) / X.sum(axis=0).mean()
        W = idf * np.divide(X * (k1 + 1), X + k1 * lengths)
        return W.T @ W
    if weighting == "conditional":
        roots = np.sqrt(X)
        norms = np.sqrt(np.where(X.any(axis=0), roots.sum(axis=0), 1))
        of_users = np.where(X.any(axis=1), roots.sum(axis=1), 1)[:, None]
        return roots.T @ (roots / np.sqrt(of_users)) / norms / norms[:, None]
    W = X if weighting == "cosine" else np.sqrt(X) * idf
    lengths = np.linalg.norm(W, axis=0)
    W = W / np.where(lengths > 0, lengths, 1)
    return W.T @ W


def neighbours(X, weighting, k, power=0.0):
    """Return the similarities to the k most similar other items, zero elsewhere."""
    found = similarities(X, weighting)
    np.fill_diagonal(found, 0)
    sums = np.sqrt(X.toarray()).sum(axis=0).astype(np.float64)
    powers = np.where(sums > 0, sums, 1) ** power
    found *= powers / powers[:, None]
    kept = np.zeros_like(found)
    for j, row in enumerate(found):
        first = np.argsort(-row, kind="stable")[:k]
        kept[j, first] = row[first]
    return kept


@each("weighting", WEIGHTINGS)
def test_neighbours_and_scores_follow_the_definition(X, weighting):
    for k in (1, 5, 100):
        model = ItemKNNRecommender(k, weighting=weighting).fit(X)
        expected = neighbours(X, weighting, k, model.item_power_)
        assert_allclose(model.item_weights_.toarray(), expected, atol=1e-5)
        scores = X.toarray() @ expected
        scores[X.toarray() > 0] = 0
        users = np.flatnonzero(np.diff(X.indptr))
        items, found = model.recommend(users=users, n_recommendations=6)
        best = -np.sort(-scores[users], axis=1)[:, :6]
        assert_allclose(np.maximum(found, 0), best, rtol=1e-4, atol=1e-5)
        assert_array_equal(items < 0, best == 0)
        assert_array_equal(items, model.recommend(X[users], n_recommendations=6)[0])
        pairs = np.repeat(users, 25), np.tile(np.arange(25), len(users))
        expected = (X.toarray() @ expected)[users].ravel()
        expected[pairs[1] == 7] = -np.inf
        assert_allclose(model.predict_pairs(*pairs), expected, rtol=1e-4, atol=1e-5)


@each("weighting", WEIGHTINGS)
def test_a_power_of_items_multiplies_weights(X, weighting):
    for power in (-0.4, 0, 0.7):
        model = ItemKNNRecommender(4, weighting=weighting, item_power=power).fit(X)
        assert_allclose(
            model.item_weights_.toarray(), neighbours(X, weighting, 4, power), atol=1e-5
        )


def test_the_power_follows_the_density():
    X = sparse.csr_array(np.kron(np.eye(3), np.ones((16, 4))))  # 4 items a user, 16 users an item
    rows = sparse.vstack([X, X[:2] * 0])
    X = sparse.csr_array(sparse.hstack([rows, rows[:, :1] * 0]))
    model = ItemKNNRecommender().fit(X)
    assert model.item_power_ == 0.5
    assert_allclose(model.item_weights_[[0], [1]], 16 * 4**-0.5 / 16)  # of 16 users all, of 4 items
    wide = np.repeat(np.repeat(X.toarray(), 16, axis=1), 4, axis=0)
    model.fit(wide)
    assert model.item_power_ == pytest.approx(2 * (1 / 8 + 1 / 8) ** 2 - 0.25)
    assert ItemKNNRecommender(weighting="cosine").fit(X).item_power_ == 0


def test_defaults_rank_sparse_and_dense_interactions():
    for n, exponent in ((12_000, 1.0), (60_000, 0.3)):
        some = make_interactions(2000, 1500, n, popularity_exponent=exponent, random_state=0)
        known, later = holdout_interactions(some, 0.2, random_state=0)
        ndcg = [
            ItemKNNRecommender(weighting=weighting, n_recommendations=20).fit(known)
            for weighting in WEIGHTINGS
        ]
        ndcg = [model.score(known, later) for model in ndcg]
        assert ndcg[0] > 1.02 * max(ndcg[1:])


def test_bm25_has_parameters(X):
    model = ItemKNNRecommender(100, weighting="bm25", bm25_k1=2, bm25_b=0.1).fit(X)
    expected = similarities(X, "bm25", 2, 0.1)
    np.fill_diagonal(expected, 0)
    assert_allclose(model.item_weights_.toarray(), expected, atol=1e-5)


@each("weighting", WEIGHTINGS)
def test_similar_items_and_users(X, weighting):
    model = ItemKNNRecommender(2, weighting=weighting).fit(X)
    expected = similarities(X, weighting)
    np.fill_diagonal(expected, 0)
    items, found = model.similar_items([0, 7], 5)
    assert_allclose(found[0], -np.sort(-expected[0])[:5], rtol=1e-4)
    assert (items[1] == -1).all()
    rows = X.toarray() / np.maximum(np.linalg.norm(X.toarray(), axis=1), 1e-9)[:, None]
    cosines = rows @ rows[5]
    cosines[5] = 0
    users, found = model.similar_users(5, 4)
    assert_allclose(found, -np.sort(-cosines)[:4], rtol=1e-4)
    assert 5 not in users


def test_candidates_and_exclusions(X):
    model = ItemKNNRecommender().fit(X)
    items, _ = model.recommend(users=np.arange(60), candidates=[1, 2, 3, 4, 7], exclude=[2])
    assert set(np.unique(items)) <= {-1, 1, 3, 4, 7}
    lists = sparse.csr_array((np.ones(60), (np.arange(60), np.arange(60) % 25)), shape=(60, 25))
    items, _ = model.recommend(users=np.arange(60), candidates=lists, exclude_seen=False)
    assert (items[:, 1:] == -1).all()
    assert set(items[:, 0] - np.arange(60) % 25) <= {0, *(-1 - np.arange(25))}
    items, _ = model.recommend(users=np.arange(60), exclude=lists, exclude_seen=False)
    assert not (items == (np.arange(60) % 25)[:, None]).any()
    # Popular items for a user without history.
    items, scores = model.recommend(users=3, n_recommendations=2)
    assert_array_equal(np.sort(scores), np.sort(model.item_counts_ / 60)[-2:].astype(np.float32))


def test_explained_scores_are_those_of_recommend(X):
    model = ItemKNNRecommender(4).fit(X)
    items, scores = model.recommend(users=9, n_recommendations=2)
    for told in (model.explain(9, items[0]), model.explain(0, items[0], X=X[[9]])):
        assert told.score == pytest.approx(scores[0], rel=1e-5)
        assert told.contributions.sum() == pytest.approx(scores[0], rel=1e-5)
        assert abs(told.rest) < 1e-4
        assert set(told.history) == set(X[[9]].indices)
        assert (np.diff(told.contributions) <= 0).all()
    assert model.explain(3, 0).rest == pytest.approx(model.item_counts_[0] / 60)


def test_exported_vectors_have_the_scores_of_recommend(X):
    model = ItemKNNRecommender().fit(X)
    users, items = model.export_vectors()
    pairs = (users @ items.T).toarray()
    scores = model.recommend(users=0, n_recommendations=1, exclude_seen=False)[1]
    assert scores[0] == pytest.approx(pairs[0].max(), rel=1e-5)


def test_failed_fit_leaves_the_model(X):
    model = ItemKNNRecommender().fit(X)
    before = model.recommend(X)[0]
    for bad in (X * 0, -X):
        with pytest.raises(ValueError):
            model.fit(bad)
    with pytest.raises(ValueError, match="weighting"):
        ItemKNNRecommender(weighting="bm26").fit(X)
    assert_array_equal(model.recommend(X)[0], before)


def test_in_a_table(X):
    users, items = X.nonzero()
    log = [(f"u{u}", f"i{i}") for u, i in zip(users, items, strict=True)]
    model = InteractionRecommender(ItemKNNRecommender()).fit(log)
    assert model.recommend(history=["i1", "i2"], n_recommendations=3)[0][0] not in ("i1", "i2")
    assert set(model.explain("u1", "i4").history) == {f"i{i}" for i in X[[1]].indices}


def test_sklearn_compatible():
    check_matrix_recommender(ItemKNNRecommender())


def test_lists_that_do_not_fit_into_memory_are_refused(X, monkeypatch):
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 1000)
    with pytest.raises(ValueError, match="n_neighbors=7 for 25 items and .* interactions would"):
        ItemKNNRecommender(7).fit(X)


def test_full_lists_have_the_similarities_of_their_items():
    X = sparse.csr_array(np.random.default_rng(0).uniform(0.5, 3, (30, 20)).astype(np.float32))
    for weighting in WEIGHTINGS[:2]:
        model = ItemKNNRecommender(6, weighting=weighting, item_power=0.0).fit(X)
        assert model.item_weights_.nnz == 120
        expected = similarities(X, weighting)
        np.fill_diagonal(expected, 0)
        expected[expected < np.sort(expected)[:, -6:-5]] = 0
        assert_allclose(model.item_weights_.toarray(), expected, rtol=1e-4)
