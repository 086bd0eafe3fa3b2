"""The best items of every query, for recommenders."""

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._input.validation import (
    as_array,
    as_kernel_input,
    check_count,
    check_integer,
    check_structure,
    is_canonical,
)
from freqfm._threads import available_threads
from freqfm.backends.base import Candidates, Exclusions
from freqfm.metrics._hits import as_csr

__all__ = ["top_k"]


def top_k(
    queries,
    items,
    k,
    *,
    exclude=None,
    exclude_for_all=None,
    candidates=None,
    unit_columns=0,
    n_threads=None,
    device="cpu",
):
    """Find the ``k`` items with the largest scores for every query.

    The score of query q and item j is the dot product <queries_q, items_j>, in float32. Scores are
    computed, filtered and compared tile by tile, so that the full score matrix is never stored.

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_components)
    items : array-like of shape (n_items, n_components)
    k : int
        Number of items to find, at least 1. It may exceed the number of items.
    exclude : {sparse matrix, array-like} of shape (n_queries, n_items), default=None
        Items that must not be found for a query: all entries that are not zero.
    exclude_for_all : array-like of int, default=None
        Items that must not be found for any query.
    candidates : array-like of int, array-like of bool of shape (n_items,), or sparse matrix of \
            shape (n_queries, n_items), default=None
        Items that may be found: for all queries, as a set of indices or as a mask; or for each
        query, all entries that are not zero. None is all items. With few candidates the time does
        not depend on the number of items. Those of each query are scored by the CPU.
    unit_columns : int, default=0
        This many leading columns of ``items`` are normalised to unit length: if these are all
        columns and queries have unit length, scores are cosines. ``items`` is not copied for this.
    n_threads : int, default=None
        Number of threads; all that the process may use if None. Small problems use one. Results
        are bitwise identical.
    device : str, default="cpu"
        Where scores are computed, see ``freqfm.backends.get``; the CPU if there is no such device.

    Returns
    -------
    found : ndarray of shape (n_queries, k), int32
        Indices of items by decreasing score, ties by increasing index. Where there are no more
        items, -1.
    scores : ndarray of shape (n_queries, k), float32
        Their scores; -inf where there is no item.

    Raises
    ------
    TypeError
        If ``k`` is not an integer, ``candidates`` holds neither indices nor a mask, or
        ``exclude_for_all`` no indices.
    ValueError
        If shapes do not match, an index is out of range, ``exclude`` is not finite, or ``k`` or
        ``n_threads`` is less than 1.

    Notes
    -----
    Items whose score is NaN or -inf are never found. A score may differ in its last bits depending
    on the other queries, since matrix products of other shapes may sum in another order.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.metrics._ranking import top_k
    >>> items = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> found, scores = top_k([[2.0, 1.0]], items, 2, exclude=[[0, 0, 1]])
    >>> found
    array([[0, 1]], dtype=int32)
    >>> scores
    array([[2., 1.]], dtype=float32)
    """
    queries, items = _as_matrix("queries", queries), _as_matrix("items", items)
    if queries.shape[1] != items.shape[1] or queries.shape[1] == 0:
        raise ValueError(
            f"queries have {queries.shape[1]} columns and items {items.shape[1]}; both must have "
            f"the same number of components, at least one."
        )
    k = check_count("k", k)
    if n_threads is None:
        n_threads = available_threads()
    n_threads = check_integer("n_threads", n_threads, 1)
    shape = len(queries), len(items)
    indptr, indices = _excluded(exclude, shape)
    banned = np.zeros(0, dtype=np.int32)
    if exclude_for_all is not None:
        banned = _indices("exclude_for_all", exclude_for_all, shape[1])
    if sparse.issparse(candidates):
        candidates = _csr_of("candidates", candidates, shape)
        n_kept = min(k, int(np.diff(candidates.indptr).max(initial=0)))
        best = backends.get("cpu").top_k_of_candidates(
            queries,
            items,
            n_kept,
            Candidates(candidates.indptr, candidates.indices),
            Exclusions(indptr, indices, banned.astype(np.int32)),
            unit_columns,
            n_threads,
        )
        return _with_empty_places(*best, k)
    if candidates is not None:
        candidates = _without(_candidate_items(candidates, shape[1]), banned)
        banned = banned[:0]
        indptr, indices = _to_candidate_positions(candidates, indptr, indices)
        items = _as_matrix("items", items[candidates])

    # There may be fewer items than places.
    n_kept = min(k, len(items))
    if not (len(queries) and n_kept):
        nothing = np.zeros((len(queries), 0))
        return _with_empty_places(nothing, nothing, k)
    excluded = Exclusions(indptr, indices, banned.astype(np.int32))
    found, scores = backends.serve(
        device, "top_k", queries, items, n_kept, excluded, unit_columns, n_threads
    )
    if candidates is not None:
        found = np.where(found >= 0, candidates[found], -1).astype(np.int32)
    return (found, scores) if n_kept == k else _with_empty_places(found, scores, k)


