"""Rows per second of FM training and prediction, against plain kernels and installed peers.

Everything is measured in one run on one machine, and only ratios mean anything:

- "Hogwild" is the usual fast kernel: every thread steps on different rows and writes shared
  weights without locks, one sample at a time; every run has a different result. It is timed in
  three orders: that of storage, which no shuffled training has; one of blocks of 16 rows at
  random, as ``freqfm`` visits large sets, though without the cost of putting them together; and one
  of single rows at random, as epochs are usually shuffled.
- ``freqfm`` trains mini-batches in a new random order every epoch, with the same result for any
  number of threads.
- PyTorch (embedding bags, dense Adam and sparse SGD) and myFM take part if they are installed.

    python benchmarks/speed/fm_speed.py --data DIR --out results

Without data, synthetic rows of the size of the MovieLens ratings are used; longer rows are always
synthetic, with a million columns. Figures are medians, with the quartiles. Competitors take
turns, for each number of threads, so that a noisy neighbour disturbs all of them.
"""

import json
import math
import sys
from pathlib import Path

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_split
from _measure import quartiles
from scipy import sparse

from freqfm import FMClassifier, backends
from freqfm._input.validation import canonical_csr, count_threads
from freqfm.backends.cpu.team import Team

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
SHUFFLED = "Hogwild, rows at random"
HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)


@numba.njit(nogil=True, fastmath=FASTMATH, error_model="numpy")
def hogwild(rank, size, barrier, order, indptr, indices, values, y, b, w, V, rate, scratch):
    """One epoch of lock-free SGD on the log loss: the textbook loop."""
    s = scratch[rank]
    n, d = len(order), V.shape[1]
    for at in range(n * rank // size, n * (rank + 1) // size):
        i = order[at]
        score, squares = b[0], ZERO
        for f in range(d):
            s[f] = ZERO
        for p in range(indptr[i], indptr[i + 1]):
            k, x = indices[p], values[p]
            score += w[k] * x
            for f in range(d):
                term = V[k, f] * x
                s[f] += term
                squares += term * term
        total = ZERO
        for f in range(d):
            total += s[f] * s[f]
        score += HALF * (total - squares)
        step = rate * (ONE / (ONE + math.exp(-score)) - y[i])
        b[0] -= step
        for p in range(indptr[i], indptr[i + 1]):
            k, x = indices[p], values[p]
            w[k] -= step * x
            for f in range(d):
                V[k, f] -= step * x * (s[f] - x * V[k, f])


class Hogwild:
    """The plain kernel, in the order of storage (block 0) or of random blocks."""

    def __init__(self, X, y, d, n_threads, block):
        rng = np.random.default_rng(0)
        self.X, self.y = X, y.astype(np.float32)
        self.b, self.w = np.zeros(1, np.float32), np.zeros(X.shape[1], np.float32)
        self.V = 0.01 * rng.standard_normal((X.shape[1], d), dtype=np.float32)
        self.scratch = np.zeros((n_threads, d + 32), np.float32)
        self.order = np.arange(len(y))
        if block:
            n = len(y) // block * block
            self.order[:n] = rng.permutation(self.order[:n].reshape(-1, block)).ravel()
        self.team = Team(n_threads).__enter__()

    def epoch(self):
        X = self.X
        self.team.run(
            hogwild,
            self.order,
            X.indptr,
            X.indices,
            X.data,
            self.y,
            self.b,
            self.w,
            self.V,
            np.float32(0.01),
            self.scratch,
        )


class Freqfm:
    """What ``FMClassifier.fit`` does in an epoch: its training task, validation left out."""

    def __init__(self, X, y, d, n_threads, optimizer="cf_sgd", **params):
        from freqfm._components import resolve
        from freqfm.estimators.fm.trainer import FMTrainer, TrainingRows
        from freqfm.optimizers import OPTIMIZERS, Optimizer

        self.model = FMClassifier(
            d,
            optimizer=optimizer,
            max_iter=1,
            n_iter_no_change=None,
            n_jobs=n_threads,
            random_state=0,
            early_stopping=False,
            **params,
        ).fit(X, y)
        self.X, self.n_threads = canonical_csr(X), n_threads
        target = y[np.newaxis].astype(np.float32)
        optimizer = resolve("optimizer", optimizer, Optimizer, OPTIMIZERS)
        rows = TrainingRows(self.X, y, target, np.ones(len(y)))
        self.task = FMTrainer(self.model, optimizer, rows).__enter__()
        self.n_epochs = 1

    def epoch(self):
        self.task.run_epoch(self.n_epochs)
        self.n_epochs += 1

    def predict(self):
        backends.get().fm_scores(self.X, self.model._outputs(), self.n_threads)


class Torch:
    """An FM in PyTorch as its users write it: embedding bags, one optimizer step a batch."""

    def __init__(self, X, y, d, n_threads):
        import torch

        torch.set_num_threads(n_threads)
        self.torch = torch
        lengths = np.diff(X.indptr)
        assert (lengths == lengths[0]).all(), "the PyTorch model takes rows of one length"
        self.tokens = torch.tensor(X.indices.reshape(len(y), -1).astype(np.int64))
        self.y = torch.tensor(y, dtype=torch.float32)
        self.V = torch.nn.Embedding(X.shape[1], d)
        self.w = torch.nn.Embedding(X.shape[1], 1)
        self.b = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.Adam([*self.V.parameters(), *self.w.parameters(), self.b])

    def _score(self, tokens):
        v = self.V(tokens)
        pairs = (v.sum(1) ** 2 - (v**2).sum(1)).sum(1) / 2
        return self.b + self.w(tokens).sum((1, 2)) + pairs

    def epoch(self):
        torch = self.torch
        for rows in torch.randperm(len(self.y)).split(1024):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                self._score(self.tokens[rows]), self.y[rows]
            )
            loss.backward()
            self.optimizer.step()

    def predict(self):
        with self.torch.no_grad():
            for rows in self.torch.arange(len(self.y)).split(65536):
                self._score(self.tokens[rows])


