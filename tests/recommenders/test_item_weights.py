"""What recommenders with weights between items share: further interactions."""

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone

from freqfm import EASERecommender, GraphFilterRecommender, ItemKNNRecommender
from freqfm.datasets import make_interactions


@each("model", [EASERecommender(n_neighbors=5), GraphFilterRecommender(9), ItemKNNRecommender(5)])
def test_partial_fit_is_a_fit_of_all_interactions(model):
    whole = sparse.csr_array(make_interactions(60, 40, 700, random_state=0))
    whole.data[:] = 1 + np.arange(whole.nnz) % 3
    if isinstance(model, GraphFilterRecommender):
        model = model.set_params(random_state=0)
    expected = clone(model).fit(whole)
    # The second part has new users and new items.
    first, second = whole[:45, :30], whole.copy()
    second = sparse.lil_array(second)
    second[:45, :30] = 0
    found = clone(model).partial_fit(first).partial_fit(sparse.csr_array(second))
    for name in ("indptr", "indices", "data"):
        parts = (getattr(of.item_weights_, name) for of in (found, expected))
        assert_array_equal(*parts)
    assert_array_equal(found.recommend(users=[0, 50])[0], expected.recommend(users=[0, 50])[0])
    # Values of known pairs are added up; there may be fewer rows.
    found.partial_fit(whole[:20])
    expected = clone(model).fit(whole + sparse.vstack([whole[:20], 0 * whole[20:]]))
    assert_array_equal(found.item_weights_.data, expected.item_weights_.data)
    before = found.item_weights_
    with pytest.raises(ValueError, match="no interaction"):
        found.partial_fit(0 * whole)
    with pytest.raises(ValueError, match="NaN"):
        found.partial_fit(np.full(whole.shape, np.nan))
    assert found.item_weights_ is before


def test_columns_of_partial_fit_begin_with_those_of_the_model():
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(np.eye(3), columns=["a", "b", "c"])
    model = ItemKNNRecommender(2).fit(X)
    with pytest.raises(ValueError, match="column 0 of X is 'd'"):
        model.partial_fit(pd.DataFrame(np.eye(4), columns=["d", "a", "b", "c"]))
    assert list(model.feature_names_in_) == ["a", "b", "c"]
