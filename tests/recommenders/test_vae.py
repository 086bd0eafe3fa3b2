"""FastVAERecommender through its public interface."""

import pickle

import numpy as np
import pytest
from helpers import check_matrix_recommender, each, most_popular, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from reference.vae import unit
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    DivergenceError,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
    recommend,
)
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders import components
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions, make_ranking_scorer
from freqfm.optimizers import SGD
from freqfm.temperatures import LearnedTemperature


def make(**params):
    params = {"n_components": 6, "max_iter": 5, "early_stopping": False, **params}
    return FastVAERecommender(**{"random_state": 0, **params})


@pytest.fixture(scope="module")
def log():
    return make_interactions(300, 120, 6000, n_clusters=6, noise=0.2, random_state=0)


@pytest.fixture(scope="module")
def model(log):
    return make(max_iter=20).fit(log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"max_iter": 2},
        *slow_params([{"max_iter": 1, "negative_sampler": "midx_popularity", "n_negatives": 5}]),
    ],
    ids=str,
)
def test_sklearn_compatible(params):
    check_matrix_recommender(FastVAERecommender(4, hidden_layer_sizes=(8,), **params))


@pytest.mark.parametrize("sampler", ["auto", "midx_popularity", "midx_uniform", "popularity"])
def test_finds_held_out_items_of_clusters(log, sampler):
    train, held_out = holdout_interactions(log, 0.2, random_state=0)
    model = make(n_components=16, negative_sampler=sampler, max_iter=10).fit(train)
    items, scores = model.recommend(train)
    assert ndcg_at_k(held_out, items) > 1.3 * ndcg_at_k(held_out, most_popular(train, 10))
    assert (np.diff(scores, axis=1) <= 0).all()
    assert train[np.arange(300)[:, None], items].sum() == 0


def test_checkerboard():
    # Two tastes; of the second half of each user's items nothing is known.
    X = np.kron(np.eye(2), np.ones((30, 20)))
    train = X * (np.random.default_rng(0).random(X.shape) < 0.5)
    model = FastVAERecommender(4, random_state=0, max_iter=60).fit(train)
    items, _ = model.recommend(train, n_recommendations=5)
    assert X[np.arange(60)[:, None], items].mean() > 0.97


