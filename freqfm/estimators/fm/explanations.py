"""Why a factorization machine gives a score: Shapley values in closed form, and what follows.

The score of a machine of order two is f(x) = w_0 + w x + x W x / 2, with a symmetric matrix W of
pair interactions whose diagonal is zero. For a pair of entries and one reference row b, the Shapley
value of entry i of the term W_ij x_i x_j is the mean of its two marginal contributions,
W_ij (x_i - b_i) b_j and W_ij (x_i - b_i) x_j. So, with means over reference rows::

    phi_i = w_i (x_i - E b_i) + sum_j W_ij E[(x_i - b_i) (x_j + b_j)] / 2
          = (x_i - E b_i) (w_i + (W x)_i / 2) + (x_i (W E b)_i - E[b_i (W b)_i]) / 2.

Only the first moments of the reference rows and E[b_i (W b)_i] are needed. With the empty row as
reference, phi_i = x_i (w_i + (W x)_i / 2): the linear term and half of each interaction.

``explain`` adds up what belongs to the columns that a user knows, in pipelines too.
"""

import copy
import re
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from freqfm._input.frames import is_frame
from freqfm._input.ids import unique_codes
from freqfm._input.rows import column_sums, concatenated_ranges, slices, with_one_index_type
from freqfm._input.validation import as_array, check_count, check_flag, kernel_csr, validate_rows
from freqfm._messages import shown
from freqfm.backends.base import Tower, layers_of
from freqfm.estimators.fm.fields import WithFields, checked_labels, column_fields
from freqfm.model_selection._holdout import models_in, steps_of, transform

# The name of a column for a transformer, which tells by its own names what comes of it. These are
# characters for private use.
_MARK, _END = "\ue000", "\ue001"
_NUMBER = re.compile(f"{_MARK}(\\d+){_END}")

# Functions whose columns are those that they get, one by one.
_ELEMENTWISE = np.ufunc, type(None)


def checked_names(model, names):
    """Return the names of all features, as an array of objects."""
    n = model.n_features_in_
    if names is None:
        names = getattr(model, "feature_names_in_", [f"x{k}" for k in range(n)])
    names = as_array("feature_names", names).astype(object)
    if names.shape != (n,):
        raise ValueError(
            f"feature_names has the shape {names.shape}, but the model has {n} features; give one "
            f"name for each, as get_feature_names_out of the encoder does."
        )
    return names


def group_columns(model, fields, feature_names=None):
    """Return the group of each feature, from 0 on, and the names of the groups.

    Parameters
    ----------
    model : BaseFM
    fields : transformer or array-like of shape (n_features,), or None
        As in ``ExplanationMixin.explain``. Without them each feature is a group.
    feature_names : array-like of shape (n_features,), default=None
        The names of the groups if ``fields`` is None.

    Raises
    ------
    TypeError, ValueError
        If they are not the fields of the model's features.
    """
    n_features, steps = model.n_features_in_, None
    if fields is None:
        return np.arange(n_features), checked_names(model, feature_names)
    if hasattr(fields, "fit"):  # a column of pandas has transform
        steps, fields = _followed(fields, model)
    labels = checked_labels(
        fields,
        "fields",
        f"the model has {n_features}",
        n_features,
        ", or the fitted encoder that makes the columns.",
    )
    known, codes = unique_codes(labels, "fields")
    order = np.argsort(np.unique(codes, return_index=True)[1])  # of the columns
    names = known[order].tolist() if steps is None else steps.distinct_names(known[order].tolist())
    return np.argsort(order)[codes], np.array(names, dtype=object)


def names_of_features(transformer, model):
    """Return the name of each feature of a model, by the fitted transformer that makes them."""
    try:
        return transformer.get_feature_names_out()
    except (AttributeError, TypeError, ValueError):
        # A step has no names, or two columns would have the same.
        steps, made = _followed(transformer, model, every=True)
        return steps.distinct_names(made.tolist())


def _followed(transformer, model, every=False):
    """Return the steps, and the number of the original column of each column that is made.

    ``model`` gets these columns; with ``every`` each is a column of its own.
    """
    steps = _Steps(every)
    names, n_given = _known_input(transformer)
    table = steps.add(names or [f"x{k}" for k in range(n_given or 0)])
    made = steps.follow(transformer, table, (None, None))
    if made is None:
        made = steps.follow(transformer, table, _known_input(model))
    return steps, made


