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

from freqfm._memory import check_room
from freqfm._numba.instructions import atomic_add, atomic_load, pause, sleep
from freqfm._numba.jit import JIT_DISABLED, inlined, kernel, specialised
from freqfm._signals import hold_signals
from freqfm._threads import available_threads
from freqfm._warnings import warn_user

# Slots of the barrier array, cache lines apart: threads that have arrived, the barrier's
# generation, and whether the call was aborted, beside how often to spin before sleeping. Then, for
# each rank, whether its thread is running.
_ARRIVED, _GENERATION, _ABORTED, _MAX_SPINS, _RUNNING, _LINE = 0, 8, 16, 17, 24, 8

# A thread spins so often, some 100 microseconds, before it sleeps. Where all cores are free, the
# others have arrived by then. Where they are not, the thread waited for may not be scheduled, and
# gets a core only if this one sleeps: ``sched_yield`` would not do. A thread that yields gives up
# a whole slice of time, each time, and fits were 10 to 100 times as slow. In a team with more
# threads than cores some thread always waits for a core.
_SPINS, _SPINS_OVERSUBSCRIBED = 4_000, 40

# How often the load is read before cores count as busy, and for how many seconds a result is
# cached: that they are free, and that they are busy.
_N_READS, _FREE_SECONDS, _BUSY_SECONDS = 3, 0.005, 0.001

# By the number of cores that a team wants: how many are free, and until when that is cached. By
# "near": whether two cores are near each other.
_cache = {}

# Two cores are far from each other if a barrier of their threads takes so many seconds, measured
# over so many barriers and cached for so long. On a cloud machine it takes 0.1 or 0.4
# microseconds, which changes every few seconds or minutes. Waking a thread, some 100, counts too.
_FAR, _N_BARRIERS, _NEAR_SECONDS = 0.25e-6, 4000, 0.3

# How many threads the first calls take of a team of two that compares one with two; the very first
# may have to compile. Later the one that was slower has a call after so many times its duration.
_FIRST_SIZES, _CALLS_BETWEEN = (2, 2, 1), 30

# For how long a thread sleeps: microseconds; on Windows 0, as sleep there is long.
_MICROSECONDS = np.uint32(0 if sys.platform == "win32" else 20)


@inlined
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
def _synchronize_only(rank, size, barrier, n):
    """Wait at the barrier so many times, and do nothing else."""
    for _ in range(n):
        wait(barrier, size)


@kernel
def _wait_until_idle(barrier, size):
    """Return once no other thread is running."""
    for rank in range(1, size):
        spins = 0
        while atomic_load(barrier, _RUNNING + rank * _LINE) != 0:
            spins = _spin(spins, barrier)


def free_cores(wanted):
    """Return how many cores, of ``wanted`` ones, no other thread of the machine computes on.

    Linux tells; elsewhere all of them are taken for free.
    """
    n_cores = os.cpu_count() or 1
    most = 0
    try:
        # A thread that runs for a moment only does not count.
        for _ in range(_N_READS):
            most = max(most, n_cores + 1 - _running_threads())
            if most >= wanted:
                break
    except (OSError, ValueError, IndexError):
        return wanted
    return max(0, min(most, wanted))


def _find_free_cores(wanted):
    """Return how many cores are free, and for how long that is cached, see ``_cached``."""
    found = free_cores(wanted)
    return found, _FREE_SECONDS if found == wanted else min(_FREE_SECONDS, _BUSY_SECONDS)


