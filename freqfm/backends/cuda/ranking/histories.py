"""Vectors of users by their histories: sums of rows, and folding in with items held fixed."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.base import Histories
from freqfm.backends.cuda.groups import group_max, group_sum, synchronize_group
from freqfm.backends.cuda.memory import lanes_for
from freqfm.formulas.losses import pair_gradient
from freqfm.formulas.special import exp_of_minus
from freqfm.formulas.steps import fall_along

# Users that are folded in at a time; each takes scratch for all others.
_GROUPS = 4096


class FoldInArgs(NamedTuple):
    """The arguments of folding in; arrays and numbers are float32 unless another type is given."""

    problem: NamedTuple  #: FoldInProblem
    turned: np.ndarray  #: (d, m), the others as columns
    sums: np.ndarray  #: (n_groups, d), scratch: of the user's items by their weights
    histories: Histories
    scores: np.ndarray  #: (n_groups, m)
    pushes: np.ndarray  #: (n_groups, m)
    gradients: np.ndarray  #: (n_groups, d)
    last_users: np.ndarray  #: (n_groups, d), from where the last step was made
    last_gradients: np.ndarray  #: (n_groups, d), and the gradients there
    out: np.ndarray  #: (n, d), the users' vectors


@inlined
def sum_row(group, histories, r, table, out):
    """Write the sum of weights times rows of a table of user ``r``."""
    for f in range(group.lane, table.shape[1], group.n_lanes):
        total = ZERO
        for p in range(histories.starts[r], histories.starts[r + 1]):
            total += histories.weights[p] * table[histories.items[p], f]
        out[f] = total


@inlined
def sum_rows(group, b, args):
    """Write the sums of all users."""
    histories, table, out = args
    for r in range(group.rank, out.shape[0], group.size):
        sum_row(group, histories, r, table, out[r])


@inlined
def _normalise(group, out, r):
    """Scale a vector to unit length; return whether its length was positive."""
    squares = ZERO
    for f in range(group.lane, out.shape[1], group.n_lanes):
        squares += out[r, f] * out[r, f]
    squares = group_sum(group, squares)
    if squares > ZERO:
        scale = np.float32(1) / np.float32(math.sqrt(squares))
        for f in range(group.lane, out.shape[1], group.n_lanes):
            out[r, f] *= scale
    synchronize_group(group)
    return squares > ZERO


@inlined
def _score_others(group, r, args, scores):
    """Write the scores of the others; return the largest."""
    turned, out, largest = args.turned, args.out, np.float32(-np.inf)
    for j in range(group.lane, turned.shape[1], group.n_lanes):
        total = ZERO
        for f in range(turned.shape[0]):
            total += out[r, f] * turned[f, j]
        scores[j] = args.problem.inverse * total
        largest = max(largest, scores[j])
    return group_max(group, largest)


@inlined
def _pushes_of_softmax(group, largest, scores, pushes, args):
    """Write the multiples of the others that a user is pushed away from, by a softmax."""
    problem, total = args.problem, ZERO
    for j in range(group.lane, scores.shape[0], group.n_lanes):
        pushes[j] = exp_of_minus(max(largest - scores[j], ZERO))
        total += pushes[j]
    scale = problem.constant * problem.inverse / group_sum(group, total)
    for j in range(group.lane, scores.shape[0], group.n_lanes):
        pushes[j] *= scale


@inlined
def _pairs(group, r, weight, scores, pushes, args):
    """Add the pulls of a user's items to the gradient, and write the pushes, by pairs."""
    histories, problem, gradient = args.histories, args.problem, args.gradients[group.rank]
    n, width = scores.shape[0], args.out.shape[1]
    for j in range(group.lane, n, group.n_lanes):
        pushes[j] = ZERO
    for p in range(histories.starts[r], histories.starts[r + 1]):
        k = histories.items[p]
        score = ZERO
        for f in range(group.lane, width, group.n_lanes):
            score += args.out[r, f] * problem.items[k, f]
        score = problem.inverse * group_sum(group, score)
        share = histories.weights[p] / (weight * np.float32(n))
        pull = ZERO
        for j in range(group.lane, n, group.n_lanes):
            by_positive, by_negative = pair_gradient(share, score, scores[j])
            pushes[j] += problem.inverse * by_negative
            pull -= by_positive
        pull = problem.inverse * group_sum(group, pull)
        for f in range(group.lane, width, group.n_lanes):
            gradient[f] += pull * problem.items[k, f]


