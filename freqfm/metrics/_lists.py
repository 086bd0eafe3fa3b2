"""Metrics of the lists themselves: coverage of the catalogue, novelty, diversity, calibration."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from freqfm._input.item_tables import (
    category_shares,
    history_shares,
    hold_ids,
    number_ids,
    number_table,
)
from freqfm._input.rows import slices
from freqfm._input.validation import check_count
from freqfm.metrics._formulas import check_item_counts, mean
from freqfm.metrics._hits import check_ranked

# Users whose items' vectors are added at once, each taking as many numbers as a vector has.
_USERS_AT_ONCE = 1 << 14

# Users' shares of categories that are computed at once.
_SHARES_AT_ONCE = 1 << 20

# The share of what a user had that is added to a list's shares of categories.
SMOOTHING = 0.01


def coverage_at_k(ranked: ArrayLike, n_items: int, k: int | None = None) -> float:
    """Share of all items that are recommended to at least one user.

    Parameters
    ----------
    ranked : array-like of int, of shape (n_users, n_ranked), or list of n_users lists of ids
        Items recommended to every user, best first; -1 or None for missing ones.
    n_items : int
        Number of items that could have been recommended.
    k : int, default=None
        Number of top places to evaluate, at most n_ranked; all if None.

    Returns
    -------
    coverage : float
        Between 0 and 1.

    Raises
    ------
    TypeError
        If ``ranked``, ``n_items`` or ``k`` is anything but integers.
    ValueError
        If an item is out of range or twice in a row, or ``k`` is out of range.

    Examples
    --------
    Items 0 and 2 of four are recommended.

    >>> from freqfm.metrics import coverage_at_k
    >>> coverage_at_k([[0, 2], [2, 0]], n_items=4)
    0.5
    """
    return float((_count(ranked, n_items, k) > 0).mean())


def gini(ranked: ArrayLike, n_items: int, k: int | None = None) -> float:
    """Gini coefficient of how often the items are recommended.

    With c_1 <= ... <= c_n, the numbers of users to whom each of the n items is recommended ::

        G = sum_i (2 i - n - 1) c_i / (n sum_i c_i)

    which is 0 if all items are recommended equally often, and 1 - 1 / n if only one is.

    Parameters
    ----------
    ranked : array-like of int, of shape (n_users, n_ranked), or list of n_users lists of ids
        As in :func:`coverage_at_k`, like all parameters.
    n_items : int
    k : int, default=None

    Returns
    -------
    coefficient : float

    Raises
    ------
    TypeError, ValueError
        As in :func:`coverage_at_k`, and if nothing is recommended.

    Examples
    --------
    >>> from freqfm.metrics import gini
    >>> gini([[0, 1], [2, 3]], n_items=4), gini([[0], [0]], n_items=4)
    (0.0, 0.75)
    """
    counts = np.sort(_count(ranked, n_items, k))
    n, total = len(counts), int(counts.sum())
    if not total:
        raise ValueError("ranked holds no item, so there is nothing to compare; recommend some.")
    return float((2 * np.arange(1, n + 1) - n - 1) @ counts / (n * total))


def novelty_at_k(
    ranked: ArrayLike, item_counts: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Mean self-information of the recommended items, in bits: the rarer, the more novel [1]_.

    With the number of interactions of an item, c_i, and of all items, the self-information is ::

        -log2(c_i / sum_j c_j)

    Items without interactions count as if they had one.

    Parameters
    ----------
    ranked : array-like of int, of shape (n_users, n_ranked)
        As in :func:`coverage_at_k`.
    item_counts : array-like of shape (n_items,)
        How often each item occurs in training.
    k : int, default=None
        As in :func:`coverage_at_k`.
    average : bool, default=True
        Whether to return the mean over users, or one value per user.

    Returns
    -------
    novelty : float or ndarray of shape (n_users,)
        Mean over the users with a recommendation. With ``average=False`` one float64 per user, NaN
        for users without.

    Raises
    ------
    TypeError, ValueError
        As in :func:`coverage_at_k`, and if ``item_counts`` are not finite non-negative numbers, or
        all of them are 0.

    References
    ----------
    .. [1] T. Zhou, Z. Kuscsik, J.-G. Liu, M. Medo, J. R. Wakeling, Y.-C. Zhang. "Solving the
       Apparent Diversity-Accuracy Dilemma of Recommender Systems". PNAS 107, 2010.

    Examples
    --------
    >>> from freqfm.metrics import novelty_at_k
    >>> round(novelty_at_k([[0, 1]], item_counts=[6, 2]), 4)
    1.2075
    """
    item_counts = check_item_counts(item_counts)
    ranked = check_ranked(ranked, len(item_counts), k)
    if not item_counts.sum():
        raise ValueError("item_counts are all 0; give how often each item occurs in training.")
    bits = np.log2(item_counts.sum()) - np.log2(np.where(item_counts > 0, item_counts, 1))
    given = ranked >= 0
    totals = np.where(given, bits[ranked], 0.0).sum(axis=1)
    return _mean_of_users(totals, given.sum(axis=1), average, "an item")


