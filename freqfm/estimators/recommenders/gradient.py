"""Recommenders whose tables are updated by gradients: the state and the task of training."""

from abc import abstractmethod
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np

from freqfm._components import set_by_user
from freqfm._input.rows import slices
from freqfm._input.validation import LearnedArrays, as_kernel_array, count_threads
from freqfm.backends.base import Stream
from freqfm.estimators import state
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.trained import RESUMES, TrainedRecommender
from freqfm.estimators.state import COUNTS, LARGEST, OPTIMIZER, STATISTICS, Learned
from freqfm.estimators.training import TrainingTask, check_same_class
from freqfm.formulas.proposals import Proposal
from freqfm.samplers import MIDX
from freqfm.samplers._base import check_proposal
from freqfm.temperatures import Snapshot

_OPTIMIZER = ("_training", "optimizer")

# What the trainer changes only if there are temperatures, or statistics are wanted.
_STATISTICS = ("_training", "statistics")
_TEMPERATURES = (
    "_inverse_temperatures", ("_training", "temperature_state"), ("_training", "shared_state"),
)  # fmt: skip

# Rows that are turned to their directions at a time.
_ROWS = 1 << 14

# A falling learning rate stays at this share of its first value: training may be continued.
_LOWEST_RATE = 0.05


def _start_temperatures(model, rows, n_before):
    """Let new users begin at the mean temperature; see ``Learned``."""
    before = model._inverse_temperatures[:n_before]
    rows[:] = before.mean(axis=0) if n_before else 1


@cache
def _learned_beside(rows):
    """Return what is learned beside tables; ``rows`` are those of temperatures."""
    of_training, shared = {"role": OPTIMIZER, "dtype": np.float64}, (None, None)
    return [
        Learned(("_training", "n_steps"), (1,), OPTIMIZER, np.int64, merge=LARGEST),
        Learned("_inverse_temperatures", (rows, 2), STATISTICS, start=_start_temperatures),
        Learned(("_training", "temperature_state"), (rows, 2), **of_training),
        Learned(("_training", "shared_state"), shared, **of_training),
        Learned(_STATISTICS, (rows, 3), **of_training),
        Learned(("_training", "codewords"), shared, COUNTS),
    ]


class TrainingState(NamedTuple):
    """Arrays of a model that further training needs, and predictions do not."""

    optimizer: dict  #: its arrays, for each table by name
    n_steps: np.ndarray  #: (1,), int64
    temperature_state: np.ndarray  #: (n, 2), float64; n is the number of users, or 1
    statistics: np.ndarray  #: (n, 3), float64
    codewords: np.ndarray  #: (n_codewords, width) of the last proposal, float32; empty if none
    #: float64: the state of a temperature strategy that does not belong to users; or empty
    shared_state: np.ndarray

    @classmethod
    def empty(cls):
        """Return the state of a model that is not yet trained, without rows."""
        return cls({}, None, None, None, np.zeros((0, 1), dtype=np.float32), np.zeros((0, 1)))


def _shared_shape(strategy, width):
    """Return the shape of a strategy's state that does not belong to users; None if it has none."""
    return None if strategy is None else strategy.state_shape(width)


def draw_rows(initializer, shape, generator, counts, first=0, directions=None):
    """Return new rows of a table, float32; those that have directions start in these.

    Parameters
    ----------
    initializer : Initializer
        Of the side that the rows belong to.
    shape : tuple of int
    generator : numpy.random.Generator
    counts : ndarray
        How often each row occurs.
    first : int, default=0
        How many rows the table has before these.
    directions : ndarray, default=None
        Of the first rows, see ``Initializer.directions``. Further columns are random.
    """
    table = initializer.table(shape, generator, counts, first)
    if directions is not None:
        for part in slices(len(directions), _ROWS):
            padded = np.pad(directions[part], ((0, 0), (0, shape[1] - directions.shape[1])))
            table[part] = initializer.turned(table[part], padded)
    return table


