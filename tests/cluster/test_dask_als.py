"""Alternating least squares on a Dask cluster: the bits of one machine."""

import os
import pickle
import signal
from itertools import pairwise

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
fdask = pytest.importorskip("freqfm.dask")
pd = pytest.importorskip("pandas")

from test_dask import assert_same, cluster_of, prompt_messages, split  # noqa: E402, F401
from test_dask_faults import after, close_worker, loaded, of_processes  # noqa: E402, F401

import freqfm  # noqa: E402
from freqfm.callbacks import Checkpoint, resume  # noqa: E402
from freqfm.datasets import make_interactions  # noqa: E402
from freqfm.estimators.recommenders.interactions import Interactions, summands, total_of  # noqa: E402

ALS = {"n_components": 6, "max_iter": 3, "random_state": 0, "n_jobs": 1}
ARRAYS = ("user_factors_", "item_factors_", "loss_curve_", "item_counts_")
# Users of one partition, of a tile's part, of none, and of many tiles.
BOUNDS = [0, 1, 40, 333, 333, 400]


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def likes():
    return make_interactions(400, 90, 6000, random_state=0).tocsr().astype(np.float32)


@pytest.fixture(scope="module")
def weighted(likes):
    """Return interactions whose weights are no integers, some of them dislikes."""
    generator, X = np.random.default_rng(0), likes.copy()
    X.data = (0.01 + 3 * generator.random(X.nnz)).astype(np.float32)
    X.data[generator.random(X.nnz) < 0.1] *= -1
    return X


@pytest.mark.slow
def test_bits_are_those_of_one_machine(client, likes, weighted):
    chosen = {"unobserved_weight": 0.1, "regularization": 0.2}
    exact = {"solver": "cholesky", "cg_steps": 1}
    cases = [(likes, exact), (abs(weighted), {}), (weighted, exact), (weighted, chosen)]

    @each("X, params", cases)
    def same(X, params):
        plain = freqfm.ALSRecommender(**ALS, **params).fit(X)
        for n_shards, bounds in ((1, [0, 7, 400]), (4, BOUNDS)):
            model = fdask.ALSRecommender(n_shards=n_shards, **ALS, **params).fit(split(X, bounds))
            assert_same(plain, model, ARRAYS)
            assert model._objective == plain._objective

    same()


def test_sums_do_not_depend_on_parts():
    values = np.random.default_rng(0).lognormal(0, 5, 40_000).astype(np.float32)
    expected = values.sum(dtype=np.float64)

    @each("bounds", [[0, 40_000], [0, 1, 5, 8192, 30_001, 40_000], [0, 8000, 8001, 20_000, 40_000]])
    def same(bounds):
        assert total_of([summands(values[a:b], a) for a, b in pairwise(bounds)]) == expected

    same()
    assert total_of([summands(values[:0])]) == 0


def test_lists_are_those_of_one_machine(client, weighted, tmp_path):
    plain = freqfm.ALSRecommender(**ALS).fit(weighted)
    X = split(weighted, BOUNDS)
    model = fdask.ALSRecommender(n_shards=3, **ALS).fit(X)
    users = np.array([350, 3, 39, 3])
    for found, expected in zip(
        model.recommend(users=users), plain.recommend(users=users), strict=True
    ):
        assert_array_equal(found, expected)
    assert_array_equal(model.predict(X).compute(), plain.predict(weighted))
    assert_array_equal(model.transform(X).compute(), plain.transform(weighted))
    model.recommend_to(tmp_path)
    written, (items, scores) = pd.read_parquet(tmp_path), plain.recommend(users=np.arange(400))
    assert_array_equal(written["item"], items[scores > -np.inf])
    local = model.to_local()
    assert type(local) is freqfm.ALSRecommender
    for name in ("_history", "_dislikes"):
        for found, expected in zip(getattr(local, name), getattr(plain, name), strict=True):
            assert_array_equal(found, expected)
    stored = pickle.loads(pickle.dumps(model))
    with pytest.raises(RuntimeError, match="interactions of fit, which are on workers"):
        stored.recommend(users=[1])
    with pytest.raises(AttributeError, match=r"ALSRecommender of freqfm\.dask has no partial_fit"):
        model.partial_fit(X)