class _Steps:
    """Follows columns through the steps of a fitted transformer: which comes of which.

    A column has a number, whatever a step calls it. One that comes of a single column has the
    number of that; one that comes of several or of none, such as a component, a hash or a word, has
    a new one.

    Methods take and return the numbers of the columns that a step gets and makes; they return None
    if they do not know how many there are. ``wanted`` has the names and the number of those that it
    makes, or None for what nobody knows; ``makers`` the names of the parts that it is in.
    """

    def __init__(self, every):
        self._every = every
        self._names, self._makers = [], []

    def add(self, names, makers=()):
        """Return the numbers of new columns."""
        self._names += names
        self._makers += [makers] * len(names)
        return np.arange(len(self._names) - len(names), len(self._names))

    def distinct_names(self, numbers):
        """Return a name for each column; where names are equal, with those of its makers."""
        found = [self._names[number] for number in numbers]
        if len(set(found)) < len(found):
            counts, taken = Counter(found), Counter()
            for place, name in enumerate(found):
                if counts[name] > 1:
                    name = "__".join([*self._makers[numbers[place]], name])
                taken[name] += 1
                found[place] = name if taken[name] == 1 else f"{name} ({taken[name]})"
        return found

    def follow(self, transformer, given, wanted, makers=()):
        """Return the original columns of those that a transformer makes of given ones."""
        steps, last = steps_of(transformer)
        steps = [step for step in (*steps, last) if step not in (None, "passthrough")]
        for number, step in enumerate(steps):
            after = steps[number + 1 :]
            made = self._step(step, given, _known_input(after[0]) if after else wanted, makers)
            given = self.add([]) if made is None and after else made
        return given

    def _step(self, step, given, wanted, makers):
        if isinstance(step, Pipeline):
            return self.follow(step, given, wanted, makers)
        if isinstance(step, WithFields):
            check_is_fitted(step)
            return self.follow(step.encoder_, given, wanted, makers)
        if isinstance(step, ColumnTransformer):
            check_is_fitted(step)
            return self._column_transformer(step, given, makers)
        if isinstance(step, FeatureUnion):
            return self._union(step, given, wanted, makers)
        if hasattr(step, "get_support"):
            return given[step.get_support()]
        if isinstance(step, FunctionTransformer) and isinstance(step.func, _ELEMENTWISE):
            return given
        if not self._every:
            with suppress(TypeError):
                return given[column_fields(step)]
        return self._made(step, given, wanted, makers)

    def _column_transformer(self, transformer, given, makers):
        places = transformer.output_indices_
        found = np.empty(max(place.stop for place in places.values()), dtype=np.int64)
        for name, part, columns in transformer.transformers_:
            place = places[name]
            if place.stop > place.start:
                some = given[_positions(transformer, columns)]
                wanted = None, place.stop - place.start
                found[place] = self.follow(part, some, wanted, (*makers, name))
        return found

    def _union(self, union, given, wanted, makers):
        members = [(name, part) for name, part in union.transformer_list if part != "drop"]
        found = [self.follow(part, given, (None, None), (*makers, name)) for name, part in members]
        unknown = [place for place, made in enumerate(found) if made is None]
        if unknown and wanted[1] is None:
            return None
        if len(unknown) > 1:
            names = ", ".join(shown(members[place][0]) for place in unknown)
            raise TypeError(
                f"The members {names} of a FeatureUnion do not tell how many columns they make; "
                f"give them get_feature_names_out, or feature_names_out of FunctionTransformer."
            )
        for place in unknown:
            name, part = members[place]
            n_columns = wanted[1] - sum(len(made) for made in found if made is not None)
            found[place] = self.follow(part, given, (None, n_columns), (*makers, name))
        return np.concatenate([self.add([]), *found])

    def _made(self, step, given, wanted, makers):
        """Return the columns of a transformer that is known by the names of its output at most."""
        names, n_columns = wanted
        marks = [f"{_MARK}{k}{_END}" for k in range(len(given))]
        texts = _names_out(step, marks)
        if texts is not None and n_columns in (None, len(texts)):
            if texts == marks and not self._every:
                return given
            if _MARK not in "".join(texts):
                return self.add(texts, makers)
            return np.array([self._origin(text, given, makers) for text in texts])
        if n_columns is None and isinstance(step, (FeatureHasher, HashingVectorizer)):
            n_columns = step.n_features
        if n_columns is None:
            return None
        if len(given) == n_columns == 1:
            return given
        stem = f"{self._names[given[0]]}_" if len(given) == 1 else type(step).__name__.lower()
        return self.add(names or [f"{stem}{k}" for k in range(n_columns)], makers)

    def _origin(self, text, given, makers):
        """Return the one given column that the name of a column has the mark of, or a new one."""
        found = {given[int(number)] for number in _NUMBER.findall(text)}
        if len(found) == 1 and not self._every:
            return found.pop()
        name = _NUMBER.sub(lambda mark: self._names[given[int(mark[1])]], text)
        return self.add([name], makers)[0]


def _names_out(step, marks):
    """Return the names of a transformer's output if those of its input are marks, or None."""
    if not hasattr(step, "get_feature_names_out"):
        return None
    # It refuses other names than those that it knows.
    nameless = copy.copy(step)
    vars(nameless).pop("feature_names_in_", None)
    for named, given in ((nameless, marks), (step, None)):
        try:
            return [str(name) for name in named.get_feature_names_out(given)]
        except NotFittedError:
            raise
        except Exception:  # whatever a user's function raises
            continue
    return None


def _known_input(transformer):
    """Return the names and the number of the columns that a fitted transformer gets, or None."""
    if isinstance(transformer, FeatureUnion):
        found = [_known_input(part) for _, part in transformer.transformer_list]
        return next((known for known in found if known[1] is not None), (None, None))
    steps, last = steps_of(transformer)
    first = [*steps, last][0]
    if first is not transformer:
        return _known_input(first)
    names = getattr(first, "feature_names_in_", None)
    return None if names is None else list(names), getattr(first, "n_features_in_", None)


def _positions(transformer, columns):
    """Return the places of the columns that a part of a ColumnTransformer gets."""
    places = {name: k for k, name in enumerate(getattr(transformer, "feature_names_in_", ()))}
    if isinstance(columns, slice):
        begin, end = (places.get(end, end) for end in (columns.start, columns.stop))
        return slice(begin, end + 1 if isinstance(columns.stop, str) else end, columns.step)
    columns = np.atleast_1d(np.asarray(columns))
    return columns if columns.dtype.kind in "iub" else [places[name] for name in columns.tolist()]


