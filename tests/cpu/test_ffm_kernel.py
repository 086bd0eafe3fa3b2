"""The kernels of field-aware machines against their reference, finite differences, themselves."""

import numpy as np
import pytest
from helpers import assert_same_attributes, each, penalties_of
from numpy.testing import assert_allclose, assert_array_equal
from reference.differences import slopes
from reference.ffm import ReferenceFFM, ffm_scores
from reference.fm import visit_order
from scipy import sparse
from sklearn.base import clone
from test_fm_kernel import CASES, assert_training_equals, terms_of
from test_fm_kernel import estimator as machine

from freqfm import FFMClassifier, FFMRegressor, FMClassifier, FMRegressor
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, OPTIMIZERS, SGD, Adam

pytestmark = pytest.mark.slow  # kernels of a further family

FIELDS = np.array([0, 0, 1, 1, 1, 0, 2, 2, 2, 3, 3, 0])
CLASSES = [FFMClassifier, FFMRegressor]


@pytest.fixture
def rows(clicks):
    """Rows with several entries of a field, and with no more than one, and whole ones; mixed."""
    X, y = clicks
    rng = np.random.default_rng(1)
    whole = np.zeros((40, 12), dtype=np.float32)
    for f in range(4):
        # Without column 5, which no row holds, and column 11, whose field is not the last one.
        columns = np.setdiff1d(np.flatnonzero(f == FIELDS), [5, 11])
        whole[np.arange(40), rng.choice(columns, 40)] = rng.choice([1, 0.5, -1], 40)
    # One entry of every field, but not in their order.
    backwards = np.zeros((4, 12), dtype=np.float32)
    backwards[:, [2, 6, 9, 11]] = rng.random((4, 4))
    X = sparse.csr_array(np.concatenate([X.toarray(), whole, backwards]))
    order = rng.permutation(X.shape[0])
    return sparse.csr_array(X[order]), np.append(y, rng.integers(0, 2, 44))[order]


def estimator(cls, optimizer, **params):
    return machine(cls, optimizer, **{"fields": FIELDS, **params})


def reference_of(model, optimizer, X, weight, target):
    """The reference in the state from which ``model`` started."""
    shape = X.shape[1], 1 + model.fields_.max(), model.n_components
    generator = np.random.default_rng(model._seed)
    drawn = generator.standard_normal((shape[0], shape[1] * shape[2]), dtype=np.float32)
    factors = (np.float32(model.init.scale) * drawn).reshape(shape)
    coef, base = np.zeros(X.shape[1]), model._loss.base_score(target, weight)
    args = base, coef, factors, *terms_of(model, optimizer, X, weight)
    return ReferenceFFM(*args, fields=model.fields_)


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_training_equals_the_reference(rows, cls, optimizer, weighted):
    model = estimator(cls, optimizer)
    X, reference = assert_training_equals(model, optimizer, rows, weighted, reference_of)
    factors = reference.V.reshape(reference.shape)
    assert_allclose(model.factors_, factors, rtol=2e-4, atol=3e-5)
    scores = ffm_scores(X.toarray(), reference.b, reference.w, factors, FIELDS)
    assert_allclose(model._scores(X)[0], scores, atol=2e-4)


# Four numbers are one instruction, of a vector as of two fields.
@each("width", [1, 2, 3, 4, 5, 8, 17])
def test_vectors_of_any_length_are_trained(rows, width):
    X, y = rows
    params = {"n_components": width, "init": Normal(0.5 / np.sqrt(width)), "alpha_factors": 0.5}
    optimizer, weight, target = CFSGD(0.1, max_step=10.0), np.ones(len(y)), y.astype(float)
    model = estimator(FFMRegressor, optimizer, max_iter=1, **params).fit(X, y)
    reference = reference_of(model, optimizer, X, weight, target)
    reference.epoch(X.toarray(), target, weight, 16, visit_order(len(y), model._seed, 0))
    assert_allclose(model.coef_, reference.w, rtol=2e-4, atol=3e-5)
    assert_allclose(model.factors_, reference.V.reshape(reference.shape), rtol=2e-4, atol=3e-5)
    # Rows of no entry, of one, of two beside each other, and of all.
    X = sparse.csr_array(np.concatenate([np.tri(13, 12, -1), 2 * np.eye(5, 12), X.toarray()]))
    expected = ffm_scores(X.toarray(), model.intercept_, model.coef_, model.factors_, FIELDS)
    assert_allclose(model.predict(X), expected, atol=1e-5)


