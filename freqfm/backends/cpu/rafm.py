"""Rank-aware factorization machines: several tables, of several ranks, in one model.

Level p holds vectors of length D_p, for the tokens that occur often enough. With A(p, q) the
interactions of the tokens of level q by their vectors of level p, and B(1) = A(1, 1), the
recursion ::

    B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1)

makes every pair interact at the highest level that both tokens have (Chen et al., 2019, theorem
3). The last is the score. A token's vector at its highest level is free: it follows the loss of
the score. Its other vectors are dependent: at level p they make B(p) follow B(p + 1).

With shared prefixes (DiFacto) level p holds the coordinates that rank D_p adds to the last, and
B(p + 1) = B(p) + A(p + 1, p + 1).
"""

from typing import NamedTuple

import numpy as np

from freqfm._jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.fm_batch import (
    add_token,
    differentiate_losses,
    gather_rows,
    link_tokens,
    occurrence,
    order_of_epoch,
    squared_norm,
    step_corrections,
    step_intercept,
    step_linear,
    sum_gradient,
)
from freqfm.backends.cpu.ownership import owner
from freqfm.backends.cpu.team import wait
from freqfm.formulas.losses import expectation, loss_and_gradient
from freqfm.formulas.steps import present_rate, row_rate, step_row


class Factors(NamedTuple):
    """The tables of all levels, one after the other in one array."""

    weights: np.ndarray  #: (n_weights,), float32
    n_rows: np.ndarray  #: (m,), tokens of each level, int64
    widths: np.ndarray  #: (m,), numbers in a row, int64
    starts: np.ndarray  #: (m,), where in ``weights`` a table begins, int64
    levels: np.ndarray  #: (n,), the highest level of each token, from 0 on, int32
    rows: np.ndarray  #: (n,), the row of a token, the same in all of its tables, int32
    prefix: bool  #: whether levels are parts of one vector


class Dependence(NamedTuple):
    """How dependent vectors learn."""

    leak: bool  #: whether they follow the loss of the score as well
    weight: float  #: of their own losses


class LevelScratch(NamedTuple):
    """What a batch needs for each level, beside what the kernel of a plain FM needs."""

    #: (m + 1, batch_size), BATCH_ROW; the last one has the slopes of the linear part, with a leak
    batches: np.ndarray
    sums: np.ndarray  #: (batch_size * sum of D_p,), float32
    free_sums: np.ndarray  #: the same, of free vectors alone
    pulls: np.ndarray  #: the same, what dependent vectors follow, float64


@inlined
def _split_sums(j, begin, end, level, last, tokens, values, factors, table, sums, free_sums):
    """Sum x v over the tokens of a row that have this level.

    Below the last level the vectors that the next level replaces go to ``sums``, the free ones to
    ``free_sums``. Returns the interactions of all, those that are replaced, and |sum of x v|^2.
    """
    width = table.shape[1]
    n_kept = 0
    n_free = 0
    squares = ZERO
    free_squares = ZERO
    for p in range(begin, end):
        k = np.uint64(tokens[p])
        if factors.levels[k] < level:
            continue
        row = np.uint64(factors.rows[k])
        if not last and factors.levels[k] == level:
            free_squares += add_token(n_free == 0, j, row, values[p], table, free_sums)
            n_free += 1
        else:
            squares += add_token(n_kept == 0, j, row, values[p], table, sums)
            n_kept += 1
    norm = squared_norm(j, n_kept, width, sums)
    replaced = HALF * (norm - squares)
    if last:
        return replaced, ZERO, norm
    if n_free == 0:
        for f in range(width):
            free_sums[j, f] = ZERO
        if n_kept == 0:
            for f in range(width):
                sums[j, f] = ZERO
        return replaced, replaced, norm
    if n_kept == 0:
        for f in range(width):
            sums[j, f] = free_sums[j, f]
    else:
        for f in range(width):
            sums[j, f] += free_sums[j, f]
    norm = squared_norm(j, 1, width, sums)
    return HALF * (norm - (squares + free_squares)), replaced, norm


