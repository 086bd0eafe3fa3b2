"""Estimators on a Dask cluster."""

import asyncio
import importlib
import pickle
import sys
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import OneHotEncoder
from test_progress import estimators_of, says_usual_seconds

import freqfm
from freqfm._dense import unit_rows
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_clicks, make_interactions
from freqfm.optimizers import SGD

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
fdask = pytest.importorskip("freqfm.dask")
da = pytest.importorskip("dask.array")

SHORT = {"max_iter": 2, "n_iter_no_change": None, "early_stopping": False, "n_components": 4,
         "random_state": 0, "n_jobs": 1}  # fmt: skip
# Merges that are fewer than by default: each is a dozen of Dask's tasks.
TWO, THREE, FOUR = ({"n_shards": n, "n_merges": 2} for n in (2, 3, 4))
ARRAYS = ("intercept_", "coef_", "factors_", "loss_curve_", "token_counts_")


@pytest.fixture(scope="module", autouse=True)
def prompt_messages():
    """Let Dask send messages at once: tests send few and wait for the answer."""
    kind = distributed.batched.BatchedSend
    init = kind.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__init__", lambda self, interval, **options: init(self, 0, **options))
        yield


def cluster_of(n_workers, processes=False):
    with dask.config.set({"distributed.worker.profile.enabled": False}):
        return distributed.LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=processes, dashboard_address=":0"
        )


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def rows():
    X, y = make_clicks(800, (60, 30, 10), random_state=0)
    return sparse.csr_array(X), y


def split(X, bounds):
    """Return X as a dask array whose blocks are the rows between bounds."""
    parts = [
        da.from_delayed(dask.delayed(X[a:b]), (b - a, *X.shape[1:]), meta=X[:0])
        for a, b in pairwise(bounds)
    ]
    return da.concatenate(parts)


@pytest.fixture(scope="module")
def data(rows):
    bounds = [0, 200, 400, 600, 800]
    return split(rows[0], bounds), split(rows[1], bounds)


@pytest.fixture(scope="module")
def histories():
    return make_interactions(120, 40, 1000, random_state=0)


def assert_same(first, second, names=ARRAYS):
    for name in names:
        a, b = getattr(first, name), getattr(second, name)
        for one, other in zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]:
            assert_array_equal(one, other, name)


