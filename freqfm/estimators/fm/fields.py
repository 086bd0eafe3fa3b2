"""The field of each column, from the encoder that has made the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder
from sklearn.utils.validation import check_is_fitted

from freqfm.datasets import IncrementalOneHotEncoder


def column_fields(transformer: Any) -> np.ndarray:
    """Return the field of each column that a fitted encoder makes.

    A field is the set of columns that come from one original variable: all categories of a
    ``OneHotEncoder``'s or ``IncrementalOneHotEncoder``'s variable, or all bins of a
    ``KBinsDiscretizer``'s. Any other column of a ``ColumnTransformer``, such as a number that is
    passed through, is a field of its own.

    Parameters
    ----------
    transformer : transformer object
        A fitted ``OneHotEncoder``, ``IncrementalOneHotEncoder``, ``KBinsDiscretizer`` or
        ``ColumnTransformer``, or a ``Pipeline`` that ends with one of them.

    Returns
    -------
    fields : ndarray of shape (n_columns,)
        Numbers from 0 on, for the parameter ``fields`` of :class:`DeepFMClassifier`,
        :class:`FFMClassifier`, :class:`FwFMClassifier` and their regressors.

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
    fields = _fields(transformer)
    if fields is None:
        raise TypeError(
            f"column_fields reads a OneHotEncoder, IncrementalOneHotEncoder, KBinsDiscretizer or "
            f"ColumnTransformer, or a pipeline that ends with one of them; got "
            f"{type(transformer).__name__}. Give fields as an array instead: the field of each "
            f"column of X."
        )
    return fields


def _fields(transformer):
    """Return the field of each column, or None for other transformers."""
    if isinstance(transformer, Pipeline):
        return _fields(transformer.steps[-1][1])
    for known, fields_of in _FIELDS_OF.items():
        if isinstance(transformer, known):
            check_is_fitted(transformer)
            return fields_of(transformer)
    return None


def _of_one_hot_encoder(encoder):
    widths = [len(categories) for categories in encoder.categories_]
    # Infrequent categories share a column.
    for i, rare in enumerate(getattr(encoder, "infrequent_categories_", [None] * len(widths))):
        if rare is not None:
            widths[i] -= len(rare) - 1
    if encoder.drop_idx_ is not None:
        dropped = [number is not None for number in encoder.drop_idx_]
        widths = [n - less for n, less in zip(widths, dropped, strict=True)]
    return np.repeat(np.arange(len(widths)), widths)


def _of_incremental_encoder(encoder):
    fields = np.empty(encoder.n_features_out_, dtype=np.int64)
    for field, columns in enumerate(encoder.columns_):
        fields[list(columns.values())] = field
    return fields


def _of_bins(discretizer):
    widths = 1 if discretizer.encode == "ordinal" else discretizer.n_bins_
    return np.repeat(np.arange(len(discretizer.n_bins_)), widths)


def _of_column_transformer(transformer):
    parts = {name: part for name, part, _ in transformer.transformers_}
    fields, n_fields = [], 0
    places = transformer.output_indices_.items()
    for name, place in sorted(places, key=lambda item: (item[1].start, item[1].stop)):
        if place.stop > place.start:
            found = _fields(parts.get(name))
            found = np.arange(place.stop - place.start) if found is None else found
            fields.append(found + n_fields)
            n_fields = fields[-1].max() + 1
    return np.concatenate(fields) if fields else np.empty(0, dtype=np.int64)


_FIELDS_OF = {
    OneHotEncoder: _of_one_hot_encoder,
    IncrementalOneHotEncoder: _of_incremental_encoder,
    KBinsDiscretizer: _of_bins,
    ColumnTransformer: _of_column_transformer,
}
