"""The factors of a DeepFM or NFM: one table, and a tower of dense layers on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval

from freqfm._components import NON_NEGATIVE
from freqfm._input.validation import as_kernel_input, layer_sizes
from freqfm._memory import aligned_zeros
from freqfm.backends.base import Tower, layers_of
from freqfm.estimators.fm.factors.dense import FactorsWithDense
from freqfm.estimators.fm.factors.fields import FieldsParameter, count_fields
from freqfm.optimizers import Optimizer

_NO_FIELDS = np.zeros(0, dtype=np.int32)


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithTower(FactorsWithDense):
    """One vector for each feature, and dense layers on top of the pooled interactions of a row."""

    _parameter_constraints = {
        "hidden_layer_sizes": ["array-like"],
        "layer_optimizer": "no_validation",
        "alpha_layers": NON_NEGATIVE,
        "dropout": [Interval(Real, 0, 1, closed="left")],
    }
    _divergence_hint = (
        f"a smaller rate of layer_optimizer, such as layer_optimizer=Adam(1e-4), or "
        f"{FactorsWithDense._divergence_hint}"
    )

    hidden_layer_sizes: ArrayLike = (64,)
    layer_optimizer: str | Optimizer = "adam"
    alpha_layers: float = 30.0
    dropout: float = 0.5

    _dense_optimizer = "layer_optimizer"
    _dense_alpha = "alpha_layers"

    # Whether the score has the sum over pairs beside the tower.
    _keeps_pairs = True

    # Factor of the initial weights of layers.
    _layer_scale = 1.0

    fields_ = None

    @property
    def layers_(self):
        """The dense layers, as views of the model's weights."""
        if not hasattr(self, "_dense"):
            raise AttributeError(f"{type(self).__name__} has no layers_ before fit")
        layers = layers_of(self._layer_widths, self._dense)
        return [layer[0] if len(layer) == 1 else layer for layer in layers]

    def _widths(self, fields):
        """Return the widths of the input and of every layer, according to the parameters."""
        hidden = layer_sizes("hidden_layer_sizes", self.hidden_layer_sizes, empty_allowed=True)
        n_fields = 1 if fields is None else count_fields(fields)
        return np.array([n_fields * int(self.n_components), *hidden], dtype=np.int64)

    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        states = super()._init_factors(n_outputs, initializer, generator, counts, optimizer)
        self._layer_widths = self._widths(self.fields_)
        n_weights = _count_weights(self._layer_widths)
        advice = "Take smaller hidden_layer_sizes, or fewer fields."
        self._init_dense(n_outputs, n_weights, "Dense layers", advice)
        if self._has_dense:
            for weights in self._dense:
                _draw_layers(self._layer_widths, weights, generator, self._layer_scale)
        return states

    def _grow_tables(self, n_before, optimizer):
        super()._grow_tables(n_before, optimizer)
        before, widths = self._layer_widths, self._widths(self.fields_)
        self._layer_widths = widths
        if widths[0] > before[0] and self._has_dense:
            weights = aligned_zeros((len(self._dense), _count_weights(widths)))
            generator = np.random.default_rng([self._seed, n_before, widths[0]])
            for of_output in weights:
                _draw_layers(widths, of_output, generator, self._layer_scale)
            # The first layer has a row for each input, and one of biases at the end.
            first, *others = layers_of(widths, np.arange(weights.shape[1]))
            known = first[:, np.append(np.arange(before[0]), widths[0])]
            places = np.concatenate([layer.ravel() for layer in (known, *others)])
            self._grow_dense(places, weights)

    def _outputs(self):
        outputs, fields = super()._outputs(), self.fields_
        if not self._has_dense:
            return outputs
        n_fields = 0 if fields is None else int(self._layer_widths[0]) // self.factors_.shape[-1]
        fields = _NO_FIELDS if fields is None else as_kernel_input(fields, np.int32)
        widths = as_kernel_input(self._layer_widths, np.int64)
        pairs = self._keeps_pairs
        towers = [Tower(of, widths, fields, n_fields, pairs) for of in as_kernel_input(self._dense)]
        return [of._replace(dense=tower) for of, tower in zip(outputs, towers, strict=True)]

    def _pair_terms(self, features):
        if self._keeps_pairs or not self._has_dense:
            return super()._pair_terms(features)
        return [[] for _ in self.intercept_]

    def _penalized(self):
        """Return 1 for each weight, and 0 for each bias."""
        found = np.ones(_count_weights(self._layer_widths), dtype=np.float32)
        for layer in layers_of(self._layer_widths, found)[:-1]:
            layer[:, -1] = 0
        return found

    def _dropouts(self):
        return np.full(len(self._layer_widths), self.dropout, dtype=np.float32)

    # Models to continue, and models from files.

    def _check_same_shape(self):
        super()._check_same_shape()
        if not np.array_equal(self._widths(self.fields_), self._layer_widths):
            raise ValueError(
                "hidden_layer_sizes differ from those of the model to continue; set them back, or "
                "fit a new model with warm_start=False."
            )

    def _check_factors(self, learned, outputs, n_features):
        super()._check_factors(learned, outputs, n_features)
        learned.array("_layer_widths", (None,), "i")
        widths, d = self._layer_widths, self.factors_.shape[-1]
        n_fields, fields = 1, learned.get("fields_")
        if fields is not None:
            learned.array("fields_", (n_features,), "i")
            n_fields = count_fields(fields)
            learned.indices("fields_", fields, n_fields)
        fits = len(widths) and (widths > 0).all() and widths[0] == n_fields * d
        learned.require(fits, "_layer_widths", "does not fit factors_ and fields_")
        learned.array("_dense", (len(self.intercept_), _count_weights(widths)))


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithFieldsTower(FieldsParameter, FactorsWithTower):
    """One vector for each feature, and dense layers on top of the vectors of a row."""


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsUnderTower(FactorsWithTower):
    """One vector for each feature, whose interactions only enter the score through dense layers."""

    alpha_layers: float = 100.0

    _keeps_pairs = False
    # If interactions enter the score through layers only, vectors that start near 0, or layers of
    # the usual initial weights, let the penalty on the vectors win; see docs/results_deepfm.rst.
    _usual_scale, _layer_scale = 0.1, 3.0


def _count_weights(widths):
    """Return the number of weights of a tower; without layers there are none."""
    if len(widths) == 1:
        return 0
    return int(((widths[:-1] + 1) * widths[1:]).sum() + widths[-1])


def _draw_layers(widths, weights, generator, scale):
    """Draw initial weights and biases, uniform as those of scikit-learn's ``MLPClassifier``."""
    fans = [*(n_in + n_out for n_in, n_out in pairwise(widths)), widths[-1] + 1]
    for layer, fan in zip(layers_of(widths, weights), fans, strict=True):
        bound = scale * np.sqrt(6 / fan)
        layer[...] = generator.uniform(-bound, bound, layer.shape)
