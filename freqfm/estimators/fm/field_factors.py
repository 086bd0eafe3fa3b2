"""The factors of machines whose features have a field: FFM, FwFM, DeepFM and NFM."""

import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from freqfm._components import NON_NEGATIVE, resolve
from freqfm._input.rows import CarriesFields, slices
from freqfm._input.validation import LearnedArrays, as_kernel_input, check_memory, check_sizes
from freqfm._machine import aligned_zeros
from freqfm._sklearn import Interval
from freqfm.backends.base import DenseTraining, FieldVectors, FieldWeights, Tower, layers_of
from freqfm.estimators.fm.base import FACTOR_STATES
from freqfm.estimators.fm.explanations import PairTerm
from freqfm.estimators.fm.factors import PlainFactors
from freqfm.estimators.fm.fields import resolve_fields
from freqfm.estimators.state import MEANS, OPTIMIZER, WEIGHTS, Learned
from freqfm.estimators.training import check_same_class
from freqfm.formulas import codes
from freqfm.formulas.steps import layer_replacements
from freqfm.optimizers import OPTIMIZERS, Optimizer

# Without ``fields`` every column is a field, and a row takes time for each pair of them.
_MOST_COLUMNS = 256

_GIVE_FIELDS = (
    "Wrap all that makes X in freqfm.WithFields, such as WithFields(OneHotEncoder()) or "
    "WithFields(ColumnTransformer(...)), or give the field of each column, as "
    "freqfm.column_fields(encoder) returns it."
)

# Rows that are searched at a time for columns that are categories, and the number of rows with two
# of them that are expected by chance if columns are independent, from which on they are.
_ROWS, _BY_CHANCE = 1 << 14, 10

# For each model its fields and those that rows carried when it was last called; the rows of an
# encoder share an array, which is not compared again for every row.
_AGREED = weakref.WeakKeyDictionary()


def count_fields(fields):
    """Return the number of fields, by those of all columns."""
    return 1 + int(fields.max())


def _continued(labels, found, known_labels, known):
    """Return the labels and the fields of a model's columns and of new ones.

    ``known`` are those of the model, ``found`` those of all columns. The same fields may have other
    numbers, since new ones may come first in order, and other labels, but not those of each other.
    New fields get the next numbers.
    """
    if found is not None and known is not None:
        number = np.full(len(labels), -1, dtype=np.int32)
        of_known = found[: len(known)]
        number[of_known] = known
        is_new = number < 0
        n_known = count_fields(known)
        place = {label: k for k, label in enumerate(known_labels)}
        renamed = zip(labels, number.tolist(), strict=True)
        swapped = any(k >= 0 and place.get(label, k) != k for label, k in renamed)
        same = np.array_equal(number[of_known], known) and not swapped
        if same and np.count_nonzero(~is_new) == n_known:
            number[is_new] = np.arange(n_known, len(labels))
            return [labels[i] for i in np.argsort(number)], number[found]
    raise ValueError(
        "fields differ from those of the model to continue; set them back, give rows that carry "
        "the same fields for the columns that the model has, or fit a new model with "
        "warm_start=False."
    )


