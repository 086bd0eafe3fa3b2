"""The parameter ``device``: what runs where, messages, models that change machines."""

import builtins
import functools
import importlib.util
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from emulated_gpu import EmulatedDevice
from numpy.testing import assert_allclose, assert_array_equal
from processes import python
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from test_numpy_backend import CHECKS

from freqfm import (
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    MFRecommender,
    RaFMClassifier,
    RaFMRegressor,
    backends,
    show_versions,
)
from freqfm.backends import cuda
from freqfm.backends.base import CPUOnlyError, DeviceUnavailableError
from freqfm.backends.cuda.backend import CUDABackend

ESTIMATORS = [
    FMClassifier(2),
    FMRegressor(2),
    RaFMClassifier((1, 2)),
    RaFMRegressor((1, 2)),
    MFRecommender(2),
    FastVAERecommender(2, negative_sampler="uniform"),
]


def data():
    generator = np.random.default_rng(0)
    X = sparse.csr_array((generator.random((40, 9)) < 0.4).astype(np.float32))
    return X, np.arange(40) % 2


def fm(**params):
    params = {"max_iter": 2, "batch_size": 16, "early_stopping": False, "random_state": 0, **params}
    return FMClassifier(2, **params)


@pytest.fixture
def gpu(monkeypatch):
    """Let "cuda" be an emulated GPU."""
    device = EmulatedDevice()
    backend = CUDABackend(device)

    def open_emulated(number):
        if number:
            raise DeviceUnavailableError("this machine has 1 GPUs, numbered from 0.")
        return backend

    monkeypatch.setattr(backends, "_cuda", open_emulated)
    return device


@pytest.fixture
def no_gpu(monkeypatch):
    """Let the machine have no GPU, whether it has one or not."""

    def refuse(number):
        raise DeviceUnavailableError("no usable NVIDIA driver was found.")

    monkeypatch.setattr(backends, "_cuda", refuse)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_every_estimator_takes_a_device(no_gpu, estimator):
    assert estimator.get_params()["device"] == "cpu"
    X, y = data()
    for device, error in [("cuda", DeviceUnavailableError), ("gpu", ValueError), (1, ValueError)]:
        model = clone(estimator).set_params(device=device, max_iter=1)
        with pytest.raises(error, match=f"device={device!r}"):
            model.fit(X, y)
        assert not hasattr(model, "n_iter_")


def test_auto_takes_the_cpu_in_silence(no_gpu, capsys):
    X, y = data()
    model = fm(device="auto").fit(X, y)
    assert model.device == "auto" and capsys.readouterr().out == ""
    assert_array_equal(model.factors_, fm().fit(X, y).factors_)


