"""FwFMClassifier and FwFMRegressor in the interface of scikit-learn; what they are for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from freqfm import FMClassifier, FwFMClassifier, FwFMRegressor, column_fields
from freqfm.initializers import Normal
from freqfm.optimizers import Adam

pytestmark = pytest.mark.slow  # kernels of a further family

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``


def model_of(cls=FwFMClassifier, **params):
    return cls(**{"n_components": 3, "fields": FIELDS, "max_iter": 2, "random_state": 0, **params})


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
    params = {"n_components": 1, "random_state": 0, "alpha_factors": 1.0, "init": Normal(0.3)}
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
    model = model_of(FwFMRegressor, fields=[0, 0, 1, 1, 2, 2], init=Normal(1.0)).fit(
        X, np.arange(6)
    )
    model._dense += np.random.default_rng(0).normal(size=model._dense.shape)
    found = model.interaction_strengths(n_pairs=15)
    weights, fields, V = model.field_weights_, model.fields_, model.factors_
    for (i, j), strength in zip(found.features, found.strengths, strict=True):
        assert_allclose(strength, weights[fields[i], fields[j]] * (V[i] @ V[j]), atol=1e-5)


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


def test_penalties_draw_weights_towards_one(log):
    X, y = log
    distances = [
        np.abs(model_of(alpha_fields=a, max_iter=9).fit(X, y).field_weights_ - 1).max()
        for a in (0.0, 1e5)
    ]
    assert distances[1] < distances[0] / 2


def test_multiclass_is_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), FwFMClassifier(4, random_state=0)).fit(X, y)
    assert model.score(X, y) > 0.93
    assert model[-1].field_weights_.shape == (3, 4, 4)


def test_many_columns_without_fields_are_refused(log):
    with pytest.raises(ValueError, match="every column of X a field, but X has 410 columns"):
        model_of(fields=None).fit(*log)
