"""Labels of the distinct tokens among the entries of some rows, and the tables' rows of these."""

from typing import NamedTuple

import numpy as np

from freqfm._numba.instructions import count_bits
from freqfm._numba.jit import inlined, kernel
from freqfm._numba.prefetch import prefetch_columns, prefetch_row
from freqfm.backends.cpu.team import Member, Team, part, synchronize

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# A word has the bits of 64 tokens.
_WORD_BITS, _IN_WORD = np.uint64(6), np.uint64(63)

#: With more features for each entry, sorting the entries takes less time than a bit for each
#: feature.
MOST_FEATURES_PER_ENTRY = 1 << 12

# A thread labels so many entries, or copies so many numbers, in the time it takes to start one.
_PER_THREAD = 100_000

# Numbers of a cache line.
_APART = 8

# How many rows of tables ahead one is prefetched.
_AHEAD = np.uint64(32)


@inlined
def _bit_of(token):
    """Return the word that holds a token's bit, and the word with only this bit set."""
    return token >> _WORD_BITS, _ONE << (token & _IN_WORD)


class _Labelling(NamedTuple):
    """What threads need to label entries; each has a row of those arrays that have two axes."""

    indices: np.ndarray  #: (nnz,), int32
    bits: np.ndarray  #: (size, n_words), uint64, zeros: the bits of the tokens among its entries
    ranks: np.ndarray  #: (n_words,), int32, the number of tokens before each word
    found: np.ndarray  #: (size, _APART), int64, the tokens in its words, and up to their end
    labels: np.ndarray  #: (nnz,), int32
    tokens: np.ndarray  #: (most,), int32
    counts: np.ndarray  #: (size, most), int32, the number of its entries of each token


@inlined
def _mark_tokens(begin, end, indices, bits):
    """Set the bits of the tokens of some entries."""
    for p in range(begin, end):
        word, bit = _bit_of(np.uint64(indices[p]))
        bits[word] |= bit


@inlined
def _join_bits(member, begin, end, work):
    """Give everyone's bits to the first thread; return the number of bits of these words."""
    n = _ZERO
    for word in range(begin, end):
        joined = work.bits[0, word]
        for other in range(1, member.size):
            joined |= work.bits[other, word]
        work.bits[0, word] = joined
        n += count_bits(joined)
    return n


@inlined
def _list_tokens(member, begin, end, n, work):
    """List the tokens of some words, ``n`` tokens being before them; return how many then are."""
    for word in range(begin, end):
        work.ranks[word] = n
        left = work.bits[0, word]
        while left != _ZERO:
            below = left - _ONE
            work.tokens[n] = (word << _WORD_BITS) + count_bits(left ^ below) - _ONE
            for other in range(member.size):
                work.counts[other, n] = 0
            n += _ONE
            left &= below
    return n


@inlined
def _label_entries(begin, end, bits, ranks, counts, work):
    """Write the labels of some entries, and count these."""
    for p in range(begin, end):
        word, bit = _bit_of(np.uint64(work.indices[p]))
        label = np.uint64(ranks[word]) + count_bits(bits[word] & (bit - _ONE))
        work.labels[p] = label
        counts[label] += 1


@kernel
def _label(rank, size, barrier, work):
    """Label the entries, and list and count the tokens; return how many threads took part."""
    member = Member(rank, size, barrier)
    entries = part(member, work.indices.shape[0])
    first, last = np.uint64(entries[0]), np.uint64(entries[1])
    words = part(member, work.ranks.shape[0])
    begin, end = np.uint64(words[0]), np.uint64(words[1])
    _mark_tokens(first, last, work.indices, work.bits[rank])
    synchronize(member)
    if size > 1:
        work.found[rank, 0] = _join_bits(member, begin, end, work)
        synchronize(member)
    before = _ZERO
    for other in range(rank):
        before += np.uint64(work.found[other, 0])
    work.found[rank, 1] = _list_tokens(member, begin, end, before, work)
    synchronize(member)
    _label_entries(first, last, work.bits[0], work.ranks, work.counts[rank], work)
    return size


def label_tokens(indices, n_features, n_threads):
    """Return distinct tokens, labels and more, see ``Backend``."""
    n_words, most = -(-n_features // 64), min(len(indices), n_features)
    with Team(_enough_threads(len(indices), n_threads)) as team:
        work = _Labelling(
            indices=indices,
            bits=np.zeros((team.size, n_words), dtype=np.uint64),
            ranks=np.empty(n_words, dtype=np.int32),
            found=np.zeros((team.size, _APART), dtype=np.int64),
            labels=np.empty(len(indices), dtype=np.int32),
            tokens=np.empty(most, dtype=np.int32),
            counts=np.empty((team.size, most), dtype=np.int32),
        )
        size = team.run(_label, work)
    n = work.found[size - 1, 1]
    return work.tokens[:n].copy(), work.labels, work.counts[:size, :n].sum(axis=0, dtype=np.int32)


def _enough_threads(n, n_threads):
    """Return how many threads are worth their start for so many entries, or numbers to copy."""
    return min(n_threads, 1 + n // _PER_THREAD)


@inlined
def _ahead(rows, t):
    """Return the row that is prefetched while the ``t``-th is copied."""
    return rows[min(t + _AHEAD, np.uint64(rows.shape[0]) - _ONE)]


@inlined
def _copy_element(table, k, others, t, f, back):
    """Copy an element of a table's row ``k`` to row ``t`` of the others, or back."""
    if back:
        table[k, f] = others[t, f]
    else:
        others[t, f] = table[k, f]


@inlined
def _copy_rows(table, rows, others, back):
    """Copy some rows of a table to the others, or back; ``back`` is a constant."""
    width = table.shape[1]
    n = np.uint64(rows.shape[0])
    if width > 2:
        for t in range(n):
            prefetch_row(table, _ahead(rows, t))
            k = np.uint64(rows[t])
            for f in range(width):
                _copy_element(table, k, others, t, f, back)
        return
    # To start a loop over one or two columns would take longer than to copy them.
    for t in range(n):
        prefetch_columns(table, _ahead(rows, t), 0, 1)
        k = np.uint64(rows[t])
        _copy_element(table, k, others, t, 0, back)
        _copy_element(table, k, others, t, width - 1, back)


@kernel
def _take(table, rows, taken):
    _copy_rows(table, rows, taken, False)


@kernel
def _put(table, rows, values):
    _copy_rows(table, rows, values, True)


def take_rows(copies, n_threads):
    """Copy some rows of tables, see ``Backend``."""
    _copy(_take, copies, n_threads)


def put_rows(copies, n_threads):
    """Copy rows back to tables, see ``Backend``."""
    _copy(_put, copies, n_threads)


def _copy(kernel, copies, n_threads):
    """Copy rows of all tables, each thread its part of them."""
    # The kernels are compiled for tables of 32-bit numbers.
    copies = [(table.view(np.float32), rows, part.view(np.float32)) for table, rows, part in copies]
    size = sum(part.size for _, _, part in copies)
    with Team(_enough_threads(size, n_threads)) as team:
        team.run(_copy_parts, kernel, copies)


def _copy_parts(rank, size, barrier, kernel, copies):
    """Copy a thread's part of the rows of each table."""
    for table, rows, values in copies:
        n = len(rows)
        mine = slice(n * rank // size, n * (rank + 1) // size)
        kernel(table, rows[mine], values[mine])
