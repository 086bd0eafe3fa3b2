"""Backbones: how the vectors of users and items are computed, and how gradients flow back."""

from freqfm.backbones._base import Backbone
from freqfm.backbones._features import Features
from freqfm.backbones._lightgcn import LightGCN
from freqfm.backbones._linear import Linear
from freqfm.backbones._mlp import MLP

__all__ = ["BACKBONES", "MLP", "Backbone", "Features", "LightGCN", "Linear"]

BACKBONES = {"linear": Linear, "features": Features, "lightgcn": LightGCN, "mlp": MLP}
