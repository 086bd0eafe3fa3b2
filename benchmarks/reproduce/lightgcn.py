"""LightGCN, non-linear MF and the losses PSL, SL@K and CCL, on Gowalla and MovieLens-1M clicks.

Every model trains on the training part until NDCG@20 on validation no longer rises. For as many
epochs as were best it is then trained on training and validation parts together, which are the
training part of the published split, and looked at on test once. The table shows recall@20 and
NDCG@20 of both.

    python benchmarks/reproduce/lightgcn.py --data DIR --out results
    python benchmarks/reproduce/lightgcn.py --data DIR --data-set gowalla --models 'lightgcn*'
    python benchmarks/reproduce/lightgcn.py --data DIR --data-set gowalla \
        --models 'lightgcn bsl, 1024' --n-components 256 --epochs 100 --every 100
    python benchmarks/reproduce/lightgcn.py --data DIR --data-set gowalla \
        --models 'lightgcn bpr, hard, exact' --n-components 256 --epochs 30
    python benchmarks/reproduce/lightgcn.py --quick

Published, recall@20 / NDCG@20 on Gowalla: LightGCN with BPR 0.1830 / 0.1554 (He et al., 2020), with
the adaptive softmax of Adap-tau 0.1901 / 0.1590.

LightGCN propagates vectors once an epoch, in the time of MF; "exact" does so in each batch. On two
free cores, an epoch of Gowalla then takes about 40 s in batches of 2,048, and 3 s (64 components)
or 13 s (256) in batches of 16,384. Finished runs go to ``--results`` (default: lightgcn.jsonl in
``--out``), and a run that is there is skipped.
"""

import sys
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import Results, click_parts, evaluate, require_data, run_parser, table, train
from scipy import sparse

from freqfm import MFRecommender
from freqfm.backbones import MLP, LightGCN
from freqfm.initializers import Normal
from freqfm.losses import CCL, PSL, SLatK
from freqfm.optimizers import WeightDecay
from freqfm.samplers import DNS, InBatch

DATA_SETS = {"ml1m": "ml1m-implicit", "gowalla": "gowalla"}
# Of the authors of Adap-tau and BSL; training by cosines, ranking by dot products.
PUBLISHED = {
    "loss": "softmax", "temperature": 0.125, "negative_sampler": InBatch(corrected=False),
}  # fmt: skip
KEYS = "n_components", "epochs", "every", "patience", "seed"
EXACT = {"batch_size": 2048, "learning_rate": 0.001, "user_dropout": 0.0}
HARD = {"loss": "bpr", "negative_sampler": DNS(128), "learning_rate": 0.05}
MODELS = {
    "mf bsl": {},
    "mf softmax": {"loss": "softmax", "temperature": "density"},
    "mf psl tanh": {"loss": PSL()},
    "mf psl atan": {"loss": PSL("atan")},
    "mf psl relu": {"loss": PSL("relu")},
    "mf slatk": {"loss": SLatK()},
    "mf ccl": {"loss": CCL(negative_weight=20)},
    "mf ccl, 0.6 and 150": {"loss": CCL(0.6, negative_weight=150)},
    "mlp bsl": {"backbone": MLP()},
    "mlp softmax": {"backbone": MLP(), "loss": "softmax", "temperature": "density"},
    "lightgcn bpr": {"backbone": "lightgcn", "loss": "bpr", "n_negatives": 8},
    "lightgcn bpr, hard": {**HARD, "backbone": "lightgcn"},
    "lightgcn bpr, hard, dropout": {**HARD, "backbone": "lightgcn", "user_dropout": 0.3},
    "lightgcn bpr, hard, exact": {
        "loss": "bpr", "negative_sampler": DNS(64), "backbone": LightGCN(3, propagate="batch"),
        "init": Normal(0.1), "optimizer": "adam", "learning_rate": 0.005, "batch_size": 16384,
        "user_dropout": 0.3, "weight_decay": WeightDecay(1e-7, scope="batch"),
    },
    "lightgcn bsl": {"backbone": "lightgcn"},
    "lightgcn bsl, 1024": {"backbone": "lightgcn", "n_negatives": 1024},
    "lightgcn softmax, in batch": {**PUBLISHED, "backbone": LightGCN(3)},
    "lightgcn adap_tau, in batch": {
        **PUBLISHED, "backbone": LightGCN(3), "temperature": "adap_tau",
    },
    "lightgcn softmax, exact": {**PUBLISHED, **EXACT, "backbone": LightGCN(3, propagate="batch")},
}  # fmt: skip


def fit(parts, name, args):
    """Find the best number of epochs on validation; train on both parts, look at test."""
    training, valid, test = parts
    params = {**MODELS[name], "n_jobs": args.n_jobs, "random_state": args.seed}

    def look(model):
        found = evaluate(model, valid)
        print(f"{name}: epoch {model.n_iter_}, validation {found['ndcg']:.4f}", flush=True)
        return {"score": found["ndcg"], "valid": found}

    run = train(
        MFRecommender(args.n_components, **params), training, look,
        epochs=args.epochs, every=args.every, patience=args.patience,
    )  # fmt: skip
    best = run["best"]
    if best is not None:
        model = MFRecommender(args.n_components, **params, max_iter=best["epoch"])
        best["test"] = evaluate(model.fit(sparse.csr_array(training + valid)), test)
    return run


def main():
    parser = run_parser(__doc__, epochs=200, every=5, patience=3)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--models", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--n-components", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.every = 2, 1
    results = Results(args.results or args.out / "lightgcn.jsonl")
    data = require_data(args)
    for data_set in args.data_set:
        parts = click_parts(data, DATA_SETS[data_set])
        rows = []
        for name in MODELS:
            if not any(fnmatch(name, wanted) for wanted in args.models):
                continue
            key = {"data": data_set, "model": name, "params": repr(MODELS[name])}
            key |= {key: getattr(args, key) for key in KEYS}
            run = results.run({**key, "quick": args.quick}, fit, parts, name, args)
            if (best := run["best"]) is not None:
                found = [best[part][of] for part in ("valid", "test") for of in ("recall", "ndcg")]
                rows.append([name, *found, best["epoch"], f"{best['seconds'] / best['epoch']:.1f}"])
        header = ["", "valid R@20", "N@20", "test R@20", "N@20", "epoch", "s an epoch"]
        table(f"{data_set}, where validation is best", header, rows)


if __name__ == "__main__":
    main()
