"""Re-ranking functions against plain references, and what they accept and refuse."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from reference.reranking import (
    boosted,
    calibrated,
    divergence,
    limited,
    marginal_relevance,
    scaled,
)
from scipy import sparse

from freqfm.metrics import diversity_at_k, miscalibration_at_k
from freqfm.reranking import boost, calibrate, diversify, limit_per_group

N_ITEMS, N_CANDIDATES = 40, 25
GENRES = ["comedy", "drama", "horror", None, "war"]


@pytest.fixture(scope="module")
def lists():
    """Return candidates of 30 users in any order, some missing, and their scores."""
    generator = np.random.default_rng(0)
    items = generator.permuted(np.tile(np.arange(N_ITEMS), (30, 1)), axis=1)[:, :N_CANDIDATES]
    scores = generator.normal(size=items.shape) * 10.0 ** generator.integers(-3, 4, (30, 1))
    missing = generator.random(items.shape) < 0.1
    missing[:10] = False
    scores[4] = 2.5
    return np.where(missing, -1, items), np.where(missing, -np.inf, scores)


def candidates(lists):
    """Yield each user's items and scaled scores, best first."""
    for items, scores in zip(*lists, strict=True):
        items, scores = items[items >= 0], scores[items >= 0]
        order = np.argsort(-scores, kind="stable")
        yield items[order], np.array(scaled(scores[order].tolist()))


def vectors(seed=1, d=6):
    table = np.random.default_rng(seed).normal(size=(N_ITEMS, d))
    table[9] = 0
    return table


@each("diversity", [0, 0.2, 0.5, 0.8, 1])
def test_diversify_is_maximal_marginal_relevance(lists, diversity):
    table = vectors()
    wide = np.where(np.random.default_rng(2).random((N_ITEMS, 400)) < 0.03, 1.0, 0)
    for features in (table, sparse.csr_array(wide)):
        found, scores = diversify(*lists, features, diversity, 8)
        dense = features if isinstance(features, np.ndarray) else wide
        for user, (items, relevances) in enumerate(candidates(lists)):
            places = marginal_relevance(relevances, dense[items], diversity, 8)
            assert_array_equal(found[user], items[places])
            of_item = dict(zip(lists[0][user], lists[1][user], strict=True))
            assert scores[user].tolist() == [of_item[item] for item in found[user]]


def test_diversify_takes_any_form_of_the_same(lists):
    table = np.round(vectors(), 2)
    expected = diversify(*lists, table, 0.4, 8, n_jobs=1)
    ids = np.array([f"film {i}" for i in range(N_ITEMS)], dtype=object)
    named = np.where(lists[0] >= 0, ids[lists[0]], None)
    same = [
        diversify(*lists, table, 0.4, 8, n_jobs=2),
        diversify(lists[0].tolist(), lists[1].tolist(), table.tolist(), 0.4, 8),
        diversify(*lists, sparse.coo_array(table), 0.4, 8),
        diversify(*lists, table * 1e200, 0.4, 8),
        diversify(*lists, table * 1e-200, 0.4, 8),
        diversify(lists[0], lists[1] * 1e200, table, 0.4, 8),
        diversify(named, lists[1], table, 0.4, 8, item_ids=ids),
    ]
    for items, _ in same[:-1]:
        assert_array_equal(items, expected[0])
    assert_array_equal(same[-1][0], np.where(expected[0] >= 0, ids[expected[0]], None))
    # A single list; and the order in which candidates are given does not matter.
    items, scores = diversify(lists[0][0], lists[1][0], table, 0.4, 8)
    assert items.shape == scores.shape == (8,)
    assert_array_equal(items, expected[0][0])
    turned = diversify(lists[0][:4, ::-1], lists[1][:4, ::-1], table, 0.4, 8)
    assert_array_equal(turned[0], expected[0][:4])
    assert diversify(np.zeros((0, 5), int), np.zeros((0, 5)), table)[0].shape == (0, 5)


def test_missing_candidates_stay_missing():
    items, _ = diversify([[3, -1, 5], [-1, -1, -1]], np.zeros((2, 3)), vectors(), 0.5)
    assert items.tolist() == [[3, 5, -1], [-1, -1, -1]]
    named, _ = diversify(["b", None], [1, 2], [[1], [2]], 0.5, item_ids=["a", "b"])
    assert named.tolist() == ["b", None]


def test_more_diversity_gives_more_diverse_lists(lists):
    table = abs(vectors())
    found = [diversify(*lists, table, weight, 8)[0] for weight in (0, 0.3, 0.6, 1)]
    values = [diversity_at_k(items, table) for items in found]
    assert values == sorted(values) and values[-1] > values[0] + 0.1


