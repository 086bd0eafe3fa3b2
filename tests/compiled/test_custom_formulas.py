"""Training with custom formulas, and with losses of the package that are compiled likewise."""

import math
import pickle
import types
import warnings

import numpy as np
import pytest
from custom_components import (
    CustomAdagrad,
    CustomAdam,
    CustomBPR,
    CustomFASGD,
    CustomLogLoss,
    CustomSquaredError,
    Hinge,
    HingeOfPairs,
    Momentum,
)
from helpers import each, slow_params
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from sklearn.base import clone

from freqfm import (
    DivergenceError,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    MFRecommender,
    NFMRegressor,
    RaFMClassifier,
    RaFMRegressor,
    backends,
)
from freqfm._numba.code_cache import Fingerprint, names_used
from freqfm._numba.jit import JIT_DISABLED, python_function, specialised
from freqfm.backbones import Features
from freqfm.backends.cpu.fm.plain import fm_score, fm_train
from freqfm.backends.cpu.ranking.fold_in import OF_PAIRS, fold_in_rows
from freqfm.backends.cpu.ranking.softmax import SURROGATES, softmax_train
from freqfm.datasets import RowStream, make_interactions
from freqfm.estimators.fm.base import watched_score
from freqfm.estimators.fm.targets import base_score, expect, mean_loss, warn_of_spread
from freqfm.initializers import Normal
from freqfm.losses import (
    CCL,
    LOSSES,
    PSL,
    RANKING_LOSSES,
    Huber,
    LogLoss,
    Loss,
    PairwiseLoss,
    Poisson,
    Quantile,
    SLatK,
    Softmax,
    SquaredError,
)
from freqfm.optimizers import FASGD, Adagrad, Adam
from freqfm.samplers import Popularity, Uniform

rng = np.random.default_rng(0)
X = rng.standard_normal((80, 3)).astype(np.float32)
SCORE = X[:, 0] - X[:, 1] * X[:, 2]
CLASSES = (SCORE > 0).astype(int)
INTERACTIONS = make_interactions(40, 20, 300, random_state=0)
COMMON = {
    "alpha_factors": 0.01,
    "alpha_linear": 0.01,
    "batch_size": 20,
    "early_stopping": False,
    "max_iter": 5,
    "random_state": 0,
}


def regressor(cls=FMRegressor, **params):
    size = {"ranks": (1, 2)} if cls is RaFMRegressor else {"n_components": 2}
    return cls(**{**COMMON, **size, **params})


def classifier(cls=FMClassifier, **params):
    size = {"ranks": (1, 2)} if cls is RaFMClassifier else {"n_components": 2}
    return cls(**{**COMMON, **size, **params})


def recommender(cls=MFRecommender, **params):
    return cls(3, **{"max_iter": 2, "random_state": 0, **params})


@pytest.fixture
def in_numpy(monkeypatch):
    """Train in NumPy: the fits of some tests take less time than a kernel to compile."""
    monkeypatch.setattr(backends, "get", lambda device="cpu": NumpyBackend())


def plain(formula):
    """Return a formula as Python runs it: compiling takes longer than a few numbers."""
    return getattr(formula, "py_func", formula)


# Pointwise losses.


@pytest.mark.parametrize(
    "loss", [*(cls() for cls in LOSSES.values()), Huber(0.3), Quantile(0.9), Hinge(2.0)]
)
def test_derivatives_are_those_of_finite_differences(loss):
    formula, curvature = plain(loss.value_and_derivative), plain(loss.curvature)
    for score in (-2.3, -0.4, 0.1, 1.7):
        for target in (0.0, 1.0):
            near = [formula(score + step, target) for step in (-1e-3, 0.0, 1e-3)]
            assert (near[2][0] - near[0][0]) / 2e-3 == pytest.approx(near[1][1], abs=2e-3)
            second = (near[2][1] - near[0][1]) / 2e-3
            bound = curvature(score, target) if callable(curvature) else curvature
            assert second <= bound + 2e-3


