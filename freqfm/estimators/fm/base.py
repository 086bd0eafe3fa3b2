"""Base class of the factorization machines: parameters, fitting, the model's arrays."""

import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.utils.validation import check_is_fitted

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE, resolve, validate_params
from freqfm._input import validation
from freqfm._input.rows import with_fields_of
from freqfm._messages import shown, warn_user
from freqfm._signals import release_signals
from freqfm._sklearn import Interval, StrOptions, callbacks_of
from freqfm._versions import VersionStamp
from freqfm.backends.base import FMWeights
from freqfm.backends.support import check
from freqfm.estimators import state, training
from freqfm.estimators.fm.explanations import ExplanationMixin
from freqfm.estimators.fm.streaming import ModelPart, StreamTrainer, WholeModel, survey_stream
from freqfm.estimators.fm.targets import RunningBaseScore, mean_loss
from freqfm.estimators.fm.trainer import FMTrainer, FoldsTrainer, TrainingRows
from freqfm.estimators.progress import announce
from freqfm.estimators.state import OPTIMIZER, STATISTICS, WEIGHTS, Learned, OptimizerStateMixin
from freqfm.estimators.training import Attempt, FitCallbacks, Phase, TrainedEstimator, attempt
from freqfm.exceptions import DivergenceError
from freqfm.formulas import codes
from freqfm.initializers import INITIALIZERS, Initializer, resolve_for_columns
from freqfm.losses import Loss
from freqfm.optimizers import CFSGD, OPTIMIZERS, Optimizer, OptimizerState

# early_stopping="auto" holds out validation rows if there are at least this many rows.
AUTO_EARLY_STOPPING = 300

# FASGD's default rate for numbers: squared errors have four times the curvature of log losses.
_RATE_OF_NUMBERS = 0.75

# validation_fraction="auto" is a tenth. With fewer rows than this, a tenth is too few to tell one
# epoch from another; they are cross-validated instead, the fewest by ten folds, others by five.
CROSS_VALIDATED_BELOW, _TEN_FOLDS_BELOW = 10_000, 3_000

# A click tells less than a number: below so many rows classes are cross-validated, too. On made
# clicks, a tenth of 15,000 rows often chooses penalties or epochs that are not the best.
_CLASSES_CROSS_VALIDATED_BELOW = 30_000

# The spread of weights, see ``spread_of``, up to which first steps are not shorter for it, so that
# a row of weight two remains two rows. Weights that are uniform between zero and another number
# have 4 / 3, those of balanced classes of which the rarer has a fifth of the rows 1.56.
_EVEN_WEIGHTS = 1.5

# Mean weight of rows below which a fit with CF-SGD warns.
_SMALL_WEIGHT = 0.1

# n_iter_no_change="auto" is this number of epochs, and with validation rows at least this number of
# steps: where an epoch is a step or two, factors need many epochs to grow from their small start.
_PATIENCE_EPOCHS, _PATIENCE_STEPS = 10, 50

# A fit's last epochs settle: a fifth of max_iter, but at most so many.
_MOST_SETTLING = 2


# Whole numbers that may be larger than those of the types of kernels.
AT_LEAST_ONE = [Interval(Integral, 1, None, closed="left")]

# The attributes that hold what optimizers keep.
_STATES = ("_optimizer_state", "_dense_state")

# The tables of an optimizer's state that belong to the factors.
FACTOR_STATES = "factors_first", "factors_second"

# How what an optimizer keeps of an intercept is merged: two moments, and a counter.
_OF_INTERCEPT = state.MOMENTS, state.MOMENTS, state.SUMS


@cache
def _learned_linear(outputs):
    """Return what linear models learn, given the axis of outputs if there are several."""
    return Learned("intercept_", ("outputs",), WEIGHTS), Learned("coef_", (*outputs, "features"))


class LinearPart:
    """The attribute ``coef_``, kept where other attributes are.

    shap takes every model that has ``coef_`` and ``intercept_`` for a linear one, with no means to
    tell it otherwise; it is therefore told that there is no ``coef_``. Feature selection of
    scikit-learn ranks by ``coef_``, which is one possible order: it gets a warning.
    """

    def __get__(self, model, owner=None):
        if model is None:
            return self
        if "coef_" not in vars(model):
            raise AttributeError(f"{type(model).__name__!r} object has no attribute 'coef_'")
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if caller.startswith("shap."):
            warn_user(f"{self._describe(model)}; shap gets no coef_.")
            raise AttributeError(self._describe(model))
        if caller.startswith("sklearn.feature_selection."):
            warn_user(
                f"{self._describe(model)}, and to select features "
                f"sklearn.inspection.permutation_importance."
            )
        return vars(model)["coef_"]

    def __set__(self, model, value):
        vars(model)["coef_"] = value

    def __delete__(self, model):
        if vars(model).pop("coef_", self) is self:
            raise AttributeError("coef_")

    def _describe(self, model):
        score = "decision_function" if hasattr(model, "decision_function") else "predict"
        return (
            f"coef_ is only the linear part of {type(model).__name__}, whose features also "
            f"interact. For what each feature adds to a score use explain, or "
            f"shap.Explainer(model.{score}, background)"
        )


