"""Contributions of the columns that the user of a pipeline knows."""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from freqfm._input.frames import is_frame
from freqfm.estimators.fm.explanations.columns import original_columns
from freqfm.model_selection._steps import steps_of, transform


def explain(estimator: Any, X: Any, *, background: Any = None, as_frame: bool = False) -> Bunch:
    """Return the contribution of each column of a table to the scores of a pipeline.

    The steps before the machine transform the rows, and the contributions of the columns that they
    make of an original column are added up, see :meth:`FMClassifier.explain`.

    Parameters
    ----------
    estimator : Pipeline or search
        Fitted; it ends with a factorization machine.
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
        :meth:`FMClassifier.explain`. A column that is made of several ones has a name of its own.

    Raises
    ------
    TypeError
        If the last step is no factorization machine, or a step does not tell which columns it makes
        of which.
    ValueError
        If the rows cannot be used.
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
    if not hasattr(model, "_pair_terms"):
        raise TypeError(
            f"explain needs a factorization machine such as FMClassifier, or a pipeline or a "
            f"search that ends with one; got {type(model).__name__}."
        )
    check_is_fitted(model)
    rows = transform(transformers, X)
    if background is not None:
        background = transform(transformers, background)
    fields = None
    if transformers:
        steps = [(f"step {number}", step) for number, step in enumerate(transformers)]
        fields = original_columns(Pipeline(steps))
    found = model.explain(rows, background=background, fields=fields, as_frame=as_frame)
    if as_frame and is_frame(X) and hasattr(X, "index"):
        found.contributions.index = X.index
    return found
