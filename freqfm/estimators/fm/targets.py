"""The targets of factorization machines, classes or real numbers, and losses on their scores."""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d, compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from freqfm import backends
from freqfm._components import validate_changed_params
from freqfm._input.ids import check_present, unique_codes
from freqfm._messages import shorten, warn_user
from freqfm._sklearn import StrOptions
from freqfm.backends.base import ScoredRows
from freqfm.formulas import codes
from freqfm.losses import CLASS_LOSSES, REAL_LOSSES, LogLoss, Loss

# The share of the range of real targets above which rounding to float32 matters.
_ROUNDED = 1e-3

# A constant score is searched for between these bounds, on about this many rows.
_LARGEST_SCORE = 1e6
_SOME_ROWS = 100_000


def _has_probabilities(model):
    if model._loss.expectation is None:
        raise AttributeError(
            f"loss={model.loss!r} has no expectation to turn scores into probabilities; use "
            f"decision_function, or loss='log'."
        )
    return True


@dataclass(eq=False, repr=False, kw_only=True)
class ClassTargets(ClassifierMixin):
    """Classes: one output for two classes, else one for each class against the rest."""

    _parameter_constraints = {"class_weight": [dict, StrOptions({"balanced"}), None]}
    _losses = CLASS_LOSSES
    _of_classes = True
    _scored_loss, _score = codes.LOG_LOSS, "neg_log_loss"

    loss: str | Loss = "log"
    class_weight: dict | str | None = None

    def partial_fit(self, X, y, classes=None, sample_weight=None, *, n_features=None):
        """Train one epoch on these rows, continuing from the present model.

        Counters and optimizer state are kept between calls. The intercept moves with the best
        constant score of all targets so far, and penalties per token are divided by all rows so
        far. There is no early stopping. A call takes time and memory for the features that its rows
        hold, and at most a fifth of a byte for each other feature of the model; one that fails
        changes nothing.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            As many features as in the first call, or up to ``n_features``.
        y : array-like of shape (n_samples,)
            Class labels.
        classes : array-like of shape (n_classes,), default=None
            All classes that will ever occur; required in the first call.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.
        n_features : int, default=None
            Number of features of the model from this call on. Features that ``X`` lacks count as
            zeros; if they are more than before, the model grows: the new ones start as in a new
            model. That copies the model, so let it grow by large steps. None keeps the number.
            Machines with fields need those of the new features: see :doc:`/fields`.

        Returns
        -------
        self : object
        """
        if classes is None and not hasattr(self, "coef_"):
            raise ValueError(
                "classes=None in the first call to partial_fit; pass all classes that will ever "
                "occur, for instance classes=[0, 1]."
            )
        validate_changed_params(self)
        return self._train_once(X, y, sample_weight, classes, n_features)

    def _set_classes(self, known):
        """Set the classes of a new model, sorted."""
        if len(known) < 2:
            raise ValueError(
                f"y holds one class only, {shorten(known)}; a classifier needs at least two "
                f"classes to tell apart."
            )
        self.classes_ = known

    def _factors_of_classes(self, labels):
        """Return the factors of ``class_weight`` for the weights of rows with some labels."""
        if self.class_weight is None:
            return np.ones(len(labels))
        if isinstance(self.class_weight, str):
            raise self._balanced_error()
        return np.array([self.class_weight.get(label, 1.0) for label in labels.tolist()])

    def _balanced_error(self):
        return ValueError(
            "class_weight='balanced' needs all rows, which neither partial_fit nor a stream has at "
            "once; compute the weights with sklearn.utils.compute_class_weight and pass them as a "
            "dict."
        )

    def _encode_target(self, y, classes, reset):
        """Return targets of shape (n_outputs, n_rows), and labels to stratify by or None."""
        if reset or y.dtype.kind not in "biu":
            # Integers can only be labels, and unknown ones are found below.
            y = check_labels("y", y)
        if classes is not None:
            classes = check_labels("classes", column_or_1d(classes))
        if reset:
            self._set_classes(np.unique(y if classes is None else classes))
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise ValueError(
                f"classes={shorten(np.unique(classes))} differs from the "
                f"{shorten(self.classes_)} of the first call; pass the same, or None."
            )
        # Unlike a search, this also compares what has no common order, integers and objects.
        known = np.isin(y, self.classes_)
        if not known.all():
            raise ValueError(
                f"y holds {shorten(np.unique(y[~known]))}, which is not among the classes "
                f"{shorten(self.classes_)} of the first call; name all classes there, or fit again."
            )
        labels = np.searchsorted(self.classes_, y)
        outputs = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        return np.stack([labels == k for k in outputs]).astype(np.float32), labels

    def _count_outputs(self, learned):
        """Return the number of outputs of the model, from checked attributes."""
        (n_classes,) = learned.array("classes_", (None,), "biufOSUTmM")
        learned.require(n_classes > 1, "classes_", f"holds {n_classes} classes")
        return 1 if n_classes == 2 else n_classes

    def _class_weights(self, y, weight, partial):
        """Return a weight for each class by the rows that are trained on, or None."""
        if self.class_weight is None:
            return None
        if self.class_weight != "balanced":
            return compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        if partial:
            raise self._balanced_error()
        numbers = np.searchsorted(self.classes_, y)
        return balanced_weights(np.bincount(numbers, weight, len(self.classes_)))

    def _usual_score(self, target, scores, weight):
        """Return the score of validation rows by the log loss; see ``_validation_score``."""
        scores = scores.astype(np.float64)
        if len(scores) == 1:
            loss = np.logaddexp(0.0, scores[0]) - target[0] * scores[0]
        else:
            loss = -(target * _log_proba(scores.T).T).sum(axis=0)
        return -np.average(loss, weights=weight)

    def decision_function(self, X):
        """Return the scores: log-odds of the second class, or of each class against the rest.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
        """
        scores = self._scores(X).astype(np.float64)
        return scores[0] if len(scores) == 1 else scores.T

    @available_if(_has_probabilities)
    def predict_proba(self, X):
        """Return the probabilities of the classes.

        With three classes or more, the sigmoids of the classes' scores divided by their sum.
        Losses other than "log" use their ``expectation`` in place of the sigmoid; if they have
        none, this method does not exist.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        if self._loss.expectation is not LogLoss.expectation:
            return self._expected_classes(self.decision_function(X))
        scores = self._scores(X)
        if len(scores) == 1:
            return _proba_of_two(scores[0])
        return np.exp(_log_proba(scores.T.astype(np.float64)))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X):
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        logs : ndarray of shape (n_samples, n_classes)
        """
        scores = self.decision_function(X)
        if self._loss.expectation is not LogLoss.expectation:
            with np.errstate(divide="ignore"):
                return np.log(self._expected_classes(scores))
        if scores.ndim == 1:
            return -np.logaddexp(0.0, np.column_stack([scores, -scores]))
        return _log_proba(scores)

    def _expected_classes(self, scores):
        """Return the probabilities of the classes by the loss's expectation."""
        shares = np.clip(expect(self._loss, True, scores).astype(np.float64), 0, 1)
        if scores.ndim == 1:
            return np.column_stack([1 - shares, shares])
        total = shares.sum(axis=1, keepdims=True)
        equal = np.full_like(shares, 1 / shares.shape[1])
        return np.divide(shares, total, out=equal, where=total > 0)

    def predict(self, X):
        """Return the class of the largest score.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        y : ndarray of shape (n_samples,)
        """
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]


