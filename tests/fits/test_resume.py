"""Fits that were killed or interrupted are resumed from a checkpoint, to the same model."""

import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import stat
import time
import warnings
import zipfile

import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    DeepFMRegressor,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    FwFMRegressor,
    MFRecommender,
    RaFMClassifier,
    RaFMRegressor,
)
from freqfm.auxiliary import NCL
from freqfm.backbones import Features, LightGCN
from freqfm.callbacks import Checkpoint, resume
from freqfm.callbacks import _storage as storage
from freqfm.datasets import make_clicks, make_interactions
from freqfm.losses import BSL, SLatK, Softmax
from freqfm.optimizers import CFSGD, FASGD, Adam
from freqfm.samplers import DNS, MIDX, Kernel
from freqfm.temperatures import AdapTau, Temperature

FM = {"n_components": 3, "max_iter": 5, "batch_size": 100, "random_state": 0}
RAFM = {"ranks": (2, 4), "rank_assignment": [10], "max_iter": 4, "random_state": 0}
MF = {"n_components": 4, "max_iter": 4, "random_state": 0}
VAE = {"n_components": 4, "hidden_layer_sizes": (8,), "max_iter": 4, "random_state": 0}

MODELS = {
    "fm": FMClassifier(**FM, early_stopping=True),
    "fm_stopped": FMClassifier(**{**FM, "max_iter": 30}, early_stopping=True, n_iter_no_change=2),
    "fm_all_rows": FMClassifier(**FM, early_stopping=False, optimizer=CFSGD(count="batch")),
    "fm_balanced": FMClassifier(**FM, class_weight={0: 1, 1: np.float64(2)}),
    "fm_regressor": FMRegressor(**FM, optimizer=FASGD(0.1, counts=np.ones(70))),
    "rafm": RaFMClassifier(**RAFM, early_stopping=True),
    "rafm_regressor": RaFMRegressor(**RAFM, rank_sharing="truncate", optimizer="adam"),
    "deepfm": DeepFMClassifier(
        **FM, hidden_layer_sizes=(4,), fields=np.arange(70) % 3, early_stopping=True
    ),
    "deepfm_regressor": DeepFMRegressor(**FM, hidden_layer_sizes=(4, 3), early_stopping=False),
    "ffm": FFMClassifier(**FM, fields=np.arange(70) % 3, early_stopping=True),
    "fwfm": FwFMClassifier(**FM, fields=np.arange(70) % 3, early_stopping=True),
    "fwfm_regressor": FwFMRegressor(
        **FM, fields=np.arange(70), field_optimizer="adagrad", early_stopping=False
    ),
    "mf": MFRecommender(**MF, early_stopping=True),
    "mf_loss": MFRecommender(**MF, loss=BSL(1.1), optimizer=Adam(lazy=False), temperature=0.2),
    "mf_learned": MFRecommender(**MF, temperature="cu_tau", weight_decay=0.01),
    "mf_adaptive": MFRecommender(**MF, temperature=AdapTau(warm_up=1), loss="softmax"),
    "mf_bpr": MFRecommender(**MF, loss="bpr", negative_sampler=DNS(refresh=3)),
    "mf_mawu": MFRecommender(**MF, loss="mawu", init="prism"),
    "mf_lightgcn": MFRecommender(**MF, backbone=LightGCN(2), early_stopping=True),
    "mf_features": MFRecommender(
        **MF,
        backbone=Features(item_features=sparse.csc_array(np.eye(40, 5))),
        optimizer="cf_sgd",
    ),
    "mf_mlp": MFRecommender(**MF, backbone="mlp", loss="bpr", negative_sampler="aobpr"),
    "mf_auxiliary": MFRecommender(
        **MF, backbone=LightGCN(propagate="batch"), auxiliary=["sgl", NCL(n_clusters=3)], loss="bpr"
    ),
    "mf_macr": MFRecommender(**MF, loss="macr", early_stopping=True),
    "mf_slatk": MFRecommender(**MF, loss=SLatK(k=3, refresh=3)),
    "mf_midx": MFRecommender(
        **MF, loss=Softmax(include_positive=True), negative_sampler=MIDX(refresh=2)
    ),
    "als": ALSRecommender(**MF, early_stopping=True),
    "als_exact": ALSRecommender(**MF, solver="cholesky"),
    "vae": FastVAERecommender(**VAE, early_stopping=True),
    "vae_midx": FastVAERecommender(**VAE, negative_sampler=MIDX(n_codewords=4, refresh=3)),
    "vae_kernel": FastVAERecommender(
        **VAE, negative_sampler=Kernel(refresh=2), temperature="learned", decoder_layer_sizes=[6]
    ),
}