def history():
    generator = np.random.default_rng(3)
    X = (generator.random((30, N_ITEMS)) < 0.2) * generator.choice([0.5, 1, 3], (30, N_ITEMS))
    X[7] = 0
    return X


def shares_of(history, shares):
    """Return the shares of categories in a history, from the definition."""
    total = sum(w * s for w, of_item in zip(history, shares, strict=True) for s in of_item)
    sums = [
        sum(w * of_item[c] for w, of_item in zip(history, shares, strict=True))
        for c in range(len(shares[0]))
    ]
    return [one / total for one in sums] if total else None


def category_matrix():
    """Return shares of four categories, of which an item has none, one or several."""
    counts = np.random.default_rng(4).integers(0, 2, (N_ITEMS, 4)) * 1.0
    totals = counts.sum(axis=1, keepdims=True)
    return counts, counts / np.where(totals > 0, totals, 1)


@each("weight", [0, 0.1, 0.5, 0.9, 1])
def test_calibrate_is_greedy_on_the_divergence(lists, weight):
    (counts, shares), X = category_matrix(), history()
    found, _ = calibrate(*lists, counts, X, weight, 8)
    for user, (items, relevances) in enumerate(candidates(lists)):
        p = shares_of(X[user], shares.tolist())
        expected = list(range(8))
        if p is not None:
            expected = calibrated(relevances.tolist(), shares[items].tolist(), p, weight, 8)
        assert_array_equal(found[user], items[expected])


def test_miscalibration_is_the_divergence(lists):
    (counts, shares), X = category_matrix(), history()
    ranked = lists[0][:, :6].copy()
    ranked[2] = -1
    found = miscalibration_at_k(ranked, counts, X, average=False)
    for user, items in enumerate(ranked):
        p, items = shares_of(X[user], shares.tolist()), items[items >= 0]
        if p is None or not len(items):
            assert math.isnan(found[user])
        else:
            assert_allclose(found[user], divergence(p, shares[items].tolist()), rtol=1e-12)
    assert_allclose(miscalibration_at_k(ranked, counts, X), np.nanmean(found))
    assert_allclose(
        miscalibration_at_k(ranked, counts, X, 3), miscalibration_at_k(ranked[:, :3], counts, X)
    )
    # Calibrated lists are better calibrated.
    values = [
        miscalibration_at_k(calibrate(*lists, counts, X, weight, 8)[0], counts, X)
        for weight in (0, 0.5, 1)
    ]
    assert values[2] < values[1] < values[0] - 0.1


def test_calibrate_takes_any_form_of_the_same(lists):
    labels = [GENRES[i % 5] for i in range(N_ITEMS)]
    X = (history() > 0) * 1.0
    expected, _ = calibrate(*lists, labels, X, 0.5, 8)
    items_of = [np.flatnonzero(row) for row in X]
    ids = [f"film {i}" for i in range(N_ITEMS)]
    one_hot = [[one == label for one in GENRES if one] for label in labels]
    forms = [
        [[label] if label else [] for label in labels],
        np.array(labels, dtype=object),
        pd.Series(labels),
        pd.Series(labels, dtype="category"),
        pl.Series(labels),
        np.array(one_hot),
        (7 * sparse.coo_array(np.array(one_hot))),
        pd.get_dummies(pd.Series(labels)),
    ]
    for categories in forms:
        assert_array_equal(calibrate(*lists, categories, X, 0.5, 8)[0], expected)
    for had in (sparse.csr_array(3 * X), items_of, [set(one.tolist()) for one in items_of]):
        assert_array_equal(calibrate(*lists, labels, had, 0.5, 8)[0], expected)
    named = np.where(lists[0] >= 0, np.array(ids, dtype=object)[lists[0]], None)
    had = [[ids[i] for i in one] for one in items_of]
    found, _ = calibrate(named, lists[1], labels, had, 0.5, 8, item_ids=ids)
    assert_array_equal(found, np.where(expected >= 0, np.array(ids, object)[expected], None))
    one, _ = calibrate(lists[0][0], lists[1][0], labels, items_of[0], 0.5, 8)
    assert_array_equal(one, expected[0])


MIXED = [[True, 0], [True, 0], [False, 1]]


