"""Custom components: they take effect, or fit says what would be ignored."""

from typing import NamedTuple

import numpy as np
import pytest
from custom_components import (
    CustomSGD,
    CustomSquaredError,
    Hinge,
    HingeOfPairs,
    PositivePart,
    Rectified,
)
from helpers import each
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from freqfm import FastVAERecommender, FMClassifier, FMRegressor, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.estimators.fm.base import checked_optimizer
from freqfm.estimators.recommenders.components import mf_components
from freqfm.formulas import codes
from freqfm.initializers import Initializer
from freqfm.losses import (
    BPR,
    BSL,
    DirectAU,
    Loss,
    PairwiseLoss,
    RankingLoss,
    Softmax,
    SquaredError,
)
from freqfm.optimizers import FASGD, SGD, Adagrad, Optimizer
from freqfm.samplers import (
    DNS,
    MIDX,
    Full,
    Kernel,
    Popularity,
    Proposal,
    QuerySampler,
    Sampler,
    Uniform,
)
from freqfm.temperatures import Temperature

X = make_interactions(20, 12, 100, random_state=0)


class NoFamily(RankingLoss):
    family = "pairwise"
    n_negatives = 1


class NoFormula(PairwiseLoss):
    pass


class OneScore(PairwiseLoss):
    @staticmethod
    def value_and_derivatives(score, target, more):
        return score, target, more


class PairwiseSoftmax(Softmax):
    family = "pairwise"


class AnyTemperatureOfBPR(BPR):
    adapts_temperature = True


class FoldedInByUsers(BPR):
    fold_in_against = "users"


class OtherStep(Optimizer):
    step_code = 99


class CustomStep(SGD):
    def step(self, parameter, gradient):
        return parameter


class Stateful(SGD):
    n_states = 1


class ThreeStates(CustomSGD):
    n_states = 3


class WithoutState(Adagrad):
    def state_widths(self, n_components):
        return 0, 0


class StepOfAdam(SGD):
    step_code = codes.STEP_ADAM


class OtherRate(SGD):
    rate_code = 99


class Instead:
    """Items by a custom rule: the first ones."""

    def draw(self, shape, n_items, proposal, generator):
        return np.zeros(shape, dtype=np.int32)


class First(Instead, Uniform):
    pass


class FirstOfMIDX(Instead, MIDX):
    pass


class FirstOfAll(Instead, Full):
    pass


class NewPlace(Uniform):
    negatives_code = 99


def assert_refused(model, what):
    with pytest.raises(TypeError, match=what):
        model.fit(X)
    assert not hasattr(model, "item_factors_")


@each(
    "params, what",
    [
        ({"loss": NoFamily()}, "NoFamily, which derives from RankingLoss itself"),
        ({"loss": NoFormula()}, "NoFormula without value_and_derivatives"),
        ({"loss": OneScore()}, r"has parameters \(score, target, more\), but has to be"),
        ({"loss": PairwiseSoftmax()}, "PairwiseSoftmax that sets family"),
        ({"loss": AnyTemperatureOfBPR()}, "AnyTemperatureOfBPR that sets adapts_temperature"),
        ({"loss": FoldedInByUsers()}, "FoldedInByUsers that sets fold_in_against"),
        ({"optimizer": OtherStep()}, "OtherStep without step"),
        ({"optimizer": CustomStep()}, "step of CustomStep is <bound method"),
        ({"optimizer": Stateful()}, "Stateful that sets n_states"),
        ({"optimizer": ThreeStates()}, "n_states of ThreeStates is 3"),
        ({"optimizer": WithoutState()}, "WithoutState that sets state_widths"),
        ({"optimizer": StepOfAdam()}, "StepOfAdam that sets step_code"),
        ({"optimizer": OtherRate()}, "OtherRate that sets rate_code"),
        ({"negative_sampler": FirstOfMIDX()}, "FirstOfMIDX that sets draw"),
        ({"negative_sampler": FirstOfAll()}, "FirstOfAll that sets draw"),
        ({"negative_sampler": NewPlace()}, "NewPlace whose negatives_code=99"),
    ],
)
def test_recommender_names_what_it_would_ignore(params, what):
    assert_refused(MFRecommender(4, max_iter=1, **params), what)


