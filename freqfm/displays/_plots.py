"""Displays: of popularity, of the features that interact most, of fits, and of comparisons."""

import numpy as np
from scipy.stats import spearmanr
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from freqfm._input.rows import split_signs
from freqfm._messages import cut, shown
from freqfm.metrics import stratified_ndcg_at_k
from freqfm.metrics._hits import as_csr
from freqfm.model_selection._holdout import last_step, steps_of, transform
from freqfm.model_selection._scorer import seen_by, warn_of_seen


def open_axes(ax):
    """Return the axes to draw in and their figure; new ones if ``ax`` is None.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(
            "Displays are drawn with matplotlib, which is not installed: pip install "
            "'freqfm[plot]'."
        ) from None
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    return ax, ax.figure


def label_of(name):
    """Return a name as a label of matplotlib: on one line, cut, and no formula between dollars."""
    text = cut(name, 60).replace("$", r"\$")
    # Legends leave out labels that begin with an underscore.
    return f" {text}" if text.startswith("_") else text


def as_vector(name, values):
    """Return numbers as a float64 vector.

    Raises
    ------
    ValueError
        If they are not one-dimensional.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional; got the shape {values.shape}.")
    return values


def as_vectors(**named):
    """Return numbers as float64 vectors; raise a ValueError if their lengths differ."""
    vectors = [as_vector(name, values) for name, values in named.items()]
    if len(set(map(len, vectors))) > 1:
        counts = [f"{len(vector)} {name}" for name, vector in zip(named, vectors, strict=True)]
        raise ValueError(f"there are {' and '.join(counts)}; give one of each.")
    return vectors


def model_with(estimator, attribute):
    """Return the fitted model with an attribute, inside pipelines, searches or wrappers.

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If there is no such model.
    """
    _, model = steps_of(estimator)
    while not hasattr(model, attribute):
        inside = getattr(model, "estimator_", None)  # the name in InteractionRecommender
        if inside is None:
            if hasattr(model, "fit"):
                check_is_fitted(model)
            where = "" if model is estimator else f", inside {type(estimator).__name__},"
            raise TypeError(
                f"{type(model).__name__}{where} has no {attribute}; give a fitted estimator of "
                f"freqfm that has, or a pipeline or a search that ends in one."
            )
        _, model = steps_of(inside)
    check_is_fitted(model)
    return model


def rank_held_out(estimator, relevant, k, history=None, users=None):
    """Recommend to the users whose held-out items are given.

    Parameters
    ----------
    estimator : recommender, Pipeline or search
    relevant : {sparse matrix, array-like} of shape (n_users, n_items), or table
        Held-out items; for ``InteractionRecommender`` a table of held-out interactions.
    k : int
    history : {sparse matrix, array-like} of shape (n_users, n_items), default=None
        Histories to recommend from.
    users : array-like of int of shape (n_users,), default=None
        Rows of users seen in fit. If both are None, these are the first of fit, in order.

    Returns
    -------
    relevant : csr_array of shape (n_users, n_items)
    ranked : ndarray of shape (n_users, k)
    model : recommender
        That of rows and columns: the last step, or the one inside of it.
    users : ndarray, or None
        Rows of users seen in fit; None if histories were given.

    Raises
    ------
    TypeError, ValueError
        If the arguments do not match the recommender.
    """
    transformers, model = last_step(estimator)
    if hasattr(model, "_find_held_out"):
        if history is not None or users is not None:
            raise ValueError(
                f"{type(model).__name__} finds the users, and their histories, by the table given "
                f"as relevant; leave history and users at None."
            )
        try:
            queries, relevant = model._find_held_out(transform(transformers, relevant))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"relevant cannot be used: {cut(error, 1000)}") from None
        model = model.estimator_
    else:
        relevant = as_csr("relevant", relevant)
        if history is None and users is None:
            _check_first_users(model, relevant.shape)
            users = np.arange(relevant.shape[0])
        queries = {"users": users}
    history = None if history is None else transform(transformers, history)
    ranked, _ = model.recommend(history, **queries, n_recommendations=k)
    seen = seen_by(model, queries["users"]) if history is None else as_csr("history", history)
    warn_of_seen(split_signs(relevant)[0], seen)
    return relevant, ranked, model, queries["users"]


def _check_first_users(model, shape):
    """Raise unless the rows of held-out items can be the first users of ``fit``."""
    n_users, n_items = model._history.n_users, len(model.item_counts_)
    if shape[0] > n_users or shape[1] != n_items:
        raise ValueError(
            f"relevant has the shape {shape}, but the model knows {n_items} items and, in order, "
            f"{n_users} users; give a column for each of these items, and history for other users."
        )


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
