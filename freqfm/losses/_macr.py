"""MACR: scores with factors of the user and of the item, which rankings take a part from."""

from numbers import Real

import numpy as np
from numba import njit
from scipy import sparse
from scipy.special import expit
from sklearn.utils._param_validation import Interval

from freqfm._components import NON_NEGATIVE
from freqfm.formulas.losses import log_loss
from freqfm.losses._ranking import PairwiseLoss
from freqfm.losses._vectors import VectorLoss

# The logarithm of a probability is at most this, so that that of its complement is finite.
_LARGEST = -1e-12


@njit
def _cross_entropies(positive, negative):
    of_positive, by_positive = log_loss(positive, np.float32(1))
    of_negative, by_negative = log_loss(negative, np.float32(0))
    return of_positive + of_negative, by_positive, by_negative


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
        (u, n), (i, m) = ((of[:, :-1], of[:, -1].astype(np.float64)) for of in batch.both_vectors)
        logits = np.einsum("pd,pd->p", u[users], i[items]), m, n
        # Functions of a user or an item are computed once for all of its pairs.
        places = slice(None), items, users
        logs = [-np.logaddexp(0, -of)[at] for of, at in zip(logits, places, strict=True)]
        log_y = np.minimum(sum(logs), _LARGEST)
        log_rest = np.log(-np.expm1(log_y))
        value = -weights @ np.where(labels, log_y, log_rest)
        slope = weights * np.where(labels, -1, np.exp(log_y - log_rest))
        by_score, by_item, by_user = (
            slope * expit(-of)[at] for of, at in zip(logits, places, strict=True)
        )
        for weight, of, at, log, by in (
            (self.alpha, m, items, logs[1], by_item),
            (self.beta, n, users, logs[2], by_user),
        ):
            value -= weight * (weights @ (log - ~labels * of[at]))
            by += weight * weights * (expit(of)[at] - labels)
        slopes = sparse.csr_array((by_score, (users, items)), shape=(len(u), len(i)))
        of_users = np.column_stack([slopes @ i, np.bincount(users, by_user, len(u))])
        of_items = np.column_stack([slopes.T @ u, np.bincount(items, by_item, len(i))])
        return float(value), of_users, of_items

    def ranked(self, side, vectors):
        """Return vectors whose dot products are the scores of rankings, see :class:`VectorLoss`."""
        last = np.full((len(vectors), 1), 1 if side == "user" else -self.c, dtype=vectors.dtype)
        return expit(vectors[:, -1:]) * np.hstack([vectors[:, :-1], last])
