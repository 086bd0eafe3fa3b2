"""InteractionRecommender: recommenders for tables of (user, item, value) with ids of any kind."""

from collections.abc import Set
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from numbers import Integral, Number, Real
from os import PathLike
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, MetaEstimatorMixin, clone
from sklearn.utils import Bunch, TransformerTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from freqfm._components import validate_params
from freqfm._docs import described_like
from freqfm._input.frames import as_reader, is_frame, is_lazy
from freqfm._input.ids import as_ids, as_list
from freqfm._input.interactions import InteractionTable, is_auto, refuse_lazy
from freqfm._input.rows import split_signs
from freqfm._input.validation import canonical_csr, check_count, check_flag
from freqfm._messages import shown
from freqfm._signals import release_signals
from freqfm._sklearn import (
    CALL_OF_SEARCH,
    CALLBACK_ATTRIBUTES,
    HasMethods,
    Interval,
    SetOutputMixin,
    StrOptions,
    callbacks_of,
    wrap_data_with_container,
)
from freqfm._versions import VersionStamp
from freqfm.datasets.streams import open_parquet
from freqfm.estimators.interactions.descriptions import DescriptionsMixin, distinct_queries
from freqfm.estimators.interactions.encoding import ANSWERS, InteractionEncodingMixin, UnknownIds
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.index import check_recommendations
from freqfm.estimators.recommenders.interactions import with_dislikes
from freqfm.estimators.recommenders.to_parquet import RecommendToMixin
from freqfm.estimators.state import ServingMixin
from freqfm.estimators.training import CallbackSupportMixin, attempt
from freqfm.exceptions import DivergenceError
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import GlobalTimeSplit
from freqfm.model_selection._scorer import seen_by, warn_of_seen


def _if_estimator_has(name):
    """Return a decorator of methods that ``estimator`` must have; the default has all."""

    def has(self):
        # The error of an estimator without the method names the estimator.
        return self.estimator is None or bool(getattr(_named_recommender(self.estimator), name))

    return available_if(has)


