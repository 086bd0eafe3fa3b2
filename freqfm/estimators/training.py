"""The epoch loop of every estimator and its tasks: stopping, restoring, reporting, callbacks."""

import contextlib
import copy
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from freqfm._components import Component, is_ours, name_to_instance
from freqfm._input.rows import for_users
from freqfm._input.validation import LearnedArrays
from freqfm._messages import cut, shown, warn_user
from freqfm._numba.jit import announced_compilation
from freqfm._signals import hold_signals, release_signals
from freqfm._sklearn import CALLBACK_ATTRIBUTES, CALLBACKS, callbacks_of
from freqfm.backends.base import ContextGroup, Snapshot, Trainer
from freqfm.callbacks import Checkpoint
from freqfm.callbacks._checkpoint import check_fingerprint, fingerprint
from freqfm.estimators.progress import announce, shown_progress
from freqfm.estimators.state import trained_arrays
from freqfm.exceptions import DivergenceError

try:  # scikit-learn 1.9 and later
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:
        """Replacement for scikit-learn before 1.9; supports :class:`Checkpoint` only."""

        def set_callbacks(self, *callbacks):
            """Set the callbacks of ``fit``.

            Parameters
            ----------
            *callbacks : Checkpoint
                Without arguments, those set before are removed.

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
            self.__dict__.pop(CALLBACKS, None)
            if callbacks:
                setattr(self, CALLBACKS, list(callbacks))
            return self

    def with_callbacks(method):
        """Return the method unchanged: there are no callbacks to tear down."""
        return method


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedEstimator(CallbackSupportMixin):
    """Mixin: the parameters of all estimators that are trained in epochs."""

    _parameter_constraints: ClassVar = {
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state", np.random.Generator],
        "device": "no_validation",  # see backends.get
    }
    _writes_checkpoints = True
    #: The components known by name, for each parameter that takes one.
    _registries: ClassVar[dict] = {}

    verbose: int = 0
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    device: str = "cpu"

    def set_params(self, **params):
        """Set parameters; parameters of a component can be set even if it is given by name.

        ``set_params(optimizer__learning_rate=0.1)`` works whether ``optimizer`` is an instance or a
        name; a name is then replaced by an instance, and so is an "auto" whose choice does not
        depend on the data. So searches over ``optimizer__...`` need no instance.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If a parameter is set of a component that has no such parameter, or is not yet chosen.
        """
        name_to_instance(self, self._components_by_name(params), params)
        return super().set_params(**params)

    def _components_by_name(self, params):
        """Return the components of each parameter by name, if ``params`` are set."""
        return self._registries

    def _init_curves(self):
        """Initialise the records of a new model's epochs."""
        self.loss_curve_ = np.zeros(0)
        self.validation_scores_ = np.zeros(0)
        self.n_iter_ = 0


# Weights are squared and summed in float32; sums of larger weights would overflow.
_LARGEST = 1e18

# Shares of the learning rates in epochs that settle. A third epoch, or other shares between a third
# and 0.03, hardly change scores of validation rows; the mean of the last weights has half the gain.
_SHARES = (0.25, 0.05)

# Attributes that describe the epochs of the first phase, the search for the best epoch.
_OF_SEARCH = ("loss_curve_", "validation_scores_", "n_iter_")


class Attempt:
    """A call that trains. ``kept`` becomes True once it has trained a whole epoch."""

    kept = False


