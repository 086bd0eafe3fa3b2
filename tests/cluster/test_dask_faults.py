"""Estimators on a Dask cluster: what stays on workers, and what happens when these are lost."""

import functools
import os
import pickle
import signal
from itertools import pairwise

import numpy as np
import processes
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
fdask = pytest.importorskip("freqfm.dask")
da = pytest.importorskip("dask.array")

from test_dask import (  # noqa: E402
    SHORT,
    THREE,
    TWO,
    assert_same,
    cluster_of,
    prompt_messages,  # noqa: F401
    split,
)

import freqfm  # noqa: E402
from freqfm.callbacks import Checkpoint, resume  # noqa: E402
from freqfm.dask import _users  # noqa: E402
from freqfm.dask._cluster import Cluster  # noqa: E402
from freqfm.dask._shards import seed_of  # noqa: E402
from freqfm.datasets import make_clicks, make_interactions  # noqa: E402
from freqfm.estimators.recommenders.interactions import split_interactions  # noqa: E402
from freqfm.metrics import ndcg_at_k  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # a dozen clusters

USERS = [0, 30, 30, 100, 120]  # the bounds of partitions, of which one is empty
MF = {"n_components": 4, "max_iter": 3, "random_state": 0, "n_jobs": 1}
MF_ARRAYS = ("user_factors_", "item_factors_", "loss_curve_", "item_counts_")


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def of_processes():
    """Return a client of a cluster of processes, which replaces those that are killed.

    Each test has its own: Dask gives up a worker that is killed again while it starts, or a
    while after it was lost before.
    """
    processes.context()  # else dask would choose what the processes are forked from
    with (
        dask.config.set(
            {
                "distributed.worker.multiprocessing-method": processes.START,
                # Dask gives up tasks whose workers die again and again.
                "distributed.scheduler.allowed-failures": 100,
                "distributed.deploy.lost-worker-timeout": "1 hour",
            }
        ),
        cluster_of(2, processes=True) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        yield client


@pytest.fixture(scope="module")
def rows():
    X, y = make_clicks(400, (30, 20, 10), random_state=0)
    return sparse.csr_array(X), y


@pytest.fixture(scope="module")
def histories():
    return make_interactions(120, 40, 2000, random_state=0)


def loaded(X, bounds):
    """Return X as a Dask array of rows that functions load on the workers."""
    parts = [
        da.from_delayed(dask.delayed(X.__getitem__)(slice(a, b)), (b - a, X.shape[1]), meta=X[:0])
        for a, b in pairwise(bounds)
    ]
    return da.concatenate(parts)


def of_unknown_sizes(X, bounds):
    """Return X as a Dask array whose blocks are the rows between bounds, empty ones too."""
    parts = [
        da.from_delayed(dask.delayed(X[a:b]), (np.nan, *X.shape[1:]), meta=X[:0])
        for a, b in pairwise(bounds)
    ]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


def close_worker(cluster):
    """Close an in-process worker, with all that only it holds."""
    cluster.sync(next(iter(cluster.workers.values())).close, executor_wait=False)


def after(n_calls, patch, action):
    """Do something before a call of ``Cluster.gather``; return the list of calls."""
    calls, gather = [], Cluster.gather

    def counted(self, futures):
        calls.append(futures)
        if len(calls) == n_calls:
            action()
        return gather(self, futures)

    patch.setattr(Cluster, "gather", counted)
    return calls


# Interactions stay on the workers.


def test_interactions_never_reach_the_client(client, monkeypatch):
    X = make_interactions(90, 300, 12_000, random_state=0)
    sizes = []

    def noting(name):
        method = getattr(Cluster, name)

        def noted(self, values):
            found = method(self, values)
            sizes.extend(len(pickle.dumps(value)) for value in (values, found)[name == "gather"])
            return found

        monkeypatch.setattr(Cluster, name, noted)

    noting("gather"), noting("send")
    model = fdask.MFRecommender(**THREE, **{**MF, "n_components": 1, "early_stopping": True})
    model.fit(loaded(X, [0, 30, 60, 90]))
    assert len(sizes) > 10
    # A shard's interactions are a third of X. The model of its users is the largest of all.
    assert max(sizes) < (X.data.nbytes + X.indices.nbytes) / 3 / 2


def test_recommender_knows_histories_on_workers(client, histories):
    model = fdask.MFRecommender(**TWO, **MF).fit(split(histories, USERS))
    local, users = model.to_local(), np.array([100, 3, 35, 3])
    for found, expected in zip(
        model.recommend(users=users), local.recommend(users=users), strict=True
    ):
        assert_array_equal(found, expected)
    hidden = histories[users].toarray()
    found = model.recommend(users=users, n_recommendations=5)[0]
    assert found.min() >= 0 and not hidden[np.arange(4)[:, None], found].any()
    assert_array_equal(model.user_temperatures_, local.user_temperatures_)
    assert model.temperature_ == local.temperature_
    copy = pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.recommend(histories)[0], local.recommend(histories)[0])
    for call in (copy.to_local, lambda: copy.recommend(users=[1])):
        with pytest.raises(RuntimeError, match="interactions of fit, which are on workers"):
            call()


