"""Scorers of rankings."""

import pickle
import warnings

import joblib
import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

from freqfm import (
    ALSRecommender,
    EASERecommender,
    InteractionRecommender,
    MFRecommender,
    metrics,
)
from freqfm.displays import RankingReport, StratifiedNDCGDisplay
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
    with pytest.warns(UserWarning, match="are of items that the user had before"):
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


# Seen items


@pytest.fixture(scope="module")
def shop():
    """Views of training and purchases of the test, of which some are of viewed items."""
    rng = np.random.default_rng(0)
    views = rng.random((30, 12)) < 0.3
    bought = rng.random((30, 12)) < np.where(views, 0.2, 0.1)
    views[:, 0], bought[:5, 0] = np.arange(30) < 9, True
    return views, bought


def ndcg_by_hand(ranked, relevant, k):
    """Return the mean NDCG of lists of items, and of sets of relevant ones."""
    values = []
    for items, wanted in zip(ranked, relevant, strict=True):
        gain = sum(1 / np.log2(place + 2) for place, i in enumerate(items[:k]) if i in wanted)
        values.append(gain / sum(1 / np.log2(p + 2) for p in range(min(k, len(wanted)))))
    return np.mean(values)


def model_of_views(views, recommender=None):
    recommender = EASERecommender() if recommender is None else recommender
    return InteractionRecommender(recommender).fit(np.column_stack(views.nonzero()))


@pytest.mark.filterwarnings("error")
def test_a_scorer_may_recommend_seen_items(shop):
    views, bought = shop
    model, X = model_of_views(views), np.column_stack(bought.nonzero())
    users = np.flatnonzero(bought.any(axis=1))
    relevant = [set(np.flatnonzero(bought[user])) for user in users]
    n_seen = int((views & bought).sum())
    assert 0 < n_seen < len(X)
    expected = rf"{n_seen} of {len(X)} held-out pairs \({n_seen / len(X):.0%}\) are of items that"
    for exclude_seen in (True, False):
        scorer = make_ranking_scorer("ndcg", k=4, exclude_seen=exclude_seen)
        ranked, _ = model.recommend(users, n_recommendations=4, exclude_seen=exclude_seen)
        by_hand = ndcg_by_hand(ranked, relevant, 4)
        if exclude_seen:
            with pytest.warns(UserWarning, match=expected) as caught:
                found = scorer(model, X)
            assert len(caught) == 1 and caught[0].filename == __file__
        else:
            found = scorer(model, X)
        assert found == pytest.approx(by_hand)
    with pytest.warns(UserWarning, match=expected):
        model.score(X)
    # Nothing is lost.
    new = np.column_stack((bought & ~views).nonzero())
    for name in METRICS:
        assert make_ranking_scorer(name)(model, new) >= 0
    assert make_ranking_scorer("coverage", k=4)(model, X) > 0
    assert model.score(new) > 0
    # A model of someone else does not say what users had.
    assert make_ranking_scorer()(model_of_views(views, Counting()), X) > 0
    assert make_ranking_scorer(exclude_seen=False)(model_of_views(views, Counting()), X) > 0


@pytest.mark.filterwarnings("error")
@each("dense", [False, True])
def test_a_scorer_of_histories_may_recommend_seen_items(dense, shop):
    views, bought = (X.astype(np.float32) for X in shop)
    model = EASERecommender().fit(views)
    X, y = views if dense else sparse.csr_matrix(views), sparse.coo_array(bought)
    rows = np.flatnonzero(bought.any(axis=1))
    relevant = [set(np.flatnonzero(bought[row])) for row in rows]
    n_seen, n_bought = int((views * bought).sum()), int(bought.sum())
    expected = f"{n_seen} of {n_bought} held-out pairs"
    for exclude_seen in (True, False):
        ranked, _ = model.recommend(views[rows], n_recommendations=5, exclude_seen=exclude_seen)
        scorer = make_ranking_scorer("ndcg@5", exclude_seen=exclude_seen)
        scorer = pickle.loads(pickle.dumps(scorer))
        for estimator in (model, make_pipeline("passthrough", model)):
            if exclude_seen:
                with pytest.warns(UserWarning, match=expected):
                    found = scorer(estimator, X, y)
            else:
                found = scorer(estimator, X, y)
            assert found == pytest.approx(ndcg_by_hand(ranked, relevant, 5))
    with pytest.warns(UserWarning, match=expected):
        model.score(X, bought)
    with pytest.warns(UserWarning, match="30 of 30 held-out pairs"):
        model.score(np.ones((30, 12)), np.zeros(30, int))
    # A part of the rows that is held out is not seen.
    assert make_ranking_scorer()(model, X) > 0 and model.score(X) > 0
    assert make_ranking_scorer()(model, X, sparse.csr_array(bought * (views == 0))) > 0
    assert make_ranking_scorer("coverage")(model, X, y) > 0