@pytest.mark.parametrize("sampler", [FirstOfMIDX(), FirstOfAll()])
def test_autoencoder_asks_no_sampler_that_looks_at_queries_to_draw(sampler):
    assert_refused(
        FastVAERecommender(4, max_iter=1, negative_sampler=sampler),
        f"{type(sampler).__name__} that sets draw",
    )


@pytest.mark.parametrize("optimizer", [OtherStep(), CustomStep(), OtherRate(), WithoutState()])
def test_other_estimators_refuse_optimizers(optimizer, clicks):
    assert_refused(FastVAERecommender(4, max_iter=1, optimizer=optimizer), type(optimizer).__name__)
    with pytest.raises(TypeError, match=type(optimizer).__name__):
        FMClassifier(3, optimizer=optimizer).fit(*clicks)


class WithoutRate(Optimizer):
    step = staticmethod(CustomSGD.step)


@pytest.mark.parametrize("rate", [-0.1, 0, np.nan, "0.1"])
def test_learning_rates_of_custom_optimizers_are_checked(clicks, rate):
    with pytest.raises(ValueError, match="'learning_rate' parameter of CustomSGD must be"):
        FMClassifier(3, optimizer=CustomSGD(rate)).fit(*clicks)


def test_custom_optimizers_have_a_learning_rate(clicks):
    for optimizer in (WithoutRate(), CustomSGD(None)):
        with pytest.raises(TypeError, match=rf"{type(optimizer).__name__}\(.* no learning rate"):
            FMClassifier(3, optimizer=optimizer).fit(*clicks)
    given = FMClassifier(optimizer=CustomSGD(None), learning_rate=0.2)
    assert checked_optimizer(given).learning_rate == 0.2


def test_counts_are_for_one_table():
    optimizer = FASGD(counts=np.ones(X.shape[1]))
    for model in (
        MFRecommender(2, optimizer=optimizer),
        FastVAERecommender(2, optimizer=optimizer),
    ):
        with pytest.raises(ValueError, match="counts of FASGD .* leave counts at None"):
            model.fit(X)


class CosineHinge(HingeOfPairs):
    similarity = "cosine"


def test_what_is_compared_by_cosines_is_ranked_by_them():
    for loss, cosine in ((CosineHinge(), True), (HingeOfPairs(), False)):
        components = mf_components(MFRecommender(loss=loss), X.nnz, X.shape, X.nnz)
        assert components.rank_by_cosine is cosine


def test_an_instance_with_another_code_is_refused(clicks):
    optimizer = SGD()
    optimizer.rate_code = codes.RATE_COUNTED
    with pytest.raises(TypeError, match="SGD that sets rate_code"):
        FMClassifier(3, optimizer=optimizer).fit(*clicks)


@pytest.mark.parametrize("curvature", [0.0, -1, np.nan, np.inf])
def test_curvatures_are_positive(clicks, curvature):
    loss = type("Flat", (Hinge,), {"curvature": curvature})()
    with pytest.raises(ValueError, match="curvature of Flat is .* must be positive and finite"):
        FMClassifier(3, loss=loss).fit(*clicks)


def test_a_curvature_is_needed(clicks):
    loss = type("Flat", (Hinge,), {"curvature": None})()
    with pytest.raises(TypeError, match="curvature of Flat is None, but has to be a number or a f"):
        FMClassifier(3, loss=loss).fit(*clicks)


class RootOfScore(CustomSquaredError):
    @staticmethod
    @njit
    def expectation(score):
        return np.sqrt(score)


