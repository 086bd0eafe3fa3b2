"""FastVAE (Chen et al., WWW 2022): is a softmax over drawn items as good as one over all?

Gowalla and MovieLens-1M clicks, each merged and split anew for every seed: 80 % of every user's
items to train, 20 % to test, and a tenth of the training part to choose the epoch by NDCG@50. A
variational autoencoder of 200 hidden units and 32 latent ones, without a hidden layer in its
decoder, with Adam and batches of 256 users, is trained by

- the full softmax;
- ``--negatives`` items drawn for every user by MIDX (both variants), uniformly, by popularity
  ((count + 1)^0.75; the paper has the logarithm), by DNS and by the quadratic kernel. The kernel's
  cost grows with the square of the vectors: it takes part with up to 32 components.

Beside them: MFRecommender as it is, ALS of implicit (its alpha and regularization chosen on
validation) and WARP of LightFM, where they are installed; all with 64 factors. Tables show NDCG@50
and recall@50 on test at the chosen epoch, also relative to the full softmax, and after the last
epoch, where training went ``--patience`` looks further. ``--refit`` trains again on training and
validation rows together, for as many epochs as were chosen: figures to set beside published ones.

``--divergence`` is figure 2 instead: for 200 users the divergence of every proposal from the
softmax, KL(Q, P), before training and after (full softmax, at the epoch chosen), with 16 and 64
codewords; the largest share of the bound of theorem 5.3 that is reached; and one user's cumulative
probabilities. ``--sensitivity`` is figure 5 instead: MIDX with log-popularity for numbers of draws
and of codewords, and uniform draws beside them.

    python benchmarks/reproduce/fastvae.py --data DIR --out results
    python benchmarks/reproduce/fastvae.py --data DIR --data-set gowalla --negatives 1000 --seeds 3
    python benchmarks/reproduce/fastvae.py --data DIR --only full 'midx*' --refit
    python benchmarks/reproduce/fastvae.py --data DIR --divergence

The paper draws 1,000 items on Gowalla and uses ReLU, the authors' script other details yet; neither
uses MovieLens-1M. Finished runs go to ``--results`` (default: fastvae.jsonl in ``--out``), and a
run that is there is skipped: stop and start as you like, but remove the file when the package has
changed. An epoch takes ten seconds of CPU time on Gowalla with the full softmax and two with MIDX;
the kernel takes many times as long. Writes fastvae*.png if matplotlib is there.
"""

import time
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product

import numpy as np
import threadpoolctl
from _runs import (
    Results,
    click_parts,
    epochs_of,
    evaluate,
    require_data,
    run_parser,
    table,
    train,
)
from scipy import sparse
from scipy.special import logsumexp

from freqfm import FastVAERecommender, MFRecommender
from freqfm._validation import count_threads
from freqfm.metrics import ranking_report
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_interactions
from freqfm.samplers import DNS, MIDX, Kernel, Popularity, Uniform

DATA_SETS = {"gowalla": "gowalla", "ml1m": "ml1m-implicit"}
SAMPLERS = ("full", "midx_popularity", "midx_uniform", "uniform", "popularity", "dns", "kernel")
PEERS = ("MFRecommender()", "implicit ALS", "LightFM WARP")
K = 50
FACTORS = 64
# The kernel sampler takes part up to this length of vectors.
KERNEL_UP_TO = 32
# The epoch at which samplers are compared while they learn.
EARLY = 10
# Options that every run of a variational autoencoder depends on.
NETWORK = (
    "components", "hidden", "activation", "learning_rate", "weight_decay", "kl_weight", "dropout",
)  # fmt: skip
LOOKS = ("epochs", "every", "patience", "quick")
USERS = 200


def split_anew(parts, seed):
    """Return training, validation and test matrices: 72, 8 and 20 % of every user's items."""
    X, test = holdout_interactions(sum(parts), 0.2, random_state=seed)
    X, valid = holdout_interactions(X, 0.1, random_state=seed + 1000)
    return X, valid, test


