"""Display of the features that interact most in a factorization machine."""

import numpy as np
from sklearn.pipeline import make_pipeline

from freqfm._messages import shown
from freqfm.displays._common import as_vector, label_of, model_with, open_axes
from freqfm.model_selection._steps import steps_of, transform

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
        strengths = _of_class(found.strengths, class_index)
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


def _of_class(strengths, class_index):
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
