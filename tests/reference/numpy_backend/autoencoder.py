"""What an autoencoder does per item: sums of histories, and the softmax over items."""

import numpy as np
from scipy.special import logsumexp

from freqfm.backends.base import Trainer
from freqfm.backends.cpu.vae import DenseLayers

from .ranking import summed, unit
from .sampling import distribution_of
from .steps import Steps
from .streams import hashes, key_of


class AutoencoderEpochs(DenseLayers, Trainer):
    """What ``Backend.autoencoder_trainer`` returns."""

    def __init__(self, problem, backend):
        super().__init__(problem)
        self.uniform, self.standard_normal = backend.uniform, backend.standard_normal
        self.problem, self._steps = problem, Steps(problem.rule, problem.formulas)

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        self._tables, self._proposal = list(tables.values()), proposal
        self._first_step, self._corrections = first_step, corrections

    def catch_up(self, step):
        """No row has missed a step."""

    def _move(self, position, gradient, n_seen, share, step):
        corrections = self._corrections[step - self._first_step]
        n_seen = np.broadcast_to(np.asarray(n_seen, dtype=np.float64), len(gradient))
        self._steps.move(self._tables[position], gradient, n_seen, share, corrections)

    def layer_weights(self):
        """Return the weights of the dense layers."""
        return [table.weights for table in self._tables[2:]]

    def sum_inputs(self, histories, step):
        """Return the sums of the input vectors of histories."""
        users = np.repeat(np.arange(len(histories.starts) - 1), np.diff(histories.starts))
        rows = self._tables[0].weights[histories.items].astype(np.float64)
        n_users = len(histories.starts) - 1
        return summed(n_users, users, histories.weights[:, None] * rows).astype(np.float32)

    def step_inputs(self, histories, gradients, scale, step):
        """Move the input vectors of histories along the gradients by their sums."""
        n = len(self._tables[0].weights)
        users = np.repeat(np.arange(len(histories.starts) - 1), np.diff(histories.starts))
        gradient = summed(n, histories.items, histories.weights[:, None] * gradients[users])
        n_seen = np.bincount(histories.items, minlength=n)
        self._move(0, gradient, n_seen, n_seen * scale, step)

    def step_layers(self, gradients, n_users, step):
        """Move the layers along their gradients."""
        for position, gradient in enumerate(gradients, 2):
            self._move(position, gradient, n_users, 1.0, step)

    def step_items(self, queries, histories, totals, scale, step, stream, drawn=None):
        """Move the items by a softmax; return the gradient by the queries, and the losses."""
        n_unit, items = self.problem.n_unit, self._tables[1].weights.astype(np.float64)
        directions = unit(items[:, :n_unit], n_unit > 0)
        used = np.column_stack([directions.vectors, items[:, n_unit:]])
        queries = queries.astype(np.float64)
        rows = np.repeat(np.arange(len(queries)), np.diff(histories.starts))
        x = np.zeros((len(queries), len(items)))
        x[rows, histories.items] = histories.weights
        if self._proposal is None:
            scores = queries @ used.T
            log_sums = logsumexp(scores, axis=1, keepdims=True)
            losses = totals * log_sums[:, 0] - (x * scores).sum(axis=1)
            by_scores = totals[:, None] * np.exp(scores - log_sums) - x
            n_seen, share = len(queries), 1.0
        else:
            losses, by_scores, n_seen = self._sampled(queries, used, x, histories, stream, drawn)
            share = n_seen * scale
        by_scores *= scale
        by_items = by_scores.T @ queries
        by_items[:, :n_unit] = directions.back(by_items[:, :n_unit])
        self._move(1, by_items, n_seen, share, step)
        return (by_scores @ used).astype(np.float32), losses

    def _sampled(self, queries, used, x, histories, stream, drawn):
        """Return losses, derivatives by scores and how often items occur, for drawn negatives.

        For a positive the sum over items is estimated by that of the draws, exp(s_j - log q_j)
        with q relative to uniform draws, and the positive itself, times the number of items over
        that of draws.
        """
        n = self.problem.n_draws
        keys = hashes(key_of(stream) + np.arange(len(queries), dtype=np.uint64))
        losses, by_scores = np.zeros(len(queries)), np.zeros(x.shape)
        n_seen = np.bincount(histories.items, minlength=x.shape[1])
        for b, query in enumerate(queries):
            proposal = distribution_of(self._proposal, query)
            ids, log_q = proposal.draw(keys[b], n) if drawn is None else (drawn[0][b], drawn[1][b])
            n_seen += np.bincount(ids, minlength=x.shape[1])
            logits = used[ids] @ query - log_q
            log_sum = logsumexp(logits)
            items = histories.items[histories.starts[b] : histories.starts[b + 1]]
            weights, scores = x[b, items], used[items] @ query
            positive = scores - (proposal.log_q(items) if drawn is None else proposal.static(items))
            log_totals = np.logaddexp(positive, log_sum)
            shares = np.exp(positive - log_totals)
            losses[b] = weights @ (log_totals + np.log(x.shape[1] / n) - scores)
            by_scores[b, items] = weights * (shares - 1)
            others = (weights * (1 - shares)).sum()
            np.add.at(by_scores[b], ids, others * np.exp(logits - log_sum))
        return losses, by_scores, n_seen
