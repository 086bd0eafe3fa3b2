"""Word vectors by negative sampling, Mikolov et al. (2013): pair by pair, in float64."""

import numpy as np

from . import streams
from .steps import Steps, TableEpochs


def pairs_of(problem, tokens, epoch):
    """Return, for each position, its inputs, its outputs and their targets; None without inputs.

    Outputs are the position's token, of target 1, and noise, of target 0, without the token itself.
    """
    key = streams.stream(problem.seed, epoch)
    found = []
    for p, token in enumerate(tokens):
        if token < 0:
            found.append(None)
            continue
        reach = problem.window
        if problem.shrink_windows:
            reach = 1 + int(streams.bits(key, [p])[0] >> np.uint64(33)) % reach
        inputs = []
        for side in (range(p - 1, p - reach - 1, -1), range(p + 1, p + reach + 1)):
            for q in side:
                if tokens[q] < 0:
                    break
                inputs.append(tokens[q])
        if not inputs:
            found.append(None)
            continue
        with np.errstate(over="ignore"):
            of_position = streams.hashes(key + np.uint64(p))[()]
        bits = streams.bits(of_position, np.arange(1, 1 + problem.n_negatives))
        slots = [int(b >> np.uint64(32)) * len(problem.aliases) >> 32 for b in bits]
        kept = ((bits >> np.uint64(8)) & np.uint64(0xFFFFFF)) * 2.0**-24 < problem.thresholds[slots]
        noise = np.where(kept, slots, problem.aliases[slots])
        found.append((np.array(inputs), token, noise))
    return found


def gradients(problem, positions, vectors, output_vectors):
    """Return the loss of some positions, its gradients, and how often each row occurs in them.

    Losses and gradients are sums over samples, whose number is the next value. The last one bounds
    the curvature by each row, for vectors of length one: l'' (|u| + |v|) |v| = 1/2 for each score,
    or its share in the mean.
    """
    bounds = [np.zeros(len(vectors)), np.zeros(len(vectors))]
    by = [np.zeros(table.shape) for table in (vectors, output_vectors)]
    n_seen = [np.zeros(len(vectors)), np.zeros(len(vectors))]
    loss, n_samples = 0.0, 0
    for position in positions:
        if position is None:
            continue
        inputs, token, noise = position
        np.add.at(n_seen[0], inputs, 1)
        np.add.at(n_seen[1], [token, *noise], 1)
        np.add.at(bounds[0], inputs, (1 + len(noise)) / 2 / (len(inputs) if problem.cbow else 1))
        np.add.at(bounds[1], [token, *noise], 1 / 2 * (1 if problem.cbow else len(inputs)))
        hidden = vectors[inputs].astype(np.float64)
        if problem.cbow:
            hidden = hidden.mean(axis=0, keepdims=True)
        n_samples += len(hidden)
        by_hidden = np.zeros(hidden.shape)
        for output, target in [(token, 1), *((k, 0) for k in noise if k != token)]:
            scores = hidden @ output_vectors[output].astype(np.float64)
            loss += (np.logaddexp(0, scores) - target * scores).sum()
            derivatives = 1 / (1 + np.exp(-scores)) - target
            by_hidden += derivatives[:, None] * output_vectors[output]
            by[1][output] += derivatives @ hidden
        if problem.cbow:
            by_hidden = np.repeat(by_hidden / len(inputs), len(inputs), axis=0)
        np.add.at(by[0], inputs, by_hidden)
    return loss, by, n_seen, n_samples, bounds


class Word2VecEpochs(TableEpochs):
    """What ``Backend.word2vec_trainer`` returns."""

    def __init__(self, problem):
        super().__init__(problem.rule, problem.formulas)
        self._problem, self._steps = problem, Steps(problem.rule, problem.formulas)

    def train(self, epoch, tokens, learns=True):
        """Read the tokens of an epoch; return the loss and the number of samples."""
        problem = self._problem
        tables = [self._tables["vectors"], self._tables["output_vectors"]]
        pairs = pairs_of(problem, tokens, epoch)
        total, n_total = 0.0, 0
        for batch, begin in enumerate(range(0, len(tokens), problem.batch_size), 1):
            positions = pairs[begin : begin + problem.batch_size]
            weights = [table.weights for table in tables]
            loss, by, n_seen, n_samples, bounds = gradients(problem, positions, *weights)
            total, n_total = total + loss, n_total + n_samples
            if not learns:
                continue
            scale = 1 / max(n_samples, 1) if problem.rule.average else 1.0
            for table, gradient, *of_table in zip(tables, by, n_seen, bounds, strict=True):
                seen, bound = of_table
                corrections = self._corrections[batch]
                self._steps.move(table, scale * gradient, seen, 1.0, corrections, bound)
        return total, n_total

    def catch_up_tables(self, n):
        """Do nothing: all rows are moved in every step."""
