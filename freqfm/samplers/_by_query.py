"""Sampling by the query: a kernel, codewords, clusters; and hard negatives, biased on purpose."""

import math
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from freqfm._components import POSITIVE, POSITIVE_INTEGER
from freqfm._dense import quantize, subspaces
from freqfm._numba.jit import ONE, ZERO
from freqfm._sklearn import Interval, StrOptions
from freqfm.formulas.cells import Cells, ExactSoftmax, draw_from_cells
from freqfm.formulas.proposals import (
    dot_with_row,
    find_in_sums,
    random_below,
    random_number,
    turn_into_weights,
)
from freqfm.formulas.rng import random_bits
from freqfm.samplers._base import QuerySampler, UncorrectedSampler, alias_table

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


@dataclass(eq=False, repr=False)
class MIDX(QuerySampler):
    """Draws from an approximation of the softmax, by an inverted multi-index [1]_.

    Product quantization splits vectors into parts, ``v_i = v_i^1 + v_i^2`` in two subspaces, and
    finds K codewords in each by k-means; ``v_i = c_k1 + c_k2 + r_i`` with a residual r_i. The items
    that share both codewords are a cell. The softmax of the dot products with a query q is then
    three draws (theorem 4.1), each from few choices ::

        P(i | q) = P1(k1) P2(k2 | k1) P3(i | k1, k2),
        P1(k1) ~ psi_k1 exp(<q, c_k1>),         psi_k1 = sum_k2 omega_k1,k2 exp(<q, c_k2>),
        P2(k2 | k1) ~ omega_k1,k2 exp(<q, c_k2>),
        P3(i | k1, k2) ~ exp(<q, r_i>),         omega_k1,k2 = sum of it over the cell.

    Only P3, and through it omega, depends on all items. The fast variants have a different P3:

    - "popularity": in proportion to the popularity (theorem 5.2), in total
      ``Q(i | q) ~ pop(i) exp(<q, v_i - r_i>)``;
    - "uniform": uniform within the cell (theorem 5.1), ``Q(i | q) ~ exp(<q, v_i - r_i>)``;
    - "exact": the softmax itself, at the cost of a softmax over all items, as a reference.

    Parameters
    ----------
    variant : {"popularity", "uniform", "exact"}, default="popularity"
        How an item is drawn within its cell.
    n_codewords : int, default=None
        Number K of codewords per subspace. None is 64 in :class:`freqfm.FastVAERecommender`, else
        16. More are closer to the softmax and cost more per query; with a hundred draws or more, 64
        take hardly longer than 16.
    n_subspaces : int, default=2
        Number of parts of the vectors. A query visits the cells of all combinations of codewords,
        except where no item has those in all subspaces but the last: up to
        ``n_codewords ** n_subspaces`` of them.
    popularity : {"log", "count", "power"}, default="log"
        For ``variant="popularity"``: log(1 + c), c or c^(3/4) for an item that occurs c times; an
        item that never occurs is treated as one that occurs once. "log" was used in the
        experiments of [1]_, and is overall the closest to the softmax of trained models.
    refresh : int, default=1
        Epochs between quantizations, each starting from the last codewords.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32
    codes_ : ndarray of shape (n_items, n_subspaces), int32
        The index of the nearest codeword in each subspace.
    codebooks_ : list of ndarray of shape (n_codewords, d_s)
        The codewords of each subspace, which has d_s columns.
    quantized_vectors_ : ndarray of shape (n_items, d), float32
        ``v_i - r_i``.

    Notes
    -----
    If no residual is longer than C, the Kullback-Leibler divergence of "uniform" from the softmax
    is at most ``2 C |q|`` (theorem 5.3); for "popularity" the bound grows by
    log(max pop / min pop) (theorem 5.4).

    Memory for M items: 4 m K d bytes of codewords in m subspaces, up to (4 m + 20) K^m of cells,
    and per item 8 ("uniform"), 32 ("popularity") or 8 + 4 d ("exact"). A query costs m K d
    multiplications and up to K^m exponentials, or M d and M for "exact"; a draw then costs a search
    among cells and, for any M, one access to the items. Quantization is k-means on at most 256 K
    items, with 20 iterations at first and 2 later, and the assignment of all items, about 2 M K d.

    References
    ----------
    .. [1] J. Chen, D. Lian, B. Jin, X. Huang, K. Zheng, E. Chen. "Fast Variational AutoEncoder with
       Inverted Multi-Index for Collaborative Filtering". WWW 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import MIDX
    >>> items = np.random.default_rng(0).normal(size=(1000, 8))
    >>> queries = np.random.default_rng(1).normal(size=(2, 8))
    >>> sampler = MIDX(n_codewords=8).fit(items, random_state=0)
    >>> ids, log_q = sampler.sample(queries, 5, random_state=0)
    >>> ids.shape
    (2, 5)
    >>> bool(np.allclose(log_q, np.take_along_axis(sampler.log_proba(queries), ids, 1), atol=1e-4))
    True
    """

    _defaults = {"n_codewords": 16}
    _parameter_constraints = {
        "variant": [StrOptions({"uniform", "popularity", "exact"})],
        "n_codewords": [*POSITIVE_INTEGER, None],
        "n_subspaces": [Interval(Integral, 1, 4, closed="both")],
        "popularity": [StrOptions({"log", "count", "power"})],
        "refresh": POSITIVE_INTEGER,
    }

    variant: str = "popularity"
    _: KW_ONLY
    n_codewords: int | None = None
    n_subspaces: int = 2
    popularity: str = "log"
    refresh: int = 1

    @property
    def proposal_type(self):
        """The class of all proposals, see :class:`QuerySampler`."""
        return ExactSoftmax if self.variant == "exact" else Cells

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        quantized = quantize(vectors, *self.quantization(vectors.shape[1], seed, previous))
        kept = vectors if self.variant == "exact" else None
        return self.proposal_of_codes(counts, *quantized, vectors=kept)

    def quantization(self, width, seed, previous=None):
        """Return how vectors of a width are quantized.

        Parameters
        ----------
        width, seed : int
        previous : named tuple, default=None
            An earlier proposal, see :class:`QuerySampler`.

        Returns
        -------
        n_subspaces, n_codewords, seed : int
        codewords : ndarray of shape (n_subspaces * n_codewords, width) or None
            From which k-means starts.
        """
        k, m = int(self.value_of("n_codewords")), int(self.n_subspaces)
        last = getattr(previous, "codewords", None)
        return m, k, seed, last if np.shape(last) == (m * k, width) else None

    def proposal_of_codes(self, counts, codewords, codes, *, vectors=None, offsets=None):
        """Return the distribution for vectors that have been quantized.

        Parameters
        ----------
        counts : ndarray of shape (n_items,)
            How many users have each item.
        codewords : ndarray of shape (n_subspaces * n_codewords, d), float32
            Zero outside their subspace.
        codes : ndarray of shape (n_items, n_subspaces), int32
            The rows of ``codewords`` that are nearest to the parts of each item's vector.
        vectors : ndarray of shape (n_items, d), float32, default=None
            The vectors themselves, for "exact".
        offsets : ndarray of shape (n_items,), default=None
            Parts of the logits that do not depend on the query, such as biases. They are not
            quantized, and enter the third draw unchanged. Not for "exact".

        Returns
        -------
        proposal : named tuple
        """
        k = len(codewords) // codes.shape[1]
        items, starts, cell_of, cell_codes = _cells(codes, k)
        nothing = np.zeros(0, dtype=np.float32)
        log_q = self._log_popularity(counts) if self.variant == "popularity" else nothing
        if offsets is not None:
            log_q = (log_q if len(log_q) else 0) + (offsets - offsets.max()).astype(np.float32)
        weights = np.diff(starts).astype(np.float64)
        aliases = np.zeros((0, 1), dtype=np.int32)
        if len(log_q):
            weight = np.exp(log_q[items].astype(np.float64))
            weights = np.add.reduceat(weight, starts[:-1])
            aliases = alias_table(items, starts, weight, log_q)
        log_weights = np.log(weights).astype(np.float32)
        prefix_codes, grid, grid_cells = _grid(cell_codes, log_weights, k)
        return self.proposal_type(
            log_q=log_q,
            n_items=len(codes),
            vectors=nothing.reshape(0, 1) if vectors is None else vectors,
            codewords=codewords,
            cell_codes=cell_codes,
            cell_log_weights=log_weights,
            cell_starts=starts,
            cell_items=items,
            cell_of=cell_of,
            prefix_codes=prefix_codes,
            grid=grid,
            grid_cells=grid_cells,
            aliases=aliases,
        )

    def _log_popularity(self, counts):
        counts = np.maximum(np.asarray(counts, dtype=np.float64), 1)
        weight = {"log": np.log1p(counts), "count": counts, "power": counts**0.75}
        weight = weight[self.popularity]
        return np.log(weight / weight.mean()).astype(np.float32)

    @property
    def codes_(self):
        """The index of each item's nearest codeword in each subspace."""
        p = self.proposal_
        rows, n_codewords = p.cell_codes[p.cell_of], len(p.codewords) // p.cell_codes.shape[1]
        return rows - n_codewords * np.arange(rows.shape[1], dtype=np.int32)

    @property
    def codebooks_(self):
        """The codewords of each subspace."""
        p = self.proposal_
        columns = subspaces(p.codewords.shape[1], p.cell_codes.shape[1])
        books = np.split(p.codewords, p.cell_codes.shape[1])
        return [book[:, part] for book, part in zip(books, columns, strict=True)]

    @property
    def quantized_vectors_(self):
        """The sums of the items' codewords: item vectors without their residuals."""
        p = self.proposal_
        return p.codewords[p.cell_codes[p.cell_of]].sum(axis=1)

    def _log_weights(self, queries):
        p = self.proposal_
        if self.variant != "exact":
            return log_weights_of_cells(p, queries)
        # P1 P2: the cells, and P3: the items of each.
        cells = _cell_logits(p, queries)
        residuals = self.item_vectors_.astype(np.float64) - self.quantized_vectors_
        scores = queries @ residuals.T
        omega = np.empty_like(cells)
        for cell in range(cells.shape[1]):
            items = p.cell_items[p.cell_starts[cell] : p.cell_starts[cell + 1]]
            omega[:, cell] = logsumexp(scores[:, items], axis=1)
        choice = cells + omega
        choice -= logsumexp(choice, axis=1, keepdims=True)
        return (choice - omega)[:, p.cell_of] + scores