@pytest.mark.parametrize(
    "loss",
    [
        Hinge(),
        Huber(0.5),
        Quantile(0.8),
        Quantile(),
        Poisson(),
        CustomLogLoss(),
        CustomSquaredError(),
    ],
)
def test_intercept_starts_at_the_best_constant(loss):
    of_classes = isinstance(loss, (Hinge, CustomLogLoss))
    target = (CLASSES if of_classes else 5 * SCORE - 20).astype(np.float32)
    if isinstance(loss, Poisson):
        target = np.abs(target) / 10
    # Heavier where targets are large, so that other weights would give another constant.
    weight = rng.random(len(target)) + (SCORE > 0)
    best = base_score(loss, of_classes, target, weight)
    formula = plain(loss.value_and_derivative)

    def total(score):
        return sum(w * formula(score, t)[0] for t, w in zip(target, weight, strict=True))

    others = np.linspace(target.min() - 2, target.max() + 2, 100)
    assert total(best) <= min(map(total, others)) + 1e-4


class AboveOnly(Loss):
    """Only scores above the target cost something."""

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return (score - target, 1.0) if score > target else (0.0, 0.0)


@pytest.mark.parametrize("shift, best", [(-5.0, -5.0), (5.0, 0.0)])
def test_a_loss_that_is_constant_without_end_starts_at_its_edge(in_numpy, shift, best):
    found = base_score(AboveOnly(), False, np.full(3, shift), np.ones(3))
    assert found == pytest.approx(best, abs=1e-4)


