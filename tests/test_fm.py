"""FMClassifier and FMRegressor as a user of scikit-learn knows them."""

import pickle
import signal
import threading
import time
import warnings

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.exceptions import FitFailedWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from freqfm import DivergenceError, FMClassifier, FMRegressor
from freqfm.datasets import make_clicks
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Adam

FITTED = ("intercept_", "coef_", "factors_", "loss_curve_", "token_counts_", "n_iter_")


@parametrize_with_checks([FMClassifier(), FMRegressor()])
def test_sklearn_compatible(estimator, check):
    check(estimator)
    assert estimator is not None


@pytest.fixture(scope="module")
def log():
    return make_clicks(4000, (300, 100, 10), random_state=0)


def assert_same_model(one, other):
    for name in FITTED:
        assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


# What it learns


@pytest.mark.parametrize("optimizer", ["sgd", "fa_sgd", "cf_sgd", "adagrad", "rowwise_adagrad"])
def test_learns_xor(optimizer):
    # No linear model can: one of two tokens in each of two fields, positive where they differ.
    a, b = np.tile([0, 0, 1, 1], 250), np.tile([0, 1, 0, 1], 250)
    X = OneHotEncoder().fit_transform(np.column_stack([a, b]))
    model = FMClassifier(
        4, optimizer=optimizer, batch_size=50, init_scale=0.1, alpha_factors=0, random_state=0
    )
    if optimizer == "fa_sgd":
        model.set_params(learning_rate=1.0)
    assert model.fit(X, a ^ b).score(X, a ^ b) == 1.0


def test_planted_interactions_beat_the_linear_part():
    X, y, planted = make_clicks(30_000, (500, 200, 20), return_model=True, random_state=1)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = FMClassifier(random_state=0).fit(X_train, y_train)
    auc = roc_auc_score(y_test, model.decision_function(X_test))
    linear_auc = roc_auc_score(y_test, X_test @ planted.coef)
    assert auc > linear_auc + 0.05
    assert model.best_iter_ < model.n_iter_ < 100


def test_multiclass_is_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), FMClassifier(4, random_state=0))
    names = np.array(["setosa", "versicolor", "virginica"])
    model.fit(X, names[y])
    fm = model[-1]
    assert fm.factors_.shape == (3, 4, 4) and fm.coef_.shape == (3, 4)
    assert fm.intercept_.shape == (3,)
    assert model.score(X, names[y]) > 0.93
    probabilities = model.predict_proba(X)
    assert_allclose(probabilities.sum(axis=1), 1)
    assert_array_equal(names[probabilities.argmax(axis=1)], model.predict(X))
    assert_allclose(model.predict_log_proba(X), np.log(probabilities))
    # The first output is the binary problem "setosa or not", given that class's start.
    sigmoids = 1 / (1 + np.exp(-model.decision_function(X)))
    assert_allclose(probabilities, sigmoids / sigmoids.sum(axis=1, keepdims=True), rtol=1e-6)


def test_probabilities_survive_extreme_scores():
    X = np.eye(3)
    model = FMClassifier(1, random_state=0).fit(X, [0, 1, 2])
    model.coef_[:] = -1000
    assert_allclose(model.predict_proba(X), 1 / 3, atol=1e-3)


