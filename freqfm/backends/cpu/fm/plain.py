"""Second-order and rank-aware factorization machines: mini-batch training and scores.

Rank-aware factorization machines: several tables, of several ranks, in one model.

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

from freqfm._numba.instructions import prefetch_element, prefetch_row
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.base import RankedTables
from freqfm.backends.cpu.fm.batch import (
    ENTRIES_AHEAD,
    Along,
    Scratch,
    add_gradient,
    add_vector,
    differentiate,
    linear_part,
    move_vector,
    next_batch,
    pair_up,
    prefetch_vectors,
    rows_of,
    set_to_zero,
    step_scalars,
    step_vector,
    sum_gradient,
    sum_row,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.formulas.losses import expectation, loss_and_gradient

_ONE, _TWO = np.uint64(1), np.uint64(2)


@inlined
def _score_pair(p, q, rows, weights):
    """Return the score of a row of two entries: a dot product is their only interaction."""
    i, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    product = ZERO
    for f in range(np.uint64(weights.factors.shape[1])):
        product += weights.factors[i, f] * weights.factors[j, f]
    x, y = rows.value[p], rows.value[q]
    linear = x * weights.linear[i] + y * weights.linear[j]
    return weights.intercept[0] + linear + x * y * product


@inlined
def _sum_two(x, vector, y, other, sums):
    """Write x v + y w, of two vectors; return x y <v, w>, their interaction, and |x v + y w|^2."""
    product, norm = ZERO, ZERO
    for f in range(np.uint64(vector.shape[0])):
        one, two = x * vector[f], y * other[f]
        total = one + two
        sums[f] = total
        norm += total * total
        product += one * two
    return product, norm


@inlined
def _sum_pair(p, q, rows, weights, sums):
    """Do what ``sum_row`` does for a row of two entries, in one loop."""
    last = np.uint64(rows.token.shape[0] - 1)
    for ahead in (min(p + ENTRIES_AHEAD, last), min(q + ENTRIES_AHEAD, last)):
        prefetch_row(weights.factors, rows.token[ahead])
        prefetch_element(weights.linear, rows.token[ahead])
    i, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    x, y = rows.value[p], rows.value[q]
    product, norm = _sum_two(x, weights.factors[i], y, weights.factors[j], sums)
    linear = x * weights.linear[i] + y * weights.linear[j]
    return weights.intercept[0] + linear + product, norm, ONE + abs(x) + abs(y)


@inlined
def _score_rows(begin, end, weights, batch, sums, squares, scratch):
    """Write the scores of rows, their sums of x v, and bounds of the scores' curvature."""
    rows = rows_of(batch)
    for j in range(begin, end):
        p = np.uint64(rows.indptr[j])
        if np.uint64(rows.indptr[j + _ONE]) - p == _TWO:
            score, norm, reach = _sum_pair(p, p + _ONE, rows, weights, sums[j])
        else:
            score, norm, reach = sum_row(j, rows, weights, sums[j], squares)
        scratch.scores[j] = score
        scratch.curvatures[j] = reach * (ONE + norm)


@inlined
def _step_tokens(tokens, rank, step, rule, factors, state, batch, scratch):
    """Update the factors of some tokens."""
    tables = factors, state.factors_first, state.factors_second
    along = Along(scratch.sums[0], ONE)
    for t in range(*tokens):
        prefetch_vectors(t, batch, factors, state)
        step_vector(t, rank, along, step, rule, tables, batch, scratch)


@kernel
def fm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem : Problem
    span : BatchRange
    weights : FMWeights
    state : OptimizerState
    scratch : Scratch
    """
    member, order = Member(rank, size, barrier), order_of_epoch(problem.rows, span.epoch)
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part, batch = next_batch(b, member, problem, span, order, scratch.prepared)
        begin, end = np.uint64(part.begin), np.uint64(part.end)
        _score_rows(begin, end, weights, batch, scratch.sums[0], scratch.squares[rank], scratch)
        differentiate(begin, end, problem.objective, batch, scratch)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(
            number, span.share, part, problem, weights, state, batch, scratch
        )
        loss += of_batch
        _step_tokens(tokens, rank, step, problem.rule, weights.factors, state, batch, scratch)
    return loss


@kernel
def fm_score(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``sums`` (2, size, d or more) is scratch, ``scores`` (n_rows,) the float32 result. Rows are
    shared out in blocks of equal length.
    """
    n_rows, last = scores.shape[0], np.uint64(rows.token.shape[0] - 1)
    for i in range(np.uint64(n_rows * rank // size), np.uint64(n_rows * (rank + 1) // size)):
        p, end = np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])
        if end - p == _TWO:
            prefetch_row(weights.factors, rows.token[min(p + ENTRIES_AHEAD, last)])
            prefetch_row(weights.factors, rows.token[min(p + ENTRIES_AHEAD + _ONE, last)])
            scores[i] = _score_pair(p, p + _ONE, rows, weights)
        else:
            scores[i] = sum_row(i, rows, weights, sums[0, rank], sums[1, rank])[0]