def test_recommender_predicts_lazily(client, histories):
    X = split(histories, USERS)
    model = fdask.MFRecommender(**TWO, **MF).fit(X)
    local = model.to_local()
    for method in ("predict", "transform"):
        lazy, expected = getattr(model, method)(X), getattr(local, method)(histories)
        assert lazy.shape == expected.shape and lazy.dtype == expected.dtype
        assert_array_equal(lazy.compute(), expected)
    assert model.score(X) == pytest.approx(local.score(histories))
    X, y = split_interactions(histories, 0.3, 0)
    found = model.score(split(X, USERS), split(y, USERS))
    assert found == pytest.approx(local.score(X, y))
    with pytest.raises(TypeError, match="X is a Dask collection, of which this method would fetch"):
        model.recommend(split(X, USERS))
    with pytest.raises(TypeError, match="X is of type csr_array"):
        model.predict(histories)
    assert not hasattr(model, "partial_fit")


def test_early_stopping_of_recommenders_scores_all_shards(client, histories):
    # With a warm start the model of the best epoch is kept.
    params = {**MF, "max_iter": 1, "early_stopping": True, "warm_start": True, "n_jobs": 1}
    model = fdask.MFRecommender(**TWO, **params).fit(split(histories, [0, 50, 120]))
    parts = [
        split_interactions(histories[a:b], 0.1, seed_of(model._seed, i))
        for i, (a, b) in enumerate([(0, 50), (50, 120)])
    ]
    known, held_out = (
        sparse.csr_array(np.vstack([part.toarray() for part in of]))
        for of in zip(*parts, strict=True)
    )
    found = model.to_local().recommend(
        users=np.arange(120), exclude_seen=False, exclude=known, n_recommendations=10
    )
    assert model.validation_scores_[0] == pytest.approx(ndcg_at_k(held_out, found[0]))


def test_recommender_continues(client, histories, tmp_path):
    X, params = split(histories, USERS), {**MF, "n_shards": 1}
    plain = freqfm.MFRecommender(**MF, warm_start=True)
    model = fdask.MFRecommender(**params, warm_start=True)
    for _ in range(2):
        plain.fit(histories), model.fit(X)
    assert_same(plain, model, MF_ARRAYS)
    with pytest.raises(ValueError, match="partitions of X have"):
        model.fit(X[:, :30])


# Lost workers, and a lost scheduler.


@pytest.fixture(scope="module")
def undisturbed(client, histories):
    """Return a recommender of three shards that has lost no worker."""
    model = fdask.MFRecommender(client=client, **THREE, early_stopping=True, **MF)
    return model.fit(loaded(histories, USERS))


@pytest.mark.parametrize("n_calls", [7, 8])
def test_a_lost_worker_changes_no_recommender(undisturbed, histories, n_calls):
    X = loaded(histories, USERS)
    with (
        cluster_of(3) as cluster,
        distributed.Client(cluster, set_as_default=False) as other,
        pytest.MonkeyPatch.context() as patch,
    ):
        # In the second epoch, or when it is scored: users' arrays are on the lost worker.
        after(n_calls, patch, lambda: close_worker(cluster))
        model = clone(undisturbed).set_params(client=other).fit(X)
        assert len(other.nthreads()) == 2
        assert_array_equal(model.to_local()._history.indices, histories.indices)
    assert_same(undisturbed, model, [*MF_ARRAYS, "validation_scores_"])


