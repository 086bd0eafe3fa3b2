"""Pointwise losses on many scores: predictions, the mean loss, the best constant score."""

import numpy as np

from freqfm import backends
from freqfm._warnings import warn_user
from freqfm.backends.base import ScoredRows
from freqfm.formulas import codes

# A constant score is searched for between these bounds, on about this many rows.
_LARGEST_SCORE = 1e6
_SOME_ROWS = 100_000


def expect(loss, of_classes, scores):
    """Return the predictions that scores stand for, of the same shape, float32.

    Raises
    ------
    ValueError
        If a user's loss has none for a score.
    """
    flat = np.ascontiguousarray(scores, dtype=np.float32).ravel()
    formulas = loss.replacements(of_classes)
    expected = backends.get().expected_targets(loss.code, formulas, flat)
    if loss.code == codes.CUSTOM_LOSS:
        without = flat[np.isnan(expected)]
        if len(without):
            raise ValueError(
                f"expectation of {type(loss).__name__} returns NaN for the score {without[0]:g}."
            )
    return expected.reshape(scores.shape)


def _loss_sums(loss, of_classes):
    """Return a function of ScoredRows that returns the sums of losses and of derivatives."""
    return backends.get().loss_sums(loss.code, loss.replacements(of_classes))


def _rows(scores, target, weight):
    """Return ScoredRows from arrays of any shape."""
    return ScoredRows(
        *(
            np.ascontiguousarray(array, dtype=kind).ravel()
            for array, kind in ((scores, np.float32), (target, np.float32), (weight, np.float64))
        )
    )


def mean_loss(loss, of_classes, scores, target, weight):
    """Return the mean loss of rows, summed over outputs.

    Parameters
    ----------
    loss : Loss
    of_classes : bool
        Whether targets are classes.
    scores, target : ndarray of shape (n_outputs, n_rows)
    weight : ndarray of shape (n_rows,)
    """
    weights = np.tile(weight, (len(scores), 1))
    return _loss_sums(loss, of_classes)(_rows(scores, target, weights))[0] / weight.sum()


def base_score(loss, of_classes, target, weight):
    """Return the constant score with the smallest loss on rows of one output.

    Without a formula of its own the loss is assumed to be convex: its derivative is bisected.
    """
    known = loss.base_score(target, weight)
    if known is not None:
        return known
    step = -(-len(target) // _SOME_ROWS)
    rows = _rows(np.zeros(len(target[::step])), target[::step], weight[::step])
    sums = _loss_sums(loss, of_classes)

    def slope(score):
        rows.scores.fill(score)
        return sums(rows)[1]

    # The bracket grows from 0.
    at_zero = slope(0.0)
    sign, bound = (1.0 if at_zero < 0 else -1.0), 1.0
    while bound < _LARGEST_SCORE and (slope(sign * bound) < 0) == (sign > 0):
        bound *= 2
    # Where a loss is constant is its lowest value, which may extend without end.
    constant = bound >= _LARGEST_SCORE and slope(sign * bound) == 0
    if (constant and at_zero == 0) or np.isnan(at_zero):  # training tells of NaN
        return 0.0
    if bound >= _LARGEST_SCORE and not constant:
        _warn_of_no_best(loss, sign * bound)
    low, high = sorted((0.0, sign * bound))
    for _ in range(40):
        middle = (low + high) / 2
        value = slope(middle)
        falls = value <= 0 if constant else value < 0
        low, high = (middle, high) if falls else (low, middle)
    return (low + high) / 2


def _warn_of_no_best(loss, score):
    warn_user(
        f"By the derivatives of {type(loss).__name__}, its mean for a constant score still falls "
        f"at {score:g}, where training starts. Scale y, or, if the loss is one of your own, check "
        f"the sign of its derivative."
    )


class RunningBaseScore:
    """The constant score with the smallest loss on all targets of one output so far.

    For classes it is exact. For real targets it is exact if the loss has a formula that depends on
    their mean alone, as those of this package do; without a formula it is the mean of the chunks'.

    Parameters
    ----------
    loss : Loss
    of_classes : bool
        Whether targets are classes.
    sums : ndarray of shape (3,), float64
        The weighted sum of the targets, the sum of the weights, and the score; updated in place.
    """

    def __init__(self, loss, of_classes, sums):
        self._loss, self._of_classes, self._sums = loss, of_classes, sums

    def add(self, target, weight):
        """Add a chunk's targets; return by how much the score changes."""
        sums = self._sums
        before = sums[2]
        sums[0] += (target * weight).sum()
        sums[1] += weight.sum()
        sums[2] = self._score(target, weight)
        return sums[2] - before

    def update(self):
        """Set the score of classes from the sums."""
        self._sums[2] = self._score_of_classes()

    def _score(self, target, weight):
        total, n, before = self._sums
        if self._of_classes:
            return self._score_of_classes()
        if n == 0:
            return before
        known = self._loss.base_score(np.array([total / n]), np.array([n]))
        if known is not None:
            return known
        of_chunk = base_score(self._loss, False, target, weight)
        return before + (of_chunk - before) * (weight.sum() / n)

    def _score_of_classes(self):
        total, n, _ = self._sums
        weights = np.array([n - total, total])
        occurs = weights > 0
        return base_score(self._loss, True, np.array([0.0, 1.0])[occurs], weights[occurs])
