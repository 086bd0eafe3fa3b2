"""X_val: early stopping of recommenders by interactions that the user has held out."""

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from freqfm import ALSRecommender, FastVAERecommender, InteractionRecommender, MFRecommender
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import WarmStartKFold, holdout_interactions, make_ranking_scorer

X, X_VAL = holdout_interactions(
    make_interactions(80, 40, 1500, random_state=0), 0.2, random_state=0
)

STOPPING = {"early_stopping": True, "n_iter_no_change": 3, "max_iter": 40, "random_state": 0}
MODELS = {
    "MF": MFRecommender(8, learning_rate=0.05, **STOPPING),
    "LightGCN": MFRecommender(8, backbone="lightgcn", **STOPPING),
    "ALS": ALSRecommender(8, regularization=1e-3, **STOPPING),
    "VAE": FastVAERecommender(8, hidden_layer_sizes=(8,), learning_rate=0.01, **STOPPING),
}


@pytest.fixture(params=["MF", "ALS", *slow_params(["LightGCN", "VAE"])])
def model(request):
    return clone(MODELS[request.param])


def ndcg(model, held_out):
    items, _ = model.recommend(users=np.arange(len(X.indptr) - 1))
    return ndcg_at_k(held_out, items)


def test_the_best_epoch_is_kept(model):
    model.fit(X, X_val=X_VAL)
    assert len(model.validation_scores_) == model.n_iter_ < 40
    assert model.best_iter_ == 1 + np.argmax(model.validation_scores_)
    np.testing.assert_allclose(ndcg(model, X_VAL), model.validation_scores_.max(), rtol=1e-6)
    # All of X is trained on, as without early stopping, and nothing else is known.
    if not isinstance(model, MFRecommender):  # whose rate falls until max_iter
        plain = clone(model).set_params(early_stopping=False, max_iter=model.best_iter_).fit(X)
        assert_array_equal(model.item_factors_, plain.item_factors_)
    assert_array_equal(model.item_counts_, np.bincount(X.indices, minlength=40))
    items, _ = model.recommend(users=np.arange(80), n_recommendations=40)
    users, places = np.nonzero(items >= 0)
    recommended = sparse.csr_array((np.ones(len(users)), (users, items[users, places])), X.shape)
    assert recommended.multiply(X).nnz == 0 and recommended.multiply(X_VAL).nnz == X_VAL.nnz


@pytest.mark.parametrize(
    "params", [{"loss": "bpr"}, {"loss": "softmax"}, {"learning_rate": 0.01}], ids=str
)
def test_factorization_trains_on_all_interactions_in_the_end(params):
    model = MFRecommender(8, **STOPPING, **params).fit(X)
    whole = clone(model).set_params(early_stopping=False, max_iter=max(model.best_iter_, 5)).fit(X)
    assert_array_equal(model.user_factors_, whole.user_factors_)
    assert_array_equal(model.item_factors_, whole.item_factors_)
    # New users get the same vectors, too.
    for found, expected in zip(model.recommend(X_VAL), whole.recommend(X_VAL), strict=True):
        assert_array_equal(found, expected)


def test_without_patience_all_epochs_are_trained(model):
    n_epochs = model.fit(X, X_val=X_VAL).best_iter_
    with pytest.warns(ConvergenceWarning, match="early_stopping=False and n_iter_no_change=None"):
        model.set_params(max_iter=n_epochs).fit(X, X_val=X_VAL)
    model.set_params(max_iter=12, n_iter_no_change=None).fit(X, X_val=X_VAL)
    assert model.n_iter_ == len(model.validation_scores_) == 12
    assert model.best_iter_ == 1 + np.argmax(model.validation_scores_)


def test_what_cannot_be_found_does_not_count(model):
    train = X.tolil()
    train[:5] = 0
    train, full = sparse.csr_array(train), sparse.csr_array(X + X_VAL)
    expected = clone(model).fit(train, X_val=X_VAL.multiply(np.arange(80)[:, None] >= 5))
    for held_out in (full, full.toarray(), full.tocoo()):
        found = clone(model).fit(train, X_val=held_out)
        assert_array_equal(found.validation_scores_, expected.validation_scores_)
        assert_array_equal(found.item_factors_, expected.item_factors_)


def test_users_and_items_by_ids(model):
    def pairs(matrix):
        return [(f"user {u:02}", f"item {i:02}") for u, i in zip(*matrix.nonzero(), strict=True)]

    expected = clone(model).fit(X, X_val=X_VAL)
    unknown = [("nobody", "item 03"), ("user 03", "nothing")]
    named = InteractionRecommender(model).fit(pairs(X), X_val=pairs(X_VAL) + unknown)
    assert_array_equal(named.estimator_.validation_scores_, expected.validation_scores_)
    assert_array_equal(named.estimator_.item_factors_, expected.item_factors_)
    with pytest.raises(ValueError, match=r"X_val holds 2 interaction\(s\), but none of a user"):
        named.fit(pairs(X), X_val=unknown)
    # The model that was there before is kept.
    assert_array_equal(named.estimator_.item_factors_, expected.item_factors_)


def test_a_search_passes_it_on():
    pairs = np.column_stack(X.nonzero())
    search = GridSearchCV(
        InteractionRecommender(MFRecommender(4, early_stopping=True, max_iter=4, random_state=0)),
        {"estimator__learning_rate": [0.01, 0.1]},
        scoring=make_ranking_scorer("ndcg"),
        cv=WarmStartKFold(2, random_state=0),
    )
    search.fit(pairs, X_val=np.column_stack(X_VAL.nonzero()))
    assert len(search.best_estimator_.estimator_.validation_scores_) == 4


@pytest.mark.parametrize(
    "held_out, message",
    [
        (X_VAL[:-1], "X_val has 79 rows, but X has 80"),
        (X_VAL[:, :-1], "Validation set X_val: X has 39 features"),
        (X, "X_val holds no interaction of a user who has others in X"),
        (sparse.csr_array(X.shape), "X_val holds no interaction"),
        (np.full(X.shape, np.nan), "Validation set X_val: .* NaN"),
    ],
)
def test_what_is_refused(model, held_out, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, X_val=held_out)
    assert not hasattr(model, "item_factors_")


def test_it_is_never_ignored(model):
    model.set_params(early_stopping=False)
    with pytest.raises(ValueError, match="X_val, but early_stopping=False would ignore it"):
        model.fit(X, X_val=X_VAL)


def test_checkpoints_know_it(model, tmp_path):
    expected = clone(model).fit(X, X_val=X_VAL)
    clone(model).set_callbacks(Checkpoint(tmp_path / "fit")).fit(X, X_val=X_VAL)
    assert_array_equal(
        resume(tmp_path / "fit").fit(X, X_val=X_VAL).item_factors_, expected.item_factors_
    )
    for other in ({}, {"X_val": X_VAL[::-1]}):
        with pytest.raises(ValueError, match="X_val is not that of the fit to be resumed"):
            resume(tmp_path / "fit").fit(X, **other)
