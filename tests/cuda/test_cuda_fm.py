"""Factorization machines on an emulated GPU, compared with the reference in NumPy."""

import numpy as np
import pytest
from custom_components import CustomAdam, CustomFASGD, CustomLogLoss
from emulated_gpu import EmulatedDevice
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone
from test_numpy_backend import FM_MODELS, OPTIMIZERS, covering, label, rows

from freqfm import (
    DeepFMClassifier,
    DeepFMRegressor,
    FMClassifier,
    FMRegressor,
    NFMClassifier,
    NFMRegressor,
    RaFMRegressor,
    backends,
)
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.cuda.fm import layers as towers
from freqfm.backends.cuda.fm import trainer as fm_trainer
from freqfm.backends.cuda.fm.batch import EpochSort
from freqfm.initializers import Normal
from freqfm.optimizers import SGD, Adagrad

pytestmark = pytest.mark.slow  # compiles or emulates many combinations

# Relative to the largest number of an array. Adam turns the sign of a gradient near zero, which
# float32 does not know, into a whole step.
TOLERANCE = 5e-4


@pytest.fixture
def fit_on(monkeypatch):
    """Return a function that fits an estimator by a backend."""

    def fit_on(backend, estimator, *data, **options):
        monkeypatch.setattr(backends, "_cuda", lambda number: backend)
        return clone(estimator).set_params(device="cuda").fit(*data, **options)

    return fit_on


def on_grids(n_lanes=1):
    """Return backends of different grids, whose results must have the same bits."""
    return [CUDABackend(EmulatedDevice(size, seed, n_lanes)) for size, seed in [(3, 0), (8, 1)]]


def assert_agree(fit_on, model, *data, n_lanes=1, **options):
    reference = fit_on(NumpyBackend(), model, *data, **options)
    scores = "decision_function" if hasattr(model, "decision_function") else "predict"
    expected = getattr(reference, scores)(data[0])
    first = None
    for backend in on_grids(n_lanes):
        fitted = fit_on(backend, model, *data, **options)
        for name in (*reference._weight_names, "loss_curve_", "validation_scores_"):
            found, wanted = getattr(fitted, name), getattr(reference, name)
            largest = np.abs(wanted).max(initial=1e-3)
            assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * largest, err_msg=name)
            if first is not None:
                assert_array_equal(found, getattr(first, name), err_msg=name)
        assert_allclose(getattr(fitted, scores)(data[0]), expected, atol=1e-3)
        first = fitted


@pytest.mark.parametrize(
    "case",
    covering(
        model=list(FM_MODELS),
        optimizer=list(OPTIMIZERS),
        weighted=[False, True],
        batch_size=[25, 60],
        params=[
            {"max_iter": 5},  # the last epoch settles
            {"fit_intercept": False, "alpha_per": "row", "alpha_linear": 1e-2},
            {"fit_linear": False, "shuffle": False},
            {"early_stopping": True, "validation_fraction": 0.3},
        ],
    ),
    ids=label,
)
def test_factorization_machines_agree(fit_on, case):
    X, y = rows(case["model"])
    model = clone(FM_MODELS[case["model"]]).set_params(
        optimizer=OPTIMIZERS[case["optimizer"]], batch_size=case["batch_size"],
        init=Normal(0.3), random_state=0, **{"max_iter": 2, **case["params"]},
    )  # fmt: skip
    weight = np.random.default_rng(6).uniform(0.5, 2, len(y)) if case["weighted"] else None
    assert_agree(fit_on, model, X, y, sample_weight=weight)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("binary", "rowwise_adagrad"), ("binary", "dense adam"), ("reference", "cf_sgd")],
)
def test_lanes_share_the_columns(fit_on, model, optimizer):
    X, y = rows(model)
    model = clone(FM_MODELS[model]).set_params(
        optimizer=OPTIMIZERS[optimizer], max_iter=1, batch_size=25, init=Normal(0.3),
        early_stopping=False, random_state=0,
    )  # fmt: skip
    assert_agree(fit_on, model, X[:40], y[:40], n_lanes=4)


