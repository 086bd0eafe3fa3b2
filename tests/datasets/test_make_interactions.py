"""The synthetic implicit feedback."""

import numpy as np
import pytest
from helpers import assert_canonical, each
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score

from freqfm.datasets import make_interactions


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"noise": 0},
        {"noise": 1},
        {"n_clusters": 1},
        {"popularity_exponent": 2},
        {"popularity_exponent": 0, "activity_exponent": 0},
        {"activity_exponent": 2},
        {"n_users": 20, "n_items": 3000, "n_interactions": 10_000},
        {"n_users": 5000, "n_items": 40, "n_interactions": 60_000},
    ],
)
def test_interactions_are_binary_and_canonical(arguments):
    X, model = make_interactions(**arguments, return_model=True, random_state=0)
    n_users = arguments.get("n_users", 1000)
    n_items = arguments.get("n_items", 500)
    assert_canonical(X, (n_users, n_items))
    assert X.nnz == arguments.get("n_interactions", 20_000) and np.all(X.data == 1)
    assert np.diff(X.indptr).min() >= 5
    n_clusters = arguments.get("n_clusters", 5)
    for clusters, size in ((model.user_clusters, n_users), (model.item_clusters, n_items)):
        assert clusters.shape == (size,) and clusters.dtype == np.int32
        assert np.ptp(np.bincount(clusters, minlength=n_clusters)) <= 1
    sums = np.bincount(model.item_clusters, weights=model.popularity)
    np.testing.assert_allclose(sums, 1)


def test_users_take_items_of_their_cluster():
    X, model = make_interactions(
        4000, 4000, 40_000, n_clusters=8, noise=0.2, return_model=True, random_state=0
    )
    users, items = X.nonzero()
    share = np.mean(model.user_clusters[users] == model.item_clusters[items])
    # Noisy picks may be from the user's cluster by chance; repeated picks lower the share a bit.
    assert 0.8 + 0.2 / 8 - 0.05 < share < 0.8 + 0.2 / 8


def test_without_noise_users_stay_in_their_cluster():
    X, model = make_interactions(noise=0, return_model=True, random_state=0)
    users, items = X.nonzero()
    assert np.array_equal(model.user_clusters[users], model.item_clusters[items])


def test_clusters_can_be_recovered():
    X, model = make_interactions(return_model=True, random_state=0)
    scaled = X / np.sqrt(X.sum(axis=0) + 1)
    vectors = TruncatedSVD(5, random_state=0).fit_transform(scaled)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = KMeans(5, n_init=3, random_state=0).fit_predict(vectors)
    assert adjusted_rand_score(model.user_clusters, found) > 0.9


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_popularity_is_a_power_law(exponent):
    X, model = make_interactions(
        *(30_000, 4000, 300_000),
        n_clusters=2,
        popularity_exponent=exponent,
        activity_exponent=0,
        return_model=True,
        random_state=0,
    )
    count = X.sum(axis=0)
    for cluster in range(2):
        inside = np.flatnonzero(model.item_clusters == cluster)
        order = inside[np.argsort(-model.popularity[inside])]
        popularity = model.popularity[order]
        expected = np.arange(1, 2001.0) ** -exponent
        np.testing.assert_allclose(popularity, expected / expected.sum())
        # The first items are in almost every row, so the power law is observed after them.
        ranks = np.arange(20, 300)
        slope, _ = np.polyfit(np.log(ranks + 1), np.log(count[order[ranks]]), 1)
        assert slope == pytest.approx(-exponent, abs=0.12)


def test_activity_is_a_power_law():
    X = make_interactions(2000, 5000, 60_000, activity_exponent=0.7, random_state=0)
    degrees = np.sort(np.diff(X.indptr))[::-1]
    expected = np.arange(1, 2001.0) ** -0.7
    expected *= (60_000 - 5 * 2000) / expected.sum()
    np.testing.assert_allclose(degrees, 5 + expected, atol=1)


@pytest.mark.slow
def test_draws_without_replacement_have_the_documented_weights():
    # Many alike users with 2 of 6 items: the exact probability of each pair is known.
    X, model = make_interactions(
        *(60_000, 6, 120_000),
        n_clusters=2,
        noise=0.3,
        min_interactions=2,
        return_model=True,
        random_state=0,
    )
    weight = 0.15 * model.popularity
    weight = np.where(model.item_clusters == 0, weight + 0.7 * model.popularity, weight)
    rows = X.toarray()[model.user_clusters == 0]
    for first in range(6):
        for second in range(first):
            expected = weight[first] * weight[second]
            expected *= 1 / (1 - weight[first]) + 1 / (1 - weight[second])
            observed = np.mean(rows[:, first] * rows[:, second])
            sigma = np.sqrt(expected * (1 - expected) / len(rows))
            assert abs(observed - expected) < 5 * sigma


