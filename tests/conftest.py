"""Shared fixtures."""

import gc
import re
import signal

import numpy as np
import pytest
from scipy.sparse import csr_array

# Modules and tests, which all stay, are not searched for garbage.
gc.disable()


# Two workers begin with a half of the tests each. So that they do not compile the same kernels at
# the same time, factorization machines come first and recommenders in the second half; what uses
# kernels of both, as custom components do, comes later, when other tests have compiled them.
_ORDER = (
    ("cpu/test_rafm", "fm/test_rafm"),
    ("cpu/test_fm", "cpu/test_de", "cpu/test_ff", "cpu/test_fw", "datasets/test_streams"),
    ("fm/",),
    ("cluster/",),
    (),  # the rest
    ("compiled/test_jit", "fits/test_learned_arrays"),
    ("recommenders/test_als", "recommenders/test_mf", "interactions/test_interactions"),
    ("components/test_lightgcn", "components/test_mf", "cpu/test_fold_in", "cpu/test_mf"),
    ("cpu/test_ranking", "evaluation/test_ranking"),
    ("components/test_samplers",),
    ("fits/", "cpu/test_topk", "cpu/test_vae", "recommenders/test_vae"),
    ("cuda/", "cpu/test_numpy_backend"),
)
# Kernels of these take longer to compile than their tests to run: others train the same way in the
# tests that are not slow. Files, and parameters.
_SLOW = (
    # Machines and recommenders of further families.
    ("", re.compile(r"(?<!lib)(rafm|ffm|fwfm|deepfm|nfm)", re.IGNORECASE)),
    ("", re.compile(r"lightgcn|(?<![a-z])mlp(?![a-z])|features\(|context\(", re.IGNORECASE)),
    # Losses, and samplers that look at queries.
    ("", re.compile(r"(?<![a-z])(psl|ccl|slatk|warp|directau|mawu|macr)(?![a-z])", re.IGNORECASE)),
    (
        "",
        re.compile(r"(?<![a-z])(midx|kernel|pris|aobpr|self_?adversarial)(?![a-z])", re.IGNORECASE),
    ),
    # By default the autoencoder draws no negatives where items are few.
    (("test_vae", "test_component_defaults"), re.compile("uniform|(?<![a-z])popularity")),
    # Draws of DNS, by a small kernel, are compared in test_samplers.
    (("test_mf", "test_vae", "test_team"), re.compile("dns", re.IGNORECASE)),
)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items):
    """Mark the tests of some components, and order all by their files."""
    rest = _ORDER.index(())

    def place(item):
        name = f"{item.path.parent.name}/{item.path.stem}"
        return next((i for i, files in enumerate(_ORDER) if name.startswith(files)), rest)

    for item in items:
        parameters = item.name.removeprefix(getattr(item, "originalname", item.name))
        for files, slow in _SLOW:
            if item.path.stem.startswith(files) and slow.search(parameters):
                item.add_marker(pytest.mark.slow)
    items.sort(key=place)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish():
    # pytest and Python would search all that compiling has left several times.
    gc.freeze()


@pytest.fixture
def data():
    """Interactions of 9 users with 13 items, of which two have none; vectors of both."""
    rng = np.random.default_rng(3)
    X = (rng.random((9, 13)) < 0.3) * rng.integers(1, 4, (9, 13))
    X[2], X[:, 4] = 0, 0
    users, items = (rng.normal(size=(n, 5)).astype(np.float32) for n in X.shape)
    return csr_array(X.astype(np.float32)), users, items


@pytest.fixture
def ctrl_c():
    """Make the signal an exception, which it is not where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def whole_teams():
    """Let all threads that a test asks for take part, and one where it asks for none.

    Threads wait for each other by spinning, which takes long where cores are busy; there they
    may run where they like.
    """
    from freqfm.backends.cpu import team

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numba.config.NUMBA_NUM_THREADS", 1)
        patch.setattr(team, "free_cores", lambda wanted: wanted)
        patch.setattr(team, "_SPINS", 40)
        patch.setattr(team, "_current_core", None)
        patch.setattr("freqfm._machine.cores", lambda: 64)
        patch.setattr("freqfm._input.validation.cores", lambda: 64)
        yield


@pytest.fixture
def clicks():
    """A small log of rows with values, empty rows, a head token and unseen tokens."""
    from scipy import sparse

    rng = np.random.default_rng(7)
    X = rng.random((60, 12)) * (rng.random((60, 12)) < 0.25)
    X[:, 0] = rng.random(60) < 0.9
    X[:, 5] = 0
    X[[3, 17]] = 0
    X = sparse.csr_array(X.astype(np.float32))
    y = (rng.random(60) < 0.4).astype(np.int64)
    return X, y


@pytest.fixture
def at_full_rates(monkeypatch):
    """No epoch of a factorization machine settles, so that fits can be divided in any way."""
    monkeypatch.setattr("freqfm.estimators.fm.base._MOST_SETTLING", 0)


@pytest.fixture(scope="session")
def log():
    """A click log of 4,000 rows and 410 tokens; no test may change it."""
    from freqfm.datasets import make_clicks

    return make_clicks(4000, (300, 100, 10), random_state=0)
