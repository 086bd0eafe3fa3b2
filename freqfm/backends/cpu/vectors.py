"""Loops over one vector, rows of scores, and how matrices are cut into tiles.

How the rows and columns of a matrix are cut into tiles, each the work of one call of BLAS.

It must not depend on the number of threads, because BLAS may sum in another order when a shape
changes.
"""

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.formulas.special import exp_of_minus


@inlined
def add_multiple(x, vector, total):
    """Add a multiple of a vector to another."""
    for f in range(vector.shape[0]):
        total[f] += x * vector[f]


@inlined
def contains(values, begin, end, x):
    """Return whether a number is among the values from ``begin`` to ``end`` of an array."""
    found = False
    for p in range(np.uint64(begin), np.uint64(end)):
        found |= values[p] == x
    return found


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


@inlined
def tile_height(n, most):
    """Return how many of ``n`` rows a tile has, at most ``most``.

    Tiles are equal and, but for very few rows, an even number: of five tiles, one of two threads
    would have three.
    """
    n_tiles = 2 * -(-n // (2 * most))
    return -(-n // n_tiles)


@inlined
def n_tiles(n, height):
    """Return how many tiles of a height ``n`` rows have."""
    return -(-n // height)


@inlined
def tile_of(t, n, height, m, width):
    """Return where tile ``t`` of an (n, m) matrix begins and ends: its rows, then its columns."""
    across = n_tiles(m, width)
    top, left = t // across * height, t % across * width
    return top, min(top + height, n), left, min(left + width, m)
