"""Blends against a reference in plain NumPy, and what happens to members that fail."""

import pickle

import numpy as np
import pandas as pd
import pytest
from helpers import check_matrix_recommender, each
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    BlendRecommender,
    EASERecommender,
    FastVAERecommender,
    InteractionRecommender,
    ItemKNNRecommender,
)
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders import blend
from freqfm.estimators.recommenders.blend import HeldOutUsers, find_weights, forward_selection
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

K = 5


@pytest.fixture(scope="module")
def X():
    return make_interactions(60, 40, 900, random_state=0)


def members():
    return [
        ("als", ALSRecommender(4, max_iter=2, random_state=0, n_jobs=1)),
        ("ease", EASERecommender(n_jobs=1)),
        ("knn", ItemKNNRecommender(10, n_jobs=1)),
    ]


@pytest.fixture(scope="module")
def model(X):
    weights = [0.5, 0.2, 0.3]
    return BlendRecommender(members(), weights=weights, n_candidates=8, n_jobs=1).fit(X)


def naive_scores(model, user, n_items):
    """Return the scores of all unseen items of a user, by the formula of the docstring."""
    total, rest = np.zeros(n_items), np.full(n_items, -np.inf)
    for place, (member, weight) in enumerate(zip(model.estimators_, model.weights_, strict=True)):
        items, scores = member.recommend(users=user, n_recommendations=n_items)
        items, scores = items[items >= 0], scores[items >= 0].astype(np.float64)
        if not len(items):
            continue
        best = scores[: model.n_candidates]
        units = (scores - best.min()) / best.std()
        total[items] += weight * np.maximum(0, units)
        if place == np.argmax(model.weights_):
            rest[items] = np.minimum(units, 0) / (1 - np.minimum(units, 0))
    return np.where(total > 0, total, rest)


def test_scores_are_weighted_sums_of_standardized_scores(model, X):
    items, scores = model.recommend(users=np.arange(60), n_recommendations=40)
    for user in range(60):
        expected = naive_scores(model, user, 40)
        seen = X[[user]].indices
        expected[seen] = -np.inf
        n = np.isfinite(expected).sum()
        np.testing.assert_allclose(
            scores[user, :n], np.sort(expected)[::-1][:n], rtol=2e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            scores[user, :n], expected[items[user, :n]], rtol=2e-4, atol=1e-5
        )
        assert (items[user, n:] == -1).all() and (scores[user, n:] == -np.inf).all()


def test_one_user_has_the_bits_of_all_and_of_pairs(model, X):
    items, scores = model.recommend(users=np.arange(60), n_recommendations=12)
    for user in range(60):
        one, of_one = model.recommend(users=user, n_recommendations=12)
        np.testing.assert_array_equal(one, items[user])
        np.testing.assert_array_equal(of_one, scores[user])
    listed = items >= 0
    pairs = model.predict_pairs(np.nonzero(listed)[0], items[listed])
    np.testing.assert_array_equal(pairs, scores[listed])
    np.testing.assert_array_equal(model.predict(X), model.recommend(X)[0])


def test_restricted_requests_keep_scores(model, X):
    all_items, all_scores = model.recommend(users=3, n_recommendations=40)
    by_item = dict(zip(all_items.tolist(), all_scores.tolist(), strict=True))
    chosen = all_items[[1, 4, 9, 15]]
    items, scores = model.recommend(users=3, candidates=chosen, n_recommendations=6)
    assert items.tolist() == [*chosen, -1, -1]
    assert scores[:4].tolist() == [by_item[item] for item in chosen]
    items, scores = model.recommend(users=[3], exclude=all_items[:3], n_recommendations=6)
    assert items[0].tolist() == all_items[3:9].tolist()
    assert scores[0].tolist() == all_scores[3:9].tolist()
    seen, of_seen = model.recommend(users=3, exclude_seen=False, n_recommendations=10)
    assert set(seen) & set(X[[3]].indices)
    np.testing.assert_array_equal(of_seen, model.predict_pairs(np.full(10, 3), seen))
    assert model.recommend(users=[], n_recommendations=3)[0].shape == (0, 3)


