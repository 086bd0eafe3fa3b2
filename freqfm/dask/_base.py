"""Base class of estimators on a cluster, and the training task: an epoch is one graph of tasks."""

import copy
import pickle
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import ClassVar, NamedTuple

import dask
import dask.array as da
import distributed
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from freqfm._sklearn import CALLBACK_ATTRIBUTES, Interval
from freqfm.dask import _shards
from freqfm.dask._cluster import Cluster, aligned_partitions, find_client, partitions_of
from freqfm.dask._shards import Layout, merge
from freqfm.estimators.fm.base import watched_score
from freqfm.estimators.fm.targets import RunningBaseScore
from freqfm.estimators.fm.trainer import FMTrainer, Shard
from freqfm.estimators.progress import announce

# Bytes of a model that goes with a graph of predictions, through the scheduler, so that no worker's
# death loses it. Dask warns of graphs of 10 MB.
_LARGEST_IN_GRAPHS = 8_000_000


@dataclass(eq=False, repr=False, kw_only=True)
class OnCluster:
    """Base class of estimators on a cluster; a mixin before the plain estimator.

    A class has its plain estimator, ``_local``.
    """

    _parameter_constraints: ClassVar = {
        "client": "no_validation",
        "n_shards": [Interval(Integral, 1, None, closed="left"), None],
    }

    client: distributed.Client | None = None
    n_shards: int | None = None

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
        params = self.get_params(deep=False)
        learned = {name: value for name, value in vars(self).items() if name not in params}
        for name in (*CALLBACK_ATTRIBUTES, "_unfinished", *self._of_client):
            learned.pop(name, None)
        model = self._new()
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

    def _new(self):
        """Return an unfitted plain estimator with the parameters that this one has."""
        params = self.get_params(deep=False)
        return self._local(**{name: params[name] for name in self._local._get_param_names()})

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
        if any(not np.array_equal(names, known) for _, names in found):
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
        parts, call = partitions_of("X", X, (2,)), dask.delayed(_shards.predicted)
        model = self._sent()
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
        of_parts = list(
            zip(*(column or [None] * n_parts for column in parts.values()), strict=True)
        )

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
        model = OnCluster.to_local(self)
        large = len(pickle.dumps(model)) > _LARGEST_IN_GRAPHS
        cluster = self._cluster() if large else None
        if cluster is not None:
            (model,) = cluster.send([model])
        return dask.delayed(model)


@dataclass(eq=False, repr=False, kw_only=True)
class Merged(OnCluster):
    """A mixin of estimators whose shards each train a copy of the model."""

    _parameter_constraints: ClassVar = {"n_merges": [Interval(Integral, 1, None, closed="left")]}

    n_merges: int = 4


class ShardedRows(NamedTuple):
    """Rows of several shards, on their workers; the counterpart of ``TrainingRows``."""

    cluster: Cluster
    shards: list  #: of futures of Shard
    homes: list  #: a worker for each
    n_outputs: int
    sizes: list  #: how many rows of each shard are trained on
    fold: int | None = None  #: None for all rows
    held_out: bool | None = None  #: whether some rows are held out; None if not

    #: Of weights; each shard has its own, see ``ShardTrainer``.
    spread = 1.0

    @property
    def n_trained(self):
        """The largest number of rows of a shard: its batches are the steps of an epoch."""
        return max(self.sizes)

    def of_shards(self, function, *arguments):
        """Return the futures of a function of each shard."""
        return self.cluster.submit_each(function, self.shards, self.homes, *arguments)

    def count_tokens(self):
        """Return the weight of the rows that hold each token."""
        counts = self.of_shards(Shard.count_tokens, self.fold)
        return self.cluster.gather(self.cluster.submit(sum, counts, on=self.homes[0])).copy()

    def target_sums(self, model):
        """Return the sums of each output's targets, see ``RunningBaseScore``."""
        sums = self.cluster.gather(self.of_shards(Shard.target_sums, self.fold))
        total = sums[0].copy()
        for of_shard in sums[1:]:
            for of_output, added in zip(total, of_shard, strict=True):
                base = RunningBaseScore(model, of_output)
                base.add_sums(*added[[0, 1, 3]], lambda of_shard=added[2]: of_shard)
        return total


