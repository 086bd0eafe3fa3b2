"""A check of the derivatives of users' losses."""

import numpy as np

from freqfm._numba.jit import as_python
from freqfm._warnings import warn_once

# Step of the differences, and the error up to which derivatives agree with them, relative to 1 or
# to the larger of both.
_STEP, _TOLERANCE = 1e-2, 0.05


def warn_of_wrong_derivatives(loss, name, points, variables):
    """Warn if most derivatives that a formula returns differ from those of its value.

    Some may differ, since there may be kinks.

    Parameters
    ----------
    loss : Component
    name : str
        The formula; it returns the value, and then its derivatives by the first variables.
    points : list of tuple of float
        Arguments.
    variables : tuple of str
        Names of the variables that there are derivatives for.
    """
    formula = as_python(getattr(loss, name))
    for i, variable in enumerate(variables):
        try:
            found = [(formula(*point)[1 + i], _slope(formula, point, i)) for point in points]
        except Exception:
            # Compiled code may return another value.
            return
        wrong = [
            (point, *pair) for point, pair in zip(points, found, strict=True) if not _agree(*pair)
        ]
        if 2 * len(wrong) > len(points):
            point, derivative, slope = wrong[0]
            where = ", ".join(f"{number:g}" for number in point)
            warn_once(
                f"{name}({where}) of {type(loss).__name__} returns the derivative {derivative:g} "
                f"by the {variable}, but its value changes by {slope:g} for each unit there. "
                f"Training follows the derivative: check its formula and its sign."
            )


def _slope(formula, point, i):
    """Return the derivative of a formula's value by argument ``i``, from differences."""
    low, high = list(point), list(point)
    low[i] -= _STEP
    high[i] += _STEP
    return (formula(*high)[0] - formula(*low)[0]) / (2 * _STEP)


def _agree(derivative, slope):
    scale = max(1.0, abs(derivative), abs(slope))
    # NaN is not compared.
    return not np.abs(derivative - slope) > _TOLERANCE * scale
