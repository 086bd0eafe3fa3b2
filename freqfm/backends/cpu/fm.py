"""Second-order factorization machines: mini-batch training, scores and gradients.

A batch passes four stages, and threads wait for each other between them:

1. Sums of x v of the rows. Each thread works on some columns of all vectors, see ``Share``.
2. Scores, losses and derivatives; each thread takes a part of the rows.
3. Sums over the rows of each token, its learning rate, and the step of its linear weight; each
   thread takes a part of the tokens.
4. Gradients and steps of the factors, by columns again.

Vectors are most of the memory, and each column of them is read and written by one thread alone:
what one core writes and another reads costs 2 to 10 times as much as the core's own cache. Every
sum has a fixed order that does not depend on the number of threads, so results do not either.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.fm_batch import (
    TokenSums,
    begin_step,
    order_of_epoch,
    part_of_batch,
    step_intercept,
    step_linear,
    token_rate,
)
from freqfm.backends.cpu.fm_prepared import PreparedBatches, prepare_batch, prepared_batch
from freqfm.backends.cpu.fm_scores import score_of_row
from freqfm.backends.cpu.prefetch import prefetch_columns, prefetch_element
from freqfm.backends.cpu.team import wait
from freqfm.formulas.codes import STEP_ROWWISE_ADAGRAD
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.steps import step_columns

_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(n) for n in range(5))

# Columns are processed in blocks of this size, and each block is summed separately: so columns can
# be divided among threads without a change to any sum. A multiple of the float32 in a cache line.
BLOCK = 32
_BLOCK = np.uint64(BLOCK)

# How many entries and tokens ahead vectors are prefetched.
_ENTRIES_AHEAD = np.uint64(32)
_TOKENS_AHEAD = 16


class CSRRows(NamedTuple):
    """The rows of a CSR matrix."""

    indptr: np.ndarray  #: (n_rows + 1,)
    token: np.ndarray  #: (nnz,), the columns
    value: np.ndarray  #: (nnz,), float32


class PlainScratch(NamedTuple):
    """Working memory of training, shared by all threads but for the last two.

    Beside the prepared batches it takes about 4 d batch_size + 20 m bytes.
    """

    prepared: PreparedBatches
    sums: np.ndarray  #: (batch_size, d), float32, sums of x v
    norms: np.ndarray  #: (n_blocks, batch_size), float32, squared norms of blocks of the sums
    squares: np.ndarray  #: (n_blocks, batch_size), float32, sums of squared norms of x v
    scores: np.ndarray  #: (batch_size,), float32
    derivatives: np.ndarray  #: (batch_size,), float64, of the weighted loss by the score
    losses: np.ndarray  #: (batch_size,), float64, weighted
    curvatures: np.ndarray  #: (batch_size,), float64, see ``_score``
    coefficients: np.ndarray  #: (m + 1,), float64, what an occurrence multiplies its sum by
    shrinkages: np.ndarray  #: (listed,), float64, what a token multiplies its own vector by
    rates: np.ndarray  #: (listed,), float32, NaN where a token is left alone
    totals: np.ndarray  #: (size, d or more), float64
    gradients: np.ndarray  #: (size, d or more), float32


class TokenOccurrences(NamedTuple):
    """The entries of a batch, token by token; those of a token in the order of the rows."""

    tokens: np.ndarray  #: (n_tokens,), the distinct tokens
    starts: np.ndarray  #: (n_tokens + 1,), where the entries of each begin
    rows: np.ndarray  #: (nnz,), the row of each entry
    values: np.ndarray  #: (nnz,), float32
    derivatives: np.ndarray  #: (n_rows,), of the loss by each row's score, float64


class Share(NamedTuple):
    """What of a batch one thread takes.

    Scalars of rows and tokens are shared out among all threads. For vectors threads form groups:
    groups share out rows and tokens, and the members of a group share out columns. Who works on
    some columns of all vectors writes no vector that another thread reads.
    """

    rank: int
    size: int
    group: int
    n_groups: int
    first_block: int  #: of columns
    last_block: int  #: exclusive


@inlined
def _share_of(rank, size, n_blocks, step_code):
    """Return the Share of a thread, in groups as large as blocks of columns allow."""
    n_members = size
    # Row-wise Adagrad needs the squared norm of all columns.
    n_parts = 1 if step_code == STEP_ROWWISE_ADAGRAD else n_blocks
    while n_parts % n_members != 0 or size % n_members != 0:
        n_members -= 1
    member = rank % n_members
    return Share(
        rank,
        size,
        rank // n_members,
        size // n_members,
        n_blocks * member // n_members,
        n_blocks * (member + 1) // n_members,
    )


@inlined
def _sum_columns(columns, row, entries, factors, total, squares):
    """Write some columns of a row's sum of x v; return their squared norm, and that of the terms.

    Tokens come in pairs; a missing second one counts as zero. ``squares`` is scratch.
    """
    begin, end = columns
    first, last = row
    norm = ZERO
    square = ZERO
    p = first
    while p < last:
        q = min(p + _ONE, last - _ONE)
        i = np.uint64(entries[p].token)
        k = np.uint64(entries[q].token)
        x = entries[p].value
        y = entries[q].value if q != p else ZERO
        if p + _TWO < last:
            if p == first:
                for f in range(begin, end):
                    a = x * factors[i, f]
                    b = y * factors[k, f]
                    total[f] = a + b
                    squares[f] = a * a + b * b
            else:
                for f in range(begin, end):
                    a = x * factors[i, f]
                    b = y * factors[k, f]
                    total[f] += a + b
                    squares[f] += a * a + b * b
        elif p == first:
            for f in range(begin, end):
                a = x * factors[i, f]
                b = y * factors[k, f]
                c = a + b
                total[f] = c
                square += a * a + b * b
                norm += c * c
        else:
            for f in range(begin, end):
                a = x * factors[i, f]
                b = y * factors[k, f]
                c = total[f] + (a + b)
                total[f] = c
                square += squares[f] + (a * a + b * b)
                norm += c * c
        p += _TWO
    return norm, square


@inlined
def _prefetch_block(table, k, columns):
    """Prefetch a block of columns of row ``k``, of a table that may be narrower."""
    begin, end = columns
    prefetch_columns(table, k, begin, min(end, np.uint64(table.shape[1])))


@inlined
def _sum_rows_of_block(block, columns, n_rows, share, factors, batch, scratch):
    """Do what ``_sum_rows`` does for one block of columns."""
    starts = batch.row_starts
    entries = batch.entries
    squares = scratch.gradients[share.rank]
    last_entry = np.uint64(starts[n_rows] - 1)
    for j in range(
        np.uint64(n_rows * share.group // share.n_groups),
        np.uint64(n_rows * (share.group + 1) // share.n_groups),
    ):
        first = np.uint64(starts[j])
        last = np.uint64(starts[j + _ONE])
        for p in range(first, last):
            _prefetch_block(factors, entries[min(p + _ENTRIES_AHEAD, last_entry)].token, columns)
        row = first, last
        norm, square = _sum_columns(columns, row, entries, factors, scratch.sums[j], squares)
        scratch.norms[block, j] = norm
        scratch.squares[block, j] = square


@inlined
def _sum_rows(n_rows, share, factors, batch, scratch):
    """Write rows' sums of x v, and of each block of columns the squared norms."""
    width = np.uint64(factors.shape[1])
    for block in range(np.uint64(share.first_block), np.uint64(share.last_block)):
        begin = block * _BLOCK
        end = begin + _BLOCK
        # Loops of constant length have less overhead.
        if end <= width:
            _sum_rows_of_block(block, (begin, end), n_rows, share, factors, batch, scratch)
        else:
            _sum_rows_of_block(block, (begin, width), n_rows, share, factors, batch, scratch)


@inlined
def _score(begin, end, weights, batch, scratch):
    """Score rows, and bound the curvature of the score by the weights of tokens.

    The score's gradient by the weights of token k is about x_k (1, s), s = sum of x v. For any
    steps delta of the weights, Cauchy and Schwarz bound the square of the score's change by
    (sum_i a_i) * (sum_k a_k |delta_k|^2), a_k = |x_k| |(1, s)|, the intercept included as a token
    of value 1. So a row adds |x_k| * (1 + sum_i |x_i|) * (1 + |s|^2), times the curvature of its
    loss, to that of token k.
    """
    scores = scratch.scores
    norms = scratch.norms
    squares = scratch.squares
    curvatures = scratch.curvatures
    last_entry = np.uint64(batch.row_starts[end] - 1)
    for j in range(begin, end):
        score = weights.intercept[0]
        reach = ONE
        for p in range(np.uint64(batch.row_starts[j]), np.uint64(batch.row_starts[j + _ONE])):
            ahead = min(p + _ENTRIES_AHEAD, last_entry)
            prefetch_element(weights.linear, batch.entries[ahead].token)
            x = batch.entries[p].value
            score += x * weights.linear[np.uint64(batch.entries[p].token)]
            reach += abs(x)
        scores[j] = score
        curvatures[j] = reach
    for block in range(_ONE, np.uint64(norms.shape[0])):
        for j in range(begin, end):
            norms[_ZERO, j] += norms[block, j]
            squares[_ZERO, j] += squares[block, j]
    for j in range(begin, end):
        scores[j] += HALF * (norms[_ZERO, j] - squares[_ZERO, j])
        curvatures[j] *= ONE + norms[_ZERO, j]


@inlined
def _differentiate(begin, end, loss_code, batch, scratch):
    """Turn the scores of rows into losses, derivatives and curvatures of the loss."""
    scores = scratch.scores
    for j in range(begin, end):
        weight = np.float64(batch.weights[j])
        loss, derivative = loss_and_gradient(loss_code, scores[j], batch.targets[j])
        scratch.losses[j] = weight * loss
        scratch.derivatives[j] = weight * derivative
        scratch.curvatures[j] *= weight * loss_curvature(loss_code, scores[j], batch.targets[j])


@inlined
def _sum_of_rows(n_rows, batch, scratch):
    """Return the loss of the batch, and its sums for the intercept, which all rows hold."""
    loss = 0.0
    derivative = 0.0
    weight = 0.0
    curvature = 0.0
    for j in range(np.uint64(n_rows)):
        loss += scratch.losses[j]
        derivative += scratch.derivatives[j]
        weight += batch.weights[j]
        curvature += scratch.curvatures[j]
    return loss, TokenSums(derivative, weight, curvature)


@inlined
def first_token(number, size, batch):
    """Return where part ``number`` of ``size`` of the batch's tokens begins.

    Neighbours, whose linear weights share a cache line, are in one part.
    """
    n = batch.n_tokens[0]
    if number == size:
        return n
    # A token costs about as much as an occurrence, so parts are balanced by both.
    wanted = (n + batch.starts[n]) * number // size
    low = 0
    high = n
    while low < high:
        middle = (low + high) >> 1
        if middle + batch.starts[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    while 0 < low < n and batch.tokens[low] >> 4 == batch.tokens[low - 1] >> 4:
        low += 1
    return low


@inlined
def _step_scalars(share, step, problem, weights, state, batch, scratch):
    """Sum the derivatives of tokens, step their linear weights, and leave what factors need."""
    rule = problem.rule
    objective = problem.objective
    n_tokens = batch.n_tokens[0]
    for t in range(
        first_token(share.rank, share.size, batch), first_token(share.rank + 1, share.size, batch)
    ):
        ahead = np.intp(batch.tokens[min(t + _TOKENS_AHEAD, n_tokens - 1)])
        prefetch_element(weights.linear, ahead)
        prefetch_element(objective.shares, ahead)
        prefetch_element(state.per_row, ahead)
        k = np.uint64(batch.tokens[t])
        derivative = 0.0
        factor = 0.0
        weight = 0.0
        curvature = 0.0
        for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + 1])):
            j = np.uint64(batch.occurrences[p].row)
            x = np.float64(batch.occurrences[p].value)
            d = scratch.derivatives[j] * x
            scratch.coefficients[p] = d * step.scale
            derivative += d
            factor += d * x
            weight += batch.weights[j]
            curvature += abs(x) * scratch.curvatures[j]
        if rule.lazy and weight == 0.0:
            scratch.rates[t] = np.nan
            continue
        alpha = objective.alpha_factors * objective.shares[k]
        scratch.shrinkages[t] = (factor - alpha * weight) * step.scale
        summed = TokenSums(derivative, weight, curvature)
        rate = token_rate(k, summed, step, rule, state)
        scratch.rates[t] = rate
        step_linear(k, summed, rate, step, problem, weights, state)


@inlined
def _four_rows(p, last, batch, coefficients):
    """Return the rows and coefficients of four occurrences; those from ``last`` on count zero."""
    q = min(p + _ONE, last - _ONE)
    r = min(p + _TWO, last - _ONE)
    s = min(p + _THREE, last - _ONE)
    occurrences = batch.occurrences
    rows = (
        np.uint64(occurrences[p].row),
        np.uint64(occurrences[q].row),
        np.uint64(occurrences[r].row),
        np.uint64(occurrences[s].row),
    )
    return rows, (
        coefficients[p],
        coefficients[q] if p + _ONE < last else 0.0,
        coefficients[r] if p + _TWO < last else 0.0,
        coefficients[s] if p + _THREE < last else 0.0,
    )


@inlined
def _sum_gradient(columns, t, k, factors, batch, scratch, total, gradient):
    """Write some columns of the gradient of a token's factors.

    That of one row of the batch is derivative * x * (sum of x v - x v_k), plus alpha v_k. Sums
    are kept in double precision: they are exact for the purposes of float32 weights, in whatever
    order.
    """
    begin, end = columns
    sums = scratch.sums
    p = np.uint64(batch.starts[t])
    last = np.uint64(batch.starts[t + 1])
    shrinkage = scratch.shrinkages[t]
    if p == last:
        for f in range(begin, end):
            gradient[f] = ZERO
    elif p + _ONE == last:
        i = np.uint64(batch.occurrences[p].row)
        a = scratch.coefficients[p]
        for f in range(begin, end):
            gradient[f] = np.float32(a * sums[i, f] - shrinkage * factors[k, f])
    elif p + _FOUR >= last:
        (i, j, m, n), (a, b, c, d) = _four_rows(p, last, batch, scratch.coefficients)
        for f in range(begin, end):
            four = a * sums[i, f] + b * sums[j, f] + c * sums[m, f] + d * sums[n, f]
            gradient[f] = np.float32(four - shrinkage * factors[k, f])
    else:
        for f in range(begin, end):
            total[f] = -shrinkage * factors[k, f]
        while p < last:
            # Four at a time: the running total is read and written once for all of them.
            (i, j, m, n), (a, b, c, d) = _four_rows(p, last, batch, scratch.coefficients)
            for f in range(begin, end):
                total[f] += a * sums[i, f] + b * sums[j, f] + c * sums[m, f] + d * sums[n, f]
            p += _FOUR
        for f in range(begin, end):
            gradient[f] = np.float32(total[f])


@inlined
def _step_block(columns, share, step, problem, weights, state, batch, scratch):
    """Do what ``_step_factors`` does for some columns."""
    rule = problem.rule
    factors = weights.factors
    n_tokens = batch.n_tokens[0]
    total = scratch.totals[share.rank]
    gradient = scratch.gradients[share.rank]
    for t in range(
        first_token(share.group, share.n_groups, batch),
        first_token(share.group + 1, share.n_groups, batch),
    ):
        ahead = batch.tokens[min(t + _TOKENS_AHEAD, n_tokens - 1)]
        _prefetch_block(factors, ahead, columns)
        _prefetch_block(state.factors_first, ahead, columns)
        _prefetch_block(state.factors_second, ahead, columns)
        rate = scratch.rates[t]
        if math.isnan(rate):
            continue
        k = np.uint64(batch.tokens[t])
        _sum_gradient(columns, t, k, factors, batch, scratch, total, gradient)
        step_columns(
            rule, rate, step.root_correction, factors, (k, *columns), gradient, state.factors_first,
            state.factors_second,
        )  # fmt: skip


