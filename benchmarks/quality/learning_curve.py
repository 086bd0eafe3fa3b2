"""NDCG against seconds: MFRecommender epoch by epoch, with its defaults and those of before.

Both train on training and validation parts together, and their epochs take turns in one process,
so that a disturbance meets both; a spectral start counts. Printed are NDCG at 20 of the test part,
where nothing is chosen, and the seconds until then; and those of ``ALSRecommender()``.

    python benchmarks/quality/learning_curve.py --data DIR --out results
    cp results/learning_curve.json docs/figures/
    python docs/figures/learning_curve.py

Reads Gowalla (the usual split), MovieLens-1M clicks and MovieLens-100K; ``--quick`` draws small
data. The seconds of the default are also given as a share of those of before, at the last epochs.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser
from _epochs import Epochs
from mf_defaults import BEFORE
from untuned import DATA_SETS, K, data_sets

from freqfm import ALSRecommender, MFRecommender
from freqfm.metrics import ndcg_at_k

SHOWN = (1, 2, 3, 5, 10, 20, 30, 50, 70, 100)


class Curve:
    """A model that is trained epoch by epoch, and its NDCG by epochs and seconds."""

    def __init__(self, params, X, test, seed, n_jobs):
        self.test = test
        self.model = MFRecommender(**params, random_state=seed, n_jobs=n_jobs)
        start = time.perf_counter()
        self._epochs = Epochs(self.model, X)
        self._seconds = time.perf_counter() - start
        self._n_epochs, self.points = 0, []
        self.last = self._epochs.n_epochs_of_fit

    @property
    def done(self):
        """Whether all epochs are trained."""
        return self._n_epochs == self.last

    def advance(self):
        """Train an epoch, and evaluate the model after some of them."""
        self._seconds += self._epochs()
        self._n_epochs += 1
        if self._n_epochs in SHOWN:
            point = self._n_epochs, self._seconds, ndcg(self.model, self.test)
            self.points.append(point)


def ndcg(model, test):
    """Return the NDCG of a model's recommendations."""
    users = np.flatnonzero(np.diff(test.indptr))
    found = model.recommend(users=users, n_recommendations=K)[0]
    return float(ndcg_at_k(test[users], found, k=K))


def als(X, test, seed, n_jobs):
    """Return the only point of ALSRecommender."""
    model = ALSRecommender(random_state=seed, n_jobs=n_jobs)
    start = time.perf_counter()
    model.fit(X)
    seconds = time.perf_counter() - start
    return [(model.n_iter_, seconds, ndcg(model, test))]


def curves(X, test, seed, n_jobs):
    """Return the points of each model: epochs, seconds and NDCG."""
    found = {"ALSRecommender()": als(X, test, seed, n_jobs)}
    trained = {
        "MFRecommender()": Curve({}, X, test, seed, n_jobs),
        "before": Curve(BEFORE, X, test, seed, n_jobs),
    }
    while not all(curve.done for curve in trained.values()):
        for curve in trained.values():
            if not curve.done:
                curve.advance()
    return found | {name: curve.points for name, curve in trained.items()}


def show(data, of_seeds):
    """Print means over seeds."""
    print(f"\n{data}, test\n{'':20}{'epochs':>8}{'seconds':>10}{'NDCG@20':>10}{'spread':>8}")
    for name in of_seeds[0]:
        for points in zip(*(found[name] for found in of_seeds), strict=True):
            epochs, seconds, values = zip(*points, strict=True)
            print(
                f"{name:20}{epochs[0]:8}{np.mean(seconds):10.2f}{np.mean(values):10.4f}"
                f"{np.ptp(values):8.4f}",
                flush=True,
            )
    ratios = [found["MFRecommender()"][-1][1] / found["before"][-1][1] for found in of_seeds]
    print(f"seconds of the default / before: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="200 users, drawn: a test")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "learning_curve.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for data, (train, valid, test) in data_sets(args):
        X = train + valid
        curves(X[:50], test[:50], 0, args.n_jobs)  # compiles, or reads what was compiled
        results[data] = [curves(X, test, seed, args.n_jobs) for seed in range(args.seeds)]
        path.write_text(json.dumps(results))
        show(data, results[data])


if __name__ == "__main__":
    main()
