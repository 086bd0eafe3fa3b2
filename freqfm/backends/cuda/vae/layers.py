"""The layers of an autoencoder that have a row per item. For the loss see ``backends.cpu.vae``.

The softmax over all items is made of matrix products, in panels of queries if there are many
scores. That over drawn items is done by a group for each query.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cuda.columns import (
    COLUMNS,
    exponentials,
    four_columns,
    largest_of,
    read,
    sum_inside,
    write,
)
from freqfm.backends.cuda.draws import Cells, DrawScratch, draw_from_cells, log_q_of_item
from freqfm.backends.cuda.products import (
    multiply_tile,
    n_tiles,
    parts_of,
    product_of_rows,
    product_of_rows_in_parts,
    sum_of_parts,
)
from freqfm.backends.cuda.tables import (
    Side,
    Step,
    apply_gradients,
    catch_up_rows,
    gather_row,
    move_all,
    row_scale,
)
from freqfm.backends.cuda.team import group_max, group_sum, synchronize_group
from freqfm.formulas.losses import softmax_with_positive
from freqfm.formulas.rng import hash64
from freqfm.formulas.special import exp_of_minus

__all__ = [
    "CATCH_UP",
    "DRAW",
    "FULL",
    "MOVE_ALL",
    "MOVE_LISTED",
    "SAMPLED",
    "SLICE",
    "DrawArgs",
    "FullArgs",
    "FullScratch",
    "Moved",
    "Queries",
    "SampledArgs",
    "SampledScratch",
]

#: So many items of a query are the work of a group.
SLICE = 1024


class Queries(NamedTuple):
    """The queries of a batch and their positives."""

    vectors: np.ndarray  #: (B, D), float32
    starts: np.ndarray  #: (B + 1,), int32, where the positives of a query begin
    items: np.ndarray  #: int32
    weights: np.ndarray  #: float32
    totals: np.ndarray  #: (B,), sums of the weights, float32
    scale: float  #: what the loss of each query is multiplied by
    n_unit: int  #: the first ``n_unit`` numbers of item vectors are scaled to unit length
    gradients: np.ndarray  #: (B, D), result
    losses: np.ndarray  #: (B,), result, without ``scale``


class Moved(NamedTuple):
    """Rows of a table, and the step that moves them."""

    side: Side
    step: Step
    number: int  #: of the step in the epoch
    n_seen: int  #: of how many the gradient of a row is the sum
    sources: np.ndarray  #: what the occurrences of rows are multiples of
    mean: float  #: what the penalty for each occurrence is multiplied by


class FullScratch(NamedTuple):
    """Working memory of the softmax over all items; float32."""

    units: np.ndarray  #: (n_items, D), the items as they are scored
    unit_columns: np.ndarray  #: (D, n_items)
    scores: np.ndarray  #: (queries of a panel, n_items)
    parts: np.ndarray  #: (parts, queries of a panel, D)
    scaled: np.ndarray  #: (B, D)
    largest: np.ndarray  #: (B, slices), of the scores of a slice
    totals: np.ndarray  #: (B, slices), sums of exponentials
    inverse: np.ndarray  #: (B,), one over the sum of all exponentials


class FullArgs(NamedTuple):
    """All that a launch of the softmax over all items is given."""

    batch: Queries
    moved: Moved
    scratch: FullScratch
    n_panels: int


class SampledScratch(NamedTuple):
    """Working memory of the softmax over drawn items; float32."""

    scores: np.ndarray  #: (B, n)
    scales: np.ndarray  #: (B, n), one over the lengths of the drawn items
    positive_log_q: np.ndarray  #: of the positives


class DrawArgs(NamedTuple):
    """What negatives are drawn by."""

    batch: Queries
    cells: Cells
    drawn: DrawScratch
    scratch: SampledScratch
    key: int  #: of the random stream
    keys: np.ndarray  #: receives the items of the batch: the positives, and the draws


class SampledArgs(NamedTuple):
    """All that a launch of the softmax over drawn items is given."""

    batch: Queries
    moved: Moved
    drawn: DrawScratch
    scratch: SampledScratch
    log_share: float  #: log of the number of items for each draw


# The softmax over all items.


@inlined
def _panel_of(args, s):
    """Return the queries of panel ``s``: the first, and the one after the last."""
    n, height = args.batch.vectors.shape[0], args.scratch.scores.shape[0]
    return min(s * height, n), min((s + 1) * height, n)


@inlined
def gather_items(team, s, args):
    """Gather all items."""
    scratch = args.scratch
    if s > 0:
        return
    weights, n_unit = args.moved.side.table.weights, args.batch.n_unit
    for k in range(team.rank, weights.shape[0], team.size):
        gather_row(team, weights, k, n_unit, scratch.units, k, scratch.unit_columns)


@inlined
def score_items(team, s, args):
    """Score the queries of a panel against all items."""
    scratch, (first, last) = args.scratch, _panel_of(args, s)
    shape, vectors = (last - first, scratch.units.shape[0]), args.batch.vectors
    product_of_rows(team, vectors, first, scratch.unit_columns, shape, scratch.scores)


@inlined
def _slice(args, task):
    """Return a query of a panel, a slice of the items, the slice's first item, and its end."""
    m, n_slices = args.scratch.scores.shape[1], args.scratch.largest.shape[1]
    part = task % n_slices
    return task // n_slices, part, part * SLICE, min((part + 1) * SLICE, m)


