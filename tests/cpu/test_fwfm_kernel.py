"""The kernels of field-weighted machines against references, finite differences and themselves."""

import numpy as np
import pytest
from custom_components import CustomAdagrad, CustomAdam
from helpers import assert_same_attributes
from numpy.testing import assert_allclose, assert_array_equal
from reference.differences import slopes
from reference.numpy_backend import fwfm as reference
from scipy import sparse
from sklearn.base import clone
from test_numpy_backend import (  # noqa: F401
    OPTIMIZERS,
    assert_near,
    covering,
    fit_both,
    fit_machines_that_agree,
    label,
    use,
)

from freqfm import FMClassifier, FMRegressor, FwFMClassifier, FwFMRegressor, backends
from freqfm._input.validation import canonical_csr
from freqfm.backends.base import FMWeights
from freqfm.backends.cpu.fm import deep as dense
from freqfm.backends.cpu.fm import fields as fwfm
from freqfm.initializers import Normal
from freqfm.optimizers import SGD, Adagrad, Adam

pytestmark = pytest.mark.slow  # kernels of a further family

#: Fields of several entries in a row and of one, in no order.
FIELDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 3, 0])


def rows(n=90, n_features=12, classes=2, values=(0.5, -1, 2)):
    """Return rows with values and without, and targets."""
    generator = np.random.default_rng(5)
    X = generator.choice(values, (n, n_features)) * (generator.random((n, n_features)) < 0.3)
    X[:, 0], X[7] = 1, 0
    return sparse.csr_array(X.astype(np.float32)), np.arange(n) * 7 % 5 % classes


def one_hot(n=90, sizes=(4, 3, 5)):
    """Return rows with one entry of each field, their targets, and the fields of columns."""
    generator = np.random.default_rng(6)
    drawn = [np.eye(size)[generator.integers(0, size, n)] for size in sizes]
    X, y = sparse.csr_array(np.hstack(drawn).astype(np.float32)), np.arange(n) * 7 % 5 % 2
    return X, y, np.repeat(np.arange(len(sizes)), sizes)


def model_of(cls=FwFMClassifier, **params):
    defaults = {
        "n_components": 4,
        "fields": FIELDS,
        "max_iter": 3,
        "batch_size": 40,
        "init": Normal(0.4),
        "early_stopping": False,
        "random_state": 0,
    }
    return cls(**{**defaults, **params})


def with_weights(model, seed=0):
    """Return a fitted model with other weights of pairs."""
    model._dense += np.random.default_rng(seed).normal(size=model._dense.shape).astype(np.float32)
    return model


@pytest.mark.parametrize(
    "case",
    covering(
        model=[(FwFMClassifier, 2), (FwFMClassifier, 3), (FwFMRegressor, 2)],
        optimizer=list(OPTIMIZERS.values()),
        field_optimizer=[SGD(0.1), Adagrad(0.05), Adam(0.01, epsilon=1e-3), CustomAdam(0.01)],
        fields=[FIELDS, None, np.zeros(12, dtype=int), np.arange(12) % 2],
        n_components=[1, 4, 9, 17],
        weighted=[False, True],
        params=[
            {},
            {"fit_intercept": False, "alpha_per": "row", "alpha_fields": 0.01, "shuffle": False},
            {"fit_linear": False, "alpha_fields": 2.0},
            {"early_stopping": True, "validation_fraction": 0.3},
        ],
    ),
    ids=label,
)
def test_training_equals_the_reference(use, case):  # noqa: F811
    (cls, classes), weighted = case.pop("model"), case.pop("weighted")
    X, y = rows(classes=classes)
    weight = np.random.default_rng(6).uniform(0.5, 2, len(y)) if weighted else None
    model = model_of(cls, **case.pop("params"), **case)
    cpu = fit_machines_that_agree(use, model, X, y, sample_weight=weight)
    # A single weight is of no use.
    assert (np.abs(cpu._dense).max() > 1e-3) == (cpu._n_fields > 1)


def test_batches_of_many_tiles_equal_the_reference(use):  # noqa: F811
    n = fwfm.FIELD_TILE * (dense.N_CHUNKS + 2) + 5
    X, y = rows(n + 70)
    cpu, numpy = fit_both(use, model_of(batch_size=n, optimizer=SGD(0.1)), X, y)
    for name in ("factors_", "field_weights_", "loss_curve_"):
        assert_near(getattr(numpy, name), getattr(cpu, name), name)


