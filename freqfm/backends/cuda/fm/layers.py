"""Factorization machines with a tower of dense layers on a GPU.

The phases of a batch of a factorization machine with a tower of dense layers.

The tower is that of ``backends.cpu.fm.deep``. Level 0 of its values is the input, and layer l turns
level l into level l + 1. The weights of the outputs count as a layer of one output, without biases.

1. A group computes all levels of a row, the derivative of its loss, those of the tower's score by
   all levels, and with them what tokens need of the row.
2. The gradients by the layers are products of values and derivatives, in parts of the rows.
3. Tokens and the intercept are summed and stepped as without a tower, and then the layers.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.base import UpdateRule
from freqfm.backends.cuda.fm.batch import (
    FMArgs,
    FMRows,
    FMVectors,
    Levels,
    keep_loss,
    linear_part,
    rows_of_batch,
    step_rest,
    sum_level,
    sum_of_windows,
    sum_tokens,
)
from freqfm.backends.cuda.groups import group_sum, synchronize_group, worker
from freqfm.backends.cuda.products import most_parts, parts_of, product_in_parts, sum_of_parts
from freqfm.backends.cuda.tables import dropout_of, dropped, rule_for_device
from freqfm.formulas.codes import LEARNING_RATE
from freqfm.formulas.rng import hash64, key_in_python
from freqfm.formulas.steps import step_layer


class Layers(NamedTuple):
    """A tower, and what it computes for the rows of a batch; arrays of float32."""

    #: Of each layer, (n_in + 1, n_out), with the biases in the last row; of the outputs (n_in, 1).
    weights: tuple
    fields: np.ndarray  #: (n,), int32; empty without fields
    pairs: bool  #: whether the score has the sum over pairs too
    dropouts: tuple  #: the Dropout of each level
    key: int  #: of the epoch's dropout, uint64
    sums: np.ndarray  #: (batch_size, d), sums of x v
    values: tuple  #: of each level, (batch_size, width + 1); the last column is of ones


class LayerGradients(NamedTuple):
    """What the training of a tower needs beside; arrays of float32."""

    #: Derivatives by each level and by the tower's score, (batch_size, width): at first those of
    #: that score, and then of the loss.
    deltas: tuple
    parts: tuple  #: of the gradient by each layer, (n_parts, *shape)
    total: np.ndarray  #: (n_weights,), the gradient
    penalties: np.ndarray  #: (n_weights,), for each unit of the rows' weight
    steps: np.ndarray  #: as in FMArgs
    rule: UpdateRule


#: The arguments of training: those of FMArgs, Layers and LayerGradients.
DeepArgs = NamedTuple(
    "DeepArgs", [*FMArgs.__annotations__.items(), ("layers", Layers), ("gradients", LayerGradients)]
)


class DeepScores(NamedTuple):
    """The arguments of scores."""

    rows: FMRows
    model: FMVectors
    levels: Levels
    layers: Layers
    scores: np.ndarray  #: (n_rows,), result


# Forward.


@inlined
def _write_input(group, place, key, args):
    """Write the input of a row, of which a lane has the sums of some columns."""
    (i, j, _), rows, layers, sums = place, args.rows, args.layers, args.layers.sums
    values, width, pooled = layers.values[0], sums.shape[1], layers.fields.shape[0] == 0
    n_inputs = values.shape[1] - 1
    for f in range(group.lane, width, group.n_lanes):
        squares = ZERO
        for at in range(f, n_inputs, width):
            values[j, at] = ZERO
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            k = rows.tokens[e]
            term = rows.values[e] * args.model.factors[k * width + f]
            squares += term * term
            if not pooled:
                values[j, layers.fields[k] * width + f] += term
        if pooled:
            values[j, f] = HALF * (sums[j, f] * sums[j, f] - squares)
        for at in range(f, n_inputs, width):
            values[j, at] *= dropped(layers.dropouts[0], key, at)


@inlined
def _key(place, level, layers):
    """Return the key of the dropout of a row's level."""
    return hash64(layers.key + np.uint64(place[2] * len(layers.values) + level))


