"""Vectors of users by their histories, and what a score is made of."""

import numpy as np
from sklearn.utils import Bunch

from freqfm._validation import as_kernel_array, validate_ids
from freqfm.estimators.histories import unit_rows
from freqfm.kernels.cpu.fold_in import fold_in
from freqfm.kernels.cpu.team import Team

# How many others a user is folded in against: negatives of a softmax, or other users.
N_OTHERS = 1024
_N_OTHERS_OF_PAIRS = 128

_N_STEPS = 20

# A user moves to the gradient plus this share of the squared inverse temperature times itself, a
# bound of the loss's curvature for the scores that models have.
_INERTIA = 0.1


def remember_others(model, axes, constant, generator):
    """Keep what folding in needs of the training: constants, and who the others are.

    Parameters
    ----------
    model : MFRecommender
    axes : Axes
    constant : float
        The weight of the negatives' logarithm in a softmax.
    generator : numpy.random.Generator
    """
    loss = axes.loss
    n_items = len(model.item_factors_)
    if loss.family == "alignment":
        # The others are users; the pull is that of one positive, the push of one row of the batch.
        others = np.flatnonzero(np.diff(model._seen_indptr))
        gamma = loss.gammas[0]
        constants = (1.0, 4.0, gamma) if loss.half else (2.0, 4.0, gamma)
    else:
        others = np.arange(n_items)
        # The inverse temperatures are those that the training ends at.
        constants = (np.nan, np.nan, constant)
    most = _N_OTHERS_OF_PAIRS if loss.family == "pairwise" else N_OTHERS
    if len(others) > most:
        others = np.sort(generator.choice(others, most, replace=False))
    model._others = others
    model._fold_constants = np.array(constants)
    model._family = loss.family
    model._train_by_cosine = axes.cosine


def _objective(model):
    """Return items, others and the constants of a user's loss, by unit vectors of users."""
    alignment = model._family == "alignment"
    cosine = model._train_by_cosine
    seen = np.diff(model._seen_indptr) > 0
    length = 1.0 if cosine else _typical_length(model)
    items = unit_rows(model.item_factors_) if cosine else as_kernel_array(model.item_factors_)
    positive, inverse, constant = model._fold_constants
    if alignment:
        others = unit_rows(model.user_factors_[model._others])
    else:
        others = items[model._others]
        positive, inverse = model._inverse[seen].mean(axis=0) if seen.any() else model._inverse[0]
    return items, np.ascontiguousarray(others), positive, inverse, constant, length


def fold_in_rows(model, X, n_threads):
    """Return the vectors of the rows of a canonical matrix, as rankings use them."""
    items, others, positive, inverse, constant, length = _objective(model)
    n, width = X.shape[0], items.shape[1]
    out = np.zeros((n, width), dtype=np.float32)
    if n * _N_STEPS * others.size < 1_000_000:
        n_threads = 1
    floats = np.zeros((n_threads, len(others) + 32), dtype=np.float32)
    with Team(n_threads) as team:
        team.run(
            fold_in,
            X.indptr,
            X.indices,
            X.data,
            items,
            others,
            model._family == "pairwise",
            np.float32(positive * length),
            np.float32(inverse * length),
            np.float32(constant),
            np.float32(_INERTIA * (inverse * length) ** 2 * constant),
            _N_STEPS,
            floats,
            floats.copy(),
            np.zeros((n_threads, width + 32), dtype=np.float32),
            out,
        )
    if not model._rank_by_cosine:
        out *= np.float32(_typical_length(model))
    return out


def _typical_length(model):
    """Return the root mean square of the lengths of trained users."""
    seen = np.diff(model._seen_indptr) > 0
    if not seen.any():
        return 1.0
    return float(np.sqrt(np.mean(np.sum(model.user_factors_[seen] ** 2, axis=1))))


def explain_score(model, query, history, item):
    """Split the score of an item into what each item of the history adds, and a rest."""
    (item,) = validate_ids("item", item, model.n_features_in_)
    target = model._item_vectors()[item]
    score = float(query @ target)
    if not history.nnz:
        return Bunch(
            history=np.zeros(0, dtype=np.int64), contributions=np.zeros(0), rest=score, score=score
        )
    items, others, positive, inverse, constant, length = _objective(model)
    size = np.linalg.norm(query)
    user = query / (size if size > 0 else 1)
    weight = history.data / history.data.sum()
    vectors = items[history.indices]
    scores = inverse * length * (others @ user)
    if model._family == "pairwise":
        differences = inverse * length * (vectors @ user)[:, None] - scores
        slopes = weight[:, None] / (1 + np.exp(differences)) / len(others)
        pulls = inverse * length * slopes.sum(axis=1)
        push = inverse * length * slopes.sum(axis=0) @ others
    else:
        shares = np.exp(scores - scores.max())
        pulls = positive * length * weight
        push = constant * inverse * length * (shares / shares.sum()) @ others
    gradient = pulls @ vectors - push
    scale = size / max(float(np.linalg.norm(gradient)), 1e-12)
    contributions = scale * pulls * (vectors @ target)
    order = np.argsort(-contributions, kind="stable")
    return Bunch(
        history=history.indices[order].astype(np.int64),
        contributions=contributions[order].astype(np.float64),
        rest=score - float(contributions.sum()),
        score=score,
    )
