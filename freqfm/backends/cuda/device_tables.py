"""Tables of vectors in a GPU's memory during an epoch."""

import numpy as np

from freqfm.backends.base import TrainedTable
from freqfm.backends.cuda.memory import rule_for_device
from freqfm.backends.cuda.sorting import Touched
from freqfm.backends.cuda.tables import CATCH_UP_ALL, Side, Step, Table
from freqfm.formulas.codes import CATCH_UP_NONE

__all__ = ["DeviceTables"]


class DeviceTables:
    """Moves tables to a GPU and back, once an epoch, and lets their rows catch up.

    Parameters
    ----------
    device : Device
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

    def __init__(self, device, rule, formulas):
        self._device, self._formulas = device, formulas
        self._rule = rule_for_device(rule)
        self._copies = {}
        self.idle = rule.catch_up == CATCH_UP_NONE
        # What a function reads of a side that it shares with others, but not of this one.
        integers, floats = device.empty(1, np.int32), device.empty(1, np.float32)
        self._none = Touched(integers, integers, integers), integers, floats

    def __getitem__(self, name):
        return self._copies[name]

    def push(self, tables, corrections):
        """Copy the tables of an epoch to the GPU."""
        device, self._tables = self._device, tables
        for name, state in tables.items():
            shapes = [array.shape for array in state]
            copy = self._copies.get(name)
            if copy is None or [array.shape for array in copy[:4]] != shapes:
                n_rows = 0 if self.idle else len(state.weights)
                parts = [device.empty(array.shape, np.float32) for array in state]
                copy = self._copies[name] = Table(*parts, device.empty(n_rows, np.int32))
            for array, on_device in zip(state, copy[:4], strict=True):
                device.write(array, on_device)
            device.fill(copy.caught_up, 0)
        self.step = Step(self._rule, device.to_device(corrections.astype(np.float32)))

    def pull(self):
        """Copy the tables back."""
        for name, state in self._tables.items():
            for array, on_device in zip(state, TrainedTable(*self._copies[name][:4]), strict=True):
                self._device.to_host(on_device, array)

    def catch_up(self, n_batches):
        """Let all rows catch up on the steps that they have missed, after ``n_batches``."""
        if self.idle:
            return
        touched, rows, multiples = self._none
        for name in self._tables:
            table = self._copies[name]
            side = Side(table, touched, rows, multiples, self._device.empty((1, 1), np.float32))
            self._device.run(
                CATCH_UP_ALL, (side, self.step), 32, len(table.weights),
                (n_batches + 1, n_batches + 2), self._formulas,
            )  # fmt: skip