def _find_categories(X):
    """Return the first and last of adjacent columns that are categories of a variable, or None.

    They hold one number each, and no row has two of them, although by chance several rows would:
    ten, which columns that are independent miss with a probability of exp(-10).
    """
    n_columns = X.shape[1]
    counts, values = np.zeros((2, n_columns))
    # For each column the nearest one at its right that shares a row with it; itself, if it varies.
    stop = np.full(n_columns, n_columns)
    for rows in slices(X.shape[0], _ROWS):
        indptr = X.indptr[rows.start : rows.stop + 1]
        columns, data = (array[indptr[0] : indptr[-1]] for array in (X.indices, X.data))
        counts += np.bincount(columns, minlength=n_columns)
        values[columns] = np.where(values[columns] == 0, data, values[columns])
        varied = columns[data != values[columns]]
        stop[varied] = np.minimum(stop[varied], varied)
        in_row = np.ones(len(columns) + 1, dtype=bool)
        in_row[indptr - indptr[0]] = False
        inner = np.flatnonzero(in_row[:-1])
        in_rows = np.zeros((n_columns, n_columns), dtype=bool)
        in_rows[columns[inner - 1], columns[inner]] = True
        lefts, rights = np.nonzero(in_rows)
        np.minimum.at(stop, lefts, rights)
        ends = np.minimum.accumulate(stop[::-1])[::-1]
        sums, squares = (np.append(0, np.cumsum(part)) for part in (counts, counts**2))
        begins = np.arange(n_columns)
        held, paired = sums[ends] - sums[begins], squares[ends] - squares[begins]
        by_chance = np.where(ends > begins, held**2 - paired, 0) / (2 * min(rows.stop, X.shape[0]))
        first = int(by_chance.argmax())
        if by_chance[first] < _BY_CHANCE:
            return None
    return first, int(ends[first]) - 1


@dataclass(eq=False, repr=False, kw_only=True)
class FieldsParameter:
    """The parameter ``fields`` and the attribute ``fields_``; before the class of the factors."""

    _parameter_constraints = {"fields": ["array-like", callable, None]}

    fields: ArrayLike | Callable | None = None

    # The labels of the fields by number.
    _field_labels = None

    def _begin_part(self, part, tokens):
        if self.fields_ is not None:
            part.fields_ = self.fields_[tokens]
        super()._begin_part(part, tokens)

    def _check_shapes(self, learned, sizes):
        if learned.get("fields_") is not None:
            learned.array("fields_", (sizes["features"],), "i")
        super()._check_shapes(learned, sizes)

    def _check_factors(self, learned, sizes):
        super()._check_factors(learned, sizes)
        if self.fields_ is not None:
            learned.indices("fields_", self.fields_, sizes["fields"])

    def _fields_of(self, X):
        """Return the labels of fields, and the field of each feature as a number, or None twice."""
        return resolve_fields(self.fields, X, self.n_features_in_)

    def _take_fields(self, X, reset):
        labels, found = self._fields_of(X)
        if not (reset or (np.array_equal(found, self.fields_) and labels == self._field_labels)):
            labels, found = _continued(labels, found, self._field_labels or (), self.fields_)
        self.fields_, self._field_labels = found, labels

    def _check_carried(self, X):
        carried, both = X.fields, (self.fields_, X.fields)
        if carried is None or self._field_labels is None or len(carried) > len(self.fields_):
            return
        if not all(map(operator.is_, both, _AGREED.get(self, (None, None)))):
            if not self._agrees_with(carried):
                raise ValueError(
                    f"X carries fields other than those of the columns that the "
                    f"{type(self).__name__} was trained on; give rows of the same encoder, with "
                    f"the same columns in the same order."
                )
            _AGREED[self] = both

    def _agrees_with(self, carried):
        own, labels = self.fields_[: len(carried)], self._field_labels
        found, codes = np.unique(carried, return_inverse=True)
        if self.fields is None or set(found.tolist()) == set(labels):
            return np.array_equal(np.array(labels)[own], carried)
        # Labels of the user's own: each may stand for several that are carried, or be a part.
        n_pairs = len(np.unique(codes * len(labels) + own))
        return n_pairs <= max(len(found), len(labels))


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsByField(FieldsParameter, PlainFactors):
    """Factors of features that all have a field: without ``fields`` each one of its own."""

    def _fields_of(self, X):
        (labels, fields), n_features = super()._fields_of(X), self.n_features_in_
        if fields is not None:
            return labels, fields
        if n_features > _MOST_COLUMNS:
            raise ValueError(
                f"fields=None makes every column of X a field, but X has {n_features} columns, and "
                f"at most {_MOST_COLUMNS} can be fields that way. {_GIVE_FIELDS}"
            )
        return list(range(n_features)), np.arange(n_features, dtype=np.int32)

    def _check_shapes(self, learned, sizes):
        learned.array("fields_", (sizes["features"],), "i")
        super()._check_shapes(learned, sizes)

    def _refuse_categories(self, given, X):
        if self.fields is None and not isinstance(given, CarriesFields):
            found = _find_categories(X)
            if found is not None:
                raise ValueError(
                    f"fields=None makes every column of X a field, but columns {found[0]} to "
                    f"{found[1]} are categories of one variable: no row holds two of them. "
                    f"{_GIVE_FIELDS} If each of them is to be a field, give "
                    f"fields=np.arange({X.shape[1]})."
                )


