"""Bayesian personalised ranking: each positive against negatives drawn for it.

A positive i of user u and a negative j add log(1 + exp(-w (s_ui - s_uj))) to the loss, s a dot
product or a cosine and w the user's inverse temperature.

A batch of 1,024 positives reads about 2,000 random rows of items, half a megabyte. Speed depends on
prefetching these rows, and on avoiding branches that cannot be predicted.
"""

from typing import NamedTuple

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import LINE, prefetch_element, prefetch_row
from freqfm.backends.cpu.listed_rows import AHEAD, Listed, add_rows, score_rows
from freqfm.backends.cpu.ranking.family import Family, numbers_of_rows
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    batch_of,
    catch_up_batch,
    gather_dropped_row,
    key_of,
    list_users,
    row_length,
    row_scratch,
    step_after,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import contains
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import pair_loss
from freqfm.formulas.search import first_above

# Number of positives of a row that are compared at a time, so that their losses are computed by
# vector instructions. It is constant: results do not depend on how threads share the rows.
_LANES = 16

# What the user of a row needs is prefetched this many rows before.
_ROWS_AHEAD = 8

# Up to this many known items are all compared with a negative, by vector instructions. More are
# first narrowed down by binary search, which mispredicts a branch at every other step.
_COMPARED = 256


class Pairwise(NamedTuple):
    """What a call minimises, by which negatives and temperatures."""

    cosine: bool
    dropout: float
    #: Every user's items, sorted, of which none may be a negative: ``known_items`` from
    #: ``known_starts[u]`` to ``known_starts[u + 1]``.
    known_starts: np.ndarray
    known_items: np.ndarray
    #: (n_pairs of the call, N), int32: what each positive is compared with.
    negatives: np.ndarray
    inverse_temperatures: np.ndarray  #: (n_users, 2), the first is w; float32


class Lanes(NamedTuple):
    """Scores and derivatives of the positives that are compared at a time, a row per thread."""

    positives: np.ndarray  #: scores, times w
    positive_scales: np.ndarray  #: one over the length of the item; 1 for dot products
    totals: np.ndarray  #: derivatives by the scores of the positives
    negatives: np.ndarray  #: scores of a negative for each, times w
    negative_scales: np.ndarray
    shares: np.ndarray  #: what losses are multiplied by; 0 where the user has the negative
    losses: np.ndarray
    by_positive: np.ndarray  #: derivatives of the losses
    by_negative: np.ndarray


def _empty_lanes(size):
    """Return Lanes for ``size`` threads."""
    return Lanes(*(row_scratch(_LANES, size) for _ in Lanes._fields))


class PairwiseScratch(NamedTuple):
    """Working memory of up to R rows."""

    masks: np.ndarray  #: (R, d), float32
    units: np.ndarray  #: (R, d), float32
    gradients: np.ndarray  #: (R, d), float32
    losses: np.ndarray  #: (R,), float64
    weights: np.ndarray  #: (R,), float64
    lanes: Lanes


class Row(NamedTuple):
    """Positives of one user, at most ``_LANES``, in a row of a batch."""

    member: Member
    number: int  #: of the row
    first_pair: int
    n_pairs: int
    user: int
    inverse: float  #: temperature; float32
    end: int  #: of the occurrences that this thread scores in the batch


@inlined
def _is_known(pairwise, u, item):
    """Return whether the user has the item."""
    known = pairwise.known_items
    begin = np.int64(pairwise.known_starts[u])
    end = np.int64(pairwise.known_starts[u + np.uint64(1)])
    while end - begin > _COMPARED:
        middle = (begin + end) >> 1
        if known[middle] <= item:
            begin = middle
        else:
            end = middle
    return contains(known, begin, end, item)


@inlined
def _rows_of_member(member, batch):
    """Return the rows of a batch that a thread trains: each takes about as many positives."""
    starts = batch.data.row_starts
    first, last = batch.first_row, batch.first_row + batch.n_rows
    begin, end = part(member, batch.n_pairs)
    return (
        first_above(starts, first, last, batch.first_pair + begin - 1) - first,
        first_above(starts, first, last, batch.first_pair + end - 1) - first,
    )


@inlined
def _list_items(begin, end, batch, pairwise, occurrences):
    """List each positive and then its negatives, each with its row.

    Returns where the list of this thread's rows begins and ends.
    """
    n_negatives = pairwise.negatives.shape[1]
    starts, first = batch.data.row_starts, batch.first_row
    p, last = starts[first + begin], starts[first + end]
    first_at = (p - batch.first_pair) * (1 + n_negatives)
    last_at = (last - batch.first_pair) * (1 + n_negatives)
    r, j = begin, 0
    # One loop without branches: most rows are short.
    for at in range(first_at, last_at):
        item = batch.data.items[p]
        if j > 0:
            item = pairwise.negatives[p - batch.first_pair_of_call, j - 1]
        occurrences.tokens[at] = item
        occurrences.rows[at] = r
        is_last = j == n_negatives
        j = 0 if is_last else j + 1
        p += is_last
        r += is_last and p == starts[first + r + 1]
    return first_at, last_at


