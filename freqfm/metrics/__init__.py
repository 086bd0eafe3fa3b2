"""Metrics of rankings, and of click probabilities.

Ranking metrics compare ``relevant``, the held-out items of every user, with ``ranked``, the items
recommended to every user, best first. With hit(r) = 1 if the item at place r is relevant, else 0,
and N the number of held-out items of a user, every metric is a function of hit(1), ..., hit(k) and
N for one user, averaged over all users with N > 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Bunch, check_consistent_length, column_or_1d

from freqfm._input.validation import as_array, check_count
from freqfm._messages import cut, shorten
from freqfm._sklearn import check_sample_weight
from freqfm.metrics import _hits
from freqfm.metrics._hits import (
    coverage_at_k,
    diversity_at_k,
    find_hits,
    gini,
    miscalibration_at_k,
    novelty_at_k,
    report_lists,
)

__all__ = [
    "average_precision_at_k",
    "coverage_at_k",
    "dislike_rate_at_k",
    "diversity_at_k",
    "gini",
    "hit_rate_at_k",
    "miscalibration_at_k",
    "ndcg_at_k",
    "normalized_entropy",
    "novelty_at_k",
    "precision_at_k",
    "ranking_report",
    "recall_at_k",
    "reciprocal_rank",
    "stratified_ndcg_at_k",
]


def ndcg_at_k(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Normalized discounted cumulative gain of the first k places, for binary relevance.

    For a user with N > 0 held-out items ::

        DCG@k = sum_{r=1..k} hit(r) / log2(r + 1),    IDCG@k = sum_{r=1..min(k, N)} 1 / log2(r + 1)

    and NDCG@k = DCG@k / IDCG@k, so that a perfect ranking has NDCG 1.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        Held-out items: all entries above zero. Negative ones are dislikes, see
        :func:`dislike_rate_at_k`.
    ranked : array-like of int, of shape (n_users, n_ranked)
        Items recommended to every user, best first, as columns of ``relevant``; -1 for missing
        items, which count as misses.
    k : int, default=None
        Number of top places to evaluate, at most n_ranked; all if None.
    average : bool, default=True
        Whether to return the mean over users, or one value per user.

    Returns
    -------
    ndcg : float or ndarray of shape (n_users,)
        Mean over the users with at least one held-out item. With ``average=False`` one float64 per
        user, NaN for users without held-out items.

    Raises
    ------
    TypeError
        If ``ranked`` or ``k`` is anything but integers, ``relevant`` anything but numbers, or
        ``average`` neither True nor False, such as the "macro" of scikit-learn.
    ValueError
        If shapes do not match, an index is out of range, a row contains an item twice, a number in
        ``relevant`` is not finite, ``k`` is out of range, or there is no user to average over.

    Examples
    --------
    The first user has two held-out items, one of them found at place 2; the other user has none.

    >>> from freqfm.metrics import ndcg_at_k
    >>> relevant = [[1, 0, 0, 1], [0, 0, 0, 0]]
    >>> round(ndcg_at_k(relevant, [[2, 0, 1], [1, 2, 3]]), 4)
    0.3869
    """
    return _hits.mean(_hits.ndcg(find_hits(relevant, ranked, k)), average)


def recall_at_k(
    relevant,
    ranked: ArrayLike,
    k: int | None = None,
    *,
    truncated: bool = False,
    average: bool = True,
) -> float | np.ndarray:
    """Share of a user's held-out items that are among the first k places.

    For a user with N > 0 held-out items ::

        recall@k = sum_{r=1..k} hit(r) / N

    which cannot reach 1 if N > k; with ``truncated`` the sum is divided by min(k, N) instead.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like all parameters but ``truncated``.
    ranked : array-like of int, of shape (n_users, n_ranked)
    k : int, default=None
    truncated : bool, default=False
        Whether to divide by the number of held-out items that fit into k places.
    average : bool, default=True

    Returns
    -------
    recall : float or ndarray of shape (n_users,)
        As in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from freqfm.metrics import recall_at_k
    >>> recall_at_k([[1, 1, 1, 1]], [[3, 2]])
    0.5
    >>> recall_at_k([[1, 1, 1, 1]], [[3, 2]], truncated=True)
    1.0
    """
    return _hits.mean(_hits.recall(find_hits(relevant, ranked, k), truncated), average)


