"""Tables of vectors on a GPU: rows gathered for a batch, gradients summed and applied.

A batch leaves its gradient as occurrences: a row moves along a multiple of a source row. A group
takes all occurrences of a row, see ``groups``, sums them in their order and moves the row, so the
bits do not depend on the grid.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.base import UpdateRule
from freqfm.backends.cuda.groups import Touched, first_of_lanes, group_sum, synchronize_group
from freqfm.formulas.codes import (
    BETA_1,
    BETA_2,
    CATCH_UP_FACTOR,
    CATCH_UP_NONE,
    COUNT_SAMPLES,
    DECAY_BATCH,
    DECAY_NONE,
    EPSILON,
    RATE_COUNTED,
    STEP_ADAM,
    STEP_ROWWISE_ADAGRAD,
)
from freqfm.formulas.rng import hash64
from freqfm.formulas.special import exp_of_minus
from freqfm.formulas.steps import momentum_steps, present_rate, sgd_step, step_element

COLUMNS = 4

FOUR_ZEROS = (ZERO, ZERO, ZERO, ZERO)


@inlined
def four_columns(group, f, width):
    """Return the columns of a lane from ``f`` on; the first in place of those that are outside."""
    g, h, i = f + group.n_lanes, f + 2 * group.n_lanes, f + 3 * group.n_lanes
    return f, (g if g < width else f), (h if h < width else f), (i if i < width else f)


@inlined
def read(array, k, columns):
    """Return four elements of a row."""
    f, g, h, i = columns
    return array[k, f], array[k, g], array[k, h], array[k, i]


@inlined
def moved(columns, by):
    """Return columns further behind."""
    f, g, h, i = columns
    return by + f, by + g, by + h, by + i


@inlined
def read_from(array, begin, columns):
    """Return four elements of a row that begins at a place of a one-dimensional array."""
    f, g, h, i = moved(columns, begin)
    return array[f], array[g], array[h], array[i]


@inlined
def write(array, k, columns, values):
    """Write four elements of a row; one that stands for those outside is the same."""
    f, g, h, i = columns
    array[k, f], array[k, g], array[k, h], array[k, i] = values


@inlined
def times(x, values):
    """Return four values times ``x``."""
    return x * values[0], x * values[1], x * values[2], x * values[3]


@inlined
def products(u, v):
    """Return the products of four values each."""
    return u[0] * v[0], u[1] * v[1], u[2] * v[2], u[3] * v[3]


@inlined
def add(u, v):
    """Return the sums of four values each."""
    return u[0] + v[0], u[1] + v[1], u[2] + v[2], u[3] + v[3]


@inlined
def sum_inside(columns, values):
    """Return the sum of four values without those of columns that are outside."""
    f, g, h, i = columns
    total = values[0] + (values[1] if g > f else ZERO)
    return total + ((values[2] if h > f else ZERO) + (values[3] if i > f else ZERO))


@inlined
def largest_of(values):
    """Return the largest of four values."""
    return max(max(values[0], values[1]), max(values[2], values[3]))


@inlined
def exponentials(shift, values):
    """Return exp(value - shift) of four values, at most ``shift``."""
    return (
        exp_of_minus(shift - values[0]),
        exp_of_minus(shift - values[1]),
        exp_of_minus(shift - values[2]),
        exp_of_minus(shift - values[3]),
    )


def rule_for_device(rule):
    """Return an UpdateRule with numbers of float32, as float64 is slow on most GPUs.

    ``hyper`` is a tuple: a kernel reads it without the delay of an array in memory.
    """
    return rule._replace(
        decay=np.float32(rule.decay),
        idle_decay=np.float32(rule.idle_decay),
        hyper=tuple(map(np.float32, rule.hyper)),
    )


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


@inlined
def rate_of_row(group, rule, per_row, k, n_seen, curvature):
    """Return the learning rate of row ``k``, whose counter advances, to all lanes."""
    rate = ZERO
    if group.lane == 0:
        if rule.rate_code == RATE_COUNTED:
            per_row[k] += np.float32(n_seen) if rule.count_code == COUNT_SAMPLES else ONE
        rate = present_rate(rule.rate_code, rule.hyper, per_row, k, curvature)
    return first_of_lanes(group, rate)


@inlined
def root_of_row(group, rule, first, place, squares, width):
    """Add the lanes' squares of a gradient to the state of row-wise Adagrad; return its root."""
    squares, total = group_sum(group, squares), ZERO
    if group.lane == 0:
        total = first[place] + squares / np.float32(width)
        first[place] = total
    total = first_of_lanes(group, total)
    return np.float32(math.sqrt(total)) + np.float32(rule.hyper[EPSILON])


