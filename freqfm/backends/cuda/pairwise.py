"""Pairwise losses: each positive against its negatives. For the loss see ``backends.cpu``.

A group takes a row of a batch: some positives of a user.
"""

from typing import NamedTuple

import numpy as np

from freqfm._jit import ZERO, inlined
from freqfm.backends.cuda.ranking import (
    LOSS,
    EpochData,
    RankingCall,
    batch_of,
    key_of,
    move_rows,
)
from freqfm.backends.cuda.tables import (
    Side,
    Step,
    gather_dropped_row,
    row_scale,
    through_dropout,
    through_normalisation,
)
from freqfm.backends.cuda.team import group_sum
from freqfm.formulas.losses import pair_loss
from freqfm.formulas.search import first_above

__all__ = ["PAIRS", "Pairwise", "PairwiseArgs", "PairwiseScratch"]


class Pairwise(NamedTuple):
    """The negatives of a call, and the items that cannot be negatives."""

    known_starts: np.ndarray  #: (n_users + 1,), int32
    known_items: np.ndarray  #: int32, those of a user are sorted
    negatives: np.ndarray  #: (n_pairs of the call, N), int32


class PairwiseScratch(NamedTuple):
    """Working memory of up to R rows, float32."""

    sources: np.ndarray  #: (R, d), unit users
    user_gradients: np.ndarray  #: (R, d)


class PairwiseArgs(NamedTuple):
    """All that a launch is given."""

    data: EpochData
    call: RankingCall
    pairwise: Pairwise
    users: Side
    items: Side
    step: Step
    scratch: PairwiseScratch


class _Scored(NamedTuple):
    """An item, scored for a row."""

    item: int
    score: float  #: times the inverse temperature
    scale: float  #: one over the length of the item; 1 for dot products


@inlined
def _is_known(pairwise, u, item):
    """Return whether the user has the item."""
    begin, end = pairwise.known_starts[u], pairwise.known_starts[u + 1]
    after = first_above(pairwise.known_items, begin, end, item)
    return after > begin and pairwise.known_items[after - 1] == item


@inlined
def _scored(team, k, r, inverse, args):
    """Return an item with its score for row ``r``."""
    table, units = args.items.table.weights, args.scratch.sources
    dot = ZERO
    for f in range(team.lane, table.shape[1], team.n_lanes):
        dot += table[k, f] * units[r, f]
    scale = row_scale(team, table, k, table.shape[1] if args.call.cosine else 0)
    return _Scored(k, inverse * scale * group_sum(team, dot), scale)


@inlined
def _learn_item(team, o, found, r, derivative, args):
    """Write the gradient by an item, which is occurrence ``o``, and add it to that of the user."""
    table, gradients = args.items.table.weights, args.scratch.user_gradients
    multiple = derivative * found.scale
    for f in range(team.lane, table.shape[1], team.n_lanes):
        gradients[r, f] += multiple * table[found.item, f]
    if team.lane == 0:
        args.items.rows[o] = r
        args.items.multiples[o] = derivative


@inlined
def _learn_positive(team, p, r, args, batch):
    """Compare positive ``p`` with its negatives; return the loss."""
    data, call, negatives = args.data, args.call, args.pairwise.negatives
    n_negatives, o = negatives.shape[1], p - batch.first_pair
    u = data.row_users[batch.first_row + r]
    inverse = call.inverse_temperatures[u, 0]
    positive = _scored(team, data.items[p], r, inverse, args)
    share = data.weights[p] / np.float32(n_negatives)
    factor = inverse * batch.scale * share
    loss, pull = ZERO, ZERO
    for j in range(n_negatives):
        k = negatives[p - call.first_pair, j]
        negative = _scored(team, k, r, inverse, args)
        push = ZERO
        if not _is_known(args.pairwise, u, k):
            value, by_positive, by_negative = pair_loss(positive.score, negative.score)
            loss += share * value
            push = factor * by_negative
            pull += factor * by_positive
        _learn_item(team, batch.n_pairs + o * n_negatives + j, negative, r, push, args)
    _learn_item(team, o, positive, r, pull, args)
    return loss


@inlined
def learn_pairs(team, s, args):
    """Find the gradients of the rows of a batch."""
    batch, call, data = batch_of(args.data, args.call, s), args.call, args.data
    units, gradients = args.scratch.sources, args.scratch.user_gradients
    for r in range(team.rank, batch.n_rows, team.size):
        row, key = batch.first_row + r, key_of(data, batch, r)
        length = gather_dropped_row(
            team, args.users.table.weights, data.row_users[row], call.cosine, call.dropout, key,
            units, r,
        )  # fmt: skip
        for f in range(team.lane, units.shape[1], team.n_lanes):
            gradients[r, f] = ZERO
        loss = ZERO
        for p in range(data.row_starts[row], data.row_starts[row + 1]):
            loss += _learn_positive(team, p, r, args, batch)
        if call.cosine:
            through_normalisation(team, gradients, units, r, length)
        through_dropout(team, gradients, call.dropout, key, r)
        if team.lane == 0:
            call.results[LOSS, row - call.first_row] = loss


PAIRS = (learn_pairs, move_rows)
