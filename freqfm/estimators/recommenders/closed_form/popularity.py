"""The most popular items, the same for every user: the baseline of all recommenders."""

from dataclasses import dataclass

import numpy as np

from freqfm.estimators.recommenders.closed_form.base import ClosedFormRecommender


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

    def _learn(self, X, dislikes):
        self._remember(X, dislikes)
        sums = np.bincount(X.indices, X.data, X.shape[1])
        self.item_factors_ = (sums / X.shape[0]).astype(np.float32)[:, None]

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
