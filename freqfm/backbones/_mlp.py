"""Vectors that dense layers compute from a row for each user and item."""

import copy
from itertools import pairwise

import numpy as np

from freqfm import backends
from freqfm._dense import (
    ACTIVATIONS,
    apply_hidden,
    apply_layer,
    draw_layer,
    hidden_gradients,
    layer_gradients,
)
from freqfm._input.validation import check_sizes
from freqfm._machine import single_threaded_blas
from freqfm._sklearn import StrOptions
from freqfm.backbones._base import Backbone
from freqfm.backends.base import Exclusions

_SIDES = "user", "item"
_NO_USERS = np.zeros(0, dtype=np.int64)


class MLP(Backbone):
    """Dense layers compute vectors from a row for each user and item: non-linear factorization.

    Users and items have separate layers. Hidden layers are followed by the activation, and a last
    layer without one makes vectors of ``n_components`` numbers. Scores are dot products or cosines
    of these, as in matrix factorization [1]_.

    Rows, weights and biases are trained by the same optimizer; every weight of a layer moves in
    each batch. Weights start by Glorot's uniform rule, by the estimator's ``random_state``, and
    biases at zero. Layers need an optimizer whose steps adapt to the gradients, "adam" or
    "adagrad": with "sgd", "fa_sgd" and "cf_sgd" they learned little but popularity on made data,
    with "sgd" and "cf_sgd" at any learning rate from 0.3 to 30. ``fit`` warns of these.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(64, 64)
        Widths of the hidden layers; an empty tuple for none.
    activation : {"relu", "tanh"}, default="relu"
        Activation of the hidden layers.

    References
    ----------
    .. [1] D. Loveland, M. Ju, T. Zhao, N. Shah, D. Koutra. "On the Role of Weight Decay in
       Collaborative Filtering: A Popularity Perspective". 2025, "non-linear MF".

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import MLP
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, backbone=MLP((32,)), max_iter=5, random_state=0).fit(X)
    >>> sorted(model.backbone_tables_)
    ['item_factors', 'item_layer_0', 'item_layer_1', 'user_factors', 'user_layer_0', 'user_layer_1']
    """

    _needs_adaptive_steps = True
    _parameter_constraints = {
        "hidden_layer_sizes": ["array-like"],
        "activation": [StrOptions(set(ACTIVATIONS))],
    }

    def __init__(self, hidden_layer_sizes=(64, 64), *, activation: str = "relu"):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation

    def bind(self, X, n_threads):
        """Return this backbone, which takes so many threads, see :class:`Backbone`."""
        bound = copy.copy(self)
        bound._n_threads = n_threads
        return bound

    def start(self, n_users, n_items, draw):
        """Return a table and dense layers for each side, see :class:`Backbone`."""
        sizes = check_sizes("hidden_layer_sizes", self.hidden_layer_sizes, empty_allowed=True)
        tables = {}
        for side in _SIDES:
            rows = draw(side)
            tables[f"{side}_factors"] = rows
            # The bits of a random row are the seed of the layers: both depend on the seed of the
            # estimator.
            generator = np.random.default_rng(np.frombuffer(rows[0].tobytes(), dtype=np.uint32))
            widths = [rows.shape[1], *sizes, rows.shape[1]]
            for k, shape in enumerate(pairwise(widths)):
                tables[f"{side}_layer_{k}"] = draw_layer(generator, *shape)
        return tables

    def _layers(self, tables, side):
        return [tables[f"{side}_layer_{k}"] for k in range(len(self.hidden_layer_sizes) + 1)]

    def forward(self, tables, users, items):
        """Return the outputs of the last layers, see :class:`Backbone`."""
        vectors, context = [], []
        with single_threaded_blas():
            for side, rows in zip(_SIDES, (users, items), strict=True):
                *hidden, last = self._layers(tables, side)
                values = apply_hidden(hidden, tables[f"{side}_factors"][rows], self.activation)
                vectors.append(apply_layer(last, values[-1]))
                context.append((rows, values))
        return *vectors, context

    def new_rows(self, tables, known, user_vectors, draw):
        """Return rows of new users and items, see :class:`Backbone`.

        Users start at the row of the user whose vector is most similar to the result of folding
        in; items start at random.
        """
        rows = {f"{side}_factors": draw(side) for side in _SIDES}
        placed = user_vectors.any(axis=1)
        if placed.any():
            vectors, _, _ = self.forward(tables, np.arange(known[0]), _NO_USERS)
            nearest = _most_similar(user_vectors[placed], vectors, self._n_threads)
            rows["user_factors"][placed] = tables["user_factors"][nearest]
        return rows

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients by rows and by layers, see :class:`Backbone`."""
        found = {}
        with single_threaded_blas():
            for side, (rows, values), gradient in zip(
                _SIDES, context, (user_gradients, item_gradients), strict=True
            ):
                *hidden, last = self._layers(tables, side)
                by_last, gradient = layer_gradients(last, values[-1], gradient)
                by_hidden, gradient = hidden_gradients(hidden, values, gradient, self.activation)
                for k, by_layer in enumerate([*by_hidden, by_last]):
                    found[f"{side}_layer_{k}"] = np.arange(len(by_layer)), by_layer
                found[f"{side}_factors"] = rows, gradient
        return found


def _most_similar(queries, vectors, n_threads):
    """Return the vector with the largest cosine for each query, by its index."""
    nothing = np.zeros(0, dtype=np.int32)
    excluded = Exclusions(np.zeros(len(queries) + 1, dtype=np.int64), nothing, nothing)
    found, _ = backends.get().top_k(queries, vectors, 1, excluded, vectors.shape[1], n_threads)
    return found[:, 0]
