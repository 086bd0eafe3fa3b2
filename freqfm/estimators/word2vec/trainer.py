"""The training task of word vectors: an epoch reads all documents once."""

import numpy as np

from freqfm import backends
from freqfm._input.validation import as_kernel_input
from freqfm.backends.base import STORE, Stream, TrainedTable, WordProblem
from freqfm.estimators.state import epoch_tables, make_rule
from freqfm.estimators.training import TrainingTask

# Purposes of random numbers; the numbers of positions have no purpose.
_ORDER, _SUBSAMPLE = 1, 2

# Seed and epoch of the windows and the noise that ``score`` draws: the same for all models.
_SCORED = 0, 1 << 40


class Word2VecTrainer(TrainingTask):
    """A task for the epoch loop, see ``TrainingTask``.

    Parameters
    ----------
    model : Word2Vec
        Initialised; its arrays are updated in place.
    optimizer : Optimizer
    corpus : Corpus
    n_threads : int
    decays : bool
        Whether the learning rate decays over ``max_iter`` epochs.
    """

    _names = "vectors_", "output_vectors_"
    divergence_hint = "a smaller batch_size"

    def __init__(self, model, optimizer, corpus, n_threads, decays):
        self.model, self.optimizer = model, optimizer
        self._corpus, self._decays = corpus, decays
        self._keep = model._keep_probabilities(model.token_counts_)
        problem = _problem(model, optimizer, corpus, model._seed)
        self._backend, self._trainer = backends.start(
            model.device, "word2vec_trainer", problem, n_threads
        )

    def run_epoch(self, epoch):
        """Read every document once, in random order; return the mean loss."""
        tokens = self._subsampled(epoch)
        n_batches = -(-len(tokens) // int(self.model.batch_size))
        tables, first_step, corrections = epoch_tables(
            self.model._tables(), self.model._states, self.model._n_steps, self.optimizer, n_batches
        )
        if self._decays:
            # Learning rates are divided by the first correction.
            done = (epoch + np.arange(n_batches) / n_batches) / int(self.model.max_iter)
            corrections[1:, 0] /= 1 - done
        self._trainer.begin_tables(tables, first_step, corrections)
        loss, n_samples = self._trainer.train(epoch, tokens)
        self._trainer.catch_up_tables(n_batches)
        self.model._n_steps += n_batches
        # Subsampling may leave nothing of a small corpus.
        return loss / max(n_samples, 1)

    def _subsampled(self, epoch):
        """Return the tokens of an epoch, with -1 before, between and after documents."""
        corpus, backend, seed = self._corpus, backends.get(), self.model._seed
        order = backend.permutation(Stream(seed, epoch, _ORDER), corpus.n_documents)
        indices = corpus.in_order(order)
        tokens = corpus.tokens[indices]
        if self._keep is not None:
            # Those of -1 are the last number.
            kept = backend.uniform(Stream(seed, epoch, _SUBSAMPLE), indices) < self._keep[tokens]
            tokens = tokens[kept]
        return np.append(np.int32(-1), tokens)


def _problem(model, optimizer, corpus, seed):
    """Return the WordProblem of a model and documents."""
    thresholds, aliases = model._noise_tables()
    return WordProblem(
        cbow=model.architecture == "cbow",
        window=int(model.window),
        shrink_windows=bool(model.shrink_windows),
        n_negatives=int(model.n_negatives),
        batch_size=int(model.batch_size),
        longest=max(corpus.longest - 1, 1),
        thresholds=thresholds,
        aliases=aliases,
        width=model.vectors_.shape[1],
        rule=make_rule(optimizer, 0.0, "batch"),
        seed=int(seed),
        formulas=optimizer.replacements(),
    )


def mean_loss(model, optimizer, corpus, n_threads):
    """Return the mean loss of documents; windows and noise depend on the documents alone."""
    seed, epoch = _SCORED
    problem = _problem(model, optimizer, corpus, seed)._replace(rule=STORE, formulas={})
    no_rate, no_state = np.zeros(0, np.float32), np.zeros((0, 1), np.float32)
    tables = {
        name: TrainedTable(as_kernel_input(table), no_rate, no_state, no_state)
        for name, table in model._tables().items()
    }
    _, trainer = backends.start(model.device, "word2vec_trainer", problem, n_threads)
    with trainer:
        trainer.begin_tables(tables, 0, np.ones((1, 2)))
        tokens = np.append(np.int32(-1), corpus.tokens)
        loss, n_samples = trainer.train(epoch, tokens, learns=False)
    return loss / n_samples if n_samples else np.nan
