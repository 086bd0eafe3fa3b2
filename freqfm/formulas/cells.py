"""The distribution of cells: an item by the codewords that approximate its vector."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.formulas.proposals import (
    dot_with_row,
    find_in_sums,
    is_alias,
    random_below,
    random_number,
)
from freqfm.formulas.special import exp_of_minus


@inlined
def cell_logit(cell_codes, cell, numbers):
    """Return <q, the cell's codewords>; ``numbers`` begin with the scores of all codewords."""
    logit = ZERO
    for s in range(cell_codes.shape[1]):
        logit += numbers[np.uint64(cell_codes[cell, s])]
    return logit


@inlined
def _score_cells(proposal, query, numbers):
    """Write the scores of codewords, the largest logit of each last code, and those of the grid.

    Returns the largest of all.
    """
    n_codewords = proposal.codewords.shape[0]
    n_prefixes, k = proposal.grid.shape
    for c in range(n_codewords):
        numbers[c] = dot_with_row(query, proposal.codewords, c)
    for j in range(k):
        numbers[np.uint64(n_codewords + j)] = -np.float32(np.inf)
    for p in range(n_prefixes):
        score = cell_logit(proposal.prefix_codes, np.uint64(p), numbers)
        row = n_codewords + (p + 1) * k
        for j in range(k):
            top = np.uint64(n_codewords + j)
            logit = score + numbers[np.uint64(n_codewords - k + j)] + proposal.grid[p, j]
            numbers[np.uint64(row + j)] = logit
            numbers[top] = max(numbers[top], logit)
    largest = -np.float32(np.inf)
    for j in range(k):
        largest = max(largest, numbers[np.uint64(n_codewords + j)])
    return largest


@inlined
def _draw_cell(proposal, position, numbers, sums):
    """Return the index in ``proposal.grid_cells`` at a position among the cumulative sums."""
    n_prefixes, k = proposal.grid.shape
    prefix = find_in_sums(sums, 2, n_prefixes, position)
    position = np.float32(position - sums[np.uint64(1 + prefix)])
    row = prefix * k
    return row + find_in_sums(numbers, proposal.codewords.shape[0] + k + row, k, position)


