"""The dense layers of an autoencoder, between its tables, by NumPy."""

import numpy as np

from freqfm._dense import (
    as_layers,
    decode,
    decode_backward,
    encode,
    encode_backward,
    kl_divergence,
    kl_gradients,
    normalise,
    normalise_backward,
)
from freqfm.backends.base import Histories
from freqfm.backends.cpu.random import standard_normal, uniform


def _flat_indices(rows, width):
    """Return the flat indices of the elements of some rows in a table of this width."""
    return rows[..., None] * width + np.arange(width)


class DenseLayers:
    """What a trainer of the tables of an autoencoder inherits to train on batches.

    It has these methods, in which steps are counted from 1, across epochs:

    - ``layer_weights()``: the weights of the dense layers, to which it does not write;
    - ``sum_inputs(histories, step)``: the sums of the input vectors, (B, h) float32;
    - ``step_inputs(histories, gradients, scale, step)``, by the gradients by these sums;
    - ``step_items(queries, histories, totals, scale, step, stream, drawn)``: moves items by the
      loss sum_u scale (n_u log sum_i exp(q_u' v_i) - sum_i x_ui q_u' v_i), n_u = sum_i x_ui,
      over all items or draws of the ``stream``; returns its gradient by the queries, and the
      losses of the queries without ``scale``. ``drawn`` is as in AutoencoderBatch;
    - ``step_layers(gradients, n_users, step)``.

    Parameters
    ----------
    problem : AutoencoderProblem
    """

    # As those of ``Backend``.
    uniform, standard_normal = staticmethod(uniform), staticmethod(standard_normal)

    def __init__(self, problem):
        self._problem = problem

    def train(self, batches):
        """Train on batches; see ``Backend.autoencoder_trainer``."""
        return map(self._train, batches)

    def _train(self, batch):
        problem, activation = self._problem, self._problem.activation
        n_users, n_samples = len(batch.users), problem.n_samples
        layers = as_layers(self.layer_weights(), problem.n_hidden)
        inverse = batch.inverse_temperature

        # Forward.
        pooled = self.sum_inputs(batch.inputs, batch.step)
        mask = None
        if problem.dropout:
            mask = self._mask(batch, pooled.shape[1])
            pooled *= mask
        posterior = encode(layers, pooled, activation)
        deviation = np.exp(0.5 * posterior.log_variance)
        noise = self._noise(batch, deviation.shape[1])
        z = (posterior.mean + noise * deviation).reshape(n_samples * n_users, -1)
        queries, decoded = decode(layers, z, activation)
        if problem.n_unit:
            queries, lengths = normalise(queries)

        average = problem.rule.average
        scale = np.float32(1 / (n_users * n_samples) if average else 1 / n_samples)
        by_queries, losses, weight = self._step_items(inverse * queries, batch, scale)

        # Backward.
        by_inverse = np.vdot(by_queries, queries) / (scale * n_samples)
        by_queries *= inverse
        if problem.n_unit:
            by_queries = normalise_backward(queries, lengths, by_queries)
        by_decoder, by_z = decode_backward(layers, decoded, by_queries, activation)
        by_mean, by_log_variance = self._through_posterior(
            posterior,
            deviation,
            noise,
            by_z.reshape(noise.shape),
            batch.kl_weight * (scale * n_samples),
        )
        by_encoder, by_pooled = encode_backward(
            layers, posterior, by_mean, by_log_variance, activation
        )
        if mask is not None:
            by_pooled *= mask

        self.step_inputs(batch.inputs, np.ascontiguousarray(by_pooled), scale, batch.step)
        self.step_layers([*by_encoder, *by_decoder], n_users, batch.step)
        loss = losses.sum() / n_samples + batch.kl_weight * kl_divergence(posterior).sum()
        return float(loss), weight, by_inverse

    def _mask(self, batch, width):
        """Return the factors of the sums, zero for those that are dropped."""
        dropout = self._problem.dropout
        drawn = self.uniform(batch.dropout, _flat_indices(batch.users, width))
        return (drawn >= np.float32(dropout)) / np.float32(1 - dropout)

    def _noise(self, batch, n_components):
        """Return the noise of all samples of users, (n_samples, n_users, n_components)."""
        samples = np.arange(self._problem.n_samples)[:, None] * self._problem.n_users
        return self.standard_normal(batch.noise, _flat_indices(samples + batch.users, n_components))

    def _step_items(self, queries, batch, scale):
        """Train the items; return the gradient with respect to queries, the losses, a weight."""
        n_samples, rows = self._problem.n_samples, batch.positives
        # A column of ones for the items' biases.
        queries = np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        lengths = np.tile(np.diff(rows.starts), n_samples)
        totals = np.add.reduceat(rows.weights, rows.starts[:-1])
        totals = np.tile(totals, n_samples).astype(np.float32)
        histories = Histories(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.tile(rows.items, n_samples),
            weights=np.tile(rows.weights, n_samples),
        )
        by_queries, losses = self.step_items(
            queries, histories, totals, scale, batch.step, batch.draws, batch.drawn
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
