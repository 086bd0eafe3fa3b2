"""Rank-aware factorization machines: scores, and the phases of a batch, which are those of ``fm``.

With A(p, q) the interactions of the tokens of level q by their vectors of level p, scores are
B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1). A token's vector at its highest level is free and
follows the loss of the last score; the others are dependent and make B(p) follow B(p + 1). With
``prefix`` levels are parts of one vector, nothing is subtracted, and all vectors follow the loss.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.cuda.fm.plain import (
    FMRows,
    FMTargets,
    FMWeightState,
    linear_part,
    next_slot,
    phases_of_batch,
    rate_of_token,
    rows_of_batch,
    step_linear,
)
from freqfm.backends.cuda.occurrences import Occurrences
from freqfm.backends.cuda.steps import move_weight, root_of_row
from freqfm.backends.cuda.team import group_sum
from freqfm.formulas.codes import STEP_ROWWISE_ADAGRAD
from freqfm.formulas.losses import expectation, loss_and_gradient, loss_curvature

__all__ = ["SCORE", "TRAIN", "Levels", "RaFMArgs", "RaFMScratch"]


class Levels(NamedTuple):
    """The tables of all levels, which stand one after the other in one array of weights."""

    widths: np.ndarray  #: (m,), int64
    starts: np.ndarray  #: (m,), int64, where tables begin in the weights
    columns: np.ndarray  #: (m + 1,), int64, where levels begin in a row of the scratch
    first_starts: np.ndarray  #: (m,), int64, where states of row-wise Adagrad begin
    levels: np.ndarray  #: (n,), int32, the highest level of each token
    rows: np.ndarray  #: (n,), int32, the row of a token in its tables
    prefix: bool
    follow_loss: bool  #: whether dependent vectors follow the loss of the last score too
    dependent_weight: float  #: of the losses of dependent vectors


class RaFMScratch(NamedTuple):
    """What the phases of a batch pass on; W is the sum of the widths."""

    sums: np.ndarray  #: (batch_size, W), sums of x v of rows, for each level
    free_sums: np.ndarray  #: (batch_size, W), of free vectors alone
    by_level: np.ndarray  #: (m, batch_size), derivatives of the losses of B(1), ..., B(m)
    weights: np.ndarray  #: (batch_size,), of rows
    derivatives: np.ndarray  #: (batch_size,), by the linear part
    curvatures: np.ndarray  #: (batch_size,)
    losses: np.ndarray  #: (n_rows,), at each place of the epoch
    of_rows: np.ndarray  #: (3, n_windows), as in ``FMScratch``
    of_pieces: np.ndarray  #: (4 + m, n_pieces), as in ``FMScratch``, and squares by level
    vectors: np.ndarray  #: (n_pieces, W)
    touched: np.ndarray  #: (n,), int32, as in ``FMScratch``


class RaFMArgs(NamedTuple):
    """All that a launch is given, see ``FMArgs``."""

    objective: NamedTuple
    rule: NamedTuple
    steps: np.ndarray
    rows: FMRows
    data: FMTargets
    occurrences: Occurrences
    model: FMWeightState  #: with factors and their states in one dimension
    scratch: RaFMScratch
    levels: Levels


@inlined
def _sum_level(team, row, p, weights, levels, out):
    """Return a level's interactions in a row, those that are replaced, and |sum of x v|^2.

    The sums go to row ``j`` of ``out``: all, and those of free vectors; or nowhere.
    """
    rows, i, j = row
    sums, free_sums = out
    width, start, column = levels.widths[p], levels.starts[p], levels.columns[p]
    final = levels.prefix or p == levels.widths.shape[0] - 1
    norm, kept_norm, squares, kept_squares = ZERO, ZERO, ZERO, ZERO
    for f in range(team.lane, width, team.n_lanes):
        kept, free = ZERO, ZERO
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            k = rows.tokens[e]
            if levels.levels[k] < p:
                continue
            term = rows.values[e] * weights[start + levels.rows[k] * width + f]
            squares += term * term
            if levels.levels[k] == p and not final:
                free += term
            else:
                kept += term
                kept_squares += term * term
        total = kept + free
        norm += total * total
        kept_norm += kept * kept
        if sums.shape[0] > 0:
            sums[j, column + f] = total
            free_sums[j, column + f] = free
    norm = group_sum(team, norm)
    interactions = HALF * (norm - group_sum(team, squares))
    replaced = HALF * group_sum(team, kept_norm - kept_squares)
    return interactions, ZERO if final else replaced, norm


@inlined
def score(team, b, args):
    """Write the scores of rows."""
    rows, model, levels, nothing, scores = args
    intercept, linear, weights = model
    for i in range(team.rank, scores.shape[0], team.size):
        of_linear, _ = linear_part(team, rows, i, linear)
        found, replaced = intercept[0] + of_linear, ZERO
        for p in range(levels.widths.shape[0]):
            row = rows, i, 0
            found -= replaced
            more, replaced, _ = _sum_level(team, row, p, weights, levels, (nothing, nothing))
            found += more
        if team.lane == 0:
            scores[i] = found


@inlined
def score_batch(team, b, args):
    """Score the rows of a batch; leave derivatives, curvatures, and gradients of vectors."""
    data, scratch, model, levels = args.data, args.scratch, args.model, args.levels
    start, code, n_levels = b * data.batch_size, args.objective.loss_code, levels.widths.shape[0]
    out = scratch.sums, scratch.free_sums
    for j in range(team.rank, rows_of_batch(args, b), team.size):
        i = data.order[start + j]
        weight, target = data.weights[i], data.targets[i]
        of_linear, reach = linear_part(team, args.rows, i, model.linear)
        found, replaced, norms, of_levels = model.intercept[0] + of_linear, ZERO, ONE, ZERO
        for p in range(n_levels):
            before = found
            row = args.rows, i, j
            found -= replaced
            more, replaced, norm = _sum_level(team, row, p, model.factors, levels, out)
            found += more
            norms += norm
            if p > 0 and not levels.prefix:
                wanted = expectation(code, found)
                _, derivative = loss_and_gradient(code, before, wanted)
                derivative *= levels.dependent_weight * weight
                of_levels += derivative
                if team.lane == 0:
                    scratch.by_level[p - 1, j] = derivative
        loss, derivative = loss_and_gradient(code, found, target)
        derivative *= weight
        if levels.follow_loss and not levels.prefix:
            of_levels += derivative
        else:
            of_levels = derivative
        if team.lane == 0:
            curvature = np.float32(loss_curvature(code, found, target))
            scratch.losses[start + j] = weight * loss
            scratch.by_level[n_levels - 1, j] = derivative
            scratch.weights[j] = weight
            scratch.derivatives[j] = of_levels
            scratch.curvatures[j] = weight * curvature * (ONE + reach) * norms


@inlined
def _squares(team, args, source, p, free):
    """Return the sum of derivative * x * x over a token's entries, for its vector of level p."""
    occurrences, scratch, total = args.occurrences, args.scratch, ZERO
    if source.complete:
        level = args.levels.widths.shape[0] - 1 if free else p
        for e in range(source.first + team.lane, source.last, team.n_lanes):
            x = occurrences.values[e]
            total += scratch.by_level[level, occurrences.rows[e]] * x * x
        return group_sum(team, total)
    slot = source.first
    while slot < source.last:
        total += scratch.of_pieces[4 + p, slot]
        slot = next_slot(slot)
    return total


