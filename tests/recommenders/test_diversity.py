"""``recommend(..., diversity=...)`` of all recommenders."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from reference.reranking import marginal_relevance, scaled
from scipy import sparse

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    recommend,
)
from freqfm.backbones import Features
from freqfm.datasets import make_interactions
from freqfm.metrics import diversity_at_k

MODELS = [
    MFRecommender(4, max_iter=3, random_state=0),
    MFRecommender(4, similarity=("dot", "dot"), max_iter=3, random_state=0),
    FastVAERecommender(4, hidden_layer_sizes=(8,), max_iter=3, random_state=0),
    ALSRecommender(4, max_iter=3, random_state=0),
    EASERecommender(),
    ItemKNNRecommender(5),
]


@pytest.fixture(scope="module")
def X():
    X = make_interactions(60, 150, 900, random_state=0).tolil()
    X[3], X[:, 7] = 0, 0
    return sparse.csr_array(X)


@pytest.fixture(scope="module")
def models(X):
    return [model.fit(X) for model in MODELS]


def own_vectors(model):
    if hasattr(model, "item_weights_"):
        return model.item_weights_.toarray().astype(np.float64)
    return model.item_factors_[:, : model._compared_columns].astype(np.float64)


def expected(model, table, diversity, k, **query):
    """Return diverse recommendations, chosen one by one from the best."""
    items, scores = model.recommend(n_recommendations=max(100, 5 * k), **query)
    found = np.full((len(items), k), -1)
    for user, (of_user, numbers) in enumerate(zip(items, scores, strict=True)):
        of_user, numbers = of_user[of_user >= 0], numbers[of_user >= 0]
        if len(of_user):
            relevances = np.array(scaled(numbers.astype(np.float64).tolist()))
            places = marginal_relevance(relevances, table[of_user], diversity, k)
            found[user, : len(places)] = of_user[places]
    return found


@pytest.mark.slow
@each("diversity", [0.2, 0.7])
def test_recommendations_are_those_of_the_definition(models, X, diversity):
    features = np.random.default_rng(0).normal(size=(X.shape[1], 3))
    limits = {"candidates": np.arange(0, 150, 2), "exclude": [4, 8]}
    for model in models:
        for query in ({"X": X[:10]}, {"users": np.arange(10)}, {"X": X[:10], **limits}):
            found, scores = model.recommend(**query, diversity=diversity, n_recommendations=6)
            assert_array_equal(found, expected(model, own_vectors(model), diversity, 6, **query))
            assert ((scores == -np.inf) == (found < 0)).all()
        given = {"diversity": diversity, "item_vectors": features, "n_recommendations": 6}
        assert_array_equal(
            model.recommend(X[:10], **given)[0], expected(model, features, diversity, 6, X=X[:10])
        )
        assert_array_equal(
            model.recommend(X, **given | {"item_vectors": sparse.csc_array(features)})[0],
            model.recommend(X, **given)[0],
        )


def test_no_diversity_changes_nothing(models, X):
    for model in models:
        plain = model.recommend(X)
        for options in ({"diversity": 0}, {"diversity": 0.0, "item_vectors": np.ones((150, 1))}):
            for one, other in zip(model.recommend(X, **options), plain, strict=True):
                assert_array_equal(one, other)


def test_users_alone_and_together_get_the_same(models, X, monkeypatch):
    for model in models:
        model.set_params(n_jobs=1)
        together = model.recommend(X, diversity=0.4)
        single = model.recommend(users=5, diversity=0.4)
        assert single[0].shape == (10,)
        assert_array_equal(single[0], model.recommend(users=[5], diversity=0.4)[0][0])
        for user in (0, 3, 5):
            alone = model.recommend(X[[user]], diversity=0.4)
            assert_array_equal(alone[0][0], together[0][user])
        monkeypatch.setattr("freqfm.estimators.recommenders.base._PLACES", 700)
        model.set_params(n_jobs=2)
        for one, other in zip(model.recommend(X, diversity=0.4), together, strict=True):
            assert_array_equal(one, other)
        monkeypatch.undo()


def test_lists_become_more_diverse(models, X):
    for model in models:
        table = own_vectors(model)
        found = [model.recommend(X, diversity=d)[0] for d in (0, 0.5, 1)]
        values = [diversity_at_k(items, table) for items in found]
        assert values[0] < values[1] < values[2]
        # The best item stays the best.
        assert_array_equal(found[0][:, 0], found[2][:, 0])


def test_more_recommendations_than_items(models, X):
    for model in models:
        found, scores = model.recommend(X, n_recommendations=160, diversity=0.5)
        plain, _ = model.recommend(X, n_recommendations=160)
        assert found.shape == scores.shape == (60, 160)
        assert_array_equal(np.sort(found, axis=1), np.sort(plain, axis=1))


@pytest.mark.slow
def test_new_items_by_their_features(X):
    generator = np.random.default_rng(0)
    features = generator.integers(0, 2, (150, 5)) + np.ones((150, 1))
    model = MFRecommender(4, backbone=Features(item_features=features), max_iter=2, random_state=0)
    model.fit(X)
    options = {"item_features": features[:20], "candidates": np.arange(100, 170)}
    pool, _ = model.recommend(X, n_recommendations=100, **options)
    found, _ = model.recommend(X, diversity=0.5, **options)
    assert (found >= 150).any() and (found[:, :, None] == pool[:, None]).any(axis=2).all()
    rows = generator.normal(size=(170, 3))
    assert (model.recommend(X, diversity=0.5, item_vectors=rows, **options)[0] >= 0).all()
    with pytest.raises(ValueError, match="item_vectors has 150 rows, but there are 170 items"):
        model.recommend(X, diversity=0.5, item_vectors=rows[:150], **options)


def test_tables_of_interactions(X):
    users, items = X.nonzero()
    names = np.array([f"item {i:03}" for i in range(150)])
    log = pd.DataFrame({"user": [f"user {u}" for u in users], "item": names[items]})
    model = InteractionRecommender(ALSRecommender(4, max_iter=3, random_state=0)).fit(log)
    known = [f"user {u}" for u in range(5)]
    genre = np.array(["comedy", "drama", "war"])[np.arange(150) % 3]
    frame = pd.DataFrame({"item": names, "genre": genre})
    features = (genre[:, None] == np.unique(genre))[np.isin(names, model.item_ids_)]
    plain, _ = model.recommend(known, n_recommendations=6)
    found, _ = model.recommend(known, n_recommendations=6, diversity=0.6, item_vectors=frame)
    assert (found != plain).any()
    codes = np.searchsorted(model.item_ids_, found.astype(str))
    assert diversity_at_k(codes, features, 3) == 1  # one of each genre
    for same in (features, sparse.csr_array(features), pl.from_pandas(frame), frame[::-1]):
        again, _ = model.recommend(known, n_recommendations=6, diversity=0.6, item_vectors=same)
        assert_array_equal(again, found)
    single, _ = model.recommend(known[0], n_recommendations=6, diversity=0.6, item_vectors=frame)
    assert_array_equal(single, found[0])
    assert_array_equal(
        recommend(model, known, n_recommendations=6, diversity=0.6, item_vectors=frame)[0], found
    )
    new, _ = model.recommend(history=[names[1], names[2]], diversity=0.4)
    assert new.shape == (10,) and len(set(new)) == 10
    stranger, _ = model.recommend(["nobody"], diversity=0.9, item_vectors=frame)
    assert (stranger[0] != model.recommend(["nobody"])[0][0]).any()
    with pytest.raises(ValueError, match="item_vectors has no column of item ids"):
        model.recommend(known, diversity=0.6, item_vectors=frame[["genre"]])


@each(
    "options, words",
    [
        ({"diversity": 1.1}, "diversity=1.1 must be a finite number from 0 to 1"),
        ({"diversity": -0.1}, "diversity=-0.1"),
        ({"diversity": np.nan}, "diversity=nan"),
        ({"diversity": True}, "diversity=True"),
        ({"diversity": "high"}, "diversity='high'"),
        ({"item_vectors": np.ones((3, 2))}, "item_vectors has 3 rows, but there are 150 items"),
        ({"diversity": 0.5, "item_vectors": np.ones(150)}, "item_vectors must be a matrix"),
    ],
)
def test_bad_options_are_refused(models, X, options, words):
    with pytest.raises((TypeError, ValueError)) as error:
        models[3].recommend(X, **options)
    assert words in str(error.value)
