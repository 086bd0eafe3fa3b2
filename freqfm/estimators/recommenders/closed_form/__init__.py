"""Recommenders that are computed from the interactions in one step, without training."""
