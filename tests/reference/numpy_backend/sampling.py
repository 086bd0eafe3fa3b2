"""Negatives drawn for queries: the laws of ``Proposal``, by inversion of cumulative sums."""

import itertools

import numpy as np
from scipy.special import logsumexp

from freqfm.formulas import codes

from .streams import bits, hashes, uniform


def _invert(weights, at):
    """Return where numbers in [0, 1) fall among the cumulative sums of weights."""
    sums = np.cumsum(weights, dtype=np.float64)
    return np.minimum(np.searchsorted(sums, at * sums[-1], side="right"), len(sums) - 1)


def _positions(at, n):
    return np.minimum((at * n).astype(np.int64), n - 1)


class Law:
    """What a proposal becomes for one query."""

    def __init__(self, proposal, query):
        self.proposal, self.query = proposal, query.astype(np.float64)
        self.n_items = proposal.n_items
        if proposal.code == codes.PROPOSAL_CELLS:
            by_codeword = proposal.codewords @ self.query
            self.cell_logits = by_codeword[proposal.cell_codes].sum(axis=1)
            self.log_total = logsumexp(self.cell_logits + proposal.cell_log_weights)
        elif proposal.code == codes.PROPOSAL_SOFTMAX:
            self.log_total = logsumexp(self._scores(slice(None)))
        elif proposal.code == codes.PROPOSAL_QUADRATIC:
            self.log_total = np.log(self._kernel(slice(None)).sum())

    def _scores(self, items):
        return self.proposal.vectors[items] @ self.query

    def _kernel(self, items):
        return self.proposal.alpha * self._scores(items) ** 2 + 1

    def static(self, items):
        """Return the part of ``log_q`` that depends on the items alone."""
        log_q = self.proposal.log_q
        return log_q[items] if len(log_q) else np.zeros(len(items))

    def log_q(self, items):
        """Return log(n_items Q(item | query))."""
        code, static = self.proposal.code, self.static(items)
        log_n = np.log(self.n_items)
        if code == codes.PROPOSAL_GIVEN:
            return static
        if code == codes.PROPOSAL_CELLS:
            of_cells = self.cell_logits[self.proposal.cell_of[items]]
            return static + of_cells - self.log_total + log_n
        if code == codes.PROPOSAL_SOFTMAX:
            return self._scores(items) - self.log_total + log_n
        if code == codes.PROPOSAL_QUADRATIC:
            return np.log(self._kernel(items)) - self.log_total + log_n
        return np.zeros(len(items))

    def draw(self, key, n):
        """Return ``n`` items and their log_q."""
        proposal, code = self.proposal, self.proposal.code
        if code == codes.PROPOSAL_CELLS:
            items = self._draw_from_cells(key, n)
        elif code == codes.PROPOSAL_BEST:
            at = uniform(key, np.arange(n * proposal.n_candidates))
            candidates = _positions(at, self.n_items).reshape(n, -1)
            scores = self._scores(candidates.ravel()).reshape(candidates.shape)
            items = candidates[np.arange(n), scores.argmax(axis=1)]
        elif code == codes.PROPOSAL_SOFTMAX:
            # Items stand cell by cell.
            logits = self._scores(proposal.cell_items)
            slots = _invert(np.exp(logits - logits.max()), uniform(key, np.arange(n)))
            items = proposal.cell_items[slots]
        elif code == codes.PROPOSAL_QUADRATIC:
            weights = self._kernel(slice(None))
            items = np.array([self._descend(weights, draw) for draw in bits(key, np.arange(n))])
        elif code == codes.PROPOSAL_GIVEN:
            weights = np.diff(proposal.cumulative, prepend=0)
            items = _invert(weights, uniform(key, np.arange(n)))
        else:
            items = _positions(uniform(key, np.arange(n)), self.n_items)
        if code == codes.PROPOSAL_WEIGHTED:
            logits = self._scores(items) / proposal.temperature
            return items, logsumexp(logits) - np.log(n) - logits
        return items, self.log_q(items)

    def _draw_from_cells(self, key, n):
        proposal, at = self.proposal, uniform(key, np.arange(3 * n)).reshape(n, 3)
        logits = self.cell_logits + proposal.cell_log_weights
        cells = _invert(np.exp(logits - logits.max()), at[:, 0])
        begins = proposal.cell_starts[cells]
        slots = begins + _positions(at[:, 1], proposal.cell_starts[cells + 1] - begins)
        if not len(proposal.aliases):
            return proposal.cell_items[slots]
        thresholds = proposal.aliases[slots, 2].view(np.float32)
        return proposal.aliases[slots, (at[:, 2] >= thresholds).astype(int)]

    def _descend(self, weights, key):
        """Walk down a binary tree over the items by halves, then choose within a leaf."""
        n_leaves = len(self.proposal.nodes) // 2
        span, begin, node = n_leaves * self.proposal.leaf_size, 0, 1
        while node < n_leaves:
            span, node = span // 2, 2 * node
            left = weights[begin : begin + span].sum()
            both = weights[begin : begin + 2 * span].sum()
            if uniform(key, node) * both >= left:
                node, begin = node + 1, begin + span
        return begin + _invert(weights[begin : begin + span], uniform(key, 0))


def draw_for_queries(proposal, queries, key, n):
    """Return what ``Backend.draw`` does."""
    keys = hashes(np.uint64(key) + np.arange(len(queries), dtype=np.uint64))
    ids = np.zeros((len(queries), n), dtype=np.int32)
    log_q = np.zeros(ids.shape, dtype=np.float32)
    for r, query in enumerate(queries):
        ids[r], log_q[r] = Law(proposal, query).draw(keys[r], n)
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
