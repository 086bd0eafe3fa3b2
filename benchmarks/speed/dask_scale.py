"""Interactions from Parquet files to recommendations in Parquet files, on a Dask cluster.

Worker processes read the files of a made log, number its ids, bring its rows to their users, train
ALS, score later interactions, and write the lists of all users. The same is done by one process,
with a thread for each worker, and by PySpark's ALS if ``--spark`` names a Python that has pyspark
(and java is there). Printed are seconds by phase; those of all CPUs, which do not depend on other
programs; and the bytes that workers have sent, without those of Dask's shuffle, which does not
count them. With ``--kill`` each phase, or those named, runs again and a worker is killed meanwhile:
model, NDCG and lists have to be the same.

    python benchmarks/speed/dask_scale.py --events 2000000 --kill --spark /path/of/python
    python benchmarks/speed/dask_scale.py --events 2000000 --files 16 --memory 1GB --kill read write
"""

import argparse
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

#: Those in which a worker can be killed.
PHASES = "read", "fit", "score", "recommend", "write"

ALS = {"n_components": 64, "random_state": 0}


def write_log(path, n_events, n_users, n_items, n_files):
    """Write a log with heavy tails, whose users are strings and items large integers."""
    import numpy as np
    import pandas as pd

    for number in range(n_files):
        rng, n = np.random.default_rng([0, number]), n_events // n_files
        users = (n_users * rng.random(n) ** 2).astype(np.int64)
        # Users of a group have their own order of items.
        items = (n_items * rng.random(n) ** 4).astype(np.int64)
        items = (items * 7 + users % 10 * (n_items // 10)) % n_items
        table = {"user": np.char.add("u", users.astype(str)), "item": items + 10**12}
        table["time"] = rng.integers(1_600_000_000, 1_700_000_000, n)
        pd.DataFrame(table).to_parquet(path / f"{number:04}.parquet", index=False)


class Phases:
    """Prints seconds, seconds of CPUs and megabytes sent of phases."""

    def __init__(self, name, client=None, pid=None):
        self.pid = pid  # of another process that works
        self.name, self.client, self.seconds, self.cpu = name, client, {}, {}

    def counted(self):
        """Return CPU seconds of all processes, and how many megabytes workers have sent."""
        found = [(sum(os.times()[:4]), 0)]
        if self.pid is not None:
            ticks = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found.append((sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), 0))
        if self.client is not None:
            found += self.client.run(_counted).values()
        return [sum(of) for of in zip(*found, strict=True)]

    @contextmanager
    def __call__(self, phase):
        """Time a block."""
        (cpu, sent), begin = self.counted(), time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        cpu, sent = (now - before for now, before in zip(self.counted(), (cpu, sent), strict=True))
        self.seconds[phase], self.cpu[phase] = seconds, cpu
        moved = f", {sent:8.1f} MB sent" if self.client else ""
        print(f"{self.name:8} {phase:12} {seconds:8.2f} s, {cpu:8.2f} of CPUs{moved}", flush=True)


def _counted(dask_worker):
    return sum(os.times()[:2]), dask_worker.transfer_outgoing_bytes_total / 1e6


def replace_epochs(trainer, run_epoch):
    """Let a trainer run epochs by a function of its own, and more; return a restorer."""
    run = trainer.run_epoch
    trainer.run_epoch = lambda self, epoch: run_epoch(run, self, epoch)
    return lambda: setattr(trainer, "run_epoch", run)


def epochs_of(trainer, phases):
    """Let a trainer print the seconds of its first epoch and of the others; return a restorer."""

    def timed(run, self, epoch):
        with phases("first epoch" if epoch == 0 else f"epoch {epoch}"):
            return run(self, epoch)

    return replace_epochs(trainer, timed)


def on_cluster(args, path, to):
    """Return the seconds of each phase on a cluster, and the model."""
    import dask
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    import freqfm.dask as fdask
    from freqfm.dask._als import ShardedALSTrainer

    dask.config.set({"distributed.scheduler.allowed-failures": 100})
    options = {"n_workers": args.workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(memory_limit=args.memory, **options) as cluster, Client(cluster) as client:
        phases = Phases("Dask", client)
        with phases("start"):
            client.run(__import__, "freqfm.dask")
        log = dd.read_parquet(path)
        estimator = fdask.ALSRecommender(max_iter=args.epochs, **ALS)
        with phases("split"):
            splitter = fdask.GlobalTimeSplit(
                test_fraction=0.1, drop_cold=False, drop_repeated=False
            )
            [(train, test)] = splitter.split(log)

        def write(path):
            model.recommend_to(path)
            return path

        model = fdask.InteractionRecommender(estimator, value=None)
        calls = {
            "fit": lambda: learned(model.fit(train)),
            "score": lambda: model.score(some_users(test, args)),
            "recommend": lambda: model.recommend(model.user_ids_[::50]),
            "write": lambda: write(f"{to}-{len(os.listdir(to.parent))}"),
        }
        restore = epochs_of(ShardedALSTrainer, phases)
        found = {}
        for phase, call in calls.items():
            with phases(phase):
                found[phase] = call()
        restore()
        print(f"Dask     NDCG {found['score']:.5f}")
        for phase in PHASES if args.kill == [] else args.kill or ():
            killed(phase, calls, phases, found)
        return phases, model.to_local()


def learned(model):
    """Return what a fit has learned."""
    vectors = model.estimator_.user_factors_, model.estimator_.item_factors_
    return *vectors, model.user_ids_, model.item_ids_


def some_users(test, args):
    """Return the later interactions of a twentieth of the users."""
    return test[test.user.str.endswith("17") | test.user.str.endswith("42")]


def killed(phase, calls, phases, found):
    """Run a phase again, kill a worker in it, and raise unless it returns the same."""
    import numpy as np
    import pandas as pd

    from freqfm.dask._als import ShardedALSTrainer

    name, client, of_phase = "fit" if phase == "read" else phase, phases.client, phases.seconds
    epochs = sum(of_phase[epoch] for epoch in of_phase if "epoch" in epoch)
    seconds = {"read": of_phase["fit"] - epochs, "fit": of_phase["epoch 1"]}
    client.wait_for_workers(len(client.cluster.worker_spec), timeout=60)
    pids = sorted(client.run(os.getpid).values())
    timer = threading.Timer(
        0.3 * seconds.get(phase, of_phase[name]), os.kill, [pids[0], signal.SIGKILL]
    )

    def in_second(run, self, epoch):
        if phase == "fit" and epoch == 1:
            timer.start()
        return run(self, epoch)

    restore = replace_epochs(ShardedALSTrainer, in_second)
    if phase != "fit":
        timer.start()
    begin = time.perf_counter()
    again = calls[name]()
    taken, late = time.perf_counter() - begin, timer.is_alive()
    timer.cancel()
    restore()
    if name == "write":
        pd.testing.assert_frame_equal(*map(pd.read_parquet, (again, found[name])))
    else:
        np.testing.assert_equal(again, found[name])
    told = "was over before it would have lost" if late else "lost"
    of = " of an epoch" if phase == "fit" else ""
    print(f"killed   {phase} {told} a worker after {timer.interval:.2f} s{of},", end=" ")
    print(f"took {taken:.1f} s, and returned the same", flush=True)


def in_one_process(args, path, to):
    """Return the seconds of each phase in one process with as many threads, and the model."""
    import pyarrow.dataset as ds

    import freqfm
    from freqfm.estimators.recommenders.als import ALSTrainer

    phases, log = Phases("plain"), ds.dataset(path)
    with phases("split"):
        times = log.to_table(columns=["time"])["time"].to_numpy()
        times.partition(round(0.9 * len(times)))
        point = int(times[round(0.9 * len(times))])
    restore = epochs_of(ALSTrainer, phases)
    with phases("fit"):
        als = freqfm.ALSRecommender(max_iter=args.epochs, n_jobs=args.workers, **ALS)
        model = freqfm.InteractionRecommender(als, value=None)
        model.fit(log.filter(ds.field("time") < point))
    restore()
    test = log.to_table(filter=ds.field("time") >= point).to_pandas()
    with phases("score"):
        print(f"plain    NDCG {model.score(some_users(test, args)):.5f}")
    with phases("write"):
        model.recommend_to(to)
    return phases, model


def in_spark(args, path, to):
    """Time PySpark's ALS, in a Python that has pyspark."""
    from pyspark.ml.recommendation import ALS as SparkALS
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "8g")
    session = session.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    phases = Phases("Spark", pid=session.sparkContext._gateway.proc.pid)
    with phases("read"):
        log = session.read.parquet(str(path))
        point = log.approxQuantile("time", [0.9], 0.0)[0]
        log = log.where(F.col("time") < point).select(
            F.expr("cast(substring(user, 2) as int)").alias("user"),
            (F.col("item") - 10**12).cast("int").alias("item"),
        )
        log = log.groupBy("user", "item").count().cache()
        log.count()
    options = {"rank": 64, "implicitPrefs": True, "userCol": "user", "itemCol": "item"}
    for n in (1, 1 + args.epochs):
        with phases(f"{n} epochs"):
            als = SparkALS(maxIter=n, ratingCol="count", regParam=0.1, alpha=1.0, seed=0, **options)
            model = als.fit(log)
    for of in ("seconds", "cpu"):
        one, all_of = (getattr(phases, of)[f"{n} epochs"] for n in (1, 1 + args.epochs))
        print(f"Spark    an epoch     {(all_of - one) / args.epochs:8.2f} {of}")
    if args.spark_lists:
        with phases("recommend"):
            model.recommendForAllUsers(10).write.mode("overwrite").parquet(str(to))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=500_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--memory", default="auto", help="limit of each worker, such as 1GB")
    given = {"nargs": "*", "choices": PHASES, "metavar": "PHASE"}
    parser.add_argument("--kill", help=f"of {', '.join(PHASES)}; all if none is named", **given)
    parser.add_argument("--spark", help="a Python with pyspark")
    parser.add_argument("--spark-lists", action="store_true", help="and its lists of all users")
    parser.add_argument("--only-spark", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a small log")
    args = parser.parse_args()
    if args.quick:
        args.events, args.users, args.items, args.files, args.workers = 20_000, 500, 200, 4, 2
    if args.only_spark:
        in_spark(args, Path(args.only_spark), Path(args.only_spark).with_name("spark"))
        return
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.mkdir()
        write_log(path, args.events, args.users, args.items, args.files)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"{args.events:,} events in {args.files} files of {size / 1e6:.0f} MB", flush=True)
        of_plain, plain = in_one_process(args, path, Path(folder, "plain"))
        of_dask, model = on_cluster(args, path, Path(folder, "dask"))
        for name in ("user_factors_", "item_factors_"):
            found, expected = (getattr(of.estimator_, name) for of in (model, plain))
            print(f"{name} are those of one process: {np.array_equal(found, expected)}")
        for phase in of_plain.seconds:
            ratios = (
                getattr(of_dask, of)[phase] / max(getattr(of_plain, of)[phase], 1e-3)
                for of in ("seconds", "cpu")
            )
            print("Dask/plain {:12} {:6.2f} of seconds, {:6.2f} of CPUs".format(phase, *ratios))
        if args.spark:
            given = ["--only-spark", str(path), "--epochs", str(args.epochs)]
            given += ["--spark-lists"] * args.spark_lists
            subprocess.run([args.spark, __file__, *given], check=True)


if __name__ == "__main__":
    main()
