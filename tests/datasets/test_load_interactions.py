"""The loader of interaction files."""

import gzip
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import assert_canonical, each
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from freqfm import InteractionRecommender, PopularityRecommender
from freqfm.datasets import load_interactions, make_interactions, text_files

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


@pytest.mark.parametrize("text", ["1 2 3\n4 2 3\n1 3 4\n", "1\t2\t3\t4\n1\t0\t5\t6\n"])
def test_ratings_are_not_taken_for_lists(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x.txt, line \d: user 1 again.* pass format='lists'"):
        load_interactions(path)
    assert load_interactions(path, format="lists").max() == 1
    # No user twice: lists of two items each.
    path.write_text("0 3 1\n1 2 5\n")
    assert load_interactions(path).nnz == 4


def test_tables_and_matrices_are_told_who_reads_them(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array([[1, 0]]))
    for name, text in (
        ("u.csv", "userId,movieId,rating\n1,2,3\n"),
        ("u.dat", "1::2::3::978300760\n"),
        ("u.inter", "user_id:token\titem_id:token\n1\t2\n"),
    ):
        (tmp_path / name).write_text(text)
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="line 1: found .* with pandas, .* InteractionRecomm"):
            load_interactions(path)


PIECES = ["0", "1", "7", "12", "893286638", "9" * 20, "-1", "2.5", "nan", "inf", "1e400", "x", '"']
PIECES += [" ", "\t", ",", "::", ";", "\n", "\r\n", "\r", "\0", "\ufeff", "\u0662"]
PIECES += ["user", "item_id", "rating", "user,item\n", "1,2\n", "1 2 3 881250949\n"]


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
    format=st.sampled_from(["auto", "lists"]),
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


@pytest.mark.parametrize("text", ["1 2\n0 893286638\n", "1 2\n893286638 0\n"])
def test_files_that_cannot_mean_so_many(tmp_path, text):
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert peak_of_error(path) < 1e6
    with pytest.raises(ValueError, match=r"x.txt, line 2: (user|item) 893286638 .*Pass shape=\("):
        load_interactions(path)
    if text.endswith("38\n"):
        assert load_interactions(path, shape=(2, 893286639)).shape == (2, 893286639)


def peak_of_error(path):
    """Return how many bytes are taken at most until a file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            load_interactions(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


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
        ({"format": "ratings"}, "format is 'ratings'; pass 'auto'"),
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


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_lines_read_at_once_are_those_read_one_by_one(data):
    draw = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
    numbers = st.integers(0, 99).map(str) | st.sampled_from(["0" * 9 + "7", "12345678901"])
    lines = []
    for _ in range(data.draw(st.integers(0, 7))):
        line = draw(" ", "\t", "  ").join(data.draw(st.lists(numbers, max_size=4)))
        at, typo = data.draw(st.integers(0, len(line))), draw("", "", "", " ", '"', ",", "\r", "x")
        lines.append(line[:at] + typo + line[at:])
    text = draw("\n", "\r\n").join(lines) + draw("", "\n")

    def rows(path):
        try:
            return text_files.read_rows(str(path)).tolist()
        except ValueError as error:
            return str(error)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "file.txt")
        path.write_text(text, encoding="utf-8", newline="")
        patch.setattr(text_files, "_AT_ONCE", 3)
        at_once = rows(path)
        patch.setattr(text_files, "_AT_ONCE", 1)
        assert rows(path) == at_once
    if not isinstance(at_once, str):
        split = [(number, line.split()) for number, line in enumerate(text.split("\n"), 1)]
        filled = [
            (number, *map(int, fields[:1]), fields[1:] or ["-1"])
            for number, fields in split
            if fields
        ]
        assert at_once == [(n, user, int(item)) for n, user, items in filled for item in items]


def test_usual_files_are_not_read_line_by_line(tmp_path, monkeypatch):
    (tmp_path / "file.txt").write_text("0 1 2\n3\n\n4 5\n" * 9, newline="")
    expected = load_interactions(tmp_path / "file.txt")
    monkeypatch.setattr(text_files, "_check_line", None)
    X = load_interactions(tmp_path / "file.txt")
    assert X.nnz and (expected != X).nnz == 0


def test_pandas_reads_the_files_of_netflix(tmp_path):
    (tmp_path / "combined_data_1.txt").write_text(
        "1:\n2,5,2005-09-06\n9,3,2005-05-13\n3:\n2,1,2005\n"
    )
    table = pd.read_csv(tmp_path / "combined_data_1.txt", names=["user", "rating", "time"])
    table["item"] = table["user"].where(table["rating"].isna()).ffill()
    model = InteractionRecommender(PopularityRecommender(), value=None).fit(table.dropna())
    assert model.user_ids_.tolist() == ["2", "9"] and model.item_ids_.tolist() == ["1:", "3:"]