@contextlib.contextmanager
def attempt(estimator):
    """Context manager that restores the estimator if the block fails in its first epoch.

    Kernels that are compiled in the block are announced if the estimator is ``verbose``.

    A call that raises on its input, is interrupted, or diverges in its first epoch leaves the model
    that was there before, or an unfitted estimator. Signals are held back inside the block; code in
    it releases them where they may arrive.

    Parameters
    ----------
    estimator : estimator

    Yields
    ------
    trial : Attempt
        Set ``trial.kept`` to True once the new model is to be kept.
    """
    with hold_signals(), announced_compilation(getattr(estimator, "verbose", 0)):
        before = estimator.__dict__.copy()
        trial = Attempt()
        try:
            yield trial
        except BaseException as error:
            if not trial.kept:
                now = estimator.__dict__
                estimator.__dict__ = before
                estimator.__dict__.update({n: now[n] for n in CALLBACK_ATTRIBUTES if n in now})
            is_missing = isinstance(error, AttributeError) and error.obj is estimator
            if is_missing and "_unfinished" in before:
                raise _damaged(estimator, f"it has no {error.name}") from error
            raise


def _damaged(estimator, found):
    """Return the error of a checkpoint that does not have the content that a fit writes."""
    return ValueError(
        f"the state of training in the checkpoint does not fit this {type(estimator).__name__} "
        f"({found}); the file is damaged: start again with "
        f"sklearn.base.clone(estimator).fit(...)."
    )


@contextlib.contextmanager
def _discarding(trial):
    """If the block fails, discard the arrays that the call has trained.

    Trained arrays cannot be read from the memory of a GPU that has failed.
    """
    try:
        yield
    except BaseException:
        trial.kept = False
        raise


class Phase(NamedTuple):
    """How long to train, and when to stop early."""

    n_epochs: int  #: at most
    #: Stop after this number of epochs without an improvement by ``tol``, of the validation score
    #: if there is one, else of the loss. None never stops.
    patience: int | None = None
    score_name: str | None = None  #: name of the validation score; None without validation
    #: Whether an epoch that fails is undone. If not, the caller discards what it has changed.
    restores: bool = True
    #: Returns of the validation scores so far whether to stop, since another model is better.
    gives_up: Callable | None = None
    #: How many epochs settle at the end, at falling shares of the learning rates. With a validation
    #: score they come after all others, begin with the best model, and are recorded only by the
    #: score of that epoch, if it rises.
    n_settling: int = 0


class TrainingTask(ContextGroup):
    """A task that the epoch loop trains, see :class:`EpochLoop`; a context manager.

    Subclasses set ``model``, the estimator, whose arrays are updated in place, ``_backend``, the
    device, and ``_trainer``, a Trainer. They add ``run_epoch`` and ``_names``, the names of the
    learned attributes that predictions read and training changes.
    """

    #: None where there is no learning rate.
    optimizer = None

    #: The factor of all learning rates in the next epoch; for tasks whose phases settle.
    share = 1.0

    #: Of a task that trains the model's arrays itself.
    _trainer = Trainer()

    @property
    def device(self):
        """Name of the device that trains."""
        return self._backend.name

    def _contexts(self):
        return [self._trainer]

    def weights(self):
        """Return the model's arrays."""
        return [getattr(self.model, name) for name in self._names]

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        return trained_arrays(self.model)

    def pull(self):
        """Bring the arrays up to date, which a trainer may keep elsewhere between epochs."""
        self._trainer.pull()

    def snapshot(self):
        """Return a Snapshot of all arrays that training changes."""
        return self._trainer.snapshot(self.state())

    def largest_weight(self):
        """Return the largest absolute value of a weight."""
        return self._trainer.largest(self.weights())

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        return {name: getattr(self.model, name).copy() for name in self._names}

    def extra(self):
        """Return the values that a checkpoint stores besides the estimator: none."""
        return {}

    def restore_extra(self, extra):
        """Restore the values that :meth:`extra` has returned."""


