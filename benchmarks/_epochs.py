"""Synthetic rows, and epochs that can be timed one by one."""

import time

import numpy as np
from scipy import sparse

from freqfm.estimators.fm.base import set_penalties
from freqfm.estimators.recommenders.trained import STARTS


def power_law_rows(n_rows, n_columns, per_row, seed=0):
    """Return rows of distinct ones, one in each of ``per_row`` equal groups of columns.

    In a group a few columns are in most rows: the k-th most frequent is drawn in proportion to
    k ** (-2 / 3). Frequent columns are anywhere in their group.
    """
    rng = np.random.default_rng(seed)
    size = n_columns // per_row
    indices = np.empty((n_rows, per_row), dtype=np.int32)
    for group in range(per_row):
        ranks = (size * rng.random(n_rows, dtype=np.float32) ** 3).astype(np.int32)
        places = rng.permutation(size).astype(np.int32) + np.int32(group * size)
        indices[:, group] = places[np.minimum(ranks, size - 1)]
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int64)
    data = np.ones(n_rows * per_row, dtype=np.float32)
    return sparse.csr_array((data, indices.ravel(), indptr), shape=(n_rows, size * per_row))


def task_of(model, X, **changes):
    """Return the task that a recommender's ``fit`` trains, with some components changed."""
    given = model._read(X, reset=True)
    known = given.by_user
    components = model._resolved(given, known, STARTS)._replace(**changes)
    components = model._begin(components, given, known, known, STARTS)
    return model._make_trainer(components, given, known, None)


class Epochs:
    """What ``model.fit(X)`` or ``model.fit(X, y)`` trains epoch by epoch."""

    def __init__(self, model, X, y=None):
        if y is not None:
            rows, _ = model._prepare(X, y, None, None, reset=True)
            set_penalties(model, reset=True)
            self._task = model._begin(rows, reset=True)
        else:
            self._task = task_of(model, X)
        self._n_epochs = 0

    @property
    def n_epochs_of_fit(self):
        """The number of epochs that a fit has."""
        return self._task.components.max_iter

    def restart(self):
        """Let the next epoch be the first, with the weights that it finds."""
        self._n_epochs = 0

    def __call__(self):
        """Train an epoch; return its seconds, without those that starting threads takes."""
        with self._task:
            start = time.perf_counter()
            self._task.run_epoch(self._n_epochs)
            self._n_epochs += 1
            return time.perf_counter() - start


class EpochsOfFit(Epochs):
    """Epochs with what a fit does for each of them: the weights are copied, trained and checked.

    A context manager: threads, or a GPU's copies of the weights, are kept from call to call.
    """

    def __enter__(self):
        self._task.__enter__()
        self._last = self._task.snapshot()
        return self

    def __exit__(self, *exception):
        self._task.__exit__(*exception)

    def __call__(self):
        """Train an epoch; return its seconds."""
        start = time.perf_counter()
        self._last.save()
        self._task.run_epoch(self._n_epochs)
        self._task.largest_weight()
        self._n_epochs += 1
        return time.perf_counter() - start