@each(
    "categories",
    [
        [28, 28, 35],
        [[28], [28], [35]],
        ((28,), (28,), (35,)),
        [{28}, frozenset([28]), {35}],
        [[28, None], [28, None], [35, None]],
        [[28.0, np.nan], [28.0, np.nan], [35.0, np.nan]],
        [[True], [True], [False]],
        [True, True, False],
        [["28"], ["28"], ["35"]],
        [np.array([28]), np.array([28]), np.array([35])],
        np.array([28, 28, 35]),
        pd.Series([[28], [28], [35]]),
        pd.Series([28, 28, None], dtype="Int64").fillna(35),
        pl.Series([[28], [28], [35]]),
        pl.Series([[28], [28], [35]], dtype=pl.Array(pl.Int64, 1)),
        pa.array([[28], [28], [35]]),
        pa.chunked_array([[28], [28, 35]]),
        # What has columns holds weights.
        np.array([[2.0, 0], [2, 0], [0, 7]]),
        np.array(MIXED, dtype=object),
        pd.DataFrame({"film": [True, True, False], "song": [0, 0, 1]}),
        pd.DataFrame({"film": [True, True, False], "song": [False, False, True]}, dtype="boolean"),
        pl.DataFrame({"film": [1, 1, 0], "song": [0, 0, 1]}),
        pa.table({"film": [1, 1, 0], "song": [0, 0, 1]}),
        sparse.csc_array([[1, 0], [1, 0], [0, 1]]),
    ],
)
def test_what_has_columns_holds_weights_and_all_else_labels(categories):
    for history in ([2], [[2]], {2}, pd.Series([2]), pd.Series([[2]]), np.array([[0, 0, 4]])):
        assert calibrate([0, 1, 2], [3, 2, 1], categories, history, 1.0)[0].tolist() == [2, 0, 1]
    found = [miscalibration_at_k([[item]], categories, [[2]]) for item in range(3)]
    assert_allclose(found, [-math.log(0.01), -math.log(0.01), 0], atol=1e-12)


def test_labels_that_are_numbers_are_those_of_strings(lists):
    generator, X = np.random.default_rng(5), history()
    for n in (1, 2, 3, None):
        labels = [
            (2 + generator.permutation(6)[: n or generator.integers(0, 4)]).tolist()
            for _ in range(N_ITEMS)
        ]
        named = [[f"genre {one}" for one in row] for row in labels]
        expected = calibrate(*lists, named, X, 0.7, 8)[0]
        for same in (labels, list(map(tuple, labels)), list(map(set, labels)), pd.Series(labels)):
            assert_array_equal(calibrate(*lists, same, X, 0.7, 8)[0], expected)


def test_dislikes_are_no_part_of_what_users_had(lists):
    (counts, _), X = category_matrix(), history()
    signed = np.where((X == 0) & (np.random.default_rng(6).random(X.shape) < 0.2), -2, X)
    assert (signed < 0).any()
    expected = calibrate(*lists, counts, X, 0.5, 8)[0], miscalibration_at_k(lists[0], counts, X)
    for had in (signed, sparse.csr_array(signed), pd.DataFrame(signed), pl.DataFrame(signed)):
        assert_array_equal(calibrate(*lists, counts, had, 0.5, 8)[0], expected[0])
        assert miscalibration_at_k(lists[0], counts, had) == expected[1]
    # Missing items of lists are none.
    assert miscalibration_at_k([[0]], ["a", "b"], [[-1, 0]]) == 0
    # Whoever has dislikes alone gets the order of the scores.
    found, _ = calibrate([0, 1, 2], [3, 2, 1], ["a", "a", "b"], -np.eye(3)[2:], 1.0)
    assert found.tolist() == [0, 1, 2]


def test_large_inputs_are_cut_into_parts(lists, monkeypatch):
    counts, X = category_matrix()[0], history()
    expected = calibrate(*lists, counts, X, 0.5, 8), miscalibration_at_k(lists[0], counts, X)
    monkeypatch.setattr("freqfm.reranking._objectives._AT_ONCE", 100)
    monkeypatch.setattr("freqfm.metrics._hits._SHARES_AT_ONCE", 12)
    assert_array_equal(calibrate(*lists, counts, X, 0.5, 8)[0], expected[0][0])
    assert_allclose(miscalibration_at_k(lists[0], counts, X), expected[1])


@each("limit", [1, 2, 5])
def test_groups_are_limited(lists, limit):
    counts = category_matrix()[0]
    brands = [None if i % 7 == 0 else i % 4 for i in range(N_ITEMS)]
    for groups, sets in [
        (counts, [set(np.flatnonzero(row)) for row in counts]),
        (brands, [set() if brand is None else {brand} for brand in brands]),
    ]:
        found, scores = limit_per_group(*lists, groups, limit, 9)
        for user, (items, _) in enumerate(candidates(lists)):
            expected = items[limited([sets[item] for item in items], limit, 9)]
            assert_array_equal(found[user], [*expected, *[-1] * (9 - len(expected))])
            of_item = dict(zip(lists[0][user], lists[1][user], strict=True)) | {-1: -np.inf}
            assert scores[user].tolist() == [of_item[item] for item in found[user]]


