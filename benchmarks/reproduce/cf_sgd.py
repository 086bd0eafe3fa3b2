"""Figures 2 and 3 of Li et al. (ICLR 2022) on MovieLens-1M ratings: who learns how fast, and why.

Labels are "rating > 3", features the ids of user and movie, the split is 80/10/10 at random, the
model a factorization machine with d = 64, batches of 1,024, no penalty, linear weights from zero.
Every optimizer's learning rate (CF-SGD's bound too) is searched on the validation part of the
first seed; the test part is looked at once per seed, at the best validation epoch.

    python benchmarks/reproduce/cf_sgd.py --data DIR --out results
    python benchmarks/reproduce/cf_sgd.py --data DIR --out results --linear-scale 1
    python benchmarks/reproduce/cf_sgd.py --quick

writes cf_sgd.json and cf_sgd.png and prints the tables; about ten minutes on two cores. With
``--linear-scale`` linear weights start from normal random numbers of that standard deviation, 1 in
the PyTorch code behind the paper's figures, and the files are cf_sgd_linear.json and .png.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.metrics import log_loss, roc_auc_score

from freqfm import DivergenceError, FMClassifier
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, data_parser, movielens_split, require_data

GRID = {
    "SGD": [SGD(rate) for rate in (3, 10, 20, 30, 100)],
    "FA-SGD": [FASGD(rate) for rate in (3, 10, 20, 30)],
    "CF-SGD": [
        CFSGD(rate, max_step=bound) for rate in (0.5, 1.0, 1.5, 2.0) for bound in (0.05, 0.1, 0.2)
    ],
    "CF-SGD, no bound": [CFSGD(rate, max_step=np.inf) for rate in (0.5, 1.0, 1.5, 2.0)],
    "Adagrad": [Adagrad(rate) for rate in (0.01, 0.02, 0.03, 0.05)],
    "row-wise Adagrad": [RowwiseAdagrad(rate) for rate in (0.01, 0.02, 0.03, 0.05)],
    # Moments of absent rows decay too, as in the PyTorch code behind the paper's figures.
    "Adam": [Adam(rate, lazy=False) for rate in (3e-4, 1e-3, 2e-3)],
    "lazy Adam": [Adam(rate) for rate in (3e-4, 1e-3, 2e-3, 3e-3)],
}


def train(parts, optimizer, seed, args):
    """Train until the validation AUC has not risen for ``args.patience`` epochs."""
    (X, y), (X_valid, y_valid), (X_test, y_test) = parts
    counts = np.bincount(X.indices, minlength=X.shape[1])
    occurs = counts > 0
    # Validation rows whose movie is in the less frequent half of the movies.
    movie = X_valid.indices.reshape(len(y_valid), 2)[:, 1]
    first_movie = X.indices.reshape(len(y), 2)[:, 1].min()
    tail = counts[movie] <= np.median(counts[first_movie:])
    model = FMClassifier(
        args.components,
        optimizer=optimizer,
        batch_size=1024,
        alpha_linear=0.0,
        alpha_factors=0.0,
        init=Normal(0.01),
        random_state=seed,
    )
    if isinstance(optimizer, FASGD):
        # Counted here, as the first call may see empty rows only.
        model.set_params(optimizer=FASGD(optimizer.learning_rate, counts=counts))
    if args.linear_scale:
        start_linear_weights(model, X.shape[1], args.linear_scale, seed)
    run = {name: [] for name in ("loss", "auc", "tail_log_loss", "correlation", "seconds")}
    best, test_auc = 0.0, None
    for epoch in range(1, args.max_epochs + 1):
        start = time.perf_counter()
        try:
            model.partial_fit(X, y, classes=[0, 1])
        except DivergenceError:
            break
        run["seconds"].append(time.perf_counter() - start)
        scores = model.decision_function(X_valid)
        run["loss"].append(float(model.loss_curve_[-1]))
        run["auc"].append(float(roc_auc_score(y_valid, scores)))
        probabilities = 1 / (1 + np.exp(-scores[tail]))
        run["tail_log_loss"].append(float(log_loss(y_valid[tail], probabilities)))
        moment = second_moment(model)
        if moment is not None:
            together = np.corrcoef(moment[occurs], counts[occurs])
            run["correlation"].append(float(together[0, 1]))
        if run["auc"][-1] > best:
            best = run["auc"][-1]
            test_auc = float(roc_auc_score(y_test, model.decision_function(X_test)))
        elif epoch > int(np.argmax(run["auc"])) + args.patience:
            break
    if not run["auc"]:
        return {**run, "optimizer": repr(optimizer), "valid_auc": 0.0, "diverged": True}
    reached = np.flatnonzero(np.array(run["auc"]) >= 0.995 * best)[0]
    return {
        **run,
        "optimizer": repr(optimizer),
        "valid_auc": best,
        "test_auc": test_auc,
        "best_epoch": int(np.argmax(run["auc"])) + 1,
        "epochs_to_0.995": int(reached) + 1,
        "state_bytes_per_token": model.optimizer_state_nbytes_ / X.shape[1],
    }


def start_linear_weights(model, n_features, scale, seed):
    """Draw the linear weights of a model that is not yet fitted."""
    # Two empty rows of opposite labels have no gradient.
    model.partial_fit(sparse.csr_array((2, n_features)), [0, 1], classes=[0, 1])
    model.coef_[:] = np.random.default_rng(seed).normal(0, scale, n_features)


def second_moment(model):
    """Return the mean second moment of every token's factors, or None."""
    state = model._optimizer_state[0]
    if isinstance(model.optimizer, Adagrad):
        return state["factors_first"].mean(axis=1)
    if isinstance(model.optimizer, Adam):
        return state["factors_second"].mean(axis=1)
    return None


