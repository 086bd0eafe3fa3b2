"""Field-weighted factorization machines on dense matrices, all pairs of columns at a time."""

import numpy as np

from .deepfm import DeepBatch, DeepFMEpochs
from .pointwise import curvature_of, loss_of


def matrix_of(fields):
    """Return the weights of pairs of fields as a symmetric matrix."""
    matrix = np.empty((fields.n_fields, fields.n_fields))
    upper = np.triu_indices(fields.n_fields)
    matrix[upper] = matrix.T[upper] = 1 + fields.weights.astype(np.float64)
    return matrix


def pair_weights(fields):
    """Return the weight of each pair of columns; a column and itself have none."""
    weights = matrix_of(fields)[np.ix_(fields.fields, fields.fields)]
    np.fill_diagonal(weights, 0)
    return weights


def scores_of(X, weights):
    """Return the scores of rows: equation (4) of Pan et al., 2018."""
    table = weights.factors.astype(np.float64)
    products = pair_weights(weights.dense) * (table @ table.T)
    linear = weights.intercept[0] + X @ weights.linear.astype(np.float64)
    return linear + np.einsum("si,ij,sj->s", X, products, X) / 2


def scores(X, weights):
    """Return the scores of rows of a dense matrix, float32."""
    return scores_of(X.astype(np.float64), weights).astype(np.float32)


class FwFMEpochs(DeepFMEpochs):
    """What ``Backend.fm_trainer`` returns for machines with weights of pairs of fields."""

    def scores(self, rows):
        """Return the scores of rows under every output."""
        return np.stack([scores(rows.toarray(), output) for output in self.problem.weights])

    def _batch(self, *args):
        return FwFMBatch(*args)


class FwFMBatch(DeepBatch):
    """One step of one output and its weights of pairs."""

    def train(self):
        """Move all weights; return the weighted loss of the rows."""
        X, objective, dense = self.X, self.problem.objective, self.weights.dense
        table, found = self.weights.factors.astype(np.float64), scores_of(X, self.weights)
        code = objective.loss_code
        losses, derivatives = loss_of(code, self.formulas, found, self.target)
        derivatives = self.loss_weight * derivatives
        together = X.T @ (derivatives[:, None] * X)
        gradient = (pair_weights(dense) * together) @ table
        by_products = together * (table @ table.T)
        np.fill_diagonal(by_products, 0)
        held = np.eye(dense.n_fields)[dense.fields]
        by_pair = held.T @ by_products @ held
        by_pair[np.diag_indices(dense.n_fields)] /= 2
        # For each row and column the sum of r x v, the column itself included.
        sums = np.einsum("sj,kj,jd->skd", X, matrix_of(dense)[dense.fields] @ held.T, table)
        norms = (sums**2).sum(axis=2)
        penalty = objective.alpha_factors * objective.shares * self.token_weights
        curvature = self.loss_weight * curvature_of(code, self.formulas, found, self.target)
        curvature = curvature * (1 + (np.abs(X) * (1 + norms)).sum(axis=1))
        self._step_intercept(derivatives, curvature)
        gradient += penalty[:, None] * table
        self._step_tokens(derivatives, curvature, [gradient], np.zeros(len(table), dtype=int))
        by_pair = by_pair[np.triu_indices(dense.n_fields)]
        # The pairs of a batch keep the mean of their weights.
        by_pair[by_pair != 0] -= by_pair[by_pair != 0].mean() if by_pair.any() else 0
        self._step_tower(by_pair)
        return float(self.loss_weight @ losses)
