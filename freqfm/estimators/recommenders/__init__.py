"""Recommenders by interactions of users and items."""
