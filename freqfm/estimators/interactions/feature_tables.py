"""Tables of features of users or items by id, encoded for ``backbones.Features``."""

from numbers import Number

import numpy as np
from scipy import sparse
from sklearn.feature_extraction import DictVectorizer

from freqfm._input.cells import read_cells
from freqfm._input.columns import role_of
from freqfm._input.frames import dtype_of, is_frame, open_frame
from freqfm._input.ids import as_ids, unique_codes
from freqfm._input.interactions import InteractionTable
from freqfm._messages import shorten, shown
from freqfm._warnings import warn_once

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
