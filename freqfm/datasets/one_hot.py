"""A one-hot encoder that grows with a stream."""

from __future__ import annotations

from itertools import islice

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import (
    _check_feature_names_in,
    _num_samples,
    check_is_fitted,
    validate_data,
)

from freqfm._ids import check_present, natural
from freqfm._rows import csr_of, with_one_index_type
from freqfm._validation import check_flag, check_integer
from freqfm._versions import VersionStamp

__all__ = ["IncrementalOneHotEncoder"]


class IncrementalOneHotEncoder(VersionStamp, TransformerMixin, BaseEstimator):
    """One-hot encoder of categories that adds a column for each new category.

    ``partial_fit`` adds the categories of a chunk; columns keep their numbers, and new ones follow:
    those of the first field in the order in which they occur, then those of the next. A category
    that is not known when rows are transformed is in no column.

    Parameters
    ----------
    max_features : int, default=None
        Number of columns after which no more are added; later categories are then in no column.
        None sets no limit. To keep memory bounded without a list of categories, hash them
        (``sklearn.feature_extraction.FeatureHasher``).
    sparse_output : bool, default=True
        Whether ``transform`` returns a sparse array; False is for
        ``set_output(transform="pandas")``.

    Attributes
    ----------
    n_features_in_ : int
        Number of fields, the columns of ``X``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the fields, if the first ``X`` was a DataFrame with names that are strings; later
        ones must then have the same names in the same order.
    n_features_out_ : int
        Number of columns so far.
    columns_ : list of dict
        For each field, the column of each category.

    See Also
    --------
    RowStream : Streams of chunks, which can use it as their encoder.

    Examples
    --------
    >>> from freqfm.datasets import IncrementalOneHotEncoder
    >>> encoder = IncrementalOneHotEncoder()
    >>> encoder.partial_fit([["ann", "tea"], ["bob", "tea"]]).n_features_out_
    3
    >>> encoder.partial_fit([["eve", "tea"]]).transform([["eve", "tea"]]).indices
    array([2, 3], dtype=int32)
    """

    def __init__(self, max_features: int | None = None, *, sparse_output: bool = True):
        self.max_features = max_features
        self.sparse_output = sparse_output

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X, y=None):
        """Forget all categories and learn those of some rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_fields)
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object
        """
        if not _num_samples(X):
            raise ValueError("X holds 0 sample(s), while a minimum of 1 is required.")
        learned = clone(self).partial_fit(X)
        vars(self).pop("feature_names_in_", None)
        vars(self).update(vars(learned))
        return self

    def partial_fit(self, X, y=None):
        """Add the categories of some rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_fields)
            In each field either strings, numbers or dates, none of them missing.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If values are missing, the number of fields is another one, or ``max_features`` is not
            None or an integer of at least 1.
        TypeError
            If a value cannot be a category, if a field holds strings beside numbers, also of
            earlier rows, or if ``X`` is sparse.
        """
        most = np.iinfo(np.int32).max
        if self.max_features is not None:
            most = check_integer("max_features", self.max_features, 1)
        given, X = X, _as_fields(X)
        begins = not hasattr(self, "columns_")
        if not begins:
            validate_data(self, given, reset=False, skip_check_array=True)
        # All are read before any is added: an error leaves the encoder as it was.
        known = [{}] * X.shape[1] if begins else self.columns_
        fields = [dict.fromkeys(_values(X, j, columns)) for j, columns in enumerate(known)]
        if begins:
            validate_data(self, given, reset=True, skip_check_array=True)
            self.n_features_out_ = 0
            self.columns_ = [{} for _ in fields]
        for values, columns in zip(fields, self.columns_, strict=True):
            for value in values:
                if value not in columns and self.n_features_out_ < most:
                    columns[value] = self.n_features_out_
                    self.n_features_out_ += 1
        return self

    def transform(self, X):
        """Return rows with a 1 in the column of each category.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_fields)

        Returns
        -------
        rows : csr_array of shape (n_samples, `n_features_out_`), dtype float32
            An ndarray if ``sparse_output`` is False.
        """
        check_is_fitted(self, "columns_")
        given, X = X, _as_fields(X)
        validate_data(self, given, reset=False, skip_check_array=True)
        found = np.empty(X.shape, dtype=np.int32)
        for j, columns in enumerate(self.columns_):
            found[:, j] = [columns.get(value, -1) for value in _values(X, j, columns)]
        found.sort(axis=1)
        known = found >= 0
        indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        ones = np.ones(indptr[-1], dtype=np.float32)
        rows = csr_of(ones, found[known], indptr, (len(X), self.n_features_out_))
        sparse_output = check_flag("sparse_output", self.sparse_output)
        return with_one_index_type(rows) if sparse_output else rows.toarray()

    def get_feature_names_out(self, input_features=None):
        """Return the names of the columns, "field_category".

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the fields. None takes ``feature_names_in_``, or "x0", "x1" and so on.

        Returns
        -------
        names : ndarray of shape (`n_features_out_`,), dtype object
        """
        check_is_fitted(self, "columns_")
        names = np.empty(self.n_features_out_, dtype=object)
        for field, columns in zip(
            _check_feature_names_in(self, input_features), self.columns_, strict=True
        ):
            for value, column in columns.items():
                names[column] = f"{field}_{value}"
        return names


