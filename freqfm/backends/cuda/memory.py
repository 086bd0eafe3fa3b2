"""Shared parts of trainers on a GPU: arrays with copies on the device, numbers in float32."""

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.base import Snapshot, Trainer
from freqfm.backends.cuda.groups import group_max, group_sum
from freqfm.backends.cuda.quantization import quantize, take

# Numbers are reduced in groups of this size.
_GROUP = 4096

_INFINITY = np.float32(np.inf)


@inlined
def largest_numbers(group, b, args):
    """Write the largest absolute value of each 4,096 numbers; infinity for NaN."""
    numbers, found = args
    for w in range(group.rank, found.shape[0], group.size):
        largest = ZERO
        for i in range(
            w * _GROUP + group.lane, min((w + 1) * _GROUP, numbers.shape[0]), group.n_lanes
        ):
            number = abs(numbers[i])
            # NaN is the only number that does not equal itself, and no maximum on a GPU.
            largest = max(largest, number if number == number else _INFINITY)
        largest = group_max(group, largest)
        if group.lane == 0:
            found[w] = largest


@inlined
def sum_losses(group, b, args):
    """Write the sums of 4,096 numbers each, in float64."""
    numbers, sums = args
    for w in range(group.rank, sums.shape[0], group.size):
        total = 0.0
        for i in range(
            w * _GROUP + group.lane, min((w + 1) * _GROUP, numbers.shape[0]), group.n_lanes
        ):
            total += numbers[i]
        total = group_sum(group, total)
        if group.lane == 0:
            sums[w] = total


_LARGEST = (largest_numbers,)
_SUM = (sum_losses,)


