"""Single users are served: exact, never stale, for any number of threads; exported vectors."""

from copy import deepcopy

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
)
from freqfm._input import validation as _validation
from freqfm._input.validation import canonical_csr
from freqfm._numba.jit import JIT_DISABLED
from freqfm.backends.cpu import topk
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.topk import TILE_ITEMS
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.metrics._hits import ascending, top_k
from freqfm.model_selection import make_ranking_scorer

MODELS = {
    "cosine": MFRecommender(4, max_iter=3, random_state=0),
    "dot": MFRecommender(4, max_iter=3, loss="bpr", random_state=0),
    "lengths": MFRecommender(4, max_iter=3, init="prism", random_state=0),
    "als": ALSRecommender(4, max_iter=3, random_state=0),
    "vae": FastVAERecommender(4, hidden_layer_sizes=(5,), max_iter=3, random_state=0),
    "vae, dot": FastVAERecommender(
        4, hidden_layer_sizes=(5,), similarity="dot", max_iter=3, random_state=0
    ),
}


@pytest.fixture(scope="module")
def log():
    return make_interactions(60, 40, 700, random_state=0)


@pytest.fixture(scope="module")
def fitted(log):
    return {name: model.fit(log) for name, model in MODELS.items()}


@pytest.fixture(params=MODELS)
def model(request, fitted):
    return deepcopy(fitted[request.param])


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)


# Scores of rows whose leading columns are scaled to unit length.


@pytest.mark.parametrize("n_queries", [1, 2, 70])
@pytest.mark.parametrize("unit_columns", [0, 5, 6])
def test_items_at_unit_length(n_queries, unit_columns):
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((n_queries, 6))
    items = rng.standard_normal((2 * TILE_ITEMS + 7, 6)) * rng.uniform(0.1, 9, (1031, 1))
    items[3, :unit_columns] = 0
    normal = np.column_stack([unit(items[:, :unit_columns]), items[:, unit_columns:]])
    exclude = sparse.csr_array((rng.random((n_queries, 1031)) < 0.1).astype(float))
    for options in ({}, {"exclude": exclude}, {"candidates": rng.choice(1031, 90)}):
        found, scores = top_k(queries, items, 20, unit_columns=unit_columns, **options)
        expected, expected_scores = top_k(queries, normal, 20, **options)
        assert_allclose(scores, expected_scores, rtol=2e-5, atol=1e-6)
        assert (found == expected).mean() > 0.99


def test_items_excluded_for_all():
    rng = np.random.default_rng(0)
    queries, items = rng.standard_normal((70, 3)), rng.standard_normal((1100, 3))
    for_all = rng.choice(1100, 300)
    per_query = (rng.random((70, 1100)) < 0.1).astype(float)
    both = per_query.copy()
    both[:, for_all] = 1
    for candidates in (None, rng.choice(1100, 200)):
        result = top_k(
            queries, items, 30, exclude=per_query, exclude_for_all=for_all, candidates=candidates
        )
        expected = top_k(queries, items, 30, exclude=both, candidates=candidates)
        for one, other in zip(result, expected, strict=True):
            assert_array_equal(one, other)
    found, _ = top_k([[1.0]], [[3.0], [2.0], [1.0]], 2, exclude_for_all=[0])
    assert found.tolist() == [[1, 2]]


@pytest.mark.skipif(JIT_DISABLED, reason="plain Python has teams of one only")
@pytest.mark.parametrize("n_queries", [1, 3, 100])
@pytest.mark.parametrize("unit_columns", [0, 5])
def test_few_queries_share_the_items(monkeypatch, n_queries, unit_columns):
    teams = []
    monkeypatch.setattr(topk, "Team", lambda size: teams.append(size) or Team(size))
    monkeypatch.setattr(topk, "_WORTH_SEVERAL_THREADS", 0)
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((n_queries, 5), dtype=np.float32)
    items = rng.integers(-2, 3, (5 * TILE_ITEMS + 1, 5)).astype(np.float32)  # with ties
    exclude = sparse.csr_array((rng.random((n_queries, len(items))) < 0.2).astype(float))
    options = {
        "exclude": exclude,
        "exclude_for_all": rng.choice(len(items), 500),
        "unit_columns": unit_columns,
    }
    for k in (10, len(items)):
        results = [top_k(queries, items, k, n_threads=n, **options) for n in (1, 2, 3, 8)]
        for found, scores in results[1:]:
            assert_array_equal(found, results[0][0])
            assert_array_equal(scores.view(np.int32), results[0][1].view(np.int32))
    assert max(teams) > 2


