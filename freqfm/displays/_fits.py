"""Displays of fits: losses, scores and temperatures, and a comparison of recommenders."""

import numpy as np

from freqfm._messages import shown
from freqfm.displays._common import as_vector, as_vectors, label_of, model_with, open_axes

_KINDS = ("histogram", "degree")


class LossCurveDisplay:
    """Training loss by epoch, with the validation score if there was early stopping.

    Parameters
    ----------
    loss_curve : array-like of shape (n_epochs,)
    validation_scores : array-like of shape (n_epochs,), default=None
        None, or of length 0, if there are none.
    best_iter : int, default=None
        Epoch whose model was kept, counted from 1.
    name : str, default=None
        Name of the model, for the legend.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The loss.
    validation_line_ : matplotlib Line2D or None
    best_line_ : matplotlib Line2D or None
        Vertical, at the epoch that was kept.
    ax_ : matplotlib Axes
    validation_ax_ : matplotlib Axes or None
        Shares the epochs with ``ax_``, and has a separate scale at the right.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> from freqfm import FMClassifier
    >>> from freqfm.datasets import make_clicks
    >>> from freqfm.displays import LossCurveDisplay
    >>> X, y = make_clicks(2000, (50, 20), random_state=0)
    >>> model = FMClassifier(random_state=0).fit(X, y)
    >>> display = LossCurveDisplay.from_estimator(model)
    >>> len(display.loss_curve) == len(display.validation_scores)
    True
    """

    def __init__(self, loss_curve, validation_scores=None, *, best_iter=None, name=None):
        self.loss_curve = as_vector("loss_curve", loss_curve)
        scores = () if validation_scores is None else validation_scores
        self.validation_scores = as_vector("validation_scores", scores)
        self.best_iter = best_iter
        self.name = name

    @classmethod
    def from_estimator(cls, estimator, *, name=None, ax=None, validation_ax=None, **kwargs):
        """Draw the training of a fitted estimator.

        Parameters
        ----------
        estimator : factorization machine, recommender, Pipeline or search
        name : str, default=None
            None takes the name of the class.
        ax, validation_ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : LossCurveDisplay
        """
        model = model_with(estimator, "loss_curve_")
        display = cls(
            model.loss_curve_,
            getattr(model, "validation_scores_", None),
            best_iter=getattr(model, "best_iter_", None),
            name=type(model).__name__ if name is None else name,
        )
        return display.plot(ax=ax, validation_ax=validation_ax, **kwargs)

    def plot(self, ax=None, *, validation_ax=None, **kwargs):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        validation_ax : matplotlib Axes, default=None
            Axes for the scores; to draw several models in one figure, pass the ``validation_ax_``
            of the first. None adds a second scale to ``ax``.
        **kwargs : dict
            For matplotlib's ``plot``, of both curves.

        Returns
        -------
        self : object
        """
        self.ax_, self.figure_ = open_axes(ax)
        epochs = np.arange(1, len(self.loss_curve) + 1)
        label = "loss" if self.name is None else f"{label_of(self.name)}, loss"
        (self.line_,) = self.ax_.plot(epochs, self.loss_curve, **{"label": label, **kwargs})
        self.ax_.set(xlabel="epoch", ylabel="training loss")
        self.validation_ax_ = self.validation_line_ = self.best_line_ = None
        lines = [self.line_]
        if len(self.validation_scores):
            self.validation_ax_ = self.ax_.twinx() if validation_ax is None else validation_ax
            style = {"color": self.line_.get_color(), "linestyle": "--"}
            (self.validation_line_,) = self.validation_ax_.plot(
                np.arange(1, len(self.validation_scores) + 1),
                self.validation_scores,
                **{**style, "label": "validation score", **kwargs},
            )
            self.validation_ax_.set_ylabel("validation score (dashed)")
            lines.append(self.validation_line_)
            if self.best_iter is not None:
                style = {"color": self.line_.get_color(), "linestyle": ":", "linewidth": 1}
                self.best_line_ = self.ax_.axvline(self.best_iter, **style)
        old = self.ax_.get_legend()
        drawn = [line for line in self.ax_.get_lines() if line.get_label()[0] != "_"]
        if old is not None or len(drawn) > 1:
            lines = drawn
        # Falling losses and rising scores leave the middle of the right side free.
        self.ax_.legend(handles=lines, loc="center right")
        return self


class TemperatureDisplay:
    """Temperatures by user, as a histogram or against the number of items that users have.

    Parameters
    ----------
    temperatures : array-like of shape (n_users,)
    degrees : array-like of shape (n_users,), default=None
        How many items each user has. Users without any are left out. None counts all users, and
        allows only the histogram.

    Attributes
    ----------
    temperatures, degrees : ndarray of shape (n_users_with_items,)
    bars_ : matplotlib BarContainer or None
        Of the histogram.
    points_ : matplotlib PathCollection or None
        Of temperatures against degrees.
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.displays import TemperatureDisplay
    >>> X = make_interactions(200, 100, 2000, random_state=0)
    >>> model = MFRecommender(8, temperature="adap_tau", max_iter=10, random_state=0).fit(X)
    >>> display = TemperatureDisplay.from_estimator(model, kind="degree")
    >>> display.ax_.get_ylabel()
    'temperature'
    """

    def __init__(self, temperatures, degrees=None):
        self.temperatures, self.degrees = as_vector("temperatures", temperatures), None
        if degrees is not None:
            temperatures, degrees = as_vectors(temperatures=temperatures, degrees=degrees)
            self.temperatures, self.degrees = temperatures[degrees > 0], degrees[degrees > 0]

    @classmethod
    def from_estimator(cls, estimator, *, kind="histogram", ax=None, **kwargs):
        """Draw the temperatures of a fitted recommender.

        Parameters
        ----------
        estimator : MFRecommender, InteractionRecommender, Pipeline or search
        kind : {"histogram", "degree"}, default="histogram"
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : TemperatureDisplay
        """
        model = model_with(estimator, "user_temperatures_")
        return cls(model.user_temperatures_, model._history.counts).plot(kind=kind, ax=ax, **kwargs)

    def plot(self, ax=None, *, kind="histogram", **kwargs):
        """Draw the temperatures.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        kind : {"histogram", "degree"}, default="histogram"
        **kwargs : dict
            For matplotlib's ``hist`` or ``scatter``.

        Returns
        -------
        self : object
        """
        if kind not in _KINDS:
            raise ValueError(f"kind={shown(kind)} must be 'histogram' or 'degree'.")
        if kind == "degree" and self.degrees is None:
            raise ValueError("kind='degree' needs degrees; give them to TemperatureDisplay.")
        self.ax_, self.figure_ = open_axes(ax)
        self.bars_ = self.points_ = None
        if kind == "histogram":
            _, _, self.bars_ = self.ax_.hist(self.temperatures, **{"bins": 40, **kwargs})
            self.ax_.set(xlabel="temperature", ylabel="users")
        else:
            self.points_ = self.ax_.scatter(self.degrees, self.temperatures, **{"s": 8, **kwargs})
            self.ax_.set(xscale="log", xlabel="items of the user", ylabel="temperature")
        self.ax_.set_title(f"{len(self.temperatures)} users, mean {self.temperatures.mean():.3g}")
        return self


class RecommenderComparisonDisplay:
    """Scores of recommenders against the seconds that they take to fit, with intervals.

    The bar of a point is the interval of its difference to the best one, from the best score on:
    where it reaches the line, the recommender may be as good.

    Parameters
    ----------
    names : list of str
        Of the recommenders, best first.
    scores, seconds : array-like of shape (n_recommenders,)
        Scores, and seconds to fit.
    intervals : array-like of shape (n_recommenders, 2), default=None
        Of the differences to the first score.
    metric : str, default="score"
        What the scores are, for the label.

    Attributes
    ----------
    names : list of str
    scores, seconds : ndarray of shape (n_recommenders,)
    intervals : ndarray of shape (n_recommenders, 2), or None
    points_ : matplotlib PathCollection
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    See Also
    --------
    freqfm.model_selection.compare_recommenders : Makes the comparison.

    Examples
    --------
    >>> from freqfm import ItemKNNRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.displays import RecommenderComparisonDisplay
    >>> from freqfm.model_selection import compare_recommenders
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> comparison = compare_recommenders(X, [("knn", ItemKNNRecommender(20))], random_state=0)
    >>> display = RecommenderComparisonDisplay.from_comparison(comparison)
    >>> display.names
    ['knn', 'most popular']
    """

    def __init__(self, names, scores, seconds, *, intervals=None, metric="score"):
        self.names, self.metric = list(names), metric
        self.scores, self.seconds = as_vector("scores", scores), as_vector("seconds", seconds)
        self.intervals = None if intervals is None else np.asarray(intervals, dtype=np.float64)
        shapes = {"scores": self.scores.shape, "seconds": self.seconds.shape}
        shapes |= {} if intervals is None else {"intervals": self.intervals.shape}
        n = len(self.names)
        for name, shape in shapes.items():
            expected = (n, 2) if name == "intervals" else (n,)
            if shape != expected or not n:
                raise ValueError(f"{name} has the shape {shape}, but there are {n} names.")

    @classmethod
    def from_comparison(cls, comparison, *, ax=None, **kwargs):
        """Draw the recommenders that could be tested, by the first metric.

        Parameters
        ----------
        comparison : RecommenderComparison
            Of :func:`~freqfm.model_selection.compare_recommenders`.
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : RecommenderComparisonDisplay
        """
        rows = [row for row in comparison.rows_ if row.error is None]
        metric = next(iter(rows[0].scores))
        columns = ([row.name for row in rows], [row.scores[metric] for row in rows])
        seconds, intervals = zip(*((row.fit_seconds, row.interval) for row in rows), strict=True)
        return cls(*columns, seconds, intervals=intervals, metric=metric).plot(ax=ax, **kwargs)

    def plot(self, ax=None, **kwargs):
        """Draw the points.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            For matplotlib's ``scatter``.

        Returns
        -------
        self : object
        """
        self.ax_, self.figure_ = open_axes(ax)
        self.points_ = self.ax_.scatter(self.seconds, self.scores, **kwargs)
        if self.intervals is not None:
            self.ax_.axhline(self.scores[0], color="0.7", linewidth=0.8, zorder=0)
            self.ax_.vlines(self.seconds, *(self.scores[0] + self.intervals.T), color="0.5")
        for name, *place in zip(self.names, self.seconds, self.scores, strict=True):
            offset = {"xytext": (5, 3), "textcoords": "offset points"}
            self.ax_.annotate(label_of(name), place, **offset)
        self.ax_.margins(x=0.15)  # for the names
        self.ax_.set(xscale="log", xlabel="seconds to fit", ylabel=label_of(self.metric))
        return self
