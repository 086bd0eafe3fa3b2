"""Means over layers of neighbours, by powers of the whole normalised adjacency matrix."""

import numpy as np


class Propagation:
    """What ``Backend.propagation`` returns."""

    def __init__(self, X):
        n_users, n_items = X.shape
        self._adjacency = np.zeros((n_users + n_items, n_users + n_items))
        self._adjacency[:n_users, n_users:] = X.toarray() > 0
        self._adjacency += self._adjacency.T
        degrees = np.maximum(self._adjacency.sum(axis=0), 1)
        self._adjacency /= np.sqrt(degrees[:, None] * degrees)

    def mean(self, users, items, n_layers, wanted=None):
        """Return the mean over layers; all rows are computed."""
        power = np.concatenate([users, items]).astype(np.float64)
        total = power.copy()
        for _ in range(n_layers):
            power = self._adjacency @ power
            total += power
        total = (total / (n_layers + 1)).astype(np.float32)
        return total[: len(users)], total[len(users) :]
