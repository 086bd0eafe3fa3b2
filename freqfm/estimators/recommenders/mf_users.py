"""Vectors of users by their histories, and what a score is made of."""

from typing import NamedTuple

import numpy as np
from sklearn.utils import Bunch

from freqfm._validation import as_kernel_array, validate_ids
from freqfm.backends.cpu.fold_in import fold_in
from freqfm.backends.cpu.team import Team
from freqfm.estimators.recommenders.histories import level_rows, unit_rows

# How many others a user is folded in against: negatives of a softmax, or other users.
N_OTHERS = 1024
_N_OTHERS_OF_PAIRS = 128

_N_STEPS = 20

# Users of whom lengths and temperatures are averaged, if there are many more.
_N_TYPICAL = 4096

# A user moves to the gradient plus this share of the squared inverse temperature times itself, a
# bound of the loss's curvature for the scores that models have.
_INERTIA = 0.1


def choose_fold_in_negatives(model, axes, constant, generator):
    """Keep what folding in needs of the training: constants, and who the others are.

    Parameters
    ----------
    model : MFRecommender
    axes : Components
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


class _Objective(NamedTuple):
    """A user's loss, by unit vectors of users."""

    others: np.ndarray  #: vectors that push
    positive: float  #: the inverse temperature of positives
    inverse: float  #: that of others
    constant: float
    length: float  #: of users


def _objective(model):
    """Return a user's loss with all items as they are."""
    length = 1.0 if model._train_by_cosine else typical_length(model)
    positive, inverse, constant = model._fold_constants
    if model._family == "alignment":
        others = unit_rows(model.user_factors_[model._others])
    else:
        others = _compared(model, model._others)
        positive, inverse = model._inverse_temperatures[_some_users(model)].mean(axis=0)
    return _Objective(np.ascontiguousarray(others), positive, inverse, constant, length)


def _compared(model, items):
    """Return vectors of items as the loss compares them."""
    vectors = model.item_factors_[items]
    return unit_rows(vectors) if model._train_by_cosine else as_kernel_array(vectors)


def _items_of(model, indices):
    """Return item vectors as the loss compares them, and the indices that find them there."""
    if not model._train_by_cosine or len(indices) >= len(model.item_factors_):
        return _compared(model, slice(None)), indices
    # A few rows, normalised, rather than the whole table.
    used, places = np.unique(indices, return_inverse=True)
    return _compared(model, used), places.astype(np.int32)


def fold_in_directions(model, X, n_threads):
    """Return the unit vectors of the rows of a canonical matrix; zeros for empty rows."""
    others, positive, inverse, constant, length = _objective(model)
    items, indices = _items_of(model, X.indices)
    n, width = X.shape[0], others.shape[1]
    out = np.zeros((n, width), dtype=np.float32)
    n_threads = max(1, min(n_threads, n))
    if n * _N_STEPS * others.size < 1_000_000:
        n_threads = 1
    floats = np.zeros((n_threads, len(others) + 32), dtype=np.float32)
    with Team(n_threads) as team:
        team.run(
            fold_in,
            X.indptr,
            indices,
            level_rows(X.indptr, X.data),
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
    return out


def fold_in_rows(model, X, n_threads):
    """Return the vectors of the rows of a canonical matrix, as rankings use them."""
    out = fold_in_directions(model, X, n_threads)
    if not model._rank_by_cosine:
        out *= np.float32(typical_length(model))
    return out


def _some_users(model):
    """Return users with interactions, spread over all, or the first if nobody has any."""
    n_users = len(model._seen_indptr) - 1
    some = np.arange(0, n_users, max(1, n_users // _N_TYPICAL))
    some = some[model._seen_indptr[some] < model._seen_indptr[some + 1]]
    if not len(some):
        some = np.flatnonzero(np.diff(model._seen_indptr))[:_N_TYPICAL]
    return some if len(some) else np.zeros(1, dtype=np.int64)


def typical_length(model):
    """Return the root mean square of the lengths of trained users."""
    some = _some_users(model)
    if model._seen_indptr[-1] == 0:
        return 1.0
    return float(np.sqrt(np.mean(np.sum(model.user_factors_[some] ** 2, axis=1))))


def explain_score(model, query, history, item):
    """Split the score of an item into what each item of the history adds, and a rest."""
    (item,) = validate_ids("item", item, model.n_features_in_)
    (target,) = model._item_vectors([item])
    score = float(query @ target)
    if not history.nnz:
        return Bunch(
            history=np.zeros(0, dtype=np.int64), contributions=np.zeros(0), rest=score, score=score
        )
    others, positive, inverse, constant, length = _objective(model)
    size = np.linalg.norm(query)
    user = query / (size if size > 0 else 1)
    weight = level_rows(history.indptr, history.data)
    weight = weight / weight.sum()
    vectors = _compared(model, history.indices)
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
