"""Some rows of a sparse matrix, copied part by part."""

import numpy as np

# Entries that are gathered at a time: each takes some 40 bytes meanwhile.
_ENTRIES = 1 << 18


def gather_rows_of(X, rows, ends, indices, data):
    """Copy some rows of a CSR matrix, part by part.

    Parameters
    ----------
    X : csr_array
    rows : ndarray of int of shape (n_rows,)
    ends : ndarray of shape (n_rows,)
        Gets where each row ends in the copy.
    indices, data : ndarray
        Get the entries.
    """
    step = max(1, _ENTRIES * len(rows) // max(1, len(data)))
    begin = 0
    for first in range(0, len(rows), step):
        own = rows[first : first + step]
        starts = X.indptr[own]
        lengths = X.indptr[own + 1] - starts
        own_ends = begin + np.cumsum(lengths)
        ends[first : first + step] = own_ends
        part = slice(begin, own_ends[-1])
        at = np.arange(part.start, part.stop)
        at += np.repeat(starts - own_ends + lengths, lengths)
        indices[part], data[part] = X.indices[at], X.data[at]
        begin = part.stop
