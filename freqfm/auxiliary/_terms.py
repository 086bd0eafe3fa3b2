"""Contrastive terms, SGL, SimGCL and NCL, and terms against popularity bias, IPL and ReSN."""

from numbers import Integral, Real

import numpy as np
from scipy import sparse

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, replaced
from freqfm._dense import quantize
from freqfm._input.rows import slices
from freqfm._input.validation import count_columns, draw_seed
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
        _through_normalisation(*side)
        for side in ((by_units, units, lengths), (by_keys, key_units, key_lengths))
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
        for view_gradient, by_rows in zip(gradient, found, strict=True):
            view_gradient[rows] = weight * by_rows
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
        users, items = (self._noisy(vectors, batch.generator) for vectors in batch.both_vectors)
        value, *by_views = info_nce_of_views(batch, users, items, self.weight, self.temperature)
        return value, *(side.sum(axis=0) for side in by_views)

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
            batch_views = batch.both_vectors[side][:, places[side]]
            prototypes = batch.state[side][0], batch.state[side][1][rows[side][places[side]]]
            value, gradient[:, places[side]] = self._side_value(batch_views, *prototypes)
            total += value
        return total, *gradients

    def _side_value(self, views, prototypes, own):
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


# Interactions that are scored at once.
_AT_ONCE = 1 << 16


class IPL(AuxiliaryTerm):
    """The spread of the items' interaction rates, after Liu et al.

    The rate of item i, with n_i interactions, is the number that recommendations would yield by the
    number of users who like the item [1]_::

        r_i = sum_u sigmoid(<u, i>) / n_i^(2 - gamma),

    the sum being over the users who have interacted with it. With ``gamma=1`` it is the mean of the
    sigmoids; a larger one estimates likes from interactions by the inverse propensity of being
    seen, n_i^(gamma - 1), so that interactions with unpopular items stand for more. The term is the
    standard deviation of all items' rates, divided by their mean count to the power of
    ``gamma - 1``, times ``weight``.

    Rates are those of all interactions when an epoch begins. A batch gets the tangent there: its
    part in the derivative of the standard deviation, whose mean over batches is the derivative.

    Parameters
    ----------
    weight : float, default=0.1
        Factor of the term.
    gamma : float, default=1.0
        Exponent of the propensity, plus one.

    Notes
    -----
    Scores are dot products, as in BPR. The first pass of an epoch over all interactions takes
    O(nnz d). The authors step once an epoch, by the exact gradient.

    References
    ----------
    .. [1] Y. Liu, Q. Cao, H. Shen, Y. Wu, S. Tao, X. Cheng. "Popularity Debiasing from Exposure to
       Interaction in Collaborative Filtering". SIGIR 2023.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import IPL
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, loss="bpr", auxiliary=IPL(0.5), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    uses_negatives = False
    _parameter_constraints = {
        "weight": NON_NEGATIVE,
        "gamma": [Interval(Real, None, None, closed="neither")],
    }

    def __init__(self, weight=0.1, *, gamma=1.0):
        self.weight = weight
        self.gamma = gamma

    def begin_epoch(self, epoch):
        """Return, for each item, the factor of the sigmoids of its interactions in a batch's mean.

        Parameters
        ----------
        epoch : TermEpoch

        Returns
        -------
        factors : ndarray of shape (n_items,)
        """
        X = epoch.X
        counts = count_columns(X).astype(np.float64)
        users = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        sums = np.zeros(X.shape[1])
        for part in slices(X.nnz, _AT_ONCE):
            items = X.indices[part]
            vectors = epoch.user_vectors[users[part]], epoch.item_vectors[items]
            sums += np.bincount(items, _sigmoids(*vectors), len(sums))
        held = counts > 0
        scale = np.zeros(len(counts))
        scale[held] = (counts[held] / counts[held].mean()) ** (self.gamma - 1) / counts[held]
        rates = sums * scale
        apart = np.where(held, rates - rates[held].mean(), 0)
        spread = np.sqrt((apart**2).sum() * max(held.sum() - 1, 1))
        return X.nnz * apart * scale / spread if spread > 0 else np.zeros(len(counts))

    def value_and_gradients(self, batch):
        """Return the tangent of the spread for a batch, see :class:`AuxiliaryTerm`."""
        pairs, weights = (batch.pair_users, batch.pair_items), batch.pair_weights
        users, items = (
            vectors[rows] for vectors, rows in zip(batch.both_vectors, pairs, strict=True)
        )
        rates = _sigmoids(users, items)
        factors = self.weight * weights / weights.sum() * batch.state[batch.items[pairs[1]]]
        shape = len(batch.users), len(batch.items)
        slopes = sparse.csr_array((factors * rates * (1 - rates), pairs), shape=shape)
        gradients = slopes @ batch.item_vectors, slopes.T @ batch.user_vectors
        return float(factors @ rates), *gradients


def _sigmoids(users, items):
    """Return the sigmoids of the dot products of rows, float64."""
    return 1 / (1 + np.exp(-np.einsum("ij,ij->i", users, items).astype(np.float64)))


class ReSN(AuxiliaryTerm):
    """The largest singular value of the scores, after Lin et al.

    The principal direction of the scores is that of the items' popularity, and vectors of few
    numbers give it more weight than it has in the data [1]_. The term is ::

        weight * s^2 / (n_users * n_items),

    where s is the largest singular value of the scores U V^T of the batch's users and items: the
    mean squared score that popularity alone explains.

    Parameters
    ----------
    weight : float, default=0.1
        Factor of the term.

    Notes
    -----
    The paper has the scores of all users and items, and approximates their first right singular
    vector q by a step of power iteration, V U^T 1. Here the scores are those of a batch, whose
    singular values are those of a matrix of d rows and columns, so that s is exact: O(n d^2) for
    the n users and items of a batch.

    References
    ----------
    .. [1] S. Lin, C. Gao, J. Chen, S. Zhou, B. Hu, Y. Feng, C. Chen, C. Wang. "How Do
       Recommendation Models Amplify Popularity Bias? An Analysis from the Spectral Perspective".
       WSDM 2025.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import ReSN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, loss="bpr", auxiliary=ReSN(0.5), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    uses_negatives = False
    _parameter_constraints = {"weight": NON_NEGATIVE}

    def __init__(self, weight=0.1):
        self.weight = weight

    def value_and_gradients(self, batch):
        """Return the term and its gradients for a batch, see :class:`AuxiliaryTerm`."""
        users, items = (vectors.astype(np.float64) for vectors in batch.both_vectors)
        user_moments, item_moments = users.T @ users, items.T @ items
        lengths, axes = np.linalg.eigh(item_moments)
        root = axes * np.sqrt(np.maximum(lengths, 0))
        squares, directions = np.linalg.eigh(root.T @ user_moments @ root)
        square = max(squares[-1], 0.0)
        scale = self.weight / (len(users) * len(items))
        # V^T q, and s U^T p, of the first singular vectors p and q.
        by_users = root @ directions[:, -1]
        by_items = user_moments @ by_users
        slope = 2 * scale / square if square > 0 else 0.0
        gradients = (
            2 * scale * np.outer(users @ by_users, by_users),
            slope * np.outer(items @ by_items, by_items),
        )
        return scale * square, *gradients
