"""Autoencoders: the layers that have a row per item."""
