"""MFRecommender through its public interface."""

import io
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers import check_matrix_recommender, each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer

from freqfm import (
    ALSRecommender,
    DivergenceError,
    EASERecommender,
    FastVAERecommender,
    MFRecommender,
)
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_interactions
from freqfm.initializers import PRISM
from freqfm.losses import BPR, MAWU, RANKING_LOSSES, DirectAU
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions
from freqfm.optimizers import SGD, Adam, RowwiseAdagrad, WeightDecay
from freqfm.samplers import Uniform
from freqfm.temperatures import AdapTau

LOSSES = list(RANKING_LOSSES)


@pytest.mark.parametrize(
    "estimator",
    [
        MFRecommender(n_components=4, max_iter=3),
        *(
            pytest.param(
                MFRecommender(n_components=4, max_iter=3, loss=loss),
                marks=pytest.mark.slow,
            )
            for loss in ("bpr", "mawu")
        ),
    ],
    ids=repr,
)
def test_sklearn_checks(estimator):
    check_matrix_recommender(estimator)


@pytest.fixture(scope="module")
def checkerboard():
    """Users and items of two colours; users have items of their colour, every fifth held out."""
    rng = np.random.default_rng(0)
    users, items = np.arange(120) % 2, np.arange(60) % 2
    meets = (users[:, None] == items) & (rng.random((120, 60)) < 0.6)
    hidden = meets & (rng.random(meets.shape) < 0.2)
    return (
        sparse.csr_array((meets & ~hidden).astype(np.float32)),
        sparse.csr_array(hidden.astype(np.float32)),
    )


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def model_of(**params):
    return MFRecommender(**{"n_components": 8, "max_iter": 60, "random_state": 0, **params})


@pytest.mark.parametrize(
    "loss", ["softmax", "bsl", "bpr", DirectAU(0.2), MAWU(0.2, 0.2), "psl", "slatk", "ccl", "warp"]
)
def test_every_loss_learns_the_checkerboard(checkerboard, loss):
    train, hidden = checkerboard
    # The rate is Adam's; BPR and WARP have another optimizer.
    rate = None if loss in ("bpr", "warp") else 0.01
    model = model_of(loss=loss, learning_rate=rate).fit(train)
    users = np.arange(train.shape[0])
    items, scores = model.recommend(users=users, n_recommendations=5)
    own_colour = items % 2 == users[:, None] % 2
    assert own_colour.mean() > 0.97
    assert (np.diff(scores, axis=1) <= 0).all()
    # Rows that are folded in get items of their colour too.
    folded, _ = model.recommend(train, n_recommendations=5)
    assert (folded % 2 == users[:, None] % 2).mean() > 0.97
    popular = np.argsort(-model.item_counts_)[:5]
    assert ndcg_at_k(hidden, items) > 1.3 * ndcg_at_k(hidden, np.tile(popular, (120, 1)))


def test_seen_items_candidates_and_exclusions(checkerboard):
    train, _ = checkerboard
    model = model_of(max_iter=3).fit(train)
    users = np.array([3, 7, 3])
    seen = train[users].toarray() > 0
    items, scores = model.recommend(users=users, n_recommendations=60)
    assert items.shape == scores.shape == (3, 60)
    for row, known, score in zip(items, seen, scores, strict=True):
        found = row[row >= 0]
        assert not known[found].any()
        assert len(found) == 60 - known.sum()
        assert (score[row < 0] == -np.inf).all()
    everything, _ = model.recommend(users=users, n_recommendations=60, exclude_seen=False)
    assert (np.sort(everything, axis=1) == np.arange(60)).all()
    few, _ = model.recommend(
        users=users, n_recommendations=4, candidates=[5, 8], exclude_seen=False
    )
    assert (np.sort(few[:, :2], axis=1) == [5, 8]).all()
    assert (few[:, 2:] == -1).all()
    without, _ = model.recommend(users=users, n_recommendations=60, exclude=[0, 1])
    assert not np.isin(without, [0, 1]).any()
    per_user = sparse.csr_array(([1.0, 1.0], ([0, 2], [9, 11])), shape=(3, 60))
    own, _ = model.recommend(users=users, n_recommendations=60, exclude=per_user)
    assert 9 not in own[0] and 11 not in own[2]
    one, score = model.recommend(users=3, n_recommendations=4)
    assert one.shape == score.shape == (4,)
    assert_array_equal(one, items[0, :4])


