"""Checkpoints: files from which a fit that was interrupted or killed can be continued.

Callbacks of scikit-learn 1.9 and later work too, see ``set_callbacks`` of the estimators.
"""

from freqfm.callbacks._checkpoint import Checkpoint, resume

__all__ = ["Checkpoint", "resume"]
