"""The dense layers of a variational autoencoder: forward, and backward by hand.

Layers are those of ``freqfm._dense``.
"""

from typing import NamedTuple

import numpy as np

from freqfm._dense import (
    ACTIVATIONS,
    apply_hidden,
    apply_layer,
    hidden_gradients,
    layer_gradients,
)

__all__ = [
    "Layers",
    "Posterior",
    "as_layers",
    "decode",
    "decode_backward",
    "encode",
    "encode_backward",
    "kl_divergence",
    "kl_gradients",
    "normalise",
    "normalise_backward",
    "pass_on",
]


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


# Avoids division by zero; a zero row stays zero.
_SHORTEST = 1e-12


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
