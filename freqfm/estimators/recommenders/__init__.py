"""Recommenders for interactions of users and items."""
