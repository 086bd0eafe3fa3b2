"""Base class of trainers of tables: a team of threads, the tables, and the optimizer's steps."""

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._threads import single_threaded_blas
from freqfm.backends.base import Trainer
from freqfm.backends.cpu.tables import (
    MovedRows,
    Step,
    Table,
    catch_up_all,
    row_scratch,
    step_rows,
)
from freqfm.backends.cpu.team import Team
from freqfm.formulas.codes import CATCH_UP_NONE

_NO_FLOATS = np.zeros(0, dtype=np.float32)
_NO_ROW = np.zeros((0, 1), dtype=np.float32)

#: Placeholder for a table that a model does not have.
NO_TABLE = Table(
    weights=_NO_ROW,
    per_row=_NO_FLOATS,
    first=_NO_ROW,
    second=_NO_ROW,
    caught_up=np.zeros(0, dtype=np.int64),
    heads=np.zeros(0, dtype=np.int32),
)


class TableTrainer(Trainer):
    """A team of threads that moves tables by an UpdateRule.

    Parameters
    ----------
    rule : UpdateRule
    n_threads : int
    formulas : dict, default=None
        Custom formulas.

    Attributes
    ----------
    team : Team
    tables : dict of Table
        The tables of the epoch.
    """

    def __init__(self, rule, n_threads, formulas=None):
        self.rule, self.n_threads = rule, n_threads
        self.team = Team(n_threads, formulas)
        self._heads = {}

    def _contexts(self):
        return [single_threaded_blas(), self.team]

    def begin_tables(self, tables, first_step, corrections):
        """Set the tables of an epoch; see ``RankingTrainer.begin_epoch``."""
        self._first_step, self._corrections = first_step, corrections
        self.tables = {name: self._table(name, state) for name, state in tables.items()}

    def _table(self, name, state):
        n = len(state.weights)
        if len(self._heads.get(name, ())) != n:
            self._heads[name] = aligned_zeros(n, np.int32)
            self._heads[name][:] = -1
        idle = self.rule.catch_up == CATCH_UP_NONE
        return Table(
            weights=state.weights.reshape(n, -1),
            per_row=state.per_row,
            first=state.first,
            second=state.second,
            caught_up=np.full(0 if idle else n, self._first_step, dtype=np.int64),
            heads=self._heads[name],
        )

    def step(self, n):
        """Return the step after ``n`` batches of the epoch."""
        return Step(self.rule, int(self._first_step + n), self._first_step, self._corrections)

    def step_rows(self, name, rows, gradients, n, counts=None, mean=1.0):
        """Move rows of a table in the ``n``-th step, see ``Backend.table_trainer``."""
        moved = MovedRows(
            rows=np.ascontiguousarray(rows, dtype=np.int64),
            gradients=np.array(gradients, dtype=np.float32, order="C"),
            counts=np.ones(len(rows)) if counts is None else np.array(counts, dtype=np.float64),
            mean=np.float64(mean),
        )
        self.team.run(step_rows, moved, self.tables[name], self.step(n))

    def catch_up_tables(self, n_batches):
        """Let all rows catch up on the steps that they have missed, after ``n_batches``."""
        if self.rule.catch_up == CATCH_UP_NONE:
            return
        for table in self.tables.values():
            gradients = row_scratch(table.weights.shape[1], self.n_threads)
            self.team.run(catch_up_all, table, self.step(n_batches), gradients)
