"""The client's side of a cluster: partitions of collections, workers, and errors of both."""

import asyncio
import contextlib
import time
from concurrent.futures import CancelledError
from operator import itemgetter

import dask
import dask.array as da
import dask.bag as db
import distributed
import numpy as np

from freqfm._messages import shown

# Of these, workers need the client's versions: bits depend on them.
_SAME_VERSIONS = ("freqfm", "numpy", "numba")

# Between looks for tasks that wait for lost workers, and between attempts to reach workers that may
# just have died: the scheduler notices it, and others take their places, in that time.
_SECONDS, _ATTEMPTS = 1.0, 10


class SchedulerLostError(ConnectionError):
    """The connection to Dask's scheduler was lost."""


class DataLostError(RuntimeError):
    """Workers were lost with data that cannot be computed again."""


def find_client(client):
    """Return the client, or the one that was created last if it is None."""
    if client is not None:
        if not isinstance(client, distributed.Client):
            raise TypeError(
                f"client={client!r} is not a dask.distributed.Client; pass one, or None for the "
                f"current one."
            )
        return client
    try:
        return distributed.get_client()
    except ValueError:
        raise RuntimeError(
            "there is no Dask client: create one, such as dask.distributed.Client(), and pass it "
            "as client= or leave it the current one."
        ) from None


class ComputedRows(list):
    """Partitions of rows, as futures."""


def is_frame(collection):
    """Return whether a Dask collection is a DataFrame or a Series."""
    names = "map_partitions", "divisions"
    return dask.is_dask_collection(collection) and all(hasattr(collection, n) for n in names)


def one_block_of_columns(X):
    """Return a Dask array whose blocks hold all columns of their rows."""
    return X.rechunk({1: -1}) if X.ndim == 2 and X.numblocks[1] > 1 else X


def check_matrix(name, collection):
    """Raise unless a collection has rows and columns, with the beginning of scikit-learn's error.

    A bag, whose elements are not known, passes.
    """
    n_axes = getattr(collection, "ndim", 2)
    if n_axes != 2:
        raise ValueError(
            f"Expected 2D array, got {n_axes}D array instead: {name} is a Dask "
            f"{type(collection).__name__}. Give rows and columns, for a single row "
            f"{name}.reshape(1, -1)."
        )


def _as_column(name, frame):
    """Return the only column of a DataFrame; a Series is one."""
    if frame.ndim == 1:
        return frame
    if len(frame.columns) != 1:
        raise ValueError(
            f"{name} is a Dask DataFrame of {len(frame.columns)} columns; give one of them, such "
            f"as {name}[{shown(frame.columns[0])}]."
        )
    return frame[frame.columns[0]]


def partitions_of(name, collection, n_axes):
    """Return the partitions of an argument as a list of delayed values.

    Parameters
    ----------
    name : str
        Of the argument.
    collection : collection
    n_axes : tuple of int
        How many axes an array may have.

    Raises
    ------
    TypeError
        If it is not a Dask collection.
    ValueError
        If it has the wrong number of dimensions.
    """
    if isinstance(collection, ComputedRows):
        return list(collection)
    if n_axes == (2,):
        check_matrix(name, collection)
    if isinstance(collection, da.Array):
        if n_axes == (1,) and collection.ndim == 2 and collection.shape[1] == 1:
            collection = collection[:, 0]
        if collection.ndim not in n_axes:
            raise ValueError(
                f"{name} is a Dask array of {collection.ndim} dimension(s); it needs "
                f"{' or '.join(map(str, n_axes))}."
            )
        return list(one_block_of_columns(collection).to_delayed().ravel())
    if isinstance(collection, db.Bag) or is_frame(collection):
        if n_axes == (1,) and is_frame(collection):
            collection = _as_column(name, collection)
        return collection.to_delayed()
    raise TypeError(
        f"{name} is of type {type(collection).__name__}; freqfm.dask takes Dask arrays, DataFrames "
        f"and bags of sparse matrices. Use dask.array.from_array, or the estimator of freqfm "
        f"itself for data in memory."
    )


