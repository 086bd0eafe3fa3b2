"""The three phases of a batch of a factorization machine, plain or rank-aware.

1. Each row is scored by a group, whose lanes take columns of the factors.
2. Each piece of a token's entries is summed by a group, see ``occurrences``. If it is all that the
   batch has of the token, the token's weights make their step at once.
3. Sums of several pieces are added, in their order, and these tokens step; so does the intercept.

Every sum has an order that does not depend on the grid. Sums are float32: at most ``WINDOW`` terms,
and then at most as many as there are pieces, so that errors grow slowly.

Tokens of all batches of an epoch, sorted: where sums over a batch find their terms.

The order of an epoch is known when it begins. Entries, stored token by token, are distributed to
their batches by a stable sort on the number of the batch. So every batch has its entries token by
token, those of a token in the order of the rows of ``X``.

The entries of a batch are cut into pieces: where the token changes, and after each ``WINDOW``
entries. A piece is summed by one group; the pieces of a token are then added in their order.

Scores of factorization machines, plain and rank-aware.

With A(p, q) the interactions of the tokens of level q by their vectors of level p, scores are
B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1). A token's vector at its highest level is free and
follows the loss of the last score; the others are dependent and make B(p) follow B(p + 1). With
``prefix`` levels are parts of one vector, nothing is subtracted, and all vectors follow the loss. A
plain machine has one level, and row k of its table belongs to token k.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.base import CPUOnlyError
from freqfm.backends.cuda.groups import RadixSort, group_sum, worker
from freqfm.backends.cuda.tables import (
    COLUMNS,
    FOUR_ZEROS,
    add,
    four_columns,
    move_weight,
    moved,
    products,
    rate_of_row,
    read,
    read_from,
    root_of_row,
    sum_inside,
    times,
    write,
)
from freqfm.formulas.codes import (
    COUNT_SAMPLES,
    RATE_CONSTANT,
    RATE_COUNTED,
    RATE_GIVEN,
    STEP_ROWWISE_ADAGRAD,
)
from freqfm.formulas.losses import expectation, loss_and_gradient, loss_curvature
from freqfm.formulas.rng import key_in_python, permuted_index
from freqfm.formulas.steps import penalized_curvature, present_rate, step_element

#: Most entries of a piece.
WINDOW = 64

_ONE = np.uint64(1)


class EpochOrder(NamedTuple):
    """In which order an epoch visits the rows: shuffled blocks, and then the others in theirs."""

    n_blocks: int  #: uint64, as all numbers here
    block_bits: int
    low_bits: int
    high_bits: int
    key: int
    rows: np.ndarray  #: (n_rows,), int32, result: the row at each place
    places: np.ndarray  #: (n_rows,), int32, result: the place of each row


class Occurrences(NamedTuple):
    """The entries of all batches, by batch and token."""

    tokens: np.ndarray  #: (nnz,), int32
    rows: np.ndarray  #: (nnz,), int32, the row's place in the batch
    values: np.ndarray  #: (nnz,), float32
    starts: np.ndarray  #: (n_batches + 1,), int32, where the entries of a batch begin


class _Entries(NamedTuple):
    """The entries token by token, and how they are sorted."""

    tokens: np.ndarray  #: (nnz,), int32, increasing
    rows: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32
    places: np.ndarray  #: (n_rows,), int32, of each row in the epoch
    batch_size: int
    batches: np.ndarray  #: (nnz,), int32, of each entry
    order: np.ndarray  #: (nnz,), int32, sorted by batch
    out: Occurrences


@inlined
def order_rows(group, b, order):
    """Write which row stands at each place of an epoch, and the place of each row."""
    thread, n_threads = worker(group)
    for place in range(thread, order.rows.shape[0], n_threads):
        i = np.uint64(place)
        block = i >> order.block_bits
        if block < order.n_blocks:
            moved = permuted_index(
                block, order.n_blocks, order.low_bits, order.high_bits, order.key
            )
            i = (moved << order.block_bits) | (i & ((_ONE << order.block_bits) - _ONE))
        order.rows[place] = np.int32(i)
        order.places[np.int64(i)] = np.int32(place)


@inlined
def find_batches(group, b, entries):
    """Write the batch of each entry."""
    thread, n_threads = worker(group)
    for e in range(thread, entries.batches.shape[0], n_threads):
        entries.batches[e] = entries.places[entries.rows[e]] // entries.batch_size


@inlined
def gather(group, b, entries):
    """Copy the sorted entries, and find where batches begin."""
    thread, n_threads = worker(group)
    out, order = entries.out, entries.order
    n, n_batches = order.shape[0], out.starts.shape[0] - 1
    for e in range(thread, n + 1, n_threads):
        batch = n_batches
        if e < n:
            entry = order[e]
            batch = entries.batches[entry]
            out.tokens[e] = entries.tokens[entry]
            out.rows[e] = entries.places[entries.rows[entry]] - batch * entries.batch_size
            out.values[e] = entries.values[entry]
        last = entries.batches[order[e - 1]] if e > 0 else -1
        for started in range(last + 1, batch + 1):
            out.starts[started] = e


_ORDER = (order_rows,)
_FIND = (find_batches,)
_GATHER = (gather,)


class EpochSort:
    """The order of an epoch, and the entries of its batches; the same ones if nothing is shuffled.

    Parameters
    ----------
    device : Device
    problem : FMProblem
    X : csr_array
        The rows that are trained on.
    """

    def __init__(self, device, problem, X):
        self._device, self._problem = device, problem
        n_rows, n = X.shape[0], X.nnz
        if max(n, n_rows) > np.iinfo(np.int32).max:
            raise CPUOnlyError(
                f"X has {n} entries in {n_rows} rows; more than {np.iinfo(np.int32).max} of "
                f"either are trained on the CPU only. Set device='cpu'."
            )
        self._n_batches = -(-n_rows // problem.batch_size)
        by_token = X.tocsc()
        tokens = np.repeat(np.arange(X.shape[1], dtype=np.int32), np.diff(by_token.indptr))
        self.rows, places = (device.empty(n_rows, np.int32) for _ in range(2))
        self.occurrences = Occurrences(
            tokens=device.empty(n, np.int32),
            rows=device.empty(n, np.int32),
            values=device.empty(n, np.float32),
            starts=device.empty(self._n_batches + 1, np.int32),
        )
        batches = device.empty(n, np.int32)
        self._entries = _Entries(
            tokens=device.to_device(tokens),
            rows=device.to_device(by_token.indices.astype(np.int32)),
            values=device.to_device(by_token.data),
            places=places,
            batch_size=problem.batch_size,
            batches=batches,
            order=batches,
            out=self.occurrences,
        )
        self._sort, self._done = RadixSort(device), False

    def run(self, epoch):
        """Sort the entries of an epoch."""
        if self._done and not self._problem.n_blocks:
            return
        device, entries, n = self._device, self._entries, self._entries.rows.shape[0]
        device.run(_ORDER, self._order(epoch), 1, self.rows.shape[0])
        device.run(_FIND, entries, 1, n)
        order = self._sort.order(entries.batches, self._n_batches)
        device.run(_GATHER, entries._replace(order=order), 1, n + 1)
        self._done = True

    def _order(self, epoch):
        problem, bits = self._problem, 2
        while (1 << bits) < problem.n_blocks:
            bits += 1
        key = key_in_python(problem.seed, epoch)
        numbers = problem.n_blocks, problem.block_bits, bits // 2, bits - bits // 2, key
        return EpochOrder(*map(np.uint64, numbers), self.rows, self._entries.places)


class FMRows(NamedTuple):
    """Rows of X, in CSR."""

    indptr: np.ndarray  #: (n_rows + 1,), int64
    tokens: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32


class FMVectors(NamedTuple):
    """The weights of one output, float32."""

    intercept: np.ndarray  #: (1,)
    linear: np.ndarray  #: (n,)
    factors: np.ndarray  #: the tables of all levels, one-dimensional
    dense: np.ndarray  #: (1, n_weights), of dense layers; or (1, 0)


class Levels(NamedTuple):
    """The tables of all levels, which stand one after the other in one array of weights.

    Tuples, which a kernel reads without the delay of an array in memory.
    """

    ranked: bool  #: whether there are several tables; if not, ``levels`` and ``rows`` are empty
    widths: tuple  #: (m,)
    starts: tuple  #: (m,), where tables begin in the weights
    columns: tuple  #: (m,), where levels begin in a row of the scratch
    first_starts: tuple  #: (m,), where states of row-wise Adagrad begin
    levels: np.ndarray  #: (n,), int32, the highest level of each token
    rows: np.ndarray  #: (n,), int32, the row of a token in its tables
    prefix: bool
    follow_loss: bool  #: whether dependent vectors follow the loss of the last score too
    dependent_weight: float  #: of the losses of dependent vectors


@inlined
def level_of(levels, k):
    """Return the highest level of a token."""
    return levels.levels[k] if levels.ranked else 0


@inlined
def row_of(levels, k):
    """Return the row of a token in its tables."""
    return levels.rows[k] if levels.ranked else k


@inlined
def sum_level(group, row, p, weights, levels, out):
    """Return a level's interactions in a row, those that are replaced, and |sum of x v|^2.

    The sums go to row ``j`` of ``out``: all, and those of free vectors; or nowhere.
    """
    rows, i, j = row
    sums, free_sums = out
    width, start, column = levels.widths[p], levels.starts[p], levels.columns[p]
    final = levels.prefix or p == len(levels.widths) - 1
    norm, kept_norm, squares, kept_squares = ZERO, ZERO, ZERO, ZERO
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        kept, free, of_kept, of_free = FOUR_ZEROS, FOUR_ZEROS, FOUR_ZEROS, FOUR_ZEROS
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            k = rows.tokens[e]
            if level_of(levels, k) < p:
                continue
            term = times(
                rows.values[e], read_from(weights, start + row_of(levels, k) * width, columns)
            )
            if level_of(levels, k) == p and not final:
                free, of_free = add(free, term), add(of_free, products(term, term))
            else:
                kept, of_kept = add(kept, term), add(of_kept, products(term, term))
        total = add(kept, free)
        norm += sum_inside(columns, products(total, total))
        squares += sum_inside(columns, add(of_kept, of_free))
        kept_norm += sum_inside(columns, products(kept, kept))
        kept_squares += sum_inside(columns, of_kept)
        if sums.shape[0] > 0:
            write(sums, j, moved(columns, column), total)
        if free_sums.shape[0] > 0:
            write(free_sums, j, moved(columns, column), free)
    norm = group_sum(group, norm)
    interactions = HALF * (norm - group_sum(group, squares))
    replaced = ZERO if final else HALF * group_sum(group, kept_norm - kept_squares)
    return interactions, replaced, norm


@inlined
def linear_part(group, rows, i, linear):
    """Return the linear part of a row's score, and the sum of |x|."""
    total, reach = ZERO, ZERO
    for p in range(rows.indptr[i] + group.lane, rows.indptr[i + 1], group.n_lanes):
        x = rows.values[p]
        total += x * linear[rows.tokens[p]]
        reach += abs(x)
    return group_sum(group, total), group_sum(group, reach)


@inlined
def score(group, b, args):
    """Write the scores of rows."""
    rows, (intercept, linear, weights, _), levels, nothing, scores = args
    for i in range(group.rank, scores.shape[0], group.size):
        of_linear, _ = linear_part(group, rows, i, linear)
        found, replaced = intercept[0] + of_linear, ZERO
        for p in range(len(levels.widths)):
            row = rows, i, 0
            found -= replaced
            more, replaced, _ = sum_level(group, row, p, weights, levels, (nothing, nothing))
            found += more
        if group.lane == 0:
            scores[i] = found


SCORE = (score,)


_TWO = np.float32(2)


class FMTargets(NamedTuple):
    """The targets of rows, and their order in an epoch."""

    targets: np.ndarray  #: (n_rows,), float32
    weights: np.ndarray  #: (n_rows,), float32
    order: np.ndarray  #: (n_rows,), int32
    batch_size: int


class FMWeightState(NamedTuple):
    """The weights of one output, as FMVectors, and the optimizer's state; some are empty."""

    intercept: np.ndarray  #: (1,)
    linear: np.ndarray  #: (n,)
    factors: np.ndarray  #: the tables of all levels, one-dimensional
    dense: np.ndarray  #: (1, n_weights), of dense layers
    per_row: np.ndarray  #: (n,)
    intercept_state: np.ndarray  #: (3,), first, second, and counter
    linear_first: np.ndarray  #: (n,)
    linear_second: np.ndarray  #: (n,)
    factors_first: np.ndarray  #: as the factors, or a number for each of their rows
    factors_second: np.ndarray  #: as the factors
    dense_first: np.ndarray  #: as those of dense layers
    dense_second: np.ndarray  #: likewise


