"""What recommenders learn from and store: likes and dislikes, and whose they are."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import (
    column_sums,
    concatenated_ranges,
    count_columns,
    csr_of,
    entries_where,
    row_sums,
    split_signs,
    take_rows,
    with_one_index_type,
)
from freqfm._input.validation import canonical_csr, kernel_csr, validate_rows
from freqfm._messages import warn_user
from freqfm.backbones._described import Queries
from freqfm.estimators.recommenders.index import Request, check_recommendations
from freqfm.estimators.training import score_by
from freqfm.model_selection import holdout_interactions
from freqfm.model_selection._scorer import RankingScorer

# Early stopping evaluates at most this many users, the same ones in every epoch.
_VALIDATION_USERS = 5000

# Values that are added up before the sum is added to that of the values before: in the order of
# ``ndarray.sum``, and of parts on several machines.
_SUMMED = 8192


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

    def total(self):
        """Return the sum of the weights of likes."""
        return total_of([summands(self.X.data)])

    def sums(self, axis):
        """Return the sums of the weights of likes over rows, axis 0, or over items, float64."""
        return row_sums(self.X) if axis else column_sums(self.X)

    def squares_times(self, of_items):
        """Return the product of the matrix of squares of weights and a vector, float64."""
        X = with_one_index_type(self.X)
        squares = X.data.astype(np.float64) ** 2
        return sparse.csr_array((squares, X.indices, X.indptr), X.shape) @ of_items

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

    def dislikes_beside(self, known):
        """Return the dislikes of users with known likes; None if there are none."""
        found = None if self.dislikes is None else of_users(self.dislikes, known.X)
        return found if found is not None and found.nnz else None

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
        return [replace(self, X=X, dislikes=part) for X, part in zip(likes, disliked, strict=True)]

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
        scorer = model._ranking_scorer()
        exclude = hidden if getattr(scorer, "exclude_seen", True) else None
        if not isinstance(scorer, RankingScorer):
            return lambda: score_by(scorer, model, hidden, relevant)
        check_recommendations(scorer.k, len(rows), X.shape[1], "k")

        def score():
            if model._stores_users:
                vectors = model._user_vectors(users, *context)
            else:
                vectors = model._fold_in_rows(history)
            ranked, _ = model._item_index().search(vectors, Request(scorer.k), exclude)
            return scorer.measure(relevant, ranked)

        return score


class InteractionHistory(NamedTuple):
    """Which items each user has: the rows of a canonical CSR matrix."""

    indptr: np.ndarray  #: (n_users + 1,), where each user's items begin and end
    indices: np.ndarray  #: (n_interactions,), items
    weights: np.ndarray  #: (n_interactions,), float32; or empty if all are one

    @classmethod
    def of(cls, X, weighted):
        """Return the history that a canonical matrix holds.

        Parameters
        ----------
        X : csr_array of shape (n_users, n_items)
        weighted : bool
            Whether weights are stored, unless they are all one.
        """
        weighted = weighted and bool((X.data != 1).any())
        weights = X.data.copy() if weighted else np.zeros(0, dtype=np.float32)
        return cls(X.indptr.copy(), X.indices.copy(), weights)

    @property
    def n_users(self):
        """The number of users."""
        return len(self.indptr) - 1

    @property
    def n_interactions(self):
        """The number of interactions of all users."""
        return len(self.indices)

    @property
    def counts(self):
        """The number of items of each user."""
        return self.counts_of(slice(None))

    def counts_of(self, users):
        """Return the number of items of some users, by an array of int or a slice."""
        return self.indptr[1:][users] - self.indptr[:-1][users]

    def matrix(self, shape):
        """Return the history as a canonical matrix with as many rows or more."""
        weights = self.weights
        if not len(weights):
            weights = np.ones(self.n_interactions, dtype=np.float32)
        known = kernel_csr(weights, self.indices, self.indptr, (self.n_users, shape[1]))
        return pad_rows(known, shape[0])

    def rows_of(self, users, n_items, learned, name="_history"):
        """Return the rows of some users, (n, n_items) CSR; raise if these rows are damaged.

        Parameters
        ----------
        users : ndarray of int
        n_items : int
        learned : LearnedArrays
            Of the model. All rows are only checked before training, see ``check_all``.
        name : str
            The attribute of the model, for messages.
        """
        starts = self.indptr[users].astype(np.int64)
        ends = self.indptr[users + 1].astype(np.int64)
        fits = not len(users) or (starts.min() >= 0 and ends.max() <= self.n_interactions)
        fits = fits and (starts <= ends).all()
        learned.require(fits, f"{name}.indptr", f"does not rise from 0 to {self.n_interactions}")
        indptr = np.concatenate([[0], np.cumsum(ends - starts)])
        places = concatenated_ranges(starts, ends - starts)
        items = self.indices[places]
        learned.indices(f"{name}.indices", items, n_items)
        weights = np.ones(len(items), dtype=np.float32)
        if len(self.weights):
            weights = self.weights[places]
        return kernel_csr(weights, items, indptr, (len(users), n_items))

    def check(self, learned, name="_history", n_users=None):
        """Raise if the arrays do not belong together; indices are checked when they are used."""
        n_bounds = None if n_users is None else n_users + 1
        (n_bounds,) = learned.array(f"{name}.indptr", (n_bounds,), "iu", value=self.indptr)
        learned.require(n_bounds > 0, f"{name}.indptr", "is empty")
        n = int(self.indptr[-1])
        learned.array(f"{name}.indices", (n,), "iu", value=self.indices)
        n_weights = n if np.size(self.weights) else 0
        learned.array(f"{name}.weights", (n_weights,), value=self.weights)

    def check_all(self, learned, n_items, name="_history"):
        """Raise unless all rows are well-formed."""
        learned.indices(f"{name}.indptr", self.indptr, self.n_interactions + 1)
        learned.require((self.counts >= 0).all(), f"{name}.indptr", "falls")
        learned.indices(f"{name}.indices", self.indices, n_items)


def summands(values, first=0):
    """Return what ``total_of`` adds up of values, the first of which has this number among all.

    Returns
    -------
    head, sums, tail : ndarray
        The values before the first whole block, the sums of whole blocks, and the values after.
    """
    head = min(-first % _SUMMED, len(values))
    end = len(values) - (len(values) - head) % _SUMMED
    blocks = values[head:end].reshape(-1, _SUMMED)
    return values[:head], np.array([block.sum(dtype=np.float64) for block in blocks]), values[end:]


def total_of(parts):
    """Return the sum of values, given the ``summands`` of consecutive parts of them.

    The result does not depend on the parts.
    """
    total, waiting = 0.0, np.zeros(0, dtype=np.float32)
    for head, sums, tail in parts:
        waiting = np.concatenate([waiting, head])
        if len(waiting) == _SUMMED:
            sums = np.concatenate([[waiting.sum(dtype=np.float64)], sums])
            waiting = waiting[:0]
        total = np.cumsum(np.append(total, sums))[-1]
        waiting = np.concatenate([waiting, tail])
    return float(total + waiting.sum(dtype=np.float64))


def noise_edge(X, item_counts):
    """Return the largest eigenvalue that the graph of items has by chance, but for the first.

    See the notes of GraphFilterRecommender.
    """
    n, m = (X.nnz / np.count_nonzero(counts) for counts in (np.diff(X.indptr), item_counts))
    return float((n**-0.5 + m**-0.5) ** 2)


def likes_of_new_users(interactions, n_users, n_items):
    """Return the likes, among the first ``n_items``, of users after the first ``n_users``."""
    likes = interactions.rows(np.arange(n_users, interactions.shape[0]))
    likes.resize(likes.shape[0], n_items)
    return canonical_csr(likes)


def with_dislikes(X, dislikes):
    """Return a matrix of likes with dislikes as negative values, in place of likes of these pairs.

    Both are canonical; dislikes may have fewer rows, or be None.
    """
    if dislikes is None or not dislikes.nnz:
        return X
    dislikes = with_one_index_type(pad_rows(dislikes, X.shape[0]))
    return canonical_csr(with_one_index_type(without(X, dislikes)) - dislikes)


def without(X, pairs):
    """Return a canonical matrix without the entries of pairs that another one of its shape has.

    Either may be None, which has no entries.
    """
    if X is None or pairs is None:
        return X
    both = with_one_index_type(X).multiply(with_one_index_type(pairs) != 0)
    if not both.nnz:
        return X
    return canonical_csr(with_one_index_type(X) - both)


def sum_of(X, Y):
    """Return the sum of two canonical matrices, as such a matrix."""
    return canonical_csr(with_one_index_type(X) + with_one_index_type(Y))


def of_users(X, others):
    """Return a canonical matrix with those rows alone that have entries in ``others``."""
    return entries_where(X, np.repeat(np.diff(others.indptr) > 0, np.diff(X.indptr)))


def pair_numbers(X, users=None):
    """Return a number for each entry: of the row's user times the number of items, plus the item.

    Without ``users`` rows are users; the numbers of a canonical matrix then ascend.
    """
    users = np.arange(X.shape[0]) if users is None else users
    return np.repeat(users, np.diff(X.indptr)) * X.shape[1] + X.indices


def are_among(ascending, numbers):
    """Return which numbers occur among ascending ones."""
    if not len(ascending):
        return np.zeros(numbers.shape, dtype=bool)
    return np.take(ascending, np.searchsorted(ascending, numbers), mode="clip") == numbers


def parted(X, users, known):
    """Return the interactions of queries that a matrix of users holds, and those it does not.

    Parameters
    ----------
    X : csr_array of shape (n_queries, n_items)
        Canonical, as are the results.
    users : ndarray of int of shape (n_queries,)
    known : csr_array of shape (n_users, n_items)
        Canonical.
    """
    found = are_among(pair_numbers(known), pair_numbers(X, users))
    return [entries_where(X, part) for part in (found, ~found)]


def pad_rows(X, n_rows):
    """Return a canonical matrix with empty rows at the end, so that it has at least ``n_rows``.

    None stays None.
    """
    return X if X is None or n_rows <= X.shape[0] else among_empty_rows(X, 0, n_rows)


def among_empty_rows(X, before, n_rows):
    """Return a matrix of ``n_rows``, with the rows of ``X`` after so many empty ones."""
    indptr = np.pad(X.indptr, (before, n_rows - before - X.shape[0]), mode="edge")
    return csr_of(X.data, X.indices, indptr, (n_rows, X.shape[1]))


def split_interactions(X, fraction, seed):
    """Return the kept and the held-out interactions of a canonical matrix, as such matrices."""
    parts = holdout_interactions(X, fraction, random_state=seed)
    return [canonical_csr(part) for part in parts]
