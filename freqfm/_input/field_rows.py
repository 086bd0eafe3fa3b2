"""Sparse rows that carry the field of each column."""

import numpy as np
from scipy import sparse


class FieldRows(sparse.csr_array):
    """Rows that carry the field of each column, ``fields``; None where they were lost."""

    fields = None

    @classmethod
    def of(cls, rows, fields):
        """Return rows in CSR with fields."""
        found = cls(rows)
        found.fields = fields
        return found

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if self.fields is not None and isinstance(found, FieldRows) and found.ndim == 2:
            columns = key[1] if isinstance(key, tuple) and len(key) == 2 else slice(None)
            if not isinstance(columns, (int, np.integer)):
                found.fields = self.fields[columns].reshape(-1)
        return found


def with_fields_of(given, rows):
    """Return rows with the fields that ``given`` carries, if any."""
    return FieldRows.of(rows, given.fields) if isinstance(given, FieldRows) else rows
