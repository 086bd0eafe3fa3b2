"""Alignment and uniformity: DirectAU and MAWU. For the loss see ``backends.cpu``.

Both sides of a batch, users and items, are compared with themselves by matrix products, in panels
of rows if the batch is large.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.cuda.groups import group_sum
from freqfm.backends.cuda.products import (
    most_parts,
    multiply_tile_of_rows,
    n_tiles,
    parts_of,
    span_of_part,
    sum_of_parts,
)
from freqfm.backends.cuda.ranking.batches import (
    CATCH_UP,
    LOSS,
    MOST_SCORES,
    Family,
    batch_of,
    gather_user,
    is_last,
    panel_of,
    through_gathering,
)
from freqfm.backends.cuda.tables import Side, apply_gradients, catch_up_rows, dot, gather_row
from freqfm.formulas.losses import margin_cosine_in_float32
from freqfm.formulas.special import exp_of_minus

_TWO, _FOUR = np.float32(2), np.float32(4)
_EXP_OF_MINUS_FOUR = np.float32(math.exp(-4))


class Alignment(NamedTuple):
    """The loss, see ``backends.cpu.ranking.alignment``."""

    margins: bool
    half: bool
    gammas: np.ndarray  #: (2,), of users and items
    user_margins: Side  #: of tables of width one; not read without margins
    item_margins: Side


class AlignmentScratch(NamedTuple):
    """Working memory of up to B pairs, float32; of users and items."""

    units: np.ndarray  #: (2, B, d)
    columns: np.ndarray  #: (2, d, B), the same
    cosines: np.ndarray  #: (2, rows of a panel, B)
    parts: np.ndarray  #: (2, parts, rows of a panel, d)
    totals: np.ndarray  #: (2, B), sums of exponentials
    gradients: np.ndarray  #: (2, B, d)
    pushes: np.ndarray  #: (2, 2), the uniformity, and what turns sums of a side into its gradient
    lengths: np.ndarray  #: (B,), of users
    margin_gradients: np.ndarray  #: (B, 1)


@inlined
def _panel_of(args, batch):
    return panel_of(batch, args.scratch.cosines.shape[1])


@inlined
def catch_up_margins(group, s, args):
    """Let the margins of a batch catch up on the steps that they have missed."""
    batch, alignment = batch_of(args.data, args.call, s), args.loss
    if batch.panel == 0:
        catch_up_rows(group, batch.number, batch.step, alignment.user_margins, args.step)
        catch_up_rows(group, batch.number, batch.step, alignment.item_margins, args.step)


@inlined
def gather_pairs(group, s, args):
    """Gather the unit vectors of the pairs of a batch."""
    batch, data, scratch = batch_of(args.data, args.call, s), args.data, args.scratch
    if batch.panel > 0:
        return
    units, columns = scratch.units[0], scratch.columns[0]
    for r in range(group.rank, batch.n_rows, group.size):
        gather_user(group, r, args, batch, units)
        for f in range(group.lane, units.shape[1], group.n_lanes):
            columns[f, r] = units[r, f]
        gather_row(
            group, args.items.table.weights, data.items[batch.first_pair + r], units.shape[1],
            scratch.units[1], r, scratch.columns[1],
        )  # fmt: skip
        if group.lane == 0:
            args.items.rows[r] = r
            args.items.multiples[r] = ONE


@inlined
def compare_sides(group, s, args):
    """Write the cosines of the rows of a panel and all rows of a side."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape = last - first, batch.n_rows
    tiles = n_tiles(group, shape[0], shape[1])
    for t in range(group.rank, 2 * tiles, group.size):
        side = t // tiles
        units, columns, cosines = scratch.units[side], scratch.columns[side], scratch.cosines[side]
        span = 0, units.shape[1]
        multiply_tile_of_rows(group, t % tiles, (units, first), columns, span, shape, cosines)