def vae(sampler, n_negatives, n_codewords, seed, args):
    """Return a variational autoencoder, not yet fitted."""
    return FastVAERecommender(
        args.components,
        hidden_layer_sizes=(args.hidden,),
        activation=args.activation,
        negative_sampler=sampler,
        n_negatives=None if sampler == "full" else n_negatives,
        n_codewords=n_codewords if str(sampler).startswith("midx") else None,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        kl_weight=args.kl_weight,
        dropout=args.dropout,
        n_jobs=args.n_jobs,
        random_state=seed,
    )


def look_at(valid, test):
    """Return a function that looks at validation and at test."""

    def look(model):
        of_valid = evaluate(model, valid, k=K)
        of_test = evaluate(model, test, valid, k=K)
        return {"score": of_valid["ndcg"], "valid": of_valid, "test": of_test}

    return look


def fit(model, parts, args):
    """Train until validation no longer improves; look at test on the way."""
    X, valid, test = parts
    return train(
        model, X, look_at(valid, test),
        epochs=args.epochs, every=args.every, patience=args.patience,
    )  # fmt: skip


def refit(model, parts, n_epochs):
    """Train on training and validation rows for so many epochs; look at test."""
    X, valid, test = parts

    def look(model):
        of_test = evaluate(model, test, k=K)
        return {"score": of_test["ndcg"], "test": of_test}

    return train(model, X + valid, look, epochs=n_epochs, every=n_epochs)


# Peers: vectors of users and of items, ranked as the package ranks its own.


def evaluate_vectors(users, items, held_out, known, n_threads):
    """Return what ``evaluate`` returns, for vectors whose products rank items."""
    rows = np.flatnonzero(np.diff(held_out.indptr))
    found, _ = top_k(users[rows], items, K, exclude=known[rows], n_threads=n_threads)
    report = ranking_report(held_out[rows], found)
    return {name: report[f"{name}@{K}"] for name in ("ndcg", "recall")}


def look_at_vectors(users, items, parts, args):
    """Return a look at validation and test."""
    X, valid, test = parts
    n = count_threads(args.n_jobs)
    of_valid = evaluate_vectors(users, items, valid, X, n)
    of_test = evaluate_vectors(users, items, test, X + valid, n)
    return {"score": of_valid["ndcg"], "valid": of_valid, "test": of_test}


def fit_als(X, regularization, alpha, iterations, seed, args):
    """Return a fitted model of implicit, and the seconds it took."""
    from implicit.als import AlternatingLeastSquares

    with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
        model = AlternatingLeastSquares(
            FACTORS, regularization=regularization, alpha=alpha, iterations=iterations,
            num_threads=count_threads(args.n_jobs), random_state=seed, use_gpu=False,
        )  # fmt: skip
        start = time.perf_counter()
        model.fit(sparse.csr_matrix(X), show_progress=False)
    return model, time.perf_counter() - start


def run_als(parts, regularization, alpha, seed, args):
    """Train ALS of implicit; look once, at the end."""
    model, seconds = fit_als(parts[0], regularization, alpha, args.als_iterations, seed, args)
    look = look_at_vectors(model.user_factors, model.item_factors, parts, args)
    look |= {"epoch": args.als_iterations, "seconds": seconds}
    return {
        "looks": [look], "best": look, "seconds": seconds, "diverged": False,
        "epochs": args.als_iterations,
    }  # fmt: skip


def refit_als(parts, regularization, alpha, seed, args):
    """Train ALS on training and validation rows; look at test."""
    X, valid, test = parts
    model, _ = fit_als(X + valid, regularization, alpha, args.als_iterations, seed, args)
    n = count_threads(args.n_jobs)
    of_test = evaluate_vectors(model.user_factors, model.item_factors, test, X + valid, n)
    return {"best": {"test": of_test}}


def warp_vectors(model):
    """Return the vectors of users and items of LightFM, the items' biases among them."""
    _, users = model.get_user_representations()
    biases, items = model.get_item_representations()
    ones = np.ones((len(users), 1), np.float32)
    return np.hstack([users, ones]), np.hstack([items, biases[:, None]])


