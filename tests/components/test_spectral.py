"""The spectral initializer: directions of users and items from their interactions."""

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from reference.vae import unit
from scipy import sparse

import freqfm.dask
from freqfm import FastVAERecommender, FMClassifier, MFRecommender, Word2Vec, initializers
from freqfm.backbones import Features, LightGCN
from freqfm.datasets import make_interactions
from freqfm.initializers import PRISM, Normal, Spectral, XavierUniform
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions


def two_groups():
    """Return interactions of two groups of users with items of their own, and of nobody else."""
    block = np.ones((6, 5))
    dense = np.zeros((13, 12))
    dense[:6, :5] = dense[6:12, 5:10] = block
    return sparse.csr_array(dense.astype(np.float32))


def directions(X, width, n_threads=1, **params):
    return Spectral(**params).directions(X, width, np.random.default_rng(0), n_threads)


def started(X, init, **params):
    """Return a model before its first epoch; the smallest rate leaves it where it was."""
    return MFRecommender(
        8, init=init, max_iter=1, learning_rate=1e-12, random_state=0, **params
    ).fit(X)


def test_directions_are_those_of_the_singular_vectors():
    X = make_interactions(80, 60, 900, random_state=0)
    scale_u = 1 / np.sqrt(np.maximum(np.diff(X.indptr), 1))
    scale_i = 1 / np.sqrt(np.maximum(np.bincount(X.indices, minlength=60), 1))
    matrix = scale_u[:, None] * (X.toarray() != 0) * scale_i
    left, values, right = np.linalg.svd(matrix)
    expected = {
        "user": left[:, :5] * np.sqrt(values[:5]),
        "item": right[:5].T * np.sqrt(values[:5]),
    }
    found = directions(X, 5, n_iter=200)
    for side, rows in expected.items():
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
        # Up to signs of the columns.
        assert_allclose(found[side] @ found[side].T, rows @ rows.T, atol=2e-3)


def test_directions_do_not_depend_on_the_number_of_threads():
    # Enough work for several threads.
    X = make_interactions(500, 400, 20_000, random_state=0)
    one, two = (directions(X, 40, n_threads) for n_threads in (1, 2))
    for side in one:
        assert_array_equal(one[side], two[side])


def test_many_interactions_get_the_same_directions(monkeypatch):
    # More users than items, and more items than users; some are empty.
    for shape in ((900, 300), (300, 900)):
        X = make_interactions(*shape, 20_000, random_state=0)
        X.resize(shape[0] + 7, shape[1] + 5)
        exact = directions(X, 12, n_iter=60)
        with monkeypatch.context() as patched:
            patched.setattr(initializers, "_MANY", 0)
            patched.setattr(initializers, "_ITERATIONS_OF_MANY", 60)
            patched.setattr(initializers, "_EXACT_ROWS", 100)
            many, again = (directions(X, 12, n_threads, n_iter=60) for n_threads in (1, 2))
        for side, rows in exact.items():
            assert_array_equal(many[side], again[side])
            assert_allclose(many[side] @ many[side].T, rows @ rows.T, atol=2e-2)
            assert not many[side][-5:].any()


def test_many_interactions_with_fewer_directions_than_components(monkeypatch):
    monkeypatch.setattr(initializers, "_MANY", 0)
    monkeypatch.setattr(initializers, "_EXACT_ROWS", 4)
    found = directions(two_groups(), 8)
    users, items = found["user"], found["item"]
    assert_allclose(users[:12] @ items[:10].T, np.kron(np.eye(2), np.ones((6, 5))), atol=1e-3)
    assert not users[12:].any() and not items[10:].any()
    assert np.isfinite(started(two_groups(), "spectral").user_factors_).all()


def test_groups_start_apart_and_the_rest_at_random():
    X = two_groups()
    found = directions(X, 8)
    users, items = found["user"], found["item"]
    assert_allclose(users[:12] @ items[:10].T, np.kron(np.eye(2), np.ones((6, 5))), atol=1e-3)
    assert not users[12:].any() and not items[10:].any()
    model, plain = started(X, Spectral(noise=0.0)), started(X, "xavier")
    lengths = np.linalg.norm(plain.user_factors_, axis=1)
    assert_allclose(np.linalg.norm(model.user_factors_, axis=1), lengths, rtol=1e-3)
    assert_allclose(model.user_factors_[12], plain.user_factors_[12], atol=1e-6)
    assert_allclose(model.item_factors_[10:], plain.item_factors_[10:], atol=1e-6)