@inlined
def _step_factors(share, step, problem, weights, state, batch, scratch):
    """Update the columns of the factors that are this thread's."""
    width = np.uint64(weights.factors.shape[1])
    first = np.uint64(share.first_block)
    last = np.uint64(share.last_block)
    whole = problem.rule.step_code == STEP_ROWWISE_ADAGRAD
    for block in range(first, first + _ONE if whole else last):
        begin = block * _BLOCK
        end = width if whole else min(begin + _BLOCK, width)
        # Loops of constant length have less overhead.
        if end == begin + _BLOCK:
            columns = begin, begin + _BLOCK
            _step_block(columns, share, step, problem, weights, state, batch, scratch)
        else:
            columns = begin, end
            _step_block(columns, share, step, problem, weights, state, batch, scratch)


@inlined
def prepare(b, rank, problem, span, order, weights, scratch):
    """Prepare batch ``b``, if the span has it, in the place of this thread."""
    rows = problem.rows
    if b < span.last_batch:
        whole = part_of_batch(b, 0, 1, rows)
        prepare_batch(
            whole, weights.linear.shape[0], problem.rule.lazy, rows, order,
            prepared_batch(rank, scratch.prepared),
        )  # fmt: skip


@kernel
def fm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem : Problem
    span : BatchRange
    weights : FMWeights
    state : OptimizerState
    scratch : PlainScratch
    """
    rows = problem.rows
    order = order_of_epoch(rows, span.epoch)
    share = _share_of(rank, size, scratch.norms.shape[0], problem.rule.step_code)
    loss = 0.0
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, rows)
        slot = (b - span.first_batch) % size
        batch = prepared_batch(slot, scratch.prepared)
        if slot == 0:
            wait(barrier, size)
            prepare(b + rank, rank, problem, span, order, weights, scratch)
            wait(barrier, size)
        elif share.n_groups > 1:
            wait(barrier, size)
        _sum_rows(part.n_rows, share, weights.factors, batch, scratch)
        wait(barrier, size)

        begin, end = np.uint64(part.begin), np.uint64(part.end)
        _score(begin, end, weights, batch, scratch)
        _differentiate(begin, end, problem.objective.loss_code, batch, scratch)
        wait(barrier, size)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            batch_loss, summed = _sum_of_rows(part.n_rows, batch, scratch)
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state)
        _step_scalars(share, step, problem, weights, state, batch, scratch)
        wait(barrier, size)

        _step_factors(share, step, problem, weights, state, batch, scratch)
    return loss


@kernel
def fm_score(rank, size, barrier, rows, weights, scores):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``scores`` (n_rows,) is the float32 result. Rows are shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        scores[i] = score_of_row(i, rows, weights)


@kernel
def fm_forward(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows as ``fm_score`` does, and to ``sums`` (n_rows, d) those of x v.

    The sums of x v are added to what ``sums`` holds.
    """
    n_rows = scores.shape[0]
    factors = weights.factors
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        scores[i] = score_of_row(i, rows, weights)
        for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
            k = np.uint64(rows.token[p])
            for f in range(factors.shape[1]):
                sums[i, f] += rows.value[p] * factors[k, f]


@kernel
def fm_gradient(rank, size, barrier, occurrences, factors, sums, total, gradient):
    """Write the gradient of the linear weights and the factors of a batch's tokens.

    ``sums`` (n_rows, d) are those of x v; ``total`` (size, d or more), float64, is scratch;
    ``gradient`` is the FMGradient to be filled.
    """
    width = factors.shape[1]
    n_tokens = occurrences.tokens.shape[0]
    summed = total[rank]
    for t in range(n_tokens * rank // size, n_tokens * (rank + 1) // size):
        k = np.uint64(occurrences.tokens[t])
        for f in range(width):
            summed[f] = 0.0
        linear = 0.0
        factor = 0.0
        for p in range(np.uint64(occurrences.starts[t]), np.uint64(occurrences.starts[t + 1])):
            j = np.uint64(occurrences.rows[p])
            x = np.float64(occurrences.values[p])
            derivative = occurrences.derivatives[j] * x
            linear += derivative
            factor += derivative * x
            for f in range(width):
                summed[f] += derivative * sums[j, f]
        gradient.linear[t] = np.float32(linear)
        for f in range(width):
            gradient.factors[t, f] = np.float32(summed[f] - factor * factors[k, f])
