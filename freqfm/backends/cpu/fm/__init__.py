"""Factorization machines: plain, rank-aware and with a tower of dense layers."""
