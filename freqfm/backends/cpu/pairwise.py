"""Bayesian personalised ranking: each positive against negatives of its own.

A positive i of user u and a negative j add log(1 + exp(-w (s_ui - s_uj))) to the loss, s a dot
product or a cosine and w the user's inverse temperature.
"""

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    catch_up,
    gather_dropped_row,
    row_length,
    through_dropout,
    through_normalisation,
    touch_row,
)
from freqfm.backends.cpu.team import wait
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import log_loss
from freqfm.formulas.rng import hash64, stream_key


@inlined
def _dot(table, k, units, r):
    total = ZERO
    for f in range(table.shape[1]):
        total += table[k, f] * units[r, f]
    return total


@inlined
def _is_known(indices, begin, end, item):
    """Return whether ``item`` is among ``indices[begin:end]``, which are sorted."""
    last = end
    while begin < end:
        middle = (begin + end) >> 1
        if indices[middle] < item:
            begin = middle + 1
        else:
            end = middle
    return begin < last and indices[begin] == item


@inlined
def _first_row(row_starts, first_row, n_rows, pair):
    """Return the first of the batch's rows that starts at ``pair`` or later."""
    begin = 0
    end = n_rows
    while begin < end:
        middle = (begin + end) >> 1
        if row_starts[first_row + middle] < pair:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def pairwise_train(
    rank,
    size,
    barrier,
    epoch,
    first_batch,
    last_batch,
    seed,
    epoch_number,
    cosine,
    dropout,
    # every user's items, sorted, of which none may be a negative
    known_starts,
    known_items,
    negatives,
    inverse_temperatures,
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

    Arguments as those of ``softmax_train``; ``negatives`` (n_pairs of this call, N) are the items
    that each positive is compared with. One that the user is known to like is skipped.
    """
    me = np.uint64(rank)
    team = np.uint64(size)
    width = items.weights.shape[1]
    n_unit = width if cosine else 0
    n_negatives = negatives.shape[1]
    per_pair = 1 + n_negatives
    first_pair_of_call = epoch.row_starts[epoch.batch_starts[first_batch]]
    key = stream_key(seed, epoch_number)
    units = scratch.sources
    gradients = scratch.user_gradients
    total_loss = 0.0
    total_weight = 0.0
    for b in range(first_batch, last_batch):
        step += 1
        first_row = epoch.batch_starts[b]
        n_rows = epoch.batch_starts[b + 1] - first_row
        first_pair = epoch.row_starts[first_row]
        n_pairs = epoch.row_starts[first_row + n_rows] - first_pair
        # Each thread takes about as many positives.
        begin = _first_row(epoch.row_starts, first_row, n_rows, first_pair + n_pairs * rank // size)
        end = _first_row(
            epoch.row_starts, first_row, n_rows, first_pair + n_pairs * (rank + 1) // size
        )
        batch_weight = 0.0
        for p in range(first_pair, first_pair + n_pairs):
            batch_weight += epoch.weights[p]
        mean = 1.0 / batch_weight
        scale = mean if item_rule.average else 1.0
        gradient = item_occurrences.gradients[rank]
        for r in range(begin, end):
            user_occurrences.tokens[r] = epoch.row_users[first_row + r]
            user_occurrences.rows[r] = r
            user_occurrences.multiples[r] = ONE
        if user_rule.catch_up != CATCH_UP_NONE:
            wait(barrier, size)
            catch_up(
                me, team, n_rows, user_occurrences.tokens, step, clock, user_rule, hyper, users,
                gradient,
            )  # fmt: skip
            wait(barrier, size)
        for r in range(begin, end):
            for p in range(epoch.row_starts[first_row + r], epoch.row_starts[first_row + r + 1]):
                at = (p - first_pair) * per_pair
                item_occurrences.tokens[at] = epoch.items[p]
                k = np.uint64(epoch.items[p])
                item_occurrences.multiples[at] = touch_row(items.weights, k)
                for j in range(n_negatives):
                    item = negatives[p - first_pair_of_call, j]
                    item_occurrences.tokens[at + 1 + j] = item
                    item_occurrences.multiples[at + 1 + j] = touch_row(
                        items.weights, np.uint64(item)
                    )
        if item_rule.catch_up != CATCH_UP_NONE:
            wait(barrier, size)
            catch_up(
                me, team, n_pairs * per_pair, item_occurrences.tokens, step, clock, item_rule,
                hyper, items, gradient,
            )  # fmt: skip
            wait(barrier, size)
        for r in range(begin, end):
            u = np.uint64(epoch.row_users[first_row + r])
            row_key = hash64(key + np.uint64(first_row + r))
            length = gather_dropped_row(
                users.weights, u, cosine, dropout, row_key, scratch.masks, units, r
            )
            inverse = inverse_temperatures[u, 0]
            for f in range(width):
                gradients[r, f] = ZERO
            loss = 0.0
            weight = 0.0
            for p in range(epoch.row_starts[first_row + r], epoch.row_starts[first_row + r + 1]):
                at = (p - first_pair) * per_pair
                i = np.uint64(epoch.items[p])
                item_length = row_length(items.weights, i, width) if cosine else ONE
                score = _dot(items.weights, i, units, r) / item_length
                v = epoch.weights[p] / np.float32(n_negatives)
                pull = ZERO
                for j in range(n_negatives):
                    q = at + 1 + j
                    k = np.uint64(item_occurrences.tokens[q])
                    slope = ZERO
                    if not _is_known(known_items, known_starts[u], known_starts[u + 1], k):
                        other_length = row_length(items.weights, k, width) if cosine else ONE
                        other = _dot(items.weights, k, units, r) / other_length
                        value, slope = log_loss(inverse * (score - other), ONE)
                        loss += v * value
                        slope *= inverse * v * np.float32(scale)
                        multiple = slope / other_length
                        for f in range(width):
                            gradients[r, f] -= multiple * items.weights[k, f]
                    item_occurrences.rows[q] = r
                    item_occurrences.multiples[q] = -slope
                    pull += slope
                item_occurrences.rows[at] = r
                item_occurrences.multiples[at] = pull
                weight += epoch.weights[p]
                multiple = pull / item_length
                for f in range(width):
                    gradients[r, f] += multiple * items.weights[i, f]
            if cosine:
                through_normalisation(gradients, r, units, r, length)
            through_dropout(gradients, dropout, scratch.masks, r)
            scratch.row_sums[r, 0] = loss
            scratch.row_sums[r, 1] = weight
        wait(barrier, size)
        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.row_sums[r, 0]
                total_weight += scratch.row_sums[r, 1]
        apply_gradients(
            rank, size, n_rows, user_occurrences, gradients, NO_UNIT, users, user_rule, hyper, step,
            clock, mean,
        )  # fmt: skip
        apply_gradients(
            rank, size, n_pairs * per_pair, item_occurrences, units, n_unit, items, item_rule,
            hyper, step, clock, mean,
        )  # fmt: skip
        wait(barrier, size)
    return total_loss, total_weight
