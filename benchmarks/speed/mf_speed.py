"""Seconds per epoch of matrix factorization, against installed peers and the machine's peak.

Everything is measured in one run on one machine, with the same number of threads, and only ratios
mean anything. d = 64; figures are the best of the repetitions; competitors take turns.

- BPR, one negative for each positive, with several optimizers and with one thread: against the BPR
  and ALS of implicit (64 factors; its BPR steps without locks, and adds a column for the items'
  bias) and the BPR and WARP of LightFM. Here figures are medians, with the least and the most.
- Softmax of cosines with 1,024 negatives: shared by a batch of 2,048 or drawn for each positive,
  against the same loss in PyTorch, with dense and with sparse Adam. Slow competitors train on a
  few batches, and the epoch is extrapolated. n positives and M negatives are counted as 6 n M d
  operations: three matrix products. ``block=1``, where every positive is a separate row, does
  just those, and its share of the machine's float32 peak (products of 2,048 x 2,048 matrices in
  this run) is the figure to quote. By default a few positives of a user share a row, so that fewer
  operations are done than are counted: both shares are printed.
- Evaluation: the best 20 items and all metrics of every user, against the bare matrix product of
  users and items, and against implicit.
- ``--scale``: epochs with more users, items and negatives, up to a million users and a million
  items with ten million interactions, all synthetic.

    python benchmarks/speed/mf_speed.py --data DIR --out results
    python benchmarks/speed/mf_speed.py --data DIR --out results --scale

Without data, synthetic interactions of Gowalla's size are used. It takes about five minutes on two
free cores, and ``--scale`` about three more.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser
from _epochs import task_of
from _measure import installed, take_turns
from scipy import sparse

from freqfm import MFRecommender
from freqfm._input.validation import count_threads
from freqfm.datasets import make_interactions
from freqfm.metrics import ranking_report
from freqfm.samplers import Uniform

D = 64
N_NEGATIVES = 1024
BATCH = 2048
TAU = 0.1


class Freqfm:
    """What ``MFRecommender.fit`` does in an epoch: its training task."""

    def __init__(self, X, n_threads, block=None, **params):
        model = MFRecommender(D, n_jobs=n_threads, random_state=0, **params)
        self.task = task_of(model, X, **({} if block is None else {"block": block}))
        self.n_epochs = 0

    def n_rows(self):
        """Return how many rows of scores an epoch has."""
        return len(self.task._shuffle(0).row_users)

    def epoch(self):
        """Train one epoch; return its seconds."""
        with self.task:
            start = time.perf_counter()
            self.task.run_epoch(self.n_epochs)
            self.n_epochs += 1
            return time.perf_counter() - start


class Implicit:
    """A model of implicit; it says itself how long an epoch took."""

    def __init__(self, X, n_threads, name):
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking

        make = {"ALS": AlternatingLeastSquares, "BPR": BayesianPersonalizedRanking}[name]
        with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
            self.model = make(D, iterations=1, num_threads=n_threads, random_state=0, use_gpu=False)
        self.X = sparse.csr_matrix(X)

    def epoch(self):
        """Train one epoch; return its seconds."""
        seconds = []
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            self.model.fit(
                self.X, show_progress=False, callback=lambda *told: seconds.append(told[1])
            )
        return seconds[0]


class LightFM:
    """A model of LightFM."""

    def __init__(self, X, n_threads, loss):
        import lightfm

        self.model = lightfm.LightFM(D, loss=loss, random_state=0)
        self.X, self.n_threads = sparse.coo_matrix(X), n_threads

    def epoch(self):
        """Train one epoch; return its seconds."""
        start = time.perf_counter()
        self.model.fit_partial(self.X, epochs=1, num_threads=self.n_threads)
        return time.perf_counter() - start


class Torch:
    """The softmax in PyTorch, as the authors of Adap-tau wrote it; a few batches are timed."""

    def __init__(self, X, n_threads, shared, lazy, n_batches):
        import torch

        torch.set_num_threads(n_threads)
        self.torch, self.shared, self.n_batches = torch, shared, n_batches
        X = X.tocoo()
        self.pairs = torch.tensor(np.column_stack([X.row, X.col]).astype(np.int64))
        self.users, self.items = (torch.nn.Embedding(n, D, sparse=lazy) for n in X.shape)
        for table in (self.users, self.items):
            torch.nn.init.xavier_uniform_(table.weight)
        weights = [self.users.weight, self.items.weight]
        make = torch.optim.SparseAdam if lazy else torch.optim.Adam
        self.optimizer = make(weights, lr=0.001)

    def epoch(self):
        """Train a few batches; return the seconds of a whole epoch."""
        torch = self.torch
        order = torch.randperm(len(self.pairs))
        start = time.perf_counter()
        for rows in order[: self.n_batches * BATCH].split(BATCH):
            self._step(*self.pairs[rows].T)
        n_done = min(self.n_batches * BATCH, len(order))
        return (time.perf_counter() - start) * len(order) / n_done

    def _step(self, users, positives):
        torch, normalize = self.torch, self.torch.nn.functional.normalize
        lists = () if self.shared else (len(users),)
        negatives = torch.randint(self.items.num_embeddings, (*lists, N_NEGATIVES))
        self.optimizer.zero_grad()
        u = normalize(torch.nn.functional.dropout(self.users(users), 0.1), dim=-1)
        positive = (u * normalize(self.items(positives), dim=-1)).sum(-1)
        j = normalize(self.items(negatives), dim=-1)
        scores = u @ j.T if self.shared else (j @ u[:, :, None])[:, :, 0]
        loss = (torch.logsumexp(scores / TAU, -1) - positive / TAU).mean()
        loss.backward()
        self.optimizer.step()


def best_of(contenders, repeats):
    """Let contenders take turns; return the least seconds of each, without the first turn."""
    return {name: min(taken) for name, taken in take_turns(contenders, repeats).items()}


def timed(function, *arguments, repeats=3):
    """Return the least seconds of a few calls, and what the last returned."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def peak(n_threads, n=2048, repeats=7):
    """Return float32 operations per second of the best product of two n x n matrices."""
    a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
    out = np.empty_like(a)
    with threadpoolctl.threadpool_limits(n_threads, user_api="blas"):
        seconds, _ = timed(np.matmul, a, b, out, repeats=repeats)
    return 2 * n**3 / seconds


