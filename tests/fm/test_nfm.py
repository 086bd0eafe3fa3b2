"""NFMClassifier and NFMRegressor: what differs from DeepFM, with which they share the rest."""

import pickle

import numpy as np
import pytest
from emulated_gpu import EmulatedDevice
from helpers import PENALTIES, assert_same_model, each
from numpy.testing import assert_allclose, assert_array_equal

from freqfm import (
    DeepFMClassifier,
    DeepFMRegressor,
    FMClassifier,
    FMRegressor,
    NFMClassifier,
    NFMRegressor,
    backends,
)
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.initializers import Normal

pytestmark = pytest.mark.slow  # kernels of a further family

PAIRS = [(NFMClassifier, DeepFMClassifier), (NFMRegressor, DeepFMRegressor)]


def model_of(cls=NFMClassifier, **params):
    small = {"n_components": 3, "hidden_layer_sizes": (5,), "max_iter": 2, "random_state": 0}
    return cls(**{**small, **PENALTIES, **params})


def test_scores_are_linear_terms_and_layers_on_pooled_interactions(log):
    X, y = log
    model = model_of(NFMRegressor).fit(X, y)
    pooled = ((X @ model.factors_) ** 2 - X.power(2) @ model.factors_**2) / 2
    first, last = model.layers_
    hidden = np.maximum(pooled @ first[:-1] + first[-1], 0)
    expected = model.intercept_[0] + X @ model.coef_ + hidden @ last
    assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)


@each("cls, deep", PAIRS)
def test_parameters_are_those_of_deepfm_without_fields(log, cls, deep):
    of_deep = {n: v for n, v in deep().get_params().items() if n != "fields"}
    assert cls().get_params() == of_deep | {"alpha_layers": 100.0}
    # By default vectors start as large as these say.
    default, other = (model_of(cls, **params).fit(*log) for params in ({}, {"init": Normal(0.1)}))
    assert_same_model(default, other)
    assert_array_equal(default._dense, other._dense)


@each("cls, plain", [(NFMClassifier, FMClassifier), (NFMRegressor, FMRegressor)])
def test_without_layers_it_is_a_factorization_machine_to_the_bit(log, cls, plain):
    params = {"n_components": 3, "max_iter": 2, "init": Normal(0.1), "random_state": 0, **PENALTIES}
    model, fm = cls(hidden_layer_sizes=(), **params).fit(*log), plain(**params).fit(*log)
    assert_same_model(model, fm)
    assert_array_equal(model.predict(log[0]), fm.predict(log[0]))


def test_continued_grown_and_stored_models(log):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "layer_optimizer": "adagrad"}
    once = model_of(max_iter=3, **options).fit(X, y)
    warm = model_of(max_iter=1, warm_start=True, **options)
    for _ in range(3):
        warm.fit(X, y)
    assert_same_model(once, warm)
    assert_array_equal(once._dense, warm._dense)
    again = pickle.loads(pickle.dumps(once))
    assert_array_equal(again.predict_proba(X), once.predict_proba(X))
    part = model_of(**options).partial_fit(X[:, :300], y, classes=[0, 1])
    part.partial_fit(X, y, n_features=X.shape[1])
    assert part.factors_.shape == (X.shape[1], 3)
    assert [layer.shape for layer in part.layers_] == [(4, 5), (5,)]


def test_a_gpu_trains_it_as_the_cpu_does(log, monkeypatch):
    X, y = log[0][:60], log[1][:60]
    backend = CUDABackend(EmulatedDevice())
    monkeypatch.setattr(backends, "_cuda", lambda number: backend)
    params = {"batch_size": 30, "max_iter": 1, "early_stopping": False}
    found, expected = (model_of(device=at, **params).fit(X, y) for at in ("cuda", "cpu"))
    assert backend.device.launches
    for name in expected._weight_names:
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-6)
    assert_allclose(found.predict_proba(X), expected.predict_proba(X), atol=1e-6)
