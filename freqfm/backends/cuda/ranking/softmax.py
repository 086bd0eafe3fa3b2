"""Softmax over dot products or cosines: the phases of a batch. For the loss see ``backends.cpu``.

With negatives that a batch shares, scores and both gradients are matrix products. Batches with many
scores are trained in panels of rows: the phases run once for each panel, and a step, which moves
the rows of the tables, is made after the last. With a list of negatives for each row, a group
computes all results of a row.

A loss may put surrogates of the differences to a positive in place of the scores of negatives, so
that a row is one positive; and it may weigh positives by their scores.

Negatives may be drawn for each query, by a group. From cells of items, see ``formulas.cells``, all
of its lanes draw: weights of cells are added as integers, whose sums do not depend on an order.
From other distributions one lane draws, by the formulas that draw on a CPU, see
``formulas.proposals``.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cuda.groups import (
    group_max,
    group_sum,
    last_of_lanes,
    prefix_sum,
    synchronize_group,
)
from freqfm.backends.cuda.products import (
    most_parts,
    parts_of,
    product_in_parts,
    product_of_rows,
    sum_of_parts,
)
from freqfm.backends.cuda.ranking.batches import (
    DERIVATIVE,
    LOSS,
    MOST_SCORES,
    PLAIN_LOSS,
    WEIGHT,
    Family,
    RankingArgs,
    batch_of,
    catch_up_users,
    gather_user,
    key_of,
    move_rows,
    note_row,
    panel_of,
    through_gathering,
)
from freqfm.backends.cuda.tables import (
    COLUMNS,
    FOUR_ZEROS,
    add,
    dot,
    exponentials,
    four_columns,
    gather_dropped_row,
    gather_row,
    largest_of,
    products,
    read,
    score_row,
    sum_inside,
    times,
    unit_element,
    unit_elements,
    write,
)
from freqfm.formulas.cells import Cells, cell_logit
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SEPARATE,
)
from freqfm.formulas.losses import log_surrogate, softmax_with_positive, weight_of_positive
from freqfm.formulas.proposals import (
    DRAWS,
    draw_negatives,
    draws_from,
    formulas_of,
    log_q_of,
    prepare_query,
)
from freqfm.formulas.rng import hash64, random_bits, uniform
from freqfm.formulas.selection import first_above
from freqfm.formulas.special import exp_of_minus

# The largest weight of a cell.
_UNIT = np.float32(1 << 30)

_32, _24, _8 = np.uint64(32), np.uint64(24), np.uint64(8)
_LOW = np.uint64((1 << 24) - 1)


class DeviceCells(NamedTuple):
    """The arrays of ``formulas.cells.Cells`` on a device."""

    codewords: np.ndarray
    cell_codes: np.ndarray
    cell_log_weights: np.ndarray
    cell_starts: np.ndarray  #: int32
    cell_items: np.ndarray
    cell_of: np.ndarray
    aliases: np.ndarray
    log_q: np.ndarray
    log_n_items: float


class DrawScratch(NamedTuple):
    """Working memory for R queries, and their draws.

    That of a distribution's formulas is as on a CPU.
    """

    #: (R, ...), float32; with cells n_codewords + n_cells, scores of codewords, then of cells.
    numbers: np.ndarray
    #: (R, ...), float64; with cells n_cells, int64, weights of cells up to each.
    sums: np.ndarray
    ids: np.ndarray  #: (R, n), int32
    log_q: np.ndarray  #: (R, n), float32


def has_cells(proposal):
    """Return whether all lanes of a group draw from a proposal."""
    return type(proposal) is Cells


def proposal_on(device, proposal):
    """Return a proposal with its arrays on a device."""
    if not has_cells(proposal):
        arrays = {k: v for k, v in proposal._asdict().items() if isinstance(v, np.ndarray)}
        return proposal._replace(**{k: device.to_device(v) for k, v in arrays.items()})
    proposal = proposal._replace(cell_starts=proposal.cell_starts.astype(np.int32))
    arrays = (device.to_device(getattr(proposal, name)) for name in DeviceCells._fields[:-1])
    return DeviceCells(*arrays, np.float32(math.log(proposal.n_items)))


def draw_scratch(device, proposal, n_queries, n, last=None):
    """Return DrawScratch for at most ``n_queries``; that of the last proposal if it fits."""
    if has_cells(proposal):
        n_sums, kind = len(proposal.cell_codes), np.int64
        n_numbers = len(proposal.codewords) + n_sums
    else:
        draws, kind = draws_from(proposal, 1), np.float64
        n_numbers, n_sums = draws.numbers.shape[1], draws.sums.shape[1]
    if last is not None and (last.numbers.shape[1], last.sums.shape[1]) == (n_numbers, n_sums):
        return last
    return DrawScratch(
        device.empty((n_queries, n_numbers), np.float32),
        device.empty((n_queries, n_sums), kind),
        device.empty((n_queries, n), np.int32),
        device.empty((n_queries, n), np.float32),
    )


@inlined
def _below(bits, n):
    """Return a random integer below ``n``, which is less than 2^56; both are uint64."""
    high = bits >> _32
    return ((high * (n >> _24)) >> _8) + ((high * (n & _LOW)) >> _32)


@inlined
def _score_cells(group, cells, queries, r, numbers):
    """Write the scores of codewords and the logits of cells; return the largest logit."""
    n_codewords, width = cells.codewords.shape
    for c in range(group.lane, n_codewords, group.n_lanes):
        total = ZERO
        for f in range(width):
            total += queries[r, f] * cells.codewords[c, f]
        numbers[c] = total
    synchronize_group(group)
    largest = -np.float32(np.inf)
    for c in range(group.lane, cells.cell_codes.shape[0], group.n_lanes):
        logit = cells.cell_log_weights[c] + cell_logit(cells.cell_codes, c, numbers)
        numbers[n_codewords + c] = logit
        largest = max(largest, logit)
    return group_max(group, largest)


@inlined
def _sum_weights(group, largest, numbers, first, sums):
    """Write the sums of the weights of cells; return the last of them."""
    before, n_cells = np.int64(0), sums.shape[0]
    for start in range(0, n_cells, group.n_lanes):
        c = start + group.lane
        weight = np.int64(0)
        if c < n_cells:
            weight = np.int64(_UNIT * exp_of_minus(largest - numbers[first + c]))
        up_to = prefix_sum(group, weight)
        if c < n_cells:
            sums[c] = before + up_to
        before += last_of_lanes(group, up_to)
    return before


@inlined
def log_q_of_item(cells, k, numbers, log_total):
    """Return log(n_items Q(k | query)), given the scores of codewords by the query."""
    static = cells.log_q[k] if cells.log_q.shape[0] > 0 else ZERO
    return static + cell_logit(cells.cell_codes, cells.cell_of[k], numbers) - log_total


@inlined
def draw_from_cells(group, cells, queries, r, key, scratch):
    """Draw items for query ``r``, which the group has written.

    They and their corrections go to row ``r`` of the scratch. Returns the numbers that
    ``log_q_of_item`` needs.
    """
    numbers, sums = scratch.numbers[r], scratch.sums[r]
    largest = _score_cells(group, cells, queries, r, numbers)
    total = _sum_weights(group, largest, numbers, cells.codewords.shape[0], sums)
    log_sum = np.float32(math.log(np.float32(total) / _UNIT))
    log_total = largest + log_sum - cells.log_n_items
    synchronize_group(group)
    for j in range(group.lane, scratch.ids.shape[1], group.n_lanes):
        position = np.int64(_below(random_bits(key, 3 * j), np.uint64(total)))
        cell = first_above(sums, 0, sums.shape[0] - 1, position)
        begin = cells.cell_starts[cell]
        size = np.uint64(cells.cell_starts[cell + 1] - begin)
        at = begin + np.int64(_below(random_bits(key, 3 * j + 1), size))
        log_q = cell_logit(cells.cell_codes, cell, numbers) - log_total
        if cells.aliases.shape[0] == 0:
            scratch.ids[r, j] = cells.cell_items[at]
        else:
            threshold = np.int32(cells.aliases[at, 2]).view(np.float32)
            other = 1 if uniform(random_bits(key, 3 * j + 2)) >= threshold else 0
            scratch.ids[r, j] = cells.aliases[at, other]
            log_q += np.int32(cells.aliases[at, 3 + other]).view(np.float32)
        scratch.log_q[r, j] = log_q
    return log_total


@inlined
def draw_by_formulas(proposal, queries, r, key, scratch):
    """Draw items for query ``r``, by one lane; they and their corrections go to the scratch."""
    query, numbers, sums = queries[r], scratch.numbers[r], scratch.sums[r]
    prepare_query(proposal, query, numbers, sums)
    draw_negatives(proposal, query, key, scratch.ids[r], scratch.log_q[r], numbers, sums)


@inlined
def log_q_by_formulas(proposal, queries, r, k, scratch):
    """Return log(n_items Q(k | query r)), after the draws for the query."""
    return log_q_of(proposal, queries[r], k, scratch.numbers[r], scratch.sums[r])


#: So many scores of a row are the work of a group.
SLICE = 1024


class Softmax(NamedTuple):
    """The loss, and the negatives of a call."""

    negatives_code: int
    n_negatives: int
    corrected: bool
    include_positive: bool
    constant: float
    statistics_wanted: bool
    surrogates: bool  #: whether ``log_surrogate`` is replaced
    weighted: bool  #: whether ``weight_of_positive`` is replaced
    top_temperature: float  #: of the weights of positives
    thresholds: np.ndarray  #: (n_users,), of these weights, or empty
    negatives: np.ndarray  #: (n_lists, n_negatives), int32
    corrections: np.ndarray  #: (n_items,), or empty


class SoftmaxScratch(NamedTuple):
    """Working memory, float32. R rows, M negatives and P positives are the most of any batch."""

    sources: np.ndarray  #: (R + M, d): unit users, then the gradients of shared negatives
    negatives: np.ndarray  #: (M, d), unit negatives
    negative_columns: np.ndarray  #: (d, M)
    corrections: np.ndarray  #: (1, M), or (R, n_negatives)
    positive_corrections: np.ndarray  #: (P,), of drawn lists
    scales: np.ndarray  #: (R, n_negatives), one over the lengths of the items of lists
    scores: np.ndarray  #: (rows of a panel, M), or (R, n_negatives)
    parts: np.ndarray  #: (parts, rows of a panel, d), sums of negatives
    negative_parts: np.ndarray  #: (parts, M, d), gradients by negatives
    scaled: np.ndarray  #: (R, d)
    user_gradients: np.ndarray  #: (R, d)
    lengths: np.ndarray  #: (R,), of users
    #: (4, R, slices), of the negatives of a slice: the largest logit, the sum of exponentials, the
    #: logarithm of the sum at temperature one, and the sum of exponentials times slopes.
    of_slices: np.ndarray
    pair_rows: np.ndarray  #: (P,), int32, the row of each positive
    #: (6, P): score, share in the softmax, loss, derivative, scale of the item, weight.
    of_pairs: np.ndarray


_LARGEST, _TOTAL, _LOG_SUM, _SLOPES = range(4)
_SCORE, _SHARE, _VALUE, _FACTOR, _SCALE, _WEIGHT = range(6)


@inlined
def _n_negatives(args, batch):
    """Return how many negatives a batch has."""
    if args.loss.negatives_code == NEGATIVES_IN_BATCH:
        return batch.n_pairs
    return args.loss.n_negatives


@inlined
def _negative(args, batch, j):
    """Return negative ``j`` that a batch shares."""
    code = args.loss.negatives_code
    if code == NEGATIVES_IN_BATCH:
        return args.data.items[batch.first_pair + j]
    if code == NEGATIVES_FULL:
        return np.int32(j)
    return args.loss.negatives[batch.number, j]


@inlined
def _panel_of(args, batch):
    return panel_of(batch, args.scratch.scores.shape[0])


@inlined
def _gather_user(group, r, args, batch):
    """Gather the user of row ``r``; with surrogates, score the row's positive."""
    scratch = args.scratch
    gather_user(group, r, args, batch, scratch.sources)
    if args.loss.surrogates:
        synchronize_group(group)
        k, table = args.data.items[batch.first_pair + r], args.items.table.weights
        found, _ = score_row(group, table, k, args.call.n_unit, scratch.sources, r)
        if group.lane == 0:
            scratch.of_pairs[_SCORE, r] = found
        synchronize_group(group)


