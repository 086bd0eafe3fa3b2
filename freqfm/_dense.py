"""Dense layers and rows in NumPy, and product quantization of rows.

Dense layers in NumPy, forward and backward by hand, and rows at unit length.

A layer is one array of shape (n_inputs + 1, n_outputs) whose last row is the bias. All functions
compute in the precision of their arguments.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

# Rows whose lengths are computed at a time.
_ROWS = 1 << 12

# Avoids division by zero; a zero row stays zero.
_SHORTEST = 1e-12

# Each entry is the function, and its derivative in terms of its value.
ACTIVATIONS = {
    "tanh": (np.tanh, lambda value: 1 - value * value),
    "relu": (lambda x: np.maximum(x, 0), lambda value: (value > 0).astype(value.dtype)),
}


def draw_layer(generator, n_inputs, n_outputs):
    """Return a layer with weights drawn by Glorot's uniform rule, and biases of zero."""
    bound = np.sqrt(6 / (n_inputs + n_outputs))
    layer = np.zeros((n_inputs + 1, n_outputs), dtype=np.float32)
    layer[:-1] = generator.uniform(-bound, bound, (n_inputs, n_outputs))
    return layer


def apply_layer(layer, x):
    """Return the outputs of a layer for rows of inputs, before its activation."""
    return x @ layer[:-1] + layer[-1]


def layer_gradients(layer, x, gradient):
    """Return the gradients with respect to the layer and its input, from that of its outputs."""
    by_layer = np.empty_like(layer)
    by_layer[:-1] = x.T @ gradient
    by_layer[-1] = gradient.sum(axis=0)
    return by_layer, gradient @ layer[:-1].T


def apply_hidden(layers, x, activation):
    """Return the values of hidden layers for rows of inputs, which come first."""
    function, _ = ACTIVATIONS[activation]
    values = [x]
    for layer in layers:
        values.append(function(apply_layer(layer, values[-1])))
    return values


def hidden_gradients(layers, values, gradient, activation):
    """Return the gradients with respect to hidden layers and to their inputs.

    ``values`` are those of :func:`apply_hidden`, ``gradient`` is that with respect to the last.
    """
    _, derivative = ACTIVATIONS[activation]
    by_layers = []
    for layer, value, before in zip(layers[::-1], values[:0:-1], values[-2::-1], strict=True):
        by_layer, gradient = layer_gradients(layer, before, gradient * derivative(value))
        by_layers.insert(0, by_layer)
    return by_layers, gradient


def unit_rows(table):
    """Return the rows of a table at unit length; zero rows stay zero."""
    units = np.empty(table.shape, dtype=np.float32)
    for begin in range(0, len(table), _ROWS):
        part = table[begin : begin + _ROWS]
        length = np.sqrt(np.einsum("ij,ij->i", part, part))[:, np.newaxis]
        np.divide(part, np.where(length > 0, length, 1), out=units[begin : begin + _ROWS])
    return units


# An autoencoder's.


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


# Codewords are fitted to at most this many vectors per codeword. More lower the error by less than
# 1 %.
_POINTS_PER_CODEWORD = 256

# Iterations of k-means from a random start, and from the codewords of similar vectors.
_FIRST_STEPS, _LATER_STEPS = 20, 2

# Number of vectors whose distances are held at a time; with 64 codewords they take 1 MB.
_TILE = 1 << 12


