"""Compiled kernels of a GPU on disk."""

import pytest

from freqfm._numba import code_cache as code_cache
from freqfm.backends.cuda import kernel_files
from freqfm.backends.cuda.fm.batch import SCORE, TRAIN


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_files, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(code_cache, "checked_directory", lambda: tmp_path)
    return tmp_path


def test_names_depend_on_all_that_is_compiled(monkeypatch):
    kinds = [(TRAIN, ("float32", 1), (9, 0, 13, 0)), (TRAIN, ("float32", 2), (9, 0, 13, 0))]
    kinds += [(SCORE, ("float32", 1), (9, 0, 13, 0)), (TRAIN, ("float32", 1), (8, 0, 13, 0))]
    kinds += [(TRAIN, ("float32", 1), (9, 0, 12, 9))]
    names = [kernel_files.name_of(*kind) for kind in kinds]
    assert len(set(names)) == 5
    assert names[0] == kernel_files.name_of(*kinds[0])
    assert names[0].startswith("freqfm.backends.cuda.fm.batch.score_batch-")
    monkeypatch.setattr(code_cache, "source_hash", lambda *folders: folders)
    assert kernel_files.name_of(*kinds[0]) not in names


def test_what_is_saved_is_found(folder):
    assert kernel_files.load("a") is None
    kernel_files.save("a", {"code": b"x" * 1000})
    assert kernel_files.load("a") == {"code": b"x" * 1000}
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_damaged_file_is_not_used(folder):
    kernel_files.save("a", 3)
    (folder / "a").write_bytes((folder / "a").read_bytes()[:-3])
    assert kernel_files.load("a") is None


def test_what_cannot_be_saved_is_not(folder):
    kernel_files.save("a", lambda: None)
    assert kernel_files.load("a") is None and not list(folder.iterdir())


def test_nothing_is_left_of_what_cannot_be_put_in_place(folder):
    (folder / "a").mkdir()
    kernel_files.save("a", 3)
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_without_a_folder(monkeypatch):
    monkeypatch.setattr(kernel_files, "cache_directory", lambda: None)
    assert kernel_files.name_of(TRAIN, (), (9, 0, 13, 0)) is None
    kernel_files.save(None, 3)
    assert kernel_files.load(None) is None


def test_files_of_others_are_not_loaded(folder, monkeypatch):
    kernel_files.save("a", 3)

    def refuse():
        raise PermissionError("belongs to another user")

    monkeypatch.setattr(code_cache, "checked_directory", refuse)
    assert kernel_files.load("a") is None
    kernel_files.save("b", 3)
    assert [path.name for path in folder.iterdir()] == ["a"]
