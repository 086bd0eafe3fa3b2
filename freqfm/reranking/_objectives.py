"""Lists that are chosen for diversity, or calibrated to users' histories."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.preprocessing import normalize

from freqfm import backends
from freqfm._input.item_tables import category_shares, history_shares, number_table
from freqfm._input.rows import concatenated_ranges, slices
from freqfm._input.validation import check_number, count_threads, kernel_csr
from freqfm.backends.base import Histories, ItemVectors
from freqfm.metrics._hits import SMOOTHING
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


# Candidates of users, and users' shares of categories, that are looked at at once.
_AT_ONCE = 1 << 20


def calibrate(
    items: ArrayLike,
    scores: ArrayLike,
    categories,
    history,
    weight: float = 0.5,
    n_recommendations: int | None = None,
    *,
    item_ids: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose recommendations whose categories have the shares that a user's history has [1]_.

    With p, the shares of the categories in a user's history, and q, those in a list of n items, the
    list is the better calibrated the smaller the Kullback-Leibler divergence ::

        KL(p, q) = sum_c p_c log(p_c / ((1 - a) q_c + a p_c)),    a = 0.01.

    Items are chosen one after the other, so that the list with each has the largest ::

        (1 - weight) sum_i r_i - weight KL(p, q).

    The relevance r_i is the score of i, scaled to 1 for the best candidate of the list and to 0 for
    its worst.

    Parameters
    ----------
    items : array-like of shape (n_users, n_candidates) or (n_candidates,)
        Candidates for each user, or for one, as ``recommend`` returns them: indices, -1 for
        missing ones; or ids, see ``item_ids``. A hundred candidates or more give a choice.
    scores : array-like of the same shape
        Of the candidates.
    categories : {array-like, sparse matrix}
        A label for each item, such as a column of a DataFrame, or a list of labels for each, which
        share it equally; or weights of shape (n_items, n_categories), shares or counts, as an
        array, a sparse matrix or a DataFrame of numbers: numbers in lists of lists are labels.
        Items without category count as items of the list only.
    history : sparse matrix, ndarray or DataFrame of shape (n_users, n_items), or list of n_users \
            lists
        What the users had: a matrix of weights of the items, as ``fit`` takes it, whose negative
        values, dislikes, are not counted; or the items of each user. A user whose history has no
        category gets the order of the scores.
    weight : float, default=0.5
        Of calibration: from 0, the order of the scores, to 1, where only shares count.
    n_recommendations : int, default=None
        How many items are chosen for each user; None only reorders them.
    item_ids : array-like of shape (n_items,), default=None
        Ids of the items of ``categories``, if ``items`` and lists in ``history`` hold ids; None
        in ``items`` is missing.

    Returns
    -------
    items : ndarray of shape (n_users, n_recommendations) or (n_recommendations,)
        In the order in which they were chosen; those of equal worth in the order of their scores.
    scores : ndarray of the same shape
        Their scores, as given.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, numbers are not finite, weights are negative, an item is out of range,
        unknown or twice in a list, or ``n_recommendations`` exceeds the number of candidates.

    See Also
    --------
    diversify : Lists whose items differ from one another.
    freqfm.metrics.miscalibration_at_k : The mean of KL(p, q).

    References
    ----------
    .. [1] H. Steck. "Calibrated Recommendations". RecSys 2018, equations (2), (3), (6) and (7).

    Examples
    --------
    The user had two comedies and a drama; the best candidates are comedies.

    >>> from freqfm.reranking import calibrate
    >>> genres = ["comedy", "comedy", "comedy", "comedy", "drama", "drama"]
    >>> candidates, scores = [2, 3, 0, 5], [0.9, 0.8, 0.7, 0.1]
    >>> items, _ = calibrate(candidates, scores, genres, [0, 1, 4], 0.7, n_recommendations=3)
    >>> items
    array([2, 5, 3])
    """
    weight = check_number("weight", weight, 0, 1)
    shares = category_shares(categories)
    given = Given.of(items, scores, shares.shape[0], item_ids)
    k, n = given.count(n_recommendations), len(given.codes)
    history = history_shares(history, n, shares.shape[0], item_ids)
    lists = given.lists()
    chosen = np.full((n, k), -1, dtype=np.int32)
    step = max(1, _AT_ONCE // (lists.items.shape[1] + shares.shape[1]))
    for part in slices(n, step):
        wanted = (history[part] @ shares).toarray()
        totals = wanted.sum(axis=1, keepdims=True)
        wanted /= np.where(totals > 0, totals, 1)
        _choose(lists.items[part], lists.relevances[part], shares, wanted, weight, chosen[part])
    return given.take(chosen)


def _choose(items, relevances, shares, wanted, weight, chosen):
    """Write the places of the chosen candidates of some users."""
    n, width = items.shape
    # For each category of a candidate, unless its user has none of it: which, and its share.
    flat_items = np.maximum(items, 0).ravel()
    lengths = np.diff(shares.indptr)[flat_items]
    entries = concatenated_ranges(shares.indptr[flat_items].astype(np.int64), lengths)
    candidate = np.repeat(np.arange(n * width), lengths)
    user, category, share = candidate // width, shares.indices[entries], shares.data[entries]
    is_wanted = wanted[user, category] > 0
    candidate, user, category, share = (
        array[is_wanted] for array in (candidate, user, category, share)
    )
    target = wanted[user, category]
    smooth = SMOOTHING * target
    reached, is_open, users = np.zeros(wanted.shape), items >= 0, np.arange(n)
    for place in range(chosen.shape[1]):
        # By how much the divergence is smaller with an item than with one of no category.
        so_far, added = (
            (1 - SMOOTHING) / (place + 1) * part for part in (reached[user, category], share)
        )
        gains = target * np.log((so_far + added + smooth) / (so_far + smooth))
        gains = np.bincount(candidate, gains, n * width).reshape(n, width)
        worth = np.where(is_open, (1 - weight) * relevances + weight * gains, -np.inf)
        best = worth.argmax(axis=1)
        there = is_open[users, best]
        chosen[there, place] = best[there]
        is_open[users, best] = False
        is_best = np.zeros((n, width), dtype=bool)
        is_best[users, best] = there
        at = is_best.ravel()[candidate]
        np.add.at(reached, (user[at], category[at]), share[at])
