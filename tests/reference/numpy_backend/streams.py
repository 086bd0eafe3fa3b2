"""The package's counter-based random numbers, for arrays of keys and indices."""

import numpy as np
from scipy.special import ndtri

from freqfm.formulas import rng


def hashes(keys):
    """Return ``hash64`` of each key."""
    keys = np.asarray(keys, dtype=np.uint64)
    with np.errstate(over="ignore"):
        values = [rng.hash64(key) for key in keys.ravel()]
    return np.array(values, dtype=np.uint64).reshape(keys.shape)


def stream(seed, epoch):
    """Return the key of an epoch's random stream."""
    with np.errstate(over="ignore"):
        return np.uint64(rng.stream_key(seed, epoch))


def bits(key, indices):
    """Return random bits of a stream, by their indices."""
    with np.errstate(over="ignore"):
        values = [rng.random_bits(np.uint64(key), np.uint64(index)) for index in np.ravel(indices)]
    return np.array(values, dtype=np.uint64).reshape(np.shape(indices))


def uniform(key, indices):
    """Return random numbers in [0, 1) of a stream, by their indices."""
    return (bits(key, indices) >> np.uint64(11)) * 2.0**-53


def key_of(stream_of_purpose):
    """Return the key of a ``base.Stream``."""
    seed, time, purpose = stream_of_purpose
    return hashes(np.array([stream(seed, time)]) + np.uint64(purpose))[0]


def standard_normal(key, indices):
    """Return numbers of the standard normal distribution, by bits for magnitude and for sign."""
    random = bits(key, indices)
    upper = ((random >> np.uint64(40)) + 0.5) * 2.0**-25
    return np.where(random & np.uint64(1), -ndtri(upper), ndtri(upper))


def shuffled(n, key):
    """Return ``range(n)`` in the pseudo-random order of a stream, by a Feistel network."""
    n_bits = max(2, int(n - 1).bit_length())
    low, high = np.uint64(n_bits // 2), np.uint64(n_bits - n_bits // 2)
    with np.errstate(over="ignore"):
        order = [rng.permuted_index(np.uint64(i), np.uint64(n), low, high, key) for i in range(n)]
    return np.array(order, dtype=np.int64)


def dropout_masks(keys, width, dropout):
    """Return what weights of rows are multiplied by: zero, or 1 / (1 - dropout).

    A row has a key; each of its weights looks at 16 bits of the stream, four at one hash.
    """
    starts = np.arange(0, width, 4, dtype=np.uint64)
    four = hashes(keys[:, None] + starts)[:, :, None] >> np.arange(0, 64, 16, dtype=np.uint64)
    lanes = (four & np.uint64(0xFFFF)).reshape(len(keys), -1)[:, :width]
    return (lanes >= np.uint64(dropout * 65536)) / (1 - dropout)
