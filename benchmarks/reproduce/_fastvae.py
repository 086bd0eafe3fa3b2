"""What the reproductions of FastVAE share: data, options, the model and its runs.

Gowalla and MovieLens-1M clicks, each merged and split again for every seed: 80 % of every user's
items to train, 20 % to test, and a tenth of the training part to choose the epoch by NDCG@50.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import Results, click_parts, evaluate, require_data, run_parser, train

from freqfm import FastVAERecommender
from freqfm.model_selection import holdout_interactions
from freqfm.samplers import MIDX

__all__ = [
    "EARLY",
    "KERNEL_UP_TO",
    "LOOKS",
    "NETWORK",
    "K",
    "Runs",
    "data_sets",
    "means",
    "near",
    "parse",
    "results_of",
    "two_columns",
    "vae",
    "vae_parser",
]

DATA_SETS = {"gowalla": "gowalla", "ml1m": "ml1m-implicit"}
K = 50
# The kernel sampler takes part up to this length of vectors.
KERNEL_UP_TO = 32
# The epoch at which samplers are compared while they learn.
EARLY = 10
# Options that every run of a variational autoencoder depends on.
NETWORK = (
    "similarity", "components", "hidden", "activation", "learning_rate", "weight_decay",
    "kl_weight", "dropout",
)  # fmt: skip
LOOKS = ("epochs", "every", "patience", "quick")


def vae_parser(description):
    """Return a parser with the options of data, training and network."""
    parser = run_parser(description, epochs=200, every=5, patience=4)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument(
        "--similarity", choices=("dot", "cosine"), default="dot", help="of scores (dot)"
    )
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--activation", choices=("tanh", "relu"), default="tanh")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--kl-weight", type=float, default=0.2)
    parser.add_argument("--dropout", type=float, default=0.5, help="of the items of the input")
    return parser


def parse(parser):
    """Return the options given, with few epochs for a quick run."""
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.every = 4, 2
    return args


def results_of(args):
    """Return the finished runs, which the reproductions of FastVAE share."""
    return Results(args.results or args.out / "fastvae.jsonl")


def data_sets(args):
    """Yield the name and the parts of every data set asked for."""
    data = require_data(args)
    for name in args.data_set:
        yield name, click_parts(data, DATA_SETS[name])


def split_anew(parts, seed):
    """Return training, validation and test matrices: 72, 8 and 20 % of every user's items."""
    X, test = holdout_interactions(sum(parts), 0.2, random_state=seed)
    X, valid = holdout_interactions(X, 0.1, random_state=seed + 1000)
    return X, valid, test


def vae(sampler, seed, args, **draws):
    """Return a variational autoencoder, not yet fitted."""
    return FastVAERecommender(
        args.components,
        hidden_layer_sizes=(args.hidden,),
        activation=args.activation,
        similarity=args.similarity,
        negative_sampler=sampler,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        kl_weight=args.kl_weight,
        dropout=args.dropout,
        n_jobs=args.n_jobs,
        random_state=seed,
        **draws,
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


class Runs:
    """The runs of one data set and one seed, done now or earlier."""

    def __init__(self, results, data_set, parts, seed, args):
        self.results, self.data_set, self.seed, self.args = results, data_set, seed, args
        self.parts = split_anew(parts, seed)

    def key(self, setting, *options, **more):
        """Return what names a run."""
        key = {"data": self.data_set, "setting": setting, "seed": self.seed, **more}
        return key | {name: getattr(self.args, name) for name in options}

    def trained(self, key, make):
        """Return a run of the model that ``make`` returns."""
        return self.results.run(key, fit, make(), self.parts, self.args)

    def sampled(self, sampler, n_negatives=None, n_codewords=None):
        """Return a run of the autoencoder."""
        draws = {}
        if sampler != "full":
            draws["n_negatives"] = n_negatives
        if sampler.startswith("midx"):
            draws["n_codewords"] = n_codewords
        key = self.key(sampler, *NETWORK, *LOOKS, **draws)
        if "n_codewords" in draws:
            variant = sampler.removeprefix("midx_")
            sampler = MIDX(variant, n_codewords=draws.pop("n_codewords"))
        return self.trained(key, lambda: vae(sampler, self.seed, self.args, **draws))


def near(run, epoch):
    """Return the look nearest to an epoch."""
    return min(run["looks"], key=lambda look: abs(look["epoch"] - epoch))


def means(looks, measure):
    """Return the mean of a measure on test."""
    return float(np.mean([look["test"][measure] for look in looks]))


def two_columns(n_rows, width=12, **options):
    """Return a figure and its (n_rows, 2) axes; without matplotlib say so, and return None."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return None
    return plt.subplots(
        n_rows, 2, figsize=(width, 4.5 * n_rows), layout="constrained", squeeze=False, **options
    )
