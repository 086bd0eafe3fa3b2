"""FwFMClassifier and FwFMRegressor in the interface of scikit-learn; what they are for."""

import pickle

import numpy as np
import pytest
from helpers import PENALTIES, assert_same_model
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from freqfm import (
    DivergenceError,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    FwFMRegressor,
    column_fields,
)
from freqfm.optimizers import CFSGD, FASGD, SGD, Adam, RowwiseAdagrad

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``
BOTH = pytest.mark.parametrize("cls", [FwFMClassifier, FwFMRegressor])


def model_of(cls=FwFMClassifier, **params):
    return cls(**{"n_components": 3, "fields": FIELDS, "max_iter": 2, "random_state": 0, **params})


def assert_same(one, other):
    assert_same_model(one, other)
    assert_array_equal(one.field_weights_, other.field_weights_)


@pytest.mark.parametrize(
    "cls", [FwFMClassifier, pytest.param(FwFMRegressor, marks=pytest.mark.slow)]
)
def test_sklearn_compatible(cls):
    check_estimator(cls(3, max_iter=10, **PENALTIES), on_skip=None)


# What it is.


def clicks_by_field(n=6000):
    """Rows of four fields, of which the first two interact and the last two; and their clicks."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 60, (n, 4))
    taste = rng.choice([-1.0, 1.0], (4, 60))
    a, b, c, d = (taste[field, rows[:, field]] for field in range(4))
    return rows, (rng.random(n) < 1 / (1 + np.exp(-2 * (a * b + c * d)))).astype(int)


def test_learns_which_fields_interact():
    rows, y = clicks_by_field()
    encoder = OneHotEncoder()
    X, fields = encoder.fit_transform(rows), column_fields(encoder)
    params = {"n_components": 1, "random_state": 0, "alpha_factors": 1.0, "init_scale": 0.3}
    weighted = FwFMClassifier(fields=fields, field_optimizer=Adam(0.02), **params)
    models = [model.fit(X[:4000], y[:4000]) for model in (weighted, FMClassifier(**params))]
    aucs = [roc_auc_score(y[4000:], model.decision_function(X[4000:])) for model in models]
    assert aucs[0] > aucs[1] + 0.05
    interacting = np.zeros((4, 4), dtype=bool)
    interacting[[0, 2], [1, 3]] = True
    weights = np.abs(weighted.field_weights_[np.triu_indices(4, 1)])
    interacting = interacting[np.triu_indices(4, 1)]
    assert weights[interacting].min() > 2 * weights[~interacting].max()


def test_weights_of_fields_scale_interactions():
    X = np.eye(6)
    model = model_of(FwFMRegressor, fields=[0, 0, 1, 1, 2, 2], init_scale=1.0).fit(X, np.arange(6))
    model._dense += np.random.default_rng(0).normal(size=model._dense.shape)
    found = model.interaction_strengths(n_pairs=15)
    weights, fields, V = model.field_weights_, model.fields_, model.factors_
    for (i, j), strength in zip(found.features, found.strengths, strict=True):
        assert_allclose(strength, weights[fields[i], fields[j]] * (V[i] @ V[j]), atol=1e-5)


def test_shared_parameters_have_the_defaults_of_factorization_machines():
    for cls, plain in ((FwFMClassifier, FMClassifier), (FwFMRegressor, FMRegressor)):
        weighted = cls().get_params()
        assert {name: weighted[name] for name in plain().get_params()} == plain().get_params()


def test_attributes_have_the_documented_shapes(log):
    X, y = log
    model = model_of().fit(X, y)
    assert model.field_weights_.shape == (3, 3)
    assert_array_equal(model.fields_, FIELDS)
    model = model_of().fit(X, y % 2 + (X.indices[::3] % 2))
    assert model.field_weights_.shape == (3, 3, 3)
    assert_array_equal(model.field_weights_, model.field_weights_.transpose(0, 2, 1))
    with pytest.raises(AttributeError, match="no field_weights_ before fit"):
        _ = FwFMClassifier().field_weights_


def test_names_of_fields_may_be_strings(log):
    X, y = log
    names = np.array(["user", "item", "day"])[FIELDS]
    one, other = (model_of(fields=f).fit(X, y) for f in (list(names), names.astype(object)))
    assert_same(one, other)
    assert_array_equal(one.fields_, np.unique(names, return_inverse=True)[1])


def test_without_fields_each_column_is_one():
    X = np.random.default_rng(0).standard_normal((500, 4))
    one, other = (
        model_of(FwFMRegressor, fields=fields).fit(X, X[:, 0] * X[:, 1])
        for fields in (None, list("abcd"))
    )
    assert_same(one, other)


def test_penalties_draw_weights_towards_one(log):
    X, y = log
    distances = [
        np.abs(model_of(alpha_fields=a, max_iter=9).fit(X, y).field_weights_ - 1).max()
        for a in (0.0, 1e5)
    ]
    assert distances[1] < distances[0] / 2


# Training that is continued, stops or diverges.


@BOTH
def test_epochs_equal_fits_of_one(log, cls):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "field_optimizer": "adagrad"}
    once = model_of(cls, max_iter=3, **options).fit(X, y)
    warm = model_of(cls, max_iter=1, warm_start=True, **options)
    for _ in range(3):
        warm.fit(X, y)
    assert_same(warm, once)
    # Penalties per token would be divided by all rows that partial_fit has seen.
    options |= {"alpha_per": "row", "alpha_factors": 0.01, "alpha_fields": 0.01}
    once, part = model_of(cls, max_iter=3, **options).fit(X, y), model_of(cls, **options)
    for _ in range(3):
        part.partial_fit(X, y, **({"classes": [0, 1]} if cls is FwFMClassifier else {}))
    assert_array_equal(part.field_weights_, once.field_weights_)
    assert_array_equal(part.factors_, once.factors_)


def test_early_stopping_keeps_the_weights_of_the_best_epoch(log):
    X, y = log
    model = model_of(max_iter=20, n_iter_no_change=3, learning_rate=5.0, field_optimizer=Adam(0.1))
    model.fit(X[:3000], y[:3000], X_val=X[3000:], y_val=y[3000:])
    scores = model.decision_function(X[3000:])
    loss = np.mean(np.logaddexp(0, scores) - y[3000:] * scores)
    assert model.best_iter_ < model.n_iter_
    assert loss == pytest.approx(-model.validation_scores_[model.best_iter_ - 1], rel=1e-5)


def test_a_diverged_fit_keeps_the_last_finite_model(log):
    X, y = log
    model = model_of(max_iter=1, early_stopping=False).fit(X, y)
    before = model.field_weights_
    model.set_params(warm_start=True, field_optimizer=Adam(1e38))
    with pytest.raises(DivergenceError, match="a smaller rate of field_optimizer"):
        model.fit(X, y)
    assert_array_equal(model.field_weights_, before)


def test_pickled_models_predict_and_continue(log):
    X, y = log
    model = model_of().fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert_same(copy.partial_fit(X, y), model.partial_fit(X, y))


def test_multiclass_is_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), FwFMClassifier(4, random_state=0)).fit(X, y)
    assert model.score(X, y) > 0.93
    assert model[-1].field_weights_.shape == (3, 4, 4)


def test_a_weight_is_so_many_rows(log):
    X, y = log
    weight = np.arange(len(y)) % 3
    model = model_of(early_stopping=False, batch_size=10**6, max_iter=3, init_scale=0.3)
    model.set_params(field_optimizer=SGD(10.0))
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = np.repeat(np.arange(len(y)), weight)
    repeated = clone(model).fit(X[repeated], y[repeated])
    assert np.abs(weighted._dense).max() > 1e-2
    assert_allclose(weighted._dense, repeated._dense, atol=1e-5)


# Parameters.


def test_searches_reach_into_both_optimizers(log):
    grid = {"field_optimizer__learning_rate": [1e-4, 1e-2], "optimizer__max_step": [0.05]}
    best = GridSearchCV(model_of(), grid, cv=2).fit(*log).best_estimator_
    assert isinstance(best.field_optimizer, Adam) and isinstance(best.optimizer, CFSGD)


@pytest.mark.parametrize("optimizer", ["cf_sgd", FASGD(), RowwiseAdagrad()])
def test_optimizers_of_tokens_are_refused_for_weights_of_fields(log, optimizer):
    with pytest.raises(ValueError, match="field_optimizer=.* choose 'ada"):
        model_of(field_optimizer=optimizer).fit(*log)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"fields": None}, ValueError, "every column of X a field, but X has 410 columns"),
        ({"fields": [0, 1]}, ValueError, r"fields has shape \(2,\), but X has 410 features"),
        ({"fields": np.zeros(410)}, TypeError, "fields must hold integers or strings"),
        ({"fields": np.array([None] * 410)}, ValueError, "fields holds None"),
        ({"alpha_fields": -1}, ValueError, "alpha_fields"),
        ({"field_optimizer": "adma"}, ValueError, "field_optimizer='adma' is not known"),
    ],
)
def test_bad_parameters(log, params, error, message):
    with pytest.raises(error, match=message):
        model_of(**params).fit(*log)


@pytest.mark.parametrize("changed", [{"fields": FIELDS[::-1]}, {"field_optimizer": "sgd"}])
def test_a_model_is_not_continued_by_another(log, changed):
    X, y = log
    model = model_of(warm_start=True).fit(X, y).set_params(**changed)
    with pytest.raises(ValueError, match="differ.* of the model to continue|the model to continue"):
        model.fit(X, y)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_dense", np.zeros((1, 3), dtype=np.float32)),
        ("fields_", np.full(410, -1, dtype=np.int32)),
        ("fields_", np.zeros(3, dtype=np.int32)),
        ("_n_fields", 2),
    ],
)
def test_damaged_models_are_refused(log, name, value):
    model = model_of().fit(*log)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=f"{name}|fields_|_dense"):
        model.predict(log[0])