def some_pairs(X, n):
    """Return a matrix of the same shape with ``n`` of the interactions, and their share."""
    X = X.tocoo()
    rows = np.random.default_rng(0).permutation(X.nnz)[:n]
    ones = np.ones(len(rows), np.float32)
    part = sparse.csr_array((ones, (X.row[rows], X.col[rows])), shape=X.shape)
    return part, len(rows) / X.nnz


def compare_bpr(X, n_threads, repeats):
    """Print and return seconds per epoch of BPR and of peers."""
    contenders = {
        "freqfm BPR": Freqfm(X, n_threads, loss="bpr"),
        "freqfm BPR, one thread": Freqfm(X, 1, loss="bpr"),
        "freqfm BPR, sgd": Freqfm(X, n_threads, loss="bpr", optimizer="sgd"),
        "freqfm BPR, cf_sgd": Freqfm(X, n_threads, loss="bpr", optimizer="cf_sgd"),
        "freqfm BPR, adam": Freqfm(X, n_threads, loss="bpr", optimizer="adam"),
        "freqfm BPR, adam, one thread": Freqfm(X, 1, loss="bpr", optimizer="adam"),
    }
    if installed("implicit"):
        contenders["implicit BPR"] = Implicit(X, n_threads, "BPR")
        contenders["implicit ALS"] = Implicit(X, n_threads, "ALS")
    if installed("lightfm"):
        contenders["LightFM BPR"] = LightFM(X, n_threads, "bpr")
        contenders["LightFM WARP"] = LightFM(X, n_threads, "warp")
    seconds = take_turns(contenders, repeats)
    ours = np.median(seconds["freqfm BPR"])
    print(f"\nBPR, {X.nnz} positives, d = {D}, {n_threads} threads; medians of {repeats} epochs")
    for name, taken in seconds.items():
        print(
            f"  {name:34}{np.median(taken):9.3f} s   ({min(taken):.3f} to {max(taken):.3f})"
            f"   / freqfm BPR {np.median(taken) / ours:7.2f}"
        )
    return seconds


def compare_softmax(X, n_threads, repeats, n_own):
    """Print and return seconds per epoch of the softmax, and shares of the peak."""
    ours = {"loss": "softmax", "temperature": TAU, "batch_size": BATCH}
    own = {**ours, "negative_sampler": Uniform(shared=False)}
    part, share = some_pairs(X, n_own * BATCH)
    pairs = "freqfm shared, block=1"
    contenders = {
        pairs: Freqfm(X, n_threads, block=1, **ours),
        "freqfm shared, default block": Freqfm(X, n_threads, **ours),
    }
    n_rows = {name: contender.n_rows() for name, contender in contenders.items()}
    highest = peak(n_threads)
    seconds = best_of(contenders, repeats)
    highest = max(highest, peak(n_threads))
    slow = {"freqfm own negatives": Freqfm(part, n_threads, **own)}
    if installed("torch"):
        for shared, lazy in ((True, False), (True, True), (False, False), (False, True)):
            name = f"PyTorch {'shared' if shared else 'own'}, {'sparse' if lazy else 'dense'} Adam"
            slow[name] = Torch(X, n_threads, shared, lazy, 20 * n_own if shared else n_own)
    seconds |= best_of(slow, 1 if repeats == 1 else 2)
    seconds["freqfm own negatives"] /= share
    highest = max(highest, peak(n_threads))
    print(
        f"\nsoftmax, {X.nnz} positives, {N_NEGATIVES} negatives, batches of {BATCH}, "
        f"{n_threads} threads; matrix products reach {highest / 1e9:.0f} GFLOP/s"
    )
    print(f"  {'':34}{'s/epoch':>10}{'/ block=1':>11}{'GFLOP/s':>9}{'of peak':>9}{'done':>8}")
    shares = {}
    for name, taken in seconds.items():
        speed = 6 * X.nnz * N_NEGATIVES * D / taken
        done = speed * n_rows.get(name, X.nnz) / X.nnz
        shares[name] = {"counted": speed / highest, "done": done / highest}
        print(
            f"  {name:34}{taken:10.2f}{taken / seconds[pairs]:11.2f}{speed / 1e9:9.1f}"
            f"{speed / highest:9.1%}{done / highest:8.1%}"
        )
    rows = n_rows["freqfm shared, default block"]
    print(f"  of peak: by 6 n M d; done: by the rows of scores, {rows} in default blocks, else n")
    return {"seconds": seconds, "peak": highest, "shares": shares, "rows": n_rows}


