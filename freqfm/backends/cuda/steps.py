"""Steps of one row's weights by a group, for tokens of machines and for rows of tables."""

import math

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cuda.groups import first_of_lanes, group_sum
from freqfm.formulas.codes import COUNT_SAMPLES, EPSILON, RATE_COUNTED, STEP_ROWWISE_ADAGRAD
from freqfm.formulas.steps import present_rate, sgd_step, step_element


@inlined
def rate_of_row(group, rule, per_row, k, n_seen, curvature):
    """Return the learning rate of row ``k``, whose counter advances, to all lanes."""
    rate = ZERO
    if group.lane == 0:
        if rule.rate_code == RATE_COUNTED:
            per_row[k] += np.float32(n_seen) if rule.count_code == COUNT_SAMPLES else ONE
        rate = present_rate(rule.rate_code, rule.hyper, per_row, k, curvature)
    return first_of_lanes(group, rate)


@inlined
def root_of_row(group, rule, first, place, squares, width):
    """Add the lanes' squares of a gradient to the state of row-wise Adagrad; return its root."""
    squares, total = group_sum(group, squares), ZERO
    if group.lane == 0:
        total = first[place] + squares / np.float32(width)
        first[place] = total
    total = first_of_lanes(group, total)
    return np.float32(math.sqrt(total)) + np.float32(rule.hyper[EPSILON])


@inlined
def move_weight(rule, rate, root, weights, place, gradient, first, second):
    """Move one weight; the rate of row-wise Adagrad is divided by ``root_of_row`` already."""
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        weights[place] = sgd_step(weights[place], gradient, rate)
    else:
        step_element(rule, rate, root, weights, place, gradient, first, second)
