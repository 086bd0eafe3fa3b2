"""Loader of files of implicit feedback: lists of items, and the ratings of Netflix."""

from __future__ import annotations

import math
import os
import re
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from freqfm._input.times import NUMBER
from freqfm._input.validation import check_count, check_number
from freqfm._messages import cut, shown
from freqfm._paths import check_path
from freqfm.datasets.text_files import as_canonical, at_line, parsed, read_lines

# The largest id for which the matrix has a shape within int32.
MAX_ID = np.iinfo(np.int32).max - 1

# An interaction, and the line that it is in. A user without items has one with the item -1.
_ROW = np.dtype([("line", "i4"), ("user", "i4"), ("item", "i4"), ("value", "f8")])

# Number of lines from which the format is guessed, and of those that are read at once.
_N_LINES_READ, _AT_ONCE = 1000, 1 << 14

_ADVICE = (
    "give every line a user and the items of this user, as integers >= 0 with spaces between them. "
    "Read ratings and other tables with pandas, and fit an InteractionRecommender on these."
)

# A line of Netflix' with its movie, as most are written.
_NETFLIX = rb"^ *(\d{1,9}) *, *(\d{1,9}) *, *([+-]?\d{1,9}(?:\.\d{0,9})?) *(?:,[^,\r\n]*)?\r*$"


def guess_format(path):
    """Return the format of a text file: "lists" of items, or "netflix".

    Raises
    ------
    ValueError
        If it may hold ratings, with a user, an item and a rating in each line.
    """
    lines = ((number, line.split()) for number, line in islice(read_lines(path), _N_LINES_READ))
    lines = [(number, fields) for number, fields in lines if fields]
    if lines and re.fullmatch(rb"\d+:", lines[0][1][0]):
        return "netflix"
    seen = set()
    if {len(fields) for _, fields in lines} in ({3}, {4}):
        for number, (user, *_) in lines:
            if user in seen:
                raise at_line(
                    path,
                    number,
                    f"user {cut(user.decode('utf-8', 'backslashreplace'))} again, in a file whose "
                    f"lines all have {len(lines[0][1])} fields, as ratings have; pass "
                    f"format='lists' if they are a user and items. Otherwise {_ADVICE}",
                )
            seen.add(user)
    return "lists"


def read_rows(path, format):
    """Return the interactions in a text file, an array of fields "line", "user", "item", "value".

    Parameters
    ----------
    path : str
    format : {"lists", "netflix"}

    Raises
    ------
    ValueError
        If a line is malformed; the message has its number.
    """
    lines = _netflix_lines(path) if format == "netflix" else read_lines(path)
    at_once, parse = _FUNCTIONS[format]
    parts = [np.zeros(0, _ROW)]
    while some := list(islice(lines, _AT_ONCE)):
        rows = at_once(some)
        if rows is None:
            found = ((n, *row) for n, of_line in parsed(path, some, parse) for row in of_line)
            rows = np.fromiter(found, _ROW)
        parts.append(rows)
    return np.concatenate(parts)


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


def _ratings_at_once(lines):
    """Return the rows of lines of Netflix'; None if one may be wrong."""
    found = re.findall(_NETFLIX, b"".join(line for _, line in lines), re.MULTILINE)
    if len(found) != len(lines):
        return None
    rows = np.zeros(len(lines), _ROW)
    rows["line"] = [number for number, _ in lines]
    for name, column in zip(("user", "item", "value"), np.array(found).T, strict=True):
        rows[name] = column.astype(_ROW[name])
    return rows


def _rating(text):
    """Return a list of the user, the item and the rating of a line of Netflix'."""
    fields = [field.strip() for field in text.split(",")]
    if len(fields) not in (3, 4):
        raise ValueError("give every line a customer, a rating and a date, with commas between.")
    user, item = _id("user", fields[0]), _id("item", fields[1])
    # float() also accepts other digits, and "1_0".
    rating = float(fields[2]) if NUMBER.fullmatch(fields[2]) else math.nan
    if not math.isfinite(rating):
        raise ValueError(f"found {shown(fields[2])} as rating; give a finite number.")
    return [(user, item, rating)]


