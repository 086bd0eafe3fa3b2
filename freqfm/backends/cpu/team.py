"""A team of threads that run one compiled kernel together.

Every thread calls the same kernel with its rank; ``wait``, a barrier, is the only synchronization.
Compared with ``numba.prange`` the machine code is the same for one thread and for many, which is
what makes results independent of ``n_jobs`` to the bit, a barrier costs 0.1 microseconds where a
parallel region costs 1 (OpenMP) to 100 (workqueue), nothing is compiled twice, and neither a
fork nor two Python threads that train at once can abort the process.
"""

import contextlib
import ctypes
import functools
import os
import queue
import sys
import threading
import time
from typing import NamedTuple

import numpy as np

from freqfm._machine import check_room
from freqfm._messages import warn_user
from freqfm._numba.instructions import atomic_add, atomic_load, pause, sleep
from freqfm._numba.jit import JIT_DISABLED, inlined, kernel, specialised, subroutine
from freqfm._signals import hold_signals

# Slots of the barrier array, cache lines apart: threads that have arrived, the barrier's
# generation, and whether the call was aborted, beside how often to spin before sleeping. Then, for
# each rank, whether its thread is running.
_ARRIVED, _GENERATION, _ABORTED, _MAX_SPINS, _RUNNING, _LINE = 0, 8, 16, 17, 24, 8

# A thread spins so often, some 100 microseconds, before it sleeps. Where all cores are free, the
# others have arrived by then. Where they are not, the thread waited for may not be scheduled, and
# gets a core only if this one sleeps: ``sched_yield`` would not do. A thread that yields gives up
# a whole slice of time, each time, and fits were 10 to 100 times as slow.
_SPINS = 4_000

# How often the load is read, and for how many seconds the least of it is taken for the present one.
_N_READS, _SECONDS_KNOWN = 3, 0.003

# Duration of a sleep: microseconds; on Windows 0, where sleeping takes longer.
_MICROSECONDS = np.uint32(0 if sys.platform == "win32" else 20)


@subroutine
def wait(barrier, size):
    """Return once all ``size`` threads have called this, or once the call is aborted."""
    if size == 1:
        return
    generation = atomic_load(barrier, _GENERATION)
    if atomic_add(barrier, _ARRIVED, 1) == size - 1:
        atomic_add(barrier, _ARRIVED, -size)
        atomic_add(barrier, _GENERATION, 1)
        return
    spins = 0
    while atomic_load(barrier, _GENERATION) == generation and atomic_load(barrier, _ABORTED) == 0:
        spins = _spin(spins, barrier)


@inlined
def _spin(spins, barrier):
    """Pause, after many spins by sleeping; return the number of spins."""
    if spins >= barrier[_MAX_SPINS]:
        sleep(_MICROSECONDS)
    pause()
    return spins + 1


class Member(NamedTuple):
    """A thread of a team, as kernels see it."""

    rank: int
    size: int
    barrier: np.ndarray


@inlined
def synchronize(member):
    """Return once every member has called this."""
    wait(member.barrier, member.size)


@inlined
def part(member, n):
    """Return where this member's part of ``range(n)`` begins and ends."""
    return n * member.rank // member.size, n * (member.rank + 1) // member.size


@kernel
def _wait_until_idle(barrier, size):
    """Return once no other thread is running."""
    for rank in range(1, size):
        spins = 0
        while atomic_load(barrier, _RUNNING + rank * _LINE) != 0:
            spins = _spin(spins, barrier)


def free_cores(wanted):
    """Return how many cores, of ``wanted`` ones, no other thread of the machine computes on.

    Linux reports this; on other systems all cores count as free.
    """
    try:
        # A thread that runs for a moment only does not count.
        n_running = min(_running_threads() for _ in range(_N_READS))
    except (OSError, ValueError, IndexError):
        return wanted
    return max(0, min(wanted, (os.cpu_count() or 1) + 1 - n_running))


def _running_threads():
    """Return how many threads of the machine run or wait for a core, this one included."""
    file = os.open("/proc/loadavg", os.O_RDONLY)
    try:
        return int(os.read(file, 100).split()[3].split(b"/")[0])
    finally:
        os.close(file)


# Returns the number of the core that runs the caller; None where no library has it.
_current_core = getattr(ctypes.pythonapi, "sched_getcpu", None)


