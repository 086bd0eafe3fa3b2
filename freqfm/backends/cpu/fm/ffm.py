"""Field-aware factorization machines: a vector for each token and field (Juan et al., 2016).

Two tokens i and j of a row interact by <v_i,g, v_j,f> x_i x_j, where f and g are their fields. The
gradient by v_i,g is x_i times the sum of x_j v_j,f over the other tokens j of field g. These sums
are made row by row, for all pairs of fields that the row holds, those of one row and f side by
side: a token needs them for all g. Next to them are those of other rows for the same f, because
the tokens of a field follow each other.

A row's fields are numbered in the order in which its entries show them: these numbers are called
places. In most rows every field has one entry, in the order of the fields, so that places are
fields: such a row is called whole.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import prefetch_row
from freqfm.backends.cpu.fm.batch import (
    Scratch,
    differentiate,
    next_batch,
    rows_of,
    step_scalars,
    sum_token,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.formulas.codes import RATE_COUNTED, STEP_ROWWISE_ADAGRAD
from freqfm.formulas.steps import (
    count,
    counted_rate,
    penalized_curvature,
    step_columns,
    step_row,
)

_ZERO, _ONE, _TWO, _THREE = (np.uint64(n) for n in range(4))
_LOW_HALF = np.uint64(0xFFFFFFFF)

# How many entries and tokens ahead vectors are prefetched.
_ENTRIES_AHEAD, _TOKENS_AHEAD = np.uint64(16), np.uint64(4)


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
    """Working memory of training; ``sums`` of the shared part hold those of pairs of fields.

    Their shape is (most, n_rows, most * d): by f, row, and g.
    """

    shared: Scratch
    rows: RowFields
    weights: np.ndarray  #: (size, n_fields or more), float64, of rows that hold a field; else 0
    held: np.ndarray  #: (size, n_fields or more), int32, the fields of weight above 0


class PairScores(NamedTuple):
    """Working memory of scores: of one row for each thread."""

    sums: np.ndarray  #: (size, most, most * d or more), float32, for each f and g
    rows: RowFields


class Entries(NamedTuple):
    """The entries of a row, and where its fields and sums are written."""

    first: int
    end: int
    row: int  #: of ``RowFields``
    begin: int  #: of its places
    origin: int  #: where the sums of its first place begin
    stride: int  #: from those to the sums of the next place


class Token(NamedTuple):
    """A token of a batch, whose vectors are updated."""

    number: int  #: in the batch
    k: int
    rate: float  #: of its linear weight, float32
    penalty: float  #: on its vectors, for each unit of the rows' weight


class Run(NamedTuple):
    """Neighbouring fields, for which a token's vectors move alike."""

    first: int
    end: int
    weight: float  #: of the rows


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
def _sum_row(entries, rank, rows, weights, found, sums):
    """Write the sums of a row over each field, for every field; return its score.

    Also returns 1 + sum of |x|. An entry interacts with those before it. The sum of a field of one
    entry for itself is zero.
    """
    factors = weights.factors
    n, row = _list_fields(entries, rank, rows, factors, found), entries.row
    width, whole, single = _width(factors), found.whole[row], found.single[row]
    origin, stride, gathered = entries.origin, entries.stride, found.vectors[rank]
    score, reach = weights.intercept[0], ONE
    table, n_values = factors.vectors.reshape(factors.vectors.size), n * width
    last = np.uint64(rows.token.shape[0] - 1)
    if not single:
        for a in range(n):
            for f in range(n_values):
                sums[origin + a * stride + f] = ZERO
    for p in range(entries.first, entries.end):
        prefetch_row(factors.vectors, rows.token[min(p + _ENTRIES_AHEAD, last)])
        k, x, place = np.uint64(rows.token[p]), rows.value[p], p - entries.first
        score += x * weights.linear[k]
        reach += abs(x)
        if whole:
            vectors, first = table, k * n_values
            score += x * _dot(vectors, first, sums, origin + place * stride, place * width)
            _spread(x, vectors, first, n, width, origin + place * width, stride, sums)
            continue
        _gather(k, n, row, factors, found, gathered)
        if single:
            score += x * _dot(gathered, _ZERO, sums, origin + place * stride, place * width)
            _spread(x, gathered, _ZERO, n, width, origin + place * width, stride, sums)
        else:
            place = np.uint64(found.places[entries.begin + place])
            score += x * _dot(gathered, _ZERO, sums, origin + place * stride, n_values)
            _spread_more(x, gathered, _ZERO, n, width, origin + place * width, stride, sums)
    for a in range(n):
        if single or found.n_entries[row, a] == 1:
            for f in range(width):
                sums[origin + a * (stride + width) + f] = ZERO
    return score, reach


