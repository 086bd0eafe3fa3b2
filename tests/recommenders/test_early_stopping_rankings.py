"""Early stopping of recommenders by a ranking metric, or a callable, that the user chooses."""

import pickle

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
    metrics,
)
from freqfm.callbacks import Checkpoint
from freqfm.datasets import make_interactions
from freqfm.model_selection import holdout_interactions, make_ranking_scorer

OPTIONS = {"max_iter": 3, "random_state": 0, "n_jobs": 1, "n_iter_no_change": None}


def make(kind, **options):
    return kind(8, **OPTIONS | {"early_stopping": True} | options)


every_kind = pytest.mark.parametrize(
    "kind",
    [MFRecommender, ALSRecommender, *slow_params([FastVAERecommender])],
    ids=["MFRecommender", "ALSRecommender", "FastVAERecommender"],
)


@pytest.fixture(scope="module")
def parts():
    X = make_interactions(120, 60, n_interactions=1500, random_state=0)
    return holdout_interactions(X, 0.3, random_state=1)


def expected(model, X, X_val, metric, k):
    """The score of a model without early stopping, whose histories are ``X``."""
    users = np.flatnonzero((np.diff(X_val.indptr) > 0) & (np.diff(X.indptr) > 0))
    ranked, _ = model.recommend(users=users, n_recommendations=k)
    return metric(X_val[users], ranked, k)


@every_kind
def test_scores_are_those_of_the_metric_by_name(parts, kind):
    X, X_val = parts
    last = make(kind, early_stopping=False).fit(X)
    cases = {
        "ndcg": (metrics.ndcg_at_k, 10),
        "ndcg@3": (metrics.ndcg_at_k, 3),
        "recall@20": (metrics.recall_at_k, 20),
        "precision": (metrics.precision_at_k, 10),
        "map@5": (metrics.average_precision_at_k, 5),
        "average_precision": (metrics.average_precision_at_k, 10),
        "hit_rate@100": (metrics.hit_rate_at_k, 100),
        "mrr": (metrics.reciprocal_rank, 10),
        "reciprocal_rank@1": (metrics.reciprocal_rank, 1),
    }
    for scoring, (metric, k) in cases.items():
        model = make(kind, scoring=scoring).fit(X, X_val=X_val)
        assert model.validation_scores_[-1] == expected(last, X, X_val, metric, k), scoring
        assert model.best_iter_ == 1 + np.argmax(model.validation_scores_)
        name, _, _ = scoring.partition("@")
        made = make(kind, scoring=make_ranking_scorer(name, k=k)).fit(X, X_val=X_val)
        assert_array_equal(made.validation_scores_, model.validation_scores_)
        stored = pickle.loads(pickle.dumps(made))
        assert repr(stored) == repr(made)
        assert_array_equal(clone(stored).fit(X, X_val=X_val).item_factors_, made.item_factors_)


@every_kind
def test_default_is_ndcg_of_as_many_as_are_recommended(parts, kind, capsys):
    X, _ = parts
    default = make(kind, n_recommendations=4, verbose=2).fit(X)
    assert default.scoring == "ndcg"
    assert "validation ndcg 0." in capsys.readouterr().out
    named = make(kind, scoring="ndcg@4", verbose=2).fit(X)
    assert "validation ndcg@4 0." in capsys.readouterr().out
    assert_array_equal(default.validation_scores_, named.validation_scores_)
    assert_array_equal(default.item_factors_, named.item_factors_)


@every_kind
def test_callables_see_histories_without_the_items_to_be_found(parts, kind):
    X, X_val = parts
    seen = []

    def found(estimator, histories, held_out):
        seen.append((histories, held_out))
        assert type(estimator) is kind
        ranked, _ = estimator.recommend(histories, n_recommendations=5)
        return metrics.recall_at_k(held_out, ranked)

    pd = pytest.importorskip("pandas")
    names = [f"i{j}" for j in range(X.shape[1])]
    frames = [pd.DataFrame(part.toarray(), columns=names) for part in (X, X_val)]
    model = make(kind, scoring=found).fit(frames[0], X_val=frames[1])
    histories, held_out = seen[-1]
    assert not histories.multiply(held_out).nnz
    users = np.flatnonzero((np.diff(X_val.indptr) > 0) & (np.diff(X.indptr) > 0))
    assert_array_equal(histories.toarray(), X[users].toarray())
    assert_array_equal(held_out.toarray(), X_val[users].toarray())
    last = make(kind, early_stopping=False).fit(X)
    assert model.validation_scores_[-1] == found(last, histories, held_out)
    assert list(model.feature_names_in_) == names
    constant = make(kind, scoring=lambda *_: 0.5, max_iter=9, n_iter_no_change=2).fit(X)
    assert constant.n_iter_ == 3


@every_kind
def test_scores_that_cannot_be_used_are_refused_by_name(parts, kind, tmp_path):
    X, _ = parts
    cases = {
        "ndgc": "scoring='ndgc' is not known; did you mean 'ndcg'",
        "roc_auc@3": "scoring='roc_auc@3' is not known",
        "ndcg@": "scoring='ndcg@' has no length of rankings",
        "ndcg@0": "positive integer, as in 'ndcg@20'",
        "recall@-1": "'recall@20'",
        "map@1.5": "'map@20'",
    }
    for scoring, message in cases.items():
        for early_stopping in (True, False):
            with pytest.raises(ValueError, match=message):
                make(kind, scoring=scoring, early_stopping=early_stopping).fit(X)
    for scoring in (None, 3, ["ndcg"]):
        with pytest.raises(ValueError, match="'scoring' parameter of"):
            make(kind, scoring=scoring).fit(X)
    for value in (np.nan, "high", None):
        model = make(kind, scoring=lambda *_, value=value: value)
        with pytest.raises(ValueError, match=r"scoring=.* gave .*finite number"):
            model.fit(X)
        assert not hasattr(model, "item_factors_")
    model = make(kind, scoring=lambda *_: 1.0).set_callbacks(Checkpoint(tmp_path / "checkpoint"))
    with pytest.raises(TypeError, match="scoring"):
        model.fit(X)


def test_searches_and_tables_pass_scoring_on(parts):
    X, _ = parts
    search = GridSearchCV(
        make(ALSRecommender, n_recommendations=5),
        {"scoring": ["ndcg", "recall@20"]},
        cv=2,
        scoring=make_ranking_scorer("ndcg@20"),
    ).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    rows = np.column_stack(X.nonzero())
    table = InteractionRecommender(make(ALSRecommender, scoring="recall@7")).fit(rows)
    assert_array_equal(
        table.estimator_.validation_scores_,
        clone(table.estimator_).fit(X[:, table.item_ids_]).validation_scores_,
    )
