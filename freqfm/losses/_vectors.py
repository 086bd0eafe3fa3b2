"""Losses in NumPy: functions of the vectors of a batch; MACR."""

from abc import abstractmethod
from numbers import Real

import numpy as np
from numba import njit
from scipy import sparse
from scipy.special import expit

from freqfm._components import NON_NEGATIVE
from freqfm._sklearn import Interval
from freqfm.formulas.losses import log_loss
from freqfm.losses._ranking import BPR, PairwiseLoss, RankingLoss


class VectorLoss(RankingLoss):
    """Base class of losses of the vectors of a batch, for those that are no formula of two scores.

    A custom loss derives from this class and defines ``value_and_gradients`` in NumPy. Training
    minimises it in place of the losses that are compiled; otherwise it is as an auxiliary term, see
    :class:`~freqfm.auxiliary.AuxiliaryTerm`: which calls there are, what they get, with which
    backbones. Each positive has ``n_negatives`` negatives, drawn uniformly
    or by a class derived from :class:`~freqfm.samplers.Uniform`.

    The last ``n_parts`` components of a vector are biases: they belong to the user or to the item
    alone, and dot products leave them out. Users are folded in by the other components, with biases
    of zero, and similar items are those with similar other components. Rankings are by dot products
    of what ``ranked`` makes of the vectors.

    Examples
    --------
    Logistic regression, in which the bias of an item is left out of rankings:

    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import VectorLoss
    >>> class WithoutBias(VectorLoss):
    ...     n_parts = 1
    ...
    ...     def value_and_gradients(self, batch):
    ...         negatives = batch.pair_users[batch.negative_pairs], batch.negative_items
    ...         users, items = np.hstack([(batch.pair_users, batch.pair_items), negatives])
    ...         is_positive = np.arange(len(users)) < len(batch.pair_users)
    ...         u, i = batch.user_vectors[users], batch.item_vectors[items]
    ...         scores = (u[:, :-1] * i[:, :-1]).sum(axis=1) + i[:, -1]
    ...         value = np.logaddexp(0, np.where(is_positive, -scores, scores)).sum()
    ...         slopes = 1 / (1 + np.exp(-scores)) - is_positive
    ...         by_user, by_item = map(np.zeros_like, batch.both_vectors)
    ...         np.add.at(by_user[:, :-1], users, slopes[:, None] * i[:, :-1])
    ...         np.add.at(by_item[:, :-1], items, slopes[:, None] * u[:, :-1])
    ...         np.add.at(by_item[:, -1], items, slopes)
    ...         n = len(batch.pair_users)
    ...         return value / n, by_user / n, by_item / n
    ...
    ...     def ranked(self, side, vectors):
    ...         return vectors * np.append(np.ones(vectors.shape[1] - 1, dtype=np.float32), 0)
    >>> X = make_interactions(50, 20, 400, random_state=0)
    >>> model = MFRecommender(4, loss=WithoutBias(), max_iter=3, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=2)[0].shape
    (1, 2)
    """

    _compiled = False
    # Its lists of negatives: one for each positive. The kernel is not called.
    family = "pairwise"
    similarity = "dot"
    ranking = "dot"
    has_temperature = False
    n_negatives = 1
    block = 1
    optimizer = "rowwise_adagrad"
    rate_falls = True
    fold_in_pairwise = True
    fold_in_inverse_temperatures = (1.0, 1.0)
    n_fold_in = 512
    #: The ``PairwiseLoss`` of dot products by which users are folded in.
    fold_in_loss = BPR()
    divergence_hint = "a larger weight_decay"
    #: How many of the last components of a vector are biases, which dot products leave out.
    n_parts = 0
    #: As of auxiliary terms.
    needs_graph = False
    uses_negatives = True

    def check_backbone(self, backbone):
        """Raise a ValueError if a backbone cannot be used, see ``AuxiliaryTerm``."""

    def begin_epoch(self, epoch):
        """Return the state of an epoch, see ``AuxiliaryTerm``."""
        return None

    def views(self, epoch):
        """Return backbones that compute other vectors, see ``AuxiliaryTerm``."""
        return []

    @abstractmethod
    def value_and_gradients(self, batch):
        """Return the mean loss of a positive, and its gradients with respect to the vectors.

        Parameters
        ----------
        batch : TermBatch
            With the negatives of each positive.

        Returns
        -------
        value : float
        user_gradients : ndarray of the shape of ``batch.user_vectors``, or None
        item_gradients : ndarray of the shape of ``batch.item_vectors``, or None
        """

    def ranked(self, side, vectors):
        """Return vectors of users or items whose dot products are the scores of rankings.

        Parameters
        ----------
        side : {"user", "item"}
        vectors : ndarray of shape (n, n_components)
            As trained.

        Returns
        -------
        vectors : ndarray of the same shape
            Scaled, or with other biases. The default leaves out biases.
        """
        if not self.n_parts:
            return vectors
        ranked = vectors.copy()
        ranked[:, -self.n_parts :] = 0
        return ranked


# The logarithm of a probability is at most this, so that that of its complement is finite.
_LARGEST = -1e-12


@njit
def _cross_entropies(positive, negative):
    positive_loss, by_positive = log_loss(positive, np.float32(1))
    negative_loss, by_negative = log_loss(negative, np.float32(0))
    return positive_loss + negative_loss, by_positive, by_negative