@pytest.mark.parametrize("device", ["cuda:x", "cuda:", "cuda:-1", "CPU", None, ["cpu"], np.ones(2)])
def test_unknown_devices(device):
    with pytest.raises(ValueError, match="is unknown; choose 'cpu', 'cuda', 'cuda:1'"):
        backends.get(device)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(backends, "_cuda", cuda.open_device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = (
        r"device='cuda:1' cannot be used: .*numba-cuda.*'freqfm\[cuda12\]'.*'freqfm\[cuda13\]'"
    )
    with pytest.raises(DeviceUnavailableError, match=message):
        backends.get("cuda:1")
    assert backends.get("auto") is backends.get("cpu")


def test_a_missing_driver_is_named(monkeypatch):
    pytest.importorskip("numba.cuda")
    from freqfm.backends.cuda import device

    monkeypatch.setattr(backends, "_cuda", cuda.open_device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(device.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.cuda, "cuda_error", lambda: "no library\nof the driver" + 300 * "!")
    message = (
        r"device='cuda' .* driver was found \(no library of the driver!+\.\.\.\).*freqfm\[cuda12\]"
    )
    with pytest.raises(DeviceUnavailableError, match=message):
        backends.get("cuda")


def test_a_numpy_that_does_not_fit_is_named(monkeypatch):
    pytest.importorskip("numba.cuda")
    from freqfm.backends.cuda import device

    def refuse(number):
        raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    monkeypatch.setattr(backends, "_cuda", cuda.open_device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(device, "open_problem", refuse)
    limit = " numba-cuda runs with NumPy before 2.5.0, and NumPy 2.5.1 is installed."
    for version, named in {"2.4.6": "", "2.5.1": limit}.items():
        monkeypatch.setattr(np, "__version__", version)
        with pytest.raises(DeviceUnavailableError, match=rf"'row_stack'\)\.{named} It takes"):
            backends.get("cuda")


def test_the_number_of_a_gpu(gpu):
    assert backends.get("cuda") is backends.get("cuda:0") is backends.get("auto")
    with pytest.raises(DeviceUnavailableError, match="device='cuda:1' cannot be used: .* 1 GPUs"):
        backends.get("cuda:1")


def test_verbose_says_where_auto_trains(gpu, capsys):
    X, y = data()
    fm(device="auto", verbose=1).fit(X, y)
    assert "device='auto': training on emulated\n" in capsys.readouterr().out
    fm(device="auto").fit(X, y)
    fm(device="cuda", verbose=1).fit(X, y)
    assert "device=" not in capsys.readouterr().out


def test_the_cpu_needs_nothing_of_cuda(monkeypatch):
    def refuse(name, *args, **options):
        assert "cuda" not in name
        return imported(name, *args, **options)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    X, y = data()
    fm().fit(X, y).predict(X)


def test_what_the_gpu_lacks_raises(gpu):
    X, _ = data()
    model = MFRecommender(2, loss="bpr", negative_sampler="dns", n_negatives=3, max_iter=1)
    message = "sampler 'dns' runs on the CPU only; set device='cpu'"
    with pytest.raises(CPUOnlyError, match=message):
        clone(model).set_params(device="cuda").fit(X)
    assert clone(model).set_params(device="auto").fit(X).n_iter_ == 1


def test_a_model_leaves_the_machine_of_its_gpu(gpu, monkeypatch):
    X, y = data()
    model = fm(device="cuda", optimizer="adam", warm_start=True).fit(X, y)
    assert gpu.launches
    for array in [model.factors_, model.coef_, *model._optimizer_state[0].values()]:
        assert type(array) is np.ndarray
    scores = model.decision_function(X)
    saved = pickle.dumps(model)

    def refuse(number):
        raise DeviceUnavailableError("none.")

    monkeypatch.setattr(backends, "_cuda", refuse)
    loaded = pickle.loads(saved)
    assert_allclose(loaded.decision_function(X), scores, rtol=1e-5, atol=1e-6)
    with pytest.raises(DeviceUnavailableError, match="device='cuda' cannot be used"):
        loaded.fit(X, y)
    loaded.set_params(device="cpu").fit(X, y)
    both = fm(optimizer="adam", max_iter=4).fit(X, y)
    assert_allclose(loaded.factors_, both.factors_, atol=1e-4)


def test_searches_and_pipelines(gpu):
    X, y = data()
    search = GridSearchCV(fm(device="cuda"), {"optimizer": ["sgd", "adam"]}, cv=2, n_jobs=1)
    assert search.fit(X, y).best_estimator_.device == "cuda"
    tokens = np.random.default_rng(0).integers(0, 4, (40, 2))
    model = make_pipeline(OneHotEncoder(), fm(device="cuda")).fit(tokens, y)
    assert model.predict(tokens).shape == y.shape


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", [FMClassifier(2), RaFMRegressor((1, 2))], ids=str)
def test_checks_of_scikit_learn(gpu, estimator, check):
    check(type(estimator).__name__, clone(estimator).set_params(max_iter=1, device="cuda"))


def test_rows_are_moved_once(gpu):
    X, y = data()
    X = sparse.csr_array(np.tile(X.toarray(), (20, 1)))
    y = np.tile(y, 20)
    model = fm(device="cuda", batch_size=400, early_stopping=True, n_iter_no_change=None)
    # Given penalties need no search, whose epochs would be more.
    model.set_params(alpha_linear=1.0, alpha_factors=5.0)
    copied = []
    for max_iter in (1, 3):
        gpu.n_copied = 0
        clone(model).set_params(max_iter=max_iter).fit(X, y, X_val=X, y_val=y)
        copied.append(gpu.n_copied)
    # Beside weights, only scores of the validation rows come back.
    assert copied[1] - copied[0] < 2 * (4 * X.shape[0] + 5000) < copied[0] / 2


def test_any_grid_gives_the_same_bits(monkeypatch):
    X, y = data()
    models = []
    for size, seed in [(1, 0), (4, 1), (4, 2), (33, 3)]:
        backend = CUDABackend(EmulatedDevice(size, seed))
        monkeypatch.setattr(backends, "_cuda", lambda number, backend=backend: backend)
        models.append(fm(device="cuda", batch_size=40).fit(X, y))
    for model in models[1:]:
        assert_array_equal(model.factors_, models[0].factors_)
        assert_array_equal(model.loss_curve_, models[0].loss_curve_)


@pytest.mark.slow
def test_launches_and_memory_in_the_simulator():
    source = Path(__file__).parents[1].joinpath("cuda_simulator.py").read_text()
    done = python(source, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compiling score_batch for the GPU (once)") == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only systems with fork")
def test_a_forked_process_does_not_use_the_gpu_of_its_parent(monkeypatch):
    monkeypatch.setattr(cuda, "open_device", lambda number: "a GPU")
    monkeypatch.setattr(backends, "_cuda", functools.cache(backends._cuda.__wrapped__))
    assert backends.get("cuda") == "a GPU"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            backends.get("cuda")
        except backends.DeviceUnavailableError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    message = os.read(reader, 1000).decode()
    assert "device='cuda' cannot be used: this process was forked from one that" in message
    assert backends.get("cuda") == "a GPU"


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="only systems with fork")
def test_machines_without_a_gpu_remember_nothing_for_forks(monkeypatch):
    def refuse(number):
        raise DeviceUnavailableError("none.")

    registered = []
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: registered.append(functions))
    monkeypatch.setattr(cuda, "open_device", refuse)
    monkeypatch.setattr(backends, "_cuda", functools.cache(backends._cuda.__wrapped__))
    for _ in range(3):
        assert backends.get("auto") is backends.get("cpu")
    assert not registered


def test_a_bug_report_names_the_gpu(gpu, capsys):
    show_versions()
    assert f"GPU {gpu.name}" in capsys.readouterr().out.splitlines()


def test_a_bug_report_says_why_there_is_no_gpu(no_gpu, capsys):
    show_versions()
    assert "no GPU: device='cuda' cannot be used: no usable NVIDIA" in capsys.readouterr().out
