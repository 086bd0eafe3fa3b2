"""Towers of dense layers in a GPU's memory, and their launches, see ``layers``."""

import itertools
import math

import numpy as np

from freqfm.backends.cuda.fm.layers import SCORE, DeepScores, LayerGradients, Layers
from freqfm.backends.cuda.memory import rule_for_device
from freqfm.backends.cuda.products import most_parts
from freqfm.backends.cuda.tables import dropout_of
from freqfm.formulas.rng import key_in_python

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
