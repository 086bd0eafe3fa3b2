"""Backbones: the computation of vectors of users and items from tables, and its gradients."""

from freqfm.backbones._base import Backbone
from freqfm.backbones._context import Context
from freqfm.backbones._features import Features
from freqfm.backbones._lightgcn import LightGCN
from freqfm.backbones._linear import Linear
from freqfm.backbones._mlp import MLP

__all__ = ["BACKBONES", "MLP", "Backbone", "Context", "Features", "LightGCN", "Linear"]

BACKBONES = {
    "linear": Linear,
    "features": Features,
    "context": Context,
    "lightgcn": LightGCN,
    "mlp": MLP,
}
