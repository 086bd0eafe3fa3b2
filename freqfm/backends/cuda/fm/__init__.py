"""Factorization machines: plain and rank-aware."""
