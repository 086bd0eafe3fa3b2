"""Recommenders compared on the same interactions."""
