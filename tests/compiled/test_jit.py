"""Compiled code: one signature per kernel, kept on disk, nothing compiled at import or twice."""

import enum
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from processes import ROOT, python

from freqfm import MFRecommender
from freqfm._numba import code_cache as code_cache
from freqfm._numba import jit
from freqfm.samplers import Uniform

# The estimators in every way that could ask a kernel for a second signature, or in every n-th one,
# which is an argument; a JSON report.
EVERYTHING = """
import json
import os
import sys

import freqfm

report, every = {}, int(sys.argv[1])

import itertools

import numba
import numpy as np
from numba.core import event
from scipy import sparse

from freqfm import DeepFMClassifier, DeepFMRegressor, FMClassifier, FMRegressor
from freqfm import FFMClassifier, FFMRegressor, FwFMClassifier, FwFMRegressor
from freqfm import NFMClassifier, NFMRegressor, RaFMClassifier, RaFMRegressor
from freqfm import ALSRecommender, EASERecommender, FastVAERecommender, MFRecommender
from freqfm import Word2Vec
from freqfm._numba.jit import KERNELS
from freqfm.backbones import BACKBONES, Context, Features, Linear
from freqfm.backends.cpu.tables import apply_gradients
from freqfm.backends.cpu import backend, team
from freqfm.backends.cpu.team import Team
from freqfm.estimators.fm.targets import base_score, expect, mean_loss
from freqfm.losses import RANKING_LOSSES, Loss, LogLoss, Softmax, SquaredError, VectorLoss
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Adagrad, Adam, WeightDecay
from freqfm.samplers import DNS, SAMPLERS, Popularity, Uniform
from freqfm.temperatures import TEMPERATURES



def n_signatures():
    return {k.__name__: len(k.signatures) for k in KERNELS}


assert all(getattr(freqfm, name) is not None for name in freqfm.__all__)
report["config_restored"] = numba.config.CACHE_DIR == os.environ["NUMBA_CACHE_DIR"]
report["at_import"] = n_signatures()
report["cuda_imported"] = "numba.cuda" in sys.modules

# However busy the machine is, teams are whole.
team.free_cores = lambda wanted: wanted

teams = set()
run = Team.run
Team.run = lambda team, *args, **kw: teams.add(team.size) or run(team, *args, **kw)

rng = np.random.default_rng(0)
dense = rng.integers(0, 3, (400, 8)) * (rng.random((400, 8)) < 0.6)
y, weight = rng.integers(0, 3, 400), rng.random(400)


def with_index_type(kind):
    def convert(rows):
        X = sparse.csr_array(rows)
        X.indices, X.indptr = X.indices.astype(kind), X.indptr.astype(kind)
        return X

    return convert


def use_everything():
    layouts = [with_index_type(np.int32), with_index_type(np.int64), sparse.csc_matrix]
    layouts += [np.asarray, np.asfortranarray, np.ndarray.tolist]
    types = [np.float32, np.float64, np.int64, bool]
    data = list(itertools.product(layouts, types, [None, weight, weight.astype(np.float32)]))
    tasks = [(FMClassifier, y > 0), (FMClassifier, y), (FMRegressor, y), (FMRegressor, y / 3)]
    tasks += [(RaFMClassifier, y > 0), (RaFMClassifier, y), (RaFMRegressor, y / 3)]
    tasks += [(DeepFMClassifier, y > 0), (DeepFMClassifier, y), (DeepFMRegressor, y / 3)]
    tasks += [(NFMClassifier, y > 0), (NFMRegressor, y / 3)]
    tasks += [(FFMClassifier, y > 0), (FFMClassifier, y), (FFMRegressor, y / 3)]
    tasks += [(FwFMClassifier, y > 0), (FwFMClassifier, y), (FwFMRegressor, y / 3)]
    optimizers = [*OPTIMIZERS, FASGD(0.01, counts=[1] * 8)]
    optimizers += [CFSGD(0.01, count="batch"), Adam(0.01, lazy=False)]
    choices = list(itertools.product(optimizers, tasks))
    for i in range(0, max(len(data), len(choices)), every):
        layout, kind, sample_weight = data[i % len(data)]
        optimizer, (cls, target) = choices[i % len(choices)]
        X = layout(dense.astype(kind))
        size = {"n_components": 1 + i % 9}
        if cls in (RaFMClassifier, RaFMRegressor):
            size = {"ranks": [(2, 5), [1, 2, np.int64(9)], (3,)][i % 3]}
            size["rank_sharing"] = ["separate", "truncate"][i % 2]
            size["form"] = ["paper", "reference"][i % 2]
        if cls in (FFMClassifier, FFMRegressor, FwFMClassifier, FwFMRegressor):
            size["fields"] = [None, np.arange(8) // 3, [1] * 8][i % 3]
        if cls in (DeepFMClassifier, DeepFMRegressor):
            size["fields"] = [None, np.arange(8) // 3][i % 2]
        if cls in (DeepFMClassifier, DeepFMRegressor, NFMClassifier, NFMRegressor):
            size["hidden_layer_sizes"] = [(5,), [4, np.int64(3)], ()][i % 3]
            size["layer_optimizer"] = ["adam", SGD(0.001), Adagrad(0.1)][i // 2 % 3]
            size["dropout"] = [0, 0.5][i // 2 % 2]
        model = cls(
            **size,
            optimizer=optimizer,
            learning_rate=0.01 if isinstance(optimizer, str) else None,
            max_iter=2,
            alpha_linear=i % 2,
            alpha_factors=np.float32(0.5) * (i % 3),
            batch_size=[64, np.int64(400), 1000][i % 3],
            early_stopping=i % 4 == 0,
            fit_intercept=bool(i % 5),
            fit_linear=np.bool_(i % 6),
            shuffle=bool(i % 7),
            init=["normal", "xavier"][i % 2],
            n_jobs=1 + i // 2 % 2,
            random_state=[i, np.random.default_rng(i)][i % 2],
        )
        model.fit(X, target, sample_weight=sample_weight)
        if hasattr(model, "predict_proba"):
            model.predict_proba(X)
        model.partial_fit(X, target).predict(X[:1])
    big = np.tile(dense, (20, 1))
    FMRegressor(n_components=32, max_iter=1, n_jobs=2).fit(big, np.tile(y, 20)).predict(big)


class CustomLinear(Linear):
    pass


def use_recommenders():
    X = sparse.csr_array(np.tile(dense[:30], (1, 6)) > 1)
    separate = [Uniform(shared=False), Popularity(1, shared=False)]
    ways = [{"negative_sampler": s} for s in [*SAMPLERS, *separate]]
    # Kernels that nothing else needs.
    always = [{"loss": "bpr", "negative_sampler": DNS(refresh=2)}, {"backbone": "lightgcn"}]
    ways += [{"temperature": t} for t in [0.1, *TEMPERATURES]]
    compiled = [loss for loss, cls in RANKING_LOSSES.items() if not issubclass(cls, VectorLoss)]
    ways += [{"loss": loss} for loss in [*compiled, Softmax(include_positive=True)]]
    ways += [{"loss": loss, "weight_decay": 0.1} for loss in compiled]
    needing_data = "features", "context"
    backbones = [Features(item_features=X.T), Context(context=X)]
    backbones += [n for n in BACKBONES if n not in needing_data]
    ways += [{"backbone": backbone, "early_stopping": True} for backbone in backbones]
    ways += [{"backbone": backbone} for backbone in backbones]
    ways += [{"similarity": "dot"}, {"init": "prism"}, {"early_stopping": True}]
    ways += [{"optimizer": o, "weight_decay": 1} for o in [*OPTIMIZERS, Adam(0.01, lazy=False)]]
    for i, way in enumerate(always + ways[::every]):
        model = MFRecommender(
            n_components=[4, 40][i % 2],
            max_iter=2,
            learning_rate=None if isinstance(way.get("optimizer"), Adam) else 0.001,
            user_dropout=[0, 0.5, None][i % 3],
            batch_size=[None, np.int64(50)][i % 2],
            n_jobs=1 + i % 2,
            random_state=i,
        ).set_params(**way)
        model.fit([X, X.toarray(), X.tocsc()][i % 3])
        model.partial_fit(X).recommend(X)
        model.recommend(users=[0, 1], candidates=[None, X[:2]][i % 2])
    for i, optimizer in enumerate(OPTIMIZERS):
        scope = ["full", "batch"][i % 2]
        model = MFRecommender(4, backbone=CustomLinear(), optimizer=optimizer, max_iter=1)
        model.set_params(weight_decay=WeightDecay(i % 3, scope=scope), n_jobs=1 + i % 2)
        model.set_params(learning_rate=0.001).fit(X)
        model.similar_items([0])
        model.recommend(np.tile(X.toarray(), (50, 1)), diversity=[0.5, 1][i % 2])
    for i, n_neighbors in enumerate([None, 3, 3]):
        model = EASERecommender(n_neighbors=n_neighbors, n_jobs=1 + i % 2).fit(X)
        model.recommend(users=[0, 1], candidates=[None, X[:2]][i % 2])
        model.recommend(np.tile(X.toarray(), (50, 1)), diversity=0.3)
        # Sparse vectors.
        for vectors in (np.eye(X.shape[1], 900), sparse.csr_array(np.eye(X.shape[1], 900))):
            model.recommend(X, diversity=0.3, item_vectors=vectors)
    # Arrays of one row count as contiguous along every axis.
    for loss in RANKING_LOSSES:
        MFRecommender(4, loss=loss, max_iter=1).fit(np.eye(1, 5))


def use_samplers():
    for i, cls in enumerate(SAMPLERS.values()):
        for items in (dense, np.asfortranarray(dense[:, :3] / 2), dense[:1].tolist()):
            counts = [None, np.arange(len(items)), np.ones(len(items), np.float32)][i % 3]
            sampler = cls().fit(items, counts, random_state=[i, np.random.default_rng(i)][i % 2])
            queries = [np.asarray(items)[:2], np.asarray(items, np.float32)[::-1]][i % 2]
            sampler.sample(queries, [3, np.int64(5)][i % 2])


def use_least_squares():
    X = sparse.csr_array(dense[:90] > 1)
    ways = [{}, {"solver": "cholesky"}, {"early_stopping": True}, {"unobserved_weight": 1}]
    for i, way in enumerate(ways):
        model = ALSRecommender([4, 40][i % 2], max_iter=2, n_jobs=1 + i % 2, random_state=i)
        model.set_params(**way)
        model.fit([X, X.toarray(), X.tocsc(), with_index_type(np.int64)(X)][i % 4])
        model.partial_fit(X).recommend(X)
        model.transform(X)


def use_autoencoders():
    X = sparse.csr_array(np.tile(dense[:30], (1, 6)) > 1)
    ways = [{"negative_sampler": s} for s in SAMPLERS if s != "in_batch"]
    ways += [{"optimizer": o} for o in [*OPTIMIZERS, Adam(0.01, lazy=False)]]
    ways += [{"decoder_layer_sizes": (4,)}, {"n_samples": 2}, {"dropout": 0}, {"weight_decay": 1}]
    ways += [{"dropout_on": "hidden"}, {"early_stopping": True}, {"batch_size": np.int64(7)}]
    for i, way in list(enumerate(ways))[::every]:
        model = FastVAERecommender(
            [4, 40][i % 2],
            learning_rate=None if isinstance(way.get("optimizer"), Adam) else 0.001,
            max_iter=2,
            n_jobs=1 + i % 2,
            random_state=i,
        ).set_params(**way)
        model.fit([X, X.toarray(), X.tocsc(), with_index_type(np.int64)(X)][i % 4])
        model.partial_fit(X).recommend(X)
        model.recommend(users=[0, 1])
        model.transform(X)


def use_words():
    documents = [["a", "b", "c", "a"] * 5, ["b", "d"] * 8] * 10
    ways = [{"optimizer": o, "architecture": a} for o in OPTIMIZERS for a in ("skip_gram", "cbow")]
    for i, way in list(enumerate(ways))[::every]:
        model = Word2Vec([4, 40][i % 2], min_count=1, max_iter=2, n_jobs=1 + i % 2, random_state=i)
        model.set_params(**way).fit(documents).partial_fit(documents[::-1])
        model.score(documents)
        model.most_similar("a")


def use_losses():
    for loss in (LogLoss(), SquaredError()):
        for n_outputs in (1, 2):
            scores = np.zeros((n_outputs, 3), dtype=np.float32)
            expect(loss, True, scores)
            mean_loss(loss, True, scores, scores, np.ones(3))
        base_score(loss, True, scores[0], np.ones(3))
    base_score(Unsolved(), False, scores[0], np.ones(3))


class Unsolved(SquaredError):
    base_score = Loss.base_score  # the best constant is searched for


def stats():
    return {
        k.__name__: [len(k.stats.cache_misses), sum(k.stats.cache_hits.values())] for k in KERNELS
    }


with event.install_recorder("numba:compile") as recorder:
    use_everything()
    use_recommenders()
    use_samplers()
    use_least_squares()
    use_autoencoders()
    use_words()
    use_losses()
report["compiled"] = len(recorder.buffer)
report["types_of_n_unit"] = sorted({str(types[4]) for types in apply_gradients.signatures})
report["signatures"] = n_signatures()
report["stats"] = stats()
report["teams"] = sorted(teams)
print(json.dumps(report))
"""


