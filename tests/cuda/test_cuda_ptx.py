"""Every kernel for the GPU compiles, where numba-cuda is installed; a GPU is not needed.

An emulated GPU records what is launched; that is compiled for it and, where NVIDIA's assembler
is installed too, assembled.
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import numba
import numpy as np
import pytest
from custom_components import CustomAdam, CustomBPR, CustomLogLoss
from emulated_gpu import EmulatedDevice
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    MFRecommender,
    NFMClassifier,
    RaFMClassifier,
    backends,
)
from freqfm.backbones import LightGCN
from freqfm.backends.base import Exclusions, FoldInProblem, Histories
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.losses import PSL
from freqfm.optimizers import Adam

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed"
    ),
]

# Launched once an epoch, or for special data: float64 costs nothing there.
MAY_USE_FLOAT64 = {"sum_losses"}

CAPABILITY = 9, 0

# Bytes of a thread.
MOST_SPILLED = 512


def assembler():
    """Return the path of ptxas, or None."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for path in Path(folder).glob("*/bin/ptxas"):
            return str(path)
    return shutil.which("ptxas")


@pytest.fixture
def ptx_of(monkeypatch):
    """Return a function that compiles a launch to PTX."""
    from numba import cuda
    from numba.cuda import dispatcher

    from freqfm.backends.cuda.device import kernel_of

    class NoDevice:
        compute_capability = CAPABILITY

    # The only thing that compiling asks the driver for.
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: NoDevice)
    try:
        cuda.compile(lambda: None, (), cc=CAPABILITY)
    except Exception as error:
        pytest.skip(f"the compiler of the CUDA toolkit does not work: {error}")

    def ptx_of(phases, args, formulas):
        arrived = numba.uint32[::1]
        signature = (numba.int64, numba.int64, numba.int64, arrived, numba.typeof(args))
        kernel = kernel_of(phases, dict(formulas), args)
        return cuda.compile(kernel, signature, cc=CAPABILITY, device=False, abi="numba")[0]

    return ptx_of


def rows():
    X = sparse.random(60, 14, 0.3, format="csr", dtype=np.float32, random_state=0)
    return X, np.arange(60) % 2


def fit_fm(estimator):
    X, y = rows()
    clone(estimator).set_params(max_iter=1, batch_size=25, device="cuda").fit(X, y).predict(X)


def serve(what):
    """Run what fitted recommenders ask for."""
    backend, table = backends.get("cuda"), np.ones((9, 5), dtype=np.float32)
    starts, numbers = np.arange(10), np.arange(9, dtype=np.int32)
    if what == "top_k":
        backend.top_k(table, table, 2, Exclusions(starts, numbers, numbers[:1]), 3, 1)
        return
    problem = FoldInProblem(table, table, True, 1.0, 1.0, 1.0, 1.0, 1.0, 2)
    for formulas in ({}, CustomBPR().replacements()):
        backend.fold_in(problem, Histories(starts, numbers, table[:, 0]), 1, formulas)
    backend.sum_histories(Histories(starts, numbers, table[:, 0]), table, 1)


def fit_recommender(estimator, **params):
    X, _ = rows()
    clone(estimator).set_params(max_iter=1, device="cuda", **params).fit(X)


DENSE = Adam(0.01, lazy=False)
RECOMMENDERS = {
    "softmax": MFRecommender(5, n_negatives=4),
    "drawn": MFRecommender(5, n_negatives=4, negative_sampler="midx_popularity", optimizer=DENSE),
    "formulas": MFRecommender(5, n_negatives=4, negative_sampler="kernel", optimizer=DENSE),
    "surrogates": MFRecommender(5, n_negatives=4, loss=PSL("atan"), optimizer=DENSE),
    "weighted": MFRecommender(5, n_negatives=4, loss="slatk", optimizer=DENSE),
    "learned": MFRecommender(5, n_negatives=4, temperature="learned", optimizer=DENSE),
    "pairs": MFRecommender(5, loss="bpr", optimizer=DENSE),
    "alignment": MFRecommender(5, loss="mawu", optimizer=DENSE),
    "own pairs": MFRecommender(5, loss=CustomBPR()),
    "graph": MFRecommender(5, loss="bpr", backbone="lightgcn", optimizer=DENSE),
    "graph, in batches": MFRecommender(
        5, n_negatives=4, backbone=LightGCN(propagate="batch"), optimizer=DENSE
    ),
    "autoencoder": FastVAERecommender(
        3,
        hidden_layer_sizes=(6,),
        decoder_layer_sizes=(4,),
        negative_sampler="full",
        optimizer=DENSE,
        dropout_on="hidden",
        n_samples=2,
    ),
    "autoencoder, drawn": FastVAERecommender(
        3,
        hidden_layer_sizes=(6,),
        activation="relu",
        negative_sampler="midx_uniform",
        n_negatives=4,
    ),
}

