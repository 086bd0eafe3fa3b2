"""How many threads this process may use, and single-threaded BLAS."""

import functools

import joblib
import numba
import threadpoolctl
from scipy.linalg import cython_blas  # noqa: F401, loads the BLAS that the controller looks for

__all__ = ["available_threads", "cores", "single_threaded_blas"]


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
    return threadpoolctl.ThreadpoolController()


def single_threaded_blas():
    """Return a context in which BLAS uses only the calling thread."""
    return _controller().limit(limits=1, user_api="blas")
