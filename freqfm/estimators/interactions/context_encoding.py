"""How InteractionRecommender turns columns of a table into the context of its queries."""

from collections.abc import Mapping
from numbers import Integral

import numpy as np
from scipy import sparse

from freqfm._input.frames import is_frame, is_lazy
from freqfm._input.ids import as_ids, extend_ids, find_codes, is_missing
from freqfm._input.interactions import InteractionTable
from freqfm._messages import shorten, shown

# What is learned of each column of the context, by its name.
_LEARNED = "context_values_", "_context_order", "_context_numbers"

_NOTHING = np.zeros(0, dtype=np.int64)


class ContextEncodingMixin:
    """Encodes the columns ``context``: each value of a column is a feature.

    ``context_values_`` are the values by column; ``_context_order`` sorts those of each, as
    ``_user_order`` does ids, and ``_context_numbers`` are their features. Rows of a table are
    "moments" here: an integer for each column, -1 for values that are missing or not known.
    """

    @property
    def _context_keys(self):
        """The columns that are read: names, or positions in arrays."""
        keys = [] if self.context is None else self.context
        if isinstance(keys, (str, Integral)) or not isinstance(keys, (list, tuple)):
            raise TypeError(
                f"context={shown(keys)} must be a list of columns of X, by name or position."
            )
        return list(keys)

    def _context_places(self, table, places=()):
        """Return the positions of the context's columns in a table; none may have another role."""
        keys = getattr(self, "_context_columns", None) or self._context_keys
        if table.names is None:
            keys = self._context_keys
        found = [table.place_of("context", key) for key in keys]
        twice = set(found) & set(places) | {at for at in found if found.count(at) > 1}
        if twice:
            raise ValueError(
                f"context={shown(self.context)} names column {min(twice)} of X, which is read as "
                f"another one too; say what it is by user=..., item=... and value=..."
            )
        return found

    def _learn_context(self, X, places, reset):
        """Store the values of the context's columns; without ``reset`` add those that are new."""
        if reset:
            for name in (*_LEARNED, "_context_columns"):
                vars(self).pop(name, None)
        if not self._context_keys:
            return
        if is_lazy(X):
            raise TypeError(
                f"context={shown(self.context)} needs a table in memory; X is a "
                f"{type(X).__name__}: collect it first."
            )
        table = InteractionTable(X)
        at = self._context_places(table, places)
        names = [k if table.names is None else table.names[k] for k in at]
        if reset:
            self._context_columns = None if table.names is None else names
        else:
            names = list(self.context_values_)
        # New dicts, so that the old ones are kept if training fails.
        values, orders, numbers = (dict(vars(self).get(name, {})) for name in _LEARNED)
        n_features = sum(map(len, numbers.values()))
        for name, place in zip(names, at, strict=True):
            ids, _ = _present(table.column(place), name)
            known = values.get(name, ids[:0]), orders.get(name, _NOTHING)
            where = f"context column {shown(name)}"
            _, values[name], orders[name] = extend_ids(*known, ids, where)
            before = numbers.get(name, _NOTHING)
            n_new = len(values[name]) - len(before)
            numbers[name] = np.append(before, n_features + np.arange(n_new))
            n_features += n_new
        self.context_values_, self._context_order, self._context_numbers = values, orders, numbers

    def _moments_of(self, X, unknown):
        """Return the moments of the rows of interactions, (n, n_columns); None without context."""
        if not self._context_keys:
            return None
        table = InteractionTable(X)
        return self._moments([table.column(k) for k in self._context_places(table)], unknown)

    def _moments(self, columns, unknown):
        """Return moments of columns in the order of ``context``; ``unknown`` notes new values."""
        moments, strange = [], []
        for (name, known), column in zip(self.context_values_.items(), columns, strict=True):
            ids, present = _present(column, name)
            codes = np.full(len(present), -1)
            where = f"context column {shown(name)}"
            codes[present] = find_codes(known, self._context_order[name], ids, where)
            new = ids[codes[present] < 0]
            strange += [f"{name}={value}" for value in dict.fromkeys(new.tolist())]
            moments.append(codes)
        unknown.note("context", "the context", strange, "value")
        return np.column_stack(moments)

    def _given_moments(self, context, unknown, n_users):
        """Return the moments of the argument ``context``: one for each user, or one for all."""
        if not self._context_keys:
            raise ValueError(
                "context= needs a model that was fitted with context: "
                "InteractionRecommender(context=[...]) names columns of X."
            )
        columns = _columns_of(context, list(self.context_values_))
        moments = self._moments(columns, unknown)
        if len(moments) not in (1, n_users):
            raise ValueError(
                f"context has {len(moments)} rows, but there are {n_users} users; give a row for "
                f"each of them, or one for all."
            )
        return moments

    @property
    def _context_names(self):
        """The names of the context's features."""
        pairs = self.context_values_.items()
        names = np.array([f"{name}={value}" for name, of in pairs for value in of.tolist()])
        return names[np.argsort(np.concatenate(list(self._context_numbers.values())))].tolist()

    def _context_matrix(self, moments):
        """Return the features of moments, (n, n_context_features)."""
        numbers, known = self._context_numbers.values(), moments >= 0
        columns = np.column_stack(
            [np.append(of, -1)[codes] for of, codes in zip(numbers, moments.T, strict=True)]
        )
        rows = np.nonzero(known)[0]
        shape = len(moments), sum(map(len, numbers))
        return sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns[known])), shape)


