"""Drawing of negatives for one query at a time, by any of the samplers.

A kernel that needs negatives for a vector calls, for every row of its batch, ::

    draw_negatives(proposal, query, key, ids, log_q, numbers, sums)

with the 1-D arrays

- ``query`` (d,), float32: the vector whose dot product with an item's is the item's logit;
- ``key``, uint64: the random stream of the row, from (seed, epoch, row);
- ``ids`` (n,), int32: receives n items, drawn with replacement;
- ``log_q`` (n,), float32: receives log(n_items Q(item | query)) of each of them, the log of its
  probability relative to uniform sampling, which a softmax subtracts from the logit;
- ``numbers`` float32 and ``sums`` float64: the thread's rows of ``draw_scratch(proposal, size)``.

Then, until the next query, ``log_q_of(proposal, query, item, numbers, sums)`` returns the same for
any other item, such as a positive. A draw depends only on the proposal, the query and the key, not
on other rows or on threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, subroutine
from freqfm.formulas.rng import random_bits, slot_and_position, unit_interval
from freqfm.formulas.special import exp_of_minus

#: Codes of the distributions; ``Proposal`` has their formulas.
PROPOSAL_UNIFORM = 0
PROPOSAL_GIVEN = 1
PROPOSAL_CELLS = 2
PROPOSAL_SOFTMAX = 3
PROPOSAL_QUADRATIC = 4
PROPOSAL_BEST = 5
PROPOSAL_WEIGHTED = 6

#: Distributions that need no query; ``draw_static`` draws from them.
STATIC = (PROPOSAL_UNIFORM, PROPOSAL_GIVEN)

_NO_FLOATS = np.zeros(0, dtype=np.float32)
_NO_INTEGERS = np.zeros(0, dtype=np.int32)
_NO_ROWS = np.zeros((0, 1), dtype=np.float32)

# Every draw visits the uppermost nodes of a tree: their weights are cached for the query.
_KEPT_NODES = 1024

# Of so many sums all are compared: a few instructions, and no branch.
_COMPARED = 64

# Tells the random numbers for negatives from the others of a row.
DRAWS = np.uint64(0x5DEECE66D)

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 16


class Proposal(NamedTuple):
    """The distribution that negatives are drawn from; arrays that a sampler does not use are empty.

    With query q and item vectors v, an item i is drawn in proportion to the following, depending on
    ``code``, whose values have these names in ``freqfm.formulas.sampling_laws``:

    - PROPOSAL_UNIFORM: 1;
    - PROPOSAL_GIVEN: exp(log_q[i]);
    - PROPOSAL_CELLS: exp(<q, the codewords of i's cell> + log_q[i]);
    - PROPOSAL_SOFTMAX: exp(<q, v_i>);
    - PROPOSAL_QUADRATIC: alpha <q, v_i>^2 + 1;
    - PROPOSAL_BEST: 1, of ``n_candidates`` draws the best-scored; log_q is set to zero;
    - PROPOSAL_WEIGHTED: 1, and log_q is minus the log of the draw's weight, n times
      softmax(<q, v_i> / temperature) among the n draws.

    Arrays do not change: for other draws a sampler returns another proposal. A backend keeps what
    it has prepared for one.
    """

    #: (n_items,), float32: the part of log(n_items Q(item | query)) that does not depend on the
    #: query; empty for zeros.
    log_q: np.ndarray = _NO_FLOATS
    code: int = PROPOSAL_UNIFORM
    n_items: int = 0
    n_candidates: int = 1
    alpha: float = 1.0
    temperature: float = 1.0
    #: (n_items, d), float32.
    vectors: np.ndarray = _NO_ROWS
    #: (n, d), float32: the codewords of all subspaces, zero outside their subspace.
    codewords: np.ndarray = _NO_ROWS
    #: (n_cells, n_subspaces), int32: a cell's rows of ``codewords``. No cell is empty.
    cell_codes: np.ndarray = np.zeros((0, 1), dtype=np.int32)
    #: (n_cells,), float32: log of the sum of exp(log_q) over the cell's items.
    cell_log_weights: np.ndarray = _NO_FLOATS
    #: (n_cells + 1,), int64: where a cell's items begin in ``cell_items``.
    cell_starts: np.ndarray = np.zeros(1, dtype=np.int64)
    #: (n_items,), int32: the items, cell by cell.
    cell_items: np.ndarray = _NO_INTEGERS
    #: (n_items,), int32: the cell of each item.
    cell_of: np.ndarray = _NO_INTEGERS
    #: (n_prefixes, n_subspaces - 1), int32: the combinations of all codes but the last that occur.
    prefix_codes: np.ndarray = np.zeros((0, 0), dtype=np.int32)
    #: (n_prefixes, n_codewords of a subspace), float32: ``cell_log_weights`` of the cell with these
    #: codes and this last code; minus infinity if it is empty.
    grid: np.ndarray = _NO_ROWS
    #: (grid.size,), int32: that cell, or if there is none, another one with the same other codes.
    grid_cells: np.ndarray = _NO_INTEGERS
    #: (n_items, 5), int32: alias tables of the cells, in the order of ``cell_items``, or empty if
    #: the items of a cell are equally likely; of PROPOSAL_GIVEN, one of all items. Columns are the
    #: item, its alias and, as the bits of float32, the threshold below which the item itself is
    #: drawn, and log_q of both.
    aliases: np.ndarray = np.zeros((0, 1), dtype=np.int32)
    #: (2 n_leaves, d (d + 1) / 2), float32: sums of v v^T below each node of a binary tree, upper
    #: triangles with doubled off-diagonals. Node 1 is the root, 2 k and 2 k + 1 are children of k.
    nodes: np.ndarray = _NO_ROWS
    leaf_size: int = 1


def shapes_needed(proposal, width):
    """Return the shapes of the arrays that each code reads, by code and field; None is any length.

    Parameters
    ----------
    proposal : Proposal
    width : int
        Of the item vectors.
    """
    n_items, n_cells = proposal.n_items, len(proposal.cell_codes)
    log_q, vectors = (n_items,) if len(proposal.log_q) else (0,), (n_items, width)
    cells = {
        "log_q": log_q,
        "codewords": (None, width),
        "cell_log_weights": (n_cells,),
        "cell_starts": (n_cells + 1,),
        "cell_items": (n_items,),
        "cell_of": (n_items,),
        "prefix_codes": (None, proposal.cell_codes.shape[1] - 1),
        "grid": (len(proposal.prefix_codes), None),
        "grid_cells": (proposal.grid.size,),
        "aliases": (n_items, 5) if len(proposal.aliases) else (0, None),
    }
    nodes = (None, width * (width + 1) // 2)
    return {
        PROPOSAL_UNIFORM: {"log_q": log_q},
        PROPOSAL_GIVEN: {"aliases": (n_items, 5), "log_q": (n_items,)},
        PROPOSAL_CELLS: cells,
        PROPOSAL_SOFTMAX: {"log_q": log_q, "vectors": vectors, "cell_items": (n_items,)},
        PROPOSAL_QUADRATIC: {"log_q": log_q, "vectors": vectors, "nodes": nodes},
        PROPOSAL_BEST: {"log_q": log_q, "vectors": vectors},
        PROPOSAL_WEIGHTED: {"log_q": log_q, "vectors": vectors},
    }


def check_values(learned, name, proposal):
    """Raise unless compiled code can follow the indices in the arrays of a proposal.

    Parameters
    ----------
    learned : LearnedArrays
        Raises, with ``name``, the name of the proposal.
    name : str
    proposal : Proposal
        Its arrays have the shapes of ``shapes_needed``.
    """
    n_items = proposal.n_items
    learned.indices(f"{name}.cell_items", proposal.cell_items, n_items)
    learned.indices(f"{name}.aliases", proposal.aliases[:, :2].ravel(), n_items)
    if proposal.code == PROPOSAL_CELLS:
        starts = proposal.cell_starts
        fits = starts[0] == 0 and starts[-1] == n_items and (np.diff(starts) > 0).all()
        learned.require(fits, f"{name}.cell_starts", f"does not rise from 0 to {n_items}")
        n_codewords, n_cells = len(proposal.codewords), len(proposal.cell_codes)
        learned.indices(f"{name}.cell_codes", proposal.cell_codes.ravel(), n_codewords)
        width = proposal.grid.shape[1]
        fits = width * proposal.cell_codes.shape[1] == n_codewords
        learned.require(fits, f"{name}.grid", f"has {width} columns")
        learned.indices(f"{name}.cell_of", proposal.cell_of, n_cells)
        learned.indices(f"{name}.prefix_codes", proposal.prefix_codes.ravel(), n_codewords)
        learned.indices(f"{name}.grid_cells", proposal.grid_cells, n_cells)
    if proposal.code == PROPOSAL_QUADRATIC:
        n_nodes = len(proposal.nodes)
        fits = n_nodes > 1 and n_nodes & (n_nodes - 1) == 0
        learned.require(fits, f"{name}.nodes", f"has {n_nodes} rows, no power of two")
        fits = proposal.leaf_size == -(-n_items // (n_nodes >> 1))
        learned.require(fits, f"{name}.leaf_size", f"is {proposal.leaf_size} for {n_nodes} nodes")


def draw_scratch(proposal, size):
    """Return the arrays ``numbers`` and ``sums``, with a row for each of ``size`` threads."""
    n_numbers = len(proposal.codewords) + proposal.grid.shape[1] + proposal.grid.size
    n_sums = 2 + len(proposal.prefix_codes)
    if proposal.code == PROPOSAL_SOFTMAX:
        n_numbers = n_sums = 1 + proposal.n_items
    if proposal.code == PROPOSAL_QUADRATIC:
        n_numbers = proposal.nodes.shape[1] + min(len(proposal.nodes), _KEPT_NODES)
        n_sums = 1 + proposal.leaf_size
    return (
        np.zeros((size, n_numbers + _PADDING), dtype=np.float32),
        np.zeros((size, n_sums + _PADDING)),
    )


@inlined
def _score(query, vectors, k):
    total = ZERO
    for f in range(query.shape[0]):
        total += query[f] * vectors[k, f]
    return total


@inlined
def _find(sums, first, n, at):
    """Return the first j below n with ``at < sums[first + j]``, or n - 1."""
    base = first
    length = n
    while length > _COMPARED:
        half = length >> 1
        base += half if sums[np.uint64(base + half - 1)] <= at else 0
        length -= half
    n_below = base - first
    for j in range(length - 1):
        n_below += sums[np.uint64(base + j)] <= at
    return n_below


@inlined
def _random(key, index):
    return unit_interval(random_bits(key, index))


@inlined
def _random_below(key, index, n):
    """Return a random integer below n."""
    return min(np.int64(_random(key, index) * n), n - 1)


# Cumulative sums of exponentials, in which cells or items are looked up.


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
        numbers[c] = _score(query, proposal.codewords, c)
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
def _prepare_cells(proposal, query, numbers, sums):
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


@inlined
def _prepare_softmax(proposal, query, numbers, sums):
    # Items are in the order of their cells, so the sums over cells are among those over items:
    # drawing an item is the same as drawing its cell, and then the item by its residual.
    n = proposal.n_items
    largest = -np.float32(np.inf)
    for j in range(n):
        logit = _score(query, proposal.vectors, np.uint64(proposal.cell_items[j]))
        numbers[j] = logit
        largest = max(largest, logit)
    for j in range(n):
        numbers[j] = exp_of_minus(max(largest - numbers[j], ZERO))
    total = 0.0
    for j in range(n):
        total += numbers[j]
        sums[1 + j] = total
    sums[0] = np.float64(largest) + math.log(total) - math.log(n)


# The tree of the quadratic kernel.


@inlined
def _node_weight(nodes, alpha, n_items, k, begin, span, numbers):
    """Return the sum of alpha <q, v>^2 + 1 over the items ``begin`` to ``begin + span``."""
    n_products = nodes.shape[1]
    kept = k < _KEPT_NODES
    if kept and numbers[n_products + k] >= ZERO:
        return np.float64(numbers[n_products + k])
    squares = ZERO
    for f in range(n_products):
        squares += nodes[k, f] * numbers[f]
    n = min(begin + span, n_items) - min(begin, n_items)
    weight = np.float32(alpha * max(squares, ZERO) + n)
    if kept:
        numbers[n_products + k] = weight
    return np.float64(weight)


@inlined
def _prepare_tree(proposal, query, numbers, sums):
    n_products = proposal.nodes.shape[1]
    at = 0
    for f in range(query.shape[0]):
        for g in range(f, query.shape[0]):
            numbers[at] = query[f] * query[g]
            at += 1
    for k in range(min(proposal.nodes.shape[0], _KEPT_NODES)):
        numbers[n_products + k] = -ONE
    span = (proposal.nodes.shape[0] >> 1) * proposal.leaf_size
    total = _node_weight(proposal.nodes, proposal.alpha, proposal.n_items, 1, 0, span, numbers)
    sums[0] = math.log(total / proposal.n_items)


@inlined
def _draw_from_tree(proposal, query, key, numbers, sums):
    """Return an item and its weight: descend to a leaf of the tree, then draw one of its items."""
    nodes, alpha, n_items = proposal.nodes, proposal.alpha, proposal.n_items
    n_leaves = nodes.shape[0] >> 1
    span = n_leaves * proposal.leaf_size
    begin = 0
    k = 1
    while k < n_leaves:
        span >>= 1
        k <<= 1
        left = _node_weight(nodes, alpha, n_items, k, begin, span, numbers)
        right = _node_weight(nodes, alpha, n_items, k + 1, begin + span, span, numbers)
        if _random(key, k) * (left + right) >= left:
            k += 1
            begin += span
    n = min(begin + span, n_items) - begin
    total = 0.0
    for j in range(n):
        score = np.float64(_score(query, proposal.vectors, begin + j))
        total += alpha * score * score + 1.0
        sums[1 + j] = total
    j = _find(sums, 1, n, _random(key, 0) * total)
    return begin + j, sums[1 + j] - (sums[j] if j > 0 else 0.0)


# The functions that kernels call.


@subroutine
def prepare_query(proposal, query, numbers, sums):
    """Write to the scratch what draws for a query, and ``log_q_of``, need."""
    code = proposal.code
    if code == PROPOSAL_CELLS:
        _prepare_cells(proposal, query, numbers, sums)
    elif code == PROPOSAL_SOFTMAX:
        _prepare_softmax(proposal, query, numbers, sums)
    elif code == PROPOSAL_QUADRATIC:
        _prepare_tree(proposal, query, numbers, sums)


@inlined
def log_q_of(proposal, query, item, numbers, sums):
    """Return log(n_items Q(item | query)) for the query of the last draw."""
    code = proposal.code
    k = np.uint64(item)
    static = proposal.log_q[k] if proposal.log_q.shape[0] > 0 else ZERO
    if code == PROPOSAL_GIVEN:
        return static
    if code == PROPOSAL_CELLS:
        cell = np.uint64(proposal.cell_of[k])
        return np.float32(static + cell_logit(proposal.cell_codes, cell, numbers) - sums[0])
    if code == PROPOSAL_SOFTMAX:
        return np.float32(_score(query, proposal.vectors, k) - sums[0])
    if code == PROPOSAL_QUADRATIC:
        score = np.float64(_score(query, proposal.vectors, k))
        return np.float32(math.log(proposal.alpha * score * score + 1.0) - sums[0])
    return ZERO


@inlined
def _is_other(aliases, slot, at):
    """Return whether the alias of a slot is drawn: 1, or 0 for its item."""
    return 1 if at >= np.int32(aliases[slot, 2]).view(np.float32) else 0


@inlined
def _draw_cell(proposal, position, numbers, sums):
    """Return the index in ``proposal.grid_cells`` at a position among the cumulative sums."""
    n_prefixes, k = proposal.grid.shape
    prefix = _find(sums, 2, n_prefixes, position)
    position = np.float32(position - sums[np.uint64(1 + prefix)])
    row = prefix * k
    return row + _find(numbers, proposal.codewords.shape[0] + k + row, k, position)


@inlined
def _draw_from_cells(proposal, key, ids, log_q, numbers, sums):
    n = ids.shape[0]
    total = sums[np.uint64(1 + proposal.grid.shape[0])]
    for j in range(n):
        ids[j] = _draw_cell(proposal, _random(key, 3 * j) * total, numbers, sums)
    for j in range(n):
        cell = np.uint64(proposal.grid_cells[np.uint64(ids[j])])
        begin = proposal.cell_starts[cell]
        size = proposal.cell_starts[cell + np.uint64(1)] - begin
        ids[j] = begin + _random_below(key, 3 * j + 1, size)
        log_q[j] = np.float32(cell_logit(proposal.cell_codes, cell, numbers) - sums[0])
    # Items are scattered in memory: a loop of independent loads keeps many misses in flight.
    if proposal.aliases.shape[0] == 0:
        for j in range(n):
            ids[j] = proposal.cell_items[np.uint64(ids[j])]
        return
    for j in range(n):
        slot = np.uint64(ids[j])
        other = _is_other(proposal.aliases, slot, _random(key, 3 * j + 2))
        ids[j] = proposal.aliases[slot, other]
        log_q[j] += np.int32(proposal.aliases[slot, 3 + other]).view(np.float32)


@inlined
def _draw_best(proposal, query, key, ids, log_q):
    n_candidates = proposal.n_candidates
    for j in range(ids.shape[0]):
        best = -np.float32(np.inf)
        chosen = 0
        for c in range(n_candidates):
            item = _random_below(key, j * n_candidates + c, proposal.n_items)
            score = _score(query, proposal.vectors, np.uint64(item))
            if c == 0 or score > best:
                best = score
                chosen = item
        ids[j] = chosen
        log_q[j] = ZERO


@inlined
def _draw_weighted(proposal, query, key, ids, log_q):
    n = ids.shape[0]
    sharpness = np.float32(1.0 / proposal.temperature)
    largest = -np.float32(np.inf)
    for j in range(n):
        item = _random_below(key, j, proposal.n_items)
        ids[j] = item
        log_q[j] = sharpness * _score(query, proposal.vectors, np.uint64(item))
        largest = max(largest, log_q[j])
    total = 0.0
    for j in range(n):
        total += exp_of_minus(max(largest - log_q[j], ZERO))
    log_mean = np.float32(largest + math.log(total / n))
    for j in range(n):
        log_q[j] = log_mean - log_q[j]


@inlined
def _draw_given(aliases, key, j):
    """Return the slot of draw ``j`` in the alias table, and whether its alias is drawn."""
    slot, position = slot_and_position(random_bits(key, j), aliases.shape[0])
    return slot, _is_other(aliases, slot, position)


@inlined
def draw_static(proposal, key, ids):
    """Draw items without a query into ``ids``, by a distribution of ``STATIC``."""
    if proposal.code == PROPOSAL_GIVEN:
        for j in range(ids.shape[0]):
            slot, other = _draw_given(proposal.aliases, key, j)
            ids[j] = proposal.aliases[slot, other]
        return
    for j in range(ids.shape[0]):
        ids[j] = _random_below(key, j, proposal.n_items)


@subroutine
def draw_negatives(proposal, query, key, ids, log_q, numbers, sums):
    """Draw items for a query into ``ids``, and write their ``log_q``; see the module docstring."""
    code = proposal.code
    n = proposal.n_items
    prepare_query(proposal, query, numbers, sums)
    if code == PROPOSAL_CELLS:
        _draw_from_cells(proposal, key, ids, log_q, numbers, sums)
    elif code == PROPOSAL_BEST:
        _draw_best(proposal, query, key, ids, log_q)
    elif code == PROPOSAL_WEIGHTED:
        _draw_weighted(proposal, query, key, ids, log_q)
    elif code == PROPOSAL_GIVEN:
        for j in range(ids.shape[0]):
            slot, other = _draw_given(proposal.aliases, key, j)
            ids[j] = proposal.aliases[slot, other]
            log_q[j] = np.int32(proposal.aliases[slot, 3 + other]).view(np.float32)
    elif code == PROPOSAL_UNIFORM:
        draw_static(proposal, key, ids)
        for j in range(ids.shape[0]):
            log_q[j] = ZERO
    else:
        for j in range(ids.shape[0]):
            if code == PROPOSAL_SOFTMAX:
                slot = _find(sums, 1, n, _random(key, j) * sums[n])
                item = np.int64(proposal.cell_items[slot])
                log_q[j] = log_q_of(proposal, query, item, numbers, sums)
            else:
                draw_key = random_bits(key, j)
                item, weight = _draw_from_tree(proposal, query, draw_key, numbers, sums)
                log_q[j] = np.float32(math.log(weight) - sums[0])
            ids[j] = item


def already_drawn():
    """Return replacements for kernels whose ``ids`` and ``log_q`` have been filled before."""

    def keep(proposal, query, key, ids, log_q, numbers, sums):
        pass

    def given(proposal, query, item, numbers, sums):
        return proposal.log_q[np.uint64(item)] if proposal.log_q.shape[0] > 0 else ZERO

    return {draw_negatives: keep, log_q_of: given}
