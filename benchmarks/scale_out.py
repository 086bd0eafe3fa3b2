"""Training on a Dask cluster: quality of merged shards, bytes of a merge, speed, and a plan.

``python benchmarks/scale_out.py --part speed`` compares two worker processes of one thread with one
process of one thread, checks the bytes that a merge moves and a simulator of an epoch's time, and
prints that simulator's plan for many rows. ``--part quality --data DIR`` compares four shards with
one machine on Frappe and on MovieLens ratings. Run it on a quiet machine.
"""

import time
import warnings
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
from _data import data_parser, movielens_split, require_data
from defaults import frappe_split
from distributed import Client, LocalCluster, wait
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

import freqfm
import freqfm.dask as fdask
from freqfm.dask._merge import Layout, Piece, merge
from freqfm.estimators.fm.trainer import FMTrainer

N_FIELDS = 39
FIXED = {"n_iter_no_change": None, "random_state": 0}


def block_of_rows(number, n_rows, n_tokens):
    """Return rows of one token in each of 39 fields, by a power law, and their clicks."""
    rng = np.random.default_rng([0, number])
    per_field = n_tokens // N_FIELDS
    tokens = (per_field * rng.random((n_rows, N_FIELDS)) ** 4).astype(np.int32)
    tokens += per_field * np.arange(N_FIELDS, dtype=np.int32)
    scores = np.sin(tokens * 12.9898).sum(axis=1) / 3
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    data = np.ones(tokens.size, dtype=np.float32), tokens.ravel()
    X = sparse.csr_array((*data, np.arange(0, tokens.size + 1, N_FIELDS)), (n_rows, n_tokens))
    return X, y


def synthetic(n_blocks, n_rows, n_tokens):
    """Return blocks of rows as Dask arrays, made where they are needed."""
    blocks = [dask.delayed(block_of_rows, pure=True)(i, n_rows, n_tokens) for i in range(n_blocks)]
    like = sparse.csr_array((0, n_tokens), dtype=np.float32)
    X = [da.from_delayed(block[0], (n_rows, n_tokens), meta=like) for block in blocks]
    y = [da.from_delayed(block[1], (n_rows,), dtype=np.int64) for block in blocks]
    return da.concatenate(X), da.concatenate(y)


def in_blocks(X, n_blocks):
    """Return an array as a Dask array of so many blocks of rows."""
    bounds = np.linspace(0, X.shape[0], n_blocks + 1).astype(int)
    pairs = pairwise(bounds)
    parts = [
        da.from_delayed(dask.delayed(X[a:b]), (b - a, *X.shape[1:]), meta=X[:0]) for a, b in pairs
    ]
    return da.concatenate(parts)


def cluster(n_workers, processes):
    """Return a local cluster of workers with one thread each."""
    return LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=processes, dashboard_address=":0"
    )


def quality(data, n_shards=4, n_merges=4):
    """Print test AUC of one machine, and of shards after at most twice as many epochs."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"test AUC, {n_shards} shards, {n_merges} merges an epoch")
    for name, parts in {
        "Frappe": frappe_split(data),
        "MovieLens": movielens_split(data, 0),
    }.items():
        (X, y), (X_val, y_val), (X_test, y_test) = parts
        X, X_val = sparse.csr_array(X), sparse.csr_array(X_val)
        plain = freqfm.FMClassifier(max_iter=30, **FIXED).fit(X, y, X_val=X_val, y_val=y_val)
        n_epochs = 2 * plain.best_iter_
        with cluster(2, False) as workers, Client(workers):
            model = fdask.FMClassifier(
                max_iter=n_epochs, n_shards=n_shards, n_merges=n_merges, **FIXED
            ).fit(
                in_blocks(X, n_shards), in_blocks(y, n_shards),
                X_val=in_blocks(X_val, n_shards), y_val=in_blocks(y_val, n_shards),
            )  # fmt: skip
        found = [
            roc_auc_score(y_test, of.decision_function(X_test)) for of in (plain, model.to_local())
        ]
        print(
            f"{name:10} one machine {found[0]:.4f} at epoch {plain.best_iter_}, merged "
            f"{found[1]:.4f} at epoch {model.best_iter_}: {found[1] - found[0]:+.4f}"
        )


def timed(trainer, fit):
    """Return the median seconds of an epoch of a fit, without the first, and the fit's result."""
    seconds, run_epoch = [], trainer.run_epoch

    def run(self, epoch):
        start = time.perf_counter()
        loss = run_epoch(self, epoch)
        seconds.append(time.perf_counter() - start)
        return loss

    trainer.run_epoch = run
    try:
        model = fit()
    finally:
        trainer.run_epoch = run_epoch
    return float(np.median(seconds[1:])), model


def table_bytes(model):
    """Return the bytes of a model's tables with the optimizer's, and of counts by token."""
    layout = Layout(model, model._checked_optimizer())
    counts = layout.counts(np.zeros(model.n_features_in_), 0.0)
    return sum(t.rows.nbytes for t in layout.tables), sum(of.nbytes for of in counts)


