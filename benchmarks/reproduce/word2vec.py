"""Figure 5 of Li et al. (ICLR 2022): word vectors of WikiText-2 by SGD, Adam and CF-SGD.

The paper trains CBOW and skip-gram on the training part, 2 million tokens, words of at least 50
occurrences, vectors of 300 numbers, 20 epochs with a linear decay of the learning rate: 1.0 for SGD
and CF-SGD, 0.025 for Adam. Its losses, of 5 to 8, are those of a softmax over all words.

Here the test part of WikiText-2 is trained on, 246,000 tokens, and the valid part is held out;
words of at least 5 occurrences, 100 numbers, 10 epochs, negative sampling. Rates are searched, on
the first seed, by the loss of the held-out part after the last epoch; then the optimizers are
compared over seeds. All models of an architecture are scored by the same windows and noise.

    python benchmarks/reproduce/word2vec.py --data DIR --out results
    python benchmarks/reproduce/word2vec.py --quick

writes word2vec.jsonl, a line for each run, and word2vec.png, and prints the tables; about four
minutes on two cores. Runs that are in the file are not done again.
"""

import os
import sys
from pathlib import Path

import numpy as np

from freqfm import DivergenceError, Word2Vec
from freqfm.callbacks import Checkpoint
from freqfm.optimizers import CFSGD, SGD, Adam

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, data_parser, require_data, wikitext
from _runs import Results

GRID = {
    "skip_gram": {
        "SGD": [SGD(rate) for rate in (30, 60, 100)],
        "CF-SGD": [CFSGD(1, max_step=0.03), CFSGD(2, max_step=0.05), CFSGD(4, max_step=0.1)],
        "Adam": [Adam(rate) for rate in (0.003, 0.01, 0.02)],
    },
    "cbow": {
        "SGD": [SGD(rate) for rate in (30, 100, 150)],
        "CF-SGD": [CFSGD(4, max_step=0.25), CFSGD(8, max_step=0.5), CFSGD(16, max_step=1.0)],
        "Adam": [Adam(rate) for rate in (0.003, 0.01, 0.02)],
    },
}
# The rates that the paper states, on means over a batch.
PAPER = {"SGD": SGD(1.0), "CF-SGD": CFSGD(1.0, max_step=0.05), "Adam": Adam(0.025)}


class Looks(Checkpoint):
    """The loss of held-out text after every epoch."""

    def __init__(self, held_out):
        super().__init__(os.devnull)
        self.held_out, self.losses = held_out, []

    def save(self, estimator, progress):
        """Score the model instead of writing it."""
        self.losses.append(-estimator.score(self.held_out))


def train(text, held_out, architecture, optimizer, seed, args):
    """Return the losses of an optimizer, by epoch."""
    looks = Looks(held_out)
    model = Word2Vec(
        100, architecture=architecture, optimizer=optimizer, max_iter=args.epochs, random_state=seed
    ).set_callbacks(looks)
    try:
        model.fit(text)
    except DivergenceError:
        return {"optimizer": repr(optimizer), "train": [], "valid": [float("inf")]}
    return {
        "optimizer": repr(optimizer),
        "train": model.loss_curve_.tolist(),
        "valid": looks.losses,
        "state": model.optimizer_state_nbytes_ / len(model.vocabulary_),
    }


def compare(text, held_out, architecture, args, results):
    """Search rates on the first seed, then compare the optimizers on all seeds."""

    def run(optimizer, seed):
        key = {
            "architecture": architecture,
            "optimizer": repr(optimizer),
            "seed": seed,
            "epochs": args.epochs,
        }
        return results.run(key, train, text, held_out, architecture, optimizer, seed, args)

    chosen = {}
    print(f"\n{architecture}: held-out loss of the search")
    for name, candidates in GRID[architecture].items():
        candidates = candidates[1:3] if args.quick else candidates
        losses = [run(one, 0)["valid"][-1] for one in candidates]
        chosen[name] = candidates[int(np.argmin(losses))]
        found = zip(candidates, losses, strict=True)
        print(f"{name:9} " + "  ".join(f"{one!r} {loss:.4f}" for one, loss in found), flush=True)
    chosen |= {f"{name}, paper": one for name, one in PAPER.items()}
    runs = {name: [run(one, seed) for seed in range(args.seeds)] for name, one in chosen.items()}
    print(f"\n{'':15}{'held-out':>9}{'spread':>8}{'best epoch':>12}{'at best':>9}{'training':>10}")
    for name, of_name in runs.items():
        last = [run["valid"][-1] for run in of_name]
        epochs = [int(np.argmin(run["valid"])) + 1 for run in of_name]
        best = [min(run["valid"]) for run in of_name]
        training = np.mean([run["train"][-1] for run in of_name if run["train"]] or [np.nan])
        print(
            f"{name:15}{np.mean(last):9.4f}{np.ptp(last):8.4f}{np.mean(epochs):12.1f}"
            f"{np.mean(best):9.4f}{training:10.4f}   {of_name[0]['optimizer']}",
            flush=True,
        )
    return runs


def draw(results, path):
    """Draw the held-out loss of the first seed by epoch."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return
    figure, axes = plt.subplots(1, len(results), figsize=(9, 3.6), layout="constrained")
    for axis, (architecture, found) in zip(np.atleast_1d(axes), results.items(), strict=True):
        for name, of_name in found.items():
            curve = of_name[0]["valid"]
            style = ":" if name.endswith("paper") else "-"
            axis.plot(np.arange(1, len(curve) + 1), curve, style, label=name)
        axis.set(xlabel="epoch", title=f"{architecture}: held-out loss")
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--architectures", nargs="+", default=["skip_gram", "cbow"])
    parser.add_argument("--epochs", type=int, help="default: 10, or 2 with --quick")
    parser.add_argument("--seeds", type=int, help="how many (default: 3)")
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    args.seeds = args.seeds or (1 if args.quick else 3)
    args.epochs = args.epochs or (2 if args.quick else 10)
    data = require_data(args)
    text, held_out = (wikitext(data, [part]) for part in ("test", "valid"))
    results = Results(args.out / "word2vec.jsonl")
    runs = {name: compare(text, held_out, name, args, results) for name in args.architectures}
    draw(runs, args.out / "word2vec.png")


if __name__ == "__main__":
    main()
