"""Matrix factorization on a Dask cluster: users stay on their workers, items are merged."""

import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.rows import entries_where
from freqfm._messages import shown
from freqfm.backends.support import check
from freqfm.dask._base import Merged, OnCluster, Sharded
from freqfm.dask._shards import Layout, Round, RoundTrainer, seed_of
from freqfm.dask._users import RecommenderOnCluster
from freqfm.estimators.recommenders import mf
from freqfm.estimators.recommenders.gradient import RecommenderTrainer
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.state import entries_of, make_trainable
from freqfm.initializers import Spectral


def user_arrays(model):
    """Return the arrays that have a row for each user."""
    arrays = (entry.get(model) for entry in entries_of(model) if "users" in entry.axes)
    return [array for array in arrays if array.size]


def of_some_users(model, begin, end):
    """Return a copy of a model with some of its users."""
    found = copy.copy(model)
    found._history = None
    for entry in entries_of(model):
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
        self._n_validated = 0 if held_out is None else np.count_nonzero(np.diff(held_out.indptr))
        self._is_validated = self._n_validated > 0
        if self._is_validated:
            self._scorer = Interactions(X).score_of(model, Interactions(held_out))

    def _score(self):
        return self._scorer(), self._n_validated


def _parts_of_users(X, n_parts, seed):
    """Return a matrix of the same shape for each round, with the interactions of some users."""
    if n_parts == 1:
        return [X]
    part_of = np.random.default_rng([seed, 4]).permutation(X.shape[0]) % n_parts
    part_of = np.repeat(part_of, np.diff(X.indptr))
    return [entries_where(X, part_of == number) for number in range(n_parts)]


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
        RecommenderTrainer.__init__(self, model, components, X, None, None, None)
        self._held_out, self._thresholds = held_out, None
        self.divergence_hint = components.loss.divergence_hint
        self._start(X.cluster, X.homes, Layout(model, components.optimizer))

    def _start_merging(self, n_shards):
        super()._start_merging(n_shards)
        self._scale = self._longest

    def _sent_trainers(self):
        """Send each shard the model of its users."""
        cluster, bounds, n_shards = self._cluster, self.X.bounds, len(self._homes)
        sizes = self._n_rounds, cluster.n_threads(n_shards), self.X.nnz
        held_out = [None] * n_shards if self._held_out is None else self._held_out.parts
        model, trainers = OnCluster.to_local(self.model), []
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
class MFRecommender(Merged, RecommenderOnCluster, mf.MFRecommender):
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

    _local = mf.MFRecommender
    _learns_dislikes = False

    def _read(self, X, reset, *, dislikes=None):
        if dislikes is not None:
            given = "dislikes are not supported"
            check("Dask", "dislikes", given=given, advice="leave them out")
        if not self._given_backbone.is_linear:
            part = "Features, MLP, backbones of your own"
            check("Dask", part, given=self._shown("backbone"), advice="use 'linear'")
        return super()._read(X, reset)

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
        return ShardedMFTrainer(self, components, interactions, score)
