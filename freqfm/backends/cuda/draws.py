"""Negatives drawn for queries, on a device.

A group draws for a query. From cells of items, see ``formulas.cells``, all of its lanes do: weights
of cells are added as integers, whose sums do not depend on an order. From other distributions one
lane draws, by the formulas that draw on a CPU, see ``formulas.proposals``.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.cuda.groups import group_max, last_of_lanes, prefix_sum, synchronize_group
from freqfm.formulas.cells import Cells, cell_logit
from freqfm.formulas.proposals import draw_negatives, draws_from, log_q_of, prepare_query
from freqfm.formulas.rng import random_bits, uniform
from freqfm.formulas.selection import first_above
from freqfm.formulas.special import exp_of_minus

# The largest weight of a cell.
_UNIT = np.float32(1 << 30)

_32, _24, _8 = np.uint64(32), np.uint64(24), np.uint64(8)
_LOW = np.uint64((1 << 24) - 1)


class DeviceCells(NamedTuple):
    """The arrays of ``formulas.cells.Cells`` on a device."""

    codewords: np.ndarray
    cell_codes: np.ndarray
    cell_log_weights: np.ndarray
    cell_starts: np.ndarray  #: int32
    cell_items: np.ndarray
    cell_of: np.ndarray
    aliases: np.ndarray
    log_q: np.ndarray
    log_n_items: float


class DrawScratch(NamedTuple):
    """Working memory for R queries, and their draws.

    That of a distribution's formulas is as on a CPU.
    """

    #: (R, ...), float32; with cells n_codewords + n_cells, scores of codewords, then of cells.
    numbers: np.ndarray
    #: (R, ...), float64; with cells n_cells, int64, weights of cells up to each.
    sums: np.ndarray
    ids: np.ndarray  #: (R, n), int32
    log_q: np.ndarray  #: (R, n), float32


def has_cells(proposal):
    """Return whether all lanes of a group draw from a proposal."""
    return type(proposal) is Cells


def proposal_on(device, proposal):
    """Return a proposal with its arrays on a device."""
    if not has_cells(proposal):
        arrays = {k: v for k, v in proposal._asdict().items() if isinstance(v, np.ndarray)}
        return proposal._replace(**{k: device.to_device(v) for k, v in arrays.items()})
    proposal = proposal._replace(cell_starts=proposal.cell_starts.astype(np.int32))
    arrays = (device.to_device(getattr(proposal, name)) for name in DeviceCells._fields[:-1])
    return DeviceCells(*arrays, np.float32(math.log(proposal.n_items)))


def draw_scratch(device, proposal, n_queries, n, last=None):
    """Return DrawScratch for at most ``n_queries``; that of the last proposal if it fits."""
    if has_cells(proposal):
        n_sums, kind = len(proposal.cell_codes), np.int64
        n_numbers = len(proposal.codewords) + n_sums
    else:
        draws, kind = draws_from(proposal, 1), np.float64
        n_numbers, n_sums = draws.numbers.shape[1], draws.sums.shape[1]
    if last is not None and (last.numbers.shape[1], last.sums.shape[1]) == (n_numbers, n_sums):
        return last
    return DrawScratch(
        device.empty((n_queries, n_numbers), np.float32),
        device.empty((n_queries, n_sums), kind),
        device.empty((n_queries, n), np.int32),
        device.empty((n_queries, n), np.float32),
    )


@inlined
def _below(bits, n):
    """Return a random integer below ``n``, which is less than 2^56; both are uint64."""
    high = bits >> _32
    return ((high * (n >> _24)) >> _8) + ((high * (n & _LOW)) >> _32)


@inlined
def _score_cells(group, cells, queries, r, numbers):
    """Write the scores of codewords and the logits of cells; return the largest logit."""
    n_codewords, width = cells.codewords.shape
    for c in range(group.lane, n_codewords, group.n_lanes):
        total = ZERO
        for f in range(width):
            total += queries[r, f] * cells.codewords[c, f]
        numbers[c] = total
    synchronize_group(group)
    largest = -np.float32(np.inf)
    for c in range(group.lane, cells.cell_codes.shape[0], group.n_lanes):
        logit = cells.cell_log_weights[c] + cell_logit(cells.cell_codes, c, numbers)
        numbers[n_codewords + c] = logit
        largest = max(largest, logit)
    return group_max(group, largest)


@inlined
def _sum_weights(group, largest, numbers, first, sums):
    """Write the sums of the weights of cells; return the last of them."""
    before, n_cells = np.int64(0), sums.shape[0]
    for start in range(0, n_cells, group.n_lanes):
        c = start + group.lane
        weight = np.int64(0)
        if c < n_cells:
            weight = np.int64(_UNIT * exp_of_minus(largest - numbers[first + c]))
        up_to = prefix_sum(group, weight)
        if c < n_cells:
            sums[c] = before + up_to
        before += last_of_lanes(group, up_to)
    return before


@inlined
def log_q_of_item(cells, k, numbers, log_total):
    """Return log(n_items Q(k | query)), given the scores of codewords by the query."""
    static = cells.log_q[k] if cells.log_q.shape[0] > 0 else ZERO
    return static + cell_logit(cells.cell_codes, cells.cell_of[k], numbers) - log_total


@inlined
def draw_from_cells(group, cells, queries, r, key, scratch):
    """Draw items for query ``r``, which the group has written.

    They and their corrections go to row ``r`` of the scratch. Returns the numbers that
    ``log_q_of_item`` needs.
    """
    numbers, sums = scratch.numbers[r], scratch.sums[r]
    largest = _score_cells(group, cells, queries, r, numbers)
    total = _sum_weights(group, largest, numbers, cells.codewords.shape[0], sums)
    log_sum = np.float32(math.log(np.float32(total) / _UNIT))
    log_total = largest + log_sum - cells.log_n_items
    synchronize_group(group)
    for j in range(group.lane, scratch.ids.shape[1], group.n_lanes):
        position = np.int64(_below(random_bits(key, 3 * j), np.uint64(total)))
        cell = first_above(sums, 0, sums.shape[0] - 1, position)
        begin = cells.cell_starts[cell]
        size = np.uint64(cells.cell_starts[cell + 1] - begin)
        at = begin + np.int64(_below(random_bits(key, 3 * j + 1), size))
        log_q = cell_logit(cells.cell_codes, cell, numbers) - log_total
        if cells.aliases.shape[0] == 0:
            scratch.ids[r, j] = cells.cell_items[at]
        else:
            threshold = np.int32(cells.aliases[at, 2]).view(np.float32)
            other = 1 if uniform(random_bits(key, 3 * j + 2)) >= threshold else 0
            scratch.ids[r, j] = cells.aliases[at, other]
            log_q += np.int32(cells.aliases[at, 3 + other]).view(np.float32)
        scratch.log_q[r, j] = log_q
    return log_total


@inlined
def draw_by_formulas(proposal, queries, r, key, scratch):
    """Draw items for query ``r``, by one lane; they and their corrections go to the scratch."""
    query, numbers, sums = queries[r], scratch.numbers[r], scratch.sums[r]
    prepare_query(proposal, query, numbers, sums)
    draw_negatives(proposal, query, key, scratch.ids[r], scratch.log_q[r], numbers, sums)


@inlined
def log_q_by_formulas(proposal, queries, r, k, scratch):
    """Return log(n_items Q(k | query r)), after the draws for the query."""
    return log_q_of(proposal, queries[r], k, scratch.numbers[r], scratch.sums[r])
