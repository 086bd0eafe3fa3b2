"""Vectors that are propagated along the interactions of users and items."""

import copy
from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval

from freqfm import backends
from freqfm.backbones._base import Backbone


class LightGCN(Backbone):
    """Vectors are averaged over layers of neighbours in the graph of interactions.

    Tables hold a vector for each user and item, layer 0. A user's vector in a layer is the sum of
    the vectors that the user's items have in the layer before, each divided by the root of the
    number of the user's items times that of the item's users; likewise for items. What the loss
    compares and recommendations use is the mean of the layers 0 to ``n_layers`` [1]_. The graph
    has an edge for each interaction that the model is trained on, whatever its weight.

    Gradients are exact. The average over layers is a symmetric matrix, so they are propagated in
    the same way, and every row of the tables gets one in each batch. A batch takes about
    ``4 n_layers n_components`` multiplications per interaction of the whole graph (not of the
    batch). Default batches are therefore larger than those of matrix factorization: about 64 in an
    epoch, of at most 8,192 positives, except for losses without negatives. Training takes the
    memory of about six more tables of vectors, and 8 bytes per interaction.

    Losses of dot products such as BPR gain from each layer. Losses of cosines, the default among
    them, do better with an even number of layers: an odd one removes from the vectors what users
    and items of a group have with opposite signs, see :doc:`/auto_examples/plot_lightgcn`.

    Parameters
    ----------
    n_layers : int, default=3
        Number of propagations; 0 is matrix factorization.

    References
    ----------
    .. [1] X. He, K. Deng, X. Wang, Y. Li, Y. Zhang, M. Wang. "LightGCN: Simplifying and Powering
       Graph Convolution Network for Recommendation". SIGIR 2020, equations (3), (4) and (7), with
       equal weights of layers.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import LightGCN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, backbone=LightGCN(n_layers=2), max_iter=5, random_state=0)
    >>> model.fit(X).recommend(users=[0], n_recommendations=3)[0].shape
    (1, 3)
    """

    _parameter_constraints = {"n_layers": [Interval(Integral, 0, None, closed="left")]}

    def __init__(self, n_layers: int = 3):
        self.n_layers = n_layers

    @property
    def is_linear(self):
        """Whether vectors are the rows of the tables, see :class:`Backbone`."""
        return type(self) is LightGCN and self.n_layers == 0

    @property
    def batch_size(self):
        """The largest default batch size: each batch is propagated through the whole graph."""
        return Backbone.batch_size if self.is_linear else 8192

    @property
    def n_batches(self):
        """About how many batches an epoch has at least, by default."""
        return Backbone.n_batches if self.is_linear else 64

    def bind(self, X, n_threads):
        """Return this backbone on the graph of a matrix, see :class:`Backbone`."""
        bound = copy.copy(self)
        bound._graph = backends.get().propagation(X, n_threads)
        return bound

    def start(self, n_users, n_items, draw):
        """Return a table of users and one of items, see :class:`Backbone`."""
        return {"user_factors": draw("user"), "item_factors": draw("item")}

    def forward(self, tables, users, items):
        """Return means over layers, see :class:`Backbone`."""
        vectors = self._graph.mean(
            tables["user_factors"],
            tables["item_factors"],
            int(self.n_layers),
            wanted=(users, items),
        )
        return vectors[0][users], vectors[1][items], (users, items)

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients of all rows, see :class:`Backbone`."""
        names = "user_factors", "item_factors"
        gradients = [np.zeros(tables[name].shape, dtype=np.float32) for name in names]
        for gradient, rows, found in zip(
            gradients, context, (user_gradients, item_gradients), strict=True
        ):
            gradient[rows] = found
        found = self._graph.mean(*gradients, int(self.n_layers))
        return {
            name: (np.arange(len(of_rows)), of_rows)
            for name, of_rows in zip(names, found, strict=True)
        }
