"""Optimizer steps of one number and of one row, and the learning rate of a row.

The formulas are those of the papers and of ``torch.optim``.
"""

import math
import types
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, python_function
from freqfm.formulas.codes import (
    BETA_1,
    BETA_2,
    COUNT_SAMPLES,
    CURVATURE_CAP,
    EPSILON,
    EXPONENT,
    LEARNING_RATE,
    MAX_STEP,
    RATE_COUNTED,
    RATE_GIVEN,
    STEP_ADAGRAD,
    STEP_ADAM,
    STEP_ROWWISE_ADAGRAD,
    STEP_SGD,
    STEP_STORE,
)

_TWO = np.float32(2.0)
_LOG_VANISHED = np.float32(math.log(1e-9))


class AdamConstants(NamedTuple):
    """The constants of an Adam step of a row, float32. c is the square root of 1 - beta_2^t."""

    beta_1: float
    beta_2: float
    root_beta_2: float
    rate: float  #: c times the learning rate over 1 - beta_1^t
    epsilon: float  #: c times epsilon


@inlined
def sgd_step(parameter, gradient, rate):
    """Return the parameter after a plain gradient step."""
    return parameter - rate * gradient


@inlined
def fall_along(parameter, gradient, last_parameter, last_gradient):
    """Return by how much a loss is estimated to fall along one parameter of a step.

    By the mean of the negative gradients before and after the step.
    """
    return HALF * (gradient + last_gradient) * (parameter - last_parameter)


@inlined
def adagrad_step(parameter, gradient, total, rate, epsilon):
    """Return the parameter and its sum of squared gradients after an Adagrad step.

    Duchi et al. (2011), with epsilon outside the root as in ``torch.optim.Adagrad``.
    """
    total += gradient * gradient
    return parameter - rate * gradient / (math.sqrt(total) + epsilon), total


@inlined
def adam_constants(hyper, rate, root_correction):
    """Return the AdamConstants of a step; ``rate`` is already divided by 1 - beta_1^t."""
    return AdamConstants(
        np.float32(hyper[BETA_1]),
        np.float32(hyper[BETA_2]),
        np.float32(math.sqrt(hyper[BETA_2])),
        rate * root_correction,
        np.float32(hyper[EPSILON]) * root_correction,
    )


@inlined
def adam_step(parameter, gradient, mean, square, adam):
    """Return the parameter and its two moments after an Adam step.

    Kingma and Ba (2015), in the form of ``torch.optim.Adam``, with numerator and denominator
    multiplied by the correction of the root, which saves a division.
    """
    mean += (ONE - adam.beta_1) * (gradient - mean)
    square = adam.beta_2 * square + (ONE - adam.beta_2) * (gradient * gradient)
    return parameter - adam.rate * mean / (math.sqrt(square) + adam.epsilon), mean, square


@inlined
def adam_step_without_gradient(parameter, mean, root, adam):
    """Return the parameter, its first moment and the root of the second after a step of Adam
    whose gradient is zero.

    Unlike ``adam_step`` it takes no root, so many steps in a row are far faster.
    """
    mean *= adam.beta_1
    root *= adam.root_beta_2
    return parameter - adam.rate * mean / (root + adam.epsilon), mean, root


@inlined
def momentum_steps(beta_1):
    """Return after how many steps without a gradient Adam's momentum no longer moves a row.

    The momentum has then decayed to 1e-9 of its value.
    """
    beta_1 = np.float32(beta_1)
    if beta_1 <= np.float32(0.9):
        return 200
    return int(_LOG_VANISHED / np.float32(math.log(beta_1)))


@inlined
def counted_rate(hyper, count, curvature):
    """Return the learning rate of a token seen ``count`` times.

    Equation (12) of Li et al. (2022), min{1 / 4L, alpha / sqrt(T p)} with p = count / T, where
    T cancels. ``max_step`` is 1 / 4L for a batch that holds the token once; the curvature cap
    over ``curvature`` is the bound for the actual batch.
    """
    exponent = hyper[EXPONENT]
    power = math.sqrt(count) if exponent == 0.5 else count**exponent
    rate = min(hyper[MAX_STEP], hyper[LEARNING_RATE] / power)
    return np.float32(min(rate, hyper[CURVATURE_CAP] / curvature))


@inlined
def penalized_curvature(curvature, weight, k, objective):
    """Return the curvature of a batch's loss along token ``k``, with that of the penalties.

    The curvature of a penalty is exact, not a bound, so it counts twice: a step of 2 over it would
    only change the sign of a weight.
    """
    alpha = max(objective.alpha_linear, objective.alpha_factors) * objective.shares[k]
    return curvature + _TWO * alpha * weight


@inlined
def adam_corrections(hyper, step):
    """Return Adam's bias corrections of the first moment and of the root of the second."""
    return (
        1.0 - math.pow(hyper[BETA_1], step),
        math.sqrt(1.0 - math.pow(hyper[BETA_2], step)),
    )


@inlined
def count(count_code, per_row, k, weight):
    """Let the counter of row ``k`` advance by the batch's ``weight``."""
    per_row[k] += np.float32(weight if count_code == COUNT_SAMPLES else 1.0)


@inlined
def row_rate(rate_code, count_code, hyper, per_row, k, weight, curvature):
    """Return the learning rate of row ``k``; its counter advances by the batch's ``weight``."""
    if rate_code == RATE_COUNTED:
        count(count_code, per_row, k, weight)
    return present_rate(rate_code, hyper, per_row, k, curvature)


