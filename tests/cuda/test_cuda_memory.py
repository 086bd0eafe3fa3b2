"""Weights stay on an emulated GPU between epochs, and come back whenever somebody looks."""

import traceback
from typing import NamedTuple

import numpy as np
import pytest
from emulated_gpu import EmulatedDevice
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from test_resume import Killed, Killing, assert_same, learned

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    MFRecommender,
    backends,
)
from freqfm import _dense as _quantization
from freqfm.backbones import LightGCN
from freqfm.backends.base import Trainer
from freqfm.backends.cuda import memory as quantization
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.callbacks import resume
from freqfm.exceptions import DivergenceError

N_COLUMNS = 400

MF = {"n_components": 3, "n_negatives": 2, "batch_size": 30, "random_state": 0}
MODELS = {
    "fm": FMClassifier(3, batch_size=20, early_stopping=False, random_state=0),
    "classes": FMClassifier(2, batch_size=20, early_stopping=False, random_state=0),
    "mf": MFRecommender(**MF),
    "als": ALSRecommender(3, random_state=0),
    "temperatures": MFRecommender(**MF, temperature="adap_tau"),
    "margins": MFRecommender(3, loss="mawu", batch_size=30, random_state=0),
    "drawn": MFRecommender(**MF, negative_sampler="midx_uniform"),
    "propagated": MFRecommender(**MF, backbone=LightGCN()),
    # Its default rates fall over max_iter.
    "vae": FastVAERecommender(
        3,
        negative_sampler="full",
        batch_size=30,
        early_stopping=False,
        learning_rate=0.01,
        hidden_layer_sizes=(4,),
        random_state=0,
    ),
}


class Interrupting(EmulatedDevice):
    """A device on which the user interrupts a launch."""

    def __init__(self, launch):
        super().__init__()
        self.left = launch

    def run(self, *args, **options):
        """Run phases, if any launches are left."""
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().run(*args, **options)


@pytest.fixture
def fit_on(monkeypatch):
    """Return a function that fits an estimator by a device."""

    def fit_on(device, model, *data, **options):
        monkeypatch.setattr(backends, "_cuda", lambda number: CUDABackend(device))
        return model.set_params(device="cuda").fit(*data, **options)

    return fit_on


def assert_same_learned(one, other):
    # Codewords are where the next epoch's search for codewords begins, also after an interrupt.
    one, other = learned(one), learned(other)
    for state in (one, other):
        if "_training" in state:
            state["_training"] = {**state["_training"], "codewords": None}
    assert_same(one, other)


def data_of(name):
    X = sparse.random(40, N_COLUMNS, 0.01, format="lil", dtype=np.float32, random_state=0)
    X[:, 0] = 1
    X = X.tocsr()
    if name in ("fm", "classes"):
        return X, np.arange(40) % (3 if name == "classes" else 2)
    X.data[:] = 1
    return (X,)


SLOW_MODELS = MODELS.keys() - {"fm"}
QUICK_AND_SLOW = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_MODELS)) for name in MODELS],
)


@QUICK_AND_SLOW
def test_weights_are_not_moved_in_each_epoch(fit_on, name):
    copied = []
    for max_iter in (2, 3):
        device = EmulatedDevice()
        model = fit_on(device, clone(MODELS[name]).set_params(max_iter=max_iter), *data_of(name))
        copied.append(device.n_copied)
    tables = [model.item_factors_ if name == "als" else getattr(model, "factors_", None)]
    if isinstance(model, (MFRecommender, FastVAERecommender)):
        tables = model._tables().values()
    # What looks at the items' vectors in each epoch gets them, but not the optimizer's state. Codes
    # of items, and a sampler's proposal by these, are longer than vectors of three numbers.
    n_bytes = sum(table.nbytes for table in tables)
    looks = {"temperatures": 3, "drawn": 5, "propagated": 6}.get(name, 1)
    assert 0 < copied[1] - copied[0] < n_bytes * looks


@QUICK_AND_SLOW
def test_an_interrupt_at_any_launch_leaves_the_last_epoch(fit_on, name):
    model, data = clone(MODELS[name]).set_params(max_iter=3, warm_start=True), data_of(name)
    whole, never = {}, 10_000
    for n_epochs in (1, 2, 3):
        device = Interrupting(never)
        whole[n_epochs] = fit_on(device, clone(model).set_params(max_iter=n_epochs), *data)
    found = set()
    for launch in np.unique(np.linspace(0, never - device.left - 1, 12).astype(int)):
        fitted = clone(model)
        with pytest.raises(KeyboardInterrupt):
            fit_on(Interrupting(launch), fitted, *data)
        n_epochs = getattr(fitted, "n_iter_", 0)
        found.add(n_epochs)
        if n_epochs:
            assert_same_learned(fitted, whole[n_epochs])
    assert found == {0, 1, 2}


