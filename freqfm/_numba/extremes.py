"""``min`` and ``max`` of two numbers, written in place.

numba compiles them as functions, with the options of whichever function calls them first, also one
outside the package, and a call of them takes what was compiled last. LLVM's code, and with it the
order of sums, would depend on what the process has compiled before.
"""

import operator
from types import FunctionType

from numba import types
from numba.extending import intrinsic

from freqfm._numba.code_cache import PACKAGE


def _extreme_of_two(comparison):
    """Return an intrinsic that returns the second number if it compares so with the first."""

    @intrinsic
    def extreme(typing_context, x, y):
        kind = typing_context.unify_types(types.unliteral(x), types.unliteral(y))

        def codegen(context, builder, signature, args):
            x, y = (
                context.cast(builder, value, given, kind)
                for value, given in zip(args, signature.args, strict=True)
            )
            compare = context.get_function(comparison, types.boolean(kind, kind))
            return builder.select(compare(builder, (y, x)), y, x)

        return kind(x, y), codegen

    return extreme


_EXTREMES = {"min": _extreme_of_two(operator.lt), "max": _extreme_of_two(operator.gt)}


def with_own_extremes(function):
    """Return a copy of a function of the package, to be compiled, with this ``min`` and ``max``."""
    own = {name: _EXTREMES[name] for name in _EXTREMES if name in function.__code__.co_names}
    if not own or function.__module__.partition(".")[0] != PACKAGE:
        return function
    copy = FunctionType(
        function.__code__,
        {**own, **function.__globals__},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy
