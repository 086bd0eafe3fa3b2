"""Bayesian personalised ranking: each positive against negatives of its own.

A positive i of user u and a negative j add log(1 + exp(-w (s_ui - s_uj))) to the loss, s a dot
product or a cosine and w the user's inverse temperature.
"""

from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    batch_of,
    catch_up_batch,
    gather_dropped_row,
    key_of,
    list_users,
    row_length,
    step_after,
    through_dropout,
    through_normalisation,
    touch_row,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.formulas.losses import pair_loss
from freqfm.formulas.search import first_above


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


class PairwiseScratch(NamedTuple):
    """Working memory of up to R rows."""

    masks: np.ndarray  #: (R, d), float32
    units: np.ndarray  #: (R, d), float32
    gradients: np.ndarray  #: (R, d), float32
    losses: np.ndarray  #: (R,), float64
    weights: np.ndarray  #: (R,), float64


@inlined
def _dot(table, k, units, r):
    total = ZERO
    for f in range(table.shape[1]):
        total += table[k, f] * units[r, f]
    return total


@inlined
def _length(table, k, cosine):
    return row_length(table, k, table.shape[1]) if cosine else ONE


@inlined
def _is_known(pairwise, u, item):
    """Return whether the user has the item."""
    last = pairwise.known_starts[u + np.uint64(1)]
    at = first_above(pairwise.known_items, pairwise.known_starts[u], last, np.int64(item) - 1)
    return at < last and pairwise.known_items[at] == item


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
def _list_items(begin, end, batch, pairwise, items):
    """List each positive and then its negatives, and read their rows into the cache."""
    table, occurrences = items.table.weights, items.occurrences
    n_negatives = pairwise.negatives.shape[1]
    starts, first = batch.data.row_starts, batch.first_row
    for p in range(starts[first + begin], starts[first + end]):
        at = (p - batch.first_pair) * (1 + n_negatives)
        occurrences.tokens[at] = batch.data.items[p]
        occurrences.multiples[at] = touch_row(table, np.uint64(batch.data.items[p]))
        for j in range(n_negatives):
            item = pairwise.negatives[p - batch.first_pair_of_call, j]
            occurrences.tokens[at + 1 + j] = item
            occurrences.multiples[at + 1 + j] = touch_row(table, np.uint64(item))


@inlined
def _compare(p, r, loss, batch, pairwise, items, scratch):
    """Compare a positive of row ``r`` with its negatives, which adds to the row's gradient.

    Returns the row's loss with what this adds.
    """
    table, occurrences = items.table.weights, items.occurrences
    width = table.shape[1]
    n_negatives = pairwise.negatives.shape[1]
    u = user_of(batch, r)
    inverse = pairwise.inverse_temperatures[u, 0]
    at = (p - batch.first_pair) * (1 + n_negatives)
    i = np.uint64(batch.data.items[p])
    length = _length(table, i, pairwise.cosine)
    score = _dot(table, i, scratch.units, r) / length
    v = batch.data.weights[p] / np.float32(n_negatives)
    total = ZERO
    for q in range(at + 1, at + 1 + n_negatives):
        k = np.uint64(occurrences.tokens[q])
        push = ZERO
        if not _is_known(pairwise, u, k):
            other_length = _length(table, k, pairwise.cosine)
            other = _dot(table, k, scratch.units, r) / other_length
            value, by_positive, push = pair_loss(inverse * score, inverse * other)
            loss += v * value
            total += by_positive * (inverse * v * np.float32(batch.scale))
            push *= inverse * v * np.float32(batch.scale)
            multiple = push / other_length
            for f in range(width):
                scratch.gradients[r, f] += multiple * table[k, f]
        occurrences.rows[q] = r
        occurrences.multiples[q] = push
    occurrences.rows[at] = r
    occurrences.multiples[at] = total
    multiple = total / length
    for f in range(width):
        scratch.gradients[r, f] += multiple * table[i, f]
    return loss


@inlined
def _learn_row(r, batch, pairwise, users, items, scratch):
    """Find the loss and the gradient of a row: a user's positives against their negatives."""
    width = users.table.weights.shape[1]
    length = gather_dropped_row(
        users.table.weights, user_of(batch, r), pairwise.cosine, pairwise.dropout, key_of(batch, r),
        scratch.masks, scratch.units, r,
    )  # fmt: skip
    for f in range(width):
        scratch.gradients[r, f] = ZERO
    loss = 0.0
    weight = 0.0
    row = batch.first_row + r
    for p in range(batch.data.row_starts[row], batch.data.row_starts[row + 1]):
        loss = _compare(p, r, loss, batch, pairwise, items, scratch)
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
        _list_items(begin, end, batch, pairwise, items)
        catch_up_batch(member, n_rows, users, n_occurrences, items, now)
        for r in range(begin, end):
            _learn_row(r, batch, pairwise, users, items, scratch)
        synchronize(member)
        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.losses[r]
                total_weight += scratch.weights[r]
        apply_gradients(member, n_rows, users, scratch.gradients, NO_UNIT, now, batch.mean)
        apply_gradients(member, n_occurrences, items, scratch.units, n_unit, now, batch.mean)
        synchronize(member)
    return total_loss, total_weight