@pytest.fixture(scope="module")
def data():
    X, y = make_clicks(600, (50, 20), random_state=0)
    return (X, y), (make_interactions(60, 40, 500, random_state=0),)


# Kernels of the others take long to compile.
QUICK = ["fm", "fm_all_rows", "mf", "als", "vae"]


def marked(names, quick=QUICK):
    """Return names as parameters, which are slow unless they are quick."""
    return [
        *filter(quick.__contains__, names),
        *slow_params(name for name in names if name not in quick),
    ]


def data_of(model, data):
    return data[hasattr(model, "recommend")]


@pytest.fixture(scope="module")
def uninterrupted(data):
    """Return a function of a name: the fitted model, which no test may change."""

    @functools.cache
    def fit(name):
        return clone(MODELS[name]).fit(*data_of(MODELS[name], data))

    return fit


def learned(model):
    """Return everything that a fit has learned, as nested containers of arrays."""
    params = model.get_params(deep=False)
    return {
        k: v for k, v in model.__getstate__().items() if k not in params and "callback" not in k
    }


def assert_same(one, other, name="model"):
    assert type(one) is type(other), name
    if isinstance(other, dict):
        assert one.keys() == other.keys(), name
        for key in other:
            assert_same(one[key], other[key], f"{name}.{key}")
    elif isinstance(other, (list, tuple)):
        assert len(one) == len(other), name
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{name}[{i}]")
    else:
        assert_array_equal(one, other, err_msg=name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype, name


class Killed(BaseException):
    """What ends the process, as far as a test can tell."""


class Killing(Checkpoint):
    """A checkpoint in whose writing, or just after it, the process is killed."""

    def __init__(self, path, after, every=1):
        super().__init__(path, every=every)
        self.after = after

    def save(self, estimator, progress):
        super().save(estimator, progress)
        self.after -= 1
        if not self.after:
            raise Killed


# Bitwise equality


@pytest.mark.parametrize(
    "name", marked(["fm", "fm_balanced", "fm_regressor", "rafm", "als", "vae"])
)
@pytest.mark.parametrize("n_saved", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_fit_that_is_killed_while_it_trains_on_all_data_goes_on(name, n_saved, data, tmp_path):
    model = clone(MODELS[name]).set_params(max_iter=4)
    given = data_of(model, data)
    expected = clone(model).fit(*given)
    n_saved = min(n_saved, expected.best_iter_)
    with pytest.raises(Killed):
        model.set_callbacks(Killing(tmp_path / "file", expected.n_iter_ + n_saved)).fit(*given)
    again = resume(tmp_path / "file")
    assert again.n_iter_ == n_saved
    again.predict(given[0])
    assert_same(learned(again.fit(*given)), learned(expected))


# Early or late, and both where something outlives an epoch: what is refreshed or counts epochs.
LASTING = ["fm", "fm_stopped", "mf", "mf_bpr", "mf_slatk", "mf_midx", "vae_midx", "vae_kernel"]


@pytest.mark.parametrize(
    ("name", "n_saved"),
    [
        pytest.param(name, n_saved, marks=[pytest.mark.slow] * (name not in QUICK))
        for i, name in enumerate(MODELS)
        for n_saved in ((1, 3) if name in LASTING else (1, 3)[i % 2 :][:1])
    ],
)
def test_resumed_fit_equals_the_uninterrupted_one(name, n_saved, data, uninterrupted, tmp_path):
    model = clone(MODELS[name])
    given = data_of(model, data)
    expected = uninterrupted(name)
    with pytest.raises(Killed):
        model.set_callbacks(Killing(tmp_path / "file", n_saved)).fit(*given)
    again = resume(tmp_path / "file").set_params(n_jobs=1, verbose=0)
    again.predict(given[0])
    assert_same(learned(again.fit(*given)), learned(expected))


def test_a_fit_may_be_killed_again_and_again(data, tmp_path):
    model = clone(MODELS["mf"]).set_params(max_iter=7)
    expected = clone(model).fit(*data[1])
    model.set_callbacks(Killing(tmp_path / "file", 2))
    for n_epochs in (2, 4, 6):
        with pytest.raises(Killed):
            model.fit(*data[1])
        model = resume(tmp_path / "file")
        assert model.n_iter_ == n_epochs
        model.set_callbacks(Killing(tmp_path / "file", 2))
    model.set_callbacks().fit(*data[1])
    assert_same(learned(model), learned(expected))


def test_a_finished_fit_is_finished_when_resumed(data, tmp_path):
    model = clone(MODELS["fm_stopped"]).set_callbacks(Checkpoint(tmp_path / "file", every=4))
    model.fit(*data[0])
    assert_same(learned(resume(tmp_path / "file").fit(*data[0])), learned(model))


def test_random_generators_are_stored(data, tmp_path):
    for random_state in (np.random.RandomState(3), np.random.default_rng(3), None):
        model = clone(MODELS["mf"]).set_params(random_state=random_state)
        model.set_callbacks(Checkpoint(tmp_path / "file")).fit(*data[1])
        again = resume(tmp_path / "file")
        assert_same(learned(again.fit(*data[1])), learned(model))
        if random_state is not None:
            draws = [r.random_state.normal(size=3) for r in (again, model)]
            assert_array_equal(*draws)


def test_warm_start_goes_on_too(data, tmp_path):
    (X,) = data[1]
    model = clone(MODELS["mf"]).set_params(warm_start=True, early_stopping=False).fit(X)
    fewer = X.copy()
    fewer.data[::3] = 0
    expected = pickle.loads(pickle.dumps(model)).fit(fewer)
    with pytest.raises(Killed):
        model.set_callbacks(Killing(tmp_path / "file", 2)).fit(fewer)
    assert_same(learned(resume(tmp_path / "file").fit(fewer)), learned(expected))


def test_labels_and_names_are_stored(data, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = data[0]
    frame = pandas.DataFrame(X.toarray()).rename(columns="f{}".format)
    labels = np.where(y, "yes", "no").astype(object)
    model = FMClassifier(**FM).set_callbacks(Checkpoint(tmp_path / "file")).fit(frame, labels)
    again = resume(tmp_path / "file")
    assert_array_equal(again.predict(frame), model.predict(frame))
    assert_array_equal(again.feature_names_in_, model.feature_names_in_)
    assert_same(learned(again.fit(frame, labels)), learned(model))


# Other data, other files


def test_another_validation_set_is_refused(data, tmp_path):
    X, y = data[0]
    weight = np.where(np.arange(len(y)) % 3, 1.0, 0.0)  # rows of weight zero are left out
    given = {"X_val": X[:50], "y_val": y[:50]}
    model = FMClassifier(**FM).set_callbacks(Killing(tmp_path / "file", 2))
    with pytest.raises(Killed):
        model.fit(X, y, weight, **given)
    again = resume(tmp_path / "file")
    with pytest.raises(ValueError, match=r"y \(validation part\) is not that"):
        again.fit(X, y, weight, **{**given, "y_val": 1 - y[:50]})
    assert_same(
        learned(again.fit(X, y, weight, **given)),
        learned(FMClassifier(**FM).fit(X, y, weight, **given)),
    )


def test_other_data_and_parameters_are_refused(data, tmp_path):
    X, y = data[0]
    path = tmp_path / "file"
    with pytest.raises(Killed):
        clone(MODELS["fm_all_rows"]).set_callbacks(Killing(path, 2)).fit(X, y)
    other = X.copy()
    other.data[0] = 2
    for args, words in (
        ((other, y), "X is not that"),
        ((X, 1 - y), "y is not that"),
        ((X, y, np.full(len(y), 2)), "sample_weight is not that"),
        ((X[:-1], y[:-1]), "X is not that"),
        ((X[:, :-1], y), "69 features"),
    ):
        model = resume(path)
        with pytest.raises(ValueError, match=words):
            model.fit(*args)
        assert model.fit(X, y).n_iter_ == 5  # a call that is refused changes nothing
    with pytest.raises(ValueError, match="batch_size=7 is not that of the fit to be resumed"):
        resume(path).set_params(batch_size=7).fit(X, y)
    with pytest.raises(ValueError, match="optimizer=.*is not that of the fit"):
        resume(path).set_params(optimizer__learning_rate=7).fit(X, y)
    assert clone(resume(path)).set_callbacks().set_params(batch_size=7).fit(X, y).n_iter_ == 5


@pytest.mark.parametrize("name", marked(["fm_all_rows", "mf", "vae_kernel"]))
def test_partial_fit_starts_from_the_checkpoint(name, data, tmp_path):
    given = data_of(MODELS[name], data)
    with pytest.raises(Killed):
        clone(MODELS[name]).set_callbacks(Killing(tmp_path / "file", 2)).fit(*given)
    model = resume(tmp_path / "file").partial_fit(*given)
    assert model.n_iter_ == 3
    # The unfinished fit is discarded: this is a new fit.
    assert_same(
        learned(model.set_callbacks().fit(*given)), learned(clone(MODELS[name]).fit(*given))
    )


def test_models_that_cannot_be_stored_are_refused_before_training(data, tmp_path):
    class Mine(Temperature):
        def refresh(self, epoch, inverse, state, snapshot):
            inverse[:] = 5

    model = MFRecommender(temperature=Mine()).set_callbacks(Checkpoint(tmp_path / "file"))
    with pytest.raises(TypeError, match="cannot hold temperature=.*Mine.*not a public class"):
        model.fit(*data[1])
    assert not (tmp_path / "file").exists()
    assert not hasattr(model, "item_factors_")
    model = MFRecommender().set_callbacks(Checkpoint(tmp_path / "nowhere" / "file"))
    with pytest.raises(FileNotFoundError, match="nowhere.*create it first"):
        model.fit(*data[1])


def test_files_that_cannot_be_written_are_refused_before_training(data, tmp_path, monkeypatch):
    folder, long = tmp_path / "folder", tmp_path / ("x" * 300)
    folder.mkdir()
    model = clone(MODELS["mf"])
    with pytest.raises(IsADirectoryError, match="folder'.*is a folder; give the path of a file"):
        model.set_callbacks(Checkpoint(folder, every=9)).fit(*data[1])
    with pytest.raises(OSError, match="xxx.*no file can be written there"):
        model.set_callbacks(Checkpoint(long, every=9)).fit(*data[1])
    assert list(tmp_path.iterdir()) == [folder]

    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, "open", refuse, raising=False)
    with pytest.raises(OSError, match="no file can be written there.*Permission denied"):
        model.set_callbacks(Checkpoint(folder / "file", every=9)).fit(*data[1])
    assert not hasattr(model, "item_factors_")


def test_a_link_stays_a_link(data, tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "file", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):  # the second time the target exists
        model = clone(MODELS["mf"]).set_callbacks(Checkpoint(link)).fit(*data[1])
        assert link.is_symlink() and not target.is_symlink()
    assert_same(learned(resume(link)), learned(resume(target)))
    target.unlink(), target.parent.rmdir()
    with pytest.raises(FileNotFoundError, match="disk.*create it first"):
        model.fit(*data[1])


def test_a_path_is_relative_to_where_it_was_given(data, tmp_path, monkeypatch):
    class Moving(Checkpoint):
        def save(self, estimator, progress):
            os.chdir(tmp_path / "other")
            super().save(estimator, progress)

    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    clone(MODELS["mf"]).set_callbacks(Moving("file")).fit(*data[1])
    assert resume(tmp_path / "file").n_iter_ == 4
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "1"])
def test_every_must_be_a_number_of_epochs(every):
    with pytest.raises(ValueError, match="every=.*integer of at least 1"):
        Checkpoint("file", every=every)