def diversity_at_k(
    ranked: ArrayLike, item_vectors, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Mean of one minus the cosine, over all pairs of items in a user's list [1]_.

    Parameters
    ----------
    ranked : array-like of int, of shape (n_users, n_ranked)
        As in :func:`coverage_at_k`.
    item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions)
        Features of the items, such as genres. With vectors of a model, the result says how varied
        the list is according to that model. The cosine with a vector of zeros is 0.
    k : int, default=None
        As in :func:`coverage_at_k`.
    average : bool, default=True
        Whether to return the mean over users, or one value per user.

    Returns
    -------
    diversity : float or ndarray of shape (n_users,)
        Mean over the users with two recommendations or more. With ``average=False`` one float64
        per user, NaN for other users.

    Raises
    ------
    TypeError, ValueError
        As in :func:`coverage_at_k`, and if ``item_vectors`` are not a matrix of finite numbers.

    References
    ----------
    .. [1] C.-N. Ziegler, S. M. McNee, J. A. Konstan, G. Lausen. "Improving Recommendation Lists
       Through Topic Diversification". WWW 2005.

    Examples
    --------
    >>> from freqfm.metrics import diversity_at_k
    >>> genres = [[1, 0], [1, 0], [0, 1]]
    >>> diversity_at_k([[0, 1], [0, 2]], genres, average=False)
    array([0., 1.])
    """
    units = _unit_vectors(item_vectors)
    ranked = check_ranked(ranked, units.shape[0], k)
    given = ranked >= 0
    n_given = given.sum(axis=1)
    squares = np.asarray(units.power(2).sum(axis=1)).ravel()
    # The sum of the cosines of all pairs: |sum of unit vectors|^2 minus the squares of each.
    cosines = -np.where(given, squares[ranked], 0.0).sum(axis=1)
    for part in slices(len(ranked), _USERS_AT_ONCE):
        rows, places = np.nonzero(given[part])
        items = ranked[part][rows, places]
        chosen = sparse.csr_array(
            (np.ones(len(rows)), (rows, items)), shape=(len(ranked[part]), units.shape[0])
        )
        cosines[part] += np.asarray((chosen @ units).power(2).sum(axis=1)).ravel()
    n_pairs = n_given * (n_given - 1)
    return _mean_of_users(n_pairs - cosines, n_pairs, average, "two items")


def miscalibration_at_k(
    ranked: ArrayLike, categories, history, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Kullback-Leibler divergence of a list's categories from those of the user's history [1]_.

    With p, the shares of the categories in the history, and q, those in the list ::

        KL(p, q) = sum_c p_c log(p_c / ((1 - a) q_c + a p_c)),    a = 0.01,

    which is 0 if they are the same, and at most -log(a) = 4.6.

    Parameters
    ----------
    ranked : array-like of int, of shape (n_users, n_ranked)
        As in :func:`coverage_at_k`.
    categories : {array-like, sparse matrix}
        A label for each item, a list of labels, or weights of shape (n_items, n_categories), as in
        :func:`freqfm.reranking.calibrate`.
    history : sparse matrix, ndarray or DataFrame of shape (n_users, n_items), or list of n_users \
            lists
        What the users had, likewise.
    k : int, default=None
        As in :func:`coverage_at_k`.
    average : bool, default=True
        Whether to return the mean over users, or one value per user.

    Returns
    -------
    miscalibration : float or ndarray of shape (n_users,)
        Mean over the users with a recommendation and a history that have categories. With
        ``average=False`` one float64 per user, NaN for other users.

    Raises
    ------
    TypeError, ValueError
        As in :func:`coverage_at_k`, and if ``categories`` or ``history`` cannot be used.

    References
    ----------
    .. [1] H. Steck. "Calibrated Recommendations". RecSys 2018, equations (2), (3) and (6).

    Examples
    --------
    The second list has no drama.

    >>> from freqfm.metrics import miscalibration_at_k
    >>> genres = ["comedy", "drama", "comedy", "drama"]
    >>> miscalibration_at_k([[2, 3], [2, 0]], genres, [[0, 1], [0, 1]], average=False).round(2)
    array([0.  , 1.96])
    """
    shares = category_shares(categories)
    ranked = check_ranked(ranked, shares.shape[0], k)
    history = history_shares(history, len(ranked), shares.shape[0])
    rows, places = np.nonzero(ranked >= 0)
    given = np.bincount(rows, minlength=len(ranked))
    lists = sparse.csr_array((1 / given[rows], (rows, ranked[rows, places])), shape=history.shape)
    divergences = np.full(len(ranked), np.nan)
    step = max(1, _SHARES_AT_ONCE // shares.shape[1])
    for part in slices(len(ranked), step):
        p, q = ((of[part] @ shares).toarray() for of in (history, lists))
        p /= np.where(p.any(axis=1), p.sum(axis=1), 1)[:, np.newaxis]
        p_or_1, mixed = np.where(p > 0, p, 1), (1 - SMOOTHING) * q + SMOOTHING * p
        ratios = np.divide(p_or_1, mixed, out=np.ones_like(p), where=p > 0)
        values = (p * np.log(ratios)).sum(axis=1)
        divergences[part] = np.where(p.any(axis=1) & (given[part] > 0), values, np.nan)
    lacking = "ranked holds no user with an item and a history that has categories"
    return mean(divergences, average, lacking, "give categories of more items")


def report_lists(ranked, n_items, item_counts=None, item_vectors=None):
    """Return metrics of rankings by name, those whose arguments are given; NaN if undefined."""
    values = {"coverage": coverage_at_k(ranked, n_items), "gini": float("nan")}
    if (ranked >= 0).any():
        values["gini"] = gini(ranked, n_items)
    per_user = {}
    if item_counts is not None:
        per_user["novelty"] = novelty_at_k(ranked, item_counts, average=False)
    if item_vectors is not None:
        if np.shape(item_vectors)[:1] != (n_items,):
            raise ValueError(
                f"item_vectors has the shape {np.shape(item_vectors)}, but relevant has {n_items} "
                f"columns; give one vector for each item."
            )
        per_user["diversity"] = diversity_at_k(ranked, item_vectors, average=False)
    for name, numbers in per_user.items():
        numbers = numbers[~np.isnan(numbers)]
        values[name] = float(numbers.mean()) if len(numbers) else float("nan")
    return values


def _count(ranked, n_items, k):
    """Return to how many users each item is recommended."""
    n_items = check_count("n_items", n_items)
    if hold_ids(ranked) or (isinstance(ranked, np.ndarray) and ranked.dtype.kind in "OUT"):
        (ranked,), _ = number_ids("ranked", ranked)
    ranked = check_ranked(ranked, n_items, k)
    return np.bincount(ranked[ranked >= 0].astype(np.int64), minlength=n_items)


def _mean_of_users(totals, numbers, average, least):
    """Return ``totals / numbers`` of each user, NaN where the number is 0, or their mean."""
    values = np.divide(totals, numbers, out=np.full(len(totals), np.nan), where=numbers > 0)
    return mean(values, average, f"ranked holds no user with {least}", "recommend more items")


def _unit_vectors(item_vectors):
    """Return vectors divided by their lengths, as a sparse matrix."""
    vectors = sparse.csr_array(number_table("item_vectors", item_vectors), dtype=np.float64)
    lengths = np.sqrt(vectors.power(2).sum(axis=1))
    lengths[lengths == 0] = 1
    vectors.data /= np.repeat(lengths, np.diff(vectors.indptr))
    return vectors