def explain(estimator: Any, X: Any, *, background: Any = None, as_frame: bool = False) -> Bunch:
    """Return the contribution of each column of a table to the scores of a pipeline.

    The steps before the machine transform the rows, and the contributions of the columns that they
    make of an original column are added up, see :meth:`FMClassifier.explain`. A column that is made
    of several ones, or is one of many of a text, a dict or a function, is a feature of its own.

    Parameters
    ----------
    estimator : Pipeline, search, or one around a model
        Fitted; it ends with a factorization machine. In ``TransformedTargetRegressor`` the scores
        are those of its regressor, before the target is transformed back; in
        ``CalibratedClassifierCV`` the means over its classifiers, before the calibration.
        ``FixedThresholdClassifier``, ``TunedThresholdClassifierCV`` and ``FrozenEstimator`` leave
        the scores as they are.
    X : array-like of shape (n_samples, n_columns)
        Rows, as for ``predict``.
    background : array-like of shape (n_background, n_columns), default=None
        Reference rows, for Shapley values; None is a row without any features.
    as_frame : bool, default=False
        Whether ``contributions`` is a DataFrame of pandas.

    Returns
    -------
    explanation : Bunch
        ``contributions`` of shape (n_samples, n_columns), ``base_value`` and ``names``, as of
        :meth:`FMClassifier.explain`. Features have the names that their transformer gives, where
        they would be equal after its name in the ColumnTransformer or FeatureUnion, as "text__red";
        without such names "price_0", "price_1" if they come of one column, else "pca0".

    Raises
    ------
    TypeError
        If the last step is no factorization machine, or several members of a FeatureUnion do not
        tell how many columns they make.
    ValueError
        If the rows cannot be used, or the classifiers of a ``CalibratedClassifierCV`` have
        different columns.
    NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import FMClassifier, explain
    >>> rows = np.random.default_rng(0).integers(0, 4, (500, 3))
    >>> model = make_pipeline(OneHotEncoder(), FMClassifier(random_state=0))
    >>> model = model.fit(rows, rows[:, 1] == 2)
    >>> found = explain(model, rows, background=rows)
    >>> found.names[abs(found.contributions).mean(axis=0).argmax()]
    'x1'
    """
    transformers, model = steps_of(estimator)
    if members := models_in(model):
        parts = [make_pipeline(*transformers, member) for member in members]
        return _mean([explain(part, X, background=background, as_frame=as_frame) for part in parts])
    if not hasattr(model, "_pair_terms"):
        if hasattr(model, "estimator") or hasattr(model, "regressor"):
            check_is_fitted(model)
        raise TypeError(
            f"explain needs a factorization machine such as FMClassifier, or a pipeline or a "
            f"search that ends with one; got {type(model).__name__}."
        )
    check_is_fitted(model)
    rows = transform(transformers, X)
    if background is not None:
        background = transform(transformers, background)
    fields = make_pipeline(*transformers) if transformers else None
    found = model.explain(rows, background=background, fields=fields, as_frame=as_frame)
    if as_frame and is_frame(X) and hasattr(X, "index"):
        found.contributions.index = X.index
    return found


def _mean(parts):
    """Return the mean of the explanations of several models of the same columns and classes."""
    first = parts[0]
    shapes = {(*part.names, np.shape(part.base_value)) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            "The models of CalibratedClassifierCV have columns or classes that differ, as their "
            "folds do; explain them one by one: [part.estimator for part in "
            "model.calibrated_classifiers_], or fit it with ensemble=False, to have a single one."
        )

    def mean(values):
        if isinstance(values[0], list):
            return [mean(of_class) for of_class in zip(*values, strict=True)]
        return sum(values[1:], values[0]) / len(values)

    found = {name: mean([part[name] for part in parts]) for name in ("contributions", "base_value")}
    return Bunch(**found, names=first.names)


# Change of a unit's input below which the slope of the ReLU is its derivative.
_NO_CHANGE = 1e-9


def add_tower(output, features, X, background, entries, contributions):
    """Add the contributions of entries to the tower's output.

    The change of the output from a reference row is divided among the tower's inputs by the rescale
    rule of DeepLIFT [1]_, and an input's part among the entries by their Shapley values for this
    input, which is of order one or two; the mean over reference rows is DeepSHAP [2]_.

    Parameters
    ----------
    output : FMWeights
    features : ndarray of shape (n_columns,)
        The features that the columns of ``X`` and ``background`` are.
    X : csr_array of shape (n_rows, n_columns)
    background : csr_array of shape (n_background, n_columns)
    entries : Entries
        Those of ``X``, and in each row those of ``background``.
    contributions : ndarray of shape (n_entries,)
        Is added to.

    References
    ----------
    .. [1] A. Shrikumar, P. Greenside, A. Kundaje. "Learning Important Features Through Propagating
       Activation Differences". ICML 2017.
    .. [2] S. Lundberg, S.-I. Lee. "A Unified Approach to Interpreting Model Predictions".
       NeurIPS 2017.
    """
    inputs = _Inputs(output, features)
    layers, weights = _layers_of(output.dense)
    before, after = (_forward(layers, inputs.of(rows)) for rows in (background, X))
    sums, known = inputs.sums(X), inputs.sums(background)
    reference = background.toarray().astype(np.float64)
    for b in range(len(reference)):
        slopes = _slopes(layers, weights, [values[b] for values in before], after)
        old = reference[b, entries.columns]
        changed = np.flatnonzero((entries.values != 0) | (old != 0))
        place = entries.rows[changed], entries.columns[changed]
        values = entries.values[changed], old[changed]
        parts = inputs.parts(*place, *values, sums, known[b], slopes)
        contributions[changed] += parts / len(reference)


