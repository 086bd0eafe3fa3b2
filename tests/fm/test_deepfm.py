"""DeepFMClassifier and DeepFMRegressor in the interface of scikit-learn; fields of columns."""

import pickle

import numpy as np
import pytest
from helpers import PENALTIES, assert_same_model
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from freqfm import (
    DeepFMClassifier,
    DeepFMRegressor,
    DivergenceError,
    FMClassifier,
    FMRegressor,
    column_fields,
)
from freqfm.datasets import IncrementalOneHotEncoder
from freqfm.optimizers import CFSGD, FASGD, SGD, Adam, RowwiseAdagrad

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``
BOTH = pytest.mark.parametrize("cls", [DeepFMClassifier, DeepFMRegressor])


def model_of(cls=DeepFMClassifier, **params):
    small = {"n_components": 3, "hidden_layer_sizes": (5, 4), "max_iter": 2, "random_state": 0}
    return cls(**{**small, **params})


def assert_same_tower(one, other):
    assert_same_model(one, other)
    assert_array_equal(one._dense, other._dense)


@pytest.mark.parametrize(
    "cls", [DeepFMClassifier, pytest.param(DeepFMRegressor, marks=pytest.mark.slow)]
)
def test_sklearn_compatible(cls):
    checks = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
    reason = (
        "dropout draws for every row, also for a repeated one; see test_a_weight_is_so_many_rows"
    )
    check_estimator(
        cls(3, hidden_layer_sizes=(8,), max_iter=10, **PENALTIES),
        on_skip=None,
        expected_failed_checks=dict.fromkeys(checks, reason),
    )


# What it is.


@pytest.mark.parametrize("optimizer", ["cf_sgd", "adam", RowwiseAdagrad()])
@pytest.mark.parametrize(
    ("cls", "plain"), [(DeepFMClassifier, FMClassifier), (DeepFMRegressor, FMRegressor)]
)
def test_without_layers_it_is_a_factorization_machine_to_the_bit(log, cls, plain, optimizer):
    X, y = log
    params = {"n_components": 3, "max_iter": 3, "optimizer": optimizer, "random_state": 0}
    # The two have the same defaults.
    params |= {"alpha_factors": 2.0, "init_scale": 0.01}
    deep = cls(hidden_layer_sizes=(), fields=FIELDS, **params).fit(X, y)
    fm = plain(**params).fit(X, y)
    assert_same_model(deep, fm)
    assert_array_equal(deep.predict(X), fm.predict(X))
    assert deep.layers_ == []


def test_shared_parameters_have_the_defaults_of_factorization_machines():
    for cls, plain in ((DeepFMClassifier, FMClassifier), (DeepFMRegressor, FMRegressor)):
        deep = cls().get_params()
        assert {name: deep[name] for name in plain().get_params()} == plain().get_params()


def test_layers_have_the_documented_shapes(log):
    X, y = log
    shapes = [layer.shape for layer in model_of().fit(X, y).layers_]
    assert shapes == [(4, 5), (6, 4), (4,)]
    model = model_of(fields=FIELDS).fit(X, y % 2 + (X.indices[::3] % 2))
    assert [layer.shape for layer in model.layers_] == [(3, 10, 5), (3, 6, 4), (3, 4)]
    assert_array_equal(model.fields_, FIELDS)


def test_learns_what_pairs_cannot_express():
    # The parity of three fields has no interaction of pairs.
    bits = np.random.default_rng(0).integers(0, 2, (2000, 3))
    encoder = OneHotEncoder().fit(bits)
    X, y = encoder.transform(bits), bits.sum(axis=1) % 2
    params = {"alpha_factors": 0, "batch_size": 100, "init_scale": 0.1, "max_iter": 60,
              "early_stopping": False, "random_state": 0}  # fmt: skip
    assert FMClassifier(**params).fit(X, y).score(X, y) < 0.65
    params["layer_optimizer"] = Adam(0.01)
    model = DeepFMClassifier(4, hidden_layer_sizes=(16, 16), dropout=0, **params)
    assert model.set_params(fields=column_fields(encoder)).fit(X, y).score(X, y) == 1.0


def test_names_of_fields_may_be_strings(log):
    X, y = log
    names = np.array(["user", "item", "day"])[FIELDS]
    one, other = (model_of(fields=f).fit(X, y) for f in (list(names), names.astype(object)))
    assert_same_tower(one, other)
    assert_array_equal(one.fields_, np.unique(names, return_inverse=True)[1])


