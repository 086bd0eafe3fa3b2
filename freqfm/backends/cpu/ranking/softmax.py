"""Sampled and full softmax over dot products or cosines: scores as matrix products.

A batch is a list of rows, each a user with one or more positives. Negatives are shared by the
batch, so that all its scores are one matrix product and so are the two gradients; or each positive
has a separate list, or each row, drawn for its user. With logits z_j = w' s_j - q_j, q_j the log of
the probability of drawing j relative to uniform sampling, a positive of weight v adds ::

    v (-w s_p + c log sum_j exp(z_j))         or, with the positive inside the logarithm,
    v (-w s_p + c log(exp(z_p) + sum_j exp(z_j)))

to the loss. The inverse temperatures w and w' are numbers per user.

With the softmax of surrogates a row is one positive. In place of the scores s_j of negatives stand
the logs of surrogates of exp(s_j - s_p), which depend on the positive's score s_p, too.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel, python_function, subroutine
from freqfm.backends.cpu.ranking.family import Family, draw_for_rows, numbers_of_rows
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    batch_of,
    catch_up_batch,
    gather_row,
    gather_user,
    list_users,
    n_user_occurrences,
    row_length,
    step_after,
    through_dropout,
    through_normalisation,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import (
    exponentials,
    largest_of_row,
    n_tiles,
    sum_of_exponentials,
    tile_height,
    tile_of,
)
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SEPARATE,
    NEGATIVES_SHARED,
)
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


# The most rows of one tile, the work of one call of BLAS, and the most columns of a tile of scores
# or of the negatives' gradient, and of the rows' gradient, of which there are fewer. BLAS arranges
# the columns anew for each tile of rows, so that fewer rows take longer, but fewer columns hardly
# do. How a batch is cut does not depend on the number of threads, so neither do the sums.
TILE, COLUMNS, COLUMNS_OF_ROWS = 128, 64, 32

# Up to this many scores (16 MB) a batch is scored at once, else in panels of rows, whose number is
# a multiple of the second.
_SCORES, _PANEL_ROWS = 1 << 22, 64

_NO_FLOATS = np.zeros(0, dtype=np.float32)


@inlined
def _n_negatives(batch, softmax, items):
    """Return the length of the batch's list of negatives, or of each of its lists."""
    if softmax.negatives_code == NEGATIVES_IN_BATCH:
        return batch.n_pairs
    if softmax.negatives_code == NEGATIVES_FULL:
        return items.table.weights.shape[0]
    return softmax.negatives.shape[1]


@subroutine
def _list_items(member, batch, softmax, m, occurrences):
    """Write the tokens of a batch's positives and negatives; each thread writes a part."""
    code = softmax.negatives_code
    first, n_pairs = batch.first_pair, batch.n_pairs
    begin, end = part(member, n_pairs)
    for p in range(begin, end):
        occurrences.tokens[p] = batch.data.items[first + p]
        if code == NEGATIVES_SEPARATE:
            # A row is one positive.
            for j in range(m):
                item = softmax.negatives[first + p - batch.first_pair_of_call, j]
                occurrences.tokens[n_pairs + p * m + j] = item
        elif code == NEGATIVES_IN_BATCH:
            occurrences.tokens[n_pairs + p] = batch.data.items[first + p]
    if code in (NEGATIVES_SHARED, NEGATIVES_FULL):
        begin, end = part(member, m)
        for j in range(begin, end):
            item = np.int32(j) if code == NEGATIVES_FULL else softmax.negatives[batch.number, j]
            occurrences.tokens[n_pairs + j] = item


@subroutine
def _gather_shared_negatives(member, batch, softmax, m, items, scratch):
    """Gather the batch's negatives; their gradients are stored after the sources of the rows."""
    begin, end = part(member, m)
    gather_negatives(begin, end, batch.n_pairs, FIRST, softmax, items, scratch)
    for j in range(begin, end):
        items.occurrences.rows[batch.n_pairs + j] = scratch.masks.shape[0] + j
        items.occurrences.multiples[batch.n_pairs + j] = ONE