@pytest.mark.parametrize("early_stopping", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_shard_is_the_plain_fit(client, rows, data, early_stopping):
    params = {**SHORT, "early_stopping": early_stopping, "n_iter_no_change": 9}
    with pytest.warns(UserWarning) if early_stopping else np.errstate():
        plain = freqfm.FMClassifier(**params).fit(*rows)
        model = fdask.FMClassifier(n_shards=1, **params).fit(*data)
    assert_same(plain, model, [*ARRAYS, "validation_scores_"])
    assert type(model.to_local()) is freqfm.FMClassifier
    assert_array_equal(model.to_local().predict_proba(rows[0]), plain.predict_proba(rows[0]))


@pytest.mark.slow
def test_phases_of_a_fit_are_announced(client, data, histories, capsys):
    fdask.FMClassifier(n_shards=2, verbose=2, **SHORT | {"early_stopping": True}).fit(*data)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "checking rows",
        "bringing partitions to their workers",
        "holding out a part of each shard's rows",
        "preparing rows to train on",
    ]
    assert lines[4].startswith("epoch ")
    model = fdask.MFRecommender(2, n_shards=2, verbose=2, max_iter=1, random_state=0)
    model.fit(split(histories, [0, 40, 120]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "checking interactions",
        "bringing partitions to their workers",
        "finding singular vectors of the interactions",
    ]
    assert lines[3].startswith("epoch ")


def test_docstrings_say_the_usual_seconds():
    assert {of.__name__ for of in estimators_of(fdask) if not says_usual_seconds(of)} == set()


@pytest.mark.slow
def test_bits_do_not_depend_on_workers(client, data, tmp_path):
    params = {**SHORT, "early_stopping": True, "n_iter_no_change": None}
    model = fdask.FMClassifier(client=client, **THREE, **params).fit(*data)
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        again = fdask.FMClassifier(client=other, **THREE, **params).fit(*data)
    assert_same(model, again, [*ARRAYS, "validation_scores_"])


def test_predictions_are_lazy(client, rows, data):
    model = fdask.FMClassifier(**TWO, **SHORT).fit(*data)
    local = model.to_local()
    for method in ("predict", "predict_proba", "decision_function", "predict_log_proba"):
        lazy, expected = getattr(model, method)(data[0]), getattr(local, method)(rows[0])
        assert isinstance(lazy, da.Array) and lazy.shape == expected.shape
        assert lazy.dtype == expected.dtype
        assert_array_equal(lazy.compute(), expected)
    assert model.score(*data) == pytest.approx(local.score(*rows))


@pytest.mark.slow
@pytest.mark.parametrize("largest_in_graphs", [0, 10**9])
def test_predictions_with_a_client_that_is_not_the_current_one(
    client, rows, data, monkeypatch, largest_in_graphs
):
    monkeypatch.setattr("freqfm.dask._base._LARGEST_IN_GRAPHS", largest_in_graphs)
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        model = fdask.FMClassifier(client=other, **TWO, **SHORT).fit(*data)
        expected = model.to_local().predict(rows[0])
        lazy = model.predict(data[0])
        assert_array_equal(other.compute(lazy).result(), expected)
        if largest_in_graphs:
            assert_array_equal(lazy.compute(), expected)
        assert model.score(*data) == pytest.approx(np.mean(expected == rows[1]))


@pytest.fixture(scope="module")
def recommender(client, histories):
    params = {"n_components": 4, "max_iter": 1, "random_state": 0, "n_jobs": 1}
    return fdask.MFRecommender(client=client, **TWO, **params).fit(split(histories, [0, 60, 120]))


@pytest.mark.slow
def test_calls_where_a_client_would_return_coroutines_are_refused(
    client, data, histories, recommender, monkeypatch
):
    monkeypatch.setattr("freqfm.dask._base._LARGEST_IN_GRAPHS", 0)
    model = fdask.FMClassifier(client=client, **TWO, **SHORT).fit(*data)
    users = split(histories, [0, 60, 120])
    calls = {
        "fit": lambda: clone(model).fit(*data),
        "score": lambda: model.score(*data),
        "predict": lambda: model.predict(data[0]),
        "predict_proba": lambda: model.predict_proba(data[0]),
        "fit of users": lambda: clone(recommender).fit(users),
        "score of users": lambda: recommender.score(users),
        "transform": lambda: recommender.transform(users),
        "recommend": lambda: recommender.recommend(users=[3]),
        "to_local": recommender.to_local,
    }
    message = r"client=<Client.* is asynchronous here.* await asyncio.to_thread\(model.fit, X, y\)"

    async def refused():
        for name, call in calls.items():
            with pytest.raises(TypeError, match=message):
                call()
                pytest.fail(name)

    async def with_an_asynchronous_client(address, current):
        options = {"asynchronous": True, "set_as_default": current}
        async with distributed.Client(address, **options) as other:
            fitted = fdask.FMClassifier(client=None if current else other, **TWO, **SHORT)
            with pytest.raises(TypeError, match=message):
                fitted.fit(*data)
            await asyncio.to_thread(fitted.fit, *data)
            assert_same(fitted, model)

    # In the event loop of a synchronous client, too.
    client.sync(refused)
    for current in (False, True):
        asyncio.run(with_an_asynchronous_client(client.scheduler.address, current))


# Workers that are dead, before the scheduler knows.


@pytest.fixture
def unreachable(client, monkeypatch):
    """Return a function after which a method of the client fails as if a worker had just died."""
    monkeypatch.setattr("freqfm.dask._cluster._SECONDS", 0.01)

    def fail(name, n_times, error=distributed.comm.CommClosedError):
        method, errors = getattr(type(client), name), [error("closed")] * n_times

        def failing(self, *arguments, **options):
            if errors:
                raise errors.pop()
            return method(self, *arguments, **options)

        monkeypatch.setattr(type(client), name, failing)
        return errors

    return fail


@pytest.mark.slow
def test_dead_workers_are_waited_for(client, data, histories, recommender, unreachable):
    model = fdask.FMClassifier(client=client, **TWO, **SHORT).fit(*data)
    users = split(histories, [0, 60, 120])

    @each("name, error", [("run", distributed.comm.CommClosedError), ("scatter", TimeoutError)])
    def survives(name, error):
        for fitted, X in ((model, data), (recommender, [users])):
            left = unreachable(name, 3, error)
            assert_same(clone(fitted).fit(*X), fitted, ["loss_curve_"])
            assert not left

    survives()
    left = unreachable("run", 100)
    with pytest.raises(OSError, match="closed"):
        clone(model).fit(*data)
    assert len(left) == 90


@pytest.mark.slow
def test_predictions_survive_dead_workers(client, rows, data, unreachable, monkeypatch):
    model = fdask.FMClassifier(client=client, **TWO, **SHORT).fit(*data)
    local = model.to_local()
    expected = local.predict_proba(rows[0]), local.score(*rows)
    cluster = importlib.import_module("freqfm.dask._cluster")

    @each("largest_in_graphs", [0, 10**9])
    def survive(largest_in_graphs):
        monkeypatch.setattr("freqfm.dask._base._LARGEST_IN_GRAPHS", largest_in_graphs)
        left = unreachable("scatter", 2)
        assert_array_equal(model.predict_proba(data[0]).compute(), expected[0])
        assert model.score(*data) == pytest.approx(expected[1])
        assert bool(left) == bool(largest_in_graphs)
        # The worker that the model was sent to has died.
        lost, gather = [cluster.DataLostError("lost")] * 2, cluster.Cluster.gather

        def losing(self, futures):
            if lost:
                raise lost.pop()
            return gather(self, futures)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.Cluster, "gather", losing)
            assert model.score(*data) == pytest.approx(expected[1])
        assert not lost

    survive()


