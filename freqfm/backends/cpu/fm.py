"""Second-order factorization machines: mini-batch training and scores.

How a batch is trained is told in ``fm_batch``.
"""

import numpy as np

from freqfm._jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.fm_batch import (
    add_token,
    differentiate_losses,
    gather_rows,
    link_tokens,
    order_of_epoch,
    squared_norm,
    step_corrections,
    step_intercept,
    step_linear,
    sum_gradient,
)
from freqfm.backends.cpu.ownership import owner
from freqfm.backends.cpu.team import wait
from freqfm.formulas.steps import row_rate, step_row


@inlined
def _score(begin, end, intercept, linear, factors, entries, batch, sums):
    """Score rows: sum_{i<k} <v_i, v_k> x_i x_k is half of |sum of x v|^2 - sum of |x v|^2.

    With it comes a bound on curvature. The score's gradient by the weights of token k is about
    x_k (1, s), s = sum of x v. For any steps delta of the weights, Cauchy and Schwarz bound the
    square of the score's change by (sum_i a_i) * (sum_k a_k |delta_k|^2), a_k = |x_k| |(1, s)|,
    the intercept included as a token of value 1. So a row adds
    |x_k| * (1 + sum_i |x_i|) * (1 + |s|^2), times that of its loss, to the curvature of token k.
    """
    for j in range(begin, end):
        score = intercept[0]
        squares = ZERO
        reach = ONE
        first = np.uint64(batch[j].begin)
        last = np.uint64(batch[j].end)
        for p in range(first, last):
            k = np.uint64(entries[p].token)
            x = entries[p].value
            score += x * linear[k]
            reach += abs(x)
            squares += add_token(p == first, j, k, x, factors, sums)
        norm = squared_norm(j, last - first, factors.shape[1], sums)
        batch[j].score = score + HALF * (norm - squares)
        batch[j].curvature = reach * (ONE + norm)


@kernel
def fm_train(
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
):
    """Train on the batches ``first_batch`` to ``last_batch`` of an epoch; return their loss.

    Arguments
    ---------
    rows : Rows
    intercept (1,), linear (n,), factors (n, d) : float32, updated in place.
    objective : Objective
    stepping : Stepping
    step : the number of steps made so far.
    state : OptimizerState
    scratch : Scratch
    """
    n_rows = rows.samples.shape[0] - 1
    n_tokens_in_all = factors.shape[0]
    order = order_of_epoch(rows, epoch)
    batch = scratch.batch
    sums = scratch.sums
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
        gather_rows(begin, end, start, rows, order, batch)
        _score(begin, end, intercept, linear, factors, rows.entries, batch, sums)
        differentiate_losses(begin, end, objective.loss_code, batch)
        wait(barrier, size)

        step += 1
        correction, root_correction = step_corrections(stepping, step)
        scale = 1.0 / (n_in_batch * objective.mean_weight) if stepping.average else 1.0
        if rank == 0:
            loss += step_intercept(
                n_in_batch, batch, scale, correction, root_correction, objective, stepping, state,
                intercept,
            )  # fmt: skip
        n_tokens = link_tokens(me, team, n_in_batch, rows.entries, batch, heads, links, tokens)
        for t in range(n_tokens if stepping.lazy else n_tokens_in_all):
            k = np.uint64(tokens[t] if stepping.lazy else t)
            head = heads[k]
            if head >= 0:
                heads[k] = -1
                slope, weight, curvature = sum_gradient(
                    k, head, factors, batch, links, sums, totals, gradient, scale,
                    objective.alpha_factors * objective.shares[k],
                )  # fmt: skip
                if stepping.lazy and weight == 0.0:
                    continue
            elif owner(k, team) == me:
                slope = 0.0
                weight = 0.0
                curvature = 0.0
                for f in range(factors.shape[1]):
                    gradient[f] = ZERO
            else:
                continue
            rate = row_rate(
                stepping.rate_code, stepping.count_code, stepping.hyper, state.per_row, k, weight,
                curvature,
            )  # fmt: skip
            rate = np.float32(rate / correction)
            step_linear(
                k, slope, weight, rate, scale, root_correction, objective, stepping, state, linear
            )
            step_row(
                stepping.step_code, stepping.hyper, rate, root_correction, factors, k, gradient,
                state.factors_first, state.factors_second,
            )  # fmt: skip
        wait(barrier, size)
    return loss


@kernel
def fm_score(
    rank, size, barrier, indptr, indices, values, intercept, linear, factors, sums, scores
):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``sums`` (size, d or more) is scratch; ``scores`` (n_rows,) is the float32 result. Rows are
    shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        score = intercept[0]
        squares = ZERO
        begin = np.uint64(indptr[i])
        end = np.uint64(indptr[i + 1])
        for p in range(begin, end):
            k = np.uint64(indices[p])
            x = values[p]
            score += x * linear[k]
            squares += add_token(p == begin, rank, k, x, factors, sums)
        norm = squared_norm(rank, end - begin, factors.shape[1], sums)
        scores[i] = score + HALF * (norm - squares)
