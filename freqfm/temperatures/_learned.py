"""Temperatures learned by gradient descent on the loss itself."""

import numpy as np

from freqfm._components import POSITIVE
from freqfm.temperatures._base import Temperature

# Decay rates of the moving means of the gradient and of its square, updated once per epoch.
_BETA_1, _BETA_2, _EPSILON = 0.5, 0.9, 1e-12


class LearnedTemperature(Temperature):
    """One temperature for all users, learned with the vectors: C-tau of [1]_.

    Once per epoch the log of the inverse temperature takes a step of Adam along the gradient of the
    mean loss. The loss itself does not keep the temperature from falling: this class is the
    baseline of :class:`AdapTau`.

    Parameters
    ----------
    initial : float, default=0.1
        Initial temperature.
    learning_rate : float, default=0.05
        Approximate size of the largest relative change in an epoch.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023, section 5.1.

    Examples
    --------
    >>> from freqfm.temperatures import LearnedTemperature
    >>> LearnedTemperature(initial=0.2).initial
    0.2
    """

    statistics_wanted = True
    include_positive = True
    _parameter_constraints = {"initial": POSITIVE, "learning_rate": POSITIVE}

    def __init__(self, initial: float = 0.1, learning_rate: float = 0.05):
        self.initial = initial
        self.learning_rate = learning_rate

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        if epoch == 0:
            inverse[:] = 1.0 / self.initial
            return
        gradient = self._gradient(snapshot.statistics) * inverse[:, 0]
        state[:, 0] += (1 - _BETA_1) * (gradient - state[:, 0])
        state[:, 1] += (1 - _BETA_2) * (gradient**2 - state[:, 1])
        mean = state[:, 0] / (1 - _BETA_1**epoch)
        square = state[:, 1] / (1 - _BETA_2**epoch)
        step = self.learning_rate * mean / (np.sqrt(square) + _EPSILON)
        inverse *= np.exp(-step)[:, None]

    def _gradient(self, statistics):
        return np.full(len(statistics), statistics[:, 2].sum() / statistics[:, 1].sum())


class LearnedUserTemperature(LearnedTemperature):
    """A temperature for each user, learned with the vectors: Cu-tau of [1]_.

    Parameters
    ----------
    initial : float, default=0.1
        Initial temperature.
    learning_rate : float, default=0.05
        Approximate size of the largest relative change in an epoch.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023, section 5.1.

    Examples
    --------
    >>> from freqfm.temperatures import LearnedUserTemperature
    >>> LearnedUserTemperature().statistics_wanted
    True
    """

    per_user = True

    def _gradient(self, statistics):
        return statistics[:, 2] / np.maximum(statistics[:, 1], _EPSILON)
