"""Backbones: where the vectors of users and items come from, and where their gradients go."""

from freqfm.backbones._base import Backbone
from freqfm.backbones._linear import Linear

__all__ = ["BACKBONES", "Backbone", "Linear"]

BACKBONES = {"linear": Linear}