def test_forward_selection_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    relevant = sparse.csr_array((rng.random((12, 20)) < 0.2).astype(np.float32))
    dense = np.where(rng.random((3, 12, 20)) < 0.4, rng.random((3, 12, 20)), 0).astype(np.float32)
    dense[0] += 0.5 * relevant.toarray()
    held_out = HeldOutUsers([sparse.csr_array(of) for of in dense], relevant, "ndcg", K)

    def score(total, users):
        ranked = np.argsort(-total, axis=1, kind="stable")[:, :K]
        ranked[np.take_along_axis(total, ranked, axis=1) <= 0] = -1
        return ndcg_at_k(relevant[users], ranked[users], K)

    users, total, counts, history = np.arange(0, 12, 2), np.zeros((12, 20)), np.zeros(3), []
    for _ in range(10):
        found = [score(total + of, users) for of in dense]
        total = total + dense[np.argmax(found)]
        counts[np.argmax(found)] += 1
        history.append((max(found), counts.copy()))
    expected = max(history, key=lambda step: step[0])[1]
    np.testing.assert_array_equal(forward_selection(held_out, users), expected)
    weights, means, blend = find_weights(held_out, np.random.default_rng(0))
    np.testing.assert_allclose(means, [score(of, np.arange(12)) for of in dense])
    assert weights.sum() == pytest.approx(1)
    assert blend == pytest.approx(score(np.tensordot(weights, dense, 1), np.arange(12)))


class Scored:
    """Held-out users with given scores, of two members and of everything else."""

    values = np.array([np.ones((50, 1)), np.full((50, 1), 2.0)], dtype=np.float32)

    def __init__(self, *scores):
        self.of = scores

    def scores(self, totals, users=slice(None)):
        return self.of[{1: 0, 2: 1}.get(float(totals[0, 0]), 2)][users]


@each(
    "lead, stays_alone", [(0.3, True), (0.1, False), (-0.1, False)]
)  # a standard error is 1 / 7 here
def test_the_best_member_stays_alone_if_it_is_ahead_by_more_than_chance(lead, stays_alone):
    noise = np.tile([-1.0, 1.0], 25)
    single = np.full(50, 3.0)
    held_out = Scored(single, single - 0.05, single - lead + noise)
    weights, means, blend = find_weights(held_out, np.random.default_rng(0))
    assert (np.count_nonzero(weights) == 1) == stays_alone and weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(means, [3, 2.95])
    assert blend == pytest.approx(3 if stays_alone else 3 - lead)


def test_weights_are_found_and_members_fitted_again(X):
    model = BlendRecommender(members(), random_state=0, n_jobs=1).fit(X)
    assert set(model.validation_scores_) == {"als", "ease", "knn", "blend"}
    assert model.weights_.sum() == pytest.approx(1)
    for name, member in model.named_estimators_.items():
        alone = clone(dict(members())[name]).fit(X)
        np.testing.assert_array_equal(member.recommend(X)[0], alone.recommend(X)[0])
    again = pickle.loads(pickle.dumps(clone(model).set_params(n_jobs=2).fit(X)))
    np.testing.assert_array_equal(again.recommend(X)[1], model.recommend(X)[1])


@pytest.mark.slow
def test_given_validation_is_left_out_of_the_first_fit_only(X):
    history, later = holdout_interactions(X, 0.2, random_state=0)
    inside = BlendRecommender(members(), random_state=0, n_jobs=1).fit(X, X_val=later)
    beside = BlendRecommender(members(), random_state=0, n_jobs=1).fit(history, X_val=later)
    assert inside.validation_scores_ == beside.validation_scores_
    for model, known in ((inside, X), (beside, history)):
        (name, member), *_ = model.named_estimators_.items()
        alone = clone(dict(members())[name]).fit(known)
        np.testing.assert_array_equal(member.recommend(X)[1], alone.recommend(X)[1])


class Broken(ALSRecommender):
    def fit(self, X, y=None):
        raise MemoryError("too large")


