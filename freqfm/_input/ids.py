"""Ids of users and items, of any type, and their codes: positions in an array of distinct ids."""

from bisect import bisect_left
from collections.abc import Iterator, Set, ValuesView
from numbers import Integral, Number

import numpy as np

from freqfm._messages import cut, shown

# Number of known ids that are put into a dict in the time of one search among them.
_FEW = 60


def natural(values):
    """Return an object array as numbers if all are numbers and none is rounded; else unchanged."""
    if values.dtype.kind not in "OT":
        return values
    values = values.astype(object)
    types = set(map(type, values.tolist()))
    if types and types <= {bool, np.bool_}:
        return values.astype(bool)
    if not types or not all(issubclass(t, Number) and not issubclass(t, bool) for t in types):
        return values
    whole = all(issubclass(t, Integral) for t in types)
    try:
        numbers = values.astype(np.int64 if whole else np.float64)
    except (OverflowError, TypeError, ValueError):
        return values
    return numbers if whole or _equal(numbers, values) else values


def as_floats(values):
    """Return an array in float64, or None if it does not hold real numbers."""
    try:
        return values.astype(np.float64) if values.dtype.kind != "c" else None
    except (OverflowError, TypeError, ValueError):
        return None


def _equal(one, other):
    """Return whether numbers are equal, compared without rounding, as Python does."""
    return one.tolist() == other.tolist()


def check_present(values, name):
    """Raise if a value is missing or not finite."""
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values)
    elif values.dtype.kind in "mM":
        bad = np.isnat(values)
    elif values.dtype.kind == "O" and set(map(type, values.tolist())) != {str}:
        bad = np.array([is_missing(value) for value in values.tolist()], dtype=bool)
    else:
        return
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{name} holds {shown(values[row])} at row {row}; None, NaN and infinity (inf) are not "
            f"allowed: drop or fill such rows."
        )


def is_missing(value):
    """Return whether a value is None, NaN, or a missing value of NumPy or pandas."""
    # pandas' NA cannot be compared; its NaT is unequal to itself, as NaN and NumPy's NaT are.
    if value is None or type(value).__name__ == "NAType":
        return True
    comparable = isinstance(value, (Number, np.datetime64)) or type(value).__name__ == "NaTType"
    return comparable and bool(value != value)


def as_list(values):
    """Return sets, views of dicts, iterators and arrays of Arrow as lists; others unchanged.

    Values that are hidden in a masked array are None.
    """
    if isinstance(values, np.ma.MaskedArray):
        return values.tolist()
    if hasattr(values, "to_pylist"):
        return values.to_pylist()
    if isinstance(values, (Set, ValuesView, Iterator)):
        values = list(values)
    if isinstance(values, (list, tuple)) and any(
        hasattr(t, "as_py") for t in set(map(type, values))
    ):
        # Scalars of Arrow, which equal nothing else.
        return [one.as_py() if hasattr(one, "as_py") else one for one in values]
    return values.as_py() if hasattr(values, "as_py") else values


def as_ids(values, name):
    """Return ids as a vector of their natural type: an object array of numbers becomes numeric.

    Parameters
    ----------
    values : array-like of shape (n,), or a single id
    name : str
        What they are, for error messages.

    Returns
    -------
    ids : ndarray of shape (n,)

    Raises
    ------
    ValueError, TypeError
        If they are not a vector, if one is missing, or if their type cannot be an id.
    """
    values = as_list(values)
    if isinstance(values, (str, bytes)):
        values = [values]
    if isinstance(values, (list, tuple)):
        # As objects, since NumPy strings drop trailing NUL characters.
        values = np.array(values, dtype=object)
    values = np.atleast_1d(np.asarray(values))
    if values.ndim != 1:
        raise ValueError(f"{name} must be a vector of ids; got an array of shape {values.shape}.")
    if values.dtype.kind == "f":
        check_exact(values, name)
    values = natural(values)
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], (tuple, list)):
        raise TypeError(
            f"{name} holds {shown(values[0])}; ids are numbers or strings: join the parts, for "
            f"instance to a string."
        )
    if values.dtype.kind not in "biufUSO":
        raise TypeError(
            f"{name} holds {values.dtype}; ids are numbers, strings or other objects that can be "
            f"sorted: convert them, for instance to strings."
        )
    check_present(values, name)
    return values


def check_exact(values, name):
    """Raise if a floating-point number may be a rounded integer."""
    # From here on floats are rounded to even numbers.
    bits = np.finfo(values.dtype).nmant + 1
    large = (abs(values) >= 2.0**bits) & np.isfinite(values)
    if large.any():
        row = int(np.argmax(large))
        raise ValueError(
            f"{name} holds {values[row]:g} at row {row}; {values.dtype} numbers of 2**{bits} and "
            f"more are rounded, so that different ones become one: give integers or strings."
        )


