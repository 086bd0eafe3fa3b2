"""Fits on streams of chunks: a pass that counts, then epochs that train chunk by chunk.

A chunk holds few of a large model's tokens. Their rows are gathered into small tables, which are
trained and written back once all went well: so the time and memory of a chunk do not grow with the
model, and a chunk that fails has changed nothing.
"""

import contextlib
import copy
from typing import NamedTuple

import numpy as np
from sklearn.base import is_regressor

from freqfm import backends
from freqfm._input import validation
from freqfm._input.rows import count_columns, csr_of, with_fields_of
from freqfm._machine import aligned_copy
from freqfm._signals import hold_signals
from freqfm.estimators.fm.targets import RunningBaseScore, check_labels, sum_of_squares
from freqfm.estimators.fm.trainer import ModelTask, TrainingRows, checked_score, score_of_constant
from freqfm.estimators.training import check_finite


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


def as_triple(chunk):
    """Return X, y and the weights of a chunk, which may lack the weights."""
    X, y, *weight = chunk
    return X, y, weight[0] if weight else None


class StreamSurvey(NamedTuple):
    """The counts of a pass over a stream."""

    n_read: int  #: all rows
    n_rows: int  #: of positive weight
    n_chunks: int
    weight: float  #: of all rows
    spread: float  #: of weights, see ``spread_of``
    #: (n_features,), float64, weight of the rows that hold each feature of the widest chunk
    counts: np.ndarray
    targets: object  #: a collector of targets

    def counts_for(self, n_features):
        """Return the counts of a model that has so many features."""
        if len(self.counts) > n_features:
            raise ValueError(
                f"X is a stream of {len(self.counts)} features, but the model to continue has "
                f"{n_features}; hash new tokens into the known features, or fit a new model with "
                f"warm_start=False."
            )
        return np.append(self.counts, np.zeros(n_features - len(self.counts)))

    def hashed(self):
        """Return arrays that differ between streams, for checkpoints."""
        sizes = [self.n_rows, self.n_chunks, float(self.weight)]
        return {"X": [*sizes, self.counts], "y": self.targets.summary()}


class _Classes:
    """The weight of every class label that has occurred."""

    def __init__(self, model):
        self._model = model
        self._weights = {}

    def add(self, y, weight):
        """Add labels; return the weights of the rows times those of their classes."""
        labels, codes = np.unique(check_labels("y", y), return_inverse=True)
        factors = self._model._factors_of_classes(labels)
        if (factors != 1).any():
            weight = weight * factors[codes]
        for label, total in zip(labels, np.bincount(codes, weights=weight), strict=True):
            self._weights[label] = self._weights.get(label, 0.0) + total
        return weight

    def summary(self):
        """Return labels and weights as arrays."""
        labels = np.array(sorted(self._weights))
        return [labels, np.array([self._weights[label] for label in labels])]

    def finish(self, reset):
        """Set or check the model's classes; return the sums and base score of every output."""
        model, (labels, weights) = self._model, self.summary()
        if not reset:
            model._encode_target(labels, None, False)
            return None
        model._set_classes(labels)
        outputs = [1] if len(labels) == 2 else range(len(labels))
        sums = np.array([[weights[k], weights.sum(), 0.0, weights[k]] for k in outputs])
        for of_output in sums:
            RunningBaseScore(model, of_output).update()
        return sums


class _Numbers:
    """The sum of the real targets, and their base score."""

    def __init__(self, model):
        self._model = model
        self._sums = np.zeros(4)
        self._base = RunningBaseScore(model, self._sums)

    def add(self, y, weight):
        """Add targets; return the weights."""
        target, _ = self._model._encode_and_check(y, None, True)
        kept = weight != 0
        self._base.add(target[0][kept], weight[kept])
        return weight

    def summary(self):
        """Return the sums as arrays."""
        return [self._sums.copy()]

    def finish(self, reset):
        """Return the sums and the base score of the output."""
        return self._sums[np.newaxis].copy()


def survey_stream(model, stream):
    """Return the ``StreamSurvey`` of a pass over a stream, whose encoder learns meanwhile."""
    targets = (_Classes if model._of_classes else _Numbers)(model)
    probe, counts = copy.copy(model), np.zeros(0)
    n_read = n_rows = n_chunks = total = squares = 0
    for chunk in stream.epoch(0, learn=True):
        given, y, weight = as_triple(chunk)
        X, y = validation.validate_rows(probe, given, y, reset=True, y_numeric=is_regressor(model))
        if not n_chunks:
            model._refuse_categories(given, X)
            validation.warn_of_large_values(probe, X)
        weight = targets.add(y, _weights_of(weight, X))
        if X.shape[1] > len(counts):
            counts = np.append(counts, np.zeros(X.shape[1] - len(counts)))
        tokens, labels, n_entries = backends.get().label_tokens(X.indices, X.shape[1])
        counts[tokens] += weight_of_tokens(labels, X.indptr, weight, n_entries)
        n_read += X.shape[0]
        n_rows += int(np.count_nonzero(weight))
        n_chunks += 1
        total += float(weight.sum())
        squares += sum_of_squares(weight)
    if not n_rows:
        raise ValueError(
            "X is a stream without a row of positive weight; give one with rows that can be read "
            "again: a function that returns a new iterator every time, not an iterator."
        )
    spread = n_rows * squares / total**2
    return StreamSurvey(n_read, n_rows, n_chunks, total, spread, counts, targets)


