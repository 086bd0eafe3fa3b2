"""What the factorization machines share: parameters, fitting, the model's arrays."""

from abc import abstractmethod
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator, is_regressor
from sklearn.model_selection import train_test_split
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from freqfm._components import NON_NEGATIVE, POSITIVE, name_to_instance, resolve
from freqfm._signals import release_signals
from freqfm._validation import (
    as_kernel_array,
    count_threads,
    draw_seed,
    take_rows,
    validate_rows,
    validate_weights,
)
from freqfm.estimators.base import (
    CallbackSupportMixin,
    FitCallbacks,
    Phase,
    attempt,
    train,
    with_callbacks,
)
from freqfm.estimators.fm_factors import squeeze_outputs
from freqfm.estimators.fm_task import TrainingRows
from freqfm.initializers import INITIALIZERS, Initializer
from freqfm.losses import Loss
from freqfm.optimizers import OPTIMIZERS, Optimizer, OptimizerState

__all__ = ["BaseFM"]

# From how many rows on early_stopping="auto" sets a validation part aside; scikit-learn's gradient
# boosting uses the same number.
_AUTO_EARLY_STOPPING = 10_000


class BaseFM(CallbackSupportMixin, BaseEstimator):
    """What all factorization machines share: everything but factors and targets.

    An estimator adds two mixins: one knows the factors (``PlainFactors``, ``RankedFactors``), the
    other the targets (``ClassTargets``, ``RealTargets``). A model has one output per class for
    three classes or more, else one; arrays of several outputs have a leading axis.
    """

    _parameter_constraints: dict = {
        "optimizer": "no_validation",  # names and instances are resolved in fit
        "learning_rate": [*POSITIVE, None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "alpha_linear": NON_NEGATIVE,
        "alpha_factors": NON_NEGATIVE,
        "init": "no_validation",
        "init_scale": [*NON_NEGATIVE, None],
        "fit_intercept": ["boolean"],
        "fit_linear": ["boolean"],
        "early_stopping": ["boolean", StrOptions({"auto"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), None],
        "tol": NON_NEGATIVE,
        "shuffle": ["boolean"],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state", np.random.Generator],
    }

    def __init__(
        self,
        *,
        optimizer,
        learning_rate,
        max_iter,
        batch_size,
        alpha_linear,
        alpha_factors,
        init,
        init_scale,
        fit_intercept,
        fit_linear,
        early_stopping,
        validation_fraction,
        n_iter_no_change,
        tol,
        shuffle,
        warm_start,
        verbose,
        n_jobs,
        random_state,
    ):
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.alpha_linear = alpha_linear
        self.alpha_factors = alpha_factors
        self.init = init
        self.init_scale = init_scale
        self.fit_intercept = fit_intercept
        self.fit_linear = fit_linear
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.shuffle = shuffle
        self.warm_start = warm_start
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def set_params(self, **params):
        """Set parameters; those of a component reach it by name too.

        ``set_params(optimizer__learning_rate=0.1)`` works whether ``optimizer`` is an instance or a
        name, which becomes an instance here. So grids over ``optimizer__...`` need no instance.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object
        """
        name_to_instance(self, {"optimizer": OPTIMIZERS, "init": INITIALIZERS}, params)
        return super().set_params(**params)

    # Where subclasses differ.

    _loss: Loss
    #: Name of the score that early stopping watches, as scikit-learn's scorers are named.
    _score_name: str

    #: What trains the model (see ``FMTask``), and the names of the arrays that it trains.
    _task: type
    _weight_names: tuple

    _writes_checkpoints = True

    @abstractmethod
    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        """Set the factors of all outputs; return the states of their optimizers."""

    @abstractmethod
    def _check_same_shape(self):
        """Raise if the parameters ask for other factors than those of the model to continue."""

    @abstractmethod
    def _longest_vector(self):
        """Return the most factors of a feature that stand in one table."""

    @abstractmethod
    def _weights_per_token(self):
        """Return how many factors a token of a row has, about."""

    @abstractmethod
    def _outputs(self):
        """Return (intercept, coef, factors) of every output, as views that kernels read."""

    @abstractmethod
    def _score_rows(self, X, n_threads):
        """Return the scores of canonical rows, of shape (n_outputs, n_samples)."""

    @abstractmethod
    def _encode_target(self, y, classes, reset):
        """Return targets of shape (n_outputs, n_rows), and labels to stratify by or None."""

    @abstractmethod
    def _row_weights(self, y, weight, partial):
        """Return the rows' weights times those of their classes."""

    @abstractmethod
    def _validation_score(self, target, scores, weight):
        """Return the score of validation rows; all but ``weight`` have shape (n_outputs, n)."""

    @with_callbacks
    def fit(self, X, y, sample_weight=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows; usually one-hot encoded tokens. Converted to float32 CSR.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            A row of weight w counts as w rows, in the loss and in the tokens' counts.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            On input that cannot be learned from: it names the argument, what was found and what
            to do.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.
        """
        self._validate_params()
        reset = not (self.warm_start and hasattr(self, "factors_"))
        return self._train(X, y, sample_weight, None, reset, self.max_iter, self.early_stopping)

    def _train_once(self, X, y, sample_weight, classes=None):
        """Train one epoch for ``partial_fit``."""
        return self._train(X, y, sample_weight, classes, not hasattr(self, "factors_"), 1, None)

    def _train(self, X, y, sample_weight, classes, reset, n_epochs, early_stopping):
        partial = early_stopping is None
        with attempt(self) as trial:
            unfinished = self.__dict__.pop("_unfinished", None) if not partial else None
            reset = reset and unfinished is None
            with release_signals():
                rows, optimizer = self._prepare(X, y, sample_weight, classes, reset, early_stopping)
                callbacks = None if partial else self._callbacks(rows, n_epochs, unfinished)
                counts = _count_tokens(rows.X, rows.weight)
                if reset:
                    self._init_model(rows, counts, optimizer)
                else:
                    self._take_over(optimizer)
                task = self._task(self, optimizer, rows, self._n_threads(rows.X))
            self.token_counts_ = counts + self.token_counts_ if partial and not reset else counts
            score_name = self._score_name if rows.held_out else None
            patience = None if partial else self.n_iter_no_change
            train(task, Phase(n_epochs, patience, score_name), trial, callbacks)
            if callbacks:
                with release_signals():
                    callbacks.end_fit()
        return self

    def _callbacks(self, rows, n_epochs, unfinished):
        X, target, weight = rows.held_out or (None, None, None)
        hashed = {
            "X": rows.X,
            "y": rows.target,
            "sample_weight": rows.weight,
            "X (validation part)": X,
            "y (validation part)": target,
            "sample_weight (validation part)": weight,
        }
        return FitCallbacks(self, {"X": rows.X, "y": rows.y}, hashed, n_epochs, unfinished)

    def _prepare(self, X, y, sample_weight, classes, reset, early_stopping):
        """Check what the user gave; return the rows to train on and the optimizer."""
        X, y = validate_rows(self, X, y, reset=reset, y_numeric=is_regressor(self))
        target, labels = self._encode_target(y, classes, reset)
        sample_weight = validate_weights(sample_weight, X)
        weight = self._row_weights(y, sample_weight, partial=early_stopping is None)
        if not weight.all():
            # A row of weight zero is no row.
            rows = np.flatnonzero(weight)
            X, y, target, weight = take_rows(X, rows), y[rows], target[:, rows], weight[rows]
            sample_weight, labels = sample_weight[rows], None if labels is None else labels[rows]
        optimizer = resolve(
            "optimizer",
            self.optimizer,
            Optimizer,
            OPTIMIZERS,
            [("learning_rate", "learning_rate", self.learning_rate)],
        )
        if reset:
            self._seed = draw_seed(self.random_state)
        train, validation = self._split(target, labels, early_stopping)
        if validation is None:
            return TrainingRows(X, y, target, weight, None), optimizer
        held_out = take_rows(X, validation), target[:, validation], sample_weight[validation]
        rows = TrainingRows(
            take_rows(X, train), y[train], target[:, train], weight[train], held_out
        )
        return rows, optimizer

    def _split(self, target, labels, early_stopping):
        """Return the indices of the training and of the validation rows, or None and None."""
        n_outputs, n_rows = target.shape
        rarest = n_rows
        if labels is not None:
            rarest = np.bincount(labels, minlength=max(2, n_outputs)).min()
        # Two rows of every class, or two rows, are the least that can be scored.
        enough = rarest * min(self.validation_fraction, 1 - self.validation_fraction) >= 2
        if early_stopping == "auto":
            early_stopping = n_rows > _AUTO_EARLY_STOPPING and enough
        if not early_stopping:
            return None, None
        if not enough:
            group = "the data" if labels is None else "the rarest class"
            raise ValueError(
                f"early_stopping=True with validation_fraction={self.validation_fraction} needs "
                f"two rows of every class on both sides of the split, but {group} has {rarest} of "
                f"{n_rows} rows. Set early_stopping=False, or give more rows."
            )
        return train_test_split(
            np.arange(n_rows),
            test_size=self.validation_fraction,
            stratify=labels,
            random_state=self._seed,
        )

    def _init_model(self, rows, counts, optimizer):
        n_outputs, n_tokens = len(rows.target), self.n_features_in_
        initializer = resolve(
            "init",
            self.init,
            Initializer,
            INITIALIZERS,
            [("scale", "init_scale", self.init_scale)],
        )
        generator = np.random.default_rng(self._seed)
        states = self._init_factors(n_outputs, initializer, generator, counts, optimizer)
        intercept = np.zeros(n_outputs)
        if self.fit_intercept:
            intercept[:] = [self._loss.base_score(t, rows.weight) for t in rows.target]
        self.intercept_ = intercept.astype(np.float32)
        self.coef_ = squeeze_outputs(np.zeros((n_outputs, n_tokens), dtype=np.float32))
        # A plain dict of arrays, so that skops and joblib store it without knowing our classes.
        self._optimizer_state = [dict(state._asdict()) for state in states]
        self._optimizer_name = type(optimizer).__name__
        self.optimizer_state_nbytes_ = sum(state.nbytes for state in states)
        self.loss_curve_ = np.zeros(0)
        self.validation_scores_ = np.zeros(0)
        self.n_iter_ = 0
        self._n_steps = np.zeros(1, dtype=np.int64)

    def _take_over(self, optimizer):
        """Prepare the model to be trained further; raise if a changed parameter forbids it."""
        # Arrays of a model that was loaded from a memory map cannot be trained in place.
        for name in self._weight_names:
            setattr(self, name, as_kernel_array(getattr(self, name)))
        self._n_steps = as_kernel_array(self._n_steps, np.int64)
        self._optimizer_state = [
            {name: as_kernel_array(array) for name, array in state.items()}
            for state in self._optimizer_state
        ]
        self._check_same_shape()
        if type(optimizer).__name__ != self._optimizer_name:
            raise ValueError(
                f"optimizer={self.optimizer!r} differs from {self._optimizer_name}, whose state "
                f"the model to continue carries; set it back, or fit anew with warm_start=False."
            )

    def _n_threads(self, X):
        n_threads = count_threads(self.n_jobs)
        rows_in_batch = min(self.batch_size, X.shape[0])
        work = rows_in_batch * (X.nnz / X.shape[0]) * (self._weights_per_token() + 8)
        # Below some thousand multiplications a batch, meeting costs more than it saves.
        return n_threads if work >= 4096 else 1

    def _optimizer_states(self):
        return [OptimizerState(**state) for state in self._optimizer_state]

    def _scores(self, X):
        """Return the scores of the rows of ``X``, of shape (n_outputs, n_samples)."""
        check_is_fitted(self)
        X, _ = validate_rows(self, X, reset=False)
        scores = self._score_rows(X, count_threads(self.n_jobs))
        if not np.isfinite(scores).all():
            raise ValueError(
                f"X holds values up to {np.abs(X.data).max():g}, at which scores overflow float32; "
                f"scale it like the rows that the model was trained on."
            )
        return scores


def _count_tokens(X, weight):
    """Return the weight of the rows that hold each token."""
    per_entry = np.repeat(weight, np.diff(X.indptr))
    return np.bincount(X.indices, weights=per_entry, minlength=X.shape[1])