def _lists_at_once(lines):
    """Return the rows of lines of a user and items; None if one may be wrong."""
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


def _list(text):
    """Return a list of the user, an item and 1 for each item of a line.

    Only the white space of ASCII separates them.
    """
    if re.fullmatch(r"[\d \t\r\n]*", text, re.ASCII) is None:
        found = next((token for token in text.split() if not _is_id(token)), text)
        raise ValueError(f"found {shown(found[:40])}; {_ADVICE}")
    user, *items = text.split() or [None]
    if user is None:
        return []
    user = _id("user", user)
    return [(user, _id("item", item), 1) for item in items] or [(user, -1, 1)]


# How many lines at once are parsed, and a line.
_FUNCTIONS = {"lists": (_lists_at_once, _list), "netflix": (_ratings_at_once, _rating)}


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


FORMATS = ("auto", *_FUNCTIONS)

# Names of the files with ratings in the folders of Netflix.
_IN_FOLDERS = ("combined_data_*.txt", "mv_*.txt", "training_set/mv_*.txt")

# Ids may leave this many rows or columns empty, or this many per interaction. Beyond that, they are
# probably not ids, but times for example.
_ALWAYS_ALLOWED = 1_000_000
_ALLOWED_PER_INTERACTION = 100


def load_interactions(
    path: str | os.PathLike[str],
    *,
    format: str = "auto",
    shape: tuple[int, int] | None = None,
    min_rating: float | None = None,
) -> csr_array:
    """Load interactions of users and items from a file or a data set's folder.

    Parameters
    ----------
    path : str or path-like
        File to read, or a folder as Netflix has it: all of its combined_data_*.txt or mv_*.txt.
        Files that end in ".gz", ".bz2" or ".zst" are decompressed.
    format : {"auto", "lists", "netflix"}, default="auto"
        Format of the file:

        - "lists": the text files of NGCF [1]_ and LightGCN [2]_. A line is a user and the
          items of this user, all integers from 0 on with spaces between them; the user may
          have no items, and lines may be blank. Repeated items and repeated lines of a user are
          merged;
        - "netflix": the text files of the Netflix Prize, combined_data_1.txt and mv_0000001.txt.
          After a line of a movie and a colon, a line is a customer, a rating and a date, with
          commas between them;
        - "auto": what the first lines look like. It is an error if they may be ratings.
    shape : tuple of int (n_users, n_items), default=None
        Shape of the result. None takes the largest ids found plus one. Pass the shape to give
        several files of one data set the same users and items.
    min_rating : float, default=None
        With "netflix" and a number, X holds a 1 for every rating of at least
        `min_rating` and nothing for other ratings: implicit feedback. None keeps the ratings as
        they are.

    Returns
    -------
    X : csr_array of shape (n_users, n_items), dtype float32
        With int32 indices, sorted, and no stored zeros. With "lists" all values are 1.

    Raises
    ------
    ValueError
        If an argument is outside its range, if the file does not have the format, if it does not
        fit into `shape`, or if `shape` is None and more than a million rows or columns would be
        nearly all empty. The message names the file and the line.
    OSError
        If the file cannot be read.

    See Also
    --------
    fetch_movielens : Downloads MovieLens and numbers its users and items.
    freqfm.InteractionRecommender : Takes tables, with ids of any kind.

    Notes
    -----
    Files of ratings are tables: read those of MovieLens and RecBole with :func:`pandas.read_csv`,
    and fit an :class:`~freqfm.InteractionRecommender`. Matrices are read by
    :func:`scipy.sparse.load_npz` and :func:`scipy.io.mmread`.

    Ids are used directly as row and column numbers. Number them from 0 on without large gaps: every
    number up to the largest user takes a few bytes, even if no user has it.

    Text takes one to two seconds per million lines.

    References
    ----------
    .. [1] Xiang Wang et al., "Neural Graph Collaborative Filtering", SIGIR 2019.
    .. [2] Xiangnan He et al., "LightGCN: Simplifying and Powering Graph Convolution Network
       for Recommendation", SIGIR 2020.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm.datasets import load_interactions
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.txt")
    ...     with open(path, "w") as file:
    ...         _ = file.write("0 2 1\\n1\\n2 0 3\\n")
    ...     X = load_interactions(path)
    >>> X.toarray().tolist()
    [[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """
    if format not in FORMATS:
        raise ValueError(f"format is {shown(format)}; pass one of {FORMATS}.")
    shape = _check_shape(shape)
    path, *more = paths = _files(check_path("path", path))
    if format == "auto":
        format = guess_format(path)
    if more and format != "netflix":
        raise ValueError(f"path holds {len(paths)} files, {path} and others; pass one of them.")
    if min_rating is not None:
        check_number("min_rating", min_rating, -np.inf, np.inf)
        if format != "netflix":
            raise ValueError(
                f"min_rating is {min_rating}, but {path} has the format {shown(format)}; it takes "
                f"a file of ratings (format='netflix')."
            )
    return _load(paths, format, shape, min_rating)