@inlined
def _forward(group, place, args):
    """Compute the levels of a row; return its score and 1 + sum of |x| to all lanes.

    ``place`` is where the row is: in X, in the batch and in the epoch.
    """
    (i, j, _), model, layers, last = place, args.model, args.layers, len(args.layers.values) - 1
    of_linear, reach = linear_part(group, args.rows, i, model.linear)
    out = layers.sums, layers.sums[:0]
    pairs, _, _ = sum_level(group, (args.rows, i, j), 0, model.factors, args.levels, out)
    _write_input(group, place, _key(place, 0, layers), args)
    for level in range(1, last + 1):
        below, values = layers.values[level - 1], layers.values[level]
        weights, key = layers.weights[level - 1], _key(place, level, layers)
        synchronize_group(group)
        for f in range(group.lane, weights.shape[1], group.n_lanes):
            total = ZERO
            for e in range(weights.shape[0]):
                total += below[j, e] * weights[e, f]
            # NaN stays NaN, so that divergence shows.
            total = ZERO if total <= ZERO else total
            values[j, f] = total * dropped(layers.dropouts[level], key, f)
    total, values, weights = ZERO, layers.values[last], layers.weights[last]
    for f in range(group.lane, weights.shape[0], group.n_lanes):
        total += values[j, f] * weights[f, 0]
    score = model.intercept[0] + of_linear + (pairs if layers.pairs else ZERO)
    return score + group_sum(group, total), ONE + reach


@inlined
def score_rows(group, b, args):
    """Write the scores of rows, as many at a time as there is room for."""
    n = args.layers.sums.shape[0]
    for j in range(group.rank, min(n, args.scores.shape[0] - b * n), group.size):
        score, _ = _forward(group, (b * n + j, j, 0), args)
        if group.lane == 0:
            args.scores[b * n + j] = score


# Backward.


@inlined
def _backward(group, place, args):
    """Write the derivatives of the tower's score by the levels of a row."""
    (_, j, _), layers, deltas = place, args.layers, args.gradients.deltas
    key, n_levels = _key(place, 0, layers), len(layers.values)
    if group.lane == 0:
        deltas[n_levels][j, 0] = ONE
    for level in range(n_levels - 1, -1, -1):
        weights, values, above = layers.weights[level], layers.values[level], deltas[level + 1]
        kept = layers.dropouts[level].kept
        synchronize_group(group)
        for i in range(deltas[level].shape[1]):
            total = ZERO
            for f in range(group.lane, weights.shape[1], group.n_lanes):
                total += above[j, f] * weights[i, f]
            # Values of layers that are dropped are zero, as those that ReLU stops.
            factor = kept if values[j, i] > ZERO else ZERO
            if level == 0:
                factor = dropped(layers.dropouts[0], key, i)
            total = factor * group_sum(group, total)
            if group.lane == 0:
                deltas[level][j, i] = total
    synchronize_group(group)


@inlined
def _differentiate(group, j, derivative, args):
    """Write what tokens need of a row; return a squared norm, see ``backends.cpu.fm.deep``."""
    layers, out, inner = args.layers, args.scratch.gradients, args.gradients.deltas[0]
    width, n_inputs, largest = layers.sums.shape[1], inner.shape[1], ZERO
    pooled, of_pairs = layers.fields.shape[0] == 0, ONE if layers.pairs else ZERO
    for begin in range(0, n_inputs, width):
        norm = ZERO
        for f in range(group.lane, width, group.n_lanes):
            along, total = inner[j, begin + f], layers.sums[j, f]
            total = of_pairs * total + along * (total if pooled else ONE)
            norm += total * total
            out[j, begin + f] = derivative * total
            out[j, n_inputs + f] = derivative * (of_pairs + along if pooled else of_pairs)
        largest = max(largest, group_sum(group, norm))
    return largest


@inlined
def learn_rows(group, b, args):
    """Score the rows of a batch; leave what tokens and layers need of them."""
    data, scratch, deltas = args.data, args.scratch, args.gradients.deltas
    for j in range(group.rank, rows_of_batch(args, b), group.size):
        number = b * data.batch_size + j
        i = data.order[number]
        score, reach = _forward(group, (i, j, number), args)
        row = number, j, data.weights[i], data.targets[i]
        derivative = keep_loss(group, row, score, reach, args)
        _backward(group, (i, j, number), args)
        norm = _differentiate(group, j, derivative, args)
        if group.lane == 0:
            scratch.curvatures[j] *= ONE + norm
        for level in range(1, len(deltas)):
            for f in range(group.lane, deltas[level].shape[1], group.n_lanes):
                deltas[level][j, f] *= derivative


# Steps.


