"""Vectors for users that were not trained: each user's loss is minimised with items held fixed.

The result of a row depends neither on other rows nor on the number of threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.base import DislikedItems
from freqfm.backends.cpu.team import Team
from freqfm.formulas.losses import pair_gradient
from freqfm.formulas.special import exp_of_minus
from freqfm.formulas.steps import fall_along

# Below this number of multiplications in a call, starting threads costs more than it saves.
_WORTH_SEVERAL_THREADS = 1_000_000

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 32


class FoldInScratch(NamedTuple):
    """Working memory, float32; a row for each of ``size`` threads."""

    scores: np.ndarray  #: (size, m), of the others
    pushes: np.ndarray  #: (size, m)
    gradients: np.ndarray  #: (size, d)
    last_users: np.ndarray  #: (size, d), from where the last step was made
    last_gradients: np.ndarray  #: (size, d), and the gradients there


@inlined
def _normalise(vector):
    """Scale a vector to unit length; return whether its length was positive."""
    squares = ZERO
    for f in range(vector.shape[0]):
        squares += vector[f] * vector[f]
    if not squares > ZERO:
        return False
    scale = ONE / np.float32(math.sqrt(squares))
    for f in range(vector.shape[0]):
        vector[f] *= scale
    return True


@inlined
def _score_others(user, others, inverse, scores):
    for j in range(others.shape[0]):
        total = ZERO
        for f in range(others.shape[1]):
            total += user[f] * others[j, f]
        scores[j] = inverse * total


@inlined
def _add_gradient(begin, end, weight, user, problem, histories, scratch, rank):
    """Add the negative gradient of a softmax: the positives less the weighted mean of the others.

    ``_add_gradient_of_pairs`` replaces this for pairwise losses.
    """
    items, others = problem.items, problem.others
    scores, gradient = scratch.scores[rank], scratch.gradients[rank]
    n, width = others.shape
    for p in range(begin, end):
        k = np.uint64(histories.items[p])
        x = problem.positive * histories.weights[p] / weight
        for f in range(width):
            gradient[f] += x * items[k, f]
    largest = scores[0]
    for j in range(n):
        largest = max(largest, scores[j])
    total = ZERO
    for j in range(n):
        scores[j] = exp_of_minus(max(largest - scores[j], ZERO))
        total += scores[j]
    scale = problem.constant * problem.inverse / total
    for j in range(n):
        x = scale * scores[j]
        for f in range(width):
            gradient[f] -= x * others[j, f]


def _add_gradient_of_pairs(begin, end, weight, user, problem, histories, scratch, rank):
    """Add the negative gradient of the mean loss of every positive against every other."""
    items, others, inverse = problem.items, problem.others, problem.inverse
    scores, pushes, gradient = scratch.scores[rank], scratch.pushes[rank], scratch.gradients[rank]
    n = others.shape[0]
    width = others.shape[1]
    for j in range(n):
        pushes[j] = ZERO
    for p in range(begin, end):
        k = np.uint64(histories.items[p])
        score = ZERO
        for f in range(width):
            score += user[f] * items[k, f]
        score *= inverse
        share = histories.weights[p] / (weight * np.float32(n))
        pull = ZERO
        for j in range(n):
            by_positive, by_negative = pair_gradient(share, score, scores[j])
            pushes[j] += by_negative
            pull -= by_positive
        for f in range(width):
            gradient[f] += inverse * pull * items[k, f]
    for j in range(n):
        x = inverse * pushes[j]
        for f in range(width):
            gradient[f] -= x * others[j, f]


@inlined
def _push_from_disliked(r, weight, user, problem, histories, disliked, gradient):
    """Add the negative gradient of the loss of the history's items against the disliked ones."""
    items, inverse = problem.items, disliked.inverse
    width = items.shape[1]
    for q in range(disliked.starts[r], disliked.starts[r + 1]):
        j = np.uint64(disliked.items[q])
        negative = ZERO
        for f in range(width):
            negative += user[f] * items[j, f]
        push = ZERO
        for p in range(histories.starts[r], histories.starts[r + 1]):
            k = np.uint64(histories.items[p])
            positive = ZERO
            for f in range(width):
                positive += user[f] * items[k, f]
            share = disliked.shares[q] * histories.weights[p] / weight
            by_positive, by_negative = pair_gradient(share, inverse * positive, inverse * negative)
            push += by_negative
            for f in range(width):
                gradient[f] -= inverse * by_positive * items[k, f]
        for f in range(width):
            gradient[f] -= inverse * push * items[j, f]


