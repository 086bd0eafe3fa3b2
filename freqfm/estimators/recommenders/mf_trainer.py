"""The training task of matrix factorization: epochs of positives and their negatives."""

import numpy as np

from freqfm import backends
from freqfm._dense import unit_rows
from freqfm._input.rows import concatenated_ranges, take_rows
from freqfm.auxiliary import TermBatch
from freqfm.backbones._base import backward, forward, forward_all, occurrences
from freqfm.backends.base import (
    Batches,
    Exclusions,
    Graph,
    RankingProblem,
    Snapshot,
    Terms,
    TrainedTable,
)
from freqfm.estimators.recommenders.gradient import RecommenderTrainer
from freqfm.estimators.recommenders.histories import are_among, pair_numbers
from freqfm.estimators.recommenders.mf_auxiliary import AuxiliaryTerms
from freqfm.formulas import codes
from freqfm.losses import VectorLoss
from freqfm.samplers._base import check_draws, check_static, leave_out, recall_codewords

_MARGINS = ("user_margins", "item_margins")

# Codes of samplers whose batches have lists of negatives that do not depend on the user.
_LISTED = (codes.NEGATIVES_SHARED, codes.NEGATIVES_SEPARATE)

# Purposes of random streams: the order of an epoch, and negatives. Kernels have a stream for each
# row of an epoch, numbered from 0 on in int32.
_ORDER, _DRAWS = 1 << 32, (1 << 32) + 1


