"""The decorators of compiled functions: ``inlined``, ``subroutine``, ``kernel``.

Nothing is compiled at import. A kernel is compiled at its first call and cached on disk, so that
the next process loads it. To decide whether a cached kernel is stale, numba looks only at the file
that defines it; a change to a helper in another file would go unnoticed. The code is therefore kept
under a hash of all functions that the kernel calls.

A user's own formula is compiled into a variant of each kernel that needs it, see
:func:`specialised`.
"""

import contextlib
import functools
import itertools
import types

import numba
import numpy as np
from numba.core.compiler import Compiler
from numba.extending import is_jitted

from freqfm._machine import check_room
from freqfm._messages import cut, warn_once, warn_user
from freqfm._numba.code_cache import (
    PACKAGE,
    Fingerprint,
    cache_directory,
    is_of_library,
    names_used,
)
from freqfm._numba.extremes import with_own_extremes

# Sums may be reordered, so that loops vectorise; NaN and infinity keep their meaning, because
# the training loop must see them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def _known(**options):
    """Return options of ``numba.njit``, without those that this version of numba does not know."""
    try:
        from numba.core.registry import cpu_target

        return {name: options[name] for name in options if hasattr(cpu_target.options, name)}
    except Exception:
        return {}


# Kernels allocate nothing, so they need no runtime that counts references to arrays; with it, every
# inlined helper that takes arrays would update reference counts, which all threads share.
_OPTIONS = {"error_model": "numpy", "fastmath": FASTMATH, **_known(_nrt=False)}
_OF_KERNELS = {"nogil": True, **_known(no_cfunc_wrapper=True), **_OPTIONS}
_INLINED = _known(forceinline=True)
# Set explicitly: a function takes other options from the function that calls it first.
_CALLED = _known(forceinline=False)

# Memory for the compilation of the largest kernel.
_MEGABYTES = 96

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

#: Every kernel of the package, for the tests that count signatures.
KERNELS = []

# The Python function and the decorator of each compiled function.
_DECORATED = {}


@contextlib.contextmanager
def announced_compilation(wanted):
    """Print the name of each kernel that is compiled inside this context, if ``wanted``."""
    _announced.append(wanted)
    try:
        yield
    finally:
        _announced.remove(wanted)


# For each fit that is going on, whether it announces what is compiled.
_announced = []


def announce(name):
    """Print the name of a kernel that is about to be compiled, if a fit wants it."""
    if any(_announced):
        print(f"compiling {name} (once)", flush=True)


def _cheaper():
    """Return the module of the cheaper compiler, or None if this numba does not support it."""
    if not _failures:
        try:
            from freqfm._numba import compiler

            return compiler
        except Exception as error:
            _give_up(error)
    return None


# Why the cheaper compiler is not used any more.
_failures = []


def _give_up(error):
    _failures.append(error)
    warn_user(
        f"numba {numba.__version__} has changed what freqfm compiles faster with "
        f"({type(error).__name__}: {cut(str(error))}). Everything is compiled by numba alone: "
        f"results differ by rounding only, first fits take three to four times as long. Install a "
        f"version of numba that freqfm requires."
    )


class _KernelPipeline:
    """Compiles a kernel for numba: by the cheaper compiler or, if that fails, by numba's alone."""

    def __init__(self, *given):
        self._given = given

    def compile_extra(self, function):
        """Return the compiled code of a Python function."""
        announce(function.__name__)
        check_room(_MEGABYTES, "a kernel that has to be compiled")
        cheaper, failure = _cheaper(), None
        if cheaper:
            try:
                return cheaper.compile_kernel(self._given, function)
            except MemoryError:
                raise
            except Exception as error:
                failure = error
        try:
            # Functions that are not inlined would have one symbol in all kernels, and the code of
            # whichever kernel a process loads first.
            copies = _Copies(lambda inner, _: _inlined_by_numba(inner))
            function = with_own_extremes(copies.copied(function), _inlined_by_numba)
            compiled = Compiler(*self._given).compile_extra(function)
        except Exception as error:
            if "NRT required" not in str(error):
                raise
            # It names the line, but does not say what is wrong with it.
            raise TypeError(
                f"A formula makes a list, an array or a string, for which kernels have no memory; "
                f"use numbers and tuples of numbers only. numba reports:\n{error}"
            ) from None
        if failure:
            _give_up(failure)
        return compiled


def _inlined_by_numba(function):
    return numba.njit(**_INLINED, **_OPTIONS)(with_own_extremes(function, _inlined_by_numba))


def _inner(function, **options):
    if JIT_DISABLED:
        return function
    cheaper = _cheaper()
    if cheaper:
        # Functions of users may print, which needs the environment that numba sets.
        ours = function.__module__.split(".")[0] == PACKAGE
        try:
            return cheaper.inner_function(function, {**_OPTIONS, **options}, ours)
        except Exception as error:
            _give_up(error)
    return numba.njit(**_OPTIONS, **options)(function)


