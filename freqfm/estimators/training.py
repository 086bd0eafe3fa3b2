"""The epoch loop that every estimator trains in: stopping, restoring, reporting, callbacks."""

import contextlib
import time
from numbers import Integral
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from freqfm._jit import announced_compilation
from freqfm._signals import hold_signals, release_signals
from freqfm._warnings import warn_user
from freqfm.callbacks import Checkpoint
from freqfm.callbacks._checkpoint import check_fingerprint, fingerprint
from freqfm.exceptions import DivergenceError

try:  # scikit-learn 1.9 and later
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:
        """Stand-in for scikit-learn before 1.9, with which :class:`Checkpoint` works alone."""

        def set_callbacks(self, *callbacks):
            """Set the callbacks of ``fit``.

            Parameters
            ----------
            *callbacks : Checkpoint
                None removes those set before.

            Returns
            -------
            self : object
            """
            for callback in callbacks:
                if not isinstance(callback, Checkpoint):
                    raise TypeError(
                        f"{type(callback).__name__} is a callback of scikit-learn 1.9 or later; "
                        f"with this version only freqfm.callbacks.Checkpoint can be set."
                    )
            self.__dict__.pop("_skl_callbacks", None)
            if callbacks:
                self._skl_callbacks = list(callbacks)
            return self

    def with_callbacks(method):
        """Return the method as it is: there are no callbacks to tear down."""
        return method


__all__ = [
    "CallbackSupportMixin",
    "EpochLoop",
    "FitCallbacks",
    "Phase",
    "attempt",
    "check_progress",
    "refit",
    "train",
    "with_callbacks",
]


# Weights are squared and summed in float32; those of larger vectors would overflow.
_LARGEST = 1e18

# What tells of the epochs in which the best one was looked for.
_OF_SEARCH = ("loss_curve_", "validation_scores_", "n_iter_")

# What scikit-learn keeps on the estimator for the time of a call of fit.
_OF_CALLBACKS = ("_callback_fit_ctx", "_skl_callbacks_to_teardown")


class Attempt:
    """A call that trains; whether it has trained for a whole epoch."""

    kept = False


@contextlib.contextmanager
def attempt(estimator):
    """Let a block change an estimator, but undo that if it fails before a whole epoch is trained.

    So a call that is refused, interrupted or diverges in its first epoch leaves the model that was
    there before, or none. Signals are held back in the block; it releases them where they may
    arrive.

    Parameters
    ----------
    estimator : estimator

    Yields
    ------
    trial : Attempt
        Set ``trial.kept`` once there is a model that is worth keeping.
    """
    with hold_signals():
        before = estimator.__dict__.copy()
        trial = Attempt()
        try:
            yield trial
        except BaseException:
            if not trial.kept:
                now = estimator.__dict__
                estimator.__dict__ = before
                estimator.__dict__.update({n: now[n] for n in _OF_CALLBACKS if n in now})
            raise


class Snapshot:
    """A copy of arrays, to be written back into them."""

    def __init__(self, arrays):
        self._arrays = arrays
        self.copies = [np.empty_like(array) for array in arrays]

    def save(self):
        """Copy the arrays."""
        for copy, array in zip(self.copies, self._arrays, strict=True):
            copy[...] = array

    def restore(self):
        """Write the copies back."""
        for copy, array in zip(self.copies, self._arrays, strict=True):
            array[...] = copy


class Phase(NamedTuple):
    """How long to train, and what to stop by."""

    n_epochs: int  #: at most
    #: Stop after so many epochs without an improvement by ``tol``: of the validation score if there
    #: is one, else of the loss. None never stops.
    patience: int | None = None
    score_name: str | None = None  #: of the validation score; None without validation


