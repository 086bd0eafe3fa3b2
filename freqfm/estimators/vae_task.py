"""The training task of a variational autoencoder: epochs over users in batches."""

from typing import NamedTuple

import numpy as np

from freqfm._validation import take_rows
from freqfm.estimators.histories import make_rule, unit_rows
from freqfm.estimators.vae_net import (
    Layers,
    decode,
    decode_backward,
    encode,
    encode_backward,
    kl_divergence,
    kl_gradients,
    normalise,
    normalise_backward,
)
from freqfm.kernels.cpu.blas import single_threaded_blas
from freqfm.kernels.cpu.sampling import draw_scratch
from freqfm.kernels.cpu.tables import Clock, Table, catch_up_all, empty_occurrences
from freqfm.kernels.cpu.team import Team
from freqfm.kernels.cpu.vae import (
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
from freqfm.optimizers import Optimizer
from freqfm.samplers import MIDX, QuerySampler, Sampler
from freqfm.samplers._base import recall_codewords
from freqfm.scalars import codes
from freqfm.temperatures import Snapshot, Temperature

# Floats of padding between the scratch of two threads: no cache line is shared.
_PADDING = 32


class Axes(NamedTuple):
    """The components that a fit combines."""

    optimizer: Optimizer
    sampler: Sampler
    temperature: Temperature
    cosine: bool
    n_negatives: int
    batch_size: int
    kl_weight: float

    @property
    def full(self):
        """Whether nothing is sampled."""
        return self.sampler.negatives_code == codes.NEGATIVES_FULL


def unit_inputs(starts, values):
    """Return the values of histories divided by each history's length."""
    lengths = np.sqrt(np.maximum(np.add.reduceat(values**2, starts[:-1]), 1e-30))
    lengths[np.diff(starts) == 0] = 1
    return (values / np.repeat(lengths, np.diff(starts))).astype(np.float32)


class VAETask:
    """Epochs over the users of a variational autoencoder; a context manager.

    Parameters
    ----------
    model : FastVAERecommender
        Initialised; its arrays are updated in place.
    axes : Axes
    X : csr_array of shape (n_users, n_items)
        Canonical; values are weights.
    score : callable or None
        Returns the validation score of the model.
    n_threads : int
    """

    #: What may help if training diverges, apart from a smaller learning rate.
    remedy = "scale the weights in X to about 1"

    def __init__(self, model, axes, X, score, n_threads):
        self.model, self.axes, self.X = model, axes, X
        self.optimizer = axes.optimizer
        self.validation_score = score
        self._users = np.flatnonzero(np.diff(X.indptr))
        self._batch_size = min(axes.batch_size, len(self._users))
        self._counts = np.bincount(X.indices, minlength=X.shape[1])
        self._rule = make_rule(axes.optimizer, model.weight_decay, model.weight_decay_scope)
        self._n_threads = n_threads
        # The last number of an item's vector is its bias.
        self._n_unit = model.item_factors_.shape[1] - 1 if axes.cosine else 0
        self._heads = [np.full(len(t), -1, dtype=np.int32) for t in model._tables()[:2]]
        self._proposal = None
        self._allocate()
        self._team = Team(n_threads)
        self._blas = None

    def __enter__(self):
        self._blas = single_threaded_blas()
        self._blas.__enter__()
        self._team.__enter__()
        return self

    def __exit__(self, *exception):
        self._team.__exit__(*exception)
        self._blas.__exit__(*exception)

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
        first_step = int(model._n_steps[0])
        steps = np.arange(first_step, first_step + n_batches + 1)
        clock = Clock(first_step, self.optimizer.corrections(steps))
        tables = self._clocked_tables(first_step)
        self._refresh_temperature(epoch)
        self._refresh_proposal(epoch)
        kl_weight = self.axes.kl_weight * min(1.0, (epoch + 1) / model.kl_warm_up)
        total = weight = 0.0
        # What overflows is found at the end of the epoch, and said in words.
        with np.errstate(over="ignore", invalid="ignore"):
            for b, users in enumerate(np.array_split(order, n_batches)):
                step = first_step + b + 1
                loss, of_batch = self._train(users, generator, kl_weight, step, clock, tables)
                total += loss
                weight += of_batch
        self._catch_up(first_step + n_batches, clock, tables)
        model._n_steps += n_batches
        return total / weight

    def _clocked_tables(self, first_step):
        """Return the Tables of inputs and items, then of the dense layers."""
        idle = self._rule.catch_up == codes.CATCH_UP_NONE
        tables = []
        for i, (weights, state) in enumerate(
            zip(self.model._tables(), self.model._states, strict=True)
        ):
            tables.append(
                Table(
                    weights=weights,
                    **state,
                    caught_up=np.full(0 if idle else len(weights), first_step, dtype=np.int64),
                    heads=self._heads[i] if i < 2 else np.zeros(0, dtype=np.int32),
                )
            )
        return tables

    def _catch_up(self, step, clock, tables):
        """Let rows make up the steps that they have missed, where the optimizer asks for it."""
        if self._rule.catch_up == codes.CATCH_UP_NONE:
            return
        for table in tables[:2]:
            gradients = np.zeros(
                (self._n_threads, table.weights.shape[1] + _PADDING), dtype=np.float32
            )
            self._team.run(
                catch_up_all, step, clock, self._rule, self.optimizer.hyper(), table, gradients
            )

    def _refresh_temperature(self, epoch):
        strategy, model = self.axes.temperature, self.model
        users = items = None
        if strategy.looks_at_vectors:
            items = unit_rows(model.item_factors_[:, :-1])
            mean = model._mean(self.X.indptr, self.X.indices, self.X.data)
            users = unit_rows(model._decode(mean))
        snapshot = Snapshot(self.X, users, items, model._statistics, len(model._seen_indices))
        strategy.refresh(epoch, model._inverse, model._temperature_state, snapshot)
        model._statistics[:] = 0

    def _refresh_proposal(self, epoch):
        sampler, model = self.axes.sampler, self.model
        if self.axes.full:
            return
        if not isinstance(sampler, QuerySampler):
            if self._proposal is None:
                self._proposal = sampler.proposal(self._counts)._replace(n_items=self.X.shape[1])
        elif self._proposal is None or epoch % sampler.refresh == 0:
            self._proposal = self._propose(model._seed + epoch)
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

    def _train(self, users, generator, kl_weight, step, clock, tables):
        """Train on one batch of users; return its loss and the weight of its interactions."""
        model = self.model
        hyper = self.optimizer.hyper()
        own = take_rows(self.X, users)
        starts, items, values = own.indptr, own.indices, own.data
        inputs = unit_inputs(starts, values)
        n_users, n_samples = len(users), int(model.n_samples)

        # Forward. Dropped items are no occurrences: their rows stay as they are.
        rows = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(starts))
        kept_items, kept_starts = items, starts
        dropout = float(model.dropout)
        if dropout and model.dropout_on == "input":
            kept = generator.random(len(items), dtype=np.float32) >= dropout
            kept_items, rows = items[kept], rows[kept]
            inputs = inputs[kept] / np.float32(1 - dropout)
            kept_starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        if self._rule.catch_up != codes.CATCH_UP_NONE:
            gradients = self._occurrences.gradients
            self._team.run(
                catch_up_rows, kept_items, step, clock, self._rule, hyper, tables[0], gradients
            )
        pooled = np.empty((n_users, model.input_factors_.shape[1]), dtype=np.float32)
        self._team.run(sum_histories, kept_starts, kept_items, inputs, model.input_factors_, pooled)
        mask = None
        if dropout and model.dropout_on == "hidden":
            kept = generator.random(pooled.shape, dtype=np.float32) >= dropout
            mask = kept / np.float32(1 - dropout)
            pooled *= mask
        layers = model._layers()
        posterior = encode(layers, pooled, model.activation)
        deviation = np.exp(0.5 * posterior.log_variance)
        noise = generator.standard_normal((n_samples, *deviation.shape), dtype=np.float32)
        z = (posterior.mean + noise * deviation).reshape(n_samples * n_users, -1)
        queries, decoded = decode(layers, z, model.activation)
        if self.axes.cosine:
            queries, lengths = normalise(queries)
        inverse = model._inverse[0, 0]

        scale = np.float32(1 / (n_users * n_samples) if self.optimizer.average else 1 / n_samples)
        by_queries, losses, totals = self._softmax(
            inverse * queries, starts, items, values, n_samples, scale, step, clock, tables[1],
            hyper,
        )  # fmt: skip
        weight = float(totals.sum(dtype=np.float64)) / n_samples

        # Backward.
        if self.axes.temperature.statistics_wanted:
            slope = np.vdot(by_queries, queries) / (scale * n_samples)
            model._statistics[0, 1:] += weight, slope
        by_queries *= inverse
        if self.axes.cosine:
            by_queries = normalise_backward(queries, lengths, by_queries)
        by_decoder, by_z = decode_backward(layers, decoded, by_queries, model.activation)
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
            layers, posterior, by_mean, by_log_variance, model.activation
        )
        if mask is not None:
            by_pooled *= mask

        self._step_inputs(kept_items, rows, inputs, by_pooled, step, clock, tables[0], hyper, scale)
        for table, gradient in zip(tables[2:], [*by_encoder, *by_decoder], strict=True):
            self._team.run(
                step_table, np.ascontiguousarray(gradient, dtype=np.float32), table, self._rule,
                hyper, step, clock, n_users,
            )  # fmt: skip
        loss = losses.sum() / n_samples + kl_weight * kl_divergence(posterior).sum()
        return float(loss), weight

    def _softmax(self, queries, starts, items, values, n_samples, scale, step, clock, table, hyper):
        """Train the items; return the gradient by the queries, losses and weights."""
        # For the items' biases.
        queries = np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        lengths = np.tile(np.diff(starts), n_samples)
        histories = Histories(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.tile(items, n_samples),
            weights=np.tile(values, n_samples),
            totals=np.tile(np.add.reduceat(values, starts[:-1]), n_samples).astype(np.float32),
        )
        by_queries = np.empty_like(queries)
        losses = np.empty(len(queries))
        common = (table, self._rule, hyper, step, clock, self._scratch)
        n_unit = self._n_unit
        if self.axes.full:
            self._team.run(
                full_softmax, queries, histories, scale, n_unit, *common, by_queries, losses
            )
        else:
            key = np.random.SeedSequence([self.model._seed, step]).generate_state(1, np.uint64)[0]
            self._team.run(
                sampled_softmax, queries, histories, scale, n_unit, True, self._proposal, key,
                *common, self._drawn, by_queries, losses,
            )  # fmt: skip
        return np.ascontiguousarray(by_queries[:, :-1]), losses, histories.totals

    def _step_inputs(self, items, rows, inputs, gradients, step, clock, table, hyper, scale):
        n = len(items)
        self._occurrences.tokens[:n] = items
        self._occurrences.rows[:n] = rows
        self._occurrences.multiples[:n] = inputs
        self._team.run(
            step_histories, n, self._occurrences, np.ascontiguousarray(gradients), table,
            self._rule, hyper, step, clock, scale,
        )  # fmt: skip

    # What the epoch loop asks for.

    def weights(self):
        """Return the model's arrays."""
        return self.model._tables()

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        model = self.model
        states = [array for state in model._states for array in state.values()]
        temperature = [model._inverse, model._temperature_state, model._statistics]
        return [*self.weights(), model._n_steps, *temperature, *states]

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        model = self.model
        return {
            "input_factors_": model.input_factors_.copy(),
            "item_factors_": model.item_factors_.copy(),
            "layers_": [layer.copy() for layer in model.layers_],
        }


def as_layers(arrays, n_hidden):
    """Return dense arrays as Layers; ``n_hidden`` is the number of hidden layers of the encoder."""
    first, *rest = arrays
    return Layers(first, rest[: n_hidden - 1], rest[n_hidden - 1], rest[n_hidden:])
