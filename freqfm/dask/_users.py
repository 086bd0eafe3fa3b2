"""Interactions on the workers of a cluster, and what recommenders there have in common."""

import copy
from functools import partial
from itertools import cycle
from operator import attrgetter, matmul
from pathlib import Path
from typing import ClassVar, NamedTuple

import dask
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from freqfm._input.ids import as_list
from freqfm._input.rows import (
    column_sums,
    count_columns,
    row_sums,
    split_signs,
    stack_rows,
    take_rows,
)
from freqfm._input.validation import canonical_csr
from freqfm._messages import shown
from freqfm._paths import check_path
from freqfm.backends.support import check
from freqfm.callbacks._storage import digest
from freqfm.dask._base import OnCluster
from freqfm.dask._cluster import Cluster, aligned_partitions
from freqfm.dask._shards import matrix_of, seed_of, stack
from freqfm.estimators.recommenders import base
from freqfm.estimators.recommenders.interactions import (
    InteractionHistory,
    Interactions,
    among_empty_rows,
    split_interactions,
    summands,
    total_of,
    with_dislikes,
)
from freqfm.initializers import divided_by_degrees


class Users(NamedTuple):
    """The users of a shard."""

    X: sparse.csr_array  #: what they like, canonical
    dislikes: sparse.csr_array | None  #: with positive weights
    names: np.ndarray | None  #: of the items, if partitions are DataFrames


def collect_users(first, parts, dislikes, *, kind, learns_dislikes):
    """Return the users of some partitions, checked as the plain estimator does.

    Parameters
    ----------
    first : int
        Number of the first partition, for messages.
    parts : list
    dislikes : list or None
        The argument ``dislikes`` of ``fit``.
    kind : type
        The plain estimator.
    learns_dislikes : bool
        Whether it knows what to do with dislikes on a cluster.
    """
    X, model = stack([matrix_of(part) for part in parts], "X"), kind()
    if not X.shape[0]:
        return Users(sparse.csr_array(X.shape, dtype=np.float32), None, None)
    try:
        if dislikes is not None:
            dislikes = stack([matrix_of(part) for part in dislikes], "dislikes")
        X = base.signed_users(model, X, dislikes)
        if not learns_dislikes and X.nnz and X.data.min() < 0:
            given = f"X holds {X.data.min():g}, a dislike, and these are not supported"
            check("Dask", "dislikes", given=given, advice="drop negative values")
    except ValueError as error:
        last = first + len(parts) - 1
        raise type(error)(f"partitions {first} to {last} of X: {error}") from error
    return Users(*split_signs(X), getattr(model, "feature_names_in_", None))


def describe(users):
    """Return the number of users, of items, the items' names, and the number of dislikes."""
    return *users.X.shape, users.names, 0 if users.dislikes is None else users.dislikes.nnz


def count(X):
    """Return the number of interactions of each user, and of each item."""
    return np.diff(X.indptr), count_columns(X)


def product_of_transposed(X, table):
    """Return the product of a transposed matrix and a table."""
    return X.T @ table


def summands_of(X, first):
    """Return the ``summands`` of the sizes of a matrix's values."""
    return summands(abs(X.data), first)


def squares_times(X, of_items):
    """Return the product of the squares of a matrix's values and a vector."""
    return Interactions(X).squares_times(of_items)


def dislikes_of(users):
    """Return the dislikes of the users of a shard, a matrix."""
    return canonical_csr(0 * users.X) if users.dislikes is None else users.dislikes


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


def ndcg_sums(X, y, model):
    """Return the sum of the NDCG of users with items to be found, and how many these are."""
    X = matrix_of(X)
    if not X.shape[0]:
        return 0.0, 0
    mean, n_users = base.checked_score(model, X, None if y is None else matrix_of(y))
    return mean * n_users if n_users else 0.0, n_users


