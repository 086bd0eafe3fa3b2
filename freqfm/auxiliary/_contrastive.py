"""Contrastive terms: SGL, SimGCL and NCL, by InfoNCE."""

from numbers import Integral, Real

import numpy as np

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, replaced
from freqfm._dense import quantize
from freqfm._input.rows import slices
from freqfm._input.validation import draw_seed
from freqfm._sklearn import Interval
from freqfm.auxiliary._base import AuxiliaryTerm

# Queries whose logits with all keys are computed at a time.
_ROWS = 1 << 10


def info_nce(queries, keys, own, temperature):
    """Return the mean InfoNCE of rows, and its gradients with respect to queries and to keys.

    With cosines s_ij of query i and key j it is, for n queries and the temperature t ::

        -1/n sum_i log(exp(s_i,own(i) / t) / sum_j exp(s_ij / t)).

    Parameters
    ----------
    queries : ndarray of shape (n, d)
    keys : ndarray of shape (m, d)
    own : ndarray of int of shape (n,)
        The key of each query.
    temperature : float

    Returns
    -------
    value : float
    query_gradients, key_gradients : ndarray
    """
    (units, lengths), (key_units, key_lengths) = _normalised(queries), _normalised(keys)
    total, by_units, by_keys = 0.0, np.zeros_like(units), np.zeros_like(key_units)
    for rows in slices(len(queries), _ROWS):
        places = np.arange(len(units[rows])), own[rows]
        logits = units[rows] @ key_units.T / temperature
        logits -= logits.max(axis=1, keepdims=True)
        total -= logits[places].sum(dtype=np.float64)
        shares = np.exp(logits, out=logits)
        sums = shares.sum(axis=1, keepdims=True)
        total += np.log(sums).sum(dtype=np.float64)
        shares /= sums
        shares[places] -= 1
        shares /= len(queries) * temperature
        by_units[rows] = shares @ key_units
        by_keys += shares.T @ units[rows]
    gradients = (
        _through_normalisation(*of)
        for of in ((by_units, units, lengths), (by_keys, key_units, key_lengths))
    )
    return total / len(queries), *gradients


def info_nce_of_views(batch, users, items, weight, temperature):
    """Return the InfoNCE of two views, over users and positive items of a batch, and gradients.

    Parameters
    ----------
    batch : TermBatch
    users, items : ndarray of shape (2, n_rows, d)
        Two views of the vectors of the batch.
    weight, temperature : float
    """
    total, gradients = 0.0, [np.zeros_like(views) for views in (users, items)]
    places = np.arange(len(batch.users)), batch.positive_items
    for views, rows, gradient in zip((users, items), places, gradients, strict=True):
        value, *found = info_nce(*views[:, rows], np.arange(len(rows)), temperature)
        total += weight * value
        for of_view, by_rows in zip(gradient, found, strict=True):
            of_view[rows] = weight * by_rows
    return total, *gradients


