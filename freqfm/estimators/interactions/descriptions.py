"""How InteractionRecommender passes features by id, and columns of context, to its recommender."""

import copy
from collections.abc import Mapping
from numbers import Integral, Number

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction import DictVectorizer

from freqfm._input.cells import read_cells
from freqfm._input.frames import dtype_of, is_frame, is_lazy, open_frame, role_of
from freqfm._input.ids import as_ids, extend_ids, find_codes, is_missing, unique_codes
from freqfm._input.interactions import InteractionTable
from freqfm._messages import shorten, shown, warn_once

# Numbers beyond this are reported: they are used as they are.
_LARGE = 100


class FeatureTable:
    """A DataFrame with a row of features for each id.

    Ids are the index of a pandas DataFrame if it has the name of the interactions' column; else a
    column with that name, or the only one with a usual name; else an index that does not just
    number the rows.

    Parameters
    ----------
    role : {"user", "item"}
    frame : DataFrame
    column : str or None
        Name of the interactions' column of these ids.
    name : str, default=None
        Of the argument, for error messages; None is that of the role's features.

    Attributes
    ----------
    ids : ndarray of shape (n_rows,)
        Distinct.
    rows : list of dict
        Numbers by the name of the feature, for each id.

    Raises
    ------
    ValueError, TypeError
        If it is not a DataFrame, has no ids, or holds what cannot be encoded.
    """

    def __init__(self, role, frame, column, name=None):
        self.role, self.name = role, name or f"{role}_features"
        if not is_frame(frame):
            raise TypeError(
                f"{self.name} must be a DataFrame with a row of features for each id; got "
                f"{type(frame).__name__}. Matrices go to "
                f"MFRecommender(backbone=Features({self.name}=...))."
            )
        table = InteractionTable(frame)
        names = [str(name) for name in (table.names or range(table.shape[1]))]
        place = self._place_of_ids(frame, names, column)
        ids = frame.index.to_numpy() if place is None else table.column(place)
        self.ids = as_ids(ids, f"the ids of {self.name}")
        distinct, codes = unique_codes(self.ids, f"the ids of {self.name}")
        if len(distinct) < len(codes):
            twice = distinct[np.bincount(codes) > 1]
            raise ValueError(
                f"{self.name} has several rows for {shorten(twice, 5)}; give one row for "
                f"each {role}, with lists for several values."
            )
        self.rows = [{} for _ in codes]
        _, cells = read_cells(frame, self.name)
        _, column_at = open_frame(frame, self.name)
        for k in range(len(cells)):
            if k != place:
                # As pandas and as Arrow name them.
                is_category = str(dtype_of(column_at(k))).startswith(("category", "dictionary"))
                self._add(names[k], cells[k], is_category)

    def _place_of_ids(self, frame, names, column):
        """Return the position of the column of ids; None if they are in the index."""
        index = getattr(frame, "index", None) if hasattr(frame, "iloc") else None
        name = getattr(index, "name", None)
        if name is not None and (name == column or role_of(name) == self.role):
            return None
        if column in names:
            return names.index(column)
        found = [k for k, name in enumerate(names) if role_of(name) == self.role]
        if len(found) == 1:
            return found[0]
        if index is not None and type(index).__name__ not in ("RangeIndex", "MultiIndex"):
            return None
        raise ValueError(
            f"{self.name} has no column of {self.role} ids among {shorten(names)}: name it as in "
            f"the interactions, or make it the index, set_index(...)."
        )

    def _add(self, column, values, is_category):
        """Add a column's features to the rows."""
        largest = 0.0
        for row, value in zip(self.rows, values, strict=True):
            found = _features_of(column, value, is_category)
            if found is None:
                raise TypeError(
                    f"{self.name} holds {shown(value)} in column {shown(column)}; features are "
                    f"finite numbers below 3.4e38, strings, lists of these or dicts of numbers: "
                    f"convert dates, for instance to strings."
                )
            row.update(found)
            if isinstance(value, Number) and found and not is_category:
                largest = max(largest, abs(value))
        if largest > _LARGE:
            warn_once(
                f"column {shown(column)} of {self.name} holds numbers up to {largest:g}, by which "
                f"the vector of a single feature is multiplied: scale them, or make categories of "
                f"them by astype(str)."
            )


