"""Backbones: how the vectors of users and items are computed, and how gradients flow back."""

from freqfm.backbones._base import Backbone
from freqfm.backbones._lightgcn import LightGCN
from freqfm.backbones._linear import Linear
from freqfm.backbones._mlp import MLP

__all__ = ["BACKBONES", "MLP", "Backbone", "LightGCN", "Linear"]

BACKBONES = {"linear": Linear, "lightgcn": LightGCN, "mlp": MLP}
