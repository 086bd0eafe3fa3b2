"""MFRecommender(loss="warp") beside LightFM's WARP: equal dimensions and epochs, one thread.

Trains on the training parts of MovieLens-100K and MovieLens-1M clicks, in turns; prints the NDCG@20
of the test part (items of the validation part are not recommended), and the CPU seconds of an
epoch: means over seeds, and the spread. Both have their defaults but for the dimensions.

    python benchmarks/speed/warp_speed.py --data DIR
    python benchmarks/speed/warp_speed.py --quick
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "quality"))
from _data import QUICK, click_parts, data_parser, require_data
from _measure import installed
from _recommenders import LightFM

from freqfm import MFRecommender
from freqfm.metrics import ndcg_at_k

DATA_SETS = {"MovieLens-100K": "ml100k", "MovieLens-1M": "ml1m-implicit"}


class Freqfm:
    """The package's model."""

    def __init__(self, X, seed, epochs, n_components):
        self.model = MFRecommender(
            n_components, loss="warp", max_iter=epochs, n_jobs=1, random_state=seed
        ).fit(X)

    def rank(self, known, users):
        """Return the best items of users but for those that they know."""
        return self.model.recommend(users=users, n_recommendations=20, exclude=known[users])[0]


def peer(X, seed, epochs, n_components):
    """Return LightFM's model."""
    return LightFM("warp", X, seed, 1, epochs, no_components=n_components)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--n-components", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.seeds = 2, 1
    contenders = {"freqfm": Freqfm}
    if installed("lightfm"):
        contenders["LightFM"] = peer
    else:
        print("Without lightfm (pip install lightfm-next) there is nothing to compare with.")
    data = require_data(args)
    for title, name in DATA_SETS.items():
        X, valid, test = click_parts(data, name)
        users = np.flatnonzero(np.diff(test.indptr))
        Freqfm(X, 0, 1, args.n_components)  # compiles
        found = {contender: [] for contender in contenders}
        for seed in range(args.seeds):
            for contender, make in contenders.items():
                start = time.process_time()
                model = make(X, seed, args.epochs, args.n_components)
                seconds = (time.process_time() - start) / args.epochs
                ranked = model.rank(X + valid, users)
                found[contender].append((ndcg_at_k(test[users], ranked, k=20), seconds))
        for contender, runs in found.items():
            (ndcg, seconds), spread = np.mean(runs, axis=0), np.ptp(runs, axis=0)
            print(
                f"{title:15}{contender:8} NDCG@20 {ndcg:.4f} ({spread[0]:.4f})  "
                f"{seconds:.3f} ({spread[1]:.3f}) CPU s an epoch",
                flush=True,
            )


if __name__ == "__main__":
    main()