class FMScratch(NamedTuple):
    """Arrays that the phases of a batch pass on; W is the sum of the widths of m levels."""

    sums: np.ndarray  #: (batch_size, W), sums of x v of rows, for each level
    free_sums: np.ndarray  #: (batch_size, W), of free vectors alone; empty without dependent ones
    by_level: np.ndarray  #: (m, batch_size), derivatives of the weighted losses of B(1), ..., B(m)
    weights: np.ndarray  #: (batch_size,), of rows
    derivatives: np.ndarray  #: (batch_size,), by the linear part
    curvatures: np.ndarray  #: (batch_size,), see ``score_batch``
    losses: np.ndarray  #: (n_rows,), weighted, at each place of the epoch
    of_rows: np.ndarray  #: (3, n_windows), sums of derivatives, weights, curvatures of rows
    #: (3 + m, n_pieces), likewise of incomplete pieces, and for each level of derivative * x * x.
    of_pieces: np.ndarray
    vectors: np.ndarray  #: (n_pieces, W), sums of incomplete pieces
    touched: np.ndarray  #: (n,), int32, one more than the last batch that had a token; or empty
    layered: bool  #: whether the score has dense layers, see ``layers``; without, the rest is empty
    #: (batch_size, n_inputs + W), derivatives of the weighted losses by x v, for each input, and in
    #: the last columns what an entry multiplies its own x v by.
    gradients: np.ndarray
    fields: np.ndarray  #: (n,), int32, of tokens; or empty


