"""The interactions that recommenders store, rows of users, and folding in."""

from typing import NamedTuple

import numpy as np

from freqfm import backends
from freqfm._input.rows import (
    concatenated_ranges,
    csr_of,
    entries_where,
    split_signs,
    with_one_index_type,
)
from freqfm._input.validation import canonical_csr, kernel_csr
from freqfm.backends.base import DislikedItems, FoldInProblem, Histories
from freqfm.losses import BPR, PairwiseLoss


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


N_STEPS = 20

# A step moves a user to the gradient plus this share of the squared inverse temperature, times the
# mean squared length of the others, times the current vector: a bound of the loss's curvature for
# typical scores. A user whose loss rises by more than float32 explains moves less from then on.
INERTIA, LARGEST_RISE = 0.1, 1e-4


class UserLoss(NamedTuple):
    """The loss of one user as a function of the user's vector u, which has unit length.

    For items v_p with shares w_p of the user's weight and other vectors o_j it is, pairwise, ::

        sum_p w_p mean_j loss(inverse u v_p, inverse u o_j),

    loss(a, b) = log(1 + exp(b - a)) for BPR, and otherwise ::

        -positive sum_p w_p u v_p + constant log sum_j exp(inverse u o_j).

    Dislikes add ``pulls_of_disliked``.
    """

    others: np.ndarray  #: (m, d)
    pairwise: PairwiseLoss | None
    positive: float  #: inverse temperature of the user's items, times the length of users
    inverse: float  #: inverse temperature of the others, times the length of users
    constant: float
    #: inverse temperature of pairs of the user's items and disliked ones, times the length of users
    inverse_of_disliked: float = 1.0

    @property
    def inertia(self):
        """How much of a user's vector is kept in a step."""
        squared_length = np.mean(np.einsum("id,id->i", self.others, self.others, dtype=np.float64))
        return INERTIA * self.inverse**2 * squared_length * self.constant

    def gradient_parts(self, user, vectors, shares):
        """Return the negative gradient with respect to a user in parts: ``pulls @ vectors - push``.

        Parameters
        ----------
        user : ndarray of shape (d,)
            At unit length.
        vectors : ndarray of shape (n, d)
            Vectors of the user's items.
        shares : ndarray of shape (n,)
            Shares of the user's weight; they sum to one.
        """
        scores = self.inverse * (self.others @ user)
        if self.pairwise:
            positive_scores = self.inverse * (vectors @ user)[:, None]
            of_pairs = self.pairwise.pair_gradients(positive_scores, scores)
            by_item, by_other = (shares[:, None] * g / len(self.others) for g in of_pairs)
            push = self.inverse * by_other.sum(axis=0) @ self.others
            return -self.inverse * by_item.sum(axis=1), push
        softmax = np.exp(scores - scores.max())
        push = self.constant * self.inverse * (softmax / softmax.sum()) @ self.others
        return self.positive * shares, push

    def pulls_of_disliked(self, user, vectors, shares, disliked, shares_of_disliked):
        """Return what dislikes add to the pulls of the user's items, and their own pulls.

        The loss of dislikes j of shares d_j is sum_j d_j sum_p w_p loss(x u v_p, x u v_j), with
        ``inverse_of_disliked`` x. For parameters see ``gradient_parts``.
        """
        inverse, loss = self.inverse_of_disliked, self.pairwise or BPR()
        scores = inverse * (vectors @ user)[:, None], inverse * (disliked @ user)
        parts = loss.pair_gradients(*scores)
        weights = -inverse * np.outer(shares, shares_of_disliked)
        return [(weights * part).sum(axis=1 - k) for k, part in enumerate(parts)]


def fold_in_rows(loss, X, items, indices, n_threads, device="cpu"):
    """Return the unit vectors of users by the rows of a matrix, (n, d) float32; zeros if empty.

    Rows with negative values, dislikes, are folded in on the CPU.

    Parameters
    ----------
    loss : UserLoss
    X : csr_array
        Canonical; dislikes are negative.
    items : ndarray of shape (n_items, d)
        Vectors of items, as the loss compares them.
    indices : ndarray of int32
        The row of ``items`` for each entry of ``X``.
    n_threads : int
    device : str, default="cpu"
    """
    terms = loss._asdict() | {"pairwise": loss.pairwise is not None}
    del terms["inverse_of_disliked"]
    terms |= {"inertia": loss.inertia, "largest_rise": LARGEST_RISE, "n_steps": N_STEPS}
    problem = FoldInProblem(items=items, **terms)
    formulas = loss.pairwise.replacements() if loss.pairwise else None
    likes, dislikes = split_signs(csr_of(X.data, indices, X.indptr, (X.shape[0], len(items))))
    weights = scale_rows(likes.indptr, likes.data)
    given = problem, Histories(likes.indptr, likes.indices, weights), n_threads, formulas
    if dislikes is None:
        return backends.serve(device, "fold_in", *given)
    shares = shares_of_likes(likes, dislikes).astype(np.float32)
    disliked = dislikes.indptr, dislikes.indices, shares, loss.inverse_of_disliked
    return backends.serve("cpu", "fold_in", *given, DislikedItems(*disliked))


def shares_of_likes(likes, dislikes):
    """Return the weights of dislikes divided by the sum of the user's likes, float64.

    In training a dislike of the weight of a like counts as much as it.
    """
    users = np.repeat(np.arange(likes.shape[0]), np.diff(likes.indptr))
    totals = np.bincount(users, weights=likes.data, minlength=likes.shape[0])
    return dislikes.data / np.repeat(np.where(totals > 0, totals, 1), np.diff(dislikes.indptr))
