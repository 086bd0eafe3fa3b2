"""Text files of interactions: lines of ratings, or of the items of a user."""

import contextlib
import csv
import math
import re
from itertools import islice

import numpy as np

from freqfm._input.columns import role_of
from freqfm._input.times import are_times
from freqfm._messages import shorten, shown
from freqfm.datasets._lines import at_line, parsed, read_lines

# The largest id for which the matrix has a shape within int32.
MAX_ID = np.iinfo(np.int32).max - 1

# An interaction, and the line that it is in. A user without items has one with the item -1.
_ROW = np.dtype([("line", "i4"), ("user", "i4"), ("item", "i4"), ("value", "f8")])

# Number of lines from which the format is guessed, and of those that are read at once.
_N_LINES_READ, _AT_ONCE = 1000, 1 << 14

# How lines that are read at once have numbers, by role.
_USUAL = dict.fromkeys(["user", "item"], rb"(\d{1,9})")
_USUAL["value"] = rb"([+-]?\d{1,9}(?:\.\d{0,9})?)"

_ADVICE = "give every line a user and an item, integers >= 0, and maybe a rating and a time."


def guess_format(path):
    """Return the format of a text file: "ratings", one per line, "lists" of items, or "netflix".

    Raises
    ------
    ValueError
        If both are possible.
    """
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    lines = list(parsed(path, islice(lines, _N_LINES_READ), lambda text: _split(text, None)))
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
            _is_id(user) and _is_id(item) and math.isfinite(_number(rating))
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


def read_rows(path, format):
    """Return the interactions in a text file, an array of fields "line", "user", "item", "value".

    Parameters
    ----------
    path : str
    format : {"lists", "ratings", "netflix"}

    Raises
    ------
    ValueError
        If a line is malformed; the message has its number.
    """
    lines = _netflix_lines(path) if format == "netflix" else read_lines(path)
    parse = _Lists() if format == "lists" else _Ratings()
    parts = [np.zeros(0, _ROW)]
    while some := list(islice(lines, _AT_ONCE if parse.is_ready else 1)):
        rows = parse.at_once(some) if parse.is_ready else None
        if rows is None:
            found = ((n, *row) for n, of_line in parsed(path, some, parse) for row in of_line)
            rows = np.fromiter(found, _ROW)
        parts.append(rows)
    rows = np.concatenate(parts)
    values = rows["value"]
    if format != "lists" and not parse.has_header and len(rows) and are_times(values).all():
        raise ValueError(
            f"{path} has what looks like times, such as {values[0]:.0f}, where ratings are "
            f"expected. Add a header line such as user,item,time."
        )
    return rows


def _netflix_lines(path):
    """Yield the lines of a file of Netflix' as customer,movie,rating,date.

    In it, a line such as "1:" has the movie of the lines that follow.
    """
    movie = None
    for number, line in read_lines(path):
        if line.rstrip().endswith(b":"):
            movie = line.rstrip()[:-1]
        elif line.strip():
            if movie is None:
                problem = "a customer before any movie; begin with a line of a movie and a colon."
                raise at_line(path, number, problem)
            customer, _, rest = line.partition(b",")
            yield number, b",".join([customer, movie, rest])


