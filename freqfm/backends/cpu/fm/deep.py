"""Factorization machines with dense weights, and with a tower of layers: training and scores.

Dense weights of a factorization machine, which every row uses, and their steps.

A batch's rows are cut into tiles, and the tiles into chunks; each chunk has a gradient of its own,
which one thread sums up. Then each thread takes some blocks of the weights, adds up their gradients
over the chunks, and steps them. Tiles, chunks and blocks depend on the batch alone, so results are
the same for any number of threads.

Factorization machines with a tower of dense layers: mini-batch training and scores.

The tower's input is, for every row, the sums of x v of each field side by side, or without fields
the pooled interactions, ((sum of x v)^2 - sum of (x v)^2) / 2 column by column.

A batch passes two stages, and threads wait for each other between them:

1. Rows are scored and differentiated in tiles, by matrix products; each thread takes some chunks of
   tiles. That leaves the gradient by the tower for each chunk, and what tokens need for each row.
2. Each thread takes a part of the tokens, sums their gradients and steps their weights; and some
   blocks of the tower's weights, whose gradients it sums over the chunks.

Tiles, chunks and blocks depend on the batch alone, so results are the same for any number of
threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.base import UpdateRule
from freqfm.backends.cpu.fm.batch import (
    Scratch,
    differentiate,
    linear_part,
    move_vector,
    next_batch,
    prefetch_vectors,
    rows_of,
    step_scalars,
    sum_row,
)
from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.formulas.codes import LEARNING_RATE, STEP_ADAM, STEP_CUSTOM
from freqfm.formulas.rng import hash64, stream_key
from freqfm.formulas.steps import layer_corrections, step_layer

_ZERO, _ONE = np.uint64(0), np.uint64(1)

#: The tiles of a batch are cut into at most this many chunks.
N_CHUNKS = 16

#: Weights that a thread steps at a time.
_BLOCK = 1024


class DenseWeights(NamedTuple):
    """How dense weights move."""

    table: np.ndarray  #: (1, n_weights)
    penalties: np.ndarray  #: (n_weights,), float32, for each unit of the rows' weight
    first: np.ndarray  #: (1, n_weights) or empty, optimizer state
    second: np.ndarray  #: the same
    rule: UpdateRule
    dropouts: np.ndarray  #: (n_layers + 1,), of the input and of every layer's values, float32


class DenseState(NamedTuple):
    """State that the training of an output updates, besides its factorization machine's weights."""

    tokens: tuple  #: OptimizerState of the factorization machine
    dense: DenseWeights


