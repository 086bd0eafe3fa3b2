"""Vectors that are propagated along interactions, or computed by dense layers."""

import copy
from itertools import pairwise
from numbers import Integral

import numpy as np

from freqfm import _dense, backends
from freqfm._input.validation import check_sizes
from freqfm._machine import single_threaded_blas
from freqfm._sklearn import Interval, StrOptions
from freqfm.backbones._base import Backbone
from freqfm.backends.base import Exclusions


class LightGCN(Backbone):
    """Vectors are averaged over layers of neighbours in the graph of interactions.

    Layer 0 are tables with a vector for each user and item. A user's vector in a layer is the sum
    of the vectors that the user's items have in the layer before, each divided by the square root
    of the number of the user's items times that of the item's users; likewise for items. The loss
    and recommendations use the mean of the layers 0 to ``n_layers`` [1]_. The graph has an edge
    for each interaction that the model is trained on; weights are not used.

    With ``propagate="epoch"``, the default, an epoch trains the vectors as matrix factorization
    does, in the same time. Then the changes of the vectors are added to the tables, and the vectors
    are computed again. Vectors that fit the data are a fixed point of both ways of training; until
    then, changes that neighbours share are kept and others shrink. After few epochs it is better
    than matrix factorization, and after many as good, see the
    :doc:`reference results </results_recommenders>`.

    With ``propagate="batch"`` gradients are exact, as in [1]_. The average over layers is a
    symmetric matrix, so gradients are propagated in the same way, and every row of the tables has
    a gradient in each batch. A batch takes about ``4 n_layers n_components`` multiplications per
    interaction of the whole graph (not of the batch), ten times as long as matrix factorization or
    longer. Default batches are therefore larger: about 64 in an epoch, of at most 8,192 positives,
    except for losses without negatives. Directions with small eigenvalues are learned slowly, so
    it needs more epochs as well. It is best with "bpr", hard negatives (``DNS``) and large batches,
    and slower and no better than "epoch" with losses of cosines.

    Training takes the memory of about four more tables of vectors, with "batch" of six more, and 8
    bytes per interaction. With ``device="cuda"`` a GPU propagates the vectors, and all arrays stay
    in its memory from epoch to epoch, see :ref:`gpu`.

    ``partial_fit`` takes new users and items: their edges join the graph, and vectors of new users
    start at the result of folding in.

    Losses of cosines, such as the default, are better with an even number of layers: an odd number
    removes components in which users and items of a group have opposite signs, see
    :doc:`/auto_examples/plot_lightgcn`. Sums over neighbours are longer for popular items. Rankings
    by cosines ignore that; with negatives that are relative to popularity,
    ``negative_sampler=InBatch(corrected=False)``, rankings are by dot products, and any number of
    layers works.

    Parameters
    ----------
    n_layers : int, default=2
        Number of propagations; 0 is matrix factorization. The authors use 3.
    propagate : {"epoch", "batch"}, default="epoch"
        When vectors are computed from the tables: after each epoch, or in each batch.

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

    _parameter_constraints = {
        "n_layers": [Interval(Integral, 0, None, closed="left")],
        "propagate": [StrOptions({"epoch", "batch"})],
    }

    def __init__(self, n_layers: int = 2, *, propagate: str = "epoch"):
        self.n_layers = n_layers
        self.propagate = propagate

    _propagates = True

    @property
    def is_linear(self):
        """Whether vectors are the rows of the tables, see :class:`Backbone`."""
        return type(self) is LightGCN and self.n_layers == 0

    @property
    def _is_mean_of_layers(self):
        # A subclass may have a ``backward`` of its own.
        return type(self) is LightGCN

    @property
    def _changes_by_epoch(self):
        return self._is_mean_of_layers and self.propagate == "epoch"

    @property
    def batch_size(self):
        """The largest default batch size, which is larger if each batch is propagated."""
        return Backbone.batch_size if self.is_linear or self._changes_by_epoch else 8192

    @property
    def n_batches(self):
        """The least number of batches of an epoch by default, approximately."""
        return Backbone.n_batches if self.is_linear or self._changes_by_epoch else 64

    def bind(self, X, n_threads):
        """Return this backbone on the graph of a matrix, see :class:`Backbone`."""
        bound = copy.copy(self)
        bound._graph = backends.get().propagation(X, n_threads)
        return bound

    def start(self, n_users, n_items, draw):
        """Return a table of users and one of items, see :class:`Backbone`."""
        return {"user_factors": draw("user"), "item_factors": draw("item")}

    def new_rows(self, tables, known, user_vectors, draw):
        """Return rows of new users and items, see :class:`Backbone`.

        Users start with rows at which their vectors, the means over layers, are the result of
        folding in; items start at random.
        """
        rows = {"user_factors": draw("user"), "item_factors": draw("item")}
        placed = user_vectors.any(axis=1)
        if not placed.any():
            return rows
        rows["user_factors"][placed] = 0
        whole = {name: np.concatenate([table, rows[name]]) for name, table in tables.items()}
        users = known[0] + np.flatnonzero(placed)
        vectors, _, _ = self.forward(whole, users, np.zeros(0, dtype=np.int64))
        rows["user_factors"][placed] = (self.n_layers + 1) * (user_vectors[placed] - vectors)
        return rows

    def forward(self, tables, users, items):
        """Return means over layers, see :class:`Backbone`."""
        factors = tables["user_factors"], tables["item_factors"]
        vectors = self._graph.mean(*factors, int(self.n_layers), wanted=(users, items))
        return vectors[0][users], vectors[1][items], (users, items)

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients of all rows, see :class:`Backbone`."""
        names = "user_factors", "item_factors"
        gradients = [np.zeros(tables[name].shape, dtype=np.float32) for name in names]
        gradients[0][context[0]], gradients[1][context[1]] = user_gradients, item_gradients
        found = self._graph.mean(*gradients, int(self.n_layers))
        by_row = ((np.arange(len(gradient)), gradient) for gradient in found)
        return dict(zip(names, by_row, strict=True))


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
        "activation": [StrOptions(set(_dense.ACTIVATIONS))],
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
                tables[f"{side}_layer_{k}"] = _dense.draw_layer(generator, *shape)
        return tables

    def _layers(self, tables, side):
        return [tables[f"{side}_layer_{k}"] for k in range(len(self.hidden_layer_sizes) + 1)]

    def forward(self, tables, users, items):
        """Return the outputs of the last layers, see :class:`Backbone`."""
        vectors, context = [], []
        with single_threaded_blas():
            for side, rows in zip(_SIDES, (users, items), strict=True):
                *hidden, last = self._layers(tables, side)
                values = _dense.apply_hidden(
                    hidden, tables[f"{side}_factors"][rows], self.activation
                )
                vectors.append(_dense.apply_layer(last, values[-1]))
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
                by_last, gradient = _dense.layer_gradients(last, values[-1], gradient)
                by_hidden, gradient = _dense.hidden_gradients(
                    hidden, values, gradient, self.activation
                )
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
