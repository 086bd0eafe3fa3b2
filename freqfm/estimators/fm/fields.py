"""The field of each column: from encoders, rows that carry fields, or the parameter ``fields``."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from freqfm._input.ids import check_present, natural, unique_codes
from freqfm._input.rows import CarriesFields, FieldRows, with_one_index_type
from freqfm._input.validation import as_array, as_float_csr, is_stream
from freqfm._messages import cut, shown
from freqfm._versions import VersionStamp
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
        A fitted ``OneHotEncoder``, ``IncrementalOneHotEncoder``, ``KBinsDiscretizer``,
        ``ColumnTransformer``, ``FeatureUnion`` or :class:`WithFields`, or a ``Pipeline`` that ends
        with one of them.

    Returns
    -------
    fields : ndarray of shape (n_columns,)
        Numbers from 0 on, for the parameter ``fields`` of :class:`DeepFMClassifier`,
        :class:`FFMClassifier`, :class:`FwFMClassifier` and their regressors. In a pipeline that
        is cross-validated use :class:`WithFields` instead.

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
            f"The fields of columns are read from a OneHotEncoder, IncrementalOneHotEncoder, "
            f"KBinsDiscretizer, ColumnTransformer, FeatureUnion or WithFields, or a pipeline that "
            f"ends with one of them; got {type(transformer).__name__}. Give fields as an array "
            f"instead: the field of each column of X."
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
    places = transformer.output_indices_.items()
    places = sorted(places, key=lambda item: (item[1].start, item[1].stop))
    return _side_by_side((parts.get(name), place.stop - place.start) for name, place in places)


def _of_union(union):
    parts = [part for _, part in union.transformer_list if part != "drop"]
    n_given = next((part.n_features_in_ for part in parts if part != "passthrough"), 0)
    return _side_by_side((part, n_given if part == "passthrough" else None) for part in parts)


def _side_by_side(parts):
    """Return the fields of the columns of transformers.

    They are given with their numbers of columns, or None where these are to be asked for.
    """
    fields, n_fields = [np.empty(0, dtype=np.int64)], 0
    for part, width in parts:
        found = None if width == 0 else _fields(part)
        if found is None:
            found = np.arange(_width_of(part) if width is None else width)
        fields.append(found + n_fields)
        n_fields = fields[-1].max(initial=n_fields - 1) + 1
    return np.concatenate(fields)


def _width_of(part):
    """Return the number of columns that a part of a union makes."""
    try:
        return len(part.get_feature_names_out())
    except AttributeError:
        raise TypeError(
            f"{cut(part)} of a FeatureUnion does not tell how many columns it makes; give it "
            f"get_feature_names_out, or feature_names_out of FunctionTransformer."
        ) from None


def _has(method):
    """Return whether a ``WithFields`` has a method because its encoder does."""
    return lambda self: hasattr(self.encoder, method)


@dataclass(eq=False, repr=False)
class WithFields(VersionStamp, TransformerMixin, BaseEstimator, auto_wrap_output_keys=()):
    """An encoder whose rows carry the field of each column.

    A machine with ``fields=None`` that follows in a ``Pipeline`` takes them from its rows, so that
    each fold of a cross-validation has those of its own columns.

    Parameters
    ----------
    encoder : transformer object
        Whatever :func:`column_fields` reads: a ``OneHotEncoder``, ``IncrementalOneHotEncoder``,
        ``KBinsDiscretizer``, ``ColumnTransformer``, ``FeatureUnion``, or a ``Pipeline`` that ends
        with one of them.

    Attributes
    ----------
    encoder_ : transformer object
        The fitted encoder.
    fields_ : ndarray of shape (n_columns,)
        The field of each column, numbers from 0 on.
    n_features_in_ : int
        Number of columns to encode, if the encoder has it.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Their names, if the encoder has them.

    See Also
    --------
    column_fields : The fields, without a pipeline.

    Notes
    -----
    The rows are float32 CSR, also with ``set_config(transform_output="pandas")``. They keep their
    fields when they are copied, rows or columns are selected (``rows[:100]``, ``SelectKBest``), or
    columns are scaled (``MaxAbsScaler``), not where rows are stacked: a ``ColumnTransformer`` or
    ``FeatureUnion`` goes into a ``WithFields``, not around it.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import DeepFMClassifier, WithFields
    >>> rows = np.random.default_rng(0).integers(0, 40, (400, 3))
    >>> y = (rows[:, 0] + rows[:, 1]) % 2
    >>> encoder = WithFields(OneHotEncoder(handle_unknown="ignore"))
    >>> model = make_pipeline(encoder, DeepFMClassifier(max_iter=3, random_state=0))
    >>> cross_val_score(model, rows, y, cv=2).shape
    (2,)
    >>> model.fit(rows, y)[-1].fields_.max()
    np.int32(2)
    """

    encoder: Any

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.encoder).input_tags
        tags.target_tags = get_tags(self.encoder).target_tags
        tags.transformer_tags.preserves_dtype = []
        return tags

    def __sklearn_is_fitted__(self):
        return hasattr(self, "encoder_")

    def fit(self, X, y=None):
        """Fit a copy of the encoder.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : object

        Raises
        ------
        TypeError
            If :func:`column_fields` does not read the encoder.
        """
        with config_context(transform_output="default"):
            return self._fitted(clone(self.encoder).fit(X, y))

    @available_if(_has("partial_fit"))
    def partial_fit(self, X, y=None):
        """Let the copy of the encoder learn from more rows, for encoders with ``partial_fit``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None

        Returns
        -------
        self : object
        """
        known = vars(self).get("encoder_")
        encoder = clone(self.encoder) if known is None else known
        with config_context(transform_output="default"):
            return self._fitted(encoder.partial_fit(X, y))

    def _fitted(self, encoder):
        self.fields_, self.encoder_ = column_fields(encoder), encoder
        for name in ("n_features_in_", "feature_names_in_"):
            vars(self).pop(name, None)
            if hasattr(encoder, name):
                setattr(self, name, getattr(encoder, name))
        return self

    def fit_transform(self, X, y=None):
        """Fit a copy of the encoder, and return the encoded rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None

        Returns
        -------
        rows : csr_array of shape (n_samples, n_columns), dtype float32
        """
        encoder = clone(self.encoder)
        with config_context(transform_output="default"):
            rows = encoder.fit_transform(X, y)
        return self._fitted(encoder)._with_fields(rows)

    def transform(self, X):
        """Return the encoded rows, with the field of each column.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        rows : csr_array of shape (n_samples, n_columns), dtype float32
            Its attribute ``fields`` is an array of shape (n_columns,).
        """
        check_is_fitted(self)
        with config_context(transform_output="default"):
            rows = self.encoder_.transform(X)
        return self._with_fields(rows)

    def _with_fields(self, rows):
        rows = with_one_index_type(as_float_csr(rows, "The encoder's output"))
        return FieldRows.of(rows, self.fields_)

    def set_output(self, *, transform=None):
        """Refuse DataFrames: only sparse rows carry fields.

        Parameters
        ----------
        transform : {"default"}, default=None

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If ``transform`` is anything else.
        """
        if transform not in (None, "default"):
            raise ValueError(
                f"set_output(transform={shown(transform)}): the rows of WithFields are sparse, "
                f"since a DataFrame does not carry fields. Set the output of the other steps one "
                f"by one, or that of all by sklearn.set_config, which WithFields leaves aside."
            )
        return self

    @available_if(_has("get_feature_names_out"))
    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns, those of the encoder.

        Parameters
        ----------
        input_features : array-like of str, default=None

        Returns
        -------
        names : ndarray of shape (n_columns,), dtype object
        """
        check_is_fitted(self)
        return self.encoder_.get_feature_names_out(input_features)


