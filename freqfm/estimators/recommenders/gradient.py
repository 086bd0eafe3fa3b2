"""Recommenders whose tables are updated by gradients: optimizer state and temperatures."""

from abc import abstractmethod

import numpy as np

from freqfm._input.validation import LearnedArrays
from freqfm.estimators.recommenders.base import BaseRecommender
from freqfm.estimators.tables import OptimizerStateMixin, check_states, state_arrays
from freqfm.estimators.training import check_same_class, check_steps

__all__ = ["GradientRecommender"]


class GradientRecommender(OptimizerStateMixin, BaseRecommender):
    """A recommender trained by an optimizer, in batches.

    Its components, see ``_resolve_components``, have an ``optimizer``.
    """

    @abstractmethod
    def _tables(self):
        """Return the arrays that are updated by gradients, by name."""

    def _init_training(self, components, n_temperatures):
        """Initialise what all models store about their training: temperatures, steps, curves."""
        self._inverse_temperatures = np.ones((n_temperatures, 2), dtype=np.float32)
        self._temperature_state = np.zeros((n_temperatures, 2))
        self._statistics = np.zeros((n_temperatures, 3))
        self._codewords = np.zeros((0, 1), dtype=np.float32)
        self._n_steps = np.zeros(1, dtype=np.int64)
        self._optimizer_name = type(components.optimizer).__name__
        self._init_curves()

    def _check_continues(self, X, components, partial):
        super()._check_continues(X, components, partial)
        check_same_class(self, "optimizer", components.optimizer)

    def _remember(self, X, more):
        super()._remember(X, more)
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in state_arrays(self._states))

    def _check_trainable(self):
        super()._check_trainable()
        self._check_has_state()
        learned = LearnedArrays(self)
        n_rows = len(self._inverse_temperatures)
        for name, shape in (("_temperature_state", (n_rows, 2)), ("_statistics", (n_rows, 3))):
            learned.array(name, shape)
        check_steps(learned)
        learned.array("_codewords", (None, None))

    def _check_states(self, components):
        """Raise unless kernels can continue with the optimizer state."""
        check_states(LearnedArrays(self), self._tables(), components.optimizer)
