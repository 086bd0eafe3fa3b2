"""Loader of files of implicit feedback: sparse matrices, lists of items, and ratings."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.io import mmread
from scipy.sparse import coo_array, csr_array, issparse, load_npz

from freqfm._input.frames import role_of
from freqfm._input.times import are_times
from freqfm._input.validation import check_count, check_number, checked_csr
from freqfm._messages import cut, shorten, shown
from freqfm._paths import check_path
from freqfm.datasets.text_files import as_canonical, at_line, opener_of, parsed, read_lines

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


FORMATS = ("auto", "npz", "mtx", "lists", "ratings", "netflix")

# Names of the files with ratings in the folders of MovieLens, RecBole and Netflix.
_IN_FOLDERS = (
    *("ratings.csv", "ratings.dat", "u.data", "*.inter"),
    *("combined_data_*.txt", "mv_*.txt", "training_set/mv_*.txt"),
)

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
        File to read, or a folder as MovieLens, RecBole or Netflix have it: its file ratings.csv,
        ratings.dat, u.data or the only ``*.inter`` is read, or all of combined_data_*.txt or
        mv_*.txt.
    format : {"auto", "npz", "mtx", "lists", "ratings", "netflix"}, default="auto"
        Format of the file:

        - "npz": a sparse matrix written by :func:`scipy.sparse.save_npz`, of any sparse
          format, with its values;
        - "mtx": a matrix in a file of MatrixMarket, as written by :func:`scipy.io.mmwrite`;
        - "lists": the text files of NGCF [1]_ and LightGCN [2]_. A line is a user and the
          items of this user, all integers from 0 on with spaces between them; the user may
          have no items, and lines may be blank. Repeated items and repeated lines of a user are
          merged;
        - "ratings": the text files of MovieLens [3]_, such as u.data, ratings.dat and ratings.csv,
          and RecBole's ``.inter``. A line is a user, an item, and maybe a rating and a time,
          separated by tabs, spaces, "::", commas or semicolons. A header such as
          userId,movieId,rating,timestamp gives the order of the columns, also with RecBole's
          types, user_id:token; times and columns with other names are ignored. Without a column of
          ratings all values are 1. Repeated ratings of an item by a user are summed;
        - "netflix": the text files of the Netflix Prize, combined_data_1.txt and mv_0000001.txt.
          After a line of a movie and a colon, a line is a customer, a rating and a date, with
          commas between them;
        - "auto": "npz" or "mtx" if the path ends so, otherwise what the first lines look like. It
          is an error if they are ambiguous.

        Text files that end in ".gz", ".bz2" or ".zst" are decompressed.
    shape : tuple of int (n_users, n_items), default=None
        Shape of the result. None takes the shape of the matrix in the file or, with text files,
        the largest ids found plus one. Pass the shape to give several files of one data set the
        same users and items.
    min_rating : float, default=None
        With "ratings" or "netflix" and a number, X holds a 1 for every rating of at least
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
        nearly all empty. The message names the file and, for text files, the line.
    OSError
        If the file cannot be read.

    See Also
    --------
    fetch_movielens : Downloads MovieLens and numbers its users and items.
    freqfm.InteractionRecommender : Takes tables, with ids of any kind.

    Notes
    -----
    Ids are used directly as row and column numbers: user 196 of u.data is row 196 of X, and row 0
    is empty. Number them from 0 on without large gaps: every number up to the largest user takes
    a few bytes, even if no user has it. If ids are large or not integers, read the file into a
    DataFrame and fit an :class:`~freqfm.InteractionRecommender`.

    Text takes one to two seconds per million lines.

    References
    ----------
    .. [1] Xiang Wang et al., "Neural Graph Collaborative Filtering", SIGIR 2019.
    .. [2] Xiangnan He et al., "LightGCN: Simplifying and Powering Graph Convolution Network
       for Recommendation", SIGIR 2020.
    .. [3] F. Maxwell Harper and Joseph A. Konstan, "The MovieLens Datasets: History and
       Context", ACM Transactions on Interactive Intelligent Systems 5(4), 2015.

    Examples
    --------
    >>> import os, tempfile
    >>> from scipy.sparse import save_npz
    >>> from freqfm.datasets import load_interactions
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.txt")
    ...     with open(path, "w") as file:
    ...         _ = file.write("0 2 1\\n1\\n2 0 3\\n")
    ...     X = load_interactions(path)
    ...     path = os.path.join(folder, "train.npz")
    ...     save_npz(path, X.tocoo())
    ...     X_same = load_interactions(path)
    >>> X.toarray().tolist()
    [[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    >>> (X != X_same).nnz
    0
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "ratings.csv")
    ...     with open(path, "w") as file:
    ...         _ = file.write("userId,movieId,rating\\n0,2,4.5\\n1,0,2.0\\n")
    ...     X = load_interactions(path)
    ...     likes = load_interactions(path, min_rating=4)
    >>> X.toarray().tolist(), likes.nnz
    ([[0.0, 0.0, 4.5], [2.0, 0.0, 0.0]], 1)
    """
    if format not in FORMATS:
        raise ValueError(f"format is {shown(format)}; pass one of {FORMATS}.")
    shape = _check_shape(shape)
    path, *more = paths = _files(check_path("path", path))
    if format == "auto":
        ending = re.search(r"\.(npz|mtx)(\.gz|\.bz2|\.zst)?$", path)
        format = ending[1] if ending else guess_format(path)
    if more and format != "netflix":
        raise ValueError(f"path holds {len(paths)} files, {path} and others; pass one of them.")
    if min_rating is not None:
        check_number("min_rating", min_rating, -np.inf, np.inf)
        if format not in ("ratings", "netflix"):
            raise ValueError(
                f"min_rating is {min_rating}, but {path} has the format {shown(format)}; it takes "
                f"a file of ratings (format='ratings')."
            )
    if format in ("npz", "mtx"):
        return _load_matrix(path, shape, _read_npz if format == "npz" else _read_mtx)
    return _load_text(paths, format, shape, min_rating)


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


