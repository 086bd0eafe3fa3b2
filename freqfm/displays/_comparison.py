"""A display of recommenders: how good they are, and how long they take to fit."""

import numpy as np

from freqfm.displays._common import as_vector, label_of, open_axes


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
