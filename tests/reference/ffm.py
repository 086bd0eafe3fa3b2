"""Field-aware factorization machines in plain Python and float64, from Juan et al. (2016).

The vectors of a feature stand one after the other in a table, a row for each feature and field.
"""

import numpy as np

from reference.fm import ReferenceFM


def pairs_of(X):
    """Yield every pair of different columns that a row of a dense matrix holds, in both orders."""
    for s, row in enumerate(X):
        held = np.flatnonzero(row)
        for i in held:
            for j in held:
                if i != j:
                    yield s, i, j


def ffm_scores(X, intercept, coef, vectors, fields):
    """Intercept + linear part + equation (4), pair by pair; vectors of shape (n, n_fields, d)."""
    X, V = np.asarray(X, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    scores = intercept + X @ np.asarray(coef, dtype=np.float64)
    for s, i, j in pairs_of(X):
        scores[s] += (V[i, fields[j]] @ V[j, fields[i]]) * X[s, i] * X[s, j] / 2
    return scores


class ReferenceFFM(ReferenceFM):
    """A field-aware machine; ``factors`` have the shape (n_features, n_fields, d)."""

    def __init__(self, intercept, coef, factors, *args, fields):
        self.fields, self.shape = np.asarray(fields), factors.shape
        super().__init__(intercept, coef, np.reshape(factors, (-1, self.shape[-1])), *args)

    def scores(self, X):
        return ffm_scores(X, self.b[0], self.w, self.V.reshape(self.shape), self.fields)

    def by_vectors(self, X, derivative, weight):
        V, g_V = self.V.reshape(self.shape), np.zeros(self.shape)
        # By feature and field: the weight of the rows that hold both, of two features.
        n_V, held = np.zeros(self.shape[:2]), np.zeros((len(X), *self.shape[:2]), dtype=bool)
        partners = np.zeros((len(X), self.shape[1], *self.shape[1:]))
        for s, i, j in pairs_of(X):
            f, g = self.fields[i], self.fields[j]
            g_V[i, g] += derivative[s] * X[s, i] * X[s, j] * V[j, f]
            held[s, i, g] = True
        n_V = np.tensordot(weight, held.astype(float), axes=1)
        # For each row and field: the sums of x v over the columns of every field. A field's sum for
        # itself is that of all its columns, if they are several.
        for s, row in enumerate(X):
            for j in np.flatnonzero(row):
                partners[s, :, self.fields[j]] += row[j] * V[j]
            for f in range(self.shape[1]):
                if (self.fields[np.flatnonzero(row)] == f).sum() == 1:
                    partners[s, f, f] = 0
            absent = np.setdiff1d(range(self.shape[1]), self.fields[np.flatnonzero(row)])
            partners[s, absent] = 0
        norms = (partners**2).sum(axis=(2, 3)).max(axis=1)
        return g_V.reshape(self.V.shape), n_V.ravel(), norms
