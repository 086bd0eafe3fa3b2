"""Training that is continued, stops, diverges or is interrupted: nothing is lost."""

import signal
import threading
import time
import warnings

import numpy as np
import pytest
from helpers import (
    BOTH,
    FITTED,
    PENALTIES,
    assert_same_model,
    classes_of,
    model_of,
    outputs,
    penalties_of,
    slow_params,
)
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, r2_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder

from freqfm import (
    DivergenceError,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    MFRecommender,
    RaFMClassifier,
)
from freqfm.datasets import RowStream, make_clicks, make_interactions
from freqfm.estimators.training import Attempt, EpochLoop, Phase, TrainingTask
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD

# Continuing


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_five_fits_of_two_epochs_equal_ten_fits_of_one(log, optimizer):
    X, y = log
    options = {"optimizer": optimizer, "n_iter_no_change": None, "random_state": 0}
    options["early_stopping"] = False
    once, warm = (FMClassifier(max_iter=n, warm_start=True, **options) for n in (2, 1))
    for _ in range(5):
        once.fit(X, y)
        warm.fit(X, y).fit(X, y)
    assert_same_model(warm, once)
    for state, expected in zip(warm._optimizer_state, once._optimizer_state, strict=True):
        for name in expected:
            assert_array_equal(state[name], expected[name])


@pytest.mark.parametrize(
    "cls, optimizer", [(FMRegressor, "cf_sgd"), *((FMClassifier, name) for name in OPTIMIZERS)]
)
def test_epochs_of_warm_starts_equal_calls_of_partial_fit(log, cls, optimizer):
    X, y = log
    # A penalty per token depends on how many rows have held it, which four calls count four times.
    options = {"alpha_per": "row", "alpha_factors": 0.01, "optimizer": optimizer, "random_state": 0}
    once = cls(max_iter=2, early_stopping=False, warm_start=True, **options).fit(X, y).fit(X, y)
    part = cls(**options)
    for _ in range(4):
        part.partial_fit(X, y, **classes_of(cls))
    assert_array_equal(part.token_counts_, 4 * once.token_counts_)
    for name in FITTED:
        if name != "token_counts_":
            assert_array_equal(getattr(part, name), getattr(once, name), err_msg=name)
    for state, expected in zip(part._optimizer_state, once._optimizer_state, strict=True):
        for name in expected:
            assert_array_equal(state[name], expected[name])


def test_rows_are_divided_evenly_into_batches(log):
    X, y = (part[:33] for part in log)
    options = {"max_iter": 3, "early_stopping": False, "random_state": 0}
    even, *others = (
        FMClassifier(batch_size=size, **options).fit(X, y) for size in (17, 20, 32, 16)
    )
    # 20 and 32 rows at most are two batches of 17 and 16 as well, 16 at most are three.
    assert_same_model(others[0], even)
    assert_same_model(others[1], even)
    assert (others[2].factors_ != even.factors_).any()


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


@pytest.mark.parametrize("warm_start", [True, False])
def test_early_stopping_finds_the_best_epoch_and_then_trains_on_all_rows(
    log, warm_start, at_full_rates
):
    X, y = log
    options = {"optimizer": "adagrad", "learning_rate": 0.3, "random_state": 0}
    model = FMClassifier(validation_fraction=0.25, warm_start=warm_start, **options).fit(X, y)
    scores = model.validation_scores_
    assert len(scores) == len(model.loss_curve_) == model.n_iter_ < 100
    assert model.best_iter_ == scores.argmax() + 1 < model.n_iter_
    if warm_start:
        # The rows held out stay unseen.
        train, held_out = train_test_split(
            np.arange(len(y)), test_size=0.25, stratify=y, random_state=model._seed
        )
        restored = log_loss(y[held_out], model.predict_proba(X[held_out]))
        assert restored == pytest.approx(-scores.max(), abs=1e-6)
        X, y = X[train], y[train]
    options |= {"max_iter": model.best_iter_, "early_stopping": False, "n_iter_no_change": None}
    expected = FMClassifier(**options).fit(X, y)
    for name in ("intercept_", "coef_", "factors_", "token_counts_"):
        assert_array_equal(getattr(model, name), getattr(expected, name), err_msg=name)


