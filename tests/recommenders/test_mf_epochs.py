"""How an epoch of a recommender is cut into rows and batches: what the scratch must hold."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import MFRecommender
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.recommenders.trained import STARTS
from freqfm.losses import BPR, DirectAU, Softmax
from freqfm.samplers import Popularity, Uniform

# A few long histories: in an epoch's order, neighbouring blocks are often of one user.
HISTORIES = np.array([203, 0, 97, 64, 1, 2, 150])


class Unweighted(Softmax):
    """A softmax that leaves weights as they are given."""

    shrinkage = 0.0


class WholeUsers(Unweighted):
    """A softmax over batches of whole users."""

    block = None


def task_of(loss, batch_size, seed, **params):
    """Return an untrained task, in whose data the weight of a positive is its number."""
    generator = np.random.default_rng(seed)
    items = [np.sort(generator.choice(210, n, replace=False)) for n in HISTORIES]
    indptr = np.concatenate([[0], np.cumsum(HISTORIES)])
    weights = np.arange(1.0, indptr[-1] + 1)
    X = sparse.csr_array((weights, np.concatenate(items), indptr), shape=(len(HISTORIES), 210))
    model = MFRecommender(2, loss=loss, batch_size=batch_size, random_state=seed, **params)
    given = model._read(X, reset=True)
    components = model._resolved(given, given, STARTS)
    components = model._begin(components, given, given, given, STARTS)
    return MFTrainer(model, components, given, given, score=None, n_threads=1)


@pytest.mark.parametrize("batch_size", [5, 32, 10_000])
@pytest.mark.parametrize("loss", [Unweighted(), BPR(), DirectAU(), WholeUsers()], ids=repr)
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
    # Neighbouring blocks may be of one user, except whole users; the test must see such blocks.
    assert some_neighbours == (loss.block is not None)


@pytest.mark.parametrize("loss", [Unweighted(), BPR(), WholeUsers()], ids=repr)
def test_an_order_belongs_to_its_seed_and_epoch(loss):
    def order(seed, epoch):
        return task_of(loss, 32, seed)._shuffle(epoch).weights

    first = order(0, 0)
    assert_array_equal(order(0, 0), first)
    for other in (order(0, 1), order(1, 0)):
        assert_array_equal(np.sort(other), np.sort(first))
        assert (other != first).any()


LISTED = pytest.mark.parametrize(
    "loss, sampler",
    [
        (Softmax(), Uniform()),
        (Softmax(), Popularity()),
        (Softmax(), Uniform(shared=False)),
        (BPR(), Uniform()),
        (BPR(), Popularity()),
    ],
    ids=repr,
)


@LISTED
def test_negatives_belong_to_their_seed_epoch_and_number(loss, sampler):
    def drawn(seed, epoch, *bounds):
        task = task_of(loss, 40, seed, negative_sampler=sampler, n_negatives=3)
        data = task._shuffle(epoch)
        with task:
            task._trainer.begin_epoch(epoch, data, *task._epoch_of(len(data.batch_starts) - 1))
            parts = pairwise(bounds)
            return np.concatenate([task._negatives(epoch, *part, None) for part in parts])

    whole = drawn(0, 2, 0, 9)
    # However many batches a call trains on.
    assert_array_equal(drawn(0, 2, 0, 1, 4, 5, 9), whole)
    for other in (drawn(1, 2, 0, 9), drawn(0, 3, 0, 9)):
        assert (other[:9] != whole[:9]).any()
    assert len(np.unique(whole[:9], axis=0)) > 1


@LISTED
def test_drawn_lists_are_bitwise_reproducible_for_any_number_of_threads(loss, sampler):
    X = sparse.random(60, 50, density=0.2, random_state=0, format="csr")
    X.data[:] = 1
    models = [
        MFRecommender(
            4, loss=loss, negative_sampler=sampler, n_negatives=5, batch_size=64, max_iter=2,
            random_state=0, n_jobs=n_jobs,
        ).fit(X)
        for n_jobs in (1, 2, 3)
    ]  # fmt: skip
    for model in models[1:]:
        assert_array_equal(model.user_factors_, models[0].user_factors_)
        assert_array_equal(model.item_factors_, models[0].item_factors_)


def test_bpr_has_fewer_epochs_and_lower_rates_with_many_interactions(monkeypatch):
    X = make_interactions(100, 80, 1600, random_state=0)

    def resolved(**params):
        model = MFRecommender(4, **params)
        model._n_known_interactions = 0
        found = model._resolve_components(Interactions(X), Interactions(X))
        return found.max_iter, pytest.approx(found.optimizer.learning_rate)

    usual = {name: resolved(loss=name) for name in ("bsl", "bpr", "warp", "macr")}
    assert [found[0] for found in usual.values()] == [50, 50, 50, 30]
    assert usual["bpr"] == (50, 0.05)
    # The root of the share, and at least a half.
    for many, expected in ((784, (35, 0.035)), (100, (25, 0.025))):
        monkeypatch.setattr(BPR, "shorter_from", many)
        assert resolved(loss="bpr") == resolved(loss=BPR()) == expected
    # Other losses, and what is given, are as they were.
    for name in ("bsl", "warp", "macr"):
        assert resolved(loss=name)[0] == usual[name][0]
    assert resolved(loss="bpr", max_iter=50) == (50, 0.05)
    assert resolved(loss="bpr", learning_rate=0.2) == (25, 0.2)
    assert resolved(loss="bpr", optimizer="rowwise_adagrad") == (50, 0.05)
    assert resolved(loss="bpr", backbone="lightgcn") == (50, 0.05)
    assert MFRecommender(4, loss="bpr", random_state=0).fit(X).n_iter_ == 25
