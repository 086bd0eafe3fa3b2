"""Adap-tau (Chen et al., WWW 2023): do adaptive temperatures need no tuning?

Gowalla or MovieLens-1M clicks; matrix factorization with d = 64, Adam and 1,024 shared negatives: a
softmax of dot products, of cosines with a grid of temperatures 0.04, 0.06, ..., 0.30 (the paper's
ends at 0.20), with tau0, with a temperature per user (both forms; the threshold at the mean of the
losses, or the authors' quantile 0.9 with beta 0.125), BSL with its authors' constant 1.22, and
MFRecommender as it is. Two protocols:

- validated: train on ``train``, choose epoch and temperature by NDCG@20 on ``valid``, then look at
  ``test``, without the validation items. The first seed chooses the temperature; the other seeds
  train with that one alone;
- as published (``--published``): train on ``train`` and ``valid``, for as many epochs, and take the
  best epoch on ``test``. Next to it stands the epoch that validation had chosen. Of the grid only
  the temperature that validation chose is trained again.

``--noise`` is the experiment of figure 6 instead: users fall at random into four groups, whose
training rows get 10, 20, 30 and 40 % more items, at random; are their temperatures in that order?

    python benchmarks/reproduce/adap_tau.py --data DIR --out results --published
    python benchmarks/reproduce/adap_tau.py --data DIR --data-set ml1m --seeds 3
    python benchmarks/reproduce/adap_tau.py --data DIR --out results --noise
    python benchmarks/reproduce/adap_tau.py --data DIR --only 'tau0' 'tau_u*' --epochs 120
    python benchmarks/reproduce/adap_tau.py --quick

Finished runs go to ``--results`` (default: adap_tau.jsonl in ``--out``), and a run that is there is
skipped: stop and start as you like, but remove the file when the package has changed. On two cores
an epoch of Gowalla takes about two seconds and one of MovieLens-1M one, a run up to five minutes,
everything on Gowalla one to two hours, and ``--noise`` twenty minutes.
"""

import sys
from fnmatch import fnmatch
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import (
    Results,
    click_parts,
    epochs_of,
    evaluate,
    rank_correlation,
    require_data,
    run_parser,
    table,
    train,
)
from scipy import sparse

from freqfm import MFRecommender
from freqfm.losses import BSL
from freqfm.temperatures import AdapTau

DATA_SETS = {"gowalla": "gowalla", "ml1m": "ml1m-implicit"}
SOFTMAX = {"loss": "softmax"}
GRID = {f"tau {tau:.2f}": {**SOFTMAX, "temperature": tau} for tau in np.arange(4, 31, 2) / 100}
PER_USER = {
    f"tau_u, {form}, {name}": {**SOFTMAX, "temperature": AdapTau(form, **options)}
    for form in ("paper", "reference")
    for name, options in {"mean": {}, "quantile": {"threshold": 0.9, "beta": 0.125}}.items()
}
SETTINGS = {
    "dot product": {**SOFTMAX, "similarity": "dot"},
    **GRID,
    "tau0": {**SOFTMAX, "temperature": "adap_tau0"},
    **PER_USER,
    "BSL 1.22, tau 0.10": {"loss": BSL(1.22), "temperature": 0.1},
    "BSL 1.22, tau0": {"loss": BSL(1.22), "temperature": "adap_tau0"},
    "MFRecommender()": {},
}
NOISE = np.array([0.1, 0.2, 0.3, 0.4])


def model_of(name, seed, args):
    """Return the model of a setting, not yet fitted."""
    untuned = not SETTINGS[name]
    return MFRecommender(
        **({} if untuned else {"n_components": 64, "n_negatives": args.n_negatives}),
        **SETTINGS[name],
        learning_rate=args.learning_rate,
        n_jobs=args.n_jobs,
        random_state=seed,
    )