def write_shard(X, disliked, first, path, model, options):
    """Write the recommendations of the users of a shard, see ``recommend_to``.

    Parameters
    ----------
    X, disliked : csr_array, or None for the latter
        Of these users.
    first : int
        The number of the first user among all.
    path : Path
    model : estimator
        The plain one, without histories.
    options : dict
    """
    with_ids = hasattr(model, "estimator_")
    estimator = model.estimator_ if with_ids else model
    given = (X,) if disliked is None else (X, disliked)
    rows = [among_empty_rows(part, first, estimator._history.n_users) for part in given]
    estimator = base.remembering(estimator, Interactions(*rows))
    users = np.arange(first, first + X.shape[0])
    if with_ids:
        model = copy.copy(model)
        model.estimator_ = estimator
        model.recommend_to(path, model.user_ids_[users], **options)
    else:
        estimator.recommend_to(path, users, **options)


def are_for_all(users, options):
    """Return whether lists of all users are asked for, and options are the same for each."""
    given = (options.get(name) for name in ("candidates", "exclude"))
    of_each = (sparse.issparse(one) or np.ndim(as_list(one)) > 1 for one in given)
    return users is None and not any(of_each)


def write_all(recommender, model, path, options):
    """Write the recommendations of all users of a recommender, on the workers that have them.

    Parameters
    ----------
    recommender : RecommenderOnCluster
    model : estimator
        What recommends: the plain one, without histories.
    path : path-like
    options : dict
    """
    known, path = known_to(recommender, "recommend_to"), Path(check_path("path", path))
    cluster, n_shards = known.cluster, len(known.parts)
    disliked = known.disliked or [None] * n_shards
    folders = [path / f"shard-{i:05d}-of-{n_shards:05d}" for i in range(n_shards)]
    path.mkdir(parents=True, exist_ok=True)
    others = sorted({file for file in path.iterdir() if file.name[0] not in "._"} - {*folders})
    if others:
        raise ValueError(
            f"{path} holds {shown(others[0].name)}, which recommend_to with {n_shards} shards does "
            f"not write; give the path of a new folder."
        )

    def written():
        (sent,) = cluster.send([model])
        shards = zip(known.parts, disliked, known.bounds[:-1].tolist(), folders, strict=True)
        return cluster.gather(cluster.submit_each(write_shard, shards, known.homes, sent, options))

    cluster.retried(written)


