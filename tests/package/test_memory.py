"""Memory of training: parts at a time, whole cache lines, and an error where a model cannot fit."""

import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from processes import python
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
    RaFMClassifier,
    initializers,
    temperatures,
)
from freqfm._input import rows as _rows
from freqfm._input import validation
from freqfm._input.rows import (
    column_sums,
    count_columns,
    row_sums,
    stack_rows,
    take_rows,
    with_values,
)
from freqfm._input.validation import canonical_csr, validate_weights
from freqfm._machine import aligned_zeros, as_aligned, check_room
from freqfm.backends.cpu import team
from freqfm.backends.cpu.fm import prepared
from freqfm.datasets import load_csr, make_interactions, save_csr
from freqfm.estimators.fm import base
from freqfm.estimators.recommenders import index, interactions
from freqfm.model_selection import _holdout, holdout_by_content, holdout_interactions
from freqfm.temperatures import AdapTau0, Snapshot

MOST = np.iinfo(np.int32).max

UNDER_A_LIMIT = """
import resource
import sys
import warnings
import numpy as np
import freqfm.estimators
from freqfm.backends.cpu import backend

warnings.simplefilter("ignore")  # of fewer threads
X = np.eye(40)
model = getattr(freqfm, sys.argv[1])(max_iter=1, random_state=0)
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmSize")]
limit = 1024 * int(line.split()[1]) + (int(sys.argv[2]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    model.fit(["a b c d"] * 40 if sys.argv[1] == "Word2Vec" else X, X[:, 0])
    print("fitted")
except MemoryError as error:
    print(error)
"""


def wide(n_columns):
    """Return a matrix with a few entries in the first and the last column."""
    columns = np.array([0, n_columns - 1, 0, n_columns - 1])
    return sparse.csr_array((np.ones(4), ([0, 0, 1, 2], columns)), shape=(3, n_columns))


