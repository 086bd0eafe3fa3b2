"""On a real GPU: parity, bits, memory, pickling, interrupts. Skipped where there is none.

pytest -n 0 -m gpu tests/cuda/test_gpu.py
"""

import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from custom_components import CustomAdam, CustomLogLoss
from numpy.testing import assert_allclose, assert_array_equal
from processes import python
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone
from test_cuda_ranking import exclusions, histories, some
from test_numpy_backend import FM_MODELS, OPTIMIZERS, covering, label, rows

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
from freqfm.backends.base import DeviceUnavailableError, FoldInProblem, Histories, Trainer
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.datasets import make_clicks, make_interactions
from freqfm.exceptions import DivergenceError
from freqfm.initializers import Normal
from freqfm.optimizers import Adam

try:
    GPU = backends.get("cuda")
except DeviceUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.fixture
def fit_on(monkeypatch):
    """Return a function that fits an estimator by a backend."""

    def fit_on(backend, estimator, *data, **options):
        monkeypatch.setattr(backends, "_cuda", lambda number: backend)
        return clone(estimator).set_params(device="cuda").fit(*data, **options)

    return fit_on


def difference(one, other):
    """Return the relative norm of the difference of all weights."""
    one, other = (
        np.concatenate([getattr(model, name).ravel() for name in model._weight_names])
        for model in (one, other)
    )
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize(
    "case",
    covering(
        model=list(FM_MODELS),
        optimizer=list(OPTIMIZERS),
        batch_size=[25, 60],
        params=[
            {},
            {"fit_intercept": False, "alpha_per": "row", "alpha_linear": 1e-2},
            {"fit_linear": False, "shuffle": False},
        ],
    ),
    ids=label,
)
def test_an_epoch_agrees_with_the_reference(fit_on, case):
    X, y = rows(case["model"])
    model = clone(FM_MODELS[case["model"]]).set_params(
        optimizer=OPTIMIZERS[case["optimizer"]], max_iter=1, batch_size=case["batch_size"],
        init=Normal(0.3), early_stopping=False, random_state=0, **case["params"],
    )  # fmt: skip
    reference, found = (fit_on(backend, model, X, y) for backend in (NumpyBackend(), GPU))
    # A batch of 60 rows is one step.
    assert difference(found, reference) < (1e-5 if case["batch_size"] == 60 else 1e-3)
    assert_allclose(found.loss_curve_, reference.loss_curve_, rtol=1e-4)


@pytest.mark.parametrize(
    "params",
    [{"loss": CustomLogLoss()}, {"optimizer": CustomAdam(0.01)}],
    ids=["loss", "optimizer"],
)
def test_formulas_of_users_agree(fit_on, params):
    X, y = rows("binary")
    model = FMClassifier(3, max_iter=2, batch_size=25, init=Normal(0.3), random_state=0, **params)
    reference, found = (fit_on(backend, model, X, y) for backend in (NumpyBackend(), GPU))
    assert difference(found, reference) < 1e-3


@pytest.mark.parametrize(
    "model",
    [
        FMClassifier(64, optimizer="adam", batch_size=1000),
        FMClassifier(5, batch_size=20_000),
        RaFMClassifier((4, 16), batch_size=1000),
        RaFMClassifier((4, 16), batch_size=20_000, form="reference"),
        DeepFMClassifier(16, fields=np.repeat([0, 1, 2], [3000, 100, 10]), batch_size=1000),
        DeepFMClassifier(5, hidden_layer_sizes=(64, 40), batch_size=20_000),
        NFMClassifier(16, hidden_layer_sizes=(100, 40), batch_size=1000),
    ],
    ids=str,
)
def test_an_epoch_agrees_with_the_cpu(model):
    X, y = make_clicks(20_000, (3000, 100, 10), random_state=0)
    model = clone(model).set_params(max_iter=1, early_stopping=False, random_state=0)
    one, other = (clone(model).set_params(device=at).fit(X, y) for at in ("cuda", "cpu"))
    assert difference(one, other) < 1e-3
    assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-3)


@pytest.mark.parametrize("kind", [FMClassifier, RaFMClassifier])
def test_any_grid_and_run_gives_the_same_bits(kind, monkeypatch):
    X, y = make_clicks(20_000, (3000, 100, 10), random_state=0)
    models = []
    for blocks in (None, None, 1, 3, 50):
        monkeypatch.setattr(GPU.device, "most_blocks", blocks)
        model = kind(max_iter=2, batch_size=5000, device="cuda", random_state=0)
        models.append(model.fit(X, y))
    for model in models[1:]:
        for name in (*model._weight_names, "loss_curve_"):
            assert_array_equal(getattr(model, name), getattr(models[0], name), err_msg=name)


