"""recommend: recommendations from estimators that end in a recommender."""

from __future__ import annotations

import numpy as np

from freqfm.model_selection._steps import last_step, transform

__all__ = ["recommend"]


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
        ``exclude`` and ``users``; for an :class:`InteractionRecommender` also ``history``; for
        models with features also ``user_features`` and ``item_features``.

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
