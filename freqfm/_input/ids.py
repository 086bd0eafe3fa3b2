"""Columns of interactions: ids, numbered and compared, and times."""

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Set, ValuesView
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from numbers import Integral, Number

import numpy as np

from freqfm._messages import cut, shown

# Number of known ids that are looked through in the time of a search for one among them.
_FEW = 16

# Types that are no ids: collections, and times, which columns hold as other types than lists do.
_NO_IDS = tuple, list, Set, np.ndarray, date, timedelta, np.datetime64, np.timedelta64
_COMPLEX = complex, np.complexfloating


def natural(values):
    """Return an object array as numbers if all are numbers and none is rounded; else unchanged.

    Scalars of NumPy and Arrow become what a column of them is.
    """
    return _natural(values)[0]


def _natural(values):
    """Return ``natural`` values, and the types of objects."""
    if values.dtype.kind not in "OT":
        return values, set()
    values = np.ascontiguousarray(values, dtype=object)
    types = set(map(type, values.tolist()))
    if any(hasattr(t, "as_py") for t in types):
        # Scalars of Arrow equal nothing else.
        listed = [one.as_py() if hasattr(one, "as_py") else one for one in values]
        return _natural(np.fromiter(listed, object, len(listed)))
    return _numbers(values, types), types


def _numbers(values, types):
    """Return objects of some types as numbers, truth values or times of NumPy, if they are."""
    if types in ({np.datetime64}, {np.timedelta64}):
        # NumPy would convert several units to one that may not hold all values.
        several = len({value.dtype for value in values.tolist()}) > 1
        return values if several else np.array(values.tolist())
    if types and types <= {bool, np.bool_}:
        return values.astype(bool)
    others = bool, np.timedelta64, *_COMPLEX
    if not types or not all(issubclass(t, Number) and not issubclass(t, others) for t in types):
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


def check_present(values, name, types=None):
    """Raise if a value is missing or not finite; objects may come with the set of their types."""
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values)
    elif values.dtype.kind in "mM":
        bad = np.isnat(values)
    elif values.dtype.kind == "O":
        types = set(map(type, values.tolist())) if types is None else types
        some = tuple(filter(_may_be_missing, types))
        if not some:
            return
        bad = np.array([isinstance(v, some) and is_missing(v) for v in values.tolist()], dtype=bool)
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
    return _may_be_missing(type(value)) and bool(value != value)


def _may_be_missing(kind):
    """Return whether values of a type may be missing: few types are, and many values."""
    names = "NoneType", "NAType", "NaTType"
    return kind.__name__ in names or issubclass(kind, (Number, np.datetime64))


