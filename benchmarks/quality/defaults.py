"""How good FMClassifier() is untuned, and how its defaults were chosen: on validation rows.

Around the defaults, one setting at a time is changed, on the MovieLens-1M ratings (label
rating > 3, 80/10/10) and on Frappe (90 % of the validation file to train, 10 % to validate, the
test file to test). Only the last lines look at test rows.

    python benchmarks/quality/defaults.py --data DIR --out results
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, frappe_split, movielens_split, require_data
from sklearn.metrics import log_loss, roc_auc_score

from freqfm import FMClassifier
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

SETTINGS = [
    {},
    *({"optimizer": CFSGD(rate)} for rate in (0.5, 1.0, 4.0)),
    *({"optimizer": CFSGD(max_step=bound)} for bound in (0.02, 0.1, 0.2)),
    *({"optimizer": CFSGD(curvature_cap=cap)} for cap in (0.5, 1.0, 4.0)),
    *({"alpha_factors": alpha} for alpha in (0.0, 2.0, 12.0)),
    *({"alpha_linear": alpha} for alpha in (0.0, 0.3, 3.0)),
    *({"init": Normal(scale)} for scale in (0.0003, 0.01, 0.1)),
    *({"batch_size": size} for size in (256, 4096)),
    *({"n_components": size} for size in (8, 64)),
    *({"optimizer": SGD(rate)} for rate in (0.3, 1.0, 3.0)),
    *({"optimizer": FASGD(rate)} for rate in (1.0, 3.0, 10.0)),
    *({"optimizer": Adagrad(rate)} for rate in (0.02, 0.05, 0.1)),
    *({"optimizer": RowwiseAdagrad(rate)} for rate in (0.02, 0.05, 0.1)),
    *({"optimizer": Adam(rate)} for rate in (0.001, 0.003, 0.01)),
]


def auc(parts, settings, seed=0):
    """Fit on the first part, with early stopping; score the second."""
    (X, y), (X_valid, y_valid) = parts
    try:
        model = FMClassifier(random_state=seed, **settings).fit(X, y)
    except ValueError:
        return float("nan"), float("nan"), 0
    scores = model.decision_function(X_valid)
    probabilities = model.predict_proba(X_valid)[:, 1]
    return roc_auc_score(y_valid, scores), log_loss(y_valid, probabilities), model.best_iter_


def main():
    args = data_parser(__doc__).parse_args()
    data = require_data(args)
    sets = {"MovieLens": movielens_split(data, 0), "Frappe": frappe_split(data)}
    results = []
    print(f"{'validation: AUC, log loss, epochs':45}" + "".join(f"{name:>26}" for name in sets))
    for settings in SETTINGS:
        row = {name: auc(parts[:2], settings) for name, parts in sets.items()}
        results.append({"settings": repr(settings), **row})
        name = repr(settings) if settings else "the defaults"
        print(f"{name:45}" + "".join(f"{a:14.4f}{b:8.4f}{n:4d}" for a, b, n in row.values()))
    tests = {}
    for name, parts in sets.items():
        tests[name] = [auc((parts[0], parts[2]), {}, seed) for seed in range(3)]
        aucs = [a for a, _, _ in tests[name]]
        print(f"test, the defaults, three seeds, {name}: AUC {np.mean(aucs):.4f} "
              f"({np.min(aucs):.4f} to {np.max(aucs):.4f}), log loss "
              f"{np.mean([b for _, b, _ in tests[name]]):.4f}")  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "defaults.json").write_text(
        json.dumps({"validation": results, "test": tests}, indent=1)
    )


if __name__ == "__main__":
    main()
