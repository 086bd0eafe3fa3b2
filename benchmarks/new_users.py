"""New users of MovieLens-100K: folded in, and after one call of ``partial_fit``.

A model is fitted on all users but 150. Of each of these a fifth of the ratings is hidden; the rest
is folded in by ``recommend(X)``, then learned by ``partial_fit``. The table has NDCG@10 of the
hidden items: of the most popular items, folded in, after ``partial_fit`` by ``users=``, the ratio
of the latter two, and folded in again after it.

    python benchmarks/new_users.py --data DIR [--models bsl lightgcn] [--seeds 3]
"""

import json

import numpy as np
from _data import data_parser, require_data
from scipy import sparse

from freqfm import FastVAERecommender, MFRecommender
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

K = 10
N_NEW = 150
LOSSES = ("bsl", "softmax", "bpr", "directau", "mawu")
BACKBONES = ("lightgcn", "mlp")  # with the default loss
MODELS = (*LOSSES, *BACKBONES, "vae")


def load(data):
    """Return MovieLens-100K as a matrix of ones."""
    table = np.loadtxt(data / "ml100k" / "u.data", dtype=np.int64)
    users, items = (np.unique(table[:, c], return_inverse=True)[1] for c in (0, 1))
    return sparse.csr_array((np.ones(len(users), dtype=np.float32), (users, items)))


def measure(name, X, seed):
    """Return the figures of a model, by name, for one choice of the new users."""
    order = np.random.default_rng(seed).permutation(X.shape[0])
    known, history = X[np.sort(order[N_NEW:])], X[np.sort(order[:N_NEW])]
    history, hidden = holdout_interactions(history, 0.2, random_state=seed)
    if name == "vae":
        model = FastVAERecommender(random_state=seed)
    else:
        axis = "loss" if name in LOSSES else "backbone"
        model = MFRecommender(random_state=seed).set_params(**{axis: name})
    model.fit(known)

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


def main():
    """Measure, print and write ``new_users.json``."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    X = load(require_data(args))
    report = []
    for name in args.models:
        for seed in range(args.seeds):
            figures = measure(name, X, seed)
            if not report:
                print(f"{'model':10}seed", *(f"{key:>16}" for key in figures))
            print(
                f"{name:10}{seed:4}", *(f"{value:16.4f}" for value in figures.values()), flush=True
            )
            report.append({"model": name, "seed": seed, **figures})
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "new_users.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
