"""The constants of a kernel: types, and the codes and switches of the model that it trains.

Those are the fields of tuples that hold a bool, or codes, by their names. So a kernel holds
the code of one optimizer, loss and sampler. It is a third shorter, which counts because it does not
fit into a GPU's instruction cache, and compiles faster.
"""

import numpy as np


def _fields(args):
    """Return the names and values of a NamedTuple; a plain tuple has numbers for names."""
    return list(zip(getattr(args, "_fields", map(str, range(len(args)))), args, strict=True))


def _is_constant(field, value):
    return field.endswith(("code", "catch_up")) or isinstance(value, bool | np.bool_)


def kind_of(args):
    """Return the types and constants of a launch's arguments, as a hashable value."""
    if isinstance(args, tuple):
        return type(args), tuple(
            value if _is_constant(field, value) else kind_of(value)
            for field, value in _fields(args)
        )
    if getattr(args, "ndim", 0):
        return args.dtype, args.ndim, args.is_c_contiguous()
    return type(args)


def with_constants(args):
    """Return a function that puts the constants of ``args`` into arguments of the same types."""
    names = {}
    expression = _expression(args, "args", names)
    exec(f"def put(args):\n    return {expression}", names)
    return names["put"]


def _expression(value, name, names):
    """Return an expression for ``value``, which is called ``name``; its types go to ``names``."""
    if not _holds_constants(value):
        return name
    if type(value) is tuple:
        parts = [_expression(part, f"{name}[{i}]", names) for i, part in enumerate(value)]
        return f"({', '.join(parts)},)"
    alias = f"Type{len(names)}"
    names[alias] = type(value)
    parts = [
        repr(np.asarray(part).item())
        if _is_constant(field, part)
        else _expression(part, f"{name}.{field}", names)
        for field, part in _fields(value)
    ]
    return f"{alias}({', '.join(parts)})"


def _holds_constants(value):
    return isinstance(value, tuple) and any(
        _is_constant(field, part) or _holds_constants(part) for field, part in _fields(value)
    )