@dataclass(eq=False, repr=False, kw_only=True)
class BaseFM(ExplanationMixin, VersionStamp, OptimizerStateMixin, TrainedEstimator, BaseEstimator):
    """Base class of all factorization machines: everything but factors and targets.

    A class for the factors derives from it (``PlainFactors``, ``RankedFactors``), and an estimator
    adds a mixin for the targets (``ClassTargets``, ``RealTargets``); the first of each documents
    the methods that are called here. A model has one output per class for three classes or more,
    else one; arrays of several outputs have a leading axis.
    """

    _parameter_constraints: ClassVar = {
        "loss": "no_validation",  # names and instances are resolved in fit
        "optimizer": "no_validation",
        "learning_rate": [*POSITIVE, None],
        "max_iter": AT_LEAST_ONE,
        "batch_size": AT_LEAST_ONE,
        "alpha_linear": [*NON_NEGATIVE, StrOptions({"auto"})],
        "alpha_factors": [*NON_NEGATIVE, StrOptions({"auto"})],
        "alpha_per": [StrOptions({"token", "row"})],
        "init": "no_validation",
        "fit_intercept": ["boolean"],
        "fit_linear": ["boolean"],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), StrOptions({"auto"})],
        "scoring": [StrOptions({"loss", *get_scorer_names()}), callable],
        "n_iter_no_change": [*AT_LEAST_ONE, None, StrOptions({"auto"})],
        "tol": NON_NEGATIVE,
        "shuffle": ["boolean"],
        "warm_start": ["boolean"],
    }

    loss: str | Loss
    optimizer: str | Optimizer = "cf_sgd"
    learning_rate: float | None = None
    max_iter: int = 100
    batch_size: int = 1024
    alpha_linear: float | str = "auto"
    alpha_factors: float | str = "auto"
    alpha_per: str = "token"
    init: str | Initializer = "normal"
    fit_intercept: bool = True
    fit_linear: bool = True
    early_stopping: bool | str = "auto"
    validation_fraction: float | str = "auto"
    scoring: str | Callable = "loss"
    n_iter_no_change: int | str | None = "auto"
    tol: float = 1e-4
    shuffle: bool = True
    warm_start: bool = False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _components_by_name(self, params):
        return {"loss": self._losses, "optimizer": OPTIMIZERS, "init": INITIALIZERS}

    #: The losses by name, and whether targets are classes.
    _losses: ClassVar[dict]
    _of_classes: ClassVar[bool]
    #: Code of the loss for which early stopping uses one of scikit-learn's scores, and the name of
    #: that score. Other losses are scored by their negative mean.
    _scored_loss: ClassVar[int]
    _score: ClassVar[str]

    coef_ = LinearPart()

    #: The class that trains the model.
    _trainer = FMTrainer
    #: What "auto" is for ``alpha_linear`` and ``alpha_factors`` if no others are tried.
    _usual_penalties: ClassVar = (1.0, 5.0)
    #: Default scale of initial values; None for that of the initializer.
    _usual_scale: ClassVar[float | None] = None
    #: A remedy if training diverges, besides a smaller learning rate.
    _divergence_hint = "scale the features (and a regression target) to about 1"

    #: Where rows are, if it is not the memory of this process: a column of the table of support.
    _rows_in: ClassVar[str | None] = None

    def _learned(self):
        """Return what the model learns, a list of ``Learned``."""
        return [*self._learned_weights(), *self._learned_in_training(len(self.intercept_))]

    def _learned_weights(self):
        """Return what predictions read."""
        outputs = ("outputs",) if len(self.intercept_) > 1 else ()
        return [*_learned_linear(outputs), *self._learned_factors(outputs)]

    @classmethod
    @cache
    def _learned_in_training(cls, n_outputs):
        """Return what only training needs: steps, the optimizer's arrays, and counts."""
        found = [Learned("_n_steps", (1,), STATISTICS, np.int64, merge=state.LARGEST)]
        rates = {"start": BaseFM._start_rates, "merge": state.SUMS}
        for place in (("_optimizer_state", k) for k in range(n_outputs)):
            found += [
                Learned((*place, "per_row"), ("features",), OPTIMIZER, **rates),
                Learned((*place, "intercept"), (3,), OPTIMIZER, merge=_OF_INTERCEPT),
                Learned((*place, "linear_first"), ("features",), OPTIMIZER),
                Learned((*place, "linear_second"), ("features",), OPTIMIZER),
                *cls._learned_moments(place),
                Learned(
                    (*place, "per_vector"), ("features", "fields"), OPTIMIZER, merge=state.SUMS
                ),
            ]
        found.append(Learned("token_counts_", ("features",), state.COUNTS, np.float64))
        return [*found, Learned("_target_sums", ("outputs", 4), state.COUNTS, np.float64)]

    @classmethod
    def _learned_moments(cls, place):
        """Return the moments that an optimizer keeps of factors, for the place of its dict."""
        axes = "features", None
        return [Learned((*place, name), axes, OPTIMIZER) for name in FACTOR_STATES]

    @property
    def _weight_names(self):
        return tuple([entry.path for entry in self._learned_weights()])

    def _start_rates(self, rows, n_before):
        """Write the learning rates or counters of new tokens; see ``Learned``."""
        counts = np.append(self.token_counts_[:n_before], np.zeros(rows.shape[1]))
        state = checked_optimizer(self).init_state(len(counts), 1, counts)
        rows[0, :, 0] = state.per_row[n_before:]

    def _outputs_with(self, factors):
        """Return the FMWeights of every output, given its factors, as views of the arrays."""
        intercept = validation.as_kernel_input(self.intercept_)
        coef = validation.as_kernel_input(self.coef_).reshape(len(intercept), -1)
        outputs = zip(intercept.reshape(-1, 1), coef, factors, strict=True)
        return [FMWeights(*of_output) for of_output in outputs]

    def _ranked_training(self):
        """Return the RankedTraining of factors of several ranks, or None for a single rank."""

    def _dense_training(self, total_weight):
        """Return the DenseTraining of weights that all rows use, or None without any."""

    def _row_weights(self, y, weight, class_weights):
        """Return the weights of rows times those of their classes; unchanged without classes."""
        if class_weights is None:
            return weight
        numbers = np.searchsorted(self.classes_, y)
        return validation.check_weights("class_weight", weight * class_weights[numbers])

    @property
    def _loss(self):
        """The loss given by the parameter ``loss``."""
        loss = resolve("loss", self.loss, Loss, self._losses)
        if self._of_classes and not loss.for_classes:
            raise ValueError(
                f"loss={self.loss!r} is a regression loss; a classifier needs a loss whose score "
                f"is positive for the class, such as 'log'."
            )
        return loss

    def _validation_score(self, target, scores, weight):
        """Return the score of validation rows; all but ``weight`` have shape (n_outputs, n)."""
        if self._loss.code == self._scored_loss:
            return self._usual_score(target, scores, weight)
        mean = mean_loss(self._loss, self._of_classes, scores, target, weight)
        return -self._loss_scale * mean

    @property
    def _loss_scale(self):
        """The factor of the loss in training."""
        total, weight, _, squares = self._target_sums[0]
        if self._of_classes or not weight:
            return 1.0
        mean = total / weight
        return float(self._loss.training_scale(mean, squares / weight - mean**2))

    def _take_fields(self, X, reset):
        """Set the fields of columns; for machines that have fields.

        Unless ``reset``, those of columns that the model has must be the same.
        """

    def _check_carried(self, X):
        """Raise if rows carry other fields than those of the model's columns."""

    def _refuse_categories(self, given, X):
        """Raise if columns without fields, of canonical rows, are categories of one variable."""

    def _score_by_scorer(self, X, y, weight):
        """Return the score of validation rows by the parameter ``scoring``."""
        # Rows that all weigh 1 are scored without weights, which not every scorer takes.
        weights = {} if (weight == 1).all() else {"sample_weight": weight}
        return training.score_by(check_scoring(self, self.scoring), self, X, y, **weights)

    def _encode_and_check(self, y, classes, reset):
        target, labels = self._encode_target(y, classes, reset)
        self._loss.check_target(target)
        return target, labels

    @training.with_callbacks
    def fit(self, X, y=None, sample_weight=None, *, X_val=None, y_val=None, sample_weight_val=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or RowStream
            Rows; usually one-hot encoded tokens. Converted to float32 CSR. Or a
            :class:`freqfm.datasets.RowStream`, see :doc:`/streams`.
        y : array-like of shape (n_samples,)
            Targets; None with a stream, which holds them.
        sample_weight : array-like of shape (n_samples,), default=None
            A row of weight w counts as w rows, in the loss and in the tokens' counts.
        X_val : {array-like, sparse matrix} of shape (n_val, n_features), default=None
            Validation rows for early stopping, in place of a random part of ``X``: rows that are
            later in time, for instance. They are not trained on. A ``Pipeline`` transforms them
            with ``transform_input=["X_val"]``. With a stream in ``X``, this may be a stream too.
        y_val : array-like of shape (n_val,), default=None
            Their targets.
        sample_weight_val : array-like of shape (n_val,), default=None
            Their weights.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the input cannot be used; the message names the argument, what was found and what to
            do.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.

        Warns
        -----
        ConvergenceWarning
            If the fit reached ``max_iter`` while it still improved, or the training loss rose.
        UserWarning
            If a column has a root mean square above 4, rows weigh less than 0.1 on average with
            "cf_sgd", or validation rows are not predicted better than by a constant.
        """
        validate_params(self)
        where = "streams" if validation.is_stream(X) else self._rows_in
        if where and self.scoring != "loss":
            check(where, 'FM: other scoring than "loss"', given=f"scoring={self.scoring!r}")
        with attempt(self) as trial:
            # The state of an interrupted fit, from a checkpoint; this call finishes it.
            unfinished = self.__dict__.pop("_unfinished", None)
            reset = unfinished is None and not (self.warm_start and hasattr(self, "coef_"))
            if unfinished is None:
                set_penalties(self, reset)
            given = y, sample_weight, X_val, y_val, sample_weight_val
            fit = self._fit_stream if validation.is_stream(X) else self._fit_rows
            fit(X, given, trial, unfinished, reset)
        return self

    def _fit_rows(self, X, given, trial, unfinished, reset):
        """Fit to rows in memory; ``given`` are the other arguments of ``fit``."""
        y, sample_weight, *held_out = given
        # With rows held out at random, a second phase trains on all rows.
        in_refit = unfinished is not None and unfinished["phase"] == 1
        announce(self.verbose, "checking rows")
        with release_signals():
            rows, labels = self._prepare(X, y, sample_weight, None, reset)
            if not reset:
                self._take_fields(X, reset)
            validated = self._with_given_validation(rows, *held_out)
            folds = [validated] if validated else self._split(rows, labels)
            del labels
            validates = folds[0].held_out is not None
            # With a warm start they are not trained on: the next call holds out the same rows.
            refits = validates and not (validated or self.warm_start)
            callbacks = self._callbacks(rows, folds, unfinished)
            phase = self._phase(folds[0].n_trained, validates, settles=not refits)
            announce(self.verbose, "preparing rows to train on")
            task = None if in_refit else self._begin_folds(folds, reset)
            others = [] if in_refit else penalties_to_try(self, folds[0])
        # The task has copied the rows that it trains on.
        all_rows = rows if refits else None
        folds = folds if others else None
        del rows, validated
        if not in_refit:
            trained = train_task(task, phase, trial, callbacks)
            callbacks.end_phase()
            del task
            choose_penalties(self, trained, others, folds)
        del folds
        if refits:
            begin = functools.partial(self._begin, all_rows)
            training.refit(self, begin, callbacks, in_refit, n_settling=self._n_settling)
        callbacks.end_fit()

    def _fit_stream(self, stream, given, trial, unfinished, reset):
        """Fit to a stream; ``given`` are the other arguments of ``fit``."""
        with release_signals():
            held_out = self._validation_of_stream(*given)
            announce(self.verbose, "counting the features of all rows")
            survey = survey_stream(self, stream)
            optimizer = checked_optimizer(self, survey.spread)
            sums = survey.targets.finish(reset)
            if reset:
                self.n_features_in_ = len(survey.counts)
                self._seed = validation.draw_seed(self.random_state)
                self._take_fields(stream, reset)
                self._check_size(len(sums))
                self.token_counts_ = survey.counts
                self._draw_model(sums, survey.counts, optimizer)
            else:
                self._check_learned()
                self._take_fields(stream, reset)
                self.token_counts_ = survey.counts_for(self.n_features_in_)
                self._prepare_to_continue(optimizer)
            hashed, data = survey.hashed(), {"X": stream, "y": None}
            callbacks = FitCallbacks(self, data, hashed, self.max_iter, unfinished)
            task = StreamTrainer(self, optimizer, stream, survey, held_out, trial)
            phase = self._phase(survey.n_rows, held_out is not None)
            phase = phase._replace(restores=task.restores)
        training.train(task, phase, trial, callbacks)
        warn_if_constant(self, task.of_constant)
        callbacks.end_fit()

    def _validation_of_stream(self, y, sample_weight, X_val, y_val, sample_weight_val):
        """Return the validation rows of a fit on a stream: a stream, a chunk or None."""
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"fit was given {name} beside a stream, whose chunks hold it; leave it out."
                )
        given = given_names(X_val, y_val, sample_weight_val)
        if not given:
            if self.early_stopping is True:
                raise ValueError(
                    "early_stopping=True with a stream needs a validation stream, X_val; a stream "
                    "has no random part to hold out. Give X_val, or set early_stopping='auto'."
                )
            return None
        of_stream = validation.is_stream(X_val)
        if of_stream and len(given) > 1:
            raise ValueError(
                f"fit was given {given[1]}, but X_val is a stream, whose chunks hold it. Leave it "
                f"out."
            )
        self._check_validation_given(given, ("X_val",) if of_stream else ("X_val", "y_val"))
        return X_val if of_stream else (X_val, y_val, sample_weight_val)

    def _train_once(self, X, y, sample_weight, classes=None, n_features=None):
        """Train one epoch for ``partial_fit``."""
        reset = not hasattr(self, "coef_")
        with attempt(self) as trial:
            self.__dict__.pop("_unfinished", None)
            set_penalties(self, reset)
            with release_signals():
                if n_features is not None:
                    X = with_fields_of(X, validation.widen("X", X, n_features))
                    if not reset:
                        self._grow(X, int(n_features))
                rows, _ = self._prepare(X, y, sample_weight, classes, reset, True)
                optimizer = checked_optimizer(self)
                if reset:
                    counts = rows.count_tokens()
                    self._draw_model(rows.target_sums(self), counts, optimizer)
                    self.token_counts_ = np.zeros_like(counts)
                else:
                    self._take_fields(X, reset)
                    self._prepare_to_continue(optimizer)
                part = self._part_of(rows, optimizer)
                if not reset:
                    self._refine_intercept(part)
                total_weight = part.estimator._target_sums[0, 1]
                task = self._trainer(part.estimator, optimizer, part.rows, total_weight)
            # The model counts as trained once the part is written back.
            training.train(task, Phase(1, restores=part.restores), Attempt())
            part.write_back()
            for name in ("loss_curve_", "n_iter_", "best_iter_"):
                setattr(self, name, getattr(part.estimator, name))
            trial.kept = True
        return self

    def _has_parts(self, optimizer):
        """Return whether rows can be trained on in a ``ModelPart`` that holds their tokens."""
        return bool(optimizer.lazy)

    def _part_of(self, rows, optimizer, **options):
        """Return the part of the model that some rows train: a ``ModelPart`` if possible."""
        kind = ModelPart if self._has_parts(optimizer) else WholeModel
        return kind(self, rows, **options)

    def _refine_intercept(self, part):
        """Add to the intercepts the changes of their base scores by the targets of a chunk."""
        rows, sums = part.rows, self._target_sums.copy()
        part.estimator._target_sums = sums
        weight = rows.of_trained(rows.weight)
        for k, target in enumerate(rows.target):
            base = RunningBaseScore(self, sums[k])
            change = base.add(rows.of_trained(target), weight)
            if self.fit_intercept:
                part.estimator.intercept_[k] += change

    def _begin(self, rows, reset):
        """Return the task that trains on ``rows``: a new model if ``reset``, else this one."""
        optimizer = checked_optimizer(self, rows.spread)
        self.token_counts_ = rows.count_tokens()
        if reset:
            self._draw_model(rows.target_sums(self), self.token_counts_, optimizer)
        else:
            self._prepare_to_continue(optimizer)
        return self._trainer(self, optimizer, rows)

    def _begin_folds(self, folds, reset):
        """Return the task that trains a model for each fold; the first one is this model."""
        first, *others = folds
        trainer = self._begin(first, reset)
        if not others:
            return trainer
        return FoldsTrainer(
            [trainer, *(copy.copy(self)._begin(fold, reset=True) for fold in others)]
        )

    def _callbacks(self, rows, folds, unfinished):
        # Every row is in the training part of some fold.
        if len(folds) == 1:
            rows = folds[0]
        if unfinished or callbacks_of(self):
            rows = rows.copied()
        X, target, weight = rows.held_out or (None, None, None)
        hashed = {
            "X": rows.X,
            "y": rows.target,
            "sample_weight": rows.weight,
            "X (validation part)": X,
            "y (validation part)": target,
            "sample_weight (validation part)": weight,
        }
        return FitCallbacks(self, {"X": rows.X, "y": rows.y}, hashed, self.max_iter, unfinished)

    def _phase(self, n_rows, validates, settles=True):
        """Return how long to train on some rows, and when to stop early."""
        patience = self.n_iter_no_change
        if patience == "auto":
            n_batches = -(-n_rows // int(self.batch_size))
            n_steps = _PATIENCE_STEPS if validates else 0
            patience = max(_PATIENCE_EPOCHS, -(-n_steps // n_batches))
        score, n_settling = watched_score(self) if validates else None, self._n_settling
        return Phase(self.max_iter, patience, score, n_settling=settles * n_settling)

    @property
    def _n_settling(self):
        return min(_MOST_SETTLING, self.max_iter // 5)

    def _prepare(self, X, y, sample_weight, classes, reset, partial=False):
        """Check the input and the optimizer; return the rows, and labels to stratify by or None."""
        if not reset:
            self._check_learned()
        given = X
        X, y = validation.validate_rows(self, X, y, reset=reset, y_numeric=is_regressor(self))
        target, labels = self._encode_and_check(y, classes, reset)
        if reset:
            self._take_fields(given, reset)
            self._refuse_categories(given, X)
            self._check_size(len(target))
            validation.warn_of_large_values(self, X)
        sample_weight = validation.validate_weights(sample_weight, X)
        class_weights = self._class_weights(y, sample_weight, partial)
        weight = self._row_weights(y, sample_weight, class_weights)
        rows = TrainingRows(X, y, target, weight, class_weights)
        if not weight.all():
            # A row of weight zero is equivalent to no row.
            rows = rows._replace(trained=rows.numbers()[weight != 0])
            labels = None if labels is None else rows.of_trained(labels)
        optimizer = checked_optimizer(self)
        if reset:
            _warn_of_small_weights(optimizer, weight)
            self._seed = validation.draw_seed(self.random_state)
        return rows, labels

    def _checked_initializer(self):
        """Return the initializer given by the parameters."""
        return resolve_for_columns(self).with_defaults(scale=self._usual_scale)

    def _with_given_validation(self, rows, X_val, y_val, weight):
        """Return ``rows`` with the validation set given to ``fit``, or None without one."""
        given = given_names(X_val, y_val, weight)
        if not given:
            return None
        self._check_validation_given(given)
        try:
            options = {"reset": False, "y_numeric": is_regressor(self)}
            X, y = validation.validate_rows(self, X_val, y_val, **options)
            target, _ = self._encode_and_check(y, None, reset=False)
            weight = validation.validate_weights(weight, X)
            weight = self._row_weights(y, weight, rows.class_weights)
        except ValueError as error:
            raise ValueError(f"Validation set (X_val, y_val, sample_weight_val): {error}") from None
        return rows._replace(held_out=(X, target, weight), held_out_y=y)

    def _check_validation_given(self, given, needed=("X_val", "y_val")):
        """Raise unless the arguments given for a validation set are complete and used."""
        for name in needed:
            if name not in given:
                raise ValueError(
                    f"fit was given {', '.join(given)}, but no {name}; a validation set "
                    f"needs both X_val and y_val."
                )
        if not self.early_stopping:
            raise ValueError(
                f"fit was given {' and '.join(given)}, but early_stopping=False would ignore them; "
                f"set early_stopping='auto' or True, or give no validation set."
            )

    def _split(self, rows, labels):
        """Return a list of folds: the rows, with a different validation part held out of each.

        Large data have one fold. Without early stopping it is all rows, with nothing held out.
        ``labels`` are the labels to stratify by, or None.
        """
        n_outputs, n_rows = len(rows.target), rows.n_trained
        rarest = n_rows
        if labels is not None:
            rarest = np.bincount(labels, minlength=max(2, n_outputs)).min()
        n_folds, share = self._count_folds(n_rows, rarest)
        # A score needs at least two rows, of every class if there are classes.
        enough = rarest * min(share, 1 - share) >= 2
        early_stopping = self.early_stopping
        if early_stopping == "auto":
            early_stopping = n_rows >= AUTO_EARLY_STOPPING and enough
        if not early_stopping:
            return [rows]
        if not enough:
            of_each, has = "", f"there are {n_rows}"
            if labels is not None:
                of_each, has = " of every class", f"the rarest class has {rarest} of {n_rows} rows"
            raise ValueError(
                f"early_stopping=True with validation_fraction={share:g} needs two rows{of_each} "
                f"on both sides of the split, but {has}. Set early_stopping=False, give more rows, "
                f"or set another validation_fraction."
            )
        numbers = rows.numbers()
        held_out = f"{n_folds} folds in turn" if n_folds > 1 else f"{share:.0%}"
        announce(self.verbose, f"holding out {held_out} of {n_rows:,} rows")
        if n_folds > 1:
            splitter = KFold if labels is None else StratifiedKFold
            splitter = splitter(n_folds, shuffle=True, random_state=self._seed)
            splits = [(numbers[a], numbers[b]) for a, b in splitter.split(numbers, labels)]
        else:
            splits = [
                train_test_split(numbers, test_size=share, stratify=labels, random_state=self._seed)
            ]
        return [rows.split(trained, held_out) for trained, held_out in splits]

    def _count_folds(self, n_rows, rarest):
        """Return the number of folds and the share of the rows that each holds out."""
        if self.validation_fraction != "auto":
            return 1, self.validation_fraction
        few = n_rows < CROSS_VALIDATED_BELOW
        if self.warm_start:
            # Every call must hold out the same rows.
            return 1, 0.2 if few else 0.1
        if not (few or (self._of_classes and n_rows < _CLASSES_CROSS_VALIDATED_BELOW)):
            return 1, 0.1
        n_folds = 10 if n_rows < _TEN_FOLDS_BELOW and rarest >= 20 else 5
        return n_folds, 1 / n_folds

    def _draw_model(self, target_sums, counts, optimizer):
        """Draw a new model, whose intercepts start at the best constant scores.

        See ``RunningBaseScore`` for ``target_sums``.
        """
        n_outputs = len(target_sums)
        initializer = self._checked_initializer()
        generator = np.random.default_rng(self._seed)
        self._init_factors(n_outputs, initializer, generator, counts)
        intercept = target_sums[:, 2] if self.fit_intercept else np.zeros(n_outputs)
        self.intercept_ = intercept.astype(np.float32)
        self._target_sums = target_sums
        shapes = self._state_shapes(optimizer)
        states = (optimizer.init_state(len(counts), 0, counts, shapes) for _ in range(n_outputs))
        # A dict of arrays, which skops and joblib can store without knowing our classes.
        self._optimizer_state = [dict(state._asdict()) for state in states]
        self._optimizer_name = type(optimizer).__name__
        self._loss_name = type(self._loss).__name__
        self._init_curves()
        sizes = {"features": self.n_features_in_, "outputs": n_outputs}
        drawn = {*self._weight_names, *_STATES, "token_counts_", "_target_sums"} - {"coef_"}
        state.extend(self, state.entries_of(self, drawn), sizes, new=True)
        self._count_state_bytes()

    def _count_state_bytes(self):
        """Set the bytes of the optimizer's state that grow with the number of tokens."""
        states = (e.get(self) for e in self._learned() if e.role == OPTIMIZER and e.by_token)
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in states)

    def _prepare_to_continue(self, optimizer):
        """Prepare the model to be trained further; raise if a parameter has changed too much."""
        training.check_same_class(self, "optimizer", optimizer)
        training.check_same_class(self, "loss", self._loss)
        self._check_state(optimizer)
        state.make_trainable(self)
        self._check_same_shape()

    def _grow(self, X, n_features):
        """Give the model more features, those of X; their weights start as in a new model."""
        self._check_learned()
        n_before = self.n_features_in_
        if n_features == n_before:
            return
        if n_features < n_before:
            raise ValueError(
                f"n_features={n_features} is less than the {n_before} features of the model; a "
                f"model cannot lose features."
            )
        self._refuse_growth(n_features)
        if hasattr(self, "feature_names_in_"):
            raise ValueError(
                f"n_features={n_features} would add features without names to a model whose "
                f"features have names; fit it to arrays or sparse matrices from the start."
            )
        optimizer = checked_optimizer(self)
        self._prepare_to_continue(optimizer)
        self.n_features_in_ = n_features
        self._take_fields(X, reset=False)
        self._check_size(len(self.intercept_))
        self._grow_fields(n_before)
        used = [e for e in self._learned() if "features" in e.axes and e.get(self).size]
        state.extend(self, used, {"features": n_features})
        self._count_state_bytes()

    def _grow_fields(self, n_before):
        """Extend what depends on the number of fields; see ``_grow``."""

    def _check_learned(self):
        """Return the ``LearnedArrays``; raise unless kernels can read the model's arrays."""
        check_is_fitted(self)
        learned = validation.LearnedArrays(self)
        sizes = {
            "features": learned.size("n_features_in_"),
            "outputs": self._count_outputs(learned),
        }
        learned.array("intercept_", (sizes["outputs"],))
        self._check_shapes(learned, sizes)
        state.check_arrays(self, learned, self._learned_weights(), sizes)
        self._check_factors(learned, sizes)
        return learned

    def _check_shapes(self, learned, sizes):
        """Check what the shapes of factors depend on, and add these to the sizes of axes."""

    def _check_factors(self, learned, sizes):
        """Check what else the factors need, given the sizes of all axes."""

    def _check_state(self, optimizer):
        """Raise unless kernels can continue training with the optimizer state."""
        learned = self._check_learned()
        self._check_has_state()
        training.check_progress(learned)
        for name in ("alpha_linear_", "alpha_factors_"):
            penalty = learned.get(name)
            valid = isinstance(penalty, Real) and penalty >= 0
            learned.require(valid, name, f"is {shown(penalty)}, not a penalty")
        sizes = {"features": self.n_features_in_, "outputs": len(self.intercept_)}
        others = state.entries_of(self, {*self._weight_names, *_STATES})
        state.check_arrays(self, learned, others, sizes)
        state.check_steps(learned, "_n_steps", self._n_steps)
        states, n_outputs = learned.get("_optimizer_state"), len(self.intercept_)
        fits = isinstance(states, list) and len(states) == n_outputs
        learned.require(
            fits, "_optimizer_state", f"is not a list of one state for each of {n_outputs} outputs"
        )
        for arrays in states:
            learned.arrays("_optimizer_state", arrays, self._state_shapes(optimizer))

    def _check_size(self, n_outputs):
        """Raise if the model cannot fit into memory."""
        width = 1 + self._fewest_factors()
        validation.check_memory(
            n_outputs * self.n_features_in_ * width,
            f"{width - 1} factors and a weight for each of {self.n_features_in_} features",
            "Hash X into fewer columns, or take fewer factors.",
        )

    def _optimizer_states(self):
        return [OptimizerState(**state) for state in self._optimizer_state]

    def _score_rows(self, X):
        """Return the scores of canonical CSR rows, of shape (n_outputs, n_samples)."""
        n_threads = validation.count_threads(self.n_jobs)
        return backends.serve(self.device, "fm_scores", X, self._outputs(), n_threads)

    def _scores(self, X):
        """Return the scores of the rows of ``X``, of shape (n_outputs, n_samples)."""
        self._check_learned()
        X, _ = validation.validate_rows(self, X, reset=False)
        scores = self._score_rows(X)
        if not np.isfinite(scores).all():
            raise ValueError(
                f"X holds values up to {np.abs(X.data).max():g}, at which scores overflow float32; "
                f"scale it like the rows that the model was trained on."
            )
        return scores


