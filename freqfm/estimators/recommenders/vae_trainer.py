"""The training task of a variational autoencoder: epochs over users in batches."""

from typing import NamedTuple

import numpy as np

from freqfm._components import set_by_user
from freqfm._validation import take_rows
from freqfm.backends.cpu.tables import empty_occurrences
from freqfm.backends.cpu.training import TableTrainer
from freqfm.backends.cpu.vae import (
    N_CHUNKS,
    TILE,
    DrawnScratch,
    FullScratch,
    Histories,
    catch_up_rows,
    full_softmax,
    sampled_softmax,
    step_histories,
    step_table,
    sum_histories,
)
from freqfm.estimators.recommenders.histories import unit_rows
from freqfm.estimators.recommenders.trainer import RecommenderTrainer
from freqfm.estimators.recommenders.vae_network import (
    decode,
    decode_backward,
    encode,
    encode_backward,
    kl_divergence,
    kl_gradients,
    normalise,
    normalise_backward,
)
from freqfm.formulas import codes
from freqfm.formulas.sampling_laws import already_drawn, draw_scratch
from freqfm.samplers import MIDX, QuerySampler
from freqfm.samplers._base import check_draws, recall_codewords

# Tables with a row for every item, first among the model's; the others are dense layers.
OF_ITEMS = ("input_factors", "item_factors")


class History(NamedTuple):
    """What an encoder reads of the histories of a batch."""

    starts: np.ndarray  #: (B + 1,), int64
    items: np.ndarray  #: (n,), int32
    rows: np.ndarray  #: (n,), the user of each item, int32
    inputs: np.ndarray  #: (n,), float32


def _kept(generator, shape, dropout):
    """Return what is not dropped."""
    return generator.random(shape, dtype=np.float32) >= dropout


def unit_inputs(starts, values):
    """Return the values of histories divided by each history's length."""
    lengths = np.sqrt(np.maximum(np.add.reduceat(values**2, starts[:-1]), 1e-30))
    lengths[np.diff(starts) == 0] = 1
    return (values / np.repeat(lengths, np.diff(starts))).astype(np.float32)