class EpochLoop:
    """Train for several epochs and leave a usable model, even after an error or an interrupt.

    After every epoch the loop checks the loss and the largest weight. If the loss is not finite or
    the weight is too large, or if the user interrupts, the model of the last whole epoch is
    restored and the exception is raised. With a validation score, the model of the best epoch is
    restored at the end.

    Signals must be held back by the caller, see :func:`attempt`. The loop lets them arrive while an
    epoch is trained and scored, and in callbacks, but not while arrays are copied.

    Parameters
    ----------
    estimator : estimator
        Its ``verbose`` and ``tol`` are used. Its ``loss_curve_`` and ``validation_scores_`` grow
        with every epoch; ``n_iter_`` and ``best_iter_`` follow.
    task : object
        What is trained: ``run_epoch(epoch)`` returns the mean loss, ``validation_score()`` a
        number to be maximised, ``largest_weight()`` that of the model, and ``snapshot()`` a
        Snapshot of all arrays that training changes. ``pull()`` brings the estimator's arrays up to
        date. ``optimizer`` has the learning rate, or is None, and ``divergence_hint`` advises what
        else may help against divergence. With callbacks, ``attributes()`` returns the learned
        attributes.
    phase : Phase

    Attributes
    ----------
    epoch : int
        The number of epochs trained.
    first_epoch : int
        The number of epochs that the model had been trained before.

    Notes
    -----
    The loop keeps a copy of weights and optimizer state from the last whole epoch, and with a
    validation score another one from the best epoch.
    """

    def __init__(self, estimator, task, phase):
        self.estimator = estimator
        self.task = task
        self.phase = phase
        self.epoch = self.first_epoch = len(estimator.loss_curve_)
        self._best = task.snapshot() if phase.score_name else None
        self._best_epoch = -1
        self._best_score = self._to_beat = -np.inf
        self._since_best = 0
        # The number of epochs that have settled; -1 before the last epoch at full rates.
        self._n_settled = -1

    def run(self, trial, callbacks=None):
        """Train; leave the model of the best epoch, or of the last one without validation.

        Parameters
        ----------
        trial : Attempt
        callbacks : FitCallbacks, optional
        """
        phase, n_before, started = self.phase, self.epoch, time.perf_counter()
        last = self.task.snapshot() if phase.restores else Snapshot([])
        n_epochs = self.first_epoch + phase.n_epochs
        verbose = self.estimator.verbose
        progress = (
            shown_progress(verbose, n_before, n_epochs) if verbose else contextlib.nullcontext()
        )
        with progress as show:
            while not self.is_over():
                if self._n_settled >= 0:
                    self._begin_settling(trial)
                aside = self._is_aside
                last.save()
                try:
                    with release_signals():
                        if callbacks and not aside:
                            callbacks.begin_epoch()
                        number = self.epoch + (self._n_settled if aside else 0)
                        loss = self.task.run_epoch(number)
                        self._check_finite(loss)
                        score = self.task.validation_score() if phase.score_name else None
                    self._keep_best(score)
                except BaseException:
                    with _discarding(trial):
                        last.restore()
                    raise
                self._record(loss, score)
                trial.kept = True
                if callbacks:
                    callbacks.save(self)
                if aside:
                    announce(verbose, f"settled: validation {phase.score_name} {score:.5f}")
                    continue
                with release_signals():
                    if show:
                        seconds = time.perf_counter() - started
                        show(self.epoch, self._report(seconds, seconds / (self.epoch - n_before)))
                    if callbacks and callbacks.end_epoch():
                        break
        with _discarding(trial):
            if self._restore_best():
                self.estimator.best_iter_ = self._best_epoch
            self.task.pull()
        # Their memory is free while the caller keeps the loop.
        self.task = self._best = None

    def is_over(self):
        """Return whether training is finished."""
        return self._n_settled >= self.phase.n_settling

    def _restore_best(self):
        """Restore the model of the best epoch, if there is a validation score."""
        found = self._best is not None and self._best_epoch >= 0
        if found:
            self._best.restore()
        return found

    def _begin_settling(self, trial):
        """Set the share of the learning rates of an epoch that settles."""
        if self._n_settled == 0:
            with _discarding(trial):
                self._restore_best()
        self.task.share = _SHARES[self._n_settled]

    def _count_settled(self):
        """Count an epoch that has settled, or find out whether the last one was at full rates."""
        phase = self.phase
        if self._n_settled >= 0:
            self._n_settled += 1
        elif phase.gives_up is not None and phase.gives_up(self.estimator.validation_scores_):
            self._n_settled = phase.n_settling
        elif self._has_used_all() or (
            phase.patience is not None and self._since_best >= phase.patience
        ):
            self._n_settled = 0

    @property
    def _is_aside(self):
        """Whether the epoch settles, and is not recorded."""
        return self._n_settled >= 0 and self.phase.score_name is not None

    def _has_used_all(self):
        """Return whether no epoch at full rates is left."""
        n_settling = 0 if self.phase.score_name else self.phase.n_settling
        return self.epoch >= self.first_epoch + self.phase.n_epochs - n_settling

    def warn(self):
        """Warn if the last epoch was still better, or the training loss has risen."""
        self.warn_if_improving()
        self.warn_if_rising()

    def warn_if_improving(self):
        """Warn if all epochs were used and the last one was still better, by ``tol``."""
        phase, estimator = self.phase, self.estimator
        # With warm_start the next call continues.
        if phase.patience is None or not self._has_used_all() or estimator.warm_start:
            return
        if self._since_best == 0:
            watched = f"validation {phase.score_name}" if phase.score_name else "training loss"
            settings = "n_iter_no_change=None"
            if phase.score_name and getattr(estimator, "early_stopping", False) is not False:
                settings = f"early_stopping=False and {settings}"
            warn_user(
                f"{type(estimator).__name__}: the fit reached max_iter={phase.n_epochs} while the "
                f"{watched} still improved. Raise max_iter, or set {settings} to "
                f"train exactly max_iter epochs.",
                ConvergenceWarning,
            )

    def warn_if_rising(self):
        """Warn if the training loss, without a validation score to stop by, has risen."""
        losses, estimator = self.estimator.loss_curve_[self.first_epoch :], self.estimator
        if self.phase.score_name is not None or len(losses) == 0:
            return
        last = losses[-1 - max(self._n_settled, 0)]
        if losses[0] > 0 and last > 2 * losses[0] + estimator.tol:
            warn_user(
                f"{type(estimator).__name__}: the training loss has risen from {losses[0]:g} in "
                f"the first epoch to {last:g} in the last. Take a smaller learning_rate.",
                ConvergenceWarning,
            )

    def _keep_best(self, score):
        """Copy the model of the epoch that has just ended if its score is the best so far."""
        if score is not None and (score > self._best_score or self._best_epoch < 0):
            self._best.save()
            self._best_score = score
            if self._is_aside:
                self.estimator.validation_scores_[self._best_epoch - 1 - self.epoch] = score
            else:
                self._best_epoch = self.epoch + 1

    def _record(self, loss, score):
        if self._is_aside:
            self._n_settled += 1
            return
        self.epoch += 1
        estimator, value = self.estimator, -loss
        estimator.loss_curve_ = np.append(estimator.loss_curve_, loss)
        if score is not None:
            estimator.validation_scores_ = np.append(estimator.validation_scores_, score)
            value = score
        if self._n_settled < 0:
            # The loss nearly always falls while a model settles.
            self._since_best = 0 if value > self._to_beat else self._since_best + 1
            if self._since_best == 0:
                self._to_beat = value + estimator.tol
        estimator.n_iter_ = estimator.best_iter_ = self.epoch
        self._count_settled()

    def progress(self):
        """Return the state from which another loop can continue, except the model."""
        return {
            "first_epoch": self.first_epoch,
            "best_epoch": self._best_epoch,
            "best_score": self._best_score,
            "to_beat": self._to_beat,
            "since_best": self._since_best,
            "n_settled": self._n_settled,
            "best": self._best.copies() if self._best else [],
        }

    def resume(self, progress):
        """Continue where another loop has stopped; the task holds its model.

        Parameters
        ----------
        progress : dict
            Returned by :meth:`progress`.
        """
        names = "first_epoch", "best_epoch", "since_best", "n_settled"
        numbers = map(operator.index, (progress[name] for name in names))
        self.first_epoch, self._best_epoch, self._since_best, self._n_settled = numbers
        self._best_score, self._to_beat = float(progress["best_score"]), float(progress["to_beat"])
        if not 0 <= self.first_epoch <= self.epoch or not self._best_epoch <= self.epoch:
            raise ValueError(f"epochs {self.first_epoch} and {self._best_epoch} of {self.epoch}")
        if not -1 <= self._n_settled <= self.phase.n_settling:
            raise ValueError(f"{self._n_settled} epochs that have settled")
        if self._best is not None:
            self._best.load(progress["best"])

    def _check_finite(self, loss):
        kept = f"The model of epoch {self.epoch} is kept."
        if self.epoch == self.first_epoch:
            kept = "The estimator is as it was before the call."
        check_finite(self.estimator, self.task, loss, self.epoch, kept)

    def _report(self, seconds, seconds_per_epoch):
        """Return the last epoch's figures, and the time that training takes."""
        left = seconds_per_epoch * (self.first_epoch + self.phase.n_epochs - self.epoch)
        name, estimator = self.phase.score_name, self.estimator
        score = f"  validation {name} {estimator.validation_scores_[-1]:.5f}" if name else ""
        return (
            f"loss {estimator.loss_curve_[-1]:.5f}{score}"
            f"  {seconds:.1f} s, at most {left:.1f} s left"
        )


