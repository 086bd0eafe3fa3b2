"""Tables of user and item vectors: rows gathered for a batch, gradients summed and applied.

A batch objective leaves its gradient as occurrences: this token's row moves along this multiple
of that source row. Each thread lists the occurrences of the tokens it owns, sums them in their
order and steps the token's row, so results are bitwise the same for any number of threads.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros, single_threaded_blas
from freqfm._numba.instructions import LINE, prefetch_row
from freqfm._numba.jit import ONE, ZERO, inlined, kernel, subroutine
from freqfm.backends.base import Batches, Trainer, UpdateRule
from freqfm.backends.cpu.team import Member, Team, synchronize
from freqfm.backends.cpu.vectors import add_multiple
from freqfm.formulas.codes import (
    BETA_1,
    BETA_2,
    CATCH_UP_FACTOR,
    CATCH_UP_NONE,
    DECAY_BATCH,
    DECAY_NONE,
    STEP_ADAM,
)
from freqfm.formulas.rng import hash64, stream_key
from freqfm.formulas.steps import (
    adam_constants,
    adam_step_without_gradient,
    momentum_steps,
    present_rate,
    row_rate,
    step_row,
)

# Sixteen consecutive tokens have the same owner: sixteen float32 of a vector indexed by token fill
# a cache line, and two threads that write to the same line wait for each other.
_NEIGHBOURS = np.uint64(4)


# The odd number closest to 2^32 over the golden ratio: multiples of it, modulo 2^32, are spread
# evenly, so that each thread gets as many of the frequent tokens, wherever these are.
_SPREAD, _LOW_HALF, _HALF = np.uint64(2654435769), np.uint64(0xFFFFFFFF), np.uint64(32)


@inlined
def owner(token, size):
    """Return which of ``size`` threads may write the rows of ``token``."""
    # A share of 2^32, because a division would take longer than all else that is done to find out.
    return ((((token >> _NEIGHBOURS) * _SPREAD) & _LOW_HALF) * size) >> _HALF


@inlined
def owns(rank, size, token):
    """Return whether thread ``rank`` of ``size`` may write the rows of ``token``."""
    return owner(token, np.uint64(size)) == np.uint64(rank)


class Table(NamedTuple):
    """A table of vectors with its optimizer state; unused arrays are empty."""

    weights: np.ndarray  #: (n, d), float32
    per_row: np.ndarray  #: (n,), learning rates or counters, float32
    first: np.ndarray  #: (n, d) or (n, 1), float32
    second: np.ndarray  #: (n, d), float32
    caught_up: np.ndarray  #: (n,), the last step a row has made, int64
    heads: np.ndarray  #: (n,), int32, scratch; -1 between batches


class Step(NamedTuple):
    """A step of the optimizer: how rows move, and which step of the training it is."""

    rule: UpdateRule
    number: int  #: counted from 1
    epoch_start: int  #: steps made before the epoch
    corrections: np.ndarray
    """(n_batches + 1, 2), Adam's bias corrections of the steps from ``epoch_start`` on; float64."""


class Occurrences(NamedTuple):
    """A batch's gradient: row ``tokens[p]`` moves along ``multiples[p]`` times a source row."""

    tokens: np.ndarray  #: (m,), int32
    rows: np.ndarray  #: (m,), of the sources, int32
    multiples: np.ndarray  #: (m,), float32
    nexts: np.ndarray  #: (size, m + 1 or more), int32, scratch of each thread
    touched: np.ndarray  #: (size, m + 1 or more), int32
    gradients: np.ndarray  #: (size, d or more), float32
    #: (m,), float32, the sum of which bounds a row's counted rate, see ``counted_rate``; or empty.
    curvatures: np.ndarray


class Side(NamedTuple):
    """The users of a batch, or its items."""

    table: Table
    occurrences: Occurrences


class Sides(NamedTuple):
    """The users and the items that a batch moves, and the step that moves them."""

    users: Side
    items: Side
    step: Step


class Span(NamedTuple):
    """The batches of an epoch that one call trains on."""

    data: Batches
    first_batch: int
    last_batch: int
    seed: int
    epoch: int


class Batch(NamedTuple):
    """One batch: its position in the epoch, and its size."""

    data: Batches
    number: int  #: counted from the first batch of the call
    first_row: int
    n_rows: int
    first_pair: int
    n_pairs: int
    first_pair_of_call: int
    weight: float  #: of its positives
    mean: float  #: one over that
    scale: float  #: the factor of gradients: ``mean``, or 1 for a sum
    key: int  #: random stream of the epoch's rows


