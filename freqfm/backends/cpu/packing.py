"""The memory layout in which kernels read training rows.

Shuffled training visits rows in random order, and most of its time goes into cache misses. A
row's start, target and weight share one cache line here, and its tokens and values another, so
that a short row costs two misses instead of six.
"""

import numpy as np

from freqfm._rows import gather_rows_of

SAMPLE = np.dtype([("start", np.int64), ("target", np.float32), ("weight", np.float32)])
ENTRY = np.dtype([("token", np.int32), ("value", np.float32)])


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
    if rows is None:
        samples = np.zeros(X.shape[0] + 1, dtype=SAMPLE)
        entries = np.zeros(X.nnz + 1, dtype=ENTRY)
        samples["start"], samples["weight"][:-1] = X.indptr, weight
        entries["token"][:-1], entries["value"][:-1] = X.indices, X.data
        return samples, entries
    samples = np.zeros(len(rows) + 1, dtype=SAMPLE)
    samples["weight"][:-1] = weight[rows]
    n_entries = int((X.indptr[rows + 1] - X.indptr[rows]).sum())
    entries = np.zeros(n_entries + 1, dtype=ENTRY)
    gather_rows_of(X, rows, samples["start"][1:], entries["token"], entries["value"])
    return samples, entries
