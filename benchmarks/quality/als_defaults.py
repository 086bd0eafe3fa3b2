"""How the default penalty of ALSRecommender was chosen: NDCG by its multiple of the size of noise.

Validation parts of MovieLens-100K, MovieLens-1M clicks and Gowalla, and parts of MovieLens-1M with
few items or few users, of which a fifth of every user's interactions is held out. Beside it are a
penalty of five average weights for an average user, and for up to 4,000 items the most popular
items, and EASE with the best of three penalties. No test part is read.

    python benchmarks/quality/als_defaults.py --data DIR
"""

import sys
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, require_data

from freqfm import ALSRecommender
from freqfm.estimators.recommenders.als import Objective
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

MULTIPLES = (0.25, 0.35, 0.45, 0.6)
MOST_ITEMS = 4000


def parts(data):
    """Yield the name of every data set, training and held-out interactions, and the k of NDCG."""
    for name in ("ml100k", "ml1m-implicit", "gowalla"):
        yield name, *click_parts(data, name)[:2], 20
    X = sum(click_parts(data, "ml1m-implicit"))
    by_popularity, rng = np.argsort(-X.sum(axis=0)), np.random.default_rng(0)
    for n_items, k in ((10, 3), (100, 5)):
        few = X[:, np.sort(by_popularity[:n_items])]
        yield f"{n_items} items", *held_out(few[np.diff(few.indptr) > 1][:2000]), k
    few = X[np.sort(rng.choice(X.shape[0], 300, replace=False))]
    yield "300 users", *held_out(few[:, few.sum(axis=0) > 1]), 10


def held_out(X):
    """Return a fifth of every user's interactions, after the others."""
    return holdout_interactions(X, 0.2, random_state=0)


def by_scores(scores, X, held_out, k):
    """Return the NDCG of items in the order of their scores, without those known."""
    users = np.flatnonzero(np.diff(held_out.indptr))
    unknown = np.where(X[users].toarray() > 0, -np.inf, scores[users])
    return ndcg_at_k(held_out[users], np.argsort(-unknown, axis=1, kind="stable")[:, :k])


def ease(X, penalty):
    """Return the scores of EASE (Steck, 2019)."""
    gram = (X.T @ X).toarray().astype(np.float64)
    inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return X @ weights


def judge(model, X, held_out, k):
    """Return the NDCG of a recommender, which is fitted."""
    model.fit(X)
    users = np.flatnonzero(np.diff(held_out.indptr))
    return ndcg_at_k(held_out[users], model.recommend(users=users, n_recommendations=k)[0])


def main():
    args = data_parser(__doc__).parse_args()
    header = [*map(str, MULTIPLES), "5 times", "popular", "EASE"]
    print(f"{'NDCG':16}" + "".join(f"{name:>9}" for name in header))
    for name, X, later, k in parts(require_data(args)):
        X, later = sparse.csr_array(X), sparse.csr_array(later)
        found = Objective.of(ALSRecommender(), Interactions(X))
        of_noise = found.regularization / MULTIPLES[2]
        of_five = 5 / (X.nnz / X.shape[0] + found.unobserved_weight * X.shape[1])
        penalties = *(m * of_noise for m in MULTIPLES), of_five
        models = [ALSRecommender(regularization=p, random_state=0) for p in penalties]
        row = [judge(model, X, later, k) for model in models]
        if X.shape[1] <= MOST_ITEMS:
            row.append(by_scores(np.broadcast_to(X.sum(axis=0), X.shape), X, later, k))
            row.append(max(by_scores(ease(X, penalty), X, later, k) for penalty in (30, 100, 500)))
        print(f"{name:16}" + "".join(f"{value:9.4f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
