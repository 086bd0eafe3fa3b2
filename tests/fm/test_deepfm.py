"""DeepFMClassifier and DeepFMRegressor in the interface of scikit-learn; fields of columns."""

import numpy as np
import pytest
from helpers import assert_same_model
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

from freqfm import DeepFMClassifier, DeepFMRegressor, FMClassifier, FMRegressor, column_fields
from freqfm.datasets import IncrementalOneHotEncoder
from freqfm.initializers import Normal
from freqfm.optimizers import Adam, RowwiseAdagrad

pytestmark = pytest.mark.slow  # kernels of a further family

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``


def model_of(cls=DeepFMClassifier, **params):
    small = {"n_components": 3, "hidden_layer_sizes": (5, 4), "max_iter": 2, "random_state": 0}
    return cls(**{**small, **params})


# What it is.


@pytest.mark.parametrize("optimizer", ["cf_sgd", "adam", RowwiseAdagrad()])
@pytest.mark.parametrize(
    ("cls", "plain"), [(DeepFMClassifier, FMClassifier), (DeepFMRegressor, FMRegressor)]
)
def test_without_layers_it_is_a_factorization_machine_to_the_bit(log, cls, plain, optimizer):
    X, y = log
    params = {"n_components": 3, "max_iter": 3, "optimizer": optimizer, "random_state": 0}
    # The two have the same defaults.
    params |= {"alpha_factors": 2.0, "init": Normal(0.01)}
    deep = cls(hidden_layer_sizes=(), fields=FIELDS, **params).fit(X, y)
    fm = plain(**params).fit(X, y)
    assert_same_model(deep, fm)
    assert_array_equal(deep.predict(X), fm.predict(X))
    assert deep.layers_ == []


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
    params = {"alpha_factors": 0, "batch_size": 100, "init": Normal(0.1), "max_iter": 60,
              "early_stopping": False, "random_state": 0}  # fmt: skip
    assert FMClassifier(**params).fit(X, y).score(X, y) < 0.65
    params["layer_optimizer"] = Adam(0.01)
    model = DeepFMClassifier(4, hidden_layer_sizes=(16, 16), dropout=0, **params)
    assert model.set_params(fields=column_fields(encoder)).fit(X, y).score(X, y) == 1.0


def test_penalties_shrink_layers(log):
    X, y = log
    loose, tight = (model_of(alpha_layers=a, max_iter=5).fit(X, y) for a in (0, 1e4))
    norms = [sum(np.abs(layer).sum() for layer in m.layers_) for m in (loose, tight)]
    assert norms[1] < norms[0]


def test_multiclass_is_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    deep = DeepFMClassifier(4, hidden_layer_sizes=(8,), random_state=0)
    model = make_pipeline(StandardScaler(), deep).fit(X, y)
    assert model.score(X, y) > 0.93
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_class_weight(log):
    X, y = log
    balanced = model_of(class_weight="balanced", max_iter=5).fit(X, y)
    plain = model_of(max_iter=5).fit(X, y)
    assert balanced.predict(X).mean() > plain.predict(X).mean()


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"hidden_layer_sizes": (3, 0)}, ValueError, "hidden_layer_sizes=.* positive whole numb"),
        ({"hidden_layer_sizes": 3.5}, ValueError, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (10**7, 10**7)}, ValueError, "Take smaller hidden_layer_sizes"),
    ],
)
def test_bad_parameters(log, params, error, message):
    with pytest.raises(error, match=message):
        model_of(**params).fit(*log)


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