def _reduced(device, phases, numbers, dtype):
    n_groups = -(-numbers.shape[0] // _GROUP)
    found = device.empty(n_groups, dtype)
    device.run(phases, (numbers, found), 32, n_groups)
    return device.to_host(found, np.empty(n_groups, dtype=dtype))


def sum_of(device, numbers):
    """Return the sum of numbers in a GPU's memory."""
    return float(_reduced(device, _SUM, numbers, np.float64).sum())


class _Part:
    """An array of the caller and its copy in a GPU's memory."""

    def __init__(self, array, copy):
        self.array, self.copy = array, copy
        #: Whether the caller's array is up to date, and whether the copy is.
        self.here, self.there = True, False


def _overlaps(array, others):
    """Return whether an array shares memory with any of others."""
    return any(np.may_share_memory(array, other) for other in others)


class DeviceSnapshot:
    """Copies of what a DeviceTrainer holds in the GPU's memory, and of other arrays of the caller.

    Before the first epoch all arrays are the caller's.

    Parameters
    ----------
    trainer : DeviceTrainer
    arrays : list of ndarray
    """

    def __init__(self, trainer, arrays):
        self._trainer, self._arrays = trainer, arrays
        self._here, self._there = None, []

    def save(self):
        """Copy the arrays."""
        trainer = self._trainer
        if trainer.is_held and not self._there:
            parts, device = trainer.parts, trainer.device
            self._there = [(part, device.empty(part.copy.shape, np.float32)) for part in parts]
            held = [part.array for part in parts]
            self._here = Snapshot([array for array in self._arrays if not _overlaps(array, held)])
        elif self._here is None:
            self._here = Snapshot(self._arrays)
        for part, copy in self._there:
            trainer.device.copy(part.copy, copy)
        self._here.save()

    def restore(self):
        """Write the copies back."""
        if not self._there:
            self._trainer.release()
        for part, copy in self._there:
            self._trainer.device.copy(copy, part.copy)
            part.here = False
        self._here.restore()

    def copies(self):
        """Return the copies, as NumPy arrays."""
        if not self._there:
            return self._here.copies()
        # The caller's arrays have the shapes of the copies.
        now = Snapshot(self._arrays)
        now.save()
        for part, copy in self._there:
            self._trainer.device.to_host(copy, part.array)
        self._here.restore()
        found = [array.copy() for array in self._arrays]
        now.restore()
        return found

    def load(self, copies):
        """Store the copies of another snapshot, before the first epoch."""
        self._here = Snapshot(self._arrays)
        self._here.load(copies)


class DeviceTrainer(Trainer):
    """A trainer that keeps the caller's arrays in a GPU's memory while its context is open.

    The copies are written before the first epoch, and read when they are asked for.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    device : Device
    parts : list of _Part
    is_held : bool
        Whether the copies are those that count, and the caller's arrays may be out of date.
    """

    def __init__(self, device):
        self.device, self.parts, self.is_held = device, [], False

    def __exit__(self, *exception):
        self.pull()
        self.release()

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
        copies = [self.device.empty(array.shape, np.float32) for array in arrays]
        pairs = zip(arrays, copies, strict=True)
        self.parts += [_Part(array, copy) for array, copy in pairs if array.size]
        return type(arrays)(*copies)

    def hold(self):
        """Write the copies that are not up to date, before an epoch."""
        for part in self.parts:
            if not part.there:
                self._write(part)
        self.is_held = True

    def _write(self, part):
        self.device.write(part.array, part.copy)
        part.here = part.there = True

    def push(self, arrays):
        """Take over arrays that the caller has written to, see ``Trainer``."""
        for part in self.parts:
            if self.is_held and _overlaps(part.array, arrays):
                self._write(part)

    def changed(self):
        """Remember that an epoch has changed the copies."""
        for part in self.parts:
            part.here = False

    def pull(self, arrays=None):
        """Bring some of the caller's arrays up to date, see ``Trainer``."""
        for part in self._out_of_date(arrays):
            self.device.to_host(part.copy, part.array)
            part.here = True

    def take(self, array, rows, columns):
        """Return some rows and columns of an array, see ``Trainer``."""
        copy = self._copy_of(array)
        return array[rows, columns] if copy is None else take(self.device, copy, rows, columns)

    def quantize(self, array, n_columns, unit, options):
        """Return codewords and codes, see ``Trainer``; on the GPU before the first epoch too."""
        copy = self._copy_of(array)
        copy = self.device.to_device(array) if copy is None else copy
        return quantize(self.device, copy, n_columns, unit, options)

    def _copy_of(self, array):
        """Return the copy of an array of the caller if the trainer holds one, or None."""
        held = self.parts if self.is_held else []
        return next((part.copy for part in held if _overlaps(part.array, [array])), None)

    def _out_of_date(self, arrays):
        return [
            part
            for part in self.parts
            if not part.here and (arrays is None or _overlaps(part.array, arrays))
        ]

    def release(self):
        """Treat the caller's arrays as up to date, and the copies as out of date."""
        for part in self.parts:
            part.here, part.there = True, False
        self.is_held = False

    def clear(self):
        """Forget all arrays, once the caller's are up to date."""
        self.pull()
        self.release()
        self.parts.clear()

    def snapshot(self, arrays):
        """Return a snapshot of arrays, see ``Trainer``."""
        return DeviceSnapshot(self, arrays)

    def largest(self, arrays):
        """Return the largest absolute value in arrays, see ``Trainer``."""
        found = [np.abs(array).max() for array in arrays if not self._out_of_date([array])]
        for part in self._out_of_date(arrays):
            numbers = part.copy.reshape(part.array.size)
            found.append(_reduced(self.device, _LARGEST, numbers, np.float32).max())
        return np.max(found)


def lanes_for(width, of_lane=1):
    """Return how many lanes share the columns of a row, each taking ``of_lane`` at a time."""
    n_lanes = 4
    while n_lanes < min(-(-width // of_lane), 32):
        n_lanes *= 2
    return n_lanes


def rule_for_device(rule):
    """Return an UpdateRule with numbers of float32, as float64 is slow on most GPUs.

    ``hyper`` is a tuple: a kernel reads it without the delay of an array in memory.
    """
    return rule._replace(
        decay=np.float32(rule.decay),
        idle_decay=np.float32(rule.idle_decay),
        hyper=tuple(map(np.float32, rule.hyper)),
    )
