"""The best items of every query, for recommenders."""

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._input.validation import as_kernel_input, canonical_csr
from freqfm._threads import available_threads
from freqfm.backends.base import Candidates, Exclusions

# Indices are few if there are less than one for so many that there could be.
_FEW = 64


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
    exclude : sparse matrix of shape (n_queries, n_items), default=None
        Items that must not be found for a query: all entries that are not zero.
    exclude_for_all : ndarray of int, default=None
        Items that must not be found for any query.
    candidates : ndarray of int, or csr_array of shape (n_queries, n_items), default=None
        Items that may be found: for all queries, by their indices; or for each query, the entries,
        canonical. None is all items. With few candidates the time does not depend on the number of
        items. Those of each query are scored by the CPU.
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

    Notes
    -----
    Items whose score is NaN or -inf are never found. A score may differ in its last bits depending
    on the other queries, since matrix products of other shapes may sum in another order.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.metrics._ranking import top_k
    >>> items = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> found, scores = top_k(np.array([[2.0, 1.0]]), items, 2, exclude_for_all=np.array([2]))
    >>> found
    array([[0, 1]], dtype=int32)
    >>> scores
    array([[2., 1.]], dtype=float32)
    """
    queries, items = _as_matrix(queries), _as_matrix(items)
    n_threads = available_threads() if n_threads is None else n_threads
    of_each = Candidates(np.zeros(len(queries) + 1, np.int64), np.zeros(0, np.int32))
    if exclude is not None:
        exclude = canonical_csr(exclude)
        of_each = Candidates(exclude.indptr, exclude.indices)
    banned = np.zeros(0, np.int64)
    if exclude_for_all is not None:
        banned = ascending(exclude_for_all, len(items))
    if sparse.issparse(candidates):
        n_places = int(np.diff(candidates.indptr).max(initial=0))
        lists = Candidates(candidates.indptr, candidates.indices)
        hidden = Exclusions(*of_each, banned.astype(np.int32))
        best = backends.get("cpu").top_k_of_candidates(
            queries, items, min(k, n_places), lists, hidden, unit_columns, n_threads
        )
        return with_empty_places(*best, k)
    if candidates is None:
        hidden = Exclusions(*of_each, banned.astype(np.int32))
    else:
        candidates = ascending(candidates, len(items))
        if len(banned):
            candidates = np.setdiff1d(candidates, banned, assume_unique=True)
        hidden = _hidden_candidates(candidates, of_each) if len(candidates) else None
        items = _as_matrix(items[candidates])
    # There may be fewer items than places.
    n_kept = min(k, len(items))
    if not (len(queries) and n_kept):
        nothing = np.zeros((len(queries), 0))
        return with_empty_places(nothing, nothing, k)
    found, scores = backends.serve(
        device, "top_k", queries, items, n_kept, hidden, unit_columns, n_threads
    )
    if candidates is not None:
        found = np.where(found >= 0, candidates[found], -1).astype(np.int32)
    return (found, scores) if n_kept == k else with_empty_places(found, scores, k)


def ascending(ids, n):
    """Return indices into ``range(n)``, each once, in ascending order: sorted only if few."""
    ids = np.asarray(ids)
    if (ids[1:] > ids[:-1]).all():
        return ids
    if _FEW * len(ids) < n:
        return np.unique(ids)
    is_there = np.zeros(n, dtype=bool)
    is_there[ids] = True
    return np.flatnonzero(is_there)


def with_empty_places(found, scores, k):
    """Pad to ``k`` places, of which the last hold no item."""
    n_queries, n_kept = found.shape
    all_found = np.full((n_queries, k), -1, dtype=np.int32)
    all_scores = np.full((n_queries, k), -np.inf, dtype=np.float32)
    all_found[:, :n_kept], all_scores[:, :n_kept] = found, scores
    return all_found, all_scores


def _as_matrix(array):
    """Return a float32 matrix for the kernel."""
    with np.errstate(over="ignore"):  # overflow gives infinite scores
        array = as_kernel_input(array)
    # NumPy allows any stride for a single row, but BLAS relies on it.
    return array.copy() if len(array) == 1 else array


def _hidden_candidates(candidates, exclude):
    """Return the excluded items that are candidates, by their positions among these."""
    places = np.searchsorted(candidates, exclude.indices)
    kept = candidates.take(places, mode="clip") == exclude.indices
    indptr = np.append(0, np.cumsum(kept))[exclude.indptr]
    return Exclusions(indptr.astype(np.int64), places[kept].astype(np.int32), np.zeros(0, np.int32))
