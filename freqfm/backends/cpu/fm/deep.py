"""Factorization machines with a tower of dense layers: mini-batch training and scores.

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
from freqfm._numba.prefetch import prefetch_element, prefetch_row
from freqfm.backends.base import FMWeights, Tower, UpdateRule
from freqfm.backends.cpu.fm.batch import (
    Gradient,
    begin_step,
    differentiate,
    next_batch,
    own_factor,
    own_tokens,
    part_of_batch,
    round_gradient,
    step_intercept,
    step_scalars,
    sum_of_rows,
)
from freqfm.backends.cpu.fm.prepared import PreparedBatches, order_of_epoch
from freqfm.backends.cpu.team import Member, synchronize
from freqfm.backends.cpu.vectors import add_multiple
from freqfm.formulas.codes import LEARNING_RATE, STEP_ADAM, STEP_CUSTOM
from freqfm.formulas.rng import hash64, stream_key
from freqfm.formulas.steps import layer_corrections, step_layer, step_row

_ZERO, _ONE = np.uint64(0), np.uint64(1)

#: Rows of one matrix product.
TILE = 64

#: The tiles of a batch are cut into at most this many chunks, each with a gradient by the tower.
N_CHUNKS = 16

#: Weights of the tower that a thread steps at a time.
BLOCK = 1024

# Dropout uses 16 bits of a hash for each value, so a hash serves four values.
_BITS, _LOW_BITS, _LEVELS, _LANES = np.uint64(16), np.uint64(0xFFFF), 65536.0, 4

# The random stream of dropout, see ``base.Stream``.
_OF_DROPOUT = 1

# How many entries and tokens ahead vectors are prefetched.
_ENTRIES_AHEAD = np.uint64(32)
_TOKENS_AHEAD = np.uint64(16)


class Layers(NamedTuple):
    """The tower of one output, and how its weights move."""

    tower: Tower
    table: np.ndarray  #: (1, n_weights), the tower's weights
    penalties: np.ndarray  #: (n_weights,), float32, for each unit of the rows' weight
    first: np.ndarray  #: (1, n_weights) or empty, optimizer state
    second: np.ndarray  #: the same
    rule: UpdateRule
    dropouts: np.ndarray  #: (n_layers + 1,), of the input and of every layer's values, float32


class DeepState(NamedTuple):
    """What training an output updates beside the weights of its factorization machine."""

    tokens: tuple  #: OptimizerState of the factorization machine
    layers: Layers


class Dropout(NamedTuple):
    """Which values of a batch's rows are dropped."""

    rates: np.ndarray  #: (n_layers + 1,), of the input and of every layer's values, float32
    key: int  #: of the epoch's random stream
    first: int  #: where in the epoch the rows begin


class Model(NamedTuple):
    """What scores rows."""

    weights: FMWeights
    tower: Tower
    dropout: Dropout


class Tiles(NamedTuple):
    """Working memory of a tile, for each thread."""

    values: np.ndarray  #: (size, n_layers + 1, TILE, widest), float32, of the input and the layers
    deltas: np.ndarray  #: (size, 2, TILE, widest), float32, derivatives of the tower's score
    sums: np.ndarray  #: (size, TILE, d), float32, of x v
    squares: np.ndarray  #: (size, TILE, d), float32, sums of (x v)^2
    scores: np.ndarray  #: (size, TILE), float32
    reaches: np.ndarray  #: (size, TILE), float32, one plus the sum of |x|


class DeepScratch(NamedTuple):
    """Working memory of training."""

    prepared: PreparedBatches
    tiles: Tiles
    #: (batch_size, width) float32: derivatives of the loss by x v. With fields they are those of
    #: the fields side by side. Without fields, the second half of the columns is what an
    #: occurrence multiplies its own x v by.
    gradients: np.ndarray
    scores: np.ndarray  #: (batch_size,), float32
    losses: np.ndarray  #: (batch_size,), float64, weighted
    derivatives: np.ndarray  #: (batch_size,), float64, of the weighted loss by the score
    curvatures: np.ndarray  #: (batch_size,), float64, as in ``fm``
    by_tower: np.ndarray  #: (N_CHUNKS + 1, n_weights), float32; the last row is their sum
    penalties: np.ndarray  #: (listed,), float64, of a token's factors
    rates: np.ndarray  #: (listed,), float32, NaN where a token is left alone
    totals: np.ndarray  #: (size, d or more), float64
    of_token: np.ndarray  #: (size, d or more), float32


