"""RaFMClassifier and RaFMRegressor in the interface of scikit-learn."""

import pickle

import numpy as np
import pytest
from helpers import assert_same_model, each
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from freqfm import RaFMClassifier, RaFMRegressor
from freqfm.datasets import make_clicks
from freqfm.estimators.fm.factors import assign_levels
from freqfm.initializers import Normal
from freqfm.optimizers import Adam

pytestmark = pytest.mark.slow  # kernels of a further family


def test_planted_interactions_beat_the_linear_part():
    X, y, planted = make_clicks(30_000, (500, 200, 20), return_model=True, random_state=1)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = RaFMClassifier(random_state=0).fit(X_train, y_train)
    auc = roc_auc_score(y_test, model.decision_function(X_test))
    assert auc > roc_auc_score(y_test, X_test @ planted.coef) + 0.05
    assert set(model.feature_ranks_) == set(model.ranks)
    assert model.best_iter_ < model.n_iter_ < 100


def test_in_a_pipeline_and_a_search():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 20, 600), rng.integers(0, 3, 600)])
    y = np.where((rows[:, 0] + rows[:, 1]) % 2, "odd", "even")
    pipe = make_pipeline(
        OneHotEncoder(handle_unknown="ignore"),
        RaFMClassifier(
            optimizer=Adam(0.02),
            batch_size=50,
            init=Normal(0.1),
            max_iter=30,
            random_state=0,
            alpha_linear=1,
        ),
    )
    grid = [
        {"rafmclassifier__ranks": [ranks], "rafmclassifier__alpha_factors": [alpha]}
        for ranks, alpha in (((4, 8), 0), ([2], 0.01))
    ]
    search = GridSearchCV(pipe, grid, cv=2).fit(rows, y)
    assert search.best_score_ > 0.95
    assert set(search.predict(rows)) == {"odd", "even"}


def test_multiclass_has_tables_for_every_class():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), RaFMClassifier((2, 4), random_state=0)).fit(X, y)
    rafm = model[-1]
    assert [t.shape for t in rafm.factors_] == [(3, 4, 2), (3, 4, 4)]
    assert rafm.n_parameters_ == 3 * (8 + 16 + 4)
    assert model.score(X, y) > 0.9
    low = rafm.up_to_rank(2)
    assert_allclose(low.predict_proba(model[0].transform(X)).sum(axis=1), 1)


# Ranks


def test_nearest_rank_is_equation_17():
    ranks = np.array([4, 16, 32])
    counts = np.array([0, 1, 7, 8, 9, 16, 22, 23, 1000])
    with np.errstate(divide="ignore"):
        distance = np.abs(np.log(counts[:, None]) - np.log(ranks))
    distance[0] = [0, 1, 2]  # an unseen feature has the smallest rank
    expected = distance.argmin(axis=1)
    assert_array_equal(assign_levels("nearest", ranks, counts), expected)


def test_bounds_and_ranks_of_features(clicks):
    X, y = clicks
    held = np.diff(X.tocsc().indptr)
    model = RaFMClassifier((2, 4, 8), rank_assignment=[10, 20], random_state=0).fit(X, y)
    assert_array_equal(model.feature_ranks_, np.where(held > 20, 8, np.where(held > 10, 4, 2)))
    given = np.resize([8, 2, 4], 12)
    model = RaFMClassifier((2, 4, 8), rank_assignment=given, random_state=0).fit(X, y)
    assert_array_equal(model.feature_ranks_, given)
    for rank, table in zip((2, 4, 8), model.factors_, strict=True):
        assert len(table) == (given >= rank).sum()
    # A feature has the same row in all of its tables.
    assert set(model.factor_rows_[given == 8]) == set(range((given == 8).sum()))
    counts = np.arange(12) * 10
    by_counts = RaFMClassifier((2, 4, 8), counts=counts, random_state=0).fit(X, y)
    assert_array_equal(by_counts.feature_ranks_, np.array([2, 4, 8])[
        assign_levels("nearest", np.array([2, 4, 8]), counts)])  # fmt: skip


def test_unseen_features_have_the_smallest_rank_and_learn_later(clicks):
    X, y = clicks
    model = RaFMClassifier((2, 4), rank_assignment=[5], random_state=0)
    model.partial_fit(X, y, classes=[0, 1])
    assert model.feature_ranks_[5] == 2
    before = model.factors_[0][model.factor_rows_[5]].copy()
    later = X.toarray()
    later[:, 5] = 1
    ranks = model.feature_ranks_.copy()
    model.partial_fit(later, y)
    assert (model.factors_[0][model.factor_rows_[5]] != before).all()
    assert_array_equal(model.feature_ranks_, ranks)


