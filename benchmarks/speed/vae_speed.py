"""Seconds per epoch of variational autoencoders, against PyTorch and as items become more.

Everything is measured in one run on one machine, with the same number of threads, and only ratios
mean anything. Batches of 256 users, dropout of 0.5 on the input; figures are medians of the
repetitions, after one that compiles; competitors take turns. Beside the time that passes stands the
CPU time of all threads: where others use the machine too, its ratios with ``--n-jobs 1`` are the
ones to trust.

- The full softmax with 200 hidden and 32 latent units, against PyTorch on the CPU: Mult-VAE as it
  is usually written (the batch as a dense matrix, 200 hidden units in the decoder too, dense Adam),
  and the architecture of FastVAERecommender, without a hidden layer in the decoder, written the
  same way. FastVAERecommender also with a hidden layer of 200 in its decoder, which is Mult-VAE's
  architecture; with ``--negatives`` items drawn for every user; and, as it is by default, with
  cosines in place of dot products. FastVAERecommender trains whole epochs. PyTorch trains on a few
  batches, and the epoch is extrapolated: its cost hardly depends on which users a batch holds.
- ``--scale``: 20 thousand to 1.5 million items and a few batches of users with about 30 items
  each, all synthetic: seconds per batch, full and sampled, without what is done once an epoch; how
  long that takes, to bring codebooks up to date and to let rows catch up; and by how much the
  process grows. Each case runs in a separate process.

    python benchmarks/speed/vae_speed.py --data DIR --out results
    python benchmarks/speed/vae_speed.py --data DIR --out results --scale

Without data, synthetic interactions of Gowalla's size are used. It takes about five minutes of CPU
time with one thread; ``--users 4000`` makes that one, and changes little but the share of MIDX's
codebooks, which an epoch pays for once. ``--scale`` takes as long, and 5 GiB of memory, which is
read as Linux reports it.
"""

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser
from _measure import installed, peak, resident, take_turns

from freqfm import FastVAERecommender
from freqfm._input.validation import count_threads
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.trained import STARTS
from freqfm.estimators.recommenders.vae import VAETrainer
from freqfm.estimators.state import trained_arrays
from freqfm.samplers import MIDX

BATCH = 256
HIDDEN, LATENT = 200, 32
N_CODEWORDS = 16
SAMPLERS = ("midx_popularity", "midx_uniform", "uniform")
SIZES = (20_000, 50_000, 100_000, 200_000, 500_000, 1_500_000)


def now():
    """Return the time, and the CPU time of all threads of this process."""
    return np.array([time.perf_counter(), time.process_time()])


class TimedTrainer(VAETrainer):
    """A trainer that measures the time of what is done once an epoch.

    That is to bring the sampler up to date and, where the optimizer's steps are dense, to let rows
    that no batch has touched make up theirs.
    """

    refresh_seconds = np.zeros(2)

    def _refresh_proposal(self, epoch):
        start = now()
        super()._refresh_proposal(epoch)
        self.refresh_seconds = now() - start

    def run_epoch(self, epoch):
        catch_up = self._trainer.catch_up
        seconds = np.zeros(2)

        def timed(step):
            start = now()
            catch_up(step)
            seconds[:] = now() - start

        self._trainer.catch_up = timed
        loss = super().run_epoch(epoch)
        self._trainer.catch_up = catch_up
        self.refresh_seconds = self.refresh_seconds + seconds
        return loss


class Freqfm:
    """What ``FastVAERecommender.fit`` does in an epoch: its training task."""

    def __init__(self, X, n_threads, sampler="full", n_negatives=None, similarity="dot", **params):
        if sampler.startswith("midx"):
            sampler = MIDX(sampler.removeprefix("midx_"), n_codewords=N_CODEWORDS)
        model = FastVAERecommender(
            LATENT,
            hidden_layer_sizes=(HIDDEN,),
            similarity=similarity,
            negative_sampler=sampler,
            n_negatives=n_negatives,
            batch_size=BATCH,
            n_jobs=n_threads,
            random_state=0,
            **params,
        )
        given = model._read(X, reset=True)
        components = model._resolved(given, given, STARTS)
        components = model._begin(components, given, given, given, STARTS)
        for array in trained_arrays(model):
            array += 0  # memory that was never written costs time at its first use
        self.task = TimedTrainer(model, components, given, given, None, n_threads)
        self.n_epochs = 0

    def epoch(self):
        """Train one epoch; return its seconds, and those of CPU time."""
        with self.task:
            start = now()
            self.task.run_epoch(self.n_epochs)
            self.n_epochs += 1
            return now() - start


