"""LightGCN: propagation against powers of the adjacency matrix, gradients, models."""

import numpy as np
import pytest
import reference.mf
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from test_mf_backbones import FAMILIES, reference_loss
from test_mf_kernels import N_USERS, known_pairs

from freqfm import MFRecommender, backends
from freqfm.backbones import LightGCN
from freqfm.datasets import make_interactions
from freqfm.initializers import Initializer
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions
from freqfm.optimizers import SGD, Adam
from freqfm.samplers import InBatch


@pytest.fixture(scope="module")
def graph():
    X = make_interactions(400, 150, 6000, random_state=0)
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(n, 17)).astype(np.float32) for n in X.shape]
    return X, tables


def matrix_of(X, n_layers):
    """Return the matrix of the mean over layers, by the definition."""
    A = np.block([[np.zeros((len(X),) * 2), X > 0], [X.T > 0, np.zeros((X.shape[1],) * 2)]])
    degrees = np.maximum(A.sum(axis=1), 1)
    A = A / np.sqrt(np.outer(degrees, degrees))
    return sum(np.linalg.matrix_power(A, k) for k in range(n_layers + 1)) / (n_layers + 1)


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3])
@pytest.mark.parametrize("backend", [backends.get(), NumpyBackend()], ids=["cpu", "numpy"])
def test_mean_over_layers(graph, backend, n_layers):
    X, tables = graph
    expected = matrix_of(X.toarray(), n_layers) @ np.concatenate(tables)
    propagation = backend.propagation(X, 2)
    for width in (17, 5):
        found = propagation.mean(*(table[:, :width].copy() for table in tables), n_layers)
        assert_allclose(np.concatenate(found), expected[:, :width], atol=2e-6)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_wanted_rows_are_the_same(graph, n_layers):
    X, tables = graph
    rows = np.arange(0, 400, 7), np.array([2, 5, 149])
    whole, part = (backends.get().propagation(X, 2) for _ in range(2))
    expected = whole.mean(*tables, n_layers)
    wanted = part.mean(*tables, n_layers, wanted=rows)
    for side in (0, 1):
        assert_array_equal(wanted[side][rows[side]], expected[side][rows[side]])


def test_propagation_is_the_same_for_any_number_of_threads(graph):
    X, tables = graph
    big = [np.tile(table, (1, 4)) for table in tables]
    for masks in ({}, {"wanted": (np.arange(400), np.arange(150))}):
        one, *others = (
            [table.copy() for table in backends.get().propagation(X, n).mean(*big, 3, **masks)]
            for n in (1, 2, 3)
        )
        for other in others:
            for expected, found in zip(one, other, strict=True):
                assert_array_equal(found, expected)