@inlined
def find_largest(team, s, args):
    """Find the largest score of each slice of the items, and the scores of the positives."""
    batch, scratch, (first, last) = args.batch, args.scratch, _panel_of(args, s)
    for task in range(team.rank, (last - first) * scratch.largest.shape[1], team.size):
        t, part, begin, end = _slice(args, task)
        largest = -np.float32(np.inf)
        for j in range(begin + team.lane, end, COLUMNS * team.n_lanes):
            scores = read(scratch.scores, t, four_columns(team, j, end))
            largest = max(largest, largest_of(scores))
        largest = group_max(team, largest)
        if team.lane == 0:
            scratch.largest[first + t, part] = largest
    for r in range(first + team.rank, last, team.size):
        pull = ZERO
        for p in range(batch.starts[r] + team.lane, batch.starts[r + 1], team.n_lanes):
            pull += batch.weights[p] * scratch.scores[r - first, batch.items[p]]
        pull = group_sum(team, pull)
        if team.lane == 0:
            batch.losses[r] = -pull


@inlined
def _largest(team, r, args):
    """Return the largest score of a query."""
    largest = -np.float32(np.inf)
    for part in range(team.lane, args.scratch.largest.shape[1], team.n_lanes):
        largest = max(largest, args.scratch.largest[r, part])
    return group_max(team, largest)


@inlined
def exponentiate_scores(team, s, args):
    """Turn the scores of a panel into exponentials, and sum those of each slice."""
    scratch, (first, last) = args.scratch, _panel_of(args, s)
    for task in range(team.rank, (last - first) * scratch.largest.shape[1], team.size):
        t, part, begin, end = _slice(args, task)
        largest, total = _largest(team, first + t, args), ZERO
        for j in range(begin + team.lane, end, COLUMNS * team.n_lanes):
            columns = four_columns(team, j, end)
            found = exponentials(largest, read(scratch.scores, t, columns))
            write(scratch.scores, t, columns, found)
            total += sum_inside(columns, found)
        total = group_sum(team, total)
        if team.lane == 0:
            scratch.totals[first + t, part] = total


@inlined
def subtract_positives(team, s, args):
    """Subtract the positives: times ``inverse`` the exponentials become derivatives."""
    batch, scratch, (first, last) = args.batch, args.scratch, _panel_of(args, s)
    for r in range(first + team.rank, last, team.size):
        total = ZERO
        for part in range(team.lane, scratch.totals.shape[1], team.n_lanes):
            total += scratch.totals[r, part]
        total = group_sum(team, total)
        for p in range(batch.starts[r] + team.lane, batch.starts[r + 1], team.n_lanes):
            share = batch.weights[p] / batch.totals[r]
            scratch.scores[r - first, batch.items[p]] -= total * share
        largest = _largest(team, r, args)
        if team.lane == 0:
            scratch.inverse[r] = ONE / total
            batch.losses[r] += batch.totals[r] * (largest + np.float32(math.log(total)))


