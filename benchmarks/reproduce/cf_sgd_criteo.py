"""The optimizers of Li et al. (ICLR 2022) on a sample of Criteo's click log, as a small check.

``criteo_rows`` prepares the rows as the paper does; learning rates are searched on the dev
rows, the test rows are looked at once per seed. With 7,200 training rows AUCs are uncertain by
about 0.03: this shows that the pipeline runs on real logs of 39 fields, not which one is best.

    python benchmarks/reproduce/cf_sgd_criteo.py --data DIR --out results
    python benchmarks/reproduce/cf_sgd_criteo.py --quick
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from freqfm import DivergenceError, FMClassifier
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, criteo_rows, data_parser, require_data

GRID = {
    "SGD": [SGD(rate) for rate in (0.03, 0.1, 0.3, 1.0)],
    "FA-SGD": [FASGD(rate) for rate in (0.03, 0.1, 0.3, 1.0)],
    "CF-SGD": [CFSGD(rate) for rate in (0.03, 0.1, 0.3, 1.0, 2.0)],
    "Adagrad": [Adagrad(rate) for rate in (0.01, 0.03, 0.1)],
    "row-wise Adagrad": [RowwiseAdagrad(rate) for rate in (0.01, 0.03, 0.1)],
    "Adam": [Adam(rate) for rate in (0.001, 0.003, 0.01)],
}


def train(parts, optimizer, seed, max_epochs, patience=10):
    """Return the best dev AUC, its epoch, and the test AUC and log loss of that epoch."""
    train, dev, test = parts
    model = FMClassifier(optimizer=optimizer, batch_size=256, random_state=seed)
    best = {"dev_auc": 0.0, "epoch": 0}
    for epoch in range(1, max_epochs + 1):
        try:
            model.partial_fit(train.data, train.target, classes=[0, 1])
        except DivergenceError:
            break
        auc = roc_auc_score(dev.target, model.decision_function(dev.data))
        if auc > best["dev_auc"]:
            best = {
                "dev_auc": auc,
                "epoch": epoch,
                "test_auc": roc_auc_score(test.target, model.decision_function(test.data)),
                "test_log_loss": log_loss(test.target, model.predict_proba(test.data)[:, 1]),
            }
        elif epoch >= best["epoch"] + patience:
            break
    return best


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--max-epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    if args.quick:
        args.max_epochs, args.seeds = 2, 1
    data = require_data(args)
    first = criteo_rows(data, ["train"])
    parts = [first, *(criteo_rows(data, [part], first.encoder) for part in ("dev", "test"))]
    print(", ".join(f"{part.data.shape[0]} rows" for part in parts)
          + f"; {first.data.shape[1]} tokens, {first.target.mean():.1%} clicks")  # fmt: skip
    results = {}
    for name, candidates in GRID.items():
        searched = [
            train(parts, optimizer, 0, args.max_epochs)["dev_auc"] for optimizer in candidates
        ]
        chosen = candidates[int(np.argmax(searched))]
        runs = [train(parts, chosen, seed, args.max_epochs) for seed in range(args.seeds)]
        results[name] = {"optimizer": repr(chosen), "runs": runs}
        mean = {key: np.mean([run[key] for run in runs]) for key in runs[0]}
        print(
            f"{name:18} dev AUC {mean['dev_auc']:.4f}  test AUC {mean['test_auc']:.4f}  "
            f"test log loss {mean['test_log_loss']:.4f}  epoch {mean['epoch']:5.1f}  {chosen!r}"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "cf_sgd_criteo.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