def compare_evaluation(X, held_out, n_threads):
    """Print and return seconds of ranking and measuring all users."""
    model = MFRecommender(D, loss="bpr", max_iter=1, n_jobs=n_threads, random_state=0).fit(X)
    all_users = np.arange(X.shape[0])
    items = np.ascontiguousarray(model.item_factors_.T)

    def products(size):
        scores = np.empty((size, X.shape[1]), np.float32)
        for start in range(0, len(all_users), size):
            users = model.user_factors_[start : start + size]
            np.matmul(users, items, out=scores[: len(users)])

    with threadpoolctl.threadpool_limits(n_threads, user_api="blas"):
        bare = min(timed(products, size)[0] for size in (64, 256, 1024))
    seconds = {"bare products, nothing kept": bare}
    seconds["freqfm, best 20 items"], (ranked, _) = timed(
        lambda: model.recommend(users=all_users, n_recommendations=20)
    )
    seconds["freqfm, all metrics of those"], _ = timed(
        lambda: ranking_report(held_out, ranked, [5, 10, 20], item_counts=model.item_counts_)
    )
    if installed("implicit"):
        from implicit.als import AlternatingLeastSquares

        history = sparse.csr_matrix(X)
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            peer = AlternatingLeastSquares(D, num_threads=n_threads, use_gpu=False)
            peer.user_factors, peer.item_factors = model.user_factors_, model.item_factors_
            seconds["implicit, best 20 items"], _ = timed(
                peer.recommend, all_users, history, 20, repeats=2
            )
    print(f"\nevaluation, {X.shape[0]} users x {X.shape[1]} items, {n_threads} threads")
    for name, taken in seconds.items():
        print(f"  {name:34}{taken:9.3f} s   / bare products {taken / bare:7.2f}")
    return seconds


def scale(n_threads, largest):
    """Print and return seconds per epoch for more users, items, negatives and interactions."""
    k, m = 1000, 1_000_000
    cases = [
        *((users, 100 * k, m, 1024) for users in (10 * k, 100 * k, 200 * k)),
        *((100 * k, items, m, 1024) for items in (10 * k, m)),
        *((100 * k, 100 * k, m, negatives) for negatives in (64, 256, 4096)),
        (m, m, 10 * m, 1024),
    ]
    cases = [case for case in cases if case[2] <= largest] or [(k, k, 20 * k, 256)]
    results = []
    print(f"\nscaling of the softmax, shared negatives, default block, {n_threads} threads")
    print(f"{'users':>9}{'items':>9}{'positives':>10}{'negatives':>10}{'s/epoch':>9}"
          f"{'s/M positives':>14}{'made in s':>10}")  # fmt: skip
    for users, items, n, negatives in cases:
        made, X = timed(make_interactions, users, items, n, repeats=1)
        ours = Freqfm(
            X, n_threads, loss="softmax", temperature=TAU, n_negatives=negatives, batch_size=BATCH
        )
        taken = min(ours.epoch() for _ in range(2))
        results.append([users, items, n, negatives, taken])
        print(f"{users:9}{items:9}{n:10}{negatives:10}{taken:9.2f}{taken / n * 1e6:14.3f}"
              f"{made:10.1f}", flush=True)  # fmt: skip
    return results


def load(args):
    """Return training and held-out interactions."""
    if args.data:
        train, valid, test = click_parts(args.data, "gowalla")
        X, held_out = train + valid, test
    else:
        # Both may hold the same pair: only times count.
        X, held_out = (
            make_interactions(29_858, 40_981, n, random_state=0) for n in (810_128, 217_242)
        )
    if args.quick:
        X, held_out = X[:1000], held_out[:1000]
    return X, held_out


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--scale", action="store_true", help="measure scaling too")
    parser.add_argument("--bpr", action="store_true", help="measure BPR only")
    parser.add_argument("--quick", action="store_true", help="1,000 users, one repetition: a test")
    args = parser.parse_args()
    n_threads = count_threads(args.n_jobs)
    repeats = 1 if args.quick else args.repeats
    X, held_out = load(args)
    results = {
        "n_threads": n_threads,
        "bpr": compare_bpr(X, n_threads, repeats),
    }
    if not args.bpr:
        results["softmax"] = compare_softmax(X, n_threads, repeats, 1 if args.quick else 3)
        results["evaluation"] = compare_evaluation(X, held_out, n_threads)
    if args.scale:
        results["scale"] = scale(n_threads, 20_000 if args.quick else 10_000_000)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "mf_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
