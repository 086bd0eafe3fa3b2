"""Second-order factorization machines: mini-batch training, see ``batch``, and scores."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, rolled_kernel
from freqfm._numba.prefetch import prefetch_element, prefetch_row
from freqfm.backends.cpu.fm.batch import (
    begin_step,
    differentiate,
    gradient_of,
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
from freqfm.formulas.steps import step_row

_ONE, _TWO = np.uint64(1), np.uint64(2)

# How many entries and tokens ahead vectors are prefetched.
_ENTRIES_AHEAD, _TOKENS_AHEAD = np.uint64(32), np.uint64(16)


class PlainScratch(NamedTuple):
    """Working memory of training, shared by all threads but for the last two.

    Beside the prepared batches it takes about 4 d batch_size + 12 m bytes.
    """

    prepared: PreparedBatches
    sums: np.ndarray  #: (batch_size, d), float32, sums of x v
    scores: np.ndarray  #: (batch_size,), float32
    derivatives: np.ndarray  #: (batch_size,), float64, of the weighted loss by the score
    losses: np.ndarray  #: (batch_size,), float64, weighted
    curvatures: np.ndarray  #: (batch_size,), float64, see ``differentiate``
    penalties: np.ndarray  #: (listed,), float64, of a token's factors
    rates: np.ndarray  #: (listed,), float32, NaN where a token is left alone
    totals: np.ndarray  #: (size, d or more), float64
    gradients: np.ndarray  #: (size, d or more), float32


@inlined
def _sum_row(i, rows, weights, total):
    """Write a row's sum of x v; return its score, |sum of x v|^2, and one plus the sum of |x|.

    The interactions are half of |sum of x v|^2 - sum of |x v|^2.
    """
    factors, width = weights.factors, weights.factors.shape[1]
    last_entry = np.uint64(rows.token.shape[0] - 1)
    for f in range(width):
        total[f] = ZERO
    score, reach, squares = weights.intercept[0], ONE, ZERO
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])):
        ahead = rows.token[min(p + _ENTRIES_AHEAD, last_entry)]
        prefetch_row(factors, ahead)
        prefetch_element(weights.linear, ahead)
        k, x = np.uint64(rows.token[p]), rows.value[p]
        score += x * weights.linear[k]
        reach += abs(x)
        add_multiple(x, factors[k], total)
        squares += squared_norm(x, factors[k], width)
    norm = squared_norm(ONE, total, width)
    return score + HALF * (norm - squares), norm, reach


@inlined
def _score_pair(p, q, rows, weights):
    """Return the score of a row of two entries: a dot product is their only interaction."""
    i, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    product = ZERO
    for f in range(weights.factors.shape[1]):
        product += weights.factors[i, f] * weights.factors[j, f]
    x, y = rows.value[p], rows.value[q]
    linear = x * weights.linear[i] + y * weights.linear[j]
    return weights.intercept[0] + linear + x * y * product


@inlined
def _score_rows(begin, end, weights, batch, scratch):
    """Write the scores of rows, their sums of x v, and bounds of the scores' curvature."""
    rows = rows_of(batch)
    for j in range(begin, end):
        scratch.scores[j], norm, reach = _sum_row(j, rows, weights, scratch.sums[j])
        scratch.curvatures[j] = reach * (ONE + norm)


@inlined
def _differentiate_row(p, penalty, scale, vector, batch, scratch, gradient):
    """Write the gradient by the vector of a token that occurs once, at ``p``, as most do."""
    j, x = np.uint64(batch.rows[p]), np.float64(batch.values[p])
    multiple = scratch.derivatives[j] * x
    factor = penalty - multiple * x
    for f in range(vector.shape[0]):
        gradient[f] = np.float32(scale * (factor * vector[f] + multiple * scratch.sums[j, f]))


@inlined
def _step_tokens(tokens, step, rule, factors, state, batch, scratch, gradient):
    """Update the factors of some tokens."""
    last, derivatives = np.uint64(batch.n_tokens[0] - 1), scratch.derivatives
    for t in range(*tokens):
        ahead = batch.tokens[min(t + _TOKENS_AHEAD, last)]
        prefetch_row(factors, ahead)
        prefetch_row(state.factors_first, ahead)
        prefetch_row(state.factors_second, ahead)
        rate, k = scratch.rates[t], np.uint64(batch.tokens[t])
        if math.isnan(rate):
            continue
        penalty, p = scratch.penalties[t], np.uint64(batch.starts[t])
        if batch.starts[t + _ONE] - batch.starts[t] == 1:
            _differentiate_row(p, penalty, step.scale, factors[k], batch, scratch, gradient.scaled)
        else:
            sum_gradient(t, penalty, factors[k], derivatives, scratch.sums, batch, gradient.total)
            round_gradient(factors.shape[1], step.scale, gradient)
        step_row(
            rule, rate, step.root_correction, factors, k, gradient.scaled, state.factors_first,
            state.factors_second,
        )  # fmt: skip


@rolled_kernel
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
    member = Member(rank, size, barrier)
    order = order_of_epoch(problem.rows, span.epoch)
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, problem.rows)
        begin, end = np.uint64(part.begin), np.uint64(part.end)
        batch = next_batch(b, member, problem, span, order, scratch.prepared)
        _score_rows(begin, end, weights, batch, scratch)
        differentiate(begin, end, problem.objective.loss_code, batch, scratch)
        synchronize(member)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            batch_loss, summed = sum_of_rows(part.n_rows, batch, scratch)
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state)
        tokens = own_tokens(member, batch)
        step_scalars(tokens, step, problem, weights, state, batch, scratch)
        _step_tokens(
            tokens, step, problem.rule, weights.factors, state, batch, scratch,
            gradient_of(rank, scratch),
        )  # fmt: skip
    return loss


@rolled_kernel
def fm_score(rank, size, barrier, rows, weights, totals, scores):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``totals`` (size, d or more) is scratch, ``scores`` (n_rows,) the float32 result. Rows are
    shared out in blocks of equal length.
    """
    n_rows, last = scores.shape[0], np.uint64(rows.token.shape[0] - 1)
    for i in range(np.uint64(n_rows * rank // size), np.uint64(n_rows * (rank + 1) // size)):
        p, end = np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])
        if end - p == _TWO:
            prefetch_row(weights.factors, rows.token[min(p + _ENTRIES_AHEAD, last)])
            prefetch_row(weights.factors, rows.token[min(p + _ENTRIES_AHEAD + _ONE, last)])
            scores[i] = _score_pair(p, p + _ONE, rows, weights)
        else:
            scores[i] = _sum_row(i, rows, weights, totals[rank])[0]
