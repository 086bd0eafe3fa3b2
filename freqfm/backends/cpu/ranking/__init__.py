"""User and item vectors: ranking losses, least squares, propagation and folding in."""