@inlined
def count_chunks(n_rows, tile):
    """Return into how many chunks the tiles of a batch are cut, for tiles of ``tile`` rows."""
    return min((n_rows + tile - 1) // tile, N_CHUNKS)


@inlined
def tiles_of_chunk(c, n_rows, tile):
    """Return the numbers of the first tile of a chunk, and of the one after the last."""
    n_tiles, n_chunks = (n_rows + tile - 1) // tile, count_chunks(n_rows, tile)
    return n_tiles * c // n_chunks, n_tiles * (c + 1) // n_chunks


@inlined
def sum_chunks(cells, n_chunks, gradients):
    """Sum the gradients of chunks by some weights, in the last row of (N_CHUNKS + 1, n_weights)."""
    total = gradients[N_CHUNKS]
    for f in range(*cells):
        total[f] = ZERO
    for c in range(n_chunks):
        for f in range(*cells):
            total[f] += gradients[c, f]


@inlined
def step_dense(cells, step, dense, gradient):
    """Step some weights by their gradient, to which the penalty is added."""
    rule = dense.rule
    rate = rule.hyper[LEARNING_RATE] * step.share
    root_correction = ONE
    if rule.step_code == STEP_ADAM or rule.step_code == STEP_CUSTOM:
        correction, root = layer_corrections(rule.hyper, step.number)
        rate /= correction
        root_correction = np.float32(root)
    scale = np.float32(step.mean if rule.average else 1.0)
    begin, end = cells
    for f in range(begin, end):
        penalty = np.float32(step.weight * dense.penalties[f])
        gradient[f] = scale * (gradient[f] + penalty * dense.table[0, f])
    step_layer(
        rule, np.float32(rate), root_correction, dense.table, (_ZERO, begin, end), gradient,
        dense.first, dense.second,
    )  # fmt: skip


@inlined
def step_blocks(part, n_chunks, step, dense, gradients):
    """Step the blocks of weights that are this thread's."""
    n_weights = gradients.shape[1]
    for first in range(_BLOCK * part.rank, n_weights, _BLOCK * part.size):
        cells = np.uint64(first), np.uint64(min(first + _BLOCK, n_weights))
        sum_chunks(cells, n_chunks, gradients)
        step_dense(cells, step, dense, gradients[N_CHUNKS])


#: Rows of one matrix product.
TILE = 64

# Dropout uses 16 bits of a hash for each value, so a hash serves four values.
_BITS, _LOW_BITS, _LEVELS, _LANES = np.uint64(16), np.uint64(0xFFFF), 65536.0, 4

# The random stream of dropout, see ``base.Stream``.
_OF_DROPOUT = 1


class Dropout(NamedTuple):
    """Which values of a batch's rows are dropped."""

    rates: np.ndarray  #: (n_layers + 1,), of the input and of every layer's values, float32
    key: int  #: of the epoch's random stream
    first: int  #: where in the epoch the rows begin


class ScoreScratch(NamedTuple):
    """Working memory of scores."""

    sums: np.ndarray  #: (2, size, d or more), float32
    values: np.ndarray  #: (size, n_layers + 1, TILE, widest), float32
    no_dropout: np.ndarray  #: (n_layers + 1,), float32, zeros


class Tiles(NamedTuple):
    """Working memory of a tile, for each thread."""

    values: np.ndarray  #: (size, n_layers + 1, TILE, widest), float32, of the input and the layers
    deltas: np.ndarray  #: (size, 2, TILE, widest), float32, derivatives of the tower's score


class DeepScratch(NamedTuple):
    """Working memory of training."""

    shared: Scratch
    tiles: Tiles
    #: (batch_size, n_inputs + d) float32: derivatives of the loss by x v, for each field, and in
    #: the last d columns what an occurrence multiplies its own x v by.
    gradients: np.ndarray
    by_tower: np.ndarray  #: (N_CHUNKS + 1, n_weights), float32; the last row is their sum


@inlined
def _layer_start(number, widths):
    """Return where in the tower's weights a layer begins."""
    start = 0
    for layer in range(number):
        start += (widths[layer] + 1) * widths[layer + 1]
    return start


@inlined
def _matrix(number, widths, weights):
    """Return the weights of a layer without its biases, and where the biases begin."""
    start = _layer_start(number, widths)
    n_in, n_out = widths[number], widths[number + 1]
    return weights[start : start + n_in * n_out].reshape(n_in, n_out), start + n_in * n_out


@inlined
def _drop(n_rows, level, width, dropout, values):
    """Drop values of a level: multiply them by zero, or by 1 / (1 - rate)."""
    rate = dropout.rates[level]
    if rate == ZERO:
        return
    threshold = np.uint64(rate * _LEVELS)
    kept = ONE / (ONE - rate)
    n_levels = dropout.rates.shape[0]
    for i in range(n_rows):
        key = hash64(dropout.key + np.uint64((dropout.first + i) * n_levels + level))
        for start in range(0, width, _LANES):
            bits = hash64(key + np.uint64(start))
            for f in range(start, min(start + _LANES, width)):
                values[i, f] *= kept if (bits & _LOW_BITS) >= threshold else ZERO
                bits >>= _BITS


# Forward.


@inlined
def _score_row(i, rows, weights, sums, squares):
    """Write a row's sums of x v and (x v)^2; return its score without the tower, 1 + sum of |x|."""
    score, _, reach = sum_row(i, rows, weights, sums, squares)
    if not weights.dense.pairs:
        score, _ = linear_part(i, rows, weights)
    return score, reach


@inlined
def _write_input(i, rows, weights, sums, squares, values):
    """Write the tower's input for row ``i``, whose sums of x v and (x v)^2 are given."""
    factors, width = weights.factors, np.uint64(weights.factors.shape[1])
    tower = weights.dense
    if tower.fields.shape[0] == 0:
        for f in range(width):
            values[f] = HALF * (sums[f] * sums[f] - squares[f])
        return
    for f in range(tower.widths[0]):
        values[f] = ZERO
    for p in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
        k, x = np.uint64(rows.token[p]), rows.value[p]
        begin = np.uint64(tower.fields[k]) * width
        for f in range(width):
            values[begin + f] += x * factors[k, f]


@inlined
def _forward(n_rows, tower, dropout, values):
    """Compute the values of all layers for the first ``n_rows`` rows of a tile."""
    widths = tower.widths
    n_layers = widths.shape[0] - 1
    _drop(n_rows, 0, widths[0], dropout, values[0])
    for layer in range(n_layers):
        matrix, biases = _matrix(layer, widths, tower.weights)
        add_product(values[layer][:n_rows], matrix, values[layer + 1][:n_rows], ZERO)
        for j in range(n_rows):
            for f in range(widths[layer + 1]):
                value = values[layer + 1, j, f] + tower.weights[np.uint64(biases + f)]
                # NaN stays NaN, so that divergence shows.
                values[layer + 1, j, f] = ZERO if value <= ZERO else value
        _drop(n_rows, layer + 1, widths[layer + 1], dropout, values[layer + 1])


@inlined
def _add_scores(first, n_rows, tower, values, scores):
    """Add the tower's scores to those of the rows of a tile, from row ``first`` on."""
    n_layers = tower.widths.shape[0] - 1
    last = _layer_start(n_layers, tower.widths)
    for j in range(n_rows):
        score = ZERO
        for f in range(tower.widths[n_layers]):
            score += values[n_layers, j, f] * tower.weights[last + f]
        scores[first + j] += score


# Backward.


@inlined
def _scale_rows(first, n_rows, width, delta, derivatives, sums):
    """Multiply the rows of a tile by the derivatives of their losses, and add them up."""
    for i in range(n_rows):
        derivative = np.float32(derivatives[first + i])
        for f in range(width):
            delta[i, f] *= derivative
            sums[f] += delta[i, f]


@inlined
def _backward(first, n_rows, tower, dropout, tile, derivatives, by_tower):
    """Add the gradient by the tower; leave that of its score by its input in ``deltas[0]``."""
    values, widths = tile.values, tower.widths
    n_layers = widths.shape[0] - 1
    last, n_out = _layer_start(n_layers, widths), widths[n_layers]
    delta, kept = tile.deltas[n_layers & 1], ONE / (ONE - dropout.rates[n_layers])
    for i in range(n_rows):
        derivative = np.float32(derivatives[first + i])
        for f in range(n_out):
            value, at = values[n_layers, i, f], np.uint64(last + f)
            by_tower[at] += derivative * value
            # Dropped values are zero too.
            delta[i, f] = kept * tower.weights[at] if value > ZERO else ZERO
    for step in range(n_layers):
        layer = n_layers - 1 - step
        n_in, n_out = widths[layer], widths[layer + 1]
        delta, below = tile.deltas[(layer + 1) & 1], tile.deltas[layer & 1]
        matrix, biases = _matrix(layer, widths, tower.weights)
        product_with_transposed(delta[:n_rows, :n_out], matrix, below[:n_rows])
        if layer > 0:
            kept = ONE / (ONE - dropout.rates[layer])
            for i in range(n_rows):
                for f in range(n_in):
                    below[i, f] = kept * below[i, f] if values[layer, i, f] > ZERO else ZERO
        else:
            _drop(n_rows, 0, n_in, dropout, below)
        _scale_rows(first, n_rows, n_out, delta, derivatives, by_tower[biases : biases + n_out])
        by_matrix, _ = _matrix(layer, widths, by_tower)
        add_product_of_transposed(
            values[layer][:n_rows, :n_in], delta[:n_rows, :n_out], by_matrix, ONE
        )


@inlined
def _differentiate_row(i, j, tower, inner, scratch):
    """Write what tokens need of row ``i`` of a tile; return a squared norm.

    It is the largest of any field's derivatives of the score by x v, of which ``fm`` has one.
    Without fields, the input depends on the sums of x v of all columns, and on each x v itself.
    """
    sums, gradients = scratch.shared.sums[0, j], scratch.gradients
    derivative = np.float32(scratch.shared.derivatives[j])
    pooled, n_fields = tower.n_fields == 0, np.uint64(max(tower.n_fields, 1))
    n_inputs = np.uint64(tower.widths[0])
    width = n_inputs // n_fields
    of_pairs = ONE if tower.pairs else ZERO
    largest = ZERO
    for field in range(n_fields):
        norm = ZERO
        for f in range(width):
            at = field * width + f
            total = inner[i, at] * (sums[f] if pooled else ONE) + of_pairs * sums[f]
            norm += total * total
            gradients[j, at] = derivative * total
        largest = max(largest, norm)
    for f in range(width):
        factor = of_pairs + inner[i, f] if pooled else of_pairs
        gradients[j, n_inputs + f] = derivative * factor
    return largest


@inlined
def _learn_tile(tile_rows, rank, objective, weights, of_batch, batch, by_tower, scratch):
    """Score and differentiate a tile of rows: where it begins in the batch, and how many."""
    first, n_rows = tile_rows
    tower, dropout = weights.dense, Dropout(of_batch.rates, of_batch.key, of_batch.first + first)
    shared, rows, squares = scratch.shared, rows_of(batch), scratch.shared.squares[rank]
    tile = Tiles(scratch.tiles.values[rank], scratch.tiles.deltas[rank])
    for i in range(n_rows):
        j = np.uint64(first + i)
        sums = shared.sums[0, j]
        shared.scores[j], shared.curvatures[j] = _score_row(j, rows, weights, sums, squares)
        _write_input(j, rows, weights, sums, squares, tile.values[0, i])
    _forward(n_rows, tower, dropout, tile.values)
    _add_scores(first, n_rows, tower, tile.values, shared.scores)
    differentiate(first, first + n_rows, objective, batch, shared)
    _backward(first, n_rows, tower, dropout, tile, shared.derivatives, by_tower)
    for i in range(n_rows):
        j = first + i
        shared.curvatures[j] *= ONE + _differentiate_row(i, j, tower, tile.deltas[0], scratch)


@inlined
def _learn_chunk(c, part, objective, weights, dropout, batch, scratch):
    """Score and differentiate the rows of one chunk."""
    by_tower, n_rows = scratch.by_tower[c], part.n_rows
    for f in range(by_tower.shape[0]):
        by_tower[f] = ZERO
    for number in range(*tiles_of_chunk(c, n_rows, TILE)):
        first = number * TILE
        tile_rows = first, min(TILE, n_rows - first)
        _learn_tile(tile_rows, part.rank, objective, weights, dropout, batch, by_tower, scratch)


# Steps.


@inlined
def _sum_gradient(t, penalty, vector, columns, scratch, batch, total):
    """Write the gradient by a token's vector, from two parts of ``gradients`` that begin there."""
    width, (first, second) = np.uint64(vector.shape[0]), columns
    for f in range(width):
        total[f] = penalty * vector[f]
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        of_row, x = scratch.gradients[np.uint64(batch.rows[p])], np.float64(batch.values[p])
        for f in range(width):
            total[f] += x * (of_row[first + f] - x * of_row[second + f] * vector[f])


@inlined
def _step_tokens(tokens, rank, step, rule, weights, state, batch, scratch):
    """Update the factors of some tokens."""
    factors, fields, shared = weights.factors, weights.dense.fields, scratch.shared
    tables = state.factors_first, state.factors_second
    total, gradient = shared.totals[rank], shared.gradients[rank]
    for t in range(*tokens):
        prefetch_vectors(t, batch, factors, state)
        rate, penalty, k = shared.rates[t], shared.penalties[t], np.uint64(batch.tokens[t])
        if math.isnan(rate):
            continue
        field = np.uint64(fields[k]) if fields.shape[0] > 0 else _ZERO
        columns = field * np.uint64(factors.shape[1]), np.uint64(weights.dense.widths[0])
        _sum_gradient(t, penalty, factors[k], columns, scratch, batch, total)
        move_vector(k, rate, step, rule, factors, tables, total, gradient)


@kernel
def deepfm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem : Problem
    span : BatchRange
    weights : FMWeights
    state : DenseState
    scratch : DeepScratch
    """
    member, rows, layers = Member(rank, size, barrier), problem.rows, state.dense
    order = order_of_epoch(rows, span.epoch)
    key = hash64(stream_key(rows.seed, span.epoch) + np.uint64(_OF_DROPOUT))
    loss, objective = span.loss, problem.objective
    for b in range(span.first_batch, span.last_batch):
        part, batch = next_batch(b, member, problem, span, order, scratch.shared.prepared)
        n_chunks = count_chunks(part.n_rows, TILE)
        dropout = Dropout(layers.dropouts, key, part.start)
        for c in range(rank, n_chunks, size):
            _learn_chunk(c, part, objective, weights, dropout, batch, scratch)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        of_batch, step, tokens = step_scalars(
            number, span.share, part, problem, weights, state.tokens, batch, scratch.shared
        )
        loss += of_batch
        step_blocks(part, n_chunks, step, layers, scratch.by_tower)
        _step_tokens(tokens, rank, step, problem.rule, weights, state.tokens, batch, scratch)
    return loss


@kernel
def deepfm_score(rank, size, barrier, rows, weights, scratch, scores):
    """Write the scores of CSR rows, tile by tile; ``scratch`` is a ScoreScratch.

    Old rows fill the last tile, so that no score depends on how many rows there are. BLAS rounds a
    row by its place in the tile, though.
    """
    tower, dropout = weights.dense, Dropout(scratch.no_dropout, _ZERO, 0)
    sums, squares, values = scratch.sums[0, rank], scratch.sums[1, rank], scratch.values[rank]
    n_rows = scores.shape[0]
    n_tiles = (n_rows + TILE - 1) // TILE
    for number in range(n_tiles * rank // size, n_tiles * (rank + 1) // size):
        first = number * TILE
        n_in_tile = min(TILE, n_rows - first)
        for i in range(n_in_tile):
            j = np.uint64(first + i)
            scores[j], _ = _score_row(j, rows, weights, sums, squares)
            _write_input(j, rows, weights, sums, squares, values[0, i])
        _forward(TILE, tower, dropout, values)
        _add_scores(first, n_in_tile, tower, values, scores)
