"""Second-order factorization machines: mini-batch training, see ``batch``, and scores."""

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import prefetch_element, prefetch_row
from freqfm.backends.cpu.fm.batch import (
    ENTRIES_AHEAD,
    Along,
    differentiate,
    next_batch,
    prefetch_vectors,
    rows_of,
    step_scalars,
    step_vector,
    sum_row,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize

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
def _sum_pair(p, q, rows, weights, sums):
    """Do what ``sum_row`` does for a row of two entries, in one loop."""
    last = np.uint64(rows.token.shape[0] - 1)
    for ahead in (min(p + ENTRIES_AHEAD, last), min(q + ENTRIES_AHEAD, last)):
        prefetch_row(weights.factors, rows.token[ahead])
        prefetch_element(weights.linear, rows.token[ahead])
    i, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    x, y = rows.value[p], rows.value[q]
    product, norm = ZERO, ZERO
    for f in range(np.uint64(weights.factors.shape[1])):
        one, two = x * weights.factors[i, f], y * weights.factors[j, f]
        total = one + two
        sums[f] = total
        norm += total * total
        product += one * two
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
