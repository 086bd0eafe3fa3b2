"""Tables of vectors in a GPU's memory."""

import numpy as np

from freqfm.backends.cuda.memory import rule_for_device
from freqfm.backends.cuda.sorting import Touched
from freqfm.backends.cuda.tables import CATCH_UP_ALL, Side, Step, Table
from freqfm.formulas.codes import CATCH_UP_NONE

__all__ = ["DeviceTables"]


class DeviceTables:
    """Tables that a Mirror holds, and how their rows move in an epoch.

    Parameters
    ----------
    mirror : Mirror
    rule : UpdateRule
    formulas : dict
        Custom formulas.

    Attributes
    ----------
    step : Step
        Of the epoch.
    idle : bool
        Whether rows are left as they are by batches that do not hold them.
    """

    def __init__(self, mirror, rule, formulas):
        device = mirror.device
        self._mirror, self._device, self._formulas = mirror, device, formulas
        self._rule = rule_for_device(rule)
        self._tables, self._copies = {}, {}
        self.idle = rule.catch_up == CATCH_UP_NONE
        # What a function reads of a side that it shares with others, but not of this one.
        integers, floats = device.empty(1, np.int32), device.empty(1, np.float32)
        self._none = Touched(integers, integers, integers), integers, floats

    def __getitem__(self, name):
        return self._copies[name]

    def begin_epoch(self, tables, corrections):
        """Set the tables of an epoch, the same ones in every epoch, and its corrections."""
        device = self._device
        if not self._are_held(tables):
            self._mirror.clear()
            self._copies = {name: self._copy_of(state) for name, state in tables.items()}
        self._tables = tables
        self._mirror.push()
        for copy in self._copies.values():
            device.fill(copy.caught_up, 0)
        self.step = Step(self._rule, device.to_device(corrections.astype(np.float32)))

    def _are_held(self, tables):
        """Return whether these are the tables of the last epoch."""
        return tables.keys() == self._tables.keys() and all(
            one.shape == other.shape and one.ctypes.data == other.ctypes.data
            for name, state in tables.items()
            for one, other in zip(state, self._tables[name], strict=True)
        )

    def _copy_of(self, state):
        """Return the Table of a TrainedTable."""
        n_rows = 0 if self.idle else len(state.weights)
        return Table(*self._mirror.add(state), self._device.empty(n_rows, np.int32))

    def end_epoch(self, n_batches):
        """Let all rows catch up on the steps that they have missed, after ``n_batches``."""
        self._catch_up(n_batches)
        self._mirror.changed()

    def _catch_up(self, n_batches):
        if self.idle:
            return
        touched, rows, multiples = self._none
        for name in self._tables:
            table = self._copies[name]
            side = Side(table, touched, rows, multiples, self._device.empty((1, 1), np.float32), 0)
            self._device.run(
                CATCH_UP_ALL, (side, self.step), 32, len(table.weights),
                (n_batches + 1, n_batches + 2), self._formulas,
            )  # fmt: skip
