"""Matrix factorization on a Dask cluster: users stay on their workers, items are merged."""

import copy
from dataclasses import dataclass
from operator import attrgetter, itemgetter, matmul
from typing import NamedTuple

import dask
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from freqfm._input.rows import entries_where, stack_rows, take_rows
from freqfm._input.validation import count_columns
from freqfm._messages import shown
from freqfm.backends.support import check
from freqfm.callbacks._storage import digest
from freqfm.dask._base import OnCluster, Sharded
from freqfm.dask._cluster import Cluster, partitions_of
from freqfm.dask._shards import Layout, Round, RoundTrainer, matrix_of, seed_of, stack
from freqfm.estimators.recommenders import mf
from freqfm.estimators.recommenders.base import refuse_empty
from freqfm.estimators.recommenders.interactions import (
    InteractionHistory,
    Interactions,
    split_interactions,
)
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.state import make_trainable
from freqfm.initializers import Spectral
from freqfm.initializers._base import divided_by_degrees


class Users(NamedTuple):
    """The users of a shard."""

    X: sparse.csr_array  #: their interactions, canonical
    names: np.ndarray | None  #: of the items, if partitions are DataFrames


def collect_users(first, parts):
    """Return the users of some partitions, checked as the plain estimator does.

    Parameters
    ----------
    first : int
        Number of the first partition, for messages.
    parts : list
    """
    X, model = stack([matrix_of(part) for part in parts], "X"), mf.MFRecommender()
    if not X.shape[0]:
        return Users(sparse.csr_array(X.shape, dtype=np.float32), None)
    try:
        X = model._validate_history(X, reset=True)
        if X.nnz and X.data.min() < 0:
            given = f"X holds {X.data.min():g}, a dislike, and these are not supported"
            check("Dask", "dislikes", given=given, advice="drop negative values")
    except ValueError as error:
        last = first + len(parts) - 1
        raise type(error)(f"partitions {first} to {last} of X: {error}") from error
    return Users(X, getattr(model, "feature_names_in_", None))


def describe(users):
    """Return the number of users, of items, and the items' names."""
    return *users.X.shape, users.names


def count(X):
    """Return the number of interactions of each user, and of each item."""
    return np.diff(X.indptr), count_columns(X)


def product_of_transposed(X, table):
    """Return the product of a transposed matrix and a table."""
    return X.T @ table


def hash_interactions(X):
    """Return a hash of a matrix."""
    return digest([X.shape, X.indptr, X.indices, X.data], "X")


class RemoteHistory(InteractionHistory):
    """The number of items of each user; the items themselves are on the workers."""

    __slots__ = ()

    @classmethod
    def of(cls, X):
        """Return the history of interactions on workers."""
        return cls(X.indptr, np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))

    @property
    def n_interactions(self):
        """The number of interactions of all users."""
        return int(self.indptr[-1])

    def check(self, learned):
        """Raise unless the values are valid, as those that ``fit`` stores."""
        learned.array("_history.indptr", (None,), "iu", value=self.indptr)
        learned.require(len(self.indptr) > 0, "_history.indptr", "is empty")

    def check_all(self, learned, n_items):
        """Raise unless the numbers of items are well-formed."""
        learned.require((self.counts >= 0).all(), "_history.indptr", "falls")


class WorkerModel(mf.MFRecommender):
    """The plain estimator without histories, as workers use it."""

    _records = {**mf.MFRecommender._records, "_history": RemoteHistory}


def user_arrays(model):
    """Return the arrays that have a row for each user."""
    arrays = (entry.get(model) for entry in model._learned() if "users" in entry.axes)
    return [array for array in arrays if array.size]


def of_some_users(model, begin, end):
    """Return a copy of a model with some of its users."""
    found = copy.copy(model)
    found._history = None
    for entry in model._learned():
        rows = slice(begin, end) if "users" in entry.axes else slice(None)
        entry.set(found, entry.get(model)[rows].copy())
    return found


class Known(NamedTuple):
    """The interactions of some users, as ``Interactions``, with counts of all users."""

    X: sparse.csr_array
    nnz: int
    item_counts: np.ndarray