def _cell_logits(proposal, queries):
    return (queries @ proposal.codewords.T.astype(np.float64))[:, proposal.cell_codes].sum(axis=2)


def log_weights_of_cells(proposal, queries):
    """Return the log-probabilities of the distribution of Cells, up to a constant for each row."""
    static = proposal.log_q.astype(np.float64) if len(proposal.log_q) else 0
    return _cell_logits(proposal, queries)[:, proposal.cell_of] + static


def _cells(codes_of, n_codewords):
    """Return the items cell by cell, where cells start, each item's cell and each cell's codes."""
    n_items, m = codes_of.shape
    flat = np.zeros(n_items, dtype=np.int64)
    for s in range(m):
        flat = flat * n_codewords + codes_of[:, s] - s * n_codewords
    # Small integers sort faster.
    flat = flat.astype(np.min_scalar_type(n_codewords**m - 1))
    items = np.argsort(flat, kind="stable").astype(np.int32)
    begins = np.diff(flat[items], prepend=flat[items[0]]) != 0
    begins[0] = True
    starts = np.flatnonzero(begins)
    cell_of = np.empty(n_items, dtype=np.int32)
    cell_of[items] = np.cumsum(begins) - 1
    starts = np.append(starts, n_items).astype(np.int64)
    return items, starts, cell_of, np.ascontiguousarray(codes_of[items[starts[:-1]]])


