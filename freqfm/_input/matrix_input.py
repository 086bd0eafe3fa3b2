"""Tables, and columns of ids, that are given where a matrix of users x items is expected."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.columns import only_numbered, role_of
from freqfm._input.frames import is_frame, is_lazy, open_frame
from freqfm._input.ids import as_floats
from freqfm._input.times import are_times
from freqfm._input.validation import as_array
from freqfm._messages import shorten, shown
from freqfm._warnings import warn_once

# Weights of interactions are rarely whole numbers beyond this, ids are.
_MANY = 100

# Wider matrices are not searched for tables; in narrow ones large ids suffice for a warning.
_WIDEST, _NARROW = 12, 4

# Ids are in every row, though one of them may be 0; few items have interactions of so many users.
_FILLED = 0.75

# Whole numbers that rise over so many rows are ids, or of which so many rows have all but a few.
_RISING, _COMPLETE = 5, 20


class _Column(NamedTuple):
    """Properties of the values of a column."""

    is_filled: bool = False  #: whole numbers, most of them positive
    is_large: bool = False  #: whole numbers, some as large as ids
    is_numbering: bool = False  #: whole numbers, another one in each row, as ids of rows
    is_text: bool = False
    is_time: bool = True  #: times, or no numbers at all

    @classmethod
    def of(cls, values):
        """Return the properties of a column of two rows or more."""
        values = np.asarray(values)
        is_text = isinstance(values[0], (str, bytes))
        numbers = as_floats(values)
        if numbers is None:
            return cls(is_text=is_text)
        is_whole = numbers.min() >= 0 and numbers.max() < np.inf
        is_whole = is_whole and bool((numbers == np.floor(numbers)).all())
        return cls(
            is_whole and np.count_nonzero(numbers) >= _FILLED * len(numbers),
            is_whole and numbers.max() > _MANY,
            is_whole and _are_row_numbers(numbers),
            is_text,
            2 * np.count_nonzero(are_times(numbers)) > len(numbers),
        )


def _are_row_numbers(numbers):
    """Return whether whole numbers rise from row to row, or number the rows in another order."""
    n, span = len(numbers), numbers.max() - numbers.min()
    if n >= _RISING and (np.diff(numbers) > 0).all():
        return True
    return n >= _COMPLETE and n - 1 <= span < 2 * n and len(np.unique(numbers)) == n


def refuse_table(X):
    """Raise if a table of interactions is given where a matrix of users x items is expected.

    A table has usual names of columns, or it begins with two columns of large whole numbers that
    names, times or tuples tell to be ids. Without these it is only warned, since they may be
    weights. A sparse matrix is never taken for a table.

    Raises
    ------
    ValueError
        If ``X`` is a table, or has a column of users' ids beside the items.
    """
    if sparse.issparse(X) or is_lazy(X):
        return
    names, n_columns, column = _open(X)
    roles = set() if only_numbered(names) else set(map(role_of, names))
    if {"user", "item"} <= roles:
        raise _table_error(f"with the columns {shorten(names)}")
    if n_columns < 2 or len(column(0)) < 2:
        return
    if "user" in roles and n_columns > 2:
        _refuse_ids_of_rows(names, column)
    told = isinstance(X, (list, tuple)) and isinstance(X[0], tuple)
    told = told or not roles.isdisjoint({"user", "item", "time"})
    n_searched = n_columns if n_columns <= _WIDEST else 2
    columns = [_Column.of(column(place)) for place in range(n_searched)]
    if n_columns <= _WIDEST and columns[0].is_filled and columns[1].is_filled:
        _refuse_ids(columns, told, bool(roles), len(column(0)))
    if n_columns > 2 and columns[0].is_numbering and not columns[1].is_numbering:
        warn_once(
            f"{_read_as(len(column(0)), n_columns)}, but its first column looks like ids of the "
            f"rows. If so, leave it out; if not, pass a sparse matrix."
        )


def _refuse_ids(columns, told, is_named, n_rows):
    """Raise if a table begins with two columns of ids, most of which are positive; warn if it may.

    ``told`` says whether it looks like a table in other respects.
    """
    first, second, *others = columns
    is_narrow = len(columns) <= _NARROW
    # In a matrix of large counts all columns are alike.
    may_be_ids = first.is_large and second.is_large
    may_be_ids &= is_narrow or not all(other.is_large and not other.is_time for other in others)
    told_by_columns = any(other.is_time for other in others) or (is_named and not others)
    if (first.is_text and second.is_text) or (may_be_ids and (told or told_by_columns)):
        raise _table_error("whose first columns are ids")
    if may_be_ids or (told and is_narrow):
        warn_once(
            f"{_read_as(n_rows, len(columns))}, but its first columns look like ids. If they are, "
            f"fit an InteractionRecommender, which takes tables; if not, pass a sparse matrix."
        )


def _read_as(n_rows, n_columns):
    shape = n_rows, n_columns
    return f"X of shape {shape} is read as a matrix of {n_rows} users and {n_columns} items"


def _refuse_ids_of_rows(names, column):
    """Raise if a column of users, which has another value in each row, is beside those of items."""
    place = [role_of(name) for name in names].index("user")
    values = np.asarray(column(place))
    numbers = _Column.of(values)
    if (numbers.is_filled or numbers.is_text) and len(set(values.tolist())) == len(values):
        raise ValueError(
            f"column {shown(names[place])} of X holds ids, one for each row, where all columns of "
            f"a matrix of users x items are items. Leave it out, and keep the ids in the order of "
            f"the rows."
        )


def _table_error(found):
    return ValueError(
        f"X is a table of interactions, {found}, where a matrix of users x items is expected. Fit "
        f"an InteractionRecommender, which takes tables; pass a matrix that looks like a table as "
        f"scipy.sparse.csr_array(X)."
    )


def _open(X):
    """Return the names of a DataFrame, the number of columns, and a function that returns one."""
    if is_frame(X):
        names, column = open_frame(X)
        return names, len(names), column
    array = as_array("X", X)
    return [], array.shape[1] if array.ndim == 2 else 0, lambda place: array[:, place]
