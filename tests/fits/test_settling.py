"""The last epochs of a fit have falling learning rates, from the best model so far."""

import copy

import numpy as np
import pytest
from helpers import CLASSES, WITH_FIELDS, each, model_of
from numpy.testing import assert_allclose, assert_array_equal

from freqfm import FMClassifier, FMRegressor
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import RowStream, make_clicks
from freqfm.estimators.fm import base
from freqfm.estimators.fm.trainer import FMTrainer
from freqfm.optimizers import CFSGD, OPTIMIZERS, Adagrad, RowwiseAdagrad

FIXED = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
PENALTIES = {"alpha_linear": 1, "alpha_factors": 5}


@pytest.fixture(scope="module")
def log():
    return make_clicks(800, (40, 20, 5), random_state=0)


@pytest.fixture
def shares(monkeypatch):
    """The shares of the learning rates of all epochs that are trained."""
    seen, run_epoch = [], FMTrainer.run_epoch

    def watched(self, epoch):
        seen.append(self.share)
        return run_epoch(self, epoch)

    monkeypatch.setattr(FMTrainer, "run_epoch", watched)
    return seen


def weights(model):
    return [np.ravel(getattr(model, name)) for name in model._weight_names]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_fifth_of_the_epochs_settle_and_two_at_most(cls, log, shares):
    X, y = log
    for n, expected in ((4, [1] * 4), (5, [1] * 4 + [0.25]), (11, [1] * 9 + [0.25, 0.05])):
        shares.clear()
        fields = {"fields": np.repeat([0, 1, 2], [40, 20, 5])} if cls in WITH_FIELDS else {}
        model = model_of(cls, **{**FIXED, **fields, "max_iter": n}).fit(X, y)
        assert shares == expected
        assert model.n_iter_ == model.best_iter_ == n == len(model.loss_curve_)


EQUAL = [
    ({"optimizer": "sgd", "learning_rate": 0.4}, {"learning_rate": 0.1}),
    ({"optimizer": "adam", "learning_rate": 0.04}, {"learning_rate": 0.01}),
    ({"optimizer": Adagrad(0.4)}, {"optimizer": Adagrad(0.1)}),
    ({"optimizer": RowwiseAdagrad(0.4)}, {"optimizer": RowwiseAdagrad(0.1)}),
    (
        {"optimizer": CFSGD(2.0, max_step=0.04, curvature_cap=2.0)},
        {"optimizer": CFSGD(0.5, max_step=0.01, curvature_cap=0.5)},
    ),
]


@each("optimizer, slower", EQUAL)
def test_a_share_multiplies_the_rate_of_every_feature(log, optimizer, slower):
    X, y = log
    settled = FMClassifier(4, max_iter=5, **FIXED, **optimizer).fit(X, y)
    by_hand = FMClassifier(4, max_iter=4, warm_start=True, **FIXED, **optimizer).fit(X, y)
    by_hand.set_params(max_iter=1, **slower).fit(X, y)
    for found, expected in zip(weights(settled), weights(by_hand), strict=True):
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_warm_start_begins_at_full_rates_and_partial_fit_keeps_them(optimizer, log, shares):
    X, y = log
    model = FMClassifier(4, optimizer=optimizer, max_iter=10, warm_start=True, **FIXED)
    model.fit(X, y).fit(X, y)
    assert shares == 2 * [*[1] * 8, 0.25, 0.05]
    shares.clear()
    model.partial_fit(X, y)
    assert shares == [1]


def test_all_data_are_trained_on_for_the_best_number_of_epochs_and_settle(log, shares):
    X, y = log
    options = {"optimizer": "adagrad", "learning_rate": 0.3, "random_state": 0, **PENALTIES}
    model = FMClassifier(validation_fraction=0.25, **options).fit(X, y)
    n_best, n = model.best_iter_, model.n_iter_
    assert n_best == model.validation_scores_.argmax() + 1 < n == len(model.loss_curve_)
    assert shares == [1] * n + [1] * n_best + [0.25, 0.05]
    expected = FMClassifier(max_iter=n_best + 2, **{**options, **FIXED}).fit(X, y)
    for found, other in zip(weights(model), weights(expected), strict=True):
        assert_array_equal(found, other)


