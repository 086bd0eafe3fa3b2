"""Vectors for users that were not trained: each user's loss is minimised with items held fixed.

The result of a row depends neither on other rows nor on the number of threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm._memory import aligned_zeros
from freqfm.backends.cpu.team import Team
from freqfm.formulas.losses import pair_gradient
from freqfm.formulas.special import exp_of_minus

# Below this number of multiplications in a call, starting threads costs more than it saves.
_WORTH_SEVERAL_THREADS = 1_000_000

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 32


class FoldInScratch(NamedTuple):
    """Working memory, float32; a row for each of ``size`` threads."""

    scores: np.ndarray  #: (size, m), of the others
    pushes: np.ndarray  #: (size, m)
    gradients: np.ndarray  #: (size, d)


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
def _push_of_softmax(others, scores, gradient, strength):
    """Subtract strength times the softmax-weighted mean of the others from the gradient."""
    n = others.shape[0]
    largest = scores[0]
    for j in range(n):
        largest = max(largest, scores[j])
    total = ZERO
    for j in range(n):
        scores[j] = exp_of_minus(max(largest - scores[j], ZERO))
        total += scores[j]
    scale = strength / total
    for j in range(n):
        x = scale * scores[j]
        for f in range(others.shape[1]):
            gradient[f] -= x * others[j, f]


@inlined
def _pull_of_pairs(begin, end, weight, user, problem, histories, scratch, rank):
    """Add the gradient of the mean log loss of every positive against every other."""
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


@kernel
def fold_in_rows(rank, size, barrier, problem, histories, scratch, out):
    """Write unit vectors of users to ``out`` (n, d); a row without items gets zeros.

    In each of ``n_steps`` steps the user's vector becomes the unit vector of the gradient plus
    ``inertia`` times itself. The loss is, if ``pairwise``, that of ranking each of the user's items
    above each of the others; else it is -positive * (mean score) + constant * log sum exp(inverse *
    scores of others).
    """
    items = problem.items
    width = items.shape[1]
    gradient = scratch.gradients[rank]
    for r in range(rank, out.shape[0], size):
        user = out[r]
        begin = histories.starts[r]
        end = histories.starts[r + 1]
        weight = _sum_history(begin, end, items, histories, user)
        if not _normalise(user):
            continue
        for _ in range(problem.n_steps):
            for f in range(width):
                gradient[f] = ZERO
            _score_others(user, problem.others, problem.inverse, scratch.scores[rank])
            if problem.pairwise:
                _pull_of_pairs(begin, end, weight, user, problem, histories, scratch, rank)
            else:
                for p in range(begin, end):
                    k = np.uint64(histories.items[p])
                    x = problem.positive * histories.weights[p] / weight
                    for f in range(width):
                        gradient[f] += x * items[k, f]
                strength = problem.constant * problem.inverse
                _push_of_softmax(problem.others, scratch.scores[rank], gradient, strength)
            for f in range(width):
                user[f] = gradient[f] + problem.inertia * user[f]
            if not _normalise(user):
                break


def fold_in(problem, histories, n_threads, formulas=None):
    """Return unit vectors of users by their histories; see ``Backend.fold_in``."""
    n, (n_others, width) = len(histories.starts) - 1, problem.others.shape
    n_threads = max(1, min(n_threads, n))
    if n * problem.n_steps * problem.others.size < _WORTH_SEVERAL_THREADS:
        n_threads = 1
    numbers = {
        name: np.float32(getattr(problem, name))
        for name in ("positive", "inverse", "constant", "inertia")
    }
    scratch = FoldInScratch(
        *(aligned_zeros((n_threads, length + _PADDING)) for length in (n_others, n_others, width))
    )
    out = aligned_zeros((n, width))
    with Team(n_threads, formulas) as team:
        team.run(fold_in_rows, problem._replace(**numbers), histories, scratch, out)
    return out
