"""Random numbers by their indices in a stream."""

import numpy as np

from freqfm._numba.jit import kernel
from freqfm.formulas.rng import key_of, random_bits
from freqfm.formulas.rng import standard_normal as _normal_of
from freqfm.formulas.rng import uniform as _uniform_of


@kernel
def _sort_by_bits(stream, shift, ends, order):
    """Write the integers from 0 on to ``order``, sorted by their random bits, which are distinct.

    The bits above the lowest ``shift`` are the number of a bucket. ``ends`` is scratch: a zero for
    each bucket, and one more.
    """
    key = key_of(stream)
    n = order.shape[0]
    for i in range(n):
        ends[np.int64(random_bits(key, i) >> shift) + 1] += 1
    for bucket in range(1, ends.shape[0]):
        ends[bucket] += ends[bucket - 1]
    for i in range(n):
        bucket = np.int64(random_bits(key, i) >> shift)
        order[ends[bucket]] = i
        ends[bucket] += 1
    # Insertion sort, which moves little: a bucket holds one or two numbers.
    for place in range(1, n):
        i = order[place]
        bits = random_bits(key, i)
        while place > 0 and random_bits(key, order[place - 1]) > bits:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i


@kernel
def _draw_uniform(stream, indices, out):
    key = key_of(stream)
    for i in range(out.shape[0]):
        out[i] = _uniform_of(random_bits(key, indices[i]))


@kernel
def _draw_normal(stream, indices, out):
    key = key_of(stream)
    for i in range(out.shape[0]):
        out[i] = _normal_of(random_bits(key, indices[i]))


def _drawn(kernel, stream, indices):
    out = np.empty(indices.size, dtype=np.float32)
    kernel(stream, np.ascontiguousarray(indices, dtype=np.int64).reshape(-1), out)
    return out.reshape(indices.shape)


def permutation(stream, n):
    """Return the integers below ``n`` in random order, see ``Backend.permutation``."""
    n_bits = max(int(n).bit_length() - 1, 1)
    order = np.empty(n, dtype=np.int64)
    ends = np.zeros((1 << n_bits) + 1, dtype=np.int64)
    _sort_by_bits(stream, np.uint64(64 - n_bits), ends, order)
    return order


def uniform(stream, indices):
    """Return numbers between 0 and 1, see ``Backend.uniform``."""
    return _drawn(_draw_uniform, stream, indices)


def standard_normal(stream, indices):
    """Return normal numbers, see ``Backend.standard_normal``."""
    return _drawn(_draw_normal, stream, indices)
