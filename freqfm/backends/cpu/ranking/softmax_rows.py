"""The rows of a softmax's batch: their negatives, scores, losses and gradients."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.blas import add_product, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cpu.logits import (
    exponentials,
    largest_logit,
    largest_of_row,
    sum_of_exponentials,
)
from freqfm.backends.cpu.tables import (
    gather_dropped_row,
    gather_row,
    key_of,
    row_length,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.formulas.codes import NEGATIVES_DRAWN, NEGATIVES_SEPARATE
from freqfm.formulas.losses import log_surrogate, share_of_top, softmax_with_positive
from freqfm.formulas.special import exp_of_minus

# Up to this inverse temperature w, logits of cosines, which are between -w and w, need no search
# for the largest: shifted by w they stay above -87, below which exponentials underflow in float32.
_SAFE = np.float32(40)

# Typed as their other values: for literals, functions would be compiled once more.
FIRST, _FALSE = np.int64(0), np.bool_(False)


class Softmax(NamedTuple):
    """The loss that a call minimises, with its negatives and temperatures."""

    cosine: bool
    dropout: float
    negatives_code: int
    corrected: bool  #: whether q differs from zero
    include_positive: bool  #: whether the positive is inside the logarithm
    constant: float  #: c
    statistics_wanted: bool
    pairs: bool  #: whether surrogates of differences of scores are summed; a row is one positive
    top_temperature: float  #: of the weights of positives, if there are thresholds
    thresholds: np.ndarray
    """(n_users,), float32: by its score over this a positive is weighed; empty for no weights."""
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
    terms: np.ndarray  #: the same with pairs, else empty
    # Of each row, (R,), float64.
    totals: np.ndarray  #: sum of the exponentials
    shifts: np.ndarray  #: of their logits
    log_sums: np.ndarray  #: logarithm of the sum at temperature one
    positives: np.ndarray  #: score of the only positive, with pairs
    pulls: np.ndarray  #: derivatives of the surrogates, summed, with pairs
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
def _surrogates_of_row(r, s, n, first, inverse, softmax, scratch):
    """Turn the scores in row ``s`` into derivatives of surrogates to the power ``inverse``."""
    scores, terms, corrections = scratch.scores, scratch.terms, scratch.negative_corrections
    positive = np.float32(scratch.positives[r])
    for j in range(n):
        value, derivative = log_surrogate(scores[s, j] - positive)
        terms[s, j] = inverse * value
        scores[s, j] = derivative
    if softmax.corrected:
        for j in range(n):
            terms[s, j] -= corrections[first + j]
    shift = largest_of_row(terms.view(np.int32), s, n)
    for j in range(n):
        terms[s, j] = exp_of_minus(max(shift - terms[s, j], ZERO))
        scores[s, j] *= terms[s, j]
    # Sums have loops of one array, see ``exponentials``.
    total = ZERO
    for j in range(n):
        total += terms[s, j]
    pull = ZERO
    for j in range(n):
        pull += scores[s, j]
    scratch.totals[r] = total
    scratch.shifts[r] = shift
    scratch.pulls[r] = pull


@inlined
def _score_of_positive(r, batch, softmax, items, scratch):
    """Return the score of the only positive of row ``r``."""
    table = items.table.weights
    k = np.uint64(batch.data.items[batch.data.row_starts[batch.first_row + r]])
    dot = ZERO
    for f in range(table.shape[1]):
        dot += table[k, f] * scratch.sources[r, f]
    return dot / (row_length(table, k, table.shape[1]) if softmax.cosine else ONE)


@inlined
def _exponentials_of_row(r, s, n, first, inverse, softmax, scratch):
    """Turn the scores in row ``s`` into exponentials, and keep their sums for row ``r``."""
    scores = scratch.scores
    corrections = scratch.negative_corrections
    if softmax.statistics_wanted:
        top = ONE
        if not softmax.cosine:
            top = largest_logit(scores, s, n, ONE, corrections, first, _FALSE)
        total = sum_of_exponentials(scores, s, n, top)
        scratch.log_sums[r] = top + math.log(total)
    drawn = softmax.negatives_code == NEGATIVES_DRAWN
    if softmax.cosine and inverse <= _SAFE and not drawn:
        shift = inverse - softmax.smallest_correction
    else:
        shift = largest_logit(scores, s, n, inverse, corrections, first, softmax.corrected)
    scratch.totals[r] = exponentials(
        scores, s, n, inverse, corrections, first, softmax.corrected, shift
    )
    scratch.shifts[r] = shift


@inlined
def gather_user(r, batch, softmax, users, scratch):
    """Gather the user of row ``r``."""
    scratch.lengths[r] = gather_dropped_row(
        users.table.weights, user_of(batch, r), softmax.cosine, softmax.dropout,
        key_of(batch, r), scratch.masks, scratch.sources, r,
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
def _learn_positives(r, batch, softmax, items, scratch):
    """Write the gradient of the positives of row ``r`` to the row's and to the occurrences.

    The loss and the weight of the row go to the scratch. Returns the weight of the positives times
    the share of the negatives in their softmax.
    """
    table, occurrences = items.table.weights, items.occurrences
    width = table.shape[1]
    units = scratch.sources
    gradients = scratch.user_gradients
    u = user_of(batch, r)
    log_sum = scratch.shifts[r] + math.log(scratch.totals[r])
    inverse = np.float64(softmax.inverse_temperatures[u, 0])
    negative_inverse = np.float64(softmax.inverse_temperatures[u, 1])
    pull = inverse
    if softmax.pairs:
        # The surrogates depend on the positive's score too.
        pull = softmax.constant * negative_inverse * scratch.pulls[r] / scratch.totals[r]
        inverse = 0.0
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
        rise = 0.0
        if softmax.thresholds.shape[0] > 0:
            threshold = np.float64(softmax.thresholds[u])
            top = share_of_top(score, threshold, softmax.top_temperature)
            v *= top
            rise = v * (1.0 - top) / softmax.top_temperature * value
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
    if softmax.pairs:
        scratch.positives[r] = _score_of_positive(r, batch, softmax, items, scratch)
        _surrogates_of_row(r, s, m, first, inverse, softmax, scratch)
    else:
        _exponentials_of_row(r, s, m, first, inverse, softmax, scratch)
    others = _learn_positives(r, batch, softmax, items, scratch)
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