class UserTrainer(RoundTrainer):
    """A recommender that trains on the interactions of some users.

    Parameters
    ----------
    X : csr_array
        The interactions of these users to train on.
    held_out : csr_array or None
        Those for validation.
    model : MFRecommender
        With these users.
    components : Components
    n_rounds, n_threads : int
    n_known : int
        Number of interactions of all users.
    """

    def __init__(self, X, held_out, model, components, n_rounds, n_threads, n_known):
        model = copy.deepcopy(model)
        make_trainable(model, align=True)
        made_from = X, held_out, model, components, n_rounds, n_threads, n_known
        layout = Layout(model, components.optimizer)
        super().__init__(made_from, layout, user_arrays(model))
        # Temperatures depend on all interactions of these users, not on those of a round.
        known = Known(X, n_known, model.item_counts_)
        for part in _parts_of_users(X, n_rounds, model._seed):
            arguments = model, components, Interactions(part), known, None, n_threads
            trainer = MFTrainer(*arguments) if part.nnz else None
            # Every item may be drawn as a negative.
            counts = np.bincount(part.indices, minlength=X.shape[1]) + part.nnz / X.shape[1]
            weight = float(part.data.sum(dtype=np.float64))
            self._rounds.append(Round(trainer, layout.counts(counts, float(part.nnz)), weight))
        self._n_validated = 0
        if held_out is not None:
            self._n_validated = np.count_nonzero(np.diff(held_out.indptr))
            self._scorer = Interactions(X).score_of(model, Interactions(held_out))

    def _is_validated(self):
        return self._n_validated > 0

    def _score(self):
        return self._scorer(), self._n_validated


def _parts_of_users(X, n_parts, seed):
    """Return a matrix of the same shape for each round, with the interactions of some users."""
    if n_parts == 1:
        return [X]
    part_of = np.random.default_rng([seed, 4]).permutation(X.shape[0]) % n_parts
    part_of = np.repeat(part_of, np.diff(X.indptr))
    return [entries_where(X, part_of == number) for number in range(n_parts)]


def ndcg_sums(X, y, model):
    """Return the sum of the NDCG of users with items to be found, and how many these are."""
    X = matrix_of(X)
    if not X.shape[0]:
        return 0.0, 0
    mean, n_users = model._score_users(X, None if y is None else matrix_of(y))
    return mean * n_users if n_users else 0.0, n_users


class ShardedInteractions(NamedTuple):
    """Interactions of several shards of users, on their workers; the same as ``Interactions``.

    The client knows how many interactions users and items have, not which.
    """

    cluster: Cluster
    parts: list  #: of futures of csr_array, the rows of a shard's users
    homes: list  #: a worker for each
    lengths: list  #: of ndarray, the number of interactions of each user of a shard
    item_counts: np.ndarray  #: how many users have each item

    dislikes = queries = None

    @classmethod
    def of(cls, cluster, parts, homes):
        """Return the interactions that futures of matrices hold."""
        counts = cluster.gather(cluster.submit_each(count, parts, homes))
        lengths, of_items = zip(*counts, strict=True)
        return cls(cluster, parts, homes, list(lengths), np.sum(of_items, axis=0))

    @property
    def bounds(self):
        """Where the users of each shard begin, and the last ones end."""
        return np.cumsum([0, *map(len, self.lengths)])

    @property
    def indptr(self):
        """Where the interactions of each user would begin in a matrix of all."""
        return np.concatenate([[0], *self.lengths]).cumsum()

    @property
    def shape(self):
        """The number of users, and of items."""
        return int(self.bounds[-1]), len(self.item_counts)

    @property
    def nnz(self):
        """The number of interactions."""
        return int(self.item_counts.sum())

    @property
    def by_user(self):
        """The same: rows are users."""
        return self

    #: What an initializer gets, in place of a matrix.
    X = by_user

    def history(self, weighted):
        """Return what the client keeps."""
        return RemoteHistory.of(self)

    def shown(self):
        """Return what callbacks of scikit-learn are shown."""
        return {"X": None, "y": None}

    def hashed(self, X_val):
        """Return what a checkpoint hashes."""
        submit_each, gather = self.cluster.submit_each, self.cluster.gather
        return {"X": gather(submit_each(hash_interactions, self.parts, self.homes))}

    def score_of(self, model, held_out):
        """Return the interactions held out: the trainer scores on the workers."""
        return held_out

    def validated_on(self, *given):
        """Raise: interactions to validate on would have to be on the same workers."""
        check("Dask", "X_val")

    def graph(self):
        """Return the matrix that a spectral start decomposes, as an operator."""
        scaled = self.cluster.submit_each(
            divided_by_degrees, self.parts, self.homes, self.item_counts
        )
        return _ShardedMatrix(self._replace(parts=scaled))

    def split(self, fraction, seed, dislikes):
        """Return the interactions to train on, and those held out, on the same workers."""
        submit, submit_each = self.cluster.submit, self.cluster.submit_each
        split = [
            submit(split_interactions, part, fraction, seed_of(seed, i), on=home)
            for i, (part, home) in enumerate(zip(self.parts, self.homes, strict=True))
        ]
        return [
            self.of(self.cluster, submit_each(itemgetter(i), split, self.homes), self.homes)
            for i in range(2)
        ]

    def rows(self, users):
        """Return the interactions of some users, fetched from their workers."""
        bounds = self.bounds
        shard_of = np.searchsorted(bounds, users, side="right") - 1
        wanted, submit = np.unique(shard_of), self.cluster.submit
        found = self.cluster.gather(
            [
                submit(take_rows, self.parts[i], users[shard_of == i] - bounds[i], on=self.homes[i])
                for i in wanted
            ]
        )
        if not found:
            return sparse.csr_array((0, self.shape[1]), dtype=np.float32)
        order = np.argsort(shard_of, kind="stable")
        return take_rows(stack_rows(found), np.argsort(order))

    def all_rows(self):
        """Return the interactions of all users, fetched from their workers."""
        return stack_rows(self.cluster.gather(self.parts))


