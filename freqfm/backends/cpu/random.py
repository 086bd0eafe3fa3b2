"""Random numbers by their indices in a stream."""

import numpy as np

from freqfm._jit import kernel
from freqfm.formulas import rng


@kernel
def _draw_bits(stream, bits):
    key = rng.key_of(stream)
    for i in range(bits.shape[0]):
        bits[i] = rng.random_bits(key, i)


@kernel
def _draw_uniform(stream, indices, out):
    key = rng.key_of(stream)
    for i in range(out.shape[0]):
        out[i] = rng.uniform(rng.random_bits(key, indices[i]))


@kernel
def _draw_normal(stream, indices, out):
    key = rng.key_of(stream)
    for i in range(out.shape[0]):
        out[i] = rng.standard_normal(rng.random_bits(key, indices[i]))


def _drawn(kernel, stream, indices):
    out = np.empty(indices.size, dtype=np.float32)
    kernel(stream, np.ascontiguousarray(indices, dtype=np.int64).reshape(-1), out)
    return out.reshape(indices.shape)


def permutation(stream, n):
    """Return the integers below ``n`` in random order, see ``Backend.permutation``."""
    bits = np.empty(n, dtype=np.uint64)
    _draw_bits(stream, bits)
    return np.argsort(bits, kind="stable")


def uniform(stream, indices):
    """Return numbers between 0 and 1, see ``Backend.uniform``."""
    return _drawn(_draw_uniform, stream, indices)


def standard_normal(stream, indices):
    """Return normal numbers, see ``Backend.standard_normal``."""
    return _drawn(_draw_normal, stream, indices)
