"""Compiled kernels on disk: a process that finds one does not compile it, which takes seconds.

They lie beside the compiled code of the CPU, and are named after the sources. Whatever goes wrong
with a file, the kernel is compiled.
"""

import contextlib
from importlib import metadata

from freqfm._numba import code_cache
from freqfm._numba.jit import cache_directory


def name_of(phases, kind, target):
    """Return the name of a kernel's file, or None if there is no folder for it.

    Parameters
    ----------
    phases : tuple of function
    kind : object
        What ``device.kind_of`` returns.
    target : tuple of int
        The compute capability of the GPU, and the version of the CUDA toolkit.
    """
    if cache_directory() is None:
        return None
    version = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("numba-cuda")
    names = [f"{phase.__module__}.{phase.__name__}" for phase in phases]
    sources = code_cache.source_hash(*code_cache.COMPILED)
    return code_cache.file_name(names[0], sources, names, kind, target, version)


def load(name):
    """Return the code saved under a name, or None."""
    with contextlib.suppress(Exception):
        return code_cache.load(name)
    return None


def save(name, code):
    """Save compiled code under a name, if that is possible."""
    with contextlib.suppress(Exception):
        code_cache.save(name, code)
