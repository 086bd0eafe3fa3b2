"""Binary search against NumPy's."""

import numba
import numpy as np
import pytest

from freqfm.formulas.selection import first_above


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])
def test_first_above_equals_searchsorted(dtype):
    @numba.njit
    def find(values, begin, end, wanted, found):
        for j in range(wanted.shape[0]):
            found[j] = first_above(values, begin, end, wanted[j])

    rng = np.random.default_rng(0)
    for n in [0, 1, 2, 3, 7, 8, 20]:
        values = np.sort(rng.integers(0, 9, n)).astype(dtype)
        wanted = np.arange(-1, 10).astype(dtype)
        found = np.zeros(len(wanted), dtype=np.int64)
        for begin, end in {(0, n), (n // 3, n), (n // 4, n // 2), (n, n)}:
            find(values, begin, end, wanted, found)
            expected = begin + np.searchsorted(values[begin:end], wanted, side="right")
            np.testing.assert_array_equal(found, expected)
