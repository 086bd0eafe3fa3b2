"""Cells of tables as Python objects, which are equal for equal values in any container."""

import math
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from numbers import Integral, Number, Real

import numpy as np

from freqfm._input.frames import dtype_of, is_frame, open_frame
from freqfm._input.ids import is_missing
from freqfm._input.validation import refuse_unread
from freqfm._messages import cut, shown

# Types that need no conversion.
_PLAIN = {bool, bytes, int, str, type(None)}


def read_cells(X, name="X", nan=None):
    """Return the names of the columns of a table, and the cells of each column as a list.

    Missing values are None, or of numbers and of pandas' types ``nan``. Whole numbers are integers,
    also in columns of floats, which pandas makes of integers where some are missing. Dates are
    those of Python, as are times at midnight; times with a zone are in UTC. Sets are sorted lists.
    Structs and maps are sorted dicts without their missing values, or empty lists.

    Parameters
    ----------
    X : DataFrame or ndarray of shape (n_rows, n_columns)
    name : str, default="X"
        For errors.
    nan : object, default=None

    Returns
    -------
    names : list
        Of an array, the numbers of its columns.
    columns : list of list

    Raises
    ------
    ValueError
        If dates are beyond the years 1 to 9999, or times finer than a microsecond.
    TypeError
        If the rows of a DataFrame are not in memory.
    """
    refuse_unread(X)
    names, columns = _open(X, name)
    cells = []
    for column_name, column in zip(names, columns, strict=True):
        try:
            values = _values(column)
            dtype = dtype_of(column)
            plain = isinstance(dtype, np.dtype) and dtype.kind in "biSU"
            plain = plain or set(map(type, values)) <= _PLAIN
            cells.append(values if plain else [_cell(value, nan) for value in values])
        except (ArithmeticError, ValueError) as error:
            raise ValueError(
                f"column {shown(column_name)} of {name} holds what Python's types cannot "
                f"({cut(error)}); dates must be in the years 1 to 9999, and times in whole "
                f"microseconds: round them, or convert them to strings."
            ) from None
    return names, cells


def _open(X, name):
    """Return the names and the columns of a DataFrame or an array, in the types of its library."""
    if is_frame(X):
        names, column = open_frame(X, name)
        return names, list(map(column, range(len(names))))
    if X.ndim != 2:
        raise ValueError(
            f"{name} has shape {X.shape}; give rows of fields, (n_samples, n_fields). Reshape your "
            f"data: X.reshape(-1, 1) is one field, X.reshape(1, -1) one row."
        )
    return list(range(X.shape[1])), list(X.T)


def _values(column):
    """Return the values of a column as a list of the objects that its library makes of them."""
    dtype = dtype_of(column)
    if type(dtype).__name__ == "ArrowDtype":
        column = column.array.__arrow_array__()
        dtype = column.type
    if getattr(dtype, "tz", None) is not None and hasattr(column, "dt"):
        # Not one by one, as pandas makes an object of each time with a zone.
        return _in_utc(_numpy_cells(column.dt.tz_convert(None).to_numpy()))
    if hasattr(column, "to_pylist"):
        return _arrow_cells(column, dtype)
    if hasattr(column, "to_physical"):
        return _polars_cells(column)
    return _numpy_cells(np.asarray(column)) if isinstance(dtype, np.dtype) else column.tolist()


def _arrow_cells(column, dtype):
    import pyarrow

    if pyarrow.types.is_dictionary(dtype):
        dtype = dtype.value_type
        column = column.cast(dtype)
    if getattr(dtype, "tz", None) is not None:
        return _in_utc(column.cast(pyarrow.timestamp("us")).to_pylist())
    if getattr(dtype, "unit", None) == "ns":
        # An error if digits would be lost: Python's types have none for them.
        name = str(dtype).partition("[")[0]
        exact = {"time64": pyarrow.time64("us"), "duration": pyarrow.duration("us")}
        column = column.cast(exact.get(name, pyarrow.timestamp("us")))
    return column.to_pylist()


def _in_utc(times):
    """Return times in UTC that have no zone; equal ones as one object, which is hashed once."""
    zoned = {time: time and time.replace(tzinfo=timezone.utc) for time in set(times)}
    return list(map(zoned.__getitem__, times))


def _polars_cells(column):
    inner = column
    while hasattr(inner.dtype, "inner"):
        inner = inner.explode()
    finest = getattr(inner.dtype, "time_unit", None) == "ns" or str(inner.dtype) == "Time"
    if finest and (inner.to_physical() % 1000 != 0).any():
        raise ValueError("there are nanoseconds")
    if str(inner.dtype).startswith("Date") and not inner.dt.year().is_between(1, 9999).all():
        # Some versions of Polars would panic.
        raise ValueError("there are years out of range")
    if getattr(column.dtype, "time_zone", None) is not None:
        clock = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return _in_utc(clock.to_list())
    return column.to_list()


def _numpy_cells(array):
    """Return an array, or a number or date of NumPy, as Python objects."""
    if array.dtype.kind in "mM":
        # Python has no nanoseconds; NumPy makes integers of them.
        exact = array.astype(f"{array.dtype.kind}8[us]")
        back = exact.astype(array.dtype)
        if not np.all((back == array) | np.isnat(array)):
            raise ValueError("there are fractions of a microsecond, or years out of range")
        array = exact
    values = array.tolist()
    if array.dtype.kind in "mM" and int in set(map(type, np.ravel(values).tolist())):
        raise ValueError(f"{array.max()} is out of range")
    return values


def _cell(value, nan=None):
    """Return a value in the one form that it has in all containers; None or nan if missing."""
    if type(value) is float:
        # As below, but fast.
        whole = value.is_integer()
        return int(value) if whole else value if value == value else nan
    if type(value) is datetime:
        return _moment(value)
    if isinstance(value, (np.ndarray, np.generic)):
        value = _numpy_cells(value)
    if type(value) in _PLAIN:
        return value
    if is_missing(value):
        return nan if isinstance(value, Number) or type(value).__name__ == "NAType" else None
    if isinstance(value, (Integral, Decimal, Real)):
        return _number(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (date, timedelta)):
        return _moment(value)
    if isinstance(value, Set):
        return sorted(map(_cell, value), key=str)
    if _is_map(value):
        pairs = sorted(((_cell(key), _cell(item)) for key, item in dict(value).items()), key=str)
        # Without any, a list of pandas is not known to be a map.
        return {key: item for key, item in pairs if item is not None} or []
    return list(map(_cell, value)) if isinstance(value, (list, tuple)) else value


def _number(value):
    """Return a number as an integer if it is one; decimals without trailing zeros."""
    if not math.isfinite(value):
        return value
    if value == int(value):
        return int(value)
    return Decimal(f"{value:f}".rstrip("0")) if isinstance(value, Decimal) else value


def _is_map(value):
    """Return whether a value is a dict or a struct, or the pairs that pandas makes of a map."""
    if isinstance(value, Mapping):
        return True
    pairs = isinstance(value, list) and all(isinstance(v, tuple) and len(v) == 2 for v in value)
    keys = [key for key, _ in value] if pairs else []
    named = all(isinstance(key, (str, Integral)) for key in keys)
    return bool(keys) and named and len(set(keys)) == len(keys)


def _moment(value):
    """Return a date, time or duration of Python or pandas as one of Python."""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError(f"{shown(value)} has nanoseconds")
    if isinstance(value, timedelta):
        return timedelta(value.days, value.seconds, value.microseconds)
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None and value.time() == time():
        return value.date()
    if value.tzinfo not in (None, timezone.utc):
        value = value.astimezone(timezone.utc)
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