def test_guessed_draws_have_the_documented_weights():
    # A large catalogue without a tail: here users guess, while they look at all items above.
    X, model = make_interactions(
        *(3000, 3000, 30_000),
        n_clusters=2,
        popularity_exponent=0,
        activity_exponent=0,
        noise=0.5,
        return_model=True,
        random_state=0,
    )
    users, items = X.nonzero()
    share = np.mean(model.user_clusters[users] == model.item_clusters[items])
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / X.nnz)
    count = X.sum(axis=0)
    assert abs(count.var() / count.mean() - 1) < 0.15


def test_users_can_take_everything():
    X = make_interactions(30, 20, 600, n_clusters=3, random_state=0)
    assert np.all(X.toarray() == 1)
    X, model = make_interactions(
        30, 20, 30 * 20 // 2, n_clusters=2, noise=0, return_model=True, random_state=0
    )
    same = model.user_clusters[:, np.newaxis] == model.item_clusters
    assert np.array_equal(X.toarray(), same)


def test_one_user_and_one_item():
    X = make_interactions(1, 1, 1, n_clusters=1, min_interactions=1)
    assert X.toarray().tolist() == [[1.0]]


def test_order_says_nothing_about_popularity_and_activity():
    X, model = make_interactions(2000, 2000, 40_000, return_model=True, random_state=0)
    assert abs(np.corrcoef(np.diff(X.indptr), np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(X.sum(axis=0), np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(model.user_clusters, np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(model.item_clusters, np.arange(2000))[0, 1]) < 0.1


def test_a_generator_fixes_the_interactions_too():
    X, same, other = (
        make_interactions(200, 50, 2000, random_state=np.random.default_rng(seed))
        for seed in (3, 3, 4)
    )
    assert (same != X).nnz == 0 and (other != X).nnz > 0


def test_random_state_fixes_the_interactions():
    X = make_interactions(random_state=3)
    X_same, model = make_interactions(random_state=np.random.RandomState(3), return_model=True)
    X_other = make_interactions(random_state=4)
    assert np.array_equal(X.indices, X_same.indices) and np.array_equal(X.indptr, X_same.indptr)
    assert not np.array_equal(X.indices, X_other.indices)
    assert set(model) == {"user_clusters", "item_clusters", "popularity"}


def test_blocks_are_seamless(monkeypatch):
    from freqfm.datasets import synthetic as interactions

    monkeypatch.setattr(interactions, "BLOCK_SIZE", 100)
    X, model = make_interactions(return_model=True, random_state=0)
    assert_canonical(X, (1000, 500))
    assert X.nnz == 20_000 and np.diff(X.indptr).min() >= 5
    users, items = X.nonzero()
    assert np.mean(model.user_clusters[users] == model.item_clusters[items]) > 0.8


def test_large_sizes_stay_sparse():
    # A dense matrix of this shape would take 40 GB.
    X = make_interactions(100_000, 100_000, 500_000, random_state=0)
    assert_canonical(X, (100_000, 100_000))
    assert X.nnz == 500_000


@each(
    ("arguments", "message"),
    [
        ({"n_users": 0}, "n_users=0 must be an integer of at least 1"),
        ({"n_items": 2.5}, "n_items=2.5 must be an integer of at least 1"),
        ({"n_interactions": "many"}, "n_interactions='many'"),
        ({"n_clusters": True}, "n_clusters=True"),
        ({"min_interactions": 0}, "min_interactions=0 must be an integer of at least 1"),
        ({"popularity_exponent": -1}, "popularity_exponent=-1 must be a finite number from 0 to 2"),
        ({"popularity_exponent": 3}, "popularity_exponent=3 must be a finite number from 0 to 2"),
        (
            {"activity_exponent": np.nan},
            "activity_exponent=nan must be a finite number from 0 to 2",
        ),
        ({"noise": 1.5}, "noise=1.5 must be a finite number from 0 to 1"),
        ({"noise": None}, "noise=None"),
        ({"n_clusters": 501}, "n_clusters is 501, with 1000 users and 500 items; pass at most"),
        ({"n_interactions": 4999}, "n_interactions is 4999, less than 1000 users times min_"),
        ({"n_interactions": 500_001}, "n_interactions is 500001 .* pass fewer interactions or"),
        ({"n_interactions": 100_001, "noise": 0}, "100 different items .* 100000 together"),
        ({"n_items": 10, "min_interactions": 11}, "10 different items or more each"),
        ({"n_users": 2**31, "n_interactions": 2**34}, "n_users=2147483648 must be at most"),
    ],
)
def test_make_interactions_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_interactions(**arguments)
