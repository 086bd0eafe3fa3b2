"""What all trainers on a GPU need: arrays that are kept in two places, numbers in float32."""

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.base import Snapshot, Trainer
from freqfm.backends.cuda.team import group_max

__all__ = ["DeviceTrainer", "Mirror", "lanes_for", "rule_for_device"]


# Arrays of at most so many numbers are copied together: a copy takes as long as one of 400 kB.
_SHORT = 1 << 16

# Largest numbers are found in groups of this size.
_GROUP = 4096

_INFINITY = np.float32(np.inf)


@inlined
def largest_numbers(team, b, args):
    """Write the largest absolute value of each 4,096 numbers; infinity for NaN."""
    numbers, found = args
    for w in range(team.rank, found.shape[0], team.size):
        largest = ZERO
        for i in range(w * 4096 + team.lane, min((w + 1) * 4096, numbers.shape[0]), team.n_lanes):
            number = abs(numbers[i])
            # NaN is the only number that does not equal itself, and no maximum on a GPU.
            largest = max(largest, number if number == number else _INFINITY)
        largest = group_max(team, largest)
        if team.lane == 0:
            found[w] = largest


LARGEST = (largest_numbers,)


class _Part:
    """An array in a GPU's memory, and the caller's array or arrays whose values it has.

    Parameters
    ----------
    arrays : list of ndarray
        Several short ones, or one.
    whole : device array
    """

    def __init__(self, arrays, whole):
        self.arrays, self.whole = arrays, whole
        self.copies, self._together = [whole], arrays[0]
        if len(arrays) > 1:
            ends = np.cumsum([len(array) for array in arrays])
            starts = ends - [len(array) for array in arrays]
            self._places = list(zip(starts, ends, strict=True))
            self.copies = [whole[i:j] for i, j in self._places]
            self._together = np.empty(int(ends[-1]), dtype=np.float32)
        #: Whether the caller's arrays are up to date, and whether the copy is.
        self.here, self.there = True, False

    def push(self, device):
        """Copy the caller's arrays to the GPU."""
        if len(self.arrays) > 1:
            np.concatenate(self.arrays, out=self._together)
        device.write(self._together, self.whole)
        self.there = True

    def pull(self, device):
        """Copy the GPU's array into the caller's."""
        self.read(device, self.whole)
        self.here = True

    def read(self, device, whole):
        """Copy an array on the GPU of the size of this one into the caller's."""
        device.to_host(whole, self._together)
        if len(self.arrays) > 1:
            for array, (i, j) in zip(self.arrays, self._places, strict=True):
                array[...] = self._together[i:j]