def checked_optimizer(model, spread=1.0):
    """Return the optimizer of a machine's parameters, for rows whose weights have a spread."""
    given = "learning_rate", "learning_rate", model.learning_rate
    optimizer = resolve("optimizer", model.optimizer, Optimizer, OPTIMIZERS, [given])
    by_counts = optimizer.rate_code == codes.RATE_GIVEN
    rate = _RATE_OF_NUMBERS if by_counts and not model._of_classes else None
    # The bound is for the loss of a row, whose smoothness grows with the weight of the row.
    max_step = CFSGD().value_of("max_step") / max(1, spread / _EVEN_WEIGHTS)
    return optimizer.with_defaults(learning_rate=rate, max_step=max_step)


def watched_score(model):
    """Return the name of the score that early stopping maximises."""
    if model.scoring != "loss":
        return training.score_name(model.scoring)
    return model._score if model._loss.code == model._scored_loss else "neg_mean_loss"


def given_names(X_val, y_val, sample_weight_val):
    """Return which arguments of ``fit`` for a validation set are given."""
    values = {"X_val": X_val, "y_val": y_val, "sample_weight_val": sample_weight_val}
    return [name for name, value in values.items() if value is not None]


def _warn_of_small_weights(optimizer, weight):
    """Warn if weights are too small for "cf_sgd", which counts them like numbers of rows."""
    mean = float(weight.sum(dtype=np.float64)) / max(1, np.count_nonzero(weight))
    if isinstance(optimizer, CFSGD) and mean < _SMALL_WEIGHT:
        warn_user(
            f"Rows have weights of {mean:.3g} on average, with which optimizer='cf_sgd' learns "
            f"slowly, as from so small a part of a row. Scale sample_weight (or class_weight) to a "
            f"mean of about 1, and alpha_linear and alpha_factors with it, or take another "
            f"optimizer."
        )


