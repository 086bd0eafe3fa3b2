"""Matrix factorization on a Dask cluster: users live on one worker, items are merged."""

import copy
import threading

import numpy as np
from scipy import sparse

from freqfm._validation import _csr, canonical_csr, take_rows
from freqfm.dask import _shards
from freqfm.dask._cluster import Cluster, partitions_of
from freqfm.dask._fm import CONSTRAINTS, OnCluster, _seed_of, groups_of, with_options
from freqfm.dask._merge import LARGEST, MEANS, SUMS, WEIGHTS, TableLayout, is_summed
from freqfm.dask._trainer import Sharded
from freqfm.estimators.recommenders import mf
from freqfm.estimators.recommenders.mf_trainer import MFTrainer

# Learned attributes that have a row for each user, besides the users' tables.
_OF_USERS = ("_inverse_temperatures", "_temperature_state", "_statistics")


class ItemLayout(TableLayout):
    """The tables of items, and of their optimizer, that all shards share.

    Parameters
    ----------
    model : MFRecommender
    optimizer : Optimizer
    """

    def __init__(self, model, optimizer):
        super().__init__()
        state_rule = SUMS if is_summed(optimizer) else MEANS
        by_item = self._count(slice(None))
        for name, table in model._tables().items():
            if name.startswith("user"):
                continue
            n_items = len(table)
            self._add(table, (1, n_items, -1), by_item, WEIGHTS)
            state = model._states[name]
            self._add(state["per_row"], (1, -1, 1), by_item, SUMS)
            for key in ("first", "second"):
                self._add(state[key], (1, n_items, -1), by_item, state_rule)
        self._add(model._n_steps, (1, 1, 1), 0, LARGEST)


def user_arrays(model):
    """Return the arrays that have a row for each user."""
    tables = [(name, table) for name, table in model._tables().items() if name.startswith("user")]
    states = [array for name, _ in tables for array in model._states[name].values() if len(array)]
    return [*(table for _, table in tables), *states, *(getattr(model, of) for of in _OF_USERS)]


def of_some_users(model, begin, end):
    """Return a copy of a model with some of its users."""
    found, part = copy.copy(model), slice(begin, end)
    found._history, found._states = None, {}
    for name, table in model._tables().items():
        rows = part if name.startswith("user") else slice(None)
        setattr(found, f"{name}_", table[rows].copy())
        state = model._states[name]
        found._states[name] = {key: array[rows].copy() for key, array in state.items()}
    for name in _OF_USERS:
        setattr(found, name, getattr(model, name)[part].copy())
    found._n_steps = model._n_steps.copy()
    return found


def collect_interactions(first, parts):
    """Return the interactions of some partitions as a canonical matrix."""
    X = _shards._stack([_shards.matrix_of(part) for part in parts], "X")
    if hasattr(X, "iloc"):
        X = X.to_numpy()
    X = sparse.csr_array(X)
    if not np.isfinite(X.data).all():
        raise ValueError(f"partition {first} of X, or one after it, holds NaN or infinity.")
    return canonical_csr(X.astype(np.float32))