def _features_of(column, value, is_category):
    """Return the features of a cell by name; None if it cannot be encoded."""
    if value is None:
        return {}
    if isinstance(value, dict):
        if not all(map(_is_finite, value.values())):
            return None
        return {f"{column}={key}": float(number) for key, number in value.items()}
    if isinstance(value, list):
        return {f"{column}={item}": 1.0 for item in value if item is not None}
    if isinstance(value, str) or (is_category and isinstance(value, Number)):
        return {f"{column}={value}": 1.0}
    if _is_finite(value):
        return {column: float(value)} if value else {}
    return None


def _is_finite(value):
    """Return whether a value is a number that is finite in float32."""
    is_number = isinstance(value, Number) and not isinstance(value, complex)
    return is_number and bool(abs(value) <= float(np.finfo(np.float32).max))


def new_encoder(table):
    """Return a DictVectorizer for the features of a table."""
    if not any(table.rows):
        raise ValueError(f"{table.name} holds no features: every cell is missing or zero.")
    encoder = DictVectorizer(dtype=np.float32).set_output(transform="default")
    return encoder.fit(table.rows)


def encode(encoder, table, unknown=None):
    """Return the rows of a table as a matrix, without features that the encoder does not know.

    Parameters
    ----------
    encoder : DictVectorizer
    table : FeatureTable
    unknown : UnknownIds, default=None
        Notes these features. None warns of them.

    Raises
    ------
    ValueError
        If it knows none of them, without ``unknown``.
    """
    known = encoder.vocabulary_
    strange = sorted({name for row in table.rows for name in row} - set(known))
    if unknown is not None:
        unknown.note(table.role, table.name, strange, "feature")
    elif strange:
        some = shorten(strange, 5)
        if not any(name in known for row in table.rows for name in row):
            raise ValueError(
                f"{table.name} has no feature that fit has seen; it has {some}, and fit has seen "
                f"{shorten(sorted(known), 5)}."
            )
        warn_once(f"{table.name} has features that fit has not seen, which are left out: {some}.")
    return sparse.csr_array(encoder.transform(table.rows))


def place_rows(table, matrix, codes, ids):
    """Return a matrix with a row for each of ``ids``; those without features are reported.

    ``codes`` are the positions of the rows of ``matrix`` among them.
    """
    without = np.ones(len(ids), dtype=bool)
    without[codes] = False
    if without.any():
        some = shorten(ids[without][:5], 5)
        warn_once(
            f"{table.name} has no row for {np.count_nonzero(without)} of {len(ids)} {table.role}s, "
            f"such as {some}; they have no features."
        )
    places = sparse.csr_array(
        (np.ones(len(codes), np.float32), (codes, np.arange(len(codes)))),
        shape=(len(ids), len(codes)),
    )
    return sparse.csr_array(places @ matrix)


_ROLES = "user", "item"


# What is learned of each column of the context, by its name.
_LEARNED = "context_values_", "_context_order", "_context_numbers"

_NOTHING = np.zeros(0, dtype=np.int64)


