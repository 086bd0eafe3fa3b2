"""The memory layout in which kernels read training rows.

Shuffled training visits rows in random order, and most of its time goes into cache misses. A
row's start, target and weight share one cache line here, and its tokens and values another, so
that a short row costs two misses instead of six.
"""

import numpy as np

from freqfm._numba.jit import kernel
from freqfm._numba.prefetch import prefetch_element

SAMPLE = np.dtype([("start", np.int64), ("target", np.float32), ("weight", np.float32)])
ENTRY = np.dtype([("token", np.int32), ("value", np.float32)])

# How many rows ahead one's entries are prefetched, and the entries of a cache line.
_AHEAD, _LINE = np.uint64(8), np.uint64(16)

# Rows that are packed at a time, whose numbers are converted to 64 bits.
_ROWS = 1 << 13


@kernel
def _pack(rows, indptr, indices, data, samples, entries):
    """Write the entries of rows side by side, from ``samples[0].start`` on."""
    n_rows = np.uint64(rows.shape[0])
    q = np.uint64(samples[0].start)
    for i in range(n_rows):
        ahead = np.uint64(rows[min(i + _AHEAD, n_rows - np.uint64(1))])
        for p in range(np.uint64(indptr[ahead]), np.uint64(indptr[ahead + np.uint64(1)]), _LINE):
            prefetch_element(indices, p)
            prefetch_element(data, p)
        row = np.uint64(rows[i])
        for p in range(np.uint64(indptr[row]), np.uint64(indptr[row + np.uint64(1)])):
            entries[q].token = indices[p]
            entries[q].value = data[p]
            q += np.uint64(1)


def pack_rows(X, weight, rows=None):
    """Return the starts and weights of rows, and their tokens and values side by side.

    Each has one more element at the end: there the last row ends, and a kernel may look at the
    first entry of a last row that is empty. Targets are filled in for the output that is to be
    trained.

    Parameters
    ----------
    X : csr_array
    weight : ndarray
        Of all rows.
    rows : ndarray of shape (n_rows,), default=None
        The rows that are packed, in this order; None for all.
    """
    n_rows = X.shape[0] if rows is None else len(rows)
    samples = np.zeros(n_rows + 1, dtype=SAMPLE)
    if rows is None:
        samples["start"], samples["weight"][:-1] = X.indptr, weight
    else:
        np.cumsum(X.indptr[rows + 1] - X.indptr[rows], out=samples["start"][1:])
        samples["weight"][:-1] = weight[rows]
    n = samples["start"][-1]
    entries = np.empty(n + 1, dtype=ENTRY)
    entries[n] = 0, 0
    for first in range(0, n_rows, _ROWS):
        last = min(first + _ROWS, n_rows)
        part = np.arange(first, last) if rows is None else rows[first:last]
        part = part.astype(np.int64, copy=False)
        _pack(part, X.indptr, X.indices, X.data, samples[first:], entries)
    return samples, entries