def _files(path):
    """Return the path of a file, or of those in a folder that are read, as strings."""
    if not os.path.isdir(path):
        return [path]
    for name in _IN_FOLDERS:
        found = sorted(map(str, Path(path).glob(name)))
        if found:
            return found
    raise ValueError(
        f"{path} is a folder without any of {', '.join(_IN_FOLDERS)}; pass the path of a file."
    )


def _load(paths, format, shape, min_rating):
    """Return the matrix in text files."""
    parts = [read_rows(path, format) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        _check_ids(path, part, format, shape)
    rows = np.concatenate(parts)
    if shape is None:
        if not len(rows):
            what = "user" if format == "lists" else "rating"
            raise ValueError(
                f"{paths[0]} has no {what}; pass a file with at least one, or a shape."
            )
        shape = _shape_of(rows)
    rows = rows[rows["item"] >= 0]
    # In lists, all values are 1.
    least = 1 if format == "lists" else min_rating
    X = rating_matrix(rows["user"], rows["item"], rows["value"], shape, least)
    if not np.isfinite(X.data).all():
        raise ValueError(f"{paths[0]} holds ratings whose sums overflow float32; scale them.")
    return X


def rating_matrix(users, items, ratings, shape, min_rating):
    """Return a users x items csr_array of sums of ratings, or of a 1 for each >= min_rating."""
    if min_rating is not None:
        kept = ratings >= min_rating
        users, items, ratings = users[kept], items[kept], np.ones(np.count_nonzero(kept))
    X = csr_array((ratings, (users, items)), shape=shape)
    with np.errstate(over="ignore"):
        X = as_canonical(X.astype(np.float32))
    if min_rating is not None:
        X.data[:] = 1
    return X


def _shape_of(rows):
    """Return the smallest shape that holds the users and items of some interactions."""
    return tuple(int(rows[role].max(initial=-1)) + 1 for role in ("user", "item"))


def _check_ids(path, rows, format, shape):
    """Raise if ids are outside the shape, or implausibly large for the number of interactions."""
    # Netflix' customers have large numbers, also in a file of few ratings.
    if not len(rows) or (shape is None and format == "netflix"):
        return
    found = _shape_of(rows)
    most = max(_ALWAYS_ALLOWED, _ALLOWED_PER_INTERACTION * len(rows))
    for place, role in enumerate(("user", "item")):
        number = rows["line"][rows[role].argmax()]
        if shape is not None and found[place] > shape[place]:
            raise at_line(
                path,
                number,
                f"{role} {found[place] - 1} is outside shape {shape}; pass a larger shape or None.",
            )
        if shape is None and found[place] > most:
            raise at_line(
                path,
                number,
                f"{role} {found[place] - 1} would make a matrix of shape {found} of {len(rows)} "
                f"interaction(s). Pass shape={found} if that is meant, or number the {role}s from "
                f"0 on; InteractionRecommender takes tables with ids of any kind.",
            )


def _check_shape(shape):
    """Return shape as a tuple of two int, or None."""
    if shape is None:
        return None
    try:
        n_users, n_items = shape
    except (TypeError, ValueError):
        raise ValueError(
            f"shape={shown(shape)} must be a tuple (n_users, n_items), or None."
        ) from None
    return check_count("shape[0]", n_users), check_count("shape[1]", n_items)