def _read_npz(file):
    """Return the matrix in a file of scipy.sparse.save_npz."""
    with np.load(file, allow_pickle=False) as arrays:
        for name in {"indices", "indptr", "row", "col", "offsets"}.intersection(arrays):
            # SciPy would truncate others.
            if arrays[name].dtype.kind not in "iu":
                raise ValueError(f"its {name} are {arrays[name].dtype}, not integers")
    file.seek(0)
    # This reader never unpickles objects.
    return load_npz(file)


def _read_mtx(file):
    """Return the matrix in a file of MatrixMarket."""
    with warnings.catch_warnings():
        # SciPy 1.18 announces another class of matrix; SciPy 1.11 has no argument for it.
        warnings.simplefilter("ignore", DeprecationWarning)
        X = mmread(file)
    return coo_array(X) if issparse(X) else csr_array(X)


def _load_matrix(path, shape, read):
    """Return the matrix in a file."""
    with opener_of(path)(path, "rb") as file:
        try:
            X = read(file)
            if X.dtype.kind not in "biuf":
                raise ValueError(f"its values are {X.dtype}, not real numbers")
            if max(X.shape) > MAX_ID + 1:
                raise ValueError(f"its shape {X.shape} is more than int32 can hold")
            if shape is None and X.format in ("coo", "csc", "dia"):
                _check_n_rows(X)
            with np.errstate(over="ignore"):
                X = as_canonical(checked_csr(X, "it").astype(np.float32))
            if not np.isfinite(X.data).all():
                raise ValueError("it holds NaN, infinity or values beyond float32")
        # The exception raised for a damaged file depends on the damage, and is hardly documented.
        except Exception as error:
            raise ValueError(
                f"{path} is not a sparse matrix that can be used ({cut(error)}); pass a file of "
                "scipy.sparse.save_npz or scipy.io.mmwrite with real values in two dimensions."
            ) from error
    if shape is not None:
        if X.shape[0] > shape[0] or X.shape[1] > shape[1]:
            raise ValueError(
                f"{path} holds a matrix of shape {X.shape}, which does not fit into shape "
                f"{shape}; pass a larger shape or None."
            )
        X.resize(shape)
    return X


def _check_n_rows(X):
    """Raise a ValueError if nearly all rows are empty, as each takes memory in CSR."""
    if X.shape[0] > max(_ALWAYS_ALLOWED, _ALLOWED_PER_INTERACTION * X.nnz):
        raise ValueError(
            f"its shape is {X.shape} with {X.nnz} entries, so that nearly all rows are empty; pass "
            f"shape={X.shape} if that is meant"
        )


def _load_text(paths, format, shape, min_rating):
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
                f"interaction(s), read as format={format!r}. Pass shape={found} if that is meant, "
                f"format='ratings' if lines are a user, an item, a rating and a time, or number "
                f"the {role}s from 0 on; InteractionRecommender takes tables with ids of any kind.",
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
