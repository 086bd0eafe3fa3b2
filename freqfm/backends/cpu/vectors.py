"""Loops over one vector."""

import numpy as np

from freqfm._numba.jit import ZERO, inlined


@inlined
def squared_norm(x, vector, width):
    """Return the squared length of a multiple of a vector.

    The loop writes nothing: LLVM would compile it twice, with two orders of the sum.
    """
    squares = ZERO
    for f in range(width):
        term = x * vector[f]
        squares += term * term
    return squares


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
