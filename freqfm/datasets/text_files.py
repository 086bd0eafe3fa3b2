"""Text files: rows of libFM and libffm, and lists of items."""

import bz2
import gzip
import io
import os
import re
import zlib
from array import array
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.sparse import csr_array
from sklearn.datasets import load_svmlight_files
from sklearn.utils import column_or_1d

from freqfm._input import validation
from freqfm._messages import cut, shown
from freqfm._paths import check_path, check_paths


def _open_zstd(path, mode):
    """Open a file compressed by zstd."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"opening {path} takes pyarrow: pip install 'freqfm[streams]'.") from None
    if mode == "wb":
        return pyarrow.output_stream(path, compression="zstd")
    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))


_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}


def opener_of(path):
    """Return the function that opens a file, compressed if its name says so."""
    return _OPENERS.get(os.path.splitext(path)[1], open)


_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = b"\xff\xfe", b"\xfe\xff"


def read_lines(path):
    """Yield the number and the bytes of each line, without a byte order mark.

    Parameters
    ----------
    path : str
        Files that end in ".gz", ".bz2" or ".zst" are decompressed.

    Raises
    ------
    ValueError
        If the file cannot be decompressed, or is encoded in UTF-16.
    """
    opener = opener_of(path)
    with opener(path, "rb") as file:
        try:
            lines = enumerate(file, start=1)
            for number, line in islice(lines, 1):
                if line.startswith(_UTF16_MARKS):
                    raise ValueError(f"{path} is encoded in UTF-16; save it as UTF-8.")
                yield number, line.removeprefix(_UTF8_MARK)
            yield from lines
        except Exception as error:
            # zstd's error has a class in each library. Only errors of the operating system have an
            # errno.
            known = isinstance(error, (EOFError, OSError, zlib.error))
            if not known and type(error).__name__ != "ZstdError":
                raise
            if opener is open or getattr(error, "errno", None) is not None:
                raise
            raise ValueError(
                f"{path} cannot be decompressed ({error}); pass a complete file, or one whose name "
                f"does not end in .gz, .bz2 or .zst if it is not compressed."
            ) from error


def at_line(path, number, problem):
    """Return the error for a problem in a line."""
    return ValueError(f"{path}, line {number}: {problem}")


def load_libfm(
    path: str | os.PathLike[str],
    *,
    n_features: int | None = None,
    zero_based: bool | str = "auto",
    dtype: DTypeLike = np.float32,
) -> tuple[csr_array, np.ndarray]:
    """Load data in the text format of libFM, which is that of svmlight.

    One row per line: the target, then ``column:value`` for every non-zero entry [1]_. The
    format has no field for the number of columns: load the files of one data set in one call,
    or pass `n_features`, to give them all the same columns.

    Parameters
    ----------
    path : str, path-like, or list or tuple of these
        File or files to read; those that end in ".gz", ".bz2" or ".zst" are decompressed.
    n_features : int, default=None
        Number of columns. None is as many as the largest column number found in the files needs.
    zero_based : bool or "auto", default="auto"
        Whether the columns are numbered from 0 (True) or 1 (False). "auto" assumes 1 if column 0
        is in none of the files; pass True where columns start at 0 and the first may be missing
        by chance.
    dtype : numpy dtype, default=numpy.float32
        Type of the values of X.

    Returns
    -------
    X : csr_array of shape (n_samples, n_features), dtype `dtype`
        With int32 indices, sorted; zeros in the file are not stored.
    y : ndarray of shape (n_samples,), dtype float64
        The targets as they are in the file, often -1 and 1.

        For a list or tuple of paths the result is the flat list ``[X1, y1, X2, y2, ...]``,
        all with the same number of columns.

    Raises
    ------
    ValueError
        If there is no path, if a line cannot be read, holds NaN or infinity or names a query
        (``qid:1``), if the column numbers of a line are not in increasing order or beyond int32, if
        a file cannot be decompressed, or if `n_features` is too small for the largest column number
        found. The message names the file and the line.

    See Also
    --------
    sklearn.datasets.load_svmlight_files : The reader behind this function.

    References
    ----------
    .. [1] Steffen Rendle, "Factorization Machines with libFM", ACM Transactions on
       Intelligent Systems and Technology 3(3), 2012.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm.datasets import load_libfm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.libfm")
    ...     with open(path, "w") as file:
    ...         _ = file.write("1 0:1 3:1\\n-1 1:1 4:0.5\\n")
    ...     X, y = load_libfm(path)
    >>> X.toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.5]]
    >>> y.tolist()
    [1.0, -1.0]
    """
    files = [Lines(one, numbered_lines(one)) for one in check_paths("path", path)]
    loaded = load_files(files, n_features=n_features, zero_based=zero_based, dtype=np.dtype(dtype))
    return (loaded[0], loaded[1]) if isinstance(path, str | os.PathLike) else loaded


def numbered_lines(path):
    """Yield the number and the bytes of each line that is not blank or a comment.

    Raise if one has the query of a ranking, which scikit-learn's reader would ignore.
    """
    # Integers are found in bytes in less than a tenth of the time of bytes.
    hash_sign, q = b"#q"
    for number, line in read_lines(path):
        content = line.partition(b"#")[0] if hash_sign in line else line
        if q in content and b"qid" in content:
            raise at_line(
                path,
                number,
                "found a query, qid:..., which freqfm's models have no use for; take these out, or "
                "read the file by sklearn.datasets.load_svmlight_file(path, query_id=True).",
            )
        if content and not content.isspace():
            yield number, line


def read_blocks(path, zero_based, n_rows):
    """Yield X and y of some rows at a time; errors name the line."""
    rows = numbered_lines(path)
    while block := list(islice(rows, n_rows)):
        yield load_files([Lines(path, block)], zero_based=zero_based, dtype=np.float32)


class Lines:
    """A file object for scikit-learn's reader that keeps the numbers of the lines read."""

    #: The end of errors of lines that cannot be read.
    advice = (
        "give every line a target and pairs column:value, columns ascending and below 2**31 - 1."
    )

    def __init__(self, path, lines):
        self.path, self._lines = path, lines
        self.numbers = array("q")
        self.done = self.failed = False

    #: The reader takes what has a method ``read`` for an open file, and iterates over it.
    read = None

    def __iter__(self):
        try:
            for number, line in self._lines:
                self.numbers.append(number)
                yield line
        except ValueError:
            self.failed = True
            raise
        self.done = True