def test_limits_take_any_form_of_the_same(lists):
    import pandas as pd

    brands = [i % 4 for i in range(N_ITEMS)]
    expected, scores = limit_per_group(*lists, brands, 2)
    assert expected.shape == lists[0].shape and (np.sum(expected >= 0, axis=1) <= 8).all()
    ids = np.array([f"film {i}" for i in range(N_ITEMS)], dtype=object)
    for groups in (
        np.array(brands),
        pd.Series(brands, dtype="category"),
        [[brand, brand] for brand in map(str, brands)],
        3 * sparse.coo_array(np.eye(4)[brands]),
    ):
        assert_array_equal(limit_per_group(*lists, groups, 2)[0], expected)
    named = np.where(lists[0] >= 0, ids[lists[0]], None)
    found, of_found = limit_per_group(named, lists[1], brands, 2, item_ids=ids)
    assert_array_equal(found, np.where(expected >= 0, ids[expected], None))
    assert_array_equal(of_found, scores)
    # Where nothing is left, whatever the types.
    for items, item_ids, missing in [
        (np.array([2, 0, 1], np.uint8), None, -1),
        (["c", "a", "b"], ["a", "b", "c"], None),
        ([30, 10, 20], [10, 20, 30], None),
    ]:
        found, of_found = limit_per_group(items, [1, 5, 3], ["x", "x", "y"], 1, item_ids=item_ids)
        assert found.tolist() == [items[1], items[0], missing]
        assert of_found.tolist() == [5, 1, -np.inf]
    assert limit_per_group(np.zeros((0, 5), int), np.zeros((0, 5)), brands)[0].shape == (0, 5)


def test_boosts_are_added_to_relevances(lists):
    boosts = np.random.default_rng(5).normal(size=N_ITEMS)
    boosts[::3] = 0
    ids = [f"film {i}" for i in range(N_ITEMS)]
    named = np.where(lists[0] >= 0, np.array(ids, object)[lists[0]], None)
    found, scores = boost(*lists, boosts, 8)
    for user, (items, relevances) in enumerate(candidates(lists)):
        expected = items[boosted(relevances.tolist(), boosts[items].tolist(), 8)]
        assert_array_equal(found[user], expected)
        of_item = dict(zip(items, relevances, strict=True))
        assert_allclose(scores[user], [of_item[i] + boosts[i] for i in expected], atol=1e-6)
    # Another function may follow.
    brands = [i % 4 for i in range(N_ITEMS)]
    limited_of_boosted = limit_per_group(*boost(*lists, boosts), brands, 2, 4)[0]
    for items, of_all in zip(limited_of_boosted, boost(*lists, boosts)[0], strict=True):
        places = limited([{i % 4} for i in of_all if i >= 0], 2, 4)
        assert_array_equal(items, of_all[places])
    assert_array_equal(
        boost(named, lists[1], boosts.tolist(), 8, item_ids=ids)[0],
        np.where(found >= 0, np.array(ids, object)[found], None),
    )
    assert_array_equal(boost(lists[0], lists[1] * 1e9, boosts, 8)[0], found)
    # Without boosts only the order of the scores counts; missing ones stay last.
    items, _ = boost([[3, -1, 5]], [[1.0, 9.0, 2.0]], np.zeros(N_ITEMS))
    assert items.tolist() == [[5, 3, -1]]
    assert boost([0, 1], [2, 1], [0, 7])[0].tolist() == [1, 0]


BASE = {"items": [[0, 1, 2]], "scores": [[3, 2, 1]]}
TABLE = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]