def as_list(values):
    """Return sets, views of dicts, iterators and arrays of Arrow as lists; others unchanged.

    Values that are hidden in a masked array are None.
    """
    if isinstance(values, (list, tuple)) and len(values) and hasattr(values[0], "as_py"):
        return [one.as_py() if hasattr(one, "as_py") else one for one in values]
    if type(values) in (list, tuple, str, np.ndarray):
        return values
    if isinstance(values, np.ma.MaskedArray):
        return values.tolist()
    if hasattr(values, "to_pylist"):
        return values.to_pylist()
    if isinstance(values, (Set, ValuesView, Iterator)):
        return list(values)
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
        values = np.fromiter(values, object, len(values))
    values = np.atleast_1d(np.asarray(values))
    if values.ndim != 1:
        raise ValueError(f"{name} must be a vector of ids; got an array of shape {values.shape}.")
    if values.dtype.kind == "f":
        check_exact(values, name)
    values, types = _natural(values)
    if values.dtype.kind not in "biufUSO":
        raise TypeError(
            f"{name} holds {values.dtype}; ids are numbers, strings or other objects that can be "
            f"sorted: convert them, for instance to strings."
        )
    check_present(values, name, types)
    wrong = tuple(t for t in types if issubclass(t, (*_NO_IDS, *_COMPLEX)))
    if wrong and values.dtype.kind == "O":
        value = next(value for value in values.tolist() if isinstance(value, wrong))
        raise TypeError(
            f"{name} holds {shown(value)}; ids are numbers or strings, or other objects that can "
            f"be sorted, but no collections and no times: convert them to strings, for instance."
        )
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
        # One value alone is not compared by sorting.
        _ = distinct and distinct[0] < distinct[-1]
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
    values = _comparable(known, values)
    if values.dtype.kind != "O":
        # Sorted ones are found much faster.
        values, inverse = np.unique(values, return_inverse=True)
        # NumPy would convert all known ids to a wider type.
        with np.errstate(over="ignore", invalid="ignore"):
            converted = values.astype(known.dtype)
            exact = (converted == values) & (converted.astype(values.dtype) == values)
        codes = order[np.minimum(np.searchsorted(known, converted, sorter=order), len(known) - 1)]
        return np.where(exact & (known[codes] == converted), codes, -1)[inverse]
    if known.dtype.kind != "O" and _FEW * len(values) < len(known):
        # Objects of all known ids would take more memory than these.
        places = [bisect_left(order, value, key=known.item) for value in values]
        codes = order[np.minimum(places, len(known) - 1)].tolist()
        pairs = zip(codes, values, strict=True)
        return np.array([code if known.item(code) == value else -1 for code, value in pairs])
    known = known.astype(object, copy=False)
    if _FEW * len(values) < len(known):
        codes = order[np.minimum(np.searchsorted(known, values, sorter=order), len(known) - 1)]
        return np.where(known[codes] == values, codes, -1)
    listed, codes = known.tolist(), range(len(known))
    values = values.tolist()
    if 2 * len(values) < len(known):
        # A dict of the ids that are asked for takes less time than one of all.
        asked = set(values)
        codes = np.flatnonzero(np.fromiter(map(asked.__contains__, listed), bool, len(listed)))
        listed, codes = known[codes].tolist(), codes.tolist()
    code_of = dict(zip(listed, codes, strict=True))
    return np.array([code_of.get(value, -1) for value in values], dtype=np.int64)


def _comparable(known, values):
    """Return values as NumPy compares them with known ones as Python does, or as objects."""
    kinds = known.dtype.kind, values.dtype.kind
    if kinds[0] == kinds[1] or all(kind in "iuf" for kind in kinds):
        return values
    if kinds in (("U", "O"), ("S", "O")):
        converted = values.astype(kinds[0])
        # NumPy's strings drop trailing NUL characters.
        if _equal(converted, values):
            return converted
    return values.astype(object, copy=False)


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


# Numbers in this range are seconds since 1970, fractions of seconds, or dates such as 20240131.
_TIMES = 1e7, 1e19

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

# As in ISO 8601: a date or its first parts, a time of day, and the offset of its time zone.
_CLOCK = r"([01]\d|2[0-3])(?::?([0-5]\d)(?::?([0-5]\d){decimals})?)?"
_DATE = re.compile(
    r"(?P<date>(\d{4})(?:-(\d\d)(?:-(\d\d))?)?)(?:(?<=-\d\d-\d\d)[T ]"
    + _CLOCK.replace("{decimals}", r"(?:[.,](\d+))?")
    + r"(?P<zone> ?(?:Z|([+-])"
    + _CLOCK.replace("{decimals}", "")
    + r"))?)?",
    re.ASCII,
)

# Numbers of times from 1990 to 2100, the first one and the next one after the last: years, months
# such as 202401, days, seconds since 1970, minutes such as 202401312359, milliseconds since 1970,
# seconds such as 20240131235959, microseconds and nanoseconds since 1970.
_RANGES = (
    *(1990, 2101, 199001, 210013, 19900101, 21001232, 6.3e8, 4.2e9, 1.99e11, 2.11e11),
    *(6.3e11, 4.2e12, 1.99e13, 2.11e13, 6.3e14, 4.2e15, 6.3e17, 4.2e18),
)