def _recorded(compiled, function, decorator):
    _DECORATED[compiled] = function, decorator
    return compiled


def inlined(function):
    """Compile a function of scalars, or of one row, into the kernels that call it."""
    return _recorded(_inner(function, **_INLINED), function, inlined)


def subroutine(function):
    """Compile a long part of several kernels once, as a function that they call."""
    return _recorded(_inner(function, **_CALLED), function, subroutine)


def kernel(function, cached=True):
    """Compile a loop over arrays: without the GIL, cached on disk, with a single signature."""
    if JIT_DISABLED:
        return _recorded(_interpreted(function), function, kernel)
    compiled = numba.njit(pipeline_class=_KernelPipeline, **_OF_KERNELS)(function)
    if cached and cache_directory() is not None:
        _keep_on_disk(compiled)
    KERNELS.append(compiled)
    return _recorded(compiled, function, kernel)


def _keep_on_disk(compiled):
    try:
        from freqfm._numba.code_cache import keep_on_disk

        keep_on_disk(compiled)
    except Exception as error:
        warn_once(
            f"numba {numba.__version__} has changed how compiled code is kept on disk "
            f"({type(error).__name__}: {cut(str(error))}). Every process compiles for itself."
        )


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
    given = compiled, *replacements.items()
    if given in _VARIANTS:
        return _VARIANTS[given][0]
    fingerprint = fingerprint_of(replacements)
    key = compiled, fingerprint.key
    if key not in _VARIANTS:
        cached = not fingerprint.kept

        def decorate(function, decorator):
            options = {"cached": cached} if decorator is kernel else {}
            return decorator(function, **options)

        variant = _Copies(decorate, replacements, f"_{fingerprint.key}").of(compiled)
        # Values that cannot be hashed are identified by address and must stay alive.
        _VARIANTS[key] = variant, fingerprint.kept
    # What users' functions do may change from call to call, and is hashed again.
    if all(_is_constant(function) for function in replacements.values()):
        _VARIANTS[given] = _VARIANTS[key]
    return _VARIANTS[key][0]


def _is_constant(function):
    """Return whether a function is one of the package's, at the level of its module."""
    return function.__module__.startswith("freqfm.") and "<locals>" not in function.__qualname__


def fingerprint_of(replacements):
    """Return the Fingerprint of the ``replacements`` of :func:`specialised`."""
    pairs = ((_DECORATED[old][0].__name__, new) for old, new in replacements.items())
    return Fingerprint(*itertools.chain.from_iterable(pairs))


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
    return _Copies(lambda python, _: decorate(python), replacements).of(function)


def as_python(function):
    """Return a function as plain Python, with all functions that it calls."""
    return translated(function, lambda python: python)


class _Copies:
    """Copies of functions, which call copies of the functions that these call.

    Parameters
    ----------
    decorate : callable of (function, decorator)
        Compiles a copy; ``decorator`` is that of the function copied.
    replacements : dict of function to function
        What is copied in place of some functions.
    suffix : str, default=None
        If given, it is added to names: the linker must not take one copy for another. Functions of
        the package that call no replaced one are not copied then.
    """

    def __init__(self, decorate, replacements=types.MappingProxyType({}), suffix=None):
        self._decorate, self._replacements, self._suffix = decorate, replacements, suffix
        self._made = {}

    def of(self, value):
        """Return the copy of a function; other values, and functions of numba, are unchanged."""
        if not _ours(value) and (not _is_function(value) or is_of_library(value.__module__)):
            return value
        if value not in self._made:
            # A recursive function refers to its original.
            self._made[value] = value
            self._made[value] = self._made_from(value)
        return self._made[value]

    def _made_from(self, value):
        function, decorator = _DECORATED.get(value, (python_function(value), inlined))
        if value in self._replacements:
            return self._decorate(self.copied(self._replacements[value]), decorator)
        if self._suffix is not None and _ours(value):
            used = names_used(function).values()
            if all(self.of(called) is called for called in used):
                return value
        return self._decorate(self.copied(function), decorator)

    def copied(self, function):
        """Return a copy of a Python function that calls copies."""
        used = names_used(function)
        replaced = {name: self.of(used[name]) for name in used if name in function.__globals__}
        cells = [types.CellType(self.of(c.cell_contents)) for c in function.__closure__ or ()]
        copy = types.FunctionType(
            function.__code__,
            {**function.__globals__, **replaced},
            function.__name__,
            function.__defaults__,
            tuple(cells),
        )
        copy.__qualname__ = function.__qualname__.replace("<locals>", "of") + (self._suffix or "")
        return copy


def _ours(value):
    return _is_function(value) and value in _DECORATED


def _is_function(value):
    """Return whether compiled code can call a value: compiled by numba, or to be compiled."""
    return is_jitted(value) or isinstance(value, types.FunctionType)


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


# An integer or float literal promotes float32 to float64 in compiled code; these do not.
ZERO = np.float32(0)
HALF = np.float32(0.5)
ONE = np.float32(1)
