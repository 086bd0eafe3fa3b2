"""Losses of one sample: the value, and the derivative with respect to the score."""

import math

from freqfm._jit import HALF, ONE, ZERO, inlined
from freqfm.formulas.codes import LOG_LOSS
from freqfm.formulas.special import exp_of_minus, log_of_one_plus


@inlined
def log_loss(score, target):
    """Return log(1 + exp(score)) - target * score and its derivative, for a target in [0, 1].

    Written with exp(-|score|), so that no score overflows.
    """
    small = exp_of_minus(abs(score))
    value = log_of_one_plus(small) + max(score, ZERO) - target * score
    probability = (ONE if score >= ZERO else small) / (ONE + small)
    return value, probability - target


@inlined
def squared_error(score, target):
    """Return (score - target)^2 / 2 and its derivative."""
    residual = score - target
    return HALF * residual * residual, residual


@inlined
def loss_and_gradient(code, score, target):
    """Return the value and derivative of the loss named by ``code``."""
    if code == LOG_LOSS:
        return log_loss(score, target)
    return squared_error(score, target)


@inlined
def expectation(code, score):
    """Return the target that the score stands for, under the loss named by ``code``."""
    if code == LOG_LOSS:
        small = exp_of_minus(abs(score))
        return (ONE if score >= ZERO else small) / (ONE + small)
    return score


@inlined
def loss_curvature(code):
    """Return the largest second derivative of the loss named by ``code``."""
    return 0.25 if code == LOG_LOSS else 1.0


# Beyond this cosine an angle's derivative is lost in rounding.
_LARGEST_COSINE = 1.0 - 1e-7


@inlined
def margin_cosine(cosine, margin):
    """Return cos(theta + margin) for cos(theta) = cosine, and its derivatives by both.

    The angle is clipped to [0, pi], and the cosine to +-(1 - 1e-7): where they are, the derivative
    is zero.
    """
    clipped = min(max(cosine, -_LARGEST_COSINE), _LARGEST_COSINE)
    theta = math.acos(clipped)
    if theta + margin > math.pi:
        return -1.0, 0.0, 0.0
    sine = math.sin(theta + margin)
    by_cosine = sine / math.sin(theta) if clipped == cosine else 0.0
    return math.cos(theta + margin), by_cosine, -sine
