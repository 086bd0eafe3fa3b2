"""Field-weighted factorization machines (Pan et al., 2018): training and scores.

With S_f the sum of x v over the entries of field f of a row, and R the weights of pairs of fields,
the interactions of a row are, over its pairs of fields f < g and its pairs of entries i < j, ::

    sum_{f<g} R_fg <S_f, S_g>  +  sum_f R_ff sum_{i<j in f} <x_i v_i, x_j v_j>.

Their derivative by x_k v_k, for k in field f, is T_f - R_ff x_k v_k, where T = R S; and that by a
weight is what it multiplies. So a row of F fields takes O(F^2 d), whatever the number of entries.

A batch passes the stages of ``deep``. In a tile, the vectors of a field stand side by side, so that
the loops of these products are long.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import prefetch_element, prefetch_row
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
)
from freqfm.backends.cpu.fm.dense import (
    N_CHUNKS,
    count_chunks,
    step_dense,
    sum_chunks,
    tiles_of_chunk,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize

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
