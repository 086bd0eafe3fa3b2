"""Fits and serves by numba's CUDA simulator: launches and memory, on a CPU. Run by test_device.

It runs one block, and knows nothing of warps; groups therefore have one lane.
"""

import os
import threading

os.environ.update(NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")

import numpy as np
from numpy.testing import assert_allclose
from reference.numpy_backend import NumpyBackend
from scipy import sparse

from freqfm import FMClassifier, RaFMClassifier, backends
from freqfm.backends.base import Exclusions
from freqfm.backends.cuda import device, groups
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.initializers import Normal


class SimulatedDevice(device.Device):
    """A ``Device`` of the simulator, whose GPUs have no names and grids no limits."""

    name = "simulated"
    most_blocks = 1

    def __init__(self):
        self._gpu, self._turn = device.cuda.gpus[0], threading.RLock()
        self._kernels, self._kept, self._arrived = {}, [], None

    def _compiled(self, phases, formulas, args):
        device.announce(f"{phases[0].__name__} for the GPU")
        kernel = device.cuda.jit(device.kernel_of(phases, formulas, args))
        return device._Kernel(kernel, 1)

    def run(self, phases, args, n_lanes, *more, **options):
        super().run(phases, args, 1, *more, **options)


def main():
    device._BLOCK = device._SMALLEST_BLOCK = 4
    device._OF_WARPS = {groups.add_at: device._add_at}
    simulated, reference = CUDABackend(SimulatedDevice()), NumpyBackend()
    X = sparse.random(24, 9, 0.4, format="csr", dtype=np.float32, random_state=0)
    y = np.arange(24) % 2
    params = {"max_iter": 2, "batch_size": 10, "early_stopping": False, "init": Normal(0.3)}
    for model in (FMClassifier(3), RaFMClassifier((1, 3), rank_assignment=[9])):
        scores = []
        for backend in (simulated, reference):
            backends._cuda = lambda number, backend=backend: backend
            model.set_params(device="cuda", random_state=0, verbose=1, **params).fit(X, y)
            scores.append(model.decision_function(X))
        assert_allclose(*scores, atol=1e-4)
    table = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    excluded = Exclusions(np.arange(7), np.arange(6, dtype=np.int32), np.array([2], np.int32))
    found, expected = (
        backend.top_k(table, table, 3, excluded, 3, 1) for backend in (simulated, reference)
    )
    assert_allclose(found[0], expected[0])
    assert_allclose(found[1], expected[1], rtol=1e-5)


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
