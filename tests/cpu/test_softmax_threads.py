"""For how many threads a batch of the softmax has work."""

from types import SimpleNamespace

import numpy as np
import pytest

from freqfm.backends.cpu.ranking.pairwise import PairwiseFamily
from freqfm.backends.cpu.ranking.softmax import COLUMNS, TILE, SoftmaxFamily
from freqfm.formulas import codes


def most_threads(degrees, code=codes.NEGATIVES_SHARED, block=4, batch_size=1024, n_negatives=1024):
    problem = SimpleNamespace(
        negatives_code=code, block=block, batch_size=batch_size, n_negatives=n_negatives,
        n_items=50_000, formulas={},
    )  # fmt: skip
    return SoftmaxFamily.most_threads(problem, np.array(degrees))


def test_threads_have_a_tile_each():
    assert most_threads([4] * 10) == 256 // TILE * 1024 // COLUMNS == 32
    # One positive makes a row: 1,024 rows.
    assert most_threads([1] * 10) == 128
    assert most_threads([1] * 10, batch_size=8192) == 1024
    assert most_threads([1] * 10, block=None) == 128
    assert most_threads([0, 0]) == 128


@pytest.mark.parametrize("batch_size", [1024, 4096])
@pytest.mark.parametrize("degree", [10, 16, 40])
def test_batches_of_blocks_of_16_positives_have_work_for_16_threads(degree, batch_size):
    shape = {"block": 16, "batch_size": batch_size, "n_negatives": 512}
    assert most_threads([degree] * 10, **shape) >= 16


@pytest.mark.parametrize(
    "code, expected", [(codes.NEGATIVES_FULL, 2 * 782), (codes.NEGATIVES_IN_BATCH, 32)]
)
def test_the_number_of_negatives_counts(code, expected):
    assert most_threads([4] * 10, code, n_negatives=1) == expected


@pytest.mark.parametrize("code", [codes.NEGATIVES_SEPARATE, codes.NEGATIVES_DRAWN])
def test_separate_lists_have_work_for_any_number(code):
    assert most_threads([4] * 10, code) is None
    assert PairwiseFamily.most_threads(None, np.array([1])) is None