@each(
    "params, words",
    [
        ({"ranks": (8, 4)}, r"ranks=\(8, 4\) must be positive whole numbers, each larger"),
        ({"ranks": (4, 4)}, r"ranks=\(4, 4\) must be positive"),
        ({"ranks": (0, 4)}, r"ranks=\(0, 4\) must be positive"),
        ({"ranks": ()}, r"ranks=\(\) must be positive"),
        ({"ranks": (2.5, 4)}, r"ranks=\(2.5, 4\) must be positive whole"),
        ({"ranks": [[2, 4]]}, r"ranks=\[\[2, 4\]\] must be positive"),
        ({"counts": [1, 2]}, r"counts has shape \(2,\), but X has 12 features"),
        ({"counts": np.full(12, -1)}, "counts must be finite and non-negative"),
        ({"counts": np.full(12, np.nan)}, "counts must be finite and non-negative"),
        ({"rank_assignment": [1, 2, 3]}, "rank_assignment has 3 values; it takes 1 bounds"),
        ({"rank_assignment": np.full(12, 5)}, r"rank_assignment holds \[5\], not among"),
        ({"rank_assignment": [np.nan]}, "rank_assignment must be 'nearest', 1 increasing"),
        ({"ranks": (2, 4, 8), "rank_assignment": [9, 3]}, "must not decrease"),
        ({"rank_assignment": "closest"}, "'rank_assignment' parameter of RaFMClassifier"),
        ({"rank_sharing": "both"}, "'rank_sharing' parameter of RaFMClassifier"),
        ({"form": "code"}, "'form' parameter of RaFMClassifier"),
        ({"dependent_weight": -1}, "'dependent_weight' parameter of RaFMClassifier"),
    ],
)
def test_bad_ranks(clicks, params, words):
    with pytest.raises(ValueError, match=words):
        RaFMClassifier(**{"ranks": (2, 4), **params}).fit(*clicks)


# Parts of a model


def test_up_to_rank_is_a_separate_model(clicks):
    X, y = clicks
    for optimizer in ("cf_sgd", "rowwise_adagrad", "adam"):
        model = RaFMClassifier((2, 4, 8), optimizer=optimizer, rank_assignment=[10, 20],
                               max_iter=3, random_state=0).fit(X, y)  # fmt: skip
        scores = model.decision_function(X)
        for rank in (2, 4):
            low = model.up_to_rank(rank)
            assert low.n_parameters_ < model.n_parameters_
            assert low.optimizer_state_nbytes_ <= model.optimizer_state_nbytes_
            before = low.decision_function(X)
            stored = pickle.loads(pickle.dumps(low))
            assert_array_equal(stored.decision_function(X), before)
            low.partial_fit(X, y)
            assert (low.decision_function(X) != before).any()
            assert len(clone(low).fit(X, y).factors_) == len(low.ranks)
        assert_array_equal(model.decision_function(X), scores)
    with pytest.raises(ValueError, match=r"rank=3 is not one of the ranks \[2, 4, 8\]"):
        model.up_to_rank(3)


def test_the_smallest_rank_keeps_learning_as_a_plain_fm(clicks):
    # What is left is a plain FM, and trains as one whatever rows its vectors were in.
    X, y = clicks
    model = RaFMClassifier((2, 4), rank_assignment=[10], optimizer="adam", max_iter=3,
                           random_state=0).fit(X, y)  # fmt: skip
    low = model.up_to_rank(2)
    state, rows = low._optimizer_state[0], model.factor_rows_
    assert_array_equal(low.factors_[0], model.factors_[0][rows])
    first = model._optimizer_state[0]["factors_first"][: 12 * 2].reshape(12, 2)
    assert_array_equal(state["factors_first"], first[rows])


def test_ten_calls_of_partial_fit_are_ten_epochs(at_full_rates, clicks):
    X, y = clicks
    params = {"ranks": (2, 4), "rank_assignment": [10], "batch_size": 20, "random_state": 0}
    params |= {"alpha_per": "row", "alpha_factors": 0.01}
    whole = RaFMRegressor(max_iter=10, n_iter_no_change=None, **params).fit(X, y)
    parts = RaFMRegressor(**params)
    for _ in range(10):
        parts.partial_fit(X, y)
    for name in ("coef_", "_factors"):
        assert_array_equal(getattr(parts, name), getattr(whole, name))
    again = RaFMRegressor(max_iter=5, n_iter_no_change=None, warm_start=True, **params)
    assert_array_equal(again.fit(X, y).fit(X, y)._factors, whole._factors)
    again.set_params(ranks=(2, 5))
    with pytest.raises(ValueError, match=r"ranks=\(2, 5\).*differs from the \[2, 4\]"):
        again.fit(X, y)


def test_parameters_changed_after_fit_do_not_change_the_model(clicks):
    X, y = clicks
    model = RaFMClassifier((2, 4), random_state=0).fit(X, y)
    before = model.decision_function(X)
    model.set_params(ranks=(3, 9), rank_sharing="truncate")
    assert_array_equal(model.decision_function(X), before)


def test_weights_are_repeated_rows(clicks):
    X, y = clicks
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    params = {"ranks": (2, 4), "rank_assignment": [15], "batch_size": 500, "random_state": 0}
    weighted = RaFMRegressor(**params).fit(X, y, sample_weight=weight)
    repeated = RaFMRegressor(**params).fit(X[np.repeat(np.arange(60), weight)], y.repeat(weight))
    assert_array_equal(weighted.feature_ranks_, repeated.feature_ranks_)
    assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-5)


def test_same_model_again(clicks):
    X, y = clicks
    one = RaFMClassifier(random_state=0).fit(X, y)
    assert_same_model(one, RaFMClassifier(random_state=0, n_jobs=2).fit(X, y))