def test_transform_is_the_mean_of_the_posterior(log, model):
    z = model.transform(log)
    assert z.shape == (300, 6) and z.dtype == np.float32
    assert len(model.get_feature_names_out()) == 6
    assert_allclose(model.transform(log[:7]), z[:7], rtol=1e-4, atol=1e-6)
    assert not model.transform(sparse.csr_array((2, 120))).any()
    items, scores = model.recommend(users=[3, 9], exclude_seen=False)
    again, same = model.recommend(log[[3, 9]], exclude_seen=False)
    assert_array_equal(items, again)
    assert_allclose(scores, same, rtol=1e-5)
    pairs = model.predict_pairs([3, 9], items[:, 0])
    assert_allclose(pairs, scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_scores_are_cosines_or_products(log, similarity):
    model = make(similarity=similarity, temperature=0.3).fit(log)
    queries, items = model.transform(log[:4]), model.item_factors_[:, :-1]
    if similarity == "cosine":
        queries, items = unit(queries), unit(items)
    expected = queries @ items.T / 0.3 + model.item_factors_[:, -1]
    found, scores = model.recommend(log[:4], n_recommendations=120, exclude_seen=False)
    assert_allclose(scores, np.take_along_axis(expected, found, 1), rtol=1e-4, atol=1e-5)
    assert model.temperature_ == pytest.approx(0.3)


# Each temperature with the full softmax and with one of sampled items.
@pytest.mark.parametrize(
    "sampler, temperature",
    [
        *(("full", temperature) for temperature in ("density", "adap_tau0", "learned", 0.2)),
        ("uniform", "adap_tau0"),
        ("uniform", "learned"),
        ("midx_uniform", "density"),
        ("midx_uniform", 0.2),
    ],
)
def test_temperatures(log, sampler, temperature):
    params = {"temperature": temperature, "negative_sampler": sampler, "learning_rate": 0.01}
    X = log[:150]
    model = make(**params, max_iter=4).fit(X)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert 0.05 < model.temperature_ < 1
    again = make(**params, max_iter=2).fit(X).set_params(warm_start=True).fit(X)
    assert_allclose(again.item_factors_, model.item_factors_, rtol=1e-5)
    assert again.temperature_ == model.temperature_


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_learned_temperature_follows_the_gradient_of_the_loss(log, similarity):
    # By the inverse temperature, at a model that hardly moves.
    def fitted(inverse):
        temperature = LearnedTemperature(1 / inverse)
        model = make(similarity=similarity, temperature=temperature, n_samples=2, max_iter=1,
                     decoder_layer_sizes=(5,), optimizer=SGD(1e-30))  # fmt: skip
        return model.fit(log)

    down, middle, up = (fitted(w) for w in (3.9, 4, 4.1))
    _, weight, derivative = middle._training.statistics[0]
    expected = (up.loss_curve_[0] - down.loss_curve_[0]) / 0.2
    assert weight == pytest.approx(log.sum())
    assert derivative / weight == pytest.approx(expected, rel=1e-3)
    assert (fitted(4).set_params(warm_start=True).fit(log).temperature_ > 0.25) == (derivative > 0)


def test_users_seen_in_fit_keep_their_weights(log):
    graded = log.copy()
    graded.data = np.random.default_rng(0).integers(1, 6, log.nnz).astype(np.float32)
    model = make().fit(graded)
    scores = model.recommend(users=[5], exclude_seen=False)[1]
    assert_allclose(scores, model.recommend(graded[[5]], exclude_seen=False)[1], rtol=1e-5)
    more = make().partial_fit(log).partial_fit(graded)
    both = (log + graded)[[5]]
    assert_allclose(
        more.recommend(users=[5], exclude_seen=False)[1],
        more.recommend(both, exclude_seen=False)[1],
        rtol=1e-5,
    )


def test_similar_items_and_users_are_of_one_cluster():
    log, planted = make_interactions(
        300, 120, 6000, n_clusters=6, noise=0.2, return_model=True, random_state=0
    )
    model = FastVAERecommender(8, random_state=0).fit(log)
    items = np.arange(120)[:, None]
    similar, cosines = model.similar_items(items[:, 0], n_recommendations=4)
    assert similar.shape == (120, 4) and (cosines <= 1 + 1e-5).all()
    assert (similar != items).all()
    assert (planted.item_clusters[similar] == planted.item_clusters[items]).mean() > 0.95
    users = np.arange(300)[:, None]
    similar, _ = model.similar_users(users[:, 0], n_recommendations=5)
    assert (similar != users).all()
    assert (planted.user_clusters[similar] == planted.user_clusters[users]).mean() > 0.95


def test_cold_users_and_items(log):
    X = sparse.csr_array(log.copy())
    X.resize((305, 130))
    model = make().fit(X)
    items, scores = model.recommend(users=[302])
    assert_array_equal(items[0], np.argsort(-model.item_counts_, kind="stable")[:10])
    assert_allclose(scores[0], model.item_counts_[items[0]] / 305, rtol=1e-6)


@pytest.mark.parametrize("cls", [FastVAERecommender, MFRecommender, ALSRecommender])
def test_items_without_interactions_are_for_nobody(log, cls):
    X = log.toarray()
    X[5], X[:, [9, 119]] = 0, 0
    model = cls(6, max_iter=1, random_state=0).fit(X)
    users = [0, 5]
    items, scores = model.recommend(users=users, n_recommendations=120, exclude_seen=False)
    assert (items[:, -2:] == -1).all() and not np.isin(items, [9, 119]).any()
    for row, user in enumerate(users):
        found = model.predict_pairs(np.full(118, user), items[row, :-2])
        assert_allclose(found, scores[row, :-2], atol=1e-6)
        assert (model.predict_pairs([user, user], [9, 119]) == -np.inf).all()


@pytest.mark.parametrize("cls", [FastVAERecommender, MFRecommender])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_without_interactions_nothing_is_similar(log, cls, early_stopping):
    X = log.toarray()
    X[5], X[:, [9, 119]] = 0, 0
    model = cls(6, max_iter=2, early_stopping=early_stopping, random_state=0).fit(X)
    for similar, cold in ((model.similar_items, [9, 119]), (model.similar_users, [5])):
        found, cosines = similar([0, cold[0]], 1000)
        assert not np.isin(found, cold).any()
        assert (found[1] == -1).all() and (cosines[1] == -np.inf).all()
        # All users but the user itself are returned.
        assert (found[0] >= 0).sum() == X.shape[similar == model.similar_items] - len(cold) - 1
        assert similar(cold[0], 2)[0].tolist() == [-1, -1]


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 5), (3, 2)])
@pytest.mark.parametrize("sampler", ["full", "midx_uniform", "midx_popularity", "uniform", "dns"])
def test_tiny_data(shape, sampler):
    X = sparse.csr_array(np.ones(shape))
    model = make(negative_sampler=sampler).fit(X)
    items, scores = model.recommend(X, exclude_seen=False, n_recommendations=3)
    found = min(3, shape[1])
    assert items.shape == (shape[0], 3)
    assert (items[:, :found] >= 0).all() and (items[:, found:] == -1).all()
    assert all(len(set(row)) == found for row in items[:, :found])
    assert (np.diff(scores[:, :found], axis=1) <= 0).all()
    assert (np.linalg.norm(model.transform(X), axis=1) > 0).all()


