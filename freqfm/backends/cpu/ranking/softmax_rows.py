"""The rows of a softmax's batch: their negatives, scores, losses and gradients.

The softmax of surrogates: functions that replace those of ``softmax_rows``.

A row is one positive. In place of the scores s_j of negatives stand the logs of surrogates of
exp(s_j - s_p), which depend on the positive's score s_p, too.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.blas import add_product, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cpu.tables import (
    gather_row,
    gather_user,
    row_length,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.backends.cpu.vectors import exponentials, largest_of_row, sum_of_exponentials
from freqfm.formulas.codes import NEGATIVES_DRAWN, NEGATIVES_SEPARATE
from freqfm.formulas.losses import log_surrogate, softmax_with_positive, weight_of_positive

# Up to this inverse temperature w, logits of cosines, which are between -w and w, need no search
# for the largest: shifted by w they stay above -87, below which exponentials underflow in float32.
_SAFE = np.float32(40)

# Typed as its other values: for a literal, functions would be compiled once more.
FIRST = np.int64(0)


class Softmax(NamedTuple):
    """The loss that a call minimises, with its negatives and temperatures."""

    cosine: bool
    dropout: float
    negatives_code: int
    corrected: bool  #: whether q differs from zero
    include_positive: bool  #: whether the positive is inside the logarithm
    constant: float  #: c
    statistics_wanted: bool
    top_temperature: float  #: of the weights of positives, see ``weight_of_positive``
    thresholds: np.ndarray  #: (n_users,), of these weights, float32
    negatives: np.ndarray
    """(n_lists, M), int32: a list for each batch of the call, or for each positive. It is not read
    if negatives are drawn for rows, or are the batch's positives or all items."""
    corrections: np.ndarray  #: (n_items,), q, float32; empty for zeros
    smallest_correction: np.float32  #: of all items, at most 0
    inverse_temperatures: np.ndarray  #: (n_users, 2), w and w', float32
    statistics: np.ndarray
    """(n_users, 3), float64: receives, per user, the loss at temperature one, its weight, and the
    derivative of the loss by the inverse temperature."""


class SoftmaxScratch(NamedTuple):
    """Working memory; float32. R rows, M negatives and P positives are the most of any batch."""

    masks: np.ndarray  #: (R, d)
    lengths: np.ndarray  #: (R,)
    user_gradients: np.ndarray  #: (R, d)
    sources: np.ndarray  #: (R + M, d): unit users, then the gradients of shared negatives
    negative_units: np.ndarray  #: (M, d) for shared negatives, else (size * M, d)
    negative_corrections: np.ndarray  #: (M,), or (size * M,)
    scores: np.ndarray  #: (rows of a panel, M)
    bits: np.ndarray  #: of the scores, int32
    slopes: np.ndarray  #: the same with surrogates, their derivatives; else empty
    # Of each row, (R,), float64.
    totals: np.ndarray  #: sum of the exponentials
    shifts: np.ndarray  #: of their logits
    log_sums: np.ndarray  #: logarithm of the sum at temperature one
    losses: np.ndarray
    weights: np.ndarray
    plain_losses: np.ndarray  #: loss at temperature one
    derivatives: np.ndarray  #: of the loss by the inverse temperature


class Panel(NamedTuple):
    """Rows of a batch that are scored at once against the negatives."""

    begin: int
    end: int
    n_negatives: int


@inlined
def has_separate_lists(negatives_code):
    """Return whether each row has a separate list of negatives."""
    return negatives_code in (NEGATIVES_SEPARATE, NEGATIVES_DRAWN)


@inlined
def _correction(softmax, occurrences, p, k):
    """Return the correction of the logit of occurrence ``p``, which is item ``k``."""
    if softmax.negatives_code == NEGATIVES_DRAWN:
        return occurrences.multiples[p]
    return softmax.corrections[k]


@inlined
def gather_negatives(begin, end, first, to, softmax, items, scratch):
    """Gather the negatives ``begin`` to ``end`` of a list whose tokens start at ``first``."""
    weights = items.table.weights
    n_unit = weights.shape[1] if softmax.cosine else 0
    for j in range(begin, end):
        k = np.uint64(items.occurrences.tokens[first + j])
        gather_row(weights, k, n_unit, scratch.negative_units, to + j)
        if softmax.corrected:
            correction = _correction(softmax, items.occurrences, first + j, k)
            scratch.negative_corrections[to + j] = correction


@inlined
def values_of_row(r, s, n, batch, softmax, items, scratch):
    """Turn the scores in row ``s`` into the values that row ``r`` takes a softmax of.

    Returns whether these are at most 1. Here they are the scores; see the head of this file.
    """
    return softmax.cosine