class MFTrainer(RecommenderTrainer):
    """Epochs over the interactions of a recommender; for parameters see ``RecommenderTrainer``.

    Attributes
    ----------
    divergence_hint : str
        A remedy if training diverges, besides a smaller learning rate.
    """

    _names = "user_factors_", "item_factors_"

    def __init__(self, model, components, X, known, score, n_threads):
        super().__init__(model, components, X, known, score, n_threads)
        # The vectors that the loss compares: rows of tables, or those that a backbone computes.
        self.vectors = {"user_factors": model.user_factors_, "item_factors": model.item_factors_}
        self._margins = {name: self.tables[name] for name in _MARGINS if name in self.tables}
        loss, counts = components.loss, known.item_counts
        self.divergence_hint = loss.divergence_hint
        sampler = components.sampler
        self._drawn = sampler is not None and sampler.negatives_code == codes.NEGATIVES_DRAWN
        self._batch_size = min(components.batch_size, X.nnz)
        self._weights = X.data
        self._user_of = np.repeat(np.arange(X.shape[0], dtype=np.int32), np.diff(X.indptr))
        if loss.shrinkage:
            shares = counts / (counts + loss.shrinkage)
            self._weights = X.data * shares.astype(np.float32)[X.indices]
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
        start = backends.start(components.device, "ranking_trainer", problem, n_threads)
        self._backend, self._trainer = start

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
        """Train on every positive once; return the mean loss."""
        # Before the data of the epoch are allocated: these three need memory only here.
        self._refresh_temperatures(epoch)
        if self._drawn and self._proposal_is_due(epoch):
            self._refresh_proposal(epoch)
        self._refresh_thresholds(epoch)
        data = self._shuffle(epoch)
        n_batches = len(data.batch_starts) - 1
        trainer = self._trainer
        trainer.begin_epoch(epoch, data, *self._epoch_of(n_batches))
        # For a custom sampler.
        generator = np.random.default_rng([self._seed, epoch, 1])
        total = weight = 0.0
        n_draws = 0
        for first in range(0, n_batches, self._batches_per_call):
            last = min(first + self._batches_per_call, n_batches)
            if n_draws >= self._draws_per_refresh:
                self._compute_vectors()
                self._refresh_proposal(epoch, first)
                n_draws = 0
            negatives = self._negatives(epoch, first, last, generator)
            batches = first, last, self._proposal, negatives
            self._begin_batches(data, *batches)
            part = self._train(*batches)
            n_draws += self._draws_of(data, first, last)
            total += part[0] + self._end_batches(first, part[1])
            weight += part[1]
        trainer.end_epoch()
        self._clip_margins()
        self.training.n_steps[:] += n_batches
        self._compute_vectors()
        return total / weight

    def _train(self, *batches):
        """Train on some batches; return the sum of the loss, and that of the weights."""
        temperatures = self.inverse_temperatures, self.training.statistics
        return self._trainer.train(*batches, *temperatures)

    def _begin_batches(self, data, first, last, proposal, negatives):
        """Prepare the vectors that some batches read."""

    def _end_batches(self, first, weight):
        """Use the gradients of a batch; return the value of auxiliary terms times its weight."""
        return 0.0

    def _clip_margins(self):
        """Clip margins to [0, 1], which momentum has moved on after the last batch with them."""
        margins = list(self._margins.values())
        if margins and self._rule.catch_up != codes.CATCH_UP_NONE:
            self._trainer.pull(margins)
            for table in margins:
                np.clip(table, 0, 1, out=table)
            self._trainer.push(margins)

    @property
    def _batches_per_call(self):
        return self._trainer.batches_per_call

    def _shuffle(self, epoch):
        """Return the positives in the order of an epoch: shuffled blocks, each of one user."""
        X = self.X
        permutation, stream = backends.get().permutation, self._stream(epoch, _ORDER)
        n_pairs, block = X.nnz, self._trainer.block
        columns = self._user_of, X.indices, self._weights
        if block is None:
            lengths = np.diff(X.indptr)
            users = np.flatnonzero(lengths)
            order = users[permutation(stream, len(users))]
            begins, lengths = X.indptr[order], lengths[order]
            row_starts = np.append(0, np.cumsum(lengths))
            pairs = concatenated_ranges(begins, lengths)
            users, items, weights = (column[pairs] for column in columns)
        else:
            order = permutation(stream, -(-n_pairs // block))
            users, items, weights = (_take_blocks(column, order, block) for column in columns)
            row_starts = _row_starts(users, order, block)
        n_batches = -(-n_pairs // self._batch_size)
        bounds = np.linspace(0, n_pairs, n_batches + 1).astype(np.int64)
        batches = np.unique(np.searchsorted(row_starts[:-1], bounds))
        return Batches(
            items=items,
            weights=weights,
            row_starts=row_starts.astype(np.int64, copy=False),
            row_users=users if block == 1 else users[row_starts[:-1]],
            batch_starts=batches.astype(np.int64),
        )

    def _compared(self, *names):
        """Return vectors as the loss compares them."""
        vectors = [self.vectors[name] for name in names]
        self._trainer.pull(vectors)
        return [unit_rows(of) for of in vectors] if self.components.cosine else vectors

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

    def _compute_vectors(self):
        """Bring vectors up to date that training does not change itself."""

    def _refresh_thresholds(self, epoch):
        """Compute each user's score of rank k among all items, if the loss needs it."""
        loss = self.components.loss
        if loss.k is None or (epoch % loss.refresh and not np.isnan(self._thresholds[0])):
            return
        users, items = self._compared(*self.vectors)
        none = np.zeros(0, dtype=np.int32)
        excluded = Exclusions(np.zeros(len(users) + 1, dtype=np.int64), none, none)
        k = min(int(loss.k), len(items))
        _, scores = backends.get().top_k(users, items, k, excluded, 0, self._n_threads)
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


class EpochwiseTrainer(MFTrainer):
    """Epochs of matrix factorization, after each of which the backbone computes the vectors again.

    The tables move by as much as the vectors did. For parameters see ``RecommenderTrainer``.
    """

    def _epoch_of(self, n_batches):
        tables, first_step, corrections = super()._epoch_of(n_batches)
        for name, vectors in self.vectors.items():
            tables[name] = tables[name]._replace(weights=vectors)
        return tables, first_step, corrections

    def run_epoch(self, epoch):
        """Train on every positive once; return the mean loss."""
        arrays = list(self.vectors.values())
        self._trainer.pull(arrays)
        before = {name: vectors.copy() for name, vectors in self.vectors.items()}
        loss = super().run_epoch(epoch)
        self._trainer.pull(arrays)
        for name, vectors in self.vectors.items():
            self.tables[name] += vectors - before[name]
        forward_all(self.components.backbone, self.tables, *arrays)
        self._trainer.push(arrays)
        return loss


class GraphTrainer(EpochwiseTrainer):
    """Epochs of tables whose vectors the backend propagates, after each epoch or in each batch.

    For parameters see ``RecommenderTrainer``.
    """

    def _problem(self, constants):
        backbone, loss = self.components.backbone, self.components.loss
        self._by_batch = not backbone._changes_by_epoch
        others = self.vectors if self._by_batch else self.tables
        others = tuple(others[name] for name in self.vectors)
        layers = self._known.X, int(backbone.n_layers), self._by_batch
        graph = Graph(*layers, others, loss.replacements())
        return super()._problem(constants)._replace(graph=graph)

    def _epoch_of(self, n_batches):
        kind = MFTrainer if self._by_batch else EpochwiseTrainer
        return kind._epoch_of(self, n_batches)

    def run_epoch(self, epoch):
        """Train on every positive once; return the mean loss."""
        return MFTrainer.run_epoch(self, epoch)

    def _compute_vectors(self):
        self._trainer.compute_vectors()


def of_graph(trainer, model, components, *args):
    """Return a GraphTrainer if the device of the fit trains it, else a ``trainer``."""
    if backends.get(components.device).propagates:
        task = GraphTrainer(model, components, *args)
        # With device="auto" the CPU trains what the GPU lacks.
        if task._backend.propagates:
            return task
    return trainer(model, components, *args)


class BackboneTrainer(MFTrainer):
    """Epochs through any backbone; for parameters see ``RecommenderTrainer``.

    In each batch the backbone computes the vectors of its users and items, the backend computes the
    gradient of the loss with respect to these, and the optimizer updates the tables by the gradient
    that the backbone computes from it. How often a row occurs in the batch follows from how often
    users and items do, if the backbone has ``occurrences``; otherwise it is once.
    """

    _batches_per_call = 1

    def __init__(self, model, components, X, known, score, n_threads):
        super().__init__(model, components, X, known, score, n_threads)
        formulas = components.optimizer.replacements()
        start = backends.start(components.device, "table_trainer", self._rule, n_threads, formulas)
        self._tables = start[1]
        # The tables without margins, which are the estimator's.
        self._of_backbone = {n: of for n, of in self.tables.items() if n not in _MARGINS}
        self._compares = self.vectors | self._read_directly()
        self._gradients = {
            name: np.zeros(weights.shape, dtype=np.float32).reshape(len(weights), -1)
            for name, weights in self._compares.items()
        }
        self._counters = {
            name: np.zeros(len(gradient), dtype=np.float32)
            for name, gradient in self._gradients.items()
        }

        self._auxiliary = self._pairs = None
        if components.auxiliary:
            given = self._of_backbone, self.vectors, known.X, self._seed, n_threads
            self._auxiliary = AuxiliaryTerms(components, *given)

    def _read_directly(self):
        """Return the tables that the kernels read, while the backbone computes other vectors."""
        return self._margins

    def _contexts(self):
        return [*super()._contexts(), self._tables]

    def _clip_margins(self):
        """Clip margins to [0, 1]; they are moved in the model's own arrays."""
        for table in self._margins.values():
            np.clip(table, 0, 1, out=table)

    def _problem(self, constants):
        # The backend only stores gradients here; the optimizer's step follows in ``_end_batches``.
        return super()._problem(constants).storing(self.components.loss.replacements())

    def _epoch_of(self, n_batches):
        tables, first_step, corrections = super()._epoch_of(n_batches)
        self._tables.begin_tables(tables, first_step, corrections)
        empty = np.zeros((0, 1), dtype=np.float32)
        stores = {
            name: TrainedTable(
                weights.reshape(len(weights), -1),
                self._counters[name],
                self._gradients[name],
                empty,
            )
            for name, weights in self._compares.items()
        }
        return stores, first_step, corrections

    def run_epoch(self, epoch):
        """Train on every positive once; return the mean loss."""
        if self._auxiliary is not None:
            self._auxiliary.begin_epoch(epoch)
        return super().run_epoch(epoch)

    def _compute_vectors(self):
        forward_all(self.components.backbone, self._of_backbone, *self.vectors.values())

    def _begin_batches(self, data, first, last, proposal, negatives):
        users, items = self._rows_of(data, first, negatives)
        if self._auxiliary is not None:
            self._batch = self._with_negatives(_term_batch(data, first, users, items), negatives)
        self._rows = {name: users if name.startswith("user") else items for name in self._gradients}
        rows = self._of_computed(self._rows).values()
        vectors = self.vectors.values()
        self._context = forward(self.components.backbone, self._of_backbone, *rows, *vectors)
        # Clear them: rows that the batch skips, such as known positives, are not written to.
        for name, rows in self._rows.items():
            self._gradients[name][rows] = 0
            self._counters[name][rows] = 0

    def _with_negatives(self, batch, negatives):
        """Return a batch for auxiliary terms with the negatives of each positive, if it has any."""
        wanted = any(term.uses_negatives for term in self.components.auxiliary)
        if not wanted or negatives is None or self.components.loss.family != "pairwise":
            return batch
        if self._pairs is None:
            self._pairs = pair_numbers(self._known.X)
        of_users = batch.users.astype(np.int64) * self.X.shape[1]
        new = ~are_among(self._pairs, of_users[batch.pair_users][:, None] + negatives)
        found = np.searchsorted(batch.items, negatives[new])
        return batch._replace(negative_items=found, negative_pairs=np.nonzero(new)[0])

    def _train(self, first, last, proposal, negatives):
        if not isinstance(self.components.loss, VectorLoss):
            return super()._train(first, last, proposal, negatives)
        # The loss is among the auxiliary terms.
        batch = self._batch
        drawn = np.searchsorted(batch.items, negatives)
        occurring = batch.pair_users, np.append(batch.pair_items, drawn)
        for name, places in zip(self.vectors, occurring, strict=True):
            rows = self._rows[name]
            self._counters[name][rows] = np.bincount(places, minlength=len(rows))
        return 0.0, batch.pair_weights.sum(dtype=np.float64)

    def _end_batches(self, first, weight):
        backbone = self.components.backbone
        found, counts = (
            {name: of[name][rows] for name, rows in self._rows.items()}
            for of in (self._gradients, self._counters)
        )
        value, of_views = self._add_terms(weight, found, counts)
        given = self._of_backbone, self._context
        gradients = backward(backbone, *given, *self._of_computed(found).values())
        occurring = occurrences(backbone, *given, *self._of_computed(counts).values())
        for of_view in of_views:
            _add_gradients(gradients, occurring, of_view)
        for name in self._read_directly():
            gradients[name] = self._rows[name], found[name]
            occurring[name] = self._rows[name], counts[name]
        for name, (rows, values) in gradients.items():
            self._step(name, rows, values, occurring.get(name), first + 1, 1 / weight)
        # The next batch may read any row.
        self._tables.catch_up_tables(first + 1)
        self._clip_margins()
        return value

    def _add_terms(self, weight, found, counts):
        """Add the gradients of auxiliary terms to those of a batch's vectors.

        A row with a gradient occurs. The value of the terms, times the weight of the batch, is
        returned, and their gradients with respect to tables.
        """
        if self._auxiliary is None:
            return 0.0, []
        vectors = {
            side: self._compares[name][self._rows[name]]
            for side, name in zip(("user_vectors", "item_vectors"), self.vectors, strict=True)
        }
        batch = self._batch._replace(**vectors)
        value, of_vectors, of_tables = self._auxiliary.gradients(batch, weight)
        for name, gradients in zip(self.vectors, of_vectors, strict=True):
            found[name] += gradients
            np.maximum(counts[name], gradients.any(axis=1), out=counts[name])
        return value * weight, of_tables

    def _of_computed(self, rows):
        """Return, by side, what vectors that the backbone computes have; none of other vectors."""
        direct = self._read_directly()
        return {name: rows[name][:0] if name in direct else rows[name] for name in self.vectors}

    def _step(self, name, rows, values, counted, n, mean):
        """Move rows of a table in the ``n``-th step; those that do not occur stay as they are."""
        if not len(rows):
            return
        if counted is None:
            self._tables.step_rows(name, rows, values, n)
            return
        counted_rows, counts = counted
        if not np.array_equal(rows, counted_rows):
            raise ValueError(
                f"occurrences of {type(self.components.backbone).__name__} must return the rows of "
                f"{name!r} that backward returns, in the same order."
            )
        seen = counts > 0
        if not seen.all():
            rows, values, counts = rows[seen], values[seen], counts[seen]
        self._tables.step_rows(name, rows, values, n, counts, mean)

    def _rows_of(self, data, batch, negatives):
        """Return the users and the items that a batch reads, each once."""
        rows = slice(*data.batch_starts[batch : batch + 2])
        pairs = slice(*data.row_starts[[rows.start, rows.stop]])
        sampler = self.components.sampler
        of_batch = sampler is None or sampler.negatives_code == codes.NEGATIVES_IN_BATCH
        if of_batch:
            items = np.unique(data.items[pairs])
        elif sampler.negatives_code in _LISTED:
            items = np.union1d(data.items[pairs], negatives)
        else:
            items = np.arange(self.X.shape[1])
        return self._users_of(data, rows), items

    def _users_of(self, data, rows):
        """Return the rows of the users' table that some rows of an epoch read, each once."""
        return np.unique(data.row_users[rows])


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
        places, known_places = (np.searchsorted(union, of) for of in (rows, known_rows))
        total = np.zeros((len(union), values.shape[1]), dtype=np.float32)
        total[known_places] = known
        total[places] += values
        gradients[name] = union, total
        if name in occurring:
            counts = np.zeros(len(union))
            counts[known_places] = occurring[name][1]
            counts[places] = np.maximum(counts[places], values.any(axis=1))
            occurring[name] = union, counts


class ContextTrainer(MFTrainer):
    """Epochs whose rows are queries, users in a context; for parameters see ``RecommenderTrainer``.

    ``X`` has a row for each query, ``known`` one for each user. The vector of a query is a sum of
    rows of the tables of its side, which are views of a single one: compiled code trains it.
    """

    def __init__(self, model, components, X, known, score, n_threads):
        self._owners, self._terms, self._parts = components.backbone.terms()
        super().__init__(model, components, X, known, score, n_threads)
        self._stack(self._parts)

    def _stack(self, names):
        """Make tables and their states views of those of one table, one below the other."""
        states = self.training.optimizer
        parts = [TrainedTable(self.tables[name], **states[name]) for name in names]
        self._stacked = TrainedTable(*map(np.concatenate, zip(*parts, strict=True)))
        begin = 0
        for name, part in zip(names, parts, strict=True):
            rows = slice(begin, begin + len(part.weights))
            views = TrainedTable(*(of[rows] for of in self._stacked))._asdict()
            self.tables[name], states[name] = views.pop("weights"), views
            begin = rows.stop
        self.model._set_tables(self.tables)

    def _problem(self, constants):
        degrees, n_terms = (np.diff(of.indptr) for of in (self.X, self._terms))
        longest = int(n_terms.max(initial=1))
        return super()._problem(constants)._replace(degrees=degrees, n_terms=longest)

    def _epoch_of(self, n_batches):
        tables, first_step, corrections = super()._epoch_of(n_batches)
        others = {name: tables[name] for name in tables.keys() - self._parts}
        return {**others, "user_factors": self._stacked}, first_step, corrections

    def _shuffle(self, epoch):
        data = super()._shuffle(epoch)
        terms = take_rows(self._terms, data.row_users)
        return data._replace(
            row_users=self._owners[data.row_users],
            terms=Terms(terms.indptr, terms.indices, terms.data),
        )

    def _compute_vectors(self):
        forward_all(self.components.backbone, self.tables, *self.vectors.values())


class DescribedContextTrainer(BackboneTrainer, ContextTrainer):
    """The same with features of items, whose vectors the backbone computes for each batch."""

    def _read_directly(self):
        return {"user_factors": self._stacked.weights}

    def _users_of(self, data, rows):
        bounds = data.terms.starts[[rows.start, rows.stop]]
        return np.unique(data.terms.tokens[slice(*bounds)])