def with_validation(name, parts, seed, args):
    """Train on the training part; look at validation and test."""
    X, valid, test = parts

    def look(model):
        of_valid = evaluate(model, valid)
        return {"score": of_valid["ndcg"], "valid": of_valid, "temperature": model.temperature_}

    return train(
        model_of(name, seed, args), X, look,
        epochs=args.epochs, every=args.every, patience=args.patience,
        at_best=lambda model: {"test": evaluate(model, test, valid)},
    )  # fmt: skip


def as_published(name, parts, epochs, seed, args):
    """Train on all that is not test, for ``epochs`` epochs; look at test."""
    X, valid, test = parts

    def look(model):
        of_test = evaluate(model, test)
        return {"score": of_test["ndcg"], "test": of_test, "temperature": model.temperature_}

    return train(model_of(name, seed, args), X + valid, look, epochs=epochs, every=args.every)


def add_false_positives(X, known, shares, rng):
    """Return ``X`` with more unknown items for each user, as a share of the user's items."""
    wanted = np.round(shares * np.diff(X.indptr)).astype(int)
    added = []
    for user, n in enumerate(wanted):
        drawn = rng.integers(X.shape[1], size=2 * n + 50)
        items = known.indices[known.indptr[user] : known.indptr[user + 1]]
        added.append(rng.permutation(np.setdiff1d(drawn, items))[:n])
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in added])])
    indices = np.concatenate(added).astype(np.int32)
    return X + sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=X.shape)


def with_noise(name, parts, seed, args):
    """Train on noisy rows; look at validation and the groups' temperatures."""
    X, valid, test = parts
    rng = np.random.default_rng(seed)
    group = rng.permutation(X.shape[0]) % len(NOISE)
    noisy = add_false_positives(X, X + valid + test, NOISE[group], rng)

    def look(model):
        taus = model.user_temperatures_
        means = [float(taus[group == g].mean(dtype=np.float64)) for g in range(len(NOISE))]
        return {
            "score": evaluate(model, valid)["ndcg"],
            "means": means,
            "over_groups": rank_correlation(NOISE, means),
            "over_users": rank_correlation(NOISE[group], taus),
        }

    return train(model_of(name, seed, args), noisy, look, epochs=args.epochs, every=args.every)


def noise_experiment(names, parts, results, common, args):
    """Run and show figure 6."""
    rows = []
    for name in names:
        key = {"experiment": "noise", "setting": name, "seed": 0, **common}
        run = results.run(key, with_noise, name, parts, 0, args)
        last = run["looks"][-1]
        rows.append([name, epochs_of(run), *last["means"], last["over_groups"], last["over_users"]])
    table(
        "mean temperature of users by the share of false positives, after the last epoch",
        ["", "epochs", *(f"{share:.0%}" for share in NOISE), "Spearman", "over users"],
        rows,
    )


def validated_runs(names, parts, results, common, args):
    """Return the runs of each setting, one a seed, and the temperature the first seed chose."""
    runs, chosen = {}, None
    for seed in range(args.seeds):
        for name in names:
            if seed and name in GRID and name != chosen:
                continue
            key = {"experiment": "valid", "setting": name, "seed": seed, **common}
            run = results.run(key, with_validation, name, parts, seed, args)
            if run["best"] is not None:
                runs.setdefault(name, []).append(run)
        if not seed:
            grid = [name for name in runs if name in GRID]
            chosen = max(grid, key=lambda name: runs[name][0]["best"]["score"], default=None)
    return runs, chosen


def mean_of(runs, *path):
    """Return the mean over seeds of a figure of the best epoch."""
    return float(np.mean([reduce(getitem, path, run["best"]) for run in runs]))


