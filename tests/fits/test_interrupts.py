"""Ctrl-C while a model is trained: the model that remains is complete and has its metadata."""

import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    FMClassifier,
    GraphFilterRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.datasets import RowStream, make_clicks, make_interactions
from freqfm.estimators.training import EpochLoop, Snapshot

MODELS = [
    FMClassifier(n_components=3, early_stopping=False, n_iter_no_change=None, random_state=0),
    # The default learning rate falls over max_iter epochs, which are not those until a signal.
    MFRecommender(n_components=4, learning_rate=0.01, random_state=0),
    ALSRecommender(n_components=4, random_state=0),
    FastVAERecommender(
        4, hidden_layer_sizes=(8,), learning_rate=0.01, early_stopping=False, random_state=0
    ),
]
pytestmark = pytest.mark.usefixtures("ctrl_c")
EVERY = pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)


@pytest.fixture(scope="module")
def data():
    return make_clicks(600, (50, 20), random_state=0), (
        make_interactions(80, 40, 900, random_state=0),
    )


def data_of(model, data):
    return data[0] if isinstance(model, FMClassifier) else data[1]


def interrupt_epoch(monkeypatch, model, epoch):
    """Let a model's training be interrupted within an epoch."""
    check = EpochLoop._check_finite

    def interrupt(loop, loss):
        if loop.epoch == epoch:
            signal.raise_signal(signal.SIGINT)
        return check(loop, loss)

    monkeypatch.setattr(EpochLoop, "_check_finite", interrupt)


@EVERY
def test_first_epoch_leaves_the_estimator_as_it_was(model, data, monkeypatch):
    model, given = clone(model), data_of(model, data)
    interrupt_epoch(monkeypatch, model, 0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*given)
    with pytest.raises(NotFittedError):
        model.predict(given[0])
    monkeypatch.undo()
    predicted = model.set_params(max_iter=1).fit(*given).predict(given[0])
    for params in ({"random_state": 5}, {"warm_start": True}):
        interrupt_epoch(monkeypatch, model, 0 if "random_state" in params else 1)
        with pytest.raises(KeyboardInterrupt):
            model.set_params(**params).fit(*given)
        assert model.n_iter_ == 1
        assert_array_equal(model.predict(given[0]), predicted)
        monkeypatch.undo()
    interrupt_epoch(monkeypatch, model, 1)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(*given)
    assert_array_equal(model.predict(given[0]), predicted)


@EVERY
def test_later_epoch_keeps_the_last_complete_one(model, data, monkeypatch):
    model, given = clone(model), data_of(model, data)
    interrupt_epoch(monkeypatch, model, 2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*given)
    monkeypatch.undo()
    assert model.n_iter_ == len(model.loss_curve_) == 2
    expected = clone(model).set_params(max_iter=2).fit(*given)
    assert_array_equal(model.predict(given[0]), expected.predict(given[0]))