def _as_fields(X):
    """Return rows as an array of two dimensions."""
    if issparse(X):
        raise TypeError(
            "X is a sparse matrix; IncrementalOneHotEncoder takes rows of categories, as an array, "
            "lists or a DataFrame."
        )
    if hasattr(X, "to_numpy") and len(X.shape) == 2:
        # Column by column: an array of all has one type, float for integers beside prices.
        if hasattr(X, "iloc"):
            columns = [X.iloc[:, j] for j in range(X.shape[1])]
        else:
            columns = [X[name] for name in getattr(X, "column_names", None) or X.columns]
        X = np.empty(X.shape, dtype=object)
        for j, column in enumerate(columns):
            X[:, j] = _without_nanoseconds(np.asarray(column))
    is_list = isinstance(X, (list, tuple))
    X = np.array(X, dtype=object) if is_list else _without_nanoseconds(np.asarray(X))
    if X.ndim != 2:
        raise ValueError(
            f"X has shape {X.shape}; give rows of fields, (n_samples, n_fields). Reshape your "
            f"data: X.reshape(-1, 1) is one field, X.reshape(1, -1) one row."
        )
    if not X.shape[1]:
        raise ValueError(f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    if np.iscomplexobj(X):
        raise ValueError("Complex data not supported: X holds complex numbers.")
    return X


def _without_nanoseconds(array):
    """Return dates in microseconds; NumPy makes integers of nanoseconds, and Python has none."""
    return array.astype(f"{kind}8[us]") if (kind := array.dtype.kind) in "mM" else array


def _values(X, j, known):
    """Return the categories of a field as a list: strings beside strings, or none of them."""
    values = natural(X[:, j])
    check_present(values, f"field {j} of X")
    if values.dtype.kind == "O":
        try:
            hash(tuple(values))
        except TypeError as error:
            raise TypeError(
                f"Field {j} of X holds a value that cannot be a category: {error}. Each argument "
                f"must be a string or a number."
            ) from None
    values = values.tolist()
    kinds = {*map(type, islice(known, 1)), *map(type, values)}
    if len({issubclass(kind, str) for kind in kinds}) > 1:
        all_values = [*islice(known, 1), *values]
        first = all_values[0]
        other = next(v for v in all_values if isinstance(v, str) != isinstance(first, str))
        raise TypeError(
            f"Field {j} of X holds {other!r} beside {first!r}; '1' and 1 would be two categories. "
            f"Convert the field to one type, for instance to strings."
        )
    return values
