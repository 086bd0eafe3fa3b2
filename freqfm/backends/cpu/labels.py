"""Labels of the distinct tokens among the entries of some rows."""

import numpy as np

from freqfm._jit import kernel

# 2^64 divided by the golden ratio: high bits of the product are well mixed.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)


@kernel
def _label(indices, shift, slots, labels, tokens):
    """Write the label of each entry, and the token of each label; return the number of labels.

    ``slots`` is a hash table with linear probing, whose length is a power of 2; -1 is free.
    """
    mask = np.uint64(slots.shape[0]) - _ONE
    n = np.int64(0)
    for p in range(indices.shape[0]):
        token = indices[p]
        slot = (np.uint64(token) * _MULTIPLIER) >> shift
        label = slots[slot]
        while label >= 0 and tokens[np.uint64(label)] != token:
            slot = (slot + _ONE) & mask
            label = slots[slot]
        if label < 0:
            label = np.int32(n)
            slots[slot] = label
            tokens[n] = token
            n += 1
        labels[p] = label
    return n


def label_tokens(indices):
    """Return the distinct tokens in the order of their first entry, and labels of all entries."""
    n_bits = max(4, (2 * len(indices)).bit_length())
    slots = np.full(1 << n_bits, -1, dtype=np.int32)
    labels, tokens = np.empty((2, len(indices)), dtype=np.int32)
    n = _label(indices, np.uint64(64 - n_bits), slots, labels, tokens)
    return tokens[:n].copy(), labels
