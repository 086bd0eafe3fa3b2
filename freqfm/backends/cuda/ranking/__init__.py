"""User and item vectors: ranking losses, and vectors of users by their histories."""