@dataclass(eq=False, repr=False, kw_only=True)
class InteractionRecommender(
    DescriptionsMixin,
    InteractionEncodingMixin,
    RecommendToMixin,
    ServingMixin,
    VersionStamp,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    MetaEstimatorMixin,
    BaseEstimator,
):
    """Recommender for a table of interactions, whose users and items have ids of any kind.

    Recommenders such as :class:`MFRecommender` take a matrix of users x items. This one takes a
    table with one interaction per row: it numbers users and items, builds the matrix, fits the
    recommender, and returns results with the original ids: numbers, strings or other objects that
    can be sorted, but no times. Because a row is an interaction and not a user, ``cross_val_score``
    and ``GridSearchCV`` can hold out interactions of users who are known from training;
    :mod:`freqfm.model_selection` has the splitters.

    Parameters
    ----------
    estimator : estimator, "auto" or None, default=None
        Recommender of users x items; None means ``MFRecommender()``, "auto"
        ``BlendRecommender()``. The weights of a blend are found by the last tenth of the
        interactions, where ``X`` is in memory and has times, unless all users in it are new.
        Searches can set parameters of the recommender as ``estimator__...``.
    user : int or str, default="auto"
        Column of the users: its position, or its name in a DataFrame. "auto" is the only column of
        a DataFrame with a name such as "user", "user_id", "userId", "uid" or "customer_id"; without
        names, the first column.
    item : int or str, default="auto"
        Column of the items. "auto" is a DataFrame's column "item", "item_id", "movieId",
        "product_id", "track_id", "asin" or the like; without names, the second column.
    value : int, str, "auto" or None, default="auto"
        Column of the interactions' values, the entries of the matrix. "auto" is a DataFrame's
        column "value", "weight", "count", "rating", "score" or the like, if there is one; without
        names, the third column, if there is one and users and items are the first two. With None,
        or if no such column is found, every interaction counts as 1. Negative values are
        :ref:`dislikes <dislikes>`. If "auto" uses ratings as weights, or ignores columns that might
        be weights, there is a `UserWarning`, once.
    dislikes_up_to : float, default=None
        Which values are dislikes: those up to this number, such as 2 for ratings from 1 to 5. All
        other values then are likes, and each like or dislike counts as 1.
    dislikes : int or str, default=None
        Column that says which rows are :ref:`dislikes <dislikes>`: of truth values, or of numbers,
        which are the weights of dislikes, 0 for likes. The values of dislikes are not used.
    n_recommendations : int, default=10
        Number of items that ``recommend`` returns, and the k of NDCG in ``score``. That of
        ``estimator`` is used in its early stopping only.
    user_features : DataFrame, default=None
        Features of users: a row for each id, which is the index or a column named as in the
        interactions. Users then have vectors that are sums over their features, see
        :class:`backbones.Features`. It replaces the backbone of an :class:`MFRecommender`; to set
        its ``identity`` and ``normalize``, give the recommender ``backbone=Features(...)`` without
        features. Strings and the categories of pandas and Arrow are one feature for each value,
        lists one for each element, dicts, structs and maps are numbers by name, and numbers are
        used as they are. Missing cells have no features. Dates are refused.
    item_features : DataFrame, default=None
        Features of items, likewise. Ids without interactions become users and items of the model,
        so that new items are recommended. Ids without features cause a `UserWarning`.
    unknown : {"popular", "error", "none"}, default="popular"
        What is answered for users that fit has not seen: neither their id, nor an item of their
        history, nor one of their features. With "popular" they count as users without
        interactions: they get popular items, whose scores are the shares of users that have them,
        and there is one `UserWarning` for each call, which names some of them. With "none" they
        are recommended nothing, without a warning: None with the score -inf in all places. "error"
        raises a ValueError that names them. Items that fit has not seen have one rule: in lists,
        ``candidates``, ``exclude``, ``history`` and ``dislikes``, they are skipped, and where one
        is asked about, it is similar to none and has the score -inf, or raises with "error".
        Values of a context, and features of items, that fit has not seen are ignored, with a
        warning, but with "error".
    context : list of str or int, default=None
        Columns of the table that describe the event, such as the device and the hour. A user is
        then recommended what suits the moment: the vector of a user in a context is the sum of the
        user's and of one for each value of these columns, see :class:`backbones.Context`, which
        replaces the backbone of an :class:`MFRecommender`. Each value is a category, numbers too;
        missing cells have no vector. What a user has, in any context, is not recommended again
        with ``exclude_seen``. ``partial_fit`` adds values that are new; in ``score``, ``recommend``
        and others they are ignored, with a `UserWarning`, but with ``unknown="error"`` all except
        ``score`` raise.

    Attributes
    ----------
    estimator_ : estimator
        The fitted recommender; row and column numbers of its matrix are positions in
        ``user_ids_`` and ``item_ids_``.
    user_ids_ : ndarray of shape (n_users,)
        Ids of the users. Sorted by ``fit``; ids that are new in ``partial_fit`` follow.
    item_ids_ : ndarray of shape (n_items,)
        Ids of the items, likewise. Ids that only have features follow those with interactions.
    user_encoder_, item_encoder_ : DictVectorizer
        Only with ``user_features`` or ``item_features``: the encoders of these tables;
        ``get_feature_names_out()`` returns the names of the features.
    context_values_ : dict of ndarray
        Only with ``context``: the values of each of its columns.
    n_features_in_ : int
        Number of columns seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if ``X`` is a DataFrame whose names are all strings.

    See Also
    --------
    freqfm.recommend : Recommends through pipelines and searches.
    freqfm.model_selection.WarmStartKFold : Folds without unknown users and items.
    freqfm.model_selection.make_ranking_scorer : Other scores than NDCG.

    Notes
    -----
    A default fit takes about 32 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M). The first one also compiles, for about 14.

    Values of repeated interactions are summed, but a pair that is liked and disliked, by
    ``dislikes`` or ``dislikes_up_to``, is disliked; what ``groupby(["user", "item"]).size()``
    returns in pandas is a table, too. Column names are recognised in any case, with or without
    separators; if they are ambiguous, ``fit`` raises. Names that only number the columns, such as
    0, 1, 2 or "column_0", are ignored. Without names, more than ten columns of numbers are taken
    for a matrix of users x items and refused, unless ``user`` and ``item`` are given. Further
    columns, such as times, are for splitters and are not used. After ``fit``, a DataFrame needs
    only the columns that are used, in any order; of an array, those after the used ones may be
    missing. Interactions themselves are not stored, except in ``estimator_``.

    Ids are numbers, strings or other objects that can be hashed and sorted, all of one kind.
    Columns of objects that are all integers or all numbers are converted to integers or floats. Ids
    are returned in the type of ``item_ids_`` or ``user_ids_``; if one is missing, because there was
    nothing more to recommend, the result is an array of objects with None in its place and the
    score -inf.

    Callbacks are called for the epochs of ``estimator_``. A
    :class:`freqfm.callbacks.Checkpoint` stores that recommender:
    ``InteractionRecommender(resume(path))`` continues when it is fitted to the same table.

    Examples
    --------
    >>> from freqfm import InteractionRecommender, MFRecommender
    >>> X = [
    ...     ("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam"), ("bob", "egg"),
    ...     ("eve", "rum"), ("eve", "gin"), ("joe", "rum"), ("joe", "gin"),
    ... ]
    >>> model = InteractionRecommender(MFRecommender(4, random_state=0)).fit(X)
    >>> model.item_ids_
    array(['egg', 'gin', 'jam', 'rum', 'tea'], dtype=object)
    >>> items, scores = model.recommend(["ann", "eve"], n_recommendations=2)
    >>> items.shape
    (2, 2)
    """

    _parameter_constraints = {
        "estimator": [HasMethods(["fit", "recommend"]), StrOptions({"auto"}), None],
        "user": [str, Integral],
        "item": [str, Integral],
        "value": [str, Integral, None],
        "dislikes_up_to": [Interval(Real, 0, None, closed="left"), None],
        "dislikes": [str, Integral, None],
        "n_recommendations": [Interval(Integral, 1, None, closed="left")],
        "user_features": "no_validation",  # see FeatureTable
        "item_features": "no_validation",
        "context": "no_validation",  # see DescriptionsMixin
        "unknown": [StrOptions(set(ANSWERS))],
    }
    # For set_output. TransformerMixin would wrap ``transform`` in a function that needs an X.
    _sklearn_auto_wrap_output_keys = {"transform"}

    estimator: Any = field(default=None, kw_only=False)
    user: int | str = "auto"
    item: int | str = "auto"
    value: int | str | None = "auto"
    dislikes_up_to: float | None = None
    dislikes: int | str | None = None
    n_recommendations: int = 10
    user_features: Any = None
    item_features: Any = None
    unknown: str = "popular"
    context: Any = None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags

    def set_params(self, **params):
        """Set parameters, including those of the recommender.

        ``set_params(estimator__n_components=32)`` also works with ``estimator=None``, which is then
        replaced by ``MFRecommender()``.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object
        """
        if any(name.startswith("estimator__") for name in params):
            params["estimator"] = _named_recommender(params.get("estimator", self.estimator))
        return super().set_params(**params)

    def fit(self, X, y=None, *, X_val=None):
        """Fit the recommender to interactions.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
            An array of any type, a list of tuples, or a pandas, Polars or Arrow DataFrame, with
            columns of users, items and maybe values; parameters say which is which. What is read
            chunk by chunk may be larger than memory: the path of a Parquet file or of a folder of
            them, a pyarrow Dataset, a Polars LazyFrame, a reader, list or iterator of Arrow's
            RecordBatches, or an object with ``__arrow_c_stream__``. A row then takes 12 bytes while
            the matrix is built, 20 with values, 28 if float32 cannot hold these or with dislikes.
        y : object, default=None
            Ignored.
        X_val : array-like or DataFrame of shape (n_held_out, n_columns), default=None
            Held-out interactions, with the columns of ``X``, for a recommender with
            ``early_stopping``, which is scored on them in place of a random part of ``X``:
            later ones, for instance. They are not trained on. Users and items that are not in ``X``
            are left out.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError, TypeError
            If a column does not exist, if names are ambiguous, if ``X`` looks like a matrix, if a
            column of values contains times, if an id or a value is missing, if ids are of several
            kinds, and whatever the recommender raises.
        DivergenceError
            If training produces values that are not finite, with recommenders that detect it. The
            last finite model is kept.
        """
        validate_params(self)
        X = open_parquet(X) if isinstance(X, (str, PathLike)) else as_reader(X)
        refuse_lazy(X_val, "X_val")
        finds_weights = getattr(_named_recommender(self.estimator), "_finds_weights", False)
        if finds_weights and X_val is None and self.context is None and not is_lazy(X):
            table = InteractionTable(X)
            if table.has_times(self.user, self.item):
                X_val = _latest(table, user=self.user, item=self.item)
        return self._train(X, "fit", reset=True, X_val=X_val)

    @_if_estimator_has("partial_fit")
    def partial_fit(self, X, y=None):
        """Train further on interactions; users and items may be new.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
            Interactions, with the columns that ``fit`` used. Ids that are new are appended to
            ``user_ids_`` and ``item_ids_``.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
        """
        validate_params(self)
        return self._train(X, "partial_fit", reset=not hasattr(self, "estimator_"))

    def _train(self, X, method, reset, X_val=None):
        """Number the ids and call a method of the recommender with the matrix.

        The recommender's learned attributes are kept even if training is interrupted.
        """
        with attempt(self) as trial:
            announce(getattr(self.estimator, "verbose", 0), "numbering users and items")
            with release_signals():
                X, queries, held_out = self._numbered(X, reset, X_val)
                if reset:
                    self.estimator_ = self._new_recommender()
                    self._note_values(X)
                elif self.estimator is not None:
                    # Its parameters may have been changed since.
                    given = clone(_named_recommender(self.estimator))
                    self.estimator_.set_params(**given.get_params(deep=False))
                self._pass_features(reset, queries)
                self._grow(X, queries)
                options = {}
                if X_val is not None:
                    if held_out is None:
                        held_out = self._matrix(*self._held_out(X_val, "X_val")[:3])
                    held_out.resize(X.shape)
                    held_out.eliminate_zeros()
                    options["X_val"] = held_out
            recommender = self.estimator_
            n_before = getattr(recommender, "n_iter_", 0)
            try:
                with release_signals(), _callbacks_of(self, recommender):
                    getattr(recommender, method)(X, **options)
            except BaseException as error:
                # Without a count of epochs, only the error shows whether a model was kept.
                counts = hasattr(recommender, "n_iter_")
                diverged = isinstance(error, DivergenceError)
                trial.kept = recommender.n_iter_ > n_before if counts else diverged
                raise
            finally:
                # Only training reads the queries, which are as many as the interactions.
                if queries:
                    recommender.backbone.set_params(**dict.fromkeys(queries))
        return self

    def _note_values(self, X):
        """Store the usual weights of likes and of dislikes, which new users' items get."""
        self._usual_weight, self._usual_dislike = usual_weights(some_values(X.data))

    def _grow(self, X, queries):
        """Resize a matrix: features may name users and items without interactions."""
        X.resize(X.shape[0] if queries else len(self.user_ids_), len(self.item_ids_))

    def _numbered(self, X, reset, X_val):
        """Return the matrix of a table, whose ids are learned.

        With a context its rows are queries. Then the backbone's ``users`` and ``context`` follow,
        by name, and the matrix of ``X_val``, which has the same rows; else a dict without entries
        and None.
        """
        if is_lazy(X):
            if not reset:
                raise TypeError(
                    f"X is a {type(X).__name__}, which only fit reads; give partial_fit "
                    f"interactions in memory, chunk by chunk if need be."
                )
            self._learn_context(X, (), reset)
            return self._read_lazily(X), {}, None
        users, items, values = self._read(X, reset)
        number = self._learn_ids if reset else self._add_ids
        users, items = number("user", users), number("item", items)
        self._learn_context(X, self._places.values(), reset)
        moments = self._moments_of(X, UnknownIds(self.unknown))
        if moments is None:
            return self._matrix(users, items, values), {}, None
        held_out = [np.zeros(0, dtype=np.int64)] * 3
        if X_val is not None:
            *held_out, moments_of_held_out = self._held_out(X_val, "X_val")
            moments = np.concatenate([moments, moments_of_held_out])
        n, users = len(users), np.concatenate([users, held_out[0]])
        rows, first = distinct_queries(users, moments)
        queries = {"users": users[first], "context": self._context_matrix(moments[first])}
        X = self._matrix(rows[:n], items, values, len(first))
        return X, queries, self._matrix(rows[n:], *held_out[1:], len(first))

    def _new_recommender(self):
        if hasattr(self.estimator, "_unfinished"):
            # It comes from a checkpoint, and continues.
            return deepcopy(self.estimator)
        return clone(_named_recommender(self.estimator))

    def recommend(
        self,
        users=None,
        *,
        history=None,
        dislikes=None,
        n_recommendations=None,
        exclude_seen=True,
        candidates=None,
        exclude=None,
        diversity=0.0,
        item_vectors=None,
        user_features=None,
        item_features=None,
        context=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        users : array-like of shape (n_users,) or a single id, default=None
            Ids of users; None is all of ``user_ids_``, in their order. The parameter ``unknown``
            says what those get that fit has not seen.
        history : list of ids, or list of such lists, default=None
            Items of users who are not in the model: a list of ids for one user, or a list of such
            lists for several. They are folded in, and do not change the model. Each item has the
            median weight of the interactions in ``fit``; items that occur twice count twice. Items
            that fit has not seen are skipped; a user who has only such items is ``unknown``, one
            without items is not.
        dislikes : list of ids, or list of such lists, default=None
            Items that the users of ``history`` :ref:`dislike <dislikes>`, likewise. Each has the
            median weight of the dislikes in ``fit``, or else of the likes. An item in both lists of
            a user is a dislike.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        exclude_seen : bool, default=True
            Whether to exclude the items that a user had or disliked in fit, or that are in
            ``history`` or ``dislikes``.
        candidates : array-like of shape (n_candidates,), or list of n_users such lists, \
                default=None
            Ids of the only items to recommend, to all users, or to each user in the order of
            ``users``, ``history`` or ``user_features``. Those that fit has not seen, such as new
            products in stock, are skipped, and None.
        exclude : array-like of shape (n_excluded,), or list of n_users such lists, default=None
            Ids of items to exclude, as for ``candidates``.
        diversity : float, default=0.0
            From 0 to 1: how much the items of a list are to differ. Above 0 they are chosen from
            the best five times ``n_recommendations``, at least 100, as
            :func:`freqfm.reranking.diversify` does. Needs a recommender that takes it, as those of
            this package do.
        item_vectors : DataFrame, or {array-like, sparse matrix} of shape (n_items, n_dimensions), \
                default=None
            Features by which items differ, such as genres: by id, encoded as ``item_features`` of
            the constructor are, at each call; or a row for each of ``item_ids_``. None takes the
            recommender's own vectors. Without ``diversity`` they are not used.
        user_features : DataFrame, default=None
            Features of users that are not in the model, by id, in place of ``users``. Needs a model
            with features of users. A user who has only features that fit has not seen is unknown.
        item_features : DataFrame, default=None
            Features of items that are not in the model, by id; these items may be recommended too.
        context : DataFrame, dict or array-like of shape (n_users, n_context_columns), default=None
            The context of each user, or one row for all: a table with the columns of the
            parameter ``context``, by name or in this order, or a dict of values by column, or a
            list of dicts. None stands for the mean of the contexts in ``fit``. Values that fit has
            not seen are ignored, with a `UserWarning`.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations)
            Ids of items, best first, or with ``diversity`` as they were chosen; None where there is
            nothing more to recommend. One-dimensional for a single user.
        scores : ndarray of shape (n_users, n_recommendations)
            Scores of the items, as the recommender defines them; -inf for None.

        Raises
        ------
        ValueError, TypeError
            If ids are of another kind than those of fit, two of ``users``, ``history`` and
            ``user_features`` are given, there is not one list of ``candidates``, ``exclude`` or
            ``dislikes`` for each user, ``dislikes`` are given without ``history``, features are of
            ids that the model knows, or fit has not seen a user, with ``unknown="error"``.

        Examples
        --------
        >>> from freqfm import InteractionRecommender, MFRecommender
        >>> X = [("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam"), ("eve", "gin")]
        >>> model = InteractionRecommender(MFRecommender(4, random_state=0)).fit(X)
        >>> items, scores = model.recommend(history=["tea"], n_recommendations=1)
        >>> items
        array(['jam'], dtype=object)
        """
        check_is_fitted(self)
        k = self.n_recommendations if n_recommendations is None else n_recommendations
        options = {"n_recommendations": k, "exclude_seen": check_flag("exclude_seen", exclude_seen)}
        named = {"users": users, "history": history, "user_features": user_features}
        named = [name for name, value in named.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"recommend takes either {' or '.join(named)}; both were given.")
        users, candidates, exclude = map(as_list, (users, candidates, exclude))
        history, dislikes = _lists_of_history(history, dislikes)
        model, unknown = self, UnknownIds(self.unknown)
        if item_features is not None:
            model, options["item_features"] = self._with_new_items(item_features, unknown)
        if diversity != 0 or item_vectors is not None:
            options["diversity"] = diversity
            options["item_vectors"] = model._item_vectors(item_vectors)
        chosen = {"candidates": candidates, "exclude": exclude}
        if user_features is not None:
            _, query, is_unknown = self._encoded("user", user_features, unknown)
            options["user_features"] = query
            options |= model._chosen_items(chosen, query.shape[0])
            many = True
        elif history is not None:
            query, is_unknown = model._given_histories(history, dislikes, unknown)
            options |= model._chosen_items(chosen, query.shape[0])
            n_known = len(self.item_ids_)
            if options["exclude_seen"] and query.shape[1] > n_known:
                options["exclude"] = _and_new_items(options.get("exclude"), query, n_known)
            options["X"] = query[:, :n_known]
            many = _is_nested("history", history)
        else:
            return model._recommend_to(users, chosen, context, options, unknown)
        if context is not None:
            options["context"] = self._given_context(context, unknown, query.shape[0])
        found, scores = unknown.emptied(*self.estimator_.recommend(**options), is_unknown)
        unknown.warn()
        return _match_query(many, model._named("item", found), scores)

    def _recommend_to(self, users, chosen, context, options, unknown):
        """Recommend to users by their ids, or to all."""
        if users is None:
            codes = np.arange(len(self.user_ids_))
        else:
            codes = self._find("user", users, "users", unknown)
        n, n_items = len(codes), len(self.item_ids_)
        shape = n, check_recommendations(options["n_recommendations"], n, n_items)
        items = np.full(shape, -1)
        scores = np.full(shape, -np.inf, dtype=np.float32)
        chosen = self._chosen_items(chosen, len(codes))
        if context is not None:
            chosen["context"] = self._given_context(context, unknown, len(codes))
        unknown.warn()
        for known, rows in (True, np.flatnonzero(codes >= 0)), (False, np.flatnonzero(codes < 0)):
            if not len(rows) or (unknown.are_empty and not known):
                continue
            chosen_here = {
                name: items_of[rows] if sparse.issparse(items_of) else items_of
                for name, items_of in chosen.items()
            }
            # All unknown users have the same, empty history.
            query = {"users": codes[rows]}
            if not known:
                n_new = options["item_features"].shape[0] if "item_features" in options else 0
                shape = len(rows), len(self.item_ids_) - n_new
                query = {"X": sparse.csr_array(shape, dtype=np.float32)}
            items[rows], scores[rows] = self.estimator_.recommend(**query, **chosen_here, **options)
        many = users is None or _is_list(users)
        return _match_query(many, self._named("item", items), scores)

    def _users_and_items(self, users):
        return self.user_ids_ if users is None else as_ids(users, "users"), self.item_ids_

    def _chosen_items(self, chosen, n_users):
        """Return the recommender's options for items to recommend or to exclude, by ids or None.

        Those for all users are vectors, those for each user matrices.
        """
        found = {}
        for name, ids in chosen.items():
            if ids is None:
                continue
            if not _is_nested(name, ids):
                found[name] = self._known("item", ids, name)
            elif len(ids) != n_users:
                raise ValueError(
                    f"{name} holds {len(ids)} lists of ids, but there are {n_users} users; give "
                    f"one list for each of them, or one list of ids for all."
                )
            else:
                found[name], _ = self._histories(name, list(ids))
        return found

    def _histories(self, name, lists, unknown=None):
        """Return lists of ids of items, or a single one, as rows of a matrix.

        Also returns which lists hold only ids that are unknown; ``UnknownIds`` notes these.
        """
        if not _is_list(lists):
            raise TypeError(
                f"{name}={shown(lists)} must be a list of ids, or a list of such lists."
            )
        if _are_rows_of_a_matrix(lists, len(self.item_ids_)):
            raise ValueError(
                f"{name} of shape {lists.shape} looks like a matrix of users x items; give the ids "
                f"of each user's items: [model.item_ids_[row != 0] for row in {name}]."
            )
        lists = [list(as_list(ids)) for ids in (lists if _is_nested(name, lists) else [lists])]
        if name in ("candidates", "exclude"):
            lists = list(map(_without_none, lists))
        items = [one for ids in lists for one in ids]
        codes = self._find("item", items, name)
        rows = np.repeat(np.arange(len(lists)), [len(ids) for ids in lists])
        known = codes >= 0
        usual = {"history": "_usual_weight", "dislikes": "_usual_dislike"}.get(name)
        weight = 1.0 if usual is None else getattr(self, usual, 1.0)
        weights = np.full(np.count_nonzero(known), weight, dtype=np.float32)
        shape = len(lists), len(self.item_ids_)
        found = sparse.csr_array((weights, (rows[known], codes[known])), shape=shape)
        is_unknown = np.zeros(len(lists), dtype=bool)
        is_unknown[rows[~known]] = True
        is_unknown &= np.diff(found.indptr) == 0
        if unknown is not None:
            strange = np.flatnonzero(is_unknown[rows])
            unknown.note("user", name, [items[k] for k in strange])
        return found, is_unknown

    def _given_histories(self, history, dislikes, unknown):
        """Return ``_histories`` of likes and dislikes; the latter are negative."""
        query, is_unknown = self._histories("history", history, unknown)
        if dislikes is None:
            return query, is_unknown
        disliked, _ = self._histories("dislikes", dislikes)
        nested = [_is_nested(*pair) for pair in (("history", history), ("dislikes", dislikes))]
        if nested[0] != nested[1] or disliked.shape != query.shape:
            found = [
                f"{matrix.shape[0]} lists" if many else "ids"
                for matrix, many in zip((query, disliked), nested, strict=True)
            ]
            raise ValueError(
                f"history holds {found[0]}, but dislikes {found[1]}; give both as ids of one "
                f"user's items, or both as one such list for each user, with [] for none."
            )
        return with_dislikes(canonical_csr(query), canonical_csr(disliked)), is_unknown

    def _known(self, kind, ids, name):
        """Return the numbers of the users or items that the model knows."""
        codes = self._find(kind, _without_none(ids), name)
        return codes[codes >= 0]

    def predict(self, X):
        """Return the scores of interactions.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
            With the columns of users and items that ``fit`` used.

        Returns
        -------
        scores : ndarray of shape (n_interactions,)
            One score per row, comparable within a user; see :meth:`predict_pairs`.
        """
        check_is_fitted(self)
        users, items = self._read(X, reset=False, roles=("user", "item"))
        unknown = UnknownIds(self.unknown)
        moments = self._moments_of(X, unknown)
        context = None if moments is None else self._context_matrix(moments)
        return self._predict_pairs(users, items, context, unknown)

    def predict_pairs(self, users, items, *, context=None):
        """Return the scores of pairs of a user and an item.

        Parameters
        ----------
        users : array-like of shape (n_pairs,)
            Ids of users.
        items : array-like of shape (n_pairs,)
            Ids of items.
        context : DataFrame, dict or array-like of shape (n_pairs, n_context_columns), default=None
            The context of each pair, or one for all, as in :meth:`recommend`.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            -inf for an item that fit has not seen. For a user that it has not seen, with
            ``unknown="popular"``, what the recommender scores the item without history: the
            share of users that have it; with "none" -inf.

        Raises
        ------
        ValueError
            If the lengths differ; or fit has not seen a user or an item, with ``unknown="error"``.
        """
        check_is_fitted(self)
        unknown, users = UnknownIds(self.unknown), as_ids(users, "users")
        if context is not None:
            context = self._given_context(context, unknown, len(users))
        return self._predict_pairs(users, items, context, unknown)

    def _predict_pairs(self, users, items, context, unknown):
        """Return the scores of pairs in contexts, a matrix of features or None."""
        users = self._find("user", users, "users", unknown)
        items = self._find("item", items, "items", unknown)
        if len(users) != len(items):
            raise ValueError(
                f"users has {len(users)} ids and items has {len(items)}; a pair takes one of each."
            )
        unknown.warn()
        known = (users >= 0) & (items >= 0)
        options = {} if context is None else {"context": context[known]}
        if known.all():
            return self.estimator_.predict_pairs(users, items, **options)
        known_scores = np.zeros(0, dtype=np.float32)
        if known.any():
            known_scores = self.estimator_.predict_pairs(users[known], items[known], **options)
        scores = np.full(len(users), -np.inf, dtype=known_scores.dtype)
        scores[known] = known_scores
        popular = (users < 0) & (items >= 0)
        if popular.any() and not unknown.are_empty:
            scores[popular] = self._scores_without_history(items[popular])
        return scores

    def _scores_without_history(self, items):
        """Return the scores of items, by their codes, for a user who has none."""
        some, places = np.unique(items, return_inverse=True)
        (found,), (scores,) = self.estimator_.recommend(
            sparse.csr_array((1, len(self.item_ids_)), dtype=np.float32),
            n_recommendations=len(some),
            candidates=some,
        )
        by_item = np.full(len(some), -np.inf, dtype=np.float32)
        by_item[np.searchsorted(some, found[found >= 0])] = scores[found >= 0]
        return by_item[places]

    def similar_items(self, items, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the items most similar to given ones.

        Parameters
        ----------
        items : array-like of shape (n_queries,) or a single id
            Ids of items.
        n_recommendations : int, default=10
            How many for each.
        candidates : array-like, default=None
            Ids of the only items that may be returned; those that fit has not seen are skipped.
        exclude : array-like, default=None
            Ids of items that may not be returned, likewise.

        Returns
        -------
        ids : ndarray of shape (n_queries, n_recommendations)
            Ids of items, most similar first; None where there are no more, and for an item that
            fit has not seen. One-dimensional for a single id.
        scores : ndarray of shape (n_queries, n_recommendations)
            Their similarity, as the recommender defines it.
        """
        return self._similar("item", items, n_recommendations, candidates, exclude)

    def similar_users(self, users, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the users most similar to given ones.

        Parameters
        ----------
        users : array-like of shape (n_queries,) or a single id
            Ids of users.
        n_recommendations : int, default=10
            How many for each.
        candidates : array-like, default=None
            Ids of the only users that may be returned; those that fit has not seen are skipped.
        exclude : array-like, default=None
            Ids of users that may not be returned, likewise.

        Returns
        -------
        ids : ndarray of shape (n_queries, n_recommendations)
            Ids of users, most similar first; None where there are no more, and for a user whom
            fit has not seen. One-dimensional for a single id.
        scores : ndarray of shape (n_queries, n_recommendations)
            Their similarity, as the recommender defines it.
        """
        return self._similar("user", users, n_recommendations, candidates, exclude)

    def _similar(self, kind, ids, n_recommendations, candidates, exclude):
        check_is_fitted(self)
        ids, unknown = as_list(ids), UnknownIds(self.unknown)
        codes = self._find(kind, ids, f"{kind}s", unknown)
        given = {"candidates": as_list(candidates), "exclude": as_list(exclude)}
        lists = {n: self._known(kind, ids, n) for n, ids in given.items() if ids is not None}
        unknown.warn("are similar to none")
        n_ids, known = len(getattr(self, f"{kind}_ids_")), codes >= 0
        k = check_recommendations(n_recommendations, len(codes), n_ids)
        search = getattr(self.estimator_, f"similar_{kind}s")
        found = np.full((len(codes), k), -1)
        scores = np.full(found.shape, -np.inf, dtype=np.float32)
        if known.any():
            found[known], scores[known] = search(codes[known], k, **lists)
        return _match_query(_is_list(ids), self._named(kind, found), scores)

    @_if_estimator_has("_embed")
    def transform(self, X=None, *, history=None, dislikes=None):
        """Return the embeddings of the users of interactions, or of users by their items.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns), default=None
            With the column of users that ``fit`` used; an array has all columns of ``fit``. For
            every row the user's embedding is looked up; it depends on the user's interactions in
            fit, not on the other rows. That of a user whom fit has not seen is zeros.
        history : list of ids, or list of n_users such lists, default=None
            Items of users to be folded in, as in ``recommend``. Give either ``X`` or ``history``.
        dislikes : list of ids, or list of n_users such lists, default=None
            Items that the users of ``history`` dislike, likewise.

        Returns
        -------
        embeddings : ndarray of shape (n_interactions, d) or (n_users, d), float32
            One-dimensional for a ``history`` of one user. A DataFrame after ``set_output``.

        Raises
        ------
        ValueError
            If both or neither of ``X`` and ``history`` are given; if ``dislikes`` are given without
            ``history``; or fit has not seen a user, with ``unknown="error"``.

        See Also
        --------
        export_vectors : Vectors of all users and items.
        """
        check_is_fitted(self)
        if (X is None) == (history is None):
            raise ValueError(
                "transform takes either X, interactions, or history, items of users; "
                + ("neither was given." if X is None else "both were given.")
            )
        history, dislikes = _lists_of_history(history, dislikes)
        unknown = UnknownIds(self.unknown)
        if history is not None:
            query, _ = self._given_histories(history, dislikes, unknown)
            unknown.warn("have embeddings of zeros")
            # The recommender may return DataFrames, too.
            embeddings = np.asarray(self.estimator_.transform(query))
            if not _is_nested("history", history):
                return embeddings[0]
            return wrap_data_with_container("transform", embeddings, None, self)
        (users,) = self._read(X, reset=False, roles=["user"])
        codes = self._find("user", users, "X's column of users", unknown)
        unknown.warn("have embeddings of zeros")
        some, rows = np.unique(codes, return_inverse=True)
        embedded = self.estimator_._embed(some[some >= 0])
        if some.min(initial=0) < 0:
            # The code of unknown users, -1, is the first one.
            zeros = np.zeros_like(embedded, shape=(1, embedded.shape[1]))
            embedded = np.concatenate([zeros, embedded])
        embeddings = embedded[rows]
        return wrap_data_with_container("transform", embeddings, X, self)

    @_if_estimator_has("_embed")
    def fit_transform(self, X, y=None):
        """Fit to interactions and return the embeddings of their users.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
        y : object, default=None
            Ignored.

        Returns
        -------
        embeddings : ndarray of shape (n_interactions, d), float32
            See :meth:`transform`.
        """
        return self.fit(X).transform(X)

    @property
    def _n_features_out(self):
        return self.estimator_._n_features_out

    @_if_estimator_has("_embed")
    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns of embeddings.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Only used to check its length against that of ``feature_names_in_``.

        Returns
        -------
        names : ndarray of shape (d,), dtype object
            "interactionrecommender0", "interactionrecommender1" and so on.
        """
        return super().get_feature_names_out(input_features)

    @_if_estimator_has("_embed")
    def set_output(self, *, transform=None):
        """Set the type of what ``transform`` and ``fit_transform`` return.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, default=None
            "default" is an array; DataFrames have the index of ``X``. None changes nothing. The
            embedding of one ``history`` is always an array.

        Returns
        -------
        self : object
        """
        return SetOutputMixin.set_output(self, transform=transform)

    def without_optimizer_state(self):
        """Return a copy of the model that recommends the same, but cannot be trained further.

        Its file is smaller: by the optimizer's arrays. The copy shares the arrays of this model. If
        the recommender has no optimizer, as :class:`ALSRecommender`, there is nothing to leave out.

        Returns
        -------
        model : InteractionRecommender

        See Also
        --------
        freqfm.MFRecommender.without_optimizer_state : What the copy cannot do.
        """
        check_is_fitted(self)
        model = copy(self)
        if hasattr(self.estimator_, "without_optimizer_state"):
            model.estimator_ = self.estimator_.without_optimizer_state()
        return model

    @_if_estimator_has("for_serving")
    @described_like(ServingMixin.for_serving)
    def for_serving(self, *, dtype="float32"):
        """Return a copy of the model that recommends, for files and services.

        It is without an optimizer's state, and shares the arrays of this model.

        Parameters
        ----------
        dtype : {"float32", "float16"}, default="float32"
        """
        check_is_fitted(self)
        model = copy(self)
        model.estimator_ = self.estimator_.for_serving(dtype=dtype)
        return model

    @_if_estimator_has("export_vectors")
    def export_vectors(self):
        """Return vectors of users and items whose dot products are the scores of ``recommend``.

        Returns
        -------
        users : ndarray of shape (n_users, d), float32
            In the order of ``user_ids_``.
        items : ndarray of shape (n_items, d), float32
            In the order of ``item_ids_``.

        See Also
        --------
        freqfm.MFRecommender.export_vectors : What they are made of.
        """
        check_is_fitted(self)
        return self.estimator_.export_vectors()

    @_if_estimator_has("explain")
    def explain(self, user, item, *, context=None):
        """Return how much each item of a user's history contributes to a score.

        Parameters
        ----------
        user : object
            Id of a user.
        item : object
            Id of an item.
        context : DataFrame, dict or array-like of shape (1, n_context_columns), default=None
            The user's context, as in :meth:`recommend`.

        Returns
        -------
        explanation : Bunch
            As the recommender returns it, with the ids of ``history``. With a context also
            ``context``, a dict of the contributions of its values, such as "hour=8"; without the
            argument, of those of the mean context. If fit has not seen the user
            or the item, there is no history, and the score, see :meth:`predict_pairs`, is all rest.
        """
        check_is_fitted(self)
        unknown = UnknownIds(self.unknown)
        (user_code,) = self._find("user", [user], "user", unknown)
        (item_code,) = self._find("item", [item], "item", unknown)
        options = {}
        if context is not None:
            options["context"] = self._given_context(context, unknown, 1)
        unknown.warn()
        if user_code < 0 or item_code < 0:
            score = -np.inf
            if item_code >= 0 and not unknown.are_empty:
                score = float(self._scores_without_history(np.array([item_code]))[0])
            return Bunch(
                history=self.item_ids_[:0], contributions=np.zeros(0), rest=score, score=score
            )
        explanation = Bunch(**self.estimator_.explain(int(user_code), int(item_code), **options))
        explanation.history = self._named("item", explanation.history)
        if "context_contributions" in explanation:
            shares = zip(
                self._context_names, explanation.pop("context_contributions").tolist(), strict=True
            )
            explanation.context = {name: share for name, share in shares if share}
        return explanation

    def score(self, X, y=None):
        """Return the mean NDCG, at ``n_recommendations``, measured on held-out interactions.

        Every user of ``X`` that fit has seen is recommended items that the user did not have in
        fit; the user's items in ``X`` are relevant. With ``context``, whose columns ``X`` then has,
        so is every user in each context. Users and items that fit has not seen are left out, and
        values of the context are ignored, with a `UserWarning`, whatever ``unknown`` is, so use
        splits with few of them. Interactions that fit has already seen, if there are any in ``X``,
        are relevant too but never recommended, as another `UserWarning` says;
        :func:`~freqfm.model_selection.make_ranking_scorer` has ``exclude_seen=False``.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
            Held-out interactions, with the columns of users and items that ``fit`` used.
        y : object, default=None
            Ignored.

        Returns
        -------
        ndcg : float

        Raises
        ------
        ValueError
            If ``X`` has no interaction of a known user with a known item.
        """
        k = check_count("n_recommendations", self.n_recommendations)
        relevant, ranked, seen = self._rank_held_out(X, k)
        warn_of_seen(split_signs(relevant)[0], seen)
        return float(ndcg_at_k(relevant, ranked, k))

    def _rank_held_out(self, X, k, **options):
        """Return relevant items, rankings and seen items of the users in held-out interactions.

        The latter are None if they are known to the recommender alone.
        """
        queries, relevant = self._find_held_out(X)
        ranked, _ = self.estimator_.recommend(**queries, n_recommendations=k, **options)
        return relevant, ranked, seen_by(self.estimator_, queries["users"])

    def _find_held_out(self, X):
        """Return the queries of held-out interactions, as the recommender takes them, and items.

        A query is a user, or a user in a context.
        """
        check_is_fitted(self)
        users, items, values, moments = self._held_out(X, "X")
        if moments is None:
            present, rows = np.unique(users, return_inverse=True)
        else:
            rows, first = distinct_queries(users, moments)
            present = users[first]
        relevant = self._matrix(rows, items, values, len(present))
        relevant.eliminate_zeros()
        some = np.diff(relevant.indptr) > 0
        queries = {"users": present[some]}
        if moments is not None:
            queries["context"] = self._context_matrix(moments[first[some]])
        return queries, relevant[some]

    def _held_out(self, X, name):
        """Return users, items, values and moments of held-out interactions of known ones."""
        users, items, values = self._read(X, reset=False, optional=["value", "dislikes"])
        unknown = UnknownIds("none")
        moments = self._moments_of(X, unknown)
        unknown.warn()
        users = self._find("user", users, f"{name}'s column of users")
        items = self._find("item", items, f"{name}'s column of items")
        known = (users >= 0) & (items >= 0)
        if not known.any():
            raise ValueError(
                f"{name} holds {len(users)} interaction(s), but none of a user and an item that "
                f"fit has both seen; split interactions with WarmStartKFold, for instance."
            )
        moments = None if moments is None else moments[known]
        return users[known], items[known], values[known], moments


