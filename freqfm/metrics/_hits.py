"""The places of a ranking that hold relevant items: the input of all ranking metrics."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.item_tables import hold_ids, number_ids
from freqfm._input.rows import slices, split_signs, with_one_index_type
from freqfm._input.validation import as_array, canonical_csr, check_count, checked_csr
from freqfm._messages import shown

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