def check_finite(estimator, task, loss, epoch, kept):
    """Raise a DivergenceError if the loss is not finite, or a weight is too large.

    Parameters
    ----------
    estimator : estimator
    task : object
        See :class:`EpochLoop`.
    loss : float
    epoch : int
        Number of the epoch, from 0.
    kept : str
        A sentence that says what model the caller keeps.
    """
    largest = task.largest_weight()
    if np.isfinite(loss) and largest < _LARGEST:
        return
    by, advice = "", task.divergence_hint
    optimizer = task.optimizer
    if optimizer is not None:
        rate = optimizer.learning_rate
        by = f", with {optimizer!r} (learning rate {rate:g})"
        advice = f"a smaller learning_rate, such as {rate / 10:g}, or {advice}"
    own = []
    for value in estimator.get_params(deep=False).values():
        parts = value if isinstance(value, (list, tuple)) else [value]
        parts = [part for part in parts if isinstance(part, Component)]
        own += [type(part).__name__ for part in parts if not is_ours(type(part))]
    if own:
        advice += f", or check what {' and '.join(own)} computes"
    raise DivergenceError(
        f"{type(estimator).__name__} diverged in epoch {epoch + 1}: the loss is {loss:g} and the "
        f"largest weight {largest:g}{by}. {kept} Try {advice}."
    )


