"""An epoch of LightGCN against a straightforward PyTorch implementation on the CPU, in one run.

Gowalla's training part, d = 64, 3 layers, exact gradients, BPR with one negative, Adam. PyTorch
multiplies by the sparse adjacency matrix (COO, as the authors' code does, and CSR) and
differentiates by autograd.
Both take batches of ``--batch-size`` positives; of PyTorch some batches are timed, which all take
the same time, and multiplied. Timings alternate, medians are printed.

    python benchmarks/speed/lightgcn_speed.py --data DIR
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, require_data

from freqfm import MFRecommender
from freqfm.backbones import LightGCN
from freqfm.optimizers import Adam


class Torch:
    """LightGCN with BPR and Adam, by PyTorch."""

    def __init__(self, X, layout, n_threads):
        import torch

        torch.set_num_threads(n_threads)
        self.torch, self.X = torch, X.tocoo()
        A = sparse.block_array([[None, X], [X.T, None]]).tocoo()
        degrees = np.bincount(A.row, minlength=A.shape[0])
        values = torch.tensor(1 / np.sqrt(degrees[A.row] * degrees[A.col]), dtype=torch.float32)
        rows = torch.as_tensor(np.stack([A.row, A.col]), dtype=torch.int64)
        graph = torch.sparse_coo_tensor(rows, values, A.shape, check_invariants=True).coalesce()
        self.graph = graph.to_sparse_csr() if layout == "csr" else graph
        self.factors = torch.nn.Parameter(0.1 * torch.randn(A.shape[0], 64))
        self.optimizer = torch.optim.Adam([self.factors], lr=1e-3)
        self.generator = np.random.default_rng(0)

    def step(self, batch_size):
        """Train on a batch of random positives."""
        torch, n_users = self.torch, self.X.shape[0]
        drawn = self.generator.integers(self.X.nnz, size=batch_size)
        negatives = self.generator.integers(self.X.shape[1], size=batch_size)
        users, items, others = (
            torch.as_tensor(rows, dtype=torch.int64)
            for rows in (self.X.row[drawn], self.X.col[drawn], negatives)
        )
        layer = total = self.factors
        for _ in range(3):
            layer = torch.sparse.mm(self.graph, layer)
            total = total + layer
        U, V = total[:n_users] / 4, total[n_users:] / 4
        gap = (U[users] * (V[items] - V[others])).sum(dim=1)
        loss = torch.nn.functional.softplus(-gap).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def seconds(work, *arguments):
    """Return how long a call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="1,000 users: a test")
    args = parser.parse_args()
    X = click_parts(require_data(args), "gowalla")[0]
    if args.quick:
        X, args.batch_size = sparse.csr_array(X[:1000]), 2048
    n_batches = -(-X.nnz // args.batch_size)
    model = MFRecommender(
        64, backbone=LightGCN(3, propagate="batch"), loss="bpr",
        optimizer=Adam(1e-3, lazy=False), max_iter=1,
        batch_size=args.batch_size, n_jobs=args.n_jobs, random_state=0,
    ).fit(X[:50])  # fmt: skip
    rivals = {layout: Torch(X, layout, args.n_jobs) for layout in ("coo", "csr")}
    for rival in rivals.values():
        rival.step(args.batch_size)
    times = {name: [] for name in ("freqfm", *rivals)}
    for _ in range(args.rounds):
        times["freqfm"].append(seconds(model.fit, X))
        for name, rival in rivals.items():
            times[name].append(n_batches * seconds(rival.step, args.batch_size))
    medians = {name: statistics.median(of) for name, of in times.items()}
    for name, median in medians.items():
        ratio = median / medians["freqfm"]
        print(f"{name:7} {median:7.2f} s an epoch of {n_batches} batches, {ratio:.1f} x freqfm's")


if __name__ == "__main__":
    main()
