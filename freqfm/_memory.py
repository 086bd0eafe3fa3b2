"""Arrays that begin with a cache line."""

import numpy as np

# Bytes of a cache line.
_LINE = 64


def aligned_zeros(shape, dtype=np.float32):
    """Return an array of zeros that begins with a cache line.

    Vectors of 16, 32 or 64 numbers then fill whole lines: a row is fetched by one line less, and no
    line has rows of two threads. NumPy's own arrays begin anywhere.
    """
    dtype = np.dtype(dtype)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(n_bytes + _LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % _LINE
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def as_aligned(array):
    """Return an array that begins with a cache line; copied if it does not."""
    if array.ctypes.data % _LINE == 0 or not array.size:
        return array
    aligned = aligned_zeros(array.shape, array.dtype)
    aligned[...] = array
    return aligned
