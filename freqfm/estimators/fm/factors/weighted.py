"""The factors of a field-weighted machine: one table, and a weight for each pair of fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from freqfm._components import NON_NEGATIVE
from freqfm._input.validation import as_kernel_input
from freqfm.backends.base import FieldWeights
from freqfm.estimators.fm.factors.dense import FactorsWithDense
from freqfm.estimators.fm.factors.tower import FactorsWithTower
from freqfm.optimizers import Optimizer

# Without ``fields`` every column is a field, and a row takes time for each pair of them.
_MOST_COLUMNS = 256


@dataclass(eq=False, repr=False, kw_only=True)
class FieldWeightedFactors(FactorsWithDense):
    """One vector for each feature, and a weight for each pair of fields."""

    _parameter_constraints = {
        **FactorsWithDense._parameter_constraints,
        "fields": ["array-like", None],
        "field_optimizer": "no_validation",
        "alpha_fields": NON_NEGATIVE,
    }
    _divergence_hint = (
        f"a smaller rate of field_optimizer, such as field_optimizer=Adam(1e-4), or "
        f"{FactorsWithDense._divergence_hint}"
    )

    fields: ArrayLike | None = None
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

    def _known_fields(self):
        """Return the field of each feature as a number from 0 on."""
        fields, n_features = FactorsWithTower._encoded_fields(self), self.n_features_in_
        if fields is not None:
            return fields
        if n_features > _MOST_COLUMNS:
            raise ValueError(
                f"fields=None makes every column of X a field, but X has {n_features} columns, and "
                f"at most {_MOST_COLUMNS} can be fields that way. Give the field of each column, "
                f"as freqfm.column_fields(encoder) returns it."
            )
        return np.arange(n_features, dtype=np.int32)

    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        states = super()._init_factors(n_outputs, initializer, generator, counts, optimizer)
        self.fields_ = self._known_fields()
        self._n_fields = n_fields = 1 + int(self.fields_.max())
        self._init_dense(n_outputs, _pairs(n_fields), f"{n_fields} fields", "Take fewer fields.")
        return states

    def _outputs(self):
        fields, n_fields = as_kernel_input(self.fields_, np.int32), self._n_fields
        dense = [FieldWeights(of, fields, n_fields) for of in as_kernel_input(self._dense)]
        return [of._replace(dense=d) for of, d in zip(super()._outputs(), dense, strict=True)]

    # Models to continue, and models from files.

    def _refuse_growth(self, n_features):
        raise ValueError(
            f"n_features={n_features} would add features to a model of {len(self.fields_)}, whose "
            f"fields are given one by one; hash new tokens into the known features."
        )

    def _check_same_shape(self):
        super()._check_same_shape()
        if not np.array_equal(self._known_fields(), self.fields_):
            raise ValueError(
                "fields differ from those of the model to continue; set them back, or fit a new "
                "model with warm_start=False."
            )

    def _check_factors(self, learned, outputs, n_features):
        super()._check_factors(learned, outputs, n_features)
        learned.array("fields_", (n_features,), "i")
        n_fields = learned.size("_n_fields")
        learned.indices("fields_", self.fields_, n_fields)
        learned.array("_dense", (len(self.intercept_), _pairs(n_fields)))


def _pairs(n_fields):
    """Return the number of pairs of fields, a field with itself included."""
    return n_fields * (n_fields + 1) // 2
