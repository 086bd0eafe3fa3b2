"""The loader of interaction files."""

import bz2
import gzip
import io
import pickle
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_canonical, each
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmwrite
from scipy.sparse import coo_array, csr_array, save_npz

from freqfm.datasets import interaction_files as _ratings
from freqfm.datasets import load_interactions, make_interactions

# Matrices


@each(
    "write",
    [
        lambda path, X: mmwrite(path, X),
        lambda path, X: mmwrite(path, X.toarray()),
        lambda path, X: mmwrite(path, X.astype(np.int64), field="integer"),
        lambda path, X: mmwrite(path, X, comment="of a shop"),
    ],
)
def test_matrix_market(tmp_path, write):
    X = sparse.random(6, 8, density=0.3, random_state=0, format="csr")
    X.data = np.ceil(9 * X.data)
    write(tmp_path / "X.mtx", X)
    with gzip.open(tmp_path / "Y.mtx.gz", "wb") as file:
        file.write((tmp_path / "X.mtx").read_bytes())
    for name in ("X.mtx", "Y.mtx.gz"):
        X_read = load_interactions(tmp_path / name)
        assert_canonical(X_read, (6, 8))
        assert (X_read != X).nnz == 0
    assert load_interactions(tmp_path / "X.mtx", shape=(7, 9)).shape == (7, 9)


def test_matrix_market_patterns_are_ones(tmp_path):
    path = tmp_path / "X.mtx"
    head = "%%MatrixMarket matrix coordinate pattern"
    path.write_text(f"{head} general\n2 3 2\n1 3\n2 1\n")
    assert load_interactions(path).toarray().tolist() == [[0, 0, 1], [1, 0, 0]]
    path.write_text(f"{head} symmetric\n2 2 2\n1 1\n2 1\n")
    assert load_interactions(path).toarray().tolist() == [[1, 1], [1, 0]]


@each(
    "text",
    [
        "",
        "0 1 2\n",
        "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1.0 2.0\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1.0\n",
        "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1e300\n",
        "%%MatrixMarket matrix coordinate real general\n2000000000 2 1\n1 1 1.0\n",
    ],
)
def test_matrix_market_rejects(tmp_path, text):
    path = tmp_path / "X.mtx"
    path.write_text(text)
    with pytest.raises(ValueError, match="X.mtx is not a sparse matrix that can be used"):
        load_interactions(path)


def test_a_missing_matrix_is_no_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="X.mtx"):
        load_interactions(tmp_path / "X.mtx")


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_of_any_sparse_format(tmp_path, format, compressed):
    X = sparse.random(12, 8, density=0.3, random_state=0, format="lil")
    X[[0, 5, 11]] = X[:, [3, 7]] = 0
    save_npz(tmp_path / "X.npz", X.asformat(format), compressed=compressed)
    X_read = load_interactions(tmp_path / "X.npz")
    assert_canonical(X_read, (12, 8))
    np.testing.assert_array_equal(X_read.toarray(), X.toarray().astype(np.float32))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64])
def test_npz_of_other_dtypes(tmp_path, dtype):
    X = csr_array(np.array([[0, 1, 0], [1, 0, 1]], dtype=dtype))
    save_npz(tmp_path / "X.npz", X)
    assert_canonical(load_interactions(str(tmp_path / "X.npz")), (2, 3))


def test_npz_becomes_canonical(tmp_path):
    parts = (np.array([3.0, 0, 1, 2]), np.array([2, 0, 1, 1]), np.array([0, 2, 4]))
    save_npz(tmp_path / "X.npz", csr_array(parts, shape=(2, 3)))
    X = load_interactions(tmp_path / "X.npz")
    assert_canonical(X, (2, 3))
    assert X.nnz == 2 and X.toarray().tolist() == [[0, 0, 3], [0, 3, 0]]


