"""The interface of temperature strategies to recommenders."""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._components import POSITIVE, Component, set_by_user


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