def fit_warp(parts, seed, args):
    """Train LightFM's WARP until validation no longer improves; look at test on the way."""
    import lightfm

    model = lightfm.LightFM(FACTORS, loss="warp", random_state=seed)
    run = {"looks": [], "best": None, "seconds": 0.0, "diverged": False}
    clicks = sparse.coo_matrix(parts[0])
    epoch = since_best = 0
    while epoch < args.epochs and since_best != args.patience:
        n = min(args.every, args.epochs - epoch)
        start = time.perf_counter()
        model.fit_partial(clicks, epochs=n, num_threads=count_threads(args.n_jobs))
        run["seconds"] += time.perf_counter() - start
        epoch += n
        now = {"epoch": epoch, "seconds": run["seconds"]}
        now |= look_at_vectors(*warp_vectors(model), parts, args)
        run["looks"].append(now)
        since_best += 1
        if run["best"] is None or now["score"] > run["best"]["score"]:
            run["best"], since_best = now, 0
    return {**run, "epochs": epoch}


def refit_warp(parts, n_epochs, seed, args):
    """Train LightFM on training and validation rows; look at test."""
    import lightfm

    X, valid, test = parts
    n = count_threads(args.n_jobs)
    model = lightfm.LightFM(FACTORS, loss="warp", random_state=seed)
    model.fit(sparse.coo_matrix(X + valid), epochs=n_epochs, num_threads=n)
    return {"best": {"test": evaluate_vectors(*warp_vectors(model), test, X + valid, n)}}


# The comparison.


class Runs:
    """The runs of one data set and one seed, done now or earlier."""

    def __init__(self, results, data_set, parts, seed, args):
        self.results, self.data_set, self.seed, self.args = results, data_set, seed, args
        self.parts = split_anew(parts, seed)

    def key(self, setting, *options, **more):
        """Return what names a run."""
        key = {"data": self.data_set, "setting": setting, "seed": self.seed, **more}
        return key | {name: getattr(self.args, name) for name in options}

    def sampled(self, sampler, n_negatives, n_codewords):
        """Return a run of the autoencoder, and what makes its model."""
        more = {}
        if sampler != "full":
            more["n_negatives"] = n_negatives
        if sampler.startswith("midx"):
            more["n_codewords"] = n_codewords

        def make():
            return vae(sampler, n_negatives, n_codewords, self.seed, self.args)

        key = self.key(sampler, *NETWORK, *LOOKS, **more)
        return self._with_refit(key, make)

    def _with_refit(self, key, make):
        run = self.results.run(key, fit, make(), self.parts, self.args)
        if self.args.refit and run["best"] is not None:
            n_epochs = run["best"]["epoch"]
            key = {**key, "refit": n_epochs}
            again = self.results.run(key, refit, make(), self.parts, n_epochs)
            run = {**run, "refit": again["best"]}
        return run

    def setting(self, name):
        """Return a run of a setting, or None if what it needs is not there."""
        args, seed = self.args, self.seed
        if name in SAMPLERS:
            return self.sampled(name, args.negatives, args.codewords)
        if name == "MFRecommender()":

            def make():
                return MFRecommender(n_jobs=args.n_jobs, random_state=seed)

            return self._with_refit(self.key(name, *LOOKS), make)
        if find_spec(name.split()[0].lower()) is None:
            print(f"{name}: not installed")
            return None
        if name == "LightFM WARP":
            key = self.key(name, *LOOKS)
            run = self.results.run(key, fit_warp, self.parts, seed, args)
            if args.refit:
                n_epochs = run["best"]["epoch"]
                key = {**key, "refit": n_epochs}
                again = self.results.run(key, refit_warp, self.parts, n_epochs, seed, args)
                run = {**run, "refit": again["best"]}
            return run
        grid = {}
        for point in product(args.als_regularization, args.als_alpha):
            more = {"regularization": point[0], "alpha": point[1]}
            key = self.key(name, "als_iterations", "quick", **more)
            grid[point] = self.results.run(key, run_als, self.parts, *point, seed, args)
        best = max(grid, key=lambda point: grid[point]["best"]["score"])
        run = {**grid[best], "seconds": sum(run["seconds"] for run in grid.values())}
        run["chosen"] = "regularization {:g}, alpha {:g}".format(*best)
        if args.refit:
            more = {"regularization": best[0], "alpha": best[1]}
            key = self.key(name, "als_iterations", "quick", **more, refit=True)
            again = self.results.run(key, refit_als, self.parts, *best, seed, args)
            run["refit"] = again["best"]
        return run


