"""ReSN: a penalty on the largest singular value of the scores."""

import numpy as np

from freqfm._components import NON_NEGATIVE
from freqfm.auxiliary._base import AuxiliaryTerm


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
