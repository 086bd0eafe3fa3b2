"""The best items of every query against a reference; ties, exclusions, candidates, threads."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm._machine import single_threaded_blas
from freqfm._numba.jit import JIT_DISABLED
from freqfm.backends.base import Exclusions
from freqfm.backends.cpu import topk
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.topk import (
    _AS_STORED,
    BLOCK,
    TILE_ITEMS,
    Best,
    Parts,
    Scores,
    Scratch,
    rank_items,
)
from freqfm.formulas.selection import item_of, number_of, score_of
from freqfm.metrics import _hits as _ranking


def top_k(queries, items, k, **options):
    """Rank vectors and items that may be given as lists."""
    arrays = {
        name: value if sparse.issparse(value) else np.asarray(value, dtype=int)
        for name, value in options.items()
        if name in ("candidates", "exclude_for_all")
    }
    if "exclude" in options:
        arrays["exclude"] = sparse.csr_array(options["exclude"])
    return _ranking.top_k(np.asarray(queries), np.asarray(items), k, **{**options, **arrays})


def reference_top_k(queries, items, k, exclude=None, candidates=None, exclude_for_all=()):
    """All scores in float64, sorted one query after the other."""
    scores = np.asarray(queries, dtype=np.float64) @ np.asarray(items, dtype=np.float64).T
    if exclude is not None:
        scores[sparse.csr_array(exclude).toarray() != 0] = np.nan
    if candidates is not None:
        others = np.ones(len(items), dtype=bool)
        others[candidates] = False
        scores[:, others] = np.nan
    scores[:, list(exclude_for_all)] = np.nan
    found = np.full((len(scores), k), -1)
    best = np.full((len(scores), k), -np.inf)
    for r, row in enumerate(scores):
        # A stable sort leaves equal scores in the order of their items.
        order = np.argsort(-row, kind="stable")
        order = order[row[order] > -np.inf][:k]
        found[r, : len(order)] = order
        best[r, : len(order)] = row[order]
    return found, best


def whole_numbers(rng, *shape):
    """Factors whose products are exact in float32, so that ties are ties."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def random_exclusions(rng, n, m, share=0.3):
    return sparse.csr_array((rng.random((n, m), dtype=np.float32) < share).astype(float))


def assert_same(result, expected):
    assert result[0].dtype == np.int32
    assert result[1].dtype == np.float32
    assert_array_equal(result[0], expected[0])
    assert_array_equal(result[1], expected[1])


@pytest.mark.parametrize("k", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "n, m, d",
    [
        (1, 1, 1),
        (1, 700, 3),
        (3, BLOCK, 2),
        (5, BLOCK + 1, 4),
        (64, TILE_ITEMS, 3),
        (65, TILE_ITEMS + 1, 3),
        (130, 2 * TILE_ITEMS - 1, 5),
        (71, TILE_ITEMS + 65, 33),
        (66, 130, 32),
    ],
)
def test_equals_the_reference(n, m, d, k):
    rng = np.random.default_rng([n, m, k])
    queries, items = whole_numbers(rng, n, d), whole_numbers(rng, m, d)
    exclude = random_exclusions(rng, n, m)
    candidates = np.flatnonzero(rng.random(m) < 0.7)
    for options in (
        {},
        {"exclude": exclude},
        {"candidates": candidates},
        {"exclude": exclude, "candidates": candidates},
        {"exclude": exclude, "exclude_for_all": range(0, m, 3)},
    ):
        result = top_k(queries, items, k, **options)
        assert_same(result, reference_top_k(queries, items, k, **options))