def resolve_fields(fields, X, n_features):
    """Return the labels of fields, sorted, and the field of each column as their number, int32.

    Without fields both are None.

    Parameters
    ----------
    fields : array-like of shape (n_features,), callable or None
        A callable gets ``X`` and returns an array. None takes the fields that ``X`` carries, or
        those of the encoder of a stream.
    X : object
        As given to the method of the estimator: rows, a stream or a collection of Dask.
    n_features : int

    Raises
    ------
    ValueError, TypeError
        If there is not one field, an integer or a string, for each column.
    """
    origin = "fields"
    if callable(fields):
        fields, origin = fields(X), "fields(X)"
    elif fields is None and isinstance(X, CarriesFields):
        fields, origin = X.fields, "X.fields"
        if fields is None:
            raise ValueError(
                "X comes from WithFields, but what followed has lost the fields of its columns; "
                "wrap that step too, as WithFields(ColumnTransformer(...)), move it before the "
                "encoder, or give fields as an array or a callable."
            )
    elif fields is None and is_stream(X) and hasattr(X.encoder, "fields_"):
        fields, origin = X.encoder.fields_, "X.encoder.fields_"
    elif fields is None:
        return None, None
    given = checked_labels(
        fields,
        origin,
        f"X has {n_features}",
        n_features,
        ", as freqfm.column_fields(encoder) returns it. In a pipeline, whose columns differ from "
        "fit to fit, leave fields=None and wrap the encoder in freqfm.WithFields.",
    )
    labels, codes = unique_codes(given, origin)
    return labels.tolist(), codes.astype(np.int32)


def checked_labels(labels, name, found, n_features, advice):
    """Return the labels of the fields of all columns as an array; raise if they are none.

    ``found`` and ``advice`` are parts of the error for labels of another shape.
    """
    given, labels = labels, as_array(name, labels)
    if labels.shape != (n_features,):
        raise ValueError(
            f"{name} has shape {labels.shape}, but {found} features; give the field of every "
            f"column{advice}"
        )
    if isinstance(given, (list, tuple)):
        # NumPy would make strings of integers beside strings, and integers of truth values.
        labels = np.array(given, dtype=object)
    if labels.dtype.kind == "O":
        check_present(labels, name)
    labels = natural(labels)
    kinds = set(map(_kind_of_label, labels.tolist())) if labels.dtype.kind in "OT" else set()
    if labels.dtype.kind not in "iuUSOT" or len(kinds) > 1:
        raise TypeError(
            f"{name} must hold integers or strings, which name the field of each column; got "
            f"{' beside '.join(sorted(kinds)) or labels.dtype}. Convert all to one type."
        )
    return labels


def _kind_of_label(label):
    """Return the name of a type, one for all integers: equal labels of two would be two fields."""
    if isinstance(label, Integral) and not isinstance(label, bool):
        return "int"
    return "str" if isinstance(label, str) else type(label).__name__


_FIELDS_OF = {
    OneHotEncoder: _of_one_hot_encoder,
    IncrementalOneHotEncoder: _of_incremental_encoder,
    FeatureUnion: _of_union,
    KBinsDiscretizer: _of_bins,
    ColumnTransformer: _of_column_transformer,
    WithFields: lambda wrapper: wrapper.fields_,
}
