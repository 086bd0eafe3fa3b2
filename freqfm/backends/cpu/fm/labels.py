"""Labels of the distinct tokens among the entries of some rows."""

import numpy as np

from freqfm._numba.instructions import count_bits
from freqfm._numba.jit import inlined, kernel

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