def sum_of_squares(weight):
    """Return the sum of squared weights, float64."""
    return float(np.einsum("i,i->", weight, weight, dtype=np.float64))


def spread_of(weight):
    """Return the mean square of weights, divided by their squared mean; zeros are no weights."""
    total = weight.sum(dtype=np.float64)
    return np.count_nonzero(weight) * sum_of_squares(weight) / total**2


def balanced_weights(totals):
    """Return the weights of classes with which all weigh the same, given the weight of each."""
    found = totals > 0
    mean = totals.sum() / found.sum()
    return np.divide(mean, totals, out=np.zeros(len(totals)), where=found)


def check_labels(name, labels):
    """Return class labels, if they are of one type that can be sorted."""
    if labels.dtype.kind == "O":
        check_present(labels, name)
        unique_codes(labels, name)
    check_classification_targets(labels)
    return labels


@dataclass(eq=False, repr=False, kw_only=True)
class RealTargets(RegressorMixin):
    """Real numbers."""

    _losses = REAL_LOSSES
    _of_classes = False
    _scored_loss, _score = codes.SQUARED_ERROR, "r2"

    loss: str | Loss = "squared"

    def partial_fit(self, X, y, sample_weight=None, *, n_features=None):
        """Train one epoch on these rows, continuing from the present model.

        Counters and optimizer state are kept between calls. The intercept moves with the best
        constant score of all targets so far, and penalties per token are divided by all rows so
        far. There is no early stopping. A call takes time and memory for the features that its rows
        hold, and at most a fifth of a byte for each other feature of the model; one that fails
        changes nothing.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            As many features as in the first call, or up to ``n_features``.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.
        n_features : int, default=None
            Number of features of the model from this call on. Features that ``X`` lacks count as
            zeros; if they are more than before, the model grows: the new ones start as in a new
            model. That copies the model, so let it grow by large steps. None keeps the number.
            Machines with fields need those of the new features: see :doc:`/fields`.

        Returns
        -------
        self : object
        """
        validate_changed_params(self)
        return self._train_once(X, y, sample_weight, n_features=n_features)

    def _encode_target(self, y, classes, reset):
        with np.errstate(over="ignore"):
            target = y.astype(np.float32)[np.newaxis]
        if not np.isfinite(target).all():
            raise ValueError(
                f"y holds {np.abs(y).max():g}, which is too large for float32; divide y by a "
                f"constant, for instance with sklearn's TransformedTargetRegressor."
            )
        if reset:
            warn_of_rounding(y, target[0])
        if reset and self.learning_rate is None:
            warn_of_spread(self._loss, target[0])
        return target, None

    def _count_outputs(self, learned):
        return 1

    def _class_weights(self, y, weight, partial):
        return None

    def _usual_score(self, target, scores, weight):
        target = target[0].astype(np.float64)
        loss = np.average((target - scores[0]) ** 2, weights=weight)
        variance = np.average((target - np.average(target, weights=weight)) ** 2, weights=weight)
        # R^2 is undefined for constant targets; their squared error still compares models.
        return 1.0 - loss / (variance if variance > 0 else 1.0)

    def predict(self, X):
        """Return the predicted targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        y : ndarray of shape (n_samples,)
            At most the largest number of float32, also where a "poisson" loss expects more.
        """
        scores, loss = self._scores(X)[0], self._loss
        if loss.expectation is not None:
            largest = np.finfo(np.float32).max
            scores = np.clip(expect(loss, False, scores), -largest, largest)
        return scores.astype(np.float64)