@inlined
def gather(group, s, args):
    """Gather the users and the shared negatives of a batch."""
    batch, scratch, items = batch_of(args.data, args.call, s), args.scratch, args.items
    if batch.panel > 0:
        return
    for r in range(group.rank, batch.n_rows, group.size):
        _gather_user(group, r, args, batch)
        note_row(group, r, args.data, batch, scratch.pair_rows)
    capacity = scratch.lengths.shape[0]
    # From the last group on: the first ones have users.
    for j in range(group.size - 1 - group.rank, _n_negatives(args, batch), group.size):
        k = _negative(args, batch, j)
        gather_row(
            group, items.table.weights, k, args.call.n_unit, scratch.negatives, j,
            scratch.negative_columns,
        )  # fmt: skip
        if group.lane == 0:
            if args.loss.corrected:
                scratch.corrections[0, j] = args.loss.corrections[k]
            items.rows[batch.n_pairs + j] = capacity + j
            items.multiples[batch.n_pairs + j] = ONE


@inlined
def score(group, s, args):
    """Score the rows of a panel against the shared negatives."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape = last - first, _n_negatives(args, batch)
    product_of_rows(group, scratch.sources, first, scratch.negative_columns, shape, scratch.scores)


@inlined
def _negative_inverse(args, batch, r):
    """Return the inverse temperature of the negatives of row ``r``."""
    return args.call.inverse_temperatures[args.data.row_users[batch.first_row + r], 1]


@inlined
def _n_slices(args, batch):
    return (_n_negatives(args, batch) + SLICE - 1) // SLICE


@inlined
def _surrogates(args, r, scores):
    """Return four logs of surrogates of the scores of negatives of row ``r``, and their slopes."""
    positive = args.scratch.of_pairs[_SCORE, r]
    e, a = log_surrogate(scores[0] - positive)
    f, b = log_surrogate(scores[1] - positive)
    g, c = log_surrogate(scores[2] - positive)
    h, d = log_surrogate(scores[3] - positive)
    return (e, f, g, h), (a, b, c, d)


@inlined
def _logits(args, inverse, r, places, columns):
    """Return four logits of negatives of row ``r``.

    Its scores and corrections are at ``places``.
    """
    scores = read(args.scratch.scores, places[0], columns)
    if args.loss.surrogates:
        scores, _ = _surrogates(args, r, scores)
    logits = times(inverse, scores)
    if args.loss.corrected:
        corrections = read(args.scratch.corrections, places[1], columns)
        logits = add(logits, times(-ONE, corrections))
    return logits


@inlined
def _log_sum_of_scores(group, t, begin, end, scores):
    """Return the logarithm of the sum of the exponentials of some scores of a row."""
    largest, total = -np.float32(np.inf), ZERO
    for j in range(begin + group.lane, end, COLUMNS * group.n_lanes):
        largest = max(largest, largest_of(read(scores, t, four_columns(group, j, end))))
    largest = group_max(group, largest)
    for j in range(begin + group.lane, end, COLUMNS * group.n_lanes):
        columns = four_columns(group, j, end)
        total += sum_inside(columns, exponentials(largest, read(scores, t, columns)))
    return largest + np.float32(math.log(group_sum(group, total)))


@inlined
def _inspect_slice(group, r, places, part, args, batch):
    """Find the largest logit of a slice of the negatives of row ``r``.

    ``places`` are the rows of its scores and of its corrections.
    """
    scratch, begin = args.scratch, part * SLICE
    end = min(begin + SLICE, _n_negatives(args, batch))
    inverse, largest = _negative_inverse(args, batch, r), -np.float32(np.inf)
    for j in range(begin + group.lane, end, COLUMNS * group.n_lanes):
        columns = four_columns(group, j, end)
        largest = max(largest, largest_of(_logits(args, inverse, r, places, columns)))
    largest = group_max(group, largest)
    if group.lane == 0:
        scratch.of_slices[_LARGEST, r, part] = largest
    if args.loss.statistics_wanted:
        log_sum = _log_sum_of_scores(group, places[0], begin, end, scratch.scores)
        if group.lane == 0:
            scratch.of_slices[_LOG_SUM, r, part] = log_sum


@inlined
def _largest_of_slices(group, kind, r, args, batch):
    """Return the largest number of a kind of all slices of row ``r``."""
    largest = -np.float32(np.inf)
    for part in range(group.lane, _n_slices(args, batch), group.n_lanes):
        largest = max(largest, args.scratch.of_slices[kind, r, part])
    return group_max(group, largest)


@inlined
def _total_of_slices(group, kind, r, args, batch):
    """Return the sum of a kind of number over all slices of row ``r``."""
    total = ZERO
    for part in range(group.lane, _n_slices(args, batch), group.n_lanes):
        total += args.scratch.of_slices[kind, r, part]
    return group_sum(group, total)


@inlined
def _log_sum_of_slices(group, r, args, batch):
    """Return the logarithm of the sum over all negatives at temperature one."""
    largest, total = _largest_of_slices(group, _LOG_SUM, r, args, batch), ZERO
    for part in range(group.lane, _n_slices(args, batch), group.n_lanes):
        total += exp_of_minus(largest - args.scratch.of_slices[_LOG_SUM, r, part])
    return largest + np.float32(math.log(group_sum(group, total)))


@inlined
def _exponentiate_slice(group, r, places, part, args, batch):
    """Turn a slice of the scores of row ``r`` into exponentials of their logits.

    With surrogates, exponentials are multiplied by the slopes.
    """
    scratch, begin, total, slope = args.scratch, part * SLICE, ZERO, ZERO
    end = min(begin + SLICE, _n_negatives(args, batch))
    inverse = _negative_inverse(args, batch, r)
    shift = _largest_of_slices(group, _LARGEST, r, args, batch)
    for j in range(begin + group.lane, end, COLUMNS * group.n_lanes):
        columns = four_columns(group, j, end)
        found = exponentials(shift, _logits(args, inverse, r, places, columns))
        total += sum_inside(columns, found)
        if args.loss.surrogates:
            _, slopes = _surrogates(args, r, read(scratch.scores, places[0], columns))
            found = products(found, slopes)
            slope += sum_inside(columns, found)
        write(scratch.scores, places[0], columns, found)
    total = group_sum(group, total)
    if args.loss.surrogates:
        slope = group_sum(group, slope)
    if group.lane == 0:
        scratch.of_slices[_TOTAL, r, part] = total
        scratch.of_slices[_SLOPES, r, part] = slope


@inlined
def inspect(group, s, args):
    """Find the largest logits of a panel."""
    batch = batch_of(args.data, args.call, s)
    (first, last), n_slices = _panel_of(args, batch), _n_slices(args, batch)
    for task in range(group.rank, (last - first) * n_slices, group.size):
        t, part = task // n_slices, task % n_slices
        _inspect_slice(group, first + t, (t, 0), part, args, batch)


@inlined
def exponentiate(group, s, args):
    """Turn the scores of a panel into exponentials of their logits."""
    batch = batch_of(args.data, args.call, s)
    (first, last), n_slices = _panel_of(args, batch), _n_slices(args, batch)
    for task in range(group.rank, (last - first) * n_slices, group.size):
        t, part = task // n_slices, task % n_slices
        _exponentiate_slice(group, first + t, (t, 0), part, args, batch)


@inlined
def sum_negatives(group, s, args):
    """Sum the negatives of each row of a panel, by the exponentials, in parts; learn positives."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape, m = (last - first, scratch.negatives.shape[1]), _n_negatives(args, batch)
    product_in_parts(group, scratch.scores, scratch.negatives, m, shape, scratch.parts, True)
    starts = args.data.row_starts
    begin, end = starts[batch.first_row + first], starts[batch.first_row + last]
    # From the last group on: the first ones have tiles.
    for p in range(begin + group.size - 1 - group.rank, end, group.size):
        _learn_positive(group, p, scratch.pair_rows[p - batch.first_pair], args, batch)


