"""Negative samplers: the items that a positive is compared with, and their probabilities.

Without a sampler, the sum of a softmax is over all items. :class:`Uniform`, :class:`Popularity` and
:class:`InBatch` do not depend on the query. :class:`MIDX` and :class:`Kernel` do, and their time
hardly depends on the number of items. :class:`DNS`, :class:`SelfAdversarial`,
:class:`PRIS` and :class:`AOBPR` prefer hard negatives and are biased on purpose.

For M items in d dimensions, n draws for a query, and K codewords:

================== ======================= ========================= ===============================
name               cost for a query        memory, in bytes          distance from the softmax
================== ======================= ========================= ===============================
"uniform"          n; none if a batch      0                         large
                   shares its list
"popularity"       n; none if a batch      24 M                      large, less if popularity
                   shares its list                                   matters
"in_batch"         none                    24 M                      as "popularity"
"full"             M d                     0                         none: no draws
"midx_uniform"     2 K d + K^2 + n log K   8 K d + 28 K^2 + 8 M      small; less with more codewords
"midx_popularity"  the same                8 K d + 28 K^2 + 32 M     small; mostly less than
                                                                     "midx_uniform"
"midx_exact"       M d + n log M           8 K d + 28 K^2 +          none
                                           (8 + 4 d) M
"kernel"           n d^2 log(M / d)        up to 8 M d               medium: items of very negative
                                                                     scores are drawn too
"dns"              n_candidates n d        4 M d                     biased on purpose, towards
                                                                     hard negatives
"self_adversarial" n d                     4 M d                     biased on purpose, by weights
"pris"             K d + n (d + log K)     4 (K + M) d + 32 M        biased on purpose, by weights
"aobpr"            d + n log d             4 M d                     biased on purpose, by single
                                                                     factors of the score
================== ======================= ========================= ===============================
"""

from functools import partial

import numpy as np

from freqfm._components import NON_NEGATIVE
from freqfm.formulas import codes
from freqfm.formulas.proposals import Proposal
from freqfm.samplers._base import QuerySampler, Sampler, proposal_of
from freqfm.samplers._by_query import AOBPR, DNS, MIDX, PRIS, Kernel, SelfAdversarial

__all__ = [
    "AOBPR",
    "DNS",
    "MIDX",
    "PRIS",
    "SAMPLERS",
    "Full",
    "InBatch",
    "Kernel",
    "Popularity",
    "Proposal",
    "QuerySampler",
    "Sampler",
    "SelfAdversarial",
    "Uniform",
    "proposal_of",
]

# Whole batches share a list of negatives of these.


class Uniform(Sampler):
    """Every item is equally likely, with replacement; the user's items are not excluded.

    Parameters
    ----------
    shared : bool, default=True
        Whether all positives of a batch share one list of negatives. Scores are then one matrix
        product, ten times faster or more. False draws a list for each positive. Losses that
        compare pairs, such as BPR, always draw a list per positive.

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

    def __init__(self, *, shared: bool = True):
        self.shared = shared

    @property
    def negatives_code(self):
        """How the negatives of a batch are arranged."""
        return codes.NEGATIVES_SHARED if self.shared else codes.NEGATIVES_SEPARATE

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        return Proposal(n_items=len(counts))


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

    def __init__(self, exponent: float = 0.75, *, shared: bool = True):
        super().__init__(shared=shared)
        self.exponent = exponent

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        with np.errstate(over="ignore"):
            weight = (np.asarray(counts, dtype=np.float64) + 1) ** self.exponent
        if not np.isfinite(weight.sum()):
            raise ValueError(
                f"exponent={self.exponent} makes weights of the counts, up to {np.max(counts):g}, "
                f"that are beyond the largest float; lower it."
            )
        return proposal_of(weight)


class InBatch(Sampler):
    """All positives of the batch are negatives for each other: drawn by popularity, at no cost.

    Outside of training, ``sample`` draws in proportion to the counts.

    Parameters
    ----------
    corrected : bool, default=True
        Whether a softmax subtracts the log of the popularity from the logits. If not, scores are
        relative to popularity, and a ranking by cosines is poor. Rankings are then by dot products
        unless ``ranking`` says otherwise: with the backbone
        :class:`~freqfm.backbones.LightGCN` the lengths of vectors grow with popularity. The authors
        of [1]_ train LightGCN so.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023.

    Examples
    --------
    >>> from freqfm.samplers import InBatch
    >>> InBatch()
    InBatch()
    """

    negatives_code = codes.NEGATIVES_IN_BATCH
    _parameter_constraints = {"corrected": ["boolean"]}

    def __init__(self, *, corrected: bool = True):
        self.corrected = corrected

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        return proposal_of(np.maximum(counts, 1))


class Full(Sampler):
    """All items: the exact softmax, with one sum for all positives of a user.

    Nothing is drawn in training; ``sample`` and ``log_proba`` are those of :class:`Uniform`.

    Examples
    --------
    >>> from freqfm.samplers import Full
    >>> Full()
    Full()
    """

    negatives_code = codes.NEGATIVES_FULL

    def proposal(self, counts):
        """Return the distribution over items, see :class:`Sampler`."""
        return Proposal(n_items=len(counts))


SAMPLERS = {
    "uniform": Uniform,
    "popularity": Popularity,
    "in_batch": InBatch,
    "full": Full,
    "midx_uniform": partial(MIDX, variant="uniform"),
    "midx_popularity": partial(MIDX, variant="popularity"),
    "midx_exact": partial(MIDX, variant="exact"),
    "kernel": Kernel,
    "dns": DNS,
    "self_adversarial": SelfAdversarial,
    "aobpr": AOBPR,
    "pris": PRIS,
}