@inlined
def move_weight(rule, rate, root, weights, place, gradient, first, second):
    """Move one weight; the rate of row-wise Adagrad is divided by ``root_of_row`` already."""
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        weights[place] = sgd_step(weights[place], gradient, rate)
    else:
        step_element(rule, rate, root, weights, place, gradient, first, second)


# A row of length zero has no direction; this length keeps its gradient finite.
_SHORTEST = np.float32(1e-12)


class DeviceTable(NamedTuple):
    """A table with its optimizer state; unused arrays are empty."""

    weights: np.ndarray  #: (n, d), float32
    per_row: np.ndarray  #: (n,), learning rates or counters, float32
    first: np.ndarray  #: (n, d) or (n, 1), float32
    second: np.ndarray  #: (n, d), float32
    caught_up: np.ndarray  #: (n,), the last step of the epoch that a row has made, int32; or empty


class Step(NamedTuple):
    """How rows move in the steps of an epoch, which are counted from 1."""

    rule: UpdateRule  #: with numbers of float32
    corrections: np.ndarray  #: (n_batches + 1, 2), divisors of the rate and the root; float32


class Side(NamedTuple):
    """The users of a call, or its items."""

    table: DeviceTable
    touched: Touched
    rows: np.ndarray  #: (m,), the source row of each occurrence of a batch, int32
    multiples: np.ndarray  #: (m,), float32
    gradients: np.ndarray  #: (m, d), sums of the occurrences of a row, at its first one
    n_seen: int  #: how often a batch is taken to hold each of its rows; 0 to count occurrences


class Dropout(NamedTuple):
    """Of numbers in a row."""

    threshold: int  #: of 16 random bits, uint64; 0 for none
    kept: float  #: factor of numbers that are kept, float32


def dropout_of(rate):
    """Return the Dropout of a share of all numbers."""
    return Dropout(np.uint64(rate * 65536), np.float32(1 / (1 - rate)))


# Rows read for a batch.


@inlined
def dot(group, a, i, b, j, width):
    """Return the dot product of the first ``width`` elements of two rows, to all lanes."""
    total = ZERO
    for f in range(group.lane, width, group.n_lanes):
        total += a[i, f] * b[j, f]
    return group_sum(group, total)


@inlined
def row_scale(group, table, k, n_unit):
    """Return one over the length of the first ``n_unit`` numbers of row ``k``; 1 for none."""
    if n_unit == 0:
        return ONE
    squares = ZERO
    for f in range(group.lane, n_unit, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, n_unit)
        values = read(table, k, columns)
        squares += sum_inside(columns, products(values, values))
    return ONE / max(np.float32(math.sqrt(group_sum(group, squares))), _SHORTEST)


@inlined
def unit_element(table, k, f, scale, n_unit):
    """Return number ``f`` of row ``k``, of which the first ``n_unit`` are multiplied by a scale."""
    value = table[k, f]
    return scale * value if f < n_unit else value