def test_early_stopping_auto_depends_on_the_number_of_rows():
    X, y = make_clicks(300, (30, 20), random_state=0)
    assert len(FMClassifier(max_iter=2).fit(X, y).validation_scores_) == 2
    assert len(FMClassifier(max_iter=2).fit(X[1:], y[1:]).validation_scores_) == 0
    assert len(FMRegressor(max_iter=2).fit(X, y).validation_scores_) == 2
    rare = np.arange(300) < 5
    assert len(FMClassifier(max_iter=2).fit(X, rare).validation_scores_) == 0


@pytest.mark.parametrize("n, held_out", [(600, [60] * 10), (4000, [800] * 5), (10_000, [1000])])
def test_fewer_than_10_000_rows_are_cross_validated(n, held_out, monkeypatch):
    seen = []
    monkeypatch.setattr(
        FMRegressor, "_validation_score", lambda self, t, s, w: seen.append(len(w)) or 0.0
    )
    model = FMRegressor(max_iter=1, alpha_linear=1, alpha_factors=5)
    model.fit(np.random.default_rng(0).random((n, 2)), np.arange(n) / n)
    assert seen == 2 * held_out  # the model's scores, and those of a constant


@pytest.mark.parametrize("cls, options", [(FMClassifier, {}), (RaFMClassifier, {"ranks": (2, 4)})])
def test_scores_of_small_data_are_means_over_folds(cls, options, log):
    X, y = log
    options = {"max_iter": 3, "n_iter_no_change": None, "random_state": 0, **options}
    model = cls(**options).fit(X, y)
    scores, losses = [], []
    folds = StratifiedKFold(5, shuffle=True, random_state=model._seed)
    for train, held_out in folds.split(X, y):
        fold = cls(early_stopping=False, **options, **penalties_of(model)).fit(X[train], y[train])
        scores.append(-log_loss(y[held_out], fold.predict_proba(X[held_out])))
        losses.append(fold.loss_curve_)
    assert_allclose(model.validation_scores_[-1], np.mean(scores), rtol=1e-6)
    assert_allclose(model.loss_curve_, np.mean(losses, axis=0), rtol=1e-6)


def test_patience_is_in_steps_where_epochs_are_short():
    X = np.random.default_rng(0).random((3000, 2))
    y = np.random.default_rng(1).random(3000)
    options = {"max_iter": 70, "tol": 10.0, "random_state": 0}
    options |= {"alpha_linear": 1, "alpha_factors": 5}
    for batch_size, n_epochs in ((10_000, 51), (1000, 18), (100, 11)):
        assert FMRegressor(batch_size=batch_size, **options).fit(X, y).n_iter_ == n_epochs
    assert FMRegressor(n_iter_no_change=3, **options).fit(X, y).n_iter_ == 4


def test_multiclass_early_stopping_watches_the_log_loss(log):
    X, clicked = log
    y = clicked * (1 + np.arange(len(clicked)) % 2)
    model = FMClassifier(max_iter=3).fit(X[:300], y[:300], X_val=X[300:900], y_val=y[300:900])
    loss = log_loss(y[300:900], model.predict_proba(X[300:900]), labels=model.classes_)
    assert model.validation_scores_.max() == pytest.approx(-loss, rel=1e-5)


def test_targets_that_are_constant_where_held_out_still_stop_early():
    X = np.random.default_rng(0).random((400, 2))
    model = FMRegressor(max_iter=30, random_state=0)
    model.fit(X, 1 - X[:, 0], X_val=np.zeros((1, 2)), y_val=[1.0])
    assert model.best_iter_ > 1 and model.validation_scores_[0] < model.validation_scores_[-1] < 1


def test_a_refit_that_is_interrupted_leaves_the_best_epoch(log, monkeypatch):
    X, y = log
    options = {"max_iter": 8, "validation_fraction": 0.2, "random_state": 0}
    options |= {"alpha_linear": 1, "alpha_factors": 5}
    expected = FMClassifier(warm_start=True, **options).fit(X, y)
    model = FMClassifier(verbose=1, **options)
    # Three lines of what comes before, eight epochs, two lines between (interactions do not help),
    # and two epochs of the refit.
    monkeypatch.setattr("sys.stdout", _Interrupting(15))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert_same_model(model, expected)