@pytest.mark.slow
def test_merging_loses_little(client, rows, data):
    params = {**SHORT, "max_iter": 8}
    plain = freqfm.FMClassifier(**params).fit(*rows)
    model = fdask.FMClassifier(**FOUR, **params).fit(*data)
    start = plain.loss_curve_[0]
    assert start - model.loss_curve_[-1] > 0.5 * (start - plain.loss_curve_[-1])
    # Counters of CF-SGD are exact.
    assert_array_equal(model._optimizer_state[0]["per_row"], plain._optimizer_state[0]["per_row"])


@pytest.mark.slow
def test_frames_bags_and_regressors(client, rows):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    bag = pytest.importorskip("dask.bag")
    X, y = rows[0][:300, :20], rows[1][:300].astype(float)
    frame = pd.DataFrame(X.toarray(), columns=[f"c{i}" for i in range(20)])
    params = {**SHORT, **TWO}
    of_frame = fdask.FMRegressor(**params).fit(
        dd.from_pandas(frame, npartitions=2), dd.from_pandas(pd.Series(y), npartitions=2)
    )
    assert list(of_frame.feature_names_in_) == list(frame.columns)
    # Unknown sizes, and an empty partition.
    parts = [X[:100], X[100:150], X[150:150], X[150:]]
    bag_of_rows = bag.from_delayed([dask.delayed(list)([part]) for part in parts])
    targets = [y[:100], y[100:150], y[150:150], y[150:]]
    targets = da.concatenate(
        [da.from_delayed(dask.delayed(part), (np.nan,), meta=y) for part in targets],
        allow_unknown_chunksizes=True,
    )
    of_bag = fdask.FMRegressor(**params).fit(bag_of_rows, targets)
    assert_same(of_frame, of_bag)
    predictions = of_bag.predict(bag_of_rows).compute()
    assert_array_equal(predictions, of_bag.to_local().predict(X))
    expected = of_bag.to_local().score(X, y)
    assert of_bag.score(bag_of_rows, targets) == pytest.approx(expected)