class FMArgs(NamedTuple):
    """The arguments of a launch; arrays are float32 unless another type is given."""

    objective: NamedTuple  #: FMObjective, with numbers of float32
    rule: NamedTuple  #: UpdateRule, likewise
    steps: np.ndarray  #: (n_batches, 3): factor of sums, divisors of the rate and of the root
    rows: FMRows
    data: FMTargets
    occurrences: Occurrences
    model: FMWeightState
    scratch: FMScratch
    levels: Levels


class Summed(NamedTuple):
    """Sums over the entries that a token has in a batch."""

    derivative: float  #: of derivative * x
    weight: float  #: of the rows
    curvature: float


_NOTHING = Summed(ZERO, ZERO, ZERO)


class Source(NamedTuple):
    """The terms of the sum of a token's vectors: entries, or sums of pieces."""

    complete: bool  #: whether the entries are a piece that is complete
    first: int
    last: int  #: exclusive


@inlined
def rows_of_batch(args, b):
    """Return how many rows a batch has."""
    data = args.data
    return min(data.batch_size, data.order.shape[0] - b * data.batch_size)


@inlined
def keep_loss(group, row, score, reach, args):
    """Keep the loss of a row, and its curvature times ``reach``; return the derivative.

    ``row`` is its place in the epoch and in the batch, its weight and its target.
    """
    (place, j, weight, target), scratch, code = row, args.scratch, args.objective.loss_code
    loss, derivative = loss_and_gradient(code, score, target)
    weighted = weight * args.objective.loss_scale
    derivative *= weighted
    if group.lane == 0:
        curvature = np.float32(loss_curvature(code, score, target))
        scratch.losses[place] = weighted * loss
        scratch.weights[j] = weight
        scratch.derivatives[j] = derivative
        scratch.curvatures[j] = weighted * curvature * reach
    return derivative


