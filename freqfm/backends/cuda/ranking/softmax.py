"""Softmax over dot products or cosines: the phases of a batch. For the loss see ``backends.cpu``.

With negatives that a batch shares, scores and both gradients are matrix products. Batches with many
scores are trained in panels of rows: the phases run once for each panel, and a step, which moves
the rows of the tables, is made after the last. With a list of negatives for each row, a group does
all that concerns the row.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cuda.columns import (
    COLUMNS,
    FOUR_ZEROS,
    add,
    exponentials,
    four_columns,
    largest_of,
    read,
    sum_inside,
    times,
    write,
)
from freqfm.backends.cuda.draws import Cells, DrawScratch, draw_from_cells, log_q_of_item
from freqfm.backends.cuda.products import (
    parts_of,
    product_in_parts,
    product_of_rows,
    product_of_rows_in_parts,
    sum_of_parts,
)
from freqfm.backends.cuda.sorting import batch_of_occurrence
from freqfm.backends.cuda.tables import (
    Dropout,
    Side,
    Step,
    apply_gradients,
    catch_up_rows,
    gather_dropped_row,
    gather_row,
    row_scale,
    through_dropout,
    through_normalisation,
)
from freqfm.backends.cuda.team import group_max, group_sum, synchronize_group, worker
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SHARED,
)
from freqfm.formulas.losses import softmax_with_positive
from freqfm.formulas.rng import hash64
from freqfm.formulas.sampling_laws import DRAWS

__all__ = [
    "CATCH_UP",
    "CATCH_UP_USERS",
    "DERIVATIVE",
    "DRAW",
    "LISTS",
    "LIST_ITEMS",
    "LIST_USERS",
    "LOSS",
    "PLAIN_LOSS",
    "SHARED",
    "WEIGHT",
    "Batch",
    "DrawArgs",
    "EpochData",
    "ItemKeys",
    "RankingCall",
    "Softmax",
    "SoftmaxArgs",
    "SoftmaxScratch",
    "UserKeys",
    "batch_of",
    "key_of",
    "move_rows",
    "note_row",
]

# What is kept of each row of a call.
LOSS, WEIGHT, PLAIN_LOSS, DERIVATIVE = range(4)


class EpochData(NamedTuple):
    """The batches of an epoch, see ``backends.base.Batches``; integers are int32."""

    items: np.ndarray
    weights: np.ndarray
    row_starts: np.ndarray
    row_users: np.ndarray
    batches: np.ndarray  #: (n_batches, 4), first row, number of rows, first pair, number of pairs
    means: np.ndarray  #: (n_batches,), one over the weight of a batch, float32
    key: int  #: random stream of the epoch's rows, uint64


class RankingCall(NamedTuple):
    """Where a call begins, and what it is given."""

    first_batch: int
    first_row: int
    first_pair: int
    n_panels: int  #: how often the phases run for a batch
    average: bool  #: whether gradients are averaged over a batch, or summed
    cosine: bool
    dropout: Dropout
    inverse_temperatures: np.ndarray  #: (n_users, 2)
    results: np.ndarray  #: (4, n_rows), of the rows of the call


class Batch(NamedTuple):
    """One batch, or a panel of it."""

    number: int  #: in the call
    step: int  #: in the epoch, from 1 on
    first_row: int
    n_rows: int
    first_pair: int
    n_pairs: int
    mean: float
    scale: float  #: what gradients are multiplied by: ``mean``, or 1
    panel: int


class Softmax(NamedTuple):
    """The loss, and the negatives of a call."""

    negatives_code: int
    n_negatives: int
    corrected: bool
    include_positive: bool
    constant: float
    statistics_wanted: bool
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
    of_rows: np.ndarray  #: (4, R): length, total, shift, logarithm of the sum at temperature one
    pair_rows: np.ndarray  #: (P,), int32, the row of each positive
    of_pairs: np.ndarray  #: (4, P): score, share in the softmax, logarithm of its sum, factor


class SoftmaxArgs(NamedTuple):
    """All that a launch is given."""

    data: EpochData
    call: RankingCall
    softmax: Softmax
    users: Side
    items: Side
    step: Step
    scratch: SoftmaxScratch


class UserKeys(NamedTuple):
    """What lists the users of the batches of a call."""

    data: EpochData
    first_batch: int
    n_users: int
    keys: np.ndarray
    starts: np.ndarray


class ItemKeys(NamedTuple):
    """What lists the items of the batches of a call: positives, and then negatives."""

    data: EpochData
    first_batch: int
    n_items: int
    code: int  #: of the negatives, or -1 for none
    negatives: np.ndarray
    keys: np.ndarray
    starts: np.ndarray


_LENGTH, _TOTAL, _SHIFT, _LOG_SUM = range(4)
_SCORE, _SHARE, _LOG_TOTAL, _FACTOR = range(4)


@inlined
def batch_of(data, call, s):
    """Return the Batch of step ``s`` of a launch."""
    b = s // call.n_panels
    mean = data.means[b]
    return Batch(
        b - call.first_batch,
        b + 1,
        data.batches[b, 0],
        data.batches[b, 1],
        data.batches[b, 2],
        data.batches[b, 3],
        mean,
        mean if call.average else ONE,
        s % call.n_panels,
    )


@inlined
def key_of(data, batch, r):
    """Return the random stream of row ``r`` of a batch."""
    return hash64(data.key + np.uint64(batch.first_row + r))


@inlined
def _list_users(team, b, args):
    """Write the keys of the users of a call."""
    thread, n_threads = worker(team)
    first = args.data.batches[args.first_batch, 0]
    for e in range(thread, args.keys.shape[0], n_threads):
        batch = np.int64(batch_of_occurrence(args.starts, e))
        args.keys[e] = batch * args.n_users + args.data.row_users[first + e]


@inlined
def _list_items(team, b, args):
    """Write the keys of the items of a call."""
    thread, n_threads = worker(team)
    data, code = args.data, args.code
    call_pair = data.batches[args.first_batch, 2]
    for e in range(thread, args.keys.shape[0], n_threads):
        number = np.int64(batch_of_occurrence(args.starts, e))
        o = e - args.starts[number]
        b = args.first_batch + number
        first_pair, n_pairs = data.batches[b, 2], data.batches[b, 3]
        if o < n_pairs:
            item = data.items[first_pair + o]
        elif code == NEGATIVES_SHARED:
            item = args.negatives[number, o - n_pairs]
        elif code == NEGATIVES_IN_BATCH:
            item = data.items[first_pair + o - n_pairs]
        elif code == NEGATIVES_FULL:
            item = np.int32(o - n_pairs)
        else:
            # A list for each positive of the call or, if they are drawn, for each row of a batch.
            of_list = args.negatives.shape[1]
            before = (first_pair - call_pair) * of_list
            at = before + o - n_pairs
            item = args.negatives[at // of_list, at % of_list]
        args.keys[e] = number * args.n_items + item


@inlined
def _n_negatives(args, batch):
    """Return how many negatives a batch has."""
    if args.softmax.negatives_code == NEGATIVES_IN_BATCH:
        return batch.n_pairs
    return args.softmax.n_negatives


@inlined
def _negative(args, batch, j):
    """Return negative ``j`` that a batch shares."""
    code = args.softmax.negatives_code
    if code == NEGATIVES_IN_BATCH:
        return args.data.items[batch.first_pair + j]
    if code == NEGATIVES_FULL:
        return np.int32(j)
    return args.softmax.negatives[batch.number, j]


@inlined
def _panel_of(args, batch):
    """Return the rows of a panel: the first, and the one after the last."""
    height = args.scratch.scores.shape[0]
    return min(batch.panel * height, batch.n_rows), min((batch.panel + 1) * height, batch.n_rows)


@inlined
def catch_up_batch(team, s, args):
    """Let the rows of a batch catch up on the steps they have missed."""
    batch = batch_of(args.data, args.call, s)
    if batch.panel == 0:
        catch_up_rows(team, batch.number, batch.step, args.users, args.step)
        catch_up_rows(team, batch.number, batch.step, args.items, args.step)


@inlined
def _gather_user(team, r, args, batch):
    """Gather the user of row ``r``, and keep the length."""
    u = args.data.row_users[batch.first_row + r]
    scratch = args.scratch
    length = gather_dropped_row(
        team, args.users.table.weights, u, args.call.cosine, args.call.dropout,
        key_of(args.data, batch, r), scratch.sources, r,
    )  # fmt: skip
    if team.lane == 0:
        scratch.of_rows[_LENGTH, r] = length


@inlined
def note_row(team, r, data, batch, pair_rows):
    """Note for each positive of row ``r`` that it is one of that row."""
    row = batch.first_row + r
    for p in range(data.row_starts[row] + team.lane, data.row_starts[row + 1], team.n_lanes):
        pair_rows[p - batch.first_pair] = r


@inlined
def gather(team, s, args):
    """Gather the users and the shared negatives of a batch."""
    batch, scratch, items = batch_of(args.data, args.call, s), args.scratch, args.items
    if batch.panel > 0:
        return
    width = scratch.sources.shape[1]
    for r in range(team.rank, batch.n_rows, team.size):
        _gather_user(team, r, args, batch)
        note_row(team, r, args.data, batch, scratch.pair_rows)
    n_unit = width if args.call.cosine else 0
    capacity = scratch.of_rows.shape[1]
    for j in range(team.rank, _n_negatives(args, batch), team.size):
        k = _negative(args, batch, j)
        gather_row(
            team, items.table.weights, k, n_unit, scratch.negatives, j, scratch.negative_columns
        )
        if team.lane == 0:
            if args.softmax.corrected:
                scratch.corrections[0, j] = args.softmax.corrections[k]
            items.rows[batch.n_pairs + j] = capacity + j
            items.multiples[batch.n_pairs + j] = ONE


@inlined
def score(team, s, args):
    """Score the rows of a panel against the shared negatives."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape = last - first, _n_negatives(args, batch)
    product_of_rows(team, scratch.sources, first, scratch.negative_columns, shape, scratch.scores)


