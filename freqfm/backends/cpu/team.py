"""A team of threads that run one compiled kernel together.

Every thread calls the same kernel with its rank; ``wait`` is the only meeting point. Compared
with ``numba.prange`` the machine code is the same for one thread and for many, which is what
makes results independent of ``n_jobs`` to the bit, a meeting costs 0.1 microseconds where a
parallel region costs 1 (OpenMP) to 100 (workqueue), nothing is compiled twice, and neither a
fork nor two Python threads that train at once can abort the process.
"""

import contextlib
import ctypes
import functools
import os
import platform
import queue
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._jit import JIT_DISABLED, inlined, kernel, specialised
from freqfm._signals import hold_signals
from freqfm._threads import available_threads
from freqfm._warnings import warn_user

# Slots of the barrier array, cache lines apart: threads that have arrived, the number of the
# meeting, and whether the team was called off, beside how often to look before sleeping. Then, for
# each rank, whether its thread is at work.
_ARRIVED, _MEETING, _CALLED_OFF, _PATIENCE, _AT_WORK, _LINE = 0, 8, 16, 17, 24, 8

# A thread looks so often, some 100 microseconds, before it leaves its core to others. Where all
# cores are free, meetings are over by then. Where they are not, the thread waited for may be one
# that does not run, and it gets its turn only if this one sleeps: ``sched_yield`` would not do. Who
# yields gives up a whole slice of time, each time, and fits were 10 to 100 times as slow. In a team
# that is larger than the machine somebody always waits for a core.
_LOOKS, _LOOKS_OF_A_CROWD = 4_000, 40

# How often to look before cores are taken for busy, and for how many seconds it is believed that
# they are free, and that they are busy.
_LOOKS_AT_THE_MACHINE, _BELIEVED, _BELIEVED_BUSY = 3, 0.005, 0.001

# By the number of cores that a team wants: how many are free, and until when it is believed. By
# "near": whether two cores are near each other.
_believed = {}

# Two cores are far from each other if a meeting of their threads takes so many seconds, measured
# over so many meetings and believed for so long. On a cloud machine it takes 0.1 or 0.4
# microseconds, which changes every few seconds or minutes. Waking a thread, some 100, counts too.
_FAR, _MEETINGS, _BELIEVED_NEAR = 0.25e-6, 4000, 0.3

# How many threads the first calls take of a team of two that compares one with two; the very first
# may have to compile. Later the one that was slower has a call after so many times its duration.
_FIRST_SIZES, _CALLS_BETWEEN = (2, 2, 1), 30

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


# What tells a core that its thread waits for memory to change, by the kind of processor: the
# function of LLVM, and its argument.
_PAUSES = {
    **dict.fromkeys(("x86_64", "amd64"), ("llvm.x86.sse2.pause", None)),
    **dict.fromkeys(("aarch64", "arm64"), ("llvm.aarch64.hint", 1)),
}


@intrinsic
def _pause(typing_context):
    """Let the thread that shares the core, if there is one, have all of it for a moment."""

    def codegen(context, builder, signature, args):
        name, hint = _PAUSES.get(platform.machine().lower(), (None, None))
        if name is not None:
            given = [] if hint is None else [ir.Constant(ir.IntType(32), hint)]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return context.get_dummy_value()

    return types.void(), codegen


@inlined
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
        looks = _look_again(looks, barrier)


@inlined
def _look_again(looks, barrier):
    """Sleep a little if that many looks were in vain; return the number of looks."""
    if looks >= barrier[_PATIENCE]:
        _sleep(_NAP)
    _pause()
    return looks + 1


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
def _meet(rank, size, barrier, n):
    """Meet so many times, and do nothing else."""
    for _ in range(n):
        wait(barrier, size)


@kernel
def _wait_until_idle(barrier, size):
    """Return once no member is at work."""
    for rank in range(1, size):
        looks = 0
        while _atomic_load(barrier, _AT_WORK + rank * _LINE) != 0:
            looks = _look_again(looks, barrier)


