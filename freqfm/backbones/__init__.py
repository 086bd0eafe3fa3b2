"""Backbones: the computation of vectors of users and items from tables, and its gradients."""

from freqfm.backbones._base import Backbone, Linear
from freqfm.backbones._described import Context, Features
from freqfm.backbones._networks import MLP, LightGCN

__all__ = ["BACKBONES", "MLP", "Backbone", "Context", "Features", "LightGCN", "Linear"]

BACKBONES = {
    "linear": Linear,
    "features": Features,
    "context": Context,
    "lightgcn": LightGCN,
    "mlp": MLP,
}