@inlined
def _logits(args, inverse, t, c, columns):
    """Return four logits of negatives of a row, whose scores and corrections are at t and c."""
    logits = times(inverse, read(args.scratch.scores, t, columns))
    if args.softmax.corrected:
        logits = add(logits, times(-ONE, read(args.scratch.corrections, c, columns)), FOUR_ZEROS)
    return logits


@inlined
def _log_sum_of_scores(team, t, m, scores):
    """Return the logarithm of the sum of the exponentials of a row's scores."""
    largest, total = -np.float32(np.inf), ZERO
    for j in range(team.lane, m, COLUMNS * team.n_lanes):
        largest = max(largest, largest_of(read(scores, t, four_columns(team, j, m))))
    largest = group_max(team, largest)
    for j in range(team.lane, m, COLUMNS * team.n_lanes):
        columns = four_columns(team, j, m)
        total += sum_inside(columns, exponentials(largest, read(scores, t, columns)))
    return largest + np.float32(math.log(group_sum(team, total)))


@inlined
def _exponentiate_row(team, r, places, m, args, batch):
    """Turn the scores of row ``r`` into exponentials, and keep their sum and its logarithm.

    ``places`` are the rows of its scores and of its corrections.
    """
    scratch, (t, c) = args.scratch, places
    u = args.data.row_users[batch.first_row + r]
    inverse = args.call.inverse_temperatures[u, 1]
    if args.softmax.statistics_wanted:
        log_sum = _log_sum_of_scores(team, t, m, scratch.scores)
        if team.lane == 0:
            scratch.of_rows[_LOG_SUM, r] = log_sum
    shift, total = -np.float32(np.inf), ZERO
    for j in range(team.lane, m, COLUMNS * team.n_lanes):
        columns = four_columns(team, j, m)
        shift = max(shift, largest_of(_logits(args, inverse, t, c, columns)))
    shift = group_max(team, shift)
    for j in range(team.lane, m, COLUMNS * team.n_lanes):
        columns = four_columns(team, j, m)
        found = exponentials(shift, _logits(args, inverse, t, c, columns))
        write(scratch.scores, t, columns, found)
        total += sum_inside(columns, found)
    total = group_sum(team, total)
    if team.lane == 0:
        scratch.of_rows[_TOTAL, r] = total
        scratch.of_rows[_SHIFT, r] = shift


