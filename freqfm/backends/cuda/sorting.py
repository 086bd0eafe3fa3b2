"""What the batches of a call move: occurrences of rows, sorted by batch and then by row.

All that a batch says of a row of a table stands together then, in a fixed order, and one group sums
it and moves the row.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.cuda.occurrences import DIGIT_BITS, DIGITS, PASS, Occurrences, Sorting
from freqfm.backends.cuda.team import worker

__all__ = ["KeySort", "Touched", "batch_of_occurrence"]

# The sort takes at most so many chunks of entries at once, and chunks of at least so many.
_CHUNKS, _SHORTEST_CHUNK = 2048, 256


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
def batch_of_occurrence(starts, e):
    """Return the batch of occurrence ``e``; some batches may be empty."""
    begin, end = 0, starts.shape[0] - 1
    while end - begin > 1:
        middle = (begin + end) >> 1
        if starts[middle] <= e:
            begin = middle
        else:
            end = middle
    return begin


@inlined
def _collect(team, b, args):
    """Write the sorted rows, and where each of them came from."""
    thread, n_threads = worker(team)
    for e in range(thread, args.order.shape[0], n_threads):
        at = args.order[e]
        key = args.keys[at]
        args.out.tokens[e] = np.int32(key % args.n_rows)
        args.out.sources[e] = np.int32(at - args.out.starts[key // args.n_rows])


_COLLECT = (_collect,)


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
        self._capacity = 0

    def _reserve(self, n):
        if n <= self._capacity:
            return
        device, self._capacity = self._device, n
        self._identity = device.to_device(np.arange(n, dtype=np.int32))
        self._buffers = [device.empty(n, np.int32) for _ in range(2)]
        self._tokens, self._sources = (device.empty(n, np.int32) for _ in range(2))
        self._keys = device.empty(n, np.int64)
        n_chunks = max(1, min(_CHUNKS, n // _SHORTEST_CHUNK))
        self._counts = device.empty((DIGITS, n_chunks), np.int32)
        self._totals = device.empty(DIGITS + 1, np.int32)

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
        self._reserve(n)
        on_device = device.to_device(np.asarray(starts, dtype=np.int32))
        keys, identity = self._keys[:n], self._identity[:n]
        write_keys(keys, on_device)
        sorting = Sorting(
            # With entry i in row i, in batches of size 1, a key is the number of a batch.
            tokens=identity, rows=identity, values=identity, places=keys, batch_size=1, shift=0,
            source=identity, sorted=identity, counts=self._counts, totals=self._totals,
            out=Occurrences(*[identity] * 6),
        )  # fmt: skip
        n_keys = (len(starts) - 1) * self._n_rows
        for number in range(-(-(n_keys - 1).bit_length() // DIGIT_BITS)):
            sorting = sorting._replace(
                shift=number * DIGIT_BITS,
                source=sorting.sorted,
                sorted=self._buffers[number % 2][:n],
            )
            device.run(PASS, sorting, 32, self._counts.shape[1])
        touched = Touched(self._tokens[:n], self._sources[:n], on_device)
        device.run(_COLLECT, _Collection(keys, sorting.sorted, self._n_rows, touched), 1, n)
        return touched