RECOMMENDERS = {
    "shared": MFRecommender(32, n_negatives=64),
    "dot": MFRecommender(32, similarity="dot", temperature=1.0, negative_sampler="popularity"),
    "full": MFRecommender(5, negative_sampler="full", optimizer="adam", weight_decay=0.01),
    "in_batch": MFRecommender(40, negative_sampler="in_batch", batch_size=200),
    "midx": MFRecommender(32, negative_sampler="midx_popularity", n_negatives=20),
    "bpr": MFRecommender(32, loss="bpr"),
    "directau": MFRecommender(32, loss="directau"),
    "mawu": MFRecommender(32, loss="mawu"),
    # Rows catch up on more steps than are made one by one.
    "steps": MFRecommender(16, loss="mawu", optimizer=Adam(0.01, lazy=False), batch_size=16),
    "graph": MFRecommender(32, backbone="lightgcn"),
    "graph, in batches": MFRecommender(32, backbone=LightGCN(3, propagate="batch"), loss="bpr"),
    "vae": FastVAERecommender(32, negative_sampler="full", early_stopping=False),
    "vae midx": FastVAERecommender(32, negative_sampler="midx_uniform", early_stopping=False),
    "deep vae": FastVAERecommender(
        32,
        hidden_layer_sizes=(70, 40),
        decoder_layer_sizes=(48,),
        activation="relu",
        dropout_on="hidden",
        n_samples=2,
        early_stopping=False,
    ),
}


@pytest.mark.parametrize("name", list(RECOMMENDERS))
def test_recommenders_agree_with_the_cpu(name):
    X = make_interactions(500, 300, 8000, random_state=0)
    model = clone(RECOMMENDERS[name]).set_params(max_iter=1, random_state=0)
    one, other = (clone(model).set_params(device=at).fit(X) for at in ("cuda", "cpu"))
    # A draw may turn out otherwise where float32 rounds otherwise.
    limit = 0.05 if "midx" in name else 1e-3
    for array, expected in zip(one._tables().values(), other._tables().values(), strict=True):
        assert np.linalg.norm(array - expected) < limit * np.linalg.norm(expected)
    assert_allclose(one.loss_curve_, other.loss_curve_, rtol=limit)


@pytest.mark.parametrize("n_components", [7, 64, 150])
def test_least_squares_agree_on_any_grid(n_components, monkeypatch):
    X = make_interactions(500, 300, 8000, random_state=0)
    model = ALSRecommender(n_components, max_iter=2, random_state=0)
    expected, fitted = clone(model).fit(X), []
    for blocks in (None, None, 1, 7):
        monkeypatch.setattr(GPU.device, "most_blocks", blocks)
        fitted.append(clone(model).set_params(device="cuda").fit(X))
    for name in ("user_factors_", "item_factors_", "loss_curve_"):
        first, *others = (getattr(found, name) for found in fitted)
        wanted = getattr(expected, name)
        assert np.linalg.norm(first - wanted) < 1e-4 * np.linalg.norm(wanted)
        for other in others:
            assert_array_equal(other, first, err_msg=name)