def _named_recommender(estimator):
    """Return the recommender that a value of the parameter ``estimator`` stands for."""
    if is_auto(estimator):
        from freqfm.estimators.recommenders.blend import BlendRecommender

        return BlendRecommender()
    if estimator is None:
        from freqfm.estimators.recommenders.mf import MFRecommender

        return MFRecommender()
    return estimator


def _latest(table, **columns):
    """Return the last tenth of a table, by which a blend is chosen; None if it tells nothing.

    Pairs that occur before too are not among them: the members would know these.
    """
    splitter = GlobalTimeSplit(test_fraction=0.1, drop_cold=False, **columns)
    try:
        before, latest = next(splitter.split(table.given))
    except ValueError:  # most share a time
        return None
    users = splitter._codes(table)[0][0]
    # In a log of visits all users may be new.
    return table.take(latest) if np.isin(users[latest], users[before]).any() else None


def some_values(values, first=0, n_all=None):
    """Return values at equal distances, half a million at most; the first has this number."""
    step = max(1, (len(values) if n_all is None else n_all) >> 18)
    return values[-first % step :: step]


def usual_weights(values):
    """Return the medians of values above zero and of the sizes of those below."""
    likes, dislikes = values[values > 0], -values[values < 0]
    weight = float(np.median(likes)) if len(likes) else 1.0
    return weight, float(np.median(dislikes)) if len(dislikes) else weight