@inlined
def sum_items(team, s, args):
    """Sum the items weighted by the derivatives of a panel, in parts."""
    scratch, (first, last) = args.scratch, _panel_of(args, s)
    shape, n_items = (last - first, scratch.units.shape[1]), scratch.units.shape[0]
    product_of_rows_in_parts(team, scratch.scores, scratch.units, n_items, shape, scratch.parts)


@inlined
def finish_queries(team, s, args):
    """Write the gradients of the queries of a panel."""
    batch, scratch, (first, last) = args.batch, args.scratch, _panel_of(args, s)
    n_parts, _ = parts_of(scratch.units.shape[0], scratch.parts)
    for r in range(first + team.rank, last, team.size):
        factor = batch.scale * batch.totals[r] * scratch.inverse[r]
        for f in range(team.lane, scratch.scaled.shape[1], team.n_lanes):
            total = sum_of_parts(scratch.parts, n_parts, r - first, f)
            batch.gradients[r, f] = factor * total
            scratch.scaled[r, f] = factor * batch.vectors[r, f]


@inlined
def learn_items(team, s, args):
    """Add the gradients of all items by the queries of a panel."""
    scratch, (first, last) = args.scratch, _panel_of(args, s)
    shape, out = scratch.units.shape, args.moved.side.gradients
    scaled, span = scratch.scaled[first:last], (0, last - first)
    for t in range(team.rank, n_tiles(team, shape[0], shape[1]), team.size):
        multiply_tile(team, t, scratch.scores, scaled, span, shape, out, s > 0)


@inlined
def move_items(team, s, args):
    """Move all items, after the last panel."""
    if s + 1 == args.n_panels:
        moved, n_unit = args.moved, args.batch.n_unit
        move_all(team, moved.number, moved.n_seen, moved.side, n_unit, moved.step)


# The softmax over drawn items.


@inlined
def draw_items(team, s, args):
    """Draw items for each query; write them and the positives as keys."""
    batch, drawn, keys = args.batch, args.drawn, args.keys
    n, n_positives = drawn.ids.shape[1], batch.items.shape[0]
    for r in range(team.rank, batch.vectors.shape[0], team.size):
        key = hash64(args.key + np.uint64(r))
        log_total = draw_from_cells(team, args.cells, batch.vectors, r, key, drawn)
        for j in range(team.lane, n, team.n_lanes):
            keys[n_positives + r * n + j] = drawn.ids[r, j]
        for p in range(batch.starts[r] + team.lane, batch.starts[r + 1], team.n_lanes):
            k = batch.items[p]
            keys[p] = k
            args.scratch.positive_log_q[p] = log_q_of_item(
                args.cells, k, drawn.numbers[r], log_total
            )


@inlined
def _score(team, batch, r, weights, k):
    """Return the score of item ``k`` for a query, and one over the length of the item."""
    scale, total = row_scale(team, weights, k, batch.n_unit), ZERO
    for f in range(team.lane, weights.shape[1], team.n_lanes):
        factor = scale if f < batch.n_unit else ONE
        total += batch.vectors[r, f] * factor * weights[k, f]
    return group_sum(team, total), scale


