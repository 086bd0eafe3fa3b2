"""Training the tables of an autoencoder on a GPU: its memory, and launches."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import interpreted
from freqfm.backends.base import CPUOnlyError
from freqfm.backends.cuda.device_tables import DeviceTables
from freqfm.backends.cuda.draws import cells_on, draw_scratch
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.backends.cuda.products import most_parts
from freqfm.backends.cuda.ranking.histories import SUM, DeviceHistories
from freqfm.backends.cuda.sorting import KeySort, Touched
from freqfm.backends.cuda.tables import Side
from freqfm.backends.cuda.vae.layers import (
    CATCH_UP,
    DRAW,
    FULL,
    MOVE_ALL,
    MOVE_LISTED,
    SAMPLED,
    SLICE,
    DrawArgs,
    FullArgs,
    FullScratch,
    Moved,
    Queries,
    SampledArgs,
    SampledScratch,
)
from freqfm.formulas.cells import Cells
from freqfm.formulas.rng import key_of

__all__ = ["CUDAAutoencoderTrainer"]

# Up to this many scores (512 MB) a batch is scored at once, else in panels of queries.
_SCORES = 1 << 27


class _Args(NamedTuple):
    """What a launch is given that moves a table alone."""

    moved: Moved


class CUDAAutoencoderTrainer(DeviceTrainer):
    """Trains the tables of an autoencoder, see ``Backend.autoencoder_trainer``.

    The tables are in the GPU's memory. What goes there and back in a batch is what NumPy computes:
    queries, sums, and the dense layers.

    Parameters
    ----------
    device : Device
    problem : AutoencoderProblem

    Raises
    ------
    CPUOnlyError
        If a part of the problem runs on the CPU only.
    """

    def __init__(self, device, problem):
        if problem.n_draws and problem.proposal_type is not Cells:
            raise CPUOnlyError(
                f"sampler {problem.sampler} runs on the CPU only; set device='cpu', or "
                f"device='auto'."
            )
        super().__init__(device)
        self._device, self._problem = device, problem
        self._tables = DeviceTables(self._mirror, problem.rule, problem.formulas)
        self._input_sort = self._item_sort = self._listed = None
        n = problem.n_positives
        self._of_inputs = device.empty((n, problem.input_width), np.float32)
        self._nowhere = device.empty(1, np.int32), device.empty(1, np.float32)
        self._scratch = self._proposal = self._drawn = None

    def _floats(self, *shape):
        return self._device.empty(shape, np.float32)

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        device, problem = self._device, self._problem
        self._tables.begin_epoch(tables, corrections)
        self._host, self._first_step = list(tables.values()), first_step
        self._inputs, self._items, *self._layers = (self._tables[name] for name in tables)
        # NumPy computes with them.
        self.pull([state.weights for state in self._host[2:]])
        n_items = len(self._host[1].weights)
        if self._input_sort is None:
            self._input_sort, self._item_sort = (KeySort(device, n_items) for _ in range(2))
            self._scratch = self._sampled_scratch() if problem.n_draws else self._full_scratch()
        if proposal is not None and proposal is not self._proposal:
            self._cells, n, m = cells_on(device, proposal), problem.n_queries, problem.n_draws
            self._drawn = draw_scratch(device, proposal, n, m, self._drawn)
        self._proposal = proposal

    def _full_scratch(self):
        n, width, n_items = (
            self._problem.n_queries, self._problem.item_width, len(self._host[1].weights)
        )  # fmt: skip
        height, n_slices = max(1, min(n, _SCORES // n_items)), -(-n_items // SLICE)
        self._gradients = self._floats(n_items, width)
        return FullScratch(
            units=self._floats(n_items, width),
            unit_columns=self._floats(width, n_items),
            scores=self._floats(height, n_items),
            parts=self._floats(most_parts(height, width), height, width),
            scaled=self._floats(n, width),
            largest=self._floats(n, n_slices),
            totals=self._floats(n, n_slices),
            inverse=self._floats(n),
        )

    def _sampled_scratch(self):
        problem = self._problem
        n, n_queries = problem.n_draws, problem.n_queries
        n_positives = problem.n_positives * problem.n_samples
        n_occurrences = n_positives + n_queries * n
        self._gradients = self._floats(n_occurrences, problem.item_width)
        self._occurrences = (
            self._device.empty(n_occurrences, np.int32),
            self._floats(n_occurrences),
        )
        return SampledScratch(
            self._floats(n_queries, n), self._floats(n_queries, n), self._floats(n_positives)
        )

    def _side(self, table, gradients, touched=None, occurrences=None):
        """Return the Side of a table; without occurrences, its gradients are those of all rows."""
        rows, multiples = occurrences or self._nowhere
        return Side(table, touched or Touched(rows, rows, rows), rows, multiples, gradients)

    def _moved(self, side, step, n_seen, sources, mean):
        number = int(step - self._first_step)
        return Moved(side, self._tables.step, number, int(n_seen), sources, np.float32(mean))

    def _run(self, phases, args, n_groups, span=(0, 1)):
        self._device.run(phases, args, 32, n_groups, span, self._problem.formulas)

    def sum_inputs(self, histories, step):
        """Return the sums of the input vectors of histories, (B, h)."""
        device, lengths = self._device, np.diff(histories.starts)
        items = histories.items.astype(np.int64)
        rows = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        weights = device.to_device(histories.weights)
        touched = None
        if len(items):
            touched = self._input_sort.run(
                [0, len(items)], lambda keys, starts: device.write(items, keys)
            )
        self._listed = touched, device.to_device(rows), weights
        if touched is not None and not self._tables.idle:
            side = self._input_side()
            moved = self._moved(side, step, 1, side.gradients, 1.0)
            self._run(CATCH_UP, _Args(moved), len(items))
        out = self._floats(len(lengths), self._problem.input_width)
        listed = DeviceHistories(
            device.to_device(histories.starts.astype(np.int64)),
            device.to_device(histories.items.astype(np.int32, copy=False)),
            weights,
        )
        self._run(SUM, (listed, self._inputs.weights, out), len(lengths))
        return device.to_host(out, np.empty(out.shape, dtype=np.float32))

    def _input_side(self):
        touched, rows, weights = self._listed
        return self._side(self._inputs, self._of_inputs, touched, (rows, weights))

    def step_inputs(self, histories, gradients, scale, step):
        """Move the input vectors of histories along the gradients by their sums.

        They are those of the last ``sum_inputs``.
        """
        if self._listed[0] is not None:
            sources = self._device.to_device(gradients)
            moved = self._moved(self._input_side(), step, 1, sources, scale)
            self._run(MOVE_LISTED, _Args(moved), len(histories.items))

    def step_items(self, queries, histories, totals, scale, step, stream, drawn=None):
        """Move the items by a softmax; return the gradient by the queries, and the losses."""
        device, n = self._device, len(queries)
        batch = Queries(
            vectors=device.to_device(queries),
            starts=device.to_device(histories.starts.astype(np.int32)),
            items=device.to_device(histories.items.astype(np.int32, copy=False)),
            weights=device.to_device(histories.weights.astype(np.float32, copy=False)),
            totals=device.to_device(totals),
            scale=np.float32(scale),
            n_unit=int(self._problem.n_unit),
            gradients=self._floats(*queries.shape),
            losses=self._floats(n),
        )
        if self._problem.n_draws:
            self._step_drawn(batch, len(histories.items), step, stream)
        else:
            self._step_all(batch, n, step)
        losses = device.to_host(batch.losses, np.empty(n, dtype=np.float32))
        return device.to_host(batch.gradients, np.empty_like(queries)), losses.astype(np.float64)

    def _step_all(self, batch, n, step):
        scratch = self._scratch
        n_panels = -(-n // scratch.scores.shape[0])
        side = self._side(self._items, self._gradients)
        moved = self._moved(side, step, n, self._gradients, 1.0)
        n_groups = max(n, len(scratch.units))
        self._run(FULL, FullArgs(batch, moved, scratch, n_panels), n_groups, (0, n_panels))

    def _step_drawn(self, batch, n_positives, step, stream):
        n_queries, n = len(batch.totals), self._problem.n_draws
        n_occurrences = n_positives + n_queries * n
        with np.errstate(over="ignore"):
            key = np.uint64(interpreted(key_of)(stream))

        def write_keys(keys, starts):
            args = DrawArgs(batch, self._cells, self._drawn, self._scratch, key, keys)
            self._run(DRAW, args, n_queries)

        touched = self._item_sort.run([0, n_occurrences], write_keys)
        side = self._side(self._items, self._gradients, touched, self._occurrences)
        moved = self._moved(side, step, 1, batch.vectors, batch.scale)
        log_share = np.float32(math.log(len(self._host[1].weights) / n))
        args = SampledArgs(batch, moved, self._drawn, self._scratch, log_share)
        phases = SAMPLED if self._tables.idle else CATCH_UP + SAMPLED
        self._run(phases, args, max(n_queries, n_occurrences))

    def step_layers(self, gradients, n_users, step):
        """Move the layers along their gradients."""
        for layer, state, gradient in zip(self._layers, self._host[2:], gradients, strict=True):
            gradient = self._device.to_device(np.ascontiguousarray(gradient, dtype=np.float32))
            side = self._side(layer, gradient)
            moved = self._moved(side, step, n_users, gradient, 1.0)
            self._run(MOVE_ALL, _Args(moved), len(state.weights))
            self._device.to_host(layer.weights, state.weights)

    def catch_up(self, step):
        """Let all rows catch up on the steps up to ``step``."""
        self._tables.end_epoch(int(step - self._first_step))
