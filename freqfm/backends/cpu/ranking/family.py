"""Base class of families of ranking losses, and negatives drawn for the users of a batch.

Negatives drawn for the users of a batch, before a kernel trains on it.

These are separate kernels, so that models that share negatives do not compile them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.tables import (
    Span,
    batch_of,
    catch_up,
    gather_user,
    key_of,
    list_users,
    n_user_occurrences,
    step_after,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import contains
from freqfm.formulas import codes
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.proposals import DRAWS, Draws, draw_negatives, log_q_of, prepare_query
from freqfm.formulas.rng import hash64

# Up to this many known items are all compared with a negative, by vector instructions. More are
# first narrowed down by binary search, which mispredicts a branch at every other step.
_COMPARED = 256


@inlined
def is_known(pairwise, u, item):
    """Return whether the user has the item."""
    known = pairwise.known_items
    begin = np.int64(pairwise.known_starts[u])
    end = np.int64(pairwise.known_ends[u])
    while end - begin > _COMPARED:
        middle = (begin + end) >> 1
        if known[middle] <= item:
            begin = middle
        else:
            end = middle
    return contains(known, begin, end, item)


@inlined
def _weigh(pairwise, u, ids, log_q, weights):
    """Write weights in proportion to 1 / exp(log_q), their mean one; of known items 0."""
    n = ids.shape[0]
    least = np.float32(np.inf)
    for j in range(n):
        known = is_known(pairwise, u, ids[j])
        weights[j] = ZERO if known else ONE
        least = least if known else min(least, log_q[j])
    total = 0.0
    for j in range(n):
        if weights[j] > ZERO:
            weights[j] = math.exp(least - log_q[j])
            total += weights[j]
    if total > 0:
        for j in range(n):
            weights[j] *= np.float32(n / total)


@inlined
def _catch_up_users(member, batch, users, step):
    """Let the users of a batch catch up on the steps that they have missed."""
    if step.rule.catch_up == CATCH_UP_NONE:
        return
    begin, end = part(member, batch.n_rows)
    list_users(begin, end, batch, users.occurrences)
    synchronize(member)
    catch_up(member, n_user_occurrences(batch), users, step)
    synchronize(member)


@kernel
def draw_for_rows(rank, size, barrier, span, draws, softmax, sides, scratch):
    """Draw a list of negatives for each row of a batch, by the logits of its user.

    Arguments are those of ``softmax_train``; ``span`` is one batch, and ``draws`` are Draws. The
    items and the corrections of their logits are written where the training kernel reads them: to
    the tokens and the multiples of the occurrences, after the positives. If positives are inside
    the logarithm, the corrections of their logits are written to their multiples.
    """
    member = Member(rank, size, barrier)
    users, items, step = sides.users, sides.items, sides.step
    batch = batch_of(span, span.first_batch, step.rule.average)
    _catch_up_users(member, batch, users, step_after(step, 1))
    m = softmax.negatives.shape[1]
    tokens, log_q = items.occurrences.tokens, items.occurrences.multiples
    numbers, sums = draws.numbers[rank], draws.sums[rank]
    queries = scratch.user_gradients
    begin, end = part(member, batch.n_rows)
    for r in range(begin, end):
        u, key = user_of(batch, r), key_of(batch, r)
        gather_user(
            r, batch, users.table.weights, softmax.cosine, softmax.dropout, scratch.masks, queries
        )
        for f in range(queries.shape[1]):
            queries[r, f] *= softmax.inverse_temperatures[u, 1]
        first = batch.n_pairs + r * m
        prepare_query(draws.proposal, queries[r], numbers, sums)
        draw_negatives(
            draws.proposal, queries[r], hash64(key ^ DRAWS), tokens[first : first + m],
            log_q[first : first + m], numbers, sums,
        )  # fmt: skip
        if softmax.include_positive:
            row = batch.first_row + r
            for p in range(batch.data.row_starts[row], batch.data.row_starts[row + 1]):
                log_q[p - batch.first_pair] = log_q_of(
                    draws.proposal, queries[r], batch.data.items[p], numbers, sums
                )


@kernel
def draw_for_pairs(rank, size, barrier, span, draws, pairwise, sides, scratch):
    """Draw a list of negatives for each positive of a batch, by the logits of its user.

    Arguments are those of ``pairwise_train`` and ``draw_for_rows``; the negatives and their weights
    are written to ``pairwise``.
    """
    member = Member(rank, size, barrier)
    users, step = sides.users, sides.step
    batch = batch_of(span, span.first_batch, step.rule.average)
    _catch_up_users(member, batch, users, step_after(step, 1))
    numbers, sums = draws.numbers[rank], draws.sums[rank]
    negatives, weights = pairwise.negatives, pairwise.weights
    log_q = draws.log_q[rank, : negatives.shape[1]]
    key = hash64(batch.key ^ DRAWS)
    begin, end = part(member, batch.n_rows)
    for r in range(begin, end):
        row, u = batch.first_row + r, user_of(batch, r)
        query = scratch.units[r]
        # The whole vector, without dropout.
        gather_user(
            r, batch, users.table.weights, pairwise.cosine, 0.0, scratch.masks, scratch.units
        )
        for f in range(query.shape[0]):
            query[f] *= pairwise.inverse_temperatures[u, 0]
        prepare_query(draws.proposal, query, numbers, sums)
        for p in range(batch.data.row_starts[row], batch.data.row_starts[row + 1]):
            ids = negatives[p - batch.first_pair]
            draw_negatives(
                draws.proposal, query, hash64(key + np.uint64(p)), ids, log_q, numbers, sums
            )
            if weights.shape[0] > 0:
                _weigh(pairwise, u, ids, log_q, weights[p - batch.first_pair])


# A kernel call does about this many multiplications, a tenth of a second of work, before Python can
# handle an interrupt.
_WORK_PER_CALL = 5_000_000_000

# At most this many negatives are drawn at a time.
_DRAWS = 1 << 23


def numbers_of_rows(names, n):
    """Return float64 numbers for each of ``n`` rows, by name; those of a row are contiguous."""
    # A column of one row would pass for contiguous, and kernels would be compiled again for it.
    numbers = np.zeros((max(n, 2), len(names)))
    return dict(zip(names, numbers.T, strict=True))


class Call(NamedTuple):
    """The input of one call of training; see ``RankingTrainer.train``."""

    run: Callable  #: ``Team.run``
    span: Span
    draws: Draws | None  #: if the trainer draws negatives itself
    draw: Callable | None  #: runs the family's ``draw_kernel``
    proposal: tuple | None  #: see ``formulas.proposals``
    negatives: np.ndarray | None
    inverse_temperatures: np.ndarray
    statistics: np.ndarray


class Family:
    """The working memory of a family of losses, and how it trains.

    Parameters
    ----------
    problem : RankingProblem
    n_pairs : int
        The most positives of a batch.
    size : int
        Number of threads.

    Attributes
    ----------
    n_listed : int
        The most negatives of a batch.
    draw_kernel : callable
        Draws the negatives of a batch, if the trainer draws them itself.
    """

    n_listed, draw_kernel = 0, staticmethod(draw_for_pairs)

    def __init__(self, problem, n_pairs, size):
        self.problem, self.n_pairs, self.size = problem, n_pairs, size
        self.drawn = problem.negatives_code == codes.NEGATIVES_DRAWN

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    @staticmethod
    def formulas_of(problem):
        """Return what is replaced in kernels, see ``jit.specialised``."""
        return problem.formulas

    @classmethod
    def most_threads(cls, problem, degrees):
        """Return for how many threads a batch has work; None if for any number.

        ``degrees`` are how many positives each user has.
        """
        return None

    def batches_per_call(self):
        """Return how many batches a call may train on."""
        if self.drawn:
            return 1
        work, draws = self._work_of_batch()
        return max(1, min(_WORK_PER_CALL // work, _DRAWS // draws))

    def _work_of_batch(self):
        """Return how many multiplications a batch takes, and how many negatives are drawn."""
        raise NotImplementedError

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        return n_pairs, self.problem.n_negatives

    def train(self, call, sides, tables):
        """Train on the batches of a Call; return the sums of the loss and of the weights."""
        raise NotImplementedError
