"""Malformed interactions for recommenders: a clear error, or what the dense matrix gives."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_malformed_rows import csr_matrices, dense_reference, unchanged

from freqfm import ALSRecommender, FastVAERecommender, MFRecommender
from freqfm.datasets import make_interactions

NAMES_X = r"\bX\b|Found array with 0 (sample|feature)\(s\)"
LOSSES = st.sampled_from(["softmax", "bpr", "mawu"])


def check(X, use):
    """``use(X)`` must complain about X, or return what ``use`` of the dense matrix returns."""
    dense = dense_reference(X)
    with unchanged(X):
        if dense is None:
            with pytest.raises((ValueError, TypeError), match=NAMES_X):
                use(X)
            return
        try:
            expected = use(dense)
        except ValueError:
            with pytest.raises(ValueError, match=NAMES_X):
                use(X)
            return
        for value, other in zip(use(X), expected, strict=True):
            np.testing.assert_array_equal(value, other)
            assert not np.isnan(value).any()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@settings(deadline=None, max_examples=60)
@given(X=csr_matrices(), loss=LOSSES)
def test_fit(X, loss):
    def use(X):
        model = MFRecommender(2, max_iter=2, loss=loss, random_state=0, n_jobs=1).fit(X)
        return model.user_factors_, model.item_factors_, model.recommend(users=[0])[0]

    check(X, use)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    return MFRecommender(3, max_iter=3, random_state=0).fit(rng.random((8, 5)) < 0.5)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@settings(deadline=None, max_examples=60)
@given(X=csr_matrices(columns=5))
def test_histories(fitted, X):
    check(X, lambda X: (fitted.transform(X), *fitted.recommend(X, n_recommendations=3)))


@settings(deadline=None, max_examples=60)
@given(
    users=st.lists(st.integers(-2, 9), max_size=4),
    candidates=st.none() | st.lists(st.integers(-1, 6), max_size=4),
    n=st.integers(0, 7),
)
def test_requests(fitted, users, candidates, n):
    wrong = any(not 0 <= u < 8 for u in users) or n < 1
    wrong = wrong or any(not 0 <= i < 5 for i in candidates or [])
    if wrong:
        with pytest.raises(ValueError, match="users|candidates|n_recommendations"):
            fitted.recommend(users=users, n_recommendations=n, candidates=candidates)
        return
    items, scores = fitted.recommend(users=users, n_recommendations=n, candidates=candidates)
    assert items.shape == scores.shape == (len(users), n)
    assert ((items >= -1) & (items < 5)).all()
    assert ((items == -1) == (scores == -np.inf)).all()
    for row in items:
        found = row[row >= 0]
        assert len(set(found)) == len(found)
        assert candidates is None or set(found) <= set(candidates)


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_weights_with_a_heavy_tail_are_warned_of(cls):
    X = make_interactions(60, 30, 600, random_state=0)
    ranks = np.arange(1, X.nnz + 1)
    X.data[:] = 1000.0 / ranks**1.5
    with pytest.warns(UserWarning, match=r"6 of \d+ interactions have 72% of the weight"):
        cls(4, max_iter=1).fit(X)
    X.data[:] = np.log1p(X.data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".* reached max_iter")
        cls(4, max_iter=1).fit(X)
