"""Factorization machines, plain and rank-aware: whole tables, and batches as dense matrices."""

import itertools

import numpy as np

from freqfm._input.rows import take_rows
from freqfm.backends.base import RankedTables, TrainedTable, Trainer
from freqfm.formulas import codes
from freqfm.formulas.steps import adam_corrections

from .pointwise import curvature_of, expectation, loss_of
from .steps import Steps
from .streams import shuffled, stream


def interactions(X, table):
    """Return the sum of <v_i, v_k> x_i x_k over all pairs of a row's tokens."""
    return (((X @ table) ** 2).sum(axis=1) - (X**2 @ table**2).sum(axis=1)) / 2


def by_table(X, derivatives, sums, table):
    """Return the gradient by a table: the sum of derivative x_k (sum of x v - x_k v_k)."""
    by_squares = (X**2).T @ derivatives
    return X.T @ (derivatives[:, None] * sums) - by_squares[:, None] * table


def levels_of(factors):
    """Return every level's table with a row for each token, each token's level, and ``prefix``.

    A plain machine has one level. Tokens have rows of zeros in tables above their level.
    """
    if not isinstance(factors, RankedTables):
        return [factors.astype(np.float64)], np.zeros(len(factors), dtype=int), True
    tables = []
    for level in range(len(factors.widths)):
        held = factors.levels >= level
        full = np.zeros((len(held), factors.widths[level]))
        full[held] = _part(factors.weights, factors, level)[factors.rows[held]]
        tables.append(full)
    return tables, factors.levels, factors.prefix


def _part(array, factors, level):
    """Return the table of a level, as a view of the weights."""
    start, n, width = factors.starts[level], factors.n_rows[level], factors.widths[level]
    return array[start : start + n * width].reshape(n, width)


def level_scores(X, weights):
    """Return B(1), ..., B(m) of the recursion of the rank-aware machine; the last is the score.

    B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1) with A(p, q) the interactions of the tokens of
    level q by their vectors of level p (Chen et al., 2019, theorem 3). With shared prefixes
    nothing is subtracted.
    """
    tables, levels, prefix = levels_of(weights.factors)
    score = weights.intercept[0] + X @ weights.linear.astype(np.float64)
    found = []
    for level, table in enumerate(tables):
        score = score + interactions(X, table)
        found.append(score)
        if not prefix:
            score = score - interactions(X * (levels > level), table)
    return found


def scores(X, weights):
    """Return the scores of rows of a dense matrix, float32."""
    return level_scores(X.astype(np.float64), weights)[-1].astype(np.float32)


class FMEpochs(Trainer):
    """What ``Backend.fm_trainer`` returns."""

    def __init__(self, problem):
        self.problem = problem
        n_rows = problem.X.shape[0]
        self._rows = np.arange(n_rows) if problem.rows is None else problem.rows

    def _order(self, epoch):
        """Return the rows in the order of an epoch: shuffled blocks, and what is left over."""
        n_blocks, size = self.problem.n_blocks, 1 << self.problem.block_bits
        blocks = shuffled(n_blocks, stream(self.problem.seed, epoch))
        moved = (blocks[:, None] * size + np.arange(size)).ravel()
        return self._rows[np.concatenate([moved, np.arange(len(moved), len(self._rows))])]

    def run_epoch(self, epoch, n_steps, share=1.0):
        """Train every output on every row once; return the sum of the weighted losses."""
        problem, order, loss = self.problem, self._order(epoch), 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for output in zip(problem.weights, problem.states, problem.target, strict=True):
                for b, start in enumerate(range(0, len(order), problem.batch_size)):
                    rows = order[start : start + problem.batch_size]
                    batch = self._batch(problem, rows, n_steps + b + 1, *output)
                    batch.share = share
                    loss += batch.train()
        return loss

    def scores(self, rows):
        """Return the scores of rows under every output."""
        return np.stack([scores(rows.toarray(), output) for output in self.problem.weights])

    def _batch(self, *args):
        return Batch(*args)


