"""The dense layers of a variational autoencoder, and its task: epochs over batches of users."""

from typing import NamedTuple

import numpy as np

from freqfm import backends
from freqfm._dense import (
    ACTIVATIONS,
    apply_hidden,
    apply_layer,
    hidden_gradients,
    layer_gradients,
    unit_rows,
)
from freqfm._input.rows import take_rows
from freqfm.backends.base import AutoencoderProblem, Histories
from freqfm.estimators.recommenders.gradient import RecommenderTrainer
from freqfm.formulas.sampling_laws import AlreadyDrawn
from freqfm.samplers import QuerySampler
from freqfm.samplers._base import check_draws, recall_codewords

# Tables with a row for every item, the first two of the model; the others are dense layers.
OF_ITEMS = ("input_factors", "item_factors")


# Purposes of random streams: the order of an epoch, dropout, noise, and negatives.
_ORDER, _DROPOUT, _NOISE, _DRAWS = range(4)

# Avoids division by zero; a zero row stays zero.
_SHORTEST = 1e-12


class Layers(NamedTuple):
    """The dense layers between the sums of histories and the queries."""

    first: np.ndarray  #: (1, h), the bias of the first hidden layer, whose weights are a table
    hidden: list  #: further layers of the encoder
    posterior: np.ndarray  #: (h + 1, 2 d), to means and log-variances
    decoder: list  #: from latent vectors to queries; empty if these are the same


def as_layers(arrays, n_hidden):
    """Return dense arrays as Layers; ``n_hidden`` is the number of hidden layers of the encoder."""
    first, *rest = arrays
    return Layers(first, rest[: n_hidden - 1], rest[n_hidden - 1], rest[n_hidden:])


def pass_on(layer, n, noise):
    """Let the first ``n`` outputs be the first ``n`` inputs, plus noise, before the activation."""
    layer[:n, :n] *= noise
    layer[:n, :n] += np.eye(n, dtype=np.float32)


class Posterior(NamedTuple):
    """The encoder's output for a batch, and what its backward pass needs."""

    mean: np.ndarray  #: (B, d)
    log_variance: np.ndarray  #: (B, d)
    values: list  #: of the hidden layers


def encode(layers, pooled, activation):
    """Return the Posterior of users from the sums of their histories, (B, h)."""
    function, _ = ACTIVATIONS[activation]
    values = apply_hidden(layers.hidden, function(pooled + layers.first), activation)
    mean, log_variance = np.split(apply_layer(layers.posterior, values[-1]), 2, axis=1)
    return Posterior(mean, log_variance, values)


def encode_backward(layers, posterior, by_mean, by_log_variance, activation):
    """Return the gradients with respect to ``first``, ``hidden``, ``posterior`` and the sums."""
    _, derivative = ACTIVATIONS[activation]
    gradient = np.concatenate([by_mean, by_log_variance], axis=1)
    values = posterior.values
    by_posterior, gradient = layer_gradients(layers.posterior, values[-1], gradient)
    by_hidden, gradient = hidden_gradients(layers.hidden, values, gradient, activation)
    gradient = gradient * derivative(values[0])
    return [gradient.sum(axis=0, keepdims=True), *by_hidden, by_posterior], gradient


def decode(layers, z, activation):
    """Return the queries of latent vectors, (B, D), and the values of all layers."""
    values = apply_hidden(layers.decoder, z, activation)
    return values[-1], values


def decode_backward(layers, values, by_queries, activation):
    """Return the gradients with respect to the decoder's layers and the latent vectors."""
    return hidden_gradients(layers.decoder, values, by_queries, activation)


def normalise(rows):
    """Return rows at unit length, and their original lengths."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _SHORTEST)
    return rows / lengths, lengths


def normalise_backward(units, lengths, gradient):
    """Return the gradient with respect to rows, from that with respect to the normalised rows."""
    along = (gradient * units).sum(axis=1, keepdims=True)
    return (gradient - along * units) / lengths


def kl_divergence(posterior):
    """Return the KL divergence of each row's posterior from a standard normal distribution."""
    mean, log_variance = posterior.mean, posterior.log_variance
    return 0.5 * (mean**2 + np.exp(log_variance) - 1 - log_variance).sum(axis=1, dtype=np.float64)


