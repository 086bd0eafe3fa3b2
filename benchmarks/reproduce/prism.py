"""PRISM (Loveland et al., 2025): do initial lengths by popularity replace weight decay?

MovieLens-1M clicks and Gowalla, each merged and split again at random, 80/10/10, for every seed;
matrix factorization with d = 64 and Adam, ranked by dot products: BPR, softmax of cosines with 10
negatives of each positive (temperature 1, the positive in the sum, as the paper's equation 7),
DirectAU and MAWU. Each with:

- weight decay 0, 1e-8, 1e-6 and 1e-4 on the whole tables in every batch, as in PyTorch;
- "batched 1e-6": decay of the rows of a batch only;
- "PRISM": no decay, vectors that start at lengths ln(count + 2). For DirectAU also other alphas
  (figure 5), down to 0, where all lengths are 1;
- "IPL 1" and so on: for BPR, the terms against the popularity bias of figure 9 with their weights,
  beside the decay ``--term-decay``; and "MACR 1" and so on, its loss in place of BPR with this c.

``--backbone mlp`` is the paper's non-linear factorization: each side's vectors pass two dense
layers with a ReLU between them.

All use the same Adam, whose moments of absent rows decay too (``lazy=False``). Learning rate and
epoch are chosen by NDCG@20 on validation, the rate with the first seed alone, and the other seeds
are trained with that one. Tables show the NDCG@20 on test, the parts of popular (top 5 %), neutral
(to 20 %) and unpopular items, Spearman's correlation of the items' counts and vector lengths, and
how long training took.

    python benchmarks/reproduce/prism.py --data DIR --out results
    python benchmarks/reproduce/prism.py --data DIR --data-set ml1m --losses directau --seeds 3
    python benchmarks/reproduce/prism.py --data DIR --variants 'decay 0' 'decay 1e-6' 'PRISM'
    python benchmarks/reproduce/prism.py --data DIR --data-set ml1m --backbone mlp
    python benchmarks/reproduce/prism.py --data DIR --losses bpr --variants 'IPL*' 'ReSN*' 'MACR*'
    python benchmarks/reproduce/prism.py --quick

The paper's batches are 16,384 (BPR, softmax) and 4,096 (DirectAU, MAWU); the time of DirectAU and
MAWU grows with the batch, hence 1,024. The longer vectors are, the more slowly they turn: PRISM
needs the larger learning rates. Finished runs go to ``--results`` (default: prism.jsonl in
``--out``), and a run that is there is skipped: stop and start as you like, but remove the file when
the package has changed. On two cores an epoch takes one second (BPR) to five (DirectAU, MAWU) on
MovieLens-1M and two to ten on Gowalla, so a run takes 2 to 30 minutes: hours for one loss, and a
day or two for everything.
"""

import sys
from fnmatch import fnmatch
from itertools import product
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
from sklearn.model_selection import train_test_split

from freqfm import MFRecommender
from freqfm.auxiliary import IPL, ReSN
from freqfm.backbones import MLP
from freqfm.initializers import PRISM
from freqfm.losses import BPR, MACR, MAWU, DirectAU, Softmax
from freqfm.optimizers import Adam, WeightDecay
from freqfm.samplers import Uniform

DATA_SETS = {"ml1m": "ml1m-implicit", "gowalla": "gowalla"}
DECAYS = ("0", "1e-8", "1e-6", "1e-4")
ALPHAS = (0.0, 0.25, 0.5, 0.75)
GAMMA = 2.0
N_COMPONENTS = 64
BACKBONES = {"linear": "linear", "mlp": MLP((N_COMPONENTS,))}
VARIANTS = {
    **{f"decay {decay}": {"weight_decay": float(decay)} for decay in DECAYS},
    "batched 1e-6": {"weight_decay": WeightDecay(1e-6, scope="batch")},
    "PRISM": {"init": PRISM()},
    **{f"PRISM {alpha}": {"init": PRISM(alpha)} for alpha in ALPHAS},
    **{f"IPL {weight:g}": {"auxiliary": IPL(weight)} for weight in (0.01, 0.1, 1.0, 10.0)},
    **{f"ReSN {weight:g}": {"auxiliary": ReSN(weight)} for weight in (0.001, 0.01, 0.1, 1.0)},
    **{f"MACR {c:g}": {"loss": MACR(c)} for c in (0.0, 2.0, 3.0)},
}
# The systems of figure 9 that PRISM is compared with, beside a decay.
DEBIASING = "IPL ", "ReSN ", "MACR "