@pytest.mark.parametrize("propagate", ["epoch", "batch"])
def test_graphs_agree_with_the_cpu(propagate):
    X = make_interactions(500, 300, 8000, random_state=0)
    backbone = LightGCN(propagate=propagate)
    model = MFRecommender(16, backbone=backbone, max_iter=3, random_state=0)
    one, other = (clone(model).set_params(device=at).fit(X) for at in ("cuda", "cpu"))
    for tables in (lambda model: model._tables(), lambda model: model.backbone_tables_):
        for name in ("user_factors", "item_factors"):
            expected = tables(other)[name]
            assert np.linalg.norm(tables(one)[name] - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", list(RECOMMENDERS))
def test_recommenders_have_the_same_bits_on_any_grid(name, monkeypatch):
    X = make_interactions(500, 300, 8000, random_state=0)
    model = clone(RECOMMENDERS[name]).set_params(max_iter=1, random_state=0, device="cuda")
    fitted = []
    for blocks in (None, None, 1, 7):
        monkeypatch.setattr(GPU.device, "most_blocks", blocks)
        fitted.append(clone(model).fit(X))
    for other in fitted[1:]:
        for name, array in fitted[0]._tables().items():
            assert_array_equal(other._tables()[name], array, err_msg=name)
        assert_array_equal(other.loss_curve_, fitted[0].loss_curve_)


@pytest.mark.parametrize("unit", [False, True])
def test_codes_of_many_rows_agree(unit, monkeypatch):
    table = np.random.default_rng(0).normal(size=(100_000, 65)).astype(np.float32)
    options = 2, 64, 0, None
    codewords, expected = Trainer().quantize(table, 64, unit, options)
    found = []
    for blocks in (None, 7):
        monkeypatch.setattr(GPU.device, "most_blocks", blocks)
        found.append(DeviceTrainer(GPU.device).quantize(table, 64, unit, options))
        assert_array_equal(found[-1][0], codewords)
    assert_array_equal(found[0][1], found[1][1])
    # Rounding decides where two codewords are as near.
    assert np.mean(found[0][1] != expected) < 1e-4


@pytest.mark.parametrize("k", [1, 33, 90])
@pytest.mark.parametrize("unit_columns", [0, 3])
def test_top_k_agrees(k, unit_columns):
    queries, items = some()
    args = queries, items, k, exclusions(7, 90), unit_columns, 1
    found, expected = (backend.top_k(*args) for backend in (GPU, NumpyBackend()))
    assert_array_equal(found[0], expected[0])
    assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


def test_top_k_of_many_items_agrees():
    generator = np.random.default_rng(0)
    queries, items = (generator.normal(size=(n, 64)).astype(np.float32) for n in (300, 100_000))
    args = queries, items, 100, exclusions(300, 50), 0, 1
    found, expected = (backend.top_k(*args) for backend in (GPU, backends.get("cpu")))
    assert np.mean(found[0] == expected[0]) > 0.999
    assert_allclose(found[1], expected[1], rtol=1e-4)


# With little inertia some steps are undone.
@pytest.mark.parametrize("inertia", [3.0, 0.05])
@pytest.mark.parametrize("pairwise", [False, True])
def test_folding_in_agrees(pairwise, inertia):
    generator = np.random.default_rng(0)
    items, others = (generator.normal(size=(n, 70)).astype(np.float32) for n in (9, 75))
    problem = FoldInProblem(
        items, others, pairwise, positive=1.5, inverse=2.0, constant=1.2, inertia=inertia,
        largest_rise=1e-4, n_steps=4,
    )  # fmt: skip
    found, expected = (
        b.fold_in(problem, Histories(*histories()), 1) for b in (GPU, NumpyBackend())
    )
    assert_allclose(found, expected, atol=1e-5)
    sums = [b.sum_histories(Histories(*histories()), items, 1) for b in (GPU, NumpyBackend())]
    assert_allclose(*sums, atol=1e-5)


def test_kernels_are_found_on_disk(fit_on, monkeypatch):
    from freqfm.backends.cuda import device
    from freqfm.backends.cuda.backend import CUDABackend

    model = FMClassifier(3, max_iter=1, random_state=0)
    one = fit_on(CUDABackend(device.Device(0)), model, *rows("binary"))
    monkeypatch.setattr(device, "kernel_of", None)
    other = fit_on(CUDABackend(device.Device(0)), model, *rows("binary"))
    assert_array_equal(one.factors_, other.factors_)


def test_a_pickled_model_goes_on_without_the_gpu(monkeypatch):
    X, y = rows("binary")
    params = {"warm_start": True, "max_iter": 2, "early_stopping": False, "random_state": 0}
    model = FMClassifier(3, device="cuda", **params).fit(X, y)
    scores, saved = model.decision_function(X), pickle.dumps(model)

    def refuse(number):
        raise DeviceUnavailableError("none.")

    monkeypatch.setattr(backends, "_cuda", refuse)
    loaded = pickle.loads(saved)
    assert_allclose(loaded.decision_function(X), scores, atol=1e-5)
    assert loaded.set_params(device="cpu").fit(X, y).n_iter_ == 4


@pytest.mark.parametrize("early_stopping", [False, True])
def test_epochs_of_several_fits_are_those_of_one(early_stopping):
    X, y = make_clicks(20_000, (3000, 100, 10), random_state=0)
    params = {"n_iter_no_change": None, "device": "cuda", "random_state": 0}
    model = FMClassifier(16, warm_start=True, early_stopping=False, **params)
    for _ in range(3):
        model.set_params(max_iter=1).fit(X, y)
    whole = FMClassifier(16, max_iter=3, early_stopping=early_stopping, **params)
    whole.fit(X, y, X_val=X, y_val=y) if early_stopping else whole.fit(X, y)
    # The loss falls, so the third epoch is the best.
    for name in (*model._weight_names, "loss_curve_"):
        assert_array_equal(getattr(whole, name), getattr(model, name), err_msg=name)


def test_memory_is_given_back():
    X, y = make_clicks(50_000, (3000, 100), random_state=0)
    model = FMRegressor(64, max_iter=1, early_stopping=False, device="cuda")
    free = []
    for _ in range(3):
        clone(model).fit(X, y).predict(X)
        free.append(GPU.device.free_memory())
    assert free[2] > free[0] - 10_000_000


PREDICTING = """
import gc
import pickle
import sys
import threading

from freqfm import backends

with open(sys.argv[1], "rb") as file:
    model, X = pickle.load(file)
device = backends.get("cuda").device

def predict():
    for _ in range(30):
        model.predict(X)

def predict_in_a_thread():
    thread = threading.Thread(target=predict)
    thread.start()
    thread.join()

predict_in_a_thread()
predict()
free = device.free_memory()
for _ in range(5):
    predict_in_a_thread()
    predict()
gc.collect()
print(free - device.free_memory())
"""


def test_processes_and_threads_that_only_predict_give_memory_back(tmp_path):
    # Training may leave a context behind, without which memory cannot be freed.
    X, y = make_clicks(50_000, (3000, 100), random_state=0)
    model = FMRegressor(64, max_iter=1, early_stopping=False, device="cuda").fit(X, y)
    path = tmp_path / "model"
    path.write_bytes(pickle.dumps((model, X)))
    done = python(PREDICTING, path)
    assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr
    assert int(done.stdout) < 50_000_000


ON_THE_SECOND = """
from cuda.bindings import driver

from freqfm import MFRecommender
from freqfm.datasets import make_interactions

X = make_interactions(500, 300, 8000, random_state=0)
model = MFRecommender(8, n_negatives=64, max_iter=2, random_state=0, device="cuda:1").fit(X)
model.recommend(X)
print(driver.cuDevicePrimaryCtxGetState(0)[2])
"""


def test_the_second_gpu_leaves_the_first_alone():
    try:
        backends.get("cuda:1")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    done = python(ON_THE_SECOND)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]