class Level(NamedTuple):
    """The table of one rank."""

    number: int  #: from 0 on
    #: Whether no level replaces its interactions by others: it is the highest, or levels are parts
    #: of one vector.
    final: bool
    table: np.ndarray  #: (n_rows, D_p)
    tables: RankedTables  #: of all levels


class RankedScratch(NamedTuple):
    """Working memory of training.

    The ``derivatives`` of the shared part are those by the linear part: of the loss, and if
    dependent vectors follow the loss, of the losses of levels too.
    """

    shared: Scratch
    free_sums: np.ndarray  #: like ``sums``, over vectors that are at their token's highest level
    free_squares: np.ndarray  #: like ``squares``
    scores: np.ndarray  #: (n_levels, batch_size), float32
    derivatives: np.ndarray  #: (n_levels, batch_size), float64, of a level's loss by its score


class Sums(NamedTuple):
    """Sums over the vectors of a row, at one level."""

    sums: np.ndarray  #: (D_p or more,), of x v
    squares: np.ndarray  #: of (x v)^2
    free_sums: np.ndarray  #: the same, over vectors that are at their token's highest level
    free_squares: np.ndarray


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
def _state_of_level(level, layout, state):
    """Return the first and the second optimizer state of a level's table."""
    n = level.table.shape[0]
    begin, width = layout[level.number, 0], layout[level.number, 1]
    first = state.factors_first[begin : begin + n * width].reshape(n, width)
    begin, width = layout[level.number, 2], layout[level.number, 3]
    return first, state.factors_second[begin : begin + n * width].reshape(n, width)


@inlined
def _prefetch_vector(p, rows, level):
    """Prefetch the vector of a token some entries ahead; one that it does not have does no harm."""
    ahead = rows.token[min(p + ENTRIES_AHEAD, np.uint64(rows.token.shape[0] - 1))]
    prefetch_row(level.table, level.tables.rows[np.uint64(ahead)])


@inlined
def _sum_pair_of_level(p, q, rows, level, row):
    """Do what ``_sum_level`` does for a row of two entries, in one loop."""
    levels, number, x, y = level.tables.levels, level.number, rows.value[p], rows.value[q]
    _prefetch_vector(p, rows, level)
    _prefetch_vector(q, rows, level)
    k, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    first, second = levels[k], levels[j]
    # In place of a vector that the token does not have stands the other, without a weight.
    if first < number:
        k, x = j, ZERO
    if second < number:
        j, y = k, ZERO
    if max(first, second) < number:
        set_to_zero(np.uint64(level.table.shape[1]), row.sums, row.free_sums)
        return ZERO, ZERO, ZERO
    vector, other = (
        level.table[np.uint64(level.tables.rows[k])],
        level.table[np.uint64(level.tables.rows[j])],
    )
    pairs, norm = _sum_two(x, vector, y, other, row.sums)
    if level.final:
        return pairs, ZERO, norm
    x, y = x if first == number else ZERO, y if second == number else ZERO
    for f in range(np.uint64(vector.shape[0])):
        row.free_sums[f] = x * vector[f] + y * other[f]
    return pairs, pairs if min(first, second) > number else ZERO, norm


@inlined
def _sum_level(i, rows, level, row):
    """Write the Sums of a row over the tokens that have this level.

    Below a final level the free ones are over free vectors, which the next level does not replace.
    Returns the interactions of all, those that are replaced, and |sum of x v|^2.
    """
    tables, width, p = level.tables, np.uint64(level.table.shape[1]), np.uint64(rows.indptr[i])
    if np.uint64(rows.indptr[i + 1]) - p == _TWO:
        return _sum_pair_of_level(p, p + _ONE, rows, level, row)
    set_to_zero(width, row.sums, row.squares)
    if not level.final:
        set_to_zero(width, row.free_sums, row.free_squares)
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
        _prefetch_vector(p, rows, level)
        k, x = np.uint64(rows.token[p]), rows.value[p]
        if tables.levels[k] < level.number:
            continue
        vector = level.table[np.uint64(tables.rows[k])]
        if not level.final and tables.levels[k] == level.number:
            add_vector(x, vector, width, row.free_sums, row.free_squares)
        else:
            add_vector(x, vector, width, row.sums, row.squares)
    pairs, norm = pair_up(width, row.sums, row.squares)
    if level.final:
        return pairs, ZERO, norm
    for f in range(width):
        row.sums[f] += row.free_sums[f]
        row.squares[f] += row.free_squares[f]
    replaced = pairs
    pairs, norm = pair_up(width, row.sums, row.squares)
    return pairs, replaced, norm