@pytest.mark.slow
def test_expectations_are_numbers(clicks):
    X, y = clicks
    model = FMRegressor(3, loss=RootOfScore(), max_iter=1, early_stopping=False, random_state=0)
    with pytest.raises(ValueError, match="expectation of RootOfScore returns NaN for the score -"):
        model.fit(X, y - 5.0).predict(X)


class WithoutRefresh(Temperature):
    per_user = True


def test_components_without_a_required_method_cannot_be_made():
    with pytest.raises(TypeError, match="abstract class WithoutRefresh .*refresh"):
        WithoutRefresh()


class OfMIDX(QuerySampler):
    def proposal(self, counts, vectors, seed, previous=None):
        return MIDX("uniform", n_codewords=4).proposal(counts, vectors, seed, previous)


def test_probabilities_that_are_not_known():
    vectors = np.random.default_rng(0).standard_normal((20, 4))
    sampler = OfMIDX().fit(vectors, random_state=0)
    with pytest.raises(NotImplementedError, match="probabilities of OfMIDX .* such as MIDX"):
        sampler.log_proba(vectors[:2])


class PseudoHuber(Loss):
    code = 99

    def base_score(self, target, weight):
        return 0.0


class Renumbered(SquaredError):
    code = 99


@pytest.mark.parametrize(
    "loss, what",
    [
        (PseudoHuber(), "PseudoHuber without value_and_derivative"),
        (Renumbered(), "Renumbered that sets code"),
    ],
)
def test_machines_name_what_they_would_ignore(loss, what, clicks):
    with pytest.raises(TypeError, match=what):
        FMRegressor(3, loss=loss, max_iter=1).fit(*clicks)


class Zero(SquaredError):
    def base_score(self, target, weight):
        return 0.0


class Rates(FASGD):
    """Rates by a custom rule with a parameter."""

    def __init__(self, learning_rate=3.0, power=1.0):
        super().__init__(learning_rate)
        self.power = power

    def _init_per_row(self, n_tokens, counts):
        return np.full(n_tokens, self.learning_rate / 10**self.power, dtype=np.float32)


def test_machines_use_what_they_ask_for(clicks):
    X, y = clicks
    model = FMRegressor(3, loss=Zero(), max_iter=1, optimizer=SGD(1e-9), random_state=0).fit(X, y)
    assert abs(model.intercept_[0]) < 1e-6 < abs(y.mean())

    rates = FMRegressor(3, max_iter=2, optimizer=Rates(1.0), random_state=0).fit(X, y)
    given = FASGD(1.0, max_step=0.1, counts=np.ones(X.shape[1]))
    same = FMRegressor(3, max_iter=2, optimizer=given, random_state=0).fit(X, y)
    assert_array_equal(rates.coef_, same.coef_)


class Large(BSL):
    """A factor by a custom rule with a parameter."""

    n_negatives = 16
    max_iter = 2

    def __init__(self, twice=1.0):
        super().__init__()
        self.twice = twice

    def factor(self, n_users, n_items, n_positives):
        return 2 * self.twice


class Near(DirectAU):
    batch_size = 30


class Ones(Initializer):
    def draw(self, shape, generator, counts=None):
        return np.full(shape, 1 / shape[1], dtype=np.float32)


class Rising(Temperature):
    def refresh(self, epoch, inverse, state, snapshot):
        inverse[:] = 1 + epoch


def fit(**params):
    return MFRecommender(4, **{"max_iter": 2, "random_state": 0, **params}).fit(X)


@pytest.mark.slow
def test_recommender_uses_what_it_asks_for():
    # The default learning rate falls over the epochs of the loss.
    large = fit(loss=Large(), max_iter=None, learning_rate=0.01)
    same = fit(loss=BSL(2.0), n_negatives=16, learning_rate=0.01)
    assert_array_equal(large.item_factors_, same.item_factors_)
    near = fit(loss=Near())
    assert_array_equal(near.item_factors_, fit(loss="directau", batch_size=30).item_factors_)
    warm = fit(temperature=Rising())
    assert_array_equal(warm.user_temperatures_, np.full(20, 0.5, dtype=np.float32))
    still = fit(init=Ones(), optimizer=SGD(1e-9))
    np.testing.assert_allclose(still.item_factors_, 0.25, rtol=1e-4)
    drawn = fit(negative_sampler=First(), loss="bpr")
    assert (drawn.item_factors_ != fit(loss="bpr").item_factors_).any()


