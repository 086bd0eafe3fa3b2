"""A one-hot encoder that grows with a stream."""

import itertools
import math
from dataclasses import dataclass, field
from datetime import date, datetime
from numbers import Number

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from freqfm._input.cells import read_cells
from freqfm._input.frames import is_frame
from freqfm._input.rows import csr_of, with_one_index_type
from freqfm._input.validation import check_flag, check_integer
from freqfm._messages import cut, shown
from freqfm._sklearn import check_feature_names_in, get_output_config, num_samples
from freqfm._versions import VersionStamp


@dataclass(eq=False, repr=False)
class IncrementalOneHotEncoder(VersionStamp, TransformerMixin, BaseEstimator):
    """One-hot encoder of categories that adds a column for each new category.

    ``partial_fit`` adds the categories of a chunk; columns keep their numbers, and new ones follow:
    those of the first field in the order in which they occur, then those of the next. A category
    that is not known when rows are transformed is in no column. None is a category, and so is NaN,
    as in scikit-learn's ``OneHotEncoder``; where only one of them is known, it stands for both.

    Parameters
    ----------
    max_features : int, default=None
        Number of columns after which no more are added; later categories are then in no column.
        None sets no limit. To keep memory bounded without a list of categories, hash them
        (``sklearn.feature_extraction.FeatureHasher``).
    sparse_output : bool, default=True
        Whether ``transform`` returns a sparse array; False is for DataFrames,
        ``set_output(transform="pandas")`` or "polars".

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

    max_features: int | None = None
    sparse_output: bool = field(default=True, kw_only=True)

    def __setstate__(self, state):
        super().__setstate__(state)
        # NaN equals nothing but is found as the same object, which it is not when it is loaded.
        for j, columns in enumerate(vars(self).get("columns_", ())):
            if any(map(_is_nan, columns)):
                found = {math.nan if _is_nan(value) else value: k for value, k in columns.items()}
                self.columns_[j] = found

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.input_tags.allow_nan = True
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
        if not num_samples(X):
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
            In each field either strings, numbers, dates or the like, beside None and NaN. Equal
            values are one category, also in another container, type or unit: an array, lists, or a
            DataFrame of any library. A midnight is the date, and times with a zone are in UTC.
        y : object, default=None
            Ignored.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If numbers are infinite, the number of fields is another one, times are finer than a
            microsecond or beyond the year 9999, or ``max_features`` is not None or an integer of at
            least 1.
        TypeError
            If a value cannot be a category, if a field holds values of several kinds (strings
            beside numbers, times with a zone beside others), also of earlier rows, or if ``X`` is
            sparse.
        """
        most = np.iinfo(np.int32).max
        if self.max_features is not None:
            most = check_integer("max_features", self.max_features, 1)
        fields, begins = _fields_of(X), not hasattr(self, "columns_")
        validate_data(self, X, reset=begins, skip_check_array=True)
        known = [{} for _ in fields] if begins else self.columns_
        # All are read before any is added: an error leaves the columns as they were.
        for j, (values, columns) in enumerate(zip(fields, known, strict=True)):
            _check_categories(j, values, columns)
        if begins:
            self.columns_, self.n_features_out_ = known, 0
        for values, columns in zip(fields, self.columns_, strict=True):
            for value in dict.fromkeys(values):
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

        Raises
        ------
        ValueError, TypeError
            As in ``partial_fit``, and if DataFrames are to be made of sparse rows.
        """
        check_is_fitted(self, "columns_")
        sparse_output = check_flag("sparse_output", self.sparse_output)
        container = get_output_config("transform", self)["dense"]
        if sparse_output and container != "default":
            raise ValueError(
                f"sparse_output=True makes no {container} DataFrame; set sparse_output=False, or "
                f"set_output(transform='default')."
            )
        fields = _fields_of(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        found = np.empty((len(fields[0]), len(fields)), dtype=np.int32)
        for j, (values, columns) in enumerate(zip(fields, self.columns_, strict=True)):
            _check_categories(j, values, columns)
            places = np.fromiter(
                map(columns.get, values, itertools.repeat(-1)), np.int32, len(values)
            )
            if (None in columns) != (math.nan in columns):
                stand_in = columns[None if None in columns else math.nan]
                missing = map(_is_missing, values)
                places = np.where(np.fromiter(missing, bool, len(values)), stand_in, places)
            found[:, j] = places
        found.sort(axis=1)
        known = found >= 0
        indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        ones = np.ones(indptr[-1], dtype=np.float32)
        rows = csr_of(ones, found[known], indptr, (len(found), self.n_features_out_))
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
        for name, columns in zip(
            check_feature_names_in(self, input_features), self.columns_, strict=True
        ):
            for value, column in columns.items():
                names[column] = f"{name}_{value}"
        return names


def _fields_of(X):
    """Return the values of each field as a list."""
    if issparse(X):
        raise TypeError(
            "X is a sparse matrix; IncrementalOneHotEncoder takes rows of categories, as an array, "
            "lists or a DataFrame."
        )
    if not is_frame(X):
        # As objects: NumPy would make strings of numbers beside strings.
        X = np.array(X, dtype=object) if isinstance(X, (list, tuple)) else np.asarray(X)
    fields = read_cells(X, nan=math.nan)[1]
    if not fields:
        raise ValueError(f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return fields


def _check_categories(j, values, known):
    """Raise unless the values of a field are of one kind, as those known before, or missing."""
    if {*map(type, itertools.islice(known, 3)), *map(type, values)} in ({int}, {str}):
        return
    try:
        distinct = dict.fromkeys([*itertools.islice(known, 3), *values])
    except TypeError as error:
        raise TypeError(
            f"Field {j} of X holds a value that cannot be a category: {cut(error)}. Each argument "
            f"must be a string or a number."
        ) from None
    types = set(map(type, distinct))
    if complex in types:
        raise ValueError(f"Complex data not supported: field {j} of X holds complex numbers.")
    if {math.inf, -math.inf} & distinct.keys():
        row = next(k for k, value in enumerate(values) if value in (math.inf, -math.inf))
        raise ValueError(f"Field {j} of X holds inf at row {row}; give finite numbers.")
    if len(types) == 1 and datetime not in types:
        return
    by_kind = {}
    for value in itertools.filterfalse(_is_missing, distinct):
        by_kind.setdefault(_kind(value), value)
    if len(by_kind) > 1:
        first, other, *_ = by_kind.values()
        raise TypeError(
            f"Field {j} of X holds {shown(other)} beside {shown(first)}; these would be two "
            f"categories, even if they mean the same. Convert the field to one type, for instance "
            f"to strings."
        )


def _is_missing(value):
    return value is None or _is_nan(value)


def _is_nan(value):
    return type(value) is float and value != value


def _kind(value):
    """Return the kind of a value: values of different kinds are never equal."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return "time with zone"
    return next((kind for kind in (Number, date) if isinstance(value, kind)), type(value))
