"""Second-order factorization machines: scores, and the three phases of a batch.

1. Each row is scored by a group, whose lanes take columns of the factors.
2. Each piece of a token's entries is summed by a group, see ``occurrences``. If it is all that the
   batch has of the token, the token's weights make their step at once.
3. Sums of several pieces are added, in their order, and these tokens step; so does the intercept.

Every sum has an order that does not depend on the grid. Sums are float32: at most ``WINDOW`` terms,
and then at most as many as there are pieces, so that errors grow slowly.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.cuda.columns import (
    COLUMNS,
    FOUR_ZEROS,
    add,
    four_columns,
    products,
    read,
    sum_inside,
    times,
    write,
)
from freqfm.backends.cuda.occurrences import WINDOW, Occurrences
from freqfm.backends.cuda.steps import move_weight, rate_of_row, root_of_row
from freqfm.backends.cuda.team import group_sum
from freqfm.formulas.codes import (
    COUNT_SAMPLES,
    RATE_CONSTANT,
    RATE_COUNTED,
    RATE_GIVEN,
    STEP_ROWWISE_ADAGRAD,
)
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.steps import penalized_curvature, present_rate, step_element

__all__ = ["SCORE", "SUM_LOSSES", "TRAIN", "FMArgs", "FMRows", "FMScratch", "FMWeightState"]

_TWO = np.float32(2)


class FMRows(NamedTuple):
    """Rows of X, in CSR."""

    indptr: np.ndarray  #: (n_rows + 1,), int64
    tokens: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32


class FMTargets(NamedTuple):
    """What rows are trained towards, and their order in an epoch."""

    targets: np.ndarray  #: (n_rows,), float32
    weights: np.ndarray  #: (n_rows,), float32
    order: np.ndarray  #: (n_rows,), int32
    batch_size: int


class FMWeightState(NamedTuple):
    """The weights of one output and the optimizer's state; unused arrays are empty."""

    intercept: np.ndarray  #: (1,)
    linear: np.ndarray  #: (n,)
    factors: np.ndarray  #: (n, d)
    per_row: np.ndarray  #: (n,)
    intercept_state: np.ndarray  #: (3,), first, second, and counter
    linear_first: np.ndarray  #: (n,)
    linear_second: np.ndarray  #: (n,)
    factors_first: np.ndarray  #: (n, d) or (n, 1)
    factors_second: np.ndarray  #: (n, d)


class FMScratch(NamedTuple):
    """What the phases of a batch pass on."""

    sums: np.ndarray  #: (batch_size, d), sums of x v of rows
    weights: np.ndarray  #: (batch_size,), of rows
    derivatives: np.ndarray  #: (batch_size,), of the weighted loss by the score
    curvatures: np.ndarray  #: (batch_size,), see ``_score_row``
    losses: np.ndarray  #: (n_rows,), weighted, at each place of the epoch
    of_rows: np.ndarray  #: (3, n_windows), sums of derivatives, weights, curvatures of rows
    of_pieces: np.ndarray  #: (4, n_pieces), likewise of incomplete pieces, and of squares of x
    vectors: np.ndarray  #: (n_pieces, d), sums of incomplete pieces
    touched: np.ndarray  #: (n,), int32, one more than the last batch that had a token; or empty


class FMArgs(NamedTuple):
    """All that a launch is given; arrays are float32 if not said otherwise."""

    objective: NamedTuple  #: FMObjective, with numbers of float32
    rule: NamedTuple  #: UpdateRule, likewise
    steps: np.ndarray  #: (n_batches, 3): factor of sums, divisors of the rate and of the root
    rows: FMRows
    data: FMTargets
    occurrences: Occurrences
    model: FMWeightState
    scratch: FMScratch


class Summed(NamedTuple):
    """Sums over the entries that a token has in a batch."""

    derivative: float  #: of derivative * x
    squares: float  #: of derivative * x * x
    weight: float  #: of the rows
    curvature: float


class Source(NamedTuple):
    """Where the sum of a token's vectors is to be had: entries, or sums of pieces."""

    complete: bool  #: whether the entries are a piece that is complete
    first: int
    last: int  #: exclusive


class Piece(NamedTuple):
    """A piece of a token's entries in a batch."""

    token: int
    begins: bool  #: whether the token has no piece before
    ends: bool  #: and none after
    slot: int  #: where its sums are kept if it has others
    source: Source


@inlined
def _entry(rows, p, end):
    """Return entry ``p`` of a row that ends at ``end``, of value zero beyond."""
    q = min(p, end - 1)
    return (rows.values[q] if p < end else ZERO), rows.tokens[q]


