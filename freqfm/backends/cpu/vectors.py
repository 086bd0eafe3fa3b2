"""Loops over one vector."""

import numpy as np

from freqfm._numba.jit import inlined


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