class DescriptionsMixin:
    """Encodes ``user_features`` and ``item_features`` in the order of the ids, and ``context``.

    Each value of a column of the context is a feature. ``context_values_`` are the values by
    column; ``_context_order`` sorts those of each, as ``_user_order`` does ids, and
    ``_context_numbers`` are their features. Rows of a table are "moments" here: an integer for each
    column, -1 for values that are missing or not known.
    """

    # Features by id.

    def _pass_features(self, reset, queries):
        """Number the ids that have features, and give these to the recommender's backbone.

        ``queries`` are the backbone's parameters ``users`` and ``context``, if there is a context.
        """
        given = {role: getattr(self, f"{role}_features") for role in _ROLES}
        given = {role: frame for role, frame in given.items() if frame is not None}
        if reset:
            for role in _ROLES:
                self.__dict__.pop(f"{role}_encoder_", None)
        if not given and not queries:
            return
        tables = {
            role: FeatureTable(role, frame, self._column_of(role)) for role, frame in given.items()
        }
        features = dict(queries)
        for role, table in tables.items():
            codes = self._add_ids(role, table.ids, f"the ids of {table.name}")
            if reset:
                setattr(self, f"{role}_encoder_", new_encoder(table))
            matrix = encode(self._encoder_of(role), table)
            known, _ = self._ids(role)
            features[f"{role}_features"] = place_rows(table, matrix, codes, known)
        self.estimator_.set_params(backbone=self._backbone(features))

    def _backbone(self, features):
        """Return the backbone of the recommender with these features."""
        from freqfm.backbones import Context, Features

        backbone = getattr(self.estimator_, "backbone", None)
        if isinstance(backbone, str) and backbone in ("linear", "features", "context"):
            backbone = Features()
        if "context" in features and type(backbone) is Features:
            backbone = Context(**backbone.get_params(deep=False))
        if not isinstance(backbone, Features):
            named = " and ".join(sorted({*features} - {"users"}))
            raise ValueError(
                f"{named} need a recommender whose backbone is Features or Context, such as "
                f"MFRecommender(); got {self.estimator_!r}."
            )
        chosen = getattr(self.estimator, "backbone", None)
        both = [name for name in features if getattr(chosen, name, None) is not None]
        if both and not hasattr(self.estimator, "_unfinished"):
            raise ValueError(
                f"{both[0]} is given twice, by id and to the estimator's backbone; leave one out."
            )
        return clone(backbone).set_params(**features)

    def _column_of(self, role):
        """Return the name of the interactions' column of users or items, if it has one."""
        key, names = getattr(self, role), getattr(self, "feature_names_in_", [])
        if isinstance(key, Integral):
            return names[key] if len(names) else None
        if key != "auto":
            return key
        found = [name for name in names if role_of(name) == role]
        return found[0] if len(found) == 1 else None

    def _encoder_of(self, role):
        """Return the encoder that fit has made, or raise."""
        encoder = getattr(self, f"{role}_encoder_", None)
        if encoder is None:
            raise ValueError(
                f"{role}_features needs a model that was fitted with features of {role}s: "
                f"InteractionRecommender(..., {role}_features=...)."
            )
        return encoder

    def _encoded(self, role, frame, unknown):
        """Return ids and features of users or items that are not in the model.

        Returns
        -------
        ids : ndarray of shape (n,)
        features : csr_array of shape (n, n_features)
        is_unknown : ndarray of bool, of shape (n,)
            Which have features, but none that fit has seen.
        """
        encoder = self._encoder_of(role)
        table = FeatureTable(role, frame, self._column_of(role))
        codes = find_codes(*self._ids(role), table.ids, f"the ids of {table.name}")
        known = table.ids[codes >= 0]
        if len(known):
            raise ValueError(
                f"{table.name} holds {role}s that are in the model, such as {shorten(known[:5])}; "
                f"leave them out: the model has its own features of them."
            )
        features = encode(encoder, table, unknown)
        is_unknown = np.array([bool(row) for row in table.rows]) & (np.diff(features.indptr) == 0)
        return table.ids, features, is_unknown

    def _with_new_items(self, frame, unknown):
        """Return a copy that numbers the items of a table too, and the matrix of their features.

        Items whose features are all unknown are left out.
        """
        ids, features, is_unknown = self._encoded("item", frame, unknown)
        ids, features = ids[~is_unknown], features[~is_unknown]
        model = copy.copy(self)
        codes, known, order = extend_ids(
            *self._ids("item", whole=True), ids, "the ids of item_features"
        )
        model._keep_ids("item", known, order)
        # New ids are numbered in their sorted order.
        return model, features[codes.argsort()]

    def _item_vectors(self, vectors):
        """Return features by which items differ, a row for each item; None if there are none."""
        if not is_frame(vectors):
            return vectors
        table = FeatureTable("item", vectors, self._column_of("item"), "item_vectors")
        codes = find_codes(*self._ids("item"), table.ids, f"the ids of {table.name}")
        known, _ = self._ids("item")
        matrix = encode(new_encoder(table), table)
        return place_rows(table, matrix[codes >= 0], codes[codes >= 0], known)

    # Columns of context.

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

    def _given_context(self, context, unknown, n_users):
        """Return the features of the argument ``context``, given for each user or for all."""
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
        return self._context_matrix(np.broadcast_to(moments, (n_users, moments.shape[1])))

    @property
    def _context_names(self):
        """The names of the context's features."""
        pairs = self.context_values_.items()
        names = np.array([f"{name}={value}" for name, values in pairs for value in values.tolist()])
        return names[np.argsort(np.concatenate(list(self._context_numbers.values())))].tolist()

    def _context_matrix(self, moments):
        """Return the features of moments, (n, n_context_features)."""
        numbers, known = self._context_numbers.values(), moments >= 0
        columns = np.column_stack(
            [np.append(rows, -1)[codes] for rows, codes in zip(numbers, moments.T, strict=True)]
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
