"""Recommenders whose tables are updated by gradients: optimizer state and temperatures."""

from abc import abstractmethod

import numpy as np

from freqfm._validation import LearnedArrays, as_kernel_array
from freqfm.estimators.recommenders.base import BaseRecommender
from freqfm.estimators.training import check_steps

__all__ = ["GradientRecommender", "grow_state", "new_state"]


class GradientRecommender(BaseRecommender):
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
        self._refuse_another("optimizer", components.optimizer, self._optimizer_name)

    def _refuse_another(self, parameter, component, name):
        if type(component).__name__ != name:
            raise ValueError(
                f"{parameter}={getattr(self, parameter)!r} differs from {name} of the model "
                f"to continue; set it back, or fit a new model with warm_start=False."
            )

    def _remember(self, X, more):
        super()._remember(X, more)
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in self._optimizer_arrays())

    def _check_trainable(self):
        super()._check_trainable()
        learned = LearnedArrays(self)
        n_rows = len(self._inverse_temperatures)
        for name, shape in (("_temperature_state", (n_rows, 2)), ("_statistics", (n_rows, 3))):
            learned.array(name, shape)
        check_steps(learned)
        learned.array("_codewords", (None, None))

    def _check_states(self, components):
        """Raise unless kernels can continue with the optimizer state."""
        learned = LearnedArrays(self)
        states = learned.get("_states")
        for name, table in self._tables().items():
            fits = isinstance(states, dict) and name in states
            learned.require(fits, "_states", f"has no {name!r}")
            width = table.shape[1] if table.ndim == 2 else 1
            shapes = components.optimizer.state_shapes(len(table), width)
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
        """Return the arrays of the optimizer state."""
        return [array for state in self._states.values() for array in state.values()]


def new_state(optimizer, counts, width):
    """Return the optimizer's arrays for the rows of a table, by the names kernels know."""
    state = optimizer.init_state(len(counts), int(width), np.maximum(counts, 1))
    return {
        "per_row": state.per_row,
        "first": state.factors_first,
        "second": state.factors_second,
    }


def grow_state(old, new):
    """Return an optimizer's arrays with new rows at the end; unused arrays are empty."""
    grown = {}
    for name, rows in new.items():
        parts = [part for part in (old[name], rows) if part.size]
        grown[name] = as_kernel_array(np.concatenate(parts)) if parts else rows
    return grown
