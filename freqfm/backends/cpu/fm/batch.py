"""Mini-batches of factorization machines: shared by plain, rank-aware and deep ones.

A batch passes four stages:

1. Sums of x v of the rows, and their scores.
2. Losses and derivatives of the rows.
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

from freqfm._numba.instructions import prefetch_element, prefetch_row
from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.base import FMObjective, RankedTraining, UpdateRule
from freqfm.backends.cpu.fm.prepared import PreparedBatches, prepare_batch, prepared_batch
from freqfm.backends.cpu.team import synchronize
from freqfm.formulas.codes import RATE_CONSTANT, RATE_COUNTED, RATE_GIVEN, STEP_ADAM, STEP_CUSTOM
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.steps import (
    adam_corrections,
    penalized_curvature,
    row_rate,
    step_element,
    step_row,
)

_ONE = np.uint64(1)

# Of the type of tokens, so that functions are not compiled again for the intercept.
_FIRST = np.uint64(0)

# How many entries and tokens ahead vectors are prefetched, and occurrences of a token ahead, sums.
ENTRIES_AHEAD, _TOKENS_AHEAD, _OCCURRENCES_AHEAD = np.uint64(32), np.uint64(16), np.uint64(8)


class Rows(NamedTuple):
    """The training rows, see ``prepared``, and how an epoch visits them.

    The first ``n_blocks`` blocks of 2^block_bits rows come in random order, then the others in
    theirs.
    """

    samples: np.ndarray  #: (n_rows + 1,), SAMPLE
    entries: np.ndarray  #: (n_entries + 1,), ENTRY
    batch_size: int
    n_blocks: int
    block_bits: int
    seed: int


class Problem(NamedTuple):
    """The arrays and numbers that are the same for all batches."""

    rows: Rows
    objective: FMObjective
    rule: UpdateRule
    ranked: RankedTraining | None  #: of a rank-aware machine


class BatchRange(NamedTuple):
    """The batches of one call."""

    epoch: int
    first_batch: int
    last_batch: int  #: exclusive
    n_steps: int  #: made before the first batch
    share: float  #: the factor of all learning rates
    loss: float  #: of the batches that earlier calls have trained, to be added to


class Scratch(NamedTuple):
    """Working memory of training that all machines need; threads share what has no ``size``.

    Beside the prepared batches it takes about 4 d batch_size + 12 m bytes.
    """

    prepared: PreparedBatches
    scores: np.ndarray  #: (batch_size,), float32
    derivatives: np.ndarray  #: (batch_size,), float64, of the weighted loss by the score
    losses: np.ndarray  #: (batch_size,), float64, weighted
    curvatures: np.ndarray  #: (batch_size,), float64, see ``differentiate``
    penalties: np.ndarray  #: (listed,), float64, of a token's factors
    rates: np.ndarray  #: (listed,), float32, NaN where a token is left alone
    sums: np.ndarray  #: (n_levels, batch_size, d or more), float32, of x v
    squares: np.ndarray  #: (size, d or more), float32, sums of (x v)^2 of a row
    totals: np.ndarray  #: (size, d or more), float64, the gradient of a vector
    gradients: np.ndarray  #: (size, d or more), float32, what the vector moves along


class Part(NamedTuple):
    """The batch at hand, and the rows of it that one thread scores."""

    rank: int  #: of the thread
    size: int  #: number of threads
    start: int  #: where in the epoch the batch starts
    n_rows: int  #: of the batch
    begin: int  #: of this thread's rows
    end: int


class StepScale(NamedTuple):
    """Numbers of the step of a batch that are the same for all weights."""

    number: int  #: from 1 on
    weight: float  #: of the batch's rows
    mean: float  #: the factor that turns a sum over the batch into a mean
    scale: float  #: the factor of sums over the batch: that of the mean, or 1
    share: float  #: the factor of all learning rates
    correction: float  #: the divisor of the rate, which has the share
    root_correction: float  #: and the root of the second moment, float32


class TokenSums(NamedTuple):
    """Sums over the rows of a batch that hold a token."""

    derivative: float  #: of the loss by the linear weight
    weight: float
    curvature: float


class Along(NamedTuple):
    """What vectors of tokens are moved along: derivative * x * (sum - own x v) of their rows."""

    sums: np.ndarray  #: (batch_size, d), of x v, or what takes their place
    own: float  #: float32, by how much they include the token itself


class CSRRows(NamedTuple):
    """The rows of a CSR matrix."""

    indptr: np.ndarray  #: (n_rows + 1,)
    token: np.ndarray  #: (nnz,), the columns
    value: np.ndarray  #: (nnz,), float32


@inlined
def part_of_batch(b, rank, size, rows):
    """Return the Part that thread ``rank`` of ``size`` has in batch ``b``."""
    start = b * rows.batch_size
    n_rows = min(rows.batch_size, rows.samples.shape[0] - 1 - start)
    return Part(rank, size, start, n_rows, n_rows * rank // size, n_rows * (rank + 1) // size)


@inlined
def next_batch(b, member, problem, span, order, prepared):
    """Return a thread's Part of batch ``b``, and the batch, once all have made the last step.

    Each thread prepares some batches.
    """
    slot = (b - span.first_batch) % member.size
    synchronize(member)
    if slot == 0:
        mine = b + member.rank
        if mine < span.last_batch:
            prepare_batch(
                part_of_batch(mine, 0, 1, problem.rows), problem.objective.shares.shape[0],
                problem.rule.lazy, problem.rows, order, prepared_batch(member.rank, prepared),
            )  # fmt: skip
        synchronize(member)
    part = part_of_batch(b, member.rank, member.size, problem.rows)
    return part, prepared_batch(slot, prepared)


@inlined
def rows_of(batch):
    """Return the rows of a prepared batch."""
    return CSRRows(batch.row_starts, batch.entry_tokens, batch.entry_values)


@inlined
def linear_part(i, rows, weights):
    """Return a row's score without interactions, and one plus the sum of its |x|."""
    score, reach = weights.intercept[0], ONE
    last_entry = np.uint64(rows.token.shape[0] - 1)
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])):
        prefetch_element(weights.linear, rows.token[min(p + ENTRIES_AHEAD, last_entry)])
        x = rows.value[p]
        score += x * weights.linear[np.uint64(rows.token[p])]
        reach += abs(x)
    return score, reach


