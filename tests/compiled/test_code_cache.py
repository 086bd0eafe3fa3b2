"""Compiled code on disk: damaged, on a full disk, without rights, in a folder others write to."""

import itertools
import json
import os
import py_compile
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest
from processes import ROOT, python

from freqfm._numba import code_cache
from freqfm._numba.jit import JIT_DISABLED, cache_directory

pytestmark = [
    pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled"),
    pytest.mark.slow,  # a process for each test
]

# Compiles two tiny kernels, or loads them; prints what they return, whether they were loaded, and
# warnings.
TINY = """
import json
import os
import sys
import warnings

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from freqfm._numba import jit

    exec(os.environ.get("BEFORE", ""))

    @jit.kernel
    def add(x):
        for i in range(x.shape[0]):
            x[i] += i

    @jit.kernel
    def double(x):
        for i in range(x.shape[0]):
            x[i] *= 2

    import numpy as np

    exec(os.environ.get("AFTER", ""))

    x = np.ones(3)
    add(x)
    double(x)

hits = [sum(k.stats.cache_hits.values()) for k in (add, double)]
warned = [[str(w.message), w.category.__name__, w.filename] for w in told]
folder = jit.cache_directory()
exec(os.environ.get("FINALLY", ""))
print(json.dumps([x.tolist(), hits, warned, folder and str(folder)]))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "tiny.py"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def filled(script, tmp_path_factory):
    """Return a cache that holds both kernels."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    assert run(script, cache)[:2] == ([0, 0], [])
    return cache


@pytest.fixture
def cache(filled, tmp_path):
    """Return a copy of the cache, to be damaged."""
    return shutil.copytree(filled, tmp_path / "cache")


def run(script, cache, **code):
    """Run the script in a fresh process; return cache hits, warnings and the folder."""
    done = python(TINY, file=script, timeout=120, NUMBA_CACHE_DIR=str(cache), **code)
    assert done.returncode == 0, done.stderr
    values, hits, warned, folder = json.loads(done.stdout)
    assert values == [2, 4, 6]
    assert all(category == "UserWarning" for _, category, _ in warned)
    assert all(file == str(script) for *_, file in warned)
    return hits, [message for message, *_ in warned], folder


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def overwrite(path):
    path.write_bytes(b"no longer compiled code" * 100)


