"""Tables of user and item vectors: rows gathered for a batch, gradients summed and applied.

A batch objective leaves its gradient as occurrences: this token's row moves along this multiple
of that source row. Each thread lists the occurrences of the tokens it owns, sums them in their
order and steps the token's row, so no bit depends on the number of threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel, subroutine
from freqfm.backends.cpu.ownership import owner
from freqfm.formulas.codes import (
    BETA_1,
    BETA_2,
    CATCH_UP_FACTOR,
    CATCH_UP_NONE,
    DECAY_BATCH,
    DECAY_NONE,
    STEP_ADAM,
)
from freqfm.formulas.rng import hash64
from freqfm.formulas.steps import present_rate, row_rate, step_row


class Table(NamedTuple):
    """A table of vectors with the state of its optimizer; arrays of no use are empty."""

    weights: np.ndarray  #: (n, d), float32
    per_row: np.ndarray  #: (n,), learning rates or counters, float32
    first: np.ndarray  #: (n, d) or (n, 1), float32
    second: np.ndarray  #: (n, d), float32
    caught_up: np.ndarray  #: (n,), the last step a row has made, int64
    heads: np.ndarray  #: (n,), int32, scratch; -1 between batches


class Rule(NamedTuple):
    """How rows step and how they decay, see ``freqfm.formulas.codes``."""

    step_code: int
    rate_code: int
    count_code: int
    catch_up: int
    decay_code: int
    decoupled: bool
    average: bool
    decay: float  #: weight decay of a row that a batch touches
    idle_decay: float  #: and of one that it does not


class Clock(NamedTuple):
    """Steps of the present epoch."""

    first_step: int
    #: (n_batches + 1, 2), Adam's bias corrections of the steps from ``first_step`` on; float64.
    corrections: np.ndarray


class Epoch(NamedTuple):
    """The positives in the order of an epoch, in rows of one user each, in batches of rows."""

    items: np.ndarray  #: (n_pairs,), int32
    weights: np.ndarray  #: (n_pairs,), float32
    row_starts: np.ndarray  #: (n_rows + 1,), int64
    row_users: np.ndarray  #: (n_rows,), int32
    batch_starts: np.ndarray  #: (n_batches + 1,), rows, int64


class Occurrences(NamedTuple):
    """A batch's gradient: row ``tokens[p]`` moves along ``multiples[p]`` times a source row."""

    tokens: np.ndarray  #: (m,), int32
    rows: np.ndarray  #: (m,), of the sources, int32
    multiples: np.ndarray  #: (m,), float32
    nexts: np.ndarray  #: (size, m), int32, scratch of each thread
    touched: np.ndarray  #: (size, m + 1), int32
    gradients: np.ndarray  #: (size, d or more), float32


# Floats of padding between the scratch of two threads: no cache line is shared.
_PADDING = 32


def row_scratch(width, size):
    """Return a row of ``width`` for each of ``size`` threads."""
    return np.zeros((size, width + _PADDING), dtype=np.float32)


def empty_occurrences(n, width, size):
    """Return Occurrences for at most ``n`` of rows of ``width``, and ``size`` threads."""
    return Occurrences(
        tokens=np.zeros(n, dtype=np.int32),
        rows=np.zeros(n, dtype=np.int32),
        multiples=np.zeros(n, dtype=np.float32),
        nexts=np.zeros((size, n), dtype=np.int32),
        touched=np.zeros((size, n + 1), dtype=np.int32),
        gradients=row_scratch(width, size),
    )


# Passed for ``n_unit``; of the type of the other numbers, so that nothing compiles twice.
NO_UNIT = np.int64(0)

# A row of length zero has no direction; this length keeps its gradient finite.
_SHORTEST = np.float32(1e-12)

# Dropout looks at 16 bits of a hash for each weight, four weights a hash.
_BITS = np.uint64(16)
_LOW_BITS = np.uint64(0xFFFF)
_LEVELS = 65536.0
_LANES = 4


@inlined
def row_length(table, k, n_unit):
    """Return the length of the first ``n_unit`` numbers of row ``k``, at least a tiny number."""
    squares = ZERO
    for f in range(n_unit):
        squares += table[k, f] * table[k, f]
    return max(np.float32(math.sqrt(squares)), _SHORTEST)


@inlined
def gather_row(table, k, n_unit, out, j):
    """Copy row ``k`` into row ``j`` of ``out``, its first ``n_unit`` numbers at unit length."""
    scale = ONE / row_length(table, k, n_unit) if n_unit > 0 else ONE
    for f in range(n_unit):
        out[j, f] = scale * table[k, f]
    for f in range(n_unit, table.shape[1]):
        out[j, f] = table[k, f]


