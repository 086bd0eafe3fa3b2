"""Small random data in the formats of the real data sets, for a test of the benchmarks."""

import gzip

import numpy as np
from scipy import sparse

from freqfm.datasets import make_interactions
from freqfm.model_selection import holdout_interactions

__all__ = ["write"]


def write(folder):
    """Write all data sets that ``_data.py`` reads, with a few thousand rows or tokens each."""
    random = np.random.default_rng(0)
    write_clicks(folder, ("gowalla", "ml1m-implicit"))
    write_ratings(folder, random)
    write_frappe(folder, random)
    write_criteo(folder, random)
    write_words(folder, random)


def write_clicks(folder, names):
    """Write matrices of clicks in three parts."""
    rest, test = holdout_interactions(
        make_interactions(200, 150, 6000, random_state=0), 0.2, random_state=0
    )
    parts = (*holdout_interactions(rest, 0.1, random_state=1), test)
    for name in names:
        (folder / name).mkdir(parents=True)
        for part, X in zip(("train", "valid", "test"), parts, strict=True):
            sparse.save_npz(folder / name / f"{part}.npz", sparse.csr_matrix(X))


def write_ratings(folder, random):
    """Write both files of ratings, and the genres of movies."""
    users, movies = make_interactions(150, 100, 4000, random_state=1).nonzero()
    columns = (users + 1, movies + 1, random.integers(1, 6, len(users)), 880_000_000 + users)
    rows = np.column_stack(columns)
    (folder / "ml1m-ratings").mkdir()
    with gzip.open(folder / "ml1m-ratings" / "ratings.dat.gz", "wt") as file:
        file.writelines("::".join(map(str, row)) + "\n" for row in rows)
    (folder / "ml100k").mkdir()
    np.savetxt(folder / "ml100k" / "u.data", rows, fmt="%d", delimiter="\t")
    genres = random.integers(0, 2, (movies.max() + 1, 19))
    with (folder / "ml100k" / "u.item").open("w") as file:
        for movie, flags in enumerate(genres, 1):
            file.write(f"{movie}|name|01-Jan-1995||url|{'|'.join(map(str, flags))}\n")


def write_frappe(folder, random):
    """Write rows of ten fields in libFM's format."""
    (folder / "frappe").mkdir()
    for part, n_rows in (("validation", 2000), ("test", 500)):
        tokens = random.integers(0, 20, (n_rows, 10)) + 20 * np.arange(10)
        with gzip.open(folder / "frappe" / f"frappe.{part}.libfm.gz", "wt") as file:
            for row in tokens:
                label = 1 if row[:2].sum() % 3 == 0 else -1
                file.write(f"{label} " + " ".join(f"{token}:1" for token in row) + "\n")


def write_criteo(folder, random):
    """Write lines of a label, 13 numbers and 26 values."""
    (folder / "criteo-sample").mkdir()
    for part, n_rows in (("train", 600), ("dev", 200), ("test", 200)):
        labels, numbers = random.integers(0, 2, (n_rows, 1)), random.integers(0, 50, (n_rows, 13))
        values = random.integers(0, 30, (n_rows, 26)).astype(str)
        table = np.column_stack([labels.astype(str), numbers.astype(str), values])
        with gzip.open(folder / "criteo-sample" / f"{part}.tsv.gz", "wt") as file:
            file.writelines("\t".join(row) + "\n" for row in table)


def write_words(folder, random):
    """Write lines of words of Zipf's law."""
    (folder / "wikitext2").mkdir()
    for part in ("valid", "test"):
        with gzip.open(folder / "wikitext2" / f"{part}.txt.gz", "wt") as file:
            for _ in range(200):
                words = np.minimum(random.zipf(1.5, 20), 300)
                file.write(" ".join(f"w{word}" for word in words) + "\n")
