"""Recommenders on an emulated GPU, compared with the reference in NumPy and with the CPU."""

import emulated_gpu
import numpy as np
import pytest
from custom_components import CustomAdagrad, CustomBPR, Rectified
from emulated_gpu import EmulatedDevice
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone
from test_numpy_backend import (
    STEPS,
    VAE_SAMPLERS,
    VAE_STEPS,
    covering,
    histories,
    label,
    mf_model,
)

from freqfm import FastVAERecommender, MFRecommender, backends
from freqfm.backbones import Features, LightGCN
from freqfm.backends.base import CPUOnlyError
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.cuda.ranking import alignment, softmax
from freqfm.initializers import Normal
from freqfm.losses import BPR, BSL, CCL, MAWU, PSL, SLatK, Softmax
from freqfm.optimizers import SGD, WeightDecay
from freqfm.samplers import SAMPLERS, Uniform
from freqfm.temperatures import AdapTau

pytestmark = pytest.mark.slow  # compiles or emulates many combinations

# Relative to the largest number of an array. Adam turns the sign of a gradient near zero, which
# float32 does not know, into a whole step.
TOLERANCE = 5e-4


@pytest.fixture
def fit_on(monkeypatch):
    """Return a function that fits a recommender by a backend."""

    def fit_on(backend, model):
        monkeypatch.setattr(backends, "_cuda", lambda number: backend)
        return clone(model).set_params(device="cuda").fit(histories())

    return fit_on


def on_gpu(size=3, seed=0):
    return CUDABackend(EmulatedDevice(size, seed))


def learned(model):
    """Return what a fit has computed, with the optimizer's state, by name."""
    states = {
        f"{name}, {part}": array
        for name, state in model._training.optimizer.items()
        for part, array in state.items()
    }
    return {
        **model._tables(), **states, "loss": model.loss_curve_,
        "statistics": model._training.statistics, "temperatures": model._inverse_temperatures,
    }  # fmt: skip


def assert_agree(fit_on, model):
    found = learned(fit_on(on_gpu(), model))
    for name, expected in learned(fit_on(NumpyBackend(), model)).items():
        largest = np.abs(expected).max(initial=1e-3)
        assert_allclose(found[name], expected, rtol=0, atol=TOLERANCE * largest, err_msg=name)


