"""EASERecommender against its closed form, and its public interface."""

import numpy as np
import pytest
from helpers import check_matrix_recommender, each, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import EASERecommender
from freqfm.estimators.recommenders.closed_form import base as item_weights
from freqfm.estimators.recommenders.closed_form import ease


@pytest.fixture(scope="module")
def X():
    return weighted_interactions(80, 25)


def problem(X, regularization, dropout, user_power):
    """Return the products of items and the penalties, from the definitions."""
    X = X.toarray().astype(np.float64)
    lengths = (X > 0).sum(axis=1)
    of_users = np.maximum(lengths, 1.0) ** -user_power
    of_users *= lengths.sum() / (of_users * lengths).sum()
    G = X.T @ (of_users[:, None] * X)
    return G, regularization + dropout / (1 - dropout) * np.diag(G)


def closed_form(G, penalties, item_power, diagonal):
    """Return the weights between all items."""
    P = np.linalg.inv(G + np.diag(penalties))
    diag = np.diag(P)
    scales = np.where(1 - penalties * diag > diagonal, (1 - diagonal) / diag, penalties)
    counts = np.maximum(np.diag(G), 1) ** item_power
    weights = -P * scales * counts[:, None] / counts
    np.fill_diagonal(weights, 0)
    return weights


def of_neighbors(G, penalties, j, k, kept):
    """Return the weights of item j from its neighbors, by a system of their own equations."""
    similar = np.where(np.diag(G) > 0, G / np.where(np.diag(G) > 0, np.diag(G), 1) ** 0.3, 0)
    np.fill_diagonal(similar, 0)
    order = np.argsort(-similar, axis=1, kind="stable")
    known = np.zeros_like(G, dtype=bool)
    for i, row in enumerate(order):
        first = row[:kept]
        known[i, first[similar[i, first] > 0]] = True
    A = np.where(known | known.T, G, 0) + np.diag(np.diag(G) + penalties)
    first = order[j, :k]
    first = first[similar[j, first] > 0]
    weights = np.zeros(len(G))
    weights[first] = np.linalg.solve(A[np.ix_(first, first)], G[first, j])
    return weights


@each("params", [{}, {"dropout": 0, "user_power": 0}, {"item_power": 0.3}, {"diagonal": 0.4}])
def test_weights_are_those_of_the_closed_form(params):
    # Any two items have users in common, so that all others can be neighbors.
    X = weighted_interactions(80, 25, 0.5)
    params = {"regularization": 3.0, "dropout": 0.5, "user_power": 0.3, **params}
    model = EASERecommender(**params).fit(X)
    rest = [params.pop(name, 0) for name in ("item_power", "diagonal")]
    expected = closed_form(*problem(X, **params), *rest)
    assert_allclose(model.item_weights_.toarray(), expected, rtol=1e-4, atol=1e-6)
    local = EASERecommender(**params, item_power=rest[0], diagonal=rest[1], n_neighbors=25).fit(X)
    assert_allclose(local.item_weights_.toarray(), expected, rtol=1e-3, atol=1e-5)


@each("k", [1, 3, 6])
def test_neighbors_have_regressions_of_their_own(X, k):
    model = EASERecommender(3.0, n_neighbors=k).fit(X)
    G, penalties = problem(X, 3.0, 0.5, 0.3)
    expected = np.column_stack(
        [of_neighbors(G, penalties, j, k, min(4 * k, 25)) for j in range(25)]
    )
    assert_allclose(model.item_weights_.toarray(), expected, rtol=1e-3, atol=1e-5)
    assert np.diff(model.item_weights_.T.tocsr().indptr).max() <= k


def test_auto_penalizes_by_the_lengths_of_histories(X):
    model = EASERecommender().fit(X)
    assert model.regularization_ == pytest.approx(2 * X.nnz / np.count_nonzero(np.diff(X.indptr)))
    given = EASERecommender(model.regularization_).fit(X)
    assert_array_equal(given.item_weights_.data, model.item_weights_.data)


def test_auto_is_exact_for_few_items(X, monkeypatch):
    exact = EASERecommender(n_neighbors=None).fit(X)
    assert_array_equal(EASERecommender().fit(X).item_weights_.data, exact.item_weights_.data)
    monkeypatch.setattr(item_weights, "_MOST_EXACT", 10)
    monkeypatch.setattr(ease, "_N_NEIGHBORS", 5)
    local = EASERecommender(n_neighbors=5).fit(X)
    assert_array_equal(EASERecommender().fit(X).item_weights_.data, local.item_weights_.data)


def test_all_pairs_that_do_not_fit_into_memory_are_refused(X, monkeypatch):
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 1000)
    with pytest.raises(ValueError, match="n_neighbors=None for 25 items would take .* to 100"):
        EASERecommender().fit(X)
    with pytest.raises(ValueError, match="n_neighbors=3 for 25 items would take .* Set fewer"):
        EASERecommender(n_neighbors=3).fit(X)


def test_neighbors_are_the_most_similar_if_all_items_have_many():
    # All lists of candidates are full: each user has every item.
    X = sparse.csr_array(np.random.default_rng(0).uniform(0.5, 3, (30, 20)).astype(np.float32))
    weights = EASERecommender(n_neighbors=2).fit(X).item_weights_.toarray()
    G, _ = problem(X, 0, 0, 0.3)
    scaled = G * np.diag(G) ** -0.3
    for j in range(20):
        # Row by row the products are scaled by the power of the other item.
        others = np.delete(np.arange(20), j)
        best = others[np.argsort(-scaled[j, others])[:2]]
        assert_array_equal(np.flatnonzero(weights[:, j]), np.sort(best))


def test_items_without_penalty_or_interactions(X):
    for n_neighbors in (None, 4):
        model = EASERecommender(0.0, dropout=0.0, n_neighbors=n_neighbors).fit(X)
        assert np.isfinite(model.item_weights_.data).all()
        assert 7 not in model.recommend(users=np.arange(80))[0]


@pytest.mark.slow
def test_sklearn_compatible():
    check_matrix_recommender(EASERecommender())