class EpochLoop:
    """Train for some epochs and leave a usable model, whatever happens.

    After every epoch the loop looks at the loss and at the largest weight. If the loss is not
    finite or the weight too large to count with, or if the user interrupts, the model goes back to
    the end of the last whole epoch and the exception goes on. With a validation score the best
    epoch's model is restored at the end.

    Signals are expected to be held back, see :func:`attempt`: they arrive while an epoch is trained
    and scored, and in callbacks, but not while arrays are copied.

    Parameters
    ----------
    estimator : estimator
        Its ``verbose`` and ``tol`` are used. Its ``loss_curve_`` and ``validation_scores_`` grow
        with every epoch; ``n_iter_`` and ``best_iter_`` follow.
    task : object
        What is trained: ``run_epoch(epoch)`` returns the mean loss, ``validation_score()`` a
        number to be maximised, ``weights()`` the arrays of the model, ``state()`` all arrays
        that training changes, ``optimizer`` tells the learning rate, and ``divergence_hint`` what
        else may help if it diverges. Arrays are restored in place. With callbacks, ``attributes()``
        returns the learned attributes.
    phase : Phase

    Attributes
    ----------
    epoch : int
        The number of epochs trained.

    Notes
    -----
    A copy of weights and optimizer state is kept for the last whole epoch, and another one for the
    best epoch if there is a validation score.
    """

    def __init__(self, estimator, task, phase):
        self.estimator = estimator
        self.task = task
        self.phase = phase
        self.losses = estimator.loss_curve_.tolist()
        self.scores = estimator.validation_scores_.tolist()
        self.epoch = self._first_epoch = len(self.losses)
        self._best = Snapshot(task.state()) if phase.score_name else None
        self._best_epoch = -1
        self._best_score = self._to_beat = -np.inf
        self._since_best = 0

    def run(self, trial, callbacks=None):
        """Train; end with the model of the best or else the last epoch.

        Parameters
        ----------
        trial : Attempt
        callbacks : FitCallbacks, optional
        """
        last = Snapshot(self.task.state())
        started, n_before = time.perf_counter(), self.epoch
        while not self.is_over():
            last.save()
            try:
                with release_signals():
                    if callbacks:
                        callbacks.begin_epoch()
                    loss = self.task.run_epoch(self.epoch)
                    self._check_finite(loss)
                    score = self.task.validation_score() if self.phase.score_name else None
            except BaseException:
                last.restore()
                raise
            self._record(loss, score)
            trial.kept = True
            if callbacks:
                callbacks.save(self)
            with release_signals():
                self._report(n_before, time.perf_counter() - started)
                if callbacks and callbacks.end_epoch():
                    break
        if self._best is not None and self._best_epoch >= 0:
            self._best.restore()
            self.estimator.best_iter_ = self._best_epoch

    def is_over(self):
        """Return whether nothing is left to be trained."""
        if self._has_used_all():
            return True
        return self.phase.patience is not None and self._since_best >= self.phase.patience

    def _has_used_all(self):
        return self.epoch >= self._first_epoch + self.phase.n_epochs

    def warn_if_improving(self):
        """Warn if all epochs were used and one of the last, half of the patience, was better."""
        phase, estimator = self.phase, self.estimator
        # With warm_start the next call goes on.
        if phase.patience is None or not self._has_used_all() or estimator.warm_start:
            return
        if 2 * self._since_best <= phase.patience:
            watched = f"validation {phase.score_name}" if phase.score_name else "training loss"
            warn_user(
                f"{type(estimator).__name__}: max_iter={phase.n_epochs} ended the fit while the "
                f"{watched} still improved. Raise max_iter, or set n_iter_no_change=None if you "
                f"want so many epochs.",
                ConvergenceWarning,
            )

    def _record(self, loss, score):
        self.epoch += 1
        self.losses.append(loss)
        value = -loss
        if score is not None:
            self.scores.append(score)
            value = score
            if score > self._best_score or self._best_epoch < 0:
                self._best_score, self._best_epoch = score, self.epoch
                self._best.save()
        if value > self._to_beat:
            self._to_beat = value + self.estimator.tol
            self._since_best = 0
        else:
            self._since_best += 1
        estimator = self.estimator
        estimator.loss_curve_ = np.array(self.losses)
        estimator.validation_scores_ = np.array(self.scores)
        estimator.n_iter_ = estimator.best_iter_ = self.epoch

    def progress(self):
        """Return what another loop needs to go on from here, apart from the model."""
        return {
            "first_epoch": self._first_epoch,
            "best_epoch": self._best_epoch,
            "best_score": self._best_score,
            "to_beat": self._to_beat,
            "since_best": self._since_best,
            "best": self._best.copies if self._best else [],
        }

    def go_on(self, progress):
        """Go on from where another loop stood; the task has its model.

        Parameters
        ----------
        progress : dict
            What :meth:`progress` has returned.
        """
        self._first_epoch = progress["first_epoch"]
        self._best_epoch, self._best_score = progress["best_epoch"], progress["best_score"]
        self._to_beat, self._since_best = progress["to_beat"], progress["since_best"]
        if self._best is not None:
            for copy, array in zip(self._best.copies, progress["best"], strict=True):
                copy[...] = array

    def _check_finite(self, loss):
        # numpy's maximum, unlike Python's, is NaN as soon as one number is.
        largest = np.max([np.maximum(w.max(), -w.min()) for w in self.task.weights()])
        if np.isfinite(loss) and largest < _LARGEST:
            return
        rate = self.task.optimizer.learning_rate
        kept = f"The model of epoch {self.epoch} is kept."
        if self.epoch == self._first_epoch:
            kept = "The estimator is as it was before the call."
        raise DivergenceError(
            f"{type(self.estimator).__name__} diverged in epoch {self.epoch + 1}: the loss is "
            f"{loss:g} and the largest weight {largest:g}, with {self.task.optimizer!r} (learning "
            f"rate {rate:g}). {kept} Try a smaller learning_rate, such as {rate / 10:g}, or "
            f"{self.task.divergence_hint}."
        )

    def _report(self, n_before, seconds):
        if not self.estimator.verbose:
            return
        last = self._first_epoch + self.phase.n_epochs
        left = seconds / (self.epoch - n_before) * (last - self.epoch)
        name = self.phase.score_name
        score = f"  validation {name} {self.scores[-1]:.5f}" if name else ""
        print(
            f"epoch {self.epoch:3d}/{last}  loss {self.losses[-1]:.5f}{score}"
            f"  {seconds:.1f} s, at most {left:.1f} s left"
        )


