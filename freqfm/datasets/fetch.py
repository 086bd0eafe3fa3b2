"""Download of public data sets: the ratings of MovieLens and the check-ins of Gowalla."""

import csv
import hashlib
import io
import os
import zlib
from http.client import HTTPException
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from sklearn.datasets import fetch_file, get_data_home
from sklearn.utils import Bunch

from freqfm._input.validation import check_integer, check_number
from freqfm._messages import shown
from freqfm._paths import check_path
from freqfm.datasets.text_files import load_interactions, rating_matrix

MOVIELENS_URL = "https://files.grouplens.org/datasets/movielens/"

# A fixed commit: the content at this address does not change.
GOWALLA_URL = (
    "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/"
    "947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data/gowalla/"
)
GOWALLA_SHA256 = {
    "train.txt": "7244696fdeb23911319cf7b689f2e15a3c4c92549c873a5677b44e3f13cc3e62",
    "test.txt": "099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3",
}


class _Layout(NamedTuple):
    """The names of the files in a MovieLens archive, and their format."""

    ratings: str
    titles: str
    separators: tuple  # of the ratings and of the titles
    encoding: str
    n_header: int


COMMAS = _Layout("ratings.csv", "movies.csv", (",", ","), "utf-8", 1)

# For each variant: the folder in the archive, which is also the archive's name, the checksum and
# the layout.
MOVIELENS = {
    "100k": (
        "ml-100k",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        _Layout("u.data", "u.item", ("\t", "|"), "latin-1", 0),
    ),
    "1m": (
        "ml-1m",
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        _Layout("ratings.dat", "movies.dat", ("::", "::"), "latin-1", 0),
    ),
    "20m": ("ml-20m", "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3", COMMAS),
    "25m": ("ml-25m", "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa", COMMAS),
}

# In the order of the flags in u.item.
MOVIELENS_100K_GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)

RATING_DTYPE = np.dtype([("user", "i8"), ("item", "i8"), ("rating", "f4"), ("timestamp", "i8")])


