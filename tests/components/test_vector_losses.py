"""Losses in NumPy: what they get and train, and MACR with the rankings that it makes of vectors."""

import pickle

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from test_auxiliary import X, check_gradients, make_batch

from freqfm import MFRecommender
from freqfm.auxiliary import AuxiliaryTerm
from freqfm.backbones import Context, LightGCN
from freqfm.losses import BPR, MACR, VectorLoss
from freqfm.metrics import ndcg_at_k
from freqfm.optimizers import WeightDecay

SETTINGS = {"n_components": 4, "max_iter": 2, "batch_size": 60, "random_state": 0, "n_jobs": 1}
LOSS = MACR(1.5, alpha=0.3, beta=0.2)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def with_negatives():
    """Return a batch whose positives, of different weights, have none to two negatives."""
    return make_batch()._replace(
        pair_weights=np.array([1, 2, 1, 1, 0.5, 1]),
        negative_items=np.array([4, 1, 4, 5, 0]),
        negative_pairs=np.array([0, 0, 1, 3, 5]),
    )


def macr(loss, batch):
    """Return the loss of a batch, pair by pair."""
    total, pairs = 0.0, [(p, i, 1) for p, i in enumerate(batch.pair_items)]
    pairs += [(p, i, 0) for p, i in zip(batch.negative_pairs, batch.negative_items, strict=True)]
    for p, item, label in pairs:
        *u, n = batch.user_vectors[batch.pair_users[p]]
        *i, m = batch.item_vectors[item]
        y = sigmoid(np.dot(u, i)) * sigmoid(m) * sigmoid(n)
        for weight, of in ((1, y), (loss.alpha, sigmoid(m)), (loss.beta, sigmoid(n))):
            total -= batch.pair_weights[p] * weight * np.log(of if label else 1 - of)
    return total / batch.pair_weights.sum()


def test_macr_is_the_sum_of_three_cross_entropies():
    for loss in (LOSS, MACR(alpha=0, beta=0), MACR(alpha=1, beta=0)):
        batch = with_negatives()
        assert_allclose(check_gradients(loss, batch), macr(loss, batch), rtol=1e-10)
    # Scores beyond what exponentials can take.
    far = with_negatives()
    far = far._replace(user_vectors=1e3 * far.user_vectors, item_vectors=1e3 * far.item_vectors)
    value, *gradients = LOSS.value_and_gradients(far)
    assert np.isfinite(value) and all(np.isfinite(of).all() for of in gradients)


@pytest.mark.slow
def test_macr_ranks_by_the_match_above_c_times_both_factors():
    model = MFRecommender(**SETTINGS, loss=LOSS, learning_rate=0.05).fit(X)
    (u, n), (i, m) = ((of[:, :-1], of[:, -1]) for of in (model.user_factors_, model.item_factors_))
    every = np.indices(X.shape).reshape(2, -1)
    for c in (1.5, -3):
        scores = (u @ i.T - c) * sigmoid(m) * sigmoid(n)[:, None]
        users, items = model.set_params(loss__c=c).export_vectors()
        assert_allclose(users @ items.T, scores, rtol=1e-5, atol=1e-6)
        assert_allclose(model.predict_pairs(*every), scores.ravel(), rtol=1e-5, atol=1e-6)
        found, of_found = model.recommend(users=[3], n_recommendations=4, exclude_seen=False)
        assert_array_equal(found[0], np.argsort(-scores[3])[:4])
        assert_allclose(of_found[0], np.sort(scores[3])[:-5:-1], rtol=1e-5)
        told = model.explain(3, 5)
        assert_allclose(told.score, scores[3, 5], rtol=1e-5)
    # Folded in by the dot product alone, with the number 0.
    new = model.transform(X[:3].tolil())
    assert_allclose(new[:, -1], 0.5)
    order = np.argsort(1e3 * X[:3].toarray() - new @ items.T)
    assert_array_equal(model.predict(X[:3]), order[:, :10])
    # Similar are those with similar coordinates.
    _, cosines = model.similar_items(0, 19)
    units = i / np.linalg.norm(i, axis=1, keepdims=True)
    assert_allclose(cosines, np.sort(units[1:] @ units[0])[::-1], atol=1e-6)
    units = u / np.linalg.norm(u, axis=1, keepdims=True)
    assert_allclose(model.similar_users(0, 29)[1], np.sort(units[1:] @ units[0])[::-1], atol=1e-6)


def test_early_stopping_scores_the_rankings_of_macr():
    dense = X.toarray()
    held_out = sparse.csr_array(dense[:, ::-1] * (1 - dense))
    model = MFRecommender(**SETTINGS, loss=MACR(40), early_stopping=True)
    model.fit(X, X_val=held_out)
    found, _ = model.recommend(users=np.arange(30))
    assert_allclose(model.validation_scores_.max(), ndcg_at_k(held_out, found), rtol=1e-6)
    found, _ = model.set_params(loss__c=-40).recommend(users=np.arange(30))
    assert abs(model.validation_scores_.max() - ndcg_at_k(held_out, found)) > 1e-3


