"""Some rows of a sparse matrix, copied part by part."""

import numpy as np

# Entries gathered at a time, at about 40 bytes each.
_ENTRIES = 1 << 18


def gather_rows_of(X, rows, ends, indices, data):
    """Copy some rows of a CSR matrix, part by part.

    Parameters
    ----------
    X : csr_array
    rows : ndarray of int of shape (n_rows,)
    ends : ndarray of shape (n_rows,)
        Filled with where each row ends in the copy.
    indices, data : ndarray
        Filled with the entries.
    """
    step = max(1, _ENTRIES * len(rows) // max(1, len(data)))
    begin = 0
    for first in range(0, len(rows), step):
        chunk = rows[first : first + step]
        starts = X.indptr[chunk]
        lengths = X.indptr[chunk + 1] - starts
        chunk_ends = begin + np.cumsum(lengths)
        ends[first : first + step] = chunk_ends
        part = slice(begin, chunk_ends[-1])
        at = np.arange(part.start, part.stop)
        at += np.repeat(starts - chunk_ends + lengths, lengths)
        indices[part], data[part] = X.indices[at], X.data[at]
        begin = part.stop
