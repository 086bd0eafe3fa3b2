"""The systems that two papers compare theirs with, tuned alike, on one split.

- ``samplers``: table 3 of FastVAE (Chen et al., WWW 2022), NDCG@50 and recall@50: implicit ALS
  (WRMF), BPR with negatives drawn uniformly, by WARP, AOBPR, DNS and PRIS, a softmax by
  self-adversarial weights, and variational autoencoders over all items (Mult-VAE) and over items
  drawn by MIDX.
- ``contrastive``: figure 5 of Adap-tau (Chen et al., WWW 2023), NDCG@20: BPR on LightGCN with the
  terms SGL, SimGCL and NCL, for 100 epochs in batches of 4,096, SimpleX's loss (CCL), and a softmax
  whose temperatures are Adap-tau's, without the graph and on it.

For every system of a table the same number of settings is tried with the first seed, five or three,
and that with the best NDCG on validation is trained with ``--seeds`` seeds, each with a split of
its own: 72, 8 and 20 % of every user's items. Models have 64 components and, but for those of BPR
on LightGCN, their default numbers of epochs. Tables show test, means of the seeds and how far these
are apart; nothing is chosen on test. Figure 9 of PRISM is in ``prism.py``.

    python benchmarks/reproduce/rivals.py --data DIR --out results
    python benchmarks/reproduce/rivals.py --data DIR --tables contrastive --data-set ml100k
    python benchmarks/reproduce/rivals.py --data DIR --tables samplers --data-set gowalla
    python benchmarks/reproduce/rivals.py --quick

Finished runs go to ``--results`` (default: rivals.jsonl in ``--out``), and a run that is there is
skipped: stop and start as you like, but remove the file when the package has changed. A run on
MovieLens-1M takes ten seconds to three minutes of one core, and hours on LightGCN.
"""

import functools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _fastvae import split_anew
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import QUICK, Results, click_parts, data_parser, evaluate, require_data, table

from freqfm import ALSRecommender, FastVAERecommender, MFRecommender
from freqfm.auxiliary import NCL, SGL, SimGCL
from freqfm.backbones import LightGCN
from freqfm.losses import CCL
from freqfm.optimizers import WeightDecay

DATA_SETS = {"gowalla": "gowalla", "ml1m": "ml1m-implicit", "ml100k": "ml100k"}

N_COMPONENTS = 64
WEIGHTS = {"auxiliary__weight": [0.003, 0.01, 0.03]}
GRAPH = LightGCN(2, propagate="batch")
KL_WEIGHTS = {"kl_weight": [0.025, 0.05, 0.1, 0.2, 0.4]}


class System(NamedTuple):
    """A recommender and the settings that are tried."""

    model: object
    grid: dict


def mf(grid, **params):
    """Return a matrix factorization."""
    return System(MFRecommender(N_COMPONENTS, **params), grid)


def lightgcn(grid, **params):
    """Return BPR on the graph's vectors."""
    return mf(grid, loss="bpr", backbone=GRAPH, batch_size=4096, max_iter=100, **params)


def pairwise(loss="bpr", **params):
    """Return a matrix factorization by pairs; vectors of a batch decay, as by default."""
    grid = {"weight_decay__value": [0.0003, 0.001, 0.003, 0.01, 0.03]}
    return mf(grid, loss=loss, weight_decay=WeightDecay(scope="batch"), **params)


def vae(sampler):
    """Return an autoencoder."""
    return System(FastVAERecommender(N_COMPONENTS, negative_sampler=sampler), KL_WEIGHTS)


class Table(NamedTuple):
    """The systems of a paper's table, and its k."""

    k: int
    systems: dict


