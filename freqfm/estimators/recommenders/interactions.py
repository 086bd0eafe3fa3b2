"""What recommenders learn from: likes and dislikes, and whose they are."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import split_signs, take_rows, with_one_index_type
from freqfm._input.validation import canonical_csr, count_columns, count_threads, validate_rows
from freqfm._messages import warn_user
from freqfm.backbones._described import Queries
from freqfm.estimators.recommenders.histories import (
    InteractionHistory,
    of_users,
    pad_rows,
    parted,
    sum_of,
    with_dislikes,
    without,
)
from freqfm.estimators.recommenders.index import check_recommendations
from freqfm.estimators.training import score_by
from freqfm.metrics._ranking import top_k
from freqfm.model_selection import holdout_interactions
from freqfm.model_selection._scorer import RankingScorer

# Early stopping evaluates at most this many users, the same ones in every epoch.
_VALIDATION_USERS = 5000


@dataclass(frozen=True, eq=False)
class Interactions:
    """What a recommender learns from; a value.

    Parameters
    ----------
    X : csr_array of shape (n_rows, n_items)
        Likes; canonical, values are weights. A row is a user, or with ``queries`` a user in a
        context.
    dislikes : csr_array of shape (n_users, n_items), default=None
        Canonical, with positive weights; of other pairs than the likes.
    queries : Queries, default=None
        The user and the context of each row.
    """

    X: sparse.csr_array
    dislikes: sparse.csr_array | None = None
    queries: Queries | None = None

    @classmethod
    def of(cls, X):
        """Return those of a canonical matrix, whose negative values are dislikes."""
        return cls(*split_signs(X))

    @property
    def shape(self):
        """The number of rows, and of items."""
        return self.X.shape

    @property
    def nnz(self):
        """The number of likes."""
        return self.X.nnz

    @property
    def indptr(self):
        """Where the likes of each row begin, and those of the last one end."""
        return self.X.indptr

    @cached_property
    def item_counts(self):
        """How many rows like each item."""
        return count_columns(self.X)

    @property
    def by_user(self):
        """The same with a row for each user."""
        return self if self.queries is None else self._of_users

    @cached_property
    def _of_users(self):
        users = np.repeat(self.queries.users, np.diff(self.X.indptr))
        shape = self.queries.n_users, self.X.shape[1]
        X = sparse.coo_array((self.X.data, (users, self.X.indices)), shape=shape)
        return Interactions(canonical_csr(X.tocsr()))

    @property
    def signed(self):
        """The matrix of likes, and of dislikes as negative values."""
        return with_dislikes(self.X, self.dislikes)

    def rows(self, users):
        """Return the likes of some users, a matrix."""
        return take_rows(self.by_user.X, users)

    def history(self, weighted):
        """Return what the model keeps of the likes; see ``InteractionHistory``."""
        return InteractionHistory.of(self.by_user.X, weighted)

    def shown(self):
        """Return what callbacks of scikit-learn are shown."""
        return {"X": self.signed, "y": None}

    def hashed(self, X_val):
        """Return what a checkpoint hashes, with the Interactions for validation that are given."""
        return {"X": self.signed, "X_val": None if X_val is None else X_val.signed}

    def padded(self, n_users):
        """Return the same with rows for at least so many users."""
        if self.queries is not None:
            n_users = max(n_users, self.queries.n_users)
            return replace(self, queries=self.queries._replace(n_users=n_users))
        return Interactions(pad_rows(self.X, n_users), pad_rows(self.dislikes, n_users))

    def plus(self, new, weighted):
        """Return these and later ones, by user; weights are one unless ``weighted``.

        Of a pair that is liked and disliked the last call counts.
        """
        X, dislikes = sum_of(self.X, new.X), without(self.dislikes, new.X)
        if not weighted:
            X.data[:] = 1
        if dislikes is not None and new.dislikes is not None:
            dislikes = sum_of(dislikes, new.dislikes)
        dislikes = new.dislikes if dislikes is None else dislikes
        return Interactions(without(X, new.dislikes), dislikes)

    def beside_likes(self, known):
        """Return these dislikes with the likes that are known of their users."""
        return replace(self, X=of_users(known.X, self.dislikes))

    # For validation.

    def split(self, fraction, seed, dislikes):
        """Return Interactions to train on, and held-out ones: a part of the likes of each user.

        With ``dislikes`` also a part of these.
        """
        kept, held_out = split_interactions(self.by_user.X, fraction, seed)
        disliked = [self.dislikes, None]
        if dislikes and self.dislikes is not None:
            disliked = split_interactions(self.dislikes, fraction, seed)
            disliked[1] = of_users(disliked[1], kept)
        if self.queries is not None:
            kept, held_out = parted(self.X, self.queries.users, kept)
        likes = kept, held_out
        return [replace(self, X=X, dislikes=of) for X, of in zip(likes, disliked, strict=True)]

    def validated_on(self, model, X_val, scorer, dislikes):
        """Return those held-out interactions given to ``fit`` that a model of these can find.

        With ``dislikes`` also those of users with likes.
        """
        try:
            refuse_table(X_val)
            X_val, _ = validate_rows(model, X_val, reset=False)
        except ValueError as error:
            raise ValueError(f"Validation set X_val: {error}") from None
        if X_val.shape != self.shape:
            raise ValueError(
                f"X_val has {X_val.shape[0]} rows, but X has {self.shape[0]}; give held-out "
                f"interactions of the same users, in the same order."
            )
        likes, disliked = split_signs(canonical_csr(X_val))
        known = self.by_user.X
        has_others = np.diff(known.indptr) > 0
        if self.queries is None:
            new = without(without(likes, known), self.dislikes)
            disliked = without(without(disliked, self.dislikes), known) if dislikes else None
            disliked = disliked if disliked is None else of_users(disliked, known)
        else:
            new, disliked = parted(likes, self.queries.users, known)[1], None
            has_others = has_others[self.queries.users]
        if not getattr(scorer, "exclude_seen", True):
            new = likes
        elif new.nnz < likes.nnz:
            warn_user(
                f"{likes.nnz - new.nnz} of {likes.nnz} pairs in X_val are of items that the user "
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
        return replace(self, X=held_out, dislikes=disliked)

    def score_of(self, model, held_out):
        """Return a function that scores a model of these on held-out Interactions."""
        X = held_out.signed
        rows = np.flatnonzero(np.diff(X.indptr))
        if len(rows) > _VALIDATION_USERS:
            generator = np.random.default_rng(model._seed)
            rows = np.sort(generator.choice(rows, _VALIDATION_USERS, replace=False))
        users, context = rows, ()
        if self.queries is not None:
            users, context = self.queries.users[rows], (take_rows(self.queries.context, rows),)
        relevant, history = take_rows(X, rows), self.rows(users)
        # But those held out, which may be found.
        hidden = without(model._with_dislikes(history, users), relevant)
        unlearned = np.flatnonzero(~model._is_learned("items"))
        scorer, n_threads = model._ranking_scorer(), count_threads(model.n_jobs)
        exclude = hidden if getattr(scorer, "exclude_seen", True) else None
        if not isinstance(scorer, RankingScorer):
            return lambda: score_by(scorer, model, hidden, relevant)
        check_recommendations(scorer.k, len(rows), X.shape[1], "k")

        def score():
            if model._stores_users:
                vectors = model._user_vectors(users, *context)
            else:
                vectors = model._fold_in_rows(history)
            ranked, _ = top_k(
                vectors,
                model._item_table(),
                scorer.k,
                exclude=exclude,
                exclude_for_all=unlearned,
                unit_columns=model._unit_columns,
                n_threads=n_threads,
                device=model.device,
            )
            return scorer.measure(relevant, ranked)

        return score


def split_interactions(X, fraction, seed):
    """Return the kept and the held-out interactions of a canonical matrix, as such matrices."""
    parts = holdout_interactions(X, fraction, random_state=seed)
    return [canonical_csr(part) for part in parts]