def sent(client):
    """Return the bytes that the workers have sent to each other and to the client."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


def merge_rate(model, n_shards=2):
    """Return the bytes of a table that a worker merges in a second, for each shard."""
    layout = Layout(model, model._checked_optimizer())
    counts = layout.counts(np.ones(model.n_features_in_), 1.0)
    before = layout.piece(0, 1)
    pieces = [Piece(before.tables, counts, []) for _ in range(n_shards)]
    start = time.perf_counter()
    merge(layout.rules, 1.0, before, *pieces)
    return n_shards * table_bytes(model)[0] / (time.perf_counter() - start)


def simulate(n_rows, table, constants, n_workers, n_merges):
    """Return the seconds of an epoch: training, moving, merging, and what a round costs besides.

    Workers hold a shard and a piece of the table each. In a round a worker sends its shard's table
    and receives the merged one, but for its own piece.
    """
    share = (n_workers - 1) / n_workers
    training = n_rows / n_workers * constants["row"]
    moving = 2 * table * share / constants["bandwidth"]
    merging = table / constants["merge"]  # of n_workers shards, on a piece of 1 / n_workers
    copying = 3 * table / constants["copy"]
    return training + n_merges * (moving + merging + copying + constants["round"])


def loopback_rate(client, n_bytes=32 << 20):
    """Return the bytes that a worker fetches from another in a second."""
    first, second = sorted(client.nthreads())[:2]
    source = client.submit(np.ones, n_bytes // 8, workers=[first], pure=False)
    wait(source)
    start = time.perf_counter()
    client.submit(len, source, workers=[second], pure=False).result()
    return n_bytes / (time.perf_counter() - start)


def round_seconds(n_merges):
    """Return the seconds that a round costs beside its work: fits of very few rows."""
    X, y = synthetic(2, 64, N_FIELDS * 2)
    options = {"early_stopping": False, "max_iter": 6, "n_merges": n_merges, **FIXED}
    fit = fdask.FMClassifier(n_shards=2, **options).fit
    return timed(fdask.FMClassifier._trainer, lambda: fit(X, y))[0] / n_merges


def speed(n_rows, n_tokens, n_merges=4):
    """Print the speed of two workers, the bytes of a merge, and the plan."""
    options = {"early_stopping": False, "max_iter": 3, "n_jobs": 1, **FIXED}
    X, y = dask.compute(*synthetic(4, n_rows // 4, n_tokens), scheduler="sync")
    alone, plain = timed(FMTrainer, lambda: freqfm.FMClassifier(**options).fit(X, y))
    print(f"{n_rows} rows of {N_FIELDS} tokens, {n_tokens} tokens, 16 factors")
    print(f"one process, one thread: {alone:.2f} s an epoch, {n_rows / alone:.0f} rows/s")
    table, counts = table_bytes(plain)
    with cluster(2, True) as workers, Client(workers) as client:
        rows = synthetic(4, n_rows // 4, n_tokens)
        model = fdask.FMClassifier(n_shards=2, n_merges=n_merges, **options)
        before = sent(client)
        both, model = timed(fdask.FMClassifier._trainer, lambda: model.fit(*rows))
        moved = sent(client) - before
        constants = {
            "row": alone / n_rows,
            "bandwidth": loopback_rate(client),
            "merge": merge_rate(plain),
            "copy": 4e9,
            "round": round_seconds(n_merges),
        }
    print(f"two workers of one thread: {both:.2f} s an epoch, {alone / both:.2f} times as fast")
    # In a round a worker fetches the other one's piece, trains, and sends half of its shard's table
    # and of its counts. The client fetches the table after each epoch; the model is sent once.
    n_rounds = options["max_iter"] * n_merges
    planned = n_rounds * (2 * table + counts) + (options["max_iter"] + 1) * table
    print(
        f"bytes sent by workers: {moved / 1e6:.1f} MB in {n_rounds} merges, planned "
        f"{planned / 1e6:.1f} MB (a table is {table / 1e6:.2f} MB; a merge moves 2 a shard, "
        f"half of them local)"
    )
    predicted = simulate(n_rows, table, constants, 2, n_merges)
    print(f"simulated: {predicted:.2f} s an epoch, measured {both:.2f} s")
    print({name: float(f"{value:.3g}") for name, value in constants.items()})
    plan(constants)


def plan(constants, n_rows=10**11, n_tokens=10**8, n_threads=32, network=1.25e9):
    """Print simulated epochs of many rows: workers of 32 threads, 10 gigabits a second."""
    machine = {**constants, "row": constants["row"] / (0.75 * n_threads), "bandwidth": network}
    machine |= {name: constants[name] * 8 for name in ("merge", "copy")}
    table = n_tokens * 4 * 18
    print(f"plan: {n_rows:.0e} rows, {n_tokens:.0e} tokens, table of {table / 1e9:.1f} GB")
    for n_workers in (16, 32, 64, 128):
        seconds = simulate(n_rows, table, machine, n_workers, 4)
        per_second = 4 * 2 * table / seconds
        print(
            f"{n_workers:4} workers: {seconds / 60:6.1f} min an epoch, each sends and receives "
            f"{per_second / 1e6:.0f} MB/s on average, {n_rows / n_workers * N_FIELDS * 8 / 1e9:.0f}"
            f" GB of rows each"
        )


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--part", choices=["quality", "speed"], default="speed")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--tokens", type=int, default=39 * 1000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that it runs")
    args = parser.parse_args()
    if args.part == "quality":
        quality(require_data(args))
    else:
        speed(8000 if args.quick else args.rows, args.tokens)


if __name__ == "__main__":
    main()
