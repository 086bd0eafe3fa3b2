"""How kernels are compiled: details of numba that would otherwise go unnoticed if they changed."""

import ast
import contextlib
import gc
import importlib
import inspect
import json
import pkgutil
import signal
import sys
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest
from helpers import each
from llvmlite.binding import Linkage
from numba.core import registry, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.registry import cpu_target
from numpy.testing import assert_allclose, assert_array_equal
from processes import python

from freqfm import _numba
from freqfm._numba import code_cache as code_cache
from freqfm._numba import compiler, jit
from freqfm._numba.code_cache import KernelCache, names_used

pytestmark = pytest.mark.skipif(jit.JIT_DISABLED, reason="nothing is compiled")


class Inner(NamedTuple):
    values: np.ndarray
    factor: float


class Outer(NamedTuple):
    inner: Inner
    indices: np.ndarray


def ours(function):
    """Let a function pass for one of the package."""
    function.__module__ = jit.__name__
    return function


@jit.inlined
@ours
def doubled(x):
    return 2 * x


@jit.subroutine
@ours
def total(outer, first):
    summed = 0.0
    for p in range(first, outer.indices.shape[0]):
        summed += doubled(outer.inner.values[outer.indices[p]])
    return summed * outer.inner.factor


@pytest.fixture
def kernel(monkeypatch):
    """The decorator, without a file on disk or a place among the package's kernels."""
    monkeypatch.setattr(jit, "KERNELS", [])
    return lambda function: jit.kernel(function, cached=False)


def example():
    return Outer(Inner(np.arange(4.0), 0.5), np.array([3, 1, 2]))


def test_kernel_is_compiled_by_the_cheaper_passes(kernel):
    compiled = kernel(lambda outer: total(outer, 1))
    assert compiled(example()) == 3.0
    passes = compiled.get_metadata(compiled.signatures[0])["pipeline_times"]["nopython"]
    names = "\n".join(passes)
    assert "freqfm_lowering" in names
    assert "inline_closure_likes" not in names


def alternating(values):
    """Values that alternate in sign, a loop that is not vectorised."""
    result = 0
    for i in range(values.shape[0]):
        result = values[i] - result * result
    return result


def test_loops_are_not_unrolled(kernel):
    compiled = kernel(alternating)
    assert compiled(np.arange(4)) == alternating(np.arange(4))
    (overload,) = compiled.overloads.values()
    function = overload.library.get_function(overload.fndesc.mangled_name)
    opcodes = [i.opcode for block in function.blocks for i in block.instructions]
    assert opcodes.count("mul") == 1


def test_literal_arguments_compile_nothing_anew(kernel):
    kernel(lambda outer, first: total(outer, 0) + total(outer, 1) + total(outer, first))(
        example(), 2
    )
    assert len(total.overloads) == 1


def test_every_function_is_linked_into_a_kernel_alone(kernel):
    compiled = kernel(lambda outer, first: total(outer, first))
    assert compiled(example(), 1) == 3.0
    overload = total.overloads[numba.typeof(example()), numba.int64]
    assert "doubled" not in "".join(f.name for f in overload.library.get_defined_functions())


def test_functions_that_are_not_inlined_belong_to_the_kernel(kernel):
    # Kernels compiled otherwise have code of their own under the same names.
    compiled = kernel(lambda outer: total(outer, 1))
    assert compiled(example()) == 3.0
    (overload,) = compiled.overloads.values()
    functions = list(overload.library.get_defined_functions())
    (called,) = (f for f in functions if "total" in f.name)
    assert called.linkage == Linkage.internal
    assert not [f.name for f in functions if "doubled" in f.name]


def test_what_inlined_functions_call_is_not_inlined_too(kernel):
    # numba lets a function have options of the one that is being compiled when it is called first.
    inner = jit.subroutine(ours(lambda x: x + 1))
    outer = jit.inlined(ours(lambda x: inner(x) * inner(x + 1)))
    compiled = kernel(lambda x: outer(x))
    assert compiled(1) == 6
    (overload,) = compiled.overloads.values()
    assert len(list(overload.library.get_defined_functions())) == 1 + 1 + 1  # Python's way in


