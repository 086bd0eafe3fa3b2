"""Base class of recommenders that learn from all interactions at once, without epochs."""

from abc import abstractmethod

from freqfm._input.rows import split_signs
from freqfm._signals import release_signals
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.base import BaseRecommender, refuse_empty
from freqfm.estimators.recommenders.histories import pad_rows, with_dislikes
from freqfm.estimators.training import attempt


class ClosedFormRecommender(BaseRecommender):
    """Recommenders that are computed from the interactions, in ``_learn``."""

    _keeps_weights = True
    # Predictions are products of the CPU.
    device = "cpu"

    @abstractmethod
    def _learn(self, X, dislikes):
        """Learn from canonical matrices of likes and of dislikes; the latter may be None."""

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
        self._validate_params()
        with attempt(self), release_signals():
            announce(self.verbose, "checking interactions")
            X = self._validate_history(X, reset=True)
            X = with_dislikes(X, self._given_dislikes(X.shape, dislikes))
            refuse_empty(X)
            self._learn(*split_signs(X))
        return self

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
        if not hasattr(self, "item_counts_"):
            return self.fit(X, dislikes=dislikes)
        self._validate_params()
        with attempt(self), release_signals():
            announce(self.verbose, "checking interactions")
            self._history.check_all(self._check_learned(), self.n_features_in_)
            X = self._validate_more(X)
            X = with_dislikes(X, self._given_dislikes(X.shape, dislikes))
            if not X.nnz:
                refuse_empty(X)
            parts = (pad_rows(part, self._n_users) for part in split_signs(X))
            X, dislikes = self._known_with(*parts)
            refuse_empty(X)
            self._learn(X, dislikes)
        return self
