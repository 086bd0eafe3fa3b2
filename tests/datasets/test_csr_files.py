"""Rows in folders of files: saved, mapped, damaged, and written by several processes at once."""

import functools
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from processes import python
from scipy import sparse

from freqfm import FMClassifier
from freqfm.datasets import RowStream, csr_files, load_csr, make_clicks, save_csr


@pytest.fixture(scope="module")
def clicks():
    X, y = make_clicks(1050, (100, 40), random_state=0)
    return X, y, np.random.default_rng(0).integers(1, 9, 1050) / 8


def in_blocks(X, *others, size=170, **options):
    """Return a stream of blocks of rows."""

    def blocks():
        for begin in range(0, X.shape[0], size):
            rows = slice(begin, begin + size)
            yield X[rows], *(one[rows] for one in others)

    return RowStream(blocks, **{"chunk_size": 300, **options})


def file_of(folder, name):
    """Return the path of one of the files that hold a folder's rows."""
    (found,) = folder.glob(f"rows-*/{name}.bin")
    return found


def entries(folder):
    """Return the kinds of what a folder holds."""
    return sorted(re.sub(r"[0-9a-f]{32}", "*", entry.name) for entry in folder.iterdir())


SAVED = ["header.json", "rows-*"]


def test_rows_are_saved_into_the_folder_that_they_are_mapped_from(clicks, tmp_path):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    save_csr(tmp_path, RowStream.from_csr(tmp_path))
    mapped = load_csr(tmp_path, mmap=True)
    assert_array_equal(mapped.target, y)
    save_csr(tmp_path, mapped.data[:100], mapped.target[:100])
    found = load_csr(tmp_path)
    assert_array_equal(found.target, y[:100])
    assert (found.data != X[:100]).nnz == 0
    # What cannot be saved leaves the rows that are there.
    for bad in (np.ones((50, 2)), np.ones(3), np.float64(1)):
        with pytest.raises(ValueError, match="1d array|50 rows"):
            save_csr(tmp_path, X[:50], bad)
    assert_array_equal(load_csr(tmp_path).target, y[:100])
    assert entries(tmp_path) == SAVED


def test_csr_files(clicks, tmp_path):
    X, y, weight = clicks
    save_csr(tmp_path / "whole", X, y, weight)
    save_csr(tmp_path / "stream", in_blocks(X, y, weight))
    for name in ("whole", "stream"):
        for mmap in (False, True):
            bunch = load_csr(tmp_path / name, mmap=mmap)
            assert_array_equal(bunch.data.toarray(), X.toarray())
            assert_array_equal(bunch.target, y)
            assert_array_equal(bunch.sample_weight, weight)
            assert bunch.data.data.flags.writeable != mmap
        rows, _, weights = zip(*RowStream.from_csr(tmp_path / name, chunk_size=256), strict=True)
        assert_array_equal(sparse.vstack(rows).toarray(), X.toarray())
        assert_array_equal(np.concatenate(weights), weight)
    file_of(tmp_path / "whole", "data").write_bytes(b"123")
    with pytest.raises(ValueError, match="data.bin holds 3 bytes"):
        load_csr(tmp_path / "whole")
    with pytest.raises(ValueError, match="not a folder that save_csr has written"):
        load_csr(tmp_path)
    with pytest.raises(TypeError, match="target holds <U1; save_csr stores numbers"):
        save_csr(tmp_path / "text", X[:2], np.array(["a", "b"]))
    for given in ({"y": y}, {"sample_weight": weight}):
        with pytest.raises(ValueError, match="y and sample_weight are part of a stream"):
            save_csr(tmp_path / "twice", in_blocks(X, y, weight), **given)


def header_with(name, **kept):
    return lambda header: {
        **header,
        "arrays": {**header["arrays"], name: {**header["arrays"][name], **kept}},
    }


DAMAGED_HEADERS = [
    lambda header: [],
    lambda header: {},
    lambda header: {**header, "format": "\x1b[2J" * 10**6},
    lambda header: {**header, "arrays": {}},
    lambda header: {**header, "arrays": {**header["arrays"], "../target": {}}},
    lambda header: {**header, "arrays": {**header["arrays"], "a" * 10**6: {}}},
    lambda header: {**header, "arrays": {**header["arrays"], "indptr": {"size": 3}}},
    *(lambda header, name=name: {**header, "rows": name} for name in ("..", "", None, "/etc")),
    *(lambda header, n=n: {**header, "n_features": n} for n in ("9", True, -1, 2**40, 10**30)),
    *(header_with("target", size=size) for size in (-1, 1050.0, "1050", 0, 10**30)),
    *(
        header_with(name, dtype=dtype)
        for name in ("indptr", "indices", "data", "target", "sample_weight")
        for dtype in ("|O", "<M8[ns]", "|S8", "<c8", "(2,)f4", "f4,f4", ">f8", None, [["a", "i4"]])
    ),
    *(header_with("data", checksums=found) for found in (None, 3, [], [1, 2], "ab")),
    # Of the right size, and numbers, but not what compiled code reads.
    header_with("data", dtype="<i4"),
    header_with("indices", dtype="<f4"),
    header_with("indices", dtype="<u4"),
    header_with("indptr", dtype="<u8"),
]