class FitCallbacks:
    """The callbacks of one call of fit: those of scikit-learn, and checkpoints.

    Parameters
    ----------
    estimator : estimator
    data : dict or callable
        X and y, for callbacks; or a function that returns them.
    hashed : dict or callable
        All data that the model depends on, by the name of the argument; or such a function.
    n_epochs : int
        The largest number of epochs.
    unfinished : dict or None
        The state of the fit to continue, from a checkpoint.

    Raises
    ------
    ValueError
        If data or parameters differ from those of the unfinished fit.
    TypeError
        If a parameter cannot be stored in a checkpoint.
    """

    def __init__(self, estimator, data, hashed, n_epochs, unfinished=None):
        self._estimator = estimator
        callbacks = callbacks_of(estimator)
        self._checkpoints = [c for c in callbacks if isinstance(c, Checkpoint)]
        self._unfinished = unfinished
        if self._checkpoints or unfinished:
            hashed = hashed() if callable(hashed) else hashed
            self._fingerprint = fingerprint(estimator, hashed)
        if unfinished:
            check_fingerprint(estimator, self._fingerprint, unfinished["fingerprint"])
        for checkpoint in self._checkpoints:
            checkpoint.check_folder()
        self._context = self._epoch = self._task = None
        if callbacks and hasattr(estimator, "_init_callback_context"):
            data = data() if callable(data) else data
            self._data = {name: for_users(rows) for name, rows in data.items()} | {"metadata": None}
            self._context = estimator._init_callback_context(max_subtasks=n_epochs)
            self._context.call_on_fit_task_begin(estimator=estimator, **self._data)

    def begin_phase(self, number, loop):
        """Register a loop that is about to run; resume the unfinished loop of a checkpoint.

        Parameters
        ----------
        number : int
            Number of the phase, from 0.
        loop : EpochLoop
        """
        self._number, self._task, self._epoch = number, loop.task, None
        if not self._unfinished:
            return
        if self._unfinished["phase"] != number:
            raise _damaged(self._estimator, f"it is in phase {shown(self._unfinished['phase'])}")
        try:
            loop.resume(self._unfinished["loop"])
            loop.task.restore_extra(self._unfinished["extra"])
        except MemoryError:
            raise
        # The exception for a damaged file depends on the place of the damage.
        except Exception as error:
            raise _damaged(self._estimator, f"{type(error).__name__}: {cut(error)}") from error
        self._unfinished = None

    def end_phase(self):
        """Drop the reference to the task of a phase that is over."""
        self._task = None

    def begin_epoch(self):
        """Call scikit-learn's callbacks at the start of an epoch of the first phase."""
        if self._context is not None and self._number == 0:
            self._epoch = self._context.subcontext(task_name="epoch")
            self._epoch.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def save(self, loop):
        """Write the checkpoints that are due after this epoch."""
        for checkpoint in self._checkpoints:
            if loop.epoch % checkpoint.every == 0 or loop.is_over():
                self._task.pull()
                progress = {
                    "fingerprint": self._fingerprint,
                    "phase": self._number,
                    "loop": loop.progress(),
                    "extra": self._task.extra(),
                }
                checkpoint.save(self._estimator, progress)

    def end_epoch(self):
        """Call scikit-learn's callbacks at the end of an epoch; return whether to stop."""
        return self._epoch is not None and self._end(self._epoch)

    def end_fit(self):
        """Call scikit-learn's callbacks at the end of the fit."""
        if self._unfinished:
            raise _damaged(self._estimator, "it is in a phase that this fit does not have")
        if self._context is not None:
            self._end(self._context)

    def _end(self, context):
        attributes = {}
        with release_signals():
            if self._task is not None:
                self._task.pull()
                attributes = self._task.attributes
            return context.call_on_fit_task_end(
                estimator=self._estimator, reconstruction_attributes=attributes, **self._data
            )