class VAETrainer(RecommenderTrainer):
    """Epochs over users of a variational autoencoder; see ``RecommenderTrainer`` for parameters."""

    #: What may help if training diverges, apart from a smaller learning rate.
    divergence_hint = "scale the weights in X to about 1"

    def __init__(self, model, axes, X, score, n_threads, n_known):
        super().__init__(model, axes, X, score, n_threads, n_known)
        self._users = np.flatnonzero(np.diff(X.indptr))
        self._batch_size = min(axes.batch_size, len(self._users))
        # The last number of an item's vector is its bias.
        self._n_unit = model.item_factors_.shape[1] - 1 if axes.cosine else 0
        self._trainer = TableTrainer(self._rule, n_threads, self._formulas())
        self._team = self._trainer.team
        self._allocate()

    def _formulas(self):
        """Return users' own formulas that kernels are run with."""
        return self.optimizer.replacements() | (already_drawn() if self._draws else {})

    @property
    def _draws(self):
        """Whether a user's sampler says how to draw."""
        return "draw" in set_by_user(self.axes.sampler)

    def _draw(self, n_queries, step):
        """Let a user's sampler draw the negatives of a batch."""
        sampler, scratch, log_q = self.axes.sampler, self._scratch, self._proposal.log_q
        shape, n_items = (n_queries, self.axes.n_negatives), self.X.shape[1]
        generator = np.random.default_rng([self.model._seed, step, 4])
        items = sampler.draw(shape, n_items, self._proposal, generator)
        scratch.ids[:n_queries] = check_draws(sampler, items, shape, n_items)
        scratch.log_q[:n_queries] = log_q[scratch.ids[:n_queries]] if len(log_q) else 0

    def _allocate(self):
        size, n_queries = self._n_threads, self._batch_size * int(self.model.n_samples)
        width = self.model.item_factors_.shape[1]
        lengths = np.diff(self.X.indptr)
        most = int(np.sort(lengths)[-self._batch_size :].sum())

        def floats(*shape):
            return np.zeros(shape, dtype=np.float32)

        self._occurrences = empty_occurrences(most, self.model.input_factors_.shape[1], size)
        if self.axes.full:
            scores = floats(size, n_queries, TILE)
            self._scratch = FullScratch(
                scores=scores,
                bits=scores.view(np.int32),
                chunk_sums=np.zeros((N_CHUNKS, n_queries, 2)),
                log_sums=floats(n_queries),
                scaled=floats(n_queries, width),
                chunk_gradients=floats(N_CHUNKS, n_queries, width),
                chunk_scores=np.zeros((N_CHUNKS, n_queries)),
                units=floats(size, TILE if self.axes.cosine else 0, width),
                tile_gradients=floats(size, TILE, width),
                cursors=np.zeros((size, n_queries), dtype=np.int64),
            )
            self._drawn = None
        else:
            n = self.axes.n_negatives
            n_drawn = most * int(self.model.n_samples) + n_queries * n
            if n_drawn > np.iinfo(np.int32).max:
                raise ValueError(
                    f"batch_size={self._batch_size} with n_negatives={n} makes {n_drawn} scores a "
                    f"batch; choose a smaller batch_size."
                )
            self._scratch = None
            self._drawn = empty_occurrences(n_drawn, width, size)

    def _drawn_scratch(self):
        size, n = self._n_threads, self.axes.n_negatives
        n_queries = self._batch_size * int(self.model.n_samples)
        width = self.model.item_factors_.shape[1]
        numbers, sums = draw_scratch(self._proposal, size)
        return DrawnScratch(
            ids=np.zeros((n_queries, n), dtype=np.int32),
            log_q=np.zeros((n_queries, n), dtype=np.float32),
            positive_log_q=np.zeros(len(self._drawn.tokens) - n_queries * n, dtype=np.float32),
            vectors=np.zeros((size * (n + 1), width), dtype=np.float32),
            scores=np.zeros((size, n), dtype=np.float32),
            multiples=np.zeros((size, n), dtype=np.float32),
            numbers=numbers,
            sums=sums,
        )

    def run_epoch(self, epoch):
        """Train on every user once; return the mean loss of an interaction."""
        model = self.model
        generator = np.random.default_rng([model._seed, epoch])
        order = generator.permutation(self._users)
        n_batches = -(-len(order) // self._batch_size)
        self._trainer.begin_tables(*self._epoch_of(n_batches))
        tables = list(self._trainer.tables.values())
        self._refresh_temperatures(epoch)
        self._refresh_proposal(epoch)
        kl_weight = self.axes.kl_weight * min(1.0, (epoch + 1) / model.kl_warm_up)
        total = weight = 0.0
        # What overflows is found at the end of the epoch, and said in words.
        with np.errstate(over="ignore", invalid="ignore"):
            for b, users in enumerate(np.array_split(order, n_batches)):
                step = self._trainer.step(b + 1)
                loss, of_batch = self._train(users, generator, kl_weight, tables, step)
                total += loss
                weight += of_batch
        self._trainer.catch_up_tables(n_batches)
        model._n_steps += n_batches
        return total / weight

    def _vectors_for(self, strategy):
        if not strategy.looks_at_vectors:
            return None, None
        mean = self.model._mean(self.X.indptr, self.X.indices, self.X.data)
        return unit_rows(self.model._decode(mean)), unit_rows(self.model.item_factors_[:, :-1])

    def _refresh_proposal(self, epoch):
        sampler, model = self.axes.sampler, self.model
        if self.axes.full:
            return
        if not isinstance(sampler, QuerySampler):
            if self._proposal is None:
                proposal = sampler.proposal(self._counts)._replace(n_items=self.X.shape[1])
                self._proposal = self._checked(proposal, model.item_factors_.shape[1])
        elif self._proposal is None or epoch % sampler.refresh == 0:
            proposal = self._propose(model._seed + epoch)
            self._proposal = self._checked(proposal, model.item_factors_.shape[1])
            model._codewords = self._proposal.codewords
        self._scratch = self._drawn_scratch()

    def _propose(self, seed):
        """Return what negatives are drawn from, for the present vectors of items."""
        sampler, items = self.axes.sampler, self.model._item_vectors()
        last = self._proposal or recall_codewords(self.model._codewords)
        if not isinstance(sampler, MIDX) or sampler.variant == "exact":
            return sampler.proposal(self._counts, items.copy(), seed, last)
        # Biases are known exactly; to quantize them would cost codewords.
        if last is not None:
            last = last._replace(codewords=last.codewords[:, :-1])
        vectors = np.ascontiguousarray(items[:, :-1])
        proposal = sampler.proposal(self._counts, vectors, seed, last, offsets=items[:, -1])
        codewords = proposal.codewords
        return proposal._replace(
            codewords=np.column_stack([codewords, np.zeros(len(codewords), dtype=np.float32)])
        )

    def _train(self, users, generator, kl_weight, tables, step):
        """Train on one batch of users; return its loss and the weight of its interactions."""
        model, activation = self.model, self.model.activation
        own = take_rows(self.X, users)
        n_users, n_samples = len(users), int(model.n_samples)
        layers, inverse = model._layers(), model._inverse_temperatures[0, 0]

        # Forward.
        history = self._drop_items(own, generator)
        pooled = self._sum_inputs(history, tables[0], step)
        mask = None
        if model.dropout and model.dropout_on == "hidden":
            mask = _kept(generator, pooled.shape, model.dropout) / np.float32(1 - model.dropout)
            pooled *= mask
        posterior = encode(layers, pooled, activation)
        deviation = np.exp(0.5 * posterior.log_variance)
        noise = generator.standard_normal((n_samples, *deviation.shape), dtype=np.float32)
        z = (posterior.mean + noise * deviation).reshape(n_samples * n_users, -1)
        queries, decoded = decode(layers, z, activation)
        if self.axes.cosine:
            queries, lengths = normalise(queries)

        scale = np.float32(1 / (n_users * n_samples) if self.optimizer.average else 1 / n_samples)
        by_queries, losses, weights = self._softmax(
            inverse * queries, own, n_samples, scale, tables[1], step
        )
        weight = float(weights.sum(dtype=np.float64)) / n_samples

        # Backward.
        if self.axes.temperature.statistics_wanted:
            slope = np.vdot(by_queries, queries) / (scale * n_samples)
            model._statistics[0, 1:] += weight, slope
        by_queries *= inverse
        if self.axes.cosine:
            by_queries = normalise_backward(queries, lengths, by_queries)
        by_decoder, by_z = decode_backward(layers, decoded, by_queries, activation)
        by_z = by_z.reshape(noise.shape)
        by_mean = by_z.sum(axis=0)
        by_log_variance = 0.5 * deviation * (by_z * noise).sum(axis=0)
        if kl_weight:
            share = np.float32(kl_weight * (scale * n_samples))
            for into, gradient in zip(
                (by_mean, by_log_variance), kl_gradients(posterior), strict=True
            ):
                into += share * gradient
        by_encoder, by_pooled = encode_backward(
            layers, posterior, by_mean, by_log_variance, activation
        )
        if mask is not None:
            by_pooled *= mask

        self._step_inputs(history, by_pooled, scale, tables[0], step)
        for table, gradient in zip(tables[2:], [*by_encoder, *by_decoder], strict=True):
            gradient = np.ascontiguousarray(gradient, dtype=np.float32)
            self._team.run(step_table, gradient, table, step, n_users)
        loss = losses.sum() / n_samples + kl_weight * kl_divergence(posterior).sum()
        return float(loss), weight

    def _drop_items(self, own, generator):
        """Return what the encoder is to read of the users' histories."""
        starts, items, inputs = own.indptr, own.indices, unit_inputs(own.indptr, own.data)
        rows = np.repeat(np.arange(own.shape[0], dtype=np.int32), np.diff(starts))
        dropout = self.model.dropout
        if dropout and self.model.dropout_on == "input":
            # Dropped items are no occurrences: their rows stay as they are.
            kept = _kept(generator, len(items), dropout)
            items, rows, inputs = items[kept], rows[kept], inputs[kept] / np.float32(1 - dropout)
            starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        return History(starts, items, rows, inputs)

    def _sum_inputs(self, history, table, step):
        """Return the sums of the vectors of the users' items, (B, h)."""
        starts, items, _, inputs = history
        if self._rule.catch_up != codes.CATCH_UP_NONE:
            self._team.run(catch_up_rows, items, table, step, self._occurrences.gradients)
        pooled = np.empty((len(starts) - 1, table.weights.shape[1]), dtype=np.float32)
        self._team.run(sum_histories, starts, items, inputs, table.weights, pooled)
        return pooled

    def _step_inputs(self, history, gradients, scale, table, step):
        """Move the vectors of the users' items along the gradients by their sums."""
        n = len(history.items)
        self._occurrences.tokens[:n] = history.items
        self._occurrences.rows[:n] = history.rows
        self._occurrences.multiples[:n] = history.inputs
        self._team.run(
            step_histories, n, self._occurrences, np.ascontiguousarray(gradients), table, step,
            scale,
        )  # fmt: skip

    def _softmax(self, queries, own, n_samples, scale, table, step):
        """Train the items; return the gradient by the queries, losses and weights."""
        # For the items' biases.
        queries = np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        lengths = np.tile(np.diff(own.indptr), n_samples)
        totals = np.add.reduceat(own.data, own.indptr[:-1])
        histories = Histories(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.tile(own.indices, n_samples),
            weights=np.tile(own.data, n_samples),
            totals=np.tile(totals, n_samples).astype(np.float32),
        )
        by_queries = np.empty_like(queries)
        losses = np.empty(len(queries))
        problem = (queries, histories, scale, self._n_unit)
        results = (by_queries, losses)
        if self.axes.full:
            self._team.run(full_softmax, *problem, table, step, self._scratch, *results)
        else:
            if self._draws:
                self._draw(len(queries), step.number)
            seed = [self.model._seed, step.number]
            key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
            self._team.run(
                sampled_softmax, *problem, True, self._proposal, key, table, step, self._scratch,
                self._drawn, *results,
            )  # fmt: skip
        return np.ascontiguousarray(by_queries[:, :-1]), losses, histories.totals

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        model = self.model
        return {
            "input_factors_": model.input_factors_.copy(),
            "item_factors_": model.item_factors_.copy(),
            "layers_": [layer.copy() for layer in model.layers_],
        }
