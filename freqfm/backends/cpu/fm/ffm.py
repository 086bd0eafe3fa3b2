"""Field-aware factorization machines: a vector for each token and field (Juan et al., 2016).

Two tokens i and j of a row interact by <v_i,g, v_j,f> x_i x_j, where f and g are their fields. The
gradient by v_i,g is x_i times the sum of x_j v_j,f over the other tokens j of field g. These sums
are made row by row, for all pairs of fields that the row holds, those of one f side by side: a
token needs them for all g.

A row's fields are numbered in the order in which its entries show them: these numbers are called
places. In most rows every field has one entry, in the order of the fields, so that places are
fields: such a row is called whole.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import LINE, prefetch_element, prefetch_row
from freqfm.backends.cpu.fm.batch import (
    Scratch,
    differentiate,
    linear_part,
    next_batch,
    rows_of,
    step_scalars,
    sum_token,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.formulas.codes import RATE_COUNTED, STEP_ROWWISE_ADAGRAD
from freqfm.formulas.steps import penalized_curvature, row_rate, step_columns, step_row

_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_THREE, _FOUR = np.uint64(3), np.uint64(4)
_LOW_HALF = np.uint64(0xFFFFFFFF)

# How many entries, and how many tokens and occurrences of one, ahead memory is prefetched.
_ENTRIES_AHEAD, _TOKENS_AHEAD, _ROWS_AHEAD = np.uint64(16), np.uint64(4), np.uint64(4)


class RowFields(NamedTuple):
    """Which fields rows hold; threads write the rows that they score."""

    whole: np.ndarray  #: (n_rows,), whether the row is whole; then what follows is not written
    single: np.ndarray  #: (n_rows,), whether no field has several entries
    places: np.ndarray  #: (n_entries,), int32, the place of each entry's field in its row
    n_places: np.ndarray  #: (n_rows,), int32, the number of fields
    fields: np.ndarray  #: (n_rows, most), int32, at each place
    n_entries: np.ndarray  #: (n_rows, most), int32, at each place
    place_of_field: np.ndarray  #: (size, n_fields or more), int32, scratch; -1 between rows
    vectors: np.ndarray  #: (size, most * d or more), float32, scratch: those of an entry


class PairScratch(NamedTuple):
    """Working memory of training; ``sums`` of the shared part hold those of pairs of fields."""

    shared: Scratch
    rows: RowFields
    weights: np.ndarray  #: (size, n_fields or more), float64, of rows that hold a field; else 0
    held: np.ndarray  #: (size, n_fields or more), int32, the fields of weight above 0


class PairScores(NamedTuple):
    """Working memory of scores: of one row for each thread."""

    sums: np.ndarray  #: (size, most * most * d or more), float32
    rows: RowFields


class Entries(NamedTuple):
    """The entries of a row, and where ``RowFields`` describe them."""

    first: int
    end: int
    row: int  #: of ``RowFields``
    begin: int  #: of its places


class Token(NamedTuple):
    """A token of a batch, whose vectors are updated."""

    k: int
    rate: float  #: float32, unless its vectors have counters
    curvature: float  #: of the batch's loss along its weights, if they have
    penalty: float  #: on its vectors, for each unit of the rows' weight


class Run(NamedTuple):
    """Neighbouring fields, for which a token's vectors move alike."""

    first: int
    end: int
    weight: float  #: of the rows
    count: float  #: of the vectors' counters, before this batch


@inlined
def _width(factors):
    """Return the length of a vector."""
    return np.uint64(factors.vectors.shape[1]) // np.uint64(factors.n_fields)


@inlined
def _dot(a, i, b, j, n):
    """Return the dot product of ``n`` numbers of two arrays, from ``i`` and ``j`` on."""
    total = ZERO
    for f in range(n):
        total += a[i + f] * b[j + f]
    return total


@inlined
def _spread(x, vectors, begin, n, width, to, side, sums):
    """Write x times ``n`` vectors that stand side by side, each ``side`` numbers after the last."""
    if width == _FOUR:
        # Read before anything is written, the four numbers of a vector are one instruction.
        for b in range(n):
            i, j = begin + b * _FOUR, to + b * side
            p, q = x * vectors[i], x * vectors[i + _ONE]
            r, s = x * vectors[i + _TWO], x * vectors[i + _THREE]
            sums[j], sums[j + _ONE], sums[j + _TWO], sums[j + _THREE] = p, q, r, s
    else:
        for b in range(n):
            for f in range(width):
                sums[to + b * side + f] = x * vectors[begin + b * width + f]


@inlined
def _spread_more(x, vectors, begin, n, width, to, side, sums):
    """Add what ``_spread`` writes."""
    for b in range(n):
        for f in range(width):
            sums[to + b * side + f] += x * vectors[begin + b * width + f]


