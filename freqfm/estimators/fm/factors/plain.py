"""The factors of a plain factorization machine: one table."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval

from freqfm._input.validation import as_kernel_input
from freqfm._memory import aligned_empty, aligned_zeros
from freqfm.estimators.fm.base import BaseFM, squeeze_outputs
from freqfm.estimators.fm.explanations.contributions import PairTerm
from freqfm.estimators.tables import COUNTERS, MOMENTS, WEIGHTS, ModelTable
from freqfm.estimators.training import check_unchanged

# The tables of an optimizer's state that belong to the factors.
FACTOR_STATES = ("factors_first", "factors_second")


@dataclass(eq=False, repr=False, kw_only=True)
class PlainFactors(BaseFM):
    """One vector of ``n_components`` numbers for each feature."""

    _parameter_constraints = {"n_components": [Interval(Integral, 1, None, closed="left")]}
    _weight_names = ("intercept_", "coef_", "factors_")

    # The tables of an optimizer's state that belong to the factors.
    _factor_states = FACTOR_STATES

    n_components: int = field(default=16, kw_only=False)

    @property
    def _table(self):
        """The factors as a table that has a row for each feature."""
        return self.factors_

    @_table.setter
    def _table(self, table):
        self.factors_ = table

    def _begin_part(self, part, tokens):
        """Give a part of the model room for the factors of some tokens, see ``ModelPart``."""
        *outputs, _, width = self._table.shape
        n_tokens = len(tokens)
        part._table = aligned_empty((*outputs, n_tokens, width))
        for state in part._optimizer_state:
            for name in self._factor_states:
                n_rows, width = state[name].shape
                state[name] = aligned_empty((min(n_tokens, n_rows), width))

    def _factor_tables(self):
        """Return the ModelTables of factors, and of their optimizer states."""
        kinds = {"per_vector": COUNTERS}
        states = [
            ModelTable(state[name][np.newaxis], kinds.get(name, MOMENTS))
            for state in self._optimizer_state
            for name in self._factor_states
        ]
        return [ModelTable(self._table.reshape(-1, *self._table.shape[-2:]), WEIGHTS), *states]

    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        """Set the factors of all outputs; return their optimizer states."""
        factors = aligned_zeros((n_outputs, *self._factors_shape()))
        for table in factors.reshape(n_outputs, self.n_features_in_, -1):
            table[:] = initializer.table(table.shape, generator, counts)
        self.factors_ = squeeze_outputs(factors)
        return [self._new_state(optimizer, counts) for _ in range(n_outputs)]

    def _factors_shape(self):
        """Return the shape of the factors of an output, by the parameters."""
        return self.n_features_in_, int(self.n_components)

    def _new_state(self, optimizer, counts):
        """Return the state of an output's optimizer before the first batch."""
        return optimizer.init_state(self.n_features_in_, self.factors_.shape[-1], counts)

    def _refuse_growth(self, n_features):
        """Raise if the model cannot get more features."""

    def _grow_tables(self, n_before, optimizer):
        """Extend the arrays to the present number of features."""
        n_features, old = self.n_features_in_, self._table
        counts = np.append(self.token_counts_, np.zeros(n_features - n_before))
        width = old.shape[-1]
        factors = aligned_zeros((*old.shape[:-2], n_features, width))
        factors[..., :n_before, :] = old
        generator = np.random.default_rng([self._seed, n_before])
        shape, initializer = (n_features - n_before, width), self._checked_initializer()
        for table in factors.reshape(-1, n_features, width):
            # As tokens that occur for the first time.
            table[n_before:] = initializer.table(shape, generator, np.ones(shape[0]), n_before)
        self._table = factors
        coef = np.zeros((*self.coef_.shape[:-1], n_features), dtype=np.float32)
        coef[..., :n_before] = self.coef_
        states = []
        for old in self._optimizer_state:
            state = self._new_state(optimizer, counts)._asdict()
            for name, array in state.items():
                array[: len(old[name])] = old[name]
            states.append(dict(state))
        self.coef_, self.token_counts_ = coef, counts
        self._optimizer_state = states
        self.optimizer_state_nbytes_ = sum(state.nbytes for state in self._optimizer_states())

    def _check_factors(self, learned, outputs, n_features):
        """Check the factors, whose shape starts with ``outputs``; see ``LearnedArrays``."""
        *_, width = learned.array("factors_", (*outputs, n_features, None))
        learned.require(width > 0, "factors_", "holds no factors")

    def _state_shapes(self, optimizer):
        """Return the shapes of the arrays in an output's optimizer state, by name."""
        return optimizer.state_shapes(self.n_features_in_, self.factors_.shape[-1])

    def _check_same_shape(self):
        """Raise if the parameters do not fit the factors of the model to continue."""
        width = self.factors_.shape[-1]
        check_unchanged(self, "n_components", width == self.n_components, f"the {width}")

    def _fewest_factors(self):
        """Return the smallest number of factors of a feature, according to the parameters."""
        return int(self.n_components)

    def _pair_terms(self, features):
        """Return the interactions of some features: for every output a list of ``PairTerm``.

        Their rows and columns are places in ``features``.
        """
        every, tables = np.arange(len(features)), self._vectors(features)
        return [[PairTerm(every, vectors, every, vectors)] for vectors in tables]

    def _vectors(self, features):
        """Return the factors of some features, (n_outputs, n, n_components), float64."""
        tables = self.factors_.reshape(-1, *self.factors_.shape[-2:])
        return tables[:, features].astype(np.float64)

    def _outputs(self):
        """Return the FMWeights of every output, as views of the model's arrays."""
        factors = as_kernel_input(self.factors_).reshape(-1, *self.factors_.shape[-2:])
        return self._outputs_with(factors)