def flip_bits(path):
    # In the middle of the code, where neither pickle nor LLVM needs to notice.
    content = bytearray(path.read_bytes())
    for i in range(len(content) // 2, len(content) // 2 + 20):
        content[i] ^= 0xFF
    path.write_bytes(content)


def test_cache_is_used(script, cache):
    assert run(script, cache)[:2] == ([1, 1], [])


def test_cache_that_cannot_be_written(script, tmp_path):
    # Below a regular file there can be no folder, not even for root.
    (tmp_path / "file").write_text("")
    hits, warned, folder = run(script, tmp_path / "file" / "sub")
    assert (hits, folder) == ([0, 0], None)
    assert len(warned) == 1
    assert "Every process compiles for itself" in warned[0] and "NUMBA_CACHE_DIR" in warned[0]
    assert str(tmp_path / "file" / "sub") in warned[0]


def test_no_folder_can_be_named(monkeypatch):
    def without_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(code_cache, "_cache_root", without_home)
    with pytest.warns(UserWarning, match=r"cannot be kept \(Could not determine home directory"):
        assert cache_directory.__wrapped__() is None


def test_names_of_files_say_what_code_is_compiled_for(monkeypatch):
    # Machines that share the folder may be of different kinds, and have other versions.
    processors = [SimpleNamespace(magic_tuple=lambda kind=kind: kind) for kind in ("old", "new")]

    def names():
        cache = code_cache.KernelCache(code_cache.load)
        kinds = itertools.product([("float32",), ("float64",)], processors)
        return {cache._name(*kind) for kind in kinds}

    before = names()
    assert before == names() and len(before) == 4
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert not before & names()


def test_code_of_other_functions_under_one_name_is_not_run(script, cache):
    edited = TINY.replace("x[i] *= 2", "x[i] += x[i]").replace("np.ones(3)", "np.ones(3) / 1")
    done = python(edited, file=script, timeout=120, NUMBA_CACHE_DIR=str(cache))
    assert json.loads(done.stdout)[:2] == [[2, 4, 6], [1, 0]], done.stderr


@pytest.mark.parametrize(
    "damage, damage_other",
    [(truncate, flip_bits), (empty, overwrite)],
)
def test_damaged_files_are_compiled_again_and_overwritten(script, cache, damage, damage_other):
    (code,), (other,) = cache.rglob("*add-*.kernel"), cache.rglob("*double-*.kernel")
    damage(code)
    damage_other(other)
    hits, warned, folder = run(script, cache)
    assert hits == [0, 0]
    # Once for both kernels.
    assert len(warned) == 1
    assert folder in warned[0] and "cannot be read" in warned[0]
    assert run(script, cache)[:2] == ([1, 1], [])


LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))
"""
UNLIMITED = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)"


def full_disk(most):
    """Return code that lets no file have more than ``most`` bytes, except for what is printed."""
    return {"BEFORE": LIMITED.format(most=most), "FINALLY": UNLIMITED}


@pytest.mark.skipif(os.name != "posix", reason="needs limits of resources")
def test_full_disk(script, tmp_path):
    cache = tmp_path / "cache"
    # The folder can be made, compiled code has no room.
    hits, warned, folder = run(script, cache, **full_disk(2_000))
    assert hits == [0, 0]
    assert len(warned) == 1
    assert folder in warned[0] and "cannot be written" in warned[0] and "full" in warned[0]
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert run(script, cache)[:2] == ([0, 0], [])
    assert run(script, cache)[0] == [1, 1]


@pytest.mark.skipif(os.name != "posix", reason="needs limits of resources")
def test_damaged_files_on_a_full_disk(script, cache):
    for file in cache.rglob("*.kernel"):
        overwrite(file)
    hits, warned, _ = run(script, cache, **full_disk(0))
    assert hits == [0, 0]
    assert len(warned) == 1


GONE = """
jit.cache_directory()
import shutil
shutil.rmtree(os.environ["NUMBA_CACHE_DIR"])
open(os.environ["NUMBA_CACHE_DIR"], "w").close()
"""


@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_folder_that_is_lost_after_import(script, cache, when):
    # A file in its place stops even root.
    hits, warned, folder = run(script, cache, **{when: GONE})
    assert hits == [0, 0]
    assert len(warned) == 1 and folder in warned[0]


IS_ROOT = os.name == "posix" and os.geteuid() == 0

# Modules that are imported for the first compiled function may belong to root too.
DROP_PRIVILEGES = """
import numba
numba.njit(lambda x: x)(1)
from freqfm._numba import code_cache as code_cache
from freqfm._numba import compiler
os.seteuid(65534)
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can drop privileges")
def test_privileges_dropped_after_import(script, cache):
    hits, warned, _ = run(script, cache, AFTER=DROP_PRIVILEGES)
    assert hits == [0, 0]
    assert len(warned) == 1 and "PermissionError" in warned[0]


