"""Training of factorization machines on the CPU: packed rows, scratch, a team of threads."""

import contextlib
import math

import numpy as np

from freqfm._input.validation import check_memory
from freqfm._machine import aligned_empty, aligned_zeros, single_threaded_blas
from freqfm.backends.base import FieldVectors, FieldWeights, RankedTables, Tower, Trainer
from freqfm.backends.cpu.fm.batch import BatchRange, CSRRows, Problem, Rows, Scratch
from freqfm.backends.cpu.fm.deep import (
    N_CHUNKS,
    TILE,
    DeepScratch,
    DenseState,
    DenseWeights,
    ScoreScratch,
    Tiles,
    deepfm_score,
    deepfm_train,
)
from freqfm.backends.cpu.fm.fields import (
    FIELD_TILE,
    FieldScores,
    FieldScratch,
    FieldTile,
    PairScores,
    PairScratch,
    RowFields,
    ffm_score,
    ffm_train,
    fwfm_score,
    fwfm_train,
)
from freqfm.backends.cpu.fm.plain import RankedScratch, fm_score, fm_train, rafm_score, rafm_train
from freqfm.backends.cpu.fm.prepared import ONE_PASS_BITS, PreparedBatches, pack_rows
from freqfm.backends.cpu.team import Team

# A kernel call trains about so many weights, a hundredth of a second's work, before the team looks
# for free cores again, and Python whether the user has interrupted.
_WEIGHTS_PER_CALL = 5_000_000

# And about so many multiplications by dense weights.
_PRODUCTS_PER_CALL = 500_000_000

# Below so many weights a batch, waiting for other threads costs more than they save.
_WEIGHTS_PER_BATCH = 16_384

# Below so many weights in a call that scores rows, starting threads costs more than it saves.
_WEIGHTS_SCORED = 100_000

# A token's work beside that on its factors, in weights.
_WEIGHTS_PER_ENTRY = 8

# Floats of padding between the scratch of two threads: no cache line is shared.
PADDING = 32


def widths_of(factors):
    """Return the lengths of a token's vectors, a vector for each table."""
    if isinstance(factors, RankedTables):
        return factors.widths
    if isinstance(factors, FieldVectors):
        factors = factors.vectors
    return np.array([factors.shape[1]])


def _most_fields(lengths, factors):
    """Return a bound on the number of fields in rows of some lengths, of a machine with fields."""
    if not isinstance(factors, FieldVectors):
        return 0
    return max(1, min(int(lengths.max(initial=0)), factors.n_fields))


def _row_fields(n_entries, n_rows, most, factors, n_threads):
    """Return room for the fields of rows, at most ``most`` in each."""
    n_fields, width = factors.n_fields, factors.vectors.shape[1] // factors.n_fields
    place_of_field = aligned_zeros((n_threads, n_fields + PADDING), np.int32)
    place_of_field[...] = -1
    return RowFields(
        whole=aligned_zeros((n_rows,), np.bool_),
        single=aligned_zeros((n_rows,), np.bool_),
        places=aligned_zeros((n_entries,), np.int32),
        n_places=aligned_zeros((n_rows,), np.int32),
        fields=aligned_zeros((n_rows, most), np.int32),
        n_entries=aligned_zeros((n_rows, most), np.int32),
        place_of_field=place_of_field,
        vectors=aligned_zeros((n_threads, most * width + PADDING)),
    )


def _most_entries(lengths, batch_size):
    """Return a bound on the entries of a batch: those of the longest rows together."""
    lengths.partition(len(lengths) - batch_size)
    most = int(lengths[-batch_size:].sum())
    if most > np.iinfo(np.int32).max:
        raise ValueError(
            f"batch_size={batch_size} would put {most} entries of X into one batch; "
            f"at most {np.iinfo(np.int32).max} are possible. Choose a smaller batch_size."
        )
    return most