def test_penalties_shrink_layers(log):
    X, y = log
    loose, tight = (model_of(alpha_layers=a, max_iter=5).fit(X, y) for a in (0, 1e4))
    norms = [sum(np.abs(layer).sum() for layer in m.layers_) for m in (loose, tight)]
    assert norms[1] < norms[0]


# Training that is continued, stops or diverges.


@BOTH
@pytest.mark.parametrize("hidden", [(5, 4), ()])
def test_epochs_equal_fits_of_one(log, cls, hidden):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "hidden_layer_sizes": hidden,
               "fields": FIELDS, "layer_optimizer": "adagrad"}  # fmt: skip
    once = model_of(cls, max_iter=3, **options).fit(X, y)
    warm = model_of(cls, max_iter=1, warm_start=True, **options)
    for _ in range(3):
        warm.fit(X, y)
    assert_same_tower(warm, once)
    # Penalties per token would be divided by all rows that partial_fit has seen.
    options |= {"alpha_per": "row", "alpha_factors": 0.01, "alpha_layers": 0.01}
    once, part = model_of(cls, max_iter=3, **options).fit(X, y), model_of(cls, **options)
    for _ in range(3):
        part.partial_fit(X, y, **({"classes": [0, 1]} if cls is DeepFMClassifier else {}))
    assert_array_equal(part._dense, once._dense)
    assert_array_equal(part.factors_, once.factors_)


def test_early_stopping_keeps_the_tower_of_the_best_epoch(log):
    X, y = log
    model = model_of(max_iter=20, n_iter_no_change=3, learning_rate=5.0, layer_optimizer=Adam(0.02))
    model.fit(X[:3000], y[:3000], X_val=X[3000:], y_val=y[3000:])
    scores = model.decision_function(X[3000:])
    loss = np.mean(np.logaddexp(0, scores) - y[3000:] * scores)
    assert model.best_iter_ < model.n_iter_
    assert loss == pytest.approx(-model.validation_scores_[model.best_iter_ - 1], rel=1e-6)


def test_a_diverged_fit_keeps_the_last_finite_model(log):
    X, y = log
    model = model_of(max_iter=1, early_stopping=False).fit(X, y)
    before = model._dense.copy()
    model.set_params(warm_start=True, layer_optimizer=Adam(1e30))
    with pytest.raises(DivergenceError, match="a smaller rate of layer_optimizer"):
        model.fit(X, y)
    assert_array_equal(model._dense, before)


def test_pickled_models_predict_and_continue(log):
    X, y = log
    model = model_of(fields=FIELDS).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert_same_tower(copy.partial_fit(X, y), model.partial_fit(X, y))


def test_multiclass_is_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    deep = DeepFMClassifier(4, hidden_layer_sizes=(8,), random_state=0)
    model = make_pipeline(StandardScaler(), deep).fit(X, y)
    assert model.score(X, y) > 0.93
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_a_weight_is_so_many_rows(log):
    X, y = log
    weight = np.arange(len(y)) % 3
    model = model_of(early_stopping=False, dropout=0, batch_size=10**6, max_iter=3)
    model.set_params(layer_optimizer=SGD(0.1))
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = np.repeat(np.arange(len(y)), weight)
    repeated = clone(model).fit(X[repeated], y[repeated])
    assert_allclose(weighted._dense, repeated._dense, atol=1e-6)


def test_class_weight(log):
    X, y = log
    balanced = model_of(class_weight="balanced", max_iter=5).fit(X, y)
    plain = model_of(max_iter=5).fit(X, y)
    assert balanced.predict(X).mean() > plain.predict(X).mean()


# Parameters.


def test_searches_reach_into_both_optimizers(log):
    X, y = log
    grid = {"layer_optimizer__learning_rate": [1e-4, 1e-2], "optimizer__max_step": [0.05]}
    search = GridSearchCV(model_of(), grid, cv=2).fit(X, y)
    best = search.best_estimator_
    assert isinstance(best.layer_optimizer, Adam) and isinstance(best.optimizer, CFSGD)


