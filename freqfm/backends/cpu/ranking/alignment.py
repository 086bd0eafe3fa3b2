"""Alignment and uniformity: DirectAU and MAWU, losses without negatives.

Positive pairs are pulled together. The users of a batch are pushed apart, and so are its items::

    align(batch) + sum over the two sides of  g log(h sum_{a != b} exp(-2 |x_a - x_b|^2) + m)

for unit vectors x. ``Alignment`` holds what is particular to each of the two losses.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.blas import add_product, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.ranking.family import Family, numbers_of_rows
from freqfm.backends.cpu.tables import (
    NO_TABLE,
    NO_UNIT,
    Side,
    Table,
    apply_gradients,
    batch_of,
    catch_up_batch,
    gather_row,
    gather_user,
    list_users,
    n_user_occurrences,
    step_after,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.formulas.losses import margin_cosine
from freqfm.formulas.special import exp_of_minus

# Rows of one tile of the matrix of all cosines within a batch; they do not depend on the number of
# threads.
TILE_ROWS = 64

_FOUR = np.float32(4)


class Alignment(NamedTuple):
    """The loss that a call minimises."""

    dropout: float
    margins: bool  #: MAWU's alignment with learned margins, instead of the squared distance
    gamma_users: float
    gamma_items: float
    half: bool  #: MAWU's sum over half of the pairs, with the other half counted as orthogonal
    user_margins: Table  #: of width one; empty without margins
    item_margins: Table


class AlignmentScratch(NamedTuple):
    """Working memory for batches of up to B pairs, float32."""

    masks: np.ndarray  #: (B, d)
    lengths: np.ndarray  #: (B,)
    units: np.ndarray  #: (2, B, d), of users and items
    gradients: np.ndarray  #: (2, B, d)
    cosines: np.ndarray  #: (size, TILE_ROWS, B)
    losses: np.ndarray  #: (B,), of the alignment; float64
    user_totals: np.ndarray  #: (B,), sums of exponentials; float64
    item_totals: np.ndarray  #: (B,)
    margin_gradients: np.ndarray  #: (B, 1)


class Push(NamedTuple):
    """The uniformity loss of a side."""

    value: float  #: gamma log(...)
    factor: float  #: turns the sums of the side into its gradient


@inlined
def _list_items(begin, end, batch, occurrences):
    """List the items of some pairs; pair ``r`` has source row ``r``."""
    for r in range(begin, end):
        occurrences.tokens[r] = batch.data.items[batch.first_pair + r]
        occurrences.rows[r] = r
        occurrences.multiples[r] = ONE


@inlined
def _gather(begin, end, batch, alignment, users, items, scratch):
    """Gather the unit vectors of some pairs."""
    width = items.table.weights.shape[1]
    for r in range(begin, end):
        scratch.lengths[r] = gather_user(
            r, batch, users.table.weights, True, alignment.dropout, scratch.masks, scratch.units[0]
        )
        k = np.uint64(items.occurrences.tokens[r])
        gather_row(items.table.weights, k, width, scratch.units[1], r)


@inlined
def _uniformity(member, n, units, totals, gradients, cosines):
    """For each row of a side, sum exp(-2 |x - x'|^2) over the others, and the same times x'."""
    tile = cosines[member.rank]
    for start in range(member.rank * TILE_ROWS, n, member.size * TILE_ROWS):
        end = min(start + TILE_ROWS, n)
        product_with_transposed(units[start:end], units[:n], tile[: end - start])
        for r in range(start, end):
            t = r - start
            total = ZERO
            for j in range(n):
                e = exp_of_minus(max(_FOUR - _FOUR * tile[t, j], ZERO))
                tile[t, j] = e
                total += e
            total -= tile[t, r]
            tile[t, r] = ZERO
            totals[r] = total
        # Rows of a tile may be wider than the batch.
        add_product(tile[: end - start, :n], units[:n], gradients[start:end], ZERO)


@inlined
def _push(n, totals, gamma, half):
    """Return the Push of a side."""
    total = 0.0
    for r in range(n):
        total += totals[r]
    if n < 2:
        return Push(0.0, 0.0)
    square = np.float64(n) * n
    if half:
        # Every entry of the n x n matrix that is not below the diagonal counts as a cosine of 0.
        sum_of_half = 0.5 * total + (square - 0.5 * n * (n - 1)) * math.exp(-4.0)
        return Push(gamma * math.log(sum_of_half / square), 4.0 * gamma / sum_of_half)
    return Push(0.5 * gamma * math.log(total / (square - n)), 4.0 * gamma / total)


@inlined
def _align(r, cosine, v, scale, alignment, u, i, scratch):
    """Return the value of a pair's alignment, and its derivative by the cosine.

    ``v`` is the pair's share of the batch; gradients are multiplied by ``scale``.
    """
    if alignment.margins:
        m_user = min(max(alignment.user_margins.weights[u, 0], ZERO), ONE)
        m_item = min(max(alignment.item_margins.weights[i, 0], ZERO), ONE)
        gate = 1.0 / (1.0 + math.exp(-np.float64(m_user) - m_item))
        value, derivative, by_margin = margin_cosine(np.float64(cosine), 1.0 - gate)
        value, derivative, by_margin = -value, -derivative, -by_margin
        # The margin is one minus a sigmoid.
        scratch.margin_gradients[r, 0] = np.float32(-scale * v * by_margin * gate * (1.0 - gate))
        return value, derivative
    if alignment.half:
        return -np.float64(cosine), -1.0
    return 2.0 - 2.0 * np.float64(cosine), -2.0


@inlined
def _learn_pair(r, batch, alignment, scale, user_factor, item_factor, items, scratch):
    """Find a pair's loss, and the gradients by its user and its item."""
    user_units, item_units = scratch.units[0], scratch.units[1]
    user_gradients, item_gradients = scratch.gradients[0], scratch.gradients[1]
    width = user_units.shape[1]
    cosine = ZERO
    for f in range(width):
        cosine += user_units[r, f] * item_units[r, f]
    v = np.float64(batch.data.weights[batch.first_pair + r]) * batch.mean
    u, i = user_of(batch, r), np.uint64(items.occurrences.tokens[r])
    value, derivative = _align(r, cosine, v, scale, alignment, u, i, scratch)
    scratch.losses[r] = v * value
    pull = np.float32(scale * v * derivative)
    for f in range(width):
        user_gradients[r, f] = user_factor * user_gradients[r, f] + pull * item_units[r, f]
        item_gradients[r, f] = item_factor * item_gradients[r, f] + pull * user_units[r, f]
    through_normalisation(user_gradients[r], user_units, r, width, ONE, scratch.lengths[r])
    through_dropout(user_gradients, alignment.dropout, scratch.masks, r)


@inlined
def _clamp(member, n, side):
    """Clip the margins of a batch's tokens to [0, 1]; each thread clips a part of them."""
    margins = side.table.weights
    begin, end = part(member, n)
    for p in range(begin, end):
        k = np.uint64(side.occurrences.tokens[p])
        margins[k, 0] = min(max(margins[k, 0], ZERO), ONE)


@inlined
def _apply_margins(member, n, users, items, gradients, now, mean):
    """Move the margins of a batch's users and items."""
    apply_gradients(member, n, users, gradients, NO_UNIT, now, mean)
    apply_gradients(member, n, items, gradients, NO_UNIT, now, mean)
    synchronize(member)
    _clamp(member, n, users)
    _clamp(member, n, items)


@kernel
def alignment_train(rank, size, barrier, span, alignment, sides, scratch):
    """Train on some batches of an epoch; return the sums of the loss and of the weights.

    Arguments are those of ``softmax_train``, but every row of a batch holds one positive.
    """
    member = Member(rank, size, barrier)
    users, items, step = sides.users, sides.items, sides.step
    width = items.table.weights.shape[1]
    user_margins = Side(alignment.user_margins, users.occurrences)
    item_margins = Side(alignment.item_margins, items.occurrences)
    units, gradients = scratch.units, scratch.gradients
    total_loss = 0.0
    total_weight = 0.0
    for b in range(span.first_batch, span.last_batch):
        batch = batch_of(span, b, step.rule.average)
        now = step_after(step, batch.number + 1)
        n, n_users = batch.n_rows, n_user_occurrences(batch)
        begin, end = part(member, n)
        list_users(begin, end, batch, users.occurrences)
        _list_items(begin, end, batch, items.occurrences)
        catch_up_batch(member, n_users, users, n, items, now)
        if alignment.margins:
            catch_up_batch(member, n, user_margins, n, item_margins, now)
        _gather(begin, end, batch, alignment, users, items, scratch)
        synchronize(member)
        _uniformity(member, n, units[0], scratch.user_totals, gradients[0], scratch.cosines)
        _uniformity(member, n, units[1], scratch.item_totals, gradients[1], scratch.cosines)
        synchronize(member)
        of_users = _push(n, scratch.user_totals, alignment.gamma_users, alignment.half)
        of_items = _push(n, scratch.item_totals, alignment.gamma_items, alignment.half)
        # Optimizers that do not average want sums over the batch: the mean times the weight.
        scale = 1.0 if step.rule.average else batch.weight
        user_factor = np.float32(scale * of_users.factor)
        item_factor = np.float32(scale * of_items.factor)
        for r in range(begin, end):
            _learn_pair(r, batch, alignment, scale, user_factor, item_factor, items, scratch)
        synchronize(member)
        if rank == 0:
            loss = of_users.value + of_items.value
            for r in range(n):
                loss += scratch.losses[r]
            total_loss += loss * batch.weight
            total_weight += batch.weight
        apply_gradients(member, n_users, users, gradients[0], NO_UNIT, now, batch.mean)
        apply_gradients(member, n, items, gradients[1], width, now, batch.mean)
        if alignment.margins:
            _apply_margins(
                member, n, user_margins, item_margins, scratch.margin_gradients, now, batch.mean
            )
        synchronize(member)
    return total_loss, total_weight


class AlignmentFamily(Family):
    """Positive pairs are pulled together, users and items each pushed apart; no negatives."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        d = problem.width
        self._scratch = AlignmentScratch(
            masks=aligned_zeros((n_pairs, d)),
            lengths=aligned_zeros(n_pairs),
            units=aligned_zeros((2, n_pairs, d)),
            gradients=aligned_zeros((2, n_pairs, d)),
            cosines=aligned_zeros((size, TILE_ROWS, n_pairs)),
            **numbers_of_rows(("losses", "user_totals", "item_totals"), n_pairs),
            margin_gradients=aligned_zeros((n_pairs, 1)),
        )

    def _work_of_batch(self):
        n = self.problem.batch_size
        return 8 * n * n * self.problem.width, 1

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        alignment = Alignment(
            dropout=self.problem.dropout,
            user_margins=tables.get("user_margins", NO_TABLE),
            item_margins=tables.get("item_margins", NO_TABLE),
            **self.problem.constants,
        )
        return call.run(alignment_train, call.span, alignment, sides, self._scratch)