class NoNumber(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return (score - target) ** 2, 2 * (score - target) if target > 0 else math.nan


def test_a_divergence_points_at_what_is_custom(in_numpy):
    with pytest.raises(DivergenceError, match="or check what NoNumber computes"):
        classifier(loss=NoNumber()).fit(X, CLASSES)
    with pytest.raises(DivergenceError, match="about 1.$"):
        classifier(optimizer="sgd", learning_rate=1e30).fit(X, CLASSES)


class WrongSign(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return (score - target) ** 2, 2 * (target - score)


def test_a_derivative_of_the_wrong_sign_is_told_of(in_numpy):
    with pytest.warns(UserWarning, match="of WrongSign, its mean .* falls at .* check the sign"):
        base_score(WrongSign(), False, SCORE, np.ones(len(SCORE)))


# Adam has two states, the number of the step, and if it is not lazy, rows that catch up on missed
# steps; FASGD has the counts of tokens.
@pytest.mark.parametrize(
    "cls, optimizers",
    [
        (FMClassifier, (CustomAdam(0.01, lazy=False), Adam(0.01, lazy=False))),
        (FMClassifier, (CustomAdam(0.01), Adam(0.01))),
        (RaFMClassifier, (CustomFASGD(0.1), FASGD(0.1))),
        (FFMClassifier, (CustomAdam(0.01), Adam(0.01))),
        (FwFMClassifier, (CustomAdam(0.01), Adam(0.01))),
    ],
)
@pytest.mark.slow
def test_custom_formulas_equal_the_shipped_ones(cls, optimizers):
    target = np.digitize(SCORE, [-1, 1])
    for y in (CLASSES, target):
        custom, shipped = (
            classifier(cls, loss=loss, optimizer=optimizer).fit(X, y)
            for loss, optimizer in zip((CustomLogLoss(), "log"), optimizers, strict=True)
        )
        assert_allclose(custom.coef_, shipped.coef_, rtol=1e-3, atol=1e-5)
        assert_allclose(custom.predict_proba(X), shipped.predict_proba(X), atol=1e-4)
        assert_allclose(custom.predict_log_proba(X), shipped.predict_log_proba(X), atol=1e-3)


def hinge(**params):
    # With one optimizer in all tests: each combination is compiled.
    return classifier(**{"loss": Hinge(), "optimizer": Momentum(0.05), **params})


def test_hinge_loss_classifies_without_probabilities():
    model = hinge(max_iter=50).fit(X, CLASSES)
    assert model.score(X, CLASSES) > 0.9
    assert not hasattr(model, "predict_proba") and not hasattr(model, "predict_log_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'") as raised:
        model.predict_proba  # noqa: B018
    assert "has no expectation" in str(raised.value.__cause__)
    several = hinge(max_iter=50).fit(X, np.digitize(SCORE, [-1, 1]))
    assert several.decision_function(X).shape == (80, 3)


@pytest.mark.slow
def test_a_margin_is_the_size_of_scores(in_numpy):
    wide, narrow = (hinge(loss=Hinge(margin), max_iter=50).fit(X, CLASSES) for margin in (1.0, 0.5))
    sizes = [np.abs(model.decision_function(X)).mean() for model in (wide, narrow)]
    assert sizes[0] > 1.5 * sizes[1]


def test_poisson_predicts_counts(in_numpy):
    y = rng.poisson(np.exp(1 + SCORE / 3))
    model = regressor(loss="poisson", max_iter=50).fit(X, y)
    assert model.predict(X).min() > 0
    assert np.mean(model.predict(X)) == pytest.approx(y.mean(), rel=0.1)
    assert_allclose(model.predict(X), np.exp(model._scores(X)[0]), rtol=1e-5)
    assert model.predict(1e6 * np.abs(X)).max() <= np.finfo(np.float32).max
    with pytest.raises(ValueError, match="y holds -1, but Poisson"):
        regressor(loss="poisson").fit(X, y - 1 - y.min())


@pytest.mark.slow
@each("cls", [FMRegressor, RaFMRegressor, NFMRegressor])
def test_a_poisson_fit_does_not_depend_on_the_unit(in_numpy, cls):
    y, weight = rng.poisson(np.exp(SCORE / 2)) * rng.gamma(2, 10, 80), rng.integers(1, 4, 80)
    options = {"loss": "poisson", "max_iter": 10, "batch_size": 20, "tol": 1e-3}
    predicted, losses = [], []
    for unit in (1, 1e-6, 1000):
        model = regressor(cls, **options)
        predicted.append(model.fit(X, unit * y, sample_weight=weight).predict(X) / unit)
        # A constant in the loss depends on the unit.
        losses.append(np.diff(model.loss_curve_))
        model = regressor(cls, **options).partial_fit(X[:40], unit * y[:40])
        predicted[-1] = np.append(predicted[-1], model.partial_fit(X, unit * y).predict(X) / unit)
    assert np.ptp(predicted[0]) > 1
    for k in (1, 2):
        assert_allclose(predicted[k], predicted[0], rtol=2e-3)
        assert_allclose(losses[k], losses[0], atol=1e-3)


def test_poisson_of_a_stream_is_scaled_by_all_of_it(in_numpy):
    y = np.sort(rng.poisson(np.exp(SCORE / 2)) * rng.gamma(2, 10, 80))
    options = {"loss": "poisson", "max_iter": 2, "shuffle": False, "batch_size": 20}
    stream = RowStream(lambda: [(X, y)], chunk_size=40)
    found = regressor(**options).fit(stream)
    assert found._loss_scale == pytest.approx(y.mean() / y.var(), rel=1e-6)
    assert_allclose(found.predict(X), regressor(**options).fit(X, y).predict(X), rtol=1e-3)
    for unknown in (np.zeros(80), np.full(80, 3.0)):
        assert np.isfinite(regressor(**options).fit(X, unknown).predict(X)).all()


def test_quantile_leaves_its_share_below(in_numpy):
    y = rng.standard_normal(80)
    model = regressor(loss=Quantile(0.8), optimizer="sgd", learning_rate=0.3, max_iter=50)
    assert np.mean(y < model.fit(X, y).predict(X)) == pytest.approx(0.8, abs=0.08)


def test_losses_without_a_formula_of_the_best_constant_average_the_chunks(in_numpy):
    options = {"alpha_factors": 0, "fit_linear": False, "init": Normal(0), "optimizer": "sgd"}
    model = regressor(loss=Quantile(0.8), learning_rate=1e-12, **options)
    model.partial_fit(X, np.full(80, 3.0)).partial_fit(X[:40], np.zeros(40))
    assert model.intercept_[0] == pytest.approx(2.0, abs=1e-3)


def huber(**params):
    return regressor(**{"loss": "huber", "optimizer": FASGD(0.1), **params})


def test_huber_loss_bears_an_outlier(in_numpy):
    y = SCORE.copy()
    y[0] += 1000
    squared, bearing = (
        np.abs(model.fit(X, y).predict(X[1:]) - SCORE[1:]).mean()
        for model in (regressor(optimizer=FASGD(0.1), max_iter=100), huber(max_iter=100))
    )
    assert bearing < 0.3 * squared


def test_a_regressor_predicts_probabilities_by_the_log_loss():
    share = 1 / (1 + np.exp(-SCORE))
    model = regressor(loss=LogLoss(), max_iter=50).fit(X, share)
    assert np.abs(model.predict(X) - share).mean() < 0.1
    with pytest.raises(ValueError, match=r"LogLoss needs targets in \[0, 1\]"):
        regressor(loss=LogLoss()).fit(X, share + 1)


@pytest.mark.parametrize(
    ("loss", "scale", "warns"),
    [
        (Quantile(), 0.01, True),
        (Quantile(), 1.0, False),
        (Quantile(), 100.0, True),
        (Huber(), 0.01, False),
        (Huber(), 100.0, True),
        (Huber(100.0), 100.0, False),
        (SquaredError(), 100.0, False),
    ],
)
def test_targets_that_the_steps_do_not_suit_are_warned_of(loss, scale, warns):
    y = (scale * np.random.default_rng(0).standard_normal(200) + 5).astype(np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_spread(loss, y)
    assert len(caught) == warns


def test_targets_whose_differences_float32_rounds_are_warned_of():
    X, steps = np.ones((200, 1)), np.arange(200) % 7
    for y in (steps + 2**53, steps + 2.0**53, steps + 1.7e9):
        for fit in (FMRegressor(max_iter=1).fit, FMRegressor().partial_fit):
            with pytest.warns(UserWarning, match="that differ by 6 at most, .* by up to"):
                fit(X, y)
    unharmed = steps + 1000, 1e5 * steps + 1.7e9, np.full(200, 0.1), np.full(200, 2**53 + 1)
    for y in (*unharmed, (steps + 121).astype(np.int8), steps > 3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            FMRegressor().partial_fit(X, y)
        assert not any("differ by" in str(warning.message) for warning in caught)


@pytest.mark.slow
def test_fit_warns_of_the_spread_of_targets_unless_it_has_a_learning_rate():
    model = FMRegressor(2, loss="quantile", max_iter=1)
    with pytest.warns(UserWarning, match="from their median.*TransformedTarget"):
        model.fit(X, 100 * SCORE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* reached max_iter")
        model.set_params(learning_rate=100.0).fit(X, 100 * SCORE)


@pytest.mark.parametrize("loss", ["huber", Quantile()])
def test_classifiers_refuse_losses_of_real_numbers(loss):
    with pytest.raises(ValueError, match="loss='huber' is not known|is a regression loss"):
        classifier(loss=loss).fit(X, CLASSES)


@pytest.mark.parametrize(
    "make, y, loss", [(huber, SCORE, Huber()), *slow_params([(hinge, CLASSES, Hinge())])]
)
def test_early_stopping_watches_the_loss(in_numpy, make, y, loss):
    watched = make(loss=loss, max_iter=3, early_stopping=True, n_iter_no_change=None)
    watched.fit(X[20:], y[20:], X_val=X[:20], y_val=y[:20], sample_weight_val=np.arange(20))
    model = make(loss=loss, max_iter=1).fit(X[20:], y[20:])
    formula, scores = plain(loss.value_and_derivative), model._scores(X[:20])[0]
    losses = [formula(s, t)[0] for s, t in zip(scores, y[:20], strict=True)]
    expected = -np.average(losses, weights=np.arange(20))
    assert watched.validation_scores_[0] == pytest.approx(expected, rel=1e-4)
    assert watched_score(watched) == "neg_mean_loss"


def test_a_dependent_vector_follows_the_class_where_there_is_no_expectation():
    scores = np.array([-1.5, 0.3], dtype=np.float32)
    assert_array_equal(expect(Hinge(), True, scores), [0, 1])
    assert_array_equal(expect(Hinge(), False, scores), scores)
    assert_allclose(expect(Poisson(), False, scores), np.exp(scores), rtol=1e-6)


def test_a_model_goes_on_with_its_loss_only(in_numpy):
    model = huber(warm_start=True).fit(X, SCORE)
    with pytest.raises(ValueError, match="loss='squared' differs from Huber"):
        model.set_params(loss="squared").fit(X, SCORE)


@pytest.mark.slow
def test_parameters_of_a_loss_are_searched(in_numpy):
    assert regressor(loss="huber").set_params(loss__delta=0.25).loss.delta == 0.25
    model = hinge().set_params(loss__margin=0.5)
    assert_array_equal(model.fit(X, CLASSES).coef_, hinge(loss=Hinge(0.5)).fit(X, CLASSES).coef_)
    assert (model.coef_ != hinge().fit(X, CLASSES).coef_).any()


# Optimizers.


def test_momentum_is_that_of_a_loop(at_full_rates):
    # Without factors the model is linear, and with one batch its gradient is simple.
    model = hinge(
        optimizer=Momentum(0.1), n_components=1, init=Normal(0.0), alpha_linear=0.0,
        alpha_factors=0.0, batch_size=80, max_iter=7,
    ).fit(X, CLASSES)  # fmt: skip
    start = base_score(Hinge(), True, CLASSES.astype(np.float32), np.ones(80))
    weights, velocity = np.append(np.zeros(3), start), np.zeros(4)
    inputs, sign = np.column_stack([X, np.ones(80)]), 2 * CLASSES - 1
    for _ in range(7):
        within = sign * (inputs @ weights) < 1
        velocity = 0.9 * velocity - inputs.T @ (sign * within) / 80
        weights -= 0.1 * velocity
    assert 0 < within.sum() < 80
    assert_allclose(model.coef_, weights[:3], rtol=1e-4)
    assert_allclose(model.intercept_, weights[3:], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.1}])
def test_custom_steps_in_recommenders(decay):
    in_parts = {"loss": "bpr", "backbone": Features(item_features=np.eye(20)[:, :3])}
    adams = CustomAdam(0.01, lazy=False), Adam(0.01, lazy=False)
    adagrads = CustomAdagrad(0.05), Adagrad(0.05)
    for cls, optimizers, losses, name in (
        (MFRecommender, adams, [{"loss": CustomBPR()}, {"loss": "bpr"}], "item_factors_"),
        (MFRecommender, adams, [in_parts, in_parts], "item_factors_"),
        (FastVAERecommender, adagrads, [{}, {}], "input_factors_"),
    ):
        models = [
            recommender(cls, optimizer=optimizer, **loss, **decay).fit(INTERACTIONS)
            for optimizer, loss in zip(optimizers, losses, strict=True)
        ]
        assert_allclose(*(getattr(model, name) for model in models), rtol=2e-3, atol=2e-5)


# Losses of pairs.


def test_derivatives_of_pairs_are_those_of_finite_differences():
    shipped = [cls() for cls in RANKING_LOSSES.values() if issubclass(cls, PairwiseLoss)]
    for loss in (*shipped, CCL(0.1, negative_weight=5.0), CustomBPR(), HingeOfPairs()):
        formula = plain(loss.value_and_derivatives)
        for a, b in np.array([(0.3, 0.7), (-1.0, 2.0), (2.5, 0.2)]):
            by_a = (formula(a + 1e-3, b)[0] - formula(a - 1e-3, b)[0]) / 2e-3
            by_b = (formula(a, b + 1e-3)[0] - formula(a, b - 1e-3)[0]) / 2e-3
            assert formula(a, b)[1:] == pytest.approx([by_a, by_b], abs=2e-3)
            assert np.ravel(loss.pair_gradients(a, b)) == pytest.approx([by_a, by_b], abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"similarity": ("cosine", "dot"), "temperature": 0.2}])
def test_custom_pairwise_loss_is_bpr(params):
    custom, shipped = (
        recommender(loss=loss, optimizer=adam, n_negatives=2, **params).fit(INTERACTIONS)
        for loss, adam in ((CustomBPR(), CustomAdam(0.01, False)), ("bpr", Adam(0.01, lazy=False)))
    )
    assert_allclose(custom.item_factors_, shipped.item_factors_, rtol=1e-3, atol=1e-5)
    assert_allclose(custom.loss_curve_, shipped.loss_curve_, rtol=1e-5)
    folded = [model.transform(INTERACTIONS[:5]) for model in (custom, shipped)]
    assert_allclose(*folded, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_users_are_folded_in_by_the_loss_that_is_set():
    model = recommender(loss="bpr", max_iter=20).fit(INTERACTIONS)
    vectors = model.transform(INTERACTIONS[:5])
    model.set_params(loss=CCL())
    assert np.abs(vectors - model.transform(INTERACTIONS[:5])).max() > 1e-3
    parts = model.explain(0, 3, X=INTERACTIONS[:1])
    assert parts.contributions.sum() + parts.rest == pytest.approx(parts.score, rel=1e-5)


# Samplers.


class CustomUniform(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return generator.integers(0, n_items, shape)


class FirstTwo(Popularity):
    """Only two items are ever drawn."""

    def draw(self, shape, n_items, proposal, generator):
        return generator.integers(0, 2, shape)


@pytest.mark.slow
def test_an_autoencoder_asks_a_sampler_to_draw():
    def fit(sampler, **params):
        model = recommender(FastVAERecommender, negative_sampler=sampler, n_negatives=5, **params)
        return model.fit(INTERACTIONS)

    models = [fit(FirstTwo(), max_iter=1) for _ in range(2)]
    assert_array_equal(*(model.item_factors_ for model in models))
    curves = [fit(sampler, max_iter=5).loss_curve_ for sampler in (CustomUniform(), "uniform")]
    assert_allclose(*curves, rtol=0.05)
    assert (curves[0] != curves[1]).any()


class TooLarge(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return np.full(shape, n_items)


def test_draws_for_an_autoencoder_must_be_items():
    with pytest.raises(ValueError, match="draw of TooLarge must return items"):
        recommender(FastVAERecommender, negative_sampler=TooLarge()).fit(INTERACTIONS)


# Copies, processes, compiled code.


def test_models_with_custom_components_are_cloned_and_pickled():
    model = hinge().fit(X, CLASSES)
    loaded = pickle.loads(pickle.dumps(model))
    assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    again = clone(model)
    assert again.optimizer.learning_rate == 0.05
    assert clone(hinge(loss=Hinge(0.5))).loss.margin == 0.5
    assert_array_equal(again.fit(X, CLASSES).coef_, model.coef_)
    assert_array_equal(clone(model).set_params(n_jobs=2).fit(X, CLASSES).coef_, model.coef_)


SHARED = 1.0


def make_formula(factor, helper):
    @njit
    def formula(score, target):
        return factor * SHARED * helper(score), target

    return formula


@njit
def double(x):
    return 2 * x


@njit
def triple(x):
    return 3 * x


def key(*values):
    return Fingerprint(*values).key


def test_a_fingerprint_tells_formulas_apart(monkeypatch):
    formula = make_formula(2.0, double)
    assert key(formula) == key(make_formula(2.0, double))
    assert key(formula) != key(make_formula(3.0, double))
    assert key(formula) != key(make_formula(2.0, triple))
    before = key(formula)
    monkeypatch.setitem(globals(), "SHARED", 2.0)
    assert key(formula) != before


class Undefined(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return wieght * (score - target), 1.0  # noqa: F821


class OneNumber(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return (score - target) ** 2


class LosesState(Momentum):
    n_states = 0


@pytest.mark.parametrize(
    "component, message",
    [
        ({"loss": Undefined()}, "derivative of Undefined cannot be called: name 'wieght' is not"),
        ({"loss": OneNumber()}, "derivative of OneNumber returns .*, but has to return 2 number"),
        ({"optimizer": LosesState()}, "LosesState returns the state 1.0, but its n_states=0"),
    ],
)
def test_formulas_that_cannot_be_meant(component, message):
    with pytest.raises(TypeError, match=message):
        FMRegressor(1, max_iter=1, **component).fit(np.eye(3), np.arange(3.0))


class MakesList(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return [(score - target) ** 2, 2 * (score - target)]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_formula_that_makes_a_list_is_told_what_to_use():
    with pytest.raises(TypeError, match="makes a list, an array or a string.*\n.*\n.*"):
        FMRegressor(1, max_iter=1, loss=MakesList()).fit(np.eye(3), np.arange(3.0))


# A user's modules.
settings, constants = types.ModuleType("settings"), types.ModuleType("constants")
settings.WEIGHT, settings.constants, constants.SCALE = 1.0, constants, 1.0


@njit
def scaled(x):
    return constants.SCALE * x


def halved(x):
    return x / 2


def doubled(x):
    return x * 2


class InModules(Loss):
    """Squared error, times numbers that modules hold."""

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        residual = settings.WEIGHT * settings.constants.SCALE * (score - target)
        return residual * (score - target) / 2, residual


def formula_with_modules(x):
    return [settings.WEIGHT * scaled(y) + settings.constants.change(y) for y in x]


def test_a_fingerprint_holds_what_is_used_from_modules(monkeypatch):
    monkeypatch.setattr(constants, "change", halved, raising=False)
    keys = [key(formula_with_modules)]
    for module, name, value in (
        (settings, "WEIGHT", 2.0), (constants, "SCALE", 2.0), (constants, "change", doubled)
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
        keys.append(key(formula_with_modules))
    assert len(set(keys)) == 4
    monkeypatch.setattr(settings, "not_used", 1, raising=False)
    assert key(formula_with_modules) == keys[-1]


@pytest.mark.slow  # compiles three times
def test_a_number_in_a_module_may_change_between_fits(monkeypatch):
    X, y = np.eye(3, dtype=np.float32), np.arange(3.0)
    model = FMRegressor(
        1, loss=InModules(), optimizer="sgd", learning_rate=0.1, max_iter=1, early_stopping=False,
        random_state=0,
    )  # fmt: skip
    slow = model.fit(X, y).coef_
    for module, name in ((settings, "WEIGHT"), (constants, "SCALE")):
        monkeypatch.setattr(module, name, 2.0)
        fast = model.fit(X, y).coef_
        assert_allclose(fast, 2 * slow, rtol=0.05)
        slow = fast


def test_unhashable_values_are_identified_by_address():
    things = [type("Odd", (), {"__reduce_ex__": None})() for _ in range(2)]
    fingerprint = Fingerprint(things[0])
    assert fingerprint.kept == [things[0]]
    assert key(things[0]) == key(things[0]) != key(things[1])


def test_a_formula_with_parameters_is_made_once():
    for cls, name in ((Huber, "value_and_derivative"), (Quantile, "value_and_derivative"),
                      (CCL, "value_and_derivatives")):  # fmt: skip
        assert getattr(cls(0.5), name) is getattr(cls(0.5), name)
        assert getattr(cls(0.5), name) is not getattr(cls(0.25), name)


def test_a_search_looks_the_formulas_of_a_loss_up_once():
    asked = []

    class Counted(Hinge):
        def replacements(self, of_classes):
            asked.append(of_classes)
            return super().replacements(of_classes)

    base_score(Counted(), True, CLASSES.astype(np.float32), np.ones(len(CLASSES)))
    assert asked == [True]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_variant_is_built_once():
    train, other = (specialised(fm_train, Hinge(m).replacements(True)) for m in (1.0, 2.0))
    assert train is specialised(fm_train, Hinge().replacements(True))
    assert len({fm_train, train, other}) == 3
    assert specialised(fm_score, Hinge().replacements(True)) is fm_score
    assert specialised(fm_train, {}) is fm_train


def test_a_formula_may_print(capsys):
    class Printing(Loss):
        @staticmethod
        @njit
        def value_and_derivative(score, target):
            print("score", score)
            return (score - target) ** 2, 2 * (score - target)

    scores = np.array([[0.5, 1.5]])
    assert mean_loss(Printing(), False, scores, scores + 1, np.ones(2)) == 1
    assert capsys.readouterr().out == "score 0.5\nscore 1.5\n"


class WithHelper(Loss):
    """A formula that calls another, and reads a constant of its module."""

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return SHARED * math.cosh(score - target) - 1, SHARED * sinh(score - target)


@njit
def sinh(residual):
    return math.sinh(residual)


def test_a_formula_calls_others():
    scores, weight = SCORE[None] + 0.5, np.ones(len(SCORE))
    loss = mean_loss(WithHelper(), False, scores, SCORE[None], weight)
    assert loss == pytest.approx(math.cosh(0.5) - 1, rel=1e-5)
    # Where the sum of the derivatives is zero.
    best = base_score(WithHelper(), False, SCORE, weight)
    assert np.sinh(best - SCORE.astype(float)).mean() == pytest.approx(0, abs=1e-4)


def names_in(kernel, formulas):
    """Return the names of all functions that a kernel with some formulas calls."""
    functions = [python_function(specialised(kernel, formulas))]
    for function in functions:
        used = map(python_function, names_used(function).values())
        functions += [
            value
            for value in used
            if isinstance(value, types.FunctionType)
            and value.__module__.startswith("freqfm")
            and value not in functions
        ]
    return {function.__name__ for function in functions}


def test_kernels_have_the_formulas_of_their_loss_alone():
    surrogate = {"_log_of_tanh_plus_one", "_write_surrogates", "_multiply_by_slopes"}
    for loss, own, formulas in [
        (Softmax(), set(), {}),
        (SLatK(), {"share_of_top"}, {}),
        (PSL(), surrogate, SURROGATES),
    ]:
        names = names_in(softmax_train, {**loss.replacements(), **formulas})
        assert names & {"log_surrogate", "share_of_top", *surrogate} == own
    for formulas, own in ({}, "_add_gradient"), (OF_PAIRS, "_add_gradient_of_pairs"):
        names = names_in(fold_in_rows, formulas)
        assert {name for name in names if name.startswith("_add_gradient")} == {own}