class TooFew(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return np.zeros((1, 1), dtype=np.int32)


class TooLarge(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return np.full(shape, n_items)


class Fractions(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return np.full(shape, 0.5)


class Undrawn(Sampler):
    def proposal(self, counts):
        return Uniform().proposal(counts)


@pytest.mark.parametrize("loss", ["softmax", "bpr"])
@pytest.mark.parametrize("sampler", [TooFew(), TooLarge(), Fractions()])
def test_draws_must_be_items(sampler, loss):
    with pytest.raises(ValueError, match=f"draw of {type(sampler).__name__} must return items"):
        fit(loss=loss, negative_sampler=sampler)


def test_a_sampler_without_draw_is_drawn_by_its_proposal():
    undrawn, uniform = (fit(negative_sampler=sampler) for sampler in (Undrawn(), Uniform()))
    assert_array_equal(undrawn.item_factors_, uniform.item_factors_)


class Largest(Uniform):
    """A custom distribution for the lists of ``Uniform``."""

    def __init__(self, shared=True, aliases=True):
        super().__init__(shared=shared)
        self.aliases = aliases

    def proposal(self, counts):
        proposal = Popularity(exponent=2).proposal(counts)
        return proposal if self.aliases else Proposal(proposal.log_q, proposal.n_items)


class NeedsQueries(Uniform):
    def proposal(self, counts):
        vectors = np.ones((len(counts), 4), dtype=np.float32)
        return Kernel().proposal(counts, vectors, 0)


@pytest.mark.parametrize("loss", ["softmax", "bpr"])
def test_a_custom_proposal_is_drawn_from(loss):
    custom = fit(loss=loss, negative_sampler=Largest())
    same = fit(loss=loss, negative_sampler=Popularity(exponent=2))
    assert_array_equal(custom.item_factors_, same.item_factors_)
    assert (custom.item_factors_ != fit(loss=loss).item_factors_).any()


def test_proposals_that_cannot_be_drawn_from_are_refused():
    with pytest.raises(ValueError, match="proposal.log_q of Largest is given without aliases"):
        fit(negative_sampler=Largest(aliases=False))
    with pytest.raises(ValueError, match="proposal of NeedsQueries is a Quadratic.*needs queries"):
        fit(negative_sampler=NeedsQueries())


class Written(Temperature):
    """Writes any numbers, and may return some."""

    def __init__(self, inverse=1.0, returned=None):
        self.inverse, self.returned = inverse, returned

    def refresh(self, epoch, inverse, state, snapshot):
        inverse[:] = self.inverse
        return self.returned


@each(
    "inverse, returned, error, what",
    [
        (0.0, None, ValueError, "Written has written the inverse temperature 0 in epoch 1"),
        (-5.0, None, ValueError, "Written has written the inverse temperature -5"),
        (np.nan, None, ValueError, "Written has written the inverse temperature nan"),
        (np.inf, None, ValueError, "Written has written the inverse temperature inf"),
        (1.0, 3.0, TypeError, "refresh of Written returns 3.0, which would be ignored"),
    ],
)
def test_temperatures_must_be_positive_and_written_in_place(inverse, returned, error, what):
    with pytest.raises(error, match=what):
        fit(temperature=Written(inverse, returned))


def test_an_autoencoder_has_one_temperature():
    model = FastVAERecommender(4, max_iter=1, temperature=Written((2.0, 3.0)))
    with pytest.raises(ValueError, match="2 for positives and 3 for the logarithm, but this model"):
        model.fit(X)


class LooksAtStatistics(Temperature):
    def refresh(self, epoch, inverse, state, snapshot):
        assert snapshot.statistics is None
        inverse[:] = 3


def test_statistics_that_are_not_collected_are_not_zeros():
    model = fit(temperature=LooksAtStatistics())
    # That refresh was called.
    assert_allclose(model.user_temperatures_, 1 / 3, rtol=1e-6)


class Twos(QuerySampler):
    """Codewords of MIDX, by a class that says nothing of when to call it again."""

    def proposal(self, counts, vectors, seed, previous=None):
        return MIDX("uniform", n_codewords=2).proposal(counts, vectors, seed, previous)


class Derived(MIDX):
    """MIDX with a distribution of its own."""

    def proposal(self, counts, vectors, seed, previous=None):
        return MIDX("uniform", n_codewords=2).proposal(counts, vectors, seed, previous)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [MFRecommender, FastVAERecommender])
def test_a_sampler_of_queries_is_refreshed_in_each_epoch(cls):
    own, derived, shipped = (
        cls(4, max_iter=2, negative_sampler=sampler, n_negatives=8, random_state=0).fit(X)
        for sampler in (Twos(), Derived("popularity"), MIDX("uniform", n_codewords=2))
    )
    assert_array_equal(own.item_factors_, derived.item_factors_)
    if cls is MFRecommender:
        assert_array_equal(own.item_factors_, shipped.item_factors_)
    assert np.isfinite(own.item_factors_).all()


def test_draws_follow_the_formulas_of_a_users_sampler():
    rng = np.random.default_rng(0)
    vectors, queries = rng.standard_normal((30, 4)), rng.standard_normal((2, 4))
    ids, log_q = Rectified().fit(vectors).sample(queries, 20_000, random_state=0)
    weights = np.maximum(queries @ vectors.T, 0) + 1
    shares = weights / weights.sum(axis=1, keepdims=True)
    assert_allclose(log_q, np.log(np.take_along_axis(shares, ids, axis=1)), atol=1e-5)
    for drawn, share in zip(ids, shares, strict=True):
        found = np.bincount(drawn, minlength=30)
        assert stats.chisquare(found, share * len(drawn)).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "bpr", "autoencoder"])
