"""How matrix products are cut into vectors."""

import numpy as np
import pytest

from freqfm._numba.jit import python_function
from freqfm.backends.cpu import vae, vectors

MOST = 80


@pytest.mark.parametrize("n", [1, 2, 3, 79, 80, 81, 160, 161, 287, 1028, 40_981])
def test_two_threads_have_the_same_number_of_rows(n):
    height = python_function(vectors.tile_height)(n, MOST)
    assert 1 <= height <= MOST
    sizes = np.diff([*range(0, n, height), n])
    assert sizes.sum() == n
    # Tiles differ by what is left over when rows are divided among them.
    assert abs(sizes[::2].sum() - sizes[1::2].sum()) <= len(sizes)


@pytest.mark.parametrize("shape", [(1, 1), (80, 16), (81, 130), (400, 512), (7, 1000)])
def test_tiles_cover_a_matrix_once(shape):
    height, width = (python_function(vectors.tile_height)(n, MOST) for n in shape)
    covered = np.zeros(shape, dtype=int)
    count = python_function(vectors.n_tiles)
    for t in range(count(shape[0], height) * count(shape[1], width)):
        top, bottom, left, right = python_function(vectors.tile_of)(
            t, shape[0], height, shape[1], width
        )
        assert top < bottom
        assert left < right
        covered[top:bottom, left:right] += 1
    np.testing.assert_array_equal(covered, 1)


@pytest.mark.parametrize("n_items", [1, 13, 700, 3_125, 20_000, 40_981])
def test_the_first_half_of_chunks_has_half_of_the_items(n_items):
    chunks = [vae._chunk(c, n_items) for c in range(vae.N_CHUNKS)]
    begins, ends, heights = (np.array(part) for part in zip(*chunks, strict=True))
    assert begins[0] == 0
    assert ends[-1] == n_items
    np.testing.assert_array_equal(begins[1:], ends[:-1])
    assert heights.max() <= vae.TILE
    half = ends[vae.N_CHUNKS // 2 - 1]
    assert abs(half - (n_items - half)) <= max(1, np.ceil(n_items / heights[0]))


@pytest.mark.parametrize("n_items", [4_096, 6_000, 20_000, 40_981])
def test_chunks_of_many_items_have_as_many_tiles(n_items):
    chunks = [vae._chunk(c, n_items) for c in range(vae.N_CHUNKS)]
    counts = {-(-(end - begin) // height) for begin, end, height in chunks}
    assert len(counts) == 1
