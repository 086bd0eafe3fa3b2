"""Negative samplers: which items a positive is compared with, and with what probability.

The cost of a softmax over all items grows with their number. A sum over a few drawn items, each
divided by its probability, estimates the same sum, and the closer the distribution is to the
softmax itself, the better the estimate. :class:`Uniform`, :class:`Popularity` and :class:`InBatch`
do not depend on the query; :class:`MIDX` and :class:`Kernel` do, at a cost that hardly depends on
the number of items. :class:`DNS` and :class:`SelfAdversarial` prefer hard negatives on purpose.
"""

from functools import partial

from freqfm.formulas.sampling_laws import Proposal
from freqfm.samplers._base import QuerySampler, Sampler
from freqfm.samplers._hard import DNS, SelfAdversarial
from freqfm.samplers._kernel import Kernel
from freqfm.samplers._midx import MIDX
from freqfm.samplers._static import Full, InBatch, Popularity, Uniform

__all__ = [
    "DNS",
    "MIDX",
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
}