# The package may be installed where only root can read it.
KNOWN_SOURCES = """
from freqfm._numba import code_cache
found = code_cache.source_hash("_numba")
code_cache.source_hash = lambda *folders: found
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can drop privileges")
def test_a_folder_of_root_is_read_by_others():
    # As in the image of a container that an administrator has made.
    with tempfile.TemporaryDirectory() as folder:
        script, cache = Path(folder) / "tiny.py", Path(folder) / "cache"
        script.write_text(TINY)
        assert run(script, cache)[0] == [0, 0]
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755)
        before = KNOWN_SOURCES + DROP_PRIVILEGES
        assert run(script, cache, BEFORE=before)[:2] == ([1, 1], [])


def test_a_folder_without_code_that_cannot_be_written_is_not_used(folders, monkeypatch):
    (*_, folder), ask = folders

    def refuse(path, *args, **kwargs):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.warns(UserWarning, match="cannot be kept .*Read-only file system"):
        assert ask() is None
    (folder / "fm_train-0.kernel").write_text("")
    assert ask() == folder


@pytest.mark.skipif(os.name != "posix", reason="needs rights of files")
def test_folder_that_others_may_write_to_is_refused(script, cache):
    (folder,) = (cache / "freqfm").iterdir()
    folder.chmod(0o777)
    hits, warned, used = run(script, cache)
    assert (hits, used) == ([0, 0], None)
    assert len(warned) == 1
    assert f"others may write to {folder}" in warned[0] and "NUMBA_CACHE_DIR" in warned[0]


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Return a cache's folders, from the root on, and a function that asks for its use."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(code_cache, "_warned", [])
    ask = cache_directory.__wrapped__
    folder = ask()
    return [folder.parents[1], folder.parent, folder], ask


@pytest.mark.skipif(os.name != "posix", reason="needs rights of files")
def test_folders_are_made_for_their_owner_alone(folders):
    (_, *created), ask = folders
    assert ask() == created[-1]
    assert [place.stat().st_mode & 0o777 for place in created] == [0o700, 0o700]


@pytest.mark.skipif(os.name != "posix", reason="needs rights of files")
@pytest.mark.parametrize("place, mode", [(0, 0o777), (1, 0o777), (1, 0o770), (2, 0o702)])
def test_rights_that_are_refused(folders, place, mode):
    places, ask = folders
    places[place].chmod(mode)
    with pytest.warns(UserWarning, match=f"others may write to {places[place]}, .*NUMBA_CACHE_DIR"):
        assert ask() is None


@pytest.mark.skipif(os.name != "posix", reason="needs rights of files")
@pytest.mark.parametrize("place, mode", [(0, 0o1777), (0, 0o775), (1, 0o755), (2, 0o755)])
def test_rights_that_are_taken(folders, place, mode):
    places, ask = folders
    places[place].chmod(mode)
    assert ask() == places[-1]


@pytest.mark.skipif(not IS_ROOT, reason="only root can give folders away")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_folder_of_another_user_is_refused(folders, place):
    places, ask = folders
    os.chown(places[place], 65534, -1)
    told = re.escape(f"{places[place]} belongs to another user (uid 65534)")
    with pytest.warns(UserWarning, match=told):
        assert ask() is None


def moved(place):
    """Move a folder away and leave a symbolic link to it."""
    elsewhere = place.with_name(f"{place.name}-elsewhere")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
@pytest.mark.parametrize("place", [1, 2])
def test_symbolic_links_are_refused(folders, place):
    # Of a link in a folder for all, as /tmp is, somebody else may be the owner.
    places, ask = folders
    moved(places[place])
    with pytest.warns(UserWarning, match=f"{places[place]} is a symbolic link.*NUMBA_CACHE_DIR"):
        assert ask() is None


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
def test_a_link_to_the_root_is_followed_once(folders, monkeypatch):
    places, ask = folders
    moved(places[0])
    folder = ask()
    monkeypatch.setattr(code_cache, "cache_directory", lambda: folder)
    places[0].unlink()
    places[0].symlink_to("/")
    assert code_cache.checked_directory() == folder
    assert folder.is_relative_to(places[0].with_name("cache-elsewhere"))


SWAPPED = """
folder = jit.cache_directory().parent
folder.rename(folder.with_name("old"))
folder.symlink_to(folder.with_name("old"))
"""
OPENED = "jit.cache_directory().chmod(0o777)"
MADE_AGAIN = """
import shutil
shutil.rmtree(jit.cache_directory().parent)
jit.cache_directory().mkdir(parents=True)
jit.cache_directory().parent.chmod(0o777)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs rights of files")
@pytest.mark.parametrize(
    "change, told",
    [
        (SWAPPED, "is a symbolic link"),
        (OPENED, "others may write to"),
        (MADE_AGAIN, "others may write to"),
    ],
)
def test_the_folder_is_checked_at_each_use(script, cache, change, told):
    hits, warned, folder = run(script, cache, AFTER=change)
    assert hits == [0, 0]
    assert len(warned) == 1 and told in warned[0] and folder in warned[0]
    if change is MADE_AGAIN:
        assert not list(Path(folder).iterdir())


