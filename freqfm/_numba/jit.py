"""The decorators of compiled functions: ``inlined``, ``subroutine``, ``kernel``, ``rolled_kernel``.

Nothing is compiled at import. A kernel is compiled at its first call and cached on disk, so that
the next process loads it. To decide whether a cached kernel is stale, numba looks only at the file
that defines it; a change to a helper in another file would go unnoticed. The folder is therefore
named after a hash of all sources that are compiled.

A user's own formula is compiled into a variant of each kernel that needs it, see
:func:`specialised`.
"""

import contextlib
import functools
import types

import numba
import numpy as np
from numba.core import event
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher
from numba.core.types import unliteral

from freqfm._numba.code_cache import (
    Fingerprint,
    KernelCache,
    cache_directory,
    checked_directory,
    is_of_library,
    names_used,
)

try:
    from freqfm._numba.compiler import InnerCompiler, KernelCompiler, RolledCompiler
except ImportError:  # a version of numba without what that file changes: compiling takes longer
    InnerCompiler = KernelCompiler = RolledCompiler = Compiler

__all__ = [
    "FASTMATH",
    "JIT_DISABLED",
    "KERNELS",
    "announced_compilation",
    "as_python",
    "cache_directory",
    "checked_directory",
    "compiling",
    "fingerprint_of",
    "inlined",
    "interpreted",
    "kernel",
    "n_signatures",
    "python_function",
    "rolled_kernel",
    "specialised",
    "subroutine",
    "translated",
]

# Sums may be reordered, so that loops vectorise; NaN and infinity keep their meaning, because
# the training loop must see them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}

# Kernels allocate nothing, so they need no runtime that counts references to arrays; with it, every
# inlined helper that takes arrays would update reference counts, which all threads share.
_OPTIONS = {"error_model": "numpy", "fastmath": FASTMATH, "_nrt": False}

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

#: Every kernel of the package, for the tests that count signatures.
KERNELS = []

# The Python function and the decorator of each compiled function.
_DECORATED = {}


@contextlib.contextmanager
def announced_compilation(wanted):
    """Print the name of each kernel that is compiled inside this context, if ``wanted``."""
    listener = _Announcer()
    if wanted:
        event.register("numba:compile", listener)
        event.register(_ELSEWHERE, listener)
    try:
        yield
    finally:
        if wanted:
            event.unregister("numba:compile", listener)
            event.unregister(_ELSEWHERE, listener)


# Compilation by other compilers, see ``compiling``.
_ELSEWHERE = "freqfm:compile"


def compiling(name):
    """Return a context manager for a block that compiles a kernel with another compiler."""
    return event.trigger_event(_ELSEWHERE, data={"name": name})


class _Announcer(event.Listener):
    def on_start(self, started):
        name = started.data.get("name")
        if started.data.get("dispatcher") in KERNELS:
            name = started.data["dispatcher"].__name__
        if name:
            print(f"compiling {name} (once)", flush=True)

    def on_end(self, ended):
        pass


class _Inner(CPUDispatcher):
    """A function that kernels call: compiled without an entry point from Python or C.

    Entry points would be a third of what the first fit compiles. A call from Python, as in tests,
    compiles the function again, with an entry point.
    """

    @functools.cached_property
    def _for_python(self):
        return numba.njit(**_OPTIONS)(self.py_func)

    def _compile_for_args(self, *args, **kwargs):
        return self._for_python

    def get_call_template(self, args, kws):
        """Return the signature of a call; functions are not compiled again for literal numbers."""
        args = [unliteral(kind) for kind in args]
        kws = {name: unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template(args, kws)

    def add_overload(self, compiled):
        """Store compiled code without registering it for calls from Python, which would crash."""
        self.overloads[tuple(compiled.signature.args)] = compiled


def _inner(function, **options):
    if JIT_DISABLED:
        return function
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {"nopython": True, "boundscheck": None, **wrappers, **_OPTIONS, **options}
    # What a user has written may print, which needs the environment that numba sets.
    ours = function.__module__.split(".")[0] == __name__.split(".")[0]
    pipeline = InnerCompiler if ours else Compiler
    return _Inner(py_func=function, targetoptions=options, pipeline_class=pipeline)


def _recorded(compiled, function, decorator):
    _DECORATED[compiled] = function, decorator
    return compiled


def inlined(function):
    """Compile a function of scalars, or of one row, into the kernels that call it."""
    return _recorded(_inner(function, forceinline=True), function, inlined)


def subroutine(function):
    """Compile a long part of several kernels once, as a function that they call."""
    return _recorded(_inner(function), function, subroutine)


def kernel(function, cached=True):
    """Compile a loop over arrays: without the GIL, cached on disk, with a single signature."""
    return _kernel(function, cached, KernelCompiler, kernel)


def rolled_kernel(function, cached=True):
    """Do what ``kernel`` does, without unrolling loops: for kernels that are no faster by it.

    They compile in a tenth to a sixth less time.
    """
    return _kernel(function, cached, RolledCompiler, rolled_kernel)


def _kernel(function, cached, pipeline, decorator):
    if JIT_DISABLED:
        return _recorded(_interpreted(function), function, decorator)
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, pipeline_class=pipeline, **_OPTIONS)(
        function
    )
    if cached and cache_directory() is not None:
        # The same as ``cache=True``, with a cache that cannot fail.
        compiled._cache = KernelCache(function)
    KERNELS.append(compiled)
    return _recorded(compiled, function, decorator)


def python_function(function):
    """Return the Python function behind a compiled one, or the function itself."""
    return getattr(function, "py_func", function)


_VARIANTS = {}