def test_an_interrupted_warm_start_leaves_the_model_before(fit_on):
    X, y = data_of("fm")
    model = clone(MODELS["fm"]).set_params(max_iter=1, warm_start=True)
    before = fit_on(EmulatedDevice(), clone(model), X, y)
    for launch in range(3):
        fitted = fit_on(EmulatedDevice(), clone(model), X, y)
        with pytest.raises(KeyboardInterrupt):
            fit_on(Interrupting(launch), fitted, X, y)
        assert_same_learned(fitted, before)


class Failing(EmulatedDevice):
    """A device that fails: by its memory, when snapshots are made, or for good."""

    def __init__(self, left=None, is_full=False):
        super().__init__()
        self.left, self.is_full, self.is_lost = left, is_full, False

    def empty(self, shape, dtype):
        """Return an array, unless a snapshot asks for it."""
        callers = {frame.name for frame in traceback.extract_stack()}
        if self.is_full and {"_keep_best", "save"} <= callers:
            raise MemoryError("no memory is left")
        return super().empty(shape, dtype)

    def run(self, *args, **options):
        """Run phases until the device is lost."""
        if self.left is not None:
            self.is_lost = self.left == 0
            self.left -= 1
        self._check()
        super().run(*args, **options)

    def copy(self, *args):
        """Copy from array to array on the device."""
        self._check()
        super().copy(*args)

    def to_host(self, *args):
        """Copy from the device."""
        self._check()
        return super().to_host(*args)

    def _check(self):
        if self.is_lost:
            raise RuntimeError("an illegal memory access was encountered")


def test_a_best_epoch_without_room_for_a_copy_is_undone(fit_on):
    X, y = data_of("fm")
    model = clone(MODELS["fm"]).set_params(max_iter=1, warm_start=True, early_stopping=True)
    before = fit_on(EmulatedDevice(), clone(model), X, y, X_val=X, y_val=y)
    fitted = fit_on(EmulatedDevice(), clone(model), X, y, X_val=X, y_val=y)
    with pytest.raises(MemoryError, match="no memory is left"):
        fit_on(Failing(is_full=True), fitted, X, y, X_val=X, y_val=y)
    assert_same_learned(fitted, before)


@pytest.mark.parametrize("name", ["fm", "mf"])
def test_a_device_that_is_lost_leaves_no_model(fit_on, name):
    counting = Failing(10_000)
    fit_on(counting, clone(MODELS[name]).set_params(max_iter=3), *data_of(name))
    for launches in (0, (10_000 - counting.left) // 2, 10_000 - counting.left - 1):
        model = clone(MODELS[name]).set_params(max_iter=3)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            fit_on(Failing(launches), model, *data_of(name))
        assert not hasattr(model, "n_iter_")


@pytest.mark.parametrize(
    "unit, n_subspaces, n_codewords, n_groups, n_lanes",
    [(False, 2, 4, 3, 1), (True, 2, 4, 16, 1), (True, 1, 5, 2, 4), (False, 3, 1, 3, 1)],
)
def test_rows_are_quantized_where_they_are(
    monkeypatch, unit, n_subspaces, n_codewords, n_groups, n_lanes
):
    monkeypatch.setattr(quantization, "_PRODUCTS", 60)  # several parts
    monkeypatch.setattr(_quantization, "_POINTS_PER_CODEWORD", 3)  # a sample
    table = np.random.default_rng(0).normal(size=(19, 7)).astype(np.float32)
    table[5], table[6] = 0, table[7]
    given, options = table.copy(), (n_subspaces, n_codewords, 0)
    first = Trainer().quantize(table, 6, unit, (*options, None))
    later = Trainer().quantize(table, 6, unit, (*options, first[0]))
    trainer = DeviceTrainer(EmulatedDevice(n_groups, n_lanes=n_lanes))
    trainer.add(Arrays(given[0], given[1], table))
    found = trainer.quantize(table, 6, unit, (*options, None))
    trainer.hold()
    trainer.changed()
    table[:] = np.nan  # out of date
    found += trainer.quantize(table, 6, unit, (*options, found[0]))
    for one, other in zip(found, (*first, *later), strict=True):
        assert_array_equal(one, other)
    assert_array_equal(trainer.take(table, np.array([8, 5]), slice(6, None)), given[[8, 5], 6:])
    assert_array_equal(trainer.take(table, slice(None), slice(1, 3)), given[:, 1:3])


def test_divergence_is_found_on_the_device(fit_on):
    X, y = data_of("fm")
    model = FMRegressor(2, optimizer="sgd", learning_rate=1e4, early_stopping=False, max_iter=9)
    with pytest.raises(DivergenceError, match="largest weight"):
        fit_on(EmulatedDevice(), model, 100 * X, y)


class Watch:
    """A callback that looks at the estimator itself."""

    def __init__(self):
        self.seen = []

    def setup(self, estimator, context):
        """Do nothing."""

    def teardown(self, estimator, context):
        """Do nothing."""

    def on_fit_task_begin(self, estimator, context, **options):
        """Do nothing."""

    def on_fit_task_end(self, estimator, context, **options):
        """Remember the weights."""
        self.seen.append(estimator.factors_.copy())


def test_callbacks_see_the_weights_of_their_epoch(fit_on):
    pytest.importorskip("sklearn.callback")
    X, y = data_of("fm")
    model, watch = clone(MODELS["fm"]).set_params(max_iter=3), Watch()
    fit_on(EmulatedDevice(), model.set_callbacks(watch), X, y)
    for n_epochs, seen in zip((1, 2, 3), watch.seen, strict=False):
        expected = fit_on(EmulatedDevice(), clone(MODELS["fm"]).set_params(max_iter=n_epochs), X, y)
        assert_array_equal(seen, expected.factors_)


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("folds", "mf")]