class NumpyBPR(VectorLoss):
    """BPR, averaged over the negatives of a positive."""

    optimizer = "sgd"

    def value_and_gradients(self, batch):
        pairs, negatives = batch.negative_pairs, batch.negative_items
        users, positives = batch.pair_users[pairs], batch.pair_items[pairs]
        u, i, j = (
            batch.user_vectors[users],
            *(batch.item_vectors[of] for of in (positives, negatives)),
        )
        difference = ((i - j) * u).sum(axis=1)
        weights = batch.pair_weights[pairs] / batch.pair_weights.sum() / 2
        slopes = (-weights * sigmoid(-difference))[:, None]
        of_users, of_items = map(np.zeros_like, batch.both_vectors)
        np.add.at(of_users, users, slopes * (i - j))
        np.add.at(of_items, positives, slopes * u)
        np.add.at(of_items, negatives, -slopes * u)
        return weights @ np.logaddexp(0, -difference), of_users, of_items


class OneByOne(BPR):
    """BPR with positives in any order."""

    block = 1


@each(
    "options",
    [
        {"weight_decay": 0},
        {"weight_decay": 0.3},
        {"weight_decay": WeightDecay(0.3, scope="batch")},
    ],
)
def test_a_loss_in_numpy_trains_as_the_compiled_one(options):
    options |= {"learning_rate": 0.3, "optimizer": "sgd", "n_negatives": 2, **SETTINGS}
    one, other = (MFRecommender(loss=of, **options).fit(X) for of in (NumpyBPR(), OneByOne()))
    assert_allclose(one.loss_curve_, other.loss_curve_, rtol=1e-5)
    assert_allclose(one.user_factors_, other.user_factors_, atol=1e-6)
    assert_allclose(one.item_factors_, other.item_factors_, atol=1e-6)
    folded = (model.transform(X[:4]) for model in (one, other))
    assert_allclose(*folded, atol=1e-5)


@pytest.mark.slow
@each("backbone", ["linear", LightGCN(1, propagate="batch"), "mlp"])
def test_macr_trains_alike_with_any_threads_and_in_copies_and_goes_on(backbone):
    model = MFRecommender(**SETTINGS, backbone=backbone, loss="macr")
    fitted, copy = model.fit(X), pickle.loads(pickle.dumps(model))
    assert_array_equal(copy.recommend(X)[1], fitted.recommend(X)[1])
    for again in (clone(model).set_params(n_jobs=2), copy):
        assert_array_equal(again.fit(X).user_factors_, fitted.user_factors_)
    more = sparse.vstack([X, X[:1]]).tocsr()
    more.resize(31, 21)
    fitted.partial_fit(more)
    assert fitted.recommend(users=[30])[0].shape == (1, 10)
    assert fitted.set_params(warm_start=True).fit(more).n_iter_ == 5


@pytest.mark.slow
def test_c_is_searched_by_the_name_of_the_axis():
    folds = [(np.arange(20), np.arange(20, 30))]
    search = GridSearchCV(MFRecommender(**SETTINGS, loss="macr"), {"loss__c": [0, 9]}, cv=folds)
    assert search.fit(X).best_params_["loss__c"] in (0, 9)


def test_what_cannot_be_combined_with_a_loss_in_numpy_is_refused_by_name():
    def refused(loss="macr", X=X, **settings):
        with pytest.raises(ValueError) as error:
            MFRecommender(**SETTINGS | settings, loss=loss).fit(X)
        return str(error.value)

    last = "loss='macr', a function of the numbers of vectors, of which the last"
    for settings in (
        {"similarity": "cosine"},
        {"similarity": ("auto", "cosine")},
        {"user_dropout": 0.1},
        {"auxiliary": "resn"},
        {"n_components": 1},
    ):
        assert refused(**settings).startswith(f"{next(iter(settings))}=")
        assert last in refused(**settings)
    assert "similarity='cosine' cannot be used" in refused(NumpyBPR(), similarity="cosine")
    assert "has no temperature" in refused(temperature=0.1)
    assert "must be one of 'uniform', 'popularity', or" in refused(negative_sampler="dns")
    context = Context(context=np.eye(30), users=np.arange(30))
    assert "loss='macr' is a function of vectors of users" in refused(backbone=context)
    assert "loss='macr' needs the gradients of each batch" in refused(backbone="lightgcn")
    model = MFRecommender(**SETTINGS, loss="macr").fit(X)
    with pytest.raises(ValueError, match="loss='bpr' differs from MACR"):
        model.set_params(loss="bpr").recommend(X)


def test_a_batch_has_the_negatives_that_users_do_not_have():
    class Looks(NumpyBPR):
        def value_and_gradients(self, batch):
            pairs = batch.negative_pairs
            users, items = batch.users[batch.pair_users[pairs]], batch.items[batch.negative_items]
            assert not X.toarray()[users, items].any()
            seen.append((len(batch.pair_users), len(pairs)))
            return super().value_and_gradients(batch)

    seen = []
    MFRecommender(**SETTINGS, loss=Looks(), n_negatives=2).fit(X)
    positives, negatives = np.sum(seen, axis=0)
    assert positives * 2 * 0.5 < negatives < positives * 2 * 0.9


def test_negatives_are_looked_up_for_terms_that_use_them():
    class Looks(AuxiliaryTerm):
        def value_and_gradients(self, batch):
            found.add(batch.negative_items is None)
            return 0.0, None, None

    class LooksElsewhere(Looks):
        uses_negatives = False

    for term, expected in ((Looks(), {False}), (LooksElsewhere(), {True})):
        found = set()
        MFRecommender(**SETTINGS, loss="bpr", auxiliary=term).fit(X)
        assert found == expected