def _lists_of_history(history, dislikes):
    """Return the arguments of a new user's items; raise if dislikes are given alone."""
    if dislikes is not None and history is None:
        raise ValueError(
            "dislikes belong to new users, but history was not given; give history=[] if they like "
            "nothing yet. Dislikes of users of the model are learned in fit and partial_fit; "
            "exclude= leaves items out of their lists."
        )
    return as_list(history), as_list(dislikes)


def _and_new_items(exclude, histories, n_known):
    """Return exclusions of each user with the items of histories that are not part of the model."""
    seen = abs(histories)
    seen.data[seen.indices < n_known] = 0
    seen.eliminate_zeros()
    if exclude is None:
        return seen
    if not sparse.issparse(exclude):
        n_users = seen.shape[0]
        pairs = np.repeat(np.arange(n_users), len(exclude)), np.tile(exclude, n_users)
        exclude = sparse.csr_array((np.ones(len(pairs[0]), np.float32), pairs), shape=seen.shape)
    return exclude + seen


def _match_query(many, ids, scores):
    """Return all rows, or the only row for a single query."""
    return (ids, scores) if many else (ids[0], scores[0])


def _is_list(value):
    return isinstance(value, (list, tuple, Set)) or np.ndim(value) > 0


def _is_nested(name, lists):
    """Return whether these are lists of ids, one for each user, rather than ids."""
    if is_frame(lists) or sparse.issparse(lists):
        raise TypeError(
            f"{name} is a {type(lists).__name__}; give a list of ids, or a list of such lists."
        )
    if not _is_list(lists):
        return False
    if isinstance(lists, np.ndarray) and lists.dtype.kind != "O":
        return lists.ndim > 1
    types = set(map(type, lists))
    # NumPy takes long to find that ids are not sequences.
    plain = {t for t in types if issubclass(t, (str, bytes, Number)) or hasattr(t, "as_py")}
    if types <= plain or types <= {list, tuple}:
        return not types <= plain
    nested = [type(one) not in plain and _is_list(one) for one in lists]
    if any(nested) and not all(nested):
        raise ValueError(f"{name} holds ids beside lists of ids; give either, or [[...], [...]].")
    return any(nested)


