"""The training task of factorization machines: a model and some rows of X."""

import copy
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._input.rows import CarriesFields, count_columns, take_rows
from freqfm._input.validation import count_threads
from freqfm.backends.base import FMObjective, FMProblem, Snapshot
from freqfm.callbacks._storage import digest
from freqfm.estimators.fm.targets import base_score, spread_of
from freqfm.estimators.training import TrainingTask

# From this many rows on, an epoch shuffles blocks of 2^4 rows instead of rows. The rows of a block
# share cache lines, which saves a quarter of the time on short rows. Rows are assigned to blocks at
# random, once.
_BLOCKED_FROM = 1 << 14
_BLOCK_BITS = 4

# With fewer batches an epoch, all are of equal size. A last batch of few rows would move
# the intercept, and tokens of all rows, as far as a full batch. With more batches, steps are small
# at the end of an epoch, and chunks have the batches that all rows together have.
_MANY_BATCHES = 256


class TrainingRows(NamedTuple):
    """Checked rows, and which of them are trained on; they are not copied."""

    X: sparse.csr_array  #: canonical, (n_rows, n_features)
    y: np.ndarray  #: (n_rows,), as the user gave it
    target: np.ndarray  #: (n_outputs, n_rows), float32
    weight: np.ndarray  #: (n_rows,), with class weights
    class_weights: np.ndarray | None = None  #: a part of weight
    trained: np.ndarray | None = None  #: the rows that are trained on, in order; None for all
    held_out: tuple | None = None  #: X, target and weight of the validation part
    held_out_y: np.ndarray | None = None  #: its y, as the user gave it

    @property
    def n_trained(self):
        """The number of rows that are trained on."""
        return self.X.shape[0] if self.trained is None else len(self.trained)

    @property
    def spread(self):
        """Of the weights of the rows that are trained on, see ``spread_of``."""
        return spread_of(self.of_trained(self.weight))

    def count_tokens(self):
        """Return the weight of the rows that hold each token, among those trained on."""
        return count_columns(self.X, self.weight, self.trained)

    def target_sums(self, model):
        """Return the sums of each output's targets, see ``RunningBaseScore``."""
        weight, sums = self.of_trained(self.weight), np.zeros((len(self.target), 4))
        for target, of_output in zip(self.target, sums, strict=True):
            target = self.of_trained(target)
            score = base_score(model._loss, model._of_classes, target, weight)
            squares = np.square(target, dtype=np.float64) @ weight
            of_output[:] = (target * weight).sum(), weight.sum(), score, squares
        return sums

    def numbers(self):
        """Return the indices of the rows that are trained on, in 32 bits if they fit."""
        if self.trained is None:
            n_rows = self.X.shape[0]
            narrow = n_rows <= np.iinfo(np.int32).max
            return np.arange(n_rows, dtype=np.int32 if narrow else np.int64)
        return self.trained

    def of_trained(self, values):
        """Return, from an array whose last axis is all rows, the values of the trained rows."""
        return values if self.trained is None else values[..., self.trained]

    def split(self, trained, held_out):
        """Return the rows with some of them, by number, trained on and others held out."""
        part = take_rows(self.X, held_out), self.target[:, held_out], self.weight[held_out]
        return self._replace(trained=trained, held_out=part, held_out_y=self.y[held_out])

    def copied(self):
        """Return the rows that are trained on as a separate copy."""
        if self.trained is None:
            return self
        X = take_rows(self.X, self.trained)
        y, target, weight = map(self.of_trained, (self.y, self.target, self.weight))
        return self._replace(X=X, y=y, target=target, weight=weight, trained=None)


class RawRows(NamedTuple):
    """Rows of a shard as the user gave them."""

    X: object
    y: object
    sample_weight: object  #: or None


def n_weighted(raw):
    """Return the number of rows whose weight is not zero; others are equivalent to no row."""
    return raw.X.shape[0] if raw.sample_weight is None else np.count_nonzero(raw.sample_weight)


