"""Rows of scores turned into exponentials of their logits, in place."""

import numpy as np

from freqfm._jit import ONE, ZERO, inlined
from freqfm.formulas.special import exp_of_minus


@inlined
def exponentials(scores, r, n, weight, corrections, first, corrected, shift):
    """Turn scores of row ``r`` into exp(weight * score - correction - shift); return their sum."""
    if corrected:
        # This is a separate loop because LLVM compiles a loop over two arrays twice, vectorised and
        # for arrays close to each other: a sum in it would depend on where they are in memory.
        for j in range(n):
            scores[r, j] = weight * scores[r, j] - corrections[first + j]
        weight = ONE
    total = ZERO
    for j in range(n):
        e = exp_of_minus(max(shift - weight * scores[r, j], ZERO))
        scores[r, j] = e
        total += e
    return total


@inlined
def sum_of_exponentials(scores, r, n, largest):
    """Return the sum of exp(score - largest) over row ``r``."""
    total = ZERO
    for j in range(n):
        total += exp_of_minus(max(largest - scores[r, j], ZERO))
    return total


@inlined
def largest_logit(scores, r, n, weight, corrections, first, corrected):
    """Return the largest of the logits of row ``r``, or NaN if any is NaN."""
    largest = -np.float32(np.inf)
    for j in range(n):
        logit = weight * scores[r, j] - (corrections[first + j] if corrected else ZERO)
        if not logit <= largest:
            largest = logit
    return largest