# The arrays that models use.


def test_answers_follow_the_learned_arrays(model, log):
    # Edited in place or replaced, with candidates or not: the next answer uses the current arrays.
    def answers(model):
        return [
            *model.recommend(users=[0, 3]),
            *model.recommend(users=2),
            *model.recommend(log[:2], candidates=[1, 5, 9, 11]),
            *model.similar_items([4]),
            model.predict_pairs([1, 2], [3, 4]),
        ]

    before = answers(model)
    table = model.item_factors_
    table[[1, 2]] = table[[2, 1]]
    table[5:] *= np.linspace(-1, 2, 35, dtype=np.float32)[:, None]
    edited = answers(model)
    assert any((one != other).any() for one, other in zip(before, edited, strict=True))
    model.item_factors_ = np.zeros_like(table)
    answers(model)
    model.item_factors_ = table.copy()
    for one, other in zip(edited, answers(model), strict=True):
        assert_array_equal(one, other)


def test_nothing_is_kept_by_answering(model, log):
    before = {name: id(value) for name, value in vars(model).items()}
    model.recommend(users=[0])
    model.recommend(log[:1])
    model.similar_items(0)
    assert {name: id(value) for name, value in vars(model).items()} == before


def test_one_user_is_answered_as_in_a_batch(model, log):
    items, scores = model.recommend(users=np.arange(60), n_recommendations=5)
    for user in (0, 17, 59):
        one, score = model.recommend(users=user, n_recommendations=5)
        assert_allclose(score, scores[user], rtol=1e-5, atol=1e-6)
        assert_array_equal(one, items[user])
    folded = model.recommend(log, n_recommendations=5)[1]
    assert_allclose(model.recommend(log[[7]])[1][0, :5], folded[7], rtol=1e-5, atol=1e-6)


def test_only_candidates_are_looked_at(model, log):
    # Rows of other items may hold anything: they are not even read.
    candidates = [2, 11, 30, 31]
    expected = model.recommend(users=[4], candidates=candidates, exclude_seen=False)
    of_each = sparse.csr_array((np.ones(4), candidates, [0, 4]), shape=(1, 40))
    expected_of_each = model.recommend(users=[4], candidates=of_each, exclude_seen=False)
    others = np.setdiff1d(np.arange(40), candidates)
    model.item_factors_[others] = np.nan
    got = model.recommend(users=[4], candidates=candidates, exclude_seen=False)
    got_of_each = model.recommend(users=[4], candidates=of_each, exclude_seen=False)
    for one, other in zip((*got, *got_of_each), (*expected, *expected_of_each), strict=True):
        assert_array_equal(one, other)


@each("exclude_seen", [True, False])
@each("exclude", [None, "all", "each"])
def test_candidates_of_each_user(model, log, exclude_seen, exclude):
    rng = np.random.default_rng(0)
    allowed = rng.random((5, 40)) < 0.4
    allowed[3] = False
    X = log[:5].tolil()
    X[4] = 0  # popular items, out of this user's own
    X = sparse.csr_array(X)
    hidden = sparse.csr_array((rng.random((5, 40)) < 0.3).astype(float))
    of_all = {"exclude": [1, 7, 30]} if exclude == "all" else {}
    options = {"exclude_seen": exclude_seen, "n_recommendations": 9}
    for query in ({"X": X}, {"users": np.arange(5)}):
        items, scores = model.recommend(
            **query, candidates=sparse.csr_array(allowed.astype(int)), **options,
            **({"exclude": hidden} if exclude == "each" else of_all),
        )  # fmt: skip
        assert items.shape == scores.shape == (5, 9)
        for i in range(5):
            one = {name: rows[[i]] for name, rows in query.items()}
            expected, expected_scores = model.recommend(
                **one, candidates=np.flatnonzero(allowed[i]), **options,
                **({"exclude": hidden[[i]]} if exclude == "each" else of_all),
            )  # fmt: skip
            assert_array_equal(items[[i]], expected)
            assert_allclose(scores[[i]], expected_scores, rtol=1e-5, atol=1e-6)
        assert (items[3] == -1).all() and (scores[3] == -np.inf).all()


