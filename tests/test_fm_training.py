"""Training that goes on, stops, diverges or is interrupted: nothing is lost."""

import signal
import threading
import time

import numpy as np
import pytest
from helpers import FITTED, assert_same_model
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split

from freqfm import DivergenceError, FMClassifier, FMRegressor
from freqfm.datasets import make_clicks
from freqfm.estimators.base import Attempt, EpochLoop, Phase
from freqfm.optimizers import FASGD, OPTIMIZERS, SGD

# Continuing


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_ten_epochs_equal_ten_fits_of_one(log, optimizer):
    X, y = log
    options = {"optimizer": optimizer, "n_iter_no_change": None, "random_state": 0}
    once = FMClassifier(max_iter=10, **options).fit(X, y)
    warm = FMClassifier(max_iter=1, warm_start=True, **options)
    part = FMClassifier(**options)
    for _ in range(10):
        warm.fit(X, y)
        part.partial_fit(X, y, classes=[0, 1])
    assert_same_model(warm, once)
    for name in FITTED:
        if name != "token_counts_":
            assert_array_equal(getattr(part, name), getattr(once, name), err_msg=name)
    for state, expected in zip(warm._optimizer_state, once._optimizer_state, strict=True):
        for name in expected:
            assert_array_equal(state[name], expected[name])


def test_regressor_continues_too(log):
    X, y = log
    once = FMRegressor(max_iter=4, n_iter_no_change=None, random_state=0).fit(X, y)
    part = FMRegressor(random_state=0)
    for _ in range(4):
        part.partial_fit(X, y)
    assert_array_equal(part.factors_, once.factors_)


def test_cold_fit_forgets(log):
    X, y = log
    model = FMClassifier(max_iter=2, random_state=0)
    first = clone(model).fit(X, y)
    assert_same_model(model.fit(X[:50], y[:50]).fit(X, y), first)


@pytest.mark.parametrize("warm", [True, False], ids=["warm_start", "partial_fit"])
def test_other_number_of_columns_is_an_error(log, warm):
    X, y = log
    model = FMClassifier(max_iter=1, warm_start=True, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="X has 409 features.*expecting 410"):
        model.fit(X[:, :-1], y) if warm else model.partial_fit(X[:, :-1], y)


@pytest.mark.parametrize("change", [{"n_components": 3}, {"optimizer": "adam"}])
def test_continuing_with_another_shape_of_state_is_an_error(log, change):
    X, y = log
    model = FMClassifier(max_iter=1, warm_start=True, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=f"{next(iter(change))}=.*warm_start=False"):
        model.set_params(**change).fit(X, y)


# Stopping


def test_early_stopping_restores_the_best_epoch(log):
    X, y = log
    options = {"validation_fraction": 0.25, "early_stopping": True, "random_state": 0}
    model = FMClassifier(optimizer="adagrad", learning_rate=0.3, **options).fit(X, y)
    scores = model.validation_scores_
    assert len(scores) == model.n_iter_ < 100
    assert model.best_iter_ == scores.argmax() + 1 < model.n_iter_
    _, held_out = train_test_split(
        np.arange(len(y)), test_size=0.25, stratify=y, random_state=model._seed
    )
    restored = roc_auc_score(y[held_out], model.decision_function(X[held_out]))
    assert restored == pytest.approx(scores.max(), abs=1e-9)
    stopped = FMClassifier(
        optimizer="adagrad", learning_rate=0.3, max_iter=model.best_iter_, **options
    ).fit(X, y)
    assert_array_equal(stopped.factors_, model.factors_)


def test_early_stopping_auto_depends_on_the_number_of_rows():
    X, y = make_clicks(10_001, (100, 50), random_state=0)
    assert len(FMClassifier(max_iter=2).fit(X, y).validation_scores_) == 2
    assert len(FMClassifier(max_iter=2).fit(X[1:], y[1:]).validation_scores_) == 0
    assert len(FMRegressor(max_iter=2).fit(X, y).validation_scores_) == 2


def test_early_stopping_needs_every_class_on_both_sides():
    X, y = np.eye(40), np.r_[1, 1, np.zeros(38, int)]
    with pytest.raises(ValueError, match="early_stopping=True.*rarest class has 2 of 40"):
        FMClassifier(early_stopping=True).fit(X, y)


def test_stops_when_the_loss_stands_still(log):
    X, y = log
    model = FMClassifier(tol=10.0, n_iter_no_change=3, random_state=0).fit(X, y)
    assert model.n_iter_ == 4
    assert FMClassifier(max_iter=7, n_iter_no_change=None).fit(X, y).n_iter_ == 7


def test_verbose(log, capsys):
    X, y = log
    FMClassifier(max_iter=2, early_stopping=True, random_state=0).fit(X, y)
    assert capsys.readouterr().out == ""
    FMClassifier(max_iter=2, early_stopping=True, verbose=1, random_state=0).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for word in ("epoch   2/2", "loss 0.", "validation roc_auc 0.", "s left"):
        assert word in lines[1]
    FMRegressor(max_iter=1, early_stopping=True, verbose=1).fit(X, y)
    assert "validation r2 " in capsys.readouterr().out


