"""``check_component`` finds what is wrong with a user's component, and nothing else."""

import numpy as np
import pytest
from custom_components import (
    CustomAdam,
    CustomBPR,
    CustomLogLoss,
    CustomSGD,
    CustomSquaredError,
    Hinge,
    HingeOfPairs,
)
from helpers import each
from numba import njit

from freqfm import MFRecommender
from freqfm.auxiliary import AUXILIARY_TERMS, AuxiliaryTerm
from freqfm.backbones import BACKBONES, Context, Features
from freqfm.initializers import INITIALIZERS, Initializer
from freqfm.losses import (
    BPR,
    CLASS_LOSSES,
    MACR,
    RANKING_LOSSES,
    REAL_LOSSES,
    LogLoss,
    Loss,
    PairwiseLoss,
)
from freqfm.optimizers import OPTIMIZERS, SGD
from freqfm.samplers import SAMPLERS, Uniform
from freqfm.temperatures import TEMPERATURES, Temperature
from freqfm.testing import check_component


class WrongSign(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        return (score - target) ** 2 / 2, target - score


class Doubled(PairwiseLoss):
    @staticmethod
    @njit
    def value_and_derivatives(positive, negative):
        return (1 - positive + negative) ** 2, -(1 - positive + negative), 1 - positive + negative


class Ascent(CustomSGD):
    @staticmethod
    @njit
    def step(parameter, gradient, first, second, rate):
        return parameter + rate * gradient, first, second


class HingeOfBPR(BPR):
    def loss(self, positive, negative):
        return max(0.0, 1 - positive + negative)


class MarginOfBPR(BPR):
    def __init__(self, margin=1.0):
        self.margin = margin


class Unread(CustomSGD):
    """A static step cannot read a parameter."""

    step = staticmethod(CustomSGD.step)

    def __init__(self, learning_rate=1.0, momentum=0.9):
        self.learning_rate = learning_rate
        self.momentum = momentum


class OtherValue(LogLoss):
    def value(self, score, target):
        return abs(score - target)


class NoFormula(PairwiseLoss):
    pass


class Changed(CustomSGD):
    def __init__(self, learning_rate=1.0):
        self.learning_rate = [learning_rate]


class Lengths(AuxiliaryTerm):
    """The mean squared length of users' vectors."""

    def __init__(self, error=1.0):
        self.error = error

    def value_and_gradients(self, batch):
        users = batch.user_vectors
        return (users**2).sum() / len(users), self.error * 2 * users / len(users), None


class ForgetsItems(Lengths):
    def value_and_gradients(self, batch):
        value, by_users, by_items = super().value_and_gradients(batch)
        return value + (batch.item_vectors**2).sum(), by_users, by_items


class WrongMACR(MACR):
    def value_and_gradients(self, batch):
        value, by_users, by_items = super().value_and_gradients(batch)
        return value, by_users, 2 * by_items


class NoArrays(Lengths):
    def value_and_gradients(self, batch):
        return 1.0


class Transposed(Initializer):
    def draw(self, shape, generator, counts=None):
        return generator.standard_normal(shape[::-1])


class Nowhere(Uniform):
    def draw(self, shape, n_items, proposal, generator):
        return np.full(shape, n_items)


class Negative(Temperature):
    def refresh(self, epoch, inverse, state, snapshot):
        inverse[:] = -1


WRONG = [
    (
        WrongSign(),
        AssertionError,
        r"value_and_derivative\(-1.713, 0\) of WrongSign .* 1.71 by the s",
    ),
    (Doubled(), AssertionError, "of Doubled .* by the positive, .* changes by"),
    (Ascent(), AssertionError, "step of Ascent moves a weight in the direction of its gradient"),
    (HingeOfBPR(), TypeError, "HingeOfBPR that sets loss, which would be ignored"),
    (MarginOfBPR(), TypeError, "MarginOfBPR that sets margin"),
    (Unread(), TypeError, "Unread that sets momentum"),
    (OtherValue(), TypeError, "OtherValue that sets value"),
    (NoFormula(), TypeError, "NoFormula without value_and_derivatives"),
    (Changed(), RuntimeError, "constructor either does not set or modifies parameter"),
    (CustomSGD(-1.0), ValueError, "'learning_rate' parameter of CustomSGD must be"),
    (Lengths(3.0), AssertionError, "of Lengths returns gradients of users, but that is not the d"),
    (ForgetsItems(), AssertionError, "of ForgetsItems returns gradients of items, but"),
    (WrongMACR(), AssertionError, "of WrongMACR returns gradients of items, but"),
    (NoArrays(), ValueError, "of NoArrays must return a number"),
    (Transposed(), ValueError, "draw of Transposed"),
    (Nowhere(), ValueError, "draw of Nowhere must return items"),
    (Negative(), ValueError, "Negative"),
    (SGD, TypeError, "component=.* must be an instance of a class that derives from Loss, "),
    (MFRecommender(), TypeError, "is a MFRecommender, but must be an instance"),
]


@each("component, error, message", WRONG)
def test_mistakes_are_named(component, error, message):
    with pytest.raises(error, match=message):
        check_component(component)


@each(
    "component",
    [
        *(CustomAdam(), CustomBPR(), CustomLogLoss(), CustomSGD(), CustomSquaredError()),
        *(Hinge(0.5), HingeOfPairs(), Lengths()),
    ],
)
def test_right_components_pass(component):
    check_component(component)


@pytest.mark.slow
@each("registry", [CLASS_LOSSES, REAL_LOSSES, RANKING_LOSSES, OPTIMIZERS])
def test_compiled_components_of_the_package_pass(registry):
    for make in registry.values():
        check_component(make())


@pytest.mark.slow  # a fit of each
@each("registry", [SAMPLERS, TEMPERATURES, INITIALIZERS, BACKBONES, AUXILIARY_TERMS])
def test_other_components_of_the_package_pass(registry):
    for name, make in registry.items():
        if name not in ("features", "context"):
            check_component(make())


def test_interactions_and_parameters_may_be_given():
    features, X = np.eye(7, 3), np.ones((7, 5)) - np.eye(7, 5)
    check_component(Features(user_features=features), X, loss="bpr", n_negatives=2)
    check_component(Context(context=features, users=np.arange(7)), X.tolist())
    with pytest.raises(ValueError, match="user_features"):
        check_component(Features(user_features=features))
