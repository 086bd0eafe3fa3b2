"""Folding in: the vector that minimises a user's loss, with all other vectors fixed."""

from typing import NamedTuple

import numpy as np

from freqfm import backends
from freqfm.backends.base import FoldInProblem, Histories
from freqfm.estimators.recommenders.histories import scale_rows
from freqfm.losses import PairwiseLoss

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
    """

    others: np.ndarray  #: (m, d)
    pairwise: PairwiseLoss | None
    positive: float  #: inverse temperature of the user's items, times the length of users
    inverse: float  #: inverse temperature of the others, times the length of users
    constant: float

    @property
    def inertia(self):
        """How much of a user's vector is kept in a step."""
        squared_length = np.mean(np.einsum("id,id->i", self.others, self.others, dtype=np.float64))
        return INERTIA * self.inverse**2 * squared_length * self.constant

    def pulls_and_push(self, user, vectors, shares):
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


def fold_in_rows(loss, X, items, indices, n_threads, device="cpu"):
    """Return the unit vectors of users by the rows of a matrix, (n, d) float32; zeros if empty.

    Parameters
    ----------
    loss : UserLoss
    X : csr_array
        Canonical.
    items : ndarray of shape (n_items, d)
        Vectors of items, as the loss compares them.
    indices : ndarray of int32
        The row of ``items`` for each entry of ``X``.
    n_threads : int
    device : str, default="cpu"
    """
    terms = loss._asdict() | {"pairwise": loss.pairwise is not None}
    terms |= {"inertia": loss.inertia, "largest_rise": LARGEST_RISE, "n_steps": N_STEPS}
    problem = FoldInProblem(items=items, **terms)
    formulas = loss.pairwise.replacements() if loss.pairwise else None
    histories = Histories(X.indptr, indices, scale_rows(X.indptr, X.data))
    return backends.serve(device, "fold_in", problem, histories, n_threads, formulas)