@inlined
def exponentiate(team, s, args):
    """Turn the scores of a panel into exponentials of their logits."""
    batch = batch_of(args.data, args.call, s)
    first, last = _panel_of(args, batch)
    m = _n_negatives(args, batch)
    for r in range(first + team.rank, last, team.size):
        _exponentiate_row(team, r, (r - first, 0), m, args, batch)


@inlined
def sum_negatives(team, s, args):
    """Sum the negatives of each row of a panel, by the exponentials, in parts; learn positives."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape, m = (last - first, scratch.negatives.shape[1]), _n_negatives(args, batch)
    product_of_rows_in_parts(team, scratch.scores, scratch.negatives, m, shape, scratch.parts)
    starts = args.data.row_starts
    begin, end = starts[batch.first_row + first], starts[batch.first_row + last]
    # From the last group on: the first ones have tiles.
    for p in range(begin + team.size - 1 - team.rank, end, team.size):
        _learn_positive(team, p, scratch.pair_rows[p - batch.first_pair], args, batch)


@inlined
def _correction(args, batch, o, k):
    """Return what is subtracted from the logit of positive ``o``, which is item ``k``."""
    if args.softmax.negatives_code == NEGATIVES_DRAWN:
        return args.scratch.positive_corrections[o]
    return args.softmax.corrections[k]


@inlined
def _learn_positive(team, p, r, args, batch):
    """Score positive ``p`` of row ``r``, and find the gradients by it and of its user."""
    data, softmax, items, scratch = args.data, args.softmax, args.items, args.scratch
    table, o, k, v = items.table.weights, p - batch.first_pair, data.items[p], data.weights[p]
    u, width, dot = data.row_users[batch.first_row + r], table.shape[1], ZERO
    inverse = args.call.inverse_temperatures[u, 0]
    negative_inverse = args.call.inverse_temperatures[u, 1]
    log_sum = scratch.of_rows[_SHIFT, r] + np.float32(math.log(scratch.of_rows[_TOTAL, r]))
    for f in range(team.lane, width, team.n_lanes):
        dot += table[k, f] * scratch.sources[r, f]
    item_scale = row_scale(team, table, k, width if args.call.cosine else 0)
    found = group_sum(team, dot) * item_scale
    log_total, share = log_sum, ZERO
    if softmax.include_positive:
        logit = negative_inverse * found
        if softmax.corrected:
            logit -= _correction(args, batch, o, k)
        total, of_positive = softmax_with_positive(logit, log_sum)
        log_total, share = np.float32(total), np.float32(of_positive)
    derivative = batch.scale * v * (softmax.constant * negative_inverse * share - inverse)
    if team.lane == 0:
        scratch.of_pairs[_SCORE, o] = found
        scratch.of_pairs[_SHARE, o] = share
        scratch.of_pairs[_LOG_TOTAL, o] = log_total
        scratch.of_pairs[_FACTOR, o] = derivative * item_scale
        items.rows[o] = r
        items.multiples[o] = derivative


class _Sums(NamedTuple):
    """Sums over the positives of a row, with their weights."""

    loss: float
    weight: float
    scores: float
    others: float  #: of the share of the negatives in the softmax
    share_scores: float  #: of the share of the positive, times its score


@inlined
def _sum_positives(team, r, args, batch):
    """Return the _Sums of a row."""
    data, of_pairs, constant = args.data, args.scratch.of_pairs, args.softmax.constant
    row = batch.first_row + r
    inverse = args.call.inverse_temperatures[data.row_users[row], 0]
    loss, weight, scores, others, share_scores = ZERO, ZERO, ZERO, ZERO, ZERO
    for p in range(data.row_starts[row] + team.lane, data.row_starts[row + 1], team.n_lanes):
        o, v = p - batch.first_pair, data.weights[p]
        found, share = of_pairs[_SCORE, o], of_pairs[_SHARE, o]
        loss += v * (constant * of_pairs[_LOG_TOTAL, o] - inverse * found)
        weight += v
        scores += v * found
        others += v * (ONE - share)
        share_scores += v * share * found
    return _Sums(
        group_sum(team, loss),
        group_sum(team, weight),
        group_sum(team, scores),
        group_sum(team, others),
        group_sum(team, share_scores),
    )


@inlined
def _sum_of_positives(r, f, args, batch):
    """Return number ``f`` of the gradient of row ``r`` by the scores of its positives."""
    data, table, of_pairs = args.data, args.items.table.weights, args.scratch.of_pairs
    row, total = batch.first_row + r, ZERO
    for p in range(data.row_starts[row], data.row_starts[row + 1]):
        total += of_pairs[_FACTOR, p - batch.first_pair] * table[data.items[p], f]
    return total


@inlined
def _finish_row(team, r, args, batch):
    """Turn the sum of the negatives of row ``r`` into gradients; return its factor.

    Multiplied by the factor, exponentials are the gradient by the scores of the negatives.
    """
    scratch, softmax = args.scratch, args.softmax
    gradients, scaled, units = scratch.user_gradients, scratch.scaled, scratch.sources
    width, total, mean_score = gradients.shape[1], scratch.of_rows[_TOTAL, r], ZERO
    for f in range(team.lane, width, team.n_lanes):
        mean_score += scaled[r, f] * units[r, f]
    mean_score = group_sum(team, mean_score) / total
    sums = _sum_positives(team, r, args, batch)
    u = args.data.row_users[batch.first_row + r]
    negative_inverse = args.call.inverse_temperatures[u, 1]
    factor = batch.scale * softmax.constant * negative_inverse * sums.others / total
    for f in range(team.lane, width, team.n_lanes):
        gradients[r, f] = _sum_of_positives(r, f, args, batch) + factor * scaled[r, f]
        scaled[r, f] = factor * units[r, f]
    if args.call.cosine:
        through_normalisation(team, gradients, units, r, scratch.of_rows[_LENGTH, r])
    through_dropout(team, gradients, args.call.dropout, key_of(args.data, batch, r), r)
    if team.lane == 0:
        results, at = args.call.results, batch.first_row + r - args.call.first_row
        results[LOSS, at] = sums.loss
        results[WEIGHT, at] = sums.weight
        if softmax.statistics_wanted:
            results[PLAIN_LOSS, at] = sums.weight * scratch.of_rows[_LOG_SUM, r] - sums.scores
            derivative = sums.share_scores + sums.others * mean_score
            results[DERIVATIVE, at] = softmax.constant * derivative - sums.scores
    return factor


@inlined
def finish(team, s, args):
    """Find the gradients of the users of a panel."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n_parts, _ = parts_of(_n_negatives(args, batch), scratch.parts)
    for r in range(first + team.rank, last, team.size):
        for f in range(team.lane, scratch.scaled.shape[1], team.n_lanes):
            scratch.scaled[r, f] = sum_of_parts(scratch.parts, n_parts, r - first, f)
        _finish_row(team, r, args, batch)