class _ShardedMatrix(LinearOperator):
    """Products with a matrix whose rows are on workers, added up in the order of the shards."""

    def __init__(self, X):
        super().__init__(np.float32, X.shape)
        self._X = X

    def _products(self, function, tables):
        cluster, parts, homes = self._X.cluster, self._X.parts, self._X.homes

        def gathered():
            sent = zip(parts, cluster.send(tables), homes, strict=True)
            return cluster.gather(
                [cluster.submit(function, part, table, on=home) for part, table, home in sent]
            )

        return cluster.retried(gathered)

    def _matmat(self, table):
        return np.concatenate(self._products(matmul, [table] * len(self._X.parts)))

    def _rmatmat(self, table):
        tables = np.split(table, self._X.bounds[1:-1])
        return sum(self._products(product_of_transposed, tables))


class ShardedMFTrainer(Sharded, MFTrainer):
    """Training of matrix factorization on a cluster; see ``Sharded``.

    Parameters
    ----------
    model : MFRecommender
        Of this module; initialised. Its arrays are updated in place.
    components : Components
    X, held_out : ShardedInteractions
        To train on, and for validation; the latter may be None.
    """

    # Steps of merges are the longest from the beginning, and means in the last part of the epochs,
    # see benchmarks/robustness/shards.py.
    _growth = 1.0
    _long_part = 0.8
    # Smaller rises are the noise of long steps.
    _least_rise = 0.1

    def __init__(self, model, components, X, held_out):
        self.model, self.components, self.X = model, components, X
        self.optimizer, self.divergence_hint = components.optimizer, components.loss.divergence_hint
        self.tables, self.training = model._tables(), model._training
        self.inverse_temperatures = model._inverse_temperatures
        self._held_out, self._proposal, self._thresholds = held_out, None, None
        layout = Layout(model, components.optimizer)
        self._start(X.cluster, X.homes, layout)

    def _start_merging(self, n_shards):
        super()._start_merging(n_shards)
        self._scale = self._longest

    def _sent_trainers(self):
        """Send each shard the model of its users."""
        cluster, bounds, n_shards = self._cluster, self.X.bounds, len(self._homes)
        sizes = self._n_rounds, cluster.n_threads(n_shards), self.X.nnz
        held_out = [None] * n_shards if self._held_out is None else self._held_out.parts
        model, trainers = self.model._copy_as(WorkerModel), []
        model.item_counts_ = self.X.item_counts
        for i, home in enumerate(self._homes):
            part = of_some_users(model, *bounds[i : i + 2])
            part._seed, part.verbose = seed_of(model._seed, i), 0
            data, (part,) = (self.X.parts[i], held_out[i]), cluster.send([part])
            arguments = UserTrainer, *data, part, self.components, *sizes
            trainers.append(cluster.submit(*arguments, on=home))
        return trainers

    def _scale_in(self, epoch):
        # With a factor of zero, an item's row is the mean over its occurrences.
        n_epochs = self.components.max_iter
        return self._scale if epoch % n_epochs < self._long_part * n_epochs else 0.0

    def _keep_own(self, of_shards):
        bounds = self.X.bounds
        for i, values in enumerate(of_shards):
            for array, rows in zip(user_arrays(self.model), values, strict=True):
                array[bounds[i] : bounds[i + 1]] = rows

    def _pooled_score(self, scores, n_users):
        return float(np.average(scores, weights=n_users))