def kl_gradients(posterior):
    """Return the gradients of the KL divergence with respect to means and log-variances."""
    return posterior.mean, 0.5 * (np.exp(posterior.log_variance) - 1)


def flat_indices(rows, width):
    """Return the flat indices of the elements of some rows in a table of this width."""
    return rows[..., None] * width + np.arange(width)


def unit_inputs(starts, values):
    """Return the values of histories, normalised to unit length per history."""
    lengths = np.sqrt(np.maximum(np.add.reduceat(values**2, starts[:-1]), 1e-30))
    lengths[np.diff(starts) == 0] = 1
    return (values / np.repeat(lengths, np.diff(starts))).astype(np.float32)


class VAETrainer(RecommenderTrainer):
    """Epochs over users of a variational autoencoder; see ``RecommenderTrainer`` for parameters."""

    #: A remedy if training diverges, besides a smaller learning rate.
    divergence_hint = "scale the weights in X to about 1"

    def __init__(self, model, components, X, known, score, n_threads):
        super().__init__(model, components, X, known, score, n_threads)
        self._users = np.flatnonzero(np.diff(X.indptr))
        self._batch_size = min(components.batch_size, len(self._users))
        self._random = backends.get()
        problem = self._problem()
        start = backends.start(model.device, "autoencoder_trainer", problem, n_threads)
        self._backend, self._trainer = start

    def _drawn(self, n_queries, step):
        """Return the draws of a custom sampler for a batch and their log-probabilities, or None."""
        if not self._sampler_draws:
            return None
        sampler, log_q = self.components.sampler, self._proposal.log_q
        shape, n_items = (n_queries, self.components.n_negatives), self.X.shape[1]
        generator = np.random.default_rng([self._seed, step, 4])
        items = sampler.draw(shape, n_items, self._proposal, generator)
        items = check_draws(sampler, items, shape, n_items)
        return items, log_q[items] if len(log_q) else np.zeros(shape, dtype=np.float32)

    def _problem(self):
        """Return the backend's description of this fit, and the largest batch."""
        model, components = self.model, self.components
        n_samples = int(model.n_samples)
        n_queries = self._batch_size * n_samples
        n_positives = int(np.sort(np.diff(self.X.indptr))[-self._batch_size :].sum())
        n_draws = 0 if components.full else components.n_negatives
        n_scores = n_positives * n_samples + n_queries * n_draws
        if n_draws and n_scores > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={self._batch_size} with n_negatives={n_draws} makes {n_scores} scores "
                f"a batch; choose a smaller batch_size."
            )
        return AutoencoderProblem(
            rule=self._rule,
            input_width=model.input_factors_.shape[1],
            item_width=model.item_factors_.shape[1],
            # The last element of an item's vector is its bias.
            n_unit=model.item_factors_.shape[1] - 1 if components.cosine else 0,
            n_samples=n_samples,
            n_queries=n_queries,
            n_positives=n_positives,
            n_draws=n_draws,
            sampler=repr(model.negative_sampler),
            proposal_type=getattr(components.sampler, "proposal_type", None),
            formulas=self.optimizer.replacements(),
        )

    def run_epoch(self, epoch):
        """Train on every user once; return the mean loss per interaction."""
        model = self.model
        stream = self._stream(epoch, _ORDER)
        order = self._users[self._random.permutation(stream, len(self._users))]
        n_batches = -(-len(order) // self._batch_size)
        self._refresh_temperatures(epoch)
        self._refresh_proposal(epoch)
        first_step = int(self.training.n_steps[0])
        proposal = self._proposal
        if self._sampler_draws:
            proposal = AlreadyDrawn(proposal.log_q, proposal.n_items)
        self._trainer.begin_epoch(*self._epoch_of(n_batches), proposal)
        kl_weight = self.components.kl_weight * min(1.0, (epoch + 1) / model.kl_warm_up)
        total = weight = 0.0
        # Overflows are reported at the end of the epoch.
        with np.errstate(over="ignore", invalid="ignore"):
            for b, users in enumerate(np.array_split(order, n_batches)):
                loss, batch_weight = self._train(users, epoch, kl_weight, first_step + b + 1)
                total += loss
                weight += batch_weight
        self._trainer.catch_up(first_step + n_batches)
        self.training.n_steps[:] += n_batches
        return total / weight

    def _refresh_temperatures(self, epoch):
        super()._refresh_temperatures(epoch)
        positive, others = self.inverse_temperatures[0]
        if positive != others:
            strategy = type(self.components.temperature).__name__
            raise ValueError(
                f"refresh of {strategy} has written the inverse temperatures {positive:g} for "
                f"positives and {others:g} for the logarithm, but this model has one temperature; "
                f"write the same number into both columns."
            )

    def _vectors_for(self, strategy):
        if not strategy.looks_at_vectors:
            return None, None
        self._trainer.pull(self.weights())
        mean = self.model._mean(self.X.indptr, self.X.indices, self.X.data)
        return unit_rows(self.model._decode(mean)), unit_rows(self.model.item_factors_[:, :-1])

    def _refresh_proposal(self, epoch):
        sampler = self.components.sampler
        if self.components.full:
            return
        if not isinstance(sampler, QuerySampler):
            if self._proposal is None:
                proposal = sampler.proposal(self._known.item_counts)._replace(
                    n_items=self.X.shape[1]
                )
                self._proposal = self._checked(proposal)
        elif self._proposal_is_due(epoch):
            self._replace_proposal(self._propose(self._seed + epoch))

    def _propose(self, seed):
        """Return the distribution of negatives for the current item vectors."""
        sampler, counts = self.components.sampler, self._known.item_counts
        table, last = self.model.item_factors_, self._proposal
        last = last or recall_codewords(self.training.codewords)
        if not self._quantizes:
            self._trainer.pull([table])
            vectors = self.model._item_index().vectors().copy()
            return sampler.proposal(counts, vectors, seed, last)
        # Biases are known exactly; quantizing them would waste codewords.
        n = table.shape[1] - 1
        if last is not None:
            last = last._replace(codewords=last.codewords[:, :n])
        codewords, codes = self._quantize(table, n, seed, last)
        codewords = np.pad(codewords, [(0, 0), (0, 1)])
        offsets = self._trainer.take(table, slice(None), slice(n, None))[:, 0]
        return sampler.proposal_of_codes(counts, codewords, codes, offsets=offsets)

    def _train(self, users, epoch, kl_weight, step):
        """Train on one batch of users; return its loss and the weight of its interactions."""
        model, activation = self.model, self.model.activation
        rows = take_rows(self.X, users)
        n_users, n_samples = len(users), int(model.n_samples)
        layers, inverse = model._layers(), self.inverse_temperatures[0, 0]

        # Forward.
        inputs = self._inputs(users, rows, epoch)
        pooled = self._trainer.sum_inputs(inputs, step)
        mask = None
        if model.dropout and model.dropout_on == "hidden":
            mask = self._kept(flat_indices(users, pooled.shape[1]), epoch)
            mask = mask / np.float32(1 - model.dropout)
            pooled *= mask
        posterior = encode(layers, pooled, activation)
        deviation = np.exp(0.5 * posterior.log_variance)
        noise = self._noise(users, deviation.shape[1], epoch)
        z = (posterior.mean + noise * deviation).reshape(n_samples * n_users, -1)
        queries, decoded = decode(layers, z, activation)
        if self.components.cosine:
            queries, lengths = normalise(queries)

        scale = np.float32(1 / (n_users * n_samples) if self.optimizer.average else 1 / n_samples)
        by_queries, losses, weight = self._step_items(inverse * queries, rows, scale, step)

        # Backward.
        if self.components.temperature.statistics_wanted:
            by_log_inverse = np.vdot(by_queries, queries) / (scale * n_samples)
            self.training.statistics[0, 1:] += weight, by_log_inverse
        by_queries *= inverse
        if self.components.cosine:
            by_queries = normalise_backward(queries, lengths, by_queries)
        by_decoder, by_z = decode_backward(layers, decoded, by_queries, activation)
        by_mean, by_log_variance = self._through_posterior(
            posterior, deviation, noise, by_z.reshape(noise.shape), kl_weight * (scale * n_samples)
        )
        by_encoder, by_pooled = encode_backward(
            layers, posterior, by_mean, by_log_variance, activation
        )
        if mask is not None:
            by_pooled *= mask

        self._trainer.step_inputs(inputs, np.ascontiguousarray(by_pooled), scale, step)
        self._trainer.step_layers([*by_encoder, *by_decoder], n_users, step)
        loss = losses.sum() / n_samples + kl_weight * kl_divergence(posterior).sum()
        return float(loss), weight

    def _kept(self, indices, epoch):
        """Return the mask of elements that dropout keeps."""
        drawn = self._random.uniform(self._stream(epoch, _DROPOUT), indices)
        return drawn >= np.float32(self.model.dropout)

    def _noise(self, users, n_components, epoch):
        """Return the noise of all samples of users, (n_samples, n_users, n_components)."""
        samples = np.arange(int(self.model.n_samples))[:, None]
        indices = flat_indices(samples * self.X.shape[0] + users, n_components)
        return self._random.standard_normal(self._stream(epoch, _NOISE), indices)

    def _inputs(self, users, rows, epoch):
        """Return the encoder's inputs for the histories of users."""
        starts, items, inputs = rows.indptr, rows.indices, unit_inputs(rows.indptr, rows.data)
        dropout = self.model.dropout
        if dropout and self.model.dropout_on == "input":
            # Dropped items do not occur in the batch: their rows are not updated.
            shift = np.repeat(self.X.indptr[users] - starts[:-1], np.diff(starts))
            kept = self._kept(np.arange(len(items)) + shift, epoch)
            items, inputs = items[kept], inputs[kept] / np.float32(1 - dropout)
            starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        return Histories(starts, items, inputs)

    def _step_items(self, queries, rows, scale, step):
        """Train the items; return the gradient with respect to queries, the losses, a weight."""
        n_samples = int(self.model.n_samples)
        # A column of ones for the items' biases.
        queries = np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        lengths = np.tile(np.diff(rows.indptr), n_samples)
        totals = np.add.reduceat(rows.data, rows.indptr[:-1])
        totals = np.tile(totals, n_samples).astype(np.float32)
        histories = Histories(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.tile(rows.indices, n_samples),
            weights=np.tile(rows.data, n_samples),
        )
        stream, drawn = self._stream(step, _DRAWS), self._drawn(len(queries), step)
        by_queries, losses = self._trainer.step_items(
            queries, histories, totals, scale, step, stream, drawn
        )
        weight = float(totals.sum(dtype=np.float64)) / n_samples
        return np.ascontiguousarray(by_queries[:, :-1]), losses, weight

    @staticmethod
    def _through_posterior(posterior, deviation, noise, by_z, kl_weight):
        """Return the gradients of loss and KL divergence by means and by log-variances."""
        by_mean = by_z.sum(axis=0)
        by_log_variance = 0.5 * deviation * (by_z * noise).sum(axis=0)
        if kl_weight:
            divergence_by_mean, divergence_by_log_variance = kl_gradients(posterior)
            by_mean += np.float32(kl_weight) * divergence_by_mean
            by_log_variance += np.float32(kl_weight) * divergence_by_log_variance
        return by_mean, by_log_variance

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        model = self.model
        return {
            "input_factors_": model.input_factors_.copy(),
            "item_factors_": model.item_factors_.copy(),
            "layers_": [layer.copy() for layer in model.layers_],
        }