def test_large_random_problem():
    rng = np.random.default_rng(0)
    n, m, d = (150, 700, 8) if JIT_DISABLED else (500, 5000, 48)
    queries = rng.standard_normal((n, d), dtype=np.float32)
    items = rng.standard_normal((m, d), dtype=np.float32)
    exclude = random_exclusions(rng, n, m, 0.05)
    found, scores = top_k(queries, items, 50, exclude=exclude)
    _, best = reference_top_k(queries, items, 50, exclude)
    # Rounding may swap neighbours of nearly the same score.
    assert_allclose(scores, best, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()
    exact = queries.astype(float) @ items.T.astype(float)
    assert_allclose(np.take_along_axis(exact, found, axis=1), best, atol=1e-4)
    assert not exclude.toarray()[np.arange(n)[:, None], found].any()
    assert all(len(set(row)) == 50 for row in found.tolist())


@pytest.mark.parametrize("unit_columns", [0, 30, 37])
@pytest.mark.parametrize("n", [2, 60])
def test_queries_have_the_same_result_alone_and_together(n, unit_columns):
    rng = np.random.default_rng(n)
    queries = rng.standard_normal((n, 37), dtype=np.float32)
    items = rng.standard_normal((1200, 37), dtype=np.float32)
    # Scores that differ by no more than rounding, four at a time: the last place is one of four.
    items[300:] = items[np.arange(900) % 300] * (1 + 1e-7 * rng.standard_normal((900, 37)))
    queries *= np.exp(3 * rng.standard_normal((n, 1))).astype(np.float32)
    if n == 60:
        queries[::2] *= np.float32(1e-25)  # whose squares are zero
    found, scores = top_k(queries, items, 18, unit_columns=unit_columns)
    for i in range(n):
        alone = top_k(queries[i : i + 1], items, 18, unit_columns=unit_columns)
        assert_array_equal(found[i], alone[0][0])
        assert_array_equal(scores[i], alone[1][0])


@pytest.mark.parametrize("unit_columns", [0, 3, 6])
@pytest.mark.parametrize("n", [70] if JIT_DISABLED else [70, 700])
def test_items_by_descending_length(monkeypatch, n, unit_columns):
    rng = np.random.default_rng(n)
    queries, items = whole_numbers(rng, n, 6), whole_numbers(rng, 1500, 6)
    # Many ties, also among the long ones, some of which nobody may get; a few of length zero.
    items[rng.random(1500) < 0.02] *= 16
    items[rng.random(1500) < 0.02] = 0
    items[:40, :unit_columns] = 0
    queries[5] = 0
    options = {
        "exclude": random_exclusions(rng, n, 1500, 0.1),
        "exclude_for_all": rng.choice(1500, 400, replace=False),
        "unit_columns": unit_columns,
    }
    expected = top_k(queries, items, 30, **options, n_threads=1)
    if not unit_columns:
        plain = {name: of for name, of in options.items() if name != "unit_columns"}
        assert_same(expected, reference_top_k(queries, items, 30, **plain))
    orders = []
    monkeypatch.setattr(topk, "_MANY_IN_ORDER", 1)
    monkeypatch.setattr(topk, "_ROWS_OF_FEW", 32)
    in_order = topk._in_order

    def recorded(*args):
        orders.append(in_order(*args)[0].order)
        return in_order(*args)

    monkeypatch.setattr(topk, "_in_order", recorded)
    for n_threads in (1, 2):
        for k in [30] if JIT_DISABLED else [30, 1500]:
            result = top_k(queries, items, k, **options, n_threads=n_threads)
            assert_same([of[:, :30] for of in result], expected)
    assert {len(order) for order in orders} == {0 if unit_columns == 6 else 1100}


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_items_without_a_length_stay_in_order(monkeypatch, value, at):
    rng = np.random.default_rng(0)
    items = (rng.standard_normal((900, 4)) * rng.lognormal(0, 1, (900, 1))).astype(np.float32)
    queries = rng.standard_normal((70, 4), dtype=np.float32)
    queries[3] *= np.float32(1e25)
    items[at] = value
    expected = top_k(queries, items, 9)
    monkeypatch.setattr(topk, "_MANY_IN_ORDER", 1)
    assert_same(top_k(queries, items, 9), expected)


@pytest.mark.parametrize("scale", [1e-18, 1e-10, 1e10, 1e18])
def test_vectors_of_any_length(scale):
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((3, 8))
    items = np.float32(scale * rng.standard_normal((900, 8)))
    found, scores = top_k(queries, items, 900)
    exact = np.take_along_axis(queries @ items.T.astype(float), found, axis=1)
    assert_allclose(scores, exact, rtol=1e-4, atol=1e-5 * scale)
    assert all(sorted(row) == list(range(900)) for row in found.tolist())


def test_ties_fall_to_the_smaller_index():
    m = TILE_ITEMS + 100
    found, scores = top_k(np.ones((3, 2)), np.ones((m, 2)), 9)
    assert_array_equal(found, np.tile(np.arange(9), (3, 1)))
    assert_array_equal(scores, np.full((3, 9), 2))
    # Better items come last, and displace the last of the equal ones.
    items = np.ones((m, 1))
    items[[m - 1, m - 5]] = 2
    found, _ = top_k([[1.0]], items, 4)
    assert_array_equal(found, [[m - 5, m - 1, 0, 1]])
    found, _ = top_k([[-1.0]], items, 4)
    assert_array_equal(found, [[0, 1, 2, 3]])


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_sorted_items(order):
    # The most and the fewest replacements there can be.
    m = 3 * TILE_ITEMS
    items = np.arange(m, dtype=float)[:: 1 if order == "rising" else -1, None]
    found, scores = top_k([[1.0]], items, 20)
    best = np.arange(m - 1, m - 21, -1)
    assert_array_equal(scores[0], best)
    assert_array_equal(found[0], best if order == "rising" else m - 1 - best)


@pytest.mark.skipif(JIT_DISABLED, reason="plain Python has teams of one only")
@pytest.mark.parametrize("n, m, d", [(600, 1500, 37), (8300, 600, 8), (2100, 600, 37)])
def test_bitwise_reproducible_for_any_number_of_threads(monkeypatch, n, m, d):
    teams = []
    monkeypatch.setattr(topk, "Team", lambda size: teams.append(size) or Team(size))
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((n, d), dtype=np.float32)
    items = rng.standard_normal((m, d), dtype=np.float32)
    exclude = random_exclusions(rng, n, m, 0.1)
    # Among these are items with which tiles begin.
    exclusions = {"exclude": exclude, "exclude_for_all": range(0, m, 4)}
    results = [top_k(queries, items, 30, **exclusions, n_threads=s) for s in (1, 2, 3, 7)]
    assert teams == [1, 2, 3, 7]
    for found, scores in results[1:]:
        assert_array_equal(found, results[0][0])
        assert_array_equal(scores.view(np.int32), results[0][1].view(np.int32))
    assert_array_equal(top_k(queries, items, 30, **exclusions)[0], results[0][0])


def test_small_problems_use_one_thread(monkeypatch):
    teams = []
    monkeypatch.setattr(topk, "Team", lambda size: teams.append(size) or Team(size))
    top_k(np.ones((300, 2)), np.ones((9, 2)), 2, n_threads=4)
    assert teams == [1]


def test_threads_beyond_the_rows_have_nothing_to_do():
    rng = np.random.default_rng(0)
    queries, items = whole_numbers(rng, 10, 3), whole_numbers(rng, 70, 3)
    best = Best(np.empty((10, 5), dtype=np.int32), np.empty((10, 5), dtype=np.float32))
    none = np.zeros(0, dtype=np.int32)
    scratch = Scratch.of(3, 4, 0, 3, 5)
    for n_queries in (10, 4, 1):
        found, scores = (array[:n_queries] for array in best)
        excluded = Exclusions(np.zeros(n_queries + 1, dtype=np.int64), none, none)
        with single_threaded_blas(), Team(3) as team:
            team.run(
                rank_items, Scores(queries[:n_queries], items, *_AS_STORED, 0), excluded,
                Parts(4, 1), scratch, Best(found, scores),
            )  # fmt: skip
        expected = reference_top_k(queries[:n_queries], items, 5)
        assert_same((found, scores), expected)


def test_scores_that_are_not_finite():
    items = np.float32([[np.nan], [1], [np.inf], [-np.inf], [-2], [np.inf], [np.nan]])
    found, scores = top_k([[1.0]], items, 6)
    assert_array_equal(found, [[2, 5, 1, 4, -1, -1]])
    assert_array_equal(scores, [[np.inf, np.inf, 1, -2, -np.inf, -np.inf]])
    found, scores = top_k([[np.nan]], items, 2)
    assert_array_equal(found, [[-1, -1]])
    assert_array_equal(scores, [[-np.inf, -np.inf]])
    with np.errstate(over="ignore"):
        found, _ = top_k(np.float32([[3e38, 3e38]]), np.float32([[-3e38, 0], [1, 0], [0, 9]]), 3)
    assert_array_equal(found, [[2, 1, -1]])


def test_numbers_are_ordered_as_scores_and_items():
    scores = np.float32([-np.inf, -3e38, -1, -1e-45, -0.0, 0, 1e-45, 1, 3e38, np.inf])
    numbers = [number_of(score, item) for score in scores for item in (2**31 - 1, 7, 0, -1)]
    # Both zeros are equal.
    assert numbers[16:20] == numbers[20:24]
    del numbers[16:20]
    assert (np.diff(np.array(numbers, dtype=object)) > 0).all()
    assert_array_equal([score_of(number) for number in numbers[::4]], np.delete(scores, 4))
    assert [item_of(number) for number in numbers[:4]] == [2**31 - 1, 7, 0, -1]


def test_more_places_than_items():
    found, scores = top_k([[1.0], [-1.0]], [[1.0], [3.0], [2.0]], 5, exclude=[[0, 1, 0], [0, 0, 0]])
    assert_array_equal(found, [[2, 0, -1, -1, -1], [0, 2, 1, -1, -1]])
    assert_array_equal(scores[0], [2, 1, -np.inf, -np.inf, -np.inf])
    found, _ = top_k([[1.0]], [[1.0], [3.0], [2.0]], 3, exclude=[[1, 0, 0]], candidates=[0, 2])
    assert_array_equal(found, [[2, -1, -1]])


def test_nothing_to_rank():
    found, scores = top_k(np.ones((0, 3)), np.ones((5, 3)), 2)
    assert found.shape == scores.shape == (0, 2)
    for options in (
        {"candidates": []},
        {"exclude": np.ones((2, 5))},
    ):
        found, scores = top_k(np.ones((2, 3)), np.ones((5, 3)), 2, **options)
        assert_array_equal(found, np.full((2, 2), -1))
        assert_array_equal(scores, np.full((2, 2), -np.inf))
    found, _ = top_k(np.ones((2, 3)), np.ones((0, 3)), 1, exclude=sparse.csr_array((2, 0)))
    assert_array_equal(found, [[-1], [-1]])


def test_candidates_are_a_set():
    items = [[5.0], [4.0], [3.0], [2.0]]
    for candidates in (
        [3, 1, 3],
        (1, 3),
    ):
        found, scores = top_k([[1.0]], items, 3, candidates=candidates)
        assert_array_equal(found, [[1, 3, -1]])
        assert_array_equal(scores, [[4, 2, -np.inf]])


def test_layouts_give_the_same_result():
    rng = np.random.default_rng(0)
    queries, items = whole_numbers(rng, 4, 3), whole_numbers(rng, 90, 3)
    exclude = random_exclusions(rng, 4, 90)
    expected = reference_top_k(queries, items, 6, exclude)
    frozen = items.copy()
    frozen.flags.writeable = False
    unsorted = exclude.copy()
    for r in range(4):
        row = slice(*unsorted.indptr[r : r + 2])
        unsorted.indices[row] = unsorted.indices[row][::-1].copy()
    unsorted.has_sorted_indices = False
    zeros = sparse.csr_array(np.ones((4, 90)))
    zeros.data[:] = exclude.toarray().ravel()
    before = [a.copy() for a in (queries, items, exclude.data, exclude.indices)]
    for q in (queries, queries.astype(np.float64), np.asfortranarray(queries), queries.tolist()):
        assert_same(top_k(q, items, 6, exclude=exclude), expected)
    for v in (np.asfortranarray(items), frozen, np.repeat(items, 2, axis=0)[::2], items.tolist()):
        assert_same(top_k(queries, v, 6, exclude=exclude), expected)
    for e in (
        unsorted,
        zeros,
        exclude.tocsc(),
        exclude.tocoo(),
        exclude.tolil(),
        exclude != 0,
        sparse.csr_matrix(exclude),
        exclude.toarray(),
    ):
        assert_same(top_k(queries, items, 6, exclude=e), expected)
    after = queries, items, exclude.data, exclude.indices
    for one, other in zip(before, after, strict=True):
        assert_array_equal(one, other)


def test_single_rows_of_any_stride():
    # numpy takes a column, transposed, for contiguous: the stride of its only row is 4 bytes.
    rng = np.random.default_rng(0)
    column = whole_numbers(rng, 6, 1)
    items = whole_numbers(rng, 50, 6)
    assert column.T.flags.c_contiguous
    assert_same(top_k(column.T, items, 4), reference_top_k(column.T, items, 4))
    assert_same(top_k(items, column.T, 4), reference_top_k(items, column.T, 4))
    only = top_k(items, items, 2, candidates=[17])
    assert_same(only, reference_top_k(items, items, 2, candidates=[17]))


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_one_signature():
    top_k([[1]], np.ones((3, 1)), np.int64(2), exclude=sparse.csc_array(np.eye(1, 3)))
    top_k(np.ones((2, 1), dtype=np.float16), np.ones((3, 1)), 2, candidates=[0, 2])
    assert len(rank_items.signatures) == 1
