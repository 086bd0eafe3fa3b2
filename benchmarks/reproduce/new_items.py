"""Items that training has never seen: features of MovieLens-100K, beside LightFM.

A fifth of the items is new in test and another fifth in validation; models know ratings of 4 and 5
of the others, and of all items the genres and the year. For each seed both libraries search the
same grid by the NDCG@10 of the validation items, ranked among themselves, train again with what was
best on training and validation items, and rank the new ones. Popularity knows nothing of a new
item: all have a count of zero. It is shown in random order, in that of the data set, in which
well-known movies come first, and by the popularity of known items with the same features (a ridge
regression of log counts).

    python benchmarks/reproduce/new_items.py --data DIR --out results
    python benchmarks/reproduce/new_items.py --quick

LightFM is compared if it is installed (``pip install lightfm-next``). Finished fits go to
``--results`` (default: new_items.jsonl in ``--out``), and a fit that is there is skipped.
"""

import importlib.util
import itertools
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import QUICK, Results, data_parser, movielens_100k, require_data, table
from scipy import sparse
from sklearn.linear_model import Ridge

from freqfm import MFRecommender
from freqfm.backbones import Features
from freqfm.metrics import ndcg_at_k

K = 10
GRID = {"n_components": (8, 32), "epochs": (1, 5, 20), "identity": (True, False)}
LOSSES = {"freqfm": ("bpr", "bsl"), "LightFM": ("bpr", "warp")}


def movielens(data):
    """Return users x items, one for a rating of 4 or 5, and one-hot genres and years of items."""
    users, items, ratings, _ = movielens_100k(data)
    liked = ratings >= 4
    lines = (data / "ml100k" / "u.item").read_text("latin-1").splitlines()
    fields = [line.split("|") for line in lines]
    genres = np.array([field[5:] for field in fields], dtype=np.float32)
    years = np.array([field[2][-4:] for field in fields])
    years = np.float32(years[:, None] == np.setdiff1d(years, [""]))
    shape = users.max() + 1, len(lines)
    places = users[liked], items[liked]
    X = sparse.csr_array((np.ones(liked.sum(), np.float32), places), shape=shape)
    return X, sparse.csr_array(np.hstack([genres, years]))


def split(n_items, seed):
    """Return items to test on, to validate on, and to train on."""
    order = np.random.default_rng(seed).permutation(n_items)
    n = n_items // 5
    return order[:n], order[n : 2 * n], order[2 * n :]


def ndcg(scores, relevant):
    """Return the NDCG of new items, ranked among themselves, of users who like one of them."""
    users = np.flatnonzero(np.diff(relevant.indptr))
    ranked = np.argsort(-scores[users], axis=1, kind="stable")[:, :K]
    return float(ndcg_at_k(relevant[users], ranked, K))


def ours(X, known, new, *, n_components, epochs, identity, loss, seed, n_jobs):
    """Return the scores of new items by a fit to the known ones."""
    model = MFRecommender(
        n_components,
        backbone=Features(item_features=known, identity=identity),
        loss=loss,
        max_iter=epochs,
        random_state=seed,
        n_jobs=n_jobs,
    ).fit(X)
    n_known, n_new = X.shape[1], new.shape[0]
    items, found = model.recommend(
        users=np.arange(X.shape[0]), n_recommendations=n_new, item_features=new,
        candidates=np.arange(n_known, n_known + n_new),
    )  # fmt: skip
    scores = np.empty(items.shape)
    np.put_along_axis(scores, items - n_known, found, axis=1)
    return scores


