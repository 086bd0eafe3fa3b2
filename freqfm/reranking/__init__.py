"""Re-ranking of recommendations: diverse or calibrated lists, limits for groups, and boosts.

The functions take ``(items, scores)`` of ``recommend``, with more items than are needed, and return
fewer in another order. They need no model, and take the results of any other library.
"""

from freqfm.reranking._lists import boost, limit_per_group
from freqfm.reranking._objectives import calibrate, diversify

__all__ = ["boost", "calibrate", "diversify", "limit_per_group"]