def test_a_fit_that_max_iter_ends_too_early_warns_at_the_users_line(log):
    X, y = log
    params = {"max_iter": 2, "random_state": 0}
    for model in (FMClassifier(**params), FMClassifier(**params, early_stopping=False)):
        with pytest.warns(ConvergenceWarning, match="max_iter=2.*still improved") as record:
            model.fit(X, y)
        assert record[0].filename == __file__
    with pytest.warns(ConvergenceWarning) as record:
        make_pipeline(MaxAbsScaler(), FMClassifier(**params)).fit(X, y)
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (FMClassifier(), {"early_stopping": False, "n_iter_no_change": None}),
        (FMClassifier(early_stopping=False), {"n_iter_no_change": None}),
        (MFRecommender(early_stopping=True), {"early_stopping": False, "n_iter_no_change": None}),
        (
            FastVAERecommender(early_stopping=True),
            {"early_stopping": False, "n_iter_no_change": None},
        ),
    ],
)
def test_what_that_warning_advises_trains_exactly_max_iter_epochs(log, recwarn, model, settings):
    model = clone(model).set_params(max_iter=2, random_state=0)
    histories = make_interactions(60, 40, 600, random_state=0)
    data = log if isinstance(model, FMClassifier) else [histories]
    named = " and ".join(f"{name}={value}" for name, value in settings.items())
    with pytest.warns(ConvergenceWarning, match=f"still improved.*or set {named} to train"):
        model.fit(*data)
    model.set_params(**settings).fit(*data)
    assert model.n_iter_ == model.best_iter_ == 2
    assert not [w for w in recwarn if w.category is ConvergenceWarning]


@pytest.mark.parametrize("score_name", ["neg_log_loss", None])
def test_a_fit_whose_last_epoch_no_longer_improved_does_not_warn(score_name):
    worse, better = (0.42131, 0.41951, 0.41964), (0.42131, 0.41964, 0.41951)
    within_tol = (0.42131, 0.41955, 0.41951)
    for losses, warns in ((worse, 0), (within_tol, 0), (better, 1)):

        class Task(TrainingTask):
            def run_epoch(self, epoch, losses=losses):
                self.loss = losses[epoch]
                return self.loss

            def validation_score(self):
                return -self.loss

            def weights(self):
                return [np.zeros(1)]

            state = weights

        model = FMClassifier(max_iter=3)
        model.loss_curve_ = model.validation_scores_ = np.zeros(0)
        loop = EpochLoop(model, Task(), Phase(3, 10, score_name))
        loop.run(Attempt())
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            loop.warn_if_improving()
        assert [w.category for w in record] == [ConvergenceWarning] * warns, losses


def test_a_search_warns_as_often_as_the_filter_says(log):
    # Each fit of a search sets filters, after which Python alone would show its warning again.
    X, y = log[0][:200], log[1][:200]
    search = GridSearchCV(FMRegressor(max_iter=2, random_state=0), {"alpha_factors": [1, 2]}, cv=3)
    for action, n_warnings in (("always", 7), ("default", 1), ("always", 7), ("ignore", 0)):
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter(action)
            search.fit(X, y)
        assert [w.category for w in record] == [ConvergenceWarning] * n_warnings, action


def test_no_warning_if_all_epochs_were_requested(log, recwarn):
    X, y = log
    FMClassifier().fit(X, y)
    FMClassifier(max_iter=2, n_iter_no_change=None).fit(X, y)
    FMClassifier(max_iter=2, warm_start=True).fit(X, y)
    FMClassifier().partial_fit(X, y, classes=[0, 1])
    MFRecommender(max_iter=2).fit(make_interactions(60, 40, 600, random_state=0))
    assert not [w for w in recwarn if w.category is ConvergenceWarning]


# A validation set that the user gives


