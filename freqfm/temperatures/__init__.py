"""Temperatures of the softmax: fixed, from a closed form, per user, or learned.

A strategy fills one array with two inverse temperatures for each user, and updates it after every
epoch.
"""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import lambertw

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, Component, set_by_user
from freqfm._input.rows import slices
from freqfm._sklearn import Interval, StrOptions

__all__ = [
    "TEMPERATURES",
    "AdapTau",
    "AdapTau0",
    "CuTau",
    "DensityTemperature",
    "FixedTemperature",
    "LearnedTemperature",
    "LearnedUserTemperature",
    "Snapshot",
    "Temperature",
]


class Snapshot(NamedTuple):
    """The data that a strategy may use between two epochs."""

    X: sparse.csr_array  #: (n_users, n_items), the interactions
    users: np.ndarray
    """(n_users, d), as the loss compares them: unit vectors for cosines. None unless the strategy
    has ``looks_at_vectors``, as they may be on another device."""
    items: np.ndarray  #: (n_items, d), likewise
    statistics: np.ndarray
    """(n_users, 3), of the last epoch: the loss at temperature one summed over a user's positives,
    their weight, and the derivative of the user's loss with respect to the inverse temperature.
    None unless the strategy has ``statistics_wanted``."""
    n_known: int
    """Number of interactions that the model was trained on; more than those in X if X is new."""


class Temperature(Component):
    """Base class of temperature strategies.

    Notes
    -----
    A strategy works on inverse temperatures, of shape (n_users, 2): the factor of the score of a
    positive, and the factor of the scores in the logarithm. With
    :class:`~freqfm.FastVAERecommender`, which has one temperature, ``inverse``, ``state`` and
    ``Snapshot.statistics`` have one row, and both factors must be the same.
    """

    #: Whether users have individual temperatures.
    per_user = False
    #: Whether kernels must collect ``Snapshot.statistics``.
    statistics_wanted = False
    #: Whether the positive is part of the logarithm of :class:`freqfm.losses.Softmax`.
    include_positive = False
    #: Whether the strategy needs cosines.
    cosine_only = False
    #: Whether the strategy uses the users and items of the snapshot.
    looks_at_vectors = False

    def state_shape(self, width):
        """Return the shape of ``state`` if it does not belong to users.

        Parameters
        ----------
        width : int
            Length of the vectors.

        Returns
        -------
        shape : tuple of two ints, or None
            None, the default, for a row for each user, of two numbers.
        """
        return None

    @abstractmethod
    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures of an epoch, in place.

        Parameters
        ----------
        epoch : int
            Number of epochs trained so far.
        inverse : ndarray of shape (n_users, 2), float32
            The values of the last epoch; ones before the first.
        state : ndarray of shape (n_users, 2), float64
            Or of the shape that ``state_shape`` returns. Zeros at first, and if the last fit had a
            state of another shape; free for the strategy's use.
        snapshot : Snapshot
        """

    def refreshed(self, epoch, inverse, state, snapshot):
        """Call ``refresh``, and check what a user's class has written.

        Parameters
        ----------
        epoch, inverse, state, snapshot
            See :meth:`refresh`.

        Raises
        ------
        TypeError
            If ``refresh`` returns something, which would be ignored.
        ValueError
            If an inverse temperature is not positive and finite.
        """
        returned = self.refresh(epoch, inverse, state, snapshot)
        if "refresh" not in set_by_user(self):
            return
        call = f"refresh of {type(self).__name__}"
        if returned is not None:
            raise TypeError(
                f"{call} returns {returned!r}, which would be ignored; write inverse temperatures "
                f"into its second argument, in place, as in inverse[:] = 10, and return nothing."
            )
        wrong = inverse[~((inverse > 0) & np.isfinite(inverse))]
        if len(wrong):
            raise ValueError(
                f"{call} has written the inverse temperature {wrong[0]:g} in epoch {epoch + 1}; "
                f"they must be positive and finite."
            )


class FixedTemperature(Temperature):
    """One constant temperature for all users.

    Parameters
    ----------
    temperature : float
        Divisor of the scores.

    Examples
    --------
    >>> from freqfm.temperatures import FixedTemperature
    >>> FixedTemperature(0.1)
    FixedTemperature(temperature=0.1)
    """

    _parameter_constraints = {"temperature": POSITIVE}

    def __init__(self, temperature: float):
        self.temperature = temperature

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        inverse[:] = 1.0 / self.temperature


# The authors' code excludes the users with the fewest items, a fifth of all.
_LEAST_ACTIVE = 20

# Users whose vectors are compared with those of their items at a time.
_USERS = 1 << 14

# Range to which a user's loss, in units of 2 beta, is clipped before Lambert's function. Its domain
# starts at -1/e; exactly there, scipy returns NaN.
_LEAST_EXCESS, _MOST_EXCESS = -1 / np.e + 1e-9, 1000.0


def _log_odds(X):
    """Return log(n_users n_items / (2 n_positives)) over the users with enough items."""
    degrees = np.diff(X.indptr)
    active = degrees > np.percentile(degrees, _LEAST_ACTIVE)
    if not active.any():
        active = degrees > 0
    n_positives = degrees[active].sum()
    n_pairs = np.count_nonzero(active) * X.shape[1]
    # At most half of the pairs can be positive.
    return np.log(max(n_pairs / (2.0 * n_positives), 2.0)), active, n_positives


def _sum_items(X, rows, items):
    """Return the sums of the vectors of each user's items, for some rows of ``X``."""
    indptr = X.indptr[rows.start : rows.stop + 1]
    indices = X.indices[indptr[0] : indptr[-1]]
    ones = np.ones(len(indices), dtype=np.float32)
    return (
        sparse.csr_array((ones, indices, indptr - indptr[0]), (len(indptr) - 1, len(items))) @ items
    )


