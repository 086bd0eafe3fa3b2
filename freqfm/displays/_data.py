"""Displays of the effect of popularity, and of the features that interact most."""

import numpy as np
from scipy.stats import spearmanr
from sklearn.pipeline import make_pipeline

from freqfm._messages import shown
from freqfm.displays._common import (
    as_vector,
    as_vectors,
    label_of,
    model_with,
    open_axes,
    rank_held_out,
)
from freqfm.metrics import stratified_ndcg_at_k
from freqfm.model_selection._holdout import steps_of, transform


class MagnitudePopularityDisplay:
    """Lengths of vectors against the popularity of the items, users or tokens that they represent.

    Where rankings are by dot products, long vectors are recommended often: the plot shows how much
    a model favours popular items by vector length, as in figure 2 of [1]_. Cosines do not depend on
    lengths.

    Parameters
    ----------
    lengths : array-like of shape (n,)
        Lengths of the vectors.
    counts : array-like of shape (n,)
        How often each item, or user, occurs in training.
    what : str, default="items"
        What the points are, for labels.

    Attributes
    ----------
    lengths, counts : ndarray of shape (n_seen,)
        Without those that never occur, which have no position on a logarithmic axis.
    correlation : float
        Spearman's rank correlation of the two; nan if either is constant.
    points_ : matplotlib PathCollection
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    References
    ----------
    .. [1] D. Loveland, M. Ju, T. Zhao, N. Shah, D. Koutra. "On the Role of Weight Decay in
       Collaborative Filtering: A Popularity Perspective". 2025.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.displays import MagnitudePopularityDisplay
    >>> X = make_interactions(200, 100, 2000, random_state=0)
    >>> model = MFRecommender(8, init="prism", max_iter=1, random_state=0).fit(X)
    >>> display = MagnitudePopularityDisplay.from_estimator(model)
    >>> print(f"{display.correlation:.2f}")
    1.00
    """

    def __init__(self, lengths, counts, *, what="items"):
        counts, lengths = as_vectors(counts=counts, lengths=lengths)
        seen = counts > 0
        self.counts, self.lengths, self.what = counts[seen], lengths[seen], what
        self.correlation = _rank_correlation(self.counts, self.lengths)

    @classmethod
    def from_estimator(cls, estimator, *, of="items", ax=None, **kwargs):
        """Draw the vectors of a fitted recommender.

        Parameters
        ----------
        estimator : MFRecommender, InteractionRecommender, Pipeline or search
        of : {"items", "users"}, default="items"
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : MagnitudePopularityDisplay
        """
        if of not in ("items", "users"):
            raise ValueError(f"of={shown(of)} must be 'items' or 'users'.")
        model = model_with(estimator, f"{of[:-1]}_factors_")
        counts = model.item_counts_ if of == "items" else model._history.counts
        vectors = getattr(model, f"{of[:-1]}_factors_")
        return cls.from_vectors(vectors, counts, what=of, ax=ax, **kwargs)

    @classmethod
    def from_vectors(cls, vectors, counts, *, what="vectors", ax=None, **kwargs):
        """Draw given vectors, such as the ``factors_`` of a factorization machine.

        Parameters
        ----------
        vectors : array-like of shape (n, n_components)
        counts : array-like of shape (n,)
        what : str, default="vectors"
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : MagnitudePopularityDisplay
        """
        vectors = np.asarray(vectors)
        if vectors.ndim != 2:
            raise ValueError(
                f"vectors must be a matrix, one vector a row; got the shape {vectors.shape}."
            )
        lengths = np.linalg.norm(vectors, axis=1)
        return cls(lengths, counts, what=what).plot(ax=ax, **kwargs)

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
        self.points_ = self.ax_.scatter(self.counts, self.lengths, **{"s": 8, **kwargs})
        what = label_of(self.what)
        self.ax_.set(
            xscale="log",
            xlabel=f"interactions of the {what}",
            ylabel=f"length of the {what}' vectors",
            title=f"Spearman's rank correlation {self.correlation:.2f}",
        )
        return self


