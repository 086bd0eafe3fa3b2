"""What a kernel is compiled for: types, and the codes and switches of what it trains.

So a kernel holds the code of one optimizer, loss and sampler. It is a third shorter, which counts
because it does not fit into a GPU's instruction cache, and compiles faster.
"""

import numpy as np

from freqfm.backends.base import FMObjective, UpdateRule
from freqfm.backends.cuda.fm.scores import Levels
from freqfm.backends.cuda.ranking.alignment import Alignment
from freqfm.backends.cuda.ranking.batches import ItemKeys, RankingCall
from freqfm.backends.cuda.ranking.softmax import Softmax

_CONSTANTS = {
    UpdateRule: {
        "step_code",
        "rate_code",
        "count_code",
        "catch_up",
        "decay_code",
        "lazy",
        "decoupled",
    },
    FMObjective: {"loss_code", "fit_intercept", "fit_linear"},
    Levels: {"ranked", "prefix", "follow_loss"},
    Alignment: {"margins", "half"},
    ItemKeys: {"code"},
    RankingCall: {"cosine", "queries_given"},
    Softmax: {"negatives_code", "corrected", "include_positive", "statistics_wanted"},
}


def kind_of(args):
    """Return the types and constants of a launch's arguments, as a hashable value."""
    if isinstance(args, tuple):
        chosen = _CONSTANTS.get(type(args), ())
        fields = args._fields if chosen else args
        return type(args), tuple(
            value if field in chosen else kind_of(value)
            for field, value in zip(fields, args, strict=True)
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
    kind = type(value)
    if kind is tuple:
        parts = [_expression(part, f"{name}[{i}]", names) for i, part in enumerate(value)]
        return f"({', '.join(parts)},)"
    chosen, alias = _CONSTANTS.get(kind, ()), f"Type{len(names)}"
    names[alias] = kind
    parts = [
        repr(np.asarray(part).item())
        if field in chosen
        else _expression(part, f"{name}.{field}", names)
        for field, part in zip(kind._fields, value, strict=True)
    ]
    return f"{alias}({', '.join(parts)})"


def _holds_constants(value):
    return isinstance(value, tuple) and (
        type(value) in _CONSTANTS or any(map(_holds_constants, value))
    )
