"""Adap-tau (Chen et al., WWW 2023) on Gowalla: do adaptive temperatures need no tuning?

Matrix factorization with d = 64, Adam and 1,024 shared negatives: a softmax of dot products, of
cosines with the grid of temperatures 0.04, 0.06, ..., 0.20, with tau0, with a temperature per user
(both forms; the threshold at the mean of the losses, or the authors' quantile 0.9 with beta 0.125),
BSL with its authors' constant 1.22, and MFRecommender as it is. Two protocols:

- validated: train on ``train``, choose epoch and temperature by NDCG@20 on ``valid``, then look at
  ``test``, without the validation items;
- as published: train on ``train`` and ``valid``, for as many epochs, and take the best epoch on
  ``test``. Next to it stands the epoch that validation had chosen. Of the grid only the temperature
  that validation chose is trained again.

``--noise`` is the experiment of figure 6 instead: users fall at random into four groups, whose
training rows get 10, 20, 30 and 40 % more items, at random; are their temperatures in that order?

    python benchmarks/reproduce/adap_tau.py --data DIR --out results
    python benchmarks/reproduce/adap_tau.py --data DIR --out results --noise
    python benchmarks/reproduce/adap_tau.py --data DIR --only 'tau0' 'tau_u*' --epochs 120

Finished runs go to ``--results`` (default: adap_tau.jsonl in ``--out``), and a run that is there is
skipped: stop and start as you like, but remove the file when the package has changed. On two cores
an epoch takes about two seconds, a run up to five minutes, everything one to two hours, and
``--noise`` twenty minutes.
"""

from fnmatch import fnmatch

import numpy as np
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

SOFTMAX = {"loss": "softmax"}
GRID = {f"tau {tau:.2f}": {**SOFTMAX, "temperature": tau} for tau in np.arange(4, 21, 2) / 100}
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


def model_of(name, args):
    """Return the model of a setting, not yet fitted."""
    untuned = not SETTINGS[name]
    return MFRecommender(
        **({} if untuned else {"n_components": 64, "n_negatives": 1024}),
        **SETTINGS[name],
        learning_rate=args.learning_rate,
        n_jobs=args.n_jobs,
        random_state=args.seed,
    )


def with_validation(name, parts, args):
    """Train on the training part; look at validation and test."""
    X, valid, test = parts

    def look(model):
        of_valid = evaluate(model, valid)
        return {
            "score": of_valid["ndcg"],
            "valid": of_valid,
            "test": evaluate(model, test, valid),
            "temperature": model.temperature_,
        }

    return train(
        model_of(name, args), X, look, epochs=args.epochs, every=args.every, patience=args.patience
    )


def as_published(name, parts, epochs, args):
    """Train on all that is not test, for ``epochs`` epochs; look at test."""
    X, valid, test = parts

    def look(model):
        of_test = evaluate(model, test)
        return {"score": of_test["ndcg"], "test": of_test, "temperature": model.temperature_}

    return train(model_of(name, args), X + valid, look, epochs=epochs, every=args.every)


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


def with_noise(name, parts, args):
    """Train on noisy rows; look at validation and the groups' temperatures."""
    X, valid, test = parts
    rng = np.random.default_rng(args.seed)
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

    return train(model_of(name, args), noisy, look, epochs=args.epochs, every=args.every)


def noise_experiment(names, parts, results, common, args):
    """Run and show figure 6."""
    rows = []
    for name in names:
        key = {"experiment": "noise", "setting": name, **common}
        run = results.run(key, with_noise, name, parts, args)
        last = run["looks"][-1]
        rows.append([name, epochs_of(run), *last["means"], last["over_groups"], last["over_users"]])
    table(
        "mean temperature of users by the share of false positives, after the last epoch",
        ["", "epochs", *(f"{share:.0%}" for share in NOISE), "Spearman", "over users"],
        rows,
    )


def comparison(names, parts, results, common, args):
    """Run and show both protocols."""
    validated, published = {}, {}
    for name in names:
        key = {"experiment": "valid", "setting": name, **common}
        run = results.run(key, with_validation, name, parts, args)
        if run["best"] is not None:
            validated[name] = run
    grid = [name for name in validated if name in GRID]
    chosen = max(grid, key=lambda name: validated[name]["best"]["score"], default=None)
    for name, run in validated.items():
        if name not in GRID or name == chosen:
            key = {"experiment": "all", "setting": name, **common, "epochs": run["epochs"]}
            published[name] = results.run(key, as_published, name, parts, run["epochs"], args)

    def at(run, epoch):
        return min(run["looks"], key=lambda look: abs(look["epoch"] - epoch))["test"]

    rows = []
    for name, run in validated.items():
        best = run["best"]
        rows.append([
            name, best["valid"]["ndcg"], best["epoch"], epochs_of(run), best["test"]["recall"],
            best["test"]["ndcg"], best["temperature"], f"{run['seconds'] / run['epochs']:.2f}",
            f"{run['seconds']:.0f}",
        ])  # fmt: skip
    table(
        "trained on train; the epoch chosen by NDCG@20 on valid",
        ["", "valid N@20", "epoch", "epochs", "test R@20", "N@20", "mean tau", "s/epoch", "s"],
        rows,
    )
    rows = []
    for name, run in published.items():
        validated_test = at(run, validated[name]["best"]["epoch"])
        best = run["best"]
        rows.append([
            name, validated_test["recall"], validated_test["ndcg"], best["test"]["recall"],
            best["test"]["ndcg"], best["epoch"], best["temperature"], f"{run['seconds']:.0f}",
        ])  # fmt: skip
    table(
        "trained on train and valid; test at the epoch validation chose, and at its own best",
        ["", "R@20", "N@20", "best R@20", "best N@20", "epoch", "mean tau", "s"],
        rows,
    )

    def ratio(what, a, b):
        if a in validated and b in validated:
            ratios = (
                validated[a]["best"]["test"][key] / validated[b]["best"]["test"][key]
                for key in ("recall", "ndcg")
            )
            print(f"{what}: recall x {next(ratios):.3f}, NDCG x {next(ratios):.3f}")

    print("\non test, trained on train, chosen on valid")
    ratio(f"tau0 against the best of the grid ({chosen})", "tau0", chosen)
    ratio("the best of the grid against dot products", chosen, "dot product")
    for name in PER_USER:
        ratio(f"{name} against tau0", name, "tau0")


def main():
    parser = run_parser(__doc__, epochs=100, every=5, patience=3)
    parser.add_argument("--only", nargs="+", default=["*"], help="names or patterns of settings")
    parser.add_argument("--noise", action="store_true", help="the experiment of figure 6 instead")
    parser.add_argument("--learning-rate", type=float, help="of Adam; if none, the package's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    candidates = PER_USER if args.noise else SETTINGS
    names = [name for name in candidates if any(fnmatch(name, only) for only in args.only)]
    if not names:
        parser.error(f"--only names none of: {', '.join(candidates)}")
    parts = click_parts(require_data(args), "gowalla")
    if args.quick:
        parts = [part[:1000] for part in parts]
        args.epochs, args.every = 8, 2
    results = Results(args.results or args.out / "adap_tau.jsonl")
    options = ("epochs", "every", "learning_rate", "seed", "quick")
    common = {name: getattr(args, name) for name in options}
    if args.noise:
        noise_experiment(names, parts, results, common, args)
    else:
        comparison(names, parts, results, {**common, "patience": args.patience}, args)


if __name__ == "__main__":
    main()