def test_defaults_follow_the_numbers_of_users_and_items(log, monkeypatch):
    def resolved(**params):
        model = FastVAERecommender(**params)
        model._n_known_users = 0
        found = model._resolve_components(log, log)
        return found.max_iter, found.full

    n_users, n_items = np.count_nonzero(np.diff(log.indptr)), log.shape[1]
    assert resolved() == (24, True) and resolved(max_iter=3) == (3, True)
    monkeypatch.setattr(components, "_MANY_USERS", n_users // 16)
    monkeypatch.setattr(components, "_FULL_PAIRS", n_users * n_items - 1)
    assert resolved() == (8, False) and resolved(max_iter=3) == (3, False)
    assert resolved(negative_sampler="full") == (8, True)


def test_batches_grow_where_a_default_fit_would_have_many_steps(log, monkeypatch):
    def size(**params):
        model = FastVAERecommender(**params)
        model._n_known_users = 0
        return model._resolve_components(log, log).batch_size

    n_users = np.count_nonzero(np.diff(log.indptr))
    assert size() == 16
    monkeypatch.setattr(components, "_MOST_STEPS", n_users)
    # 24 epochs; those that are asked for add steps.
    assert size() == size(max_iter=100) == 24 and size(batch_size=7) == 7
    monkeypatch.setattr(components, "_LARGEST_BATCH", 20)
    assert size() == 20


def test_partial_fit_grows_users_and_items(log):
    model = make(max_iter=3).fit(log)
    bigger = make_interactions(320, 140, 7000, random_state=1)
    model.partial_fit(bigger)
    assert model.input_factors_.shape[0] == model.item_factors_.shape[0] == 140
    assert model.n_features_in_ == 140 and model.n_iter_ == 4
    assert model.recommend(users=[319])[0].max() < 140
    fresh = make(learning_rate=0.01).partial_fit(log)
    assert_array_equal(
        fresh.item_factors_, make(learning_rate=0.01, max_iter=1).fit(log).item_factors_
    )


def test_warm_start_is_one_fit(log):
    whole = make(max_iter=4, learning_rate=0.002).fit(log)
    parts = make(max_iter=2, learning_rate=0.002, warm_start=True).fit(log).fit(log)
    for one, other in zip(whole._tables().values(), parts._tables().values(), strict=True):
        assert_array_equal(one, other)
    with pytest.raises(ValueError, match="hidden_layer_sizes, n_components or decoder"):
        parts.set_params(n_components=3).fit(log)
    with pytest.raises(ValueError, match="optimizer='sgd' differs from Adam"):
        parts.set_params(n_components=6, optimizer="sgd").fit(log)
    with pytest.raises(ValueError, match="similarity='dot' differs"):
        parts.set_params(optimizer="adam", similarity="dot").fit(log)
    parts.set_params(similarity=whole.similarity, activation="relu")
    with pytest.raises(ValueError, match="activation='relu' differs from 'tanh'"):
        parts.fit(log)
    # Predictions are those of the model that was fitted.
    assert_array_equal(parts.recommend(log)[1], whole.recommend(log)[1])


def test_early_stopping_finds_the_best_epoch_and_then_trains_on_all(log, capsys):
    options = {
        "max_iter": 60, "n_iter_no_change": 3, "learning_rate": 0.005, "init": "normal",
    }  # fmt: skip
    model = make(early_stopping=True, verbose=1, **options).fit(log)
    assert len(model.loss_curve_) == model.n_iter_ < 60
    assert model.best_iter_ == np.argmax(model.validation_scores_) + 1
    out = capsys.readouterr().out
    assert model.best_iter_ > 5
    assert "validation ndcg" in out and f"fitting all data for {model.best_iter_} epochs" in out
    expected = make(**{**options, "max_iter": model.best_iter_}).fit(log)
    for one, other in zip(model._tables().values(), expected._tables().values(), strict=True):
        assert_array_equal(one, other)


@pytest.mark.slow
def test_withheld_diagonal_of_a_checkerboard_is_found():
    # implicit's test: even users have the even items, odd users the odd, but not their own number.
    n = 128
    X = (np.add.outer(np.arange(n), np.arange(n)) % 2 == 0) & ~np.eye(n, dtype=bool)
    for seed in range(3):
        model = FastVAERecommender(3, random_state=seed).fit(X.astype(np.float32))
        items, _ = model.recommend(users=np.arange(n), n_recommendations=1)
        assert_array_equal(items[:, 0], np.arange(n))


def test_held_out_items_are_not_recommended(log):
    for model in (make(early_stopping=True), MFRecommender(8, early_stopping=True, max_iter=3)):
        model.fit(log)
        assert len(model.validation_scores_)
        items, _ = model.recommend(users=np.arange(300))
        users, at = np.nonzero(items >= 0)
        assert not log[users, items[users, at]].any()
        assert_array_equal(model.item_counts_, np.bincount(log.indices, minlength=120))


def test_early_stopping_is_automatic_where_validation_interactions_are_given(log):
    history, held_out = holdout_interactions(log, 0.2, random_state=0)
    model = make(early_stopping="auto").fit(history)
    assert not len(model.validation_scores_) and model.n_iter_ == model.best_iter_ == 5
    assert len(model.fit(history, X_val=held_out).validation_scores_) == model.n_iter_


def test_stored_and_cloned(log, model):
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(log), model.predict(log))
    assert clone(model).get_params() == model.get_params()


