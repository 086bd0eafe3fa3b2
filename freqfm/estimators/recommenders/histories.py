"""The interactions that recommenders store, and helpers for rows of users."""

from typing import NamedTuple

import numpy as np

from freqfm._input.rows import (
    concatenated_ranges,
    csr_of,
    entries_where,
    with_one_index_type,
)
from freqfm._input.validation import canonical_csr, kernel_csr


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

    @property
    def n_active_users(self):
        """The number of users who have items."""
        return int(np.count_nonzero(self.counts))

    def matrix(self, shape):
        """Return the history as a canonical matrix with as many rows or more."""
        weights = self.weights
        if not len(weights):
            weights = np.ones(self.n_interactions, dtype=np.float32)
        known = kernel_csr(weights, self.indices, self.indptr, (self.n_users, shape[1]))
        return pad_rows(known, shape[0])

    def plus(self, X, weighted):
        """Return the sum of this history and a canonical matrix with as many rows or more.

        All weights are one unless ``weighted``.
        """
        known = sum_of(self.matrix(X.shape), X)
        if not weighted:
            known.data[:] = 1
        return known

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


def noise_edge(X, item_counts):
    """Return the largest eigenvalue that the graph of items has by chance, but for the first.

    See the notes of GraphFilterRecommender.
    """
    n, m = (X.nnz / np.count_nonzero(of) for of in (np.diff(X.indptr), item_counts))
    return float((n**-0.5 + m**-0.5) ** 2)


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
    parts = []
    for part in (found, ~found):
        indptr = np.append(0, np.cumsum(part))[X.indptr]
        parts.append(kernel_csr(X.data[part], X.indices[part], indptr, X.shape))
    return parts


def pad_rows(X, n_rows):
    """Return a canonical matrix with empty rows at the end, so that it has at least ``n_rows``.

    None stays None.
    """
    if X is None:
        return None
    missing = n_rows - X.shape[0]
    if missing <= 0:
        return X
    indptr = np.concatenate([X.indptr, np.full(missing, X.indptr[-1])])
    return csr_of(X.data, X.indices, indptr, (n_rows, X.shape[1]))


def scale_rows(indptr, weights):
    """Return row weights, scaled if their squares could leave float32; only shares matter.

    The factors are powers of two, one for each row, so that every bit of a share is preserved.
    """
    if not len(weights) or (float(weights.min()) > 1e-9 and float(weights.max()) < 1e9):
        return weights
    lengths = np.diff(indptr)
    filled = lengths > 0
    _, exponents = np.frexp(np.maximum.reduceat(weights, indptr[:-1][filled]))
    return np.ldexp(weights, -np.repeat(exponents, lengths[filled]))
