"""Rows of sparse matrices: chosen, joined, and with the fields of columns."""

import numpy as np
from scipy import sparse

# Entries gathered at a time, at about 40 bytes each.
_ENTRIES = 1 << 18


def slices(n, size):
    """Yield slices of so many numbers each that divide ``range(n)``; the last may be shorter."""
    for begin in range(0, n, size):
        yield slice(begin, min(begin + size, n))


def concatenated_ranges(starts, lengths):
    """Return the integers of several ranges, by where each starts and how many it has."""
    ends = np.cumsum(lengths)
    integers = np.arange(ends[-1] if len(ends) else 0)
    integers += np.repeat(starts - ends + lengths, lengths)
    return integers


def csr_of(data, indices, indptr, shape):
    """Return the CSR matrix of arrays, which are neither copied nor cast."""
    X = sparse.csr_array(shape, dtype=np.float32)
    # Assigned, not passed to the constructor: scipy would cast indptr and indices to one type.
    X.data, X.indices, X.indptr = data, indices, indptr
    return X


def with_one_index_type(X):
    """Return a CSR matrix whose indices and indptr are both int32 if they fit, else both int64.

    Compiled code of scipy and scikit-learn takes no two types, and some of it no int64. Arrays that
    have the type already are not copied.
    """
    dtype = np.int32 if max(X.nnz, *X.shape) <= np.iinfo(np.int32).max else np.int64
    indices, indptr = X.indices.astype(dtype, copy=False), X.indptr.astype(dtype, copy=False)
    return sparse.csr_array((X.data, indices, indptr), shape=X.shape)


def is_canonical(X):
    """Return whether rows are sorted without duplicates, and no zero is stored."""
    n_stored = X.indptr[-1]
    if np.count_nonzero(X.data[:n_stored]) < n_stored:
        return False
    # A new matrix: flags of the given one may be stale.
    if X.indices.dtype == X.indptr.dtype:
        X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    else:
        X = with_one_index_type(X)
    return X.has_canonical_format


def for_users(values):
    """Return a CSR matrix as users may get it, see ``with_one_index_type``; others unchanged."""
    return with_one_index_type(values) if sparse.issparse(values) else values


