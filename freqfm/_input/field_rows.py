"""Sparse rows that carry the field of each column."""

import numpy as np
from scipy import sparse


class CarriesFields:
    """Mixin: a matrix has the field of each column, ``fields``; None where they were lost."""

    fields = None

    @classmethod
    def of(cls, rows, fields):
        """Return rows in the format of the class, with fields."""
        found = cls(rows)
        found.fields = fields
        return found

    def _with_data(self, data, copy=True):
        """Return other values in the same places: copies, other types, multiples and so on."""
        found = super()._with_data(data, copy=copy)
        found.fields = self.fields
        return found

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if self.fields is not None and isinstance(found, CarriesFields) and found.ndim == 2:
            columns = key[1] if isinstance(key, tuple) and len(key) == 2 else slice(None)
            if not isinstance(columns, (int, np.integer)):
                found.fields = self.fields[columns].reshape(-1)
        return found


class FieldRows(CarriesFields, sparse.csr_array):
    """Rows that carry the field of each column."""

    def tocsc(self, copy=False):
        """Return the matrix by columns."""
        return FieldColumns.of(super().tocsc(copy=copy), self.fields)


class FieldColumns(CarriesFields, sparse.csc_array):
    """Columns that carry the field of each."""

    def tocsr(self, copy=False):
        """Return the matrix by rows."""
        return FieldRows.of(super().tocsr(copy=copy), self.fields)


def with_fields_of(given, rows):
    """Return rows with the fields that ``given`` carries, if any."""
    return FieldRows.of(rows, given.fields) if isinstance(given, CarriesFields) else rows