def show_validated(runs, chosen):
    """Print the first protocol's table, means over seeds, and the ratios that the paper claims."""
    rows = []
    for name, of_seeds in runs.items():
        ndcgs = [run["best"]["test"]["ndcg"] for run in of_seeds]
        rows.append([
            name, str(len(of_seeds)), mean_of(of_seeds, "score"),
            f"{mean_of(of_seeds, 'epoch'):.0f}", epochs_of(*of_seeds),
            mean_of(of_seeds, "test", "recall"), mean_of(of_seeds, "test", "ndcg"),
            float(np.ptp(ndcgs)), mean_of(of_seeds, "temperature"),
            f"{np.mean([run['seconds'] for run in of_seeds]):.0f}",
        ])  # fmt: skip
    table(
        "trained on train; the epoch chosen by NDCG@20 on valid; means over seeds",
        ["", "seeds", "valid N@20", "epoch", "epochs", "test R@20", "N@20", "spread", "mean tau",
         "s"],
        rows,
    )  # fmt: skip

    def ratio(what, a, b):
        if a in runs and b in runs:
            of_test = [
                [one["best"]["test"][key] / two["best"]["test"][key] for key in ("recall", "ndcg")]
                for one, two in zip(runs[a], runs[b], strict=False)
            ]
            recall, ndcg = np.mean(of_test, axis=0)
            low, high = np.min(of_test, axis=0)[1], np.max(of_test, axis=0)[1]
            print(f"{what}: recall x {recall:.3f}, NDCG x {ndcg:.3f} ({low:.3f} to {high:.3f})")

    print("\non test, trained on train, chosen on valid (in parentheses: lowest and highest seed)")
    ratio(f"tau0 against the best of the grid ({chosen})", "tau0", chosen)
    ratio("the best of the grid against dot products", chosen, "dot product")
    for name in PER_USER:
        ratio(f"{name} against tau0", name, "tau0")
        ratio(f"{name} against the best of the grid", name, chosen)


def published_runs(validated, chosen, parts, results, common, args):
    """Run and show the second protocol, with the first seed."""
    rows = []
    for name, runs in validated.items():
        if name in GRID and name != chosen:
            continue
        n_epochs, epoch = runs[0]["epochs"], runs[0]["best"]["epoch"]
        key = {"experiment": "all", "setting": name, "seed": 0, **common, "epochs": n_epochs}
        run = results.run(key, as_published, name, parts, n_epochs, 0, args)
        best = run["best"]
        then = min(run["looks"], key=lambda look: abs(look["epoch"] - epoch))["test"]
        rows.append([
            name, then["recall"], then["ndcg"], best["test"]["recall"], best["test"]["ndcg"],
            best["epoch"], best["temperature"], f"{run['seconds']:.0f}",
        ])  # fmt: skip
    table(
        "trained on train and valid; test at the epoch validation chose, and at its own best",
        ["", "R@20", "N@20", "best R@20", "best N@20", "epoch", "mean tau", "s"],
        rows,
    )


def main():
    parser = run_parser(__doc__, epochs=100, every=5, patience=3)
    parser.add_argument("--only", nargs="+", default=["*"], help="names or patterns of settings")
    parser.add_argument("--noise", action="store_true", help="the experiment of figure 6 instead")
    parser.add_argument("--learning-rate", type=float, help="of Adam; if none, the package's")
    parser.add_argument("--n-negatives", type=int, default=1024, help="shared by a block (1,024)")
    parser.add_argument("--data-set", choices=DATA_SETS, default="gowalla")
    parser.add_argument("--seeds", type=int, default=1, help="of the validated protocol")
    parser.add_argument("--published", action="store_true", help="the published protocol too")
    args = parser.parse_args()
    candidates = PER_USER if args.noise else SETTINGS
    names = [name for name in candidates if any(fnmatch(name, only) for only in args.only)]
    if not names:
        parser.error(f"--only names none of: {', '.join(candidates)}")
    parts = click_parts(require_data(args), DATA_SETS[args.data_set])
    if args.quick:
        args.epochs, args.every = 8, 2
    results = Results(args.results or args.out / "adap_tau.jsonl")
    options = ("data_set", "epochs", "every", "learning_rate", "n_negatives", "quick")
    common = {name: getattr(args, name) for name in options}
    if args.noise:
        noise_experiment(names, parts, results, common, args)
    else:
        common["patience"] = args.patience
        runs, chosen = validated_runs(names, parts, results, common, args)
        show_validated(runs, chosen)
        if args.published:
            published_runs(runs, chosen, parts, results, common, args)


if __name__ == "__main__":
    main()
