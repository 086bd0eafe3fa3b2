"""A GPU of one lane per group, on the CPU: the phases as plain Python, groups in random order."""

import functools

import numpy as np

from freqfm._jit import translated
from freqfm.backends.cuda.team import Team


@functools.cache
def _python(phase, formulas):
    return translated(phase, lambda function: function, dict(formulas))


class EmulatedDevice:
    """The interface of ``freqfm.backends.cuda.device.Device``, for arrays of NumPy.

    Parameters
    ----------
    size : int, default=3
        Number of groups.
    seed : int, default=0
        Of the order in which groups run a phase.

    Attributes
    ----------
    launches : dict
        The arguments of the last launch, by phases and formulas.
    n_copied : int
        Bytes moved to the device and back.
    """

    name = "emulated"

    def __init__(self, size=3, seed=0):
        self.size, self._generator = size, np.random.default_rng(seed)
        self.launches, self.n_copied = {}, 0

    def empty(self, shape, dtype):
        """Return an array of meaningless values."""
        array = np.empty(shape, dtype=dtype)
        array.view(np.uint8)[...] = 0x7B
        return array

    def fill(self, array, value):
        """Set all elements."""
        array[...] = value

    def to_device(self, array):
        """Return a copy."""
        self.n_copied += array.nbytes
        return np.array(array, order="C")

    def write(self, array, copy):
        """Copy an array to one of the device."""
        self.n_copied += array.nbytes
        copy[...] = array

    def to_host(self, array, out):
        """Copy an array of the device; return the copy."""
        assert array.shape == out.shape and array.dtype == out.dtype
        self.n_copied += array.nbytes
        out[...] = array
        return out

    def run(self, phases, args, n_lanes, n_items, span=(0, 1), formulas=None):
        """Run phases for each batch of a span; all groups end a phase before the next."""
        formulas = dict(formulas or {})
        key = tuple(formulas.items())
        self.launches[phases, key] = args
        with np.errstate(all="ignore"):
            for b in range(*span):
                for phase in phases:
                    python = _python(phase, key)
                    for rank in self._generator.permutation(self.size):
                        python(Team(int(rank), self.size, 0, 1), b, args)
