"""RaFM (Chen et al., ICML 2019): does a rank for each feature beat one rank for all?

Frappe, log loss: 90 % of the published validation rows to train, the others to stop, the test rows
to judge (the published training rows are lost). MovieLens-1M ratings, 80/10/10, squared error.
Adam at 0.001, batches of 256 (Frappe) or 1,024; training stops when the loss on validation has not
fallen for ``--patience`` epochs, and the model of the best epoch counts. Models:

- FM of every rank;
- RaFM of several sets of ranks, assigned by equation 17 from the training rows' frequencies; for
  the first set also by "n > D", as in the authors' code, and by algorithm 1 (``form="paper"``);
- DiFacto (``rank_sharing="truncate"``) of the same sets;
- on MovieLens also MRMA in its simplest form, the mean of FMs of all ranks of a set.

The lowest rank of a RaFM alone stands beside an FM of that rank (figure 3). Each model has a grid
of L2 penalties. The penalty, chosen on validation with the first seed, is used with the others;
the table shows test losses, mean over seeds, parameters, and the time of an epoch and of prediction
against FM(256).

    python benchmarks/reproduce/rafm.py --data DIR --out results
    python benchmarks/reproduce/rafm.py --data DIR --out results --data-set frappe --seeds 1
    python benchmarks/reproduce/rafm.py --quick

Finished runs go to ``--results`` (default: rafm.jsonl in ``--out``) and are not done again; remove
the file when the package has changed. About an hour on two cores; writes rafm.json and rafm.png.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import frappe_split, movielens_split
from _runs import QUICK, Results, data_parser, require_data, table
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from freqfm import FMClassifier, FMRegressor, RaFMClassifier, RaFMRegressor
from freqfm.initializers import Normal
from freqfm.optimizers import Adam

FM_RANKS = {"frappe": (32, 64, 128, 256, 512), "movielens": (4, 8, 16, 32, 64, 128)}
RANK_SETS = {
    "frappe": [
        (64, 256), (64, 128), (32, 512), (32, 128), (32, 128, 512), (32, 64, 128, 256, 512),
    ],
    "movielens": [(8, 32), (16, 64), (32, 128), (8, 32, 128), (8, 16, 32, 64)],
}  # fmt: skip
PENALTIES = {"frappe": (0.005, 0.01, 0.02, 0.05), "movielens": (0.02, 0.05, 0.1, 0.2)}
CLASSES = {"frappe": (FMClassifier, RaFMClassifier), "movielens": (FMRegressor, RaFMRegressor)}


def candidates(data_set):
    """Return {family: [(name, parameters)]}, parameters with neither penalty nor seed."""
    families = {f"FM({d})": [(f"FM({d})", {"n_components": d})] for d in FM_RANKS[data_set]}
    for ranks in RANK_SETS[data_set]:
        families[f"RaFM{ranks}"] = [(f"RaFM{ranks}", {"ranks": ranks, "form": "reference"})]
        families[f"DiFacto{ranks}"] = [
            (f"DiFacto{ranks}", {"ranks": ranks, "rank_sharing": "truncate"})
        ]
    first = RANK_SETS[data_set][0]
    bounds = {"ranks": first, "rank_assignment": list(first[:-1]), "form": "reference"}
    families[f"RaFM{first}, n > D"] = [(f"RaFM{first}, n > D", bounds)]
    families[f"RaFM{first}, paper"] = [(f"RaFM{first}, paper", {"ranks": first, "form": "paper"})]
    return families


def make(data_set, parameters, penalty, seed):
    """Return an estimator, not yet fitted."""
    plain, ranked = CLASSES[data_set]
    cls = plain if "n_components" in parameters else ranked
    return cls(
        **parameters,
        optimizer=Adam(0.001),
        batch_size=256 if data_set == "frappe" else 1024,
        alpha_linear=0.0,
        alpha_factors=penalty,
        alpha_per="row",
        init=Normal(0.01),
        early_stopping=False,
        n_jobs=1,
        random_state=seed,
    )


def outputs(model, X):
    """Return probabilities of the second class, or predictions."""
    return model.predict_proba(X)[:, 1] if hasattr(model, "classes_") else model.predict(X)


def losses(data_set, y, predicted):
    """Return the loss that training stops by, and the area under the curve."""
    if data_set == "frappe":
        return {"loss": log_loss(y, predicted), "auc": roc_auc_score(y, predicted)}
    return {"loss": float(np.sqrt(mean_squared_error(y, predicted)))}


def lowest_rank(model, X):
    """Return what the lowest rank of a RaFM predicts alone, or None."""
    return outputs(model.up_to_rank(model.ranks[0]), X) if hasattr(model, "ranks") else None


def train(data_set, parts, parameters, penalty, seed, args):
    """Train until the validation loss no longer falls; look at test at each new best."""
    (X, y), (X_valid, y_valid), (X_test, y_test) = parts
    model = make(data_set, parameters, penalty, seed)
    classes = {"classes": np.unique(y)} if data_set == "frappe" else {}
    best, curve, seconds = None, [], 0.0
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        model.partial_fit(X, y, **classes)
        seconds += time.perf_counter() - start
        valid = losses(data_set, y_valid, outputs(model, X_valid))
        curve.append(valid["loss"])
        if best is None or valid["loss"] < best["valid"]["loss"]:
            predicted = outputs(model, X_test)
            best = {
                "epoch": epoch,
                "valid": valid,
                "test": losses(data_set, y_test, predicted),
            }
            low = lowest_rank(model, X_test)
            if low is not None:
                best["lowest"] = losses(data_set, y_test, low)
            if args.keep:
                best["predicted"] = [
                    np.round(outputs(model, rows), 5).tolist() for rows in (X_valid, X_test)
                ]
        elif epoch >= best["epoch"] + args.patience:
            break
    n_parameters = getattr(model, "n_parameters_", None)
    if n_parameters is None:
        n_parameters = model.factors_.size + model.coef_.size
    return {"best": best, "curve": curve, "seconds": seconds, "n_parameters": int(n_parameters)}


def time_models(data_set, parts, chosen, repeats=5):
    """Return {family: seconds of an epoch and of scoring the test rows}, measured in turn."""
    X, y = parts[0]
    models = {
        family: make(data_set, parameters, penalty, 0).set_params(
            max_iter=5, n_iter_no_change=None, warm_start=True, n_jobs=None
        )
        for family, (_, parameters, penalty) in chosen.items()
    }
    seconds = {family: ([], []) for family in models}
    for _ in range(repeats):
        for family, model in models.items():
            start = time.perf_counter()
            model.fit(X, y)
            middle = time.perf_counter()
            outputs(model, parts[2][0])
            seconds[family][0].append((middle - start) / 5)
            seconds[family][1].append(time.perf_counter() - middle)
    return {family: [float(np.median(s[1:])) for s in both] for family, both in seconds.items()}


def mean_of_fms(data_set, parts, chosen, results, args):
    """Return test losses of MRMA's simplest form: the mean of FMs of a set's ranks, by seed."""
    tests, args.keep = {}, True
    for ranks in RANK_SETS[data_set]:
        members = [f"FM({d})" for d in ranks if f"FM({d})" in chosen]
        for seed in range(args.seeds):
            runs = []
            for member in members:
                name, parameters, penalty = chosen[member]
                key = {"data": data_set, "name": name, "penalty": penalty, "seed": seed}
                key |= {"epochs": args.epochs, "patience": args.patience, "keep": True}
                runs.append(
                    results.run(key, train, data_set, parts(seed), parameters, penalty, seed, args)
                )
            y_valid, y_test = parts(seed)[1][1], parts(seed)[2][1]
            both = np.mean([[np.array(p) for p in r["best"]["predicted"]] for r in runs], axis=0,
                           dtype=object)  # fmt: skip
            tests.setdefault(f"MRMA{ranks}", []).append({
                "valid": losses(data_set, y_valid, both[0].astype(float)),
                "test": losses(data_set, y_test, both[1].astype(float)),
                "n_parameters": sum(r["n_parameters"] for r in runs),
            })  # fmt: skip
    args.keep = False
    return tests


def run_data_set(data_set, parts, results, args):
    """Search, repeat over seeds, time and show; return what goes to the JSON file."""

    def run(name, parameters, penalty, seed):
        key = {"data": data_set, "name": name, "penalty": penalty, "seed": seed}
        key |= {"epochs": args.epochs, "patience": args.patience}
        return results.run(key, train, data_set, parts(seed), parameters, penalty, seed, args)

    chosen = {}
    for family, members in candidates(data_set).items():
        searched = [
            (run(name, parameters, penalty, 0)["best"]["valid"]["loss"], name, parameters, penalty)
            for name, parameters in members
            for penalty in PENALTIES[data_set]
        ]
        chosen[family] = min(searched, key=lambda one: one[0])[1:]
    runs = {
        family: [run(*how, seed) for seed in range(args.seeds)] for family, how in chosen.items()
    }
    seconds = time_models(data_set, parts(0), chosen)
    reference = "FM(256)" if data_set == "frappe" else f"FM({FM_RANKS[data_set][-1]})"
    rows, summary = [], {}
    for family, of_family in runs.items():
        tests = [r["best"]["test"] for r in of_family]
        s = summary[family] = {
            "chosen": repr(chosen[family]),
            "valid": float(np.mean([r["best"]["valid"]["loss"] for r in of_family])),
            "test": float(np.mean([t["loss"] for t in tests])),
            "spread": float(np.ptp([t["loss"] for t in tests])),
            "auc": float(np.mean([t.get("auc", np.nan) for t in tests])),
            "n_parameters": of_family[0]["n_parameters"],
            "epoch": float(np.mean([r["best"]["epoch"] for r in of_family])),
            "seconds": seconds[family],
            "curve": of_family[0]["curve"],
        }
        if "lowest" in of_family[0]["best"]:
            s["lowest"] = float(np.mean([r["best"]["lowest"]["loss"] for r in of_family]))
        rows.append([
            family, f"{chosen[family][2]:g}", s["valid"], s["test"], s["spread"], s["auc"],
            f"{s['n_parameters']:,}", f"{s['epoch']:.0f}",
            *(f"{seconds[family][k] / seconds[reference][k]:.2f}" for k in (0, 1)),
            s.get("lowest", ""),
        ])  # fmt: skip
    if data_set == "movielens":
        for family, of_family in mean_of_fms(data_set, parts, chosen, results, args).items():
            s = summary[family] = {
                part: float(np.mean([t[part]["loss"] for t in of_family]))
                for part in ("valid", "test")
            }
            s["n_parameters"] = of_family[0]["n_parameters"]
            spread = float(np.ptp([t["test"]["loss"] for t in of_family]))
            rows.append([family, "", s["valid"], s["test"], spread, float("nan"),
                         f"{s['n_parameters']:,}", "", "", "", ""])  # fmt: skip
    table(
        f"{data_set}: test loss where validation is best, mean over {args.seeds} seeds",
        ["", "L2", "valid", "test", "spread", "AUC", "parameters", "epoch",
         f"train / {reference}", "predict", "lowest rank"],
        rows,
    )  # fmt: skip
    best = {
        kind: min((f for f in summary if f.startswith(kind)), key=lambda f: summary[f]["valid"])
        for kind in ("FM", "RaFM", "DiFacto")
    }
    fm = summary[best["FM"]]
    for kind in ("RaFM", "DiFacto"):
        one = summary[best[kind]]
        print(
            f"{best[kind]} against {best['FM']}, both chosen on validation: loss x "
            f"{one['test'] / fm['test']:.4f}, AUC {one['auc'] - fm['auc']:+.4f}, parameters x "
            f"{one['n_parameters'] / summary[reference]['n_parameters']:.2f} and epoch x "
            f"{one['seconds'][0] / seconds[reference][0]:.2f} of {reference}'s"
        )
    return summary


def draw(summaries, path):
    """Draw test loss against parameters, and the curves of validation."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return
    figure, axes = plt.subplots(
        len(summaries), 2, figsize=(12, 4.5 * len(summaries)), layout="constrained", squeeze=False
    )
    for (scatter, curves), (data_set, summary) in zip(axes, summaries.items(), strict=True):
        for kind, marker in {"FM": "o", "RaFM": "s", "DiFacto": "^", "MRMA": "D"}.items():
            of_kind = {f: s for f, s in summary.items() if f.startswith(kind)}
            if of_kind:
                scatter.plot(
                    [s["n_parameters"] for s in of_kind.values()],
                    [s["test"] for s in of_kind.values()],
                    marker,
                    label=kind,
                )
                best = min(of_kind, key=lambda f: of_kind[f]["valid"])
                if "curve" in of_kind[best]:
                    curve = of_kind[best]["curve"]
                    curves.plot(np.arange(1, len(curve) + 1), curve, label=best)
        scatter.set(xscale="log", xlabel="parameters", ylabel="test loss", title=data_set)
        curves.set(xlabel="epoch", ylabel="validation loss", title=data_set)
        scatter.legend()
        curves.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--results", help="JSON lines of finished runs (in --out)")
    parser.add_argument("--data-set", nargs="+", choices=FM_RANKS, default=list(FM_RANKS))
    parser.add_argument("--epochs", type=int, default=300, help="at most (300)")
    parser.add_argument("--patience", type=int, default=50, help="epochs without a gain (50)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.seeds = 2, 1
    args.keep = False
    data = require_data(args)
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out / "rafm.jsonl" if args.results is None else args.results)
    loaded = {}

    def parts_of(data_set):
        def parts(seed):
            # Frappe's split is given; seeds differ in the start and the order of the rows.
            key = data_set, 0 if data_set == "frappe" else seed
            if key not in loaded:
                loaded[key] = (
                    frappe_split(data)
                    if data_set == "frappe"
                    else movielens_split(data, seed, label=lambda r: r.astype(np.float64))
                )
            return loaded[key]

        return parts

    summaries = {
        data_set: run_data_set(data_set, parts_of(data_set), results, args)
        for data_set in args.data_set
    }
    (args.out / "rafm.json").write_text(json.dumps(summaries, indent=1))
    draw(summaries, args.out / "rafm.png")


if __name__ == "__main__":
    main()
