"""numba's compiler, made cheaper for functions that only compiled code calls.

A first fit compiles a few kernels with many functions inside. numba compiles each of them
as if it were called on its own, with machine code of its own. Code without is optimized to the same
kernels. Whatever is changed here are details of numba; ``tests/compiled/test_compiler.py`` notices
a version of numba that ignores them, and ``jit.py`` leaves the work to numba if anything here
fails.
"""

import contextlib
import functools
import gc
from collections import Counter

import numba
from llvmlite import binding
from numba.core import config, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.ir import Assign
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from freqfm._numba.extremes import with_own_extremes
from freqfm._numba.jit import inlined
from freqfm._signals import hold_signals


class _Lower(Lower):
    """Writes LLVM code with fewer variables in memory.

    numba keeps a variable in memory if another block of the function uses it, which is the same
    once LLVM has optimized it. This may be an argument with dozens of arrays.
    """

    def _find_singly_assigned_variable(self):
        super()._find_singly_assigned_variable()
        if not self.func_ir.func_id.is_generator:
            self._singly_assigned_vars |= _defined_before_use(self.func_ir.blocks)


def _defined_before_use(blocks):
    """Return the variables that are assigned once, in a block that is always run before any use."""
    n_assigned = Counter()
    for block in blocks.values():
        n_assigned.update(statement.target.name for statement in block.find_insts(Assign))
    found = compute_use_defs(blocks)
    defined = {}
    for label, names in found.defmap.items():
        for name in names:
            if n_assigned[name] == 1:
                defined[name] = label
    dominators = compute_cfg_from_blocks(blocks).dominators()
    for label, names in found.usemap.items():
        for name in names:
            # Blocks are written in the order of their labels.
            first = defined.get(name)
            if first is not None and not (first < label and first in dominators.get(label, ())):
                del defined[name]
    return set(defined)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "freqfm_lowering"
    lowering_class = _Lower


# Passes for what kernels do not contain: closures, generators, dynamic exceptions, expressions of
# whole arrays, and references that are counted.
_UNUSED = {
    "DeadBranchPrune",
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "IRLegalization",
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NoPythonSupportedFeatureValidation",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "WithLifting",
}


class _InnerCode(JITCodeLibrary):
    """LLVM code that is linked into kernels; only they become machine code.

    numba would generate machine code of every function that a kernel calls too, and never run it.
    """

    @property
    def codegen(self):
        """The code that sets the environment."""
        return self

    def set_env(self, name, environment):
        """Set nothing: Python objects, which the environment holds, are not used here."""

    def _optimize_functions(self, ll_module):
        """Leave this to the kernels, too."""
        ll_module.data_layout = self._codegen._data_layout

    def add_ir_module(self, module):
        """Add code; functions that are not inlined by decorators are by nothing else."""
        for function in module.functions:
            if not function.is_declaration and "alwaysinline" not in function.attributes:
                function.attributes.add("noinline")
        super().add_ir_module(module)

    def finalize(self):
        """Leave the rest to the kernels: they are optimized with all that is linked into them."""
        self._finalized = True

    def own_module(self):
        """Return the code of this function alone."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self):
        """Return code for functions that numba compiles by itself: with that of all it calls."""
        module = self.own_module().clone()
        _link_called(self, module)
        return module


class _KernelCode(JITCodeLibrary):
    """Code of a kernel.

    numba links each function into its callers, these into theirs, and so on.
    """

    def finalize(self):
        """Link each function once, and generate machine code."""
        _link_called(self, self._final_module)
        self._linking_libraries = []
        super().finalize()

    def _finalize_specific(self):
        """Generate machine code.

        LLVM calls functions of Python. The exception of a signal that arrived in one would be lost.
        """
        with hold_signals():
            super()._finalize_specific()

    def _finalize_final_module(self):
        """Prepare machine code, in which functions that were not inlined belong to this kernel.

        Under the name that other kernels have for them, all kernels would run the one that the
        process loaded first. What LLVM knew of its arguments there decides in which order it sums.
        """
        for function in self._final_module.functions:
            if function.linkage == binding.Linkage.linkonce_odr:
                function.linkage = "internal"
        super()._finalize_final_module()

    def _optimize_final_module(self):
        """Optimize the code.

        LLVM would unroll loops beside vectorising them: no kernel is faster by it, and all compile
        in a tenth more time. numba would first run passes that need not count references to
        arrays, of which kernels have none.
        """
        options = binding.create_pipeline_tuning_options()
        options.speed_level = config.OPT
        options.loop_vectorization = config.LOOP_VECTORIZE
        options.slp_vectorization = config.SLP_VECTORIZE
        options.loop_unrolling = False
        builder = binding.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


def _link_called(code, module):
    """Link all that some code calls, itself or through the package's functions, into a module."""
    found = list(dict.fromkeys(code._linking_libraries))
    for library in found:
        code._reload_init.update(library._reload_init)
        if isinstance(library, _InnerCode):
            module.link_in(library.own_module(), preserve=True)
            found += [called for called in library._linking_libraries if called not in found]
        else:
            module.link_in(library._get_module_for_linking(), preserve=True)


