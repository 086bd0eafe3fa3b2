"""Figure 2 of Li et al. (ICLR 2022): DeepFM on MovieLens-1M ratings; and beside FM on Frappe.

MovieLens: labels are "rating > 3", the split is 80/10/10 at random, vectors have d = 16, the tower
two layers of 16 on the vectors of user and movie side by side, batches 1,024 rows; no penalties.
The optimizer of the embeddings differs; the layers are trained by Adam, or, as in the paper, by
the same optimizer where it has a rate for dense layers. Rates are searched on the validation part
of the first seed; the test part is looked at once per seed, at the best validation epoch.

Frappe: the untuned ``DeepFMClassifier()`` and ``FMClassifier()``, trained on the rows of the
validation file; AUC on those of the test file.

    python benchmarks/reproduce/deepfm.py --data DIR --out results
    python benchmarks/reproduce/deepfm.py --quick

writes deepfm.json and deepfm.png and prints the tables; about ten minutes on two cores.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, roc_auc_score

from freqfm import DeepFMClassifier, DivergenceError, FMClassifier
from freqfm.datasets import load_libfm
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, SGD, Adagrad, Adam

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, data_parser, movielens_split, require_data

# The optimizer of the embeddings, and that of the layers.
GRID = {
    "SGD": [(SGD(rate), Adam(1e-3)) for rate in (3, 10, 20)],
    "CF-SGD": [(CFSGD(max_step=bound), Adam(1e-3)) for bound in (0.01, 0.02, 0.05)],
    "Adagrad": [(Adagrad(rate), Adam(1e-3)) for rate in (0.02, 0.04, 0.08)],
    "Adam": [(Adam(rate), Adam(1e-3)) for rate in (1e-3, 2e-3, 5e-3)],
    "SGD alone": [(SGD(rate), SGD(0.01)) for rate in (3, 10, 20)],
}


def fields_of(X):
    """Return the field of each column: users and movies, by the place of the entry in its row."""
    fields = np.zeros(X.shape[1], dtype=np.int64)
    fields[X.indices] = np.tile(np.arange(np.diff(X.indptr)[0]), X.shape[0])
    return fields


def train(parts, optimizers, seed, args):
    """Train until the validation AUC has not risen for ``args.patience`` epochs."""
    (X, y), (X_valid, y_valid), (X_test, y_test) = parts
    optimizer, layer_optimizer = optimizers
    model = DeepFMClassifier(
        16,
        hidden_layer_sizes=(16, 16),
        fields=fields_of(X),
        optimizer=optimizer,
        layer_optimizer=layer_optimizer,
        batch_size=1024,
        alpha_linear=0.0,
        alpha_factors=0.0,
        alpha_layers=0.0,
        dropout=args.dropout,
        init=Normal(0.01),
        random_state=seed,
    )
    run = {"optimizers": [repr(o) for o in optimizers], "loss": [], "auc": [], "seconds": []}
    best = test_auc = 0.0
    for epoch in range(1, args.max_epochs + 1):
        start = time.perf_counter()
        try:
            model.partial_fit(X, y, classes=[0, 1])
        except DivergenceError:
            break
        run["seconds"].append(time.perf_counter() - start)
        run["loss"].append(float(model.loss_curve_[-1]))
        run["auc"].append(float(roc_auc_score(y_valid, model.decision_function(X_valid))))
        if run["auc"][-1] > best:
            best, best_epoch = run["auc"][-1], epoch
            test_auc = float(roc_auc_score(y_test, model.decision_function(X_test)))
        elif epoch >= best_epoch + args.patience:
            break
    return {**run, "valid_auc": best, "test_auc": test_auc}


def movielens(data, args):
    """Search rates on the first seed, then compare the optimizers on all seeds."""
    parts, chosen = movielens_split(data, 0), {}
    print("validation AUC of the search")
    for name, candidates in GRID.items():
        candidates = candidates[:2] if args.quick else candidates
        aucs = [train(parts, optimizers, 0, args)["valid_auc"] for optimizers in candidates]
        chosen[name] = candidates[int(np.argmax(aucs))]
        found = zip(candidates, aucs, strict=True)
        print(f"{name:10} " + "  ".join(f"{o[0]!r} {auc:.4f}" for o, auc in found), flush=True)
    runs = {name: [] for name in GRID}
    for seed in range(args.seeds):
        parts = movielens_split(data, seed)
        for name, optimizers in chosen.items():
            runs[name].append(train(parts, optimizers, seed, args))
    print(f"\n{'':10}{'test AUC':>10}{'spread':>8}{'best epoch':>12}{'loss after 2':>14}")
    for name, of_name in runs.items():
        aucs = [run["test_auc"] for run in of_name]
        epochs = [int(np.argmax(run["auc"])) + 1 for run in of_name]
        losses = [run["loss"][min(1, len(run["loss"]) - 1)] for run in of_name]
        print(
            f"{name:10}{np.mean(aucs):10.4f}{np.ptp(aucs):8.4f}{np.mean(epochs):12.1f}"
            f"{np.mean(losses):14.4f}   {of_name[0]['optimizers']}"
        )
    return runs


def frappe(data, args):
    """Compare the untuned models on Frappe, over several seeds."""
    files = [data / "frappe" / f"frappe.{part}.libfm.gz" for part in ("validation", "test")]
    X, y, X_test, y_test = load_libfm(files)
    y, y_test = (y > 0).astype(int), (y_test > 0).astype(int)
    fields = fields_of(X)
    models = {
        "FMClassifier()": FMClassifier(),
        "DeepFMClassifier()": DeepFMClassifier(),
        "DeepFMClassifier(fields=...)": DeepFMClassifier(fields=fields),
    }
    print(f"\n{'Frappe, untuned':30}{'test AUC':>10}{'spread':>8}{'log loss':>10}{'seconds':>9}")
    found = {}
    for name, model in models.items():
        aucs, losses, start = [], [], time.perf_counter()
        for seed in range(args.seeds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.set_params(random_state=seed).fit(X, y)
            p = model.predict_proba(X_test)[:, 1]
            aucs.append(float(roc_auc_score(y_test, p)))
            losses.append(float(log_loss(y_test, p)))
        seconds = (time.perf_counter() - start) / args.seeds
        print(f"{name:30}{np.mean(aucs):10.4f}{np.ptp(aucs):8.4f}{np.mean(losses):10.4f}"
              f"{seconds:9.1f}", flush=True)  # fmt: skip
        found[name] = {"auc": aucs, "log_loss": losses}
    return found


def draw(runs, path):
    """Draw the training loss and the validation AUC of the first seed by epoch."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, title in zip(
        axes, ("loss", "auc"), ("training loss", "validation AUC"), strict=True
    ):
        for name, of_name in runs.items():
            curve = of_name[0][key]
            axis.plot(np.arange(1, len(curve) + 1), curve, label=name)
        axis.set(xlabel="epoch", title=title)
        axis.legend(fontsize="small")
    axes[1].set_ylim(0.74, 0.82)
    figure.savefig(path, dpi=110)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument("--dropout", type=float, default=0.2, help="of the MovieLens models")
    parser.add_argument("--max-epochs", type=int, help="at most (default: 40)")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a better AUC")
    parser.add_argument("--seeds", type=int, help="how many (default: 3)")
    args = parser.parse_args()
    args.seeds = args.seeds or (1 if args.quick else 3)
    args.max_epochs = args.max_epochs or (5 if args.quick else 40)
    data = require_data(args)
    args.out.mkdir(parents=True, exist_ok=True)
    results = {"frappe": frappe(data, args), "movielens": movielens(data, args)}
    (args.out / "deepfm.json").write_text(json.dumps(results, indent=1))
    draw(results["movielens"], args.out / "deepfm.png")


if __name__ == "__main__":
    main()
