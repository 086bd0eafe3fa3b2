"""Training of user and item vectors on the CPU, by any family of ranking losses."""

import functools

import numpy as np

from freqfm._numba.jit import specialised
from freqfm.backends.base import RankingTrainer
from freqfm.backends.cpu.ranking.alignment import AlignmentFamily
from freqfm.backends.cpu.ranking.family import Call
from freqfm.backends.cpu.ranking.pairwise import PairwiseFamily
from freqfm.backends.cpu.ranking.softmax import SoftmaxFamily
from freqfm.backends.cpu.tables import Side, Sides, Span, TableTrainer, empty_occurrences
from freqfm.formulas import codes
from freqfm.formulas.proposals import draws_from, formulas_of

#: By the names of ``RankingProblem.family``.
FAMILIES = {
    "softmax": SoftmaxFamily,
    "pairwise": PairwiseFamily,
    "alignment": AlignmentFamily,
}


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
        family, degrees = FAMILIES[problem.family], problem.degrees
        n_threads = min(n_threads, family.most_threads(problem, degrees) or n_threads)
        super().__init__(problem.rule, n_threads, family.formulas_of(problem))
        self._problem = problem
        n_pairs = int(degrees.sum())
        block = family.block_of(problem)
        longest = int(degrees.max()) if block is None else block
        # Pairs of dislikes, whose negatives are not known items, may be more than these.
        n_pairs = min(problem.batch_size + longest, max(n_pairs, problem.batch_size))
        self.block = block
        self._family = family(problem, n_pairs, n_threads)
        self.batches_per_call = self._family.batches_per_call()
        n_listed = self._family.n_listed
        n_terms = n_pairs * (problem.n_terms or 1)
        if max(n_pairs + n_listed, n_terms) > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={problem.batch_size} with n_negatives={problem.n_negatives} for each "
                f"positive makes {max(n_pairs + n_listed, n_terms)} scores a batch; choose a "
                f"smaller batch_size."
            )
        self._user_occurrences = empty_occurrences(n_terms, problem.width, n_threads)
        self._item_occurrences = empty_occurrences(n_pairs + n_listed, problem.width, n_threads)
        self._draws = self._draw = None

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

    def _set_proposal(self, proposal):
        """Prepare to draw from a proposal, by a kernel with its formulas."""
        if self._draws is None or self._draws.proposal is not proposal:
            self._draws = draws_from(proposal, self.n_threads, self._problem.n_negatives)
            formulas = {**self._problem.formulas, **formulas_of(proposal)}
            kernel = specialised(self._family.draw_kernel, formulas)
            self._draw = functools.partial(self.team.run, kernel)

    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; see ``RankingTrainer``."""
        if self._problem.negatives_code == codes.NEGATIVES_DRAWN:
            self._set_proposal(proposal)
        call = Call(
            run=self.team.run,
            span=Span(self._data, first, last, self._problem.seed, self._epoch),
            draws=self._draws,
            draw=self._draw,
            proposal=proposal,
            negatives=None if negatives is None else negatives.astype(np.int32, copy=False),
            inverse_temperatures=inverse_temperatures,
            statistics=statistics,
        )
        sides = Sides(self._users, self._items, self.step(first))
        return self._family.train(call, sides, self.tables)

    def end_epoch(self):
        """Let all rows catch up on the steps that they have missed."""
        self.catch_up_tables(len(self._data.batch_starts) - 1)
        # Release the data of this epoch before those of the next one are allocated.
        self._data = None