def _grid(cell_codes, log_weights, n_codewords):
    """Return the prefixes of cells; weights and numbers of cells by their prefix and last code.

    Cells are in the order of their codes.
    """
    prefixes = cell_codes[:, :-1]
    begins = (prefixes != np.roll(prefixes, 1, axis=0)).any(axis=1)
    begins[0] = True
    prefix = np.cumsum(begins) - 1
    last = cell_codes[:, -1] - n_codewords * (cell_codes.shape[1] - 1)
    grid = np.full((prefix[-1] + 1, n_codewords), -np.inf, dtype=np.float32)
    grid[prefix, last] = log_weights
    # Where rounding leads a draw to no cell, it takes the last one of the prefix.
    ends = np.append(np.flatnonzero(begins)[1:], len(cell_codes)) - 1
    grid_cells = np.repeat(ends.astype(np.int32)[:, None], n_codewords, axis=1)
    grid_cells[prefix, last] = np.arange(len(cell_codes))
    return np.ascontiguousarray(prefixes[begins]), grid, grid_cells.ravel()


class WeightedCells(Cells):
    """Draws from cells; log_q is minus the log of the weight of a draw, relative to the mean.

    Weights are in proportion to exp(<q, v_i>) / Q(i | q).
    """

    __slots__ = ()

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw items, and compare their scores with the log-probabilities of their draws."""
        draw_from_cells(proposal, query, key, ids, log_q, numbers, sums)
        for j in range(ids.shape[0]):
            score = dot_with_row(query, proposal.vectors, np.uint64(ids[j]))
            log_q[j] = score - log_q[j]
        turn_into_weights(log_q)

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return zero: a positive has the mean weight."""
        return ZERO

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {**super().arrays(width), "vectors": (np.float32, (self.n_items, width))}