@each("name", ["candidates", "exclude"])
@each("estimator", [model_of(max_iter=2), EASERecommender()])
def test_items_are_chosen_by_lists_of_any_type(checkerboard, estimator, name):
    model = clone(estimator).fit(checkerboard[0])
    calls = [
        lambda of: model.recommend(users=[3, 7], n_recommendations=60, **{name: of}),
        lambda of: model.similar_items([3, 7], 60, **{name: of}),
    ]
    for call in calls:
        expected, nothing = call(np.array([5, 8, 9])), call([])
        for same in (
            {5, 8, 9},
            frozenset([8, 9, 5]),
            {5: 0, 8: 0, 9: 0}.keys(),
            np.array([9, 5, 8], dtype=object),
            np.array([5, 8, 9, 8], dtype=np.uint8),
            pd.Series([5, 8, 9], dtype=object),
            pa.array([5, 8, 9]),
            iter([5, 8, 9]),
            [[5, 8, 9], [9, 8, 5]],
            [{5, 8, 9}, (8, 5, 9, 5)],
            sparse.csr_array(np.isin(np.arange(60), [5, 8, 9]) * np.ones((2, 1))),
        ):
            for one, other in zip(call(same), expected, strict=True):
                assert_array_equal(one, other)
        assert_array_equal(call(set())[0], nothing[0])
        for user, one in enumerate(call([[5, 8, 9], []])[0]):
            assert_array_equal(one, (nothing if user else expected)[0][user])
        for wrong in ({5, "a"}, [5, None], {60}, [[5]], [[5], [60]], [[5], 8], np.ones(60, bool)):
            with pytest.raises((TypeError, ValueError), match=name):
                call(wrong)


def test_cold_users_get_popular_items(checkerboard):
    train, _ = checkerboard
    train = train.toarray()
    train[5] = 0
    train[:, 9] = 0
    model = model_of(max_iter=2).fit(sparse.csr_array(train))
    popular = np.argsort(-train.sum(axis=0), kind="stable")[:6]
    assert_array_equal(model.recommend(users=5, n_recommendations=6)[0], popular)
    items, scores = model.recommend(np.zeros((2, 60)), n_recommendations=6)
    assert_array_equal(items, np.tile(popular, (2, 1)))
    assert_allclose(scores[0], train.sum(axis=0)[popular] / 120, rtol=1e-6)
    assert not model.transform(np.zeros((1, 60))).any()
    # The vector of a user without items stays; that of an item is pushed away as a negative.
    start = model_of(max_iter=1, learning_rate=1e-12).fit(sparse.csr_array(train))
    assert_array_equal(model.user_factors_[5], start.user_factors_[5])
    assert (model.item_factors_[9] != start.item_factors_[9]).any()


def test_similar_items_and_users(checkerboard):
    train, _ = checkerboard
    model = model_of(learning_rate=0.01).fit(train)
    items, cosines = model.similar_items([4, 5], n_recommendations=6)
    assert items.shape == cosines.shape == (2, 6)
    assert (items % 2 == [[0], [1]]).all()
    assert 4 not in items[0]
    vectors = unit(model.item_factors_)
    assert_allclose(cosines[0], vectors[items[0]] @ vectors[4], atol=1e-6)
    users, cosines = model.similar_users(3, n_recommendations=200)
    assert users.shape == (200,)
    assert (users[119:] == -1).all() and (cosines[119:] == -np.inf).all()
    assert sorted(users[:119]) == [u for u in range(120) if u != 3]


