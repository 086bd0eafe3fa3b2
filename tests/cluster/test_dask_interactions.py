"""Tables of interactions on a Dask cluster."""

import os
import pickle
import signal

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from sklearn.base import clone

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
fdask = pytest.importorskip("freqfm.dask")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")

from test_dask import cluster_of, prompt_messages  # noqa: E402, F401
from test_dask_faults import of_processes  # noqa: E402, F401

import freqfm  # noqa: E402
from freqfm.model_selection import GlobalTimeSplit  # noqa: E402

ALS = {"n_components": 4, "max_iter": 2, "random_state": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        yield client


def table_of(n=3000, strings=True):
    """Return a log whose rows repeat pairs, some in other partitions, with odd values."""
    generator = np.random.default_rng(0)
    users, items = generator.zipf(1.4, n) % 90, generator.zipf(1.3, n) % 70
    table = pd.DataFrame({"user": users, "item": items + 10**15})
    if strings:
        table["user"] = [f"u{user}" for user in users]
    table["value"] = 0.1 + generator.random(n)
    table["time"] = generator.integers(0, 500, n)
    return table


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a log, and a Dask DataFrame of it from Parquet files."""
    table, path = table_of(), tmp_path_factory.mktemp("log")
    for number, part in enumerate(np.array_split(np.arange(len(table)), 5)):
        table.iloc[part].to_parquet(path / f"{number}.parquet")
    return table, path


def fitted(frame, estimator=None, **params):
    estimator = estimator or fdask.ALSRecommender(n_shards=3, **ALS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("freqfm._input.interactions.warn_once", lambda message: None)
        return fdask.InteractionRecommender(estimator, **params).fit(frame)


def assert_same_model(model, plain):
    assert_array_equal(model.user_ids_, plain.user_ids_)
    assert_array_equal(model.item_ids_, plain.item_ids_)
    assert model.item_ids_.dtype == plain.item_ids_.dtype
    for name in ("user_factors_", "item_factors_"):
        assert_array_equal(getattr(model.estimator_, name), getattr(plain.estimator_, name))
    assert model._usual_weight == plain._usual_weight
    assert model._usual_dislike == plain._usual_dislike


@pytest.mark.slow
def test_a_model_is_that_of_one_machine(client, log):
    table, path = log
    numbers = table_of(strings=False).assign(disliked=lambda t: t.value > 0.9)
    cases = [
        (table, dd.read_parquet(path), {}),
        (table, dd.read_parquet(path), {"value": None}),
        (table, dd.read_parquet(path), {"dislikes_up_to": 0.3}),
        (numbers, dd.from_pandas(numbers, npartitions=3), {"dislikes": "disliked"}),
    ]

    @each("given, frame, params", cases)
    def same(given, frame, params):
        plain = freqfm.InteractionRecommender(freqfm.ALSRecommender(**ALS), **params).fit(given)
        assert_same_model(fitted(frame, **params), plain)

    same()


def test_lists_and_the_plain_estimator(client, log, tmp_path, monkeypatch):
    table, path = log
    plain = freqfm.InteractionRecommender(freqfm.ALSRecommender(**ALS)).fit(table)
    model = fitted(dd.read_parquet(path))
    local, users = model.to_local(), ["u1", "u5", "u80"]
    assert type(local) is freqfm.InteractionRecommender
    assert type(local.estimator) is freqfm.ALSRecommender
    assert_same_model(local, plain)
    for found in (model, local):
        for one, other in zip(found.recommend(users), plain.recommend(users), strict=True):
            assert_array_equal(one, other)
    for one, other in zip(
        model.recommend(history=[10**15 + 3]), plain.recommend(history=[10**15 + 3]), strict=True
    ):
        assert_array_equal(one, other)
    monkeypatch.setattr("freqfm.estimators.recommenders.to_parquet._USERS_OF_PART", 20)
    model.recommend_to(tmp_path, n_recommendations=5)
    paths = sorted(tmp_path.glob("*/*.parquet"))
    assert len(paths) > 4
    written = pd.concat(map(pd.read_parquet, paths))
    paths[0].unlink()
    before = paths[1].stat().st_mtime_ns
    model.recommend_to(tmp_path, n_recommendations=5)
    assert paths[0].exists() and paths[1].stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds lists of another call of recommend_to"):
        model.recommend_to(tmp_path, n_recommendations=4)
    (tmp_path / "notes").touch()
    with pytest.raises(ValueError, match="holds 'notes', which recommend_to with 3 shards"):
        model.recommend_to(tmp_path, n_recommendations=5)
    model.recommend_to(tmp_path / "some", users, n_recommendations=5)
    some = pd.read_parquet(tmp_path / "some")
    items, scores = plain.recommend(users, n_recommendations=5)
    assert_array_equal(some["item"], items[scores > -np.inf])
    items, scores = plain.recommend(plain.user_ids_, n_recommendations=5)
    assert_array_equal(written["user"], np.repeat(plain.user_ids_, (scores > -np.inf).sum(axis=1)))
    assert_array_equal(written["item"], items[scores > -np.inf])
    assert_array_equal(written["score"], scores[scores > -np.inf])
    assert not hasattr(model, "partial_fit")
    stored = pickle.loads(pickle.dumps(model))
    assert_array_equal(stored.recommend(history=[10**15 + 3])[0],
                       plain.recommend(history=[10**15 + 3])[0])  # fmt: skip
    with pytest.raises(RuntimeError, match="interactions of fit, which are on workers"):
        stored.recommend_to(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"drop_cold": False}, {"drop_repeated": False},
                                    {"n_splits": 2, "test_fraction": 0.1}])  # fmt: skip
def test_splits_by_time_are_those_of_one_machine(client, log, params, monkeypatch):
    table, path = log
    monkeypatch.setattr("freqfm.dask._interactions._SAMPLED", 20)
    expected = list(GlobalTimeSplit(**params).split(table))
    found = list(fdask.GlobalTimeSplit(**params).split(dd.read_parquet(path)))
    assert len(found) == len(expected)
    for parts, rows in zip(found, expected, strict=True):
        for part, of in zip(parts, rows, strict=True):
            columns = list(table.columns)
            part = part.compute()[columns].sort_values(columns, ignore_index=True)
            pd.testing.assert_frame_equal(
                part, table.iloc[of].sort_values(columns, ignore_index=True), check_dtype=False
            )


@pytest.mark.slow
def test_times_of_any_zone_split_as_on_one_machine(client):
    """Also in the hour that a clock repeats at the end of summer."""
    table = table_of(600).reset_index(names="row")
    times = pd.to_datetime("2025-10-25 23:00") + pd.to_timedelta(table.time, unit="min")
    zoned = times.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    arrow = "timestamp[us, tz=Europe/Berlin][pyarrow]"
    [(train, test)] = GlobalTimeSplit().split(table.assign(time=times))
    for same in (zoned, zoned.astype(arrow), times.astype("timestamp[us][pyarrow]")):
        frame = dd.from_pandas(table.assign(time=same), npartitions=3)
        [found] = fdask.GlobalTimeSplit().split(frame)
        for part, rows in zip(found, (train, test), strict=True):
            assert_array_equal(np.sort(part.compute()["row"]), rows)


@pytest.mark.slow
def test_held_out_interactions_are_scored(client, log):
    table, path = log
    [(train, test)] = fdask.GlobalTimeSplit().split(dd.read_parquet(path))
    [(rows, held_out)] = GlobalTimeSplit().split(table)
    plain = freqfm.InteractionRecommender(freqfm.ALSRecommender(**ALS)).fit(table.iloc[rows])
    assert fitted(train).score(test) == plain.score(table.iloc[held_out])


def test_what_is_refused(client, log):
    frame = dd.read_parquet(log[1])
    als = fdask.ALSRecommender(**ALS)
    cases = [
        ({"estimator": freqfm.ALSRecommender()}, frame, "does not train on a cluster"),
        ({"estimator": als}, log[0], "takes a Dask DataFrame"),
        ({"estimator": als, "context": ["time"]}, frame, "context does not train on a cluster"),
        ({"estimator": als, "user": "who"}, frame, "user='who' is not a column of X"),
        ({"estimator": als}, frame[frame.time < 0], "X has 0 rows"),
        ({"estimator": als}, frame.assign(user=None), "column of users"),
    ]

    @each("params, X, message", cases)
    def refused(params, X, message):
        with pytest.raises((TypeError, ValueError), match=message):
            fdask.InteractionRecommender(**params).fit(X)

    refused()
    text = frame.assign(time=frame.time.astype(str))
    with pytest.raises(TypeError, match="column of times 'time' holds"):
        list(fdask.GlobalTimeSplit().split(text))


@pytest.mark.slow
@pytest.mark.alone
def test_workers_that_are_killed_change_nothing(of_processes, log, tmp_path):  # noqa: F811
    frame, client = dd.read_parquet(log[1]), of_processes
    estimator = fdask.ALSRecommender(n_shards=3, client=client, **ALS)
    model = fitted(frame, estimator)
    model.recommend_to(tmp_path / "first")
    pids = sorted(client.run(os.getpid).values())
    os.kill(pids[0], signal.SIGKILL)
    again = fitted(frame, clone(estimator))
    assert_same_model(again, model.to_local())
    os.kill(pids[1], signal.SIGKILL)
    again.recommend_to(tmp_path / "second")
    found, expected = (pd.read_parquet(tmp_path / name) for name in ("second", "first"))
    pd.testing.assert_frame_equal(found, expected)