@dataclass(eq=False, repr=False)
class PRIS(QuerySampler):
    """Draws from clusters of items, weighted as draws from the softmax of scores [1]_.

    A draw for a query q takes two steps: a cluster c by its centroid, in proportion to
    ``W_c exp(<q, centroid_c>)``, and an item of it in proportion to its weight, of which W_c is the
    sum over the cluster. Of the n draws j of a positive each then has the importance weight ::

        w_j ~ exp(<q, v_j>) / Q(j | q),   sum_j w_j = 1,

    a constant in the gradient, so that the weighted mean over draws estimates the mean over items
    drawn from the softmax of the scores: hard negatives count more. :class:`~freqfm.losses.BPR`
    and other losses of pairs use these weights, with known items left out of the sum; a softmax
    multiplies exponentials by ``n w_j``, as for :class:`SelfAdversarial`, which is the same for
    uniform draws.

    Parameters
    ----------
    within : {"popularity", "uniform"}, default="popularity"
        The weights of items: by the logarithm of their counts, as ``MIDX(popularity="log")``, or
        equal.
    n_clusters : int, default=16
        Number of clusters. More are closer to the softmax, and weights then differ less.
    refresh : int, default=1
        Epochs between updates of clusters and vectors, each starting from the last centroids.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Clusters are those of ``MIDX(n_subspaces=1)``, found by k-means, and follow the vectors in every
    epoch, by two steps from the last centroids. In the paper's joint form centroids are learned by
    gradients, of a loss of their own scores and of the squared distance between an item and its
    centroid; k-means minimises the latter.

    Weights are by the vectors of the last update, and by the user's current vector. ``log_proba``
    returns the probabilities of the draws, ``sample`` minus the logarithms of ``n_items n w_j``.

    Memory for M items and K clusters: 4 (K + M) d bytes, and 8 ("uniform") or 32 per item. A query
    costs K d multiplications, a draw d.

    References
    ----------
    .. [1] D. Lian, Q. Liu, E. Chen. "Personalized Ranking with Importance Sampling". WWW 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import PRIS
    >>> sampler = PRIS("uniform", n_clusters=2).fit([[0.0], [1.0], [3.0], [4.0]], random_state=0)
    >>> np.exp(sampler.log_proba([[1.0]])).round(3)  # centroids 0.5 and 3.5
    array([[0.024, 0.024, 0.476, 0.476]])
    """

    weighted = True
    proposal_type = WeightedCells
    _parameter_constraints = {
        "within": [StrOptions({"popularity", "uniform"})],
        "n_clusters": POSITIVE_INTEGER,
        "refresh": POSITIVE_INTEGER,
    }

    within: str = "popularity"
    _: KW_ONLY
    n_clusters: int = 16
    refresh: int = 1

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        clusters = MIDX(self.within, n_codewords=self.n_clusters, n_subspaces=1)
        cells = clusters.proposal(counts, vectors, seed, previous)
        return WeightedCells(*cells._replace(vectors=vectors))

    def _log_weights(self, queries):
        return log_weights_of_cells(self.proposal_, queries)