def test_it_is_the_default_start():
    X = make_interactions(40, 30, 300, random_state=0)
    default = started(X, "auto")
    assert_array_equal(default.user_factors_, started(X, "spectral").user_factors_)
    long = started(X, Spectral(base=XavierUniform(3.0)))
    assert_allclose(long.item_factors_, 3 * default.item_factors_, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("shape", [(3, 40), (40, 3), (1, 1)])
def test_more_components_than_singular_vectors(shape):
    X = sparse.csr_array(np.ones(shape, dtype=np.float32))
    found = directions(X, 20)
    for side, n in zip(("user", "item"), shape, strict=True):
        # All rows are equal: there is one direction.
        assert found[side].shape == (n, 20) and found[side].dtype == np.float32
        assert_allclose(found[side] @ found["item"][0], 1, atol=1e-4)


def test_lengths_are_those_of_the_base():
    X = make_interactions(200, 100, random_state=0)
    for base in (PRISM(), XavierUniform(scale=2.0), PRISM(users=False)):
        plain, model = started(X, base), started(X, Spectral(noise=0.0, base=base))
        assert model._rank_by_cosine == plain._rank_by_cosine
        for name in ("user_factors_", "item_factors_"):
            lengths = [np.linalg.norm(getattr(m, name), axis=1) for m in (plain, model)]
            assert_allclose(*lengths, rtol=1e-3)


def test_training_needs_fewer_epochs():
    X = make_interactions(400, 300, 12_000, random_state=0)
    history, held_out = holdout_interactions(X, 0.2, random_state=0)
    scores = {}
    for init in ("xavier", "spectral"):
        model = MFRecommender(16, init=init, max_iter=2, random_state=0).fit(history)
        scores[init] = ndcg_at_k(held_out, model.recommend(history)[0])
    assert scores["spectral"] > 1.2 * scores["xavier"]


def test_backbones_start_their_users_and_items_in_these_directions():
    X = make_interactions(60, 40, 500, random_state=0)
    genres = sparse.csr_array(np.eye(4, dtype=np.float32)[np.arange(40) % 4])
    own = started(X, Spectral(noise=0.0)).item_factors_
    for backbone in (LightGCN(n_layers=1), Features(item_features=genres)):
        tables = started(X, Spectral(noise=0.0), backbone=backbone).backbone_tables_
        rows = tables["item_factors"]
        cosines = (rows * own).sum(axis=1) / np.linalg.norm(rows, axis=1)
        assert_allclose(cosines, np.linalg.norm(own, axis=1), rtol=1e-3)
    plain = started(X, "xavier", backbone=backbone).backbone_tables_
    assert_allclose(tables["item_features"], plain["item_features"], atol=1e-6)
    without = started(X, "spectral", backbone=Features(item_features=genres, identity=False))
    assert_allclose(
        without.backbone_tables_["item_features"],
        started(X, "xavier", backbone=without.backbone).backbone_tables_["item_features"],
        atol=1e-6,
    )


def test_new_rows_start_at_random():
    X = make_interactions(60, 40, 500, random_state=0)
    more = sparse.csr_array((X.data, X.indices, X.indptr), shape=(60, 43))
    models = [
        MFRecommender(8, init=init, learning_rate=1e-12, random_state=0).partial_fit(X)
        for init in ("xavier", "spectral")
    ]
    plain, model = (m.partial_fit(more) for m in models)
    assert_allclose(model.item_factors_[40:], plain.item_factors_[40:], atol=1e-6)


def test_refused_where_there_are_no_users_and_items():
    clicks, texts = (np.eye(4), [0, 1, 0, 1]), [[["a", "b"] * 9]]
    for init in ("spectral", Spectral(base=PRISM())):
        for estimator, data in ((FMClassifier(init=init), clicks), (Word2Vec(init=init), texts)):
            with pytest.raises(ValueError, match="init=.* needs interactions of users and items"):
                estimator.fit(*data)


def test_other_directions_are_refused_on_a_cluster():
    class Directed(XavierUniform):
        needs_interactions = True

    class Turned(Spectral):
        def directions(self, X, n_components, generator, n_threads):
            return super().directions(X[::-1], n_components, generator, n_threads)

    X = make_interactions(60, 40, 500, random_state=0)
    X.parts = [X]
    for init in (Directed(), Turned()):
        model = freqfm.dask.MFRecommender(init=init)
        model._n_known_interactions = 0
        with pytest.raises(ValueError, match="init=.* needs all interactions in one place"):
            model._resolve_components(X, X)


def test_parameters_are_checked():
    X = two_groups()
    for params in ({"noise": -1.0}, {"n_iter": 0}, {"base": "prism"}):
        with pytest.raises(ValueError, match=next(iter(params))):
            MFRecommender(init=Spectral(**params)).fit(X)


class FirstAxis(XavierUniform):
    """Starts all rows of users and items in the same direction."""

    def directions(self, X, n_components, generator, n_threads):
        axis = np.eye(1, n_components, dtype=np.float32)
        return {"user": axis.repeat(X.shape[0], 0), "item": axis.repeat(X.shape[1], 0)}


def test_directions_of_ones_own():
    model, plain = (started(two_groups(), init) for init in (FirstAxis(), "xavier"))
    lengths = np.linalg.norm(plain.item_factors_, axis=1)
    assert_allclose(model.item_factors_[:, 0], lengths, rtol=1e-5)
    assert_allclose(model.item_factors_[:, 1:], 0, atol=1e-6)


def started_vae(X, init, **params):
    """Return an autoencoder before its first epoch, up to steps of the smallest rate."""
    params = {"hidden_layer_sizes": (12,), "early_stopping": False, "random_state": 0, **params}
    return FastVAERecommender(8, init=init, max_iter=1, learning_rate=1e-12, **params).fit(X)


VAE_LAYERS = [
    {},
    {"hidden_layer_sizes": (6,)},
    {"hidden_layer_sizes": (12, 9)},
    {"decoder_layer_sizes": (10,)},
    {"hidden_layer_sizes": (7, 9), "decoder_layer_sizes": (10, 6)},
]


@each("params", VAE_LAYERS)
def test_an_autoencoder_starts_as_a_spectral_filter(params):
    X = make_interactions(80, 60, 900, random_state=0)
    model = started_vae(X, Spectral(noise=0.0, n_iter=50), **params)
    hidden, decoder = model._sizes()
    n = min(8, *hidden, *decoder)
    expected = directions(X, n, n_iter=50)["item"]
    for table in (model.input_factors_, model.item_factors_[:, :-1]):
        assert_allclose(table[:, n:], 0, atol=1e-6)
        rows = unit(table[:, :n])
        assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-3)
    for layer in model.layers_[1:]:
        assert_allclose(layer[:n, :n], np.eye(n), atol=1e-6)
    if len(hidden) == 1:
        # The other hidden values are zeros.
        z = np.tanh(unit(X.toarray()) @ model.input_factors_[:, :n])
        assert_allclose(model.transform(X)[:, :n], z, atol=1e-5)


