"""Dislikes of MovieLens-100K: ratings of 1 and 2, held out and looked for among recommendations.

Ratings are split at random into 80 % for training, 10 % for validation and 10 % for tests, by seed.
Each recommender is trained without the dislikes of the training part, and with each of some
weights of them. Of the weights at whose NDCG@10 the validation part's likes are found at least as
well as without dislikes, the one with the fewest of its dislikes among the first ten is chosen, for
all seeds together. The table has the means of all seeds on the test part, and their standard
deviations: NDCG@10 of likes, the share of dislikes among the first ten, and the ratio of the latter
to that of the model without dislikes; items of the training part are not recommended, but to models
without dislikes those are new that only were disliked ("hidden": these are left out, too).

    python benchmarks/quality/dislikes.py --data DIR [--models bsl] [--seeds 5]
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
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.metrics import dislike_rate_at_k, ndcg_at_k

K = 10
WEIGHTS = 0.25, 0.5, 1.0, 2.0, 4.0

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
    """Return the training, validation and test parts: matrices of 1 for likes, -1 for dislikes."""
    users, movies, ratings, _ = movielens_100k(data)
    values, shape = np.where(ratings <= 2, -1.0, 1.0), (users.max() + 1, movies.max() + 1)
    order = np.random.default_rng(seed).permutation(len(users))
    ends = 8 * len(users) // 10, 9 * len(users) // 10
    return [
        sparse.csr_array((values[rows], (users[rows], movies[rows])), shape=shape)
        for rows in np.split(order, ends)
    ]


def figures(model, parts, hidden=None):
    """Return NDCG@10 of likes and the share of dislikes found, for parts of held-out ratings."""
    users = np.arange(parts[0].shape[0])
    items, _ = model.recommend(users=users, n_recommendations=K, exclude=hidden)
    return [metric(part, items) for part in parts for metric in (ndcg_at_k, dislike_rate_at_k)]


def measure(make, data, seeds, weights):
    """Return the figures of each model, (1 + 1 + n_weights, n_seeds, 4)."""
    rows = []
    for seed in range(seeds):
        train, *held_out = parts(data, seed)
        likes, dislikes = train.maximum(0).tocsr(), (-train).maximum(0).tocsr()
        model = make(seed).fit(likes)
        found = [figures(model, held_out), figures(model, held_out, dislikes)]
        for weight in weights:
            model = make(seed).fit(likes, dislikes=weight * dislikes)
            found.append(figures(model, held_out))
        rows.append(found)
    return np.array(rows).swapaxes(0, 1)


def report(name, found, weights):
    """Print the rows of a table of one recommender."""
    mean = found.mean(axis=1)
    fits = np.flatnonzero(mean[2:, 0] >= mean[0, 0])
    chosen = 2 + (fits[mean[2 + fits, 1].argmin()] if len(fits) else 0)
    named = [(0, "without"), (1, "hidden"), (chosen, f"weight {weights[chosen - 2]:g}")]
    for at, kind in named:
        ndcg, rate = found[at, :, 2], found[at, :, 3]
        ratio = rate / found[0, :, 3]
        numbers = (
            f"{of.mean():.4f} +- {of.std(ddof=1) if len(of) > 1 else 0:.4f}"
            for of in (ndcg, rate, ratio)
        )
        print(f"{name:10} {kind:12} {'   '.join(numbers)}", flush=True)
    print(f"{'':10} validation: " + ", ".join(
        f"{weight:g} {one[0]:.4f} {one[1]:.4f}"
        for weight, one in zip(("without", "hidden", *weights), mean, strict=True)
        if not isinstance(weight, str)
    ) + f"; without {mean[0, 0]:.4f} {mean[0, 1]:.4f}", flush=True)  # fmt: skip


def main():
    """Print a table of all recommenders asked for."""
    parser = data_parser(__doc__)
    parser.add_argument("--models", nargs="*", default=[*LEARN, *LEAVE_OUT])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    data = require_data(arguments)
    print(f"{'model':10} {'dislikes':12} {'NDCG@10':20} {'dislikes@10':20} ratio")
    for name in arguments.models:
        weights = WEIGHTS if name in LEARN else (1.0,)
        make = LEARN[name] if name in LEARN else LEAVE_OUT[name]
        report(name, measure(make, data, arguments.seeds, weights), weights)


if __name__ == "__main__":
    main()
