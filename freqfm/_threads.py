"""How many threads this process may use, and single-threaded BLAS."""

import contextlib
import functools
import os
import threading
from types import SimpleNamespace

import joblib
import numba
import numpy as np
import threadpoolctl
from scipy.linalg import blas  # its import loads the BLAS that the controller looks for

from freqfm._memory import check_room
from freqfm._signals import hold_signals

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