@pytest.mark.parametrize("loss", LOSSES)
def test_pairs_and_explanations_agree_with_recommend(checkerboard, loss):
    train, _ = checkerboard
    model = model_of(loss=loss, max_iter=1 if loss == "macr" else 5).fit(train)
    items, scores = model.recommend(users=[3], n_recommendations=5)
    assert_allclose(model.predict_pairs([3] * 5, items[0]), scores[0], rtol=1e-5, atol=1e-6)
    told = model.explain(3, items[0, 0])
    assert_allclose(told.score, scores[0, 0], rtol=1e-4, atol=1e-6)
    assert_array_equal(np.sort(told.history), train[[3]].indices)
    # An item contributes what its similarity to the recommended item is, times what it weighs.
    cls = RANKING_LOSSES[loss]
    vectors = model.item_factors_[:, : model.n_components - cls.n_parts]
    if cls.similarity == "cosine":
        vectors = unit(vectors)
    shares = told.contributions / (vectors[told.history] @ vectors[items[0, 0]])
    assert shares.min() > 0
    # If users are folded in by pairs, items with higher scores weigh less.
    assert_allclose(shares, shares.mean(), rtol=0.3 if cls.fold_in_pairwise else 1e-4)
    assert (np.diff(told.contributions) <= 0).all()
    folded = model.explain(0, items[0, 0], X=train[[3]])
    assert_array_equal(np.sort(folded.history), np.sort(told.history))


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_pairs_of_users_without_history_are_scored_as_recommend_ranks(checkerboard, cls):
    train = checkerboard[0].tolil()
    train[[3, 5]] = 0
    model = cls(4, max_iter=2, random_state=0).fit(train.tocsr())
    items, scores = model.recommend(users=[5, 4], n_recommendations=3)
    pairs = model.predict_pairs(np.repeat([5, 4], 3), items.ravel())
    assert_allclose(pairs.reshape(2, 3), scores, rtol=1e-5, atol=1e-6)


def test_explanation_of_a_folded_in_user_follows_the_gradient(checkerboard):
    # Where a user's loss is least, the vector points along its items less a softmax of all items.
    train, _ = checkerboard
    model = model_of(learning_rate=0.01).fit(train)
    row = train[[3]]
    target = int(model.recommend(row, n_recommendations=1)[0][0, 0])
    told = model.explain(0, target, X=row)
    items = unit(model.item_factors_.astype(float))
    (user,) = unit(model.transform(row).astype(float))
    shares = softmax(items @ user / model.temperature_)
    pull, push = items[row.indices].mean(axis=0), shares @ items
    size = np.linalg.norm(pull - push)
    assert_allclose(user, (pull - push) / size, atol=0.05)
    # Both are estimated from some of the items.
    expected = items[told.history] @ items[target] / row.nnz / size
    assert_allclose(told.contributions, expected, rtol=0.1)
    assert_allclose(told.rest, -push @ items[target] / size, rtol=0.15)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_are_folded_in_one_by_one(checkerboard, loss):
    train, _ = checkerboard
    model = model_of(loss=loss, max_iter=3).fit(train)
    whole = model.transform(train)
    assert whole.shape == (120, 8) and whole.dtype == np.float32
    assert_array_equal(whole[[5, 2]], model.transform(train[[5, 2]]))
    assert_array_equal(model.predict(train)[[5, 2]], model.predict(train[[5, 2]]))


def test_partial_fit_grows(checkerboard):
    train, _ = checkerboard
    known, later = train[:100, :50], train
    model = model_of(max_iter=3).fit(known)
    before = model.user_factors_.copy()
    model.partial_fit(later)
    assert model.user_factors_.shape == (120, 8) and model.item_factors_.shape == (60, 8)
    assert model.n_features_in_ == 60 and model.n_iter_ == 4
    assert (model.user_factors_[:100] != before).any()
    # What was seen in fit and what came later are both known.
    items, _ = model.recommend(users=[0, 110], n_recommendations=60)
    seen = train[[0, 110]].toarray() > 0
    assert not any(s[i[i >= 0]].any() for i, s in zip(items, seen, strict=True))
    # Fewer rows are the first users.
    model.partial_fit(train[:3])
    assert len(model.user_factors_) == 120
    with pytest.raises(ValueError, match="50 features.*60"):
        model.partial_fit(known)


@pytest.mark.parametrize("loss", LOSSES)
def test_new_users_start_where_they_are_folded_in(checkerboard, loss):
    train, _ = checkerboard
    model = model_of(loss=loss, max_iter=5).fit(train[:80])
    n = model.n_components - RANKING_LOSSES[loss].n_parts
    directions = model.transform(train[80:])[:, :n]
    rest = sparse.vstack([sparse.csr_array((80, 60), dtype=np.float32), train[80:]]).tocsr()
    lengths = np.linalg.norm(model.user_factors_[:, :n], axis=1)
    # An epoch that changes nothing shows where they start.
    model.set_params(learning_rate=1e-12).partial_fit(rest)
    started = model.user_factors_[80:, :n]
    cosines = np.sum(started * directions, axis=1)
    cosines /= np.linalg.norm(started, axis=1) * np.linalg.norm(directions, axis=1)
    assert_allclose(cosines, 1, atol=1e-5)
    typical = np.sqrt(np.mean(lengths**2))
    assert_allclose(np.linalg.norm(started, axis=1), typical, rtol=1e-5)


