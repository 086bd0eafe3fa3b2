"""The training task of a factorization machine: its rows packed, its team, its scratch."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._validation import take_rows
from freqfm.backends.cpu.fm import fm_train
from freqfm.backends.cpu.fm_batch import BATCH_ROW, LINK, Objective, Rows, Scratch, Stepping
from freqfm.backends.cpu.packing import pack_rows
from freqfm.backends.cpu.team import Team

# A kernel call trains about so many weights, a tenth of a second's work, before Python may look
# whether the user has interrupted.
_WEIGHTS_PER_CALL = 50_000_000

# From so many rows on, an epoch shuffles blocks of 2^4 rows instead of rows. Neighbours share cache
# lines, which saves a quarter of the time on short rows; who is whose neighbour is drawn at random.
_BLOCKED_FROM = 1 << 14
_BLOCK_BITS = 4

# Floats of padding between the scratch of two threads: no cache line is shared.
_PADDING = 32


class TrainingRows(NamedTuple):
    """Checked rows, and which of them are trained on: they are not copied."""

    X: sparse.csr_array  #: canonical, (n_rows, n_features)
    y: np.ndarray  #: (n_rows,), as the user gave it
    target: np.ndarray  #: (n_outputs, n_rows), float32
    weight: np.ndarray  #: (n_rows,), with class weights
    trained: np.ndarray | None = None  #: the rows that are trained on, in order; None for all
    held_out: tuple | None = None  #: X, target and weight of the validation part

    @property
    def n_trained(self):
        """How many rows are trained on."""
        return self.X.shape[0] if self.trained is None else len(self.trained)

    def numbers(self):
        """Return the numbers of the rows that are trained on, in 32 bits if they fit."""
        if self.trained is None:
            n_rows = self.X.shape[0]
            narrow = n_rows <= np.iinfo(np.int32).max
            return np.arange(n_rows, dtype=np.int32 if narrow else np.int64)
        return self.trained

    def of_trained(self, values):
        """Return the values, whose last axis is that of all rows, of those that are trained on."""
        return values if self.trained is None else values[..., self.trained]

    def copied(self):
        """Return the rows that are trained on as a copy of their own."""
        if self.trained is None:
            return self
        X = take_rows(self.X, self.trained)
        y, target, weight = map(self.of_trained, (self.y, self.target, self.weight))
        return TrainingRows(X, y, target, weight, None, self.held_out)


def score_rows(kernel, X, outputs, sums_shape, n_threads):
    """Return the scores of canonical CSR rows under every output, (n_outputs, n_rows) float32.

    ``sums_shape`` is that of a thread's working memory: rows, and the length of a vector.
    """
    scores = np.empty((len(outputs), X.shape[0]), dtype=np.float32)
    n_sums, width = sums_shape
    if X.nnz * width < 100_000:
        n_threads = 1
    with Team(n_threads) as team:
        for output, out in zip(outputs, scores, strict=True):
            sums = np.empty((n_threads * n_sums, width + _PADDING), dtype=np.float32)
            team.run(kernel, X.indptr, X.indices, X.data, *output, sums, out)
    return scores


class FMTrainer:
    """Epochs over packed rows, for one or several outputs; a context manager.

    Parameters
    ----------
    model : BaseFM
        Initialised; its arrays are updated in place.
    optimizer : Optimizer
    rows : TrainingRows
    n_threads : int
    """

    _kernel = staticmethod(fm_train)

    #: What may help if training diverges, apart from a smaller learning rate.
    divergence_hint = "scale the features (and a regression target) to about 1"

    def __init__(self, model, optimizer, rows, n_threads):
        self.model = model
        self.optimizer = optimizer
        self._held_out = rows.held_out
        self._n_rows, self._n_tokens = rows.n_trained, rows.X.shape[1]
        self._block_bits = _BLOCK_BITS if model.shuffle and self._n_rows >= _BLOCKED_FROM else 0
        if self._block_bits:
            order = np.random.default_rng(model._seed).permutation(rows.numbers())
            rows = rows._replace(trained=order)
        self._n_threads = n_threads
        self._weight_sum = rows.of_trained(rows.weight).sum()
        self._batch_size = min(int(model.batch_size), self._n_rows)
        self._n_batches = -(-self._n_rows // self._batch_size)
        most = self._most_entries(rows.of_trained(np.diff(rows.X.indptr)))
        samples, entries = pack_rows(rows.X, rows.weight, rows.trained)
        samples["target"][:-1] = rows.of_trained(rows.target[0])
        # Several outputs take turns with their targets; of one nothing is kept but the samples.
        self._turns = (rows.target, rows.trained) if len(rows.target) > 1 else None
        self._rows = Rows(
            samples=samples,
            entries=entries,
            batch_size=self._batch_size,
            n_blocks=(self._n_rows >> self._block_bits) if model.shuffle else 0,
            block_bits=self._block_bits,
            seed=model._seed,
        )
        self._objective = Objective(
            loss_code=model._loss.code,
            alpha_linear=float(model.alpha_linear),
            alpha_factors=float(model.alpha_factors),
            fit_intercept=bool(model.fit_intercept),
            fit_linear=bool(model.fit_linear),
            mean_weight=float(self._weight_sum / self._n_rows),
            shares=self._penalty_shares(),
        )
        self._stepping = Stepping(
            step_code=optimizer.step_code,
            rate_code=optimizer.rate_code,
            count_code=optimizer.count_code,
            lazy=bool(optimizer.lazy),
            average=bool(optimizer.average),
            hyper=optimizer.hyper(),
        )
        entries_per_batch = max(1, (len(entries) - 1) // self._n_batches)
        weights_per_batch = entries_per_batch * (model._weights_per_token() + 8)
        self._batches_per_call = max(1, _WEIGHTS_PER_CALL // weights_per_batch)
        self._scratch = self._allocate(most)
        self._team = Team(n_threads)

    def _penalty_shares(self):
        """Return by what a token's penalty is multiplied, for each row that holds the token."""
        shares = np.ones(self._n_tokens, dtype=np.float32)
        if self.model.alpha_per == "token":
            # A token of no row has no gradient; any number will do.
            np.divide(1.0, self.model.token_counts_, out=shares, where=self.model.token_counts_ > 0)
        return shares

    def _most_entries(self, lengths):
        """Return a bound on the entries of a batch: those of the longest rows together."""
        lengths.partition(self._n_rows - self._batch_size)
        most = int(lengths[-self._batch_size :].sum())
        if most > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={self._batch_size} would put {most} entries of X into one batch; "
                f"at most {np.iinfo(np.int32).max} are possible. Choose a smaller batch_size."
            )
        return most

    def _allocate(self, most):
        """Return scratch for batches of at most ``most`` entries."""
        width, n_threads = self.model._longest_vector(), self._n_threads
        padded = width + _PADDING
        return Scratch(
            batch=np.zeros(self._batch_size, dtype=BATCH_ROW),
            sums=np.empty((self._batch_size, width), dtype=np.float32),
            heads=np.full((n_threads, self._n_tokens), -1, dtype=np.int32),
            links=np.zeros((n_threads, most + 1), dtype=LINK),
            tokens=np.zeros((n_threads, most + 1), dtype=np.int32),
            totals=np.zeros((n_threads, padded), dtype=np.float64),
            gradients=np.zeros((n_threads, padded), dtype=np.float32),
        )

    def __enter__(self):
        self._team.__enter__()
        return self

    def __exit__(self, *exception):
        self._team.__exit__(*exception)

    def run_epoch(self, epoch):
        """Train every output on every row once; return the mean loss, summed over outputs."""
        total = 0.0
        first_step = int(self.model._n_steps[0])
        outputs = zip(self.model._outputs(), self.model._optimizer_states(), strict=True)
        for k, (output, state) in enumerate(outputs):
            if self._turns:
                target, order = self._turns
                self._rows.samples["target"][:-1] = target[k] if order is None else target[k, order]
            for first in range(0, self._n_batches, self._batches_per_call):
                last = min(first + self._batches_per_call, self._n_batches)
                total += self._train(epoch, first, last, first_step + first, output, state)
        self.model._n_steps += self._n_batches
        return total / self._weight_sum

    def _train(self, epoch, first_batch, last_batch, step, output, state):
        return self._team.run(
            self._kernel,
            self._rows,
            epoch,
            first_batch,
            last_batch,
            *output,
            self._objective,
            self._stepping,
            step,
            state,
            self._scratch,
            *self._more_arguments(),
        )

    def _more_arguments(self):
        """Return what the kernel takes beyond the arguments of all."""
        return ()

    def validation_score(self):
        """Return the model's score on the validation part."""
        X, target, weight = self._held_out
        scores = self.model._score_rows(X, self._n_threads)
        if not np.isfinite(scores).all():
            raise ValueError(
                "X_val, or the part of X that early stopping sets aside, holds values so large "
                "that scores of its rows overflow float32; scale them."
            )
        return float(self.model._validation_score(target, scores, weight))

    def weights(self):
        """Return the model's arrays."""
        return [getattr(self.model, name) for name in self.model._weight_names]

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        states = [array for state in self.model._optimizer_states() for array in state]
        return [*self.weights(), self.model._n_steps, *states]

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        return {name: getattr(self.model, name).copy() for name in self.model._weight_names}

    def extra(self):
        """Return what a checkpoint keeps beside the estimator: nothing."""
        return {}

    def restore_extra(self, extra):
        """Take back what :meth:`extra` has returned."""