class ShardedInteractions(NamedTuple):
    """Interactions of several shards of users, on their workers; the same as ``Interactions``.

    The client knows how many interactions users and items have, not which.
    """

    cluster: Cluster
    parts: list  #: of futures of csr_array, the likes of a shard's users
    homes: list  #: a worker for each
    lengths: list  #: of ndarray, the number of interactions of each user of a shard
    item_counts: np.ndarray  #: how many users have each item
    disliked: list | None = None  #: of futures of csr_array; None without dislikes

    dislikes = queries = None

    @classmethod
    def of(cls, cluster, parts, homes, disliked=None):
        """Return the interactions that futures of matrices hold."""
        counts = cluster.gather(cluster.submit_each(count, parts, homes))
        lengths, of_items = zip(*counts, strict=True)
        return cls(cluster, parts, homes, list(lengths), np.sum(of_items, axis=0), disliked)

    @property
    def bounds(self):
        """Where the users of each shard begin, and the last ones end."""
        return np.cumsum([0, *map(len, self.lengths)])

    @property
    def firsts(self):
        """The number of each shard's first interaction."""
        return np.cumsum([0, *(lengths.sum() for lengths in self.lengths[:-1])]).tolist()

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

    @property
    def signed(self):
        """The interactions with dislikes as negative values."""
        if self.disliked is None:
            return self
        pairs = zip(self.parts, self.disliked, strict=True)
        parts = self.cluster.submit_each(with_dislikes, pairs, self.homes)
        return self.of(self.cluster, parts, self.homes)

    def history(self, weighted):
        """Return what the client keeps."""
        return RemoteHistory.of(self)

    def shown(self):
        """Return what callbacks of scikit-learn are shown."""
        return {"X": None, "y": None}

    def hashed(self, X_val):
        """Return what a checkpoint hashes."""
        return {"X": self.signed.gathered(hash_interactions)}

    def each(self, function, tables=None):
        """Return the futures of a function of each shard's likes, and of a table for each, or all.

        Workers get an array for all once, whatever the number of their shards.
        """
        alike = isinstance(tables, np.ndarray)
        sent = [()] if tables is None else zip(self.cluster.send([tables] if alike else tables))
        shards, submit = zip(self.parts, cycle(sent), self.homes, strict=False), self.cluster.submit
        return [submit(function, X, *of, on=home) for X, of, home in shards]

    def gathered(self, function, tables=None):
        """Return the results of a function, see :meth:`each`."""
        cluster = self.cluster
        return cluster.retried(lambda: cluster.gather(self.each(function, tables)))

    # Sums, with the bits of those of one matrix.

    def total(self):
        """Return the sum of the sizes of weights."""
        return total_of(self.gathered(summands_of, self.firsts))

    def sums(self, axis):
        """Return the sums of weights over rows, axis 0, or over items, float64."""
        if axis == 1:
            return np.concatenate(self.gathered(row_sums))
        before = None
        for part, home in zip(self.parts, self.homes, strict=True):
            before = self.cluster.submit(column_sums, part, np.asarray, before, on=home)
        return self.cluster.gather(before)

    def squares_times(self, of_items):
        """Return the product of the matrix of squares of weights and a vector, float64."""
        return np.concatenate(self.gathered(squares_times, of_items))

    # For validation.

    def score_of(self, model, held_out):
        """Return the interactions held out: the trainer scores on the workers."""
        return held_out

    def validated_on(self, *given):
        """Raise: interactions to validate on would have to be on the same workers."""
        check("Dask", "X_val")

    def split(self, fraction, seed, dislikes):
        """Return the interactions to train on, and those held out, on the same workers."""
        if dislikes and self.disliked is not None:
            raise ValueError(
                "this scoring counts dislikes among recommendations, and none are held out on a "
                "cluster; score by another metric, such as 'ndcg'."
            )
        calls = [(part, fraction, seed_of(seed, i)) for i, part in enumerate(self.parts)]
        split = self.cluster.submit_each(split_interactions, calls, self.homes)
        kept, held_out = self.cluster.unpacked(split, self.homes, 2)
        return [
            self.of(self.cluster, kept, self.homes, self.disliked),
            self.of(self.cluster, held_out, self.homes),
        ]

    # What is brought to the client.

    def graph(self):
        """Return the matrix that a spectral start decomposes, as an operator."""
        scaled = self.cluster.submit_each(
            divided_by_degrees, self.parts, self.homes, self.item_counts
        )
        return _ShardedMatrix(self._replace(parts=scaled))

    def rows(self, users):
        """Return the interactions of some users, fetched from their workers."""
        bounds, cluster = self.bounds, self.cluster
        shard_of = np.searchsorted(bounds, users, side="right") - 1
        wanted = np.unique(shard_of)
        calls = [(self.parts[i], users[shard_of == i] - bounds[i]) for i in wanted]
        homes = [self.homes[i] for i in wanted]
        found = cluster.gather(cluster.submit_each(take_rows, calls, homes))
        if not found:
            return sparse.csr_array((0, self.shape[1]), dtype=np.float32)
        order = np.argsort(shard_of, kind="stable")
        return take_rows(stack_rows(found), np.argsort(order))

    def disliked_rows(self, users):
        """Return the dislikes of some users, with positive weights; None if there are none."""
        return None if self.disliked is None else self._replace(parts=self.disliked).rows(users)

    def local(self):
        """Return the interactions of all users, fetched from their workers."""
        parts = self.cluster.gather([self.parts, self.disliked])
        return Interactions(*(part and stack_rows(part) for part in parts))