def _are_rows_of_a_matrix(lists, n_items):
    """Return whether lists of ids have an entry for each item, and repeat some, as zeros do."""
    if not isinstance(lists, np.ndarray) or lists.shape[1:] != (n_items,):
        return False
    return lists.dtype.kind in "biuf" and bool((np.diff(np.sort(lists)) == 0).any())


def _without_none(ids):
    """Return ids without None, which ``recommend`` returns for missing items."""
    is_vector = isinstance(ids, (list, tuple, Set)) or getattr(ids, "dtype", "") == "O"
    return [one for one in ids if one is not None] if is_vector else ids


@contextmanager
def _callbacks_of(estimator, recommender):
    """Let a recommender report to the callbacks of the estimator that wraps it.

    Callbacks see both as one: the recommender's tasks replace the estimator's in those of a search.
    """
    names = vars(recommender).keys() & set(CALLBACK_ATTRIBUTES)
    before = {name: vars(recommender)[name] for name in names}
    callbacks = callbacks_of(estimator)
    if callbacks:
        if not hasattr(recommender, "set_callbacks"):
            raise TypeError(
                f"{type(recommender).__name__} does not support callbacks; remove them with "
                f"set_callbacks(), or use another recommender."
            )
        recommender.set_callbacks(*callbacks_of(recommender), *callbacks)
    if CALL_OF_SEARCH in vars(estimator):
        setattr(recommender, CALL_OF_SEARCH, getattr(estimator, CALL_OF_SEARCH))
    try:
        yield
    finally:
        for name in CALLBACK_ATTRIBUTES:
            vars(recommender).pop(name, None)
        vars(recommender).update(before)