class Mirror:
    """Arrays of the caller and their copies in a GPU's memory, float32.

    The copies are written before the first epoch, and read when they are asked for.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    parts : list of _Part
    is_held : bool
        Whether the copies are those that count, and the caller's arrays may be out of date.
    """

    def __init__(self, device):
        self.device, self.parts, self.is_held = device, [], False

    def add(self, arrays):
        """Return copies of arrays, without values yet.

        Parameters
        ----------
        arrays : NamedTuple of ndarray

        Returns
        -------
        copies : NamedTuple
            Of the same type.
        """
        short = [array for array in arrays if _is_short(array)]
        copies = {}
        if short:
            n = sum(len(array) for array in short)
            copies = self._add(short, self.device.empty(n, np.float32))
        for array in arrays:
            if not _is_short(array):
                copies |= self._add([array], self.device.empty(array.shape, np.float32))
        return type(arrays)(*(copies[id(array)] for array in arrays))

    def _add(self, arrays, whole):
        part = _Part(arrays, whole)
        if whole.size:
            self.parts.append(part)
        return {id(array): copy for array, copy in zip(arrays, part.copies, strict=True)}

    def push(self):
        """Write the copies that are not up to date, before an epoch."""
        for part in self.parts:
            if not part.there:
                part.push(self.device)
        self.is_held = True

    def written(self, arrays):
        """Write the copies of arrays that the caller has written to."""
        for part in self.parts:
            if self.is_held and _overlap(part.arrays, arrays):
                part.push(self.device)
                part.here = True

    def changed(self):
        """Remember that an epoch has changed the copies."""
        for part in self.parts:
            part.here = False

    def pull(self, arrays=None):
        """Bring some of the caller's arrays up to date; None is all."""
        for part in self._out_of_date(arrays):
            part.pull(self.device)

    def _out_of_date(self, arrays):
        return [
            part
            for part in self.parts
            if not part.here and (arrays is None or _overlap(part.arrays, arrays))
        ]

    def release(self):
        """Let the caller's arrays, as they are, be those that count."""
        for part in self.parts:
            part.here, part.there = True, False
        self.is_held = False

    def clear(self):
        """Forget all arrays, once the caller's are up to date."""
        self.pull()
        self.release()
        self.parts.clear()

    def largest(self, arrays):
        """Return the largest absolute value in arrays of the caller; NaN or infinity for NaN."""
        parts, found = self._out_of_date(arrays), []
        for array in arrays:
            if not any(_overlap(part.arrays, [array]) for part in parts):
                found.append(np.abs(array).max())
        for part in parts:
            for array, copy in zip(part.arrays, part.copies, strict=True):
                if _overlap([array], arrays):
                    found.append(self._largest(copy.reshape(array.size)))
        return np.max(found)

    def _largest(self, numbers):
        n_groups = -(-numbers.shape[0] // _GROUP)
        found = self.device.empty(n_groups, np.float32)
        self.device.run(LARGEST, (numbers, found), 32, n_groups)
        return self.device.to_host(found, np.empty(n_groups, dtype=np.float32)).max()


def _is_short(array):
    return array.ndim == 1 and 0 < len(array) <= _SHORT


def _overlap(arrays, others):
    """Return whether any of some arrays shares memory with any of others."""
    return any(np.may_share_memory(array, other) for array in arrays for other in others)


class DeviceSnapshot:
    """Copies of what a Mirror holds in the GPU's memory, and of other arrays of the caller.

    Before the first epoch all arrays are the caller's.

    Parameters
    ----------
    mirror : Mirror
    arrays : list of ndarray
    """

    def __init__(self, mirror, arrays):
        self._mirror, self._arrays = mirror, arrays
        self._here, self._there = None, []

    def save(self):
        """Copy the arrays."""
        mirror = self._mirror
        if mirror.is_held and not self._there:
            parts, device = mirror.parts, mirror.device
            self._there = [(part, device.empty(part.whole.shape, np.float32)) for part in parts]
            held = [array for part in parts for array in part.arrays]
            self._here = Snapshot([array for array in self._arrays if not _overlap(held, [array])])
        elif self._here is None:
            self._here = Snapshot(self._arrays)
        for part, copy in self._there:
            mirror.device.copy(part.whole, copy)
        self._here.save()

    def restore(self):
        """Write the copies back."""
        if not self._there:
            self._mirror.release()
        for part, copy in self._there:
            self._mirror.device.copy(copy, part.whole)
            part.here = False
        self._here.restore()

    def copies(self):
        """Return the copies, as NumPy arrays."""
        if not self._there:
            return self._here.copies()
        # The caller's arrays have the shapes that are wanted.
        now = Snapshot(self._arrays)
        now.save()
        for part, copy in self._there:
            part.read(self._mirror.device, copy)
        self._here.restore()
        found = [array.copy() for array in self._arrays]
        now.restore()
        return found

    def load(self, copies):
        """Take over copies that another snapshot has returned, before the first epoch."""
        self._here = Snapshot(self._arrays)
        self._here.load(copies)


class DeviceTrainer(Trainer):
    """A trainer that keeps the caller's arrays in a GPU's memory while its context is open.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device):
        self._mirror = Mirror(device)

    def __exit__(self, *exception):
        self._mirror.pull()
        self._mirror.release()

    def pull(self, arrays=None):
        """Bring some of the caller's arrays up to date, see ``Trainer``."""
        self._mirror.pull(arrays)

    def push(self, arrays):
        """Take over arrays that the caller has written to, see ``Trainer``."""
        self._mirror.written(arrays)

    def snapshot(self, arrays):
        """Return a snapshot of arrays, see ``Trainer``."""
        return DeviceSnapshot(self._mirror, arrays)

    def largest(self, arrays):
        """Return the largest absolute value in arrays, see ``Trainer``."""
        return self._mirror.largest(arrays)


def lanes_for(width, of_lane=1):
    """Return how many lanes share the columns of a row, each taking ``of_lane`` at a time."""
    n_lanes = 4
    while n_lanes < min(-(-width // of_lane), 32):
        n_lanes *= 2
    return n_lanes


def rule_for_device(rule):
    """Return an UpdateRule with numbers of float32, as float64 is slow on most GPUs.

    ``hyper`` is a tuple, which a kernel has at hand where it would wait for an array.
    """
    return rule._replace(
        decay=np.float32(rule.decay),
        idle_decay=np.float32(rule.idle_decay),
        hyper=tuple(map(np.float32, rule.hyper)),
    )
