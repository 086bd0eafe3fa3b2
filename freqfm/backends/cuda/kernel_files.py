"""Compiled kernels on disk: a process that finds one does not compile it, which takes seconds.

They lie beside the compiled code of the CPU, in a folder named after the sources. Whatever goes
wrong with a file, the kernel is compiled.
"""

import contextlib
import hashlib
import os
import pickle
import platform
import zlib
from importlib import metadata

import numba

from freqfm._numba.jit import cache_directory, checked_directory

__all__ = ["load", "name_of", "save"]


def name_of(phases, kind, target):
    """Return the name of a kernel's file, or None if there is no folder for it.

    Parameters
    ----------
    phases : tuple of function
    kind : object
        What ``constants.kind_of`` returns.
    target : tuple of int
        The compute capability of the GPU, and the version of the CUDA toolkit.
    """
    if cache_directory() is None:
        return None
    versions = [platform.python_version(), numba.__version__]
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions.append(metadata.version("numba-cuda"))
    names = [f"{phase.__module__}.{phase.__name__}" for phase in phases]
    key = repr((names, kind, target, versions))
    return f"{names[0]}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.kernel"


def load(name):
    """Return what was saved under a name, or None."""
    with contextlib.suppress(Exception):
        return pickle.loads(zlib.decompress((checked_directory() / name).read_bytes()))
    return None


def save(name, code):
    """Save compiled code under a name, if that is possible."""
    with contextlib.suppress(Exception):
        content, path = zlib.compress(pickle.dumps(code), 1), checked_directory() / name
        # Other processes find all of it, or nothing.
        temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
