"""What ranks best after a point in time: models, weights that fade, and what is popular of late.

All ratings of MovieLens count, in four windows of 10 % of them, ``GlobalTimeSplit(4,
test_fraction=0.1)``: a model is fitted on all that came before a window and ranks its users' new
items. Parameters are chosen by NDCG@10 in the first two windows, one seed; the table has NDCG@10 of
the users of the last two, the mean of the seeds, their spread, and the difference to the most
popular items with its 95 % interval over users. Of each model there are three rows:

- as it is;
- with weights of interactions that halve every so many days;
- with popularity: the logarithm of the score (of BPR, MF and VAE the score itself) plus ``gain``
  times the logarithm of the item's count, in which days fade by half in so many days, or of the
  quotient of this and the count of all time.

    python benchmarks/quality/by_time.py --data DIR [--models '*ALS*' --seeds 3]
"""

import gzip
import json
import sys
from fnmatch import fnmatch
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, require_data
from scipy import sparse

from freqfm import ALSRecommender, FastVAERecommender, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import GlobalTimeSplit

K = 10
HALF_LIVES = (30, 90)
POPULARITY = {"half_life": (7, 14, 30), "gain": (0.1, 0.3, 1.0, 3.0), "quotient": (False, True)}


def ratings(args):
    """Return users, items (both numbered from 0) and days of the ratings."""
    if args.quick:
        users, items = make_interactions(200, 100, 5000, random_state=0).nonzero()
        return users, items, np.random.default_rng(0).uniform(0, 200, len(users))
    data = require_data(args)
    if args.data_set == "MovieLens-100K":
        users, items, _, seconds = movielens_100k(data)
    else:
        with gzip.open(data / "ml1m-ratings" / "ratings.dat.gz", "rt") as lines:
            users, items, _, seconds = np.loadtxt(
                (line.replace("::", " ") for line in lines), dtype=np.int64
            ).T
        users, items = (np.unique(ids, return_inverse=True)[1] for ids in (users, items))
    return users, items, seconds / 86400


class Window:
    """The interactions before a window of time, and the users and items in it."""

    def __init__(self, users, items, days, train, test):
        self.shape = users.max() + 1, items.max() + 1
        self.rows, self.items = (users[train], items[train]), items[train]
        self.ages = days[train].max() - days[train]
        self.history = self.matrix(np.ones(len(train)))
        ones = np.ones(len(test), np.float32)
        test = sparse.csr_array((ones, (users[test], items[test])), shape=self.shape)
        self.users = np.flatnonzero(np.diff(test.indptr))
        self.test, self.seen = test[self.users], self.history[self.users].nonzero()

    def matrix(self, weights):
        """Return the interactions before the window as a matrix."""
        return sparse.csr_array((weights.astype(np.float32), self.rows), shape=self.shape)

    def counts(self, half_life=np.inf):
        """Return how often each item occurs before, where a day fades by half in so many days."""
        return np.bincount(self.items, 0.5 ** (self.ages / half_life), self.shape[1])

    def ndcg(self, scores):
        """Return the NDCG of each user."""
        scores = scores.copy()
        scores[self.seen] = -np.inf
        return ndcg_at_k(
            self.test, np.argsort(-scores, axis=1, kind="stable")[:, :K], average=False
        )


def popular(window, seed, days=np.inf):
    """Return how often each item occurs in the last days, and as a tie-breaker in all."""
    counts = np.bincount(window.items, window.ages <= days, window.shape[1])
    return np.tile(counts + 1e-6 * window.counts(), (len(window.users), 1))


def gram(window, half_life):
    """Return the dot products of the items' columns."""
    X = window.matrix(0.5 ** (window.ages / half_life / 2))
    return (X.T @ X).toarray()


def neighbours(window, seed, half_life=np.inf):
    """Return sums of cosines of items."""
    products = gram(window, half_life)
    lengths = np.sqrt(products.diagonal()) + 1e-9
    np.fill_diagonal(products, 0)
    return window.history[window.users] @ (products / np.outer(lengths, lengths))


def ease(window, seed, half_life=np.inf, penalty=300):
    """Return the scores of EASE (Steck 2019)."""
    products = gram(window, half_life)
    products[np.diag_indices_from(products)] += penalty
    inverse = np.linalg.inv(products)
    weights = -inverse / inverse.diagonal()
    np.fill_diagonal(weights, 0)
    return window.history[window.users] @ weights


