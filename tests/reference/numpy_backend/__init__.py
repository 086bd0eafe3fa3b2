"""A backend in plain NumPy: the reference that other backends are compared with.

It is written from the formulas, in float64, with whole tables at a time, for data of a few hundred
rows. Where the CPU backend lets rows make up missed steps later, this one moves every row in every
step. Random numbers are those of ``freqfm.formulas.rng``, so rows are visited, weights dropped and
negatives drawn as by any other backend.
"""

import numpy as np
from scipy import sparse

from freqfm.backends.base import Backend, Exclusions, FieldWeights, Tower

from ..reranking import marginal_relevance
from . import deepfm, fwfm, streams
from .autoencoder import AutoencoderEpochs
from .fm import FMEpochs, scores
from .least_squares import least_squares
from .pointwise import expectation, loss_of
from .propagation import Propagation
from .ranking import RankingEpochs, fold_in
from .sampling import alias_tables, draw_for_queries
from .steps import TableEpochs
from .word2vec import Word2VecEpochs

__all__ = ["NumpyBackend"]


def dense_rows(rows, n_columns):
    """Return rows of a sparse matrix, Histories or Candidates, as a float64 array."""
    indptr, indices = rows[:2]
    values = rows.weights if hasattr(rows, "weights") else np.ones(len(indices))
    # Some of the rows of a matrix begin later in its arrays.
    part, shape = slice(indptr[0], indptr[-1]), (len(indptr) - 1, n_columns)
    matrix = sparse.csr_array((values[part], indices[part], indptr - indptr[0]), shape=shape)
    return matrix.toarray().astype(np.float64)