def specialised(compiled, replacements):
    """Return a kernel in which some of the functions that it calls are replaced.

    The kernel and all functions between it and the replaced ones are compiled again: once per
    combination in a process, and cached on disk if the replacements can be hashed. A function
    called by a replacement, such as one that a user has compiled by ``numba.njit``, is compiled
    with the options of the package's own functions, and inlined.

    Parameters
    ----------
    compiled : function
        A kernel, from :func:`kernel`.
    replacements : dict of function to function
        Python functions that replace inlined functions or subroutines, with the same arguments.

    Returns
    -------
    kernel : function
        ``compiled`` itself if it calls none of the replaced functions.
    """
    if not replacements:
        return compiled
    fingerprint = fingerprint_of(replacements)
    key = compiled, fingerprint.key
    if key not in _VARIANTS:
        variant = _Variant(replacements, fingerprint).of(compiled)
        # Values that cannot be hashed are identified by address and must stay alive.
        _VARIANTS[key] = variant, fingerprint.kept
    return _VARIANTS[key][0]


def fingerprint_of(replacements):
    """Return the Fingerprint of the ``replacements`` of :func:`specialised`."""
    fingerprint = Fingerprint()
    for replaced, function in replacements.items():
        fingerprint.add(_DECORATED[replaced][0].__name__)
        fingerprint.add(function)
    return fingerprint


class _Variant:
    """Rebuilds functions, with some of the functions that they call replaced."""

    def __init__(self, replacements, fingerprint):
        self._replacements = replacements
        self._suffix = f"_{fingerprint.key}"
        self._cached = not fingerprint.kept
        self._rebuilt = {}

    def of(self, function):
        """Return the variant of a function; a function that calls no replaced one is unchanged."""
        if function not in self._rebuilt:
            # A recursive function refers to its original.
            self._rebuilt[function] = function
            self._rebuilt[function] = self._rebuild(function)
        return self._rebuilt[function]

    def _rebuild(self, compiled):
        if compiled in self._replacements:
            decorator = _DECORATED[compiled][1]
            return decorator(self._copy(self._replacements[compiled], self._compilable))
        function, decorator = _DECORATED[compiled]
        if all(self.of(value) is value for value in names_used(function).values() if _ours(value)):
            return compiled
        variant = self._copy(function, lambda value: self.of(value) if _ours(value) else value)
        if decorator in (kernel, rolled_kernel):
            return decorator(variant, self._cached)
        return decorator(variant)

    def _compilable(self, value):
        """Return the version of a value, used by a replacement, to compile."""
        if _ours(value) or not _is_function(value) or is_of_library(value.__module__):
            return value
        if value not in self._rebuilt:
            self._rebuilt[value] = value
            self._rebuilt[value] = inlined(self._copy(python_function(value), self._compilable))
        return self._rebuilt[value]

    def _copy(self, function, changed):
        return _copied(function, changed, self._suffix)


def translated(function, decorate, replacements=types.MappingProxyType({})):
    """Return a function of the package for another compiler, with all functions that it calls.

    Parameters
    ----------
    function : function
        From :func:`inlined` or :func:`subroutine`.
    decorate : callable
        Compiles a Python function, such as ``numba.cuda.jit(device=True)``.
    replacements : dict of function to function, default={}
        As for :func:`specialised`.

    Returns
    -------
    function : object
        What ``decorate`` has returned.
    """
    return _Translation(decorate, replacements).of(function)


def as_python(function):
    """Return a function as plain Python, with all functions that it calls."""
    return _Translation(lambda python: python, {}).of_users(function)


@functools.cache
def interpreted(function):
    """Return a function of the package as plain Python, with all functions that it calls."""
    return as_python(function)


class _Translation:
    """Rebuilds functions for another compiler."""

    def __init__(self, decorate, replacements):
        self._decorate, self._replacements = decorate, replacements
        self._made = {}

    def of(self, value):
        """Return the translation of a function; other values are unchanged."""
        if not _ours(value):
            return value
        if value not in self._made:
            replaced = value in self._replacements
            python = self._replacements[value] if replaced else _DECORATED[value][0]
            self._made[value] = self._translate(python)
        return self._made[value]

    def _translate(self, python):
        return self._decorate(_copied(python, self.of_users, ""))

    def of_users(self, value):
        """Return the translation of a function that may be a user's."""
        if _ours(value) or not _is_function(value) or is_of_library(value.__module__):
            return self.of(value)
        if value not in self._made:
            self._made[value] = self._translate(python_function(value))
        return self._made[value]


def _copied(function, changed, suffix):
    """Return a copy of a Python function that uses ``changed(value)`` for each value.

    With a suffix it gets a unique name: the linker must not take one variant for another.
    """
    used = names_used(function)
    replaced = {name: changed(used[name]) for name in used if name in function.__globals__}
    cells = [types.CellType(changed(cell.cell_contents)) for cell in function.__closure__ or ()]
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    copy.__qualname__ = function.__qualname__.replace("<locals>", "of") + suffix
    return copy


def _ours(value):
    return _is_function(value) and value in _DECORATED


def _is_function(value):
    """Return whether compiled code can call a value: compiled by numba, or to be compiled."""
    return isinstance(value, (CPUDispatcher, types.FunctionType))


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
        parts = map(_with_named_fields, arg)
        return arg._make(parts) if hasattr(arg, "_make") else tuple(parts)
    is_record = isinstance(arg, np.ndarray) and arg.dtype.names
    return arg.view(np.recarray) if is_record else arg


def n_signatures():
    """Return how many signatures each kernel has been compiled for, by name."""
    return {k.__name__: len(k.signatures) for k in KERNELS}


# An integer or float literal promotes float32 to float64 in compiled code; these do not.
ZERO = np.float32(0)
HALF = np.float32(0.5)
ONE = np.float32(1)
