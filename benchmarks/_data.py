"""Real data for the benchmarks, read from ``--data`` or the environment variable FREQFM_DATA."""

import argparse
import atexit
import csv
import gzip
import math
import os
import shutil
import tempfile
from pathlib import Path

import _drawn
import numpy as np
from scipy import sparse
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Bunch

from freqfm.datasets import load_libfm
from freqfm.model_selection import holdout_interactions

QUICK = "small random data, few epochs: a test"


def data_parser(description):
    """Return an argument parser that knows where the data is and where results go."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("FREQFM_DATA"),
        help="folder with ml1m-ratings/, gowalla/, ... (default: $FREQFM_DATA)",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    return parser


def table_parser(description):
    """Return such a parser for a table of models, with and without searched parameters."""
    parser = data_parser(description)
    parser.add_argument("--models", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--tuned", action="store_true", help="also models with searched parameters")
    parser.add_argument("--search-only", action="store_true", help="fit no model for the table")
    parser.add_argument("--again", action="store_true", help="replace runs that are there")
    parser.add_argument("--seeds", type=int, default=1)
    return parser


def require_data(args):
    """Return the data folder, or exit with a message that says what to give.

    For ``--quick`` it is a folder of small random data, which is removed at the end.
    """
    if getattr(args, "quick", False):
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder)
        _drawn.write(folder)
        return folder
    if args.data is None:
        raise SystemExit("Give the data folder with --data DIR, or set FREQFM_DATA.")
    return Path(args.data)


def movielens_ratings(data):
    """Return users, movies (both numbered from 0 without gaps) and ratings of MovieLens-1M.

    Reads ``ml1m-ratings/ratings.dat.gz``, lines of ``user::movie::rating::timestamp``.
    """
    with gzip.open(data / "ml1m-ratings" / "ratings.dat.gz", "rt") as lines:
        table = np.array([line.split("::")[:3] for line in lines], dtype=np.int64)
    users = np.unique(table[:, 0], return_inverse=True)[1]
    movies = np.unique(table[:, 1], return_inverse=True)[1]
    return users, movies, table[:, 2]


def movielens_100k(data):
    """Return users, movies (both numbered from 0), ratings and times of MovieLens-100K.

    Reads ``ml100k/u.data``, lines of user, movie, rating and time, between tabs.
    """
    table = np.loadtxt(data / "ml100k" / "u.data", dtype=np.int64)
    return table[:, 0] - 1, table[:, 1] - 1, table[:, 2], table[:, 3]


def one_hot_pairs(users, movies):
    """Return a CSR matrix with two ones a row: the user's column and the movie's."""
    n, n_users = len(users), users.max() + 1
    indices = np.column_stack([users, movies + n_users]).ravel().astype(np.int32)
    shape = (n, n_users + movies.max() + 1)
    return sparse.csr_array(
        (np.ones(2 * n, np.float32), indices, np.arange(0, 2 * n + 1, 2)), shape=shape
    )


def movielens_split(data, seed, label=lambda ratings: (ratings > 3).astype(np.int64)):
    """Return [(X, y)] of the random 80 % training, 10 % validation and 10 % test ratings."""
    users, movies, ratings = movielens_ratings(data)
    X, y = one_hot_pairs(users, movies), label(ratings)
    train, rest = train_test_split(np.arange(len(y)), test_size=0.2, random_state=seed)
    valid, test = train_test_split(rest, test_size=0.5, random_state=seed)
    return [(X[rows], y[rows]) for rows in (train, valid, test)]


def click_parts(data, name):
    """Return the train, valid and test parts of ``name``, "gowalla", "ml1m-implicit" or "ml100k".

    Reads ``NAME/train.npz`` and so on: users x items, one for a click, float32 CSR of one shape. Of
    MovieLens-100K all ratings count, and 20 % of every user's and 10 % of the others are held out.
    """
    if name == "ml100k":
        pairs = np.array(movielens_100k(data)[:2], np.int32)  # LightFM takes no int64
        X = sparse.csr_array((np.ones(pairs.shape[1], np.float32), tuple(pairs)))
        rest, test = holdout_interactions(X, 0.2, random_state=0)
        return [*holdout_interactions(rest, 0.1, random_state=1), test]
    parts = (sparse.load_npz(data / name / f"{part}.npz") for part in ("train", "valid", "test"))
    return [sparse.csr_array(part).astype(np.float32) for part in parts]


def wikitext(data, parts=("valid", "test"), lower=True):
    """Return the lines of parts of WikiText-2 as lists of tokens, without empty lines.

    Reads ``wikitext2/PART.txt.gz``, tokens between spaces.
    """
    lines = []
    for part in parts:
        with gzip.open(data / "wikitext2" / f"{part}.txt.gz", "rt", encoding="utf-8") as text:
            lines += [(line.lower() if lower else line).split() for line in text]
    return [line for line in lines if line]


def similarity_pairs(data):
    """Return (word, word, score) in lower case of WordSim-353 and SimLex-999, by name.

    Reads ``word-similarity/``: two lines of comments, then words and scores between tabs.
    """
    pairs = {}
    for name, file in (("WordSim-353", "wordsim353.tsv"), ("SimLex-999", "simlex999.txt")):
        lines = (data / "word-similarity" / file).read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t")[:3] for line in lines if not line.startswith("#")]
        pairs[name] = [(one.lower(), two.lower(), float(score)) for one, two, score in rows]
    return pairs


def frappe_fields(X):
    """Return the field of each of Frappe's columns: its place in the rows, all of ten entries."""
    fields = np.zeros(X.shape[1], dtype=np.int64)
    fields[X.indices] = np.tile(np.arange(10), X.shape[0])
    return fields


def frappe_split(data):
    """Return [(X, y)] of Frappe's training, validation and test rows."""
    files = [data / "frappe" / f"frappe.{part}.libfm.gz" for part in ("validation", "test")]
    X, y, X_test, y_test = load_libfm(files)
    train, valid = train_test_split(np.arange(len(y)), test_size=0.1, random_state=0)
    return [(X[train], y[train]), (X[valid], y[valid]), (X_test, y_test)]


def criteo_rows(data, parts, encoder=None):
    """Return parts of the sample of Criteo's click logs: one-hot rows, targets and the encoder.

    As in the paper of CF-SGD, appendix A.1, a count x > 2 becomes the category floor(log(x)^2), and
    categories that occur fewer than ten times share a column. ``encoder`` is that of other parts.
    """
    lines = []
    for part in parts:
        with gzip.open(data / "criteo-sample" / f"{part}.tsv.gz", "rt", newline="") as file:
            lines += csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    tokens = np.array([[*map(count_token, line[1:14]), *line[14:]] for line in lines], dtype=object)
    if encoder is None:
        encoder = OneHotEncoder(
            handle_unknown="infrequent_if_exist", min_frequency=10, dtype=np.float32
        ).fit(tokens)
    rows = sparse.csr_array(encoder.transform(tokens))
    rows.sort_indices()
    target = np.array([int(line[0]) for line in lines])
    return Bunch(data=rows, target=target, encoder=encoder)


def count_token(text):
    """Return the category of a count, or of a missing one, which is empty."""
    large = text and int(text) > 2
    return f"log{math.floor(math.log(int(text)) ** 2)}" if large else text
