"""The decorators under every compiled function: ``scalar``, ``stage`` and ``kernel``.

Nothing compiles at import. A kernel compiles at its first call and is kept on disk, so that the
next process loads it. numba looks only at the file a kernel stands in to decide whether the
copy on disk is stale; an edited helper in another file would go unnoticed. The folder is
therefore named after a hash of all sources that are compiled.
"""

import contextlib
import functools
import hashlib
import os
import sys
from pathlib import Path

import numba
import numpy as np

__all__ = ["FASTMATH", "JIT_DISABLED", "KERNELS", "kernel", "n_signatures", "scalar", "stage"]

# Sums may be reordered, so that loops vectorise; NaN and infinity keep their meaning, because
# the training loop must see them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}

# Kernels allocate nothing, so they need no runtime to count references to arrays; with it, every
# inlined helper that takes arrays would touch their counters, which all threads share.
_OPTIONS = {"error_model": "numpy", "fastmath": FASTMATH, "_nrt": False}

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

#: The folders whose functions are compiled; nothing outside of them uses the decorators below.
COMPILED = ("kernels", "scalars")

#: Every kernel of the package, for the tests that count signatures.
KERNELS = []


def _source_hash():
    """Hash the sources that may be compiled: the version of the package's compiled code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in [Path(__file__), *sorted(p for f in COMPILED for p in (root / f).rglob("*.py"))]:
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_root():
    """Return the folder of all compiled code: numba's if the user named one, else the user's."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"])
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@functools.cache
def cache_directory():
    """Return the folder of this version's compiled code, or None if none can be written."""
    try:
        folder = _cache_root() / "freqfm" / _source_hash()
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError):
        return None
    return folder


@contextlib.contextmanager
def _numba_cache_in(folder):
    # numba chooses a kernel's folder when it is decorated; other packages keep their own.
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def scalar(function):
    """Compile a function of scalars, or of one row, into the kernels that call it."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def stage(function):
    """Compile a long part of several kernels once; they call it."""
    return numba.njit(**_OPTIONS)(function)


def kernel(function):
    """Compile a loop over arrays: without the GIL, cached on disk, one signature for ever."""
    if JIT_DISABLED:
        return _interpreted(function)
    folder = cache_directory()
    with _numba_cache_in(folder) if folder else contextlib.nullcontext():
        compiled = numba.njit(nogil=True, cache=folder is not None, **_OPTIONS)(function)
    KERNELS.append(compiled)
    return compiled


def _interpreted(function):
    """Run a kernel as plain Python, for debugging."""

    @functools.wraps(function)
    def run(*args):
        # Integers wrap around in silence.
        with np.errstate(over="ignore"):
            return function(*(_with_named_fields(arg) for arg in args))

    return run


def _with_named_fields(arg):
    """Let Python read a record's fields by name, as compiled code does."""
    if isinstance(arg, tuple):
        return type(arg)(*(_with_named_fields(part) for part in arg))
    is_record = isinstance(arg, np.ndarray) and arg.dtype.names
    return arg.view(np.recarray) if is_record else arg


def n_signatures():
    """Return how many signatures each kernel has been compiled for, by name."""
    return {k.__name__: len(k.signatures) for k in KERNELS}


# An integer or float literal promotes float32 to float64 in compiled code; these do not.
ZERO = np.float32(0)
HALF = np.float32(0.5)
ONE = np.float32(1)