@inlined
def _tile_width(n, most):
    """Return how many of ``n`` columns a tile has."""
    return -(-n // n_tiles(n, most))


@subroutine
def _score_tiles(member, panel, scratch):
    """Score the rows of a panel against the shared negatives."""
    n_rows, m = panel.end - panel.begin, panel.n_negatives
    height, width = tile_height(n_rows, TILE), _tile_width(m, COLUMNS)
    begin, end = part(member, n_tiles(n_rows, height) * n_tiles(m, width))
    for t in range(begin, end):
        top, bottom, left, right = tile_of(t, n_rows, height, m, width)
        product_with_transposed(
            scratch.sources[panel.begin + top : panel.begin + bottom],
            scratch.negative_units[left:right],
            scratch.scores[top:bottom, left:right],
        )


@subroutine
def _add_gradient_tiles(member, panel, scratch):
    """Add a panel's gradients by its rows, and by the negatives.

    Both take as many multiplications: half of the threads has tiles of the one, half of the other.
    """
    n_rows, m = panel.end - panel.begin, panel.n_negatives
    capacity, d = scratch.user_gradients.shape
    height, width = tile_height(n_rows, TILE), _tile_width(d, COLUMNS_OF_ROWS)
    n = n_tiles(n_rows, height) * n_tiles(d, width)
    begin, end = part(member, 2 * n)
    for t in range(begin, min(end, n)):
        top, bottom, left, right = tile_of(t, n_rows, height, d, width)
        add_product(
            scratch.scores[top:bottom, :m],
            scratch.negative_units[:m, left:right],
            scratch.user_gradients[panel.begin + top : panel.begin + bottom, left:right],
            ONE,
        )
    height, width = tile_height(m, TILE), _tile_width(d, COLUMNS)
    n = n_tiles(m, height) * n_tiles(d, width)
    begin, end = part(member, 2 * n)
    for t in range(max(begin, n), end):
        top, bottom, left, right = tile_of(t - n, m, height, d, width)
        add_product_of_transposed(
            scratch.scores[:n_rows, top:bottom],
            scratch.sources[panel.begin : panel.end, left:right],
            scratch.sources[capacity + top : capacity + bottom, left:right],
            ZERO if panel.begin == 0 else ONE,
        )


@inlined
def _learn_panel(member, panel, batch, softmax, items, scratch):
    """Find the losses and the gradients of the rows of a panel."""
    separate_lists = has_separate_lists(softmax.negatives_code)
    if not separate_lists:
        _score_tiles(member, panel, scratch)
        synchronize(member)
    begin, end = part(member, panel.end - panel.begin)
    for r in range(panel.begin + begin, panel.begin + end):
        learn_row(member.rank, r, panel, batch, softmax, items, scratch)
    synchronize(member)
    if not separate_lists:
        _add_gradient_tiles(member, panel, scratch)
        synchronize(member)


@inlined
def _add_statistics(batch, statistics, scratch):
    """Add the statistics of a batch, by user, that adaptive temperatures are computed from."""
    for r in range(batch.n_rows):
        u = user_of(batch, r)
        statistics[u, 0] += scratch.plain_losses[r]
        statistics[u, 1] += scratch.weights[r]
        statistics[u, 2] += scratch.derivatives[r]


@kernel
def softmax_train(rank, size, barrier, span, softmax, sides, scratch):
    """Train on some batches of an epoch; return the sums of the loss and of the weights.

    Arguments
    ---------
    span : Span
    softmax : Softmax
    sides : Sides, with the last step that was made. If negatives are drawn for each row, there is
        one batch, and they and the corrections of logits are in the occurrences of items.
    scratch : SoftmaxScratch
    """
    member = Member(rank, size, barrier)
    users, items, step = sides.users, sides.items, sides.step
    separate_lists = has_separate_lists(softmax.negatives_code)
    most_rows = scratch.scores.shape[0]
    n_unit = items.table.weights.shape[1] if softmax.cosine else 0
    total_loss = 0.0
    total_weight = 0.0
    for b in range(span.first_batch, span.last_batch):
        batch = batch_of(span, b, step.rule.average)
        now = step_after(step, batch.number + 1)
        n_rows, n_users = batch.n_rows, n_user_occurrences(batch)
        m = _n_negatives(batch, softmax, items)
        n_occurrences = batch.n_pairs + (n_rows * m if separate_lists else m)
        begin, end = part(member, n_rows)
        list_users(begin, end, batch, users.occurrences)
        _list_items(member, batch, softmax, m, items.occurrences)
        catch_up_batch(member, n_users, users, n_occurrences, items, now)
        for r in range(begin, end):
            gather_source(r, batch, softmax, users, scratch)
        if not separate_lists:
            _gather_shared_negatives(member, batch, softmax, m, items, scratch)
        synchronize(member)
        for start in range(0, n_rows, most_rows):
            panel = Panel(start, min(start + most_rows, n_rows), m)
            _learn_panel(member, panel, batch, softmax, items, scratch)
        for r in range(begin, end):
            finish_row(r, batch, softmax, scratch)
        synchronize(member)
        if rank == 0:
            for r in range(n_rows):
                total_loss += scratch.losses[r]
                total_weight += scratch.weights[r]
            if softmax.statistics_wanted:
                _add_statistics(batch, softmax.statistics, scratch)
        apply_gradients(member, n_users, users, scratch.user_gradients, NO_UNIT, now, batch.mean)
        apply_gradients(member, n_occurrences, items, scratch.sources, n_unit, now, batch.mean)
        synchronize(member)
    return total_loss, total_weight


def _list_length(problem, n_pairs):
    """Return the most negatives that a row is scored against."""
    if problem.negatives_code == NEGATIVES_IN_BATCH:
        return n_pairs
    if problem.negatives_code == NEGATIVES_FULL:
        return problem.n_items
    return problem.n_negatives


class SoftmaxFamily(Family):
    """A positive against all of its negatives at once."""

    draw_kernel = staticmethod(draw_for_rows)

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        d, width = problem.width, _list_length(problem, n_pairs)
        panel = min(n_pairs, max(_PANEL_ROWS, _SCORES // width // _PANEL_ROWS * _PANEL_ROWS))
        separate = python_function(has_separate_lists)(problem.negatives_code)
        self.n_listed = n_pairs * width if separate else width
        n_units = size * width if separate else width
        scores = aligned_zeros((panel, width))
        self._scratch = SoftmaxScratch(
            masks=aligned_zeros((n_pairs, d)),
            lengths=aligned_zeros(n_pairs),
            user_gradients=aligned_zeros((n_pairs, d)),
            sources=aligned_zeros((n_pairs + (0 if separate else width), d)),
            negative_units=aligned_zeros((n_units, d)),
            negative_corrections=aligned_zeros(n_units),
            scores=scores,
            bits=scores.view(np.int32),
            slopes=aligned_zeros((panel if log_surrogate in problem.formulas else 0, width)),
            **numbers_of_rows(SoftmaxScratch._fields[9:], n_pairs),
        )

    @staticmethod
    def block_of(problem):
        """See ``Family``; with surrogates, or a list for each positive, rows are positives."""
        surrogates = log_surrogate in problem.formulas
        one = surrogates or problem.negatives_code == NEGATIVES_SEPARATE
        return 1 if one else problem.block

    @staticmethod
    def formulas_of(problem):
        """See ``Family``; a softmax of surrogates is another kernel."""
        surrogates = SURROGATES if log_surrogate in problem.formulas else {}
        return {**problem.formulas, **surrogates}

    @classmethod
    def _n_rows(cls, problem, degrees):
        """Return about how many rows a batch has; ``degrees`` as for ``most_threads``."""
        block = cls.block_of(problem)
        if block is None or not degrees.any():
            return problem.batch_size
        n_blocks = int((-(-degrees // block)).sum())
        return -(-problem.batch_size * n_blocks // int(degrees.sum()))

    @classmethod
    def most_threads(cls, problem, degrees):
        """See ``Family``; more threads than tiles would only make barriers slower."""
        if python_function(has_separate_lists)(problem.negatives_code):
            return None
        n_rows = cls._n_rows(problem, degrees)
        height = python_function(tile_height)(n_rows, TILE)
        length, count = _list_length(problem, problem.batch_size), python_function(n_tiles)
        return count(n_rows, height) * count(length, COLUMNS)

    def _work_of_batch(self):
        problem, width = self.problem, _list_length(self.problem, self.n_pairs)
        n_rows = self._n_rows(problem, problem.degrees)
        draws = problem.n_negatives or 1
        if problem.negatives_code == NEGATIVES_SEPARATE:
            draws = n_rows * width
        return 6 * n_rows * width * problem.width, draws

    def lists_shape(self, n_batches, n_pairs):
        """See ``Family``; a batch shares a list unless each positive has a separate one."""
        separate = self.problem.negatives_code == NEGATIVES_SEPARATE
        return n_pairs if separate else n_batches, self.problem.n_negatives

    def _softmax(self, call):
        problem = self.problem
        corrections = _NO_FLOATS if self.drawn else call.proposal.log_q
        negatives = call.negatives
        if negatives is None:
            negatives = np.empty((0, problem.n_negatives), dtype=np.int32)
        return Softmax(
            cosine=problem.cosine,
            dropout=problem.dropout,
            negatives_code=problem.negatives_code,
            corrected=problem.corrected if self.drawn else len(corrections) > 0,
            include_positive=problem.include_positive,
            constant=problem.constants["constant"],
            statistics_wanted=problem.statistics_wanted,
            top_temperature=problem.constants["top_temperature"],
            thresholds=problem.constants["thresholds"],
            negatives=negatives,
            corrections=corrections,
            smallest_correction=np.float32(corrections.min(initial=0)),
            inverse_temperatures=call.inverse_temperatures,
            statistics=call.statistics,
        )

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        softmax = self._softmax(call)
        if call.draws is not None:
            call.draw(call.span, call.draws, softmax, sides, self._scratch)
        return call.run(softmax_train, call.span, softmax, sides, self._scratch)