@inlined
def _is_whole(entries, rows, factors):
    """Return whether a row has one entry of every field, in their order."""
    if entries.end - entries.first != np.uint64(factors.n_fields):
        return False
    for p in range(entries.first, entries.end):
        if np.uint64(factors.fields[np.uint64(rows.token[p])]) != p - entries.first:
            return False
    return True


@inlined
def _list_fields(entries, rank, rows, factors, found):
    """Write which fields a row holds, and at which places; return how many."""
    row, place_of_field = entries.row, found.place_of_field[rank]
    found.whole[row] = _is_whole(entries, rows, factors)
    if found.whole[row]:
        found.single[row] = True
        return np.uint64(factors.n_fields)
    n = _ZERO
    for p in range(entries.first, entries.end):
        field = np.uint64(factors.fields[np.uint64(rows.token[p])])
        if place_of_field[field] < 0:
            place_of_field[field] = n
            found.fields[row, n] = field
            found.n_entries[row, n] = 0
            n += _ONE
        place = np.uint64(place_of_field[field])
        found.places[entries.begin + p - entries.first] = place
        found.n_entries[row, place] += 1
    for a in range(n):
        place_of_field[np.uint64(found.fields[row, a])] = -1
    found.n_places[row] = n
    found.single[row] = n == entries.end - entries.first
    return n


@inlined
def _gather(k, n, row, factors, found, gathered):
    """Copy the vectors of token ``k`` for the ``n`` fields of a row, by their places."""
    width = _width(factors)
    for a in range(n):
        first = np.uint64(found.fields[row, a]) * width
        for f in range(width):
            gathered[a * width + f] = factors.vectors[k, first + f]


@inlined
def _sum_row(entries, rank, rows, factors, found, sums):
    """Write the sums of a row over each field, for every field; return its interactions.

    An entry interacts with those before it. The sum of a field of one entry for itself is zero.
    """
    n, row = _list_fields(entries, rank, rows, factors, found), entries.row
    width, whole, single = _width(factors), found.whole[row], found.single[row]
    side, pairs, gathered = n * width, ZERO, found.vectors[rank]
    table = factors.vectors.reshape(factors.vectors.size)
    last = np.uint64(rows.token.shape[0] - 1)
    if not single:
        for f in range(n * side):
            sums[f] = ZERO
    for p in range(entries.first, entries.end):
        prefetch_row(factors.vectors, rows.token[min(p + _ENTRIES_AHEAD, last)])
        k, x, place = np.uint64(rows.token[p]), rows.value[p], p - entries.first
        if whole:
            first = k * side
            pairs += x * _dot(table, first, sums, place * side, place * width)
            _spread(x, table, first, n, width, place * width, side, sums)
            continue
        _gather(k, n, row, factors, found, gathered)
        if single:
            pairs += x * _dot(gathered, _ZERO, sums, place * side, place * width)
            _spread(x, gathered, _ZERO, n, width, place * width, side, sums)
        else:
            place = np.uint64(found.places[entries.begin + place])
            pairs += x * _dot(gathered, _ZERO, sums, place * side, side)
            _spread_more(x, gathered, _ZERO, n, width, place * width, side, sums)
    for a in range(n):
        if single or found.n_entries[row, a] == 1:
            for f in range(width):
                sums[a * side + a * width + f] = ZERO
    return pairs


@inlined
def _largest_norm(n, side, sums):
    """Return the largest squared norm of what ``_sum_row`` has written for a field."""
    largest = ZERO
    for a in range(n):
        largest = max(largest, _dot(sums, a * side, sums, a * side, side))
    return largest


@inlined
def _score_rows(part, problem, weights, batch, scratch):
    """Write the scores of rows, their sums, and bounds of the scores' curvature."""
    rows, shared, factors, found = rows_of(batch), scratch.shared, weights.factors, scratch.rows
    for j in range(np.uint64(part.begin), np.uint64(part.end)):
        score, reach = linear_part(j, rows, weights)
        first, sums = np.uint64(rows.indptr[j]), shared.sums[0, j]
        entries = Entries(first, np.uint64(rows.indptr[j + _ONE]), j, first)
        shared.scores[j] = score + _sum_row(entries, part.rank, rows, factors, found, sums)
        if problem.rule.rate_code == RATE_COUNTED:
            n = np.uint64(factors.n_fields if found.whole[j] else found.n_places[j])
            reach *= ONE + _largest_norm(n, n * _width(factors), sums)
        shared.curvatures[j] = reach


