"""Scorers of rankings."""

import pickle

import joblib
import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

from freqfm import InteractionRecommender, metrics
from freqfm.model_selection import (
    WarmStartKFold,
    holdout_by_content,
    holdout_interactions,
    make_ranking_scorer,
)

METRICS = {
    "ndcg": metrics.ndcg_at_k,
    "recall": metrics.recall_at_k,
    "precision": metrics.precision_at_k,
    "average_precision": metrics.average_precision_at_k,
    "hit_rate": metrics.hit_rate_at_k,
    "reciprocal_rank": metrics.reciprocal_rank,
    "map": metrics.average_precision_at_k,
    "mrr": metrics.reciprocal_rank,
}


@pytest.fixture(scope="module")
def blocks():
    """Users of two groups, who choose among separate items."""
    rng = np.random.default_rng(0)
    X = rng.random((80, 40)) < np.where(np.arange(80)[:, None] % 2 == np.arange(40) % 2, 0.4, 0.02)
    return sparse.csr_array(X.astype(np.float32))


@pytest.mark.parametrize("name", METRICS)
def test_scorer_of_histories(blocks, name):
    model = Counting().fit(blocks)
    scorer = make_ranking_scorer(name, k=5, fraction=0.3, seed=2)
    history, held_out = holdout_by_content(blocks, 0.3, seed=2)
    ranked, _ = model.recommend(history, n_recommendations=5)
    rows = np.flatnonzero(np.diff(held_out.indptr))
    expected = METRICS[name](held_out[rows], ranked[rows], 5)
    assert scorer(model, blocks) == pytest.approx(expected)
    assert scorer(model, blocks.toarray()) == pytest.approx(expected)
    assert scorer(model, blocks.toarray().tolist()) == pytest.approx(expected)
    assert scorer(model, blocks, held_out) != scorer(model, blocks)
    assert scorer(model, history, held_out) == pytest.approx(expected)
    assert scorer(model, history, sparse.coo_matrix(held_out)) == pytest.approx(expected)
    assert scorer(model, sparse.coo_matrix(history), held_out) == pytest.approx(expected)
    permuted = np.random.default_rng(0).permutation(80)
    assert scorer(model, blocks[permuted]) == pytest.approx(expected)
    assert scorer(Counting(-1e6).fit(blocks), blocks) < expected
    assert type(scorer(model, blocks)) is float


def test_names_may_give_the_length_of_rankings(blocks):
    model = Counting().fit(blocks)
    assert repr(make_ranking_scorer("ndcg@20")) == repr(make_ranking_scorer("ndcg", k=20))
    assert repr(make_ranking_scorer("map")) == repr(make_ranking_scorer("map", k=10))
    assert make_ranking_scorer("map@3")(model, blocks) == make_ranking_scorer("map", k=3)(
        model, blocks
    )


def test_scorer_of_pipelines(blocks):
    scorer = make_ranking_scorer("recall")
    plain, pipeline = Counting().fit(blocks), make_pipeline(TfidfTransformer(), Counting())
    with pytest.raises(NotFittedError):
        scorer(pipeline, blocks)
    assert scorer(pipeline.fit(blocks), blocks) == pytest.approx(scorer(plain, blocks), abs=0.05)
    selecting = make_pipeline(VarianceThreshold(0.2), Counting()).fit(blocks)
    with pytest.raises(ValueError, match="the transformers before Counting turn the 40 items"):
        scorer(selecting, blocks)
    with pytest.raises(TypeError, match="TfidfTransformer has no method recommend"):
        scorer(TfidfTransformer().fit(blocks), blocks)