@pytest.mark.parametrize(
    "case",
    covering(
        sampler=[*SAMPLERS, Uniform(shared=False)],
        optimizer=["sgd", "adam", "dense adam"],
        loss=[BSL(1.2), Softmax(include_positive=True), SLatK(2, weight_temperature=0.5)],
        comparison=[
            ("cosine", 0.5),
            ("cosine", AdapTau(warm_up=1)),
            ("cosine", "learned_user"),
            ("cosine", "cu_tau"),
            ("dot", "learned"),
        ],
        user_dropout=[0.0, 0.2],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_softmax_losses_agree(fit_on, case):
    similarity, temperature = case.pop("comparison")
    sampler = case.pop("sampler")
    model = mf_model(**case, similarity=similarity, temperature=temperature)
    draws = 5 if sampler not in ("full", "in_batch") else None
    model.set_params(negative_sampler=sampler, n_negatives=draws)
    # Clusters of vectors that hardly differ may jump.
    assert_agree(fit_on, model.set_params(max_iter=1 if "midx" in str(sampler) else 2))


@pytest.mark.parametrize(
    "case",
    covering(
        loss=[BPR(), MAWU(0.5, 0.5)],
        optimizer=list(STEPS),
        user_dropout=[0.0, 0.2],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_alignment_and_pairs_agree(fit_on, case):
    assert_agree(fit_on, mf_model(**case))


def autoencoder(sampler, optimizer="adam", decay=(0.0, "full"), **params):
    # Clusters of vectors that hardly differ may jump.
    params = {"max_iter": 1 if "midx" in sampler else 2, "batch_size": 8, **params}
    params = {"hidden_layer_sizes": (5,), **params}
    return FastVAERecommender(
        4, negative_sampler=sampler, optimizer=optimizer,
        n_negatives=None if sampler == "full" else 5, early_stopping=False,
        weight_decay=WeightDecay(decay[0], scope=decay[1]), random_state=0, init="normal", **params,
    )  # fmt: skip


@pytest.mark.parametrize(
    "case",
    covering(
        sampler=VAE_SAMPLERS,
        optimizer=[VAE_STEPS[name] for name in ("sgd", "rowwise_adagrad", "dense adam")],
        similarity=["cosine", "dot"],
        temperature=[None, "learned"],
        n_samples=[1, 2],
        dropout=[("input", 0.5), ("hidden", 0.5), ("input", 0.0)],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
        layers=[((5,), ()), ((6, 5), (3,)), ((5,), (3, 6))],
        activation=["tanh", "relu"],
        kl_weight=[0.05, 0.0],
        batch_size=[8, 4],
    ),
    ids=label,
)
def test_autoencoders_agree(fit_on, case):
    hidden, decoder = case.pop("layers")
    dropout_on, dropout = case.pop("dropout")
    layers = {"hidden_layer_sizes": hidden, "decoder_layer_sizes": decoder}
    assert_agree(fit_on, autoencoder(**case, **layers, dropout=dropout, dropout_on=dropout_on))


ONE_EACH = {
    "softmax": {"loss": "softmax"},
    "dot products": {"loss": "softmax", "similarity": "dot"},
    "full": {"loss": "bsl", "negative_sampler": "full", "n_negatives": None},
    "midx": {"loss": "softmax", "negative_sampler": "midx_popularity"},
    "kernel": {"loss": Softmax(include_positive=True), "negative_sampler": "kernel"},
    "psl": {"loss": "psl"},
    "psl, midx": {"loss": PSL("atan"), "negative_sampler": "midx_popularity"},
    "slatk": {"loss": SLatK(2, weight_temperature=0.5)},
    "bpr": {"loss": "bpr", "n_negatives": 2},
    "ccl": {"loss": CCL(0.0, negative_weight=3.0)},
    "directau": {"loss": "directau", "n_negatives": None},
    "mawu": {"loss": "mawu", "n_negatives": None},
    "no margins": {"loss": MAWU(0.5, 0.5, margins=False), "n_negatives": None},
    "graph": {"loss": "bpr", "backbone": LightGCN(3)},
    "graph, in batches": {"loss": "softmax", "backbone": LightGCN(3, propagate="batch")},
    "autoencoder": {"autoencoder": True, "sampler": "full"},
    "autoencoder, midx": {"autoencoder": True, "sampler": "midx_popularity"},
    "autoencoder, uniform": {"autoencoder": True, "sampler": "uniform"},
}


def small(**params):
    """Return a recommender of one epoch."""
    if params.pop("autoencoder", False):
        params = {"decay": (params.pop("weight_decay", 0.0), "full"), **params}
        params["batch_size"] = min(params.get("batch_size", 8), 16)
        return autoencoder(**params, max_iter=1)
    params = {"n_negatives": 5, "batch_size": 30, **params}
    return MFRecommender(6, max_iter=1, init=Normal(0.5), random_state=0, **params)


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_step_is_that_of_the_reference_and_an_epoch_that_of_the_cpu(fit_on, name):
    # A step of the rate zero leaves the vectors where they start.
    model = small(**ONE_EACH[name], optimizer=SGD(1e-12))
    start = fit_on(NumpyBackend(), model)._tables()
    for batch_size, backend, most in [(10_000, NumpyBackend(), 1e-5), (8, None, 1e-3)]:
        model = small(**{**ONE_EACH[name], "batch_size": batch_size}, optimizer=SGD(0.1))
        backend = backends.get("cpu") if backend is None else backend
        wanted, found = fit_on(backend, model)._tables(), fit_on(on_gpu(), model)._tables()
        for table, before in start.items():
            step = wanted[table] - before
            assert np.linalg.norm(found[table] - wanted[table]) < most * np.linalg.norm(step)


@pytest.mark.parametrize("name", ONE_EACH)
def test_any_grid_gives_the_same_bits(fit_on, name):
    model = small(**ONE_EACH[name], weight_decay=0.01)
    first, *others = (learned(fit_on(on_gpu(*grid), model)) for grid in [(1, 0), (4, 1), (9, 2)])
    for other in others:
        for part, array in first.items():
            assert_array_equal(other[part], array, err_msg=part)


@pytest.mark.parametrize(
    "name", ["softmax", "psl, midx", "slatk", "mawu", "graph, in batches", "autoencoder"]
)
def test_lanes_of_a_group_agree(fit_on, name):
    # Lanes are threads here: one batch is enough.
    model = small(**{**ONE_EACH[name], "batch_size": 10_000}, weight_decay=0.01)
    one, several = fit_on(on_gpu(), model), fit_on(CUDABackend(EmulatedDevice(2, 0, 4)), model)
    for table, expected in one._tables().items():
        assert_allclose(several._tables()[table], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "psl", "full", "directau", "mawu", "autoencoder"])
def test_panels_of_large_batches_agree(fit_on, monkeypatch, name):
    model = small(**ONE_EACH[name])
    whole = fit_on(on_gpu(), model)
    for module in (alignment, softmax):
        monkeypatch.setattr(module, "MOST_SCORES", 50)
    device = EmulatedDevice(4)
    parts = fit_on(CUDABackend(device), model)
    n_panels = [getattr(args, "n_panels", 1) for args in device.launches.values()]
    n_panels += [args.call.n_panels for args in device.launches.values() if hasattr(args, "call")]
    assert max(n_panels) > 1
    for table, expected in whole._tables().items():
        assert_allclose(parts._tables()[table], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "temperatures", "psl", "full", "midx", "autoencoder"])
def test_slices_of_many_negatives_agree(fit_on, monkeypatch, name):
    temperatures = {"loss": "bsl", "temperature": AdapTau(warm_up=0)}
    model = small(**ONE_EACH.get(name, temperatures), weight_decay=0.01)
    whole = learned(fit_on(on_gpu(), model))
    monkeypatch.setattr(softmax, "SLICE", 2)
    emulated_gpu._python.cache_clear()
    parts = learned(fit_on(on_gpu(4), model))
    emulated_gpu._python.cache_clear()
    for part, expected in whole.items():
        assert_allclose(parts[part], expected, rtol=1e-4, atol=1e-5, err_msg=part)


@pytest.mark.parametrize(
    "own", [{"loss": CustomBPR(), "n_negatives": 2}, {"optimizer": CustomAdagrad(0.05)}], ids=label
)
def test_formulas_of_users_agree(fit_on, own):
    assert_agree(fit_on, small(**own))


@pytest.mark.parametrize("size", [3, 16])
@pytest.mark.parametrize("include_positive", [True, False])
def test_a_distribution_of_users_is_drawn_from_as_on_the_cpu(fit_on, include_positive, size):
    loss = Softmax(include_positive=include_positive)
    model = small(loss=loss, negative_sampler=Rectified(), optimizer=SGD(0.1), batch_size=8)
    found, expected = (
        learned(fit_on(backend, model)) for backend in (on_gpu(size), backends.get("cpu"))
    )
    for name, array in expected.items():
        assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


class LowItems(Uniform):
    """A sampler that draws the first items by itself."""

    def draw(self, shape, n_items, proposal, generator):
        return generator.integers(0, 4, shape)


def test_items_that_a_sampler_draws_by_itself_are_taken(fit_on):
    model = autoencoder("uniform", SGD(0.1)).set_params(negative_sampler=LowItems())
    found, expected = (
        learned(fit_on(backend, model)) for backend in (on_gpu(), backends.get("cpu"))
    )
    for name, array in expected.items():
        assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_losses_of_the_cpu_are_named(fit_on):
    model = small(loss="warp", similarity="cosine")
    with pytest.raises(CPUOnlyError, match="the loss WARP runs on the CPU only; set dev"):
        fit_on(on_gpu(), model)
    assert model.set_params(device="auto").fit(histories()).n_iter_ == 1


@pytest.mark.parametrize(
    "case",
    covering(
        backbone=[LightGCN(n, propagate=when) for when in ("epoch", "batch") for n in (1, 2, 3)],
        loss=[BSL(1.2), BPR(), SLatK(2, weight_temperature=0.5), MAWU(0.5, 0.5, margins=False)],
        optimizer=["sgd", "rowwise_adagrad", "cf_sgd", "dense adam"],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_tables_of_graphs_agree(fit_on, case):
    model = mf_model(**case)
    assert_agree(fit_on, model)
    # The vectors are those that the tables have on the CPU.
    found = fit_on(on_gpu(), model)
    backbone = case["backbone"].bind(histories(), 1)
    expected = backbone.forward(found.backbone_tables_, np.arange(16), np.arange(12))
    assert_allclose(found.user_factors_, expected[0], rtol=0, atol=1e-5)
    assert_allclose(found.item_factors_, expected[1], rtol=0, atol=1e-5)


GRAPHS = {
    "adap": {"temperature": AdapTau(warm_up=0)},
    "dropout": {"user_dropout": 0.3},
    "full": {"negative_sampler": "full", "n_negatives": None},
    "drawn": {"negative_sampler": "midx_popularity"},
    "own loss": {"loss": CustomBPR()},
    "own optimizer": {"optimizer": CustomAdagrad(0.05)},
    # The vectors of the best epoch, which is not the last one, are restored.
    "early stopping": {
        "early_stopping": True,
        "max_iter": 9,
        "n_iter_no_change": 1,
        "warm_start": True,
        "optimizer": SGD(3.0),
    },
}


@pytest.mark.parametrize("propagate", ["epoch", "batch"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_agree_with_all_that_looks_at_vectors(fit_on, propagate, name):
    params = {"optimizer": SGD(0.1), "max_iter": 2, **GRAPHS[name]}
    model = small(backbone=LightGCN(propagate=propagate)).set_params(**params)
    found, expected = fit_on(on_gpu(), model), fit_on(NumpyBackend(), model)
    assert found.n_iter_ == expected.n_iter_
    assert name != "early stopping" or found.best_iter_ < found.n_iter_
    for part, array in learned(expected).items():
        assert_allclose(learned(found)[part], array, rtol=1e-4, atol=1e-5, err_msg=part)
    asked = {"X": histories()[:4], "n_recommendations": 3}
    assert_array_equal(found.recommend(**asked)[0], expected.recommend(**asked)[0])


@pytest.mark.parametrize("propagate", ["epoch", "batch"])
def test_graphs_of_more_users_and_items_are_trained_further(monkeypatch, propagate):
    fitted = []
    for backend in (on_gpu(), NumpyBackend()):
        monkeypatch.setattr(backends, "_cuda", lambda number, backend=backend: backend)
        model = small(backbone=LightGCN(propagate=propagate), loss="bpr", device="cuda")
        fitted.append(model.partial_fit(histories()[:9, :10]).partial_fit(histories()))
    found, expected = map(learned, fitted)
    assert len(found["user_factors"]) == 16 and len(found["item_factors"]) == 12
    for part, array in expected.items():
        assert_allclose(found[part], array, rtol=1e-4, atol=1e-5, err_msg=part)


class OwnGraph(LightGCN):
    """A backbone that may have a ``backward`` of its own."""


def test_backbones_run_on_the_cpu(fit_on):
    generator = np.random.default_rng(8)
    features = [
        sparse.csr_array(generator.normal(size=(n, 5)).astype(np.float32)) for n in (16, 12)
    ]
    by_batch = LightGCN(propagate="batch")
    others = "auxiliary terms are trained on the CPU only"
    for params, refusal in [
        ({"auxiliary": "simgcl"}, others),
        ({"backbone": by_batch, "auxiliary": "sgl"}, others),
        ({"backbone": OwnGraph(1)}, others),
        ({"backbone": by_batch, "loss": "mawu"}, "margins with LightGCN.* run on the CPU only"),
        ({"backbone": by_batch, "loss": "warp"}, "the loss WARP runs on the CPU only"),
        ({"backbone": Features(*features)}, others),
    ]:
        model = small(**{"n_negatives": None, "batch_size": 300, **params})
        with pytest.raises(CPUOnlyError, match=refusal):
            fit_on(on_gpu(), model)
        found = model.set_params(device="auto").fit(histories())
        expected = clone(model).set_params(device="cpu").fit(histories())
        assert_array_equal(found.item_factors_, expected.item_factors_)


@pytest.mark.parametrize("backbone", ["linear", LightGCN(1)], ids=str)
def test_dislikes_are_trained_on_the_cpu(monkeypatch, backbone):
    monkeypatch.setattr(backends, "_cuda", lambda number: on_gpu())
    model, X = small(backbone=backbone, loss="bpr", device="cuda"), histories()
    X.data[::5] *= -1
    with pytest.raises(ValueError, match="dislikes are trained on the CPU only"):
        model.fit(X)
    found = model.set_params(device="auto").fit(X)
    expected = clone(model).set_params(device="cpu").fit(X)
    assert_array_equal(found.item_factors_, expected.item_factors_)


@pytest.mark.parametrize("propagate", ["epoch", "batch"])
def test_tables_of_graphs_stay_on_the_gpu(fit_on, propagate):
    copied = []
    for max_iter in (2, 3):
        device = EmulatedDevice()
        model = small(backbone=LightGCN(propagate=propagate), batch_size=300)
        model.set_params(max_iter=max_iter, n_components=60)
        fit_on(CUDABackend(device), model)
        copied.append(device.n_copied)
    # Fewer bytes in an epoch than a table has.
    assert copied[1] - copied[0] < 12 * 60 * 4


def test_what_is_moved_does_not_grow_with_batches(fit_on):
    copied = []
    for batch_size in (60, 5):
        device = EmulatedDevice()
        fit_on(CUDABackend(device), small(batch_size=batch_size))
        copied.append(device.n_copied)
    # Lists of negatives, and a few numbers of each batch.
    n_batches = histories().nnz // 5
    assert copied[1] - copied[0] < n_batches * 4 * (5 + 20)


def test_nothing_of_an_autoencoder_is_moved_within_its_batches(fit_on):
    copied = []
    for batch_size in (5, 1):
        device = EmulatedDevice()
        model = autoencoder("full", batch_size=batch_size, max_iter=1, dropout_on="hidden")
        fit_on(CUDABackend(device), model)
        copied.append(device.n_copied)
    # A few numbers of each batch, fewer than its layers have.
    assert copied[1] - copied[0] < 15 * 100
