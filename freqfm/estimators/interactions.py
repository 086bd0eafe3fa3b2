"""InteractionRecommender: recommenders for tables of (user, item, value) with ids of any kind."""

from numbers import Integral

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import Bunch
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from freqfm._ids import ids_of
from freqfm.estimators.interaction_encoding import InteractionEncodingMixin
from freqfm.exceptions import DivergenceError
from freqfm.metrics import ndcg_at_k

__all__ = ["InteractionRecommender"]


def _can_partial_fit(model):
    return model.estimator is None or hasattr(model.estimator, "partial_fit")


class InteractionRecommender(InteractionEncodingMixin, MetaEstimatorMixin, BaseEstimator):
    """Recommender for a table of interactions, whose users and items have ids of any kind.

    Recommenders such as :class:`MFRecommender` take a matrix of users x items. This one takes the
    table that the matrix comes from, one interaction a row: it numbers users and items, builds the
    matrix, fits the recommender, and answers in ids. As a row is an interaction and not a
    user, ``cross_val_score`` and ``GridSearchCV`` hold out interactions of users who stay known;
    :mod:`freqfm.model_selection` has the splitters.

    Parameters
    ----------
    estimator : estimator, default=None
        Recommender of users x items; None is ``MFRecommender()``. Its parameters are searched as
        ``estimator__...``, for which it must be given: ``InteractionRecommender(MFRecommender())``.
    user : int or str, default="auto"
        Column of the users: its place, or its name in a frame. "auto" is the only column of a
        frame that is called "user", "user_id", "userId", "uid", "customer_id" or the like; without
        names, the first column.
    item : int or str, default="auto"
        Column of the items. "auto" is a frame's column "item", "item_id", "movieId", "product_id",
        "track_id", "asin" or the like; without names, the second column.
    value : int, str, "auto" or None, default="auto"
        Column of the interactions' values, the entries of the matrix. "auto" is a frame's column
        "value", "weight", "count", "rating", "score" or the like, if there is one; without names,
        the third column, if there is one and users and items are the first two. None ignores
        values: every interaction counts 1, as it does where no such column is found. A
        `UserWarning`, once, tells if "auto" takes ratings for weights, or leaves columns out that
        might be weights.
    k : int, default=10
        Length of the rankings that ``score`` looks at.

    Attributes
    ----------
    estimator_ : estimator
        The fitted recommender; row and column numbers of its matrix are places in
        ``user_ids_`` and ``item_ids_``.
    user_ids_ : ndarray of shape (n_users,)
        Ids of the users. Sorted by ``fit``; those that are new to ``partial_fit`` follow.
    item_ids_ : ndarray of shape (n_items,)
        Ids of the items, likewise.
    n_features_in_ : int
        Number of columns seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if ``X`` is a frame whose names are all strings.

    See Also
    --------
    freqfm.recommend : Recommends through pipelines and searches.
    freqfm.model_selection.WarmStartKFold : Folds without unknown users and items.
    freqfm.model_selection.make_ranking_scorer : Other scores than NDCG.

    Notes
    -----
    Values of repeated interactions add up. Names of columns count in any case, with or without
    separators; where they leave open which column is meant, ``fit`` raises. Names that only number
    the columns, such as 0, 1, 2 or "column_0", count as none. Further columns, such as times, are
    there for splitters and are not looked at. Interactions themselves are not kept, except for what
    ``estimator_`` keeps.

    Ids are numbers, strings or other objects that can be hashed and sorted, all of one kind.
    Columns of objects that are all integers or all numbers become integers or floats. Ids are
    returned in the type of ``item_ids_`` or ``user_ids_``; only where one is missing, because there
    was nothing more to recommend, an array of objects holds None in its place, with the score
    -inf. pandas, Polars and Arrow frames are read through narwhals
    (``pip install 'freqfm[frames]'``).

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

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "recommend"]), None],
        "user": [str, Integral],
        "item": [str, Integral],
        "value": [str, Integral, None],
        "k": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, estimator=None, *, user="auto", item="auto", value="auto", k=10):
        self.estimator = estimator
        self.user = user
        self.item = item
        self.value = value
        self.k = k

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def fit(self, X, y=None):
        """Fit the recommender to interactions.

        Parameters
        ----------
        X : array-like or frame of shape (n_interactions, n_columns)
            An array of any type, a list of tuples, or a pandas, Polars or Arrow frame. Columns of
            users, items and maybe values; see the parameters for which is which.
        y : object
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError, TypeError
            If a column is not there, if names leave open which one is meant, if times are where
            values are expected, if an id or a value is missing, if ids are of several kinds, and
            whatever the recommender raises.
        DivergenceError
            If training stops being finite, with recommenders that tell. The last finite
            model is kept.
        """
        self._validate_params()
        return self._fit(X, "fit")

    @available_if(_can_partial_fit)
    def partial_fit(self, X, y=None):
        """Train further on interactions, of which users and items may be new.

        Parameters
        ----------
        X : array-like or frame of shape (n_interactions, n_columns)
            Interactions, with the columns of ``fit``. Ids that are new are appended to
            ``user_ids_`` and ``item_ids_``.
        y : object
            Ignored.

        Returns
        -------
        self : object
        """
        self._validate_params()
        if not hasattr(self, "estimator_"):
            return self._fit(X, "partial_fit")
        before = self.__dict__.copy()
        try:
            users, items, values = self._read(X, reset=False)
            users = self._add_ids("user", users)
            items = self._add_ids("item", items)
            self.estimator_.partial_fit(self._matrix(users, items, values))
        except (DivergenceError, KeyboardInterrupt):
            raise  # tables have grown, and hold a usable model
        except BaseException:
            self.__dict__ = before
            raise
        return self

    def _fit(self, X, method):
        before = self.__dict__.copy()
        try:
            users, items, values = self._read(X, reset=True)
            users = self._learn_ids("user", users)
            items = self._learn_ids("item", items)
            self.estimator_ = self._base()
            getattr(self.estimator_, method)(self._matrix(users, items, values))
        except DivergenceError:
            raise
        except BaseException:
            # A call that is refused leaves the model as it was.
            self.__dict__ = before
            raise
        return self

    def _base(self):
        if self.estimator is not None:
            return clone(self.estimator)
        from freqfm.estimators.mf import MFRecommender

        return MFRecommender()

    def recommend(
        self,
        users=None,
        *,
        n_recommendations=10,
        exclude_seen=True,
        candidates=None,
        exclude=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        users : array-like of shape (n_users,) or a single id, default=None
            Ids of users; None is all of ``user_ids_``, in their order. Users that fit has not seen
            get what the recommender gives to an empty history.
        n_recommendations : int, default=10
            How many items for each user.
        exclude_seen : bool, default=True
            Whether items that fit has seen a user with are left out.
        candidates : array-like of shape (n_candidates,), default=None
            Ids of the only items to recommend; those that fit has not seen are passed over.
        exclude : array-like of shape (n_excluded,), default=None
            Ids of items not to recommend, to any of the users.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations)
            Ids of items, best first; None where there is nothing more to recommend.
            One-dimensional for a single user.
        scores : ndarray of shape (n_users, n_recommendations)
            Scores of the items, as the recommender defines them; -inf for None.

        Raises
        ------
        ValueError, TypeError
            If ids are of another kind than those of fit, or no candidate is known.
        """
        check_is_fitted(self)
        _check_n("n_recommendations", n_recommendations)
        if users is None:
            codes = np.arange(len(self.user_ids_))
        else:
            codes = self._find("user", users, "users", unknown="-1")
        options = {"n_recommendations": n_recommendations, "exclude_seen": exclude_seen}
        if candidates is not None:
            options["candidates"] = self._known_items("candidates", candidates)
            if not len(options["candidates"]):
                raise ValueError(
                    "candidates holds no item that fit has seen; give ids out of item_ids_."
                )
        if exclude is not None:
            options["exclude"] = self._known_items("exclude", exclude)
        items = np.full((len(codes), n_recommendations), -1)
        scores = np.full(items.shape, -np.inf, dtype=np.float32)
        known = codes >= 0
        if known.any():
            items[known], scores[known] = self.estimator_.recommend(users=codes[known], **options)
        if not known.all():
            # One for all of them: they have the same, empty history.
            nothing = sparse.csr_array((1, len(self.item_ids_)), dtype=np.float32)
            items[~known], scores[~known] = self.estimator_.recommend(nothing, **options)
        return _like(users, ids_of(self.item_ids_, items), scores)

    def _known_items(self, name, ids):
        codes = self._find("item", ids, name, unknown="-1")
        return np.unique(codes[codes >= 0])

    def predict(self, X):
        """Return the scores of interactions.

        Parameters
        ----------
        X : array-like or frame of shape (n_interactions, n_columns)
            With the columns of ``fit``; values are not looked at.

        Returns
        -------
        scores : ndarray of shape (n_interactions,)
            One score per row, comparable within a user.

        Raises
        ------
        ValueError
            If fit has not seen a user or an item.
        """
        check_is_fitted(self)
        return self.predict_pairs(*self._read(X, reset=False, values=False))

    def predict_pairs(self, users, items):
        """Return the scores of pairs of a user and an item.

        Parameters
        ----------
        users : array-like of shape (n_pairs,)
            Ids of users.
        items : array-like of shape (n_pairs,)
            Ids of items.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)

        Raises
        ------
        ValueError
            If fit has not seen a user or an item, or the lengths differ.
        """
        check_is_fitted(self)
        users = self._find("user", users, "users")
        items = self._find("item", items, "items")
        if len(users) != len(items):
            raise ValueError(
                f"users has {len(users)} ids and items has {len(items)}; a pair takes one of each."
            )
        return self.estimator_.predict_pairs(users, items)

    def similar_items(self, items, n=10):
        """Return the items most similar to given ones.

        Parameters
        ----------
        items : array-like of shape (n_queries,) or a single id
            Ids of items.
        n : int, default=10
            How many for each.

        Returns
        -------
        ids : ndarray of shape (n_queries, n)
            Ids of items, most similar first; None where there are no more. One-dimensional
            for a single id.
        scores : ndarray of shape (n_queries, n)
            Their similarity, as the recommender defines it.
        """
        check_is_fitted(self)
        _check_n("n", n)
        found, scores = self.estimator_.similar_items(self._find("item", items, "items"), n=n)
        return _like(items, ids_of(self.item_ids_, found), scores)

    def similar_users(self, users, n=10):
        """Return the users most similar to given ones.

        Parameters
        ----------
        users : array-like of shape (n_queries,) or a single id
            Ids of users.
        n : int, default=10
            How many for each.

        Returns
        -------
        ids : ndarray of shape (n_queries, n)
            Ids of users, most similar first; None where there are no more. One-dimensional
            for a single id.
        scores : ndarray of shape (n_queries, n)
            Their similarity, as the recommender defines it.
        """
        check_is_fitted(self)
        _check_n("n", n)
        found, scores = self.estimator_.similar_users(self._find("user", users, "users"), n=n)
        return _like(users, ids_of(self.user_ids_, found), scores)

    @available_if(lambda self: hasattr(self.estimator, "explain"))
    def explain(self, user, item):
        """Tell how much each item of a user's history adds to a score.

        Parameters
        ----------
        user : object
            Id of a user.
        item : object
            Id of an item.

        Returns
        -------
        explanation : Bunch
            As the recommender returns it, with the ids of ``history``.
        """
        check_is_fitted(self)
        (user,) = self._find("user", [user], "user")
        (item,) = self._find("item", [item], "item")
        explanation = Bunch(**self.estimator_.explain(int(user), int(item)))
        explanation.history = ids_of(self.item_ids_, explanation.history)
        return explanation

    def score(self, X, y=None):
        """Return the mean NDCG@k of recommendations, judged by held-out interactions.

        Every user of ``X`` that fit has seen is recommended ``k`` items that they were not seen
        with; relevant are the items that they have in ``X``. Users and items that fit has not
        seen are left out, so use splits that have few of them. Interactions that
        fit has seen already, if there are any in ``X``, are relevant too but never recommended.

        Parameters
        ----------
        X : array-like or frame of shape (n_interactions, n_columns)
            Held-out interactions, with the columns of ``fit``.
        y : object
            Ignored.

        Returns
        -------
        ndcg : float

        Raises
        ------
        ValueError
            If ``X`` has no interaction of a known user with a known item.
        """
        return float(ndcg_at_k(*self._rank_held_out(X, self.k), self.k))

    def _rank_held_out(self, X, k):
        """Return relevant items and rankings of the users in held-out interactions."""
        check_is_fitted(self)
        users, items, values = self._read(X, reset=False)
        users = self._find("user", users, "X's column of users", unknown="-1")
        items = self._find("item", items, "X's column of items", unknown="-1")
        known = (users >= 0) & (items >= 0)
        if not known.any():
            raise ValueError(
                f"X holds {len(users)} interaction(s), but none of a user and an item that fit has "
                f"both seen; split interactions with WarmStartKFold, for instance."
            )
        relevant = self._matrix(users[known], items[known], values[known])
        relevant.eliminate_zeros()
        present = np.flatnonzero(np.diff(relevant.indptr))
        ranked, _ = self.estimator_.recommend(users=present, n_recommendations=k)
        return relevant[present], ranked


def _like(queries, ids, scores):
    """Return the only row for a single query, else all rows."""
    if queries is not None and np.ndim(queries) == 0:
        return ids[0], scores[0]
    return ids, scores


def _check_n(name, n):
    if not isinstance(n, Integral) or isinstance(n, bool) or n < 1:
        raise ValueError(f"{name}={n!r} must be an integer of at least 1.")
