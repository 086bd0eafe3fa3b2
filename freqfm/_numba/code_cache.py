"""Compiled code on disk: where it is kept, when it is trusted, and what happens if it is damaged.

A fit never fails because of the cache. Code that cannot be read is compiled again and overwritten;
code that cannot be written is compiled again in the next process. Loading a file runs code from it,
so a folder that another user can write to is not used.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import stat
import sys
import types
from importlib import resources
from pathlib import Path

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)

from freqfm._memory import check_room
from freqfm._signals import hold_signals
from freqfm._warnings import warn_user

#: The folders whose functions are compiled; nothing outside of them uses the decorators.
COMPILED = ("_numba", "formulas", "backends")

_PACKAGE = __package__.partition(".")[0]

# What the machine code of a kernel takes at most, and numba with the first one.
_MEGABYTES = 24


def _source_hash():
    """Hash the sources that may be compiled: the version of the package's compiled code."""
    # The package may be in a zip archive, or be bytecode without sources.
    package = resources.files(_PACKAGE)
    files = {}
    with contextlib.suppress(FileNotFoundError):
        found = [path for path in package.iterdir() if path.name in COMPILED]
        files = dict(file for path in found for file in _sources(path, path.name))
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode())
        digest.update(path.read_bytes())
    if not files and getattr(sys, "frozen", False):
        # An application in one executable, which holds the package.
        status = os.stat(sys.executable)
        digest.update(repr((status.st_size, status.st_mtime_ns)).encode())
    elif not files:
        raise FileNotFoundError("the package has no files that tell one version from another")
    return digest.hexdigest()[:16]


def _sources(path, name):
    """Yield names and paths of a module, or of all in a folder."""
    if not path.is_dir():
        if name.endswith((".py", ".pyc")):
            yield name, path
    elif path.name != "__pycache__":
        for inner in path.iterdir():
            yield from _sources(inner, f"{name}/{inner.name}")


def _cache_root():
    """Return the root folder of compiled code: NUMBA_CACHE_DIR if set, else the user's cache."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"])
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@functools.cache
def cache_directory():
    """Return the folder for this version's compiled code, or None if no folder can be used."""
    try:
        # Not the link itself, if it is one: it may be pointed elsewhere later.
        folder = Path(os.path.realpath(_cache_root())) / "freqfm" / _source_hash()
        objection = _objection(folder)
        if objection:
            warn_user(
                f"Compiled code is neither read from nor kept in {folder}: {objection}. Every "
                f"process compiles for itself. Delete that folder or link, or set the environment "
                f"variable NUMBA_CACHE_DIR to a folder that only you can write to."
            )
            return None
        if not _has_code(folder):
            probe = folder / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
    except (OSError, RuntimeError) as error:
        warn_user(
            f"Compiled code cannot be kept ({error}). Every process compiles for itself, for some "
            f"seconds. Set the environment variable NUMBA_CACHE_DIR to a folder that you can write "
            f"to."
        )
        return None
    return folder


def checked_directory():
    """Return the folder of :func:`cache_directory`, to be used at once.

    Raises
    ------
    OSError
        If another user could put files into it by now: it may have been deleted, and made again by
        somebody else.
    """
    objection = _objection(cache_directory())
    if objection:
        raise PermissionError(objection)
    return cache_directory()


def _has_code(folder):
    """Return whether there is code to read, though perhaps none can be written."""
    return any(entry.is_dir() for entry in folder.iterdir())


def _objection(folder):
    """Make a folder if there is none; return why another user could put files into it, or None."""
    root = folder.parents[1]
    root.mkdir(parents=True, exist_ok=True)
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True)
    if os.name != "posix":
        return None
    # A group may write to ``root``: on some systems each user has a private group, and new folders
    # are group-writable. The folders below ``root`` are created here.
    for place, writable in (
        (root, stat.S_IWOTH),
        (folder.parent, stat.S_IWOTH | stat.S_IWGRP),
        (folder, stat.S_IWOTH | stat.S_IWGRP),
    ):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            return f"{place} is a symbolic link, which may be pointed elsewhere"
        if status.st_uid not in (os.geteuid(), 0):
            return (
                f"{place} belongs to another user (uid {status.st_uid}), who could put code there"
            )
        sticky = place == root and status.st_mode & stat.S_ISVTX
        if status.st_mode & writable and not sticky:
            return f"others may write to {place}, and could put code there"
    return None


class _Locator(UserProvidedCacheLocator):
    """Puts all kernels under one folder, without looking at it once for each of them.

    The folder is named after the package's sources, so its kernels need neither the path of a file,
    which bytecode may have from another machine, nor numba's stamp of that file.
    """

    def __init__(self, py_func):
        self._py_file, module = inspect.getfile(py_func), py_func.__module__
        self._lineno = py_func.__code__.co_firstlineno
        self._is_ours = module.startswith(f"{_PACKAGE}.")
        subpath = module if self._is_ours else self.get_suitable_cache_subpath(self._py_file)
        self._cache_path = str(cache_directory() / subpath)

    def ensure_cache_path(self):
        os.makedirs(self.get_cache_path(), mode=0o700, exist_ok=True)

    def get_source_stamp(self):
        """Return numba's stamp of a file of others."""
        return None if self._is_ours else super().get_source_stamp()


