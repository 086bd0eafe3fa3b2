"""NDCG of diverse and of calibrated recommendations on MovieLens-100K, and their cost.

Ratings of 4 and 5 are interactions; a fifth of each user's is held out. Lists of 10 are measured by
NDCG, ``diversity_at_k`` on genres and on the model's vectors, coverage and miscalibration, for a
range of weights: of ``diversity`` on the model's vectors, on genres, and of ``calibrate``.

    python benchmarks/quality/variety.py --data DIR --out results [--seeds 3]

Writes ``variety.json``, from which ``docs/figures/variety.py`` draws. With ``--time`` it prints the
CPU time of ``recommend`` with diversity over that without, on one thread, in alternating runs.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, require_data
from scipy import sparse

from freqfm import ALSRecommender, EASERecommender, ItemKNNRecommender, MFRecommender
from freqfm.metrics import coverage_at_k, diversity_at_k, miscalibration_at_k, ndcg_at_k
from freqfm.model_selection import holdout_interactions
from freqfm.reranking import calibrate

K, N_CANDIDATES = 10, 100
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MODELS = {
    "MFRecommender": MFRecommender,
    "ALSRecommender": ALSRecommender,
    "EASERecommender": EASERecommender,
    "ItemKNNRecommender": ItemKNNRecommender,
}
RUNS = 7


def model_of(name, seed):
    """Return a model with default parameters."""
    model = MODELS[name](n_jobs=1)
    return model.set_params(random_state=seed) if "random_state" in model.get_params() else model


def genres_of_movies(data):
    """Return which of 19 genres each movie of MovieLens-100K has."""
    lines = (data / "ml100k" / "u.item").read_text("latin-1").splitlines()
    return np.array([line.split("|")[5:] for line in lines], dtype=np.float64)


def own_vectors(model):
    """Return the vectors by which ``recommend`` tells how much items differ."""
    if hasattr(model, "item_weights_"):
        return model.item_weights_
    return model.item_factors_[:, : model._compared_columns]


def measure(name, history, held_out, genres, seed):
    """Return the metrics of a model's lists by method and weight."""
    model = model_of(name, seed).fit(history)
    users = np.arange(history.shape[0])
    candidates = model.recommend(users=users, n_recommendations=N_CANDIDATES)

    def metrics(ranked):
        return {
            "ndcg": ndcg_at_k(held_out, ranked),
            "diversity of genres": diversity_at_k(ranked, genres),
            "diversity of vectors": diversity_at_k(ranked, own_vectors(model)),
            "coverage": coverage_at_k(ranked, history.shape[1]),
            "miscalibration": miscalibration_at_k(ranked, genres, history),
        }

    def recommended(weight, vectors=None):
        options = {"n_recommendations": K, "diversity": weight, "item_vectors": vectors}
        return model.recommend(users=users, **options)[0]

    return {
        "own vectors": [metrics(recommended(weight)) for weight in WEIGHTS],
        "genres": [metrics(recommended(weight, genres)) for weight in WEIGHTS],
        "calibrated": [
            metrics(calibrate(*candidates, genres, history, weight, K)[0]) for weight in WEIGHTS
        ],
    }


def cpu_seconds(model, options, repeats):
    """Return the mean CPU time of some calls of ``recommend``."""
    begin = time.process_time()
    for _ in range(repeats):
        model.recommend(**options)
    return (time.process_time() - begin) / repeats


def compare_times(name, history, vectors=None):
    """Print the time of diverse recommendations over that of others: for all users, and for one."""
    model = model_of(name, 0)
    if "max_iter" in model.get_params():
        model.set_params(max_iter=3)
    model.fit(history)
    users = np.arange(history.shape[0])
    for kind, query, repeats in (("all users", users, 1), ("one user", 5, 20)):
        for diversity in (0.3, 0.7):
            options = {"users": query, "n_recommendations": K}
            diverse = options | {"diversity": diversity, "item_vectors": vectors}
            times = [
                [cpu_seconds(model, way, repeats) for way in (options, diverse)]
                for _ in range(RUNS + 1)
            ]
            plain, other = np.median(times[1:], axis=0)
            print(f"{name:20} {kind:9} diversity={diversity} {1e3 * plain:9.3f} ms"
                  f" {1e3 * other:9.3f} ms  ratio {other / plain:.2f}", flush=True)  # fmt: skip


def main():
    """Measure the models that were asked for."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time", action="store_true", help="compare CPU times, on all data sets")
    args = parser.parse_args()
    data = require_data(args)
    users, items, ratings, _ = movielens_100k(data)
    genres = genres_of_movies(data)
    liked, shape = ratings >= 4, (users.max() + 1, len(genres))
    ones = np.ones(np.count_nonzero(liked), dtype=np.float32)
    X = sparse.csr_array((ones, (users[liked], items[liked])), shape=shape)
    if args.time:
        sets = {"MovieLens-100K": X}
        for name, folder in (("MovieLens-1M", "ml1m-implicit"), ("Gowalla", "gowalla")):
            sets[name] = sparse.csr_array(sparse.load_npz(data / folder / "train.npz"))
        for name, history in sets.items():
            for model in args.models:
                if (name, model) != ("Gowalla", "EASERecommender"):
                    print(name, end=" ")
                    compare_times(model, history)
        return
    results = {name: [] for name in args.models}
    for seed in range(args.seeds):
        history, held_out = holdout_interactions(X, 0.2, random_state=seed)
        for name in args.models:
            results[name].append(measure(name, history, held_out, genres, seed))
            print(seed, name, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "variety.json"
    rounded = json.loads(json.dumps(results), parse_float=lambda text: round(float(text), 4))
    path.write_text(json.dumps({"weights": WEIGHTS, "models": rounded}) + "\n")


if __name__ == "__main__":
    main()
