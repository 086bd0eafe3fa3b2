"""Arrays that begin with a cache line and are far from others; room for compiled code."""

import ctypes
import math
import mmap

import numpy as np

# Bytes of a cache line.
_LINE = 64

# Bytes that are left free before and after an array. LLVM compiles a loop that reads one array and
# writes another twice: vectorised, and one element at a time for arrays that are closer than what
# one round of the vectorised loop takes. The two may round differently, so that without a distance
# results would depend on where arrays happen to be.
_GUARD = 1024

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def check_room(n_megabytes, what):
    """Raise if the process cannot allocate this much memory, for instance under ``ulimit -v``.

    LLVM and BLAS would end the process or wait forever, as they cannot report a failed allocation.

    Raises
    ------
    MemoryError
        The message says how much memory is needed, and for which purpose.
    """
    try:
        mmap.mmap(-1, n_megabytes << 20, **_PRIVATE).close()
    except OSError as error:
        raise MemoryError(
            f"{what} needs about {n_megabytes} MB of memory, more than this process may still take "
            f"({error}). Raise its limit, such as that of ulimit -v, or set n_jobs=1."
        ) from None


def aligned_zeros(shape, dtype=np.float32):
    """Return an array of zeros that begins with a cache line and is far from others.

    Vectors of 16, 32 or 64 numbers then fill whole lines: a row has one line less, and no line has
    rows of two threads. Arrays of NumPy may begin at any address.
    """
    return _aligned(np.zeros, shape, dtype)


def aligned_empty(shape, dtype=np.float32):
    """Return an array like that of ``aligned_zeros``, whose values are arbitrary."""
    return _aligned(np.empty, shape, dtype)


def _aligned(make, shape, dtype):
    dtype = np.dtype(dtype)
    shape = shape if isinstance(shape, tuple) else (shape,)
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = make(n_bytes + 2 * _GUARD + _LINE, dtype=np.uint8)
    # A third of the time that ``memory.ctypes.data`` takes: a call that trains on a few rows makes
    # tens of arrays.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    begin = _GUARD + -(address + _GUARD) % _LINE
    return np.ndarray(shape, dtype, memory, begin)


def aligned_copy(array):
    """Return a copy that begins with a cache line and is far from other arrays."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def as_aligned(array):
    """Return a float32 array that begins with a cache line and is far from others.

    It is copied if it is not so, as one of a file may not be.
    """
    memory, is_float32 = array.base, array.dtype == np.float32
    if is_float32 and isinstance(memory, np.ndarray) and memory.dtype == np.uint8:
        before = array.ctypes.data - memory.ctypes.data
        after = memory.nbytes - before - array.nbytes
        if array.ctypes.data % _LINE == 0 and min(before, after) >= _GUARD:
            return array
    return aligned_copy(array.astype(np.float32, copy=False))