@inlined
def learn_negatives(team, s, args):
    """Find the gradients of the shared negatives by the rows of a panel, in parts."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    shape, scaled = (_n_negatives(args, batch), scratch.scaled.shape[1]), scratch.scaled[first:last]
    product_in_parts(team, scratch.scores, scaled, last - first, shape, scratch.negative_parts)


@inlined
def add_negatives(team, s, args):
    """Add the parts of the gradients of the shared negatives to those of the panels before."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    first, last = _panel_of(args, batch)
    n_parts, _ = parts_of(last - first, scratch.negative_parts)
    capacity, width = scratch.of_rows.shape[1], scratch.sources.shape[1]
    for j in range(team.rank, _n_negatives(args, batch), team.size):
        for f in range(team.lane, width, team.n_lanes):
            total = sum_of_parts(scratch.negative_parts, n_parts, j, f)
            if batch.panel > 0:
                total += scratch.sources[capacity + j, f]
            scratch.sources[capacity + j, f] = total


@inlined
def move_rows(team, s, args):
    """Move the users and the items of a batch, after its last panel."""
    batch, scratch = batch_of(args.data, args.call, s), args.scratch
    if batch.panel + 1 < args.call.n_panels:
        return
    n_unit = scratch.sources.shape[1] if args.call.cosine else 0
    apply_gradients(
        team, batch.number, batch.step, args.users, scratch.user_gradients, 0, batch.mean, args.step
    )
    apply_gradients(
        team, batch.number, batch.step, args.items, scratch.sources, n_unit, batch.mean, args.step
    )


