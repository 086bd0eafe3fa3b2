"""freqfm: factorization machines and recommenders that use how often each token occurs.

Public names are imported when they are first asked for, so that ``import freqfm`` takes
milliseconds; scikit-learn and numba, which the estimators stand on, take about a second.
"""

import importlib

from freqfm._versions import __version__, show_versions
from freqfm.exceptions import DivergenceError

_LAZY = {
    "FMClassifier": "freqfm.estimators.fm.plain",
    "FMRegressor": "freqfm.estimators.fm.plain",
    "RaFMClassifier": "freqfm.estimators.fm.rafm",
    "RaFMRegressor": "freqfm.estimators.fm.rafm",
    "MFRecommender": "freqfm.estimators.recommenders.mf",
    "FastVAERecommender": "freqfm.estimators.recommenders.vae",
    "InteractionRecommender": "freqfm.estimators.recommenders.interactions",
    "backbones": None,
    "callbacks": None,
    "datasets": None,
    "displays": None,
    "initializers": None,
    "losses": None,
    "metrics": None,
    "model_selection": None,
    "optimizers": None,
    "samplers": None,
    "temperatures": None,
    "recommend": "freqfm.estimators.recommenders.recommend",
}

__all__ = ["DivergenceError", "__version__", "show_versions", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'freqfm' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name] or f"freqfm.{name}")
    return getattr(module, name) if _LAZY[name] else module


def __dir__():
    return sorted(__all__)
