"""Training of factorization machines with towers on the CPU: working memory and threads."""

import contextlib

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._threads import single_threaded_blas
from freqfm.backends.cpu.fm.batch import CSRRows
from freqfm.backends.cpu.fm.deep import (
    N_CHUNKS,
    TILE,
    DeepScratch,
    DeepState,
    Dropout,
    Layers,
    Model,
    Tiles,
    deepfm_score,
    deepfm_train,
)
from freqfm.backends.cpu.fm.trainer import PADDING, FMEpochs, enough_threads, sums_of_rows
from freqfm.backends.cpu.team import Team

# A kernel call makes about so many multiplications by the towers' weights, a tenth of a second's
# work.
_PRODUCTS_PER_CALL = 500_000_000


def _values(tower, size, n_levels):
    """Return working memory of tiles of rows, as wide as the tower, for ``size`` threads."""
    widest = -(-int(tower.widths.max()) // PADDING) * PADDING
    return aligned_zeros((size, n_levels, TILE, widest))


def deepfm_scores(X, weights, towers, n_threads):
    """Return the scores of rows under every output, see ``Backend.deepfm_scores``."""
    scores = np.empty((len(weights), X.shape[0]), dtype=np.float32)
    rows, width = CSRRows(X.indptr, X.indices, X.data), weights[0].factors.shape[1]
    n_threads, n_levels = enough_threads(X, width, n_threads), len(towers[0].widths)
    values, sums = _values(towers[0], n_threads, n_levels), sums_of_rows(2, n_threads, width)
    dropout = Dropout(np.zeros(n_levels, dtype=np.float32), np.uint64(0), 0)
    with single_threaded_blas(), Team(n_threads) as team:
        for output, tower, out in zip(weights, towers, scores, strict=True):
            team.run(deepfm_score, rows, Model(output, tower, dropout), values, sums, out)
    return scores


class DeepFMEpochs(FMEpochs):
    """Epochs over packed rows; see ``FMEpochs``.

    Parameters
    ----------
    problem : FMProblem
    training : TowerTraining
    n_threads : int
        The most to use; small batches take one.
    """

    def __init__(self, problem, training, n_threads):
        self._towers, self._tower = training.towers, training.towers[0]
        formulas = {**problem.formulas, **training.formulas}
        super().__init__(problem._replace(formulas=formulas), n_threads)
        self._kernel = deepfm_train
        self._outputs = [
            (weights, DeepState(state, _layers(*of_tower, training)))
            for (weights, state), of_tower in zip(
                self._outputs, zip(training.towers, training.states, strict=True), strict=True
            )
        ]
        products = 3 * len(self._tower.weights) * self._batch_size
        most = max(1, _PRODUCTS_PER_CALL // products)
        self._batches_per_call = min(self._batches_per_call, most)

    def _make_scratch(self, most, widths, n_tokens, n_threads):
        """Return scratch for batches of at most ``most`` entries."""
        tower = self._tower
        columns = int(tower.widths[0]) if len(tower.fields) else 2 * int(widths[0])
        return DeepScratch(
            shared=self._shared_scratch(most, widths, n_tokens, n_threads),
            tiles=Tiles(_values(tower, n_threads, len(tower.widths)), _values(tower, n_threads, 2)),
            gradients=aligned_zeros((self._batch_size, columns)),
            by_tower=aligned_zeros((N_CHUNKS + 1, len(tower.weights))),
        )

    def scores(self, rows):
        """Return the scores of rows under every output."""
        return deepfm_scores(rows, self._weights, self._towers, self._n_threads)

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(single_threaded_blas())
            stack.enter_context(self._team)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._entered.__exit__(*exception)


def _layers(tower, state, training):
    """Return the Layers of an output."""
    first, second = (array.reshape(1, -1) for array in state)
    table = tower.weights.reshape(1, -1)
    return Layers(tower, table, training.penalties, first, second, training.rule, training.dropouts)