def load_files(files, **options):
    """Return X and y of each file; errors name the line."""
    try:
        loaded = load_svmlight_files(files, **options)
    except (OverflowError, ValueError, IndexError) as error:
        # The reader stops at the line that it cannot read, but does not say which line it is.
        last = next((file for file in reversed(files) if file.numbers), None)
        if last is None or last.done or last.failed:
            raise
        raise at_line(last.path, last.numbers[-1], f"{cut(error)}; {last.advice}") from error
    for place, file in enumerate(files):
        X, y = loaded[2 * place : 2 * place + 2]
        _check_rows(X, y, file)
        loaded[2 * place] = as_canonical(X)
    return loaded


def _check_rows(X, y, file):
    """Raise a ValueError that names the line if a target or a value is not finite."""
    for kind, numbers in (("the target", y), (f"a value, of {X.dtype}", X.data)):
        if not np.isfinite(numbers).all():
            place = np.flatnonzero(~np.isfinite(numbers))[0]
            row = place if numbers is y else np.searchsorted(X.indptr, place, side="right") - 1
            problem = f"found {numbers[place]} as {kind}; give finite numbers only."
            raise at_line(file.path, file.numbers[row], problem)


def as_canonical(X):
    """Return X as a csr_array with sorted int32 indices and no stored zeros."""
    X = csr_array(X)
    X.sum_duplicates()
    X.eliminate_zeros()
    # The reader returns int64 indices; int32 takes half the memory and is what kernels expect.
    if max(X.nnz, X.shape[1]) <= np.iinfo(np.int32).max:
        X.indices = X.indices.astype(np.int32)
        X.indptr = X.indptr.astype(np.int32)
    return X


_ENTRY = re.compile(rb"(\d{1,10}):(\d{1,10}):([^:]+)")

# The field of columns that are in none of the files.
_NO_FIELD = -1

# Features may leave this many columns empty, or this many for each that occurs: a field for every
# column takes 8 bytes. Hashed features fit.
_ALWAYS_ALLOWED = 1 << 24
_ALLOWED_PER_FEATURE = 100


