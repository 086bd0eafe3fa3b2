"""Text files with one interaction per line: user, item, rating, time."""

import csv
import math
import re
from array import array
from itertools import islice
from typing import NamedTuple

import numpy as np

from freqfm._input.columns import role_of
from freqfm._messages import shorten, shown
from freqfm.datasets._lines import at_line, read_lines

# The largest id for which the matrix has a shape within int32.
MAX_ID = np.iinfo(np.int32).max - 1

# Numbers in this range are seconds since 1970, fractions of seconds, or dates such as 20240131.
_TIMES = 1e7, 1e19

# Number of lines from which the format is guessed.
_N_LINES_READ = 1000

_ADVICE = "give every line a user and an item, integers >= 0, and maybe a rating and a time."


class _Layout(NamedTuple):
    """How lines are split, and which fields they have."""

    separator: str  # None for any whitespace
    n_fields: int
    n_header: int
    user: int
    item: int
    value: int  # or None


def guess_format(path):
    """Return what a text file holds: "ratings", one per line, "lists" of items, or "netflix".

    Raises
    ------
    ValueError
        If both are possible.
    """
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    lines = [
        (number, _split(line.decode("utf-8", "backslashreplace"), None))
        for number, line in islice(lines, _N_LINES_READ)
    ]
    if not lines:
        return "lists"
    _, first = lines[0]
    if len(first) == 1 and re.fullmatch(r"\d+:", first[0]):
        return "netflix"
    if _separator(" ".join(first)) is not None or {"user", "item"} <= set(map(role_of, first)):
        return "ratings"
    widths = {len(fields) for _, fields in lines}
    if widths not in ({3}, {4}):
        return "lists"
    if not all(_is_id(field) for _, fields in lines for field in fields):
        numeric = all(
            _is_id(user) and _is_id(item) and math.isfinite(_float(rating))
            for _, (user, item, rating, *_) in lines
        )
        return "ratings" if numeric else "lists"
    if widths == {4} and all(len(fields[3]) > 8 for _, fields in lines):
        return "ratings"
    seen = set()
    for number, (user, *_) in lines:
        if user in seen:
            raise at_line(
                path,
                number,
                f"user {user} again, in a file whose lines all have {len(first)} numbers: they may "
                f"be ratings (user, item, rating) or lists (a user and items). Pass "
                f"format='ratings' or format='lists'.",
            )
        seen.add(user)
    return "lists"


def read_ratings(path, shape, lines):
    """Return users, items and values, each as an array, and the lines of the largest ids.

    Parameters
    ----------
    path : str
        For error messages.
    shape : tuple of int or None
    lines : iterable of (int, bytes)
        The numbers of lines and their text.

    Raises
    ------
    ValueError
        If a line is malformed or outside the shape; the message has its number.
    """
    users, items, values = array("i"), array("i"), array("d")
    largest = {"user": (-1, 0), "item": (-1, 0)}
    most = (MAX_ID, MAX_ID) if shape is None else (shape[0] - 1, shape[1] - 1)
    layout = None
    for number, line in lines:
        text = line.decode("utf-8", "backslashreplace").strip("\r\n")
        if not text.strip():
            continue
        if layout is None:
            layout = _look_at(path, number, text)
            if layout.n_header:
                continue
        fields = _split(text, layout.separator)
        if len(fields) != layout.n_fields:
            problem = f"found {len(fields)} fields, where earlier lines have {layout.n_fields}; "
            raise at_line(path, number, problem + _ADVICE)
        for kind, field, limit, column in (
            ("user", fields[layout.user], most[0], users),
            ("item", fields[layout.item], most[1], items),
        ):
            id = _id(path, number, kind, field, limit, shape)
            column.append(id)
            if id > largest[kind][0]:
                largest[kind] = id, number
        values.append(1.0 if layout.value is None else _value(path, number, fields[layout.value]))
    users, items, values = map(np.asarray, (users, items, values))
    if layout is not None and not layout.n_header and len(values):
        _check_no_times(path, values)
    return users, items, values, largest