@BOTH
def test_given_validation_set_is_watched_and_not_trained_on(log, cls, at_full_rates):
    X, y = log
    fields = (
        {"fields": np.repeat([0, 1, 2], [300, 100, 10])} if cls.__name__[:2] in ("FF", "Fw") else {}
    )
    model = model_of(cls, max_iter=5, **fields)
    model.fit(X[:2000], y[:2000], X_val=X[2000:], y_val=y[2000:])
    assert len(model.validation_scores_) == 5
    options = {"early_stopping": False, "max_iter": model.best_iter_, **fields}
    options |= penalties_of(model)
    expected = model_of(cls, **options).fit(X[:2000], y[:2000])
    assert_array_equal(outputs(model, X)[0], outputs(expected, X)[0])
    if hasattr(model, "predict_proba"):
        loss = log_loss(y[2000:], model.predict_proba(X[2000:]))
    else:
        loss = -r2_score(y[2000:], model.predict(X[2000:]))
    assert model.validation_scores_.max() == pytest.approx(-loss, rel=1e-4)


@pytest.mark.parametrize("n_classes", [2, *slow_params([3])])
def test_rows_of_weight_zero_are_no_rows(n_classes):
    # Enough rows for shuffling by blocks.
    X, y = make_clicks(30_000, (40, 10), random_state=0)
    y = y if n_classes == 2 else y + np.arange(len(y)) % 2
    weight = np.random.default_rng(0).integers(0, 3, len(y)) / 2
    kept = np.flatnonzero(weight)
    for options in ({"early_stopping": False}, {"class_weight": "balanced"}):
        model = FMClassifier(2, max_iter=2, n_iter_no_change=None, random_state=0, **options)
        some = clone(model).fit(X[kept], y[kept], weight[kept])
        assert_same_model(model.fit(X, y, weight), some)


def test_rows_of_unequal_weights_shorten_the_first_steps():
    rng = np.random.default_rng(1)
    ids = np.column_stack([rng.zipf(1.3, 20_000) % 2000, rng.zipf(1.3, 20_000) % 300])
    score = 0.4 * rng.normal(size=2000)[ids[:, 0]] + 0.6 * rng.normal(size=300)[ids[:, 1]]
    rare = (rng.random(len(ids)) < 1 / (1 + np.exp(4 - score))).astype(int)
    X, test, y, y_test = train_test_split(OneHotEncoder().fit_transform(ids), rare, random_state=0)
    ours, theirs = (
        roc_auc_score(y_test, model.fit(X, y).decision_function(test))
        for model in (
            FMClassifier(4, class_weight="balanced", random_state=0),
            LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000),
        )
    )
    assert ours > theirs

    weight = 1.0 + 7 * y
    spread = np.mean(weight**2) / np.mean(weight) ** 2
    options = {"max_iter": 2, "early_stopping": False, "random_state": 0}
    even = 1.0 + 2 * y  # a row of weight 3 is three rows
    for weights, bound in ((weight, 0.05 / (spread / 1.5)), (even, 0.05)):
        given = FMClassifier(4, optimizer=CFSGD(max_step=bound), **options).fit(X, y, weights)
        assert_same_model(FMClassifier(4, **options).fit(X, y, weights), given)
        # As do those of a stream.
        halves = (slice(None, 7000), slice(7000, None))
        chunks = [(X[half], y[half], weights[half]) for half in halves]
        stream = RowStream(lambda chunks=chunks: iter(chunks))
        assert_same_model(
            FMClassifier(4, **options).fit(stream),
            FMClassifier(4, optimizer=CFSGD(max_step=bound), **options).fit(stream),
        )