def load_libffm(
    path: str | os.PathLike[str] | list | tuple,
    *,
    n_features: int | None = None,
    fields: ArrayLike | None = None,
    zero_based: bool | str = "auto",
    by_field: bool = False,
    dtype: DTypeLike = np.float32,
) -> tuple[csr_array, np.ndarray, np.ndarray] | list:
    """Load data in the text format of libffm and xLearn, whose entries name a field.

    One row per line: the target, then ``field:feature:value`` for every non-zero entry, in any
    order [1]_. The number of a feature is its column, and each column has one field.

    Parameters
    ----------
    path : str, path-like, or list or tuple of these
        File or files to read; those that end in ".gz", ".bz2" or ".zst" are decompressed. Load the
        files of one data set in one call, to give them all the same columns.
    n_features : int, default=None
        Number of columns. None is that of `fields`, or else as many as the largest feature found
        in the files needs; if nearly all of more than 16 million would be empty, that is an error.
    fields : array-like of shape (n_features,), default=None
        The fields that an earlier call returned, for files with the same columns. Pass
        ``zero_based`` as well, as the later files may lack the first column by chance.
    zero_based : bool or "auto", default="auto"
        Whether features are numbered from 0 (True) or 1 (False). "auto" assumes 1 if feature 0 is
        in none of the files; pass True where they start at 0 and the first may be missing by
        chance. Numbers of fields are kept as they are.
    by_field : bool, default=False
        Whether a feature in two fields is two features, for files of hashed features. There is then
        a column for each feature and field, in the order in which they first occur in the files,
        whatever `zero_based` is; so all files must be loaded in one call, without `fields`. False
        takes each feature for a column; one in two fields is an error.
    dtype : numpy dtype, default=numpy.float32
        Type of the values of X.

    Returns
    -------
    X : csr_array of shape (n_samples, n_features), dtype `dtype`
        With int32 indices, sorted; zeros in the file are not stored.
    y : ndarray of shape (n_samples,), dtype float64
        The targets as they are in the file, often -1 and 1, or 0 and 1.
    fields : ndarray of shape (n_features,), dtype int64
        The field of each column; -1 for columns that are in none of the files, nor in the `fields`
        given.

        For a list or tuple of paths the result is the flat list ``[X1, y1, X2, y2, ..., fields]``,
        all with the same columns.

    Raises
    ------
    ValueError
        If there is no path, if a line cannot be read, holds NaN or infinity or a feature twice, if
        a feature is in two fields without `by_field`, if a file cannot be decompressed, if
        `n_features` or `fields` is too small for the largest feature found, if that is far beyond
        the number of features found, or if `fields` are given `by_field`. The message names the
        file and the line.
    TypeError
        If `path` is no path, such as an open file.

    See Also
    --------
    dump_libffm : Writes such files.
    load_libfm : The format without fields.
    freqfm.FFMClassifier, freqfm.FwFMClassifier, freqfm.DeepFMClassifier : Machines with fields.

    Notes
    -----
    libffm and xLearn take the field of a feature from each entry, and such a feature has the same
    vectors in all its fields. Files whose features were hashed have some by collision, and with
    `by_field` they do not collide.

    References
    ----------
    .. [1] Y. Juan, Y. Zhuang, W.-S. Chin, C.-J. Lin. "Field-aware Factorization Machines for CTR
       Prediction". RecSys 2016.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm import FFMClassifier
    >>> from freqfm.datasets import load_libffm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.ffm")
    ...     with open(path, "w") as file:
    ...         _ = file.write("0 0:0:1 1:2:1\\n1 0:1:1 1:3:0.5\\n")
    ...     X, y, fields = load_libffm(path)
    >>> X.toarray().tolist()
    [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.5]]
    >>> fields
    array([0, 0, 1, 1])
    >>> model = FFMClassifier(fields=fields, random_state=0).fit(X, y)
    """
    known: dict[int, int] = {}
    columns: dict | None = {} if validation.check_flag("by_field", by_field) else None
    files = [_EntryLines(one, known, columns) for one in check_paths("path", path)]
    if by_field:
        zero_based = True
    if fields is not None:
        if by_field:
            raise ValueError(
                "by_field=True numbers the columns anew, so that no fields of earlier files fit; "
                "load all files in one call, without fields."
            )
        fields = _checked_fields(fields, n_features)
        n_features = len(fields)
    options = {"n_features": n_features, "zero_based": zero_based, "dtype": np.dtype(dtype)}
    loaded = load_files(files, **options)
    if n_features is None:
        _check_largest(files, known)
    n_columns = loaded[0].shape[1]
    what, advice = f"The fields of {n_columns} columns", "Pass a smaller n_features."
    validation.check_memory(n_columns, what, advice)
    # As scikit-learn's reader does.
    found = all(file.largest[0] >= 0 for file in files)
    from_one = zero_based == "auto" and min(known, default=0) > 0 and found
    begin = int(from_one or zero_based is False)
    all_fields = _merged(fields, known, n_columns, begin)
    one = isinstance(path, str | os.PathLike)
    return (*loaded, all_fields) if one else [*loaded, all_fields]