class Torch:
    """A variational autoencoder in PyTorch on dense batches; a few batches are timed.

    With ``deep`` it is Mult-VAE: the decoder has a hidden layer as the encoder has.
    """

    def __init__(self, X, n_threads, deep, n_batches):
        import torch
        from torch import nn

        torch.set_num_threads(n_threads)
        self.torch, self.X, self.n_batches = torch, X, n_batches
        n_items = X.shape[1]
        self.encoder = nn.Sequential(
            nn.Linear(n_items, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENT)
        )
        layers = [nn.Linear(LATENT, HIDDEN), nn.Tanh()] if deep else []
        self.decoder = nn.Sequential(*layers, nn.Linear(HIDDEN if deep else LATENT, n_items))
        weights = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=0.001)
        self.generator = np.random.default_rng(0)

    def epoch(self):
        """Train a few batches; return the seconds of a whole epoch."""
        n_users = self.X.shape[0]
        order = self.generator.permutation(n_users)[: self.n_batches * BATCH]
        start = now()
        for first in range(0, len(order), BATCH):
            self._step(self.X[order[first : first + BATCH]])
        return (now() - start) * n_users / len(order)

    def _step(self, rows):
        torch, functional = self.torch, self.torch.nn.functional
        x = torch.from_numpy(rows.toarray())
        self.optimizer.zero_grad()
        mean, log_variance = self.encoder(functional.dropout(functional.normalize(x))).chunk(2, -1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        log_p = torch.log_softmax(self.decoder(z), -1)
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
        loss = (-(log_p * x).sum(-1) + 0.2 * divergence).mean()
        loss.backward()
        self.optimizer.step()


def medians_of(contenders, repeats):
    """Let contenders take turns; return the median seconds of each, the first turn left out."""
    seconds = take_turns(contenders, repeats)
    return {name: np.median(taken, axis=0).tolist() for name, taken in seconds.items()}


def compare(X, n_threads, args):
    """Print and return seconds per epoch, and ratios."""
    full = f"freqfm, full, {HIDDEN}-{LATENT}"
    deep = f"freqfm, full, {HIDDEN}-{LATENT}-{HIDDEN}"
    contenders = {
        full: Freqfm(X, n_threads),
        f"{full}, cosines": Freqfm(X, n_threads, similarity="cosine"),
        deep: Freqfm(X, n_threads, decoder_layer_sizes=(HIDDEN,)),
        **{
            f"freqfm, {name}": Freqfm(X, n_threads, name, n_negatives=args.negatives)
            for name in SAMPLERS
        },
    }
    peers = {}
    if installed("torch"):
        peers = {
            f"PyTorch, Mult-VAE {HIDDEN}-{LATENT}-{HIDDEN}": deep,
            f"PyTorch, {HIDDEN}-{LATENT}": full,
        }
        for name, same in peers.items():
            contenders[name] = Torch(X, n_threads, same == deep, args.batches)
    seconds = medians_of(contenders, args.repeats)
    print(
        f"\n{X.shape[0]} users, {X.shape[1]} items, {X.nnz} interactions, batches of {BATCH}, "
        f"{args.negatives} draws a user, {n_threads} threads"
    )
    print(f"  {'':34}{'s/epoch':>10}{'/ full':>8}{'/ same':>8}{'CPU s':>10}{'/ full':>8}"
          f"{'/ same':>8}")  # fmt: skip
    for name, of_name in seconds.items():
        cells = ""
        for i in range(2):
            taken = of_name[i]
            same = f"{taken / seconds[peers[name]][i]:8.2f}" if name in peers else " " * 8
            cells += f"{taken:10.2f}{taken / seconds[full][i]:8.2f}{same}"
        print(f"  {name:34}{cells}")
    print(f"  full: {full}; same: freqfm of the same architecture")
    if peers:
        print(f"  PyTorch: {args.batches} batches, extrapolated")
    else:
        print("  Install torch to compare.")
    return seconds


def measure(sampler, n_items, n_batches, n_negatives, n_threads, repeats):
    """Return seconds of a batch and of a refresh, and by how much the process grows."""
    n_users = n_batches * BATCH
    n_negatives = None if sampler == "full" else n_negatives
    warm = make_interactions(300, 2000, 3000, random_state=0)
    Freqfm(warm, n_threads, sampler, n_negatives).epoch()  # what compilation takes is not counted
    X = make_interactions(n_users, n_items, 30 * n_users, random_state=0)
    before = resident()
    ours = Freqfm(X, n_threads, sampler, n_negatives)
    batches, refreshes = [], []
    for _ in range(1 + repeats):
        taken = ours.epoch()
        refreshes.append(ours.task.refresh_seconds)
        batches.append((taken - refreshes[-1]) / n_batches)
    return {
        "batch": np.median(batches[1:], axis=0).tolist(),
        "first refresh": refreshes[0].tolist(),
        "refresh": np.median(refreshes[1:], axis=0).tolist(),
        "growth": peak() - before,
    }


def scale(n_threads, args):
    """Print and return seconds per batch for more and more items."""
    print(
        f"\nseconds per batch of {BATCH} users with about 30 items each, {args.negatives} draws a "
        f"user, {N_CODEWORDS} codewords, {n_threads} threads"
    )
    print(f"{'items':>9} {'':16}{'s/batch':>9}{'full / it':>11}{'CPU s':>9}{'full / it':>11}"
          f"{'refresh':>9}{'the first':>11}{'MiB':>8}")  # fmt: skip
    results = []
    for n_items in args.sizes:
        full = None
        for sampler in ("full", *SAMPLERS):
            case = sampler, n_items, args.scale_batches, args.negatives, n_threads, args.repeats
            # A new process each, so that none reuses memory that another has freed.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                taken = pool.submit(measure, *case).result()
            batch = taken["batch"]
            full = full or batch
            results.append({"items": n_items, "sampler": sampler, **taken})
            print(
                f"{n_items:9} {sampler:16}{batch[0]:9.4f}{full[0] / batch[0]:11.2f}"
                f"{batch[1]:9.4f}{full[1] / batch[1]:11.2f}{taken['refresh'][0]:9.3f}"
                f"{taken['first refresh'][0]:11.3f}{taken['growth'] / 2**20:8.0f}",
                flush=True,
            )
    for sampler in SAMPLERS:
        of_sampler = [taken["batch"] for taken in results if taken["sampler"] == sampler]
        ratio, of_cpu = np.divide(of_sampler[-1], of_sampler[0])
        print(
            f"  {sampler}: a batch at {args.sizes[-1]} items takes {ratio:.2f} times as long as at "
            f"{args.sizes[0]}, CPU time {of_cpu:.2f}"
        )
    return results


def draw(results, path):
    """Draw figure 4: seconds of a batch by the number of items."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("Install matplotlib for the picture.")
        return
    figure, axis = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    for sampler in ("full", *SAMPLERS):
        runs = [taken for taken in results if taken["sampler"] == sampler]
        axis.plot(
            [taken["items"] for taken in runs], [taken["batch"][0] for taken in runs],
            marker="o", label=sampler,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="items", ylabel=f"seconds per {BATCH} users")
    axis.legend()
    figure.savefig(path, dpi=110)


def load(args):
    """Return interactions of Gowalla's size."""
    if args.data:
        train, valid, _ = click_parts(args.data, "gowalla")
        X = train + valid
    else:
        X = make_interactions(29_858, 40_981, 810_128, random_state=0)
    if args.users:
        X = X[np.random.default_rng(0).permutation(X.shape[0])[: args.users]]
    return X


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10, help="of PyTorch that are timed (10)")
    parser.add_argument("--negatives", type=int, default=200, help="draws a user (200)")
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--scale", action="store_true", help="more and more items instead")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="items, for --scale")
    parser.add_argument("--scale-batches", type=int, default=4, help="batches timed at once (4)")
    parser.add_argument("--users", type=int, help="so many of the users; if none, all")
    parser.add_argument("--quick", action="store_true", help="1,000 users, one repetition: a test")
    args = parser.parse_args()
    if args.quick:
        args.users = 1000
        args.repeats, args.batches, args.sizes, args.scale_batches = 1, 2, (2_000, 20_000), 2
    n_threads = count_threads(args.n_jobs)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.scale:
        results = scale(n_threads, args)
        draw(results, args.out / "vae_speed.png")
    else:
        results = compare(load(args), n_threads, args)
    name = "vae_speed_scale.json" if args.scale else "vae_speed.json"
    (args.out / name).write_text(json.dumps({"n_threads": n_threads, "results": results}, indent=1))


if __name__ == "__main__":
    main()