@pytest.mark.parametrize(
    "model, what",
    [
        (FastVAERecommender(), "vectors of 2147483647 items, 265 numbers each, would take"),
        (MFRecommender(), "n_components=128 for 3 users and 2147483647 items would take"),
        (ALSRecommender(), "n_components=64 for 3 users and 2147483647 items would take"),
        (FMRegressor(), "16 factors and a weight for each of 2147483647 features would take"),
        (RaFMClassifier(), "8 factors and a weight for each of 2147483647 features would take"),
    ],
)
def test_models_that_cannot_fit_are_refused(model, what, monkeypatch):
    monkeypatch.setattr(validation, "physical_memory", lambda: 1 << 34)
    tracemalloc.start()
    with pytest.raises(ValueError, match=what):
        model.fit(wide(MOST), [0, 1, 1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_items_that_a_model_cannot_grow_to_are_refused(cls, monkeypatch):
    model = cls(4, max_iter=1, random_state=0, n_jobs=1).fit(wide(5))
    monkeypatch.setattr(validation, "physical_memory", lambda: 1 << 34)
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"{MOST} items.* GB of memory at least"):
        model.partial_fit(wide(MOST))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6 and model.n_features_in_ == len(model.item_factors_) == 5


@pytest.mark.parametrize(
    "model",
    [
        FMClassifier(10**15),
        MFRecommender(10**15),
        ALSRecommender(10**15),
        FastVAERecommender(10**15),
    ],
)
def test_absurd_sizes_are_refused(model):
    with pytest.raises(ValueError, match="GB of memory at least, but this machine has"):
        model.fit(wide(5), [0, 1, 1])


def test_unknown_memory_is_no_limit(monkeypatch):
    monkeypatch.delattr(validation.os, "sysconf", raising=False)
    assert validation.physical_memory() is None
    MFRecommender(2, max_iter=1).fit(wide(5))


@pytest.mark.parametrize("limit, expected", [(f"{1 << 20}\n", 1 << 20), ("max\n", None)])
def test_memory_is_that_of_the_container(limit, expected, tmp_path, monkeypatch):
    path = tmp_path / "memory.max"
    monkeypatch.setattr(validation, "_LIMITS", (tmp_path / "none", path))
    unlimited = validation.physical_memory()
    path.write_text(limit)
    if expected is None or unlimited is None:
        assert validation.physical_memory() == unlimited
    else:
        # Swap is not limited by it.
        assert expected <= validation.physical_memory() < unlimited


@pytest.fixture
def parts(monkeypatch):
    """Let large matrices be looked at in parts of some entries."""
    monkeypatch.setattr(_rows, "_ENTRIES", 7)


def test_parts_make_no_difference(parts, clicks, monkeypatch):
    X = canonical_csr(clicks[0])
    dense = X.toarray()
    rows = np.random.default_rng(0).permutation(60)[:41]
    weight = np.random.default_rng(1).random(60)
    taken = take_rows(X, rows)
    assert_array_equal(taken.toarray(), dense[rows])
    assert (taken.indices.dtype, taken.indptr.dtype) == (np.int32, np.int64)
    assert take_rows(X, rows[:0]).shape == (0, 12)
    assert_array_equal(count_columns(X), (dense != 0).sum(axis=0))
    of_entries = np.repeat(weight, np.diff(X.indptr))
    # Bitwise.
    expected = np.bincount(X.indices, weights=of_entries, minlength=12)
    assert_array_equal(count_columns(X, weight), expected)
    expected = np.bincount(
        taken.indices, weights=np.repeat(weight[rows], np.diff(taken.indptr)), minlength=12
    )
    assert_array_equal(count_columns(X, weight, rows), expected)
    assert_array_equal(count_columns(X, validate_weights(None, X)), (dense != 0).sum(axis=0))
    monkeypatch.setattr(prepared, "_ROWS", 4)
    packed = [(rows, taken, weight[rows]), (None, X, weight)]
    for given, wanted, of_rows in packed:
        samples, entries = prepared.pack_rows(X, weight, given)
        assert_array_equal(samples["start"], wanted.indptr)
        assert_array_equal(samples["weight"][:-1], of_rows.astype(np.float32))
        assert_array_equal(entries["token"][:-1], wanted.indices)
        assert_array_equal(entries["value"][:-1], wanted.data)


def test_sums_are_of_float64_in_any_parts(monkeypatch):
    X = sparse.csr_array(sparse.random(40, 30, 0.2, random_state=0, dtype=np.float32))
    X.data[::2] = 1e8  # float32 has no place for the other values beside it
    X.data[X.indptr[4] : X.indptr[9]] = 0
    X.eliminate_zeros()
    rows, columns = (abs(X).astype(float).sum(axis) for axis in (1, 0))
    for size in (1 << 18, 7):
        monkeypatch.setattr(_rows, "_ENTRIES", size)
        assert_allclose(row_sums(X, abs), rows, rtol=1e-14)
        assert_allclose(column_sums(X, abs), columns, rtol=1e-14)
        assert_array_equal(column_sums(X[20:], before=column_sums(X[:20])), column_sums(X))


def test_values_are_computed_of_entries_in_any_parts(monkeypatch):
    X = sparse.csr_array(sparse.random(40, 30, 0.2, random_state=0, dtype=np.float32))
    X.data[X.indptr[4] : X.indptr[9]] = 0
    X.eliminate_zeros()
    of_rows, of_columns = (np.random.default_rng(0).random(n) for n in X.shape)
    expected = X.toarray() * of_rows[:, None] + (X.toarray() > 0) * of_columns
    for size in (1 << 18, 7, 1):
        monkeypatch.setattr(_rows, "_ENTRIES", size)
        found = with_values(X, lambda x, rows, columns: x * of_rows[rows] + of_columns[columns])
        assert_array_equal(found.toarray(), expected.astype(np.float32))
        assert (found.dtype, found.indptr.dtype) == (np.float32, np.int32)


def test_rows_of_matrices_of_several_widths_are_stacked():
    rng = np.random.default_rng(0)
    parts = [
        sparse.csr_array(sparse.random(n, m, 0.4, random_state=rng, dtype=np.float32))
        for n, m in ((3, 4), (0, 2), (2, 6), (4, 5))
    ]
    parts[2].indptr = parts[2].indptr.astype(np.int64)
    expected = np.zeros((9, 6))
    for first, part in zip((0, 3, 3, 5), parts, strict=True):
        expected[first : first + part.shape[0], : part.shape[1]] = part.toarray()
    found = stack_rows(parts)
    assert found.shape == (9, 6)
    assert_array_equal(found.toarray(), expected)
    assert stack_rows(parts[:1]) is parts[0]


def test_non_canonical_rows_are_found_in_any_part(parts):
    X = canonical_csr(sparse.random(40, 9, density=0.5, random_state=0))
    assert _rows.is_canonical(X)
    lengths = np.diff(X.indptr)
    for at in range(X.nnz):
        broken = X.copy()
        broken.data[at] = 0
        assert not _rows.is_canonical(broken)
    for at in np.setdiff1d(np.arange(1, X.nnz), X.indptr):
        broken = X.copy()
        broken.indices[at] = broken.indices[at - 1]
        assert not _rows.is_canonical(broken)
    assert lengths.max() > 1


def peak_of(call):
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "model",
    [
        MFRecommender(64, max_iter=1, random_state=0),
        *slow_params(
            [FastVAERecommender(64, max_iter=1, negative_sampler="uniform", random_state=0)]
        ),
    ],
)
def test_partial_fit_keeps_no_copy_beside_the_model_before(model):
    X = canonical_csr(sparse.random(300, 20_000, density=1e-3, random_state=0))
    model.fit(X).partial_fit(X[:20])
    size = sum(a.nbytes for a in vars(model).values() if isinstance(a, np.ndarray))
    # The copy that is trained; with another one it would be more than twice that size.
    assert peak_of(lambda: model.partial_fit(X[:20])) < 1.8 * (size + model.optimizer_state_nbytes_)