class MyFM:
    """myFM's Gibbs sampler; an iteration visits every row once."""

    def __init__(self, X, y, d, n_threads):
        import myfm

        self.myfm, self.X, self.y, self.d = myfm, sparse.csr_matrix(X.astype(np.float64)), y, d

    def epoch(self):
        model = self.myfm.MyFMClassifier(rank=self.d)
        model.fit(self.X, self.y, n_iter=1, n_kept_samples=1)


def synthetic(n_rows, n_tokens_a_row, n_columns=6600, seed=0):
    """Return one-hot rows of ``n_tokens_a_row`` fields with Zipf tails."""
    from freqfm.datasets import make_clicks

    size = n_columns // n_tokens_a_row
    X, y = make_clicks(n_rows, (size,) * n_tokens_a_row, tail_exponent=0.8, random_state=seed)
    return canonical_csr(X), y


def competitors(X, y, d, n_threads):
    """Return what is compared, by name."""
    ours = Freqfm(X, y, d, n_threads)
    return {
        SHUFFLED: Hogwild(X, y, d, n_threads, 1).epoch,
        "Hogwild, blocks at random": Hogwild(X, y, d, n_threads, 16).epoch,
        "Hogwild, storage order": Hogwild(X, y, d, n_threads, 0).epoch,
        "freqfm cf_sgd": ours.epoch,
        "freqfm cf_sgd, shuffle=False": Freqfm(X, y, d, n_threads, shuffle=False).epoch,
        "freqfm adam": Freqfm(X, y, d, n_threads, "adam").epoch,
        "freqfm predict": ours.predict,
    }


def compare(X, y, d, threads, repeats, peers):
    """Return the quartiles of seconds of an epoch, by name and number of threads."""
    calls = {(name, n): call for n in threads for name, call in competitors(X, y, d, n).items()}
    seconds = quartiles(calls, repeats)
    for name, make in peers.items():
        try:
            peer = make(X, y, d, threads[-1])
        except ImportError:
            continue
        key = name, threads[-1]
        seconds |= quartiles({key: peer.epoch}, 1)
        if hasattr(peer, "predict"):
            seconds |= quartiles({(f"{name} predict", threads[-1]): peer.predict}, 2)
    return seconds


def show(title, seconds, n_entries):
    """Print seconds of an epoch, and how much faster than Hogwild and than one thread it is."""
    print(f"\n{title}")
    print(f"{'':32}{'threads':>8}{'s/epoch':>9}{'quartiles':>18}{'ns/token':>9}"
          f"{'x Hogwild':>10}{'x 1 thread':>11}")  # fmt: skip
    for (name, n), (low, median, high) in seconds.items():
        hogwild = seconds[SHUFFLED, n][1] / median
        alone = seconds[name, 1][1] / median if (name, 1) in seconds else math.nan
        print(f"  {name:30}{n:8}{median:9.4f}   {low:7.4f}-{high:7.4f}"
              f"{1e9 * median * n / n_entries:9.0f}{hogwild:10.2f}{alone:11.2f}")  # fmt: skip


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, count_threads(None)])
    args = parser.parse_args()
    threads = sorted(set(args.threads))
    results = {}

    def measure(title, X, y, d, repeats, peers):
        seconds = compare(X, y, d, threads, repeats, peers)
        results[f"{title}, d={d}"] = {f"{name}, {n} threads": s for (name, n), s in seconds.items()}
        show(f"{title}, {len(y)} rows, {X.shape[1]} columns, d={d}", seconds, X.nnz)

    if args.data:
        X, y = movielens_split(args.data, 0)[0]
        X, name = canonical_csr(X), "MovieLens ratings"
    else:
        (X, y), name = synthetic(390_120, 2), "synthetic pairs"
    for d in (16, 64, 256):
        measure(name, X, y, d, args.repeats, {"PyTorch Adam": Torch, "myFM": MyFM})
    for tokens in (10, 39):
        X, y = synthetic(100_000, tokens, 1_000_000)
        for d in (16, 64):
            measure(f"{tokens} tokens a row", X, y, d, args.repeats, {})
    print("\nscaling with rows (2 tokens, d=64): seconds per epoch and per million rows")
    for n_rows in (10_000, 100_000, 1_000_000, 4_000_000):
        X, y = synthetic(n_rows, 2)
        _, seconds, _ = quartiles({"": Freqfm(X, y, 64, threads[-1]).epoch}, 3)[""]
        results[f"scaling, {n_rows} rows"] = seconds
        print(f"  {n_rows:9d} rows {seconds:8.3f} s {1e6 * seconds / n_rows:8.3f} s/M rows")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "fm_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
