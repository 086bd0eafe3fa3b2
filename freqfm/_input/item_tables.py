"""Tables of items, and tables that are given where a matrix is expected."""

from collections.abc import Mapping, Set
from numbers import Number
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input import ids
from freqfm._input.frames import is_frame, is_lazy, only_numbered, open_frame, role_of
from freqfm._input.validation import as_array, check_finite, checked_csr
from freqfm._messages import shorten, shown, warn_once

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
        numbers = ids.as_floats(values)
        if numbers is None:
            return cls(is_text=is_text)
        is_whole = numbers.min() >= 0 and numbers.max() < np.inf
        is_whole = is_whole and bool((numbers == np.floor(numbers)).all())
        return cls(
            is_whole and np.count_nonzero(numbers) >= _FILLED * len(numbers),
            is_whole and numbers.max() > _MANY,
            is_whole and _are_row_numbers(numbers),
            is_text,
            2 * np.count_nonzero(ids.are_times(numbers)) > len(numbers),
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


def number_table(name, table, n_items=None):
    """Return a matrix of numbers with a row for each item, as an array or CSR, floating-point.

    Parameters
    ----------
    name : str
        Of the argument, for error messages.
    table : {array-like, sparse matrix} of shape (n_items, n_columns)
    n_items : int, default=None
        How many rows it must have, if that is known.

    Raises
    ------
    TypeError, ValueError
        If it is not a matrix of finite numbers.
    """
    is_sparse = sparse.issparse(table)
    table = checked_csr(table, name) if is_sparse else _as_numbers(as_array(name, table))
    if table.ndim != 2 or not all(table.shape):
        raise ValueError(
            f"{name} must be a matrix with a row for each item, of one column or more; got the "
            f"shape {table.shape}."
        )
    check_finite(name, table)
    if n_items not in (None, table.shape[0]):
        raise ValueError(
            f"{name} has {table.shape[0]} rows, but there are {n_items} items; give one row for "
            f"each item."
        )
    if is_sparse:
        table = sparse.csr_array(table, dtype=np.float64, copy=True)
        table.sum_duplicates()
    elif table.dtype.kind != "f":
        table = table.astype(np.float64)
    return table


def category_shares(categories, name="categories"):
    """Return how much of each item belongs to each category, (n_items, n_categories) CSR, float64.

    Rows add up to 1, or to 0 for items without category.

    Parameters
    ----------
    categories : {array-like, sparse matrix}
        What is two-dimensional, a sparse matrix, an array or a DataFrame of numbers, holds weights
        of shape (n_items, n_categories), which are divided by their sums. All else, lists of lists
        too, holds a label for each item, or a list of labels. Missing ones are none.
    name : str
        Of the argument, for error messages.

    Raises
    ------
    TypeError, ValueError
        If they cannot be read as such, a weight is negative, or lists look like rows of weights.
    """
    if isinstance(categories, (str, bytes, Mapping, Set)):
        raise TypeError(
            f"{name}={shown(categories)} has no order of items; give a label, or a list of "
            f"labels, for each of them."
        )
    if not _is_table(categories):
        rows = _as_rows(categories)
        if isinstance(categories, (list, tuple)):
            _refuse_weights(name, rows)
        return _shares_of_labels(rows, name)
    if not sparse.issparse(categories):
        categories = _as_numbers(as_array(name, categories))
        if categories.dtype.kind not in "biuf":
            return _shares_of_labels(list(categories), name)
    shares = sparse.csr_array(number_table(name, categories), dtype=np.float64)
    if shares.shape[1] == 1 and not np.isin(shares.data, (0, 1)).all():
        raise ValueError(
            f"{name} is a matrix of weights with one column, by which all items are alike; "
            f"give labels as a vector, that column alone."
        )
    return _divided_by_sums(name, shares)


def history_shares(history, n_users, n_items, item_ids=None):
    """Return the shares of items in the histories of users, (n_users, n_items) CSR, float64.

    Parameters
    ----------
    history : sparse matrix, ndarray of shape (n_users, n_items), or list of n_users lists
        Weights of items, of which negative ones are dislikes and not counted, or the items of each
        user, by indices or ids; what occurs twice counts twice. For one user also a list of items.
    n_users, n_items : int
    item_ids : array-like of shape (n_items,), default=None
        See :func:`codes_of`.

    Raises
    ------
    TypeError, ValueError
        If there is not a history for each user, an item is unknown, or lists look like rows of
        weights.
    """
    if _is_table(history):
        table = sparse.csr_array(number_table("history", history), dtype=np.float64)
        table.data = np.maximum(table.data, 0)
    else:
        lists = _as_rows(history)
        if n_users == 1 and not (len(lists) == 1 and is_list(lists[0])):
            lists = [lists]
        if not all(map(is_list, lists)):
            raise TypeError("history must be a matrix, or a list of the items of each user.")
        lists = [list(ids.as_list(one)) for one in lists]
        if n_items > 2 and all(len(one) == n_items for one in lists):
            _refuse_weights("history", lists)
        items = ids.as_ids([item for one in lists for item in one], "history")
        codes = codes_of("history", items, n_items, item_ids)
        rows = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
        pairs = rows[codes >= 0], codes[codes >= 0]
        table = sparse.csr_array((np.ones(len(pairs[0])), pairs), shape=(len(lists), n_items))
    if table.shape != (n_users, n_items):
        raise ValueError(
            f"history is of {table.shape[0]} users and {table.shape[1]} items, but there are "
            f"{n_users} users and {n_items} items; give one history for each list of items."
        )
    return _divided_by_sums("history", table)


def codes_of(name, items, n_items, item_ids=None):
    """Return the rows of items in a table, by their indices or ids; -1 for missing items.

    Parameters
    ----------
    name : str
        Of the argument, for error messages.
    items : ndarray of shape (n,)
        Indices, -1 for missing ones; or ids, None for missing ones.
    n_items : int
        How many rows the table has.
    item_ids : array-like of shape (n_items,), default=None
        The ids of the rows; None if ``items`` holds indices.

    Raises
    ------
    TypeError, ValueError
        If they are no indices or ids of rows.
    """
    if item_ids is None:
        if items.dtype.kind not in "iu":
            raise TypeError(
                f"{name} holds {items.dtype}; give indices of items, or item_ids, the ids of the "
                f"rows of the table of items."
            )
        if items.size and (items.min() < -1 or items.max() >= n_items):
            bad = items.min() if items.min() < -1 else items.max()
            raise ValueError(
                f"{name} holds {bad}, but there are {n_items} items; indices lie in [0, "
                f"{n_items - 1}], and -1 stands for a missing one."
            )
        return items.astype(np.int64)
    known = ids.as_ids(item_ids, "item_ids")
    if len(known) != n_items:
        raise ValueError(
            f"item_ids holds {len(known)} ids, but the table of items has {n_items} rows; give the "
            f"id of each row."
        )
    order = np.argsort(known, kind="stable")
    if (known[order][1:] == known[order][:-1]).any():
        raise ValueError("item_ids holds an id twice; give one row for each item.")
    there = np.array([not ids.is_missing(one) for one in items.tolist()], dtype=bool)
    codes, asked = np.full(len(items), -1), ids.as_ids(items[there], name)
    codes[there] = ids.find_codes(known, order, asked, name)
    strange = asked[codes[there] < 0]
    if len(strange):
        raise ValueError(
            f"{name} holds {shorten(list(dict.fromkeys(strange.tolist())), 5)}, which item_ids "
            f"does not have; give the rows of all items."
        )
    return codes


def refuse_repeated(name, items, codes):
    """Raise if a row of lists has an item twice, by the codes of its items; -1 is a missing one."""
    ordered = np.sort(codes, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row, place = np.argwhere(twice)[0]
        item = items[row][codes[row] == ordered[row, place]][0]
        raise ValueError(f"{name} names item {shown(item)} twice in row {row}; give it once.")


def is_list(one):
    """Return whether this is a list of ids, indices or labels rather than a single one."""
    return isinstance(one, (list, tuple, Set, np.ndarray))


def _is_table(values):
    """Return whether values have rows and columns, which lists of lists have not."""
    return sparse.issparse(values) or is_frame(values) or getattr(values, "ndim", 1) > 1


def _as_rows(values):
    """Return the elements of a list, a vector or a column as a list; a single value is one."""
    values = ids.as_list(values)
    values = np.asarray(values) if hasattr(values, "__array__") else values
    return list(values) if is_list(values) else [values]


def _as_numbers(array):
    """Return an array of objects, as of a DataFrame of several types, as numbers if all are."""
    if array.dtype.kind == "O":
        types = set(map(type, array.ravel().tolist()))
        if all(issubclass(one, (Number, np.bool_)) for one in types):
            numbers = ids.as_floats(array)
            return array if numbers is None else numbers
    return array


def _refuse_weights(name, rows):
    """Raise if lists that should hold labels, or items, look like rows of a matrix of weights.

    These are equally long, and repeat numbers, such as zeros, or hold fractions.
    """
    lengths = {len(row) if isinstance(row, (list, tuple, np.ndarray)) else 0 for row in rows}
    if len(lengths) != 1 or lengths <= {0, 1}:
        return
    numbers = _as_numbers(np.array(rows, dtype=object))
    if numbers.ndim != 2 or numbers.dtype.kind == "O":
        return
    repeated = (np.diff(np.sort(numbers)) == 0).any()
    binary = lengths == {2} and np.isin(numbers, (0, 1)).all()
    if repeated or binary or (numbers[np.isfinite(numbers)] % 1 != 0).any():
        raise ValueError(
            f"{name} is a list of lists such as {shown(rows[0])}, which look like rows of a matrix "
            f"of weights; give weights as an array, np.array({name}), and other lists as sets."
        )


def _shares_of_labels(rows, name):
    """Return the shares of labels in items, of which each has one or a list."""
    lists = [list(row) if is_list(row) else [row] for row in rows]
    lists = [[one for one in row if not ids.is_missing(one)] for row in lists]
    labels = ids.as_ids([one for row in lists for one in row], name)
    if not len(labels):
        raise ValueError(f"{name} holds no label; give one for some items at least.")
    names, codes = ids.unique_codes(labels, name)
    items = np.repeat(np.arange(len(lists)), [len(row) for row in lists])
    shape = len(lists), len(names)
    return _divided_by_sums(name, sparse.csr_array((np.ones(len(items)), (items, codes)), shape))


def _divided_by_sums(name, X):
    """Return rows divided by their sums; rows of zeros stay zero."""
    if X.nnz and X.data.min() < 0:
        raise ValueError(f"{name} holds the negative number {X.data.min():g}; give weights.")
    totals = X.sum(axis=1)
    X.data = X.data / np.repeat(np.where(totals > 0, totals, 1), np.diff(X.indptr))
    return X
