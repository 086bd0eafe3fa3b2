"""Training of user and item vectors: what each family of ranking losses allocates and runs."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm.backends.base import RankingTrainer
from freqfm.backends.cpu.alignment import TILE_ROWS as ALIGNMENT_ROWS
from freqfm.backends.cpu.alignment import Alignment, AlignmentScratch, alignment_train
from freqfm.backends.cpu.drawing import Draws, draw_for_pairs, draw_for_rows
from freqfm.backends.cpu.pairwise import (
    Pairwise,
    PairwiseScratch,
    empty_lanes,
    pairwise_train,
)
from freqfm.backends.cpu.softmax import TILE_ROWS, softmax_train
from freqfm.backends.cpu.softmax_rows import Softmax, SoftmaxScratch
from freqfm.backends.cpu.tables import Side, Sides, Span, empty_occurrences
from freqfm.backends.cpu.training import NO_TABLE, TableTrainer
from freqfm.formulas import codes
from freqfm.formulas.sampling_laws import Proposal, draw_scratch

# A kernel call does about this many multiplications, a tenth of a second of work, before Python can
# handle an interrupt.
_WORK_PER_CALL = 5_000_000_000

# Up to this many scores (16 MB) a batch is scored at once, else in panels of rows.
_SCORES = 1 << 22

# At most this many negatives are drawn at a time.
_DRAWS = 1 << 23

# Each row of a batch has a separate list of negatives.
_SEPARATE_LISTS = (codes.NEGATIVES_OWN, codes.NEGATIVES_DRAWN)

_NO_FLOATS = np.zeros(0, dtype=np.float32)


def _floats(*shape):
    return aligned_zeros(shape)


def _numbers_of_rows(names, n):
    """Return float64 numbers for each of ``n`` rows, by name; those of a row are contiguous."""
    numbers = np.zeros((n, len(names)))
    return dict(zip(names, numbers.T, strict=True))


class Call(NamedTuple):
    """What one call trains on; see ``RankingTrainer.train``."""

    run: Callable  #: ``Team.run``
    span: Span
    draws: Draws | None  #: if the trainer draws negatives itself
    proposal: Proposal | None
    negatives: np.ndarray | None
    inverse_temperatures: np.ndarray
    statistics: np.ndarray


class Family:
    """The working memory of a family of losses, and how it trains.

    Parameters
    ----------
    problem : RankingProblem
    n_pairs : int
        The most positives of a batch.
    size : int
        Number of threads.

    Attributes
    ----------
    n_listed : int
        The most negatives of a batch.
    """

    n_listed = 0

    def __init__(self, problem, n_pairs, size):
        self.problem, self.n_pairs, self.size = problem, n_pairs, size
        self.drawn = problem.negatives_code == codes.NEGATIVES_DRAWN

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    def batches_per_call(self):
        """Return how many batches a call may train on."""
        if self.drawn:
            return 1
        work, draws = self._work_of_batch()
        return max(1, min(_WORK_PER_CALL // work, _DRAWS // draws))

    def _work_of_batch(self):
        """Return how many multiplications a batch takes, and how many negatives are drawn."""
        raise NotImplementedError

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        return n_pairs, self.problem.n_negatives

    def train(self, call, sides, tables):
        """Train on the batches of a Call; return the sums of the loss and of the weights."""
        raise NotImplementedError


class SoftmaxFamily(Family):
    """A positive against all of its negatives at once."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        d, width = problem.width, self._list_length()
        panel = min(n_pairs, max(TILE_ROWS, _SCORES // width // TILE_ROWS * TILE_ROWS))
        separate = problem.negatives_code in _SEPARATE_LISTS
        self.n_listed = n_pairs * width if separate else width
        n_units = size * width if separate else width
        self._scratch = SoftmaxScratch(
            masks=_floats(n_pairs, d),
            lengths=_floats(n_pairs),
            scaled=_floats(n_pairs, d),
            user_gradients=_floats(n_pairs, d),
            sources=_floats(n_pairs + (0 if separate else width), d),
            negative_units=_floats(n_units, d),
            negative_corrections=_floats(n_units),
            scores=_floats(panel, width),
            **_numbers_of_rows(SoftmaxScratch._fields[8:], n_pairs),
        )

    @staticmethod
    def block_of(problem):
        """See ``Family``; if each positive has a separate list, a row is one positive."""
        return 1 if problem.negatives_code == codes.NEGATIVES_OWN else problem.block

    def _list_length(self):
        """Return the most negatives that a row is scored against."""
        if self.problem.negatives_code == codes.NEGATIVES_IN_BATCH:
            return self.n_pairs
        if self.problem.negatives_code == codes.NEGATIVES_FULL:
            return self.problem.n_items
        return self.problem.n_negatives

    def _work_of_batch(self):
        problem, width = self.problem, self._list_length()
        n = problem.batch_size
        draws = problem.n_negatives or 1
        if problem.negatives_code == codes.NEGATIVES_OWN:
            draws = n * width
        return 6 * n * width * problem.width, draws

    def lists_shape(self, n_batches, n_pairs):
        """See ``Family``; a batch shares a list unless each positive has a separate one."""
        separate = self.problem.negatives_code == codes.NEGATIVES_OWN
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
            call.run(draw_for_rows, call.span, call.draws, softmax, sides, self._scratch)
        return call.run(softmax_train, call.span, softmax, sides, self._scratch)


class PairwiseFamily(Family):
    """Each positive is ranked above each of its negatives."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        self.n_listed = n_pairs * problem.n_negatives
        self._scratch = PairwiseScratch(
            masks=_floats(n_pairs, problem.width),
            units=_floats(n_pairs, problem.width),
            gradients=_floats(n_pairs, problem.width),
            **_numbers_of_rows(("losses", "weights"), n_pairs),
            lanes=empty_lanes(size),
        )

    def _work_of_batch(self):
        draws = self.problem.batch_size * self.problem.n_negatives
        return 100 * self.problem.width * draws, draws

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        problem, negatives = self.problem, call.negatives
        if call.draws is not None:
            data, b = call.span.data, call.span.first_batch
            first, last = data.row_starts[data.batch_starts[b : b + 2]]
            negatives = np.empty((last - first, problem.n_negatives), dtype=np.int32)
            call.run(draw_for_pairs, call.span, call.draws, negatives, sides)
        pairwise = Pairwise(
            problem.cosine, problem.dropout, *problem.known, negatives, call.inverse_temperatures
        )
        return call.run(pairwise_train, call.span, pairwise, sides, self._scratch)


class AlignmentFamily(Family):
    """Positive pairs are pulled together, users and items each pushed apart; no negatives."""

    def __init__(self, problem, n_pairs, size):
        super().__init__(problem, n_pairs, size)
        d = problem.width
        self._scratch = AlignmentScratch(
            masks=_floats(n_pairs, d),
            lengths=_floats(n_pairs),
            units=_floats(2, n_pairs, d),
            gradients=_floats(2, n_pairs, d),
            cosines=_floats(size, ALIGNMENT_ROWS, n_pairs),
            **_numbers_of_rows(("losses", "user_totals", "item_totals"), n_pairs),
            margin_gradients=_floats(n_pairs, 1),
        )

    def _work_of_batch(self):
        n = self.problem.batch_size
        return 8 * n * n * self.problem.width, 1

    def train(self, call, sides, tables):
        """Train on the batches of a Call, see ``Family``."""
        alignment = Alignment(
            dropout=self.problem.dropout,
            user_margins=tables.get("user_margins", NO_TABLE),
            item_margins=tables.get("item_margins", NO_TABLE),
            **self.problem.constants,
        )
        return call.run(alignment_train, call.span, alignment, sides, self._scratch)


#: By the names of ``RankingProblem.family``.
FAMILIES = {"softmax": SoftmaxFamily, "pairwise": PairwiseFamily, "alignment": AlignmentFamily}


class CPURankingTrainer(TableTrainer, RankingTrainer):
    """Trains user and item vectors on the CPU; see ``RankingTrainer``.

    Parameters
    ----------
    problem : RankingProblem
    n_threads : int

    Raises
    ------
    ValueError
        If a batch has more scores than int32 can index.
    """

    def __init__(self, problem, n_threads):
        super().__init__(problem.rule, n_threads, problem.formulas)
        self._problem = problem
        degrees = np.diff(problem.known[0])
        n_pairs = len(problem.known[1])
        family = FAMILIES[problem.family]
        block = family.block_of(problem)
        longest = int(degrees.max()) if block is None else block
        n_pairs = min(problem.batch_size + longest, n_pairs)
        self.block = block
        self._family = family(problem, n_pairs, n_threads)
        self.batches_per_call = self._family.batches_per_call()
        n_listed = self._family.n_listed
        if n_pairs + n_listed > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={problem.batch_size} with n_negatives={problem.n_negatives} for each "
                f"positive makes {n_pairs + n_listed} scores a batch; choose a smaller batch_size."
            )
        self._user_occurrences = empty_occurrences(n_pairs, problem.width, n_threads)
        self._item_occurrences = empty_occurrences(n_pairs + n_listed, problem.width, n_threads)
        self._draws = None

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch; see ``RankingTrainer``."""
        self.begin_tables(tables, first_step, corrections)
        self._epoch, self._data = epoch, data
        self._users = Side(self.tables["user_factors"], self._user_occurrences)
        self._items = Side(self.tables["item_factors"], self._item_occurrences)

    def lists_shape(self, first, last):
        """Return how many lists of negatives the batches need, and the length of a list."""
        data = self._data
        pairs = data.row_starts[data.batch_starts[[first, last]]]
        return self._family.lists_shape(last - first, int(pairs[1] - pairs[0]))

    def _draws_from(self, proposal):
        """Return Draws from a proposal; their working memory is reused."""
        if self._draws is None or self._draws.proposal is not proposal:
            log_q = _floats(self.n_threads, self._problem.n_negatives)
            self._draws = Draws(proposal, *draw_scratch(proposal, self.n_threads), log_q)
        return self._draws

    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; see ``RankingTrainer``."""
        drawn = self._problem.negatives_code == codes.NEGATIVES_DRAWN
        call = Call(
            run=self.team.run,
            span=Span(self._data, first, last, self._problem.seed, self._epoch),
            draws=self._draws_from(proposal) if drawn else None,
            proposal=proposal,
            negatives=negatives,
            inverse_temperatures=inverse_temperatures,
            statistics=statistics,
        )
        sides = Sides(self._users, self._items, self.step(first))
        return self._family.train(call, sides, self.tables)

    def end_epoch(self):
        """Let all rows catch up on the steps that they have missed."""
        self.catch_up_tables(len(self._data.batch_starts) - 1)
        # The data of the next epoch are made before the trainer hears of them.
        self._data = None
