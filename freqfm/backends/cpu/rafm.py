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

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel, rolled_kernel
from freqfm.backends.base import RankedTables
from freqfm.backends.cpu.fm_batch import (
    Scratch,
    TokenSums,
    add_token,
    begin_step,
    differentiate_losses,
    gather_rows,
    link_tokens,
    no_gradient,
    occurrence,
    order_of_epoch,
    part_of_batch,
    scratch_of_thread,
    squared_norm,
    step_intercept,
    step_linear,
    sum_gradient,
    sum_of_rows,
    token_rate,
)
from freqfm.backends.cpu.ownership import owns
from freqfm.backends.cpu.team import wait
from freqfm.formulas.losses import expectation, loss_and_gradient
from freqfm.formulas.steps import penalized_curvature, present_rate, step_row


class Level(NamedTuple):
    """The table of one rank."""

    number: int  #: from 0 on
    #: Whether no level replaces its interactions by others: it is the highest, or levels are parts
    #: of one vector.
    final: bool
    table: np.ndarray  #: (n_rows, D_p)
    tables: RankedTables  #: of all levels


class LevelRows(NamedTuple):
    """The rows of a batch in the scratch of one level, see ``LevelScratch``."""

    batch: np.ndarray  #: (batch_size,)
    sums: np.ndarray  #: (batch_size, D_p), like those below
    free_sums: np.ndarray
    gradients: np.ndarray


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
def _rows_of_level(number, tables, scratch):
    """Return the rows of the batch as a level sees them."""
    n_rows = scratch.batches.shape[1]
    first = 0
    for level in range(number):
        first += n_rows * tables.widths[level]
    width = tables.widths[number]
    last = first + n_rows * width
    return LevelRows(
        scratch.batches[number],
        scratch.sums[first:last].reshape(n_rows, width),
        scratch.free_sums[first:last].reshape(n_rows, width),
        scratch.gradients[first:last].reshape(n_rows, width),
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
def _split_sums(row, entries, level, total, free_total):
    """Sum x v over the tokens of a row that have this level; write it to ``total``.

    ``row`` is where the row begins and ends in ``entries``. Below a final level ``free_total``
    gets the sum over free vectors, which the next level does not replace. Returns the interactions
    of all, those that are replaced, and |sum of x v|^2.
    """
    tables = level.tables
    width = level.table.shape[1]
    n_kept = 0
    n_free = 0
    squares = ZERO
    free_squares = ZERO
    for p in range(np.uint64(row[0]), np.uint64(row[1])):
        k = np.uint64(entries.token[p])
        x = entries.value[p]
        if tables.levels[k] < level.number:
            continue
        i = np.uint64(tables.rows[k])
        if not level.final and tables.levels[k] == level.number:
            free_squares += add_token(n_free == 0, i, x, level.table, free_total)
            n_free += 1
        else:
            squares += add_token(n_kept == 0, i, x, level.table, total)
            n_kept += 1
    norm = squared_norm(n_kept, width, total)
    replaced = HALF * (norm - squares)
    if level.final:
        return replaced, ZERO, norm
    if n_free == 0:
        for f in range(width):
            free_total[f] = ZERO
        if n_kept == 0:
            for f in range(width):
                total[f] = ZERO
        return replaced, replaced, norm
    if n_kept == 0:
        for f in range(width):
            total[f] = free_total[f]
    else:
        for f in range(width):
            total[f] += free_total[f]
    norm = squared_norm(1, width, total)
    return HALF * (norm - (squares + free_squares)), replaced, norm


@inlined
def _score_levels(part, weights, entries, scratch):
    """Score rows level by level, and bound the curvature as for a plain FM, over all levels."""
    tables = weights.factors
    n_levels = tables.widths.shape[0]
    main = scratch.batches[n_levels - 1]
    for j in range(part.begin, part.end):
        score = weights.intercept[0]
        for p in range(np.uint64(main[j].begin), np.uint64(main[j].end)):
            score += entries[p].value * weights.linear[np.uint64(entries[p].token)]
        scratch.batches[0][j].score = score
        main[j].curvature = ONE
    for number in range(n_levels):
        level = _level(number, tables)
        rows = _rows_of_level(number, tables, scratch)
        for j in range(part.begin, part.end):
            row = main[j].begin, main[j].end
            interactions, replaced, norm = _split_sums(
                row, entries, level, rows.sums[j], rows.free_sums[j]
            )
            rows.batch[j].score += interactions
            if number < n_levels - 1:
                scratch.batches[number + 1][j].score = rows.batch[j].score - replaced
            main[j].curvature += norm
    for j in range(part.begin, part.end):
        reach = ONE
        for p in range(np.uint64(main[j].begin), np.uint64(main[j].end)):
            reach += abs(entries[p].value)
        main[j].curvature = reach * np.float32(main[j].curvature)


@inlined
def _differentiate_levels(part, problem, prefix, batches):
    """Turn the scores of all levels into derivatives, of the loss and of the losses of levels.

    The loss of a level is that of its score with the prediction of the next level as the target.
    """
    n_levels = batches.shape[0] - 1
    loss_code = problem.objective.loss_code
    main = batches[n_levels - 1]
    differentiate_losses(part, loss_code, main)
    for j in range(part.begin, part.end):
        total = main[j].derivative
        for level in range(0 if prefix else n_levels - 1):
            target = expectation(loss_code, batches[level + 1][j].score)
            _, derivative = loss_and_gradient(loss_code, batches[level][j].score, target)
            weight = problem.ranked.dependent_weight * np.float64(main[j].weight)
            derivative = weight * derivative
            batches[level][j].derivative = derivative
            batches[level][j].weight = main[j].weight
            batches[level][j].curvature = main[j].curvature
            total += derivative
        batches[n_levels][j].derivative = total
        batches[n_levels][j].loss = main[j].loss
        batches[n_levels][j].weight = main[j].weight
        batches[n_levels][j].curvature = main[j].curvature


@inlined
def _differentiate_dependents(part, number, tables, follow_loss, scratch):
    """Write the gradient of a row's dependent vectors, per unit of x, without the term in v_k.

    It is derivative * (sum of x v) by the loss of the level, and if dependent vectors follow the
    loss of the score too, derivative * (sum of x v over free vectors) by that.
    """
    main = scratch.batches[tables.widths.shape[0] - 1]
    rows = _rows_of_level(number, tables, scratch)
    for j in range(part.begin, part.end):
        by_level = rows.batch[j].derivative
        by_loss = main[j].derivative if follow_loss else 0.0
        for f in range(rows.sums.shape[1]):
            rows.gradients[j, f] = by_level * rows.sums[j, f] + by_loss * rows.free_sums[j, f]


@inlined
def _sum_dependent(row, head, table, scratch, scale, alpha):
    """Sum the gradient of a dependent vector, as ``sum_gradient`` does that of a free one.

    ``scratch.sums`` holds the gradients of the rows of the batch, per unit of x.
    """
    batch = scratch.batch
    links = scratch.links
    gradients = scratch.sums
    total = scratch.total
    width = table.shape[1]
    for f in range(width):
        total[f] = 0.0
    # What the vector itself is multiplied by.
    factor = 0.0
    weight = 0.0
    curvature = 0.0
    n_left = links[np.uint64(head)].length
    link = np.int32(head)
    while n_left >= 4:
        j, x, d, link = occurrence(link, batch, links)
        j2, x2, d2, link = occurrence(link, batch, links)
        j3, x3, d3, link = occurrence(link, batch, links)
        j4, x4, d4, link = occurrence(link, batch, links)
        n_left -= 4
        factor += d * x + d2 * x2 + d3 * x3 + d4 * x4
        weight += batch[j].weight + batch[j2].weight + batch[j3].weight + batch[j4].weight
        curvature += abs(x) * batch[j].curvature + abs(x2) * batch[j2].curvature
        curvature += abs(x3) * batch[j3].curvature + abs(x4) * batch[j4].curvature
        for f in range(width):
            total[f] += (
                x * gradients[j, f]
                + x2 * gradients[j2, f]
                + x3 * gradients[j3, f]
                + x4 * gradients[j4, f]
            )
    while n_left > 0:
        j, x, d, link = occurrence(link, batch, links)
        n_left -= 1
        factor += d * x
        weight += batch[j].weight
        curvature += abs(x) * batch[j].curvature
        for f in range(width):
            total[f] += x * gradients[j, f]
    factor = (factor - alpha * weight) * scale
    for f in range(width):
        scratch.gradient[f] = np.float32(scale * total[f] - factor * table[row, f])
    return TokenSums(0.0, weight, curvature)


@inlined
def _sum_derivatives(head, batch, links):
    """Return the sum of derivative * x over the rows that hold a token."""
    total = 0.0
    link = np.int32(head)
    while link >= 0:
        _, _, derivative, link = occurrence(link, batch, links)
        total += derivative
    return total


@inlined
def _with_rows(scratch, batch, sums):
    """Return a thread's scratch with other rows of the batch, and other sums of them."""
    return Scratch(
        batch, sums, scratch.heads, scratch.links, scratch.tokens, scratch.total, scratch.gradient,
        scratch.levels,
    )  # fmt: skip


@inlined
def _follows_loss(problem, tables):
    """Return whether there are dependent vectors that also follow the loss of the score."""
    return problem.ranked.follow_loss and not tables.prefix and tables.widths.shape[0] > 1


@inlined
def _step_level(level, n_tokens, part, step, problem, weights, state, scratch):
    """Update the vectors of a level that this thread owns; with free ones, linear weights too."""
    objective, rule, tables = problem.objective, problem.rule, weights.factors
    batches = scratch.levels.batches
    n_levels = batches.shape[0] - 1
    firsts, seconds = _state_of_level(level, problem.ranked.state_layout, state)
    rows = _rows_of_level(level.number, tables, scratch.levels)
    of_free = _with_rows(scratch, batches[n_levels - 1], rows.sums)
    of_dependent = _with_rows(scratch, rows.batch, rows.gradients)
    follow_loss = _follows_loss(problem, tables)
    for t in range(n_tokens if rule.lazy else weights.linear.shape[0]):
        k = np.uint64(scratch.tokens[t] if rule.lazy else t)
        alpha = objective.alpha_factors * objective.shares[k]
        head = scratch.heads[k]
        if level.number == 0:
            scratch.heads[k] = -1
        if tables.levels[k] < level.number:
            continue
        row = np.uint64(tables.rows[k])
        free = tables.levels[k] == level.number
        if head >= 0:
            if free or tables.prefix:
                sums_k = sum_gradient(row, head, level.table, of_free, step.scale, alpha)
                derivative = sums_k.derivative
                if follow_loss:
                    derivative = _sum_derivatives(head, batches[n_levels], scratch.links)
                summed = TokenSums(derivative, sums_k.weight, sums_k.curvature)
            else:
                summed = _sum_dependent(row, head, level.table, of_dependent, step.scale, alpha)
            if rule.lazy and summed.weight == 0.0:
                continue
        elif owns(part.rank, part.size, k):
            summed = no_gradient(level.table.shape[1], scratch.gradient)
        else:
            continue
        if free:
            rate = token_rate(k, summed, step, problem, state)
            step_linear(k, summed, rate, step, problem, weights, state)
        else:
            curvature = penalized_curvature(summed.curvature, summed.weight, k, objective)
            rate = present_rate(rule.rate_code, rule.hyper, state.per_row, k, curvature)
            rate = np.float32(rate / step.correction)
        step_row(
            rule, rate, step.root_correction, level.table, row, scratch.gradient, firsts, seconds,
        )  # fmt: skip


@rolled_kernel
def rafm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem, span, scratch : as for ``fm_train``.
    weights : FMWeights, with RankedTables as factors.
    state : OptimizerState; those of the tables stand one after the other in 1-D arrays.
    """
    rows = problem.rows
    tables = weights.factors
    n_levels = tables.widths.shape[0]
    order = order_of_epoch(rows, span.epoch)
    local = scratch_of_thread(rank, scratch)
    batches = scratch.levels.batches
    main = batches[n_levels - 1]
    follow_loss = _follows_loss(problem, tables)
    of_linear = batches[n_levels if follow_loss else n_levels - 1]
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, rows)
        gather_rows(part, rows, order, main)
        _score_levels(part, weights, rows.entries, scratch.levels)
        _differentiate_levels(part, problem, tables.prefix, batches)
        for number in range(0 if tables.prefix else n_levels - 1):
            _differentiate_dependents(part, number, tables, follow_loss, scratch.levels)
        wait(barrier, size)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            batch_loss, summed = sum_of_rows(part.n_rows, of_linear)
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state)
        n_tokens = link_tokens(part, rows.entries, main, local)
        # From the highest level down: a token's free vector comes first and advances its counter.
        for back in range(n_levels):
            level = _level(n_levels - 1 - back, tables)
            _step_level(level, n_tokens, part, step, problem, weights, state, local)
        wait(barrier, size)
    return loss


@kernel
def rafm_score(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows, in O(n D_1 + sum of D_p n_p) for n_p tokens of level p.

    ``sums`` (2 size, longest D or more) is scratch; ``scores`` (n_rows,) is the float32 result.
    Rows are shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    n_levels = weights.factors.widths.shape[0]
    begin = n_rows * rank // size
    end = n_rows * (rank + 1) // size
    for i in range(begin, end):
        score = weights.intercept[0]
        for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
            score += rows.value[p] * weights.linear[np.uint64(rows.token[p])]
        scores[i] = score
    total, free_total = sums[2 * rank], sums[2 * rank + 1]
    for number in range(n_levels):
        level = _level(number, weights.factors)
        for i in range(begin, end):
            row = rows.indptr[i], rows.indptr[i + 1]
            interactions, replaced, _ = _split_sums(row, rows, level, total, free_total)
            scores[i] += interactions
            if number < n_levels - 1:
                scores[i] -= replaced