@inlined
def derivatives_of_row(r, s, n, batch, softmax, scratch):
    """Multiply the exponentials in row ``s`` by the derivatives of the values by the scores.

    Returns by how much a positive's score lowers the loss: directly, and in all.
    """
    inverse = np.float64(softmax.inverse_temperatures[user_of(batch, r), 0])
    return inverse, inverse


@inlined
def _exponentials_of_row(r, s, n, first, bounded, softmax, inverse, scratch):
    """Turn the values in row ``s`` into exponentials of their logits, with their sum for row ``r``.

    ``bounded`` says that the values are at most 1.
    """
    scores, corrections = scratch.scores, scratch.negative_corrections
    if softmax.statistics_wanted:
        top = ONE if bounded else largest_of_row(scratch.bits, s, n)
        scratch.log_sums[r] = top + math.log(sum_of_exponentials(scores, s, n, top))
    weight = inverse
    if softmax.corrected:
        # This is a separate loop because LLVM compiles a loop over two arrays twice, vectorised and
        # for arrays close to each other: a sum in it would depend on where they are in memory.
        for j in range(n):
            scores[s, j] = inverse * scores[s, j] - corrections[first + j]
        weight = ONE
    if bounded and inverse <= _SAFE and softmax.negatives_code != NEGATIVES_DRAWN:
        shift = inverse - softmax.smallest_correction
    else:
        shift = weight * largest_of_row(scratch.bits, s, n)
    scratch.totals[r] = exponentials(scores, s, n, weight, shift)
    scratch.shifts[r] = shift


@inlined
def gather_source(r, batch, softmax, users, scratch):
    """Gather the vector of the user of row ``r``."""
    scratch.lengths[r] = gather_user(
        r, batch, users.table.weights, softmax.cosine, softmax.dropout,
        scratch.masks, scratch.sources,
    )  # fmt: skip


@inlined
def _share_of_positive(p, k, logit, log_sum, batch, softmax, occurrences):
    """Return the logarithm of the softmax's sum, and the share of the positive in it."""
    if not softmax.include_positive:
        return log_sum, 0.0
    if softmax.corrected:
        logit -= _correction(softmax, occurrences, p - batch.first_pair, k)
    return softmax_with_positive(logit, log_sum)


@inlined
def _learn_positives(r, inverse, pull, batch, softmax, items, scratch):
    """Write the gradient of the positives of row ``r`` to the row's and to the occurrences.

    ``inverse`` and ``pull`` are the results of ``derivatives_of_row``. The loss and the weight of
    the row go to the scratch. Returns the weight of the positives times the share of the negatives
    in their softmax.
    """
    table, occurrences = items.table.weights, items.occurrences
    width = table.shape[1]
    units = scratch.sources
    gradients = scratch.user_gradients
    u = user_of(batch, r)
    log_sum = scratch.shifts[r] + math.log(scratch.totals[r])
    threshold = np.float64(softmax.thresholds[u])
    negative_inverse = np.float64(softmax.inverse_temperatures[u, 1])
    for f in range(width):
        gradients[r, f] = ZERO
    loss = 0.0
    plain_scores = 0.0
    others = 0.0
    slope = 0.0
    weight = 0.0
    row = batch.first_row + r
    for p in range(batch.data.row_starts[row], batch.data.row_starts[row + 1]):
        k = np.uint64(batch.data.items[p])
        dot = ZERO
        for f in range(width):
            dot += table[k, f] * units[r, f]
        length = row_length(table, k, width) if softmax.cosine else ONE
        score = np.float64(dot / length)
        log_total, share = _share_of_positive(
            p, k, negative_inverse * score, log_sum, batch, softmax, occurrences
        )
        v = np.float64(batch.data.weights[p])
        weight += v
        plain_scores += v * score
        value = softmax.constant * log_total - inverse * score
        factor, by_score = weight_of_positive(score, threshold, softmax.top_temperature)
        rise = v * by_score * value
        v *= factor
        loss += v * value
        others += v * (1.0 - share)
        slope += score * (v * (pull - negative_inverse) - rise)
        derivative = np.float32(
            batch.scale * (v * (softmax.constant * negative_inverse * share - pull) + rise)
        )
        multiple = derivative / length
        for f in range(width):
            gradients[r, f] += multiple * table[k, f]
        occurrences.rows[p - batch.first_pair] = r
        occurrences.multiples[p - batch.first_pair] = derivative
    scratch.losses[r] = loss
    scratch.weights[r] = weight
    scratch.plain_losses[r] = weight * scratch.log_sums[r] - plain_scores
    scratch.derivatives[r] = slope / negative_inverse
    return others


