"""The part of a model that a chunk of rows holds, trained apart and then written back.

A chunk holds few of a large model's tokens. Their rows are gathered into small tables, which are
trained and written back once all went well: so a chunk takes no time and no memory that grows with
the model, and one that fails has changed nothing.
"""

import copy
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._memory import aligned_copy, aligned_zeros
from freqfm._validation import count_columns
from freqfm.estimators.fm.trainer import TrainingRows

__all__ = ["LabelledRows", "ModelPart", "WholeModel"]


class WholeModel:
    """A whole model in place of a ``ModelPart``, where steps move all tokens or ranks differ.

    Training is to be undone if it fails.
    """

    restores = True

    def __init__(self, model, rows, counted=False):
        self.estimator, self.rows = model, rows
        if not counted:
            counts = count_columns(rows.X, rows.weight, rows.trained)
            model.token_counts_ = model.token_counts_ + counts
            # The intercept is refined before training, and whoever undoes that has the old array.
            model.intercept_ = model.intercept_.copy()

    def write_back(self):
        """Do nothing: the model itself was trained."""


class LabelledRows(NamedTuple):
    """Rows whose tokens are replaced by labels from 0 on, and the token of each label."""

    rows: TrainingRows
    tokens: np.ndarray

    @classmethod
    def of(cls, rows):
        """Return labelled rows; their indices do not increase, which training does not need."""
        X = rows.X
        tokens, labels = backends.get().label_tokens(X.indices)
        if not len(tokens):
            # Rows without entries train the intercept; a table must have a row.
            tokens = np.zeros(1, dtype=np.int32)
        labelled = sparse.csr_array((X.shape[0], len(tokens)), dtype=np.float32)
        # Assigned, as scipy would cast the indices.
        labelled.data, labelled.indices, labelled.indptr = X.data, labels, X.indptr
        return cls(rows._replace(X=labelled), tokens)


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
        self._model = model
        labelled = rows if isinstance(rows, LabelledRows) else LabelledRows.of(rows)
        self.rows, self._tokens = labelled
        self.estimator = part = copy.copy(model)
        part.n_features_in_ = len(self._tokens)
        for name in model._whole_names:
            setattr(part, name, aligned_copy(getattr(model, name)))
        for name, axis in model._token_axes.items():
            setattr(part, name, _take(getattr(model, name), self._tokens, axis))
        part._optimizer_state = [
            {name: self._part_of_state(name, array) for name, array in state.items()}
            for state in model._optimizer_state
        ]
        part.token_counts_ = model.token_counts_[self._tokens]
        if not counted:
            part.token_counts_ += self._counts()
        model._finish_part(part, self._tokens)

    def _part_of_state(self, name, array):
        return _take(array, self._tokens, 0) if _is_by_token(name, array) else aligned_copy(array)

    def _counts(self):
        """Return the weight of the rows that hold each token, weights added up in their order."""
        rows, n_tokens = self.rows, len(self._tokens)
        weight = rows.weight
        if rows.trained is None and weight.strides == (0,):
            # Weights of 1.
            return np.bincount(rows.X.indices, minlength=n_tokens).astype(np.float64)
        weight = np.repeat(weight, np.diff(rows.X.indptr))
        return np.bincount(rows.X.indices, weights=weight, minlength=n_tokens)

    def write_back(self):
        """Write what was trained to the model. Signals must be held back by the caller."""
        model, part, tokens = self._model, self.estimator, self._tokens
        for name in model._whole_names:
            getattr(model, name)[...] = getattr(part, name)
        for name, axis in model._token_axes.items():
            _put(getattr(model, name), tokens, getattr(part, name), axis)
        for state, trained in zip(model._optimizer_state, part._optimizer_state, strict=True):
            for name, array in state.items():
                if _is_by_token(name, array):
                    _put(array, tokens, trained[name], 0)
                else:
                    array[...] = trained[name]
        model.token_counts_[tokens] = part.token_counts_
        model._target_sums = part._target_sums
        model._finish_write_back(part)


def _is_by_token(name, array):
    """Return whether an array of the optimizer's state has an element or a row for each token."""
    return name != "intercept" and array.size > 0


def _take(array, tokens, axis):
    """Return the elements or rows of some tokens."""
    axis %= array.ndim
    taken = aligned_zeros((*array.shape[:axis], len(tokens), *array.shape[axis + 1 :]), array.dtype)
    # By clipping, which does nothing here, NumPy writes without a buffer.
    return np.take(array, tokens, axis=axis, out=taken, mode="clip")


def _put(array, tokens, values, axis):
    """Write the elements or rows of some tokens."""
    if axis % array.ndim < array.ndim - 1:
        # A row at a time, not a number at a time.
        row = np.dtype((np.void, array.strides[-2]))
        array, values = array.view(row)[..., 0], values.view(row)[..., 0]
    array[..., tokens] = values
