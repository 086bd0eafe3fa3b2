"""Alignment and uniformity: DirectAU and MAWU, losses without negatives.

Positives are pulled together, and the users of a batch, and its items, are pushed apart::

    align(batch) + sum over the two sides of  g log(h sum_{a != b} exp(-2 |x_a - x_b|^2) + m)

for unit vectors x. ``Pair`` holds what is particular to each of the two losses.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.blas import add_product, product_with_transposed
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    catch_up,
    gather_dropped_row,
    gather_row,
    through_dropout,
    through_normalisation,
)
from freqfm.backends.cpu.team import wait
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import margin_cosine
from freqfm.formulas.rng import hash64, stream_key
from freqfm.formulas.special import exp_of_minus

# Rows of one tile of the matrix of all cosines within a batch; they do not depend on the number of
# threads.
TILE_ROWS = 64

_FOUR = np.float32(4)


class Uniformity(NamedTuple):
    """The objective's constants."""

    margins: bool  #: MAWU's alignment with learned margins, instead of the squared distance
    gamma_users: float
    gamma_items: float
    half: bool  #: MAWU's sum over half of the pairs, with the other half counted as orthogonal


class PairScratch(NamedTuple):
    """Working memory for batches of up to B pairs, float32."""

    masks: np.ndarray  #: (B, d)
    lengths: np.ndarray  #: (B,)
    units: np.ndarray  #: (2, B, d), of users and items
    gradients: np.ndarray  #: (2, B, d)
    cosines: np.ndarray  #: (size, TILE_ROWS, B)
    row_sums: np.ndarray  #: (B, 4): loss, and sums of exponentials; float64
    margin_gradients: np.ndarray  #: (B, 1)


@inlined
def _uniformity(rank, size, n, side, scratch):
    """For each row of a side, sum exp(-2 |x - x'|^2) over the others, and the same times x'."""
    units = scratch.units[side]
    gradients = scratch.gradients[side]
    tile = scratch.cosines[rank]
    for start in range(rank * TILE_ROWS, n, size * TILE_ROWS):
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
            scratch.row_sums[r, 1 + side] = total
        # Rows of a tile may be wider than the batch.
        add_product(tile[: end - start, :n], units[:n], gradients[start:end], ZERO)


@inlined
def _log_and_push(n, side, objective, scratch):
    """Return gamma log(...) of a side, and the factor that makes its sums the gradient."""
    total = 0.0
    for r in range(n):
        total += scratch.row_sums[r, 1 + side]
    gamma = objective.gamma_users if side == 0 else objective.gamma_items
    if n < 2:
        return 0.0, 0.0
    square = np.float64(n) * n
    if objective.half:
        # Every entry of the n x n matrix that is not below the diagonal counts as a cosine of 0.
        inner = 0.5 * total + (square - 0.5 * n * (n - 1)) * math.exp(-4.0)
        return gamma * math.log(inner / square), 4.0 * gamma / inner
    return 0.5 * gamma * math.log(total / (square - n)), 4.0 * gamma / total


