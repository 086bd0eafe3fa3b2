"""Rows prepared for training: their tokens, labels of these, and losses over many scores.

Training rows in the form that kernels read: packed, and in prepared batches.

Shuffled training visits rows in random order, and most of its time goes into cache misses. In
packed rows a row's start, target and weight share one cache line, and its tokens and values
another, so that a short row costs two misses instead of six.

In a prepared batch rows lie side by side, and entries are sorted by token. Each thread prepares
whole batches, ``size`` of them at a time, before all threads train on one after the other. So no
thread repeats what another does, and training reads memory in order.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.instructions import count_bits, prefetch_element
from freqfm._numba.jit import inlined, kernel
from freqfm.formulas.losses import expectation, loss_and_gradient
from freqfm.formulas.rng import permuted_index, stream_key

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# A word has the bits of 64 tokens.
_WORD_BITS, _IN_WORD = np.uint64(6), np.uint64(63)

#: With more features for each entry, sorting the entries takes less time than a bit for each
#: feature.
MOST_FEATURES_PER_ENTRY = 1 << 12


@inlined
def _bit_of(token):
    """Return the word that holds a token's bit, and the word with only this bit set."""
    return token >> _WORD_BITS, _ONE << (token & _IN_WORD)


@inlined
def _list_distinct(bits, ranks, tokens):
    """List the tokens whose bits are set, and count those before each word; return how many."""
    n = _ZERO
    for word in range(np.uint64(bits.shape[0])):
        ranks[word] = n
        left = bits[word]
        while left != _ZERO:
            below = left - _ONE
            tokens[n] = (word << _WORD_BITS) + count_bits(left ^ below) - _ONE
            n += _ONE
            left &= below
    return n


@kernel
def _label(indices, bits, ranks, tokens, labels, counts):
    """Label the entries, and list and count the tokens; return the number of tokens."""
    for p in range(np.uint64(indices.shape[0])):
        word, bit = _bit_of(np.uint64(indices[p]))
        bits[word] |= bit
    n = _list_distinct(bits, ranks, tokens)
    for p in range(np.uint64(indices.shape[0])):
        word, bit = _bit_of(np.uint64(indices[p]))
        label = np.uint64(ranks[word]) + count_bits(bits[word] & (bit - _ONE))
        labels[p] = label
        counts[label] += 1
    return n