@inlined
def _tile_of(rank, tiles):
    """Return the working memory of one thread."""
    return Tiles(
        tiles.values[rank],
        tiles.deltas[rank],
        tiles.sums[rank],
        tiles.squares[rank],
        tiles.scores[rank],
        tiles.reaches[rank],
    )


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
def _begin_row(j, weights, tower, tile):
    """Set row ``j`` of a tile to a row without entries."""
    tile.scores[j] = weights.intercept[0]
    tile.reaches[j] = ONE
    for f in range(weights.factors.shape[1]):
        tile.sums[j, f] = ZERO
        tile.squares[j, f] = ZERO
    for f in range(tower.widths[0]):
        tile.values[0, j, f] = ZERO


@inlined
def _add_entry(j, k, x, weights, tower, tile):
    """Add an entry to row ``j`` of a tile."""
    factors, sums, squares, values = weights.factors, tile.sums, tile.squares, tile.values
    tile.scores[j] += x * weights.linear[k]
    tile.reaches[j] += abs(x)
    width = np.uint64(factors.shape[1])
    if tower.fields.shape[0] > 0:
        begin = np.uint64(tower.fields[k]) * width
        for f in range(width):
            term = x * factors[k, f]
            sums[j, f] += term
            squares[j, f] += term * term
            values[0, j, begin + f] += term
    else:
        for f in range(width):
            term = x * factors[k, f]
            sums[j, f] += term
            squares[j, f] += term * term


@inlined
def _end_row(j, tower, tile):
    """Add the interactions to the score of a row; without fields they are the tower's input."""
    sums, squares, values = tile.sums, tile.squares, tile.values
    total = ZERO
    if tower.fields.shape[0] > 0:
        for f in range(sums.shape[1]):
            total += sums[j, f] * sums[j, f] - squares[j, f]
    else:
        for f in range(sums.shape[1]):
            pairs = HALF * (sums[j, f] * sums[j, f] - squares[j, f])
            values[0, j, f] = pairs
            total += pairs + pairs
    tile.scores[j] += HALF * total


@inlined
def _forward(n_rows, tower, dropout, tile):
    """Add the tower's scores to those of the first ``n_rows`` rows of a tile."""
    values, widths = tile.values, tower.widths
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
    last = _layer_start(n_layers, widths)
    for j in range(n_rows):
        score = ZERO
        for f in range(widths[n_layers]):
            score += values[n_layers, j, f] * tower.weights[last + f]
        tile.scores[j] += score


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
def _by_fields(i, j, tower, tile, scratch):
    """Write the gradient by the sums of fields of row ``i`` of a tile; return a squared norm.

    It is the largest of any field's derivatives of the score by x v, of which ``fm`` has one.
    """
    sums, inner, gradients = tile.sums, tile.deltas[0], scratch.gradients
    width = sums.shape[1]
    derivative = np.float32(scratch.derivatives[j])
    largest = ZERO
    for field in range(tower.n_fields):
        norm = ZERO
        for f in range(width):
            total = sums[i, f] + inner[i, field * width + f]
            norm += total * total
            gradients[j, field * width + f] = derivative * total
        largest = max(largest, norm)
    return largest


@inlined
def _by_pairs(i, j, tile, scratch):
    """Do what ``_by_fields`` does without fields."""
    sums, inner, gradients = tile.sums, tile.deltas[0], scratch.gradients
    width = sums.shape[1]
    derivative = np.float32(scratch.derivatives[j])
    norm = ZERO
    for f in range(width):
        factor = ONE + inner[i, f]
        total = factor * sums[i, f]
        norm += total * total
        gradients[j, f] = derivative * total
        gradients[j, width + f] = derivative * factor
    return norm