class BestOfUniform(NamedTuple):
    """The best-scored of some uniform draws; log_q is set to zero."""

    n_items: int
    vectors: np.ndarray  #: (n_items, d), float32
    n_candidates: int

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw candidates, and take the best of them."""
        n_candidates = proposal.n_candidates
        for j in range(ids.shape[0]):
            best = -np.float32(np.inf)
            chosen = 0
            for c in range(n_candidates):
                item = random_below(key, j * n_candidates + c, proposal.n_items)
                score = dot_with_row(query, proposal.vectors, np.uint64(item))
                if c == 0 or score > best:
                    best = score
                    chosen = item
            ids[j] = chosen
            log_q[j] = ZERO

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {"vectors": (np.float32, (self.n_items, width))}


class WeightedUniform(NamedTuple):
    """Uniform draws; log_q is minus the log of the weight of a draw.

    That is n times softmax(<q, v_i> / temperature) among the n draws.
    """

    n_items: int
    vectors: np.ndarray  #: (n_items, d), float32
    temperature: float

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw items and compare their scores."""
        sharpness = np.float32(1.0 / proposal.temperature)
        for j in range(ids.shape[0]):
            item = random_below(key, j, proposal.n_items)
            ids[j] = item
            log_q[j] = sharpness * dot_with_row(query, proposal.vectors, np.uint64(item))
        turn_into_weights(log_q)

    arrays = BestOfUniform.arrays


class DNS(UncorrectedSampler):
    """Dynamic negative sampling: the best by score of several uniform draws [1]_.

    With ``n_candidates`` n, M items and ranks r from the worst score (1) to the best (M), an item
    is drawn with probability ``(r / M)^n - ((r - 1) / M)^n``; items with equal scores share their
    probability. Draws are hard negatives, meant to be used as they are: losses do not correct for
    the probabilities. A softmax over them is a softmax of another distribution, with a lower
    temperature.

    Parameters
    ----------
    n_candidates : int, default=8
        Number of uniform draws of which the best is taken. 1 is the uniform distribution.
    refresh : int, default=1
        Epochs between updates of the vectors used for scores.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: a copy of the item vectors, 4 M d bytes. A draw costs ``n_candidates`` dot products of
    length d. ``log_proba`` sorts the scores of all items, and ``sample`` calls it for ``log_q``;
    losses do not.

    References
    ----------
    .. [1] W. Zhang, T. Chen, J. Wang, Y. Yu. "Optimizing Top-n Collaborative Filtering via Dynamic
       Negative Item Sampling". SIGIR 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import DNS
    >>> sampler = DNS(n_candidates=2).fit([[1.0], [2.0], [3.0], [4.0]])
    >>> np.exp(sampler.log_proba([[1.0]])).round(4)
    array([[0.0625, 0.1875, 0.3125, 0.4375]])
    """

    proposal_type = BestOfUniform
    _parameter_constraints = {"n_candidates": POSITIVE_INTEGER, "refresh": POSITIVE_INTEGER}

    def __init__(self, n_candidates: int = 8, *, refresh: int = 1):
        self.n_candidates = n_candidates
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        return BestOfUniform(len(vectors), vectors, int(self.n_candidates))

    def _log_weights(self, queries):
        scores = queries @ self.item_vectors_.T.astype(np.float64)
        n_items, n = scores.shape[1], self.n_candidates
        weights = np.empty_like(scores)
        for row, weight in zip(scores, weights, strict=True):
            _, rank, ties = np.unique(row, return_inverse=True, return_counts=True)
            up_to = np.cumsum(ties) / n_items
            below = up_to - ties / n_items
            # x^n - y^n divided by the number of ties, by logarithms: a small x may underflow.
            with np.errstate(divide="ignore"):
                log = n * np.log(up_to) + np.log1p(-np.exp(n * (np.log(below) - np.log(up_to))))
            weight[:] = (log - np.log(ties))[rank]
        return weights


