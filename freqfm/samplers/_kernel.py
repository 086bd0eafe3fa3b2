"""Sampling by a quadratic kernel, with a tree for speed."""

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm.formulas.sampling_laws import PROPOSAL_QUADRATIC, Proposal
from freqfm.samplers._base import QuerySampler

# This many products of numbers are held at a time while the tree is built.
_NUMBERS = 1 << 24


class Kernel(QuerySampler):
    """Draws in proportion to a quadratic kernel, Q(i | q) ~ alpha <q, v_i>^2 + 1 [1]_.

    The kernel is large where the softmax is, but also for very negative scores. Its sum over a set
    of n items is ``alpha q^T G q + n`` with the set's matrix ``G = sum v v^T``, so a binary tree of
    such matrices finds an item by bisection.

    Parameters
    ----------
    alpha : float, default=100.0
        Weight of the square; the default is the paper's.
    refresh : int, default=1
        Epochs between rebuilds of the tree.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: leaves hold between d and 2 d items, so that the matrices take 2 M d to 4 M d bytes for
    M items, in addition to the 4 M d of the vectors. A draw costs d^2 log2(M / d) multiplications,
    but those of the upper ten levels are shared by the draws of a query. Building the tree costs
    M d^2 / 2.

    References
    ----------
    .. [1] G. Blanc, S. Rendle. "Adaptive Sampled Softmax with Kernel Based Sampling". ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import Kernel
    >>> sampler = Kernel(alpha=1).fit([[0.0], [1.0], [-1.0], [2.0]])
    >>> np.exp(sampler.log_proba([[1.0]])).round(3)
    array([[0.1, 0.2, 0.2, 0.5]])
    """

    _parameter_constraints = {"alpha": POSITIVE, "refresh": POSITIVE_INTEGER}

    def __init__(self, alpha: float = 100.0, *, refresh: int = 1):
        self.alpha = alpha
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        n_items, d = vectors.shape
        n_leaves = 1 << max(0, (n_items // d).bit_length() - 1)
        leaf_size = -(-n_items // n_leaves)
        return Proposal(
            code=PROPOSAL_QUADRATIC,
            n_items=n_items,
            vectors=vectors,
            alpha=float(self.alpha),
            nodes=_sums_of_products(vectors, n_leaves, leaf_size),
            leaf_size=leaf_size,
        )

    def _log_weights(self, queries):
        return np.log(self.alpha * (queries @ self.item_vectors_.T.astype(np.float64)) ** 2 + 1)


def _sums_of_products(vectors, n_leaves, leaf_size):
    """Return the sums of v v^T below the nodes of a tree, as upper triangles."""
    d = vectors.shape[1]
    upper = np.triu_indices(d)
    twice = np.where(upper[0] == upper[1], 1, 2).astype(np.float32)
    nodes = np.zeros((2 * n_leaves, len(twice)), dtype=np.float32)
    step = max(1, _NUMBERS // max(d * d, leaf_size * d))
    for first in range(0, n_leaves, step):
        last = min(first + step, n_leaves)
        rows = np.zeros(((last - first) * leaf_size, d), dtype=np.float32)
        leaf_vectors = vectors[first * leaf_size : last * leaf_size]
        rows[: len(leaf_vectors)] = leaf_vectors
        leaves = rows.reshape(last - first, leaf_size, d)
        products = leaves.transpose(0, 2, 1) @ leaves
        nodes[n_leaves + first : n_leaves + last] = products[:, upper[0], upper[1]] * twice
    n = n_leaves
    while n > 1:
        n >>= 1
        nodes[n : 2 * n] = nodes[2 * n : 4 * n : 2] + nodes[2 * n + 1 : 4 * n : 2]
    return nodes