@pytest.mark.parametrize(
    "name, params",
    [
        ("RaFMClassifier", {"ranks": (2, 4), "optimizer": "adagrad"}),
        ("DeepFMClassifier", {"hidden_layer_sizes": (4,)}),
        ("FwFMClassifier", {"fields": np.arange(100) // 34}),
        ("FFMClassifier", {"fields": lambda X: np.arange(X.shape[1]) // 34}),
    ],
)
@pytest.mark.slow
def test_other_machines(client, rows, data, name, params):
    short = {k: v for k, v in SHORT.items() if k != "n_components" or name[:2] != "Ra"}
    plain = getattr(freqfm, name)(**short, **params).fit(*rows)
    names = [n for n in ARRAYS if n != "factors_"]
    tables = {"RaFM": ["_factors"], "Deep": ["factors_", "layers_"], "FFMC": ["factors_"]}
    names += tables.get(name[:4], ["factors_", "field_weights_"])
    on_cluster = getattr(fdask, name)
    assert_same(plain, on_cluster(n_shards=1, **short, **params).fit(*data), names)
    model = on_cluster(**FOUR, **short, **params).fit(*data)
    assert model.loss_curve_[-1] < model.loss_curve_[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DeepFMClassifier", "FFMClassifier"])
def test_partitions_carry_fields(client, name):
    rows = np.random.default_rng(0).integers(0, 5, (400, 3))
    y = (rows[:, 0] == rows[:, 1]).astype(int)
    X, bounds = freqfm.WithFields(OneHotEncoder()).fit_transform(rows), [0, 100, 300, 300, 400]
    plain = getattr(freqfm, name)(**SHORT).fit(X, y)
    params = {**SHORT, "n_merges": 2}
    parts, targets = split(X, bounds), split(y, bounds)
    for n_shards in (1, 3):
        model = getattr(fdask, name)(**params, n_shards=n_shards).fit(parts, targets)
        assert_array_equal(model.fields_, plain.fields_)
        if n_shards == 1:
            assert_same(plain, model, ["factors_", "coef_"])
    assert_array_equal(model.predict(parts).compute(), model.to_local().predict(X))
    with pytest.raises(ValueError, match="X carries fields other than those"):
        model.predict(split(X[:, ::-1], bounds)).compute()
    mixed = [X[:100], sparse.csr_array(X[100:])]
    mixed = da.concatenate(
        [da.from_delayed(dask.delayed(of), of.shape, meta=X[:0]) for of in mixed]
    )
    for n_shards in (1, 2):
        with pytest.raises(
            ValueError, match="partitions of X carry different fields|categories of"
        ):
            getattr(fdask, name)(**params, n_shards=n_shards).fit(mixed, split(y, [0, 100, 400]))
    if name == "FFMClassifier":
        with pytest.raises(ValueError, match="are categories of one variable"):
            lost = split(sparse.csr_array(X), bounds)
            fdask.FFMClassifier(**params, n_shards=2).fit(lost, targets)


def test_recommender_of_one_shard_is_the_plain_fit(client, histories):
    params = {"n_components": 8, "max_iter": 2, "random_state": 0, "early_stopping": True}
    plain = freqfm.MFRecommender(**params, n_jobs=1).fit(histories)
    X = split(histories, [0, 40, 40, 120])
    model = fdask.MFRecommender(n_shards=1, **params, n_jobs=1).fit(X)
    names = ["user_factors_", "item_factors_", "loss_curve_", "validation_scores_"]
    assert_same(plain, model, names)
    by_name = clone(model).set_params(scoring="recall@5").fit(X)
    plain.set_params(scoring="recall@5").fit(histories)
    assert_same(plain, by_name, ["item_factors_", "validation_scores_"])
    with pytest.raises(ValueError, match="scoring=.*is not computed on a Dask cluster"):
        clone(model).set_params(scoring=lambda *_: 1.0).fit(X)
    with pytest.raises(ValueError, match="X_val is not supported on a cluster"):
        fdask.MFRecommender(**params).fit(X, X_val=X)
    local = model.to_local()
    assert type(local) is freqfm.MFRecommender
    assert_array_equal(local.recommend(users=[3])[0], plain.recommend(users=[3])[0])


@pytest.mark.slow
def test_spectral_start_of_more_items_than_users(client, histories):
    params = {"n_components": 8, "max_iter": 1, "random_state": 0, "n_jobs": 1}
    wide = histories.T.tocsr()
    X = split(wide, [0, 10, 10, wide.shape[0]])
    plain, one, two = (
        cls(**params).fit(data)
        for cls, data in (
            (freqfm.MFRecommender, wide),
            (partial(fdask.MFRecommender, n_shards=1), X),
            (partial(fdask.MFRecommender, n_shards=2), X),
        )
    )
    assert_same(plain, one, ["user_factors_", "item_factors_", "loss_curve_"])
    # Other sums, and another order of the batches.
    cosines = np.sum(unit_rows(plain.item_factors_) * unit_rows(two.item_factors_), axis=1)
    assert np.median(cosines) > 0.8


@pytest.mark.slow
def test_recommender_of_several_shards(client, histories):
    params = {"n_components": 8, "max_iter": 3, "random_state": 0, "n_jobs": 1}
    X = split(histories, [0, 20, 40, 80, 80, 120])
    model = fdask.MFRecommender(**THREE, **params).fit(X)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    with cluster_of(1) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        again = fdask.MFRecommender(client=other, **THREE, **params).fit(X)
    assert_same(model, again, ["user_factors_", "item_factors_", "loss_curve_"])
    # As on one machine, up to how the users of a shard differ from all.
    plain = freqfm.MFRecommender(**params).fit(histories)
    assert_allclose(model.user_temperatures_, plain.temperature_, rtol=0.02)
    assert_allclose(model.user_temperatures_.mean(), plain.temperature_, rtol=0.005)
    with pytest.raises(ValueError, match="backbone='lightgcn' does not train on a cluster"):
        fdask.MFRecommender(n_shards=2, backbone="lightgcn", **params).fit(X)
    with pytest.raises(ValueError, match="temperature='cu_tau' keeps a state of all users"):
        fdask.MFRecommender(temperature="cu_tau", **params).fit(X)
    with pytest.raises(ValueError, match="auxiliary='simgcl' does not train on a cluster"):
        fdask.MFRecommender(n_shards=2, auxiliary="simgcl", **params).fit(X)
    with pytest.raises(ValueError, match="loss='macr' does not train on a cluster"):
        fdask.MFRecommender(n_shards=2, loss="macr").fit(X)
    with pytest.raises(ValueError, match="temperature='adap_tau0' keeps a state"):
        fdask.MFRecommender(n_shards=2, loss="softmax", temperature="adap_tau0", **params).fit(X)


@pytest.mark.slow
def test_last_merges_of_items_are_means(client, histories, monkeypatch):
    trainer = importlib.import_module("freqfm.dask._mf").ShardedMFTrainer
    scales, merged = [], trainer._merged_pieces

    def record(self, pieces, trained, scale):
        scales.append(scale)
        return merged(self, pieces, trained, scale)

    monkeypatch.setattr(trainer, "_merged_pieces", record)
    X = split(histories, [0, 60, 120])
    model = fdask.MFRecommender(n_shards=2, n_components=4, max_iter=5, n_merges=2, warm_start=True)
    model.set_params(random_state=0, n_jobs=1).fit(X)
    changes_add_up, means = [2**0.5] * 8, [0.0] * 2
    assert scales == changes_add_up + means
    # A warm start has as many epochs again.
    model.fit(X)
    assert scales == 2 * (changes_add_up + means)


def test_client_is_not_copied(client, data):
    model = fdask.FMClassifier(client=client, **TWO, **SHORT)
    assert clone(model).client is client
    model.fit(*data)
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.client is None
    assert_same(model, loaded)
    assert loaded.client_ is distributed.get_client()


@pytest.mark.slow
def test_checkpoints(client, data, tmp_path):
    path = tmp_path / "fm.checkpoint"
    params = {**SHORT, **TWO, "client": client}
    whole = fdask.FMClassifier(**{**params, "max_iter": 3}).fit(*data)
    model = fdask.FMClassifier(**{**params, "max_iter": 3}).set_callbacks(Checkpoint(path))
    trainer = fdask.FMClassifier._trainer

    def interrupted(self, epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return run_epoch(self, epoch)

    run_epoch = trainer.run_epoch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "run_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(*data)
    continued = resume(path)
    assert continued.n_iter_ == 2
    assert_same(continued.fit(*data), whole)


@pytest.mark.slow
def test_warm_start_and_validation_set(client, rows, data):
    params = {**SHORT, "n_shards": 1, "warm_start": True}
    model, plain = fdask.FMClassifier(**params), freqfm.FMClassifier(**SHORT, warm_start=True)
    for _ in range(2):
        model.fit(*data), plain.fit(*rows)
    assert_same(model, plain)
    params = {**SHORT, "early_stopping": True}
    model = fdask.FMClassifier(**TWO, **params).fit(*data, X_val=data[0], y_val=data[1])
    expected = -np.log(model.to_local().predict_proba(rows[0])[np.arange(800), rows[1]]).mean()
    assert model.validation_scores_.max() == pytest.approx(-expected, rel=1e-6)


@pytest.mark.slow
def test_penalties_are_chosen_by_the_rows_of_all_shards(client, data):
    params = {**SHORT, **TWO, "early_stopping": True, "verbose": 1}
    model = fdask.FMClassifier(**params).fit(*data)
    of_pairs = [
        fdask.FMClassifier(alpha_linear=linear, alpha_factors=factors, **params).fit(*data)
        for linear, factors in ((1, 5), (0.3, 25), (10, 25))
    ]
    best = max(of_pairs, key=lambda of_pair: of_pair.validation_scores_.max())
    assert best is not of_pairs[0]
    assert_same(model, best, [*ARRAYS, "validation_scores_"])
    local = model.to_local()
    assert (local.alpha_linear_, local.alpha_factors_) == (best.alpha_linear, best.alpha_factors)


@pytest.mark.slow
def test_losses_and_the_start_are_weighted_means_over_shards(client, rows, histories):
    # Without a step the loss is that of the start, whatever the batches.
    still = {**SHORT, "optimizer": SGD(1e-30), "max_iter": 1}
    X, bounds = rows[0], [0, 500, 800]
    y = np.linspace(0, 3, 800) ** 2
    weight = np.where(np.arange(800) < 500, 0.5, 4) + np.arange(800) % 3
    plain = freqfm.FMRegressor(**still).fit(X, y, weight)
    of_shards = split(X, bounds), split(y, bounds), split(weight, bounds)
    model = fdask.FMRegressor(**TWO, **still).fit(*of_shards)
    assert_allclose(model.intercept_, plain.intercept_, rtol=1e-5)
    assert_allclose(model.loss_curve_, plain.loss_curve_, rtol=1e-5)
    weighted = histories.copy()
    weighted.data = 1 + 9 * (
        np.repeat(np.arange(120), np.diff(histories.indptr)) < 30
    ) * np.float32(1)
    still |= {"loss": "softmax", "negative_sampler": "full", "temperature": 1.0}
    still |= {"user_dropout": 0.0, "init": "xavier"}
    plain = freqfm.MFRecommender(**still).fit(weighted)
    model = fdask.MFRecommender(**TWO, **still).fit(split(weighted, [0, 30, 120]))
    assert_allclose(model.loss_curve_, plain.loss_curve_, rtol=1e-5)


@pytest.mark.slow
def test_a_warm_start_knows_classes_that_its_rows_lack(client, rows):
    X, y = rows[0], rows[1] + (np.arange(800) % 7 == 0)
    params, bounds = {**SHORT, "warm_start": True}, [0, 100, 800]
    model, plain = fdask.FMClassifier(n_shards=1, **params), freqfm.FMClassifier(**params)
    for part in (np.arange(800), np.flatnonzero(y > 0)[:400]):
        bounds = [0, 100, len(part)]
        model.fit(split(X[part], bounds), split(y[part], bounds))
        plain.fit(X[part], y[part])
        assert model.classes_.tolist() == [0, 1, 2]
    assert_same(model, plain)


@pytest.mark.parametrize("n_rows, early", [(9000, False), (11_000, True)])
def test_early_stopping_is_automatic_by_the_rows_of_all_shards(monkeypatch, n_rows, early):
    # Plain Python stands in for the workers.
    shares = []
    rows = importlib.import_module("freqfm.dask._base").ShardedRows(
        None, ["a", "b"], ["c", "d"], 1, [n_rows // 2] * 2
    )
    monkeypatch.setattr("freqfm.dask._fm.base.AUTO_EARLY_STOPPING", 10_000)
    monkeypatch.setattr("freqfm.dask._fm.base.CROSS_VALIDATED_BELOW", 10_500)

    def of_shards(self, function, *arguments):
        shares.extend(arguments)
        return ["a", "b"]

    monkeypatch.setattr(type(rows), "of_shards", of_shards)
    cluster = SimpleNamespace(gather=lambda futures: [[(90, 10)], [(90, 0)]])
    model = fdask.FMClassifier(early_stopping="auto")
    folds = model._split(rows._replace(cluster=cluster), None)
    assert [fold.held_out for fold in folds] == [True if early else None]
    assert shares == ([0.1] if early else [])
    if early:
        model._split(rows._replace(cluster=cluster, sizes=[5100, 5100]), None)
        assert shares[1] == 0.2


@pytest.mark.parametrize("n_shards, expected", [(1, 4), (2, 4), (3, 2), (4, 2), (5, 1), (40, 1)])
def test_threads_of_a_worker_are_shared_by_its_shards(n_shards, expected):
    cluster = importlib.import_module("freqfm.dask._cluster").Cluster
    found = cluster.__new__(cluster)
    found.workers, found._threads = ["a", "b"], {"a": 8, "b": 4}
    assert found.n_threads(n_shards) == expected


@pytest.mark.parametrize(
    "holders, expected", [([1, 0, 1, 0], [1, 0, 1, 0]), (4 * [1], [1, 1, 0, 0])]
)
def test_partitions_stay_where_they_are_if_that_is_even(client, holders, expected):
    cluster = importlib.import_module("freqfm.dask._cluster").Cluster(client)
    groups = []
    for i, holder in enumerate(holders):
        part = client.persist(dask.delayed(np.full)(3, i), workers=cluster.workers[holder])
        groups.append([part])
    distributed.wait([part for (part,) in groups])
    assert [cluster.workers.index(home) for home in cluster.homes(groups)] == expected


def test_partitions_that_no_worker_holds_are_spread():
    cluster = importlib.import_module("freqfm.dask._cluster").Cluster
    found = cluster.__new__(cluster)
    found.workers = ["a", "b", "c"]
    homes = found.homes([[dask.delayed(i)] for i in range(4)])
    assert sorted(map(homes.count, "abc")) == [1, 1, 2]


@pytest.mark.parametrize("reset", [True, False])
def test_features_of_all_shards_are_compared(reset):
    model, names = fdask.FMClassifier(), np.array(["a", "b"], dtype=object)
    model._take_features([(2, names), (2, names.copy())], True)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    model._take_features([(2, names)], reset)
    for other in (names[::-1], None):
        with pytest.raises(ValueError, match="partitions of X have different column names"):
            model._take_features([(2, names), (2, other)], reset)
    with pytest.raises(ValueError, match=r"partitions of X have \[2, 3\] columns, where 2 are"):
        model._take_features([(3, names), (2, names)], reset)


def test_errors_name_the_argument(client, rows, data):
    X, y = data
    cases = [
        ((rows[0], y), {}, TypeError, "X is of type csr_array"),
        ((X, y[:-1]), {}, ValueError, "X has 800 rows, but y has 799"),
        ((X, da.concatenate([y[:300], y[300:]]), X), {}, ValueError, "sample_weight"),
        ((X, y), {"n_shards": 5}, ValueError, "n_shards=5 is more than the 4 partitions"),
        ((X, y), {"n_merges": 0}, ValueError, "n_merges"),
        ((X, y), {"client": "tcp://here"}, TypeError, "client="),
        ((X, da.zeros(800, chunks=200)), {}, ValueError, "y holds one class only"),
    ]
    for arguments, params, kind, message in cases:
        with pytest.raises(kind, match=message):
            fdask.FMClassifier(**{**SHORT, **params}).fit(*arguments)
    with pytest.raises(TypeError, match="X is of type"):
        fdask.FMClassifier(**TWO, **SHORT).fit(X, y).predict(rows[0])
    assert not hasattr(fdask.FMClassifier(), "partial_fit")


def test_other_versions_are_refused(client, data, monkeypatch):
    monkeypatch.setattr(
        type(client), "run", lambda *_: {"tcp://1": {"freqfm": "0.0", "numpy": "none"}}
    )
    with pytest.raises(RuntimeError, match="worker tcp://1 has freqfm 0.0, but the client has"):
        fdask.FMClassifier(**SHORT).fit(*data)


def test_without_dask_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "freqfm.dask")
    with pytest.raises(ImportError, match=r"pip install 'freqfm\[dask\]'"):
        importlib.import_module("freqfm.dask")


@pytest.mark.slow
def test_lost_scheduler(rows, data):
    cluster = cluster_of(1)
    with distributed.Client(cluster, set_as_default=False) as other:
        model = fdask.FMClassifier(client=other, **TWO, **{**SHORT, "max_iter": 50})
        run_epoch, trainer = fdask.FMClassifier._trainer.run_epoch, fdask.FMClassifier._trainer

        def lose(self, epoch):
            if epoch == 1:
                cluster.close()
            return run_epoch(self, epoch)

        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(ConnectionError, match="connection to the Dask scheduler was lost"),
        ):
            patch.setattr(trainer, "run_epoch", lose)
            model.fit(*data)
    assert model.n_iter_ == 1
    assert model.to_local().predict(rows[0]).shape == (800,)