def _normalised(vectors):
    """Return vectors at unit length, and their lengths; those of length zero stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return vectors / lengths, lengths


def _through_normalisation(gradients, units, lengths):
    """Return gradients with respect to vectors, from those with respect to unit vectors."""
    along = np.einsum("ij,ij->i", gradients, units)[:, np.newaxis]
    return (gradients - along * units) / lengths


class SGL(AuxiliaryTerm):
    """The contrast of each vector in two graphs that lack some interactions, after SGL.

    Before each epoch two graphs are drawn, each without a random share of the interactions, and the
    backbone propagates its tables along each. With the vectors x' and x'' of a user in the two,
    cosines, and sums over the users v of the batch, the term is the mean of ::

        -log(exp(cos(x'_u, x''_u) / t) / sum_v exp(cos(x'_u, x''_v) / t))

    over users, plus the same over the items that are positives in the batch, times ``weight`` [1]_.
    This is the paper's edge dropout. A batch takes about four times as long as without the term.

    It needs a backbone that propagates along interactions, such as
    ``LightGCN(propagate="batch")``.

    Parameters
    ----------
    weight : float, default=0.03
        Factor of the term.
    dropout : float, default=0.1
        Share of the interactions that each graph lacks.
    temperature : float, default=0.2
        Divisor of the cosines.

    References
    ----------
    .. [1] J. Wu, X. Wang, F. Feng, X. He, L. Chen, J. Lian, X. Xie. "Self-supervised Graph Learning
       for Recommendation". SIGIR 2021, equations (7), (10) and (11).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import SGL
    >>> from freqfm.backbones import LightGCN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> backbone = LightGCN(propagate="batch")
    >>> model = MFRecommender(16, backbone=backbone, loss="bpr", auxiliary=SGL(), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    needs_graph = True
    uses_negatives = False
    _parameter_constraints = {
        "weight": NON_NEGATIVE,
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "temperature": POSITIVE,
    }

    def __init__(self, weight=0.03, *, dropout=0.1, temperature=0.2):
        self.weight = weight
        self.dropout = dropout
        self.temperature = temperature

    def views(self, epoch):
        """Return the backbone on two graphs with edges left out, see :class:`AuxiliaryTerm`."""
        views = []
        for _ in range(2):
            kept = epoch.X.copy()
            kept.data = (epoch.generator.random(kept.nnz) >= self.dropout).astype(np.float32)
            kept.eliminate_zeros()
            views.append(epoch.backbone.bind(kept, epoch.n_threads))
        return views

    def value_and_gradients(self, batch):
        """Return the contrast of a batch, see :class:`AuxiliaryTerm`."""
        return info_nce_of_views(batch, *batch.both_vectors, self.weight, self.temperature)


class SimGCL(AuxiliaryTerm):
    """The contrast of two noisy views of each vector, after SimGCL.

    To each vector, noise of the length ``noise`` is added twice, in a random direction of the
    vector's own orthant. With the views x' and x'' of a user, cosines, and sums over the users v of
    the batch, the term is the mean of ::

        -log(exp(cos(x'_u, x''_u) / t) / sum_v exp(cos(x'_u, x''_v) / t))

    over users, plus the same over the items that are positives in the batch, times ``weight``. It
    makes vectors more uniform on the sphere. The paper, which the paper of Adap-tau cites as
    SimSGL, adds noise in every layer of LightGCN [1]_; here it is added to the mean over layers, so
    that the term can be used with any backbone.

    Parameters
    ----------
    weight : float, default=0.03
        Factor of the term.
    noise : float, default=0.1
        Length of the noise.
    temperature : float, default=0.2
        Divisor of the cosines.

    References
    ----------
    .. [1] J. Yu, H. Yin, X. Xia, T. Chen, L. Cui, Q. V. H. Nguyen. "Are Graph Augmentations
       Necessary? Simple Graph Contrastive Learning for Recommendation". SIGIR 2022, equations (3),
       (7) and (8).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import SimGCL
    >>> from freqfm.backbones import LightGCN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> backbone = LightGCN(propagate="batch")
    >>> model = MFRecommender(16, backbone=backbone, loss="bpr", auxiliary=SimGCL(), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    uses_negatives = False
    _parameter_constraints = {
        "weight": NON_NEGATIVE,
        "noise": NON_NEGATIVE,
        "temperature": POSITIVE,
    }

    def __init__(self, weight=0.03, *, noise=0.1, temperature=0.2):
        self.weight = weight
        self.noise = noise
        self.temperature = temperature

    def value_and_gradients(self, batch):
        """Return the contrast of a batch, see :class:`AuxiliaryTerm`."""
        users, items = (self._noisy(of, batch.generator) for of in batch.both_vectors)
        value, *by_views = info_nce_of_views(batch, users, items, self.weight, self.temperature)
        return value, *(of_side.sum(axis=0) for of_side in by_views)

    def _noisy(self, vectors, generator):
        """Return two views of vectors."""
        return np.stack([vectors + self._noise(vectors, generator) for _ in range(2)])

    def _noise(self, vectors, generator):
        noise = generator.random(vectors.shape, dtype=np.float32)
        noise *= np.float32(self.noise) / np.linalg.norm(noise, axis=1, keepdims=True)
        return np.copysign(noise, vectors)


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