# A list of negatives for each row.


@inlined
def _score_list(team, r, args, batch):
    """Score row ``r`` against its list, gathered item by item."""
    softmax, scratch, table = args.softmax, args.scratch, args.items.table.weights
    width, n_unit = table.shape[1], table.shape[1] if args.call.cosine else 0
    separate = softmax.negatives_code != NEGATIVES_DRAWN
    at = batch.first_pair - args.call.first_pair + r if separate else r
    for j in range(softmax.n_negatives):
        k = softmax.negatives[at, j]
        dot = ZERO
        for f in range(team.lane, width, team.n_lanes):
            dot += table[k, f] * scratch.sources[r, f]
        scale = row_scale(team, table, k, n_unit)
        dot = group_sum(team, dot) * scale
        if team.lane == 0:
            scratch.scores[r, j] = dot
            scratch.scales[r, j] = scale
            if separate and softmax.corrected:
                scratch.corrections[r, j] = softmax.corrections[k]
    synchronize_group(team)
    return at


@inlined
def learn_lists(team, s, args):
    """Find the gradients of the rows of a batch, each with its list of negatives."""
    batch, scratch, softmax = batch_of(args.data, args.call, s), args.scratch, args.softmax
    table, m = args.items.table.weights, softmax.n_negatives
    for r in range(team.rank, batch.n_rows, team.size):
        _gather_user(team, r, args, batch)
        at = _score_list(team, r, args, batch)
        _exponentiate_row(team, r, (r, r), m, args, batch)
        synchronize_group(team)
        for f in range(team.lane, table.shape[1], team.n_lanes):
            total = ZERO
            for j in range(m):
                total += (
                    scratch.scores[r, j] * scratch.scales[r, j] * table[softmax.negatives[at, j], f]
                )
            scratch.scaled[r, f] = total
        row = batch.first_row + r
        for p in range(args.data.row_starts[row], args.data.row_starts[row + 1]):
            _learn_positive(team, p, r, args, batch)
        synchronize_group(team)
        factor = _finish_row(team, r, args, batch)
        for j in range(team.lane, m, team.n_lanes):
            o = batch.n_pairs + r * m + j
            args.items.rows[o] = r
            args.items.multiples[o] = factor * scratch.scores[r, j]


