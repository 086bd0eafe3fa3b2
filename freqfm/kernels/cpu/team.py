"""A team of threads that run one compiled kernel together.

Every thread calls the same kernel with its rank; ``wait`` is the only meeting point. Compared
with ``numba.prange`` the machine code is the same for one thread and for many, which is what
makes results independent of ``n_jobs`` to the bit, a meeting costs 0.1 microseconds where a
parallel region costs 1 (OpenMP) to 100 (workqueue), nothing is compiled twice, and neither a
fork nor two Python threads that train at once can abort the process.
"""

import concurrent.futures
import ctypes
import os
import sys

import numba
import numpy as np
from llvmlite import binding
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._jit import JIT_DISABLED, scalar

# Slots of the barrier array, cache lines apart: threads that have arrived, the number of the
# meeting, and whether the team was called off, beside how often to look before sleeping.
_ARRIVED, _MEETING, _CALLED_OFF, _PATIENCE, _BARRIER_SIZE = 0, 8, 16, 17, 24

# A thread looks so often, some 300 microseconds, before it leaves its core to others. Where all
# cores are free, meetings are over by then. Where they are not, the thread waited for may be one
# that does not run, and it gets its turn only if this one sleeps: ``sched_yield`` would not do. Who
# yields gives up a whole slice of time, each time, and fits were 10 to 100 times as slow. In a team
# that is larger than the machine somebody always waits for a core.
_LOOKS, _LOOKS_OF_A_CROWD = 300_000, 1_000

# For how long it sleeps: microseconds; on Windows 0, to let others run, as sleep there is long.
_NAP = np.uint32(0 if sys.platform == "win32" else 20)


def _publish_sleep():
    """Make the system's sleep callable from compiled code under one name."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.Sleep
    else:
        function = ctypes.CDLL(None).usleep
    binding.add_symbol("freqfm_sleep", ctypes.cast(function, ctypes.c_void_p).value)


_publish_sleep()
_sleep = types.ExternalFunction("freqfm_sleep", types.int32(types.uint32))


def _slot(context, builder, array_type, array, index):
    array = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, array, [index], wraparound=False)


@intrinsic
def _atomic_add(typing_context, array, index, value):
    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", slot, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def _atomic_load(typing_context, array, index):
    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(slot, "seq_cst", 8)

    return types.int64(array, types.intp), codegen


@scalar
def wait(barrier, size):
    """Return once all ``size`` threads have called this, or once the team is called off."""
    if size == 1:
        return
    meeting = _atomic_load(barrier, _MEETING)
    if _atomic_add(barrier, _ARRIVED, 1) == size - 1:
        _atomic_add(barrier, _ARRIVED, -size)
        _atomic_add(barrier, _MEETING, 1)
        return
    looks = 0
    while _atomic_load(barrier, _MEETING) == meeting and _atomic_load(barrier, _CALLED_OFF) == 0:
        looks += 1
        if looks > barrier[_PATIENCE]:
            _sleep(_NAP)


def available_threads():
    """Return how many threads this process may use.

    The smallest of the cores the process is allowed on and ``NUMBA_NUM_THREADS``, by which
    joblib tells its worker processes their share.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return max(1, min(cores, numba.config.NUMBA_NUM_THREADS))


class Team:
    """A team of threads, to be used as a context manager.

    Parameters
    ----------
    size : int
        Number of threads. The calling thread is one of them, so a team of one starts none.
    """

    def __init__(self, size):
        self.size = 1 if JIT_DISABLED else size
        self._barrier = np.zeros(_BARRIER_SIZE, dtype=np.int64)
        crowded = size > available_threads()
        self._barrier[_PATIENCE] = _LOOKS_OF_A_CROWD if crowded else _LOOKS
        self._pool = None

    def __enter__(self):
        if self.size > 1:
            self._pool = concurrent.futures.ThreadPoolExecutor(
                self.size - 1, thread_name_prefix="freqfm"
            )
        return self

    def __exit__(self, *exception):
        if self._pool is not None:
            self._pool.shutdown()

    def run(self, kernel, *args):
        """Call ``kernel(rank, size, barrier, *args)`` in every thread; return rank 0's result."""
        if self.size == 1:
            return kernel(0, 1, self._barrier, *args)
        self._barrier[[_ARRIVED, _MEETING, _CALLED_OFF]] = 0
        others = []
        try:
            for rank in range(1, self.size):
                others.append(self._pool.submit(self._member, kernel, rank, args))
            return self._member(kernel, 0, args)
        except BaseException:
            self._barrier[_CALLED_OFF] = 1
            raise
        finally:
            # Arrays belong to the caller again only once nobody works on them any more.
            concurrent.futures.wait(others)
            for other in others:
                other.result()

    def _member(self, kernel, rank, args):
        try:
            return kernel(rank, self.size, self._barrier, *args)
        except BaseException:
            # Nobody may wait for a thread that will not come.
            self._barrier[_CALLED_OFF] = 1
            raise
