"""Factorization machines: plain, rank-aware, and with layers."""