def test_an_autoencoder_needs_fewer_epochs():
    X = make_interactions(400, 600, 8000, random_state=0)
    history, held_out = holdout_interactions(X, 0.2, random_state=0)
    scores = {}
    for init in ("normal", "spectral"):
        model = FastVAERecommender(16, init=init, max_iter=1, early_stopping=False, random_state=0)
        scores[init] = ndcg_at_k(held_out, model.fit(history).recommend(history)[0])
    assert scores["spectral"] > 1.15 * scores["normal"]


def test_initial_values_of_an_autoencoder():
    X = make_interactions(80, 60, 900, random_state=0)
    for init, lengths in (("normal", (0.1, 0.05)), (Normal(0.3), (0.3, 0.3)), ("spectral", None)):
        model = started_vae(X, init)
        tables = model.input_factors_, model.item_factors_[:, :-1]
        if lengths:
            assert_allclose([table.std() for table in tables], lengths, rtol=0.1)
    # The lengths are those of the base: by default the normal one.
    for base, plain in ((None, "normal"), (Normal(), "normal"), (PRISM(), "prism")):
        model, plain = started_vae(X, Spectral(noise=0.0, base=base)), started_vae(X, plain)
        for name in ("input_factors_", "item_factors_"):
            norms = [np.linalg.norm(getattr(m, name), axis=1) for m in (model, plain)]
            assert_allclose(*norms, rtol=1e-4)
    with pytest.raises(ValueError, match="init='spectra' is not known; did you mean 'spectral'"):
        started_vae(X, "spectra")


def test_new_items_of_an_autoencoder_start_at_random():
    X = make_interactions(60, 40, 500, random_state=0)
    more = sparse.csr_array((X.data, X.indices, X.indptr), shape=(60, 43))
    plain, model = (started_vae(X, init).partial_fit(more) for init in ("normal", "spectral"))
    assert_allclose(model.input_factors_[40:], plain.input_factors_[40:], atol=1e-6)
    assert_allclose(model.item_factors_[40:], plain.item_factors_[40:], atol=1e-6)


def test_an_autoencoder_does_not_depend_on_the_number_of_threads():
    X = make_interactions(500, 400, 20_000, random_state=0)
    one, two = (started_vae(X, "spectral", n_jobs=n) for n in (1, 2))
    for name, table in one._tables().items():
        assert_array_equal(table, two._tables()[name])


def test_directions_of_ones_own_in_an_autoencoder():
    model, plain = (started_vae(two_groups(), init) for init in (FirstAxis(), XavierUniform()))
    for name in ("input_factors_", "item_factors_"):
        rows, old = getattr(model, name), getattr(plain, name)
        n = rows.shape[1] - (name == "item_factors_")
        assert_allclose(rows[:, 0], np.linalg.norm(old[:, :n], axis=1), rtol=1e-5)
        assert_allclose(rows[:, 1:n], 0, atol=1e-6)
