"""Optimizers for BPR: validation NDCG@20 by epochs and seconds, on Gowalla and MovieLens-1M.

Models are trained on the training part, and scored on 2,500 users of the validation part; the test
part is not read. Only training is timed. "reached" tells when a model is first as good as Adam, the
first line, is in the end.

    python benchmarks/speed/bpr_optimizers.py --data DIR
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, require_data
from mf_speed import Freqfm

from freqfm._input.validation import count_threads
from freqfm.metrics import ranking_report
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

N_USERS = 2500
EPOCHS = (2, 5, 10, 15, 20, 30, 40, 60, 80, 100)
OPTIMIZERS = [
    "adam",  # its rate suits a fit of 100 epochs
    Adam(0.001),
    RowwiseAdagrad(0.05),  # the default
    RowwiseAdagrad(0.02),
    Adagrad(0.05),
    CFSGD(),
    CFSGD(1, max_step=0.2),
    CFSGD(2, max_step=0.2),
    FASGD(50, max_step=1e4),
    SGD(50),
]


def ndcg(model, train, valid, users):
    """Return the NDCG@20 of some users on the validation part."""
    scores = model.user_factors_[users] @ model.item_factors_.T
    scores[train[users].nonzero()] = -np.inf
    ranked = np.argsort(-scores, axis=1)[:, :20]
    return ranking_report(valid[users], ranked, 20)["ndcg@20"]


def learn(optimizer, train, valid, users, n_epochs):
    """Return rows of epochs, seconds of training and NDCG."""
    freqfm = Freqfm(train, count_threads(None), loss="bpr", optimizer=optimizer)
    seconds, curve = 0.0, []
    for epoch in range(1, n_epochs + 1):
        seconds += freqfm.epoch()
        if epoch in EPOCHS:
            curve.append((epoch, seconds, ndcg(freqfm.task.model, train, valid, users)))
    return np.array(curve)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    for name in ("gowalla", "ml1m-implicit"):
        train, valid, _ = click_parts(require_data(args), name)
        users = np.flatnonzero(np.diff(valid.indptr))
        users = np.sort(np.random.default_rng(0).permutation(users)[:N_USERS])
        epochs = [epoch for epoch in EPOCHS if epoch <= args.epochs]
        print(f"\n{name}: NDCG@20 after so many epochs")
        print(f"{'':40}" + "".join(f"{epoch:7}" for epoch in epochs) + "  s/epoch  reached")
        target = None
        for optimizer in OPTIMIZERS:
            curve = learn(optimizer, train, valid, users, args.epochs)
            target = curve[-1, 2] if target is None else target
            cells = "".join(f"{score:7.4f}" for score in curve[:, 2])
            better = curve[curve[:, 2] >= target]
            reached = f"{better[0, 1]:.1f} s, {better[0, 0]:.0f} epochs" if len(better) else "never"
            per_epoch = curve[-1, 1] / curve[-1, 0]
            print(f"{optimizer!s:40}{cells}{per_epoch:9.3f}  {reached}", flush=True)


if __name__ == "__main__":
    main()