@inlined
def _learn_tile(first, n_rows, loss_code, model, batch, tile, by_tower, scratch):
    """Score and differentiate a tile of rows, from row ``first`` of the batch on."""
    weights, tower, of_batch = model
    dropout = Dropout(of_batch.rates, of_batch.key, of_batch.first + first)
    last_entry = np.uint64(batch.row_starts[first + n_rows] - 1)
    for i in range(n_rows):
        _begin_row(i, weights, tower, tile)
        j = first + i
        for p in range(np.uint64(batch.row_starts[j]), np.uint64(batch.row_starts[j + 1])):
            ahead = np.uint64(batch.entry_tokens[min(p + _ENTRIES_AHEAD, last_entry)])
            prefetch_row(weights.factors, ahead)
            prefetch_element(weights.linear, ahead)
            k = np.uint64(batch.entry_tokens[p])
            _add_entry(i, k, batch.entry_values[p], weights, tower, tile)
        _end_row(i, tower, tile)
    _forward(n_rows, tower, dropout, tile)
    for i in range(n_rows):
        scratch.scores[first + i] = tile.scores[i]
        scratch.curvatures[first + i] = tile.reaches[i]
    differentiate(first, first + n_rows, loss_code, batch, scratch)
    _backward(first, n_rows, tower, dropout, tile, scratch.derivatives, by_tower)
    for i in range(n_rows):
        j = first + i
        if tower.fields.shape[0] > 0:
            norm = _by_fields(i, j, tower, tile, scratch)
        else:
            norm = _by_pairs(i, j, tile, scratch)
        scratch.curvatures[j] *= ONE + norm


