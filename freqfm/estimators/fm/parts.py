"""The part of a model that a chunk of rows holds, trained apart and then written back.

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
from freqfm._memory import aligned_copy, aligned_empty
from freqfm.estimators.fm.trainer import TrainingRows

# Arrays of an optimizer's state that have a number for each token, or none.
_BY_TOKEN = ("per_row", "linear_first", "linear_second")


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
        part.coef_ = _empty_part(model.coef_, len(tokens))
        part.token_counts_ = _empty_part(model.token_counts_, len(tokens))
        part._optimizer_state = [dict(state) for state in model._optimizer_state]
        for state in part._optimizer_state:
            state["intercept"] = aligned_copy(state["intercept"])
            for name in _BY_TOKEN:
                state[name] = _empty_part(state[name], len(tokens))
        for name in ("intercept_", "_n_steps"):
            setattr(part, name, aligned_copy(getattr(model, name)))
        model._begin_part(part, tokens)
        counts = model.token_counts_[:, np.newaxis], tokens, part.token_counts_[:, np.newaxis]
        self._copies, self._whole = [counts], []
        self._pair_tables(tokens)
        for table, rows, copied in self._copies:
            # In this mode NumPy fills the copy without a buffer.
            np.take(table, rows, axis=0, out=copied, mode="clip")
        if not counted:
            X, weight = self.rows.X, self.rows.weight
            part.token_counts_ += weight_of_tokens(X.indices, X.indptr, weight, n_entries)

    def _pair_tables(self, tokens):
        """List which rows of the model's tables the part's tables hold."""
        for of_model, of_part in zip(self._model._tables(), self.estimator._tables(), strict=True):
            outputs = zip(of_model.rows, of_part.rows, strict=True)
            if of_model.row_of is None:
                self._whole += outputs
            elif of_part.rows.size:
                rows = _rows_of(tokens, of_model, of_part)
                self._copies += [(table, rows, copied) for table, copied in outputs]

    def write_back(self):
        """Write the trained arrays to the model. Signals must be held back by the caller."""
        for of_model, of_part in self._whole:
            of_model[...] = of_part
        for table, rows, copied in self._copies:
            table[rows] = copied
        self._model._target_sums = self.estimator._target_sums


def _empty_part(array, n_tokens):
    """Return an array like one whose last axis is the tokens, for some tokens, if it has any."""
    n_tokens = min(n_tokens, array.shape[-1])
    return aligned_empty((*array.shape[:-1], n_tokens), array.dtype)


def _rows_of(tokens, of_model, of_part):
    """Return the row in a model's table of each row in a part's, which has these tokens."""
    if isinstance(of_model.row_of, str):
        return tokens
    rows = np.empty_like(tokens)
    rows[of_part.row_of] = of_model.row_of[tokens]
    return rows[: of_part.rows.shape[1]]
