"""Base class of recommenders: predictions from vectors of users and items."""

import copy
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral
from typing import ClassVar, get_type_hints

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from freqfm._components import POSITIVE_INTEGER
from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import slices, split_signs, take_rows
from freqfm._input.validation import (
    LearnedArrays,
    as_array,
    canonical_csr,
    check_flag,
    count_threads,
    kernel_csr,
    validate_id,
    validate_ids,
    validate_rows,
    warn_of_heavy_weights,
)
from freqfm._messages import cut, shown
from freqfm._versions import VersionStamp
from freqfm.backends.base import RankedLists
from freqfm.estimators.recommenders.index import Queries, Request, VectorIndex, of_single
from freqfm.estimators.recommenders.interactions import (
    InteractionHistory,
    Interactions,
    with_dislikes,
)
from freqfm.estimators.recommenders.to_parquet import RecommendToMixin
from freqfm.estimators.state import ServingMixin
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._hits import as_csr
from freqfm.model_selection import holdout_by_content
from freqfm.model_selection._holdout import last_step, transform
from freqfm.model_selection._scorer import warn_of_seen
from freqfm.reranking._lists import relevances
from freqfm.reranking._objectives import choose

# Candidates from which diverse items are chosen at a time.
_PLACES = 1 << 20

# What weights may add up to.
_LARGEST = float(np.finfo(np.float32).max)

# The share of each row that ``score`` holds out if it is not given ``y``.
_HELD_OUT = 0.2