@inlined
def unit_elements(table, k, columns, scale, n_unit):
    """Return four numbers of row ``k``, see ``unit_element``."""
    f, g, h, i = columns
    return (
        unit_element(table, k, f, scale, n_unit),
        unit_element(table, k, g, scale, n_unit),
        unit_element(table, k, h, scale, n_unit),
        unit_element(table, k, i, scale, n_unit),
    )


@inlined
def score_row(group, table, k, n_unit, queries, r):
    """Return the score of row ``k`` by query ``r``, and the scale of the row's first numbers."""
    (scale, total), width = (row_scale(group, table, k, n_unit), ZERO), table.shape[1]
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        values = unit_elements(table, k, columns, scale, n_unit)
        total += sum_inside(columns, products(values, read(queries, r, columns)))
    return group_sum(group, total), scale


@inlined
def gather_row(group, table, k, n_unit, out, j, columns):
    """Copy row ``k`` to row ``j`` of ``out`` and, if that has rows, to column ``j`` of ``columns``.

    Its first ``n_unit`` numbers get unit length.
    """
    scale, width = row_scale(group, table, k, n_unit), table.shape[1]
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        places = four_columns(group, f, width)
        values = unit_elements(table, k, places, scale, n_unit)
        write(out, j, places, values)
        if columns.shape[0] > 0:
            write(columns.T, j, places, values)


