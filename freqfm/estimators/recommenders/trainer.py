"""Shared parts of the recommenders' training tasks: tables, an optimizer, temperatures."""

import numpy as np

from freqfm._components import set_by_user
from freqfm._validation import LearnedArrays, count_columns
from freqfm.backends.base import Stream, TrainedTable
from freqfm.formulas import codes
from freqfm.formulas.sampling_laws import PROPOSAL_UNIFORM, Proposal
from freqfm.samplers._base import check_proposal
from freqfm.temperatures import Snapshot

__all__ = ["RecommenderTrainer", "make_rule"]


def make_rule(optimizer, weight_decay, scope):
    """Return the update rule: how rows step and decay."""
    full = weight_decay > 0 and scope == "full"
    lazy_adam = optimizer.step_code == codes.STEP_ADAM and optimizer.lazy
    catch_up = codes.CATCH_UP_NONE
    if full or not optimizer.lazy:
        by_factor = optimizer.step_code == codes.STEP_SGD or lazy_adam
        catch_up = codes.CATCH_UP_FACTOR if by_factor else codes.CATCH_UP_REPLAY
    decay_code = codes.DECAY_NONE
    if weight_decay > 0:
        decay_code = codes.DECAY_FULL if full else codes.DECAY_BATCH
    return optimizer.update_rule()._replace(
        catch_up=catch_up,
        decay_code=decay_code,
        decoupled=full and lazy_adam,
        decay=float(weight_decay),
        idle_decay=float(weight_decay) if full else 0.0,
    )


class RecommenderTrainer:
    """A task for the epoch loop; a context manager.

    Subclasses add ``run_epoch``, ``attributes``, ``_backend`` and its ``_trainer``, and
    ``_vectors_for``, the vectors of users and of items for a temperature strategy.

    Parameters
    ----------
    model : BaseRecommender
        Initialised; its arrays are updated in place.
    components : NamedTuple
        The components of the fit; among them ``optimizer`` and ``temperature``.
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
        self.optimizer = components.optimizer
        self.validation_score = score
        self._n_threads = n_threads
        self._counts = count_columns(X)
        self._rule = make_rule(components.optimizer, model.weight_decay, model.weight_decay_scope)
        self._proposal = None

    @property
    def device(self):
        """Name of the device that trains."""
        return self._backend.name

    def __enter__(self):
        self._trainer.__enter__()
        return self

    def __exit__(self, *exception):
        self._trainer.__exit__(*exception)

    def _epoch_of(self, n_batches):
        """Return the backend's input for an epoch: tables, the first step, its corrections."""
        first_step = int(self.model._n_steps[0])
        steps = np.arange(first_step, first_step + n_batches + 1)
        tables = {
            name: TrainedTable(weights.reshape(len(weights), -1), **self.model._states[name])
            for name, weights in self.model._tables().items()
        }
        return tables, first_step, self.optimizer.corrections(steps)

    def _checked(self, proposal, width):
        """Return a sampler's proposal, if kernels can draw from it."""
        sampler, n_items = self.components.sampler, self.X.shape[1]
        learned = LearnedArrays(sampler, "Return what compiled code can draw from")
        check_proposal(learned, "proposal", proposal, n_items, width)
        if proposal.code == PROPOSAL_UNIFORM and not self._sampler_draws:
            given = len(proposal.cumulative) > 0 or proposal.log_q.any()
            found = "is PROPOSAL_UNIFORM, with probabilities, which are drawn by PROPOSAL_GIVEN"
            learned.require(not given, "proposal.code", found)
        return proposal

    @property
    def _sampler_draws(self):
        """Whether a user's sampler overrides ``draw``."""
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
        snapshot = Snapshot(self.X, users, items, model._statistics, self._n_known)
        strategy.refresh(epoch, model._inverse_temperatures, model._temperature_state, snapshot)
        if strategy.statistics_wanted:
            model._statistics[:] = 0

    # Called by the epoch loop.

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
        return [*self.weights(), model._n_steps, *temperatures, *model._optimizer_arrays()]

    def extra(self):
        """Return what a checkpoint stores besides the estimator: the sampler's proposal.

        A sampler that is refreshed in each epoch needs no more than the model.
        """
        kept = self._proposal is not None and getattr(self.components.sampler, "refresh", 1) > 1
        return {"proposal": self._proposal._asdict() if kept else None}

    def restore_extra(self, extra):
        """Restore what :meth:`extra` has returned."""
        if extra["proposal"] is not None:
            self._proposal = Proposal(**extra["proposal"])