class _CrossEntropies(PairwiseLoss):
    """The cross-entropy of a positive's score and that of a negative's."""

    value_and_derivatives = staticmethod(_cross_entropies)


class MACR(VectorLoss):
    """Model-agnostic counterfactual reasoning, after Wei et al.

    A score has a factor for the item, which learns popularity, and one for the user. With the dot
    product s_ui of vectors and a number for each item and each user, m_i and n_u ::

        y_ui = sigmoid(s_ui) sigmoid(m_i) sigmoid(n_u),

    and a positive contributes, with BCE the cross-entropy of it and of its negatives [1]_ ::

        BCE(y_ui) + alpha BCE(sigmoid(m_i)) + beta BCE(sigmoid(n_u)).

    Rankings leave out what a score would be if the user did not match the item: they are by ::

        (s_ui - c) sigmoid(m_i) sigmoid(n_u).

    The number of a user or item is the last one of its vector, and the other ``n_components - 1``
    are those of the dot product. ``user_factors_`` and ``item_factors_`` hold both.

    Parameters
    ----------
    c : float, default=1.0
        The score of a pair without a match. The larger it is, the more the popularity of items is
        taken out of rankings. Training does not depend on it, and rankings follow
        ``set_params(loss__c=...)`` at once.
    alpha : float, default=0.001
        Weight of the items' cross-entropy.
    beta : float, default=0.001
        Weight of the users'.

    Notes
    -----
    Items with a score below ``c`` are ranked the lower the more popular they are. Where ``c`` is
    above the scores of many that a user likes, from about 4 on with MovieLens, rankings are bad.
    The defaults were chosen on validation parts of MovieLens-100K and -1M: ``c=1`` costs less than
    1 % of the NDCG@20. :ref:`results-popularity` compares this loss with other ways.

    The authors have dense layers of the vectors in place of a number of each item and user.
    Users are folded in by the cross-entropies of the dot products, and then have the number 0.

    References
    ----------
    .. [1] T. Wei, F. Feng, J. Chen, Z. Wu, J. Yi, X. He. "Model-Agnostic Counterfactual Reasoning
       for Eliminating Popularity Bias in Recommender System". KDD 2021, equations (5) to (9).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import MACR
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, loss=MACR(c=2), max_iter=2, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=3)[0].shape
    (1, 3)
    """

    n_parts = 1
    n_negatives = 5
    batch_size = 2048
    max_iter = 30
    decay_by_root_density = 0.025
    fold_in_loss = _CrossEntropies()
    _parameter_constraints = {
        "c": [Interval(Real, None, None, closed="neither")],
        "alpha": NON_NEGATIVE,
        "beta": NON_NEGATIVE,
    }

    def __init__(self, c: float = 1.0, *, alpha: float = 0.001, beta: float = 0.001):
        self.c = c
        self.alpha = alpha
        self.beta = beta

    def value_and_gradients(self, batch):
        """Return the loss of a batch and its gradients, see :class:`VectorLoss`."""
        positives, drawn_for = batch.pair_users, batch.negative_pairs
        users = np.concatenate([positives, positives[drawn_for]])
        items = np.concatenate([batch.pair_items, batch.negative_items])
        weights = np.concatenate([batch.pair_weights, batch.pair_weights[drawn_for]])
        weights = weights / batch.pair_weights.sum(dtype=np.float64)
        labels = np.arange(len(users)) < len(positives)
        (u, n), (i, m) = (
            (vectors[:, :-1], vectors[:, -1].astype(np.float64)) for vectors in batch.both_vectors
        )
        logits = np.einsum("pd,pd->p", u[users], i[items]), m, n
        # Functions of a user or an item are computed once for all of its pairs.
        places = slice(None), items, users
        logs = [-np.logaddexp(0, -logit)[at] for logit, at in zip(logits, places, strict=True)]
        log_y = np.minimum(sum(logs), _LARGEST)
        log_rest = np.log(-np.expm1(log_y))
        value = -weights @ np.where(labels, log_y, log_rest)
        slope = weights * np.where(labels, -1, np.exp(log_y - log_rest))
        by_score, by_item, by_user = (
            slope * expit(-logit)[at] for logit, at in zip(logits, places, strict=True)
        )
        for weight, logit, at, log, by in (
            (self.alpha, m, items, logs[1], by_item),
            (self.beta, n, users, logs[2], by_user),
        ):
            value -= weight * (weights @ (log - ~labels * logit[at]))
            by += weight * weights * (expit(logit)[at] - labels)
        slopes = sparse.csr_array((by_score, (users, items)), shape=(len(u), len(i)))
        user_gradients = np.column_stack([slopes @ i, np.bincount(users, by_user, len(u))])
        item_gradients = np.column_stack([slopes.T @ u, np.bincount(items, by_item, len(i))])
        return float(value), user_gradients, item_gradients

    def ranked(self, side, vectors):
        """Return vectors whose dot products are the scores of rankings, see :class:`VectorLoss`."""
        last = np.full((len(vectors), 1), 1 if side == "user" else -self.c, dtype=vectors.dtype)
        return expit(vectors[:, -1:]) * np.hstack([vectors[:, :-1], last])