def test_a_folder_that_is_deleted_is_made_again(script, cache):
    delete = "import shutil; shutil.rmtree(jit.cache_directory().parent)"
    hits, warned, folder = run(script, cache, AFTER=delete)
    assert (hits, warned) == ([0, 0], [])
    assert run(script, cache)[:2] == ([1, 1], [])
    if os.name == "posix":
        assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_the_environment_names_no_other_place_of_code(script, cache):
    # numba's variable for a class that chooses the folder.
    classes = {"NUMBA_CACHE_LOCATOR_CLASSES": "InTreeCacheLocator"}
    assert run(script, cache, **classes)[:2] == ([1, 1], [])


def archive(sources, folder):
    with zipfile.ZipFile(folder / "package.zip", "w") as file:
        for path in sources.rglob("*.py"):
            file.write(path, path.relative_to(sources.parent))
    return folder / "package.zip"


def bytecode(sources, folder):
    for path in sources.rglob("*.py"):
        name = path.relative_to(sources.parent)
        # As compileall names the files of a folder: relative to where it was run.
        py_compile.compile(path, folder / name.with_suffix(".pyc"), str(name), doraise=True)
    return folder


FIT = """
import json
import warnings
warnings.simplefilter("error")
import numpy as np
from freqfm import ALSRecommender
from freqfm._numba.jit import KERNELS, cache_directory

als = ALSRecommender(2, max_iter=1).fit(np.eye(3, dtype=np.float32))
used = [kernel for kernel in KERNELS if kernel.signatures]
hits = [sum(kernel.stats.cache_hits.values()) for kernel in used]
print(json.dumps([len(used), sum(hits), str(cache_directory())]))
"""


# The package has no files, and the executable is said to hold it.
FROZEN = """
import os, sys
from importlib import abc, util

root = sys.path.pop(0)

class Loader(abc.MetaPathFinder, abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "freqfm" and os.path.exists(self.path(name)):
            is_package = self.is_package(name)
            return util.spec_from_loader(name, self, origin="nowhere", is_package=is_package)

    def path(self, name):
        folder = os.path.join(root, *name.split("."))
        return os.path.join(folder, "__init__.py") if self.is_package(name) else f"{folder}.py"

    def is_package(self, name):
        return os.path.isdir(os.path.join(root, *name.split(".")))

    def get_source(self, name):
        return None

    def get_code(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return compile(file.read(), f"{name}.py", "exec", dont_inherit=True)

sys.meta_path.insert(0, Loader())
sys.frozen = True
"""


def frozen(sources, folder):
    return sources.parent


@pytest.mark.parametrize("pack", [archive, bytecode, frozen])
def test_code_of_a_package_without_sources_in_files_is_kept(pack, tmp_path):
    root = pack(ROOT / "freqfm", tmp_path)

    def fit(before=""):
        before += FROZEN if pack is frozen else ""
        done = python(before + FIT, root=root, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    n_kernels, n_hits, folder = fit()
    assert n_kernels and not n_hits and folder.startswith(str(tmp_path / "cache"))
    assert fit("import os; os.chdir('/')") == [n_kernels, n_kernels, folder]