def fetch_movielens(
    variant: str = "1m",
    *,
    min_rating: float | None = None,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    n_retries: int = 3,
    delay: float = 1.0,
) -> Bunch:
    """Load the MovieLens ratings [1]_, downloading them if necessary.

    =======  =======  ======  ==========  ========
    variant    users   items     ratings  download
    =======  =======  ======  ==========  ========
    100k         943    1682     100,000      5 MB
    1m          6040    3706   1,000,209      6 MB
    20m      138,493  26,744  20,000,263    199 MB
    25m      162,541  59,047  25,000,095    262 MB
    =======  =======  ======  ==========  ========

    Parameters
    ----------
    variant : {"100k", "1m", "20m", "25m"}, default="1m"
        Which data set to load.
    min_rating : float, default=None
        With a number, X holds a 1 for every rating of at least `min_rating` and nothing for
        other ratings: implicit feedback. None keeps the ratings as they are.
    data_home : str or path-like, default=None
        Folder of the downloads; they are stored in its subfolder "movielens". None means
        :func:`sklearn.datasets.get_data_home`.
    download_if_missing : bool, default=True
        If False, an `OSError` is raised instead of a download.
    n_retries : int, default=3
        How many times a failed download is retried.
    delay : float, default=1.0
        Seconds between retries.

    Returns
    -------
    bunch : Bunch
        - X : csr_array of shape (n_users, n_items), dtype float32, with sorted int32 indices.
          It has the same shape for every `min_rating`; a user may then have no items.
        - user_indices : ndarray of shape (n_ratings,), dtype int32, the row in X of each
          rating, in the order of the file
        - item_indices : ndarray of shape (n_ratings,), dtype int32, the column in X of each
          rating
        - ratings : ndarray of shape (n_ratings,), dtype float32, the stars, regardless of
          `min_rating`
        - timestamps : ndarray of shape (n_ratings,), dtype int64, seconds since 1970 (UTC)
        - user_ids : ndarray of shape (n_users,), dtype int64, the id of each row of X in the
          file, ascending
        - item_ids : ndarray of shape (n_items,), dtype int64, the same for the columns of X;
          movies without ratings have no column
        - titles : ndarray of shape (n_items,), dtype object, the title of each column of X
        - genres : ndarray of shape (n_items,), dtype object, a tuple of genres, such as
          ("Action", "Comedy"), for each column of X
        - DESCR : str, the source of the data and its terms of use

    Raises
    ------
    ValueError
        If an argument is outside its range.
    OSError
        If the archive cannot be downloaded, if it is missing and `download_if_missing` is
        False, or if its SHA-256 checksum is wrong.

    Notes
    -----
    The archive is kept as downloaded and read on every call, which takes about a second per
    million ratings. Nothing is unpacked to disk.

    References
    ----------
    .. [1] F. Maxwell Harper and Joseph A. Konstan, "The MovieLens Datasets: History and
       Context", ACM Transactions on Interactive Intelligent Systems 5(4), 2015.

    Examples
    --------
    >>> from freqfm.datasets import fetch_movielens
    >>> bunch = fetch_movielens("1m", min_rating=4)  # doctest: +SKIP
    >>> bunch.X.shape, bunch.X.nnz  # doctest: +SKIP
    ((6040, 3706), 575281)
    """
    if variant not in MOVIELENS:
        raise ValueError(f"variant is {shown(variant)}; pass one of {tuple(MOVIELENS)}.")
    if min_rating is not None:
        check_number("min_rating", min_rating, -np.inf, np.inf)
    folder, sha256, layout = MOVIELENS[variant]
    data_home = _data_home(data_home) / "movielens"
    files = {f"{folder}.zip": sha256}
    (path,) = _fetch(MOVIELENS_URL, files, data_home, download_if_missing, n_retries, delay)
    # The members are read by the names known here, never by those in the archive.
    try:
        with ZipFile(path) as archive:
            with _open_text(archive, f"{folder}/{layout.ratings}", layout.encoding) as file:
                rows = _read_ratings(file, layout)
            with _open_text(archive, f"{folder}/{layout.titles}", layout.encoding) as file:
                movies = _read_movies(file, layout)
        user_ids, users = np.unique(rows["user"], return_inverse=True)
        item_ids, items = np.unique(rows["item"], return_inverse=True)
        titles = np.array([movies[item][0] for item in item_ids.tolist()], dtype=object)
        genres = np.empty(len(item_ids), dtype=object)
        genres[:] = [movies[item][1] for item in item_ids.tolist()]
    except (BadZipFile, EOFError, KeyError, OverflowError, ValueError, zlib.error) as error:
        raise OSError(
            f"{path} is not the archive of MovieLens {variant} ({error}); delete it and call again."
        ) from error
    users, items = users.astype(np.int32), items.astype(np.int32)
    ratings = np.ascontiguousarray(rows["rating"])
    return Bunch(
        X=rating_matrix(users, items, ratings, (len(user_ids), len(item_ids)), min_rating),
        user_indices=users,
        item_indices=items,
        ratings=ratings,
        timestamps=np.ascontiguousarray(rows["timestamp"]),
        user_ids=user_ids,
        item_ids=item_ids,
        titles=titles,
        genres=genres,
        DESCR=_description("movielens").format(variant=variant),
    )


