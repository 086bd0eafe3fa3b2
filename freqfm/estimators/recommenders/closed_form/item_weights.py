"""Base class of recommenders whose scores are sums of weights from item to item."""

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from freqfm._input.rows import slices, with_one_index_type
from freqfm._input.validation import canonical_csr
from freqfm._threads import single_threaded_blas
from freqfm.estimators.progress import announce, announced_parts
from freqfm.estimators.recommenders.closed_form.base import ClosedFormRecommender
from freqfm.estimators.recommenders.histories import scale_rows

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

    def _learn(self, X, dislikes):
        self._remember(X, dislikes)
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
        learned.indices("item_weights_.indices", found.indices, n_items)

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


def run_blocks(run, n_items, step, *, n_threads, verbose, phase):
    """Call ``run`` on slices of ``step`` items, in threads; announce the phase, and what is done.

    An exception, such as that of Ctrl-C, waits for the calls that have begun and for no others.
    """
    parts = list(slices(n_items, step))
    pool = ThreadPoolExecutor(n_threads)
    with single_threaded_blas(), announced_parts(verbose, phase, n_items, "item") as report:
        try:
            calls = map(run, parts) if n_threads == 1 else pool.map(run, parts)
            for part, _ in zip(parts, calls, strict=True):
                report(part.stop)
        finally:
            pool.shutdown(cancel_futures=True)


def listed_rows(items, values, n_items):
    """Return the CSR matrix of a list of items for each row, -1 for none, and of their values."""
    kept = items >= 0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return sparse.csr_array((values[kept], items[kept], indptr), shape=(len(items), n_items))


def unit_rows(rows):
    """Return the rows of a CSR matrix at unit length, whatever the size of their numbers."""
    return normalize(with_data(rows, scale_rows(rows.indptr, rows.data)))


def with_data(rows, data):
    """Return a CSR matrix with other numbers, float32."""
    return sparse.csr_array((data.astype(np.float32), rows.indices, rows.indptr), rows.shape)
