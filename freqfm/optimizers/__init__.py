"""Optimizers: how the rows of an embedding table are updated from their gradients.

A learning rate per token needs one number per token where Adam needs two per weight:

================= ============================== ==================================
name              class                          state per token, d = n_components
================= ============================== ==================================
"sgd"             :class:`SGD`                   0
"fa_sgd"          :class:`FASGD`                 1
"cf_sgd"          :class:`CFSGD`                 1
"rowwise_adagrad" :class:`RowwiseAdagrad`        2 (one for the factors, one for the linear weight)
"adagrad"         :class:`Adagrad`               d + 1
"adam"            :class:`Adam`                  2 (d + 1)
================= ============================== ==================================
"""

from freqfm.optimizers._base import Optimizer, OptimizerState, WeightDecay
from freqfm.optimizers._frequency import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

__all__ = [
    "CFSGD",
    "FASGD",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "Optimizer",
    "OptimizerState",
    "RowwiseAdagrad",
    "WeightDecay",
]

OPTIMIZERS = {
    "sgd": SGD,
    "fa_sgd": FASGD,
    "cf_sgd": CFSGD,
    "rowwise_adagrad": RowwiseAdagrad,
    "adagrad": Adagrad,
    "adam": Adam,
}