@pytest.mark.parametrize("patience", [2, None])
def test_with_validation_rows_the_best_model_settles(log, shares, patience, monkeypatch):
    X, y = log
    options = {"n_iter_no_change": patience, "max_iter": 20, "random_state": 0}
    options |= {"alpha_linear": 0.1, "alpha_factors": 0.1}
    options |= {"optimizer": "adagrad", "learning_rate": 1.0, "batch_size": 50}
    model = FMClassifier(4, **options).fit(X[:600], y[:600], X_val=X[600:], y_val=y[600:])
    scores, n = model.validation_scores_, model.n_iter_
    assert n == len(scores) == len(model.loss_curve_) <= 20 and (n == 20) == (patience is None)
    assert shares == [1] * n + [0.25, 0.05]
    assert model.best_iter_ == scores.argmax() + 1 < n
    # The best epoch has the score of its model after it has settled; others are as they were.
    monkeypatch.setattr(base, "_MOST_SETTLING", 0)
    before = FMClassifier(4, **options).fit(X[:600], y[:600], X_val=X[600:], y_val=y[600:])
    assert_array_equal(np.flatnonzero(scores != before.validation_scores_), [scores.argmax()])
    assert scores.max() > before.validation_scores_.max() and before.best_iter_ == model.best_iter_
    p = model.predict_proba(X[600:])[:, 1]
    loss = -np.mean(np.log(np.where(y[600:], p, 1 - p)))
    assert loss == pytest.approx(-scores.max(), abs=1e-6)


def test_streams_settle(log, shares):
    X, y = log
    stream = RowStream(lambda: [(X, y)], chunk_size=200)
    model = FMClassifier(4, max_iter=10, n_iter_no_change=None, random_state=0).fit(stream)
    assert shares == [1] * 32 + [0.25] * 4 + [0.05] * 4 and model.n_iter_ == 10
    shares.clear()
    model.fit(stream, X_val=X, y_val=y)
    assert shares == [1] * 40 + [0.25] * 4 + [0.05] * 4 and model.n_iter_ == 10
    assert model.best_iter_ == model.validation_scores_.argmax() + 1


class Killed(Exception):
    pass


class Killing(Checkpoint):
    """Ends the fit after so many checkpoints."""

    def __init__(self, path, after):
        super().__init__(path)
        self.after = after

    def save(self, estimator, progress):
        super().save(estimator, progress)
        self.after -= 1
        if not self.after:
            raise Killed


@pytest.mark.parametrize("validated", [False, True])
def test_a_fit_that_is_killed_while_it_settles_goes_on(log, validated, tmp_path):
    X, y = log
    given = {"X_val": X[600:], "y_val": y[600:]} if validated else {}
    options = {"max_iter": 10, "n_iter_no_change": None, "random_state": 0, **PENALTIES}
    model = FMClassifier(4, **options, early_stopping=validated)
    expected = copy.deepcopy(model).fit(X[:600], y[:600], **given)
    for after in (10, 11) if validated else (8, 9):
        with pytest.raises(Killed):
            model.set_callbacks(Killing(tmp_path / "file", after)).fit(X[:600], y[:600], **given)
        again = resume(tmp_path / "file").fit(X[:600], y[:600], **given)
        assert again.n_iter_ == 10 and again.best_iter_ == expected.best_iter_
        for found, other in zip(weights(again), weights(expected), strict=True):
            assert_array_equal(found, other)


def test_noise_of_the_last_steps_is_gone():
    rng = np.random.default_rng(0)
    X = np.eye(40)[rng.integers(40, size=4000)]
    effects = rng.normal(size=40)
    y = X @ effects + 5 * rng.normal(size=4000)
    model = FMRegressor(4, max_iter=12, batch_size=200, **FIXED, alpha_factors=25)
    errors = []
    for n in (10, 12):
        fitted = model.set_params(max_iter=n)
        if n == 10:
            fitted = copy.deepcopy(fitted).set_params(max_iter=2, warm_start=True)
            for _ in range(5):
                fitted.fit(X, y)
        else:
            fitted.fit(X, y)
        errors.append(np.mean((fitted.predict(np.eye(40)) - effects) ** 2))
    assert errors[1] < 0.9 * errors[0]