@inlined
def _clamp(rank, size, n, tokens, margins):
    """Bring the margins of a batch's tokens back into [0, 1]; each thread a part of the tokens."""
    for p in range(n * rank // size, n * (rank + 1) // size):
        k = np.uint64(tokens[p])
        margins[k, 0] = min(max(margins[k, 0], ZERO), ONE)


@kernel
def alignment_train(
    rank,
    size,
    barrier,
    epoch,
    first_batch,
    last_batch,
    seed,
    epoch_number,
    dropout,
    objective,
    users,
    items,
    user_margins,
    item_margins,
    user_rule,
    item_rule,
    hyper,
    step,
    clock,
    scratch,
    user_occurrences,
    item_occurrences,
):
    """Train on the batches ``first_batch`` to ``last_batch`` of an epoch; return loss and weight.

    Arguments as those of ``softmax_train``, but that every row of ``epoch`` holds one positive;
    ``objective`` is a Uniformity, ``scratch`` a PairScratch, and margins are Tables of width one.
    """
    me = np.uint64(rank)
    team = np.uint64(size)
    width = items.weights.shape[1]
    key = stream_key(seed, epoch_number)
    user_units, item_units = scratch.units[0], scratch.units[1]
    user_gradients, item_gradients = scratch.gradients[0], scratch.gradients[1]
    total_loss = 0.0
    total_weight = 0.0
    for b in range(first_batch, last_batch):
        step += 1
        first = epoch.batch_starts[b]
        n = epoch.batch_starts[b + 1] - first
        begin = n * rank // size
        end = n * (rank + 1) // size
        for r in range(begin, end):
            user_occurrences.tokens[r] = epoch.row_users[first + r]
            item_occurrences.tokens[r] = epoch.items[first + r]
            for occurrences in (user_occurrences, item_occurrences):
                occurrences.rows[r] = r
                occurrences.multiples[r] = ONE
        if item_rule.catch_up != CATCH_UP_NONE:
            wait(barrier, size)
            gradient = item_occurrences.gradients[rank]
            catch_up(
                me, team, n, user_occurrences.tokens, step, clock, user_rule, hyper, users,
                gradient,
            )  # fmt: skip
            catch_up(
                me, team, n, item_occurrences.tokens, step, clock, item_rule, hyper, items,
                gradient,
            )  # fmt: skip
            if objective.margins:
                catch_up(
                    me, team, n, user_occurrences.tokens, step, clock, user_rule, hyper,
                    user_margins, gradient,
                )  # fmt: skip
                catch_up(
                    me, team, n, item_occurrences.tokens, step, clock, item_rule, hyper,
                    item_margins, gradient,
                )  # fmt: skip
            wait(barrier, size)
        batch_weight = 0.0
        for r in range(n):
            batch_weight += epoch.weights[first + r]
        # Sums over the batch, for optimizers that do not average, are the mean times the weight.
        mean = 1.0 / batch_weight
        whole = 1.0 if item_rule.average else batch_weight
        for r in range(begin, end):
            u = np.uint64(epoch.row_users[first + r])
            row_key = hash64(key + np.uint64(first + r))
            scratch.lengths[r] = gather_dropped_row(
                users.weights, u, True, dropout, row_key, scratch.masks, user_units, r
            )
            gather_row(items.weights, np.uint64(epoch.items[first + r]), width, item_units, r)
        wait(barrier, size)
        _uniformity(rank, size, n, 0, scratch)
        _uniformity(rank, size, n, 1, scratch)
        wait(barrier, size)
        user_log, user_push = _log_and_push(n, 0, objective, scratch)
        item_log, item_push = _log_and_push(n, 1, objective, scratch)
        user_factor = np.float32(whole * user_push)
        item_factor = np.float32(whole * item_push)
        for r in range(begin, end):
            u = np.uint64(epoch.row_users[first + r])
            i = np.uint64(epoch.items[first + r])
            cosine = ZERO
            for f in range(width):
                cosine += user_units[r, f] * item_units[r, f]
            v = np.float64(epoch.weights[first + r]) * mean
            if objective.margins:
                m_user = min(max(user_margins.weights[u, 0], ZERO), ONE)
                m_item = min(max(item_margins.weights[i, 0], ZERO), ONE)
                gate = 1.0 / (1.0 + math.exp(-np.float64(m_user) - m_item))
                value, slope, by_margin = margin_cosine(np.float64(cosine), 1.0 - gate)
                value, slope, by_margin = -value, -slope, -by_margin
                # The margin is one minus a sigmoid.
                scratch.margin_gradients[r, 0] = np.float32(
                    -whole * v * by_margin * gate * (1.0 - gate)
                )
            elif objective.half:
                value, slope = -np.float64(cosine), -1.0
            else:
                value, slope = 2.0 - 2.0 * np.float64(cosine), -2.0
            scratch.row_sums[r, 0] = v * value
            pull = np.float32(whole * v * slope)
            for f in range(width):
                user_gradients[r, f] = user_factor * user_gradients[r, f] + pull * item_units[r, f]
                item_gradients[r, f] = item_factor * item_gradients[r, f] + pull * user_units[r, f]
            through_normalisation(user_gradients, r, user_units, r, scratch.lengths[r])
            through_dropout(user_gradients, dropout, scratch.masks, r)
        wait(barrier, size)
        if rank == 0:
            loss = user_log + item_log
            for r in range(n):
                loss += scratch.row_sums[r, 0]
            total_loss += loss * batch_weight
            total_weight += batch_weight
        apply_gradients(
            rank, size, n, user_occurrences, user_gradients, NO_UNIT, users, user_rule, hyper, step,
            clock, mean,
        )  # fmt: skip
        apply_gradients(
            rank, size, n, item_occurrences, item_gradients, width, items, item_rule, hyper, step,
            clock, mean,
        )  # fmt: skip
        if objective.margins:
            apply_gradients(
                rank, size, n, user_occurrences, scratch.margin_gradients, NO_UNIT, user_margins,
                user_rule, hyper, step, clock, mean,
            )  # fmt: skip
            apply_gradients(
                rank, size, n, item_occurrences, scratch.margin_gradients, NO_UNIT, item_margins,
                item_rule, hyper, step, clock, mean,
            )  # fmt: skip
            wait(barrier, size)
            _clamp(rank, size, n, user_occurrences.tokens, user_margins.weights)
            _clamp(rank, size, n, item_occurrences.tokens, item_margins.weights)
        wait(barrier, size)
    return total_loss, total_weight
