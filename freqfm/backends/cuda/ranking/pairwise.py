"""Pairwise losses: each positive against its negatives. For the loss see ``backends.cpu``.

A row of a batch has some positives of a user. A group takes a positive with its negatives, and then
a row, to sum the gradient of its user.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.cuda.groups import group_sum
from freqfm.backends.cuda.ranking.batches import (
    LOSS,
    Family,
    batch_of,
    gather_user,
    move_rows,
    note_row,
    through_gathering,
)
from freqfm.backends.cuda.tables import score_row
from freqfm.formulas.codes import NEGATIVES_SEPARATE
from freqfm.formulas.losses import pair_loss
from freqfm.formulas.selection import first_above


class Pairwise(NamedTuple):
    """The negatives of a call, and the items that cannot be negatives."""

    known_starts: np.ndarray  #: (n_users,), int32
    known_ends: np.ndarray  #: (n_users,), int32
    known_items: np.ndarray  #: int32, those of a user are sorted
    negatives: np.ndarray  #: (n_pairs of the call, N), int32


class PairwiseScratch(NamedTuple):
    """Working memory of up to R rows and P positives, float32 if not said otherwise."""

    sources: np.ndarray  #: (R, d), unit users
    user_gradients: np.ndarray  #: (R, d)
    lengths: np.ndarray  #: (R,), of users
    pair_rows: np.ndarray  #: (P,), int32, the row of each positive
    losses: np.ndarray  #: (P,)
    factors: np.ndarray  #: (P (1 + N),), of items in the gradients of users


@inlined
def _is_known(pairwise, u, item):
    """Return whether the user has the item."""
    begin, end = pairwise.known_starts[u], pairwise.known_ends[u]
    after = first_above(pairwise.known_items, begin, end, item)
    return after > begin and pairwise.known_items[after - 1] == item


@inlined
def _score(group, k, r, args):
    """Return the score of an item for row ``r``, and one over the length of the item; or 1."""
    table, units = args.items.table.weights, args.scratch.sources
    return score_row(group, table, k, args.call.n_unit, units, r)


@inlined
def _keep(group, o, scale, r, derivative, args):
    """Keep the gradient by an item, occurrence ``o``, and its factor in that of the user."""
    if group.lane == 0:
        args.items.rows[o] = r
        args.items.multiples[o] = derivative
        args.scratch.factors[o] = derivative * scale


@inlined
def gather_users(group, s, args):
    """Gather the users of a batch, and note the rows of the positives."""
    batch = batch_of(args.data, args.call, s)
    for r in range(group.rank, batch.n_rows, group.size):
        gather_user(group, r, args, batch, args.scratch.sources)
        note_row(group, r, args.data, batch, args.scratch.pair_rows)


@inlined
def learn_pairs(group, s, args):
    """Compare the positives of a batch with their negatives."""
    batch, call, data = batch_of(args.data, args.call, s), args.call, args.data
    negatives, n_negatives = args.loss.negatives, args.loss.negatives.shape[1]
    for o in range(group.rank, batch.n_pairs, group.size):
        p, r = batch.first_pair + o, args.scratch.pair_rows[o]
        u = data.row_users[batch.first_row + r]
        inverse = call.inverse_temperatures[u, 0]
        positive, positive_scale = _score(group, data.items[p], r, args)
        share = data.weights[p] / np.float32(n_negatives)
        factor = inverse * batch.scale * share
        loss, pull = ZERO, ZERO
        for j in range(n_negatives):
            k = negatives[p - call.first_pair, j]
            negative, scale = _score(group, k, r, args)
            push = ZERO
            if not _is_known(args.loss, u, k):
                value, by_positive, by_negative = pair_loss(inverse * positive, inverse * negative)
                loss += share * value
                push = factor * by_negative
                pull += factor * by_positive
            _keep(group, batch.n_pairs + o * n_negatives + j, scale, r, push, args)
        _keep(group, o, positive_scale, r, pull, args)
        if group.lane == 0:
            args.scratch.losses[o] = loss


@inlined
def _sum_row(group, pairs, f, args, batch):
    """Return number ``f`` of the gradient of a user, summed over the first to the last pair."""
    negatives, table = args.loss.negatives, args.items.table.weights
    factors, n_negatives, total = args.scratch.factors, negatives.shape[1], ZERO
    for o in range(pairs[0], pairs[1]):
        p = batch.first_pair + o
        total += factors[o] * table[args.data.items[p], f]
        for j in range(n_negatives):
            k = negatives[p - args.call.first_pair, j]
            total += factors[batch.n_pairs + o * n_negatives + j] * table[k, f]
    return total


@inlined
def sum_users(group, s, args):
    """Sum the gradients of the users of a batch, and the losses of rows."""
    batch, call, data = batch_of(args.data, args.call, s), args.call, args.data
    scratch, gradients = args.scratch, args.scratch.user_gradients
    for r in range(group.rank, batch.n_rows, group.size):
        row = batch.first_row + r
        first, last = data.row_starts[row], data.row_starts[row + 1]
        pairs = first - batch.first_pair, last - batch.first_pair
        for f in range(group.lane, gradients.shape[1], group.n_lanes):
            gradients[r, f] = _sum_row(group, pairs, f, args, batch)
        through_gathering(group, r, args, batch, gradients, scratch.sources)
        loss = ZERO
        for o in range(pairs[0] + group.lane, pairs[1], group.n_lanes):
            loss += scratch.losses[o]
        loss = group_sum(group, loss)
        if group.lane == 0:
            call.results[LOSS, row - call.first_row] = loss


PAIRS = (gather_users, learn_pairs, sum_users, move_rows)


class PairwiseFamily(Family):
    """Each positive is ranked above each of its negatives."""

    lists_code = NEGATIVES_SEPARATE

    def __init__(self, device, problem, n_rows, n_pairs):
        super().__init__(device, problem, n_rows, n_pairs)
        self.n_listed = n_pairs * problem.n_negatives
        self._scratch = PairwiseScratch(
            sources=self._floats(n_rows, problem.width),
            user_gradients=self._floats(n_rows, problem.width),
            lengths=self._floats(n_rows),
            pair_rows=device.empty(n_pairs, np.int32),
            losses=self._floats(n_pairs),
            factors=self._floats(n_pairs + self.n_listed),
        )
        self._known = [device.to_device(part.astype(np.int32)) for part in problem.known]

    def run(self, launch):
        """Train on the batches of a Launch."""
        pairwise, items = Pairwise(*self._known, launch.negatives), launch.list_items
        launch.train(PAIRS, launch.args(pairwise, items(launch.negatives), self._scratch))
