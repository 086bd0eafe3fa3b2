"""Losses of one score and one target."""

from abc import abstractmethod

import numpy as np

from freqfm._components import Component
from freqfm.formulas import codes

__all__ = ["LogLoss", "Loss", "SquaredError"]


class Loss(Component):
    """Base class of losses of one score and one target."""

    _compiled = True
    _fixed = ("code",)

    #: The code by which kernels know the loss.
    code: int

    @abstractmethod
    def base_score(self, target, weight):
        """Return the constant score with the smallest loss."""


class LogLoss(Loss):
    """Logistic loss, log(1 + exp(score)) - target * score, for targets in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.losses import LogLoss
    >>> round(LogLoss().base_score(np.array([0, 0, 0, 1]), np.ones(4)), 4)
    -1.0986
    """

    code = codes.LOG_LOSS

    def base_score(self, target, weight):
        """Return the log-odds of the weighted share of positives, bounded for rare classes."""
        share = np.clip(np.average(target, weights=weight), 1e-6, 1 - 1e-6)
        return float(np.log(share / (1 - share)))


class SquaredError(Loss):
    """Half the squared error, (score - target)^2 / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.losses import SquaredError
    >>> SquaredError().base_score(np.array([1.0, 2.0, 6.0]), np.ones(3))
    3.0
    """

    code = codes.SQUARED_ERROR

    def base_score(self, target, weight):
        """Return the weighted mean."""
        return float(np.average(target, weights=weight))
