"""Columns of rows in groups: the original columns that an encoder has made them of."""

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from freqfm._input.validation import as_array
from freqfm.estimators.fm.fields import WithFields, checked_labels, column_fields


def feature_names(model, names):
    """Return the names of all features, as an array of objects."""
    n = model.n_features_in_
    if names is None:
        names = getattr(model, "feature_names_in_", [f"x{k}" for k in range(n)])
    names = as_array("feature_names", names).astype(object)
    if names.shape != (n,):
        raise ValueError(
            f"feature_names has the shape {names.shape}, but the model has {n} features; give one "
            f"name for each, as get_feature_names_out of the encoder does."
        )
    return names


def group_columns(model, fields):
    """Return the group of each feature, from 0 on, and the names of the groups.

    Parameters
    ----------
    model : BaseFM
    fields : transformer or array-like of shape (n_features,)
        As in ``ExplanationMixin.explain``.

    Raises
    ------
    TypeError, ValueError
        If they are not the fields of the model's features.
    """
    labels = checked_labels(
        original_columns(fields) if hasattr(fields, "transform") else fields,
        "fields",
        f"the model has {model.n_features_in_}",
        model.n_features_in_,
        ", or the fitted encoder that makes the columns.",
    )
    # In the order of the columns.
    place = {}
    groups = [place.setdefault(label, len(place)) for label in labels.tolist()]
    return np.array(groups, dtype=np.int64), np.array(list(place), dtype=object)


def original_columns(transformer, names=None):
    """Return the name of the original column of each column that a fitted transformer makes.

    Parameters
    ----------
    transformer : transformer object
        As in ``column_fields``, or one that gives out a column for each that it gets.
    names : array-like of str, default=None
        Names of the columns that it gets, if it does not know them.

    Returns
    -------
    names : ndarray of objects of shape (n_columns,)
        A column that comes of several ones, such as a hash or a component, has a name of its own.
    """
    if isinstance(transformer, WithFields):
        check_is_fitted(transformer)
        transformer = transformer.encoder_
    if isinstance(transformer, Pipeline):
        for _, step in transformer.steps:
            if step not in (None, "passthrough"):
                names = original_columns(step, names)
        return names
    check_is_fitted(transformer)
    given = getattr(transformer, "feature_names_in_", None) if names is None else names
    if given is None:
        given = [f"x{k}" for k in range(getattr(transformer, "n_features_in_", 0))]
    given = np.asarray(given, dtype=object)
    if isinstance(transformer, ColumnTransformer):
        return _of_column_transformer(transformer, given)
    if hasattr(transformer, "get_support"):
        return given[transformer.get_support()]
    try:
        return given[column_fields(transformer)]
    except TypeError as error:
        if not hasattr(transformer, "get_feature_names_out"):
            raise error from None
    return np.asarray(transformer.get_feature_names_out(given), dtype=object)


def _of_column_transformer(transformer, given):
    parts = {name: (part, columns) for name, part, columns in transformer.transformers_}
    found = np.empty(max(place.stop for place in transformer.output_indices_.values()), object)
    for name, place in transformer.output_indices_.items():
        if place.stop == place.start:
            continue
        part, columns = parts[name]
        found[place] = _of_part(name, part, _selected(given, columns), place.stop - place.start)
    return found


def _selected(given, columns):
    """Return the names of the columns that a part of a ColumnTransformer gets."""
    if isinstance(columns, slice) and any(
        isinstance(e, str) for e in (columns.start, columns.stop)
    ):
        known = given.tolist()
        begin = None if columns.start is None else known.index(columns.start)
        columns = slice(begin, None if columns.stop is None else known.index(columns.stop) + 1)
    if isinstance(columns, slice):
        return given[columns]
    columns = np.atleast_1d(np.asarray(columns))
    return columns.astype(object) if columns.dtype.kind in "OUT" else given[columns]


def _of_part(name, part, given, n_columns):
    if hasattr(part, "transform"):
        try:
            found = original_columns(part, given)
        except (AttributeError, TypeError, ValueError):
            found = None
        if found is not None and len(found) == n_columns:
            return found
    if len(given) == n_columns:
        return given
    return [f"{name}{k}" for k in range(n_columns)]
