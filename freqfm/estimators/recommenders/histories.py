"""What recommenders share in fitting: interactions checked, held out, and kept as histories."""

from abc import abstractmethod

import numpy as np
from scipy import sparse

from freqfm._signals import release_signals
from freqfm._validation import (
    LearnedArrays,
    as_array,
    as_kernel_array,
    canonical_csr,
    count_columns,
    count_threads,
    take_rows,
)
from freqfm.estimators.recommenders.base import BaseRecommender, unit_rows
from freqfm.estimators.training import FitCallbacks, Phase, check_progress, refit, train
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_interactions

__all__ = ["HistoryFit", "grow_state", "level_rows", "new_state", "pad_rows", "unit_rows"]

# Early stopping looks at no more users than this, the same ones in every epoch.
_VALIDATION_USERS = 5000

# Up to so many interactions early_stopping="auto" sets some aside: beyond, models hardly overfit.
_AUTO_EARLY_STOPPING = 200_000


# So many epochs a model of all interactions is trained at least: where the first few already rank
# what is held out as well as can be, chance decides which of them is best.
_LEAST_EPOCHS = 5


class HistoryFit(BaseRecommender):
    """A recommender that keeps the histories it was fitted on."""

    _writes_checkpoints = True

    def _validate_interactions(self, X, reset, partial):
        shape = X.shape if sparse.issparse(X) else as_array("X", X).shape
        grown = partial and not reset and len(shape) == 2 and shape[1] > self.n_features_in_
        X = self._validate_history(X, reset=reset or grown)
        if not X.nnz:
            raise ValueError(
                f"X of shape {X.shape} holds no interaction: there is nothing to learn from."
            )
        return X

    def _hold_out(self, X):
        """Return what to train on, and what early stopping watches or None."""
        wanted = self.early_stopping
        if wanted == "auto":
            wanted = X.nnz < _AUTO_EARLY_STOPPING
        if not wanted:
            return X, None
        train, held_out = holdout_interactions(X, self.validation_fraction, random_state=self._seed)
        train, held_out = canonical_csr(train), canonical_csr(held_out)
        if held_out.nnz:
            return train, held_out
        if self.early_stopping == "auto":
            return X, None
        raise ValueError(
            f"early_stopping=True with validation_fraction={self.validation_fraction} holds "
            f"out nothing: no user has interactions enough. Set early_stopping=False."
        )

    def _scorer(self, X, held_out):
        """Return a function that gives the NDCG of held-out interactions of known users.

        ``X`` holds the histories that are trained on.
        """
        users = np.flatnonzero(np.diff(held_out.indptr))
        if len(users) > _VALIDATION_USERS:
            generator = np.random.default_rng(self._seed)
            users = np.sort(generator.choice(users, _VALIDATION_USERS, replace=False))
        relevant, history = take_rows(held_out, users), take_rows(X, users)
        k, n_threads = int(self.n_recommendations), count_threads(self.n_jobs)

        def score():
            queries, items = self._vectors_of(users, history), self._item_vectors()
            ranked, _ = top_k(queries, items, k, exclude=history, n_threads=n_threads)
            return float(ndcg_at_k(relevant, ranked))

        return score

    @abstractmethod
    def _vectors_of(self, users, X):
        """Return the vectors of users seen in fit, whose histories are the rows of ``X``."""

    def _unfinished_fit(self, partial):
        """Return the state of a fit to go on with, from a checkpoint; ``partial_fit`` drops it."""
        unfinished = self.__dict__.pop("_unfinished", None)
        return None if partial else unfinished

    def _callbacks(self, X, n_epochs, unfinished):
        return FitCallbacks(self, {"X": X, "y": None}, {"X": X}, n_epochs, unfinished)

    def _train_phases(self, task, n_epochs, held_out, trial, callbacks, begin_refit=None):
        """Train ``task``, unless it is None; then what ``begin_refit`` returns, see ``refit``."""
        phase = Phase(n_epochs)
        if held_out is not None:
            phase = Phase(n_epochs, self.n_iter_no_change, "ndcg")
        if task is not None:
            train(task, phase, trial, callbacks)
        if begin_refit is not None:
            least = min(n_epochs, _LEAST_EPOCHS)
            refit(self, begin_refit, callbacks, task is None, least)
        if callbacks:
            with release_signals():
                callbacks.end_fit()

    def _remember_histories(self, X, more, weights=False):
        """Keep who has which items, and with what weight; with ``more``, beside what is known.

        Weights are kept if they are wanted and not all one.
        """
        if more:
            known = self._seen_weights
            old = sparse.csr_array(
                (
                    known if len(known) else np.ones(len(self._seen_indices), np.float32),
                    self._seen_indices,
                    self._seen_indptr,
                ),
                shape=(len(self._seen_indptr) - 1, len(self.item_counts_)),
            )
            old.resize(X.shape)
            X = canonical_csr(old + X)
        self._seen_indptr, self._seen_indices = X.indptr.copy(), X.indices.copy()
        graded = weights and bool((X.data != 1).any())
        self._seen_weights = X.data.copy() if graded else np.zeros(0, dtype=np.float32)
        self.item_counts_ = count_columns(X)
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in self._optimizer_arrays())

    def _check_histories(self):
        """Raise unless the model can be trained further: all histories, and small arrays too."""
        learned, n_seen = self._check_learned(), len(self._seen_indices)
        learned.indices("_seen_indptr", self._seen_indptr, n_seen + 1)
        learned.require((np.diff(self._seen_indptr) >= 0).all(), "_seen_indptr", "falls")
        learned.indices("_seen_indices", self._seen_indices, self.n_features_in_)
        n_rows = len(self._inverse_temperatures)
        for name, shape in (("_temperature_state", (n_rows, 2)), ("_statistics", (n_rows, 3))):
            learned.array(name, shape)
        check_progress(learned)
        learned.array("_codewords", (None, None))
        return learned

    def _check_states(self, axes):
        """Raise unless kernels can train on with the optimizer's state."""
        learned = LearnedArrays(self)
        states = learned.get("_states")
        for name, table in self._tables().items():
            fits = isinstance(states, dict) and name in states
            learned.require(fits, "_states", f"has no {name!r}")
            width = table.shape[1] if table.ndim == 2 else 1
            shapes = axes.optimizer.state_shapes(len(table), width)
            learned.arrays(
                f"_states[{name!r}]",
                states[name],
                {
                    "per_row": shapes["per_row"],
                    "first": shapes["factors_first"],
                    "second": shapes["factors_second"],
                },
            )

    def _optimizer_arrays(self):
        """Return the arrays of the optimizer's state."""
        return [array for state in self._states.values() for array in state.values()]


