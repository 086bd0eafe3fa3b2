"""Training of a variational autoencoder on the CPU.

The layers of a variational autoencoder that have a row per item: input sums, output softmax.

The layers in between are small and computed by NumPy. A batch has B queries; each is
scored against all items, or against items drawn for it, and the gradient of ::

    sum_u scale (n_u log sum_i exp(q_u' v_i) - sum_i x_ui q_u' v_i),   n_u = sum_i x_ui,

is returned for the queries and, in the same pass, applied to the items' vectors. The first
``n_unit`` numbers of an item's vector are scaled to unit length: none for dot products, all but the
bias for cosines.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._dense import (
    as_layers,
    decode,
    decode_backward,
    encode,
    encode_backward,
    kl_divergence,
    kl_gradients,
    normalise,
    normalise_backward,
)
from freqfm._machine import aligned_zeros
from freqfm._numba.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm._numba.instructions import prefetch_row
from freqfm._numba.jit import ONE, ZERO, inlined, kernel, specialised
from freqfm.backends.base import Histories
from freqfm.backends.cpu.sampling import standard_normal, uniform
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    Occurrences,
    Side,
    Step,
    Table,
    TableTrainer,
    apply_gradients,
    catch_up,
    empty_occurrences,
    gather_row,
    move_row,
    penalty_of,
    through_unit_row,
)
from freqfm.backends.cpu.team import Member, Team, part, wait
from freqfm.backends.cpu.vectors import (
    add_multiple,
    exponentials,
    largest_of_row,
    n_tiles,
    sum_of_exponentials,
    tile_height,
)
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.losses import softmax_with_positive
from freqfm.formulas.proposals import (
    draw_negatives,
    draws_from,
    formulas_of,
    log_q_of,
    prepare_query,
)
from freqfm.formulas.rng import hash64, key_of
from freqfm.formulas.selection import first_above
from freqfm.formulas.special import exp_of_minus


def _flat_indices(rows, width):
    """Return the flat indices of the elements of some rows in a table of this width."""
    return rows[..., None] * width + np.arange(width)


class DenseLayers:
    """What a trainer of the tables of an autoencoder inherits to train on batches.

    It has these methods, in which steps are counted from 1, across epochs:

    - ``layer_weights()``: the weights of the dense layers, to which it does not write;
    - ``sum_inputs(histories, step)``: the sums of the input vectors, (B, h) float32;
    - ``step_inputs(histories, gradients, scale, step)``, by the gradients by these sums;
    - ``step_items(queries, histories, totals, scale, step, stream, drawn)``: moves items by the
      loss sum_u scale (n_u log sum_i exp(q_u' v_i) - sum_i x_ui q_u' v_i), n_u = sum_i x_ui,
      over all items or draws of the ``stream``; returns its gradient by the queries, and the
      losses of the queries without ``scale``. ``drawn`` is as in AutoencoderBatch;
    - ``step_layers(gradients, n_users, step)``.

    Parameters
    ----------
    problem : AutoencoderProblem
    """

    # As those of ``Backend``.
    uniform, standard_normal = staticmethod(uniform), staticmethod(standard_normal)

    def __init__(self, problem):
        self._problem = problem

    def train(self, batches):
        """Train on batches; see ``Backend.autoencoder_trainer``."""
        return map(self._train, batches)

    def _train(self, batch):
        problem, activation = self._problem, self._problem.activation
        n_users, n_samples = len(batch.users), problem.n_samples
        layers = as_layers(self.layer_weights(), problem.n_hidden)
        inverse = batch.inverse_temperature

        # Forward.
        pooled = self.sum_inputs(batch.inputs, batch.step)
        mask = None
        if problem.dropout:
            mask = self._mask(batch, pooled.shape[1])
            pooled *= mask
        posterior = encode(layers, pooled, activation)
        deviation = np.exp(0.5 * posterior.log_variance)
        noise = self._noise(batch, deviation.shape[1])
        z = (posterior.mean + noise * deviation).reshape(n_samples * n_users, -1)
        queries, decoded = decode(layers, z, activation)
        if problem.n_unit:
            queries, lengths = normalise(queries)

        average = problem.rule.average
        scale = np.float32(1 / (n_users * n_samples) if average else 1 / n_samples)
        by_queries, losses, weight = self._step_items(inverse * queries, batch, scale)

        # Backward.
        by_inverse = np.vdot(by_queries, queries) / (scale * n_samples)
        by_queries *= inverse
        if problem.n_unit:
            by_queries = normalise_backward(queries, lengths, by_queries)
        by_decoder, by_z = decode_backward(layers, decoded, by_queries, activation)
        by_mean, by_log_variance = self._through_posterior(
            posterior,
            deviation,
            noise,
            by_z.reshape(noise.shape),
            batch.kl_weight * (scale * n_samples),
        )
        by_encoder, by_pooled = encode_backward(
            layers, posterior, by_mean, by_log_variance, activation
        )
        if mask is not None:
            by_pooled *= mask

        self.step_inputs(batch.inputs, np.ascontiguousarray(by_pooled), scale, batch.step)
        self.step_layers([*by_encoder, *by_decoder], n_users, batch.step)
        loss = losses.sum() / n_samples + batch.kl_weight * kl_divergence(posterior).sum()
        return float(loss), weight, by_inverse

    def _mask(self, batch, width):
        """Return the factors of the sums, zero for those that are dropped."""
        dropout = self._problem.dropout
        drawn = self.uniform(batch.dropout, _flat_indices(batch.users, width))
        return (drawn >= np.float32(dropout)) / np.float32(1 - dropout)

    def _noise(self, batch, n_components):
        """Return the noise of all samples of users, (n_samples, n_users, n_components)."""
        samples = np.arange(self._problem.n_samples)[:, None] * self._problem.n_users
        return self.standard_normal(batch.noise, _flat_indices(samples + batch.users, n_components))

    def _step_items(self, queries, batch, scale):
        """Train the items; return the gradient with respect to queries, the losses, a weight."""
        n_samples, rows = self._problem.n_samples, batch.positives
        # A column of ones for the items' biases.
        queries = np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        lengths = np.tile(np.diff(rows.starts), n_samples)
        totals = np.add.reduceat(rows.weights, rows.starts[:-1])
        totals = np.tile(totals, n_samples).astype(np.float32)
        histories = Histories(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            items=np.tile(rows.items, n_samples),
            weights=np.tile(rows.weights, n_samples),
        )
        by_queries, losses = self.step_items(
            queries, histories, totals, scale, batch.step, batch.draws, batch.drawn
        )
        weight = float(totals.sum(dtype=np.float64)) / n_samples
        return np.ascontiguousarray(by_queries[:, :-1]), losses, weight

    @staticmethod
    def _through_posterior(posterior, deviation, noise, by_z, kl_weight):
        """Return the gradients of loss and KL divergence by means and by log-variances."""
        by_mean = by_z.sum(axis=0)
        by_log_variance = 0.5 * deviation * (by_z * noise).sum(axis=0)
        if kl_weight:
            divergence_by_mean, divergence_by_log_variance = kl_gradients(posterior)
            by_mean += np.float32(kl_weight) * divergence_by_mean
            by_log_variance += np.float32(kl_weight) * divergence_by_log_variance
        return by_mean, by_log_variance


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
    row = np.uint64(k)
    add_multiple(penalty_of(move.step.rule, 1.0), move.table.weights[row], gradient)
    move_row(row, n_seen, 0.0, gradient, move.table, move.step)


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


# To wake a thread takes as long as to move so many weights of a layer.
_WORTH_SEVERAL_THREADS = 100_000


def sum_histories(histories, table, n_threads):
    """Return the sums of histories, see ``Backend.sum_histories``."""
    out = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
    with Team(n_threads) as team:
        team.run(sum_rows, histories, table, out)
    return out


class AutoencoderTrainer(DenseLayers, TableTrainer):
    """Trains an autoencoder, see ``Backend.autoencoder_trainer``."""

    def __init__(self, problem, n_threads):
        DenseLayers.__init__(self, problem)
        TableTrainer.__init__(self, problem.rule, n_threads, problem.formulas)
        self._alone = Team(1, problem.formulas)
        n_positives, width = problem.n_positives, problem.input_width
        self._occurrences = empty_occurrences(n_positives, width, n_threads)
        self._scratch = self._sampled_scratch() if problem.n_draws else self._full_scratch()

    def _full_scratch(self):
        size, n = self.n_threads, self._problem.n_queries
        width = self._problem.item_width
        scores = aligned_zeros((size, n, TILE))
        return FullScratch(
            scores=scores,
            bits=scores.view(np.int32),
            chunk_sums=aligned_zeros((N_CHUNKS, n, 2), np.float64),
            log_sums=aligned_zeros(n),
            scaled=aligned_zeros((n, width)),
            chunk_gradients=aligned_zeros((N_CHUNKS, n, width)),
            chunk_scores=aligned_zeros((N_CHUNKS, n), np.float64),
            units=aligned_zeros((size, TILE if self._problem.n_unit else 0, width)),
            tile_gradients=aligned_zeros((size, TILE, width)),
            cursors=np.zeros((size, n), dtype=np.int64),
        )

    def _sampled_scratch(self):
        size, problem = self.n_threads, self._problem
        n, n_queries = problem.n_draws, problem.n_queries
        n_positives = problem.n_positives * problem.n_samples
        width = problem.item_width
        return SampledScratch(
            occurrences=empty_occurrences(n_positives + n_queries * n, width, size),
            ids=np.zeros((n_queries, n), dtype=np.int32),
            log_q=aligned_zeros((n_queries, n)),
            positive_log_q=aligned_zeros(n_positives),
            vectors=aligned_zeros((size * (n + 1), width)),
            scores=aligned_zeros((size, n)),
            multiples=aligned_zeros((size, n)),
        )

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        self.begin_tables(tables, first_step, corrections)
        self._inputs, self._items, *self._layers = self.tables.values()
        self._draws = None
        if proposal is not None:
            self._draws = draws_from(proposal, self.n_threads)
            self._draw = specialised(draw_for_queries, formulas_of(proposal))

    def _move(self, table, step):
        return Move(table, self.step(step - self._first_step))

    def layer_weights(self):
        """Return the weights of the dense layers."""
        return [layer.weights for layer in self._layers]

    def sum_inputs(self, histories, step):
        """Return the sums of the input vectors of histories, (B, h)."""
        if self.rule.catch_up != CATCH_UP_NONE:
            n, listed = len(histories.items), self._occurrences
            listed.tokens[:n] = histories.items
            self.team.run(catch_up_rows, n, listed, self._move(self._inputs, step))
        table = self._inputs.weights
        out = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
        self.team.run(sum_rows, histories, table, out)
        return out

    def step_inputs(self, histories, gradients, scale, step):
        """Move the input vectors of histories along the gradients by their sums."""
        n, listed = len(histories.items), self._occurrences
        lengths = np.diff(histories.starts)
        listed.tokens[:n] = histories.items
        listed.rows[:n] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        listed.multiples[:n] = histories.weights
        self.team.run(step_histories, n, listed, gradients, self._move(self._inputs, step), scale)

    def step_items(self, queries, histories, totals, scale, step, stream, drawn=None):
        """Move the items by a softmax; return the gradient by the queries, and the losses."""
        batch = Queries(queries, histories, totals, scale, self._problem.n_unit)
        result = Result(np.empty_like(queries), np.empty(len(queries)))
        move = self._move(self._items, step)
        if self._draws is None:
            self.team.run(full_softmax, batch, move, self._scratch, result)
        else:
            if drawn is not None:
                n = len(queries)
                self._scratch.ids[:n], self._scratch.log_q[:n] = drawn
            self.team.run(self._draw, batch, self._draws, stream, self._scratch)
            self.team.run(sampled_softmax, batch, move, self._scratch, result)
        return result

    def step_layers(self, gradients, n_users, step):
        """Move the layers along their gradients."""
        for layer, gradient in zip(self._layers, gradients, strict=True):
            gradient = np.ascontiguousarray(gradient, dtype=np.float32)
            team = self.team if gradient.size >= _WORTH_SEVERAL_THREADS else self._alone
            team.run(step_layer, gradient, self._move(layer, step), n_users)

    def catch_up(self, step):
        """Let all rows catch up on the steps up to ``step``."""
        self.catch_up_tables(step - self._first_step)
