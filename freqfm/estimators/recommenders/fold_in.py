"""The vectors of users by their histories, with all items fixed: folding in."""

from typing import NamedTuple

import numpy as np

from freqfm import backends
from freqfm._input.rows import csr_of, split_signs
from freqfm.backends.base import DislikedItems, FoldInProblem, Histories
from freqfm.losses import BPR, PairwiseLoss


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