@inlined
def set_to_zero(width, sums, squares):
    """Begin the sums of a row."""
    for f in range(width):
        sums[f] = ZERO
        squares[f] = ZERO


@inlined
def add_vector(x, vector, width, sums, squares):
    """Add x v and (x v)^2 to the sums of a row."""
    for f in range(width):
        term = x * vector[f]
        sums[f] += term
        squares[f] += term * term


@inlined
def pair_up(width, sums, squares):
    """Return the interactions of a row, half of |sum of x v|^2 - sum of |x v|^2, and the first."""
    norm, total = ZERO, ZERO
    for f in range(width):
        square = sums[f] * sums[f]
        norm += square
        total += square - squares[f]
    return HALF * total, norm


@inlined
def sum_row(i, rows, weights, sums, squares):
    """Write a row's sums of x v and (x v)^2; return its score, |sum of x v|^2, 1 + sum of |x|."""
    factors, width = weights.factors, np.uint64(weights.factors.shape[1])
    last_entry = np.uint64(rows.token.shape[0] - 1)
    set_to_zero(width, sums, squares)
    score, reach = weights.intercept[0], ONE
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])):
        ahead = rows.token[min(p + ENTRIES_AHEAD, last_entry)]
        prefetch_row(factors, ahead)
        prefetch_element(weights.linear, ahead)
        k, x = np.uint64(rows.token[p]), rows.value[p]
        score += x * weights.linear[k]
        reach += abs(x)
        add_vector(x, factors[k], width, sums, squares)
    pairs, norm = pair_up(width, sums, squares)
    return score + pairs, norm, reach


