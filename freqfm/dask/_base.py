"""Base class of estimators on a cluster: a client, shards, lazy results, ``to_local``."""

import copy
import pickle
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import dask
import dask.array as da
import distributed
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from freqfm.dask import _shards
from freqfm.dask._cluster import (
    Cluster,
    aligned_partitions,
    check_matrix,
    find_client,
    partitions_of,
)
from freqfm.estimators.progress import announce

# Bytes of a model that goes with a graph of predictions, through the scheduler, so that no worker's
# death loses it. Dask warns of graphs of 10 MB.
_LARGEST_IN_GRAPHS = 8_000_000

# Attributes of a call of fit, which do not belong to the model.
_OF_CALLS = ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx", "_unfinished")


@dataclass(eq=False, repr=False, kw_only=True)
class OnCluster:
    """Base class of estimators on a cluster; a mixin before the plain estimator.

    A class has its plain estimator, ``_local``, and that of workers, ``_on_workers``.
    """

    _parameter_constraints: ClassVar = {
        "client": "no_validation",
        "n_shards": [Interval(Integral, 1, None, closed="left"), None],
        "n_merges": [Interval(Integral, 1, None, closed="left")],
    }

    client: distributed.Client | None = None
    n_shards: int | None = None
    n_merges: int = 4

    #: Attributes that a client belongs to: neither copied nor pickled.
    _of_client = ()

    def __getstate__(self):
        state = super().__getstate__()
        kept = {name: value for name, value in state.items() if name not in self._of_client}
        return {**kept, "client": None}

    def __sklearn_clone__(self):
        # A client cannot be copied.
        found = BaseEstimator.__sklearn_clone__(copy.copy(self))
        found.client = self.client
        return found

    @property
    def client_(self):
        """The client that ``fit`` and ``predict`` use: ``client``, or else the current one."""
        return find_client(self.client)

    @property
    def partial_fit(self):
        """Not available on a cluster."""
        raise AttributeError(
            f"{type(self).__name__} of freqfm.dask has no partial_fit; set warm_start=True and "
            f"call fit, or use to_local()."
        )

    def to_local(self):
        """Return the plain estimator, with the same parameters and a copy of the model.

        Returns
        -------
        estimator : estimator of :mod:`freqfm`
        """
        return self._copy_as(self._local)

    def _copy_as(self, kind):
        """Return a copy of the model as another class, with the parameters that this one has."""
        params = self.get_params(deep=False)
        learned = {name: value for name, value in vars(self).items() if name not in params}
        for name in (*_OF_CALLS, *self._of_client):
            learned.pop(name, None)
        model = self._new(kind)
        vars(model).update(copy.deepcopy(learned))
        return model

    def _collected(self, function, parts):
        """Bring the partitions of each shard, neighbours, to its worker.

        Parameters
        ----------
        function : callable
            See ``Cluster.collected``.
        parts : dict of str to list or None
            The partitions of X and of other arguments.

        Returns
        -------
        cluster : Cluster
        futures : list
            What the function returns for each shard.
        homes : list of str
            The worker of each shard.
        """
        cluster = Cluster(self.client_)
        cluster.check_versions()
        announce(self.verbose, "bringing partitions to their workers")
        n_partitions, n_shards = len(parts["X"]), self.n_shards
        if n_shards is None:
            n_shards = min(len(cluster.workers), n_partitions)
        if n_shards > n_partitions:
            raise ValueError(
                f"n_shards={n_shards} is more than the {n_partitions} partitions of X; repartition "
                f"X, or take fewer shards."
            )
        self.n_shards_ = int(n_shards)
        groups = np.array_split(np.arange(n_partitions), n_shards)
        homes = cluster.homes([[parts["X"][i] for i in group] for group in groups])
        return cluster, cluster.collected(function, parts, groups, homes), homes

    def _new(self, kind):
        """Return an unfitted estimator of another class with the parameters that this one has."""
        params = self.get_params(deep=False)
        return kind(**{name: params[name] for name in kind._get_param_names()})

    def _take_features(self, found, reset):
        """Compare the features of all shards, and with those of the model to continue.

        Parameters
        ----------
        found : list of tuple
            The number of features of each shard, and their names or None.
        reset : bool
        """
        widths = sorted({width for width, _ in found})
        expected = widths[0] if reset else self.n_features_in_
        if widths != [expected]:
            raise ValueError(
                f"partitions of X have {widths} columns, where {expected} are expected; encode all "
                f"of them alike."
            )
        names = found[0][1]
        known = names if reset else getattr(self, "feature_names_in_", None)
        if any(not np.array_equal(of, known) for _, of in found):
            raise ValueError("partitions of X have different column names; give all the same.")
        if reset:
            self.n_features_in_ = widths[0]
            vars(self).pop("feature_names_in_", None)
            if names is not None:
                self.feature_names_in_ = names

    def _blocks(self, X, method, like):
        """Return the lazy result of a method of the plain estimator on every partition of X.

        Parameters
        ----------
        X : collection
        method : str
        like : ndarray
            Of the result's type and number of columns, without rows.
        """
        check_is_fitted(self)
        check_matrix("X", X)
        model = self._sent()
        parts, call = partitions_of("X", X, (2,)), dask.delayed(_shards.predicted)
        lengths = X.chunks[0] if isinstance(X, da.Array) else [np.nan] * len(parts)
        blocks = [
            da.from_delayed(call(part, model, method), (n, *like.shape[1:]), meta=like)
            for part, n in zip(parts, lengths, strict=True)
        ]
        return da.concatenate(blocks, axis=0, allow_unknown_chunksizes=True)

    def _of_partitions(self, function, X, columns, n_axes=(1,)):
        """Return a function of rows, columns and the model, for each partition."""
        check_is_fitted(self)
        parts = aligned_partitions({"X": X}, columns, n_axes)
        call, n_parts = dask.delayed(function), len(parts["X"])
        of_parts = list(zip(*(of or [None] * n_parts for of in parts.values()), strict=True))

        def calls():
            model = self._sent()
            return [call(*values, model) for values in of_parts]

        cluster = self._cluster()
        if cluster is None:
            return dask.compute(*calls())
        return cluster.retried(lambda: cluster.gather(cluster.client.compute(calls())))

    def _cluster(self):
        """Return the cluster of the client; None without a client."""
        try:
            client = self.client_
        except RuntimeError:
            return None
        return Cluster(client)

    def _sent(self):
        """Return the plain model as a value for graphs: a large one is sent to a worker first."""
        model = self._copy_as(self._on_workers)
        large = len(pickle.dumps(model)) > _LARGEST_IN_GRAPHS
        cluster = self._cluster() if large else None
        if cluster is not None:
            (model,) = cluster.send([model])
        return dask.delayed(model)
