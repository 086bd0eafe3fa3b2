"""Folding in users: against a reference implementation, whose gradients are finite differences."""

import io
import pickle

import joblib
import numpy as np
import pytest
import reference.mf
from custom_components import HingeOfPairs
from numpy.testing import assert_allclose, assert_array_equal

from freqfm import ALSRecommender, FastVAERecommender, MFRecommender
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.components import FoldIn
from freqfm.estimators.recommenders.fold_in import N_STEPS, UserLoss
from freqfm.estimators.recommenders.gradient import GradientRecommender
from freqfm.estimators.recommenders.interactions import InteractionHistory
from freqfm.estimators.recommenders.trained import TrainedRecommender
from freqfm.losses import BPR, BSL, CCL, MAWU, RANKING_LOSSES, DirectAU
from freqfm.temperatures import AdapTau

X = make_interactions(40, 25, 300, random_state=0)
X.data = np.random.default_rng(0).choice([0.5, 1, 3], X.nnz).astype(np.float32)

MODELS = {
    **{name: MFRecommender(4, loss=name) for name in RANKING_LOSSES},
    # With the weight of the reference.
    "ccl": MFRecommender(4, loss=CCL(negative_weight=20.0)),
    "dot": MFRecommender(4, loss="softmax", similarity="dot", init="normal"),
    "cosine bpr": MFRecommender(4, loss="bpr", similarity="cosine", temperature=0.2),
    "per user": MFRecommender(4, loss="softmax", temperature=AdapTau(warm_up=1)),
    "few others": MFRecommender(4, loss=BSL(constant=1.5)),
    "weak": MFRecommender(4, loss=DirectAU(gamma=0.3)),
    "no margins": MFRecommender(4, loss=MAWU(gamma_users=0.5, margins=False)),
}


@pytest.fixture(params=MODELS)
def model(request, monkeypatch):
    if request.param == "few others":
        monkeypatch.setattr(BSL, "n_fold_in", 10)
    return MODELS[request.param].set_params(max_iter=2, random_state=0).fit(X)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def coordinates(model, vectors):
    """Return vectors in float64, with biases of zero."""
    vectors = np.array(vectors, np.float64)
    vectors[:, vectors.shape[1] - model._n_parts :] = 0
    return vectors


def loss_of(model):
    """Return the loss of a user, by what users know of the model, and the vectors of items."""
    loss = RANKING_LOSSES[model.loss]() if isinstance(model.loss, str) else model.loss
    users, items = (coordinates(model, t) for t in (model.user_factors_, model.item_factors_))
    length = np.sqrt((users**2).sum(axis=1).mean())
    similarity = loss.similarity if model.similarity == "auto" else model.similarity
    if similarity == "cosine":
        users, items, length = unit(users), unit(items), 1.0
    others, constant = items, 1.0
    # Losses of other families than that of pairs fold users in by BPR.
    name = next((name for name, cls in RANKING_LOSSES.items() if cls is type(loss)), None)
    of_pair = reference.mf.PAIR_LOSSES.get(name, reference.mf.PAIR_LOSSES["bpr"])
    pairwise = of_pair if loss.fold_in_pairwise else None
    if loss.family == "alignment":
        others, constant = users, loss.gammas[0]
        positive, inverse = 1.0 if isinstance(loss, MAWU) else 2.0, 4.0
    else:
        positive, inverse = model._inverse_temperatures.mean(axis=0)
        if isinstance(loss, BSL):
            constant = loss.factor(*X.shape, X.nnz)
    if getattr(loss, "n_fold_in", 1024) == 10:
        others = others[model._fold_in.others]
        assert len(others) == 10
    terms = {"positive": positive * length, "inverse": inverse * length, "constant": constant}
    return others, items, {"pairwise": pairwise, **terms}


