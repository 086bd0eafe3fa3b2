"""The kernels of rank-aware factorization machines against their reference and themselves."""

import numpy as np
import pytest
from helpers import assert_same_attributes
from numpy.testing import assert_allclose, assert_array_equal
from reference.rafm import expectation, full_tables, gradients, pair_scores, prefix_scores

from freqfm import FMClassifier, FMRegressor, RaFMClassifier, RaFMRegressor
from freqfm.initializers import Normal
from freqfm.optimizers import SGD

pytestmark = pytest.mark.slow  # kernels of a further family

RANKS = (2, 3, 5)
LEVELS = np.array([0, 1, 2, 2, 1, 0, 2, 1, 2, 0, 1, 2])
CLASSES = [RaFMClassifier, RaFMRegressor]
OPTIMIZERS = ["sgd", "fa_sgd", "cf_sgd", "adagrad", "rowwise_adagrad", "adam"]
PLAIN = {RaFMClassifier: FMClassifier, RaFMRegressor: FMRegressor}


def model_of(cls, **params):
    return cls(
        **{
            "ranks": RANKS,
            "rank_assignment": np.array(RANKS)[LEVELS],
            "max_iter": 3,
            "batch_size": 16,
            "init": Normal(0.3),
            "early_stopping": False,
            "n_iter_no_change": None,
            "random_state": 3,
            **params,
        }
    )


@pytest.mark.parametrize("cls", CLASSES)
def test_recursion_equals_sum_over_pairs(clicks, cls):
    X, y = clicks
    model = model_of(cls).fit(X, y)
    tables = full_tables(model)
    for p, rank in enumerate(RANKS):
        expected = pair_scores(X.toarray(), model.intercept_, model.coef_, tables, LEVELS, p)
        assert_allclose(model.up_to_rank(rank)._scores(X)[0], expected, atol=1e-5)
    assert_array_equal(model._scores(X), model.up_to_rank(5)._scores(X))


@pytest.mark.parametrize("cls", CLASSES)
def test_truncation_equals_sum_over_pairs(clicks, cls):
    X, y = clicks
    model = model_of(cls, rank_sharing="truncate").fit(X, y)
    assert [t.shape for t in model.factors_] == [(12, 2), (9, 1), (5, 2)]
    vectors = np.column_stack(full_tables(model))
    for p, rank in enumerate(RANKS):
        expected = prefix_scores(
            X.toarray(), model.intercept_, model.coef_, vectors, LEVELS, RANKS, p
        )
        assert_allclose(model.up_to_rank(rank)._scores(X)[0], expected, atol=1e-5)


@pytest.mark.parametrize("alpha_per", ["token", "row"])
@pytest.mark.parametrize("form", ["paper", "reference"])
@pytest.mark.parametrize("cls", CLASSES)
def test_gradient_is_that_of_the_stated_losses(clicks, cls, form, alpha_per):
    # One SGD step of length one on the whole data moves the model by minus its gradient.
    X, y = clicks
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    options = {
        "form": form,
        "dependent_weight": 0.7,
        "alpha_linear": 0.02,
        "alpha_factors": 0.05,
        "alpha_per": alpha_per,
    }
    start = model_of(cls, optimizer=SGD(1e-30), batch_size=1000, max_iter=1, **options)
    start.fit(X, y, sample_weight=weight)
    moved = model_of(cls, optimizer=SGD(1.0), batch_size=1000, max_iter=1, **options)
    moved.fit(X, y, sample_weight=weight)
    dense, touched = X.toarray().astype(float), (X.toarray() != 0).T @ weight
    times = (touched > 0) if alpha_per == "token" else touched
    tables = full_tables(start)
    loss = "log_loss" if cls is RaFMClassifier else "squared_error"
    by_intercept, by_coef, by_tables = gradients(
        dense, y, weight, start.intercept_[0].astype(float), start.coef_, tables, LEVELS, loss,
        form, 0.7,
    )  # fmt: skip
    total = weight.sum()
    assert start.intercept_ - moved.intercept_ == pytest.approx(by_intercept / total, abs=2e-6)
    assert_allclose(start.coef_ - moved.coef_, by_coef / total, atol=2e-6)
    for table, after, gradient in zip(tables, full_tables(moved), by_tables, strict=True):
        expected = (gradient + 0.05 * times[:, None] * table) / total
        expected[(table == 0).all(axis=1)] = 0
        assert_allclose(table - after, expected, atol=3e-6)