@dataclass(eq=False, repr=False, kw_only=True)
class BaseRecommender(
    RecommendToMixin,
    ServingMixin,
    VersionStamp,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Recommenders on a sparse matrix of users and items, whose scores are dot products.

    A subclass defines ``fit``, which sets ``item_factors_`` and calls ``_remember``, and
    ``_fold_in_rows``. The other hooks are for a model whose vectors are those of a table of users
    too, ``_stores_users``, or are not compared as they are stored. Nothing derived from the
    learned arrays is stored: every method computes its results from their current values.
    """

    _parameter_constraints: ClassVar = {
        "n_recommendations": POSITIVE_INTEGER,
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
    }

    n_recommendations: int = 10
    verbose: int = 0
    n_jobs: int | None = None

    #: Learned attributes that are named tuples; stored as plain dicts.
    _records: ClassVar[dict] = {"_history": InteractionHistory, "_dislikes": InteractionHistory}
    #: The items that users dislike, whose weights are positive; or None.
    _dislikes = None
    #: Whether a model has a vector for each user seen in fit, ``user_factors_``.
    _stores_users = False
    #: Whether dislikes, as negative values, are part of what a user's vector is computed from.
    _uses_dislikes = False
    _warns_of_heavy_weights = False
    #: Whether the weights of interactions are kept with the history.
    _keeps_weights = False
    #: The least and the most that the largest weight may be, in ``fit`` and in histories: of others
    #: float32 loses squares, or products with the model.
    _weights_in_fit = _weights_in_histories = 0.0, _LARGEST
    _advice_for_missing = (
        "A missing value means no interaction: fill it with 0, X.fillna(0) or np.nan_to_num(X)."
    )

    # Hooks.

    @abstractmethod
    def _fold_in_rows(self, X):
        """Return the vectors used for ranking for the rows of a canonical matrix."""

    def _user_vectors(self, users):
        """Return the vectors of users seen in fit used for ranking, (n, d) float32."""
        if self._stores_users:
            return self.user_factors_[users]
        return self._fold_in_rows(self._histories_of(users))

    def _embed_rows(self, X):
        """Return the result of ``transform`` for the rows of a canonical matrix."""
        return self._fold_in_rows(X)

    def _embed(self, users):
        """Return the result of ``transform`` for users seen in fit."""
        if self._stores_users:
            return self._user_vectors(users)
        return self._embed_rows(self._histories_of(users))

    @property
    def _unit_columns(self):
        """How many leading columns of ``item_factors_`` rankings normalise to unit length."""
        return 0

    @property
    def _compared_columns(self):
        """How many leading columns of ``item_factors_`` tell how similar items are."""
        return self.item_factors_.shape[1]

    def _check_vectors(self, learned):
        """Check the arrays behind users' and items' vectors, see ``LearnedArrays``."""
        _, width = learned.array("item_factors_", (self.n_features_in_, None))
        learned.require(width > 0, "item_factors_", "holds no numbers")
        if self._stores_users:
            learned.array("user_factors_", (self._n_users, width))

    def _item_table(self):
        """Return the vectors of all items used for ranking."""
        return self.item_factors_

    def _user_table(self):
        """Return the vectors by which users are similar, (n_users, d)."""
        return self.user_factors_ if self._stores_users else self._embed(np.arange(self._n_users))

    def _is_learned(self, axis, rows=slice(None)):
        """Return which of all "users" or "items", or of some, have a vector that training moved.

        Without interactions a vector keeps its random initial values.
        """
        counts = self.item_counts_[rows] if axis == "items" else self._history.counts_of(rows)
        return counts > 0

    # Copies and files.

    def __getstate__(self):
        # Plain dicts, so that files can be read without our classes.
        state = dict(super().__getstate__())
        for name, kind in self._records.items():
            if type(state.get(name)) is kind:
                state[name] = state[name]._asdict()
        return state

    def __setstate__(self, state):
        state = dict(state)
        for name, kind in self._records.items():
            value = state.get(name)
            if isinstance(value, dict) and set(value) == set(kind._fields):
                state[name] = kind(**value)
        super().__setstate__(state)

    def _check_learned(self):
        """Raise unless kernels can read the model's arrays; return the ``LearnedArrays``.

        Indices are checked when they are used, since there may be many.
        """
        check_is_fitted(self)
        learned = LearnedArrays(self)
        n_items = learned.size("n_features_in_")
        learned.array("item_counts_", (n_items,))
        for name, kind in self._records.items():
            value = learned.get(name)
            if value is None and name in ("_training", "_dislikes"):
                continue  # a copy without an optimizer's state, or a model without dislikes
            if not isinstance(value, kind):
                learned.require(False, name, f"is of type {type(value).__name__}")
            for fits, field in zip(
                map(isinstance, value, _types_of(kind)), kind._fields, strict=True
            ):
                if not fits:
                    found = type(getattr(value, field)).__name__
                    learned.require(False, f"{name}.{field}", f"is of type {found}")
        self._history.check(learned)
        if self._dislikes is not None:
            self._dislikes.check(learned, "_dislikes", self._n_users)
        self._check_vectors(learned)
        return learned

    def __sklearn_tags__(self):
        tags = recommender_tags(super().__sklearn_tags__())
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self):
        return self.item_factors_.shape[1]

    # Interactions.

    def _validate_history(self, X, reset=False):
        """Return interactions as a canonical matrix; its negative values are dislikes."""
        refuse_table(X)
        if not reset and hasattr(self, "_history"):
            self._refuse_transposed(getattr(X, "shape", ()))
        given = getattr(X, "data", None) if sparse.issparse(X) else X
        X, _ = validate_rows(self, X, reset=reset)
        limits = self._weights_in_fit if reset else self._weights_in_histories
        _refuse_extreme_weights(given, X, *limits)
        return X

    def _validate_more(self, X):
        """Return the interactions of ``partial_fit``; columns beyond the model's are new items."""
        shape = X.shape if sparse.issparse(X) else as_array("X", X).shape
        grown = len(shape) == 2 and shape[1] > self.n_features_in_
        if grown:
            self._refuse_transposed(shape)
        before = getattr(self, "feature_names_in_", None)
        X = self._validate_history(X, reset=grown)
        if grown:
            self._check_names(before)
        return X

    def _check_names(self, before):
        """Raise unless the names of columns begin with those that the model had before."""
        names = getattr(self, "feature_names_in_", None)
        if before is None or names is None or np.array_equal(names[: len(before)], before):
            return
        place = int(np.argmax(names[: len(before)] != before))
        raise ValueError(
            f"column {place} of X is {shown(names[place])}, but the model was trained with "
            f"{shown(before[place])} there. Put the columns of the model first, in its order, and "
            f"new items after them: X[[*model.feature_names_in_, *new_names]]."
        )

    def _check_trainable(self):
        """Raise unless the model can be trained further: checks all histories."""
        learned = self._check_learned()
        self._history.check_all(learned, self.n_features_in_)
        if self._dislikes is not None:
            self._dislikes.check_all(learned, self.n_features_in_, "_dislikes")

    def _read(self, X, reset, *, dislikes=None, adds=False):
        """Return the Interactions that ``fit`` is given, or ``partial_fit``."""
        if not reset:
            self._check_trainable()
        adds = adds and not reset
        X = self._validate_more(X) if adds else self._validate_history(X, reset=reset)
        X = with_dislikes(X, self._given_dislikes(X.shape, dislikes))
        if not (adds and X.nnz):
            refuse_empty(X)
        if reset and self._warns_of_heavy_weights:
            warn_of_heavy_weights(abs(X.data))
        return Interactions.of(X)

    def _known_with(self, new):
        """Return all that the model knows, with the Interactions of a call by user."""
        known = (kept and kept.matrix(new.shape) for kept in (self._history, self._dislikes))
        return Interactions(*known).plus(new, self._keeps_weights)

    def _given_dislikes(self, shape, dislikes):
        """Return the ``dislikes`` that are given for a matrix of this shape, or None."""
        if dislikes is None:
            return None
        try:
            found = abs(self._validate_history(dislikes))
        except ValueError as error:
            raise ValueError(f"dislikes: {error}") from None
        if found.shape != shape:
            raise ValueError(
                f"dislikes has shape {found.shape}, but X has {shape}; give a matrix of the same "
                f"users and items, with 0 where there is no dislike."
            )
        return found

    def _refuse_transposed(self, shape):
        """Raise if a matrix has the model's numbers of users and items in the other order."""
        n_users, n_items = self._history.n_users, self.n_features_in_
        if n_users != n_items and tuple(shape) == (n_items, n_users):
            raise ValueError(
                f"X of shape {tuple(shape)} looks transposed: its rows are users and its columns "
                f"items, of which the model has {n_users} and {n_items}. Pass X.T; if it is "
                f"right, add an empty row."
            )

    def _remember(self, interactions):
        """Store which users have which items, and which they dislike."""
        self._history = interactions.history(self._keeps_weights)
        self.item_counts_, dislikes = interactions.item_counts, interactions.dislikes
        self.__dict__.pop("_dislikes", None)
        if dislikes is not None and dislikes.nnz:
            self._dislikes = InteractionHistory.of(dislikes, weighted=True)

    def _histories_of(self, users):
        """Return the rows of users seen in fit, (n, n_items) CSR."""
        return self._history.rows_of(users, self.n_features_in_, LearnedArrays(self))

    def _with_dislikes(self, X, users):
        """Return histories of users seen in fit with their dislikes, as negative values."""
        if self._dislikes is None:
            return X
        learned = LearnedArrays(self)
        return with_dislikes(
            X, self._dislikes.rows_of(users, self.n_features_in_, learned, "_dislikes")
        )

    def _seen_by(self, users):
        """Return what users seen in fit had, and their dislikes as negative values."""
        return self._with_dislikes(self._histories_of(users), users)

    def _used(self, X):
        """Return the part of histories that users' vectors are computed from."""
        return X if self._uses_dislikes else split_signs(X)[0]

    def _no_histories(self, n_users):
        """Return empty rows, (n_users, n_items) CSR."""
        return canonical_csr(sparse.csr_array((n_users, self.n_features_in_), dtype=np.float32))

    @property
    def _n_users(self):
        return self._history.n_users

    # Predictions.

    def _index(self, axis, table, n_unit):
        """Return an index of "users" or "items" by a table of vectors."""
        options = {"n_threads": count_threads(self.n_jobs), "device": self.device}
        return VectorIndex(table, n_unit, partial(self._is_learned, axis), options)

    def _item_index(self):
        """Return the index that recommendations are found in."""
        return self._index("items", self._item_table(), self._unit_columns)

    def _compared(self, axis):
        """Return the index that similar "users" or "items" are found in."""
        if axis == "items":
            return self._index(axis, self.item_factors_, self._compared_columns)
        table = self._user_table()
        return self._index(axis, table, table.shape[1])

    def recommend(
        self,
        X=None,
        *,
        users=None,
        n_recommendations=None,
        exclude_seen=True,
        candidates=None,
        exclude=None,
        diversity=0.0,
        item_vectors=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories; each row is folded in as a new user. Negative values are dislikes.
        users : int or array-like of int of shape (n_users,), default=None
            Users seen in ``fit``, by their rows. Either ``X`` or ``users`` must be given.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        exclude_seen : bool, default=True
            Whether to exclude the items of a user's history, and those that the user dislikes.
        candidates : array-like of int, list of n_users such lists, or sparse matrix of shape \
                (n_users, n_items), default=None
            Items that may be recommended: to all users, or to each user. None allows all.
        exclude : array-like of int, list of n_users such lists, or sparse matrix of shape \
                (n_users, n_items), default=None
            Items to exclude: for all users, or for each user.
        diversity : float, default=0.0
            From 0 to 1: how much the items of a list are to differ. Above 0 they are chosen from
            the best five times ``n_recommendations``, at least 100, as
            :func:`freqfm.reranking.diversify` does.
        item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions), default=None
            Features by which items differ, such as genres; None takes the model's own vectors.
            Without ``diversity`` they are not used.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores, or with ``diversity`` as they were chosen; -1 where there
            are too few. One-dimensional if ``users`` is a single number.
        scores : ndarray of the same shape, float32
            Dot products, or cosines if the model ranks by these; -inf where there is no item. A
            user without history gets popular items, scored by the share of users that have them.

        Raises
        ------
        ValueError
            If neither or both of ``X`` and ``users`` are given, indices are out of range, or
            ``n_recommendations`` is so large that the result cannot be held, or would be many
            million places without an item.
        """
        exclude_seen = check_flag("exclude_seen", exclude_seen)
        request = Request(n_recommendations, candidates, exclude, diversity, item_vectors)
        return of_single(users, self._rank(self._queries(X, users, exclude_seen), request))

    def _queries(self, X, users, seen=True):
        """Return the Queries of new users by ``X``, or of known ``users``.

        Their histories are left empty unless ``seen``.
        """
        self._check_learned()
        check_query(X, users)
        if X is not None:
            X = self._validate_history(X)
            likes, _ = split_signs(X)
            history = X if seen else self._no_histories(X.shape[0])
            return Queries(self._fold_in_rows(self._used(X)), history, np.diff(likes.indptr) > 0)
        users = validate_ids("users", users, self._n_users)
        vectors = self._user_vectors(users)
        if seen:
            history = self._seen_by(users)
        else:
            history = self._no_histories(len(users))
        return Queries(vectors, history, self._is_learned("users", users))

    def _rank(self, queries, request, new_items=None):
        """Return items and scores for Queries; see ``recommend``.

        ``new_items`` are vectors of items that follow those of the model.
        """
        vectors, history, learned = queries
        index, counts = self._item_index(), self.item_counts_
        if new_items is not None:
            index = index.plus(new_items)
            counts = np.concatenate([counts, np.zeros(len(new_items), counts.dtype)])
            history = kernel_csr(
                history.data, history.indices, history.indptr, (len(learned), len(counts))
            )
        if request.n is None:
            request = request._replace(n=self.n_recommendations)
        request = request.checked(len(learned), len(counts))
        queries = Queries(vectors, history, learned)
        if request.diversity:
            return self._choose_diverse(queries, request, index, counts)
        return self._find_best(queries, request, index, counts)

    def _choose_diverse(self, queries, request, index, counts):
        """Return items that differ, chosen from the best ones, and their scores."""
        shape, pool = (len(queries.learned), request.n), request.pool(len(counts))
        items, scores = np.full(shape, -1), np.full(shape, -np.inf, dtype=np.float32)
        table = request.vectors
        if table is None:
            table = self._vectors_to_differ(index)
        step = max(1, _PLACES // pool.n)
        for part in slices(shape[0], step):
            part = np.arange(part.start, part.stop)
            found, of_found = self._find_best(queries.of(part), pool.of(part), index, counts)
            lists = RankedLists(found.astype(np.int32), relevances(found, of_found))
            n_threads = count_threads(self.n_jobs)
            places = choose(lists, table, request.diversity, request.n, n_threads)
            items[part] = np.where(places < 0, -1, np.take_along_axis(found, places, axis=1))
            of_chosen = np.take_along_axis(of_found, places, axis=1)
            scores[part] = np.where(places < 0, -np.inf, of_chosen)
        return items, scores

    def _vectors_to_differ(self, index):
        """Return the vectors by which recommended items differ."""
        return index.table[:, : self._compared_columns]

    def _find_best(self, queries, request, index, counts):
        """Return the items with the highest scores, and these."""
        vectors, history, learned = queries
        shape = len(learned), request.n
        items, scores = np.full(shape, -1), np.full(shape, -np.inf, dtype=np.float32)
        if learned.any():
            items, scores = index.search(vectors, request, history)
        cold = np.flatnonzero(~learned)
        if len(cold):
            # One number per item ranks by popularity. Memory is only touched where it is needed.
            share = np.zeros((len(counts), 1), dtype=np.float32)
            share[request.rows, 0] = self._popularity(counts[request.rows])
            popular, ones = index._replace(table=share, n_unit=0), np.ones((len(cold), 1))
            items[cold], scores[cold] = popular.search(
                ones, request.of(cold), take_rows(history, cold)
            )
        return items, scores

    def transform(self, X):
        """Return the embeddings of users by their histories.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        embeddings : ndarray of shape (n_users, n_components), float32
            Each row is folded in: its embedding depends only on that row and the trained items. An
            autoencoder's are the means of the latent vectors. A row without items gives zeros.
        """
        self._check_learned()
        return self._embed_rows(self._used(self._validate_history(X)))

    def predict(self, X):
        """Return recommended items for users by their histories, excluding the items they have.

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
            Items to be found: all entries that are not zero, or one item for each user. None holds
            out a fifth of each row of ``X``, chosen by the row's content, so that every model is
            tested on the same items. Items that the row of ``X`` has too are not recommended, and
            count as not found; a `UserWarning` says how many these are.

        Returns
        -------
        ndcg : float
            Mean over users with at least one item to be found; nan if there are none.

        Raises
        ------
        TypeError, ValueError
            If ``y`` has another shape, or contains anything but numbers.
        """
        return checked_score(self, X, y)[0]

    def predict_pairs(self, users, items):
        """Return the scores of pairs of users and items.

        Parameters
        ----------
        users, items : array-like of int of shape (n_pairs,)
            Users seen in ``fit``, and items.

        Returns
        -------
        scores : ndarray of shape (n_pairs,), float32
            The scores that ``recommend`` ranks by: for users without history and features the
            share of users that have the item. -inf for items without interactions and features,
            which are not recommended.
        """
        self._check_learned()
        users, items = checked_pairs(users, items, self._n_users, self.n_features_in_)
        some_users, at = np.unique(users, return_inverse=True)
        return self._score_pairs(users, items, self._user_vectors(some_users), at)

    def _score_pairs(self, users, items, vectors, at):
        """Return the scores of pairs; that of pair i has the user's vector ``vectors[at[i]]``."""
        index = self._item_index()
        scores = index.scores(vectors, at, items)
        cold = ~self._is_learned("users", users)
        scores[cold] = self._popularity(self.item_counts_[items[cold]])
        scores[~index.learned(items)] = -np.inf
        return scores

    def _popularity(self, counts):
        """Return the shares of users that have items, by how many do."""
        return (counts / max(1, self._n_users)).astype(np.float32)

    def export_vectors(self):
        """Return vectors of users and items whose dot products are the scores of ``recommend``.

        For servers and nearest-neighbour indexes by inner (dot) product, see
        :doc:`/production`.

        Returns
        -------
        users : ndarray of shape (n_users, d), float32
            Of users seen in ``fit``. The vectors of users without interactions, to whom
            ``recommend`` gives popular items, have no meaning.
        items : ndarray of shape (n_items, d), float32
            At unit length if the model ranks by cosines. Biases of items, if the model has them,
            are in the last column, in which users have ones.

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
        users = self._user_vectors(np.arange(self._n_users))
        return users, self._item_index().vectors().copy()

    def similar_items(self, items, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the items most similar to given items, by the cosine of their vectors.

        Parameters
        ----------
        items : int or array-like of int of shape (n_items,)
        n_recommendations : int, default=10
            How many; an item is not counted as similar to itself. Items without interactions
            are not similar to any.
        candidates : array-like of int, list of n_items such lists, or sparse matrix of shape \
                (n_items, `n_features_in_`), default=None
            Items that may be returned: for all given items, or for each. None allows all.
        exclude : array-like of int, such lists, or sparse matrix of that shape, default=None
            Items that may not be returned, likewise.

        Returns
        -------
        similar : ndarray of shape (n_items, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single item.
        cosines : ndarray of the same shape, float32
            -inf where there is no item.
        """
        return self._similar("items", items, Request(n_recommendations, candidates, exclude))

    def similar_users(self, users, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the users most similar to given users seen in fit, by the cosine of their vectors.

        Parameters
        ----------
        users : int or array-like of int of shape (n_users,)
        n_recommendations : int, default=10
            How many; a user is not counted as similar to itself. Users without interactions
            are not similar to any.
        candidates : array-like of int, list of n_users such lists, or sparse matrix of shape \
                (n_users, n_users_of_model), default=None
            Users that may be returned: for all given users, or for each. None allows all.
        exclude : array-like of int, such lists, or sparse matrix of that shape, default=None
            Users that may not be returned, likewise.

        Returns
        -------
        similar : ndarray of shape (n_users, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single user.
        cosines : ndarray of the same shape, float32
            -inf where there is no user.
        """
        return self._similar("users", users, Request(n_recommendations, candidates, exclude))

    def _similar(self, axis, ids, request):
        """Return the "users" or "items" most similar to some of them; see ``similar_items``."""
        self._check_learned()
        rows = validate_ids(axis, ids, self._n_users if axis == "users" else self.n_features_in_)
        return of_single(ids, self._compared(axis).similar(rows, request))

    def _explain(self, user, item, X):
        """Split the score of an item into the contributions of the user's items, and a rest."""
        query = self._query(user, X)
        return self._explain_query(query, query.vectors, item)

    def _query(self, user, X):
        """Return the Queries of one user: known, or a row of X."""
        queries = self._queries(X, [user] if X is None else None)
        row = 0 if X is None else validate_id("user", user, len(queries.learned))
        return queries.of([row])

    def _explain_query(self, query, own, item):
        """Split a query's score; ``own``, (1, d), is the part of its vector due to the history."""
        item = validate_id("item", item, self.n_features_in_)
        history = self._used(query.history)
        index, contributions = self._item_index(), np.zeros(0)
        if query.learned[0]:
            score = float(index.scores(query.vectors, np.array([0]), np.array([item]))[0])
            contributions = self._contributions(own, history, item)
        else:
            score = float(self._popularity(self.item_counts_[item]))
        if not index.learned([item])[0]:
            score = -np.inf
        order = np.argsort(-contributions, kind="stable")
        return Bunch(
            history=history.indices[order].astype(np.int64),
            contributions=contributions[order].astype(np.float64),
            rest=score - float(contributions.sum()),
            score=score,
        )


def recommender_tags(tags):
    """Return the tags of an estimator whose data are a matrix of users and items."""
    tags.input_tags.sparse = True
    tags.target_tags.required = False
    # A prediction is a row of items.
    tags.target_tags.multi_output = True
    tags.target_tags.single_output = False
    return tags


def _refuse_extreme_weights(given, X, least, most):
    """Raise if weights are not finite, or leave float32 in what is computed from them.

    Parameters
    ----------
    given : object
        The numbers that X is made of, maybe in float64, with others that are 0.
    X : csr_array
    least, most : float
        Limits of the largest weight.
    """
    weights = abs(X.data) if X.nnz and X.data.min() < 0 else X.data
    largest, total = weights.max(initial=0), weights.sum(dtype=np.float64)
    # Catches NaN too, which scikit-learn lets pass if configured to assume finite input.
    if X.nnz and not (least <= largest <= most and total <= _LARGEST):
        raise ValueError(
            f"X holds weights of interactions of up to {largest:.3g}, {total:.3g} in all, which "
            f"float32 is too narrow for: their largest must be from {least:g} to {most:g}. Drop "
            f"NaN and infinity, and scale the others, to 1 on average for instance."
        )
    if isinstance(given, np.ndarray) and given.dtype == np.float64:
        lost = (given != 0) & (abs(given) < np.finfo(np.float32).smallest_subnormal)
        if lost.any():
            raise ValueError(
                f"X holds weights of interactions that are 0 in float32, such as "
                f"{given[lost][0]:.3g}; set them to 0, or to more."
            )


@cache
def _types_of(kind):
    """Return the types of the fields of a named tuple."""
    types = get_type_hints(kind)
    return [types[field] for field in kind._fields]


def refuse_empty(X):
    """Raise if a matrix holds no interactions, or only dislikes."""
    if sparse.issparse(X) and X.nnz and X.data.max() < 0:
        raise ValueError(
            f"X of shape {X.shape} holds no positive value: all {X.nnz} interactions are negative, "
            f"which are dislikes, and recommenders learn what is liked. Give likes too."
        )
    if not X.nnz:
        raise ValueError(
            f"X of shape {X.shape} holds no interaction: there is nothing to learn from."
        )


def check_query(X, users):
    """Raise unless either rows of histories or users are given to ``recommend``."""
    if (X is None) == (users is None):
        raise ValueError(
            "recommend needs either X, rows of histories, or users=, indices of users seen in "
            "fit; " + ("neither was given." if X is None else "both were given.")
        )
    if X is not None and _is_vector_of_int(X):
        raise ValueError(
            f"X={cut(shown(X), 80)} is not a matrix of histories, (n_users, n_items); did you mean "
            f"users=X?"
        )


def checked_pairs(users, items, n_users, n_items):
    """Return users and items of pairs, if they are pairs of users and items of a model."""
    users, items = validate_ids("users", users, n_users), validate_ids("items", items, n_items)
    if len(users) != len(items):
        raise ValueError(
            f"users and items are pairs, but there are {len(users)} users and {len(items)} items."
        )
    return users, items


def remembering(model, interactions):
    """Return a copy of a recommender with the histories of some users, and the counts of all."""
    model = copy.copy(model)
    counts = model.item_counts_
    model._remember(interactions)
    model.item_counts_ = counts
    return model


def signed_users(model, X, dislikes):
    """Return what some users like, and dislike as negative values, of rows as users give them."""
    X = model._validate_history(X, reset=True)
    return with_dislikes(X, model._given_dislikes(X.shape, dislikes))


def checked_score(recommender, X, y):
    """Return what ``score_of_users`` does, of rows as users give them."""
    recommender._check_learned()
    return score_of_users(recommender, recommender._validate_history(X), y)


def score_of_users(recommender, X, y):
    """Return the mean NDCG of users with items to be found, and how many these are."""
    if y is None:
        X, y = holdout_by_content(X, fraction=_HELD_OUT)
    else:
        y = _to_be_found(y, X.shape)
    if not (y.data > 0).any():
        return float("nan"), 0
    items, _ = recommender.recommend(X)
    liked, _ = split_signs(y)
    warn_of_seen(liked, X)
    return float(ndcg_at_k(liked, items)), np.count_nonzero(np.diff(liked.indptr))


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
        return kernel_csr(np.ones(n_users), items, np.arange(n_users + 1), shape)
    if y.shape != shape:
        raise ValueError(
            f"y has shape {y.shape}; it must hold the items to be found, with X's shape {shape} "
            f"or as {n_users} indices of items. Pass y=None to hide a part of X instead."
        )
    return as_csr("y", y)


def recommend(estimator, X=None, **options) -> tuple[np.ndarray, np.ndarray]:
    """Recommend with a recommender, or with a pipeline or a search that ends in one.

    scikit-learn's pipelines and searches have ``predict`` and ``transform``, but not
    ``recommend``. This function transforms the rows of ``X`` by all transformers, and calls
    ``recommend`` of the last step with the result.

    Parameters
    ----------
    estimator : estimator, Pipeline or search
        Fitted. Of a search, such as ``GridSearchCV``, the best estimator is used.
    X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
        Users' histories; or, if the last step is an :class:`InteractionRecommender`, ids of
        users. With None nothing is transformed.
    **options : dict
        Passed to ``recommend``: ``n_recommendations``, ``exclude_seen``, ``candidates``,
        ``exclude``, ``diversity``, ``item_vectors`` and ``users``; for an
        :class:`InteractionRecommender` also ``history``; for models with features also
        ``user_features`` and ``item_features``, with context ``context``.

    Returns
    -------
    items : ndarray of shape (n_users, n_recommendations)
        As the last step returns them.
    scores : ndarray of shape (n_users, n_recommendations)
        As the last step returns them.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    TypeError
        If the last step is not a recommender.
    ValueError
        If a search was fitted with ``refit=False``, and whatever the last step raises.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from freqfm import InteractionRecommender, MFRecommender, recommend
    >>> X = [("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "egg")]
    >>> model = make_pipeline(InteractionRecommender(MFRecommender(4, random_state=0)))
    >>> items, scores = recommend(model.fit(X), ["ann"], n_recommendations=1)
    >>> items
    array([['egg']], dtype=object)
    """
    transformers, recommender = last_step(estimator)
    if X is None:
        return recommender.recommend(**options)
    return recommender.recommend(transform(transformers, X), **options)