def test_many_candidates_of_each_query():
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((30, 7), dtype=np.float32)
    items = rng.integers(-2, 3, (90, 7)).astype(np.float32)  # with ties
    items[3] = np.nan
    allowed = rng.random((30, 90)) < 0.5
    listed = canonical_csr(sparse.csr_array(allowed.astype(float)))
    for unit_columns in (0, 5, 7):
        every, scores = top_k(queries, items, 90, unit_columns=unit_columns)
        some, of_some = top_k(queries, items, 40, candidates=listed, unit_columns=unit_columns)
        for i in range(30):
            kept = np.isin(every[i], np.flatnonzero(allowed[i]))
            n = min(40, np.count_nonzero(kept))
            assert_array_equal(np.sort(some[i, :n]), np.sort(every[i, kept][:n]))
            assert_allclose(of_some[i, :n], scores[i, kept][:n], rtol=1e-5, atol=1e-5)
            assert (some[i, n:] == -1).all()


def test_matrix_of_candidates_is_checked(model, log):
    with pytest.raises(ValueError, match="candidates has shape .* needs .2, 40.: a row for each"):
        model.recommend(log[:2], candidates=sparse.csr_array(np.eye(3, 40)))
    candidates = sparse.csr_array(np.eye(2, 40))
    candidates.indptr[1] = 10**9
    with pytest.raises(ValueError, match="candidates .* indptr"):
        model.recommend(log[:2], candidates=candidates)
    nothing = model.recommend(log[:2], candidates=sparse.csr_array((2, 40)))[0]
    assert (nothing == -1).all()


@each("axis", ["items", "users"])
def test_similar_out_of_candidates(model, axis):
    similar = getattr(model, f"similar_{axis}")
    n = 40 if axis == "items" else 60
    every, cosines = similar([3, 7], n)
    chosen = [3, 8, 11, 20, 31]
    lists = sparse.csr_array((np.ones(4), ([0, 0, 1, 1], [8, 20, 9, 31])), shape=(2, n))
    of_each = np.array([np.isin(every[0], [8, 20]), np.isin(every[1], [9, 31])])
    for options, kept in (
        ({"candidates": chosen}, np.isin(every, chosen)),
        ({"exclude": chosen}, ~np.isin(every, chosen)),
        ({"candidates": chosen, "exclude": [8, 9]}, np.isin(every, [3, 11, 20, 31])),
        ({"candidates": lists}, of_each),
        ({"exclude": lists}, ~of_each),
    ):
        found, scores = similar([3, 7], n, **options)
        for i in range(2):
            expected = every[i, kept[i] & (every[i] >= 0)]
            assert_array_equal(found[i, : len(expected)], expected)
            assert (found[i, len(expected) :] == -1).all()
            of_kept = cosines[i, kept[i] & (every[i] >= 0)]
            assert_allclose(scores[i, : len(expected)], of_kept, rtol=1e-5, atol=1e-6)
    for name in ("candidates", "exclude"):
        with pytest.raises(ValueError, match=f"{name} holds 99"):
            similar(3, **{name: [99]})


def test_explanations_take_the_items_they_name(log):
    model = MFRecommender(4, max_iter=3, random_state=0).fit(log)
    others = model._fold_in.others[:10]
    model._fold_in = model._fold_in._replace(others=others)
    expected = model.explain(3, 20)
    read = np.concatenate([expected.history, others, [20]])
    model.item_factors_[np.setdiff1d(np.arange(40), read)] = np.nan
    assert_array_equal(model.explain(3, 20).contributions, expected.contributions)


