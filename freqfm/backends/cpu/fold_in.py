"""Vectors for users that were not trained: the user's own loss minimised, items held fixed.

A row's result depends on nothing but the row: neither on other rows nor on threads.
"""

import math

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.formulas.special import exp_of_minus


@inlined
def _normalise(vector):
    """Bring a vector to unit length; return whether it had any."""
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
def _pull_of_pairs(
    begin, end, indices, values, weight, user, items, others, scores, pushes, inverse, gradient
):
    """Add the gradient of the mean log loss of every positive against every other."""
    n = others.shape[0]
    width = others.shape[1]
    for j in range(n):
        pushes[j] = ZERO
    for p in range(begin, end):
        k = np.uint64(indices[p])
        score = ZERO
        for f in range(width):
            score += user[f] * items[k, f]
        score *= inverse
        share = values[p] / (weight * np.float32(n))
        pull = ZERO
        for j in range(n):
            difference = score - scores[j]
            small = exp_of_minus(abs(difference))
            slope = share * (small if difference >= ZERO else ONE) / (ONE + small)
            pushes[j] += slope
            pull += slope
        for f in range(width):
            gradient[f] += inverse * pull * items[k, f]
    for j in range(n):
        x = inverse * pushes[j]
        for f in range(width):
            gradient[f] -= x * others[j, f]


@kernel
def fold_in(
    rank,
    size,
    barrier,
    indptr,
    indices,
    values,
    items,
    others,
    pairs,
    positive_inverse,
    inverse,
    constant,
    inertia,
    n_steps,
    scores,
    pushes,
    gradients,
    out,
):
    """Write unit vectors of users to ``out`` (n, d); a row without items gets zeros.

    For ``n_steps`` steps the user moves to the direction of the gradient plus ``inertia`` times
    itself. The loss is, with ``pairs``, that of ranking each of the user's items above each of
    ``others`` (m, d); else -positive_inverse * (mean score) + constant * log sum exp(inverse *
    scores of others). ``items`` (n_items, d) are what scores are taken with.
    ``scores`` and ``pushes`` (size, m) and ``gradients`` (size, d) are scratch.
    """
    width = items.shape[1]
    scores_ = scores[rank]
    pushes_ = pushes[rank]
    gradient = gradients[rank]
    n_rows = out.shape[0]
    for r in range(rank, n_rows, size):
        user = out[r]
        begin = indptr[r]
        end = indptr[r + 1]
        weight = ZERO
        for f in range(width):
            user[f] = ZERO
        for p in range(begin, end):
            k = np.uint64(indices[p])
            weight += values[p]
            for f in range(width):
                user[f] += values[p] * items[k, f]
        if not _normalise(user):
            continue
        for _ in range(n_steps):
            for f in range(width):
                gradient[f] = ZERO
            _score_others(user, others, inverse, scores_)
            if pairs:
                _pull_of_pairs(
                    begin, end, indices, values, weight, user, items, others, scores_, pushes_,
                    inverse, gradient,
                )  # fmt: skip
            else:
                for p in range(begin, end):
                    k = np.uint64(indices[p])
                    x = positive_inverse * values[p] / weight
                    for f in range(width):
                        gradient[f] += x * items[k, f]
                _push_of_softmax(others, scores_, gradient, constant * inverse)
            for f in range(width):
                user[f] = gradient[f] + inertia * user[f]
            if not _normalise(user):
                break
