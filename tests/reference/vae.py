"""The variational autoencoder's objective in float64, user by user."""

import numpy as np

from reference.differences import slopes

FUNCTIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def negative_log_likelihood(query, items, x):
    """Return -sum_i x_i log softmax(items query)_i."""
    scores = items @ query
    top = scores.max()
    return -(x @ (scores - top - np.log(np.exp(scores - top).sum())))


def unit(vectors):
    """Return vectors at unit length, along the last axis; those of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def objective(
    X, inputs, items, layers, n_hidden, noise, *, kl_weight, activation="tanh", temperature=None
):
    """Return the mean over users of the multinomial loss and the weighted divergence.

    ``layers`` hold weights and, in their last row, a bias; ``noise`` is (n_samples, n_users, d).
    With a temperature, scores are cosines divided by it.
    """
    if temperature is not None:
        items = np.column_stack([unit(items[:, :-1]) / temperature, items[:, -1]])
    function = FUNCTIONS[activation]
    first, *hidden = layers[:n_hidden]
    posterior, decoder = layers[n_hidden], layers[n_hidden + 1 :]
    total = 0.0
    for u, x in enumerate(X):
        h = function((x / np.linalg.norm(x)) @ inputs + first[0])
        for layer in hidden:
            h = function(h @ layer[:-1] + layer[-1])
        mean, log_variance = np.split(h @ posterior[:-1] + posterior[-1], 2)
        for sample in noise[:, u]:
            q = mean + np.exp(log_variance / 2) * sample
            for layer in decoder:
                q = function(q @ layer[:-1] + layer[-1])
            if temperature is not None:
                q = unit(q)
            total += negative_log_likelihood(np.append(q, 1), items, x) / len(noise)
        divergence = (mean**2 + np.exp(log_variance) - 1 - log_variance).sum() / 2
        total += kl_weight * divergence
    return total / len(X)


def differences(function, arrays, h=1e-5):
    """Return the gradient of ``function(arrays)`` by each array, by central differences."""
    return [slopes(lambda: function(arrays), array, h) for array in arrays]
