"""BPR by samplers of negatives: NDCG@50 and recall@50 on the test part.

Each sampler has six settings, two learning rates times three values of what it depends on most. One
fit of each, which stops early by the validation part's NDCG@50, finds the best; the table has the
means of that one over seeds, and their standard deviations. Models are trained on the training part
alone, and recommend no items of the validation part.

    python benchmarks/quality/bpr_samplers.py --data DIR [--data-set ml1m] [--samplers dns pris]

``--quick`` draws small data, and trains a few epochs.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, click_parts, data_parser, require_data

from freqfm import MFRecommender
from freqfm.metrics import ranking_report
from freqfm.samplers import AOBPR, DNS, PRIS, SelfAdversarial

DATA_SETS = {"gowalla": "gowalla", "ml1m": "ml1m-implicit", "ml100k": "ml100k"}
K = 50
RATES = 0.02, 0.1

SETTINGS = {
    "uniform": [{"negative_sampler": "uniform", "n_negatives": n} for n in (1, 5, 20)],
    "dns": [{"negative_sampler": DNS(n)} for n in (4, 16, 64)],
    "aobpr": [{"negative_sampler": AOBPR(scale)} for scale in (20, 100, 500)],
    "pris": [{"negative_sampler": PRIS(), "n_negatives": n} for n in (5, 10, 20)],
    "self_adversarial": [
        {"negative_sampler": SelfAdversarial(), "n_negatives": n} for n in (5, 10, 20)
    ],
}


def fit(setting, parts, seed, args):
    """Return a model trained on the first part, for as long as the second says."""
    model = MFRecommender(
        64, loss="bpr", max_iter=args.epochs, early_stopping=True, n_iter_no_change=10,
        n_recommendations=K, random_state=seed, n_jobs=args.n_jobs, **setting,
    )  # fmt: skip
    return model.fit(parts[0], X_val=parts[1])


def found_in_test(model, parts):
    """Return NDCG and recall of the last part."""
    train, valid, test = parts
    users = np.flatnonzero(np.diff(test.indptr))
    items, _ = model.recommend(users=users, n_recommendations=K, exclude=(train + valid)[users])
    report = ranking_report(test[users], items, k=K)
    return report[f"ndcg@{K}"], report[f"recall@{K}"]


def measure(name, parts, args):
    """Print the settings of a sampler on validation, and the best of them on test."""
    best, chosen = -1.0, None
    for rate in RATES:
        for setting in SETTINGS[name]:
            model = fit({**setting, "learning_rate": rate}, parts, 0, args)
            ndcg = max(model.validation_scores_)
            print(f"{setting} learning_rate={rate}: validation {ndcg:.4f}, {model.n_iter_} epochs")
            if ndcg > best:
                best, chosen = ndcg, {**setting, "learning_rate": rate}
    found = [found_in_test(fit(chosen, parts, seed, args), parts) for seed in range(args.seeds)]
    spread = np.std(found, axis=0, ddof=1) if args.seeds > 1 else np.zeros(2)
    numbers = zip(np.mean(found, axis=0), spread, strict=True)
    print(f"{name}, {chosen}: ", *(f"{mean:.4f} +- {of:.4f}" for mean, of in numbers), flush=True)


def main():
    """Measure the samplers asked for."""
    parser = data_parser(__doc__)
    parser.add_argument("--data-set", choices=DATA_SETS, default="ml100k")
    parser.add_argument("--samplers", nargs="*", default=[*SETTINGS], choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    data_set = DATA_SETS[args.data_set]
    if args.quick:
        data_set, args.epochs, args.seeds = "gowalla", 2, 1
    parts = click_parts(require_data(args), data_set)
    for name in args.samplers:
        measure(name, parts, args)


if __name__ == "__main__":
    main()
