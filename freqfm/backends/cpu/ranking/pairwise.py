"""Bayesian personalised ranking: each positive against negatives drawn for it.

A positive i of user u and a negative j add log(1 + exp(-w (s_ui - s_uj))) to the loss, s a dot
product or a cosine and w the user's inverse temperature.

A batch of 1,024 positives reads about 2,000 random rows of items, half a megabyte, so speed depends
on prefetching these rows.
"""

from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.instructions import LINE, prefetch_cell, prefetch_element, prefetch_row
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.ranking.family import Family, is_known, numbers_of_rows
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    batch_of,
    catch_up_batch,
    gather_user,
    list_users,
    n_user_occurrences,
    prefetch_user,
    row_length,
    row_scratch,
    step_after,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import add_multiple
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import ends_draws, pair_loss, weight_of_draw
from freqfm.formulas.selection import first_above

# An item is prefetched this many items before it is scored, and what the user of a row needs this
# many rows before.
_AHEAD, _ROWS_AHEAD = 16, 8


class Pairwise(NamedTuple):
    """The loss of a call, with its negatives and temperatures."""

    cosine: bool
    dropout: float
    n_items: int
    #: Every user's items, sorted, of which none may be a negative: ``known_items`` from
    #: ``known_starts[u]`` to ``known_ends[u]``.
    known_starts: np.ndarray
    known_ends: np.ndarray
    known_items: np.ndarray
    #: (n_pairs of the call, N), int32: what each positive is compared with.
    negatives: np.ndarray
    #: (n_pairs of the call, N), float32: their weights, of which the mean is one; (0, 1) if all
    #: are one.
    weights: np.ndarray
    inverse_temperatures: np.ndarray  #: (n_users, 2), the first is w; float32


class PairwiseScratch(NamedTuple):
    """Working memory of up to R rows."""

    masks: np.ndarray  #: (R, d), float32
    units: np.ndarray  #: (R, d), float32
    gradients: np.ndarray  #: (R, d), float32
    losses: np.ndarray  #: (R,), float64
    weights: np.ndarray  #: (R,), float64
    compared: tuple  #: Losses of each thread, (size, negatives of the longest row), float32


class Losses(NamedTuple):
    """Losses of the positives of a row, each with all of its negatives."""

    values: np.ndarray
    by_positive: np.ndarray  #: the derivative; before that the score of the positive
    by_negative: np.ndarray
    end: int  #: that of the items that the thread scores


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

    Where the list of this thread's rows begins and ends is returned.
    """
    starts, first = batch.data.row_starts, batch.first_row
    n_negatives = pairwise.negatives.shape[1]
    first_at = at = (starts[first + begin] - batch.first_pair) * (1 + n_negatives)
    for r in range(begin, end):
        for p in range(starts[first + r], starts[first + r + 1]):
            occurrences.tokens[at] = batch.data.items[p]
            occurrences.rows[at] = r
            for j in range(n_negatives):
                at += 1
                occurrences.tokens[at] = pairwise.negatives[p - batch.first_pair_of_call, j]
                occurrences.rows[at] = r
            at += 1
    return first_at, at


@inlined
def _prefetch_user(r, batch, pairwise, users):
    """Prefetch the vector, the temperatures and the known items of the user of a row."""
    u = user_of(batch, r)
    prefetch_row(pairwise.inverse_temperatures, u)
    prefetch_user(r, batch, users.table.weights)
    for at in range(pairwise.known_starts[u], pairwise.known_ends[u], LINE):
        prefetch_element(pairwise.known_items, at)


@inlined
def _prefetch_first(begin, end, first, last, batch, pairwise, users, items):
    """Prefetch what the first rows of a thread need; the others follow as these are trained."""
    for r in range(begin, min(begin + _ROWS_AHEAD, end)):
        _prefetch_user(r, batch, pairwise, users)
    for q in range(first, min(first + _AHEAD, last)):
        prefetch_row(items.table.weights, np.uint64(items.occurrences.tokens[q]))


@inlined
def _score(q, end, unit, table, tokens, cosine):
    """Return the score of item ``tokens[q]``, and one over its length; 1 for dot products."""
    prefetch_row(table, np.uint64(tokens[min(q + _AHEAD, end - 1)]))
    k = np.uint64(tokens[q])
    row = table[k]
    dot = ZERO
    for f in range(row.shape[0]):
        dot += unit[f] * row[f]
    scale = ONE / row_length(table, k, row.shape[0]) if cosine else ONE
    return scale * dot, scale


@inlined
def _score_two(q, end, unit, table, tokens, cosine):
    """Do what ``_score`` does for two items in one loop, which takes as long as for one."""
    last, width = end - 1, unit.shape[0]
    ahead, beyond = tokens[min(q + _AHEAD, last)], tokens[min(q + _AHEAD + 1, last)]
    k, j = np.uint64(tokens[q]), np.uint64(tokens[q + 1])
    for f in range(0, width, LINE):
        prefetch_cell(table, ahead, f)
        prefetch_cell(table, beyond, f)
    one, two = table[k], table[j]
    x, y = ZERO, ZERO
    for f in range(width):
        x += unit[f] * one[f]
        y += unit[f] * two[f]
    if not cosine:
        return x, ONE, y, ONE
    of_one, of_two = ONE / row_length(table, k, width), ONE / row_length(table, j, width)
    return of_one * x, of_one, of_two * y, of_two


@inlined
def _until_one_ends():
    """Return whether a positive's negatives only count up to one that ends its draws."""
    return ends_draws(np.float32(np.inf))