def test_members_that_fail_are_left_out_with_a_warning(X, monkeypatch):
    broken = ("broken", Broken())
    with pytest.warns(UserWarning, match=r"leaves out broken \(MemoryError: too large\)"):
        model = BlendRecommender([broken, *members()], random_state=0, n_jobs=1).fit(X)
    assert "broken" not in model.validation_scores_
    large = [("ease", EASERecommender()), ("item_knn", ItemKNNRecommender())]
    with monkeypatch.context() as patched:
        patched.setattr("freqfm._input.validation.physical_memory", lambda: 30_000)
        with pytest.warns(UserWarning, match=r"leaves out (ease|item_knn) .* GB of mem"):
            model = BlendRecommender([*large, members()[0]], random_state=0, n_jobs=1).fit(X)
    assert list(model.named_estimators_) == ["als"]
    with pytest.raises(ValueError, match="no member of the blend could be fitted: broken"):
        BlendRecommender([broken]).fit(X)
    with pytest.warns(UserWarning, match=r"leaves out ease \(.* s are spent"):
        model = BlendRecommender(members(), time_limit=1e-9, n_jobs=1, random_state=0).fit(X)
    assert list(model.named_estimators_) == ["als"]


def test_nested_parameters_and_searches(X):
    model = BlendRecommender(members(), weights=None, n_jobs=1).set_params(als__n_components=3)
    assert model.get_params()["als__n_components"] == 3
    search = GridSearchCV(model, {"als__n_components": [2, 3]}, cv=2, refit=False).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    default = BlendRecommender().set_params(mf__loss="bpr", n_candidates=50)
    assert dict(default.estimators)["mf"].loss == "bpr" and default.n_candidates == 50
    assert clone(default).get_params()["mf__loss"] == "bpr"
    assert BlendRecommender().set_params(n_candidates=7).estimators is None


@each(
    "match, params",
    [
        ("weights=.* must be 3 numbers", {"weights": [1, 2]}),
        ("none of them negative", {"weights": [1, -1, 1]}),
        (r"weights=\[1, 'a', 1\] must be 3 numbers", {"weights": [1, "a", 1]}),
        ("weights are all 0", {"weights": [0, 0, 0]}),
        ("estimators is empty", {"estimators": []}),
        ("scoring='nd' is not known", {"scoring": "nd"}),
        ("scoring='coverage@5' is no mean over users", {"scoring": "coverage@5"}),
    ],
)
def test_wrong_parameters_are_refused_by_name(X, match, params):
    for wrong in (ItemKNNRecommender, object(), "knn"):
        with pytest.raises(TypeError, match=r"estimators holds \('knn'.* give \(name, recommender"):
            BlendRecommender([("knn", wrong)]).fit(X)
    with pytest.raises(ValueError, match=match):
        BlendRecommender(**{"estimators": members(), **params}).fit(X)


@each(
    "match, X_val, params",
    [
        ("X_val: X has 3 features", np.ones((60, 3)), {}),
        ("X_val has shape", np.ones((3, 40)), {}),
        ("X_val: X holds text", [["a"] * 40] * 60, {}),
        ("X_val holds all interactions of X", np.ones((60, 40)), {}),
        ("no user has held-out interactions beside others", np.zeros((60, 40)), {}),
        ("no user has held-out interactions beside others", -np.eye(60, 40), {}),
        ("given X_val, but finds no weights by it", np.eye(60, 40), {"weights": None}),
    ],
)
def test_validation_that_cannot_be_used_is_refused_by_name(X, match, X_val, params):
    with pytest.raises(ValueError, match=match):
        BlendRecommender(members(), **params).fit(X, X_val=X_val)
    if match == "X_val: X holds text":
        with pytest.raises(ValueError, match="dislikes: X holds text"):
            BlendRecommender(members()).fit(X, dislikes=X_val)


