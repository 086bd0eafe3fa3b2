"""The interface between models and hardware: what an estimator may ask a backend for.

An estimator calls ``backends.get(device)`` and uses nothing else of this folder. Arrays that go in
and out are NumPy arrays; scratch memory, tiles, threads and streams belong to the backend. All
results are the same for any number of threads, and random numbers come from the counter-based
generator of ``formulas.rng``, keyed by seed, epoch and index, so that any backend draws the same.

The tuples below are what estimators and backends hand to each other; compiled code reads them too.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

__all__ = ["Backend", "UpdateRule"]


class UpdateRule(NamedTuple):
    """How rows move along their gradients and decay; codes as in ``formulas.codes``."""

    step_code: int
    rate_code: int
    count_code: int
    catch_up: int  #: how a row makes up the steps of batches that did not touch it
    decay_code: int
    lazy: bool  #: whether rows absent from a batch are left alone
    decoupled: bool  #: whether the decay is a factor of the row, as in AdamW
    average: bool  #: whether a step follows the mean of a batch's gradients, or their sum
    decay: float  #: weight decay of a row that a batch touches
    idle_decay: float  #: and of one that it does not
    hyper: np.ndarray  #: (N_HYPER,), float64


class Backend(ABC):
    """What a kind of hardware does for the models.

    A trainer is a context manager that holds what an epoch needs: packed data, scratch, threads.
    """

    #: As users name it: "cpu".
    name: str

    # Factorization machines.

    @abstractmethod
    def fm_trainer(self, problem, n_threads):
        """Return a trainer of whole epochs, fused: score, loss, gradient and step in one pass."""

    @abstractmethod
    def fm_scores(self, X, outputs, n_threads):
        """Return the scores of canonical CSR rows under every output, (n_outputs, n_rows)."""

    @abstractmethod
    def fm_forward(self, X, output, n_threads):
        """Return the scores of rows, and the sums of x v that ``fm_backward`` wants."""

    @abstractmethod
    def fm_backward(self, X, output, sums, derivatives, n_threads):
        """Return the gradient of all weights by the derivatives of a loss by the scores."""

    # Recommenders.

    @abstractmethod
    def ranking_trainer(self, problem, n_threads):
        """Return a trainer of whole epochs over the positives of users, by a family of losses."""

    @abstractmethod
    def fold_in(self, problem, X, n_threads):
        """Return unit vectors of users by their histories, items held fixed."""

    @abstractmethod
    def autoencoder_trainer(self, problem, n_threads):
        """Return what an autoencoder over histories does per item: sums, softmax and steps."""

    @abstractmethod
    def draw(self, proposal, queries, key, n, n_threads):
        """Return ``n`` items for each query, and the logarithms of how likely they were."""

    @abstractmethod
    def top_k(self, queries, items, k, excluded, unit_columns, n_threads):
        """Return the ``k`` items with the largest scores for each query, and the scores."""