@inlined
def _correction(softmax, scratch, o, k):
    """Return the correction of the logit of positive ``o``, which is item ``k``."""
    if softmax.negatives_code == NEGATIVES_DRAWN:
        return scratch.positive_corrections[o]
    return softmax.corrections[k]


@inlined
def _learn_positive(group, p, r, args, batch):
    """Score positive ``p`` of row ``r``, and find the gradients by it and of its user."""
    data, softmax, items, scratch = args.data, args.loss, args.items, args.scratch
    o, k, v = p - batch.first_pair, data.items[p], data.weights[p]
    u = data.row_users[batch.first_row + r]
    inverse = args.call.inverse_temperatures[u, 0]
    negative_inverse = _negative_inverse(args, batch, r)
    total = _total_of_slices(group, _TOTAL, r, args, batch)
    log_sum = _largest_of_slices(group, _LARGEST, r, args, batch) + np.float32(math.log(total))
    found, scale = score_row(group, items.table.weights, k, args.call.n_unit, scratch.sources, r)
    log_total, share = log_sum, ZERO
    if softmax.include_positive:
        logit = negative_inverse * found
        if softmax.corrected:
            logit -= _correction(softmax, scratch, o, k)
        log_total, share = softmax_with_positive(logit, log_sum)
        log_total, share = np.float32(log_total), np.float32(share)
    pull, value, rise = inverse, softmax.constant * log_total, ZERO
    if softmax.surrogates:
        slopes = _total_of_slices(group, _SLOPES, r, args, batch)
        pull = softmax.constant * negative_inverse * slopes / total
    else:
        value -= inverse * found
    if softmax.weighted:
        factor, by_score = weight_of_positive(found, softmax.thresholds[u], softmax.top_temperature)
        rise = v * np.float32(by_score) * value
        v *= np.float32(factor)
    derivative = v * (softmax.constant * negative_inverse * share - pull) + rise
    derivative *= batch.scale
    if group.lane == 0:
        of_pairs = scratch.of_pairs
        of_pairs[_SCORE, o] = found
        of_pairs[_SHARE, o] = share
        of_pairs[_VALUE, o] = value
        of_pairs[_FACTOR, o] = derivative
        of_pairs[_SCALE, o] = scale
        of_pairs[_WEIGHT, o] = v
        items.rows[o] = r
        items.multiples[o] = derivative