def test_free_vectors_follow_the_direction_of_theorem_6(clicks):
    # Dependent vectors that solve their own problem exactly move with the free ones; the direction
    # of the free ones stays that of the loss with the others held fixed: for one row, that of
    # sum of x v over the others.
    X, _ = clicks
    row = X[[int(np.argmax(np.diff(X.indptr)))]]
    target = np.array([1.5])
    levels = np.where(np.isin(np.arange(12), row.indices[:2]), 1, 0)
    params = {
        "ranks": (2, 4),
        "rank_assignment": np.array([2, 4])[levels],
        "alpha_linear": 0.0,
        "alpha_factors": 0.0,
    }
    start = model_of(RaFMRegressor, optimizer=SGD(1e-30), max_iter=1, **params).fit(row, target)
    moved = model_of(RaFMRegressor, optimizer=SGD(1.0), max_iter=1, **params).fit(row, target)
    # Start away from the base score, at which the derivative of the loss of one row is zero.
    start.intercept_ -= 1
    moved = model_of(RaFMRegressor, optimizer=SGD(1.0), max_iter=1, fit_intercept=False, **params)
    moved.fit(row, target)
    before, after = full_tables(start), full_tables(moved)
    i, j = row.indices[:2]
    step, direction = after[1][i] - before[1][i], row.toarray()[0, j] * before[1][j]
    cosine = step @ direction / np.linalg.norm(step) / np.linalg.norm(direction)
    assert abs(cosine) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("cls", CLASSES)
def test_one_rank_is_that_fm(clicks, cls, optimizer):
    X, y = clicks
    params = {"optimizer": optimizer, "max_iter": 3, "batch_size": 16, "init": Normal(0.3)}
    params |= {"early_stopping": False, "random_state": 3}
    params |= {"learning_rate": 0.1} if "sgd" in optimizer else {}
    fm = PLAIN[cls](5, **params).fit(X, y)
    alone = cls((5,), **params).fit(X, y)
    assert_array_equal(alone.factors_[0], fm.factors_)
    assert_same_attributes(("intercept_", "coef_", "loss_curve_"), alone, fm)
    assert_array_equal(alone._scores(X), fm._scores(X))
    # All features at the smallest of several ranks.
    model = cls((5, 7, 9), rank_assignment=np.full(12, 5), **params).fit(X, y)
    assert [len(t) for t in model.factors_] == [12, 0, 0]
    assert_allclose(model.factors_[0], fm.factors_, rtol=1e-4, atol=1e-6)
    assert_allclose(model.loss_curve_, fm.loss_curve_, rtol=1e-5)
    assert_allclose(model._scores(X), fm._scores(X), rtol=1e-4, atol=1e-6)
    # Above the smallest rank, with vectors of lower ranks on the way.
    model = cls((2, 3, 5), rank_assignment=np.full(12, 5), **params).fit(X, y)
    assert [len(t) for t in model.factors_] == [12, 12, 12]
    expected = pair_scores(
        X.toarray(), model.intercept_, model.coef_, full_tables(model), np.full(12, 2)
    )
    assert_allclose(model._scores(X)[0], expected, atol=1e-5)


@pytest.mark.parametrize("form", ["paper", "reference"])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "dense_adam"])
def test_bitwise_reproducible_for_any_number_of_threads(optimizer, form):
    from freqfm.optimizers import Adam

    rng = np.random.default_rng(0)
    X = rng.random((900, 300)) * (rng.random((900, 300)) < 0.05)
    X[:, 7] = 1
    y = rng.integers(0, 2, 900)
    optimizer = Adam(lazy=False) if optimizer == "dense_adam" else optimizer
    params = {"rank_assignment": [40, 50], "batch_size": 300, "form": form}
    models = [
        model_of(RaFMClassifier, optimizer=optimizer, n_jobs=n, **params).fit(X, y)
        for n in (1, 2, 3, 5)
    ]
    assert_same_attributes(("intercept_", "coef_", "_factors", "loss_curve_"), *models)


def test_inactive_vectors_have_no_place(clicks):
    X, y = clicks
    model = model_of(RaFMClassifier, optimizer="adam").fit(X, y)
    active = 12 * 2 + 9 * 3 + 5 * 5
    assert model._factors.nbytes == 4 * active
    assert model.n_parameters_ == active + 12
    assert model.optimizer_state_nbytes_ == 2 * 4 * (active + 12)
    assert [t.shape for t in model.factors_] == [(12, 2), (9, 3), (5, 5)]
    assert all(np.shares_memory(t, model._factors) for t in model.factors_)


def test_dependent_vectors_make_lower_ranks_follow(clicks):
    X, y = clicks
    params = {"optimizer": SGD(0.3), "alpha_linear": 0.0, "alpha_factors": 0.0, "max_iter": 300}
    model = model_of(RaFMClassifier, **params).fit(X, y)
    apart = model_of(RaFMClassifier, dependent_weight=0.0, **params).fit(X, y)

    def distance(model):
        low, high = (expectation("log_loss", m._scores(X)[0]) for m in (model.up_to_rank(2), model))
        return np.abs(low - high).mean()

    assert distance(model) < 0.6 * distance(apart)