class UserTrainer:
    """A model that trains on the interactions of some users, a part of them between two merges.

    Parameters
    ----------
    model : MFRecommender
        With these users.
    components : Components
    X : csr_array
        Their interactions.
    n_rounds, n_threads : int
    n_known : int
        Number of interactions of all users.
    """

    def __init__(self, model, components, X, n_rounds, n_threads, n_known):
        self._arguments = model, components, X, n_rounds, n_threads, n_known
        self._model = model = copy.deepcopy(model)
        model._align_tables()
        self._lock = threading.Lock()
        self._layout = ItemLayout(model, components.optimizer)
        self._trainers, self._counts, self._weights = [], [], []
        for part in _parts_of_users(X, n_rounds, model._seed):
            arguments = model, components, part, None, n_threads, n_known
            self._trainers.append(MFTrainer(*arguments) if part.nnz else None)
            # Every item is a negative now and then.
            counts = np.bincount(part.indices, minlength=X.shape[1]) + part.nnz / X.shape[1]
            self._counts.append(self._layout.counts(counts, float(part.nnz)))
            self._weights.append(float(part.data.sum(dtype=np.float64)))

    def __reduce__(self):
        return UserTrainer, self._arguments

    def train(self, number, epoch, users, pieces):
        """Train one round; return a piece for each of those given, and the users' arrays."""
        with self._lock:
            self._layout.assign(pieces)
            for array, values in zip(user_arrays(self._model), users, strict=True):
                array[...] = values
            trainer, losses = self._trainers[number], []
            if trainer is not None:
                with trainer:
                    losses = [(trainer.run_epoch(epoch), self._weights[number])]
            trained = self._counts[number], losses
            found = [self._layout.piece(j, len(pieces), *trained) for j in range(len(pieces))]
            return [*found, [array.copy() for array in user_arrays(self._model)]]


def _parts_of_users(X, n_parts, seed):
    """Return a matrix of the same shape for each round, with the interactions of some users."""
    if n_parts == 1:
        return [X]
    part_of = np.random.default_rng([seed, 4]).permutation(X.shape[0]) % n_parts
    found = []
    for number in range(n_parts):
        lengths = np.where(part_of == number, np.diff(X.indptr), 0)
        part = take_rows(X, np.flatnonzero(part_of == number))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        found.append(_csr(part.data, part.indices, indptr, X.shape))
    return found


def train_users(trainer, number, epoch, users, *pieces):
    """Call ``UserTrainer.train``."""
    return trainer.train(number, epoch, users, list(pieces))


class ShardedMFTrainer(Sharded, MFTrainer):
    """Training of matrix factorization on a cluster; see ``Sharded``.

    The arrays of a shard's users go from round to round on its worker.
    """

    def __init__(self, model, components, X, score, n_known):
        self.model, self.components, self.X = model, components, X
        self.optimizer, self.validation_score = components.optimizer, score
        self.divergence_hint = components.loss.divergence_hint
        self._n_known, self._proposal, self._thresholds = n_known, None, None
        self._cluster, self._homes, self._bounds = model._shards
        self._layout = ItemLayout(model, components.optimizer)
        self._start_merging(len(self._homes))
        with self._cluster.watched():
            self._begin()

    def _begin(self):
        """Send each shard its users, and their interactions."""
        n_shards = len(self._homes)
        model, cluster = self.model.to_local(), self._cluster
        self._n_rounds = int(self.model.n_merges) if n_shards > 1 else 1
        sizes = self._n_rounds, cluster.n_threads(n_shards), self._n_known
        self._trainers = []
        for number, home in enumerate(self._homes):
            begin, end = self._bounds[number : number + 2]
            part = of_some_users(model, begin, end)
            part._seed, part.verbose = _seed_of(model._seed, number), 0
            X = take_rows(self.X, np.arange(begin, end))
            sent = cluster.send([part, X])
            self._trainers.append(
                cluster.submit(UserTrainer, sent[0], self.components, sent[1], *sizes, on=home)
            )

    def _run(self, epoch):
        """Return the pieces of the items after an epoch; write the users' arrays."""
        cluster, n_pieces = self._cluster, len(self._owners)
        pieces, arrays = self._sent_pieces(), user_arrays(self.model)
        bounds = list(zip(self._bounds[:-1], self._bounds[1:], strict=True))
        users = cluster.send([[array[a:b].copy() for array in arrays] for a, b in bounds])
        for number in range(self._n_rounds):
            trained = [
                cluster.submit(train_users, trainer, number, epoch, of_shard, *pieces, on=home)
                for trainer, of_shard, home in zip(self._trainers, users, self._homes, strict=True)
            ]
            *of_pieces, users = self._taken_apart(trained, self._homes, n_pieces + 1)
            pieces = self._merged_pieces(pieces, of_pieces)
        pieces, users = cluster.gather(pieces), cluster.gather(users)
        for (begin, end), values in zip(bounds, users, strict=True):
            for array, rows in zip(arrays, values, strict=True):
                array[begin:end] = rows
        return pieces


