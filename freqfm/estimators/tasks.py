"""What training tasks share: the trainer of a backend, and the arrays that it changes."""

from freqfm.backends.base import Trainer

__all__ = ["TrainingTask"]


class TrainingTask:
    """What the epoch loop trains, see :class:`EpochLoop`; a context manager.

    Subclasses set ``model``, the estimator, whose arrays are updated in place, ``_backend``, the
    device, and ``_trainer``, a Trainer. They add ``run_epoch`` and ``_names``, the names of the
    learned attributes that training changes, and ``state``, if it changes more than these.
    """

    #: None where there is no learning rate.
    optimizer = None

    #: Of a task that trains the model's arrays itself.
    _trainer = Trainer()

    @property
    def device(self):
        """Name of the device that trains."""
        return self._backend.name

    def __enter__(self):
        self._trainer.__enter__()
        return self

    def __exit__(self, *exception):
        self._trainer.__exit__(*exception)

    def weights(self):
        """Return the model's arrays."""
        return [getattr(self.model, name) for name in self._names]

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        return self.weights()

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
        """Return what a checkpoint stores besides the estimator: nothing."""
        return {}

    def restore_extra(self, extra):
        """Restore what :meth:`extra` has returned."""
