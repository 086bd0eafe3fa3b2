"""Shared parts of recommenders: fitting, recommending, similar rows, scores of pairs."""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from freqfm._components import name_to_instance
from freqfm._input.matrix_input import refuse_table
from freqfm._input.rows import take_rows
from freqfm._input.validation import (
    LearnedArrays,
    as_array,
    canonical_csr,
    check_count,
    check_flag,
    check_memory,
    count_columns,
    count_threads,
    draw_seed,
    kernel_csr,
    validate_ids,
    validate_rows,
    warn_of_heavy_weights,
)
from freqfm._messages import cut, shown
from freqfm._signals import release_signals
from freqfm._versions import VersionStamp
from freqfm.estimators.recommenders.histories import InteractionHistory, pad_rows, unit_rows
from freqfm.estimators.training import (
    CallbackSupportMixin,
    FitCallbacks,
    Phase,
    attempt,
    check_progress,
    refit,
    train,
    with_callbacks,
)
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._hits import as_csr
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_by_content, holdout_interactions

__all__ = [
    "BaseRecommender",
    "Queries",
    "WantedItems",
    "check_recommendations",
    "of_single",
    "refuse_empty",
    "split_interactions",
]

# The share of each row that ``score`` holds out if it is not given ``y``.
_HELD_OUT = 0.2

# Early stopping evaluates at most this many users, the same ones in every epoch.
_VALIDATION_USERS = 5000

# Pairs whose vectors are gathered at a time: those of all pairs may be many times the model.
_PAIRS = 1 << 14

# The new model on all interactions is trained for at least this many epochs: if the first few
# already rank the held-out items as well as possible, chance decides which of them is best.
_LEAST_EPOCHS = 5


class Queries(NamedTuple):
    """The users whom ``recommend`` was asked to recommend to."""

    vectors: np.ndarray  #: (n, d) float32, used for ranking
    history: sparse.csr_array  #: (n, n_items), the items they have; left empty if nobody needs them
    learned: np.ndarray  #: (n,), whether the vector was learned; other users get popular items


class WantedItems(NamedTuple):
    """Which items ``recommend`` was asked for; all but ``exclude_seen`` unchecked."""

    n_recommendations: int | None
    exclude_seen: bool
    candidates: object
    exclude: object


