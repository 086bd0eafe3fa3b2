"""What the machine has: memory, aligned arrays, and threads."""

import contextlib
import ctypes
import functools
import math
import mmap
import os
import threading
from types import SimpleNamespace

import joblib
import numba
import numpy as np
import threadpoolctl
from scipy.linalg import blas  # its import loads the BLAS that the controller looks for

from freqfm._signals import hold_signals

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


# Memory that the BLAS of NumPy and of SciPy allocate when they first multiply matrices that are not
# tiny. They do it while there is room: OpenBLAS ends the process, or waits forever, if it cannot.
_MEGABYTES, _WIDTH = 72, 256


@functools.cache
def cores():
    """Return how many cores this process may use, given its affinity and container quotas."""
    return joblib.cpu_count()


def available_threads():
    """Return how many threads this process may use.

    The smaller of the number of cores that the process may use and ``NUMBA_NUM_THREADS``, which
    joblib sets to limit its worker processes.
    """
    return max(1, min(cores(), numba.config.NUMBA_NUM_THREADS))


@functools.cache
def _controller():
    # Searching for the libraries of the process takes milliseconds, so it is done once.
    controller = threadpoolctl.ThreadpoolController()
    check_room(_MEGABYTES, "linear algebra")
    ones = np.ones((_WIDTH, _WIDTH), dtype=np.float32)
    with controller.limit(limits=1, user_api="blas"):
        np.dot(ones, ones)
        blas.sgemm(1, ones, ones)
    return controller


# The limit that blocks of several threads share; the last of them lifts it. Each with a limit of
# its own would end with what it found, which may be another's limit: BLAS would keep one thread, or
# use several inside a block.
_blas = SimpleNamespace(lock=threading.Lock(), n_blocks=0, limit=None)


@contextlib.contextmanager
def single_threaded_blas():
    """Context manager in which BLAS uses only the calling thread."""
    begun = False
    try:
        with hold_signals(), _blas.lock:
            if _blas.n_blocks == 0:
                _blas.limit = _controller().limit(limits=1, user_api="blas")
            _blas.n_blocks += 1
            begun = True
        yield
    finally:
        if begun:
            with hold_signals(), _blas.lock:
                _blas.n_blocks = max(0, _blas.n_blocks - 1)
                if _blas.n_blocks == 0:
                    _blas.limit.restore_original_limits()


def _lift_limit():
    """Do without all blocks in a forked child, which does not have the threads of others."""
    _blas.lock = threading.Lock()
    if _blas.n_blocks > 0:
        _blas.n_blocks = 0
        _blas.limit.restore_original_limits()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lift_limit)