def aligned_partitions(X, columns, n_axes=(1,)):
    """Return the partitions of X and of columns, of which each has as many.

    Parameters
    ----------
    X : dict of str to collection
        One of rows.
    columns : dict of str to collection or None
    n_axes : tuple of int
        How many axes columns may have.

    Returns
    -------
    parts : dict of str to list or None
    """
    ((x_name, x),) = X.items()
    parts = {x_name: partitions_of(x_name, x, (2,))}
    for name, column in columns.items():
        if column is None:
            parts[name] = None
            continue
        both_arrays = isinstance(x, da.Array) and isinstance(column, da.Array)
        if both_arrays and not np.isnan(x.shape[0]) and not np.isnan(column.shape[0]):
            if x.shape[0] != column.shape[0]:
                raise ValueError(
                    f"{x_name} has {x.shape[0]} rows, but {name} has {column.shape[0]}."
                )
            if column.chunks[0] != x.chunks[0]:
                column = column.rechunk({0: x.chunks[0]})
        parts[name] = partitions_of(name, column, n_axes)
        if len(parts[name]) != len(parts[x_name]):
            raise ValueError(
                f"{x_name} has {len(parts[x_name])} partitions, but {name} has "
                f"{len(parts[name])}; partition both alike."
            )
    return parts