@pytest.mark.parametrize(
    "custom",
    [{"loss": CustomLogLoss()}, {"optimizer": CustomAdam(0.01)}, {"optimizer": CustomFASGD(0.1)}],
)
def test_formulas_of_users_agree(fit_on, custom):
    model = FMClassifier(3, max_iter=2, batch_size=25, init=Normal(0.3), random_state=0, **custom)
    assert_agree(fit_on, model, *rows("binary"))


@pytest.mark.parametrize("ranks", [(2,), (1, 2)])
def test_the_scale_of_a_loss_agrees(fit_on, ranks):
    X, y = rows("regression")
    params = {"ranks": ranks, "rank_assignment": [7] * (len(ranks) - 1), "form": "reference"}
    options = {"loss": "poisson", "max_iter": 2, "batch_size": 25, "random_state": 0}
    assert_agree(fit_on, RaFMRegressor(**params, **options), X, 20 * y)


def test_the_best_model_settles_on_both(fit_on):
    X, y = rows("binary")
    options = {"max_iter": 10, "n_iter_no_change": 2, "optimizer": "adagrad", "random_state": 0}
    model = FMClassifier(3, batch_size=25, init=Normal(0.3), learning_rate=0.5, **options)
    assert_agree(fit_on, model, X[:40], y[:40], X_val=X[40:], y_val=y[40:])


FIELDS = np.arange(14) % 3
LAYERED = {
    "fields": DeepFMClassifier(3, fields=FIELDS),
    "pooled": DeepFMClassifier(3),
    "NFM": NFMClassifier(3),
}


@pytest.mark.parametrize(
    "case",
    covering(
        model=list(LAYERED),
        hidden_layer_sizes=[(5,), (5, 4), (3, 4, 2)],
        dropout=[0.0, 0.5],
        optimizer=[*list(OPTIMIZERS)[2:]],
        layer_optimizer=["adam", SGD(0.05), Adagrad(0.05), CustomAdam(0.01)],
        targets=["binary", "three classes"],
        weighted=[False, True],
        batch_size=[25, 1000],
        params=[
            {"early_stopping": False, "max_iter": 5},
            {"early_stopping": False, "fit_intercept": False, "alpha_per": "row"},
            {"early_stopping": True, "validation_fraction": 0.3, "fit_linear": False},
        ],
    ),
    ids=label,
)
def test_layers_agree(fit_on, case):
    X, y = rows(case.pop("targets"))
    weight = np.random.default_rng(6).uniform(0.5, 2, len(y)) if case.pop("weighted") else None
    optimizer, params = OPTIMIZERS[case.pop("optimizer")], case.pop("params")
    model = clone(LAYERED[case.pop("model")]).set_params(
        **{"max_iter": 2, **case, **params}, optimizer=optimizer, init=Normal(0.3), random_state=0,
        alpha_linear=0.1, alpha_factors=0.1, alpha_layers=0.1,
    )  # fmt: skip
    assert_agree(fit_on, model, X, y, sample_weight=weight)


@pytest.mark.parametrize("model", list(LAYERED))
def test_lanes_share_layers(fit_on, model):
    model = clone(LAYERED[model]).set_params(
        n_components=5, hidden_layer_sizes=(5, 4), max_iter=1, early_stopping=False,
        random_state=0, init=Normal(0.3),
    )  # fmt: skip
    assert_agree(fit_on, model, *rows("binary"), n_lanes=4)


@pytest.mark.parametrize("model", list(LAYERED))
@pytest.mark.parametrize("way", ["warm_start", "partial_fit"])
def test_layers_are_trained_further_as_on_the_cpu(monkeypatch, model, way):
    monkeypatch.setattr(backends, "_cuda", lambda number: on_grids()[0])
    (X, y), found = rows("binary"), []
    for device in ("cuda", "cpu"):
        trained = clone(LAYERED[model]).set_params(
            max_iter=1, warm_start=True, early_stopping=False, batch_size=25, random_state=0,
            device=device,
        )  # fmt: skip
        if way == "warm_start":
            trained.fit(X, y).fit(X, y)
        else:
            # Columns, and with them a field, are new.
            if model == "fields":
                trained.set_params(fields=FIELDS[:2])
            trained.partial_fit(X[:, :2], y, classes=[0, 1])
            trained.set_params(**({"fields": FIELDS} if model == "fields" else {}))
            trained.partial_fit(X, y, n_features=X.shape[1])
        found.append(trained)
    for name in found[0]._weight_names:
        assert_allclose(*(getattr(trained, name) for trained in found), rtol=0, atol=1e-5)
    assert_allclose(*(trained.decision_function(X) for trained in found), atol=1e-5)


