"""Draws by rank in one factor of the vectors: adaptive oversampling."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._numba.jit import ZERO
from freqfm.formulas.sampling_laws import find_in_sums, random_number
from freqfm.samplers._base import UncorrectedSampler


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
        return {
            "order": (np.int32, (width, self.n_items)),
            "deviations": (np.float32, (width,)),
        }

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
