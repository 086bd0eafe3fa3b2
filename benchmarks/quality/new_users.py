"""New users and new interactions of MovieLens-100K: folded in, and after ``partial_fit``.

A model is fitted on all users but 150. Of each of these a fifth of the ratings is hidden; the rest
is folded in by ``recommend(X)``, then learned by ``partial_fit``. The table has NDCG@10 of the
hidden items: of the most popular items, folded in, after ``partial_fit`` by ``users=``, the ratio
of the latter two, and folded in again after it.

With ``--by-time`` a model is fitted on the first 70 or 80 % of the ratings by time; the next tenth
is folded in, or learned by one call of ``partial_fit``, or a new model is fitted on both. The table
has NDCG@10 of the tenth after that.

    python benchmarks/quality/new_users.py --data DIR [--models bsl] [--seeds 3] [--by-time]
"""

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, require_data
from scipy import sparse

from freqfm import FastVAERecommender, MFRecommender
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

K = 10
N_NEW = 150
LOSSES = ("bsl", "softmax", "bpr", "directau", "mawu")
BACKBONES = ("lightgcn", "mlp")  # with the default loss
MODELS = (*LOSSES, *BACKBONES, "vae")


def matrix(users, items, part=slice(None)):
    """Return some interactions as a matrix of ones."""
    shape = users.max() + 1, items.max() + 1
    places = users[part], items[part]
    return sparse.csr_array((np.ones(len(places[0]), dtype=np.float32), places), shape=shape)


def model_of(name, seed):
    """Return a model with default parameters, but for a loss or a backbone."""
    if name == "vae":
        return FastVAERecommender(random_state=seed)
    axis = "loss" if name in LOSSES else "backbone"
    return MFRecommender(random_state=seed).set_params(**{axis: name})


def measure(name, X, seed):
    """Return the figures of a model, by name, for one choice of the new users."""
    order = np.random.default_rng(seed).permutation(X.shape[0])
    known, history = X[np.sort(order[N_NEW:])], X[np.sort(order[:N_NEW])]
    history, hidden = holdout_interactions(history, 0.2, random_state=seed)
    model = model_of(name, seed).fit(known)

    def ndcg(*args, **options):
        return ndcg_at_k(hidden, model.recommend(*args, n_recommendations=K, **options)[0])

    popular = np.argsort(-model.item_counts_, kind="stable")
    ranked = [popular[~np.isin(popular, row)][:K] for row in np.split(
        history.indices, history.indptr[1:-1])]  # fmt: skip
    figures = {"popular": ndcg_at_k(hidden, np.array(ranked)), "folded in": ndcg(history)}
    rows = sparse.vstack([sparse.csr_array(known.shape, dtype=np.float32), history])
    model.partial_fit(rows.tocsr())
    figures["partial_fit"] = ndcg(users=np.arange(known.shape[0], X.shape[0]))
    figures["ratio"] = figures["partial_fit"] / figures["folded in"]
    figures["folded in after"] = ndcg(history)
    return figures


def measure_by_time(name, users, items, share, seed):
    """Return the figures of a model that is fitted on the first ``share`` of all interactions."""
    first, second, third = (round(len(users) * (share + tenth)) for tenth in (0, 0.1, 0.2))
    known, new, test = (
        matrix(users, items, slice(*part)) for part in ((first,), (first, second), (second, third))
    )
    both, everyone = known + new, np.arange(known.shape[0])

    def ndcg(model, *args, **options):
        return ndcg_at_k(test, model.recommend(*args, n_recommendations=K, **options)[0])

    model = model_of(name, seed).fit(known)
    return {
        "share": share,
        "folded in": ndcg(model, both),
        "partial_fit": ndcg(model.partial_fit(new), users=everyone),
        "new fit": ndcg(model_of(name, seed).fit(both), users=everyone),
    }


def main():
    """Measure, print and write ``new_users.json``."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--by-time", action="store_true", help="new interactions, not new users")
    args = parser.parse_args()
    users, items, _, times = movielens_100k(require_data(args))
    order = np.argsort(times, kind="stable")
    users, items = users[order], items[order]
    report = []
    for name, seed, share in product(
        args.models, range(args.seeds), (0.7, 0.8) if args.by_time else (None,)
    ):
        if share is None:
            figures = measure(name, matrix(users, items), seed)
        else:
            figures = measure_by_time(name, users, items, share, seed)
        if not report:
            print(f"{'model':10}seed", *(f"{key:>16}" for key in figures))
        print(f"{name:10}{seed:4}", *(f"{value:16.4f}" for value in figures.values()), flush=True)
        report.append({"model": name, "seed": seed, **figures})
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "new_users.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
