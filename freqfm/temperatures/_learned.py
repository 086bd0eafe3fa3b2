"""Temperatures learned by gradient descent on the loss itself."""

import numpy as np

from freqfm._components import POSITIVE
from freqfm.temperatures._base import Temperature

# Decay rates of the moving means of the gradient and of its square, updated once per epoch.
_BETA_1, _BETA_2, _EPSILON = 0.5, 0.9, 1e-12


def adam_step(gradient, means, squares, n_steps):
    """Return a step of Adam at a learning rate of one, and both moving means after it.

    Parameters
    ----------
    gradient, means, squares : ndarray
    n_steps : int
        Which step it is, from 1.
    """
    means = means + (1 - _BETA_1) * (gradient - means)
    squares = squares + (1 - _BETA_2) * (gradient**2 - squares)
    mean = means / (1 - _BETA_1**n_steps)
    square = squares / (1 - _BETA_2**n_steps)
    return mean / (np.sqrt(square) + _EPSILON), means, squares


class LearnedTemperature(Temperature):
    """One temperature for all users, learned with the vectors: C-tau of [1]_.

    Once per epoch the log of the inverse temperature takes a step of Adam along the gradient of the
    mean loss. Minimising the loss can lower the temperature without limit: the class is
    the baseline that :class:`AdapTau` is compared with.

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

    def __init__(self, initial: float = 0.1, *, learning_rate: float = 0.05):
        self.initial = initial
        self.learning_rate = learning_rate

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        if epoch == 0:
            inverse[:] = 1.0 / self.initial
            return
        moved = self._moved(snapshot.statistics)
        gradient = self._gradient(snapshot.statistics)[moved] * inverse[moved, 0]
        step, means, squares = adam_step(gradient, *state[moved].T, epoch)
        state[moved] = np.column_stack([means, squares])
        inverse[moved] *= np.exp(-self.learning_rate * step)[:, None]

    def _moved(self, statistics):
        """Return which users' temperatures take a step."""
        return np.ones(len(statistics), dtype=bool)

    def _gradient(self, statistics):
        return np.full(len(statistics), statistics[:, 2].sum() / statistics[:, 1].sum())


class LearnedUserTemperature(LearnedTemperature):
    """A temperature for each user, learned with the vectors, each as a number of its own.

    It stands beside Cu-tau of [1]_, whose temperatures come from a network, see :class:`CuTau`.

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

    def _moved(self, statistics):
        return statistics[:, 1] > 0
