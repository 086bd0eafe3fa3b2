"""Top k, folding in and sums of histories on an emulated GPU, compared with NumPy."""

import numpy as np
import pytest
from custom_components import CustomBPR
from emulated_gpu import EmulatedDevice
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse

from freqfm import MFRecommender, backends
from freqfm.backends.base import Exclusions, FoldInProblem, Histories
from freqfm.backends.cuda import topk
from freqfm.backends.cuda.backend import CUDABackend

pytestmark = pytest.mark.slow  # compiles or emulates many combinations


def on_grids(n_lanes):
    """Return backends of different grids, whose results must have the same bits."""
    return [CUDABackend(EmulatedDevice(size, seed, n_lanes)) for size, seed in [(3, 0), (16, 1)]]


def assert_agree(operation, *args, n_lanes=1):
    """Return the results of NumPy and of emulated GPUs; the latter have the same bits."""
    expected = getattr(NumpyBackend(), operation)(*args)
    found = [getattr(backend, operation)(*args) for backend in on_grids(n_lanes)]
    expected, *found = [r if isinstance(r, tuple) else (r,) for r in (expected, *found)]
    for one, other, wanted in zip(*found, expected, strict=True):
        assert_array_equal(one, other)
        assert one.shape == wanted.shape and one.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert_array_equal(one, wanted)
    return found[0]


def some(n_queries=7, n_items=90, width=5):
    generator = np.random.default_rng(0)
    queries, items = (
        generator.normal(size=(n, width)).astype(np.float32) for n in (n_queries, n_items)
    )
    # Equal scores, scores of both zeros, and none.
    items[40:50] = items[3]
    items[60:63] = [[0], [-0.0], [np.nan]]
    queries[-1] = 0
    return queries, items


def exclusions(n_queries, n_items):
    generator = np.random.default_rng(1)
    excluded = [np.flatnonzero(generator.random(n_items) < 0.3) for _ in range(n_queries)]
    excluded[2] = np.arange(n_items)
    indptr = np.cumsum([0, *map(len, excluded)])
    indices = np.concatenate(excluded).astype(np.int32)
    return Exclusions(indptr, indices, np.array([3, 17], dtype=np.int32))


@pytest.mark.parametrize("k", [1, 4, 33, 90])
@pytest.mark.parametrize("unit_columns", [0, 3])
def test_top_k_agrees(k, unit_columns):
    queries, items = some()
    excluded = exclusions(7, 90)
    found, _ = assert_agree("top_k", queries, items, k, excluded, unit_columns, 1)
    assert found.shape == (7, k)
    assert (found[2] == -1).all()  # all items are excluded
    for q, row in enumerate(found):
        assert not np.isin(row, excluded.indices[excluded.indptr[q] : excluded.indptr[q + 1]]).any()


def test_parts_of_queries_and_items_do_not_matter(monkeypatch):
    queries, items = some(n_items=400)
    whole = CUDABackend(EmulatedDevice()).top_k(queries, items, 9, exclusions(7, 400), 0, 1)
    monkeypatch.setattr(topk, "_SCORES", 1200)
    monkeypatch.setattr(topk, "_SLICE", 50)
    parts = assert_agree("top_k", queries, items, 9, exclusions(7, 400), 0, 1)
    for one, other in zip(parts, whole, strict=True):
        assert_array_equal(one, other)


def test_buffers_overflow():
    # Scores rise, so that every item is better than those before.
    items = np.arange(300, dtype=np.float32)[:, None]
    nothing = Exclusions(np.zeros(2, dtype=int), *np.zeros((2, 0), dtype=np.int32))
    found, _ = assert_agree("top_k", np.ones((1, 1), dtype=np.float32), items, 5, nothing, 0, 1)
    assert_array_equal(found, [[299, 298, 297, 296, 295]])


