"""What machines share whose features all have a field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from freqfm.estimators.fm.factors.plain import PlainFactors
from freqfm.estimators.fm.fields import resolve_fields

# Without ``fields`` every column is a field, and a row takes time for each pair of them.
_MOST_COLUMNS = 256


def count_fields(fields):
    """Return the number of fields, by those of all columns."""
    return 1 + int(fields.max())


def _continued(found, known):
    """Return the fields of a model's columns and of new ones; new fields get the next numbers.

    ``known`` are those of the model, ``found`` those of all columns, in which the same fields may
    have other numbers: names of new fields may come first in their order.
    """
    if found is not None and known is not None:
        number = np.full(count_fields(found), -1, dtype=np.int32)
        of_known = found[: len(known)]
        number[of_known] = known
        is_new = number < 0
        n_known = count_fields(known)
        if np.array_equal(number[of_known], known) and np.count_nonzero(~is_new) == n_known:
            number[is_new] = np.arange(n_known, n_known + np.count_nonzero(is_new))
            return number[found]
    raise ValueError(
        "fields differ from those of the model to continue; set them back, give rows that carry "
        "the same fields for the columns that the model has, or fit a new model with "
        "warm_start=False."
    )


@dataclass(eq=False, repr=False, kw_only=True)
class FieldsParameter:
    """The parameter ``fields`` and the attribute ``fields_``; before the class of the factors."""

    _parameter_constraints = {"fields": ["array-like", callable, None]}

    fields: ArrayLike | Callable | None = None

    def _fields_of(self, X):
        """Return the field of each feature as a number from 0 on, or None."""
        return resolve_fields(self.fields, X, self.n_features_in_)

    def _take_fields(self, X, reset):
        found = self._fields_of(X)
        if reset:
            self.fields_ = found
        elif not np.array_equal(found, self.fields_):
            self.fields_ = _continued(found, self.fields_)


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsByField(FieldsParameter, PlainFactors):
    """Factors of features that all have a field: without ``fields`` each one of its own."""

    def _fields_of(self, X):
        fields, n_features = super()._fields_of(X), self.n_features_in_
        if fields is not None:
            return fields
        if n_features > _MOST_COLUMNS:
            raise ValueError(
                f"fields=None makes every column of X a field, but X has {n_features} columns, and "
                f"at most {_MOST_COLUMNS} can be fields that way. Wrap the encoder that makes "
                f"X in freqfm.WithFields, or give the field of each column, as "
                f"freqfm.column_fields(encoder) returns it."
            )
        return np.arange(n_features, dtype=np.int32)

    def _begin_part(self, part, tokens):
        part.fields_ = self.fields_[tokens]
        super()._begin_part(part, tokens)
