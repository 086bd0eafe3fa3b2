"""Sampling by a quadratic kernel, with a tree for speed."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._numba.jit import ONE, ZERO
from freqfm.formulas.rng import random_bits
from freqfm.formulas.sampling_laws import dot_with_row, find_in_sums, random_number
from freqfm.samplers._base import QuerySampler

# This many products of numbers are held at a time while the tree is built.
_NUMBERS = 1 << 24

# Every draw visits the uppermost nodes of a tree: their weights are cached for the query.
_KEPT_NODES = 1024


def _node_weight(proposal, k, begin, span, numbers):
    """Return the sum of alpha <q, v>^2 + 1 over the items ``begin`` to ``begin + span``."""
    nodes, n_items = proposal.nodes, proposal.n_items
    n_products = nodes.shape[1]
    kept = k < _KEPT_NODES
    if kept and numbers[n_products + k] >= ZERO:
        return np.float64(numbers[n_products + k])
    squares = ZERO
    for f in range(n_products):
        squares += nodes[k, f] * numbers[f]
    n = min(begin + span, n_items) - min(begin, n_items)
    weight = np.float32(proposal.alpha * max(squares, ZERO) + n)
    if kept:
        numbers[n_products + k] = weight
    return np.float64(weight)


def _draw_from_tree(proposal, query, key, numbers, sums):
    """Return an item and its weight: descend to a leaf of the tree, then draw one of its items."""
    n_leaves = proposal.nodes.shape[0] >> 1
    span = n_leaves * proposal.leaf_size
    begin = 0
    k = 1
    while k < n_leaves:
        span >>= 1
        k <<= 1
        left = _node_weight(proposal, k, begin, span, numbers)
        right = _node_weight(proposal, k + 1, begin + span, span, numbers)
        if random_number(key, k) * (left + right) >= left:
            k += 1
            begin += span
    n = min(begin + span, proposal.n_items) - begin
    total = 0.0
    for j in range(n):
        score = np.float64(dot_with_row(query, proposal.vectors, begin + j))
        total += proposal.alpha * score * score + 1.0
        sums[1 + j] = total
    j = find_in_sums(sums, 1, n, random_number(key, 0) * total)
    return begin + j, sums[1 + j] - (sums[j] if j > 0 else 0.0)


class Quadratic(NamedTuple):
    """Items in proportion to alpha <q, v_i>^2 + 1."""

    n_items: int
    alpha: float
    vectors: np.ndarray  #: (n_items, d), float32
    #: (2 n_leaves, d (d + 1) / 2), float32: sums of v v^T below each node of a binary tree, upper
    #: triangles with doubled off-diagonals. Node 1 is the root, 2 k and 2 k + 1 are children of k.
    nodes: np.ndarray
    leaf_size: int  #: items below a leaf

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        """Write the products of the query's numbers, and to sums[0] log(total / n_items)."""
        n_products = proposal.nodes.shape[1]
        at = 0
        for f in range(query.shape[0]):
            for g in range(f, query.shape[0]):
                numbers[at] = query[f] * query[g]
                at += 1
        for k in range(min(proposal.nodes.shape[0], _KEPT_NODES)):
            numbers[n_products + k] = -ONE
        span = (proposal.nodes.shape[0] >> 1) * proposal.leaf_size
        total = _node_weight(proposal, 1, 0, span, numbers)
        sums[0] = math.log(total / proposal.n_items)

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw items from the tree, each by random numbers of its own."""
        for j in range(ids.shape[0]):
            draw_key = random_bits(key, j)
            item, weight = _draw_from_tree(proposal, query, draw_key, numbers, sums)
            ids[j] = item
            log_q[j] = np.float32(math.log(weight) - sums[0])

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return log(n_items Q(item | query))."""
        score = np.float64(dot_with_row(query, proposal.vectors, np.uint64(item)))
        return np.float32(math.log(proposal.alpha * score * score + 1.0) - sums[0])

    def scratch(self):
        """Return the lengths of ``numbers`` and ``sums``."""
        return self.nodes.shape[1] + min(len(self.nodes), _KEPT_NODES), 1 + self.leaf_size

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {
            "vectors": (np.float32, (self.n_items, width)),
            "nodes": (np.float32, (None, width * (width + 1) // 2)),
        }

    def check(self, learned, name):
        """Raise unless the tree has as many leaves as it needs, see ``check_proposal``."""
        n_nodes = len(self.nodes)
        fits = n_nodes > 1 and n_nodes & (n_nodes - 1) == 0
        learned.require(fits, f"{name}.nodes", f"has {n_nodes} rows, no power of two")
        fits = self.leaf_size == -(-self.n_items // (n_nodes >> 1))
        learned.require(fits, f"{name}.leaf_size", f"is {self.leaf_size} for {n_nodes} nodes")


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

    proposal_type = Quadratic
    _parameter_constraints = {"alpha": POSITIVE, "refresh": POSITIVE_INTEGER}

    def __init__(self, alpha: float = 100.0, *, refresh: int = 1):
        self.alpha = alpha
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        n_items, d = vectors.shape
        n_leaves = 1 << max(0, (n_items // d).bit_length() - 1)
        leaf_size = -(-n_items // n_leaves)
        return Quadratic(
            n_items=n_items,
            alpha=float(self.alpha),
            vectors=vectors,
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
