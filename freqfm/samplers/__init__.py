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

from freqfm.formulas.proposals import Proposal
from freqfm.samplers._base import QuerySampler, Sampler, proposal_of
from freqfm.samplers._by_query import AOBPR, DNS, MIDX, PRIS, Kernel, SelfAdversarial
from freqfm.samplers._static import Full, InBatch, Popularity, Uniform

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