def test_dislikes_are_seen(shop):
    views, bought = shop
    signs = np.where(views, np.where(np.arange(12) % 3 == 0, -1.0, 1.0), 0)
    users, items = signs.nonzero()
    table = [(u, i, signs[u, i]) for u, i in zip(users.tolist(), items.tolist(), strict=True)]
    model = InteractionRecommender(EASERecommender()).fit(table)
    X = np.column_stack(bought.nonzero())
    X = X[np.isin(X[:, 0], users)]
    n_seen = int((views & bought).sum())
    with pytest.warns(UserWarning, match=f"^{n_seen} of {len(X)} held-out pairs"):
        make_ranking_scorer()(model, X)
    # Held-out dislikes are no items to be found, but those that are counted.
    test = [(u, i, -1.0) for u, i in X.tolist()] + [(int(X[0, 0]), 1, 1.0)]
    with pytest.warns(UserWarning, match=f"^{n_seen} of {len(X)} held-out pairs"):
        make_ranking_scorer("neg_dislike_rate")(model, [row for row in test if row[1:] != (1, 1.0)])


def test_coverage_is_a_score(shop, blocks):
    views, bought = shop
    model, X = model_of_views(views), np.column_stack(bought.nonzero())
    for k in (1, 3, 20):
        for exclude_seen in (True, False):
            ranked, _ = model.recommend(
                np.unique(X[:, 0]), n_recommendations=k, exclude_seen=exclude_seen
            )
            share = len({i for items in ranked.tolist() for i in items if i is not None}) / 12
            for options in ({"metric": "coverage", "k": k}, {"metric": f"coverage@{k}"}):
                scorer = make_ranking_scorer(**options, exclude_seen=exclude_seen)
                assert scorer(model, X) == pytest.approx(share)
    counting = Counting().fit(blocks)
    history, held_out = holdout_by_content(blocks)
    ranked, _ = counting.recommend(history[np.diff(held_out.indptr) > 0], n_recommendations=5)
    found = make_ranking_scorer("coverage@5")(counting, blocks)
    assert found == len(np.unique(ranked)) / 40


@each("cls", [MFRecommender, ALSRecommender])
def test_early_stopping_may_count_seen_items(cls, shop):
    views, bought = (sparse.csr_array(X.astype(np.float32)) for X in shop)
    params = {"n_components": 4, "max_iter": 2, "random_state": 0, "early_stopping": True}
    n_seen = bought.multiply(views).nnz
    with pytest.warns(UserWarning, match=rf"^{n_seen} of {bought.nnz} pairs in X_val are of items"):
        cls(**params).fit(views, X_val=bought)
    seen = bought.multiply(views).tocsr()
    with pytest.raises(ValueError, match="X_val holds no interaction"), pytest.warns(UserWarning):
        cls(**params).fit(views, X_val=seen)
    scorer = make_ranking_scorer("ndcg", k=5, exclude_seen=False)
    model = cls(**params, scoring=scorer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*reached max_iter")
        model.fit(views, X_val=bought)
        cls(**params).fit(views, X_val=sparse.csr_array(bought - seen))
    rows = np.flatnonzero(np.diff(bought.indptr) * np.diff(views.indptr))
    given = []

    def ranks_all(estimator, X, y):
        found, _ = estimator.recommend(users=rows, n_recommendations=5, exclude_seen=False)
        given.append(ndcg_by_hand(found, [set(bought[[row]].indices) for row in rows], 5))
        return given[-1]

    with pytest.warns(UserWarning, match="pairs in X_val"):
        cls(**params, scoring=ranks_all).fit(views, X_val=bought)
    assert model.validation_scores_ == pytest.approx(given)


def test_reports_say_what_was_seen(shop):
    views, bought = shop
    model, X = model_of_views(views), np.column_stack(bought.nonzero())
    expected = f"{(views & bought).sum()} of {len(X)} held-out pairs"
    with pytest.warns(UserWarning, match=expected):
        RankingReport.from_estimator(model, X, k=3)
    with pytest.warns(UserWarning, match=expected):
        RankingReport.from_estimator(EASERecommender().fit(views), bought, history=views, k=3)
    pytest.importorskip("matplotlib")
    with pytest.warns(UserWarning, match=expected):
        StratifiedNDCGDisplay.from_estimators(EASERecommender().fit(views), bought, k=3)