@pytest.mark.parametrize(
    "model, interrupted_phase",
    [
        (EASERecommender(n_neighbors=5), "comparing items"),
        (EASERecommender(n_neighbors=5, n_jobs=2), "regressing every item"),
        (GraphFilterRecommender(9, n_jobs=2), "filtering items"),
        (ItemKNNRecommender(5), "comparing items"),
    ],
)
def test_fits_without_epochs_end_after_a_part(model, interrupted_phase, data, monkeypatch):
    (X,) = data[1]
    expected = clone(model).set_params(n_neighbors=4).fit(X)
    module, n_reported = type(model).__module__, []

    @contextlib.contextmanager
    def parts(verbose, phase, n_parts, unit):
        def report(n_done):
            if phase.startswith(interrupted_phase):
                n_reported.append(n_done)
                signal.raise_signal(signal.SIGINT)

        yield report

    for name in (module, "freqfm.estimators.recommenders.closed_form.base"):
        monkeypatch.setattr(f"{name}.announced_parts", parts, raising=False)
    monkeypatch.setattr(f"{module}._BLOCK_SIZE", 100, raising=False)
    weights = expected.item_weights_
    for method in (clone(model).fit, expected.fit, expected.partial_fit):
        with pytest.raises(KeyboardInterrupt):
            method(X)
        assert len(n_reported) == 1 and n_reported.pop() < X.shape[1]
        assert not hasattr(method.__self__, "item_weights_") or expected.item_weights_ is weights
    assert_array_equal(expected.item_counts_, np.bincount(X.indices, minlength=X.shape[1]))


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_held_out_items_are_known(cls, data, monkeypatch):
    (X,) = data[1]
    model = cls(4, early_stopping=True, validation_fraction=0.3, random_state=0)
    interrupt_epoch(monkeypatch, model, 2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    monkeypatch.undo()
    assert_array_equal(model.item_counts_, np.bincount(X.indices, minlength=X.shape[1]))
    items, _ = model.recommend(users=np.arange(80), n_recommendations=40)
    recommended = np.zeros(X.shape, dtype=bool)
    users, places = np.nonzero(items >= 0)
    recommended[users, items[users, places]] = True
    assert not (recommended & (X.toarray() > 0)).any()


def test_ids_stay_with_the_model(data, monkeypatch):
    pairs = np.column_stack(data[1][0].nonzero())
    model = InteractionRecommender(clone(MODELS[1]).set_params(max_iter=4))
    interrupt_epoch(monkeypatch, model, 0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(pairs)
    assert not hasattr(model, "user_ids_")
    monkeypatch.undo()
    interrupt_epoch(monkeypatch, model, 2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(pairs)
    assert model.estimator_.n_iter_ == 2
    before = model.recommend()[0]
    more = [*map(tuple, pairs.tolist()), (99, 99)]
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(more)
    assert_array_equal(model.recommend()[0], before)
    assert 99 not in model.user_ids_


@pytest.mark.parametrize("method", ["save", "restore"])
def test_signals_while_arrays_are_copied(method, data, monkeypatch):
    # Each copy of an array is followed by a signal; the second ends the epoch.
    whole = getattr(Snapshot, method)

    def interrupted(snapshot):
        signal.raise_signal(signal.SIGINT)
        whole(snapshot)
        signal.raise_signal(signal.SIGINT)

    model = clone(MODELS[0])
    interrupt_epoch(monkeypatch, model, 2)
    if method == "save":
        monkeypatch.setattr(EpochLoop, "_check_finite", lambda loop, loss: None)
        save, n_saved = Snapshot.save, []
        monkeypatch.setattr(
            Snapshot,
            "save",
            lambda snapshot: (
                interrupted(snapshot) if n_saved == [0, 0] else (save(snapshot), n_saved.append(0))
            ),
        )
    else:
        monkeypatch.setattr(Snapshot, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*data[0])
    monkeypatch.undo()
    assert model.n_iter_ == 2
    expected = clone(model).set_params(max_iter=2).fit(*data[0])
    assert_array_equal(model.factors_, expected.factors_)


@EVERY
def test_storm_of_signals(model, data, at_full_rates):
    """Signals at any moment, several in a row: the model is always that of n_iter_ epochs."""
    given = data_of(model, data)
    generator, expected = random.Random(0), {}
    for _ in range(6):
        started, stop = threading.Event(), threading.Event()

        def press(delay, gap, started=started, stop=stop):
            started.wait()
            time.sleep(delay)
            while not stop.is_set():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(gap)

        fitted = clone(model).set_params(max_iter=100_000, n_jobs=2)
        thread = threading.Thread(
            target=press, args=(generator.uniform(0, 0.05), generator.choice([1e-5, 1e-4, 1e-3]))
        )
        thread.start()
        try:
            try:
                started.set()
                fitted.fit(*given)
            finally:
                stop.set()
        except KeyboardInterrupt:
            pass
        while thread.is_alive():
            try:
                stop.set()
                thread.join()
            except KeyboardInterrupt:
                pass
        n_iter = getattr(fitted, "n_iter_", 0)
        if not n_iter:
            assert not hasattr(fitted, "n_features_in_")
            continue
        if n_iter not in expected:
            once = clone(model).set_params(max_iter=n_iter).fit(*given)
            expected[n_iter] = once.predict(given[0]), once.loss_curve_
        assert_array_equal(fitted.predict(given[0]), expected[n_iter][0])
        assert_array_equal(fitted.loss_curve_, expected[n_iter][1])


@pytest.mark.skipif(os.name == "nt", reason="Windows interrupts no thread that waits")
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_source_that_waits_holds_up_no_interrupt(n_before, monkeypatch):
    monkeypatch.setattr("freqfm.datasets.streams._PATIENCE", 0.01)
    asked, arrives, encoded = threading.Event(), threading.Event(), []

    class Encoder:
        def transform(self, X):
            encoded.append(X)
            return X

    def blocks():
        for _ in range(n_before):
            yield np.eye(4), [0, 1, 0, 1]
        asked.set()
        arrives.wait(60)
        yield np.eye(4), [0, 1, 0, 1]

    def interrupt():
        asked.wait(60)
        time.sleep(0.05)  # until the main thread waits for the first chunk, or for the next one
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(RowStream(blocks, encoder=Encoder(), chunk_size=4))
    readers = [t for t in threading.enumerate() if t.name == "freqfm-stream"]
    assert readers and time.monotonic() - began < 50
    # Whatever the source returns in the end is not for an encoder that others may use by now.
    arrives.set()
    for thread in readers:
        thread.join()
    assert len(encoded) == n_before
