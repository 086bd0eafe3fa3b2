"""Alternating least squares on a Dask cluster: blocks of users and of items stay on their workers.

The matrix is exchanged once, so that every shard has the rows of its users and those of a block of
items. In each half of an epoch all shards get the vectors of the other side, compute their Gram
matrix as one machine does, and solve their own rows.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._input.rows import stack_rows, with_one_index_type
from freqfm.backends.base import SOLVED_TOGETHER, LeastSquaresTrainer
from freqfm.backends.support import check
from freqfm.dask._base import OnCluster
from freqfm.dask._users import RecommenderOnCluster
from freqfm.estimators.recommenders import als
from freqfm.estimators.recommenders.base import remembering
from freqfm.estimators.recommenders.interactions import Interactions, among_empty_rows


def padded_rows(X, first, n_all):
    """Return rows between empty ones, so that they stand in their places of whole tiles.

    Parameters
    ----------
    X : csr_array
    first : int
        The number of the first row among all.
    n_all : int

    Returns
    -------
    before : int
        How many rows were put before.
    X : csr_array
    """
    before, end = first % SOLVED_TOGETHER, first + X.shape[0]
    n_rows = min(end + -end % SOLVED_TOGETHER, n_all) - first + before
    return before, among_empty_rows(X, before, n_rows)


def columns_of(X, bounds):
    """Return a matrix of each block of columns."""
    X = with_one_index_type(X)
    return [sparse.csr_array(X[:, begin:end]) for begin, end in pairwise(bounds)]


def transposed(*parts):
    """Return the rows of items, by matrices of some users each, in order."""
    return with_one_index_type(stack_rows(parts)).T.tocsr()


def solve_block(X, first, rows, fixed, n_all, epoch, *, components, n_threads):
    """Return the solutions of some rows of a table, their losses and their penalties.

    Parameters
    ----------
    X : csr_array
        Of these rows, see ``Objective.system``.
    first : int
        The number of the first row among all.
    rows : ndarray of shape (n, d)
        What conjugate gradients start from.
    fixed : ndarray of shape (n_fixed, d)
    n_all : int
        How many rows these are among.
    epoch : int
        Not used: see ``ShardedALSTrainer``.
    components : Components
    n_threads : int
    """
    before, X = padded_rows(X, first, n_all)
    solved = np.zeros((X.shape[0], rows.shape[1]), dtype=np.float32)
    own = slice(before, before + len(rows))
    solved[own] = rows
    system = components.objective.system(solved, X, fixed, components.n_steps)
    losses = backends.get().least_squares(*system, n_threads)
    return solved[own], losses[own], system[0].penalties[own]


def score_block(X, held_out, rows, items, model):
    """Return the validation score of some users, and how many these are; None if none are."""
    n_users = np.count_nonzero(np.diff(held_out.indptr))
    if not n_users:
        return None
    # The counts are of all users: the start of items without users tells nothing.
    interactions = Interactions.of(X)
    model = remembering(model, interactions)
    model.user_factors_, model.item_factors_ = rows, items
    return interactions.score_of(model, Interactions(held_out))(), n_users


class ShardedALSTrainer(als.ALSTrainer):
    """The alternation on a cluster, with the bits of one machine.

    Every task of an epoch gets its number, which is sent past the scheduler. So no task can be
    computed again after its epoch: if a worker dies with vectors, training continues from the
    client's model, instead of from the beginning.

    Parameters
    ----------
    model : ALSRecommender
        Of this module; initialised. Its factors are updated in place.
    components : Components
    X, held_out : ShardedInteractions
        To train on, and for validation; the latter may be None.
    """

    def __init__(self, model, components, X, held_out):
        self.model, self._held_out, self._X = model, held_out, X.signed
        self._total, self._cluster, self._homes = self._X.total(), X.cluster, X.homes
        n_threads = model.n_jobs or X.cluster.n_threads(len(X.homes))
        self._options = {"components": components, "n_threads": n_threads}
        # Items are shared out evenly by their interactions, in whole tiles.
        ends = np.cumsum(self._X.item_counts)
        shares = np.searchsorted(ends, ends[-1] * np.arange(1, len(X.homes)) / len(X.homes))
        shares = shares // SOLVED_TOGETHER * SOLVED_TOGETHER
        self._bounds = [self._X.bounds, np.array([0, *shares, len(ends)])]
        with X.cluster.watched():
            self._begin()

    @property
    def device(self):
        """Name of the device that trains."""
        return "CPU of Dask workers"

    def _begin(self):
        """Exchange the matrix, and send the vectors of all shards to them."""
        cluster, homes = self._cluster, self._homes
        split = cluster.submit_each(columns_of, self._X.parts, homes, self._bounds[1])
        blocks = map(tuple, cluster.unpacked(split, homes, len(homes)))
        self._parts = [self._X.parts, cluster.submit_each(transposed, blocks, homes)]
        tables = self.model.user_factors_, self.model.item_factors_
        self._vectors = [
            cluster.send(np.split(table, bounds[1:-1]))
            for table, bounds in zip(tables, self._bounds, strict=True)
        ]

    def _tables(self, side):
        """Return a future of all vectors of a side for each shard, the same for those of a home."""
        submit, blocks = self._cluster.submit, self._vectors[side]
        of_home = {home: submit(np.concatenate, blocks, on=home) for home in set(self._homes)}
        return [of_home[home] for home in self._homes]

    def _solve(self, side, epoch):
        """Solve the users, 0, or the items, 1; return the futures of losses and penalties."""
        cluster, homes, bounds = self._cluster, self._homes, self._bounds[side].tolist()
        *firsts, n_all = bounds
        data = self._parts[side], firsts, self._vectors[side], self._tables(1 - side)
        solve, shards = partial(solve_block, **self._options), zip(*data, strict=True)
        solved = cluster.submit_each(solve, shards, homes, n_all, epoch)
        self._vectors[side], *others = cluster.unpacked(solved, homes, 3)
        return others

    def _run(self, epoch):
        """Return the blocks of users, of items, the losses of users and the penalties of items."""
        (epoch,) = self._cluster.send([epoch])
        _, penalties = self._solve(1, epoch)
        losses, _ = self._solve(0, epoch)
        return self._cluster.gather([*self._vectors, losses, penalties])

    def run_epoch(self, epoch):
        """Solve all items, then all users; return the loss per weight of an interaction."""
        found = self._cluster.retried(lambda: self._run(epoch), self._begin)
        users, items, losses, penalties = map(np.concatenate, found)
        self.model.user_factors_[...], self.model.item_factors_[...] = users, items
        return float(LeastSquaresTrainer.loss(losses, penalties, items)) / self._total

    def _scores(self):
        """Return the results of ``score_block`` for each shard that has some."""
        model = OnCluster.to_local(self.model)
        model.user_factors_ = model.item_factors_ = model._history = None
        (model,) = self._cluster.send([model])
        data = self._X.parts, self._held_out.parts, self._vectors[0], self._tables(1)
        shards = zip(*data, strict=True)
        scores = self._cluster.submit_each(score_block, shards, self._homes, model)
        return [score for score in self._cluster.gather(scores) if score is not None]

    def validation_score(self):
        """Return the mean score over the users held out of all shards."""
        scores, weights = zip(*self._cluster.retried(self._scores, self._begin), strict=True)
        return float(scores[0] if len(scores) == 1 else np.average(scores, weights=weights))


@dataclass(eq=False, repr=False, kw_only=True)
class ALSRecommender(RecommenderOnCluster, als.ALSRecommender):
    """Matrix factorization by alternating least squares, trained on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.ALSRecommender`, whose documentation
    describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, a DataFrame, or a bag
    of sparse matrices: rows are users. The model is that of one machine, bit for bit, for any
    number of workers, shards and partitions.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.ALSRecommender`. ``device`` must be "cpu" or "auto", which is the
        same here.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer.

    Attributes
    ----------
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.ALSRecommender`.

    See Also
    --------
    freqfm.ALSRecommender : The estimator on one machine.

    Notes
    -----
    A default fit takes about 12 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M), two workers together, on a busy machine.

    Each user belongs to one shard, and each item. Before the first epoch the shards exchange their
    interactions, so that each has those of its items too. Then a shard gets the vectors of all
    items in an epoch, and of all users: 4 ``n_components`` (n_users + n_items) bytes for each
    worker, and the client as much. A worker needs memory for these once more, and for 16 bytes an
    interaction of its users and of its items.

    With early stopping the interactions held out differ with ``n_shards``; the validation score is
    the mean over at most 5,000 users of each shard. The interactions stay in the memory of the
    workers as long as the fitted estimator exists. ``recommend(users=...)`` fetches those of these
    users, and ``to_local`` those of all. They are not pickled: to store a model that recommends to
    users of ``fit``, store ``to_local()``.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import ALSRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     rows = da.from_array(X.toarray(), chunks=(50, -1))
    ...     model = ALSRecommender(n_shards=2, max_iter=3, random_state=0).fit(rows)
    ...     items, scores = model.recommend(users=[0])
    ...     lists = model.predict(rows).compute()  # of all rows, on the workers
    >>> items.shape, lists.shape
    ((1, 10), (200, 10))
    """

    _local = als.ALSRecommender

    def _resolve_components(self, X, known):
        if self.device not in ("cpu", "auto"):
            check("GPU", "ALSRecommender of freqfm.dask", given="freqfm.dask.ALSRecommender")
        return super()._resolve_components(X, known)

    def _make_trainer(self, components, interactions, known, score):
        return ShardedALSTrainer(self, components, interactions, score)
