"""DataFrames in memory, of pandas, Polars and Arrow: their names and columns."""

import numpy as np


def is_frame(X):
    """Return whether X is a DataFrame or a table of pyarrow, with named columns."""
    # Look at the type: probing a lazy DataFrame itself triggers computations or warnings.
    return hasattr(type(X), "columns") or hasattr(type(X), "column_names")


def is_lazy(X):
    """Return whether X is a table that can be read chunk by chunk."""
    library, name = type(X).__module__.split(".")[0], type(X).__name__
    return (library == "polars" and name == "LazyFrame") or (
        library == "pyarrow" and name.endswith("Dataset")
    )


def as_native(X):
    """Return the object that a DataFrame of narwhals wraps; other objects unchanged."""
    if type(X).__module__.split(".")[0] != "narwhals":
        return X
    import narwhals

    return narwhals.to_native(X)


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
