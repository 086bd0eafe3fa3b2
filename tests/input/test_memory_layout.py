"""Results do not depend on where arrays are in memory.

LLVM compiles a loop that reads one array and writes another twice: vectorised, and one element at a
time for arrays that overlap or nearly do. A sum in such a loop would be rounded differently.
"""

import random

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FwFMClassifier,
    MFRecommender,
    RaFMClassifier,
)
from freqfm.datasets import make_clicks, make_interactions

pytestmark = pytest.mark.slow  # each model is fitted ten times or more

CLICKS = make_clicks(300, (30, 20), random_state=0)
INTERACTIONS = (make_interactions(60, 50, 800, random_state=0),)
FM = {"max_iter": 2, "early_stopping": False, "n_jobs": 1, "random_state": 0}
REC = {"n_components": 8, "max_iter": 2, "n_jobs": 1, "random_state": 0}
CASES = [
    (FMClassifier(4, **FM), CLICKS),
    (FMClassifier(70, optimizer="adam", **FM), CLICKS),
    (FFMClassifier(3, fields=[0] * 30 + [1] * 20, **FM), CLICKS),
    (FwFMClassifier(3, fields=[0] * 30 + [1] * 20, **FM), CLICKS),
    (RaFMClassifier((2, 20), rank_assignment=[10], **FM), CLICKS),
    (MFRecommender(negative_sampler="popularity", **REC), INTERACTIONS),
    (MFRecommender(negative_sampler="in_batch", **REC), INTERACTIONS),
    (MFRecommender(negative_sampler="midx_exact", **REC), INTERACTIONS),
    (MFRecommender(loss="bpr", **REC), INTERACTIONS),
    (MFRecommender(loss="mawu", **REC), INTERACTIONS),
    (ALSRecommender(**REC), INTERACTIONS),
    (ALSRecommender(solver="cholesky", **REC), INTERACTIONS),
    (FastVAERecommender(early_stopping=False, hidden_layer_sizes=(16,), **REC), INTERACTIONS),
    (FastVAERecommender(negative_sampler="midx_popularity", **REC), INTERACTIONS),
]


class Arena:
    """Memory in which arrays follow each other closely, in a random order."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._memory = np.empty(1 << 24, dtype=np.uint8)
        self._begin, self._end = -self._memory.ctypes.data % 64, len(self._memory) - 64
        self._empty = np.empty

    def empty(self, shape, dtype=float, order="C", **options):
        """Take the place of ``numpy.empty``."""
        array = self._empty(shape, dtype, order, **options)
        n_bytes = -(-array.nbytes // 16) * 16 + 16 * self._random.choice([1, 2, 3])
        fits = 0 < n_bytes < self._end - self._begin
        if array.dtype.hasobject or not array.size or array.nbytes > 1 << 20 or not fits:
            return array
        if self._random.random() < 0.5:
            begin = self._begin
            self._begin += n_bytes
        else:
            self._end -= n_bytes
            begin = self._end = self._end // 16 * 16
        return self._memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)

    def zeros(self, shape, dtype=float, order="C", **options):
        """Take the place of ``numpy.zeros``."""
        array = self.empty(shape, dtype, order, **options)
        array.view(np.uint8 if array.ndim and array.size else array.dtype)[...] = 0
        return array


def learned(model):
    names = ("factors_", "_factors", "coef_", "user_factors_", "item_factors_", "loss_curve_")
    arrays = [getattr(model, name) for name in names if hasattr(model, name)]
    return np.concatenate([a.ravel() for a in arrays if isinstance(a, np.ndarray)])


@pytest.mark.parametrize("model, data", CASES, ids=lambda value: type(value).__name__)
def test_bits_do_not_depend_on_places_in_memory(model, data, monkeypatch):
    expected = learned(model.fit(*data))
    for seed in range(6):
        arena = Arena(seed)
        monkeypatch.setattr("numpy.empty", arena.empty)
        monkeypatch.setattr("numpy.zeros", arena.zeros)
        model.fit(*data)
        monkeypatch.undo()
        assert_array_equal(learned(model), expected)
