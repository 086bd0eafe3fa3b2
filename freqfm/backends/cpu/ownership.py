"""Which thread may write which rows of a table."""

import numpy as np

from freqfm._numba.jit import inlined

# Sixteen consecutive tokens have the same owner: sixteen float32 of a vector indexed by token fill
# a cache line, and two threads that write to the same line wait for each other.
_NEIGHBOURS = np.uint64(4)


# The odd number closest to 2^32 over the golden ratio: multiples of it, modulo 2^32, are spread
# evenly, so that each thread gets as many of the frequent tokens, wherever these are.
_SPREAD, _LOW_HALF, _HALF = np.uint64(2654435769), np.uint64(0xFFFFFFFF), np.uint64(32)


@inlined
def owner(token, size):
    """Return which of ``size`` threads may write the rows of ``token``."""
    # A share of 2^32, because a division would take longer than all else that is done to find out.
    return ((((token >> _NEIGHBOURS) * _SPREAD) & _LOW_HALF) * size) >> _HALF


@inlined
def owns(rank, size, token):
    """Return whether thread ``rank`` of ``size`` may write the rows of ``token``."""
    return owner(token, np.uint64(size)) == np.uint64(rank)