IN_THREADS = """
from concurrent.futures import ThreadPoolExecutor

from numpy.testing import assert_array_equal

from freqfm import FMClassifier
from freqfm.datasets import make_clicks

X, y = make_clicks(20_000, (3000, 100, 10), random_state=0)

def fit(seed):
    params = {"max_iter": 5, "batch_size": 1000, "early_stopping": False, "n_iter_no_change": None}
    return FMClassifier(16, random_state=seed, device="cuda", **params).fit(X, y).factors_

alone = [fit(seed) for seed in range(4)]
with ThreadPoolExecutor(4) as threads:
    together = list(threads.map(fit, range(4)))
for one, other in zip(alone, together):
    assert_array_equal(one, other)
"""


@pytest.mark.parametrize("of_thread", ["0", "1"])
def test_threads_train_at_once(of_thread):
    # Each thread may have a default stream of its own.
    done = python(IN_THREADS, timeout=300, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=of_thread)
    assert done.returncode == 0, done.stderr


def test_no_room_is_a_memory_error():
    n = 2 * GPU.device.free_memory() // 4
    with pytest.raises(MemoryError, match="MB are free"):
        GPU.device.empty(n, np.float32)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_an_interrupt_leaves_the_last_epoch():
    X, y = make_clicks(200_000, (3000, 100), random_state=0)
    model = FMClassifier(
        16, max_iter=100_000, n_iter_no_change=None, early_stopping=False, device="cuda"
    )
    clone(model).set_params(max_iter=1).fit(X, y)
    threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert time.perf_counter() - started < 60
    assert model.n_iter_ >= 1 and np.isfinite(model.factors_).all()
    assert np.isfinite(model.predict_proba(X)).all()


def test_divergence_is_found():
    X = sparse.csr_array(np.full((100, 3), 100, dtype=np.float32))
    model = FMRegressor(2, optimizer="sgd", learning_rate=10.0, device="cuda", max_iter=5)
    with pytest.raises(DivergenceError):
        model.fit(X, np.arange(100.0))
