"""Recommenders of users and items with any ids, around those of matrices."""
