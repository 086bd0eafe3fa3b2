"""Helpers that several test files share."""

import functools
import inspect

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone, is_classifier
from sklearn.utils.fixes import parse_version

from freqfm import (
    DeepFMClassifier,
    DeepFMRegressor,
    FFMClassifier,
    FFMRegressor,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    FwFMRegressor,
    NFMClassifier,
    NFMRegressor,
    RaFMClassifier,
    RaFMRegressor,
)

WITH_FIELDS = [
    DeepFMClassifier,
    DeepFMRegressor,
    FFMClassifier,
    FFMRegressor,
    FwFMClassifier,
    FwFMRegressor,
]
CLASSES = [FMClassifier, FMRegressor, RaFMClassifier, RaFMRegressor, *WITH_FIELDS]
CLASSES += [NFMClassifier, NFMRegressor]
BOTH = pytest.mark.parametrize("cls", CLASSES)

#: Penalties of machines whose tests are about something else: by default several are tried.
PENALTIES = {"alpha_linear": 1, "alpha_factors": 5}

#: Learned attributes that are bitwise the same after two equal fits.
FITTED = ("intercept_", "coef_", "factors_", "loss_curve_", "token_counts_", "n_iter_")


def slow_params(values):
    """Return parameters that are marked slow, of values or of tuples of values."""
    tuples = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*values, marks=pytest.mark.slow) for values in tuples]


def each(names, cases, slow=()):
    """Run a test once for each case, as ``pytest.mark.parametrize`` does, but as one test.

    For many cases of a moment each: what pytest does around a test takes longer. Fixtures are
    made once for all cases. What fails names the case. Cases that are ``slow`` are another test,
    with that marker.
    """
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    def decorate(test):
        @functools.wraps(test)
        def run(**given):
            for case in given.pop("cases") if slow else cases:
                values = case if len(names) > 1 else [case]
                arguments = dict(zip(names, values, strict=True))
                try:
                    test(**given, **arguments)
                except (Exception, pytest.fail.Exception) as error:
                    raise AssertionError(f"failed where {arguments}") from error

        signature = inspect.signature(test)
        kept = [value for name, value in signature.parameters.items() if name not in names]
        if slow:
            kept.append(inspect.Parameter("cases", inspect.Parameter.KEYWORD_ONLY))
            both = [pytest.param(cases, id="quick")]
            both += [pytest.param(slow, id="slow", marks=pytest.mark.slow)]
            run = pytest.mark.parametrize("cases", both)(run)
        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate


def penalties_of(model):
    """Return the penalties of a fitted machine, as parameters."""
    return {"alpha_linear": model.alpha_linear_, "alpha_factors": model.alpha_factors_}


def assert_same_model(one, other):
    """Assert that two fitted models are bitwise the same."""
    for name, expected in fitted(other).items():
        assert_array_equal(fitted(one)[name], expected, err_msg=name)


def assert_same_attributes(names, first, *others):
    """Assert that some attributes of fitted models are bitwise the same."""
    for other in others:
        for name in names:
            assert_array_equal(getattr(other, name), getattr(first, name), err_msg=name)


def fitted(model):
    """Return the learned arrays of a model by name; tables of several ranks end to end."""
    arrays = {name: getattr(model, name) for name in FITTED}
    if isinstance(arrays["factors_"], list):
        arrays["factors_"] = np.concatenate([table.ravel() for table in arrays["factors_"]])
    return {name: np.asarray(array) for name, array in arrays.items()}


def model_of(cls, **params):
    ranked = cls in (RaFMClassifier, RaFMRegressor)
    size = {"ranks": (2, 3), "rank_assignment": [3]} if ranked else {"n_components": 3}
    return cls(**{**size, "max_iter": 2, "random_state": 0, **params})


def most_popular(train, n):
    """Return the ``n`` most popular items that each user has not interacted with."""
    unseen = np.where(train.toarray() > 0, -1, train.sum(axis=0))
    return np.argsort(-unseen, axis=1, kind="stable")[:, :n]


def weighted_interactions(n_users, n_items, share=0.2, values=(0.5, 1, 2), seed=0):
    """Return interactions with weights; a user and an item have none."""
    rng = np.random.default_rng(seed)
    X = (rng.random((n_users, n_items)) < share) * rng.choice(values, (n_users, n_items))
    X[3], X[:, 7] = 0, 0
    return csr_array(X.astype(np.float32))


def labels(n):
    return np.arange(n) % 2


def classes_of(cls):
    return {"classes": [0, 1]} if is_classifier(cls()) else {}


def outputs(model, X):
    names = ("decision_function", "predict_proba", "predict")
    return [getattr(model, name)(X) for name in names if hasattr(model, name)]


def assert_canonical(X, shape):
    """Assert that X is a canonical csr_array of float32 and int32."""
    assert isinstance(X, csr_array) and X.shape == shape and X.dtype == np.float32
    assert X.indices.dtype == np.int32 and X.indptr.dtype == np.int32
    # A new array checks the indices again, whatever the flags of X say.
    assert csr_array((X.data, X.indices, X.indptr), shape=X.shape).has_canonical_format
    X.check_format(full_check=True)


def failing_checks():
    """Return scikit-learn's checks that are wrong themselves, as ``expected_failed_checks``."""
    if parse_version(sklearn.__version__) >= parse_version("1.7.2"):
        return {}
    reason = "it subtracts a mean from integers, in place: an error before our estimator is called"
    return {"check_positive_only_tag_during_fit": reason}


def check_matrix_recommender(model):
    """Run scikit-learn's checks of an estimator that recommends from a matrix.

    Two of them take predictions of several items for a mistake, whatever the tags say; they must
    pass where one item is recommended.
    """
    from sklearn.utils import estimator_checks as checks

    sparse_checks = checks.check_estimator_sparse_array, checks.check_estimator_sparse_matrix
    excused = {check.__name__: "a prediction has several columns" for check in sparse_checks}
    results = checks.check_estimator(
        model,
        on_skip=None,
        on_fail=None,
        expected_failed_checks={**failing_checks(), **excused},
    )
    failed = {
        result["check_name"]: result["exception"]
        for result in results
        if result["status"] == "failed"
    }
    assert not failed
    assert set(excused) <= {one["check_name"] for one in results if one["status"] == "xfail"}
    one = clone(model).set_params(n_recommendations=1)
    for check in sparse_checks:
        check(type(model).__name__, one)