def test_given_validation_set_equals_the_same_split(log):
    X, y = log
    weight = np.random.default_rng(0).random(len(y)) + 0.5
    options = {"max_iter": 20, "random_state": 0, "class_weight": "balanced", "warm_start": True}
    split = FMClassifier(validation_fraction=0.25, **options).fit(X, y, weight)
    a, b = train_test_split(np.arange(len(y)), test_size=0.25, stratify=y, random_state=split._seed)
    given = FMClassifier(**{**options, "class_weight": None})
    totals = np.bincount(y, weight)
    weight *= (totals.mean() / totals)[y]
    given.fit(X[a], y[a], weight[a], X_val=X[b], y_val=y[b], sample_weight_val=weight[b])
    assert_same_model(given, split)
    assert_array_equal(given.validation_scores_, split.validation_scores_)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"X_val": np.eye(3)}, "X_val, but no y_val"),
        ({"y_val": [0, 1]}, "y_val, but no X_val"),
        ({"sample_weight_val": [0, 1]}, "but no X_val"),
        ({"X_val": np.eye(2), "y_val": [0, 1]}, "X_val, y_val.*2 features"),
        ({"X_val": np.eye(3), "y_val": [0, 1]}, "X_val, y_val.*inconsistent"),
        ({"X_val": np.eye(3), "y_val": [0, 1, 2]}, "X_val, y_val.*y holds"),
        ({"X_val": np.eye(3), "y_val": [0, 1, 1], "early_stopping": False}, "early_stopping=False"),
    ],
)
def test_bad_validation_sets(given, words):
    early_stopping = given.get("early_stopping", "auto")
    given = {name: value for name, value in given.items() if name != "early_stopping"}
    model = FMClassifier(early_stopping=early_stopping)
    with pytest.raises(ValueError, match=words):
        model.fit(np.eye(3), [0, 1, 1], **given)
    with pytest.raises(NotFittedError):
        model.predict(np.eye(3))


def test_given_validation_set_goes_through_a_pipeline():
    rng = np.random.default_rng(0)
    rows = rng.integers(5, size=(600, 3)).astype(str)
    y = (rows[:, 0] == rows[:, 1]).astype(int)
    train, later = slice(400), slice(400, None)
    with config_context(enable_metadata_routing=True):
        model = FMClassifier(max_iter=5, random_state=0).set_fit_request(X_val=True, y_val=True)
        pipeline = Pipeline([("onehot", OneHotEncoder()), ("fm", model)], transform_input=["X_val"])
        pipeline.fit(rows[train], y[train], X_val=rows[later], y_val=y[later])
    expected = FMClassifier(max_iter=5, random_state=0).fit(
        pipeline[0].transform(rows[train]),
        y[train],
        X_val=pipeline[0].transform(rows[later]),
        y_val=y[later],
    )
    assert_same_model(pipeline[-1], expected)


def test_early_stopping_needs_every_class_on_both_sides():
    X, y = np.eye(40), np.r_[1, 1, np.zeros(38, int)]
    with pytest.raises(ValueError, match="early_stopping=True.*rarest class has 2 of 40"):
        FMClassifier(early_stopping=True).fit(X, y)


def test_stops_when_the_loss_stops_falling(log):
    X, y = log
    given = {"alpha_linear": 1, "alpha_factors": 5}
    model = FMClassifier(tol=10.0, n_iter_no_change=3, random_state=0, **given).fit(X, y)
    assert model.n_iter_ == 4
    assert FMClassifier(max_iter=7, n_iter_no_change=None).fit(X, y).n_iter_ == 7


def test_verbose(log, capsys):
    X, y = log
    FMClassifier(max_iter=2, early_stopping=True, random_state=0).fit(X, y)
    assert capsys.readouterr().out == ""
    FMClassifier(max_iter=2, early_stopping=True, verbose=1, random_state=0).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    # Two epochs with each of three pairs of penalties, and of the fit to all rows.
    assert lines[-11] == "trying alpha_linear=0.3, alpha_factors=25"
    assert lines[-5].startswith("chosen by validation: alpha_linear=")
    assert lines[-4].endswith("the model is linear in effect")
    assert lines[-3] == "fitting all data for 2 epochs"
    for word in ("epoch   2/2", "loss 0.", "validation neg_log_loss -0.", "s left"):
        assert word in lines[-12]
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


def test_divergence_says_what_happened_and_keeps_the_last_finite_model(at_full_rates):
    X, y = make_regression(200, 5, random_state=0)
    options = {"early_stopping": False, "random_state": 0, "init": Normal(0.1)}
    model = FMRegressor(optimizer=SGD(0.05), max_iter=50, **options)
    with pytest.raises(DivergenceError) as error:
        model.fit(X, y)
    epochs = model.n_iter_
    assert epochs > 0
    for part in (f"epoch {epochs + 1}", "learning rate 0.05", "largest weight", "0.005"):
        assert part in str(error.value)
    assert "scale the features" in str(error.value)
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

    def flush(self):
        """Nothing is kept back."""


