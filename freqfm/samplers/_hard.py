"""Draws of hard negatives, biased on purpose: by score, or by rank in one factor."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._numba.jit import ZERO
from freqfm.formulas.proposals import (
    dot_with_row,
    find_in_sums,
    random_below,
    random_number,
    turn_into_weights,
)
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


class RankedByFactors(NamedTuple):
    """Items by their rank in a factor, with log_q of zero."""

    n_items: int
    rank_scale: float
    order: np.ndarray  #: (d, n_items), int32: the items of each factor, from large to small
    deviations: np.ndarray  #: (d,), float32: the factors' standard deviations over items

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        """Write cumulative sums of the factors' weights; equal weights if all are zero."""
        d = proposal.deviations.shape[0]
        total = 0.0
        for f in range(d):
            total += abs(query[f]) * proposal.deviations[f]
            sums[f] = total
        if not total > 0:
            for f in range(d):
                sums[f] = f + 1.0

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw a factor and a rank, counted from below if the query's factor is negative."""
        d, n_items = proposal.order.shape
        within = -math.expm1(-n_items / proposal.rank_scale)
        for j in range(ids.shape[0]):
            at = random_number(key, 2 * j) * sums[d - 1]
            f = find_in_sums(sums, 0, d, at)
            depth = -math.log1p(-within * random_number(key, 2 * j + 1))
            rank = min(np.int64(depth * proposal.rank_scale), n_items - 1)
            if query[f] < ZERO:
                rank = n_items - 1 - rank
            ids[j] = proposal.order[f, rank]
            log_q[j] = ZERO

    def scratch(self):
        """Return the lengths of ``numbers`` and ``sums``."""
        return 0, len(self.deviations)

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {"order": (np.int32, (width, self.n_items)), "deviations": (np.float32, (width,))}

    def check(self, learned, name):
        """Raise unless the lists hold items, see ``check_proposal``."""
        learned.indices(f"{name}.order", self.order.ravel(), self.n_items)


class AOBPR(UncorrectedSampler):
    """Adaptive oversampling: items that are far up in one factor of the user's score [1]_.

    A draw for a query q takes two steps, neither of which needs a score:

    - a factor f with probability in proportion to ``|q_f| s_f``, where s_f is the standard
      deviation of the factor over items;
    - a rank r = 0, 1, ... with probability in proportion to ``exp(-r / rank_scale)``, and the item
      of that rank in the list of items sorted by the factor, from the largest or, if q_f is
      negative, from the smallest.

    Draws are hard negatives, meant to be used as they are, by :class:`~freqfm.losses.BPR` above
    all: losses do not correct for the probabilities.

    Parameters
    ----------
    rank_scale : float, default=500.0
        The paper's lambda, in items: about the mean rank, if there are many more items. A small
        one draws few items again and again, a large one is uniform.
    refresh : int or None, default=None
        Epochs between updates of the lists. None updates them before each epoch and, as in the
        paper, after each ``n_items log(n_items)`` of its draws;
        :class:`~freqfm.FastVAERecommender` updates them between epochs only.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: 4 M d bytes for M items. A query costs d multiplications, a draw a search among d sums;
    sorting costs M d log M. ``sample`` calls ``log_proba`` for ``log_q``; losses do not.

    The paper's model also has a bias for each item, one more factor, as
    :class:`~freqfm.FastVAERecommender` has; :class:`~freqfm.MFRecommender` has none.

    References
    ----------
    .. [1] S. Rendle, C. Freudenthaler. "Improving Pairwise Learning for Item Recommendation from
       Implicit Feedback". WSDM 2014, section 5.3.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import AOBPR
    >>> sampler = AOBPR(rank_scale=1.0).fit([[3.0], [1.0], [2.0]])
    >>> np.exp(sampler.log_proba([[1.0], [-1.0]])).round(3)
    array([[0.665, 0.09 , 0.245],
           [0.09 , 0.665, 0.245]])
    """

    proposal_type = RankedByFactors
    _parameter_constraints = {"rank_scale": POSITIVE, "refresh": [*POSITIVE_INTEGER, None]}

    def __init__(self, rank_scale: float = 500.0, *, refresh: int | None = None):
        self.rank_scale = rank_scale
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        # A stable sort: lists are the same wherever vectors are.
        order = np.argsort(-vectors.T, axis=1, kind="stable").astype(np.int32)
        deviations = vectors.std(axis=0, dtype=np.float64).astype(np.float32)
        return RankedByFactors(len(vectors), float(self.rank_scale), order, deviations)

    def _log_weights(self, queries):
        p = self.proposal_
        weights = np.abs(queries) * p.deviations
        weights[~weights.any(axis=1)] = 1
        by_rank = np.exp(-np.arange(p.n_items) / p.rank_scale)
        upward, downward = np.empty((2, *p.order.shape))
        np.put_along_axis(upward, p.order, by_rank, axis=1)
        np.put_along_axis(downward, p.order, by_rank[::-1], axis=1)
        rising = np.where(queries < 0, 0, weights)
        with np.errstate(divide="ignore"):
            return np.log(rising @ upward + (weights - rising) @ downward)
