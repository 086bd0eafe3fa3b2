"""Second-order factorization machines: mini-batch training, and scores.

A batch passes four stages:

1. Sums of x v of the rows.
2. Scores, losses and derivatives of the rows.
3. Sums over the rows of each token, its learning rate, and the step of its linear weight.
4. Gradients and steps of the factors.

Each thread takes a part of the rows, then a part of the tokens, and waits for the others after the
second and the fourth stage. If it took some columns of all vectors instead, no vector would move
from one core to another, but all threads would visit all rows and tokens, and wait after each
stage: that takes longer. Every sum has a fixed order that does not depend on the number of threads,
so results do not either.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import (
    EARLY,
    SOON,
    prefetch_element,
    prefetch_element_early,
    prefetch_row,
    prefetch_row_early,
)
from freqfm._numba.vectors import LANES
from freqfm.backends.cpu.fm_batch import (
    TokenSums,
    begin_step,
    order_of_epoch,
    part_of_batch,
    step_intercept,
    step_linear,
    token_rate,
)
from freqfm.backends.cpu.fm_columns import (
    BLOCK,
    sum_gradient_block,
    sum_gradient_tail,
    sum_row_block,
    sum_row_tail,
)
from freqfm.backends.cpu.fm_prepared import PreparedBatches, prepare_batch, prepared_batch
from freqfm.backends.cpu.fm_scores import score_rows
from freqfm.backends.cpu.team import wait
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.steps import step_columns

_ZERO, _ONE = np.uint64(0), np.uint64(1)

# Each block of columns is summed separately.
_BLOCK, _LANES = np.uint64(BLOCK), np.uint64(LANES)

# Factors of more bytes than this are far from a core, others in its caches or near them.
_CACHED = 1 << 24

# How many entries and tokens ahead vectors are prefetched from the caches, and from memory.
_ENTRIES_AHEAD = np.uint64(32)
_TOKENS_AHEAD = np.uint64(16)
_EARLY, _SOON = np.uint64(EARLY), np.uint64(SOON)


class CSRRows(NamedTuple):
    """The rows of a CSR matrix."""

    indptr: np.ndarray  #: (n_rows + 1,)
    token: np.ndarray  #: (nnz,), the columns
    value: np.ndarray  #: (nnz,), float32


class PlainScratch(NamedTuple):
    """Working memory of training, shared by all threads but for the last two.

    Beside the prepared batches it takes about 4 d batch_size + 12 m bytes.
    """

    prepared: PreparedBatches
    sums: np.ndarray  #: (batch_size, d or more), float32, sums of x v
    norms: np.ndarray  #: (n_blocks, batch_size), float32, squared norms of blocks of the sums
    squares: np.ndarray  #: (n_blocks, batch_size), float32, sums of squared norms of x v
    scores: np.ndarray  #: (batch_size,), float32
    derivatives: np.ndarray  #: (batch_size,), float64, of the weighted loss by the score
    losses: np.ndarray  #: (batch_size,), float64, weighted
    curvatures: np.ndarray  #: (batch_size,), float64, see ``_score``
    shrinkages: np.ndarray  #: (listed,), float64, what a token multiplies its own vector by
    rates: np.ndarray  #: (listed,), float32, NaN where a token is left alone
    gradients: np.ndarray  #: (size, d or more), float32


class Share(NamedTuple):
    """What of a batch one thread takes: part ``rank`` of ``size`` of the rows and the tokens."""

    rank: int
    size: int
    far: bool  #: whether vectors come from memory


@inlined
def _prefetch_number(array, k, far):
    """Prefetch a token's element of an array."""
    if far:
        prefetch_element_early(array, k)
    else:
        prefetch_element(array, k)


@inlined
def _prefetch_vector(table, k, far):
    """Prefetch a token's row of a table."""
    if far:
        prefetch_row_early(table, k)
    else:
        prefetch_row(table, k)


@inlined
def _sum_tail(columns, row, j, factors, batch, scratch):
    """Do what ``sum_row_block`` does for the last columns."""
    norm = ZERO
    square = ZERO
    for column in range(columns[0], columns[1], _LANES):
        more = sum_row_tail(batch, row, factors, column, scratch.sums, j)
        norm += more[0]
        square += more[1]
    return norm, square


@inlined
def _sum_rows(begin, end, far, factors, batch, scratch):
    """Write rows' sums of x v, and of each block of columns the squared norms."""
    width = np.uint64(factors.shape[1])
    starts = batch.row_starts
    tokens = batch.entry_tokens
    last_entry = np.uint64(starts[end] - 1)
    distance = _EARLY if far else _ENTRIES_AHEAD
    for j in range(begin, end):
        row = np.uint64(starts[j]), np.uint64(starts[j + _ONE])
        for p in range(row[0], row[1]):
            _prefetch_vector(factors, tokens[min(p + distance, last_entry)], far)
        for block in range(np.uint64(scratch.norms.shape[0])):
            column = block * _BLOCK
            if column + _BLOCK <= width:
                norm, square = sum_row_block(batch, row, factors, column, scratch.sums, j)
            else:
                norm, square = _sum_tail((column, width), row, j, factors, batch, scratch)
            scratch.norms[block, j] = norm
            scratch.squares[block, j] = square


