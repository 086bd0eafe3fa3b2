"""Factors beside which a machine has dense weights: those of layers, or of pairs of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freqfm._components import name_to_instance, resolve
from freqfm._input.validation import LearnedArrays, as_kernel_array, check_memory
from freqfm._memory import aligned_copy, aligned_zeros
from freqfm.backends.base import DenseTraining
from freqfm.estimators.fm.factors.plain import PlainFactors
from freqfm.estimators.tables import WEIGHTS, ModelTable
from freqfm.estimators.training import check_same_class
from freqfm.formulas import codes
from freqfm.formulas.steps import layer_replacements
from freqfm.optimizers import OPTIMIZERS, Optimizer


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithDense(PlainFactors):
    """One vector for each feature, and weights that every row uses, with their own optimizer."""

    #: Names of the parameters: the optimizer of the dense weights, and their penalty.
    _dense_optimizer: ClassVar[str]
    _dense_alpha: ClassVar[str]

    def _penalized(self):
        """Return 1 for each dense weight that the penalty is for, and 0 for others; float32."""
        return np.ones(self._dense.shape[1], dtype=np.float32)

    def _dropouts(self):
        """Return the shares of values that training drops, see ``DenseTraining``."""
        return np.zeros(0, dtype=np.float32)

    @property
    def _has_dense(self):
        """Whether there are any dense weights; without, the model is a plain one."""
        return self._dense.size > 0

    @property
    def _weight_names(self):
        return (*PlainFactors._weight_names, *(("_dense",) if self._has_dense else ()))

    def _trained_arrays(self):
        states = self._dense_state.values() if self._has_dense else ()
        return [*super()._trained_arrays(), *states]

    def _begin_part(self, part, tokens):
        part._dense = aligned_copy(self._dense)
        part._dense_state = {n: aligned_copy(a) for n, a in self._dense_state.items()}
        if self.fields_ is not None:
            part.fields_ = self.fields_[tokens]
        super()._begin_part(part, tokens)

    def _tables(self):
        # Clusters average the states as they do the weights.
        arrays = self._dense, *self._dense_state.values()
        dense = [ModelTable(array[:, np.newaxis], WEIGHTS, None) for array in arrays if array.size]
        return [*super()._tables(), *dense]

    def set_params(self, **params):
        """Set parameters, including those of components that are given by name.

        ``set_params(optimizer__learning_rate=0.1)`` works whether ``optimizer`` is an instance or a
        name, which is then replaced by an instance; likewise for the optimizer of dense weights.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object
        """
        name_to_instance(self, {self._dense_optimizer: OPTIMIZERS}, params)
        return super().set_params(**params)

    def _checked_dense_optimizer(self):
        """Return the optimizer of the dense weights, which all have one learning rate."""
        name = self._dense_optimizer
        given = getattr(self, name)
        optimizer = resolve(name, given, Optimizer, OPTIMIZERS).with_defaults()
        if optimizer.rate_code != codes.RATE_CONSTANT:
            raise ValueError(
                f"{name}={given!r} adapts learning rates to how often a feature occurs, but "
                f"every row uses all of these weights; choose 'adam', 'adagrad' or 'sgd'."
            )
        if optimizer.step_code == codes.STEP_ROWWISE_ADAGRAD:
            raise ValueError(
                f"{name}={given!r} keeps one number for each row of a table, which these weights "
                f"are not; choose 'adagrad', 'adam' or 'sgd'."
            )
        return optimizer

    def _init_dense(self, n_outputs, n_weights, what, advice):
        """Create the dense weights, all zero, and the state of their optimizer."""
        check_memory(n_outputs * n_weights, f"{what} of {n_weights} weights", advice)
        self._dense = aligned_zeros((n_outputs, n_weights))
        optimizer = self._checked_dense_optimizer()
        setattr(self, f"_{self._dense_optimizer}_name", type(optimizer).__name__)
        shapes = self._dense_state_shapes()
        self._dense_state = {name: aligned_zeros(shape) for name, shape in shapes.items()}

    def _grow_dense(self, places, weights):
        """Replace the dense weights by more of them, among which the old ones take some places."""
        weights[:, places] = self._dense
        self._dense, known = weights, self._dense_state
        self._dense_state = {}
        for name, shape in self._dense_state_shapes().items():
            self._dense_state[name] = aligned_zeros(shape)
            if known[name].size:
                self._dense_state[name][:, places] = known[name]

    def _dense_state_shapes(self):
        """Return the shapes of the arrays in the optimizer state of dense weights, by name."""
        n_outputs, n_weights = self._dense.shape
        first, second = self._checked_dense_optimizer().state_widths(n_weights)
        return {"first": (n_outputs, first), "second": (n_outputs, second)}

    def _dense_training(self, total_weight):
        if not self._has_dense:
            return None
        optimizer, penalty = self._checked_dense_optimizer(), getattr(self, self._dense_alpha)
        if self.alpha_per == "token":
            penalty = penalty / total_weight
        return DenseTraining(
            states=list(zip(*self._dense_state.values(), strict=True)),
            penalties=np.float32(penalty) * self._penalized(),
            dropouts=self._dropouts(),
            rule=optimizer.update_rule(),
            formulas=layer_replacements(optimizer.replacements()),
        )

    # Models to continue, and models from files.

    def _prepare_to_continue(self, optimizer):
        check_same_class(self, self._dense_optimizer, self._checked_dense_optimizer())
        super()._prepare_to_continue(optimizer)
        self._dense = as_kernel_array(self._dense)
        self._dense_state = {n: as_kernel_array(a) for n, a in self._dense_state.items()}

    def _check_state(self, optimizer):
        super()._check_state(optimizer)
        LearnedArrays(self).arrays("_dense_state", self._dense_state, self._dense_state_shapes())
