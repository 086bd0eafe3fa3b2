"""A GPU on the CPU: phases as plain Python, with groups in random order.

Groups have one lane, or several, which are threads: what lanes do together is then an exchange in
which all must take part, at the same function.
"""

import functools
import random
import threading

import numpy as np

from freqfm._numba.jit import translated
from freqfm.backends.cuda import groups
from freqfm.backends.cuda.device import with_constants
from freqfm.backends.cuda.groups import Group


class Lanes:
    """Threads that run a phase as the lanes of a group: one at a time, in random order.

    A lane runs until it exchanges values with the others; when all have, each goes on in turn.
    """

    def __init__(self, n):
        self.n = n
        self._generator = random.Random(n)

    def run(self, function, rank, size, *args):
        """Run a function in all lanes; raise the first error of any."""
        self._turns = [threading.Lock() for _ in range(self.n)]
        self._given, self._order, self._errors = [None] * self.n, [], []
        for turn in self._turns:
            turn.acquire()

        def run_lane(lane):
            try:
                self._await_turn(lane)
                with np.errstate(all="ignore"):
                    function(Group(rank, size, lane, self.n), *args)
                self._arrive(lane, "end", None)
            except BaseException as error:
                self._errors.append(error)
                for turn in self._turns:  # the others wait, and end too
                    if turn.locked():
                        turn.release()

        threads = [threading.Thread(target=run_lane, args=(lane,)) for lane in range(self.n)]
        for thread in threads:
            thread.start()
        self._begin_turns()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _begin_turns(self):
        self._order = self._generator.sample(range(self.n), self.n)
        self._turns[self._order.pop()].release()

    def _await_turn(self, lane):
        self._turns[lane].acquire()
        if self._errors:
            raise RuntimeError("another lane has failed")

    def _arrive(self, lane, name, value):
        """Give a value, and the turn to the next lane; return whether all lanes have arrived."""
        self._given[lane] = name, value
        if self._order:
            self._turns[self._order.pop()].release()
            return False
        names, self._values = zip(*self._given, strict=True)
        # A lane that has taken a branch which others have not is elsewhere.
        assert set(names) == {name}, f"lanes are at {set(names)}"
        return True

    def exchange(self, lane, name, value):
        """Return the values of all lanes."""
        if self._arrive(lane, name, value):
            self._begin_turns()
        self._await_turn(lane)
        return self._values

    def replacements(self):
        """Return what lanes do together, by the functions for a single lane."""

        def together(name, result):
            return lambda group, value=None: result(
                group.lane, self.exchange(group.lane, name, value)
            )

        def equals(lane, values):
            return values[:lane].count(values[lane]), values.count(values[lane])

        return {
            groups.group_sum: together("sum", lambda lane, v: _in_pairs(v)),
            groups.group_max: together("max", lambda lane, v: max(v)),
            groups.prefix_sum: together("prefix", lambda lane, v: sum(v[1 : lane + 1], v[0])),
            groups.first_of_lanes: together("first", lambda lane, v: v[0]),
            groups.last_of_lanes: together("last", lambda lane, v: v[-1]),
            groups.any_of_lanes: together("any", lambda lane, v: any(v)),
            groups.place_among_equals: together("equals", equals),
            groups.synchronize_group: together("synchronize", lambda lane, v: None),
        }


def _in_pairs(values):
    """Return a sum in the order of a warp's."""
    while len(values) > 1:
        half = len(values) // 2
        values = [one + other for one, other in zip(values[:half], values[half:], strict=True)]
    return values[0]


@functools.cache
def _python(phase, formulas):
    return translated(phase, lambda function: function, dict(formulas))


class EmulatedDevice:
    """The interface of ``freqfm.backends.cuda.device.Device``, for arrays of NumPy.

    Parameters
    ----------
    size : int, default=3
        Number of groups.
    seed : int, default=0
        Of the order in which groups run a phase.
    n_lanes : int, default=1
        The most lanes of a group.

    Attributes
    ----------
    launches : dict
        The arguments of the last launch, by phases and formulas.
    n_copied : int
        Bytes moved to the device and back.
    """

    name = "emulated"

    def __init__(self, size=3, seed=0, n_lanes=1):
        self.size, self._generator = size, np.random.default_rng(seed)
        self.launches, self.n_copied = {}, 0
        self._lanes = Lanes(n_lanes)
        self._replacements = self._lanes.replacements() if n_lanes > 1 else {}

    def empty(self, shape, dtype):
        """Return an array of meaningless values."""
        array = np.empty(shape, dtype=dtype)
        array.view(np.uint8)[...] = 0x7B
        return array

    def fill(self, array, value):
        """Set all elements."""
        array[...] = value

    def to_device(self, array):
        """Return a copy."""
        self.n_copied += array.nbytes
        return np.array(array, order="C")

    def write(self, array, copy):
        """Copy an array to one of the device."""
        self.n_copied += array.nbytes
        copy[...] = array

    def copy(self, source, target):
        """Copy an array of the device to another one."""
        target[...] = source

    def to_host(self, array, out):
        """Copy an array of the device; return the copy."""
        assert array.shape == out.shape and array.dtype == out.dtype
        self.n_copied += array.nbytes
        out[...] = array
        return out

    def run(self, phases, args, n_lanes, n_items, span=(0, 1), formulas=None):
        """Run phases for each batch of a span; all groups end a phase before the next."""
        formulas = dict(formulas or {})
        self.launches[phases, tuple(formulas.items())] = args
        args = with_constants(args)(args)
        formulas = tuple((formulas | self._replacements).items())
        with np.errstate(all="ignore"):
            for b in range(*span):
                for phase in phases:
                    self._run(_python(phase, formulas), b, args)

    def _run(self, phase, b, args):
        for rank in self._generator.permutation(self.size):
            if self._replacements:
                self._lanes.run(phase, int(rank), self.size, b, args)
            else:
                phase(Group(int(rank), self.size, 0, 1), b, args)