def test_a_full_disk_is_warned_of_and_the_fit_continues(data, tmp_path, monkeypatch):
    path, replace, n_calls = tmp_path / "file", os.replace, itertools.count()

    def fail_at_second(*args):
        if next(n_calls) == 1:
            raise OSError(28, "No space left on device")
        replace(*args)

    model = clone(MODELS["mf_loss"]).set_callbacks(Checkpoint(path))
    expected = clone(MODELS["mf_loss"]).fit(*data[1])
    monkeypatch.setattr(os, "replace", fail_at_second)
    with pytest.warns(UserWarning, match="could not be written.*No space left.*earlier epoch"):
        model.fit(*data[1])
    assert_same(learned(model), learned(expected))
    # The next epochs were written again.
    assert next(n_calls) == 4 and resume(path).n_iter_ == 4
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_earlier_file(data, tmp_path, monkeypatch):
    path, replace, n_calls = tmp_path / "file", os.replace, itertools.count()

    def fail_from_third(*args):
        if next(n_calls) >= 2:
            raise PermissionError(13, "read by another process")
        replace(*args)

    monkeypatch.setattr(os, "replace", fail_from_third)
    with pytest.warns(UserWarning, match="could not be written.*another process"):
        model = clone(MODELS["mf"]).set_callbacks(Checkpoint(path)).fit(*data[1])
    monkeypatch.undo()
    assert resume(path).n_iter_ == 2
    assert_same(learned(resume(path).fit(*data[1])), learned(model))