def unique_codes(values, name):
    """Return the distinct values, sorted, and the position of each value among them.

    Raises
    ------
    TypeError
        If objects cannot be hashed or sorted, or if some are truth values and others are not.
    """
    if values.dtype.kind != "O":
        return np.unique(values, return_inverse=True)
    values = values.tolist()
    types = set(map(type, values))
    try:
        if {bool, np.bool_} & types and len(types) > 1:
            raise TypeError("True would be the same id as 1")
        # Hashing all values and sorting the few distinct ones is much faster than sorting objects.
        distinct = sorted(set(values))
    except TypeError as error:
        raise TypeError(
            f"{name} holds values of the types {', '.join(sorted(t.__name__ for t in types))}, "
            f"which cannot be told apart or sorted ({cut(error)}); convert them all to one type, "
            f"for instance to strings."
        ) from None
    code_of = {value: code for code, value in enumerate(distinct)}
    unique = np.empty(len(distinct), dtype=object)
    unique[:] = distinct
    return unique, np.fromiter(map(code_of.__getitem__, values), np.int64, len(values))


def find_codes(known, order, values, name):
    """Return the position of each value in ``known``, or -1.

    Parameters
    ----------
    known : ndarray of shape (n_known,)
        Distinct ids.
    order : ndarray of shape (n_known,)
        Indices that sort them.
    values : ndarray of shape (n,)
        From :func:`as_ids`.
    name : str
        What the values are, for error messages.

    Returns
    -------
    codes : ndarray of shape (n,)

    Raises
    ------
    TypeError
        If the values are of another kind than the known ids, for instance strings, not numbers.
    """
    if len(values) == 0 or len(known) == 0:
        return np.full(len(values), -1)
    _check_kind(known, values, name)
    kind = known.dtype.kind
    if kind == values.dtype.kind and kind in "biuf":
        # Sorted ones are found much faster.
        values, inverse = np.unique(values, return_inverse=True)
        # NumPy would convert all known ids to a wider type; what is cut here is unequal below.
        with np.errstate(over="ignore"):
            places = np.searchsorted(known, values.astype(known.dtype), sorter=order)
        codes = order[np.minimum(places, len(known) - 1)]
        return np.where(known[codes] == values, codes, -1)[inverse]
    values = values.tolist()
    if _FEW * len(values) > len(known):
        code_of = dict(zip(known.tolist(), range(len(known)), strict=True))
        return np.array([code_of.get(value, -1) for value in values], dtype=np.int64)
    found = np.full(len(values), -1)
    for row, value in enumerate(values):
        place = min(bisect_left(order, value, key=known.item), len(known) - 1)
        if known.item(order[place]) == value:
            found[row] = order[place]
    return found


def _check_kind(known, values, name):
    """Raise if one of the values cannot be compared with the known ids, as strings with numbers.

    Truth values, which would be the numbers 0 and 1, are refused, since they are a mask rather than
    ids, and so are fractions among integers.
    """
    one = known.item(0)
    fractions = isinstance(one, int) and values.dtype.kind == "f" and (values % 1 != 0).any()
    values = values[values % 1 != 0] if fractions else values
    some = values if values.dtype.kind == "O" else values[:1]
    for value in {type(value): value for value in reversed(some.tolist())}.values():
        try:
            # Raises a TypeError if it cannot compare.
            _ = one < value
            is_other = fractions or isinstance(one, bool) != isinstance(value, bool)
        except TypeError:
            is_other = True
        if is_other:
            advice = "convert them to the type of the latter"
            if isinstance(value, bool):
                advice = "give ids; for a mask, those that it selects"
            raise TypeError(
                f"{name} holds ids such as {shown(value)}, of another kind than those seen in fit, "
                f"such as {shown(one)}; {advice}."
            )


def extend_ids(known, order, ids, name):
    """Add the new ones among some ids.

    Parameters
    ----------
    known, order, ids, name
        As in :func:`find_codes`.

    Returns
    -------
    codes : ndarray of shape (n,)
        Codes of ``ids``.
    known : ndarray of shape (n_known + n_new,)
        The new ones follow those known before, sorted among themselves.
    order : ndarray of shape (n_known + n_new,)
    """
    if not len(known):
        known, codes = unique_codes(ids, name)
        return codes, known, np.arange(len(known))
    codes = find_codes(known, order, ids, name)
    new = codes < 0
    if new.any():
        fresh, places = unique_codes(ids[new], name)
        numbers = len(known) + np.arange(len(fresh))
        codes[new] = numbers[places]
        joined = _joined(known, fresh)
        # Merged, not sorted with all others again: each chunk of a log adds some ids.
        places = np.searchsorted(joined[: len(known)], joined[len(known) :], sorter=order)
        known, order = joined, np.insert(order, places, numbers)
    return codes, known, order


def _joined(known, fresh):
    """Return ids as one array: of the type of the known ones if it holds all, else of objects."""
    kind = known.dtype.kind
    if kind != fresh.dtype.kind:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                converted = fresh.astype(kind if kind in "US" else known.dtype)
        except OverflowError:
            converted = fresh[:0]
        same = _equal(converted, fresh)
        fresh = converted if same else fresh.astype(object)
        known = known if same else known.astype(object)
    return np.concatenate([known, fresh])


def ids_of(known, codes):
    """Return ids by code; None where the code is -1."""
    codes = np.asarray(codes)
    found = known[np.maximum(codes, 0)]
    if (codes < 0).any():
        found = found.astype(object)
        found[codes < 0] = None
    return found
