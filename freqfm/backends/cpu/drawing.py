"""Negatives drawn for the users of a batch, before a kernel trains on it.

They are kernels of their own: most models share their negatives, and need not wait for this to
compile.
"""

import numpy as np

from freqfm._jit import kernel, subroutine
from freqfm.backends.cpu.tables import catch_up, gather_dropped_row
from freqfm.backends.cpu.team import wait
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.rng import hash64, stream_key
from freqfm.formulas.sampling_laws import draw_negatives, log_q_of

# Of a row's random numbers, those for its negatives.
DRAWS = np.uint64(0x5DEECE66D)


@subroutine
def _catch_up_users(
    rank, size, barrier, first_row, n_rows, epoch, users, rule, hyper, step, clock, occurrences
):
    """Let the users of a batch make up the steps that they have missed."""
    if rule.catch_up == CATCH_UP_NONE:
        return
    for r in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        occurrences.tokens[r] = epoch.row_users[first_row + r]
    wait(barrier, size)
    catch_up(
        np.uint64(rank), np.uint64(size), n_rows, occurrences.tokens, step + 1, clock, rule, hyper,
        users, occurrences.gradients[rank],
    )  # fmt: skip
    wait(barrier, size)


@kernel
def draw_for_rows(
    rank, size, barrier, epoch, batch, seed, epoch_number, objective, proposal, numbers, sums,
    inverse_temperatures, users, rule, hyper, step, clock, scratch, occurrences, positive_log_q,
    negatives, log_q,
):  # fmt: skip
    """Draw a list of negatives for each row of a batch, by the logits of its user.

    Arguments as those of ``softmax_train``, and

    batch : which of the epoch's.
    numbers, sums : as ``draw_scratch`` returns them.
    occurrences : of the users.
    positive_log_q (n_pairs,) : gets what is to be subtracted from the logits of positives, if they
        are inside the logarithm; float32.
    negatives, log_q (n_rows, M) : get the items, int32, and what is to be subtracted; float32.
    """
    first_row = epoch.batch_starts[batch]
    n_rows = epoch.batch_starts[batch + 1] - first_row
    first_pair = epoch.row_starts[first_row]
    _catch_up_users(
        rank, size, barrier, first_row, n_rows, epoch, users, rule, hyper, step, clock, occurrences
    )
    queries = scratch.scaled
    for r in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        row = first_row + r
        u = np.uint64(epoch.row_users[row])
        key = hash64(stream_key(seed, epoch_number) + np.uint64(row))
        gather_dropped_row(
            users.weights, u, objective.cosine, objective.dropout, key, scratch.masks, queries, r
        )
        for f in range(queries.shape[1]):
            queries[r, f] *= inverse_temperatures[u, 1]
        draw_negatives(
            proposal, queries[r], hash64(key ^ DRAWS), negatives[r], log_q[r], numbers[rank],
            sums[rank],
        )  # fmt: skip
        if objective.inside:
            for p in range(epoch.row_starts[row], epoch.row_starts[row + 1]):
                positive_log_q[p - first_pair] = log_q_of(
                    proposal, queries[r], epoch.items[p], numbers[rank], sums[rank]
                )


@kernel
def draw_for_pairs(
    rank, size, barrier, epoch, batch, seed, epoch_number, proposal, numbers, sums, users, rule,
    hyper, step, clock, occurrences, negatives, log_q,
):  # fmt: skip
    """Draw a list of negatives for each positive of a batch, by the vector of its user.

    Arguments as those of ``draw_for_rows``; ``negatives`` and ``log_q`` are (n_pairs, N).
    """
    first_row = epoch.batch_starts[batch]
    n_rows = epoch.batch_starts[batch + 1] - first_row
    first_pair = epoch.row_starts[first_row]
    _catch_up_users(
        rank, size, barrier, first_row, n_rows, epoch, users, rule, hyper, step, clock, occurrences
    )
    key = hash64(stream_key(seed, epoch_number) ^ DRAWS)
    for r in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        row = first_row + r
        query = users.weights[np.uint64(epoch.row_users[row])]
        for p in range(epoch.row_starts[row], epoch.row_starts[row + 1]):
            j = p - first_pair
            draw_negatives(
                proposal, query, hash64(key + np.uint64(p)), negatives[j], log_q[j], numbers[rank],
                sums[rank],
            )  # fmt: skip
