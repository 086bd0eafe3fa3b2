"""Negative samplers: which items a positive is compared with, and how likely each was drawn."""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from freqfm._components import NON_NEGATIVE, Component
from freqfm.scalars import codes

__all__ = ["SAMPLERS", "Full", "InBatch", "Popularity", "Proposal", "Sampler", "Uniform"]


class Proposal(NamedTuple):
    """The distribution that a sampler draws from, in one fit."""

    #: (n_items,), sums of the probabilities; empty for the uniform distribution.
    cumulative: np.ndarray
    #: (n_items,), log of how much more often than uniformly an item is drawn, float32; or empty.
    log_q: np.ndarray


_NOTHING = np.zeros(0)


class Sampler(Component):
    """Base class of negative samplers."""

    #: Where the negatives of a batch stand, see ``freqfm.scalars.codes``.
    negatives_code: int

    @abstractmethod
    def proposal(self, counts):
        """Return the distribution over items.

        Parameters
        ----------
        counts : ndarray of shape (n_items,)
            How many users have each item.

        Returns
        -------
        proposal : Proposal
        """

    def draw(self, shape, n_items, proposal, generator):
        """Return items of the given shape, int32."""
        return np.zeros((1, 1), dtype=np.int32)


class Uniform(Sampler):
    """Every item is equally likely, with replacement; the user's own items are not removed.

    Parameters
    ----------
    shared : bool, default=True
        Whether all positives of a batch share one list of negatives. Scores are then one matrix
        product, ten times as fast or more. False draws a list for each positive. Losses that
        compare pairs, such as BPR, always draw their own.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import Uniform
    >>> sampler = Uniform()
    >>> proposal = sampler.proposal(np.array([5, 1, 1]))
    >>> sampler.draw((2, 3), 3, proposal, np.random.default_rng(0)).shape
    (2, 3)
    """

    _parameter_constraints = {"shared": ["boolean"]}

    def __init__(self, shared=True):
        self.shared = shared

    @property
    def negatives_code(self):
        """Where the negatives of a batch stand."""
        return codes.NEGATIVES_SHARED if self.shared else codes.NEGATIVES_OWN

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        return Proposal(_NOTHING, _NOTHING.astype(np.float32))

    def draw(self, shape, n_items, proposal, generator):
        """Return items of the given shape, int32."""
        return generator.integers(0, n_items, shape, dtype=np.int32)


class Popularity(Uniform):
    """Items are drawn in proportion to (count + 1)^exponent, with replacement.

    A softmax subtracts the log of the probability from the logits.

    Parameters
    ----------
    exponent : float, default=0.75
        1 draws by popularity, 0 uniformly; word2vec's 3/4 lies between.
    shared : bool, default=True
        Whether all positives of a batch share one list, see :class:`Uniform`.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import Popularity
    >>> Popularity(exponent=1).proposal(np.array([7, 1, 1])).log_q.round(2)
    array([ 0.69, -0.69, -0.69], dtype=float32)
    """

    _parameter_constraints = {"exponent": NON_NEGATIVE, "shared": ["boolean"]}

    def __init__(self, exponent=0.75, shared=True):
        super().__init__(shared)
        self.exponent = exponent

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        weight = (np.asarray(counts, dtype=np.float64) + 1) ** self.exponent
        share = weight / weight.sum()
        return Proposal(np.cumsum(share), np.log(share * len(share)).astype(np.float32))

    def draw(self, shape, n_items, proposal, generator):
        """Return items of the given shape, int32."""
        at = generator.random(shape)
        drawn = np.searchsorted(proposal.cumulative, at, side="right")
        return np.minimum(drawn, n_items - 1).astype(np.int32)


class InBatch(Sampler):
    """The positives of the whole batch are everybody's negatives: drawn by popularity, for free.

    A softmax subtracts the log of the popularity from the logits.

    Examples
    --------
    >>> from freqfm.samplers import InBatch
    >>> InBatch()
    InBatch()
    """

    negatives_code = codes.NEGATIVES_IN_BATCH

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        weight = np.maximum(np.asarray(counts, dtype=np.float64), 1)
        share = weight / weight.sum()
        return Proposal(_NOTHING, np.log(share * len(share)).astype(np.float32))


class Full(Sampler):
    """All items: the exact softmax, with one sum for all positives of a user.

    Examples
    --------
    >>> from freqfm.samplers import Full
    >>> Full()
    Full()
    """

    negatives_code = codes.NEGATIVES_FULL

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        return Proposal(_NOTHING, _NOTHING.astype(np.float32))


SAMPLERS = {"uniform": Uniform, "popularity": Popularity, "in_batch": InBatch, "full": Full}