def dislike_rate_at_k(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Share of a user's held-out dislikes that are among the first k places: the lower the better.

    For a user with N > 0 held-out dislikes, and miss(r) = 1 if the item at place r is one of them,
    else 0 ::

        dislike_rate@k = sum_{r=1..k} miss(r) / N

    the recall of what should not have been recommended. A random ranking of n items has k / n.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        Held-out interactions; all negative values are dislikes, whatever their size. Positive ones
        do not matter.
    ranked : array-like of int, of shape (n_users, n_ranked)
        As in :func:`ndcg_at_k`, like ``k``.
    k : int, default=None
    average : bool, default=True
        Whether to return the mean over users, or one value per user.

    Returns
    -------
    rate : float or ndarray of shape (n_users,)
        Mean over the users with at least one held-out dislike. With ``average=False`` one float64
        per user, NaN for users without held-out dislikes.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`; there must be a user with a held-out dislike to average over.

    Examples
    --------
    The first user has two held-out dislikes, one of them at place 2; the other user has none.

    >>> from freqfm.metrics import dislike_rate_at_k
    >>> held_out = [[-1, 1, 0, -2], [0, 1, 0, 0]]
    >>> dislike_rate_at_k(held_out, [[1, 0, 2], [1, 2, 3]])
    0.5
    """
    hits = find_hits(relevant, ranked, k, disliked=True)
    lacking, advice = "relevant holds no dislike of any user", "give negative values"
    return _hits.mean(_hits.recall(hits), average, lacking, advice)


def precision_at_k(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Share of the first k places that hold a relevant item.

    For a user with N > 0 held-out items ::

        precision@k = sum_{r=1..k} hit(r) / k

    even if fewer than k items are ranked or held out.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like all parameters.
    ranked : array-like of int, of shape (n_users, n_ranked)
    k : int, default=None
    average : bool, default=True

    Returns
    -------
    precision : float or ndarray of shape (n_users,)
        As in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from freqfm.metrics import precision_at_k
    >>> precision_at_k([[1, 0, 1, 0]], [[2, 3, 1, -1]])
    0.25
    """
    return _hits.mean(_hits.precision(find_hits(relevant, ranked, k)), average)


def average_precision_at_k(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Average precision of the first k places; its mean over users is known as MAP@k.

    For a user with N > 0 held-out items ::

        AP@k = sum_{r=1..k} hit(r) precision@r / min(k, N)

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like all parameters.
    ranked : array-like of int, of shape (n_users, n_ranked)
    k : int, default=None
    average : bool, default=True

    Returns
    -------
    average_precision : float or ndarray of shape (n_users,)
        As in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    Hits at places 1 and 4, with precisions 1 and 2 / 4.

    >>> from freqfm.metrics import average_precision_at_k
    >>> average_precision_at_k([[1, 0, 1, 0]], [[2, 3, 1, 0]])
    0.75
    """
    return _hits.mean(_hits.average_precision(find_hits(relevant, ranked, k)), average)


def hit_rate_at_k(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """Share of users with a relevant item among the first k places.

    For a user with N > 0 held-out items ::

        hit rate@k = max_{r=1..k} hit(r)

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like all parameters.
    ranked : array-like of int, of shape (n_users, n_ranked)
    k : int, default=None
    average : bool, default=True

    Returns
    -------
    hit_rate : float or ndarray of shape (n_users,)
        As in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from freqfm.metrics import hit_rate_at_k
    >>> hit_rate_at_k([[1, 0, 0], [0, 1, 0]], [[2, 0], [0, 2]])
    0.5
    """
    return _hits.mean(_hits.hit_rate(find_hits(relevant, ranked, k)), average)


def reciprocal_rank(
    relevant, ranked: ArrayLike, k: int | None = None, *, average: bool = True
) -> float | np.ndarray:
    """One over the place of the first relevant item; its mean over users is known as MRR.

    For a user with N > 0 held-out items ::

        RR@k = 1 / min {r <= k : hit(r) = 1},    0 if there is no hit.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like all parameters.
    ranked : array-like of int, of shape (n_users, n_ranked)
    k : int, default=None
    average : bool, default=True

    Returns
    -------
    reciprocal_rank : float or ndarray of shape (n_users,)
        As in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`.

    Examples
    --------
    >>> from freqfm.metrics import reciprocal_rank
    >>> reciprocal_rank([[1, 0, 0], [0, 1, 0]], [[2, 0], [0, 2]])
    0.25
    """
    return _hits.mean(_hits.reciprocal_rank(find_hits(relevant, ranked, k)), average)


def stratified_ndcg_at_k(
    relevant,
    ranked: ArrayLike,
    item_counts: ArrayLike,
    k: int | None = None,
    *,
    edges: Sequence[float] = (0.05, 0.2),
    average: bool = True,
) -> Bunch:
    """NDCG in three parts: the contributions of popular, neutral and unpopular items.

    Items are sorted by decreasing popularity in training, ties by increasing index. The first
    round(edges[0] * n_items) are popular, those up to round(edges[1] * n_items) neutral, and all
    others unpopular. For a user with N > 0 held-out items the part of a stratum is ::

        sum_{r=1..k} hit(r) [item at r in stratum] / log2(r + 1) / IDCG@k

    with the IDCG of :func:`ndcg_at_k`, so that the three parts add up to NDCG@k.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`, like ``ranked``, ``k`` and ``average``.
    ranked : array-like of int, of shape (n_users, n_ranked)
    item_counts : array-like of shape (n_items,)
        How often each item occurs in training.
    k : int, default=None
    edges : pair of float, default=(0.05, 0.20)
        Shares of the items that are popular, and that are popular or neutral.
    average : bool, default=True

    Returns
    -------
    parts : Bunch
        With the keys ``popular``, ``neutral`` and ``unpopular``; a float or an ndarray of shape
        (n_users,) each, as in :func:`ndcg_at_k`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k`, and if ``item_counts`` are not finite non-negative numbers, one
        per item, or ``edges`` do not increase from 0 to 1.

    References
    ----------
    .. [1] D. Loveland, M. Ju, T. Zhao, N. Shah, D. Koutra. "On the Role of Weight Decay in
       Collaborative Filtering: A Popularity Perspective". 2025.

    Examples
    --------
    >>> from freqfm.metrics import stratified_ndcg_at_k
    >>> relevant, ranked = [[1, 0, 0, 1]], [[0, 2, 3]]
    >>> parts = stratified_ndcg_at_k(relevant, ranked, [9, 5, 5, 1], edges=(0.25, 0.75))
    >>> {name: round(part, 4) for name, part in parts.items()}
    {'popular': 0.6131, 'neutral': 0.0, 'unpopular': 0.3066}
    """
    hits = find_hits(relevant, ranked, k)
    parts = _hits.stratified_ndcg(hits, _hits.strata(item_counts, edges, hits))
    return Bunch(**{name: _hits.mean(part, average) for name, part in parts.items()})


def ranking_report(
    relevant,
    ranked: ArrayLike,
    k: int | Sequence[int] | None = None,
    *,
    item_counts: ArrayLike | None = None,
    item_vectors=None,
    edges: Sequence[float] = (0.05, 0.2),
) -> dict[str, float]:
    """All ranking metrics at several k.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        As in :func:`ndcg_at_k`.
    ranked : array-like of int, of shape (n_users, n_ranked)
        As in :func:`ndcg_at_k`.
    k : int or sequence of int, default=None
        Numbers of top places; n_ranked if None.
    item_counts : array-like of shape (n_items,), default=None
        How often each item occurs in training. If given, the parts of NDCG by popularity are
        reported too, see :func:`stratified_ndcg_at_k`, and :func:`novelty_at_k`.
    item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions), default=None
        If given, :func:`diversity_at_k` is reported too.
    edges : pair of float, default=(0.05, 0.20)
        As in :func:`stratified_ndcg_at_k`.

    Returns
    -------
    report : dict of str to float
        Means over the users with at least one held-out item, under names such as "ndcg@10", for
        "ndcg", "recall", "precision", "average_precision", "hit_rate" and "reciprocal_rank", with
        dislikes in ``relevant`` also "dislike_rate", of users who have some, and
        with ``item_counts`` also "ndcg_popular", "ndcg_neutral" and "ndcg_unpopular". Of the lists
        of all users: "coverage" and "gini", and with ``item_counts`` and ``item_vectors`` also
        "novelty" and "diversity"; NaN where lists are too short for them.

    Raises
    ------
    TypeError, ValueError
        As in :func:`ndcg_at_k` and the functions named above.

    Examples
    --------
    >>> from freqfm.metrics import ranking_report
    >>> report = ranking_report([[1, 0, 1, 0]], [[2, 3, 1, 0]], k=[1, 4])
    >>> report["recall@1"], report["recall@4"], report["precision@4"]
    (0.5, 1.0, 0.5)
    """
    ks = [None]
    if k is not None:
        ks = [check_count("k", one) for one in np.atleast_1d(as_array("k", k)).tolist()]
    if not ks:
        raise ValueError("k is empty; give at least one number of places.")
    hits = find_hits(relevant, ranked, None if k is None else max(ks))
    strata = None if item_counts is None else _hits.strata(item_counts, edges, hits)
    mistakes = find_hits(relevant, ranked, hits.places.shape[1], disliked=True)
    report = {}
    for one in ks:
        part = hits._replace(places=hits.places[:, :one], ranked=hits.ranked[:, :one])
        values = {name: formula(part) for name, formula in _hits.FORMULAS.items()}
        if strata is not None:
            parts = _hits.stratified_ndcg(part, strata)
            values |= {f"ndcg_{name}": value for name, value in parts.items()}
        values = {name: _hits.mean(value, True) for name, value in values.items()}
        if mistakes.n_relevant.any():
            found = mistakes._replace(places=mistakes.places[:, :one])
            values["dislike_rate"] = _hits.mean(_hits.recall(found), True)
        values |= report_lists(part.ranked, hits.n_items, item_counts, item_vectors)
        report |= {f"{name}@{part.places.shape[1]}": value for name, value in values.items()}
    return report


def normalized_entropy(
    y_true: ArrayLike, y_proba: ArrayLike, sample_weight: ArrayLike | None = None
) -> float:
    """Log loss of click probabilities, divided by the log loss of predicting the base rate.

    With y in {0, 1}, weights w and the base rate p = sum w y / sum w of the same samples ::

        NE = -sum w (y log(q) + (1 - y) log(1 - q)) / sum w / -(p log(p) + (1 - p) log(1 - p))

    where q is the predicted probability of a click. Smaller is better: 0 is perfect, 1 is no
    better than the base rate. Unlike the log loss it can be compared between data with different
    base rates [1]_. 1 - NE is the relative information gain.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Two classes, of which the larger is a click.
    y_proba : array-like of shape (n_samples,) or (n_samples, 2)
        Probabilities of the larger class, or of both, as from ``predict_proba``. They are clipped
        away from 0 and 1 by the machine precision of their type.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights w; 1 if None.

    Returns
    -------
    normalized_entropy : float

    Raises
    ------
    ValueError
        If lengths differ, ``y_true`` does not hold two classes, ``y_proba`` is not between 0 and
        1, or weights are negative or all zero.

    References
    ----------
    .. [1] He et al. (2014), "Practical Lessons from Predicting Clicks on Ads at Facebook", section
       2.

    Examples
    --------
    >>> from freqfm.metrics import normalized_entropy
    >>> round(normalized_entropy([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]), 4)
    1.0
    >>> round(normalized_entropy([0, 0, 0, 1], [0.1, 0.1, 0.1, 0.7]), 4)
    0.2991
    """
    y_true = column_or_1d(as_array("y_true", y_true))
    y_proba = as_array("y_proba", y_proba)
    if sample_weight is not None:
        sample_weight = _numbers("sample_weight", sample_weight)
    if y_proba.ndim == 2 and y_proba.shape[1] == 2:
        y_proba = _chance_of_larger(y_proba)
    if y_proba.ndim != 1:
        raise ValueError(
            f"y_proba must have the shape (n_samples,) or (n_samples, 2); got {y_proba.shape}."
        )
    check_consistent_length(y_true, y_proba, sample_weight)
    if y_proba.dtype.kind != "f":
        y_proba = _numbers("y_proba", y_proba)
    if not ((y_proba >= 0) & (y_proba <= 1)).all():
        raise ValueError(
            f"y_proba lies between {y_proba.min():g} and {y_proba.max():g}; give probabilities, "
            f"from 0 to 1, as predict_proba returns them."
        )
    weight = check_sample_weight(sample_weight, y_true, dtype=np.float64, ensure_non_negative=True)
    try:
        classes = np.unique(y_true[weight > 0])
    except TypeError as error:
        raise TypeError(f"y_true holds labels that cannot be sorted: {cut(error)}.") from None
    if len(classes) != 2:
        raise ValueError(
            f"y_true holds {len(classes)} class(es) at positive weight ({shorten(classes, 5)}); "
            f"normalized entropy compares two, and is not defined for a base rate of 0 or 1."
        )
    tiny = np.finfo(y_proba.dtype).eps
    chance = np.clip(y_proba, tiny, 1 - tiny).astype(np.float64)
    clicked = y_true == classes[1]
    losses = -np.log(np.where(clicked, chance, 1 - chance))
    rate = np.average(clicked, weights=weight)
    if not 0 < rate < 1:
        raise ValueError(
            f"sample_weight gives nearly all weight to one class: the base rate rounds to "
            f"{rate:g}, for which normalized entropy is not defined."
        )
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    return float(np.average(losses, weights=weight) / entropy)


def _chance_of_larger(y_proba):
    """Return the second column of the probabilities of two classes."""
    sums = _numbers("y_proba", y_proba).sum(axis=1)
    if not np.allclose(sums, 1, atol=1e-3):
        raise ValueError(
            f"y_proba has two columns, whose sums lie between {sums.min():g} and {sums.max():g}; "
            f"give the probabilities of both classes, which add up to 1, or only of the larger one."
        )
    return y_proba[:, 1]


def _numbers(name, values):
    """Return values as float64."""
    values = as_array(name, values)
    if values.dtype.kind not in "biufO":
        raise TypeError(f"{name} holds {values.dtype}; give numbers.")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} does not hold numbers: {cut(error)}.") from None
