"""What ``partial_fit`` of recommenders takes from all interactions, and where new rows start."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import ALSRecommender, FastVAERecommender, FMRegressor, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.initializers import PRISM, Normal, XavierUniform
from freqfm.metrics import ndcg_at_k

X = make_interactions(300, 80, 6000, random_state=0)


def split(share):
    """Return a part of X and the rest."""
    entries, new = X.tocoo(), np.random.default_rng(0).random(X.nnz) < share
    parts = [
        sparse.csr_array((entries.data[of], (entries.row[of], entries.col[of])), shape=X.shape)
        for of in (~new, new)
    ]
    return parts


@pytest.mark.parametrize("loss", ["bsl", "softmax", "slatk"])
def test_few_new_interactions_leave_the_temperature(loss):
    known, new = split(0.02)
    model = MFRecommender(8, loss=loss, max_iter=3, random_state=0).fit(known)
    temperature, constant = model.temperature_, model._fold_in.constant
    model.partial_fit(new)
    assert_allclose(model.temperature_, temperature, rtol=0.02)
    assert_allclose(model._fold_in.constant, constant, rtol=0.02)


def test_few_new_interactions_leave_the_temperature_of_autoencoders():
    known, new = split(0.02)
    model = FastVAERecommender(4, max_iter=2, early_stopping=False, random_state=0).fit(known)
    temperature = model.temperature_
    assert_allclose(model.partial_fit(new).temperature_, temperature, rtol=0.02)


def trainer_of_partial_fit(model, new):
    """Train on new interactions; return the task that did it."""
    trainers, make = [], model._make_trainer
    model._make_trainer = lambda *args: trainers.append(make(*args)) or trainers[0]
    model.partial_fit(new)
    return trainers[0]


def test_an_autoencoder_trains_on_whole_histories():
    known, new = split(0.01)
    whole = sparse.csr_array(known + new)
    model = FastVAERecommender(4, max_iter=2, early_stopping=False, random_state=0).fit(known)
    trainer = trainer_of_partial_fit(model, new)
    touched = np.diff(new.indptr) > 0
    assert 0 < touched.sum() < 100
    assert_array_equal(trainer.X.toarray(), whole[touched].toarray())
    assert_array_equal(model._history.counts, np.diff(whole.indptr))


@pytest.mark.parametrize("n_new", [1, 60])
@pytest.mark.parametrize("side", ["user", "item"])
def test_new_rows_are_as_long_as_in_a_fit(side, n_new):
    model = MFRecommender(16, learning_rate=1e-12, max_iter=1, random_state=0).fit(X)
    shape = (300 + n_new * (side == "user"), 80 + n_new)
    later = sparse.lil_array(shape, dtype=np.float32)
    later[-1, 80:] = 1
    if side == "user":
        later[300:, 80] = 1
    table = f"{side}_factors_"
    n_known = len(getattr(model, table))
    model.partial_fit(later.tocsr())
    lengths = np.linalg.norm(getattr(model, table), axis=1)
    bound = np.sqrt(6 / (len(lengths) + 16)) * np.sqrt(16 / 3)
    assert_allclose(lengths[n_known:].mean(), bound, rtol=0.3 if n_new == 1 else 0.1)


def test_length_of_new_rows_by_initializer():
    shape, counts = (1, 200), np.ones(1)
    alone, among = (
        XavierUniform().table(shape, np.random.default_rng(0), counts, n_known)
        for n_known in (0, 799)
    )
    assert_allclose(among, alone * np.sqrt(201 / 1000), rtol=1e-6)
    for same in (Normal(), PRISM()):
        tables = [same.table(shape, np.random.default_rng(0), counts, n) for n in (0, 799)]
        assert_array_equal(*tables)


def test_new_tokens_of_factorization_machines_are_as_long_as_in_a_fit():
    rows = np.random.default_rng(0).random((50, 100)) < 0.1
    model = FMRegressor(8, init="xavier", max_iter=1, learning_rate=1e-12, random_state=0)
    model.partial_fit(rows, rows[:, 0] * 1.0)
    model.partial_fit(sparse.csr_array(rows), rows[:, 0] * 1.0, n_features=101)
    lengths = np.linalg.norm(model.factors_.reshape(101, 8), axis=1)
    assert lengths[-1] < 1.5 * lengths[:-1].max()


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_new_columns_come_after_the_known_ones(cls):
    names = [f"item {i:02d}" for i in range(80)]
    model = cls(4, max_iter=1, random_state=0).fit(pd.DataFrame(X.toarray(), columns=names))
    items = model.item_factors_.copy()
    wider = pd.DataFrame(np.ones((300, 81)), columns=["another item", *names])
    with pytest.raises(ValueError, match="column 0 of X is 'another item', but .* 'item 00'"):
        model.partial_fit(wider)
    assert_array_equal(model.item_factors_, items)
    assert_array_equal(model.feature_names_in_, names)
    model.partial_fit(wider[[*names, "another item"]])
    assert model.feature_names_in_[-1] == "another item"


def test_items_without_interactions_are_not_recommended():
    wide = X.copy()
    wide.resize(300, 380)
    model = MFRecommender(8, loss="softmax", negative_sampler="in_batch", random_state=0).fit(wide)
    for users in (model.recommend(wide)[0], model.recommend(users=np.arange(300))[0]):
        assert users.max() < 80
    some = model.recommend(users=[0, 1], candidates=[0, 1, 2, 200], exclude_seen=False, exclude=[1])
    assert_array_equal(np.sort(some[0][:, :2]), [[0, 2], [0, 2]])
    assert (some[0][:, 2:] == -1).all()


@pytest.mark.parametrize("loss", ["bpr", "ccl"])
def test_known_items_are_no_negatives_later(loss):
    known, new = split(0.3)
    model = MFRecommender(8, loss=loss, max_iter=1, random_state=0).fit(known)
    begins, ends, indices = trainer_of_partial_fit(model, new)._problem({}).known
    whole = sparse.csr_array(known + new)
    assert_array_equal(begins, whole.indptr[:-1])
    assert_array_equal(ends, whole.indptr[1:])
    assert_array_equal(indices, whole.indices)
    # The types of a fit: others would compile the kernel again.
    assert (begins.dtype, ends.dtype, indices.dtype) == (np.int64, np.int64, np.int32)


@pytest.mark.parametrize("loss", ["bsl", "softmax", "bpr"])
def test_folding_in_converges_with_dot_products(loss):
    # Vectors of items are much longer than one.
    model = MFRecommender(16, loss=loss, similarity="dot", max_iter=40, random_state=0).fit(X)
    users = np.arange(300)
    trained, _ = model.recommend(users=users, exclude_seen=False)
    folded, _ = model.recommend(X, exclude_seen=False)
    assert ndcg_at_k(X, folded) > 0.9 * ndcg_at_k(X, trained)