@inlined
def _score_levels(begin, end, intercept, linear, factors, entries, levels):
    """Score rows level by level, and bound the curvature as for a plain FM, over all levels."""
    n_levels = factors.widths.shape[0]
    main = levels.batches[n_levels - 1]
    n_rows = main.shape[0]
    at = 0
    for j in range(begin, end):
        score = intercept[0]
        for p in range(np.uint64(main[j].begin), np.uint64(main[j].end)):
            score += entries[p].value * linear[np.uint64(entries[p].token)]
        levels.batches[0][j].score = score
        main[j].curvature = ONE
    for level in range(n_levels):
        n, width, first = factors.n_rows[level], factors.widths[level], factors.starts[level]
        table = factors.weights[first : first + n * width].reshape(n, width)
        sums = levels.sums[at : at + n_rows * width].reshape(n_rows, width)
        free_sums = levels.free_sums[at : at + n_rows * width].reshape(n_rows, width)
        at += n_rows * width
        last = factors.prefix or level == n_levels - 1
        batch = levels.batches[level]
        for j in range(begin, end):
            interactions, replaced, norm = _split_sums(
                j, np.uint64(main[j].begin), np.uint64(main[j].end), level, last, entries.token,
                entries.value, factors, table, sums, free_sums,
            )  # fmt: skip
            batch[j].score += interactions
            if level < n_levels - 1:
                levels.batches[level + 1][j].score = batch[j].score - replaced
            main[j].curvature += norm
    for j in range(begin, end):
        reach = ONE
        for p in range(np.uint64(main[j].begin), np.uint64(main[j].end)):
            reach += abs(entries[p].value)
        main[j].curvature = reach * np.float32(main[j].curvature)


@inlined
def _lose_levels(begin, end, loss_code, prefix, dependence, n_levels, batches):
    """Turn the scores of all levels into slopes: of the loss, and of the distance to the next."""
    main = batches[n_levels - 1]
    differentiate_losses(begin, end, loss_code, main)
    for j in range(begin, end):
        total = main[j].slope
        for level in range(0 if prefix else n_levels - 1):
            target = expectation(loss_code, batches[level + 1][j].score)
            _, slope = loss_and_gradient(loss_code, batches[level][j].score, target)
            slope = dependence.weight * np.float64(main[j].weight) * slope
            batches[level][j].slope = slope
            batches[level][j].weight = main[j].weight
            batches[level][j].curvature = main[j].curvature
            total += slope
        batches[n_levels][j].slope = total
        batches[n_levels][j].loss = main[j].loss
        batches[n_levels][j].weight = main[j].weight
        batches[n_levels][j].curvature = main[j].curvature


@inlined
def _pull_dependents(begin, end, at, level, leak, factors, levels):
    """Write what a row's dependent vectors follow, per unit of x, but for the term with themselves.

    That is slope * (sum of x v) by their own loss and, with a leak, slope * (sum of x v over free
    vectors) by the loss of the score.
    """
    width = factors.widths[level]
    batch = levels.batches[level]
    main = levels.batches[factors.widths.shape[0] - 1]
    for j in range(begin, end):
        first = at + j * width
        own = batch[j].slope
        leaked = main[j].slope if leak else 0.0
        for f in range(first, first + width):
            levels.pulls[f] = own * levels.sums[f] + leaked * levels.free_sums[f]