def test_explanations_add_up(model, X):
    item, score = (of[0] for of in model.recommend(users=4, n_recommendations=1))
    found = model.explain(4, int(item))
    assert found.score == score == pytest.approx(sum(found.members.values()), rel=1e-5)
    assert found.contributions.sum() + found.rest == pytest.approx(found.score)
    assert set(found.history) <= set(X[[4]].indices)
    again = model.explain(0, int(item), X[[4]])
    np.testing.assert_allclose(again.contributions, found.contributions, rtol=0.01)


def test_similar_items_are_weighted_means(model):
    similar, scores = model.similar_items(3, 6)
    expected = np.zeros(40)
    for member, weight in zip(model.estimators_, model.weights_, strict=True):
        items, cosines = member.similar_items(3, 8)
        expected[items[cosines > 0]] += weight * cosines[cosines > 0]
    np.testing.assert_allclose(scores, np.sort(expected)[::-1][:6], rtol=1e-5)
    np.testing.assert_allclose(scores, expected[similar], rtol=1e-5)


def test_members_write_checkpoints(X, tmp_path):
    path = tmp_path / "als.ckpt"
    als = ALSRecommender(4, max_iter=2, n_jobs=1).set_callbacks(Checkpoint(path))
    model = BlendRecommender([("als", als), *members()[1:]], weights=None, random_state=0).fit(X)
    expected = model.named_estimators_["als"].recommend(X)[1]
    np.testing.assert_array_equal(resume(path).fit(X).recommend(X)[1], expected)


def test_partial_fit_trains_all_members(X):
    model = BlendRecommender(members(), weights=None, n_jobs=1).fit(X[:50])
    model.partial_fit(sparse.vstack([sparse.csr_array((50, 40), dtype=np.float32), X[50:]]))
    assert model.recommend(users=np.arange(60))[0].shape == (60, 10)
    with_vae = BlendRecommender([("vae", FastVAERecommender()), *members()])
    assert hasattr(with_vae, "partial_fit") and not hasattr(with_vae, "explain")


@pytest.mark.slow
def test_tables_are_blended_by_their_latest_interactions(X, monkeypatch):
    monkeypatch.setattr(blend, "default_members", lambda time_limit=None: members())
    users, rows = X.nonzero()
    times = np.random.default_rng(0).permutation(len(users))
    table = pd.DataFrame({"user": users, "item": rows, "timestamp": times})
    model = InteractionRecommender(estimator="auto").fit(table)
    late = table[times >= np.quantile(times, 0.9)]
    X_val = sparse.csr_array((np.ones(len(late)), (late["user"], late["item"])), shape=X.shape)
    by_hand = BlendRecommender(members(), random_state=0).fit(X, X_val=X_val)
    for name, score in by_hand.validation_scores_.items():
        if name != "blend":  # whose forward selections have another seed
            assert model.estimator_.validation_scores_[name] == pytest.approx(score)
    items, _ = model.recommend([0, 1], n_recommendations=3)
    assert items.shape == (2, 3)
    without_times = InteractionRecommender("auto").fit(table[["user", "item"]])
    assert without_times.estimator_.validation_scores_ != model.estimator_.validation_scores_
    # A blend whose parameters are set, or that is given, is the same.
    for same in (
        InteractionRecommender("auto").set_params(estimator__n_candidates=200),
        InteractionRecommender(BlendRecommender()),
    ):
        found = same.set_params(estimator__random_state=0).fit(table).estimator_
        expected = clone(model).set_params(estimator__random_state=0).fit(table).estimator_
        assert found.validation_scores_ == expected.validation_scores_
    # Times that tell nothing: all users are new at the end, or all times are the same.
    at_random = clone(model).set_params(estimator__random_state=0)
    expected = at_random.fit(table[["user", "item"]]).estimator_.validation_scores_
    for same in (users, np.zeros(len(users))):
        found = at_random.fit(table.assign(timestamp=1_600_000_000 + same))
        assert found.estimator_.validation_scores_ == expected
    given = InteractionRecommender(BlendRecommender(weights=None)).fit(table).estimator_
    np.testing.assert_allclose(given.weights_, 1 / 3)


@pytest.mark.slow
def test_scikit_learns_checks():
    check_matrix_recommender(BlendRecommender([("knn", ItemKNNRecommender(10))], weights=None))