class SelfAdversarial(QuerySampler):
    """Uniform draws, weighted by the softmax of their scores [1]_.

    The n draws j of a query q have the weights ``p_j = softmax_j(<q, v_j> / temperature)``,
    constants in the gradient. A loss that subtracts ``log_q`` multiplies a draw's exponential by
    ``1 / (M Q_j)``; here that is the weight relative to the mean, ``n p_j``, so ``log_q`` is
    ``-log(M n p_j)``. :class:`~freqfm.losses.BPR` and other losses of pairs weight a positive's
    negatives by p_j. Hard negatives count more, on purpose; ``log_proba`` returns the uniform
    probabilities of the draws.

    Parameters
    ----------
    temperature : float, default=1.0
        Divisor of the scores in the softmax. Infinity would be uniform sampling. The paper
        multiplies by its alpha instead.
    refresh : int, default=1
        Epochs between updates of the vectors used for weights.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: a copy of the item vectors, 4 M d bytes. A draw costs one dot product of length d.

    References
    ----------
    .. [1] Z. Sun, Z.-H. Deng, J.-Y. Nie, J. Tang. "RotatE: Knowledge Graph Embedding by Relational
       Rotation in Complex Space". ICLR 2019, equation (5).

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import SelfAdversarial
    >>> sampler = SelfAdversarial().fit([[1.0], [2.0], [3.0], [4.0]])
    >>> ids, log_q = sampler.sample([[1.0]], 6, random_state=0)
    >>> weights = np.exp(-log_q) / 4  # relative to their mean
    >>> float(weights.mean().round(4))
    1.0
    """

    weighted = True
    proposal_type = WeightedUniform
    _parameter_constraints = {"temperature": POSITIVE, "refresh": POSITIVE_INTEGER}

    def __init__(self, temperature: float = 1.0, *, refresh: int = 1):
        self.temperature = temperature
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        return WeightedUniform(len(vectors), vectors, float(self.temperature))

    def _log_weights(self, queries):
        # The draws are uniform.
        return np.zeros((len(queries), self.proposal_.n_items))


class RankedByFactors(NamedTuple):
    """Items by their rank in a factor, with log_q of zero."""

    n_items: int
    rank_scale: float
    order: np.ndarray  #: (d, n_items), int32: the items of each factor, from large to small
    deviations: np.ndarray  #: (d,), float32: the factors' standard deviations over items

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        """Write cumulative sums of the factors' weights; equal weights if all are zero."""
        d = proposal.deviations.shape[0]
        total = 0.0
        for f in range(d):
            total += abs(query[f]) * proposal.deviations[f]
            sums[f] = total
        if not total > 0:
            for f in range(d):
                sums[f] = f + 1.0

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw a factor and a rank, counted from below if the query's factor is negative."""
        d, n_items = proposal.order.shape
        within = -math.expm1(-n_items / proposal.rank_scale)
        for j in range(ids.shape[0]):
            at = random_number(key, 2 * j) * sums[d - 1]
            f = find_in_sums(sums, 0, d, at)
            depth = -math.log1p(-within * random_number(key, 2 * j + 1))
            rank = min(np.int64(depth * proposal.rank_scale), n_items - 1)
            if query[f] < ZERO:
                rank = n_items - 1 - rank
            ids[j] = proposal.order[f, rank]
            log_q[j] = ZERO

    def scratch(self):
        """Return the lengths of ``numbers`` and ``sums``."""
        return 0, len(self.deviations)

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {"order": (np.int32, (width, self.n_items)), "deviations": (np.float32, (width,))}

    def check(self, learned, name):
        """Raise unless the lists hold items, see ``check_proposal``."""
        learned.indices(f"{name}.order", self.order.ravel(), self.n_items)