@inlined
def _sum_row(team, rows, i, factors, sums, j):
    """Return the interactions of a row, and |sum of x v|^2; its sums go to ``sums[j]``."""
    width, norm, squares = factors.shape[1], ZERO, ZERO
    begin, end = rows.indptr[i], rows.indptr[i + 1]
    for f in range(team.lane, width, COLUMNS * team.n_lanes):
        columns, totals, more = four_columns(team, f, width), FOUR_ZEROS, FOUR_ZEROS
        for p in range(begin, end, 2):
            (x, k), (y, m) = _entry(rows, p, end), _entry(rows, p + 1, end)
            u, v = times(x, read(factors, k, columns)), times(y, read(factors, m, columns))
            totals, more = add(totals, u, v), add(more, products(u, u), products(v, v))
        squares += sum_inside(columns, more)
        norm += sum_inside(columns, products(totals, totals))
        if sums.shape[0] > 0:
            write(sums, j, columns, totals)
    norm = group_sum(team, norm)
    return HALF * (norm - group_sum(team, squares)), norm


@inlined
def linear_part(team, rows, i, linear):
    """Return the linear part of a row's score, and the sum of |x|."""
    total, reach = ZERO, ZERO
    for p in range(rows.indptr[i] + team.lane, rows.indptr[i + 1], team.n_lanes):
        x = rows.values[p]
        total += x * linear[rows.tokens[p]]
        reach += abs(x)
    return group_sum(team, total), group_sum(team, reach)


@inlined
def score(team, b, args):
    """Write the scores of rows."""
    rows, intercept, linear, factors, nothing, scores = args
    for i in range(team.rank, scores.shape[0], team.size):
        interactions, _ = _sum_row(team, rows, i, factors, nothing, 0)
        of_linear, _ = linear_part(team, rows, i, linear)
        if team.lane == 0:
            scores[i] = intercept[0] + of_linear + interactions


@inlined
def rows_of_batch(args, b):
    """Return how many rows a batch has."""
    data = args.data
    return min(data.batch_size, data.order.shape[0] - b * data.batch_size)


@inlined
def score_batch(team, b, args):
    """Score the rows of a batch; leave the derivatives and curvatures of their losses.

    For any steps of the weights of the tokens, the score moves at most so much that a row adds
    |x_k| (1 + sum_i |x_i|) (1 + |s|^2), s = sum of x v, times the curvature of its loss to the
    curvature of token k.
    """
    data, scratch, model = args.data, args.scratch, args.model
    start, code = b * data.batch_size, args.objective.loss_code
    for j in range(team.rank, rows_of_batch(args, b), team.size):
        i = data.order[start + j]
        weight, target = data.weights[i], data.targets[i]
        of_linear, reach = linear_part(team, args.rows, i, model.linear)
        interactions, norm = _sum_row(team, args.rows, i, model.factors, scratch.sums, j)
        if team.lane == 0:
            found = model.intercept[0] + of_linear + interactions
            loss, derivative = loss_and_gradient(code, found, target)
            curvature = np.float32(loss_curvature(code, found, target))
            scratch.losses[start + j] = weight * loss
            scratch.weights[j] = weight
            scratch.derivatives[j] = weight * derivative
            scratch.curvatures[j] = weight * curvature * (ONE + reach) * (ONE + norm)


@inlined
def _sum_entries(team, args, source):
    """Return the Summed of the entries of a piece."""
    occurrences, scratch = args.occurrences, args.scratch
    derivative, squares, weight, curvature = ZERO, ZERO, ZERO, ZERO
    for p in range(source.first + team.lane, source.last, team.n_lanes):
        j, x = occurrences.rows[p], occurrences.values[p]
        along = x * scratch.derivatives[j]
        derivative += along
        squares += along * x
        weight += scratch.weights[j]
        curvature += abs(x) * scratch.curvatures[j]
    return Summed(
        group_sum(team, derivative),
        group_sum(team, squares),
        group_sum(team, weight),
        group_sum(team, curvature),
    )


