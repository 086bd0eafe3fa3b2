"""The layers of a variational autoencoder that have a row per item: input sums, output softmax.

The layers in between are small and computed by NumPy, see ``dense``. A batch has B queries; each is
scored against all items, or against items drawn for it, and the gradient of ::

    sum_u scale (n_u log sum_i exp(q_u' v_i) - sum_i x_ui q_u' v_i),   n_u = sum_i x_ui,

is returned for the queries and, in the same pass, applied to the items' vectors. The first
``n_unit`` numbers of an item's vector are scaled to unit length: none for dot products, all but the
bias for cosines.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._numba.prefetch import prefetch_row
from freqfm.backends.base import Histories
from freqfm.backends.cpu.logits import exponentials, largest_of_row, sum_of_exponentials
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    Occurrences,
    Side,
    Step,
    Table,
    apply_gradients,
    catch_up,
    gather_row,
    move_row,
    through_unit_row,
)
from freqfm.backends.cpu.team import Member, part, wait
from freqfm.backends.cpu.tiles import n_tiles, tile_height
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import softmax_with_positive
from freqfm.formulas.rng import hash64, key_of
from freqfm.formulas.sampling_laws import draw_negatives, log_q_of, prepare_query
from freqfm.formulas.search import first_above
from freqfm.formulas.special import exp_of_minus

# The most items of one matrix product, and the least if there are enough.
TILE, _SMALLEST = 512, 256

# How many vectors ahead one is prefetched.
_SOON = 8

# Items are always cut into this many chunks, and sums over items are sums over chunks, so results
# are bitwise the same for any number of threads.
N_CHUNKS = 16


class Queries(NamedTuple):
    """The queries of a batch and their positives."""

    queries: np.ndarray  #: (B, d), float32
    histories: Histories  #: the positives of the queries
    totals: np.ndarray  #: (B,), sums of the weights of the positives, float32
    scale: float  #: the factor of each query's loss in the gradient, float32
    n_unit: int  #: the first ``n_unit`` numbers of item vectors are scaled to unit length


class Move(NamedTuple):
    """A table, and the step that moves it."""

    table: Table
    step: Step


class Result(NamedTuple):
    """The results of a softmax for the queries."""

    gradients: np.ndarray  #: (B, d), by the queries, float32
    losses: np.ndarray  #: (B,), without ``scale``, float64


class FullScratch(NamedTuple):
    """Working memory of the full softmax: it does not grow with the items."""

    scores: np.ndarray  #: (size, B, TILE), float32
    bits: np.ndarray  #: the same memory as int32
    chunk_sums: np.ndarray  #: (N_CHUNKS, B, 2), largest logit and sum of exponentials, float64
    log_sums: np.ndarray  #: (B,), float32
    scaled: np.ndarray  #: (B, d), queries times scale and the weight of their positives, float32
    chunk_gradients: np.ndarray  #: (N_CHUNKS, B, d), float32
    chunk_scores: np.ndarray  #: (N_CHUNKS, B), weighted scores of positives, float64
    units: np.ndarray  #: (size, TILE, d), or with empty tiles if ``n_unit`` is 0, float32
    tile_gradients: np.ndarray  #: (size, TILE, d), float32
    cursors: np.ndarray  #: (size, B), int64


class SampledScratch(NamedTuple):
    """Working memory of the sampled softmax, of n draws a query."""

    occurrences: Occurrences  #: of at least n_positives + B n tokens
    ids: np.ndarray  #: (B, n), int32
    log_q: np.ndarray  #: (B, n), float32
    positive_log_q: np.ndarray  #: (n_positives,), float32
    vectors: np.ndarray  #: (size * (n + 1), d), a thread's draws and one positive, float32
    scores: np.ndarray  #: (size, n), float32
    multiples: np.ndarray  #: (size, n), float32


@kernel
def catch_up_rows(rank, size, barrier, n, occurrences, move):
    """Let the rows of the first ``n`` tokens catch up on the steps that they have missed."""
    catch_up(Member(rank, size, barrier), n, Side(move.table, occurrences), move.step)


@kernel
def sum_rows(rank, size, barrier, histories, table, out):
    """Write to ``out`` (B, d) the sums of weights times the rows of a table."""
    n, width = out.shape
    starts, items, weights = histories
    for b in range(n * rank // size, n * (rank + 1) // size):
        for f in range(width):
            out[b, f] = ZERO
        for p in range(starts[b], starts[b + 1]):
            k = np.uint64(items[p])
            x = weights[p]
            for f in range(width):
                out[b, f] += x * table[k, f]


@kernel
def step_histories(rank, size, barrier, n, occurrences, gradients, move, scale):
    """Move the rows of a table along the gradients (B, d) by the sums of histories."""
    side = Side(move.table, occurrences)
    apply_gradients(Member(rank, size, barrier), n, side, gradients, NO_UNIT, move.step, scale)


@inlined
def _move_row(k, n_seen, gradient, move):
    """Step row ``k`` of a table along its gradient, the mean or sum over ``n_seen`` users."""
    move_row(np.uint64(k), n_seen, 1.0, 0.0, gradient, move.table, move.step)


@kernel
def step_layer(rank, size, barrier, gradients, move, n_users):
    """Move every row of a dense layer along its gradient."""
    for k in range(rank, move.table.weights.shape[0], size):
        _move_row(k, n_users, gradients[k], move)


@inlined
def _chunk(c, n_items):
    """Return where chunk ``c`` of the items begins and ends, and the height of its tiles."""
    # As many tiles in each chunk, unless they were so small that products took longer.
    height = -(-n_items // (N_CHUNKS * n_tiles(n_items, N_CHUNKS * TILE)))
    if height < _SMALLEST:
        height = tile_height(n_items, _SMALLEST)
    count = n_tiles(n_items, height)
    begin = count * c // N_CHUNKS * height
    return begin, min(count * (c + 1) // N_CHUNKS * height, n_items), height


@inlined
def _gather_tile(first, last, n_unit, vectors, units):
    """Copy the vectors of a tile, with their first ``n_unit`` numbers at unit length."""
    for j in range(last - first):
        gather_row(vectors, np.uint64(first + j), n_unit, units, j)


@inlined
def _sum_chunk(rank, c, batch, vectors, scratch):
    """Sum the exponentials of all queries over a chunk of items."""
    queries, n_unit = batch.queries, batch.n_unit
    n_queries = queries.shape[0]
    scores, bits = scratch.scores[rank], scratch.bits[rank]
    for b in range(n_queries):
        scratch.chunk_sums[c, b, 0] = -np.inf
        scratch.chunk_sums[c, b, 1] = 0.0
    begin, end, height = _chunk(c, vectors.shape[0])
    for first in range(begin, end, height):
        last = min(first + height, end)
        # Only matrix products use the slice: loops over a slice's columns would not vectorise.
        tile = scores[:n_queries, : last - first]
        used = vectors[first:last]
        if n_unit > 0:
            used = scratch.units[rank][: last - first]
            _gather_tile(first, last, n_unit, vectors, used)
        product_with_transposed(queries, used, tile)
        for b in range(n_queries):
            largest = largest_of_row(bits, b, last - first)
            total = np.float64(sum_of_exponentials(scores, b, last - first, largest))
            before = scratch.chunk_sums[c, b, 0]
            if largest > before:
                scratch.chunk_sums[c, b, 1] *= math.exp(before - largest)
                scratch.chunk_sums[c, b, 0] = largest
            else:
                total *= math.exp(largest - before)
            scratch.chunk_sums[c, b, 1] += total


@inlined
def _begin_chunk(rank, c, first, batch, scratch):
    """Set the sums of a chunk to zero, and the cursors to the first positives of its items."""
    starts, items, _ = batch.histories
    n_queries, width = batch.queries.shape
    for b in range(n_queries):
        scratch.chunk_scores[c, b] = 0.0
        for f in range(width):
            scratch.chunk_gradients[c, b, f] = ZERO
        scratch.cursors[rank, b] = first_above(items, starts[b], starts[b + 1], first - 1)


@inlined
def _differentiate_scores(rank, c, b, first, last, batch, scratch):
    """Turn the scores of query ``b`` in a tile into the derivatives of its loss by them."""
    starts, items, weights = batch.histories
    scores = scratch.scores[rank]
    cursor, stop = scratch.cursors[rank, b], starts[b + 1]
    p = cursor
    while p < stop and items[p] < last:
        score = np.float64(scores[b, items[p] - first])
        scratch.chunk_scores[c, b] += weights[p] * score
        p += 1
    # Scores are at most the log-sum: probabilities are exponentials of the differences.
    log_sum = scratch.log_sums[b]
    exponentials(scores, b, last - first, ONE, log_sum)
    p = cursor
    while p < stop and items[p] < last:
        scores[b, items[p] - first] -= weights[p] / batch.totals[b]
        p += 1
    scratch.cursors[rank, b] = p


@inlined
def _learn_chunk(rank, c, batch, move, scratch):
    """Find the gradient of all queries by a chunk of items, and move those items."""
    queries, n_unit, weights = batch.queries, batch.n_unit, move.table.weights
    n_queries = queries.shape[0]
    gradients = scratch.tile_gradients[rank]
    begin, end, height = _chunk(c, weights.shape[0])
    _begin_chunk(rank, c, begin, batch, scratch)
    for first in range(begin, end, height):
        last = min(first + height, end)
        n = last - first
        tile = scratch.scores[rank, :n_queries, :n]
        used = weights[first:last]
        if n_unit > 0:
            used = scratch.units[rank][:n]
            _gather_tile(first, last, n_unit, weights, used)
        product_with_transposed(queries, used, tile)
        for b in range(n_queries):
            _differentiate_scores(rank, c, b, first, last, batch, scratch)
        add_product(tile, used, scratch.chunk_gradients[c, :n_queries], ONE)
        add_product_of_transposed(tile, scratch.scaled[:n_queries], gradients[:n], ZERO)
        for j in range(n):
            through_unit_row(gradients[j], weights, np.uint64(first + j), n_unit)
            _move_row(first + j, n_queries, gradients[j], move)


@inlined
def _finish_sum(b, batch, scratch, losses):
    """Combine the sums of all chunks into the log-sum of query ``b``."""
    sums = scratch.chunk_sums
    largest = sums[0, b, 0]
    for c in range(1, N_CHUNKS):
        largest = max(largest, sums[c, b, 0])
    total = 0.0
    for c in range(N_CHUNKS):
        if sums[c, b, 1] > 0.0:
            total += sums[c, b, 1] * math.exp(sums[c, b, 0] - largest)
    scratch.log_sums[b] = np.float32(largest + math.log(total))
    losses[b] = batch.totals[b] * (largest + math.log(total))
    for f in range(batch.queries.shape[1]):
        scratch.scaled[b, f] = batch.scale * batch.totals[b] * batch.queries[b, f]


@kernel
def full_softmax(rank, size, barrier, batch, move, scratch, result):
    """Train the items of one batch by the softmax over all of them.

    Parameters
    ----------
    batch : Queries
    move : Move
        Of the table of the items.
    scratch : FullScratch
    result : Result
    """
    n_queries, width = batch.queries.shape
    begin, end = part(Member(rank, size, barrier), N_CHUNKS)
    for c in range(begin, end):
        _sum_chunk(rank, c, batch, move.table.weights, scratch)
    wait(barrier, size)
    for b in range(rank, n_queries, size):
        _finish_sum(b, batch, scratch, result.losses)
    wait(barrier, size)
    for c in range(begin, end):
        _learn_chunk(rank, c, batch, move, scratch)
    wait(barrier, size)
    gradients = result.gradients
    for b in range(rank, n_queries, size):
        for f in range(width):
            gradients[b, f] = ZERO
        for c in range(N_CHUNKS):
            result.losses[b] -= scratch.chunk_scores[c, b]
            for f in range(width):
                gradients[b, f] += scratch.chunk_gradients[c, b, f]
        for f in range(width):
            gradients[b, f] *= batch.scale * batch.totals[b]


@kernel
def draw_for_queries(rank, size, barrier, batch, draws, stream, scratch):
    """Draw negatives for each query; list them and its positives as tokens of the batch."""
    starts, items, _ = batch.histories
    n, tokens = scratch.ids.shape[1], scratch.occurrences.tokens
    proposal, numbers, sums = draws.proposal, draws.numbers[rank], draws.sums[rank]
    for b in range(rank, batch.queries.shape[0], size):
        query, ids, log_q = batch.queries[b], scratch.ids[b], scratch.log_q[b]
        key = hash64(key_of(stream) + np.uint64(b))
        prepare_query(proposal, query, numbers, sums)
        draw_negatives(proposal, query, key, ids, log_q, numbers, sums)
        for j in range(n):
            tokens[items.shape[0] + b * n + j] = ids[j]
        for p in range(starts[b], starts[b + 1]):
            tokens[p] = items[p]
            scratch.positive_log_q[p] = log_q_of(proposal, query, items[p], numbers, sums)


@inlined
def _score_row(query, vectors, r):
    """Return the dot product of a query and row ``r`` of the vectors."""
    score = ZERO
    for f in range(query.shape[0]):
        score += query[f] * vectors[r, f]
    return score


@inlined
def _score_draws(rank, b, batch, weights, scratch):
    """Gather and score the draws of a query; return the sum of exponentials, and its logarithm.

    The exponentials stay in the scratch.
    """
    n = scratch.ids.shape[1]
    query = batch.queries[b]
    ids, log_q, scores = scratch.ids[b], scratch.log_q[b], scratch.scores[rank]
    first = rank * (n + 1)
    for j in range(n):
        prefetch_row(weights, np.uint64(ids[np.uint64(min(j + _SOON, n - 1))]))
        gather_row(weights, np.uint64(ids[j]), batch.n_unit, scratch.vectors, first + j)
    largest = -np.float32(np.inf)
    for j in range(n):
        scores[j] = _score_row(query, scratch.vectors, first + j) - log_q[j]
        largest = max(largest, scores[j])
    for j in range(n):
        scores[j] = exp_of_minus(max(largest - scores[j], ZERO))
    total = 0.0
    for j in range(n):
        total += scores[j]
    return total, np.float64(largest) + math.log(total)


@inlined
def _learn_from_draws(rank, b, batch, weights, scratch, occurrences, result):
    """Score a query's positives against its draws; write the loss and the gradients."""
    starts, items, positive_weights = batch.histories
    width, n = batch.queries.shape[1], scratch.ids.shape[1]
    query, gradient = batch.queries[b], result.gradients[b]
    vectors, multiples = scratch.vectors, scratch.multiples[rank]
    first = rank * (n + 1)
    total, log_total = _score_draws(rank, b, batch, weights, scratch)
    for f in range(width):
        gradient[f] = ZERO
    # log q is relative to that of uniform draws: the mean over draws, times the number of items,
    # estimates the sum over items.
    log_share = math.log(weights.shape[0] / n)
    loss = 0.0
    left = 0.0
    for p in range(starts[b], starts[b + 1]):
        gather_row(weights, np.uint64(items[p]), batch.n_unit, vectors, first + n)
        score = _score_row(query, vectors, first + n)
        x = np.float64(positive_weights[p])
        logit = np.float64(score - scratch.positive_log_q[p])
        log_sum, share = softmax_with_positive(logit, log_total)
        loss += x * (log_sum + log_share - score)
        left += x * (1.0 - share)
        derivative = np.float32(batch.scale * x * (share - 1.0))
        for f in range(width):
            gradient[f] += derivative * vectors[first + n, f]
        occurrences.rows[p] = b
        occurrences.multiples[p] = derivative
    result.losses[b] = loss
    factor = batch.scale * left / total
    for j in range(n):
        multiples[j] = np.float32(factor * scratch.scores[rank, j])
        q = items.shape[0] + b * n + j
        occurrences.rows[q] = b
        occurrences.multiples[q] = multiples[j]
    for j in range(n):
        for f in range(width):
            gradient[f] += multiples[j] * vectors[first + j, f]


@kernel
def sampled_softmax(rank, size, barrier, batch, move, scratch, result):
    """Train the items of one batch by the softmax over each query's draws and one positive.

    Parameters
    ----------
    batch : Queries
    move : Move
        Of the table of the items.
    scratch : SampledScratch
    result : Result
    """
    member = Member(rank, size, barrier)
    occurrences = scratch.occurrences
    side = Side(move.table, occurrences)
    n_queries = batch.queries.shape[0]
    n = batch.histories.items.shape[0] + n_queries * scratch.ids.shape[1]
    if move.step.rule.catch_up != CATCH_UP_NONE:
        # Rows catch up on missed steps before they are read.
        catch_up(member, n, side, move.step)
        wait(barrier, size)
    for b in range(rank, n_queries, size):
        _learn_from_draws(rank, b, batch, move.table.weights, scratch, occurrences, result)
    wait(barrier, size)
    apply_gradients(member, n, side, batch.queries, batch.n_unit, move.step, batch.scale)