@dataclass(eq=False, repr=False, kw_only=True)
class MFRecommender(OnCluster, mf.MFRecommender):
    """Matrix factorization with ranking losses, trained on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.MFRecommender`, whose documentation
    describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, a DataFrame, or a bag
    of sparse matrices: rows are users. Each user belongs to one shard, whose interactions stay on
    its worker; items are merged piece by piece, several times in an epoch. The client holds the
    model, and how many interactions users and items have.

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
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.MFRecommender`.

    See Also
    --------
    freqfm.MFRecommender : The estimator on one machine.

    Notes
    -----
    A default fit takes about 59 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M), two workers together.

    Items are merged as tokens of :class:`freqfm.dask.FMClassifier` are, by how many of their
    interactions a shard has, but with other steps: the multiple starts at the square root of the
    number of shards, at which the changes of shards that have an item equally often add up, and is
    halved when the loss rises by a tenth of its fall. In the last fifth of ``max_iter`` epochs an
    item's row is the mean over its interactions. Only the linear backbone is supported, and with
    several shards only fixed temperatures and samplers that are refreshed in each epoch.

    The interactions stay in the memory of the workers as long as the fitted estimator exists.
    ``recommend(users=...)`` fetches those of these users, in order not to recommend what they have,
    and ``to_local`` those of all. They are not pickled: to store a model that recommends to users
    of ``fit``, store ``to_local()``. With early stopping and several shards, the validation score
    is the mean over at most 5,000 users of each shard.

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
    ...     items, scores = model.recommend(users=[0])
    ...     lists = model.predict(rows).compute()  # of all rows, on the workers
    >>> items.shape, lists.shape
    ((1, 10), (200, 10))
    """

    _local, _on_workers = mf.MFRecommender, WorkerModel
    _of_client = ("_interactions",)
    _records = WorkerModel._records
    _takes_callables = False

    # Training.

    def _read(self, X, reset, *, dislikes=None):
        """Bring the users to their workers and check them there."""
        if dislikes is not None:
            given = "dislikes are not supported"
            check("Dask", "dislikes", given=given, advice="leave them out")
        if not self._given_backbone.is_linear:
            part = "Features, MLP, backbones of your own"
            check("Dask", part, given=self._shown("backbone"), advice="use 'linear'")
        if not reset:
            self._check_trainable()
        parts = {"X": partitions_of("X", X, (2,))}
        cluster, users, homes = self._collected(collect_users, parts)
        facts = cluster.gather(cluster.submit_each(describe, users, homes))
        filled = [i for i, (n_users, *_) in enumerate(facts) if n_users]
        if not filled:
            raise ValueError("X has no rows in any of its partitions.")
        self._take_features([facts[i][1:] for i in filled], reset)
        users, homes = ([futures[i] for i in filled] for futures in (users, homes))
        matrices = cluster.submit_each(attrgetter("X"), users, homes)
        self._interactions = ShardedInteractions.of(cluster, matrices, homes)
        refuse_empty(self._interactions)
        return self._interactions

    def _resolve_components(self, X, known):
        components, n_shards = super()._resolve_components(X, known), len(X.parts)
        if components.auxiliary:
            axis = "loss" if components.loss in components.auxiliary else "auxiliary"
            check("Dask", "auxiliary terms", given=self._shown(axis), advice="leave it out")
        # Of the interactions, a spectral start needs the products with their matrix alone.
        is_spectral = type(components.initializer).directions is Spectral.directions
        if components.initializer.needs_interactions and not is_spectral:
            check("Dask", "initializers that read interactions", given=self._shown("init"))
        temperature, sampler = components.temperature, components.sampler
        if temperature is not None and temperature.state_shape(int(self.n_components)) is not None:
            check("Dask", 'temperature="cu_tau"', given=self._shown("temperature"))
        adapts = temperature is not None and (
            temperature.statistics_wanted or temperature.looks_at_vectors
        )
        refresh = (getattr(sampler, "refresh", 1) or 1) > 1 or components.loss.k is not None
        if n_shards > 1 and adapts:
            check("Dask", "temperatures that change in a fit", given=self._shown("temperature"))
        if n_shards > 1 and refresh:
            axis = "loss" if components.loss.k else "negative_sampler"
            check("Dask", "parts refreshed after several epochs", given=self._shown(axis))
        return components

    def _shown(self, parameter):
        return f"{parameter}={shown(getattr(self, parameter))}"

    def _make_trainer(self, components, interactions, known, score):
        make_trainable(self, align=True)
        return ShardedMFTrainer(self, components, interactions, score)

    # Predictions.

    def to_local(self):
        """Return the plain estimator, with a copy of the model and all interactions of ``fit``.

        Returns
        -------
        estimator : freqfm.MFRecommender
            It holds the interactions, in order not to recommend what users have.

        Raises
        ------
        RuntimeError
            If this estimator has been pickled: the interactions are on the workers.
        """
        model = super().to_local()
        if hasattr(self, "_history"):
            X = self._fetchable("to_local").all_rows()
            model._history = InteractionHistory.of(X, self._keeps_weights)
        return model

    def _fetchable(self, wanted):
        """Return the interactions on the workers."""
        if not hasattr(self, "_interactions"):
            raise RuntimeError(
                f"{wanted} needs the interactions of fit, which are on workers and were not "
                f"pickled with this {type(self).__name__}; fit it again, or call to_local() before "
                f"it is stored."
            )
        return self._interactions

    def _histories_of(self, users):
        return self._fetchable("recommend(users=...)").rows(users)

    def _validate_history(self, X, reset=False):
        if dask.is_dask_collection(X):
            raise TypeError(
                "X is a Dask collection, of which this method would fetch all rows; predict(X) and "
                "transform(X) work on the workers. Otherwise pass X.compute()."
            )
        return super()._validate_history(X, reset=reset)

    def predict(self, X):
        """Return recommended items for users by their histories, lazily.

        Parameters
        ----------
        X : dask collection of shape (n_users, n_items)

        Returns
        -------
        items : dask.array.Array of shape (n_users, n_recommendations), int64
            Without the items of the histories, in descending order of scores; -1 where there are
            too few.
        """
        return self._blocks(X, "predict", np.zeros((0, int(self.n_recommendations)), np.int64))

    def transform(self, X):
        """Return the embeddings of users by their histories, lazily.

        Parameters
        ----------
        X : dask collection of shape (n_users, n_items)

        Returns
        -------
        embeddings : dask.array.Array of shape (n_users, n_components), float32
            See :meth:`freqfm.MFRecommender.transform`.
        """
        return self._blocks(X, "transform", np.zeros((0, int(self.n_components)), np.float32))

    def score(self, X, y=None):
        """Return the mean NDCG of recommendations, computed on the workers.

        Parameters
        ----------
        X : dask collection of shape (n_users, n_items)
            Histories.
        y : dask collection, default=None
            With the same partitions; see :meth:`freqfm.MFRecommender.score`.

        Returns
        -------
        ndcg : float
            Mean over users with at least one item to be found; nan if there are none.
        """
        sums = self._of_partitions(ndcg_sums, X, {"y": y}, n_axes=(1, 2))
        total, n_users = np.sum(sums, axis=0)
        return float(total / n_users) if n_users else float("nan")