def _pair_scores(lengths, factors, n_threads):
    """Return working memory for the scores of rows of some lengths."""
    most, longest = _most_fields(lengths, factors), int(lengths.max(initial=0))
    width = factors.vectors.shape[1] // factors.n_fields
    return PairScores(
        sums=aligned_zeros((n_threads, most, most * width + PADDING)),
        rows=_row_fields(n_threads * longest, n_threads, most, factors, n_threads),
    )


def _values(tower, size, n_levels):
    """Return working memory of tiles of rows, as wide as the tower, for ``size`` threads."""
    widest = -(-int(tower.widths.max()) // PADDING) * PADDING
    return aligned_zeros((size, n_levels, TILE, widest))


def _kernels_of(factors):
    """Return the kernels that train and that score a machine."""
    if isinstance(factors, RankedTables):
        return rafm_train, rafm_score
    if isinstance(factors, FieldVectors):
        return ffm_train, ffm_score
    return fm_train, fm_score


def _field_tiles(weights, size):
    """Return working memory of tiles of rows of a machine with FieldWeights, for ``size`` threads.

    Beside it, return the shape of T for a tile.
    """
    width, n_fields = weights.factors.shape[1], weights.dense.n_fields
    # Kernels take two fields at first and then four, so that there are as many and some of zeros.
    n_fields += -(n_fields - 2) % 4
    n = FIELD_TILE * width
    tiles = FieldTile(
        matrix=aligned_zeros((size, n_fields, n_fields)),
        own=aligned_zeros((size, n_fields)),
        sums=aligned_zeros((size, n_fields, n)),
        reach=aligned_zeros((size, FIELD_TILE, n_fields)),
        within=aligned_zeros((size, FIELD_TILE, n_fields)),
        repeated=np.zeros((size, FIELD_TILE), dtype=bool),
        lines=aligned_zeros((size, 3, n)),
        totals=aligned_zeros((size, 2, FIELD_TILE)),
        products=aligned_zeros((size, n_fields, n_fields)),
        by_own=aligned_zeros((size, n_fields)),
    )
    return tiles, (n_fields, n)


def _blas_of(dense):
    """Return a context manager in which threads may use a tower."""
    return single_threaded_blas() if isinstance(dense, Tower) else contextlib.nullcontext()


def fm_scores(X, weights, n_threads):
    """Return the scores of rows under every output, see ``Backend``."""
    factors, dense = weights[0].factors, weights[0].dense
    kernel = _kernels_of(factors)[1]
    width = int(widths_of(factors).max())
    scores = np.empty((len(weights), X.shape[0]), dtype=np.float32)
    rows = CSRRows(X.indptr, X.indices, X.data)
    n_threads = 1 if X.nnz * width < _WEIGHTS_SCORED else n_threads
    scratch = aligned_zeros((4, n_threads, width + PADDING))
    if isinstance(factors, FieldVectors):
        scratch = _pair_scores(np.diff(X.indptr), factors, n_threads)
    elif isinstance(dense, FieldWeights):
        kernel, (tiles, shape) = fwfm_score, _field_tiles(weights[0], n_threads)
        scratch = FieldScores(tiles, aligned_zeros((n_threads, *shape)))
    elif dense is not None:
        kernel, n_levels = deepfm_score, len(dense.widths)
        values = _values(dense, n_threads, n_levels)
        scratch = ScoreScratch(scratch, values, np.zeros(n_levels, dtype=np.float32))
    with _blas_of(dense), Team(n_threads) as team:
        for output, out in zip(weights, scores, strict=True):
            team.run(kernel, rows, output, scratch, out)
    return scores


def _dense_state(weights, state, of_dense, training):
    """Return the DenseState of an output."""
    table, first, second = (a.reshape(1, -1) for a in (weights.dense.weights, *of_dense))
    rule, dropouts = training.rule, training.dropouts
    return DenseState(state, DenseWeights(table, training.penalties, first, second, rule, dropouts))


class FMEpochs(Trainer):
    """Epochs over packed rows, for one or several outputs; see ``Backend.fm_trainer``.

    Parameters
    ----------
    problem : FMProblem
    n_threads : int
        The most to use; small batches take one.
    """

    def __init__(self, problem, n_threads):
        self._weights, self._n_threads = problem.weights, n_threads
        self._kernel = _kernels_of(self._weights[0].factors)[0]
        states, formulas, dense = problem.states, problem.formulas, problem.dense
        self._of_fields = isinstance(problem.weights[0].dense, FieldWeights)
        if dense is not None:
            self._kernel = fwfm_train if self._of_fields else deepfm_train
            formulas = {**formulas, **dense.formulas}
            each = zip(problem.weights, states, dense.states, strict=True)
            states = [_dense_state(*of_output, dense) for of_output in each]
        self._outputs = list(zip(problem.weights, states, strict=True))
        trained = slice(None) if problem.rows is None else problem.rows
        self._batch_size = problem.batch_size
        lengths = np.diff(problem.X.indptr)[trained]
        self._most_fields = _most_fields(lengths, self._weights[0].factors)
        most = _most_entries(lengths, self._batch_size)
        del lengths  # before memory is needed most
        samples, entries = pack_rows(problem.X, problem.weight, problem.rows)
        samples["target"][:-1] = problem.target[0, trained]
        self._n_batches = -(-(len(samples) - 1) // self._batch_size)
        # The targets of several outputs are written in turn; those of one are in the samples.
        self._turns = (problem.target, trained) if len(self._outputs) > 1 else None
        rows = Rows(
            samples=samples,
            entries=entries,
            batch_size=self._batch_size,
            n_blocks=problem.n_blocks,
            block_bits=problem.block_bits,
            seed=problem.seed,
        )
        self._problem = Problem(rows, problem.objective, problem.rule, problem.ranked)
        widths = widths_of(problem.weights[0].factors)
        per_entry = int(widths.sum()) + _WEIGHTS_PER_ENTRY
        per_batch = max(1, (len(entries) - 1) // self._n_batches) * per_entry
        self._batches_per_call = max(1, _WEIGHTS_PER_CALL // per_batch)
        if dense is not None:
            products = 3 * len(problem.weights[0].dense.weights) * self._batch_size
            products *= widths[0] if self._of_fields else 1
            most_batches = max(1, _PRODUCTS_PER_CALL // products)
            self._batches_per_call = min(self._batches_per_call, most_batches)
        mean_length = problem.X.nnz / problem.X.shape[0]
        small = self._batch_size * mean_length * per_entry < _WEIGHTS_PER_BATCH
        n_threads = 1 if small else n_threads
        self._scratch = self._make_scratch(most, widths, problem.X.shape[1], n_threads)
        self._team = Team(n_threads, formulas)

    def _make_scratch(self, most, widths, n_tokens, n_threads):
        """Return scratch for batches of at most ``most`` entries."""
        shared = self._shared_scratch(most, widths, n_tokens, n_threads)
        tower = self._weights[0].dense
        if self._of_fields:
            tiles, (n_fields, n) = _field_tiles(self._weights[0], n_threads)
            return FieldScratch(
                shared=shared,
                tiles=tiles,
                directions=aligned_zeros((n_fields, -(-self._batch_size // FIELD_TILE) * n)),
                by_pair=aligned_zeros((N_CHUNKS + 1, len(tower.weights))),
            )
        if tower is not None:
            columns = int(tower.widths[0] + widths[0])
            return DeepScratch(
                shared=shared,
                tiles=Tiles(*(_values(tower, n_threads, n) for n in (len(tower.widths), 2))),
                gradients=aligned_zeros((self._batch_size, columns)),
                by_tower=aligned_zeros((N_CHUNKS + 1, len(tower.weights))),
            )
        factors = self._weights[0].factors
        if isinstance(factors, FieldVectors):
            of_fields = n_threads, factors.n_fields + PADDING
            return PairScratch(
                shared=shared,
                rows=_row_fields(most, self._batch_size, self._most_fields, factors, n_threads),
                weights=aligned_zeros(of_fields, np.float64),
                held=aligned_zeros(of_fields, np.int32),
            )
        if self._problem.ranked is None:
            return shared
        of_levels = len(widths), self._batch_size
        return RankedScratch(
            shared=shared,
            free_sums=np.zeros_like(shared.sums),
            free_squares=np.zeros_like(shared.squares),
            scores=aligned_zeros(of_levels),
            derivatives=aligned_zeros(of_levels, np.float64),
        )

    def _shared_scratch(self, most, widths, n_tokens, n_threads):
        """Return the Scratch that all machines need."""
        width, n_rows, factors = int(widths.max()), self._batch_size, self._weights[0].factors
        sums = len(widths), n_rows, width
        if self._most_fields:
            sums = self._most_fields, n_rows, self._most_fields * width // factors.n_fields
            check_memory(
                math.prod(sums) // 2,
                f"The sums for each pair of {self._most_fields} fields in batches of {n_rows} rows",
                "Choose a smaller batch_size, or fewer fields.",
            )
        # All tokens of the batch are listed, or all that there are.
        listed = min(most, n_tokens) if self._problem.rule.lazy else n_tokens
        prepared = PreparedBatches(
            numbers=aligned_empty((n_threads, n_rows), np.int64),
            targets=aligned_empty((n_threads, n_rows)),
            weights=aligned_empty((n_threads, n_rows)),
            row_starts=aligned_empty((n_threads, n_rows + 1), np.int32),
            entry_tokens=aligned_zeros((n_threads, most + 1), np.int32),
            entry_values=aligned_empty((n_threads, most + 1)),
            entry_rows=aligned_empty((n_threads, most + 1), np.int32),
            rows=aligned_empty((n_threads, most + 1), np.int32),
            values=aligned_empty((n_threads, most + 1)),
            tokens=aligned_empty((n_threads, listed), np.int32),
            starts=aligned_empty((n_threads, listed + 1), np.int32),
            n_tokens=aligned_empty((n_threads, PADDING), np.int64),
            keys=aligned_empty((n_threads, 2, most + 1), np.uint64),
            counts=aligned_empty((n_threads, 1 << ONE_PASS_BITS), np.int32),
        )
        return Scratch(
            prepared=prepared,
            scores=aligned_zeros((n_rows,)),
            derivatives=aligned_zeros((n_rows,), np.float64),
            losses=aligned_zeros((n_rows,), np.float64),
            curvatures=aligned_zeros((n_rows,), np.float64),
            penalties=aligned_zeros((listed,), np.float64),
            rates=aligned_zeros((listed,)),
            sums=aligned_zeros(sums),
            squares=aligned_zeros((n_threads, width + PADDING)),
            totals=aligned_zeros((n_threads, width + PADDING), np.float64),
            gradients=aligned_zeros((n_threads, width + PADDING)),
        )

    def _contexts(self):
        return [_blas_of(self._weights[0].dense), self._team]

    def run_epoch(self, epoch, n_steps, share=1.0):
        """Train every output on every row once; return the loss of all, see ``Backend``."""
        loss = 0.0
        for k, (weights, state) in enumerate(self._outputs):
            if self._turns:
                target, trained = self._turns
                self._problem.rows.samples["target"][:-1] = target[k, trained]
            of_output = 0.0
            for first in range(0, self._n_batches, self._batches_per_call):
                last = min(first + self._batches_per_call, self._n_batches)
                span = BatchRange(epoch, first, last, n_steps + first, share, of_output)
                of_output = self._team.run(
                    self._kernel, self._problem, span, weights, state, self._scratch
                )
            loss += of_output
        return loss

    def scores(self, rows):
        """Return the scores of rows under every output."""
        return fm_scores(rows, self._weights, self._n_threads)
