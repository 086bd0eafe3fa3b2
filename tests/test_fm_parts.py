"""The operations of a factorization machine one by one: scores, and gradients for any head."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import FMClassifier, FMRegressor, backends
from freqfm._validation import canonical_csr
from freqfm.backends.base import Backend, FMWeights
from freqfm.backends.cpu import labels as cpu_labels
from freqfm.optimizers import SGD

BACKEND = backends.get("cpu")


@pytest.fixture
def many_threads(monkeypatch):
    """Let few entries be worth a thread."""
    monkeypatch.setattr(cpu_labels, "_PER_THREAD", 1)


@pytest.mark.parametrize(
    "indices", [[], [7], [0, 63, 64, 127, 128, 499], np.arange(500)[::-1], np.arange(999) ** 2 % 83]
)
@pytest.mark.parametrize("n_features, n_threads", [(500, 1), (500, 3), (10**7, 1)])
def test_tokens_get_labels(indices, n_features, n_threads, many_threads):
    indices = np.asarray(indices, dtype=np.int32)
    found = BACKEND.label_tokens(indices, n_features, n_threads)
    assert_array_equal(found[0][found[1]], indices)
    expected = Backend.label_tokens(BACKEND, indices, n_features, 1)
    for array, of_unique in zip(found, expected, strict=True):
        assert array.dtype == np.int32
        assert_array_equal(array, of_unique)


def test_rows_of_tables_are_taken_and_put_back(many_threads):
    kinds = [("f4", 1), ("f4", 19), ("f8", 1)]
    tables = [np.arange(100.0 * n).reshape(100, n).astype(dtype) for dtype, n in kinds]
    rows = np.random.default_rng(0).permutation(100)[:80].astype(np.int32)
    copies = [(table, rows, np.empty((80, table.shape[1]), table.dtype)) for table in tables]
    copies.append((tables[0], rows[:0], np.empty((0, 1), "f4")))
    BACKEND.take_rows(copies, 3)
    for table, rows, part in copies:
        assert_array_equal(part, table[rows])
    expected = [table.copy() for table in tables]
    negated = [(rows, -part) for _, rows, part in copies]
    Backend.put_rows(BACKEND, [(t, *n) for t, n in zip(expected, negated, strict=False)], 1)
    BACKEND.put_rows([(t, *n) for t, n in zip(tables, negated, strict=False)], 3)
    for table, of_numpy in zip(tables, expected, strict=True):
        assert_array_equal(table, of_numpy)


def random_weights(n_features, width=5, seed=0):
    rng = np.random.default_rng(seed)
    linear = rng.standard_normal(n_features, dtype=np.float32)
    factors = 0.3 * rng.standard_normal((n_features, width), dtype=np.float32)
    return FMWeights(np.float32([0.3]), linear, factors)


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match="device='tpu' is unknown; choose 'cpu'"):
        backends.get("tpu")


def test_forward_gives_the_scores_and_the_sums(clicks):
    X = canonical_csr(clicks[0])
    weights = random_weights(12)
    scores, sums = BACKEND.fm_forward(X, weights, 1)
    assert scores.dtype == sums.dtype == np.float32
    assert_array_equal(scores, BACKEND.fm_scores(X, [weights], 1)[0])
    assert_allclose(sums, X @ weights.factors, atol=1e-6)
    assert (sums[[3, 17]] == 0).all()  # rows without entries


@pytest.mark.parametrize("width", [1, 15, 16, 17, 63, 64, 65, 80, 130])
def test_scores_of_rows_of_any_length_with_any_number_of_factors(width):
    rng = np.random.default_rng(width)
    dense = rng.standard_normal((24, 9), dtype=np.float32)
    # Rows of 0 to 7 entries, three of each; the last token's vector ends the table.
    for i, row in enumerate(dense):
        row[: 9 - i % 8] = 0
    X, weights = canonical_csr(sparse.csr_array(dense)), random_weights(9, width)
    linear, factors = weights.linear.astype(float), weights.factors.astype(float)
    pairs = ((dense @ factors) ** 2 - dense**2 @ factors**2).sum(axis=1) / 2
    scores = BACKEND.fm_scores(X, [weights], 1)[0]
    assert_allclose(scores, weights.intercept[0] + dense @ linear + pairs, rtol=1e-5, atol=1e-4)
    assert_array_equal(scores, BACKEND.fm_forward(X, weights, 1)[0])
    # A row's score depends neither on the rows beside it nor on the threads.
    alone = [BACKEND.fm_scores(canonical_csr(X[i : i + 1]), [weights], 1)[0, 0] for i in range(24)]
    assert_array_equal(scores, alone)
    many = sparse.csr_array(np.tile(dense, (100, 1)))
    assert_array_equal(
        BACKEND.fm_scores(canonical_csr(many), [weights], 2)[0], np.tile(scores, 100)
    )


def test_scores_by_a_table_that_is_prefetched():
    rng = np.random.default_rng(0)
    # More than the 4 MB from which on vectors are prefetched, 64 entries ahead; 0 to 9 in a row.
    X = canonical_csr(sparse.csr_array(np.tri(100, 10)[rng.integers(-1, 9, 100)] * 0.5))
    weights = random_weights(10, 64)
    far = FMWeights(weights.intercept, np.zeros(20_000, "f4"), np.zeros((20_000, 64), "f4"))
    far.linear[1999::2000], far.factors[1999::2000] = weights[1:]
    spread = sparse.csr_array((X.data, 2000 * X.indices + 1999, X.indptr), shape=(100, 20_000))
    expected = BACKEND.fm_scores(X, [weights], 1)
    for n_threads in (1, 2):
        assert_array_equal(BACKEND.fm_scores(canonical_csr(spread), [far], n_threads), expected)


@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_a_step_made_of_the_parts_equals_the_fused_one(clicks, cls):
    X, y = canonical_csr(clicks[0]), clicks[1]
    params = {"n_components": 5, "init_scale": 0.3, "batch_size": 1000, "max_iter": 1,
              "alpha_linear": 0, "alpha_factors": 0, "random_state": 3}  # fmt: skip
    start = cls(optimizer=SGD(1e-30), **params).fit(X, y)
    fused = cls(optimizer=SGD(1.0), **params).fit(X, y)
    weights = start._outputs()[0]
    assert abs(fused.factors_ - start.factors_).max() > 0.01
    scores, sums = BACKEND.fm_forward(X, weights, 1)
    predictions = 1 / (1 + np.exp(-scores)) if cls is FMClassifier else scores
    derivatives = (predictions - y) / len(y)
    gradient = BACKEND.fm_backward(X, weights, sums, derivatives, 1)
    assert_array_equal(gradient.tokens, np.unique(X.indices))
    weights.intercept[:] -= gradient.intercept
    weights.linear[gradient.tokens] -= gradient.linear
    weights.factors[gradient.tokens] -= gradient.factors
    assert_allclose(weights.intercept, fused.intercept_, atol=1e-6)
    assert_allclose(weights.linear, fused.coef_, atol=1e-6)
    assert_allclose(weights.factors, fused.factors_, atol=1e-6)


def test_gradient_under_a_head_equals_finite_differences(clicks):
    # A hidden layer over the scores of the whole batch: no loss of single rows.
    X = canonical_csr(clicks[0])
    weights = random_weights(12)
    mixing = np.random.default_rng(1).standard_normal((4, X.shape[0])) / 8
    out = np.array([1.0, -2.0, 0.5, 3.0])

    def head(scores):
        return out @ np.tanh(mixing @ scores)

    def loss():
        dense = X.toarray().astype(float)
        intercept, linear, factors = doubled
        interactions = ((dense @ factors) ** 2 - dense**2 @ factors**2).sum(axis=1) / 2
        return head(intercept + dense @ linear + interactions)

    scores, sums = BACKEND.fm_forward(X, weights, 1)
    derivatives = (out * (1 - np.tanh(mixing @ scores) ** 2)) @ mixing
    gradient = BACKEND.fm_backward(X, weights, sums, derivatives, 1)
    dense_gradient = [np.zeros_like(w, dtype=float) for w in weights]
    dense_gradient[0][:] = gradient.intercept
    dense_gradient[1][gradient.tokens] = gradient.linear
    dense_gradient[2][gradient.tokens] = gradient.factors
    doubled = [w.astype(float) for w in weights]
    h = 1e-5
    for array, by_array in zip(doubled, dense_gradient, strict=True):
        for index in np.ndindex(array.shape):
            array[index] += h
            up = loss()
            array[index] -= 2 * h
            down = loss()
            array[index] += h
            assert by_array[index] == pytest.approx((up - down) / (2 * h), abs=2e-5)


def test_parts_are_the_same_for_any_number_of_threads(log, monkeypatch):
    monkeypatch.setattr("freqfm.backends.cpu.fm_trainer._WEIGHTS_SCORED", 0)
    X = canonical_csr(log[0][:500])
    weights = random_weights(X.shape[1])
    derivatives = np.random.default_rng(0).standard_normal(X.shape[0])
    results = []
    for n_threads in (1, 2, 3):
        scores, sums = BACKEND.fm_forward(X, weights, n_threads)
        gradient = BACKEND.fm_backward(X, weights, sums, derivatives, n_threads)
        results.append((scores, sums, *gradient))
    for result in results[1:]:
        for array, expected in zip(result, results[0], strict=True):
            assert_array_equal(array, expected)


def test_a_batch_without_entries_has_a_gradient_by_the_intercept_alone():
    X = canonical_csr(sparse.csr_array((3, 12), dtype=np.float32))
    weights = random_weights(12)
    scores, sums = BACKEND.fm_forward(X, weights, 1)
    assert_array_equal(scores, weights.intercept.repeat(3))
    gradient = BACKEND.fm_backward(X, weights, sums, np.array([1.0, 2.0, -0.5]), 1)
    assert gradient.intercept == 2.5
    assert len(gradient.tokens) == len(gradient.linear) == len(gradient.factors) == 0


def test_memory_of_a_batch_does_not_grow_with_the_features():
    n_features = 1_000_000
    indices = np.int32([0, 999_999, 5, 999_999])
    indptr = np.int64([0, 2, 4])
    X = sparse.csr_array((np.ones(4, np.float32), indices, indptr), shape=(2, n_features))
    X = canonical_csr(X)
    weights = random_weights(n_features, 2)

    def batch():
        scores, sums = BACKEND.fm_forward(X, weights, 1)
        return BACKEND.fm_backward(X, weights, sums, scores, 1)

    batch()
    tracemalloc.start()
    gradient = batch()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_array_equal(gradient.tokens, [0, 5, 999_999])
    assert peak < n_features / 10