class NumpyBackend(Backend):
    """See :class:`freqfm.backends.base.Backend`; numbers of threads make no difference."""

    name = "numpy"

    # Factorization machines.

    def fm_trainer(self, problem, n_threads):
        """Return a trainer of whole epochs."""
        of_dense = {Tower: deepfm.DeepFMEpochs, FieldWeights: fwfm.FwFMEpochs}
        return of_dense.get(type(problem.weights[0].dense), FMEpochs)(problem)

    def fm_scores(self, X, weights, n_threads):
        """Return the scores of rows under every output."""
        of_dense = {Tower: deepfm.scores, FieldWeights: fwfm.scores}
        of_output = of_dense.get(type(weights[0].dense), scores)
        return np.stack([of_output(X.toarray(), output) for output in weights])

    def expected_targets(self, loss_code, formulas, scores):
        """Return the targets that scores stand for."""
        return expectation(loss_code, formulas, scores).astype(np.float32)

    def loss_sums(self, loss_code, formulas):
        """Return what sums the losses of rows and their derivatives."""

        def sums(rows):
            losses, derivatives = loss_of(loss_code, formulas, rows.scores, rows.targets)
            return rows.weights @ losses, rows.weights @ derivatives

        return sums

    # Recommenders.

    def ranking_trainer(self, problem, n_threads):
        """Return a trainer of user and item vectors."""
        return RankingEpochs(problem)

    def table_trainer(self, rule, n_threads, formulas=None):
        """Return what moves tables along gradients that are given."""
        return TableEpochs(rule, formulas)

    def propagation(self, X, n_threads):
        """Return what averages vectors over layers of neighbours."""
        return Propagation(X)

    def fold_in(self, problem, histories, n_threads, formulas=None, disliked=None):
        """Return unit vectors of users by their histories, items held fixed."""
        return fold_in(problem, formulas or {}, histories, disliked)

    def least_squares(self, problem, histories, rows, n_threads):
        """Minimise the squared errors of rows of a table."""
        return least_squares(problem, histories, rows)

    # Autoencoders, samplers and metrics.

    def autoencoder_trainer(self, problem, n_threads):
        """Return what an autoencoder does per item."""
        return AutoencoderEpochs(problem, self)

    def word2vec_trainer(self, problem, n_threads):
        """Return a trainer of word vectors."""
        return Word2VecEpochs(problem)

    def sum_histories(self, histories, table, n_threads):
        """Return the sums of weights times rows of a table."""
        n_users = len(histories.starts) - 1
        sums = np.zeros((n_users, table.shape[1]))
        users = np.repeat(np.arange(n_users), np.diff(histories.starts))
        np.add.at(sums, users, histories.weights[:, None] * table[histories.items])
        return sums.astype(np.float32)

    def draw(self, proposal, queries, key, n):
        """Return items for each query, and the logarithms of how likely they were."""
        return draw_for_queries(proposal, queries, key, n)

    def draw_lists(self, proposal, stream, first, shape, n_threads=1):
        """Return lists of items from a distribution that needs no query."""
        with np.errstate(over="ignore"):
            key = streams.key_of(stream) + np.uint64(first)
        return draw_for_queries(proposal, np.zeros((shape[0], 0)), key, shape[1])[0]

    def alias_tables(self, starts, weights):
        """Return alias tables of cells of positions."""
        return alias_tables(starts, weights)

    def top_k(self, queries, items, k, excluded, unit_columns, n_threads):
        """Return the items with the largest dot products for each query, and these."""
        items = items.astype(np.float64)
        lengths = np.linalg.norm(items[:, :unit_columns], axis=1, keepdims=True)
        items[:, :unit_columns] /= np.where(lengths > 0, lengths, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            found = (queries @ items.T).astype(np.float32)
        rows = np.repeat(np.arange(len(queries)), np.diff(excluded.indptr))
        found[rows, excluded.indices[: len(rows)]] = -np.inf
        found[:, excluded.for_all] = -np.inf
        found[np.isnan(found)] = -np.inf
        order = np.argsort(-found, axis=1, kind="stable")[:, :k].astype(np.int32)
        best = np.take_along_axis(found, order, axis=1)
        order[best == -np.inf] = -1
        return order, best

    def top_k_of_candidates(self, queries, items, k, candidates, excluded, unit_columns, n_threads):
        """Return the best of each query's candidates: all other items are excluded."""
        hidden = np.ones((len(queries), len(items)), dtype=bool)
        rows = np.repeat(np.arange(len(queries)), np.diff(candidates.indptr))
        hidden[rows, candidates.indices] = False
        rows = np.repeat(np.arange(len(queries)), np.diff(excluded.indptr))
        hidden[rows, excluded.indices] = True
        indptr = np.append(0, np.cumsum(hidden.sum(axis=1)))
        excluded = Exclusions(indptr, np.nonzero(hidden)[1], excluded.for_all)
        return self.top_k(queries, items, k, excluded, unit_columns, n_threads)

    def sparse_top_k(self, queries, columns, k, lists, n_threads):
        """Return the items with the largest positive dot products for sparse queries."""
        n_queries, n_items = len(queries.starts) - 1, len(lists.allowed)
        dense = dense_rows(queries, len(columns.starts) - 1) @ dense_rows(columns, n_items)
        hidden = np.ones((n_queries, n_items), dtype=bool) & ~lists.allowed
        hidden |= dense_rows(lists.excluded, n_items) != 0
        if lists.has_candidates:
            hidden |= dense_rows(lists.candidates, n_items) == 0
        found = np.where(hidden | (dense <= 0), -np.inf, dense).astype(np.float32)
        order = np.argsort(-found, axis=1, kind="stable")[:, :k].astype(np.int32)
        best = np.take_along_axis(found, order, axis=1)
        order[best == -np.inf] = -1
        return order, best

    def sparse_blocks(self, matrix, items, n_threads):
        """Return the rows and columns of lists of items of a matrix."""
        dense = dense_rows(matrix, len(matrix.starts) - 1)
        there = (items >= 0)[:, :, None] & (items >= 0)[:, None]
        blocks = dense[items[:, :, None], items[:, None]]
        return np.where(there, blocks, 0).astype(np.float32)

    def diversify(self, lists, vectors, diversity, k, n_threads):
        """Return the places chosen by maximal marginal relevance."""
        table = vectors.dense.astype(np.float64)
        if not len(table):
            table = dense_rows(vectors.sparse, vectors.n_columns)
        chosen = np.full((len(lists.items), k), -1, dtype=np.int32)
        for row, (items, relevances) in enumerate(zip(*lists, strict=True)):
            there = np.flatnonzero(items >= 0)
            found = marginal_relevance(relevances[there], table[items[there]], diversity, k)
            chosen[row, : len(found)] = there[found]
        return chosen

    # Random numbers.

    def permutation(self, stream, n):
        """Return the integers below ``n`` in the order of their random bits."""
        return np.argsort(streams.bits(streams.key_of(stream), np.arange(n)), kind="stable")

    def uniform(self, stream, indices):
        """Return numbers in [0, 1), with 24 random bits each."""
        random = streams.bits(streams.key_of(stream), indices) >> np.uint64(40)
        return (random * 2.0**-24).astype(np.float32)

    def standard_normal(self, stream, indices):
        """Return numbers of the standard normal distribution."""
        return streams.standard_normal(streams.key_of(stream), indices).astype(np.float32)
