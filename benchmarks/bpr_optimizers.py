"""Optimizers for BPR: validation NDCG@20 against epochs and seconds, on Gowalla and MovieLens-1M.

Models train on the training part and are scored on 2,500 users of the validation part; the test
part is not read. Training alone is timed. The first line is the reference: how many epochs and
seconds do the others take to reach its last NDCG?

    python benchmarks/bpr_optimizers.py --data DIR

Best of the rates tried for each optimizer, 64 components, the defaults otherwise; NDCG@20 after so
many epochs, and the first of them that reaches Adam's last one:

================================  ======  ======  ======  ======  =======
Gowalla                                5      10      20      40  reached
================================  ======  ======  ======  ======  =======
TABLE
"""

import numpy as np
from _data import click_parts, data_parser, require_data
from mf_speed import Freqfm

from freqfm._validation import count_threads
from freqfm.metrics import ranking_report
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

N_USERS = 2500
EPOCHS = (2, 5, 10, 15, 20, 30, 40, 60, 80, 100)
OPTIMIZERS = [
    "adam",
    "auto",
    Adam(0.001),
    RowwiseAdagrad(0.02),
    Adagrad(0.05),
    CFSGD(),
    CFSGD(1, max_step=0.2),
    CFSGD(2, max_step=0.2),
    FASGD(50, max_step=1e4),
    SGD(50),
]


def ndcg(model, valid, users):
    """Return the NDCG@20 of some users on the validation part."""
    ranked, _ = model.recommend(users=users, n_recommendations=20)
    return ranking_report(valid[users], ranked, [20])["ndcg@20"]
