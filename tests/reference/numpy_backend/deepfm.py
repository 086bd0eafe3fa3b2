"""Factorization machines with towers of dense layers, on dense matrices."""

from itertools import pairwise

import numpy as np

from freqfm.backends.base import Stream, TrainedTable
from freqfm.formulas import codes
from freqfm.formulas.steps import layer_corrections, step_columns, step_layer

from . import streams
from .fm import Batch, FMEpochs, by_table, interactions
from .pointwise import curvature_of, loss_of
from .steps import Steps


def layers_of(tower, weights=None):
    """Return the weights and biases of every layer, and the weights of their outputs, as views."""
    weights, layers, begin = tower.weights if weights is None else weights, [], 0
    for n_in, n_out in pairwise(tower.widths):
        middle, end = begin + n_in * n_out, begin + (n_in + 1) * n_out
        layers.append((weights[begin:middle].reshape(n_in, n_out), weights[middle:end]))
        begin = end
    return layers, weights[begin:]


def inputs_of(X, table, tower):
    """Return the tower's input: the sums of the fields, or the pooled interactions."""
    if len(tower.fields):
        parts = [(X * (tower.fields == field)) @ table for field in range(tower.n_fields)]
        return np.concatenate(parts, axis=1)
    return ((X @ table) ** 2 - X**2 @ table**2) / 2


def forward(X, weights, masks=None):
    """Return scores, and the values of the input and of every layer, times their masks."""
    tower, table = weights.dense, weights.factors.astype(np.float64)
    masks = masks or [1.0] * len(tower.widths)
    values = [masks[0] * inputs_of(X, table, tower)]
    layers, out = layers_of(tower)
    for (matrix, biases), mask in zip(layers, masks[1:], strict=True):
        values.append(mask * np.maximum(values[-1] @ matrix.astype(np.float64) + biases, 0))
    scores = weights.intercept[0] + X @ weights.linear.astype(np.float64) + values[-1] @ out
    return scores + (interactions(X, table) if tower.pairs else 0), values


def scores(X, weights):
    """Return the scores of rows of a dense matrix, float32."""
    return forward(X.astype(np.float64), weights)[0].astype(np.float32)


def backward(tower, values, masks, derivatives):
    """Return the gradient by the tower, and each row's derivatives of the tower by its input."""
    gradient = np.zeros(len(tower.weights))
    (by_layers, by_out), (layers, out) = layers_of(tower, gradient), layers_of(tower)
    by_out[:] = values[-1].T @ derivatives
    delta = np.broadcast_to(out.astype(np.float64), values[-1].shape)
    for layer in reversed(range(len(layers))):
        delta = masks[layer + 1] * delta * (values[layer + 1] > 0)
        by_layers[layer][0][:] = values[layer].T @ (derivatives[:, None] * delta)
        by_layers[layer][1][:] = derivatives @ delta
        delta = delta @ layers[layer][0].astype(np.float64).T
    return gradient, masks[0] * delta


class DeepFMEpochs(FMEpochs):
    """What ``Backend.fm_trainer`` returns for machines with towers."""

    def __init__(self, problem):
        pairs = zip(problem.states, problem.dense.states, strict=True)
        super().__init__(problem._replace(states=list(pairs)))

    def run_epoch(self, epoch, n_steps, share=1.0):
        """Train every output on every row once; return the sum of the weighted losses."""
        self._epoch, self._first_step = epoch, n_steps
        return super().run_epoch(epoch, n_steps, share)

    def scores(self, rows):
        """Return the scores of rows under every output."""
        return np.stack([scores(rows.toarray(), output) for output in self.problem.weights])

    def _batch(self, problem, rows, number, *output):
        batch = DeepBatch(problem, rows, number, *output)
        start = (number - self._first_step - 1) * problem.batch_size
        batch.draw_masks(Stream(problem.seed, self._epoch, 1), start)
        return batch


class DeepBatch(Batch):
    """One step of one output and its tower."""

    def __init__(self, problem, rows, number, weights, states, target):
        state, self.tower_state = states
        self.training, self.tower = problem.dense, weights.dense
        super().__init__(problem, rows, number, weights, state, target)
        self.number = number

    def draw_masks(self, stream, start):
        """Draw what dropout multiplies the values of every level by."""
        places, rates = start + np.arange(len(self.X)), self.training.dropouts
        self.masks = []
        for level, (width, rate) in enumerate(zip(self.tower.widths, rates, strict=True)):
            numbers = (places * len(rates) + level).astype(np.uint64)
            keys = streams.hashes(streams.key_of(stream) + numbers)
            self.masks.append(streams.dropout_masks(keys, width, rate))

    def train(self):
        """Move all weights; return the weighted loss of the rows."""
        X, objective, tower = self.X, self.problem.objective, self.tower
        table = self.weights.factors.astype(np.float64)
        found, values = forward(X, self.weights, self.masks)
        code = objective.loss_code
        losses, derivatives = loss_of(code, self.formulas, found, self.target)
        derivatives = self.loss_weight * derivatives
        by_tower, inner = backward(tower, values, self.masks, derivatives)
        sums = X @ table
        of_pairs = float(tower.pairs)
        gradient = of_pairs * by_table(X, derivatives, sums, table)
        if len(tower.fields):
            norms = []
            for field in range(tower.n_fields):
                of_field = inner[:, field * table.shape[1] : (field + 1) * table.shape[1]]
                gradient += (X * (tower.fields == field)).T @ (derivatives[:, None] * of_field)
                norms.append(((of_pairs * sums + of_field) ** 2).sum(axis=1))
            norms = np.max(norms, axis=0)
        else:
            along = derivatives[:, None] * inner
            gradient += X.T @ (along * sums) - ((X**2).T @ along) * table
            norms = ((of_pairs * sums + inner * sums) ** 2).sum(axis=1)
        penalty = objective.alpha_factors * objective.shares * self.token_weights
        gradient += penalty[:, None] * table
        curvature = self.loss_weight * curvature_of(code, self.formulas, found, self.target)
        curvature = curvature * (1 + np.abs(X).sum(axis=1)) * (1 + norms)
        self._step_intercept(derivatives, curvature)
        self._step_tokens(derivatives, curvature, [gradient], np.zeros(len(table), dtype=int))
        self._step_tower(by_tower)
        return float(self.loss_weight @ losses)

    def _step_tower(self, gradient):
        training, weights, (first, second) = self.training, self.tower.weights, self.tower_state
        rule, formulas, hyper = training.rule, training.formulas, training.rule.hyper
        corrections = 1.0, 1.0
        if layer_corrections in formulas:
            corrections = formulas[layer_corrections](hyper, self.number)
        elif rule.step_code == codes.STEP_ADAM:
            betas = hyper[codes.BETA_1] ** self.number, hyper[codes.BETA_2] ** self.number
            corrections = 1 - betas[0], np.sqrt(1 - betas[1])
        gradient = gradient + self.weight.sum() * training.penalties * weights
        if rule.average:
            gradient = gradient / (len(self.X) * self.problem.objective.mean_weight)
        table = TrainedTable(weights[:, None], None, first[:, None], second[:, None])
        rate = np.full(len(weights), self.share * hyper[codes.LEARNING_RATE])
        custom = {step_columns: formulas[step_layer]} if step_layer in formulas else {}
        rows = np.arange(len(weights))
        Steps(rule, custom).step(table, rows, gradient[:, None], rate, corrections)