@each("change", DAMAGED_HEADERS)
def test_damaged_headers_of_csr_files_are_refused(change, clicks, tmp_path):
    save_csr(tmp_path, *clicks)
    path = tmp_path / "header.json"
    header = change(json.loads(path.read_text()))
    if isinstance(header, dict):
        header.pop("checksum", None)
        header["checksum"] = csr_files._checksum(header)
    path.write_text(json.dumps(header))
    refuses_to_load(tmp_path)


def refuses_to_load(folder):
    for load in (load_csr, functools.partial(load_csr, mmap=True), RowStream.from_csr):
        with pytest.raises(ValueError, match=re.escape(str(folder))) as caught:
            load(folder)
        message = str(caught.value)
        assert len(message) < 1000 and message.isprintable()


@each(
    "name, content",
    [
        ("header.json", b"[" * 10**5),
        ("header.json", b"\xff"),
        *((name, None) for name in ("indptr", "indices", "data", "target")),
        ("indices", np.zeros(8, np.int32)),
        ("indptr", np.arange(1051)),
        ("indptr", np.r_[0, -(10**12), np.zeros(1049, np.int64)]),
        ("indptr", np.r_[0, 10**12, np.zeros(1049, np.int64)]),
    ],
)
def test_damaged_csr_files_are_refused(name, content, clicks, tmp_path):
    save_csr(tmp_path, *clicks)
    path = tmp_path / name if name == "header.json" else file_of(tmp_path, name)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(bytes(content))
    refuses_to_load(tmp_path)


def test_files_without_values_must_be_there(tmp_path):
    save_csr(tmp_path, np.zeros((2, 3), np.float32), [0, 1])
    assert load_csr(tmp_path, mmap=True).data.nnz == 0
    file_of(tmp_path, "data").unlink()
    refuses_to_load(tmp_path)


@each("dtype", [">f8", ">i4", "<f2", "?", "longdouble"])
def test_targets_of_any_numbers_are_saved(dtype, tmp_path):
    y = np.arange(4).astype(dtype)
    save_csr(tmp_path, np.eye(4, dtype=np.float32), y)
    found = load_csr(tmp_path).target
    assert_array_equal(found, y)
    assert found.dtype.isnative


def test_indices_in_csr_files_are_checked(clicks, tmp_path):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    indices = X.indices.astype(np.int32)
    indices[3] = 1 << 30
    indices.tofile(file_of(tmp_path, "indices"))
    with pytest.raises(ValueError, match="holds the column index 1073741824, but its shape"):
        load_csr(tmp_path, verify=False)


def test_save_csr_refuses_columns_that_it_cannot_store(tmp_path):
    broken = sparse.csr_array(np.eye(3, dtype=np.float32))
    broken.indices[1] = 3
    lists = sparse.lil_array(np.eye(3, dtype=np.float32))
    lists.rows[1] = [3]
    for X in (broken, lists):
        with pytest.raises(ValueError, match="the column index 3, but its shape has room for 3"):
            save_csr(tmp_path / "broken", X)
    with pytest.raises(ValueError, match="the column index 3"):
        list(RowStream([lambda: iter([(broken, np.ones(3))])]))
    wide = sparse.csr_array(([1.0], ([0], [3_000_000_000])), shape=(1, 4_000_000_000))
    with pytest.raises(ValueError, match="4000000000 features; at most 2147483647"):
        save_csr(tmp_path / "wide", wide)


def test_targets_of_chunks_of_different_types_are_saved_as_they_are(tmp_path):
    X = np.eye(4, dtype=np.float32)
    targets = [np.array([1, 0]), np.array([2.5, 0.5])]

    def blocks():
        yield X[:2], targets[0]
        yield X[2:], targets[1]

    save_csr(tmp_path / "a", RowStream(blocks, chunk_size=2))
    bunch = load_csr(tmp_path / "a")
    assert_array_equal(bunch.target, np.concatenate(targets))
    assert_array_equal(bunch.data.toarray(), X)
    for options in ({"y": [0, 1, 1]}, {"y": [0, 1, 1, 0], "sample_weight": [1.0]}):
        with pytest.raises(ValueError, match="there are 4 rows, but [13] values of"):
            save_csr(tmp_path / "b", X, **options)
        with pytest.raises(ValueError, match="not a folder that save_csr has written"):
            load_csr(tmp_path / "b")