@pytest.mark.slow
def test_dislikes_beside_likes(client, likes):
    dislikes = sparse.random_array((400, 90), density=0.02, rng=0, format="csr", dtype=np.float32)
    plain = freqfm.ALSRecommender(**ALS).fit(likes, dislikes=dislikes)
    model = fdask.ALSRecommender(n_shards=2, **ALS)
    model.fit(split(likes, BOUNDS), dislikes=split(dislikes, BOUNDS))
    assert_same(plain, model, ARRAYS)
    with pytest.raises(ValueError, match="X has 400 rows, but dislikes has 399"):
        model.fit(split(likes, BOUNDS), dislikes=split(dislikes[1:], [0, 399]))


@pytest.mark.slow
def test_early_stopping_and_warm_starts(client, likes, weighted):
    params = {**ALS, "early_stopping": True}
    plain = freqfm.ALSRecommender(**params).fit(weighted)
    model = fdask.ALSRecommender(n_shards=1, **params).fit(split(weighted, BOUNDS))
    assert_same(plain, model, [*ARRAYS, "validation_scores_"])
    model = fdask.ALSRecommender(n_shards=3, **params).fit(split(weighted, BOUNDS))
    assert len(model.validation_scores_) == 3 and 0 < min(model.validation_scores_) < 1
    plain = freqfm.ALSRecommender(**ALS, warm_start=True)
    model = fdask.ALSRecommender(n_shards=2, **ALS, warm_start=True)
    for _ in range(2):
        plain.fit(likes), model.fit(split(likes, BOUNDS))
    assert_same(plain, model, ARRAYS)
    scorer = {"early_stopping": True, "scoring": "neg_dislike_rate"}
    with pytest.raises(ValueError, match="counts dislikes .* on a cluster"):
        fdask.ALSRecommender(**ALS, **scorer).fit(split(weighted, BOUNDS))
    with pytest.raises(ValueError, match="ALSRecommender solves on the CPU only"):
        fdask.ALSRecommender(**ALS, device="cuda").fit(split(likes, BOUNDS))
    with pytest.raises(TypeError, match="n_merges"):
        fdask.ALSRecommender(n_merges=2)


@pytest.mark.slow
def test_checkpoints(client, likes, tmp_path, monkeypatch):
    X, path = split(likes, BOUNDS), tmp_path / "als.checkpoint"
    whole = fdask.ALSRecommender(n_shards=2, **ALS).fit(X)
    trainer = type(whole._make_trainer(whole._resolve_components(*[whole._interactions] * 2),
                                       whole._interactions, None, None))  # fmt: skip
    run_epoch = trainer.run_epoch

    def interrupted(self, epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return run_epoch(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            clone(whole).set_callbacks(Checkpoint(path)).fit(X)
    continued = resume(path)
    assert continued.n_iter_ == 2
    assert_same(continued.fit(X), whole, ARRAYS)


@pytest.mark.slow
def test_a_lost_worker_changes_nothing(likes):
    X, solved = loaded(likes, BOUNDS), []
    expected = freqfm.ALSRecommender(**ALS).fit(likes)

    @each("n_calls", [5, 6, 7])
    def same(n_calls):
        with (
            cluster_of(3) as cluster,
            distributed.Client(cluster, set_as_default=False) as other,
            pytest.MonkeyPatch.context() as patch,
        ):
            solved.append(after(n_calls, patch, lambda: close_worker(cluster)))
            model = fdask.ALSRecommender(client=other, n_shards=3, **ALS).fit(X)
            assert len(other.nthreads()) == 2
        assert_same(expected, model, ARRAYS)

    same()


@pytest.mark.slow
@pytest.mark.alone
def test_workers_that_are_killed_change_nothing(of_processes, weighted):  # noqa: F811
    params = {**ALS, "client": of_processes, "n_shards": 2, "max_iter": 5}
    expected = fdask.ALSRecommender(**params).fit(loaded(weighted, BOUNDS))
    pids = of_processes.run(os.getpid)

    def kill():
        os.kill(pids.popitem()[1], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        after(9, patch, kill)
        calls = after(11, patch, kill)
        model = fdask.ALSRecommender(**params).fit(loaded(weighted, BOUNDS))
    assert len(calls) >= 11 and not pids
    assert_same(model, expected, ARRAYS)
    # Sums of rows and items do not depend on the partitions either.
    known = model._interactions
    plain = Interactions.of(weighted)
    assert known.total() == plain.total()
    for axis in range(2):
        assert_array_equal(known.sums(axis), plain.sums(axis))