class _Inputs:
    """The input of a tower: the sums of fields, or the pooled interactions; see ``Tower``."""

    def __init__(self, output, features):
        tower = output.dense
        self._factors = output.factors[features].astype(np.float64)
        self._n_fields = tower.n_fields if len(tower.fields) else 0
        self._fields = tower.fields[features] if self._n_fields else None

    def sums(self, X):
        """Return the sums of x v of rows, of all fields."""
        return X @ self._factors

    def of(self, X):
        """Return the inputs of rows."""
        if self._n_fields:
            width = self._factors.shape[1]
            found = np.zeros((X.shape[0], self._n_fields, width))
            for field in np.unique(self._fields):
                columns = np.flatnonzero(self._fields == field)
                found[:, field] = X[:, columns] @ self._factors[columns]
            return found.reshape(len(found), -1)
        return (self.sums(X) ** 2 - X.power(2) @ self._factors**2) / 2

    def parts(self, rows, columns, x, b, sums, known, slopes):
        """Return the parts of entries in the inputs' changes from b to x, times slopes."""
        vectors = self._factors[columns]
        if self._n_fields:
            by_field = slopes.reshape(len(slopes), self._n_fields, -1)
            return (x - b) * np.einsum("ij,ij->i", vectors, by_field[rows, self._fields[columns]])
        others = sums[rows] + known - (x + b)[:, None] * vectors
        return (x - b) / 2 * np.einsum("ij,ij,ij->i", vectors, others, slopes[rows])


def _layers_of(tower):
    """Return the layers, biases in the last row, and the weights of the last one's outputs."""
    *layers, weights = (layer[0] for layer in layers_of(tower.widths, tower.weights.astype(float)))
    return layers, weights


def _forward(layers, values):
    """Return what enters the units of each layer, before the ReLU."""
    found = []
    for layer in layers:
        found.append(values @ layer[:-1] + layer[-1])
        values = np.maximum(found[-1], 0)
    return found


def _slopes(layers, weights, before, after):
    """Return how much the output changes by each input, on average from a reference row on."""
    slopes = np.broadcast_to(weights, after[-1].shape)
    for layer, old, new in zip(layers[::-1], before[::-1], after[::-1], strict=True):
        change = new - old
        same = np.abs(change) < _NO_CHANGE
        rise = np.maximum(new, 0) - np.maximum(old, 0)
        slopes = slopes * np.where(same, new > 0, rise / np.where(same, 1, change))
        slopes = slopes @ layer[:-1].T
    return slopes


# Contributions that are computed at once; each takes about 16 bytes times the number of factors.
_ENTRIES_AT_ONCE = 1 << 17


class PairTerm(NamedTuple):
    """A part of the matrix W: ``left @ right.T`` in some of its rows and columns.

    The terms of a machine add up to W, except on its diagonal, which does not count.
    """

    rows: np.ndarray  #: (n_left,), without duplicates
    left: np.ndarray  #: (n_left, width)
    columns: np.ndarray  #: (n_right,), without duplicates
    right: np.ndarray  #: (n_right, width)


