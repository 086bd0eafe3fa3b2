"""Propagation of vectors along the edges of users and items: sums over neighbours, layer by layer.

A layer is a product of a sparse matrix and a table. Each row of the result is summed by one thread
in the order of its neighbours, so that results do not depend on the number of threads.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._machine import aligned_zeros
from freqfm._numba.instructions import prefetch_row
from freqfm._numba.jit import ONE, ZERO, kernel, subroutine
from freqfm.backends.cpu.tables import row_scratch
from freqfm.backends.cpu.team import Member, Team, part
from freqfm.backends.cpu.vectors import add_multiple
from freqfm.formulas.selection import first_above

# A neighbour's row is prefetched this many neighbours before it is added.
_AHEAD = 8

# Below this number of multiplications in a call, starting threads costs more than it saves.
_WORTH_SEVERAL_THREADS = 1_000_000

_NO_MASK = np.zeros(0, dtype=np.bool_)


class Neighbours(NamedTuple):
    """The neighbours of each row of one side, and the factors of the edges."""

    starts: np.ndarray  #: (n + 1,), int64
    indices: np.ndarray  #: rows of the other side, int32
    scales: np.ndarray  #: (n,), factors of rows, float32
    other_scales: np.ndarray  #: factors of the other side's rows, float32


class Layer(NamedTuple):
    """One side of one layer: ``out = scale * (base + product of neighbours and table)``."""

    neighbours: Neighbours
    base: np.ndarray  #: (n, d)
    table: np.ndarray  #: (m, d), of the other side
    wanted: np.ndarray  #: (n,), rows to compute; empty for all
    scale: float


@subroutine
def _run_layer(member, layer, out, total):
    """Compute the rows of a layer that this thread owns; each takes about as many neighbours."""
    neighbours = layer.neighbours
    starts, indices = neighbours.starts, neighbours.indices
    n, width = out.shape
    first, last = part(member, starts[n])
    begin = first_above(starts, 0, n, first - 1) if member.rank > 0 else 0
    end = first_above(starts, 0, n, last - 1) if member.rank < member.size - 1 else n
    scale = np.float32(layer.scale)
    for r in range(begin, end):
        if layer.wanted.shape[0] > 0 and not layer.wanted[r]:
            continue
        for f in range(width):
            total[f] = ZERO
        for p in range(starts[r], starts[r + 1]):
            prefetch_row(layer.table, np.uint64(indices[min(p + _AHEAD, last - 1)]))
            k = np.uint64(indices[p])
            add_multiple(neighbours.other_scales[k], layer.table[k], total)
        factor = scale * neighbours.scales[r]
        for f in range(width):
            out[r, f] = scale * layer.base[r, f] + factor * total[f]


@kernel
def propagate(rank, size, barrier, layers, outs, totals):
    """Compute the user side and the item side of a layer."""
    member = Member(rank, size, barrier)
    _run_layer(member, layers[0], outs[0], totals[rank])
    _run_layer(member, layers[1], outs[1], totals[rank])


class Propagation:
    """Means over the layers of a graph of users and items; see ``Backend.propagation``."""

    def __init__(self, X, n_threads):
        sides = X, sparse.csr_array(X.T)
        scales = [_scales(side) for side in sides]
        self._neighbours = [
            Neighbours(
                starts=side.indptr.astype(np.int64),
                indices=side.indices.astype(np.int32),
                scales=scales[i],
                other_scales=scales[1 - i],
            )
            for i, side in enumerate(sides)
        ]
        self._n_threads = n_threads
        self._buffers = []

    def mean(self, users, items, n_layers, wanted=None):
        """Return the means over layers, see ``Backend.propagation``."""
        base = users, items
        width = users.shape[1]
        if not self._buffers or self._buffers[0][0].shape[1] != width:
            self._buffers = [tuple(aligned_zeros(t.shape) for t in base) for _ in range(2)]
        masks = [_NO_MASK, _NO_MASK]
        if wanted is not None:
            masks = [_mask(*of_side) for of_side in zip(base, wanted, strict=True)]
        totals = row_scratch(width, self._n_threads)
        work = 2 * len(self._neighbours[0].indices) * n_layers * width
        tables = base
        with Team(self._n_threads if work >= _WORTH_SEVERAL_THREADS else 1) as team:
            for k in range(n_layers):
                last = k == n_layers - 1
                layers = tuple(
                    Layer(
                        neighbours=self._neighbours[side],
                        base=base[side],
                        table=tables[1 - side],
                        wanted=masks[side] if last else _NO_MASK,
                        scale=np.float32(1 / (n_layers + 1)) if last else ONE,
                    )
                    for side in (0, 1)
                )
                tables = self._buffers[k % 2]
                team.run(propagate, layers, tables, totals)
        return tables


def _scales(side):
    """Return one over the root of the number of neighbours of each row; 0 without any."""
    degrees = np.diff(side.indptr)
    return (1 / np.sqrt(np.maximum(degrees, 1)) * (degrees > 0)).astype(np.float32)


def _mask(table, rows):
    """Return which rows of a table are in a list."""
    mask = np.zeros(len(table), dtype=np.bool_)
    mask[rows] = True
    return mask
