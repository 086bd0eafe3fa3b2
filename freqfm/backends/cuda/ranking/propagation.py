"""Training through a graph: vectors are means over layers of tables, see ``Backend.propagation``.

A group sums the neighbours of a row in their order, so the bits do not depend on the grid.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.base import Histories
from freqfm.backends.cuda.memory import lanes_for
from freqfm.backends.cuda.ranking.batches import on_device, sum_row
from freqfm.backends.cuda.ranking.trainer import CUDARankingTrainer
from freqfm.backends.cuda.tables import DeviceTables, Side, Step, move_all, rule_for_device
from freqfm.formulas.codes import RATE_CONSTANT

_FACTORS = "user_factors", "item_factors"


class Sides(NamedTuple):
    """Tables of users and of items."""

    users: np.ndarray
    items: np.ndarray


class Layer(NamedTuple):
    """One side of a layer: ``out = scale * (base + sums over neighbours)``; float32."""

    neighbours: Histories  #: rows of ``table``, and the weights of the edges
    base: np.ndarray  #: (n, d)
    table: np.ndarray  #: (m, d), the other side of the layer before
    out: np.ndarray  #: (n, d)
    scale: float


class Moved(NamedTuple):
    """A table, and the step that moves all its rows."""

    side: Side
    step: Step
    number: int  #: of the step in the epoch


@inlined
def propagate(group, b, layer):
    """Compute one side of a layer."""
    base, out = layer.base, layer.out
    for r in range(group.rank, out.shape[0], group.size):
        sum_row(group, layer.neighbours, r, layer.table, out[r])
        for f in range(group.lane, out.shape[1], group.n_lanes):
            out[r, f] = layer.scale * (base[r, f] + out[r, f])


@inlined
def add_changes(group, b, args):
    """Add to a table what vectors have changed by."""
    table, vectors, before = args
    for r in range(group.rank, table.shape[0], group.size):
        for f in range(group.lane, table.shape[1], group.n_lanes):
            table[r, f] += vectors[r, f] - before[r, f]


@inlined
def clear(group, b, table):
    """Set all elements to zero."""
    for r in range(group.rank, table.shape[0], group.size):
        for f in range(group.lane, table.shape[1], group.n_lanes):
            table[r, f] = ZERO


@inlined
def move_table(group, b, moved):
    """Move all rows of a table."""
    move_all(group, moved.number, moved.side, 1, moved.step)


PROPAGATE, ADD_CHANGES, CLEAR = (propagate,), (add_changes,), (clear,)
MOVE_TABLE = (move_table,)


class Propagation:
    """Means over the layers of a Graph, in a GPU's memory.

    Parameters
    ----------
    device : Device
    graph : Graph
    width : int
        Of the vectors.
    """

    def __init__(self, device, graph, width):
        X, self._scale = graph.X, np.float32(1 / (graph.n_layers + 1))
        degrees = np.diff(X.indptr), np.bincount(X.indices, minlength=X.shape[1])
        of_users, of_items = (1 / np.sqrt(np.maximum(degree, 1)) for degree in degrees)
        weights = (np.repeat(of_users, degrees[0]) * of_items[X.indices]).astype(np.float32)
        A = sparse.csr_array((weights, X.indices, X.indptr), shape=X.shape)
        sides = A, sparse.csr_array(A.T)
        self._neighbours = [on_device(device, s.indptr, s.indices, s.data) for s in sides]
        self._device, self._shape, self._width = device, X.shape, width
        # Of the layers before the last.
        buffers = [self.empty() for _ in range(min(2, graph.n_layers - 1))]
        self._between = [buffers[k % 2] for k in range(graph.n_layers - 1)]

    def empty(self):
        """Return tables of users and items, without values yet."""
        return Sides(*(self._device.empty((n, self._width), np.float32) for n in self._shape))

    def mean(self, tables, outs):
        """Write the means over layers of the Sides ``tables``, which stay as they are."""
        before = tables
        for found in (*self._between, outs):
            scale = self._scale if found is outs else ONE
            for side, neighbours in enumerate(self._neighbours):
                layer = Layer(neighbours, tables[side], before[1 - side], found[side], scale)
                self.run(PROPAGATE, layer, found[side])
            before = found

    def run(self, phases, args, table, formulas=None):
        """Run phases whose work items are the rows of a table."""
        self._device.run(phases, args, lanes_for(self._width), len(table), formulas=formulas)


class EpochGraphTrainer(CUDARankingTrainer):
    """Trains vectors, whose changes in an epoch are added to tables; see ``Graph``."""

    def __init__(self, device, problem):
        super().__init__(device, problem)
        self._tables.others = Sides(*problem.graph.others)
        self._propagation = Propagation(device, problem.graph, problem.width)
        self._before = self._propagation.empty()

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch; see ``RankingTrainer``."""
        super().begin_epoch(epoch, data, tables, first_step, corrections)
        self._vectors = [self._tables[name].weights for name in _FACTORS]
        for vectors, before in zip(self._vectors, self._before, strict=True):
            self.device.copy(vectors, before)

    def end_epoch(self):
        """Let all rows catch up, move the tables, and compute the vectors again."""
        super().end_epoch()
        tables = self._tables.on_device
        for arrays in zip(tables, self._vectors, self._before, strict=True):
            self._propagation.run(ADD_CHANGES, arrays, arrays[0])
        self._propagation.mean(tables, self._vectors)


class Stores(dict):
    """Tables by name, as ``DeviceTables``; but gradients are stored, and no row moves."""

    idle = True
    step: Step


class BatchGraphTrainer(CUDARankingTrainer):
    """Trains tables along the gradients of each batch through the graph; see ``Graph``."""

    def __init__(self, device, problem):
        super().__init__(device, problem.storing(problem.graph.formulas))
        self.batches_per_call, self._formulas = 1, problem.formulas
        self._tables = DeviceTables(self, problem.rule, problem.formulas)
        self._tables.others = Sides(*problem.graph.others)
        self._propagation = Propagation(device, problem.graph, problem.width)
        self._gradients = self._propagation.empty()

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch; see ``RankingTrainer``."""
        super().begin_epoch(epoch, data, tables, first_step, corrections)
        nothing, vectors = self._tables.nothing.table, self._tables.on_device
        self._compared = Stores()
        for name, weights, first in zip(_FACTORS, vectors, self._gradients, strict=True):
            self._compared[name] = nothing._replace(weights=weights, first=first)
        rule = rule_for_device(self._problem.rule)._replace(rate_code=RATE_CONSTANT)
        self._compared.step = self._tables.step._replace(rule=rule)

    def compute_vectors(self):
        """Compute the vectors by the tables, see ``RankingTrainer``."""
        tables = [self._tables[name].weights for name in _FACTORS]
        self._propagation.mean(tables, self._tables.on_device)
        self.changed()

    def train(self, first, last, *args):
        """Train on a batch of the epoch; see ``RankingTrainer``."""
        self.compute_vectors()
        for gradients in self._gradients:
            self._propagation.run(CLEAR, gradients, gradients)
        found = super().train(first, last, *args)
        # By the tables. They take the memory of the vectors, which the next batch computes again.
        by_tables = self._tables.on_device
        self._propagation.mean(self._gradients, by_tables)
        for name, gradients in zip(_FACTORS, by_tables, strict=True):
            table, step = self._tables[name], self._tables.step
            side = self._tables.nothing._replace(table=table, gradients=gradients)
            moved = Moved(side, step, int(first) + 1)
            self._propagation.run(MOVE_TABLE, moved, gradients, self._formulas)
        return found
