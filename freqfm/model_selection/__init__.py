"""Splitting, holding out and scoring for recommenders: what scikit-learn's searches need.

Pass splitters and scorers to ``cross_val_score``, ``GridSearchCV`` and similar functions as ``cv=``
and ``scoring=``.
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
