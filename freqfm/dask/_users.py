"""Users of a recommender on their workers: their interactions, and their training."""

import copy
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.rows import take_rows
from freqfm._input.validation import count_columns, kernel_csr
from freqfm.callbacks._storage import digest
from freqfm.dask._merge import Layout
from freqfm.dask._shards import Round, RoundTrainer, matrix_of, stack
from freqfm.estimators.recommenders import mf
from freqfm.estimators.recommenders.gradient import Known
from freqfm.estimators.recommenders.histories import InteractionHistory
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.tables import COUNTERS, MOMENTS, STEPS, WEIGHTS, ModelTable


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
            raise ValueError(
                f"X holds {X.data.min():g}, a dislike, and these are not supported on a cluster; "
                f"drop negative values, or use freqfm.MFRecommender on one machine."
            )
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


def item_tables(model):
    """Return the ModelTables of items, and of their optimizer, that all shards share."""
    found = [ModelTable(model._training.n_steps.reshape(1, 1, 1), STEPS, None)]
    for name, table in model._tables().items():
        if name.startswith("user"):
            continue
        state = model._training.optimizer[name]
        found += [
            ModelTable(table.reshape(1, len(table), -1), WEIGHTS),
            ModelTable(state["per_row"].reshape(1, -1, 1), COUNTERS),
        ]
        moments = [state[key] for key in ("first", "second") if state[key].size]
        found += [ModelTable(array.reshape(1, len(table), -1), MOMENTS) for array in moments]
    return found


def user_arrays(model):
    """Return the arrays that have a row for each user."""
    tables = [(name, table) for name, table in model._tables().items() if name.startswith("user")]
    optimizer, training = model._training.optimizer, model._training
    states = [array for name, _ in tables for array in optimizer[name].values() if len(array)]
    arrays = [*(table for _, table in tables), *states]
    return [*arrays, model._inverse_temperatures, training.temperature_state, training.statistics]


def of_some_users(model, begin, end):
    """Return a copy of a model with some of its users."""
    found, part, optimizer = copy.copy(model), slice(begin, end), {}
    found._history = None
    for name, table in model._tables().items():
        rows = part if name.startswith("user") else slice(None)
        setattr(found, f"{name}_", table[rows].copy())
        state = model._training.optimizer[name]
        optimizer[name] = {key: array[rows].copy() for key, array in state.items()}
    found._inverse_temperatures = model._inverse_temperatures[part].copy()
    training = model._training
    found._training = training._replace(
        optimizer=optimizer,
        n_steps=training.n_steps.copy(),
        temperature_state=training.temperature_state[part].copy(),
        statistics=training.statistics[part].copy(),
    )
    return found


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
        model._align_tables()
        made_from = X, held_out, model, components, n_rounds, n_threads, n_known
        layout = Layout(item_tables(model), components.optimizer)
        super().__init__(made_from, layout, user_arrays(model))
        # Temperatures depend on all interactions of these users, not on those of a round.
        known = Known(X, n_known, model.item_counts_)
        for part in _parts_of_users(X, n_rounds, model._seed):
            arguments = model, components, part, known, None, n_threads
            trainer = MFTrainer(*arguments) if part.nnz else None
            # Every item may be drawn as a negative.
            counts = np.bincount(part.indices, minlength=X.shape[1]) + part.nnz / X.shape[1]
            weight = float(part.data.sum(dtype=np.float64))
            self._rounds.append(Round(trainer, layout.counts(counts, float(part.nnz)), weight))
        self._n_validated = 0
        if held_out is not None:
            self._n_validated = np.count_nonzero(np.diff(held_out.indptr))
            self._scorer = model._scorer(X, held_out)

    def _is_validated(self):
        return self._n_validated > 0

    def _score(self):
        return self._scorer(), self._n_validated


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
        found.append(kernel_csr(part.data, part.indices, indptr, X.shape))
    return found


def ndcg_sums(X, y, model):
    """Return the sum of the NDCG of users with items to be found, and how many these are."""
    X = matrix_of(X)
    if not X.shape[0]:
        return 0.0, 0
    mean, n_users = model._score_users(X, None if y is None else matrix_of(y))
    return mean * n_users if n_users else 0.0, n_users