@inlined
def differentiate(begin, end, objective, batch, scratch):
    """Turn the scores of rows into losses and derivatives.

    ``curvatures`` of the scores become those of the losses. The score's gradient by the weights of
    token k is about x_k (1, s), s = sum of x v. For any steps delta of the weights, Cauchy and
    Schwarz bound the square of the score's change by (sum_i a_i) * (sum_k a_k |delta_k|^2), a_k =
    |x_k| |(1, s)|, the intercept included as a token of value 1. So a row adds |x_k| * (1 + sum_i
    |x_i|) * (1 + |s|^2), times the curvature of its loss, to that of token k.
    """
    scores = scratch.scores
    loss_code = objective.loss_code
    for j in range(begin, end):
        weight = objective.loss_scale * np.float64(batch.weights[j])
        loss, derivative = loss_and_gradient(loss_code, scores[j], batch.targets[j])
        scratch.losses[j] = weight * loss
        scratch.derivatives[j] = weight * derivative
        scratch.curvatures[j] *= weight * loss_curvature(loss_code, scores[j], batch.targets[j])


@inlined
def begin_step(number, weight, n_in_batch, share, problem):
    """Return the StepScale of a batch."""
    rule = problem.rule
    correction = 1.0
    root_correction = ONE
    if rule.step_code == STEP_ADAM or rule.step_code == STEP_CUSTOM:
        correction, root = adam_corrections(rule.hyper, number)
        root_correction = np.float32(root)
    mean = 1.0 / (n_in_batch * problem.objective.mean_weight)
    scale = mean if rule.average else 1.0
    return StepScale(number, weight, mean, scale, share, correction / share, root_correction)


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
def step_intercept(summed, step, problem, weights, state):
    """Update the intercept by the sums over the batch."""
    if problem.objective.fit_intercept and summed.weight > 0.0:
        rule = problem.rule
        code = rule.rate_code
        if code == RATE_GIVEN:
            code = RATE_CONSTANT
        rate = row_rate(
            code, rule.count_code, rule.hyper, state.intercept[2:], _FIRST, summed.weight,
            summed.curvature,
        )  # fmt: skip
        if code == RATE_COUNTED:
            # Every row holds the intercept: beyond 2 its first step would overshoot.
            rate = min(rate, np.float32(2.0 / summed.curvature))
        step_element(
            rule,
            np.float32(rate / step.correction),
            step.root_correction,
            weights.intercept,
            _FIRST,
            np.float32(summed.derivative * step.scale),
            state.intercept[0:1],
            state.intercept[1:2],
        )


@inlined
def token_rate(k, summed, step, problem, state):
    """Return the learning rate of token ``k``, whose counter advances."""
    rule = problem.rule
    curvature = penalized_curvature(summed.curvature, summed.weight, k, problem.objective)
    rate = row_rate(
        rule.rate_code, rule.count_code, rule.hyper, state.per_row, k, summed.weight, curvature
    )
    return np.float32(rate / step.correction)


@inlined
def step_linear(k, summed, rate, step, problem, weights, state):
    """Update the linear weight of token ``k`` by its gradient and the penalty."""
    if problem.objective.fit_linear:
        alpha = problem.objective.alpha_linear * problem.objective.shares[k]
        gradient = step.scale * (summed.derivative + alpha * summed.weight * weights.linear[k])
        step_element(
            problem.rule,
            rate,
            step.root_correction,
            weights.linear,
            k,
            np.float32(gradient),
            state.linear_first,
            state.linear_second,
        )


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
def sum_token(t, batch, scratch):
    """Return the TokenSums of the batch's token ``t``."""
    derivative = 0.0
    weight = 0.0
    curvature = 0.0
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        j = np.uint64(batch.rows[p])
        x = np.float64(batch.values[p])
        derivative += scratch.derivatives[j] * x
        weight += batch.weights[j]
        curvature += abs(x) * scratch.curvatures[j]
    return TokenSums(derivative, weight, curvature)


@inlined
def step_scalars(number, share, part, problem, weights, state, batch, scratch):
    """Step the intercept and the linear weights; the first step has number 1.

    All learning rates are multiplied by ``share``.

    Returns the loss of the batch, the StepScale, and where the tokens of the thread begin and end.
    Leaves rates of tokens, and penalties of their factors.
    """
    loss, summed = sum_of_rows(part.n_rows, batch, scratch)
    step = begin_step(number, summed.weight, part.n_rows, share, problem)
    if part.rank == 0:
        step_intercept(summed, step, problem, weights, state)
    objective = problem.objective
    first = np.uint64(first_token(part.rank, part.size, batch))
    end = np.uint64(first_token(part.rank + 1, part.size, batch))
    last = np.uint64(batch.n_tokens[0] - 1)
    for t in range(first, end):
        ahead = batch.tokens[min(t + _TOKENS_AHEAD, last)]
        prefetch_element(weights.linear, ahead)
        prefetch_element(objective.shares, ahead)
        prefetch_element(state.per_row, ahead)
        k = np.uint64(batch.tokens[t])
        summed = sum_token(t, batch, scratch)
        scratch.rates[t] = np.nan
        if summed.weight > 0.0 or not problem.rule.lazy:
            scratch.penalties[t] = objective.alpha_factors * objective.shares[k] * summed.weight
            scratch.rates[t] = token_rate(k, summed, step, problem, state)
            step_linear(k, summed, scratch.rates[t], step, problem, weights, state)
    return loss, step, (first, end)