class StratifiedNDCGDisplay:
    """NDCG by the popularity of items, as bars, for one or several models.

    The three parts of a model add up to its NDCG, see :func:`freqfm.metrics.stratified_ndcg_at_k`.

    Parameters
    ----------
    parts : dict of str to dict
        By model: what each stratum contributes.
    k : int, default=None
        Length of the rankings, for the label.

    Attributes
    ----------
    ndcg : dict of str to float
        By model: the sum of its parts.
    bars_ : dict of str to matplotlib BarContainer
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.displays import StratifiedNDCGDisplay
    >>> from freqfm.model_selection import holdout_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> history, relevant = holdout_interactions(X, 0.2, random_state=0)
    >>> models = {
    ...     alpha: MFRecommender(8, init="prism", learning_rate=0.02, max_iter=5, random_state=0)
    ...     .set_params(init__alpha=alpha).fit(history) for alpha in (0.0, 1.0)
    ... }
    >>> display = StratifiedNDCGDisplay.from_estimators(models, relevant)
    >>> sorted(display.parts[1.0])
    ['neutral', 'popular', 'unpopular']
    """

    def __init__(self, parts, *, k=None):
        if not parts:
            raise ValueError("parts names no model; give at least one.")
        self.parts = {name: dict(part) for name, part in parts.items()}
        self.k = k
        self.ndcg = {name: float(sum(part.values())) for name, part in self.parts.items()}

    @classmethod
    def from_estimators(
        cls,
        estimators,
        relevant,
        *,
        history=None,
        users=None,
        k=10,
        edges=(0.05, 0.20),
        ax=None,
        **kwargs,
    ):
        """Recommend with fitted recommenders, and draw how well they find held-out items.

        Parameters
        ----------
        estimators : dict of str to estimator, or estimator
            By the names for the legend.
        relevant : {sparse matrix, array-like} of shape (n_users, n_items), or table
            Items to be found; for :class:`~freqfm.InteractionRecommender` a table of held-out
            interactions, for any users.
        history : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories to recommend from. None recommends to users seen in fit.
        users : array-like of int of shape (n_users,), default=None
            Rows of users seen in fit, one for each row of ``relevant``; None takes them in order.
        k : int, default=10
            Length of the rankings.
        edges : pair of float, default=(0.05, 0.20)
            Shares of items that are popular, and popular or neutral, by training counts.
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : StratifiedNDCGDisplay

        Raises
        ------
        ValueError
            If ``relevant``, ``history`` and ``users`` do not match each other or the models.
        """
        if history is not None and users is not None:
            raise ValueError(
                "history and users were both given; give history to recommend from the rows of a "
                "matrix, users to recommend to users seen in fit, or neither."
            )
        if not isinstance(estimators, dict):
            estimators = {type(estimators).__name__: estimators}
        parts = {}
        for name, estimator in estimators.items():
            found, ranked, model, _ = rank_held_out(estimator, relevant, k, history, users)
            counts = model_with(model, "item_counts_").item_counts_
            parts[name] = stratified_ndcg_at_k(found, ranked, counts, k, edges=edges)
        return cls(parts, k=k).plot(ax=ax, **kwargs)

    @classmethod
    def from_rankings(
        cls, relevant, rankings, item_counts, *, k=None, edges=(0.05, 0.20), ax=None, **kwargs
    ):
        """Draw how well given rankings find held-out items.

        Parameters
        ----------
        relevant : {sparse matrix, array-like} of shape (n_users, n_items)
            Items to be found.
        rankings : dict of str to array-like of int, of shape (n_users, n_ranked)
            By name: items recommended to every user, best first; -1 for missing ones.
        item_counts : array-like of shape (n_items,)
            How often each item occurs in training.
        k : int, default=None
            Number of top places to evaluate; all if None.
        edges : pair of float, default=(0.05, 0.20)
            As in :meth:`from_estimators`.
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : StratifiedNDCGDisplay
        """
        parts = {
            name: stratified_ndcg_at_k(relevant, ranked, item_counts, k, edges=edges)
            for name, ranked in rankings.items()
        }
        widths = {np.shape(ranked)[1] for ranked in rankings.values()}
        k = widths.pop() if k is None and len(widths) == 1 else k
        return cls(parts, k=k).plot(ax=ax, **kwargs)

    def plot(self, ax=None, **kwargs):
        """Draw the bars.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            For matplotlib's ``bar``.

        Returns
        -------
        self : object
        """
        self.ax_, self.figure_ = open_axes(ax)
        strata = list(next(iter(self.parts.values())))
        places = np.arange(len(strata))
        width = 0.8 / len(self.parts)
        self.bars_ = {}
        for at, (name, part) in enumerate(self.parts.items()):
            shift = width * (at - (len(self.parts) - 1) / 2)
            heights = [part[stratum] for stratum in strata]
            label = f"{label_of(name)} ({self.ndcg[name]:.4f})"
            self.bars_[name] = self.ax_.bar(
                places + shift, heights, **{"width": 0.95 * width, "label": label, **kwargs}
            )
        self.ax_.set_xticks(places, strata)
        at_k = "" if self.k is None else f"@{self.k}"
        self.ax_.set(xlabel="items", ylabel=f"part of NDCG{at_k}")
        self.ax_.legend(title=f"model (NDCG{at_k})")
        return self