def _keep_off_this_core(workers):
    """Let workers run on other cores than the caller, where the system knows affinities.

    A virtual machine takes idle cores for those that its host has given to others, and wakes a
    thread on the core of whoever wakes it. The two then wait for each other for milliseconds.
    """
    if _current_core is None:
        return
    with contextlib.suppress(AttributeError, OSError):
        others = os.sched_getaffinity(0) - {_current_core()}
        for worker in workers:
            if others != worker.cores:
                os.sched_setaffinity(worker.thread.native_id, others)
                worker.cores = others


class Team:
    """A team of threads, to be used as a context manager.

    As many of them take part in a call as there are free cores: on a busy machine every barrier
    would cost a time slice of the scheduler, and one thread alone be faster than two.

    Parameters
    ----------
    size : int
        Number of threads. The calling thread is one of them, so a team of one starts none.
    replacements : dict of function to function, default=None
        A user's own formulas, see ``specialised``: the team runs kernels with these.
    """

    def __init__(self, size, replacements=None):
        self._variant = functools.cache(lambda kernel: specialised(kernel, replacements))
        self.size = 1 if JIT_DISABLED else size
        self._barrier = np.zeros(_RUNNING + self.size * _LINE, dtype=np.int64)
        self._barrier[_MAX_SPINS] = _SPINS
        self._workers = []
        self._present, self._known_until = 1, 0.0

    def __enter__(self):
        if self.size == 1:
            return self
        try:
            with hold_signals():
                while len(self._workers) < self.size - 1:
                    self._workers.append(_acquire_worker(1 + len(self._workers)))
        except (RuntimeError, MemoryError) as error:
            warn_user(
                f"Only {1 + len(self._workers)} of {self.size} threads could be started ({error}). "
                f"The result is the same; to start fewer, set n_jobs."
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        if not self._workers:
            return
        with hold_signals():
            _idle.extend(self._workers)
            self._workers = []

    def run(self, kernel, *args):
        """Call ``kernel(rank, size, barrier, *args)`` in every thread; return rank 0's result.

        No thread is running any more when it returns or raises; signals are held back meanwhile.
        """
        kernel, size = self._variant(kernel), self._present_size()
        if size == 1:
            return kernel(0, 1, self._barrier, *args)
        with hold_signals():
            return self._run(size, kernel, args)

    def _run(self, size, kernel, args):
        barrier, errors = self._barrier, []
        barrier[[_ARRIVED, _GENERATION, _ABORTED]] = 0
        try:
            _keep_off_this_core(self._workers)
            for rank, worker in enumerate(self._workers[: size - 1], 1):
                barrier[_RUNNING + rank * _LINE] = 1
                worker.inbox.put((kernel, rank, size, barrier, args, errors))
            result = kernel(0, size, barrier, *args)
        except BaseException:
            # No thread may wait for one that will not arrive.
            barrier[_ABORTED] = 1
            raise
        finally:
            # Arrays belong to the caller again only once no thread works on them any more.
            _wait_until_idle(barrier, size)
        if errors:
            raise errors[0]
        return result

    def _present_size(self):
        """Return how many threads find a free core."""
        most = 1 + len(self._workers)
        if most > 1 and time.perf_counter() >= self._known_until:
            self._present = max(1, free_cores(most))
            self._known_until = time.perf_counter() + _SECONDS_KNOWN
        return min(self._present, most)


# Workers that no team has. To start and end a thread takes as long as to train on a few hundred
# rows, so one waits a while for the next team.
_idle = []
_SECONDS_IDLE = 1.0

# Memory of a new thread: its stack, the system's allocator, and later BLAS.
_MEGABYTES, _BLAS_MEGABYTES = 96, 32

if hasattr(os, "register_at_fork"):
    # A child process has only the thread that forked.
    os.register_at_fork(after_in_child=_idle.clear)


class _Worker:
    """A thread that runs kernels as a member of teams, until it has been idle for a while."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self.cores = None
        self.thread = threading.Thread(target=self._serve, name="freqfm-team", daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                kernel, rank, size, barrier, args, errors = self.inbox.get(timeout=_SECONDS_IDLE)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    # A team has just acquired the worker.
                    continue
                return
            try:
                kernel(rank, size, barrier, *args)
            except BaseException as error:
                errors.append(error)
                barrier[_ABORTED] = 1
            # The arrays belong to the caller again.
            del kernel, args, errors
            barrier[_RUNNING + rank * _LINE] = 0
            del barrier


def _acquire_worker(n):
    """Return the ``n``-th worker for one team alone. Signals must be held back."""
    try:
        return _idle.pop()
    except IndexError:
        check_room(_MEGABYTES + _BLAS_MEGABYTES * n, "another thread")
        return _Worker()
