"""Rows of scores turned into exponentials of their logits, in place."""

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.formulas.special import exp_of_minus


@inlined
def exponentials(scores, r, n, weight, shift):
    """Turn scores of row ``r`` into exp(weight * score - shift), at most 1; return their sum."""
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
def largest_of_row(bits, r, n):
    """Return the largest of the numbers of row ``r``; NaN counts as largest or, negative, smallest.

    ``bits`` are those of float32 numbers. Read as integers, they are in the order of the numbers
    once those of negative numbers are flipped. The maximum of integers, unlike that of floats,
    vectorises.
    """
    largest = np.int32(-(2**31))
    for j in range(n):
        k = bits[r, j]
        k ^= (k >> np.int32(31)) & np.int32(0x7FFFFFFF)
        if k > largest:
            largest = k
    return np.int32(largest ^ ((largest >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
