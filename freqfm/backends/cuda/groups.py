"""Groups of threads that work on one row, and sorting by them.

Groups of GPU threads that share the work of a phase, and their common operations.

A phase is a function of ``(group, b, args)`` that a whole grid runs: group ``rank`` of ``size``
takes the work items rank, rank + size, and so on, and lane ``lane`` of ``n_lanes`` takes the
columns or the entries lane, lane + n_lanes, and so on. Between phases all groups wait for each
other.

The functions below are those of groups of a single lane, with which phases run on a CPU. For a GPU
``device`` replaces them by functions of a warp.

Sorting on a GPU: a stable radix sort by integer keys, 8 bits at a time.

All occurrences of a row of a table in a batch are adjacent then, in a fixed order; one group sums
them and moves the row. The result is the same for any grid, and so are sums in its order.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined


class Group(NamedTuple):
    """Where in the grid a thread is."""

    rank: int  #: of the group
    size: int  #: number of groups
    lane: int  #: within the group
    n_lanes: int  #: a power of two, at most 32


@inlined
def worker(group):
    """Return the number of a thread, and the number of threads, for work without groups."""
    return group.rank * group.n_lanes + group.lane, group.size * group.n_lanes


@inlined
def group_sum(group, value):
    """Return the sum over the lanes, to all of them, in an order that is always the same."""
    return value


@inlined
def group_max(group, value):
    """Return the largest value of all lanes, to all of them."""
    return value


@inlined
def prefix_sum(group, value):
    """Return the sum over this lane and those before it."""
    return value


@inlined
def first_of_lanes(group, value):
    """Return the value of the first lane to all lanes."""
    return value


@inlined
def last_of_lanes(group, value):
    """Return the value of the last lane to all lanes."""
    return value


@inlined
def any_of_lanes(group, value):
    """Return to all lanes whether the value of any is true."""
    return value


@inlined
def place_among_equals(group, value):
    """Return how many lanes before this one have the same value, and how many of all have it."""
    return 0, 1


@inlined
def synchronize_group(group):
    """Wait for all lanes, and see the values that they have written."""


@inlined
def add_at(array, index, value):
    """Add to an element that several threads may add to; for integers, whose order is free."""
    array[index] += value


_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS

# The sort takes at most so many chunks of entries at once, and chunks of at least so many.
_CHUNKS, _SHORTEST_CHUNK = 2048, 256


class Sorting(NamedTuple):
    """The arguments of a pass of the sort."""

    keys: np.ndarray  #: (n,), integers
    shift: int  #: which digit of the key a pass sorts by
    source: np.ndarray  #: (n,), int32, the entries in the order before a pass
    sorted: np.ndarray  #: (n,), int32, and after it
    counts: np.ndarray  #: (_DIGITS, n_chunks), int32, entries of a chunk that have a digit
    totals: np.ndarray  #: (_DIGITS,), int32


class Touched(NamedTuple):
    """The occurrences of the rows of a table in the batches of a call."""

    tokens: np.ndarray  #: (n,), int32, the rows, sorted within each batch
    sources: np.ndarray  #: (n,), int32, the number of the occurrence within its batch
    starts: np.ndarray  #: (n_batches + 1,), int32, where the occurrences of a batch begin


class _Collection(NamedTuple):
    keys: np.ndarray  #: (n,), int64, the batch times the number of rows, plus the row
    order: np.ndarray  #: (n,), int32, sorted by key
    n_rows: int
    out: Touched


@inlined
def _chunk(sorting, c):
    """Return where chunk ``c`` of the entries begins and ends."""
    n, n_chunks = sorting.source.shape[0], sorting.counts.shape[1]
    length = (n + n_chunks - 1) // n_chunks
    return min(c * length, n), min((c + 1) * length, n)


@inlined
def _digit_of(sorting, entry):
    return (np.int64(sorting.keys[entry]) >> sorting.shift) & (_DIGITS - 1)


@inlined
def clear_counts(group, b, sorting):
    """Begin a pass: no entry has been counted."""
    thread, n_threads = worker(group)
    n_chunks = sorting.counts.shape[1]
    for i in range(thread, _DIGITS * n_chunks, n_threads):
        sorting.counts[i // n_chunks, i % n_chunks] = 0


@inlined
def count_digits(group, b, sorting):
    """Count the digits of each chunk."""
    for c in range(group.rank, sorting.counts.shape[1], group.size):
        begin, end = _chunk(sorting, c)
        for e in range(begin + group.lane, end, group.n_lanes):
            add_at(sorting.counts, (_digit_of(sorting, sorting.source[e]), c), 1)


@inlined
def sum_chunks(group, b, sorting):
    """Turn the counts of each digit into sums over the chunks before."""
    n_chunks = sorting.counts.shape[1]
    for digit in range(group.rank, _DIGITS, group.size):
        before = 0
        for start in range(0, n_chunks, group.n_lanes):
            c = start + group.lane
            count = sorting.counts[digit, c] if c < n_chunks else 0
            up_to = prefix_sum(group, count)
            if c < n_chunks:
                sorting.counts[digit, c] = before + up_to - count
            before += last_of_lanes(group, up_to)
        if group.lane == 0:
            sorting.totals[digit] = before


@inlined
def sum_digits(group, b, sorting):
    """Turn the totals of digits into sums over the digits before."""
    if group.rank != 0:
        return
    before = 0
    for start in range(0, _DIGITS, group.n_lanes):
        count = sorting.totals[start + group.lane]
        up_to = prefix_sum(group, count)
        sorting.totals[start + group.lane] = before + up_to - count
        before += last_of_lanes(group, up_to)


@inlined
def distribute(group, b, sorting):
    """Write each entry behind those with a smaller digit, or with the same and before it."""
    for c in range(group.rank, sorting.counts.shape[1], group.size):
        begin, end = _chunk(sorting, c)
        for start in range(begin, end, group.n_lanes):
            e = start + group.lane
            entry = sorting.source[min(e, end - 1)]
            digit = _digit_of(sorting, entry) if e < end else _DIGITS
            before, n_equal = place_among_equals(group, digit)
            first = 0
            if e < end:
                first = sorting.counts[digit, c]
                sorting.sorted[sorting.totals[digit] + first + before] = entry
            synchronize_group(group)
            if e < end and before == 0:
                sorting.counts[digit, c] = first + n_equal
            synchronize_group(group)


@inlined
def _collect(group, b, args):
    """Write the sorted rows, and where each of them came from."""
    thread, n_threads = worker(group)
    for e in range(thread, args.order.shape[0], n_threads):
        at = args.order[e]
        key = args.keys[at]
        args.out.tokens[e] = np.int32(key % args.n_rows)
        args.out.sources[e] = np.int32(at - args.out.starts[key // args.n_rows])


_PASS = (clear_counts, count_digits, sum_chunks, sum_digits, distribute)
_COLLECT = (_collect,)


class RadixSort:
    """Sorts entries by integer keys; its memory grows with the largest call.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device):
        self._device, self._capacity = device, -1

    def _reserve(self, n):
        if n <= self._capacity:
            return
        device, self._capacity = self._device, n
        self._identity = device.to_device(np.arange(n, dtype=np.int32))
        self._buffers = [device.empty(n, np.int32) for _ in range(2)]
        n_chunks = max(1, min(_CHUNKS, n // _SHORTEST_CHUNK))
        self._counts = device.empty((_DIGITS, n_chunks), np.int32)
        self._totals = device.empty(_DIGITS, np.int32)

    def order(self, keys, n_keys):
        """Return entries in the order of their keys, which are below ``n_keys``."""
        n = keys.shape[0]
        self._reserve(n)
        order = self._identity[:n]
        for number in range(-(-(n_keys - 1).bit_length() // _DIGIT_BITS)):
            after = self._buffers[number % 2][:n]
            sorting = Sorting(keys, number * _DIGIT_BITS, order, after, self._counts, self._totals)
            self._device.run(_PASS, sorting, 32, self._counts.shape[1])
            order = after
        return order


class KeySort:
    """Sorts the occurrences of one table; its memory grows with the largest call.

    Parameters
    ----------
    device : Device
    n_rows : int
        Of the table.
    """

    def __init__(self, device, n_rows):
        self._device, self._n_rows = device, n_rows
        self._sort, self._capacity = RadixSort(device), -1

    def run(self, starts, write_keys):
        """Return the Touched of a call.

        Parameters
        ----------
        starts : ndarray of shape (n_batches + 1,)
            Where the occurrences of each batch begin.
        write_keys : callable
            Launches what writes the keys, given their array and the starts on the device. A key is
            the batch times the number of rows of the table, plus the row.
        """
        device, n = self._device, int(starts[-1])
        if n > self._capacity:
            self._capacity = n
            self._tokens, self._sources = (device.empty(n, np.int32) for _ in range(2))
            self._keys = device.empty(n, np.int64)
        on_device = device.to_device(np.asarray(starts, dtype=np.int32))
        keys = self._keys[:n]
        write_keys(keys, on_device)
        order = self._sort.order(keys, (len(starts) - 1) * self._n_rows)
        touched = Touched(self._tokens[:n], self._sources[:n], on_device)
        device.run(_COLLECT, _Collection(keys, order, self._n_rows, touched), 1, n)
        return touched
