"""Losses of single scores and of pairs, by the package's formulas or custom ones."""

import numpy as np
from scipy.special import expit

from freqfm.formulas import codes, losses


def _by_element(function, *arrays):
    """Return what a user's function of float32 numbers returns for each element of arrays."""
    arrays = np.broadcast_arrays(*(np.asarray(array, dtype=np.float32) for array in arrays))
    found = [function(*numbers) for numbers in zip(*(a.ravel() for a in arrays), strict=True)]
    return np.array(found, dtype=np.float64).reshape(*arrays[0].shape, -1)


def loss_of(code, formulas, scores, target):
    """Return the losses of scores, and their derivatives by the scores."""
    custom = formulas.get(losses.loss_and_gradient)
    if custom:
        return np.moveaxis(_by_element(lambda s, t: custom(code, s, t), scores, target), -1, 0)
    if code == codes.LOG_LOSS:
        return np.logaddexp(0, scores) - target * scores, expit(scores) - target
    return (scores - target) ** 2 / 2, scores - target


def curvature_of(code, formulas, scores, target):
    """Return bounds on the second derivatives of the losses."""
    custom = formulas.get(losses.loss_curvature)
    if custom:
        return _by_element(lambda s, t: custom(code, s, t), scores, target)[..., 0]
    return np.full(len(scores), 0.25 if code == codes.LOG_LOSS else 1.0)


def expectation(code, formulas, scores):
    """Return the targets that scores stand for."""
    custom = formulas.get(losses.expectation)
    if custom:
        return _by_element(lambda s: custom(code, s), scores)[..., 0]
    return expit(scores) if code == codes.LOG_LOSS else scores


def pair_loss(formulas, positive, negative):
    """Return log(1 + exp(negative - positive)), and its derivatives by both scores."""
    custom = formulas.get(losses.pair_loss)
    if custom:
        return np.moveaxis(_by_element(custom, positive, negative), -1, 0)
    push = expit(negative - positive)
    return np.logaddexp(0, negative - positive), -push, push


def log_surrogate(formulas, difference):
    """Return the log of the surrogates of exp(difference), and its derivatives."""
    return np.moveaxis(_by_element(formulas[losses.log_surrogate], difference), -1, 0)