class Shard:
    """Checked rows of a shard, and their split into parts to train on and to validate on.

    Parameters
    ----------
    raw : RawRows
    model : BaseFM
        With the parameters; not fitted.
    seed : int
    classes : ndarray or None
        All classes, of all shards.
    """

    def __init__(self, raw, model, seed, classes):
        model = copy.copy(model)
        options = raw.X, raw.y, raw.sample_weight, classes
        self.rows, self.labels = model._prepare(*options, reset=True)
        model._seed = seed
        self.model = model
        # Without rows: what carries the fields of columns.
        self.head = raw.X[:0] if isinstance(raw.X, CarriesFields) else None
        self.folds = [self.rows]

    def split(self, share):
        """Return the shard with a random share of its rows held out; None as the model would."""
        found = copy.copy(self)
        if share is None:
            found.folds = self.model._split(self.rows, self.labels)
            return found
        numbers = np.random.default_rng([self.model._seed, 1]).permutation(self.rows.numbers())
        n_held = round(share * len(numbers))
        if n_held:
            found.folds = [self.rows.split(np.sort(numbers[n_held:]), np.sort(numbers[:n_held]))]
        return found

    def validated_on(self, raw):
        """Return the shard with a given validation part, without one if no row has a weight."""
        if not n_weighted(raw):
            return self
        found, options = copy.copy(self), (raw.X, raw.y, raw.sample_weight)
        found.folds = [self.model._with_given_validation(self.rows, *options)]
        return found

    def facts(self):
        """Return the numbers of rows of each fold, trained on and held out."""
        found = self.folds
        return [
            (fold.n_trained, fold.held_out[0].shape[0] if fold.held_out else 0) for fold in found
        ]

    def features(self):
        """Return the number of features, and their names and what carries their fields or None."""
        return self.model.n_features_in_, getattr(self.model, "feature_names_in_", None), self.head

    def fold(self, number):
        """Return the rows of a fold; those of None are all."""
        return self.rows if number is None else self.folds[number]

    def count_tokens(self, fold):
        """Return the weight of the rows of a fold that hold each token."""
        return self.fold(fold).count_tokens()

    def target_sums(self, fold):
        """Return the sums of the targets of a fold, see ``RunningBaseScore``."""
        return self.fold(fold).target_sums(self.model)

    def digest(self):
        """Return a hash of the rows."""
        return digest([_arrays(self.rows), [_arrays(fold) for fold in self.folds]], "X")


def _arrays(rows):
    """Return the arrays of rows: what they hold, and which are trained on."""
    X, target, weight = rows.held_out or (None, None, None)
    held_out = [] if X is None else [X.data, X.indices, X.indptr, target, weight]
    matrix = [rows.X.data, rows.X.indices, rows.X.indptr]
    return [*matrix, rows.target, rows.weight, rows.trained, held_out]


class ModelTask(TrainingTask):
    """Base class of the tasks that train factorization machines, see ``TrainingTask``."""

    #: The validation score of the best constant scores of the training rows; None if unknown.
    of_constant = None

    def gain_of_interactions(self):
        """Return how much better the validation score is than without them; None if unknown."""

    @property
    def divergence_hint(self):
        """A remedy if training diverges, besides a smaller learning rate."""
        return self.model._divergence_hint

    @property
    def _names(self):
        return self.model._weight_names