def test_persisted_collections_outlive_their_worker(rows):
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        X, y = loaded(rows[0], [0, 200, 400]), da.from_array(rows[1], chunks=200)
        params = {**SHORT, **TWO, "max_iter": 3, "client": client}
        expected = fdask.FMClassifier(**params).fit(X, y)
        X = X.persist()
        distributed.wait(X)
        with pytest.MonkeyPatch.context() as patch:
            # In the second epoch of several: results that are there may still be fetched.
            after(7, patch, lambda: close_worker(cluster))
            assert_same(fdask.FMClassifier(**params).fit(X, y), expected)
        assert len(client.nthreads()) == 1


def test_lost_data_are_named(client):
    lost = client.submit(len, "lost")
    lost.cancel()
    with pytest.raises(RuntimeError, match="only they held .* instead of scattered data"):
        Cluster(client).gather([lost])


def test_a_checkpoint_outlives_the_scheduler(rows, tmp_path):
    path, params = tmp_path / "fm.checkpoint", {**SHORT, **TWO, "max_iter": 3}
    X, y = loaded(rows[0], [0, 200, 400]), da.from_array(rows[1], chunks=200)
    cluster, trainer = cluster_of(1), fdask.FMClassifier._trainer
    run_epoch = trainer.run_epoch

    def lose(self, epoch):
        if epoch == 2:
            cluster.close()
        return run_epoch(self, epoch)

    with (
        distributed.Client(cluster, set_as_default=False) as other,
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ConnectionError, match="connection to the Dask scheduler was lost"),
    ):
        patch.setattr(trainer, "run_epoch", lose)
        fdask.FMClassifier(client=other, **params).set_callbacks(Checkpoint(path)).fit(X, y)
    model = resume(path)
    assert model.n_iter_ == 2
    with cluster_of(1) as cluster, distributed.Client(cluster):
        assert_same(model.fit(X, y), fdask.FMClassifier(**params).fit(X, y))