@inlined
def _hold(field, n_held, rank, width, scratch):
    """List a field unless it is listed, with a gradient of zero; return how many are listed."""
    if scratch.weights[rank, field] != 0.0:
        return n_held
    scratch.held[rank, n_held] = field
    for f in range(field * width, (field + _ONE) * width):
        scratch.shared.totals[rank, f] = 0.0
    return n_held + _ONE


@inlined
def _add_row(t, p, n_held, rank, factors, batch, scratch):
    """Add a row that is not whole to a token's gradients; return how many fields are listed."""
    shared, rows = scratch.shared, scratch.rows
    j, x, width = np.uint64(batch.rows[p]), np.float64(batch.values[p]), _width(factors)
    own, n = np.uint64(rows.places[batch.keys[0, p] & _LOW_HALF]), np.uint64(rows.n_places[j])
    multiple, k = shared.derivatives[j] * x, np.uint64(batch.tokens[t])
    weights, total, sums = scratch.weights[rank], shared.totals[rank], shared.sums[0, j]
    for a in range(n):
        alone = a == own and rows.n_entries[j, a] == 1
        if alone:
            continue
        field = np.uint64(rows.fields[j, a])
        n_held = _hold(field, n_held, rank, width, scratch)
        weights[field] += batch.weights[j]
        first, by_field = (own * n + a) * width, field * width
        for f in range(width):
            total[by_field + f] += multiple * sums[first + f]
        if a == own:
            for f in range(width):
                total[by_field + f] -= multiple * x * factors.vectors[k, by_field + f]
    return n_held


@inlined
def _prefetch_sums(p, own, side, scratch, batch):
    """Prefetch the sums that an occurrence of a token some places ahead will need."""
    last = np.uint64(batch.starts[np.uint64(batch.n_tokens[0])] - 1)
    j = np.uint64(batch.rows[min(p + _ROWS_AHEAD, last)])
    of_row = scratch.shared.sums[0, j]
    for f in range(own * side, (own + _ONE) * side, np.uint64(LINE)):
        prefetch_element(of_row, f)


@inlined
def _sum_gradients(t, rank, factors, batch, scratch):
    """Write the gradients by the vectors of a token, without penalties, in double precision.

    Lists the fields that they belong to, and the weights of the rows that hold them; returns how
    many fields there are.
    """
    shared, found, k = scratch.shared, scratch.rows, np.uint64(batch.tokens[t])
    n_fields, own, width = (
        np.uint64(factors.n_fields),
        np.uint64(factors.fields[k]),
        _width(factors),
    )
    side, weights, total = n_fields * width, scratch.weights[rank], shared.totals[rank]
    n_held, n_whole, weight = _ZERO, 0, 0.0
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        j = np.uint64(batch.rows[p])
        if not found.whole[j]:
            n_held = _add_row(t, p, n_held, rank, factors, batch, scratch)
            continue
        _prefetch_sums(p, own, side, scratch, batch)
        if n_whole == 0:
            for field in range(n_fields):
                if field != own:
                    n_held = _hold(field, n_held, rank, width, scratch)
                    weights[field] += batch.weights[j]
        else:
            weight += batch.weights[j]
        n_whole += 1
        multiple = shared.derivatives[j] * np.float64(batch.values[p])
        sums, first = shared.sums[0, j], own * side
        for f in range(side):
            total[f] += multiple * sums[first + f]
    if n_whole > 1:
        for field in range(n_fields):
            if field != own:
                weights[field] += weight
    return n_held


@inlined
def _hold_all(n_held, rank, factors, scratch):
    """List all fields, with gradients of zero of those that no row holds; return their number."""
    for field in range(np.uint64(factors.n_fields)):
        n_held = _hold(field, n_held, rank, _width(factors), scratch)
    return n_held


@inlined
def _describe(t, problem, batch, shared):
    """Return the Token of a batch's token ``t``."""
    k, objective = np.uint64(batch.tokens[t]), problem.objective
    curvature = 0.0
    if problem.rule.rate_code == RATE_COUNTED:
        summed = sum_token(t, batch, shared)
        curvature = penalized_curvature(summed.curvature, summed.weight, k, objective)
    return Token(k, shared.rates[t], curvature, objective.alpha_factors * objective.shares[k])


@inlined
def _run_rate(run, token, step, rule, counts):
    """Return the learning rate of the vectors of a run; their counters, if any, advance."""
    if rule.rate_code != RATE_COUNTED:
        return token.rate
    rate = row_rate(
        rule.rate_code, rule.count_code, rule.hyper, counts, run.first, run.weight, token.curvature
    )
    for field in range(run.first + _ONE, run.end):
        counts[field] = counts[run.first]
    return np.float32(rate / step.correction)


