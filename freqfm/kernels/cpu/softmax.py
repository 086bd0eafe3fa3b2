"""Sampled and full softmax over dot products or cosines: scores as matrix products.

A batch is a list of rows, each a user with one or more positives. Negatives are shared by the
batch, so that all its scores are one matrix product and so are the two gradients; or each positive
has a list of its own. With logits z_j = w' s_j - q_j, q_j the log of how much more often than
uniformly j is drawn, a positive of weight v adds ::

    v (-w s_p + c log sum_j exp(z_j))         or, with the positive inside the logarithm,
    v (-w s_p + c log(exp(z_p) + sum_j exp(z_j)))

to the loss. The inverse temperatures w and w' are numbers per user.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, kernel, scalar
from freqfm.kernels.cpu.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm.kernels.cpu.logits import exponentials, largest_logit, sum_of_exponentials
from freqfm.kernels.cpu.tables import (
    apply_gradients,
    catch_up,
    gather_dropped_row,
    gather_row,
    row_length,
    through_dropout,
    through_normalisation,
)
from freqfm.kernels.cpu.team import wait
from freqfm.scalars.codes import (
    CATCH_UP_NONE,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_OWN,
)
from freqfm.scalars.rng import hash64, stream_key

# Rows and negatives of one tile, the work of one call of BLAS. How a batch is cut into tiles does
# not depend on the number of threads, so no sum does.
TILE_ROWS = 64
TILE_NEGATIVES = 256

# Up to here the logits of cosines, between -w and w, need no search for the largest: shifted by w
# they stay above the -87 at which float32 ends.
_SAFE = np.float32(40)


class Objective(NamedTuple):
    """What a batch minimises."""

    cosine: bool
    dropout: float
    negatives_code: int
    corrected: bool  #: whether q differs from zero
    inside: bool  #: whether the positive is inside the logarithm
    constant: float  #: c
    statistics_wanted: bool


class Batch(NamedTuple):
    """Where a batch stands in the epoch, and how large it is."""

    first_row: int
    n_rows: int
    first_pair: int
    n_pairs: int
    n_negatives: int  #: M, of the batch or of each positive


class Scratch(NamedTuple):
    """Working memory; float32. R rows, M negatives and P positives are the most of any batch."""

    masks: np.ndarray  #: (R, d)
    lengths: np.ndarray  #: (R,)
    scaled: np.ndarray  #: (R, d)
    user_gradients: np.ndarray  #: (R, d)
    sources: np.ndarray  #: (R + M, d): unit users, then the gradients of shared negatives
    negative_units: np.ndarray  #: (M, d) for shared negatives, (size * M, d) for own ones
    negative_corrections: np.ndarray  #: (M,), or (size * M,)
    scores: np.ndarray  #: (rows of a panel, M)
    row_sums: np.ndarray
    """(R, 4), float64. While a row is scored: the sum of its exponentials, the shift of its logits
    and its log-sum at temperature one; then its loss, weight and statistics."""


@scalar
def _list_tokens(rank, size, batch, first_pair_of_call, b, epoch, code, negatives, users, items):
    """Write the tokens of a batch to the occurrences of users and items, each thread a part."""
    first, n_pairs, m = batch.first_pair, batch.n_pairs, batch.n_negatives
    for r in range(batch.n_rows * rank // size, batch.n_rows * (rank + 1) // size):
        users.tokens[r] = epoch.row_users[batch.first_row + r]
        users.rows[r] = r
        users.multiples[r] = ONE
    for p in range(n_pairs * rank // size, n_pairs * (rank + 1) // size):
        items.tokens[p] = epoch.items[first + p]
        if code == NEGATIVES_OWN:
            for j in range(m):
                item = negatives[first + p - first_pair_of_call, j]
                items.tokens[n_pairs + p * m + j] = item
        elif code == NEGATIVES_IN_BATCH:
            items.tokens[n_pairs + p] = epoch.items[first + p]
    if code != NEGATIVES_OWN and code != NEGATIVES_IN_BATCH:
        for j in range(m * rank // size, m * (rank + 1) // size):
            items.tokens[n_pairs + j] = np.int32(j) if code == NEGATIVES_FULL else negatives[b, j]


@scalar
def _gather_negatives(begin, end, first, to, objective, corrections, items, scratch, occurrences):
    """Gather the negatives ``begin`` to ``end`` of a list whose tokens start at ``first``."""
    for j in range(begin, end):
        k = np.uint64(occurrences.tokens[first + j])
        gather_row(items, k, objective.cosine, scratch.negative_units, to + j)
        if objective.corrected:
            scratch.negative_corrections[to + j] = corrections[k]


@scalar
def _exponentials_of_row(r, s, n, first, inverse, smallest_correction, objective, scratch):
    """Turn the scores in row ``s`` into exponentials, and keep what row ``r`` needs of them."""
    scores = scratch.scores
    corrections = scratch.negative_corrections
    if objective.statistics_wanted:
        top = ONE
        if not objective.cosine:
            top = largest_logit(scores, s, n, ONE, corrections, first, False)
        total = sum_of_exponentials(scores, s, n, top)
        scratch.row_sums[r, 2] = top + math.log(total)
    if objective.cosine and inverse <= _SAFE:
        shift = inverse - smallest_correction
    else:
        shift = largest_logit(scores, s, n, inverse, corrections, first, objective.corrected)
    scratch.row_sums[r, 0] = exponentials(
        scores, s, n, inverse, corrections, first, objective.corrected, shift
    )
    scratch.row_sums[r, 1] = shift


@scalar
def _score_tile(
    rank, begin, end, start, batch, epoch, objective, row_key, inverse_temperatures, corrections,
    smallest_correction, users, items, scratch, occurrences,
):  # fmt: skip
    """Score the rows ``begin`` to ``end``, and sum their negatives weighted by exponentials.

    The row ``start`` of the batch has the first row of the scores.
    """
    m = batch.n_negatives
    units = scratch.sources
    for r in range(begin, end):
        u = np.uint64(epoch.row_users[batch.first_row + r])
        scratch.lengths[r] = gather_dropped_row(
            users, u, objective.cosine, objective.dropout,
            hash64(row_key + np.uint64(batch.first_row + r)), scratch.masks, units, r,
        )  # fmt: skip
    tile = scratch.scores[begin - start : end - start]
    if objective.negatives_code != NEGATIVES_OWN:
        negatives = scratch.negative_units[:m]
        product_with_transposed(units[begin:end], negatives, tile)
        for r in range(begin, end):
            inverse = inverse_temperatures[np.uint64(epoch.row_users[batch.first_row + r]), 1]
            _exponentials_of_row(
                r, r - start, m, 0, inverse, smallest_correction, objective, scratch
            )
        add_product(tile, negatives, scratch.user_gradients[begin:end], ZERO)
        return
    negatives = scratch.negative_units[rank * m : (rank + 1) * m]
    for r in range(begin, end):
        _gather_negatives(
            0, m, batch.n_pairs + r * m, rank * m, objective, corrections, items, scratch,
            occurrences,
        )  # fmt: skip
        row = scratch.scores[r - start : r - start + 1]
        product_with_transposed(units[r : r + 1], negatives, row)
        inverse = inverse_temperatures[np.uint64(epoch.row_users[batch.first_row + r]), 1]
        _exponentials_of_row(
            r, r - start, m, rank * m, inverse, smallest_correction, objective, scratch
        )
        add_product(row, negatives, scratch.user_gradients[r : r + 1], ZERO)


@scalar
def _positives_of_row(
    r, batch, epoch, objective, items, corrections, inverse, negative_inverse, log_sum, scale,
    scratch, occurrences,
):  # fmt: skip
    """Write the gradient of the positives of row ``r`` to the row's and to the occurrences.

    Returns, each summed over positives with their weights: the loss, the scores, the share of the
    negatives in the softmax, the positives' own share times their scores, and the weights.
    """
    width = items.shape[1]
    units = scratch.sources
    gradients = scratch.user_gradients
    for f in range(width):
        gradients[r, f] = ZERO
    loss = 0.0
    pull = 0.0
    left = 0.0
    inner = 0.0
    weight = 0.0
    row = batch.first_row + r
    for p in range(epoch.row_starts[row], epoch.row_starts[row + 1]):
        k = np.uint64(epoch.items[p])
        dot = ZERO
        for f in range(width):
            dot += items[k, f] * units[r, f]
        length = row_length(items, k) if objective.cosine else ONE
        score = np.float64(dot / length)
        own = 0.0
        log_total = log_sum
        if objective.inside:
            logit = negative_inverse * score
            if objective.corrected:
                logit -= corrections[k]
            top = max(logit, log_sum)
            log_total = top + math.log(math.exp(logit - top) + math.exp(log_sum - top))
            own = math.exp(logit - log_total)
        v = np.float64(epoch.weights[p])
        loss += v * (objective.constant * log_total - inverse * score)
        pull += v * score
        left += v * (1.0 - own)
        inner += v * own * score
        weight += v
        slope = np.float32(scale * v * (objective.constant * negative_inverse * own - inverse))
        multiple = slope / length
        for f in range(width):
            gradients[r, f] += multiple * items[k, f]
        occurrences.rows[p - batch.first_pair] = r
        occurrences.multiples[p - batch.first_pair] = slope
    return loss, pull, left, inner, weight


@scalar
def _finish_row(
    r, s, batch, epoch, objective, items, corrections, inverse_temperatures, scale, scratch,
    occurrences,
):  # fmt: skip
    """Turn the sums of row ``r``, whose exponentials stand in row ``s``, into gradients."""
    width = items.shape[1]
    u = np.uint64(epoch.row_users[batch.first_row + r])
    inverse = np.float64(inverse_temperatures[u, 0])
    negative_inverse = np.float64(inverse_temperatures[u, 1])
    total = scratch.row_sums[r, 0]
    log_sum = scratch.row_sums[r, 1] + math.log(total)
    mean_score = ZERO
    for f in range(width):
        mean_score += scratch.user_gradients[r, f] * scratch.sources[r, f]
        scratch.scaled[r, f] = scratch.user_gradients[r, f]
    loss, pull, left, inner, weight = _positives_of_row(
        r, batch, epoch, objective, items, corrections, inverse, negative_inverse, log_sum, scale,
        scratch, occurrences,
    )  # fmt: skip
    # Times this, exponentials are the gradient by the scores of the negatives.
    factor = np.float32(scale * objective.constant * negative_inverse * left / total)
    for f in range(width):
        scratch.user_gradients[r, f] += factor * scratch.scaled[r, f]
        scratch.scaled[r, f] = factor * scratch.sources[r, f]
    if objective.negatives_code == NEGATIVES_OWN:
        first = batch.n_pairs + r * batch.n_negatives
        for j in range(batch.n_negatives):
            occurrences.multiples[first + j] = factor * scratch.scores[s, j]
            occurrences.rows[first + j] = r
    if objective.cosine:
        through_normalisation(scratch.user_gradients, r, scratch.sources, r, scratch.lengths[r])
    through_dropout(scratch.user_gradients, objective.dropout, scratch.masks, r)
    scratch.row_sums[r, 0] = loss
    scratch.row_sums[r, 1] = weight
    scratch.row_sums[r, 2] = weight * scratch.row_sums[r, 2] - pull
    scratch.row_sums[r, 3] = objective.constant * (inner + left * mean_score / total) - pull


@kernel
def softmax_train(
    rank,
    size,
    barrier,
    epoch,
    first_batch,
    last_batch,
    seed,
    epoch_number,
    objective,
    negatives,
    corrections,
    inverse_temperatures,
    statistics,
    users,
    items,
    user_rule,
    item_rule,
    hyper,
    step,
    clock,
    scratch,
    user_occurrences,
    item_occurrences,
):
    """Train on the batches ``first_batch`` to ``last_batch`` of an epoch; return loss and weight.

    Arguments
    ---------
    epoch : Epoch
    objective : Objective
    negatives (n_lists, M) : int32; one list for each batch of this call, or for each positive; of
        no use where negatives are the batch's positives, or all items.
    corrections (n_items,) : q of each item, float32; or empty.
    inverse_temperatures (n_users, 2) : w and w', float32.
    statistics (n_users, 3) : gets, per user, the loss at temperature one, its weight, and the
        derivative of the loss by the inverse temperature; float64.
    users, items : Table
    user_rule, item_rule : Rule
    step, clock : the steps made so far, and the Clock of the epoch.
    scratch : Scratch
    user_occurrences, item_occurrences : Occurrences
    """
    me = np.uint64(rank)
    team = np.uint64(size)
    code = objective.negatives_code
    own_lists = code == NEGATIVES_OWN
    capacity = scratch.masks.shape[0]
    panel = scratch.scores.shape[0]
    first_pair_of_call = epoch.row_starts[epoch.batch_starts[first_batch]]
    key = stream_key(seed, epoch_number)
    smallest_correction = ZERO
    for k in range(corrections.shape[0]):
        smallest_correction = min(smallest_correction, corrections[k])
    total_loss = 0.0
    total_weight = 0.0
    for b in range(first_batch, last_batch):
        step += 1
        first_row = epoch.batch_starts[b]
        n_rows = epoch.batch_starts[b + 1] - first_row
        first_pair = epoch.row_starts[first_row]
        n_pairs = epoch.row_starts[first_row + n_rows] - first_pair
        m = negatives.shape[1]
        if code == NEGATIVES_IN_BATCH:
            m = n_pairs
        elif code == NEGATIVES_FULL:
            m = items.weights.shape[0]
        batch = Batch(first_row, n_rows, first_pair, n_pairs, m)
        n_occurrences = n_pairs + (n_pairs * m if own_lists else m)
        _list_tokens(
            rank, size, batch, first_pair_of_call, b - first_batch, epoch, code, negatives,
            user_occurrences, item_occurrences,
        )  # fmt: skip
        wait(barrier, size)
        if item_rule.catch_up != CATCH_UP_NONE:
            # Rows that have missed steps make them up before they are read.
            gradient = item_occurrences.gradients[rank]
            catch_up(
                me, team, n_rows, user_occurrences.tokens, step, clock, user_rule, hyper, users,
                gradient,
            )  # fmt: skip
            catch_up(
                me, team, n_occurrences, item_occurrences.tokens, step, clock, item_rule, hyper,
                items, gradient,
            )  # fmt: skip
            wait(barrier, size)
        batch_weight = 0.0
        for p in range(first_pair, first_pair + n_pairs):
            batch_weight += epoch.weights[p]
        mean = 1.0 / batch_weight
        scale = mean if item_rule.average else 1.0
        if not own_lists:
            begin = m * rank // size
            end = m * (rank + 1) // size
            _gather_negatives(
                begin, end, n_pairs, 0, objective, corrections, items.weights, scratch,
                item_occurrences,
            )  # fmt: skip
            for j in range(begin, end):
                item_occurrences.rows[n_pairs + j] = capacity + j
                item_occurrences.multiples[n_pairs + j] = ONE
            wait(barrier, size)

        for start in range(0, n_rows, panel):
            stop = min(start + panel, n_rows)
            for begin in range(start + rank * TILE_ROWS, stop, size * TILE_ROWS):
                end = min(begin + TILE_ROWS, stop)
                _score_tile(
                    rank, begin, end, start, batch, epoch, objective, key, inverse_temperatures,
                    corrections, smallest_correction, users.weights, items.weights, scratch,
                    item_occurrences,
                )  # fmt: skip
                for r in range(begin, end):
                    _finish_row(
                        r, r - start, batch, epoch, objective, items.weights, corrections,
                        inverse_temperatures, scale, scratch, item_occurrences,
                    )  # fmt: skip
            wait(barrier, size)
            if own_lists:
                continue
            # The gradient of the negatives: tiles of columns, each summed over the rows.
            for begin in range(rank * TILE_NEGATIVES, m, size * TILE_NEGATIVES):
                end = min(begin + TILE_NEGATIVES, m)
                add_product_of_transposed(
                    scratch.scores[: stop - start, begin:end],
                    scratch.scaled[start:stop],
                    scratch.sources[capacity + begin : capacity + end],
                    ZERO if start == 0 else ONE,
                )
            wait(barrier, size)

        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.row_sums[r, 0]
                total_weight += scratch.row_sums[r, 1]
                if objective.statistics_wanted:
                    u = np.uint64(epoch.row_users[first_row + r])
                    statistics[u, 0] += scratch.row_sums[r, 2]
                    statistics[u, 1] += scratch.row_sums[r, 1]
                    statistics[u, 2] += scratch.row_sums[r, 3]
        apply_gradients(
            rank, size, n_rows, user_occurrences, scratch.user_gradients, False, users, user_rule,
            hyper, step, clock, mean,
        )  # fmt: skip
        apply_gradients(
            rank, size, n_occurrences, item_occurrences, scratch.sources, objective.cosine, items,
            item_rule, hyper, step, clock, mean,
        )  # fmt: skip
        wait(barrier, size)
    return total_loss, total_weight
