"""FMClassifier and FMRegressor in the interface of scikit-learn."""

import pickle
import warnings

import joblib
import numpy as np
import pytest
from helpers import PENALTIES, assert_same_model, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_iris, make_regression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

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
from freqfm._sklearn import CALLBACK_ATTRIBUTES, CALLBACKS
from freqfm.datasets import make_clicks
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, SGD, Adam

SMALL = {"n_components": 3, "max_iter": 10, **PENALTIES}
DEEP = {"hidden_layer_sizes": (8,), **SMALL}
LONG = [
    RaFMRegressor(max_iter=20),
    RaFMClassifier(rank_sharing="truncate", early_stopping=False, max_iter=10),
    RaFMClassifier(max_iter=20, **PENALTIES),
    *(cls(**SMALL) for cls in (FFMClassifier, FFMRegressor, FwFMClassifier, FwFMRegressor)),
    *(cls(**DEEP) for cls in (DeepFMClassifier, DeepFMRegressor)),
    *(cls(**PENALTIES) for cls in (NFMClassifier, NFMRegressor)),
]


@pytest.mark.parametrize(
    "estimator",
    [
        FMRegressor(max_iter=20, **PENALTIES),
        *slow_params([FMClassifier(max_iter=20), *LONG]),
    ],
    ids=repr,
)
def test_sklearn_compatible(estimator):
    checks = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
    reason = "dropout draws for every row, also for a repeated one; see test_dense_weights.py"
    failing = dict.fromkeys(checks, reason) if getattr(estimator, "dropout", 0) else {}
    check_estimator(estimator, on_skip=None, expected_failed_checks=failing)


# What it learns


@pytest.mark.parametrize(
    "optimizer", ["cf_sgd", *slow_params(["sgd", "fa_sgd", "adagrad", "rowwise_adagrad"])]
)
def test_learns_xor(optimizer):
    # No linear model can: one of two tokens in each of two fields, positive where they differ.
    a, b = np.tile([0, 0, 1, 1], 250), np.tile([0, 1, 0, 1], 250)
    X = OneHotEncoder().fit_transform(np.column_stack([a, b]))
    model = FMClassifier(
        4,
        optimizer=optimizer,
        batch_size=50,
        init=Normal(0.1),
        alpha_linear=0,
        alpha_factors=0,
        random_state=0,
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


def test_probabilities_of_two_classes_keep_their_tails():
    X = np.eye(5)
    model = FMClassifier(1, random_state=0, early_stopping=False).fit(X, [0, 1, 0, 1, 0])
    model.intercept_[:] = 0
    model.coef_[:] = [-1000, -60, 0.5, 60, 1000]
    scores = model.coef_.astype(np.float64)
    expected = np.column_stack([expit(-scores), expit(scores)])
    assert_allclose(model.predict_proba(X), expected, rtol=1e-15)


def test_regression_recovers_a_product():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 4))
    y = 1 + X[:, 0] + 2 * X[:, 1] * X[:, 2] + 0.01 * rng.standard_normal(2000)
    model = FMRegressor(4, batch_size=100, alpha_linear=0, alpha_factors=0, random_state=0).fit(
        X, y
    )
    assert model.score(X, y) > 0.99
    assert model.factors_[1] @ model.factors_[2] == pytest.approx(2, abs=0.1)


@pytest.mark.slow
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
    options = {"random_state": 0, **PENALTIES}
    plain = FMClassifier(**options).fit(X, y)
    balanced = FMClassifier(class_weight="balanced", **options).fit(X, y)
    weight = np.where(y, len(y) / 2 / y.sum(), len(y) / 2 / (1 - y).sum())
    by_hand = FMClassifier(**options).fit(X, y, sample_weight=weight)
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


# With scikit-learn's tools