@dataclass(eq=False, repr=False)
class DensityTemperature(Temperature):
    """One temperature for all users, from the data: lower for sparser data, higher for few
    interactions.

    The logarithm is that of :class:`AdapTau0`, but the vectors are not used::

        1 / tau = (offset + slope * log(n_users * n_items / (2 n_positives)))
                  * (n_positives / (n_positives + shrinkage)) ** power.

    With :class:`freqfm.losses.BSL`, the tau0 of :class:`AdapTau0` and the model influence each
    other, and tau0 falls too far. The straight line passes through
    the best values on validation data for Gowalla (1 / tau = 9.2) and MovieLens-1M (6). The last
    factor is nearly one on large data. On small data it is lower, because scores of vectors
    learned from few interactions are less reliable: with a power of 1 / 2 it is the cosine between
    a vector and the same vector with noise added, if the noise's squared length is
    ``shrinkage / n_positives`` times that of the vector.

    Parameters
    ----------
    offset : float, default=3.4
        1 / tau, before the last factor, where the logarithm is zero.
    slope : float, default=0.9
        How much 1 / tau grows with the logarithm.
    shrinkage : float, default=20_000
        Number of interactions at which noise is as strong as the signal; 0 turns the factor off.
    power : float, default=0.5
        How fast the factor falls as the number of interactions decreases.

    Examples
    --------
    >>> from freqfm.temperatures import DensityTemperature
    >>> DensityTemperature(offset=5.0)
    DensityTemperature(offset=5.0)
    """

    _parameter_constraints = {
        "offset": POSITIVE,
        "slope": NON_NEGATIVE,
        "shrinkage": NON_NEGATIVE,
        "power": NON_NEGATIVE,
    }

    offset: float = 3.4
    _: KW_ONLY
    slope: float = 0.9
    shrinkage: float = 20_000
    power: float = 0.5

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        n = snapshot.n_known
        trust = (n / (n + self.shrinkage)) ** self.power
        inverse[:] = trust * (self.offset + self.slope * _log_odds(snapshot.X)[0])


@dataclass(eq=False, repr=False)
class AdapTau0(Temperature):
    """One temperature for all users, from a closed form, updated in every epoch.

    Equation (14) of [1]_, the temperature of nearly the largest gradients. With the mean cosine mu+
    of positives, and the mean cosine mu of all pairs of users and items::

        1 / tau0 = log(n_users * n_items / (2 n_positives)) / (mu+ - mu).

    The fifth of the users with the fewest items is excluded, as in the authors' code.

    Parameters
    ----------
    warm_up : int or None, default=5
        For this many epochs ``warm_up_gap`` replaces mu+ - mu, which is meaningless for untrained
        vectors. The authors' code waits 100 epochs. None always uses ``warm_up_gap``: the
        temperature then depends only on the density of the data.
    warm_up_gap : float, default=0.7
        The authors' value.
    smallest_gap : float, default=0.5
        Lower bound of mu+ - mu. With a loss that prevents positives from being separated, such as
        :class:`freqfm.losses.BSL`, the formula would give ever lower temperatures; the bound
        keeps 1 / tau0 within 1.4 times its first value.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023.

    Examples
    --------
    >>> from freqfm.temperatures import AdapTau0
    >>> AdapTau0(warm_up=2).warm_up_gap
    0.7
    """

    cosine_only = True
    looks_at_vectors = True
    _parameter_constraints = {
        "warm_up": [Interval(Integral, 0, None, closed="left"), None],
        "warm_up_gap": POSITIVE,
        "smallest_gap": POSITIVE,
    }

    warm_up: int | None = 5
    _: KW_ONLY
    warm_up_gap: float = 0.7
    smallest_gap: float = 0.5

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        inverse[:] = self._global_inverse(epoch, snapshot)

    def _global_inverse(self, epoch, snapshot):
        """Return 1 / tau0 of an epoch."""
        log_odds, active, n_positives = _log_odds(snapshot.X)
        if self.warm_up is None or epoch < self.warm_up:
            return log_odds / self.warm_up_gap
        items = snapshot.items
        positive, total = 0.0, np.zeros(items.shape[1])
        for rows in slices(len(active), _USERS):
            vectors = snapshot.users[rows][active[rows]]
            sums = _sum_items(snapshot.X, rows, items)[active[rows]]
            positive += np.einsum("uf,uf->", vectors, sums, dtype=np.float64)
            total += vectors.sum(axis=0, dtype=np.float64)
        mean = total / np.count_nonzero(active)
        overall = mean @ items.mean(axis=0, dtype=np.float64)
        return log_odds / max(positive / n_positives - overall, self.smallest_gap)