@inlined
def _largest_norm(entries, n, n_values, sums):
    """Return the largest squared norm of what ``_sum_row`` has written for a field."""
    largest = ZERO
    for a in range(n):
        begin = entries.origin + a * entries.stride
        largest = max(largest, _dot(sums, begin, sums, begin, n_values))
    return largest


@inlined
def _score_rows(part, problem, weights, batch, scratch):
    """Write the scores of rows, their sums, and bounds of the scores' curvature."""
    rows, shared, factors, found = rows_of(batch), scratch.shared, weights.factors, scratch.rows
    sums, of_row = shared.sums.reshape(shared.sums.size), np.uint64(shared.sums.shape[2])
    stride = np.uint64(shared.sums.shape[1]) * of_row
    for j in range(np.uint64(part.begin), np.uint64(part.end)):
        first, end = np.uint64(rows.indptr[j]), np.uint64(rows.indptr[j + _ONE])
        entries = Entries(first, end, j, first, j * of_row, stride)
        shared.scores[j], reach = _sum_row(entries, part.rank, rows, weights, found, sums)
        if problem.rule.rate_code == RATE_COUNTED:
            n = np.uint64(factors.n_fields if found.whole[j] else found.n_places[j])
            reach *= ONE + _largest_norm(entries, n, n * _width(factors), sums)
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
    weights, total, sums = scratch.weights[rank], shared.totals[rank], shared.sums[own, j]
    for a in range(n):
        alone = a == own and rows.n_entries[j, a] == 1
        if alone:
            continue
        field = np.uint64(rows.fields[j, a])
        n_held = _hold(field, n_held, rank, width, scratch)
        weights[field] += batch.weights[j]
        first, by_field = a * width, field * width
        for f in range(width):
            total[by_field + f] += multiple * sums[first + f]
        if a == own:
            for f in range(width):
                total[by_field + f] -= multiple * x * factors.vectors[k, by_field + f]
    return n_held


@inlined
def _sum_whole_rows(t, rank, factors, batch, scratch):
    """Write the gradients by the vectors of a token over the whole rows that hold it.

    They are sums in double precision. Returns how many rows these are, and their weight.
    """
    shared, total, n_whole, weight = scratch.shared, scratch.shared.totals[rank], 0, 0.0
    own = np.uint64(factors.fields[np.uint64(batch.tokens[t])])
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        j = np.uint64(batch.rows[p])
        if not scratch.rows.whole[j]:
            continue
        multiple = shared.derivatives[j] * np.float64(batch.values[p])
        sums = shared.sums[own, j]
        if n_whole == 0:
            for f in range(np.uint64(factors.vectors.shape[1])):
                total[f] = multiple * sums[f]
        else:
            for f in range(np.uint64(factors.vectors.shape[1])):
                total[f] += multiple * sums[f]
        n_whole += 1
        weight += batch.weights[j]
    return n_whole, weight


@inlined
def _sum_other_rows(t, rank, weight, factors, batch, scratch):
    """Add the rows that are not whole; list fields, and the weights of the rows that hold them.

    ``weight`` is that of the whole rows, which hold all fields but the token's own. Returns how
    many fields there are.
    """
    own, n_held = np.uint64(factors.fields[np.uint64(batch.tokens[t])]), _ZERO
    if weight > 0.0:
        for field in range(np.uint64(factors.n_fields)):
            if field != own:
                scratch.held[rank, n_held] = field
                scratch.weights[rank, field] = weight
                n_held += _ONE
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        if not scratch.rows.whole[np.uint64(batch.rows[p])]:
            n_held = _add_row(t, p, n_held, rank, factors, batch, scratch)
    return n_held


@inlined
def _hold_all(n_held, rank, factors, scratch):
    """List all fields, with gradients of zero of those that no row holds; return their number."""
    for field in range(np.uint64(factors.n_fields)):
        n_held = _hold(field, n_held, rank, _width(factors), scratch)
    return n_held


@inlined
def _run_rate(run, token, step, problem, state, batch, shared):
    """Return the learning rate of the vectors of a run; their counters, if any, advance."""
    rule, k = problem.rule, token.k
    if rule.rate_code != RATE_COUNTED:
        return token.rate
    counts = state.per_vector[k]
    count(rule.count_code, counts, run.first, run.weight)
    for field in range(run.first + _ONE, run.end):
        counts[field] = counts[run.first]
    if counts[run.first] == state.per_row[k]:
        # All rows that hold the token hold these fields, too.
        return token.rate
    summed = sum_token(token.number, batch, shared)
    curvature = penalized_curvature(summed.curvature, summed.weight, k, problem.objective)
    return np.float32(counted_rate(rule.hyper, counts[run.first], curvature) / step.correction)