@pytest.mark.parametrize("cls", [FMClassifier, DeepFMClassifier])
@pytest.mark.parametrize("n_entries", [1, 40, 100])
def test_scores_in_parts_are_the_same(fit_on, monkeypatch, cls, n_entries):
    X, y = rows("three classes")
    params = {"max_iter": 1, "early_stopping": False, "random_state": 0}
    model = fit_on(on_grids()[0], cls(3, **params), X, y)
    expected = model.decision_function(X)
    monkeypatch.setattr(fm_trainer, "_ENTRIES_SCORED", n_entries)
    monkeypatch.setattr(towers, "_ROWS_SCORED", 7)
    assert_array_equal(model.decision_function(X), expected)


@pytest.mark.parametrize(
    "model",
    [FMRegressor(2), DeepFMRegressor(2, fields=[0, 1, 0, 1, 2]), NFMRegressor(2)],
    ids=label,
)
def test_tokens_of_many_pieces_agree(fit_on, model):
    # Column 0 is in all rows, and columns 1 and 2 begin and end within a window.
    generator = np.random.default_rng(0)
    X = np.zeros((230, 5), dtype=np.float32)
    X[:, 0], X[:90, 1], X[40:200, 2], X[:50, 4] = 1, 0.5, -1, generator.random(50)
    X = sparse.csr_array(X)
    model = clone(model).set_params(
        optimizer=SGD(0.05), max_iter=2, batch_size=215, init=Normal(0.3), early_stopping=False,
        random_state=0,
    )  # fmt: skip
    assert_agree(fit_on, model, X, generator.random(230))


@pytest.mark.parametrize("shuffle", [True, False])
def test_large_sets_are_visited_in_the_same_blocks(fit_on, shuffle):
    X = sparse.csr_array(np.random.default_rng(0).random((16_400, 1)).astype(np.float32))
    model = FMRegressor(
        1, max_iter=1, batch_size=4000, early_stopping=False, shuffle=shuffle, random_state=0
    )
    y = np.arange(16_400) % 5
    reference, found = (fit_on(backend, model, X, y) for backend in (NumpyBackend(), on_grids()[0]))
    assert_allclose(found.factors_, reference.factors_, rtol=2e-4)
    assert_allclose(found.loss_curve_, reference.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize(
    "n_rows, batch_size, n_lanes", [(7, 7, 1), (900, 3, 1), (300, 1, 1), (64, 64, 1), (64, 20, 4)]
)
def test_occurrences_are_sorted(n_rows, batch_size, n_lanes):
    # 300 batches take two digits.
    X = sparse.random(n_rows, 6, 0.4, dtype=np.float32, random_state=0).toarray()
    X[: n_rows // 2, 2] = 1
    X[-n_rows // 3 :] = 0  # if in batches of their own, these have no piece
    X = sparse.csr_array(X)
    problem = FakeProblem(batch_size, n_blocks=n_rows)
    sort = EpochSort(EmulatedDevice(3, 0, n_lanes), problem, X)
    sort.run(4)
    order, found = sort.rows, sort.occurrences
    assert_array_equal(np.sort(order), np.arange(n_rows))
    n_batches = len(found.starts) - 1
    assert found.starts[0] == 0 and found.starts[-1] == X.nnz
    for b in range(n_batches):
        part = slice(found.starts[b], found.starts[b + 1])
        batch = X[order[b * batch_size : (b + 1) * batch_size]].tocoo()
        expected = sorted(
            zip(batch.col, order[b * batch_size + batch.row], batch.data, strict=True)
        )
        rows = order[b * batch_size + found.rows[part]]
        assert list(zip(found.tokens[part], rows, found.values[part], strict=True)) == expected


class FakeProblem:
    """What a sort reads of an FMProblem."""

    block_bits, seed = 0, 3

    def __init__(self, batch_size, n_blocks):
        self.batch_size, self.n_blocks = batch_size, n_blocks