def summarise(runs):
    """Return the mean and the spread over seeds of what the table shows."""
    keys = ("valid_auc", "test_auc", "best_epoch", "epochs_to_0.995")
    table = {key: [float(np.mean([r[key] for r in runs])), float(np.ptp([r[key] for r in runs]))]
             for key in keys}  # fmt: skip
    table["loss_after_2"] = float(np.mean([r["loss"][1] for r in runs]))
    table["tail_log_loss_after_2"] = float(np.mean([r["tail_log_loss"][1] for r in runs]))
    table["state_bytes_per_token"] = runs[0]["state_bytes_per_token"]
    table["optimizer"] = runs[0]["optimizer"]
    if runs[0]["correlation"]:
        table["correlation_after_5"] = float(
            np.mean([r["correlation"][min(4, len(r["correlation"]) - 1)] for r in runs])
        )
    return table


def draw(results, path):
    """Draw Fig. 2 (loss and AUC by epoch) and Fig. 3 (moment against counter)."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return
    figure, axes = plt.subplots(1, 4, figsize=(18, 4), layout="constrained")
    panels = {"loss": "training loss", "auc": "validation AUC",
              "tail_log_loss": "log loss, rare half of the movies",
              "correlation": "correlation of second moment and counter"}  # fmt: skip
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        for name, runs in results.items():
            if runs[0][key] and (key != "correlation" or runs[0]["correlation"]):
                axis.plot(np.arange(1, len(runs[0][key]) + 1), runs[0][key], label=name)
        axis.set(xlabel="epoch", title=title, xlim=(0, 31))
        axis.legend(fontsize="small")
    axes[1].set_ylim(0.75, 0.82)
    axes[2].set_ylim(0.5, 0.7)
    figure.savefig(path, dpi=110)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--max-epochs", type=int, default=60)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument("--linear-scale", type=float, default=0.0)
    args = parser.parse_args()
    if args.quick:
        args.max_epochs, args.seeds = 2, 1
    data = require_data(args)
    args.out.mkdir(parents=True, exist_ok=True)

    parts = movielens_split(data, seed=0)
    chosen, search = {}, {}
    for name, candidates in GRID.items():
        runs = [train(parts, optimizer, 0, args) for optimizer in candidates]
        search[name] = {run["optimizer"]: run["valid_auc"] for run in runs}
        chosen[name] = candidates[int(np.argmax([run["valid_auc"] for run in runs]))]
        print(f"{name:18} " + "  ".join(f"{k} {v:.4f}" for k, v in search[name].items()))

    results = {name: [] for name in GRID}
    for seed in range(args.seeds):
        parts = movielens_split(data, seed)
        for name, optimizer in chosen.items():
            results[name].append(train(parts, optimizer, seed, args))
    tables = {name: summarise(runs) for name, runs in results.items()}

    print(f"\nmean over {args.seeds} seeds (spread = largest - smallest)")
    print(f"{'':18}{'test AUC':>18}{'best epoch':>12}{'to 0.995':>10}{'loss at 2':>11}"
          f"{'tail at 2':>11}{'bytes/token':>13}{'correlation':>13}")  # fmt: skip
    for name, t in tables.items():
        print(
            f"{name:18}{t['test_auc'][0]:10.4f} ({t['test_auc'][1]:.4f}){t['best_epoch'][0]:11.1f}"
            f"{t['epochs_to_0.995'][0]:10.1f}{t['loss_after_2']:11.4f}"
            f"{t['tail_log_loss_after_2']:11.4f}{t['state_bytes_per_token']:13.0f}"
            f"{t.get('correlation_after_5', float('nan')):13.3f}   {t['optimizer']}"
        )
    rival = max(tables["Adam"]["test_auc"][0], tables["Adagrad"]["test_auc"][0])
    epochs = [tables[name]["epochs_to_0.995"][0] for name in ("CF-SGD", "SGD")]
    print(f"\nCF-SGD minus the better of Adam and Adagrad, test AUC: "
          f"{tables['CF-SGD']['test_auc'][0] - rival:+.4f}")  # fmt: skip
    print(f"epochs to 0.995 of the peak, CF-SGD / SGD: {epochs[0] / epochs[1]:.2f}")

    name = "cf_sgd_linear" if args.linear_scale else "cf_sgd"
    (args.out / f"{name}.json").write_text(
        json.dumps({"search": search, "tables": tables, "runs": results}, indent=1)
    )
    draw(results, args.out / f"{name}.png")


if __name__ == "__main__":
    main()
