"""Loader of files of implicit feedback: sparse matrices and lists of items."""

import gzip
import os
import zlib
from array import array
from numbers import Integral

import numpy as np
from scipy.sparse import csr_array, load_npz

from .libfm import _canonical

FORMATS = ("auto", "npz", "lists")

# The largest id whose matrix has a shape that int32 can hold.
MAX_ID = np.iinfo(np.int32).max - 1


def load_interactions(path, *, format="auto", shape=None):
    """Load interactions of users and items from one file.

    Parameters
    ----------
    path : str or path-like
        File to read.
    format : {"auto", "npz", "lists"}, default="auto"
        Format of the file:

        - "npz": a sparse matrix written by :func:`scipy.sparse.save_npz`, of any sparse
          format, with its values;
        - "lists": the text files of NGCF [1]_ and LightGCN [2]_. A line is a user and the
          items of this user, all integers from 0 on with spaces between them; the user may
          have no items, and lines may be blank. Items that are repeated and lines of the same
          user are merged. A path that ends in ".gz" is decompressed;
        - "auto": "npz" if the path ends in ".npz", otherwise "lists".
    shape : tuple of int (n_users, n_items), default=None
        Shape of the result. None takes the shape of the matrix in the file or, with "lists",
        the largest ids found plus one. Pass the shape to give the files of one data set the
        same users and items.

    Returns
    -------
    X : csr_array of shape (n_users, n_items), dtype float32
        With int32 indices, sorted, and no stored zeros. With "lists" all values are 1.

    Raises
    ------
    ValueError
        If an argument is outside its range, if the file is not of its format, or if it does
        not fit into `shape`. The message names the file and, with "lists", the line.
    OSError
        If the file cannot be read.

    Notes
    -----
    Ids are used as they are as row and column numbers. Number them from 0 on without large
    gaps: every number up to the largest user takes a few bytes, even if nobody has it.

    References
    ----------
    .. [1] Xiang Wang et al., "Neural Graph Collaborative Filtering", SIGIR 2019.
    .. [2] Xiangnan He et al., "LightGCN: Simplifying and Powering Graph Convolution Network
       for Recommendation", SIGIR 2020.

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
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; pass one of {FORMATS}.")
    shape = _check_shape(shape)
    path = os.fspath(path)
    if format == "npz" or (format == "auto" and path.endswith(".npz")):
        return _load_npz(path, shape)
    return _load_lists(path, shape)


def _load_npz(path, shape):
    """The matrix of a file of scipy.sparse.save_npz."""
    with open(path, "rb") as file:
        try:
            # This reader never unpickles.
            X = load_npz(file)
            if X.ndim != 2:
                raise ValueError(f"it holds an array of {X.ndim} dimensions")
            if X.dtype.kind not in "biuf":
                raise ValueError(f"its values are {X.dtype}, not real numbers")
            if max(X.shape) > MAX_ID + 1:
                raise ValueError(f"its shape {X.shape} is more than int32 can hold")
            _check_indices(X)
            X = _canonical(X.astype(np.float32))
        # What a damaged file raises depends on where the damage is, and is hardly documented.
        except Exception as error:
            raise ValueError(
                f"{path} is not a sparse matrix that can be used ({error}); pass a file of "
                "scipy.sparse.save_npz with real values in two dimensions."
            ) from error
    if shape is not None:
        if X.shape[0] > shape[0] or X.shape[1] > shape[1]:
            raise ValueError(
                f"{path} holds a matrix of shape {X.shape}, which does not fit into shape "
                f"{shape}; pass a larger shape or None."
            )
        X.resize(shape)
    return X


def _check_indices(X):
    """Raise a ValueError if indices of X are out of bounds.

    Compiled code of SciPy follows indices unchecked, and load_npz checks them only in part.
    """
    if X.format in ("csr", "csc", "bsr"):
        # check_format looks no further if the last index pointer is not positive.
        if np.any(np.diff(X.indptr) < 0):
            raise ValueError("its index pointers decrease")
        X.check_format(full_check=True)
    if X.format == "bsr" and (X.shape[0] % X.blocksize[0] or X.shape[1] % X.blocksize[1]):
        raise ValueError(f"its shape {X.shape} is not a multiple of its blocks {X.blocksize}")
    if X.format == "dia" and np.any((X.offsets <= -X.shape[0]) | (X.offsets >= X.shape[1])):
        raise ValueError(f"it has diagonals outside its shape {X.shape}")


def _load_lists(path, shape):
    """The matrix of a file of lists of items."""
    users, counts, items = _read_lists(path, shape)
    if not len(users) and shape is None:
        raise ValueError(f"{path} has no user; pass a file with at least one user, or a shape.")
    return _lists_to_csr(users, counts, items, shape or _lists_shape(users, items))


def _read_lists(path, shape=None):
    """The user of each line, how many items the line has, and the items of all lines."""
    users, counts, items = array("i"), array("q"), array("i")
    most_user, most_item = (MAX_ID, MAX_ID) if shape is None else (shape[0] - 1, shape[1] - 1)
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                ids = _parse_line(path, number, line)
                if not ids:
                    continue
                user, *rest = ids
                largest = max(rest, default=0)
                for kind, value, most in (("user", user, most_user), ("item", largest, most_item)):
                    if value > most:
                        raise _outside(path, number, kind, value, shape)
                users.append(user)
                counts.append(len(rest))
                items.extend(rest)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} cannot be decompressed ({error}); pass a complete gzip file, or a name "
                "that does not end in .gz."
            ) from error
    return tuple(np.asarray(part) for part in (users, counts, items))


def _parse_line(path, number, line):
    """The integers of one line."""
    # int() takes more than digits, such as "1_0": what is left without digits must be blank.
    if line.translate(None, b"0123456789 \t\r\n"):
        wrong = next((token for token in line.split() if not token.isdigit()), line)
        found = wrong[:40].decode("ascii", errors="backslashreplace")
    else:
        try:
            return [int(token) for token in line.split()]
        except ValueError:  # thousands of digits
            found = "a very long number"
    raise ValueError(
        f"{path}, line {number}: found {found!r}; give every line a user and the items of this "
        "user, as integers >= 0 with spaces between them."
    )


def _outside(path, number, kind, value, shape):
    """The error for an id that is too large."""
    if shape is None:
        return ValueError(
            f"{path}, line {number}: {kind} {value} is more than {MAX_ID}, the largest id that "
            f"int32 indices can hold; number the {kind}s from 0 on."
        )
    return ValueError(
        f"{path}, line {number}: {kind} {value} is outside shape {shape}; pass a larger shape or "
        "None."
    )


def _lists_shape(users, items):
    """The least shape with room for these ids."""
    return int(users.max(initial=-1)) + 1, int(items.max(initial=-1)) + 1


def _lists_to_csr(users, counts, items, shape):
    """Canonical csr_array with a 1 for every pair, however often it is there."""
    data = np.ones(len(items), dtype=np.float32)
    X = _canonical(csr_array((data, (np.repeat(users, counts), items)), shape=shape))
    X.data[:] = 1
    return X


def _check_shape(shape):
    """shape as a tuple of two int, or None."""
    if shape is None:
        return None
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ()
    if len(sizes) != 2 or not all(
        isinstance(size, Integral) and not isinstance(size, bool) and 1 <= size <= MAX_ID + 1
        for size in sizes
    ):
        raise ValueError(
            f"shape is {shape!r}; pass a tuple (n_users, n_items) of two integers >= 1 that int32 "
            "can hold, or None."
        )
    return int(sizes[0]), int(sizes[1])
