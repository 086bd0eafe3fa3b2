"""NCL: the contrast of users and items with their neighbours in the graph, and with prototypes."""

from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, replaced
from freqfm._input.validation import draw_seed
from freqfm._quantization import quantize
from freqfm.auxiliary._base import AuxiliaryTerm
from freqfm.auxiliary._contrast import info_nce

_SIDES = "user", "item"


class NCL(AuxiliaryTerm):
    """The contrast of each user and item with its neighbours and its prototype, after NCL.

    With the rows x of the tables, and the vectors z of the layer ``hops`` of LightGCN, which sums
    over neighbours of the same side if it is even, the structural part of a side is the mean over
    its rows u in the batch of ::

        -log(exp(cos(z_u, x_u) / t) / sum_v exp(cos(z_u, x_v) / t)),

    where v runs over the rows in the batch; of items, over positives. Before each epoch the rows of
    each side are clustered by k-means. With the means c of the clusters, and that of the own
    cluster of u, the prototypical part is the mean of ::

        -log(exp(cos(x_u, c_own(u)) / t) / sum_k exp(cos(x_u, c_k) / t)).

    The term is the sum of both parts, times their weights, over users and items [1]_.

    It needs ``LightGCN(propagate="batch")`` with at least ``hops`` layers.

    Parameters
    ----------
    weight : float, default=0.01
        Factor of the structural part.
    prototype_weight : float, default=0.01
        Factor of the prototypical part.
    hops : int, default=2
        The layer whose vectors are contrasted with the tables.
    n_clusters : int, default=100
        Prototypes of each side; at most a tenth of its rows are used.
    temperature : float, default=0.1
        Divisor of the cosines.

    References
    ----------
    .. [1] Z. Lin, C. Tian, Y. Hou, W. X. Zhao. "Improving Graph Collaborative Filtering with
       Neighborhood-enriched Contrastive Learning". WWW 2022, equations (5), (6), (9) and (10).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import NCL
    >>> from freqfm.backbones import LightGCN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> backbone = LightGCN(propagate="batch")
    >>> model = MFRecommender(16, backbone=backbone, loss="bpr", auxiliary=NCL(), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    needs_graph = True
    uses_negatives = False
    _parameter_constraints = {
        "weight": NON_NEGATIVE,
        "prototype_weight": NON_NEGATIVE,
        "hops": [Interval(Integral, 1, None, closed="left")],
        "n_clusters": POSITIVE_INTEGER,
        "temperature": POSITIVE,
    }

    def __init__(
        self, weight=0.01, *, prototype_weight=0.01, hops=2, n_clusters=100, temperature=0.1
    ):
        self.weight = weight
        self.prototype_weight = prototype_weight
        self.hops = hops
        self.n_clusters = n_clusters
        self.temperature = temperature

    def check_backbone(self, backbone):
        """Raise a ValueError unless the backbone has enough layers."""
        if getattr(backbone, "n_layers", 0) < self.hops:
            raise ValueError(
                f"auxiliary={self!r} needs the layer {self.hops} of LightGCN; set "
                f"backbone=LightGCN({self.hops}, propagate='batch'), got backbone={backbone!r}."
            )

    def begin_epoch(self, epoch):
        """Return the prototypes and the own prototype of each row, of users and of items."""
        prototypes = []
        for side in _SIDES:
            table = epoch.tables[f"{side}_factors"]
            n = max(1, min(self.n_clusters, len(table) // 10))
            means, own = quantize(table, 1, n, draw_seed(epoch.generator))
            prototypes.append((means, own[:, 0]))
        return prototypes

    def views(self, epoch):
        """Return the table itself and two means over layers, see :class:`AuxiliaryTerm`."""
        return [replaced(epoch.backbone, {"n_layers": n}) for n in (0, self.hops - 1, self.hops)]

    def value_and_gradients(self, batch):
        """Return both parts for a batch, see :class:`AuxiliaryTerm`."""
        rows = batch.users, batch.items
        places = np.arange(len(batch.users)), batch.positive_items
        total, gradients = 0.0, [np.zeros_like(vectors) for vectors in batch.both_vectors]
        for side, gradient in enumerate(gradients):
            of_batch = batch.both_vectors[side][:, places[side]]
            prototypes = batch.state[side][0], batch.state[side][1][rows[side][places[side]]]
            value, gradient[:, places[side]] = self._of_side(of_batch, *prototypes)
            total += value
        return total, *gradients

    def _of_side(self, views, prototypes, own):
        """Return the value of a side, and its gradients by views."""
        table, before, mean = views
        # The mean over k + 1 layers, and that over the k before.
        layer = (self.hops + 1) * mean - self.hops * before
        gradients = np.zeros_like(views)
        value, by_layer, by_table = info_nce(layer, table, np.arange(len(own)), self.temperature)
        gradients[0] = self.weight * by_table
        gradients[1] = -self.weight * self.hops * by_layer
        gradients[2] = self.weight * (self.hops + 1) * by_layer
        by_prototypes, by_table, _ = info_nce(table, prototypes, own, self.temperature)
        gradients[0] += self.prototype_weight * by_table
        return self.weight * value + self.prototype_weight * by_prototypes, gradients