CASES = {
    **{
        name: lambda model=model: fit_recommender(model, batch_size=25)
        for name, model in RECOMMENDERS.items()
    },
    "least squares": lambda: fit_recommender(ALSRecommender(5)),
    "classes": lambda: fit_fm(FMClassifier(3)),
    "targets": lambda: fit_fm(FMRegressor(3)),
    "ranks": lambda: fit_fm(RaFMClassifier((1, 3))),
    "fields and layers": lambda: fit_fm(DeepFMClassifier(3, fields=np.arange(14) % 3)),
    "layers": lambda: fit_fm(NFMClassifier(3, hidden_layer_sizes=(5, 4))),
    "top k": lambda: serve("top_k"),
    "histories": lambda: serve("histories"),
    "custom loss": lambda: fit_fm(FMClassifier(3, loss=CustomLogLoss())),
    "custom optimizer": lambda: fit_fm(FMClassifier(3, optimizer=CustomAdam(0.01))),
    "custom layers": lambda: fit_fm(NFMClassifier(3, layer_optimizer=CustomAdam(0.01))),
}


DONE = set()


@pytest.mark.parametrize("case", list(CASES))
def test_kernels_compile(monkeypatch, tmp_path, ptx_of, case):
    device = EmulatedDevice()
    backend = CUDABackend(device)
    monkeypatch.setattr(backends, "_cuda", lambda number: backend)
    CASES[case]()
    assert device.launches
    ptxas = assembler()
    for (phases, formulas), args in device.launches.items():
        kind = phases, formulas, numba.typeof(args)
        if kind in DONE:
            continue
        DONE.add(kind)
        names = [phase.__name__ for phase in phases]
        ptx = ptx_of(phases, args, formulas)
        # Users' formulas may use float64.
        if not (formulas or MAY_USE_FLOAT64 & set(names)):
            assert re.findall(r"^\s*[a-z.0-9]*\.f64\b.*", ptx, re.MULTILINE) == [], names
        assert ".local" not in ptx, names
        if ptxas:
            source = tmp_path / "kernel.ptx"
            source.write_text(ptx)
            options = ["-arch=sm_90", "-v", "-maxrregcount", "128", str(source)]
            made = subprocess.run(
                [ptxas, *options, "-o", str(tmp_path / "kernel.o")], capture_output=True, text=True
            )
            assert made.returncode == 0, made.stderr
            # Some registers of kernels with many phases are saved between their loops.
            spilled = re.findall(r"(\d+) bytes spill stores", made.stderr)
            assert max(map(int, spilled)) <= MOST_SPILLED, (names, spilled)


def test_phases_can_be_timed(monkeypatch, ptx_of):
    from freqfm.backends.cuda import device
    from freqfm.backends.cuda.fm.batch import TRAIN

    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks" / "speed")
    from gpu_phases import timed_in_turn

    emulated = EmulatedDevice()
    monkeypatch.setattr(backends, "_cuda", lambda number: CUDABackend(emulated))
    fit_fm(FMClassifier(3))
    monkeypatch.setattr(device, "_in_turn", timed_in_turn)
    ptx = ptx_of(TRAIN, (emulated.launches[TRAIN, ()], np.zeros(6, dtype=np.int64)), ())
    # Before and after each phase, and after its barrier.
    assert ptx.count("%clock64") == 3 * len(TRAIN)