@pytest.mark.parametrize("cls", [FwFMClassifier, FwFMRegressor])
def test_gradient_equals_finite_differences(cls):
    # One step of length one on the whole data moves the model by minus its gradient.
    X, y = rows()
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    alphas = {"alpha_linear": 0.7, "alpha_factors": 1.1, "alpha_fields": 0.9}
    model = model_of(cls, batch_size=1000, max_iter=1, warm_start=True, **alphas)
    model.set_params(optimizer=SGD(1e-30), field_optimizer=SGD(1e-30)).fit(X, y, weight)
    with_weights(model)
    arrays = [getattr(model, name).astype(float) for name in ("intercept_", "coef_", "factors_")]
    fields = model._outputs()[0].dense
    fields = fields._replace(weights=fields.weights.astype(float))
    weights, held = FMWeights(*arrays, fields), (X.toarray() != 0).any(axis=0)
    model.set_params(optimizer=SGD(1.0), field_optimizer=SGD(1.0)).fit(X, y, weight)

    def objective():
        scores = reference.scores_of(X.toarray().astype(float), weights)
        if cls is FwFMClassifier:
            losses = np.logaddexp(0, scores) - y * scores
        else:
            losses = (scores - y) ** 2 / 2
        penalty = alphas["alpha_linear"] / 2 * (held @ weights.linear**2)
        penalty += alphas["alpha_factors"] / 2 * (held @ (weights.factors**2).sum(axis=1))
        penalty += alphas["alpha_fields"] / 2 * (fields.weights**2).sum()
        return (weight @ losses + penalty) / weight.sum()

    moved = [model.intercept_, model.coef_, model.factors_, model._dense[0]]
    for array, after in zip([*weights[:3], fields.weights], moved, strict=True):
        gradient = slopes(objective, array)
        if array is fields.weights:
            of_loss = gradient - alphas["alpha_fields"] / weight.sum() * array
            occur = np.abs(of_loss) > 1e-8
            assert 0 < occur.sum() < len(occur)
            gradient[occur] -= of_loss[occur].mean()
        assert_allclose(array - after, gradient, atol=5e-6)


def test_scores_equal_the_sum_over_pairs():
    X, y = rows(150)
    model = with_weights(model_of().fit(X, y))
    V, r, dense = model.factors_, model.field_weights_, X.toarray()
    expected = model.intercept_ + dense @ model.coef_
    for i in range(12):
        for j in range(i):
            expected += r[FIELDS[i], FIELDS[j]] * (V[i] @ V[j]) * dense[:, i] * dense[:, j]
    assert_allclose(model.decision_function(X), expected, rtol=1e-4, atol=1e-5)
    assert_array_equal(r, r.T)


@pytest.mark.parametrize("optimizer", ["cf_sgd", "adagrad", Adam(0.01, lazy=False)], ids=label)
def test_bitwise_reproducible_for_any_number_of_threads(monkeypatch, optimizer):
    monkeypatch.setattr("freqfm.backends.cpu.fm.trainer._WEIGHTS_PER_BATCH", 0)
    X, y = rows(1500)
    models = [model_of(batch_size=600, optimizer=optimizer, n_jobs=n).fit(X, y) for n in (1, 2, 3)]
    assert_same_attributes((*models[0]._weight_names, "loss_curve_"), *models)


def test_scores_of_a_row_depend_on_that_row_alone():
    X, y = rows(150)
    model = with_weights(model_of().fit(X, y))
    X, weights, score = canonical_csr(X), model._outputs(), backends.get().fm_scores
    expected = score(X, weights, 1)
    for n in (1, 3, fwfm.FIELD_TILE, 70):
        for first in range(0, 150, n):
            found = score(canonical_csr(X[first : first + n]), weights, 2)
            assert_array_equal(found, expected[:, first : first + n])


@pytest.mark.parametrize("cls", [FwFMClassifier, FwFMRegressor])
@pytest.mark.parametrize(
    "optimizer", [SGD(0.05), "adagrad", "adam", CustomAdagrad(0.05)], ids=label
)
def test_with_weights_of_one_it_is_a_plain_machine(cls, optimizer):
    X, y = rows()
    model = model_of(cls, optimizer=optimizer, field_optimizer=SGD(1e-30)).fit(X, y)
    plain = {FwFMClassifier: FMClassifier, FwFMRegressor: FMRegressor}[cls]
    params = model.get_params()
    plain = plain(**{name: params[name] for name in plain().get_params()}).fit(X, y)
    assert_array_equal(model.field_weights_, np.ones((4, 4)))
    for name in ("intercept_", "coef_", "factors_", "loss_curve_"):
        assert_near(getattr(plain, name), getattr(model, name), name)


def test_weights_within_one_hot_encoded_fields_stay_one():
    X, y, fields = one_hot()
    model = model_of(fields=fields, max_iter=20, field_optimizer=Adam(0.1)).fit(X, y)
    weights = model.field_weights_
    assert_array_equal(np.diag(weights), np.ones(3))
    assert (np.abs(weights - 1)[~np.eye(3, dtype=bool)] > 1e-3).all()


def test_bound_of_curvature_holds_the_loss_down():
    # Steps up to the bound alone, on interactions that are far too large at first.
    X, y, fields = one_hot(400)
    model = model_of(fields=fields, init=Normal(3.0), max_iter=8, alpha_factors=0.0)
    losses = clone(model).set_params(field_optimizer=SGD(1e-30)).fit(X, y).loss_curve_
    assert (np.diff(losses) < 0).all()
