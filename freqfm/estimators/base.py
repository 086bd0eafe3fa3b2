"""The epoch loop that every estimator trains in: stopping, restoring, reporting, callbacks."""

import time

import numpy as np

from freqfm.exceptions import DivergenceError

try:  # scikit-learn 1.9 and later
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:
        """Stand-in for scikit-learn before 1.9, which has no callbacks."""

    def with_callbacks(method):
        """Return the method as it is: there are no callbacks to tear down."""
        return method


__all__ = ["CallbackSupportMixin", "EpochLoop", "train_epochs", "with_callbacks"]


# Weights are summed in squares, as float32: of a vector of larger ones no length is left.
_LARGEST = 1e18


class _Checkpoint:
    """A copy of arrays, to be written back into them."""

    def __init__(self, arrays):
        self._arrays = arrays
        self._copies = [np.empty_like(array) for array in arrays]
        self.epoch = -1

    def save(self, epoch):
        for copy, array in zip(self._copies, self._arrays, strict=True):
            copy[...] = array
        self.epoch = epoch

    def restore(self):
        for copy, array in zip(self._copies, self._arrays, strict=True):
            array[...] = copy


class EpochLoop:
    """Train for some epochs and leave a usable model, whatever happens.

    After every epoch the loop looks at the loss and at the largest weight. If the loss is not
    finite or the weight too large to count with, or if the user interrupts, the model goes back to
    the end of the last whole epoch and the exception goes on. With a validation score the best
    epoch's model is restored at the end.

    Parameters
    ----------
    estimator : estimator
        Its ``verbose``, ``tol``, ``n_iter_no_change`` and callbacks are used.
    task : object
        What is trained: ``run_epoch(epoch)`` returns the mean loss, ``validation_score()`` a
        number to be maximised, ``weights()`` the arrays of the model, ``state()`` all arrays
        that training changes, ``optimizer`` tells the learning rate, and ``remedy`` what else may
        help if it diverges. Arrays are restored in place. With callbacks, ``attributes()`` returns
        the learned attributes.
    score_name : str or None
        Name of the validation score, or None without validation.
    history : tuple of list
        Losses and validation scores of earlier epochs; appended to.

    Attributes
    ----------
    epoch : int
        The epoch at whose end the model stood as it stands now.

    Notes
    -----
    A copy of weights and optimizer state is kept for the last whole epoch, and another one for the
    best epoch if there is a validation score.
    """

    def __init__(self, estimator, task, score_name, history):
        self.estimator = estimator
        self.task = task
        self.score_name = score_name
        self.losses, self.scores = history
        self.epoch = len(self.losses)

    def run(self, n_epochs, patience, callback_context=None, data=None):
        """Train for up to ``n_epochs``; end with the model of the best or else the last epoch.

        Parameters
        ----------
        n_epochs : int
        patience : int or None
            Stop after so many epochs without an improvement by ``tol``: of the validation score
            if there is one, else of the loss. None never stops.
        callback_context : sklearn.callback.CallbackContext, optional
        data : dict, optional
            What callbacks may ask for: X, y and metadata.
        """
        first_epoch = len(self.losses)
        last = _Checkpoint(self.task.state())
        best = _Checkpoint(self.task.state()) if self.score_name else None
        best_score = to_beat = -np.inf
        since_best = 0
        started = time.perf_counter()
        for epoch in range(first_epoch, first_epoch + n_epochs):
            context = callback_context and self._begin(callback_context, data)
            last.save(epoch)
            try:
                loss = self.task.run_epoch(epoch)
                self._check_finite(epoch, loss)
                score = self.task.validation_score() if self.score_name else None
            except BaseException:
                last.restore()
                raise
            self.epoch = epoch + 1
            self.losses.append(loss)
            value = -loss
            if score is not None:
                self.scores.append(score)
                value = score
                if score > best_score or best.epoch < 0:
                    best_score = score
                    best.save(epoch + 1)
            if value > to_beat:
                to_beat = value + self.estimator.tol
                since_best = 0
            else:
                since_best += 1
            self._report(epoch, first_epoch, n_epochs, time.perf_counter() - started)
            stop = context is not None and self._end(context, data)
            if stop or (patience is not None and since_best >= patience):
                break
        if best is not None:
            best.restore()
            self.epoch = best.epoch

    def _check_finite(self, epoch, loss):
        # numpy's maximum, unlike Python's, is NaN as soon as one number is.
        largest = np.max([np.maximum(w.max(), -w.min()) for w in self.task.weights()])
        if np.isfinite(loss) and largest < _LARGEST:
            return
        rate = self.task.optimizer.learning_rate
        raise DivergenceError(
            f"{type(self.estimator).__name__} diverged in epoch {epoch + 1}: the loss is {loss:g} "
            f"and the largest weight {largest:g}, with {self.task.optimizer!r} (learning rate "
            f"{rate:g}). The model of epoch {epoch} is kept. Try a smaller learning_rate, such as "
            f"{rate / 10:g}, or {self.task.remedy}."
        )

    def _report(self, epoch, first_epoch, n_epochs, seconds):
        if not self.estimator.verbose:
            return
        done = epoch - first_epoch + 1
        left = seconds / done * (n_epochs - done)
        score = f"  validation {self.score_name} {self.scores[-1]:.5f}" if self.score_name else ""
        print(
            f"epoch {epoch + 1:3d}/{first_epoch + n_epochs}  loss {self.losses[-1]:.5f}{score}"
            f"  {seconds:.1f} s, at most {left:.1f} s left"
        )

    def _begin(self, callback_context, data):
        context = callback_context.subcontext(task_name="epoch")
        return context.call_on_fit_task_begin(estimator=self.estimator, **data)

    def _end(self, context, data):
        return context.call_on_fit_task_end(
            estimator=self.estimator, reconstruction_attributes=self.task.attributes, **data
        )


def train_epochs(estimator, task, score_name, n_epochs, patience, data, with_callbacks):
    """Train in an :class:`EpochLoop`, and set what it tells as the estimator's attributes.

    Parameters
    ----------
    estimator, task, score_name, n_epochs, patience
        See :class:`EpochLoop`. The task is a context manager.
    data : dict
        What callbacks may ask for: X and y.
    with_callbacks : bool
        Whether the estimator's callbacks hear of it.
    """
    data = {**data, "metadata": None}
    context = None
    if with_callbacks and hasattr(estimator, "_skl_callbacks"):
        context = estimator._init_callback_context(max_subtasks=n_epochs)
    history = list(estimator.loss_curve_), list(estimator.validation_scores_)
    with task:
        loop = EpochLoop(estimator, task, score_name, history)
        try:
            if context is not None:
                context.call_on_fit_task_begin(estimator=estimator, **data)
            loop.run(n_epochs, patience, context, data)
        finally:
            estimator.loss_curve_ = np.array(history[0])
            estimator.validation_scores_ = np.array(history[1])
            estimator.n_iter_ = len(estimator.loss_curve_)
            estimator.best_iter_ = loop.epoch
    if context is not None:
        context.call_on_fit_task_end(
            estimator=estimator, reconstruction_attributes=task.attributes, **data
        )