def test_npz_shape(tmp_path):
    path = tmp_path / "X.npz"
    save_npz(path, csr_array(np.eye(3)))
    for shape in ((5, 4), (3, 3)):
        assert_canonical(load_interactions(path, shape=shape), shape)
    with pytest.raises(ValueError, match=r"X.npz holds a matrix of shape \(3, 3\), which does not"):
        load_interactions(path, shape=(2, 3))


def test_npz_by_format(tmp_path):
    path = tmp_path / "X.bin"
    buffer = io.BytesIO()
    save_npz(buffer, csr_array(np.eye(3)))
    path.write_bytes(buffer.getvalue())
    assert load_interactions(path, format="npz").nnz == 3
    with pytest.raises(ValueError, match=r"X.bin, line 1: found"):
        load_interactions(path)


class Bomb:
    """An object whose unpickling is noticed."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def csr_parts(**changes):
    parts = {
        "format": np.array(b"csr"),
        "shape": np.array([3, 4]),
        "data": np.ones(4),
        "indices": np.array([0, 3, 1, 2]),
        "indptr": np.array([0, 2, 3, 4]),
    }
    return {**parts, **changes}


def test_npz_parts_are_sound(tmp_path):
    np.savez(tmp_path / "X.npz", **csr_parts())
    assert load_interactions(tmp_path / "X.npz").nnz == 4


@each(
    ("changes", "message"),
    [
        ({"indices": np.array([0, 4, 1, 2])}, "the column index 4, but its shape has room for 4"),
        ({"indices": np.array([0, -1, 1, 2])}, "the column index -1, but its shape has room for 4"),
        ({"indptr": np.array([0, 3, 2, 4])}, "its indptr must be integers that rise"),
        # With this last index pointer, SciPy 1.17 looks at none of the others.
        ({"indptr": np.array([0, 2, 3, 0])}, "its indptr must be integers that rise"),
        ({"indptr": np.array([0, 2, 4])}, "index pointer size"),
        ({"data": np.ones(3)}, "same size"),
        ({"data": np.ones(4, dtype=complex)}, "its values are complex128, not real numbers"),
        ({"data": np.array([Bomb()] * 4)}, "allow_pickle"),
        ({"shape": np.array([3])}, ""),
        ({"shape": np.array([3, 2**40])}, "more than int32 can hold"),
        ({"format": np.array(b"xyz")}, ""),
        (
            {"format": np.array(b"bsr"), "data": np.ones((4, 1, 2)), "shape": np.array([3, 9])},
            r"of shape \(3, 9\), not a multiple of its blocks \(1, 2\)",
        ),
        (
            {"format": np.array(b"dia"), "data": np.ones((1, 3)), "offsets": np.array([4])},
            "holds diagonals outside its shape",
        ),
        (
            {"format": np.array(b"coo"), "row": np.full(4, 7), "col": np.zeros(4, int)},
            "",
        ),
    ],
)
def test_npz_rejects_damaged_parts(tmp_path, changes, message):
    path = tmp_path / "X.npz"
    np.savez(path, **csr_parts(**changes))
    with pytest.raises(ValueError, match=rf"X.npz is not a sparse matrix.*{message}"):
        load_interactions(path)
    assert not Bomb.exploded


def test_npz_rejects_other_files(tmp_path):
    path = tmp_path / "X.npz"
    save_npz(path, csr_array(np.eye(30)))
    whole = path.read_bytes()
    contents = [b"", b"not a zip file", whole[: len(whole) // 2], pickle.dumps(Bomb())]
    buffer = io.BytesIO()
    np.save(buffer, np.eye(2))
    contents.append(buffer.getvalue())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="X.npz is not a sparse matrix that can be used"):
            load_interactions(path)
    assert not Bomb.exploded
    np.savez(path, other=np.eye(2))
    with pytest.raises(ValueError, match="X.npz is not a sparse matrix that can be used"):
        load_interactions(path)
    with pytest.raises(FileNotFoundError, match=r"missing.npz"):
        load_interactions(tmp_path / "missing.npz")


# Lists


@pytest.mark.parametrize("suffix", ["", ".txt", ".txt.gz"])
def test_lists(tmp_path, suffix):
    path = tmp_path / f"train{suffix}"
    with (gzip.open if suffix.endswith("gz") else open)(path, "wt") as file:
        file.write("0 3 1\n\n2 0 0 2\r\n  \n4\n0\t1 2 \n")
    X = load_interactions(path)
    assert_canonical(X, (5, 4))
    assert X.toarray().tolist() == [
        [0, 1, 1, 1],
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_lists_round_trip(tmp_path):
    X = make_interactions(300, 100, 5000, random_state=0)
    path = tmp_path / "train.txt"
    with open(path, "w") as file:
        for user in np.random.RandomState(0).permutation(300):
            items = X.indices[X.indptr[user] : X.indptr[user + 1]]
            file.write(" ".join(map(str, [user, *items[::-1]])) + "\n")
    X_read = load_interactions(path, shape=X.shape)
    assert_canonical(X_read, X.shape)
    assert (X_read != X).nnz == 0


def test_lists_shape(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("0 1\n2 5\n")
    assert load_interactions(path).shape == (3, 6)
    assert load_interactions(path, shape=(3, 6)).shape == (3, 6)
    assert load_interactions(path, shape=[10, 20]).shape == (10, 20)
    with pytest.raises(ValueError, match=r"train.txt, line 2: user 2 is outside shape \(2, 6\)"):
        load_interactions(path, shape=(2, 6))
    with pytest.raises(ValueError, match=r"train.txt, line 2: item 5 is outside shape \(3, 5\)"):
        load_interactions(path, shape=(3, 5))


def test_lists_without_interactions(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("3\n")
    assert load_interactions(path).shape == (4, 0)
    path.write_text("\n")
    assert load_interactions(path, shape=(2, 3)).nnz == 0
    with pytest.raises(ValueError, match=r"train.txt has no user; pass a file with at least"):
        load_interactions(path)


@each(
    ("line", "found"),
    [
        ("1 -2", "found '-2'; give every line a user and the items"),
        ("1 2.0", "found '2.0'"),
        ("1 2_0", "found '2_0'"),
        ("1 +2", r"found '\+2'"),
        ("1,2", "found '1,2'"),
        ("user", "found 'user'"),
        ("1 \u0662", "found '\u0662'"),  # an Arabic digit
        ("1 2\x0b3", "found '1 2"),
        ("1 3000000000", "item 3000000000 is more than 2147483646"),
        ("3000000000 1", "user 3000000000 is more than 2147483646"),
        ("1 " + "9" * 5000, "item 9999999999.* is more than 2147483646"),
    ],
)
def test_lists_name_the_malformed_line(tmp_path, line, found):
    path = tmp_path / "train.txt"
    path.write_text(f"0 1\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"train.txt, line 2: {found}"):
        load_interactions(path)


def test_files_that_begin_with_what_unicode_takes_for_space(tmp_path):
    path = tmp_path / "train.txt"
    for line in ("\x1f", "\x1c\x1d", "\x85", "\u2028"):
        path.write_text(line, encoding="utf-8")
        with pytest.raises(ValueError, match="train.txt, line 1: found"):
            load_interactions(path)


def test_lists_reject_damaged_gzip(tmp_path):
    path = tmp_path / "train.txt.gz"
    whole = gzip.compress(b"0 1 2 3\n" * 1000)
    for content in (whole[:-12], b"0 1\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train.txt.gz cannot be decompressed"):
            load_interactions(path)


# Ratings

RATINGS = [(1, 4, 3.5, 881250949), (2, 1, 5, 891717742), (1, 0, 1, 878887116), (2, 1, 2, 9)]
MATRIX = [[0, 0, 0, 0, 0], [1, 0, 0, 0, 3.5], [0, 7, 0, 0, 0]]


def ratings(separator, header="", rows=RATINGS):
    return header + "".join(separator.join(map(str, row)) + "\n" for row in rows)


@each("suffix", ["", ".gz", ".bz2"])
@pytest.mark.parametrize(
    "text",
    [
        ratings("::"),
        ratings(","),
        ratings("; "),
        ratings("\t"),
        ratings(" "),
        ratings("\t").replace("\n", "\r\n\r\n"),
        ratings(",", "userId,movieId,rating,timestamp\n"),
        ratings("::", "UserID::MovieID::Rating::Timestamp\n"),
        ratings("\t", "user_id\titem_id\tcount\ttime\n"),
        ratings(",", "timestamp,Rating,Movie Id,User Id\n", [row[::-1] for row in RATINGS]),
        ratings(",", "title,userId,movieId,rating\n", [('"a, ""b"""', *r[:3]) for r in RATINGS]),
        ratings(",", rows=[[f'"{field}"' for field in row] for row in RATINGS]),
        "\ufeff" + ratings(","),
        "\ufeff" + ratings(",", "userId,movieId,rating,timestamp\n"),
        ratings("\t", rows=[row[:3] for row in RATINGS]),
    ],
)
def test_ratings(tmp_path, text, suffix):
    path = tmp_path / f"ratings{suffix}"
    opener = {"": open, ".gz": gzip.open, ".bz2": bz2.open}[suffix]
    with opener(path, "wb") as file:
        file.write(text.encode())
    X = load_interactions(path)
    assert_canonical(X, (3, 5))
    assert X.toarray().tolist() == MATRIX
    assert (load_interactions(path, format="ratings", shape=(4, 9)) != 0).sum() == X.nnz
    likes = load_interactions(path, min_rating=3.5)
    assert_canonical(likes, (3, 5))
    assert likes.toarray().tolist() == [[0] * 5, [0, 0, 0, 0, 1], [0, 1, 0, 0, 0]]