@inlined
def _score_levels(part, weights, batch, scratch):
    """Score rows level by level, and bound the curvature as for a plain FM, over all levels."""
    rows, tables, shared = rows_of(batch), weights.factors, scratch.shared
    squares, free_squares = shared.squares[part.rank], scratch.free_squares[part.rank]
    for j in range(np.uint64(part.begin), np.uint64(part.end)):
        score, reach = linear_part(j, rows, weights)
        norms = ONE
        for number in range(tables.widths.shape[0]):
            row = Sums(shared.sums[number, j], squares, scratch.free_sums[number, j], free_squares)
            pairs, replaced, norm = _sum_level(j, rows, _level(number, tables), row)
            scratch.scores[number, j] = score + pairs
            score += pairs - replaced
            norms += norm
        shared.scores[j] = score
        shared.curvatures[j] = reach * norms


@inlined
def _differentiate_levels(part, problem, tables, batch, scratch):
    """Turn the scores of all levels into derivatives, of the loss and of the losses of levels.

    The loss of a level is that of its score with the prediction of the next level as the target.
    """
    n_levels, loss_code = tables.widths.shape[0], problem.objective.loss_code
    begin, end = np.uint64(part.begin), np.uint64(part.end)
    differentiate(begin, end, problem.objective, batch, scratch.shared)
    scores, derivatives, by_linear = scratch.scores, scratch.derivatives, scratch.shared.derivatives
    for j in range(begin, end):
        derivatives[n_levels - 1, j] = by_linear[j]
        for level in range(0 if tables.prefix else n_levels - 1):
            target = expectation(loss_code, scores[level + 1, j])
            _, derivative = loss_and_gradient(loss_code, scores[level, j], target)
            weight = problem.ranked.dependent_weight * np.float64(batch.weights[j])
            weight *= problem.objective.loss_scale
            derivatives[level, j] = weight * derivative
            if problem.ranked.follow_loss:
                by_linear[j] += weight * derivative


@inlined
def _step_level(tokens, rank, level, step, problem, state, batch, scratch):
    """Update the vectors that some tokens have at a level."""
    tables, derivatives, shared = level.tables, scratch.derivatives, scratch.shared
    state_of_table = _state_of_level(level, problem.ranked.state_layout, state)
    sums, free_sums = shared.sums[level.number], scratch.free_sums[level.number]
    total, gradient = shared.totals[rank], shared.gradients[rank]
    last, width = derivatives.shape[0] - 1, np.uint64(level.table.shape[1])
    for t in range(*tokens):
        rate, k = shared.rates[t], np.uint64(batch.tokens[t])
        if math.isnan(rate) or tables.levels[k] < level.number:
            continue
        i = np.uint64(tables.rows[k])
        dependent = tables.levels[k] > level.number and not tables.prefix
        own = derivatives[level.number if dependent else last]
        sum_gradient(t, shared.penalties[t], level.table[i], Along(sums, ONE), own, batch, total)
        if dependent and problem.ranked.follow_loss:
            add_gradient(t, width, derivatives[last], free_sums, batch, total)
        move_vector(i, rate, step, problem.rule, level.table, state_of_table, total, gradient)


@kernel
def rafm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem, span : as for ``fm_train``.
    weights : FMWeights, with RankedTables as factors.
    state : OptimizerState; those of the tables stand one after the other in 1-D arrays.
    scratch : RankedScratch
    """
    member, order = Member(rank, size, barrier), order_of_epoch(problem.rows, span.epoch)
    tables, loss = weights.factors, span.loss
    for b in range(span.first_batch, span.last_batch):
        part, batch = next_batch(b, member, problem, span, order, scratch.shared.prepared)
        _score_levels(part, weights, batch, scratch)
        _differentiate_levels(part, problem, tables, batch, scratch)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(
            number, span.share, part, problem, weights, state, batch, scratch.shared
        )
        loss += of_batch
        for level in range(tables.widths.shape[0]):
            _step_level(tokens, rank, _level(level, tables), step, problem, state, batch, scratch)
    return loss


@kernel
def rafm_score(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows, in O(n D_1 + sum of D_p n_p) for n_p tokens of level p.

    ``sums`` (4, size, longest D or more) is scratch; ``scores`` (n_rows,) is the float32 result.
    Rows are shared out in blocks of equal length.
    """
    n_rows, tables = scores.shape[0], weights.factors
    row = Sums(sums[0, rank], sums[1, rank], sums[2, rank], sums[3, rank])
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        score = linear_part(i, rows, weights)[0]
        for number in range(tables.widths.shape[0]):
            pairs, replaced, _ = _sum_level(i, rows, _level(number, tables), row)
            score += pairs - replaced
        scores[i] = score
