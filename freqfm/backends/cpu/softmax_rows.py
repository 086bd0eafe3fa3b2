"""The rows of a softmax's batch: their negatives, scores, losses and gradients."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined
from freqfm.backends.cpu.blas import add_product, product_with_transposed
from freqfm.backends.cpu.logits import exponentials, largest_logit, sum_of_exponentials
from freqfm.backends.cpu.tables import (
    gather_dropped_row,
    gather_row,
    row_length,
    through_dropout,
    through_normalisation,
)
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_OWN,
    NEGATIVES_SHARED,
)
from freqfm.formulas.rng import hash64

# Up to here the logits of cosines, between -w and w, need no search for the largest: shifted by w
# they stay above the -87 at which float32 ends.
_SAFE = np.float32(40)

# In the types of what is passed elsewhere: for literals functions would be compiled once more.
FIRST, _FALSE = np.int64(0), np.bool_(False)


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


@inlined
def has_own_lists(negatives_code):
    """Return whether each row has negatives of its own."""
    return negatives_code in (NEGATIVES_OWN, NEGATIVES_DRAWN)


@inlined
def list_tokens(rank, size, batch, first_pair_of_call, b, epoch, code, negatives, users, items):
    """Write the tokens of a batch to the occurrences of users and items, each thread a part."""
    first, n_pairs, m = batch.first_pair, batch.n_pairs, batch.n_negatives
    for r in range(batch.n_rows * rank // size, batch.n_rows * (rank + 1) // size):
        users.tokens[r] = epoch.row_users[batch.first_row + r]
        users.rows[r] = r
        users.multiples[r] = ONE
    for p in range(n_pairs * rank // size, n_pairs * (rank + 1) // size):
        items.tokens[p] = epoch.items[first + p]
        if code == NEGATIVES_OWN:
            # A row is one positive.
            for j in range(m):
                item = negatives[first + p - first_pair_of_call, j]
                items.tokens[n_pairs + p * m + j] = item
        elif code == NEGATIVES_IN_BATCH:
            items.tokens[n_pairs + p] = epoch.items[first + p]
    if code in (NEGATIVES_SHARED, NEGATIVES_FULL):
        for j in range(m * rank // size, m * (rank + 1) // size):
            items.tokens[n_pairs + j] = np.int32(j) if code == NEGATIVES_FULL else negatives[b, j]


@inlined
def gather_negatives(begin, end, first, to, objective, corrections, items, scratch, occurrences):
    """Gather the negatives ``begin`` to ``end`` of a list whose tokens start at ``first``."""
    n_unit = items.shape[1] if objective.cosine else 0
    for j in range(begin, end):
        k = np.uint64(occurrences.tokens[first + j])
        gather_row(items, k, n_unit, scratch.negative_units, to + j)
        if objective.corrected:
            drawn = objective.negatives_code == NEGATIVES_DRAWN
            correction = occurrences.multiples[first + j] if drawn else corrections[k]
            scratch.negative_corrections[to + j] = correction


@inlined
def _exponentials_of_row(r, s, n, first, inverse, smallest_correction, objective, scratch):
    """Turn the scores in row ``s`` into exponentials, and keep what row ``r`` needs of them."""
    scores = scratch.scores
    corrections = scratch.negative_corrections
    if objective.statistics_wanted:
        top = ONE
        if not objective.cosine:
            top = largest_logit(scores, s, n, ONE, corrections, first, _FALSE)
        total = sum_of_exponentials(scores, s, n, top)
        scratch.row_sums[r, 2] = top + math.log(total)
    drawn = objective.negatives_code == NEGATIVES_DRAWN
    if objective.cosine and inverse <= _SAFE and not drawn:
        shift = inverse - smallest_correction
    else:
        shift = largest_logit(scores, s, n, inverse, corrections, first, objective.corrected)
    scratch.row_sums[r, 0] = exponentials(
        scores, s, n, inverse, corrections, first, objective.corrected, shift
    )
    scratch.row_sums[r, 1] = shift


@inlined
def score_tile(
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
    if not has_own_lists(objective.negatives_code):
        negatives = scratch.negative_units[:m]
        product_with_transposed(units[begin:end], negatives, tile)
        for r in range(begin, end):
            inverse = inverse_temperatures[np.uint64(epoch.row_users[batch.first_row + r]), 1]
            _exponentials_of_row(
                r, r - start, m, FIRST, inverse, smallest_correction, objective, scratch
            )
        add_product(tile, negatives, scratch.user_gradients[begin:end], ZERO)
        return
    negatives = scratch.negative_units[rank * m : (rank + 1) * m]
    for r in range(begin, end):
        gather_negatives(
            FIRST, m, batch.n_pairs + r * m, rank * m, objective, corrections, items, scratch,
            occurrences,
        )  # fmt: skip
        row = scratch.scores[r - start : r - start + 1]
        product_with_transposed(units[r : r + 1], negatives, row)
        inverse = inverse_temperatures[np.uint64(epoch.row_users[batch.first_row + r]), 1]
        _exponentials_of_row(
            r, r - start, m, rank * m, inverse, smallest_correction, objective, scratch
        )
        add_product(row, negatives, scratch.user_gradients[r : r + 1], ZERO)


@inlined
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
        length = row_length(items, k, width) if objective.cosine else ONE
        score = np.float64(dot / length)
        own = 0.0
        log_total = log_sum
        if objective.inside:
            logit = negative_inverse * score
            if objective.corrected:
                drawn = objective.negatives_code == NEGATIVES_DRAWN
                at = p - batch.first_pair
                logit -= occurrences.multiples[at] if drawn else corrections[k]
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


@inlined
def finish_row(
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
    if has_own_lists(objective.negatives_code):
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