@inlined
def batch_of(span, b, average):
    """Return batch ``b`` of an epoch, whose gradients are averaged or summed."""
    data = span.data
    first_row = data.batch_starts[b]
    n_rows = data.batch_starts[b + 1] - first_row
    first_pair = data.row_starts[first_row]
    n_pairs = data.row_starts[first_row + n_rows] - first_pair
    weight = 0.0
    for p in range(first_pair, first_pair + n_pairs):
        weight += data.weights[p]
    mean = 1.0 / weight
    return Batch(
        data,
        b - span.first_batch,
        first_row,
        n_rows,
        first_pair,
        n_pairs,
        data.row_starts[data.batch_starts[span.first_batch]],
        weight,
        mean,
        mean if average else 1.0,
        stream_key(span.seed, span.epoch),
    )


@inlined
def user_of(batch, r):
    """Return the user of row ``r`` of a batch."""
    return np.uint64(batch.data.row_users[batch.first_row + r])


@inlined
def key_of(batch, r):
    """Return the random stream of row ``r`` of a batch."""
    return hash64(batch.key + np.uint64(batch.first_row + r))


@inlined
def step_after(step, n):
    """Return the step ``n`` steps later."""
    return Step(step.rule, step.number + n, step.epoch_start, step.corrections)


@inlined
def has_terms(batch):
    """Return whether the vectors of rows are sums of several rows of the table of users."""
    return batch.data.terms.starts.shape[0] > 0


@inlined
def n_user_occurrences(batch):
    """Return how many occurrences ``list_users`` lists for all rows of a batch."""
    if not has_terms(batch):
        return batch.n_rows
    starts = batch.data.terms.starts
    return starts[batch.first_row + batch.n_rows] - starts[batch.first_row]


@inlined
def list_users(begin, end, batch, occurrences):
    """List the users of the rows ``begin`` to ``end``; each row is its user's source row.

    With terms these are listed, each with its row and its multiple.
    """
    if has_terms(batch):
        terms = batch.data.terms
        first = terms.starts[batch.first_row]
        for r in range(begin, end):
            row = batch.first_row + r
            for t in range(terms.starts[row], terms.starts[row + 1]):
                occurrences.tokens[t - first] = terms.tokens[t]
                occurrences.rows[t - first] = r
                occurrences.multiples[t - first] = terms.multiples[t]
        return
    for r in range(begin, end):
        occurrences.tokens[r] = batch.data.row_users[batch.first_row + r]
        occurrences.rows[r] = r
        occurrences.multiples[r] = ONE