@inlined
def score_batch(group, b, args):
    """Score the rows of a batch; leave the derivatives and curvatures of their losses.

    For any steps of the weights of the tokens, the score moves at most so much that a row adds
    |x_k| (1 + sum_i |x_i|) (1 + |s|^2), s = sum of x v, times the curvature of its loss to the
    curvature of token k.
    """
    data, scratch, model, levels = args.data, args.scratch, args.model, args.levels
    start, code, n_levels = b * data.batch_size, args.objective.loss_code, len(levels.widths)
    out = scratch.sums, scratch.free_sums
    for j in range(group.rank, rows_of_batch(args, b), group.size):
        i = data.order[start + j]
        weight, target = data.weights[i], data.targets[i]
        of_linear, reach = linear_part(group, args.rows, i, model.linear)
        found, replaced, norms, of_levels = model.intercept[0] + of_linear, ZERO, ONE, ZERO
        for p in range(n_levels):
            before = found
            row = args.rows, i, j
            found -= replaced
            more, replaced, norm = sum_level(group, row, p, model.factors, levels, out)
            found += more
            norms += norm
            if p > 0 and not levels.prefix:
                wanted = expectation(code, found)
                _, derivative = loss_and_gradient(code, before, wanted)
                derivative *= levels.dependent_weight * args.objective.loss_scale * weight
                of_levels += derivative
                if group.lane == 0:
                    scratch.by_level[p - 1, j] = derivative
        row = start + j, j, weight, target
        derivative = keep_loss(group, row, found, (ONE + reach) * norms, args)
        if levels.follow_loss and not levels.prefix:
            of_levels += derivative
        else:
            of_levels = derivative
        if group.lane == 0:
            scratch.by_level[n_levels - 1, j] = derivative
            scratch.derivatives[j] = of_levels


@inlined
def _sum_of_lanes(group, summed):
    return Summed(
        group_sum(group, summed.derivative),
        group_sum(group, summed.weight),
        group_sum(group, summed.curvature),
    )


@inlined
def _sum_entries(group, args, source):
    """Return the Summed of the entries of a piece."""
    occurrences, scratch = args.occurrences, args.scratch
    derivative, weight, curvature = ZERO, ZERO, ZERO
    for p in range(source.first + group.lane, source.last, group.n_lanes):
        j, x = occurrences.rows[p], occurrences.values[p]
        derivative += x * scratch.derivatives[j]
        weight += scratch.weights[j]
        curvature += abs(x) * scratch.curvatures[j]
    return _sum_of_lanes(group, Summed(derivative, weight, curvature))


@inlined
def _is_token(occurrences, p, begin, end, k):
    """Return whether entry ``p`` is one of a batch, and of token ``k``."""
    return begin <= p < end and occurrences.tokens[p] == k


@inlined
def _begins_piece(occurrences, start, p):
    """Return whether entry ``p`` of a batch that begins at ``start`` begins a piece."""
    return (p - start) % WINDOW == 0 or occurrences.tokens[p] != occurrences.tokens[p - 1]


@inlined
def _piece_from(group, occurrences, start, end, p):
    """Return the Source of the piece that begins with entry ``p`` of a batch."""
    k, n = occurrences.tokens[p], 0
    limit = min(end, p + WINDOW - (p - start) % WINDOW)
    for q in range(p + group.lane, limit, group.n_lanes):
        n += 1 if occurrences.tokens[q] == k else 0
    return Source(True, p, p + group_sum(group, n))


