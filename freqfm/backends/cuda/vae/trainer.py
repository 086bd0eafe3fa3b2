"""Training the tables of an autoencoder on a GPU: its memory, and launches."""

import math

import numpy as np

from freqfm._numba.jit import as_python
from freqfm.backends.base import RankingProblem
from freqfm.backends.cuda.device_tables import DeviceTables
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.backends.cuda.ranking.batches import (
    LOSS,
    EpochData,
    ItemLists,
    Launch,
    RankingCall,
)
from freqfm.backends.cuda.ranking.histories import SUM, on_device
from freqfm.backends.cuda.ranking.softmax import SoftmaxFamily
from freqfm.backends.cuda.sorting import KeySort
from freqfm.backends.cuda.tables import Dropout, Side
from freqfm.backends.cuda.vae.layers import CATCH_UP, MOVE_ALL, MOVE_LISTED, Moved
from freqfm.formulas.codes import NEGATIVES_DRAWN, NEGATIVES_FULL
from freqfm.formulas.rng import key_of

_NO_DROPOUT = Dropout(np.uint64(0), np.float32(1))


class CUDAAutoencoderTrainer(DeviceTrainer):
    """Trains the tables of an autoencoder, see ``Backend.autoencoder_trainer``.

    The tables are in the GPU's memory. In a batch, the arrays that NumPy computes with are
    copied: queries, sums, and the dense layers. The items are trained by the softmax of
    recommenders, with queries in place of users.

    Parameters
    ----------
    device : Device
    problem : AutoencoderProblem
    """

    def __init__(self, device, problem):
        super().__init__(device)
        self._problem = problem
        self._tables = DeviceTables(self, problem.rule, problem.formulas)
        self._family = self._listed = None
        n, n_queries = problem.n_positives, problem.n_queries
        self._of_inputs = device.empty((n, problem.input_width), np.float32)
        self._results = device.empty((4, n_queries), np.float32)
        self._rows = device.to_device(np.arange(n_queries, dtype=np.int32))
        self._no_lists = device.empty((1, 1), np.int32)
        self._inverse = device.to_device(np.ones((n_queries, 2), dtype=np.float32))

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        self._tables.begin_epoch(tables, corrections)
        self._host, self._first_step = list(tables.values()), first_step
        self._inputs, self._items, *self._layers = (self._tables[name] for name in tables)
        # NumPy computes with them.
        self.pull([state.weights for state in self._host[2:]])
        self._proposal = proposal
        if self._family is None:
            self._input_sort = KeySort(self.device, len(self._host[0].weights))
            self._make_items(len(self._host[1].weights))

    def _make_items(self, n_items):
        """Allocate the memory of the softmax over items."""
        device, problem, drawn = self.device, self._problem, self._problem.n_draws > 0
        n_pairs, width = problem.n_positives * problem.n_samples, problem.item_width
        items = RankingProblem(
            family="softmax",
            constants={"constant": 1.0, "top_temperature": 1.0, "thresholds": None},
            cosine=False,
            dropout=0.0,
            degrees=np.zeros(0, dtype=np.int64),
            known=(),
            n_items=n_items,
            width=width,
            batch_size=n_pairs,
            block=None,
            negatives_code=NEGATIVES_DRAWN if drawn else NEGATIVES_FULL,
            n_negatives=problem.n_draws,
            rule=problem.rule,
            seed=0,
            include_positive=drawn,
        )
        self._family = family = SoftmaxFamily(device, items, problem.n_queries, n_pairs)
        self._n_occurrences = n_pairs + family.n_listed
        self._item_lists = ItemLists(device, n_items, width, self._n_occurrences, family.lists_code)

    def _run(self, phases, args, n_groups, span=(0, 1), formulas=None):
        formulas = {**self._problem.formulas, **(formulas or {})}
        self.device.run(phases, args, 32, n_groups, span, formulas)

    def _moved(self, side, step, sources, mean):
        number = int(step - self._first_step)
        return Moved(side, self._tables.step, number, sources, np.float32(mean))

    def sum_inputs(self, histories, step):
        """Return the sums of the input vectors of histories, (B, h)."""
        device, lengths = self.device, np.diff(histories.starts)
        items = histories.items.astype(np.int64)
        rows = device.to_device(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))
        listed, self._listed = on_device(device, *histories), None
        if len(items):
            touched = self._input_sort.run(
                [0, len(items)], lambda keys, starts: device.write(items, keys)
            )
            self._listed = Side(self._inputs, touched, rows, listed.weights, self._of_inputs, 0)
            if not self._tables.idle:
                moved = self._moved(self._listed, step, self._of_inputs, 1.0)
                self._run(CATCH_UP, moved, len(items))
        out = device.empty((len(lengths), self._problem.input_width), np.float32)
        self._run(SUM, (listed, self._inputs.weights, out), len(lengths))
        return device.to_host(out, np.empty(out.shape, dtype=np.float32))

    def step_inputs(self, histories, gradients, scale, step):
        """Move the input vectors of histories along the gradients by their sums.

        They are those of the last ``sum_inputs``.
        """
        if self._listed is not None:
            sources = self.device.to_device(gradients)
            moved = self._moved(self._listed, step, sources, scale)
            self._run(MOVE_LISTED, moved, len(histories.items))

    def step_items(self, queries, histories, totals, scale, step, stream, drawn=None):
        """Move the items by a softmax; return the gradient by the queries, and the losses."""
        device, problem, n = self.device, self._problem, len(queries)
        users = self._tables.nothing.table._replace(weights=device.to_device(queries))
        data = self._data_of(histories, scale, stream)
        n_panels = self._family.n_panels
        call = RankingCall(
            first_batch=0,
            first_row=0,
            first_pair=0,
            steps_before=int(step - self._first_step) - 1,
            n_panels=n_panels,
            cosine=False,
            n_unit=int(problem.n_unit),
            queries_given=True,
            dropout=_NO_DROPOUT,
            inverse_temperatures=self._inverse,
            results=self._results,
        )
        n_pairs = len(histories.items)
        sizes = [n_pairs + int(self._family.n_negatives(np.array([n]), n_pairs)[0])]
        # All items are moved by the mean over the queries.
        n_seen = 0 if problem.n_draws else n
        launch = Launch(
            data,
            call,
            self._tables,
            self._tables.nothing._replace(table=users),
            lambda negatives: self._item_lists.side(self._items, data, 0, sizes, negatives, n_seen),
            lambda phases, args, formulas: self._run(
                phases, args, self._n_occurrences, (0, n_panels), formulas
            ),
            self._proposal,
            self._no_lists,
        )
        if drawn is not None:
            self._family.put_draws(self._proposal, *drawn)
        self._family.run(launch)
        losses = device.to_host(self._results[LOSS][:n], np.empty(n, dtype=np.float32))
        losses = losses.astype(np.float64)
        if problem.n_draws:
            # The sum over items is as many times that over draws.
            losses += totals * math.log(len(self._host[1].weights) / problem.n_draws)
        return device.to_host(self._family.gradients[:n], np.empty_like(queries)), losses

    def _data_of(self, histories, scale, stream):
        """Return the EpochData of a single batch."""
        device, n = self.device, len(histories.starts) - 1
        means = [scale if self._problem.n_draws else 1 / n]
        with np.errstate(over="ignore"):
            key = np.uint64(as_python(key_of)(stream))
        return EpochData(
            device.to_device(histories.items.astype(np.int32, copy=False)),
            device.to_device(histories.weights.astype(np.float32, copy=False)),
            device.to_device(histories.starts.astype(np.int32)),
            self._rows,
            device.to_device(np.array([[0, n, 0, len(histories.items)]], dtype=np.int32)),
            device.to_device(np.array(means, dtype=np.float32)),
            device.to_device(np.array([scale], dtype=np.float32)),
            key,
        )

    def step_layers(self, gradients, n_users, step):
        """Move the layers along their gradients."""
        for layer, state, gradient in zip(self._layers, self._host[2:], gradients, strict=True):
            gradient = self.device.to_device(np.ascontiguousarray(gradient, dtype=np.float32))
            side = self._tables.nothing._replace(
                table=layer, gradients=gradient, n_seen=int(n_users)
            )
            moved = self._moved(side, step, gradient, 1.0)
            self._run(MOVE_ALL, moved, len(state.weights))
            self.device.to_host(layer.weights, state.weights)

    def catch_up(self, step):
        """Let all rows catch up on the steps up to ``step``."""
        self._tables.end_epoch(int(step - self._first_step))
