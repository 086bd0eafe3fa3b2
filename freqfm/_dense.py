"""Dense layers in NumPy: forward, and backward by hand.

A layer is one array of shape (n_inputs + 1, n_outputs) whose last row is the bias. All functions
compute in the precision of their arguments.
"""

import numpy as np

__all__ = ["ACTIVATIONS", "apply_layer", "layer_gradients"]

# Each entry is the function, and its derivative in terms of its value.
ACTIVATIONS = {
    "tanh": (np.tanh, lambda value: 1 - value * value),
    "relu": (lambda x: np.maximum(x, 0), lambda value: (value > 0).astype(value.dtype)),
}


def apply_layer(layer, x):
    """Return the outputs of a layer for rows of inputs, before its activation."""
    return x @ layer[:-1] + layer[-1]


def layer_gradients(layer, x, gradient):
    """Return the gradients with respect to the layer and its input, from that of its outputs."""
    by_layer = np.empty_like(layer)
    by_layer[:-1] = x.T @ gradient
    by_layer[-1] = gradient.sum(axis=0)
    return by_layer, gradient @ layer[:-1].T