def netflix_lines(path):
    """Yield the lines of a file of Netflix' as customer,movie,rating,date.

    There a line such as "1:" has the movie of those that follow.
    """
    movie = None
    for number, line in read_lines(path):
        if line.rstrip().endswith(b":"):
            movie = line.rstrip()[:-1]
        elif line.strip():
            if movie is None:
                problem = (
                    "a customer before any movie; begin with the number of a movie and a colon."
                )
                raise at_line(path, number, problem)
            customer, _, rest = line.partition(b",")
            yield number, b",".join([customer, movie, rest])


def outside(path, number, kind, id, shape):
    """Return the error for an id that is too large."""
    if shape is None:
        problem = (
            f"{kind} {id} is more than {MAX_ID}, the largest id that int32 indices can hold; "
            f"number the {kind}s from 0 on, or fit an InteractionRecommender on a table, which "
            f"takes ids of any kind."
        )
    else:
        problem = f"{kind} {id} is outside shape {shape}; pass a larger shape or None."
    return at_line(path, number, problem)


def _separator(text):
    """Return what separates the fields of a line; None for whitespace."""
    return next((separator for separator in ("::", ",", ";") if separator in text), None)


def _split(text, separator):
    if separator is None:
        separator = "\t" if "\t" in text.strip() else None
    if '"' in text and separator is not None and len(separator) == 1:
        try:
            (fields,) = csv.reader([text], delimiter=separator)
        except (csv.Error, ValueError):
            fields = text.split(separator)
    else:
        fields = text.split(separator)
    return [field.strip() for field in fields]


def _look_at(path, number, text):
    """Return the layout of a file from its first line."""
    separator = _separator(text)
    fields = _split(text, separator)
    n_fields = len(fields)
    if any(field[:1].isdigit() for field in fields[:2]):
        if not 2 <= n_fields <= 4:
            problem = (
                f"found {n_fields} fields, and no names of columns in the first line; give every "
                f"line a user, an item and maybe a rating and a time, or add a header line."
            )
            raise at_line(path, number, problem)
        return _Layout(separator, n_fields, 0, 0, 1, 2 if n_fields > 2 else None)
    places = {}
    for place, name in enumerate(fields):
        role = role_of(name)
        if role in places and role in ("user", "item", "value"):
            problem = f"found several columns of {role}s, {shorten(fields)}; leave one of them."
            raise at_line(path, number, problem)
        places[role] = place
    if "user" not in places or "item" not in places:
        problem = (
            f"found {shorten(fields)}, which names no column of users and no column of items, such "
            f"as user_id and item_id; {_ADVICE}"
        )
        raise at_line(path, number, problem)
    return _Layout(separator, n_fields, 1, places["user"], places["item"], places.get("value"))


def _is_id(field):
    return field.isascii() and field.isdigit()


def _id(path, number, kind, field, limit, shape):
    if not _is_id(field):
        problem = (
            f"found {shown(field)} as {kind}; ids must be integers >= 0. For other ids read the "
            f"file into a DataFrame and fit an InteractionRecommender."
        )
        raise at_line(path, number, problem)
    # Python refuses to parse thousands of digits.
    id = int(field[-4000:]) if len(field.lstrip("0")) < 4000 else math.inf
    if id > limit:
        raise outside(path, number, kind, field[:40], shape)
    return id


def _value(path, number, field):
    value = _float(field)
    if not math.isfinite(value):
        raise at_line(path, number, f"found {shown(field)} as rating; give a finite number.")
    return value


def _float(field):
    """Return a number, or NaN."""
    # float() also accepts non-ASCII digits, and "1_0".
    if not field.isascii() or "_" in field:
        return math.nan
    try:
        return float(field)
    except ValueError:
        return math.nan


def _check_no_times(path, values):
    least, most = _TIMES
    if ((values >= least) & (values < most)).all():
        raise ValueError(
            f"{path} has what looks like times, such as {values[0]:.0f}, where ratings are "
            f"expected. Add a header line such as user,item,time."
        )