ORDER = """
import hashlib
import sys
from freqfm import MFRecommender
from freqfm.datasets import make_interactions

X = make_interactions(50, 80, 600, random_state=0)
for loss in sys.argv[1:]:
    model = MFRecommender(9, loss=loss, max_iter=2, early_stopping=False, random_state=0).fit(X)
print(hashlib.sha256(model.item_factors_.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_fit_does_not_depend_on_those_before():
    # Both kernels call the same functions.
    alone, after = python(ORDER, "softmax"), python(ORDER, "bpr", "softmax")
    assert alone.returncode == after.returncode == 0, alone.stderr + after.stderr
    assert alone.stdout == after.stdout


def test_min_and_max_are_no_calls(kernel, monkeypatch):
    # Functions of numba's would be shared with whatever else it compiles, see ``extremes``.
    linked = []
    optimize = compiler._KernelCode._optimize_final_module

    def recorded(self):
        linked.extend(function.name for function in self._final_module.functions)
        optimize(self)

    monkeypatch.setattr(compiler._KernelCode, "_optimize_final_module", recorded)

    def bounds(x, y):
        return min(x, y), max(x, y), min(3, x), max(x, 2.5)

    compiled = kernel(ours(bounds))
    for x, y in [(1, 2.5), (4.0, -1), (np.nan, 1.0), (1.0, np.nan)]:
        assert_array_equal(compiled(x, y), bounds(x, y))
    assert linked
    assert not [name for name in linked if "ol_min" in name]


def test_functions_work_inside_what_numba_compiles():
    assert numba.njit(lambda outer: total(outer, 0))(example()) == 6.0


def test_left_out_passes_exist():
    numbas = Compiler(
        cpu_target.typing_context, cpu_target.target_context, None, (), None, Flags(), {}
    )
    (manager,) = numbas.define_pipelines()
    assert {step.__name__ for step, _ in manager.passes} >= compiler._UNUSED


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_left_as_it_was(kernel, enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        kernel(lambda x: x + 1)(1)
        assert gc.isenabled() == enabled
        with pytest.raises(numba.TypingError):
            kernel(lambda x: x.missing)(1)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_numba_finds_definitions_anew_afterwards(kernel):
    # Others may have defined them anew.
    find = types.Function.get_call_type
    for function in (lambda x: x + 1, lambda x: x.missing):
        with contextlib.suppress(numba.TypingError):
            kernel(function)(1)
        assert types.Function.get_call_type is find


def test_definitions_are_searched_once(kernel, monkeypatch):
    searched, find = [], compiler._find_signature

    def counted(function, context, args, kwargs):
        searched.append((function, args))
        return find(function, context, args, kwargs)

    monkeypatch.setattr(types.Function, "get_call_type", counted)
    monkeypatch.setattr(compiler, "_find_signature", counted)
    monkeypatch.setattr(compiler, "_SIGNATURES", {})
    assert kernel(lambda x: (x + x) * (x + x) * (x + x))(np.float32(1)) == 8
    assert 0 < len(searched) == len(set(searched))


def branches(n, values):
    """Variables that are set in some blocks and used in others."""
    result = 0
    for i in range(n):
        if i % 3 == 0:
            last = values[i]
        elif i > 4:
            last = -i
            continue
        for j in range(i):
            x = values[j] * i
            if x > 10:
                n = j
                break
            result += x
        result += last + n
    while result > 50:
        result -= 7
        half = result // 2
        if half % 2:
            result -= half
    return result


def test_variables_keep_their_values_across_blocks(kernel):
    compiled = kernel(branches)
    for n in range(10):
        values = np.arange(n) * 7 % 11
        assert compiled(n, values) == branches(n, values)


# What is called from Python, by callers of another compiler, or once per process.
CALLED_OTHERWISE = {"_compile_for_args", "_get_module_for_linking"}


def own_functions():
    """Yield every function of the cheaper compiler, by name, with its owner."""
    classes = [one for one in vars(compiler).values() if inspect.isclass(one)]
    for owner in (compiler, *(one for one in classes if one.__module__ == compiler.__name__)):
        for name, value in vars(owner).items():
            full = f"{owner.__name__}.{name}"
            if (
                inspect.isfunction(value)
                and value.__module__ == compiler.__name__
                and not {name, full} & CALLED_OTHERWISE
            ):
                yield pytest.param(owner, name, id=full)


def largest(values, factor):
    found = values[0]
    for i in range(1, values.shape[0]):
        found = max(found, values[i] * factor)
    return found


def scaled(outer, first):
    summed = 0.0
    for p in range(first, outer.indices.shape[0]):
        summed += outer.inner.values[outer.indices[p]]
    return summed * outer.inner.factor + largest(outer.inner.values, outer.inner.factor)


def outermost(outer):
    return scaled(outer, 1) - scaled(outer, 0)


@pytest.fixture
def compile_example(kernel, monkeypatch):
    """Compile and run a kernel with functions of both kinds; return its result and warnings."""
    monkeypatch.setattr(jit, "_failures", [])
    monkeypatch.setattr(jit, "_DECORATED", dict(jit._DECORATED))

    def run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monkeypatch.setitem(globals(), "largest", jit.inlined(ours(largest)))
            monkeypatch.setitem(globals(), "scaled", jit.subroutine(ours(scaled)))
            result = kernel(ours(outermost))(example())
        return result, [str(warning.message) for warning in caught]

    return run


def check_fallback(compile_example, reason):
    found, (warned,) = compile_example()
    assert found == -1.5
    assert reason in warned and "first fits take three to four times as long" in warned


def broken(*args, **kwargs):
    raise TypeError("takes other arguments by now")


def test_example_is_compiled_without_warning(compile_example):
    assert compile_example() == (-1.5, [])


@pytest.mark.slow
def test_what_fails_leaves_the_work_to_numba(compile_example, monkeypatch):
    monkeypatch.setattr(*next(own_functions()).values, broken)
    check_fallback(compile_example, "TypeError: takes other arguments by now")


@pytest.mark.slow
@pytest.mark.parametrize("owner, name", list(own_functions()))
def test_whatever_fails_leaves_the_work_to_numba(compile_example, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, broken)
    check_fallback(compile_example, "TypeError: takes other arguments by now")


FIT = """
import json
import numpy as np
from freqfm import FMRegressor

