"""GraphFilterRecommender against the filter by all eigenvectors, and its public interface."""

import numpy as np
import pytest
from helpers import check_matrix_recommender, each, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import GraphFilterRecommender, initializers
from freqfm._input import rows
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.closed_form import base as item_weights
from freqfm.estimators.recommenders.closed_form import graph_filter


@pytest.fixture(scope="module")
def X():
    return weighted_interactions(80, 25)


def respond(p, response, c, flatness):
    """Return the responses of the papers."""
    if response == "ridge":
        return (1 + c) * p / (p + c)
    if response == "linear":
        return p
    x = 1 - 2 * p
    return np.where(x > 0, 1 - np.abs(x) ** flatness, 1 + np.abs(x) ** flatness) / 2


def filtered(X, n, response, *, c=0.3, flatness=1.5, low_pass=0.2, power=0.3):
    """Return the weights between items by the eigenvalues of the whole graph, in float64."""
    X = X.toarray().astype(np.float64)
    lengths, counts = (X > 0).sum(axis=1), (X > 0).sum(axis=0)
    means = [of[of > 0].mean() for of in (lengths, counts)]
    edge = sum(mean**-0.5 for mean in means) ** 2
    degrees = [np.where(of > 0, of, 1) for of in (X.sum(axis=1), X.sum(axis=0))]
    A = X / np.sqrt(degrees[0][:, None] * degrees[1])
    p, V = np.linalg.eigh(A.T @ A)
    p, V = p[::-1], V[:, ::-1]
    h = respond(p, response, c, flatness)
    h[n:] = p[n:] * h[n - 1] / p[n - 1]
    h[:n] += low_pass * (p[:n] > edge)
    weights = (V * h) @ V.T * (degrees[1] ** power / degrees[1][:, None] ** power)
    np.fill_diagonal(weights, 0)
    weights[counts == 0] = 0
    weights[:, counts == 0] = 0
    return weights


@each("response", ["ridge", "plateau", "linear"])
def test_weights_are_those_of_the_filter(X, response, monkeypatch):
    monkeypatch.setattr(graph_filter, "_ROWS", 13)
    given = {"regularization": 0.3, "low_pass": 0.2, "item_power": 0.3, "random_state": 0}
    # Vectors are exact at once if there is room for all of them.
    for n, n_iter in ((24, 3), (16, 60)):
        monkeypatch.setattr(graph_filter, "_N_ITER", n_iter)
        model = GraphFilterRecommender(n, response=response, **given).fit(X)
        assert_allclose(model.item_weights_.toarray(), filtered(X, n, response), atol=1e-4)
        assert model.eigenvalues_.shape == (n,)
        assert model.eigenvalues_[0] == pytest.approx(1, rel=1e-5)


def test_bases_of_many_items_filter_alike(X, monkeypatch):
    monkeypatch.setattr(initializers, "_EXACT_ROWS", 10)
    for n, n_iter in ((24, 3), (16, 60)):
        monkeypatch.setattr(graph_filter, "_N_ITER", n_iter)
        given = {"regularization": 0.3, "low_pass": 0.2, "item_power": 0.3, "random_state": 0}
        model = GraphFilterRecommender(n, **given).fit(X)
        assert_allclose(model.item_weights_.toarray(), filtered(X, n, "ridge"), atol=2e-3)
        assert model.eigenvalues_[0] == pytest.approx(1, rel=1e-5)


def test_largest_weights_are_kept(X):
    whole = GraphFilterRecommender(8, random_state=0).fit(X).item_weights_.toarray()
    some = GraphFilterRecommender(8, n_neighbors=3, random_state=0).fit(X).item_weights_
    assert np.diff(some.indptr).max() == 3
    # Weights of an item are compared as they enter scores.
    kept = some.toarray()
    for row, of in zip(whole, kept, strict=True):
        assert_allclose(of[of != 0], row[of != 0])
        assert row[of == 0].max() <= of[of != 0].min(initial=np.inf)