@dataclass(eq=False, repr=False)
class AdapTau(AdapTau0):
    """A temperature for each user: tau0, raised for users whose positives are hard to separate.

    Equation (16) of [1]_, with Lambert's function W and the user's loss L(u) at temperature one in
    the last epoch that contained interactions of the user::

        1 / tau_u = 1 / tau0 * exp(-W(max((L(u) - threshold) / (2 beta), -1 / e))).

    L(u) is the mean of -s_p + log sum_j exp(s_j) over the user's positives p, over
    all drawn negatives j. The sum does not contain p, and is not corrected for the probabilities
    of drawing the negatives.

    Parameters
    ----------
    form : {"paper", "reference"}, default="reference"
        "paper", algorithm 1: tau_u everywhere, and the positive inside the logarithm. "reference",
        the authors' code: tau0 for the positive, tau_u in the logarithm, which excludes the
        positive.
    threshold : "mean" or float in (0, 1), default="mean"
        The mean of L(u) over users, as in the paper, or this quantile of L(u); the authors' run on
        Gowalla used 0.9.
    beta : float, default=0.5
        Strength with which tau_u is held near tau0. The authors' run on Gowalla used 0.125, the
        paper says 1.
    warm_up, warm_up_gap, smallest_gap : int, float, float, default=5, 0.7 and 0.5
        See :class:`AdapTau0`; users have individual temperatures from the first epoch after the
        warm-up.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023.

    Examples
    --------
    >>> from freqfm.temperatures import AdapTau
    >>> AdapTau(form="paper", threshold=0.9).include_positive
    True
    """

    per_user = True
    statistics_wanted = True
    _parameter_constraints = {
        "form": [StrOptions({"paper", "reference"})],
        "threshold": [StrOptions({"mean"}), Interval(Real, 0, 1, closed="neither")],
        "beta": POSITIVE,
    }

    form: str = "reference"
    _: KW_ONLY
    threshold: float | str = "mean"
    beta: float = 0.5
    warm_up: int | None = 5

    @property
    def include_positive(self):
        """Whether the positive is part of the sum in the logarithm."""
        return self.form == "paper"

    def adapts_within(self, n_epochs):
        """Return whether users have individual temperatures in the first ``n_epochs`` epochs."""
        return self.warm_up is not None and n_epochs > max(self.warm_up, 1)

    def refresh(self, epoch, inverse, state, snapshot):
        """Write the inverse temperatures, see :class:`Temperature`."""
        overall = self._global_inverse(epoch, snapshot)
        inverse[:] = overall
        # Users without new interactions keep the loss of the last epoch that had some.
        trained = snapshot.statistics[:, 1] > 0
        state[trained] = snapshot.statistics[trained, :2]
        loss, weight = state.T
        seen = weight > 0
        warming_up = self.warm_up is None or epoch < self.warm_up
        if epoch == 0 or warming_up or not seen.any():
            return
        mean = loss[seen] / weight[seen]
        if self.threshold == "mean":
            threshold = mean.mean()
        else:
            threshold = np.quantile(mean, self.threshold)
        excess = np.clip((mean - threshold) / (2 * self.beta), _LEAST_EXCESS, _MOST_EXCESS)
        per_user = overall * np.exp(-lambertw(excess).real)
        inverse[seen, 1] = per_user
        if self.form == "paper":
            inverse[seen, 0] = per_user


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
        by_hidden, by_bias, by_outputs, by_constant = self._layers(gradient, users.shape[1])
        output = self._layers(weights, users.shape[1])[2]
        for rows in slices(len(users), _USERS):
            _, layer = self._forward(weights, users[rows])
            by_output = by_log_inverse[rows]
            by_layer = by_output[:, None] * output * (1 - layer**2)
            by_hidden += by_layer.T @ users[rows].astype(np.float64)
            by_bias += by_layer.sum(axis=0)
            by_outputs += by_output @ layer
            by_constant += by_output.sum()
        return gradient


TEMPERATURES = {
    "density": DensityTemperature,
    "adap_tau0": AdapTau0,
    "adap_tau": AdapTau,
    "learned": LearnedTemperature,
    "learned_user": LearnedUserTemperature,
    "cu_tau": CuTau,
}
