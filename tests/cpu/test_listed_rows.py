"""Dot products with listed rows and sums of them, by vector instructions, against NumPy."""

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal

from freqfm._numba.jit import kernel
from freqfm.backends.cpu.ranking.family import is_known
from freqfm.backends.cpu.ranking.pairwise import Pairwise
from freqfm.backends.cpu.tables import owner
from freqfm.backends.cpu.vectors import contains
from freqfm.backends.cpu.word2vec import Listed, add_rows, score_rows


@kernel
def _score_and_add(listed, table, vectors, multiples, scores, sums):
    score_rows(listed, table, vectors, 1, scores, 1)
    add_rows(listed, table, multiples, 1, sums, 2)


@kernel
def _among(values, begin, end, numbers, out):
    for i in range(numbers.shape[0]):
        out[i] = contains(values, begin, end, numbers[i])


@kernel
def _known(pairwise, user, out):
    for item in range(out.shape[0]):
        out[item] = is_known(pairwise, user, np.int32(item))


@kernel
def _owners(tokens, size, out):
    for i in range(tokens.shape[0]):
        out[i] = owner(np.uint64(tokens[i]), np.uint64(size))


@pytest.mark.parametrize("width", [1, 16, 64, 150])
def test_scores_and_sums_of_listed_rows(width):
    rng = np.random.default_rng(width)
    table, vectors, multiples, sums = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((9, width), (3, width), (2, 16), (3, width))
    )
    tokens = rng.integers(0, 9, 40).astype(np.int32)
    scores = np.full((3, 16), 7, dtype=np.float32)
    rows = table[tokens[4:37:3]].astype(np.float64)
    expected = sums.astype(np.float64)
    expected[2] += multiples[1, :11] @ rows
    _score_and_add(Listed(tokens, 4, 3, 11, 40), table, vectors, multiples, scores, sums)
    assert_allclose(scores[1, :11], rows @ vectors[1], rtol=1e-5, atol=1e-5)
    assert (scores[[0, 2]] == 7).all()
    assert (scores[1, 11:] == 7).all()
    assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 50])
def test_a_number_is_found_among_others(n):
    values = np.arange(100, dtype=np.int32) * 2
    numbers = np.arange(-3, 130, dtype=np.int32)
    found = np.zeros(len(numbers), dtype=np.bool_)
    _among(values, 3, 3 + n, numbers, found)
    assert numbers[found].tolist() == values[3 : 3 + n].tolist()


@pytest.mark.parametrize("n", [0, 1, 256, 257, 900])
def test_known_items_of_long_histories(n):
    items = np.sort(np.random.default_rng(n).permutation(1000)[:n]).astype(np.int32)
    known = np.concatenate([[5, 500, 999], items, [0, 7]]).astype(np.int32)
    pairwise = Pairwise(
        cosine=False,
        dropout=0.0,
        n_items=1000,
        known_starts=np.array([0, 3, 3 + n]),
        known_ends=np.array([3, 3 + n, 5 + n]),
        known_items=known,
        negatives=np.zeros((1, 1), dtype=np.int32),
        weights=np.zeros((0, 1), dtype=np.float32),
        inverse_temperatures=np.ones((3, 2), dtype=np.float32),
    )
    found = np.zeros(1000, dtype=np.bool_)
    _known(pairwise, np.uint64(1), found)
    assert_array_equal(np.flatnonzero(found), items)


@each("size", [1, 2, 3, 16])
@each("step", [1, 16, 32, 48, 256])
def test_threads_own_as_many_tokens_each(size, step):
    tokens = np.arange(0, 2000 * 16 * size, step)
    owners = np.zeros(len(tokens), dtype=np.int64)
    _owners(tokens, size, owners)
    shares = np.bincount(owners, minlength=size) / len(tokens)
    assert len(shares) == size
    assert_allclose(shares, 1 / size, rtol=0.2)
