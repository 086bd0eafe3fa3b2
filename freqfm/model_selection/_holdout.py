"""Holding out part of every user's history, for matrices of users x items."""

from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from freqfm._validation import _check_structure, draw_seed

__all__ = ["holdout_by_content", "holdout_interactions"]

# splitmix64 (Steele, Lea, Flood. "Fast splittable pseudorandom number generators". OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

_HALF = np.uint64(32)


def holdout_interactions(X, fraction=0.2, *, min_history=1, random_state=None):
    """Hold out some interactions of every user, at random.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_users, n_items)
        Histories, one a row.
    fraction : float, default=0.2
        Share of a row that is held out, rounded, but at least one interaction.
    min_history : int, default=1
        How many interactions of a row stay at least. Rows that have no more stay whole.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the choice.

    Returns
    -------
    history : csr_array of shape (n_users, n_items)
        What stays.
    held_out : csr_array of shape (n_users, n_items)
        What is held out; ``history + held_out`` is ``X``.

    Raises
    ------
    ValueError
        If ``fraction`` or ``min_history`` is out of range, or ``X`` is not well formed.

    See Also
    --------
    holdout_by_content : Makes the same choice for the same row, whatever the other rows.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.model_selection import holdout_interactions
    >>> X = np.array([[1, 1, 0, 1, 1], [0, 0, 2, 0, 0]])
    >>> history, held_out = holdout_interactions(X, 0.5, random_state=0)
    >>> history.sum(axis=1)
    array([2, 2])
    >>> held_out.sum(axis=1)
    array([2, 0])
    """
    if not isinstance(min_history, Integral) or min_history < 0:
        raise ValueError(f"min_history={min_history!r} must be an integer of at least 0.")
    X = _histories(X)
    generator = np.random.default_rng(draw_seed(random_state))
    keys = generator.integers(2**64, size=X.nnz, dtype=np.uint64)
    return _hold_out(X, keys, check_fraction("fraction", fraction), min_history)


def holdout_by_content(X, fraction=0.2, seed=0):
    """Hold out some interactions of every user; a row's own items decide which.

    The choice looks random, but depends on nothing except which items a row holds, and on the
    seed. So users can be reordered, left out or spread over folds, and every candidate of a search
    is tested on the same held-out interactions.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_users, n_items)
        Histories, one a row.
    fraction : float, default=0.2
        Share of a row that is held out, rounded, but at least one of two interactions or more,
        and never all. Rows of one interaction stay whole.
    seed : int, default=0
        Another seed is another choice.

    Returns
    -------
    history : csr_array of shape (n_users, n_items)
        What stays.
    held_out : csr_array of shape (n_users, n_items)
        What is held out; ``history + held_out`` is ``X``.

    Raises
    ------
    ValueError
        If ``fraction`` is out of range, or ``X`` is not well formed.

    See Also
    --------
    holdout_interactions : Holds out at random.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.model_selection import holdout_by_content
    >>> X = np.array([[1, 1, 0, 1, 1], [0, 0, 2, 0, 0], [1, 1, 0, 1, 1]])
    >>> history, held_out = holdout_by_content(X, 0.5)
    >>> held_out.sum(axis=1)
    array([2, 0, 2])
    >>> bool((held_out[[0]] != held_out[[2]]).nnz)
    False
    """
    if not isinstance(seed, Integral):
        raise ValueError(f"seed={seed!r} must be an integer.")
    X = _histories(X)
    salt = _mix(np.array([seed % 2**64], dtype=np.uint64))
    hashes = _mix(X.indices.astype(np.uint64) ^ salt)
    # A sum knows no order, and wraps around; rows without entries would spoil reduceat.
    filled = np.flatnonzero(np.diff(X.indptr))
    keys = hashes
    if len(filled):
        of_rows = np.add.reduceat(hashes, X.indptr[filled])
        keys = _mix(hashes ^ np.repeat(_mix(of_rows), np.diff(X.indptr)[filled]))
    return _hold_out(X, keys, check_fraction("fraction", fraction), 1)


def check_fraction(name, fraction):
    """Return the number if it lies between 0 and 1."""
    if not isinstance(fraction, Real) or not 0 < fraction < 1:
        raise ValueError(f"{name}={fraction!r} must be a number above 0 and below 1.")
    return float(fraction)


def _histories(X):
    """Return ``X`` as a CSR array: sorted, no duplicates, no zeros, numbers as they are."""
    if sparse.issparse(X):
        _check_structure(X)
        X = sparse.csr_array(X)
        # Anew, for one type of indices, and as flags may lie if arrays were changed since.
        X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape, copy=True)
        X.has_canonical_format = False
        X.sum_duplicates()
    else:
        X = sparse.csr_array(check_array(X, dtype=None, ensure_all_finite=False, input_name="X"))
    X.eliminate_zeros()
    return X


def _hold_out(X, keys, fraction, min_history):
    """Hold out those entries of each row whose keys, 64 random bits, start lowest."""
    lengths = np.diff(X.indptr)
    wanted = np.maximum(np.round(fraction * lengths), 1).astype(lengths.dtype)
    wanted = np.minimum(wanted, np.maximum(lengths - min_history, 0))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    # One sort of row and half a key as one number takes an eighth of the time of a lexsort. It is
    # stable, so that of equal halves the lower column comes first, wherever the row is.
    order = np.argsort(rows.astype(np.uint64) << _HALF | keys >> _HALF, kind="stable")
    chosen = np.zeros(len(rows), dtype=bool)
    rank = np.arange(len(rows)) - np.repeat(X.indptr[:-1], lengths)
    chosen[order] = rank < np.repeat(wanted, lengths)
    return _entries(X, ~chosen, lengths - wanted), _entries(X, chosen, wanted)


def _entries(X, mask, lengths):
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return sparse.csr_array((X.data[mask], X.indices[mask], indptr), shape=X.shape)


def _mix(numbers):
    """Return well mixed 64-bit hashes of 64-bit numbers."""
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