def _check_largest(files, known):
    """Raise if nearly all columns would be empty."""
    file = max(files, key=lambda file: file.largest[0])
    feature, number = file.largest
    if feature >= max(_ALWAYS_ALLOWED, _ALLOWED_PER_FEATURE * len(known)):
        raise at_line(
            file.path,
            number,
            f"feature {feature} would make {feature + 1} columns, and the files have {len(known)} "
            f"feature(s). Pass n_features={feature + 1} if that is meant, by_field=True to number "
            f"those that occur, or a file with smaller numbers.",
        )


def _merged(fields, known, n_columns, begin):
    """Return the field of each column, by the ``fields`` given, if any, and those of the files.

    ``known`` has the field of each feature, which are numbered from ``begin``.
    """
    merged = np.full(n_columns, _NO_FIELD) if fields is None else fields.copy()
    columns = np.fromiter(known, np.int64, len(known)) - begin
    found = np.fromiter(known.values(), np.int64, len(known))
    before = merged[columns]
    other = np.flatnonzero((before != found) & (before != _NO_FIELD))
    if len(other):
        column, field = columns[other[0]], found[other[0]]
        raise ValueError(
            f"feature {column + begin}, column {column} of X, is in field {field} in the files, "
            f"but fields[{column}] is {before[other[0]]}; give the fields of files with the same "
            f"columns, and the same zero_based."
        )
    merged[columns] = found
    return merged


class _EntryLines(Lines):
    """The lines of a file without the fields, as scikit-learn's reader takes them.

    Parameters
    ----------
    path : str or path-like
    known : dict of int to int
        The field of each feature, by the numbers in the files; those of this file are added.
    columns : dict of tuple to int, or None
        Of each field and feature the number that replaces the feature's, see ``by_field``.
    """

    advice = (
        "give every line a target and entries field:feature:value, each feature once, numbered "
        "below 2**31 - 1."
    )

    def __init__(self, path, known, columns):
        super().__init__(path, self._without_fields())
        self._known, self._columns = known, columns
        #: The largest feature, and its line; -1 if there is no entry.
        self.largest = -1, None

    def _without_fields(self):
        known, columns = self._known, self._columns
        for number, line in numbered_lines(self.path):
            target, *entries = line.partition(b"#")[0].split()
            pairs = []
            for entry in entries:
                parts = _ENTRY.fullmatch(entry)
                if parts is None:
                    text = entry.decode("utf-8", "backslashreplace")
                    raise at_line(self.path, number, f"found {shown(text)}; {self.advice}")
                field, feature = int(parts[1]), int(parts[2])
                if columns is not None:
                    feature = columns.setdefault((field, feature), len(columns))
                if known.setdefault(feature, field) != field:
                    raise at_line(
                        self.path,
                        number,
                        f"feature {feature} is in field {field}, but in field {known[feature]} "
                        f"before; number the features of each field apart, or set by_field=True.",
                    )
                pairs.append((feature, parts[3]))
            # The reader takes columns in increasing order only.
            pairs.sort()
            if pairs and pairs[-1][0] > self.largest[0]:
                self.largest = pairs[-1][0], number
            yield number, b" ".join([target, *(b"%d:%s" % pair for pair in pairs)]) + b"\n"


def _checked_fields(fields, n_features):
    """Return fields as a vector of integers; raise if they are none, or not ``n_features``."""
    fields = validation.as_array("fields", fields)
    if fields.ndim != 1 or n_features not in (None, len(fields)):
        wanted = "the field of each column" if n_features is None else f"{n_features} fields"
        raise ValueError(f"fields has shape {fields.shape}; give {wanted}.")
    if fields.dtype.kind not in "iu":
        raise TypeError(
            f"fields holds {fields.dtype}, but the format has numbers of fields; give integers, "
            f"for instance np.unique(fields, return_inverse=True)[1]."
        )
    return fields.astype(np.int64)