def free_cores(wanted):
    """Return how many cores, of ``wanted`` ones, no other thread of the machine computes on.

    Linux tells; elsewhere all of them are taken for free.
    """
    n_cores = os.cpu_count() or 1
    most = 0
    try:
        # Who runs for a moment only is not busy.
        for _ in range(_LOOKS_AT_THE_MACHINE):
            most = max(most, n_cores + 1 - _running_threads())
            if most >= wanted:
                break
    except (OSError, ValueError, IndexError):
        return wanted
    return max(0, min(most, wanted))


def _find_free_cores(wanted):
    """Return how many cores are free, see ``_lately``."""
    found = free_cores(wanted)
    return found, _BELIEVED if found == wanted else min(_BELIEVED, _BELIEVED_BUSY)


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


def _lately(key, find):
    """Return what was found lately, or is found now.

    ``find`` returns what it finds, and for how many seconds that is believed.
    """
    found, until = _believed.get(key, (None, -np.inf))
    if time.perf_counter() >= until:
        found, seconds = find()
        _believed[key] = found, time.perf_counter() + seconds
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

    As many of them take part in a call as there are free cores: on a busy machine every meeting
    would cost a turn of the scheduler, and one thread alone be faster than two.

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
        self._barrier = np.zeros(_AT_WORK + self.size * _LINE, dtype=np.int64)
        crowded = size > available_threads()
        self._barrier[_PATIENCE] = _LOOKS_OF_A_CROWD if crowded else _LOOKS
        self._workers = []
        self._sharing = sharing
        self._pace = _Pace()

    def __enter__(self):
        if self.size == 1:
            return self
        try:
            with hold_signals():
                while len(self._workers) < self.size - 1:
                    self._workers.append(_hire())
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

        Nobody is at work any more when it returns or raises; signals are held back meanwhile.
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
        barrier[[_ARRIVED, _MEETING, _CALLED_OFF]] = 0
        try:
            others = _other_cores()
            for rank, worker in enumerate(self._workers[: size - 1], 1):
                worker.stay_on(others)
                barrier[_AT_WORK + rank * _LINE] = 1
                worker.inbox.put((kernel, rank, size, barrier, args, errors))
            result = kernel(0, size, barrier, *args)
        except BaseException:
            # Nobody may wait for a thread that will not come.
            barrier[_CALLED_OFF] = 1
            raise
        finally:
            # Arrays belong to the caller again only once nobody works on them any more.
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
        return max(1, _lately(most, functools.partial(_find_free_cores, most)))

    def _size_by_distance(self):
        """Return how many of two threads to take: one if their cores are far from each other."""
        return 2 if _lately("near", self._find_whether_near) else 1

    def _find_whether_near(self):
        """Return whether the cores of two threads are near each other, see ``_lately``."""
        # Compiled, or loaded, before time is taken.
        _meet(0, 1, self._barrier, 0)
        with hold_signals():
            # The first turn of a new thread takes longer than all these meetings, as it has to move
            # to another core.
            self._run(2, _meet, (1,))
            start = time.perf_counter()
            self._run(2, _meet, (_MEETINGS,))
        return time.perf_counter() - start < _FAR * _MEETINGS, _BELIEVED_NEAR


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
            self._left = max(_BELIEVED_NEAR, _CALLS_BETWEEN * seconds)
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

if hasattr(os, "register_at_fork"):
    # A child has no thread but the one that forked.
    os.register_at_fork(after_in_child=_idle.clear)


class _Worker:
    """A thread that runs kernels as a member of teams, until none wants it for a while."""

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
                    # A team has it.
                    continue
                return
            try:
                kernel(rank, size, barrier, *args)
            except BaseException as error:
                errors.append(error)
                barrier[_CALLED_OFF] = 1
            # The arrays are the caller's again.
            del kernel, args, errors
            barrier[_AT_WORK + rank * _LINE] = 0
            del barrier


def _hire():
    """Return a worker that no other team has. Signals must be held back."""
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()