class GradientRecommender(state.OptimizerStateMixin, TrainedRecommender):
    """A recommender trained by an optimizer, in batches.

    Its components, see ``_resolve_components``, have an ``optimizer``.
    """

    _records = {**TrainedRecommender._records, "_training": TrainingState}

    #: What the rows of temperatures are: users, or a single one.
    _rows_of_temperatures: ClassVar[str | int] = "users"

    @abstractmethod
    def _learned_tables(self):
        """Return what is updated by gradients: ``Learned``, by the names that kernels know."""

    def _learned(self):
        """Return what the model learns, a list of ``Learned``."""
        return [*self._learned_tables().values(), *self._learned_in_training()]

    def _learned_in_training(self):
        """Return what is learned beside the tables."""
        axes = {name: entry.axes[0] for name, entry in self._learned_tables().items()}
        states = state.optimizer_entries(_OPTIMIZER, **axes)
        return [*_learned_beside(self._rows_of_temperatures), *states]

    def _tables(self):
        """Return the arrays that are updated by gradients, by name."""
        return {name: entry.get(self) for name, entry in self._learned_tables().items()}

    def _set_tables(self, tables):
        """Set these arrays."""
        learned = self._learned_tables()
        for name, table in tables.items():
            learned[name].set(self, table)

    def _directions(self, initializer, X, n_components, generator):
        """Return the directions in which rows of users and items start, see ``Initializer``."""
        if initializer.needs_interactions:
            announce(self.verbose, "finding singular vectors of the interactions")
        n_threads = count_threads(self.n_jobs)
        return initializer.directions(X, n_components, generator, n_threads)

    def _add_rows(self, new, components, sizes, reset):
        """Set the tables of a new model, or add rows to those of this one.

        Parameters
        ----------
        new : dict of str to (rows, counts)
            For tables that grow their new rows, and how often these occur.
        components : NamedTuple
        sizes : dict
            The numbers of users and of items that the model has then.
        reset : bool
        """
        old, tables, states = {} if reset else self._tables(), {}, {}
        for name in old | new:
            rows, counts = new[name] if name in new else (old[name][:0], np.zeros(0))
            width = rows.shape[1] if rows.ndim == 2 else 1
            states[name] = state.new_state(components.optimizer, counts, width)
            if name in old:
                rows = np.concatenate([old[name], rows])
                states[name] = state.grow_state(self._training.optimizer[name], states[name])
            tables[name] = as_kernel_array(rows)
        self._set_tables(tables)
        shape = _shared_shape(components.temperature, int(self.n_components)) or (0, 1)
        if reset:
            self._optimizer_name = type(components.optimizer).__name__
            self._init_curves()
            self._training = TrainingState.empty()
        shared = self._training.shared_state
        shared = shared.astype(np.float64) if shared.shape == shape else np.zeros(shape)
        self._training = self._training._replace(optimizer=states, shared_state=shared)
        done = {entry.path for entry in self._learned_tables().values()}
        others = (e for e in self._learned() if e.path not in done and None not in e.axes)
        others = [entry for entry in others if entry.keys[:2] != _OPTIMIZER]
        state.extend(self, others, {**sizes, "components": int(self.n_components)}, reset)
        arrays = (array for state in states.values() for array in state.values())
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in arrays)

    def _check_continues(self, known, components, mode):
        super()._check_continues(known, components, mode)
        if mode != RESUMES:
            check_same_class(self, "optimizer", components.optimizer)
        given = self._training.optimizer, self._tables(), components.optimizer
        state.check_states(LearnedArrays(self), "_training.optimizer", *given)

    def _check_trainable(self):
        super()._check_trainable()
        self._check_has_state()
        learned = LearnedArrays(self)
        state.check_steps(learned, "_training.n_steps", self._training.n_steps)
        sizes = {"users": self._n_users, "items": self.n_features_in_}
        others = [e for e in self._learned() if e.keys[:2] != _OPTIMIZER]
        state.check_arrays(self, learned, others, sizes)


