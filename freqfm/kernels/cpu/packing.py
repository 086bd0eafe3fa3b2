"""The memory layout in which kernels read training rows.

Shuffled training visits rows in random order, and most of its time goes into cache misses. A
row's start, target and weight share one cache line here, and its tokens and values another, so
that a short row costs two misses instead of six.
"""

import numpy as np

SAMPLE = np.dtype([("start", np.int64), ("target", np.float32), ("weight", np.float32)])
ENTRY = np.dtype([("token", np.int32), ("value", np.float32)])


def pack_entries(X):
    """Return the tokens and values of a CSR matrix side by side, with one spare entry at the end.

    The spare entry lets a kernel look at the first entry of an empty last row.
    """
    entries = np.zeros(X.nnz + 1, dtype=ENTRY)
    entries["token"][:-1] = X.indices
    entries["value"][:-1] = X.data
    return entries


def pack_samples(X, weight):
    """Return the starts and weights of the rows, and one more start as the end.

    Targets are filled in for the output that is to be trained.
    """
    samples = np.zeros(X.shape[0] + 1, dtype=SAMPLE)
    samples["start"] = X.indptr
    samples["weight"][:-1] = weight
    return samples
