"""Loader of libFM text files."""

from __future__ import annotations

import os
from array import array
from itertools import islice

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_array
from sklearn.datasets import load_svmlight_files

from freqfm._messages import cut
from freqfm._paths import check_paths
from freqfm.datasets._lines import at_line, read_lines

_ADVICE = "give every line a target and pairs column:value, columns ascending and below 2**31 - 1."


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
    advice = _ADVICE

    def __init__(self, path, lines):
        self.path, self._lines = path, lines
        self.numbers = array("q")
        self.done = self.failed = False

    def __iter__(self):
        try:
            for number, line in self._lines:
                self.numbers.append(number)
                yield line
        except ValueError:
            self.failed = True
            raise
        self.done = True

    def read(self):
        """Mark this as a file for scikit-learn, which never calls the method."""
        raise NotImplementedError


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
