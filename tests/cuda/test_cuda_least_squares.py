"""ALSRecommender on an emulated GPU, compared with the reference in NumPy and with the CPU."""

import pickle

import emulated_gpu
import numpy as np
import pytest
from emulated_gpu import EmulatedDevice
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone

from freqfm import ALSRecommender, DivergenceError, backends
from freqfm.backends.base import CPUOnlyError
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.cuda.ranking import least_squares

LEARNED = "user_factors_", "item_factors_", "loss_curve_"


@pytest.fixture
def fit_on(monkeypatch):
    """Return a function that fits a recommender by a backend."""

    def fit_on(backend, model, *data, **options):
        monkeypatch.setattr(backends, "_cuda", lambda number: backend)
        return clone(model).set_params(device="cuda").fit(*data, **options)

    return fit_on


def on_gpu(*grid):
    return CUDABackend(EmulatedDevice(*grid))


def als(n_components=3, **params):
    return ALSRecommender(n_components, **{"max_iter": 2, "random_state": 0, **params})


def liked(n_users=9, n_items=7, share=0.4):
    """Return weighted likes and dislikes; a user and an item have none."""
    generator = np.random.default_rng(0)
    X = generator.choice([0.5, 1, 3, -1], (n_users, n_items))
    X *= generator.random((n_users, n_items)) < share
    X[-1] = X[:, 3:4] = 0
    return sparse.csr_array(X.astype(np.float32))


def assert_agree(found, expected):
    for name in LEARNED:
        array = getattr(expected, name)
        most = 2e-5 * np.abs(array).max()
        assert_allclose(getattr(found, name), array, rtol=0, atol=most, err_msg=name)


@each(
    "params, data",
    [
        ({}, {}),
        ({"n_components": 1, "regularization_exponent": 0.5}, {}),
        ({"n_components": 6, "cg_steps": 1}, {"share": 0.9}),
        # More steps than it takes.
        ({"n_components": 2, "cg_steps": 12, "max_iter": 1}, {}),
        # One item; and fewer of them than there are components.
        ({}, {"n_items": 1, "share": 1.0}),
        ({"n_components": 9, "max_iter": 1}, {"n_items": 2, "share": 0.9}),
    ],
)
def test_fits_agree(fit_on, params, data):
    X = liked(**data)
    found, expected = (fit_on(backend, als(**params), X) for backend in (on_gpu(), NumpyBackend()))
    assert_agree(found, expected)
    assert_agree(found, als(**params).fit(X))
    assert not found.user_factors_[-1].any() and np.abs(found.user_factors_).max() > 1e-3


def test_any_grid_gives_the_same_bits(fit_on, monkeypatch):
    X, model = liked(), als(5)
    first = fit_on(on_gpu(1, 0), model, X)
    # Several batches of rows, by fewer groups than there are rows, or than the grid has.
    monkeypatch.setattr(least_squares, "_ROWS", 1)
    monkeypatch.setattr(least_squares, "_THREADS", 24)
    emulated_gpu._python.cache_clear()
    for grid in [(1, 0), (4, 1), (11, 2)]:
        other = fit_on(on_gpu(*grid), model, X)
        for name in LEARNED:
            assert_array_equal(getattr(other, name), getattr(first, name), err_msg=name)
    emulated_gpu._python.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("n_components", [3, 7, 17])
def test_lanes_of_a_group_agree(fit_on, n_components):
    X, model = liked(), als(n_components, max_iter=1)
    assert_agree(fit_on(on_gpu(2, 0, 4), model, X), fit_on(on_gpu(), model, X))


def test_models_go_on_and_serve(fit_on):
    X, more = liked(), liked(12, 9)
    expected, found = als(warm_start=True).fit(X), fit_on(on_gpu(), als(warm_start=True), X)
    for data in (X, more):
        for model in (expected, found):
            model.fit(data) if data is X else model.partial_fit(data)
        assert_agree(found, expected)
        assert_allclose(found.transform(data), expected.transform(data), atol=1e-5)
    assert found.n_iter_ == 5
    assert found.user_factors_.shape == (12, 3) and found.item_factors_.shape == (9, 3)
    loaded = pickle.loads(pickle.dumps(found))
    assert_array_equal(loaded.transform(more), found.transform(more))


@pytest.mark.slow
def test_histories_are_served(fit_on):
    X = liked()
    found, expected = fit_on(on_gpu(), als(), X), als().fit(X)
    assert_array_equal(found.recommend(X)[0], expected.recommend(X)[0])
    assert_allclose(found.recommend(users=[3])[1], expected.recommend(users=[3])[1], rtol=1e-4)


def size_of(model, X, y):
    """Return a score of a model's vectors."""
    return np.abs(model.user_factors_).sum() + np.abs(model.item_factors_).sum()


def test_early_stopping_looks_at_the_vectors_on_the_device(fit_on):
    X, X_val = liked(), abs(liked(share=0.9))
    model = als(early_stopping=True, scoring=size_of)
    found, expected = (
        fit_on(backend, model, X, X_val=X_val) for backend in (on_gpu(), backends.get())
    )
    assert_allclose(found.validation_scores_, expected.validation_scores_, rtol=1e-4)
    assert found.best_iter_ == expected.best_iter_
    assert_agree(found, expected)


def test_what_is_solved_exactly_stays_on_the_cpu(fit_on):
    X, model = liked(), als(solver="cholesky")
    with pytest.raises(CPUOnlyError, match="solver='cholesky' runs on the CPU only; set dev"):
        fit_on(on_gpu(), model, X)
    found = clone(model).set_params(device="auto").fit(X)
    assert_array_equal(found.item_factors_, model.fit(X).item_factors_)


def test_divergence_is_found_on_the_device(fit_on):
    model = als(unobserved_weight=1e38, regularization=1e-30)
    with pytest.raises(DivergenceError, match="ALSRecommender diverged in epoch 1"):
        fit_on(on_gpu(), model, abs(liked()))
