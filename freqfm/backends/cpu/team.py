"""A team of threads that run one compiled kernel together.

Every thread calls the same kernel with its rank; ``wait`` is the only meeting point. Compared
with ``numba.prange`` the machine code is the same for one thread and for many, which is what
makes results independent of ``n_jobs`` to the bit, a meeting costs 0.1 microseconds where a
parallel region costs 1 (OpenMP) to 100 (workqueue), nothing is compiled twice, and neither a
fork nor two Python threads that train at once can abort the process.
"""

import ctypes
import functools
import os
import queue
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
from llvmlite import binding
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

# A thread looks so often, some 300 microseconds, before it leaves its core to others. Where all
# cores are free, meetings are over by then. Where they are not, the thread waited for may be one
# that does not run, and it gets its turn only if this one sleeps: ``sched_yield`` would not do. Who
# yields gives up a whole slice of time, each time, and fits were 10 to 100 times as slow. In a team
# that is larger than the machine somebody always waits for a core.
_LOOKS, _LOOKS_OF_A_CROWD = 300_000, 1_000

# How often to look before cores are taken for busy, and for how many seconds it is believed that
# they are free, and that they are busy.
_LOOKS_AT_THE_MACHINE, _BELIEVED, _BELIEVED_BUSY = 3, 0.01, 0.001

# By the number of cores that a team wants: how many are free, and until when it is believed.
_believed = {}

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


def _free_cores_lately(wanted):
    """Return what ``free_cores`` has found lately, or finds now."""
    found, until = _believed.get(wanted, (0, -np.inf))
    now = time.perf_counter()
    if now >= until:
        found = free_cores(wanted)
        seconds = _BELIEVED if found == wanted else min(_BELIEVED, _BELIEVED_BUSY)
        _believed[wanted] = found, now + seconds
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
    """

    def __init__(self, size, replacements=None):
        self._variant = functools.cache(lambda kernel: specialised(kernel, replacements))
        self.size = 1 if JIT_DISABLED else size
        self._barrier = np.zeros(_AT_WORK + self.size * _LINE, dtype=np.int64)
        crowded = size > available_threads()
        self._barrier[_PATIENCE] = _LOOKS_OF_A_CROWD if crowded else _LOOKS
        self._inboxes = []

    def __enter__(self):
        if self.size == 1:
            return self
        try:
            with hold_signals():
                while len(self._inboxes) < self.size - 1:
                    self._inboxes.append(_hire())
        except (RuntimeError, MemoryError) as error:
            warn_user(
                f"Only {1 + len(self._inboxes)} of {self.size} threads could be started ({error}). "
                f"The result is the same; to start fewer, set n_jobs."
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception):
        if not self._inboxes:
            return
        with hold_signals():
            _idle.extend(self._inboxes)
            self._inboxes = []

    def run(self, kernel, *args):
        """Call ``kernel(rank, size, barrier, *args)`` in every thread; return rank 0's result.

        Nobody is at work any more when it returns or raises; signals are held back meanwhile.
        """
        kernel = self._variant(kernel)
        size = self._present_size()
        if size == 1:
            return kernel(0, 1, self._barrier, *args)
        with hold_signals():
            return self._run(size, kernel, args)

    def _run(self, size, kernel, args):
        barrier, errors = self._barrier, []
        barrier[[_ARRIVED, _MEETING, _CALLED_OFF]] = 0
        try:
            for rank, inbox in enumerate(self._inboxes[: size - 1], 1):
                barrier[_AT_WORK + rank * _LINE] = 1
                inbox.put((kernel, rank, size, barrier, args, errors))
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

    def is_complete(self):
        """Return whether all threads would take part in a call."""
        return self._present_size() == 1 + len(self._inboxes)

    def _present_size(self):
        """Return how many threads take part in a call."""
        most = 1 + len(self._inboxes)
        if most == 1:
            return 1
        return max(1, _free_cores_lately(most))


# Inboxes of threads that no team has. To start and end a thread takes as long as to train on a
# few hundred rows, so one waits a while for the next team.
_idle = []
_SECONDS_IDLE = 1.0

if hasattr(os, "register_at_fork"):
    # A child has no thread but the one that forked.
    os.register_at_fork(after_in_child=_idle.clear)


def _hire():
    """Return the inbox of a thread that no other team has. Signals must be held back."""
    try:
        return _idle.pop()
    except IndexError:
        inbox = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="freqfm-team", daemon=True).start()
        return inbox


def _serve(inbox):
    """Run kernels as a member of teams, until none has wanted this thread for a while."""
    while True:
        try:
            kernel, rank, size, barrier, args, errors = inbox.get(timeout=_SECONDS_IDLE)
        except queue.Empty:
            try:
                _idle.remove(inbox)
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