@inlined
def _score(begin, end, far, weights, batch, scratch):
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
    distance = _EARLY if far else _ENTRIES_AHEAD
    for j in range(begin, end):
        score = weights.intercept[0]
        reach = ONE
        for p in range(np.uint64(batch.row_starts[j]), np.uint64(batch.row_starts[j + _ONE])):
            ahead = min(p + distance, last_entry)
            _prefetch_number(weights.linear, batch.entry_tokens[ahead], far)
            x = batch.entry_values[p]
            score += x * weights.linear[np.uint64(batch.entry_tokens[p])]
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
def sum_of_rows(n_rows, batch, scratch):
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
    n_tokens = np.uint64(batch.n_tokens[0])
    distance = _EARLY if share.far else _TOKENS_AHEAD
    for t in range(
        np.uint64(first_token(share.rank, share.size, batch)),
        np.uint64(first_token(share.rank + 1, share.size, batch)),
    ):
        ahead = batch.tokens[min(t + distance, n_tokens - _ONE)]
        _prefetch_number(weights.linear, ahead, share.far)
        _prefetch_number(objective.shares, ahead, share.far)
        _prefetch_number(state.per_row, ahead, share.far)
        k = np.uint64(batch.tokens[t])
        derivative = 0.0
        factor = 0.0
        weight = 0.0
        curvature = 0.0
        for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
            j = np.uint64(batch.rows[p])
            x = np.float64(batch.values[p])
            d = scratch.derivatives[j] * x
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
        rate = token_rate(k, summed, step, problem, state)
        scratch.rates[t] = rate
        step_linear(k, summed, rate, step, problem, weights, state)


@inlined
def _sum_gradient(columns, t, step, factors, batch, scratch, gradient):
    """Write some columns of the gradient of a token's factors."""
    column, end = columns
    while column + _BLOCK <= end:
        sum_gradient_block(batch, scratch, step.scale, factors, t, column, gradient)
        column += _BLOCK
    while column < end:
        sum_gradient_tail(batch, scratch, step.scale, factors, t, column, gradient)
        column += _LANES


@inlined
def _step_factors(share, step, problem, weights, state, batch, scratch):
    """Update the factors of the tokens that are this thread's."""
    factors = weights.factors
    columns = _ZERO, np.uint64(factors.shape[1])
    n_tokens = np.uint64(batch.n_tokens[0])
    distance = _EARLY if share.far else _TOKENS_AHEAD
    gradient = scratch.gradients[share.rank]
    for t in range(
        np.uint64(first_token(share.rank, share.size, batch)),
        np.uint64(first_token(share.rank + 1, share.size, batch)),
    ):
        if share.far:
            prefetch_row(factors, batch.tokens[min(t + _SOON, n_tokens - _ONE)])
        ahead = batch.tokens[min(t + distance, n_tokens - _ONE)]
        _prefetch_vector(factors, ahead, share.far)
        _prefetch_vector(state.factors_first, ahead, share.far)
        _prefetch_vector(state.factors_second, ahead, share.far)
        rate = scratch.rates[t]
        if math.isnan(rate):
            continue
        k = np.uint64(batch.tokens[t])
        _sum_gradient(columns, t, step, factors, batch, scratch, gradient)
        # A loop of variable length: one of constant length would be unrolled, not vectorised.
        step_columns(
            problem.rule, rate, step.root_correction, factors, (k, *columns), gradient,
            state.factors_first, state.factors_second,
        )  # fmt: skip


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
    share = Share(rank, size, weights.factors.size * weights.factors.itemsize > _CACHED)
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, rows)
        slot = (b - span.first_batch) % size
        batch = prepared_batch(slot, scratch.prepared)
        if slot == 0:
            wait(barrier, size)
            prepare(b + rank, rank, problem, span, order, weights, scratch)
            wait(barrier, size)
        else:
            wait(barrier, size)
        begin, end = np.uint64(part.begin), np.uint64(part.end)
        _sum_rows(begin, end, share.far, weights.factors, batch, scratch)
        _score(begin, end, share.far, weights, batch, scratch)
        _differentiate(begin, end, problem.objective.loss_code, batch, scratch)
        wait(barrier, size)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            batch_loss, summed = sum_of_rows(part.n_rows, batch, scratch)
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state)
        _step_scalars(share, step, problem, weights, state, batch, scratch)
        _step_factors(share, step, problem, weights, state, batch, scratch)
    return loss


@kernel
def fm_score(rank, size, barrier, rows, weights, scores):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``scores`` (n_rows,) is the float32 result. Rows are shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    begin, end = n_rows * rank // size, n_rows * (rank + 1) // size
    score_rows(np.uint64(begin), np.uint64(end), rows, weights, scores)
