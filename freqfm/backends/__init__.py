"""Layer 1: loops over arrays."""
