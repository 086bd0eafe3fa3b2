"""Kernels for the CPU, run by a team of threads."""
