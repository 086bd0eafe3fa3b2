"""Recommenders without epochs: base classes, and the most popular items."""

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from freqfm._components import validate_params
from freqfm._input.rows import column_sums, slices, with_one_index_type
from freqfm._input.validation import canonical_csr, count_threads
from freqfm._machine import single_threaded_blas
from freqfm._signals import release_signals
from freqfm.estimators.progress import announce, announced_parts
from freqfm.estimators.recommenders.base import BaseRecommender, refuse_empty
from freqfm.estimators.recommenders.fold_in import scale_rows
from freqfm.estimators.recommenders.index import sparse_top_k
from freqfm.estimators.training import attempt


class ClosedFormRecommender(BaseRecommender):
    """Recommenders that are computed from the interactions, in ``_learn``."""

    _keeps_weights = True
    # Predictions are products of the CPU.
    device = "cpu"

    @abstractmethod
    def _learn(self, X):
        """Learn from likes, a canonical matrix; see ``_remember`` for what else a model keeps."""

    def fit(self, X, y=None, *, dislikes=None):
        """Learn from interactions.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are their weights, added up where a sparse matrix holds a pair
            several times. Negative values are dislikes, which are not recommended, and no part of
            what is learned. Rows and columns may be empty.
        y : Ignored
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Items that users dislike: all entries that are not zero. A pair that ``X`` holds too is
            a dislike.

        Returns
        -------
        self : object
        """
        return self._learn_from(X, dislikes, adds=False)

    def partial_fit(self, X, y=None, *, dislikes=None):
        """Add interactions to the known ones, and learn from all of them.

        The model is that of ``fit`` on the sum, in the same time.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
            Of a pair that is liked and disliked the last call counts.
        y : Ignored
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            As in ``fit``.

        Returns
        -------
        self : object
        """
        return self._learn_from(X, dislikes, adds=hasattr(self, "item_counts_"))

    def _learn_from(self, X, dislikes, adds):
        """Learn from interactions, and from those known if it ``adds`` to these."""
        validate_params(self)
        with attempt(self), release_signals():
            announce(self.verbose, "checking interactions")
            known = self._read(X, reset=not adds, dislikes=dislikes, adds=adds)
            if adds:
                known = self._known_with(known.padded(self._n_users))
                refuse_empty(known.X)
            self._remember(known)
            self._learn(known.X)
        return self


# With n_neighbors="auto" all items are neighbors up to this many.
_MOST_EXACT = 4096


class ItemWeightsRecommender(ClosedFormRecommender):
    """Recommenders that score an item by its weights from the items that the user has.

    ``item_weights_[i, j]`` is what an interaction with item i adds to the score of item j. Users
    have no vectors of their own, so those who were not there in ``fit`` are scored as all others.
    A subclass defines ``_item_weights``.
    """

    _weights_in_fit, _weights_in_histories = (1e-6, 1e10), (1e-20, 1e10)

    @abstractmethod
    def _item_weights(self, X):
        """Return the weights that are learned from a canonical matrix, (n_items, n_items) CSR."""

    def _learn(self, X):
        weights = self._item_weights(X)
        announce(self.verbose, "ordering the weights between items")
        self.item_weights_ = with_one_index_type(canonical_csr(weights))

    @property
    def _n_features_out(self):
        return self.n_features_in_

    def _fold_in_rows(self, X):
        return with_one_index_type(X)

    def _item_index(self):
        return self._index("items", self.item_weights_.T, 0)

    def _compared(self, axis):
        X = with_one_index_type(self._histories_of(np.arange(self._n_users)))
        return self._index(axis, self._compared_rows(X) if axis == "items" else unit_rows(X), 0)

    def _compared_rows(self, X):
        """Return the rows by which items are similar, (n_items, n_users) CSR."""
        return unit_rows(X.T.tocsr())

    def _vectors_to_differ(self, index):
        # What an interaction with an item adds to the scores of all others.
        return self.item_weights_

    def _check_vectors(self, learned):
        found = learned.get("item_weights_")
        n_items = self.n_features_in_
        fits = isinstance(found, sparse.csr_array) and found.shape == (n_items, n_items)
        learned.require(fits, "item_weights_", f"is no csr_array of shape {(n_items, n_items)}")
        learned.array("item_weights_.data", (None,), value=found.data)
        learned.array("item_weights_.indptr", (n_items + 1,), "i", found.indptr)
        # Requests check what they read of it.
        named = "item_weights_.indices", found.indices, n_items
        learned.once(("item_weights_",), lambda: learned.indices(*named))

    def explain(self, user, item, X=None):
        """Return how much each item of a user's history contributes to a score: its weight.

        Parameters
        ----------
        user : int
            A user seen in ``fit``; or, with ``X``, a row of it.
        item : int
            The item whose score is explained.
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories of users.

        Returns
        -------
        explanation : Bunch
            ``history``, the user's items in descending order of ``contributions``; ``rest``, zero
            up to rounding; and ``score``, the sum of both. As in ``predict_pairs``, the score of a
            user without history is the share of users that have the item, and that of an item
            without users is -inf; it is all rest.
        """
        return self._explain(user, item, X)

    def _contributions(self, query, history, item):
        weights = self.item_weights_[history.indices][:, [item]].toarray().ravel()
        return history.data.astype(np.float64) * weights