# The dense weights and their optimizer's arrays, which clusters average as they do the weights.
_DENSE = (
    Learned("_dense", ("outputs", "dense"), WEIGHTS),
    Learned(("_dense_state", "first"), ("outputs", None), OPTIMIZER, merge=MEANS),
    Learned(("_dense_state", "second"), ("outputs", None), OPTIMIZER, merge=MEANS),
)


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithDense(PlainFactors):
    """One vector for each feature, and weights that every row uses, with their own optimizer."""

    #: Names of the parameters: the optimizer of the dense weights, and their penalty.
    _dense_optimizer: ClassVar[str]
    _dense_alpha: ClassVar[str]

    def _dense_of(self, weights):
        """Return the dense part of the FMWeights of an output, given its dense weights."""

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

    def _check_shapes(self, learned, sizes):
        super()._check_shapes(learned, sizes)
        learned.array("_dense", (sizes["outputs"], None))

    def _learned_weights(self):
        return [*super()._learned_weights(), *(_DENSE[:1] if self._has_dense else ())]

    def _learned(self):
        return [*super()._learned(), *_DENSE[1:]]

    def _components_by_name(self, params):
        return {**super()._components_by_name(params), self._dense_optimizer: OPTIMIZERS}

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

    def _outputs(self):
        outputs = super()._outputs()
        if not self._has_dense:
            return outputs
        pairs = zip(outputs, as_kernel_input(self._dense), strict=True)
        return [output._replace(dense=self._dense_of(weights)) for output, weights in pairs]

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

    def _check_state(self, optimizer):
        super()._check_state(optimizer)
        LearnedArrays(self).arrays("_dense_state", self._dense_state, self._dense_state_shapes())


