"""Blends of recommenders, by their public interface only."""