class _Ratings:
    """Parses lines of ratings; the separator and the fields are those of the first line."""

    places = None
    has_header = False

    @property
    def is_ready(self):
        """Whether a line has been read."""
        return self.places is not None

    def at_once(self, lines):
        """Return the rows of lines that are written as the first one; None for other ones."""
        first = lines[0][1].rstrip(b"\r\n")
        separator = (self.separator or ("\t" if b"\t" in first.strip() else " ")).encode()
        quotes = re.findall(rb'(?:^|%s)(?:(")[^"]*"|[^"%s]*)' % (separator, separator), first)
        if separator not in b",;\t" or len(quotes) != self.n_fields:
            quotes = [b""] * self.n_fields
        # Empty fields are none between whitespace.
        other = rb'[^"\r\n%s]%s' % (separator, b"*" if self.separator else b"+")
        other = rb"[!#-~]+" if separator == b" " else other
        fields = [
            quote + _USUAL.get(self.roles.get(place), rb'[^"\r\n]*' if quote else other) + quote
            for place, quote in enumerate(quotes)
        ]
        blanks, between = b" *", separator + b"+" if separator == b" " else rb" *%s *" % separator
        if any(quotes):
            blanks, between = b"", separator
        pattern = rb"^%s%s%s\r*$" % (blanks, between.join(fields), blanks)
        found = re.findall(pattern, b"".join(line for _, line in lines), re.MULTILINE)
        if len(found) != len(lines):
            return None
        rows = np.ones(len(lines), _ROW)
        rows["line"] = [number for number, _ in lines]
        roles = [role for _, role in sorted(self.roles.items()) if role in _USUAL]
        for role, column in zip(roles, np.array(found).T, strict=True):
            rows[role] = column.astype(_ROW[role])
        return rows

    def __call__(self, text):
        """Return a list of the user, the item and the rating of a line, if it has them."""
        if not text.strip():
            return []
        if self.places is None:
            self._look_at(text)
            if self.has_header:
                return []
        fields = _split(text, self.separator)
        if len(fields) != self.n_fields:
            raise ValueError(
                f"found {len(fields)} fields, where earlier lines have {self.n_fields}; {_ADVICE}"
            )
        user, item = (_id(role, fields[self.places[role]]) for role in ("user", "item"))
        rating = fields[self.places["value"]] if "value" in self.places else "1"
        if not math.isfinite(_number(rating)):
            raise ValueError(f"found {shown(rating)} as rating; give a finite number.")
        return [(user, item, _number(rating))]

    def _look_at(self, text):
        """Set how lines are split, and the places of fields by role, from the first line."""
        self.separator = _separator(text)
        fields = _split(text, self.separator)
        self.n_fields = len(fields)
        self.has_header = not any(field[:1].isdigit() for field in fields[:2])
        roles = ["user", "item", "value", "time"]
        if self.has_header:
            roles = list(map(role_of, fields))
        elif not 2 <= self.n_fields <= 4:
            raise ValueError(
                f"found {self.n_fields} fields, and no names of columns in the first line; give "
                f"every line a user, an item and maybe a rating and a time, or add a header line."
            )
        for role in ("user", "item", "value"):
            if roles.count(role) > 1:
                raise ValueError(
                    f"found several columns of {role}s, {shorten(fields)}; leave one of them."
                )
        if not {"user", "item"} <= set(roles):
            raise ValueError(
                f"found {shorten(fields)}, which names no column of users and no column of items, "
                f"such as user_id and item_id; {_ADVICE}"
            )
        self.roles = dict(enumerate(roles[: self.n_fields]))
        self.places = {role: place for place, role in self.roles.items()}


class _Lists:
    """Parses lines of a user and items, separated only by the white space of ASCII."""

    is_ready = True

    def at_once(self, lines):
        """Return the rows of lines; None if one may be wrong."""
        text = b"".join(line for _, line in lines)
        if text.translate(None, b"0123456789 \t\r\n"):
            return None
        ids = np.array(text.split(), dtype="S11")
        if (np.char.str_len(ids) > 9).any():
            return None
        ids = ids.astype(np.int32)
        counts = np.array([len(line.split()) for _, line in lines])
        begins = (np.cumsum(counts) - counts)[counts > 0]
        # For each id a row, without those of users, except if they have no items.
        rows = np.ones(len(ids), _ROW)
        rows["line"] = np.repeat([number for number, _ in lines], counts)
        rows["user"], rows["item"] = np.repeat(ids[begins], counts[counts > 0]), ids
        rows["item"][begins] = -1
        dropped = begins[counts[counts > 0] > 1]
        return np.delete(rows, dropped)

    def __call__(self, text):
        """Return a list of the user, an item and 1 for each item of a line."""
        if re.fullmatch(r"[\d \t\r\n]*", text, re.ASCII) is None:
            found = next((token for token in text.split() if not _is_id(token)), text)
            raise ValueError(
                f"found {shown(found[:40])}; give every line a user and the items of this user, as "
                f"integers >= 0 with spaces between them. Lines of a user, an item and a rating "
                f"are format='ratings'."
            )
        user, *items = text.split() or [None]
        if user is None:
            return []
        user = _id("user", user)
        return [(user, _id("item", item), 1) for item in items] or [(user, -1, 1)]


def _separator(text):
    """Return the separator of the fields of a line; None for whitespace."""
    return next((separator for separator in ("::", ",", ";") if separator in text), None)


def _split(text, separator):
    if separator is None:
        separator = "\t" if "\t" in text.strip() else None
    fields = text.split(separator)
    if '"' in text and separator is not None and len(separator) == 1:
        with contextlib.suppress(csv.Error, ValueError):
            (fields,) = csv.reader([text], delimiter=separator)
    return [field.strip() for field in fields]


def _is_id(field):
    return field.isascii() and field.isdigit()


def _id(role, field):
    """Return an id as an integer."""
    if not _is_id(field):
        raise ValueError(
            f"found {shown(field)} as {role}; ids must be integers >= 0. For other ids read the "
            f"file into a DataFrame and fit an InteractionRecommender."
        )
    # Python refuses to parse thousands of digits.
    digits = field.lstrip("0") or "0"
    if len(digits) > 10 or int(digits) > MAX_ID:
        raise ValueError(
            f"{role} {digits[:40]} is more than {MAX_ID}, the largest id that int32 indices can "
            f"hold; number the {role}s from 0 on, or fit an InteractionRecommender on a table, "
            f"which takes ids of any kind."
        )
    return int(digits)


def _number(field):
    """Return a number, or NaN."""
    # float() also accepts non-ASCII digits, and "1_0".
    if not field.isascii() or "_" in field:
        return math.nan
    try:
        return float(field)
    except ValueError:
        return math.nan