@pytest.mark.parametrize(
    "early_stopping, weighted, chosen",
    [
        (False, False, False),
        *slow_params([(False, True, False), (True, False, False)]),
        *slow_params([(True, True, False), (True, True, True)]),
    ],
)
def test_machines_use_the_documented_memory(early_stopping, weighted, chosen, monkeypatch):
    monkeypatch.setattr(_rows, "_ENTRIES", 1 << 10)
    n, n_tokens, length, batch_size = 40_000, 1_000, 10, 16
    rng = np.random.default_rng(0)
    indices = rng.integers(n_tokens // length, size=(n, length), dtype=np.int32)
    indices += np.arange(length, dtype=np.int32) * (n_tokens // length)
    indptr = np.arange(0, n * length + 1, length, dtype=np.int32)
    X = sparse.csr_array((np.ones(n * length, np.float32), indices.ravel(), indptr))
    y = np.arange(n) % 2
    # A row of weight zero is left out.
    weight = np.minimum(np.arange(n, dtype=float), 1) if weighted else None
    model = FMClassifier(
        1,
        max_iter=1,
        batch_size=batch_size,
        early_stopping=early_stopping,
        n_jobs=1,
        random_state=0,
    )
    given = {} if chosen else {"alpha_linear": 1, "alpha_factors": 5}
    model.set_params(**given).fit(X[:100], y[:100])
    per_row = (40 if early_stopping else 32) + (8 if weighted else 0)
    copies = 3 if early_stopping else 2
    said = 8 * X.nnz + per_row * n + copies * 4 * 3 * n_tokens + 16 * n_tokens
    said += 4 * 3 * n_tokens if chosen else 0
    assert peak_of(lambda: model.fit(X, y, weight)) < said + 2.5e5


def test_large_values_are_looked_for_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    X = canonical_csr(sparse.random(2_000, 50, density=0.9, random_state=0))
    X.data[:] = rng.normal(scale=20, size=X.nnz)
    X.data[X.indices != 7] = 1
    model = FMClassifier()
    with pytest.warns(UserWarning, match="1 column.s. .* column 7 with a root mean") as at_once:
        validation.warn_of_large_values(model, X)
    monkeypatch.setattr(_rows, "_ENTRIES", 1 << 10)
    with pytest.warns(UserWarning) as in_parts:
        assert peak_of(lambda: validation.warn_of_large_values(model, X)) < 4 * X.nnz + 5e4
    assert str(in_parts[0].message) == str(at_once[0].message)


def test_vectors_of_pairs_are_gathered_in_parts(monkeypatch):
    X = make_interactions(60, 50, 600, random_state=0)
    model = MFRecommender(256, max_iter=1, random_state=0).fit(X)
    rng = np.random.default_rng(0)
    users, items = rng.integers(60, size=9_000), rng.integers(50, size=9_000)
    at_once = model.predict_pairs(users, items)
    monkeypatch.setattr(index, "_PAIRS", 1 << 7)
    # The vectors of all pairs take twice 9.2 MB.
    assert peak_of(lambda: model.predict_pairs(users, items)) < 3e6
    assert_array_equal(model.predict_pairs(users, items), at_once)
    assert model.predict_pairs(users[:0], items[:0]).shape == (0,)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize(
    "loss, per_entry", [("softmax", 16), *slow_params([("bpr", 16), ("directau", 30)])]
)
def test_factorization_uses_the_documented_memory(loss, per_entry, early_stopping, monkeypatch):
    monkeypatch.setattr(_holdout, "_ENTRIES", 1 << 10)
    monkeypatch.setattr(interactions, "_VALIDATION_USERS", 100)
    monkeypatch.setattr(temperatures, "_USERS", 100)
    n, m, length, d = 2_000, 3_000, 60, 4
    rng = np.random.default_rng(0)
    indices = rng.integers(m // length, size=(n, length), dtype=np.int32)
    indices += np.arange(length, dtype=np.int32) * (m // length)
    indptr = np.arange(0, n * length + 1, length, dtype=np.int32)
    X = sparse.csr_array((np.ones(n * length, np.float32), indices.ravel(), indptr), shape=(n, m))
    sampled = {"n_negatives": 4} if loss == "softmax" else {}
    monkeypatch.setattr(_rows, "_ENTRIES", 1 << 10)
    model = MFRecommender(
        d, loss=loss, max_iter=7, batch_size=64, optimizer="sgd", early_stopping=early_stopping,
        n_jobs=1, random_state=0, **sampled,
    )  # fmt: skip
    MFRecommender(**model.get_params()).fit(X[:100])
    said = (max(per_entry + 6, 30) if early_stopping else per_entry) * X.nnz + 100 * n + 40 * m
    said += (3 if early_stopping else 2) * 4 * d * (n + m)
    assert peak_of(lambda: model.fit(X)) < said + 2e5


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_least_squares_use_the_documented_memory(weighted, early_stopping, monkeypatch):
    monkeypatch.setattr(_holdout, "_ENTRIES", 1 << 10)
    monkeypatch.setattr(interactions, "_VALIDATION_USERS", 100)
    n, m, length, d = 2_000, 3_000, 60, 4
    rng = np.random.default_rng(0)
    indices = rng.integers(m // length, size=(n, length), dtype=np.int32)
    indices += np.arange(length, dtype=np.int32) * (m // length)
    indptr = np.arange(0, n * length + 1, length, dtype=np.int32)
    values = np.full(n * length, 1 + weighted, dtype=np.float32)
    X = sparse.csr_array((values, indices.ravel(), indptr), shape=(n, m))
    model = ALSRecommender(d, max_iter=2, early_stopping=early_stopping, n_jobs=1, random_state=0)
    ALSRecommender(**model.get_params()).fit(X[:100])
    monkeypatch.setattr(_rows, "_ENTRIES", 1 << 10)
    said = (30 if early_stopping else 12 + 4 * weighted) * X.nnz + 50 * n + 60 * m
    said += (3 if early_stopping else 2) * 4 * d * (n + m)
    assert peak_of(lambda: model.fit(X)) < said + 2e5


@each(
    "model, per_entry",
    [
        (PopularityRecommender(), 4),
        (ALSRecommender(4, max_iter=1, random_state=0), 12),
        (ItemKNNRecommender(5), 20),
    ],
    slow=[
        (MFRecommender(4, loss="bpr", max_iter=1, random_state=0), 16),
        (MFRecommender(4, max_iter=1, n_negatives=4, batch_size=64, random_state=0), 16),
        (ItemKNNRecommender(5, weighting="bm25"), 20),
        (EASERecommender(n_neighbors=5), 20),
    ],
)
def test_interactions_on_disk_are_not_copied(tmp_path_factory, model, per_entry, monkeypatch):
    monkeypatch.setattr(_rows, "_ENTRIES", 1 << 10)
    monkeypatch.setattr(initializers, "_MANY", 0)  # the spectral start of many interactions
    folder = tmp_path_factory.mktemp("rows")
    X = make_interactions(2_000, 1_000, 200_000, random_state=0)
    save_csr(folder, X)
    rows = load_csr(folder, mmap=True).data
    expected = clone(model).set_params(n_jobs=1).fit(X[:100]).fit(X)  # also loads and compiles
    assert peak_of(lambda: model.set_params(n_jobs=1).fit(rows)) < per_entry * X.nnz + 4e5
    assert_array_equal(*(one.recommend(users=[1, 2])[1] for one in (model, expected)))


def test_held_out_interactions_are_chosen_part_by_part(monkeypatch):
    X = make_interactions(40, 30, 400, random_state=0)
    X.resize((45, 30))  # the last users have no items
    for hold_out in (holdout_interactions, holdout_by_content):
        seed = {"random_state": 0} if hold_out is holdout_interactions else {}
        at_once = hold_out(X, 0.3, **seed)
        with monkeypatch.context() as patch:
            patch.setattr(_holdout, "_ENTRIES", 7)  # some users have more items
            in_parts = hold_out(X, 0.3, **seed)
        for one, other in zip(at_once, in_parts, strict=True):
            assert_array_equal(one.toarray(), other.toarray())


def test_temperatures_look_at_users_part_by_part(monkeypatch):
    X = make_interactions(40, 30, 400, random_state=0)
    users, items = (
        np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32) for n in X.shape
    )
    snapshot = Snapshot(canonical_csr(X), users, items, None, X.nnz)
    temperature = AdapTau0(warm_up=0, smallest_gap=1e-6)
    at_once, in_parts = np.ones((2, 40, 2))
    temperature.refresh(0, at_once, None, snapshot)
    monkeypatch.setattr(temperatures, "_USERS", 7)
    temperature.refresh(0, in_parts, None, snapshot)
    assert_allclose(in_parts, at_once, rtol=1e-12)


def test_packed_rows_are_not_kept(log, monkeypatch):
    begun, kept, train = [], [], base.train_task

    class Watched(FMClassifier):
        def _begin(self, rows, reset):
            begun.append(weakref.ref(rows.target))
            return super()._begin(rows, reset)

    def train_task(*args):
        kept.append(begun[-1]() is not None)
        return train(*args)

    monkeypatch.setattr(base, "train_task", train_task)
    # Other penalties are tried on the same rows.
    given = {"alpha_linear": 1, "alpha_factors": 5}
    for options in ({"early_stopping": False}, {"warm_start": True, **given}):
        Watched(max_iter=1, **options).fit(*log)
    assert kept == [False, False]


def test_aligned_arrays_begin_with_a_cache_line_and_are_far_from_others():
    for shape, dtype in (((5, 3), np.float32), (7, np.int32), ((2, 4), np.float64)):
        zeros = aligned_zeros(shape, dtype)
        assert zeros.ctypes.data % 64 == 0 and zeros.dtype == dtype
        assert_array_equal(zeros, np.zeros(shape))
        before = zeros.ctypes.data - zeros.base.ctypes.data
        assert min(before, zeros.base.nbytes - before - zeros.nbytes) >= 1024
    memory = aligned_zeros(40)
    assert as_aligned(memory) is memory
    moved = as_aligned(memory[1:25].reshape(6, 4))
    assert moved.ctypes.data % 64 == 0 and moved.shape == (6, 4)
    memory[1:25] = np.arange(24)
    assert_array_equal(as_aligned(memory[1:25].reshape(6, 4)), np.arange(24).reshape(6, 4))


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["FastVAERecommender", "MFRecommender", "ALSRecommender", "DeepFMClassifier", "Word2Vec"],
)
def test_a_limit_of_memory_is_an_error_that_says_what_is_needed(name):
    """LLVM and BLAS would end the process, or wait forever."""
    assert python(UNDER_A_LIMIT, name, "3000").stdout.strip() == "fitted"
    found = []
    for megabytes in (30, 60, 90, 120, 400):
        done = python(UNDER_A_LIMIT, name, str(megabytes), timeout=100)
        assert done.returncode == 0, (megabytes, done.stderr)
        found.append(done.stdout.strip())
    assert found[-1] == "fitted"
    for message in found:
        assert message == "fitted" or " needs about " in message or "Unable to allocate" in message


def test_room_for_what_cannot_fail():
    check_room(1, "compiled code")
    with pytest.raises(MemoryError, match=r"compiled code needs about 1073741824 MB of memory"):
        check_room(1 << 30, "compiled code")


def test_a_team_without_room_for_threads_is_smaller(monkeypatch):
    monkeypatch.setattr(team, "_MEGABYTES", 1 << 30)
    monkeypatch.setattr(team, "_idle", [])
    message = r"Only 1 of 2 threads.*another thread needs about"
    with pytest.warns(UserWarning, match=message), team.Team(2) as started:
        assert started._workers == []
