"""The formulas of the ranking metrics, for all users at once.

They take hits and return one number per user, NaN for users without held-out items.
"""

import numpy as np

from freqfm._input.validation import as_array, check_flag
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
