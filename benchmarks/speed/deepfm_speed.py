"""Seconds per epoch of a DeepFM beside the same model in PyTorch, on the CPU, in one run.

Rows are MovieLens ratings with ``--data``, else synthetic pairs of as many; a factorization machine
with d = 16 and a tower of two layers of 16 on the two vectors side by side, batches of 1,024 rows.
Ours is trained by CF-SGD and Adam, PyTorch's by Adam alone, with dense or sparse gradients of the
embeddings. The two take turns; medians and quartiles are printed.

    python benchmarks/speed/deepfm_speed.py --data DIR
"""

import sys
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_split
from _epochs import Epochs
from _measure import quartiles
from fm_speed import Torch, synthetic

from freqfm import DeepFMClassifier
from freqfm._input.validation import canonical_csr, count_threads

HIDDEN = (16, 16)


class TorchDeepFM(Torch):
    """A DeepFM in PyTorch as its users write it."""

    def __init__(self, X, y, d, n_threads, sparse):
        super().__init__(X, y, d, n_threads)
        nn, optim = self.torch.nn, self.torch.optim
        self.V = nn.Embedding(X.shape[1], d, sparse=sparse)
        self.w = nn.Embedding(X.shape[1], 1, sparse=sparse)
        layers, width = [], d * self.tokens.shape[1]
        for size in HIDDEN:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.tower = nn.Sequential(*layers, nn.Linear(width, 1))
        tables, rest = [*self.V.parameters(), *self.w.parameters()], [*self.tower.parameters()]
        of_tables = optim.SparseAdam if sparse else optim.Adam
        self.optimizers = [of_tables(tables), optim.Adam([*rest, self.b])]

    def _score(self, tokens):
        v = self.V(tokens)
        pairs = (v.sum(1) ** 2 - (v**2).sum(1)).sum(1) / 2
        return self.b + self.w(tokens).sum((1, 2)) + pairs + self.tower(v.flatten(1)).squeeze(1)

    def epoch(self):
        """Train on every row once."""
        torch = self.torch
        for rows in torch.randperm(len(self.y)).split(1024):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                self._score(self.tokens[rows]), self.y[rows]
            )
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()


def ours(X, y, d, n_threads, optimizer):
    """Return the epochs of a DeepFMClassifier, with the two fields of the pairs."""
    first = X.indices.reshape(len(y), -1)[:, 1].min()
    model = DeepFMClassifier(
        d, hidden_layer_sizes=HIDDEN, fields=(np.arange(X.shape[1]) >= first).astype(int),
        dropout=0.0, optimizer=optimizer, early_stopping=False, n_jobs=n_threads, random_state=0,
    )  # fmt: skip
    return Epochs(model, X, y)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=count_threads(None))
    args = parser.parse_args()
    if args.data:
        X, y = movielens_split(args.data, 0)[0]
        X = canonical_csr(X)
    else:
        X, y = synthetic(390_120, 2)
    models = {
        "freqfm, CF-SGD": ours(X, y, 16, args.threads, "cf_sgd"),
        "freqfm, Adam": ours(X, y, 16, args.threads, "adam"),
    }
    try:
        models["PyTorch, Adam"] = TorchDeepFM(X, y, 16, args.threads, sparse=False).epoch
        models["PyTorch, sparse Adam"] = TorchDeepFM(X, y, 16, args.threads, sparse=True).epoch
    except ImportError:
        warnings.warn("PyTorch is not installed; only freqfm is measured.", stacklevel=1)
    seconds = quartiles(models, args.repeats)
    fastest = (
        min(median for name, (_, median, _) in seconds.items() if "freqfm" not in name)
        if len(models) > 2
        else np.nan
    )
    print(f"{len(y)} rows, {X.shape[1]} columns, {args.threads} threads: seconds per epoch")
    for name, (low, median, high) in seconds.items():
        print(f"  {name:24}{median:9.4f}   {low:.4f} to {high:.4f}   {fastest / median:6.1f} x")


if __name__ == "__main__":
    main()
