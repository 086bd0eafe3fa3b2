"""The training of matrix factorization: terms of a loss, and sources of the vectors it compares.

:class:`MFTrainer` trains on pairs of a user and an item, whatever computes their vectors: a source
does, which is one of the classes at the end. Further terms of the loss are dislikes, a trainer of
pairs of their own before the likes of each epoch, and auxiliary terms, in each batch.
"""

import contextlib
import weakref
from functools import partial
from operator import itemgetter

import numpy as np

from freqfm import backends
from freqfm._dense import unit_rows
from freqfm._input.rows import concatenated_ranges, count_columns, take_rows
from freqfm._machine import single_threaded_blas
from freqfm._messages import shown
from freqfm.auxiliary import TermBatch, TermEpoch
from freqfm.backbones import Linear
from freqfm.backbones._base import backward, compute, forward, forward_all, occurrences
from freqfm.backends.base import (
    Batches,
    ContextGroup,
    Graph,
    RankingProblem,
    Snapshot,
    Terms,
    TrainedTable,
)
from freqfm.backends.support import check
from freqfm.estimators.recommenders.gradient import RecommenderTrainer
from freqfm.estimators.recommenders.interactions import Interactions, are_among, pair_numbers
from freqfm.formulas import codes
from freqfm.losses import BPR, PairwiseLoss, VectorLoss
from freqfm.metrics._hits import top_k
from freqfm.samplers import Uniform
from freqfm.samplers._base import check_draws, check_static, leave_out, recall_codewords

# The random streams of terms, beside those of ``MFTrainer``.
_TERMS = 7

_MARGINS = ("user_margins", "item_margins")

# Codes of samplers whose batches have lists of negatives that do not depend on the user.
_LISTED = (codes.NEGATIVES_SHARED, codes.NEGATIVES_SEPARATE)

# Purposes of random streams: the order of an epoch, and negatives. Kernels have a stream for each
# row of an epoch, numbered from 0 on in int32.
_ORDER, _DRAWS = 1 << 32, (1 << 32) + 1

# The random stream of the likes that dislikes are compared with.
_LIKES = 5

# Dislikes may weigh this many times as much as likes: an epoch has a pair for each unit of weight.
_LARGEST_RATIO = 100