@inlined
def exponentiate_sides(group, s, args):
    """Turn cosines into exp(-2 |x - x'|^2), and sum those of each row with others."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n = last - first
    for i in range(group.rank, 2 * n, group.size):
        side, r = i // n, first + i % n
        cosines, total = scratch.cosines[side], ZERO
        for j in range(group.lane, batch.n_rows, group.n_lanes):
            e = ZERO
            if j != r:
                e = exp_of_minus(max(_FOUR - _FOUR * cosines[r - first, j], ZERO))
            cosines[r - first, j] = e
            total += e
        total = group_sum(group, total)
        if group.lane == 0:
            scratch.totals[side, r] = total


@inlined
def sum_sides(group, s, args):
    """Sum the vectors of a side weighted by the exponentials, in parts."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape = last - first, scratch.units.shape[2]
    tiles = n_tiles(group, shape[0], shape[1])
    n_parts, _ = parts_of(batch.n_rows, scratch.parts[0])
    for t in range(group.rank, 2 * tiles * n_parts, group.size):
        side, part = t // (tiles * n_parts), t // tiles % n_parts
        span = span_of_part(batch.n_rows, scratch.parts[side], part)
        multiply_tile_of_rows(
            group, t % tiles, (scratch.cosines[side], 0), scratch.units[side], span, shape,
            scratch.parts[side, part],
        )  # fmt: skip


@inlined
def add_parts(group, s, args):
    """Add the parts of the sums; after the last panel, find the uniformity of both sides."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n_parts, _ = parts_of(batch.n_rows, scratch.parts[0])
    n = last - first
    for i in range(group.rank, 2 * n, group.size):
        side, t = i // n, i % n
        for f in range(group.lane, scratch.units.shape[2], group.n_lanes):
            total = sum_of_parts(scratch.parts[side], n_parts, t, f)
            scratch.gradients[side, first + t, f] = total
    if is_last(args.call, batch):
        for side in range(group.rank, 2, group.size):
            _find_push(group, side, args, batch)


@inlined
def _find_push(group, side, args, batch):
    """Write the uniformity of a side, and the factor of its sums."""
    n, scratch, total = batch.n_rows, args.scratch, ZERO
    for r in range(group.lane, n, group.n_lanes):
        total += scratch.totals[side, r]
    total = group_sum(group, total)
    gamma, pushes = args.loss.gammas[side], scratch.pushes
    if group.lane != 0:
        return
    square = np.float32(n) * np.float32(n)
    if n < 2:
        pushes[side, 0] = ZERO
        pushes[side, 1] = ZERO
    elif args.loss.half:
        # Every entry of the n x n matrix that is not below the diagonal counts as a cosine of 0.
        others = square - HALF * np.float32(n) * np.float32(n - 1)
        total = HALF * total + others * _EXP_OF_MINUS_FOUR
        pushes[side, 0] = gamma * np.float32(math.log(total / square))
        pushes[side, 1] = _FOUR * gamma / total
    else:
        pushes[side, 0] = HALF * gamma * np.float32(math.log(total / (square - np.float32(n))))
        pushes[side, 1] = _FOUR * gamma / total


@inlined
def _align(group, r, cosine, share, args, batch):
    """Return the value of a pair's alignment, and its derivative by the cosine.

    ``share`` is the factor of the pair's gradients.
    """
    alignment = args.loss
    if not alignment.margins:
        if alignment.half:
            return -cosine, -ONE
        return _TWO - _TWO * cosine, -_TWO
    u, i = args.data.row_users[batch.first_row + r], args.data.items[batch.first_pair + r]
    m_user = min(max(alignment.user_margins.table.weights[u, 0], ZERO), ONE)
    m_item = min(max(alignment.item_margins.table.weights[i, 0], ZERO), ONE)
    gate = ONE / (ONE + exp_of_minus(m_user + m_item))
    value, derivative, by_margin = margin_cosine_in_float32(cosine, ONE - gate)
    if group.lane == 0:
        # The margin is one minus a sigmoid.
        args.scratch.margin_gradients[r, 0] = share * by_margin * gate * (ONE - gate)
    return -value, -derivative


@inlined
def align_pairs(group, s, args):
    """Find the losses of pairs, and the gradients by users and items."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    if not is_last(args.call, batch):
        return
    users, items = scratch.units[0], scratch.units[1]
    by_users, by_items = scratch.gradients[0], scratch.gradients[1]
    # Optimizers that do not average want sums over the batch: the mean times the weight.
    scale = batch.scale / batch.mean
    user_factor, item_factor = scale * scratch.pushes[0, 1], scale * scratch.pushes[1, 1]
    for r in range(group.rank, batch.n_rows, group.size):
        weight = args.data.weights[batch.first_pair + r]
        cosine, share = dot(group, users, r, items, r, users.shape[1]), batch.scale * weight
        value, derivative = _align(group, r, cosine, share, args, batch)
        pull = share * derivative
        for f in range(group.lane, users.shape[1], group.n_lanes):
            by_users[r, f] = user_factor * by_users[r, f] + pull * items[r, f]
            by_items[r, f] = item_factor * by_items[r, f] + pull * users[r, f]
        through_gathering(group, r, args, batch, by_users, users)
        if group.lane == 0:
            loss = weight * value
            if r == 0:
                loss += (scratch.pushes[0, 0] + scratch.pushes[1, 0]) / batch.mean
            args.call.results[LOSS, batch.first_row - args.call.first_row + r] = loss


