"""Uniform draws that favour hard negatives: biased on purpose."""

from typing import NamedTuple

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._numba.jit import ZERO
from freqfm.formulas.sampling_laws import dot_with_row, random_below, turn_into_weights
from freqfm.samplers._base import QuerySampler, UncorrectedSampler


class BestOfUniform(NamedTuple):
    """The best-scored of some uniform draws; log_q is set to zero."""

    n_items: int
    vectors: np.ndarray  #: (n_items, d), float32
    n_candidates: int

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw candidates, and take the best of them."""
        n_candidates = proposal.n_candidates
        for j in range(ids.shape[0]):
            best = -np.float32(np.inf)
            chosen = 0
            for c in range(n_candidates):
                item = random_below(key, j * n_candidates + c, proposal.n_items)
                score = dot_with_row(query, proposal.vectors, np.uint64(item))
                if c == 0 or score > best:
                    best = score
                    chosen = item
            ids[j] = chosen
            log_q[j] = ZERO

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {"vectors": (np.float32, (self.n_items, width))}


class WeightedUniform(NamedTuple):
    """Uniform draws; log_q is minus the log of the weight of a draw.

    That is n times softmax(<q, v_i> / temperature) among the n draws.
    """

    n_items: int
    vectors: np.ndarray  #: (n_items, d), float32
    temperature: float

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw items and compare their scores."""
        sharpness = np.float32(1.0 / proposal.temperature)
        for j in range(ids.shape[0]):
            item = random_below(key, j, proposal.n_items)
            ids[j] = item
            log_q[j] = sharpness * dot_with_row(query, proposal.vectors, np.uint64(item))
        turn_into_weights(log_q)

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {"vectors": (np.float32, (self.n_items, width))}


class DNS(UncorrectedSampler):
    """Dynamic negative sampling: the best by score of several uniform draws [1]_.

    With ``n_candidates`` n, M items and ranks r from the worst score (1) to the best (M), an item
    is drawn with probability ``(r / M)^n - ((r - 1) / M)^n``; items with equal scores share their
    probability. Draws are hard negatives, meant to be used as they are: losses do not correct for
    the probabilities. A softmax over them is a softmax of another distribution, with a lower
    temperature.

    Parameters
    ----------
    n_candidates : int, default=8
        Number of uniform draws of which the best is taken. 1 is the uniform distribution.
    refresh : int, default=1
        Epochs between updates of the vectors used for scores.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: a copy of the item vectors, 4 M d bytes. A draw costs ``n_candidates`` dot products of
    length d. ``log_proba`` sorts the scores of all items, and ``sample`` calls it for ``log_q``;
    losses do not.

    References
    ----------
    .. [1] W. Zhang, T. Chen, J. Wang, Y. Yu. "Optimizing Top-n Collaborative Filtering via Dynamic
       Negative Item Sampling". SIGIR 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import DNS
    >>> sampler = DNS(n_candidates=2).fit([[1.0], [2.0], [3.0], [4.0]])
    >>> np.exp(sampler.log_proba([[1.0]])).round(4)
    array([[0.0625, 0.1875, 0.3125, 0.4375]])
    """

    proposal_type = BestOfUniform
    _parameter_constraints = {"n_candidates": POSITIVE_INTEGER, "refresh": POSITIVE_INTEGER}

    def __init__(self, n_candidates: int = 8, *, refresh: int = 1):
        self.n_candidates = n_candidates
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        return BestOfUniform(len(vectors), vectors, int(self.n_candidates))

    def _log_weights(self, queries):
        scores = queries @ self.item_vectors_.T.astype(np.float64)
        n_items, n = scores.shape[1], self.n_candidates
        weights = np.empty_like(scores)
        for row, weight in zip(scores, weights, strict=True):
            _, rank, ties = np.unique(row, return_inverse=True, return_counts=True)
            up_to = np.cumsum(ties) / n_items
            below = up_to - ties / n_items
            # x^n - y^n divided by the number of ties, by logarithms: a small x may underflow.
            with np.errstate(divide="ignore"):
                log = n * np.log(up_to) + np.log1p(-np.exp(n * (np.log(below) - np.log(up_to))))
            weight[:] = (log - np.log(ties))[rank]
        return weights


class SelfAdversarial(QuerySampler):
    """Uniform draws, weighted by the softmax of their scores [1]_.

    The n draws j of a query q have the weights ``p_j = softmax_j(<q, v_j> / temperature)``,
    constants in the gradient. A loss that subtracts ``log_q`` multiplies a draw's exponential by
    ``1 / (M Q_j)``; here that is the weight relative to the mean, ``n p_j``, so ``log_q`` is
    ``-log(M n p_j)``. :class:`~freqfm.losses.BPR` and other losses of pairs weight a positive's
    negatives by p_j. Hard negatives count more, on purpose; ``log_proba`` returns the uniform
    probabilities of the draws.

    Parameters
    ----------
    temperature : float, default=1.0
        Divisor of the scores in the softmax. Infinity would be uniform sampling. The paper
        multiplies by its alpha instead.
    refresh : int, default=1
        Epochs between updates of the vectors used for weights.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: a copy of the item vectors, 4 M d bytes. A draw costs one dot product of length d.

    References
    ----------
    .. [1] Z. Sun, Z.-H. Deng, J.-Y. Nie, J. Tang. "RotatE: Knowledge Graph Embedding by Relational
       Rotation in Complex Space". ICLR 2019, equation (5).

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import SelfAdversarial
    >>> sampler = SelfAdversarial().fit([[1.0], [2.0], [3.0], [4.0]])
    >>> ids, log_q = sampler.sample([[1.0]], 6, random_state=0)
    >>> weights = np.exp(-log_q) / 4  # relative to their mean
    >>> float(weights.mean().round(4))
    1.0
    """

    weighted = True
    proposal_type = WeightedUniform
    _parameter_constraints = {"temperature": POSITIVE, "refresh": POSITIVE_INTEGER}

    def __init__(self, temperature: float = 1.0, *, refresh: int = 1):
        self.temperature = temperature
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        return WeightedUniform(len(vectors), vectors, float(self.temperature))

    def _log_weights(self, queries):
        # The draws are uniform.
        return np.zeros((len(queries), self.proposal_.n_items))
