"""What a variational autoencoder does per item: sums of histories, and the softmax over items.

The layers in between are small and belong to numpy. A batch has B queries; each is scored against
all items, or against items drawn for it, and the gradient of ::

    sum_u scale (n_u log sum_i exp(q_u' v_i) - sum_i x_ui q_u' v_i),   n_u = sum_i x_ui,

goes to the queries and, in the same pass, to the items' vectors. The first ``n_unit`` numbers of an
item's vector are used at unit length: none for products, all but the bias for cosines.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm.backends.cpu.logits import exponentials, sum_of_exponentials
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    Side,
    apply_gradients,
    catch_up,
    gather_row,
    move_row,
    through_unit_row,
)
from freqfm.backends.cpu.team import Member, wait
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.rng import hash64
from freqfm.formulas.sampling_laws import draw_negatives, log_q_of

# Items of one matrix product.
TILE = 512

# Items are cut into so many chunks, whatever the number of threads, and sums over items are sums
# over chunks: so no bit depends on threads.
N_CHUNKS = 16


class Histories(NamedTuple):
    """The positives of the queries of a batch; a query's items are sorted."""

    starts: np.ndarray  #: (B + 1,), int64
    items: np.ndarray  #: (n,), int32
    weights: np.ndarray  #: (n,), float32
    totals: np.ndarray  #: (B,), sums of weights, float32


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


class DrawnScratch(NamedTuple):
    """Working memory of the sampled softmax, of n draws a query."""

    ids: np.ndarray  #: (B, n), int32
    log_q: np.ndarray  #: (B, n), float32
    positive_log_q: np.ndarray  #: (n_positives,), float32
    vectors: np.ndarray  #: (size * (n + 1), d), a thread's draws and one positive, float32
    scores: np.ndarray  #: (size, n), float32
    multiples: np.ndarray  #: (size, n), float32
    numbers: np.ndarray  #: (size, ...), see ``sampling``
    sums: np.ndarray  #: (size, ...)


@kernel
def catch_up_rows(rank, size, barrier, items, table, step, gradients):
    """Let the rows of ``items`` make up the steps before ``step`` that they have missed."""
    member = Member(rank, size, barrier)
    catch_up(member, items.shape[0], items, table, step, gradients[rank])


