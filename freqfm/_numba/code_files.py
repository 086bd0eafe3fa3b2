"""Files of compiled code, for processors and for GPUs.

A fit never fails because of them. Code that cannot be read is compiled again and overwritten; code
that cannot be written is compiled again in the next process.
"""

import hashlib
import os
import pickle
import platform
import zlib

import numba
from numba.core.compiler import CompileResult

from freqfm._memory import check_room
from freqfm._numba.code_cache import PACKAGE, Fingerprint, cache_directory, checked_directory
from freqfm._signals import hold_signals
from freqfm._warnings import warn_user

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

    The folder is named after the package's sources, so files need no stamp of these.

    Parameters
    ----------
    function : function
        The function to compile; :func:`cache_directory` is not None.
    """

    def __init__(self, function):
        self.cache_path = str(cache_directory())
        self._begins, self._key = f"{function.__module__}.{function.__name__}", None
        if not function.__module__.startswith(f"{PACKAGE}."):
            fingerprint = Fingerprint()
            fingerprint.add(function)
            self._key = fingerprint.key
        self._key = self._key, function.__qualname__, function.__code__.co_firstlineno

    def _name(self, signature, codegen):
        return file_name(self._begins, self._key, signature, codegen.magic_tuple())

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
