"""``min`` and ``max`` of two numbers, as inlined functions.

numba compiles its own with the options of whichever function calls them first, also one outside the
package, and a call of them takes what was compiled last. LLVM's code, and with it the order of
sums, would depend on what the process has compiled before.
"""

import functools
from types import FunctionType

from freqfm._numba.code_cache import PACKAGE


def _least(x, y):
    return y if y < x else x


def _largest(x, y):
    return y if y > x else x


@functools.cache
def _compiled(decorate):
    return {"min": decorate(_least), "max": decorate(_largest)}


def with_own_extremes(function, decorate):
    """Return a copy of a function of the package, to be compiled, with this ``min`` and ``max``."""
    used = {"min", "max"}.intersection(function.__code__.co_names)
    if not used or function.__module__.partition(".")[0] != PACKAGE:
        return function
    copy = FunctionType(
        function.__code__,
        {**_compiled(decorate), **function.__globals__},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy
