"""What all trainers on a GPU need: arrays that are kept in two places, numbers in float32."""

import numpy as np

__all__ = ["Mirror", "lanes_for", "rule_for_device"]


class Mirror:
    """NumPy arrays and their copies in a GPU's memory.

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
        self._device, self._arrays = device, arrays
        self.on_device = type(arrays)(*(device.empty(a.shape, a.dtype) for a in arrays))

    def push(self):
        """Copy the NumPy arrays to the GPU."""
        for array, copy in zip(self._arrays, self.on_device, strict=True):
            self._device.write(array, copy)

    def pull(self):
        """Copy the GPU's arrays into the NumPy arrays."""
        for array, copy in zip(self._arrays, self.on_device, strict=True):
            self._device.to_host(copy, array)


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
