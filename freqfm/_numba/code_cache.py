"""Compiled code on disk, for processors and GPUs.

The folder of compiled code: its place, and checks of its owner; hashes of compiled functions.

Loading a file runs code from it, so a folder that another user can write to is not used.

Files of compiled code, for processors and for GPUs.

A fit never fails because of them. Code that cannot be read is compiled again and overwritten; code
that cannot be written is compiled again in the next process.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import stat
import sys
import types
import zlib
from importlib import resources
from pathlib import Path

import numba
from numba.core.compiler import CompileResult

from freqfm._machine import check_room
from freqfm._messages import warn_user
from freqfm._signals import hold_signals

#: The folders whose functions are compiled; nothing outside of them uses the decorators.
COMPILED = ("_numba", "formulas", "backends")

#: The name of the package.
PACKAGE = __package__.partition(".")[0]


@functools.cache
def source_hash(*folders):
    """Hash the sources in folders of the package."""
    # The package may be in a zip archive, or be bytecode without sources.
    package = resources.files(PACKAGE)
    files = {}
    with contextlib.suppress(FileNotFoundError):
        for name in folders:
            files.update(_sources(package / name, name))
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
    """Return the folder for what this compiler has compiled, or None if no folder can be used."""
    try:
        # Not the link itself, if it is one: it may be pointed elsewhere later.
        folder = Path(os.path.realpath(_cache_root())) / "freqfm" / source_hash("_numba")
        _check(folder)
        # Where there is code to read, none needs to be written.
        if all(entry.name.startswith(".") for entry in folder.iterdir()):
            probe = folder / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
    except (OSError, RuntimeError) as error:
        warn_user(
            f"Compiled code cannot be kept ({error}). Every process compiles for itself, for some "
            f"seconds. Set the environment variable NUMBA_CACHE_DIR to a folder that you can write "
            f"to and others cannot, or delete a folder or link that others could use."
        )
        return None
    return folder


def checked_directory():
    """Return the folder of :func:`cache_directory`, to be used at once.

    Raises
    ------
    OSError
        If another user can put files into it, for instance since it was deleted and created again
        by another user.
    """
    _check(cache_directory())
    return cache_directory()


def _check(folder):
    """Make a folder if there is none; refuse one that another user could put files into."""
    root = folder.parents[1]
    root.mkdir(parents=True, exist_ok=True)
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True)
    if os.name != "posix":
        return
    # A group may write to ``root``: on some systems each user has a private group, and new folders
    # are group-writable. The folders below ``root`` are created here.
    for place, writable in (
        (root, stat.S_IWOTH),
        (folder.parent, stat.S_IWOTH | stat.S_IWGRP),
        (folder, stat.S_IWOTH | stat.S_IWGRP),
    ):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise PermissionError(f"{place} is a symbolic link, which may be pointed elsewhere")
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(
                f"{place} belongs to another user (uid {status.st_uid}), who could put code there"
            )
        sticky = place == root and status.st_mode & stat.S_ISVTX
        if status.st_mode & writable and not sticky:
            raise PermissionError(f"others may write to {place}, and could put code there")


def is_of_library(module):
    """Return whether numba or LLVM has its own implementation of what a module, by name, holds."""
    return module.partition(".")[0] in ("cmath", "llvmlite", "math", "numba", "numpy")


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

    def __init__(self, *values):
        self._digest = hashlib.sha256()
        self._seen = set()
        self.kept = []
        for value in values:
            self.add(value)

    @property
    def key(self):
        """The hash."""
        return self._digest.hexdigest()[:16]

    def add(self, value):
        """Add a function, or any other value."""
        # The Python function of a compiled one, or of an intrinsic.
        python = getattr(value, "py_func", getattr(value, "_defn", value))
        if isinstance(value, types.ModuleType):
            self._write("module", value.__name__)
        elif isinstance(python, types.FunctionType):
            # Whether it is inlined.
            self._write(getattr(value, "targetoptions", {}).get("forceinline"))
            self._add_function(python)
        elif isinstance(value, numba.types.ExternalFunction):
            self._write("external", value.symbol, str(value.sig))
        else:
            # Classes are pickled by their names; code has places of fields, and values of members.
            kind = value if isinstance(value, type) else type(value)
            held = getattr(kind, "_fields", getattr(kind, "__members__", None))
            try:
                self._write(type(value).__name__, pickle.dumps(value), held)
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
        """Add the values that a function uses; of a user's module, all values with these names."""
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


# Most memory for the machine code of a kernel, and for numba with the first kernel.
_MEGABYTES = 24


def file_name(begins, *key):
    """Return the name of a file: that of a function, and a hash of what it is compiled for."""
    key = repr((key, platform.python_version(), numba.__version__))
    return f"{begins}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.kernel"


def load(name):
    """Return the code saved under a name, or None. Damaged files are errors, of any kind.

    LLVM would accept damaged code and run it: what is compressed has a checksum.
    """
    try:
        content = (checked_directory() / name).read_bytes()
    except FileNotFoundError:
        return None
    return pickle.loads(zlib.decompress(content))


def save(name, code):
    """Save compiled code under a name; other processes find all of it, or nothing."""
    try:
        content = pickle.dumps(code)
    except (pickle.PicklingError, AttributeError):
        # It is for a type that other processes cannot import, such as one defined in a function.
        return
    content, path = zlib.compress(content, 1), checked_directory() / name
    temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class KernelCache:
    """The files of a kernel, as numba's dispatcher takes them: one for each kind of arguments.

    A file is named after all that a kernel calls, and the folder after the sources of what compiles
    it: a new version of the package compiles the kernels that it changes.

    Parameters
    ----------
    function : function
        The function to compile; :func:`cache_directory` is not None.
    """

    def __init__(self, function):
        self.cache_path = str(cache_directory())
        self._function = function

    def _name(self, signature, codegen):
        key = Fingerprint(self._function).key, _described(signature), codegen.magic_tuple()
        return file_name(f"{self._function.__module__}.{self._function.__name__}", *key)

    # LLVM calls functions of Python, and errors are caught here: the exception of a signal that
    # arrived meanwhile would be lost.

    def load_overload(self, signature, context):
        """Return the compiled code on disk, or None if there is none or it is damaged."""
        check_room(_MEGABYTES, "compiled code")
        with hold_signals():
            try:
                context.refresh()
                parts = load(self._name(signature, context.codegen()))
                return parts and CompileResult._rebuild(context, *parts)
            except Exception as error:
                _warn_once("read", error)
        return None

    def save_overload(self, signature, compiled):
        """Write to disk, if possible."""
        if compiled.library.has_dynamic_globals:
            # Addresses, or large arrays of a user's formula.
            return
        with hold_signals():
            try:
                save(self._name(signature, compiled.codegen), compiled._reduce())
            except Exception as error:
                _warn_once("written", error)


def _described(kind):
    """Return a type of numba, or several, with the classes and fields of named tuples inside."""
    inner = kind if isinstance(kind, tuple) else getattr(kind, "types", ())
    of_class = getattr(kind, "instance_class", None), getattr(kind, "fields", None)
    return str(kind), of_class, [_described(part) for part in inner]


def keep_on_disk(compiled):
    """Let a kernel be kept on disk: as ``cache=True`` does, with a cache that cannot fail."""
    _ = compiled._cache, CompileResult._rebuild, CompileResult._reduce  # as they are named now
    compiled._cache = KernelCache(compiled.py_func)


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
