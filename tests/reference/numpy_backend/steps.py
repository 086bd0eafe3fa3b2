"""Steps of optimizers, for many rows at once; formulas as in the papers and in ``torch.optim``."""

import numpy as np

from freqfm.backends.base import Trainer
from freqfm.formulas import codes
from freqfm.formulas.steps import step_columns


class Steps:
    """How rows of tables move.

    Parameters
    ----------
    rule : UpdateRule
    formulas : dict, default=None
        Custom formulas, by the functions of the package that they replace.
    """

    def __init__(self, rule, formulas=None):
        self.rule, self._custom_step = rule, (formulas or {}).get(step_columns)

    def count(self, per_row, rows, weights):
        """Advance the counters of rows by their weights in a batch."""
        if self.rule.rate_code == codes.RATE_COUNTED:
            per_row[rows] += weights if self.rule.count_code == codes.COUNT_SAMPLES else 1

    def rates(self, per_row, rows, curvatures=0.0):
        """Return the learning rates of rows at the current values of their counters."""
        hyper = self.rule.hyper
        if self.rule.rate_code == codes.RATE_GIVEN:
            return per_row[rows].astype(np.float64)
        if self.rule.rate_code == codes.RATE_CONSTANT:
            return np.full(len(rows), hyper[codes.LEARNING_RATE])
        with np.errstate(divide="ignore"):
            powers = per_row[rows].astype(np.float64) ** hyper[codes.EXPONENT]
            rate = np.minimum(hyper[codes.MAX_STEP], hyper[codes.LEARNING_RATE] / powers)
            return np.minimum(rate, np.divide(hyper[codes.CURVATURE_CAP], curvatures))

    def step(self, table, rows, gradient, rate, corrections):
        """Move rows of a table along their gradients, (n_rows, d), at a rate for each row.

        ``corrections`` divide the rate and the root of the second moment.
        """
        hyper, code = self.rule.hyper, self.rule.step_code
        weights, first, second = table.weights, table.first, table.second
        rate = (rate / corrections[0])[:, None]
        epsilon = hyper[codes.EPSILON]
        if self._custom_step is not None:
            self._step_by_row(table, rows, gradient, rate, corrections[1])
        elif code == codes.STEP_SGD:
            weights[rows] -= rate * gradient
        elif code == codes.STEP_ADAGRAD:
            first[rows] += gradient**2
            weights[rows] -= rate * gradient / (np.sqrt(first[rows]) + epsilon)
        elif code == codes.STEP_ROWWISE_ADAGRAD:
            first[rows] += (gradient**2).mean(axis=1, keepdims=True)
            weights[rows] -= rate * gradient / (np.sqrt(first[rows]) + epsilon)
        elif code == codes.STEP_ADAM:
            beta_1, beta_2 = hyper[codes.BETA_1], hyper[codes.BETA_2]
            first[rows] = mean = beta_1 * first[rows] + (1 - beta_1) * gradient
            second[rows] = square = beta_2 * second[rows] + (1 - beta_2) * gradient**2
            weights[rows] -= rate * mean / (np.sqrt(square) / corrections[1] + epsilon)
        elif code == codes.STEP_STORE:
            first[rows] = gradient

    def _step_by_row(self, table, rows, gradient, rate, correction):
        for k, of_row, along in zip(rows, rate[:, 0], np.float32(gradient), strict=True):
            self._custom_step(
                self.rule, np.float32(of_row), np.float32(correction),
                table.weights, (k, 0, len(along)), along, table.first, table.second,
            )  # fmt: skip

    def move(self, table, gradient, n_seen, share, corrections, curvatures=None):
        """Step all rows of a TrainedTable: those that a batch holds, and those that it does not.

        ``gradient`` (n, d) and ``n_seen`` (n,), how often the batch holds each row, are of the
        whole table; the penalty on touched rows counts ``share`` times. ``curvatures`` (n,) bound
        the rates from counters.
        """
        rule = self.rule
        touched, idle = np.flatnonzero(n_seen), np.flatnonzero(n_seen == 0)
        self.count(table.per_row, touched, n_seen[touched])
        bounds = 0.0 if curvatures is None else curvatures[touched]
        gradient, rate = gradient[touched], self.rates(table.per_row, touched, bounds)
        if rule.decay_code != codes.DECAY_NONE and rule.decoupled:
            table.weights[touched] *= 1 - rate[:, None] * rule.decay
        elif rule.decay_code != codes.DECAY_NONE:
            once = rule.decay_code == codes.DECAY_FULL
            times = np.broadcast_to(1.0 if once else share, n_seen.shape)[touched]
            gradient = gradient + rule.decay * times[:, None] * table.weights[touched]
        self.step(table, touched, gradient, rate, corrections)
        if rule.catch_up == codes.CATCH_UP_NONE:
            return
        rate = self.rates(table.per_row, idle)
        if rule.catch_up == codes.CATCH_UP_FACTOR:
            table.weights[idle] *= 1 - rate[:, None] * rule.idle_decay
        else:
            penalty = rule.idle_decay * table.weights[idle].astype(np.float64)
            self.step(table, idle, penalty, rate, corrections)


class TableEpochs(Trainer):
    """What ``Backend.table_trainer`` returns."""

    def __init__(self, rule, formulas):
        self._steps = Steps(rule, formulas)

    def begin_tables(self, tables, first_step, corrections):
        """Set the tables of an epoch."""
        self._tables, self._corrections = tables, corrections
        self._n_steps = dict.fromkeys(tables, 0)

    def step_rows(self, name, rows, gradients, n, counts=None, mean=1.0):
        """Move rows of a table along their gradients in the ``n``-th step of the epoch."""
        self._idle_until(name, n - 1)
        table = self._tables[name]
        gradient, n_seen = np.zeros(table.weights.shape), np.zeros(len(table.weights))
        gradient[rows], n_seen[rows] = gradients, 1 if counts is None else counts
        self._move(name, gradient, n_seen, n_seen * mean)

    def catch_up_tables(self, n):
        """Move tables that were not stepped."""
        for name in self._tables:
            self._idle_until(name, n)

    def _idle_until(self, name, n):
        table = self._tables[name]
        while self._n_steps[name] < n:
            self._move(name, np.zeros(table.weights.shape), np.zeros(len(table.weights)))

    def _move(self, name, gradient, n_seen, share=1.0):
        self._n_steps[name] += 1
        corrections = self._corrections[self._n_steps[name]]
        self._steps.move(self._tables[name], gradient, n_seen, share, corrections)
