"""Recommenders that are trained in epochs: fits, early stopping, continued training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from scipy import sparse

from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER
from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import split_signs, take_rows, with_one_index_type
from freqfm._input.validation import (
    canonical_csr,
    check_memory,
    count_threads,
    draw_seed,
    validate_rows,
    warn_of_heavy_weights,
)
from freqfm._messages import shown, warn_user
from freqfm._signals import release_signals
from freqfm._sklearn import Interval
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.base import BaseRecommender, refuse_empty
from freqfm.estimators.recommenders.histories import (
    of_users,
    pad_rows,
    parted,
    with_dislikes,
    without,
)
from freqfm.estimators.recommenders.index import check_recommendations
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.training import (
    FitCallbacks,
    Phase,
    TrainedEstimator,
    attempt,
    check_progress,
    check_unchanged,
    refit,
    score_by,
    score_name,
    train,
    with_callbacks,
)
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_interactions
from freqfm.model_selection._scorer import RankingScorer, scorer_of

# Early stopping evaluates at most this many users, the same ones in every epoch.
_VALIDATION_USERS = 5000

# The new model on all interactions is trained for at least this many epochs: if the first few
# already rank the held-out items as well as possible, chance decides which of them is best.
_LEAST_EPOCHS = 5


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedRecommender(TrainedEstimator, BaseRecommender):
    """A recommender that is trained in epochs, by a task for the epoch loop.

    A subclass defines what a new model starts with, how a model grows, and its task.
    """

    #: Whether early stopping can use any callable, besides scorers of rankings.
    _takes_callables = True
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

    # Hooks, in the order in which ``fit`` and ``partial_fit`` call them.

    def _users_of(self, X):
        """Return the user of each row of X, if rows are queries; None, the default, if users."""

    def _by_user(self, X):
        """Return the interactions of the rows of X by user."""
        return X

    def _check_trainable(self):
        """Raise unless the model can be trained further: checks all histories and small arrays."""
        learned = self._check_learned()
        self._history.check_all(learned, self.n_features_in_)
        if self._dislikes is not None:
            self._dislikes.check_all(learned, self.n_features_in_, "_dislikes")
        check_progress(learned, "_n_known_interactions", "_n_known_users")

    @abstractmethod
    def _check_size(self, shape):
        """Raise if a model for a matrix of this shape cannot fit into memory."""

    @abstractmethod
    def _resolve_components(self, X, known):
        """Return the components that the parameters name: a named tuple with ``max_iter``.

        Parameters
        ----------
        X : csr_array of shape (n_rows, n_items)
            The interactions of this call.
        known : csr_array of shape (n_users, n_items)
            These and those of earlier calls, by user.
        """

    def _bound(self, components, X, known, adds=False):
        """Return the components of a model of these interactions.

        Parameters
        ----------
        components : NamedTuple
        X, known : csr_array
            As for ``_resolve_components``.
        adds : bool, default=False
            Whether the model keeps what it has learned from earlier calls.
        """
        return components

    def _check_continues(self, X, components, partial):
        """Raise if parameters differ from those that the model to continue was trained with."""

    def _check_states(self, components):
        """Raise unless training can continue with what the model keeps besides its vectors."""

    @abstractmethod
    def _start(self, X, components, reset):
        """Set the arrays of a new model if ``reset``; else add rows for new users and items.

        Kernels write to the arrays. Those that the model had before are not changed.
        """

    def _keep_settings(self, components, X):
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

    def _check_epochs(self, components):
        """Warn of components that have no effect in as few epochs as a fit has."""

    def _vectors_in_training(self, rows, X):
        """Return the vectors of rows of fit's matrix, whose users have the histories ``X``."""
        return self._fold_in_rows(X)

    # Fitting.

    @with_callbacks
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
        self._validate_params()
        self._ranking_scorer()
        with attempt(self) as trial:
            # The state of an interrupted fit, from a checkpoint; this call finishes it.
            unfinished = self.__dict__.pop("_unfinished", None)
            in_refit = unfinished is not None and unfinished["phase"] == 1
            reset = unfinished is None and not (self.warm_start and hasattr(self, "item_factors_"))
            announce(self.verbose, "checking interactions")
            with release_signals():
                X = given_X = self._validate_interactions(X, reset, dislikes=dislikes)
                X, dislikes = self._split_dislikes(X)
                known = self._by_user(X)
                if unfinished is None:
                    self._count_known(known, reset)
                components = self._resolve_components(X, known)
                train_part, held_out = self._hold_out(X, X_val, dislikes)
                held_out, kept = self._hold_out_dislikes(train_part, held_out, dislikes, X_val)
                known_part = known if train_part is X else self._by_user(train_part)
                components = self._bound(components, train_part, known_part)
                if unfinished is not None:
                    self._check_states(components)
                else:
                    if not reset:
                        self._check_continues(known, components, partial=False)
                        self._check_states(components)
                    self._start(known_part, components, reset)
                # Held-out interactions are known too, and must not be recommended.
                self._remember(known, dislikes)
                self._keep_settings(components, known_part)
                del known, known_part
                given = None if X_val is None else held_out
                callbacks = self._callbacks(given_X, given, components.max_iter, unfinished)
                del given_X
                if not in_refit:
                    self._check_epochs(components)
                    task = self._task(components, train_part, held_out, kept)
            if not in_refit:
                phase = Phase(components.max_iter)
                if held_out is not None:
                    phase = Phase(phase.n_epochs, self.n_iter_no_change, score_name(self.scoring))
                train(task, phase, trial, callbacks)
                del task
            # With a warm start, held-out interactions are not trained on until the next call.
            refits = train_part.nnz < X.nnz and not self.warm_start
            # The second phase needs the memory.
            del train_part, held_out, kept
            if refits:
                least = min(components.max_iter, _LEAST_EPOCHS)
                begin = partial(self._begin_refit, X, dislikes)
                refit(self, begin, callbacks, in_refit, least)
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
        self._validate_params()
        with attempt(self) as trial:
            # An unfinished fit is not resumed.
            self.__dict__.pop("_unfinished", None)
            reset = not hasattr(self, "item_factors_")
            with release_signals():
                X = self._validate_interactions(X, reset, partial=True, dislikes=dislikes)
                X, dislikes = self._split_dislikes(X)
                new = known = self._by_user(X)
                disliked = dislikes
                self._count_known(new, reset)
                if not reset:
                    new, dislikes = (pad_rows(of, self._n_users) for of in (new, dislikes))
                    known, disliked = self._known_with(new, dislikes)
                if self._users_of(X) is None:
                    X = new
                components = self._resolve_components(X, known)
                components = self._bound(components, X, known, adds=not reset)
                if not reset:
                    self._check_continues(new, components, partial=True)
                    self._check_states(components)
                self._start(new, components, reset)
                self._remember(known, disliked)
                self._keep_settings(components, known)
                if not reset:
                    # Dislikes alone are trained on beside what their users like.
                    X = X if X.nnz else of_users(known, dislikes)
                if not (X.nnz or self._trains_on_all):
                    return self
                given = Interactions(X, dislikes)
                known = given if reset and known is X else Interactions(known, disliked)
                task = self._make_trainer(components, given, known, None)
            # Copies of the arrays are trained, which are discarded if training fails.
            train(task, Phase(1, restores=False), trial)
        return self

    def _split_dislikes(self, X):
        """Return likes, and dislikes with positive weights or None; raise if contexts have some."""
        X, dislikes = split_signs(X)
        if dislikes is not None and self._users_of(X) is not None:
            raise ValueError(
                f"X holds {dislikes.nnz} dislikes, and backbone={self.backbone!r} does not learn "
                f"from them: they belong to users, and rows of X to users in a context. Leave "
                f"them out, or drop the context."
            )
        return X, dislikes

    def _count_known(self, X, reset):
        """Store the seed of a call, and the sizes of the model before it.

        A fit that is resumed has both from the checkpoint.
        """
        if reset:
            self._check_size(X.shape)
            self._seed = draw_seed(self.random_state)
            self._n_known_interactions = self._n_known_users = 0
        else:
            self._n_known_interactions = self._history.n_interactions
            self._n_known_users = self._history.n_active_users

    def _begin_refit(self, X, dislikes, reset):
        """Return the task that trains on all interactions, with a new model if ``reset``."""
        known = self._by_user(X)
        components = self._bound(self._resolve_components(X, known), X, known)
        if reset:
            self._start(known, components, reset)
        self._keep_settings(components, known)
        return self._make_trainer(components, *_interactions(X, known, dislikes), None)

    def _task(self, components, X, held_out, dislikes):
        """Return the task for interactions and those held out, or None."""
        score = None if held_out is None else self._scorer(X, held_out)
        given = _interactions(X, self._by_user(X), dislikes)
        return self._make_trainer(components, *given, score)

    def _callbacks(self, X, X_val, n_epochs, unfinished):
        hashed = {"X": X, "X_val": X_val}
        return FitCallbacks(self, {"X": X, "y": None}, hashed, n_epochs, unfinished)

    # Interactions.

    def _validate_interactions(self, X, reset, partial=False, dislikes=None):
        if not reset:
            self._check_trainable()
        if partial and not reset:
            X = self._validate_more(X)
        else:
            X = self._validate_history(X, reset=reset)
        X = with_dislikes(X, self._given_dislikes(X.shape, dislikes))
        if reset or not partial or not X.nnz:
            refuse_empty(X)
        if reset:
            warn_of_heavy_weights(abs(X.data))
        return X

    def _hold_out(self, X, X_val, dislikes):
        """Return the likes to train on, and those for early stopping or None."""
        wanted = self.early_stopping
        if X_val is not None:
            if not wanted:
                raise ValueError(
                    "fit was given X_val, but early_stopping=False would ignore it; set "
                    "early_stopping=True, or leave X_val out."
                )
            return X, self._given_validation(X, X_val, dislikes)
        if not wanted or wanted == "auto":
            return X, None
        announce(self.verbose, f"holding out {self.validation_fraction:.0%} of the interactions")
        train, held_out = self._split(X)
        if held_out.nnz:
            return train, held_out
        raise ValueError(
            f"early_stopping=True with validation_fraction={self.validation_fraction} holds "
            f"out nothing: no user has enough interactions. Set early_stopping=False."
        )

    def _hold_out_dislikes(self, X, held_out, dislikes, X_val):
        """Return held-out interactions, those of dislikes negative, and the dislikes to train on.

        Dislikes are held out for those scorers alone that count them, and for callables.

        Parameters
        ----------
        X : csr_array of shape (n_users, n_items)
            The likes to train on.
        held_out : csr_array of the same shape, or None
            The likes for early stopping.
        dislikes : csr_array of the same shape, or None
            All dislikes.
        X_val : csr_array of the same shape, or None
            As it was given to ``fit``.
        """
        scorer = self._ranking_scorer()
        by_name = isinstance(scorer, RankingScorer)
        if held_out is None or (by_name and scorer.metric != "neg_dislike_rate"):
            return held_out, dislikes
        some, kept = None, dislikes
        if X_val is not None and self._users_of(X) is None:
            _, some = split_signs(canonical_csr(validate_rows(self, X_val, reset=False)[0]))
            some = without(some, dislikes)
        elif dislikes is not None:
            kept, some = split_interactions(dislikes, self.validation_fraction, self._seed)
        some = None if some is None else of_users(without(some, self._by_user(X)), self._by_user(X))
        if by_name and (some is None or not some.nnz):
            raise ValueError(
                f"scoring={shown(self.scoring)} counts dislikes among recommendations, but none "
                f"are held out of users who like something. Give X_val with negative values for "
                f"dislikes, or X with several dislikes of a user; or score by another metric."
            )
        return with_dislikes(held_out, some), kept

    def _given_validation(self, X, X_val, dislikes):
        """Return those held-out likes given to ``fit`` that a model of ``X`` can find."""
        try:
            refuse_table(X_val)
            X_val, _ = validate_rows(self, X_val, reset=False)
        except ValueError as error:
            raise ValueError(f"Validation set X_val: {error}") from None
        if X_val.shape != X.shape:
            raise ValueError(
                f"X_val has {X_val.shape[0]} rows, but X has {X.shape[0]}; give held-out "
                f"interactions of the same users, in the same order."
            )
        X_val, _ = split_signs(canonical_csr(X_val))
        known, users = self._by_user(X), self._users_of(X)
        has_others = np.diff(known.indptr) > 0
        if users is None:
            new = without(without(X_val, X), dislikes)
        else:
            new = parted(X_val, users, known)[1]
            has_others = has_others[users]
        if not getattr(self._ranking_scorer(), "exclude_seen", True):
            new = X_val
        elif new.nnz < X_val.nnz:
            warn_user(
                f"{X_val.nnz - new.nnz} of {X_val.nnz} pairs in X_val are of items that the user "
                f"has in X, which are left out of the lists, and so of the score. Set "
                f"scoring=make_ranking_scorer(..., exclude_seen=False) to count them."
            )
        new = with_one_index_type(new)
        held_out = canonical_csr(new.multiply(has_others.astype(np.float32)[:, None]))
        if not held_out.nnz:
            raise ValueError(
                "X_val holds no interaction of a user who has others in X; there is nothing to "
                "find. Set early_stopping=False, or give later interactions of the same users."
            )
        return held_out

    def _split(self, X):
        """Return the interactions to train on, and those held out."""
        train, held_out = split_interactions(self._by_user(X), self.validation_fraction, self._seed)
        users = self._users_of(X)
        return (train, held_out) if users is None else parted(X, users, train)

    def _ranking_scorer(self):
        """Return the scorer that the parameter ``scoring`` names, or is; raise if it is not one."""
        scorer = scorer_of(self.scoring, self.n_recommendations)
        if not (self._takes_callables or isinstance(scorer, RankingScorer)):
            raise ValueError(
                f"scoring={shown(self.scoring)} is not computed on a Dask cluster; give the name "
                f"of a metric, such as 'ndcg@20'."
            )
        return scorer

    def _scorer(self, X, held_out):
        """Return a function that scores the model on held-out interactions of known users.

        ``X`` holds the training histories.
        """
        rows = np.flatnonzero(np.diff(held_out.indptr))
        if len(rows) > _VALIDATION_USERS:
            generator = np.random.default_rng(self._seed)
            rows = np.sort(generator.choice(rows, _VALIDATION_USERS, replace=False))
        users = self._users_of(X)
        users = rows if users is None else users[rows]
        relevant, history = take_rows(held_out, rows), take_rows(self._by_user(X), users)
        # But those held out, which may be found.
        hidden = without(self._with_dislikes(history, users), relevant)
        unlearned = np.flatnonzero(~self._is_learned("items"))
        scorer, n_threads = self._ranking_scorer(), count_threads(self.n_jobs)
        exclude = hidden if getattr(scorer, "exclude_seen", True) else None
        if isinstance(scorer, RankingScorer):
            check_recommendations(scorer.k, len(rows), held_out.shape[1], "k")

        def score():
            if not isinstance(scorer, RankingScorer):
                return score_by(scorer, self, hidden, relevant)
            ranked, _ = top_k(
                self._vectors_in_training(rows, history),
                self._item_table(),
                scorer.k,
                exclude=exclude,
                exclude_for_all=unlearned,
                unit_columns=self._unit_columns,
                n_threads=n_threads,
                device=self.device,
            )
            return scorer.measure(relevant, ranked)

        return score


