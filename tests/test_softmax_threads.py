"""For how many threads a batch of the softmax has work."""

from types import SimpleNamespace

import numpy as np
import pytest

from freqfm.backends.cpu.pairwise import PairwiseFamily
from freqfm.backends.cpu.softmax import TILE_NEGATIVES, TILE_ROWS, SoftmaxFamily
from freqfm.formulas import codes


def most_threads(degrees, code=codes.NEGATIVES_SHARED, block=4, batch_size=1024, n_negatives=1024):
    problem = SimpleNamespace(
        negatives_code=code, block=block, batch_size=batch_size, n_negatives=n_negatives,
        n_items=50_000, constants={"pairs": False},
    )  # fmt: skip
    return SoftmaxFamily.most_threads(problem, np.array(degrees))


def test_threads_have_a_tile_each():
    assert most_threads([4] * 10) == 1024 / TILE_NEGATIVES == 8
    # One positive makes a row: 1,024 rows.
    assert most_threads([1] * 10) == 2 * np.ceil(1024 / (2 * TILE_ROWS)) == 14
    assert most_threads([1] * 10, batch_size=8192) == 104
    assert most_threads([1] * 10, block=None) == 14
    assert most_threads([0, 0]) == 14


@pytest.mark.parametrize(
    "code, expected", [(codes.NEGATIVES_FULL, 391), (codes.NEGATIVES_IN_BATCH, 8)]
)
def test_the_number_of_negatives_counts(code, expected):
    assert most_threads([4] * 10, code, n_negatives=1) == expected


@pytest.mark.parametrize("code", [codes.NEGATIVES_SEPARATE, codes.NEGATIVES_DRAWN])
def test_separate_lists_have_work_for_any_number(code):
    assert most_threads([4] * 10, code) is None
    assert PairwiseFamily.most_threads(None, np.array([1])) is None