def test_exported_vectors_rank_as_recommend_does(model, log):
    users, items = model.export_vectors()
    assert users.shape == (60, items.shape[1]) and len(items) == 40
    assert users.dtype == items.dtype == np.float32
    scores = users @ items.T
    scores[log.toarray() > 0] = -np.inf
    found, expected = model.recommend(users=np.arange(60), n_recommendations=4)
    assert_allclose(np.take_along_axis(scores, found, axis=1), expected, rtol=1e-5, atol=1e-6)
    assert_allclose(np.sort(scores, axis=1)[:, :-5:-1], expected, rtol=1e-5, atol=1e-6)
    # They are copies.
    items[:] = 0
    assert model.item_factors_.any()


def test_exported_vectors_of_ids(log):
    users, items = log.nonzero()
    pairs = [(f"u{u}", f"i{i}") for u, i in zip(users, items, strict=True)]
    model = InteractionRecommender(MODELS["vae"]).fit(pairs)
    users, items = model.export_vectors()
    assert len(users) == len(model.user_ids_) and len(items) == len(model.item_ids_)
    found, scores = model.recommend("u7", n_recommendations=1, exclude_seen=False)
    row = users[np.flatnonzero(model.user_ids_ == "u7")[0]]
    assert found[0] == model.item_ids_[np.argmax(items @ row)]
    assert_allclose((items @ row).max(), scores[0], rtol=1e-5)


# What is refused, and what is used.


@each("n", [2.5, "3", True, np.True_, None, 0, -1])
def test_how_many_is_a_positive_integer(model, n):
    if n is not None:  # which stands for the constructor's
        with pytest.raises((TypeError, ValueError), match=r"n_recommendations=.* must be"):
            model.recommend(users=[0], n_recommendations=n)
    for similar in (model.similar_items, model.similar_users):
        with pytest.raises((TypeError, ValueError), match=r"n_recommendations=.* must be"):
            similar([0], n)
    assert model.similar_items(0, np.int8(3))[0].shape == (3,)


def test_more_than_fits_into_memory(model, log, monkeypatch):
    named = InteractionRecommender(MFRecommender(4, max_iter=1)).fit(np.column_stack(log.nonzero()))
    monkeypatch.setattr(_validation, "physical_memory", lambda: 10**7)
    for call in (
        lambda: model.recommend(users=[0], n_recommendations=10**6),
        lambda: model.recommend(log, n_recommendations=10**6),
        lambda: model.similar_items([0], 10**6),
        lambda: named.recommend([1], n_recommendations=10**6),
        lambda: named.recommend(history=[1], n_recommendations=10**6),
        lambda: named.similar_users([1], 10**6),
        lambda: named.similar_items([10**6], 10**6),  # which is unknown
    ):
        with pytest.raises(ValueError, match="n_recommendations=10{6} for each of .* memory"):
            call()


def test_more_than_there_is(model, log):
    named = InteractionRecommender(MFRecommender(4, max_iter=1)).fit(np.column_stack(log.nonzero()))
    early = MFRecommender(4, early_stopping=True, n_recommendations=10**9)
    for call in (
        lambda n: model.recommend(users=[0], n_recommendations=n),
        lambda n: model.recommend(users=[0], n_recommendations=n, diversity=0.5),
        lambda n: model.recommend(log, n_recommendations=n),
        lambda n: clone(model).set_params(n_recommendations=n).fit(log).predict(log),
        lambda n: clone(model).set_params(n_recommendations=n).fit(log).score(log),
        lambda n: make_ranking_scorer(k=n)(model, log),
        lambda n: model.similar_items([0], n),
        lambda n: model.similar_users([0], n),
        lambda n: named.recommend([1], n_recommendations=n),
        lambda n: named.recommend(history=[1], n_recommendations=n),
        lambda n: named.similar_items([1], n),
        lambda n: named.similar_users([1], n),
        lambda n: EASERecommender(n_recommendations=n).fit(log).predict(log),
        lambda n: early.fit(log),
    ):
        with pytest.raises(ValueError, match="=10{9} for each of .* (memory|to be found)"):
            call(10**9)
    # Of some more there are places without an item.
    for diversity in (0.0, 0.5):
        found, scores = model.recommend(users=0, n_recommendations=500, diversity=diversity)
        assert found.shape == scores.shape == (500,)
        assert_array_equal(found[40:], -1)
        assert_array_equal(scores[40:], -np.inf)


