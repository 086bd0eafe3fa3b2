"""The factors of a field-aware machine: of each feature a vector for each field."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from freqfm._input.validation import as_kernel_input
from freqfm._memory import aligned_zeros
from freqfm.backends.base import FieldVectors
from freqfm.estimators.fm.explanations.contributions import PairTerm
from freqfm.estimators.fm.factors.fields import FactorsByField, count_fields
from freqfm.estimators.fm.factors.plain import FACTOR_STATES
from freqfm.formulas import codes
from freqfm.optimizers import OptimizerState


@dataclass(eq=False, repr=False, kw_only=True)
class FieldAwareFactors(FactorsByField):
    """A vector of ``n_components`` numbers for each feature and field."""

    _factor_states = (*FACTOR_STATES, "per_vector")
    _usual_penalties = 1.0, 2.0
    # Vectors of few numbers need a third fewer epochs than with 0.001.
    _usual_scale = 0.03

    n_components: int = field(default=4, kw_only=False)

    @property
    def _n_fields(self):
        return self.factors_.shape[-2]

    @property
    def _table(self):
        return self.factors_.reshape(*self.factors_.shape[:-2], -1)

    @_table.setter
    def _table(self, table):
        self.factors_ = table.reshape(*table.shape[:-1], *self.factors_.shape[-2:])

    def _factors_shape(self):
        return self.n_features_in_, count_fields(self.fields_), int(self.n_components)

    def _new_state(self, optimizer, counts):
        shapes = self._state_shapes(optimizer)
        arrays = {name: aligned_zeros(shape) for name, shape in shapes.items()}
        of_features = super()._new_state(optimizer, counts)
        return OptimizerState(**{**arrays, "per_row": of_features.per_row})

    def _grow_tables(self, n_before, optimizer):
        if count_fields(self.fields_) > self._n_fields:
            self._grow_vectors(n_before)
        super()._grow_tables(n_before, optimizer)

    def _grow_vectors(self, n_before):
        """Give each feature vectors for new fields, drawn as those of a new model."""
        n_fields, (*outputs, _, n_known, d) = count_fields(self.fields_), self.factors_.shape
        generator = np.random.default_rng([self._seed, n_before, n_fields])
        factors, initializer = [], self._checked_initializer()
        for known in self._table.reshape(-1, n_before, n_known * d):
            shape = n_before, n_fields * d
            table = initializer.table(shape, generator, np.maximum(self.token_counts_, 1))
            table[:, : known.shape[1]] = known
            factors.append(table)
        self.factors_ = np.reshape(factors, (*outputs, n_before, n_fields, d))
        # Those of new fields are at the end of each row, at first zeros.
        states = [dict(state) for state in self._optimizer_state]
        for state in states:
            for name in self._factor_states:
                n, width = state[name].shape
                zeros = np.zeros((n, width // n_known * (n_fields - n_known)), np.float32)
                state[name] = np.hstack([state[name], zeros])
        self._optimizer_state = states

    def _state_shapes(self, optimizer):
        n_features, n_fields, d = self.factors_.shape[-3:]
        shapes = optimizer.state_shapes(n_features, d)
        for name in FACTOR_STATES:
            n, width = shapes[name]
            shapes[name] = n, n_fields * width
        counted = optimizer.rate_code == codes.RATE_COUNTED
        return {**shapes, "per_vector": (n_features, n_fields) if counted else (0, 0)}

    def _fewest_factors(self):
        return int(self.n_components) * count_fields(self.fields_)

    def _check_factors(self, learned, outputs, n_features):
        learned.array("fields_", (n_features,), "i")
        *_, n_fields, d = learned.array("factors_", (*outputs, n_features, None, None))
        learned.require(n_fields > 0 and d > 0, "factors_", "holds no factors")
        learned.indices("fields_", self.fields_, n_fields)

    def _pair_terms(self, features):
        fields = self.fields_[features]
        found, tables = [], self.factors_.reshape(-1, *self.factors_.shape[-3:])
        members = [(field, np.flatnonzero(fields == field)) for field in np.unique(fields)]
        for table in tables[:, features].astype(np.float64):
            terms = [
                PairTerm(rows, table[rows, g], columns, table[columns, f])
                for f, rows in members
                for g, columns in members
            ]
            found.append(terms)
        return found

    def _outputs(self):
        fields, n_fields = as_kernel_input(self.fields_, np.int32), self._n_fields
        tables = as_kernel_input(self._table).reshape(len(self.intercept_), len(fields), -1)
        return self._outputs_with([FieldVectors(table, fields, n_fields) for table in tables])