# Types of results of numba's functions, by function and types of arguments.
_SIGNATURES = {}

_find_signature = types.Function.get_call_type


def _remembered_signature(function, context, args, kwargs):
    """Return the signature of a sum, of an element and the like, which is searched for once.

    numba looks for it among dozens of definitions, for each of them anew.
    """
    if kwargs:
        return _find_signature(function, context, args, kwargs)
    key = function, tuple(args)
    if key not in _SIGNATURES:
        _SIGNATURES[key] = _find_signature(function, context, args, kwargs)
    return _SIGNATURES[key]


@contextlib.contextmanager
def _fewer_searches():
    """Let signatures be remembered, and no unreachable objects be searched for among millions."""
    if types.Function.get_call_type is not _find_signature:
        # A function is compiled for another one.
        yield
        return
    enabled = gc.isenabled()
    types.Function.get_call_type = _remembered_signature
    gc.disable()
    try:
        yield
    finally:
        types.Function.get_call_type = _find_signature
        if enabled:
            gc.enable()


class KernelCompiler(Compiler):
    """Compiles a kernel."""

    _code = _KernelCode

    def compile_extra(self, func):
        """Return the compiled code of a Python function."""
        with _fewer_searches():
            return super().compile_extra(with_own_extremes(func, inlined))

    def define_pipelines(self):
        """Return numba's passes, but for the one that writes LLVM code."""
        codegen = self.state.targetctx.codegen()
        self.state.library = self._code(codegen, self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        pipelines = super().define_pipelines()
        for manager in pipelines:
            manager.passes = [
                (_Lowering if step is NativeLowering else step, description)
                for step, description in manager.passes
                if step.__name__ not in _UNUSED
            ]
            manager.finalize()
        return pipelines


class InnerCompiler(KernelCompiler):
    """Compiles a function that only kernels call."""

    _code = _InnerCode


class Inner(CPUDispatcher):
    """A function that kernels call: compiled without an entry point from Python or C.

    Entry points would be a third of what the first fit compiles. A call from Python, as in tests,
    compiles the function again, with an entry point.
    """

    @functools.cached_property
    def _for_python(self):
        wrappers = "nopython", "no_cpython_wrapper", "no_cfunc_wrapper"
        options = {k: v for k, v in self.targetoptions.items() if k not in wrappers}
        return numba.njit(**options)(self.py_func)

    def _compile_for_args(self, *args, **kwargs):
        return self._for_python

    def get_call_template(self, args, kws):
        """Return the signature of a call; functions are not compiled again for literal numbers."""
        args = [types.unliteral(kind) for kind in args]
        kws = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template(args, kws)

    def add_overload(self, compiled):
        """Store compiled code without registering it for calls from Python, which would crash."""
        self.overloads[tuple(compiled.signature.args)] = compiled


def inner_function(function, options, ours):
    """Return a function that kernels call; ``ours`` says that it is one of the package."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    options = {"nopython": True, "boundscheck": None, **wrappers, **options}
    pipeline = {"pipeline_class": InnerCompiler} if ours else {}
    return Inner(py_func=function, targetoptions=options, **pipeline)


def compile_kernel(given, function):
    """Compile a kernel; ``given`` is what numba gives to a pipeline."""
    return KernelCompiler(*given).compile_extra(function)
