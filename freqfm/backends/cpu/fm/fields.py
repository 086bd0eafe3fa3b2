"""Field-aware and field-weighted factorization machines: training and scores.

Field-aware factorization machines: a vector for each token and field (Juan et al., 2016).

Two tokens i and j of a row interact by <v_i,g, v_j,f> x_i x_j, where f and g are their fields. The
gradient by v_i,g is x_i times the sum of x_j v_j,f over the other tokens j of field g. These sums
are made row by row, for all pairs of fields that the row holds, those of one row and f side by
side: a token needs them for all g. Next to them are those of other rows for the same f, because
the tokens of a field follow each other.

A row's fields are numbered in the order in which its entries show them: these numbers are called
places. In most rows every field has one entry, in the order of the fields, so that places are
fields: such a row is called whole.

Field-weighted factorization machines (Pan et al., 2018): training and scores.

With S_f the sum of x v over the entries of field f of a row, and R the weights of pairs of fields,
the interactions of a row are, over its pairs of fields f < g and its pairs of entries i < j, ::

    sum_{f<g} R_fg <S_f, S_g>  +  sum_f R_ff sum_{i<j in f} <x_i v_i, x_j v_j>.

Their derivative by x_k v_k, for k in field f, is T_f - R_ff x_k v_k, where T = R S; and that by a
weight is what it multiplies. So a row of F fields takes O(F^2 d), whatever the number of entries.

A batch passes the stages of ``deep``. In a tile, the vectors of a field stand side by side, so that
the loops of these products are long.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.instructions import prefetch_element, prefetch_row
from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.fm.batch import (
    ENTRIES_AHEAD,
    Along,
    Scratch,
    differentiate,
    next_batch,
    prefetch_vectors,
    rows_of,
    step_scalars,
    step_vector,
    sum_token,
)
from freqfm.backends.cpu.fm.deep import (
    N_CHUNKS,
    count_chunks,
    step_dense,
    sum_chunks,
    tiles_of_chunk,
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


_FOUR = np.uint64(4)

#: Rows of a tile: for d = 16 and ten fields, its arrays stay in the first-level cache.
FIELD_TILE = 32


class FieldTile(NamedTuple):
    """Working memory of a tile, for ``n`` = FIELD_TILE * d numbers of each of F fields.

    Number i * d + c belongs to row i. Fields without features make F as large as loops need.
    """

    matrix: np.ndarray  #: (F, F) float32, the weights of pairs of different fields, else 0
    own: np.ndarray  #: (F,) float32, the weights within the fields
    sums: np.ndarray  #: (F, n) float32, sums of x v
    reach: np.ndarray  #: (FIELD_TILE, F) float32, sums of |x|; -1 for fields without entries so far
    within: np.ndarray  #: (FIELD_TILE, F) float32, interactions within fields, without weights
    repeated: np.ndarray  #: (FIELD_TILE,) bool, whether rows have several entries of a field
    lines: np.ndarray  #: (2, n) float32, sums over the fields
    totals: np.ndarray  #: (2, FIELD_TILE) float32, scores, and bounds of their curvature
    products: np.ndarray  #: (F, F) float32, the gradient by the weights of different fields
    by_own: np.ndarray  #: (F,) float32, the gradient by the weights within fields


class FieldScratch(NamedTuple):
    """Working memory of training."""

    shared: Scratch
    tiles: FieldTile  #: of each thread, with a leading axis
    directions: np.ndarray  #: (F, n_rows * d) float32, T of each row of a batch's tiles
    by_pair: np.ndarray  #: (N_CHUNKS + 1, n_pairs) float32


class FieldScores(NamedTuple):
    """Working memory of scores."""

    tiles: FieldTile  #: of each thread, with a leading axis
    directions: np.ndarray  #: (size, F, n) float32, T of a tile's rows


@inlined
def tile_of(rank, tiles):
    """Return the working memory of a thread."""
    return FieldTile(
        tiles.matrix[rank],
        tiles.own[rank],
        tiles.sums[rank],
        tiles.reach[rank],
        tiles.within[rank],
        tiles.repeated[rank],
        tiles.lines[rank],
        tiles.totals[rank],
        tiles.products[rank],
        tiles.by_own[rank],
    )


@inlined
def _unpack(fields, tile):
    """Write the weights of pairs of fields as a matrix."""
    at = _ZERO
    for f in range(np.uint64(fields.n_fields)):
        tile.own[f] = tile.matrix[f, f] = ONE + fields.weights[at]
        at += _ONE
        for g in range(f + _ONE, np.uint64(fields.n_fields)):
            tile.matrix[f, g] = ONE + fields.weights[at]
            tile.matrix[g, f] = tile.matrix[f, g]
            at += _ONE


@inlined
def _fill(array, value):
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            array[i, j] = value


@inlined
def _add_entry(i, x, vector, f, tile):
    """Add an entry to its field in row ``i`` of the tile; return 1 if it is the first, else 0."""
    width, sums, size = np.uint64(vector.shape[0]), tile.sums[f], abs(x)
    first = i * width
    if tile.reach[i, f] < ZERO:
        tile.reach[i, f] = size
        for c in range(width):
            sums[first + c] = x * vector[c]
        return 1
    product = ZERO
    for c in range(width):
        term = x * vector[c]
        product += sums[first + c] * term
        sums[first + c] += term
    tile.within[i, f] += product
    tile.reach[i, f] += size
    return 0


@inlined
def _clear_absent(i, width, tile):
    """Write zeros as the sums of fields that row ``i`` of the tile does not hold."""
    for f in range(np.uint64(tile.reach.shape[1])):
        if tile.reach[i, f] < ZERO:
            tile.reach[i, f] = ZERO
            for c in range(i * width, (i + _ONE) * width):
                tile.sums[f, c] = ZERO


@inlined
def _sum_tile(first, n_rows, rows, weights, tile):
    """Write the sums of the fields of rows, their scores without interactions, and 1 + sum |x|."""
    factors, fields = weights.factors, weights.dense.fields
    last_entry = np.uint64(rows.token.shape[0] - 1)
    _fill(tile.within, ZERO)
    _fill(tile.reach, -ONE)
    for i in range(np.uint64(n_rows)):
        j = np.uint64(first) + i
        score, reach, n_held = weights.intercept[0], ONE, 0
        for p in range(np.uint64(rows.indptr[j]), np.uint64(rows.indptr[j + _ONE])):
            ahead = rows.token[min(p + ENTRIES_AHEAD, last_entry)]
            prefetch_row(factors, ahead)
            prefetch_element(weights.linear, ahead)
            k, x = np.uint64(rows.token[p]), rows.value[p]
            score += x * weights.linear[k]
            reach += abs(x)
            n_held += _add_entry(i, x, factors[k], np.uint64(fields[k]), tile)
        if n_held < weights.dense.n_fields:
            _clear_absent(i, np.uint64(factors.shape[1]), tile)
        tile.repeated[i] = n_held < rows.indptr[j + _ONE] - rows.indptr[j]
        tile.totals[0, i] = score
        tile.totals[1, i] = reach


@inlined
def _multiply(begin, tile, directions):
    """Write the matrix times the sums, in blocks of two rows and four columns of the matrix."""
    matrix, sums, n = tile.matrix, tile.sums, np.uint64(tile.lines.shape[1])
    n_fields, end = np.uint64(sums.shape[0]), begin + n
    for f in range(_ZERO, n_fields, _TWO):
        upper, lower = directions[f][begin:end], directions[f + _ONE][begin:end]
        above, below = matrix[f], matrix[f + _ONE]
        left, right = sums[0], sums[1]
        a0, a1, b0, b1 = above[0], above[1], below[0], below[1]
        for k in range(n):
            x0, x1 = left[k], right[k]
            upper[k] = a0 * x0 + a1 * x1
            lower[k] = b0 * x0 + b1 * x1
        for g in range(_TWO, n_fields, _FOUR):
            s0, s1, s2, s3 = sums[g], sums[g + _ONE], sums[g + _TWO], sums[g + _THREE]
            a0, a1, a2, a3 = above[g], above[g + _ONE], above[g + _TWO], above[g + _THREE]
            b0, b1, b2, b3 = below[g], below[g + _ONE], below[g + _TWO], below[g + _THREE]
            for k in range(n):
                x0, x1, x2, x3 = s0[k], s1[k], s2[k], s3[k]
                to_upper = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                to_lower = b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                upper[k] += to_upper
                lower[k] += to_lower


@inlined
def _interact(begin, tile, directions):
    """Write the sums of <S_f, T_f - R_ff S_f> and |T_f|^2 over all fields to ``lines``.

    They are still to be summed over each row's numbers.
    """
    products, squares, n = tile.lines[0], tile.lines[1], np.uint64(tile.lines.shape[1])
    end = begin + n
    for k in range(n):
        products[k] = ZERO
        squares[k] = ZERO
    for f in range(_ZERO, np.uint64(directions.shape[0]), _TWO):
        left, right = tile.sums[f], tile.sums[f + _ONE]
        upper, lower = directions[f][begin:end], directions[f + _ONE][begin:end]
        a, b = tile.own[f], tile.own[f + _ONE]
        for k in range(n):
            x, y = left[k], right[k]
            products[k] += x * (upper[k] - a * x) + y * (lower[k] - b * y)
        for k in range(n):
            squares[k] += upper[k] * upper[k] + lower[k] * lower[k]


@inlined
def _sum_squares(i, begin, width, tile, directions):
    """Return the sum of |x| |T_f|^2 over the fields of row ``i`` of the tile."""
    total = ZERO
    for f in range(np.uint64(directions.shape[0])):
        if tile.reach[i, f] > ZERO:
            direction, norm = directions[f][begin : begin + width], ZERO
            for c in range(width):
                norm += direction[c] * direction[c]
            total += tile.reach[i, f] * norm
    return total


@inlined
def _add_interactions(n_rows, n_fields, begin, tile, directions):
    """Add the interactions of a tile's rows to their scores, and the squares to the bounds."""
    products, squares = tile.lines[0], tile.lines[1]
    width = np.uint64(products.shape[0] // FIELD_TILE)
    for i in range(np.uint64(n_rows)):
        product, square = ZERO, ZERO
        for c in range(i * width, (i + _ONE) * width):
            product += products[c]
            square += squares[c]
        within, n_unequal, of_first = ZERO, 0, tile.reach[i, 0]
        for f in range(np.uint64(n_fields)):
            within += tile.own[f] * tile.within[i, f]
            n_unequal += tile.reach[i, f] != of_first
        if n_unequal == 0:
            # As in rows of one-hot encoded columns.
            square *= of_first
        else:
            square = _sum_squares(i, begin + i * width, width, tile, directions)
        tile.totals[0, i] += HALF * product + within
        tile.totals[1, i] += square


@inlined
def _score_tile(first, n_rows, begin, rows, weights, tile, directions):
    """Write the scores of rows to ``totals``, and T to ``directions``, from ``begin`` on."""
    _sum_tile(first, n_rows, rows, weights, tile)
    _multiply(begin, tile, directions)
    _interact(begin, tile, directions)
    _add_interactions(n_rows, weights.dense.n_fields, begin, tile, directions)


@inlined
def _add_products(first, n_rows, tile, derivatives):
    """Add what the weights of pairs multiply in a tile's rows, times the rows' derivatives.

    That is done in blocks of two rows and two columns of a matrix, of which the part above the
    diagonal is used.
    """
    scales, n_fields = tile.lines[0], np.uint64(tile.products.shape[0])
    upper, lower, products = tile.lines[1], tile.lines[2], tile.products
    width, n_rows = np.uint64(scales.shape[0] // FIELD_TILE), np.uint64(n_rows)
    n = n_rows * width
    for i in range(n_rows):
        derivative = np.float32(derivatives[np.uint64(first) + i])
        for c in range(width):
            scales[i * width + c] = derivative
        if tile.repeated[i]:
            for f in range(n_fields):
                tile.by_own[f] += derivative * tile.within[i, f]
    for f in range(_ZERO, n_fields, _TWO):
        above, below = tile.sums[f], tile.sums[f + _ONE]
        for k in range(n):
            upper[k] = scales[k] * above[k]
            lower[k] = scales[k] * below[k]
        product = ZERO
        for k in range(n):
            product += upper[k] * below[k]
        products[f, f + _ONE] += product
        for g in range(f + _TWO, n_fields, _TWO):
            left, right = tile.sums[g], tile.sums[g + _ONE]
            p00, p01, p10, p11 = ZERO, ZERO, ZERO, ZERO
            for k in range(n):
                p00 += upper[k] * left[k]
                p01 += upper[k] * right[k]
                p10 += lower[k] * left[k]
                p11 += lower[k] * right[k]
            products[f, g] += p00
            products[f, g + _ONE] += p01
            products[f + _ONE, g] += p10
            products[f + _ONE, g + _ONE] += p11


@inlined
def _pack(n_fields, tile, by_pair):
    """Write the gradient by the weights of pairs."""
    at = _ZERO
    for f in range(np.uint64(n_fields)):
        by_pair[at] = tile.by_own[f]
        at += _ONE
        for g in range(f + _ONE, np.uint64(n_fields)):
            by_pair[at] = tile.products[f, g]
            at += _ONE


@inlined
def _learn_chunk(c, part, objective, weights, batch, scratch):
    """Score and differentiate the rows of one chunk."""
    by_pair, shared, width = scratch.by_pair[c], scratch.shared, weights.factors.shape[1]
    tile, rows, n_fields = tile_of(part.rank, scratch.tiles), rows_of(batch), weights.dense.n_fields
    _fill(tile.products, ZERO)
    for f in range(tile.by_own.shape[0]):
        tile.by_own[f] = ZERO
    for number in range(*tiles_of_chunk(c, part.n_rows, FIELD_TILE)):
        first = number * FIELD_TILE
        n_rows = min(FIELD_TILE, part.n_rows - first)
        _score_tile(
            first, n_rows, np.uint64(first * width), rows, weights, tile, scratch.directions
        )
        for i in range(n_rows):
            shared.scores[np.uint64(first + i)] = tile.totals[0, i]
            shared.curvatures[np.uint64(first + i)] = tile.totals[1, i]
        differentiate(first, first + n_rows, objective, batch, shared)
        _add_products(first, n_rows, tile, shared.derivatives)
    _pack(n_fields, tile, by_pair)


@inlined
def _step_pairs(n_chunks, step, dense, by_pair):
    """Update the weights of pairs of fields; those that the batch holds keep their mean.

    A factor of all weights could be one of the vectors as well, on which there is a penalty: it
    would only escape from that.
    """
    pairs = _ZERO, np.uint64(by_pair.shape[1])
    sum_chunks(pairs, n_chunks, by_pair)
    gradient = by_pair[N_CHUNKS]
    total, n_held = ZERO, 0
    for k in range(*pairs):
        total += gradient[k]
        n_held += gradient[k] != ZERO
    mean = total / np.float32(max(n_held, 1))
    for k in range(*pairs):
        gradient[k] -= mean if gradient[k] != ZERO else ZERO
    step_dense(pairs, step, dense, gradient)


@inlined
def _step_dense_factors(tokens, rank, step, rule, weights, state, batch, scratch):
    """Update the factors of some tokens."""
    factors, width = weights.factors, weights.factors.shape[1]
    tables, own = (factors, state.factors_first, state.factors_second), scratch.tiles.own[rank]
    n_rows = scratch.directions.shape[1] // width
    for t in range(*tokens):
        prefetch_vectors(t, batch, factors, state)
        field = np.uint64(weights.dense.fields[np.uint64(batch.tokens[t])])
        along = Along(scratch.directions[field].reshape(n_rows, width), own[field])
        step_vector(t, rank, along, step, rule, tables, batch, scratch.shared)


@kernel
def fwfm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem : Problem
    span : BatchRange
    weights : FMWeights, with FieldWeights as dense ones.
    state : DenseState
    scratch : FieldScratch
    """
    member, order = Member(rank, size, barrier), order_of_epoch(problem.rows, span.epoch)
    loss, objective = span.loss, problem.objective
    for b in range(span.first_batch, span.last_batch):
        part, batch = next_batch(b, member, problem, span, order, scratch.shared.prepared)
        n_chunks = count_chunks(part.n_rows, FIELD_TILE)
        _unpack(weights.dense, tile_of(rank, scratch.tiles))
        for c in range(rank, n_chunks, size):
            _learn_chunk(c, part, objective, weights, batch, scratch)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(
            number, span.share, part, problem, weights, state.tokens, batch, scratch.shared
        )
        loss += of_batch
        if rank == 0:
            _step_pairs(n_chunks, step, state.dense, scratch.by_pair)
        _step_dense_factors(tokens, rank, step, problem.rule, weights, state.tokens, batch, scratch)
    return loss


@kernel
def fwfm_score(rank, size, barrier, rows, weights, scratch, scores):
    """Write the scores of CSR rows, tile by tile; ``scratch`` is a FieldScores.

    Zeros fill the last tile, so that no score depends on how many rows there are.
    """
    tile, directions = tile_of(rank, scratch.tiles), scratch.directions[rank]
    n_rows = scores.shape[0]
    _unpack(weights.dense, tile)
    n_tiles = (n_rows + FIELD_TILE - 1) // FIELD_TILE
    for number in range(n_tiles * rank // size, n_tiles * (rank + 1) // size):
        first = number * FIELD_TILE
        n_in_tile = min(FIELD_TILE, n_rows - first)
        _score_tile(first, n_in_tile, _ZERO, rows, weights, tile, directions)
        for i in range(n_in_tile):
            scores[np.uint64(first + i)] = tile.totals[0, i]