@inlined
def present_rate(rate_code, hyper, per_row, k, curvature):
    """Return the learning rate of row ``k`` at the current value of its counter."""
    if rate_code == RATE_COUNTED:
        return counted_rate(hyper, per_row[k], curvature)
    if rate_code == RATE_GIVEN:
        return per_row[k]
    return np.float32(hyper[LEARNING_RATE])


@inlined
def step_row(rule, rate, root_correction, table, k, gradient, first, second):
    """Move row ``k`` of a table along ``gradient`` and update its state, by an UpdateRule."""
    cells = k, np.uint64(0), np.uint64(table.shape[1])
    step_columns(rule, rate, root_correction, table, cells, gradient, first, second)


@inlined
def step_columns(rule, rate, root_correction, table, cells, gradient, first, second):
    """Move some columns of a row, like ``step_row``.

    ``cells`` is the row, its first column, and the end of its columns. Row-wise Adagrad must take
    all columns at once.
    """
    k, begin, end = cells
    step_code = rule.step_code
    epsilon = np.float32(rule.hyper[EPSILON])
    if step_code == STEP_SGD:
        for f in range(begin, end):
            table[k, f] = sgd_step(table[k, f], gradient[f], rate)
    elif step_code == STEP_ADAGRAD:
        for f in range(begin, end):
            table[k, f], first[k, f] = adagrad_step(
                table[k, f], gradient[f], first[k, f], rate, epsilon
            )
    elif step_code == STEP_ROWWISE_ADAGRAD:
        squares = np.float32(0)
        for f in range(begin, end):
            squares += gradient[f] * gradient[f]
        first[k, 0] += squares / np.float32(max(table.shape[1], 1))
        rate /= math.sqrt(first[k, 0]) + epsilon
        for f in range(begin, end):
            table[k, f] = sgd_step(table[k, f], gradient[f], rate)
    elif step_code == STEP_ADAM:
        adam = adam_constants(rule.hyper, rate, root_correction)
        for f in range(begin, end):
            table[k, f], first[k, f], second[k, f] = adam_step(
                table[k, f], gradient[f], first[k, f], second[k, f], adam
            )
    elif step_code == STEP_STORE:
        for f in range(begin, end):
            first[k, f] = gradient[f]


@inlined
def step_element(rule, rate, root_correction, vector, k, gradient, first, second):
    """Move element ``k`` of a vector along ``gradient``: a row of width one."""
    step_code = rule.step_code
    epsilon = np.float32(rule.hyper[EPSILON])
    if step_code == STEP_SGD:
        vector[k] = sgd_step(vector[k], gradient, rate)
    elif step_code == STEP_ADAM:
        adam = adam_constants(rule.hyper, rate, root_correction)
        vector[k], first[k], second[k] = adam_step(vector[k], gradient, first[k], second[k], adam)
    elif step_code in (STEP_ADAGRAD, STEP_ROWWISE_ADAGRAD):
        vector[k], first[k] = adagrad_step(vector[k], gradient, first[k], rate, epsilon)
    elif step_code == STEP_STORE:
        first[k] = gradient


def _copied(compiled, name):
    """Return a compiled function once more, under another name."""
    return inlined(types.FunctionType(python_function(compiled).__code__, globals(), name))


# The steps of dense layers on top of a table, in a kernel that moves both: a custom formula may
# replace one and not the other.
step_layer = _copied(step_columns, "step_layer")
layer_corrections = _copied(adam_corrections, "layer_corrections")


def layer_replacements(replacements):
    """Return replacements of the steps of dense layers, from ``step_replacements``."""
    copies = {step_columns: step_layer, adam_corrections: layer_corrections}
    return {copies[old]: new for old, new in replacements.items() if old in copies}


def step_replacements(step, n_states, with_number):
    """Return replacements of the steps of a row and of an element, in float32.

    Parameters
    ----------
    step : function of (parameter, gradient, first, second, rate)
        It returns the parameter and two numbers of state.
    n_states : int
        How many of these are kept; the others are zero at every step.
    with_number : bool
        Whether the number of the step, from 1 on, is a sixth argument of ``step``.
    """
    has_first, has_second = n_states > 0, n_states > 1

    if with_number:

        def moved(parameter, gradient, first, second, rate, number):
            parameter, first, second = step(parameter, gradient, first, second, rate, number)
            return np.float32(parameter), np.float32(first), np.float32(second)

    else:

        def moved(parameter, gradient, first, second, rate, number):
            parameter, first, second = step(parameter, gradient, first, second, rate)
            return np.float32(parameter), np.float32(first), np.float32(second)

    # ``corrections`` passes the number of the step in place of the root correction.

    def columns(rule, rate, number, table, cells, gradient, *state):
        k, begin, end = cells
        first, second = state
        for f in range(begin, end):
            a = first[k, f] if has_first else ZERO
            b = second[k, f] if has_second else ZERO
            table[k, f], a, b = moved(table[k, f], gradient[f], a, b, rate, number)
            if has_first:
                first[k, f] = a
            if has_second:
                second[k, f] = b

    def element(rule, rate, number, vector, k, gradient, *state):
        first, second = state
        a = first[k] if has_first else ZERO
        b = second[k] if has_second else ZERO
        vector[k], a, b = moved(vector[k], gradient, a, b, rate, number)
        if has_first:
            first[k] = a
        if has_second:
            second[k] = b

    def corrections(hyper, number):
        return 1.0, np.float64(number)

    return {step_columns: columns, step_element: element, adam_corrections: corrections}