class _ShardedMatrix(LinearOperator):
    """Products with a matrix whose rows are on workers, added up in the order of the shards."""

    def __init__(self, X):
        super().__init__(np.float32, X.shape)
        self._X = X

    def _matmat(self, table):
        return np.concatenate(self._X.gathered(matmul, table))

    def _rmatmat(self, table):
        tables = np.split(table, self._X.bounds[1:-1])
        return sum(self._X.gathered(product_of_transposed, tables))


class RecommenderOnCluster(OnCluster):
    """Base class of recommenders on a cluster; a mixin before the plain estimator.

    Users stay on their workers. The client has the model, and how many interactions users and items
    have.
    """

    _of_client: ClassVar = ("_interactions",)
    _takes_callables = False
    _learns_dislikes = True

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if issubclass(cls, base.BaseRecommender):
            cls._records = {**cls._records, "_history": RemoteHistory}

    def _read(self, X, reset, *, dislikes=None, adds=False):
        """Bring the users to their workers and check them there."""
        if not reset:
            self._check_trainable()
        parts = aligned_partitions({"X": X}, {"dislikes": dislikes}, n_axes=(2,))
        options = {"kind": self._local, "learns_dislikes": self._learns_dislikes}
        cluster, users, homes = self._collected(partial(collect_users, **options), parts)
        facts = cluster.gather(cluster.submit_each(describe, users, homes))
        filled = [i for i, (n_users, *_) in enumerate(facts) if n_users]
        if not filled:
            raise ValueError("X has no rows in any of its partitions.")
        self._take_features([facts[i][1:3] for i in filled], reset)
        users, homes = ([futures[i] for i in filled] for futures in (users, homes))
        matrices, disliked = cluster.submit_each(attrgetter("X"), users, homes), None
        if any(n_dislikes for *_, n_dislikes in facts):
            disliked = cluster.submit_each(dislikes_of, users, homes)
        self._interactions = ShardedInteractions.of(cluster, matrices, homes, disliked)
        base.refuse_empty(self._interactions)
        return self._interactions

    # Predictions.

    def to_local(self):
        """Return the plain estimator, with a copy of the model and all interactions of ``fit``.

        Returns
        -------
        estimator : estimator of :mod:`freqfm`
            It holds the interactions, in order not to recommend what users have.

        Raises
        ------
        RuntimeError
            If this estimator has been pickled: the interactions are on the workers.
        """
        model = super().to_local()
        if hasattr(self, "_history"):
            model = base.remembering(model, known_to(self, "to_local").local())
        return model

    def recommend_to(self, path, users=None, *, n_recommendations=None, **options):
        """Recommend to many users, and write their lists to a folder of Parquet files.

        As ``recommend_to`` of the plain estimator. The lists of all users are computed and written
        by the workers that have them, to a folder of files for each shard, so that ``path`` must be
        one that all workers and the client reach. Each worker gets a copy of the model.

        Parameters
        ----------
        path : str or path-like
            Folder; it is created if need be.
        users : array-like of shape (n_users,), default=None
            None is all users. Lists of some, and those with other ``candidates`` or ``exclude`` for
            each user, are computed by the client.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        **options : dict
            See ``recommend_to`` of the plain estimator.
        """
        options["n_recommendations"] = n_recommendations
        if not are_for_all(users, options):
            return super().recommend_to(path, users, **options)
        return write_all(self, OnCluster.to_local(self), path, options)

    def _histories_of(self, users):
        return known_to(self, "recommend(users=...)").rows(users)

    def _with_dislikes(self, X, users):
        return with_dislikes(X, known_to(self, "recommend(users=...)").disliked_rows(users))

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


def known_to(recommender, wanted):
    """Return the interactions on the workers, for what a message names."""
    if not hasattr(recommender, "_interactions"):
        raise RuntimeError(
            f"{wanted} needs the interactions of fit, which are on workers and were not pickled "
            f"with this {type(recommender).__name__}; fit it again, or call to_local() before it "
            f"is stored."
        )
    return recommender._interactions