class MFRecommender(OnCluster, mf.MFRecommender):
    """Matrix factorization with ranking losses, trained on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.MFRecommender`, whose documentation
    describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, or a bag of sparse
    matrices: rows are users. Each user belongs to one shard and is trained on its worker, with
    the optimizer's state; items are merged piece by piece, several times in an epoch. The client
    holds the model and, as the plain estimator does to recommend what is new to a user, the
    interactions.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.MFRecommender`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer. Results are
        bitwise the same for any number of workers, but not of shards.
    n_merges : int, default=4
        Merges in an epoch.

    Attributes
    ----------
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.MFRecommender`.

    See Also
    --------
    freqfm.MFRecommender : The estimator on one machine.

    Notes
    -----
    Items are merged as tokens of :class:`freqfm.dask.FMClassifier` are, by how many of their
    interactions a shard has. Only the linear backbone is supported, and with several shards only
    fixed temperatures and samplers that are refreshed in each epoch. Recommendations are computed
    by the client, from matrices in memory.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     rows = da.from_array(X.toarray(), chunks=(50, -1))
    ...     model = MFRecommender(n_shards=2, max_iter=3, random_state=0).fit(rows)
    >>> model.recommend(users=[0])[0].shape
    (1, 10)
    """

    _local = mf.MFRecommender
    _parameter_constraints = {**mf.MFRecommender._parameter_constraints, **CONSTRAINTS}
    __init__ = with_options(mf.MFRecommender)

    def _train(self, X, reset, partial=False):
        """Fetch the interactions from the workers, and train."""
        if partial:
            raise AttributeError(
                "MFRecommender of freqfm.dask has no partial_fit; use to_local().partial_fit."
            )
        cluster = Cluster(self.client_)
        cluster.check_versions()
        parts = partitions_of("X", X)
        groups = groups_of(self.n_shards, cluster, len(parts))
        homes = cluster.homes([[parts[i] for i in group] for group in groups])
        futures = [
            cluster.collected(
                collect_interactions, int(group[0]), [parts[i] for i in group], on=home
            )
            for group, home in zip(groups, homes, strict=True)
        ]
        found = cluster.gather(futures)
        self.n_shards_ = len(groups)
        filled = [i for i, of_shard in enumerate(found) if of_shard.shape[0]]
        if not filled:
            raise ValueError("X has no rows in any of its partitions.")
        found, homes = [found[i] for i in filled], [homes[i] for i in filled]
        X = found[0] if len(found) == 1 else _shards._stack(found, "X")
        bounds = np.cumsum([0, *(of_shard.shape[0] for of_shard in found)])
        self._shards = cluster, homes, bounds
        try:
            return super()._train(X, reset)
        finally:
            vars(self).pop("_shards", None)

    def _resolve_components(self, X):
        components = super()._resolve_components(X)
        if not components.backbone.is_linear:
            raise ValueError(
                f"backbone={self.backbone!r} does not train on a cluster; use 'linear', or "
                f"freqfm.MFRecommender on one machine."
            )
        several = len(self._shards[1]) > 1
        temperature, sampler = components.temperature, components.sampler
        adapts = temperature is not None and (
            temperature.statistics_wanted or temperature.looks_at_vectors
        )
        refresh = getattr(sampler, "refresh", 1) > 1 or components.loss.k is not None
        if several and (adapts or refresh):
            name = "temperature" if adapts else "loss" if components.loss.k else "negative_sampler"
            raise ValueError(
                f"{name}={getattr(self, name)!r} keeps a state between rounds that shards do not "
                f"share; set n_shards=1, or choose another."
            )
        return components

    def _make_trainer(self, components, X, score, n_known):
        self._align_tables()
        return ShardedMFTrainer(self, components, X, score, n_known)