class _Sums(NamedTuple):
    """Sums over the positives of a row, with their weights."""

    loss: float
    weight: float  #: without factors of ``weight_of_positive``
    scores: float  #: without these factors
    others: float  #: of the share of the negatives in the softmax
    slope: float  #: of the derivative by the inverse temperature, without that of the negatives


@inlined
def _sum_positives(group, r, args, batch):
    """Return the _Sums of a row."""
    data, of_pairs, row = args.data, args.scratch.of_pairs, batch.first_row + r
    loss, weight, scores, others, slope = ZERO, ZERO, ZERO, ZERO, ZERO
    for p in range(data.row_starts[row] + group.lane, data.row_starts[row + 1], group.n_lanes):
        o = p - batch.first_pair
        found, share, v = of_pairs[_SCORE, o], of_pairs[_SHARE, o], of_pairs[_WEIGHT, o]
        loss += v * of_pairs[_VALUE, o]
        weight += data.weights[p]
        scores += data.weights[p] * found
        others += v * (ONE - share)
        slope += v * found * (args.loss.constant * share - ONE)
    return _Sums(
        group_sum(group, loss),
        group_sum(group, weight),
        group_sum(group, scores),
        group_sum(group, others),
        group_sum(group, slope),
    )


@inlined
def _of_positive(p, last, columns, args, batch):
    """Return four numbers of the gradient by the score of a positive: zeros from the last on."""
    at, of_pairs = min(p, last - 1), args.scratch.of_pairs
    factor, scale = (
        of_pairs[_FACTOR, at - batch.first_pair],
        of_pairs[_SCALE, at - batch.first_pair],
    )
    table, k = args.items.table.weights, args.data.items[at]
    elements = unit_elements(table, k, columns, scale, args.call.n_unit)
    return times(factor if p < last else ZERO, elements)


