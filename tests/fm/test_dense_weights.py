"""What machines share that train dense weights beside vectors: of layers, or of pairs of fields."""

import pickle

import numpy as np
import pytest
from helpers import assert_same_model, classes_of, each
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import (
    DeepFMClassifier,
    DeepFMRegressor,
    DivergenceError,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    FwFMRegressor,
)
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD, Adam, RowwiseAdagrad

pytestmark = pytest.mark.slow  # kernels of further families

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``
DEEP = DeepFMClassifier, DeepFMRegressor
CLASSIFIERS = DeepFMClassifier, FwFMClassifier


def model_of(cls, **params):
    own = {"hidden_layer_sizes": (5, 4)} if cls in DEEP else {"fields": FIELDS}
    return cls(**{"n_components": 3, "max_iter": 2, "random_state": 0, **own, **params})


def of_dense(cls, optimizer):
    """Return the optimizer of a machine's dense weights as a parameter."""
    return {cls._dense_optimizer: optimizer}


def assert_same(one, other):
    assert_same_model(one, other)
    assert_array_equal(one._dense, other._dense)


def test_shared_parameters_have_the_defaults_of_factorization_machines():
    for cls in (*CLASSIFIERS, DeepFMRegressor, FwFMRegressor):
        params, plain = cls().get_params(), FMClassifier() if cls in CLASSIFIERS else FMRegressor()
        assert {name: params[name] for name in plain.get_params()} == plain.get_params()


@each("cls", CLASSIFIERS)
def test_names_of_fields_may_be_strings(log, cls):
    names = np.array(["user", "item", "day"])[FIELDS]
    one, other = (model_of(cls, fields=f).fit(*log) for f in (list(names), names.astype(object)))
    assert_same(one, other)
    assert_array_equal(one.fields_, np.unique(names, return_inverse=True)[1])


# Training that is continued, stops or diverges.


@pytest.mark.parametrize(
    ("cls", "own"),
    [
        *((cls, {"hidden_layer_sizes": hidden}) for cls in DEEP for hidden in ((5, 4), ())),
        *((cls, {}) for cls in (FwFMClassifier, FwFMRegressor)),
    ],
)
def test_epochs_equal_fits_of_one(log, cls, own):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "fields": FIELDS, **own}
    options |= of_dense(cls, "adagrad")
    once = model_of(cls, max_iter=3, **options).fit(X, y)
    warm = model_of(cls, max_iter=1, warm_start=True, **options)
    for _ in range(3):
        warm.fit(X, y)
    assert_same(warm, once)
    # Penalties per token would be divided by all rows that partial_fit has seen.
    options |= {"alpha_per": "row", "alpha_factors": 0.01, cls._dense_alpha: 0.01}
    once, part = model_of(cls, max_iter=3, **options).fit(X, y), model_of(cls, **options)
    for _ in range(3):
        part.partial_fit(X, y, **classes_of(cls))
    assert_array_equal(part._dense, once._dense)
    assert_array_equal(part.factors_, once.factors_)


@each("cls, rate, error", [(DeepFMClassifier, 0.02, 1e-6), (FwFMClassifier, 0.1, 1e-5)])
def test_early_stopping_keeps_the_dense_weights_of_the_best_epoch(log, cls, rate, error):
    X, y = log
    options = {"learning_rate": 5.0, **of_dense(cls, Adam(rate))}
    model = model_of(cls, max_iter=20, n_iter_no_change=3, **options)
    model.fit(X[:3000], y[:3000], X_val=X[3000:], y_val=y[3000:])
    scores = model.decision_function(X[3000:])
    loss = np.mean(np.logaddexp(0, scores) - y[3000:] * scores)
    assert model.best_iter_ < model.n_iter_
    assert loss == pytest.approx(-model.validation_scores_[model.best_iter_ - 1], rel=error)


@each("cls, rate", [(DeepFMClassifier, 1e30), (FwFMClassifier, 1e38)])
def test_a_diverged_fit_keeps_the_last_finite_model(log, cls, rate):
    X, y = log
    model = model_of(cls, max_iter=1, early_stopping=False).fit(X, y)
    before = model._dense.copy()
    model.set_params(warm_start=True, **of_dense(cls, Adam(rate)))
    with pytest.raises(DivergenceError, match=f"a smaller rate of {cls._dense_optimizer}"):
        model.fit(X, y)
    assert_array_equal(model._dense, before)