@pytest.mark.skipif(os.name != "posix", reason="other systems do not open folders")
def test_folders_that_cannot_be_synchronized(data, tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be written")
        clone(MODELS["als"]).set_callbacks(Checkpoint(tmp_path / "file")).fit(*data[1])
    assert resume(tmp_path / "file").n_iter_ > 0


def test_two_writers_of_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace = os.replace

    def write_another_first(temporary, target):
        # As another thread does, or a process of the same number in another container.
        monkeypatch.setattr(os, "replace", replace)
        storage.save(path, {"format": 2})
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", write_another_first)
    storage.save(path, {"format": 1, "weights": np.ones(9)})
    assert storage.load(path)["format"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_have_left_is_removed(data, tmp_path):
    path = tmp_path / "file"
    abandoned, recent, others = (
        tmp_path / f".{name}.{number * 32}.tmp"
        for name, number in (("file", "a"), ("file", "b"), ("file.2", "a"))
    )
    for temporary in (abandoned, recent, others):
        temporary.write_bytes(b"PK")
    for temporary in (abandoned, others):
        os.utime(temporary, (time.time() - 7200,) * 2)
    clone(MODELS["als"]).set_callbacks(Checkpoint(path)).fit(*data[1])
    assert set(tmp_path.iterdir()) == {path, recent, others}


def test_too_little_memory_is_not_a_damaged_file(data, tmp_path, monkeypatch):
    clone(MODELS["als"]).set_callbacks(Checkpoint(tmp_path / "file")).fit(*data[1])

    def fail(*args, **kwargs):
        raise MemoryError("no memory left")

    monkeypatch.setattr(np.lib.format, "read_array", fail)
    with pytest.raises(MemoryError, match="no memory left"):
        resume(tmp_path / "file")


@pytest.mark.parametrize("name", marked(["vae", "vae_midx"]))
def test_damaged_and_foreign_files(name, data, tmp_path):
    path = tmp_path / "file"
    clone(MODELS[name]).set_callbacks(Checkpoint(path)).fit(*data[1])
    content, whole = path.read_bytes(), resume(path)
    generator, n_refused = random.Random(0), 0
    for _ in range(30):
        broken = bytearray(content)
        place = generator.randrange(len(broken))
        broken[place : place + 8] = generator.randbytes(8)
        path.write_bytes(bytes(broken) if generator.random() < 0.5 else content[:place])
        try:
            found = resume(path)
            found.predict(*data[1])
        except ValueError as error:
            assert str(path) in str(error) or "not what fit left" in str(error)
            n_refused += 1
        else:  # what is damaged is not used, such as a time
            assert_same(learned(found), learned(whole))
    assert n_refused > 20
    with pytest.raises(FileNotFoundError):
        resume(tmp_path / "other")


def test_untrusted_files_make_nothing_but_models(tmp_path):
    for value in (
        {"class": ["os", "system"], "params": {"dict": []}, "learned": {"dict": []}},
        {"class": ["freqfm.callbacks", "Checkpoint"], "params": {"dict": []}},
        {"class": ["freqfm.losses", "Component"], "params": {"dict": []}},
        {"class": ["freqfm", "importlib"], "params": {"dict": []}},
        {"generator": {"dict": [["bit_generator", "default_rng"]]}},
    ):
        with zipfile.ZipFile(tmp_path / "file", "w") as archive:
            archive.writestr("header.json", json.dumps(value))
        with pytest.raises(ValueError, match="not a file of freqfm.callbacks.Checkpoint"):
            resume(tmp_path / "file")
    storage.save(tmp_path / "file", {"format": 1, "estimator": Adam(), "progress": {}})
    with pytest.raises(ValueError, match="no estimator that can be resumed"):
        resume(tmp_path / "file")
    storage.save(tmp_path / "file", {"format": 99})
    with pytest.raises(ValueError, match="with the version that wrote it"):
        resume(tmp_path / "file")


@pytest.fixture
def saved(data, tmp_path):
    """Return a path, and what a killed fit of a model has written to a file."""

    def save(name):
        with pytest.raises(Killed):
            fit = clone(MODELS[name]).set_callbacks(Killing(tmp_path / "whole", 2)).fit
            fit(*data_of(MODELS[name], data))
        return storage.load(tmp_path / "whole")

    return tmp_path / "file", save


DELETED = object()


def changed(value, path, new):
    """Return nested dicts with another value at a path, or without what is there."""
    first, *rest = path
    kept = {key: v for key, v in value.items() if key != first}
    if new is DELETED and not rest:
        return kept
    return {**kept, first: changed(value[first], rest, new) if rest else new}


NO_NUMBERS = "x", None, [], {1: 2}, {"x": 1}


@each(
    "path, news",
    [
        ("every", (DELETED, 0, -1, 2.5, *NO_NUMBERS)),
        ("progress", (DELETED, 1, *NO_NUMBERS)),
        ("progress.fingerprint", (DELETED, 1, "x", None, [])),
        ("progress.phase", (DELETED, 2.5, *NO_NUMBERS)),
    ],
)
def test_files_without_what_resuming_needs(path, news, saved):
    file, save = saved
    value = save("als")
    for new in news:
        storage.save(file, changed(value, path.split("."), new))
        with pytest.raises(ValueError, match=f"{re.escape(str(file))} holds no estimator that can"):
            resume(file)


STATES = {
    "progress.phase": (7, -1),
    "progress.loop": (DELETED, *NO_NUMBERS),
    "progress.extra": (DELETED, "x", None, [], 3),
    **{
        f"progress.loop.{name}": (DELETED, *NO_NUMBERS)
        for name in ("first_epoch", "best_epoch", "best_score", "to_beat", "since_best")
    },
    "progress.loop.first_epoch ": (-1, 3, 10**20, 0.5),
    "progress.loop.best_epoch ": (3, 10**20),
    "progress.extra.folds": (DELETED, "x", [[np.ones(3)]]),
    "progress.loop.best": (DELETED, "x", None, {}, [], [np.ones(3)] * 7),
}
OF_MODELS = {
    "fm": STATES,
    "fm_all_rows": {"progress.phase": (1,)},
    "mf_midx": {
        "progress.extra.proposal": (DELETED, "x", 3, {1: 2}, {"x": 1}),
        "progress.extra.proposal.codewords": (DELETED, True, np.ones((2, 3)), np.ones(2, "f4")),
        "progress.extra.proposal.aliases": (np.full((40, 5), 10**6, np.int32),),
        "progress.extra.proposal.code": (99,),
    },
    "mf_slatk": {
        "progress.extra.thresholds": (DELETED, np.ones(3), "x", {1: 2}, np.float32(1), np.ones(60))
    },
}


@pytest.mark.parametrize("n_values", [1, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", marked(OF_MODELS))
def test_damaged_states_of_training_are_refused(name, n_values, data, saved):
    file, save = saved
    value = save(name)
    for path, news in OF_MODELS[name].items():
        for new in news[:n_values]:
            storage.save(file, changed(value, path.strip().split("."), new))
            model = resume(file)
            before = learned(model)
            with pytest.raises(ValueError, match="state of training in the checkpoint does not"):
                model.fit(*data_of(model, data))
                pytest.fail(f"{path} may be {new!r}")
            assert_same(before, learned(model))


# Attributes of scikit-learn, which it checks itself.
NOT_READ = ["n_features_in_", "feature_names_in_"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_attributes_that_are_missing_or_of_another_type(name, data, saved):
    file, save = saved
    value = save(name)
    kept = dict(vars(value["estimator"]))
    for attribute in set(learned(value["estimator"])) - set(NOT_READ):
        for new in (DELETED, "x", np.ones(3)):
            vars(value["estimator"])[attribute] = new
            if new is DELETED:
                del vars(value["estimator"])[attribute]
            storage.save(file, value)
            vars(value["estimator"]).update(kept)
            model = resume(file)
            try:
                model.fit(*data_of(model, data))
            except Exception as error:
                assert isinstance(error, ValueError), f"{attribute} {new!r}: {error!r}"


#: Arrays of checkpoints that kernels read, and of which a file may hold another type.
OF_KERNELS = {
    "als": ["user_factors_", "item_factors_", "_history.weights"],
    "fm": ["factors_", "_n_steps", "_target_sums"],
    "mf_learned": [
        "user_factors_",
        "_inverse_temperatures",
        "_training.n_steps",
        "_training.statistics",
        "_training.shared_state",
        "_training.optimizer.user_factors.first",
    ],
    "vae_midx": ["layers_", "_training.codewords"],
}


def replaced(value, path, change):
    """Return what a dict, a named tuple or a list holds, with changed arrays at a path."""
    if not path:
        return [change(one) for one in value] if isinstance(value, list) else change(value)
    parts = value._asdict() if hasattr(value, "_asdict") else value
    parts = {**parts, path[0]: replaced(parts[path[0]], path[1:], change)}
    return type(value)(**parts) if hasattr(value, "_asdict") else parts


def dtypes(value):
    """Return the types of all arrays in nested containers."""
    if isinstance(value, dict):
        return {key: dtypes(one) for key, one in value.items()}
    return list(map(dtypes, value)) if isinstance(value, (list, tuple)) else np.asarray(value).dtype


@pytest.mark.parametrize("name", marked(OF_KERNELS, ["als"]))
def test_arrays_of_another_type_are_converted_or_refused(name, data, saved):
    file, save = saved
    value = save(name)
    kept = dict(vars(value["estimator"]))

    def resumed(path, change):
        first, *rest = path.split(".")
        vars(value["estimator"])[first] = replaced(kept[first], rest, change)
        storage.save(file, value)
        vars(value["estimator"]).update(kept)
        model = resume(file)
        return model.fit(*data_of(model, data))

    expected = learned(resumed(OF_KERNELS[name][0], lambda array: array))
    for path in OF_KERNELS[name]:
        wide = resumed(path, lambda array: array.astype(f"{array.dtype.kind}8"))
        assert_same(learned(wide), expected, path)
        narrow = learned(resumed(path, lambda array: array.astype(f"{array.dtype.kind}4")))
        assert dtypes(narrow) == dtypes(expected)
        for change in (lambda array: np.zeros((), array.dtype), lambda array: array + 0j):
            with pytest.raises(ValueError, match=re.escape(path.split(".")[0])):
                resumed(path, change)


@each("name", ["loss_curve_", "validation_scores_"])
def test_records_of_epochs_are_not_integers(name, data, saved):
    file, save = saved
    value = save("fm")
    record = vars(value["estimator"])[name]
    vars(value["estimator"])[name] = record.astype(np.int64)
    storage.save(file, value)
    vars(value["estimator"])[name] = record
    model = resume(file)
    with pytest.raises(ValueError, match=f"{name} of FMClassifier is of type int64"):
        model.fit(*data_of(model, data))


def test_the_best_epoch_in_a_file_has_the_types_of_the_model(data, saved):
    file, save = saved
    value = save("mf")
    best = value["progress"]["loop"]["best"]
    for wrong in (best[0].astype(float), best[0].astype(object), np.float32(0), best[0][None]):
        storage.save(file, changed(value, ["progress", "loop", "best"], [wrong, *best[1:]]))
        model = resume(file)
        with pytest.raises(ValueError, match=r"an array of shape .*, where \(60, 4\) and float32"):
            model.fit(*data_of(model, data))


@each("name", [1, None, 2.5, "fit", "predict", "get_params"])
def test_names_that_no_attribute_has_are_refused(name, saved, monkeypatch):
    file, save = saved
    value = save("als")
    vars(value["estimator"])["other"] = 3
    encode = storage._encode

    def renamed(value, arrays, what):
        if isinstance(value, dict) and "other" in value:
            value = {name if key == "other" else key: v for key, v in value.items()}
        return encode(value, arrays, what)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "_encode", renamed)
        storage.save(file, value)
    with pytest.raises(ValueError, match=f"{re.escape(repr(name))} is no name of an attribute"):
        resume(file)


@pytest.mark.parametrize("name", marked(["fm_regressor", "mf_learned", "als"]))
def test_files_of_the_other_byte_order(name, data, uninterrupted, saved, monkeypatch):
    file, save = saved
    write = np.lib.format.write_array

    def swapped(member, array, **options):
        write(member, array.astype(array.dtype.newbyteorder()), **options)

    monkeypatch.setattr(np.lib.format, "write_array", swapped)
    storage.save(file, save(name))
    model = resume(file)
    assert_same(learned(model.fit(*data_of(model, data))), learned(uninterrupted(name)))


@each("indices", [[0, 7], [-1, 0]])
def test_indices_of_sparse_matrices_in_files_are_checked(indices, tmp_path):
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        matrix = {"csr": {"list": [{"array": i} for i in range(3)]}, "shape": [1, 3]}
        archive.writestr("header.json", json.dumps(matrix))
        for i, array in enumerate([[1.0, 1.0], indices, [0, 2]]):
            with archive.open(f"{i}.npy", "w") as member:
                np.lib.format.write_array(member, np.array(array))
    with pytest.raises(ValueError, match="not a file of freqfm.callbacks.Checkpoint"):
        storage.load(tmp_path / "file")


def test_only_estimators_of_this_package_write_checkpoints(tmp_path):
    pytest.importorskip("sklearn.callback")
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression()
    if not hasattr(model, "set_callbacks"):
        pytest.skip("no estimator of scikit-learn takes callbacks")
    with pytest.raises(TypeError, match="does not write checkpoints"):
        model.set_callbacks(Checkpoint(tmp_path / "file")).fit([[0], [1]], [0, 1])


# Real kills


def _train(model, given, done, output):
    """Fit in a child process, which is to be killed; print to a pipe, and store what is learned."""
    with os.fdopen(output, "w", buffering=1) as stream, contextlib.redirect_stdout(stream):
        model.set_params(n_jobs=2, verbose=1).fit(*given)
    unfinished = done.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(learned(model)))
    unfinished.rename(done)


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork"
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
# One of each kind: the others write and read their checkpoints by the same code.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rafm", "mf"])
def test_killed_at_random_moments(name, data, tmp_path):
    given = data_of(MODELS[name], data)
    # Kernels are loaded, or compiled, before a fit is timed and the children are forked.
    expected = clone(MODELS[name]).fit(*given)
    begun = time.monotonic()
    clone(MODELS[name]).set_callbacks(Checkpoint(tmp_path / "other")).fit(*given)
    lasted = time.monotonic() - begun
    path, done = tmp_path / "path", tmp_path / "done"
    generator = random.Random(name)
    context = multiprocessing.get_context("fork")
    n_kills = 0
    while not done.exists():
        model = clone(MODELS[name]).set_callbacks(Checkpoint(path))
        if path.exists():
            model = resume(path)
        reader, writer = os.pipe()
        child = context.Process(target=_train, args=(model, given, done, writer))
        child.start()
        os.close(writer)
        # At first within the fit; if nothing is ever finished, later and later.
        time.sleep(generator.uniform(0, lasted * (1 + n_kills / 8)))
        child.kill()
        child.join()
        with os.fdopen(reader) as stream:
            lines = stream.read()
        n_kills += 1
        assert n_kills < 200
        # Of the phase that was interrupted: a refit counts its epochs from 1.
        lines = lines.rpartition("fitting all data")[2]
        seen = [int(epoch) for epoch in re.findall(r"epoch +(\d+)/", lines)]
        if seen or path.exists():
            model = resume(path)  # never broken
            model.predict(given[0])
            # An epoch is written before it is reported.
            assert model.n_iter_ >= max(seen, default=0)
    assert n_kills > 1
    assert_same(pickle.loads(done.read_bytes()), learned(expected))