@inlined
def _prefetch_user(r, batch, pairwise, users):
    """Prefetch the vector, the temperatures and the known items of the user of a row."""
    u = user_of(batch, r)
    prefetch_row(pairwise.inverse_temperatures, u)
    prefetch_row(users.table.weights, u)
    for at in range(pairwise.known_starts[u], pairwise.known_starts[u + np.uint64(1)], LINE):
        prefetch_element(pairwise.known_items, at)


@inlined
def _prefetch_first(begin, end, first, last, batch, pairwise, users, items):
    """Prefetch what the first rows of a thread need; the others follow as these are trained."""
    for r in range(begin, min(begin + 2 * _ROWS_AHEAD, end)):
        prefetch_element(pairwise.known_starts, user_of(batch, r))
    for r in range(begin, min(begin + _ROWS_AHEAD, end)):
        _prefetch_user(r, batch, pairwise, users)
    for q in range(first, min(first + AHEAD, last)):
        prefetch_row(items.table.weights, np.uint64(items.occurrences.tokens[q]))


@inlined
def _listed(j, row, batch, pairwise, items):
    """Return the occurrences of number ``j`` of each positive of a row; 0 is the positive."""
    stride = 1 + pairwise.negatives.shape[1]
    first = (row.first_pair - batch.first_pair) * stride + j
    return Listed(items.occurrences.tokens, first, stride, row.n_pairs, row.end)


@inlined
def _score(listed, row, pairwise, table, units, scores, scales):
    """Score some occurrences of a row; ``scales`` receive one over the lengths of the items."""
    rank = row.member.rank
    score_rows(listed, table, units, row.number, scores, rank)
    for t in range(row.n_pairs):
        scale = ONE
        if pairwise.cosine:
            k = np.uint64(listed.tokens[listed.first + t * listed.stride])
            scale = ONE / row_length(table, k, table.shape[1])
        scores[rank, t] = row.inverse * scale * scores[rank, t]
        scales[rank, t] = scale


@inlined
def _compare(listed, row, batch, pairwise, lanes):
    """Compute the losses of positives and negatives, and their derivatives."""
    rank = row.member.rank
    for t in range(row.n_pairs):
        share = batch.data.weights[row.first_pair + t] / np.float32(listed.stride - 1)
        item = listed.tokens[listed.first + t * listed.stride]
        lanes.shares[rank, t] = ZERO if _is_known(pairwise, row.user, item) else share
    # Lanes beyond those of the row hold scores of rows before, and are ignored.
    for t in range(_LANES):
        value, by_positive, by_negative = pair_loss(
            lanes.positives[rank, t], lanes.negatives[rank, t]
        )
        lanes.losses[rank, t] = value
        lanes.by_positive[rank, t] = by_positive
        lanes.by_negative[rank, t] = by_negative


@inlined
def _collect(listed, row, factor, lanes, multiples):
    """Turn derivatives by scores into what gradients are multiples of; return the loss."""
    rank = row.member.rank
    loss = 0.0
    for t in range(row.n_pairs):
        share = lanes.shares[rank, t]
        loss += share * lanes.losses[rank, t]
        push = factor * share * lanes.by_negative[rank, t]
        lanes.totals[rank, t] += factor * share * lanes.by_positive[rank, t]
        multiples[listed.first + t * listed.stride] = push
        lanes.by_negative[rank, t] = push * lanes.negative_scales[rank, t]
    return loss


@inlined
def _learn_positives(row, batch, pairwise, items, scratch):
    """Compare positives with their negatives: add to the row's gradient; return the loss."""
    table, multiples, lanes = items.table.weights, items.occurrences.multiples, scratch.lanes
    rank, r, gradients = row.member.rank, row.number, scratch.gradients
    factor = row.inverse * np.float32(batch.scale)
    loss = 0.0
    positives = _listed(0, row, batch, pairwise, items)
    _score(positives, row, pairwise, table, scratch.units, lanes.positives, lanes.positive_scales)
    for t in range(row.n_pairs):
        lanes.totals[rank, t] = ZERO
    for j in range(1, positives.stride):
        negatives = _listed(j, row, batch, pairwise, items)
        _score(
            negatives, row, pairwise, table, scratch.units, lanes.negatives, lanes.negative_scales
        )
        _compare(negatives, row, batch, pairwise, lanes)
        loss += _collect(negatives, row, factor, lanes, multiples)
        add_rows(negatives, table, lanes.by_negative, rank, gradients, r)
    for t in range(row.n_pairs):
        total = lanes.totals[rank, t]
        multiples[positives.first + t * positives.stride] = total
        lanes.totals[rank, t] = total * lanes.positive_scales[rank, t]
    add_rows(positives, table, lanes.totals, rank, gradients, r)
    return loss


