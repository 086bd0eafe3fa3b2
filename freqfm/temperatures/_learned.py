"""Temperatures learned by gradient descent on the loss itself, or by a network."""

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._input.rows import slices
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


# Users whose temperatures are computed at a time.
_USERS = 1 << 14


class CuTau(Temperature):
    """A temperature for each user from a network of the user's vector: Cu-tau of [1]_.

    The network has one hidden layer, and is learned with the vectors::

        1 / tau_u = 1 / initial * exp(w . tanh(W x_u + b) + c).

    Once per epoch its weights take a step of Adam along the gradient of the mean loss; x_u is a
    constant in it. At first w and c are zero, W is random and the same for any ``random_state``,
    and all temperatures are ``initial``.

    The paper says only that a network models a temperature for each user; the layers, their size
    and their optimizer are choices made here. As with :class:`LearnedTemperature`, minimising the
    loss can lower the temperatures without limit: the class is a baseline for :class:`AdapTau`.

    Parameters
    ----------
    initial : float, default=0.1
        Initial temperature.
    n_hidden : int, default=16
        Width of the hidden layer.
    learning_rate : float, default=0.005
        Adam's, of the weights of the network.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023, section 5.1.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(60, 40, 600, random_state=0)
    >>> model = MFRecommender(8, loss="softmax", temperature="cu_tau", max_iter=5, random_state=0)
    >>> model.fit(X).user_temperatures_.shape
    (60,)
    """

    per_user = True
    statistics_wanted = True
    include_positive = True
    looks_at_vectors = True
    _parameter_constraints = {
        "initial": POSITIVE,
        "n_hidden": POSITIVE_INTEGER,
        "learning_rate": POSITIVE,
    }

    def __init__(self, initial: float = 0.1, *, n_hidden: int = 16, learning_rate: float = 0.005):
        self.initial = initial
        self.n_hidden = n_hidden
        self.learning_rate = learning_rate

    def state_shape(self, width):
        """Return the shape of weights and both means of Adam, with the number of its steps."""
        return 3, int(self.n_hidden) * (width + 2) + 2

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        weights, means, squares = state[:, :-1]
        users, statistics = snapshot.users, snapshot.statistics
        total = statistics[:, 1].sum()
        if not weights.any():
            hidden, *_ = self._layers(weights, users.shape[1])
            hidden[:] = np.random.default_rng(0).normal(size=hidden.shape)
        elif total > 0:
            by_log_inverse = statistics[:, 2] * inverse[:, 0] / total
            gradient = self._gradient(weights, users, by_log_inverse)
            state[0, -1] += 1
            step, means[:], squares[:] = adam_step(gradient, means, squares, state[0, -1])
            weights -= self.learning_rate * step
        for rows in slices(len(users), _USERS):
            log_inverse, _ = self._forward(weights, users[rows])
            inverse[rows] = np.exp(log_inverse)[:, None] / self.initial

    def _layers(self, weights, width):
        """Return W, b, w and c of the formula, as views of the weights."""
        n = int(self.n_hidden)
        bounds = np.cumsum([n * width, n, n])
        hidden, bias, output, constant = np.split(weights, bounds)
        return hidden.reshape(n, width), bias, output, constant

    def _forward(self, weights, users):
        """Return the logs of the factors of 1 / initial, and the hidden layer."""
        hidden, bias, output, constant = self._layers(weights, users.shape[1])
        layer = np.tanh(users.astype(np.float64) @ hidden.T + bias)
        return layer @ output + constant, layer

    def _gradient(self, weights, users, by_log_inverse):
        """Return the derivatives by the weights, given those by the log of 1 / tau of each user."""
        gradient = np.zeros_like(weights)
        of_hidden, of_bias, of_output, of_constant = self._layers(gradient, users.shape[1])
        output = self._layers(weights, users.shape[1])[2]
        for rows in slices(len(users), _USERS):
            _, layer = self._forward(weights, users[rows])
            by_output = by_log_inverse[rows]
            by_layer = by_output[:, None] * output * (1 - layer**2)
            of_hidden += by_layer.T @ users[rows].astype(np.float64)
            of_bias += by_layer.sum(axis=0)
            of_output += by_output @ layer
            of_constant += by_output.sum()
        return gradient