def test_rows_where_the_parts_of_threads_begin(monkeypatch):
    monkeypatch.setattr("freqfm.backends.cpu.ranking.propagation._WORTH_SEVERAL_THREADS", 0)
    # Users and items of four neighbours each, but for some without any.
    A = sum(np.roll(np.eye(24, dtype=np.float32), k, axis=1) for k in range(4))
    X = np.zeros((28, 26), dtype=np.float32)
    X[np.ix_(np.delete(np.arange(28), [0, 6, 13, 27]), np.delete(np.arange(26), [0, 12]))] = A
    tables = [np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32) for n in X.shape]
    expected = matrix_of(X, 2) @ np.concatenate(tables)
    for n_threads in (1, 2, 3, 4, 6):
        found = backends.get().propagation(sparse.csr_array(X), n_threads).mean(*tables, 2)
        assert_allclose(np.concatenate(found), expected, atol=2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_through_propagation(data, family):
    X, U, V = data
    pairs, (_, _, model) = known_pairs(
        data, backbone=LightGCN(2, propagate="batch"), **FAMILIES[family]
    )
    P = matrix_of(X.toarray(), 2)

    def loss(of_users, of_items):
        vectors = P @ np.concatenate([of_users, of_items])
        return reference_loss(family, X, pairs, vectors[:N_USERS], vectors[N_USERS:])

    assert_allclose(model.loss_curve_[0], loss(U, V), rtol=1e-5)
    expected = reference.mf.gradients(loss, U, V)
    for name, before, gradient in zip(model.backbone_tables_, (U, V), expected, strict=True):
        assert_allclose(before - model.backbone_tables_[name], gradient, atol=3e-5)
    # What recommendations use is what propagation makes of the tables.
    vectors = P @ np.concatenate(list(model.backbone_tables_.values()))
    assert_allclose(model.user_factors_, vectors[:N_USERS], atol=1e-5)
    assert_allclose(model.item_factors_, vectors[N_USERS:], atol=1e-5)


class Given(Initializer):
    """Tables that are given."""

    def __init__(self, users, items):
        self.users = users
        self.items = items

    def draw(self, shape, generator, counts=None):
        return (self.users if shape[0] == len(self.users) else self.items).copy()


def test_an_epoch_moves_tables_as_it_moves_vectors(graph):
    X, tables = graph
    P = matrix_of(X.toarray(), 2)
    params = {"n_components": 17, "optimizer": SGD(0.1), "max_iter": 1, "random_state": 0}
    model = MFRecommender(backbone=LightGCN(2), init=Given(*tables), **params).fit(X)
    start = np.split((P @ np.concatenate(tables)).astype(np.float32), [len(tables[0])])
    plain = MFRecommender(init=Given(*start), **params).fit(X)
    moved = (plain.user_factors_ - start[0], plain.item_factors_ - start[1])
    expected = [table + change for table, change in zip(tables, moved, strict=True)]
    assert min(np.abs(change).max() for change in moved) > 1e-3
    for table, of_table in zip(model.backbone_tables_.values(), expected, strict=True):
        assert_allclose(table, of_table, atol=2e-5)
    found = np.concatenate([model.user_factors_, model.item_factors_])
    assert_allclose(found, P @ np.concatenate(expected), atol=2e-5)


@pytest.mark.parametrize("loss", ["bsl", "bpr", "mawu"])
def test_no_layers_are_matrix_factorization(graph, loss):
    params = {"loss": loss, "max_iter": 2, "random_state": 0}
    plain = MFRecommender(8, **params).fit(graph[0])
    model = MFRecommender(8, backbone=LightGCN(n_layers=0), **params).fit(graph[0])
    assert_array_equal(model.user_factors_, plain.user_factors_)
    assert_array_equal(model.item_factors_, plain.item_factors_)
    assert_array_equal(model.loss_curve_, plain.loss_curve_)


BITS = [
    {},
    {"backbone": LightGCN(propagate="batch"), "batch_size": 500},
    {"backbone": LightGCN(propagate="batch"), "loss": "bpr", "optimizer": Adam(0.01)},
]


@pytest.mark.parametrize("params", BITS, ids=str)
def test_bits_do_not_depend_on_threads(graph, params):
    params = {
        "n_components": 40,
        "backbone": "lightgcn",
        "max_iter": 2,
        "random_state": 0,
        **params,
    }
    one, *others = (MFRecommender(**params, n_jobs=n).fit(graph[0]) for n in (1, 2, 3))
    for other in others:
        assert_array_equal(other.user_factors_, one.user_factors_)
        assert_array_equal(other.item_factors_, one.item_factors_)
        assert_array_equal(other.loss_curve_, one.loss_curve_)


@pytest.mark.parametrize("sampler", ["auto", InBatch(corrected=False)], ids=str)
def test_new_users_are_recommended_by_their_history(graph, sampler):
    X, _ = graph
    train, test = holdout_interactions(X, 0.2, random_state=0)
    model = MFRecommender(
        16, backbone="lightgcn", negative_sampler=sampler, max_iter=15, random_state=0
    ).fit(train[:300])
    unseen = sparse.csr_array(train[300:])
    found = model.recommend(unseen, n_recommendations=10)[0]
    popular = np.argsort(-model.item_counts_, kind="stable")
    by_count = np.array(
        [popular[~np.isin(popular, unseen[[r]].indices)][:10] for r in range(unseen.shape[0])]
    )
    relevant = sparse.csr_array(test[300:])
    assert ndcg_at_k(relevant, found) > 1.1 * ndcg_at_k(relevant, by_count)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_new_users_start_at_the_result_of_folding_in(graph, n_layers):
    X = sparse.csr_array(graph[0])
    backbone = LightGCN(n_layers)
    model = MFRecommender(8, backbone=backbone, loss="bpr", max_iter=20, random_state=0).fit(X)
    later = sparse.lil_array((403, 152), dtype=np.float32)
    later[400, [0, 2, 4]] = 1
    later[401, [1, 3, 5, 150]] = 1
    later[402, 151] = 1  # nothing to fold in
    later = later.tocsr()
    folded = model.transform(later[400:402, :150])
    model.set_params(learning_rate=1e-12).partial_fit(later)
    assert model.user_factors_.shape == (403, 8) and model.item_factors_.shape == (152, 8)
    started = model.user_factors_[400:402]
    cosines = np.sum(started * folded, axis=1) / np.linalg.norm(started, axis=1)
    # With two layers a user's row reaches the user's vector by the items, too.
    assert (cosines / np.linalg.norm(folded, axis=1)).min() > (0.9999 if n_layers == 1 else 0.9)
    whole = later.toarray()
    whole[:400, :150] = X.toarray()
    vectors = matrix_of(whole, n_layers) @ np.concatenate(list(model.backbone_tables_.values()))
    assert_allclose(np.concatenate([model.user_factors_, model.item_factors_]), vectors, atol=1e-5)


@pytest.mark.parametrize("propagate", ["epoch", "batch"])
def test_training_goes_on_with_the_whole_graph(graph, propagate):
    X = sparse.csr_array(graph[0])
    first, second = sparse.csr_array(X.multiply(np.arange(150) < 75)), X
    model = MFRecommender(4, backbone=LightGCN(1, propagate=propagate), loss="bpr", random_state=0)
    model.partial_fit(first)
    new = sparse.csr_array(X.multiply(np.arange(150) >= 75))
    model.partial_fit(new)
    P = matrix_of(second.toarray(), 1)
    vectors = P @ np.concatenate(list(model.backbone_tables_.values()))
    assert_allclose(model.user_factors_, vectors[:400], atol=1e-5)
    with pytest.raises(ValueError, match="The 'n_layers' parameter of LightGCN must be an int"):
        MFRecommender(backbone=LightGCN(-1)).fit(X)