class RecommenderTrainer(TrainingTask):
    """A task for the epoch loop, see ``TrainingTask``.

    It takes the model's arrays and ``TrainingState`` when it is made, and changes them in place;
    what it replaces, it hands to the model in ``pull``. Subclasses also add ``_vectors_for``, the
    vectors of users and of items for a temperature strategy.

    Parameters
    ----------
    model : GradientRecommender
        Initialised.
    components : NamedTuple
        The components of the fit; among them ``optimizer``, ``temperature``, and
        ``n_falling_steps``, over which the learning rate falls linearly, or None.
    interactions, known : Interactions
        What to train on, and all that the model is trained on, by user; see ``_make_trainer``.
    score : callable or None
        Returns the validation score of the model.
    n_threads : int
    """

    def __init__(self, model, components, interactions, known, score, n_threads):
        self.model, self.components = model, components
        self.interactions, self.X = interactions, interactions.X
        self._known, self._score, self._n_threads = known, score, n_threads
        self.optimizer, self._seed = components.optimizer, int(model._seed)
        self.tables, self.training = model._tables(), model._training
        self.inverse_temperatures = model._inverse_temperatures
        decay = components.weight_decay
        self._rule = state.make_rule(components.optimizer, decay.value, decay.scope)
        self._proposal = None

    def _epoch_of(self, n_batches):
        """Return the backend's input for an epoch, see ``epoch_tables``; lower a falling rate."""
        tables, first_step, corrections = state.epoch_tables(
            self.tables, self.training.optimizer, self.training.n_steps, self.optimizer, n_batches
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

    def _proposal_is_due(self, epoch):
        """Return whether an epoch begins with an update of a sampler that depends on the query."""
        return self._proposal is None or epoch % (self.components.sampler.refresh or 1) == 0

    def _replace_proposal(self, proposal):
        """Draw from another proposal from now on."""
        self._proposal = self._checked(proposal)
        # The next call of ``fit`` begins the sampler's proposals with these.
        codewords = getattr(self._proposal, "codewords", self.training.codewords)
        self.training = self.training._replace(codewords=codewords)

    @property
    def _quantizes(self):
        """Whether the sampler needs codes of vectors in place of the vectors."""
        sampler = self.components.sampler
        if not isinstance(sampler, MIDX) or sampler.variant == "exact":
            return False
        return "proposal" not in set_by_user(sampler)

    def _quantize(self, table, n_columns, seed, last):
        """Return the codewords of the first columns of a table, and the codes of its rows."""
        options = self.components.sampler.quantization(n_columns, seed, last)
        return self._trainer.quantize(table, n_columns, bool(self.components.cosine), options)

    @property
    def _sampler_draws(self):
        """Whether a custom sampler overrides ``draw``."""
        return self.components.sampler is not None and "draw" in set_by_user(
            self.components.sampler
        )

    def _stream(self, time, purpose):
        return Stream(self._seed, int(time), purpose)

    def _refresh_temperatures(self, epoch):
        strategy, training = self.components.temperature, self.training
        if strategy is None:
            return
        users, items = self._vectors_for(strategy)
        statistics = training.statistics if strategy.statistics_wanted else None
        snapshot = Snapshot(self._known.X, users, items, statistics, self._known.nnz)
        state = training.temperature_state
        if _shared_shape(strategy, int(self.model.n_components)):
            state = training.shared_state
        strategy.refreshed(epoch, self.inverse_temperatures, state, snapshot)
        if strategy.statistics_wanted:
            training.statistics[:] = 0

    # Called by the epoch loop.

    def validation_score(self):
        """Return the validation score of the model."""
        self._trainer.pull(self.weights())
        return self._score()

    def weights(self):
        """Return the model's arrays."""
        return list(self.tables.values())

    def state(self):
        """Return all arrays that training changes: the model's, and the optimizer's."""
        strategy, model = self.components.temperature, self.model
        done = {entry.path for entry in model._learned_tables().values()}
        if strategy is None:
            done |= {_STATISTICS, *_TEMPERATURES}
        elif not strategy.statistics_wanted:
            done.add(_STATISTICS)
        learned = (entry for entry in model._learned() if entry.role != COUNTS)
        more = [entry.get(model) for entry in learned if entry.path not in done]
        return [*self.weights(), *more]

    def pull(self):
        """Bring the model up to date."""
        super().pull()
        self.model._training = self.training

    def extra(self):
        """Return the values that a checkpoint stores besides the estimator: the sampler's proposal.

        The proposal of a sampler that is refreshed in each epoch depends on the model alone.
        """
        refresh = getattr(self.components.sampler, "refresh", 1) or 1
        kept = self._proposal is not None and refresh > 1
        return {"proposal": self._proposal._asdict() if kept else None}

    def restore_extra(self, extra):
        """Restore the values that :meth:`extra` has returned."""
        if extra["proposal"] is not None:
            kind = self.components.sampler.proposal_type
            self._proposal = self._checked(kind(**extra["proposal"]))
