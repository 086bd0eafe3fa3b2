"""InteractionRecommender and freqfm.recommend in pipelines, searches and cross-validation."""

import pickle
import warnings

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_array_equal
from purchases import ROWS, frame
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from freqfm import InteractionRecommender, recommend
from freqfm.model_selection import WarmStartKFold


@pytest.fixture
def model():
    return InteractionRecommender(Counting()).fit(ROWS)


def block_log(seed=0):
    """Two groups of users, each with separate items."""
    rng = np.random.default_rng(seed)
    users = rng.integers(40, size=600)
    items = rng.integers(15, size=600) + 15 * (users % 2)
    return np.column_stack([users, items])


def test_grid_search_reaches_into_the_recommender():
    X = block_log()
    search = GridSearchCV(
        InteractionRecommender(Counting()),
        {"estimator__weight": [1e-3, -1e6]},
        cv=WarmStartKFold(3, random_state=0),
    ).fit(X)
    assert search.best_params_ == {"estimator__weight": 1e-3}
    # Popular items of the user's group, and unpopular ones of both.
    good, bad = search.cv_results_["mean_test_score"]
    assert good > 0.6 and bad < 0.4
    items, _ = recommend(search, [0, 1], n_recommendations=3)
    assert (items[0] < 15).all() and (items[1] >= 15).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_cross_validation_of_frames(library):
    X = block_log()
    model = InteractionRecommender(Counting())
    cv = WarmStartKFold(3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cross_val_score(model, frame(library, {"user": X[:, 0], "item": X[:, 1]}), cv=cv)
    assert_array_equal(scores, cross_val_score(model, X, cv=cv))
    assert_array_equal(scores, cross_val_score(model, X.tolist(), cv=cv))
    assert (scores > 0.1).all()


def test_clone_pickle_and_repr(model):
    copies = pickle.loads(pickle.dumps(model)), clone(model).fit(ROWS)
    for copy in copies:
        assert_array_equal(copy.recommend()[0], model.recommend()[0])
    model.set_params(estimator__weight=5, n_recommendations=3)
    assert model.estimator.weight == 5 and model.get_params()["estimator__weight"] == 5
    assert repr(model) == (
        "InteractionRecommender(estimator=Counting(weight=5), n_recommendations=3)"
    )
    assert model.recommend()[0].shape[1] == 3 and model.recommend("ann")[0].shape == (3,)


def test_parameters_of_the_default_recommender_are_set():
    model = InteractionRecommender().set_params(estimator__n_components=3, n_recommendations=2)
    assert repr(model.estimator) == "MFRecommender(n_components=3)" and model.n_recommendations == 2
    model.set_params(estimator=None)
    assert model.set_params(n_recommendations=4).estimator is None
    model.set_params(estimator=Counting(), estimator__weight=5)
    assert model.estimator.weight == 5


# freqfm.recommend


@pytest.fixture
def matrix():
    X = block_log()
    X = sparse.csr_array((np.ones(len(X)), (X[:, 0], X[:, 1])))
    X.data[:] = 1
    return X


def test_recommend_through_pipelines_and_searches(matrix):
    plain = Counting().fit(matrix)
    expected = plain.recommend(matrix, n_recommendations=3)[0]
    pipeline = make_pipeline(TfidfTransformer(), "passthrough", Counting())
    grid = {"counting__weight": [1e-3]}
    scoring = score_zero
    for estimator in (
        plain,
        pipeline.fit(matrix),
        make_pipeline(Counting()).fit(matrix),
        GridSearchCV(pipeline, grid, scoring=scoring).fit(matrix),
        RandomizedSearchCV(pipeline, grid, n_iter=1, scoring=scoring).fit(matrix),
        make_pipeline(
            TfidfTransformer(), GridSearchCV(Counting(), {"weight": [1e-3]}, scoring=scoring)
        ).fit(matrix),
    ):
        items, scores = recommend(estimator, matrix, n_recommendations=3)
        assert items.shape == scores.shape == (40, 3)
        if estimator is plain:
            assert_array_equal(items, expected)
        assert_array_equal(items // 15, expected // 15)
        seen = recommend(estimator, users=[4, 2], n_recommendations=3, exclude=[0])[0]
        assert seen.shape == (2, 3) and (seen != 0).all()


def score_zero(estimator, X, y=None):
    return 0.0


def test_recommend_passes_transformed_rows(matrix):
    pipeline = make_pipeline(TfidfTransformer(), Counting()).fit(matrix)
    items, scores = recommend(pipeline, matrix[:3], n_recommendations=4)
    expected = pipeline[-1].recommend(pipeline[0].transform(matrix[:3]), n_recommendations=4)
    assert_array_equal(items, expected[0])
    assert_array_equal(scores, expected[1])


def test_recommend_ids(model):
    pipeline = make_pipeline(clone(model)).fit(ROWS)
    assert_array_equal(recommend(pipeline, ["ann"])[0], model.recommend(["ann"])[0])
    assert_array_equal(recommend(pipeline)[0], model.recommend()[0])


def test_recommend_needs_a_fitted_recommender(matrix):
    grid = {"weight": [1.0, 2.0]}
    for estimator in (
        Counting(),
        make_pipeline(TfidfTransformer(), Counting()),
        GridSearchCV(Counting(), grid),
        InteractionRecommender(Counting()),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            recommend(estimator, matrix)
    for estimator, match in (
        (TfidfTransformer().fit(matrix), "^TfidfTransformer has no method recommend"),
        (
            make_pipeline(TfidfTransformer()).fit(matrix),
            "TfidfTransformer, the last step of Pipeline, has no method recommend",
        ),
        (make_pipeline(TfidfTransformer(), "passthrough"), "'passthrough', the last step"),
        ("model", "'model' has no method recommend"),
    ):
        with pytest.raises(TypeError, match=match):
            recommend(estimator, matrix)
    search = GridSearchCV(Counting(), grid, scoring=score_zero, refit=False).fit(matrix)
    with pytest.raises(ValueError, match="refit=False and kept no best estimator"):
        recommend(search, matrix)