def test_movielens_100k(tmp_path):
    # As in u.data: whole ratings, tabs, users in any order.
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(1, 50, size=(200, 2)), rng.integers(1, 6, size=200)])
    path = tmp_path / "u.data"
    np.savetxt(path, np.column_stack([rows, 881250949 + rng.integers(10**7, size=200)]), "%d", "\t")
    X = load_interactions(path)
    users, items, values = rows.T
    expected = csr_array((values.astype(float), (users, items)))
    assert X.shape == expected.shape and (expected != X).nnz == 0


@each(
    "files",
    [
        {"ratings.dat": ratings("::")},
        {"ratings.csv": ratings(",", "userId,movieId,rating,timestamp\n"), "tags.csv": "none"},
        {"u.data": ratings("\t"), "u.item": "1|a film", "u1.base": ratings("\t")},
        {
            "x.inter": ratings("\t", "user_id:token\titem_id:token\trating:float\ttime:float\n"),
            "x.item": "item_id:token\ttitle:token_seq\n1\ta film\n",
        },
        {
            "x.inter": ratings(
                "\t", "timestamp:float\trating:float\titem_id:token\tuser_id:token\n",
                [row[::-1] for row in RATINGS],
            )
        },
    ],
)  # fmt: skip
def test_folders(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("data")
    for name, text in files.items():
        (folder / name).write_text(text)
    for path in (folder, str(folder), folder / next(iter(files))):
        assert load_interactions(path).toarray().tolist() == MATRIX
    assert load_interactions(folder, format="ratings", min_rating=3.5, shape=(4, 9)).nnz == 2


def test_folders_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder without any of ratings.csv, .*mv_\*.txt"):
        load_interactions(tmp_path)
    for part in ("train", "test"):
        (tmp_path / f"x.{part}.inter").write_text(ratings("\t", "user:token\titem:token\ta\tb\n"))
    with pytest.raises(ValueError, match="path holds 2 files, .*x.test.inter and others; pass one"):
        load_interactions(tmp_path)


NETFLIX = ["1:\n2,5,2005-09-06\n1488844,3,2005-05-13\n", "3:\n2,1,2005-09-06\n"]


@each(
    "names, texts",
    [
        (["combined_data_1.txt"], ["".join(NETFLIX)]),
        (["combined_data_1.txt", "combined_data_2.txt"], NETFLIX),
        (["mv_0000001.txt", "mv_0000003.txt"], NETFLIX),
        (["training_set/mv_0000001.txt", "training_set/mv_0000003.txt"], NETFLIX),
        (["combined_data_1.txt"], ["".join(NETFLIX).replace("\n", "\r\n\r\n")]),
    ],
)
def test_netflix(tmp_path_factory, names, texts):
    folder = tmp_path_factory.mktemp("data")
    (folder / "training_set").mkdir()
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)
    X = load_interactions(folder)
    assert_canonical(X, (1488845, 4))
    assert dict(X.todok().items()) == {(2, 1): 5, (1488844, 1): 3, (2, 3): 1}
    assert load_interactions(folder, min_rating=3).nnz == 2
    one = load_interactions(folder / names[0], shape=X.shape, format="netflix")
    assert one[:, [1]].sum() == 8 and one.shape == X.shape