@inlined
def _column(args, source, p, free, column):
    """Return a column of the sum of a token's gradient, without the term in its own vector."""
    occurrences, scratch, total = args.occurrences, args.scratch, ZERO
    if source.complete:
        last = args.levels.widths.shape[0] - 1
        own, follows = (last if free else p), args.levels.follow_loss and not free
        for e in range(source.first, source.last):
            j, x = occurrences.rows[e], occurrences.values[e]
            along = scratch.by_level[own, j] * scratch.sums[j, column]
            if follows:
                along += scratch.by_level[last, j] * scratch.free_sums[j, column]
            total += x * along
    else:
        slot = source.first
        while slot < source.last:
            total += scratch.vectors[slot, column]
            slot = next_slot(slot)
    return total


@inlined
def _step_level(team, p, k, step, source, args):
    """Move a token's vector of one level; ``step`` is scale, rate, root and penalty."""
    scale, rate, root, penalty = step
    model, rule, levels = args.model, args.rule, args.levels
    width, column = levels.widths[p], levels.columns[p]
    begin = levels.starts[p] + levels.rows[k] * width
    free = levels.prefix or p == levels.levels[k]
    shrinkage = _squares(team, args, source, p, free) - penalty
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        squares = ZERO
        for f in range(team.lane, width, team.n_lanes):
            own = shrinkage * model.factors[begin + f]
            g = scale * (_column(args, source, p, free, column + f) - own)
            squares += g * g
        place = levels.first_starts[p] + levels.rows[k]
        rate /= root_of_row(team, rule, model.factors_first, place, squares, width)
    for f in range(team.lane, width, team.n_lanes):
        own = shrinkage * model.factors[begin + f]
        g = scale * (_column(args, source, p, free, column + f) - own)
        move_weight(
            rule, rate, root, model.factors, begin + f, g, model.factors_first,
            model.factors_second,
        )  # fmt: skip


@inlined
def _step_token(team, b, k, summed, source, args):
    """Move all weights of a token by its sums over the batch."""
    rule, objective = args.rule, args.objective
    if rule.lazy and summed.weight == ZERO:
        return
    rate = rate_of_token(team, b, k, summed, args)
    step_linear(team, b, k, summed, rate, args)
    penalty = objective.alpha_factors * objective.shares[k] * summed.weight
    step = args.steps[b, 0], rate, args.steps[b, 2], penalty
    for p in range(args.levels.levels[k] + 1):
        _step_level(team, p, k, step, source, args)


@inlined
def _keep_vectors(team, slot, k, source, args):
    """Keep the gradients of a piece of a token that has others."""
    scratch, levels = args.scratch, args.levels
    for p in range(levels.levels[k] + 1):
        free = levels.prefix or p == levels.levels[k]
        for f in range(levels.columns[p] + team.lane, levels.columns[p + 1], team.n_lanes):
            scratch.vectors[slot, f] = _column(args, source, p, free, f)
        squares = _squares(team, args, source, p, free)
        if team.lane == 0:
            scratch.of_pieces[4 + p, slot] = squares


SCORE = (score,)
TRAIN = phases_of_batch(score_batch, _step_token, _keep_vectors)
