"""The backend "cpu": numba kernels in a team of threads, and BLAS."""

import functools

import numpy as np

from freqfm.backends.base import Backend
from freqfm.backends.cpu.fm.prepared import (
    MOST_FEATURES_PER_ENTRY,
    expected_targets,
    label_tokens,
    sum_losses,
)
from freqfm.backends.cpu.fm.trainer import FMEpochs, fm_scores
from freqfm.backends.cpu.ranking.fold_in import fold_in
from freqfm.backends.cpu.ranking.least_squares import least_squares
from freqfm.backends.cpu.ranking.propagation import Propagation
from freqfm.backends.cpu.ranking.trainer import CPURankingTrainer
from freqfm.backends.cpu.sampling import (
    alias_tables,
    draw,
    draw_lists,
    permutation,
    standard_normal,
    uniform,
)
from freqfm.backends.cpu.tables import TableTrainer
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.topk import (
    diversify,
    sparse_blocks,
    sparse_top_k,
    top_k,
    top_k_of_candidates,
)
from freqfm.backends.cpu.vae import AutoencoderTrainer, sum_histories
from freqfm.backends.cpu.word2vec import Word2VecTrainer


class CPUBackend(Backend):
    """The models' operations on the CPU; see :class:`freqfm.backends.base.Backend`."""

    name = "cpu"

    # Factorization machines.

    def label_tokens(self, indices, n_features):
        """Return distinct tokens, labels and more, see ``Backend``."""
        if n_features > MOST_FEATURES_PER_ENTRY * len(indices):
            return super().label_tokens(indices, n_features)
        return label_tokens(indices, n_features)

    fm_trainer = staticmethod(FMEpochs)
    fm_scores = staticmethod(fm_scores)

    def expected_targets(self, loss_code, formulas, scores):
        """Return the targets that scores predict, see ``Backend``."""
        out = np.empty_like(scores)
        with Team(1, formulas) as team:
            team.run(expected_targets, loss_code, scores, out)
        return out

    def loss_sums(self, loss_code, formulas):
        """Return a function that sums the losses and derivatives of rows, see ``Backend``."""
        return functools.partial(Team(1, formulas).run, sum_losses, loss_code)

    # Recommenders.

    ranking_trainer = staticmethod(CPURankingTrainer)
    fold_in = staticmethod(fold_in)
    propagation = staticmethod(Propagation)
    least_squares = staticmethod(least_squares)
    table_trainer = staticmethod(TableTrainer)

    # Autoencoders, samplers and metrics.

    autoencoder_trainer = staticmethod(AutoencoderTrainer)
    word2vec_trainer = staticmethod(Word2VecTrainer)
    sum_histories = staticmethod(sum_histories)
    draw = staticmethod(draw)
    draw_lists = staticmethod(draw_lists)
    alias_tables = staticmethod(alias_tables)
    top_k = staticmethod(top_k)
    top_k_of_candidates = staticmethod(top_k_of_candidates)
    sparse_top_k = staticmethod(sparse_top_k)
    sparse_blocks = staticmethod(sparse_blocks)
    diversify = staticmethod(diversify)

    # Random numbers.

    permutation = staticmethod(permutation)
    uniform = staticmethod(uniform)
    standard_normal = staticmethod(standard_normal)