class Batch:
    """One step of one output."""

    share = 1.0  #: the factor of all learning rates

    def __init__(self, problem, rows, number, weights, state, target):
        self.problem, self.weights, self.state = problem, weights, state
        X = take_rows(problem.X, rows)
        self.X, self.weight = X.toarray().astype(np.float64), problem.weight[rows]
        self.target = target[rows]
        self.loss_weight = problem.objective.loss_scale * self.weight
        held = np.zeros(self.X.shape)
        held[np.repeat(np.arange(len(rows)), np.diff(X.indptr)), X.indices] = 1
        self.token_weights = held.T @ self.weight
        self.formulas = problem.formulas
        self.steps = Steps(problem.rule, self.formulas)
        rule, hyper = problem.rule, problem.rule.hyper
        self.scale = 1 / (len(rows) * problem.objective.mean_weight) if rule.average else 1.0
        self.corrections = 1.0, 1.0
        if adam_corrections in self.formulas:
            self.corrections = self.formulas[adam_corrections](hyper, number)
        elif rule.step_code == codes.STEP_ADAM:
            betas = hyper[codes.BETA_1] ** number, hyper[codes.BETA_2] ** number
            self.corrections = 1 - betas[0], np.sqrt(1 - betas[1])

    def train(self):
        """Move all weights; return the weighted loss of the rows."""
        X, objective = self.X, self.problem.objective
        found = level_scores(X, self.weights)
        code = objective.loss_code
        losses, derivatives = loss_of(code, self.formulas, found[-1], self.target)
        derivatives = self.loss_weight * derivatives
        dependent = self._differentiate_levels(found)
        tables, levels, prefix = levels_of(self.weights.factors)
        ranked = self.problem.ranked
        follow_loss = not prefix and ranked is not None and ranked.follow_loss
        of_linear = derivatives + sum(dependent) if follow_loss else derivatives
        gradients = [
            self._by_level(level, tables, levels, prefix, derivatives, dependent, follow_loss)
            for level in range(len(tables))
        ]
        # Bounds of the curvature, see CFSGD; all levels count.
        norms = sum(((X @ table) ** 2).sum(axis=1) for table in tables)
        curvature = self.loss_weight * curvature_of(code, self.formulas, found[-1], self.target)
        curvature = curvature * (1 + np.abs(X).sum(axis=1)) * (1 + norms)
        self._step_intercept(of_linear, curvature)
        self._step_tokens(of_linear, curvature, gradients, levels)
        return float(self.loss_weight @ losses)

    def _differentiate_levels(self, found):
        """Return the derivatives by B(p) of the losses that make it follow B(p + 1)."""
        if self.problem.ranked is None:
            return []
        code, weight = self.problem.objective.loss_code, self.problem.ranked.dependent_weight
        derivatives = []
        for lower, upper in itertools.pairwise(found):
            target = expectation(code, self.formulas, upper)
            derivatives.append(loss_of(code, self.formulas, lower, target)[1])
        return [weight * self.loss_weight * derivative for derivative in derivatives]

    def _by_level(self, level, tables, levels, prefix, derivatives, dependent, follow_loss):
        """Return the gradient by a level's table, the penalty included, not yet scaled."""
        X, objective, table = self.X, self.problem.objective, tables[level]
        sums = X @ table
        gradient = by_table(X, derivatives, sums, table)
        if not prefix and level < len(tables) - 1:
            free = levels == level
            of_dependent = by_table(X, dependent[level], sums, table)
            if follow_loss:
                of_free = (X * free) @ table
                of_dependent += X.T @ (derivatives[:, None] * of_free)
            gradient = np.where(free[:, None], gradient, of_dependent)
        penalty = objective.alpha_factors * objective.shares * self.token_weights
        return gradient + penalty[:, None] * table

    def _step_intercept(self, derivatives, curvature):
        """Every row holds the intercept, which has no counts given."""
        objective, rule, state = self.problem.objective, self.problem.rule, self.state.intercept
        weight = self.weight.sum()
        if not (objective.fit_intercept and weight > 0):
            return
        if rule.rate_code == codes.RATE_GIVEN:
            rule = rule._replace(rate_code=codes.RATE_CONSTANT)
        steps = Steps(rule, self.formulas)
        steps.count(state[2:], [0], weight)
        rate = steps.rates(state[2:], [0], curvature.sum())
        if rule.rate_code == codes.RATE_COUNTED:
            rate = np.minimum(rate, 2 / curvature.sum())
        table = TrainedTable(
            self.weights.intercept[:, None], None, state[0:1, None], state[1:2, None]
        )
        gradient = self.scale * derivatives.sum().reshape(1, 1)
        steps.step(table, [0], gradient, self.share * rate, self.corrections)

    def _step_tokens(self, derivatives, curvature, gradients, levels):
        """Move linear weights and vectors of tokens, all at the token's rate."""
        objective, state, weights = self.problem.objective, self.state, self.weights
        lazy, scale = self.problem.rule.lazy, self.scale
        live = self.token_weights > 0 if lazy else np.ones(len(levels), dtype=bool)
        tokens = np.flatnonzero(live)
        self.steps.count(state.per_row, tokens, self.token_weights[tokens])
        rate, curvature = np.zeros(len(levels)), np.abs(self.X).T @ curvature
        penalty = max(objective.alpha_linear, objective.alpha_factors) * objective.shares
        curvature += 2 * penalty * self.token_weights
        rate[tokens] = self.share * self.steps.rates(state.per_row, tokens, curvature[tokens])
        if objective.fit_linear:
            penalty = objective.alpha_linear * objective.shares * self.token_weights
            gradient = self.X.T @ derivatives + penalty * weights.linear
            first, second = state.linear_first[:, None], state.linear_second[:, None]
            table = TrainedTable(weights.linear[:, None], None, first, second)
            gradient = scale * gradient[tokens, None]
            self.steps.step(table, tokens, gradient, rate[tokens], self.corrections)
        for level, gradient in enumerate(gradients):
            held = np.flatnonzero(live & (levels >= level))
            table, rows = self._table(level, held)
            self.steps.step(table, rows, scale * gradient[held], rate[held], self.corrections)

    def _table(self, level, tokens):
        """Return the TrainedTable of a level, and the rows of tokens there."""
        factors, state = self.weights.factors, self.state
        if self.problem.ranked is None:
            return TrainedTable(factors, None, state.factors_first, state.factors_second), tokens
        first, first_width, second, second_width = self.problem.ranked.state_layout[level]
        n = factors.n_rows[level]
        table = TrainedTable(
            _part(factors.weights, factors, level),
            None,
            state.factors_first[first : first + n * first_width].reshape(n, first_width),
            state.factors_second[second : second + n * second_width].reshape(n, second_width),
        )
        return table, factors.rows[tokens]
