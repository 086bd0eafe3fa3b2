"""Splitting, holding out and scoring for recommenders: what scikit-learn's searches need.

Pass splitters and scorers to ``cross_val_score``, ``GridSearchCV`` and similar functions as ``cv=``
and ``scoring=``. ``compare_recommenders`` fits and tests several recommenders.
"""

import importlib
from typing import Any

from freqfm.model_selection._holdout import holdout_by_content, holdout_interactions
from freqfm.model_selection._scorer import make_ranking_scorer
from freqfm.model_selection._splitters import GlobalTimeSplit, LeaveLastOut, WarmStartKFold

# Names of parts that import this one, for which they are found when they are used.
_LAZY = {"compare_recommenders": "freqfm.estimators.comparison"}

__all__ = [
    "GlobalTimeSplit",
    "LeaveLastOut",
    "WarmStartKFold",
    "compare_recommenders",
    "holdout_by_content",
    "holdout_interactions",
    "make_ranking_scorer",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'freqfm.model_selection' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
