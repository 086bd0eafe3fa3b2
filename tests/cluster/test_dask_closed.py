"""Recommenders in closed form on a Dask cluster."""

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
fdask = pytest.importorskip("freqfm.dask")
pd = pytest.importorskip("pandas")

from test_dask import cluster_of, prompt_messages, split  # noqa: E402, F401

import freqfm  # noqa: E402
from freqfm.dask._cluster import Cluster  # noqa: E402
from freqfm.datasets import make_interactions  # noqa: E402

BOUNDS = [0, 1, 40, 333, 333, 400]


@pytest.fixture(scope="module")
def client():
    with cluster_of(2) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def likes():
    X = make_interactions(400, 90, 6000, random_state=0).tocsr().astype(np.float32)
    # Values of all sizes, and an item that nobody has.
    X.data = np.random.default_rng(0).integers(1, 4, X.nnz).astype(np.float32)
    X.data[X.indices == 7] = 0
    X.eliminate_zeros()
    return X


def test_exact_sums_have_the_bits_of_one_machine(client, likes):
    plain = freqfm.EASERecommender(user_power=0).fit(likes)
    for n_shards in (1, 3):
        model = fdask.EASERecommender(user_power=0, n_shards=n_shards).fit(split(likes, BOUNDS))
        assert_array_equal(model.item_weights_.toarray(), plain.item_weights_.toarray())
        assert model.regularization_ == plain.regularization_


@pytest.mark.slow
def test_a_table_for_all_shards_is_sent_once(client, likes, monkeypatch):
    sent, send = [], Cluster.send

    def counted(cluster, values):
        sent.append(len(values))
        return send(cluster, values)

    monkeypatch.setattr(Cluster, "send", counted)
    for name, n_tables in (("ItemKNNRecommender", [1]), ("EASERecommender", [3])):
        getattr(fdask, name)(n_shards=3).fit(split(likes, BOUNDS))
        assert sent == n_tables, name
        sent.clear()


@pytest.mark.slow
def test_other_sums_are_those_of_one_machine_up_to_rounding(client, likes, monkeypatch):
    monkeypatch.setattr("freqfm.dask._closed._ITEMS", 40)
    weights = [{"weighting": name} for name in ("cosine", "tfidf", "bm25")]
    weights += [{"item_power": "auto"}]
    cases = [("EASERecommender", {}), ("EASERecommender", {"n_neighbors": 10})]
    cases += [
        ("ItemKNNRecommender", {"n_neighbors": 15, "item_power": 0.3, **params})
        for params in weights
    ]
    cases += [
        ("GraphFilterRecommender", {"random_state": 0, "n_components": n, **params})
        for n in (30, 512)
        for params in ({}, {"response": "plateau"})
    ]
    disliked = likes.copy()
    disliked.data[::9] *= -1

    @each("name, params", cases)
    def same(name, params):
        plain = getattr(freqfm, name)(**params).fit(disliked)
        model = getattr(fdask, name)(n_shards=3, **params).fit(split(disliked, BOUNDS))
        found, expected = (of.item_weights_.toarray() for of in (model, plain))
        assert_allclose(found, expected, rtol=2e-4, atol=2e-6 * abs(expected).max())

    same()


@pytest.mark.slow
def test_lists_and_the_plain_estimator(client, likes, tmp_path):
    X = split(likes, BOUNDS)
    model = fdask.EASERecommender(n_shards=3).fit(X)
    local, users = model.to_local(), np.array([350, 3, 39])
    assert type(local) is freqfm.EASERecommender
    items, scores = local.recommend(users=users)
    assert_array_equal(model.recommend(users=users)[0], items)
    assert_array_equal(model.predict(X).compute(), local.predict(likes))
    assert model.score(X) == pytest.approx(local.score(likes))
    model.recommend_to(tmp_path)
    items, scores = local.recommend(users=np.arange(400))
    assert_array_equal(pd.read_parquet(tmp_path)["item"], items[scores > -np.inf])
    with pytest.raises(NotImplementedError, match="are the rows of X themselves"):
        model.transform(X)
    assert not hasattr(model, "partial_fit")
    with pytest.raises(ValueError, match="holds no interaction"):
        fdask.ItemKNNRecommender().fit(split(0 * likes, BOUNDS))


def test_models_that_do_not_fit_into_memory_are_refused(client, likes, monkeypatch):
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 1000)
    X, ours = split(likes, BOUNDS), {}
    monkeypatch.setattr(fdask._closed.ClosedFormOnCluster, "_products", None)  # before these
    cases = [("EASERecommender", {"n_neighbors": k}) for k in (None, 3)]
    cases += [("ItemKNNRecommender", {"n_neighbors": 7}), ("GraphFilterRecommender", {})]

    @each("name, params", cases)
    def refused(name, params):
        for of, rows in ((freqfm, likes), (fdask, X)):
            with pytest.raises(ValueError, match=r"would take .* GB of memory at least") as raised:
                getattr(of, name)(**params).fit(rows)
            ours[of] = str(raised.value)
        assert ours[fdask] == ours[freqfm]

    refused()
    # Workers hold the interactions, and the client does not.
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 2 * 8 * 90 + 1)
    with pytest.raises(ValueError, match="would take"):
        freqfm.ItemKNNRecommender(1).fit(likes)
    monkeypatch.undo()
    monkeypatch.setattr("freqfm._input.validation.physical_memory", lambda: 2 * 8 * 90 + 1)
    fdask.ItemKNNRecommender(1).fit(X)
