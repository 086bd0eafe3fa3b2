"""``coef_``, which is not the whole model: what tools are told that take it for one."""

import sys

from freqfm._warnings import warn_user

_ADVICE = (
    "is only the linear part of {name}, whose features also interact. For what each feature adds "
    "to a score use explain, or shap.Explainer(model.{score}, background)"
)


class LinearPart:
    """The attribute ``coef_``, kept where other attributes are.

    shap takes every model that has ``coef_`` and ``intercept_`` for a linear one, with no means to
    tell it otherwise; it is therefore told that there is no ``coef_``. Feature selection of
    scikit-learn ranks by ``coef_``, which is one possible order: it gets a warning.
    """

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, model, owner=None):
        if model is None:
            return self
        if self._name not in vars(model):
            raise AttributeError(f"{type(model).__name__!r} object has no attribute {self._name!r}")
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if caller.startswith("shap."):
            warn_user(f"{self._describe(model)}; shap gets no {self._name}.")
            raise AttributeError(self._describe(model))
        if caller.startswith("sklearn.feature_selection."):
            warn_user(
                f"{self._describe(model)}, and to select features "
                f"sklearn.inspection.permutation_importance."
            )
        return vars(model)[self._name]

    def __set__(self, model, value):
        vars(model)[self._name] = value

    def __delete__(self, model):
        try:
            del vars(model)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def _describe(self, model):
        name = type(model).__name__
        score = "decision_function" if hasattr(model, "decision_function") else "predict"
        return f"{self._name} {_ADVICE.format(name=name, score=score)}"