@pytest.mark.parametrize("name", ["validation", *SLOWER])
def test_a_resumed_fit_has_the_best_epoch(fit_on, tmp_path, name):
    model, data, options = clone(MODELS["fm"]).set_params(max_iter=4), data_of("fm"), {}
    if name == "folds":
        model.set_params(early_stopping=True)
    elif name == "validation":
        options = {"X_val": data[0][::2], "y_val": data[1][::2]}
        # So that the last epoch is not the best.
        model.set_params(learning_rate=0.5, n_iter_no_change=None, early_stopping=True)
    else:
        model, data = clone(MODELS["mf"]).set_params(max_iter=4, early_stopping=True), data_of("mf")
    expected = fit_on(EmulatedDevice(), clone(model), *data, **options)
    for after in (1, 3):
        path = tmp_path / f"{after}"
        with pytest.raises(Killed):
            fit_on(
                EmulatedDevice(), clone(model).set_callbacks(Killing(path, after)), *data, **options
            )
        assert_same_learned(resume(path).fit(*data, **options), expected)


class Arrays(NamedTuple):
    """Arrays of a model."""

    intercept: np.ndarray
    linear: np.ndarray
    factors: np.ndarray


def mirror(*arrays):
    """Return a trainer that holds arrays, and the copies of these."""
    found = DeviceTrainer(EmulatedDevice())
    copies = found.add(Arrays(*arrays))
    found.hold()
    return found, copies


def test_arrays_are_pulled_one_by_one():
    intercept, linear = np.ones(1, dtype=np.float32), np.ones(5, dtype=np.float32)
    factors = np.ones((5, 3), dtype=np.float32)
    held, copies = mirror(intercept, linear, factors)
    for copy in copies:
        copy[...] = 2
    held.changed()
    before = held.device.n_copied
    held.pull([factors])
    assert held.device.n_copied == before + factors.nbytes
    assert (factors == 2).all() and (linear == 1).all()
    held.pull([linear[1:2]])
    assert (linear == 2).all() and (intercept == 1).all()
    held.pull()
    assert held.device.n_copied == before + factors.nbytes + linear.nbytes + intercept.nbytes


@pytest.mark.parametrize("worst", [3.0, -7.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_largest_numbers_are_found(worst, place):
    intercept, linear = np.ones(1, dtype=np.float32), np.ones(5, dtype=np.float32)
    factors = np.ones((5000, 2), dtype=np.float32)
    held, copies = mirror(intercept, linear, factors)
    copies.factors.ravel()[place] = worst
    held.changed()
    expected = np.inf if np.isnan(worst) else abs(worst)
    assert held.largest([factors, linear]) == expected
    assert held.largest([linear]) == 1
    held.pull()
    assert not held.largest([factors]) < expected


def test_other_arrays_are_part_of_a_snapshot():
    held, other = np.ones((5, 3), dtype=np.float32), np.ones(2)
    trainer = DeviceTrainer(EmulatedDevice())
    empty = np.zeros(0, dtype=np.float32)
    with trainer:
        copies = trainer.add(Arrays(empty, empty, held))
        snapshot = trainer.snapshot([held, other])
        for value in (1, 2):
            snapshot.save()
            trainer.hold()
            copies.factors[...] = other[:] = value + 1
            trainer.changed()
        assert_array_equal(snapshot.copies()[0], np.full((5, 3), 2.0))
        assert (other == 3).all()
        snapshot.restore()
    assert (held == 2).all() and (other == 2).all()


@pytest.mark.parametrize("name", ["fm", "classes"])
def test_epochs_of_several_fits_are_those_of_one(fit_on, name):
    model, data = clone(MODELS[name]).set_params(warm_start=True), data_of(name)
    whole = fit_on(EmulatedDevice(), clone(model).set_params(max_iter=3), *data)
    for _ in range(3):
        fit_on(EmulatedDevice(), model.set_params(max_iter=1), *data)
    assert_same_learned(model, whole)
