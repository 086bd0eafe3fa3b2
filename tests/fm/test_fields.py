"""Machines that take the fields of columns from an array, a callable, or rows that carry them."""

import pickle

import numpy as np
import pytest
from helpers import PENALTIES, WITH_FIELDS, assert_same_model
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from freqfm import (
    WithFields,
    column_fields,
)
from freqfm.datasets import IncrementalOneHotEncoder, RowStream

EACH = pytest.mark.parametrize("cls", WITH_FIELDS)


@pytest.fixture(scope="module")
def table():
    """Rows of a rare and two other variables, so that each fold has other columns."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, n, 300) for n in (200, 8, 5)])
    return rows, (rows[:, 1] + rows[:, 2]) % 2


def encoder_of():
    return OneHotEncoder(handle_unknown="ignore")


def machine(cls, **params):
    return cls(2, max_iter=2, random_state=0, **PENALTIES, **params)


@EACH
def test_folds_have_the_fields_of_their_own_columns(cls, table):
    rows, y = table
    model = make_pipeline(WithFields(encoder_of()), machine(cls))
    with pytest.raises(ValueError, match=r"fields has shape .* wrap the encoder in freqfm.WithF"):
        fields = column_fields(encoder_of().fit(rows))
        make_pipeline(encoder_of(), machine(cls, fields=fields)).fit(rows[:200], y[:200])
    assert np.isfinite(cross_val_score(model, rows, y, cv=3, error_score="raise")).all()
    grid = {
        f"{cls.__name__.lower()}__n_components": [2, 3],
        "withfields__encoder__min_frequency": [1, 2],
    }
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(rows, y)
    assert_array_equal(np.unique(search.best_estimator_[-1].fields_), [0, 1, 2])


@EACH
def test_ways_to_give_fields_learn_the_same_model(cls, table):
    rows, y = table
    encoder = encoder_of().fit(rows)
    X, fields = encoder.transform(rows), column_fields(encoder)
    seen = []
    expected = machine(cls, fields=fields).fit(X, y)
    called = machine(cls, fields=lambda X: seen.append(X) or fields.astype(str)).fit(X, y)
    pipeline = make_pipeline(WithFields(encoder_of()), machine(cls)).fit(rows, y)
    assert_same_model(expected, called)
    assert_same_model(expected, pipeline[-1])
    assert len(seen) == 1 and seen[0] is X
    assert_array_equal(expected.fields_, fields)
    # Rows to predict need not carry fields, and may hold unknown categories.
    assert_array_equal(pipeline[-1].predict(X), expected.predict(X))
    pipeline.predict(rows[:3] + 1000)
    copied = pickle.loads(pickle.dumps(pipeline))
    assert_array_equal(copied.predict(rows), expected.predict(X))
    assert_array_equal(clone(pipeline).fit(rows, y).predict(rows), expected.predict(X))


@EACH
def test_fields_in_partial_fit_and_warm_starts(cls, table):
    rows, y = table
    encoder = WithFields(encoder_of()).fit(rows)
    X = encoder.transform(rows)
    first = {"classes": [0, 1]} if is_classifier(cls()) else {}
    for given in ({}, {"n_features": X.shape[1]}):
        model = machine(cls).partial_fit(X[:100], y[:100], **first, **given)
        assert_array_equal(model.fields_, encoder.fields_)
        assert model.partial_fit(X[100:], y[100:], **given).coef_.any()
        before = pickle.dumps(model.coef_)
        with pytest.raises(ValueError, match=r"fields differ from those|every column of X a field"):
            model.partial_fit(sparse.csr_array(X), y)
        with pytest.raises(ValueError, match="fields differ from those of the model"):
            model.set_params(fields=lambda X: np.arange(X.shape[1])).partial_fit(X, y)
        assert pickle.dumps(model.coef_) == before
    with pytest.raises(ValueError, match=r"X.fields has shape \(\d+,\), but X has 400 features"):
        machine(cls).partial_fit(X, y, **first, n_features=400)
    warm = machine(cls, warm_start=True).fit(X, y)
    assert_array_equal(warm.fit(X, y).fields_, encoder.fields_)


@EACH
def test_fields_of_streams(cls, table):
    rows, y = table
    encoder = IncrementalOneHotEncoder()
    stream = RowStream(
        lambda: iter([(rows[:150], y[:150]), (rows[150:], y[150:])]), encoder=encoder
    )
    model = machine(cls, fields=lambda stream: column_fields(stream.encoder)).fit(stream)
    assert_array_equal(model.fields_, column_fields(encoder))


@EACH
def test_what_is_not_fields_is_refused(cls, table):
    rows, y = table
    X = WithFields(encoder_of()).fit_transform(rows)
    for fields, error, message in (
        (lambda X: [0, 1], ValueError, r"fields\(X\) has shape \(2,\)"),
        (lambda X: np.ones(X.shape[1]), TypeError, r"fields\(X\) must hold integers or strings"),
        (lambda X: None, ValueError, r"fields\(X\) has shape \(\)"),
        (3, ValueError, "The 'fields' parameter"),
    ):
        with pytest.raises(error, match=message):
            machine(cls, fields=fields).fit(X, y)
    lost = make_pipeline(WithFields(encoder_of()), MaxAbsScaler(), machine(cls))
    with pytest.raises(ValueError, match="X comes from WithFields, but what followed has lost"):
        lost.fit(rows, y)


def test_rows_carry_fields_through_selections(table):
    rows, y = table
    encoder = WithFields(make_column_transformer((encoder_of(), [1, 2]), (StandardScaler(), [0])))
    X = encoder.fit_transform(rows)
    assert X.dtype == np.float32 and X.shape == (300, 14)
    assert_array_equal(X.fields, np.repeat([0, 1, 2], [8, 5, 1]))
    assert_array_equal(X.fields, column_fields(make_pipeline(encoder)))
    mask = np.arange(14) % 2 == 0
    for part, expected in (
        (X[:10], X.fields), (X[[3, 1]], X.fields), (X[y == 1], X.fields),
        (X[:, 3:9], X.fields[3:9]), (X[:, mask], X.fields[mask]), (X[:2, [9, 0]], X.fields[[9, 0]]),
        (pickle.loads(pickle.dumps(X)), X.fields),
    ):  # fmt: skip
        assert_array_equal(part.fields, expected)
    assert X[2, 3] in (0, 1)
    best = SelectKBest(k=6).fit(X, y)
    assert_array_equal(best.transform(X).fields, X.fields[best.get_support()])
    assert list(encoder.get_feature_names_out()) == list(encoder.encoder_.get_feature_names_out())
    assert encoder.n_features_in_ == 3
    dense = WithFields(OneHotEncoder(sparse_output=False)).fit_transform(rows)
    assert_array_equal(dense.toarray(), encoder_of().fit_transform(rows).toarray())


def test_sklearn_compatible():
    check_estimator(WithFields(encoder_of()), on_skip=None)
    # Scikit-learn 1.6 subtracts a mean from integers in place.
    failing = {"check_positive_only_tag_during_fit": "needs scikit-learn 1.7"}
    encoder = WithFields(IncrementalOneHotEncoder())
    check_estimator(encoder, on_skip=None, expected_failed_checks=failing)


def test_encoders_whose_fields_are_not_known_are_refused(table):
    with pytest.raises(TypeError, match="got StandardScaler. Give fields as an array"):
        WithFields(StandardScaler()).fit(table[0])
    with pytest.raises(NotFittedError):
        WithFields(encoder_of()).transform(table[0])