# Variants of one loss only.
ONLY_OF = {"PRISM ": "directau", **dict.fromkeys(DEBIASING, "bpr")}
# The losses, and the options that change their runs.
OPTIONS = {
    "bpr": ("batch_size",),
    "softmax": ("batch_size", "temperature"),
    "directau": ("alignment_batch_size", "gamma"),
    "mawu": ("alignment_batch_size", "mawu_gammas"),
}


def losses(args):
    """Return the parameters of each loss."""
    alignment = {"batch_size": args.alignment_batch_size}
    return {
        "bpr": {"loss": BPR(), "batch_size": args.batch_size, "weight_decay": 0.0},
        "softmax": {
            "loss": Softmax(include_positive=True),
            "temperature": args.temperature,
            "negative_sampler": Uniform(shared=False),
            "n_negatives": 10,
            "user_dropout": 0.0,
            "batch_size": args.batch_size,
        },
        "directau": {"loss": DirectAU(args.gamma), **alignment},
        "mawu": {"loss": MAWU(*args.mawu_gammas), **alignment},
    }


def split_anew(parts, seed):
    """Return training, validation and test matrices, a random 80/10/10 % of all interactions."""
    X = sum(parts).tocoo()
    train, rest = train_test_split(np.arange(X.nnz), test_size=0.2, random_state=seed)
    valid, test = train_test_split(rest, test_size=0.5, random_state=seed)
    ones = np.ones(X.nnz, np.float32)
    return [
        sparse.csr_array((ones[rows], (X.row[rows], X.col[rows])), shape=X.shape)
        for rows in (train, valid, test)
    ]


def fit(parts, loss, variant, rate, seed, args):
    """Train one model until validation no longer improves; look at test where it is best."""
    X, valid, test = parts
    params = {**losses(args)[loss], **VARIANTS[variant]}
    if variant.startswith(DEBIASING):
        params["weight_decay"] = args.term_decay
    model = MFRecommender(
        N_COMPONENTS,
        backbone=BACKBONES[args.backbone],
        **params,
        optimizer=Adam(rate, lazy=False),
        similarity=("auto", "dot"),
        n_jobs=args.n_jobs,
        random_state=seed,
    )

    def look(model):
        of_valid = evaluate(model, valid)
        return {"score": of_valid["ndcg"], "valid": of_valid}

    def at_best(model):
        seen = model.item_counts_ > 0
        lengths = np.linalg.norm(model.item_factors_[seen], axis=1)
        return {
            "test": evaluate(model, test, valid),
            "correlation": rank_correlation(model.item_counts_[seen], lengths),
            "lengths": np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1]).tolist(),
        }

    return train(
        model, X, look,
        epochs=args.epochs, every=args.every, patience=args.patience, at_best=at_best,
    )  # fmt: skip


def best_rate(runs):
    """Return the learning rate whose first seed is best on validation."""
    return max(runs, key=lambda rate: runs[rate][0]["best"]["score"])


def summarise(runs):
    """Return what the table shows of runs by learning rate: means over seeds, at the best rate."""
    rate = best_rate(runs)
    runs = runs[rate]
    best = [run["best"] for run in runs]
    ndcgs = [b["test"]["ndcg"] for b in best]
    names = ("ndcg", "ndcg_popular", "ndcg_neutral", "ndcg_unpopular")
    return {
        "rate": rate,
        **{name: float(np.mean([b["test"][name] for b in best])) for name in names},
        "valid": float(np.mean([b["score"] for b in best])),
        "valid_of_first_seed": best[0]["score"],
        "spread": float(np.ptp(ndcgs)),
        "correlation": float(np.mean([b["correlation"] for b in best])),
        "epoch": float(np.mean([b["epoch"] for b in best])),
        "epochs": epochs_of(*runs),
        "seconds": float(np.mean([run["seconds"] for run in runs])),
    }