@inlined
def gather_dropped_row(table, k, cosine, dropout, key, mask, out, j):
    """Copy row ``k`` with some weights dropped; return the length it had before normalisation.

    ``mask[j]`` keeps what the weights were multiplied by: zero, or 1 / (1 - dropout). Without
    dropout it is not written.
    """
    width = table.shape[1]
    if dropout == 0.0:
        length = row_length(table, k, width) if cosine else ONE
        scale = ONE / length
        for f in range(width):
            out[j, f] = scale * table[k, f]
        return length
    threshold = np.uint64(dropout * _LEVELS)
    kept = np.float32(1.0 / (1.0 - dropout))
    squares = ZERO
    for start in range(0, width, _LANES):
        bits = hash64(key + np.uint64(start))
        for f in range(start, min(start + _LANES, width)):
            mask[j, f] = kept if (bits & _LOW_BITS) >= threshold else ZERO
            bits >>= _BITS
    for f in range(width):
        out[j, f] = mask[j, f] * table[k, f]
        squares += out[j, f] * out[j, f]
    if not cosine:
        return ONE
    length = max(np.float32(math.sqrt(squares)), _SHORTEST)
    scale = ONE / length
    for f in range(width):
        out[j, f] *= scale
    return length


@inlined
def through_dropout(gradient, dropout, mask, j):
    """Turn the gradient of row ``j`` by the dropped vector into that by the vector."""
    if dropout > 0.0:
        for f in range(gradient.shape[1]):
            gradient[j, f] *= mask[j, f]


# After so many steps without a gradient the momentum of Adam, by default, is 1e-9 of what it was.
_MOST_REPLAYED = 200

# Floats of a cache line.
_LINE = 16


@inlined
def touch_row(table, k):
    """Read a number of every cache line of row ``k``; return their sum.

    A loop of these has many misses in flight; the work that follows finds its rows in the cache.
    """
    total = ZERO
    for f in range(0, table.shape[1], _LINE):
        total += table[k, f]
    return total


@inlined
def through_normalisation(gradient, j, unit, i, length):
    """Turn a gradient by the unit vector u into that by the vector: (g - <g, u> u) / length."""
    along = ZERO
    for f in range(unit.shape[1]):
        along += gradient[j, f] * unit[i, f]
    scale = ONE / length
    for f in range(unit.shape[1]):
        gradient[j, f] = (gradient[j, f] - along * unit[i, f]) * scale


@inlined
def _catch_up_row(k, step, clock, rule, hyper, table, gradient):
    """Make up the steps before ``step`` that row ``k`` has missed.

    In each its gradient was that of the penalty alone. For SGD, and for a decoupled decay, that is
    a power of 1 - rate * decay. All others replay the steps: in the cache that is far cheaper than
    moving the whole table in every batch. Without a penalty Adam's momentum is soon gone, and then
    nothing moves but the moments themselves.
    """
    missed = step - 1 - table.caught_up[k]
    if missed <= 0:
        return
    table.caught_up[k] = step - 1
    width = table.weights.shape[1]
    rate = present_rate(rule.rate_code, hyper, table.per_row, k, ZERO)
    if rule.catch_up == CATCH_UP_FACTOR:
        power = np.float32(math.pow(1.0 - rate * rule.idle_decay, missed))
        for f in range(width):
            table.weights[k, f] *= power
        return
    penalty = np.float32(rule.idle_decay)
    n_replayed = missed
    if rule.step_code == STEP_ADAM and rule.idle_decay == 0.0:
        n_replayed = min(missed, _MOST_REPLAYED)
    for s in range(step - missed, step - missed + n_replayed):
        for f in range(width):
            gradient[f] = penalty * table.weights[k, f]
        own = s - clock.first_step
        step_row(
            rule.step_code,
            hyper,
            np.float32(rate / clock.corrections[own, 0]),
            np.float32(clock.corrections[own, 1]),
            table.weights,
            k,
            gradient,
            table.first,
            table.second,
        )
    if n_replayed < missed:
        first = np.float32(math.pow(hyper[BETA_1], missed - n_replayed))
        second = np.float32(math.pow(hyper[BETA_2], missed - n_replayed))
        for f in range(width):
            table.first[k, f] *= first
            table.second[k, f] *= second


