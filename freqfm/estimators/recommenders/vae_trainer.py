"""The task of a variational autoencoder: epochs over batches of users."""

import numpy as np

from freqfm import backends
from freqfm._dense import unit_rows
from freqfm._input.rows import take_rows
from freqfm.backends.base import AutoencoderBatch, AutoencoderProblem, Histories
from freqfm.estimators.recommenders.gradient import RecommenderTrainer
from freqfm.formulas.sampling_laws import AlreadyDrawn
from freqfm.samplers import QuerySampler
from freqfm.samplers._base import check_draws, recall_codewords

# Tables with a row for every item, the first two of the model; the others are dense layers.
OF_ITEMS = ("input_factors", "item_factors")


# Purposes of random streams: the order of an epoch, dropout, noise, and negatives.
_ORDER, _DROPOUT, _NOISE, _DRAWS = range(4)


def pass_on(layer, n, noise):
    """Let the first ``n`` outputs be the first ``n`` inputs, plus noise, before the activation."""
    layer[:n, :n] *= noise
    layer[:n, :n] += np.eye(n, dtype=np.float32)


def unit_inputs(starts, values):
    """Return the values of histories, normalised to unit length per history."""
    lengths = np.sqrt(np.maximum(np.add.reduceat(values**2, starts[:-1]), 1e-30))
    lengths[np.diff(starts) == 0] = 1
    return (values / np.repeat(lengths, np.diff(starts))).astype(np.float32)


