"""numba's compiler, made cheaper for functions that only compiled code calls.

What a first fit compiles is a few kernels with many functions inside. numba compiles each of them
as if it were called on its own: with machine code of its own, and with every array of a tuple of
arrays taken apart into seven arguments at each call. Code without either is optimized to the same
kernels. Whatever is changed here are details of numba; ``tests/compiled/test_compiler.py`` notices
a version of numba that ignores them, and ``jit.py`` leaves the work to numba if anything here
fails.
"""

import functools
import gc
from collections import Counter

import numba
from llvmlite import binding, ir
from numba.core import config, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.ir import Assign
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.extending import models, register_model

from freqfm._numba.extremes import with_own_extremes
from freqfm._signals import hold_signals

__all__ = ["compile_kernel", "inner_function"]


class Whole(types.Type):
    """The type of an argument that is passed as one value, not taken apart into its fields."""

    def __init__(self, wrapped):
        self.wrapped = wrapped
        super().__init__(f"Whole({wrapped})")


@register_model(Whole)
class _WholeModel(models.PrimitiveModel):
    def __init__(self, manager, whole):
        super().__init__(manager, whole, manager[whole.wrapped].get_value_type())


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


class _InnerLower(_Lower):
    """Writes a function that takes tuples of arrays whole, and takes apart only what it uses."""

    def lower_normal_function(self, fndesc):
        """Write the function."""
        argtypes = fndesc.argtypes
        fndesc.argtypes = _passed(argtypes)
        try:
            super().lower_normal_function(fndesc)
        finally:
            fndesc.argtypes = argtypes

    def extract_function_arguments(self):
        """Return the values of the arguments."""
        self._fields = {}
        arguments = super().extract_function_arguments()
        self._given = {id(a): a for a, t in zip(arguments, self.fndesc.argtypes, strict=True)
                       if isinstance(t, Whole)}  # fmt: skip
        return arguments

    def lower_expr(self, resty, expr):
        """Return the value of an expression."""
        if expr.op == "getattr":
            kind = self.typeof(expr.value.name)
            value = self.loadvar(expr.value.name)
            if id(value) in self._given and kind[kind.fields.index(expr.attr)] == resty:
                return self._field(value, kind.fields.index(expr.attr), resty)
        return super().lower_expr(resty, expr)

    def _field(self, value, number, kind):
        """Take a field out of an argument where the function begins, for all its uses."""
        key = id(value), number
        if key not in self._fields:
            with self.builder.goto_entry_block():
                field = self.builder.extract_value(value, number)
                if isinstance(kind, types.Array):
                    field = _taken_apart(self.builder, field)
            self._fields[key] = field
            if isinstance(kind, types.NamedTuple):
                self._given[id(field)] = field
        return self._fields[key]


def _taken_apart(builder, value):
    """Build a value anew, of scalars: LLVM then sees scalars wherever a part of it is used."""
    if not isinstance(value.type, ir.Aggregate):
        return value
    built = ir.Constant(value.type, ir.Undefined)
    for number in range(len(value.type)):
        part = _taken_apart(builder, builder.extract_value(value, number))
        built = builder.insert_value(built, part, number)
    return built


def _passed(argtypes):
    """Return how arguments are passed: named tuples with arrays whole, others as numba does."""
    return tuple(Whole(kind) if _has_arrays(kind) else kind for kind in argtypes)


def _has_arrays(kind):
    return isinstance(kind, types.NamedTuple) and any(
        isinstance(field, types.Array) or _has_arrays(field) for field in kind
    )


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    _name = "freqfm_kernel_lowering"
    lowering_class = _Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class _InnerLowering(NativeLowering):
    _name = "freqfm_inner_lowering"
    lowering_class = _InnerLower

    def run_pass(self, state):
        """Write LLVM code; callers read from the descriptor how arguments are passed."""
        super().run_pass(state)
        fndesc = state.cr.fndesc
        fndesc.argtypes = _passed(fndesc.argtypes)
        return True


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
        """What sets the environment."""
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


# What the names of functions begin with that Python calls: they unpack every field of every
# argument, which is as much code as a small kernel.
_ENTRY = "_ZN7cpython"


class _KernelCode(JITCodeLibrary):
    """Code of a kernel.

    numba links each function into its callers, these into theirs, and so on.
    """

    _unrolls = True

    def add_ir_module(self, module):
        """Add code; what takes a call's arguments apart, once for each call, is not optimized."""
        for function in module.functions:
            if function.name.startswith(_ENTRY) and not function.is_declaration:
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        super().add_ir_module(module)

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
        process loaded first. If that was compiled without unrolled loops, it sums in another order.
        """
        for function in self._final_module.functions:
            if function.linkage == binding.Linkage.linkonce_odr:
                function.linkage = "internal"
        super()._finalize_final_module()

    def _optimize_final_module(self):
        """Optimize the code.

        LLVM unrolls loops beside vectorising them; unless ``_unrolls``, it does not. numba would
        first run passes that need not count references to arrays, of which kernels have none.
        """
        options = binding.create_pipeline_tuning_options()
        options.speed_level = config.OPT
        options.loop_vectorization = config.LOOP_VECTORIZE
        options.slp_vectorization = config.SLP_VECTORIZE
        options.loop_unrolling = self._unrolls
        builder = binding.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


class _RolledKernelCode(_KernelCode):
    _unrolls = False


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


def _install_new(context):
    """Make known what has been registered with numba since the last time."""
    for registry in list(context._registries):
        context.install_registry(registry)


class KernelCompiler(Compiler):
    """Compiles a kernel."""

    _lowering = _KernelLowering
    _code = _KernelCode

    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)
        context = self.state.targetctx
        # Whatever numba does not find at once it looks for in all of its modules, hundreds of times
        # a kernel. They have been imported above; only what they define anew is of interest.
        context.refresh = lambda: _install_new(context)

    def compile_extra(self, func):
        """Compile without a search for unreachable objects, of which there are millions."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(with_own_extremes(func))
        finally:
            if enabled:
                gc.enable()

    def define_pipelines(self):
        """Return numba's passes, but for the one that writes LLVM code."""
        codegen = self.state.targetctx.codegen()
        self.state.library = self._code(codegen, self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        pipelines = super().define_pipelines()
        for manager in pipelines:
            manager.passes = [
                (self._lowering if step is NativeLowering else step, description)
                for step, description in manager.passes
                if step.__name__ not in _UNUSED
            ]
            manager.finalize()
        return pipelines


class RolledCompiler(KernelCompiler):
    """Compiles a kernel whose loops are not unrolled."""

    _code = _RolledKernelCode


class InnerCompiler(KernelCompiler):
    """Compiles a function that only kernels call."""

    _lowering = _InnerLowering
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


def compile_kernel(given, function, unrolls):
    """Compile a kernel; ``given`` is what numba gives to a pipeline."""
    return (KernelCompiler if unrolls else RolledCompiler)(*given).compile_extra(function)