@inlined
def piece_of(args, b, q):
    """Return the Piece ``q`` of all, which is one of batch ``b``."""
    occurrences = args.occurrences
    start, end = occurrences.starts[b], occurrences.starts[b + 1]
    first, last = occurrences.pieces[q], occurrences.pieces[q + 1]
    k = occurrences.tokens[first]
    begins = first == start or occurrences.tokens[first - 1] != k
    ends = last == end or occurrences.tokens[last] != k
    # A window holds at most two pieces of tokens that have others: its first piece and its last.
    place = first - start
    slot = 2 * (place // WINDOW) + (1 if place % WINDOW != 0 else 0)
    return Piece(k, begins, ends, slot, Source(True, first, last))


@inlined
def next_slot(slot):
    """Return the slot of the next piece of the same token: the first of the next window."""
    return 2 * (slot // 2 + 1)


@inlined
def token_of_window(args, b, w):
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
    source = Source(False, first_slot, first_slot)
    if after == end or occurrences.tokens[after] != k:
        return np.int64(-1), source
    if not inside and w > 0 and occurrences.tokens[first - 1] == k:
        return np.int64(-1), source
    w += 1
    while start + w * WINDOW < end and occurrences.tokens[start + w * WINDOW] == k:
        w += 1
    return k, Source(False, first_slot, 2 * w)


@inlined
def _along(args, p, source):
    """Return the derivative times x of entry ``p`` of a piece, zero beyond its end, and its row."""
    q = min(p, source.last - 1)
    j = args.occurrences.rows[q]
    along = args.scratch.derivatives[j] * args.occurrences.values[q]
    return (along if p < source.last else ZERO), j


@inlined
def _sum_columns(args, source, columns):
    """Return four columns of the sum of derivative * x * sums over the entries of a token."""
    scratch, totals = args.scratch, FOUR_ZEROS
    if source.complete:
        for p in range(source.first, source.last, 2):
            (x, i), (y, j) = _along(args, p, source), _along(args, p + 1, source)
            u, v = read(scratch.sums, i, columns), read(scratch.sums, j, columns)
            totals = add(totals, times(x, u), times(y, v))
    else:
        slot = source.first
        while slot < source.last:
            totals = add(totals, read(scratch.vectors, slot, columns), FOUR_ZEROS)
            slot = next_slot(slot)
    return totals


@inlined
def _gradient(args, k, scale, shrinkage, source, columns):
    """Return four columns of the gradient of a token's factors."""
    own = times(-shrinkage, read(args.model.factors, k, columns))
    return times(scale, add(_sum_columns(args, source, columns), own, FOUR_ZEROS))


@inlined
def rate_of_token(team, b, k, summed, args):
    """Return the learning rate of a token, whose counter advances, to all lanes."""
    per_row = args.model.per_row
    curvature = penalized_curvature(summed.curvature, summed.weight, k, args.objective)
    rate = rate_of_row(team, args.rule, per_row, k, summed.weight, curvature)
    return rate / args.steps[b, 1]


@inlined
def step_linear(team, b, k, summed, rate, args):
    """Move the linear weight of a token."""
    model, objective = args.model, args.objective
    if team.lane == 0 and objective.fit_linear:
        penalty = objective.alpha_linear * objective.shares[k] * summed.weight * model.linear[k]
        step_element(
            args.rule, rate, args.steps[b, 2], model.linear, k,
            args.steps[b, 0] * (summed.derivative + penalty), model.linear_first,
            model.linear_second,
        )  # fmt: skip


@inlined
def _step_token(team, b, k, summed, source, args):
    """Move the weights of a token by its sums over the batch."""
    model, rule, objective = args.model, args.rule, args.objective
    scale, root = args.steps[b, 0], args.steps[b, 2]
    if rule.lazy and summed.weight == ZERO:
        return
    rate = rate_of_token(team, b, k, summed, args)
    step_linear(team, b, k, summed, rate, args)
    penalty = objective.alpha_factors * objective.shares[k] * summed.weight
    shrinkage = summed.squares - penalty
    width = model.factors.shape[1]
    if rule.step_code == STEP_ROWWISE_ADAGRAD:
        squares = ZERO
        for f in range(team.lane, width, COLUMNS * team.n_lanes):
            columns = four_columns(team, f, width)
            along = _gradient(args, k, scale, shrinkage, source, columns)
            squares += sum_inside(columns, products(along, along))
        rate /= root_of_row(team, rule, model.factors_first, (k, 0), squares, width)
    for f in range(team.lane, width, COLUMNS * team.n_lanes):
        columns = four_columns(team, f, width)
        along = _gradient(args, k, scale, shrinkage, source, columns)
        _step_factor(k, f, along[0], rate, root, args)
        if columns[1] > f:
            _step_factor(k, columns[1], along[1], rate, root, args)
        if columns[2] > f:
            _step_factor(k, columns[2], along[2], rate, root, args)
        if columns[3] > f:
            _step_factor(k, columns[3], along[3], rate, root, args)


@inlined
def _step_factor(k, f, along, rate, root, args):
    """Move one factor along its gradient."""
    first, second = args.model.factors_first, args.model.factors_second
    move_weight(args.rule, rate, root, args.model.factors, (k, f), along, first, second)


@inlined
def _keep_vectors(team, slot, k, source, args):
    """Keep the gradient of a piece of a token that has others."""
    scratch = args.scratch
    width = scratch.vectors.shape[1]
    for f in range(team.lane, width, COLUMNS * team.n_lanes):
        columns = four_columns(team, f, width)
        write(scratch.vectors, slot, columns, _sum_columns(args, source, columns))


@inlined
def _keep_sums(team, slot, summed, of_pieces):
    """Keep the other sums of such a piece."""
    if team.lane == 0:
        of_pieces[0, slot] = summed.derivative
        of_pieces[1, slot] = summed.squares
        of_pieces[2, slot] = summed.weight
        of_pieces[3, slot] = summed.curvature


@inlined
def _sum_pieces(source, of_pieces):
    """Return the Summed of all pieces of a token."""
    derivative, squares, weight, curvature = ZERO, ZERO, ZERO, ZERO
    slot = source.first
    while slot < source.last:
        derivative += of_pieces[0, slot]
        squares += of_pieces[1, slot]
        weight += of_pieces[2, slot]
        curvature += of_pieces[3, slot]
        slot = next_slot(slot)
    return Summed(derivative, squares, weight, curvature)


@inlined
def sum_rows(team, b, args):
    """Sum what the intercept needs over the rows of each window."""
    scratch, n_rows = args.scratch, rows_of_batch(args, b)
    for w in range(team.rank, (n_rows + WINDOW - 1) // WINDOW, team.size):
        derivative, weight, curvature = ZERO, ZERO, ZERO
        for j in range(w * WINDOW + team.lane, min((w + 1) * WINDOW, n_rows), team.n_lanes):
            derivative += scratch.derivatives[j]
            weight += scratch.weights[j]
            curvature += scratch.curvatures[j]
        derivative = group_sum(team, derivative)
        weight = group_sum(team, weight)
        curvature = group_sum(team, curvature)
        if team.lane == 0:
            scratch.of_rows[0, w] = derivative
            scratch.of_rows[1, w] = weight
            scratch.of_rows[2, w] = curvature


@inlined
def step_intercept(team, b, args):
    """Move the intercept, which all rows hold."""
    rule, model, of_rows = args.rule, args.model, args.scratch.of_rows
    derivative, weight, curvature = ZERO, ZERO, ZERO
    for w in range(team.lane, (rows_of_batch(args, b) + WINDOW - 1) // WINDOW, team.n_lanes):
        derivative += of_rows[0, w]
        weight += of_rows[1, w]
        curvature += of_rows[2, w]
    derivative = group_sum(team, derivative)
    weight = group_sum(team, weight)
    curvature = group_sum(team, curvature)
    if team.lane != 0 or weight == ZERO:
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


def phases_of_batch(score_batch, step_token, keep_vectors):
    """Return the three phases of a batch, from what depends on the kind of machine."""

    @inlined
    def sum_tokens(team, b, args):
        """Sum the pieces of tokens, and step the tokens that have one piece."""
        starts, scratch = args.occurrences.piece_starts, args.scratch
        for q in range(starts[b] + team.rank, starts[b + 1], team.size):
            piece = piece_of(args, b, q)
            if piece.begins and team.lane == 0 and scratch.touched.shape[0] > 0:
                scratch.touched[piece.token] = b + 1
            summed = _sum_entries(team, args, piece.source)
            if piece.begins and piece.ends:
                step_token(team, b, piece.token, summed, piece.source, args)
            else:
                keep_vectors(team, piece.slot, piece.token, piece.source, args)
                _keep_sums(team, piece.slot, summed, scratch.of_pieces)
        sum_rows(team, b, args)

    @inlined
    def step_rest(team, b, args):
        """Step the tokens of several pieces, the intercept, and absent tokens if they move."""
        starts, touched = args.occurrences.starts, args.scratch.touched
        if team.rank == 0 and args.objective.fit_intercept:
            step_intercept(team, b, args)
        n_windows = (starts[b + 1] - starts[b]) // WINDOW
        # From the last group on: the first one begins with the intercept.
        for w in range(team.size - 1 - team.rank, n_windows, team.size):
            k, source = token_of_window(args, b, w)
            if k >= 0:
                summed = _sum_pieces(source, args.scratch.of_pieces)
                step_token(team, b, k, summed, source, args)
        for k in range(team.rank, touched.shape[0], team.size):
            if touched[k] != b + 1:
                nothing = Summed(ZERO, ZERO, ZERO, ZERO)
                step_token(team, b, k, nothing, Source(False, 0, 0), args)

    return score_batch, sum_tokens, step_rest


@inlined
def sum_losses(team, b, args):
    """Write the sums of 4,096 losses each, in float64."""
    losses, sums = args
    for w in range(team.rank, sums.shape[0], team.size):
        total = 0.0
        for i in range(w * 4096 + team.lane, min((w + 1) * 4096, losses.shape[0]), team.n_lanes):
            total += losses[i]
        total = group_sum(team, total)
        if team.lane == 0:
            sums[w] = total


SCORE = (score,)
TRAIN = phases_of_batch(score_batch, _step_token, _keep_vectors)
SUM_LOSSES = (sum_losses,)