def subspaces(d, n_subspaces):
    """Return the column slices of the subspaces, as even as possible; some may be empty."""
    bounds = -(-np.arange(n_subspaces + 1) * d // n_subspaces)
    return [slice(begin, end) for begin, end in pairwise(bounds.tolist())]


def quantize(vectors, n_subspaces, n_codewords, seed, previous=None, unit=False):
    """Fit codewords to the parts of vectors by k-means, and find those that are nearest.

    Parameters
    ----------
    vectors : ndarray of shape (n, d), float32
    n_subspaces, n_codewords : int
    seed : int
    previous : ndarray of shape (n_subspaces * n_codewords, d), default=None
        Codewords to start from, fitted to similar vectors.
    unit : bool, default=False
        Whether vectors are taken at unit length.

    Returns
    -------
    codewords : ndarray of shape (n_subspaces * n_codewords, d), float32
        Zero outside their subspace. A vector is approximately the sum of its codewords.
    codes : ndarray of shape (n, n_subspaces), int32
        The rows of ``codewords`` that are nearest to the parts of each vector.
    """
    options = n_subspaces, n_codewords, seed, previous
    codewords = fit_codewords(vectors.shape, vectors.__getitem__, unit, *options)
    k, parts = n_codewords, subspaces(vectors.shape[1], n_subspaces)
    codes = np.zeros((len(vectors), n_subspaces), dtype=np.int32)
    for start in range(0, len(vectors), _TILE):
        rows = slice(start, start + _TILE)
        tile = unit_rows(vectors[rows]) if unit else vectors[rows]
        for s, columns in enumerate(parts):
            centres = codewords[s * k : (s + 1) * k, columns]
            codes[rows, s] = s * k + _nearest(tile[:, columns], centres)[0]
    return codewords, codes


def fit_codewords(shape, take, unit, n_subspaces, n_codewords, seed, previous=None):
    """Return the codewords of vectors, see ``quantize``.

    Parameters
    ----------
    shape : tuple of int
        Of the vectors.
    take : callable
        Takes an index of some of them, or the slice of all; returns these.
    unit, n_subspaces, n_codewords, seed, previous
        See ``quantize``.
    """
    n, d = shape
    generator = np.random.default_rng(seed)
    most = _POINTS_PER_CODEWORD * n_codewords
    rows = slice(None)
    if n > most:
        rows = np.sort(generator.choice(n, most, replace=False))
    sample = unit_rows(take(rows)) if unit else take(rows)
    codewords = np.zeros((n_subspaces * n_codewords, d), dtype=np.float32)
    for s, columns in enumerate(subspaces(d, n_subspaces)):
        rows = slice(s * n_codewords, (s + 1) * n_codewords)
        points = np.ascontiguousarray(sample[:, columns])
        if previous is None:
            centres = _spread(points, n_codewords, generator)
        else:
            centres = np.ascontiguousarray(previous[rows, columns])
        for _ in range(_FIRST_STEPS if previous is None else _LATER_STEPS):
            centres = _move_to_means(points, centres)
        codewords[rows, columns] = centres
    return codewords


def _spread(points, n, generator):
    """Return points that are far from each other, by k-means++.

    Where there are fewer distinct points, the first is repeated.
    """
    centres = np.repeat(points[:1], n, axis=0)
    centres[0] = points[generator.integers(len(points))]
    centres[1:] = centres[0]
    distance = np.full(len(points), np.inf)
    for k in range(1, n):
        distance = np.minimum(distance, _nearest(points, centres[k - 1 : k])[1])
        sums = np.cumsum(distance)
        if not sums[-1] > 0:
            break
        chosen = np.searchsorted(sums, generator.random() * sums[-1], side="right")
        centres[k] = points[min(chosen, len(points) - 1)]
    return centres


def _move_to_means(points, centres):
    """Return the mean of the points nearest to each centre.

    A centre without points moves to one that is far from its own centre.
    """
    labels, distance = _nearest(points, centres)
    n, k = len(points), len(centres)
    member = sparse.csr_array((np.ones(n, np.float32), labels, np.arange(n + 1)), shape=(n, k))
    counts = np.bincount(labels, minlength=k)
    means = (member.T @ points) / np.maximum(counts, 1)[:, None].astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    means[empty] = centres[empty]
    if len(empty):
        far = np.argsort(-distance, kind="stable")[: len(empty)]
        far = far[distance[far] > 0]
        means[empty[: len(far)]] = points[far]
    return means


def _nearest(points, centres):
    """Return the nearest centre of each point, and the square of its distance."""
    lengths = np.einsum("kf,kf->k", centres, centres)
    scaled = -2 * centres.T
    labels = np.zeros(len(points), dtype=np.int32)
    distance = np.zeros(len(points), dtype=np.float32)
    for start in range(0, len(points), _TILE):
        tile = np.ascontiguousarray(points[start : start + _TILE])
        # Without the point's squared length, which is the same for all centres.
        partial = tile @ scaled
        partial += lengths
        nearest = partial.argmin(axis=1)
        squared = np.einsum("nf,nf->n", tile, tile)
        least = partial[np.arange(len(tile)), nearest] + squared
        labels[start : start + _TILE] = nearest
        # A distance of zero that rounding made positive is set to zero.
        distance[start : start + _TILE] = np.where(least > 1e-6 * squared, least, 0)
    return labels, distance