def dump_libffm(
    X: Any,
    y: ArrayLike,
    path: str | os.PathLike[str],
    *,
    fields: ArrayLike | None = None,
    zero_based: bool = True,
) -> None:
    """Write data in the text format of libffm and xLearn, whose entries name a field.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        Rows, written as float32 with as many digits as :func:`load_libffm` needs to return the same
        numbers. Zeros are not written.
    y : array-like of shape (n_samples,)
        Targets, numbers. libffm and xLearn take those above 0 for clicks.
    path : str or path-like
        The file; one that ends in ".gz", ".bz2" or ".zst" is compressed. It is replaced if it
        exists.
    fields : array-like of shape (n_features,), default=None
        The field of each column, integers from 0 on. None takes the fields that the rows of
        :class:`freqfm.WithFields` carry.
    zero_based : bool, default=True
        Whether features are numbered from 0 (True) or 1 (False).

    Raises
    ------
    ValueError, TypeError
        If X or y holds what is not a finite number, or if there is not one field, an integer from 0
        on, for each column.

    See Also
    --------
    load_libffm : Reads such files.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm.datasets import dump_libffm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.ffm")
    ...     dump_libffm([[1, 0, 0.5], [0, 1, 0]], [1, 0], path, fields=[0, 0, 1])
    ...     with open(path) as file:
    ...         print(file.read(), end="")
    1 0:0:1 1:2:0.5
    0 0:1:1
    """
    path = check_path("path", path)
    fields = getattr(X, "fields", None) if fields is None else fields
    if fields is None:
        raise ValueError("fields=None, and X carries none; give the field of each column.")
    rows = validation.as_float_csr(X)
    validation.check_finite("X", rows)
    rows = validation.canonical_csr(rows)
    target = column_or_1d(validation.as_array("y", y), warn=True)
    fields = _checked_fields(fields, rows.shape[1])
    if len(target) != rows.shape[0]:
        raise ValueError(f"X has {rows.shape[0]} rows, but y {len(target)}.")
    validation.check_finite("y", target)
    written = fields[rows.indices]
    if written.size and written.min() < 0:
        column = rows.indices[written.argmin()]
        raise ValueError(
            f"fields[{column}] is {written.min()}, and X has entries in that column; fields are "
            f"numbered from 0."
        )
    begin = 0 if validation.check_flag("zero_based", zero_based) else 1
    with opener_of(path)(path, "wb") as file:
        for number, (start, end) in zip(target.tolist(), pairwise(rows.indptr), strict=True):
            columns = rows.indices[start:end]
            entries = zip(
                fields[columns].tolist(),
                (columns + begin).tolist(),
                rows.data[start:end].tolist(),
                strict=True,
            )
            text = " ".join([f"{number:.17g}", *(f"{f}:{j}:{v:.9g}" for f, j, v in entries)])
            file.write(f"{text}\n".encode())


# The largest id for which the matrix has a shape within int32.
MAX_ID = np.iinfo(np.int32).max - 1

# An interaction, and the line that it is in. A user without items has one with the item -1.
_ROW = np.dtype([("line", "i4"), ("user", "i4"), ("item", "i4")])

# Number of lines that are looked at first, and of those that are read at once.
_N_LINES_READ, _AT_ONCE = 1000, 1 << 14

_LIST_ADVICE = (
    "give every line a user and the items of this user, as integers >= 0 with spaces between them. "
    "Read ratings and other tables with pandas, and fit an InteractionRecommender on these."
)


def _refuse_ratings(path):
    """Raise if lines may be a user, an item and a rating, and maybe a time."""
    lines = ((number, line.split()) for number, line in islice(read_lines(path), _N_LINES_READ))
    lines = [(number, fields) for number, fields in lines if fields]
    seen = set()
    if {len(fields) for _, fields in lines} in ({3}, {4}):
        for number, (user, *_) in lines:
            if user in seen:
                raise at_line(
                    path,
                    number,
                    f"user {cut(user.decode('utf-8', 'backslashreplace'))} again, in a file whose "
                    f"lines all have {len(lines[0][1])} fields, as ratings have; pass "
                    f"format='lists' if they are a user and items. Otherwise {_LIST_ADVICE}",
                )
            seen.add(user)


def read_rows(path):
    """Return the interactions in a file of lists, an array of fields "line", "user" and "item".

    Raises
    ------
    ValueError
        If a line is malformed; the message has its number.
    """
    lines, parts = read_lines(path), [np.zeros(0, _ROW)]
    while some := list(islice(lines, _AT_ONCE)):
        parts.append(_rows_of(path, some))
    return np.concatenate(parts)