def test_a_request_for_a_few_reads_no_files(model, monkeypatch):
    def refuse():
        raise AssertionError("the memory was asked for")

    monkeypatch.setattr(_validation, "physical_memory", refuse)
    assert model.recommend(users=[0, 1])[0].shape == (2, 10)
    assert model.similar_items(0)[0].shape == (10,)


@each("length", [0, 7, 40, 900, 5000])
def test_indices_in_ascending_order(length):
    ids = np.random.default_rng(0).integers(2000, size=length)
    assert_array_equal(ascending(ids, 2000), np.unique(ids))


def test_indices_of_users_in_place_of_a_matrix(model):
    for X in ([0, 1], np.array([3]), 7):
        with pytest.raises(ValueError, match="did you mean users="):
            model.recommend(X)
    with pytest.raises(ValueError, match="did you mean users=") as raised:
        model.recommend(np.arange(900))
    assert len(str(raised.value)) < 200


def test_score_uses_what_is_to_be_found(model, log):
    found = model.recommend(log, n_recommendations=3)[0]
    y = np.zeros(log.shape)
    np.put_along_axis(y, found[:, :1], 1, axis=1)
    assert model.score(log, y) == model.score(log, sparse.csr_array(y)) == 1
    assert model.score(log, found[:, 0]) == model.score(log, found[:, :1]) == 1
    assert model.score(log, y.tolist()) == 1
    assert_allclose(model.score(log, found[:, 1]), 1 / np.log2(3))
    np.put_along_axis(y, found[:, 2:], 5, axis=1)
    assert_allclose(model.score(log, y), ndcg_at_k(y, model.predict(log)))
    for wrong in (y[:-1], y.T, y[:, :-1], np.zeros(7, dtype=int)):
        with pytest.raises(ValueError, match="y has shape"):
            model.score(log, wrong)
    with pytest.raises(ValueError, match="y holds 40"):
        model.score(log, np.full(60, 40))
    with pytest.raises(TypeError, match="y must be integers"):
        model.score(log, np.full(60, 0.5))
    with pytest.raises(ValueError, match="y .* NaN"):
        model.score(log, np.full(log.shape, np.nan))


@each("weight", [np.nan, np.inf, 3e38])
@each("form", ["csr", "coo", "dense"])
def test_weights_that_add_up_to_no_number(model, log, weight, form):
    # Beyond float32 a sum is infinite, and quotients by it are NaN.
    X = log.toarray().astype(np.float64)
    X[0, np.flatnonzero(X[0])] = weight
    X = X if form == "dense" else sparse.csr_array(X).asformat(form)
    for assume_finite in (False, True):
        with config_context(assume_finite=assume_finite):
            for call in (clone(model).fit, model.recommend):
                with pytest.raises(ValueError, match="X (holds|contains)"):
                    call(X)


@pytest.mark.parametrize("scale", [1e-30, 1e34])
def test_weights_are_shares(model, log, scale):
    if isinstance(model, ALSRecommender):
        pytest.skip("its weights are compared with unobserved_weight and regularization")
    expected = model.recommend(log)
    rows = np.where(np.arange(60)[:, None] % 2, scale, 1)
    for one, other in zip(model.recommend(log.multiply(rows)), expected, strict=True):
        # A score near zero is a sum of products as large as the largest score.
        assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def test_learned_arrays_that_hold_nan(model, log):
    model.item_factors_[:] = np.nan
    for call in (lambda: model.recommend(users=[0]), lambda: model.recommend(log[:1])):
        with pytest.raises(ValueError, match="hold NaN or infinity"):
            call()


def test_matrix_of_exclusions_is_checked(model, log):
    exclude = sparse.csr_array(np.eye(2, 40))
    exclude.indptr[1] = 10**9
    with pytest.raises(ValueError, match="exclude .* indptr"):
        model.recommend(log[:2], exclude=exclude)
