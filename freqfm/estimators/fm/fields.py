"""The field of each column, from the encoder that has made the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder
from sklearn.utils.validation import check_is_fitted

__all__ = ["column_fields"]


def column_fields(transformer: Any) -> np.ndarray:
    """Return the field of each column that a fitted encoder makes.

    A field is the set of columns that come from one original variable: all categories of a
    ``OneHotEncoder``'s variable, or all bins of a ``KBinsDiscretizer``'s. Any other column of a
    ``ColumnTransformer``, such as a number that is passed through, is a field of its own.

    Parameters
    ----------
    transformer : OneHotEncoder, KBinsDiscretizer, ColumnTransformer or Pipeline
        Fitted. A pipeline must end with one of the others.

    Returns
    -------
    fields : ndarray of shape (n_columns,)
        Numbers from 0 on, for the parameter ``fields`` of :class:`DeepFMClassifier` and
        :class:`DeepFMRegressor`.

    Raises
    ------
    TypeError
        If the transformer is of another class.
    NotFittedError
        If it is not fitted.

    Examples
    --------
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import column_fields
    >>> rows = [["ann", "tea"], ["bob", "tea"], ["eve", "jam"]]
    >>> column_fields(OneHotEncoder().fit(rows))
    array([0, 0, 0, 1, 1])
    """
    widths = _widths(transformer)
    if widths is None:
        raise TypeError(
            f"column_fields reads a OneHotEncoder, KBinsDiscretizer or ColumnTransformer, or a "
            f"pipeline that ends with one of them; got {type(transformer).__name__}. Give fields "
            f"as an array instead: the field of each column of X."
        )
    return np.repeat(np.arange(len(widths)), widths)


def _widths(transformer):
    """Return how many columns each variable has, or None for other transformers."""
    if isinstance(transformer, Pipeline):
        return _widths(transformer.steps[-1][1])
    if isinstance(transformer, OneHotEncoder):
        check_is_fitted(transformer)
        return _one_hot_widths(transformer)
    if isinstance(transformer, KBinsDiscretizer):
        check_is_fitted(transformer)
        return [1 if transformer.encode == "ordinal" else int(n) for n in transformer.n_bins_]
    if isinstance(transformer, ColumnTransformer):
        check_is_fitted(transformer)
        return _widths_of_parts(transformer)
    return None


def _one_hot_widths(encoder):
    """Return how many columns a OneHotEncoder makes of each variable."""
    widths = [len(categories) for categories in encoder.categories_]
    # Infrequent categories share a column.
    for i, rare in enumerate(getattr(encoder, "infrequent_categories_", [None] * len(widths))):
        if rare is not None:
            widths[i] -= len(rare) - 1
    if encoder.drop_idx_ is not None:
        dropped = [number is not None for number in encoder.drop_idx_]
        widths = [n - less for n, less in zip(widths, dropped, strict=True)]
    return widths


def _widths_of_parts(transformer):
    """Return how many columns a ColumnTransformer makes of each variable."""
    parts = {name: part for name, part, _ in transformer.transformers_}
    widths = []
    places = transformer.output_indices_.items()
    for name, place in sorted(places, key=lambda item: (item[1].start, item[1].stop)):
        n_columns = place.stop - place.start
        found = _widths(parts.get(name)) if n_columns else []
        widths += [1] * n_columns if found is None else found
    return widths
