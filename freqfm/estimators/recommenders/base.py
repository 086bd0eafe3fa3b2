"""What recommenders share: recommending, similar rows, scores of pairs, explanations."""

from abc import abstractmethod

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from freqfm._components import name_to_instance
from freqfm._interactions import refuse_table
from freqfm._validation import (
    LearnedArrays,
    _csr,
    as_array,
    canonical_csr,
    check_count,
    check_flag,
    count_threads,
    take_rows,
    validate_ids,
    validate_rows,
)
from freqfm.estimators.training import CallbackSupportMixin
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._hits import as_csr
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_by_content

__all__ = ["BaseRecommender", "unit_rows"]

# The part of each row that ``score`` hides if it is not given what to find.
_HELD_OUT = 0.2


class BaseRecommender(
    CallbackSupportMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Recommenders on a sparse matrix of users and items, whose scores are dot products.

    A subclass sets ``item_factors_``, ``item_counts_``, ``_seen_indptr`` and ``_seen_indices`` in
    ``fit`` and says by what vectors it ranks. Nothing derived from them is kept: whatever these
    arrays hold when a method is called is what it answers by.
    """

    #: The components known by name, for each parameter that takes one.
    _axes: dict = {}

    @property
    @abstractmethod
    def _unit_columns(self):
        """How many leading columns of ``item_factors_`` rankings take at unit length."""

    @abstractmethod
    def _item_vectors(self, items=slice(None)):
        """Return the vectors of items that rankings use, (n, d) float32."""

    @abstractmethod
    def _user_vectors(self, users):
        """Return the vectors of users seen in fit that rankings use, (n, d) float32."""

    @abstractmethod
    def _embed(self, users):
        """Return what ``transform`` would give for users seen in fit."""

    @abstractmethod
    def _fold_in(self, X):
        """Return the vectors of the rows of a canonical matrix that rankings use."""

    @abstractmethod
    def _similarity_table(self, axis):
        """Return a table of all "users" or "items", and how many of its columns are compared."""

    @abstractmethod
    def _check_vectors(self, learned):
        """Check what users' and items' vectors come from, see ``LearnedArrays``."""

    def _check_learned(self):
        """Raise unless kernels can read the model's arrays; return the ``LearnedArrays``.

        Indices are checked as they are used, since there may be many: see ``_places_of``.
        """
        check_is_fitted(self)
        learned = LearnedArrays(self)
        n_items = learned.size("n_features_in_")
        learned.array("item_counts_", (n_items,))
        (n_bounds,) = learned.array("_seen_indptr", (None,), "iu")
        learned.require(n_bounds > 0, "_seen_indptr", "is empty")
        learned.array("_seen_indices", (None,), "iu")
        learned.array("_seen_weights", (None,))
        n_weights, n_seen = len(self._seen_weights), len(self._seen_indices)
        last = self._seen_indptr[-1]
        found = f"ends at {last}, but _seen_indices has length {n_seen}"
        learned.require(last == n_seen, "_seen_indptr", found)
        fits = n_weights in (0, n_seen)
        learned.require(fits, "_seen_weights", f"has length {n_weights}, not 0 or {n_seen}")
        self._check_vectors(learned)
        return learned

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
        return self.item_factors_.shape[1]

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
        # NaN, too, which scikit-learn lets pass where it is told to assume finite input.
        total = X.data.sum(dtype=np.float64)
        if not total <= np.finfo(np.float32).max:
            raise ValueError(
                f"X holds weights of interactions that add up to {total:g}, beyond float32; drop "
                f"NaN and infinity, and scale the others, to 1 on average for instance."
            )
        return X

    def _places_of(self, users):
        """Return the indptr and the items of users' histories, and where they stand in those kept.

        These are few; all kept ones are looked at before training only.
        """
        starts = self._seen_indptr[users].astype(np.int64)
        ends = self._seen_indptr[users + 1].astype(np.int64)
        learned, n_seen = LearnedArrays(self), len(self._seen_indices)
        fits = not len(users) or (starts.min() >= 0 and ends.max() <= n_seen)
        fits = fits and (starts <= ends).all()
        learned.require(fits, "_seen_indptr", f"does not rise from 0 to {n_seen}")
        indptr = np.concatenate([[0], np.cumsum(ends - starts)])
        at = np.repeat(starts - indptr[:-1], ends - starts) + np.arange(indptr[-1])
        items = self._seen_indices[at]
        learned.indices("_seen_indices", items, self.n_features_in_)
        return indptr, items, at

    def _queries(self, X, users):
        """Return query vectors and the history of the users that are asked for."""
        self._check_learned()
        if (X is None) == (users is None):
            raise ValueError(
                "recommend needs either X, rows of histories, or users=, indices of users seen in "
                "fit; " + ("neither was given." if X is None else "both were given.")
            )
        if X is not None:
            if _is_vector_of_int(X):
                raise ValueError(
                    f"X={X!r} is no matrix of histories, (n_users, n_items); did you mean "
                    f"users={X!r}?"
                )
            X = self._validate_history(X)
            return self._fold_in(X), X
        users = validate_ids("users", users, self._n_users)
        indptr, indices, _ = self._places_of(users)
        ones = np.ones(len(indices), dtype=np.float32)
        shape = len(users), self.n_features_in_
        return self._user_vectors(users), _csr(ones, indices, indptr, shape)

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
        k = check_count("n_recommendations", n_recommendations)
        hidden = history if check_flag("exclude_seen", exclude_seen) else None
        for_all = None
        if sparse.issparse(exclude):
            hidden = self._hide(hidden, exclude, history.shape)
        elif exclude is not None:
            for_all = validate_ids("exclude", exclude, self.n_features_in_)
        if candidates is not None:
            candidates = validate_ids("candidates", candidates, self.n_features_in_)
        options = {
            "exclude_for_all": for_all,
            "candidates": candidates,
            "n_threads": count_threads(self.n_jobs),
        }
        items, scores = top_k(
            queries,
            self.item_factors_,
            k,
            exclude=hidden,
            unit_columns=self._unit_columns,
            **options,
        )
        if (items < 0).any():
            self._check_finite(queries, candidates)
        cold = np.flatnonzero(np.diff(history.indptr) == 0)
        if len(cold):
            # One number per item ranks by popularity.
            share = (self.item_counts_ / max(1, self._n_users)).astype(np.float32)
            everyone = np.ones((len(cold), 1), dtype=np.float32)
            cold_hidden = None if hidden is None else take_rows(hidden, cold)
            items[cold], scores[cold] = top_k(
                everyone, share[:, None], k, exclude=cold_hidden, **options
            )
        items = items.astype(np.int64)
        if users is not None and np.ndim(users) == 0:
            return items[0], scores[0]
        return items, scores

    @staticmethod
    def _hide(hidden, exclude, shape):
        """Return items hidden from each user, with those that a sparse matrix excludes."""
        exclude = as_csr("exclude", exclude)
        if exclude.shape != shape:
            raise ValueError(
                f"exclude has shape {exclude.shape}, but there are {shape[0]} users and {shape[1]} "
                f"items."
            )
        return exclude if hidden is None else canonical_csr((hidden != 0) + (exclude != 0))

    def _check_finite(self, queries, candidates):
        """Raise if there are users without enough items because scores are not numbers."""
        rows = slice(None) if candidates is None else candidates
        if not (np.isfinite(queries).all() and np.isfinite(self.item_factors_[rows]).all()):
            raise ValueError(
                f"the vectors of this {type(self).__name__} hold NaN or infinity, by which nothing "
                f"can be ranked; fit it again, or put back the arrays that fit has learned."
            )

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
        self._check_learned()
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
        y : {array-like, sparse matrix} of shape (n_users, n_items), or array-like of int of shape \
                (n_users,), default=None
            Items to be found: all entries that are not zero, or one item for each user. None hides
            a fifth of each row of ``X``, chosen by the row's own content, so that every model is
            asked the same.

        Returns
        -------
        ndcg : float
            Over users with at least one item to be found; nan if there is none.

        Raises
        ------
        TypeError, ValueError
            If ``y`` is of another shape, or holds anything but numbers.
        """
        self._check_learned()
        X = self._validate_history(X)
        if y is None:
            X, y = holdout_by_content(X, fraction=_HELD_OUT)
        else:
            y = _to_be_found(y, X.shape)
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
        self._check_learned()
        users = validate_ids("users", users, self._n_users)
        items = validate_ids("items", items, self.n_features_in_)
        if len(users) != len(items):
            raise ValueError(
                f"users and items are pairs, but there are {len(users)} users and {len(items)} "
                f"items."
            )
        some_users, user_at = np.unique(users, return_inverse=True)
        some_items, item_at = np.unique(items, return_inverse=True)
        return np.einsum(
            "pf,pf->p",
            self._user_vectors(some_users)[user_at],
            self._item_vectors(some_items)[item_at],
        ).astype(np.float32)

    def export_vectors(self):
        """Return vectors of users and items whose inner products are the scores of ``recommend``.

        For servers and indexes of nearest neighbours by inner product; the user guide has a recipe.

        Returns
        -------
        users : ndarray of shape (n_users, d), float32
            Of users seen in ``fit``. Those without interactions, to whom ``recommend`` gives
            popular items, have a vector of no meaning.
        items : ndarray of shape (n_items, d), float32
            At unit length where the model ranks by cosines. Biases of items, if the model has them,
            stand in the last column, and users have ones there.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import MFRecommender
        >>> from freqfm.datasets import make_interactions
        >>> X = make_interactions(200, 100, random_state=0)
        >>> model = MFRecommender(n_components=16, max_iter=5, random_state=0).fit(X)
        >>> users, vectors = model.export_vectors()
        >>> best = np.argmax(vectors @ users[3])
        >>> items, _ = model.recommend(users=3, n_recommendations=1, exclude_seen=False)
        >>> bool(items[0] == best)
        True
        """
        self._check_learned()
        return self._user_vectors(np.arange(self._n_users)), np.array(self._item_vectors())

    def similar_items(self, items, n_recommendations=10):
        """Return the items most similar to given items, by the cosine of their vectors.

        Parameters
        ----------
        items : int or array-like of int of shape (n_items,)
        n_recommendations : int, default=10
            How many; an item is not counted as similar to itself. Items without interactions
            are similar to none.

        Returns
        -------
        similar : ndarray of shape (n_items, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single item.
        cosines : ndarray of the same shape, float32
            -inf where there is no item.
        """
        return self._similar("items", items, n_recommendations)

    def similar_users(self, users, n_recommendations=10):
        """Return the users most similar to given users seen in fit, by the cosine of their vectors.

        Parameters
        ----------
        users : int or array-like of int of shape (n_users,)
        n_recommendations : int, default=10
            How many; a user is not counted as similar to itself. Users without interactions
            are similar to none.

        Returns
        -------
        similar : ndarray of shape (n_users, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single user.
        cosines : ndarray of the same shape, float32
            -inf where there is no user.
        """
        return self._similar("users", users, n_recommendations)

    def _similar(self, axis, ids, n_recommendations):
        self._check_learned()
        k = check_count("n_recommendations", n_recommendations)
        table, width = self._similarity_table(axis)
        chosen = validate_ids(axis, ids, len(table))
        # The vector of an item or user without interactions is where it started, and means nothing.
        n_interactions = self.item_counts_ if axis == "items" else np.diff(self._seen_indptr)
        itself = _csr(
            np.ones(len(chosen), dtype=np.float32),
            chosen,
            np.arange(len(chosen) + 1),
            (len(chosen), len(table)),
        )
        # Columns that are not compared count nothing in a query.
        queries = np.zeros((len(chosen), table.shape[1]), dtype=np.float32)
        queries[:, :width] = unit_rows(table[chosen, :width])
        similar, cosines = top_k(
            queries,
            table,
            k,
            exclude=itself,
            candidates=None if n_interactions.all() else n_interactions > 0,
            unit_columns=width,
            n_threads=count_threads(self.n_jobs),
        )
        cold = n_interactions[chosen] == 0
        similar[cold], cosines[cold] = -1, -np.inf
        similar = similar.astype(np.int64)
        return (similar[0], cosines[0]) if np.ndim(ids) == 0 else (similar, cosines)


def unit_rows(table):
    """Return the rows of a table at unit length; rows of zeros stay."""
    length = np.linalg.norm(table, axis=1, keepdims=True)
    return (table / np.where(length > 0, length, 1)).astype(np.float32, order="C")


def _is_vector_of_int(X):
    if sparse.issparse(X):
        return False
    X = as_array("X", X)
    return X.ndim < 2 and X.dtype.kind in "iu"


def _to_be_found(y, shape):
    """Return the items to be found, given as a matrix or as one item for each user."""
    y = y if sparse.issparse(y) else as_array("y", y)
    n_users, n_items = shape
    if y.shape != shape and y.shape in ((n_users,), (n_users, 1)) and not sparse.issparse(y):
        items = validate_ids("y", y.ravel(), n_items)
        return _csr(np.ones(n_users), items, np.arange(n_users + 1), shape)
    if y.shape != shape:
        raise ValueError(
            f"y has shape {y.shape}; it must hold the items to be found, with X's shape {shape} "
            f"or as {n_users} indices of items. Pass y=None to hide a part of X instead."
        )
    return as_csr("y", y)