def near(run, epoch):
    """Return the look nearest to an epoch."""
    return min(run["looks"], key=lambda look: abs(look["epoch"] - epoch))


def means(looks, measure):
    """Return the mean of a measure on test."""
    return float(np.mean([look["test"][measure] for look in looks]))


def spread(looks):
    """Return the largest difference of NDCG on test between seeds."""
    return float(np.ptp([look["test"]["ndcg"] for look in looks]))


def show(data_set, runs, args):
    """Print the tables of one data set, runs by setting, one a seed."""
    full = runs.get("full")
    rows = []
    for name, of_name in runs.items():
        best, last = [run["best"] for run in of_name], [run["looks"][-1] for run in of_name]
        ratios = ["", ""]
        if full:
            of_full = [run["best"] for run in full]
            ratios = [f"{means(best, m) / means(of_full, m):.3f}" for m in ("ndcg", "recall")]
        seconds = [run["seconds"] / run["epochs"] for run in of_name]
        rows.append([
            name, float(np.mean([b["score"] for b in best])), means(best, "ndcg"), spread(best),
            ratios[0], means(best, "recall"), ratios[1], means(last, "ndcg"), means(last, "recall"),
            f"{np.mean([b['epoch'] for b in best]):.0f}", epochs_of(*of_name),
            f"{np.mean(seconds):.2f}", f"{np.mean([run['seconds'] for run in of_name]):.0f}",
        ])  # fmt: skip
    table(
        f"{data_set}: test where validation is best, {args.negatives} draws a user, "
        f"{args.seeds} seed(s)",
        ["", "valid N@50", "N@50", "spread", "/ full", "R@50", "/ full", "last N@50", "last R@50",
         "epoch", "epochs", "s/epoch", "s"],
        rows,
    )  # fmt: skip
    for name, of_name in runs.items():
        if "chosen" in of_name[0]:
            print(f"{name}: {'; '.join(run['chosen'] for run in of_name)}")
    if args.refit:
        table(
            f"{data_set}: test, trained on training and validation rows",
            ["", "N@50", "spread", "R@50"],
            [
                [name, means(again, "ndcg"), spread(again), means(again, "recall")]
                for name, of_name in runs.items()
                for again in [[run["refit"] for run in of_name]]
            ],
        )
    claims(data_set, runs)


def claims(data_set, runs):
    """Print the figures that stand for the paper's claims."""
    epochs = {name: min(run["epochs"] for run in of_name) for name, of_name in runs.items()}

    def compared(what, a, b, look):
        if a in runs and b in runs:
            of_a, of_b = ([look(run) for run in runs[name]] for name in (a, b))
            ratio = " and ".join(
                f"{name} x {means(of_a, measure) / means(of_b, measure):.3f}"
                for measure, name in (("ndcg", "NDCG"), ("recall", "recall"))
            )
            print(f"  {what}, {a} / {b}: {ratio}")

    print(f"\n{data_set}, on test")
    for name in SAMPLERS[1:]:
        compared("where validation is best", name, "full", lambda run: run["best"])
    for other in ("uniform", "popularity"):
        for name in ("midx_uniform", "midx_popularity"):
            # Curves of different lengths have no common end: up to the shorter one.
            end = min(epochs.get(name, 0), epochs.get(other, 0))
            for epoch in sorted({min(EARLY, end), end}):
                compared(f"epoch {epoch}", name, other, lambda run, e=epoch: near(run, e))


def run_data_set(data_set, parts, names, results, args):
    """Run what is asked for on one data set, seed by seed, and show it; return runs by setting."""
    runs = {}
    for seed in range(args.seeds):
        of_seed = Runs(results, data_set, parts, seed, args)
        for name in names:
            run = of_seed.setting(name)
            if run is not None and run["best"] is not None:
                runs.setdefault(name, []).append(run)
    if runs:
        show(data_set, runs, args)
    return runs


