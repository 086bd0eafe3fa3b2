"""The rank-aware factorization machine in plain Python and float64."""

import numpy as np

from reference.fm import loss_derivative


def pair_scores(X, intercept, coef, tables, levels, up_to=None):
    """Equation (4) pair by pair: dot products at the highest level that both have, up to one."""
    X = np.asarray(X, dtype=np.float64)
    up_to = len(tables) - 1 if up_to is None else up_to
    scores = intercept + X @ np.asarray(coef, dtype=np.float64)
    for i in range(X.shape[1]):
        for j in range(i + 1, X.shape[1]):
            p = min(levels[i], levels[j], up_to)
            scores += (tables[p][i] @ tables[p][j]) * X[:, i] * X[:, j]
    return scores


def prefix_scores(X, intercept, coef, vectors, levels, ranks, up_to=None):
    """DiFacto: each pair by as many coordinates as the shorter vector has."""
    X = np.asarray(X, dtype=np.float64)
    up_to = len(ranks) - 1 if up_to is None else up_to
    scores = intercept + X @ np.asarray(coef, dtype=np.float64)
    for i in range(X.shape[1]):
        for j in range(i + 1, X.shape[1]):
            d = ranks[min(levels[i], levels[j], up_to)]
            scores += (vectors[i, :d] @ vectors[j, :d]) * X[:, i] * X[:, j]
    return scores


def full_tables(model):
    """A model's tables in float64 with a row for every feature, of zeros where it has none."""
    tables = []
    for table in model.factors_:
        full = np.zeros((model.n_features_in_, table.shape[1]))
        held = model.factor_rows_ < len(table)
        full[held] = table[model.factor_rows_[held]]
        tables.append(full)
    return tables


def expectation(loss, score):
    return 1 / (1 + np.exp(-score)) if loss == "log_loss" else score


def gradients(X, y, weight, intercept, coef, tables, levels, loss, form, dependent_weight):
    """Sums over the rows of the gradients by intercept, linear weights and tables.

    Every gradient is a finite difference of the loss that the weight follows, with other scores
    held fixed as targets: the rule is written down, not the derivative.
    """
    m = len(tables)

    def scores(up_to=None):
        return pair_scores(X, intercept, coef, tables, levels, up_to)

    derivatives = [
        weight
        * dependent_weight
        * loss_derivative(loss, scores(p), expectation(loss, scores(p + 1)))
        for p in range(m - 1)
    ]
    derivatives.append(weight * loss_derivative(loss, scores(), y))
    total = sum(derivatives) if form == "reference" else derivatives[-1]

    def derivative(up_to, array, index, h=1e-6):
        array[index] += h
        up = scores(up_to)
        array[index] -= 2 * h
        down = scores(up_to)
        array[index] += h
        return (up - down) / (2 * h)

    by_tables = [np.zeros_like(table) for table in tables]
    for p, table in enumerate(tables):
        for k, f in np.ndindex(table.shape):
            if levels[k] < p:
                continue
            if levels[k] == p or form == "reference":
                by_tables[p][k, f] += derivatives[-1] @ derivative(None, table, (k, f))
            if levels[k] > p:
                by_tables[p][k, f] += derivatives[p] @ derivative(p, table, (k, f))
    return total.sum(), X.T @ total, by_tables