TABLES = {
    "samplers": Table(
        50,
        {
            "WRMF": System(
                ALSRecommender(N_COMPONENTS), {"unobserved_weight": [0.05, 0.1, 0.2, 0.4, 0.8]}
            ),
            "BPR": pairwise(),
            "WARP": pairwise(loss="warp"),
            "AOBPR": pairwise(negative_sampler="aobpr"),
            "DNS": pairwise(negative_sampler="dns"),
            "PRIS": pairwise(negative_sampler="pris"),
            "SA": mf(
                {"temperature": [0.08, 0.12, 0.18, 0.27, 0.4]},
                loss="softmax",
                negative_sampler="self_adversarial",
            ),
            "Mult-VAE": vae("full"),
            "FastVAE": vae("midx_popularity"),
        },
    ),
    "contrastive": Table(
        20,
        {
            "LightGCN": lightgcn({"weight_decay": [0.0, 1e-6, 1e-4]}),
            "SGL": lightgcn(WEIGHTS, auxiliary=SGL()),
            "SimGCL": lightgcn(WEIGHTS, auxiliary=SimGCL()),
            "NCL": lightgcn(WEIGHTS, auxiliary=NCL(prototype_weight=0.01)),
            "SimpleX": mf({"loss__margin": [0.4, 0.8, 0.9]}, loss=CCL()),
            "Adap-tau": mf({"n_negatives": [256, 1024, 2048]}, temperature="adap_tau"),
            "Adap-tau on LightGCN": mf(
                {"n_negatives": [256, 1024, 2048]},
                temperature="adap_tau",
                backbone=GRAPH,
                batch_size=4096,
            ),
        },
    ),
}


def fit(system, params, parts, k, seed, args):
    """Train one model to its end; look at validation and at test."""
    X, valid, test = parts
    model = clone(system.model).set_params(**params, random_state=seed, n_jobs=args.n_jobs)
    if args.quick:
        model.set_params(max_iter=2)
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "valid": evaluate(model, valid, k=k),
        "test": evaluate(model, test, valid, k=k),
    }


def run_system(name, table_name, data_set, parts_of, results, args):
    """Return the best setting on validation, and its runs, one a seed."""
    k, systems = TABLES[table_name]
    system = systems[name]

    def run(params, seed):
        key = {"table": table_name, "data": data_set, "system": name, **params, "seed": seed}
        return results.run(key, fit, system, params, parts_of(seed), k, seed, args)

    grid = list(ParameterGrid(system.grid))[: 1 if args.quick else None]
    best = max(grid, key=lambda params: run(params, 0)["valid"]["ndcg"])
    return best, [run(best, seed) for seed in range(args.seeds)]


def show(table_name, data_set, found, args):
    """Print a table: the figures of the best setting of each system, on test."""
    k = TABLES[table_name].k
    rows = []
    for name, (params, runs) in found.items():
        of_test = {m: np.array([run["test"][m] for run in runs]) for m in runs[0]["test"]}
        popular, unpopular = of_test["ndcg_popular"], of_test["ndcg_unpopular"]
        of_valid = np.mean([run["valid"]["ndcg"] for run in runs])
        figures = [
            of_valid, of_test["ndcg"].mean(), np.ptp(of_test["ndcg"]), of_test["recall"].mean(),
            popular.mean(), unpopular.mean(), unpopular.mean() / popular.mean(),
        ]  # fmt: skip
        chosen = ", ".join(f"{key}={value:g}" for key, value in params.items())
        seconds = f"{np.mean([run['seconds'] for run in runs]):.0f}"
        rows.append([name, *map(float, figures), seconds, chosen])
    header = [f"valid N@{k}", f"N@{k}", "spread", f"R@{k}", "popular", "unpopular", "ratio"]
    title = f"{table_name}, {data_set}: test, {args.seeds} seed(s)"
    table(title, ["", *header, "CPU s", "chosen"], rows)


def main():
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="JSON lines of finished runs (in --out)")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--systems", nargs="+", help="names (all)")
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=["ml1m"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    if args.quick:
        args.seeds = 1
    data = require_data(args)
    results = Results(args.results or args.out / "rivals.jsonl")
    for data_set in args.data_set:
        parts = click_parts(data, DATA_SETS[data_set])
        parts_of = functools.cache(functools.partial(split_anew, parts))
        for name in args.tables:
            systems = [of for of in TABLES[name].systems if of in (args.systems or [of])]
            found = {of: run_system(of, name, data_set, parts_of, results, args) for of in systems}
            show(name, data_set, found, args)


if __name__ == "__main__":
    main()