def test_regression_recovers_a_product():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 4))
    y = 1 + X[:, 0] + 2 * X[:, 1] * X[:, 2] + 0.01 * rng.standard_normal(2000)
    model = FMRegressor(4, batch_size=100, alpha_factors=0, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.99
    assert model.factors_[1] @ model.factors_[2] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("scale", [0.01, 1, 50])
def test_default_regressor_is_stable_on_data_of_any_scale(scale):
    X, y = make_regression(300, 10, n_informative=5, noise=1, random_state=0)
    model = FMRegressor(random_state=0).fit(scale * X, y)
    assert model.score(scale * X, y) > 0


def test_fit_linear_and_fit_intercept_off(log):
    X, y = log
    model = FMClassifier(fit_linear=False, fit_intercept=False, random_state=0).fit(X, y)
    assert not model.coef_.any() and not model.intercept_.any()
    assert model.factors_.any()


def test_intercept_starts_at_the_base_rate(log):
    X, y = log
    model = FMClassifier(optimizer=SGD(1e-9), max_iter=1, random_state=0).fit(X, y)
    assert model.intercept_[0] == pytest.approx(np.log(y.mean() / (1 - y.mean())), rel=1e-4)


def test_class_weight(log):
    X, y = log
    plain = FMClassifier(random_state=0).fit(X, y)
    balanced = FMClassifier(class_weight="balanced", random_state=0).fit(X, y)
    weight = np.where(y, len(y) / 2 / y.sum(), len(y) / 2 / (1 - y).sum())
    by_hand = FMClassifier(random_state=0).fit(X, y, sample_weight=weight)
    assert balanced.predict(X).mean() > plain.predict(X).mean() + 0.05
    assert_allclose(balanced.decision_function(X), by_hand.decision_function(X), atol=1e-5)


def test_token_counts(log):
    X, y = log
    held = np.bincount(X.indices, minlength=X.shape[1])
    model = FMClassifier(max_iter=3, random_state=0).fit(X, y)
    assert_array_equal(model.token_counts_, held)
    weighted = FMClassifier(max_iter=1, random_state=0).fit(X, y, np.full(len(y), 0.5))
    assert_array_equal(weighted.token_counts_, held / 2)
    model.partial_fit(X[:100], y[:100])
    assert_array_equal(
        model.token_counts_, held + np.bincount(X.indices[:300], minlength=X.shape[1])
    )


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
    FMClassifier(max_iter=2, random_state=0).fit(X, y)
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
    assert np.isfinite(model.predict(X)).all()
    kept = FMRegressor(optimizer=SGD(0.05), max_iter=epochs, **options).fit(X, y)
    assert_same_model(model, kept)


def test_divergence_in_the_first_epoch_keeps_the_start():
    X, y = make_regression(200, 5, random_state=0)
    model = FMRegressor(optimizer=SGD(1e30), batch_size=10, random_state=0)
    with pytest.raises(DivergenceError, match="epoch 1"):
        model.fit(X, y)
    assert model.n_iter_ == 0
    assert_allclose(model.predict(X), y.mean(), atol=0.1)


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
    model = FMClassifier(max_iter=50, verbose=1, **options)
    monkeypatch.setattr("sys.stdout", _Interrupting(3))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert model.n_iter_ == 3
    assert_same_model(model, FMClassifier(max_iter=3, **options).fit(X, y))


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_interrupt_within_an_epoch_leaves_the_last_whole_epoch(log, n_jobs):
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


# Living in scikit-learn


def test_pipeline_with_one_hot_encoder():
    rows = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "jam"]] * 20
    y = ["yes", "no", "no", "yes"] * 20
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), FMClassifier(random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(fmclassifier__init_scale=0.1, fmclassifier__max_iter=300).fit(rows, y)
        assert model.predict([["ann", "tea"], ["bob", "tea"]]).tolist() == ["yes", "no"]
        assert model.predict_proba([["eve", "tea"]]).shape == (1, 2)


@pytest.mark.parametrize("optimizer", ["cf_sgd", CFSGD()])
def test_grid_search_reaches_into_the_optimizer(log, optimizer):
    X, y = log
    grid = {"optimizer__learning_rate": [1e-6, 1.0], "n_components": [2]}
    model = FMClassifier(optimizer=optimizer, max_iter=5, random_state=0)
    search = GridSearchCV(model, grid, cv=2, scoring="roc_auc").fit(X, y)
    assert search.best_params_["optimizer__learning_rate"] == 1.0
    assert search.best_estimator_.optimizer == CFSGD(1.0) or isinstance(
        search.best_estimator_.optimizer, CFSGD
    )
    assert search.cv_results_["mean_test_score"][1] > search.cv_results_["mean_test_score"][0]
    assert model.optimizer is optimizer


def test_set_params_takes_an_axis_and_its_parameters_together():
    model = FMClassifier().set_params(optimizer="adam", optimizer__beta_1=0.5, init__scale=0.2)
    assert isinstance(model.optimizer, Adam) and model.optimizer.beta_1 == 0.5
    assert isinstance(model.init, Normal) and model.init.scale == 0.2
    assert model.set_params(optimizer="sgd").optimizer == "sgd"


def test_learning_rate_and_init_scale_reach_named_components(log):
    X, y = log
    short = FMClassifier(learning_rate=0.5, init_scale=0.2, max_iter=2, random_state=0)
    long = FMClassifier(optimizer=CFSGD(0.5), init=Normal(0.2), max_iter=2, random_state=0)
    assert_same_model(short.fit(X, y), long.fit(X, y))


def test_random_state_forms(log):
    X, y = log
    fit = lambda state: FMClassifier(max_iter=1, random_state=state).fit(X, y)  # noqa: E731
    assert_same_model(fit(3), fit(3))
    assert_same_model(fit(np.random.default_rng(3)), fit(np.random.default_rng(3)))
    assert_same_model(fit(np.random.RandomState(3)), fit(3))
    assert (fit(None).factors_ != fit(None).factors_).any()


def test_shuffle_changes_the_order_of_rows(log):
    X, y = log
    kept = FMClassifier(shuffle=False, max_iter=2, random_state=0).fit(X, y)
    mixed = FMClassifier(max_iter=2, random_state=0).fit(X, y)
    assert (kept.coef_ != mixed.coef_).any()


def test_memory_mapped_model_predicts_and_continues(log, tmp_path):
    X, y = log
    model = FMClassifier(max_iter=1, random_state=0).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    mapped = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    assert_array_equal(mapped.predict_proba(X), model.predict_proba(X))
    assert_array_equal(mapped.partial_fit(X, y).factors_, model.partial_fit(X, y).factors_)


@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_pickle_joblib_and_skops_round_trips(log, cls, tmp_path):
    skops = pytest.importorskip("skops.io")
    X, y = log
    model = cls(optimizer=CFSGD(0.7), max_iter=2, random_state=0).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    skops.dump(model, tmp_path / "model.skops")
    trusted = skops.get_untrusted_types(file=tmp_path / "model.skops")
    assert all(name.startswith("freqfm.") for name in trusted)
    copies = [
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
        skops.load(tmp_path / "model.skops", trusted=trusted),
    ]
    expected = clone(model).fit(X, y).partial_fit(X, y)
    for copy in copies:
        assert_array_equal(copy.predict(X), model.predict(X))
        assert_array_equal(copy.partial_fit(X, y).factors_, expected.factors_)


def test_sparse_formats_and_dense_agree(log):
    X, y = log
    reference = FMClassifier(max_iter=2, random_state=0).fit(X, y)
    for other in (X.tocsc(), X.tocoo(), sparse.csr_matrix(X), X.toarray(), X.astype(np.float64)):
        assert_same_model(FMClassifier(max_iter=2, random_state=0).fit(other, y), reference)


def test_callbacks_see_every_epoch_and_can_stop(log):
    pytest.importorskip("sklearn.callback")

    class Watch:
        def __init__(self):
            self.scores, self.events = [], []

        def setup(self, estimator, context):
            self.events.append("setup")

        def teardown(self, estimator, context):
            self.events.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            self.events.append(f"begin {context.task_name}")

        def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
            if context.task_name == "epoch":
                self.scores.append(roc_auc_score(y, fitted_estimator.decision_function(X)))
                return len(self.scores) == 3

    X, y = log
    watch = Watch()
    model = FMClassifier(max_iter=10, random_state=0).set_callbacks(watch).fit(X, y)
    assert model.n_iter_ == 3 and len(watch.scores) == 3
    assert watch.scores[0] < watch.scores[-1]
    assert watch.scores[-1] == pytest.approx(roc_auc_score(y, model.decision_function(X)))
    assert watch.events[0] == "setup" and watch.events[-1] == "teardown"
    assert watch.events.count("begin epoch") == 3