@inlined
def _sum_dependent(row, head, table, batch, links, pulls, total, gradient, scale, decay):
    """Sum the gradient of a dependent vector, as ``sum_gradient`` does that of a free one."""
    width = table.shape[1]
    for f in range(width):
        total[f] = 0.0
    own = 0.0
    weight = 0.0
    curvature = 0.0
    n_left = links[np.uint64(head)].length
    link = np.int32(head)
    while n_left >= 4:
        j, x, slope, link = occurrence(link, batch, links)
        j2, x2, slope2, link = occurrence(link, batch, links)
        j3, x3, slope3, link = occurrence(link, batch, links)
        j4, x4, slope4, link = occurrence(link, batch, links)
        n_left -= 4
        own += slope * x + slope2 * x2 + slope3 * x3 + slope4 * x4
        weight += batch[j].weight + batch[j2].weight + batch[j3].weight + batch[j4].weight
        curvature += abs(x) * batch[j].curvature + abs(x2) * batch[j2].curvature
        curvature += abs(x3) * batch[j3].curvature + abs(x4) * batch[j4].curvature
        for f in range(width):
            total[f] += x * pulls[j, f] + x2 * pulls[j2, f] + x3 * pulls[j3, f] + x4 * pulls[j4, f]
    while n_left > 0:
        j, x, slope, link = occurrence(link, batch, links)
        n_left -= 1
        own += slope * x
        weight += batch[j].weight
        curvature += abs(x) * batch[j].curvature
        for f in range(width):
            total[f] += x * pulls[j, f]
    own = (own - decay * weight) * scale
    for f in range(width):
        gradient[f] = np.float32(scale * total[f] - own * table[row, f])
    return weight, curvature


@inlined
def _sum_slopes(head, batch, links):
    """Return the sum of slope * x over the rows that hold a token."""
    total = 0.0
    link = np.int32(head)
    while link >= 0:
        _, _, slope, link = occurrence(link, batch, links)
        total += slope
    return total


@kernel
def rafm_train(
    rank,
    size,
    barrier,
    rows,
    epoch,
    first_batch,
    last_batch,
    intercept,
    linear,
    factors,
    objective,
    stepping,
    step,
    state,
    scratch,
    dependence,
    state_layout,
    levels,
):
    """Train on the batches ``first_batch`` to ``last_batch`` of an epoch; return their loss.

    Arguments
    ---------
    rows, objective, stepping, step, scratch : as for ``fm_train``.
    intercept (1,), linear (n,) : float32, updated in place, as the weights of ``factors`` are.
    factors : Factors
    state : OptimizerState; those of the tables stand one after the other in 1-D arrays.
    dependence : Dependence
    state_layout (m, 4) : for each table, where its first and second state begin and their widths.
    levels : LevelScratch
    """
    n_rows = rows.samples.shape[0] - 1
    n_levels = factors.widths.shape[0]
    n_tokens_in_all = linear.shape[0]
    order = order_of_epoch(rows, epoch)
    main = levels.batches[n_levels - 1]
    leak = dependence.leak and not factors.prefix and n_levels > 1
    of_linear = levels.batches[n_levels if leak else n_levels - 1]
    capacity = main.shape[0]
    n_floats = levels.sums.shape[0]
    heads = scratch.heads[rank]
    links = scratch.links[rank]
    tokens = scratch.tokens[rank]
    totals = scratch.totals[rank]
    gradient = scratch.gradients[rank]
    me = np.uint64(rank)
    team = np.uint64(size)
    loss = 0.0
    for b in range(first_batch, last_batch):
        start = b * rows.batch_size
        n_in_batch = min(rows.batch_size, n_rows - start)
        begin = n_in_batch * rank // size
        end = n_in_batch * (rank + 1) // size
        gather_rows(begin, end, start, rows, order, main)
        _score_levels(begin, end, intercept, linear, factors, rows.entries, levels)
        _lose_levels(
            begin, end, objective.loss_code, factors.prefix, dependence, n_levels, levels.batches
        )
        at = 0
        for level in range(0 if factors.prefix else n_levels - 1):
            _pull_dependents(begin, end, at, level, leak, factors, levels)
            at += capacity * factors.widths[level]
        wait(barrier, size)

        step += 1
        correction, root_correction = step_corrections(stepping, step)
        scale = 1.0 / (n_in_batch * objective.mean_weight) if stepping.average else 1.0
        if rank == 0:
            loss += step_intercept(
                n_in_batch, of_linear, scale, correction, root_correction, objective, stepping,
                state, intercept,
            )  # fmt: skip
        n_tokens = link_tokens(me, team, n_in_batch, rows.entries, main, heads, links, tokens)
        # From the highest level down: a token's free vector comes first, and with it its rate.
        at = n_floats
        for back in range(n_levels):
            level = n_levels - 1 - back
            n, width, first = factors.n_rows[level], factors.widths[level], factors.starts[level]
            table = factors.weights[first : first + n * width].reshape(n, width)
            first, wide = state_layout[level, 0], state_layout[level, 1]
            firsts = state.factors_first[first : first + n * wide].reshape(n, wide)
            first, wide = state_layout[level, 2], state_layout[level, 3]
            seconds = state.factors_second[first : first + n * wide].reshape(n, wide)
            at -= capacity * width
            sums = levels.sums[at : at + capacity * width].reshape(capacity, width)
            pulls = levels.pulls[at : at + capacity * width].reshape(capacity, width)
            for t in range(n_tokens if stepping.lazy else n_tokens_in_all):
                k = np.uint64(tokens[t] if stepping.lazy else t)
                decay = objective.alpha_factors * objective.shares[k]
                head = heads[k]
                if level == 0:
                    heads[k] = -1
                if factors.levels[k] < level:
                    continue
                row = np.uint64(factors.rows[k])
                free = factors.levels[k] == level
                if head >= 0:
                    slope = 0.0
                    if free or factors.prefix:
                        slope, weight, curvature = sum_gradient(
                            row, head, table, main, links, sums, totals, gradient, scale, decay,
                        )  # fmt: skip
                        if leak:
                            slope = _sum_slopes(head, of_linear, links)
                    else:
                        weight, curvature = _sum_dependent(
                            row, head, table, levels.batches[level], links, pulls, totals, gradient,
                            scale, decay,
                        )  # fmt: skip
                    if stepping.lazy and weight == 0.0:
                        continue
                elif owner(k, team) == me:
                    slope = 0.0
                    weight = 0.0
                    curvature = 0.0
                    for f in range(width):
                        gradient[f] = ZERO
                else:
                    continue
                if free:
                    rate = row_rate(
                        stepping.rate_code, stepping.count_code, stepping.hyper, state.per_row, k,
                        weight, curvature,
                    )  # fmt: skip
                    rate = np.float32(rate / correction)
                    step_linear(
                        k, slope, weight, rate, scale, root_correction, objective, stepping, state,
                        linear,
                    )  # fmt: skip
                else:
                    rate = present_rate(
                        stepping.rate_code, stepping.hyper, state.per_row, k, curvature
                    )
                    rate = np.float32(rate / correction)
                step_row(
                    stepping.step_code, stepping.hyper, rate, root_correction, table, row, gradient,
                    firsts, seconds,
                )  # fmt: skip
        wait(barrier, size)
    return loss