def lightfm(X, known, new, *, n_components, epochs, identity, loss, seed, n_jobs):
    """Return LightFM's scores of new items; rows of features sum to one, as is its default."""
    from lightfm import LightFM

    features = sparse.vstack([known, new])
    if identity:
        own = sparse.csr_array(np.eye(features.shape[0], X.shape[1], dtype=np.float32))
        features = sparse.hstack([own, features])
    features = sparse.csr_matrix(features, dtype=np.float32)
    features.data /= np.repeat(np.maximum(features.sum(axis=1).A1, 1), np.diff(features.indptr))
    for name in ("indices", "indptr"):
        setattr(features, name, getattr(features, name).astype(np.int32))
    rows, columns = (of_axis.astype(np.int32) for of_axis in X.nonzero())
    pairs = sparse.coo_matrix((np.ones(X.nnz, np.float32), (rows, columns)), shape=X.shape)
    model = LightFM(no_components=n_components, loss=loss, random_state=seed)
    n_known = X.shape[1]
    model.fit(pairs, item_features=features[:n_known], epochs=epochs, num_threads=n_jobs or 2)
    biases, items = model.get_item_representations(features[n_known:])
    _, users = model.get_user_representations()
    return users @ items.T + biases


LIBRARIES = {"freqfm": ours, "LightFM": lightfm}


def fit(library, X, features, known, new, params):
    """Return the NDCG of new items and the seconds that a fit has taken."""
    start = time.perf_counter()
    scores = LIBRARIES[library](X[:, known], features[known], features[new], **params)
    seconds = time.perf_counter() - start
    return {"ndcg": ndcg(scores, X[:, new]), "seconds": seconds}


def popularities(X, features, known, new):
    """Return the NDCG of what does not depend on the user, see above."""
    counts = np.log1p(X[:, known].sum(axis=0))
    predicted = Ridge(1.0).fit(features[known], counts).predict(features[new])
    generator, shape = np.random.default_rng(0), (X.shape[0], len(new))
    n_users = shape[0]
    orders = {
        "popularity: none, in the order of the data": -new,
        "popularity by features": predicted,
    }
    found = {name: ndcg(np.tile(order, (n_users, 1)), X[:, new]) for name, order in orders.items()}
    random = [ndcg(generator.random(shape), X[:, new]) for _ in range(10)]
    return {"popularity: none, in random order": np.mean(random), **found}


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--results", type=Path, help="JSON lines of finished fits (in --out)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    results = Results(args.results or args.out / "new_items.jsonl")
    X, features = movielens(require_data(args))
    grid = {**GRID, "n_components": (8,), "epochs": (1,)} if args.quick else GRID
    libraries = [
        name for name in LIBRARIES if name == "freqfm" or importlib.util.find_spec("lightfm")
    ]
    found = {}
    for seed in range(1 if args.quick else args.seeds):
        test, valid, train = split(X.shape[1], seed)
        both = np.concatenate([train, valid])
        for name, score in popularities(X, features, both, test).items():
            found.setdefault(name, []).append((np.nan, score, ""))
        for library in libraries:
            points = {}
            for loss, *values in itertools.product(LOSSES[library], *grid.values()):
                params = {"loss": loss, **dict(zip(grid, values, strict=True))}
                params |= {"seed": seed, "n_jobs": args.n_jobs}
                key = {"library": library, **params, "part": "valid"}
                run = results.run(key, fit, library, X, features, train, valid, params)
                points[tuple(params.items())] = run["ndcg"]
            best = dict(max(points, key=points.get))
            key = {"library": library, **best, "part": "test"}
            run = results.run(key, fit, library, X, features, both, test, best)
            choice = ", ".join(str(best[name]) for name in ("loss", *grid))
            found.setdefault(library, []).append((max(points.values()), run["ndcg"], choice))
    rows = []
    for name, of_seeds in found.items():
        valid, test, choices = zip(*of_seeds, strict=True)
        cells = [
            "" if np.isnan(scores).any() else f"{np.mean(scores):.4f} +- {np.std(scores):.4f}"
            for scores in (valid, test)
        ]
        rows.append([name, *cells, "; ".join(filter(None, choices))])
    header = ["", f"valid N@{K}", f"test N@{K}", f"loss, {', '.join(grid)}"]
    table(
        f"new items of MovieLens-100K, {len(test)} seeds, mean +- standard deviation", header, rows
    )


if __name__ == "__main__":
    main()