def _find_current_core():
    """Return a function that returns the core on which it is called, or None where none tells."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(AttributeError, OSError):
            return ctypes.CDLL(None).sched_getcpu
    return None


_current_core = _find_current_core()


def _other_cores():
    """Return the cores that the caller may use, without the one it is on; none where none tells."""
    return os.sched_getaffinity(0) - {_current_core()} if _current_core else set()


def _cached(key, find):
    """Return what ``find`` returns, from the cache if that has not expired.

    ``find`` returns a value, and for how many seconds it is cached.
    """
    found, until = _cache.get(key, (None, -np.inf))
    if time.perf_counter() >= until:
        found, seconds = find()
        _cache[key] = found, time.perf_counter() + seconds
    return found


def _running_threads():
    """Return how many threads of the machine run or wait for a core, this one included."""
    file = os.open("/proc/loadavg", os.O_RDONLY)
    try:
        return int(os.read(file, 100).split()[3].split(b"/")[0])
    finally:
        os.close(file)


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
    sharing : bool, default=False
        Whether threads read so much of what others have just written that two of them, on cores
        that are far from each other, may take longer than one. Calls with ``work`` are timed, and
        take the number of threads that was faster; others take one if the cores are far.
    """

    def __init__(self, size, replacements=None, sharing=False):
        self._variant = functools.cache(lambda kernel: specialised(kernel, replacements))
        self.size = 1 if JIT_DISABLED else size
        self._barrier = np.zeros(_RUNNING + self.size * _LINE, dtype=np.int64)
        oversubscribed = size > available_threads()
        self._barrier[_MAX_SPINS] = _SPINS_OVERSUBSCRIBED if oversubscribed else _SPINS
        self._workers = []
        self._sharing = sharing
        self._pace = _Pace()

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

    def run(self, kernel, *args, work=None):
        """Call ``kernel(rank, size, barrier, *args)`` in every thread; return rank 0's result.

        No thread is running any more when it returns or raises; signals are held back meanwhile.
        ``work`` is how much there is to do, in any unit that all such calls of the team have.
        """
        kernel = self._variant(kernel)
        size = self._present_size()
        compared = size == 2 and self._sharing
        if compared:
            size = self._pace.size() if work else self._size_by_distance()
        start = time.perf_counter()
        if size == 1:
            result = kernel(0, 1, self._barrier, *args)
        else:
            with hold_signals():
                result = self._run(size, kernel, args)
        if compared and work:
            self._pace.add(size, time.perf_counter() - start, work)
        return result

    def _run(self, size, kernel, args):
        barrier, errors = self._barrier, []
        barrier[[_ARRIVED, _GENERATION, _ABORTED]] = 0
        try:
            others = _other_cores()
            for rank, worker in enumerate(self._workers[: size - 1], 1):
                worker.stay_on(others)
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

    def is_settled(self):
        """Return whether all threads find a free core, and the next call compares nothing."""
        size = self._present_size()
        compares = size == 2 and self._sharing and self._pace.is_due()
        return size == 1 + len(self._workers) and not compares

    def _present_size(self):
        """Return how many threads find a free core."""
        most = 1 + len(self._workers)
        if most == 1:
            return 1
        return max(1, _cached(most, functools.partial(_find_free_cores, most)))

    def _size_by_distance(self):
        """Return how many of two threads to take: one if their cores are far from each other."""
        return 2 if _cached("near", self._find_whether_near) else 1

    def _find_whether_near(self):
        """Return whether the cores of two threads are near each other, see ``_cached``."""
        # Compiled, or loaded, before time is taken.
        _synchronize_only(0, 1, self._barrier, 0)
        with hold_signals():
            # The first call of a new thread takes longer than all these barriers, as it has to move
            # to another core.
            self._run(2, _synchronize_only, (1,))
            start = time.perf_counter()
            self._run(2, _synchronize_only, (_N_BARRIERS,))
        return time.perf_counter() - start < _FAR * _N_BARRIERS, _NEAR_SECONDS


class _Pace:
    """Whether one thread or two take less time for the same work, by the durations of calls."""

    def __init__(self):
        # Seconds of calls, not of the clock: other work in between says nothing about these.
        self._seconds, self._n_calls, self._left = {}, 0, 0.0

    def is_due(self):
        """Return whether the next call is one of the first, or of the number that was slower."""
        return self._n_calls < len(_FIRST_SIZES) or self._left <= 0

    def size(self):
        """Return how many threads the next call takes."""
        if self._n_calls < len(_FIRST_SIZES):
            return _FIRST_SIZES[self._n_calls]
        return 3 - self._faster() if self.is_due() else self._faster()

    def add(self, size, seconds, work):
        """Take note of a call."""
        if self._n_calls < len(_FIRST_SIZES) or size != self._faster():
            self._left = max(_NEAR_SECONDS, _CALLS_BETWEEN * seconds)
        else:
            self._left -= seconds
        self._seconds[size] = seconds / work
        self._n_calls += 1

    def _faster(self):
        return min(self._seconds, key=self._seconds.get)


# Workers that no team has. To start and end a thread takes as long as to train on a few hundred
# rows, so one waits a while for the next team.
_idle = []
_SECONDS_IDLE = 1.0

# What a new thread takes for its stack and the system's allocator, and later each one for BLAS.
_MEGABYTES, _BLAS_MEGABYTES = 96, 32

if hasattr(os, "register_at_fork"):
    # A child has no thread but the one that forked.
    os.register_at_fork(after_in_child=_idle.clear)


class _Worker:
    """A thread that runs kernels as a member of teams, until it has been idle for a while."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()
        self._cores = None
        self._thread = threading.Thread(target=self._serve, name="freqfm-team", daemon=True)
        self._thread.start()

    def stay_on(self, cores):
        """Run on these cores, if any are given.

        A virtual machine takes idle cores for those that its host has given to others, and wakes a
        thread on the core of whoever wakes it. The two then wait for each other for milliseconds.
        """
        if cores and cores != self._cores:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self._thread.native_id, cores)
            self._cores = cores

    def _serve(self):
        while True:
            try:
                kernel, rank, size, barrier, args, errors = self.inbox.get(timeout=_SECONDS_IDLE)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    # A team has just taken it.
                    continue
                return
            try:
                kernel(rank, size, barrier, *args)
            except BaseException as error:
                errors.append(error)
                barrier[_ABORTED] = 1
            # The arrays are the caller's again.
            del kernel, args, errors
            barrier[_RUNNING + rank * _LINE] = 0
            del barrier


def _acquire_worker(n):
    """Return the ``n``-th worker of a team, which no other has. Signals must be held back."""
    try:
        return _idle.pop()
    except IndexError:
        check_room(_MEGABYTES + _BLAS_MEGABYTES * n, "another thread")
        return _Worker()
