"""Relevant items among the best of every user: how many, where, and metrics of lists.

The places of a ranking that hold relevant items, and the ranking metrics of these.

The formulas of the ranking metrics, for all users at once.

They take hits and return one number per user, NaN for users without held-out items.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from freqfm import backends
from freqfm._input import validation
from freqfm._input.item_tables import category_shares, history_shares, number_table, refuse_repeated
from freqfm._input.rows import slices, split_signs, with_one_index_type
from freqfm._machine import available_threads
from freqfm._messages import cut, shown
from freqfm.backends.base import Candidates, Exclusions

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
    if not validation.check_flag("average", average):
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
    most = _most(hits) if validation.check_flag("truncated", truncated) else hits.n_relevant
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
_OF_HITS = ndcg, recall, precision, average_precision, hit_rate, reciprocal_rank
FORMULAS = {formula.__name__: formula for formula in _OF_HITS}


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
    item_counts = validation.as_array("item_counts", item_counts)
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
_RANKINGS_AT_ONCE = 1 << 14


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
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        Negative values are dislikes.
    ranked : array-like of int, of shape (n_users, n_ranked)
        Columns of ``relevant``.
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
    relevant = as_csr("relevant", relevant)
    relevant, _ = split_signs(-relevant if disliked else relevant)
    n_users, n_items = relevant.shape
    ranked = check_ranked(ranked, n_items, k, n_users)
    stored, places = with_one_index_type(relevant), np.zeros(ranked.shape, dtype=bool)
    for rows in slices(n_users, _RANKINGS_AT_ONCE):
        part, users = ranked[rows].astype(np.int64), np.arange(rows.start, rows.stop)[:, None]
        places[rows] = (stored[users, np.maximum(part, 0)].toarray() != 0) & (part >= 0)
    return Hits(places, ranked, np.diff(relevant.indptr), n_items)


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
    ranked = validation.as_array("ranked", ranked)
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
            f"for a missing one."
        )
    refuse_repeated("ranked", ranked, ranked)
    k = ranked.shape[1] if k is None else validation.check_count("k", k)
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


_ADVICE = (
    "Give a matrix of users x items with numbers, 0 where there is no item; scikit-learn's "
    "MultiLabelBinarizer(sparse_output=True) makes one of lists of ids."
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
    if not sparse.issparse(matrix):
        try:
            matrix = validation.as_array(name, matrix)
        except ValueError as error:
            raise ValueError(f"{cut(error)} {_ADVICE}") from None
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be a matrix; got the shape {matrix.shape}. {_ADVICE}")
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {matrix.dtype}. {_ADVICE}")
    try:
        matrix = (
            validation.checked_csr(matrix) if sparse.issparse(matrix) else sparse.csr_array(matrix)
        )
    except ValueError as error:
        raise ValueError(f"{name} cannot be used: {error}") from None
    validation.check_finite(name, matrix)
    with np.errstate(over="ignore"):
        matrix = validation.canonical_csr(matrix)
    # Values do not matter, and may be beyond float32. The data may belong to the caller.
    matrix.data = np.where(np.signbit(matrix.data), -1, 1).astype(matrix.dtype)
    return matrix


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
    >>> from freqfm.metrics._hits import top_k
    >>> items = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> found, scores = top_k(np.array([[2.0, 1.0]]), items, 2, exclude_for_all=np.array([2]))
    >>> found
    array([[0, 1]], dtype=int32)
    >>> scores
    array([[2., 1.]], dtype=float32)
    """
    queries, items = _as_matrix(queries), _as_matrix(items)
    n_threads = available_threads() if n_threads is None else n_threads
    excluded = Candidates(np.zeros(len(queries) + 1, np.int64), np.zeros(0, np.int32))
    if exclude is not None:
        exclude = validation.canonical_csr(exclude)
        excluded = Candidates(exclude.indptr, exclude.indices)
    banned = np.zeros(0, np.int64)
    if exclude_for_all is not None:
        banned = ascending(exclude_for_all, len(items))
    if sparse.issparse(candidates):
        n_places = int(np.diff(candidates.indptr).max(initial=0))
        lists = Candidates(candidates.indptr, candidates.indices)
        hidden = Exclusions(*excluded, banned.astype(np.int32))
        best = backends.get("cpu").top_k_of_candidates(
            queries, items, min(k, n_places), lists, hidden, unit_columns, n_threads
        )
        return with_empty_places(*best, k)
    if candidates is None:
        hidden = Exclusions(*excluded, banned.astype(np.int32))
    else:
        candidates = ascending(candidates, len(items))
        if len(banned):
            candidates = np.setdiff1d(candidates, banned, assume_unique=True)
        hidden = _hidden_candidates(candidates, excluded) if len(candidates) else None
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
        array = validation.as_kernel_input(array)
    # NumPy allows any stride for a single row, but BLAS relies on it.
    return array.copy() if len(array) == 1 else array


def _hidden_candidates(candidates, exclude):
    """Return the excluded items that are candidates, by their positions among these."""
    places = np.searchsorted(candidates, exclude.indices)
    kept = candidates.take(places, mode="clip") == exclude.indices
    indptr = np.append(0, np.cumsum(kept))[exclude.indptr]
    return Exclusions(indptr.astype(np.int64), places[kept].astype(np.int32), np.zeros(0, np.int32))


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
    ranked : array-like of int, of shape (n_users, n_ranked)
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
    ranked : array-like of int, of shape (n_users, n_ranked)
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
        p, q = ((matrix[part] @ shares).toarray() for matrix in (history, lists))
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
        item_vectors = number_table("item_vectors", item_vectors, n_items)
        per_user["diversity"] = diversity_at_k(ranked, item_vectors, average=False)
    for name, numbers in per_user.items():
        numbers = numbers[~np.isnan(numbers)]
        values[name] = float(numbers.mean()) if len(numbers) else float("nan")
    return values


def _count(ranked, n_items, k):
    """Return to how many users each item is recommended."""
    n_items = validation.check_count("n_items", n_items)
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
