"""Context: gradients, queries of users, made data, threads, new rows, checkpoints, bad input."""

import pickle

import numpy as np
import pytest
import reference.mf
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone
from test_features import AnyTables, small_features
from test_mf_kernels import N_ITEMS, N_USERS, WIDTH, GivenNegatives, known_pairs
from test_resume import Killed, Killing, learned

from freqfm import MFRecommender, backends
from freqfm._input.rows import take_rows
from freqfm.backbones import Context, Features
from freqfm.callbacks import resume
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.losses import RANKING_LOSSES, DirectAU
from freqfm.metrics import ndcg_at_k
from freqfm.temperatures import Temperature

N_CONTEXT = 5


class Started(Context):
    """Vectors of the context that are not zeros at first."""

    def start(self, n_users, n_items, draw):
        tables = super().start(n_users, n_items, draw)
        rng = np.random.default_rng(5)
        shape = tables["context_factors"].shape
        return {**tables, "context_factors": rng.normal(size=shape).astype(np.float32)}


class OfUsers(Temperature):
    """Two inverse temperatures for each user."""

    def refresh(self, epoch, inverse, state, snapshot):
        inverse[:] = inverse_of(len(inverse))


def inverse_of(n_users):
    return np.column_stack([np.linspace(2, 4, n_users), np.linspace(3, 1, n_users)])


FAMILIES = {
    "softmax": {"loss": "softmax", "temperature": OfUsers(), "negative_sampler": GivenNegatives()},
    "bpr": {"loss": "bpr", "similarity": "cosine", "negative_sampler": GivenNegatives()},
    "directau": {"loss": DirectAU(1.5)},
}


def loss_of(family, Q, V, pairs, users, known):
    """Return the loss of one batch by the vectors of queries; ``known`` are the items of users."""
    if family == "directau":
        return reference.mf.directau_loss(Q, V, pairs, gamma=1.5)
    if family == "softmax":
        lists = [GivenNegatives().draw((1, 3), N_ITEMS, None, None)[0]] * len(pairs)
        inverse = inverse_of(len(known))[users]
        return reference.mf.softmax_loss(Q, V, pairs, lists, cosine=True, inverse=inverse)
    lists = GivenNegatives().draw((len(pairs), 3), N_ITEMS, None, None)
    inverse = np.ones((len(users), 2))
    return reference.mf.pairwise_loss(
        Q, V, pairs, lists, cosine=True, inverse=inverse, known=known[users]
    )


@pytest.mark.slow
@pytest.mark.parametrize("described", [(), ("user",), ("item",), ("user", "item")])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient(data, family, described):
    X = sparse.vstack([data[0], data[0][[3, 1, 4, 1, 5, 8, 2, 6, 5]]], format="csr")
    n = X.shape[0]
    users = np.arange(n) % N_USERS
    C = small_features(n, N_CONTEXT, 1)
    known = np.zeros((N_USERS, N_ITEMS))
    np.add.at(known, users, X.toarray())
    # Tables of identities, and below them those of features.
    sizes, given, A, tables = {"user": N_USERS, "item": N_ITEMS}, {}, {}, {}
    for side, size in sizes.items():
        F = small_features(size, 3, 2)[:, : 3 * (side in described)]
        if side in described:
            given[f"{side}_features"] = F
        # A user or an item without interactions is the sum of its features.
        occurs = known.any(axis=1 if side == "user" else 0)
        own = np.float32(occurs | (side not in described))
        A[side] = np.hstack([np.diag(own), F])
        tables[side] = AnyTables().draw((A[side].shape[1], WIDTH), None)
        tables[side][:size] *= own[:, None]
    backbone = Started(context=sparse.csr_array(C), users=users, **given)
    n_negatives = {} if family == "directau" else {"n_negatives": 3}
    params = {**FAMILIES[family], "init": AnyTables(), **n_negatives}
    pairs, (_, _, model) = known_pairs((X, *data[1:]), backbone=backbone, **params)
    T = np.random.default_rng(5).normal(size=(N_CONTEXT, WIDTH)).astype(np.float32)

    def loss(U, V, T):
        queries = A["user"][users] @ U + C @ T
        return loss_of(family, queries, A["item"] @ V, pairs, users, known > 0)

    started = *tables.values(), T
    assert_allclose(model.loss_curve_[0], loss(*started), rtol=1e-5)
    own, nothing = model.backbone_tables_, T[:0]
    after = [
        np.concatenate([own[f"{side}_factors"], own.get(f"{side}_features", nothing)])
        for side in sizes
    ]
    after.append(own["context_factors"])
    expected = reference.mf.gradients(loss, *started)
    for before, moved, gradient in zip(started, after, expected, strict=True):
        assert_allclose(before - moved, gradient, atol=4e-5)
    # The model's users are in the mean context of all interactions.
    lengths = np.diff(X.indptr)
    mean = lengths @ C / lengths.sum()
    assert_allclose(model.user_factors_, A["user"] @ after[0] + mean @ after[2], atol=1e-5)
    assert_allclose(model.item_factors_, A["item"] @ after[1], atol=1e-5)


