"""Tokens of all batches of an epoch, sorted: where sums over a batch find their terms.

The order of an epoch is known when it begins. Entries, stored token by token, are distributed to
their batches by a stable sort on the number of the batch. So every batch has its entries token by
token, those of a token in the order of the rows of ``X``.

The entries of a batch are cut into pieces: where the token changes, and after each ``WINDOW``
entries. A piece is summed by one group; the pieces of a token are then added in their order.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.base import CPUOnlyError
from freqfm.backends.cuda.groups import worker
from freqfm.backends.cuda.sorting import RadixSort
from freqfm.formulas.rng import key_in_python, permuted_index

#: Most entries of a piece.
WINDOW = 64

_ONE = np.uint64(1)


class EpochOrder(NamedTuple):
    """In which order an epoch visits the rows: shuffled blocks, and then the others in theirs."""

    n_blocks: int  #: uint64, as all numbers here
    block_bits: int
    low_bits: int
    high_bits: int
    key: int
    rows: np.ndarray  #: (n_rows,), int32, result: the row at each place
    places: np.ndarray  #: (n_rows,), int32, result: the place of each row


class Occurrences(NamedTuple):
    """The entries of all batches, by batch and token."""

    tokens: np.ndarray  #: (nnz,), int32
    rows: np.ndarray  #: (nnz,), int32, the row's place in the batch
    values: np.ndarray  #: (nnz,), float32
    starts: np.ndarray  #: (n_batches + 1,), int32, where the entries of a batch begin


class _Entries(NamedTuple):
    """The entries token by token, and how they are sorted."""

    tokens: np.ndarray  #: (nnz,), int32, increasing
    rows: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32
    places: np.ndarray  #: (n_rows,), int32, of each row in the epoch
    batch_size: int
    batches: np.ndarray  #: (nnz,), int32, of each entry
    order: np.ndarray  #: (nnz,), int32, sorted by batch
    out: Occurrences


@inlined
def order_rows(group, b, order):
    """Write which row stands at each place of an epoch, and the place of each row."""
    thread, n_threads = worker(group)
    for place in range(thread, order.rows.shape[0], n_threads):
        i = np.uint64(place)
        block = i >> order.block_bits
        if block < order.n_blocks:
            moved = permuted_index(
                block, order.n_blocks, order.low_bits, order.high_bits, order.key
            )
            i = (moved << order.block_bits) | (i & ((_ONE << order.block_bits) - _ONE))
        order.rows[place] = np.int32(i)
        order.places[np.int64(i)] = np.int32(place)


@inlined
def find_batches(group, b, entries):
    """Write the batch of each entry."""
    thread, n_threads = worker(group)
    for e in range(thread, entries.batches.shape[0], n_threads):
        entries.batches[e] = entries.places[entries.rows[e]] // entries.batch_size


@inlined
def gather(group, b, entries):
    """Copy the sorted entries, and find where batches begin."""
    thread, n_threads = worker(group)
    out, order = entries.out, entries.order
    n, n_batches = order.shape[0], out.starts.shape[0] - 1
    for e in range(thread, n + 1, n_threads):
        batch = n_batches
        if e < n:
            entry = order[e]
            batch = entries.batches[entry]
            out.tokens[e] = entries.tokens[entry]
            out.rows[e] = entries.places[entries.rows[entry]] - batch * entries.batch_size
            out.values[e] = entries.values[entry]
        last = entries.batches[order[e - 1]] if e > 0 else -1
        for started in range(last + 1, batch + 1):
            out.starts[started] = e


_ORDER = (order_rows,)
_FIND = (find_batches,)
_GATHER = (gather,)


class EpochSort:
    """The order of an epoch, and the entries of its batches; the same ones if nothing is shuffled.

    Parameters
    ----------
    device : Device
    problem : FMProblem
    X : csr_array
        The rows that are trained on.
    """

    def __init__(self, device, problem, X):
        self._device, self._problem = device, problem
        n_rows, n = X.shape[0], X.nnz
        if max(n, n_rows) > np.iinfo(np.int32).max:
            raise CPUOnlyError(
                f"X has {n} entries in {n_rows} rows; more than {np.iinfo(np.int32).max} of "
                f"either are trained on the CPU only. Set device='cpu'."
            )
        self._n_batches = -(-n_rows // problem.batch_size)
        by_token = X.tocsc()
        tokens = np.repeat(np.arange(X.shape[1], dtype=np.int32), np.diff(by_token.indptr))
        self.rows, places = (device.empty(n_rows, np.int32) for _ in range(2))
        self.occurrences = Occurrences(
            tokens=device.empty(n, np.int32),
            rows=device.empty(n, np.int32),
            values=device.empty(n, np.float32),
            starts=device.empty(self._n_batches + 1, np.int32),
        )
        batches = device.empty(n, np.int32)
        self._entries = _Entries(
            tokens=device.to_device(tokens),
            rows=device.to_device(by_token.indices.astype(np.int32)),
            values=device.to_device(by_token.data),
            places=places,
            batch_size=problem.batch_size,
            batches=batches,
            order=batches,
            out=self.occurrences,
        )
        self._sort, self._done = RadixSort(device), False

    def run(self, epoch):
        """Sort the entries of an epoch."""
        if self._done and not self._problem.n_blocks:
            return
        device, entries, n = self._device, self._entries, self._entries.rows.shape[0]
        device.run(_ORDER, self._order(epoch), 1, self.rows.shape[0])
        device.run(_FIND, entries, 1, n)
        order = self._sort.order(entries.batches, self._n_batches)
        device.run(_GATHER, entries._replace(order=order), 1, n + 1)
        self._done = True

    def _order(self, epoch):
        problem, bits = self._problem, 2
        while (1 << bits) < problem.n_blocks:
            bits += 1
        key = key_in_python(problem.seed, epoch)
        numbers = problem.n_blocks, problem.block_bits, bits // 2, bits - bits // 2, key
        return EpochOrder(*map(np.uint64, numbers), self.rows, self._entries.places)
