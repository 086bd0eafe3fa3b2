"""Shared parts of the recommenders' training tasks: tables, an optimizer, temperatures."""

import numpy as np

from freqfm._components import set_by_user
from freqfm._input.validation import LearnedArrays, count_columns
from freqfm.backends.base import Stream
from freqfm.estimators.tables import epoch_tables, make_rule, state_arrays
from freqfm.estimators.training import TrainingTask
from freqfm.formulas.sampling_laws import Proposal
from freqfm.samplers._base import check_proposal
from freqfm.temperatures import Snapshot

__all__ = ["RecommenderTrainer"]

# A falling learning rate stays at this share of its first value: training may be continued.
_LOWEST_RATE = 0.05


class RecommenderTrainer(TrainingTask):
    """A task for the epoch loop, see ``TrainingTask``.

    Subclasses also add ``_vectors_for``, the vectors of users and of items for a temperature
    strategy.

    Parameters
    ----------
    model : BaseRecommender
        Initialised; its arrays are updated in place.
    components : NamedTuple
        The components of the fit; among them ``optimizer``, ``temperature``, and
        ``n_falling_steps``, over which the learning rate falls linearly, or None.
    X : csr_array of shape (n_users, n_items)
        Canonical; values are weights.
    score : callable or None
        Returns the validation score of the model.
    n_threads : int
    n_known : int
        Number of interactions that the model is trained on in total, now and before.
    """

    def __init__(self, model, components, X, score, n_threads, n_known):
        self.model, self.components, self.X = model, components, X
        self._n_known = n_known
        # All that the model is trained on, now and before: in ``partial_fit`` X is what is new. The
        # model of a shard has no history, but the number of users of all shards that have an item.
        of_shard = model._history is None
        self._known = X
        if X.nnz != n_known and not of_shard:
            self._known = model._known_interactions(X.shape[1])
        self._counts = model.item_counts_ if of_shard else count_columns(self._known)
        self.optimizer = components.optimizer
        self._score = score
        self._n_threads = n_threads
        self._rule = make_rule(
            components.optimizer, components.weight_decay, components.weight_decay_scope
        )
        self._proposal = None

    def _epoch_of(self, n_batches):
        """Return the backend's input for an epoch, see ``epoch_tables``; lower a falling rate."""
        tables, first_step, corrections = epoch_tables(
            self.model, self.model._tables(), self.optimizer, n_batches
        )
        n_steps = self.components.n_falling_steps
        if n_steps is not None:
            left = 1 - (first_step + np.arange(len(corrections))) / n_steps
            corrections[:, 0] /= np.maximum(left, _LOWEST_RATE)
        return tables, first_step, corrections

    def _checked(self, proposal):
        """Return a sampler's proposal, if kernels can draw from it."""
        sampler, n_items = self.components.sampler, self.X.shape[1]
        width = self.model.item_factors_.shape[1]
        learned = LearnedArrays(sampler, "Return what compiled code can draw from")
        check_proposal(learned, "proposal", proposal, n_items, width)
        if isinstance(proposal, Proposal) and not self._sampler_draws:
            fits = len(proposal.aliases) or not proposal.log_q.any()
            found = "is given without aliases to draw by; take freqfm.samplers.proposal_of"
            learned.require(fits, "proposal.log_q", found)
        return proposal

    @property
    def _sampler_draws(self):
        """Whether a custom sampler overrides ``draw``."""
        return self.components.sampler is not None and "draw" in set_by_user(
            self.components.sampler
        )

    def _stream(self, time, purpose):
        return Stream(int(self.model._seed), int(time), purpose)

    def _refresh_temperatures(self, epoch):
        strategy, model = self.components.temperature, self.model
        if strategy is None:
            return
        users, items = self._vectors_for(strategy)
        statistics = model._statistics if strategy.statistics_wanted else None
        snapshot = Snapshot(self._known, users, items, statistics, self._n_known)
        strategy.refreshed(epoch, model._inverse_temperatures, model._temperature_state, snapshot)
        if strategy.statistics_wanted:
            model._statistics[:] = 0

    # Called by the epoch loop.

    def validation_score(self):
        """Return the validation score of the model."""
        self._trainer.pull(self.weights())
        return self._score()

    def weights(self):
        """Return the model's arrays."""
        return list(self.model._tables().values())

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        model, strategy = self.model, self.components.temperature
        temperatures = []
        if strategy is not None:
            temperatures = [model._inverse_temperatures, model._temperature_state]
            if strategy.statistics_wanted:
                temperatures.append(model._statistics)
        return [*self.weights(), model._n_steps, *temperatures, *state_arrays(model._states)]

    def extra(self):
        """Return what a checkpoint stores besides the estimator: the sampler's proposal.

        A sampler that is refreshed in each epoch needs no more than the model.
        """
        kept = self._proposal is not None and getattr(self.components.sampler, "refresh", 1) > 1
        return {"proposal": self._proposal._asdict() if kept else None}

    def restore_extra(self, extra):
        """Restore what :meth:`extra` has returned."""
        if extra["proposal"] is not None:
            kind = self.components.sampler.proposal_type
            self._proposal = self._checked(kind(**extra["proposal"]))