@inlined
def dropped(dropout, key, f):
    """Return the factor of element ``f`` of a row; a hash serves four elements, 16 bits each."""
    if dropout.threshold == np.uint64(0):
        return ONE
    bits = hash64(key + np.uint64(f // 4 * 4)) >> np.uint64(16 * (f % 4))
    return dropout.kept if (bits & np.uint64(0xFFFF)) >= dropout.threshold else ZERO


@inlined
def _read_dropped(table, k, columns, dropout, key):
    """Return four numbers of row ``k``, of which some are dropped."""
    f, g, h, i = columns
    kept = (
        dropped(dropout, key, f),
        dropped(dropout, key, g),
        dropped(dropout, key, h),
        dropped(dropout, key, i),
    )
    return products(kept, read(table, k, columns))


@inlined
def gather_dropped_row(group, table, k, cosine, dropout, key, out, j):
    """Copy row ``k`` with some numbers dropped; return its length if ``cosine``, else 1."""
    length, width = ONE, table.shape[1]
    if cosine:
        squares = ZERO
        for f in range(group.lane, width, COLUMNS * group.n_lanes):
            columns = four_columns(group, f, width)
            values = _read_dropped(table, k, columns, dropout, key)
            squares += sum_inside(columns, products(values, values))
        length = max(np.float32(math.sqrt(group_sum(group, squares))), _SHORTEST)
    scale = ONE / length
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        write(out, j, columns, times(scale, _read_dropped(table, k, columns, dropout, key)))
    return length


@inlined
def through_dropout(group, gradients, dropout, key, j):
    """Backpropagate the gradient in row ``j`` through dropout."""
    if dropout.threshold != np.uint64(0):
        for f in range(group.lane, gradients.shape[1], group.n_lanes):
            gradients[j, f] *= dropped(dropout, key, f)


@inlined
def through_normalisation(group, gradients, units, r, length):
    """Backpropagate the gradient in row ``r`` by a unit vector u to (g - <g, u> u) / length."""
    along, scale = dot(group, gradients, r, units, r, units.shape[1]), ONE / length
    for f in range(group.lane, units.shape[1], group.n_lanes):
        gradients[r, f] = (gradients[r, f] - along * units[r, f]) * scale


# Steps.


@inlined
def _gradient_of(side, k, row, penalty, f):
    """Return number ``f`` of the gradient of row ``k``, with that of its penalty."""
    total = penalty * side.table.weights[k, f]
    if row >= 0:
        total += side.gradients[row, f]
    return total


@inlined
def _step_row(group, side, places, rate, number, penalty, step):
    """Make step ``number`` of the epoch; ``places`` are a row and that of its gradient, or -1."""
    table, rule, (k, row) = side.table, step.rule, places
    width = table.weights.shape[1]
    rate /= step.corrections[number, 0]
    root = step.corrections[number, 1]
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        squares = ZERO
        for f in range(group.lane, width, group.n_lanes):
            gradient = _gradient_of(side, k, row, penalty, f)
            squares += gradient * gradient
        rate /= root_of_row(group, rule, table.first, (k, 0), squares, width)
    for f in range(group.lane, width, group.n_lanes):
        gradient = _gradient_of(side, k, row, penalty, f)
        move_weight(rule, rate, root, table.weights, (k, f), gradient, table.first, table.second)


@inlined
def _power(base, n):
    """Return a factor between 0 and 1 to the power of an integer."""
    return np.float32(math.exp(np.float32(n) * np.float32(math.log(base))))


@inlined
def _shrink_missed(group, k, missed, rate, table, rule):
    """Multiply a row by the power of the factor that it shrinks by in a step."""
    shrinkage = rate * rule.idle_decay
    if shrinkage < HALF:
        power = math.exp(np.float32(missed) * np.float32(math.log1p(-shrinkage)))
    else:
        power = math.pow(ONE - shrinkage, np.float32(missed))
    for f in range(group.lane, table.weights.shape[1], group.n_lanes):
        table.weights[k, f] *= np.float32(power)


@inlined
def _catch_up_row(group, k, number, side, step):
    """Catch up on the steps before step ``number`` that row ``k`` has missed.

    In each of them its gradient was that of the penalty alone; see ``backends.cpu.tables``.
    """
    table, rule = side.table, step.rule
    missed = number - 1 - table.caught_up[k]
    if missed <= 0:
        return
    synchronize_group(group)
    if group.lane == 0:
        table.caught_up[k] = number - 1
    rate = present_rate(rule.rate_code, rule.hyper, table.per_row, k, ZERO)
    if rule.catch_up == CATCH_UP_FACTOR:
        _shrink_missed(group, k, missed, rate, table, rule)
        return
    n_replayed = missed
    if rule.step_code == STEP_ADAM and rule.idle_decay == ZERO:
        n_replayed = min(missed, momentum_steps(rule.hyper[BETA_1]))
    for s in range(n_replayed):
        _step_row(group, side, (k, -1), rate, number - missed + s, rule.idle_decay, step)
    if n_replayed < missed:
        first = _power(rule.hyper[BETA_1], missed - n_replayed)
        second = _power(rule.hyper[BETA_2], missed - n_replayed)
        for f in range(group.lane, table.weights.shape[1], group.n_lanes):
            table.first[k, f] *= first
            table.second[k, f] *= second


@inlined
def _begins_row(touched, start, e):
    """Return whether occurrence ``e`` is the first of its row in a batch from ``start`` on."""
    return e == start or touched.tokens[e - 1] != touched.tokens[e]


@inlined
def catch_up_rows(group, batch, number, side, step):
    """Let the rows of a batch of the call catch up on the steps that they have missed."""
    touched = side.touched
    start, end = touched.starts[batch], touched.starts[batch + 1]
    for e in range(start + group.rank, end, group.size):
        if _begins_row(touched, start, e):
            _catch_up_row(group, touched.tokens[e], number, side, step)


@inlined
def _catch_up_all(group, number, args):
    """Let all rows catch up on the steps of an epoch before step ``number``."""
    side, step = args
    for k in range(group.rank, side.table.weights.shape[0], group.size):
        _catch_up_row(group, k, number, side, step)


@inlined
def _of_occurrence(side, p, last, sources, columns):
    """Return four numbers of the gradient by an occurrence: zeros from the last on."""
    o = side.touched.sources[min(p, last - 1)]
    multiple = side.multiples[o]
    return times(multiple if p < last else ZERO, read(sources, side.rows[o], columns))


@inlined
def _sum_occurrences(group, e, start, end, side, sources):
    """Write the sum of the occurrences of a row; return how many there are."""
    touched, width, last = side.touched, sources.shape[1], e + 1
    while last < end and touched.tokens[last] == touched.tokens[e]:
        last += 1
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns, total = four_columns(group, f, width), FOUR_ZEROS
        # Four at a time, so that they are read in parallel.
        for p in range(e, last, 4):
            total = add(total, _of_occurrence(side, p, last, sources, columns))
            total = add(total, _of_occurrence(side, p + 1, last, sources, columns))
            total = add(total, _of_occurrence(side, p + 2, last, sources, columns))
            total = add(total, _of_occurrence(side, p + 3, last, sources, columns))
        write(side.gradients, e - start, columns, total)
    return last - e


@inlined
def _through_unit_row(group, row, k, n_unit, side):
    """Backpropagate a gradient through what ``gather_row`` does to row ``k``."""
    weights, gradients = side.table.weights, side.gradients
    squares, along = ZERO, ZERO
    for f in range(group.lane, n_unit, group.n_lanes):
        squares += weights[k, f] * weights[k, f]
        along += gradients[row, f] * weights[k, f]
    length = max(np.float32(math.sqrt(group_sum(group, squares))), _SHORTEST)
    along = group_sum(group, along) / (length * length)
    scale = ONE / length
    for f in range(group.lane, n_unit, group.n_lanes):
        gradients[row, f] = (gradients[row, f] - along * weights[k, f]) * scale


@inlined
def _move_row(group, row, k, n_seen, mean, number, side, step):
    """Step row ``k`` along its gradient, and apply its weight decay.

    The penalty on rows that a batch holds is that for each occurrence, times ``mean``.
    """
    table, rule = side.table, step.rule
    rate = rate_of_row(group, rule, table.per_row, k, n_seen, ZERO)
    penalty = ZERO
    if rule.decay_code != DECAY_NONE:
        if rule.decoupled:
            for f in range(group.lane, table.weights.shape[1], group.n_lanes):
                table.weights[k, f] *= ONE - rate * rule.decay
        elif rule.decay_code == DECAY_BATCH:
            penalty = rule.decay * np.float32(n_seen) * mean
        else:
            penalty = rule.decay
    if rule.catch_up != CATCH_UP_NONE and group.lane == 0:
        table.caught_up[k] = number
    _step_row(group, side, (k, row), rate, number, penalty, step)


@inlined
def apply_gradients(group, batch, number, side, sources, n_unit, mean, step):
    """Sum the occurrences of each row of a batch of the call, and move the rows.

    Parameters
    ----------
    batch, number : int
        Of the batch in the call, and of the step in the epoch.
    side : Side
    sources : ndarray
        Gradients by rows whose first ``n_unit`` numbers are at unit length.
    n_unit : int
    mean : float
        One over the weight of the batch, by which the penalty on touched rows is multiplied.
    step : Step
    """
    touched = side.touched
    start, end = touched.starts[batch], touched.starts[batch + 1]
    for e in range(start + group.rank, end, group.size):
        if _begins_row(touched, start, e):
            k = touched.tokens[e]
            n_seen = _sum_occurrences(group, e, start, end, side, sources)
            if side.n_seen > 0:
                n_seen = side.n_seen
            if n_unit > 0:
                _through_unit_row(group, e - start, k, n_unit, side)
            _move_row(group, e - start, k, n_seen, mean, number, side, step)


@inlined
def move_all(group, number, side, n_seen, step):
    """Move all rows of a table along the gradients of ``side``, a mean or sum over ``n_seen``."""
    mean = ONE / np.float32(n_seen)
    for k in range(group.rank, side.table.weights.shape[0], group.size):
        _move_row(group, k, k, n_seen, mean, number, side, step)


CATCH_UP_ALL = (_catch_up_all,)
