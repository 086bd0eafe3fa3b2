"""Initializers: the numbers an embedding table starts from."""

from abc import abstractmethod

import numpy as np

from freqfm._components import NON_NEGATIVE, Component

__all__ = ["INITIALIZERS", "Initializer", "Normal", "XavierUniform"]


class Initializer(Component):
    """Base class of initializers."""

    @abstractmethod
    def draw(self, shape, generator):
        """Return a float32 table of the given (n_tokens, n_components).

        Parameters
        ----------
        shape : tuple of int
        generator : numpy.random.Generator
        """


class Normal(Initializer):
    """Independent normal numbers of mean zero.

    Parameters
    ----------
    scale : float, default=0.001
        Standard deviation. Small numbers start a factorization machine close to its linear part.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.initializers import Normal
    >>> Normal(scale=0.1).draw((3, 2), np.random.default_rng(0)).dtype
    dtype('float32')
    """

    _parameter_constraints = {"scale": NON_NEGATIVE}

    def __init__(self, scale=0.001):
        self.scale = scale

    def draw(self, shape, generator):
        """Return a table of the given shape, see :class:`Initializer`."""
        return np.float32(self.scale) * generator.standard_normal(shape, dtype=np.float32)


class XavierUniform(Initializer):
    """Uniform numbers between -b and b, b = scale * sqrt(6 / (n_tokens + n_components)).

    Glorot and Bengio (2010), equation (16), with the table's two sides as fan-in and fan-out: the
    choice of the PyTorch FM on which Li et al. (2022) build.

    Parameters
    ----------
    scale : float, default=1.0
        The gain.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.initializers import XavierUniform
    >>> bool(np.abs(XavierUniform().draw((4, 2), np.random.default_rng(0))).max() <= 1)
    True
    """

    _parameter_constraints = {"scale": NON_NEGATIVE}

    def __init__(self, scale=1.0):
        self.scale = scale

    def draw(self, shape, generator):
        """Return a table of the given shape, see :class:`Initializer`."""
        bound = np.float32(self.scale * np.sqrt(6.0 / (shape[0] + shape[1])))
        return bound * (2 * generator.random(shape, dtype=np.float32) - 1)


INITIALIZERS = {"normal": Normal, "xavier": XavierUniform}