def report_of(source, *args, **options):
    """Run source code in a fresh process; return the JSON on its last line."""
    done = python(source, *args, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_is_light():
    code = "import freqfm, sys; print({'numba', 'numpy', 'scipy', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.slow
def test_every_kernel_is_compiled_once():
    """Two processes use everything, each kernel in many fits; the second only loads kernels.

    They share the cache of the other tests: what those have compiled is loaded. One test, so that
    no two workers run these processes.
    """
    folder = str(jit.cache_directory().parents[1])
    reports = [report_of(EVERYTHING, every, NUMBA_CACHE_DIR=folder) for every in ("1", "3")]
    first, second = (set(map(tuple, report["stats"].values())) for report in reports)
    # Importing compiles nothing.
    assert {"fm_train", "fm_score"} <= set(reports[0]["at_import"])
    assert {n for report in reports for n in report["at_import"].values()} == {0}
    assert reports[0]["config_restored"] and not reports[0]["cuda_imported"]
    # Kernels have one signature, those of teams too.
    assert reports[0]["teams"] == [1, 2]
    for report in reports:
        assert set(report["signatures"].values()) == {1}, report["signatures"]
    # Rows at unit length and others differ by a number and not by its type; nothing is known of
    # kernels that were found on disk.
    assert reports[0]["types_of_n_unit"] in (["int64"], [])
    # Misses and hits: each kernel was compiled or loaded once, however many fits have used it.
    assert first <= {(1, 0), (0, 1)}
    assert second == {(0, 1)} and reports[1]["compiled"] == 0


@pytest.mark.skipif(jit.JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.parametrize("verbose", [0, 1])
def test_compilation_is_announced(verbose, monkeypatch, capsys):
    # Loads the kernels that the fit below takes.
    MFRecommender(2, max_iter=1).fit(np.eye(3))
    # Not kept on disk, so that it compiles in every run of the tests.
    monkeypatch.setattr(jit, "cache_directory", lambda: None)
    monkeypatch.setattr(jit, "KERNELS", list(jit.KERNELS))

    @jit.kernel
    def new_kernel(x):
        return x + 1

    class Compiling(Uniform):
        def draw(self, shape, n_items, proposal, generator):
            new_kernel(1)
            return np.zeros(shape, dtype=np.int32)

    model = MFRecommender(2, negative_sampler=Compiling(), max_iter=1, verbose=verbose)
    model.fit(np.eye(3))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("compiling new_kernel (once)") == verbose


def test_inner_functions_have_no_way_in_from_python():
    @jit.subroutine
    def add_one(x):
        return x + 1

    def add_two(x):
        return add_one(add_one(x))

    # One that is loaded compiles no inner functions.
    add_two = jit.kernel(add_two, cached=False)
    jit.KERNELS.remove(add_two)
    assert add_two(1) == 3
    (compiled,) = add_one.overloads.values()
    assert "wrapper" not in compiled.library.get_llvm_str()
    # A test may call it all the same.
    assert add_one(1) == 2 and add_one(0.5) == 1.5


@pytest.mark.skipif(jit.JIT_DISABLED, reason="nothing is compiled")
def test_code_for_types_that_cannot_be_imported_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "checked_directory", lambda: tmp_path)
    monkeypatch.setattr(code_cache, "_warned", [])

    class Pair(NamedTuple):
        first: int
        second: int

    @jit.kernel
    def add(pair):
        return pair.first + pair.second

    jit.KERNELS.remove(add)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert add(Pair(1, 2)) == 3
    assert not list(tmp_path.iterdir())


def test_fields_that_change_places_make_another_type():
    fields = [("first", int), ("second", int)]
    kinds = [NamedTuple("Pair", fields), NamedTuple("Pair", fields[::-1])]
    kinds = [numba.typeof(((kind(1, 2), 3.0), 4)) for kind in kinds]
    assert str(kinds[0]) == str(kinds[1])
    described = [repr(code_cache._described(tuple(kind))) for kind in kinds]
    assert described[0] != described[1]


class Side(enum.IntEnum):
    LEFT = 1


def test_a_fingerprint_holds_the_values_of_members(monkeypatch):
    def key(value):
        return code_cache.Fingerprint(value).key

    before = key(Side), key(Side.LEFT)
    monkeypatch.setitem(globals(), "Side", enum.IntEnum("Side", {"LEFT": 2}, module=__name__))
    assert not {key(Side), key(Side.LEFT)} & set(before)


@pytest.mark.skipif(jit.JIT_DISABLED, reason="nothing is compiled")
def test_only_kernels_become_machine_code(monkeypatch):
    finalize, names = JITCodeLibrary._finalize_specific, []

    def record(library):
        names.append(library.name.split(".")[-1])
        finalize(library)

    def halve(x):
        return x / 2

    @jit.kernel
    def quarter(x):
        return halve(halve(x))

    jit.KERNELS.remove(quarter)
    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", record)
    halve.__module__ = jit.__name__
    halve = jit.subroutine(halve)
    assert quarter(2.0) == 0.5
    # The first compilation of a process makes numba's runtime, too.
    assert [name for name in names if name != "nrt"] == ["quarter"]


@pytest.mark.slow
def test_decorating_restores_numba_cache_directory(monkeypatch, tmp_path):
    users = str(tmp_path)
    monkeypatch.setattr(jit, "KERNELS", [])
    monkeypatch.setattr(numba.config, "CACHE_DIR", users)

    def add_one(x):
        return x + 1

    compiled = jit.kernel(add_one)
    assert users == numba.config.CACHE_DIR
    assert len(jit.KERNELS) == 1
    if not jit.JIT_DISABLED and jit.cache_directory():
        assert Path(compiled.stats.cache_path).is_relative_to(jit.cache_directory())
        with pytest.raises(TypeError):
            jit.kernel("not a function")
        assert users == numba.config.CACHE_DIR


TINY_FIT = """
import json
import numpy as np
import freqfm
from freqfm._numba.jit import KERNELS
from freqfm.initializers import Normal

X = np.random.default_rng(0).integers(0, 3, (12, 4)) / 2
of_two = {"n_components": 2, "max_iter": 2, "random_state": 0}
models = [
    freqfm.FMRegressor(init=Normal(0.5), batch_size=5, **of_two),
    # Rounding turns the singular vectors of equal values, which a spectral start takes.
    freqfm.MFRecommender(init="xavier", **of_two),
    freqfm.ALSRecommender(**of_two),
    freqfm.ALSRecommender(solver="cholesky", **of_two),
]
predictions = []
for model in models:
    model.fit(X, X.sum(axis=1))
    found = model.transform(X) if hasattr(model, "transform") else model.predict(X)
    predictions += found.ravel().tolist()
print(json.dumps([predictions, bool(KERNELS)]))
"""


KEPT = """
import json
import freqfm.backends.cpu.backend
from freqfm._numba import code_cache, jit

found = {}
for kernel in jit.KERNELS:
    fingerprint = code_cache.Fingerprint(kernel.py_func)
    assert not fingerprint.kept
    found[kernel.__name__] = fingerprint.key
sources = code_cache.source_hash(*code_cache.COMPILED)
print(json.dumps([jit.__file__, jit.cache_directory().name, found, sources]))
"""


def test_a_kernel_is_compiled_again_where_it_has_changed(tmp_path):
    package = tmp_path / "freqfm"
    shutil.copytree(ROOT / "freqfm", package, ignore=shutil.ignore_patterns("__pycache__"))

    def kept():
        """Return the name of the folder, the keys of kernels, and that of the GPU's kernels."""
        file, *found = report_of(KEPT, root=tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert Path(file).is_relative_to(tmp_path)
        return found

    def edit(name, before, after):
        text = (package / name).read_text()
        assert text.count(before) == 1
        (package / name).write_text(text.replace(before, after))

    folder, kernels, sources = kept()
    assert len(kernels) > 40
    # A comment moves all functions of a file; a function that kernels call, a constant, fields.
    edit("backends/cpu/team.py", "import contextlib", "# Moved.\nimport contextlib")
    edit("formulas/losses.py", "log_loss(positive - negative, ONE)", "log_loss(negative, ONE)")
    edit("backends/cpu/word2vec.py", "_IGNORED = np.float32(-1e4)", "_IGNORED = np.float32(-2e4)")
    field = "    unit: np.ndarray  #: (size, TILE_ITEMS, d)"
    edit("backends/cpu/topk.py", field, f"    added: np.ndarray\n{field}")
    again, edited, others = kept()
    assert again == folder and others != sources
    changed = {name for name in kernels if kernels[name] != edited[name]}
    assert changed == {"word2vec_train", "pairwise_train", "rank_items", "rank_candidates"}
    # What compiles is part of the folder's name.
    edit("_numba/jit.py", '"""The decorators', '"""Decorators')
    assert kept()[0] != folder


NUMPY_1 = np.__version__.startswith("1.")
NO_PLAIN_PYTHON = "NumPy 1 makes floats of uint64 and integers of Python, compiled code does not"


@pytest.mark.skipif(NUMPY_1, reason=NO_PLAIN_PYTHON)
def test_compiled_equals_python():
    predictions, compiled = report_of(TINY_FIT, NUMBA_DISABLE_JIT="1")
    expected, _ = report_of(TINY_FIT)
    assert not compiled
    assert predictions == pytest.approx(expected, abs=1e-4)


WITH_CUSTOM_FORMULAS = """
import json
import numpy as np
from numba.core import event
from custom_components import Hinge, Momentum
from freqfm import FMClassifier

X = np.random.default_rng(0).integers(0, 3, (12, 4)) / 2
y = X[:, 0] > X[:, 1]
with event.install_recorder("numba:compile") as recorder:
    model = FMClassifier(2, loss=Hinge(), optimizer=Momentum(), max_iter=2, random_state=0)
    model.fit(X, y)
print(json.dumps([model.decision_function(X).tolist(), len(recorder.buffer)]))
"""


@pytest.mark.slow
def test_custom_formulas_are_kept_on_disk_and_run_as_plain_python():
    scores, _ = report_of(WITH_CUSTOM_FORMULAS)
    again, compiled = report_of(WITH_CUSTOM_FORMULAS)
    assert again == scores and compiled == 0
    if NUMPY_1:
        pytest.skip(NO_PLAIN_PYTHON)
    interpreted, compiled = report_of(WITH_CUSTOM_FORMULAS, NUMBA_DISABLE_JIT="1")
    np.testing.assert_allclose(interpreted, scores, atol=1e-5)
    assert compiled == 0