# One call at a time, and several


WRITER = """
import sys, time
import numpy as np
from scipy import sparse
from freqfm.datasets import RowStream, save_csr

folder, value, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
X = sparse.csr_array(np.full((400, 6), value, np.float32))
X.indices[:] = np.tile(np.arange(6), 400)

def blocks():
    yield X[:150], np.full(150, value)
    yield X[150:], np.full(250, value)

end = time.monotonic() + seconds
while time.monotonic() < end:
    save_csr(folder, X, np.full(400, value), np.full(400, value))
    save_csr(folder, RowStream(blocks, chunk_size=200))
"""


@pytest.mark.slow
def test_readers_get_the_rows_of_one_of_two_writers(tmp_path):
    save_csr(tmp_path, np.full((400, 6), 3.0), np.full(400, 3))
    results = []
    writers = [
        threading.Thread(target=lambda v=v: results.append(python(WRITER, str(tmp_path), v, "1.5")))
        for v in ("1", "2")
    ]
    for writer in writers:
        writer.start()
    seen, kept = set(), []
    while any(writer.is_alive() for writer in writers):
        for mmap in (False, True):
            bunch = load_csr(tmp_path, mmap=mmap, verify=True)
            values = {*np.unique(bunch.data.data), *np.unique(bunch.target)}
            assert len(values) == 1 and bunch.data.shape == (400, 6)
            seen |= values
            kept = [*kept[-5:], (bunch, values)]
        (rows, y, *_), *_ = RowStream.from_csr(tmp_path, chunk_size=400)
        assert {*np.unique(rows.data)} == {*np.unique(y)}
    assert [done.returncode for done in results] == [0, 0], results
    assert seen >= {1, 2}
    # What was mapped is still there.
    assert all({*np.unique(bunch.data.data)} == values for bunch, values in kept)
    assert entries(tmp_path) == SAVED


@pytest.mark.slow
def test_a_killed_writer_leaves_the_earlier_rows(clicks, tmp_path):
    X, y, weight = clicks
    save_csr(tmp_path, X, y)
    killed = """
import os, signal, sys
import numpy as np
from freqfm.datasets import RowStream, save_csr
def blocks():
    yield np.ones((10, 3)), np.ones(10)
    yield np.ones((10, 3)), np.ones(10)
    os.kill(os.getpid(), signal.SIGKILL)
save_csr(sys.argv[1], RowStream(blocks, chunk_size=10, prefetch=0))
"""
    assert python(killed, str(tmp_path)).returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("rows-*/target.bin"))) == 2
    assert_array_equal(load_csr(tmp_path).target, y)
    assert entries(tmp_path) == ["header.json", "rows-*", "rows-*", "rows-*.json"]
    # It might still be writing.
    save_csr(tmp_path, X, y, weight)
    assert entries(tmp_path) == ["header.json", "rows-*", "rows-*", "rows-*.json"]
    for path in [*tmp_path.glob("rows-*.json"), *tmp_path.glob("rows-*/*")]:
        os.utime(path, (0, 0))
    save_csr(tmp_path, X, y)
    assert entries(tmp_path) == SAVED
    assert load_csr(tmp_path).sample_weight is None


def test_a_writer_whose_files_are_removed_fails(clicks, tmp_path):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)

    def blocks():
        yield X, 1 - y
        for path in tmp_path.glob("rows-*.json"):
            path.unlink()
            shutil.rmtree(path.with_suffix(""))
        yield from last

    for n_more in (0, 1):
        last = n_more * [(X, y)]
        with pytest.raises(OSError, match="rows-"):
            save_csr(tmp_path, RowStream(blocks, chunk_size=len(y), prefetch=0))
        assert_array_equal(load_csr(tmp_path).target, y)
        assert entries(tmp_path) == SAVED


def test_what_fails_leaves_the_earlier_rows(clicks, tmp_path, monkeypatch):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)

    def breaks():
        yield X, 1 - y
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_csr(tmp_path, RowStream(breaks, prefetch=0, chunk_size=300))
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_csr(tmp_path, X, 1 - y)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with monkeypatch.context() as patch:

        def in_use(path, other):
            raise PermissionError("is being used by another process")

        patch.setattr(Path, "replace", in_use)
        with pytest.raises(PermissionError, match="used by another process"):
            save_csr(tmp_path, X, 1 - y)
    assert_array_equal(load_csr(tmp_path).target, y)
    assert entries(tmp_path) == SAVED