def test_interrupt_between_epochs_keeps_the_last_complete_epoch(log, monkeypatch):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    expected = FMClassifier(max_iter=3, **options).fit(X, y)
    model = FMClassifier(max_iter=50, verbose=1, **options)
    # Two lines of what comes before, and three epochs.
    monkeypatch.setattr("sys.stdout", _Interrupting(5))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert model.n_iter_ == 3
    assert_same_model(model, expected)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_interrupt_within_an_epoch_keeps_the_last_complete_epoch(
    log, n_jobs, ctrl_c, at_full_rates
):
    X, y = log
    options = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    model = FMClassifier(max_iter=1, n_jobs=n_jobs, **options).fit(X, y)
    main = threading.main_thread().ident

    def interrupt():
        time.sleep(0.05)
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
    class Task(TrainingTask):
        optimizer = SGD(1.0)
        divergence_hint = "start elsewhere"

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


@pytest.mark.parametrize("cls", [FMClassifier, RaFMClassifier])
@pytest.mark.parametrize("name", ["alpha_linear", "alpha_factors"])
def test_strong_penalties_shrink_the_model_to_the_base_rate(cls, name):
    X, y = make_clicks(2250, (30, 20, 10), random_state=0)
    params = {"random_state": 0, "optimizer": "cf_sgd", "early_stopping": False, "max_iter": 20}
    model = cls(**params, **{name: 1000.0}).fit(X[:250], y[:250])
    constant = log_loss(y[250:], np.full(2000, y[:250].mean()))
    assert log_loss(y[250:], model.predict_proba(X[250:])) < constant + 0.02
    tables = [model.coef_] if name == "alpha_linear" else model.factors_
    assert max(np.abs(table).max() for table in tables if len(table)) < 0.05


@pytest.mark.parametrize("n_rows", [100, 250, *slow_params([1000])])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_default_rates_suit_squared_errors(optimizer, n_rows):
    X, y = make_clicks(n_rows + 1000, (30, 20, 10), random_state=0)
    y = y + 0.3 * np.random.default_rng(0).normal(size=len(y))
    model = FMRegressor(optimizer=optimizer, random_state=0, max_iter=30, **PENALTIES)
    assert model.fit(X[:n_rows], y[:n_rows]).score(X[n_rows:], y[n_rows:]) > -0.4


def test_a_rising_loss_is_announced():
    X, y = make_clicks(100, (30, 20), random_state=0)
    model = FMRegressor(optimizer=SGD(2.05), max_iter=14, n_iter_no_change=None, random_state=0)
    with pytest.warns(ConvergenceWarning, match="training loss has risen from 0.10"):
        model.fit(X, y)


def test_unscaled_columns_are_announced(log):
    X, y = log
    rng = np.random.default_rng(0)
    times = sparse.csr_array(1.6e9 + rng.integers(0, 10**6, (len(y), 1)))
    wide = sparse.hstack([X, times], format="csr")
    model = FMClassifier(max_iter=1, n_iter_no_change=None, early_stopping=False)
    with pytest.warns(
        UserWarning, match=r"1 column\(s\) .* such as column 410 with .* of 1.6e\+09"
    ):
        model.fit(wide, y)
    with pytest.warns(UserWarning, match="such as column 410 with"):
        model.fit(RowStream.from_csr(wide, y))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": rng.random(60), "age": rng.integers(18, 80, 60)})
    with pytest.warns(UserWarning, match="such as column 'age'"):
        model.fit(frame, y[:60])


@pytest.mark.parametrize("weight", [0.004, 0.5])
@pytest.mark.parametrize("optimizer", ["cf_sgd", "adam"])
def test_small_weights_are_warned_of(weight, optimizer):
    X = sparse.csr_array(sparse.random(50, 8, 0.4, format="csr", random_state=0))
    weights = np.where(np.arange(50) % 5, weight, 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        FMClassifier(2, max_iter=1, optimizer=optimizer, early_stopping=False).fit(
            X, np.arange(50) % 2, sample_weight=weights
        )
    expected = weight < 0.1 and optimizer == "cf_sgd"
    assert any("weights of 0.004 on average" in str(one.message) for one in told) == expected