def _proba_of_two(scores):
    """Return 1 / (1 + exp(s)) and 1 / (1 + exp(-s)) for every score s, computed in place."""
    probabilities = np.empty((len(scores), 2))
    probabilities[:, 0] = scores
    np.negative(probabilities[:, 0], out=probabilities[:, 1])
    with np.errstate(over="ignore"):  # 1 / (1 + inf) = 0
        np.exp(probabilities, out=probabilities)
    probabilities += 1
    return np.divide(1, probabilities, out=probabilities)  # twice as fast as np.reciprocal


def _log_proba(scores):
    """Return the logarithms of the sigmoids of scores, divided by their sums over the classes."""
    logs = -np.logaddexp(0.0, -scores)
    return logs - logsumexp(logs, axis=1, keepdims=True)


def warn_of_rounding(y, target):
    """Warn of targets far from zero, such as times, whose differences float32 can hardly hold."""
    lost, spread = np.abs(target - y).max(), float(y.max()) - float(y.min())
    if lost > _ROUNDED * spread > 0:
        warn_user(
            f"y holds numbers up to {np.abs(y).max():g} that differ by {spread:g} at most, but "
            f"models train in float32, which rounds them by up to {lost:g}. Subtract a constant "
            f"from y, for instance with sklearn's TransformedTargetRegressor(FMRegressor(...), "
            f"transformer=StandardScaler())."
        )


def warn_of_spread(loss, target):
    """Warn of targets that spread too much or too little for the default learning rates."""
    low, high = loss.spreads
    if (low, high) == (0.0, np.inf):
        return
    distance = np.abs(target - np.median(target))
    # These losses are meant for outliers.
    spread = distance[distance <= np.quantile(distance, 0.95)].mean(dtype=np.float64)
    if 0 < spread < low or spread > high:
        warn_user(
            f"Most targets are about {spread:.3g} from their median, but the learning rates "
            f"for loss={loss!r} are meant for {low:g} to {high:g}, as its derivative does not grow "
            f"with the residual. Scale the targets, for instance with sklearn's "
            f"TransformedTargetRegressor(FMRegressor(...), transformer=StandardScaler())."
        )


# Losses of many scores: predictions, the mean loss, the best constant score.


def expect(loss, of_classes, scores):
    """Return the predictions that scores stand for, of the same shape, float32.

    Raises
    ------
    ValueError
        If a user's loss has none for a score.
    """
    flat = np.ascontiguousarray(scores, dtype=np.float32).ravel()
    formulas = loss.replacements(of_classes)
    expected = backends.get().expected_targets(loss.code, formulas, flat)
    if loss.code == codes.CUSTOM_LOSS:
        without = flat[np.isnan(expected)]
        if len(without):
            raise ValueError(
                f"expectation of {type(loss).__name__} returns NaN for the score {without[0]:g}."
            )
    return expected.reshape(scores.shape)


