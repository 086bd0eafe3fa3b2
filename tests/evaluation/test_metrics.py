"""Metrics: worked examples, a reference, scikit-learn where it agrees, identities, errors."""

import math

import numpy as np
import pytest
from helpers import each
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.metrics import log_loss, ndcg_score

from freqfm import metrics
from freqfm.metrics import (
    average_precision_at_k,
    coverage_at_k,
    diversity_at_k,
    gini,
    hit_rate_at_k,
    ndcg_at_k,
    normalized_entropy,
    novelty_at_k,
    precision_at_k,
    ranking_report,
    recall_at_k,
    reciprocal_rank,
    stratified_ndcg_at_k,
)

RANKING_METRICS = {
    "ndcg": ndcg_at_k,
    "recall": recall_at_k,
    "precision": precision_at_k,
    "average_precision": average_precision_at_k,
    "hit_rate": hit_rate_at_k,
    "reciprocal_rank": reciprocal_rank,
}
EVERY_METRIC = pytest.mark.parametrize("name", RANKING_METRICS)

# Seven items. Held out: three items, one, none, five, two.
RELEVANT = sparse.csr_array(
    [
        [1, 0, 1, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
)
RANKED = np.array(
    [
        [2, 3, 6, 1],  # hits at 1 and 3
        [0, 2, 3, 1],  # a hit at 4
        [0, 1, 2, 3],
        [4, 3, 2, 1],  # hits everywhere
        [0, 1, -1, -1],  # no hit
    ]
)
NAN = np.nan


def log2_sum(*places):
    return sum(1 / math.log2(r + 1) for r in places)


# Worked out by hand from the formulas: for k=4, then for k=2.
WORKED = {
    "ndcg": (
        [log2_sum(1, 3) / log2_sum(1, 2, 3), log2_sum(4), NAN, 1, 0],
        [1 / log2_sum(1, 2), 0, NAN, 1, 0],
    ),
    "recall": ([2 / 3, 1, NAN, 4 / 5, 0], [1 / 3, 0, NAN, 2 / 5, 0]),
    "precision": ([2 / 4, 1 / 4, NAN, 1, 0], [1 / 2, 0, NAN, 1, 0]),
    "average_precision": (
        [(1 + 2 / 3) / 3, 1 / 4, NAN, 1, 0],
        [1 / 2, 0, NAN, 1, 0],
    ),
    "hit_rate": ([1, 1, NAN, 1, 0], [1, 0, NAN, 1, 0]),
    "reciprocal_rank": ([1, 1 / 4, NAN, 1, 0], [1, 0, NAN, 1, 0]),
}


@EVERY_METRIC
def test_worked_examples(name):
    metric = RANKING_METRICS[name]
    for k, expected in zip((4, 2), WORKED[name], strict=True):
        values = metric(RELEVANT, RANKED, k, average=False)
        assert values.dtype == np.float64
        assert_allclose(values, expected, rtol=1e-15)
        mean = metric(RELEVANT, RANKED, k)
        assert isinstance(mean, float)
        assert mean == pytest.approx(np.nanmean(expected))
    assert metric(RELEVANT, RANKED) == metric(RELEVANT, RANKED, 4)


def test_truncated_recall():
    values = recall_at_k(RELEVANT, RANKED, truncated=True, average=False)
    assert_allclose(values, [2 / 3, 1, NAN, 1, 0])
    values = recall_at_k(RELEVANT, RANKED, 1, truncated=True, average=False)
    assert_allclose(values, [1, 0, NAN, 1, 0])


def reference_metrics(held_out, ranking, k):
    """One user: a set of items, a list of items."""
    hits = [item in held_out for item in ranking[:k]]
    n, most = len(held_out), min(k, len(held_out))
    if n == 0:
        return dict.fromkeys(RANKING_METRICS, NAN)
    dcg = sum(1 / math.log2(r + 2) for r, hit in enumerate(hits) if hit)
    firsts = [r + 1 for r, hit in enumerate(hits) if hit]
    return {
        "ndcg": dcg / sum(1 / math.log2(r + 2) for r in range(most)),
        "recall": sum(hits) / n,
        "precision": sum(hits) / k,
        "average_precision": sum(sum(hits[:r]) / r for r in firsts) / most,
        "hit_rate": float(any(hits)),
        "reciprocal_rank": 1 / firsts[0] if firsts else 0.0,
    }


def random_rankings(seed, n_users=40, n_items=30, n_ranked=12):
    rng = np.random.default_rng(seed)
    relevant = (rng.random((n_users, n_items)) < rng.random((n_users, 1)) ** 2).astype(int)
    ranked = np.argsort(rng.random((n_users, n_items)), axis=1)[:, :n_ranked]
    ranked[rng.random(ranked.shape) < 0.1] = -1
    return relevant, ranked


@pytest.mark.parametrize("at_once", [1, 17, 1 << 20])
@pytest.mark.parametrize("k", [1, 5, 12])
def test_equal_the_reference(monkeypatch, k, at_once):
    monkeypatch.setattr(metrics._hits, "_RANKINGS_AT_ONCE", at_once)
    relevant, ranked = random_rankings(k)
    reference = [
        reference_metrics(set(np.flatnonzero(r)), row.tolist(), k)
        for r, row in zip(relevant, ranked, strict=True)
    ]
    for name, metric in RANKING_METRICS.items():
        values = metric(sparse.csr_array(relevant), ranked, k, average=False)
        assert_allclose(values, [one[name] for one in reference], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_ndcg_equals_that_of_scikit_learn(k):
    rng = np.random.default_rng(k)
    relevant = rng.integers(0, 2, (50, 30))
    relevant[:, 0] = 1
    scores = rng.random((50, 30))
    ranked = np.argsort(-scores, axis=1)
    assert ndcg_at_k(relevant, ranked, k) == pytest.approx(ndcg_score(relevant, scores, k=k))


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_parts_of_ndcg_add_up(seed, k):
    relevant, ranked = random_rankings(seed)
    relevant[0, 0] = 1
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, 30)
    edges = np.sort(rng.random(2))
    for average in (True, False):
        parts = stratified_ndcg_at_k(relevant, ranked, counts, k, edges=edges, average=average)
        ndcg = ndcg_at_k(relevant, ranked, k, average=average)
        assert_allclose(sum(parts.values()), ndcg, rtol=0, atol=1e-9)


def test_stratified_ndcg_worked_example():
    # By popularity, ties by index: 3, 0 | 4 | 1, 2.
    counts = np.array([5, 2, 2, 9, 5], dtype=np.uint8)
    relevant = [[1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]
    ranked = [[1, 0, 4, 2, 3], [2, 4, -1, -1, -1]]
    parts = stratified_ndcg_at_k(relevant, ranked, counts, edges=(0.4, 0.6), average=False)
    ideal = log2_sum(1, 2, 3, 4, 5)
    assert list(parts) == ["popular", "neutral", "unpopular"]
    assert_allclose(parts.popular, [log2_sum(2, 5) / ideal, 0])
    assert_allclose(parts.neutral, [log2_sum(3) / ideal, log2_sum(2)])
    assert_allclose(parts["unpopular"], [log2_sum(1, 4) / ideal, 0])


def test_strata_are_shares_of_the_items():
    counts = np.arange(100)[::-1]
    relevant = np.eye(100)
    ranked = np.arange(100)[:, None]
    parts = stratified_ndcg_at_k(relevant, ranked, counts, average=False)
    assert [part.sum() for part in parts.values()] == [5, 15, 80]
    assert_array_equal(np.flatnonzero(parts.neutral), np.arange(5, 20))
    parts = stratified_ndcg_at_k(relevant, ranked, counts, edges=(0, 1))
    assert list(parts.values()) == [0, 1, 0]


def test_report_holds_every_metric():
    relevant, ranked = random_rankings(0)
    counts = np.arange(30)
    vectors = np.random.default_rng(1).normal(size=(30, 4))
    report = ranking_report(
        relevant, ranked, (3, np.int64(12)), item_counts=counts, item_vectors=vectors
    )
    expected = {}
    for k in (3, 12):
        for name, metric in RANKING_METRICS.items():
            expected[f"{name}@{k}"] = metric(relevant, ranked, k)
        for name, part in stratified_ndcg_at_k(relevant, ranked, counts, k).items():
            expected[f"ndcg_{name}@{k}"] = part
        expected[f"coverage@{k}"] = coverage_at_k(ranked, 30, k)
        expected[f"gini@{k}"] = gini(ranked, 30, k)
        expected[f"novelty@{k}"] = novelty_at_k(ranked, counts, k)
        expected[f"diversity@{k}"] = diversity_at_k(ranked, vectors, k)
    assert report == pytest.approx(expected, rel=1e-12)
    names = [f"{name}@12" for name in (*RANKING_METRICS, "coverage", "gini")]
    assert list(ranking_report(relevant, ranked)) == names
    assert ranking_report(relevant, ranked, 5)["ndcg@5"] == ndcg_at_k(relevant, ranked, 5)


@EVERY_METRIC
def test_kinds_of_input(name):
    metric = RANKING_METRICS[name]
    expected = metric(RELEVANT, RANKED)
    weighted = RELEVANT.astype(float) * 0.5
    zeros = sparse.csr_array(np.ones((5, 7)))
    zeros.data[:] = RELEVANT.toarray().ravel()
    coo = RELEVANT.tocoo()
    doubled = sparse.coo_array(
        (np.tile(coo.data, 2), (np.tile(coo.row, 2), np.tile(coo.col, 2))), shape=coo.shape
    )
    for relevant in (
        RELEVANT.toarray(),
        RELEVANT.toarray().tolist(),
        RELEVANT != 0,
        RELEVANT.tocsc(),
        sparse.csr_matrix(RELEVANT),
        weighted,
        zeros,
        doubled,
    ):
        assert metric(relevant, RANKED) == expected
    for ranked in (RANKED.tolist(), RANKED.astype(np.int8), np.asfortranarray(RANKED)):
        assert metric(RELEVANT, ranked) == expected


@each(
    "relevant",
    [
        *([["a", "b"], ["c"]], [{"a"}, {"b"}], [["a"], ["b"]], [[1, 2], [3]]),
        np.array([["a"], ["b"]], dtype=object),
    ],
)
def test_lists_of_ids_are_told_what_makes_a_matrix_of_them(relevant):
    with pytest.raises((TypeError, ValueError), match="relevant .* MultiLabelBinarizer"):
        ndcg_at_k(relevant, [[0], [1]])


@EVERY_METRIC
def test_missing_items_are_misses(name):
    metric = RANKING_METRICS[name]
    # The last item of the row before must not pass for the missing one.
    relevant = [[0, 0, 1], [1, 0, 0]]
    assert_array_equal(metric(relevant, [[-1, -1], [-1, -1]], average=False), [0, 0])
    late = metric(relevant, [[-1, 2], [-1, 0]])
    assert late == metric(relevant, [[0, 2], [1, 0]])


@EVERY_METRIC
def test_best_ranking_has_the_best_value(name):
    relevant, _ = random_rankings(1)
    ranked = np.argsort(-relevant, axis=1, kind="stable")[:, :1]
    values = RANKING_METRICS[name](relevant, ranked, average=False)
    n_relevant = relevant.sum(axis=1)
    if name == "recall":
        n_relevant = np.minimum(n_relevant, 1) / np.maximum(n_relevant, 1)
    assert_allclose(values[relevant.any(axis=1)], np.minimum(n_relevant, 1)[relevant.any(axis=1)])


@EVERY_METRIC
def test_no_users_to_average_over(name):
    metric = RANKING_METRICS[name]
    nothing = sparse.csr_array((2, 3))
    with pytest.raises(ValueError, match="relevant holds no item of any user"):
        metric(nothing, [[0], [1]])
    assert_array_equal(metric(nothing, [[0], [1]], average=False), [NAN, NAN])
    nobody = sparse.csr_array(np.zeros((0, 3)))
    assert metric(nobody, np.zeros((0, 2), dtype=int), average=False).shape == (0,)


WRONG = [
    ({"relevant": RELEVANT[:4]}, ValueError, "relevant has 4 rows, but ranked has 5"),
    ({"relevant": RELEVANT.T}, ValueError, "relevant looks transposed"),
    ({"ranked": RANKED.T}, ValueError, "ranked looks transposed"),
    ({"ranked": RANKED[0]}, ValueError, r"ranked must have the shape .* got \(4,\)"),
    ({"ranked": RANKED[:, :0]}, ValueError, "at least one column"),
    ({"ranked": RANKED + 4}, ValueError, "ranked holds 10, but there are 7 items .*relevant"),
    ({"ranked": RANKED - 1}, ValueError, "ranked holds -2"),
    ({"ranked": RANKED * 1.0}, TypeError, "ranked holds float64"),
    ({"ranked": RANKED * 0 + 6}, ValueError, "ranked names item 6 twice in row 0"),
    ({"ranked": np.where(RANKED == 4, 1, RANKED)}, ValueError, "item 1 twice in row 3"),
    ({"k": 5}, ValueError, "k=5, but ranked has 4 columns"),
    ({"k": 0}, ValueError, "k=0 must be an integer of at least 1"),
    ({"k": -3}, ValueError, "k=-3 must be an integer of at least 1"),
    ({"k": 2.5}, TypeError, "k=2.5 must be an integer"),
    ({"k": True}, TypeError, "k=True must be an integer"),
    ({"relevant": RELEVANT * np.nan}, ValueError, "relevant .* NaN"),
    ({"relevant": np.full((5, 7), np.inf)}, ValueError, "relevant .* NaN"),
    ({"relevant": np.ones(7)}, ValueError, "relevant must be a matrix"),
    ({"relevant": RELEVANT.toarray().astype(str)}, TypeError, "relevant holds <U21"),
]


@each("change, error, message", WRONG)
@pytest.mark.parametrize("name", [*RANKING_METRICS, "stratified_ndcg", "report"])
def test_errors(name, change, error, message):
    functions = {
        **RANKING_METRICS,
        "stratified_ndcg": lambda *args: stratified_ndcg_at_k(*args[:2], np.ones(7), *args[2:]),
        "report": ranking_report,
    }
    arguments = {"relevant": RELEVANT, "ranked": RANKED, "k": 4, **change}
    with pytest.raises(error, match=message):
        functions[name](*arguments.values())


@pytest.mark.parametrize("index", [-1, 7])
def test_malformed_relevant(index):
    relevant = RELEVANT.copy()
    relevant.indices[2] = index
    with pytest.raises(ValueError, match=f"relevant .* index {index}"):
        ndcg_at_k(relevant, RANKED)
    by_columns, lists = RELEVANT.tocsc(), RELEVANT.tolil()
    by_columns.indices[0] = 3 * index
    lists.rows[0] = [0, 2, index]
    for relevant in (by_columns, lists, malformed(5)):
        with pytest.raises(ValueError, match="relevant cannot be used: X .* index"):
            ndcg_at_k(relevant, RANKED)


@each(
    "change, error, message",
    [
        ({"item_counts": np.ones(6)}, ValueError, r"item_counts has the shape \(6,\).* 7 columns"),
        ({"item_counts": np.ones(5)}, ValueError, "counts of users"),
        ({"item_counts": np.ones((7, 1))}, ValueError, "item_counts has the shape"),
        ({"item_counts": [1, 1, 1, 1, 1, 1, -1]}, ValueError, "not negative"),
        ({"item_counts": [1, 1, 1, 1, 1, 1, NAN]}, ValueError, "finite"),
        ({"item_counts": list("abcdefg")}, TypeError, "item_counts holds <U1"),
        ({"edges": (0.5, 0.2)}, ValueError, r"edges=\(0.5, 0.2\)"),
        ({"edges": (0.5, 1.2)}, ValueError, "edges"),
        ({"edges": 0.2}, ValueError, "edges=0.2"),
        ({"edges": (0.1, 0.2, 0.3)}, ValueError, "edges"),
        ({"edges": (NAN, 0.2)}, ValueError, "edges"),
    ],
)
def test_errors_of_strata(change, error, message):
    arguments = {"item_counts": np.ones(7), **change}
    for function in (stratified_ndcg_at_k, ranking_report):
        with pytest.raises(error, match=message):
            function(RELEVANT, RANKED, **arguments)


# Lists as such.


def test_lists_worked_example():
    # The items are recommended 3, 5, 4, 4, 1, 0 and 1 times.
    assert coverage_at_k(RANKED, 7) == 6 / 7
    assert coverage_at_k(RANKED, 7, 1) == 3 / 7
    counts = np.array([3, 5, 4, 4, 1, 0, 1])
    pairs = np.abs(np.subtract.outer(counts, counts)).sum()
    assert gini(RANKED, 7) == pytest.approx(pairs / (2 * 7 * counts.sum()))
    bits = [4, 3, 2, 1, 4, 4, 4]  # of 16 interactions; the last item has none, as if it had one
    assert_allclose(novelty_at_k([[0], [1]], [0.75, 0.25], average=False), np.log2([4 / 3, 4]))
    novelty = novelty_at_k(RANKED, [1, 2, 4, 8, 1, 0, 0], average=False)
    expected = [np.mean([bits[item] for item in row if item >= 0]) for row in RANKED]
    assert_allclose(novelty, expected)


def with_stored_zeros(matrix):
    rows, columns = np.indices(matrix.shape)
    return sparse.coo_array((matrix.ravel(), (rows.ravel(), columns.ravel())), shape=matrix.shape)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, with_stored_zeros])
def test_diversity_is_the_mean_over_pairs(kind, monkeypatch):
    monkeypatch.setattr(metrics._hits, "_USERS_AT_ONCE", 2)
    vectors = np.random.default_rng(0).normal(size=(7, 3))
    vectors[6] = 0
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    ranked = np.vstack([RANKED, [[-1, 3, -1, -1]], [[-1] * 4]])
    expected = []
    for row in ranked:
        items = row[row >= 0]
        pairs = [1 - units[i] @ units[j] for i in items for j in items if i < j]
        expected.append(np.mean(pairs) if pairs else NAN)
    given = kind(vectors)
    found = diversity_at_k(ranked, given, average=False)
    assert_allclose(found, expected, rtol=1e-12)
    assert diversity_at_k(ranked, given) == pytest.approx(np.nanmean(expected))
    assert_array_equal(given.toarray() if sparse.issparse(given) else given, vectors)


def test_lists_that_are_too_short():
    empty = [[-1, -1]]
    assert coverage_at_k(empty, 3) == 0
    for metric in (gini, lambda ranked, _: novelty_at_k(ranked, [1, 2, 3])):
        with pytest.raises(ValueError, match="ranked holds no"):
            metric(empty, 3)
    with pytest.raises(ValueError, match="no user with two items"):
        diversity_at_k([[1]], np.eye(3))
    report = ranking_report(np.eye(3)[:1], empty, item_counts=[1, 2, 3], item_vectors=np.eye(3))
    undefined = {name for name, value in report.items() if np.isnan(value)}
    assert undefined == {"gini@2", "novelty@2", "diversity@2"}


def malformed(n):
    """Return a sparse matrix with an index out of range, which compiled code would follow."""
    matrix = sparse.bsr_array(np.eye(n))
    matrix.indices[0] = 10**6
    return matrix


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: coverage_at_k(RANKED, 4), ValueError, "ranked holds 6, but there are 4 items"),
        (lambda: coverage_at_k(RANKED, 7.0), TypeError, "n_items=7.0 must be an integer"),
        (lambda: gini(RANKED, 7, 5), ValueError, "k=5, but ranked has 4 columns"),
        (lambda: gini([[1, 1]], 7), ValueError, "ranked names item 1 twice in row 0"),
        (lambda: novelty_at_k(RANKED, np.zeros(7)), ValueError, "item_counts are all 0"),
        (lambda: novelty_at_k(RANKED, np.ones((7, 1))), ValueError, "item_counts must be one-dim"),
        (lambda: diversity_at_k(RANKED, np.ones(7)), ValueError, "item_vectors must be a matrix"),
        (lambda: diversity_at_k(RANKED, np.ones((7, 0))), ValueError, "of one column or more"),
        (lambda: diversity_at_k(RANKED, [["a"]] * 7), TypeError, "item_vectors holds <U1"),
        (lambda: diversity_at_k(RANKED, [[NAN]] * 7), ValueError, "item_vectors holds NaN"),
        (lambda: diversity_at_k(RANKED, malformed(7)), ValueError, "item_vectors holds the column"),
        (
            lambda: ranking_report(RELEVANT, RANKED, item_vectors=np.eye(8)),
            ValueError,
            "item_vectors has 8 rows, but there are 7 items",
        ),
    ],
)
def test_errors_of_lists(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_report_needs_a_k():
    with pytest.raises(ValueError, match="k is empty"):
        ranking_report(RELEVANT, RANKED, [])


def test_public_names():
    assert set(metrics.__all__) <= set(dir(metrics))
    assert {f.__name__ for f in RANKING_METRICS.values()} <= set(metrics.__all__)


def test_normalized_entropy_worked_example():
    y, proba = [0, 0, 0, 1], [0.1, 0.1, 0.1, 0.7]
    loss = -(3 * math.log(0.9) + math.log(0.7)) / 4
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert normalized_entropy(y, proba) == pytest.approx(loss / entropy)
    assert isinstance(normalized_entropy(y, proba), float)


def test_normalized_entropy_equals_log_loss_by_entropy():
    rng = np.random.default_rng(0)
    y, weight = rng.integers(0, 2, 200), rng.random(200)
    proba = rng.random(200)
    rate = np.average(y, weights=weight)
    base = log_loss(y, np.full(200, rate), sample_weight=weight)
    expected = log_loss(y, proba, sample_weight=weight) / base
    both = np.column_stack([1 - proba, proba])
    names = np.array(["click" if clicked else "Ad" for clicked in y])
    for labels in (y, y == 1, 2 * y - 1, names, y[:, None].ravel().tolist()):
        for probabilities in (proba, both, proba.tolist()):
            result = normalized_entropy(labels, probabilities, sample_weight=weight)
            assert result == pytest.approx(expected)
    assert normalized_entropy(y, np.full(200, rate), weight) == pytest.approx(1)
    assert normalized_entropy(np.repeat(y, 2), np.repeat(proba, 2)) == pytest.approx(
        normalized_entropy(y, proba)
    )


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, bool])
def test_normalized_entropy_of_certainty_is_finite(kind):
    y = np.array([0, 1, 1])
    assert 0 <= normalized_entropy(y, y.astype(kind)) < 1e-5
    wrong = normalized_entropy(y, (1 - y).astype(kind))
    eps = np.finfo(kind if np.dtype(kind).kind == "f" else np.float64).eps
    expected = -math.log(eps) / normalized_entropy_base(2 / 3)
    assert wrong == pytest.approx(expected, rel=1e-6)


def normalized_entropy_base(rate):
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"y_true": [0, 1]}, "inconsistent numbers of samples"),
        ({"y_true": [0, 0, 0]}, r"y_true holds 1 class\(es\)"),
        ({"y_true": [0, 1, 2]}, r"y_true holds 3 class\(es\)"),
        ({"y_proba": [0.1, 0.5, 1.5]}, "y_proba lies between 0.1 and 1.5"),
        ({"y_proba": [0.1, 0.5, NAN]}, "y_proba lies between nan"),
        ({"y_proba": np.ones((3, 3)) / 3}, r"y_proba must have the shape .* got \(3, 3\)"),
        ({"sample_weight": [1, 1]}, "inconsistent numbers of samples"),
        ({"sample_weight": [1, -1, 1]}, "Negative values"),
        ({"sample_weight": [0, 1, 0]}, r"y_true holds 1 class\(es\)"),
    ],
)
def test_errors_of_normalized_entropy(change, message):
    arguments = {"y_true": [0, 1, 0], "y_proba": [0.2, 0.5, 0.3], **change}
    with pytest.raises(ValueError, match=message):
        normalized_entropy(**arguments)