def _columns_of(context, names):
    """Return the columns ``names`` of the argument ``context``: of a table, of dicts, or of a row.

    A list holds rows, or the values of a row, or like a Series those of a single column.
    """
    if hasattr(context, "iloc") and context.ndim == 1 and set(names) <= {*context.index}:
        context = context.to_dict()
    rows = context if isinstance(context, (list, tuple)) else []
    if len(rows) and all(isinstance(row, Mapping) for row in rows):
        shared = [name for name in names if all(name in row for row in rows)]
        context = {name: [row[name] for row in rows] for name in shared}
    if isinstance(context, Mapping):
        missing = [name for name in names if name not in context]
        if missing:
            raise ValueError(f"context has no {shorten(missing)}; give a value of each column.")
        columns = [np.atleast_1d(np.array(context[name], dtype=object)) for name in names]
        lengths = {len(column) for column in columns}
        if len(lengths - {1}) > 1:
            raise ValueError(
                f"context has columns of {' and '.join(map(str, sorted(lengths)))} values; give as "
                f"many in each, or one for all."
            )
        return np.broadcast_arrays(*columns)
    if is_frame(context):
        table = InteractionTable(context, "context")
        if table.names is not None:
            return [table.column(table.place_of("context", name)) for name in names]
        columns = list(map(table.column, range(table.shape[1])))
    else:
        # As objects, since NumPy would convert (8, "pc") to two strings.
        rows, is_row = np.array(context, dtype=object), not hasattr(context, "name")
        if rows.ndim < 2 and (len(names) == 1 or (is_row and rows.size in (0, len(names)))):
            rows = rows.reshape(-1, len(names))
        if rows.ndim != 2 or any(isinstance(one, (list, tuple, dict)) for one in rows.flat):
            raise ValueError(
                f"context={shown(context)} must hold a row of {shorten(names)} for each user, or "
                f"one for all: give a DataFrame, a dict of values by column, or a list of rows."
            )
        columns = list(rows.T)
    if len(columns) != len(names):
        raise ValueError(
            f"context has {len(columns)} columns, but the model has {shorten(names)}; give these, "
            f"in this order."
        )
    return columns


def distinct_queries(users, moments):
    """Return the number of the query of each row, and a row of each: users in equal moments."""
    numbers = users
    for codes in moments.T:
        keys = numbers.astype(np.int64) * (codes.max(initial=0) + 2) + codes + 1
        _, numbers = np.unique(keys, return_inverse=True)
    _, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
    return numbers, first


def _present(column, name):
    """Return the values of a column that are not missing, and which these are."""
    column = np.asarray(column)
    if column.dtype.kind == "f":
        present = ~np.isnan(column)
    elif column.dtype.kind == "O":
        present = np.array([not is_missing(value) for value in column.tolist()], dtype=bool)
    else:
        present = np.ones(len(column), dtype=bool)
    return as_ids(column[present], f"context column {shown(name)}"), present
