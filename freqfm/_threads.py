"""How many threads this process may use, and BLAS on one of them."""

import functools

import joblib
import numba
import threadpoolctl
from scipy.linalg import cython_blas  # noqa: F401, loads the BLAS that the controller looks for

__all__ = ["available_threads", "cores", "single_threaded_blas"]


@functools.cache
def cores():
    """Return how many cores this process may use, by its affinity and by quotas of containers."""
    return joblib.cpu_count()


def available_threads():
    """Return how many threads this process may use.

    The smallest of the cores the process is allowed on and ``NUMBA_NUM_THREADS``, by which
    joblib tells its worker processes their share.
    """
    return max(1, min(cores(), numba.config.NUMBA_NUM_THREADS))


@functools.cache
def _controller():
    # Looking for the libraries of the process takes milliseconds, so it is done once.
    return threadpoolctl.ThreadpoolController()


def single_threaded_blas():
    """Return a context in which BLAS runs on the calling thread alone."""
    return _controller().limit(limits=1, user_api="blas")
