"""Paths: what every function that takes one accepts, and what it refuses."""

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import each

from freqfm import Word2Vec
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import (
    RowStream,
    dump_libffm,
    fetch_gowalla,
    fetch_movielens,
    load_csr,
    load_interactions,
    load_libffm,
    load_libfm,
    save_csr,
)
from freqfm.displays import RankingReport

#: Functions of one path, or of a list of paths.
OF_PATHS = {
    "load_libfm": load_libfm,
    "load_libffm": load_libffm,
    "from_libfm": RowStream.from_libfm,
    "from_parquet": lambda path: RowStream.from_parquet(path, "y"),
}
OF_PATH = {
    "load_interactions": load_interactions,
    "load_csr": load_csr,
    "save_csr": lambda path: save_csr(path, np.eye(2), [0, 1]),
    "dump_libffm": lambda path: dump_libffm([[1, 0]], [1], path, fields=[0, 0]),
    "Checkpoint": Checkpoint,
    "resume": resume,
    "to_html": lambda path: RankingReport([[1, 0]], [[0]], [[0, 1]]).to_html(path),
    "load_word2vec_format": Word2Vec.load_word2vec_format,
    "save_word2vec_format": lambda path: (
        Word2Vec(2, max_iter=1, min_count=1).fit([["a", "b"]]).save_word2vec_format(path)
    ),
}
IN_FOLDER = {"fetch_movielens": fetch_movielens, "fetch_gowalla": fetch_gowalla}


class BytesPath:
    def __fspath__(self):
        return b"rows"


@each("name", [*OF_PATHS, *OF_PATH, *IN_FOLDER, "from_csr"])
def test_what_is_no_path_is_refused_by_name(name, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").write_text("1 0:1\n")
    call, argument = {**OF_PATHS, **OF_PATH, "from_csr": RowStream.from_csr}.get(name), "path"
    if name in IN_FOLDER:
        argument = "data_home"

        def call(path):
            return IN_FOLDER[name](data_home=path, download_if_missing=False)

    text, binary = open("rows"), open("rows", "rb")  # noqa: SIM115 - they are given open
    files = [text, binary, io.BytesIO(b"1 0:1"), io.StringIO("1 0:1")]
    others = [b"rows", BytesPath(), 5, 0, True, 1.5, {"rows"}, iter(["rows"]), np.array(["rows"])]
    if name not in IN_FOLDER and name != "to_html":
        others.append(None)
    if name in OF_PATHS:
        others = [*others, *([other] for other in (*files, b"rows", None, 5, ["rows"]))]
        argument = r"path(\[0\])?"
    elif name == "from_csr":
        # Others are no matrix.
        others = [b"rows", BytesPath()]
    else:
        others = [*others, ["rows"], ("rows",), []]
    for given in [*files, *others]:
        with pytest.raises(TypeError, match=f"^{argument}=.* must be a path, a str or") as caught:
            call(given)
        is_open = hasattr(given[0] if isinstance(given, list) and given else given, "read")
        assert ("not an open one" in str(caught.value)) == is_open
    for given in ("", "a\0b"):
        with pytest.raises(ValueError, match=f"^{argument}=.* is no path"):
            call(given)
    text.close()
    binary.close()
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


@each("name", ["load_libfm", "load_libffm", "load_interactions"])
def test_paths_of_any_type_are_read(name, tmp_path):
    lines = {"load_libfm": "1 0:1", "load_libffm": "1 0:0:1", "load_interactions": "0 0"}
    path = tmp_path / "rows"
    path.write_text(lines[name])
    entry = next(os.scandir(tmp_path))
    load = {**OF_PATHS, **OF_PATH}[name]
    for given in (str(path), Path(path), np.str_(path), entry):
        loaded = load(given)
        X = loaded if name == "load_interactions" else loaded[0]
        assert X.toarray().tolist() == [[1]]
    if name in OF_PATHS:
        assert len(load([str(path), path])) == len(load((path, entry))) >= 4
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none"))):
        load(tmp_path / "none")