@inlined
def _score_separate_list(rank, r, panel, softmax, batch, items, scratch):
    """Score row ``r`` against its list of negatives, which are gathered."""
    m = panel.n_negatives
    first, s = rank * m, r - panel.begin
    gather_negatives(FIRST, m, batch.n_pairs + r * m, first, softmax, items, scratch)
    negatives = scratch.negative_units[first : first + m]
    product_with_transposed(scratch.sources[r : r + 1], negatives, scratch.scores[s : s + 1])


@inlined
def _learn_separate_list(rank, r, panel, batch, items, scratch):
    """Add the gradient of row ``r`` by its negatives, and leave theirs in the occurrences."""
    m, occurrences = panel.n_negatives, items.occurrences
    s, first = r - panel.begin, batch.n_pairs + r * m
    negatives = scratch.negative_units[rank * m : (rank + 1) * m]
    add_product(scratch.scores[s : s + 1, :m], negatives, scratch.user_gradients[r : r + 1], ONE)
    for j in range(m):
        occurrences.multiples[first + j] = scratch.scores[s, j]
        occurrences.rows[first + j] = r


@inlined
def learn_row(rank, r, panel, batch, softmax, items, scratch):
    """Find the loss of row ``r``, its derivatives by the scores, and the gradient by positives.

    The derivatives by the scores of negatives replace these.
    """
    m, s = panel.n_negatives, r - panel.begin
    separate = has_separate_lists(softmax.negatives_code)
    first = rank * m if separate else FIRST
    if separate:
        _score_separate_list(rank, r, panel, softmax, batch, items, scratch)
    inverse = softmax.inverse_temperatures[user_of(batch, r), 1]
    bounded = values_of_row(r, s, m, batch, softmax, items, scratch)
    _exponentials_of_row(r, s, m, first, bounded, softmax, inverse, scratch)
    linear, pull = derivatives_of_row(r, s, m, batch, softmax, scratch)
    others = _learn_positives(r, linear, pull, batch, softmax, items, scratch)
    factor = np.float32(batch.scale * softmax.constant * inverse * others / scratch.totals[r])
    for j in range(m):
        scratch.scores[s, j] *= factor
    if separate:
        _learn_separate_list(rank, r, panel, batch, items, scratch)


@inlined
def finish_row(r, batch, softmax, scratch):
    """Turn the gradient of row ``r`` by what was gathered into that by the user's vector."""
    gradients, units = scratch.user_gradients, scratch.sources
    width = gradients.shape[1]
    if softmax.statistics_wanted:
        along = ZERO
        for f in range(width):
            along += gradients[r, f] * units[r, f]
        inverse = np.float64(softmax.inverse_temperatures[user_of(batch, r), 1])
        scratch.derivatives[r] += along / (batch.scale * inverse)
    if softmax.cosine:
        through_normalisation(gradients[r], units, r, width, ONE, scratch.lengths[r])
    through_dropout(gradients, softmax.dropout, scratch.masks, r)


def _write_surrogates(r, s, n, batch, softmax, items, scratch):
    """Write the logs of the surrogates to row ``s``, and their derivatives to the slopes."""
    table, scores, slopes = items.table.weights, scratch.scores, scratch.slopes
    k = np.uint64(batch.data.items[batch.data.row_starts[batch.first_row + r]])
    dot = ZERO
    for f in range(table.shape[1]):
        dot += table[k, f] * scratch.sources[r, f]
    positive = dot / (row_length(table, k, table.shape[1]) if softmax.cosine else ONE)
    for j in range(n):
        scores[s, j], slopes[s, j] = log_surrogate(scores[s, j] - positive)
    return False


def _multiply_by_slopes(r, s, n, batch, softmax, scratch):
    """Multiply the exponentials in row ``s`` by the slopes; see ``derivatives_of_row``."""
    scores, slopes = scratch.scores, scratch.slopes
    for j in range(n):
        scores[s, j] *= slopes[s, j]
    # A sum has a loop over one array, see ``_exponentials_of_row``.
    total = ZERO
    for j in range(n):
        total += scores[s, j]
    inverse = np.float64(softmax.inverse_temperatures[user_of(batch, r), 1])
    return 0.0, softmax.constant * inverse * total / scratch.totals[r]


#: Replacements of a loss that replaces ``log_surrogate``, see ``jit.specialised``.
SURROGATES = {values_of_row: _write_surrogates, derivatives_of_row: _multiply_by_slopes}
