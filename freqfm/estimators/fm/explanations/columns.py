"""The columns that a user knows: groups of encoded columns, and contributions in pipelines."""

import copy
import re
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
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
from freqfm._input.validation import as_array
from freqfm._messages import shown
from freqfm.estimators.fm.fields import WithFields, checked_labels, column_fields
from freqfm.model_selection._holdout import models_in, steps_of, transform

# The name of a column for a transformer, which tells by its own names what comes of it. These are
# characters for private use.
_MARK, _END = "\ue000", "\ue001"
_NUMBER = re.compile(f"{_MARK}(\\d+){_END}")

# Functions whose columns are those that they get, one by one.
_ELEMENTWISE = np.ufunc, type(None)


def feature_names(model, names):
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


def group_columns(model, fields):
    """Return the group of each feature, from 0 on, and the names of the groups.

    Parameters
    ----------
    model : BaseFM
    fields : transformer or array-like of shape (n_features,)
        As in ``ExplanationMixin.explain``.

    Raises
    ------
    TypeError, ValueError
        If they are not the fields of the model's features.
    """
    n_features, steps = model.n_features_in_, None
    if hasattr(fields, "transform"):
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