# Values of these types have no order in time.
_NO_TIMES = bool, np.bool_, complex, np.complexfloating, Set

# For the form of a text: a zero for each digit.
_ZEROS = bytes.maketrans(b"123456789", b"000000000")


def are_times(numbers):
    """Return for each number whether it is in a range of times, but unlikely a value or an id."""
    least, most = _TIMES
    return (numbers >= least) & (numbers < most)


def time_ranks(values, name):
    """Return ranks of times; equal times have equal ranks.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Numbers, dates or text, none missing.
    name : str
        What they are, for error messages.

    Returns
    -------
    ranks : ndarray of shape (n,)

    Raises
    ------
    ValueError, TypeError
        If their order is not clear: other text, numbers that may be rounded or are in different
        units, dates of which only some have a time zone or a time of day, truth values, complex
        numbers, sets.
    """
    if values.dtype.kind == "f":
        check_exact(values, name)
    types = set(map(type, values.tolist())) if values.dtype.kind == "O" else {values.dtype.type}
    for one in types:
        if issubclass(one, _NO_TIMES):
            raise TypeError(
                f"{name} holds values of the type {one.__name__}; times are numbers, dates or "
                f"text: pass time= the right column, or time=None if the rows are in order of time."
            )
    if values.dtype.kind in "OSU":
        listed = values.tolist()
        values = _at_once(listed, types)
        if values is None:
            # With None at the end, NumPy makes no matrix of times that are tuples.
            values = np.array([*map(_as_text, listed), None], dtype=object)[:-1]
    values, ranks = unique_codes(values, name)
    if isinstance(values.tolist()[0], str):
        values, order = unique_codes(_moments(values, ranks, name), name)
        ranks = order[ranks]
    if values.dtype.kind in "iuf" or isinstance(values[0], Decimal):
        _check_units(values, name)
    return ranks


def _at_once(times, types):
    """Return usual times as an array of numbers or dates; None if they must be read one by one.

    So must those of which some may be wrong, for the error.
    """
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        if all(issubclass(one, (str, bytes)) for one in types):
            texts = [time.decode() if isinstance(time, bytes) else time for time in times]
            if all(map(str.isdigit, texts)) and all(map(str.isascii, texts)):
                # An OverflowError beyond 64 bits.
                return np.fromiter(map(int, texts), np.int64, len(texts))
            form = _common_form(texts)
            if form is None:
                return None
            if form["zone"] is None:
                moments = np.array(texts, dtype="M8[us]")
                return moments if moments.min() >= np.datetime64("0001") else None
            times, types = list(map(datetime.fromisoformat, texts)), {datetime}
        if types == {datetime}:
            # A TypeError if only some have a time zone.
            epoch = datetime(1970, 1, 1, tzinfo=times[0].tzinfo and timezone.utc)
            since = [time - epoch for time in times]
            numbers = [(t.days * 86400 + t.seconds) * 10**6 + t.microseconds for t in since]
            return np.array(numbers).view("m8[us]")
        if len(types) == 1 and all(hasattr(one, "asm8") for one in types):
            # Of pandas: nanoseconds of a duration, or since 1970 in UTC.
            zones = {getattr(time, "tzinfo", None) is None for time in times}
            return np.array([t.value for t in times]).view("m8[ns]") if len(zones) == 1 else None
        if types == {date}:
            return np.array([day.toordinal() for day in times]).view("m8[D]")
        if types == {np.datetime64} and len({time.dtype for time in times}) == 1:
            return np.array(times)
    return None


def _common_form(texts):
    """Return the match of a date with the same parts as all texts; else, or if they are odd, None.

    Odd is what NumPy and Python do not read as here: an hour 24, a minute 60 of an offset, less
    than a microsecond.
    """
    lines = "\n".join(texts)
    forms = set(lines.encode().translate(_ZEROS).decode().split("\n"))
    found = [_DATE.fullmatch(form) for form in forms]
    if not all(found) or len({tuple(map(bool, one.group("zone", 3, 4, 5))) for one in found}) > 1:
        return None
    if any(len(one[8] or "") > 6 or one[13] for one in found) or "T24" in lines or " 24" in lines:
        return None
    if found[0]["zone"] and not all(one[-2:] < "60" or one[-1] == "Z" for one in texts):
        return None
    return found[0]