# Figure 2.


def kl(log_q, log_p):
    """Return the divergence of each row's distribution P from Q: sum Q log(Q / P)."""
    q = np.exp(log_q)
    return np.where(q > 0, q * (log_q - log_p), 0).sum(axis=1)


def proposals(components):
    """Return the samplers whose proposals are compared, by name."""
    named = {"uniform": Uniform(), "popularity": Popularity(), "DNS": DNS()}
    if components <= KERNEL_UP_TO:
        named["kernel"] = Kernel()
    for n in (16, 64):
        for variant in ("uniform", "popularity"):
            named[f"midx_{variant}, K = {n}"] = MIDX(variant, n_codewords=n)
    named["MIDX, exact"] = MIDX("exact", n_codewords=16)
    return named


def log_softmax_of(vectors, queries):
    """Return the log-probabilities of the model itself, float64."""
    logits = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    return logits - logsumexp(logits, axis=1, keepdims=True)


def divergences(model, X, seed, args):
    """Return divergences by sampler, for some users, and one user's cumulative probabilities."""
    generator = np.random.default_rng(seed)
    active = np.flatnonzero(np.diff(X.indptr))
    users = generator.choice(active, min(USERS, len(active)), replace=False)
    # Without a hidden layer in the decoder a query is the latent mean, and a one for the bias.
    mean = model.transform(X[users])
    queries = np.column_stack([mean, np.ones(len(mean), np.float32)])
    vectors, counts = model.item_factors_, model.item_counts_
    log_p = log_softmax_of(vectors, queries)
    by_popularity = np.argsort(-counts, kind="stable")
    points = np.unique(np.geomspace(1, len(counts), 200).astype(int)) - 1
    shown = {"softmax": np.cumsum(np.exp(log_p[0])[by_popularity])[points].tolist()}
    outcome = {}
    for name, sampler in proposals(args.components).items():
        sampler.fit(vectors, counts, random_state=seed)
        log_q = sampler.log_proba(queries)
        shown[name] = np.cumsum(np.exp(log_q[0])[by_popularity])[points].tolist()
        of_users = kl(log_q, log_p)
        outcome[name] = {
            "mean": float(of_users.mean()),
            "largest": float(of_users.max()),
            "least": float(of_users.min()),
            "reverse": float(kl(log_p, log_q).mean()),
            "error": float(np.abs(np.exp(log_q) - np.exp(log_p)).max()),
        }
        if name.startswith("midx_uniform"):
            # Theorem 5.3: 2 C |z|, with C the length of the longest residual.
            longest = np.linalg.norm(vectors - sampler.quantized_vectors_, axis=1).max()
            bound = 2 * longest * np.linalg.norm(queries, axis=1)
            outcome[name]["of_bound"] = float((of_users / bound).max())
    return {"samplers": outcome, "points": (points + 1).tolist(), "cumulative": shown}


def divergence_of(parts, trained, seed, args):
    """Return divergences of a model that is trained for so many epochs, or hardly at all."""
    X = parts[0]
    model = vae("full", None, None, seed, args)
    if not trained:
        # A step this small leaves the model as it starts.
        model.set_params(learning_rate=1e-30, negative_sampler="uniform", n_negatives=1)
    model.set_params(max_iter=max(1, trained)).fit(X)
    return divergences(model, X, seed, args)


