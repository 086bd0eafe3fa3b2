"""Second-order factorization machines: mini-batch training, scores and gradients.

How a batch is trained is described in ``fm_batch``.
"""

from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, inlined, kernel
from freqfm.backends.cpu.fm_batch import (
    begin_step,
    differentiate_losses,
    gather_rows,
    link_tokens,
    no_gradient,
    order_of_epoch,
    part_of_batch,
    score_row,
    scratch_of_thread,
    step_intercept,
    step_linear,
    sum_gradient,
    token_rate,
)
from freqfm.backends.cpu.ownership import owns
from freqfm.backends.cpu.team import wait
from freqfm.formulas.steps import step_row


class CSRRows(NamedTuple):
    """The rows of a CSR matrix."""

    indptr: np.ndarray  #: (n_rows + 1,)
    token: np.ndarray  #: (nnz,), the columns
    value: np.ndarray  #: (nnz,), float32


class TokenOccurrences(NamedTuple):
    """The entries of a batch, token by token; those of a token in the order of the rows."""

    tokens: np.ndarray  #: (n_tokens,), the distinct tokens
    starts: np.ndarray  #: (n_tokens + 1,), where the entries of each begin
    rows: np.ndarray  #: (nnz,), the row of each entry
    values: np.ndarray  #: (nnz,), float32
    derivatives: np.ndarray  #: (n_rows,), of the loss by each row's score, float64


@inlined
def _score(part, weights, entries, batch, sums):
    """Score rows, and bound the curvature of the loss.

    The score's gradient by the weights of token k is about x_k (1, s), s = sum of x v. For any
    steps delta of the weights, Cauchy and Schwarz bound the square of the score's change by
    (sum_i a_i) * (sum_k a_k |delta_k|^2), a_k = |x_k| |(1, s)|, the intercept included as a token
    of value 1. So a row adds |x_k| * (1 + sum_i |x_i|) * (1 + |s|^2), times the curvature of its
    loss, to that of token k.
    """
    for j in range(part.begin, part.end):
        row = batch[j].begin, batch[j].end
        score, reach, norm = score_row(row, entries, weights, sums[j])
        batch[j].score = score
        batch[j].curvature = reach * (ONE + norm)


@inlined
def _step_tokens(n_tokens, part, step, problem, weights, state, scratch):
    """Update the weights of the tokens that this thread owns, by what the batch says of them."""
    objective = problem.objective
    rule = problem.rule
    factors = weights.factors
    for t in range(n_tokens if rule.lazy else factors.shape[0]):
        k = np.uint64(scratch.tokens[t] if rule.lazy else t)
        head = scratch.heads[k]
        if head >= 0:
            scratch.heads[k] = -1
            alpha = objective.alpha_factors * objective.shares[k]
            summed = sum_gradient(k, head, factors, scratch, step.scale, alpha)
            if rule.lazy and summed.weight == 0.0:
                continue
        elif owns(part.rank, part.size, k):
            summed = no_gradient(factors.shape[1], scratch.gradient)
        else:
            continue
        rate = token_rate(k, summed, step, rule, state)
        step_linear(k, summed, rate, step, problem, weights, state)
        step_row(
            rule, rate, step.root_correction, factors, k, scratch.gradient, state.factors_first,
            state.factors_second,
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
    scratch : Scratch
    """
    rows = problem.rows
    order = order_of_epoch(rows, span.epoch)
    own = scratch_of_thread(rank, scratch)
    loss = 0.0
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, rows)
        gather_rows(part, rows, order, own.batch)
        _score(part, weights, rows.entries, own.batch, own.sums)
        differentiate_losses(part, problem.objective.loss_code, own.batch)
        wait(barrier, size)

        step = begin_step(span.n_steps + b - span.first_batch + 1, part.n_rows, problem)
        if rank == 0:
            loss += step_intercept(part.n_rows, own.batch, step, problem, weights, state)
        n_tokens = link_tokens(part, rows.entries, own.batch, own)
        _step_tokens(n_tokens, part, step, problem, weights, state, own)
        wait(barrier, size)
    return loss


@kernel
def fm_score(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``sums`` (size, d or more) is scratch; ``scores`` (n_rows,) is the float32 result. Rows are
    shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    own = sums[rank]
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        row = rows.indptr[i], rows.indptr[i + 1]
        scores[i], _, _ = score_row(row, rows, weights, own)


@kernel
def fm_forward(rank, size, barrier, rows, weights, sums, scores):
    """Write the scores of CSR rows as ``fm_score`` does, and to ``sums`` (n_rows, d) those of x v.

    The sums of a row without entries are left as they are.
    """
    n_rows = scores.shape[0]
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        row = rows.indptr[i], rows.indptr[i + 1]
        scores[i], _, _ = score_row(row, rows, weights, sums[i])


@kernel
def fm_gradient(rank, size, barrier, occurrences, factors, sums, total, gradient):
    """Write the gradient of the linear weights and the factors of a batch's tokens.

    ``sums`` (n_rows, d) are those of x v; ``total`` (size, d or more), float64, is scratch;
    ``gradient`` is the FMGradient to be filled.
    """
    width = factors.shape[1]
    n_tokens = occurrences.tokens.shape[0]
    own = total[rank]
    for t in range(n_tokens * rank // size, n_tokens * (rank + 1) // size):
        k = np.uint64(occurrences.tokens[t])
        for f in range(width):
            own[f] = 0.0
        linear = 0.0
        factor = 0.0
        for p in range(np.uint64(occurrences.starts[t]), np.uint64(occurrences.starts[t + 1])):
            j = np.uint64(occurrences.rows[p])
            x = np.float64(occurrences.values[p])
            derivative = occurrences.derivatives[j] * x
            linear += derivative
            factor += derivative * x
            for f in range(width):
                own[f] += derivative * sums[j, f]
        gradient.linear[t] = np.float32(linear)
        for f in range(width):
            gradient.factors[t, f] = np.float32(own[f] - factor * factors[k, f])
