"""The order of times: numbers, dates, and either of them given as text."""

import contextlib
import re
from collections.abc import Set
from datetime import date, datetime, time, timezone
from decimal import Decimal

import numpy as np

from freqfm._input.ids import check_exact, unique_codes
from freqfm._messages import shown

# Numbers in this range are seconds since 1970, fractions of seconds, or dates such as 20240131.
_TIMES = 1e7, 1e19

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

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
    are_numbers = list(map(bool, map(NUMBER.fullmatch, stripped)))
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