def count_neighbors(n_neighbors, n_items, usual):
    """Return how many neighbors an item has, ``usual`` by "auto" of many items; None is all."""
    if n_neighbors == "auto":
        n_neighbors = None if n_items <= _MOST_EXACT else usual
    return None if n_neighbors is None else min(int(n_neighbors), n_items)


# Of so many times as many items as an item has neighbors the products with it are kept.
_KEPT = 4


def n_similar(k, n_items):
    """Return how many items may become one of the ``k`` neighbors of an item."""
    return min(_KEPT * k, n_items)


def most_similar(model, rows, columns, k):
    """Return the ``k`` items with the largest products of rows with each row, and the products.

    Parameters
    ----------
    model : ItemWeightsRecommender
    rows, columns : csr_array or csc_array of shape (n_items, n)
        Items are not similar to themselves.
    k : int
    """
    itself = canonical_csr(sparse.eye(rows.shape[0], dtype=np.float32))
    options = {"exclude": itself, "n_threads": count_threads(model.n_jobs)}
    with announced_parts(model.verbose, "comparing items", rows.shape[0], "item") as report:
        return sparse_top_k(rows, columns, k, **options, report=report)


def run_blocks(model, run, n_items, step, phase):
    """Call ``run`` on slices of ``step`` items, in threads; announce the phase, and what is done.

    An exception, such as that of Ctrl-C, waits for the calls that have begun and for no others.
    """
    parts = list(slices(n_items, step))
    n_threads = count_threads(model.n_jobs)
    pool = ThreadPoolExecutor(n_threads)
    with single_threaded_blas(), announced_parts(model.verbose, phase, n_items, "item") as report:
        try:
            calls = map(run, parts) if n_threads == 1 else pool.map(run, parts)
            for part, _ in zip(parts, calls, strict=True):
                report(part.stop)
        finally:
            pool.shutdown(cancel_futures=True)


def listed_rows(items, values, n_items):
    """Return the CSR matrix of a list of items for each row, -1 for none, and of their values.

    Full lists are not copied, but sorted in place.
    """
    kept, shape = items >= 0, (len(items), n_items)
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    items, values = (of.ravel() if kept.all() else of[kept] for of in (items, values))
    rows = sparse.csr_array((values, items, indptr), shape=shape)
    rows.sort_indices()
    return rows


def unit_rows(rows):
    """Return the rows of a CSR matrix at unit length, whatever the size of their numbers."""
    data = scale_rows(rows.indptr, rows.data).astype(np.float32)
    return normalize(sparse.csr_array((data, rows.indices, rows.indptr), rows.shape))


@dataclass(eq=False, repr=False)
class PopularityRecommender(ClosedFormRecommender):
    """The most popular items: every user, with or without history, gets the same order.

    The score of an item is the sum of its values in ``X``, divided by the number of users: the
    share of users that have it, if all values are 1. What a model for each user is worth shows in
    comparison with this one.

    Parameters
    ----------
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of NDCG in ``score``.
    verbose : int, default=0
        1 shows what ``fit`` does.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    item_factors_ : ndarray of shape (n_items, 1), float32
        The scores of items. Vectors of users are 1.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If the data cannot be learned from.

    See Also
    --------
    ItemKNNRecommender : Items that are similar to those of the user.
    freqfm.model_selection.compare_recommenders : Compares recommenders with this one.

    Notes
    -----
    A default fit takes about 0.03 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M).

    Equally popular items are in the order of their columns. Dislikes are not counted.
    ``similar_items`` and ``similar_users`` are not available: one number does not say what is
    similar. For the same reason ``diversity`` needs ``item_vectors``.

    With values that fall with age, the items are those most popular of late. With a half-life of
    30 days, for a table of pandas with a column of times ::

        age = log["time"].max() - log["time"]
        weighted = log.assign(value=0.5 ** (age / pd.Timedelta("30D")))
        InteractionRecommender(PopularityRecommender()).fit(weighted)

    Memory: for each interaction 4 bytes, or 8 if the values of ``X`` are not all one.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import PopularityRecommender
    >>> X = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    >>> model = PopularityRecommender().fit(X)
    >>> items, scores = model.recommend(users=[0, 3], n_recommendations=2)
    >>> items
    array([[2, 3],
           [0, 2]])
    >>> scores
    array([[0.5 , 0.25],
           [0.75, 0.5 ]], dtype=float32)
    """

    def _learn(self, X):
        self.item_factors_ = (column_sums(X) / X.shape[0]).astype(np.float32)[:, None]

    def _fold_in_rows(self, X):
        return np.ones((X.shape[0], 1), dtype=np.float32)

    def _is_learned(self, axis, rows=slice(None)):
        learned = super()._is_learned(axis, rows)
        return np.ones_like(learned) if axis == "users" else learned

    def _queries(self, X, users, seen=True):
        queries = super()._queries(X, users, seen)
        return queries._replace(learned=np.ones_like(queries.learned))

    def _vectors_to_differ(self, index):
        raise ValueError(
            "diversity needs vectors by which items differ, and PopularityRecommender has none; "
            "give item_vectors, such as genres."
        )

    def _refuse_similar(self):
        raise AttributeError(
            "PopularityRecommender has no similar_items and no similar_users: popularity does not "
            "say what is similar; take ItemKNNRecommender, for instance."
        )

    similar_items = similar_users = property(_refuse_similar)