def divergence_experiment(data_set, parts, results, args):
    """Run and show figure 2 of one data set; return both states of the model."""
    runs = Runs(results, data_set, parts, 0, args)
    chosen = runs.sampled("full", None, None)["best"]["epoch"]
    states = {}
    for name, trained in (("random", 0), ("trained", chosen)):
        key = runs.key("divergence", *NETWORK, "quick", trained=trained)
        states[name] = results.run(key, divergence_of, runs.parts, trained, 0, args)
    rows = [
        [name, *(max(0.0, state["samplers"][name][what]) for state in states.values()
                 for what in ("mean", "largest", "reverse"))]
        for name in states["trained"]["samplers"]
    ]  # fmt: skip
    table(
        f"{data_set}: divergence of proposals Q from the softmax P, mean and largest of {USERS} "
        f"users, before training and after {chosen} epochs",
        ["", *(f"{name}: {what}" for name in states for what in ("KL(Q, P)", "largest",
                                                                "KL(P, Q)"))],
        rows,
    )  # fmt: skip
    for state, outcome in states.items():
        exact = outcome["samplers"]["MIDX, exact"]["error"]
        print(f"{state}: probabilities of exact MIDX are off by at most {exact:.1e}")
        for name, of_sampler in outcome["samplers"].items():
            if "of_bound" in of_sampler:
                print(
                    f"  {name}: KL(Q, P) at least {of_sampler['least']:.2e} and at most "
                    f"{of_sampler['of_bound']:.1%} of 2 C |z|"
                )
    trained = states["trained"]["samplers"]
    print("on the trained model, KL(Q, P) of")
    for static in ("uniform", "popularity"):
        for name in trained:
            if name.startswith(f"midx_{static}"):
                ratio = trained[name]["mean"] / trained[static]["mean"]
                print(f"  {name} / {static}: {ratio:.3f}")
    return states