@inlined
def _compare(first, last, r, batch, pairwise, items, scratch, losses):
    """Find the losses of row ``r``, whose items are listed from ``first`` to ``last``.

    All items are scored first, so that vector instructions compute the losses: one by one, these
    take as long as the dot products. The multiples of items become one over their lengths.
    """
    table, tokens, unit = items.table.weights, items.occurrences.tokens, scratch.units[r]
    inverse = pairwise.inverse_temperatures[user_of(batch, r), 0]
    multiples, stride, n = items.occurrences.multiples, 1 + pairwise.negatives.shape[1], 0
    for at in range(first, last, stride):
        score, multiples[at], other, multiples[at + 1] = _score_two(
            at, losses.end, unit, table, tokens, pairwise.cosine
        )
        losses.by_positive[n], losses.by_negative[n] = inverse * score, inverse * other
        n += 1
        for q in range(at + 2, at + stride):
            other, multiples[q] = _score(q, losses.end, unit, table, tokens, pairwise.cosine)
            losses.by_positive[n], losses.by_negative[n] = inverse * score, inverse * other
            n += 1
    # Whole vectors: numbers beyond the last are of other rows, and ignored.
    for c in range(-(-n // LINE) * LINE):
        losses.values[c], losses.by_positive[c], losses.by_negative[c] = pair_loss(
            losses.by_positive[c], losses.by_negative[c]
        )


@inlined
def _learn_positive(p, c, r, batch, pairwise, items, scratch, losses):
    """Compare a positive with its negatives: add to the gradient of row ``r``; return the loss.

    ``c`` is where its losses begin. See ``_compare``.
    """
    table, tokens = items.table.weights, items.occurrences.tokens
    multiples, unit, gradient = items.occurrences.multiples, scratch.units[r], scratch.gradients[r]
    n_negatives, u = pairwise.negatives.shape[1], user_of(batch, r)
    inverse = pairwise.inverse_temperatures[u, 0]
    weight = batch.data.weights[p]
    factor = inverse * np.float32(batch.scale)
    first = (p - batch.first_pair) * (1 + n_negatives)
    last = first + n_negatives
    score = ZERO
    if _until_one_ends():
        score, multiples[first] = _score(first, losses.end, unit, table, tokens, pairwise.cosine)
    loss = 0.0
    total, scale, last_scale = ZERO, multiples[first], ONE
    ended = False
    for q in range(first + 1, last + 1):
        if ended:
            multiples[q] = ZERO
            continue
        if _until_one_ends():
            other, last_scale = _score(q, losses.end, unit, table, tokens, pairwise.cosine)
            value, by_positive, by_negative = pair_loss(inverse * score, inverse * other)
        else:
            value, last_scale = losses.values[c], multiples[q]
            by_positive, by_negative = losses.by_positive[c], losses.by_negative[c]
            c += 1
        multiples[q] = ZERO
        if is_known(pairwise, u, tokens[q]):
            continue
        ended = ends_draws(value)
        share = weight * weight_of_draw(q - first, n_negatives, pairwise.n_items)
        if pairwise.weights.shape[0] > 0:
            share *= pairwise.weights[p - batch.first_pair_of_call, q - first - 1]
        loss += share * value
        total += factor * share * by_positive
        multiples[q] = factor * share * by_negative
        if q < last:
            add_multiple(multiples[q] * last_scale, table[np.uint64(tokens[q])], gradient)
    multiples[first] = total
    # In one loop with the last negative, which most often is the only one: beginning a loop takes
    # as long as a vector of 64 numbers.
    one, two = table[np.uint64(tokens[first])], table[np.uint64(tokens[last])]
    x, y = total * scale, multiples[last] * last_scale
    for f in range(gradient.shape[0]):
        gradient[f] += x * one[f] + y * two[f]
    return loss


@inlined
def _learn_row(r, batch, pairwise, users, items, scratch, losses):
    """Find the loss and the gradient of a row: a user's positives against their negatives."""
    width = users.table.weights.shape[1]
    length = gather_user(
        r, batch, users.table.weights, pairwise.cosine, pairwise.dropout,
        scratch.masks, scratch.units,
    )  # fmt: skip
    for f in range(width):
        scratch.gradients[r, f] = ZERO
    loss = 0.0
    weight = 0.0
    row, n_negatives = batch.first_row + r, pairwise.negatives.shape[1]
    begin, until = batch.data.row_starts[row], batch.data.row_starts[row + 1]
    if not _until_one_ends():
        first = (begin - batch.first_pair) * (1 + n_negatives)
        last = (until - batch.first_pair) * (1 + n_negatives)
        _compare(first, last, r, batch, pairwise, items, scratch, losses)
    for p in range(begin, until):
        c = (p - begin) * n_negatives
        loss += _learn_positive(p, c, r, batch, pairwise, items, scratch, losses)
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
    values, positives, negatives = scratch.compared
    total_loss = 0.0
    total_weight = 0.0
    for b in range(span.first_batch, span.last_batch):
        batch = batch_of(span, b, step.rule.average)
        now = step_after(step, batch.number + 1)
        n_rows, n_users = batch.n_rows, n_user_occurrences(batch)
        n_occurrences = batch.n_pairs * (1 + pairwise.negatives.shape[1])
        begin, end = _rows_of_member(member, batch)
        list_users(begin, end, batch, users.occurrences)
        first, last = _list_items(begin, end, batch, pairwise, items.occurrences)
        losses = Losses(values[rank], positives[rank], negatives[rank], last)
        if step.rule.catch_up != CATCH_UP_NONE:
            catch_up_batch(member, n_users, users, n_occurrences, items, now)
        _prefetch_first(begin, end, first, last, batch, pairwise, users, items)
        for r in range(begin, end):
            if r + 2 * _ROWS_AHEAD < end:
                prefetch_element(pairwise.known_starts, user_of(batch, r + 2 * _ROWS_AHEAD))
            if r + _ROWS_AHEAD < end:
                _prefetch_user(r + _ROWS_AHEAD, batch, pairwise, users)
            _learn_row(r, batch, pairwise, users, items, scratch, losses)
        synchronize(member)
        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.losses[r]
                total_weight += scratch.weights[r]
        apply_gradients(member, n_users, users, scratch.gradients, NO_UNIT, now, batch.mean)
        apply_gradients(member, n_occurrences, items, scratch.units, n_unit, now, batch.mean)
        synchronize(member)
    return total_loss, total_weight


class PairwiseFamily(Family):
    """Each positive is ranked above each of its negatives."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        self.n_listed = n_pairs * problem.n_negatives
        longest = min(problem.block or n_pairs, n_pairs) * problem.n_negatives
        self._scratch = PairwiseScratch(
            masks=aligned_zeros((n_pairs, problem.width)),
            units=aligned_zeros((n_pairs, problem.width)),
            gradients=aligned_zeros((n_pairs, problem.width)),
            **numbers_of_rows(("losses", "weights"), n_pairs),
            compared=tuple(row_scratch(longest, size) for _ in range(3)),
        )

    def _work_of_batch(self):
        draws = self.problem.batch_size * self.problem.n_negatives
        return 100 * self.problem.width * draws, draws

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        problem, drawn = self.problem, call.draws is not None
        negatives, weights = call.negatives, np.zeros((0, 1), dtype=np.float32)
        if drawn:
            data, b = call.span.data, call.span.first_batch
            first, last = data.row_starts[data.batch_starts[b : b + 2]]
            negatives = np.empty((last - first, problem.n_negatives), dtype=np.int32)
            if problem.weighted:
                weights = np.empty(negatives.shape, dtype=np.float32)
        pairwise = Pairwise(
            problem.cosine, problem.dropout, problem.n_items, *problem.known, negatives, weights,
            call.inverse_temperatures,
        )  # fmt: skip
        if drawn:
            call.draw(call.span, call.draws, pairwise, sides, self._scratch)
        return call.run(pairwise_train, call.span, pairwise, sides, self._scratch)