def pad_rows(X, n_rows):
    """Return a canonical matrix with empty rows at the end, so that it has at least ``n_rows``."""
    missing = n_rows - X.shape[0]
    if missing <= 0:
        return X
    indptr = np.concatenate([X.indptr, np.full(missing, X.indptr[-1])])
    return canonical_csr(sparse.csr_array((X.data, X.indices, indptr), shape=(n_rows, X.shape[1])))


def level_rows(indptr, weights):
    """Return weights of rows, scaled if their squares could leave float32; only shares matter.

    The factors are powers of two, one for each row, so that no bit of a share changes.
    """
    if not len(weights) or (float(weights.min()) > 1e-9 and float(weights.max()) < 1e9):
        return weights
    lengths = np.diff(indptr)
    filled = lengths > 0
    _, exponents = np.frexp(np.maximum.reduceat(weights, indptr[:-1][filled]))
    return np.ldexp(weights, -np.repeat(exponents, lengths[filled]))


def new_state(optimizer, counts, width):
    """Return the optimizer's arrays for the rows of a table, by the names kernels know."""
    state = optimizer.init_state(len(counts), int(width), np.maximum(counts, 1))
    return {
        "per_row": state.per_row,
        "first": state.factors_first,
        "second": state.factors_second,
    }


def grow_state(old, new):
    """Return an optimizer's arrays with rows at the end; arrays of no use are empty."""
    grown = {}
    for name, rows in new.items():
        parts = [part for part in (old[name], rows) if part.size]
        grown[name] = as_kernel_array(np.concatenate(parts)) if parts else rows
    return grown
