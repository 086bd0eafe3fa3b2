"""Tables of vectors in a GPU's memory."""

import numpy as np

from freqfm.backends.cuda.memory import rule_for_device
from freqfm.backends.cuda.sorting import Touched
from freqfm.backends.cuda.tables import CATCH_UP_ALL, DeviceTable, Side, Step
from freqfm.formulas.codes import CATCH_UP_NONE


class DeviceTables:
    """Tables that a DeviceTrainer holds, and how their rows move in an epoch.

    Parameters
    ----------
    trainer : DeviceTrainer
    rule : UpdateRule
    formulas : dict
        Custom formulas.

    Attributes
    ----------
    step : Step
        Of the epoch.
    idle : bool
        Whether rows are left as they are by batches that do not hold them.
    others : NamedTuple of ndarray
        Further arrays that an epoch changes; empty by default.
    on_device : NamedTuple
        Their copies.
    nothing : Side
        What a function reads of a side that it shares with others, but not of this one.
    """

    def __init__(self, trainer, rule, formulas):
        device = trainer.device
        self._trainer, self._device, self._formulas = trainer, device, formulas
        self._rule = rule_for_device(rule)
        self._tables, self._copies, self.others = {}, {}, ()
        self.idle = rule.catch_up == CATCH_UP_NONE
        integers, floats = device.empty(1, np.int32), device.empty((1, 1), np.float32)
        table = DeviceTable(floats, floats[0], floats, floats, integers)
        touched = Touched(integers, integers, integers)
        self.nothing = Side(table, touched, integers, floats[0], floats, 0)

    def __getitem__(self, name):
        return self._copies[name]

    def begin_epoch(self, tables, corrections):
        """Set the tables of an epoch, the same ones in every epoch, and its corrections."""
        device = self._device
        if not self._are_held(tables):
            self._trainer.clear()
            self._copies = {name: self._copy_of(state) for name, state in tables.items()}
            self.on_device = self._trainer.add(self.others) if self.others else ()
        self._tables = tables
        self._trainer.hold()
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
        """Return the DeviceTable of a TrainedTable."""
        n_rows = 0 if self.idle else len(state.weights)
        return DeviceTable(*self._trainer.add(state), self._device.empty(n_rows, np.int32))

    def end_epoch(self, n_batches):
        """Let all rows catch up on the steps that they have missed, after ``n_batches``."""
        for copy in () if self.idle else self._copies.values():
            self._device.run(
                CATCH_UP_ALL, (self.nothing._replace(table=copy), self.step), 32,
                len(copy.weights), (n_batches + 1, n_batches + 2), self._formulas,
            )  # fmt: skip
        self._trainer.changed()