@pytest.mark.parametrize(
    "n_queries, n_items, k", [(2000, 3, 2), (40, 600, 600), (3, 20_000, 900)], ids=str
)
def test_buffers_take_no_more_memory_than_scores(monkeypatch, n_queries, n_items, k):
    monkeypatch.setattr(topk, "_SCORES", 1 << 14)
    sizes = {}

    class Counting(EmulatedDevice):
        """A device that notes how large arrays are."""

        def empty(self, shape, dtype):
            """Return an array."""
            array = super().empty(shape, dtype)
            sizes[np.dtype(dtype)] = max(sizes.get(np.dtype(dtype), 0), array.nbytes)
            return array

    queries, items = np.ones((n_queries, 1), np.float32), np.ones((n_items, 1), np.float32)
    nothing = Exclusions(np.zeros(n_queries + 1, dtype=int), *np.zeros((2, 0), dtype=np.int32))
    found, _ = CUDABackend(Counting()).top_k(queries, items, k, nothing, 0, 1)
    assert (found == np.arange(k)).all()
    # A query takes one buffer at least.
    assert sizes[np.dtype(np.int64)] <= max(4 * topk._SCORES, 8 * 4 * k)


def histories():
    generator = np.random.default_rng(2)
    X = generator.choice([0.5, 1, 2], (12, 9)) * (generator.random((12, 9)) < 0.4)
    X[5] = 0
    X = sparse.csr_array(X.astype(np.float32))
    return X.indptr, X.indices, X.data


# With little inertia some steps are undone.
@pytest.mark.parametrize("inertia", [3.0, 0.05])
@pytest.mark.parametrize("pairwise", [False, True])
def test_folding_in_agrees(pairwise, inertia):
    generator = np.random.default_rng(0)
    items, others = (generator.normal(size=(n, 4)).astype(np.float32) for n in (9, 5))
    problem = FoldInProblem(
        items, others, pairwise, positive=1.5, inverse=2.0, constant=1.2, inertia=inertia,
        largest_rise=1e-4, n_steps=4,
    )  # fmt: skip
    (vectors,) = assert_agree("fold_in", problem, histories(), 1)
    assert_array_equal(vectors[5], 0)
    if pairwise:
        assert_agree("fold_in", problem, histories(), 1, CustomBPR().replacements())


def test_lanes_choose_and_fold_in_together(monkeypatch):
    queries, items = some(3, 100)
    monkeypatch.setattr(topk, "_SLICE", 30)
    found, _ = assert_agree("top_k", queries, items, 5, exclusions(3, 100), 3, 1, n_lanes=4)
    assert (found[:2] >= 0).all() and (found[2] == -1).all()
    for pairwise in (False, True):
        terms = 1.5, 2.0, 1.2, 3.0, 1e-4
        problem = FoldInProblem(items[:9], items[9:20], pairwise, *terms, n_steps=2)
        (vectors,) = assert_agree("fold_in", problem, histories(), 1, n_lanes=4)
        assert np.isfinite(vectors).all() and not vectors[5].any()


def test_sums_of_histories_agree():
    table = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    (sums,) = assert_agree("sum_histories", Histories(*histories()), table, 1)
    X = sparse.csr_array(histories()[::-1], shape=(12, 9))
    assert_allclose(sums, X @ table, rtol=1e-5, atol=1e-6)


def test_recommenders_serve_from_the_gpu(monkeypatch):
    device = EmulatedDevice()
    X = sparse.random(10, 20, 0.3, format="csr", dtype=np.float32, random_state=0)
    model = MFRecommender(4, loss="bpr", max_iter=1, random_state=0, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(backends, "get", lambda device="cpu": NumpyBackend())
        model.fit(X)
        expected = [model.recommend(X)[0], model.similar_items([3])[0], model.transform(X)]
    monkeypatch.setattr(backends, "_cuda", lambda number: CUDABackend(device))
    found = [model.recommend(X)[0], model.similar_items([3])[0], model.transform(X)]
    assert {phases[0].__name__ for phases, _ in device.launches} >= {"score_part", "fold_in_rows"}
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=1e-4)
