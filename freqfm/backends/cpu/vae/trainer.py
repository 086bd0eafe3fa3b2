"""Training the tables of an autoencoder: threads, working memory, and the kernels' arguments."""

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._numba.jit import specialised
from freqfm.backends.cpu.tables import empty_occurrences
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.training import TableTrainer
from freqfm.backends.cpu.vae.dense import DenseLayers
from freqfm.backends.cpu.vae.layers import (
    N_CHUNKS,
    TILE,
    FullScratch,
    Move,
    Queries,
    Result,
    SampledScratch,
    catch_up_rows,
    draw_for_queries,
    full_softmax,
    sampled_softmax,
    step_histories,
    step_layer,
    sum_rows,
)
from freqfm.formulas.codes import CATCH_UP_NONE
from freqfm.formulas.sampling_laws import draws_from, formulas_of

# To wake a thread takes as long as to move so many weights of a layer.
_WORTH_SEVERAL_THREADS = 100_000


def sum_histories(histories, table, n_threads):
    """Return the sums of histories, see ``Backend.sum_histories``."""
    out = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
    with Team(n_threads) as team:
        team.run(sum_rows, histories, table, out)
    return out


class AutoencoderTrainer(DenseLayers, TableTrainer):
    """Trains an autoencoder, see ``Backend.autoencoder_trainer``."""

    def __init__(self, problem, n_threads):
        DenseLayers.__init__(self, problem)
        TableTrainer.__init__(self, problem.rule, n_threads, problem.formulas)
        self._alone = Team(1, problem.formulas)
        n_positives, width = problem.n_positives, problem.input_width
        self._occurrences = empty_occurrences(n_positives, width, n_threads)
        self._scratch = self._sampled_scratch() if problem.n_draws else self._full_scratch()

    def _full_scratch(self):
        size, n = self.n_threads, self._problem.n_queries
        width = self._problem.item_width
        scores = aligned_zeros((size, n, TILE))
        return FullScratch(
            scores=scores,
            bits=scores.view(np.int32),
            chunk_sums=aligned_zeros((N_CHUNKS, n, 2), np.float64),
            log_sums=aligned_zeros(n),
            scaled=aligned_zeros((n, width)),
            chunk_gradients=aligned_zeros((N_CHUNKS, n, width)),
            chunk_scores=aligned_zeros((N_CHUNKS, n), np.float64),
            units=aligned_zeros((size, TILE if self._problem.n_unit else 0, width)),
            tile_gradients=aligned_zeros((size, TILE, width)),
            cursors=np.zeros((size, n), dtype=np.int64),
        )

    def _sampled_scratch(self):
        size, problem = self.n_threads, self._problem
        n, n_queries = problem.n_draws, problem.n_queries
        n_positives = problem.n_positives * problem.n_samples
        width = problem.item_width
        return SampledScratch(
            occurrences=empty_occurrences(n_positives + n_queries * n, width, size),
            ids=np.zeros((n_queries, n), dtype=np.int32),
            log_q=aligned_zeros((n_queries, n)),
            positive_log_q=aligned_zeros(n_positives),
            vectors=aligned_zeros((size * (n + 1), width)),
            scores=aligned_zeros((size, n)),
            multiples=aligned_zeros((size, n)),
        )

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        self.begin_tables(tables, first_step, corrections)
        self._inputs, self._items, *self._layers = self.tables.values()
        self._draws = None
        if proposal is not None:
            self._draws = draws_from(proposal, self.n_threads)
            self._draw = specialised(draw_for_queries, formulas_of(proposal))

    def _move(self, table, step):
        return Move(table, self.step(step - self._first_step))

    def layer_weights(self):
        """Return the weights of the dense layers."""
        return [layer.weights for layer in self._layers]

    def sum_inputs(self, histories, step):
        """Return the sums of the input vectors of histories, (B, h)."""
        if self.rule.catch_up != CATCH_UP_NONE:
            n, listed = len(histories.items), self._occurrences
            listed.tokens[:n] = histories.items
            self.team.run(catch_up_rows, n, listed, self._move(self._inputs, step))
        table = self._inputs.weights
        out = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
        self.team.run(sum_rows, histories, table, out)
        return out

    def step_inputs(self, histories, gradients, scale, step):
        """Move the input vectors of histories along the gradients by their sums."""
        n, listed = len(histories.items), self._occurrences
        lengths = np.diff(histories.starts)
        listed.tokens[:n] = histories.items
        listed.rows[:n] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        listed.multiples[:n] = histories.weights
        self.team.run(step_histories, n, listed, gradients, self._move(self._inputs, step), scale)

    def step_items(self, queries, histories, totals, scale, step, stream, drawn=None):
        """Move the items by a softmax; return the gradient by the queries, and the losses."""
        batch = Queries(queries, histories, totals, scale, self._problem.n_unit)
        result = Result(np.empty_like(queries), np.empty(len(queries)))
        move = self._move(self._items, step)
        if self._draws is None:
            self.team.run(full_softmax, batch, move, self._scratch, result)
        else:
            if drawn is not None:
                n = len(queries)
                self._scratch.ids[:n], self._scratch.log_q[:n] = drawn
            self.team.run(self._draw, batch, self._draws, stream, self._scratch)
            self.team.run(sampled_softmax, batch, move, self._scratch, result)
        return result

    def step_layers(self, gradients, n_users, step):
        """Move the layers along their gradients."""
        for layer, gradient in zip(self._layers, gradients, strict=True):
            gradient = np.ascontiguousarray(gradient, dtype=np.float32)
            team = self.team if gradient.size >= _WORTH_SEVERAL_THREADS else self._alone
            team.run(step_layer, gradient, self._move(layer, step), n_users)

    def catch_up(self, step):
        """Let all rows catch up on the steps up to ``step``."""
        self.catch_up_tables(step - self._first_step)
