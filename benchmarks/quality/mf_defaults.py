"""How the defaults of MFRecommender were chosen: on validation parts, one change at a time.

Around the defaults, one setting at a time is changed. The table shows recall@20 and NDCG@20 on the
validation part, and the seconds to train. No test part is read; ``untuned.py`` looks at
test, with the defaults alone.

    python benchmarks/quality/mf_defaults.py --data DIR --out results
    python benchmarks/quality/mf_defaults.py --data DIR --data-set ml100k --changes 'n_*' --seeds 3

MovieLens-100K is split by ``holdout_interactions``; "quarter" are a quarter of Gowalla's users,
with the items that they have. Finished fits go to ``--results`` (default: mf_defaults.jsonl in
``--out``), and one that is there is skipped. ``--quick`` draws small data instead.
"""

import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, require_data
from _runs import Results, table

from freqfm import MFRecommender
from freqfm.backbones import LightGCN
from freqfm.losses import BSL
from freqfm.metrics import ranking_report
from freqfm.metrics._hits import top_k
from freqfm.samplers import Popularity
from freqfm.temperatures import DensityTemperature

DATA_SETS = {
    "gowalla": "gowalla",
    "quarter": "gowalla",
    "ml1m": "ml1m-implicit",
    "ml100k": "ml100k",
}
K = 20


class Before(BSL):
    """BSL with the defaults that it had before fits were made shorter."""

    block = 4
    shrinkage = 0.0
    max_iter = 100


class EqualWeights(BSL):
    """BSL without weights of rare items."""

    shrinkage = 0.0


class Blocks(BSL):
    """BSL with rows of fewer positives."""

    block = 4


# The defaults before they were changed to these.
BEFORE = {"loss": Before(), "init": "xavier", "negative_sampler": "uniform", "n_negatives": 512}

CHANGES = {
    "the defaults": {},
    "before": BEFORE,
    "before, 20 epochs": {**BEFORE, "max_iter": 20},
    "before, spectral": {**BEFORE, "init": "spectral"},
    "xavier": {"init": "xavier"},
    "uniform": {"negative_sampler": "uniform"},
    "equal weights": {"loss": EqualWeights()},
    "block 4": {"loss": Blocks()},
    "100 epochs": {"max_iter": 100},
    "steady rate": {"learning_rate": "steady"},
    "n_components=64": {"n_components": 64},
    "n_negatives=256": {"n_negatives": 256},
    "n_negatives=512": {"n_negatives": 512},
    "n_negatives=1024": {"n_negatives": 1024},
    "batch_size=2048": {"batch_size": 2048},
    "user_dropout=0": {"user_dropout": 0.0},
    "user_dropout=0.05": {"user_dropout": 0.05},
    "user_dropout=0.2": {"user_dropout": 0.2},
    "Popularity(0.3)": {"negative_sampler": Popularity(0.3)},
    "Popularity(0.75)": {"negative_sampler": Popularity(0.75)},
    "1 / tau times 0.85": {"temperature": DensityTemperature(0.85 * 3.4, slope=0.85 * 0.9)},
    "1 / tau times 1.15": {"temperature": DensityTemperature(1.15 * 3.4, slope=1.15 * 0.9)},
    "weights n_u^-0.5": {"user_exponent": -0.5},
    "weights n_u^-1": {"user_exponent": -1.0},
    "weights n_i^-0.3": {"item_exponent": -0.3},
    **{f"propagation, {share}": {"propagation": share} for share in (0.05, 0.1, 0.2, 0.4)},
    "lightgcn": {"backbone": "lightgcn"},
    "lightgcn, 20 epochs": {"backbone": "lightgcn", "max_iter": 20},
    "lightgcn, 40 epochs": {"backbone": "lightgcn", "max_iter": 40},
    "lightgcn, 3 layers, 40 epochs": {"backbone": LightGCN(3), "max_iter": 40},
    **{
        f"softmax, {sampler}, {n} epochs": {
            "loss": "softmax",
            "negative_sampler": sampler,
            "max_iter": n,
        }
        for n in (4, 8)
        for sampler in ("uniform", "midx_uniform", "midx_popularity")
    },
    **{
        f"bpr, {sampler}, 20 epochs": {"loss": "bpr", "negative_sampler": sampler, "max_iter": 20}
        for sampler in ("uniform", "dns")
    },
}