class DrawArgs(NamedTuple):
    """What negatives are drawn by."""

    softmax: SoftmaxArgs
    cells: Cells
    drawn: DrawScratch


@inlined
def catch_up_users(team, s, args):
    """Let the users of a batch catch up on the steps that they have missed."""
    softmax = args.softmax
    batch = batch_of(softmax.data, softmax.call, s)
    catch_up_rows(team, batch.number, batch.step, softmax.users, softmax.step)


@inlined
def draw(team, s, args):
    """Draw a list of negatives for each row of a batch, by the logits of its user."""
    call, data, scratch = args.softmax.call, args.softmax.data, args.softmax.scratch
    batch = batch_of(data, call, s)
    for r in range(team.rank, batch.n_rows, team.size):
        row, key = batch.first_row + r, key_of(data, batch, r)
        u, queries = data.row_users[row], scratch.scaled
        gather_dropped_row(
            team, args.softmax.users.table.weights, u, call.cosine, call.dropout, key, queries, r
        )
        for f in range(team.lane, queries.shape[1], team.n_lanes):
            queries[r, f] *= call.inverse_temperatures[u, 1]
        log_total = draw_from_cells(team, args.cells, queries, r, hash64(key ^ DRAWS), args.drawn)
        if args.softmax.softmax.include_positive:
            first, last = data.row_starts[row], data.row_starts[row + 1]
            for p in range(first + team.lane, last, team.n_lanes):
                log_q = log_q_of_item(args.cells, data.items[p], args.drawn.numbers[r], log_total)
                scratch.positive_corrections[p - batch.first_pair] = log_q


LIST_USERS = (_list_users,)
LIST_ITEMS = (_list_items,)
CATCH_UP = (catch_up_batch,)
SHARED = (
    gather,
    score,
    exponentiate,
    sum_negatives,
    finish,
    learn_negatives,
    add_negatives,
    move_rows,
)
LISTS = (learn_lists, move_rows)
CATCH_UP_USERS = (catch_up_users,)
DRAW = (draw,)
