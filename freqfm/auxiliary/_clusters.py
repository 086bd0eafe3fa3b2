"""Clusters of vectors by k-means."""

import numpy as np
from scipy import sparse

# Iterations, and vectors whose distances are computed at a time.
_ITERATIONS, _ROWS = 20, 1 << 12


def k_means(vectors, n, generator):
    """Return the means of clusters by k-means, and the cluster of each vector."""
    n = max(1, min(n, len(vectors) // 10))
    means = vectors[generator.choice(len(vectors), n, replace=False)]
    for _ in range(_ITERATIONS):
        own = np.concatenate(
            [
                np.argmax(part @ means.T - 0.5 * (means**2).sum(axis=1), axis=1)
                for part in np.array_split(vectors, -(-len(vectors) // _ROWS))
            ]
        )
        members = sparse.csc_array(
            (np.ones(len(own), dtype=np.float32), own, np.arange(len(own) + 1)),
            shape=(n, len(own)),
        )
        sizes = np.bincount(own, minlength=n)[:, np.newaxis]
        # A cluster without vectors stays where it is.
        means = np.where(sizes > 0, members @ vectors / np.maximum(sizes, 1), means)
        means = means.astype(np.float32)
    return means, own
