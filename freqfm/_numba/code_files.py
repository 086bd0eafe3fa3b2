"""Files of compiled code, by classes of numba.

A fit never fails because of them. Code that cannot be read is compiled again and overwritten; code
that cannot be written is compiled again in the next process.
"""

import hashlib
import inspect
import os
import pickle
import sys

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)

from freqfm._memory import check_room
from freqfm._numba.code_cache import PACKAGE, cache_directory, checked_directory
from freqfm._signals import hold_signals
from freqfm._warnings import warn_user

# What the machine code of a kernel takes at most, and numba with the first one.
_MEGABYTES = 24


class _Locator(UserProvidedCacheLocator):
    """Puts all kernels under one folder, without looking at it once for each of them.

    The folder is named after the package's sources, so its kernels need neither the path of a file,
    which bytecode may have from another machine, nor numba's stamp of that file.
    """

    def __init__(self, py_func):
        self._py_file, module = inspect.getfile(py_func), py_func.__module__
        self._lineno = py_func.__code__.co_firstlineno
        self._is_ours = module.startswith(f"{PACKAGE}.")
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

    def load_overload(self, *signature):
        """Return the compiled code on disk, or None if there is none or it is damaged."""
        check_room(_MEGABYTES, "compiled code")
        with hold_signals():
            return self._load(*signature)

    def save_overload(self, *compiled):
        """Write to disk, if possible."""
        with hold_signals():
            try:
                checked_directory()
                super().save_overload(*compiled)
            except Exception as error:
                _warn_once("written", error)

    def _load(self, *signature):
        try:
            checked_directory()
            return super().load_overload(*signature)
        except Exception as error:
            _warn_once("read", error)
        try:
            checked_directory()
            # Without an index, what is compiled now replaces the files on disk.
            self.flush()
        except Exception as error:
            _warn_once("written", error)
        return None


def keep_on_disk(compiled):
    """Let a kernel be kept on disk: as ``cache=True`` does, with a cache that cannot fail."""
    _ = compiled._cache  # which numba may have renamed
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