class FitCallbacks:
    """The callbacks of a call of fit: those of scikit-learn, and checkpoints.

    Parameters
    ----------
    estimator : estimator
    data : dict
        What callbacks may ask for: X and y.
    hashed : dict
        All that the model depends on, by the name of the argument.
    n_epochs : int
        The most that may be trained.
    unfinished : dict or None
        The state of the fit to go on with, from a checkpoint.

    Raises
    ------
    ValueError
        If data or parameters are not those of the unfinished fit.
    TypeError
        If a parameter cannot be stored in a checkpoint.
    """

    def __init__(self, estimator, data, hashed, n_epochs, unfinished=None):
        self._estimator = estimator
        callbacks = getattr(estimator, "_skl_callbacks", [])
        self._checkpoints = [c for c in callbacks if isinstance(c, Checkpoint)]
        self._unfinished = unfinished
        if self._checkpoints or unfinished:
            self._fingerprint = fingerprint(estimator, hashed)
        if unfinished:
            check_fingerprint(estimator, self._fingerprint, unfinished["fingerprint"])
        for checkpoint in self._checkpoints:
            checkpoint.check_folder()
        self._context = self._epoch = self._task = None
        if callbacks and hasattr(estimator, "_init_callback_context"):
            self._data = {**data, "metadata": None}
            self._context = estimator._init_callback_context(max_subtasks=n_epochs)
            self._context.call_on_fit_task_begin(estimator=estimator, **self._data)

    def begin_phase(self, number, loop):
        """Hear of a loop that is about to run; let it go on where an unfinished one stood.

        Parameters
        ----------
        number : int
            Its place among the loops of this fit.
        loop : EpochLoop
        """
        self._number, self._task, self._epoch = number, loop.task, None
        if self._unfinished and self._unfinished["phase"] == number:
            loop.go_on(self._unfinished["loop"])
            loop.task.restore_extra(self._unfinished["extra"])
            self._unfinished = None

    def end_phase(self):
        """Let go of the task of a phase that another one follows."""
        self._task = None

    def begin_epoch(self):
        """Tell scikit-learn's callbacks that an epoch begins, if it is one of the first phase."""
        if self._context is not None and self._number == 0:
            self._epoch = self._context.subcontext(task_name="epoch")
            self._epoch.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def save(self, loop):
        """Write the checkpoints that are due after an epoch."""
        for checkpoint in self._checkpoints:
            if loop.epoch % checkpoint.every == 0 or loop.is_over():
                progress = {
                    "fingerprint": self._fingerprint,
                    "phase": self._number,
                    "loop": loop.progress(),
                    "extra": self._task.extra(),
                }
                checkpoint.save(self._estimator, progress)

    def end_epoch(self):
        """Tell scikit-learn's callbacks that an epoch has ended; return whether to stop."""
        return self._epoch is not None and self._end(self._epoch)

    def end_fit(self):
        """Tell scikit-learn's callbacks that the fit has ended."""
        if self._context is not None:
            self._end(self._context)

    def _end(self, context):
        return context.call_on_fit_task_end(
            estimator=self._estimator,
            reconstruction_attributes=self._task.attributes,
            **self._data,
        )


