"""What recommenders learn from: likes and dislikes, and whose they are."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from freqfm._input.rows import split_signs
from freqfm._input.validation import canonical_csr, count_columns
from freqfm.estimators.recommenders.histories import with_dislikes


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
    queries: tuple | None = None

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
        rows = np.repeat(self.queries.users, np.diff(self.X.indptr))
        shape = self.queries.n_users, self.X.shape[1]
        X = sparse.coo_array((self.X.data, (rows, self.X.indices)), shape=shape)
        return Interactions(canonical_csr(X.tocsr()))

    @property
    def signed(self):
        """The matrix of likes, and of dislikes as negative values."""
        return with_dislikes(self.X, self.dislikes)
