"""Shared parts of the displays: axes, checks, and finding models in pipelines and searches."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm._input.rows import split_signs
from freqfm._messages import cut
from freqfm.metrics._hits import as_csr
from freqfm.model_selection._holdout import last_step, steps_of, transform
from freqfm.model_selection._scorer import seen_by, warn_of_seen


def open_axes(ax):
    """Return the axes to draw in and their figure; new ones if ``ax`` is None.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "Displays are drawn with matplotlib, which is not installed: pip install "
            "'freqfm[plot]'."
        ) from None
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    return ax, ax.figure


def label_of(name):
    """Return a name as a label of matplotlib: on one line, cut, and no formula between dollars."""
    text = cut(name, 60).replace("$", r"\$")
    # Legends leave out labels that begin with an underscore.
    return f" {text}" if text.startswith("_") else text


def as_vector(name, values):
    """Return numbers as a float64 vector.

    Raises
    ------
    ValueError
        If they are not one-dimensional.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional; got the shape {values.shape}.")
    return values


def as_vectors(**named):
    """Return numbers as float64 vectors; raise a ValueError if their lengths differ."""
    vectors = [as_vector(name, values) for name, values in named.items()]
    if len(set(map(len, vectors))) > 1:
        counts = [f"{len(vector)} {name}" for name, vector in zip(named, vectors, strict=True)]
        raise ValueError(f"there are {' and '.join(counts)}; give one of each.")
    return vectors


def model_with(estimator, attribute):
    """Return the fitted model with an attribute, inside pipelines, searches or wrappers.

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If there is no such model.
    """
    _, model = steps_of(estimator)
    while not hasattr(model, attribute):
        inside = getattr(model, "estimator_", None)  # the name in InteractionRecommender
        if inside is None:
            if hasattr(model, "fit"):
                check_is_fitted(model)
            where = "" if model is estimator else f", inside {type(estimator).__name__},"
            raise TypeError(
                f"{type(model).__name__}{where} has no {attribute}; give a fitted estimator of "
                f"freqfm that has, or a pipeline or a search that ends in one."
            )
        _, model = steps_of(inside)
    check_is_fitted(model)
    return model


def rank_held_out(estimator, relevant, k, history=None, users=None):
    """Recommend to the users whose held-out items are given.

    Parameters
    ----------
    estimator : recommender, Pipeline or search
    relevant : {sparse matrix, array-like} of shape (n_users, n_items), or table
        Held-out items; for ``InteractionRecommender`` a table of held-out interactions.
    k : int
    history : {sparse matrix, array-like} of shape (n_users, n_items), default=None
        Histories to recommend from.
    users : array-like of int of shape (n_users,), default=None
        Rows of users seen in fit. If both are None, these are the first of fit, in order.

    Returns
    -------
    relevant : csr_array of shape (n_users, n_items)
    ranked : ndarray of shape (n_users, k)
    model : recommender
        That of rows and columns: the last step, or the one inside of it.
    users : ndarray, or None
        Rows of users seen in fit; None if histories were given.

    Raises
    ------
    TypeError, ValueError
        If the arguments do not match the recommender.
    """
    transformers, model = last_step(estimator)
    if hasattr(model, "_find_held_out"):
        if history is not None or users is not None:
            raise ValueError(
                f"{type(model).__name__} finds the users, and their histories, by the table given "
                f"as relevant; leave history and users at None."
            )
        try:
            queries, relevant = model._find_held_out(transform(transformers, relevant))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"relevant cannot be used: {cut(error, 1000)}") from None
        model = model.estimator_
    else:
        relevant = as_csr("relevant", relevant)
        if history is None and users is None:
            _check_first_users(model, relevant.shape)
            users = np.arange(relevant.shape[0])
        queries = {"users": users}
    history = None if history is None else transform(transformers, history)
    ranked, _ = model.recommend(history, **queries, n_recommendations=k)
    seen = seen_by(model, queries["users"]) if history is None else as_csr("history", history)
    warn_of_seen(split_signs(relevant)[0], seen)
    return relevant, ranked, model, queries["users"]


def _check_first_users(model, shape):
    """Raise unless the rows of held-out items can be the first users of ``fit``."""
    n_users, n_items = model._history.n_users, len(model.item_counts_)
    if shape[0] > n_users or shape[1] != n_items:
        raise ValueError(
            f"relevant has the shape {shape}, but the model knows {n_items} items and, in order, "
            f"{n_users} users; give a column for each of these items, and history for other users."
        )
