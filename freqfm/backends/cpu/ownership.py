"""Which thread may write which rows of a table."""

import numpy as np

from freqfm._jit import inlined

# Sixteen consecutive tokens have the same owner: sixteen float32 of a vector indexed by token fill
# a cache line, and two threads that write to the same line wait for each other.
_NEIGHBOURS = np.uint64(4)


@inlined
def owner(token, size):
    """Return which of ``size`` threads may write the rows of ``token``."""
    return (token >> _NEIGHBOURS) % size


@inlined
def owns(rank, size, token):
    """Return whether thread ``rank`` of ``size`` may write the rows of ``token``."""
    return owner(token, np.uint64(size)) == np.uint64(rank)
