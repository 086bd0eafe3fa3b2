"""InteractionRecommender: further training, and models that a refused call leaves alone."""

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_allclose, assert_array_equal
from purchases import ITEMS, MATRIX, ROWS, USERS
from sklearn.base import BaseEstimator

from freqfm import InteractionRecommender, MFRecommender
from freqfm._input.ids import extend_ids
from freqfm.exceptions import DivergenceError


@pytest.fixture
def model():
    return InteractionRecommender(Counting()).fit(ROWS)


def test_partial_fit_keeps_codes_and_appends_new_ids(model):
    more = [("cat", "tea", 1.0), ("ann", "fig", 2.0), ("abe", "fig", 1.0), ("cat", "abc", 1.0)]
    model.partial_fit(more)
    assert model.user_ids_.tolist() == [*USERS, "abe", "cat"]
    assert model.item_ids_.tolist() == [*ITEMS, "abc", "fig"]
    grown = np.zeros((6, 7))
    grown[:4, :5] = MATRIX
    grown[5, 4] = grown[4, 6] = grown[5, 5] = 1
    grown[0, 6] = 2
    assert_array_equal(model.estimator_.seen_, grown)
    whole = InteractionRecommender(Counting()).fit(ROWS + more)
    one, other = model.recommend(whole.user_ids_), whole.recommend()
    assert_allclose(one[1], other[1])
    assert_array_equal(model.predict(more), whole.predict(more))


def test_parameters_may_change_between_calls():
    one, other = (
        InteractionRecommender(MFRecommender(3, max_iter=2, random_state=0)).fit(ROWS)
        for _ in range(2)
    )
    factors = one.estimator_.item_factors_.copy()
    one.set_params(estimator__learning_rate=1e-9, estimator__n_jobs=1).partial_fit(ROWS)
    other.partial_fit(ROWS)
    assert_allclose(one.estimator_.item_factors_, factors, atol=1e-6)
    assert not np.allclose(other.estimator_.item_factors_, factors, atol=1e-3)
    with pytest.raises(ValueError, match="n_components=5"):
        one.set_params(estimator__n_components=5).partial_fit(ROWS)


def test_partial_fit_first_and_without_news():
    model = InteractionRecommender(Counting()).partial_fit(ROWS).partial_fit(ROWS[:2])
    assert model.user_ids_.tolist() == USERS
    assert model.estimator_.seen_[0].tolist() == [0, 0, 4.5, 0, 2]


@pytest.mark.parametrize(
    "first, second, dtype",
    [
        (np.int32([[1, 5], [2, 6]]), np.int64([[2**40, 5]]), np.int64),
        (np.array([["a", "b"]]), np.array([["long", "b"]]), "<U4"),
        (np.array([["a", "b"]]), [("long", "b")], "<U4"),
        (np.array([["a", "b"]], dtype=object), np.array([["long", "b"]]), object),
        (np.array([[1.5, 2]]), np.array([[3, 2]]), np.float64),
        (np.array([[1, 2]]), np.array([[3.0, 2.0]]), np.int64),
    ],
)
def test_types_of_appended_ids(first, second, dtype):
    model = InteractionRecommender(Counting()).fit(first).partial_fit(second)
    assert model.user_ids_.dtype == np.dtype(dtype)
    assert len(model.user_ids_) == len(first) + 1
    new = model.user_ids_[-1]
    assert model.recommend([new])[0].shape == (1, 10)
    assert new == np.asarray(second, dtype=object)[0, 0]


class Word(str):
    """A string that counts how often one is compared."""

    compared = 0

    def __lt__(self, other):
        Word.compared += 1
        return str.__lt__(self, other)

    __hash__ = str.__hash__


def test_new_ids_are_merged_into_those_in_order():
    known = np.array([Word(f"{n * 7919 % 2003:04}") for n in range(2003)], dtype=object)
    order = np.argsort(known)
    Word.compared = 0
    ids = np.array([Word(text) for text in ("2b", "0005", "1b", "zz", "", "1b")], dtype=object)
    codes, grown, grown_order = extend_ids(known, order, ids, "ids")
    assert Word.compared < 300
    assert (grown[codes] == ids).all()
    assert_array_equal(grown_order, np.argsort(grown, kind="stable"))
    assert grown[2003:].tolist() == ["", "1b", "2b", "zz"]


class Refusing(Counting):
    """Raises in further training, after or before the tables have grown."""

    def __init__(self, error=ValueError):
        self.error = error

    def partial_fit(self, X, y=None, new=False):
        self.weight = 1
        if self.error is DivergenceError or new:
            super().partial_fit(X, new=new)
        if not new:
            raise self.error("no")
        return self


@pytest.mark.parametrize("error, grows", [(ValueError, False), (DivergenceError, True)])
def test_refused_further_training(error, grows):
    model = InteractionRecommender(Refusing(error)).fit(ROWS)
    with pytest.raises(error, match="no"):
        model.partial_fit([("zoe", "fig", 1)])
    assert ("zoe" in model.user_ids_) == grows
    assert model.recommend(n_recommendations=9)[0].shape == (4 + grows, 9)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit([("zed", None, 1)])
    assert "zed" not in model.user_ids_


def test_refused_fit_leaves_the_model_as_it_was(model):
    before = {name: id(value) for name, value in model.__dict__.items()}
    with pytest.raises(ValueError, match="NaN"):
        model.fit([("ann", "tea"), ("bob", None)])
    assert {name: id(value) for name, value in model.__dict__.items()} == before


class Batch(BaseEstimator):
    """A recommender that cannot be trained further."""

    def fit(self, X, y=None):
        return self

    def recommend(self, X=None, **options):
        return None


def test_partial_fit_only_where_the_recommender_has_it():
    assert hasattr(InteractionRecommender(Counting()), "partial_fit")
    assert hasattr(InteractionRecommender(), "partial_fit")
    assert not hasattr(InteractionRecommender(Batch()), "partial_fit")
