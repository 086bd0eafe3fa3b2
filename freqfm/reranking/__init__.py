"""Re-ranking of recommendations: lists that are diverse, or calibrated to what a user had.

The functions take ``(items, scores)`` of ``recommend``, with more items than are needed, and return
fewer in another order. They need no model, and take the results of any other library.
"""

from freqfm.reranking._calibration import calibrate
from freqfm.reranking._diversity import diversify

__all__ = ["calibrate", "diversify"]
