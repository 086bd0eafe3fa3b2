"""Splitting, holding out and scoring for recommenders: what scikit-learn's searches need.

Splitters and scorers go into ``cross_val_score``, ``GridSearchCV`` and their like as ``cv=`` and
``scoring=``.
"""

from freqfm.model_selection._holdout import holdout_by_content, holdout_interactions
from freqfm.model_selection._scorer import make_ranking_scorer
from freqfm.model_selection._splitters import GlobalTimeSplit, LeaveLastOut, WarmStartKFold

__all__ = [
    "GlobalTimeSplit",
    "LeaveLastOut",
    "WarmStartKFold",
    "holdout_by_content",
    "holdout_interactions",
    "make_ranking_scorer",
]