class MFTrainer(RecommenderTrainer):
    """Epochs over the interactions of a recommender; for parameters see ``RecommenderTrainer``.

    Attributes
    ----------
    vectors : dict of str to ndarray
        Those that the loss compares: rows of tables, or what a source computes.
    margins : dict of str to ndarray
        The margins among the tables.
    divergence_hint : str
        A remedy if training diverges, besides a smaller learning rate.
    """

    _names = "user_factors_", "item_factors_"

    def __init__(self, model, components, interactions, known, score, n_threads):
        X, dislikes = interactions.X, interactions.dislikes_beside(known)
        if dislikes is not None:
            components = _beside_dislikes(components, X, dislikes)
        super().__init__(model, components, interactions, known, score, n_threads)
        self.vectors = {"user_factors": model.user_factors_, "item_factors": model.item_factors_}
        self.margins = {name: self.tables[name] for name in _MARGINS if name in self.tables}
        loss, counts = components.loss, known.item_counts
        self.divergence_hint = loss.divergence_hint
        sampler = components.sampler
        self._drawn = sampler is not None and sampler.negatives_code == codes.NEGATIVES_DRAWN
        self._batch_size = min(components.batch_size, X.nnz)
        self._has_equal_weights = X.data.min() == X.data.max()
        self._shares = None
        if loss.shrinkage:
            self._shares = (counts / (counts + loss.shrinkage)).astype(np.float32)
        if sampler is not None and not self._drawn:
            self._proposal = self._checked(sampler.proposal(counts))
            if not getattr(sampler, "corrected", True):
                self._proposal = self._proposal._replace(log_q=np.zeros(0, dtype=np.float32))
            if sampler.negatives_code in _LISTED and not self._sampler_draws:
                check_static(sampler, self._proposal)
                self._leave_out_new_items()
        shape = np.count_nonzero(np.diff(known.X.indptr)), X.shape[1], known.X.nnz
        constants = loss.constants(*shape)
        if "thresholds" in constants:
            # Training reads this array, which is updated between epochs if the loss has a ``k``.
            constants["thresholds"] = np.full(known.X.shape[0], np.nan, dtype=np.float32)
        self._thresholds = None if loss.k is None else constants["thresholds"]
        problem = self._problem(constants)
        # Without cycles of references, memory is free as soon as the task is.
        itself = weakref.proxy(self)
        for source in self._sources():
            self._source = source(itself)
            self._backend, self._trainer = self._source.start(problem)
            # With device="auto" the CPU trains what the GPU lacks.
            if self._backend.propagates or source is not GraphVectors:
                break
        self._before = [] if dislikes is None else [DislikesTrainer(itself, dislikes)]

    def _sources(self):
        """Return the sources that fit the components, those that the device prefers first."""
        components, backbone = self.components, self.components.backbone
        if components.auxiliary:
            return [BatchVectors]
        if backbone.is_linear:
            return [Tables]
        if backbone._has_context:
            return [QueryTables if backbone.item_features is None else BatchVectors]
        source = EpochVectors if backbone._changes_by_epoch else BatchVectors
        if backbone._is_mean_of_layers and backends.get(components.device).propagates:
            return [GraphVectors, source]
        return [source]

    def _contexts(self):
        return [self._trainer, self._source, *self._before]

    def _problem(self, constants):
        """Return the backend's description of this fit."""
        components, sampler = self.components, self.components.sampler
        temperature = components.temperature
        return RankingProblem(
            family=components.loss.family,
            constants=constants,
            cosine=bool(components.cosine),
            dropout=float(components.user_dropout),
            degrees=np.diff(self._known.X.indptr),
            known=(self._known.X.indptr[:-1], self._known.X.indptr[1:], self._known.X.indices),
            n_items=self.X.shape[1],
            width=int(self.model.n_components),
            batch_size=self._batch_size,
            block=components.block,
            negatives_code=-1 if sampler is None else int(sampler.negatives_code),
            n_negatives=components.n_negatives,
            rule=self._rule,
            seed=self._seed,
            corrected=bool(getattr(sampler, "corrected", True)),
            weighted=bool(getattr(sampler, "weighted", False)),
            include_positive=bool(components.include_positive),
            statistics_wanted=temperature is not None and bool(temperature.statistics_wanted),
            sampler=repr(self.model.negative_sampler),
            proposal_type=getattr(sampler, "proposal_type", None),
            formulas=components.optimizer.replacements() | components.loss.replacements(),
        )

    def _leave_out_new_items(self):
        """Draw no items that have features but no interactions.

        As negatives they would teach that items with their features are liked less.
        """
        backbone = self.components.backbone
        described = None if backbone.is_linear else backbone.described()
        if described is not None:
            new = described[1] & (self.model.item_counts_ == 0)
            self._proposal = leave_out(self._proposal, new)

    # One epoch.

    def run_epoch(self, epoch):
        """Train on every positive once, after other terms; return the mean loss."""
        before = sum(term.run_epoch(epoch) for term in self._before)
        # Before the data of the epoch are allocated: these three need memory only here.
        self._refresh_temperatures(epoch)
        if self._drawn and self._proposal_is_due(epoch):
            self._refresh_proposal(epoch)
        self._refresh_thresholds(epoch)
        trainer, source = self._trainer, self._source
        data = source.shuffled(self._shuffle(epoch))
        n_batches = len(data.batch_starts) - 1
        tables, *steps = self._epoch_of(n_batches)
        trainer.begin_epoch(epoch, data, source.begin_epoch(epoch, tables, *steps), *steps)
        # For a custom sampler.
        generator = np.random.default_rng([self._seed, epoch, 1])
        total = weight = 0.0
        n_draws, n_batches_per_call = 0, source.batches_per_call or trainer.batches_per_call
        for first in range(0, n_batches, n_batches_per_call):
            last = min(first + n_batches_per_call, n_batches)
            if n_draws >= self._draws_per_refresh:
                source.compute()
                self._refresh_proposal(epoch, first)
                n_draws = 0
            negatives = self._negatives(epoch, first, last, generator)
            part = source.train(data, first, last, self._proposal, negatives)
            n_draws += self._draws_of(data, first, last)
            total += part[0]
            weight += part[1]
        trainer.end_epoch()
        self._clip_margins()
        self.training.n_steps[:] += n_batches
        source.end_epoch()
        return before + total / weight

    def _clip_margins(self):
        """Clip margins to [0, 1], which momentum has moved on after the last batch with them."""
        margins = list(self.margins.values())
        if margins and self._rule.catch_up != codes.CATCH_UP_NONE:
            self._trainer.pull(margins)
            for table in margins:
                np.clip(table, 0, 1, out=table)
            self._trainer.push(margins)

    def _shuffle(self, epoch):
        """Return the positives in the order of an epoch: shuffled blocks, each of one user."""
        X = self.X
        permutation, stream = backends.get().permutation, self._stream(epoch, _ORDER)
        n_pairs, block = X.nnz, self._trainer.block
        if block is None:
            lengths = np.diff(X.indptr)
            users = np.flatnonzero(lengths).astype(np.int32)
            row_users = users[permutation(stream, len(users))]
            begins, lengths = X.indptr[row_users], lengths[row_users]
            row_starts = np.append(0, np.cumsum(lengths))
            take = itemgetter(concatenated_ranges(begins, lengths))
        else:
            order = permutation(stream, -(-n_pairs // block))
            take = partial(_take_blocks, order=order, block=block)
            users = take(_user_of_pairs(X))
            row_starts = _row_starts(users, order, block)
            row_users = users if block == 1 else users[row_starts[:-1]]
        # Before the other columns need memory.
        del users
        items = take(X.indices)
        # Equal weights, which may be on disk, need no order.
        weights = X.data if self._has_equal_weights else take(X.data)
        n_batches = -(-n_pairs // self._batch_size)
        bounds = np.linspace(0, n_pairs, n_batches + 1).astype(np.int64)
        batches = np.unique(np.searchsorted(row_starts[:-1], bounds))
        return Batches(
            items=items,
            weights=self._weighed(weights, items),
            row_starts=row_starts.astype(np.int64, copy=False),
            row_users=row_users,
            batch_starts=batches.astype(np.int64),
        )

    def _weighed(self, weights, items):
        """Return the weights of positives in the loss, by the weights of interactions."""
        if self._shares is None:
            return weights
        weighed = self._shares[items]
        weighed *= weights
        return weighed

    def _compared(self, *names):
        """Return vectors as the loss compares them."""
        vectors = [self.vectors[name] for name in names]
        self._trainer.pull(vectors)
        return [unit_rows(table) for table in vectors] if self.components.cosine else vectors

    def _vectors_for(self, strategy):
        return self._compared(*self.vectors) if strategy.looks_at_vectors else (None, None)

    @property
    def _draws_per_refresh(self):
        """After how many draws of an epoch a sampler is updated; infinity if only between them."""
        sampler = self.components.sampler
        within = self._drawn and sampler.refresh is None
        return sampler.draws_per_refresh(self.X.shape[1]) if within else np.inf

    def _draws_of(self, data, first, last):
        """Return how many negatives some batches draw by the user."""
        rows = data.batch_starts[[first, last]]
        # Losses of pairs have a list for each positive, others for each row.
        pairs = self.components.loss.family == "pairwise"
        begin, end = data.row_starts[rows] if pairs else rows
        return int(end - begin) * self.components.n_negatives

    def _refresh_proposal(self, epoch, first=0):
        """Update a sampler that depends on the query to the current item vectors."""
        time = [epoch, 3, first] if first else [epoch, 3]
        seed = int(np.random.default_rng([self._seed, *time]).integers(1 << 31))
        last = self._proposal or recall_codewords(self.training.codewords)
        sampler, counts = self.components.sampler, self._known.item_counts
        if self._quantizes:
            table = self.vectors["item_factors"]
            quantized = self._quantize(table, table.shape[1], seed, last)
            self._replace_proposal(sampler.proposal_of_codes(counts, *quantized))
            return
        (vectors,) = self._compared("item_factors")
        # The proposal may keep the array.
        vectors = vectors if self.components.cosine else vectors.copy()
        self._replace_proposal(sampler.proposal(counts, vectors, seed, last))

    def _refresh_thresholds(self, epoch):
        """Compute each user's score of rank k among all items, if the loss needs it."""
        loss = self.components.loss
        if loss.k is None or (epoch % loss.refresh and not np.isnan(self._thresholds[0])):
            return
        users, items = self._compared(*self.vectors)
        k = min(int(loss.k), len(items))
        _, scores = top_k(users, items, k, n_threads=self._n_threads)
        self._thresholds[:] = scores[:, -1]

    def weights(self):
        """Return the model's arrays, with the vectors that a backbone computes."""
        computed = [] if self.components.backbone.is_linear else self.vectors.values()
        return [*super().weights(), *computed]

    def extra(self):
        """Return the values that a checkpoint stores besides the estimator; see the base class."""
        return {**super().extra(), "thresholds": self._thresholds}

    def restore_extra(self, extra):
        """Restore the values that :meth:`extra` has returned."""
        super().restore_extra(extra)
        if self._thresholds is not None:
            thresholds = Snapshot([self._thresholds])
            thresholds.load([extra["thresholds"]])
            thresholds.restore()

    def _negatives(self, epoch, first, last, generator):
        """Return lists of negatives for some batches; None if these have no lists."""
        sampler, n_items, proposal = self.components.sampler, self.X.shape[1], self._proposal
        if sampler is None or sampler.negatives_code not in _LISTED:
            return None
        shape = self._trainer.lists_shape(first, last)
        if self._sampler_draws:
            negatives = sampler.draw(shape, n_items, proposal, generator)
            return check_draws(sampler, negatives, shape, n_items)
        first_list, _ = self._trainer.lists_shape(0, first)
        stream = self._stream(epoch, _DRAWS)
        return backends.get().draw_lists(proposal, stream, first_list, shape, self._n_threads)


class DislikesTrainer(MFTrainer):
    """A term of the loss: dislikes, each compared with a like of its user, drawn at random ::

        sum_uj |x_uj| loss(w s_ui, w s_uj)

    for dislikes j of weight |x_uj|, with the scores s that the loss compares and the user's inverse
    temperature w. The loss is that of the model if it is pairwise, else that of BPR, log(1 +
    exp(b - a)). So a dislike is a negative of its user whatever the loss, the sampler and the
    backbone are. It occurs in an epoch as often as its weight is the mean weight of likes, a
    fraction by chance: a batch averages, and an optimizer may divide by the size of gradients, so
    that a factor would not count. Both terms change the same arrays, and count steps together.

    Parameters
    ----------
    likes : MFTrainer
        Of the likes.
    X : csr_array of shape (n_users, n_items)
        The dislikes.

    Raises
    ------
    ValueError
        If likes are trained on a GPU, or dislikes outweigh them by far.
    """

    def __init__(self, likes, X):
        if likes._backend is not backends.get():
            check("GPU", "dislikes")
        self._share = X.data.sum(dtype=np.float64) / likes.X.data.sum(dtype=np.float64)
        if self._share > _LARGEST_RATIO:
            raise ValueError(
                f"The dislikes of X weigh {self._share:.3g} times as much as its likes, and are "
                f"trained on as often; divide their values, so that it is at most "
                f"{_LARGEST_RATIO} times."
            )
        self._likes, loss = likes, likes.components.loss
        components = likes.components._replace(
            loss=loss if isinstance(loss, PairwiseLoss) else BPR(),
            sampler=Uniform(),
            temperature=None,
            n_negatives=1,
            block=1,
            include_positive=False,
            margins=False,
            auxiliary=(),
        )
        arguments = components, Interactions(X), likes._known, None, likes._n_threads
        super().__init__(likes.model, *arguments)

    def _sources(self):
        return [type(self._likes._source)]

    def run_epoch(self, epoch):
        """Train on every dislike once; return the loss per weight of a like."""
        with _zeroed_parts(self.tables, self._likes.components.loss.n_parts):
            return self._share * super().run_epoch(epoch)

    def _shuffle(self, epoch):
        """Return the pairs of an epoch: rows of a like, whose lists of negatives are a dislike."""
        generator = np.random.default_rng([self._seed, epoch, _LIKES])
        likes, weights = self._known.X, self._weighed(self.X.data, self.X.indices)
        often = weights / likes.data.mean(dtype=np.float64)
        times = (often + generator.random(len(weights))).astype(np.int64)
        times[0] = max(times[0], 1)
        pairs = generator.permutation(np.repeat(np.arange(len(weights)), times))
        users, n_pairs = _user_of_pairs(self.X)[pairs], len(pairs)
        self._disliked = self.X.indices[pairs]
        n_batches = -(-n_pairs // self._batch_size)
        self._batch_starts = np.linspace(0, n_pairs, n_batches + 1).astype(np.int64)
        liked = generator.integers(likes.indptr[users], likes.indptr[users + 1])
        return Batches(
            items=likes.indices[liked],
            weights=np.ones(n_pairs, dtype=np.float32),
            row_starts=np.arange(n_pairs + 1),
            row_users=users,
            batch_starts=self._batch_starts,
        )

    def _negatives(self, epoch, first, last, generator):
        return self._disliked[self._batch_starts[first] : self._batch_starts[last], None]


def _beside_dislikes(components, X, dislikes):
    """Return the components of likes that are trained beside dislikes: on the CPU."""
    if components.n_falling_steps is not None:
        # Steps of dislikes are counted too.
        growth = 1 + dislikes.data.sum() / X.data.sum()
        n_steps = int(components.n_falling_steps * growth)
        components = components._replace(n_falling_steps=n_steps)
    return components._replace(device="cpu") if components.device == "auto" else components


@contextlib.contextmanager
def _zeroed_parts(tables, n_parts):
    """Let the last columns of tables, which are no coordinates, be 0, with gradients of 0."""
    parts = [table[:, -n_parts:] for table in tables.values()] if n_parts else []
    kept = [part.copy() for part in parts]
    for part in parts:
        part[:] = 0
    yield
    for part, values in zip(parts, kept, strict=True):
        part[:] = values


class Tables(ContextGroup):
    """The source of a linear backbone: vectors are rows of tables, which compiled code trains.

    Other sources derive from this one, and change what differs.

    Parameters
    ----------
    task : MFTrainer

    Attributes
    ----------
    direct : dict of str to ndarray
        The tables that compiled code reads even if a backbone computes vectors.
    """

    #: How many batches a call of ``train`` takes; None for as many as the trainer likes.
    batches_per_call = None

    def __init__(self, task):
        self._task, self._backbone = task, task.components.backbone
        self.direct = task.margins

    def start(self, problem):
        """Return the backend that trains a RankingProblem, and its trainer."""
        task = self._task
        return backends.start(task.components.device, "ranking_trainer", problem, task._n_threads)

    def shuffled(self, data):
        """Return the Batches of an epoch, whose rows are rows of X, as the trainer takes them."""
        return data

    def users_of(self, data, rows):
        """Return the rows of the users' table that some rows of an epoch read, each once."""
        return np.unique(data.row_users[rows])

    def begin_epoch(self, epoch, tables, first_step, corrections):
        """Return the TrainedTables that the trainer takes in an epoch, for those of the model."""
        return tables

    def train(self, data, *batches):
        """Train on some batches; return the sum of the loss, and that of the weights.

        Parameters
        ----------
        data : Batches
        first, last : int
        proposal : Proposal or None
        negatives : ndarray or None
            See ``RankingTrainer.train``.
        """
        task = self._task
        return task._trainer.train(*batches, task.inverse_temperatures, task.training.statistics)

    def compute(self):
        """Bring vectors up to date that training does not change itself."""

    def end_epoch(self):
        """Bring the model up to date after an epoch."""
        self.compute()


class EpochVectors(Tables):
    """A source whose vectors an epoch trains as if they were tables; the CPU's.

    After the epoch the tables move by as much as the vectors did, and the backbone computes the
    vectors again.
    """

    def begin_epoch(self, epoch, tables, first_step, corrections):
        """Return the tables with the vectors in place of the weights."""
        self._starts = {name: table.copy() for name, table in self._task.vectors.items()}
        return _with_weights(tables, self._task.vectors)

    def end_epoch(self):
        """Move the tables, and compute the vectors."""
        tables, vectors = self._task.tables, self._task.vectors
        for name, start in self._starts.items():
            tables[name] += vectors[name] - start
        self._starts = None
        forward_all(self._backbone, tables, *vectors.values())


class GraphVectors(Tables):
    """A source whose vectors the backend propagates, after each epoch or in each batch."""

    def start(self, problem):
        """Return the backend that trains, and its trainer."""
        task, self._by_batch = self._task, not self._backbone._changes_by_epoch
        others = task.vectors if self._by_batch else task.tables
        others = tuple(others[name] for name in task.vectors)
        layers = task._known.X, int(self._backbone.n_layers), self._by_batch
        graph = Graph(*layers, others, task.components.loss.replacements())
        return super().start(problem._replace(graph=graph))

    def begin_epoch(self, epoch, tables, first_step, corrections):
        """Return the tables, or the vectors in their place."""
        return tables if self._by_batch else _with_weights(tables, self._task.vectors)

    def compute(self):
        """Bring vectors up to date that the backend computes."""
        self._task._trainer.compute_vectors()


class QueryTables(Tables):
    """A source whose rows are queries, users in a context.

    ``X`` has a row for each query, ``known`` one for each user. The vector of a query is a sum of
    rows of the tables of its side, which are views of a single one: compiled code trains it.
    """

    def __init__(self, task):
        super().__init__(task)
        self._owners, self._terms, self._parts = self._backbone.terms()
        # Make tables and their states views of those of one table, one below the other.
        states = task.training.optimizer
        parts = [TrainedTable(task.tables[name], **states[name]) for name in self._parts]
        self._stacked = TrainedTable(*map(np.concatenate, zip(*parts, strict=True)))
        begin = 0
        for name, part in zip(self._parts, parts, strict=True):
            rows = slice(begin, begin + len(part.weights))
            views = TrainedTable(*(array[rows] for array in self._stacked))._asdict()
            task.tables[name], states[name] = views.pop("weights"), views
            begin = rows.stop
        task.model._set_tables(task.tables)
        self.direct = {"user_factors": self._stacked.weights}

    def start(self, problem):
        """Return the backend that trains, and its trainer."""
        degrees, n_terms = (np.diff(rows.indptr) for rows in (self._task.X, self._terms))
        longest = int(n_terms.max(initial=1))
        return super().start(problem._replace(degrees=degrees, n_terms=longest))

    def shuffled(self, data):
        """Return the Batches with the users of queries, and the terms of their sums."""
        terms = take_rows(self._terms, data.row_users)
        return data._replace(
            row_users=self._owners[data.row_users],
            terms=Terms(terms.indptr, terms.indices, terms.data),
        )

    def users_of(self, data, rows):
        """Return the rows of the table that some rows of an epoch are sums of, each once."""
        bounds = data.terms.starts[[rows.start, rows.stop]]
        return np.unique(data.terms.tokens[slice(*bounds)])

    def begin_epoch(self, epoch, tables, first_step, corrections):
        """Return the tables, with one in place of those that are views of it."""
        others = {name: tables[name] for name in tables.keys() - self._parts}
        return {**others, "user_factors": self._stacked}

    def compute(self):
        """Compute the vectors of users in the mean context, and of items."""
        forward_all(self._backbone, self._task.tables, *self._task.vectors.values())


class BatchVectors(Tables):
    """A source through any backbone, with auxiliary terms.

    In each batch the backbone computes the vectors of its users and items, the backend computes the
    gradient of the loss with respect to these, and the optimizer updates the tables by the gradient
    that the backbone computes from it. How often a row occurs in the batch follows from how often
    users and items do, if the backbone has ``occurrences``; otherwise it is once. What rows of X
    are, and the tables that compiled code reads beside the vectors, are those of another source.
    """

    batches_per_call = 1

    def __init__(self, task):
        super().__init__(task)
        if self._backbone.is_linear:
            self._backbone = Linear()
        self._rows_of_X = (QueryTables if self._backbone._has_context else Tables)(task)
        self.direct = self._rows_of_X.direct
        # The tables without margins, which are the estimator's.
        self._tables = {n: table for n, table in task.tables.items() if n not in _MARGINS}
        # Vectors, and what a batch computes for them: gradients, and how often each occurs.
        self._stores = {
            name: TrainedTable(
                weights.reshape(len(weights), -1),
                np.zeros(len(weights), dtype=np.float32),
                np.zeros(weights.shape, dtype=np.float32).reshape(len(weights), -1),
                np.zeros((0, 1), dtype=np.float32),
            )
            for name, weights in (task.vectors | self.direct).items()
        }
        self._auxiliary = self._pairs = None
        if task.components.auxiliary:
            self._auxiliary = AuxiliaryTerms(task, self._backbone, self._tables)

    def start(self, problem):
        """Return the backend that computes gradients of vectors, and its trainer."""
        task, components = self._task, self._task.components
        # The trainer only stores gradients; the optimizer's step follows.
        started = self._rows_of_X.start(problem.storing(components.loss.replacements()))
        rule = task._rule, task._n_threads, components.optimizer.replacements()
        self._stepped = backends.start(components.device, "table_trainer", *rule)[1]
        return started

    def _contexts(self):
        return [self._stepped]

    def shuffled(self, data):
        """Return the Batches of an epoch as the trainer takes them."""
        return self._rows_of_X.shuffled(data)

    def begin_epoch(self, epoch, tables, first_step, corrections):
        """Return what stores gradients, in place of the tables."""
        if self._auxiliary is not None:
            self._auxiliary.begin_epoch(epoch)
        tables = self._rows_of_X.begin_epoch(epoch, tables, first_step, corrections)
        self._stepped.begin_tables(tables, first_step, corrections)
        return self._stores

    def compute(self):
        """Compute all vectors."""
        forward_all(self._backbone, self._tables, *self._task.vectors.values())

    def train(self, data, first, last, proposal, negatives):
        """Train on a batch; see :class:`Tables`."""
        task, tables, batch = self._task, self._tables, None
        users, items = self._read_rows(data, first, negatives)
        if self._auxiliary is not None:
            batch = self._with_negatives(_term_batch(data, first, users, items), negatives)
        rows = {name: users if name.startswith("user") else items for name in self._stores}
        context = forward(self._backbone, tables, *self._computed(rows), *task.vectors.values())
        # Clear them: rows that the batch skips, such as known positives, are not written to.
        for name, of_batch in rows.items():
            self._stores[name].first[of_batch] = 0
            self._stores[name].per_row[of_batch] = 0
        if isinstance(task.components.loss, VectorLoss):
            # The loss is among the auxiliary terms.
            self._count(batch, rows, negatives)
            total, weight = 0.0, batch.pair_weights.sum(dtype=np.float64)
        else:
            total, weight = super().train(data, first, last, proposal, negatives)
        found = {name: self._stores[name].first[of_batch] for name, of_batch in rows.items()}
        counts = {name: self._stores[name].per_row[of_batch] for name, of_batch in rows.items()}
        value, of_views = 0.0, []
        if batch is not None:
            value, of_views = self._add_terms(batch, weight, rows, found, counts)
        gradients = backward(self._backbone, tables, context, *self._computed(found))
        occurring = occurrences(self._backbone, tables, context, *self._computed(counts))
        for of_view in of_views:
            _add_gradients(gradients, occurring, of_view)
        for name in self.direct:
            gradients[name] = rows[name], found[name]
            occurring[name] = rows[name], counts[name]
        for name, gradient in gradients.items():
            self._step(name, *gradient, occurring.get(name), first + 1, 1 / weight)
        # The next batch may read any row.
        self._stepped.catch_up_tables(first + 1)
        for table in task.margins.values():
            np.clip(table, 0, 1, out=table)
        return total + value, weight

    def _count(self, batch, rows, negatives):
        """Count how often a batch holds its users, and its items as positives or negatives."""
        drawn = np.searchsorted(batch.items, negatives)
        occurring = batch.pair_users, np.append(batch.pair_items, drawn)
        for name, places in zip(self._task.vectors, occurring, strict=True):
            found = np.bincount(places, minlength=len(rows[name]))
            self._stores[name].per_row[rows[name]] = found

    def _with_negatives(self, batch, negatives):
        """Return a batch for auxiliary terms with the negatives of each positive, if it has any."""
        components = self._task.components
        wanted = any(term.uses_negatives for term in components.auxiliary)
        if not wanted or negatives is None or components.loss.family != "pairwise":
            return batch
        if self._pairs is None:
            self._pairs = pair_numbers(self._task._known.X)
        of_users = batch.users.astype(np.int64) * self._task.X.shape[1]
        new = ~are_among(self._pairs, of_users[batch.pair_users][:, None] + negatives)
        found = np.searchsorted(batch.items, negatives[new])
        return batch._replace(negative_items=found, negative_pairs=np.nonzero(new)[0])

    def _add_terms(self, batch, weight, rows, found, counts):
        """Add the gradients of auxiliary terms to those of a batch's vectors, ``found``.

        A row with a gradient occurs. The value of the terms, times the weight of the batch, is
        returned, and their gradients with respect to tables.
        """
        names = self._task.vectors
        users, items = (self._stores[name].weights[rows[name]] for name in names)
        batch = batch._replace(user_vectors=users, item_vectors=items)
        value, of_vectors, of_tables = self._auxiliary.gradients(batch, weight)
        for name, gradients in zip(names, of_vectors, strict=True):
            found[name] += gradients
            np.maximum(counts[name], gradients.any(axis=1), out=counts[name])
        return value * weight, of_tables

    def _computed(self, of_rows):
        """Return, by side, what vectors that the backbone computes have; none of other vectors."""
        return [of_rows[n][:0] if n in self.direct else of_rows[n] for n in self._task.vectors]

    def _step(self, name, rows, values, counted, n, mean):
        """Move rows of a table in the ``n``-th step; those that do not occur stay as they are."""
        if not len(rows):
            return
        if counted is None:
            self._stepped.step_rows(name, rows, values, n)
            return
        counted_rows, counts = counted
        if not np.array_equal(rows, counted_rows):
            raise ValueError(
                f"occurrences of {type(self._backbone).__name__} must return the rows of "
                f"{name!r} that backward returns, in the same order."
            )
        seen = counts > 0
        if not seen.all():
            rows, values, counts = rows[seen], values[seen], counts[seen]
        self._stepped.step_rows(name, rows, values, n, counts, mean)

    def _read_rows(self, data, batch, negatives):
        """Return the users and the items that a batch reads, each once."""
        rows = slice(*data.batch_starts[batch : batch + 2])
        pairs = slice(*data.row_starts[[rows.start, rows.stop]])
        sampler = self._task.components.sampler
        if sampler is None or sampler.negatives_code == codes.NEGATIVES_IN_BATCH:
            items = np.unique(data.items[pairs])
        elif sampler.negatives_code in _LISTED:
            items = np.union1d(data.items[pairs], negatives)
        else:
            items = np.arange(self._task.X.shape[1])
        return self._rows_of_X.users_of(data, rows), items


def _with_weights(tables, weights):
    """Return TrainedTables with other weights, by name."""
    return tables | {name: tables[name]._replace(weights=array) for name, array in weights.items()}


def _term_batch(data, number, users, items):
    """Return a batch as auxiliary terms get it, without vectors."""
    rows = slice(*data.batch_starts[number : number + 2])
    starts = data.row_starts[rows.start : rows.stop + 1]
    pairs = slice(starts[0], starts[-1])
    return TermBatch(
        number=number,
        users=users,
        items=items,
        user_vectors=None,
        item_vectors=None,
        pair_users=np.searchsorted(users, np.repeat(data.row_users[rows], np.diff(starts))),
        pair_items=np.searchsorted(items, data.items[pairs]),
        pair_weights=data.weights[pairs],
    )


def _add_gradients(gradients, occurring, added):
    """Add gradients of tables to others, in place; rows with a gradient occur."""
    for name, (rows, values) in added.items():
        known_rows, known = gradients.get(name, (rows[:0], values[:0]))
        union = np.union1d(known_rows, rows)
        places, known_places = (np.searchsorted(union, part) for part in (rows, known_rows))
        total = np.zeros((len(union), values.shape[1]), dtype=np.float32)
        total[known_places] = known
        total[places] += values
        gradients[name] = union, total
        if name in occurring:
            counts = np.zeros(len(union))
            counts[known_places] = occurring[name][1]
            counts[places] = np.maximum(counts[places], values.any(axis=1))
            occurring[name] = union, counts


def _user_of_pairs(X):
    """Return the row of each entry of a matrix, int32."""
    return np.repeat(np.arange(X.shape[0], dtype=np.int32), np.diff(X.indptr))


def _shorter_block(n_values, order, block):
    """Return where the last of the blocks, which may be shorter, begins and ends in an order."""
    n_rest = n_values % block
    begin = block * (int(np.argmax(order)) if n_rest else len(order))
    return begin, begin + n_rest


def _take_blocks(values, order, block):
    """Return the blocks of ``values`` in the given order."""
    begin, end = _shorter_block(len(values), order, block)
    n_rest, place = end - begin, begin // block
    whole = values[: len(values) - n_rest].reshape(-1, block)
    taken = np.empty_like(values)
    taken[begin:end] = values[len(values) - n_rest :]
    # Without a check of the bounds, rows are copied as they are: a tenth of the time.
    for part, out in ((order[:place], taken[:begin]), (order[place + 1 :], taken[end:])):
        np.take(whole, part, axis=0, mode="clip", out=out.reshape(-1, block))
    return taken


def _row_starts(users, order, block):
    """Return where rows begin, with each block and each user, and where the last one ends."""
    n_pairs = len(users)
    if block == 1:
        return np.arange(n_pairs + 1)
    _, end = _shorter_block(n_pairs, order, block)
    begins_row = np.empty(n_pairs, dtype=bool)
    np.not_equal(users[1:], users[:-1], out=begins_row[1:])
    begins_row[:end:block] = begins_row[end::block] = True
    return np.append(np.flatnonzero(begins_row), n_pairs)


class AuxiliaryTerms:
    """The terms of a fit.

    Parameters
    ----------
    task : MFTrainer
    backbone : Backbone
        Bound to the interactions.
    tables : dict of str to ndarray
        Of the backbone.
    """

    def __init__(self, task, backbone, tables):
        self._task, self._backbone, self._tables = task, backbone, tables
        self._terms, X = task.components.auxiliary, task._known.X
        self._counts = np.diff(X.indptr), count_columns(X)

    def begin_epoch(self, epoch):
        """Compute the state and the views of each term."""
        self._epoch, self._states, self._views = epoch, [], []
        task = self._task
        data = task._known.X, *map(_read_only, task.vectors.values()), self._backbone, self._tables
        for number, term in enumerate(self._terms):
            given = TermEpoch(epoch, self._generator(number, 0), *data, task._n_threads)
            with single_threaded_blas():
                self._states.append(term.begin_epoch(given))
            given = given._replace(generator=self._generator(number, 1))
            self._views.append(list(term.views(given)))

    def _generator(self, number, place):
        return np.random.default_rng([self._task._seed, self._epoch, _TERMS, number, place])

    def gradients(self, batch, weight):
        """Return the value of all terms, and their gradients.

        Parameters
        ----------
        batch : TermBatch
            Without what belongs to a term.
        weight : float
            Of the batch, for optimizers that sum over it.

        Returns
        -------
        value : float
        of_vectors : list of ndarray
            Gradients with respect to the batch's users and items.
        of_tables : list of dict of str to (rows, values)
            Gradients with respect to tables, by views.
        """
        total, of_tables = 0.0, []
        scale = np.float32(1 if self._task.components.optimizer.average else weight)
        of_vectors = [np.zeros_like(batch.user_vectors), np.zeros_like(batch.item_vectors)]
        for number, term in enumerate(self._terms):
            own, contexts = self._of_term(number, batch)
            value, *found = _checked(term, own)
            total += value
            found = [scale * gradient for gradient in found]
            if not self._views[number]:
                for sum_of_terms, gradient in zip(of_vectors, found, strict=True):
                    sum_of_terms += gradient
            for view, context, *of_view in zip(self._views[number], contexts, *found, strict=False):
                by_name = backward(view, self._tables, context, *of_view)
                # Views of one graph may return the same memory.
                of_tables.append(
                    {n: (rows, values.copy()) for n, (rows, values) in by_name.items()}
                )
        return total, of_vectors, of_tables

    def _of_term(self, number, batch):
        """Return the batch as a term gets it, and the contexts of its views."""
        batch = batch._replace(
            epoch=self._epoch,
            generator=self._generator(number, 2 + batch.number),
            user_counts=self._counts[0],
            item_counts=self._counts[1],
            state=self._states[number],
        )
        vectors, contexts = batch.both_vectors, []
        if self._views[number]:
            rows, width = (batch.users, batch.items), batch.user_vectors.shape[1]
            views = (compute(view, self._tables, rows, width) for view in self._views[number])
            *vectors, contexts = zip(*views, strict=True)
            vectors = map(np.stack, vectors)
        users, items = map(_read_only, vectors)
        return batch._replace(user_vectors=users, item_vectors=items), contexts


def _read_only(array):
    """Return a view of an array that cannot be written to: other terms, or the model, read it."""
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(term, batch):
    """Return the value of a term and its gradients, checked; a gradient of None is zero.

    Raises
    ------
    ValueError
        If it returns anything else.
    """
    call = f"value_and_gradients of {type(term).__name__}"
    with single_threaded_blas():
        found = term.value_and_gradients(batch)
    fits = isinstance(found, tuple) and len(found) == 3 and np.ndim(found[0]) == 0
    if not fits or np.asarray(found[0]).dtype.kind not in "fiu":
        raise ValueError(
            f"{call} must return a number, gradients of users, and gradients of items; got "
            f"{shown(found)}."
        )
    value, *gradients = found
    checked = [float(value)]
    sides = zip(batch.both_vectors, gradients, ("users", "items"), strict=True)
    for vectors, gradient, side in sides:
        gradient = np.zeros_like(vectors) if gradient is None else np.asarray(gradient)
        if gradient.shape != vectors.shape or gradient.dtype.kind not in "fiu":
            raise ValueError(
                f"{call} must return gradients of {side} of the shape {vectors.shape}, or None; "
                f"got shape {gradient.shape} and type {gradient.dtype}."
            )
        checked.append(gradient.astype(vectors.dtype, copy=False))
    return checked
