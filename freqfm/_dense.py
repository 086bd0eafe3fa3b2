"""Dense layers in NumPy, forward and backward by hand, and rows at unit length.

A layer is one array of shape (n_inputs + 1, n_outputs) whose last row is the bias. All functions
compute in the precision of their arguments.
"""

import numpy as np

# Rows whose lengths are computed at a time.
_ROWS = 1 << 12

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