def _interactions(X, known, dislikes):
    if not sparse.issparse(X):
        return X, known
    given = Interactions(X, dislikes)
    return given, given if known is X else Interactions(known)


class FactorsMixin:
    """A recommender with ``user_factors_`` and ``item_factors_``; a mixin before its base class."""

    def _check_size(self, shape):
        check_memory(
            sum(shape) * int(self.n_components),
            f"n_components={self.n_components} for {shape[0]} users and {shape[1]} items",
            "Take fewer components, or number users and items without gaps.",
        )

    def _check_continues(self, X, components, partial):
        super()._check_continues(X, components, partial)
        n_users, width = self.user_factors_.shape
        check_unchanged(self, "n_components", width == self.n_components, f"the {width}")
        if not partial and X.shape[0] != n_users:
            raise ValueError(
                f"X has {X.shape[0]} rows, but the model to continue has {n_users} users. Use "
                f"partial_fit for new users, or fit a new model with warm_start=False."
            )

    def _check_vectors(self, learned):
        super()._check_vectors(learned)
        learned.array("user_factors_", (self._n_users, self.item_factors_.shape[1]))

    def _user_vectors(self, users):
        return self.user_factors_[users]

    def _vectors_in_training(self, rows, X):
        return self._user_vectors(rows)

    def _embed(self, users):
        return self._user_vectors(users)

    def _user_table(self):
        return self.user_factors_


def split_interactions(X, fraction, seed):
    """Return the kept and the held-out interactions of a canonical matrix, as such matrices."""
    train, held_out = holdout_interactions(X, fraction, random_state=seed)
    return canonical_csr(train), canonical_csr(held_out)
