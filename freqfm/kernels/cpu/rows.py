"""Rows of embedding tables: who owns them, how fast they learn, how they step."""

import math

import numpy as np

from freqfm._jit import scalar
from freqfm.scalars.codes import (
    BETA_1,
    BETA_2,
    COUNT_SAMPLES,
    EPSILON,
    LEARNING_RATE,
    RATE_COUNTED,
    RATE_GIVEN,
    STEP_ADAGRAD,
    STEP_ADAM,
    STEP_ROWWISE_ADAGRAD,
    STEP_SGD,
)
from freqfm.scalars.steps import adagrad_step, adam_step, counted_rate, sgd_step

# Sixteen neighbours have one owner: sixteen float32 of a vector indexed by token fill a cache
# line, and two threads that write the same line wait for each other.
_NEIGHBOURS = np.uint64(4)


@scalar
def owner(token, size):
    """Return which of ``size`` threads may write the rows of ``token``."""
    return (token >> _NEIGHBOURS) % size


@scalar
def adam_corrections(hyper, step):
    """Return Adam's bias corrections of the first moment and of the root of the second."""
    return (
        1.0 - math.pow(hyper[BETA_1], step),
        math.sqrt(1.0 - math.pow(hyper[BETA_2], step)),
    )


@scalar
def row_rate(rate_code, count_code, hyper, per_row, k, weight, curvature):
    """Return the learning rate of row ``k``; its counter advances by the batch's ``weight``."""
    if rate_code == RATE_COUNTED:
        per_row[k] += np.float32(weight if count_code == COUNT_SAMPLES else 1.0)
    return present_rate(rate_code, hyper, per_row, k, curvature)


@scalar
def present_rate(rate_code, hyper, per_row, k, curvature):
    """Return the learning rate of row ``k`` as its counter stands."""
    if rate_code == RATE_COUNTED:
        return counted_rate(hyper, per_row[k], curvature)
    if rate_code == RATE_GIVEN:
        return per_row[k]
    return np.float32(hyper[LEARNING_RATE])


@scalar
def step_row(step_code, hyper, rate, root_correction, table, k, gradient, first, second):
    """Move row ``k`` of a table along ``gradient`` and update its state."""
    width = table.shape[1]
    epsilon = np.float32(hyper[EPSILON])
    if step_code == STEP_SGD:
        for f in range(width):
            table[k, f] = sgd_step(table[k, f], gradient[f], rate)
    elif step_code == STEP_ADAGRAD:
        for f in range(width):
            table[k, f], first[k, f] = adagrad_step(
                table[k, f], gradient[f], first[k, f], rate, epsilon
            )
    elif step_code == STEP_ROWWISE_ADAGRAD:
        squares = np.float32(0)
        for f in range(width):
            squares += gradient[f] * gradient[f]
        first[k, 0] += squares / np.float32(max(width, 1))
        rate /= math.sqrt(first[k, 0]) + epsilon
        for f in range(width):
            table[k, f] = sgd_step(table[k, f], gradient[f], rate)
    elif step_code == STEP_ADAM:
        beta_1 = np.float32(hyper[BETA_1])
        beta_2 = np.float32(hyper[BETA_2])
        for f in range(width):
            table[k, f], first[k, f], second[k, f] = adam_step(
                table[k, f],
                gradient[f],
                first[k, f],
                second[k, f],
                rate,
                root_correction,
                beta_1,
                beta_2,
                epsilon,
            )


@scalar
def step_element(step_code, hyper, rate, root_correction, vector, k, gradient, first, second):
    """Move element ``k`` of a vector along ``gradient``: a row of width one."""
    epsilon = np.float32(hyper[EPSILON])
    if step_code == STEP_SGD:
        vector[k] = sgd_step(vector[k], gradient, rate)
    elif step_code == STEP_ADAM:
        vector[k], first[k], second[k] = adam_step(
            vector[k],
            gradient,
            first[k],
            second[k],
            rate,
            root_correction,
            np.float32(hyper[BETA_1]),
            np.float32(hyper[BETA_2]),
            epsilon,
        )
    else:
        vector[k], first[k] = adagrad_step(vector[k], gradient, first[k], rate, epsilon)
