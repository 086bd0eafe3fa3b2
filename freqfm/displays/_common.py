"""Shared parts of the displays: axes, checks, and finding models in pipelines and searches."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm._messages import cut
from freqfm.model_selection._steps import steps_of

__all__ = ["as_vector", "label_of", "model_with", "open_axes", "user_degrees"]


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
        # As InteractionRecommender and scikit-learn's TransformedTargetRegressor name it.
        inside = getattr(model, "estimator_", getattr(model, "regressor_", None))
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


def user_degrees(model):
    """Return how many items each user of a fitted recommender has."""
    return model._history.counts
