"""Losses of one sample: the value, and the derivative with respect to the score."""

import math

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.formulas.codes import LOG_LOSS
from freqfm.formulas.special import exp_of_minus, log_of_one_plus, sine_and_cosine


@inlined
def log_loss(score, target):
    """Return log(1 + exp(score)) - target * score and its derivative, for a target in [0, 1].

    Written with ``exp(-|score|)``, so that no score overflows.
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
def expectation_of_log_loss(score):
    """Return the probability whose log-odds are the score."""
    small = exp_of_minus(abs(score))
    return (ONE if score >= ZERO else small) / (ONE + small)


@inlined
def expectation(code, score):
    """Return the target that the score predicts under the loss named by ``code``."""
    if code == LOG_LOSS:
        return expectation_of_log_loss(score)
    return score


@inlined
def loss_curvature(code, score, target):
    """Return a bound on the second derivative of the loss named by ``code``."""
    return 0.25 if code == LOG_LOSS else 1.0


@inlined
def softmax_with_positive(logit, log_sum):
    """Return log(exp(logit) + exp(log_sum)), and the softmax probability of ``logit`` in it."""
    largest = max(logit, log_sum)
    total = largest + math.log(math.exp(logit - largest) + math.exp(log_sum - largest))
    return total, math.exp(logit - total)


@inlined
def pair_loss(positive, negative):
    """Return log(1 + exp(negative - positive)) and its derivatives by both scores."""
    value, derivative = log_loss(positive - negative, ONE)
    return value, derivative, -derivative


@inlined
def pair_gradient(share, positive, negative):
    """Return ``share`` times the derivatives of ``pair_loss`` by both scores."""
    difference = positive - negative
    small = exp_of_minus(abs(difference))
    derivative = share * (small if difference >= ZERO else ONE) / (ONE + small)
    return -derivative, derivative


@inlined
def weight_of_draw(draw, n_draws, n_items):
    """Return the weight of a positive's loss against a negative; ``draw`` counts from 1."""
    return ONE / np.float32(n_draws)


@inlined
def ends_draws(value):
    """Return whether a positive's negatives after one with this loss do not count; see WARP."""
    return False


@inlined
def log_of_rank(draw, n_draws, n_items):
    """Return the log of a positive's rank, estimated by the first draw that has a loss."""
    return np.float32(math.log(max((n_items - 1) // draw, 1)))


@inlined
def is_violation(value):
    """Return whether there is a loss."""
    return value > ZERO


@inlined
def log_surrogate(difference):
    """Return the log of a pairwise softmax's surrogate of exp(difference), and its derivative.

    The difference is that of a negative's score and the positive's. A loss that replaces this
    function is a softmax of surrogates.
    """
    return difference, ONE


@inlined
def weight_of_positive(score, threshold, temperature):
    """Return the factor of a positive's loss and its derivative by the score; losses replace it."""
    return 1.0, 0.0


@inlined
def share_of_top(score, threshold, temperature):
    """Return how far a score is among the best of its user, from 0 to 1, and the derivative."""
    share = 1.0 / (1.0 + math.exp(min(max((threshold - score) / temperature, -80.0), 80.0)))
    return share, share * (1.0 - share) / temperature


# Custom formulas replace the functions above, see ``freqfm._numba.jit.specialised``.


def pointwise_replacements(value_and_derivative, curvature, expected_target, of_classes):
    """Return replacements of the functions of a pointwise loss, in float32.

    Parameters
    ----------
    value_and_derivative : function of (score, target)
    curvature : float, or function of (score, target)
    expected_target : function of (score), or None
        If None, the prediction is the score itself or, with ``of_classes``, the class: 1 if the
        score is positive, else 0.
    of_classes : bool
        Whether targets are classes.
    """

    def value(code, score, target):
        loss, derivative = value_and_derivative(score, target)
        return np.float32(loss), np.float32(derivative)

    def constant_curvature(code, score, target):
        return curvature

    def custom_curvature(code, score, target):
        return np.float64(curvature(score, target))

    def expect(code, score):
        return np.float32(expected_target(score))

    def score_itself(code, score):
        return score

    def predicted_class(code, score):
        return ONE if score > ZERO else ZERO

    if expected_target is None:
        expect = predicted_class if of_classes else score_itself

    return {
        loss_and_gradient: value,
        loss_curvature: custom_curvature if callable(curvature) else constant_curvature,
        expectation: expect,
    }


def pairwise_replacements(value_and_derivatives):
    """Return replacements of the functions of a pairwise loss, in float32."""

    def loss(positive, negative):
        value, by_positive, by_negative = value_and_derivatives(positive, negative)
        return np.float32(value), np.float32(by_positive), np.float32(by_negative)

    def gradient(share, positive, negative):
        _, by_positive, by_negative = value_and_derivatives(positive, negative)
        return share * np.float32(by_positive), share * np.float32(by_negative)

    return {pair_loss: loss, pair_gradient: gradient}


# Beyond this cosine, rounding dominates the derivative of the angle.
_LARGEST_COSINE = 1.0 - 1e-7


@inlined
def margin_cosine(cosine, margin):
    """Return cos(theta + margin) for cos(theta) = cosine, and its derivatives by both.

    The angle is clipped to [0, pi], and the cosine to +-(1 - 1e-7); where either is clipped, the
    derivative is zero.
    """
    clipped = min(max(cosine, -_LARGEST_COSINE), _LARGEST_COSINE)
    theta = math.acos(clipped)
    if theta + margin > math.pi:
        return -1.0, 0.0, 0.0
    sine = math.sin(theta + margin)
    by_cosine = sine / math.sin(theta) if clipped == cosine else 0.0
    return math.cos(theta + margin), by_cosine, -sine


_ROUNDED_LARGEST_COSINE = np.float32(_LARGEST_COSINE)


@inlined
def margin_cosine_in_float32(cosine, margin):
    """Return the results of ``margin_cosine`` for a margin between 0 and 1, all in float32.

    It computes no inverse function: cos(a + b) = cos(a) cos(b) - sin(a) sin(b).
    """
    clipped = min(max(cosine, -_ROUNDED_LARGEST_COSINE), _ROUNDED_LARGEST_COSINE)
    sine = np.float32(math.sqrt((ONE - clipped) * (ONE + clipped)))
    sine_of_margin, cosine_of_margin = sine_and_cosine(margin)
    if clipped < -cosine_of_margin:
        return -ONE, ZERO, ZERO
    sine_of_sum = sine * cosine_of_margin + clipped * sine_of_margin
    by_cosine = sine_of_sum / sine if clipped == cosine else ZERO
    return clipped * cosine_of_margin - sine * sine_of_margin, by_cosine, -sine_of_sum
