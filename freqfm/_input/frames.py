"""DataFrames in memory, of pandas, Polars and Arrow, and the usual names of their columns."""

import re
from collections.abc import Iterator
from itertools import chain
from numbers import Integral

import numpy as np

from freqfm._input.validation import as_native


def is_frame(X):
    """Return whether X is a DataFrame or a table of pyarrow, with named columns."""
    # Look at the type: probing a lazy DataFrame itself triggers computations or warnings.
    return hasattr(type(X), "columns") or hasattr(type(X), "column_names")


def is_lazy(X):
    """Return whether X is a table that can be read chunk by chunk."""
    library, name = type(X).__module__.split(".")[0], type(X).__name__
    return (library == "polars" and name == "LazyFrame") or (
        library == "pyarrow" and (name.endswith("Dataset") or name == "RecordBatchReader")
    )


# What tables and columns in memory have, unlike readers of batches.
_IN_MEMORY = "iloc", "column_names", "get_columns", "__array__"


def as_reader(X):
    """Return batches of Arrow that are read once, in any form, as their reader; others unchanged.

    They are a list or an iterator of batches, or an object with ``__arrow_c_stream__``.
    """
    X = as_native(X)
    some = iter(X) if type(X) in (list, tuple) else X
    if isinstance(some, Iterator) and not hasattr(X, "__arrow_c_stream__"):
        first = next(some, None)
        if type(first).__name__ != "RecordBatch":
            return X
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(first.schema, chain([first], some))
    if not hasattr(X, "__arrow_c_stream__") or any(hasattr(X, name) for name in _IN_MEMORY):
        return X
    import pyarrow

    return pyarrow.RecordBatchReader.from_stream(X)


def open_frame(X, name="X"):
    """Return the names of a DataFrame, and a function that returns the column at a position.

    Columns are of the types of the DataFrame's library.

    Raises
    ------
    TypeError
        If the rows are not in memory, or the library is not known.
    """
    X = as_native(X)
    if not hasattr(type(X), "compute"):
        if hasattr(X, "iloc"):
            return list(X.columns), lambda place: X.iloc[:, place]
        if hasattr(X, "column_names"):
            return list(X.column_names), X.column
        if hasattr(X, "get_columns"):
            return list(X.columns), X.to_series
    raise TypeError(
        f"{name} of type {type(X).__name__} is not a DataFrame in memory, of pandas, Polars or "
        f"Arrow, an array or a list; collect or convert it first."
    )


def dtype_of(column):
    """Return the type of a column, in the types of its library."""
    return column.dtype if hasattr(column, "dtype") else column.type


def to_numpy(column):
    """Return a column as an array; of objects with None if other types than NumPy's miss values."""
    dtype = dtype_of(column)
    if isinstance(dtype, np.dtype):
        return np.asarray(column)
    # Of Polars, not NumPy's strings, which drop trailing NUL characters.
    values = np.array(column.to_list(), object) if str(dtype) == "String" else np.asarray(column)
    if values.dtype.kind != "O":
        # Undo conversions by NumPy, such as integers with gaps that became floats with NaN.
        missing = np.asarray(column.isna() if hasattr(column, "isna") else column.is_null())
        if missing.any():
            values = values.astype(object)
            values[missing] = None
    return values


def times_of(column):
    """Return a column of pandas whose times would become objects in a type of NumPy or Arrow."""
    dtype = dtype_of(column)
    kind = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    if hasattr(column, "dt") and getattr(kind, "tz", None) is not None:
        return column.astype(kind).dt.tz_convert(None)
    if type(dtype).__name__ == "PeriodDtype" and not column.hasnans:
        return column.astype(np.int64).to_numpy().view("m8[s]")
    return column.array.__arrow_array__() if type(dtype).__name__ == "ArrowDtype" else column


# Names in lower case, without separators.
_RATINGS = ["rating", "score", "stars", "overall"]
_NAMES = {
    "user": "user customer client member visitor reviewer account uid",
    "item": "item movie product track song artist book article video game business recipe anime "
    "iid asin isbn sku stockcode",
    "value": f"{' '.join(_RATINGS)} value weight count plays playcount quantity",
    # Whole names: a release date belongs to an item, and a watch time is a value.
    "time": "timestamp time date datetime ts unixtime unixtimestamp eventtime eventtimestamp "
    "eventdate createdat createddate createdtime creationdate orderdate ordertime ordertimestamp "
    "purchasedate purchasetime invoicedate transactiondate transactiontime reviewdate reviewtime "
    "unixreviewtime clicktime ratedat playedat tdat",
}
_ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}

# Names that pandas, Polars and others give to how often a group occurs; 0 is that of a Series
# without a name. In a table with other columns they may have any meaning.
_COUNTS = ["0", "count_all", "count_star()", "len", "n", "size"]

# Suffixes of names: "user_id".
_ENDING = re.compile("(id|idx|index)$")

# The type that RecBole's files give after a name: "user_id:token".
_TYPE = re.compile(":(token|float)(_seq)?$")


def role_of(name):
    """Return the role of a column by its name: "user", "item", "value", "time" or None."""
    name = _plain(name)
    role = _ROLES.get(_ENDING.sub("", name))
    return role if role in ("user", "item") else _ROLES.get(name)


def is_rating(name):
    """Return whether a column of values holds ratings, where low values mean dislike."""
    return _plain(name) in _RATINGS


def is_count(name):
    """Return whether a column beside groups of a table is the number of rows of each group."""
    return str(name) in _COUNTS


def _plain(name):
    """Return "userid" for "userId", "user_id", "User Id" and so on."""
    return re.sub(r"[\W_]", "", _TYPE.sub("", str(name))).lower()


def only_numbered(names):
    """Return whether names are only column numbers: 0, 1, ... or column_0, column_1, ..."""
    if all(isinstance(name, Integral) for name in names):
        return True
    parts = [re.fullmatch(r"(.*\D)(\d+)", str(name)) for name in names]
    if not all(parts) or len({part[1] for part in parts}) > 1 or role_of(parts[0][1]):
        return False
    numbers = [int(part[2]) for part in parts]
    return numbers == sorted(set(numbers))