def take_rows(X, rows):
    """Return some rows of a canonical matrix as a canonical matrix.

    Part by part, and not by ``X[rows]``: older scipy cannot index with an indptr wider than the
    indices.
    """
    rows = np.asarray(rows)
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(X.indptr[rows + 1] - X.indptr[rows], out=indptr[1:])
    indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    step = max(1, _ENTRIES * len(rows) // max(1, len(data)))
    for chunk in slices(len(rows), step):
        lengths = np.diff(indptr[chunk.start : chunk.stop + 1])
        at = concatenated_ranges(X.indptr[rows[chunk]], lengths)
        part = slice(indptr[chunk.start], indptr[chunk.stop])
        indices[part], data[part] = X.indices[at], X.data[at]
    return csr_of(data, indices, indptr, (len(rows), X.shape[1]))


def stack_rows(parts):
    """Return CSR matrices one below the other, as one; the widest has the number of columns.

    Not by ``vstack``: older scipy cannot stack with an indptr wider than the indices.
    """
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(part.nnz for part in parts)])
    ends = [part.indptr[1:] + begin for part, begin in zip(parts, begins, strict=False)]
    return csr_of(
        np.concatenate([part.data for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([begins[:1], *ends]),
        (sum(part.shape[0] for part in parts), max(part.shape[1] for part in parts)),
    )


def row_sums(X, of=np.asarray):
    """Return the sums of a function of the values of each row of a CSR matrix, float64.

    Not by ``sum`` of scipy, which copies all values, or adds them in float32 before 1.18.
    """
    sums, filled = np.zeros(X.shape[0]), np.flatnonzero(np.diff(X.indptr))
    for part in slices(len(filled), max(1, _ENTRIES * len(filled) // max(1, X.nnz))):
        some = filled[part]
        first, last = X.indptr[some[0]], X.indptr[some[-1] + 1]
        # Cast first, since reduceat would add in pieces whose ends depend on the rows before.
        values = of(X.data[first:last]).astype(np.float64, copy=False)
        sums[some] = np.add.reduceat(values, X.indptr[some] - first)
    return sums


def column_sums(X, of=np.asarray, before=None):
    """Return the sums of a function of the values of each column, float64, see ``row_sums``.

    Values are added in the order of rows, to the sums of the rows before if these are given.
    """
    sums = np.zeros(X.shape[1]) if before is None else before.copy()
    for part in slices(X.nnz, _ENTRIES):
        # add.at is slow unless these are its own types.
        values = of(X.data[part]).astype(np.float64, copy=False)
        np.add.at(sums, X.indices[part].astype(np.intp, copy=False), values)
    return sums


def count_columns(X, weight=None, rows=None):
    """Return how many rows of a canonical matrix hold each column, or the weight of these rows.

    Works in chunks: NumPy would convert all indices to 64 bits at once.

    Parameters
    ----------
    X : csr_array
    weight : ndarray of shape (n_rows,), default=None
        Weights of all rows of ``X``; None gives every row weight one.
    rows : ndarray of int, default=None
        The rows to count, in the order in which weights are added up; all if None.
    """
    counts = np.zeros(X.shape[1], dtype=np.int64 if weight is None else np.float64)
    if weight is None:
        for part in slices(X.nnz, _ENTRIES):
            np.add.at(counts, X.indices[part], 1)
        return counts
    n_rows = X.shape[0] if rows is None else len(rows)
    step = max(1, _ENTRIES * X.shape[0] // max(1, X.nnz))
    for chunk in slices(n_rows, step):
        if rows is None:
            indptr = X.indptr[chunk.start : chunk.stop + 1]
            indices = X.indices[indptr[0] : indptr[-1]]
        else:
            chunk = rows[chunk]
            part = take_rows(X, chunk)
            indptr, indices = part.indptr, part.indices
        # In the order of the entries, for chunks of any size.
        np.add.at(counts, indices, np.repeat(weight[chunk], np.diff(indptr)))
    return counts


def entries_of(X):
    """Yield slices of some entries of a CSR matrix each, and their values, rows and columns.

    What is computed of all entries at once would take 64 bits for each.
    """
    for part in slices(X.nnz, _ENTRIES):
        first = np.searchsorted(X.indptr, part.start, "right") - 1
        last = np.searchsorted(X.indptr, part.stop)
        lengths = np.diff(np.clip(X.indptr[first : last + 1], part.start, part.stop))
        yield part, X.data[part], np.repeat(np.arange(first, last), lengths), X.indices[part]


def with_values(X, of):
    """Return a CSR matrix with other values, float32, and one index type.

    ``of`` returns these by the values, the rows and the columns of entries.
    """
    data = np.empty(X.nnz, dtype=np.float32)
    for part, *entries in entries_of(X):
        data[part] = of(*entries)
    X = with_one_index_type(X)
    return sparse.csr_array((data, X.indices, X.indptr), X.shape)


def split_signs(X):
    """Return the likes of a canonical matrix, and its dislikes with positive weights or None."""
    if not sparse.issparse(X) or not X.nnz or X.data.min() >= 0:
        return X, None
    return entries_where(X, X.data > 0), abs(entries_where(X, X.data < 0))


def entries_where(X, kept):
    """Return a canonical matrix with the entries of another one that are kept."""
    indptr = np.append(0, np.cumsum(kept))[X.indptr]
    return csr_of(X.data[kept], X.indices[kept], indptr, X.shape)


def csr_of_parts(parts, shape):
    """Return entries in parts as a CSR matrix: of float32 and without sums yet.

    Parameters
    ----------
    parts : list of list
        The rows and the columns of entries, int32, and their values, or None for ones. It is empty
        in the end: a part is freed when it is placed.
    shape : tuple of int

    Returns
    -------
    X : csr_array
        The entries of a row are in the order of the parts. Of float64 if some values are.
    """
    counts, kinds = np.zeros(shape[0] + 1, np.int64), {v.dtype for *_, v in parts if v is not None}
    for rows, *_ in parts:
        counts[1:] += np.bincount(rows, minlength=shape[0])
    indptr = np.cumsum(counts)
    ends = indptr[:-1].copy()
    indices = np.empty(indptr[-1], np.int32)
    data = np.empty(indptr[-1], np.result_type(*kinds)) if kinds else None
    parts.reverse()
    while parts:
        rows, columns, values = parts.pop()
        order, lengths = np.argsort(rows, kind="stable"), np.bincount(rows, minlength=shape[0])
        at = concatenated_ranges(ends, lengths)
        indices[at] = columns[order]
        if data is not None:
            data[at] = 1 if values is None else values[order]
        ends += lengths
    return csr_of(
        np.ones(len(indices), np.float32) if data is None else data, indices, indptr, shape
    )


class CarriesFields:
    """Mixin: a matrix has the field of each column, ``fields``; None where they were lost."""

    fields = None

    @classmethod
    def of(cls, rows, fields):
        """Return rows in the format of the class, with fields."""
        found = cls(rows)
        found.fields = fields
        return found

    def _with_data(self, data, copy=True):
        """Return other values in the same places: copies, other types, multiples and so on."""
        found = super()._with_data(data, copy=copy)
        found.fields = self.fields
        return found

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if self.fields is not None and isinstance(found, CarriesFields) and found.ndim == 2:
            columns = key[1] if isinstance(key, tuple) and len(key) == 2 else slice(None)
            if not isinstance(columns, (int, np.integer)):
                found.fields = self.fields[columns].reshape(-1)
        return found


class FieldRows(CarriesFields, sparse.csr_array):
    """Rows that carry the field of each column."""

    def tocsc(self, copy=False):
        """Return the matrix by columns."""
        return FieldColumns.of(super().tocsc(copy=copy), self.fields)


class FieldColumns(CarriesFields, sparse.csc_array):
    """Columns that carry the field of each."""

    def tocsr(self, copy=False):
        """Return the matrix by rows."""
        return FieldRows.of(super().tocsr(copy=copy), self.fields)


def with_fields_of(given, rows):
    """Return rows with the fields that ``given`` carries, if any."""
    return FieldRows.of(rows, given.fields) if isinstance(given, CarriesFields) else rows
