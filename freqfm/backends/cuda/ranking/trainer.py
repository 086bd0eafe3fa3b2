"""Training of user and item vectors on a GPU: its memory, and launches; also through a graph.

Vectors may be means over layers of tables, see ``Backend.propagation``. A group sums the neighbours
of a row in their order, so the bits do not depend on the grid.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.base import CPUOnlyError, Histories, RankingTrainer
from freqfm.backends.cuda.memory import DeviceTrainer, lanes_for, sum_of
from freqfm.backends.cuda.ranking.alignment import AlignmentFamily
from freqfm.backends.cuda.ranking.batches import (
    DERIVATIVE,
    LOSS,
    PLAIN_LOSS,
    WEIGHT,
    EpochData,
    ItemLists,
    Launch,
    RankingCall,
    UserLists,
    on_device,
    sum_row,
)
from freqfm.backends.cuda.ranking.pairwise import PairwiseFamily
from freqfm.backends.cuda.ranking.softmax import SoftmaxFamily
from freqfm.backends.cuda.tables import (
    DeviceTables,
    Side,
    Step,
    dropout_of,
    move_all,
    rule_for_device,
)
from freqfm.backends.support import check
from freqfm.formulas import codes
from freqfm.formulas.codes import RATE_CONSTANT
from freqfm.formulas.losses import ends_draws
from freqfm.formulas.rng import key_in_python

#: A call sorts at most so many occurrences, to save memory.
OCCURRENCES = 1 << 24

#: By the names of ``RankingProblem.family``.
FAMILIES = {"softmax": SoftmaxFamily, "pairwise": PairwiseFamily, "alignment": AlignmentFamily}


class CUDARankingTrainer(DeviceTrainer, RankingTrainer):
    """Trains user and item vectors on a GPU; see ``RankingTrainer``.

    Tables are moved to the GPU before the first epoch, the order of the positives in each epoch.

    Parameters
    ----------
    device : Device
    problem : RankingProblem

    Raises
    ------
    CPUOnlyError
        If a part of the problem runs on the CPU only.
    """

    def __init__(self, device, problem):
        _refuse(problem)
        super().__init__(device)
        self._problem = problem
        degrees, n_known = problem.degrees, int(problem.degrees.sum())
        family = FAMILIES[problem.family]
        self.block = family.block_of(problem)
        longest = int(degrees.max()) if self.block is None else self.block
        n_pairs = min(problem.batch_size + longest, n_known)
        self._family = family(device, problem, n_pairs, n_pairs)
        self._n_occurrences = n = n_pairs + self._family.n_listed
        drawn = problem.negatives_code == codes.NEGATIVES_DRAWN
        self.batches_per_call = 1 if drawn else max(1, OCCURRENCES // n)
        self._tables = self._compared = DeviceTables(self, problem.rule, problem.formulas)
        d, code = problem.width, self._family.lists_code
        self._user_lists = UserLists(device, len(degrees), d, n_pairs)
        self._item_lists = ItemLists(device, problem.n_items, d, n, code)
        self._results = device.empty((4, n_known), np.float32)
        self._no_lists = device.empty((1, max(1, problem.n_negatives)), np.int32)

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch; see ``RankingTrainer``."""
        self._tables.begin_epoch(tables, corrections)
        self._data, device = data, self.device
        self._pair_starts = data.row_starts[data.batch_starts]
        weights = np.add.reduceat(data.weights, self._pair_starts[:-1], dtype=np.float64)
        self._weights = weights
        key = key_in_python(self._problem.seed, epoch)
        means = (1 / weights).astype(np.float32)
        scales = means if self._problem.rule.average else np.ones_like(means)
        self._on_device = EpochData(
            device.to_device(data.items.astype(np.int32, copy=False)),
            device.to_device(data.weights),
            device.to_device(data.row_starts.astype(np.int32)),
            device.to_device(data.row_users.astype(np.int32, copy=False)),
            device.to_device(batches_between(data.batch_starts, self._pair_starts)),
            device.to_device(means),
            device.to_device(scales),
            key,
        )

    def lists_shape(self, first, last):
        """Return how many lists of negatives the batches need, and the length of a list."""
        n_pairs = int(self._pair_starts[last] - self._pair_starts[first])
        return self._family.lists_shape(last - first, n_pairs)

    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; see ``RankingTrainer``."""
        device, problem, data = self.device, self._problem, self._data
        batch_starts = data.batch_starts[first : last + 1]
        first_row, last_row = batch_starts[0], batch_starts[-1]
        call = RankingCall(
            first_batch=int(first),
            first_row=int(first_row),
            first_pair=int(self._pair_starts[first]),
            steps_before=0,
            n_panels=self._family.n_panels,
            cosine=problem.cosine,
            n_unit=problem.width if problem.cosine else 0,
            queries_given=False,
            dropout=dropout_of(problem.dropout),
            inverse_temperatures=device.to_device(inverse_temperatures),
            results=self._results,
        )
        user_table = self._compared["user_factors"]
        launch = Launch(
            self._on_device,
            call,
            self._compared,
            self._user_lists.side(user_table, self._on_device, batch_starts),
            functools.partial(self._list_items, first, last),
            functools.partial(self._run, (first, last)),
            proposal,
            self._no_lists if negatives is None else device.to_device(negatives),
        )
        self._family.run(launch)
        # Samplers may look at the vectors before the epoch ends.
        self.changed()
        n_rows = int(last_row - first_row)
        if problem.statistics_wanted:
            users = data.row_users[first_row:last_row]
            for i, column in enumerate((PLAIN_LOSS, WEIGHT, DERIVATIVE)):
                of_rows = np.empty(n_rows, dtype=np.float32)
                device.to_host(self._results[column][:n_rows], of_rows)
                np.add.at(statistics[:, i], users, of_rows)
        loss = sum_of(device, self._results[LOSS][:n_rows])
        return loss, float(self._weights[first:last].sum())

    def _list_items(self, first, last, negatives):
        """Return the Side of the items of some batches."""
        n_rows = np.diff(self._data.batch_starts[first : last + 1])
        n_pairs = np.diff(self._pair_starts[first : last + 1])
        sizes, table = n_pairs + self._family.n_negatives(n_rows, n_pairs), "item_factors"
        return self._item_lists.side(
            self._compared[table], self._on_device, int(first), sizes, negatives
        )

    def _run(self, span, phases, args, formulas):
        """Run phases for each panel of each batch of a span."""
        n, formulas = self._family.n_panels, {**self._problem.formulas, **(formulas or {})}
        steps = span[0] * n, span[1] * n
        self.device.run(phases, args, 32, self._n_occurrences, steps, formulas)

    def end_epoch(self):
        """Let all rows catch up on the steps that they have missed."""
        self._tables.end_epoch(len(self._data.batch_starts) - 1)
        self._data = None


def batches_between(row_starts, pair_starts):
    """Return where each batch begins, and its size: rows, and pairs; see ``EpochData``."""
    sizes = np.diff(row_starts), np.diff(pair_starts)
    columns = row_starts[:-1], sizes[0], pair_starts[:-1], sizes[1]
    return np.column_stack(columns).astype(np.int32)


def _refuse(problem):
    """Raise if a part of the problem runs on the CPU only."""
    stores = problem.rule.step_code == codes.STEP_STORE
    if stores and problem.graph is None:
        check("GPU", "Features, MLP, backbones of your own")
    if problem.n_terms is not None:
        check("GPU", "Context")
    if stores and problem.constants.get("margins"):
        check("GPU", 'MAWU with LightGCN("batch")')
    n_known = int(problem.degrees.sum())
    if n_known > np.iinfo(np.int32).max:
        raise CPUOnlyError(
            f"X has {n_known} interactions; more than {np.iinfo(np.int32).max} are "
            f"trained on the CPU only; set device='cpu', or device='auto'."
        )
    if ends_draws in problem.formulas:
        check("GPU", "WARP")
    if problem.negatives_code == codes.NEGATIVES_DRAWN and problem.family != "softmax":
        check("GPU", "samplers by user, losses of pairs", given=problem.sampler)


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