def test_pipeline_with_one_hot_encoder():
    rows = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "jam"]] * 20
    y = ["yes", "no", "no", "yes"] * 20
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), FMClassifier(random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(fmclassifier__init__scale=0.1, fmclassifier__max_iter=300).fit(rows, y)
        assert model.predict([["ann", "tea"], ["bob", "tea"]]).tolist() == ["yes", "no"]
        assert model.predict_proba([["eve", "tea"]]).shape == (1, 2)


@pytest.mark.parametrize("optimizer", ["cf_sgd", *slow_params([CFSGD()])])
def test_grid_search_reaches_into_the_optimizer(log, optimizer):
    X, y = log
    grid = {"optimizer__learning_rate": [1e-6, 1.0], "n_components": [2]}
    model = FMClassifier(optimizer=optimizer, max_iter=5, random_state=0)
    search = GridSearchCV(model, grid, cv=2, scoring="roc_auc").fit(X, y)
    assert search.best_params_["optimizer__learning_rate"] == 1.0
    best = search.best_estimator_.optimizer
    assert isinstance(best, CFSGD) and best.learning_rate == 1.0
    assert search.cv_results_["mean_test_score"][1] > search.cv_results_["mean_test_score"][0]
    assert model.optimizer is optimizer


def test_set_params_takes_an_axis_and_its_parameters_together():
    model = FMClassifier().set_params(optimizer="adam", optimizer__beta_1=0.5, init__scale=0.2)
    assert isinstance(model.optimizer, Adam) and model.optimizer.beta_1 == 0.5
    assert isinstance(model.init, Normal) and model.init.scale == 0.2
    assert model.set_params(optimizer="sgd").optimizer == "sgd"


def test_learning_rate_reaches_named_components(log):
    X, y = log
    short = FMClassifier(learning_rate=0.5, max_iter=2, random_state=0)
    long = FMClassifier(optimizer=CFSGD(0.5), max_iter=2, random_state=0)
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


@pytest.mark.parametrize("cls", [FMClassifier, *slow_params([FMRegressor])])
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


def test_outputs_are_of_double_precision(clicks):
    X, y = clicks
    regressor, classifier = FMRegressor(max_iter=1).fit(X, y), FMClassifier(max_iter=1).fit(X, y)
    assert regressor.predict(X).dtype == np.float64
    assert classifier.decision_function(X).dtype == classifier.predict_proba(X).dtype == np.float64


def test_sparse_formats_and_dense_agree(log):
    X, y = log
    reference = FMClassifier(max_iter=2, random_state=0).fit(X, y)
    for other in (X.tocsc(), X.tocoo(), sparse.csr_matrix(X), X.toarray(), X.astype(np.float64)):
        assert_same_model(FMClassifier(max_iter=2, random_state=0).fit(other, y), reference)


def test_callbacks_see_every_epoch_and_can_stop(log):
    pytest.importorskip("sklearn.callback")

    class Watch:
        def __init__(self):
            self.scores, self.events, self.names = [], [], set()

        def setup(self, estimator, context):
            self.events.append("setup")

        def teardown(self, estimator, context):
            self.events.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            self.events.append(f"begin {context.task_name}")
            self.names |= vars(estimator).keys()

        def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
            if context.task_name == "epoch":
                self.scores.append(roc_auc_score(y, fitted_estimator.decision_function(X)))
                return len(self.scores) == 3

    X, y = log
    watch = Watch()
    model = FMClassifier(max_iter=10, early_stopping=False, random_state=0)
    model.set_callbacks(watch).fit(X, y)
    assert model.n_iter_ == 3 and len(watch.scores) == 3
    assert watch.scores[0] < watch.scores[-1]
    assert watch.scores[-1] == pytest.approx(roc_auc_score(y, model.decision_function(X)))
    assert watch.events[0] == "setup" and watch.events[-1] == "teardown"
    assert watch.events.count("begin epoch") == 3
    # The attributes by which scikit-learn keeps callbacks are all known.
    found = {name for name in watch.names if "callback" in name}
    assert found < set(CALLBACK_ATTRIBUTES) and len(found) == len(CALLBACK_ATTRIBUTES) - 1
    assert vars(model).keys() & set(CALLBACK_ATTRIBUTES) == {CALLBACKS}


def test_callbacks_get_the_rows_that_are_trained_on(log):
    pytest.importorskip("sklearn.callback")
    given = []

    class Watch:
        def setup(self, estimator, context):
            pass

        teardown = setup

        def on_fit_task_begin(self, estimator, context, *, X, y):
            given[:] = X, y

        def on_fit_task_end(self, estimator, context):
            pass

    X, y = log
    weight = np.r_[np.zeros(100), np.ones(len(y) - 100)]
    options = {"max_iter": 1, "warm_start": True, "validation_fraction": 0.25, "random_state": 0}
    model = FMClassifier(**options)
    model.set_callbacks(Watch()).fit(X, y, weight)
    train, _ = train_test_split(
        np.arange(100, len(y)), test_size=0.25, stratify=y[100:], random_state=model._seed
    )
    assert_array_equal(given[0].toarray(), X[train].toarray())
    assert_array_equal(given[1], y[train])


@pytest.mark.parametrize("y", [["a", 1, "b", 2], [1, "a", 2, "b"], [b"a", "b", "a", "b"]])
def test_targets_of_several_types(y):
    X, y = np.eye(4), np.array(y, dtype=object)
    classifier, regressor = FMClassifier(max_iter=1), FMRegressor(max_iter=1)
    for fit in (
        lambda: classifier.fit(X, y),
        lambda: clone(classifier).partial_fit(X, y, classes=["a", "b"]),
    ):
        with pytest.raises(TypeError, match=r"y holds values of the types .*str.*; convert th"):
            fit()
    with pytest.raises(TypeError, match=r"classes holds values of the types"):
        classifier.partial_fit(X, [1, 2, 1, 2], classes=y)
    with pytest.raises(ValueError, match=r"y must hold numbers, one for each row of X \(could not"):
        regressor.fit(X, y)
    with pytest.raises(ValueError, match="y holds None at row 1"):
        classifier.fit(X, np.array(["a", None, "b", "a"], dtype=object))
    with pytest.raises(ValueError, match="y contains NaN"):
        regressor.fit(X, np.array(["1", "nan", "2", "3"]))
    numbers = regressor.fit(X, [1.5, -1, 2, 3]).predict(X)
    assert_array_equal(regressor.fit(X, ["1.5", "-1", "2", "3"]).predict(X), numbers)
