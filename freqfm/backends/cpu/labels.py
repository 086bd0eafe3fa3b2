"""Labels of the distinct tokens among the entries of some rows, and the tables' rows of these."""

import numpy as np
from numba import types
from numba.extending import intrinsic

from freqfm._jit import JIT_DISABLED, inlined, kernel
from freqfm.backends.cpu.prefetch import EARLY, prefetch_columns_early, prefetch_row_early

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# A word has the bits of 64 tokens.
_WORD_BITS, _IN_WORD = np.uint64(6), np.uint64(63)

#: With more features for each entry, sorting the entries takes less time than a bit for each
#: feature.
MOST_FEATURES_PER_ENTRY = 1 << 12

# How many rows of tables ahead one is prefetched.
_EARLY = np.uint64(EARLY)


@intrinsic
def _compiled_count_bits(typing_context, word):
    """Return the number of bits that are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


def _interpreted_count_bits(word):
    return np.uint64(int(word).bit_count())


_count_bits = _interpreted_count_bits if JIT_DISABLED else _compiled_count_bits


@inlined
def _bit_of(token):
    """Return the word that holds a token's bit, and the word with only this bit set."""
    return token >> _WORD_BITS, _ONE << (token & _IN_WORD)


@kernel
def _label(indices, bits, ranks, labels, tokens, counts):
    """Write the label of each entry, and the token and the number of entries of each label.

    ``bits``, which are zeros, get the bits of the tokens, and ``ranks`` the number of tokens before
    each word. Returns the number of tokens.
    """
    n_entries = np.uint64(indices.shape[0])
    for p in range(n_entries):
        word, bit = _bit_of(np.uint64(indices[p]))
        bits[word] |= bit
    n = _ZERO
    for word in range(np.uint64(bits.shape[0])):
        ranks[word] = n
        left = bits[word]
        while left != _ZERO:
            below = left - _ONE
            tokens[n] = (word << _WORD_BITS) + _count_bits(left ^ below) - _ONE
            counts[n] = 0
            n += _ONE
            left &= below
    for p in range(n_entries):
        word, bit = _bit_of(np.uint64(indices[p]))
        label = np.uint64(ranks[word]) + _count_bits(bits[word] & (bit - _ONE))
        labels[p] = label
        counts[label] += 1
    return np.int64(n)


def label_tokens(indices, n_features):
    """Return distinct tokens, labels and more, see ``Backend``."""
    n_words = -(-n_features // 64)
    labels = np.empty(len(indices), dtype=np.int32)
    tokens, counts = np.empty((2, min(len(indices), n_features)), dtype=np.int32)
    bits, ranks = np.zeros(n_words, dtype=np.uint64), np.empty(n_words, dtype=np.int32)
    n = _label(indices, bits, ranks, labels, tokens, counts)
    return tokens[:n].copy(), labels, counts[:n].copy()


@inlined
def _ahead(rows, t):
    """Return the row that is prefetched while the ``t``-th is copied."""
    return rows[min(t + _EARLY, np.uint64(rows.shape[0]) - _ONE)]


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
            prefetch_row_early(table, _ahead(rows, t))
            k = np.uint64(rows[t])
            for f in range(width):
                _copy_element(table, k, others, t, f, back)
        return
    # To start a loop over one or two columns would take longer than to copy them.
    for t in range(n):
        prefetch_columns_early(table, _ahead(rows, t), 0, 1)
        k = np.uint64(rows[t])
        _copy_element(table, k, others, t, 0, back)
        _copy_element(table, k, others, t, width - 1, back)


@kernel
def _take(table, rows, taken):
    _copy_rows(table, rows, taken, False)


@kernel
def _put(table, rows, values):
    _copy_rows(table, rows, values, True)


def take_rows(table, rows, taken):
    """Copy some rows of a table, see ``Backend``."""
    _take(_of_words(table), rows, _of_words(taken))


def put_rows(table, rows, values):
    """Copy rows back to a table, see ``Backend``."""
    _put(_of_words(table), rows, _of_words(values))


def _of_words(table):
    """Return a table as one of 32-bit numbers, for which the kernels are compiled."""
    return table.view(np.float32)
