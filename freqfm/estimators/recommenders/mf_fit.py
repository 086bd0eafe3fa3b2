"""Fitting a matrix factorization: preparing, growing and training its arrays."""

import numpy as np

from freqfm._signals import release_signals
from freqfm._validation import (
    LearnedArrays,
    as_kernel_array,
    canonical_csr,
    check_memory,
    count_columns,
    count_threads,
    draw_seed,
    take_rows,
)
from freqfm.estimators.recommenders.histories import HistoryFit, grow_state, new_state, pad_rows
from freqfm.estimators.recommenders.mf_components import rank_by_cosine, resolve_axes
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.recommenders.mf_users import (
    choose_fold_in_negatives,
    fold_in_directions,
    typical_length,
)
from freqfm.estimators.training import attempt
from freqfm.initializers import INITIALIZERS
from freqfm.losses import RANKING_LOSSES
from freqfm.optimizers import OPTIMIZERS
from freqfm.samplers import SAMPLERS, Uniform
from freqfm.temperatures import TEMPERATURES

__all__ = ["MFFit"]


# Below so many multiplications a batch, meeting costs more than threads save.
_WORTH_A_TEAM = 20_000


class MFFit(HistoryFit):
    """What fitting an :class:`freqfm.MFRecommender` takes."""

    _axes = {
        "loss": RANKING_LOSSES,
        "optimizer": OPTIMIZERS,
        "temperature": TEMPERATURES,
        "negative_sampler": {"auto": Uniform, **SAMPLERS},
        "init": INITIALIZERS,
    }

    def _train(self, X, reset, partial):
        with attempt(self) as trial:
            unfinished = self._unfinished_fit(partial)
            reset = reset and unfinished is None
            with release_signals():
                if not reset:
                    self._check_histories()
                X, axes = self._prepare(X, reset, partial, unfinished)
                train_part, held_out = (X, None) if partial else self._hold_out(X)
                if reset:
                    self._init_model(train_part, axes)
                elif unfinished is None:
                    self._prepare_to_continue(train_part, axes, partial)
                else:
                    self._check_states(axes)
                # What is held out is known all the same: it is not to be recommended.
                self._remember(X, axes, reset, partial)
                task = self._new_task(axes, train_part, held_out)
                n_epochs = 1 if partial else int(self.max_iter or axes.loss.max_iter)
                callbacks = None if partial else self._callbacks(X, n_epochs, unfinished)
            self._train_phases(task, n_epochs, held_out, trial, callbacks)
        return self

    def _prepare(self, X, reset, partial, unfinished=None):
        """Check what the user gave; return it, and the components of the fit."""
        X = self._validate_interactions(X, reset, partial)
        n_users = 0 if reset else len(self.user_factors_)
        if reset:
            self._check_size(X.shape)
            self._seed = draw_seed(self.random_state)
            self._n_known = 0
        elif unfinished is None:
            self._n_known = len(self._seen_indices)
        shape = max(X.shape[0], n_users), X.shape[1]
        return X, resolve_axes(self, X.nnz, shape, max(X.nnz, self._n_known))

    def _check_size(self, shape):
        """Raise if the model cannot fit into memory."""
        check_memory(
            sum(shape) * int(self.n_components),
            f"n_components={self.n_components} for {shape[0]} users and {shape[1]} items",
            "Take fewer components, or number users and items without gaps.",
        )

    def _new_task(self, axes, X, held_out):
        X = pad_rows(X, len(self.user_factors_))
        n_known = len(self._seen_indices) - (0 if held_out is None else held_out.nnz)
        score = None if held_out is None else self._scorer(X, held_out)
        task = MFTrainer(self, axes, X, score, self._n_threads(axes), n_known)
        choose_fold_in_negatives(self, axes, task.constant, np.random.default_rng([self._seed, 2]))
        return task

    # The model's arrays.

    def _tables(self):
        """Return the arrays that gradients move, by name."""
        names = ("user_factors", "item_factors", "user_margins", "item_margins")
        return {name: getattr(self, f"{name}_") for name in names if hasattr(self, f"{name}_")}

    def _draw(self, axes, side, counts, first=0):
        """Return rows for tokens of the given counts, a stream of random numbers for each side."""
        initializer = axes.initializer.of_side(side)
        generator = np.random.default_rng([self._seed, side == "item", first])
        return initializer.table((len(counts), int(self.n_components)), generator, counts)

    def _init_model(self, X, axes):
        counts = {"user": np.diff(X.indptr), "item": count_columns(X)}
        for name in ("user_margins_", "item_margins_"):
            self.__dict__.pop(name, None)
        self._states = {}
        for side, count in counts.items():
            setattr(self, f"{side}_factors_", self._draw(axes, side, count))
            self._states[f"{side}_factors"] = new_state(
                axes.optimizer, count, int(self.n_components)
            )
            if getattr(axes.loss, "margins", False):
                setattr(self, f"{side}_margins_", self._draw_margins(side, len(count)))
                self._states[f"{side}_margins"] = new_state(axes.optimizer, count, 1)
        n_users = X.shape[0]
        self._inverse_temperatures = np.ones((n_users, 2), dtype=np.float32)
        self._temperature_state = np.zeros((n_users, 2))
        self._statistics = np.zeros((n_users, 3))
        self._codewords = np.zeros((0, 1), dtype=np.float32)
        self._n_steps = np.zeros(1, dtype=np.int64)
        self._optimizer_name = type(axes.optimizer).__name__
        self._loss_name = type(axes.loss).__name__
        self.loss_curve_ = np.zeros(0)
        self.validation_scores_ = np.zeros(0)
        self.n_iter_ = 0

    def _draw_margins(self, side, n):
        """Return starting margins as of an (n, 1) table by Glorot's normal rule, within [0, 1]."""
        generator = np.random.default_rng([self._seed, side == "item", 1 << 32])
        margins = np.sqrt(2 / (n + 1)) * generator.standard_normal(n)
        return np.clip(margins, 0, 1).astype(np.float32)

    def _prepare_to_continue(self, X, axes, partial):
        """Prepare the model to be trained further, with new rows for new users and items."""
        for attribute, now in (("_optimizer_name", axes.optimizer), ("_loss_name", axes.loss)):
            if type(now).__name__ != getattr(self, attribute):
                raise ValueError(
                    f"{now!r} differs from {getattr(self, attribute)}, with which the model to "
                    f"continue was trained; set it back, or fit anew with warm_start=False."
                )
        self._check_states(axes)
        if self.user_factors_.shape[1] != self.n_components:
            raise ValueError(
                f"n_components={self.n_components} differs from the {self.user_factors_.shape[1]} "
                f"of the model to continue; set it back, or fit anew with warm_start=False."
            )
        if not partial and X.shape[0] != len(self.user_factors_):
            raise ValueError(
                f"X has {X.shape[0]} rows, but the model to continue has {len(self.user_factors_)} "
                f"users. Use partial_fit for new users, or fit anew with warm_start=False."
            )
        counts = {"user": np.diff(X.indptr), "item": count_columns(X)}
        folded = self._fold_in_new_users(X)
        states = {}
        for side, count in counts.items():
            known = len(getattr(self, f"{side}_factors_"))
            new = count[known:]
            for kind in ("factors", "margins"):
                name = f"{side}_{kind}_"
                if not hasattr(self, name):
                    continue
                if kind == "factors":
                    rows, width = self._draw(axes, side, new, known), int(self.n_components)
                    if side == "user":
                        # Who has no known item stays where it was drawn.
                        placed = folded.any(axis=1)
                        rows[placed] = folded[placed]
                else:
                    rows, width = self._draw_margins(side, len(new)), 1
                grown = np.concatenate([getattr(self, name), rows])
                setattr(self, name, as_kernel_array(grown))
                states[f"{side}_{kind}"] = grow_state(
                    self._states[f"{side}_{kind}"], new_state(axes.optimizer, new, width)
                )
        self._states = states
        n_new = max(0, X.shape[0] - len(self._inverse_temperatures))
        mean = self._inverse_temperatures.mean(axis=0, keepdims=True)
        self._inverse_temperatures = as_kernel_array(
            np.concatenate([self._inverse_temperatures, np.repeat(mean, n_new, 0)])
        )
        for name, width in (("_temperature_state", 2), ("_statistics", 3)):
            old = getattr(self, name)
            grown = np.concatenate([old, np.zeros((n_new, width))])
            setattr(self, name, as_kernel_array(grown, np.float64))
        self._n_steps = as_kernel_array(self._n_steps, np.int64).copy()

    def _fold_in_new_users(self, X):
        """Return where users beyond those of the model start, at the length of trained ones.

        By items that the model knows; rows without any are zeros.
        """
        new = np.arange(len(self.user_factors_), X.shape[0])
        history = take_rows(X, new)
        history.resize(len(new), len(self.item_factors_))
        directions = fold_in_directions(self, canonical_csr(history), count_threads(self.n_jobs))
        return np.float32(typical_length(self)) * directions

    def _check_states(self, axes):
        """Raise unless kernels can train on with the optimizer's state, and with margins."""
        learned = LearnedArrays(self)
        sides = ("user", "item") if getattr(axes.loss, "margins", False) else ()
        for side in sides:
            learned.array(f"{side}_margins_", (len(getattr(self, f"{side}_factors_")),))
        super()._check_states(axes)

    def _remember(self, X, axes, reset, partial):
        """Keep what recommending needs: histories, counts, and how to rank."""
        self._remember_histories(pad_rows(X, len(self.user_factors_)), partial and not reset)
        self._rank_by_cosine = rank_by_cosine(self, axes)

    def _n_threads(self, axes):
        work = axes.batch_size * (axes.n_negatives + 8) * int(self.n_components)
        return count_threads(self.n_jobs) if work >= _WORTH_A_TEAM else 1