#: Replacements for pairwise losses, see ``jit.specialised``.
OF_PAIRS = {_add_gradient: _add_gradient_of_pairs}


@inlined
def _sum_history(begin, end, items, histories, user):
    """Write the weighted sum of the user's items to ``user``; return the sum of the weights."""
    width = items.shape[1]
    weight = ZERO
    for f in range(width):
        user[f] = ZERO
    for p in range(begin, end):
        k = np.uint64(histories.items[p])
        weight += histories.weights[p]
        for f in range(width):
            user[f] += histories.weights[p] * items[k, f]
    return weight


@inlined
def _write_gradient(begin, end, weight, user, problem, histories, scratch, rank):
    """Write the negative gradient of a user's loss."""
    gradient = scratch.gradients[rank]
    for f in range(problem.items.shape[1]):
        gradient[f] = ZERO
    _score_others(user, problem.others, problem.inverse, scratch.scores[rank])
    _add_gradient(begin, end, weight, user, problem, histories, scratch, rank)


@inlined
def _keep_or_go_back(first, largest_rise, user, gradient, last_user, last_gradient):
    """Undo the last step if the loss has risen; return whether it has.

    The change of the loss is estimated by the mean of the gradients before and after the step.
    """
    fall = ZERO
    for f in range(user.shape[0]):
        fall += fall_along(user[f], gradient[f], last_user[f], last_gradient[f])
    rises = fall < -largest_rise and not first
    for f in range(user.shape[0]):
        if rises:
            user[f], gradient[f] = last_user[f], last_gradient[f]
        else:
            last_user[f], last_gradient[f] = user[f], gradient[f]
    return rises


@kernel
def fold_in_rows(rank, size, barrier, problem, histories, disliked, scratch, out):
    """Write unit vectors of users to ``out`` (n, d); a row without items gets zeros.

    In each of ``n_steps`` steps the user's vector becomes the unit vector of the gradient plus
    ``inertia`` times itself. A step after which the loss is higher is undone, and the user's
    inertia is doubled. The loss is -positive * (mean score) + constant * log sum exp(inverse *
    scores of others) or, with ``OF_PAIRS``, that of ranking each of the user's items above each of
    the others; plus that of ranking them above the disliked items.
    """
    items = problem.items
    gradient = scratch.gradients[rank, : items.shape[1]]
    for r in range(rank, out.shape[0], size):
        user = out[r]
        begin = histories.starts[r]
        end = histories.starts[r + 1]
        weight = _sum_history(begin, end, items, histories, user)
        if not _normalise(user):
            continue
        inertia = problem.inertia
        # Once more, to check the last step.
        for n in range(problem.n_steps + 1):
            _write_gradient(begin, end, weight, user, problem, histories, scratch, rank)
            _push_from_disliked(r, weight, user, problem, histories, disliked, gradient)
            if _keep_or_go_back(
                n == 0, problem.largest_rise, user, gradient, scratch.last_users[rank],
                scratch.last_gradients[rank],
            ):  # fmt: skip
                inertia += inertia
            if n == problem.n_steps:
                break
            for f in range(items.shape[1]):
                user[f] = gradient[f] + inertia * user[f]
            if not _normalise(user):
                break


def fold_in(problem, histories, n_threads, formulas=None, disliked=None):
    """Return unit vectors of users by their histories; see ``Backend.fold_in``."""
    n, (n_others, width) = len(histories.starts) - 1, problem.others.shape
    if disliked is None:
        empty = np.zeros(0, np.int32), np.zeros(0, np.float32)
        disliked = DislikedItems(np.zeros(n + 1, np.int64), *empty, 0.0)
    items, inverse = disliked.items.astype(np.int32, copy=False), np.float32(disliked.inverse)
    disliked = disliked._replace(items=items, inverse=inverse)
    n_threads = max(1, min(n_threads, n))
    if n * problem.n_steps * problem.others.size < _WORTH_SEVERAL_THREADS:
        n_threads = 1
    lengths = n_others, n_others, width, width, width
    scratch = FoldInScratch(*(aligned_zeros((n_threads, n + _PADDING)) for n in lengths))
    out = aligned_zeros((n, width))
    formulas = {**(formulas or {}), **(OF_PAIRS if problem.pairwise else {})}
    with Team(n_threads, formulas) as team:
        team.run(fold_in_rows, problem.in_float32(), histories, disliked, scratch, out)
    return out