@each(
    "changed, words",
    [
        ({"items": [0.5, 1, 2]}, "items has shape"),
        ({"items": [[0.5, 1, 2]]}, "items holds float64"),
        ({"items": [[0, 1, 3]]}, "items holds 3, but there are 3 items"),
        ({"items": [[0, 1, -2]]}, "items holds -2"),
        ({"items": [[0, 1, 1]]}, "item 1 twice in row 0"),
        ({"scores": [[3, np.nan, 1]]}, "scores holds NaN"),
        ({"scores": [["a", "b", "c"]]}, "scores holds <U1"),
        ({"n_recommendations": 4}, "n_recommendations=4, but items has 3 columns"),
        ({"n_recommendations": 0}, "n_recommendations=0"),
        ({"item_ids": ["a", "b"]}, "item_ids holds 2 ids"),
        ({"item_ids": ["a", "b", "b"]}, "item_ids holds an id twice"),
        (
            {"items": [["a", "x", "c"]], "item_ids": ["a", "b", "c"]},
            "items holds ['x'], which item_ids does not have",
        ),
        ({"item_ids": ["a", "b", "c"]}, "items"),
    ],
)
def test_bad_lists_are_refused(changed, words):
    for function, given in (
        (diversify, {"item_vectors": TABLE}),
        (calibrate, {"categories": np.array(TABLE), "history": np.ones((1, 3))}),
        (limit_per_group, {"groups": np.array(TABLE)}),
        (boost, {"boosts": [0, 1, 2]}),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            function(**BASE | given | changed)
        assert words in str(error.value)


@each(
    "function, changed, words",
    [
        (diversify, {"item_vectors": [1, 2, 3]}, "item_vectors must be a matrix"),
        (diversify, {"item_vectors": [["a"], ["b"], ["c"]]}, "item_vectors holds <U1"),
        (diversify, {"item_vectors": [[np.inf], [1], [2]]}, "item_vectors holds NaN"),
        (diversify, {"item_vectors": TABLE, "diversity": 1.5}, "diversity=1.5"),
        (diversify, {"item_vectors": TABLE, "diversity": True}, "diversity=True"),
        (calibrate, {"weight": -1}, "weight=-1"),
        (
            calibrate,
            {"categories": np.array([[-1, 2], [1, 1], [0, 1]])},
            "categories holds the negative",
        ),
        (calibrate, {"categories": [[1, 0, 0], [0, 2, 1], [0, 1, 0]]}, "np.array(categories)"),
        (calibrate, {"categories": [[0.3, 0.7], [1, 0], [0, 1]]}, "np.array(categories)"),
        (calibrate, {"categories": [(True, False), (False, True), (True, False)]}, "rows of a m"),
        (calibrate, {"categories": [[28], [0.5], [1, "b"]]}, "categories holds values of the"),
        (calibrate, {"categories": np.array([[28], [28], [35]])}, "categories is a matrix of we"),
        (calibrate, {"categories": pd.DataFrame({"genre": [3, 3, 5]})}, "with one column"),
        (calibrate, {"categories": "abc"}, "categories='abc' has no order"),
        (calibrate, {"categories": {"a", "b", "c"}}, "has no order of items"),
        (calibrate, {"categories": {0: "a", 1: "b", 2: "c"}}, "has no order of items"),
        (calibrate, {"categories": [None, None, None]}, "categories holds no label"),
        (calibrate, {"categories": ["a", 1, "b"]}, "categories"),
        (calibrate, {"history": [[0, 0, 1]]}, "np.array(history)"),
        (calibrate, {"history": [[1, 0.5, 0.2]]}, "np.array(history)"),
        (calibrate, {"history": np.ones((2, 3))}, "history is of 2 users"),
        (calibrate, {"history": [[0], [1]]}, "history"),
        (calibrate, {"history": [[5]]}, "history holds 5"),
        (calibrate, {"history": [["a"]]}, "history holds"),
        (limit_per_group, {"groups": ["a", 1, "b"]}, "groups"),
        (limit_per_group, {"groups": [None, None, None]}, "groups holds no label"),
        (
            limit_per_group,
            {"groups": np.array([[-1, 2], [1, 1], [0, 1]])},
            "groups holds the negative",
        ),
        (limit_per_group, {"groups": ["a", "b"]}, "items holds 2, but there are 2 items"),
        (limit_per_group, {"groups": np.array(TABLE), "limit": 0}, "limit=0"),
        (limit_per_group, {"groups": np.array(TABLE), "limit": 1.5}, "limit=1.5"),
        (boost, {"boosts": {0: 1.0}}, "boosts has the shape ()"),
        (boost, {"boosts": TABLE}, "boosts has the shape (3, 2)"),
        (boost, {"boosts": ["a", "b", "c"]}, "boosts holds <U1"),
        (boost, {"boosts": [0, np.nan, 1]}, "boosts holds NaN"),
    ],
)
def test_bad_tables_are_refused(function, changed, words):
    given = {}
    if function is calibrate:
        given = {"categories": ["a", "b", "a"], "history": [[0, 1]]}
    with pytest.raises((TypeError, ValueError)) as error:
        function(**BASE | given | changed)
    assert words in str(error.value)
