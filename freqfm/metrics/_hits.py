"""The places of a ranking that hold relevant items, and the ranking metrics of these.

The formulas of the ranking metrics, for all users at once.

They take hits and return one number per user, NaN for users without held-out items.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.item_tables import hold_ids, number_ids
from freqfm._input.rows import slices, split_signs, with_one_index_type
from freqfm._input.validation import as_array, canonical_csr, check_count, check_flag, checked_csr
from freqfm._messages import shown

STRATA = ("popular", "neutral", "unpopular")


def mean(
    values, average, lacking="relevant holds no item of any user", advice="give held-out items"
):
    """Return the mean over all users with a value if ``average``, else the values.

    Raises
    ------
    TypeError, ValueError
        If no user has a value, or ``average`` is neither True nor False.
    """
    if not check_flag("average", average):
        return values
    values = values[~np.isnan(values)]
    if not len(values):
        raise ValueError(
            f"{lacking}, so there is nothing to average over; {advice}, or average=False for NaN."
        )
    return float(values.mean())


def ndcg(hits):
    """Return DCG / IDCG."""
    return _per_ideal(hits, hits.places)


def recall(hits, truncated=False):
    """Return the number of hits divided by the number of held-out items, at most k if truncated."""
    most = _most(hits) if check_flag("truncated", truncated) else hits.n_relevant
    return _divide(hits.places.sum(axis=1), most, hits)


def precision(hits):
    """Return the number of hits divided by k."""
    return _divide(hits.places.sum(axis=1), hits.places.shape[1], hits)


def average_precision(hits):
    """Return the sum of the precisions at the places of hits, divided by the most possible hits."""
    n_hits = hits.places.cumsum(axis=1)
    # Precision at r is the number of hits up to r, over r.
    total = (hits.places * n_hits) @ (1.0 / np.arange(1, hits.places.shape[1] + 1))
    return _divide(total, _most(hits), hits)


def hit_rate(hits):
    """Return whether there is a hit."""
    return _divide(hits.places.any(axis=1), 1, hits)


def reciprocal_rank(hits):
    """Return one over the place of the first hit, or 0 if there is none."""
    return _divide(hits.places.any(axis=1), hits.places.argmax(axis=1) + 1, hits)


#: The metrics of a report that need only hits.
FORMULAS = {
    "ndcg": ndcg,
    "recall": recall,
    "precision": precision,
    "average_precision": average_precision,
    "hit_rate": hit_rate,
    "reciprocal_rank": reciprocal_rank,
}


def stratified_ndcg(hits, stratum_of_item):
    """Return the contribution of every stratum to DCG / IDCG, by name."""
    # A missing item, -1, gets the stratum of the last item, but is never a hit.
    stratum = stratum_of_item[hits.ranked]
    return {
        name: _per_ideal(hits, hits.places & (stratum == code)) for code, name in enumerate(STRATA)
    }


def strata(item_counts, edges, hits):
    """Return the stratum of every item, as an index into ``STRATA``.

    Raises
    ------
    TypeError, ValueError
        If ``item_counts`` are not one non-negative number per item, or ``edges`` do not increase
        from 0 to 1.
    """
    item_counts = check_item_counts(item_counts, hits.n_items, len(hits.n_relevant))
    first, second = _check_edges(edges)
    ranks = np.argsort(np.argsort(-item_counts, kind="stable"))
    return np.digitize(ranks, [round(first * hits.n_items), round(second * hits.n_items)])


def check_item_counts(item_counts, n_items=None, n_users=None):
    """Return how often each item occurs, as float64; of ``n_items`` items, unless it is None.

    Raises
    ------
    TypeError, ValueError
        If they are not a finite non-negative number per item.
    """
    item_counts = as_array("item_counts", item_counts)
    if item_counts.dtype.kind not in "biuf":
        raise TypeError(f"item_counts holds {item_counts.dtype}; give a number for every item.")
    if n_items is None and item_counts.ndim != 1:
        raise ValueError(f"item_counts must be one-dimensional; got the shape {item_counts.shape}.")
    if n_items is not None and item_counts.shape != (n_items,):
        hint = " They look like counts of users." if item_counts.shape == (n_users,) else ""
        raise ValueError(
            f"item_counts has the shape {item_counts.shape}, but relevant has {n_items} "
            f"columns; give one count for each item.{hint}"
        )
    item_counts = item_counts.astype(np.float64)
    if not (np.isfinite(item_counts).all() and (item_counts >= 0).all()):
        raise ValueError("item_counts must be finite and not negative; give 0 for unseen items.")
    return item_counts


def _check_edges(edges):
    try:
        first, second = map(float, edges)
    except (TypeError, ValueError):
        first, second = 1.0, 0.0
    if not 0 <= first <= second <= 1:
        raise ValueError(
            f"edges={shown(edges)} must be two shares of the items, 0 <= first <= second <= 1."
        )
    return first, second


def _per_ideal(hits, places):
    """Return the discounted sum over some places, divided by the largest possible for the user."""
    discounts = 1.0 / np.log2(np.arange(2, places.shape[1] + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])[_most(hits)]
    return _divide(places @ discounts, ideal, hits)


def _most(hits):
    """Return the largest possible number of hits of each user."""
    return np.minimum(hits.n_relevant, hits.places.shape[1])


def _divide(values, by, hits):
    out = np.full(len(hits.n_relevant), np.nan)
    return np.divide(values, by, out=out, where=hits.n_relevant > 0)


# Rankings that are looked up at once, each place taking some 40 bytes.
_USERS_AT_ONCE = 1 << 14


class Hits(NamedTuple):
    """Places of relevant items in the rankings of all users."""

    places: np.ndarray  #: (n_users, k), bool
    ranked: np.ndarray  #: (n_users, k), integers
    n_relevant: np.ndarray  #: (n_users,), int64
    n_items: int


def find_hits(relevant, ranked, k=None, disliked=False):
    """Check relevant items and rankings, and compare them.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items), or list of n_users lists
        Negative values are dislikes. Or the ids of each user's items.
    ranked : array-like of int, of shape (n_users, n_ranked), or list of n_users lists
        Columns of ``relevant``, or ids.
    k : int, default=None
        Number of top places; all if None.
    disliked : bool, default=False
        Whether to find the dislikes, and not the other items.

    Returns
    -------
    hits : Hits

    Raises
    ------
    TypeError
        If ``ranked`` or ``k`` is anything but integers, or ``relevant`` anything but numbers.
    ValueError
        If shapes do not match, an index is out of range, a row contains an item twice, a number in
        ``relevant`` is not finite, or ``k`` is out of range.
    """
    relevant, ranked = by_columns(relevant, ranked)
    relevant = as_csr("relevant", relevant)
    relevant, _ = split_signs(-relevant if disliked else relevant)
    n_users, n_items = relevant.shape
    ranked = check_ranked(ranked, n_items, k, n_users)
    stored, places = with_one_index_type(relevant), np.zeros(ranked.shape, dtype=bool)
    for rows in slices(n_users, _USERS_AT_ONCE):
        part, users = ranked[rows].astype(np.int64), np.arange(rows.start, rows.stop)[:, None]
        places[rows] = (stored[users, np.maximum(part, 0)].toarray() != 0) & (part >= 0)
    return Hits(places, ranked, np.diff(relevant.indptr), n_items)


def by_columns(relevant, ranked, **of_items):
    """Return lists of ids as a matrix of held-out items and rankings of its columns.

    What is a matrix already is returned unchanged. ``of_items`` are arguments with a row for each
    column, which lists do not have.

    Raises
    ------
    TypeError, ValueError
        If ids cannot be told apart, a list names one twice, there is not a ranking for each user,
        or one of ``of_items`` is not None.
    """
    if not hold_ids(relevant):
        return relevant, ranked
    given = [name for name, value in of_items.items() if value is not None]
    if given:
        raise ValueError(
            f"{given[0]} follows the columns of relevant, which holds lists of ids; give relevant "
            f"as a matrix of users x items, and ranked as its columns."
        )
    (held_out, ranked), known = number_ids("relevant or ranked", relevant, ranked)
    if len(held_out) != len(ranked):
        raise ValueError(
            f"relevant holds lists of {len(held_out)} users, but ranked of {len(ranked)}; both "
            f"must have one per user."
        )
    ordered = np.sort(ranked, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, place = np.argwhere(twice)[0]
        raise ValueError(
            f"ranked names item {shown(known[ordered[row, place]])} twice in row {row}, where it "
            f"would count twice; rank every item once."
        )
    users, places = np.nonzero(held_out >= 0)
    pairs, shape = (users, held_out[users, places]), (len(held_out), len(known))
    return sparse.csr_array((np.ones(len(users)), pairs), shape=shape), ranked


def check_ranked(ranked, n_items, k=None, n_users=None):
    """Return the first ``k`` places of rankings as an array; all places if ``k`` is None.

    Parameters
    ----------
    ranked, k
        See :func:`find_hits`.
    n_items : int
        Bound of the items.
    n_users : int, default=None
        Number of rankings; None accepts any.

    Raises
    ------
    TypeError, ValueError
        See :func:`find_hits`.
    """
    ranked = as_array("ranked", ranked)
    if ranked.ndim != 2 or ranked.shape[1] == 0:
        raise ValueError(
            f"ranked must have the shape (n_users, k) and at least one column; got {ranked.shape}."
        )
    if ranked.dtype.kind not in "iu":
        raise TypeError(
            f"ranked holds {ranked.dtype}; it must hold integers, the column that stands for an "
            f"item in the matrix of users and items, and -1 for missing ones."
        )
    if n_users not in (None, len(ranked)):
        _refuse_rows(ranked, n_users, n_items)
    low, high = (int(ranked.min()), int(ranked.max())) if ranked.size else (0, -1)
    if low < -1 or high >= n_items:
        raise ValueError(
            f"ranked holds {low if low < -1 else high}, but there are {n_items} items (the columns "
            f"of relevant, where it is given); items must lie in [0, {n_items - 1}], and -1 stands "
            f"for a missing one. Held-out items that are given by ids are a list of sets."
        )
    ordered = np.sort(ranked, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, place = np.argwhere(twice)[0]
        raise ValueError(
            f"ranked names item {ordered[row, place]} twice in row {row}, where it would count "
            f"twice; rank every item once."
        )
    k = ranked.shape[1] if k is None else check_count("k", k)
    if k > ranked.shape[1]:
        raise ValueError(
            f"k={k}, but ranked has {ranked.shape[1]} columns; rank at least k items per user, "
            f"with -1 for missing ones."
        )
    return ranked[:, :k]


def _refuse_rows(ranked, n_users, n_items):
    """Raise, since there is not one ranking for each row of ``relevant``."""
    hint = ""
    if len(ranked) == n_items:
        hint = " relevant looks transposed: its shape must be (n_users, n_items)."
    elif ranked.shape[1] == n_users:
        hint = " ranked looks transposed: its shape must be (n_users, k)."
    raise ValueError(
        f"relevant has {n_users} rows, but ranked has {len(ranked)}; both must have one per "
        f"user.{hint}"
    )


def as_csr(name, matrix):
    """Return a matrix as canonical CSR of the signs 1 and -1, as only these matter.

    Raises
    ------
    TypeError
        If it holds no numbers.
    ValueError
        If it is not a well-formed matrix of finite numbers.
    """
    if hold_ids(matrix):
        raise TypeError(
            f"{name} holds lists of ids; give a matrix of users x items, as MultiLabelBinarizer of "
            f"scikit-learn makes one."
        )
    if not sparse.issparse(matrix):
        matrix = as_array(name, matrix)
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be a matrix; got an array of shape {matrix.shape}.")
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {matrix.dtype}; give numbers, 0 where there is no item.")
    try:
        matrix = checked_csr(matrix) if sparse.issparse(matrix) else sparse.csr_array(matrix)
        if not np.isfinite(matrix.data).all():
            raise ValueError("it holds NaN or infinity; give 0 where there is no item.")
        with np.errstate(over="ignore"):
            matrix = canonical_csr(matrix)
        # Values do not matter, and may be beyond float32. The data may belong to the caller.
        matrix.data = np.where(np.signbit(matrix.data), -1, 1).astype(matrix.dtype)
        return matrix
    except ValueError as error:
        raise ValueError(f"{name} cannot be used: {error}") from None
