"""Rank-aware factorization machines: several tables, of several ranks, in one model.

Level p holds vectors of length D_p, for the tokens that occur often enough. With A(p, q) the
interactions of the tokens of level q by their vectors of level p, and B(1) = A(1, 1), the
recursion ::

    B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1)

makes every pair interact at the highest level that both tokens have (Chen et al., 2019, theorem
3). The last B is the score. A token's vector at its highest level is free: it follows the loss of
the score. Its other vectors are dependent: at level p they make B(p) follow B(p + 1).

With shared prefixes (DiFacto) level p holds the coordinates that rank D_p adds to the last, and
B(p + 1) = B(p) + A(p + 1, p + 1).
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, rolled_kernel
from freqfm.backends.base import RankedTables
from freqfm.backends.cpu.fm.batch import (
    add_gradient,
    begin_step,
    differentiate,
    gradient_of,
    linear_part,
    next_batch,
    own_tokens,
    part_of_batch,
    round_gradient,
    rows_of,
    step_intercept,
    step_scalars,
    sum_gradient,
    sum_of_rows,
)
from freqfm.backends.cpu.fm.prepared import PreparedBatches, order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.backends.cpu.vectors import add_multiple, squared_norm
from freqfm.formulas.losses import expectation, loss_and_gradient
from freqfm.formulas.steps import step_row


class Level(NamedTuple):
    """The table of one rank."""

    number: int  #: from 0 on
    #: Whether no level replaces its interactions by others: it is the highest, or levels are parts
    #: of one vector.
    final: bool
    table: np.ndarray  #: (n_rows, D_p)
    tables: RankedTables  #: of all levels


class LevelSums(NamedTuple):
    """Sums of x v of the rows of a batch, at one level."""

    whole: np.ndarray  #: (batch_size, D_p)
    free: np.ndarray  #: the same, over vectors that are at their token's highest level


class RankedScratch(NamedTuple):
    """Working memory of training, shared by all threads but for ``totals`` and ``gradients``.

    ``derivatives`` are those by the linear part: of the loss, and if dependent vectors follow the
    loss, of the losses of levels too. The fields up to ``gradients`` are those of ``PlainScratch``.
    """

    prepared: PreparedBatches
    sums: np.ndarray  #: (batch_size * sum of D_p,), float32, of each level
    scores: np.ndarray
    derivatives: np.ndarray
    losses: np.ndarray
    curvatures: np.ndarray
    penalties: np.ndarray
    rates: np.ndarray
    totals: np.ndarray
    gradients: np.ndarray
    free_sums: np.ndarray  #: like ``sums``
    level_scores: np.ndarray  #: (m, batch_size), float32
    level_derivatives: np.ndarray  #: (m, batch_size), float64, of a level's loss by its score


@inlined
def _level(number, tables):
    """Return a Level by its number."""
    n = tables.n_rows[number]
    width = tables.widths[number]
    first = tables.starts[number]
    final = tables.prefix or number == tables.widths.shape[0] - 1
    table = tables.weights[first : first + n * width].reshape(n, width)
    return Level(number, final, table, tables)


@inlined
def _sums_of_level(level, scratch):
    """Return the LevelSums of a level."""
    widths, n_rows = level.tables.widths, scratch.level_scores.shape[1]
    first = 0
    for number in range(level.number):
        first += n_rows * widths[number]
    width = widths[level.number]
    last = first + n_rows * width
    return LevelSums(
        scratch.sums[first:last].reshape(n_rows, width),
        scratch.free_sums[first:last].reshape(n_rows, width),
    )


@inlined
def _state_of_level(level, layout, state):
    """Return the first and the second optimizer state of a level's table."""
    n = level.table.shape[0]
    begin, width = layout[level.number, 0], layout[level.number, 1]
    first = state.factors_first[begin : begin + n * width].reshape(n, width)
    begin, width = layout[level.number, 2], layout[level.number, 3]
    return first, state.factors_second[begin : begin + n * width].reshape(n, width)


@inlined
def _sum_level(i, rows, level, total, free_total):
    """Sum x v over the tokens of a row that have this level; write it to ``total``.

    Below a final level ``free_total`` gets the sum over free vectors, which the next level does not
    replace. Returns the interactions of all, those that are replaced, and |sum of x v|^2.
    """
    tables, width = level.tables, level.table.shape[1]
    for f in range(width):
        total[f] = ZERO
        free_total[f] = ZERO
    squares, free_squares = ZERO, ZERO
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
        k, x = np.uint64(rows.token[p]), rows.value[p]
        if tables.levels[k] < level.number:
            continue
        vector = level.table[np.uint64(tables.rows[k])]
        if not level.final and tables.levels[k] == level.number:
            add_multiple(x, vector, free_total)
            free_squares += squared_norm(x, vector, width)
        else:
            add_multiple(x, vector, total)
            squares += squared_norm(x, vector, width)
    norm = squared_norm(ONE, total, width)
    replaced = HALF * (norm - squares)
    if level.final:
        return replaced, ZERO, norm
    for f in range(width):
        total[f] += free_total[f]
    norm = squared_norm(ONE, total, width)
    return HALF * (norm - (squares + free_squares)), replaced, norm