def _as_text(value):
    """Return dates as text, with the offset of their time zone; other times unchanged.

    Python compares dates of one time zone by the clock, also in the hour that is repeated when
    summer time ends, and NumPy converts dates to units that may not hold them.
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.datetime64):
        return str(value)
    return value.isoformat() if isinstance(value, (date, time)) else value


def _moments(texts, codes, name):
    """Return the times that distinct texts mean, in an array of objects that can be sorted."""
    moments = np.empty(len(texts), dtype=object)
    stripped = [text.strip() for text in texts.tolist()]
    are_numbers = list(map(bool, map(_NUMBER.fullmatch, stripped)))
    if all(are_numbers):
        moments[:] = list(map(Decimal, stripped))
        return moments
    matches = list(map(_DATE.fullmatch, stripped))
    moments[:] = list(map(_matched_moment, matches))
    wrong = [code for code, moment in enumerate(moments) if moment is None]
    if wrong:
        code = min(wrong, key=are_numbers.__getitem__)
        raise ValueError(
            f"{name} holds {shown(texts[code])} at row {np.argmax(codes == code)}, whose order in "
            f"time is not clear: text must be numbers in all rows, or dates as in ISO 8601, such "
            f"as '2024-01-31 23:59:59+01:00'. Convert it, for instance with pandas.to_datetime, or "
            f"to an ordered category."
        )
    _check_alike(matches, name)
    return moments


def _matched_moment(match):
    """Return the second, and the decimals of its fraction as text: there may be any number.

    None if there is no such date.
    """
    if not match:
        return None
    _, year, month, day, *clock, decimals, _, sign, hours, minutes, seconds = match.groups()
    try:
        days = date(int(year), int(month or 1), int(day or 1)).toordinal()
    except ValueError:
        return None
    offset = _seconds(hours, minutes, seconds)
    second = 86400 * days + _seconds(*clock) + (offset if sign == "-" else -offset)
    return second, (decimals or "").rstrip("0")


def _seconds(hour, minute, second):
    return 3600 * int(hour or 0) + 60 * int(minute or 0) + int(second or 0)


def _check_alike(matches, name):
    """Raise if only some dates have a time zone, or if one includes another with more parts."""
    with_zone = [match for match in matches if match["zone"]]
    if 0 < len(with_zone) < len(matches):
        without = next(match for match in matches if not match["zone"])
        raise ValueError(
            f"{name} holds {shown(with_zone[0][0])} beside {shown(without[0])}, which has no time "
            f"zone, so that their order is not clear; give all of them a time zone, or none."
        )
    whole = {match["date"] for match in matches if match["date"] == match[0]}
    for match in matches if whole else ():
        for length in (4, 7, 10):
            start = match[0][:length]
            if start in whole and start != match[0]:
                raise ValueError(
                    f"{name} holds {shown(start)} beside {shown(match[0])}, so that their order is "
                    f"not clear; give all of them with the same parts."
                )


def _check_units(numbers, name):
    """Raise if all of some sorted numbers look like times, but not in the same unit."""
    # Missing times may be 0 or -1.
    numbers = numbers[numbers > 0]
    # How many are below the first range, in it, between it and the second one, and so on.
    places = np.searchsorted(numbers.astype(np.float64), _RANGES).tolist()
    counts = np.diff([0, *places, len(numbers)])
    if not counts[::2].any() and np.count_nonzero(counts) > 1:
        raise ValueError(
            f"{name} holds {numbers[0]} beside {numbers[-1]}, which look like times in different "
            f"units; convert them to one."
        )