def test_new_users_of_new_items_start_anywhere(checkerboard):
    train, _ = checkerboard
    model = model_of(max_iter=2).fit(train[:80, :50])
    rest = np.zeros((83, 60))
    rest[80, 55] = rest[81, 3] = 1
    folded = model.transform(rest[[81], :50])
    model.set_params(learning_rate=1e-12).partial_fit(rest)
    nothing_known, known, empty = model.user_factors_[80:]
    assert_allclose(unit(known), unit(folded[0]), atol=1e-5)
    for vector in (nothing_known, empty):
        assert np.linalg.norm(vector) > 0
        assert abs(unit(vector) @ unit(known)) < 0.99


@pytest.mark.parametrize("loss", ["softmax", "bsl", "bpr"])
def test_new_users_after_one_call(loss):
    X = make_interactions(400, 150, 12000, n_clusters=6, noise=0.2, random_state=0)
    history, hidden = holdout_interactions(X[300:], 0.3, random_state=0)
    model = MFRecommender(8, loss=loss, max_iter=20, random_state=0).fit(X[:300])
    folded = ndcg_at_k(hidden, model.recommend(history)[0])
    known = sparse.csr_array((300, 150), dtype=np.float32)
    model.partial_fit(sparse.vstack([known, history]).tocsr())
    learned = ndcg_at_k(hidden, model.recommend(users=np.arange(300, 400))[0])
    assert learned > 0.95 * folded