@each(
    "text, message",
    [
        ("2,5,2005-09-06\n1:\n", "line 1: a customer before any movie"),
        ("1:\n2,2005-09-06\n", "line 2: found '2005-09-06' as rating; give a finite number"),
        ("1:\n2\n", "line 2: found '' as rating"),
        ("1:\n2,5,2005-09-06\nx:\n3,1,2005-09-06\n", "line 4: found 'x' as item"),
        ("1:\n2,5,2005-09-06\n3,1\n", "line 3: found 3 fields, where earlier lines have 4"),
        ("1:\n", "combined_data_1.txt has no rating"),
    ],
)
def test_netflix_rejects(tmp_path, text, message):
    (tmp_path / "combined_data_1.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_interactions(tmp_path, format="netflix")


def test_ratings_without_ratings(tmp_path):
    path = tmp_path / "pairs.csv"
    for text in ("0,1\n2,0\n", "time,user,item\n881250949,0,1\n881250950,2,0\n"):
        path.write_text(text)
        assert load_interactions(path).toarray().tolist() == [[0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize("text", ["1 2 3\n4 2 3\n1 3 4\n", "1\t2\t3\t4\n1\t0\t5\t6\n"])
def test_ratings_or_lists(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x.txt, line \d: user 1 again.*Pass format='ratings'"):
        load_interactions(path)
    lists, ratings = (load_interactions(path, format=format) for format in ("lists", "ratings"))
    assert lists.max() == 1 and ratings.max() > 1
    # No user twice: lists of two items each.
    path.write_text("0 3 1\n1 2 5\n")
    assert load_interactions(path).nnz == 4


@each(
    ("text", "found"),
    [
        ("1,2,3\n1,2\n", "line 2: found 2 fields, where earlier lines have 3; give every"),
        ("1,2,3,4,5\n", "line 1: found 5 fields, and no names of columns in the first line"),
        ("a,b,c\n1,2,3\n", r"line 1: found \['a', 'b', 'c'\], which names no column of users"),
        ("user,item,uid\n", "line 1: found several columns of users"),
        ("user,item,rating,score\n", "line 1: found several columns of values"),
        ("1,x,3\n", "line 1: found 'x' as item; ids must be integers"),
        ("1,2,3\n-1,2,3\n", "line 2: found '-1' as user"),
        ("1,\u0662,3\n", "line 1: found .* as item"),
        ("1,2,nan\n", "line 1: found 'nan' as rating; give a finite number"),
        ("1,2,3\n1,2,inf\n", "line 2: found 'inf' as rating"),
        ("1,2,1_0\n", "line 1: found '1_0' as rating"),
        ("1,2,\n", "line 1: found '' as rating"),
        ("1,3000000000,1\n", "line 1: item 3000000000 is more than 2147483646"),
        (f"{'9' * 5000},1,1\n", "line 1: user 9999999999.* is more than 2147483646"),
        ("1,2,978300760\n1,3,978300761\n", "has what looks like times, such as 978300760"),
        ("1,2,978300760.25\n1,3,978300761.5\n", "has what looks like times, such as 978300760"),
        ("1,2,20240131\n1,3,20240201\n", "has what looks like times, such as 20240131"),
        ("1,2,3e38\n1,2,3e38\n", "holds ratings whose sums overflow float32"),
        ("userId,movieId\n", "has no rating; pass a file with at least one"),
    ],
)
def test_ratings_name_the_malformed_line(tmp_path, text, found):
    path = tmp_path / "ratings.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"ratings.csv.{{1,2}}{found}"):
        load_interactions(path)


PIECES = ["0", "1", "7", "12", "893286638", "9" * 20, "-1", "2.5", "nan", "inf", "1e400", "x", '"']
PIECES += [" ", "\t", ",", "::", ";", "\n", "\r\n", "\r", "\0", "\ufeff", "\u0662"]
PIECES += ["user", "item_id", "rating", "user,item\n", "1,2\n", "1 2 3 881250949\n"]


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
    format=st.sampled_from(["auto", "lists", "ratings"]),
)
def test_any_text(text, encoding, format):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.txt")
        path.write_bytes(text.encode(encoding))
        try:
            X = load_interactions(path, format=format)
        except ValueError as error:
            assert str(path) in str(error)
            return
        assert_canonical(X, X.shape)
        assert np.isfinite(X.data).all() and max(X.shape) <= 1_000_000


def test_ratings_outside_a_shape(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("0,1,1\n2,5,1\n")
    for shape, message in (((2, 6), "user 2 is outside"), ((3, 5), "item 5 is outside")):
        with pytest.raises(ValueError, match=f"ratings.csv, line 2: {message}"):
            load_interactions(path, shape=shape)


@pytest.mark.parametrize("text", ["1 2\n0 893286638\n", "1 2\n893286638 0\n", "1,2\n0,893286638\n"])
def test_files_that_cannot_mean_so_many(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert peak_of_error(path) < 1e6
    with pytest.raises(ValueError, match=r"x.txt, line 2: (user|item) 893286638 .*Pass shape=\("):
        load_interactions(path)
    if text.endswith("38\n"):
        assert load_interactions(path, shape=(2, 893286639)).shape == (2, 893286639)


def test_matrices_that_cannot_mean_so_many_rows(tmp_path):
    path = tmp_path / "X.npz"
    save_npz(path, coo_array((np.ones(1), ([3], [4])), shape=(2**31 - 1, 5)))
    assert peak_of_error(path) < 1e6
    with pytest.raises(ValueError, match=r"X.npz .*with 1 entries.*pass shape=\(2147483647, 5\)"):
        load_interactions(path)


def peak_of_error(path):
    """Return how many bytes are taken at most until a file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            load_interactions(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_npz_values_are_finite(tmp_path, value):
    save_npz(tmp_path / "X.npz", csr_array([[1, value]]))
    with pytest.raises(ValueError, match="X.npz is not .*it holds NaN, infinity or values beyond"):
        load_interactions(tmp_path / "X.npz")


def test_byte_order_marks_of_lists(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("0 1 2\n", encoding="utf-8-sig")
    assert load_interactions(path).nnz == 2
    path.write_text("0 1 2\n", encoding="utf-16")
    with pytest.raises(ValueError, match="train.txt is encoded in UTF-16; save it as UTF-8"):
        load_interactions(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_rating": "3"}, "min_rating='3' must be a finite number"),
        ({"min_rating": 3}, "min_rating is 3, but .* has the format 'lists'"),
        ({"min_rating": np.nan, "format": "ratings"}, "min_rating=nan.* finite number"),
        ({"format": "csv"}, "format is 'csv'; pass one of"),
        ({"shape": 5}, r"shape=5 must be a tuple \(n_users, n_items\)"),
        ({"shape": (5,)}, r"shape=\(5,\)"),
        ({"shape": (5, 0)}, r"shape\[1\]=0 must be an integer of at least 1"),
        ({"shape": (5, 2**31)}, r"shape\[1\]=2147483648 must be at most"),
        ({"shape": (5.0, 3)}, r"shape\[0\]=5.0 must be an integer"),
    ],
)
def test_load_interactions_rejects(tmp_path, arguments, message):
    path = tmp_path / "train.txt"
    path.write_text("0 1\n")
    with pytest.raises(ValueError, match=message):
        load_interactions(path, **arguments)


@settings(max_examples=300)
@given(st.data())
def test_lines_read_at_once_are_those_read_one_by_one(data):
    draw = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
    format = draw("ratings", "ratings", "lists", "netflix")
    numbers = st.integers(0, 99).map(str) | st.sampled_from(["0" * 9 + "7", "12345678901"])
    ratings = st.sampled_from(["5", "4.5", "1.", "-2", "+3", "5", "1e3", ".5", "nan", "1_0", ""])
    separator = draw("\t", " ", "::", ",", ";", ", ", "  ")
    titles = st.sampled_from(["", "12", "a b", 'x"y', "\xc9t\xe9", "a,b"])
    columns = {"user": numbers, "item": numbers, "rating": ratings, "title": titles}
    header = data.draw(
        st.permutations(["user", "item", *draw([], ["rating"], ["rating", "title"])])
    )
    quoted = draw((), (header[0],), header)
    lines = [] if format != "ratings" else [separator.join(header)]
    for _ in range(data.draw(st.integers(0, 7))):
        if format == "lists":
            line = draw(" ", "\t", "  ").join(data.draw(st.lists(numbers, max_size=4)))
        elif format == "netflix" and draw(True, False, False):
            line = f"{data.draw(numbers)}:"
        elif format == "netflix":
            line = f"{data.draw(numbers)},{data.draw(ratings)},2005-01-01"
        else:
            row = [(name, data.draw(columns[name])) for name in header]
            line = separator.join(f'"{one}"' if name in quoted else one for name, one in row)
        at, typo = data.draw(st.integers(0, len(line))), draw("", "", "", " ", '"', ",", "\r", "x")
        lines.append(line[:at] + typo + line[at:])
    text = draw("\n", "\r\n").join(lines) + draw("", "\n")

    def rows(path):
        try:
            return _ratings.read_rows(str(path), format).tolist()
        except ValueError as error:
            return str(error)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "file.txt")
        path.write_text(text, encoding="utf-8", newline="")
        patch.setattr(_ratings, "_AT_ONCE", 3)
        at_once = rows(path)
        for one in (_ratings._Ratings, _ratings._Lists):
            patch.setattr(one, "at_once", lambda self, lines: None)
        assert rows(path) == at_once


@each(
    "text, format",
    [
        ("0 1 2\n3\n\n4 5\n" * 9, "lists"),
        ("user,item,rating,title\n" + "1,2,4.5,Hop\n12,7,3,\n" * 9, "ratings"),
        ('"user";"item";"title"\n' + '"1";"2";"a;b"\n' * 9, "ratings"),
        ("1::2::3::978300760\n" * 9, "ratings"),
        ("1\t2\t3.5\t978300760\r\n" * 9, "ratings"),
        ("1 2 3\n1  2  3 \n" * 9, "ratings"),
        ("1:\n7,3,2005-09-06\n8,4,2005-09-06\n" * 9, "netflix"),
    ],
)
def test_usual_files_are_not_read_line_by_line(text, format, tmp_path, monkeypatch):
    (tmp_path / "file.txt").write_text(text, newline="")
    expected = load_interactions(tmp_path / "file.txt", format=format)
    parse = _ratings._Ratings.__call__
    first = lambda self, text: parse(self, text) if not self.is_ready else 1 / 0  # noqa: E731
    monkeypatch.setattr(_ratings._Ratings, "__call__", first)
    monkeypatch.setattr(_ratings._Lists, "__call__", None)
    X = load_interactions(tmp_path / "file.txt", format=format)
    assert X.nnz and (expected != X).nnz == 0
