"""Sampled and full softmax over dot products or cosines: scores as matrix products.

A batch is a list of rows, each a user with one or more positives. Negatives are shared by the
batch, so that all its scores are one matrix product and so are the two gradients; or each positive
has a list of its own, or each row, drawn for its user. With logits z_j = w' s_j - q_j, q_j the log
of how much more often than uniformly j is drawn, a positive of weight v adds ::

    v (-w s_p + c log sum_j exp(z_j))         or, with the positive inside the logarithm,
    v (-w s_p + c log(exp(z_p) + sum_j exp(z_j)))

to the loss. The inverse temperatures w and w' are numbers per user.
"""

import numpy as np

from freqfm._jit import ONE, ZERO, kernel
from freqfm.backends.cpu.blas import add_product_of_transposed
from freqfm.backends.cpu.softmax_rows import (
    FIRST,
    Batch,
    finish_row,
    gather_negatives,
    has_own_lists,
    list_tokens,
    score_tile,
)
from freqfm.backends.cpu.tables import NO_UNIT, apply_gradients, catch_up
from freqfm.backends.cpu.team import wait
from freqfm.formulas.codes import (
    CATCH_UP_NONE,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
)
from freqfm.formulas.rng import stream_key

# Rows and negatives of one tile, the work of one call of BLAS. How a batch is cut into tiles does
# not depend on the number of threads, so no sum does.
TILE_ROWS = 64
TILE_NEGATIVES = 256


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
        no use where negatives are the batch's positives or all items. Those drawn for each row of
        the only batch, and what is subtracted from logits, stand in ``item_occurrences``.
    corrections (n_items,) : q, float32; empty for zeros.
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
    own_lists = has_own_lists(code)
    capacity = scratch.masks.shape[0]
    panel = scratch.scores.shape[0]
    n_unit = items.weights.shape[1] if objective.cosine else 0
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
        n_occurrences = n_pairs + (n_rows * m if own_lists else m)
        list_tokens(
            rank, size, batch, first_pair_of_call, b - first_batch, epoch, code, negatives,
            user_occurrences, item_occurrences,
        )  # fmt: skip
        wait(barrier, size)
        # Rows that have missed steps make them up before they are read.
        gradient = item_occurrences.gradients[rank]
        if item_rule.catch_up != CATCH_UP_NONE:
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
            gather_negatives(
                begin, end, n_pairs, FIRST, objective, corrections, items.weights, scratch,
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
                score_tile(
                    rank, begin, end, start, batch, epoch, objective, key, inverse_temperatures,
                    corrections, smallest_correction, users.weights, items.weights, scratch,
                    item_occurrences,
                )  # fmt: skip
                for r in range(begin, end):
                    finish_row(
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
            rank, size, n_rows, user_occurrences, scratch.user_gradients, NO_UNIT, users, user_rule,
            hyper, step, clock, mean,
        )  # fmt: skip
        apply_gradients(
            rank, size, n_occurrences, item_occurrences, scratch.sources, n_unit, items,
            item_rule, hyper, step, clock, mean,
        )  # fmt: skip
        wait(barrier, size)
    return total_loss, total_weight
