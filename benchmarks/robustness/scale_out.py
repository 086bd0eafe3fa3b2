"""Training on a Dask cluster: speed of two workers, bytes of a merge, and a plan for many rows.

    python benchmarks/robustness/scale_out.py --rows 800000 1600000 3200000

compares two worker processes of one thread with one process of one thread, checks the bytes that a
merge moves and a simulator of an epoch's time, and prints that simulator's plan for many rows. Run
it on a quiet machine. ``benchmarks/robustness/shards.py`` has the quality of models.
"""

import argparse
import time

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from scipy import sparse

import freqfm
import freqfm.dask as fdask
from freqfm.dask._shards import Layout, Piece, merge
from freqfm.estimators.fm.base import checked_optimizer
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


def timed(trainer, fit, count=lambda: 0):
    """Time the epochs of a fit, without the first.

    Parameters
    ----------
    trainer : type
        Whose ``run_epoch`` is timed.
    fit : callable
    count : callable
        Returns a number that grows.

    Returns
    -------
    seconds, counted : float
        Of an epoch, the medians.
    model : estimator
        The fit's result.
    """
    seconds, counts, run_epoch = [], [], trainer.run_epoch

    def run(self, epoch):
        start = time.perf_counter()
        loss = run_epoch(self, epoch)
        seconds.append(time.perf_counter() - start)
        counts.append(count())
        return loss

    trainer.run_epoch = run
    try:
        model = fit()
    finally:
        trainer.run_epoch = run_epoch
    return float(np.median(seconds[1:])), float(np.median(np.diff(counts))), model


def table_bytes(model):
    """Return the bytes of a model's tables with the optimizer's, and of counts by token."""
    layout = Layout(model, checked_optimizer(model))
    counts = layout.counts(np.zeros(model.n_features_in_), 0.0)
    return sum(t.rows.nbytes for t in layout.tables), sum(of.nbytes for of in counts)


def sent(client):
    """Return the bytes that the workers have sent to each other and to the client."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


def merge_rate(model, n_shards=2):
    """Return the bytes of a table that a worker merges in a second, for each shard."""
    layout = Layout(model, checked_optimizer(model))
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
    """Print the speed of two workers and the bytes of a merge; return the measured constants."""
    options = {"early_stopping": False, "max_iter": 3, "n_jobs": 1, **FIXED}
    rows = dask.compute(*synthetic(4, n_rows // 4, n_tokens), scheduler="sync")
    alone, _, plain = timed(FMTrainer, lambda: freqfm.FMClassifier(**options).fit(*rows))
    print(f"{n_rows} rows of {N_FIELDS} tokens, {n_tokens} tokens, 16 factors")
    print(f"one process, one thread: {alone:.2f} s an epoch, {n_rows / alone:.0f} rows/s")
    workers = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    with workers, Client(workers) as client:
        rows = synthetic(4, n_rows // 4, n_tokens)
        fit = fdask.FMClassifier(n_shards=2, n_merges=n_merges, **options).fit
        trainer = fdask.FMClassifier._trainer
        both, moved, _ = timed(trainer, lambda: fit(*rows), lambda: sent(client))
        constants = {
            "row": alone / n_rows,
            "bandwidth": loopback_rate(client),
            "merge": merge_rate(plain),
            "copy": 4e9,
            "round": round_seconds(n_merges),
        }
    print(f"two workers of one thread: {both:.2f} s an epoch, {alone / both:.2f} times as fast")
    # In a round a worker fetches the other one's piece, trains, and sends half of its shard's table
    # and of its counts. After the epoch the client fetches the table.
    table, counts = table_bytes(plain)
    print(
        f"bytes that the workers send in a merge: {(moved - table) / n_merges / 1e6:.2f} MB, "
        f"planned {(2 * table + counts) / 1e6:.2f} MB (a table is {table / 1e6:.2f} MB; 2 a shard, "
        f"half of them stay on the worker, and counts)"
    )
    predicted = simulate(n_rows, table, constants, 2, n_merges)
    print(f"simulated: {predicted:.2f} s an epoch, measured {both:.2f} s")
    print({name: float(f"{value:.3g}") for name, value in constants.items()})
    return constants


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[400_000])
    parser.add_argument("--tokens", type=int, default=39 * 1000)
    parser.add_argument("--quick", action="store_true", help="few rows, to see that it runs")
    args = parser.parse_args()
    for n_rows in [8000] if args.quick else args.rows:
        constants = speed(n_rows, args.tokens)
    plan(constants)


if __name__ == "__main__":
    main()