def label_tokens(indices, n_features):
    """Return distinct tokens, labels and counts, see ``Backend``."""
    n_words, most = -(-n_features // 64), min(len(indices), n_features)
    bits, ranks = np.zeros(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.int32)
    tokens, labels = np.empty(most, dtype=np.int32), np.empty(len(indices), dtype=np.int32)
    counts = np.zeros(most, dtype=np.int32)
    n = _label(indices, bits, ranks, tokens, labels, counts)
    return tokens[:n].copy(), labels, counts[:n]


@kernel
def expected_targets(rank, size, barrier, loss_code, scores, out):
    """Write to ``out`` (n,) the targets that ``scores`` (n,) predict; both float32."""
    n = scores.shape[0]
    for i in range(n * rank // size, n * (rank + 1) // size):
        out[i] = expectation(loss_code, scores[i])


@kernel
def sum_losses(rank, size, barrier, loss_code, rows):
    """Return the weighted sum of the losses, and of their derivatives; for a single thread."""
    loss = 0.0
    derivative = 0.0
    for i in range(rows.scores.shape[0]):
        of_row = loss_and_gradient(loss_code, rows.scores[i], rows.targets[i])
        loss += rows.weights[i] * np.float64(of_row[0])
        derivative += rows.weights[i] * np.float64(of_row[1])
    return loss, derivative


# A key holds the token in its high and the number of the entry in its low half.
_TOKEN_BITS = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)

# A digit of the radix sort: at most 2^11 buckets stay in the first-level cache.
_DIGIT_BITS = 11

# Few tokens are sorted by one digit of up to so many bits.
ONE_PASS_BITS = 13

SAMPLE = np.dtype([("start", np.int64), ("target", np.float32), ("weight", np.float32)])
ENTRY = np.dtype([("token", np.int32), ("value", np.float32)])

# How many rows ahead one's entries are prefetched, and the entries of a cache line.
_ROWS_AHEAD, _LINE = np.uint64(8), np.uint64(16)

# Rows that are packed at a time, whose numbers are converted to 64 bits.
_ROWS = 1 << 13


@kernel
def _pack(rows, indptr, indices, data, samples, entries):
    """Write the entries of rows side by side, from ``samples[0].start`` on."""
    n_rows = np.uint64(rows.shape[0])
    q = np.uint64(samples[0].start)
    for i in range(n_rows):
        ahead = np.uint64(rows[min(i + _ROWS_AHEAD, n_rows - _ONE)])
        for p in range(np.uint64(indptr[ahead]), np.uint64(indptr[ahead + _ONE]), _LINE):
            prefetch_element(indices, p)
            prefetch_element(data, p)
        row = np.uint64(rows[i])
        for p in range(np.uint64(indptr[row]), np.uint64(indptr[row + _ONE])):
            entries[q].token = indices[p]
            entries[q].value = data[p]
            q += _ONE


def pack_rows(X, weight, rows=None):
    """Return the starts and weights of rows, and their tokens and values side by side.

    Each has one more element at the end: there the last row ends, and a kernel may look at the
    first entry of a last row that is empty. Targets are filled in for the output that is to be
    trained.

    Parameters
    ----------
    X : csr_array
    weight : ndarray
        Of all rows.
    rows : ndarray of shape (n_rows,), default=None
        The rows that are packed, in this order; None for all.
    """
    n_rows = X.shape[0] if rows is None else len(rows)
    samples = np.zeros(n_rows + 1, dtype=SAMPLE)
    if rows is None:
        samples["start"], samples["weight"][:-1] = X.indptr, weight
    else:
        np.cumsum(X.indptr[rows + 1] - X.indptr[rows], out=samples["start"][1:])
        samples["weight"][:-1] = weight[rows]
    n = samples["start"][-1]
    entries = np.empty(n + 1, dtype=ENTRY)
    entries[n] = 0, 0
    for first in range(0, n_rows, _ROWS):
        last = min(first + _ROWS, n_rows)
        part = np.arange(first, last) if rows is None else rows[first:last]
        part = part.astype(np.int64, copy=False)
        _pack(part, X.indptr, X.indices, X.data, samples[first:], entries)
    return samples, entries


class Order(NamedTuple):
    """The order of one epoch."""

    n_blocks: int
    block_bits: int
    low_bits: int
    high_bits: int
    key: int


class PreparedBatches(NamedTuple):
    """Batches that are ready for training, one for each of ``size`` threads.

    It takes 44 m + 20 batch_size bytes a thread, for at most m entries in a batch; all tokens are
    listed if steps are not lazy.
    """

    numbers: np.ndarray  #: (size, batch_size), int64, the rows in the packed arrays
    targets: np.ndarray  #: (size, batch_size), float32
    weights: np.ndarray  #: (size, batch_size), float32
    row_starts: np.ndarray  #: (size, batch_size + 1), int32, where the entries of each row begin
    entry_tokens: np.ndarray  #: (size, m + 1), int32, of the entries in the order of the rows
    entry_values: np.ndarray  #: (size, m + 1), float32
    entry_rows: np.ndarray  #: (size, m + 1), int32
    rows: np.ndarray  #: (size, m + 1), int32, of the entries in the order of the tokens
    values: np.ndarray  #: (size, m + 1), float32
    tokens: np.ndarray  #: (size, listed), int32, in order
    starts: np.ndarray  #: (size, listed + 1), int32, where the occurrences of each begin
    n_tokens: np.ndarray  #: (size, PADDING), int64, the number of tokens, in the first column
    keys: np.ndarray  #: (size, 2, m + 1), uint64, scratch of the sort
    counts: np.ndarray  #: (size, 2^ONE_PASS_BITS), int32, scratch of the sort


@inlined
def prepared_batch(slot, prepared):
    """Return one of the prepared batches."""
    return PreparedBatches(
        prepared.numbers[slot],
        prepared.targets[slot],
        prepared.weights[slot],
        prepared.row_starts[slot],
        prepared.entry_tokens[slot],
        prepared.entry_values[slot],
        prepared.entry_rows[slot],
        prepared.rows[slot],
        prepared.values[slot],
        prepared.tokens[slot],
        prepared.starts[slot],
        prepared.n_tokens[slot],
        prepared.keys[slot],
        prepared.counts[slot],
    )


@inlined
def order_of_epoch(rows, epoch):
    """Return the Order in which an epoch visits ``rows``."""
    bits = 2
    while (1 << bits) < rows.n_blocks:
        bits += 1
    return Order(
        np.uint64(rows.n_blocks),
        np.uint64(rows.block_bits),
        np.uint64(bits // 2),
        np.uint64(bits - bits // 2),
        stream_key(rows.seed, epoch),
    )


@inlined
def _row_in_order(place, order):
    """Return which row an epoch visits at a place."""
    block = place >> order.block_bits
    if block >= order.n_blocks:
        return place
    moved = permuted_index(block, order.n_blocks, order.low_bits, order.high_bits, order.key)
    return (moved << order.block_bits) | (place & ((_ONE << order.block_bits) - _ONE))


@inlined
def _number_rows(start, n_rows, rows, order, numbers):
    """Write which rows the batch holds, and prefetch their samples."""
    n_rows = np.uint64(n_rows)
    block_size = _ONE << order.block_bits
    j = np.uint64(0)
    while j < n_rows:
        # Rows of a block are neighbours.
        place = np.uint64(start) + j
        i = _row_in_order(place, order)
        end = min(n_rows, j + block_size - (place & (block_size - _ONE)))
        while j < end:
            numbers[j] = i
            prefetch_element(rows.samples, i)
            i += _ONE
            j += _ONE


@inlined
def _gather(start, n_rows, rows, order, batch):
    """Copy the batch's rows; return the number of entries."""
    _number_rows(start, n_rows, rows, order, batch.numbers)
    samples = rows.samples
    n = np.uint64(0)
    for j in range(n_rows):
        i = np.uint64(batch.numbers[j])
        batch.targets[j] = samples[i].target
        batch.weights[j] = samples[i].weight
        batch.row_starts[j] = n
        first = samples[i].start
        n += np.uint64(samples[i + _ONE].start - first)
        batch.numbers[j] = first
        prefetch_element(rows.entries, first)
    batch.row_starts[n_rows] = n
    for j in range(n_rows):
        p = np.uint64(batch.numbers[j])
        for q in range(np.uint64(batch.row_starts[j]), np.uint64(batch.row_starts[j + 1])):
            token = np.uint64(rows.entries[p].token)
            batch.entry_tokens[q] = token
            batch.entry_values[q] = rows.entries[p].value
            batch.entry_rows[q] = j
            batch.keys[0, q] = (token << _TOKEN_BITS) | q
            p += _ONE
    return n


@inlined
def _sort_by_digit(n, shift, bits, counts, keys, result):
    """Sort keys by some of their bits; keys of the same bits stay in order."""
    mask = (_ONE << bits) - _ONE
    for digit in range(mask + _ONE):
        counts[digit] = 0
    for p in range(n):
        counts[(keys[p] >> shift) & mask] += 1
    total = 0
    for digit in range(mask + _ONE):
        count = counts[digit]
        counts[digit] = total
        total += count
    for p in range(n):
        digit = (keys[p] >> shift) & mask
        result[np.uint64(counts[digit])] = keys[p]
        counts[digit] += 1


@inlined
def _sort(n, n_tokens, counts, keys):
    """Sort the keys of ``n`` entries by token, in ``keys[0]``."""
    bits = _ONE
    while (np.uint64(n_tokens) >> bits) > 0:
        bits += _ONE
    if bits <= ONE_PASS_BITS and n >> bits > 0:
        # A pass over as many buckets as tokens is then shorter than another one over the keys.
        _sort_by_digit(n, _TOKEN_BITS, bits, counts, keys[0], keys[1])
        for p in range(n):
            keys[0, p] = keys[1, p]
        return
    # An even number of passes, so that keys end where they began.
    n_passes = np.uint64(2) if bits <= 2 * _DIGIT_BITS else np.uint64(4)
    digit_bits = (bits + n_passes - _ONE) // n_passes
    for number in range(n_passes):
        source = number & _ONE
        shift = _TOKEN_BITS + number * digit_bits
        _sort_by_digit(n, shift, digit_bits, counts, keys[source], keys[_ONE - source])


@inlined
def _list_held_tokens(n, n_features, batch):
    """List the tokens of the batch in order, and where the occurrences of each begin."""
    keys = batch.keys[0]
    n_tokens = np.uint64(0)
    last = np.uint64(n_features)
    # Without a branch: whether the next entry has the same token is hard to predict.
    for p in range(n):
        token = keys[p] >> _TOKEN_BITS
        n_tokens += np.uint64(token != last)
        last = token
        batch.tokens[n_tokens - _ONE] = token
        batch.starts[n_tokens] = p + _ONE
    batch.n_tokens[0] = n_tokens


@inlined
def _list_all_tokens(n, n_features, batch):
    """List all tokens like ``_list_held_tokens``, including those without occurrences."""
    keys = batch.keys[0]
    starts = batch.starts
    for k in range(n_features):
        batch.tokens[k] = k
        starts[k + 1] = 0
    for p in range(n):
        starts[(keys[p] >> _TOKEN_BITS) + _ONE] = p + _ONE
    for k in range(n_features):
        starts[k + 1] = max(starts[k], starts[k + 1])
    batch.n_tokens[0] = n_features


@inlined
def _list_tokens(n, n_features, lazy, batch):
    """List the tokens of the batch in order, each with its occurrences; unless ``lazy``, all."""
    keys = batch.keys[0]
    for p in range(n):
        entry = keys[p] & _LOW_HALF
        batch.rows[p] = batch.entry_rows[entry]
        batch.values[p] = batch.entry_values[entry]
    batch.starts[0] = 0
    if lazy:
        _list_held_tokens(n, n_features, batch)
    else:
        _list_all_tokens(n, n_features, batch)


@inlined
def prepare_batch(part, n_features, lazy, rows, order, batch):
    """Gather the rows of a batch, and sort its entries; ``part`` is all of it."""
    n = _gather(part.start, part.n_rows, rows, order, batch)
    _sort(n, n_features, batch.counts, batch.keys)
    _list_tokens(n, n_features, lazy, batch)