@inlined
def _count_chunks(n_rows):
    """Return into how many chunks the tiles of a batch are cut."""
    return min((n_rows + TILE - 1) // TILE, N_CHUNKS)


@inlined
def _learn_chunk(c, rank, n_rows, loss_code, model, batch, scratch):
    """Score and differentiate the rows of one chunk."""
    by_tower = scratch.by_tower[c]
    for f in range(by_tower.shape[0]):
        by_tower[f] = ZERO
    tile = _tile_of(rank, scratch.tiles)
    n_tiles, n_chunks = (n_rows + TILE - 1) // TILE, _count_chunks(n_rows)
    for number in range(n_tiles * c // n_chunks, n_tiles * (c + 1) // n_chunks):
        first = number * TILE
        n = min(TILE, n_rows - first)
        _learn_tile(first, n, loss_code, model, batch, tile, by_tower, scratch)


# Steps.


@inlined
def _sum_pairs(t, penalty, vector, gradients, batch, total):
    """Write the gradient by a token's vector, from the pooled interactions."""
    width = np.uint64(vector.shape[0])
    for f in range(width):
        total[f] = penalty * vector[f]
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        of_row, x = gradients[np.uint64(batch.rows[p])], np.float64(batch.values[p])
        for f in range(width):
            total[f] += x * (of_row[f] - x * of_row[width + f] * vector[f])


@inlined
def _sum_field(t, factor, vector, columns, gradients, batch, total):
    """Do what ``_sum_pairs`` does with fields; ``columns`` are those of the token's field."""
    for f in range(vector.shape[0]):
        total[f] = factor * vector[f]
    for p in range(np.uint64(batch.starts[t]), np.uint64(batch.starts[t + _ONE])):
        of_field = gradients[np.uint64(batch.rows[p]), columns[0] : columns[1]]
        add_multiple(np.float64(batch.values[p]), of_field, total)


@inlined
def _step_tokens(tokens, step, rule, model, state, batch, scratch, gradient):
    """Update the factors of some tokens."""
    factors, fields = model.weights.factors, model.tower.fields
    width, total = np.uint64(factors.shape[1]), gradient.total
    last = np.uint64(batch.n_tokens[0] - 1)
    for t in range(*tokens):
        ahead = batch.tokens[min(t + _TOKENS_AHEAD, last)]
        prefetch_row(factors, ahead)
        prefetch_row(state.factors_first, ahead)
        prefetch_row(state.factors_second, ahead)
        rate, penalty, k = scratch.rates[t], scratch.penalties[t], np.uint64(batch.tokens[t])
        if math.isnan(rate):
            continue
        if fields.shape[0] > 0:
            factor = own_factor(t, penalty, scratch.derivatives, batch)
            columns = np.uint64(fields[k]) * width, (np.uint64(fields[k]) + _ONE) * width
            _sum_field(t, factor, factors[k], columns, scratch.gradients, batch, total)
        else:
            _sum_pairs(t, penalty, factors[k], scratch.gradients, batch, total)
        round_gradient(width, step.scale, gradient)
        step_row(
            rule, rate, step.root_correction, factors, k, gradient.scaled, state.factors_first,
            state.factors_second,
        )  # fmt: skip


@inlined
def _step_tower(rank, size, number, part, objective, layers, weight, by_tower):
    """Step the blocks of the tower's weights that are this thread's."""
    rule = layers.rule
    n_weights, n_chunks = by_tower.shape[1], _count_chunks(part.n_rows)
    rate = rule.hyper[LEARNING_RATE]
    root_correction = ONE
    if rule.step_code == STEP_ADAM or rule.step_code == STEP_CUSTOM:
        correction, root = layer_corrections(rule.hyper, number)
        rate /= correction
        root_correction = np.float32(root)
    scale = 1.0 / (part.n_rows * objective.mean_weight) if rule.average else 1.0
    gradient = by_tower[N_CHUNKS]
    for first in range(BLOCK * rank, n_weights, BLOCK * size):
        begin, end = np.uint64(first), np.uint64(min(first + BLOCK, n_weights))
        for f in range(begin, end):
            gradient[f] = np.float32(weight * layers.penalties[f]) * layers.table[0, f]
        for c in range(n_chunks):
            for f in range(begin, end):
                gradient[f] += by_tower[c, f]
        for f in range(begin, end):
            gradient[f] *= np.float32(scale)
        step_layer(
            rule, np.float32(rate), root_correction, layers.table, (_ZERO, begin, end), gradient,
            layers.first, layers.second,
        )  # fmt: skip


@kernel
def deepfm_train(rank, size, barrier, problem, span, weights, state, scratch):
    """Train on some batches of an epoch; return their loss.

    Arguments
    ---------
    problem : Problem
    span : BatchRange
    weights : FMWeights
    state : DeepState
    scratch : DeepScratch
    """
    member = Member(rank, size, barrier)
    rows, layers = problem.rows, state.layers
    order = order_of_epoch(rows, span.epoch)
    key = hash64(stream_key(rows.seed, span.epoch) + np.uint64(_OF_DROPOUT))
    loss = span.loss
    for b in range(span.first_batch, span.last_batch):
        part = part_of_batch(b, rank, size, rows)
        batch = next_batch(b, member, problem, span, order, scratch.prepared)
        n_rows, code = part.n_rows, problem.objective.loss_code
        model = Model(weights, layers.tower, Dropout(layers.dropouts, key, part.start))
        for c in range(rank, _count_chunks(n_rows), size):
            _learn_chunk(c, rank, n_rows, code, model, batch, scratch)
        synchronize(member)
        number = span.n_steps + b - span.first_batch + 1
        step = begin_step(number, n_rows, problem)
        batch_loss, summed = sum_of_rows(n_rows, batch, scratch)
        if rank == 0:
            loss += batch_loss
            step_intercept(summed, step, problem, weights, state.tokens)
        _step_tower(
            rank, size, number, part, problem.objective, layers, summed.weight, scratch.by_tower
        )
        tokens = own_tokens(member, batch)
        step_scalars(tokens, step, problem, weights, state.tokens, batch, scratch)
        gradient = Gradient(scratch.totals[rank], scratch.of_token[rank])
        _step_tokens(tokens, step, problem.rule, model, state.tokens, batch, scratch, gradient)
    return loss


@kernel
def deepfm_score(rank, size, barrier, rows, model, tiles, scores):
    """Write the scores of CSR rows, tile by tile.

    Rows of zeros fill the last tile, so that no score depends on how many rows there are. The
    Model must drop nothing.
    """
    weights, tower, dropout = model
    tile = _tile_of(rank, tiles)
    n_rows = scores.shape[0]
    n_tiles = (n_rows + TILE - 1) // TILE
    for number in range(n_tiles * rank // size, n_tiles * (rank + 1) // size):
        first = number * TILE
        for i in range(TILE):
            _begin_row(i, weights, tower, tile)
            j = first + i
            if j < n_rows:
                for p in range(np.uint64(rows.indptr[j]), np.uint64(rows.indptr[j + 1])):
                    k = np.uint64(rows.token[p])
                    _add_entry(i, k, rows.value[p], weights, tower, tile)
                _end_row(i, tower, tile)
        _forward(TILE, tower, dropout, tile)
        for i in range(min(TILE, n_rows - first)):
            scores[first + i] = tile.scores[i]