@inlined
def _keep_or_go_back(group, r, first, args):
    """Undo the last step if the loss has risen; return whether it has.

    The change of the loss is estimated by the mean of the gradients before and after the step.
    """
    user, gradient = args.out[r], args.gradients[group.rank]
    last_user, last_gradient = args.last_users[group.rank], args.last_gradients[group.rank]
    fall = ZERO
    if not first:
        for f in range(group.lane, user.shape[0], group.n_lanes):
            fall += fall_along(user[f], gradient[f], last_user[f], last_gradient[f])
    rises = group_sum(group, fall) < -args.problem.largest_rise
    for f in range(group.lane, user.shape[0], group.n_lanes):
        if rises:
            user[f], gradient[f] = last_user[f], last_gradient[f]
        else:
            last_user[f], last_gradient[f] = user[f], gradient[f]
    return rises


@inlined
def _write_gradient(group, r, weight, args):
    """Write the negative gradient of a user's loss; a lane writes the columns that it reads."""
    problem, out, sums = args.problem, args.out, args.sums[group.rank]
    scores, pushes = args.scores[group.rank], args.pushes[group.rank]
    gradient = args.gradients[group.rank]
    largest = _score_others(group, r, args, scores)
    for f in range(group.lane, out.shape[1], group.n_lanes):
        gradient[f] = ZERO if problem.pairwise else problem.positive / weight * sums[f]
    synchronize_group(group)
    if problem.pairwise:
        _pairs(group, r, weight, scores, pushes, args)
    else:
        _pushes_of_softmax(group, largest, scores, pushes, args)
    synchronize_group(group)
    for f in range(group.lane, out.shape[1], group.n_lanes):
        total = gradient[f]
        for j in range(pushes.shape[0]):
            total -= pushes[j] * problem.others[j, f]
        gradient[f] = total


@inlined
def _step(group, r, inertia, args):
    """Move a user along its gradient; return whether its vector has a length."""
    out, gradient = args.out, args.gradients[group.rank]
    for f in range(group.lane, out.shape[1], group.n_lanes):
        out[r, f] = gradient[f] + inertia * out[r, f]
    synchronize_group(group)
    return _normalise(group, out, r)


@inlined
def fold_in_rows(group, b, args):
    """Write unit vectors of users; a row without items gets zeros."""
    histories, out = args.histories, args.out
    n_groups = min(group.size, args.scores.shape[0])
    for r in range(group.rank, out.shape[0] if group.rank < n_groups else 0, n_groups):
        weight = ZERO
        for p in range(histories.starts[r] + group.lane, histories.starts[r + 1], group.n_lanes):
            weight += histories.weights[p]
        weight = group_sum(group, weight)
        sum_row(group, histories, r, args.problem.items, out[r])
        for f in range(group.lane, out.shape[1], group.n_lanes):
            args.sums[group.rank, f] = out[r, f]
        synchronize_group(group)
        moves = _normalise(group, out, r)
        inertia = args.problem.inertia
        # Once more, to check the last step.
        for n in range(args.problem.n_steps + 1):
            if moves:
                _write_gradient(group, r, weight, args)
                if _keep_or_go_back(group, r, n == 0, args):
                    inertia += inertia
                if n < args.problem.n_steps:
                    moves = _step(group, r, inertia, args)


SUM = (sum_rows,)
FOLD_IN = (fold_in_rows,)


def on_device(device, starts, items, weights):
    """Return Histories in a GPU's memory."""
    return Histories(
        device.to_device(np.asarray(starts, dtype=np.int64)),
        device.to_device(np.asarray(items, dtype=np.int32)),
        device.to_device(np.asarray(weights, dtype=np.float32)),
    )


def sum_histories(device, histories, table):
    """Return the sums of weights times rows of a table, see ``Backend``."""
    sums = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
    out = device.empty(sums.shape, np.float32)
    args = on_device(device, *histories), device.to_device(table), out
    device.run(SUM, args, lanes_for(table.shape[1]), len(sums))
    return device.to_host(out, sums)


def fold_in(device, problem, histories, formulas):
    """Return unit vectors of users by their histories, see ``Backend``."""
    n, (n_others, width) = len(histories[0]) - 1, problem.others.shape
    n_groups = min(n, _GROUPS)
    vectors = np.empty((n, width), dtype=np.float32)
    args = FoldInArgs(
        problem=problem.in_float32()._replace(
            items=device.to_device(problem.items),
            others=device.to_device(problem.others),
            pairwise=bool(problem.pairwise),
            n_steps=int(problem.n_steps),
        ),
        turned=device.to_device(np.ascontiguousarray(problem.others.T)),
        histories=on_device(device, *histories),
        sums=device.empty((n_groups, width), np.float32),
        scores=device.empty((n_groups, n_others), np.float32),
        pushes=device.empty((n_groups, n_others), np.float32),
        gradients=device.empty((n_groups, width), np.float32),
        last_users=device.empty((n_groups, width), np.float32),
        last_gradients=device.empty((n_groups, width), np.float32),
        out=device.empty((n, width), np.float32),
    )
    device.run(FOLD_IN, args, 32, n_groups, formulas=formulas)
    return device.to_host(args.out, vectors)
