"""Losses: how scores are compared with targets, or with other scores.

Factorization machines compare one score with one target; recommenders compare the scores of a
user's items with those of others.
"""

from freqfm.losses._pointwise import Huber, LogLoss, Loss, Poisson, Quantile, SquaredError
from freqfm.losses._ranking import (
    BPR,
    BSL,
    CCL,
    MACR,
    MAWU,
    PSL,
    WARP,
    DirectAU,
    PairwiseLoss,
    RankingLoss,
    SLatK,
    Softmax,
    VectorLoss,
)

__all__ = [
    "BPR",
    "BSL",
    "CCL",
    "CLASS_LOSSES",
    "LOSSES",
    "MACR",
    "MAWU",
    "PSL",
    "RANKING_LOSSES",
    "REAL_LOSSES",
    "WARP",
    "DirectAU",
    "Huber",
    "LogLoss",
    "Loss",
    "PairwiseLoss",
    "Poisson",
    "Quantile",
    "RankingLoss",
    "SLatK",
    "Softmax",
    "SquaredError",
    "VectorLoss",
]

#: Losses of factorization machines: for classes, and for real numbers.
CLASS_LOSSES = {"log": LogLoss}
REAL_LOSSES = {"squared": SquaredError, "huber": Huber, "poisson": Poisson, "quantile": Quantile}

LOSSES = CLASS_LOSSES | REAL_LOSSES

RANKING_LOSSES = {
    "softmax": Softmax,
    "bsl": BSL,
    "psl": PSL,
    "slatk": SLatK,
    "ccl": CCL,
    "bpr": BPR,
    "warp": WARP,
    "directau": DirectAU,
    "mawu": MAWU,
    "macr": MACR,
}