class AOBPR(UncorrectedSampler):
    """Adaptive oversampling: items that are far up in one factor of the user's score [1]_.

    A draw for a query q takes two steps, neither of which needs a score:

    - a factor f with probability in proportion to ``|q_f| s_f``, where s_f is the standard
      deviation of the factor over items;
    - a rank r = 0, 1, ... with probability in proportion to ``exp(-r / rank_scale)``, and the item
      of that rank in the list of items sorted by the factor, from the largest or, if q_f is
      negative, from the smallest.

    Draws are hard negatives, meant to be used as they are, by :class:`~freqfm.losses.BPR` above
    all: losses do not correct for the probabilities.

    Parameters
    ----------
    rank_scale : float, default=500.0
        The paper's lambda, in items: about the mean rank, if there are many more items. A small
        one draws few items again and again, a large one is uniform.
    refresh : int or None, default=None
        Epochs between updates of the lists. None updates them before each epoch and, as in the
        paper, after each ``n_items log(n_items)`` of its draws;
        :class:`~freqfm.FastVAERecommender` updates them between epochs only.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Memory: 4 M d bytes for M items. A query costs d multiplications, a draw a search among d sums;
    sorting costs M d log M. ``sample`` calls ``log_proba`` for ``log_q``; losses do not.

    The paper's model also has a bias for each item, one more factor, as
    :class:`~freqfm.FastVAERecommender` has; :class:`~freqfm.MFRecommender` has none.

    References
    ----------
    .. [1] S. Rendle, C. Freudenthaler. "Improving Pairwise Learning for Item Recommendation from
       Implicit Feedback". WSDM 2014, section 5.3.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import AOBPR
    >>> sampler = AOBPR(rank_scale=1.0).fit([[3.0], [1.0], [2.0]])
    >>> np.exp(sampler.log_proba([[1.0], [-1.0]])).round(3)
    array([[0.665, 0.09 , 0.245],
           [0.09 , 0.665, 0.245]])
    """

    proposal_type = RankedByFactors
    _parameter_constraints = {"rank_scale": POSITIVE, "refresh": [*POSITIVE_INTEGER, None]}

    def __init__(self, rank_scale: float = 500.0, *, refresh: int | None = None):
        self.rank_scale = rank_scale
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        # A stable sort: lists are the same wherever vectors are.
        order = np.argsort(-vectors.T, axis=1, kind="stable").astype(np.int32)
        deviations = vectors.std(axis=0, dtype=np.float64).astype(np.float32)
        return RankedByFactors(len(vectors), float(self.rank_scale), order, deviations)

    def _log_weights(self, queries):
        p = self.proposal_
        weights = np.abs(queries) * p.deviations
        weights[~weights.any(axis=1)] = 1
        by_rank = np.exp(-np.arange(p.n_items) / p.rank_scale)
        upward, downward = np.empty((2, *p.order.shape))
        np.put_along_axis(upward, p.order, by_rank, axis=1)
        np.put_along_axis(downward, p.order, by_rank[::-1], axis=1)
        rising = np.where(queries < 0, 0, weights)
        with np.errstate(divide="ignore"):
            return np.log(rising @ upward + (weights - rising) @ downward)