def test_folding_in_is_that_of_the_reference(model):
    others, items, terms = loss_of(model)
    rows = X[[0, 7, 31]]
    got = unit(coordinates(model, model.transform(rows)))
    inertia = 0.1 * terms["inverse"] ** 2 * terms["constant"]
    for r in range(3):
        row = slice(*rows.indptr[r : r + 2])
        shares = rows.data[row].astype(np.float64) / rows.data[row].sum()
        vectors = items[rows.indices[row]]

        def loss(user, vectors=vectors, shares=shares):
            return reference.mf.user_loss(user, vectors, shares, others, **terms)

        expected = reference.mf.fold_in(loss, vectors, shares, inertia, N_STEPS)
        assert_allclose(got[r], expected, atol=1e-4)


def test_dislikes_are_pushed_away_as_in_the_reference(model):
    others, items, terms = loss_of(model)
    rows = X[[0, 7, 31]].tolil()
    for r, j in ((0, 1), (0, 2), (2, 3)):
        rows[r, j] = -1.5 - r
    rows = rows.tocsr()
    got = unit(coordinates(model, model.transform(rows)))
    length = np.sqrt((coordinates(model, model.user_factors_) ** 2).sum(axis=1).mean())
    of_pair = terms["pairwise"] or reference.mf.PAIR_LOSSES["bpr"]
    inverse = model._inverse_temperatures[:, 0].mean()
    inverse *= 1.0 if model._fold_in.cosine else length
    inertia = 0.1 * terms["inverse"] ** 2 * terms["constant"]
    squares = np.mean((others**2).sum(axis=1))
    for r in range(3):
        row = rows[[r]]
        liked = row.data > 0
        total = row.data[liked].sum(dtype=np.float64)
        shares, vectors = row.data[liked] / total, items[row.indices[liked]]
        disliked = items[row.indices[~liked]], -row.data[~liked] / total

        def loss(user, vectors=vectors, shares=shares, disliked=disliked):
            added = reference.mf.loss_of_disliked(
                user, vectors, shares, *disliked, of_pair, inverse
            )
            return added + reference.mf.user_loss(user, vectors, shares, others, **terms)

        expected = reference.mf.fold_in(loss, vectors, shares, inertia * squares, N_STEPS)
        assert_allclose(got[r], expected, atol=1e-4)
    without = unit(coordinates(model, model.transform(rows.maximum(0))))
    changes = abs(got - without).max(axis=1)
    assert changes[0] > 1e-3 and changes[2] > 1e-3 and changes[1] == 0
    told = model.explain(0, 3, X=rows)
    assert_allclose(told.contributions.sum() + told.rest, told.score, rtol=1e-5)
    assert {1, 2} <= set(told.history.tolist())


def test_no_step_raises_the_loss_much(monkeypatch):
    model = MFRecommender(4, loss="softmax", temperature=0.2, max_iter=40, random_state=0).fit(X)
    others, items, terms = loss_of(model)
    shares = [row.data.astype(np.float64) / row.sum() for row in X]
    losses = []
    for n_steps in range(1, 21):
        monkeypatch.setattr("freqfm.estimators.recommenders.fold_in.N_STEPS", n_steps)
        of_users = zip(unit(model.transform(X)), shares, X, strict=True)
        losses.append(
            [
                reference.mf.user_loss(user, items[row.indices], weights, others, **terms)
                for user, weights, row in of_users
            ]
        )
    # Rises are estimated; without a check they reach 1.6.
    assert np.diff(losses, axis=0).max() < 0.1


@pytest.mark.parametrize("pairwise", [None, BPR(), HingeOfPairs()])
def test_gradient_parts_are_the_gradient(pairwise):
    rng = np.random.default_rng(1)
    others, vectors = unit(rng.normal(size=(9, 4))), unit(rng.normal(size=(5, 4)))
    user, shares = unit(rng.normal(size=(1, 4)))[0], rng.dirichlet(np.ones(5))
    loss = UserLoss(others, pairwise, positive=3.0, inverse=2.0, constant=1.3)

    of_pair = None if pairwise is None else reference.mf.PAIR_LOSSES["bpr"]
    if isinstance(pairwise, HingeOfPairs):

        def of_pair(positive, negative):
            return np.maximum(1 - positive + negative, 0)

    terms = {**loss._asdict(), "pairwise": of_pair}
    del terms["others"], terms["inverse_of_disliked"]

    def value(user):
        return reference.mf.user_loss(user, vectors, shares, others, **terms)

    pulls, push = loss.gradient_parts(user, vectors, shares)
    (expected,) = reference.mf.gradients(value, user)
    assert_allclose(push - pulls @ vectors, expected, rtol=1e-6)
    # What dislikes add, by the loss of pairs or that of BPR.
    disliked, of_disliked = unit(rng.normal(size=(3, 4))), np.array([0.3, 2.0, 0.7])
    of_pair = of_pair or reference.mf.PAIR_LOSSES["bpr"]
    given = vectors, shares, disliked, of_disliked
    (expected,) = reference.mf.gradients(
        lambda user: reference.mf.loss_of_disliked(user, *given, of_pair, 1.7), user
    )
    of_likes, own = loss._replace(inverse_of_disliked=1.7).pulls_of_disliked(user, *given)
    assert_allclose(-of_likes @ vectors - own @ disliked, expected, rtol=1e-6)