class Cluster:
    """Workers of a client, and what is submitted to them.

    Parameters
    ----------
    client : distributed.Client

    Attributes
    ----------
    workers : list of str
        Addresses, in order.
    """

    def __init__(self, client):
        self.client = client
        with self.watched():
            threads = client.nthreads()
        self.workers = sorted(threads)
        self._threads = threads
        if not self.workers:
            raise RuntimeError(
                f"the Dask cluster at {client.scheduler.address} has no workers; wait for them "
                f"with client.wait_for_workers(1)."
            )

    def n_threads(self, n_shards):
        """Return how many threads train a shard, if all train at once."""
        per_worker = -(-n_shards // len(self.workers))
        return max(1, min(self._threads.values()) // per_worker)

    def check_versions(self):
        """Raise unless the workers have the packages of the client, in the same versions."""

        def versions(names):
            # A function of its own, that workers without freqfm can run.
            import importlib

            found = {}
            for name in names:
                try:
                    found[name] = importlib.import_module(name).__version__
                except ImportError:
                    found[name] = "none"
            return found

        expected = versions(_SAME_VERSIONS)
        of_workers = self.retried(lambda: self.client.run(versions, _SAME_VERSIONS))
        for worker, found in of_workers.items():
            for name, version in expected.items():
                if found[name] != version:
                    raise RuntimeError(
                        f"worker {worker} has {name} {found[name]}, but the client has {version}; "
                        f"install the same version on all."
                    )

    def homes(self, groups):
        """Return a worker for each group of partitions: where most of them are, evenly many."""
        futures = distributed.futures_of([part for group in groups for part in group])
        held = self.retried(lambda: self.client.who_has(futures)) if futures else {}
        held = {str(key): set(workers) for key, workers in held.items()}
        left = dict.fromkeys(self.workers, -(-len(groups) // len(self.workers)))
        homes = []
        for group in groups:
            keys = [str(part.key) for part in group]
            free = [worker for worker in self.workers if left[worker]]
            home = max(free, key=lambda w: (sum(w in held.get(k, ()) for k in keys), left[w]))
            left[home] -= 1
            homes.append(home)
        return homes

    def submit(self, function, *arguments, on):
        """Return the future of a call on a worker, or on another one if that has died."""
        return self.client.submit(
            function, *arguments, workers=[on], allow_other_workers=True, pure=False
        )

    def submit_each(self, function, parts, homes, *arguments):
        """Return the futures of a function of each part, and of arguments, on the part's worker.

        A part that is a tuple has several arguments.
        """
        calls = (part if isinstance(part, tuple) else (part,) for part in parts)
        pairs = zip(calls, homes, strict=True)
        return [self.submit(function, *call, *arguments, on=home) for call, home in pairs]

    def unpacked(self, results, homes, n):
        """Return the futures of the first elements of results, of the second ones, and so on."""
        return [self.submit_each(itemgetter(i), results, homes) for i in range(n)]

    def collected(self, function, parts, groups, homes):
        """Return futures of a function of each group of partitions, computed on its worker.

        Parameters
        ----------
        function : callable
            Takes the number of the first partition, and for each of ``parts`` a list or None.
        parts : dict of str to list or None
        groups : list of ndarray
            Numbers of partitions.
        homes : list of str
            A worker for each group.
        """
        call, options = dask.delayed(function, pure=False), {"allow_other_workers": True}
        futures = []
        for group, home in zip(groups, homes, strict=True):
            columns = [
                None if part is None else [part[i] for i in group] for part in parts.values()
            ]
            delayed = call(int(group[0]), *columns)
            futures.append(self.client.compute(delayed, workers=[home], **options))
        return futures

    def send(self, values):
        """Return the futures of values that are sent to the workers in turn, past the scheduler."""
        return self.retried(lambda: self.client.scatter(values, direct=True, hash=False))

    def gather(self, futures):
        """Return the values of futures, from the workers that have them.

        A task that became due when no worker was left waits for the one it prefers, although it
        may run on others (https://github.com/dask/distributed/issues/7346): such ones are placed
        again from time to time.
        """

        def place(dask_scheduler):
            # A function of its own, that schedulers without freqfm can run.
            due = [task.key for task in dask_scheduler.unrunnable if task.loose_restrictions]
            dask_scheduler.transitions(dict.fromkeys(due, "processing"), "workers-were-lost")

        async def gathered():
            values = asyncio.ensure_future(self.client.gather(futures, direct=True))
            try:
                while not (await asyncio.wait([values], timeout=_SECONDS))[0]:
                    await self.client.run_on_scheduler(place)
                return await values
            finally:
                values.cancel()

        with self.watched():
            return self.client.sync(gathered)

    @contextlib.contextmanager
    def watched(self):
        """Turn errors into a SchedulerLostError or a DataLostError where one is the reason.

        A client that would return coroutines instead of results is refused.
        """
        if self.client.asynchronous:
            raise TypeError(
                f"client={self.client!r} is asynchronous here: its results would have to be "
                f"awaited. Call the estimator's method in a thread, such as "
                f"await asyncio.to_thread(model.fit, X, y), or pass a client that was created "
                f"without asynchronous=True."
            )
        try:
            yield
        except Exception as error:
            if self.is_lost():
                raise SchedulerLostError(
                    f"the connection to the Dask scheduler was lost ({type(error).__name__}: "
                    f"{error}). The estimator holds the model of the last whole epoch, if there "
                    f"was one; connect a client again and fit, with warm_start=True to continue."
                ) from error
            if isinstance(error, CancelledError):
                raise DataLostError(
                    f"workers were lost with rows or results that only they held ({error}). Give "
                    f"collections that can be computed again, such as those read from files, "
                    f"instead of scattered data."
                ) from error
            raise

    def retried(self, work, restart=None):
        """Return the result of a function that connects to workers or needs data on them.

        It is called again, after ``restart``, if data are lost or a worker cannot be reached, which
        the scheduler may not know yet.
        """
        for attempt in range(_ATTEMPTS):
            try:
                with self.watched():
                    if attempt and restart is not None:
                        restart()
                    return work()
            except SchedulerLostError:
                raise
            except (DataLostError, OSError):
                # Connections to workers raise an OSError.
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_SECONDS)

    def is_lost(self):
        """Return whether the scheduler can no longer be reached."""
        return self.client.status != "running" or self.client.scheduler is None