def draw_divergence(by_data_set, path):
    """Draw one user's cumulative probabilities over items by popularity."""
    plt = matplotlib()
    if plt is None:
        return
    figure, axes = plt.subplots(
        len(by_data_set), 2, figsize=(13, 4.5 * len(by_data_set)), layout="constrained",
        squeeze=False, sharey=True,
    )  # fmt: skip
    for row, (data_set, states) in zip(axes, by_data_set.items(), strict=True):
        for axis, (state, outcome) in zip(row, states.items(), strict=True):
            for name, cumulative in outcome["cumulative"].items():
                wide = {"linewidth": 3, "color": "black"} if name == "softmax" else {}
                axis.plot(outcome["points"], cumulative, label=name, **wide)
            axis.set(xscale="log", xlabel="items by popularity", title=f"{data_set}, {state}")
            axis.set(ylabel="cumulative probability")
        row[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


# Figure 5.


def sensitivity_experiment(data_set, parts, results, args):
    """Run and show figure 5 of one data set; return NDCG where validation is best."""
    wanted = [("midx_popularity", k, f"K = {k}") for k in args.codewords_grid]
    grid = {}
    for seed in range(args.seeds):
        runs = Runs(results, data_set, parts, seed, args)
        for sampler, k, name in [*wanted, ("uniform", None, "uniform")]:
            for n in args.negatives_grid:
                run = runs.sampled(sampler, n, k)
                if run["best"] is not None:
                    grid.setdefault(name, {}).setdefault(n, []).append(run)
    shown = {
        "where validation is best": lambda run: run["best"],
        f"after {EARLY} epochs": lambda run: near(run, EARLY),
    }
    for title, look in shown.items():
        rows = [
            [name, *(means(map(look, of_n[n]), "ndcg") if n in of_n else "" for n in
                     args.negatives_grid)]
            for name, of_n in grid.items()
        ]  # fmt: skip
        table(
            f"{data_set}: test NDCG@50 {title}, by draws a user (midx_popularity and uniform)",
            ["", *map(str, args.negatives_grid)],
            rows,
        )
    return grid


def draw_sensitivity(by_data_set, path):
    """Draw NDCG by draws, a line for each number of codewords, and the curves by epoch."""
    plt = matplotlib()
    if plt is None:
        return
    figure, axes = plt.subplots(
        len(by_data_set), 2, figsize=(12, 4.5 * len(by_data_set)), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for (draws, curves), (data_set, grid) in zip(axes, by_data_set.items(), strict=True):
        for name, of_n in grid.items():
            best = [means([run["best"] for run in runs], "ndcg") for runs in of_n.values()]
            draws.plot(list(of_n), best, marker="o", label=name)
            some = min(of_n, key=lambda n: abs(n - 200))
            looks = of_n[some][0]["looks"]
            curves.plot(
                [look["epoch"] for look in looks], [look["test"]["ndcg"] for look in looks],
                label=f"{name}, {some} draws",
            )  # fmt: skip
        draws.set(xscale="log", xlabel="draws a user", ylabel="test NDCG@50", title=data_set)
        curves.set(xlabel="epoch", ylabel="test NDCG@50", title=data_set)
        draws.legend(fontsize="small")
        curves.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def draw_curves(by_data_set, path):
    """Draw figure 3: NDCG and recall on test by epoch, of the first seed."""
    plt = matplotlib()
    if plt is None:
        return
    figure, axes = plt.subplots(
        len(by_data_set), 2, figsize=(12, 4.5 * len(by_data_set)), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for row, (data_set, runs) in zip(axes, by_data_set.items(), strict=True):
        for axis, measure in zip(row, ("ndcg", "recall"), strict=True):
            for name, (run, *_) in runs.items():
                values = [look["test"][measure] for look in run["looks"]]
                if len(values) == 1:
                    axis.axhline(values[0], linestyle=":", color="gray", label=name)
                else:
                    axis.plot([look["epoch"] for look in run["looks"]], values, label=name)
            axis.set(xlabel="epoch", ylabel=f"test {measure}@{K}", title=data_set)
        row[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def matplotlib():
    """Return pyplot, or None and say so."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return None
    return plt


def main():
    parser = run_parser(__doc__, epochs=200, every=5, patience=4)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--only", nargs="+", default=["*"], help="names or patterns of settings")
    parser.add_argument("--divergence", action="store_true", help="figure 2 instead")
    parser.add_argument("--sensitivity", action="store_true", help="figure 5 instead")
    parser.add_argument("--refit", action="store_true", help="also train on validation rows")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--negatives", type=int, default=200, help="draws a user (200)")
    parser.add_argument("--codewords", type=int, default=16, help="of MIDX (16)")
    parser.add_argument("--negatives-grid", type=int, nargs="+", default=[50, 100, 200, 500, 1000])
    parser.add_argument("--codewords-grid", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--activation", choices=("tanh", "relu"), default="tanh")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--kl-weight", type=float, default=0.2)
    parser.add_argument("--dropout", type=float, default=0.5, help="of the items of the input")
    parser.add_argument("--als-regularization", type=float, nargs="+", default=[0.1, 1, 10, 100])
    parser.add_argument("--als-alpha", type=float, nargs="+", default=[1, 5, 20])
    parser.add_argument("--als-iterations", type=int, default=15)
    args = parser.parse_args()
    names = [name for name in (*SAMPLERS, *PEERS) if any(fnmatch(name, only) for only in args.only)]
    if not names:
        parser.error(f"--only names none of: {', '.join((*SAMPLERS, *PEERS))}")
    if args.quick:
        args.epochs, args.every, args.als_iterations = 4, 2, 3
        args.als_regularization, args.als_alpha = args.als_regularization[:2], args.als_alpha[:1]
        args.negatives_grid, args.codewords_grid = args.negatives_grid[:2], args.codewords_grid[:2]
    if "kernel" in names and (args.quick or args.components > KERNEL_UP_TO):
        names.remove("kernel")
    results = Results(args.results or args.out / "fastvae.jsonl")
    data = require_data(args)
    by_data_set = {}
    for data_set in args.data_set:
        parts = click_parts(data, DATA_SETS[data_set])
        if args.quick:
            parts = [part[:1000] for part in parts]
        if args.divergence:
            by_data_set[data_set] = divergence_experiment(data_set, parts, results, args)
        elif args.sensitivity:
            by_data_set[data_set] = sensitivity_experiment(data_set, parts, results, args)
        else:
            by_data_set[data_set] = run_data_set(data_set, parts, names, results, args)
    if args.divergence:
        draw_divergence(by_data_set, args.out / "fastvae_divergence.png")
    elif args.sensitivity:
        draw_sensitivity(by_data_set, args.out / "fastvae_sensitivity.png")
    else:
        draw_curves(by_data_set, args.out / "fastvae.png")


if __name__ == "__main__":
    main()
