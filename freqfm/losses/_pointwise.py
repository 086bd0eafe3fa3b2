"""Losses of one score and one target."""

import functools
import math
from numbers import Real

import numpy as np
from numba import njit

from freqfm._components import POSITIVE, Component
from freqfm._sklearn import Interval
from freqfm.formulas import codes
from freqfm.formulas.losses import (
    expectation_of_log_loss,
    log_loss,
    pointwise_replacements,
    squared_error,
)


class Loss(Component):
    """Base class of losses of one score and one target.

    A custom loss defines :attr:`value_and_derivative`, and the other attributes where their
    defaults do not fit. Each formula is a function of numbers compiled by ``numba.njit``: a static
    method, or a property that returns a function that reads hyper-parameters from its closure. It
    is compiled into the training loop with the options of the package's own formulas
    (``error_model="numpy"``, single precision), once for each combination of formulas, and cached
    on disk if the formula can be hashed. A property is read several times in a call of
    ``partial_fit``, and numba takes half a millisecond to make a function: make it
    in a function of the hyper-parameters that is decorated with ``functools.cache``.

    For a classifier the target is 1 for rows of a class and 0 for all other rows, and the loss
    should lead to positive scores for the class.

    See Also
    --------
    LogLoss, SquaredError, Huber, Poisson, Quantile : Losses of the package.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit
    >>> from freqfm import FMClassifier
    >>> from freqfm.losses import Loss
    >>> class Hinge(Loss):
    ...     @staticmethod
    ...     @njit
    ...     def value_and_derivative(score, target):
    ...         sign = 2 * target - 1
    ...         if sign * score < 1:
    ...             return 1 - sign * score, -sign
    ...         return 0.0, 0.0
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> y = X[:, 0] * X[:, 1] > 0
    >>> model = FMClassifier(2, loss=Hinge(), alpha_factors=0.1, batch_size=50, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """

    _compiled = True
    _formulas = {
        "value_and_derivative": ("score", "target"),
        "curvature": ("score", "target"),
        "expectation": ("score",),
    }
    _results = {"value_and_derivative": 2}
    _required = ("value_and_derivative",)
    _fixed = ("code", "replacements")

    #: Function of (score, target) that returns the loss and its derivative with respect to the
    #: score.
    value_and_derivative = None
    #: A bound on the second derivative with respect to the score, by which CF-SGD limits its steps:
    #: a number, or a function of (score, target).
    curvature = 1.0
    #: Function of a score that returns the prediction of a regressor; None for the score itself.
    #: For a classifier's loss it is the probability of the class; if it is None there is no
    #: ``predict_proba``.
    expectation = None
    #: Whether the loss can be used by classifiers.
    for_classes = True
    #: The smallest and largest mean distance of most targets from their median that a regressor's
    #: default learning rates suit. It matters to losses whose derivative does not grow with the
    #: residual.
    spreads = (0.0, math.inf)

    @property
    def code(self):
        """The code that identifies the loss in kernels."""
        return _SHIPPED.get((self.value_and_derivative, self.curvature, self.expectation),
                            codes.CUSTOM_LOSS)  # fmt: skip

    def replacements(self, of_classes):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``.

        Parameters
        ----------
        of_classes : bool
            Whether targets are classes.
        """
        if self.code != codes.CUSTOM_LOSS:
            return {}
        formulas = self.value_and_derivative, self.curvature, self.expectation
        return pointwise_replacements(*formulas, of_classes)

    def base_score(self, target, weight):
        """Return the constant score with the smallest loss; None if it must be searched for.

        Parameters
        ----------
        target, weight : ndarray of shape (n_rows,)
            Weights are positive.
        """
        return None

    def training_scale(self, mean, variance):
        """Return the factor of the loss in training, by the mean and the variance of real targets.

        If it undoes what their unit does to the loss, fits do not depend on the unit.

        Parameters
        ----------
        mean, variance : float
            Weighted, of all rows that are trained on.
        """
        return 1.0

    def check_target(self, target):
        """Raise ValueError if the loss is not defined for a target.

        Parameters
        ----------
        target : ndarray of shape (n_rows,)
        """


class LogLoss(Loss):
    """Logistic loss, log(1 + exp(score)) - target * score, for targets in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.losses import LogLoss
    >>> round(LogLoss().base_score(np.array([0, 0, 0, 1]), np.ones(4)), 4)
    -1.0986
    """

    value_and_derivative = staticmethod(log_loss)
    curvature = 0.25
    expectation = staticmethod(expectation_of_log_loss)

    def base_score(self, target, weight):
        """Return the log-odds of the weighted share of positives, bounded for rare classes."""
        share = np.clip(np.average(target, weights=weight), 1e-6, 1 - 1e-6)
        return float(np.log(share / (1 - share)))

    def check_target(self, target):
        """Raise ValueError if a target is outside [0, 1]."""
        if target.min() < 0 or target.max() > 1:
            raise ValueError(
                f"y has targets from {target.min():g} to {target.max():g}, but LogLoss needs "
                f"targets in [0, 1]; choose another loss."
            )


class SquaredError(Loss):
    """Half the squared error, (score - target)^2 / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.losses import SquaredError
    >>> SquaredError().base_score(np.array([1.0, 2.0, 6.0]), np.ones(3))
    3.0
    """

    value_and_derivative = staticmethod(squared_error)
    for_classes = False

    def base_score(self, target, weight):
        """Return the weighted mean."""
        return float(np.average(target, weights=weight))


# Losses whose formulas are part of the precompiled kernels.
_SHIPPED = {
    (log_loss, LogLoss.curvature, expectation_of_log_loss): codes.LOG_LOSS,
    (squared_error, SquaredError.curvature, None): codes.SQUARED_ERROR,
}


# A formula with parameters is made once for each value, as it is compiled wherever it is new.


@functools.cache
def _huber(delta):
    @njit
    def huber(score, target):
        residual = score - target
        clipped = min(max(residual, -delta), delta)
        return clipped * (residual - np.float32(0.5) * clipped), clipped

    return huber


class Huber(Loss):
    """Huber's loss [1]_: half the squared error up to a residual of ``delta``, then linear.

    Parameters
    ----------
    delta : float, default=1.0
        Residual up to which the loss is quadratic; larger residuals have a constant derivative.

    References
    ----------
    .. [1] P. J. Huber. "Robust Estimation of a Location Parameter". Annals of Mathematical
       Statistics 35, 1964.

    Examples
    --------
    >>> from freqfm.losses import Huber
    >>> Huber().value_and_derivative(3.0, 0.0)
    (2.5, 1.0)
    """

    for_classes = False
    _parameter_constraints = {"delta": POSITIVE}

    def __init__(self, delta: float = 1.0):
        self.delta = delta

    @property
    def value_and_derivative(self):
        """Function of (score, target) that returns the loss and its derivative by the score."""
        return _huber(np.float32(self.delta))

    @property
    def spreads(self):
        """The spreads of targets that default learning rates suit, see :class:`Loss`."""
        return 0.0, 10.0 * self.delta


class Poisson(Loss):
    """Half the Poisson deviance up to a constant, exp(score) - target * score, for counts.

    The score is the logarithm of the expected count: a regressor predicts its exponential.

    In a fit the loss is divided by the variance of the targets over their mean, as a quasi-Poisson
    likelihood is by the dispersion. It is about 1 for counts, and for amounts of money in their
    unit: so a model of amounts in another unit predicts the same in that unit, up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.losses import Poisson
    >>> round(Poisson().base_score(np.array([0, 1, 5]), np.ones(3)), 4)
    0.6931
    """

    for_classes = False

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        """Return the loss and its derivative with respect to the score."""
        mean = np.float32(math.exp(score))
        return mean - target * score, mean - target

    @staticmethod
    @njit
    def curvature(score, target):
        """Return the second derivative, or its value once the row is fitted."""
        return max(math.exp(score), target)

    @staticmethod
    @njit
    def expectation(score):
        """Return the expected count."""
        return math.exp(score)

    def base_score(self, target, weight):
        """Return the logarithm of the weighted mean."""
        return float(np.log(np.average(target, weights=weight) or 1e-6))

    def training_scale(self, mean, variance):
        """Return the mean over the variance: 1 over the dispersion."""
        return mean / variance if min(mean, variance) > 0 else 1.0

    def check_target(self, target):
        """Raise ValueError if a target is negative."""
        if target.min() < 0:
            raise ValueError(
                f"y holds {target.min():g}, but Poisson needs 0 or more; choose another loss."
            )


@functools.cache
def _pinball(above):
    below = above - np.float32(1)

    @njit
    def pinball(score, target):
        residual = target - score
        derivative = -(above if residual > np.float32(0) else below)
        return -derivative * residual, derivative

    return pinball


class Quantile(Loss):
    """Pinball loss: the score becomes a quantile of the target, for 0.5 the median.

    The loss of a residual r = target - score is quantile * r if r > 0, else (quantile - 1) * r. Its
    derivative does not depend on the size of r: with targets that spread over much more or less
    than 1, training is slow or does not converge, and ``fit`` warns. Scale such targets.

    Parameters
    ----------
    quantile : float, default=0.5
        Share of the targets that should be below the prediction.

    Examples
    --------
    >>> from freqfm.losses import Quantile
    >>> value, derivative = Quantile(0.75).value_and_derivative(0.0, 2.0)
    >>> float(value), float(derivative)
    (1.5, -0.75)
    """

    for_classes = False
    spreads = (0.2, 10.0)
    _parameter_constraints = {"quantile": [Interval(Real, 0, 1, closed="neither")]}

    def __init__(self, quantile: float = 0.5):
        self.quantile = quantile

    @property
    def value_and_derivative(self):
        """Function of (score, target) that returns the loss and its derivative by the score."""
        return _pinball(np.float32(self.quantile))