@inlined
def add_gradient(t, width, derivatives, sums, batch, total):
    """Add derivative * x * (sum of x v) of the rows that hold a token to its gradient."""
    last = np.uint64(batch.starts[np.uint64(batch.n_tokens[0])]) - _ONE
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        prefetch_row(sums, batch.rows[min(p + _OCCURRENCES_AHEAD, last)])
        j = np.uint64(batch.rows[p])
        multiple = derivatives[j] * batch.values[p]
        for f in range(width):
            total[f] += multiple * sums[j, f]


@inlined
def sum_gradient(t, penalty, vector, along, derivatives, batch, total):
    """Write the gradient by a token's vector: derivative * x * (sum - own x v_k) + alpha v_k.

    Sums are kept in double precision: they are exact for the purposes of float32 weights, in
    whatever order.
    """
    width, factor = np.uint64(vector.shape[0]), penalty
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        x = np.float64(batch.values[p])
        factor -= derivatives[np.uint64(batch.rows[p])] * x * x * along.own
    for f in range(width):
        total[f] = factor * vector[f]
    add_gradient(t, width, derivatives, along.sums, batch, total)


@inlined
def prefetch_vectors(t, batch, factors, state):
    """Prefetch a vector, and its optimizer state, of a token some places ahead."""
    ahead = batch.tokens[min(t + _TOKENS_AHEAD, np.uint64(batch.n_tokens[0] - 1))]
    prefetch_row(factors, ahead)
    prefetch_row(state.factors_first, ahead)
    prefetch_row(state.factors_second, ahead)


@inlined
def round_gradient(width, scale, total, gradient):
    """Write the gradient that a vector moves along, from its sums in double precision."""
    for f in range(width):
        gradient[f] = np.float32(scale * total[f])


@inlined
def move_vector(i, rate, step, rule, table, state, total, gradient):
    """Move row ``i`` of a table along its gradient; ``state`` are the tables of its state."""
    round_gradient(table.shape[1], step.scale, total, gradient)
    step_row(rule, rate, step.root_correction, table, i, gradient, *state)


@inlined
def _differentiate_row(p, penalty, scale, along, vector, batch, derivatives, gradient):
    """Write the gradient by the vector of a token that occurs once, at ``p``, as most do."""
    j, x = np.uint64(batch.rows[p]), np.float64(batch.values[p])
    multiple = derivatives[j] * x
    factor = penalty - multiple * x * along.own
    for f in range(np.uint64(vector.shape[0])):
        gradient[f] = np.float32(scale * (factor * vector[f] + multiple * along.sums[j, f]))


@inlined
def step_vector(t, rank, along, step, rule, tables, batch, scratch):
    """Update the vector of a token; ``tables`` are the factors and the tables of their state."""
    factors, first, second = tables
    rate, penalty, k = scratch.rates[t], scratch.penalties[t], np.uint64(batch.tokens[t])
    if math.isnan(rate):
        return
    total, gradient, p = scratch.totals[rank], scratch.gradients[rank], np.uint64(batch.starts[t])
    if batch.starts[t + _ONE] - batch.starts[t] == 1:
        derivatives = scratch.derivatives
        _differentiate_row(p, penalty, step.scale, along, factors[k], batch, derivatives, gradient)
    else:
        sum_gradient(t, penalty, factors[k], along, scratch.derivatives, batch, total)
        round_gradient(factors.shape[1], step.scale, total, gradient)
    step_row(rule, rate, step.root_correction, factors, k, gradient, first, second)
