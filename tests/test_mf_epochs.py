"""How an epoch of a recommender is cut into rows and batches: what the scratch must hold."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import MFRecommender
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.losses import BPR, DirectAU, Softmax

# A few long histories: in an epoch's order, neighbouring blocks are often of one user.
HISTORIES = np.array([203, 0, 97, 64, 1, 2, 150])


class WholeUsers(Softmax):
    """A softmax over batches of whole users."""

    block = None


def task_of(loss, batch_size, seed):
    """Return an untrained task, in whose data the weight of a positive is its number."""
    generator = np.random.default_rng(seed)
    items = [np.sort(generator.choice(210, n, replace=False)) for n in HISTORIES]
    indptr = np.concatenate([[0], np.cumsum(HISTORIES)])
    weights = np.arange(1.0, indptr[-1] + 1)
    X = sparse.csr_array((weights, np.concatenate(items), indptr), shape=(len(HISTORIES), 210))
    model = MFRecommender(2, loss=loss, batch_size=batch_size, random_state=seed)
    X, axes = model._prepare(X, reset=True, partial=False)
    model._init_model(X, axes)
    return MFTrainer(model, axes, X, score=None, n_threads=1, n_known=X.nnz)


@pytest.mark.parametrize("batch_size", [5, 32, 10_000])
@pytest.mark.parametrize("loss", [Softmax(), BPR(), DirectAU(), WholeUsers()], ids=repr)
def test_rows_and_batches_fit_the_scratch(loss, batch_size):
    some_neighbours = False
    for seed in range(3):
        task = task_of(loss, batch_size, seed)
        users = np.repeat(np.arange(len(HISTORIES)), HISTORIES)
        for epoch in range(5):
            data = task._shuffle(epoch)
            # Rows and batches are not empty, and begin and end with the epoch.
            sizes = np.diff(data.row_starts)
            pairs = np.diff(data.row_starts[data.batch_starts])
            assert sizes.sum() == pairs.sum() == len(users) == len(data.items)
            assert sizes.min() >= 1 and sizes.max() <= (loss.block or HISTORIES.max())
            assert pairs.min() >= 1 and pairs.max() <= len(task._trainer._user_occurrences.tokens)
            # Each positive comes once, in a row of its user.
            visited = np.argsort(data.weights)
            assert_array_equal(data.weights[visited], task.X.data)
            assert_array_equal(data.items[visited], task.X.indices)
            assert_array_equal(np.repeat(data.row_users, sizes)[visited], users)
            some_neighbours |= (np.diff(data.row_users) == 0).any()
    # Whole users have no neighbours of their own; for others the test would see too little.
    assert some_neighbours == (loss.block is not None)