class VAETrainer(RecommenderTrainer):
    """Epochs over users of a variational autoencoder; see ``RecommenderTrainer`` for parameters."""

    #: A remedy if training diverges, besides a smaller learning rate.
    divergence_hint = "scale the weights in X to about 1"

    def __init__(self, model, components, X, known, score, n_threads):
        super().__init__(model, components, X, known, score, n_threads)
        self._users = np.flatnonzero(np.diff(X.indptr))
        self._batch_size = min(components.batch_size, len(self._users))
        self._random = backends.get()
        problem = self._problem()
        start = backends.start(model.device, "autoencoder_trainer", problem, n_threads)
        self._backend, self._trainer = start

    def _drawn(self, n_queries, step):
        """Return the draws of a custom sampler for a batch and their log-probabilities, or None."""
        if not self._sampler_draws:
            return None
        sampler, log_q = self.components.sampler, self._proposal.log_q
        shape, n_items = (n_queries, self.components.n_negatives), self.X.shape[1]
        generator = np.random.default_rng([self._seed, step, 4])
        items = sampler.draw(shape, n_items, self._proposal, generator)
        items = check_draws(sampler, items, shape, n_items)
        return items, log_q[items] if len(log_q) else np.zeros(shape, dtype=np.float32)

    def _problem(self):
        """Return the backend's description of this fit, and the largest batch."""
        model, components = self.model, self.components
        n_samples = int(model.n_samples)
        n_queries = self._batch_size * n_samples
        n_positives = int(np.sort(np.diff(self.X.indptr))[-self._batch_size :].sum())
        n_draws = 0 if components.full else components.n_negatives
        n_scores = n_positives * n_samples + n_queries * n_draws
        if n_draws and n_scores > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={self._batch_size} with n_negatives={n_draws} makes {n_scores} scores "
                f"a batch; choose a smaller batch_size."
            )
        return AutoencoderProblem(
            rule=self._rule,
            input_width=model.input_factors_.shape[1],
            item_width=model.item_factors_.shape[1],
            # The last element of an item's vector is its bias.
            n_unit=model.item_factors_.shape[1] - 1 if components.cosine else 0,
            n_samples=n_samples,
            n_queries=n_queries,
            n_positives=n_positives,
            n_draws=n_draws,
            n_users=self.X.shape[0],
            n_hidden=int(model._n_hidden),
            activation=model.activation,
            dropout=float(model.dropout) if model.dropout_on == "hidden" else 0.0,
            sampler=repr(model.negative_sampler),
            proposal_type=getattr(components.sampler, "proposal_type", None),
            formulas=self.optimizer.replacements(),
        )

    def run_epoch(self, epoch):
        """Train on every user once; return the mean loss per interaction."""
        stream = self._stream(epoch, _ORDER)
        order = self._users[self._random.permutation(stream, len(self._users))]
        n_batches = -(-len(order) // self._batch_size)
        self._refresh_temperatures(epoch)
        self._refresh_proposal(epoch)
        first_step = int(self.training.n_steps[0])
        proposal = self._proposal
        if self._sampler_draws:
            proposal = AlreadyDrawn(proposal.log_q, proposal.n_items)
        self._trainer.begin_epoch(*self._epoch_of(n_batches), proposal)
        parts = enumerate(np.array_split(order, n_batches), first_step + 1)
        batches = (self._batch(users, epoch, step) for step, users in parts)
        total = weight = 0.0
        # Overflows are reported at the end of the epoch.
        with np.errstate(over="ignore", invalid="ignore"):
            for loss, batch_weight, derivative in self._trainer.train(batches):
                total += loss
                weight += batch_weight
                if self.components.temperature.statistics_wanted:
                    self.training.statistics[0, 1:] += batch_weight, derivative
        self._trainer.catch_up(first_step + n_batches)
        self.training.n_steps[:] += n_batches
        return total / weight

    def _refresh_temperatures(self, epoch):
        super()._refresh_temperatures(epoch)
        positive, others = self.inverse_temperatures[0]
        if positive != others:
            strategy = type(self.components.temperature).__name__
            raise ValueError(
                f"refresh of {strategy} has written the inverse temperatures {positive:g} for "
                f"positives and {others:g} for the logarithm, but this model has one temperature; "
                f"write the same number into both columns."
            )

    def _vectors_for(self, strategy):
        if not strategy.looks_at_vectors:
            return None, None
        self._trainer.pull(self.weights())
        mean = self.model._mean(self.X.indptr, self.X.indices, self.X.data)
        return unit_rows(self.model._decode(mean)), unit_rows(self.model.item_factors_[:, :-1])

    def _refresh_proposal(self, epoch):
        sampler = self.components.sampler
        if self.components.full:
            return
        if not isinstance(sampler, QuerySampler):
            if self._proposal is None:
                proposal = sampler.proposal(self._known.item_counts)._replace(
                    n_items=self.X.shape[1]
                )
                self._proposal = self._checked(proposal)
        elif self._proposal_is_due(epoch):
            self._replace_proposal(self._propose(self._seed + epoch))

    def _propose(self, seed):
        """Return the distribution of negatives for the current item vectors."""
        sampler, counts = self.components.sampler, self._known.item_counts
        table, last = self.model.item_factors_, self._proposal
        last = last or recall_codewords(self.training.codewords)
        if not self._quantizes:
            self._trainer.pull([table])
            vectors = self.model._item_index().vectors().copy()
            return sampler.proposal(counts, vectors, seed, last)
        # Biases are known exactly; quantizing them would waste codewords.
        n = table.shape[1] - 1
        if last is not None:
            last = last._replace(codewords=last.codewords[:, :n])
        codewords, codes = self._quantize(table, n, seed, last)
        codewords = np.pad(codewords, [(0, 0), (0, 1)])
        offsets = self._trainer.take(table, slice(None), slice(n, None))[:, 0]
        return sampler.proposal_of_codes(counts, codewords, codes, offsets=offsets)

    def _batch(self, users, epoch, step):
        """Return the AutoencoderBatch of users."""
        rows, model = take_rows(self.X, users), self.model
        return AutoencoderBatch(
            step=step,
            users=users,
            positives=Histories(rows.indptr, rows.indices, rows.data),
            inputs=self._inputs(users, rows, epoch),
            inverse_temperature=self.inverse_temperatures[0, 0],
            kl_weight=self.components.kl_weight * min(1.0, (epoch + 1) / model.kl_warm_up),
            dropout=self._stream(epoch, _DROPOUT),
            noise=self._stream(epoch, _NOISE),
            draws=self._stream(step, _DRAWS),
            drawn=self._drawn(len(users) * int(model.n_samples), step),
        )

    def _inputs(self, users, rows, epoch):
        """Return the encoder's inputs for the histories of users."""
        starts, items, inputs = rows.indptr, rows.indices, unit_inputs(rows.indptr, rows.data)
        dropout = self.model.dropout
        if dropout and self.model.dropout_on == "input":
            # Dropped items do not occur in the batch: their rows are not updated.
            shift = np.repeat(self.X.indptr[users] - starts[:-1], np.diff(starts))
            stream = self._stream(epoch, _DROPOUT)
            drawn = self._random.uniform(stream, np.arange(len(items)) + shift)
            kept = drawn >= np.float32(dropout)
            items, inputs = items[kept], inputs[kept] / np.float32(1 - dropout)
            starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        return Histories(starts, items, inputs)

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        model = self.model
        return {
            "input_factors_": model.input_factors_.copy(),
            "item_factors_": model.item_factors_.copy(),
            "layers_": [layer.copy() for layer in model.layers_],
        }
