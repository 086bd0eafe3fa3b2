"""Rules of shops: at most so many items of a group, and items that are moved up or down."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from freqfm._input.item_tables import category_shares, number_table
from freqfm._input.rows import concatenated_ranges
from freqfm._input.validation import as_array, check_count
from freqfm.reranking._lists import Given, relevances


def limit_per_group(
    items: ArrayLike,
    scores: ArrayLike,
    groups,
    limit: int = 2,
    n_recommendations: int | None = None,
    *,
    item_ids: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the best recommendations of which at most so many are of the same group.

    Parameters
    ----------
    items : array-like of shape (n_users, n_candidates) or (n_candidates,)
        Candidates for each user, or for one, as ``recommend`` returns them: indices, -1 for
        missing ones; or ids, see ``item_ids``. A hundred candidates or more give a choice.
    scores : array-like of the same shape
        Of the candidates.
    groups : {array-like, sparse matrix}
        The group of each item, such as its brand: a label for each item, as in a column of a
        DataFrame; or a list of labels for each; or a matrix of shape (n_items, n_groups) whose
        positive numbers say which groups an item has. An item of several groups counts in each of
        them; one without group is always allowed.
    limit : int, default=2
        The most items of a group in a list.
    n_recommendations : int, default=None
        How many items are chosen for each user; None is as many as there are candidates.
    item_ids : array-like of shape (n_items,), default=None
        Ids of the items of ``groups``, if ``items`` holds ids; None in ``items`` is missing.

    Returns
    -------
    items : ndarray of shape (n_users, n_recommendations) or (n_recommendations,)
        In descending order of the scores. Where too few candidates are within the limit -1, or
        None if ``items`` holds ids.
    scores : ndarray of the same shape
        Their scores, as given; -inf where there is no item.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, numbers are not finite, an item is out of range, unknown or twice in a
        list, or ``n_recommendations`` exceeds the number of candidates.

    See Also
    --------
    diversify : Lists whose items differ from one another.

    Examples
    --------
    >>> from freqfm.reranking import limit_per_group
    >>> brands = ["Ako", "Ako", "Ako", "Bex"]
    >>> items, _ = limit_per_group([0, 1, 2, 3], [0.9, 0.8, 0.7, 0.1], brands, 2, 3)
    >>> items
    array([0, 1, 3])
    """
    table, limit = category_shares(groups, "groups"), check_count("limit", limit)
    table.eliminate_zeros()
    given = Given.of(items, scores, table.shape[0], item_ids)
    k, (n, width) = given.count(n_recommendations), given.codes.shape
    kept = given.codes >= 0
    # The groups of the first candidates of all users, then those of the second ones, and so on.
    codes = given.codes.T.ravel()
    lengths = np.where(codes >= 0, np.diff(table.indptr)[codes], 0)
    entries = concatenated_ranges(table.indptr[codes].astype(np.int64), lengths)
    users = np.repeat(np.tile(np.arange(n), width), lengths)
    pairs = users * np.int64(table.shape[1]) + table.indices[entries]
    known, pairs = np.unique(pairs, return_inverse=True)
    chosen, end = np.zeros(len(known), dtype=np.int64), 0
    for place, length in enumerate(lengths.reshape(width, n).sum(axis=1)):
        part = slice(end, end := end + length)
        kept[users[part][chosen[pairs[part]] >= limit], place] = False
        # A user has one item at a place, and an item every group once.
        chosen[pairs[part][kept[users[part], place]]] += 1
    places = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    return given.take(np.where(np.take_along_axis(kept, places, axis=1), places, -1))


def boost(
    items: ArrayLike,
    scores: ArrayLike,
    boosts: ArrayLike,
    n_recommendations: int | None = None,
    *,
    item_ids: ArrayLike | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose recommendations by their scores and a number for each item: promoted, new, profitable.

    Items are in descending order of ``r_i + b_i``. The relevance r_i is the score of i, scaled to 1
    for the best candidate of the list and to 0 for its worst, so that a boost b_i means the same
    whatever the scale of the scores: 0.2 is worth a fifth of the way from the worst to the best.

    Parameters
    ----------
    items : array-like of shape (n_users, n_candidates) or (n_candidates,)
        Candidates for each user, or for one, as ``recommend`` returns them: indices, -1 for
        missing ones; or ids, see ``item_ids``. A hundred candidates or more give a choice.
    scores : array-like of the same shape
        Of the candidates.
    boosts : array-like of shape (n_items,)
        A number for each item: 0 leaves it as it is, negative ones move it down.
    n_recommendations : int, default=None
        How many items are chosen for each user; None only reorders them.
    item_ids : array-like of shape (n_items,), default=None
        Ids of the items of ``boosts``, if ``items`` holds ids; None in ``items`` is missing.

    Returns
    -------
    items : ndarray of shape (n_users, n_recommendations) or (n_recommendations,)
        In descending order; those of equal sums in the order of their scores.
    scores : ndarray of the same shape, float64
        The sums, so that other functions of this module may follow; -inf for missing items.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, numbers are not finite, an item is out of range, unknown or twice in a
        list, or ``n_recommendations`` exceeds the number of candidates.

    See Also
    --------
    limit_per_group : At most so many items of a brand.

    Examples
    --------
    >>> from freqfm.reranking import boost
    >>> items, scores = boost([0, 1, 2], [9.0, 8.0, 5.0], [0, 0.5, 0])
    >>> items
    array([1, 0, 2])
    >>> scores
    array([1.25, 1.  , 0.  ])
    """
    boosts = as_array("boosts", boosts)
    if boosts.ndim != 1:
        raise ValueError(f"boosts has the shape {boosts.shape}; give one number for each item.")
    boosts = number_table("boosts", boosts[:, None]).ravel()
    given = Given.of(items, scores, len(boosts), item_ids)
    worth = relevances(given.codes, given.scores) + boosts[given.codes]
    worth[given.codes < 0] = -np.inf
    order = np.argsort(-worth, axis=1, kind="stable")
    return given._replace(scores=worth).take(order[:, : given.count(n_recommendations)])