def score_name(scoring):
    """Return the name of a scorer, in what fits show."""
    return scoring if isinstance(scoring, str) else getattr(scoring, "__name__", repr(scoring))


def score_by(scorer, estimator, *data, **options):
    """Return the score that early stopping maximises, of the model in training.

    Parameters
    ----------
    scorer : callable
        That of the parameter ``scoring``.
    estimator : estimator
    *data, **options
        Passed to the scorer: validation data that the fit has checked, without names of columns.

    Raises
    ------
    ValueError
        If the score is not a finite number.
    """
    model = copy.copy(estimator)
    vars(model).pop("feature_names_in_", None)
    score = scorer(model, *map(for_users, data), **options)
    if not isinstance(score, Real) or not np.isfinite(score):
        raise ValueError(
            f"scoring={shown(estimator.scoring)} gave {shown(score)} for the validation data, not "
            f"a finite number. Take another scoring, or validation data for which it is defined."
        )
    return float(score)


def check_progress(learned, *more):
    """Raise unless a model has valid records of its earlier epochs, as continued fits need.

    Parameters
    ----------
    learned : LearnedArrays
    *more : str
        Further attributes that are integers.
    """
    for name in ("loss_curve_", "validation_scores_"):
        learned.array(name, (None,), "f")
    for name in ("_seed", "n_iter_", *more):
        number = learned.get(name)
        learned.require(isinstance(number, Integral), name, f"is {shown(number)}, not an integer")