class Entries(NamedTuple):
    """Entries of a matrix of rows, in row-major order; some may be zero."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, X, support=()):
        """Return the entries of canonical CSR rows, and in all rows those of some columns."""
        n_rows, n_columns = X.shape
        stored = np.repeat(np.arange(n_rows), np.diff(X.indptr)) * n_columns + X.indices
        keys = stored
        if len(support):
            keys = np.union1d(stored, np.arange(n_rows)[:, None] * n_columns + support)
        values = np.zeros(len(keys))
        values[np.searchsorted(keys, stored)] = X.data
        return cls(*np.divmod(keys, max(1, n_columns)), values)

    def by_group(self, groups, n_groups):
        """Return the rows times ``n_groups`` plus the groups that occur, and the place of each."""
        return np.unique(self.rows * n_groups + groups[self.columns], return_inverse=True)


class Explainer:
    """The contributions of entries of rows to the scores of a fitted machine.

    Parameters
    ----------
    model : BaseFM
    background : csr_array of shape (n_background, n_features) or None
        Reference rows; None is the empty row.
    """

    def __init__(self, model, background):
        n_features = model.n_features_in_
        if background is None:
            background = sparse.csr_array((1, n_features), dtype=np.float32)
        self._model, self._background = model, background
        self._support = np.unique(background.indices)
        self._outputs = model._outputs()
        self.n_outputs = len(self._outputs)  #: number of scores of a row
        # The means of b and of b_i (W b)_i, in the columns of the support.
        known = background[:, self._support]
        n_rows = background.shape[0]
        self._means = column_sums(known) / n_rows
        self._products = np.zeros((len(self._outputs), len(self._support)))
        terms = model._pair_terms(self._support)
        for part in chunks(known):
            entries = Entries.of(part)
            for products, of_output in zip(self._products, terms, strict=True):
                pulls = entries.values * pull(of_output, part, entries) / n_rows
                products += np.bincount(entries.columns, pulls, len(self._support))

    def base_values(self):
        """Return the mean scores of the reference rows, of shape (n_outputs,)."""
        found = [
            output.intercept[0] + output.linear[self._support] @ self._means + products.sum() / 2
            for output, products in zip(self._outputs, self._products, strict=True)
        ]
        for k, output in enumerate(self._outputs):
            if isinstance(output.dense, Tower):
                layers, weights = _layers_of(output.dense)
                inputs = _Inputs(output, self._support).of(self._background[:, self._support])
                found[k] += np.mean(np.maximum(_forward(layers, inputs)[-1], 0) @ weights)
        return np.array(found)

    def chunks(self, X):
        """Yield the contributions of chunks of rows.

        They are the number of rows, their ``Entries`` in all columns, and contributions of shape
        (n_outputs, n_entries).
        """
        for part in chunks(X, len(self._support)):
            yield part.shape[0], *self._explain(part)

    def _explain(self, X):
        features = np.union1d(X.indices, self._support)
        support = np.searchsorted(features, self._support)
        X = sparse.csr_array(X[:, features])
        entries = Entries.of(X, support)
        means, products = np.zeros(len(features)), np.zeros(len(features))
        means[support] = self._means
        mean_row = sparse.csr_array(means[None])
        everywhere = Entries.of(mean_row, np.arange(len(features)))
        found = np.empty((len(self._outputs), len(entries.values)))
        terms = self._model._pair_terms(features)
        for k, (output, of_output) in enumerate(zip(self._outputs, terms, strict=True)):
            products[support] = self._products[k]
            i, x = entries.columns, entries.values
            slopes = output.linear[features[i]] + pull(of_output, X, entries) / 2
            mean_pulls = pull(of_output, mean_row, everywhere)
            found[k] = (x - means[i]) * slopes + (x * mean_pulls[i] - products[i]) / 2
            if isinstance(output.dense, Tower):
                add_tower(output, features, X, self._background[:, features], entries, found[k])
        return entries._replace(columns=features[entries.columns]), found


def chunks(X, n_more=0):
    """Yield consecutive rows of a CSR matrix, each with some more entries than it stores."""
    ends = X.indptr[1:] + n_more * np.arange(1, X.shape[0] + 1, dtype=np.int64)
    begin = 0
    while begin < X.shape[0]:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _ENTRIES_AT_ONCE, "right")))
        yield X[begin:end]
        begin = end


def pull(terms, X, entries):
    """Return (W x)_i for some entries i of rows x of a CSR matrix."""
    n_columns = X.shape[1]
    found, of_itself = np.zeros(len(entries.values)), np.zeros(n_columns)
    for term in terms:
        sums = X[:, term.columns] @ term.right
        left = np.full(n_columns, -1)
        left[term.rows] = np.arange(len(term.rows))
        place = left[entries.columns]
        inside = np.flatnonzero(place >= 0)
        found[inside] += _row_dots(term.left[place[inside]], sums[entries.rows[inside]])
        both = np.flatnonzero(left[term.columns] >= 0)
        own = term.columns[both]
        of_itself[own] += _row_dots(term.left[left[own]], term.right[both])
    return found - of_itself[entries.columns] * entries.values


def _row_dots(a, b):
    return np.einsum("ij,ij->i", a, b)


def _interaction_share(model, X, groups):
    """Return the share of the scores' variance that interactions of groups of columns carry.

    With mu the mean row and W without pairs inside a group, x W x / 2 is the sum of
    (x - mu) W (x - mu) / 2 and of terms of single columns. If the groups are independent, these two
    parts of the score are uncorrelated (the functional ANOVA), and the share is that of the first.

    Parameters
    ----------
    model : BaseFM
        Of order two.
    X : csr_array of shape (n_samples, n_features)
    groups : ndarray of shape (n_features,), or None
        The group of each column, from 0 on; None for the model's fields, if it has some.

    Returns
    -------
    share : float or None
        From 0 to 1, over all outputs; 0 if the scores do not vary. None with dense layers.
    """
    if any(isinstance(output.dense, Tower) for output in model._outputs()):
        return None
    groups = getattr(model, "fields_", None) if groups is None else groups
    groups = np.arange(X.shape[1]) if groups is None else groups
    features = np.unique(X.indices)
    groups, X = groups[features], sparse.csr_array(X[:, features])
    mean = sparse.csr_array(np.asarray(X.mean(axis=0, dtype=np.float64)).reshape(1, -1))
    every = Entries.of(mean, np.arange(len(features)))
    of_pairs = of_single = 0.0
    parts = list(chunks(X))
    for output, terms in zip(model._outputs(), model._pair_terms(features), strict=True):
        mean_pulls = _pull_between(terms, mean, every, groups)
        interactions, scores = [], []
        for part in parts:
            entries = Entries.of(part)
            i, x = entries.columns, entries.values
            between = x * (_pull_between(terms, part, entries, groups) / 2 - mean_pulls[i])
            whole = x * (output.linear[features[i]] + pull(terms, part, entries) / 2)
            for found, values in ((interactions, between), (scores, whole)):
                found.append(np.bincount(entries.rows, values, part.shape[0]))
        interactions, scores = np.concatenate(interactions), np.concatenate(scores)
        of_pairs += interactions.var()
        of_single += (scores - interactions).var()
    return float(of_pairs / (of_pairs + of_single)) if of_pairs else 0.0


def _pull_between(terms, X, entries, groups):
    """Return (W x)_i like ``pull``, without the pairs inside a group."""
    n_groups = 1 + int(groups.max(initial=0))
    # Each row is divided into one for each of its groups.
    numbers, rows = entries.by_group(groups, n_groups)
    shape = len(numbers), X.shape[1]
    divided = sparse.csr_array((entries.values, (rows, entries.columns)), shape=shape)
    divided.sort_indices()
    inside = pull(terms, divided, entries._replace(rows=rows))
    return pull(terms, X, entries) - inside


def mean_magnitudes(explainer, X, groups, n_groups):
    """Return the mean absolute sum of contributions of each group, (n_outputs, n_groups)."""
    found = np.zeros((explainer.n_outputs, n_groups))
    for _, entries, values in explainer.chunks(X):
        keys, place = entries.by_group(groups, n_groups)
        for of_output, data in zip(found, values, strict=True):
            sums = np.abs(np.bincount(place, data, len(keys)))
            of_output += np.bincount(keys % n_groups, sums, n_groups)
    return found / X.shape[0]


# Pairs that are scored at once, each taking about 40 bytes.
_PAIRS_AT_ONCE = 1 << 20

# Without rows all pairs are scored; this many features, or fields, have 50 million.
_MOST_FEATURES = 10_000


def _all_pairs(n_features):
    """Yield all pairs in chunks, with ones."""
    if n_features > _MOST_FEATURES:
        raise ValueError(
            f"the model has {n_features} features and X=None, so that all their pairs would be "
            f"compared; give rows as X, and only pairs that occur in them are."
        )
    step = max(1, _PAIRS_AT_ONCE // n_features)
    for part in slices(n_features, step):
        first = np.arange(part.start, part.stop)
        n_others = n_features - 1 - first
        second = concatenated_ranges(first + 1, n_others)
        pairs = np.column_stack([np.repeat(first, n_others), second])
        yield pairs, np.ones(len(pairs))


def _pairs_of_rows(X):
    """Yield the pairs that occur together in rows, with the mean of their |x_i x_j|."""
    X = sparse.csr_array((np.abs(X.data, dtype=np.float64), X.indices, X.indptr), shape=X.shape)
    means = sparse.coo_array(sparse.triu(X.T @ X, k=1)) / X.shape[0]
    for part in slices(means.nnz, _PAIRS_AT_ONCE):
        yield np.column_stack([means.row[part], means.col[part]]), means.data[part]


def _alone(model):
    """Return the scores of rows of one feature each, less the score of a row of none."""
    n = model.n_features_in_
    rows = kernel_csr(np.ones(n), np.arange(n), np.append(np.arange(n + 1), n), (n + 1, n))
    scores = model._score_rows(rows).T.astype(np.float64)
    return scores[:-1] - scores[-1], scores[-1]


def _strengths(model, pairs, alone):
    """Return the effects on the score of two features together, minus those of each alone."""
    n_rows, n_features = len(pairs), model.n_features_in_
    indptr = np.arange(0, 2 * n_rows + 1, 2)
    rows = kernel_csr(np.ones(2 * n_rows), pairs.ravel(), indptr, (n_rows, n_features))
    scores = model._score_rows(rows)
    single, empty = alone
    return scores.T - empty - single[pairs[:, 0]] - single[pairs[:, 1]]


def _keep_largest(best, new, n):
    """Return the ``n`` pairs of the largest effects of both; equal ones in order of the features.

    They are tuples of arrays: pairs, strengths and effects.
    """
    parts = [np.concatenate(both) for both in zip(best, new, strict=True)]
    pairs, _, effects = parts
    if len(effects) > n:
        least = np.partition(effects, len(effects) - n)[len(effects) - n]
        parts = [part[effects >= least] for part in parts]
        pairs, _, effects = parts
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -effects))[:n]
    return tuple(part[order] for part in parts)


class ExplanationMixin:
    """Methods that explain scores; the class for the factors has ``_pair_terms``."""

    def explain(self, X, *, background=None, fields=None, feature_names=None, as_frame=False):
        """Return the contribution of each entry of each row to the row's score.

        The contributions of a row, and ``base_value``, add up to its score: that of
        ``decision_function`` in classifiers, of ``predict`` in regressors before the loss turns it
        into a prediction. They are in its units, log-odds with the log loss.

        Without ``background`` an entry contributes its linear term and half of each of its
        interactions, w_i x_i + x_i sum_j W_ij x_j / 2, and ``base_value`` is the score of an empty
        row. With ``background`` they are Shapley values: the mean change of the score as the entry
        takes the place of that of a reference row, over all reference rows and all orders in which
        entries do so; an absent feature may contribute too. ``base_value`` is then the mean score
        of the reference rows. Both are exact for machines of order two.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        background : {array-like, sparse matrix} of shape (n_background, n_features), default=None
            Reference rows, such as some hundreds of the training rows. None is one empty row.
        fields : transformer or array-like of shape (n_features,), default=None
            To add up the contributions of the columns of a field: the fitted encoder that makes
            ``X``, such as ``pipeline[:-1]``, whose original columns are the fields, as in
            :func:`explain`; or the label of the field of each column. A sum of Shapley values is
            the Shapley value of the field.
        feature_names : array-like of shape (n_features,), default=None
            Names of the columns, without ``fields``. None takes ``feature_names_in_``, or "x0",
            "x1", ... without them.
        as_frame : bool, default=False
            Whether ``contributions`` is a DataFrame of pandas. For three classes or more the first
            level of its columns is the class.

        Returns
        -------
        explanation : Bunch
            contributions : csr_array of shape (n_samples, n_features)
                With ``fields`` an ndarray of shape (n_samples, n_fields). For three classes or more
                a list of one for each class. float64.
            base_value : float, or ndarray of shape (n_classes,)
                The score to which the contributions are added.
            names : ndarray of shape (n_features,) or (n_fields,)
                Names of the columns of ``contributions``.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used.

        Notes
        -----
        Shapley values take time and memory for each entry of a row and each feature of the
        background, however many reference rows there are. In a DeepFM or NFM the tower's part is
        approximate (DeepLIFT with its rescale rule, averaged over reference rows: DeepSHAP), adds
        up exactly too, and takes time for each pair of a row and a reference row.

        Exactness for order two: a term W_ij x_i x_j has two orders, in which entry i adds
        W_ij (x_i - b_i) b_j or W_ij (x_i - b_i) x_j; see S. Lundberg, S.-I. Lee, "A Unified
        Approach to Interpreting Model Predictions", NeurIPS 2017, for the values.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 3)).astype(float)
        >>> y = X[:, 0] + 2 * X[:, 1] * X[:, 2]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.explain([[1, 1, 1]])
        >>> found.contributions.toarray().round(1)
        array([[1., 1., 1.]])
        >>> bool(abs(found.base_value) < 0.05)
        True
        """
        check_flag("as_frame", as_frame)
        index = getattr(X, "index", None) if is_frame(X) else None
        X, explainer = self._explainer(X, background)
        groups, names = group_columns(self, fields, feature_names)
        found = (
            _by_column(explainer, X)
            if fields is None
            else list(_by_group(explainer, X, groups, len(names)))
        )
        base = explainer.base_values()
        if as_frame:
            found = _as_frame(found, names, index, getattr(self, "classes_", None))
        elif len(base) == 1:
            found = found[0]
        base = float(base[0]) if len(base) == 1 else base
        return Bunch(contributions=found, base_value=base, names=names)

    def feature_importances(self, X, *, background=None, fields=None, feature_names=None):
        """Return the mean absolute contribution of each column, or field, to the scores of rows.

        The contributions are the Shapley values of :meth:`explain`; what is the same in all rows
        has an importance of 0.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows; some thousands suffice.
        background : {array-like, sparse matrix} of shape (n_background, n_features), default=None
            Reference rows. None takes ``X``.
        fields : transformer or array-like of shape (n_features,), default=None
            As in :meth:`explain`: the importances of fields, of the sums over their columns.
        feature_names : array-like of shape (n_features,), default=None
            Names of the columns, without ``fields``.

        Returns
        -------
        importances : Bunch
            importances : ndarray of shape (n_columns,) or (n_columns, n_classes)
                In units of the score, log-odds with the log loss.
            names : ndarray of shape (n_columns,)
                Names of the columns or fields, in the same order.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used.

        See Also
        --------
        sklearn.inspection.permutation_importance : How much a score of the predictions, such as
            the AUC, depends on a column.

        Notes
        -----
        Without ``fields`` it takes time for each row and each column that the reference rows hold.
        In a DeepFM or NFM it takes time for each pair of a row and a reference row: give some
        hundreds.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 3)).astype(float)
        >>> y = 4 * X[:, 0] + X[:, 1]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.feature_importances(X, feature_names=list("abc"))
        >>> found.names[np.argsort(-found.importances)].tolist()
        ['a', 'b', 'c']
        """
        X, explainer = self._explainer(X, X if background is None else background)
        groups, names = group_columns(self, fields, feature_names)
        found = mean_magnitudes(explainer, X, groups, len(names))
        return Bunch(importances=found[0] if len(found) == 1 else found.T, names=names)

    def interaction_strengths(self, X=None, *, fields=None, feature_names=None, n_pairs=20):
        """Return the pairs of features that interact most.

        The strength of a pair is how much the score of two features with the value 1 differs from
        the sum of their separate effects: <v_i, v_j> in a factorization machine; in RaFM at the
        lower of their ranks; in FwFM times the weight of their fields; in FFM of their vectors for
        each other's field; in DeepFM and NFM including the tower's effect.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            Rows such as those that the model was trained on; some thousands suffice. With them
            only pairs that occur together in a row are compared, by their mean effect on a row's
            score. With None all pairs are compared, even those of one field, which never occur
            together.
        fields : transformer or array-like of shape (n_features,), default=None
            As in :meth:`explain`: pairs inside a field are left out. A transformer also names the
            features. None takes ``fields_`` of a machine that has fields for the share only.
        feature_names : array-like of shape (n_features,), default=None
            For instance ``encoder.get_feature_names_out()``. None takes the names that ``fields``
            gives, ``feature_names_in_``, or "x0", "x1", ... without them.
        n_pairs : int, default=20
            How many pairs to return, at most.

        Returns
        -------
        interactions : Bunch
            Sorted by decreasing effect:

            features : ndarray of shape (n_pairs, 2)
                Columns of the two features.
            names : ndarray of shape (n_pairs, 2)
                Their names.
            strengths : ndarray of shape (n_pairs,) or (n_pairs, n_classes)
                Positive if the pair raises the score.
            effects : ndarray of shape (n_pairs,)
                Absolute strength, the largest of all classes; with ``X`` times the mean of
                ``|x_i x_j|`` over all rows.
            field_names : ndarray of shape (n_fields,)
                With ``fields``: their names.
            field_effects : ndarray of shape (n_fields, n_fields)
                With ``fields``: the sum of the effects of all pairs of two fields, symmetric. None
                for more than 10,000 fields.
            share : float or None
                With ``X``: the share of the scores' variance that interactions of different fields
                (of columns, without fields) carry beyond what single fields do, as if fields were
                independent. Near 0 the pairs carry nothing, and the strengths are noise. None in a
                DeepFM or NFM with layers, which is not of order two.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used, or ``X`` is None and there are more than 10,000 features.

        Notes
        -----
        With ``X`` it takes time, and about 40 bytes of memory, for each different pair in its rows.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 4)).astype(float)
        >>> y = X[:, 0] * X[:, 2] - 0.5 * X[:, 1] * X[:, 3]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.interaction_strengths(feature_names=list("abcd"), n_pairs=2)
        >>> found.names.tolist()
        [['a', 'c'], ['b', 'd']]
        >>> found.strengths.round(1)
        array([ 1. , -0.5])
        """
        n_pairs = check_count("n_pairs", n_pairs)
        self._check_learned()
        groups, field_names = None, []
        if fields is not None:
            groups, field_names = group_columns(self, fields)
            if feature_names is None and hasattr(fields, "fit"):
                feature_names = names_of_features(fields, self)
        names = checked_names(self, feature_names)
        if X is None:
            chunks = _all_pairs(self.n_features_in_)
        else:
            X, _ = validate_rows(self, X, reset=False)
            X = with_one_index_type(X)
            chunks = _pairs_of_rows(X)
        found = np.zeros((0, 2), np.int64), np.zeros((0, len(self.intercept_))), np.zeros(0)
        of_fields, n_fields = None, len(field_names)
        if groups is not None and n_fields <= _MOST_FEATURES:
            of_fields = np.zeros((n_fields, n_fields))
        alone = _alone(self)
        for pairs, products in chunks:
            if groups is not None:
                apart = groups[pairs[:, 0]] != groups[pairs[:, 1]]
                pairs, products = pairs[apart], products[apart]
            strengths = _strengths(self, pairs, alone)
            effects = np.abs(strengths).max(axis=1, initial=0) * products
            if of_fields is not None:
                np.add.at(of_fields, tuple(groups[pairs].T), effects)
            found = _keep_largest(found, (pairs, strengths, effects), n_pairs)
        pairs, strengths, effects = found
        result = Bunch(
            features=pairs,
            names=names[pairs],
            strengths=strengths[:, 0] if strengths.shape[1] == 1 else strengths,
            effects=effects,
        )
        if groups is not None:
            of_fields = None if of_fields is None else of_fields + of_fields.T
            result.update(field_names=field_names, field_effects=of_fields)
        if X is not None:
            result.update(share=_interaction_share(self, X, groups))
        return result

    def _explainer(self, X, background):
        """Return rows as canonical CSR, and the Explainer."""
        self._check_learned()
        X, _ = validate_rows(self, X, reset=False)
        if background is not None:
            try:
                background, _ = validate_rows(self, background, reset=False)
            except ValueError as error:
                raise ValueError(f"background: {error}") from None
            background = with_one_index_type(background)
        return with_one_index_type(X), Explainer(self, background)


def _by_column(explainer, X):
    """Return the contributions to each output as CSR matrices."""
    found = [[] for _ in range(explainer.n_outputs)]
    for n_rows, entries, values in explainer.chunks(X):
        indptr = np.searchsorted(entries.rows, np.arange(n_rows + 1))
        for parts, data in zip(found, values, strict=True):
            shape = n_rows, X.shape[1]
            parts.append(sparse.csr_array((data, entries.columns, indptr), shape=shape))
    return [with_one_index_type(sparse.vstack(parts, format="csr")) for parts in found]


def _by_group(explainer, X, groups, n_groups):
    """Return sums of contributions of groups of columns, (n_outputs, n_samples, n_groups)."""
    found = np.zeros((explainer.n_outputs, X.shape[0], n_groups))
    begin = 0
    for n_rows, entries, values in explainer.chunks(X):
        place = entries.rows * n_groups + groups[entries.columns]
        for of_output, data in zip(found, values, strict=True):
            sums = np.bincount(place, data, n_rows * n_groups)
            of_output[begin : begin + n_rows] = sums.reshape(n_rows, n_groups)
        begin += n_rows
    return found


def _as_frame(found, names, index, classes):
    """Return the contributions to all outputs as one DataFrame."""
    import pandas as pd

    frames = []
    for part in found:
        make = pd.DataFrame.sparse.from_spmatrix if sparse.issparse(part) else pd.DataFrame
        frames.append(make(part, index=index, columns=names))
    if len(frames) == 1:
        return frames[0]
    return pd.concat(frames, axis=1, keys=classes.tolist())
