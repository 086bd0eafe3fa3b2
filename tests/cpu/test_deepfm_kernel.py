"""The kernels of DeepFM and NFM against their reference, finite differences and themselves."""

import numpy as np
import pytest
from custom_components import CustomAdagrad, CustomAdam
from helpers import assert_same_attributes, each
from numpy.testing import assert_allclose, assert_array_equal
from reference.differences import slopes
from reference.numpy_backend import NumpyBackend
from reference.numpy_backend import deepfm as reference
from scipy import sparse
from sklearn.base import clone, is_classifier
from test_numpy_backend import (  # noqa: F401
    OPTIMIZERS,
    assert_near,
    covering,
    fit_both,
    fit_machines_that_agree,
    label,
    use,
)

from freqfm import DeepFMClassifier, DeepFMRegressor, NFMClassifier, NFMRegressor, backends
from freqfm._input.validation import canonical_csr
from freqfm.backends.base import FMWeights
from freqfm.backends.cpu.fm import deep as deepfm
from freqfm.backends.cpu.fm import deep as dense
from freqfm.initializers import Normal
from freqfm.optimizers import SGD, Adagrad, Adam

pytestmark = pytest.mark.slow  # kernels of a further family

FIELDS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0])
DEEP = DeepFMClassifier, DeepFMRegressor
BOTH_INPUTS = pytest.mark.parametrize("fields", [None, FIELDS], ids=["pooled", "fields"])


def rows(n=90, n_features=12, classes=2):
    """Return rows with values and without, and targets."""
    generator = np.random.default_rng(5)
    X = generator.choice([0.5, -1, 2], (n, n_features)) * (generator.random((n, n_features)) < 0.3)
    X[:, 0], X[7] = 1, 0
    return sparse.csr_array(X.astype(np.float32)), np.arange(n) * 7 % 5 % classes


def model_of(cls=DeepFMClassifier, **params):
    defaults = {
        "n_components": 4,
        "hidden_layer_sizes": (6, 5),
        "dropout": 0.0,
        "max_iter": 3,
        "batch_size": 40,
        "init": Normal(0.4),
        "early_stopping": False,
        "random_state": 0,
    }
    return cls(**{**defaults, **params})


