"""What is trained apart or held out: the part of a model that a chunk holds, and penalties.

The part of a model that a chunk of rows holds, trained apart and then written back.

A chunk holds few of a large model's tokens. Their rows are gathered into small tables, which are
trained and written back once all went well: so the time and memory of a chunk do not grow with the
model, and a chunk that fails has changed nothing.
"""

import copy
from typing import NamedTuple

import numpy as np

from freqfm import backends
from freqfm._input.rows import csr_of
from freqfm._input.validation import count_columns
from freqfm._machine import aligned_copy
from freqfm._messages import warn_user
from freqfm._signals import release_signals
from freqfm.estimators.fm.trainer import TrainingRows
from freqfm.estimators.progress import announce
from freqfm.estimators.training import Attempt, EpochLoop, run_epochs
from freqfm.exceptions import DivergenceError


class WholeModel:
    """A whole model in place of a ``ModelPart``, for optimizers whose steps move all tokens.

    To undo a failure takes a copy of the model: every step changes all of it.
    """

    restores = True

    def __init__(self, model, rows, counted=False):
        self.estimator, self.rows = model, rows
        if not counted:
            counts = count_columns(rows.X, rows.weight, rows.trained)
            model.token_counts_ = model.token_counts_ + counts
            # The intercept is refined before training; the old array is kept, to undo that.
            model.intercept_ = model.intercept_.copy()

    def write_back(self):
        """The model itself was trained: there is nothing to write."""


class LabelledRows(NamedTuple):
    """Rows whose tokens are replaced by labels from 0 on, and the token of each label."""

    rows: TrainingRows
    tokens: np.ndarray
    n_entries: np.ndarray  #: of each token

    @classmethod
    def of(cls, rows):
        """Return labelled rows, canonical as they were: labels increase with the tokens."""
        X = rows.X
        tokens, labels, n_entries = backends.get().label_tokens(X.indices, X.shape[1])
        if not len(tokens):
            # Rows without entries train the intercept; a table must have a row.
            tokens = n_entries = np.zeros(1, dtype=np.int32)
        X = csr_of(X.data, labels, X.indptr, (X.shape[0], len(tokens)))
        return cls(rows._replace(X=X), tokens, n_entries)


def weight_of_tokens(labels, indptr, weight, n_entries):
    """Return the weight of the rows that hold each token, weights added up in their order.

    Parameters
    ----------
    labels : ndarray of shape (nnz,)
        Of the entries, see ``Backend.label_tokens``.
    indptr : ndarray of shape (n_rows + 1,)
    weight : ndarray of shape (n_rows,)
    n_entries : ndarray of shape (n_tokens,)
        Of each token.
    """
    if weight.strides == (0,):
        # Weights of 1, see ``validate_weights``.
        return n_entries
    weight = np.repeat(weight, np.diff(indptr))
    return np.bincount(labels, weights=weight, minlength=len(n_entries))


class ModelPart:
    """A copy of a model that holds the tokens of some rows only, and these rows relabelled.

    Parameters
    ----------
    model : BaseFM
        Its arrays must be ready to be trained further.
    rows : TrainingRows or LabelledRows
    counted : bool, default=False
        Whether the model's ``token_counts_`` include ``rows`` already.

    Attributes
    ----------
    estimator : BaseFM
        The copy, to be trained; what fails need not be undone. Its ``token_counts_`` include
        those of ``rows``.
    rows : TrainingRows
    """

    restores = False

    def __init__(self, model, rows, counted=False):
        labelled = rows if isinstance(rows, LabelledRows) else LabelledRows.of(rows)
        self.rows, tokens, n_entries = labelled
        self._model = model
        self.estimator = part = copy.copy(model)
        part.n_features_in_ = len(tokens)
        model._begin_part(part, tokens)
        # The entries of whole arrays; and the rows of tables, with those of the part's.
        self._whole, self._copies = [], []
        learned = model._learned()
        for entry in learned:
            if entry.by_token:
                entry.set(part, entry.room(entry.get(part), len(tokens)))
            else:
                entry.set(part, aligned_copy(entry.get(model)))
                self._whole.append(entry)
        for entry in learned:
            if entry.by_token:
                self._pair_tables(entry, tokens)
        for table, copied, rows in self._copies:
            # In this mode NumPy fills the copy without a buffer.
            np.take(table, rows, axis=0, out=copied, mode="clip")
        if not counted:
            X, weight = self.rows.X, self.rows.weight
            part.token_counts_ += weight_of_tokens(X.indices, X.indptr, weight, n_entries)

    def _pair_tables(self, entry, tokens):
        """List which rows of the tables in an array of the model those of the part hold."""
        model, part = self._model, self.estimator
        for table, copied in zip(entry.views(model), entry.views(part), strict=True):
            rows = tokens
            if entry.row_of is not None:
                rows = np.empty_like(tokens)
                row_of, row_in_part = (getattr(weights, entry.row_of) for weights in (model, part))
                rows[row_in_part] = row_of[tokens]
                rows = rows[: copied.shape[1]]
            if copied.size:
                self._copies += [(*pair, rows) for pair in zip(table, copied, strict=True)]

    def write_back(self):
        """Write the trained arrays to the model. Signals must be held back by the caller."""
        for entry in self._whole:
            entry.get(self._model)[...] = entry.get(self.estimator)
        for table, copied, rows in self._copies:
            table[rows] = copied


