"""The factors of a field-weighted machine: one table, and a weight for each pair of fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from freqfm._components import NON_NEGATIVE
from freqfm._input.validation import as_kernel_input
from freqfm._memory import aligned_zeros
from freqfm.backends.base import FieldWeights
from freqfm.estimators.fm.explanations.contributions import PairTerm
from freqfm.estimators.fm.factors.dense import FactorsWithDense
from freqfm.estimators.fm.factors.fields import FactorsByField, count_fields
from freqfm.optimizers import Optimizer


@dataclass(eq=False, repr=False, kw_only=True)
class FieldWeightedFactors(FactorsByField, FactorsWithDense):
    """One vector for each feature, and a weight for each pair of fields."""

    _parameter_constraints = {
        "field_optimizer": "no_validation",
        "alpha_fields": NON_NEGATIVE,
    }
    _divergence_hint = (
        f"a smaller rate of field_optimizer, such as field_optimizer=Adam(1e-4), or "
        f"{FactorsWithDense._divergence_hint}"
    )

    field_optimizer: str | Optimizer = "adam"
    alpha_fields: float = 100.0

    _dense_optimizer = "field_optimizer"
    _dense_alpha = "alpha_fields"

    @property
    def field_weights_(self):
        """The weights of pairs of fields, as a symmetric matrix."""
        if not hasattr(self, "_dense"):
            raise AttributeError(f"{type(self).__name__} has no field_weights_ before fit")
        n_fields = self._n_fields
        weights = np.empty((len(self._dense), n_fields, n_fields), dtype=np.float32)
        rows, columns = np.triu_indices(n_fields)
        weights[:, rows, columns] = weights[:, columns, rows] = 1 + self._dense
        return weights[0] if len(weights) == 1 else weights

    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        states = super()._init_factors(n_outputs, initializer, generator, counts, optimizer)
        self._n_fields = n_fields = count_fields(self.fields_)
        self._init_dense(n_outputs, _pairs(n_fields), f"{n_fields} fields", "Take fewer fields.")
        return states

    def _grow_tables(self, n_before, optimizer):
        super()._grow_tables(n_before, optimizer)
        n_known, n_fields = self._n_fields, count_fields(self.fields_)
        if n_fields > n_known:
            self._n_fields = n_fields
            known = np.flatnonzero(np.triu_indices(n_fields)[1] < n_known)
            self._grow_dense(known, aligned_zeros((len(self._dense), _pairs(n_fields))))

    def _pair_terms(self, features):
        every, fields = np.arange(len(features)), self.fields_[features]
        weights = self.field_weights_.reshape(-1, self._n_fields, self._n_fields)
        found = []
        for vectors, of_output in zip(self._vectors(features), weights, strict=True):
            terms = []
            for number in np.unique(fields):
                rows = np.flatnonzero(fields == number)
                weighted = of_output[number, fields][:, None] * vectors
                terms.append(PairTerm(rows, vectors[rows], every, weighted))
            found.append(terms)
        return found

    def _outputs(self):
        fields, n_fields = as_kernel_input(self.fields_, np.int32), self._n_fields
        dense = [FieldWeights(of, fields, n_fields) for of in as_kernel_input(self._dense)]
        return [of._replace(dense=d) for of, d in zip(super()._outputs(), dense, strict=True)]

    # Models to continue, and models from files.

    def _check_factors(self, learned, outputs, n_features):
        super()._check_factors(learned, outputs, n_features)
        learned.array("fields_", (n_features,), "i")
        n_fields = learned.size("_n_fields")
        learned.indices("fields_", self.fields_, n_fields)
        learned.array("_dense", (len(self.intercept_), _pairs(n_fields)))


def _pairs(n_fields):
    """Return the number of pairs of fields, a field with itself included."""
    return n_fields * (n_fields + 1) // 2
