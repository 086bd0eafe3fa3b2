"""Terms against popularity bias: IPL and ReSN."""

from numbers import Real

import numpy as np
from scipy import sparse

from freqfm._components import NON_NEGATIVE
from freqfm._input.rows import slices
from freqfm._input.validation import count_columns
from freqfm._sklearn import Interval
from freqfm.auxiliary._base import AuxiliaryTerm

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
        users, items = (of[rows] for of, rows in zip(batch.both_vectors, pairs, strict=True))
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
        users, items = (of.astype(np.float64) for of in batch.both_vectors)
        of_users, of_items = users.T @ users, items.T @ items
        lengths, axes = np.linalg.eigh(of_items)
        root = axes * np.sqrt(np.maximum(lengths, 0))
        squares, directions = np.linalg.eigh(root.T @ of_users @ root)
        square = max(squares[-1], 0.0)
        scale = self.weight / (len(users) * len(items))
        # V^T q, and s U^T p, of the first singular vectors p and q.
        by_users = root @ directions[:, -1]
        by_items = of_users @ by_users
        slope = 2 * scale / square if square > 0 else 0.0
        of_both = (
            2 * scale * np.outer(users @ by_users, by_users),
            slope * np.outer(items @ by_items, by_items),
        )
        return scale * square, *of_both