@pytest.mark.parametrize("cls", [MFRecommender, FastVAERecommender])
def test_partial_fit_without_new_items_warns_of_nothing(checkerboard, cls):
    model = cls(4, optimizer="fa_sgd", learning_rate=0.01, early_stopping=False, max_iter=1)
    model.fit(checkerboard[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(checkerboard[0])
    assert np.isfinite(model.item_factors_).all()


def test_partial_fit_from_nothing_and_warm_start(checkerboard):
    train, _ = checkerboard
    steps = model_of(max_iter=3)
    for _ in range(3):
        steps.partial_fit(train)
    whole = model_of(max_iter=3).fit(train)
    assert_array_equal(steps.item_factors_, whole.item_factors_)
    warm = model_of(max_iter=1, warm_start=True)
    for _ in range(3):
        warm.fit(train)
    assert_array_equal(warm.item_factors_, whole.item_factors_)
    assert_array_equal(warm.loss_curve_, whole.loss_curve_)


def test_the_similarity_of_a_model_stays(checkerboard):
    train, _ = checkerboard
    model = model_of(max_iter=1).fit(train).set_params(similarity="dot")
    with pytest.raises(ValueError, match="similarity='dot' differs from that of the model"):
        model.partial_fit(train)


def test_early_stopping_restores_the_best_epoch(checkerboard):
    train, _ = checkerboard
    model = model_of(early_stopping=True, n_iter_no_change=3, max_iter=200, learning_rate=0.02)
    model.set_params(init="xavier").fit(train)
    assert len(model.validation_scores_) == model.n_iter_ < 200
    assert model.best_iter_ == 1 + np.argmax(model.validation_scores_)


def test_verbose_and_silence(checkerboard, capsys):
    train, _ = checkerboard
    model_of(max_iter=2).fit(train)
    assert capsys.readouterr().out == ""
    model_of(max_iter=2, verbose=1).fit(train)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all("loss" in line and "left" in line for line in lines[2:])


# Vectors used at unit length stay finite until their squares no longer are.
@pytest.mark.parametrize("rate", [1e30, 1e39])
@pytest.mark.parametrize(
    "loss, divergence_hint",
    [
        ("softmax", "warmer temperature"),
        ("bpr", "warmer temperature"),
        ("bsl", "warmer temperature or a smaller constant"),
        ("directau", "smaller gamma"),
        ("mawu", "smaller gamma_users"),
    ],
)
def test_divergence_keeps_the_last_finite_model(checkerboard, loss, divergence_hint, rate):
    train, _ = checkerboard
    model = model_of(loss=loss, optimizer=SGD(rate), max_iter=5)
    with pytest.raises(
        DivergenceError, match=f"smaller learning_rate, .*, or a {divergence_hint}"
    ) as error:
        model.fit(train)
    assert "features" not in str(error.value)
    with pytest.raises(NotFittedError):
        model.predict(train)
    model.set_params(optimizer=SGD(1e-3), max_iter=1).fit(train)
    ranked = model.predict(train)
    with pytest.raises(DivergenceError):
        model.set_params(optimizer=SGD(rate), warm_start=True).fit(train)
    assert_array_equal(model.predict(train), ranked)


def test_final_temperatures_are_attributes(checkerboard):
    train, _ = checkerboard
    fixed = model_of(temperature=0.2, max_iter=1).fit(train)
    assert_allclose(fixed.temperature_, 0.2, rtol=1e-6)
    adaptive = model_of(temperature="adap_tau", max_iter=8).fit(train)
    assert adaptive.user_temperatures_.shape == (120,)
    assert np.ptp(adaptive.user_temperatures_) > 0
    for name in ("learned", "learned_user", "adap_tau0"):
        assert 0 < model_of(temperature=name, max_iter=8).fit(train).temperature_ < 10


def test_temperatures_of_users_need_epochs_after_the_warm_up(checkerboard):
    train, _ = checkerboard
    for warm_up, max_iter in ((5, 5), (0, 1), (None, 3)):
        model = model_of(temperature=AdapTau(warm_up=warm_up), max_iter=max_iter)
        with pytest.warns(UserWarning, match=f"warm_up={warm_up} epochs.* all users keep one temp"):
            model.fit(train)
        assert np.ptp(model.user_temperatures_) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = model_of(temperature=AdapTau(warm_up=1), max_iter=2, n_iter_no_change=None)
        model.fit(train)
    assert np.ptp(model.user_temperatures_) > 0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_prism_lengths(checkerboard, alpha):
    train, _ = checkerboard
    model = model_of(init=PRISM(alpha), max_iter=1, learning_rate=1e-12).fit(train)
    for table, axis in ((model.user_factors_, 1), (model.item_factors_, 0)):
        counts = (train.toarray() > 0).sum(axis=axis)
        lengths = alpha * np.log(counts + 2) + 1 - alpha
        assert_allclose(np.linalg.norm(table, axis=1), lengths, rtol=1e-5)
    only_items = model_of(init=PRISM(users=False), max_iter=1, learning_rate=1e-12).fit(train)
    assert np.linalg.norm(only_items.user_factors_, axis=1).max() < 2
    assert_array_equal(only_items.item_factors_, model_of(init="prism", max_iter=1,
                       learning_rate=1e-12).fit(train).item_factors_)  # fmt: skip


def test_search_over_rows_and_pipeline(checkerboard):
    train, _ = checkerboard
    grid = GridSearchCV(
        make_pipeline(Binarizer(), model_of(learning_rate=0.01, max_iter=20)),
        {"mfrecommender__n_components": [2, 8], "mfrecommender__optimizer__beta_1": [0.9]},
        cv=KFold(3),
    )
    grid.fit(train)
    assert 0 < grid.best_score_ <= 1


def test_components_by_name_take_parameters(checkerboard):
    model = model_of().set_params(optimizer__beta_1=0.8, negative_sampler__shared=False)
    assert isinstance(model.optimizer, Adam) and model.optimizer.beta_1 == 0.8
    assert isinstance(model.negative_sampler, Uniform) and not model.negative_sampler.shared
    # The rest is that of "auto".
    assert model.negative_sampler.exponent == 0.5
    of_pairs = model_of(loss="bpr").set_params(negative_sampler__shared=True)
    assert type(of_pairs.negative_sampler) is Uniform


@pytest.mark.parametrize("params", [{"loss": "bpr"}, {"loss": BPR()}], ids=repr)
def test_parameters_reach_the_automatic_optimizer_of_the_loss(checkerboard, params):
    train, _ = checkerboard
    expected = model_of(max_iter=2, learning_rate=0.3, **params).fit(train)
    before = model_of(max_iter=2, **params).set_params(optimizer__learning_rate=0.3)
    together = model_of(max_iter=2).set_params(optimizer__learning_rate=0.3, **params)
    for model in (before, together):
        assert type(model.optimizer) is RowwiseAdagrad
        assert_array_equal(model.fit(train).item_factors_, expected.item_factors_)


def test_parameters_of_what_the_data_decide_are_refused():
    model = FastVAERecommender()
    with pytest.raises(ValueError, match="negative_sampler='auto' .* set .* too, .*'midx_"):
        model.set_params(negative_sampler__n_codewords=4)
    model.set_params(negative_sampler="midx_uniform", negative_sampler__n_codewords=4)
    assert model.negative_sampler.n_codewords == 4
    with pytest.raises(ValueError, match="optimizer='adm' is not the name .* of 'adagrad'"):
        model.set_params(optimizer="adm", optimizer__beta_1=0.8)
    for temperature in (None, 0.3):
        model = MFRecommender(temperature=temperature)
        with pytest.raises(ValueError, match=f"temperature={temperature} is not the name .* set t"):
            model.set_params(temperature__offset=3.0)


def test_copies_are_equal(checkerboard, tmp_path):
    train, _ = checkerboard
    temperature = AdapTau(warm_up=1)
    model = model_of(max_iter=2, init=PRISM(0.5), temperature=temperature).fit(train)
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(buffer)):
        assert_array_equal(copy.predict(train), model.predict(train))
        copy.partial_fit(train)
    assert clone(model).get_params()["loss"] == model.loss
    skops = pytest.importorskip("skops.io")
    plain = model_of(max_iter=2).fit(train)
    skops.dump(plain, tmp_path / "model.skops")
    trusted = skops.get_untrusted_types(file=tmp_path / "model.skops")
    assert all(name.startswith("freqfm.") for name in trusted)
    copy = skops.load(tmp_path / "model.skops", trusted=trusted)
    assert_array_equal(copy.predict(train), plain.predict(train))


@each(
    "params, message",
    [
        ({"loss": "sofmax"}, "did you mean 'softmax'"),
        ({"loss": 3}, "loss must be one of"),
        ({"loss": "directau", "negative_sampler": "uniform"}, "draws no negatives"),
        ({"loss": "mawu", "n_negatives": 5}, "draws no negatives"),
        ({"loss": "mawu", "temperature": 0.1}, "has no temperature"),
        ({"loss": "mawu", "similarity": "dot"}, "unit vectors"),
        ({"loss": "bpr", "negative_sampler": "full"}, "for each positive"),
        ({"loss": "bpr", "temperature": "adap_tau0"}, "belongs to a softmax; .* give a number"),
        ({"negative_sampler": "full", "n_negatives": 5}, "takes all items"),
        ({"similarity": "dot", "temperature": "adap_tau"}, "cosines"),
        ({"temperature": "adaptau"}, "did you mean 'adap_tau"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"optimizer": Adam(0.1), "learning_rate": 0.1}, "has its own"),
        ({"user_dropout": 1.0}, "user_dropout"),
        ({"weight_decay": WeightDecay(0.1, scope="all")}, "'scope' parameter of WeightDecay"),
        ({"weight_decay": WeightDecay(-1.0)}, "'value' parameter of WeightDecay"),
        ({"similarity": ("cosine", "l2")}, "or a pair of these: of the loss, and of rankings"),
        ({"similarity": ["cosine"]}, "or a pair of these"),
        ({"init": "prsm"}, "did you mean 'prism'"),
    ],
)
def test_axes_that_do_not_fit_are_refused(checkerboard, params, message):
    train, _ = checkerboard
    with pytest.raises((ValueError, TypeError), match=message):
        model_of(**params).fit(train)