def test_divergence_leaves_the_last_finite_model(log):
    model = make(optimizer=SGD(1e6), max_iter=3)
    with pytest.raises(DivergenceError, match="FastVAERecommender diverged in epoch 1"):
        model.fit(log)
    with pytest.raises(NotFittedError):
        model.predict(log)
    ranked = model.set_params(optimizer=SGD(1e-3)).fit(log).predict(log)
    with pytest.raises(DivergenceError):
        model.set_params(optimizer=SGD(1e6), warm_start=True).fit(log)
    assert_array_equal(model.predict(log), ranked)


@pytest.mark.slow
def test_in_a_search_and_on_named_ids(log):
    users, items = log.nonzero()
    pairs = [(f"u{u}", f"i{i}") for u, i in zip(users, items, strict=True)]
    named = InteractionRecommender(make()).fit(pairs)
    found, _ = named.recommend(["u0"], n_recommendations=3)
    assert found.shape == (1, 3) and str(found[0, 0]).startswith("i")
    search = GridSearchCV(
        make(), {"n_components": [2, 6]}, scoring=make_ranking_scorer("ndcg", k=10), cv=2
    ).fit(log)
    assert recommend(search, log[:2])[0].shape == (2, 10)


def test_the_published_code_trains_without_the_divergence(log):
    reference = make(kl_weight="reference").fit(log)
    assert_array_equal(reference.item_factors_, make(kl_weight=0).fit(log).item_factors_)
    assert (reference.item_factors_ != make(kl_weight=0.5).fit(log).item_factors_).any()


