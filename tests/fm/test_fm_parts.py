"""The operations of a factorization machine one by one: labels of tokens, rows, scores."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import backends
from freqfm._input.validation import canonical_csr
from freqfm.backends.base import Backend, FMWeights

BACKEND = backends.get("cpu")


@pytest.mark.parametrize(
    "indices", [[], [7], [0, 63, 64, 127, 128, 499], np.arange(500)[::-1], np.arange(999) ** 2 % 83]
)
@pytest.mark.parametrize("n_features", [500, 10**7])
def test_tokens_get_labels(indices, n_features):
    indices = np.asarray(indices, dtype=np.int32)
    found = BACKEND.label_tokens(indices, n_features)
    assert_array_equal(found[0][found[1]], indices)
    expected = Backend.label_tokens(BACKEND, indices, n_features)
    for array, of_unique in zip(found, expected, strict=True):
        assert array.dtype == np.int32
        assert_array_equal(array, of_unique)


def random_weights(n_features, width=5, seed=0):
    rng = np.random.default_rng(seed)
    linear = rng.standard_normal(n_features, dtype=np.float32)
    factors = 0.3 * rng.standard_normal((n_features, width), dtype=np.float32)
    return FMWeights(np.float32([0.3]), linear, factors)


def test_unknown_devices_are_refused():
    with pytest.raises(ValueError, match="device='tpu' is unknown; choose 'cpu'"):
        backends.get("tpu")


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
    far.linear[1999::2000], far.factors[1999::2000] = weights[1:3]
    spread = sparse.csr_array((X.data, 2000 * X.indices + 1999, X.indptr), shape=(100, 20_000))
    expected = BACKEND.fm_scores(X, [weights], 1)
    for n_threads in (1, 2):
        assert_array_equal(BACKEND.fm_scores(canonical_csr(spread), [far], n_threads), expected)


def test_scores_are_the_same_for_any_number_of_threads(log, monkeypatch):
    monkeypatch.setattr("freqfm.backends.cpu.fm.trainer._WEIGHTS_SCORED", 0)
    X = canonical_csr(log[0][:500])
    weights = random_weights(X.shape[1])
    one, *others = (BACKEND.fm_scores(X, [weights], n_threads) for n_threads in (1, 2, 3))
    for scores in others:
        assert_array_equal(scores, one)