def fetch_gowalla(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    n_retries: int = 3,
    delay: float = 1.0,
) -> Bunch:
    """Load the Gowalla check-ins [1]_, as split for NGCF [2]_ and LightGCN [3]_.

    The data is downloaded if necessary (6 MB). It has 29,858 users, 40,981 items, 810,128
    interactions for training and 217,242 for testing.

    Parameters
    ----------
    data_home : str or path-like, default=None
        Folder of the downloads; they are stored in its subfolder "gowalla". None means
        :func:`sklearn.datasets.get_data_home`.
    download_if_missing : bool, default=True
        If False, an `OSError` is raised instead of a download.
    n_retries : int, default=3
        How many times a failed download is retried.
    delay : float, default=1.0
        Seconds between retries.

    Returns
    -------
    bunch : Bunch
        - train : csr_array of shape (29858, 40981), dtype float32, with sorted int32 indices
          and a 1 for every interaction
        - test : csr_array, the same for the interactions to be predicted; the two have no
          interaction in common
        - DESCR : str, the source of the data

    Raises
    ------
    ValueError
        If an argument is outside its range.
    OSError
        If a file cannot be downloaded, if it is missing and `download_if_missing` is False, or
        if its SHA-256 checksum is wrong.

    See Also
    --------
    load_interactions : Reads other data in the same format.

    References
    ----------
    .. [1] Eunjoon Cho et al., "Friendship and Mobility: User Movement in Location-Based Social
       Networks", KDD 2011.
    .. [2] Xiang Wang et al., "Neural Graph Collaborative Filtering", SIGIR 2019.
    .. [3] Xiangnan He et al., "LightGCN: Simplifying and Powering Graph Convolution Network
       for Recommendation", SIGIR 2020.

    Examples
    --------
    >>> from freqfm.datasets import fetch_gowalla
    >>> bunch = fetch_gowalla()  # doctest: +SKIP
    >>> bunch.train.shape, bunch.train.nnz, bunch.test.nnz  # doctest: +SKIP
    ((29858, 40981), 810128, 217242)
    """
    folder = _data_home(data_home) / "gowalla"
    paths = _fetch(GOWALLA_URL, GOWALLA_SHA256, folder, download_if_missing, n_retries, delay)
    parts = {path.stem: load_interactions(path, format="lists") for path in paths}
    # The two parts need the same shape, but the last user or item may be in only one of them.
    shape = np.max([part.shape for part in parts.values()], axis=0).tolist()
    for part in parts.values():
        part.resize(shape)
    return Bunch(**parts, DESCR=_description("gowalla"))


def _description(name):
    """Return the text about a data set."""
    return Path(__file__).with_name(f"{name}.txt").read_text("utf-8")


def _data_home(path):
    """Return the folder of downloads; None is scikit-learn's."""
    return Path(get_data_home(None if path is None else check_path("data_home", path)))


def _fetch(base_url, checksums, folder, download_if_missing, n_retries, delay):
    """Return the paths of the files, each with its SHA-256 checksum verified."""
    check_integer("n_retries", n_retries, 0)
    check_number("delay", delay, 0, np.inf)
    paths = []
    for filename, sha256 in checksums.items():
        path, url = folder / filename, base_url + filename
        if download_if_missing:
            folder.mkdir(parents=True, exist_ok=True)
            # Downloads to a temporary name, and renames the file once its checksum is right.
            try:
                fetch_file(
                    url, folder, filename, sha256=sha256, n_retries=int(n_retries), delay=delay
                )
            except (OSError, HTTPException) as error:
                raise OSError(
                    f"{url} could not be downloaded to {path} ({error}); check the connection "
                    "and call again, or put the file there yourself."
                ) from error
        elif not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            found = "not that file by its SHA-256 checksum" if path.is_file() else "missing"
            raise OSError(
                f"{path} is {found} and download_if_missing is False; pass True, or put the file "
                f"of {url} there."
            )
        paths.append(path)
    return paths


def _open_text(archive, name, encoding):
    return io.TextIOWrapper(archive.open(name), encoding=encoding)


def _read_ratings(file, layout):
    """Return the rows of a file of ratings as a structured array."""
    separator, _ = layout.separators
    # loadtxt accepts only a single character as delimiter.
    lines = (line.replace(separator, "\t") for line in islice(file, layout.n_header, None))
    return np.loadtxt(lines, dtype=RATING_DTYPE, delimiter="\t", comments=None, ndmin=1)


def _read_movies(file, layout):
    """Return a dict of a title and a tuple of genres by movie id."""
    _, separator = layout.separators
    lines = islice(file, layout.n_header, None)
    # Only the comma-separated files quote titles.
    if separator == ",":
        fields = csv.reader(lines)
    else:
        fields = (line.rstrip("\r\n").split(separator) for line in lines)
    return {int(movie): (title, _genres(rest, separator)) for movie, title, *rest in fields}


def _genres(fields, separator):
    """Return the genres of a movie, by the fields after its title."""
    if separator == "|":  # two dates and an address, then a flag for each genre
        return tuple(compress(MOVIELENS_100K_GENRES, map(int, fields[3:])))
    names = fields[0].split("|") if fields else ()
    return tuple(name for name in names if name != "(no genres listed)")
