"""Maximal marginal relevance."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.preprocessing import normalize

from freqfm import backends
from freqfm._input.item_tables import number_table
from freqfm._input.validation import check_number, count_threads, kernel_csr
from freqfm.backends.base import Histories, ItemVectors
from freqfm.reranking._lists import Given

# Sparse vectors with a larger share of numbers that are not zero are compared as dense ones, which
# is faster, if these are not more than so many numbers.
_DENSE, _MOST_NUMBERS = 1 / 16, 1 << 26

_NO_ROWS = Histories(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def diversify(
    items: ArrayLike,
    scores: ArrayLike,
    item_vectors,
    diversity: float = 0.3,
    n_recommendations: int | None = None,
    *,
    item_ids: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose recommendations that differ from one another, by maximal marginal relevance [1]_.

    Items are chosen one after the other. The next one is that with the largest ::

        (1 - diversity) r_i - diversity max_j cos(v_i, v_j)

    over the items j that were chosen before; the maximum is 0 for the first. The relevance r_i is
    the score of i, scaled to 1 for the best candidate of the list and to 0 for its worst, so that
    ``diversity`` means the same whatever the scale of the scores. v are the vectors of items.

    Parameters
    ----------
    items : array-like of shape (n_users, n_candidates) or (n_candidates,)
        Candidates for each user, or for one, as ``recommend`` returns them: indices, -1 for
        missing ones; or ids, see ``item_ids``. A hundred candidates or more give a choice.
    scores : array-like of the same shape
        Of the candidates.
    item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions)
        Features of the items, such as genres, or vectors of a model. The cosine with a vector of
        zeros is 0.
    diversity : float, default=0.3
        From 0, the order of the scores, to 1, where only differences count after the first item.
    n_recommendations : int, default=None
        How many items are chosen for each user; None only reorders them.
    item_ids : array-like of shape (n_items,), default=None
        Ids of the rows of ``item_vectors``, if ``items`` holds ids; None in ``items`` is missing.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.

    Returns
    -------
    items : ndarray of shape (n_users, n_recommendations) or (n_recommendations,)
        In the order in which they were chosen; those of equal worth in the order of their scores.
    scores : ndarray of the same shape
        Their scores, as given.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, numbers are not finite, an item is out of range, unknown or twice in a
        list, or ``n_recommendations`` exceeds the number of candidates.

    See Also
    --------
    calibrate : Lists with the shares of categories that a user's history has.
    freqfm.metrics.diversity_at_k : How diverse lists are.

    Notes
    -----
    ``recommend(..., diversity=...)`` of recommenders does this with the vectors of the model.

    References
    ----------
    .. [1] J. Carbonell, J. Goldstein. "The Use of MMR, Diversity-Based Reranking for Reordering
       Documents and Producing Summaries". SIGIR 1998.

    Examples
    --------
    Item 1 is like item 0, which is better.

    >>> from freqfm.reranking import diversify
    >>> genres = [[1, 0], [1, 0], [0, 1]]
    >>> items, scores = diversify([0, 1, 2], [0.9, 0.8, 0.7], genres, 0.5)
    >>> items
    array([0, 2, 1])
    """
    diversity = check_number("diversity", diversity, 0, 1)
    table = number_table("item_vectors", item_vectors)
    given = Given.of(items, scores, table.shape[0], item_ids)
    k = given.count(n_recommendations)
    return given.take(choose(given.lists(), table, diversity, k, count_threads(n_jobs)))


def choose(lists, table, diversity, k, n_threads):
    """Return the places of the chosen candidates, (n, k) int32, -1 for none.

    Parameters
    ----------
    lists : RankedLists
    table : ndarray or sparse matrix of shape (n_items, d)
    diversity : float
    k : int
    n_threads : int
    """
    rows, places = _used_rows(lists.items, table)
    vectors = ItemVectors(rows, _NO_ROWS, table.shape[1])
    if sparse.issparse(rows):
        rows = kernel_csr(rows.data, rows.indices, rows.indptr, rows.shape)
        histories = Histories(rows.indptr, rows.indices, rows.data)
        vectors = vectors._replace(dense=np.zeros((0, 0), dtype=np.float32), sparse=histories)
    lists = lists._replace(items=places)
    return backends.get("cpu").diversify(lists, vectors, diversity, k, n_threads)


def _used_rows(items, table):
    """Return unit rows of a table for some items, -1 for none, and the items' places among them."""
    n_items, d = table.shape
    is_used = np.zeros(n_items + 1, dtype=bool)
    is_used[items] = True
    is_used[-1] = False
    used = np.flatnonzero(is_used)
    places = np.full(n_items + 1, -1, dtype=np.int32)
    places[used] = np.arange(len(used))
    rows = table[used]
    if rows.size:
        # Divided by their largest number first, so that squares neither overflow nor vanish.
        largest = abs(rows).max(axis=1)
        largest = largest.toarray() if sparse.issparse(rows) else largest
        inverses = 1 / np.where(largest > 0, largest, 1).ravel()
        rows = normalize(sparse.diags(inverses) @ rows)
    rows = rows.astype(np.float32)
    n_numbers = n_items * d
    if sparse.issparse(rows) and n_numbers <= min(table.nnz / _DENSE, _MOST_NUMBERS):
        rows = rows.toarray()
    return rows, places[items]