def _rank_correlation(one, other):
    """Return Spearman's coefficient, without a warning where it is undefined."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(spearmanr(one, other).statistic)


# Share of the variance of scores below which interactions are noise.
_NOISE = 0.01


class InteractionStrengthsDisplay:
    """The strongest interactions of a factorization machine, as bars.

    Parameters
    ----------
    names : array-like of str of shape (n_pairs, 2)
        Names of the features of each pair, the strongest first.
    strengths : array-like of shape (n_pairs,)
        The term of the pair in the score, see
        :meth:`freqfm.FMClassifier.interaction_strengths`.
    share : float, default=None
        The share of the scores' variance that interactions carry. Below 0.01 no bars are drawn, but
        this is said.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import FMRegressor
    >>> from freqfm.displays import InteractionStrengthsDisplay
    >>> X = np.random.default_rng(0).integers(0, 2, (2000, 4)).astype(float)
    >>> y = X[:, 0] * X[:, 2] - 0.5 * X[:, 1] * X[:, 3]
    >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
    >>> display = InteractionStrengthsDisplay.from_estimator(model, X, n_pairs=5)
    >>> len(display.bars_)
    5
    """

    def __init__(self, names, strengths, share=None):
        self.share = share
        self.names = np.asarray(names, dtype=object)
        self.strengths = as_vector("strengths", strengths)
        if self.names.shape != (len(self.strengths), 2):
            raise ValueError(
                f"names has the shape {self.names.shape}, but there are {len(self.strengths)} "
                f"strengths; give two names for each."
            )

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X=None,
        *,
        feature_names=None,
        n_pairs=20,
        class_index=None,
        ax=None,
        **kwargs,
    ):
        """Draw the strongest interactions of a fitted factorization machine.

        Parameters
        ----------
        estimator : estimator of ``freqfm``, Pipeline or search
            One with the method ``interaction_strengths``. The steps of a pipeline before it
            transform ``X``, and name the features and their fields. Pairs inside a field are left
            out.
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            Rows whose pairs are compared; None compares all pairs.
        feature_names : array-like of str, default=None
            Names of the features of the machine.
        n_pairs : int, default=20
        class_index : int, default=None
            With three classes or more: place in ``classes_`` of the class whose score is used.
        ax : matplotlib Axes, default=None
        **kwargs : dict
            As in :meth:`plot`.

        Returns
        -------
        display : InteractionStrengthsDisplay

        Raises
        ------
        TypeError
            If there is no factorization machine.
        ValueError
            If ``class_index`` is missing, or out of range, or given without need.
        """
        model = model_with(estimator, "interaction_strengths")
        transformers, _ = steps_of(estimator)
        X = None if X is None else transform(transformers, X)
        options = {"feature_names": feature_names, "n_pairs": n_pairs}
        fields = make_pipeline(*transformers) if transformers else None
        found = model.interaction_strengths(X, fields=fields, **options)
        strengths = _strengths_of_class(found.strengths, class_index)
        return cls(found.names, strengths, found.get("share")).plot(ax=ax, **kwargs)

    def plot(self, ax=None, **kwargs):
        """Draw the bars.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            For matplotlib's ``barh``.

        Returns
        -------
        self : object
        """
        self.ax_, self.figure_ = open_axes(ax)
        if self.share is not None and self.share < _NOISE:
            text = f"Interactions carry {self.share:.1%} of the variance of scores."
            self.ax_.text(0.5, 0.5, text, ha="center", transform=self.ax_.transAxes)
            self.ax_.set_axis_off()
            self.bars_ = self.ax_.barh([], [])
            return self
        places = np.arange(len(self.names))
        colors = np.where(self.strengths < 0, "tab:red", "tab:blue").tolist()
        self.bars_ = self.ax_.barh(places, self.strengths, **{"color": colors, **kwargs})
        self.ax_.set_yticks(places, [" & ".join(map(label_of, pair)) for pair in self.names])
        self.ax_.invert_yaxis()
        self.ax_.axvline(0, color="gray", linewidth=0.8)
        self.ax_.set(xlabel="added to the score by both together")
        return self


def _strengths_of_class(strengths, class_index):
    """Return one strength per pair."""
    if strengths.ndim == 1:
        if class_index is not None:
            raise ValueError(
                f"class_index={shown(class_index)}, but the model has one score; leave it."
            )
        return strengths
    n_classes = strengths.shape[1]
    if class_index is None or not 0 <= class_index < n_classes:
        raise ValueError(
            f"class_index={shown(class_index)} must be the place of a class, from 0 to "
            f"{n_classes - 1}."
        )
    return strengths[:, class_index]
