"""Metrics of click probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length, column_or_1d

from freqfm._input.validation import as_array
from freqfm._messages import cut, shorten
from freqfm._sklearn import check_sample_weight


def normalized_entropy(
    y_true: ArrayLike, y_proba: ArrayLike, sample_weight: ArrayLike | None = None
) -> float:
    """Log loss of click probabilities, divided by the log loss of predicting the base rate.

    With y in {0, 1}, weights w and the base rate p = sum w y / sum w of the same samples ::

        NE = -sum w (y log(q) + (1 - y) log(1 - q)) / sum w / -(p log(p) + (1 - p) log(1 - p))

    where q is the predicted probability of a click. Smaller is better: 0 is perfect, 1 is no
    better than the base rate. Unlike the log loss it can be compared between data with different
    base rates [1]_. 1 - NE is the relative information gain.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        Two classes, of which the larger is a click.
    y_proba : array-like of shape (n_samples,) or (n_samples, 2)
        Probabilities of the larger class, or of both, as from ``predict_proba``. They are clipped
        away from 0 and 1 by the machine precision of their type.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights w; 1 if None.

    Returns
    -------
    normalized_entropy : float

    Raises
    ------
    ValueError
        If lengths differ, ``y_true`` does not hold two classes, ``y_proba`` is not between 0 and
        1, or weights are negative or all zero.

    References
    ----------
    .. [1] He et al. (2014), "Practical Lessons from Predicting Clicks on Ads at Facebook", section
       2.

    Examples
    --------
    >>> from freqfm.metrics import normalized_entropy
    >>> round(normalized_entropy([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]), 4)
    1.0
    >>> round(normalized_entropy([0, 0, 0, 1], [0.1, 0.1, 0.1, 0.7]), 4)
    0.2991
    """
    y_true = column_or_1d(as_array("y_true", y_true))
    y_proba = as_array("y_proba", y_proba)
    if sample_weight is not None:
        sample_weight = _numbers("sample_weight", sample_weight)
    if y_proba.ndim == 2 and y_proba.shape[1] == 2:
        y_proba = _of_larger(y_proba)
    if y_proba.ndim != 1:
        raise ValueError(
            f"y_proba must have the shape (n_samples,) or (n_samples, 2); got {y_proba.shape}."
        )
    check_consistent_length(y_true, y_proba, sample_weight)
    if y_proba.dtype.kind != "f":
        y_proba = _numbers("y_proba", y_proba)
    if not ((y_proba >= 0) & (y_proba <= 1)).all():
        raise ValueError(
            f"y_proba lies between {y_proba.min():g} and {y_proba.max():g}; give probabilities, "
            f"from 0 to 1, as predict_proba returns them."
        )
    weight = check_sample_weight(sample_weight, y_true, dtype=np.float64, ensure_non_negative=True)
    try:
        classes = np.unique(y_true[weight > 0])
    except TypeError as error:
        raise TypeError(f"y_true holds labels that cannot be sorted: {cut(error)}.") from None
    if len(classes) != 2:
        raise ValueError(
            f"y_true holds {len(classes)} class(es) at positive weight ({shorten(classes, 5)}); "
            f"normalized entropy compares two, and is not defined for a base rate of 0 or 1."
        )
    tiny = np.finfo(y_proba.dtype).eps
    chance = np.clip(y_proba, tiny, 1 - tiny).astype(np.float64)
    clicked = y_true == classes[1]
    losses = -np.log(np.where(clicked, chance, 1 - chance))
    rate = np.average(clicked, weights=weight)
    if not 0 < rate < 1:
        raise ValueError(
            f"sample_weight gives nearly all weight to one class: the base rate rounds to "
            f"{rate:g}, for which normalized entropy is not defined."
        )
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    return float(np.average(losses, weights=weight) / entropy)


def _of_larger(y_proba):
    """Return the second column of the probabilities of two classes."""
    sums = _numbers("y_proba", y_proba).sum(axis=1)
    if not np.allclose(sums, 1, atol=1e-3):
        raise ValueError(
            f"y_proba has two columns, whose sums lie between {sums.min():g} and {sums.max():g}; "
            f"give the probabilities of both classes, which add up to 1, or only of the larger one."
        )
    return y_proba[:, 1]


def _numbers(name, values):
    """Return values as float64."""
    values = as_array(name, values)
    if values.dtype.kind not in "biufO":
        raise TypeError(f"{name} holds {values.dtype}; give numbers.")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} does not hold numbers: {cut(error)}.") from None