class _Impl(CompileResultCacheImpl):
    # numba's constructor would let the environment choose another folder, which is not checked.
    def __init__(self, py_func):
        self._lineno = py_func.__code__.co_firstlineno
        self._locator = _Locator(py_func)
        module = py_func.__module__.rpartition(".")[2]
        self._filename_base = self.get_filename_base(
            f"{module}.{py_func.__qualname__}", getattr(sys, "abiflags", "")
        )


class _CheckedFile(IndexDataCacheFile):
    """Stores a checksum with the code, and what it was compiled for.

    LLVM would accept damaged code and run it. The index and the code are two files: of machines of
    different kinds that share a folder and write at once, one may leave the index, the other the
    code.
    """

    def save(self, key, data):
        """Save compiled code; the key says what it was compiled for."""
        super().save(key, (key, data))

    def load(self, key):
        """Return compiled code, or None."""
        found = super().load(key)
        if found is None:
            return None
        compiled_for, data = found
        if compiled_for != key:
            raise ValueError("it was compiled for something else")
        return data

    def _save_data(self, name, data):
        code = self._dump(data)
        super()._save_data(name, (hashlib.sha256(code).digest(), code))

    def _load_data(self, name):
        checksum, code = super()._load_data(name)
        if hashlib.sha256(code).digest() != checksum:
            raise ValueError(f"the checksum of {name} is wrong")
        return pickle.loads(code)


class KernelCache(FunctionCache):
    """numba's cache of a function; a damaged file or a full disk never raises.

    Parameters
    ----------
    py_func : function
        The function to compile; :func:`cache_directory` is not None.
    """

    _impl_class = _Impl

    def __init__(self, py_func):
        super().__init__(py_func)
        locator, name = self._impl.locator, self._impl.filename_base
        self._cache_file = _CheckedFile(self.cache_path, name, locator.get_source_stamp())

    # LLVM calls functions of Python, and errors are caught here: the exception of a signal that
    # arrived meanwhile would be lost.

    def load_overload(self, sig, target_context):
        """Return the compiled code on disk, or None if there is none or it is damaged."""
        check_room(_MEGABYTES, "compiled code")
        with hold_signals():
            return self._load(sig, target_context)

    def save_overload(self, sig, data):
        """Write to disk, if possible."""
        with hold_signals():
            try:
                checked_directory()
                super().save_overload(sig, data)
            except Exception as error:
                _warn_once("written", error)

    def _load(self, sig, target_context):
        try:
            checked_directory()
            return super().load_overload(sig, target_context)
        except Exception as error:
            _warn_once("read", error)
        try:
            checked_directory()
            # Without an index, what is compiled now replaces the files on disk.
            self.flush()
        except Exception as error:
            _warn_once("written", error)
        return None


def is_of_library(module):
    """Return whether numba has its own implementation of what a module, by its name, holds."""
    return module.partition(".")[0] in ("cmath", "math", "numba", "numpy")


def _names_in(function):
    """Return the names of globals and attributes in a Python function and in those inside it."""
    names, codes = set(), [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        names.update(code.co_names)
    return names


def names_used(function):
    """Return the names that a Python function looks up outside itself: globals and closures."""
    namespace = function.__globals__
    found = {name: namespace[name] for name in _names_in(function) if name in namespace}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return found | {name: cell.cell_contents for name, cell in cells}


class Fingerprint:
    """A hash of functions: their bytecode, their constants, and everything they use, recursively.

    Attributes
    ----------
    kept : list
        Values that cannot be hashed by content and are hashed by address instead. A fingerprint
        with any of these is useless to another process; in this one they must stay alive.
    """

    def __init__(self):
        self._digest = hashlib.sha256()
        self._seen = set()
        self.kept = []

    @property
    def key(self):
        """The hash."""
        return self._digest.hexdigest()[:16]

    def add(self, value):
        """Add a function, or any other value."""
        python = getattr(value, "py_func", value)
        if isinstance(value, types.ModuleType):
            self._write("module", value.__name__)
        elif isinstance(python, types.FunctionType):
            self._add_function(python)
        else:
            try:
                self._write(type(value).__name__, pickle.dumps(value))
            except Exception:
                self._write("object", id(value))
                self.kept.append(value)

    def _add_function(self, function):
        if function in self._seen:
            # A recursive function.
            self._write("again", function.__qualname__)
            return
        self._seen.add(function)
        self._write("function", function.__module__, function.__qualname__, function.__defaults__)
        self._add_code(function.__code__)
        names = sorted(_names_in(function))
        for name, value in sorted(names_used(function).items()):
            self._add_used(name, value, names)

    def _add_code(self, code):
        self._write("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        for value in code.co_consts:
            if isinstance(value, types.CodeType):
                self._add_code(value)
            else:
                self._write("constant", repr(value))

    def _add_used(self, name, value, names):
        """Add what a function uses; of a user's module, all that has one of these names."""
        self._write("name", name)
        self.add(value)
        if not isinstance(value, types.ModuleType) or is_of_library(value.__name__):
            return
        for attribute in names:
            if hasattr(value, attribute) and (value, attribute) not in self._seen:
                self._seen.add((value, attribute))
                self._add_used(attribute, getattr(value, attribute), names)

    def _write(self, *parts):
        self._digest.update(repr(parts).encode())


_warned = []


def _warn_once(what, error):
    """Warn once per process that the cache does not work."""
    if _warned:
        return
    _warned.append(what)
    warn_user(
        f"Compiled code in {cache_directory()} cannot be {what} ({type(error).__name__}: {error}). "
        f"It is compiled again, and damaged files are overwritten where that is possible. If this "
        f"happens again, delete the folder and check whether the disk is full."
    )
