"""Random numbers of the counter-based generator."""

import numba
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from freqfm import backends
from freqfm.backends.base import Stream
from freqfm.formulas.rng import key_of, random_bits
from freqfm.formulas.special import log_of, normal_upper_quantile

BACKEND = backends.get()


def test_quantiles_and_logarithms():
    @numba.njit
    def evaluate(q, a):
        z, logs = np.empty_like(q), np.empty_like(a)
        for i in range(len(q)):
            z[i] = normal_upper_quantile(q[i])
            logs[i] = log_of(a[i])
        return z, logs

    q = np.concatenate([np.geomspace(2.0**-26, 0.5, 20_001), np.linspace(0.01, 0.5, 20_001)])
    a = np.geomspace(1e-37, 1e37, len(q)).astype(np.float32)
    q = q.astype(np.float32)
    z, logs = evaluate(q, a)
    assert z.dtype == logs.dtype == np.float32
    exact = stats.norm.isf(q.astype(float))
    assert_allclose(z, exact, atol=1e-5)
    assert_allclose(z[exact < 5], exact[exact < 5], atol=2e-6)
    assert_allclose(logs, np.log(a.astype(float)), rtol=2e-7, atol=1e-7)


def test_distributions():
    indices = np.arange(200_000).reshape(2, -1)
    for seed in range(3):
        normal = BACKEND.standard_normal(Stream(seed, 0, 0), indices)
        uniform = BACKEND.uniform(Stream(seed, 0, 1), indices)
        assert normal.shape == uniform.shape == indices.shape
        assert stats.kstest(normal.ravel().astype(float), "norm").pvalue > 1e-3
        assert stats.kstest(uniform.ravel().astype(float), "uniform").pvalue > 1e-3
        assert abs(normal.mean(dtype=float)) < 4 / np.sqrt(normal.size)
        assert abs(normal.var(dtype=float) - 1) < 4 * np.sqrt(2 / normal.size)
        assert uniform.max() < 1
        # Neighbours, the two halves and the two purposes are independent.
        for x, y in [(normal[0, 1:], normal[0, :-1]), (*normal,), (normal, uniform)]:
            assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 5 / np.sqrt(x.size)


def test_a_number_depends_on_its_stream_and_index_alone():
    indices = np.arange(50)
    streams = [Stream(0, 0, 0), Stream(1, 0, 0), Stream(0, 1, 0), Stream(0, 0, 1)]
    for draw in (BACKEND.standard_normal, BACKEND.uniform):
        first, *others = (draw(stream, indices) for stream in streams)
        assert_array_equal(draw(streams[0], indices[::-7]), first[::-7])
        assert all((other != first).all() for other in others)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 9, 255, 256, 1000])
def test_permutations(n):
    order = BACKEND.permutation(Stream(3, 1, 0), n)
    assert_array_equal(np.sort(order), np.arange(n))
    if n > 8:
        for other in (Stream(3, 2, 0), Stream(4, 1, 0), Stream(3, 1, 1)):
            assert (order != BACKEND.permutation(other, n)).any()
    with np.errstate(over="ignore"):
        bits = [random_bits(key_of(Stream(3, 1, 0)), i) for i in range(n)]
    assert_array_equal(order, np.argsort(np.array(bits, dtype=np.uint64)))


def test_every_order_is_as_likely():
    orders = [tuple(BACKEND.permutation(Stream(s, 0, 0), 3).tolist()) for s in range(3000)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3
    places = [BACKEND.permutation(Stream(s, 0, 0), 50)[7] for s in range(3000)]
    assert stats.chisquare(np.bincount(places, minlength=50)).pvalue > 1e-3