def check_progress(learned):
    """Raise unless a model holds what every fit that goes on reads of earlier epochs.

    Parameters
    ----------
    learned : LearnedArrays
    """
    learned.array("_n_steps", (1,), "iu")
    learned.indices("_n_steps", learned.get("_n_steps"), 1 << 62)
    for name in ("loss_curve_", "validation_scores_"):
        learned.array(name, (None,))
    seed = learned.get("_seed")
    learned.require(isinstance(seed, Integral), "_seed", f"is {seed!r}, no integer")


def train(task, phase, trial, callbacks=None, number=0):
    """Run a task's epochs in its threads.

    Parameters
    ----------
    task : object
        See :class:`EpochLoop`; a context manager.
    phase : Phase
    trial : Attempt
    callbacks : FitCallbacks, optional
    number : int, default=0
        Of the phase, if a fit has several.
    """
    with announced_compilation(task.model.verbose), task:
        loop = EpochLoop(task.model, task, phase)
        if callbacks:
            callbacks.begin_phase(number, loop)
        loop.run(trial, callbacks)
    loop.warn_if_improving()


def refit(estimator, begin, callbacks, going_on, least=1):
    """Train a new model, for as many epochs as were best while some data were held out.

    The curves remain those of the search for that epoch. If training fails or is interrupted, so
    does the model.

    Parameters
    ----------
    estimator : estimator
        Trained with data held out.
    begin : callable
        ``begin(reset)`` returns the task on all data, with a new model if ``reset``.
    callbacks : FitCallbacks
        Of them only checkpoints hear of these epochs.
    going_on : bool
        Whether the model is that of an unfinished call of this function.
    least : int, default=1
        Epochs to train at least, even if fewer were best.
    """
    with attempt(estimator):
        if not going_on:
            names = (*_OF_SEARCH, "best_iter_")
            estimator._search = {name: getattr(estimator, name) for name in names}
        search = estimator._search
        n_epochs = max(search["best_iter_"], least)
        if estimator.verbose:
            print(f"fitting all data for {n_epochs} epochs")
        callbacks.end_phase()
        with release_signals():
            task = begin(not going_on)
        train(task, Phase(n_epochs), Attempt(), callbacks, number=1)
        for name in _OF_SEARCH:
            setattr(estimator, name, search[name])
        del estimator._search
