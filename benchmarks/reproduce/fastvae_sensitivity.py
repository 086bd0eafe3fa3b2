"""FastVAE (Chen et al., WWW 2022), figure 5: how many draws, and how many codewords?

On the data and with the autoencoder of fastvae.py: MIDX with log-popularity for every number of
draws in ``--negatives-grid`` and of codewords in ``--codewords-grid``, and uniform draws beside
them. Tables show NDCG@50 on test, a mean over seeds, at the epoch chosen on validation and after 10
epochs. The picture shows the first by draws, and the curves of about 200 draws by epoch, of the
first seed.

    python benchmarks/reproduce/fastvae_sensitivity.py --data DIR --out results
    python benchmarks/reproduce/fastvae_sensitivity.py --data DIR --data-set ml1m --seeds 3
    python benchmarks/reproduce/fastvae_sensitivity.py --data DIR --codewords-grid 16 64
    python benchmarks/reproduce/fastvae_sensitivity.py --quick

Scores are dot products, as in the paper; ``--similarity cosine`` is the package's default, at its
default temperature. Finished runs go to ``--results`` (default: fastvae.jsonl in ``--out``,
as those of fastvae.py), and a run that is there is skipped: stop and start as you like, but remove
the file when the package has changed. Writes fastvae_sensitivity.png if matplotlib is there.
"""

import sys
from pathlib import Path

from _fastvae import EARLY, Runs, data_sets, means, near, parse, results_of, two_columns, vae_parser

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import table


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
    drawing = two_columns(len(by_data_set))
    if drawing is None:
        return
    figure, axes = drawing
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


def main():
    parser = vae_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--negatives-grid", type=int, nargs="+", default=[50, 100, 200, 500, 1000])
    parser.add_argument("--codewords-grid", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    args = parse(parser)
    if args.quick:
        args.negatives_grid, args.codewords_grid = args.negatives_grid[:2], args.codewords_grid[:2]
    results = results_of(args)
    by_data_set = {
        name: sensitivity_experiment(name, parts, results, args) for name, parts in data_sets(args)
    }
    draw_sensitivity(by_data_set, args.out / "fastvae_sensitivity.png")


if __name__ == "__main__":
    main()
