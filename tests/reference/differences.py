"""Central differences, with which gradients are compared."""

import numpy as np


def slopes(function, array, step=1e-5):
    """Return the derivatives of a function by the numbers of an array that it reads."""
    found = np.empty(array.shape)
    for place in np.ndindex(array.shape):
        kept, ends = array[place], []
        for sign in (1, -1):
            array[place] = kept + sign * step
            ends.append(function())
        array[place] = kept
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found
