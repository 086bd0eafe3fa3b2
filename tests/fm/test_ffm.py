"""FFMClassifier and FFMRegressor in the interface of scikit-learn; what they are for."""

import pickle

import numpy as np
import pytest
from helpers import assert_same_model, each
from numpy.testing import assert_array_equal
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from freqfm import FFMClassifier, FFMRegressor, FMClassifier, FwFMRegressor, column_fields
from freqfm.initializers import Normal

pytestmark = pytest.mark.slow  # kernels of a further family

FIELDS = np.repeat([0, 1, 2], [300, 100, 10])  # of the fixture ``log``
BOTH = pytest.mark.parametrize("cls", [FFMClassifier, FFMRegressor])


def model_of(cls=FFMClassifier, **params):
    return cls(**{"n_components": 3, "fields": FIELDS, "max_iter": 2, "random_state": 0, **params})


def clicks_by_field(n=6000):
    """Rows of three fields, and whether each was clicked.

    A user has two independent tastes: one for items, and one for hours.
    """
    rng = np.random.default_rng(0)
    rows = np.column_stack(
        [rng.integers(0, n, n_rows) for n, n_rows in ((200, n), (30, n), (24, n))]
    )
    by_item, by_hour = rng.choice([-1.0, 1.0], (2, 200))
    item, hour = rng.choice([-1.0, 1.0], 30), rng.choice([-1.0, 1.0], 24)
    user = rows[:, 0]
    logits = 2 * by_item[user] * item[rows[:, 1]] + 2 * by_hour[user] * hour[rows[:, 2]]
    return rows, (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(int)


def test_learns_interactions_that_differ_by_field():
    rows, y = clicks_by_field()
    encoder = OneHotEncoder()
    X, fields = encoder.fit_transform(rows), column_fields(encoder)
    params = {"n_components": 1, "random_state": 0, "alpha_factors": 1.0, "init": Normal(0.1)}
    aware = FFMClassifier(fields=fields, **params).fit(X[:4000], y[:4000])
    plain = FMClassifier(**params).fit(X[:4000], y[:4000])
    aucs = [roc_auc_score(y[4000:], m.decision_function(X[4000:])) for m in (aware, plain)]
    assert aucs[0] > aucs[1] + 0.05


def test_fields_are_numbered_and_may_be_strings(log):
    X, y = log
    names = np.array(["user", "item", "day"])[FIELDS]
    one, other = (model_of(fields=f).fit(X, y) for f in (list(names), names.astype(object)))
    assert_same_model(one, other)
    assert_array_equal(one.fields_, np.unique(names, return_inverse=True)[1])
    assert one.factors_.shape == (410, 3, 3)
    # Of three classes.
    model = model_of().fit(X, y % 2 + (X.indices[::3] % 2))
    assert model.factors_.shape == (3, 410, 3, 3)


@each("cls", [FFMRegressor, FwFMRegressor])
def test_without_fields_each_column_is_one(cls):
    X = np.random.default_rng(0).standard_normal((500, 4))
    one, other = (
        model_of(cls, fields=fields).fit(X, X[:, 0] * X[:, 1]) for fields in (None, list("abcd"))
    )
    assert_same_model(one, other)
    assert_array_equal(getattr(one, "_dense", ()), getattr(other, "_dense", ()))
    assert_array_equal(one.fields_, np.arange(4))


def test_fields_that_do_not_fit_are_refused(log):
    X, y = log
    for fields, error, message in (
        (None, ValueError, "every column of X a field, but X has 410 columns"),
        (FIELDS[:-1], ValueError, r"fields has shape \(409,\), but X has 410 features"),
        (FIELDS / 2, TypeError, "fields must hold integers or strings"),
    ):
        with pytest.raises(error, match=message):
            model_of(fields=fields).fit(X, y)
    model = model_of(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="fields differ from those of the model"):
        model.set_params(fields=FIELDS[::-1]).fit(X, y)
    with pytest.raises(ValueError, match="n_components=5"):
        model.set_params(fields=FIELDS, n_components=5).fit(X, y)


@BOTH
def test_warm_starts_equal_one_fit(log, cls):
    X, y = log
    params = {"early_stopping": False, "n_iter_no_change": None, "optimizer": "cf_sgd"}
    once = model_of(cls, max_iter=3, **params).fit(X, y)
    warm = model_of(cls, max_iter=1, warm_start=True, **params)
    for _ in range(3):
        warm.fit(X, y)
    for name in ("factors_", "coef_", "intercept_"):
        assert_array_equal(getattr(warm, name), getattr(once, name))
    again = pickle.loads(pickle.dumps(once))
    assert_array_equal(again.predict(X), once.predict(X))


def test_changed_attributes_are_found(log):
    X, y = log
    for name, value, message in (
        ("fields_", FIELDS + 1, r"fields_ of FFMClassifier holds 1 to 3, outside \[0, 2\]"),
        ("fields_", FIELDS.astype(float), "fields_ of FFMClassifier is of type float64"),
        ("factors_", np.zeros((410, 9), np.float32), "factors_ of FFMClassifier has shape"),
    ):
        model = model_of().fit(X, y)
        setattr(model, name, value)
        with pytest.raises(ValueError, match=message):
            model.predict(X)


def test_batches_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 10**8)
    X = np.ones((1000, 200), dtype=np.float32)
    with pytest.raises(ValueError, match="for each pair of 200 fields .* smaller batch_size"):
        FFMRegressor(4, max_iter=1, early_stopping=False, batch_size=1000).fit(X, X[:, 0])


def test_gpus_are_refused_by_name(log):
    from freqfm.backends.base import CPUOnlyError
    from freqfm.backends.cuda.backend import CUDABackend

    weights = model_of().fit(*log)._outputs()
    with pytest.raises(CPUOnlyError, match="FFM runs on the CPU only; set device='cpu'"):
        CUDABackend.fm_scores(None, log[0], weights, 1)
