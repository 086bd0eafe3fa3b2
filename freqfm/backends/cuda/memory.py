"""Shared parts of trainers on a GPU: arrays with copies on the device, numbers in float32.

Some rows of a table on a GPU, and for all of them the nearest codewords.

Codewords are fitted to a sample on the CPU, which takes some milliseconds; see
``freqfm._dense``.
"""

from typing import NamedTuple

import numpy as np

from freqfm._dense import fit_codewords
from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.base import Snapshot, Trainer
from freqfm.backends.cuda.groups import group_max, group_sum
from freqfm.backends.cuda.products import product_of_rows
from freqfm.backends.cuda.tables import row_scale

# Products of rows and codewords in memory at a time: 32 megabytes.
_PRODUCTS = 1 << 23


class Taking(NamedTuple):
    """The arguments of ``take_elements``."""

    table: np.ndarray  #: (n, width)
    rows: np.ndarray  #: (n_rows,), int32
    first: int  #: column
    out: np.ndarray  #: (n_rows, n_columns)


class Nearest(NamedTuple):
    """The arguments of the search for codewords; b is a part of the rows."""

    table: np.ndarray  #: (n, width)
    n_unit: int  #: the first numbers of a row are taken at unit length
    right: np.ndarray  #: (width, n_codewords), all codewords as columns
    halves: np.ndarray  #: (n_codewords,), of the squares of their lengths
    products: np.ndarray  #: (n_of_part, n_codewords)
    codes: np.ndarray  #: (n, n_subspaces), int32


@inlined
def take_elements(group, b, args):
    """Write some columns of some rows."""
    for i in range(group.rank, args.out.shape[0], group.size):
        for f in range(group.lane, args.out.shape[1], group.n_lanes):
            args.out[i, f] = args.table[args.rows[i], args.first + f]


@inlined
def _part(args, b):
    """Return the first row of a part, and how many it has."""
    n = args.products.shape[0]
    return b * n, min(n, args.table.shape[0] - b * n)


@inlined
def multiply_part(group, b, args):
    """Write the products of a part's rows and all codewords."""
    first, n = _part(args, b)
    shape = n, args.right.shape[1]
    product_of_rows(group, args.table, first, args.right, shape, args.products)


@inlined
def choose_codes(group, b, args):
    """Write the codes of a part's rows: of equal distances, the first."""
    first, n = _part(args, b)
    n_codewords, n_subspaces = args.right.shape[1], args.codes.shape[1]
    k = n_codewords // n_subspaces
    for i in range(group.rank, n, group.size):
        scale = row_scale(group, args.table, first + i, args.n_unit)
        for s in range(n_subspaces):
            best, code = -np.float32(np.inf), s * k
            for c in range(s * k + group.lane, (s + 1) * k, group.n_lanes):
                score = scale * args.products[i, c] - args.halves[c]
                if score > best:
                    best, code = score, c
            is_best = best == group_max(group, best)
            code = -group_max(group, -code if is_best else -n_codewords)
            if group.lane == 0:
                args.codes[first + i, s] = code


TAKE = (take_elements,)
CHOOSE = (multiply_part, choose_codes)


def take(device, table, rows, columns):
    """Return some rows of a table, by an index or a slice, and a slice of its columns."""
    rows = np.arange(table.shape[0], dtype=np.int32)[rows]
    first, end, _ = columns.indices(table.shape[1])
    shape = len(rows), end - first
    args = Taking(table, device.to_device(rows), first, device.empty(shape, np.float32))
    device.run(TAKE, args, 32, len(rows))
    return device.to_host(args.out, np.empty(shape, dtype=np.float32))


def quantize(device, table, n_columns, unit, options):
    """Return codewords of the rows of a table, and their codes, see ``Trainer.quantize``."""

    def sample(rows):
        return take(device, table, rows, slice(0, n_columns))

    (n, width), n_subspaces = table.shape, options[0]
    codewords = fit_codewords((n, n_columns), sample, unit, *options)
    right = np.zeros((width, len(codewords)), dtype=np.float32)
    right[:n_columns] = codewords.T
    n_of_part = min(n, _PRODUCTS // len(codewords))
    args = Nearest(
        table=table,
        n_unit=n_columns if unit else 0,
        right=device.to_device(right),
        halves=device.to_device(np.einsum("kf,kf->k", codewords, codewords) / np.float32(2)),
        products=device.empty((n_of_part, len(codewords)), np.float32),
        codes=device.empty((n, n_subspaces), np.int32),
    )
    device.run(CHOOSE, args, 32, n_of_part, (0, -(-n // n_of_part)))
    return codewords, device.to_host(args.codes, np.empty(args.codes.shape, dtype=np.int32))


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
