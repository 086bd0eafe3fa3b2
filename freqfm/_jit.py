"""The decorators under every compiled function: ``inlined``, ``subroutine`` and ``kernel``.

Nothing compiles at import. A kernel compiles at its first call and is kept on disk, so that the
next process loads it. numba looks only at the file a kernel stands in to decide whether the
copy on disk is stale; an edited helper in another file would go unnoticed. The folder is
therefore named after a hash of all sources that are compiled.
"""

import contextlib
import functools

import numba
import numpy as np
from numba.core import event
from numba.core.registry import CPUDispatcher

from freqfm._code_cache import KernelCache, cache_directory

__all__ = [
    "FASTMATH",
    "JIT_DISABLED",
    "KERNELS",
    "announced_compilation",
    "cache_directory",
    "inlined",
    "kernel",
    "n_signatures",
    "subroutine",
]

# Sums may be reordered, so that loops vectorise; NaN and infinity keep their meaning, because
# the training loop must see them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}

# Kernels allocate nothing, so they need no runtime to count references to arrays; with it, every
# inlined helper that takes arrays would touch their counters, which all threads share.
_OPTIONS = {"error_model": "numpy", "fastmath": FASTMATH, "_nrt": False}

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

#: Every kernel of the package, for the tests that count signatures.
KERNELS = []


@contextlib.contextmanager
def announced_compilation(wanted):
    """Print the name of each kernel that compiles inside of this context, if that is wanted."""
    listener = _Announcer()
    if wanted:
        event.register("numba:compile", listener)
    try:
        yield
    finally:
        if wanted:
            event.unregister("numba:compile", listener)


class _Announcer(event.Listener):
    def on_start(self, started):
        if started.data["dispatcher"] in KERNELS:
            print(f"compiling {started.data['dispatcher'].__name__} (once)", flush=True)

    def on_end(self, ended):
        pass


class _Inner(CPUDispatcher):
    """A function that kernels call: compiled without a way in from Python, or from C.

    These would be a third of what the first fit compiles. Where Python does call it, which only
    tests do, it is compiled once more, with a way in.
    """

    @functools.cached_property
    def _for_python(self):
        return numba.njit(**_OPTIONS)(self.py_func)

    def _compile_for_args(self, *args, **kwargs):
        return self._for_python

    def add_overload(self, compiled):
        """Keep what was compiled from Python, which would find it by its types and crash."""
        self.overloads[tuple(compiled.signature.args)] = compiled


def _inner(function, **options):
    if JIT_DISABLED:
        return function
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {"nopython": True, "boundscheck": None, **wrappers, **_OPTIONS, **options}
    return _Inner(py_func=function, targetoptions=options)


def inlined(function):
    """Compile a function of scalars, or of one row, into the kernels that call it."""
    return _inner(function, forceinline=True)


def subroutine(function):
    """Compile a long part of several kernels once; they call it."""
    return _inner(function)


def kernel(function):
    """Compile a loop over arrays: without the GIL, cached on disk, with a single signature."""
    if JIT_DISABLED:
        return _interpreted(function)
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
    if cache_directory() is not None:
        # What ``cache=True`` does, with a cache that cannot fail.
        compiled._cache = KernelCache(function)
    KERNELS.append(compiled)
    return compiled


def _interpreted(function):
    """Run a kernel as plain Python, for debugging."""

    @functools.wraps(function)
    def run(*args):
        # Integer overflow wraps around without a warning.
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
