"""A check of the gradients of users' backbones."""

from functools import partial

import numpy as np

from freqfm._components import is_first_check, set_by_user
from freqfm._warnings import warn_once
from freqfm.backbones._base import backward

# Users and items whose vectors are compared, and directions in which each table moves.
_ROWS, _DIRECTIONS = 16, 4

# Lengths of the steps, relative to a table's root mean square, or to a smallest scale.
_STEPS, _SMALLEST = (1e-3, 1e-4), 1e-2

# Largest relative differences: between slopes of different steps, which differ at the kinks of
# rectified units; and between these and the gradient.
_TOLERANCE_OF_STEPS, _TOLERANCE = 0.03, 0.3


def warn_of_wrong_gradients(backbone, tables, n_users, n_items):
    """Warn if a user's ``backward`` does not return the derivatives of ``forward``.

    This is checked once for each class and its parameters.

    A sum of some vectors with random weights is differentiated along random directions. Tables for
    which ``backward`` returns nothing are not compared: they may be constant on purpose. Tables
    for which a shorter step gives another slope are not compared either.

    Parameters
    ----------
    backbone : Backbone
    tables : dict of str to ndarray
        Changed, and set back.
    n_users, n_items : int
    """
    given = {"forward", "backward"} & set_by_user(backbone)
    if not given or not is_first_check("gradients", backbone):
        return
    generator = np.random.default_rng(0)
    users, items = (_some(n) for n in (n_users, n_items))

    def vectors():
        return backbone.forward(tables, users, items)

    *found, context = vectors()
    weights = [generator.standard_normal(np.shape(table)).astype(np.float32) for table in found]

    def total():
        pairs = zip(vectors()[:2], weights, strict=True)
        return sum(np.sum(table * weight, dtype=np.float64) for table, weight in pairs)

    if total() != total():
        # Vectors are random, or contain NaN.
        return
    for name, (rows, gradient) in backward(backbone, tables, context, *weights).items():
        if not len(rows):
            continue
        slopes = mismatch(total, tables[name], rows, gradient, generator)
        if slopes is not None:
            warn_once(
                f"backward of {type(backbone).__name__} returns gradients of {name!r} that are not "
                f"the derivatives of the vectors that forward returns: along a random direction a "
                f"sum of vectors changes by {slopes[0]:.3g} for each unit, and by the gradients "
                f"it would be {slopes[1]:.3g}. Training follows the gradients: check them."
            )


def mismatch(total, table, rows, gradient, generator):
    """Return a measured slope and the one by the gradient if these differ, else None.

    ``total()`` is differentiated along random directions of some rows of the table, which is
    changed and set back. If a shorter step gives another slope, nothing is known.
    """
    compare = partial(_slopes, total, table, rows, gradient, generator)
    promised, measured, nearer = np.transpose([compare() for _ in range(_DIRECTIONS)])
    converges = _differ(measured, nearer) <= _TOLERANCE_OF_STEPS
    differs = converges and _differ(promised, nearer) > _TOLERANCE
    return (nearer[0], promised[0]) if differs else None


def _some(n):
    """Return some rows of ``n``, each once and in ascending order."""
    return np.unique(np.linspace(0, n - 1, _ROWS).astype(np.int64))


def _differ(slopes, others):
    """Return the differences of slopes, relative to the larger ones."""
    size = max(np.linalg.norm(slopes), np.linalg.norm(others))
    return np.linalg.norm(slopes - others) / size if size > 0 else 0.0


def _slopes(total, table, rows, gradient, generator):
    """Return the slopes of a sum along a random direction: by the gradient, by each step."""
    kept = table[rows]
    direction = generator.standard_normal(gradient.shape)
    scale = max(np.sqrt(np.mean(np.square(kept, dtype=np.float64))), _SMALLEST)
    slopes = [np.sum(gradient * direction)]
    for step in np.multiply(_STEPS, scale):
        ends = []
        for sign in (1, -1):
            table[rows] = kept + sign * step * direction
            ends.append(total())
        slopes.append((ends[0] - ends[1]) / (2 * step))
    table[rows] = kept
    return slopes