@inlined
def _learn_row(member, r, end, batch, pairwise, users, items, scratch):
    """Find the loss and the gradient of a row: a user's positives against their negatives.

    ``end`` is that of the occurrences that this thread scores.
    """
    u = user_of(batch, r)
    width = users.table.weights.shape[1]
    length = gather_dropped_row(
        users.table.weights, u, pairwise.cosine, pairwise.dropout, key_of(batch, r),
        scratch.masks, scratch.units, r,
    )  # fmt: skip
    for f in range(width):
        scratch.gradients[r, f] = ZERO
    loss = 0.0
    weight = 0.0
    first_pair = batch.data.row_starts[batch.first_row + r]
    last_pair = batch.data.row_starts[batch.first_row + r + 1]
    for p in range(first_pair, last_pair, _LANES):
        n_pairs = min(_LANES, last_pair - p)
        inverse = pairwise.inverse_temperatures[u, 0]
        row = Row(member, r, p, n_pairs, u, inverse, end)
        loss += _learn_positives(row, batch, pairwise, items, scratch)
    for p in range(first_pair, last_pair):
        weight += batch.data.weights[p]
    if pairwise.cosine:
        through_normalisation(scratch.gradients[r], scratch.units, r, width, ONE, length)
    through_dropout(scratch.gradients, pairwise.dropout, scratch.masks, r)
    scratch.losses[r] = loss
    scratch.weights[r] = weight


@kernel
def pairwise_train(rank, size, barrier, span, pairwise, sides, scratch):
    """Train on some batches of an epoch; return the sums of the loss and of the weights.

    Arguments as those of ``softmax_train``. A negative that the user is known to have is skipped.
    """
    member = Member(rank, size, barrier)
    users, items, step = sides.users, sides.items, sides.step
    n_unit = items.table.weights.shape[1] if pairwise.cosine else 0
    total_loss = 0.0
    total_weight = 0.0
    for b in range(span.first_batch, span.last_batch):
        batch = batch_of(span, b, step.rule.average)
        now = step_after(step, batch.number + 1)
        n_rows = batch.n_rows
        n_occurrences = batch.n_pairs * (1 + pairwise.negatives.shape[1])
        begin, end = _rows_of_member(member, batch)
        list_users(begin, end, batch, users.occurrences)
        first, last = _list_items(begin, end, batch, pairwise, items.occurrences)
        if step.rule.catch_up != CATCH_UP_NONE:
            catch_up_batch(member, n_rows, users, n_occurrences, items, now)
        _prefetch_first(begin, end, first, last, batch, pairwise, users, items)
        for r in range(begin, end):
            if r + 2 * _ROWS_AHEAD < end:
                prefetch_element(pairwise.known_starts, user_of(batch, r + 2 * _ROWS_AHEAD))
            if r + _ROWS_AHEAD < end:
                _prefetch_user(r + _ROWS_AHEAD, batch, pairwise, users)
            _learn_row(member, r, last, batch, pairwise, users, items, scratch)
        synchronize(member)
        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.losses[r]
                total_weight += scratch.weights[r]
        apply_gradients(member, n_rows, users, scratch.gradients, NO_UNIT, now, batch.mean)
        apply_gradients(member, n_occurrences, items, scratch.units, n_unit, now, batch.mean)
        synchronize(member)
    return total_loss, total_weight


class PairwiseFamily(Family):
    """Each positive is ranked above each of its negatives."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        self.n_listed = n_pairs * problem.n_negatives
        self._scratch = PairwiseScratch(
            masks=aligned_zeros((n_pairs, problem.width)),
            units=aligned_zeros((n_pairs, problem.width)),
            gradients=aligned_zeros((n_pairs, problem.width)),
            **numbers_of_rows(("losses", "weights"), n_pairs),
            lanes=_empty_lanes(size),
        )

    def _work_of_batch(self):
        draws = self.problem.batch_size * self.problem.n_negatives
        return 100 * self.problem.width * draws, draws

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        problem, negatives = self.problem, self.lists_of(call, sides)
        pairwise = Pairwise(
            problem.cosine, problem.dropout, *problem.known, negatives, call.inverse_temperatures
        )
        return call.run(pairwise_train, call.span, pairwise, sides, self._scratch)
