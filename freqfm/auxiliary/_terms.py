"""Auxiliary terms: their base class, contrastive ones, and those against popularity bias."""

from abc import abstractmethod
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, Component, replaced
from freqfm._dense import quantize
from freqfm._input.rows import count_columns, slices
from freqfm._input.validation import draw_seed
from freqfm._sklearn import Interval


class TermEpoch(NamedTuple):
    """What an auxiliary term may use at the beginning of an epoch, to read."""

    epoch: int  #: number of the epoch, from 0 on; continued fits go on counting
    generator: np.random.Generator  #: of this epoch and term
    X: sparse.csr_array  #: all interactions that the model is trained on
    user_vectors: np.ndarray  #: of all users, (n_users, d), float32
    item_vectors: np.ndarray  #: of all items, (n_items, d), float32
    backbone: object  #: what computes the vectors, bound to ``X``
    tables: dict  #: that the backbone computes them from, by its names
    n_threads: int  #: how many threads may be used; results must not depend on it


class TermBatch(NamedTuple):
    """A batch, as an auxiliary term gets it, to read: vectors cannot be written to."""

    number: int  #: of the batch in its epoch, from 0 on
    users: np.ndarray  #: (n_users_of_batch,), each once and in ascending order
    items: np.ndarray  #: (n_items_of_batch,), positives and negatives
    #: Of ``users``, (len(users), d), float32; (n_views, len(users), d) if the term has views.
    user_vectors: np.ndarray
    item_vectors: np.ndarray  #: likewise of ``items``
    pair_users: np.ndarray  #: (n_pairs,), of each positive, its user's place in ``users``
    pair_items: np.ndarray  #: (n_pairs,), its item's place in ``items``
    pair_weights: np.ndarray  #: (n_pairs,), float32
    #: (n_negatives,), of each negative its place in ``items``, without items that the user has;
    #: None if negatives are not drawn for each positive, or no term ``uses_negatives``.
    negative_items: np.ndarray | None = None
    negative_pairs: np.ndarray | None = None  #: likewise, which of the pairs it was drawn for
    epoch: int = 0  #: number of the epoch, from 0 on
    generator: np.random.Generator | None = None  #: of this epoch, batch and term
    user_counts: np.ndarray | None = None  #: (n_users,), interactions of all users of the model
    item_counts: np.ndarray | None = None  #: (n_items,), of all items
    state: object = None  #: what ``begin_epoch`` has returned

    @property
    def positive_items(self):
        """The places in ``items`` of the items that are positives, each once."""
        return np.unique(self.pair_items)

    @property
    def both_vectors(self):
        """The vectors of users, and those of items."""
        return self.user_vectors, self.item_vectors


class AuxiliaryTerm(Component):
    """Base class of auxiliary terms: what training minimises beside the loss.

    A term is a function of the vectors of a batch's users and items, such as a contrast of two
    views, or a penalty on scores of popular items. Training minimises, over the batches of an
    epoch, the mean loss of the batch's positives plus the values of all terms. A term returns its
    value and the gradients with respect to the vectors; the backbone turns these into gradients of
    its tables, together with those of the loss.

    A custom term derives from this class and defines ``value_and_gradients`` in NumPy.
    :func:`~freqfm.testing.check_component` compares its gradients with differences of values.

    *Calls*: ``check_backbone`` when ``fit`` begins; ``begin_epoch``, then ``views``, before each
    epoch; ``value_and_gradients`` once in each batch, in order.

    *Scale*: the value is that of a batch, comparable with the mean loss of a positive, and includes
    the term's own weight: nothing is multiplied afterwards, except that optimizers which sum over a
    batch, rather than average, take the term as often as the batch has positives.

    *Random numbers* come from the ``generator`` of the epoch or the batch, which depends on
    ``random_state``, the epoch, the batch and the term's place in the list only. So a fit that is
    resumed has the same ones.

    *State*: a term holds hyper-parameters and nothing that is learned. What it needs to know beside
    a batch, ``begin_epoch`` computes from the model as it is then, and batches get it as ``state``.
    So checkpoints store nothing for a term: a resumed epoch computes the same state. State must not
    be kept longer than an epoch.

    *Threads*: NumPy's products run on one thread within these calls.
    """

    #: Whether the term needs a backbone whose vectors depend on ``bind``'s interactions.
    needs_graph = False
    #: Whether the term reads the negatives of a batch, which take time to look up.
    uses_negatives = True

    def check_backbone(self, backbone):
        """Raise a ValueError if the term cannot be used with a backbone; the default never does.

        Parameters
        ----------
        backbone : Backbone
            As the estimator was given it.
        """

    def begin_epoch(self, epoch):
        """Return the state of an epoch, which each of its batches gets; the default is None.

        Parameters
        ----------
        epoch : TermEpoch

        Returns
        -------
        state : object
        """
        return None

    def views(self, epoch):
        """Return backbones that compute the vectors which the term gets, in place of the model's.

        Each is a backbone over the model's own tables, such as the model's on a graph with fewer
        edges, ``epoch.backbone.bind(X, epoch.n_threads)``. The vectors of all views are stacked,
        and the gradients of each are propagated through its backbone. The default is an empty list:
        the term gets the model's vectors.

        Parameters
        ----------
        epoch : TermEpoch

        Returns
        -------
        views : list of Backbone
        """
        return []

    @abstractmethod
    def value_and_gradients(self, batch):
        """Return the value of the term for a batch, and its gradients with respect to the vectors.

        Parameters
        ----------
        batch : TermBatch

        Returns
        -------
        value : float
        user_gradients : ndarray of the shape of ``batch.user_vectors``, or None
            The derivatives by the vectors of users; None if the value does not depend on them.
        item_gradients : ndarray of the shape of ``batch.item_vectors``, or None
        """


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
        noise = generator.random((2, *vectors.shape), dtype=np.float32)
        noise *= np.float32(self.noise) / np.linalg.norm(noise, axis=2, keepdims=True)
        return vectors + np.copysign(noise, vectors)


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