def show(data_set, loss, summaries):
    """Print the table of one loss, and what it implies for the paper's claims."""
    table(
        f"{data_set}, {loss}: test NDCG@20 where validation is best, mean over seeds",
        ["", "rate", "valid", "N@20", "spread", "popular", "neutral", "unpopular", "Spearman",
         "epoch", "epochs", "s"],
        [
            [name, f"{s['rate']:g}", s["valid"], s["ndcg"], s["spread"], s["ndcg_popular"],
             s["ndcg_neutral"], s["ndcg_unpopular"], f"{s['correlation']:.3f}",
             f"{s['epoch']:.0f}", s["epochs"], f"{s['seconds']:.0f}"]
            for name, s in summaries.items()
        ],
    )  # fmt: skip
    prism = summaries.get("PRISM")
    if prism is None:
        return
    decays = {name: s for name, s in summaries.items() if name.startswith("decay")}
    if decays:
        # The usual grid, searched with one seed, as are learning rates.
        best = max(decays, key=lambda name: decays[name]["valid_of_first_seed"])
        print(
            f"PRISM against the best on validation ({best}): NDCG x "
            f"{prism['ndcg'] / decays[best]['ndcg']:.3f}, epochs of the best "
            f"{prism['epoch']:.0f} and {decays[best]['epoch']:.0f}"
        )
    if "decay 0" in decays:
        print(f"PRISM against decay 0: NDCG x {prism['ndcg'] / decays['decay 0']['ndcg']:.3f}")
    share = prism["ndcg_unpopular"] / prism["ndcg_popular"]
    for alpha in sorted(ALPHAS, reverse=True):
        s = summaries.get(f"PRISM {alpha}")
        if s is not None:
            more = s["ndcg_unpopular"] / s["ndcg_popular"] / share - 1
            print(
                f"alpha {alpha} against 1: unpopular / popular {more:+.1%}, "
                f"NDCG {s['ndcg'] / prism['ndcg'] - 1:+.1%}"
            )


def run_data_set(data_set, parts, results, args):
    """Run what is asked for on one data set, seed by seed, and show it."""
    options = ("epochs", "every", "patience", "quick")
    # Runs without layers are from before there was a choice, and do not name it.
    options += ("backbone",) if args.backbone != "linear" else ()
    runs = {}
    for seed in range(args.seeds):
        split = split_anew(parts, seed)
        for loss, variant in product(args.losses, VARIANTS):
            unwanted = not any(fnmatch(variant, wanted) for wanted in args.variants)
            fits = (loss == only for of, only in ONLY_OF.items() if variant.startswith(of))
            if unwanted or not all(fits):
                continue
            by_rate = runs.setdefault(loss, {}).setdefault(variant, {})
            for rate in [best_rate(by_rate)] if by_rate else args.learning_rates:
                key = {
                    "data": data_set, "loss": loss, "variant": variant, "rate": rate, "seed": seed,
                    **{name: getattr(args, name) for name in (*options, *OPTIONS[loss])},
                }  # fmt: skip
                if variant.startswith(DEBIASING):
                    key["term_decay"] = args.term_decay
                run = results.run(key, fit, split, loss, variant, rate, seed, args)
                if run["best"] is not None:
                    by_rate.setdefault(rate, []).append(run)
    for loss, variants in runs.items():
        trained = {name: by_rate for name, by_rate in variants.items() if by_rate}
        show(data_set, loss, {name: summarise(by_rate) for name, by_rate in trained.items()})


def main():
    parser = run_parser(__doc__, epochs=300, every=1, patience=10)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--losses", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--variants", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--backbone", choices=BACKBONES, default="linear")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[0.001, 0.01])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=2048, help="of BPR and softmax")
    parser.add_argument("--alignment-batch-size", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the softmax")
    parser.add_argument("--term-decay", type=float, default=1e-6, help="beside IPL, ReSN, MACR")
    parser.add_argument("--gamma", type=float, default=GAMMA, help="of DirectAU")
    parser.add_argument("--mawu-gammas", type=float, nargs=2, default=[2.6, 1.4])
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.learning_rates = 2, args.learning_rates[:1]
    results = Results(args.results or args.out / "prism.jsonl")
    data = require_data(args)
    for data_set in args.data_set:
        parts = click_parts(data, DATA_SETS[data_set])
        run_data_set(data_set, parts, results, args)


if __name__ == "__main__":
    main()
