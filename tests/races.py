"""An emulated GPU that finds races, which only some orders of threads would show.

Between two barriers of the grid, an element that one group writes is read or written by no other
group; and between two calls of ``synchronize_group``, one that a lane writes by no other lane.
Exchanges of values between lanes are no barriers: a GPU need not order memory at them. Lanes may
write the same value.
"""

import collections
import sys
import threading

import numpy as np
from emulated_gpu import EmulatedDevice

from freqfm.backends.cuda import groups

# The thread's part: rank and lane, and how often the group has been synchronized.
_PART = threading.local()


class Access(collections.namedtuple("Access", "rank lane interval value")):
    """By whom an element is read or written, when, and what; None for a read."""

    def races(self, other):
        """Return whether this write and another access are a race."""
        if (self.rank, self.lane) == (other.rank, other.lane):
            return False
        if self.rank == other.rank and self.interval != other.interval:
            return False
        return other.value is None or other.value != self.value


class Watched(np.ndarray):
    """An array that notes who reads and writes its elements, in ``accesses``."""

    def __array_finalize__(self, other):
        """Let views note in the same place."""
        self.accesses = getattr(other, "accesses", None)

    def __getitem__(self, key):
        """Return an element, or a view."""
        self._note(key, None)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        """Write an element."""
        self._note(key, np.asarray(value).item())
        super().__setitem__(key, value)

    def _note(self, key, value):
        key = key if isinstance(key, tuple) else (key,)
        if len(key) < self.ndim or any(isinstance(part, slice) for part in key):
            return
        assert all(0 <= i < n for i, n in zip(key, self.shape, strict=True)), "out of bounds"
        steps = (int(i) * step for i, step in zip(key, self.strides, strict=True))
        address = self.__array_interface__["data"][0] + sum(steps)
        line = sys._getframe(2).f_code.co_name, sys._getframe(2).f_lineno
        self.accesses[address][Access(*_PART.now, value)] = line


class Synchronize:
    """Counts how often a group is synchronized; called by lanes."""

    def __init__(self, wait):
        self._wait = wait

    def __call__(self, *args):
        """Wait for the other lanes."""
        self._wait(*args)
        rank, lane, interval = _PART.now
        _PART.now = rank, lane, interval + 1


class Add:
    """Adds as one step that no other thread interrupts."""

    def __call__(self, array, index, value):
        """Add a value to an element."""
        array.view(np.ndarray)[index] += value


class RacingDevice(EmulatedDevice):
    """A device of groups of several lanes; ``races`` are those that it has found.

    Parameters
    ----------
    size, seed, n_lanes : int
        See ``EmulatedDevice``.
    """

    def __init__(self, size=3, seed=0, n_lanes=4):
        super().__init__(size, seed, n_lanes)
        self.races = set()
        wait, add = Synchronize(self._replacements[groups.synchronize_group]), Add()
        self._replacements[groups.synchronize_group] = lambda *args: wait(*args)
        self._replacements[groups.add_at] = lambda *args: add(*args)

    def _run(self, phase, b, args):
        accesses = collections.defaultdict(dict)

        def watched(part, b, args):
            _PART.now = part.rank, part.lane, 0
            phase(part, b, args)

        super()._run(watched, b, _watch(args, accesses))
        for of_element in accesses.values():
            for write, line in of_element.items():
                if write.value is not None:
                    self.races |= {
                        (phase.__name__, line, of_element[other])
                        for other in of_element
                        if write.races(other)
                    }


def _watch(args, accesses):
    """Return arguments whose arrays are watched."""
    if isinstance(args, tuple):
        parts = [_watch(part, accesses) for part in args]
        return type(args)(*parts) if hasattr(args, "_fields") else tuple(parts)
    if not isinstance(args, np.ndarray):
        return args
    array = args.view(Watched)
    array.accesses = accesses
    return array