@inlined
def _exponentiate_draws(team, r, args):
    """Turn the logits of the draws of a query into exponentials; return their sum, and its log."""
    weights, drawn, scratch = args.moved.side.table.weights, args.drawn, args.scratch
    n, largest, total = drawn.ids.shape[1], -np.float32(np.inf), ZERO
    for j in range(n):
        score, scale = _score(team, args.batch, r, weights, drawn.ids[r, j])
        logit = score - drawn.log_q[r, j]
        largest = max(largest, logit)
        if team.lane == 0:
            scratch.scores[r, j] = logit
            scratch.scales[r, j] = scale
    synchronize_group(team)
    for j in range(team.lane, n, team.n_lanes):
        e = exp_of_minus(largest - scratch.scores[r, j])
        scratch.scores[r, j] = e
        total += e
    total = group_sum(team, total)
    synchronize_group(team)
    return total, largest + np.float32(math.log(total))


@inlined
def _learn_positives(team, r, log_total, args):
    """Learn from the positives of a query; return the share of the draws, and write the loss."""
    batch, side = args.batch, args.moved.side
    weights, loss, left = side.table.weights, ZERO, ZERO
    for p in range(batch.starts[r], batch.starts[r + 1]):
        k, x = batch.items[p], batch.weights[p]
        score, scale = _score(team, batch, r, weights, k)
        logit = score - args.scratch.positive_log_q[p]
        found, of_positive = softmax_with_positive(logit, log_total)
        share = np.float32(of_positive)
        loss += x * (np.float32(found) + args.log_share - score)
        left += x * (ONE - share)
        derivative = batch.scale * x * (share - ONE)
        for f in range(team.lane, weights.shape[1], team.n_lanes):
            factor = scale if f < batch.n_unit else ONE
            batch.gradients[r, f] += derivative * factor * weights[k, f]
        if team.lane == 0:
            side.rows[p] = r
            side.multiples[p] = derivative
    if team.lane == 0:
        batch.losses[r] = loss
    return left


@inlined
def learn_queries(team, s, args):
    """Find the gradients by queries, and list those by items."""
    batch, side, drawn, scratch = args.batch, args.moved.side, args.drawn, args.scratch
    weights, n = side.table.weights, drawn.ids.shape[1]
    for r in range(team.rank, batch.vectors.shape[0], team.size):
        total, log_total = _exponentiate_draws(team, r, args)
        for f in range(team.lane, weights.shape[1], team.n_lanes):
            batch.gradients[r, f] = ZERO
        factor = batch.scale * _learn_positives(team, r, log_total, args) / total
        for f in range(team.lane, weights.shape[1], team.n_lanes):
            pushes = ZERO
            for j in range(n):
                scale = scratch.scales[r, j] if f < batch.n_unit else ONE
                pushes += scratch.scores[r, j] * scale * weights[drawn.ids[r, j], f]
            batch.gradients[r, f] += factor * pushes
        for j in range(team.lane, n, team.n_lanes):
            o = batch.items.shape[0] + r * n + j
            side.rows[o] = r
            side.multiples[o] = factor * scratch.scores[r, j]


@inlined
def move_drawn(team, s, args):
    """Move the items of a batch: positives, and draws."""
    moved = args.moved
    apply_gradients(
        team, 0, moved.number, moved.side, moved.sources, args.batch.n_unit, moved.mean, moved.step
    )


# Any table.


@inlined
def catch_up_listed(team, s, args):
    """Let the rows of a batch catch up on the steps that they have missed."""
    catch_up_rows(team, 0, args.moved.number, args.moved.side, args.moved.step)


@inlined
def move_listed(team, s, args):
    """Move the rows that a batch has listed."""
    moved = args.moved
    apply_gradients(team, 0, moved.number, moved.side, moved.sources, 0, moved.mean, moved.step)


@inlined
def move_layer(team, s, args):
    """Move all rows of a table."""
    moved = args.moved
    move_all(team, moved.number, moved.n_seen, moved.side, 0, moved.step)


FULL = (
    gather_items,
    score_items,
    find_largest,
    exponentiate_scores,
    subtract_positives,
    sum_items,
    finish_queries,
    learn_items,
    move_items,
)
DRAW = (draw_items,)
SAMPLED = (learn_queries, move_drawn)
CATCH_UP = (catch_up_listed,)
MOVE_LISTED = (move_listed,)
MOVE_ALL = (move_layer,)
