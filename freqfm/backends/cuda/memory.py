"""What all trainers on a GPU need: arrays that are kept in two places, numbers in float32."""

import numpy as np

__all__ = ["Mirror", "lanes_for", "rule_for_device"]


# Arrays of at most so many numbers are copied together: a copy takes as long as one of 400 kB.
_SHORT = 1 << 16


class Mirror:
    """NumPy arrays of float32 and their copies in a GPU's memory.

    Parameters
    ----------
    device : Device
    arrays : NamedTuple of ndarray

    Attributes
    ----------
    on_device : NamedTuple
        The copies.
    """

    def __init__(self, device, arrays):
        self._device = device
        self._short = [array for array in arrays if _is_short(array)]
        self._ends = np.cumsum([len(array) for array in self._short])
        n = int(self._ends[-1]) if self._short else 0
        self._together, together = np.empty(n, dtype=np.float32), device.empty(n, np.float32)
        copies, self._long = [], []
        parts = iter(self._parts_of(together))
        for array in arrays:
            if _is_short(array):
                copies.append(next(parts))
            else:
                copies.append(device.empty(array.shape, array.dtype))
                self._long.append((array, copies[-1]))
        self._on_device_together, self.on_device = together, type(arrays)(*copies)

    def _parts_of(self, together):
        """Return the parts of the short arrays."""
        starts = self._ends - [len(array) for array in self._short]
        return [together[i:j] for i, j in zip(starts, self._ends, strict=True)]

    def push(self):
        """Copy the NumPy arrays to the GPU."""
        if self._short:
            np.concatenate(self._short, out=self._together)
            self._device.write(self._together, self._on_device_together)
        for array, copy in self._long:
            self._device.write(array, copy)

    def pull(self):
        """Copy the GPU's arrays into the NumPy arrays."""
        if self._short:
            self._device.to_host(self._on_device_together, self._together)
            for array, part in zip(self._short, self._parts_of(self._together), strict=True):
                array[...] = part
        for array, copy in self._long:
            self._device.to_host(copy, array)


def _is_short(array):
    return array.ndim == 1 and 0 < len(array) <= _SHORT


def lanes_for(width, of_lane=1):
    """Return how many lanes share the columns of a row, each taking ``of_lane`` at a time."""
    n_lanes = 4
    while n_lanes < min(-(-width // of_lane), 32):
        n_lanes *= 2
    return n_lanes


def rule_for_device(rule):
    """Return an UpdateRule with numbers of float32, as float64 is slow on most GPUs.

    ``hyper`` is a tuple, which a kernel has at hand where it would wait for an array.
    """
    return rule._replace(
        decay=np.float32(rule.decay),
        idle_decay=np.float32(rule.idle_decay),
        hyper=tuple(map(np.float32, rule.hyper)),
    )