def test_of_many_items_the_most_similar_are_considered(X, monkeypatch):
    whole = GraphFilterRecommender(8, random_state=0).fit(X)
    monkeypatch.setattr(graph_filter, "_MANY_TIMES", 2)
    monkeypatch.setattr(graph_filter, "_BLOCK_ROWS", 4)
    some, again = (
        GraphFilterRecommender(8, n_neighbors=3, random_state=0, n_jobs=n).fit(X) for n in (1, 2)
    )
    assert_array_equal(some.item_weights_.toarray(), again.item_weights_.toarray())
    assert np.diff(some.item_weights_.indptr).max() == 3
    sums = [np.maximum(X.sum(axis=axis), 1e-9) for axis in (0, 1)]
    A = X.toarray() / np.sqrt(sums[1][:, None] * sums[0])
    similar = A.T @ A * sums[0] ** some.item_power_
    np.fill_diagonal(similar, 0)
    weights = whole.item_weights_.toarray(), some.item_weights_.toarray()
    n_left_out = 0
    for row, kept, similarity in zip(*weights, similar, strict=True):
        candidates = np.argsort(-similarity)[:12]
        candidates = candidates[similarity[candidates] > 0]
        expected = candidates[np.argsort(-row[candidates])[:3]]
        assert set(np.flatnonzero(kept)) == set(expected[row[expected] != 0])
        assert_allclose(kept[kept != 0], row[kept != 0], rtol=1e-4)
        n_left_out += len(set(np.argsort(-row)[:3]) - set(expected))
    assert n_left_out  # else candidates would not matter here


def test_items_that_no_chain_of_users_connects_add_nothing(monkeypatch):
    # Eigenvalues of the parts are equal, so vectors mix them. The two meet at each other's ends.
    parts = [weighted_interactions(30, 12) for _ in range(3)]
    X = sparse.lil_array(sparse.block_diag(parts))
    X[0, 12] = 1
    X = sparse.csr_array(X)
    monkeypatch.setattr(rows, "_ENTRIES", 7)
    monkeypatch.setattr(graph_filter, "_MANY_TIMES", 1)
    for n_neighbors in (None, 20):
        weights = GraphFilterRecommender(20, n_neighbors=n_neighbors).fit(X).item_weights_.toarray()
        assert not weights[:24, 24:].any()
        assert not weights[24:, :24].any()
        assert weights[:12, 12:24].any()


def test_auto_follows_the_noise(X, monkeypatch):
    model = GraphFilterRecommender(8, random_state=0).fit(X)
    counts = [np.diff(of.indptr) for of in (X, X.T.tocsr())]
    edge = sum(of[of > 0].mean() ** -0.5 for of in counts) ** 2
    assert model.noise_edge_ == pytest.approx(edge)
    assert model.regularization_ == pytest.approx(edge * np.exp(6 * edge))
    assert model.item_power_ == 0.5
    given = GraphFilterRecommender(
        8, regularization=model.regularization_, item_power=0.5, random_state=0
    )
    assert_array_equal(given.fit(X).item_weights_.data, model.item_weights_.data)
    dense = make_interactions(400, 60, 8000, random_state=0)
    model = GraphFilterRecommender(8, random_state=0).fit(dense)
    assert model.item_power_ == pytest.approx(0.2 + model.noise_edge_)
    monkeypatch.setattr(item_weights, "_MOST_EXACT", 10)
    monkeypatch.setattr(graph_filter, "_N_NEIGHBORS", 5)
    few = GraphFilterRecommender(8, random_state=0).fit(X).item_weights_
    assert np.diff(few.indptr).max() == 5


def test_a_random_graph_has_no_eigenvalue_beyond_the_edge():
    rng = np.random.default_rng(0)
    X = sparse.csr_array((rng.random((800, 600)) < 0.05).astype(np.float32))
    model = GraphFilterRecommender(100, random_state=0).fit(X)
    assert 0.85 * model.noise_edge_ < model.eigenvalues_[1] < model.noise_edge_


def test_what_does_not_fit_into_memory_is_refused(X, monkeypatch):
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 1000)
    with pytest.raises(ValueError, match="n_components=25 .* 80 users and 25 items would take"):
        GraphFilterRecommender().fit(X)


@each("X", [np.eye(1, 5), np.eye(4), np.ones((3, 2))])
def test_degenerate_interactions(X):
    for response in ("ridge", "plateau", "linear"):
        for regularization in (0.0, "auto"):
            model = GraphFilterRecommender(
                response=response, regularization=regularization, random_state=0
            ).fit(X)
            assert np.isfinite(model.item_weights_.data).all()
            model.recommend(X)


@pytest.mark.slow
def test_sklearn_compatible():
    check_matrix_recommender(GraphFilterRecommender(random_state=0))
