"""FastVAE (Chen et al., WWW 2022): is a softmax over drawn items as good as one over all?

Gowalla and MovieLens-1M clicks, each merged and split again for every seed: 80 % of every user's
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
epoch, where training went ``--patience`` looks further; the picture, figure 3, shows them by epoch.
``--refit`` trains again on training and validation rows together, for as many epochs as were
chosen: figures to compare with published ones. Scores are dot products, as in the paper;
``--similarity cosine`` takes what is the package's default, at its default temperature.

    python benchmarks/reproduce/fastvae.py --data DIR --out results
    python benchmarks/reproduce/fastvae.py --data DIR --data-set gowalla --negatives 1000 --seeds 3
    python benchmarks/reproduce/fastvae.py --data DIR --only full 'midx*' --refit
    python benchmarks/reproduce/fastvae.py --data DIR --only full 'midx*' --similarity cosine
    python benchmarks/reproduce/fastvae.py --quick

Figures 2 and 5 are in fastvae_divergence.py and fastvae_sensitivity.py. The paper draws 1,000 items
on Gowalla and uses ReLU, the authors' script has other details; neither uses MovieLens-1M. Finished
runs go to ``--results`` (default: fastvae.jsonl in ``--out``, for all three scripts), and a run
that is there is skipped: stop and start as you like, but remove the file when the package has
changed. An epoch takes ten seconds of CPU time on Gowalla with the full softmax and two with MIDX;
the kernel takes many times as long. Writes fastvae.png if matplotlib is there.
"""

import sys
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
from _fastvae import (
    EARLY,
    KERNEL_UP_TO,
    LOOKS,
    K,
    Runs,
    data_sets,
    means,
    near,
    parse,
    results_of,
    two_columns,
    vae_parser,
)
from _peers import fit_warp, refit_als, refit_warp, run_als

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import epochs_of, evaluate, table, train

from freqfm import MFRecommender

SAMPLERS = ("full", "midx_popularity", "midx_uniform", "uniform", "popularity", "dns", "kernel")
PEERS = ("MFRecommender()", "implicit ALS", "LightFM WARP")


def refit(model, parts, n_epochs):
    """Train on training and validation rows for so many epochs; look at test."""
    X, valid, test = parts

    def look(model):
        of_test = evaluate(model, test, k=K)
        return {"score": of_test["ndcg"], "test": of_test}

    return train(model, X + valid, look, epochs=n_epochs, every=n_epochs)


class Settings(Runs):
    """Runs of all settings, with --refit each again on training and validation rows."""

    def trained(self, key, make):
        """Return a run of the model that ``make`` returns."""
        run = super().trained(key, make)
        if run["best"] is None:
            return run
        n_epochs = run["best"]["epoch"]
        return self._again(run, {**key, "refit": n_epochs}, refit, make(), self.parts, n_epochs)

    def _again(self, run, key, work, *arguments):
        """Return a run with the result of ``work`` added, if that is asked for."""
        if not self.args.refit:
            return run
        return {**run, "refit": self.results.run(key, work, *arguments)["best"]}

    def setting(self, name):
        """Return a run of a setting, or None if what it needs is not there."""
        args = self.args
        if name in SAMPLERS:
            return self.sampled(name, args.negatives, args.codewords)
        if name == "MFRecommender()":
            return self.trained(
                self.key(name, *LOOKS),
                lambda: MFRecommender(n_jobs=args.n_jobs, random_state=self.seed),
            )
        if find_spec(name.split()[0].lower()) is None:
            print(f"{name}: not installed")
            return None
        return self._warp(name) if name == "LightFM WARP" else self._als(name)

    def _warp(self, name):
        key = self.key(name, *LOOKS)
        run = self.results.run(key, fit_warp, self.parts, self.seed, self.args)
        n_epochs = run["best"]["epoch"]
        key = {**key, "refit": n_epochs}
        return self._again(run, key, refit_warp, self.parts, n_epochs, self.seed, self.args)

    def _als(self, name):
        args, grid = self.args, {}
        for point in product(args.als_regularization, args.als_alpha):
            more = {"regularization": point[0], "alpha": point[1]}
            key = self.key(name, "als_iterations", "quick", **more)
            grid[point] = self.results.run(key, run_als, self.parts, *point, self.seed, args)
        best = max(grid, key=lambda point: grid[point]["best"]["score"])
        run = {**grid[best], "seconds": sum(run["seconds"] for run in grid.values())}
        run["chosen"] = "regularization {:g}, alpha {:g}".format(*best)
        key = {**grid[best]["key"], "refit": True}
        return self._again(run, key, refit_als, self.parts, *best, self.seed, args)


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
    """Print the figures that correspond to the paper's claims."""
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
        of_seed = Settings(results, data_set, parts, seed, args)
        for name in names:
            run = of_seed.setting(name)
            if run is not None and run["best"] is not None:
                runs.setdefault(name, []).append(run)
    if runs:
        show(data_set, runs, args)
    return runs


def draw_curves(by_data_set, path):
    """Draw figure 3: NDCG and recall on test by epoch, of the first seed."""
    drawing = two_columns(len(by_data_set))
    if drawing is None:
        return
    figure, axes = drawing
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


def main():
    parser = vae_parser(__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], help="names or patterns of settings")
    parser.add_argument("--refit", action="store_true", help="also train on validation rows")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--negatives", type=int, default=200, help="draws a user (200)")
    parser.add_argument("--codewords", type=int, default=16, help="of MIDX (16)")
    parser.add_argument("--als-regularization", type=float, nargs="+", default=[0.1, 1, 10, 100])
    parser.add_argument("--als-alpha", type=float, nargs="+", default=[1, 5, 20])
    parser.add_argument("--als-iterations", type=int, default=15)
    args = parse(parser)
    names = [name for name in (*SAMPLERS, *PEERS) if any(fnmatch(name, only) for only in args.only)]
    if not names:
        parser.error(f"--only names none of: {', '.join((*SAMPLERS, *PEERS))}")
    if args.quick:
        args.als_iterations = 3
        args.als_regularization, args.als_alpha = args.als_regularization[:2], args.als_alpha[:1]
    if "kernel" in names and (args.quick or args.components > KERNEL_UP_TO):
        names.remove("kernel")
    results = results_of(args)
    by_data_set = {
        name: run_data_set(name, parts, names, results, args) for name, parts in data_sets(args)
    }
    draw_curves(by_data_set, args.out / "fastvae.png")


if __name__ == "__main__":
    main()
