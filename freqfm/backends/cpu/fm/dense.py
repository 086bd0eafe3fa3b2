"""Dense weights of a factorization machine, which every row uses, and their steps.

A batch's rows are cut into tiles, and the tiles into chunks; each chunk has a gradient of its own,
which one thread sums up. Then each thread takes some blocks of the weights, adds up their gradients
over the chunks, and steps them. Tiles, chunks and blocks depend on the batch alone, so results are
the same for any number of threads.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.base import UpdateRule
from freqfm.formulas.codes import LEARNING_RATE, STEP_ADAM, STEP_CUSTOM
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