@inlined
def _next_slot(slot):
    """Return the slot of the next piece of the same token: the first of the next window."""
    return 2 * (slot // 2 + 1)


@inlined
def _token_of_window(args, b, w):
    """Return the token whose first piece, of several, ends with window ``w``, and its Source.

    Without one the token is -1.
    """
    occurrences = args.occurrences
    start, end = occurrences.starts[b], occurrences.starts[b + 1]
    first = start + w * WINDOW
    after = first + WINDOW
    k = np.int64(occurrences.tokens[after - 1])
    inside = occurrences.tokens[first] != k
    first_slot = 2 * w + (1 if inside else 0)
    begins = inside or not _is_token(occurrences, first - 1, start, end, k)
    if not begins or not _is_token(occurrences, after, start, end, k):
        return np.int64(-1), Source(False, first_slot, first_slot)
    w += 1
    while start + w * WINDOW < end and occurrences.tokens[start + w * WINDOW] == k:
        w += 1
    return k, Source(False, first_slot, 2 * w)


@inlined
def _squares(group, args, source, p, free):
    """Return the sum of derivative * x * x over a token's entries, for its vector of level p."""
    occurrences, scratch, total = args.occurrences, args.scratch, ZERO
    if scratch.layered:
        return ZERO
    if source.complete:
        level = len(args.levels.widths) - 1 if free else p
        for e in range(source.first + group.lane, source.last, group.n_lanes):
            x = occurrences.values[e]
            total += scratch.by_level[level, occurrences.rows[e]] * x * x
        return group_sum(group, total)
    slot = source.first
    while slot < source.last:
        total += scratch.of_pieces[3 + p, slot]
        slot = _next_slot(slot)
    return total


@inlined
def _sum_under_layers(args, source, columns):
    """Return four columns of the sum of a token's gradient, with the term in its own vector."""
    occurrences, scratch, totals = args.occurrences, args.scratch, FOUR_ZEROS
    k, width = occurrences.tokens[source.first], args.levels.widths[0]
    vector = read_from(args.model.factors, k * width, columns)
    of_field = moved(columns, scratch.fields[k] * width if scratch.fields.shape[0] > 0 else 0)
    of_own = moved(columns, scratch.gradients.shape[1] - width)
    for e in range(source.first, source.last):
        j, x = occurrences.rows[e], occurrences.values[e]
        own = products(read(scratch.gradients, j, of_own), vector)
        along = add(read(scratch.gradients, j, of_field), times(-x, own))
        totals = add(totals, times(x, along))
    return totals


@inlined
def _sum_columns(args, source, p, free, columns):
    """Return four columns of the sum of a token's gradient, without the term in its own vector."""
    occurrences, scratch, totals = args.occurrences, args.scratch, FOUR_ZEROS
    if source.complete and scratch.layered:
        return _sum_under_layers(args, source, columns)
    if source.complete:
        last = len(args.levels.widths) - 1
        own, follows = (last if free else p), args.levels.follow_loss and not free
        for e in range(source.first, source.last):
            j, x = occurrences.rows[e], occurrences.values[e]
            along = times(scratch.by_level[own, j], read(scratch.sums, j, columns))
            if follows:
                of_free = times(scratch.by_level[last, j], read(scratch.free_sums, j, columns))
                along = add(along, of_free)
            totals = add(totals, times(x, along))
    else:
        slot = source.first
        while slot < source.last:
            totals = add(totals, read(scratch.vectors, slot, columns))
            slot = _next_slot(slot)
    return totals


@inlined
def _gradient(args, vector, columns, source, shrinkage):
    """Return four columns of the gradient of a token's vector of one level."""
    p, begin, free = vector
    of_rows = moved(columns, args.levels.columns[p])
    own = times(-shrinkage, read_from(args.model.factors, begin, columns))
    return add(_sum_columns(args, source, p, free, of_rows), own)


@inlined
def _step_level(group, p, k, step, source, args):
    """Move a token's vector of one level; ``step`` is scale, rate, root and penalty."""
    scale, rate, root, penalty = step
    model, rule, levels = args.model, args.rule, args.levels
    width, row = levels.widths[p], row_of(levels, k)
    begin, free = levels.starts[p] + row * width, levels.prefix or p == level_of(levels, k)
    vector, shrinkage = (p, begin, free), _squares(group, args, source, p, free) - penalty
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        squares = ZERO
        for f in range(group.lane, width, COLUMNS * group.n_lanes):
            columns = four_columns(group, f, width)
            along = times(scale, _gradient(args, vector, columns, source, shrinkage))
            squares += sum_inside(columns, products(along, along))
        place = levels.first_starts[p] + row
        rate /= root_of_row(group, rule, model.factors_first, place, squares, width)
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        along = times(scale, _gradient(args, vector, columns, source, shrinkage))
        _step_factor(begin + f, along[0], rate, root, args)
        if columns[1] > f:
            _step_factor(begin + columns[1], along[1], rate, root, args)
        if columns[2] > f:
            _step_factor(begin + columns[2], along[2], rate, root, args)
        if columns[3] > f:
            _step_factor(begin + columns[3], along[3], rate, root, args)


@inlined
def _step_factor(place, along, rate, root, args):
    """Move one factor along its gradient."""
    first, second = args.model.factors_first, args.model.factors_second
    move_weight(args.rule, rate, root, args.model.factors, place, along, first, second)


@inlined
def _step_token(group, b, k, summed, source, args):
    """Move all weights of a token by its sums over the batch."""
    model, rule, objective = args.model, args.rule, args.objective
    if rule.lazy and summed.weight == ZERO:
        return
    scale, root, share = args.steps[b, 0], args.steps[b, 2], objective.shares[k] * summed.weight
    curvature = penalized_curvature(summed.curvature, summed.weight, k, objective)
    rate = rate_of_row(group, rule, model.per_row, k, summed.weight, curvature) / args.steps[b, 1]
    if group.lane == 0 and objective.fit_linear:
        penalty = objective.alpha_linear * share * model.linear[k]
        step_element(
            rule, rate, root, model.linear, k, scale * (summed.derivative + penalty),
            model.linear_first, model.linear_second,
        )  # fmt: skip
    step = scale, rate, root, objective.alpha_factors * share
    for p in range(level_of(args.levels, k) + 1):
        _step_level(group, p, k, step, source, args)


@inlined
def _keep_vectors(group, slot, k, source, args):
    """Keep the gradients of a piece of a token that has others."""
    scratch, levels = args.scratch, args.levels
    for p in range(level_of(levels, k) + 1):
        width, free = levels.widths[p], levels.prefix or p == level_of(levels, k)
        for f in range(group.lane, width, COLUMNS * group.n_lanes):
            columns = moved(four_columns(group, f, width), levels.columns[p])
            write(scratch.vectors, slot, columns, _sum_columns(args, source, p, free, columns))
        squares = _squares(group, args, source, p, free)
        if group.lane == 0:
            scratch.of_pieces[3 + p, slot] = squares


@inlined
def _keep_sums(group, place, summed, out):
    """Keep other sums in a column of ``out``."""
    if group.lane == 0:
        out[0, place], out[1, place], out[2, place] = summed


@inlined
def _add_kept(summed, place, kept):
    """Return sums with those of a column added."""
    return Summed(
        summed.derivative + kept[0, place],
        summed.weight + kept[1, place],
        summed.curvature + kept[2, place],
    )


@inlined
def _sum_pieces(source, of_pieces):
    """Return the Summed of all pieces of a token."""
    summed, slot = _NOTHING, source.first
    while slot < source.last:
        summed = _add_kept(summed, slot, of_pieces)
        slot = _next_slot(slot)
    return summed


@inlined
def _sum_rows(group, b, args):
    """Sum the terms of the intercept over the rows of each window."""
    scratch, n_rows = args.scratch, rows_of_batch(args, b)
    for w in range(group.rank, (n_rows + WINDOW - 1) // WINDOW, group.size):
        summed = _NOTHING
        for j in range(w * WINDOW + group.lane, min((w + 1) * WINDOW, n_rows), group.n_lanes):
            summed = Summed(
                summed.derivative + scratch.derivatives[j],
                summed.weight + scratch.weights[j],
                summed.curvature + scratch.curvatures[j],
            )
        _keep_sums(group, w, _sum_of_lanes(group, summed), scratch.of_rows)


@inlined
def sum_of_windows(group, b, args):
    """Return the Summed of all rows of a batch."""
    summed = _NOTHING
    for w in range(group.lane, (rows_of_batch(args, b) + WINDOW - 1) // WINDOW, group.n_lanes):
        summed = _add_kept(summed, w, args.scratch.of_rows)
    return _sum_of_lanes(group, summed)


@inlined
def _step_intercept(group, b, args):
    """Move the intercept, which all rows hold."""
    rule, model = args.rule, args.model
    derivative, weight, curvature = sum_of_windows(group, b, args)
    if group.lane != 0 or weight == ZERO:
        return
    state, code = model.intercept_state, rule.rate_code
    if code == RATE_GIVEN:
        code = RATE_CONSTANT
    if code == RATE_COUNTED:
        state[2] += weight if rule.count_code == COUNT_SAMPLES else ONE
    rate = present_rate(code, rule.hyper, state[2:], 0, curvature)
    if code == RATE_COUNTED:
        # Every row holds the intercept: beyond 2 its first step would overshoot.
        rate = min(rate, _TWO / curvature)
    step_element(
        rule, rate / args.steps[b, 1], args.steps[b, 2], model.intercept, 0,
        args.steps[b, 0] * derivative, state[0:1], state[1:2],
    )  # fmt: skip


@inlined
def sum_tokens(group, b, args):
    """Sum the pieces of tokens, and step the tokens that have one piece."""
    occurrences, scratch = args.occurrences, args.scratch
    start, end = occurrences.starts[b], occurrences.starts[b + 1]
    for p in range(start + group.rank, end, group.size):
        if not _begins_piece(occurrences, start, p):
            continue
        k, source = occurrences.tokens[p], _piece_from(group, occurrences, start, end, p)
        begins = not _is_token(occurrences, p - 1, start, end, k)
        if begins and group.lane == 0 and scratch.touched.shape[0] > 0:
            scratch.touched[k] = b + 1
        summed = _sum_entries(group, args, source)
        if begins and not _is_token(occurrences, source.last, start, end, k):
            _step_token(group, b, k, summed, source, args)
        else:
            # A window holds at most two pieces of tokens with others: its first and its last.
            slot = 2 * ((p - start) // WINDOW) + (1 if (p - start) % WINDOW != 0 else 0)
            _keep_vectors(group, slot, k, source, args)
            _keep_sums(group, slot, summed, scratch.of_pieces)
    _sum_rows(group, b, args)


@inlined
def step_rest(group, b, args):
    """Step the tokens of several pieces, the intercept, and absent tokens if they move."""
    starts, touched = args.occurrences.starts, args.scratch.touched
    if group.rank == 0 and args.objective.fit_intercept:
        _step_intercept(group, b, args)
    n_windows = (starts[b + 1] - starts[b]) // WINDOW
    # From the last group on: the first one begins with the intercept.
    for w in range(group.size - 1 - group.rank, n_windows, group.size):
        k, source = _token_of_window(args, b, w)
        if k >= 0:
            _step_token(group, b, k, _sum_pieces(source, args.scratch.of_pieces), source, args)
    for k in range(group.rank, touched.shape[0], group.size):
        if touched[k] != b + 1:
            _step_token(group, b, k, _NOTHING, Source(False, 0, 0), args)


TRAIN = (score_batch, sum_tokens, step_rest)
