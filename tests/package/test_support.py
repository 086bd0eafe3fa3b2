"""The table of what can be used where is true, and told by errors and by the guide."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from emulated_gpu import EmulatedDevice
from helpers import slow_params
from scipy import sparse
from test_architecture import SOURCES

import freqfm
from freqfm import FFMClassifier, FMClassifier, FwFMClassifier, MFRecommender, Word2Vec
from freqfm.auxiliary import SimGCL
from freqfm.backbones import Context, Features, LightGCN
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.support import ERRORS, table
from freqfm.datasets import make_interactions
from freqfm.estimators.fm.base import BaseFM
from freqfm.initializers import Initializer
from freqfm.temperatures import CuTau

COLUMNS, TABLE = table()
X = sparse.csr_array(make_interactions(24, 16, 150, random_state=0)).astype(np.float32)
ROWS = np.repeat(np.arange(24), 2)
QUERIES = X[ROWS]
CONTEXT = Context(context=np.eye(4)[np.arange(48) % 4], users=ROWS)
BATCH = LightGCN(propagate="batch")


class FromInteractions(Initializer):
    """Draws zeros, and takes directions from the interactions."""

    needs_interactions = True

    def draw(self, shape, generator, counts=None):
        return 0.1 * generator.standard_normal(shape).astype(np.float32)

    def directions(self, X, n_components, generator, n_threads):
        return None


# Parameters of MFRecommender, and the options of ``fit``, by the row that they are in.
PARTS = {
    "MFRecommender": {},
    "LightGCN": {"backbone": "lightgcn"},
    "Features, MLP, backbones of your own": {"backbone": Features(user_features=np.eye(24))},
    "Context": {"backbone": CONTEXT},
    "auxiliary terms": {"auxiliary": SimGCL()},
    'losses in NumPy, such as "macr"': {"loss": "macr"},
    "MAWU with margins": {"loss": "mawu"},
    'MAWU with LightGCN("batch")': {"loss": "mawu", "backbone": BATCH},
    "WARP": {"loss": "warp"},
    "samplers by user, losses of pairs": {"loss": "bpr", "negative_sampler": "dns"},
    'temperature="cu_tau"': {"loss": "softmax", "temperature": CuTau()},
    "temperatures that change in a fit": {"loss": "softmax", "temperature": "adap_tau0"},
    "parts refreshed after several epochs": {"loss": "slatk"},
    "initializers that read interactions": {"init": FromInteractions()},
    "scoring by a function": {"early_stopping": True, "scoring": lambda *_: 1.0},
}


def made(part):
    return MFRecommender(4, max_iter=1, random_state=0, n_jobs=1, **PARTS[part])


def is_refused(run):
    """Return the words of a ValueError, or None."""
    try:
        run()
    except ValueError as error:
        return str(error)
    return None


def with_dislikes(model, X):
    X = X.copy()
    X.data[::7] *= -1
    return model.fit(X)


def rows_of(model):
    return QUERIES if isinstance(model.backbone, Context) else X


# These compile no kernels of their own.
QUICK = ["MFRecommender", 'temperature="cu_tau"', "temperatures that change in a fit"]
QUICK += ["initializers that read interactions", "scoring by a function"]
REST = [part for part in PARTS if part not in QUICK]


@pytest.mark.parametrize("part", [*QUICK, *slow_params(REST)])
def test_dislikes_contexts_and_further_data(part):
    marks, model = TABLE[part], made(part)
    refused = is_refused(lambda: with_dislikes(model, rows_of(model)))
    assert (refused is None) == (marks["dislikes"] == "yes"), refused
    if marks["partial_fit"] == "yes":
        made(part).fit(rows_of(model)).partial_fit(rows_of(model))
    if "backbone" not in PARTS[part]:
        refused = is_refused(lambda: model.set_params(backbone=CONTEXT).fit(QUERIES))
        assert (refused is None) == (marks["context"] == "yes"), refused


@pytest.mark.parametrize("part", [part for part, marks in TABLE.items() if marks["GPU"] == "no"])
def test_what_a_gpu_does_not_train(part, monkeypatch):
    monkeypatch.setattr(freqfm.backends, "_cuda", lambda number: CUDABackend(EmulatedDevice()))
    y = np.arange(24) % 2
    fields = np.arange(16) % 2
    others = {
        "FFM": lambda: FFMClassifier(fields=fields, device="cuda").fit(X, y),
        "FwFM": lambda: FwFMClassifier(fields=fields, device="cuda").fit(X, y),
        "Word2Vec": lambda: Word2Vec(4, min_count=1, device="cuda").fit([["a", "b"]] * 9),
        'ALSRecommender: solver="cholesky"': lambda: freqfm.ALSRecommender(
            4, solver="cholesky", device="cuda"
        ).fit(X),
        "dislikes": lambda: with_dislikes(made("MFRecommender").set_params(device="cuda"), X),
        "recommenders in closed form": None,
        "PopularityRecommender": None,
        "ALSRecommender of freqfm.dask": None,
    }
    run = others.get(part, lambda: made(part).set_params(device="cuda").fit(rows_of(made(part))))
    if run is not None:
        assert re.search(r"on the CPU only; set device='cpu', or device='auto'\.$", is_refused(run))


@pytest.mark.slow
def test_what_a_cluster_does_not_train():
    da, fdask = pytest.importorskip("dask.array"), pytest.importorskip("freqfm.dask")
    distributed = pytest.importorskip("distributed")
    for name, marks in TABLE.items():
        names = [name] if name in freqfm.__all__ else [f"{name}Classifier"]
        if names[0] in freqfm.__all__:
            assert hasattr(fdask, names[0]) == (marks["Dask"] == "yes")
    with distributed.Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        for part, params in PARTS.items():
            plain = made(part)
            rows = da.from_array(rows_of(plain).toarray(), chunks=(12, -1))
            for n_shards in (1, 2):
                model = fdask.MFRecommender(4, max_iter=1, random_state=0, **params)
                model.set_params(n_shards=n_shards, client=client, n_jobs=1)
                refused = is_refused(partial(model.fit, rows))
                expected = TABLE[part]["Dask"] in ("yes", "one shard" if n_shards == 1 else "yes")
                assert (refused is None) == expected, (part, n_shards, refused)


def test_models_learn_from_what_the_table_says():
    for name, marks in TABLE.items():
        model = getattr(freqfm, name, None) or getattr(freqfm, f"{name}Classifier", None)
        if model is not None:
            assert hasattr(model, "partial_fit") == (marks["partial_fit"] == "yes")
            assert issubclass(model, BaseFM) == (marks["streams"] == "yes")
            assert getattr(model, "_uses_dislikes", "-") == {"yes": True, "no": False}.get(
                marks["dislikes"], "-"
            )
    assert issubclass(FMClassifier, BaseFM)


def test_errors_belong_to_cells_of_the_table():
    for where, part in ERRORS:
        assert TABLE[part][where] not in ("yes", "-"), (where, part)
    named = {
        match
        for path in SOURCES.values()
        for match in re.findall(r"""check\("(\w+)", (?:'([^']+)'|"([^"]+)")""", path.read_text())
    }
    assert {(where, one or other) for where, one, other in named} <= set(ERRORS)
    assert len(named) > 15


def test_the_guide_shows_all_columns():
    docs = Path(__file__).parents[2] / "docs"
    if not docs.is_dir():
        pytest.skip("the documentation is not here")
    shown = {}
    for path in docs.glob("*.rst"):
        for line in re.findall(r"^\.\. support:: (.+)$", path.read_text("utf-8"), flags=re.M):
            shown[path.name] = line.split(", ")
    assert shown["gpu.rst"] == ["GPU"] and shown["dask.rst"] == ["Dask"]
    assert shown["recommenders.rst"] == COLUMNS