def check_same_class(model, parameter, component):
    """Raise if a component is of another class than that of the model to continue.

    Parameters
    ----------
    model : estimator
        Stores the name of the class.
    parameter : str
    component : Component
    """
    before = LearnedArrays(model).get(f"_{parameter}_name")
    check_unchanged(model, parameter, type(component).__name__ == before, before)


def check_unchanged(model, parameter, same, before):
    """Raise if a parameter differs from that of the model to continue.

    Parameters
    ----------
    model : estimator
    parameter : str
    same : bool
        Whether it is the same.
    before : str
        What the model was trained with.
    """
    if not same:
        new = "a new model with warm_start=False" if hasattr(model, "warm_start") else "a new model"
        raise ValueError(
            f"{parameter}={getattr(model, parameter)!r} differs from {before} of the model to "
            f"continue; set it back, or fit {new}."
        )


def train(task, phase, trial, callbacks=None, number=0):
    """Run a task's epochs in its threads, and warn if they are not enough, or the loss has risen.

    Parameters
    ----------
    task, phase, trial, callbacks, number
        See :func:`run_epochs`.
    """
    run_epochs(task, phase, trial, callbacks, number).warn()


def run_epochs(task, phase, trial, callbacks=None, number=0):
    """Run a task's epochs in its threads.

    Parameters
    ----------
    task : object
        See :class:`EpochLoop`; a context manager.
    phase : Phase
    trial : Attempt
    callbacks : FitCallbacks, optional
    number : int, default=0
        Number of the phase, if a fit has several.

    Returns
    -------
    loop : EpochLoop
    """
    if task.model.device == "auto" and number == 0:
        announce(task.model.verbose, f"device='auto': training on {task.device}")
    with task:
        loop = EpochLoop(task.model, task, phase)
        if callbacks:
            callbacks.begin_phase(number, loop)
        loop.run(trial, callbacks)
    return loop


def refit(estimator, begin, callbacks, resumed, least=1, n_settling=0):
    """Train a new model on all data, for the number of epochs that was best in the first phase.

    The curves remain those of the first phase. If training fails or is interrupted, so does the
    model of the first phase.

    Parameters
    ----------
    estimator : estimator
        Trained with data held out.
    begin : callable
        ``begin(reset)`` returns the task that trains on all data, a new model if ``reset``.
    callbacks : FitCallbacks
        Only checkpoints are called in these epochs.
    resumed : bool
        Whether the model comes from an unfinished call of this function.
    least : int, default=1
        Smallest number of epochs to train, even if fewer were best.
    n_settling : int, default=0
        So many more epochs settle, see :class:`Phase`, but not more than were best.
    """
    with attempt(estimator):
        if not resumed:
            names = (*_OF_SEARCH, "best_iter_")
            estimator._search = {name: getattr(estimator, name) for name in names}
        search = estimator._search
        n_best = max(search["best_iter_"], least)
        n_settling = min(n_settling, n_best)
        n_epochs = n_best + n_settling
        announce(estimator.verbose, f"fitting all data for {n_epochs} epochs")
        callbacks.end_phase()
        with release_signals():
            task = begin(not resumed)
        phase = Phase(n_epochs, n_settling=n_settling)
        train(task, phase, Attempt(), callbacks, number=1)
        for name in _OF_SEARCH:
            setattr(estimator, name, search[name])
        estimator.best_iter_ = n_best
        del estimator._search