def _loss_sums(loss, of_classes):
    """Return a function of ScoredRows that returns the sums of losses and of derivatives."""
    return backends.get().loss_sums(loss.code, loss.replacements(of_classes))


def _rows(scores, target, weight):
    """Return ScoredRows from arrays of any shape."""
    types = np.float32, np.float32, np.float64
    arrays = map(np.ascontiguousarray, (scores, target, weight), types)
    return ScoredRows(*(array.ravel() for array in arrays))


def mean_loss(loss, of_classes, scores, target, weight):
    """Return the mean loss of rows, summed over outputs.

    Parameters
    ----------
    loss : Loss
    of_classes : bool
        Whether targets are classes.
    scores, target : ndarray of shape (n_outputs, n_rows)
    weight : ndarray of shape (n_rows,)
    """
    weights = np.tile(weight, (len(scores), 1))
    return _loss_sums(loss, of_classes)(_rows(scores, target, weights))[0] / weight.sum()


def base_score(loss, of_classes, target, weight):
    """Return the constant score with the smallest loss on rows of one output.

    Without a formula of its own the loss is assumed to be convex: its derivative is bisected.
    """
    known = loss.base_score(target, weight)
    if known is not None:
        return known
    step = -(-len(target) // _SOME_ROWS)
    rows = _rows(np.zeros(len(target[::step])), target[::step], weight[::step])
    sums = _loss_sums(loss, of_classes)

    def slope(score):
        rows.scores.fill(score)
        return sums(rows)[1]

    # The bracket grows from 0.
    at_zero = slope(0.0)
    sign, bound = (1.0 if at_zero < 0 else -1.0), 1.0
    while bound < _LARGEST_SCORE and (slope(sign * bound) < 0) == (sign > 0):
        bound *= 2
    # Where a loss is constant is its lowest value, which may extend without end.
    constant = bound >= _LARGEST_SCORE and slope(sign * bound) == 0
    if (constant and at_zero == 0) or np.isnan(at_zero):  # training tells of NaN
        return 0.0
    if bound >= _LARGEST_SCORE and not constant:
        _warn_of_no_best(loss, sign * bound)
    low, high = sorted((0.0, sign * bound))
    for _ in range(40):
        middle = (low + high) / 2
        value = slope(middle)
        falls = value <= 0 if constant else value < 0
        low, high = (middle, high) if falls else (low, middle)
    return (low + high) / 2


def _warn_of_no_best(loss, score):
    warn_user(
        f"By the derivatives of {type(loss).__name__}, its mean for a constant score still falls "
        f"at {score:g}, where training starts. Scale y, or, if the loss is one of your own, check "
        f"the sign of its derivative."
    )


class RunningBaseScore:
    """The constant score with the smallest loss on all targets of one output so far.

    For classes it is exact. For real targets it is exact if the loss has a formula that depends on
    their mean alone, as those of this package do; without a formula it is the mean of the chunks'.

    Parameters
    ----------
    model : BaseFM
    sums : ndarray of shape (4,), float64
        The weighted sum of the targets, the sum of the weights, the score, and the weighted sum of
        the squared targets; updated in place.
    """

    def __init__(self, model, sums):
        self._loss, self._of_classes, self._sums = model._loss, model._of_classes, sums

    def add(self, target, weight):
        """Add a chunk's targets; return by how much the score changes."""
        before = self._sums[2]
        self.add_sums(
            (target * weight).sum(),
            weight.sum(),
            np.square(target, dtype=np.float64) @ weight,
            lambda: base_score(self._loss, False, target, weight),
        )
        return self._sums[2] - before

    def add_sums(self, total, weight, squares, score):
        """Add a chunk by its sums, and a function that has its score."""
        sums = self._sums
        sums[[0, 1, 3]] += total, weight, squares
        if self._of_classes:
            self.update()
        elif sums[1] > 0:
            known = self._loss.base_score(np.array([sums[0] / sums[1]]), sums[1:2].copy())
            if known is None:
                known = sums[2] + (score() - sums[2]) * (weight / sums[1])
            sums[2] = known

    def update(self):
        """Set the score of classes from the sums."""
        total, n = self._sums[:2]
        weights = np.array([n - total, total])
        occurs = weights > 0
        classes = np.array([0.0, 1.0])[occurs]
        self._sums[2] = base_score(self._loss, True, classes, weights[occurs])