@each("cls", CLASSIFIERS)
def test_pickled_models_predict_and_continue(log, cls):
    X, y = log
    model = model_of(cls, fields=FIELDS).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert_same(copy.partial_fit(X, y), model.partial_fit(X, y))


@each(
    "cls, own, rate, error",
    [
        (DeepFMClassifier, {"dropout": 0}, 0.1, 1e-6),
        (FwFMClassifier, {"init": Normal(0.3)}, 10.0, 1e-5),
    ],
)
def test_a_weight_is_so_many_rows(log, cls, own, rate, error):
    X, y = log
    weight = np.arange(len(y)) % 3
    options = {"early_stopping": False, "batch_size": 10**6, "max_iter": 3, **own}
    model = model_of(cls, **options, **of_dense(cls, SGD(rate)))
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = np.repeat(np.arange(len(y)), weight)
    repeated = clone(model).fit(X[repeated], y[repeated])
    assert np.abs(weighted._dense).max() > 1e-2
    assert_allclose(weighted._dense, repeated._dense, atol=error)


# Parameters.


@each("cls", CLASSIFIERS)
def test_searches_reach_into_both_optimizers(log, cls):
    name = cls._dense_optimizer
    grid = {f"{name}__learning_rate": [1e-4, 1e-2], "optimizer__max_step": [0.05]}
    best = GridSearchCV(model_of(cls), grid, cv=2).fit(*log).best_estimator_
    assert isinstance(getattr(best, name), Adam) and isinstance(best.optimizer, CFSGD)


@each("cls", CLASSIFIERS)
def test_bad_parameters(log, cls):
    optimizer, alpha = cls._dense_optimizer, cls._dense_alpha
    for params, error, message in (
        ({"fields": [0, 1]}, ValueError, r"fields has shape \(2,\), but X has 410 features"),
        ({"fields": np.zeros(410)}, TypeError, "fields must hold integers or strings"),
        ({"fields": np.array([None] * 410)}, ValueError, "fields holds None"),
        ({alpha: -1}, ValueError, alpha),
        ({optimizer: "adma"}, ValueError, f"{optimizer}='adma' is not known"),
        *(
            ({optimizer: of_tokens}, ValueError, f"{optimizer}=.* choose 'ada")
            for of_tokens in ("cf_sgd", FASGD(), RowwiseAdagrad())
        ),
    ):
        with pytest.raises(error, match=message):
            model_of(cls, **params).fit(*log)


@each(
    "cls, changed",
    [
        (DeepFMClassifier, {"hidden_layer_sizes": (5,)}),
        (DeepFMClassifier, {"fields": FIELDS}),
        (FwFMClassifier, {"fields": FIELDS[::-1]}),
        *((cls, of_dense(cls, "sgd")) for cls in CLASSIFIERS),
    ],
)
def test_a_model_is_not_continued_by_another(log, cls, changed):
    model = model_of(cls, warm_start=True).fit(*log).set_params(**changed)
    with pytest.raises(ValueError, match="differ.* of the model to continue|the model to continue"):
        model.fit(*log)


@each(
    "cls, name, value",
    [
        *((cls, "_dense", np.zeros((1, 3), dtype=np.float32)) for cls in CLASSIFIERS),
        *((cls, "fields_", np.full(410, -1, dtype=np.int32)) for cls in CLASSIFIERS),
        *((cls, "fields_", np.zeros(3, dtype=np.int32)) for cls in CLASSIFIERS),
        (DeepFMClassifier, "_layer_widths", np.array([3, 5])),
        (FwFMClassifier, "_n_fields", 2),
    ],
)
def test_damaged_models_are_refused(log, cls, name, value):
    model = model_of(cls, fields=FIELDS).fit(*log)
    setattr(model, name, value)
    others = "_layer_widths" if cls in DEEP else "fields_|_dense"
    with pytest.raises(ValueError, match=f"{name.strip('_')}|{others}"):
        model.predict(log[0])
