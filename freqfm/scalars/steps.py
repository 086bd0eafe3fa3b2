"""Optimizer steps of one number, and the learning rate of one row.

The formulas are those of the papers and of ``torch.optim``; the rows and tables they run over
belong to the kernels.
"""

import math

import numpy as np

from freqfm._jit import ONE, scalar
from freqfm.scalars.codes import (
    CURVATURE_CAP,
    EXPONENT,
    LEARNING_RATE,
    MAX_STEP,
)


@scalar
def sgd_step(parameter, gradient, rate):
    """Return the parameter after a plain gradient step."""
    return parameter - rate * gradient


@scalar
def adagrad_step(parameter, gradient, total, rate, epsilon):
    """Return the parameter and its sum of squared gradients after an Adagrad step.

    Duchi et al. (2011), with epsilon outside the root as in ``torch.optim.Adagrad``.
    """
    total += gradient * gradient
    return parameter - rate * gradient / (math.sqrt(total) + epsilon), total


@scalar
def adam_step(parameter, gradient, mean, square, rate, root_correction, beta_1, beta_2, epsilon):
    """Return the parameter and its two moments after an Adam step.

    Kingma and Ba (2015), in the form of ``torch.optim.Adam``: ``rate`` is already divided by
    1 - beta_1^t, and ``root_correction`` is the square root of 1 - beta_2^t.
    """
    mean += (ONE - beta_1) * (gradient - mean)
    square = beta_2 * square + (ONE - beta_2) * (gradient * gradient)
    return parameter - rate * mean / (math.sqrt(square) / root_correction + epsilon), mean, square


@scalar
def counted_rate(hyper, count, curvature):
    """Return the learning rate of a token seen ``count`` times.

    Equation (12) of Li et al. (2022), min{1 / 4L, alpha / sqrt(T p)} with p = count / T, where
    T cancels. ``max_step`` is 1 / 4L for a batch that holds the token once; ``curvature`` tells
    how much more curved the batch at hand is.
    """
    exponent = hyper[EXPONENT]
    power = math.sqrt(count) if exponent == 0.5 else count**exponent
    rate = min(hyper[MAX_STEP], hyper[LEARNING_RATE] / power)
    return np.float32(min(rate, hyper[CURVATURE_CAP] / curvature))