class BaseRecommender(
    VersionStamp,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Recommenders on a sparse matrix of users and items, whose scores are dot products.

    A subclass defines how its arrays are initialised, extended and trained, and which vectors are
    used for ranking. Nothing derived from the learned arrays is stored: every method computes its
    results from their current values.
    """

    #: The components known by name, for each parameter that takes one.
    _registries: dict = {}
    #: Learned attributes that are named tuples; stored as plain dicts.
    _records: dict = {"_history": InteractionHistory}
    #: Whether the weights of interactions are kept with the history.
    _keeps_weights = False
    _writes_checkpoints = True
    _advice_for_missing = (
        "A missing value means no interaction: fill it with 0, X.fillna(0) or np.nan_to_num(X)."
    )

    # Hooks for training.

    @abstractmethod
    def _check_size(self, shape):
        """Raise if a model for a matrix of this shape cannot fit into memory."""

    @abstractmethod
    def _resolve_components(self, X):
        """Return the components that the parameters name, for training on ``X``.

        A named tuple with at least ``max_iter``.
        """

    @abstractmethod
    def _init_model(self, X, components):
        """Set the arrays of a new model; see ``_init_curves``."""

    @abstractmethod
    def _grow(self, X, components):
        """Make the arrays writable for kernels, with new rows for new users and items."""

    @abstractmethod
    def _keep_settings(self, components, X):
        """Store what predictions need of the components."""

    @abstractmethod
    def _make_trainer(self, components, X, score, n_known):
        """Return the task for the epoch loop; for the arguments see ``RecommenderTrainer``."""

    @abstractmethod
    def _vectors_in_training(self, users, X):
        """Return the vectors of users seen in fit, whose histories are the rows of ``X``."""

    def _check_epochs(self, components):
        """Warn of components that have no effect in as few epochs as a fit has."""

    # Hooks for predictions.

    @property
    @abstractmethod
    def _unit_columns(self):
        """How many leading columns of ``item_factors_`` rankings normalise to unit length."""

    @abstractmethod
    def _item_vectors(self, items=slice(None)):
        """Return the vectors of items used for ranking, (n, d) float32."""

    @abstractmethod
    def _user_vectors(self, users):
        """Return the vectors of users seen in fit used for ranking, (n, d) float32."""

    @abstractmethod
    def _embed(self, users):
        """Return the result of ``transform`` for users seen in fit."""

    @abstractmethod
    def _fold_in_rows(self, X):
        """Return the vectors used for ranking for the rows of a canonical matrix."""

    @abstractmethod
    def _similarity_table(self, axis):
        """Return a table of all "users" or "items", and how many of its columns are compared."""

    @abstractmethod
    def _check_vectors(self, learned):
        """Check the arrays behind users' and items' vectors, see ``LearnedArrays``."""

    # Copies and files.

    def __getstate__(self):
        # Plain dicts, so that files can be read without our classes.
        state = dict(super().__getstate__())
        for name, kind in self._records.items():
            if isinstance(state.get(name), kind):
                state[name] = state[name]._asdict()
        return state

    def __setstate__(self, state):
        state = dict(state)
        for name, kind in self._records.items():
            value = state.get(name)
            if isinstance(value, dict) and set(value) == set(kind._fields):
                state[name] = kind(**value)
        super().__setstate__(state)

    def _check_learned(self):
        """Raise unless kernels can read the model's arrays; return the ``LearnedArrays``.

        Indices are checked when they are used, since there may be many.
        """
        check_is_fitted(self)
        learned = LearnedArrays(self)
        n_items = learned.size("n_features_in_")
        learned.array("item_counts_", (n_items,))
        for name, kind in self._records.items():
            value = learned.get(name)
            if not isinstance(value, kind):
                found = f"is of type {type(value).__name__}, not {kind.__name__}"
                learned.require(False, name, found)
        self._history.check(learned)
        self._check_vectors(learned)
        return learned

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.target_tags.required = False
        # A prediction is a row of items.
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self):
        return self.item_factors_.shape[1]

    def set_params(self, **params):
        """Set parameters; parameters of a component can be set even if it is given by name.

        ``set_params(optimizer__beta_1=0.8)`` works whether ``optimizer`` is an instance or a name;
        a name is then replaced by an instance, and so is an "auto" whose choice does not depend on
        the data.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            If a parameter is set of a component that has no such parameter, or is not yet chosen.
        """
        name_to_instance(self, self._components_by_name(params), params)
        return super().set_params(**params)

    def _components_by_name(self, params):
        """Return the components of each parameter by name, if ``params`` are set."""
        return self._registries

    # Fitting.

    @with_callbacks
    def fit(self, X, y=None, *, X_val=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are their weights, added up where a sparse matrix holds a pair
            several times. Rows and columns may be empty.
        y : Ignored
        X_val : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Held-out interactions of the same users, for early stopping in place of a random part of
            ``X``: later ones, for instance. They are not trained on. Those of users without
            interactions in ``X`` are left out, and so are those that ``X`` holds too.

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
        with attempt(self) as trial:
            # The state of an interrupted fit, from a checkpoint; this call finishes it.
            unfinished = self.__dict__.pop("_unfinished", None)
            in_refit = unfinished is not None and unfinished["phase"] == 1
            reset = unfinished is None and not (self.warm_start and hasattr(self, "item_factors_"))
            with release_signals():
                X, components = self._prepare(X, reset, resumes=unfinished is not None)
                train_part, held_out = self._hold_out(X, X_val)
                if unfinished is None:
                    self._start(train_part, components, reset)
                else:
                    self._check_states(components)
                # Held-out interactions are known too, and must not be recommended.
                self._remember(X, more=False)
                self._keep_settings(components, train_part)
                given = None if X_val is None else held_out
                callbacks = self._callbacks(X, given, components.max_iter, unfinished)
            if not in_refit:
                self._train(components, train_part, held_out, trial, callbacks)
            # With a warm start, held-out interactions are not trained on until the next call.
            refits = train_part.nnz < X.nnz and not self.warm_start
            # The second phase needs the memory.
            del train_part, held_out
            if refits:
                least = min(components.max_iter, _LEAST_EPOCHS)
                refit(self, lambda new: self._begin_refit(X, new), callbacks, in_refit, least)
            with release_signals():
                callbacks.end_fit()
        return self

    def partial_fit(self, X, y=None):
        """Train one epoch on more interactions; users and items may be new.

        If the model stores a vector for each user, new users start with the result of ``transform``
        on the items that the model knows, at the length of trained users' vectors. New items, and
        users with only new items, start as in ``fit``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
        y : Ignored

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
                X, components = self._prepare(X, reset, partial=True)
                self._start(X, components, reset, partial=True)
                self._remember(X, more=not reset)
                known = X if reset else self._known_interactions(X.shape[1])
                train_part = X if reset else self._rows_to_train(X)
                self._keep_settings(components, known)
                n_known = self._history.n_interactions
                trainer = self._trainer_of(components, train_part, None, n_known)
            # It trains copies of the arrays: what fails is discarded with them.
            train(trainer, Phase(1, restores=False), trial)
        return self

    def _prepare(self, X, reset, partial=False, resumes=False):
        """Check the user's input; return it and the components of the fit.

        A fit that ``resumes`` has its seed, and what it knew before, from the checkpoint.
        """
        if not reset:
            self._check_trainable()
        X = self._validate_interactions(X, reset, partial)
        if reset:
            self._check_size(X.shape)
            self._seed = draw_seed(self.random_state)
            self._n_known_interactions = self._n_known_users = 0
        elif not resumes:
            self._n_known_interactions = self._history.n_interactions
            self._n_known_users = self._history.n_active_users
        return X, self._resolve_components(X)

    def _start(self, X, components, reset, partial=False):
        """Set the arrays of a new model, or check that this one can continue and let it grow."""
        if reset:
            self._init_model(X, components)
        else:
            self._check_continues(X, components, partial)
            self._check_states(components)
            self._grow(X, components)

    def _train(self, components, X, held_out, trial, callbacks):
        """Train all epochs of a fit, or as many as improve the score of what is held out."""
        self._check_epochs(components)
        with release_signals():
            trainer = self._trainer_of(components, X, held_out, X.nnz)
        phase = Phase(components.max_iter)
        if held_out is not None:
            phase = Phase(components.max_iter, self.n_iter_no_change, "ndcg")
        train(trainer, phase, trial, callbacks)

    def _begin_refit(self, X, reset):
        """Return the task that trains on all interactions, with a new model if ``reset``."""
        components = self._resolve_components(X)
        if reset:
            self._init_model(X, components)
        self._keep_settings(components, X)
        return self._trainer_of(components, X, None, self._history.n_interactions)

    def _trainer_of(self, components, X, held_out, n_known):
        score = None if held_out is None else self._scorer(X, held_out)
        return self._make_trainer(components, X, score, n_known)

    def _callbacks(self, X, X_val, n_epochs, unfinished):
        hashed = {"X": X, "X_val": X_val}
        return FitCallbacks(self, {"X": X, "y": None}, hashed, n_epochs, unfinished)

    def _validate_interactions(self, X, reset, partial):
        shape = X.shape if sparse.issparse(X) else as_array("X", X).shape
        grown = partial and not reset and len(shape) == 2 and shape[1] > self.n_features_in_
        if grown:
            self._refuse_transposed(shape)
        before = getattr(self, "feature_names_in_", None)
        X = self._validate_history(X, reset=reset or grown)
        if grown:
            self._check_names(before)
        refuse_empty(X)
        if reset:
            warn_of_heavy_weights(X.data)
        return X

    def _check_names(self, before):
        """Raise unless the names of columns begin with those that the model had before."""
        names = getattr(self, "feature_names_in_", None)
        if before is None or names is None or np.array_equal(names[: len(before)], before):
            return
        place = int(np.argmax(names[: len(before)] != before))
        raise ValueError(
            f"column {place} of X is {shown(names[place])}, but the model was trained with "
            f"{shown(before[place])} there. Put the columns of the model first, in its order, and "
            f"new items after them: X[[*model.feature_names_in_, *new_names]]."
        )

    def _rows_to_train(self, X):
        """Return what ``partial_fit`` trains on if ``X`` is what is new."""
        return X

    def _known_interactions(self, n_items):
        """Return all interactions of the model, with the row of each user."""
        return self._history.matrix((self._n_users, n_items))

    def _hold_out(self, X, X_val):
        """Return the training interactions, and those for early stopping or None."""
        wanted = self.early_stopping
        if X_val is not None:
            if not wanted:
                raise ValueError(
                    "fit was given X_val, but early_stopping=False would ignore it; set "
                    "early_stopping=True, or leave X_val out."
                )
            return X, self._given_validation(X, X_val)
        if not wanted or wanted == "auto":
            return X, None
        train, held_out = self._split(X)
        if held_out.nnz:
            return train, held_out
        raise ValueError(
            f"early_stopping=True with validation_fraction={self.validation_fraction} holds "
            f"out nothing: no user has enough interactions. Set early_stopping=False."
        )

    def _given_validation(self, X, X_val):
        """Return those held-out interactions given to ``fit`` that a model of ``X`` can find."""
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
        known_users = (np.diff(X.indptr) > 0).astype(np.float32)
        new = X_val - X_val.multiply(X != 0)
        held_out = canonical_csr(new.multiply(known_users[:, None]))
        if not held_out.nnz:
            raise ValueError(
                "X_val holds no interaction of a user who has others in X; there is nothing to "
                "find. Set early_stopping=False, or give later interactions of the same users."
            )
        return held_out

    def _split(self, X):
        """Return the interactions to train on, and those held out."""
        return split_interactions(X, self.validation_fraction, self._seed)

    def _scorer(self, X, held_out):
        """Return a function that computes the NDCG of held-out interactions of known users.

        ``X`` holds the training histories.
        """
        users = np.flatnonzero(np.diff(held_out.indptr))
        if len(users) > _VALIDATION_USERS:
            generator = np.random.default_rng(self._seed)
            users = np.sort(generator.choice(users, _VALIDATION_USERS, replace=False))
        relevant, history = take_rows(held_out, users), take_rows(X, users)
        k, n_threads = int(self.n_recommendations), count_threads(self.n_jobs)

        def score():
            queries, items = self._vectors_in_training(users, history), self._item_vectors()
            ranked, _ = top_k(
                queries, items, k, exclude=history, n_threads=n_threads, device=self.device
            )
            return float(ndcg_at_k(relevant, ranked))

        return score

    def _init_curves(self):
        """Initialise the records of a new model's epochs."""
        self.loss_curve_ = np.zeros(0)
        self.validation_scores_ = np.zeros(0)
        self.n_iter_ = 0

    def _check_states(self, components):
        """Raise unless training can continue with what the model keeps besides its vectors."""

    def _check_continues(self, X, components, partial):
        """Raise if parameters differ from those that the model to continue was trained with."""

    def _remember(self, X, more):
        """Store which users have which items; with ``more``, added to the known ones."""
        if more:
            X = self._history.plus(pad_rows(X, self._n_users))
        self._history = self._history_of(X)
        self.item_counts_ = self._counts_of(X)[1]

    def _history_of(self, X):
        return InteractionHistory.of(X, self._keeps_weights)

    def _counts_of(self, X):
        """Return the number of interactions of each user, and of each item."""
        return np.diff(X.indptr), count_columns(X)

    def _check_trainable(self):
        """Raise unless the model can be trained further: checks all histories and small arrays."""
        learned = self._check_learned()
        self._history.check_all(learned, self.n_features_in_)
        check_progress(learned, "_n_known_interactions", "_n_known_users")

    # Predictions.

    def _refuse_transposed(self, shape):
        """Raise if a matrix has the model's numbers of users and items in the other order."""
        n_users, n_items = self._history.n_users, self.n_features_in_
        if n_users != n_items and tuple(shape) == (n_items, n_users):
            raise ValueError(
                f"X of shape {tuple(shape)} looks transposed: its rows are users and its columns "
                f"items, of which the model has {n_users} and {n_items}. Pass X.T; if it is "
                f"right, add an empty row."
            )

    def _validate_history(self, X, reset=False):
        refuse_table(X)
        if not reset and hasattr(self, "_history"):
            self._refuse_transposed(getattr(X, "shape", ()))
        X, _ = validate_rows(self, X, reset=reset)
        if X.nnz and X.data.min() < 0:
            raise ValueError(
                f"Negative values in data passed to {type(self).__name__}: X holds "
                f"{X.data.min():g}, but its values are weights of interactions. Drop dislikes, or "
                f"shift ratings to be positive."
            )
        # Catches NaN too, which scikit-learn lets pass if configured to assume finite input.
        total = X.data.sum(dtype=np.float64)
        if not total <= np.finfo(np.float32).max:
            raise ValueError(
                f"X holds weights of interactions that add up to {total:g}, beyond float32; drop "
                f"NaN and infinity, and scale the others, to 1 on average for instance."
            )
        return X

    def _queries(self, X, users, seen=True):
        """Return the Queries of new users by ``X``, or of known ``users``.

        The histories of known users are left empty unless ``seen``.
        """
        self._check_learned()
        if (X is None) == (users is None):
            raise ValueError(
                "recommend needs either X, rows of histories, or users=, indices of users seen in "
                "fit; " + ("neither was given." if X is None else "both were given.")
            )
        if X is not None:
            if _is_vector_of_int(X):
                raise ValueError(
                    f"X={cut(shown(X), 80)} is not a matrix of histories, (n_users, n_items); did "
                    f"you mean users=X?"
                )
            X = self._validate_history(X)
            return Queries(self._fold_in_rows(X), X, np.diff(X.indptr) > 0)
        users = validate_ids("users", users, self._n_users)
        vectors = self._user_vectors(users)
        history = self._histories_of(users) if seen else self._no_histories(len(users))
        return Queries(vectors, history, self._is_learned("users", users))

    def _histories_of(self, users):
        """Return the rows of users seen in fit, (n, n_items) CSR."""
        return self._history.rows_of(users, self.n_features_in_, LearnedArrays(self))

    def _no_histories(self, n_users):
        """Return empty rows, (n_users, n_items) CSR."""
        return canonical_csr(sparse.csr_array((n_users, self.n_features_in_), dtype=np.float32))

    @property
    def _n_users(self):
        return self._history.n_users

    def _is_learned(self, axis, rows=slice(None)):
        """Return which of all "users" or "items", or of some, have a vector that training moved.

        Without interactions a vector keeps its random initial values.
        """
        counts = self.item_counts_[rows] if axis == "items" else self._history.counts_of(rows)
        return counts > 0

    def _unlearned(self, axis, candidates):
        """Return which of all "users" or "items", or of the candidates, have a random vector."""
        rows = _rows_of(candidates)
        if candidates is not None:
            # New items, which are described by their features, follow those of the model.
            rows = rows[rows < (self._n_users if axis == "users" else self.n_features_in_)]
        unlearned = np.flatnonzero(~self._is_learned(axis, rows))
        return unlearned if candidates is None else rows[unlearned]

    def recommend(
        self,
        X=None,
        *,
        users=None,
        n_recommendations=None,
        exclude_seen=True,
        candidates=None,
        exclude=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories; each row is folded in as a new user.
        users : int or array-like of int of shape (n_users,), default=None
            Users seen in ``fit``, by their rows. Either ``X`` or ``users`` must be given.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        exclude_seen : bool, default=True
            Whether to exclude the items of a user's history.
        candidates : array-like of int or sparse matrix of shape (n_users, n_items), default=None
            Items that may be recommended: to all users, or to each user. None allows all.
        exclude : array-like of int or sparse matrix of shape (n_users, n_items), default=None
            Items to exclude: for all users, or for each user.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores; -1 where there are too few. One-dimensional if ``users``
            is a single number.
        scores : ndarray of the same shape, float32
            Dot products, or cosines if the model ranks by these; -inf where there is no item. A
            user without history gets popular items, scored by the share of users that have them.

        Raises
        ------
        ValueError
            If neither or both of ``X`` and ``users`` are given, or indices are out of range.
        """
        exclude_seen = check_flag("exclude_seen", exclude_seen)
        wanted = WantedItems(n_recommendations, exclude_seen, candidates, exclude)
        return of_single(users, self._rank(self._queries(X, users, exclude_seen), wanted))

    def _rank(self, queries, wanted, new_items=None):
        """Return items and scores for Queries; see ``recommend``.

        ``new_items`` are vectors of items that follow those of the model.
        """
        vectors, history, learned = queries
        k = self.n_recommendations if wanted.n_recommendations is None else wanted.n_recommendations
        k = check_recommendations(k, len(vectors))
        targets, counts = self.item_factors_, self.item_counts_
        if new_items is not None:
            targets = np.concatenate([targets, new_items])
            counts = np.concatenate([counts, np.zeros(len(new_items), counts.dtype)])
            history = kernel_csr(
                history.data, history.indices, history.indptr, (len(vectors), len(counts))
            )
        hidden, for_all, candidates = self._checked_items(wanted, history)
        options = {
            "candidates": candidates,
            "n_threads": count_threads(self.n_jobs),
            "device": self.device,
        }
        unlearned = self._unlearned("items", candidates)
        if len(unlearned):
            for_all = unlearned if for_all is None else np.union1d(for_all, unlearned)
        shape = len(vectors), k
        items, scores = np.full(shape, -1), np.full(shape, -np.inf, dtype=np.float32)
        if learned.any():
            items, scores = top_k(
                vectors,
                targets,
                k,
                exclude=hidden,
                exclude_for_all=for_all,
                unit_columns=self._unit_columns,
                **options,
            )
            if (items < 0).any():
                self._check_finite(vectors, targets, candidates)
        cold = np.flatnonzero(~learned)
        if len(cold):
            # One number per item ranks by popularity. Memory is only touched where it is needed.
            share = np.zeros(len(counts), dtype=np.float32)
            asked = _rows_of(candidates)
            share[asked] = self._popularity(counts[asked])
            ones = np.ones((len(cold), 1), dtype=np.float32)
            cold_hidden = None if hidden is None else take_rows(hidden, cold)
            if sparse.issparse(candidates):
                options["candidates"] = take_rows(candidates, cold)
            items[cold], scores[cold] = top_k(
                ones, share[:, None], k, exclude=cold_hidden, exclude_for_all=for_all, **options
            )
        return items.astype(np.int64), scores

    def _checked_items(self, wanted, history):
        """Return the items hidden from each user, and from all, and the candidates; or None."""
        hidden = history if wanted.exclude_seen else None
        exclude = _some_items("exclude", wanted.exclude, history.shape)
        if sparse.issparse(exclude):
            if hidden is not None:
                exclude = canonical_csr((hidden != 0) + (exclude != 0))
            hidden, exclude = exclude, None
        return hidden, exclude, _some_items("candidates", wanted.candidates, history.shape)

    def _check_finite(self, vectors, targets, candidates):
        """Raise if users lack items because scores are not finite."""
        targets = targets[_rows_of(candidates)]
        if not (np.isfinite(vectors).all() and np.isfinite(targets).all()):
            raise ValueError(
                f"the vectors of this {type(self).__name__} hold NaN or infinity, so nothing can "
                f"be ranked; fit it again, or restore the arrays that fit has learned."
            )

    def transform(self, X):
        """Return the embeddings of users by their histories.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        embeddings : ndarray of shape (n_users, n_components), float32
            Each row is folded in: its embedding depends only on that row and the trained items. A
            row without items gives zeros.
        """
        self._check_learned()
        return self._fold_in_rows(self._validate_history(X))

    def predict(self, X):
        """Return recommended items for users by their histories, excluding the items they have.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores; -1 where there are too few.
        """
        return self.recommend(X)[0]

    def score(self, X, y=None):
        """Return the mean NDCG of recommendations, at ``n_recommendations``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Histories.
        y : {array-like, sparse matrix} of shape (n_users, n_items), or array-like of int of shape \
                (n_users,), default=None
            Items to be found: all entries that are not zero, or one item for each user. None holds
            out a fifth of each row of ``X``, chosen by the row's content, so that every model is
            tested on the same items.

        Returns
        -------
        ndcg : float
            Mean over users with at least one item to be found; nan if there are none.

        Raises
        ------
        TypeError, ValueError
            If ``y`` has another shape, or contains anything but numbers.
        """
        return self._score_users(X, y)[0]

    def _score_users(self, X, y):
        """Return the mean NDCG of users with items to be found, and how many these are."""
        self._check_learned()
        X = self._validate_history(X)
        if y is None:
            X, y = holdout_by_content(X, fraction=_HELD_OUT)
        else:
            y = _to_be_found(y, X.shape)
        if y.nnz == 0:
            return float("nan"), 0
        items, _ = self.recommend(X)
        return float(ndcg_at_k(y, items)), np.count_nonzero(np.diff(y.indptr))

    def predict_pairs(self, users, items):
        """Return the scores of pairs of users and items.

        Parameters
        ----------
        users, items : array-like of int of shape (n_pairs,)
            Users seen in ``fit``, and items.

        Returns
        -------
        scores : ndarray of shape (n_pairs,), float32
            The scores that ``recommend`` ranks by: for users without history and features the
            share of users that have the item. -inf for items without interactions and features,
            which are not recommended.
        """
        self._check_learned()
        users = validate_ids("users", users, self._n_users)
        items = validate_ids("items", items, self.n_features_in_)
        if len(users) != len(items):
            raise ValueError(
                f"users and items are pairs, but there are {len(users)} users and {len(items)} "
                f"items."
            )
        some_users, user_at = np.unique(users, return_inverse=True)
        some_items, item_at = np.unique(items, return_inverse=True)
        user_vectors, item_vectors = self._user_vectors(some_users), self._item_vectors(some_items)
        scores = np.empty(len(users), dtype=np.float32)
        for begin in range(0, len(users), _PAIRS):
            part = slice(begin, begin + _PAIRS)
            scores[part] = np.einsum(
                "pf,pf->p", user_vectors[user_at[part]], item_vectors[item_at[part]]
            )
        cold = ~self._is_learned("users", users)
        scores[cold] = self._popularity(self.item_counts_[items[cold]])
        scores[~self._is_learned("items", items)] = -np.inf
        return scores

    def _popularity(self, counts):
        """Return the shares of users that have items, by how many do."""
        return (counts / max(1, self._n_users)).astype(np.float32)

    def export_vectors(self):
        """Return vectors of users and items whose dot products are the scores of ``recommend``.

        For servers and nearest-neighbour indexes by inner (dot) product, see
        :doc:`/production`.

        Returns
        -------
        users : ndarray of shape (n_users, d), float32
            Of users seen in ``fit``. The vectors of users without interactions, to whom
            ``recommend`` gives popular items, have no meaning.
        items : ndarray of shape (n_items, d), float32
            At unit length if the model ranks by cosines. Biases of items, if the model has them,
            are in the last column, in which users have ones.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import MFRecommender
        >>> from freqfm.datasets import make_interactions
        >>> X = make_interactions(200, 100, random_state=0)
        >>> model = MFRecommender(n_components=16, max_iter=5, random_state=0).fit(X)
        >>> users, vectors = model.export_vectors()
        >>> best = np.argmax(vectors @ users[3])
        >>> items, _ = model.recommend(users=3, n_recommendations=1, exclude_seen=False)
        >>> bool(items[0] == best)
        True
        """
        self._check_learned()
        return self._user_vectors(np.arange(self._n_users)), np.array(self._item_vectors())

    def similar_items(self, items, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the items most similar to given items, by the cosine of their vectors.

        Parameters
        ----------
        items : int or array-like of int of shape (n_items,)
        n_recommendations : int, default=10
            How many; an item is not counted as similar to itself. Items without interactions
            are not similar to any.
        candidates : array-like of int, default=None
            Items that may be returned; None allows all.
        exclude : array-like of int, default=None
            Items that may not be returned.

        Returns
        -------
        similar : ndarray of shape (n_items, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single item.
        cosines : ndarray of the same shape, float32
            -inf where there is no item.
        """
        return self._similar("items", items, n_recommendations, candidates, exclude)

    def similar_users(self, users, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the users most similar to given users seen in fit, by the cosine of their vectors.

        Parameters
        ----------
        users : int or array-like of int of shape (n_users,)
        n_recommendations : int, default=10
            How many; a user is not counted as similar to itself. Users without interactions
            are not similar to any.
        candidates : array-like of int, default=None
            Users that may be returned; None allows all.
        exclude : array-like of int, default=None
            Users that may not be returned.

        Returns
        -------
        similar : ndarray of shape (n_users, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single user.
        cosines : ndarray of the same shape, float32
            -inf where there is no user.
        """
        return self._similar("users", users, n_recommendations, candidates, exclude)

    def _similar(self, axis, ids, n_recommendations, candidates, exclude):
        self._check_learned()
        table, width = self._similarity_table(axis)
        chosen = validate_ids(axis, ids, len(table))
        k = check_recommendations(n_recommendations, len(chosen))
        if candidates is not None:
            candidates = validate_ids("candidates", candidates, len(table))
        hidden = self._unlearned(axis, candidates)
        if exclude is not None:
            hidden = np.union1d(hidden, validate_ids("exclude", exclude, len(table)))
        itself = kernel_csr(
            np.ones(len(chosen), dtype=np.float32),
            chosen,
            np.arange(len(chosen) + 1),
            (len(chosen), len(table)),
        )
        # Zeros in the query ignore columns that are not compared.
        queries = np.zeros((len(chosen), table.shape[1]), dtype=np.float32)
        queries[:, :width] = unit_rows(table[chosen, :width])
        similar, cosines = top_k(
            queries,
            table,
            k,
            exclude=itself,
            exclude_for_all=hidden,
            candidates=candidates,
            unit_columns=width,
            n_threads=count_threads(self.n_jobs),
            device=self.device,
        )
        cold = ~self._is_learned(axis, chosen)
        similar[cold], cosines[cold] = -1, -np.inf
        similar = similar.astype(np.int64)
        return of_single(ids, (similar, cosines))


def check_recommendations(n_recommendations, n_rows):
    """Return how many are wanted of each row, if it is a count and the results fit into memory."""
    k = check_count("n_recommendations", n_recommendations)
    # 16 bytes for each: an index in two types, and a score.
    what = f"n_recommendations={k} for each of {n_rows} rows"
    check_memory(2 * k * n_rows, what, "Ask for fewer, or for fewer rows at a time.")
    return k


def of_single(ids, ranked):
    """Return what is ranked for ids and its scores, one-dimensional if they are a single number."""
    found, scores = ranked
    return (found[0], scores[0]) if ids is not None and np.ndim(ids) == 0 else ranked


def refuse_empty(X):
    """Raise if a matrix holds no interactions."""
    if not X.nnz:
        raise ValueError(
            f"X of shape {X.shape} holds no interaction: there is nothing to learn from."
        )


def split_interactions(X, fraction, seed):
    """Return the kept and the held-out interactions of a canonical matrix, as such matrices."""
    train, held_out = holdout_interactions(X, fraction, random_state=seed)
    return canonical_csr(train), canonical_csr(held_out)


def _some_items(name, items, shape):
    """Return items given by indices, for all users, or by a sparse matrix, for each; or None."""
    if not sparse.issparse(items):
        return None if items is None else validate_ids(name, items, shape[1])
    items = as_csr(name, items)
    if items.shape != shape:
        raise ValueError(
            f"{name} has shape {items.shape}, but there are {shape[0]} users and {shape[1]} items."
        )
    return items


def _rows_of(candidates):
    """Return an index of the candidates, given as a vector, a sparse matrix, or None for all."""
    if candidates is None:
        return slice(None)
    return np.unique(candidates.indices if sparse.issparse(candidates) else candidates)


def _is_vector_of_int(X):
    if sparse.issparse(X):
        return False
    X = as_array("X", X)
    return X.ndim < 2 and X.dtype.kind in "iu"


def _to_be_found(y, shape):
    """Return the items to be found, given as a matrix or as one item for each user."""
    y = y if sparse.issparse(y) else as_array("y", y)
    n_users, n_items = shape
    if y.shape != shape and y.shape in ((n_users,), (n_users, 1)) and not sparse.issparse(y):
        items = validate_ids("y", y.ravel(), n_items)
        return kernel_csr(np.ones(n_users), items, np.arange(n_users + 1), shape)
    if y.shape != shape:
        raise ValueError(
            f"y has shape {y.shape}; it must hold the items to be found, with X's shape {shape} "
            f"or as {n_users} indices of items. Pass y=None to hide a part of X instead."
        )
    return as_csr("y", y)