# ``alpha_linear`` and ``alpha_factors`` that are tried besides the usual ones, by whether targets
# are classes. Of classes, the first are best if features have strong effects and interactions
# hardly count, and the second if effects are weak; of numbers, both are for weak effects.
_OTHERS = {True: ((0.3, 25.0), (10.0, 25.0)), False: ((10.0, 25.0), (100.0, 300.0))}

# No others are tried if more rows than this are trained on: the usual ones are best on all larger
# data sets that we have, which should not pay for a search.
_MOST_ROWS = 100_000

# Models with other penalties have half the patience of the first, and are given up if their score
# has then risen less than this part of what that of the best model so far had risen. On Frappe
# those that win have risen 0.92 times as much. The fit takes at most three times as long by that,
# and its figures are the same to 0.0003.
_LEAST_RISE = 0.8


def set_penalties(model, reset):
    """Set ``alpha_linear_`` and ``alpha_factors_``: those given, or those usual for a new model."""
    for name, usual in zip(("alpha_linear", "alpha_factors"), model._usual_penalties, strict=True):
        given = getattr(model, name)
        if given != "auto":
            setattr(model, f"{name}_", float(given))
        elif reset:
            setattr(model, f"{name}_", usual)


def penalties_to_try(model, rows):
    """Return the pairs of penalties to try after those of the model.

    Parameters
    ----------
    model : BaseFM
    rows : TrainingRows
        Of the first fold.
    """
    # With alpha_per="row" a penalty counts once for each row: others would be best.
    if rows.held_out is None or rows.n_trained > _MOST_ROWS or model.alpha_per == "row":
        return []
    chosen = [model.alpha_linear == "auto" and model.fit_linear, model.alpha_factors == "auto"]
    own = model.alpha_linear_, model.alpha_factors_
    pairs = [tuple(np.where(chosen, pair, own).tolist()) for pair in _OTHERS[model._of_classes]]
    return [pair for pair in dict.fromkeys(pairs) if pair != own]


class Trained(NamedTuple):
    """What is known of a task that has been trained."""

    loop: EpochLoop
    gain: float | None  #: see ``ModelTask.gain_of_interactions``; None unless verbose
    of_constant: float | None  #: see ``ModelTask``


def train_task(task, phase, trial, callbacks=None, number=0):
    """Return the Trained of a task; see ``run_epochs`` for the parameters."""
    loop = run_epochs(task, phase, trial, callbacks, number)
    gain = task.gain_of_interactions() if task.model.verbose else None
    return Trained(loop, gain, task.of_constant)


def choose_penalties(model, trained, pairs, folds, optimizer):
    """Train models with other penalties; the model becomes the one with the best score.

    Parameters
    ----------
    model : BaseFM
        Trained. If an exception is raised, it is the best one so far.
    trained : Trained
    pairs : list of (float, float)
        From :func:`penalties_to_try`.
    folds : list of TrainingRows
    optimizer : Optimizer
    """
    loop = trained.loop
    if loop.first_epoch or not loop.is_over():
        # It has been chosen in an earlier call, or a callback has stopped the fit.
        pairs = []
    for pair in pairs:
        other = copy.copy(model)
        other.alpha_linear_, other.alpha_factors_ = pair
        announce(model.verbose, f"trying {_named(other)}")
        best = model.validation_scores_
        phase = phase_beside(loop.phase, best)
        try:
            found = _train_new(other, folds, optimizer, phase)
        except DivergenceError:
            continue
        if other.validation_scores_.max() > best.max():
            vars(model).update(vars(other))
            trained = found
    trained.loop.warn()
    warn_if_constant(model, trained.of_constant)
    if pairs:
        announce(model.verbose, f"chosen by validation: {_named(model)}")
    if trained.gain is not None and trained.gain < model.tol:
        announce(
            model.verbose,
            "validation rows are predicted as well without interactions of features: the model is "
            "linear in effect",
        )


def warn_if_constant(model, of_constant):
    """Warn if the best validation score is not above that of a constant, or None if unknown."""
    best = model.validation_scores_.max(initial=-np.inf)
    if of_constant is not None and len(model.validation_scores_) and best <= of_constant:
        warn_user(
            f"{type(model).__name__}: the best validation score ({model._score_name} {best:.5g}) "
            f"is not above that of a constant prediction ({of_constant:.5g}). Try more than "
            f"{_named(model)}, a smaller learning_rate, or more rows; or y hardly depends on X."
        )


def _train_new(model, folds, optimizer, phase):
    with release_signals():
        task = model._begin_folds(folds, optimizer, reset=True)
    return train_task(task, phase, Attempt(), number=1)


def _named(model):
    return f"alpha_linear={model.alpha_linear_:g}, alpha_factors={model.alpha_factors_:g}"


def phase_beside(phase, best):
    """Return the shorter phase of a model beside one whose validation scores are ``best``."""
    if phase.patience is None:
        return phase
    patience = -(-phase.patience // 2)

    def gives_up(scores):
        n_epochs = len(scores)
        if n_epochs <= patience:
            return False
        start = min(scores[0], best[0])
        return scores.max() - start < _LEAST_RISE * (best[:n_epochs].max() - start)

    return phase._replace(patience=patience, gives_up=gives_up)
