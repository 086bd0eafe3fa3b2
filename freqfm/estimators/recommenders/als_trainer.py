"""The training task of alternating least squares: items are solved first, then users."""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._input.rows import with_one_index_type
from freqfm._input.validation import count_columns
from freqfm.backends.base import Histories, LeastSquaresProblem
from freqfm.estimators.training import TrainingTask

__all__ = ["ALSTrainer", "Objective"]


# The default regularization, relative to the scale of noise; 0.4 to 0.5 are equally good.
_OF_NOISE = 0.45


class Objective(NamedTuple):
    """The numbers of the squared error that a fit minimises."""

    unobserved_weight: float
    regularization: float
    exponent: float

    @classmethod
    def of(cls, model, X):
        """Return the objective of a fit to ``X``; parameters that are None depend on it."""
        n_users, n_items = X.shape
        total = float(X.data.sum(dtype=np.float64))
        weight, exponent = total / X.nnz, float(model.regularization_exponent)
        unobserved = model.unobserved_weight
        if unobserved is None:
            unobserved = weight * np.sqrt(X.nnz / n_users / n_items)
        regularization = model.regularization
        if regularization is None:
            regularization = _OF_NOISE * _scale_of_noise(X, float(unobserved), exponent)
        return cls(float(unobserved), float(regularization), exponent)

    def problem(self, factors, histories, n_steps):
        """Return the backend's problem for rows with these histories; 0 steps solve exactly."""
        starts, _, weights = histories
        totals, filled = np.zeros(len(starts) - 1), starts[:-1] < starts[1:]
        if filled.any():
            totals[filled] = np.add.reduceat(weights, starts[:-1][filled], dtype=np.float64)
        return LeastSquaresProblem(
            factors=factors,
            unobserved_weight=self.unobserved_weight,
            penalties=self.penalties(totals, len(factors)),
            n_steps=n_steps,
        )

    def penalties(self, totals, n_others):
        """Return the penalty of rows by the sums of their weights, float32."""
        scale = _growth(totals, n_others, self.unobserved_weight, self.exponent)
        with np.errstate(over="ignore"):
            return (self.regularization * scale).astype(np.float32)

    def check(self, learned):
        """Raise unless this is what a fit has stored."""
        for name, value in self._asdict().items():
            learned.require(isinstance(value, float), f"_objective.{name}", f"is {value!r}")


def _growth(totals, n_others, unobserved_weight, exponent):
    """Return by how much the regularization of rows is multiplied, by the sums of their weights."""
    return (totals + unobserved_weight * n_others) ** exponent


def _scale_of_noise(X, unobserved_weight, exponent):
    """Return how large the singular values of noise are, in units of the regularization.

    Near zero the loss is the sum over all pairs of -2 a_ui u^T v, and the penalties p_u |u|^2 and
    p_i |v|^2, times the regularization. It falls along the singular vectors of the matrix
    a_ui / sqrt(p_u p_i) whose singular value is above the regularization. If interactions fell on
    pairs at random, with a variance of their mean, singular values would reach about the root of
    the mean sum of squares of a row, plus that of a column. The first singular value is at least
    the larger of the two, so that vectors never vanish at half of their sum.
    """
    of_users, of_items = (
        _growth(X.sum(axis=axis, dtype=np.float64), n_others, unobserved_weight, -exponent)
        for axis, n_others in ((1, X.shape[1]), (0, X.shape[0]))
    )
    X = with_one_index_type(X)
    squares = sparse.csr_array((X.data.astype(np.float64) ** 2, X.indices, X.indptr), X.shape)
    n_rows = np.count_nonzero(np.diff(X.indptr))
    n_columns = np.count_nonzero(count_columns(X))
    return np.sqrt(of_users @ (squares @ of_items)) * (n_rows**-0.5 + n_columns**-0.5)


class ALSTrainer(TrainingTask):
    """A task for the epoch loop, see ``TrainingTask``.

    Parameters
    ----------
    model : ALSRecommender
        Initialised; its factors are updated in place.
    components : Components
    X : csr_array of shape (n_users, n_items)
        Canonical; values are weights.
    score : callable or None
        Returns the validation score of the model.
    n_threads : int
    """

    _names = "user_factors_", "item_factors_"
    divergence_hint = (
        "scaling the weights in X to about 1, or a larger regularization or unobserved_weight"
    )

    def __init__(self, model, components, X, score, n_threads):
        self.model, self.validation_score = model, score
        self._n_steps, self._n_threads = components.n_steps, n_threads
        self._objective = components.objective
        by_item = with_one_index_type(X).T.tocsr()
        self._of_users = Histories(X.indptr.astype(np.int64), X.indices, X.data)
        self._of_items = Histories(
            by_item.indptr.astype(np.int64), by_item.indices.astype(np.int32), by_item.data
        )
        self._total = float(X.data.sum(dtype=np.float64))
        # Least squares are solved on the CPU, by threads that start with each call.
        self._backend = backends.get()

    def run_epoch(self, epoch):
        """Solve all items, then all users; return the loss per weight of an interaction."""
        users, items = self.model.user_factors_, self.model.item_factors_
        _, penalties = self._solve(items, users, self._of_items)
        losses, _ = self._solve(users, items, self._of_users)
        # The losses of users contain their own penalties only.
        squares = np.einsum("nf,nf->n", items, items, dtype=np.float64)
        return float(losses.sum() + penalties @ squares) / self._total

    def _solve(self, rows, factors, histories):
        """Solve the rows of a table; return their losses and their penalties."""
        problem = self._objective.problem(factors, histories, self._n_steps)
        operands = problem, histories, rows, self._n_threads
        _, losses = backends.start(self.model.device, "least_squares", *operands)
        return losses, problem.penalties.astype(np.float64)
