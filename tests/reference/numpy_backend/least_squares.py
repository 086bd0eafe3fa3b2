"""Regularised least squares of rows, one after the other, with dense matrices in float64."""

from itertools import pairwise

import numpy as np


def least_squares(problem, histories, rows):
    """Minimise the squared errors of rows in place; return their losses."""
    factors = problem.factors.astype(np.float64)
    losses = np.zeros(len(rows))
    with np.errstate(all="ignore"):
        for r, (begin, end) in enumerate(pairwise(histories.starts)):
            weights = np.zeros(len(factors))
            np.add.at(weights, histories.items[begin:end], histories.weights[begin:end])
            matrix = (factors.T * (abs(weights) + problem.unobserved_weight)) @ factors
            matrix += problem.penalties[r] * np.eye(rows.shape[1])
            # Negative weights are those of pairs whose preference is zero.
            weights = np.maximum(weights, 0)
            target = weights @ factors
            x = solve(matrix, target, rows[r], problem.n_steps) if end > begin else 0 * target
            losses[r] = x @ matrix @ x - 2 * target @ x + weights.sum()
            rows[r] = x
    return losses


def solve(matrix, target, start, n_steps):
    """Return the solution, or what conjugate gradients reach from ``start`` in some steps."""
    if not n_steps:
        return np.linalg.solve(matrix, target)
    x = start.astype(np.float64)
    residual = direction = target - matrix @ x
    for _ in range(n_steps):
        if residual @ residual < 1e-30:
            break
        product = matrix @ direction
        length = (residual @ residual) / (direction @ product)
        x, before = x + length * direction, residual
        residual = before - length * product
        direction = residual + (residual @ residual) / (before @ before) * direction
    return x