def test_workers_that_are_killed_change_nothing(of_processes, rows):
    data = [split(of, [0, 200, 400]) for of in rows]
    params = {**SHORT, **TWO, "max_iter": 4, "client": of_processes}
    expected = fdask.FMClassifier(**params).fit(*data)
    pids = of_processes.run(os.getpid)

    def kill():
        os.kill(pids.popitem()[1], signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        # Shards and rounds are under way, or their results are just there.
        after(6, patch, kill)
        calls = after(8, patch, kill)
        model = fdask.FMClassifier(**params).fit(*data)
    assert len(calls) >= 8 and not pids
    assert_same(model, expected)


def test_all_workers_that_are_killed_at_once_change_nothing(of_processes, rows):
    data = [split(of, [0, 200, 400]) for of in rows]
    params = {**SHORT, **TWO, "client": of_processes}
    expected = fdask.FMClassifier(**params).fit(*data)
    pids = of_processes.run(os.getpid)

    def kill():
        while pids:
            os.kill(pids.popitem()[1], signal.SIGKILL)

    # Tasks are placed again while no worker is left.
    with pytest.MonkeyPatch.context() as patch:
        after(6, patch, kill)
        model = fdask.FMClassifier(**params).fit(*data)
    assert not pids
    assert_same(model, expected)


def test_what_is_sent_while_all_workers_die_reaches_others(of_processes):
    cluster = Cluster(of_processes)
    for pid in of_processes.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    # The scheduler may still take the dead for alive.
    (future,) = cluster.send([17])
    assert of_processes.gather(future) == 17


CALLS = {
    "fit": lambda model, recommender, X, rows: clone(model).fit(*rows).coef_,
    "fit of users": lambda model, recommender, X, rows: clone(recommender).fit(X).item_factors_,
    "score": lambda model, recommender, X, rows: model.score(*rows),
    "score of users": lambda model, recommender, X, rows: recommender.score(X),
    "recommend": lambda model, recommender, X, rows: recommender.recommend(users=[3, 50])[0],
    "predict_proba": lambda model, recommender, X, rows: model.client.compute(
        model.predict_proba(rows[0])
    ).result(),
}
# What Dask alone computes may wait for ever once no worker is left, see ``Cluster.gather``.
LOST = [(name, n_killed) for name in CALLS for n_killed in (1, 2)][:-1]


@pytest.mark.parametrize(("name", "n_killed"), LOST)
def test_calls_survive_workers_that_the_scheduler_takes_for_alive(
    of_processes, rows, histories, name, n_killed
):
    data = [split(of, [0, 200, 400]) for of in rows]
    model = fdask.FMClassifier(**SHORT, **TWO, client=of_processes).fit(*data)
    recommender = fdask.MFRecommender(**MF, **TWO, client=of_processes)
    X = loaded(histories, USERS)
    call = functools.partial(CALLS[name], model, recommender.fit(X), X, data)
    expected = call()
    for pid in sorted(of_processes.run(os.getpid).values())[:n_killed]:
        os.kill(pid, signal.SIGKILL)
    assert_array_equal(call(), expected)


def test_lazy_predictions_survive_a_lost_worker(of_processes, rows):
    data = [split(of, [0, 200, 400]) for of in rows]
    lazy = fdask.FMClassifier(**SHORT, **TWO, client=of_processes).fit(*data).predict_proba(data[0])
    expected = of_processes.compute(lazy).result()
    os.kill(min(of_processes.run(os.getpid).values()), signal.SIGKILL)
    assert_array_equal(of_processes.compute(lazy).result(), expected)


def test_processes_of_another_version_and_killed_ones(of_processes, histories):
    X = loaded(histories, USERS)
    model = fdask.MFRecommender(**THREE, client=of_processes, **MF)
    expected = clone(model).fit(X)
    pids = of_processes.run(os.getpid)
    with pytest.MonkeyPatch.context() as patch:
        calls = after(4, patch, lambda: os.kill(pids.popitem()[1], signal.SIGKILL))
        model.fit(X)
    assert len(calls) > 4
    assert_same(expected, model, MF_ARRAYS)

    def set_version(version):
        import freqfm

        freqfm.__version__ = version

    worker = sorted(of_processes.nthreads())[0]
    of_processes.run(set_version, "0.0", workers=[worker])
    with pytest.raises(RuntimeError, match=f"worker {worker} has freqfm 0.0, but the client"):
        model.fit(X)
    of_processes.run(set_version, freqfm.__version__, workers=[worker])


# Partitions, and weights.


def test_balanced_classes(client, rows):
    X, y = rows[0], rows[1] + (np.arange(400) % 7 == 0)  # three classes
    bounds, params = [0, 100, 400], {**SHORT, "class_weight": "balanced"}
    plain = freqfm.FMClassifier(**params).fit(X, y)
    model = fdask.FMClassifier(n_shards=1, **params).fit(split(X, bounds), split(y, bounds))
    assert_same(plain, model)
    # Of several shards too, the weights are those of all rows.
    weight = 0.5 + np.arange(400) % 3
    totals = np.bincount(y, weight)
    weights = totals.mean() / totals
    again, given = (
        fdask.FMClassifier(**TWO, **{**params, "class_weight": of})
        for of in ("balanced", dict(enumerate(weights)))
    )
    of_both = split(X, bounds), split(y, bounds), split(weight, bounds)
    assert_same(again.fit(*of_both), given.fit(*of_both))


def test_uneven_empty_and_unknown_partitions(client, rows):
    X, y = rows
    bounds, filled = [0, 0, 3, 3, 390, 400], [0, 3, 390, 400]
    unknown = of_unknown_sizes(X, bounds), of_unknown_sizes(y, bounds)
    assert_same(
        freqfm.FMClassifier(**SHORT).fit(X, y),
        fdask.FMClassifier(n_shards=1, **SHORT).fit(*unknown),
    )
    # A shard without rows is left out.
    model = fdask.FMClassifier(n_shards=5, n_merges=2, **SHORT).fit(*unknown)
    parts = split(X, filled), split(y, filled)
    assert_same(model, fdask.FMClassifier(**THREE, **SHORT).fit(*parts))
    assert_array_equal(model.predict(unknown[0]).compute(), model.to_local().predict(X))
    assert model.score(*unknown) == pytest.approx(model.to_local().score(X, y))
    shifted = of_unknown_sizes(y, [0, 0, 4, 4, 390, 400])
    with pytest.raises(ValueError, match="partition 1 of X has 3 rows, but that of y has 4"):
        fdask.FMClassifier(n_shards=1, **SHORT).fit(unknown[0], shifted)


def test_partitions_of_users(client, histories):
    X = of_unknown_sizes(histories, [0, 0, 7, 7, 120])
    plain = freqfm.MFRecommender(**MF).fit(histories)
    assert_same(plain, fdask.MFRecommender(n_shards=1, **MF).fit(X), MF_ARRAYS)
    model = fdask.MFRecommender(n_shards=4, n_merges=2, **MF).fit(X)
    parts = split(histories, [0, 7, 120])
    assert_same(model, fdask.MFRecommender(**TWO, **MF).fit(parts), MF_ARRAYS)
    assert np.isfinite(model.score(X))
    # Of several shards that are wrong, any may be the first to say so.
    first = np.arange(120)[:, None] < 50
    for values, message in (
        (histories.multiply(np.where(first, -1, 1)).tocsr(), "partitions 0 to 1 .* dislike"),
        (histories.multiply(np.where(first, np.nan, 1)).tocsr(), "partitions 0 to 1 .* NaN"),
        (histories * 0, "X of shape .* holds no interaction"),
        (histories[:0], "X has no rows in any of its partitions"),
    ):
        with pytest.raises(ValueError, match=message):
            fdask.MFRecommender(**TWO, **MF).fit(of_unknown_sizes(values, [0, 0, 50, 90, 120]))


def test_scores_of_regressors(client, rows):
    X, y, bounds = rows[0], rows[1] + 5.0, [0, 100, 400]
    weight = 1 + (np.arange(400) % 3)
    parts = [split(of, bounds) for of in (X, y, weight)]
    model = fdask.FMRegressor(**TWO, **SHORT).fit(*parts)
    assert_allclose(model.score(*parts), model.to_local().score(X, y, weight))


def test_scores_of_regressors_are_those_of_r2_score(client, rows):
    X, bounds = rows[0], [0, 100, 100, 400]
    model = fdask.FMRegressor(**TWO, **SHORT).fit(split(X, bounds), split(rows[1] + 5.0, bounds))
    local, weight = model.to_local(), np.repeat([0.0, 1, 2], [100, 200, 100])

    def score(y, weight=None):
        given = None if weight is None else of_unknown_sizes(weight, bounds)
        return model.score(of_unknown_sizes(X, bounds), of_unknown_sizes(y, bounds), given)

    # Targets that are far from 0 keep their digits, and equal ones have no variance at all.
    of_far = rows[1] + 1e8
    model.intercept_ += np.float32(1e8)
    local.intercept_ = model.intercept_
    assert_allclose(score(of_far), local.score(X, of_far))
    assert_allclose(score(of_far, weight), local.score(X, of_far, weight))
    assert score(np.full(400, 0.1)) == score(np.full(400, 0.1), weight) == 0.0
    model.coef_[:], model.factors_[:] = 0, 0
    assert score(np.full(400, float(model.intercept_[0]))) == 1.0
    one = [of_unknown_sizes(of, [0, 0, 1]) for of in (X, of_far)]
    with pytest.warns(UserWarning, match="less than two samples"):
        assert np.isnan(model.score(*one))
    with pytest.raises(ValueError, match="X has no rows of positive weight"):
        score(of_far, weight * 0)


def test_empty_partitions_of_a_validation_set(client, rows):
    X, y = rows[0][:300], rows[1][:300]
    data = split(X, [0, 150, 300]), split(y, [0, 150, 300])
    X_val, y_val = rows[0][300:], rows[1][300:]
    params = {**SHORT, **TWO, "early_stopping": True, "n_iter_no_change": None}

    def scores(bounds, weight=None):
        of_weight = None if weight is None else of_unknown_sizes(weight, bounds)
        of_rows = {"X_val": of_unknown_sizes(X_val, bounds), "sample_weight_val": of_weight}
        model = fdask.FMClassifier(**params)
        model.fit(*data, **of_rows, y_val=of_unknown_sizes(y_val, bounds))
        return model.validation_scores_

    expected = scores([0, 40, 100])
    for bounds in ([0, 0, 100], [0, 100, 100], [0, 0, 0, 100]):
        assert_allclose(scores(bounds), expected, rtol=1e-6)
    # The rows of a partition may have no weight.
    weight = (np.arange(100) >= 60).astype(float)
    assert_allclose(scores([0, 60, 100], weight), scores([0, 80, 100], weight), rtol=1e-6)
    with pytest.raises(ValueError, match="X_val has no rows of positive weight in any of its part"):
        scores([0, 0, 0])


def test_shards_without_weight_are_left_out(client, rows):
    X, y, bounds = rows[0], rows[1].astype(float), [0, 100, 250, 400]
    y[:100] += 2  # a class that has no weight is a class all the same
    weight = np.repeat([0.0, 1.0, 2.0], [100, 150, 150])
    parts = [split(of, bounds) for of in (X, y, weight)]
    for params in ({}, {"early_stopping": True, "n_iter_no_change": None}):
        regressors = [
            fdask.FMRegressor(**{**SHORT, **params, **shards}).fit(*of)
            for shards, of in ((THREE, parts), (TWO, [of[100:] for of in parts]))
        ]
        assert_same(*regressors)
    model = fdask.FMClassifier(**THREE, **SHORT, class_weight="balanced").fit(*parts)
    assert_array_equal(model.classes_, np.unique(y))
    one = fdask.FMClassifier(n_shards=1, **SHORT).fit(*parts)
    assert_same(freqfm.FMClassifier(**SHORT).fit(X, y, weight), one)
    with pytest.raises(ValueError, match="sample_weight is 0 for all 400 rows of X; give some"):
        fdask.FMClassifier(**THREE, **SHORT).fit(*parts[:2], parts[2] * 0)
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        fdask.FMClassifier(**THREE, **SHORT).fit(*parts[:2], parts[2] - 1)


def test_targets_and_weights_in_frames_of_one_column(client, rows):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    X, bounds, weight = rows[0], [0, 200, 400], 1.0 + np.arange(400) % 3

    def frame(**columns):
        return dd.from_pandas(pd.DataFrame(columns), npartitions=2)

    for name in ("FMClassifier", "FMRegressor"):
        y = rows[1].astype(float)
        model = getattr(fdask, name)(**TWO, **SHORT)
        expected = model.fit(split(X, bounds), split(y, bounds), split(weight, bounds)).coef_
        model.fit(split(X, bounds), frame(y=y), frame(weight=weight))
        assert_array_equal(model.coef_, expected)
        score = model.score(split(X, bounds), frame(y=y), frame(weight=weight))
        assert_allclose(score, model.to_local().score(X, y, weight))
    two = frame(y=rows[1], z=rows[1])
    for call in (model.score, model.fit):
        with pytest.raises(ValueError, match="y is a Dask DataFrame of 2 columns; give one"):
            call(split(X, bounds), two)


def test_rows_of_one_dimension_are_refused(client, rows, histories):
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    X, bounds = rows[0], [0, 200, 400]
    model = fdask.FMClassifier(**TWO, **SHORT).fit(split(X, bounds), split(rows[1], bounds))
    recommender = fdask.MFRecommender(**TWO, **MF).fit(split(histories, [0, 50, 120]))
    row = da.from_array(X[[0]].toarray()[0], chunks=30)
    series = dd.from_pandas(pd.Series(np.zeros(60)), npartitions=2)
    for of in (row, series, da.zeros((2, 60, 1))):
        message = rf"Expected 2D array, got {of.ndim}D array instead: X is .* X\.reshape\(1, -1\)"
        for call in (
            model.predict,
            model.predict_proba,
            recommender.predict,
            recommender.transform,
            recommender.fit,
            lambda X: model.score(X, X),
        ):
            with pytest.raises(ValueError, match=message):
                call(of)


def test_seen_items_that_may_be_recommended_need_no_interactions(client, histories):
    model = fdask.MFRecommender(**TWO, **MF).fit(split(histories, USERS))
    users, options = np.array([100, 3, 35]), {"exclude_seen": False}
    expected = model.to_local().recommend(users=users, **options)
    loaded = pickle.loads(pickle.dumps(model))
    for of in (loaded, model):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_users, "known_to", None)
            found = of.recommend(users=users, **options)
        for one, other in zip(found, expected, strict=True):
            assert_array_equal(one, other)
    exclude = sparse.csr_array(histories[users] > 0)
    found = loaded.recommend(users=users, exclude=exclude, **options)[0]
    assert_array_equal(found, model.recommend(users=users)[0])
    with pytest.raises(TypeError, match="exclude_seen='no' must be True or False"):
        loaded.recommend(users=users, exclude_seen="no")