@each(
    "params, words",
    [
        ({"hidden_layer_sizes": ()}, r"hidden_layer_sizes=\(\) must be a list of positive"),
        ({"hidden_layer_sizes": (0,)}, r"hidden_layer_sizes=\(0,\) must be a list"),
        ({"hidden_layer_sizes": (2.5,)}, r"hidden_layer_sizes=\(2.5,\) must be a list"),
        ({"decoder_layer_sizes": (-1,)}, r"decoder_layer_sizes=\(-1,\) must be a list"),
        ({"negative_sampler": "midx"}, "negative_sampler='midx' is not known; did you mean"),
        ({"negative_sampler": "in_batch"}, "negative_sampler='in_batch' is not supported here"),
        ({"negative_sampler": "full", "n_negatives": 5}, "n_negatives=5 is not used"),
        ({"activation": "sigmoid"}, "'activation' parameter of FastVAERecommender"),
        ({"kl_weight": -1}, "'kl_weight' parameter of FastVAERecommender"),
        ({"kl_weight": "paper"}, "'kl_weight' parameter of FastVAERecommender"),
        ({"dropout": 1.0}, "'dropout' parameter of FastVAERecommender"),
        ({"n_samples": 0}, "'n_samples' parameter of FastVAERecommender"),
        ({"similarity": "cos"}, "'similarity' parameter of FastVAERecommender"),
        ({"temperature": "adap_tau"}, "temperature='adap_tau' gives every user a temperature"),
        ({"temperature": "learned_user"}, "gives every user a temperature"),
        ({"temperature": "adap_tau0", "similarity": "dot"}, "is derived for cosines"),
        ({"temperature": 0.0}, "'temperature' parameter of FixedTemperature"),
        ({"temperature": "cold"}, "temperature='cold' is not known"),
        ({"optimizer": "adma"}, "optimizer='adma' is not known; did you mean 'adam'"),
    ],
)
def test_bad_parameters(log, params, words):
    with pytest.raises(ValueError, match=words):
        make(**params).fit(log)


@pytest.mark.parametrize(
    "X, words",
    [
        (np.zeros((3, 4)), "holds no interaction"),
        (-np.ones((3, 4)), "holds no positive value"),
        (np.full((3, 4), np.nan), "NaN"),
    ],
)
def test_bad_data(X, words):
    with pytest.raises(ValueError, match=words):
        make().fit(X)


def test_a_few_new_users_leave_the_others_alone(log):
    # Their batches and rate are those of all users, of whom they are a few.
    model = make(max_iter=30, learning_rate=None).fit(log[:280])
    rest = sparse.vstack([sparse.csr_array((280, 120), dtype=np.float32), log[280:]]).tocsr()
    before = model.item_factors_.copy()
    steps = int(model._training.n_steps[0])
    model.partial_fit(rest)
    assert int(model._training.n_steps[0]) - steps == 2  # of 16 users each
    moved = np.abs(model.item_factors_ - before)
    # Adam moves a weight by about its rate: at most 8 over the steps of a fit of 280 users.
    assert moved.max() < 2 * 8 / (30 * 18)


def test_negatives_are_refused_where_all_items_are_taken(log):
    with pytest.raises(ValueError, match="n_negatives=5 is not used with negative_sampler='auto'"):
        make(n_negatives=5).fit(log)