@kernel
def rafm_score(
    rank, size, barrier, indptr, indices, values, intercept, linear, factors, sums, scores
):
    """Write the scores of CSR rows, in O(n D_1 + sum of D_p n_p) for n_p tokens of level p.

    ``sums`` (2 size, longest D or more) is scratch; ``scores`` (n_rows,) is the float32 result.
    Rows are shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    n_levels = factors.widths.shape[0]
    begin = n_rows * rank // size
    end = n_rows * (rank + 1) // size
    for i in range(begin, end):
        score = intercept[0]
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            score += values[p] * linear[np.uint64(indices[p])]
        scores[i] = score
    mine = sums[2 * rank : 2 * rank + 1]
    mine_free = sums[2 * rank + 1 : 2 * rank + 2]
    for level in range(n_levels):
        n, width, first = factors.n_rows[level], factors.widths[level], factors.starts[level]
        table = factors.weights[first : first + n * width].reshape(n, width)
        last = factors.prefix or level == n_levels - 1
        for i in range(begin, end):
            interactions, replaced, _ = _split_sums(
                0, np.uint64(indptr[i]), np.uint64(indptr[i + 1]), level, last, indices, values,
                factors, table, mine, mine_free,
            )  # fmt: skip
            scores[i] += interactions
            if level < n_levels - 1:
                scores[i] -= replaced