@inlined
def _sum_of_positives(r, columns, args, batch):
    """Return four numbers of the gradient of row ``r`` by the scores of its positives."""
    starts, row, total = args.data.row_starts, batch.first_row + r, FOUR_ZEROS
    last = starts[row + 1]
    # Four at a time, so that they are read in parallel.
    for p in range(starts[row], last, 4):
        total = add(total, _of_positive(p, last, columns, args, batch))
        total = add(total, _of_positive(p + 1, last, columns, args, batch))
        total = add(total, _of_positive(p + 2, last, columns, args, batch))
        total = add(total, _of_positive(p + 3, last, columns, args, batch))
    return total


@inlined
def _finish_row(group, r, args, batch):
    """Turn the sum of the negatives of row ``r`` into gradients; return its factor.

    Multiplied by the factor, exponentials are the gradient by the scores of the negatives.
    """
    scratch, softmax = args.scratch, args.loss
    gradients, scaled, units = scratch.user_gradients, scratch.scaled, scratch.sources
    width = gradients.shape[1]
    total = _total_of_slices(group, _TOTAL, r, args, batch)
    mean_score = dot(group, scaled, r, units, r, width) / total
    sums = _sum_positives(group, r, args, batch)
    negative_inverse = _negative_inverse(args, batch, r)
    factor = batch.scale * softmax.constant * negative_inverse * sums.others / total
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        total = _sum_of_positives(r, columns, args, batch)
        write(gradients, r, columns, add(total, times(factor, read(scaled, r, columns))))
        write(scaled, r, columns, times(factor, read(units, r, columns)))
    through_gathering(group, r, args, batch, gradients, units)
    results, at = args.call.results, batch.first_row + r - args.call.first_row
    if group.lane == 0:
        results[LOSS, at] = sums.loss
        results[WEIGHT, at] = sums.weight
    if softmax.statistics_wanted:
        log_sum = _log_sum_of_slices(group, r, args, batch)
        if group.lane == 0:
            results[PLAIN_LOSS, at] = sums.weight * log_sum - sums.scores
            results[DERIVATIVE, at] = sums.slope + softmax.constant * sums.others * mean_score
    return factor