@inlined
def sum_layers(group, b, args):
    """Sum the gradients by the layers over parts of the rows."""
    values, deltas, n_rows = args.layers.values, args.gradients.deltas, rows_of_batch(args, b)
    for level in range(len(values)):
        parts = args.gradients.parts[level]
        shape = parts.shape[1], parts.shape[2]
        product_in_parts(group, values[level], deltas[level + 1], n_rows, shape, parts, False)


@inlined
def step_layers(group, b, args):
    """Move the weights of all layers along their gradients."""
    model, (_, all_parts, total, penalties, steps, rule) = args.model, args.gradients
    weight, n_rows = sum_of_windows(group, b, args).weight, rows_of_batch(args, b)
    rate, start, (thread, n_threads) = rule.hyper[LEARNING_RATE] / steps[b, 1], 0, worker(group)
    for level in range(len(all_parts)):
        parts = all_parts[level]
        (n_parts, _), width = parts_of(n_rows, parts), parts.shape[2]
        for c in range(thread, parts.shape[1] * width, n_threads):
            f = start + c
            penalty = weight * penalties[f] * model.dense[0, f]
            summed = sum_of_parts(parts, n_parts, c // width, c % width)
            total[f] = steps[b, 0] * (summed + penalty)
            step_layer(
                rule, rate, steps[b, 2], model.dense, (0, f, f + 1), total,
                model.dense_first, model.dense_second,
            )  # fmt: skip
        start += parts.shape[1] * width


TRAIN = (learn_rows, sum_layers, sum_tokens, step_rest, step_layers)
SCORE = (score_rows,)


#: Lanes of a group, which together make a tile of a product.
N_LANES = 32

# So many rows are scored at a time, to save memory.
_ROWS_SCORED = 1 << 14

# The random stream of dropout, see ``base.DenseTraining``.
_OF_DROPOUT = 1


def _shapes(tower):
    """Return the shapes of ``Layers.weights``."""
    widths = tower.widths.tolist()
    return [*((n_in + 1, n_out) for n_in, n_out in itertools.pairwise(widths)), (widths[-1], 1)]


def make_layers(device, tower, n_rows, width, rates):
    """Return the Layers of batches of at most so many rows, without weights.

    ``width`` is that of a token's vector, and ``rates`` are those of dropout.
    """
    ones = (np.ones((n_rows, n + 1), dtype=np.float32) for n in tower.widths)
    return Layers(
        weights=(),
        fields=device.to_device(tower.fields),
        pairs=bool(tower.pairs),
        dropouts=tuple(map(dropout_of, rates)),
        key=np.uint64(0),
        sums=device.empty((n_rows, width), np.float32),
        values=tuple(map(device.to_device, ones)),
    )


def with_weights(layers, tower, table):
    """Return Layers with the weights of an output, (1, n_weights), on the device."""
    shapes, weights = _shapes(tower), table.reshape(table.shape[1])
    ends = itertools.accumulate(map(math.prod, shapes))
    views = (
        weights[end - math.prod(shape) : end].reshape(shape)
        for shape, end in zip(shapes, ends, strict=True)
    )
    return layers._replace(weights=tuple(views))


def with_key(layers, seed, epoch):
    """Return Layers with the key of an epoch's dropout."""
    return layers._replace(key=key_in_python(seed, epoch, _OF_DROPOUT))


def make_gradients(device, problem, tower):
    """Return LayerGradients, without steps."""

    def floats(shape):
        return device.empty(shape, np.float32)

    return LayerGradients(
        deltas=tuple(floats((problem.batch_size, n)) for n in (*tower.widths, 1)),
        parts=tuple(floats((most_parts(*shape), *shape)) for shape in _shapes(tower)),
        total=floats(tower.weights.shape),
        penalties=device.to_device(problem.dense.penalties),
        steps=None,
        rule=rule_for_device(problem.dense.rule),
    )


def score_towers(device, tower, rows, vectors, levels, scores):
    """Write the scores of rows under an output with a tower."""
    n_rows, no_rates = scores.shape[0], np.zeros(len(tower.widths))
    n = min(n_rows, _ROWS_SCORED)
    layers = make_layers(device, tower, n, levels.widths[0], no_rates)
    layers = with_weights(layers, tower, vectors.dense)
    args = DeepScores(rows, vectors, levels, layers, scores)
    device.run(SCORE, args, N_LANES, n, (0, -(-n_rows // n)))