def test_recommenders_train_by_the_formulas_of_a_users_sampler(name):
    def own(sampler):
        if name == "autoencoder":
            model = FastVAERecommender(
                4, max_iter=2, negative_sampler=sampler, n_negatives=5, random_state=0
            )
            return model.fit(X)
        return fit(loss=name, negative_sampler=sampler, n_negatives=5)

    models = [own(Rectified(corrected=name != "bpr")) for _ in range(2)]
    assert_array_equal(*(model.item_factors_ for model in models))
    assert np.isfinite(models[0].item_factors_).all()
    other = own(DNS(2))
    assert (other.item_factors_ != models[0].item_factors_).any()


class NoItems(NamedTuple):
    vectors: np.ndarray

    def draw(self, *arguments):
        pass


class Returned(QuerySampler):
    def __init__(self, value=None):
        self.value = value

    def proposal(self, counts, vectors, seed, previous=None):
        return self.value


@each(
    "value, complaint",
    [
        (None, "proposal of Returned is a NoneType, not a Proposal or one with a draw"),
        (np.ones(12), "proposal of Returned is a ndarray"),
        (PositivePart(3, np.ones((3, 4))), "proposal.n_items of Returned is 3, but"),
        (NoItems(np.ones((12, 4))), "proposal.n_items of Returned is missing"),
    ],
)
def test_proposals_without_formulas_are_refused(value, complaint):
    with pytest.raises(ValueError, match=complaint):
        fit(negative_sampler=Returned(value))


class Constant(Initializer):
    def __init__(self, value=0.0):
        self.value = value

    def draw(self, shape, generator, counts=None):
        return np.full(shape, self.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e39])
def test_initial_values_must_be_finite(value):
    with pytest.raises(ValueError, match="draw of Constant must return numbers that are finite"):
        fit(init=Constant(value))
