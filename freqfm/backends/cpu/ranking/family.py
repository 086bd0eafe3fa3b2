"""Base class of families of ranking losses: each has a subclass in the file of its kernel."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from freqfm.backends.cpu.ranking.drawing import draw_for_pairs
from freqfm.backends.cpu.tables import Span
from freqfm.formulas import codes
from freqfm.formulas.sampling_laws import Draws

# A kernel call does about this many multiplications, a tenth of a second of work, before Python can
# handle an interrupt.
_WORK_PER_CALL = 5_000_000_000

# At most this many negatives are drawn at a time.
_DRAWS = 1 << 23


def numbers_of_rows(names, n):
    """Return float64 numbers for each of ``n`` rows, by name; those of a row are contiguous."""
    # A column of one row would pass for contiguous, and kernels would be compiled again for it.
    numbers = np.zeros((max(n, 2), len(names)))
    return dict(zip(names, numbers.T, strict=True))


class Call(NamedTuple):
    """The input of one call of training; see ``RankingTrainer.train``."""

    run: Callable  #: ``Team.run``
    span: Span
    draws: Draws | None  #: if the trainer draws negatives itself
    draw: Callable | None  #: runs the family's ``draw_kernel``
    proposal: tuple | None  #: see ``formulas.sampling_laws``
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
    draw_kernel : callable
        Draws the negatives of a batch, if the trainer draws them itself.
    """

    n_listed, draw_kernel = 0, staticmethod(draw_for_pairs)

    def __init__(self, problem, n_pairs, size):
        self.problem, self.n_pairs, self.size = problem, n_pairs, size
        self.drawn = problem.negatives_code == codes.NEGATIVES_DRAWN

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    @staticmethod
    def formulas_of(problem):
        """Return what is replaced in kernels, see ``jit.specialised``."""
        return problem.formulas

    @classmethod
    def most_threads(cls, problem, degrees):
        """Return for how many threads a batch has work; None if for any number.

        ``degrees`` are how many positives each user has.
        """
        return None

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