@inlined
def _step_run(run, token, rank, step, rule, factors, state, shared):
    """Update the vectors of a run."""
    table, total, gradient = factors.vectors, shared.totals[rank], shared.gradients[rank]
    width, penalty, k = _width(factors), token.penalty * run.weight, token.k
    begin, end = run.first * width, run.end * width
    for f in range(begin, end):
        gradient[f] = np.float32(step.scale * (total[f] + penalty * table[k, f]))
    counts = state.per_vector[k if rule.rate_code == RATE_COUNTED else _ZERO]
    rate, first, second = (
        _run_rate(run, token, step, rule, counts), state.factors_first, state.factors_second
    )  # fmt: skip
    if rule.step_code != STEP_ROWWISE_ADAGRAD:
        step_columns(
            rule, rate, step.root_correction, table, (k, begin, end), gradient, first, second
        )
        return
    n_fields = np.uint64(factors.n_fields)
    vectors = table.reshape(table.size // width, width)
    squares = first.reshape(first.size, 1)
    for field in range(run.first, run.end):
        step_row(
            rule, rate, step.root_correction, vectors, k * n_fields + field,
            gradient[field * width :], squares, second,
        )  # fmt: skip


@inlined
def _step_vectors(n_held, token, rank, step, rule, factors, state, scratch):
    """Update the vectors of a token for the listed fields, in runs; their weights are 0 again."""
    weights, held = scratch.weights[rank], scratch.held[rank]
    counted = rule.rate_code == RATE_COUNTED
    run = Run(_ZERO, _ZERO, 0.0, ZERO)
    for h in range(n_held):
        field = np.uint64(held[h])
        weight, count = weights[field], state.per_vector[token.k, field] if counted else ZERO
        weights[field] = 0.0
        same = field == run.end and weight == run.weight and count == run.count
        if h > 0 and not same:
            _step_run(run, token, rank, step, rule, factors, state, scratch.shared)
        first = run.first if h > 0 and same else field
        run = Run(first, field + _ONE, weight, count)
    if n_held > 0:
        _step_run(run, token, rank, step, rule, factors, state, scratch.shared)


@inlined
def _prefetch_vectors(t, batch, factors, state):
    """Prefetch the vectors of a token some places ahead, and their optimizer states."""
    ahead = batch.tokens[min(t + _TOKENS_AHEAD, np.uint64(batch.n_tokens[0] - 1))]
    prefetch_row(factors.vectors, ahead)
    prefetch_row(state.factors_first, ahead)
    prefetch_row(state.factors_second, ahead)
    prefetch_row(state.per_vector, ahead)


@inlined
def _step_tokens(tokens, rank, step, problem, factors, state, batch, scratch):
    """Update the vectors of some tokens."""
    rule = problem.rule
    for t in range(*tokens):
        _prefetch_vectors(t, batch, factors, state)
        if math.isnan(scratch.shared.rates[t]):
            continue
        n_held = _sum_gradients(t, rank, factors, batch, scratch)
        if not rule.lazy:
            n_held = _hold_all(n_held, rank, factors, scratch)
        token = _describe(t, problem, batch, scratch.shared)
        _step_vectors(n_held, token, rank, step, rule, factors, state, scratch)


@kernel
def ffm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem, span : as for ``fm_train``.
    weights : FMWeights, with FieldVectors as factors.
    state : OptimizerState
    scratch : PairScratch
    """
    member, order = Member(rank, size, barrier), order_of_epoch(problem.rows, span.epoch)
    shared, loss = scratch.shared, span.loss
    for b in range(span.first_batch, span.last_batch):
        part, batch = next_batch(b, member, problem, span, order, shared.prepared)
        _score_rows(part, problem, weights, batch, scratch)
        begin, end = np.uint64(part.begin), np.uint64(part.end)
        differentiate(begin, end, problem.objective.loss_code, batch, shared)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(number, part, problem, weights, state, batch, shared)
        loss += of_batch
        _step_tokens(tokens, rank, step, problem, weights.factors, state, batch, scratch)
    return loss


@kernel
def ffm_score(rank, size, barrier, rows, weights, scratch, scores):
    """Write the scores of CSR rows, in O(m n d) for a row of m tokens and n fields.

    ``scratch`` is a PairScores; ``scores`` (n_rows,) is the float32 result. Rows are shared out
    in blocks of equal length.
    """
    n_rows, found, sums = scores.shape[0], scratch.rows, scratch.sums[rank]
    row, begin = np.uint64(rank), np.uint64(rank * (found.places.shape[0] // size))
    for i in range(np.uint64(n_rows * rank // size), np.uint64(n_rows * (rank + 1) // size)):
        entries = Entries(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE]), row, begin)
        pairs = _sum_row(entries, rank, rows, weights.factors, found, sums)
        scores[i] = linear_part(i, rows, weights)[0] + pairs