def test_explanations_take_the_pulls_of_the_loss(model):
    others, items, terms = loss_of(model)
    told = model.explain(0, 3, X=X[[7]])
    row = X[[7]]
    shares = row.data.astype(np.float64) / row.data.sum()
    (user,) = coordinates(model, model.transform(row))
    terms["pairwise"] = model._pairwise_loss() if terms["pairwise"] else None
    pulls, push = UserLoss(others, **terms).gradient_parts(
        user / np.linalg.norm(user), items[row.indices], shares
    )
    scale = np.linalg.norm(user) / np.linalg.norm(pulls @ items[row.indices] - push)
    (target,) = model._item_index().vectors([3])
    expected = scale * pulls * (items[row.indices] @ target)
    assert_allclose(told.contributions, np.sort(expected)[::-1], rtol=1e-4, atol=1e-6)


# The objects that models keep.


def copies_of(model, path):
    """Return copies of a model by every way that it can be stored."""
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    yield pickle.loads(pickle.dumps(model))
    yield joblib.load(buffer)
    model.set_callbacks(Checkpoint(path)).fit(X)
    yield resume(path)


@pytest.mark.parametrize("loss", ["bsl", "directau"])
def test_copies_hold_the_same_objects(loss, tmp_path):
    model = MFRecommender(4, loss=loss, max_iter=1, random_state=0).fit(X)
    for copy in copies_of(model, tmp_path / "checkpoint"):
        assert type(copy._history) is InteractionHistory and type(copy._fold_in) is FoldIn
        assert_array_equal(copy.transform(X), model.transform(X))


def test_files_hold_plain_dicts():
    skops = pytest.importorskip("skops.io")
    for model in (MFRecommender(4, max_iter=1), FastVAERecommender(4, max_iter=1)):
        file = skops.dumps(model.fit(X))
        trusted = skops.get_untrusted_types(data=file)
        assert all(name.endswith(type(model).__name__) for name in trusted)
        copy = skops.loads(file, trusted=trusted)
        assert type(copy._history) is InteractionHistory
        assert_array_equal(copy.recommend(X)[0], model.recommend(X)[0])


def test_histories_add_up():
    with_weights = FastVAERecommender(4, max_iter=1, early_stopping=False, random_state=0)
    for model in (MFRecommender(4, max_iter=1, random_state=0), with_weights):
        model.fit(X[:30]).partial_fit(X)
        history, both = model._history, X.copy()
        both[:30] += X[:30]
        assert_array_equal(history.indptr, X.indptr)
        assert_array_equal(history.indices, X.indices)
        assert_array_equal(history.counts, np.diff(X.indptr))
        weighted = model is with_weights
        assert_array_equal(history.weights, both.data if weighted else [])


def test_models_share_one_fit():
    # Three models: neither a parent with one child, nor a second copy of fit.
    assert set(TrainedRecommender.__subclasses__()) == {GradientRecommender, ALSRecommender}
    assert set(GradientRecommender.__subclasses__()) == {MFRecommender, FastVAERecommender}
    for model in (MFRecommender, FastVAERecommender, ALSRecommender):
        for name in ("fit", "_hold_out", "_begin"):
            assert getattr(model, name) is getattr(TrainedRecommender, name)
