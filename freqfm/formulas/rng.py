"""Counter-based random numbers: a value depends only on (seed, epoch, index)."""

import numpy as np

from freqfm._numba.jit import HALF, as_python, inlined
from freqfm.formulas.special import normal_upper_quantile

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE, _HALF_WORD = np.uint64(1), np.uint64(32)
_UNIT = 2.0**-53
_UNIT_24, _UNIT_25 = np.float32(2.0**-24), np.float32(2.0**-25)


@inlined
def hash64(x):
    """Mix 64 bits thoroughly (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@inlined
def stream_key(seed, epoch):
    """Return the key of one epoch's random stream."""
    return hash64(np.uint64(seed) * _GOLDEN + hash64(np.uint64(epoch) + _ONE))


@inlined
def key_of(stream):
    """Return the key of a stream of (seed, time, purpose)."""
    seed, time, purpose = stream
    return hash64(stream_key(seed, time) + np.uint64(purpose))


def key_in_python(*stream):
    """Return the key of a stream of (seed, epoch) or (seed, time, purpose), outside of kernels."""
    with np.errstate(over="ignore"):
        key = as_python(key_of)(stream) if len(stream) == 3 else as_python(stream_key)(*stream)
    return np.uint64(key)


@inlined
def random_bits(key, index):
    """Return 64 random bits: number ``index`` of the stream ``key``."""
    return hash64(key + (np.uint64(index) + _ONE) * _GOLDEN)


@inlined
def unit_interval(bits):
    """Return a number in [0, 1) with 53 random bits."""
    return np.float64(bits >> np.uint64(11)) * _UNIT


@inlined
def uniform(bits):
    """Return a number in [0, 1) with 24 random bits, float32."""
    return np.float32(bits >> np.uint64(40)) * _UNIT_24


@inlined
def slot_and_position(bits, n):
    """Return a slot below ``n`` and a number in [0, 1) with 24 random bits, for an alias table."""
    return ((bits >> _HALF_WORD) * np.uint64(n)) >> _HALF_WORD, uniform(bits << _HALF_WORD)


@inlined
def standard_normal(bits):
    """Return a standard normal number, float32, at most 5.5 in magnitude."""
    q = (np.float32(bits >> np.uint64(40)) + HALF) * _UNIT_25
    z = normal_upper_quantile(q)
    return z if bits & _ONE else -z


@inlined
def _round(x, key):
    x = (x ^ key) * _GOLDEN
    return x ^ (x >> np.uint64(32))


@inlined
def permuted_index(i, n, low_bits, high_bits, key):
    """Return element ``i`` of the pseudo-random permutation of ``range(n)`` given by ``key``.

    A four-round Feistel network on ``low_bits + high_bits`` bits is a bijection of the next
    power of two; walking along its cycle until the value is below ``n`` makes it a
    bijection of ``range(n)``. It needs no array, and any thread can compute any element.
    """
    low_mask = (_ONE << low_bits) - _ONE
    high_mask = (_ONE << high_bits) - _ONE
    n = np.uint64(n)
    x = np.uint64(i)
    while True:
        high = x >> low_bits
        low = x & low_mask
        high ^= _round(low, key) & high_mask
        low ^= _round(high, key + _MIX_1) & low_mask
        high ^= _round(low, key + _MIX_2) & high_mask
        low ^= _round(high, key + _GOLDEN) & low_mask
        x = (high << low_bits) | low
        if x < n:
            return x