def quarter_of(parts):
    """Return the rows of a quarter of the users, drawn, without items that have no user."""
    n_users = parts[0].shape[0]
    rows = np.sort(np.random.default_rng(0).permutation(n_users)[: n_users // 4])
    parts = [part[rows] for part in parts]
    items = np.flatnonzero(np.bincount(parts[0].indices, minlength=parts[0].shape[1]))
    return [sparse.csr_array(part[:, items]) for part in parts]


def training_and_validation(name, args):
    """Return the training part and the validation part of a data set."""
    if args.quick:
        return click_parts(require_data(args), "gowalla")[:2]
    parts = click_parts(require_data(args), DATA_SETS[name])[:2]
    return quarter_of(parts) if name == "quarter" else parts


def steady_rate(n_pairs):
    """Return Adam's default rate as it is without falling, see ``MFRecommender``."""
    n_batches = -(-n_pairs // min(max(n_pairs // 256, 32), 1024))
    return float(np.clip(24 / (50 * n_batches), 3e-4, 1e-2))


def weighted(X, user_exponent, item_exponent):
    """Return the interactions with weights that are powers of the users' and items' counts."""
    degrees = np.diff(X.indptr)
    weights = np.repeat(np.maximum(degrees, 1.0) ** user_exponent, degrees)
    weights *= np.bincount(X.indices, minlength=X.shape[1])[X.indices] ** item_exponent
    weights = (weights / weights.mean()).astype(np.float32)
    return sparse.csr_array((weights, X.indices, X.indptr), shape=X.shape)


def propagated(users, items, X, share):
    """Return vectors plus ``share`` times the sums over neighbours, normalised as by LightGCN."""
    user_scale = 1 / np.sqrt(np.maximum(np.diff(X.indptr), 1))
    item_scale = 1 / np.sqrt(np.maximum(np.bincount(X.indices, minlength=X.shape[1]), 1))
    A = sparse.diags_array(user_scale) @ X @ sparse.diags_array(item_scale)
    return users + share * (A @ items), items + share * (A.T @ users)


def fit(X, held_out, change, seed, n_jobs):
    """Train one model; return its quality on the held-out part, and the seconds."""
    params = dict(change)
    share = params.pop("propagation", 0.0)
    exponents = [params.pop(f"{side}_exponent", 0.0) for side in ("user", "item")]
    if params.get("learning_rate") == "steady":
        params["learning_rate"] = steady_rate(X.nnz)
    model = MFRecommender(**params, random_state=seed, n_jobs=n_jobs)
    start = time.perf_counter()
    model.fit(weighted(X, *exponents) if any(exponents) else X)
    seconds = time.perf_counter() - start
    vectors = [v.astype(np.float32) for v in propagated(*model.export_vectors(), X, share)]
    users = np.flatnonzero(np.diff(held_out.indptr))
    found = top_k(np.ascontiguousarray(vectors[0][users]), vectors[1], K, exclude=X[users])[0]
    report = ranking_report(held_out[users], found)
    return {"recall": report[f"recall@{K}"], "ndcg": report[f"ndcg@{K}"], "seconds": seconds}


def main(description, changes, fit, name):
    """Fit all changes of a script on all data sets, and print a table for each."""
    parser = data_parser(description)
    parser.add_argument("--results", type=Path, help="JSON lines of finished fits (in --out)")
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--changes", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="200 users, drawn: a test")
    args = parser.parse_args()
    results = Results(args.results or args.out / f"{name}.jsonl")
    for data_set in args.data_set[: 1 if args.quick else None]:
        X, held_out = training_and_validation(data_set, args)
        rows = []
        for change_name, change in changes.items():
            if not any(fnmatch(change_name, wanted) for wanted in args.changes):
                continue
            runs = []
            for seed in range(args.seeds):
                key = {"data": data_set, "change": repr(change), "seed": seed, "quick": args.quick}
                runs.append(results.run(key, fit, X, held_out, change, seed, args.n_jobs))
            recall, ndcg, seconds = (
                [run[of] for run in runs] for of in ("recall", "ndcg", "seconds")
            )
            means = float(np.mean(recall)), float(np.mean(ndcg))
            rows.append([change_name, *means, float(np.ptp(ndcg)), f"{np.mean(seconds):.0f}"])
        header = ["", "recall@20", "NDCG@20", "spread", "seconds"]
        table(f"{'drawn' if args.quick else data_set}, validation", header, rows)


if __name__ == "__main__":
    main(__doc__, CHANGES, fit, "mf_defaults")