@dataclass(eq=False, repr=False, kw_only=True)
class FieldAwareFactors(FactorsByField):
    """A vector of ``n_components`` numbers for each feature and field."""

    _usual_penalties = 1.0, 2.0
    # Vectors of few numbers need a third fewer epochs than with 0.001.
    _usual_scale = 0.03

    n_components: int = field(default=4, kw_only=False)

    @property
    def _n_fields(self):
        return self.factors_.shape[-2]

    _axes = ("fields", "components")

    def _factors_shape(self):
        return self.n_features_in_, count_fields(self.fields_), int(self.n_components)

    def _grow_fields(self, n_before):
        """Give each feature vectors for new fields, drawn as those of a new model."""
        n_fields, (*outputs, _, n_known, d) = count_fields(self.fields_), self.factors_.shape
        if n_fields == n_known:
            return
        generator = np.random.default_rng([self._seed, n_before, n_fields])
        factors, initializer = [], self._checked_initializer()
        for known in self.factors_.reshape(-1, n_before, n_known * d):
            shape = n_before, n_fields * d
            table = initializer.table(shape, generator, np.maximum(self.token_counts_, 1))
            table[:, : known.shape[1]] = known
            factors.append(table)
        self.factors_ = np.reshape(factors, (*outputs, n_before, n_fields, d))
        # Those of new fields are at the end of each row, at first zeros.
        for entry in self._learned():
            if entry.role == OPTIMIZER and len(entry.axes) == 2:
                n, width = (known := entry.get(self)).shape
                zeros = np.zeros((n, width // n_known * (n_fields - n_known)), np.float32)
                entry.set(self, np.hstack([known, zeros]))

    def _state_shapes(self, optimizer):
        n_features, n_fields, d = self.factors_.shape[-3:]
        shapes = optimizer.state_shapes(n_features, d)
        for name in FACTOR_STATES:
            n, width = shapes[name]
            shapes[name] = n, n_fields * width
        counted = optimizer.rate_code == codes.RATE_COUNTED
        return {**shapes, "per_vector": (n_features, n_fields) if counted else (0, 0)}

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
        tables = as_kernel_input(self.factors_).reshape(len(self.intercept_), len(fields), -1)
        return self._outputs_with([FieldVectors(table, fields, n_fields) for table in tables])


@dataclass(eq=False, repr=False, kw_only=True)
class FieldWeightedFactors(FactorsByField, FactorsWithDense):
    """One vector for each feature, and a weight for each pair of fields."""

    _parameter_constraints = {"field_optimizer": "no_validation", "alpha_fields": NON_NEGATIVE}
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

    def _init_factors(self, n_outputs, initializer, generator, counts):
        super()._init_factors(n_outputs, initializer, generator, counts)
        self._n_fields = n_fields = count_fields(self.fields_)
        self._init_dense(n_outputs, _pairs(n_fields), f"{n_fields} fields", "Take fewer fields.")

    def _grow_fields(self, n_before):
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

    def _dense_of(self, weights):
        return FieldWeights(weights, as_kernel_input(self.fields_, np.int32), self._n_fields)

    def _check_shapes(self, learned, sizes):
        super()._check_shapes(learned, sizes)
        sizes["fields"] = learned.size("_n_fields")
        sizes["dense"] = _pairs(sizes["fields"])


def _pairs(n_fields):
    """Return the number of pairs of fields, a field with itself included."""
    return n_fields * (n_fields + 1) // 2


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
        hidden = check_sizes("hidden_layer_sizes", self.hidden_layer_sizes, empty_allowed=True)
        n_fields = 1 if fields is None else count_fields(fields)
        return np.array([n_fields * int(self.n_components), *hidden], dtype=np.int64)

    def _init_factors(self, n_outputs, initializer, generator, counts):
        super()._init_factors(n_outputs, initializer, generator, counts)
        self._layer_widths = self._widths(self.fields_)
        n_weights = _count_weights(self._layer_widths)
        advice = "Take smaller hidden_layer_sizes, or fewer fields."
        self._init_dense(n_outputs, n_weights, "Dense layers", advice)
        if self._has_dense:
            for weights in self._dense:
                _draw_layers(self._layer_widths, weights, generator, self._layer_scale)

    def _grow_fields(self, n_before):
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

    def _dense_of(self, weights):
        fields, widths = self.fields_, as_kernel_input(self._layer_widths, np.int64)
        n_fields = 0 if fields is None else int(widths[0]) // self.factors_.shape[-1]
        fields = _NO_FIELDS if fields is None else as_kernel_input(fields, np.int32)
        return Tower(weights, widths, fields, n_fields, self._keeps_pairs)

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

    def _check_shapes(self, learned, sizes):
        super()._check_shapes(learned, sizes)
        learned.array("_layer_widths", (None,), "i")
        widths, fields = self._layer_widths, learned.get("fields_")
        fits = len(widths) and (widths > 0).all()
        learned.require(fits, "_layer_widths", "does not hold the widths of layers")
        sizes["fields"] = 1 if fields is None else count_fields(fields)
        sizes["dense"] = _count_weights(widths)
        learned.array("_dense", (sizes["outputs"], sizes["dense"]))

    def _check_factors(self, learned, sizes):
        super()._check_factors(learned, sizes)
        fits = self._layer_widths[0] == sizes["fields"] * sizes["components"]
        learned.require(fits, "_layer_widths", "does not fit factors_ and fields_")


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithFieldsTower(FieldsParameter, FactorsWithTower):
    """One vector for each feature, and dense layers on top of the vectors of a row."""


@dataclass(eq=False, repr=False, kw_only=True)
class FactorsWithPooledTower(FactorsWithTower):
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