X = np.random.default_rng(0).integers(0, 3, (12, 4)) / 2
model = FMRegressor(2, max_iter=2, random_state=0).fit(X, X.sum(axis=1))
print(json.dumps(model.predict(X).tolist()))
"""

BROKEN = """
from freqfm._numba import compiler
del compiler._link_called
"""


@pytest.mark.slow
def test_a_fit_succeeds_all_the_same(tmp_path):
    expected = python(FIT)
    done = python(BROKEN + FIT, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == expected.returncode == 0, done.stderr
    assert "first fits take three to four times as long" in done.stderr
    assert_allclose(json.loads(done.stdout), json.loads(expected.stdout), rtol=1e-5)


def test_kernels_reach_functions_by_names_and_not_through_modules():
    # Those in an attribute of a module would not be compiled by numba where the others are.
    for part in ("backends.cpu", "formulas"):
        folder = importlib.import_module(f"freqfm.{part}")
        for module in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{folder.__name__}.{module.name}")
    found = {
        function.__qualname__
        for function, _ in jit._DECORATED.values()
        for value in names_used(function).values()
        if inspect.ismodule(value) and value.__name__.startswith("freqfm")
    }
    assert not found


def names_of_numba(module):
    """Yield the modules and names that a module imports from numba and llvmlite."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("numba", "llvmlite"):
            for alias in node.names:
                yield importlib.import_module(node.module), alias.name