@inlined
def move_sides(group, s, args):
    """Move the users and the items of a batch."""
    batch, by = batch_of(args.data, args.call, s), args.scratch.gradients
    if is_last(args.call, batch):
        n_unit, number, step = by.shape[2], batch.number, batch.step
        apply_gradients(group, number, step, args.users, by[0], 0, batch.mean, args.step)
        apply_gradients(group, number, step, args.items, by[1], n_unit, batch.mean, args.step)


@inlined
def _move_margins(group, batch, side, args):
    """Move the margins of a side, and clip them to [0, 1]; the same group does both for a row."""
    touched, margins = side.touched, side.table.weights
    gradients = args.scratch.margin_gradients
    apply_gradients(group, batch.number, batch.step, side, gradients, 0, batch.mean, args.step)
    start, end = touched.starts[batch.number], touched.starts[batch.number + 1]
    for e in range(start + group.rank, end, group.size):
        k = touched.tokens[e]
        if group.lane == 0 and (e == start or touched.tokens[e - 1] != k):
            margins[k, 0] = min(max(margins[k, 0], ZERO), ONE)


@inlined
def move_margins(group, s, args):
    """Move the margins of a batch's users and items."""
    batch = batch_of(args.data, args.call, s)
    if is_last(args.call, batch):
        _move_margins(group, batch, args.loss.user_margins, args)
        _move_margins(group, batch, args.loss.item_margins, args)


CATCH_UP_MARGINS = (catch_up_margins,)
ALIGN = (
    gather_pairs,
    compare_sides,
    exponentiate_sides,
    sum_sides,
    add_parts,
    align_pairs,
    move_sides,
)
MARGINS = (move_margins,)


class AlignmentFamily(Family):
    """Positive pairs are pulled together, sides pushed apart."""

    def __init__(self, device, problem, n_rows, n_pairs):
        super().__init__(device, problem, n_rows, n_pairs)
        floats, n, d = self._floats, n_pairs, problem.width
        height = max(1, min(n, MOST_SCORES // (2 * n)))
        self.n_panels = -(-n // height)
        self._scratch = AlignmentScratch(
            units=floats(2, n, d),
            columns=floats(2, d, n),
            cosines=floats(2, height, n),
            parts=floats(2, most_parts(2 * height, d), height, d),
            totals=floats(2, n),
            gradients=floats(2, n, d),
            pushes=floats(2, 2),
            lengths=floats(n),
            margin_gradients=floats(n, 1),
        )
        self._of_margins = floats(n, 1)
        constants = problem.constants
        gammas = constants["gamma_users"], constants["gamma_items"]
        self._gammas = device.to_device(np.array(gammas, dtype=np.float32))

    def run(self, launch):
        """Train on the batches of a Launch."""
        constants, tables = self._problem.constants, launch.tables
        items = launch.list_items(launch.negatives)
        sides, phases, catch_up = [launch.users, items], ALIGN, CATCH_UP
        if constants["margins"]:
            sides = [
                side._replace(table=tables[name], gradients=self._of_margins)
                for side, name in zip(sides, ("user_margins", "item_margins"), strict=True)
            ]
            phases, catch_up = ALIGN + MARGINS, CATCH_UP + CATCH_UP_MARGINS
        alignment = Alignment(constants["margins"], constants["half"], self._gammas, *sides)
        launch.train(phases, launch.args(alignment, items, self._scratch), catch_up)