@subroutine
def catch_up(me, team, n, tokens, step, clock, rule, hyper, table, gradient):
    """Make up the missed steps of those of ``tokens[:n]`` that this thread owns."""
    for p in range(n):
        k = np.uint64(tokens[p])
        if owner(k, team) == me:
            _catch_up_row(k, step, clock, rule, hyper, table, gradient)


@kernel
def catch_up_all(rank, size, barrier, step, clock, rule, hyper, table, gradients):
    """Make up the missed steps of every row of a table, up to and including ``step``."""
    me = np.uint64(rank)
    team = np.uint64(size)
    for t in range(table.weights.shape[0]):
        k = np.uint64(t)
        if owner(k, team) == me:
            _catch_up_row(k, step + 1, clock, rule, hyper, table, gradients[rank])


@inlined
def _sum_occurrences(head, occurrences, nexts, sources, gradient):
    """Write the sum of a token's occurrences to ``gradient``; return how many there are."""
    width = sources.shape[1]
    p = np.uint64(head)
    j = np.uint64(occurrences.rows[p])
    x = occurrences.multiples[p]
    for f in range(width):
        gradient[f] = x * sources[j, f]
    n_seen = 1
    link = nexts[p]
    while link >= 0:
        p = np.uint64(link)
        j = np.uint64(occurrences.rows[p])
        x = occurrences.multiples[p]
        link = nexts[p]
        n_seen += 1
        for f in range(width):
            gradient[f] += x * sources[j, f]
    return n_seen


@inlined
def through_unit_row(gradient, weights, k, n_unit):
    """Turn a gradient by what ``gather_row`` makes of row ``k`` into that by the row."""
    if n_unit == 0:
        return
    length = row_length(weights, k, n_unit)
    along = ZERO
    for f in range(n_unit):
        along += gradient[f] * weights[k, f]
    along /= length * length
    inverse = ONE / length
    for f in range(n_unit):
        gradient[f] = (gradient[f] - along * weights[k, f]) * inverse


@inlined
def move_row(k, n_seen, share, gradient, table, rule, hyper, step, clock):
    """Step row ``k`` along its gradient, and shrink it.

    A batch holds the row ``n_seen`` times; the penalty on touched rows counts ``share`` times.
    """
    weights = table.weights
    width = weights.shape[1]
    rate = row_rate(
        rule.rate_code, rule.count_code, hyper, table.per_row, k, np.float64(n_seen), 0.0
    )
    if rule.decay_code != DECAY_NONE:
        if rule.decoupled:
            power = np.float32(1.0 - rate * rule.decay)
            for f in range(width):
                weights[k, f] *= power
        else:
            penalty = np.float32(rule.decay * (share if rule.decay_code == DECAY_BATCH else 1.0))
            for f in range(width):
                gradient[f] += penalty * weights[k, f]
    if rule.catch_up != CATCH_UP_NONE:
        table.caught_up[k] = step
    step_row(
        rule.step_code,
        hyper,
        np.float32(rate / clock.corrections[step - clock.first_step, 0]),
        np.float32(clock.corrections[step - clock.first_step, 1]),
        weights,
        k,
        gradient,
        table.first,
        table.second,
    )


@subroutine
def apply_gradients(
    rank, size, n, occurrences, sources, n_unit, table, rule, hyper, step, clock, scale
):
    """Sum the ``n`` occurrences of the tokens this thread owns, and step their rows.

    Sources are gradients by rows whose first ``n_unit`` numbers are at unit length. ``scale`` is
    one over the weight of the batch, by which the penalty on touched rows is multiplied.
    """
    me = np.uint64(rank)
    team = np.uint64(size)
    nexts = occurrences.nexts[rank]
    touched = occurrences.touched[rank]
    gradient = occurrences.gradients[rank]
    n_touched = 0
    for back in range(n):
        p = np.uint64(n - 1 - back)
        k = np.uint64(occurrences.tokens[p])
        if owner(k, team) != me:
            continue
        head = table.heads[k]
        touched[np.uint64(n_touched)] = k
        n_touched += head < 0
        nexts[p] = head
        table.heads[k] = p
    for t in range(n_touched):
        k = np.uint64(touched[np.uint64(t)])
        head = table.heads[k]
        table.heads[k] = -1
        n_seen = _sum_occurrences(head, occurrences, nexts, sources, gradient)
        through_unit_row(gradient, table.weights, k, n_unit)
        move_row(k, n_seen, n_seen * scale, gradient, table, rule, hyper, step, clock)