def import_without(monkeypatch, module, owner, name):
    """Let a module be imported anew, without a name that it imports."""
    monkeypatch.delattr(owner, name)
    if f"{owner.__name__}.{name}" in sys.modules:
        monkeypatch.setitem(sys.modules, f"{owner.__name__}.{name}", None)
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.delattr(_numba, module.__name__.rpartition(".")[2])


@each("owner, name", list(names_of_numba(compiler)))
def test_without_a_name_of_numba_its_compiler_is_taken(owner, name):
    with pytest.MonkeyPatch.context() as patch:
        import_without(patch, compiler, owner, name)
        patch.setattr(jit, "_failures", [])
        with pytest.warns(UserWarning, match=f"Error: .*{name}.* take three to four"):
            assert jit._cheaper() is None


@pytest.mark.slow
def test_kernels_are_compiled_without_the_cheaper_compiler(compile_example, monkeypatch):
    monkeypatch.setitem(sys.modules, compiler.__name__, None)
    monkeypatch.delattr(_numba, "compiler")
    check_fallback(compile_example, "Error: ")


@each("owner, name", list(names_of_numba(code_cache)))
def test_without_a_name_of_numba_nothing_is_kept(owner, name):
    with pytest.MonkeyPatch.context() as patch:
        import_without(patch, code_cache, owner, name)
        with pytest.warns(UserWarning, match=f"Error: .*{name}.* for itself"):
            jit._keep_on_disk(jit.inlined)


def test_what_cannot_be_kept_on_disk_is_run(kernel, monkeypatch):
    compiled = kernel(ours(lambda x: x + 1))
    monkeypatch.setattr(code_cache.KernelCache, "__init__", broken)
    with pytest.warns(UserWarning, match="takes other arguments by now.* for itself"):
        jit._keep_on_disk(compiled)
    assert compiled(1) == 2


def test_options_that_numba_does_not_know_are_left_out(monkeypatch):
    assert jit._known(_nrt=False, invented=True) == {"_nrt": False}
    monkeypatch.delattr(registry, "cpu_target")
    assert jit._known(_nrt=False) == {}


@pytest.fixture
def interrupted(monkeypatch):
    """Let Ctrl-C be pressed where a method is called; return whether it has come to its end."""
    ended, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(owner, name, method):
        def press(*args):
            signal.raise_signal(signal.SIGINT)
            result = method(*args)
            ended.append(name)
            return result

        monkeypatch.setattr(owner, name, press)
        return ended

    yield interrupt
    signal.signal(signal.SIGINT, before)


def test_signals_wait_while_llvm_calls_python(kernel, interrupted):
    @kernel
    def add(x):
        x[0] += 1

    # The first compilation of a process makes numba's runtime, too.
    kernel(lambda x: x)(1)
    name = "_finalize_specific"
    ended = interrupted(JITCodeLibrary, name, getattr(JITCodeLibrary, name))
    with pytest.raises(KeyboardInterrupt):
        add(np.ones(1))
    assert ended


@pytest.mark.skipif(jit.cache_directory() is None, reason="nothing is kept on disk")
@pytest.mark.parametrize("does", ["load", "save"])
def test_signals_wait_while_compiled_code_is_read_or_written(does, interrupted):
    ended = interrupted(code_cache, does, lambda *args: None)
    compiled = SimpleNamespace(
        codegen=cpu_target.target_context.codegen(),
        library=SimpleNamespace(has_dynamic_globals=False),
        _reduce=tuple,
    )
    given = cpu_target.target_context if does == "load" else compiled
    with pytest.raises(KeyboardInterrupt):
        getattr(KernelCache(ours), f"{does}_overload")(None, given)
    assert ended