def made(n=800, n_users=60, n_contexts=3, seed=0):
    """Return queries and choices: of a user's group and the context, which has items of its own."""
    rng = np.random.default_rng(seed)
    users, moments = rng.integers(0, n_users, n), rng.integers(0, n_contexts, n)
    items = 5 * ((users % 4) * n_contexts + moments) + rng.integers(0, 5, n)
    X = sparse.csr_array((np.ones(n), (np.arange(n), items)), shape=(n, 20 * n_contexts))
    return X, users, np.eye(n_contexts)[moments]


def model_of(users, C, **params):
    backbone = Context(context=C, users=users)
    given = {"n_components": 8, "max_iter": 15, "random_state": 0, "n_jobs": 1}
    return MFRecommender(backbone=backbone, **given | params)


def share_found(model):
    """Return the share of recommended items that belong to the user's group and the context."""
    users, moments = np.repeat(np.arange(60), 3), np.tile(np.arange(3), 60)
    items, _ = model.recommend(
        users=users, context=np.eye(3)[moments], exclude_seen=False, n_recommendations=5
    )
    return np.mean(items // 5 == ((users % 4) * 3 + moments)[:, None])


WAYS = [
    *({"loss": name} for name in RANKING_LOSSES if name not in ("mawu", "warp", "macr")),
    {"loss": "warp", "max_iter": 60},
    {"negative_sampler": "midx_uniform", "loss": "softmax"},
    {"negative_sampler": "in_batch", "temperature": "learned_user", "loss": "softmax"},
    {"negative_sampler": "full", "temperature": "adap_tau", "loss": "softmax"},
    {"negative_sampler": "dns", "loss": "bpr", "optimizer": "adagrad", "learning_rate": 0.3},
    {"optimizer": "cf_sgd", "learning_rate": 20.0, "init": "xavier"},
    {"early_stopping": True},
]


@pytest.mark.slow
@each("way", [{}, *WAYS[-3:]])
def test_best_items_of_a_context_are_found(way):
    check_way(way)


@pytest.mark.slow
@each("way", WAYS)
def test_best_items_of_a_context_are_found_with_any_component(way):
    check_way(way)


def check_way(way):
    X, users, C = made()
    way = {"max_iter": 20} | way
    one, two = (model_of(users, C, n_jobs=k, **way).fit(X) for k in (1, 2))
    assert share_found(one) > 0.7
    for name, table in one.backbone_tables_.items():
        assert_array_equal(table, two.backbone_tables_[name])


def likes_of_users(model, X):
    return Interactions(X, queries=model.backbone.read(X.shape[0])).by_user.X


def test_without_context_features_it_is_the_model_of_features():
    X = made()[0][:200]
    F = small_features(60, 4)
    users = np.arange(200) % 60
    nothing = sparse.csr_array((200, 1), dtype=np.float32)
    backbone = Context(context=nothing, users=users, user_features=F)
    model = MFRecommender(8, max_iter=1, batch_size=999, random_state=0, backbone=backbone)
    X_users = likes_of_users(model, X)
    assert X_users.shape == (60, 60) and X_users.sum() == 200
    X_users.data[:] = 1
    # Rows with all items of a user are queries without a context.
    same = clone(model).set_params(backbone=Context(context=nothing[:60], user_features=F))
    same, other = same.fit(X_users), clone(model).set_params(backbone=Features(F)).fit(X_users)
    assert_allclose(same.user_factors_, other.user_factors_, atol=1e-6)
    assert_allclose(same.item_factors_, other.item_factors_, atol=1e-6)


@pytest.mark.slow
@each(
    "way",
    [
        {"loss": "softmax", "user_dropout": 0.2, "optimizer": "sgd", "learning_rate": 2.0},
        {"loss": "bpr", "weight_decay": 0.01, "optimizer": "adagrad"},
        {"loss": "ccl", "optimizer": "cf_sgd", "learning_rate": 1.0},
        {"loss": "directau", "optimizer": "adagrad", "weight_decay": 0.01},
    ],
)
def test_kernels_equal_the_reference(way, monkeypatch):
    X, users, C = made(150)
    F = small_features(60, 4)
    backbone = Context(context=C * [1, 2, 0.5], users=users, user_features=F)
    model = MFRecommender(4, backbone=backbone, max_iter=2, random_state=0, n_jobs=1, **way).fit(X)
    monkeypatch.setattr(backends, "get", lambda device="cpu": NumpyBackend())
    for name, table in clone(model).fit(X).backbone_tables_.items():
        largest = np.abs(table).max()
        assert_allclose(model.backbone_tables_[name], table, atol=1e-4 * largest)


@each("way", [{"loss": "softmax", "weight_decay": 0.01}, {"loss": "bpr", "optimizer": "adagrad"}])
def test_features_that_no_item_has_change_nothing(way):
    X, users, C = made(200)
    way = {"max_iter": 2, "init": "normal", **way}
    nothing = {"item_features": np.zeros((X.shape[1], 1))}
    plain, again, other = (
        MFRecommender(
            8, backbone=Context(context=C, users=users, **given), random_state=0, n_jobs=k, **way
        )
        for given, k in (({}, 1), ({}, 2), (nothing, 2))
    )
    plain, again, other = plain.fit(X), again.fit(X), other.fit(X)
    for name, table in plain.backbone_tables_.items():
        assert_array_equal(again.backbone_tables_[name], table)
        assert_allclose(other.backbone_tables_[name], table, rtol=1e-4, atol=1e-5)


def test_users_remain_users_in_any_context():
    X, users, C = made()
    model = model_of(users, C).fit(X)
    known = likes_of_users(model, X)
    assert_array_equal(model._history.matrix(known.shape).toarray() > 0, known.toarray() > 0)
    assert_array_equal(model.item_counts_, (known > 0).sum(axis=0))
    assert model.user_temperatures_.shape == (60,) and model.user_factors_.shape == (60, 8)
    items, _ = model.recommend(users=np.arange(60), context=C[:1], n_recommendations=60)
    seen = [set(row) & set(of.nonzero()[0]) for row, of in zip(items, known.toarray(), strict=True)]
    assert not any(seen)
    # Negatives of a loss of two scores are not what the user has in another context.
    assert model.similar_users(0)[0].shape == (10,)


@pytest.mark.slow
def test_scores_are_those_of_sums_of_vectors():
    X, users, C = made()
    for loss in ("softmax", "bpr"):
        model = model_of(users, C, loss=loss).fit(X)
        T, U = (model.backbone_tables_[f"{name}_factors"] for name in ("context", "user"))
        wanted = np.array([[0, 0.5, 2], [1, 0, 0]])
        queries, V = U[[3, 7]] + wanted @ T, model.item_factors_
        if loss == "softmax":
            queries, V = (of / np.linalg.norm(of, axis=1, keepdims=True) for of in (queries, V))
        found = model.predict_pairs([3, 3, 7], [0, 9, 9], context=wanted[[0, 0, 1]])
        assert_allclose(found, (queries @ V.T)[[0, 0, 1], [0, 9, 9]], rtol=1e-4, atol=1e-5)
        items, scores = model.recommend(users=[3, 7], context=wanted, exclude_seen=False)
        assert_allclose(scores, np.sort(queries @ V.T)[:, ::-1][:, :10], rtol=1e-4, atol=1e-5)
        one = model.recommend(users=3, context=wanted[:1], exclude_seen=False)
        assert_array_equal(one[0], items[0])
        # Without a context it is the mean one.
        mean = C.mean(axis=0, keepdims=True)
        assert_allclose(
            model.recommend(users=[3])[1], model.recommend(users=[3], context=mean)[1], rtol=1e-4
        )
        history = take_rows(likes_of_users(model, X), [3])
        hits = model.recommend(history, context=np.eye(3)[[1]], exclude_seen=False)[0] // 5
        assert np.mean(hits[0, :5] == 3 * 3 + 1) > 0.7


def test_explanations_name_the_share_of_the_context():
    X, users, C = made()
    for loss in ("softmax", "bpr"):
        model = model_of(users, C, loss=loss).fit(X)
        for options in {"context": C[:1]}, {"context": 2 * C[:1] + C[1:2]}, {}:
            found = model.explain(3, 9, **options)
            assert_allclose(found.score, model.predict_pairs([3], [9], **options)[0], rtol=1e-5)
            parts = found.contributions.sum(), found.context_contributions.sum(), found.rest
            assert_allclose(sum(parts), found.score, rtol=1e-6)
        item = 5 * (3 * 3 + 1)
        shares = [
            model.explain(3, item, context=np.eye(3)[[k]]).context_contributions for k in range(3)
        ]
        assert_array_equal(np.transpose(shares) != 0, np.eye(3, dtype=bool))
        assert np.argmax(np.diag(shares)) == 1
        folded = model.explain(
            0, item, take_rows(likes_of_users(model, X), [3]), context=np.eye(3)[[1]]
        )
        assert folded.context_contributions[1] > 0


def test_interactions_are_held_out_by_user():
    X, users, C = made()
    model = model_of(users, C, early_stopping=True, warm_start=True, max_iter=30)
    parts = model._read(X, reset=True).split(0.1, 0, dislikes=False)
    train, held_out = (part.X for part in parts)
    assert train.shape == held_out.shape == X.shape
    assert_array_equal(train.toarray() + held_out.toarray(), X.toarray())
    of_users = [part.by_user.X.toarray() > 0 for part in parts]
    assert of_users[1].sum() > 50 and not (of_users[0] & of_users[1]).any()
    model.fit(X)
    assert max(model.validation_scores_) > 0.3
    # What is given is compared in its context, without what users have in others.
    rows = np.flatnonzero(np.diff(held_out.indptr))
    model.set_params(warm_start=False, max_iter=3).fit(train, X_val=X)
    ranked, _ = model.recommend(users=users[rows], context=C[rows], n_recommendations=10)
    expected = ndcg_at_k(take_rows(held_out, rows), ranked, 10)
    assert model.validation_scores_[model.best_iter_ - 1] == pytest.approx(expected)


def test_partial_fit_adds_users_items_and_queries():
    X, users, C = made()
    model = model_of(users, C).fit(X)
    before = model._context_totals
    assert_allclose(before, [*C.sum(axis=0), 800])
    more = sparse.csr_array((np.ones(40), (np.arange(40), 60 + np.arange(40) % 2)), shape=(40, 62))
    new_users = np.arange(40) % 20 + 50
    context = np.eye(3)[np.zeros(40, int)]
    model.set_params(backbone__context=context, backbone__users=new_users).partial_fit(more)
    assert model.user_factors_.shape == (70, 8) and model.item_factors_.shape == (62, 8)
    assert_allclose(model._context_totals, np.add(before, [40, 0, 0, 40]))
    assert model._history.n_interactions == model._history.counts[:60].sum() + 10
    assert (model.recommend(users=[69], context=C[:1])[0] >= 0).all()
    known = {(50, 60 + 50 % 2), (69, 60 + 69 % 2)}
    rows = model._history.matrix((70, 62)).toarray()
    assert all(rows[pair] for pair in known)
    model.set_params(backbone__context=context[:, :2])
    with pytest.raises(ValueError, match="context has 2 columns, but the model was trained with 3"):
        model.partial_fit(more)
    # Further features of the context begin at zero.
    wide = np.hstack([context, np.eye(2)[np.arange(40) % 2][:, [0, 0, 1]]])
    model.set_params(backbone__context=wide).partial_fit(more)
    table = model.backbone_tables_["context_factors"]
    assert table.shape == (6, 8) and table.any(axis=1).all()
    assert_array_equal(table[3], table[4])
    assert_allclose(
        model._context_totals, np.add([*before[:3], 0, 0, 0, before[3]], [80, 0, 0, 20, 20, 20, 80])
    )
    assert model.recommend(users=[3], context=wide[:1])[0].shape == (1, 10)
    fresh = model_of(users, C).partial_fit(X)
    assert fresh.n_iter_ == 1 and fresh.user_factors_.shape == (60, 8)


@pytest.mark.slow
def test_killed_fits_go_on(tmp_path):
    X, users, C = made(400)
    for way in {}, {"loss": "slatk", "early_stopping": True, "temperature": "learned_user"}:
        whole = model_of(users, C, max_iter=5, **way).fit(X)
        path = tmp_path / f"{len(way)}.freqfm"
        killed = model_of(users, C, max_iter=5, **way).set_callbacks(Killing(path, 2))
        with pytest.raises(Killed):
            killed.fit(X)
        again = resume(path).fit(X)
        for name, table in whole.backbone_tables_.items():
            assert_array_equal(again.backbone_tables_[name], table)
        assert learned(again).keys() == learned(whole).keys()
    stored = pickle.loads(pickle.dumps(whole))
    assert_array_equal(
        stored.recommend(users=[1, 2], context=C[:1])[0],
        whole.recommend(users=[1, 2], context=C[:1])[0],
    )


def test_malformed_contexts_are_refused():
    X, users, C = made(200)
    few, model = C[:50], model_of(users, C, max_iter=1).fit(X)
    plain = MFRecommender(4, max_iter=1).fit(X)
    cases = [
        (lambda: MFRecommender(backbone="context").fit(X), "has no context: give Context"),
        (lambda: model_of(users, few).fit(X), "context of Context has 50 rows, but X has 200"),
        (lambda: model_of(users[:9], C).fit(X), "users of Context has 9 rows, but X has 200"),
        (lambda: model_of(users - 1, C).fit(X), "users of Context"),
        (lambda: model_of(users + 0.5, C).fit(X), "users of Context"),
        (lambda: model_of(users, C * np.nan).fit(X), "context of Context .* NaN"),
        (lambda: model_of(users, [["a"]] * 200).fit(X), "context of Context must be a matrix"),
        (lambda: model_of(users, C, loss="mawu").fit(X), "margins of users"),
        (lambda: model_of(users, C, device="cuda").fit(X), "cuda|CUDA|GPU"),
        (lambda: model.recommend(users=[0, 1], context=few), "50 rows, but there are 2 users"),
        (lambda: model.recommend(users=[0], context=few[:1, :2]), "has 2 columns"),
        (lambda: plain.recommend(users=[0], context=few[:1]), "trained with it.*backbone=Context"),
        (lambda: plain.predict_pairs([0], [0], context=few[:1]), "trained with it"),
        (lambda: plain.explain(0, 0, context=few[:1]), "trained with it"),
    ]
    for call, message in cases:
        with pytest.raises(Exception, match=message):
            call()
