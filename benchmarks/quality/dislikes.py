"""Dislikes of MovieLens-100K: ratings of 1 and 2, held out and looked for among recommendations.

Ratings are split at random into 80 % for training, 10 % for validation and 10 % for tests, by seed.
Each recommender is trained without the dislikes of the training part, and with each of some
weights of them. Of the weights at whose NDCG@10 the validation part's likes are found at least as
well as without dislikes, the one with the fewest of its dislikes among the first ten is chosen, for
all seeds together. The table has the means of all seeds on the test part, and their standard
deviations: NDCG@10 of likes, the share of dislikes among the first ten, and the ratio of the latter
to that of the model without dislikes; items of the training part are not recommended, but to models
without dislikes those are new that only were disliked ("hidden": these are left out, too).

"bsl+fm" orders the 300 best items of MFRecommender by score / temperature + power log P(like), with
the probability of a rating above 2.5 by the mean of three FMRegressor of the training part; the
power is chosen with the weight.

    python benchmarks/quality/dislikes.py --data DIR [--models bsl bsl+fm] [--seeds 5]
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, require_data
from scipy import sparse

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    FMRegressor,
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.metrics import dislike_rate_at_k, ndcg_at_k

K = 10
WEIGHTS = 0.25, 0.5, 1.0, 2.0, 4.0
POWERS = 0.0, 1.0, 2.0, 3.0, 4.0, 6.0

# Items that are ordered by predicted ratings, too; dislikes are ratings up to 2.
N_POOL, THRESHOLD = 300, 2.5

#: Recommenders that learn from dislikes, and those that only leave them out.
LEARN = {
    **{
        loss: lambda seed, loss=loss: MFRecommender(loss=loss, random_state=seed)
        for loss in ("bsl", "softmax", "bpr", "directau", "mawu")
    },
    "als": lambda seed: ALSRecommender(random_state=seed),
}
LEAVE_OUT = {
    "ease": lambda seed: EASERecommender(),
    "knn": lambda seed: ItemKNNRecommender(),
    "vae": lambda seed: FastVAERecommender(random_state=seed),
}


def parts(data, seed):
    """Return the training, validation and test parts: matrices of ratings."""
    users, movies, ratings, _ = movielens_100k(data)
    values, shape = ratings.astype(np.float64), (users.max() + 1, movies.max() + 1)
    order = np.random.default_rng(seed).permutation(len(users))
    ends = 8 * len(users) // 10, 9 * len(users) // 10
    return [
        sparse.csr_array((values[rows], (users[rows], movies[rows])), shape=shape)
        for rows in np.split(order, ends)
    ]


def signed(part):
    """Return a matrix of 1 for likes and -1 for dislikes."""
    part = part.copy()
    part.data = np.where(part.data < THRESHOLD, -1.0, 1.0)
    return part


def pairs(users, items, shape):
    """Return rows of a regression on ratings: one-hot users, then items."""
    columns = np.column_stack([users, shape[0] + items]).ravel()
    indptr = np.arange(0, len(columns) + 1, 2)
    return sparse.csr_array((np.ones(len(columns)), columns, indptr), (len(users), sum(shape)))


def log_likes(ratings, seed):
    """Return log P(like) of all users and items, if errors of ratings are about logistic."""
    rows, every = ratings.tocoo(), np.indices(ratings.shape).reshape(2, -1)
    X, X_every = pairs(rows.row, rows.col, ratings.shape), pairs(*every, ratings.shape)
    models = [FMRegressor(64, random_state=seed + 10 * i).fit(X, rows.data) for i in range(3)]
    predicted = np.mean([model.predict(X_every) for model in models], axis=0)
    return -np.logaddexp(0, -1.8 * (predicted - THRESHOLD)).reshape(ratings.shape)


def figures(items, parts):
    """Return NDCG@10 of likes and the share of dislikes found, for parts of held-out ratings."""
    return [metric(part, items) for part in parts for metric in (ndcg_at_k, dislike_rate_at_k)]


def lists_of(model, n_users, hidden=None, n=K):
    """Return the best items of all users, and their scores."""
    return model.recommend(users=np.arange(n_users), n_recommendations=n, exclude=hidden)


def measure(make, data, seeds, settings):
    """Return the figures of each model, (1 + 1 + n_settings, n_seeds, 4)."""
    rows = []
    for seed in range(seeds):
        ratings, *held_out = parts(data, seed)
        held_out, train = [signed(part) for part in held_out], signed(ratings)
        likes, dislikes = train.maximum(0).tocsr(), (-train).maximum(0).tocsr()
        model, n = make(seed).fit(likes), train.shape[0]
        logs = None if settings[0][1] is None else log_likes(ratings, seed)
        found = [figures(lists_of(model, n, hidden)[0], held_out) for hidden in (None, dislikes)]
        for weight in dict.fromkeys(weight for weight, _ in settings):
            model = make(seed).fit(likes, dislikes=weight * dislikes)
            items, scores = lists_of(model, n, n=N_POOL)
            for power in [power for one, power in settings if one == weight]:
                if power is not None:
                    added = power * np.take_along_axis(logs, items, axis=1)
                    order = np.argsort(-scores / model.temperature_ - added, axis=1)
                    items, scores = (
                        np.take_along_axis(of, order, axis=1) for of in (items, scores)
                    )
                found.append(figures(items[:, :K], held_out))
        rows.append(found)
    return np.array(rows).swapaxes(0, 1)


def report(name, found, settings):
    """Print the rows of a table of one recommender."""
    mean = found.mean(axis=1)
    fits = np.flatnonzero(mean[2:, 0] >= mean[0, 0])
    chosen = 2 + (fits[mean[2 + fits, 1].argmin()] if len(fits) else 0)
    labels = [
        f"weight {weight:g}" + ("" if power is None else f" power {power:g}")
        for weight, power in settings
    ]
    named = [(0, "without"), (1, "hidden"), (chosen, labels[chosen - 2])]
    for at, kind in named:
        ndcg, rate = found[at, :, 2], found[at, :, 3]
        ratio = rate / found[0, :, 3]
        numbers = (
            f"{of.mean():.4f} +- {of.std(ddof=1) if len(of) > 1 else 0:.4f}"
            for of in (ndcg, rate, ratio)
        )
        print(f"{name:10} {kind:18} {'   '.join(numbers)}", flush=True)
    validation = zip(("without", "hidden", *labels), mean, strict=True)
    print(f"{'':10} validation:", *(f"{of} {a:.4f} {b:.4f}," for of, (a, b, *_) in validation))


def main():
    """Print a table of all recommenders asked for."""
    parser = data_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=[*LEARN, *LEAVE_OUT, "bsl+fm"])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    data = require_data(arguments)
    print(f"{'model':10} {'dislikes':18} {'NDCG@10':20} {'dislikes@10':20} ratio")
    for name in arguments.models:
        settings = [(weight, None) for weight in (WEIGHTS if name in LEARN else (1.0,))]
        if name == "bsl+fm":
            settings = [(weight, power) for weight in (0.5, 1.0, 2.0) for power in POWERS]
        make = (LEARN | LEAVE_OUT)[name.removesuffix("+fm")]
        report(name, measure(make, data, arguments.seeds, settings), settings)


if __name__ == "__main__":
    main()
