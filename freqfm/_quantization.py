"""Product quantization: vectors approximated by the nearest codeword of each of their parts."""

from itertools import pairwise

import numpy as np
from scipy import sparse

from freqfm._dense import unit_rows

# Codewords are fitted to at most this many vectors per codeword. More lower the error by less than
# 1 %.
_POINTS_PER_CODEWORD = 256

# Iterations of k-means from a random start, and from the codewords of similar vectors.
_FIRST_STEPS, _LATER_STEPS = 20, 2

# Number of vectors whose distances are held at a time; with 64 codewords they take 1 MB.
_TILE = 1 << 12


def subspaces(d, n_subspaces):
    """Return the column slices of the subspaces, as even as possible; some may be empty."""
    bounds = -(-np.arange(n_subspaces + 1) * d // n_subspaces)
    return [slice(begin, end) for begin, end in pairwise(bounds.tolist())]


def quantize(vectors, n_subspaces, n_codewords, seed, previous=None, unit=False):
    """Fit codewords to the parts of vectors by k-means, and find those that are nearest.

    Parameters
    ----------
    vectors : ndarray of shape (n, d), float32
    n_subspaces, n_codewords : int
    seed : int
    previous : ndarray of shape (n_subspaces * n_codewords, d), default=None
        Codewords to start from, fitted to similar vectors.
    unit : bool, default=False
        Whether vectors are taken at unit length.

    Returns
    -------
    codewords : ndarray of shape (n_subspaces * n_codewords, d), float32
        Zero outside their subspace. A vector is approximately the sum of its codewords.
    codes : ndarray of shape (n, n_subspaces), int32
        The rows of ``codewords`` that are nearest to the parts of each vector.
    """
    options = n_subspaces, n_codewords, seed, previous
    codewords = fit_codewords(vectors.shape, vectors.__getitem__, unit, *options)
    k, parts = n_codewords, subspaces(vectors.shape[1], n_subspaces)
    codes = np.zeros((len(vectors), n_subspaces), dtype=np.int32)
    for start in range(0, len(vectors), _TILE):
        rows = slice(start, start + _TILE)
        tile = unit_rows(vectors[rows]) if unit else vectors[rows]
        for s, columns in enumerate(parts):
            centres = codewords[s * k : (s + 1) * k, columns]
            codes[rows, s] = s * k + _nearest(tile[:, columns], centres)[0]
    return codewords, codes


def fit_codewords(shape, take, unit, n_subspaces, n_codewords, seed, previous=None):
    """Return the codewords of vectors, see ``quantize``.

    Parameters
    ----------
    shape : tuple of int
        Of the vectors.
    take : callable
        Takes an index of some of them, or the slice of all; returns these.
    unit, n_subspaces, n_codewords, seed, previous
        See ``quantize``.
    """
    n, d = shape
    generator = np.random.default_rng(seed)
    most = _POINTS_PER_CODEWORD * n_codewords
    rows = slice(None)
    if n > most:
        rows = np.sort(generator.choice(n, most, replace=False))
    sample = unit_rows(take(rows)) if unit else take(rows)
    codewords = np.zeros((n_subspaces * n_codewords, d), dtype=np.float32)
    for s, columns in enumerate(subspaces(d, n_subspaces)):
        rows = slice(s * n_codewords, (s + 1) * n_codewords)
        points = np.ascontiguousarray(sample[:, columns])
        if previous is None:
            centres = _spread(points, n_codewords, generator)
        else:
            centres = np.ascontiguousarray(previous[rows, columns])
        for _ in range(_FIRST_STEPS if previous is None else _LATER_STEPS):
            centres = _move_to_means(points, centres)
        codewords[rows, columns] = centres
    return codewords


def _spread(points, n, generator):
    """Return points that are far from each other, by k-means++.

    Where there are fewer distinct points, the first is repeated.
    """
    centres = np.repeat(points[:1], n, axis=0)
    centres[0] = points[generator.integers(len(points))]
    centres[1:] = centres[0]
    distance = np.full(len(points), np.inf)
    for k in range(1, n):
        distance = np.minimum(distance, _nearest(points, centres[k - 1 : k])[1])
        sums = np.cumsum(distance)
        if not sums[-1] > 0:
            break
        chosen = np.searchsorted(sums, generator.random() * sums[-1], side="right")
        centres[k] = points[min(chosen, len(points) - 1)]
    return centres


def _move_to_means(points, centres):
    """Return the mean of the points nearest to each centre.

    A centre without points moves to one that is far from its own centre.
    """
    labels, distance = _nearest(points, centres)
    n, k = len(points), len(centres)
    member = sparse.csr_array((np.ones(n, np.float32), labels, np.arange(n + 1)), shape=(n, k))
    counts = np.bincount(labels, minlength=k)
    means = (member.T @ points) / np.maximum(counts, 1)[:, None].astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    means[empty] = centres[empty]
    if len(empty):
        far = np.argsort(-distance, kind="stable")[: len(empty)]
        far = far[distance[far] > 0]
        means[empty[: len(far)]] = points[far]
    return means


def _nearest(points, centres):
    """Return the nearest centre of each point, and the square of its distance."""
    lengths = np.einsum("kf,kf->k", centres, centres)
    scaled = -2 * centres.T
    labels = np.zeros(len(points), dtype=np.int32)
    distance = np.zeros(len(points), dtype=np.float32)
    for start in range(0, len(points), _TILE):
        tile = np.ascontiguousarray(points[start : start + _TILE])
        # Without the point's squared length, which is the same for all centres.
        partial = tile @ scaled
        partial += lengths
        nearest = partial.argmin(axis=1)
        squared = np.einsum("nf,nf->n", tile, tile)
        least = partial[np.arange(len(tile)), nearest] + squared
        labels[start : start + _TILE] = nearest
        # A distance of zero that rounding made positive is set to zero.
        distance[start : start + _TILE] = np.where(least > 1e-6 * squared, least, 0)
    return labels, distance