def fitted(make, window, seed, half_life=np.inf, **params):
    """Return the scores of a recommender of this package."""
    X = window.matrix(0.5 ** (window.ages / half_life))
    model = make(random_state=seed, n_jobs=1, **params).fit(X)
    every = {"n_recommendations": window.shape[1], "exclude_seen": False}
    items, found = model.recommend(users=window.users, **every)
    scores = np.full(found.shape, found[items >= 0].min(), dtype=np.float64)
    rows, places = np.nonzero(items >= 0)
    scores[rows, items[rows, places]] = found[rows, places]
    return scores


def with_popularity(score, is_positive, window, seed, half_life, gain, quotient):
    """Return scores that follow what is popular of late."""
    scores, late = score(window, seed), window.counts(half_life)
    if quotient:
        total = window.counts()
        late = (late * total.sum() / late.sum() + 1) / (total + 1)
    if is_positive:
        scores = np.log(np.maximum(scores, 1e-9))
    return scores + gain * np.log(late + 1e-3)


# With whether scores are positive, so that their logarithm is taken, and whether seeds matter.
MODELS = {
    "neighbours": (neighbours, True, False),
    "EASE": (ease, True, False),
    "ALSRecommender()": (partial(fitted, ALSRecommender), True, True),
    'MFRecommender(loss="bpr")': (partial(fitted, MFRecommender, loss="bpr"), False, True),
    "FastVAERecommender()": (partial(fitted, FastVAERecommender), False, True),
    "MFRecommender()": (partial(fitted, MFRecommender), False, True),
}


def points(grid):
    """Return the parameters of each point of a grid."""
    return [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]


def contenders(args):
    """Yield the name of each row, its scores, the points of its grid, and whether seeds matter."""
    yield "most popular", popular, [{}], False
    yield "most popular of the last days", popular, points({"days": (1, 3, 7, 14, 30, 60)}), False
    for name, (make, is_positive, is_random) in MODELS.items():
        if any(fnmatch(name, given) for given in args.models):
            score = cache(make)
            late = partial(with_popularity, score, is_positive)
            yield name, score, [{}], is_random
            yield f"{name}, popularity", late, points(POPULARITY), is_random
            if not args.without_weights:
                yield f"{name}, weights", score, points({"half_life": HALF_LIVES}), is_random


def ndcg(windows, score, seed, params):
    """Return the NDCG of each user of the windows."""
    return np.concatenate([one.ndcg(score(one, seed, **params)) for one in windows])


def measure(windows, score, grid, n_seeds):
    """Return the best point, its NDCG on validation, and that of each seed and user on test."""
    found = [ndcg(windows[:2], score, 0, params).mean() for params in grid]
    best = grid[int(np.argmax(found))]
    return best, max(found), [ndcg(windows[2:], score, seed, best) for seed in range(n_seeds)]


def main():
    """Measure, print and write ``by_time.json``."""
    parser = data_parser(__doc__.splitlines()[0])
    names = ("MovieLens-100K", "MovieLens-1M")
    parser.add_argument("--data-set", choices=names, default=names[0])
    parser.add_argument("--models", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--without-weights", action="store_true", help="no weights that fade")
    parser.add_argument("--quick", action="store_true", help="200 users, drawn: a test")
    args = parser.parse_args()
    table, report, baseline = ratings(args), [], None
    columns = np.column_stack(table)
    splitter = GlobalTimeSplit(4, test_fraction=0.1, time=2, verbose=1)
    windows = [Window(*table, *split) for split in splitter.split(columns)]
    print(f"{'':42}validation    test  spread  difference to most popular")
    for name, score, grid, is_random in contenders(args):
        grid, n_seeds = (grid[:2], 1) if args.quick else (grid, args.seeds)
        best, valid, users = measure(windows, score, grid, n_seeds if is_random else 1)
        seeds, mean = [float(of.mean()) for of in users], np.mean(users, axis=0)
        baseline = mean if baseline is None else baseline
        gain = mean - baseline
        half = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
        row = {"name": name, "params": best, "validation": valid, "test": seeds}
        report.append({**row, "gain": gain.mean(), "half": half})
        figures = f"{valid:10.4f}{np.mean(seeds):8.4f}{np.ptp(seeds):8.4f}"
        print(f"{name:42}{figures}{gain.mean():9.4f} +- {half:.4f}  {best}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "by_time.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