class FMTrainer(ModelTask):
    """A model, the rows that train it, and those that it is validated on.

    Parameters
    ----------
    model : BaseFM
        Initialised; its arrays are updated in place.
    optimizer : Optimizer
    rows : TrainingRows
    total_weight, mean_weight : float, default=None
        Of all rows that the model is trained on, if ``rows`` are a part of them.
    """

    def __init__(self, model, optimizer, rows, total_weight=None, mean_weight=None):
        self.model, self.optimizer, loss = model, optimizer, model._loss
        self._held_out = rows.held_out
        self._weight_sum = rows.of_trained(rows.weight).sum()
        self._total_weight = self._weight_sum if total_weight is None else total_weight
        if mean_weight is None:
            mean_weight = self._weight_sum / rows.n_trained
        batch_size = min(int(model.batch_size), rows.n_trained)
        self._n_batches = -(-rows.n_trained // batch_size)
        n_rows = self._total_weight / mean_weight
        if n_rows < _MANY_BATCHES * int(model.batch_size):
            batch_size = -(-rows.n_trained // self._n_batches)
        block_bits = _BLOCK_BITS if model.shuffle and rows.n_trained >= _BLOCKED_FROM else 0
        order = rows.trained
        if block_bits:
            order = np.random.default_rng(model._seed).permutation(rows.numbers())
        problem = FMProblem(
            X=rows.X,
            target=rows.target,
            weight=rows.weight,
            rows=order,
            n_blocks=(rows.n_trained >> block_bits) if model.shuffle else 0,
            block_bits=block_bits,
            batch_size=batch_size,
            seed=model._seed,
            objective=self._objective(rows, loss.code, float(mean_weight)),
            # Penalties are part of the objective, so there is no weight decay.
            rule=optimizer.update_rule(),
            ranked=model._ranked_training(),
            dense=model._dense_training(self._total_weight),
            weights=model._outputs(),
            states=model._optimizer_states(),
            formulas=loss.replacements(model._of_classes) | optimizer.replacements(),
        )
        n_threads = count_threads(model.n_jobs)
        self._backend, self._trainer = backends.start(
            model.device, "fm_trainer", problem, n_threads
        )
        if rows.held_out is not None:
            # Scored in every epoch.
            X, target, weight = rows.held_out
            self._for_scorer = None
            if model.scoring != "loss":
                self._for_scorer = X, rows.held_out_y, weight
            self._held_out = self._backend.fm_rows(X), target, weight
            self._validation_rows = X
            if self._for_scorer is None:
                self.of_constant = score_of_constant(model, target, weight)

    def _objective(self, rows, loss_code, mean_weight):
        model, shares = self.model, np.ones(rows.X.shape[1], dtype=np.float32)
        if model.alpha_per == "token":
            # A token in no row has no gradient, so any number works.
            counts = np.where(model.token_counts_ > 0, model.token_counts_, 1.0)
            np.divide(1.0, counts, out=shares, casting="same_kind")
        return FMObjective(
            loss_code=loss_code,
            alpha_linear=model.alpha_linear_,
            alpha_factors=model.alpha_factors_,
            fit_intercept=bool(model.fit_intercept),
            fit_linear=bool(model.fit_linear),
            mean_weight=mean_weight,
            loss_scale=model._loss_scale,
            shares=shares,
        )

    def run_epoch(self, epoch):
        """Train every output on every row once; return the mean loss, summed over outputs."""
        total = self._trainer.run_epoch(epoch, int(self.model._n_steps[0]), self.share)
        self.model._n_steps += self._n_batches
        return total / self._weight_sum

    def validation_score(self):
        """Return the model's score on the validation part."""
        if self._for_scorer is not None:
            self.pull()
            return self.model._score_by_scorer(*self._for_scorer)
        X, target, weight = self._held_out
        scores = self._trainer.scores(X)
        rows = "X_val, or the part of X that early stopping sets aside,"
        return checked_score(rows, self.model._validation_score, target, scores, weight)

    def gain_of_interactions(self):
        """Return how much the score of validation rows exceeds that of linear weights alone."""
        if self._held_out is None:
            return None
        (_, target, weight), X, model = self._held_out, self._validation_rows, self.model
        coef = model.coef_.reshape(len(model.intercept_), -1)
        linear = model.intercept_[:, np.newaxis] + (X @ coef.T).T
        of_all, of_linear = (
            model._validation_score(target, s, weight) for s in (model._score_rows(X), linear)
        )
        return of_all - of_linear


def checked_score(rows, score, target, scores, weight):
    """Return the validation score of ``rows``, named in messages; raise if scores overflow."""
    if not np.isfinite(scores).all():
        raise ValueError(
            f"{rows} holds values so large that scores of its rows overflow float32; scale them."
        )
    return float(score(target, scores, weight))


def score_of_constant(model, target, weight):
    """Return the score of validation rows by the best constant scores of the training rows."""
    constant = np.broadcast_to(model._target_sums[:, 2:3].astype(np.float32), target.shape)
    return float(model._validation_score(target, constant, weight))


class FoldsSnapshot:
    """Snapshots of the models of several folds, as one."""

    def __init__(self, snapshots):
        self._snapshots = snapshots

    def save(self):
        """Copy all models."""
        for snapshot in self._snapshots:
            snapshot.save()

    def restore(self):
        """Write the copies back."""
        for snapshot in self._snapshots:
            snapshot.restore()

    def copies(self):
        """Return the copies, a list for each fold."""
        return [snapshot.copies() for snapshot in self._snapshots]

    def load(self, copies):
        """Take over copies that another snapshot has returned."""
        for snapshot, of_fold in zip(self._snapshots, copies, strict=True):
            snapshot.load(of_fold)


class FoldsTrainer(ModelTask):
    """Trainers of several folds, which take turns epoch by epoch; a context manager.

    The number of epochs is found by means over the folds. The first trainer's model represents all
    of them: an interrupted fit leaves this model.

    Parameters
    ----------
    trainers : list of FMTrainer
    """

    def __init__(self, trainers):
        self._trainers = trainers
        self.model = trainers[0].model
        self.optimizer = trainers[0].optimizer
        if trainers[0].of_constant is not None:
            self.of_constant = np.mean([trainer.of_constant for trainer in trainers])

    @property
    def device(self):
        """Name of the device that trains."""
        return self._trainers[0].device

    def _contexts(self):
        return self._trainers

    def run_epoch(self, epoch):
        """Train every model for an epoch; return the mean of their losses."""
        return float(np.mean([trainer.run_epoch(epoch) for trainer in self._trainers]))

    def validation_score(self):
        """Return the mean of the models' scores on the rows held out from each."""
        return float(np.mean([trainer.validation_score() for trainer in self._trainers]))

    def gain_of_interactions(self):
        """Return the mean over the folds; None if unknown."""
        gains = [trainer.gain_of_interactions() for trainer in self._trainers]
        return None if None in gains else np.mean(gains)

    def pull(self):
        """Bring the arrays of all models up to date."""
        for trainer in self._trainers:
            trainer.pull()

    def snapshot(self):
        """Return a snapshot of all arrays that training changes."""
        return FoldsSnapshot([trainer.snapshot() for trainer in self._trainers])

    def largest_weight(self):
        """Return the largest absolute value of a weight of any model."""
        return np.max([trainer.largest_weight() for trainer in self._trainers])

    def extra(self):
        """Return the values that a checkpoint stores besides the estimator: the other models."""
        return {"folds": [trainer.state() for trainer in self._trainers[1:]]}

    def restore_extra(self, extra):
        """Restore the values that :meth:`extra` has returned."""
        for trainer, arrays in zip(self._trainers[1:], extra["folds"], strict=True):
            state = Snapshot(trainer.state())
            state.load(arrays)
            state.restore()
