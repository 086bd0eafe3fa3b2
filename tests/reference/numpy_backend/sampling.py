"""Negatives drawn for queries, by the distributions of ``Proposal`` and inversion of their sums."""

import itertools

import numpy as np
from scipy.special import logsumexp

from freqfm.formulas import cells, proposals
from freqfm.samplers import _by_query

from .streams import bits, hashes, uniform


def _invert(weights, at):
    """Return where numbers in [0, 1) fall among the cumulative sums of weights."""
    sums = np.cumsum(weights, dtype=np.float64)
    return np.minimum(np.searchsorted(sums, at * sums[-1], side="right"), len(sums) - 1)


def _positions(at, n):
    return np.minimum((at * n).astype(np.int64), n - 1)


class Uniform:
    """Every item is equally likely; the other distributions derive from this one.

    Parameters
    ----------
    proposal : Proposal
    query : ndarray of shape (d,)
    """

    def __init__(self, proposal, query):
        self.proposal, self.query = proposal, query.astype(np.float64)
        self.n_items = proposal.n_items

    def log_q(self, items):
        """Return log(n_items Q(item | query))."""
        return np.zeros(len(items))

    def draw(self, key, n):
        """Return ``n`` items and their log_q."""
        items = self._items(key, n)
        return items, self.log_q(items)

    def _items(self, key, n):
        return _positions(uniform(key, np.arange(n)), self.n_items)

    def _scores(self, items):
        return self.proposal.vectors[items] @ self.query


class Static(Uniform):
    """Probabilities of the items, if there are any."""

    def log_q(self, items):
        """Return log(n_items Q(item))."""
        return self.proposal.log_q[items] if len(self.proposal.log_q) else super().log_q(items)

    def _items(self, key, n):
        if not len(self.proposal.aliases):
            return super()._items(key, n)
        drawn, aliases = bits(key, np.arange(n)), self.proposal.aliases
        slots = ((drawn >> np.uint64(32)) * np.uint64(self.n_items)) >> np.uint64(32)
        # The 24 bits below those of the slot.
        at = (drawn >> np.uint64(8) & np.uint64(2**24 - 1)) / 2**24
        return aliases[slots, (at >= aliases[slots, 2].view(np.float32)).astype(int)]


class Cells(Uniform):
    """A cell by its codewords and the query, then one of its items by a probability."""

    def __init__(self, proposal, query):
        super().__init__(proposal, query)
        by_codeword = proposal.codewords @ self.query
        self.cell_logits = by_codeword[proposal.cell_codes].sum(axis=1)
        self.log_total = logsumexp(self.cell_logits + proposal.cell_log_weights)

    def log_q(self, items):
        """Return log(n_items Q(item | query))."""
        log_q = self.proposal.log_q
        static = log_q[items] if len(log_q) else np.zeros(len(items))
        of_cells = self.cell_logits[self.proposal.cell_of[items]]
        return static + of_cells - self.log_total + np.log(self.n_items)

    def _items(self, key, n):
        proposal, at = self.proposal, uniform(key, np.arange(3 * n)).reshape(n, 3)
        logits = self.cell_logits + proposal.cell_log_weights
        cells = _invert(np.exp(logits - logits.max()), at[:, 0])
        begins = proposal.cell_starts[cells]
        slots = begins + _positions(at[:, 1], proposal.cell_starts[cells + 1] - begins)
        if not len(proposal.aliases):
            return proposal.cell_items[slots]
        thresholds = proposal.aliases[slots, 2].view(np.float32)
        return proposal.aliases[slots, (at[:, 2] >= thresholds).astype(int)]


class Softmax(Uniform):
    """The exponential of the score."""

    def log_q(self, items):
        """Return log(n_items Q(item | query))."""
        return self._scores(items) - logsumexp(self._scores(slice(None))) + np.log(self.n_items)

    def _items(self, key, n):
        # Items stand cell by cell.
        logits = self._scores(self.proposal.cell_items)
        slots = _invert(np.exp(logits - logits.max()), uniform(key, np.arange(n)))
        return self.proposal.cell_items[slots]