def _rows_of(path, lines):
    """Return the rows of lines of a user and items."""
    text = b"".join(line for _, line in lines)
    fields = text.split()
    if text.translate(None, b"0123456789 \t\r\n") or max(map(len, fields), default=0) > 9:
        for number, line in lines:
            _check_line(path, number, line)
        fields = [field.lstrip(b"0") or b"0" for field in fields]
    ids = np.array(fields, dtype="S10").astype(np.int32)
    counts = np.array([len(line.split()) for _, line in lines])
    begins = (np.cumsum(counts) - counts)[counts > 0]
    # For each id a row, without those of users, except if they have no items.
    rows = np.empty(len(ids), _ROW)
    rows["line"] = np.repeat([number for number, _ in lines], counts)
    rows["user"], rows["item"] = np.repeat(ids[begins], counts[counts > 0]), ids
    rows["item"][begins] = -1
    dropped = begins[counts[counts > 0] > 1]
    return np.delete(rows, dropped)


def _check_line(path, number, line):
    """Raise unless a line holds ids, which only the white space of ASCII separates."""
    text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
    if re.fullmatch(r"[\d \t\r\n]*", text, re.ASCII) is None:
        wrong = (one for one in text.split() if not (one.isascii() and one.isdigit()))
        raise at_line(path, number, f"found {shown(next(wrong, text)[:40])}; {_LIST_ADVICE}")
    for place, field in enumerate(text.split()):
        # Python refuses to parse thousands of digits.
        role, digits = "item" if place else "user", field.lstrip("0") or "0"
        if len(digits) > 10 or int(digits) > MAX_ID:
            raise at_line(
                path,
                number,
                f"{role} {digits[:40]} is more than {MAX_ID}, the largest id that int32 indices "
                f"can hold; number the {role}s from 0 on, or fit an InteractionRecommender on a "
                f"table, which takes ids of any kind.",
            )


# Ids may leave this many rows or columns empty, or this many per interaction. Beyond that, they are
# probably not ids, but times for example.
_ROWS_ALLOWED = 1_000_000
_ALLOWED_PER_INTERACTION = 100


def load_interactions(
    path: str | os.PathLike[str], *, format: str = "auto", shape: tuple[int, int] | None = None
) -> csr_array:
    """Load interactions of users and items from a file of lists.

    A line is a user and the items of this user, all integers from 0 on with spaces between them, as
    in the text files of NGCF [1]_ and LightGCN [2]_. The user may have no items, and lines may be
    blank. Repeated items and repeated lines of a user are merged.

    Parameters
    ----------
    path : str or path-like
        File to read; one that ends in ".gz", ".bz2" or ".zst" is decompressed.
    format : {"auto", "lists"}, default="auto"
        With "auto" it is an error if lines may be a user, an item and a rating.
    shape : tuple of int (n_users, n_items), default=None
        Shape of the result. None takes the largest ids found plus one. Pass the shape to give
        several files of one data set the same users and items.
    Returns
    -------
    X : csr_array of shape (n_users, n_items), dtype float32
        Ones, with int32 indices, sorted.

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
    and fit an :class:`~freqfm.InteractionRecommender`. So are those of the Netflix Prize, after
    ``table["item"] = table["user"].where(table["rating"].isna()).ffill()`` and ``dropna()``.
    Matrices are read by :func:`scipy.sparse.load_npz` and :func:`scipy.io.mmread`.

    Ids are used directly as row and column numbers. Number them from 0 on without large gaps: every
    number up to the largest user takes a few bytes, even if no user has it.

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
    if format not in ("auto", "lists"):
        raise ValueError(f"format is {shown(format)}; pass 'auto' or 'lists'.")
    shape, path = _check_shape(shape), check_path("path", path)
    if format == "auto":
        _refuse_ratings(path)
    rows = read_rows(path)
    _check_ids(path, rows, shape)
    if shape is None:
        if not len(rows):
            raise ValueError(f"{path} has no user; pass a file with at least one, or a shape.")
        shape = _shape_of(rows)
    rows = rows[rows["item"] >= 0]
    return rating_matrix(rows["user"], rows["item"], np.ones(len(rows)), shape, 1)


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


def _check_ids(path, rows, shape):
    """Raise if ids are outside the shape, or implausibly large for the number of interactions."""
    if not len(rows):
        return
    found = _shape_of(rows)
    most = max(_ROWS_ALLOWED, _ALLOWED_PER_INTERACTION * len(rows))
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
    return validation.check_count("shape[0]", n_users), validation.check_count("shape[1]", n_items)