class Cells(NamedTuple):
    """Items in proportion to exp(<q, the codewords of the item's cell> + log_q[i])."""

    #: (n_items,), float32: the part of log(n_items Q(item | query)) that does not depend on the
    #: query; empty for zeros.
    log_q: np.ndarray
    n_items: int
    #: (n_items, d), float32, or empty; for the residuals of :class:`ExactSoftmax`.
    vectors: np.ndarray
    #: (n, d), float32: the codewords of all subspaces, zero outside their subspace.
    codewords: np.ndarray
    #: (n_cells, n_subspaces), int32: a cell's rows of ``codewords``. No cell is empty.
    cell_codes: np.ndarray
    #: (n_cells,), float32: log of the sum of exp(log_q) over the cell's items.
    cell_log_weights: np.ndarray
    #: (n_cells + 1,), int64: where a cell's items begin in ``cell_items``.
    cell_starts: np.ndarray
    #: (n_items,), int32: the items, cell by cell.
    cell_items: np.ndarray
    #: (n_items,), int32: the cell of each item.
    cell_of: np.ndarray
    #: (n_prefixes, n_subspaces - 1), int32: the combinations of all codes but the last that occur.
    prefix_codes: np.ndarray
    #: (n_prefixes, n_codewords of a subspace), float32: ``cell_log_weights`` of the cell with these
    #: codes and this last code; minus infinity if it is empty.
    grid: np.ndarray
    #: (grid.size,), int32: that cell, or if there is none, another one with the same other codes.
    grid_cells: np.ndarray
    #: (n_items, 5), int32: alias tables of the cells, in the order of ``cell_items``, with the
    #: columns of ``Proposal.aliases``; or empty if the items of a cell are equally likely.
    aliases: np.ndarray

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        """Turn the logits of cells into cumulative sums of their exponentials, prefix by prefix.

        After sums[0], log(total / n_items), come a zero and the cumulative sums over prefixes.
        """
        n_prefixes, k = proposal.grid.shape
        first = proposal.codewords.shape[0] + k
        largest = _score_cells(proposal, query, numbers)
        for i in range(first, first + n_prefixes * k):
            at = np.uint64(i)
            numbers[at] = exp_of_minus(max(largest - numbers[at], ZERO))
        total = sums[1] = 0.0
        for p in range(n_prefixes):
            of_prefix = ZERO
            for i in range(first + p * k, first + (p + 1) * k):
                of_prefix += numbers[np.uint64(i)]
                numbers[np.uint64(i)] = of_prefix
            total += of_prefix
            sums[np.uint64(2 + p)] = total
        sums[0] = np.float64(largest) + math.log(total / proposal.n_items)

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw cells, and then an item of each."""
        n = ids.shape[0]
        total = sums[np.uint64(1 + proposal.grid.shape[0])]
        for j in range(n):
            ids[j] = _draw_cell(proposal, random_number(key, 3 * j) * total, numbers, sums)
        for j in range(n):
            cell = np.uint64(proposal.grid_cells[np.uint64(ids[j])])
            begin = proposal.cell_starts[cell]
            size = proposal.cell_starts[cell + np.uint64(1)] - begin
            ids[j] = begin + random_below(key, 3 * j + 1, size)
            log_q[j] = np.float32(cell_logit(proposal.cell_codes, cell, numbers) - sums[0])
        # Items are scattered in memory: a loop of independent loads keeps many misses in flight.
        if proposal.aliases.shape[0] == 0:
            for j in range(n):
                ids[j] = proposal.cell_items[np.uint64(ids[j])]
            return
        for j in range(n):
            slot = np.uint64(ids[j])
            other = is_alias(proposal.aliases, slot, random_number(key, 3 * j + 2))
            ids[j] = proposal.aliases[slot, other]
            log_q[j] += np.int32(proposal.aliases[slot, 3 + other]).view(np.float32)

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return log(n_items Q(item | query))."""
        k = np.uint64(item)
        static = proposal.log_q[k] if proposal.log_q.shape[0] > 0 else ZERO
        cell = np.uint64(proposal.cell_of[k])
        return np.float32(static + cell_logit(proposal.cell_codes, cell, numbers) - sums[0])

    def scratch(self):
        """Return the lengths of ``numbers`` and ``sums``."""
        n_numbers = len(self.codewords) + self.grid.shape[1] + self.grid.size
        return n_numbers, 2 + len(self.prefix_codes)

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        n_items, n_cells, n_subspaces = self.n_items, len(self.cell_codes), self.cell_codes.shape[1]
        return {
            "log_q": (np.float32, (n_items if len(self.log_q) else 0,)),
            "vectors": (np.float32, (n_items, width) if len(self.vectors) else (0, None)),
            "codewords": (np.float32, (None, width)),
            "cell_codes": (np.int32, (None, None)),
            "cell_log_weights": (np.float32, (n_cells,)),
            "cell_starts": (np.int64, (n_cells + 1,)),
            "cell_items": (np.int32, (n_items,)),
            "cell_of": (np.int32, (n_items,)),
            "prefix_codes": (np.int32, (None, n_subspaces - 1)),
            "grid": (np.float32, (len(self.prefix_codes), None)),
            "grid_cells": (np.int32, (self.grid.size,)),
            "aliases": (np.int32, (n_items, 5) if len(self.aliases) else (0, None)),
        }

    def check(self, learned, name):
        """Raise unless the indices in the arrays can be followed, see ``check_proposal``."""
        starts, n_items = self.cell_starts, self.n_items
        fits = starts[0] == 0 and starts[-1] == n_items and (np.diff(starts) > 0).all()
        learned.require(fits, f"{name}.cell_starts", f"does not rise from 0 to {n_items}")
        n_codewords, n_cells, width = len(self.codewords), len(self.cell_codes), self.grid.shape[1]
        fits = width * self.cell_codes.shape[1] == n_codewords
        learned.require(fits, f"{name}.grid", f"has {width} columns")
        learned.indices(f"{name}.aliases", self.aliases[:, :2].ravel(), n_items)
        for field, n in (
            ("cell_codes", n_codewords),
            ("prefix_codes", n_codewords),
            ("cell_items", n_items),
            ("cell_of", n_cells),
            ("grid_cells", n_cells),
        ):
            learned.indices(f"{name}.{field}", getattr(self, field).ravel(), n)


#: For the draws of other distributions.
draw_from_cells = inlined(Cells.draw)


class ExactSoftmax(Cells):
    """Items in proportion to exp(<q, v_i>).

    They are in the order of their cells, so the sums over cells are among those over items: drawing
    an item is the same as drawing its cell, and then the item by its residual.
    """

    __slots__ = ()

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        """Sum the exponentials of all logits; sums[0] is log(total / n_items)."""
        n = proposal.n_items
        largest = -np.float32(np.inf)
        for j in range(n):
            logit = dot_with_row(query, proposal.vectors, np.uint64(proposal.cell_items[j]))
            numbers[j] = logit
            largest = max(largest, logit)
        for j in range(n):
            numbers[j] = exp_of_minus(max(largest - numbers[j], ZERO))
        total = 0.0
        for j in range(n):
            total += numbers[j]
            sums[1 + j] = total
        sums[0] = np.float64(largest) + math.log(total) - math.log(n)

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Find the items among the sums."""
        n = proposal.n_items
        for j in range(ids.shape[0]):
            slot = find_in_sums(sums, 1, n, random_number(key, j) * sums[n])
            ids[j] = proposal.cell_items[slot]
            log_q[j] = dot_with_row(query, proposal.vectors, np.uint64(ids[j])) - sums[0]

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return log(n_items Q(item | query))."""
        return np.float32(dot_with_row(query, proposal.vectors, np.uint64(item)) - sums[0])

    def scratch(self):
        """Return the lengths of ``numbers`` and ``sums``."""
        return 1 + self.n_items, 1 + self.n_items

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {**super().arrays(width), "vectors": (np.float32, (self.n_items, width))}