@kernel
def sum_histories(rank, size, barrier, starts, items, weights, table, out):
    """Write to ``out`` (B, d) the sums of weights times the rows of a table."""
    n, width = out.shape
    for b in range(n * rank // size, n * (rank + 1) // size):
        for f in range(width):
            out[b, f] = ZERO
        for p in range(starts[b], starts[b + 1]):
            k = np.uint64(items[p])
            x = weights[p]
            for f in range(width):
                out[b, f] += x * table[k, f]


@kernel
def step_histories(rank, size, barrier, n, occurrences, gradients, table, step, scale):
    """Move the rows of a table along the gradients (B, d) by the sums of histories."""
    member = Member(rank, size, barrier)
    apply_gradients(member, n, Side(table, occurrences), gradients, NO_UNIT, step, scale)


@kernel
def step_table(rank, size, barrier, gradients, table, step, weight):
    """Move every row of a table along its gradient."""
    for k in range(rank, table.weights.shape[0], size):
        move_row(np.uint64(k), weight, 1.0, gradients[k], table, step)


@inlined
def _chunk(c, n_items):
    """Return where chunk ``c`` of the items begins and ends, at the bounds of tiles."""
    n_tiles = (n_items + TILE - 1) // TILE
    return (
        n_tiles * c // N_CHUNKS * TILE,
        min(n_tiles * (c + 1) // N_CHUNKS * TILE, n_items),
    )


@inlined
def _largest(bits, b, n):
    """Return the largest of the scores of row ``b``, or NaN if one is.

    As integers, floats of one sign are in the order of their bits, and those of negative ones can
    be turned round: such a maximum, unlike one of floats, is found sixteen numbers at a time.
    """
    largest = np.int32(-(2**31))
    for j in range(n):
        k = bits[b, j]
        k ^= (k >> np.int32(31)) & np.int32(0x7FFFFFFF)
        if k > largest:
            largest = k
    return np.int32(largest ^ ((largest >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@inlined
def _gather_tile(first, last, n_unit, vectors, units):
    """Copy the vectors of a tile, with their first ``n_unit`` numbers at unit length."""
    for j in range(last - first):
        gather_row(vectors, np.uint64(first + j), n_unit, units, j)


@inlined
def _sum_chunk(rank, c, queries, n_unit, vectors, scratch):
    """Sum the exponentials of all queries over a chunk of items."""
    n_queries = queries.shape[0]
    scores, bits = scratch.scores[rank], scratch.bits[rank]
    for b in range(n_queries):
        scratch.chunk_sums[c, b, 0] = -np.inf
        scratch.chunk_sums[c, b, 1] = 0.0
    begin, end = _chunk(c, vectors.shape[0])
    for first in range(begin, end, TILE):
        last = min(first + TILE, end)
        # Only matrix products know of tiles: loops over a slice's columns would not vectorise.
        tile = scores[:n_queries, : last - first]
        used = vectors[first:last]
        if n_unit > 0:
            used = scratch.units[rank][: last - first]
            _gather_tile(first, last, n_unit, vectors, used)
        product_with_transposed(queries, used, tile)
        for b in range(n_queries):
            largest = _largest(bits, b, last - first)
            total = np.float64(sum_of_exponentials(scores, b, last - first, largest))
            before = scratch.chunk_sums[c, b, 0]
            if largest > before:
                scratch.chunk_sums[c, b, 1] *= math.exp(before - largest)
                scratch.chunk_sums[c, b, 0] = largest
            else:
                total *= math.exp(largest - before)
            scratch.chunk_sums[c, b, 1] += total


@inlined
def _learn_chunk(rank, c, queries, histories, n_unit, table, step, scratch):
    """Find the gradient of all queries by a chunk of items, and move those items."""
    n_queries, width = queries.shape
    scores = scratch.scores[rank]
    gradients = scratch.tile_gradients[rank]
    cursors = scratch.cursors[rank]
    begin, end = _chunk(c, table.weights.shape[0])
    for b in range(n_queries):
        scratch.chunk_scores[c, b] = 0.0
        for f in range(width):
            scratch.chunk_gradients[c, b, f] = ZERO
        low, high = histories.starts[b], histories.starts[b + 1]
        while low < high:
            middle = (low + high) // 2
            if histories.items[middle] < begin:
                low = middle + 1
            else:
                high = middle
        cursors[b] = low
    for first in range(begin, end, TILE):
        last = min(first + TILE, end)
        n = last - first
        tile = scores[:n_queries, :n]
        used = table.weights[first:last]
        if n_unit > 0:
            used = scratch.units[rank][:n]
            _gather_tile(first, last, n_unit, table.weights, used)
        product_with_transposed(queries, used, tile)
        for b in range(n_queries):
            p = cursors[b]
            stop = histories.starts[b + 1]
            while p < stop and histories.items[p] < last:
                score = np.float64(scores[b, histories.items[p] - first])
                scratch.chunk_scores[c, b] += histories.weights[p] * score
                p += 1
            # Scores are at most the log-sum: probabilities are exponentials of what is left.
            exponentials(scores, b, n, ONE, scratch.log_sums, 0, False, scratch.log_sums[b])
            p = cursors[b]
            while p < stop and histories.items[p] < last:
                share = histories.weights[p] / histories.totals[b]
                scores[b, histories.items[p] - first] -= share
                p += 1
            cursors[b] = p
        add_product(tile, used, scratch.chunk_gradients[c, :n_queries], ONE)
        add_product_of_transposed(tile, scratch.scaled[:n_queries], gradients[:n], ZERO)
        for j in range(n):
            k = np.uint64(first + j)
            through_unit_row(gradients[j], table.weights, k, n_unit)
            move_row(k, n_queries, 1.0, gradients[j], table, step)


@kernel
def full_softmax(
    rank, size, barrier, queries, histories, scale, n_unit, table, step, scratch,
    query_gradients, losses,
):  # fmt: skip
    """Train the items of one batch by the softmax over all of them.

    Arguments
    ---------
    queries (B, d) : float32
    histories : Histories
    scale : what each query's loss is multiplied by in the gradient, float32.
    n_unit : how many numbers of an item's vector are used at unit length.
    table, step : the items' Table and the Step that moves it.
    scratch : FullScratch
    query_gradients (B, d) : gets the gradient by the queries, float32.
    losses (B,) : gets the loss of each query, without ``scale``; float64.
    """
    n_queries, width = queries.shape
    for c in range(rank, N_CHUNKS, size):
        _sum_chunk(rank, c, queries, n_unit, table.weights, scratch)
    wait(barrier, size)
    for b in range(rank, n_queries, size):
        largest = scratch.chunk_sums[0, b, 0]
        for c in range(1, N_CHUNKS):
            largest = max(largest, scratch.chunk_sums[c, b, 0])
        total = 0.0
        for c in range(N_CHUNKS):
            if scratch.chunk_sums[c, b, 1] > 0.0:
                total += scratch.chunk_sums[c, b, 1] * math.exp(
                    scratch.chunk_sums[c, b, 0] - largest
                )
        scratch.log_sums[b] = np.float32(largest + math.log(total))
        losses[b] = histories.totals[b] * (largest + math.log(total))
        for f in range(width):
            scratch.scaled[b, f] = scale * histories.totals[b] * queries[b, f]
    wait(barrier, size)
    for c in range(rank, N_CHUNKS, size):
        _learn_chunk(rank, c, queries, histories, n_unit, table, step, scratch)
    wait(barrier, size)
    for b in range(rank, n_queries, size):
        for f in range(width):
            query_gradients[b, f] = ZERO
        for c in range(N_CHUNKS):
            losses[b] -= scratch.chunk_scores[c, b]
            for f in range(width):
                query_gradients[b, f] += scratch.chunk_gradients[c, b, f]
        for f in range(width):
            query_gradients[b, f] *= scale * histories.totals[b]


@inlined
def _draw(rank, b, queries, histories, proposal, key, scratch, occurrences):
    """Draw negatives for a query; list them and its positives as tokens of the batch."""
    n = scratch.ids.shape[1]
    n_positives = histories.items.shape[0]
    query = queries[b]
    ids, log_q = scratch.ids[b], scratch.log_q[b]
    numbers, sums = scratch.numbers[rank], scratch.sums[rank]
    draw_negatives(proposal, query, hash64(key + np.uint64(b)), ids, log_q, numbers, sums)
    for j in range(n):
        occurrences.tokens[n_positives + b * n + j] = ids[j]
    for p in range(histories.starts[b], histories.starts[b + 1]):
        occurrences.tokens[p] = histories.items[p]
        scratch.positive_log_q[p] = log_q_of(proposal, query, histories.items[p], numbers, sums)


@inlined
def _learn_from_draws(
    rank, b, queries, histories, scale, inside, n_unit, table, scratch, occurrences,
    query_gradients,
):  # fmt: skip
    """Score a query's positives against its draws; leave the gradient; return the loss."""
    width = queries.shape[1]
    n = scratch.ids.shape[1]
    n_positives = histories.items.shape[0]
    query = queries[b]
    ids, log_q = scratch.ids[b], scratch.log_q[b]
    scores = scratch.scores[rank]
    multiples = scratch.multiples[rank]
    largest = -np.float32(np.inf)
    vectors = scratch.vectors
    first = rank * (n + 1)
    for j in range(n):
        gather_row(table, np.uint64(ids[j]), n_unit, vectors, first + j)
    for j in range(n):
        score = ZERO
        for f in range(width):
            score += query[f] * vectors[first + j, f]
        scores[j] = score - log_q[j]
        largest = max(largest, scores[j])
    total = 0.0
    for j in range(n):
        scores[j] = math.exp(scores[j] - largest)
        total += scores[j]
    log_total = np.float64(largest) + math.log(total)
    for f in range(width):
        query_gradients[b, f] = ZERO
    # Draws are told relative to uniform ones: their mean, times the items, estimates the sum.
    log_share = math.log(table.shape[0] / n)
    loss = 0.0
    left = 0.0
    for p in range(histories.starts[b], histories.starts[b + 1]):
        gather_row(table, np.uint64(histories.items[p]), n_unit, vectors, first + n)
        score = ZERO
        for f in range(width):
            score += query[f] * vectors[first + n, f]
        x = np.float64(histories.weights[p])
        own = 0.0
        log_sum = log_total
        if inside:
            logit = np.float64(score - scratch.positive_log_q[p])
            top = max(logit, log_total)
            log_sum = top + math.log(math.exp(logit - top) + math.exp(log_total - top))
            own = math.exp(logit - log_sum)
        loss += x * (log_sum + log_share - score)
        left += x * (1.0 - own)
        slope = np.float32(scale * x * (own - 1.0))
        for f in range(width):
            query_gradients[b, f] += slope * vectors[first + n, f]
        occurrences.rows[p] = b
        occurrences.multiples[p] = slope
    factor = scale * left / total
    for j in range(n):
        multiples[j] = np.float32(factor * scores[j])
        q = n_positives + b * n + j
        occurrences.rows[q] = b
        occurrences.multiples[q] = multiples[j]
    for j in range(n):
        for f in range(width):
            query_gradients[b, f] += multiples[j] * vectors[first + j, f]
    return loss


@kernel
def sampled_softmax(
    rank, size, barrier, queries, histories, scale, n_unit, inside, proposal, key, table, step,
    scratch, occurrences, query_gradients, losses,
):  # fmt: skip
    """Train the items of one batch by the softmax over items drawn for each query.

    The arguments are those of ``full_softmax`` and

    inside : whether a positive stands in the sum of its softmax.
    proposal, key : what is drawn from, see ``sampling``, and the random stream of the batch.
    scratch : DrawnScratch
    occurrences : Occurrences, of at least n positives + B draws.
    """
    n_queries = queries.shape[0]
    n = histories.items.shape[0] + n_queries * scratch.ids.shape[1]
    for b in range(rank, n_queries, size):
        _draw(rank, b, queries, histories, proposal, key, scratch, occurrences)
    wait(barrier, size)
    member = Member(rank, size, barrier)
    if step.rule.catch_up != CATCH_UP_NONE:
        # Rows that have missed steps make them up before they are read.
        catch_up(member, n, occurrences.tokens, table, step, occurrences.gradients[rank])
        wait(barrier, size)
    for b in range(rank, n_queries, size):
        losses[b] = _learn_from_draws(
            rank, b, queries, histories, scale, inside, n_unit, table.weights, scratch,
            occurrences, query_gradients,
        )  # fmt: skip
    wait(barrier, size)
    apply_gradients(member, n, Side(table, occurrences), queries, n_unit, step, scale)