def test_rows_that_cannot_be_removed_yet_are_removed_later(clicks, tmp_path, monkeypatch):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    with monkeypatch.context() as patch:
        # As on Windows, while they are mapped.
        patch.setattr(shutil, "rmtree", lambda *args, **options: None)
        save_csr(tmp_path, X, 1 - y)
    assert_array_equal(load_csr(tmp_path).target, 1 - y)
    assert entries(tmp_path) == ["header.json", "rows-*", "rows-*"]
    save_csr(tmp_path, X, y)
    assert entries(tmp_path) == SAVED


# Damage


@each("size", [7, 300, 1050])
def test_checksums_do_not_depend_on_the_parts_that_are_written(size, clicks, tmp_path, monkeypatch):
    monkeypatch.setattr(csr_files, "_BLOCK", 1000)
    X, y, weight = clicks
    headers = []
    for rows in (in_blocks(X, y, weight, size=size, chunk_size=size), X):
        save_csr(tmp_path, rows, *((y, weight) if rows is X else ()))
        load_csr(tmp_path, mmap=True, verify=True)
        headers.append(json.loads((tmp_path / "header.json").read_text())["arrays"])
    assert headers[0] == headers[1]
    assert len(headers[0]["target"]["checksums"]) == 9


def flip(path, byte, bit):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("block", [64, 1 << 22])
def test_flipped_bits_are_found(block, tmp_path, monkeypatch):
    monkeypatch.setattr(csr_files, "_BLOCK", block)
    X, y = make_clicks(120, (10, 5), random_state=0)
    save_csr(tmp_path, X, y, np.ones(120))
    names = ("indptr", "indices", "data", "target", "sample_weight")
    rng = np.random.default_rng(0)
    for path in [*(file_of(tmp_path, name) for name in names), tmp_path / "header.json"]:
        n_bytes = path.stat().st_size
        for byte in {0, 2, n_bytes - 1, *rng.integers(n_bytes, size=5).tolist()}:
            bit = 0 if byte in (0, 2) else int(rng.integers(8))
            flip(path, byte, bit)
            for load in (
                load_csr,
                functools.partial(load_csr, mmap=True, verify=True),
                lambda folder: list(RowStream.from_csr(folder, chunk_size=50)),
            ):
                with pytest.raises(ValueError, match="save|Save"):
                    load(tmp_path)
            flip(path, byte, bit)
    load_csr(tmp_path)
    flip(file_of(tmp_path, "target"), 0, 0)
    with pytest.raises(ValueError, match="target.bin is damaged"):
        FMClassifier(2, max_iter=1).fit(RowStream.from_csr(tmp_path))


def test_mapped_files_are_compared_when_that_is_asked_for_or_when_a_stream_reads_them(
    clicks, tmp_path, monkeypatch
):
    monkeypatch.setattr(csr_files, "_BLOCK", 256)
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    flip(file_of(tmp_path, "data"), 4 * 1500, 3)  # of row 750
    bunch = load_csr(tmp_path, mmap=True)
    assert (bunch.data != X).nnz == 1
    assert (load_csr(tmp_path, verify=False).data != X).nnz == 1
    for options in ({}, {"mmap": True, "verify": True}):
        with pytest.raises(ValueError, match=r"data.bin is damaged: what it holds from byte 58"):
            load_csr(tmp_path, **options)
    n_rows = 0
    with pytest.raises(ValueError, match="data.bin is damaged"):
        for chunk, _ in RowStream.from_csr(tmp_path, chunk_size=100):
            n_rows += chunk.shape[0]
    assert n_rows == 700
    with pytest.raises(ValueError, match="verify='no' must be True or False"):
        load_csr(tmp_path, verify="no")


def test_folders_of_other_formats_are_refused(clicks, tmp_path):
    arrays = {"indptr": np.arange(3), "indices": np.zeros(2, np.int32), "target": np.ones(2)}
    arrays["data"] = np.ones(2, np.float32)
    header = {"format": "freqfm csr 1", "n_features": 1, "arrays": {}}
    for name, array in arrays.items():
        array.tofile(tmp_path / f"{name}.bin")
        header["arrays"][name] = {"dtype": array.dtype.str, "size": len(array)}
    (tmp_path / "header.json").write_text(json.dumps(header))
    for load in (load_csr, RowStream.from_csr):
        with pytest.raises(ValueError, match="has the format 'freqfm csr 1'; this version reads"):
            load(tmp_path)
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    assert_array_equal(load_csr(tmp_path).target, y)


def test_a_folder_has_its_own_targets(clicks, tmp_path):
    X, y, _ = clicks
    save_csr(tmp_path, X, y)
    for given in ({"y": y}, {"sample_weight": y}):
        with pytest.raises(ValueError, match="y and sample_weight are those of the folder"):
            RowStream.from_csr(tmp_path, **given)