def squeeze_outputs(array):
    """Drop the axis of the outputs if there is but one."""
    return array[0] if len(array) == 1 else array


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

    loop: training.EpochLoop
    gain: float | None  #: see ``ModelTask.gain_of_interactions``; None unless verbose
    of_constant: float | None  #: see ``ModelTask``


def train_task(task, phase, trial, callbacks=None, number=0):
    """Return the Trained of a task; see ``run_epochs`` for the parameters."""
    loop = training.run_epochs(task, phase, trial, callbacks, number)
    gain = task.gain_of_interactions() if task.model.verbose else None
    return Trained(loop, gain, task.of_constant)


def choose_penalties(model, trained, pairs, folds):
    """Train models with other penalties; the model becomes the one with the best score.

    Parameters
    ----------
    model : BaseFM
        Trained. If an exception is raised, it is the best one so far.
    trained : Trained
    pairs : list of (float, float)
        From :func:`penalties_to_try`.
    folds : list of TrainingRows
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
            found = _train_new(other, folds, phase)
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
            f"{type(model).__name__}: the best validation score ({watched_score(model)} "
            f"{best:.5g}) is not above that of a constant prediction ({of_constant:.5g}). Try more "
            f"than {_named(model)}, a smaller learning_rate, or more rows; or y hardly depends on "
            f"X."
        )


def _train_new(model, folds, phase):
    with release_signals():
        task = model._begin_folds(folds, reset=True)
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