# Nothing is lost


def test_refused_call_leaves_the_model_as_it_was(log):
    X, y = log
    model = FMClassifier(max_iter=1, random_state=0).fit(X, y)
    expected = model.predict_proba(X)
    wide = sparse.hstack([X, X]).tocsr()
    for bad in (
        {"y": np.zeros(len(y))},
        {"y": y, "sample_weight": -np.ones(len(y))},
        {"y": y + 5, "sample_weight": np.zeros(len(y))},
    ):
        with pytest.raises(ValueError):
            model.fit(wide, **bad)
    with pytest.raises(ValueError):
        model.set_params(optimizer=FASGD(counts=[1, 2])).fit(wide, y)
    assert_array_equal(model.predict_proba(X), expected)
    with pytest.raises(ValueError, match="expecting 410"):
        model.predict(wide)


def test_divergence_says_what_happened_and_keeps_the_last_finite_model():
    X, y = make_regression(200, 5, random_state=0)
    options = {"early_stopping": False, "random_state": 0, "init_scale": 0.1}
    model = FMRegressor(optimizer=SGD(0.05), max_iter=50, **options)
    with pytest.raises(DivergenceError) as error:
        model.fit(X, y)
    epochs = model.n_iter_
    assert epochs > 0
    for part in (f"epoch {epochs + 1}", "learning rate 0.05", "largest weight", "0.005"):
        assert part in str(error.value)
    assert "scale the features" in str(error.value)
    assert np.isfinite(model.predict(X)).all()
    kept = FMRegressor(optimizer=SGD(0.05), max_iter=epochs, **options).fit(X, y)
    assert_same_model(model, kept)


def test_divergence_in_the_first_epoch_leaves_the_estimator_as_it_was():
    X, y = make_regression(200, 5, random_state=0)
    model = FMRegressor(optimizer=SGD(1e30), batch_size=10, random_state=0)
    with pytest.raises(DivergenceError, match="epoch 1.*as it was before the call"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    fitted = model.set_params(optimizer=SGD(1e-4)).fit(X, y).predict(X)
    with pytest.raises(DivergenceError):
        model.set_params(optimizer=SGD(1e30)).fit(X, y)
    assert_array_equal(model.predict(X), fitted)


def test_grid_search_survives_a_diverging_candidate():
    X, y = make_regression(200, 5, random_state=0)
    model = FMRegressor(optimizer="sgd", random_state=0)
    search = GridSearchCV(model, {"learning_rate": [1e-3, 1e10]}, cv=2)
    with pytest.warns(FitFailedWarning, match="diverged"), pytest.warns(UserWarning, match="nan"):
        search.fit(X, y)
    assert search.best_params_ == {"learning_rate": 1e-3}


class _Interrupting:
    """An estimator's loss_curve_ list cannot be watched; its printed lines can."""

    def __init__(self, lines):
        self.lines = lines

    def write(self, text):
        self.lines -= text.count("\n")
        if self.lines == 0:
            raise KeyboardInterrupt


def test_interrupt_between_epochs_leaves_the_last_whole_epoch(log, monkeypatch):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    expected = FMClassifier(max_iter=3, **options).fit(X, y)
    model = FMClassifier(max_iter=50, verbose=1, **options)
    monkeypatch.setattr("sys.stdout", _Interrupting(3))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert model.n_iter_ == 3
    assert_same_model(model, expected)


@pytest.fixture
def ctrl_c():
    """Make the signal an exception, which it is not where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_interrupt_within_an_epoch_leaves_the_last_whole_epoch(log, n_jobs, ctrl_c):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    model = FMClassifier(max_iter=1, n_jobs=n_jobs, **options).fit(X, y)
    main = threading.main_thread().ident

    def interrupt():
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    model.set_params(max_iter=10**6)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    thread.join()
    assert model.n_iter_ == len(model.loss_curve_) > 0
    again = FMClassifier(max_iter=model.n_iter_, n_jobs=2, **options).fit(X, y)
    assert_same_model(model, again)


@pytest.mark.parametrize("position", [0, 1])
def test_weights_that_are_not_numbers_are_a_divergence_though_the_loss_is_finite(position):
    # The last batch of an epoch can spoil the weights after its loss was taken.
    class Task:
        optimizer = SGD()
        remedy = "start elsewhere"

        def __init__(self):
            self.arrays = [np.ones(2), np.ones(2)]

        def run_epoch(self, epoch):
            self.arrays[position][1] = np.nan
            return 0.5

        def weights(self):
            return self.arrays

        state = weights

    model, task, trial = FMRegressor(), Task(), Attempt()
    model.loss_curve_ = model.validation_scores_ = np.zeros(0)
    loop = EpochLoop(model, task, Phase(3))
    with pytest.raises(DivergenceError, match="epoch 1.*largest weight nan"):
        loop.run(trial)
    assert_array_equal(np.concatenate(task.arrays), 1)
    assert loop.epoch == 0 and len(model.loss_curve_) == 0
    assert not trial.kept
