"""Scorers of rankings, for cross_val_score and searches."""

from collections.abc import Callable

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from freqfm import metrics
from freqfm._input import validation
from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import split_signs, take_rows, with_one_index_type
from freqfm._messages import not_known, shown, warn_user
from freqfm.metrics._hits import as_csr
from freqfm.model_selection._holdout import holdout_by_content, last_step, transform

METRICS = {
    "ndcg": metrics.ndcg_at_k,
    "recall": metrics.recall_at_k,
    "precision": metrics.precision_at_k,
    "average_precision": metrics.average_precision_at_k,
    "hit_rate": metrics.hit_rate_at_k,
    "reciprocal_rank": metrics.reciprocal_rank,
    # Also known by the names of their means over users.
    "map": metrics.average_precision_at_k,
    "mrr": metrics.reciprocal_rank,
    "coverage": lambda relevant, ranked, k: metrics.coverage_at_k(ranked, relevant.shape[1], k),
    # Larger must be better.
    "neg_dislike_rate": lambda *given: -metrics.dislike_rate_at_k(*given),
}

# Those that are no means over users.
OF_ALL_USERS = "coverage", "neg_dislike_rate"


def make_ranking_scorer(
    metric: str = "ndcg",
    *,
    k: int | None = None,
    fraction: float = 0.2,
    seed: int = 0,
    exclude_seen: bool = True,
) -> Callable[..., float]:
    """Make a scorer of recommendations for ``scoring=`` of cross-validation and searches.

    A recommender of users x items is tested on the rows of ``X``: part of each row is held out,
    the rest is given as history, and the score measures how well the held-out items are ranked
    among all items that are not in the history. If ``y`` is given, a sparse matrix of held-out
    items, ``X`` is not split. (Searches accept such a ``y``, ``cross_val_score`` does not.)

    An :class:`~freqfm.InteractionRecommender` is tested on the interactions ``X``: it recommends
    to the users known from training.

    Parameters
    ----------
    metric : str, default="ndcg"
        "ndcg", "recall", "precision", "average_precision" (or "map"), "hit_rate" or
        "reciprocal_rank" (or "mrr"), as defined in :mod:`freqfm.metrics`; "neg_dislike_rate",
        minus :func:`~freqfm.metrics.dislike_rate_at_k`; or "coverage", the share of all items that
        are in a list of the tested users. Larger is better for all of them. With "@" and a number,
        as in "ndcg@20", it also gives ``k``.
    k : int, default=None
        Length of the rankings. None is the number after "@", or else 10.
    fraction : float, default=0.2
        Share of a row that is held out, see :func:`holdout_by_content`.
    seed : int, default=0
        Seed of the held-out part.
    exclude_seen : bool, default=True
        Whether items that a user had or disliked before, in training or in the history, are left
        out of the lists. Held-out pairs of such items are then not found, and a `UserWarning` says
        how many these are. Set False if users come back to items, for instance if training has
        views and the test has purchases.

    Returns
    -------
    scorer : callable
        ``scorer(estimator, X, y=None)`` returns a float. The estimator may also be a pipeline that
        ends in a recommender; its transformers receive the histories without held-out items.

    Raises
    ------
    ValueError
        If ``metric`` is not known, ``k`` or ``fraction`` is out of range, or ``k`` is given twice.

    See Also
    --------
    WarmStartKFold, LeaveLastOut, GlobalTimeSplit : Splitters of interactions.

    Notes
    -----
    Rows without held-out items are left out. Which items are held out depends only on a row's
    content and the seed, so all candidates of a search are tested on the same items.

    Examples
    --------
    >>> from freqfm.model_selection import make_ranking_scorer
    >>> make_ranking_scorer("recall", k=20)
    make_ranking_scorer('recall', k=20, fraction=0.2, seed=0)
    """
    name, at = metric_and_k("metric", metric)
    if k is not None and at is not None:
        raise ValueError(f"k={shown(k)} and metric={metric!r} both give k; leave one of them out.")
    k = validation.check_count("k", k) if k is not None else at or 10
    exclude_seen = validation.check_flag("exclude_seen", exclude_seen)
    fraction = validation.check_fraction("fraction", fraction)
    seed = validation.check_integer("seed", seed)
    return RankingScorer(name, k, fraction, seed, exclude_seen)


def scorer_of(scoring, k):
    """Return a scorer given by name, with this ``k`` unless the name has one, or as a callable."""
    if callable(scoring):
        return scoring
    metric, at = metric_and_k("scoring", scoring)
    return make_ranking_scorer(metric, k=at or int(k))