class Sharded:
    """Training on a cluster; a mixin for the plain trainer.

    The model is the client's. In an epoch its pieces are sent to the workers, one each; every shard
    trains a round from all pieces; each piece is merged on its worker from those of all shards; and
    so on. At the end the client fetches the pieces. The graph depends on nothing but the model and
    the shards: what is lost with a worker is computed again.

    Arrays that only one shard has stay on its worker from round to round and from epoch to epoch.
    The client fetches a copy after each epoch, from which training continues if the worker dies.
    """

    #: Factor of the steps of merges after each epoch whose loss is the lowest so far.
    _growth = 1.05
    #: The least rise of the loss that counts as one, as a part of its fall so far.
    _least_rise = 0.0

    def _start(self, cluster, homes, layout):
        """Send the model to all shards, which have these homes."""
        self._cluster, self._homes, self._layout = cluster, homes, layout
        self._n_rounds = int(self.model.n_merges) if len(homes) > 1 else 1
        self._start_merging(len(homes))
        with cluster.watched():
            self._begin()

    def _start_merging(self, n_shards):
        self._owners = self._cluster.workers[:n_shards]
        self._longest = n_shards**0.5
        self._scale, self._lowest, self._n_above = 1.0, np.inf, 0

    def _begin(self):
        """Send the model to all shards; see ``_start``."""
        self._merged, self._trainers = None, self._sent_trainers()
        self._own = self._cluster.submit_each(_shards.RoundTrainer.own, self._trainers, self._homes)

    @property
    def device(self):
        """Name of the device that trains."""
        return f"{self.model.device} of Dask workers"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # Results are freed on the workers.
        self._merged = self._trainers = self._own = None

    def run_epoch(self, epoch):
        """Train on every row once; return the mean loss, summed over outputs."""
        pieces = self._retried(lambda: self._run(epoch))
        self._layout.assign(pieces)
        loss = _mean(pieces[0].losses)
        self._watch(loss)
        return loss

    def _retried(self, work):
        """Return the result of a function; begin again from the client's model if data are lost."""
        return self._cluster.retried(work, self._begin)

    def _watch(self, loss):
        """Take longer steps in merges while the loss falls, and halve them if it rises."""
        curve = self.model.loss_curve_
        fall = max(curve[0] - self._lowest, 0) if len(curve) else 0
        if loss <= self._lowest + self._least_rise * fall:
            self._lowest, self._n_above = min(loss, self._lowest), 0
            self._scale = min(self._scale * self._growth, self._longest)
            return
        self._n_above += 1
        # One epoch may be chance.
        if self._n_above == 2:
            self._scale, self._n_above = self._scale / 2, 0

    def _scale_in(self, epoch):
        """Return the factor of the steps of merges in an epoch."""
        return self._scale

    def _run(self, epoch):
        """Return the pieces of the model after an epoch."""
        cluster, homes, pieces, own = self._cluster, self._homes, self._sent_pieces(), self._own
        for number in range(self._n_rounds):
            given = number, epoch, self.share, *pieces
            trained = self._of_shards(_shards.RoundTrainer.train, own, *given)
            *of_pieces, own = cluster.unpacked(trained, homes, len(pieces) + 1)
            pieces = self._merged_pieces(pieces, of_pieces, self._scale_in(epoch))
        found, of_shards = cluster.gather([pieces, own])
        self._keep_own(of_shards)
        self._merged, self._own = pieces, own
        return found

    def _keep_own(self, of_shards):
        """Write the arrays that only one shard has into the model."""

    def _of_shards(self, function, own, *arguments):
        """Return the futures of a method of each shard's trainer, and of the arrays of its own."""
        calls = zip(self._trainers, own, strict=True)
        return self._cluster.submit_each(function, calls, self._homes, *arguments)

    def _sent_pieces(self):
        """Return futures of the model's pieces, as many as there are workers to merge them."""
        n_pieces = len(self._owners)
        return self._cluster.send([self._layout.piece(j, n_pieces) for j in range(n_pieces)])

    def _merged_pieces(self, pieces, trained, scale):
        """Return futures of the pieces, each merged from those that the shards have trained."""
        calls = [(piece, *of_piece) for piece, of_piece in zip(pieces, trained, strict=True)]
        merging = partial(merge, self._layout.rules, scale)
        return self._cluster.submit_each(merging, calls, self._owners)

    def _scores(self):
        """Return the results of ``RoundTrainer.score`` for each shard that is validated."""
        pieces = self._merged or self._sent_pieces()
        scores = self._of_shards(_shards.RoundTrainer.score, self._own, *pieces)
        return [of_shard for of_shard in self._cluster.gather(scores) if of_shard is not None]

    def validation_score(self):
        """Return the model's score on the validation parts of all shards."""
        found = self._retried(self._scores)
        return found[0][0] if len(found) == 1 else self._pooled_score(*np.array(found).T)

    def extra(self):
        """Return the values that a checkpoint stores besides the estimator."""
        return {"steps": [self._scale, self._lowest, self._n_above]}

    def restore_extra(self, extra):
        """Restore the values that :meth:`extra` has returned."""
        self._scale, self._lowest, self._n_above = extra["steps"]


def _mean(losses):
    """Return the mean of the losses of rounds, each with its weight."""
    if len(losses) == 1:
        return losses[0][0]
    values, weights = np.array(losses).T
    return float(np.average(values, weights=weights))


class ShardedFMTrainer(Sharded, FMTrainer):
    """Training of factorization machines on a cluster; see ``Sharded``.

    Parameters
    ----------
    model : BaseFM
        Initialised; its arrays are updated in place.
    optimizer : Optimizer
    rows : ShardedRows
    """

    def __init__(self, model, optimizer, rows):
        self.model, self.optimizer, self._rows = model, optimizer, rows
        self._start(rows.cluster, rows.homes, Layout(model, optimizer))

    def gain_of_interactions(self):
        """Return None: the rows are on the workers."""

    def _sent_trainers(self):
        rows = self._rows
        (model,) = self._cluster.send([self.model.to_local()])
        n_threads = self._cluster.n_threads(len(rows.shards))
        return rows.of_shards(_shards.ShardTrainer, model, rows.fold, self._n_rounds, n_threads)

    def _pooled_score(self, scores, weights, means, variances):
        if watched_score(self.model) != "r2":
            return float(np.average(scores, weights=weights))
        loss = np.average((1 - scores) * np.where(variances > 0, variances, 1), weights=weights)
        variance = _shards.pooled_variance(weights, means, variances)
        return float(1 - loss / (variance if variance > 0 else 1))