def _with_empty_places(found, scores, k):
    """Pad to ``k`` places, of which the last hold no item."""
    n_queries, n_kept = found.shape
    all_found = np.full((n_queries, k), -1, dtype=np.int32)
    all_scores = np.full((n_queries, k), -np.inf, dtype=np.float32)
    all_found[:, :n_kept], all_scores[:, :n_kept] = found, scores
    return all_found, all_scores


def _as_matrix(name, array):
    """Return a float32 matrix for the kernel."""
    array = as_array(name, array)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {array.dtype}; give a dense matrix of numbers.")
    if array.dtype == np.float32:
        array = as_kernel_input(array)
    else:
        with np.errstate(over="ignore"):  # overflow gives infinite scores
            array = as_kernel_input(array)
    if array.ndim != 2:
        raise ValueError(
            f"{name} must have the shape (n, n_components); got {array.shape}. Give a single row "
            f"as {name}.reshape(1, -1)."
        )
    # NumPy allows any stride for a single row, but BLAS relies on it.
    return array.copy() if len(array) == 1 else array


def _excluded(exclude, shape):
    """Return indptr and indices of the excluded items."""
    if exclude is None:
        return np.zeros(shape[0] + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    exclude = _csr_of("exclude", exclude, shape)
    return exclude.indptr, exclude.indices


def _csr_of(name, matrix, shape):
    """Return items of each query as canonical CSR."""
    if not _is_for_kernels(name, matrix):
        matrix = as_csr(name, matrix)
    if matrix.shape != shape:
        hint = " It looks transposed." if matrix.shape == shape[::-1] else ""
        raise ValueError(
            f"{name} has the shape {matrix.shape}; for these queries and items it must have "
            f"{shape}, (n_queries, n_items).{hint}"
        )
    return matrix


def _is_for_kernels(name, X):
    """Return whether a matrix is canonical CSR as kernels expect it; converting takes longer."""
    if not isinstance(X, sparse.csr_array) or X.dtype != np.float32:
        return False
    types = X.indices.dtype, X.indptr.dtype
    if types != (np.int32, np.int64) or not X.indices.flags.c_contiguous:
        return False
    check_structure(X, name)
    return X.indptr[-1] == len(X.indices) and is_canonical(X)


def _candidate_items(candidates, n_items):
    """Return the indices of the candidates, sorted and unique."""
    candidates = as_array("candidates", candidates)
    if candidates.ndim != 1:
        raise ValueError(
            f"candidates must be a vector of indices or a mask; got the shape {candidates.shape}."
        )
    if candidates.dtype == bool:
        if len(candidates) != n_items:
            raise ValueError(
                f"candidates is a mask of length {len(candidates)}; it needs one entry for each of "
                f"the {n_items} items."
            )
        return np.flatnonzero(candidates)
    return _indices("candidates", candidates, n_items)


def _without(indices, banned):
    """Return the indices that are not banned; both are sorted and unique."""
    if not len(banned):
        return indices
    places = np.minimum(np.searchsorted(banned, indices), len(banned) - 1)
    return indices[banned[places] != indices]


def _indices(name, indices, n_items):
    """Return indices of items, sorted and unique."""
    indices = as_array(name, indices)
    if indices.ndim != 1:
        raise ValueError(f"{name} must be a vector of indices; got the shape {indices.shape}.")
    if len(indices) == 0:
        return np.zeros(0, dtype=np.int64)
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {indices.dtype}; give indices of items.")
    if not (indices[1:] > indices[:-1]).all():
        indices = np.unique(indices)
    if indices[0] < 0 or indices[-1] >= n_items:
        bad = indices[0] if indices[0] < 0 else indices[-1]
        raise ValueError(f"{name} holds {bad}; indices of items lie in [0, {n_items - 1}].")
    return indices.astype(np.int64, copy=False)


def _to_candidate_positions(candidates, indptr, indices):
    """Return exclusions as positions among the candidates instead of item indices."""
    places = np.searchsorted(candidates, indices)
    kept = np.zeros(len(indices), dtype=bool)
    if len(candidates):
        kept = candidates[np.minimum(places, len(candidates) - 1)] == indices
    indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
    return indptr.astype(np.int64), places[kept].astype(np.int32)
