"""The steps before a recommender in pipelines and searches."""

from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

# The attribute with the only model of those that change what is made of its scores or targets.
_MODELS = {
    FrozenEstimator: "estimator",
    FixedThresholdClassifier: "estimator_",
    TunedThresholdClassifierCV: "estimator_",
    TransformedTargetRegressor: "regressor_",
}


def steps_of(estimator):
    """Return the transformers before the last step of a pipeline or search, and this step.

    Parameters
    ----------
    estimator : estimator, Pipeline, search, or one around a single model
        They may contain each other. Around a model are thresholds, a calibration, a transformed
        target.

    Returns
    -------
    transformers : list of estimator
    last : estimator
        A search itself if it has kept no best estimator.
    """
    transformers = []
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            # Pipelines with only "passthrough" steps are never unfitted, and have no last one.
            transformers += [
                step for _, step in estimator.steps[:-1] if step not in (None, "passthrough")
            ]
            estimator = estimator.steps[-1][1]
        elif len(inside := models_in(estimator)) == 1:
            estimator = inside[0]
        else:
            return transformers, estimator


def models_in(estimator):
    """Return the fitted models in a meta-estimator that divides or changes their scores, if any."""
    if isinstance(estimator, CalibratedClassifierCV):
        return [part.estimator for part in getattr(estimator, "calibrated_classifiers_", [])]
    names = [name for kind, name in _MODELS.items() if isinstance(estimator, kind)]
    return [vars(estimator)[name] for name in names if name in vars(estimator)]


def last_step(estimator):
    """Return the transformers before the recommender of a pipeline or search, and the recommender.

    Parameters
    ----------
    estimator : estimator, Pipeline or search
        Fitted; pipelines and searches may contain each other.

    Returns
    -------
    transformers : list of estimator
    recommender : estimator

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If the last step is not a recommender.
    ValueError
        If a search has kept no best estimator.
    """
    transformers, last = steps_of(estimator)
    if hasattr(last, "fit") and hasattr(last, "refit") and hasattr(last, "cv_results_"):
        raise ValueError(
            f"{type(last).__name__} was fitted with refit={last.refit!r} and kept no best "
            f"estimator; set refit to True, or to the name of a score."
        )
    searching = hasattr(last, "refit") and hasattr(last, "cv")
    if not hasattr(last, "recommend") and not searching:
        found = repr(last) if isinstance(last, str) or last is None else type(last).__name__
        where = "" if last is estimator else f", the last step of {type(estimator).__name__},"
        raise TypeError(
            f"{found}{where} has no method recommend; give a recommender such as MFRecommender, or "
            f"a pipeline or a search that ends in one."
        )
    check_is_fitted(last)
    return transformers, last


def transform(transformers, X):
    """Return ``X`` after all transformers."""
    for step in transformers:
        X = step.transform(X)
    return X
