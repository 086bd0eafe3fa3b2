"""What machines share whose features all have a field."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from freqfm._input.field_rows import CarriesFields
from freqfm._input.rows import slices
from freqfm.estimators.fm.factors.plain import PlainFactors
from freqfm.estimators.fm.fields import resolve_fields

# Without ``fields`` every column is a field, and a row takes time for each pair of them.
_MOST_COLUMNS = 256

_GIVE_FIELDS = (
    "Wrap all that makes X in freqfm.WithFields, such as WithFields(OneHotEncoder()) or "
    "WithFields(ColumnTransformer(...)), or give the field of each column, as "
    "freqfm.column_fields(encoder) returns it."
)

# Rows that are searched at a time for columns that are categories, and the number of rows with two
# of them that are expected by chance if columns are independent, from which on they are.
_ROWS, _BY_CHANCE = 1 << 14, 10

# For each model its fields and those that rows carried when it was last called; the rows of an
# encoder share an array, which is not compared again for every row.
_AGREED = weakref.WeakKeyDictionary()


def count_fields(fields):
    """Return the number of fields, by those of all columns."""
    return 1 + int(fields.max())


def _continued(labels, found, known_labels, known):
    """Return the labels and the fields of a model's columns and of new ones.

    ``known`` are those of the model, ``found`` those of all columns. The same fields may have other
    numbers, since new ones may come first in order, and other labels, but not those of each other.
    New fields get the next numbers.
    """
    if found is not None and known is not None:
        number = np.full(len(labels), -1, dtype=np.int32)
        of_known = found[: len(known)]
        number[of_known] = known
        is_new = number < 0
        n_known = count_fields(known)
        place = {label: k for k, label in enumerate(known_labels)}
        renamed = zip(labels, number.tolist(), strict=True)
        swapped = any(k >= 0 and place.get(label, k) != k for label, k in renamed)
        same = np.array_equal(number[of_known], known) and not swapped
        if same and np.count_nonzero(~is_new) == n_known:
            number[is_new] = np.arange(n_known, len(labels))
            return [labels[i] for i in np.argsort(number)], number[found]
    raise ValueError(
        "fields differ from those of the model to continue; set them back, give rows that carry "
        "the same fields for the columns that the model has, or fit a new model with "
        "warm_start=False."
    )


def _find_categories(X):
    """Return the first and last of adjacent columns that are categories of a variable, or None.

    They hold one number each, and no row has two of them, although by chance several rows would:
    ten, which columns that are independent miss with a probability of exp(-10).
    """
    n_columns = X.shape[1]
    counts, values = np.zeros((2, n_columns))
    # For each column the nearest one at its right that shares a row with it; itself, if it varies.
    stop = np.full(n_columns, n_columns)
    for rows in slices(X.shape[0], _ROWS):
        indptr = X.indptr[rows.start : rows.stop + 1]
        columns, data = (of[indptr[0] : indptr[-1]] for of in (X.indices, X.data))
        counts += np.bincount(columns, minlength=n_columns)
        values[columns] = np.where(values[columns] == 0, data, values[columns])
        varied = columns[data != values[columns]]
        stop[varied] = np.minimum(stop[varied], varied)
        in_row = np.ones(len(columns) + 1, dtype=bool)
        in_row[indptr - indptr[0]] = False
        inner = np.flatnonzero(in_row[:-1])
        in_rows = np.zeros((n_columns, n_columns), dtype=bool)
        in_rows[columns[inner - 1], columns[inner]] = True
        lefts, rights = np.nonzero(in_rows)
        np.minimum.at(stop, lefts, rights)
        ends = np.minimum.accumulate(stop[::-1])[::-1]
        sums, squares = (np.append(0, np.cumsum(of)) for of in (counts, counts**2))
        begins = np.arange(n_columns)
        held, paired = sums[ends] - sums[begins], squares[ends] - squares[begins]
        by_chance = np.where(ends > begins, held**2 - paired, 0) / (2 * min(rows.stop, X.shape[0]))
        first = int(by_chance.argmax())
        if by_chance[first] < _BY_CHANCE:
            return None
    return first, int(ends[first]) - 1


@dataclass(eq=False, repr=False, kw_only=True)
class FieldsParameter:
    """The parameter ``fields`` and the attribute ``fields_``; before the class of the factors."""

    _parameter_constraints = {"fields": ["array-like", callable, None]}

    fields: ArrayLike | Callable | None = None

    # The labels of the fields by number.
    _field_labels = None

    def _fields_of(self, X):
        """Return the labels of fields, and the field of each feature as a number, or None twice."""
        return resolve_fields(self.fields, X, self.n_features_in_)

    def _take_fields(self, X, reset):
        labels, found = self._fields_of(X)
        if not (reset or (np.array_equal(found, self.fields_) and labels == self._field_labels)):
            labels, found = _continued(labels, found, self._field_labels or (), self.fields_)
        self.fields_, self._field_labels = found, labels

    def _check_carried(self, X):
        carried, both = X.fields, (self.fields_, X.fields)
        if carried is None or self._field_labels is None or len(carried) > len(self.fields_):
            return
        if not all(map(operator.is_, both, _AGREED.get(self, (None, None)))):
            if not self._agrees_with(carried):
                raise ValueError(
                    f"X carries fields other than those of the columns that the "
                    f"{type(self).__name__} was trained on; give rows of the same encoder, with "
                    f"the same columns in the same order."
                )
            _AGREED[self] = both

    def _agrees_with(self, carried):
        own, labels = self.fields_[: len(carried)], self._field_labels
        found, codes = np.unique(carried, return_inverse=True)
        if self.fields is None or set(found.tolist()) == set(labels):
            return np.array_equal(np.array(labels)[own], carried)
        # Labels of the user's own: each may stand for several that are carried, or be a part.
        n_pairs = len(np.unique(codes * len(labels) + own))
        return n_pairs <= max(len(found), len(labels))


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsByField(FieldsParameter, PlainFactors):
    """Factors of features that all have a field: without ``fields`` each one of its own."""

    def _fields_of(self, X):
        (labels, fields), n_features = super()._fields_of(X), self.n_features_in_
        if fields is not None:
            return labels, fields
        if n_features > _MOST_COLUMNS:
            raise ValueError(
                f"fields=None makes every column of X a field, but X has {n_features} columns, and "
                f"at most {_MOST_COLUMNS} can be fields that way. {_GIVE_FIELDS}"
            )
        return list(range(n_features)), np.arange(n_features, dtype=np.int32)

    def _refuse_categories(self, given, X):
        if self.fields is None and not isinstance(given, CarriesFields):
            found = _find_categories(X)
            if found is not None:
                raise ValueError(
                    f"fields=None makes every column of X a field, but columns {found[0]} to "
                    f"{found[1]} are categories of one variable: no row holds two of them. "
                    f"{_GIVE_FIELDS} If each of them is to be a field, give "
                    f"fields=np.arange({X.shape[1]})."
                )

    def _begin_part(self, part, tokens):
        part.fields_ = self.fields_[tokens]
        super()._begin_part(part, tokens)