@pytest.mark.parametrize("alpha_per", ["token", "row"])
@pytest.mark.parametrize("cls", CLASSES)
def test_gradient_equals_finite_differences(rows, cls, alpha_per):
    # One SGD step of length one on the whole data moves the model by minus its gradient.
    X, y = rows
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    alpha = {"alpha_linear": 0.02, "alpha_factors": 0.05, "n_components": 2}
    model = estimator(cls, SGD(1.0), batch_size=1000, max_iter=1, **alpha, alpha_per=alpha_per)
    model.fit(X, y, sample_weight=weight)
    reference = reference_of(model, SGD(1.0), X, weight, y.astype(float))
    dense, V0 = X.toarray().astype(float), reference.V.reshape(reference.shape)
    touched = (dense != 0).T @ weight
    # How much weight the rows have that hold a feature and another one of a field.
    held = [np.delete(np.eye(4)[FIELDS] * (dense != 0)[:, :, None], i, axis=1) for i in range(12)]
    by_vector = [weight @ ((dense[:, [i]] != 0) & h.any(axis=1)) for i, h in enumerate(held)]
    by_vector, shares = np.array(by_vector), 1.0
    if alpha_per == "token":
        shares = 1 / np.maximum(touched, 1e-9)

    b0, w0 = reference.b, reference.w

    def objective():
        scores = ffm_scores(dense, b0, w0, V0, FIELDS)
        if cls is FFMClassifier:
            losses = np.logaddexp(0, scores) - y * scores
        else:
            losses = (scores - y) ** 2 / 2
        penalty = 0.02 / 2 * (touched * shares @ w0**2)
        penalty += 0.05 / 2 * ((by_vector.T * shares).T * (V0**2).sum(axis=2)).sum()
        return (weight @ losses + penalty) / weight.sum()

    for table, moved in ((b0, model.intercept_), (w0, model.coef_), (V0, model.factors_)):
        assert_allclose(table - moved, slopes(objective, table), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_bitwise_reproducible_for_any_number_of_threads(optimizer):
    rng = np.random.default_rng(0)
    n_features = 12 if getattr(optimizer, "counts", None) is not None else 120
    X = rng.random((600, n_features)) * (rng.random((600, n_features)) < 0.1)
    X[:200] = np.concatenate(
        [np.eye(n_features // 4)[rng.integers(0, n_features // 4, 200)] for _ in range(4)], axis=1
    )
    y, fields = rng.integers(0, 2, 600), np.repeat(np.arange(4), n_features // 4)
    models = [
        estimator(FFMClassifier, optimizer, fields=fields, batch_size=200, n_jobs=n).fit(X, y)
        for n in (1, 2, 3, 5)
    ]
    assert_same_attributes(("intercept_", "coef_", "factors_", "loss_curve_"), *models)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_one_field_is_a_plain_machine(clicks, optimizer):
    X, y = clicks
    # A feature that is alone in its row touches no vector here, but there it has a penalty.
    several = np.diff(X.indptr) > 1
    X, y = X[several], y[several]
    for cls, plain in ((FFMClassifier, FMClassifier), (FFMRegressor, FMRegressor)):
        rate = {"learning_rate": 0.1} if "sgd" in optimizer else {}
        model = estimator(cls, optimizer, fields=np.zeros(12, dtype=int), **rate).fit(X, y)
        params = model.get_params(deep=False) | penalties_of(model)
        del params["fields"]
        plain = plain(**params).fit(X, y)
        assert_allclose(model.factors_[:, 0], plain.factors_, rtol=1e-4, atol=1e-6)
        assert_allclose(model.loss_curve_, plain.loss_curve_, rtol=1e-5)
        assert_allclose(model._scores(X), plain._scores(X), rtol=1e-4, atol=1e-6)


def test_counters_count_what_touches_each_vector(rows):
    X, y = rows
    held = X.toarray() != 0
    fields = np.eye(4)[FIELDS]
    # Whether a row holds a feature, and how many other ones of each field.
    others = held[:, :, None] * ((held @ fields)[:, None, :] - held[:, :, None] * fields)
    by_sample = estimator(FFMClassifier, CFSGD(), max_iter=3).fit(X, y)
    (state,) = by_sample._optimizer_state
    assert_array_equal(state["per_vector"], 3 * (others > 0).sum(axis=0))
    assert_array_equal(state["per_row"], 3 * held.sum(axis=0))
    by_batch = estimator(FFMClassifier, CFSGD(count="batch"), batch_size=200, max_iter=3)
    (state,) = by_batch.fit(X, y)._optimizer_state
    assert_array_equal(state["per_vector"], 3 * (others > 0).any(axis=0))


@each("name, floats", [("sgd", 0), ("fa_sgd", 1), ("cf_sgd", 5), ("rowwise_adagrad", 5),
                       ("adagrad", 21), ("adam", 42)])  # fmt: skip
def test_optimizer_state_nbytes(rows, name, floats):
    # Of 4 vectors of 5 numbers, and the linear weight.
    model = estimator(FFMClassifier, name).fit(*rows)
    assert model.optimizer_state_nbytes_ == 4 * floats * 12


def test_vectors_that_no_row_touches_stay_where_they_started(rows):
    X, y = rows
    for optimizer in ("sgd", "cf_sgd", "adagrad", "adam"):
        model = estimator(FFMClassifier, optimizer, alpha_factors=3.0).fit(X, y)
        start = reference_of(model, SGD(1.0), X, np.ones(len(y)), y.astype(float))
        start = np.float32(start.V.reshape(start.shape))
        moved = (model.factors_ != start).any(axis=2)
        held = X.toarray() != 0
        fields = np.eye(4)[FIELDS]
        others = held[:, :, None] * ((held @ fields)[:, None, :] - held[:, :, None] * fields)
        assert_array_equal(moved, (others > 0).any(axis=0))


def test_dense_steps_of_more_tokens_than_a_batch_has_entries(rows):
    X, y = rows
    few = estimator(FFMClassifier, Adam(0.02, lazy=False)).fit(X, y)
    wide = sparse.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], 500))
    fields = np.append(FIELDS, np.zeros(488, dtype=int))
    many = clone(few).set_params(fields=fields).fit(wide, y)
    assert_array_equal(many.factors_[:12] != 0, few.factors_ != 0)
    start = reference_of(many, Adam(0.02), wide, np.ones(len(y)), y.astype(float))
    assert_array_equal(many.factors_[12:], np.float32(start.V.reshape(start.shape)[12:]))