@pytest.mark.parametrize(
    "case",
    covering(
        model=[(DeepFMClassifier, 2), (DeepFMClassifier, 3), (DeepFMRegressor, 2)],
        optimizer=list(OPTIMIZERS.values()),
        layer_optimizer=[SGD(0.1), Adagrad(0.05), Adam(0.01, epsilon=1e-3)],
        fields=[None, FIELDS],
        hidden_layer_sizes=[(6, 5), (7,), (5, 4, 3)],
        weighted=[False, True],
        dropout=[0.0, 0.4],
        params=[
            {},
            {"fit_intercept": False, "alpha_per": "row", "alpha_layers": 0.01, "shuffle": False},
            {"fit_linear": False, "alpha_layers": 2.0},
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
    fit_machines_that_agree(use, model, X, y, sample_weight=weight)


@each(
    "model, params",
    [
        ((NFMClassifier, 2), {"dropout": 0.4, "hidden_layer_sizes": (5, 4, 3)}),
        ((NFMClassifier, 3), {"fit_linear": False, "optimizer": SGD(0.1)}),
        ((NFMRegressor, 2), {"alpha_per": "row", "alpha_layers": 0.01, "optimizer": "adagrad"}),
    ],
)
def test_training_without_pairs_equals_the_reference(use, model, params):  # noqa: F811
    cls, classes = model
    fit_machines_that_agree(use, model_of(cls, **params), *rows(classes=classes))


@BOTH_INPUTS
def test_batches_of_many_tiles_equal_the_reference(use, fields):  # noqa: F811
    n = deepfm.TILE * (dense.N_CHUNKS + 2) + 5
    X, y = rows(n + 70)
    params = {"batch_size": n, "optimizer": SGD(0.1), "dropout": 0.3}
    cpu, numpy = fit_both(use, model_of(fields=fields, **params), X, y)
    for name in ("factors_", "_dense", "loss_curve_"):
        assert_near(getattr(numpy, name), getattr(cpu, name), name)


@each(
    "cls, params",
    [
        *[(cls, {"fields": f}) for cls in DEEP for f in (None, FIELDS)],
        *[(cls, {}) for cls in (NFMClassifier, NFMRegressor)],
    ],
)
def test_gradient_equals_finite_differences(cls, params):
    # One step of length one on the whole data moves the model by minus its gradient.
    X, y = rows()
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    alphas = {"alpha_linear": 0.7, "alpha_factors": 1.1, "alpha_layers": 0.9}
    model = model_of(cls, batch_size=1000, max_iter=1, **params, **alphas)
    model.set_params(optimizer=SGD(1e-30), layer_optimizer=SGD(1e-30)).fit(X, y, weight)
    moved = clone(model).set_params(optimizer=SGD(1.0), layer_optimizer=SGD(1.0)).fit(X, y, weight)
    dense, held = X.toarray().astype(float), (X.toarray() != 0).any(axis=0)
    *arrays, tower = model._outputs()[0]
    tower = tower._replace(weights=tower.weights.astype(float))
    weights = FMWeights(*(array.astype(float) for array in arrays), tower)

    def objective():
        scores, _ = reference.forward(dense, weights)
        if is_classifier(model):
            losses = np.logaddexp(0, scores) - y * scores
        else:
            losses = (scores - y) ** 2 / 2
        matrices = [matrix for matrix, _ in reference.layers_of(tower)[0]]
        matrices.append(reference.layers_of(tower)[1])
        penalty = alphas["alpha_linear"] / 2 * (held @ weights.linear**2)
        penalty += alphas["alpha_factors"] / 2 * (held @ (weights.factors**2).sum(axis=1))
        penalty += alphas["alpha_layers"] / 2 * sum((matrix**2).sum() for matrix in matrices)
        return (weight @ losses + penalty) / weight.sum()

    *moved, of_tower = moved._outputs()[0]
    moved.append(of_tower.weights)
    for array, after in zip([*weights[:3], tower.weights], moved, strict=True):
        assert_allclose(array - after, slopes(objective, array), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("hidden", [(6, 5), (40, 30)], ids=["one block", "two blocks"])
@pytest.mark.parametrize("optimizer", ["cf_sgd", "adagrad", Adam(0.01, lazy=False)], ids=label)
@BOTH_INPUTS
def test_bitwise_reproducible_for_any_number_of_threads(monkeypatch, optimizer, fields, hidden):
    monkeypatch.setattr("freqfm.backends.cpu.fm.trainer._WEIGHTS_PER_BATCH", 0)
    X, y = rows(1500)
    params = {
        "optimizer": optimizer,
        "fields": fields,
        "hidden_layer_sizes": hidden,
        "dropout": 0.3,
    }
    models = [model_of(batch_size=600, n_jobs=n, **params).fit(X, y) for n in (1, 2, 3)]
    assert_same_attributes((*models[0]._weight_names, "loss_curve_"), *models)


@BOTH_INPUTS
def test_scores_of_a_row_depend_on_that_row_alone(fields):
    X, y = rows(150)
    model = model_of(fields=fields).fit(X, y)
    X, weights, score = canonical_csr(X), model._outputs(), backends.get().fm_scores
    scores = score(X, weights, 1)[0]
    assert_allclose(scores, reference.scores(X.toarray(), weights[0]), atol=1e-5)
    for n_threads in (2, 3):
        assert_array_equal(score(X, weights, n_threads)[0], scores)
    alone = [score(canonical_csr(X[i : i + 1]), weights, 1)[0, 0] for i in range(70)]
    assert_array_equal(alone, scores[:70])


def test_towers_that_have_diverged_give_no_number():
    X, y = rows()
    model = model_of().fit(X, y)
    (output,) = model._outputs()
    weights = output.dense.weights.copy()
    weights[0] = np.nan  # of the first layer, after which there is another one
    output = output._replace(dense=output.dense._replace(weights=weights))
    assert np.isnan(backends.get().fm_scores(canonical_csr(X), [output], 1)).all()


@pytest.mark.slow
def test_custom_steps_move_what_they_are_given_to(use):  # noqa: F811
    X, y = rows()
    shipped = model_of(optimizer=Adagrad(0.05), layer_optimizer=Adam(0.01)).fit(X, y)
    custom = {"optimizer": CustomAdagrad(0.05), "layer_optimizer": CustomAdam(0.01)}
    cpu, numpy = fit_both(use, clone(shipped).set_params(**custom), X, y)
    for name in cpu._weight_names:
        assert_near(getattr(cpu, name), getattr(shipped, name), name)
        assert_near(getattr(numpy, name), getattr(cpu, name), name)


def test_a_backend_scores_towers():
    X, y = rows()
    model = model_of().fit(X, y)
    X = canonical_csr(X)
    one, other = (
        backend.fm_scores(X, model._outputs(), 1) for backend in (backends.get(), NumpyBackend())
    )
    assert_allclose(one, other, atol=1e-5)