@pytest.mark.parametrize("n_jobs", [None, 2])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_searches_of_histories(blocks, n_jobs):
    search = GridSearchCV(
        make_pipeline(TfidfTransformer(), Counting()),
        {"counting__weight": [-1e6, 1e-3]},
        scoring={name: make_ranking_scorer(name) for name in METRICS},
        refit="ndcg",
        cv=KFold(3, shuffle=True, random_state=0),
        n_jobs=n_jobs,
    )
    # Processes that start by a fork import nothing.
    with joblib.parallel_config("multiprocessing"):
        search.fit(blocks)
    assert search.best_params_ == {"counting__weight": 1e-3}
    for name in METRICS:
        scores = search.cv_results_[f"mean_test_{name}"]
        assert scores[0] < scores[1] <= 1
    assert make_ranking_scorer()(search, blocks) == make_ranking_scorer()(
        search.best_estimator_, blocks
    )


def test_given_relevant_items_in_a_search(blocks):
    history, held_out = holdout_interactions(blocks, random_state=0)
    scorer = make_ranking_scorer(k=5)
    search = GridSearchCV(Counting(), {"weight": [1e-3]}, scoring=scorer, cv=4)
    search.fit(history, held_out)
    for k, (train, test) in enumerate(KFold(4).split(history)):
        expected = scorer(Counting().fit(history[train]), history[test], held_out[test])
        assert search.cv_results_[f"split{k}_test_score"] == [expected]


def test_scorer_of_interactions(blocks):
    X = np.column_stack(blocks.nonzero())
    model = InteractionRecommender(Counting(), n_recommendations=7)
    scoring = {name: make_ranking_scorer(name, k=7) for name in METRICS}
    found = cross_validate(model, X, cv=WarmStartKFold(3, random_state=0), scoring=scoring)
    own = cross_val_score(model, X, cv=WarmStartKFold(3, random_state=0))
    assert_array_equal(found["test_ndcg"], own)
    assert (found["test_recall"] > 0.2).all()
    train, test = next(WarmStartKFold(3, random_state=0).split(X))
    fitted = clone(model).fit(X[train])
    assert scoring["ndcg"](make_pipeline(fitted), X[test]) == fitted.score(X[test])
    (items, _), users = fitted.recommend(np.unique(X[test, 0]), n_recommendations=7), X[test, 0]
    hits = [items[np.unique(users).searchsorted(user)].tolist().count(i) for user, i in X[test]]
    assert scoring["precision"](fitted, X[test]) == pytest.approx(np.sum(hits) / items.size)


def test_scorers_show_how_they_were_made():
    scorer = make_ranking_scorer("recall", k=np.int64(20), seed=3)
    assert repr(scorer) == "make_ranking_scorer('recall', k=20, fraction=0.2, seed=3)"
    assert repr(pickle.loads(pickle.dumps(scorer))) == repr(scorer)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"metric": "ndgc"}, "metric='ndgc' is not known; did you mean 'ndcg'"),
        ({"metric": None}, "metric=None is not known"),
        ({"k": 0}, "k=0 must be an integer of at least 1"),
        ({"k": 1.5}, "k=1.5 must be an integer"),
        ({"metric": "ndcg@5", "k": 5}, "k=5 and metric='ndcg@5' both give k"),
        ({"metric": "ndcg@five"}, "metric='ndcg@five' has no length of rankings after '@'"),
        ({"seed": 0.5}, "seed=0.5 must be an integer"),
    ],
)
def test_wrong_scorers(options, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make_ranking_scorer(**options)


def test_nothing_to_score(blocks):
    model, scorer = Counting().fit(blocks), make_ranking_scorer()
    with pytest.raises(ValueError, match="no row of X holds two items"):
        scorer(model, sparse.csr_array(np.eye(40)))
    with pytest.raises(ValueError, match="y holds no items"):
        scorer(model, blocks, sparse.csr_array(blocks.shape))
    with pytest.raises(ValueError, match=r"y must be .* \(80, 40\); got one of shape \(80, 30"):
        scorer(model, blocks, blocks[:, :30])
    with pytest.raises(ValueError, match="y must be a sparse matrix .* got one of type ndarray"):
        scorer(model, blocks, np.zeros(80))