@inlined
def _step_run(run, rate, token, rank, step, rule, tables, shared):
    """Update the vectors of a run; ``tables`` are the factors and their optimizer states."""
    factors, first, second = tables
    table, total, gradient = factors.vectors, shared.totals[rank], shared.gradients[rank]
    width, penalty, k = _width(factors), token.penalty * run.weight, token.k
    begin, end = run.first * width, run.end * width
    for f in range(begin, end):
        gradient[f] = np.float32(step.scale * (total[f] + penalty * table[k, f]))
    root = step.root_correction
    if rule.step_code != STEP_ROWWISE_ADAGRAD:
        step_columns(rule, rate, root, table, (k, begin, end), gradient, first, second)
        return
    n_fields = np.uint64(factors.n_fields)
    vectors, squares = table.reshape(table.size // width, width), first.reshape(first.size, 1)
    for field in range(run.first, run.end):
        i, of_vector = k * n_fields + field, gradient[field * width :]
        step_row(rule, rate, root, vectors, i, of_vector, squares, second)


@inlined
def _run_end(piece, k, rule, counts):
    """Return where the first vectors of a piece end that have equal counters."""
    if rule.rate_code != RATE_COUNTED:
        return piece.end
    end = piece.first + _ONE
    while end < piece.end and counts[k, end] == counts[k, piece.first]:
        end += _ONE
    return end


@inlined
def _nth_piece(h, own, n_fields, weight):
    """Return the fields before a token's own, those after it, and its own, which no row holds."""
    if h == 0:
        return Run(_ZERO, own, weight)
    if h == 1:
        return Run(own + _ONE, n_fields, weight)
    return Run(own, own + _ONE, 0.0)


@inlined
def _prefetch_vectors(t, batch, factors, state):
    """Prefetch the vectors of a token some places ahead, and their optimizer states."""
    ahead = batch.tokens[min(t + _TOKENS_AHEAD, np.uint64(batch.n_tokens[0] - 1))]
    prefetch_row(factors.vectors, ahead)
    prefetch_row(state.factors_first, ahead)
    prefetch_row(state.factors_second, ahead)
    prefetch_row(state.per_vector, ahead)


@inlined
def _step_field_vectors(tokens, rank, step, problem, factors, state, batch, scratch):
    """Update the vectors of some tokens."""
    rule, objective, shared = problem.rule, problem.objective, scratch.shared
    tables = factors, state.factors_first, state.factors_second
    for t in range(*tokens):
        _prefetch_vectors(t, batch, factors, state)
        if math.isnan(shared.rates[t]):
            continue
        k, n_fields = np.uint64(batch.tokens[t]), np.uint64(factors.n_fields)
        token = Token(t, k, shared.rates[t], objective.alpha_factors * objective.shares[k])
        n_whole, weight = _sum_whole_rows(t, rank, factors, batch, scratch)
        only_whole = n_whole == batch.starts[t + _ONE] - batch.starts[t] and n_whole > 0
        n_pieces = _TWO if rule.lazy else _THREE
        if not only_whole:
            n_pieces = _sum_other_rows(t, rank, weight, factors, batch, scratch)
            if not rule.lazy:
                n_pieces = _hold_all(n_pieces, rank, factors, scratch)
        for h in range(n_pieces):
            piece = _nth_piece(h, np.uint64(factors.fields[k]), n_fields, weight)
            if not only_whole:
                field = np.uint64(scratch.held[rank, h])
                piece = Run(field, field + _ONE, scratch.weights[rank, field])
                scratch.weights[rank, field] = 0.0
            while piece.first < piece.end:
                end = _run_end(piece, k, rule, state.per_vector)
                run = Run(piece.first, end, piece.weight)
                rate = _run_rate(run, token, step, problem, state, batch, shared)
                _step_run(run, rate, token, rank, step, rule, tables, shared)
                piece = Run(end, piece.end, piece.weight)


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
        differentiate(begin, end, problem.objective, batch, shared)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(
            number, span.share, part, problem, weights, state, batch, shared
        )
        loss += of_batch
        _step_field_vectors(tokens, rank, step, problem, weights.factors, state, batch, scratch)
    return loss


@kernel
def ffm_score(rank, size, barrier, rows, weights, scratch, scores):
    """Write the scores of CSR rows, in O(m n d) for a row of m tokens and n fields.

    ``scratch`` is a PairScores; ``scores`` (n_rows,) is the float32 result. Rows are shared out
    in blocks of equal length.
    """
    n_rows, found, sums = scores.shape[0], scratch.rows, scratch.sums[rank]
    row, begin = np.uint64(rank), np.uint64(rank * (found.places.shape[0] // size))
    stride, sums = np.uint64(sums.shape[1]), sums.reshape(sums.size)
    for i in range(np.uint64(n_rows * rank // size), np.uint64(n_rows * (rank + 1) // size)):
        first, end = np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + _ONE])
        entries = Entries(first, end, row, begin, _ZERO, stride)
        scores[i] = _sum_row(entries, rank, rows, weights, found, sums)[0]
