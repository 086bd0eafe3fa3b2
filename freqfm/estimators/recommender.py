"""What recommenders share: recommending, similar rows, scores of pairs, explanations."""

from abc import abstractmethod

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from freqfm._components import name_to_instance
from freqfm._interactions import refuse_table
from freqfm._validation import canonical_csr, count_threads, validate_ids, validate_rows
from freqfm.estimators.base import CallbackSupportMixin
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_by_content

__all__ = ["BaseRecommender"]

# The part of each row that ``score`` hides if it is not given what to find.
_HELD_OUT = 0.2


class BaseRecommender(
    CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Recommenders on a sparse matrix of users and items, whose scores are dot products.

    A subclass sets ``item_counts_``, ``_seen_indptr`` and ``_seen_indices`` in ``fit`` and says by
    what vectors it ranks.
    """

    #: The components known by name, for each parameter that takes one.
    _axes: dict = {}

    @abstractmethod
    def _item_vectors(self):
        """Return the vectors of the items that rankings use, (n_items, d) float32."""

    @abstractmethod
    def _user_vectors(self, users):
        """Return the vectors of users seen in fit that rankings use, (n, d) float32."""

    @abstractmethod
    def _fold_in(self, X):
        """Return the vectors of the rows of a canonical matrix that rankings use."""

    @abstractmethod
    def _similarity_vectors(self, axis):
        """Return the unit vectors of all "users" or all "items"."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.target_tags.required = False
        # A prediction is a row of items.
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self):
        return self._item_vectors().shape[1]

    def set_params(self, **params):
        """Set parameters; those of a component reach it by name too.

        ``set_params(optimizer__beta_1=0.8)`` works whether ``optimizer`` is an instance or a name,
        which becomes an instance here.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object
        """
        name_to_instance(self, self._axes, params)
        return super().set_params(**params)

    def _validate_history(self, X, reset=False):
        refuse_table(X)
        X, _ = validate_rows(self, X, reset=reset)
        if X.nnz and X.data.min() < 0:
            raise ValueError(
                f"Negative values in data passed to {type(self).__name__}: X holds "
                f"{X.data.min():g}, but its values are weights of interactions. Drop dislikes, or "
                f"shift ratings to be positive."
            )
        return X

    def _places_of(self, users):
        """Return the indptr of the histories of users, and where they stand in those kept."""
        starts, ends = self._seen_indptr[users], self._seen_indptr[users + 1]
        indptr = np.concatenate([[0], np.cumsum(ends - starts)])
        return indptr, np.repeat(starts - indptr[:-1], ends - starts) + np.arange(indptr[-1])

    def _queries(self, X, users):
        """Return query vectors and the history of the users that are asked for."""
        check_is_fitted(self)
        if (X is None) == (users is None):
            raise ValueError(
                "recommend needs either X, rows of histories, or users=, indices of users seen in "
                "fit; " + ("neither was given." if X is None else "both were given.")
            )
        if X is not None:
            X = self._validate_history(X)
            return self._fold_in(X), X
        users = validate_ids("users", users, self._n_users)
        indptr, at = self._places_of(users)
        indices = self._seen_indices[at]
        history = sparse.csr_array(
            (np.ones(len(indices), dtype=np.float32), indices, indptr),
            shape=(len(users), self.n_features_in_),
        )
        return self._user_vectors(users), canonical_csr(history)

    @property
    def _n_users(self):
        return len(self._seen_indptr) - 1

    def recommend(
        self,
        X=None,
        *,
        users=None,
        n_recommendations=None,
        exclude_seen=True,
        candidates=None,
        exclude=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories; each row is folded in as a new user.
        users : int or array-like of int of shape (n_users,), default=None
            Users seen in ``fit``, by their rows. Either ``X`` or ``users`` must be given.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        exclude_seen : bool, default=True
            Whether items of a user's history are left out.
        candidates : array-like of int, default=None
            Items that may be recommended; None allows all.
        exclude : array-like of int or sparse matrix of shape (n_users, n_items), default=None
            Items that nobody may get, or that each user may not get.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores; -1 where there are too few. One-dimensional if ``users``
            is a single number.
        scores : ndarray of the same shape, float32
            Dot products, or cosines where the model ranks by these; -inf where there is no item. A
            user without any history gets the popular items, by the share of users that have them.

        Raises
        ------
        ValueError
            If neither or both of ``X`` and ``users`` are given, or indices are out of range.
        """
        queries, history = self._queries(X, users)
        if n_recommendations is None:
            n_recommendations = self.n_recommendations
        if n_recommendations < 1:
            raise ValueError(f"n_recommendations={n_recommendations!r} must be a positive integer.")
        n_items = self.n_features_in_
        if candidates is not None:
            candidates = np.unique(validate_ids("candidates", candidates, n_items))
        hidden = history if exclude_seen else None
        if sparse.issparse(exclude):
            if exclude.shape != history.shape:
                raise ValueError(
                    f"exclude has shape {exclude.shape}, but there are {history.shape[0]} users "
                    f"and {n_items} items."
                )
            exclude = canonical_csr(abs(exclude).astype(np.float32))
            hidden = exclude if hidden is None else canonical_csr(hidden + exclude)
        elif exclude is not None:
            allowed = np.arange(n_items) if candidates is None else candidates
            candidates = np.setdiff1d(allowed, validate_ids("exclude", exclude, n_items))
        options = {"candidates": candidates, "n_threads": count_threads(self.n_jobs)}
        items, scores = top_k(
            queries, self._item_vectors(), int(n_recommendations), exclude=hidden, **options
        )
        cold = np.flatnonzero(np.diff(history.indptr) == 0)
        if len(cold):
            # One number per item ranks by popularity.
            share = (self.item_counts_ / max(1, self._n_users)).astype(np.float32)
            cold_hidden = None if hidden is None else canonical_csr(hidden[cold])
            items[cold], scores[cold] = top_k(
                np.ones((len(cold), 1), dtype=np.float32),
                share[:, None],
                int(n_recommendations),
                exclude=cold_hidden,
                **options,
            )
        items = items.astype(np.int64)
        if users is not None and np.ndim(users) == 0:
            return items[0], scores[0]
        return items, scores

    def transform(self, X):
        """Return the embeddings of users by their histories.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        embeddings : ndarray of shape (n_users, n_components), float32
            Each row is folded in: it depends on that row and the trained items alone. A row without
            items gives zeros.
        """
        check_is_fitted(self)
        return self._fold_in(self._validate_history(X))

    def predict(self, X):
        """Return recommended items for users by their histories, without the items they have.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores; -1 where there are too few.
        """
        return self.recommend(X)[0]

    def score(self, X, y=None):
        """Return the mean NDCG of recommendations, at ``n_recommendations``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Histories.
        y : sparse matrix of shape (n_users, n_items), default=None
            Items to be found. None hides a fifth of each row of ``X``, chosen by the row's own
            content, so that every model is asked the same.

        Returns
        -------
        ndcg : float
            Over users with at least one item to be found; nan if there is none.
        """
        check_is_fitted(self)
        X = self._validate_history(X)
        if y is None or not sparse.issparse(y):
            X, y = holdout_by_content(X, fraction=_HELD_OUT)
        if y.nnz == 0:
            return float("nan")
        items, _ = self.recommend(X)
        return float(ndcg_at_k(y, items))

    def predict_pairs(self, users, items):
        """Return the scores of pairs of users and items.

        Parameters
        ----------
        users, items : array-like of int of shape (n_pairs,)
            Users seen in ``fit``, and items.

        Returns
        -------
        scores : ndarray of shape (n_pairs,), float32
            What ``recommend`` ranks by.
        """
        check_is_fitted(self)
        users = validate_ids("users", users, self._n_users)
        items = validate_ids("items", items, self.n_features_in_)
        if len(users) != len(items):
            raise ValueError(
                f"users and items are pairs, but there are {len(users)} users and {len(items)} "
                f"items."
            )
        unique, at = np.unique(users, return_inverse=True)
        return np.einsum(
            "pf,pf->p", self._user_vectors(unique)[at], self._item_vectors()[items]
        ).astype(np.float32)

    def similar_items(self, items, n=10):
        """Return the items most similar to given items, by the cosine of their vectors.

        Parameters
        ----------
        items : int or array-like of int of shape (n_items,)
        n : int, default=10
            How many; an item is not counted as similar to itself.

        Returns
        -------
        similar : ndarray of shape (n_items, n), int64
            In descending order; -1 where there are too few. One-dimensional for a single item.
        cosines : ndarray of the same shape, float32
        """
        return self._similar("items", items, n)

    def similar_users(self, users, n=10):
        """Return the users most similar to given users seen in fit, by the cosine of their vectors.

        Parameters
        ----------
        users : int or array-like of int of shape (n_users,)
        n : int, default=10
            How many; a user is not counted as similar to itself.

        Returns
        -------
        similar : ndarray of shape (n_users, n), int64
            In descending order; -1 where there are too few. One-dimensional for a single user.
        cosines : ndarray of the same shape, float32
        """
        return self._similar("users", users, n)

    def _similar(self, axis, ids, n):
        check_is_fitted(self)
        vectors = self._similarity_vectors(axis)
        chosen = validate_ids(axis, ids, len(vectors))
        itself = sparse.csr_array(
            (np.ones(len(chosen), dtype=np.float32), chosen, np.arange(len(chosen) + 1)),
            shape=(len(chosen), len(vectors)),
        )
        similar, cosines = top_k(
            vectors[chosen],
            vectors,
            int(n),
            exclude=canonical_csr(itself),
            n_threads=count_threads(self.n_jobs),
        )
        similar = similar.astype(np.int64)
        return (similar[0], cosines[0]) if np.ndim(ids) == 0 else (similar, cosines)
