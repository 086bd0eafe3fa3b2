"""Tokens of all batches of an epoch, sorted: where sums over a batch find their terms.

The order of an epoch is known when it begins. Entries, stored token by token, are distributed to
their batches by a stable radix sort on the number of the batch, 8 bits at a time. So every batch
has its entries token by token, those of a token in the order of the rows of ``X``. The result is
the same for any grid, and so are sums in its order.

The entries of a batch are cut into pieces: where the token changes, and after each ``WINDOW``
entries. A piece is summed by one group; the pieces of a token are then added in their order.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.cuda.team import (
    add_at,
    group_sum,
    last_of_lanes,
    place_among_equals,
    prefix_sum,
    synchronize_group,
    worker,
)
from freqfm.formulas.rng import permuted_index

__all__ = [
    "DIGITS",
    "DIGIT_BITS",
    "GATHER",
    "ORDER",
    "PASS",
    "PIECES",
    "WINDOW",
    "EpochOrder",
    "Occurrences",
    "Sorting",
]

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS

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
    """The entries of all batches, by batch and token, and their pieces."""

    tokens: np.ndarray  #: (nnz,), int32
    rows: np.ndarray  #: (nnz,), int32, the row's place in the batch
    values: np.ndarray  #: (nnz,), float32
    starts: np.ndarray  #: (n_batches + 1,), int32, where the entries of a batch begin
    pieces: np.ndarray  #: (n_pieces + 1 or more,), int32, where pieces begin
    piece_starts: np.ndarray  #: (n_batches + 1,), int32, the first piece of a batch


class Sorting(NamedTuple):
    """The entries token by token, and what the sort needs."""

    tokens: np.ndarray  #: (nnz,), int32, increasing
    rows: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32
    places: np.ndarray  #: (n_rows,), int32, of each row in the epoch
    batch_size: int
    shift: int  #: which digit of the batch's number a pass sorts by
    source: np.ndarray  #: (nnz,), int32, the entries in the order before a pass
    sorted: np.ndarray  #: (nnz,), int32, and after it
    counts: np.ndarray  #: (DIGITS, n_chunks), int32, entries of a chunk that have a digit
    totals: np.ndarray  #: (DIGITS + 1,), int32
    out: Occurrences


@inlined
def order_rows(team, b, order):
    """Write which row stands at each place of an epoch, and the place of each row."""
    thread, n_threads = worker(team)
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
def _chunk(c, n, n_chunks):
    """Return where chunk ``c`` of ``n`` entries begins and ends."""
    length = (n + n_chunks - 1) // n_chunks
    return min(c * length, n), min((c + 1) * length, n)


@inlined
def _batch_of(sorting, entry):
    return sorting.places[sorting.rows[entry]] // sorting.batch_size


@inlined
def _digit_of(sorting, entry):
    return (_batch_of(sorting, entry) >> sorting.shift) & (DIGITS - 1)


@inlined
def clear_counts(team, b, sorting):
    """Begin a pass: no entry has been counted."""
    thread, n_threads = worker(team)
    n_chunks = sorting.counts.shape[1]
    for i in range(thread, DIGITS * n_chunks, n_threads):
        sorting.counts[i // n_chunks, i % n_chunks] = 0


@inlined
def count_digits(team, b, sorting):
    """Count the digits of each chunk."""
    n_chunks = sorting.counts.shape[1]
    for c in range(team.rank, n_chunks, team.size):
        begin, end = _chunk(c, sorting.source.shape[0], n_chunks)
        for e in range(begin + team.lane, end, team.n_lanes):
            digit = _digit_of(sorting, sorting.source[e])
            add_at(sorting.counts, (digit, c), 1)


@inlined
def sum_chunks(team, b, sorting):
    """Turn the counts of each digit into sums over the chunks before."""
    n_chunks = sorting.counts.shape[1]
    for digit in range(team.rank, DIGITS, team.size):
        before = 0
        for start in range(0, n_chunks, team.n_lanes):
            c = start + team.lane
            count = sorting.counts[digit, c] if c < n_chunks else 0
            up_to = prefix_sum(team, count)
            if c < n_chunks:
                sorting.counts[digit, c] = before + up_to - count
            before += last_of_lanes(team, up_to)
        if team.lane == 0:
            sorting.totals[digit] = before


@inlined
def sum_digits(team, b, sorting):
    """Turn the totals of digits into sums over the digits before."""
    if team.rank != 0:
        return
    before = 0
    for start in range(0, DIGITS, team.n_lanes):
        count = sorting.totals[start + team.lane]
        up_to = prefix_sum(team, count)
        sorting.totals[start + team.lane] = before + up_to - count
        before += last_of_lanes(team, up_to)


@inlined
def distribute(team, b, sorting):
    """Write each entry behind those with a smaller digit, or with the same and before it."""
    n_chunks = sorting.counts.shape[1]
    for c in range(team.rank, n_chunks, team.size):
        begin, end = _chunk(c, sorting.source.shape[0], n_chunks)
        for start in range(begin, end, team.n_lanes):
            e = start + team.lane
            entry = sorting.source[min(e, end - 1)]
            digit = _digit_of(sorting, entry) if e < end else DIGITS
            before, n_equal = place_among_equals(team, digit)
            first = 0
            if e < end:
                first = sorting.counts[digit, c]
                sorting.sorted[sorting.totals[digit] + first + before] = entry
            synchronize_group(team)
            if e < end and before == 0:
                sorting.counts[digit, c] = first + n_equal
            synchronize_group(team)


@inlined
def gather(team, b, sorting):
    """Copy the sorted entries, and find where batches begin."""
    thread, n_threads = worker(team)
    out = sorting.out
    n, n_batches = sorting.sorted.shape[0], out.starts.shape[0] - 1
    for e in range(thread, n + 1, n_threads):
        batch = n_batches
        if e < n:
            entry = sorting.sorted[e]
            batch = _batch_of(sorting, entry)
            out.tokens[e] = sorting.tokens[entry]
            out.rows[e] = sorting.places[sorting.rows[entry]] - batch * sorting.batch_size
            out.values[e] = sorting.values[entry]
        last = _batch_of(sorting, sorting.sorted[e - 1]) if e > 0 else -1
        for started in range(last + 1, batch + 1):
            out.starts[started] = e


@inlined
def _batch_at(starts, e):
    """Return the batch that holds entry ``e``."""
    low, high = 0, starts.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= e:
            low = middle
        else:
            high = middle
    return low


@inlined
def _begins_piece(out, start, e):
    """Return one if an entry of a batch that begins at ``start`` begins a piece, else zero."""
    return 1 if (e - start) % WINDOW == 0 or out.tokens[e] != out.tokens[e - 1] else 0


@inlined
def count_pieces(team, b, sorting):
    """Count the pieces that begin in each chunk."""
    out, n_chunks = sorting.out, sorting.counts.shape[1]
    for c in range(team.rank, n_chunks, team.size):
        begin, end = _chunk(c, out.tokens.shape[0], n_chunks)
        batch, n = _batch_at(out.starts, begin + team.lane), 0
        for e in range(begin + team.lane, end, team.n_lanes):
            while out.starts[batch + 1] <= e:
                batch += 1
            n += _begins_piece(out, out.starts[batch], e)
        n = group_sum(team, n)
        if team.lane == 0:
            sorting.counts[0, c] = n


@inlined
def list_pieces(team, b, sorting):
    """Write where pieces begin, and the first piece of each batch."""
    out, n_chunks = sorting.out, sorting.counts.shape[1]
    for c in range(team.rank, n_chunks, team.size):
        begin, end = _chunk(c, out.tokens.shape[0], n_chunks)
        batch, before = _batch_at(out.starts, begin + team.lane), sorting.counts[0, c]
        for first in range(begin, end, team.n_lanes):
            e, begins = first + team.lane, 0
            if e < end:
                while out.starts[batch + 1] <= e:
                    batch += 1
                begins = _begins_piece(out, out.starts[batch], e)
            up_to = prefix_sum(team, begins)
            if begins == 1:
                out.pieces[before + up_to - 1] = e
                _begin_batches(out, batch, e, before + up_to - 1)
            before += last_of_lanes(team, up_to)
    if team.rank == 0 and team.lane == 0:
        n = out.tokens.shape[0]
        out.pieces[sorting.totals[0]] = n
        _begin_batches(out, out.starts.shape[0] - 1, n, sorting.totals[0])


@inlined
def _begin_batches(out, batch, e, piece):
    """Let the batches up to ``batch`` that begin at entry ``e`` begin with a piece."""
    while batch >= 0 and out.starts[batch] == e:
        out.piece_starts[batch] = piece
        batch -= 1


ORDER = (order_rows,)
PASS = (clear_counts, count_digits, sum_chunks, sum_digits, distribute)
GATHER = (gather,)
PIECES = (count_pieces, sum_chunks, list_pieces)