def test_bad_interactions_and_ids_are_refused(checkerboard):
    train, _ = checkerboard
    with pytest.raises(ValueError, match="no interaction"):
        model_of().fit(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="holds no positive value"):
        model_of().fit(-train)
    bad = train.copy()
    bad.data[0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model_of().fit(bad)
    model = model_of(max_iter=1).fit(train)
    with pytest.raises(ValueError, match=r"users holds 120, outside the fitted range \[0, 119\]"):
        model.recommend(users=[120])
    with pytest.raises(ValueError, match="neither was given"):
        model.recommend()
    with pytest.raises(ValueError, match="both were given"):
        model.recommend(train, users=[0])
    with pytest.raises(TypeError, match="InteractionRecommender"):
        model.recommend(users=["anna"])
    with pytest.raises(ValueError, match="items holds 60"):
        model.similar_items([60])
    with pytest.raises(ValueError, match="are pairs"):
        model.predict_pairs([0, 1], [0])
    for bad in (-1, 120):
        with pytest.raises(ValueError, match=f"users holds {bad}, outside the fitted range"):
            model.predict_pairs([bad], [0])
        with pytest.raises(ValueError, match=f"items holds {bad}, outside the fitted range"):
            model.predict_pairs([0], [bad])
    with pytest.raises(ValueError, match="exclude has shape"):
        model.recommend(users=[0], exclude=train)
    with pytest.raises(ValueError, match="n_recommendations=0"):
        model.recommend(users=[0], n_recommendations=0)
    with pytest.raises(ValueError, match="50 features"):
        model.recommend(train[:, :50])


def test_a_refused_call_leaves_the_model_as_it_was(checkerboard):
    train, _ = checkerboard
    model = model_of(max_iter=1).fit(train)
    before = model.predict(train)
    for call in (
        lambda: model.set_params(n_components=4).partial_fit(train),
        lambda: model.set_params(n_components=8, loss="bpr").partial_fit(train),
        lambda: model.set_params(loss="softmax").fit(np.zeros((3, 3))),
    ):
        with pytest.raises(ValueError):
            call()
        assert_array_equal(model.predict(train), before)


def test_values_weigh_positives(checkerboard):
    train, _ = checkerboard
    doubled = train.copy()
    doubled.data *= 2
    plain = model_of(max_iter=3).fit(train)
    assert_allclose(plain.item_factors_, model_of(max_iter=3).fit(doubled).item_factors_, atol=1e-5)
    uneven = train.copy()
    uneven.data[::2] = 5
    assert not np.allclose(plain.item_factors_, model_of(max_iter=3).fit(uneven).item_factors_)


def test_parameters_of_components_are_set_where_they_are_read():
    removed = {"init_scale": 1.0, "weight_decay_scope": "batch", "ranking": "dot"}
    for cls, params in (
        (MFRecommender, removed),
        (FastVAERecommender, {"n_codewords": 8, "weight_decay_scope": "batch"}),
    ):
        for name, value in params.items():
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                cls(**{name: value})
        for value in (0.3, WeightDecay(0.3), np.float32(0.3)):
            model = cls(weight_decay=value).set_params(weight_decay__scope="batch")
            assert model.weight_decay.value == pytest.approx(0.3)
            assert model.weight_decay.scope == "batch"
        model = clone(cls(init="normal").set_params(init__scale=0.5))
        assert model.init.scale == model.get_params()["init__scale"] == 0.5
    whole = MFRecommender().set_params(weight_decay__scope="full").weight_decay
    assert (whole.value, whole.scope) == (None, "full")


def test_similarities_of_the_loss_and_of_rankings(checkerboard):
    train, _ = checkerboard
    plain = model_of(loss="softmax", similarity="cosine").fit(train)
    for pair in (("cosine", "dot"), ["cosine", "dot"], ("auto", "dot")):
        model = clone(model_of(loss="softmax", similarity=pair)).fit(train)
        assert_array_equal(model.user_factors_, plain.user_factors_)
        scores = (model.user_factors_ @ model.item_factors_.T)[3]
        found, values = model.recommend(users=3, n_recommendations=5, exclude_seen=False)
        assert_allclose(values, scores[found], rtol=1e-5)
    same = model_of(loss="softmax", similarity=("cosine", "auto")).fit(train)
    assert_array_equal(same.recommend(users=[0])[1], plain.recommend(users=[0])[1])


def test_decay_of_batches_is_stored_with_a_checkpoint(tmp_path, checkerboard):
    train, _ = checkerboard
    params = {"weight_decay": WeightDecay(0.05, scope="batch"), "similarity": ("dot", "cosine")}
    model = model_of(loss="bpr", **params).set_callbacks(Checkpoint(tmp_path / "model")).fit(train)
    again = resume(tmp_path / "model")
    assert again.get_params()["weight_decay__scope"] == "batch"
    assert again.similarity == ("dot", "cosine")
    assert_array_equal(again.fit(train).item_factors_, model.item_factors_)
