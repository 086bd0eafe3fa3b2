"""Lists of candidates, checked and sorted, and rules of shops for them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from freqfm._input.item_tables import category_shares, codes_of, number_table, refuse_repeated
from freqfm._input.rows import concatenated_ranges
from freqfm._input.validation import as_array, check_count, check_finite
from freqfm.backends.base import RankedLists


class Given(NamedTuple):
    """Items and scores as a caller gave them, in descending order of the scores."""

    items: np.ndarray  #: (n, n_candidates), indices or ids; missing ones last
    scores: np.ndarray  #: (n, n_candidates)
    codes: np.ndarray  #: (n, n_candidates), int32: rows of the table of items; -1 for missing ones
    is_single: bool  #: whether one list was given, without a dimension of lists
    are_ids: bool  #: whether ``items`` holds ids, of which None is missing

    @classmethod
    def of(cls, items, scores, n_items, item_ids):
        """Return the lists that were given; raise if they are not valid.

        Parameters
        ----------
        items, scores : array-like of shape (n, n_candidates) or (n_candidates,)
        n_items : int
            Number of rows of the table of items.
        item_ids : array-like of shape (n_items,) or None
            The ids of these rows, if ``items`` holds ids.
        """
        items, scores = as_array("items", items), as_array("scores", scores)
        if items.shape != scores.shape or items.ndim not in (1, 2) or not items.shape[-1]:
            raise ValueError(
                f"items has shape {items.shape} and scores {scores.shape}; give both as recommend "
                f"returns them, (n_users, n_candidates)."
            )
        is_single = items.ndim == 1
        items, scores = np.atleast_2d(items), np.atleast_2d(scores)
        codes = codes_of("items", items.ravel(), n_items, item_ids).reshape(items.shape)
        check_finite("scores", scores[codes >= 0])
        numbers = np.where(codes >= 0, scores.astype(np.float64), -np.inf)
        refuse_repeated("items", items, codes)
        order = np.argsort(-numbers, axis=1, kind="stable")
        items, scores, codes = (
            np.take_along_axis(array, order, axis=1) for array in (items, scores, codes)
        )
        return cls(items, scores, codes.astype(np.int32), is_single, item_ids is not None)

    def lists(self):
        """Return the items and how relevant they are, for the backend."""
        return RankedLists(self.codes, relevances(self.codes, self.scores))

    def take(self, chosen):
        """Return the items and scores at some places, -1 for none."""
        missing = chosen < 0
        # Where no candidate is left, the last one may be missing, as it was given.
        places = np.where(missing, self.codes.shape[1] - 1, chosen)
        items, scores, codes = (
            np.take_along_axis(array, places, axis=1)
            for array in (self.items, self.scores, self.codes)
        )
        missing &= codes >= 0
        if missing.any():
            items = items.astype(object if self.are_ids else np.int64)
            scores = scores.astype(np.result_type(scores, np.float32))
            items[missing], scores[missing] = None if self.are_ids else -1, -np.inf
        return (items[0], scores[0]) if self.is_single else (items, scores)

    def count(self, n_recommendations):
        """Return how many items are to be chosen; None is all."""
        n = self.codes.shape[1]
        k = n if n_recommendations is None else check_count("n_recommendations", n_recommendations)
        if k > n:
            raise ValueError(
                f"n_recommendations={k}, but items has {n} columns; recommend more candidates."
            )
        return k


def relevances(items, scores):
    """Return scores scaled to 1 for the best item of each list and 0 for its worst, float32.

    All are 0 if the best is no better. Rows fall, and end with missing items, -1, which have 0.
    """
    there = items >= 0
    scores = scores.astype(np.float64)
    best = np.where(there[:, :1], scores[:, :1], 0)
    above = np.where(there, scores, best)
    worst = above.min(axis=1, keepdims=True)
    spread = best - worst
    found = (above - worst) / np.where(spread > 0, spread, 1)
    return np.where(there, found, 0).astype(np.float32)


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