@inlined
def finish(group, s, args):
    """Find the gradients of the users of a panel."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n_parts, _ = parts_of(_n_negatives(args, batch), scratch.parts)
    for r in range(first + group.rank, last, group.size):
        for f in range(group.lane, scratch.scaled.shape[1], group.n_lanes):
            scratch.scaled[r, f] = sum_of_parts(scratch.parts, n_parts, r - first, f)
        _finish_row(group, r, args, batch)


@inlined
def learn_negatives(group, s, args):
    """Find the gradients of the shared negatives by the rows of a panel, in parts."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape, scaled = (_n_negatives(args, batch), scratch.scaled.shape[1]), scratch.scaled[first:last]
    product_in_parts(
        group, scratch.scores, scaled, last - first, shape, scratch.negative_parts, False
    )


@inlined
def add_negatives(group, s, args):
    """Add the parts of the gradients of the shared negatives to those of the panels before."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n_parts, _ = parts_of(last - first, scratch.negative_parts)
    capacity, width = scratch.lengths.shape[0], scratch.sources.shape[1]
    for j in range(group.rank, _n_negatives(args, batch), group.size):
        for f in range(group.lane, width, group.n_lanes):
            total = sum_of_parts(scratch.negative_parts, n_parts, j, f)
            if batch.panel > 0:
                total += scratch.sources[capacity + j, f]
            scratch.sources[capacity + j, f] = total


# A list of negatives for each row.


@inlined
def _score_list(group, r, args, batch):
    """Score row ``r`` against its list, gathered item by item."""
    softmax, scratch, table = args.loss, args.scratch, args.items.table.weights
    separate = softmax.negatives_code != NEGATIVES_DRAWN
    at = batch.first_pair - args.call.first_pair + r if separate else r
    for j in range(softmax.n_negatives):
        k = softmax.negatives[at, j]
        found, scale = score_row(group, table, k, args.call.n_unit, scratch.sources, r)
        if group.lane == 0:
            scratch.scores[r, j] = found
            scratch.scales[r, j] = scale
            if separate and softmax.corrected:
                scratch.corrections[r, j] = softmax.corrections[k]
    synchronize_group(group)
    return at


@inlined
def learn_lists(group, s, args):
    """Find the gradients of the rows of a batch, each with its list of negatives."""
    batch, scratch, softmax = batch_of(args.data, args.call, s), args.scratch, args.loss
    table, m = args.items.table.weights, softmax.n_negatives
    for r in range(group.rank, batch.n_rows, group.size):
        _gather_user(group, r, args, batch)
        at = _score_list(group, r, args, batch)
        for part in range(_n_slices(args, batch)):
            _inspect_slice(group, r, (r, r), part, args, batch)
        synchronize_group(group)
        for part in range(_n_slices(args, batch)):
            _exponentiate_slice(group, r, (r, r), part, args, batch)
        synchronize_group(group)
        for f in range(group.lane, table.shape[1], group.n_lanes):
            total = ZERO
            for j in range(m):
                k, scale = softmax.negatives[at, j], scratch.scales[r, j]
                total += scratch.scores[r, j] * unit_element(table, k, f, scale, args.call.n_unit)
            scratch.scaled[r, f] = total
        row = batch.first_row + r
        for p in range(args.data.row_starts[row], args.data.row_starts[row + 1]):
            _learn_positive(group, p, r, args, batch)
        synchronize_group(group)
        factor = _finish_row(group, r, args, batch)
        for j in range(group.lane, m, group.n_lanes):
            o = batch.n_pairs + r * m + j
            args.items.rows[o] = r
            args.items.multiples[o] = factor * scratch.scores[r, j]


class DrawArgs(NamedTuple):
    """The arguments of drawing negatives."""

    ranking: RankingArgs
    proposal: NamedTuple  #: DeviceCells, or another proposal with its arrays on the device
    drawn: DrawScratch


@inlined
def catch_up_drawing(group, s, args):
    """Let the users of a batch catch up before negatives are drawn for them."""
    catch_up_users(group, s, args.ranking)


@inlined
def _write_query(group, r, ranking, batch):
    """Write the query of row ``r`` to the scaled vectors; return the random stream of its draws."""
    call, queries = ranking.call, ranking.scratch.scaled
    u, key = ranking.data.row_users[batch.first_row + r], key_of(ranking.data, batch, r)
    gather_dropped_row(
        group, ranking.users.table.weights, u, call.cosine, call.dropout, key, queries, r
    )
    for f in range(group.lane, queries.shape[1], group.n_lanes):
        queries[r, f] *= call.inverse_temperatures[u, 1]
    synchronize_group(group)
    return key if call.queries_given else hash64(key ^ DRAWS)


@inlined
def draw_of_cells(group, s, args):
    """Draw a list of negatives for each row of a batch, by the logits of its user."""
    ranking, drawn, cells = args.ranking, args.drawn, args.proposal
    data, scratch = ranking.data, ranking.scratch
    batch = batch_of(data, ranking.call, s)
    for r in range(group.rank, batch.n_rows, group.size):
        key, row = _write_query(group, r, ranking, batch), batch.first_row + r
        log_total = draw_from_cells(group, cells, scratch.scaled, r, key, drawn)
        if ranking.loss.include_positive:
            first, last = data.row_starts[row], data.row_starts[row + 1]
            for p in range(first + group.lane, last, group.n_lanes):
                log_q = log_q_of_item(cells, data.items[p], drawn.numbers[r], log_total)
                scratch.positive_corrections[p - batch.first_pair] = log_q


@inlined
def draw(group, s, args):
    """Draw as ``draw_of_cells`` does, by the formulas of a distribution; one lane computes them."""
    ranking, drawn = args.ranking, args.drawn
    data, scratch = ranking.data, ranking.scratch
    batch = batch_of(data, ranking.call, s)
    for r in range(group.rank, batch.n_rows, group.size):
        key, row = _write_query(group, r, ranking, batch), batch.first_row + r
        if group.lane == 0:
            draw_by_formulas(args.proposal, scratch.scaled, r, key, drawn)
            if ranking.loss.include_positive:
                for p in range(data.row_starts[row], data.row_starts[row + 1]):
                    scratch.positive_corrections[p - batch.first_pair] = log_q_by_formulas(
                        args.proposal, scratch.scaled, r, data.items[p], drawn
                    )


SHARED = (
    gather,
    score,
    inspect,
    exponentiate,
    sum_negatives,
    finish,
    learn_negatives,
    add_negatives,
    move_rows,
)
LISTS = (learn_lists, move_rows)
DRAW_OF_CELLS, DRAW = (draw_of_cells,), (draw,)
CATCH_UP_USERS = (catch_up_drawing,)


class SoftmaxFamily(Family):
    """A positive against all of its negatives at once."""

    def __init__(self, device, problem, n_rows, n_pairs):
        super().__init__(device, problem, n_rows, n_pairs)
        self.lists_code = code = problem.negatives_code
        self._is_drawn = code == NEGATIVES_DRAWN
        self._separate = self._is_drawn or code == NEGATIVES_SEPARATE
        self._n_rows, width = n_rows, self._list_length(n_pairs)
        self.n_listed = n_rows * width if self._separate else width
        height = n_rows if self._separate else max(1, min(n_rows, MOST_SCORES // width))
        self.n_panels = -(-n_rows // height)
        self._scratch = self._make_scratch(height, width, n_pairs)
        self._corrections = self._proposal = self._drawn = None

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        one = log_surrogate in problem.formulas or problem.negatives_code == NEGATIVES_SEPARATE
        return 1 if one else problem.block

    def _list_length(self, n_pairs):
        if self._problem.negatives_code == NEGATIVES_IN_BATCH:
            return n_pairs
        if self._problem.negatives_code == NEGATIVES_FULL:
            return self._problem.n_items
        return self._problem.n_negatives

    def _make_scratch(self, height, width, n_pairs):
        floats, n_rows, d, separate = (
            self._floats,
            self._n_rows,
            self._problem.width,
            self._separate,
        )
        n_shared = 0 if separate else width
        return SoftmaxScratch(
            sources=floats(n_rows + n_shared, d),
            negatives=floats(n_shared, d),
            negative_columns=floats(d, n_shared),
            corrections=floats(n_rows if separate else 1, width),
            positive_corrections=floats(n_pairs),
            scales=floats(n_rows if separate else 0, width),
            scores=floats(height, width),
            parts=floats(most_parts(height, d) if n_shared else 0, height, d),
            negative_parts=floats(most_parts(n_shared, d) if n_shared else 0, n_shared, d),
            scaled=floats(n_rows, d),
            user_gradients=floats(n_rows, d),
            lengths=floats(n_rows),
            of_slices=floats(4, n_rows, -(-width // SLICE)),
            pair_rows=self._device.empty(n_pairs if n_shared else 0, np.int32),
            of_pairs=floats(6, n_pairs),
        )

    @property
    def gradients(self):
        """The gradients by the users of the rows of the last batch."""
        return self._scratch.user_gradients

    def _set_proposal(self, proposal):
        if self._corrections is not None and self._proposal is proposal:
            return
        device, self._proposal = self._device, proposal
        static = proposal is not None and not self._is_drawn
        log_q = proposal.log_q if static else np.zeros(0, dtype=np.float32)
        self._corrected = self._problem.corrected if self._is_drawn else len(log_q) > 0
        self._corrections = device.to_device(log_q)
        if self._is_drawn:
            self._on_device, m = proposal_on(device, proposal), self._problem.n_negatives
            self._drawn = draw_scratch(device, proposal, self._n_rows, m, self._drawn)

    def put_draws(self, proposal, items, log_q):
        """Put items where ``AlreadyDrawn`` expects them."""
        self._set_proposal(proposal)
        self._device.write(items.astype(np.int32, copy=False), self._drawn.ids[: len(items)])
        self._device.write(log_q, self._drawn.log_q[: len(items)])

    def run(self, launch):
        """Train on the batches of a Launch."""
        self._set_proposal(launch.proposal)
        scratch, negatives = self._scratch, launch.negatives
        if self._is_drawn:
            scratch = scratch._replace(corrections=self._drawn.log_q)
            negatives = self._drawn.ids
            args = launch.args(self._softmax(negatives), launch.users, scratch)
            args, proposal = DrawArgs(args, self._on_device, self._drawn), launch.proposal
            if has_cells(proposal):
                launch.train(DRAW_OF_CELLS, args, CATCH_UP_USERS)
            else:
                launch.train(DRAW, args, CATCH_UP_USERS, formulas_of(proposal))
        args = launch.args(self._softmax(negatives), launch.list_items(negatives), scratch)
        launch.train(LISTS if self._separate else SHARED, args)

    def _softmax(self, negatives):
        problem, thresholds = self._problem, self._problem.constants["thresholds"]
        if thresholds is None:
            thresholds = np.zeros(0, dtype=np.float32)
        return Softmax(
            negatives_code=problem.negatives_code,
            n_negatives=self._list_length(1),
            corrected=self._corrected,
            include_positive=problem.include_positive,
            constant=np.float32(problem.constants["constant"]),
            statistics_wanted=problem.statistics_wanted,
            surrogates=log_surrogate in problem.formulas,
            weighted=weight_of_positive in problem.formulas,
            top_temperature=np.float32(problem.constants["top_temperature"]),
            thresholds=self._device.to_device(thresholds),
            negatives=negatives,
            corrections=self._corrections,
        )
