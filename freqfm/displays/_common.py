"""Shared parts of the displays: axes, checks, and finding models in pipelines and searches."""

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

__all__ = ["as_vector", "model_with", "open_axes", "user_degrees"]


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


def model_with(estimator, *attributes):
    """Return the fitted model with one of the attributes, inside pipelines, searches or wrappers.

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If there is no such model.
    """
    model = estimator
    while not any(hasattr(model, attribute) for attribute in attributes):
        if isinstance(model, Pipeline):
            model = model.steps[-1][1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "estimator_"):
            model = model.estimator_
        else:
            if hasattr(model, "fit"):
                check_is_fitted(model)
            where = "" if model is estimator else f", inside {type(estimator).__name__},"
            raise TypeError(
                f"{type(model).__name__}{where} has no {attributes[0]}; give a fitted estimator of "
                f"freqfm that has, or a pipeline or a search that ends in one."
            )
    check_is_fitted(model)
    return model


def user_degrees(model):
    """Return how many items each user of a fitted recommender has."""
    return model._history.counts
