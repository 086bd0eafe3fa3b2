"""Sampled and full softmax over dot products or cosines: scores as matrix products.

A batch is a list of rows, each a user with one or more positives. Negatives are shared by the
batch, so that all its scores are one matrix product and so are the two gradients; or each positive
has a separate list, or each row, drawn for its user. With logits z_j = w' s_j - q_j, q_j the log of
the probability of drawing j relative to uniform sampling, a positive of weight v adds ::

    v (-w s_p + c log sum_j exp(z_j))         or, with the positive inside the logarithm,
    v (-w s_p + c log(exp(z_p) + sum_j exp(z_j)))

to the loss. The inverse temperatures w and w' are numbers per user.
"""

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.blas import add_product, add_product_of_transposed, product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel, python_function, subroutine
from freqfm.backends.cpu.ranking.family import Family, draw_for_rows, numbers_of_rows
from freqfm.backends.cpu.ranking.softmax_rows import (
    FIRST,
    SURROGATES,
    Panel,
    Softmax,
    SoftmaxScratch,
    finish_row,
    gather_negatives,
    gather_source,
    has_separate_lists,
    learn_row,
)
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    apply_gradients,
    batch_of,
    catch_up_batch,
    list_users,
    n_user_occurrences,
    step_after,
    user_of,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import n_tiles, tile_height, tile_of
from freqfm.formulas.codes import (
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SEPARATE,
    NEGATIVES_SHARED,
)
from freqfm.formulas.losses import log_surrogate

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
