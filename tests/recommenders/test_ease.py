"""EASERecommender against its closed form, and its public interface."""

import pickle

import numpy as np
import pytest
from helpers import check_matrix_recommender, each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from freqfm import EASERecommender, InteractionRecommender, ItemKNNRecommender
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.closed_form import ease, item_weights


def weighted(n_users=80, n_items=25, share=0.2):
    """Return weighted interactions; a user and an item have none."""
    rng = np.random.default_rng(0)
    X = (rng.random((n_users, n_items)) < share) * rng.choice([0.5, 1, 2], (n_users, n_items))
    X[3], X[:, 7] = 0, 0
    return sparse.csr_array(X.astype(np.float32))


@pytest.fixture(scope="module")
def X():
    return weighted()


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
    X = weighted(share=0.5)
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


def test_scores_are_sums_of_weights(X):
    model = EASERecommender(3.0).fit(X)
    scores = X.toarray() @ model.item_weights_.toarray()
    hidden = np.where((X.toarray() > 0) | (scores <= 0), 0, scores)
    users = np.flatnonzero(np.diff(X.indptr))
    items, found = model.recommend(users=users, n_recommendations=6)
    assert_allclose(np.maximum(found, 0), -np.sort(-hidden[users], axis=1)[:, :6], rtol=1e-4)
    assert_array_equal(items, model.recommend(X[users], n_recommendations=6)[0])
    told = model.explain(9, items[list(users).index(9), 0])
    assert told.contributions.sum() == pytest.approx(told.score, rel=1e-4)
    items, _ = model.recommend(users=users, candidates=[1, 2, 4, 7], exclude=[2])
    assert set(np.unique(items)) <= {-1, 1, 4, 7}


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


def test_same_bits_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(ease, "_BLOCK_SIZE", 1 << 12)
    X = make_interactions(900, 400, 9000, random_state=1)
    for n_neighbors in (None, 20):
        one, two = (EASERecommender(n_neighbors=n_neighbors, n_jobs=n).fit(X) for n in (1, 3))
        assert_array_equal(one.item_weights_.data, two.item_weights_.data)
        for a, b in zip(one.recommend(X), two.recommend(X), strict=True):
            assert_array_equal(a, b)


def test_ranks_better_than_neighbors_alone():
    X = make_interactions(2000, 300, 40_000, random_state=0)
    scores = [model.fit(X).score(X) for model in (EASERecommender(), ItemKNNRecommender())]
    assert scores[0] > scores[1]


@each("params", [{"dropout": 1}, {"regularization": -1}, {"n_neighbors": 0}, {"diagonal": 1}])
def test_parameters_out_of_range_are_refused(X, params):
    (name,) = params
    with pytest.raises(ValueError, match=f"'{name}' parameter of EASERecommender"):
        EASERecommender(**params).fit(X)


def test_items_without_penalty_or_interactions(X):
    for n_neighbors in (None, 4):
        model = EASERecommender(0.0, dropout=0.0, n_neighbors=n_neighbors).fit(X)
        assert np.isfinite(model.item_weights_.data).all()
        assert 7 not in model.recommend(users=np.arange(80))[0]


def test_copies_searches_and_tables(X):
    model = EASERecommender().fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.recommend(X)[0], model.recommend(X)[0])
    again.item_weights_ = again.item_weights_[:5]
    with pytest.raises(ValueError, match="item_weights_"):
        again.recommend(X)
    search = GridSearchCV(EASERecommender(), {"regularization": [1, 100]}, cv=2).fit(X)
    assert search.best_score_ > 0
    users, items = X.nonzero()
    log = [(f"u{u}", f"i{i}") for u, i in zip(users, items, strict=True)]
    table = InteractionRecommender(EASERecommender()).fit(log)
    assert len(table.recommend(["u1"], n_recommendations=3)[0][0]) == 3


def test_sklearn_compatible():
    check_matrix_recommender(EASERecommender())