class Quadratic(Uniform):
    """The square of the score, by a binary tree over the items."""

    def log_q(self, items):
        """Return log(n_items Q(item | query))."""
        weights = self._weights()
        return np.log(weights[items] / weights.mean())

    def _weights(self):
        return self.proposal.alpha * self._scores(slice(None)) ** 2 + 1

    def _items(self, key, n):
        weights = self._weights()
        return np.array([self._descend(weights, draw) for draw in bits(key, np.arange(n))])

    def _descend(self, weights, key):
        """Walk down the tree by halves, then choose within a leaf."""
        n_leaves = len(self.proposal.nodes) // 2
        span, begin, node = n_leaves * self.proposal.leaf_size, 0, 1
        while node < n_leaves:
            span, node = span // 2, 2 * node
            left = weights[begin : begin + span].sum()
            both = weights[begin : begin + 2 * span].sum()
            if uniform(key, node) * both >= left:
                node, begin = node + 1, begin + span
        return begin + _invert(weights[begin : begin + span], uniform(key, 0))


class Best(Uniform):
    """The best of some uniform draws; losses do not correct for its probability."""

    def _items(self, key, n):
        at = uniform(key, np.arange(n * self.proposal.n_candidates))
        candidates = _positions(at, self.n_items).reshape(n, -1)
        scores = self._scores(candidates.ravel()).reshape(candidates.shape)
        return candidates[np.arange(n), scores.argmax(axis=1)]


class Weighted(Uniform):
    """Uniform draws, weighted by the softmax of their scores."""

    def draw(self, key, n):
        """Return ``n`` items, and minus the logarithms of their weights."""
        items = self._items(key, n)
        logits = self._scores(items) / self.proposal.temperature
        return items, logsumexp(logits) - np.log(n) - logits


class WeightedCells(Cells):
    """Draws from cells, weighted by the softmax of their scores over their probabilities."""

    def log_q(self, items):
        """Return zeros: positives have the mean weight."""
        return np.zeros(len(items))

    def draw(self, key, n):
        """Return ``n`` items, and minus the logarithms of their weights."""
        items = self._items(key, n)
        logits = self._scores(items) - super().log_q(items)
        return items, logsumexp(logits) - np.log(n) - logits


class Ranked(Uniform):
    """A factor by its size, and the item of a geometric rank in its list."""

    def _items(self, key, n):
        proposal, at = self.proposal, uniform(key, np.arange(2 * n)).reshape(n, 2)
        factors = _invert(np.abs(self.query) * proposal.deviations, at[:, 0])
        by_rank = np.exp(-np.arange(self.n_items) / proposal.rank_scale)
        ranks = _invert(by_rank, at[:, 1])
        ranks = np.where(self.query[factors] < 0, self.n_items - 1 - ranks, ranks)
        return proposal.order[factors, ranks]


#: By the class of the proposal.
DISTRIBUTIONS = {
    proposals.Proposal: Static,
    cells.Cells: Cells,
    cells.ExactSoftmax: Softmax,
    _by_query.Quadratic: Quadratic,
    _by_query.BestOfUniform: Best,
    _by_query.WeightedUniform: Weighted,
    _by_query.WeightedCells: WeightedCells,
    _by_query.RankedByFactors: Ranked,
}


def distribution_of(proposal, query):
    """Return what a proposal becomes for one query."""
    return DISTRIBUTIONS[type(proposal)](proposal, query)


def draw_for_queries(proposal, queries, key, n):
    """Return what ``Backend.draw`` does."""
    keys = hashes(np.uint64(key) + np.arange(len(queries), dtype=np.uint64))
    ids = np.zeros((len(queries), n), dtype=np.int32)
    log_q = np.zeros(ids.shape, dtype=np.float32)
    for r, query in enumerate(queries):
        ids[r], log_q[r] = distribution_of(proposal, query).draw(keys[r], n)
    return ids, log_q


def alias_tables(starts, weights):
    """Return what ``Backend.alias_tables`` does (Vose, 1991).

    The last position that has less than its share takes the rest from the first that has more, as
    long as there are both.
    """
    thresholds = np.ones(len(weights), dtype=np.float32)
    aliases = np.arange(len(weights), dtype=np.int32)
    for begin, end in itertools.pairwise(starts):
        shares = weights[begin:end] * ((end - begin) / weights[begin:end].sum())
        small = list(np.flatnonzero(shares < 1))
        large = list(np.flatnonzero(shares >= 1))
        while small and large:
            j, other = small.pop(), large[-1]
            thresholds[begin + j], aliases[begin + j] = shares[j], begin + other
            shares[other] -= 1 - shares[j]
            if shares[other] < 1:
                small.append(large.pop())
    return thresholds, aliases