def row_scratch(width, size):
    """Return a row of ``width`` for each of ``size`` threads, no two of them in a cache line."""
    return aligned_zeros((size, -(-width // LINE) * LINE))


def empty_occurrences(n, width, size, bounded=False):
    """Return Occurrences with room for ``n``, for rows of ``width`` and ``size`` threads."""
    lines = (n // LINE + 1) * LINE
    return Occurrences(
        tokens=aligned_zeros(n, np.int32),
        rows=aligned_zeros(n, np.int32),
        multiples=aligned_zeros(n),
        nexts=aligned_zeros((size, lines), np.int32),
        touched=aligned_zeros((size, lines), np.int32),
        gradients=row_scratch(width, size),
        curvatures=aligned_zeros(n if bounded else 0),
    )


# Passed for ``n_unit``; typed as its other values, so that nothing is compiled twice.
NO_UNIT = np.int64(0)

# A row of length zero has no direction; this length keeps its gradient finite.
_SHORTEST = np.float32(1e-12)

# Dropout uses 16 bits of a hash for each weight, so a hash serves four weights.
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
    """Copy row ``k`` to row ``j`` of ``out``; its first ``n_unit`` numbers get unit length."""
    scale = ONE / row_length(table, k, n_unit) if n_unit > 0 else ONE
    for f in range(n_unit):
        out[j, f] = scale * table[k, f]
    for f in range(n_unit, table.shape[1]):
        out[j, f] = table[k, f]


@inlined
def gather_dropped_row(table, k, cosine, dropout, key, mask, out, j):
    """Copy row ``k`` with some weights dropped; return the length it had before normalisation.

    ``mask[j]`` receives the factors of the weights, zero or 1 / (1 - dropout). Without dropout it
    is not written.
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
def _sum_terms(r, batch, table, out):
    """Write the sum of the terms of row ``r`` to ``out``."""
    terms, row = batch.data.terms, batch.first_row + r
    for f in range(table.shape[1]):
        out[f] = ZERO
    for t in range(terms.starts[row], terms.starts[row + 1]):
        add_multiple(terms.multiples[t], table[np.uint64(terms.tokens[t])], out)


@inlined
def gather_user(r, batch, table, cosine, dropout, masks, out):
    """Gather the vector of the user of row ``r``, see ``gather_dropped_row``."""
    key = key_of(batch, r)
    if not has_terms(batch):
        return gather_dropped_row(table, user_of(batch, r), cosine, dropout, key, masks, out, r)
    _sum_terms(r, batch, table, out[r])
    return gather_dropped_row(out, r, cosine, dropout, key, masks, out, r)


@inlined
def prefetch_user(r, batch, table):
    """Prefetch the rows of a table that make the vector of the user of row ``r``."""
    if not has_terms(batch):
        prefetch_row(table, user_of(batch, r))
        return
    terms, row = batch.data.terms, batch.first_row + r
    for t in range(terms.starts[row], terms.starts[row + 1]):
        prefetch_row(table, np.uint64(terms.tokens[t]))


@inlined
def through_dropout(gradient, dropout, mask, j):
    """Backpropagate the gradient in row ``j`` through dropout."""
    if dropout > 0.0:
        for f in range(gradient.shape[1]):
            gradient[j, f] *= mask[j, f]


# This many rows before it is moved, a row is prefetched.
_ROWS_AHEAD = 8


@inlined
def through_normalisation(gradient, vectors, k, n, squares, length):
    """Backpropagate a gradient through the normalisation of x, of ``length``, to x / |x|.

    The first ``n`` numbers of ``vectors[k]`` are x itself or the unit vector, and ``squares`` is
    the square of their length: with unit vectors u it is (g - <g, u> u) / length.
    """
    along = ZERO
    for f in range(n):
        along += gradient[f] * vectors[k, f]
    along /= squares
    scale = ONE / length
    for f in range(n):
        gradient[f] = (gradient[f] - along * vectors[k, f]) * scale


@inlined
def _scaled_rate(rate, step):
    """Return the learning rate ``rate`` over Adam's correction, and the correction of the root."""
    nth = step.number - step.epoch_start
    return np.float32(rate / step.corrections[nth, 0]), np.float32(step.corrections[nth, 1])


@inlined
def _step_along(k, gradient, rate, table, step):
    """Move row ``k`` of a table along its gradient, at the learning rate ``rate``."""
    scaled, root_correction = _scaled_rate(rate, step)
    step_row(
        step.rule, scaled, root_correction, table.weights, k, gradient, table.first, table.second
    )


@inlined
def _replay_without_gradient(k, missed, rate, table, step, roots):
    """Replay the ``missed`` Adam steps before ``step`` of row ``k``, in which it had no gradient.

    Momentum soon vanishes, and from then on only the moments change.
    """
    weights, mean, square = table.weights[k], table.first[k], table.second[k]
    hyper, width = step.rule.hyper, len(table.weights[k])
    n_replayed = min(missed, momentum_steps(hyper[BETA_1]))
    for f in range(width):
        roots[f] = math.sqrt(square[f])
    for s in range(n_replayed):
        scaled, root_correction = _scaled_rate(rate, step_after(step, s - missed))
        adam = adam_constants(hyper, scaled, root_correction)
        for f in range(width):
            weights[f], mean[f], roots[f] = adam_step_without_gradient(
                weights[f], mean[f], roots[f], adam
            )
    first = np.float32(math.pow(hyper[BETA_1], missed - n_replayed))
    second = np.float32(math.pow(hyper[BETA_2], missed))
    for f in range(width):
        mean[f] *= first
        square[f] *= second


@inlined
def _catch_up_row(k, missed, table, step, gradient):
    """Catch up on the ``missed`` steps before ``step`` of row ``k``.

    In each of them its gradient was that of the penalty alone. For SGD, and for a decoupled decay,
    the row is multiplied by a power of 1 - rate * decay. All others replay the steps: in the cache
    that is far cheaper than moving the whole table in every batch.
    """
    rule = step.rule
    width = table.weights.shape[1]
    rate = present_rate(rule.rate_code, rule.hyper, table.per_row, k, ZERO)
    if rule.catch_up == CATCH_UP_FACTOR:
        power = np.float32(math.pow(1.0 - rate * rule.idle_decay, missed))
        for f in range(width):
            table.weights[k, f] *= power
        return
    if rule.step_code == STEP_ADAM and rule.idle_decay == 0.0:
        _replay_without_gradient(k, missed, rate, table, step, gradient)
        return
    penalty = np.float32(rule.idle_decay)
    for s in range(missed):
        for f in range(width):
            gradient[f] = penalty * table.weights[k, f]
        _step_along(k, gradient, rate, table, step_after(step, s - missed))


@inlined
def _prefetch_state(token, table):
    """Prefetch a row and its optimizer state."""
    k = np.uint64(token)
    prefetch_row(table.weights, k)
    if table.first.shape[0] > 0:
        prefetch_row(table.first, k)
    if table.second.shape[0] > 0:
        prefetch_row(table.second, k)


@inlined
def _list_owned(member, n, tokens, owned):
    """List the positions of the tokens that this thread owns in ``owned``; return their number."""
    # Without a branch, which would be mispredicted: ownership is random.
    n_owned = 0
    for p in range(n):
        owned[np.uint64(n_owned)] = p
        n_owned += owns(member.rank, member.size, np.uint64(tokens[np.uint64(p)]))
    return n_owned


@inlined
def _list_behind(member, n, side, step):
    """List the tokens that this thread owns and whose rows have missed steps, each once.

    They go to ``touched``, and how many steps each has missed to ``nexts``; returns how many there
    are.
    """
    caught_up, tokens = side.table.caught_up, side.occurrences.tokens
    behind, missed = side.occurrences.touched[member.rank], side.occurrences.nexts[member.rank]
    n_owned = _list_owned(member, n, tokens, missed)
    # Without a branch here, too: whether a row has missed steps is unpredictable.
    n_behind = 0
    for t in range(n_owned):
        k = np.uint64(tokens[np.uint64(missed[np.uint64(t)])])
        n_missed = step.number - 1 - caught_up[k]
        behind[np.uint64(n_behind)] = k
        missed[np.uint64(n_behind)] = n_missed
        n_behind += n_missed > 0
        caught_up[k] = step.number - 1
    return n_behind


@subroutine
def catch_up(member, n, side, step):
    """Catch up on the missed steps of the first ``n`` tokens of a side that this thread owns."""
    table, occurrences = side.table, side.occurrences
    behind, missed = occurrences.touched[member.rank], occurrences.nexts[member.rank]
    gradient = occurrences.gradients[member.rank]
    n_behind = _list_behind(member, n, side, step)
    for t in range(n_behind):
        if t + _ROWS_AHEAD < n_behind:
            _prefetch_state(behind[t + _ROWS_AHEAD], table)
        at = np.uint64(t)
        _catch_up_row(np.uint64(behind[at]), np.int64(missed[at]), table, step, gradient)


@inlined
def catch_up_batch(member, n_users, users, n_items, items, step):
    """Let the rows that a batch has listed catch up on the steps they have missed.

    The threads synchronize before, because each has listed a part of the rows, and after it,
    because rows are read next.
    """
    synchronize(member)
    if step.rule.catch_up == CATCH_UP_NONE:
        return
    catch_up(member, n_users, users, step)
    catch_up(member, n_items, items, step)
    synchronize(member)


@kernel
def catch_up_all(rank, size, barrier, table, step, gradients):
    """Catch up on the missed steps of every row of a table, up to and including ``step``."""
    member = Member(rank, size, barrier)
    for t in range(table.weights.shape[0]):
        k = np.uint64(t)
        if owns(member.rank, member.size, k):
            missed = step.number - table.caught_up[k]
            table.caught_up[k] = step.number
            _catch_up_row(k, missed, table, step_after(step, 1), gradients[rank])


@inlined
def _count_occurrences(head, curvatures, nexts):
    """Return how many occurrences a token has, and their curvature."""
    n_seen, curvature, link = 0, 0.0, head
    while link >= 0:
        if curvatures.shape[0] > 0:
            curvature += curvatures[np.uint64(link)]
        n_seen += 1
        link = nexts[np.uint64(link)]
    return n_seen, curvature


@inlined
def _sum_occurrences(head, occurrences, nexts, sources, penalty, vector, gradient):
    """Write the sum of a token's occurrences, and of a multiple of its vector."""
    rows, multiples, p = occurrences.rows, occurrences.multiples, np.uint64(head)
    j, x = np.uint64(rows[p]), multiples[p]
    for f in range(sources.shape[1]):
        gradient[f] = penalty * vector[f] + x * sources[j, f]
    link = nexts[p]
    while link >= 0:
        p = np.uint64(link)
        add_multiple(multiples[p], sources[np.uint64(rows[p])], gradient)
        link = nexts[p]


@inlined
def through_unit_row(gradient, weights, k, n_unit):
    """Backpropagate a gradient through what ``gather_row`` does to row ``k``."""
    if n_unit == 0:
        return
    length = row_length(weights, k, n_unit)
    through_normalisation(gradient, weights, k, n_unit, length * length, length)


@inlined
def penalty_of(rule, share):
    """Return the factor of a row in its gradient by the penalty.

    That on touched rows is multiplied by ``share``.
    """
    if rule.decay_code == DECAY_NONE or rule.decoupled:
        return ZERO
    return np.float32(rule.decay * (share if rule.decay_code == DECAY_BATCH else 1.0))


@inlined
def move_row(k, n_seen, curvature, gradient, table, step):
    """Step row ``k`` along its gradient, in which the penalty is, or shrink it by its decay, too.

    A batch holds the row ``n_seen`` times. ``curvature`` bounds a counted learning rate, see
    ``counted_rate``; 0 does not.
    """
    rule, weights = step.rule, table.weights
    rate = row_rate(
        rule.rate_code, rule.count_code, rule.hyper, table.per_row, k, np.float64(n_seen), curvature
    )
    if rule.decay_code != DECAY_NONE and rule.decoupled:
        power = np.float32(1.0 - rate * rule.decay)
        for f in range(weights.shape[1]):
            weights[k, f] *= power
    if rule.catch_up != CATCH_UP_NONE:
        table.caught_up[k] = step.number
    _step_along(k, gradient, rate, table, step)


class MovedRows(NamedTuple):
    """Rows of a table and their gradients, see ``Backend.table_trainer``."""

    rows: np.ndarray  #: (n,), int64, each once
    gradients: np.ndarray  #: (n, d), float32; overwritten
    counts: np.ndarray  #: (n,), float64
    mean: float


@kernel
def step_rows(rank, size, barrier, moved, table, step):
    """Move rows of a table along their gradients."""
    for p in range(rank, moved.rows.shape[0], size):
        k, n_seen, gradient = np.uint64(moved.rows[p]), moved.counts[p], moved.gradients[p]
        add_multiple(penalty_of(step.rule, n_seen * moved.mean), table.weights[k], gradient)
        move_row(k, n_seen, 0.0, gradient, table, step)


@inlined
def _link_occurrences(member, n, heads, tokens, nexts, touched):
    """Link the occurrences of each token that this thread owns; return how many tokens there are.

    They are listed in ``touched``. The first occurrence of each goes to ``heads``, and the one
    after ``p`` to ``nexts[p]``, which is -1 for the last.
    """
    # The list and the links share an array. Links are written from the end on, after the elements
    # of the list in their place have been read.
    n_owned = _list_owned(member, n, tokens, nexts)
    n_touched = 0
    for back in range(n_owned):
        p = np.uint64(nexts[np.uint64(n_owned - 1 - back)])
        k = np.uint64(tokens[p])
        head = heads[k]
        touched[np.uint64(n_touched)] = k
        n_touched += head < 0
        nexts[p] = head
        heads[k] = p
    return n_touched


@subroutine
def apply_gradients(member, n, side, sources, n_unit, step, mean):
    """Sum the ``n`` occurrences of the tokens this thread owns, and step their rows.

    Sources are gradients by rows whose first ``n_unit`` numbers are at unit length. ``mean`` is
    one over the weight of the batch, by which the penalty on touched rows is multiplied.
    """
    table, occurrences, weights = side.table, side.occurrences, side.table.weights
    nexts = occurrences.nexts[member.rank]
    touched = occurrences.touched[member.rank]
    gradient = occurrences.gradients[member.rank]
    n_touched = _link_occurrences(member, n, table.heads, occurrences.tokens, nexts, touched)
    for t in range(min(n_touched, _ROWS_AHEAD)):
        _prefetch_state(touched[t], table)
    for t in range(n_touched):
        k = np.uint64(touched[np.uint64(t)])
        if t + _ROWS_AHEAD < n_touched:
            _prefetch_state(touched[t + _ROWS_AHEAD], table)
        head = table.heads[k]
        table.heads[k] = -1
        n_seen, curvature = _count_occurrences(head, occurrences.curvatures, nexts)
        penalty = penalty_of(step.rule, n_seen * mean)
        # In the same loop as the sum, unless that is of gradients by the row at unit length.
        summed = penalty if n_unit == 0 else ZERO
        _sum_occurrences(head, occurrences, nexts, sources, summed, weights[k], gradient)
        if n_unit > 0:
            through_unit_row(gradient, weights, k, n_unit)
            add_multiple(penalty, weights[k], gradient)
        move_row(k, n_seen, curvature, gradient, table, step)


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
