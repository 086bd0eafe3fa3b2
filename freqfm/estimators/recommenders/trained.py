"""Recommenders that are trained in epochs: fits, early stopping, continued training."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import ClassVar

import numpy as np

from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER, validate_params
from freqfm._input.validation import LearnedArrays, check_memory, draw_seed
from freqfm._messages import shown, warn_user
from freqfm._signals import release_signals
from freqfm._sklearn import Interval
from freqfm.backends.support import check
from freqfm.estimators import training
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.base import BaseRecommender
from freqfm.estimators.state import make_trainable
from freqfm.estimators.training import FitCallbacks, Phase, TrainedEstimator, attempt
from freqfm.model_selection._scorer import RankingScorer, scorer_of
from freqfm.temperatures import AdapTau

# The new model on all interactions is trained for at least this many epochs: if the first few
# already rank the held-out items as well as possible, chance decides which of them is best.
_LEAST_EPOCHS = 5

# What a call does: it starts a model, continues one on its users, adds to one in ``partial_fit``,
# or resumes a fit from a checkpoint.
STARTS, CONTINUES, ADDS, RESUMES = "starts", "continues", "adds", "resumes"


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedRecommender(TrainedEstimator, BaseRecommender):
    """A recommender that is trained in epochs, by a task for the epoch loop.

    A subclass defines what a new model starts with, how a model grows, and its task.
    """

    #: Whether early stopping can use any callable, besides scorers of rankings.
    _takes_callables = True
    _warns_of_heavy_weights = True
    #: Whether an epoch of ``partial_fit`` is over all that the model knows, not over what is new.
    _trains_on_all = False

    _parameter_constraints: ClassVar = {
        "n_components": [Interval(Integral, 1, None, closed="left")],  # see check_memory
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "scoring": [str, callable],  # see scorer_of
        "n_iter_no_change": [*POSITIVE_INTEGER, None],
        "tol": NON_NEGATIVE,
        "warm_start": ["boolean"],
    }

    n_components: int = field(default=64, kw_only=False)
    early_stopping: bool = False
    validation_fraction: float = 0.1
    scoring: str | Callable = "ndcg"
    n_iter_no_change: int | None = 10
    tol: float = 1e-4
    warm_start: bool = False

    # Hooks, in the order in which ``fit`` and ``partial_fit`` call them, after ``_read``.

    def _check_trainable(self):
        super()._check_trainable()
        training.check_progress(LearnedArrays(self), "_n_known_interactions", "_n_known_users")

    @abstractmethod
    def _resolve_components(self, interactions, known):
        """Return the components that the parameters name: a named tuple with ``max_iter``.

        Raises if they do not fit together, or such a model into memory.

        Parameters
        ----------
        interactions : Interactions
            Those of this call.
        known : Interactions
            These and those of earlier calls, by user.
        """

    def _bound(self, components, interactions, known, adds):
        """Return the components of a model of these interactions.

        Parameters
        ----------
        components : NamedTuple
        interactions, known : Interactions
            As for ``_resolve_components``, without what is held out.
        adds : bool
            Whether the model keeps what it has learned from earlier calls.
        """
        return components

    def _check_continues(self, known, components, mode):
        """Raise unless training can continue with what the model keeps.

        And if parameters differ from those that it was trained with, or users in ``fit``; when a
        fit is resumed, its checkpoint tells.
        """
        if mode == RESUMES or not self._stores_users:
            return
        n_users, width = self.user_factors_.shape
        training.check_unchanged(self, "n_components", width == self.n_components, f"the {width}")
        if mode == CONTINUES and known.shape[0] != n_users:
            raise ValueError(
                f"X has {known.shape[0]} rows, but the model to continue has {n_users} users. Use "
                f"partial_fit for new users, or fit a new model with warm_start=False."
            )

    @abstractmethod
    def _start(self, data, components, reset):
        """Set the arrays of a new model if ``reset``; else add rows for new users and items.

        ``data`` are the Interactions to train on, by user. Kernels write to the arrays. Those that
        the model had before are not changed.
        """

    def _keep_settings(self, components, known):
        """Store the values of components that predictions need."""

    @abstractmethod
    def _make_trainer(self, components, interactions, known, score):
        """Return the task for the epoch loop.

        Parameters
        ----------
        components : NamedTuple
        interactions : Interactions
            What this call is to train on.
        known : Interactions
            All that the model is trained on, by user: in ``partial_fit`` more than
            ``interactions``, otherwise the same.
        score : callable or None
            Returns the validation score of the model.
        """

    # Fitting.

    @training.with_callbacks
    def fit(self, X, y=None, *, X_val=None, dislikes=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are their weights, added up where a sparse matrix holds a pair
            several times. Negative values are dislikes. Rows and columns may be empty.
        y : Ignored
        X_val : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Held-out interactions of the same users, for early stopping in place of a random part of
            ``X``: later ones, for instance. They are not trained on. Those of users without
            interactions in ``X`` are left out, and so are dislikes and those that ``X`` holds too.
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Items that users dislike: all entries that are not zero, whose weights are the absolute
            values. A pair that ``X`` holds too is a dislike. See :ref:`dislikes`.

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If the input cannot be learned from; the message names the argument, what was found
            and what to do.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.
        MemoryError
            If the process may not take what training needs, under ``ulimit -v`` for instance.
        """
        validate_params(self)
        self._ranking_scorer()
        with attempt(self) as trial:
            # The state of an interrupted fit, from a checkpoint; this call finishes it.
            unfinished = self.__dict__.pop("_unfinished", None)
            in_refit = unfinished is not None and unfinished["phase"] == 1
            reset = unfinished is None and not (self.warm_start and hasattr(self, "item_factors_"))
            mode = RESUMES if unfinished else STARTS if reset else CONTINUES
            announce(self.verbose, "checking interactions")
            with release_signals():
                given = self._read(X, reset, dislikes=dislikes)
                components = self._resolved(given, given.by_user, mode)
                trained, held_out = self._hold_out(given, X_val)
                # Held-out interactions are known too, and must not be recommended.
                components = self._begin(components, trained, trained.by_user, given.by_user, mode)
                hashed = partial(given.hashed, None if X_val is None else held_out)
                callbacks = FitCallbacks(self, given.shown, hashed, components.max_iter, unfinished)
                if not in_refit:
                    warn_of_short_fit(self, components)
                    score = None if held_out is None else trained.score_of(self, held_out)
                    task = self._make_trainer(components, trained, trained.by_user, score)
            if not in_refit:
                phase = Phase(components.max_iter)
                if held_out is not None:
                    name = training.score_name(self.scoring)
                    phase = Phase(phase.n_epochs, self.n_iter_no_change, name)
                training.train(task, phase, trial, callbacks)
                del task, score
            # With a warm start, held-out interactions are not trained on until the next call.
            refits = trained.nnz < given.nnz and not self.warm_start
            # The second phase needs the memory.
            del trained, held_out, hashed
            if refits:
                least = min(components.max_iter, _LEAST_EPOCHS)
                training.refit(self, partial(self._begin_refit, given), callbacks, in_refit, least)
            callbacks.end_fit()
        return self

    def partial_fit(self, X, y=None, *, dislikes=None):
        """Train one epoch on more interactions; users and items may be new.

        If the model stores a vector for each user, new users start with the result of ``transform``
        on the items that the model knows, at the length of trained users' vectors. New items, and
        users with only new items, start as in ``fit``. A pair that the model knows as liked may be
        disliked now, and vice versa: the last call counts.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
            Negative values are dislikes.
        y : Ignored
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            As in ``fit``.

        Returns
        -------
        self : object
        """
        validate_params(self)
        with attempt(self) as trial:
            # An unfinished fit is not resumed.
            self.__dict__.pop("_unfinished", None)
            reset = not hasattr(self, "item_factors_")
            mode = STARTS if reset else ADDS
            with release_signals():
                new = self._read(X, reset, dislikes=dislikes, adds=True)
                new = new if reset else new.padded(self._n_users)
                known = new.by_user if reset else self._known_with(new.by_user)
                components = self._resolved(new, known, mode)
                components = self._begin(components, new, known, known, mode)
                # Dislikes alone are trained on beside what their users like.
                new = new if new.nnz else new.beside_likes(known)
                if not (new.nnz or self._trains_on_all):
                    return self
                task = self._make_trainer(components, new, known, None)
            # Copies of the arrays are trained, which are discarded if training fails.
            training.train(task, Phase(1, restores=False), trial)
        return self

    def _resolved(self, interactions, known, mode):
        """Return the components of a call, and store its seed and the sizes of the model before.

        A fit that is resumed has both from the checkpoint.
        """
        if mode == STARTS:
            self._seed = draw_seed(self.random_state)
            self._n_known_interactions = self._n_known_users = 0
        elif mode != RESUMES:
            self._n_known_interactions = self._history.n_interactions
            self._n_known_users = int(np.count_nonzero(self._history.counts))
        return self._resolve_components(interactions, known)

    def _begin(self, components, trained, known, remembered, mode):
        """Bring the model to the start of training; return its components, bound to the data.

        Parameters
        ----------
        components : NamedTuple
        trained : Interactions
            What is trained on.
        known, remembered : Interactions
            By user: all that the model is trained on, and what it must not recommend, unless that
            is stored already.
        mode : str
        """
        components = self._bound(components, trained, known, mode == ADDS)
        if mode != STARTS:
            self._check_continues(known, components, mode)
        if mode != RESUMES:
            self._start(trained.by_user, components, mode == STARTS)
        if remembered is not None:
            self._remember(remembered)
        self._keep_settings(components, known)
        make_trainable(self, align=True)
        return components

    def _begin_refit(self, given, reset):
        """Return the task that trains on all interactions, with a new model if ``reset``."""
        known, mode = given.by_user, STARTS if reset else RESUMES
        components = self._resolve_components(given, known)
        components = self._begin(components, given, known, None, mode)
        return self._make_trainer(components, given, known, None)

    def _hold_out(self, interactions, X_val):
        """Return the Interactions to train on, and those for early stopping or None.

        Dislikes are held out for those scorers alone that count them, and for callables.
        """
        wanted, scorer = self.early_stopping, self._ranking_scorer()
        by_name = isinstance(scorer, RankingScorer)
        counts = not by_name or scorer.metric == "neg_dislike_rate"
        if X_val is not None:
            if not wanted:
                raise ValueError(
                    "fit was given X_val, but early_stopping=False would ignore it; set "
                    "early_stopping=True, or leave X_val out."
                )
            trained = interactions
            held_out = interactions.validated_on(self, X_val, scorer, counts)
        elif not wanted or wanted == "auto":
            return interactions, None
        else:
            share = self.validation_fraction
            announce(self.verbose, f"holding out {share:.0%} of the interactions")
            trained, held_out = interactions.split(share, self._seed, counts)
            if not held_out.nnz:
                raise ValueError(
                    f"early_stopping=True with validation_fraction={share} holds out nothing: no "
                    f"user has enough interactions. Set early_stopping=False."
                )
        if by_name and counts and (held_out.dislikes is None or not held_out.dislikes.nnz):
            raise ValueError(
                f"scoring={shown(self.scoring)} counts dislikes among recommendations, but none "
                f"are held out of users who like something. Give X_val with negative values for "
                f"dislikes, or X with several dislikes of a user; or score by another metric."
            )
        return trained, held_out

    def _ranking_scorer(self):
        """Return the scorer that the parameter ``scoring`` names, or is; raise if it is not one."""
        scorer = scorer_of(self.scoring, self.n_recommendations)
        if not (self._takes_callables or isinstance(scorer, RankingScorer)):
            check("Dask", "scoring by a function", given=f"scoring={shown(self.scoring)}")
        return scorer


def check_size(model, shape):
    """Raise if the vectors of so many users and items cannot fit into memory."""
    check_memory(
        sum(shape) * int(model.n_components),
        f"n_components={model.n_components} for {shape[0]} users and {shape[1]} items",
        "Take fewer components, or number users and items without gaps.",
    )


def warn_of_short_fit(model, components):
    """Warn of a temperature that has no effect in as few epochs as a fit has."""
    strategy = getattr(components, "temperature", None)
    n_epochs = model.n_iter_ + components.max_iter
    if isinstance(strategy, AdapTau) and not strategy.adapts_within(n_epochs):
        warn_user(
            f"temperature={model.temperature!r} warms up for warm_up={strategy.warm_up} epochs, "
            f"and this fit ends before: all users keep one temperature, as with 'adap_tau0'. "
            f"Raise max_iter, or give an AdapTau with a smaller warm_up."
        )
