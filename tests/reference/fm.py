"""Factorization machines in plain Python and float64, written from the formulas alone."""

from typing import NamedTuple

import numba
import numpy as np

from freqfm.backends.cpu.fm.prepared import order_of_epoch
from freqfm.formulas.rng import permuted_index


def epoch_order(n, seed, epoch):
    """The order of range(n) that an epoch visits: the package's own, an input like the seed."""
    order = np.zeros(n, dtype=np.int64)
    with np.errstate(over="ignore"):
        _list_order(order, np.uint64(seed), epoch)
    return order


@numba.njit
def _list_order(order, seed, epoch):
    visited = order_of_epoch(Visited(len(order), 0, seed), epoch)
    for i in range(len(order)):
        order[i] = permuted_index(
            np.uint64(i), visited.n_blocks, visited.low_bits, visited.high_bits, visited.key
        )


class Visited(NamedTuple):
    """What of the training rows decides on their order."""

    n_blocks: int
    block_bits: int
    seed: int


def visit_order(n, seed, epoch):
    """The order in which training visits n shuffled rows: large sets in blocks of 16."""
    if n < 2**14:
        return epoch_order(n, seed, epoch)
    blocks = epoch_order(n // 16, seed, epoch)
    places = np.concatenate(
        [(16 * blocks[:, None] + np.arange(16)).ravel(), np.arange(n // 16 * 16, n)]
    )
    return np.random.default_rng(seed).permutation(n)[places]


def fm_scores(X, intercept, coef, factors):
    """Intercept + linear part + the sum over all pairs of columns, pair by pair."""
    X = np.asarray(X, dtype=np.float64)
    scores = intercept + X @ np.asarray(coef, dtype=np.float64)
    V = np.asarray(factors, dtype=np.float64)
    for i in range(X.shape[1]):
        for j in range(i + 1, X.shape[1]):
            scores += (V[i] @ V[j]) * X[:, i] * X[:, j]
    return scores


def loss_value(name, score, target):
    if name == "log_loss":
        return np.logaddexp(0.0, score) - target * score
    return (score - target) ** 2 / 2


def loss_derivative(name, score, target):
    if name == "log_loss":
        return 1 / (1 + np.exp(-score)) - target
    return score - target


class ReferenceFM:
    """A factorization machine trained one batch at a time with whole, dense gradients.

    ``optimizer`` is a dict: name, learning_rate, and whatever else the formula needs.
    """

    def __init__(self, intercept, coef, factors, loss, optimizer, alphas=(0, 0), shares=1.0):
        self.b = np.array([intercept], dtype=np.float64)
        self.w = np.array(coef, dtype=np.float64)
        self.V = np.array(factors, dtype=np.float64)
        self.loss, self.opt = loss, optimizer
        # Penalties on a token's weight and factors, for each of so many shares of its rows.
        (self.alpha_linear, self.alpha_factors), self.shares = alphas, shares
        self.counts = np.zeros(len(self.w))
        # The token of each vector; a field-aware machine has several of a token.
        self.tokens = np.repeat(np.arange(len(self.w)), len(self.V) // len(self.w))
        self.V_counts = np.zeros(len(self.V))
        self.b_count = 0.0
        self.t = 0
        self.state = {}

    def scores(self, X):
        return fm_scores(X, self.b[0], self.w, self.V)

    def by_vectors(self, X, derivative, weight):
        """The gradient by the vectors, the weight of the rows that hold each, norms of rows."""
        sums = X @ self.V
        g_V = np.zeros_like(self.V)
        for s in range(len(X)):
            for k in range(X.shape[1]):
                g_V[k] += derivative[s] * X[s, k] * (sums[s] - X[s, k] * self.V[k])
        return g_V, (X != 0).T @ weight, (sums**2).sum(axis=1)

    def gradients(self, X, y, weight):
        """Sums over the batch, the penalty included, and the weights of the rows of each token."""
        scores = self.scores(X)
        derivative = weight * loss_derivative(self.loss, scores, y)
        g_V, n_V, norms = self.by_vectors(X, derivative, weight)
        n = (X != 0).T @ weight
        shares = np.broadcast_to(self.shares, n.shape)
        g_V += self.alpha_factors * (n_V * shares[self.tokens])[:, None] * self.V
        g_w = X.T @ derivative + self.alpha_linear * n * shares * self.w
        per_row = weight * (1 + np.abs(X).sum(axis=1)) * (1 + norms)
        per_row = per_row * (0.25 if self.loss == "log_loss" else 1.0)
        penalty = max(self.alpha_linear, self.alpha_factors) * n * shares
        self.curvature = np.abs(X).T @ per_row + 2 * penalty
        self.b_curvature = per_row.sum()
        return derivative.sum(), g_w, g_V, n, n_V, weight @ loss_value(self.loss, scores, y)

    def batch(self, X, y, weight, mean_weight):
        self.t += 1
        g_b, g_w, g_V, n, n_V, loss = self.gradients(X, y, weight)
        opt, name = self.opt, self.opt["name"]
        if name != "cf_sgd":
            scale = 1 / (len(y) * mean_weight)
            g_b, g_w, g_V = g_b * scale, g_w * scale, g_V * scale
        lazy = opt.get("lazy", True)
        live, live_V = (np.full(len(held), not lazy) | (held > 0) for held in (n, n_V))
        if name in ("sgd", "fa_sgd", "cf_sgd"):
            rate, b_rate = np.full(len(n), opt["learning_rate"]), opt["learning_rate"]
            if name == "fa_sgd":
                c = np.maximum(opt["counts"], 1)
                m = (opt["counts"] ** 2).sum() / opt["counts"].sum()
                rate = np.minimum(opt["max_step"], opt["learning_rate"] * np.sqrt(m / c))
            rate_V = rate[self.tokens]
            if name == "cf_sgd":
                one = opt["count"] == "batch"
                self.counts[live] += 1 if one else n[live]
                self.V_counts[live_V] += 1 if one else n_V[live_V]
                self.b_count += 1 if one else weight.sum()
                with np.errstate(divide="ignore"):
                    rate = self._counted(self.counts, self.curvature)
                    rate_V = self._counted(self.V_counts, self.curvature[self.tokens])
                    b_rate = self._counted(self.b_count, self.b_curvature)
                    b_rate = min(b_rate, 2 / self.b_curvature)
            self.b -= b_rate * g_b
            self.w[live] -= (rate * g_w)[live]
            self.V[live_V] -= (rate_V[:, None] * g_V)[live_V]
            return loss
        for key, table, gradient, rows in (
            ("b", self.b, np.array([g_b]), slice(None)),
            ("w", self.w, g_w, live),
            ("V", self.V, g_V, live_V),
        ):
            self._adaptive(key, table, gradient, rows)
        return loss

    def _counted(self, count, curvature):
        opt = self.opt
        rate = np.minimum(opt["max_step"], opt["learning_rate"] / count ** opt["exponent"])
        return np.minimum(rate, opt["curvature_cap"] / curvature)

    def _adaptive(self, key, table, gradient, rows):
        opt, lr, eps = self.opt, self.opt["learning_rate"], self.opt.get("epsilon")
        g = gradient[rows]
        if opt["name"] == "adagrad" or (key != "V" and opt["name"] == "rowwise_adagrad"):
            total = self.state.setdefault(key, np.zeros_like(table))
            total[rows] += g**2
            table[rows] -= lr * g / (np.sqrt(total[rows]) + eps)
        elif opt["name"] == "rowwise_adagrad":
            total = self.state.setdefault(key, np.zeros(len(table)))
            total[rows] += (g**2).mean(axis=1)
            table[rows] -= lr * g / (np.sqrt(total[rows]) + eps)[:, None]
        else:
            m, v = self.state.setdefault(key, (np.zeros_like(table), np.zeros_like(table)))
            b1, b2 = opt["beta_1"], opt["beta_2"]
            m[rows] = b1 * m[rows] + (1 - b1) * g
            v[rows] = b2 * v[rows] + (1 - b2) * g**2
            denominator = np.sqrt(v[rows]) / np.sqrt(1 - b2**self.t) + eps
            table[rows] -= lr / (1 - b1**self.t) * m[rows] / denominator

    def epoch(self, X, y, weight, batch_size, order):
        # As few batches as possible, of equal size but for the last.
        n_batches = int(np.ceil(len(y) / batch_size))
        even = int(np.ceil(len(y) / n_batches))
        loss = 0.0
        for start in range(0, len(y), even):
            rows = order[start : start + even]
            loss += self.batch(X[rows], y[rows], weight[rows], weight.mean())
        return loss / weight.sum()