@pytest.mark.parametrize("optimizer", ["cf_sgd", FASGD(), RowwiseAdagrad()])
def test_optimizers_of_tokens_are_refused_for_layers(log, optimizer):
    with pytest.raises(ValueError, match="layer_optimizer=.* choose 'ada"):
        model_of(layer_optimizer=optimizer).fit(*log)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"hidden_layer_sizes": (3, 0)}, ValueError, "hidden_layer_sizes=.* positive whole numb"),
        ({"hidden_layer_sizes": 3.5}, ValueError, "hidden_layer_sizes"),
        ({"fields": [0, 1]}, ValueError, r"fields has shape \(2,\), but X has 410 features"),
        ({"fields": np.zeros(410)}, TypeError, "fields must hold integers or strings"),
        ({"fields": np.array([None] * 410)}, ValueError, "fields holds None"),
        ({"alpha_layers": -1}, ValueError, "alpha_layers"),
        ({"layer_optimizer": "adma"}, ValueError, "layer_optimizer='adma' is not known"),
        ({"hidden_layer_sizes": (10**7, 10**7)}, ValueError, "Take smaller hidden_layer_sizes"),
    ],
)
def test_bad_parameters(log, params, error, message):
    with pytest.raises(error, match=message):
        model_of(**params).fit(*log)


@pytest.mark.parametrize(
    "changed", [{"hidden_layer_sizes": (5,)}, {"fields": FIELDS}, {"layer_optimizer": "sgd"}]
)
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
        ("_layer_widths", np.array([3, 5])),
    ],
)
def test_damaged_models_are_refused(log, name, value):
    model = model_of(fields=FIELDS).fit(*log)
    setattr(model, name, value)
    with pytest.raises(ValueError, match=f"{name.strip('_')}|_layer_widths"):
        model.predict(log[0])


# Fields of columns.

ROWS = np.array([["a", "x", "p"], ["b", "y", "p"], ["c", "x", "q"], ["a", "x", "p"]], dtype=object)


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (OneHotEncoder(), [0, 0, 0, 1, 1, 2, 2]),
        (OneHotEncoder(drop="first"), [0, 0, 1, 2]),
        (OneHotEncoder(min_frequency=2), [0, 0, 1, 1, 2, 2]),
        (make_pipeline(OneHotEncoder(drop="if_binary")), [0, 0, 0, 1, 2]),
        (ColumnTransformer([("a", OneHotEncoder(), [2, 0]), ("b", "drop", [1])]), [0, 0, 1, 1, 1]),
    ],
    ids=repr,
)
def test_fields_of_encoders(encoder, expected):
    encoder.fit(ROWS)
    assert_array_equal(column_fields(encoder), expected)
    assert encoder.transform(ROWS).shape[1] == len(expected)


def test_fields_of_columns_that_a_stream_adds():
    encoder = IncrementalOneHotEncoder().partial_fit(ROWS[:1]).partial_fit(ROWS)
    assert_array_equal(column_fields(encoder), [0, 1, 2, 0, 0, 1, 2])
    names = encoder.get_feature_names_out()
    assert [int(name[1]) for name in names] == list(column_fields(encoder))


def test_numbers_are_fields_of_their_own():
    numbers = np.arange(12.0).reshape(4, 3)
    X = np.column_stack([ROWS[:, 0], numbers]).astype(object)
    encoder = make_column_transformer(
        (StandardScaler(), [1]),
        (make_pipeline(StandardScaler(), OneHotEncoder()), []),
        (OneHotEncoder(), [0]),
        (KBinsDiscretizer(2), [2]),
        remainder="passthrough",
    ).fit(X)
    assert_array_equal(column_fields(encoder), [0, 1, 1, 1, 2, 2, 3])
    assert encoder.transform(X).shape[1] == 7


def test_other_transformers_are_refused():
    with pytest.raises(TypeError, match="got StandardScaler. Give fields as an array"):
        column_fields(StandardScaler().fit([[1.0]]))
    with pytest.raises(NotFittedError):
        column_fields(OneHotEncoder())


def test_rows_without_entries_have_the_score_of_the_biases(log):
    X, y = log
    model = model_of(fields=FIELDS).fit(X, y)
    empty = sparse.csr_array((2, X.shape[1]), dtype=np.float32)
    value = np.zeros(9)
    *layers, out = model.layers_
    for layer in layers:
        value = np.maximum(value @ layer[:-1] + layer[-1], 0)
    expected = model.intercept_[0] + value @ out
    assert_allclose(model.decision_function(empty), expected, rtol=1e-5)
