"""Contributions of the columns that the user of a pipeline knows."""

from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from freqfm._input.frames import is_frame
from freqfm.model_selection._steps import models_in, steps_of, transform


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
