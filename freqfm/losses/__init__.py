"""Losses: what scores are compared with.

Factorization machines compare one score with one target; recommenders compare the scores of a
user's items with those of others.
"""

from freqfm.losses._pointwise import LogLoss, Loss, SquaredError
from freqfm.losses._ranking import BPR, BSL, MAWU, DirectAU, RankingLoss, Softmax

__all__ = [
    "BPR",
    "BSL",
    "LOSSES",
    "MAWU",
    "RANKING_LOSSES",
    "DirectAU",
    "LogLoss",
    "Loss",
    "RankingLoss",
    "Softmax",
    "SquaredError",
]

LOSSES = {"log_loss": LogLoss, "squared_error": SquaredError}

RANKING_LOSSES = {
    "softmax": Softmax,
    "bsl": BSL,
    "bpr": BPR,
    "directau": DirectAU,
    "mawu": MAWU,
}