@inlined
def _score_levels(begin, end, weights, batch, scratch):
    """Score rows level by level, and bound the curvature as for a plain FM, over all levels."""
    rows, tables = rows_of(batch), weights.factors
    for j in range(begin, end):
        score, reach = linear_part(j, rows, weights)
        norms = ONE
        for number in range(tables.widths.shape[0]):
            level = _level(number, tables)
            sums = _sums_of_level(level, scratch)
            interactions, replaced, norm = _sum_level(j, rows, level, sums.whole[j], sums.free[j])
            scratch.level_scores[number, j] = score + interactions
            score += interactions - replaced
            norms += norm
        scratch.scores[j] = score
        scratch.curvatures[j] = reach * norms


@inlined
def _differentiate_levels(begin, end, problem, tables, batch, scratch):
    """Turn the scores of all levels into derivatives, of the loss and of the losses of levels.

    The loss of a level is that of its score with the prediction of the next level as the target.
    """
    n_levels, loss_code = tables.widths.shape[0], problem.objective.loss_code
    differentiate(begin, end, loss_code, batch, scratch)
    scores, derivatives = scratch.level_scores, scratch.level_derivatives
    for j in range(begin, end):
        derivatives[n_levels - 1, j] = scratch.derivatives[j]
        for level in range(0 if tables.prefix else n_levels - 1):
            target = expectation(loss_code, scores[level + 1, j])
            _, derivative = loss_and_gradient(loss_code, scores[level, j], target)
            weight = problem.ranked.dependent_weight * np.float64(batch.weights[j])
            derivatives[level, j] = weight * derivative
            if problem.ranked.follow_loss:
                scratch.derivatives[j] += weight * derivative


@inlined
def _step_level(tokens, level, step, problem, state, batch, scratch, gradient):
    """Update the vectors that some tokens have at a level."""
    tables, derivatives = level.tables, scratch.level_derivatives
    first, second = _state_of_level(level, problem.ranked.state_layout, state)
    sums, last = _sums_of_level(level, scratch), derivatives.shape[0] - 1
    for t in range(*tokens):
        rate, k = scratch.rates[t], np.uint64(batch.tokens[t])
        if math.isnan(rate) or tables.levels[k] < level.number:
            continue
        i = np.uint64(tables.rows[k])
        dependent = tables.levels[k] > level.number and not tables.prefix
        own = derivatives[level.number if dependent else last]
        sum_gradient(
            t, scratch.penalties[t], level.table[i], own, sums.whole, batch, gradient.total
        )
        if dependent and problem.ranked.follow_loss:
            add_gradient(t, derivatives[last], sums.free, batch, gradient.total)
        round_gradient(level.table.shape[1], step.scale, gradient)
        step_row(
            problem.rule, rate, step.root_correction, level.table, i, gradient.scaled, first, second
        )


@rolled_kernel
def rafm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem, span : as for ``fm_train``.
    weights : FMWeights, with RankedTables as factors.
    state : OptimizerState; those of the tables stand one after the other in 1-D arrays.
    scratch : RankedScratch
    """
    member, tables = Member(rank, size, barrier), weights.factors
    order = order_of_epoch(problem.rows, span.epoch)
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, problem.rows)
        begin, end = np.uint64(part.begin), np.uint64(part.end)
        batch = next_batch(b, member, problem, span, order, scratch.prepared)
        _score_levels(begin, end, weights, batch, scratch)
        _differentiate_levels(begin, end, problem, tables, batch, scratch)
        synchronize(member)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            batch_loss, summed = sum_of_rows(part.n_rows, batch, scratch)
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state)
        tokens = own_tokens(member, batch)
        step_scalars(tokens, step, problem, weights, state, batch, scratch)
        for number in range(tables.widths.shape[0]):
            level = _level(number, tables)
            _step_level(
                tokens, level, step, problem, state, batch, scratch, gradient_of(rank, scratch)
            )
    return loss


@rolled_kernel
def rafm_score(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows, in O(n D_1 + sum of D_p n_p) for n_p tokens of level p.

    ``sums`` (2 size, longest D or more) is scratch; ``scores`` (n_rows,) is the float32 result.
    Rows are shared out in blocks of equal length.
    """
    n_rows, tables = scores.shape[0], weights.factors
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        score = linear_part(i, rows, weights)[0]
        for number in range(tables.widths.shape[0]):
            level = _level(number, tables)
            interactions, replaced, _ = _sum_level(
                i, rows, level, sums[2 * rank], sums[2 * rank + 1]
            )
            score += interactions - replaced
        scores[i] = score