def _weights_of(weight, X):
    """Return the weights of a chunk's rows; unlike those of a data set all may be zero."""
    if weight is not None and not np.any(weight):
        return np.zeros(X.shape[0])
    return validation.validate_weights(weight, X)


class StreamTrainer(ModelTask):
    """The training task of a model and a stream: an epoch is a pass over all chunks.

    Each chunk trains a part of the model that is then written back. So an epoch that fails leaves
    the model of the last chunk before, without a copy of the model.

    Parameters
    ----------
    model : BaseFM
        Initialised, with the counts of the whole stream.
    optimizer : Optimizer
    stream : RowStream
    survey : StreamSurvey
    held_out : RowStream or tuple, optional
        A stream, or one chunk.
    trial : Attempt
        Kept once a chunk is trained, if chunks are trained as parts.
    """

    def __init__(self, model, optimizer, stream, survey, held_out, trial):
        self.model = model
        self.optimizer = optimizer
        self.restores = not model._has_parts(optimizer)
        self._stream, self._survey, self._trial = stream, survey, trial
        self._held_out = held_out
        # A chunk has threads of its own.
        self._backend = backends.get(model.device)

    def run_epoch(self, epoch):
        """Train on every chunk once; return the mean loss."""
        total, n_read, expected = 0.0, 0, self._survey.n_read
        chunks = self._stream.epoch(epoch, learn=False, prepare=self._prepared)
        with contextlib.closing(chunks):
            for number, (n, rows) in enumerate(chunks):
                n_read += n
                if rows is not None:
                    total += self._train(rows, epoch, number)
        if n_read != expected:
            raise ValueError(
                f"X is a stream that had {expected} rows when it was read first, and {n_read} in a "
                f"later pass; its source must be a function that returns a new iterator over the "
                f"same rows every time."
            )
        return total / self._survey.weight

    def _prepared(self, chunk):
        """Return a chunk's number of rows, and the rows, labelled if parts are trained, or None."""
        rows = self._rows_of(chunk)
        if rows is not None and not self.restores:
            rows = LabelledRows.of(rows)
        return len(chunk[1]), rows

    def _rows_of(self, chunk):
        """Return the TrainingRows of a chunk, or None if all their weights are zero."""
        X, y, weight = as_triple(chunk)
        if weight is not None and not np.any(weight):
            return None
        model = self.model
        X = with_fields_of(X, validation.widen("X", X, model.n_features_in_))
        return model._prepare(X, y, weight, None, reset=False, partial=True)[0]

    def _train(self, rows, epoch, number):
        """Train on a chunk; return the sum of its losses."""
        model, survey = self.model, self._survey
        # By one thread, since another one reads at the same time.
        part = model._part_of(rows, self.optimizer, counted=True)
        mean_weight = survey.weight / survey.n_rows
        task = model._trainer(part.estimator, self.optimizer, part.rows, survey.weight, mean_weight)
        task.share = self.share
        # Chunks differ in the order of their rows too.
        with task:
            loss = task.run_epoch(epoch * survey.n_chunks + number)
        check_finite(model, task, loss, epoch, "The model of the chunk before is kept.")
        with hold_signals():
            part.write_back()
            self._trial.kept = self._trial.kept or not self.restores
        return loss * part.rows.of_trained(part.rows.weight).sum()

    def validation_score(self):
        """Return the model's score on the validation rows, chunk by chunk."""
        model, chunks = self.model, [self._held_out]
        if validation.is_stream(self._held_out):
            chunks = self._held_out.epoch(0, learn=False)
        found = []
        for chunk in chunks:
            rows = self._rows_of(chunk)
            if rows is not None:
                found.append((rows.target, model._score_rows(rows.X), rows.weight))
        if not found:
            raise ValueError(
                "X_val is a stream without a row of positive weight; give one with rows."
            )
        target, scores, weight = (
            np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True)
        )
        self.of_constant = score_of_constant(model, target, weight)
        return checked_score("X_val", model._validation_score, target, scores, weight)
