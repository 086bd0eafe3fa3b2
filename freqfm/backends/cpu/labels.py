"""Labels of the distinct tokens among the entries of some rows, and the tables' rows of these."""

import numpy as np

from freqfm._jit import inlined, kernel
from freqfm.backends.cpu.prefetch import EARLY, prefetch_columns_early, prefetch_element

# 2^64 divided by the golden ratio: high bits of the product are well mixed.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)

# The hash table has this many slots for each eight entries at first; most tokens occur often.
_FIRST_SLOTS = 4

# How many entries, and rows of tables, ahead one is prefetched.
_AHEAD, _EARLY = np.uint64(16), np.uint64(EARLY)

_LABEL_BITS, _LOW_HALF = np.int64(32), np.int64(0xFFFFFFFF)


@inlined
def _first_slot(token, shift):
    """Return where the search for a token begins."""
    return (np.uint64(token) * _MULTIPLIER) >> shift


@inlined
def _slot_of(token, shift, slots):
    """Return where a token is in the hash table, or where it can be put."""
    mask = np.uint64(slots.shape[0]) - _ONE
    slot = _first_slot(token, shift)
    while slots[slot] >= 0 and slots[slot] >> _LABEL_BITS != token:
        slot = (slot + _ONE) & mask
    return slot


@kernel
def _label(indices, begin, n, shift, slots, labels, tokens, counts):
    """Write the label of each entry from ``begin`` on, and the token and entries of each label.

    ``slots`` is a hash table with linear probing, whose length is a power of 2: a token in the high
    half and its label in the low half, or -1. It has yet to get ``n`` tokens that are known.
    Returns how many entries are labelled and the number of labels: it stops when the table is half
    full.
    """
    most = np.int64(slots.shape[0] // 2)
    last = np.uint64(indices.shape[0]) - _ONE
    for t in range(n):
        slots[_slot_of(tokens[t], shift, slots)] = (np.int64(tokens[t]) << _LABEL_BITS) | t
    for p in range(np.uint64(begin), np.uint64(indices.shape[0])):
        prefetch_element(slots, _first_slot(indices[min(p + _AHEAD, last)], shift))
        token = np.int64(indices[p])
        slot = _slot_of(token, shift, slots)
        if slots[slot] < 0:
            if n == most:
                return np.int64(p), n
            slots[slot] = (token << _LABEL_BITS) | n
            tokens[n] = token
            counts[n] = 0
            n += 1
        label = slots[slot] & _LOW_HALF
        labels[p] = label
        counts[np.uint64(label)] += 1
    return np.int64(indices.shape[0]), n


def label_tokens(indices):
    """Return distinct tokens in the order of their first entry, and more, see ``Backend``."""
    labels, tokens, counts = np.empty((3, len(indices)), dtype=np.int32)
    n_bits = max(4, (_FIRST_SLOTS * len(indices) // 8).bit_length())
    end = n = 0
    while True:
        slots = np.full(1 << n_bits, -1, dtype=np.int64)
        end, n = _label(indices, end, n, np.uint64(64 - n_bits), slots, labels, tokens, counts)
        if end == len(indices):
            return tokens[:n].copy(), labels, counts[:n].copy()
        n_bits += 1


@kernel
def _take(table, rows, taken):
    last = np.uint64(rows.shape[0]) - _ONE
    for t in range(np.uint64(rows.shape[0])):
        prefetch_columns_early(table, rows[min(t + _EARLY, last)], 0, table.shape[1])
        k = np.uint64(rows[t])
        for f in range(table.shape[1]):
            taken[t, f] = table[k, f]


@kernel
def _put(table, rows, values):
    last = np.uint64(rows.shape[0]) - _ONE
    for t in range(np.uint64(rows.shape[0])):
        prefetch_columns_early(table, rows[min(t + _EARLY, last)], 0, table.shape[1])
        k = np.uint64(rows[t])
        for f in range(table.shape[1]):
            table[k, f] = values[t, f]


def take_rows(table, rows, taken):
    """Copy some rows of a table, see ``Backend``."""
    _take(_of_words(table), rows, _of_words(taken))


def put_rows(table, rows, values):
    """Copy rows back to a table, see ``Backend``."""
    _put(_of_words(table), rows, _of_words(values))


def _of_words(table):
    """Return a table as one of 32-bit numbers, for which the kernels are compiled."""
    return table.view(np.float32)