def metric_and_k(argument, name):
    """Return the metric and the k of a name such as "ndcg@20"; k is None without "@"."""
    metric, at, k = name.partition("@") if isinstance(name, str) else (None, "", "")
    if metric not in METRICS:
        raise not_known(argument, name, METRICS)
    if not at:
        return metric, None
    if not (k.isascii() and k.isdigit() and int(k) > 0):
        raise ValueError(
            f"{argument}={shown(name)} has no length of rankings after '@'; give a positive "
            f"integer, as in '{metric}@20'."
        )
    return metric, int(k)


class RankingScorer:
    """A scorer that can be pickled, with a repr that shows its parameters."""

    def __init__(self, metric, k, fraction, seed, exclude_seen):
        self.metric = metric
        self.k = k
        self.fraction = fraction
        self.seed = seed
        self.exclude_seen = exclude_seen

    def __repr__(self):
        also = "" if self.exclude_seen else ", exclude_seen=False"
        return (
            f"make_ranking_scorer({self.metric!r}, k={self.k}, fraction={self.fraction}, "
            f"seed={self.seed}{also})"
        )

    def __call__(self, estimator, X, y=None):
        transformers, recommender = last_step(estimator)
        if hasattr(recommender, "_rank_held_out"):
            found = recommender._rank_held_out(transform(transformers, X), self.k, **self._options)
        else:
            found = self._rank(transformers, recommender, X, y)
        relevant, ranked, seen = found
        if self.exclude_seen and self.metric != "coverage":
            likes, dislikes = split_signs(relevant)
            warn_of_seen(dislikes if self.metric == "neg_dislike_rate" else likes, seen)
        return self.measure(relevant, ranked)

    @property
    def _options(self):
        """The options of ``recommend`` that differ from its defaults."""
        return {} if self.exclude_seen else {"exclude_seen": False}

    def measure(self, relevant, ranked):
        """Return the score of rankings of at least ``k`` items."""
        return float(METRICS[self.metric](relevant, ranked, self.k))

    def _rank(self, transformers, recommender, X, y):
        """Return relevant items, rankings and seen items of the rows with held-out items.

        The latter are None where none can be relevant.
        """
        refuse_table(X)
        if sparse.issparse(X):
            X = validation.checked_csr(X)
        else:
            with validation.named("X"):
                X = check_array(X, ensure_all_finite=False, input_name="X")
        if y is None:
            history, relevant = holdout_by_content(X, self.fraction, seed=self.seed)
        else:
            history, relevant = X, _held_out_items(X, y)
        rows = np.flatnonzero(np.diff(relevant.indptr))
        if not len(rows):
            found = "no row of X holds two items" if y is None else "y holds no items"
            raise ValueError(f"{found}, so there is nothing to test; give longer histories.")
        history = (sparse.csr_array(history) if sparse.issparse(history) else history)[rows]
        history = transform(transformers, history)
        if history.shape[1] != relevant.shape[1]:
            raise ValueError(
                f"the transformers before {type(recommender).__name__} turn the "
                f"{relevant.shape[1]} items of X into {history.shape[1]} columns, so "
                f"recommendations cannot be compared with X; use transformers that keep its "
                f"columns."
            )
        ranked, _ = recommender.recommend(history, n_recommendations=self.k, **self._options)
        seen = None if y is None else as_csr("X", history)
        return take_rows(as_csr("relevant", relevant), rows), ranked, seen


def seen_by(recommender, users):
    """Return what users seen in fit had or disliked; None if only the recommender knows."""
    return getattr(recommender, "_seen_by", lambda users: None)(users)


def warn_of_seen(relevant, seen):
    """Warn if pairs are held out of items that lists leave out, since users had them before.

    Parameters
    ----------
    relevant, seen : csr_array of shape (n_users, n_items), or None
        Of different shapes they are an error, which is raised where they are used.
    """
    if relevant is None or seen is None or relevant.shape != seen.shape:
        return
    n_seen = with_one_index_type(relevant).multiply(with_one_index_type(seen) != 0).nnz
    if n_seen:
        warn_user(
            f"{n_seen} of {relevant.nnz} held-out pairs ({n_seen / relevant.nnz:.0%}) are of items "
            f"that the user had before, which are left out of the lists: they count as not found. "
            f"Score by make_ranking_scorer(..., exclude_seen=False) if users may be recommended "
            f"what they had, or hold out new pairs only."
        )


def _held_out_items(X, y):
    """Return held-out items given as ``y``, as CSR."""
    if not sparse.issparse(y) or y.shape != X.shape:
        found = f"shape {y.shape}" if sparse.issparse(y) else f"type {type(y).__name__}"
        raise ValueError(
            f"y must be a sparse matrix of held-out items with X's shape {X.shape}; got one of "
            f"{found}. Pass y=None to hold out part of X."
        )
    return as_csr("y", y)
